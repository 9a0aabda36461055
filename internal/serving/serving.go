// Package serving answers requests with models.
//
// # Map
//
//   - spec.go: what a Deployment manifest says. A Deployment gives model versions
//     a name to be asked by: the name is the Open Inference Protocol's model
//     name. deployment: loading → ready | failed.
//   - service.go: the services, each for its callers: Deployments, Inference, Rollouts,
//     AutoActions, Loader, Quotas and Metrics. They share one core.
//   - deployments.go: Deployments.Apply opens a version (open.go: signature, residency,
//     load) and only then commits: what is deployed has answered once. loader.go loads
//     what is missing, such as all models after a restart.
//   - routing.go: the routing tables: the share of each version in memory (target.go);
//     table.choose decides which version answers a request.
//   - infer.go: the path of a request, in stages: route, admit, await, run, record.
//     coldstart.go is the wait, features.go fills the model's input by keys, record.go
//     writes the prediction log, shadow.go repeats requests on the shadow. metadata.go
//     describes models.
//   - chain/ puts steps before and after a model, so that they answer as one; steps.go
//     says which models are steps, and what they may be joined with.
//   - rollout.go: Rollout, AutoAction and Automation; rollouts.go starts and ends rollouts,
//     automation.go decides whether an automatic act may be done, and says why, status.go how a
//     deployment is. rollout/ decides whether a canary is promoted, purely.
//   - scale.go: how many replicas a version has, and when it has none; autoscale/
//     decides, purely. replicas.go is several of a version, remotereplica.go one on
//     another machine; coldstart.go holds requests while their model loads.
//   - batching/ is how requests wait for a model and share its runs;
//     statistics.go counts them. limit.go bounds how many come in a
//     second, quota.go in a day or a month.
//   - isolation.go decides which models run in the server's process: those that the
//     administrator names. supervise.go counts the deaths of the others' processes, and
//     sets a version aside that kills them.
//   - runtime/ is the contract with what runs models; runtime/child runs each in a
//     process of its own, in which runtime/onnx is ONNX Runtime; runtime/python runs what
//     is no ONNX file, and runtime/remote asks other servers; python.go says what a Python model runs in, remote.go where requests may go.
//     prediction/ keeps what was answered.
//
// rollout: running → promoted | rolled_back | inconclusive | cancelled;
// promoted → rolled_back. act: claimed → done | failed | skipped.
//
// # Guarantees
//
// A model whose files do not match its signature is never loaded. No model runs in the
// server's process that its administrator has not named. A model is
// served in a zone that its label allows and nowhere else: what goes to a remote is let
// through by the model's label and the features'. Answers of models
// classified confidential or restricted are in the journal before they leave.
// Each request is answered by one version out of one routing table; changing a
// deployment lets requests that have entered finish on the old session. A row's
// answer is the one that it has alone, whoever else asks (batching/). A key meets
// the same version as long as shares do not move, and moving a share moves no
// more keys than it must. An automatic act happens at most once for its cause, and
// not at all while automation is off.
package serving

