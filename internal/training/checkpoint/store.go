package checkpoint

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is what this package needs from a database. Single objects that do not
// exist are fault.NotFound; an update or deletion of a row that somebody else
// changed is fault.Conflict.
type Store interface {
	// Job gives the job that checkpoints belong to.
	Job(ctx context.Context, tx *store.Tx, id string) (Job, error)
	// AttemptAt is the last attempt of a job that there was at a time; empty where
	// there was none.
	AttemptAt(ctx context.Context, tx *store.Tx, job string, at time.Time) (string, error)
	// JobsWith lists jobs that have checkpoints, by identifier, from one on.
	JobsWith(ctx context.Context, tx *store.Tx, after string, limit int) ([]string, error)

	// InsertCheckpoint adds a record with what it consists of.
	InsertCheckpoint(ctx context.Context, tx *store.Tx, r Record, m Manifest) error
	UpdateCheckpoint(ctx context.Context, tx *store.Tx, r Record) error
	DeleteCheckpoint(ctx context.Context, tx *store.Tx, r Record) error
	Checkpoint(ctx context.Context, tx *store.Tx, id string) (Record, error)
	// Checkpoints lists a job's records by number.
	Checkpoints(ctx context.Context, tx *store.Tx, job string) ([]Record, error)
	Manifest(ctx context.Context, tx *store.Tx, id string) (Manifest, error)
	// Damaged lists all records that cannot be restored.
	Damaged(ctx context.Context, tx *store.Tx) ([]Record, error)
	// Seen gives the state in which the checkpoint of a name was taken last, also
	// when its record is gone; empty where it never was.
	Seen(ctx context.Context, tx *store.Tx, job, name string) (state string, err error)
	See(ctx context.Context, tx *store.Tx, job, name, state string) error
	// Unsee forgets what was seen of a job whose directory is gone.
	Unsee(ctx context.Context, tx *store.Tx, job string) error
	// Used gives those of the chunks' digests that a record of the project has.
	Used(ctx context.Context, tx *store.Tx, p project.Name, digests []string) (map[string]bool, error)
}
