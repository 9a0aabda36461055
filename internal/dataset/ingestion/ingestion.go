// Package ingestion brings rows from sources into datasets, again and again: each
// run reads a source to where it stood when the run began, and makes one
// immutable version of the dataset.
//
// # Map
//
//   - ingestion.go: Source, Spec, Run and what they must satisfy; schedule.go says
//     when the next run is due.
//   - Service is the only way in: Apply, One, List, Delete for sources; Start,
//     Run, Runs, Cancel, Wait for runs.
//   - loop.go decides which runs are due and carries them on; attempt.go reads a
//     source into chunks; merge.go makes the version's rows of the version before
//     and the chunks.
//   - messages.go reads messages as they are, for views that follow them.
//   - store.go says what this needs of a database; ingestionsql implements it.
//     package source has the drivers.
//
// # Life of a run
//
//	queued → reading → writing → succeeded | failed | cancelled
//	   ▲        │         │
//	   └────────┴─────────┘ a passing error, or the end of the server
//
// Reading cuts what a source gives into chunks: a file that is synced, and then,
// in one transaction, its name and the place in the source after it. A run that
// is taken up goes on from the last chunk; what was written of the next one is
// removed. Writing makes a version of the chunks by the one write path of
// datasets; in the transaction in which the version comes to be, the source's
// position becomes that of the run. So a row is in the dataset once, whatever is
// killed when: a version without its position, or a position without its version,
// does not exist.
//
// # Guarantees
//
// A version has each row of its source once. Memory is bounded by a batch and, in
// the modes with a key, by the keys of the rows that are new. Chunks are
// encrypted under the dataset's key and removed when the run has ended. Only one
// process carries a run on: each attempt has a number that keeps former ones out.
package ingestion

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// ManifestKind is the kind of manifest that makes a source.
const ManifestKind = "Source"

const objectKind = "source"

// The actions that ingestion asks for. Applying a source takes dataset.import on
// its dataset and secret.use on its secret, too.
const (
	ActionRead   policy.Action = "source.read"
	ActionApply  policy.Action = "source.apply"
	ActionRun    policy.Action = "source.run"
	ActionDelete policy.Action = "source.delete"
)

// Spec is what a Source manifest says.
type Spec struct {
	Description string          `json:"description,omitempty" doc:"Description of the rows"`
	Dataset     string          `json:"dataset" doc:"Dataset that receives the versions; a dataset has one source"`
	From        source.From     `json:"from" doc:"Location of the rows: exactly one kind"`
	Secret      string          `json:"secret,omitempty" doc:"Secret with the credentials of the source"`
	Mode        source.Mode     `json:"mode,omitempty" doc:"full, incremental or changes" enum:"full,incremental,changes"`
	Cursor      string          `json:"cursor,omitempty" doc:"Column that increases with each change"`
	Key         []string        `json:"key,omitempty" doc:"Primary key columns"`
	Op          string          `json:"op,omitempty" doc:"Mode changes: column with the kind of change: I, U, D or insert, update, delete"`
	Overlap     string          `json:"overlap,omitempty" doc:"Overlap: a run begins this far before the last cursor, for rows that were committed late"`
	Schedule    string          `json:"schedule,omitempty" doc:"every 15m, or five cron fields in UTC; empty or none: only on request"`
	Rate        Rate            `json:"rate,omitzero" doc:"Limits on reading"`
	Residency   residency.Label `json:"residency,omitempty" doc:"Zones where the source's rows are allowed; default: those of the dataset"`
}

// Rate bounds what a run asks of its source.
type Rate struct {
	RowsPerSecond int `json:"rows_per_second,omitempty" doc:"Rows per second; 0: no limit"`
}

const (
	maxDescription = 4 << 10
	maxKey         = 16
	maxSources     = 1000 // of a project
)

// withDefaults spells out what was left out.
func (s Spec) withDefaults() Spec {
	if s.Mode == "" {
		s.Mode = source.Full
	}
	if s.Schedule == "none" {
		s.Schedule = ""
	}
	if len(s.Residency) > 0 {
		s.Residency = residency.Of(s.Residency...)
	}
	return s
}

// Validate refuses a spec that cannot be used, naming the field. Error:
// fault.Invalid.
func (s Spec) Validate() error {
	switch {
	case len(s.Description) > maxDescription:
		return fault.New(fault.Invalid, "spec.description: %d bytes are over the limit of %d", len(s.Description), maxDescription)
	case s.Dataset == "":
		return fault.New(fault.Invalid, "spec.dataset is required").WithHint("Name the dataset that gets the versions.")
	case len(s.Key) > maxKey:
		return fault.New(fault.Invalid, "spec.key: %d columns are over the limit of %d", len(s.Key), maxKey)
	case s.Rate.RowsPerSecond < 0:
		return fault.New(fault.Invalid, "spec.rate.rows_per_second: %d is below 0", s.Rate.RowsPerSecond)
	}
	switch s.Mode {
	case source.Full, source.Incremental, source.Changes:
	default:
		return fault.New(fault.Invalid, "spec.mode: %q is not full, incremental or changes", string(s.Mode))
	}
	if (s.Op != "") != (s.Mode == source.Changes) {
		return fault.New(fault.Invalid, "spec.op: mode changes requires it, and other modes take none")
	}
	for i, c := range s.Key {
		if slices.Contains(s.Key[:i], c) {
			return fault.New(fault.Invalid, "spec.key: duplicate column %q", c)
		}
	}
	if _, err := ParseSchedule(s.Schedule); err != nil {
		return fault.Wrap(err, "spec.schedule")
	}
	if err := s.Residency.Validate(); err != nil {
		return fault.Wrap(err, "spec.residency")
	}
	return s.From.Validate()
}

