package feature

import (
	"context"
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is the database interface of the services. Methods run in the caller's transaction and
// return fault.NotFound for missing rows.
type Store interface {
	DefinitionStore
	RunStore
	OnlineRecordStore
	StreamStore
	TrainingSetStore
}

// DefinitionStore keeps the versions of definitions and their aliases.
type DefinitionStore interface {
	InsertDefinition(ctx context.Context, tx *store.Tx, d Definition) error
	Definition(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name string, version int) (Definition, error)
	// DefinitionByDigest finds the version with a content.
	DefinitionByDigest(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name, digest string) (Definition, error)
	// Latest lists the versions with the alias latest, by name after a name.
	Latest(ctx context.Context, tx *store.Tx, p project.Name, k Kind, after string, limit int) ([]Definition, error)
	// Lines gives what a search reads of those, by name after a name.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, k Kind, after string, limit int) ([]store.Line, error)
	// LatestOf gives those of names, in any order.
	LatestOf(ctx context.Context, tx *store.Tx, p project.Name, k Kind, names []string) ([]Definition, error)
	// Definitions lists the versions of a name below one (0: all), newest first.
	Definitions(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name string, below, limit int) ([]Definition, error)
	// LastVersion is the highest number of a name; 0 when there is none.
	LastVersion(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name string) (int, error)
	PutAlias(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name, alias string, version int) error
	Aliases(ctx context.Context, tx *store.Tx, p project.Name, k Kind, name string) (map[string]int, error)
}

// RunStore keeps materialisations.
type RunStore interface {
	InsertRun(ctx context.Context, tx *store.Tx, r Run) error
	// UpdateRun keeps what may change of a run if its attempt is still the given
	// one and it has not ended; otherwise fault.Conflict.
	UpdateRun(ctx context.Context, tx *store.Tx, r Run, attempt int) error
	Run(ctx context.Context, tx *store.Tx, p project.Name, id RunID) (Run, error)
	// Runs lists those of a view version, newest first, before an id.
	Runs(ctx context.Context, tx *store.Tx, p project.Name, view string, version int, before RunID, limit int) ([]Run, error)
	// OpenRuns lists those of all projects that have not ended, oldest first.
	OpenRuns(ctx context.Context, tx *store.Tx, limit int) ([]Run, error)
}

// OnlineRecordStore keeps what is online, where, and what is to be removed there.
type OnlineRecordStore interface {
	Online(ctx context.Context, tx *store.Tx, p project.Name, view string, version int) (Online, error)
	PutOnline(ctx context.Context, tx *store.Tx, o Online) error
	DeleteOnline(ctx context.Context, tx *store.Tx, p project.Name, view string, version int) error
	// Onlines lists all of a project, or of all projects when it is empty, by
	// project, view and version.
	Onlines(ctx context.Context, tx *store.Tx, p project.Name) ([]Online, error)

	// OnlineStore is the one that the records of Onlines are of. Error: fault.NotFound.
	OnlineStore(ctx context.Context, tx *store.Tx) (OnlineStore, error)
	PutOnlineStore(ctx context.Context, tx *store.Tx, o OnlineStore) error

	// PutStale marks a generation for removal; a second mark changes nothing.
	PutStale(ctx context.Context, tx *store.Tx, g Stale) error
	DeleteStale(ctx context.Context, tx *store.Tx, g Stale) error
	// Stales lists those of all projects that are marked until a time, oldest
	// first.
	Stales(ctx context.Context, tx *store.Tx, until time.Time, limit int) ([]Stale, error)
}

// StreamStore keeps the logs of events and their dead letters.
type StreamStore interface {
	Stream(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (Stream, error)
	// StreamViews lists the views with the alias latest that follow a stream, of all
	// projects.
	StreamViews(ctx context.Context, tx *store.Tx) ([]Definition, error)
	// Streams lists those of all projects.
	Streams(ctx context.Context, tx *store.Tx) ([]Stream, error)
	PutStream(ctx context.Context, tx *store.Tx, s Stream) error
	// PutRecord keeps a record of a log, replacing one.
	PutRecord(ctx context.Context, tx *store.Tx, p project.Name, dataset string, r Record) error
	// Records lists those with after < Seq ≤ until, in order.
	Records(ctx context.Context, tx *store.Tx, p project.Name, dataset string, after, until int64, limit int) ([]Record, error)
	// TrimRecords removes those with Seq ≤ until and says how many bytes they had.
	TrimRecords(ctx context.Context, tx *store.Tx, p project.Name, dataset string, until int64) (freed int64, err error)
	// Seen are those of the hashes that PutSeen has kept.
	Seen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, hashes []string) ([]string, error)
	PutSeen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, hashes []string, at time.Time) error
	ForgetSeen(ctx context.Context, tx *store.Tx, p project.Name, dataset string, before time.Time) error
	// PutDeadLetter keeps a dead letter, replacing one of its ID.
	PutDeadLetter(ctx context.Context, tx *store.Tx, p project.Name, dataset string, l SealedDeadLetter) error
	// DeadLetters lists dead letters by ID, after one.
	DeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset, after string, limit int) ([]SealedDeadLetter, error)
	CountDeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (int, error)
	DeleteDeadLetter(ctx context.Context, tx *store.Tx, p project.Name, dataset, id string) (bool, error)
	// DropDeadLetters removes all dead letters and returns their number.
	DropDeadLetters(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (int, error)
}

