package serving

import (
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

// RolloutID identifies a rollout: "rol_01J…".
type RolloutID string

// RolloutState is where a rollout is.
type RolloutState string

// The states of a rollout.
const (
	Running      RolloutState = "running"
	Promoted     RolloutState = "promoted"
	RolledBack   RolloutState = "rolled_back"
	Inconclusive RolloutState = "inconclusive"
	Cancelled    RolloutState = "cancelled" // by a person who deployed something else, or moved its weight
)

// Rollout is a candidate version tried on a share of a deployment's requests.
// At most one of a deployment is running.
type Rollout struct {
	ID         RolloutID    `json:"id"`
	Project    string       `json:"project"`
	Deployment string       `json:"deployment"` // its name
	Model      string       `json:"model"`
	Stable     int64        `json:"stable"`
	Candidate  int64        `json:"candidate"`
	Weight     int          `json:"weight"` // percent of the requests that the candidate answers
	Spec       rollout.Spec `json:"spec"`   // as it was when the rollout began, complete
	State      RolloutState `json:"state"`
	Cause      string       `json:"cause,omitempty"` // why it was begun
	Started    time.Time    `json:"started"`
	// StartedAt is the beginning on the clock of records, which the first judged
	// record sets; zero before.
	StartedAt time.Time       `json:"started_at,omitzero"`
	Ended     time.Time       `json:"ended,omitzero"`
	Reason    string          `json:"reason,omitempty"` // why it ended
	Evidence  json.RawMessage `json:"evidence,omitempty"`
	// PromotedAt and Promotion are the time and reason of a promotion that was rolled back
	// later, at Ended for Reason.
	PromotedAt time.Time `json:"promoted_at,omitzero"`
	Promotion  string    `json:"promotion,omitempty"`
}

// RolloutEnd is why a rollout ends.
type RolloutEnd struct {
	// Rollout makes it this one's end: it is an error if another one runs, and
	// none if this one has ended that way already. Empty is whatever runs.
	Rollout RolloutID
	To      int64        // of a rollback: the version to answer with; 0 is what was stable before
	State   RolloutState // of a rollback: RolledBack (also when empty), Inconclusive or Cancelled
	// Unless refuses a rollback of a rollout that is in this state by then: what
	// somebody else did meanwhile is not undone.
	Unless   RolloutState
	Reason   string
	Evidence json.RawMessage // at most 64 KiB
}

// AutoActionID identifies an act: "act_01J…".
type AutoActionID string

// AutoActionKind is what was done automatically.
type AutoActionKind string

// The kinds of acts.
const (
	AutoRetrain  AutoActionKind = "retrain"
	AutoCanary   AutoActionKind = "canary"
	AutoPromote  AutoActionKind = "promote"
	AutoRollback AutoActionKind = "rollback"
)

// AutoActionOutcome is what became of an act.
type AutoActionOutcome string

// The outcomes of an act.
const (
	AutoActionClaimed AutoActionOutcome = "claimed" // it is being done
	AutoActionDone    AutoActionOutcome = "done"
	AutoActionFailed  AutoActionOutcome = "failed"
	AutoActionSkipped AutoActionOutcome = "skipped" // it was not to be done
)

// AutoAction is something that was done to a deployment without a person, and why.
type AutoAction struct {
	ID         AutoActionID   `json:"id"`
	Project    string         `json:"project"`
	Deployment string         `json:"deployment"`
	Kind       AutoActionKind `json:"kind"`
	// Cause is what led to it: an event's position, a rollout. A deployment has
	// one act of a kind for a cause.
	Cause    string            `json:"cause"`
	At       time.Time         `json:"at"`   // on the clock of records
	Made     time.Time         `json:"made"` // on the wall's
	Outcome  AutoActionOutcome `json:"outcome"`
	Reason   string            `json:"reason,omitempty"`
	Evidence json.RawMessage   `json:"evidence,omitempty"`
	Result   string            `json:"result,omitempty"` // a job, a version, a rollout
}

// Automation is whether automatic acts happen.
type Automation struct {
	On     bool   `json:"on"`
	Reason string `json:"reason,omitempty"` // why not, and who said so
}

// Switch is what a person said about automatic acts of a deployment or, with an
// empty one, of a project.
type Switch struct {
	Project    string    `json:"project"`
	Deployment string    `json:"deployment,omitempty"`
	On         bool      `json:"on"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by"`
	At         time.Time `json:"at"`
}

// Limits of what is kept.
const (
	maxEvidence = 64 << 10
	maxReason   = 4 << 10
	maxCause    = 512
	maxHistory  = 100 // rollouts that are listed, or undone
	maxShown    = 20  // rollouts and acts in a status, with their evidence
)