// sameReading reports whether a position under one spec is one under the other.
func sameReading(a, b Spec) bool {
	return reflect.DeepEqual(a.From, b.From) && a.Mode == b.Mode && a.Cursor == b.Cursor && slices.Equal(a.Key, b.Key) && a.Op == b.Op && a.Dataset == b.Dataset
}

// ID identifies a source: "src_01J…".
type ID string

// Source is a place that rows come from.
type Source struct {
	ID       ID           `json:"id"`
	Project  project.Name `json:"project"`
	Name     string       `json:"name"`
	Spec     Spec         `json:"spec"`
	What     string       `json:"what"` // "postgres public.orders at db.example.com"
	Revision int64        `json:"revision"`
	// Position is up to where the source is in Version, sealed.
	Position source.Position `json:"-"`
	Version  int64           `json:"version"` // of the dataset, that the last run made or found; 0 for none
	Last     *Run            `json:"last,omitempty"`
	NextAt   time.Time       `json:"next_at,omitzero"` // by its schedule
	Owner    string          `json:"owner"`
	Created  time.Time       `json:"created_at"`
	Updated  time.Time       `json:"updated_at"`

	Scheduled time.Time `json:"-"` // when the schedule was last evaluated and due
}

// RunID identifies a run: "ing_01J…".
type RunID string

// State of a run.
type State string

// The states.
const (
	Queued    State = "queued"
	Reading   State = "reading"
	Writing   State = "writing"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Run is one reading of a source.
type Run struct {
	ID      RunID        `json:"id"`
	Project project.Name `json:"project"`
	Source  string       `json:"source"`
	Dataset string       `json:"dataset"`
	State   State        `json:"state"`
	Anew    bool         `json:"anew,omitempty"` // from the beginning, whatever was read before
	Rows    int64        `json:"rows"`           // read from the source, synced
	Chunks  int          `json:"chunks"`
	Empty   int64        `json:"empty,omitempty"`   // messages without a value, which are no rows; of the last attempt to read
	Kept    int64        `json:"kept,omitempty"`    // rows of the version, while it is written
	Version int64        `json:"version,omitempty"` // of the dataset
	// Unchanged: the source equals the previous version, and no version was made.
	Unchanged bool      `json:"unchanged,omitempty"`
	Error     string    `json:"error,omitempty"` // reason of the failure or of the next attempt
	Hint      string    `json:"hint,omitempty"`  // what to do about it
	Failures  int       `json:"failures,omitempty"`
	Attempts  int       `json:"attempts"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`

	Progress Progress `json:"-"`
	// Clean: its chunks are gone.
	Clean     bool      `json:"-"`
	NotBefore time.Time `json:"-"`
}

// Progress is the state from which a run resumes.
type Progress struct {
	Revision int64           `json:"revision"`        // of the source when it was asked for
	Base     int64           `json:"base"`            // version of the dataset that it continues; 0: none
	After    source.Position `json:"after,omitempty"` // sealed, as Until and At
	Until    source.Position `json:"until,omitempty"`
	Begun    bool            `json:"begun"`          // Until and Schema are fixed
	Since    time.Time       `json:"since,omitzero"` // when reading began
	// Drop says that files are there of what was read before, which do not count.
	Drop   bool            `json:"drop,omitempty"`
	At     source.Position `json:"at,omitempty"`
	Read   bool            `json:"read"` // to the end
	Schema table.Schema    `json:"schema,omitempty"`
	Chunks []Chunk         `json:"chunks,omitempty"`
}

// Chunk is a file of rows that were read.
type Chunk struct {
	Number int   `json:"number"`
	Rows   int64 `json:"rows"`
}

// Event names.
const (
	EventApplied = "source.applied"
	EventDeleted = "source.deleted"
	EventEnded   = "source.run_ended"
)

// Event is the body of the events; the run's fields are empty in those of the
// source itself.
type Event struct {
	Source  string `json:"source"`
	Run     RunID  `json:"run,omitempty"`
	State   State  `json:"state,omitempty"`
	Dataset string `json:"dataset,omitempty"`
	Version int64  `json:"version,omitempty"`
}

func (s Spec) digestable() []byte {
	s.Description, s.Schedule, s.Rate, s.Secret = "", "", Rate{}, ""
	b, err := json.Marshal(s) //nolint:gosec // G117: the name of a secret, and cleared above
	if err != nil {
		panic("ingestion: a validated spec does not marshal: " + err.Error())
	}
	return b
}
