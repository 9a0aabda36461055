package sweep

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tuning"
)

// Store is what sweeps need of a database, beside tuning.Store, which has their trials.
// Methods run in the caller's transaction. What is not there is fault.NotFound; nothing
// else is decided here.
type Store interface {
	// PutSweep inserts, or updates one of the revision before; fault.Conflict when
	// somebody else has.
	PutSweep(ctx context.Context, tx *store.Tx, s Sweep) error
	Sweep(ctx context.Context, tx *store.Tx, p project.Name, name string) (Sweep, error)
	// Lines gives what a search reads of a project's studies, sweeps among them, in the order of
	// their numbers after one; the key is the number.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, after tuning.StudyID, limit int) ([]store.Line, error)
	// UnderWay are the running ones of all projects.
	UnderWay(ctx context.Context, tx *store.Tx) ([]Sweep, error)
	// DeleteSweep removes it and its tasks.
	DeleteSweep(ctx context.Context, tx *store.Tx, s Sweep) error

	// PutTask inserts or updates.
	PutTask(ctx context.Context, tx *store.Tx, t Task) error
	// TasksOf are those of trials from one number to another, both included.
	TasksOf(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, from, to int) ([]Task, error)
	// Tasks are by number; open leaves out those that are done.
	Tasks(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, open bool) ([]Task, error)
}