// TrainingSetStore keeps the records of training sets.
type TrainingSetStore interface {
	// PutTrainingSet keeps the record of a dataset version, replacing one.
	PutTrainingSet(ctx context.Context, tx *store.Tx, t TrainingSet) error
	TrainingSet(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (TrainingSet, error)
	// TrainingSets lists those that used a view version, newest first.
	TrainingSets(ctx context.Context, tx *store.Tx, p project.Name, view string, version, limit int) ([]TrainingSet, error)
}

// Definition is a version of any kind as it is stored.
type Definition struct {
	Kind Kind
	Header
	Body json.RawMessage // the kind's struct without Version
}

// Online is what the online store holds of a view version, and answers with. It
// exists from the first row on. Residency and Classification are of everything
// that was written to its generation.
type Online struct {
	Project        project.Name           `json:"project"`
	View           string                 `json:"view"`
	Version        int                    `json:"version"`
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	// Watermark is the time up to which every event of the source is there; zero
	// until a materialisation without a lower bound has succeeded.
	Watermark time.Time `json:"watermark,omitzero"`
	// Newest is the latest event written; zero when there is none.
	Newest    time.Time `json:"newest_event,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	// Inputs are the exact versions that the rows were made from; empty when the
	// rows are older than this record, or the source has no inputs.
	Inputs []InputRef `json:"inputs,omitempty"`
	// Generation tells the rows apart from those made of other inputs.
	Generation Generation `json:"-"`
	// Pushed is where rows are that were pushed; empty when none ever was. They
	// answer beside those of Generation, and no materialisation touches them.
	Pushed Generation `json:"-"`
	// Subkey is the number of the subkey that rows are written under, since RotatedAt;
	// Former is the same, or the one before, from which rows are being moved.
	Subkey    int       `json:"-"`
	Former    int       `json:"-"`
	RotatedAt time.Time `json:"-"`
	// HistorySince is the time before which history may be gone; zero when all of it is there.
	HistorySince time.Time `json:"-"`
}

// OnlineStore identifies the store of online rows.
type OnlineStore struct {
	ID    string // of what the store holds; empty when it is not known yet
	Owner string // by which this installation claims it
}

// Generation names the online rows of a view version that were made from the same
// inputs: "fog_01J…", or empty for rows that are older than generations.
type Generation string

// Stale is a generation whose rows are to be removed: another one took its place,
// or what wrote it was given up.
type Stale struct {
	Project    project.Name
	View       string
	Version    int
	Generation Generation
	Since      time.Time
	Subkey     int // the newest of its rows
}
