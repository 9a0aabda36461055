package policy

import (
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Definition is an action with the roles that have it.
type Definition struct {
	Action Action
	Doc    string // description for users
	Roles  []project.Role

	Own          bool // also the owner of the object
	Attempt      bool // permitted as a scope of an attempt's token
	Data         bool // reads contents, so the classification also applies
	Contents     bool // reads contents if Object.Contents is set
	Installation bool // needs the role in the installation
	Common       bool // checked for the installation; every member of any project has it
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

// actions is the only list of permissions. Every route and service method
// checks one of these.
var actions = []Definition{
	{Action: "project.read", Doc: "see a project and its settings", Roles: everyone, Attempt: true},
	{Action: "project.create", Doc: "create a project", Roles: admins, Installation: true},
	{Action: "project.quota", Doc: "change a project's storage quota", Roles: admins, Installation: true},
	{Action: "project.update", Doc: "change a project's settings and policies", Roles: admins},
	{Action: "project.delete", Doc: "delete an empty project", Roles: admins},

	{Action: "member.read", Doc: "see members and their roles", Roles: everyone},
	{Action: "member.grant", Doc: "grant a role", Roles: admins},
	{Action: "member.revoke", Doc: "revoke a role", Roles: admins},

	{Action: "token.read", Doc: "see tokens, never their secrets", Roles: overseers, Own: true},
	{Action: "token.create", Doc: "create a token or a service account", Roles: admins, Own: true},
	{Action: "token.revoke", Doc: "revoke a token", Roles: admins, Own: true},

	{Action: "zone.read", Doc: "see zones", Roles: everyone, Common: true},
	{Action: "zone.apply", Doc: "create or change a zone; changing its jurisdiction needs a second person's approval", Roles: admins, Installation: true},
	{Action: "pool.read", Doc: "see pools and their usage", Roles: everyone, Common: true},
	{Action: "pool.apply", Doc: "create or change a pool", Roles: admins, Installation: true},
	{Action: "queue.read", Doc: "see queues, their usage and pending jobs", Roles: everyone, Common: true},
	{Action: "queue.apply", Doc: "create or change a queue", Roles: admins, Installation: true},
	{Action: "queue.delete", Doc: "delete an empty queue", Roles: admins, Installation: true},

	{Action: "cost.read", Doc: "see usage, cost and the budget", Roles: everyone},
	{Action: "budget.apply", Doc: "create or change a project's budget", Roles: admins, Installation: true},
	{Action: "budget.delete", Doc: "delete a project's budget", Roles: admins, Installation: true},

	{Action: "dataset.read", Doc: "see a dataset's schema, statistics and lineage", Roles: everyone, Attempt: true, Contents: true},
	{Action: "dataset.import", Doc: "create a dataset version", Roles: engineers, Attempt: true},
	{Action: "dataset.query", Doc: "read rows of datasets", Roles: readers, Attempt: true, Data: true},
	{Action: "dataset.delete", Doc: "delete a dataset version", Roles: engineers},
	{Action: "dataset.relabel", Doc: "change the residency and classification of data; widening needs a second person's approval", Roles: admins},
	{Action: "lineage.report", Doc: "report external runs as OpenLineage events", Roles: engineers, Attempt: true},

	{Action: "source.read", Doc: "see the sources of datasets and their runs", Roles: everyone},
	{Action: "source.apply", Doc: "create or change a source; also needs dataset.import and secret.use", Roles: engineers},
	{Action: "source.run", Doc: "ingest from a source; cancel a run", Roles: engineers},
	{Action: "source.delete", Doc: "delete a source", Roles: engineers},

	{Action: "feature.read", Doc: "see feature definitions", Roles: everyone, Attempt: true, Contents: true},
	{Action: "feature.apply", Doc: "define features", Roles: engineers},
	{Action: "feature.materialise", Doc: "materialise features to the online store", Roles: engineers},
	{Action: "feature.push", Doc: "push rows to the online store", Roles: engineers},
	{Action: "feature.online", Doc: "read online features", Roles: users, Attempt: true, Data: true},
	{Action: "feature.history", Doc: "read features as of a past time; create training sets", Roles: engineers, Attempt: true, Data: true},
	{Action: "feature.clear", Doc: "read protected features in clear instead of masked or pseudonymised", Roles: admins, Data: true},

	{Action: "environment.read", Doc: "see environments", Roles: everyone, Attempt: true},
	{Action: "environment.apply", Doc: "define and build environments", Roles: engineers},
	{Action: "environment.prune", Doc: "remove the files of unused environments", Roles: admins, Installation: true},

	{Action: "job.read", Doc: "see jobs, attempts and wait reasons", Roles: everyone, Attempt: true, Contents: true},
	{Action: "job.submit", Doc: "submit a job", Roles: engineers},
	{Action: "job.cancel", Doc: "cancel a job", Roles: engineers},
	{Action: "checkpoint.read", Doc: "read a retained checkpoint of a job; resume from it", Roles: users, Data: true},
	{Action: "checkpoint.delete", Doc: "delete a retained checkpoint of a job", Roles: engineers},
	{Action: "job.profile", Doc: "profile a running job", Roles: engineers},
	{Action: "job.logs", Doc: "read a job's logs", Roles: users, Attempt: true, Contents: true},

	{Action: "sweep.read", Doc: "see sweeps, studies and their trials", Roles: everyone, Attempt: true, Contents: true},
	{Action: "sweep.write", Doc: "create studies and add trials, as Optuna's clients do", Roles: engineers, Attempt: true},
	{Action: "sweep.apply", Doc: "create or change a sweep; its jobs also need job.submit", Roles: engineers},
	{Action: "sweep.delete", Doc: "delete a sweep and its trials; runs and jobs are kept", Roles: engineers},

	{Action: "workload.work", Doc: "act as a worker; only for the token of an attempt", Roles: engineers, Attempt: true},

	{Action: "run.read", Doc: "see runs, params, metrics and artifacts", Roles: everyone, Attempt: true, Contents: true},
	{Action: "run.write", Doc: "log to a run", Roles: engineers, Attempt: true},

	{Action: "run.import", Doc: "import runs, files and models of an MLflow server, with their ids, users and timestamps", Roles: admins},
	{Action: "run.prune", Doc: "permanently remove deleted runs, logged models and experiments with their files", Roles: admins},

	{Action: "model.read", Doc: "see and download models", Roles: everyone, Attempt: true, Contents: true},
	{Action: "model.write", Doc: "register a model version", Roles: engineers, Attempt: true},
	{Action: "model.promote", Doc: "set a model's alias; promote a version", Roles: deployers},
	{Action: "model.approve", Doc: "approve or reject another user's model version", Roles: deployers},
	{Action: "model.govern", Doc: "set the policies for registering and promoting model versions", Roles: admins},

	{Action: "deployment.read", Doc: "see deployments", Roles: everyone, Contents: true},
	{Action: "deployment.apply", Doc: "deploy and change traffic", Roles: deployers},
	{Action: "deployment.rollout", Doc: "start, promote and roll back rollouts; turn automation on and off", Roles: deployers},
	{Action: "gateway.read", Doc: "see gateways", Roles: everyone},
	{Action: "gateway.apply", Doc: "create, change and delete gateways", Roles: deployers},
	{Action: "gateway.pull", Doc: "act as a gateway: fetch its deployments, and send predictions back", Roles: deployers},
	{Action: "deployment.infer", Doc: "request predictions", Roles: users, Attempt: true},

	{Action: "label.write", Doc: "send labels for predictions", Roles: users},

	{Action: "monitor.read", Doc: "see monitors and alerts", Roles: everyone, Contents: true},
	{Action: "monitor.apply", Doc: "create or change a monitor", Roles: users},

	{Action: "audit.read", Doc: "read the audit log", Roles: overseers},
	{Action: "audit.export", Doc: "export the audit log with proofs", Roles: overseers},
	{Action: "audit.reads", Doc: "list reads of a person's features", Roles: overseers},
	{Action: "audit.erase", Doc: "erase the contents of audit entries, with a second person's approval; commitments, times, actors and actions are kept", Roles: admins, Installation: true},

	{Action: "erasure.read", Doc: "see erasures of persons and their certificates", Roles: overseers},
	{Action: "erasure.apply", Doc: "search for a person's data in all stores, and erase it", Roles: admins},

	{Action: "secret.read", Doc: "see secrets and their users, never their values", Roles: []project.Role{project.Engineer, project.Admin, project.Auditor}},
	{Action: "secret.apply", Doc: "create or change a secret", Roles: engineers},
	{Action: "secret.use", Doc: "use a secret in a source or a job", Roles: engineers},
	{Action: "secret.delete", Doc: "delete an unused secret", Roles: engineers},

	{Action: "keys.read", Doc: "see keys, never the key material", Roles: overseers},
	{Action: "keys.destroy", Doc: "destroy a key, which crypto-shreds its data", Roles: admins},

	{Action: "backup.read", Doc: "see the backups of the installation", Roles: overseers, Installation: true},
	{Action: "backup.make", Doc: "create a backup of the installation", Roles: admins, Installation: true},

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

// Actions returns every action in the order of the documentation. The caller
// must not modify the result.
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

// Customisable reports whether a project's policies may name the action. Actions
// that administer the project are excluded, because a policy could lock out its
// administrators, and so are read actions, because lists filter by role.
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
