package label

import (
	"context"
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

// Row is a label as it is kept.
type Row struct {
	ID       string
	Sealed   []byte // its values
	At       time.Time
	Received time.Time
	Status   Status // Accepted, Unknown, TooLate, WrongRows or Expired
	// Seq is its place among the joined labels of the deployment, from 1; 0 while
	// it is not joined. Seqs rise in commit order.
	Seq int64
	// Where is the prediction's place in the log.
	Where string
}

// Place is a deployment of a project.
type Place struct{ Project, Deployment string }

// Store is what this package needs of a database. Methods run in the caller's
// transaction.
type Store interface {
	// Existing finds the labels with these IDs.
	Existing(ctx context.Context, tx *store.Tx, p Place, ids []string) (map[string]Row, error)
	Insert(ctx context.Context, tx *store.Tx, p Place, rows []Row) error
	// Next reserves n seqs and returns the first. Whoever else reserves waits for
	// this transaction, or one of both fails and runs again.
	Next(ctx context.Context, tx *store.Tx, p Place, n int) (int64, error)
	// Count adds to the counts.
	Count(ctx context.Context, tx *store.Tx, p Place, c Counts) error
	Counts(ctx context.Context, tx *store.Tx, p Place) (Counts, error)
	// Joined lists the joined labels after a seq, in order.
	Joined(ctx context.Context, tx *store.Tx, p Place, after int64, limit int) ([]Row, error)
	// Before is a seq before those of all labels received at a time or later.
	Before(ctx context.Context, tx *store.Tx, p Place, received time.Time) (int64, error)
	// Waiting lists the labels with the status Unknown by ID, after an ID.
	Waiting(ctx context.Context, tx *store.Tx, p Place, after string, limit int) ([]Row, error)
	// WaitingPlaces lists the deployments that have such.
	WaitingPlaces(ctx context.Context, tx *store.Tx) ([]Place, error)
	// Settle sets the status, seq and place of a label that waits.
	Settle(ctx context.Context, tx *store.Tx, p Place, r Row) error
	// Trim deletes at most so many labels that were received before a time and do
	// not wait, of all deployments, and says how many. The counts stay.
	Trim(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error)
	// Delete removes the labels and judgements of a deployment.
	Delete(ctx context.Context, tx *store.Tx, p Place) error

	// Judgement finds that of a rollout; the zero Judgement when there is none.
	Judgement(ctx context.Context, tx *store.Tx, rollout string) (Judgement, error)
	// Newest finds the newest of a deployment; the zero Judgement when there is
	// none.
	Newest(ctx context.Context, tx *store.Tx, p Place) (Judgement, error)
	// PutJudgement inserts one of revision 1, or replaces that of the revision
	// before. Error: fault.Conflict when somebody else did.
	PutJudgement(ctx context.Context, tx *store.Tx, j Judgement) error
}

// Judgement is what the judge has seen of a rollout.
type Judgement struct {
	Rollout  string
	Place    Place
	Log      string // cursor
	Labels   int64  // seq
	Tally    json.RawMessage
	Final    bool
	Revision int64 // rises with each write, from 1
	Made     time.Time
	Updated  time.Time
}
