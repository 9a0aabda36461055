package dataset

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is the database interface of the services. Methods run in the caller's transaction,
// return fault.NotFound for missing rows, and decide nothing else.
type Store interface {
	// Dataset finds a dataset by name, deleted ones too.
	Dataset(ctx context.Context, tx *store.Tx, p project.Name, name string) (Dataset, error)
	PutDataset(ctx context.Context, tx *store.Tx, d Dataset) error
	// Datasets lists live ones by name after a name; only narrows to names
	// unless it is nil.
	Datasets(ctx context.Context, tx *store.Tx, p project.Name, only []string, after string, limit int) ([]Dataset, error)

	// Lines gives what a search reads of those; with from also of the lineage of their newest
	// versions.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, only []string, from bool, after string, limit int) ([]store.Line, error)

	InsertVersion(ctx context.Context, tx *store.Tx, v Version) error
	// UpdateVersion keeps a version's state and what the document says.
	UpdateVersion(ctx context.Context, tx *store.Tx, v Version) error
	Version(ctx context.Context, tx *store.Tx, d ID, number int64) (Version, error)
	VersionByID(ctx context.Context, tx *store.Tx, p project.Name, id VersionID) (Version, error)
	// Twin finds the version with a fingerprint that is not deleted, an accepted one
	// before a rejected one.
	Twin(ctx context.Context, tx *store.Tx, d ID, fingerprint string) (Version, error)
	// Versions lists newest first, below a number (0 for all); state narrows
	// unless it is empty.
	Versions(ctx context.Context, tx *store.Tx, d ID, state State, below int64, limit int) ([]Version, error)
	// ClassesOf lists the classifications of all versions, of any project, deleted ones
	// too, whose content or whose imported file has one of the digests.
	ClassesOf(ctx context.Context, tx *store.Tx, digests []string) ([]Classification, error)
	// Children lists versions that have the version as a parent, oldest first.
	Children(ctx context.Context, tx *store.Tx, id VersionID, limit int) ([]Version, error)

	// Buried lists a project's deleted versions by ID, after one.
	Buried(ctx context.Context, tx *store.Tx, p project.Name, after VersionID, limit int) ([]Version, error)

	PutPersons(ctx context.Context, tx *store.Tx, p Persons) error
	DropPersons(ctx context.Context, tx *store.Tx, v VersionID) error
	// Persons lists those of a project and entity, by version and part, after one.
	Persons(ctx context.Context, tx *store.Tx, after Persons, limit int) ([]Persons, error)

	InsertStaging(ctx context.Context, tx *store.Tx, s Staging) error
	DeleteStaging(ctx context.Context, tx *store.Tx, id VersionID) error
	// Stagings lists those of an instance, and those of others whose deadline
	// has passed.
	Stagings(ctx context.Context, tx *store.Tx, instance string, now time.Time) ([]Staging, error)
}
