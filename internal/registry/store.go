package registry

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// Query is a checked search.
type Query struct {
	Where  []search.Comparison
	Order  []search.Order
	Limit  int
	Offset int
	// Deleted finds deleted versions, too, and those of deleted models.
	Deleted bool
}

// Stored is a file with the name of its object.
type Stored struct {
	File
	Object string // blob key
}

// Key is a project's signing key; Private is sealed.
type Key struct {
	Project project.Name
	ID      string // hex SHA-256 of the public key's PEM, as model signing names keys
	Public  string // PEM
	Private []byte
}

// Store is what the services need of a database. Methods run in the caller's
// transaction. What is not there is fault.NotFound.
type Store interface {
	ModelStore
	VersionStore
	ApprovalStore
	KeyStore
	ImportStore
}

// ModelStore keeps models, their tags and aliases.
type ModelStore interface {
	// PutModel inserts or updates all but tags and aliases.
	PutModel(ctx context.Context, tx *store.Tx, m Model) error
	// Model gives a model with tags and aliases.
	Model(ctx context.Context, tx *store.Tx, p project.Name, name string) (Model, error)
	// ModelName is what the model with an identifier is called now.
	ModelName(ctx context.Context, tx *store.Tx, p project.Name, id ModelID) (string, error)
	SearchModels(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Model, error)
	// ModelLines gives what a search reads of models, by name after a name, and ModelsOf those
	// of names, in any order.
	ModelLines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error)
	ModelsOf(ctx context.Context, tx *store.Tx, p project.Name, names []string) ([]Model, error)
	// DeleteModel removes the model, its tags and aliases; its versions stay as
	// records.
	DeleteModel(ctx context.Context, tx *store.Tx, id ModelID) error
	PutModelTags(ctx context.Context, tx *store.Tx, id ModelID, tags []tracking.Pair) error
	DeleteModelTag(ctx context.Context, tx *store.Tx, id ModelID, key string) error
	PutAlias(ctx context.Context, tx *store.Tx, id ModelID, a Alias) error
	DeleteAlias(ctx context.Context, tx *store.Tx, id ModelID, alias string) error
}

// VersionStore keeps versions, their tags and files.
type VersionStore interface {
	// NextVersion is the next number of the model, never given before.
	NextVersion(ctx context.Context, tx *store.Tx, id ModelID) (int, error)
	// PutVersion inserts or updates all but tags and files.
	PutVersion(ctx context.Context, tx *store.Tx, v Version) error
	// Version gives a version with tags and aliases, a deleted one too.
	Version(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (Version, error)
	// Versions gives those of a model that are not deleted, by number.
	Versions(ctx context.Context, tx *store.Tx, id ModelID) ([]Version, error)
	// SameFiles gives the versions of a project that have these files, deleted ones too.
	SameFiles(ctx context.Context, tx *store.Tx, p project.Name, digest string) ([]Version, error)
	SearchVersions(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Version, error)
	// PutContent notes what a version's files are.
	PutContent(ctx context.Context, tx *store.Tx, id ModelID, number int, r scan.Report) error
	PendingVersions(ctx context.Context, tx *store.Tx) ([]Version, error)
	PutVersionTags(ctx context.Context, tx *store.Tx, id ModelID, number int, tags []tracking.Pair) error
	DeleteVersionTag(ctx context.Context, tx *store.Tx, id ModelID, number int, key string) error
	PutFiles(ctx context.Context, tx *store.Tx, id ModelID, number int, files []Stored, signature []byte) error
	// Files gives a version's files by path, and its signature.
	Files(ctx context.Context, tx *store.Tx, id ModelID, number int) ([]Stored, []byte, error)
	// State is a version's state, by identifiers that survive renames.
	State(ctx context.Context, tx *store.Tx, p project.Name, id ModelID, number int) (State, error)
}

// ApprovalStore keeps policies of models, and approvals of versions.
type ApprovalStore interface {
	PutPolicy(ctx context.Context, tx *store.Tx, p ModelPolicy) error
	Policy(ctx context.Context, tx *store.Tx, p project.Name, name string) (ModelPolicy, error)
	Policies(ctx context.Context, tx *store.Tx, p project.Name) ([]ModelPolicy, error)
	DeletePolicy(ctx context.Context, tx *store.Tx, p project.Name, name string) error
	InsertApproval(ctx context.Context, tx *store.Tx, id ModelID, number int, a Approval) error
	// Approvals gives all of a version, oldest first.
	Approvals(ctx context.Context, tx *store.Tx, id ModelID, number int) ([]Approval, error)
}

// KeyStore keeps the signing keys of projects.
type KeyStore interface {
	// InsertKey stores the project's key unless it has one, and gives the one it
	// has.
	InsertKey(ctx context.Context, tx *store.Tx, k Key) (Key, error)
	Key(ctx context.Context, tx *store.Tx, p project.Name) (Key, error)
}

// ImportStore keeps records of what came from other MLflow servers.
type ImportStore interface {
	// ImportedObject gives the record of a model (number 0) or a version, by its name there.
	ImportedObject(ctx context.Context, tx *store.Tx, p project.Name, name string, number int) (Imported, error)
	// ImportedObjects gives records without their base, by name and number after one. Records
	// of what was deleted here are left out.
	ImportedObjects(ctx context.Context, tx *store.Tx, p project.Name, after Imported, limit int) ([]Imported, error)
	PutImported(ctx context.Context, tx *store.Tx, p project.Name, r Imported) error
	// RenameImported changes the name of a model there, in its record and those of its versions.
	RenameImported(ctx context.Context, tx *store.Tx, p project.Name, from, to string) error
}