import (
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// State of a deployment or of one of its targets, in this process.
type State string

// The states.
const (
	Loading State = "loading" // wanted, not in memory yet
	Ready   State = "ready"
	Failed  State = "failed" // see Reason; tried again with growing pauses
)

// ID identifies a deployment.
type ID string

// Deployment is the model versions that answer under a name. Version, Digest,
// Residency and Classification are those of the stable one.
type Deployment struct {
	ID             ID              `json:"id"`
	Project        string          `json:"project"`
	Name           string          `json:"name"`
	Spec           Spec            `json:"spec"`
	Model          string          `json:"model"`
	Version        int64           `json:"version"` // the number that Spec.Version meant when it was applied, or what was promoted since
	Digest         string          `json:"digest"`  // of the version's files
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	Owner          string          `json:"owner,omitempty"` // who applied it first
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	Revision       int64           `json:"revision"` // rises with each change; the ETag

	// Steps are the models among Spec's steps, in order.
	Steps []StepModel `json:"steps,omitempty"`
	// FeatureSet is what Spec.Features.Service meant when it was applied.
	FeatureSet *FeatureSet `json:"feature_set,omitempty"`
	// Trials are the canary and the shadow, at most one of each.
	Trials []Trial `json:"-"`
	// Before are the versions that were stable earlier, the newest last: a
	// rollback goes to it.
	Before []int64 `json:"before,omitempty"`

	State   State    `json:"state"`            // of the stable version, in this process
	Reason  string   `json:"reason,omitempty"` // why it failed
	Targets []Target `json:"targets,omitempty"`
	// Replicas of the stable version answer in this process; 0 of one that is loaded
	// when it is asked for.
	Replicas int `json:"replicas"`
}

// Role of a version in a deployment.
type Role string

// The roles.
const (
	Stable Role = "stable" // answers what no other version answers
	Canary Role = "canary" // answers a share of the requests
	Shadow Role = "shadow" // sees the requests and answers nobody
)

// Trial is a version beside the stable one.
type Trial struct {
	Role           Role            `json:"role"`
	Version        int64           `json:"version"`
	Digest         string          `json:"digest"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	Weight         int             `json:"weight,omitempty"` // percent of the requests; of a canary
}

// Target is a version of a deployment as it is in this process.
type Target struct {
	Role    Role   `json:"role"`
	Version int64  `json:"version"`
	Weight  int    `json:"weight"` // percent of the requests that it answers now
	State   State  `json:"state"`
	Reason  string `json:"reason,omitempty"` // why it does not answer

	// Restarts counts the processes that died since the version was deployed, tried or
	// loaded by somebody; LastDeath is the last of them.
	Restarts  int            `json:"restarts,omitempty"`
	LastDeath *runtime.Death `json:"last_death,omitempty"`

	Batching  bool   `json:"batching"`            // requests run together when they wait anyway
	Unbatched string `json:"unbatched,omitempty"` // why not, or not yet, or not so many

	Replicas int    `json:"replicas"`                  // that answer; 0: of a ready one, that it is loaded when it is asked for
	Wanted   int    `json:"replicas_wanted,omitempty"` // where the manifest says how it scales
	Scaling  string `json:"scaling,omitempty"`         // why so many are wanted, or are not there

	Pools map[string]int `json:"replicas_on,omitempty"` // of Replicas, those that are workloads of other pools, by pool

	Environment string `json:"environment,omitempty"` // in which a Python model runs, with its digest

	Remote string         `json:"remote,omitempty"` // the server that runs it, if it is another
	Zone   residency.Zone `json:"zone,omitempty"`   // where it runs
}

// maxBefore bounds Deployment.Before.
const maxBefore = 20

// trialOf is the trial in a role.
func (d Deployment) trialOf(r Role) (Trial, bool) {
	for _, t := range d.Trials {
		if t.Role == r {
			return t, true
		}
	}
	return Trial{}, false
}

// with replaces the trial of a role.
func (d Deployment) with(t Trial) []Trial { return append(d.without(t.Role), t) }

// without leaves the trial of a role out. The answer shares nothing with d.
func (d Deployment) without(r Role) []Trial {
	out := make([]Trial, 0, len(d.Trials)+1)
	for _, t := range d.Trials {
		if t.Role != r {
			out = append(out, t)
		}
	}
	return out
}

// Uses reports whether the deployment needs a version: as a target, or to roll
// back to.
func (d Deployment) Uses(version int64) bool {
	if d.Version == version || (len(d.Before) > 0 && d.Before[len(d.Before)-1] == version) {
		return true
	}
	for _, t := range d.Trials {
		if t.Version == version {
			return true
		}
	}
	return false
}

func validName(name string) error { return id.CheckMixedName("deployment name", name) }

// Model is a verified model version, as the registry hands it over.
type Model struct {
	Name           string
	Version        int64
	Digest         string
	Residency      residency.Label
	Classification string
	Signer         string // id of the key that signed it
	File           []byte // model.onnx; nil where there is none
	Files          *Files // what Python can run; nil where there is nothing of it
}
