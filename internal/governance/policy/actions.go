package policy

import (
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Definition is an action with who has it.
type Definition struct {
	Action Action
	Doc    string // what it allows, for people
	Roles  []project.Role

	Own          bool // also whoever owns the object
	Attempt      bool // a scope of an attempt's token may name it
	Data         bool // reads contents: classification decides, too
	Contents     bool // may read contents, where Object.Contents says so
	Installation bool // needs the role in the whole installation
	Common       bool // asked of the installation, any member of any project has it
}

var (
	everyone  = project.Roles
	readers   = []project.Role{project.Viewer, project.Engineer, project.Deployer, project.Admin}
	users     = []project.Role{project.Engineer, project.Deployer, project.Admin}
	engineers = []project.Role{project.Engineer, project.Admin}
	deployers = []project.Role{project.Deployer, project.Admin}
	overseers = []project.Role{project.Admin, project.Auditor}
	admins    = []project.Role{project.Admin}
)

// actions is the one list of what can be permitted. Every route and service
// method asks for one of these.
var actions = []Definition{
	{Action: "project.read", Doc: "see a project and its settings", Roles: everyone, Attempt: true},
	{Action: "project.create", Doc: "make a project", Roles: admins, Installation: true},
	{Action: "project.quota", Doc: "change how much a project may store", Roles: admins, Installation: true},
	{Action: "project.update", Doc: "change a project's settings and policies", Roles: admins},
	{Action: "project.delete", Doc: "delete an empty project", Roles: admins},

	{Action: "member.read", Doc: "see who has which role", Roles: everyone},
	{Action: "member.grant", Doc: "give a role", Roles: admins},
	{Action: "member.revoke", Doc: "take a role away", Roles: admins},

	{Action: "token.read", Doc: "see tokens, never their secrets", Roles: overseers, Own: true},
	{Action: "token.create", Doc: "make a token or a service account", Roles: admins, Own: true},
	{Action: "token.revoke", Doc: "end a token", Roles: admins, Own: true},

	{Action: "zone.read", Doc: "see zones", Roles: everyone, Common: true},
	{Action: "zone.apply", Doc: "make or change a zone; changing its law takes two people", Roles: admins, Installation: true},
	{Action: "pool.read", Doc: "see pools and their use", Roles: everyone, Common: true},
	{Action: "pool.apply", Doc: "make or change a pool", Roles: admins, Installation: true},
	{Action: "queue.read", Doc: "see queues, what they use and who waits", Roles: everyone, Common: true},
	{Action: "queue.apply", Doc: "make or change a queue", Roles: admins, Installation: true},
	{Action: "queue.delete", Doc: "delete an empty queue", Roles: admins, Installation: true},

	{Action: "cost.read", Doc: "see what was used, what it cost and the budget", Roles: everyone},
	{Action: "budget.apply", Doc: "make or change a project's budget", Roles: admins, Installation: true},
	{Action: "budget.delete", Doc: "remove a project's budget", Roles: admins, Installation: true},

	{Action: "dataset.read", Doc: "see a dataset's schema, statistics, lineage", Roles: everyone, Attempt: true, Contents: true},
	{Action: "dataset.import", Doc: "make a dataset version", Roles: engineers, Attempt: true},
	{Action: "dataset.query", Doc: "read rows", Roles: readers, Attempt: true, Data: true},
	{Action: "dataset.delete", Doc: "delete a dataset version", Roles: engineers},
	{Action: "dataset.relabel", Doc: "change where data may be; widening takes two people", Roles: admins},
	{Action: "lineage.report", Doc: "tell what ran elsewhere, by OpenLineage", Roles: engineers, Attempt: true},

	{Action: "source.read", Doc: "see the sources of datasets and their runs", Roles: everyone},
	{Action: "source.apply", Doc: "make or change a source; takes dataset.import and secret.use, too", Roles: engineers},
	{Action: "source.run", Doc: "ingest from a source, end a run", Roles: engineers},
	{Action: "source.delete", Doc: "delete a source", Roles: engineers},

	{Action: "feature.read", Doc: "see feature definitions", Roles: everyone, Attempt: true, Contents: true},
	{Action: "feature.apply", Doc: "define features", Roles: engineers},
	{Action: "feature.materialise", Doc: "fill the online store", Roles: engineers},
	{Action: "feature.push", Doc: "write rows to the online store", Roles: engineers},
	{Action: "feature.online", Doc: "read online features", Roles: users, Attempt: true, Data: true},
	{Action: "feature.history", Doc: "read features as of a past instant, make training sets", Roles: engineers, Attempt: true, Data: true},
	{Action: "feature.clear", Doc: "see protected features as they are, not masked or as pseudonyms", Roles: admins, Data: true},

	{Action: "environment.read", Doc: "see environments", Roles: everyone, Attempt: true},
	{Action: "environment.apply", Doc: "define and build environments", Roles: engineers},
	{Action: "environment.prune", Doc: "remove the files of environments that nobody uses", Roles: admins, Installation: true},

	{Action: "job.read", Doc: "see jobs, attempts and why they wait", Roles: everyone, Attempt: true, Contents: true},
	{Action: "job.submit", Doc: "submit a job", Roles: engineers},
	{Action: "job.cancel", Doc: "cancel a job", Roles: engineers},
	{Action: "checkpoint.read", Doc: "read a kept checkpoint of a job, go on from it", Roles: users, Data: true},
	{Action: "checkpoint.delete", Doc: "delete a kept checkpoint of a job", Roles: engineers},
	{Action: "job.profile", Doc: "look at what a running job does", Roles: engineers},
	{Action: "job.logs", Doc: "read a job's logs", Roles: users, Attempt: true, Contents: true},

	{Action: "sweep.read", Doc: "see sweeps, studies and their trials", Roles: everyone, Attempt: true, Contents: true},
	{Action: "sweep.write", Doc: "make studies and add trials, as Optuna's clients do", Roles: engineers, Attempt: true},
	{Action: "sweep.apply", Doc: "make or change a sweep; its jobs take job.submit, too", Roles: engineers},
	{Action: "sweep.delete", Doc: "delete a sweep and its trials; runs and jobs stay", Roles: engineers},

	{Action: "workload.work", Doc: "be a worker: only ever the attempt itself", Roles: engineers, Attempt: true},

	{Action: "run.read", Doc: "see runs, params, metrics and artifacts", Roles: everyone, Attempt: true, Contents: true},
	{Action: "run.write", Doc: "log to a run", Roles: engineers, Attempt: true},

	{Action: "run.import", Doc: "bring runs, their files and models from an MLflow server, with their ids, users and times", Roles: admins},
	{Action: "run.prune", Doc: "remove deleted runs, logged models and experiments for ever, with their files", Roles: admins},

	{Action: "model.read", Doc: "see and download models", Roles: everyone, Attempt: true, Contents: true},
	{Action: "model.write", Doc: "register a model version", Roles: engineers, Attempt: true},
	{Action: "model.promote", Doc: "move an alias", Roles: deployers},
	{Action: "model.approve", Doc: "approve or reject a model version that somebody else made", Roles: deployers},
	{Action: "model.govern", Doc: "say what model versions need before they are registered and promoted", Roles: admins},

	{Action: "deployment.read", Doc: "see deployments", Roles: everyone, Contents: true},
	{Action: "deployment.apply", Doc: "deploy and change traffic", Roles: deployers},
	{Action: "deployment.rollout", Doc: "try, promote and roll back versions; turn automation on and off", Roles: deployers},
	{Action: "gateway.read", Doc: "see gateways", Roles: everyone},
	{Action: "gateway.apply", Doc: "make, change and delete gateways", Roles: deployers},
	{Action: "gateway.pull", Doc: "be a gateway: fetch what it serves, and hand its predictions back", Roles: deployers},
	{Action: "deployment.infer", Doc: "ask a model for predictions", Roles: users, Attempt: true},

	{Action: "label.write", Doc: "say what turned out to be true for predictions", Roles: users},

	{Action: "monitor.read", Doc: "see monitors and alerts", Roles: everyone, Contents: true},
	{Action: "monitor.apply", Doc: "make or change a monitor", Roles: users},

	{Action: "audit.read", Doc: "read the audit log", Roles: overseers},
	{Action: "audit.export", Doc: "export the audit log with proofs", Roles: overseers},
	{Action: "audit.reads", Doc: "ask who read the features of a person", Roles: overseers},
	{Action: "audit.erase", Doc: "erase what entries of the audit log say, with a second person; commitments, times, actors and actions stay", Roles: admins, Installation: true},

	{Action: "erasure.read", Doc: "see erasures of persons and their certificates", Roles: overseers},
	{Action: "erasure.apply", Doc: "look for a person everywhere, and erase", Roles: admins},

	{Action: "secret.read", Doc: "see which secrets exist and what uses them, never what they hold", Roles: []project.Role{project.Engineer, project.Admin, project.Auditor}},
	{Action: "secret.apply", Doc: "make a secret, or give it other values", Roles: engineers},
	{Action: "secret.use", Doc: "name a secret in a source, which opens it", Roles: engineers},
	{Action: "secret.delete", Doc: "delete a secret that nothing uses", Roles: engineers},

	{Action: "keys.read", Doc: "see which keys exist, never the keys", Roles: overseers},
	{Action: "keys.destroy", Doc: "destroy a key and so erase what it sealed", Roles: admins},

	{Action: "backup.read", Doc: "see the backups of the installation", Roles: overseers, Installation: true},
	{Action: "backup.make", Doc: "back the installation up", Roles: admins, Installation: true},

	{Action: "system.read", Doc: "see the installation's state", Roles: overseers, Installation: true},
	{Action: "system.configure", Doc: "change the installation", Roles: admins, Installation: true},
}

var byAction = func() map[Action]*Definition {
	m := make(map[Action]*Definition, len(actions))
	for i := range actions {
		m[actions[i].Action] = &actions[i]
	}
	return m
}()

// Actions lists every action in the order of the documentation. The caller
// must not change what it gets.
func Actions() []Definition { return slices.Clone(actions) }

// Lookup finds an action's definition.
func Lookup(a Action) (Definition, bool) {
	d, ok := byAction[a]
	if !ok {
		return Definition{}, false
	}
	return *d, true
}

// Has reports whether the role alone allows the action.
func (d Definition) Has(r project.Role) bool { return slices.Contains(d.Roles, r) }

// Customisable reports whether a project's own policies may be about the action:
// not about running the project itself, which would lock administrators out, and
// not about seeing what exists, which lists filter by role.
func (d Definition) Customisable() bool {
	noun, verb, _ := strings.Cut(string(d.Action), ".")
	switch noun {
	case "dataset", "feature", "environment", "job", "run", "sweep", "model", "deployment", "monitor":
		return verb != "read" && verb != "relabel"
	}
	return false
}

// CheckScope refuses a token scope that names no action, or, for an attempt's
// token, one that attempts cannot have. Error: fault.Invalid, with the nearest
// action.
func CheckScope(scope string, attempt bool) error {
	a, object, limited := strings.Cut(scope, ":")
	if len(scope) > 200 || limited && (object == "" || strings.ContainsAny(object, " \t\r\n:")) {
		return fault.New(fault.Invalid, "scope %.80q is not an action or action:object", scope).
			WithHint("Write a scope such as run.write or dataset.query:weather@1.")
	}
	d, ok := byAction[Action(a)]
	if !ok {
		return fault.New(fault.Invalid, "scope %.80q names no action", scope).WithHint("Did you mean %s?", Nearest(a))
	}
	if attempt && !d.Attempt {
		return fault.New(fault.Invalid, "an attempt cannot have the scope %s", a)
	}
	return nil
}

// Nearest is the action whose name takes the fewest edits to reach.
func Nearest(name string) Action {
	if len(name) > 64 {
		name = name[:64]
	}
	return slices.MinFunc(actions, func(a, b Definition) int {
		return levenshtein.ComputeDistance(name, string(a.Action)) - levenshtein.ComputeDistance(name, string(b.Action))
	}).Action
}
