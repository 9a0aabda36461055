package openlineage

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is the database interface of the service. Methods run in the caller's transaction and
// return fault.NotFound for missing rows.
type Store interface {
	Run(ctx context.Context, tx *store.Tx, p project.Name, id string) (RunRecord, error)
	PutRun(ctx context.Context, tx *store.Tx, r RunRecord) error
	// Runs lists those of a job, the one that was heard of last first.
	Runs(ctx context.Context, tx *store.Tx, p project.Name, job Name, limit int) ([]RunRecord, error)
	// DropRuns removes all but the newest runs of a job.
	DropRuns(ctx context.Context, tx *store.Tx, p project.Name, job Name, keep int) error

	Thing(ctx context.Context, tx *store.Tx, p project.Name, kind Kind, n Name) (Thing, error)
	PutThing(ctx context.Context, tx *store.Tx, t Thing) error
	// Things counts a project's.
	Things(ctx context.Context, tx *store.Tx, p project.Name) (int, error)
	// Lines gives what a search reads of a project's, by name, namespace and kind, after a thing.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, after Thing, limit int) ([]store.Line, error)

	PutLink(ctx context.Context, tx *store.Tx, l Link) error
	// Links counts a project's.
	Links(ctx context.Context, tx *store.Tx, p project.Name) (int, error)
	// Columns are those of a link, which lists of links only give the size of.
	Columns(ctx context.Context, tx *store.Tx, l Link) (Columns, error)
	// LinksOf lists those of a job.
	LinksOf(ctx context.Context, tx *store.Tx, p project.Name, job Name, limit int) ([]Link, error)
	// LinksTo lists those of a dataset, found by its name or as Falaj's own.
	LinksTo(ctx context.Context, tx *store.Tx, p project.Name, n Name, own string, limit int) ([]Link, error)

	// Forget removes everything of a project.
	Forget(ctx context.Context, tx *store.Tx, p project.Name) error
}

// RunRecord is the stored state of a run.
type RunRecord struct {
	Project  project.Name `json:"-"`
	ID       string       `json:"run_id"`
	Job      Name         `json:"job"`
	State    Type         `json:"state,omitempty"`
	Started  time.Time    `json:"started_at,omitzero"`
	Ended    time.Time    `json:"ended_at,omitzero"`
	Last     time.Time    `json:"last_event"`
	Producer string       `json:"producer"`
	Facets   Facets       `json:"facets,omitempty"`
	Digests  []string     `json:"digests,omitempty"` // of the events that were taken
	By       string       `json:"reported_by"`
}

// Kind of a thing.
type Kind string

// The kinds. Others tell of jobs and datasets; a graph has more of Falaj's own.
const (
	JobKind        Kind = "job"
	DatasetKind    Kind = "dataset"
	ViewKind       Kind = "feature_view"
	ServiceKind    Kind = "feature_service"
	ModelKind      Kind = "model"
	DeploymentKind Kind = "deployment"
)

// Thing is an external job or dataset.
type Thing struct {
	Project project.Name `json:"-"`
	Kind    Kind         `json:"kind"`
	Name
	Own    string    `json:"own,omitempty"` // the name of Falaj's dataset that it is
	Fields []Field   `json:"fields,omitempty"`
	Facets Facets    `json:"facets,omitempty"`
	Last   time.Time `json:"last_event"`
}

// About says what a thing is.
func (t Thing) About() string { return string(t.Kind) + " in " + t.Namespace }

// SearchFields are the columns that a dataset is found by. Those of Falaj's own are found with
// the dataset itself, by those who may read it.
func (t Thing) SearchFields() []store.Field {
	if t.Own != "" {
		return nil
	}
	names := make([]string, len(t.Fields))
	for i, f := range t.Fields {
		names[i] = f.Name
	}
	return store.FieldsOf("column", names...)
}

// Link says that a job reads or writes a dataset.
type Link struct {
	Project project.Name
	Job     Name
	Output  bool
	Dataset Name
	Own     string // the name of Falaj's dataset that it is
	Run     string // the last one; empty when only the job is known
	Last    time.Time
	Columns Columns // of an output, when it is put
	Size    int     // of its columns, about, in bytes, when it is listed
}
