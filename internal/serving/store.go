package serving

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps deployments and what belongs to them. What is not there is fault.NotFound.
type Store interface {
	DeploymentStore
	RolloutStore
	ActionStore
	UsageStore
}

// DeploymentStore keeps deployments.
type DeploymentStore interface {
	// Of lists the deployments of a model, and those of which it may be a step, by name.
	Of(ctx context.Context, tx *store.Tx, project, model string) ([]Deployment, error)
	Put(ctx context.Context, tx *store.Tx, d Deployment) error // inserts, or replaces the project's deployment of that name
	One(ctx context.Context, tx *store.Tx, project, name string) (Deployment, error)
	List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Deployment, error) // by name
	// Lines gives what a search reads of a project's deployments, by name after a name.
	Lines(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]store.Line, error)
	All(ctx context.Context, tx *store.Tx) ([]Deployment, error)
	// Delete removes a deployment with its rollouts, acts, switch and usage.
	Delete(ctx context.Context, tx *store.Tx, project, name string) error
}

// RolloutStore keeps rollouts of deployments.
type RolloutStore interface {
	// DropRollouts removes a deployment's rollouts.
	DropRollouts(ctx context.Context, tx *store.Tx, project, name string) error
	PutRollout(ctx context.Context, tx *store.Tx, r Rollout) error // inserts or replaces
	Rollout(ctx context.Context, tx *store.Tx, id RolloutID) (Rollout, error)
	// Rollouts lists a deployment's, newest first.
	Rollouts(ctx context.Context, tx *store.Tx, project, deployment string, limit int) ([]Rollout, error)
	// Running lists the rollouts of all projects that run.
	Running(ctx context.Context, tx *store.Tx) ([]Rollout, error)
}

// ActionStore keeps automatic actions, and the switch that stops them.
type ActionStore interface {
	InsertAction(ctx context.Context, tx *store.Tx, a AutoAction) error // fault.Conflict when there is one of the kind for the cause
	UpdateAction(ctx context.Context, tx *store.Tx, a AutoAction) error // outcome, reason and result
	Action(ctx context.Context, tx *store.Tx, id AutoActionID) (AutoAction, error)
	ActionFor(ctx context.Context, tx *store.Tx, project, deployment string, kind AutoActionKind, cause string) (AutoAction, error)
	// ActionWithResult finds the act of a kind in a project that had a result.
	ActionWithResult(ctx context.Context, tx *store.Tx, project string, kind AutoActionKind, result string) (AutoAction, error)
	// ActionWithin finds an act of a kind that is being done, or was, with a time after from
	// and before until.
	ActionWithin(ctx context.Context, tx *store.Tx, project, deployment string, kind AutoActionKind, from, until time.Time) (AutoAction, error)
	// Actions lists a deployment's, newest first.
	Actions(ctx context.Context, tx *store.Tx, project, deployment string, limit int) ([]AutoAction, error)
	// ClaimedActions lists the acts of all projects that are claimed, oldest first.
	ClaimedActions(ctx context.Context, tx *store.Tx) ([]AutoAction, error)
	PutSwitch(ctx context.Context, tx *store.Tx, s Switch) error
	Switch(ctx context.Context, tx *store.Tx, project, deployment string) (Switch, error)
}

// UsageStore keeps what callers used.
type UsageStore interface {
	// AddUsage adds to what callers used in a period; the answer is what they used in
	// all, in the same order.
	// Error: fault.NotFound for a deployment that there is not.
	AddUsage(ctx context.Context, tx *store.Tx, of ID, starts, ends time.Time, add []Usage) ([]Usage, error)
	// Usage is what callers used in a period.
	Usage(ctx context.Context, tx *store.Tx, of ID, starts, ends time.Time, limit int) ([]Usage, error)
	// UsageOf is what one caller used in a period; of one that used nothing, nothing.
	UsageOf(ctx context.Context, tx *store.Tx, of ID, starts, ends time.Time, caller string) (Usage, error)
	// ForgetUsage removes what was used in periods that ended before a time.
	ForgetUsage(ctx context.Context, tx *store.Tx, before time.Time) error
}

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Models hands over model versions whose signature was checked against the
// bytes returned. Errors: fault.NotFound; fault.Conflict when a file was changed.
type Models interface {
	OpenVerified(ctx context.Context, project, model, version string) (Model, error)
	// RequireVersion refuses a version that is no longer there, in the transaction that
	// deploys it. Error: fault.NotFound.
	RequireVersion(ctx context.Context, tx *store.Tx, project, model string, version int64) error
	// Cleared refuses a version that its model's policy does not yet let answer, or be
	// what an alias names, in the transaction that would make it so. Error:
	// fault.Conflict that says what is missing.
	Cleared(ctx context.Context, tx *store.Tx, project, model string, version int64, alias string) error
	// Point moves an alias in the transaction of who decided it and was
	// authorised to; that the alias is there already is no error.
	Point(ctx context.Context, tx *store.Tx, project, model, alias string, version int64) error
}

// Journal records answers of classified models.
type Journal interface {
	Record(ctx context.Context, e audit.Entry) error
}

// Predictions remembers answers. When Append returns nil, the record survives
// the end of this process. It keeps nothing of the record afterwards.
type Predictions interface {
	Append(ctx context.Context, r *prediction.Record) error
}

// Features looks up what a feature service says of entities.
type Features interface {
	// Describe resolves a service, "delay" or "delay@2".
	Describe(ctx context.Context, project, service string) (FeatureSet, error)
	// Label is where the features of a service may be, as they are now.
	Label(ctx context.Context, project, service string) (residency.Label, error)
	// Read looks up a batch. Permission and journal are its business. Errors:
	// fault.Invalid for a wrong key, fault.PermissionDenied, fault.Conflict for a
	// view that is not online, fault.Gone.
	Read(ctx context.Context, r FeatureRead) (FeatureRows, error)
}

// FeatureSet is what a version of a feature service gives.
type FeatureSet struct {
	Ref      string   `json:"service"`           // "delay@2"
	JoinKeys []string `json:"join_keys"`         // of its views, each once
	Request  []string `json:"request,omitempty"` // values that come with each entity
	Features []string `json:"features"`          // in the service's order, such as "weather@3:temp"
}

// FeatureRead asks for the features of a batch of entities.
type FeatureRead struct {
	Project string
	Service string      // "delay@2"
	Keys    []KeyColumn // and values of the request
	Rows    int
	AsOf    time.Time // zero: now
}

// KeyColumn is a join key, or a value of the request, of many rows; one of Texts,
// Ints and Floats is Rows long.
type KeyColumn struct {
	Name   string
	Texts  []string
	Ints   []int64
	Floats []float64 // of values of the request only
}

// FeatureRows is a column for each feature of the set, in its order.
type FeatureRows struct {
	At      time.Time // as of when
	Columns []FeatureColumn
}

// FeatureColumn is a feature of many rows. Values are NaN where the status is
// not FeaturePresent; Events are zero where there is no row.
type FeatureColumn struct {
	Values   []float64
	Statuses []FeatureStatus
	Events   []time.Time
}

// FeatureStatus says what a feature's value means, in Feast's words.
type FeatureStatus string

// The statuses.
const (
	FeaturePresent  FeatureStatus = "PRESENT"
	FeatureNull     FeatureStatus = "NULL_VALUE"
	FeatureNotFound FeatureStatus = "NOT_FOUND"
	FeatureTooOld   FeatureStatus = "OUTSIDE_MAX_AGE"
)
