package monitoring

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps monitors and what they found. One, Window, Pairs and Baseline
// answer fault.NotFound. What is sealed is opaque to it.
type Store interface {
	// Keeps reports whether windows or a baseline of a monitor are kept.
	Keeps(ctx context.Context, tx *store.Tx, m Monitor) (bool, error)
	Put(ctx context.Context, tx *store.Tx, m Monitor) error // inserts, or replaces the project's monitor of that name; not its status
	One(ctx context.Context, tx *store.Tx, project, name string) (Monitor, error)
	List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Monitor, error)     // by name
	Lines(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]store.Line, error) // what a search reads of those of List
	All(ctx context.Context, tx *store.Tx) ([]Monitor, error)
	Delete(ctx context.Context, tx *store.Tx, m Monitor) error // with all that it found

	Progress(ctx context.Context, tx *store.Tx, monitor ID) (Progress, error) // the zero Progress when there is none
	PutProgress(ctx context.Context, tx *store.Tx, monitor ID, p Progress) error

	// PutWindow inserts or replaces; a nil summary leaves the one that is there.
	PutWindow(ctx context.Context, tx *store.Tx, monitor ID, w Window, summary []byte) error
	// AddLate counts records that came after a window was closed. It reports
	// whether there is such a window.
	AddLate(ctx context.Context, tx *store.Tx, monitor ID, k WindowKey, n int64) (bool, error)
	Window(ctx context.Context, tx *store.Tx, monitor ID, k WindowKey) (w Window, summary []byte, err error)
	Windows(ctx context.Context, tx *store.Tx, monitor ID, f WindowFilter) ([]Window, error) // newest end first
	// TrimWindows deletes the windows, and their pairs, that were closed before a time.
	TrimWindows(ctx context.Context, tx *store.Tx, before time.Time) error

	Pairs(ctx context.Context, tx *store.Tx, monitor ID, k WindowKey) (sealed []byte, err error)
	PutPairs(ctx context.Context, tx *store.Tx, monitor ID, k WindowKey, sealed []byte, at time.Time) error

	// PutClassification inserts or replaces; Window and Windows have it.
	PutClassification(ctx context.Context, tx *store.Tx, c StoredClassification, at time.Time) error
	// ClassifiedBy are the classifications that a job of a project trains.
	ClassifiedBy(ctx context.Context, tx *store.Tx, project, job string) ([]StoredClassification, error)

	Baseline(ctx context.Context, tx *store.Tx, k BaselineKey) (StoredBaseline, error)
	PutBaseline(ctx context.Context, tx *store.Tx, k BaselineKey, b StoredBaseline) error
	// DropBaselines deletes those of a deployment that nothing watches any more.
	DropBaselines(ctx context.Context, tx *store.Tx, project, deployment string) error
}

// Progress is how far a monitor has come, as it is stored: what the status
// says is of exactly the records up to Cursor and the labels up to Labels.
type Progress struct {
	Seq    int64  // rises with each write; a writer that expected another is stale
	Of     string // the deployment's ID; the places are in its log
	Cursor string // in the prediction log
	Labels string // in the labels
	Status Status
	Drift  Streak
	Worse  Streak
	// Blind are windows that had rows enough and could not be compared, Silent those of
	// which a metric with a limit could not be computed.
	Blind  Streak
	Silent Streak
	// Compared is what windows of each version were compared with last: a baseline that
	// was there and is lost is not replaced by a window.
	Compared map[int64]Compared
	Open     []byte // sealed panes
}

// Compared is a baseline that a version had.
type Compared struct {
	Spec string `json:"spec"` // spec.baseline
	Name string `json:"name"` // in words
}

// WindowFilter chooses windows by their end.
type WindowFilter struct {
	Version int64     // 0: all
	From    time.Time // zero: from the oldest
	To      time.Time // zero: to the newest
	Limit   int
	// Before is the place after which to go on: the page before ended with this
	// window. The zero Before begins with the newest.
	Before   WindowKey
	BeforeTo time.Time
}

// BaselineKey identifies a baseline. Digest is of all that it depends on.
type BaselineKey struct {
	Project    string
	Deployment string
	Version    int64
	Digest     string
}

// StoredBaseline is a baseline as it is stored: its facts, and its sketches
// sealed.
type StoredBaseline struct {
	Facts  Baseline
	Sealed []byte
}

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Watched is what a monitor needs to know of a deployment.
type Watched struct {
	ID             string
	Revision       int64 // rises when the manifest changes, and with it perhaps what the model's inputs are
	Model          string
	Version        int64 // the stable one
	Residency      residency.Label
	Classification string
	// Columns are what requests are recorded with: keys, and the columns that the
	// deployment makes the model's input of. Nil is not known.
	Columns []string
	// Classes are the names of the model's classes in the order of its probabilities;
	// empty are their numbers. Positive is the place of the class whose probability is the
	// score.
	Classes  []string
	Positive int
}

// Deployments tells what is deployed. Error: fault.NotFound.
type Deployments interface {
	Watched(ctx context.Context, project, deployment string) (Watched, error)
}
