package ingestion

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is the database interface of the service. Methods run in the caller's transaction and
// return fault.NotFound for missing rows.
type Store interface {
	Source(ctx context.Context, tx *store.Tx, p project.Name, name string) (Source, error)
	// SourceOf finds the source of a dataset.
	SourceOf(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (Source, error)
	PutSource(ctx context.Context, tx *store.Tx, s Source) error
	DeleteSource(ctx context.Context, tx *store.Tx, id ID) error
	// Sources lists by name after a name.
	Sources(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]Source, error)
	// Lines gives what a search reads of those, and SourcesOf those of names, in any order.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error)
	SourcesOf(ctx context.Context, tx *store.Tx, p project.Name, names []string) ([]Source, error)
	// WithSecret lists the names of the sources that name a secret.
	WithSecret(ctx context.Context, tx *store.Tx, p project.Name, secret string) ([]string, error)
	// Scheduled lists the sources of all projects that have a schedule.
	Scheduled(ctx context.Context, tx *store.Tx, limit int) ([]Source, error)

	InsertRun(ctx context.Context, tx *store.Tx, r Run) error
	// UpdateRun keeps what changes of a run if its attempt is the one given and it
	// has not ended, or has only to be cleaned up; else fault.Conflict.
	UpdateRun(ctx context.Context, tx *store.Tx, r Run, attempt int) error
	Run(ctx context.Context, tx *store.Tx, p project.Name, id RunID) (Run, error)
	// Runs lists a source's, newest first, before a run.
	Runs(ctx context.Context, tx *store.Tx, p project.Name, source string, before RunID, limit int) ([]Run, error)
	// OpenRuns lists the runs that have not ended or are not cleaned up, oldest first.
	OpenRuns(ctx context.Context, tx *store.Tx, limit int) ([]Run, error)
}
