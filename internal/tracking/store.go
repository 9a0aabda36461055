package tracking

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// Query is a checked search.
type Query struct {
	Experiments []ExperimentID // of runs and logged models
	View        View
	Where       []search.Comparison
	Order       []search.Order
	// Datasets narrows metrics of logged models to those measured on one of
	// these (digest "" is any).
	Datasets []DatasetInput
	// OrderOn are the data sets of Order's clauses: a metric of logged models is ordered by
	// its value on that one; the zero value is any.
	OrderOn []DatasetInput
	Limit   int // at most this many
	Offset  int
}

// Store is what tracking needs of a database. Methods run in the caller's
// transaction. What is not there is fault.NotFound; nothing else is decided
// here.
type Store interface {
	ExperimentStore
	RunStore
	LogStore
	LoggedModelStore
	ArtifactStore
	UploadStore
	ImportStore
	PruneStore
}

// ExperimentStore keeps experiments.
type ExperimentStore interface {
	// NextExperiment is the smallest ID never used in the project, from 1.
	NextExperiment(ctx context.Context, tx *store.Tx, p project.Name) (ExperimentID, error)
	// PutExperiment inserts or updates all but the tags.
	PutExperiment(ctx context.Context, tx *store.Tx, e Experiment) error
	Experiment(ctx context.Context, tx *store.Tx, p project.Name, id ExperimentID) (Experiment, error)
	ExperimentNamed(ctx context.Context, tx *store.Tx, p project.Name, name string) (Experiment, error)
	// SearchExperiments gives experiments with tags.
	SearchExperiments(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Experiment, error)
	// ExperimentLines gives what a search reads of active experiments in the order of
	// SearchExperiments, after a key; Experiment.SearchKey is their key.
	ExperimentLines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error)
	PutExperimentTags(ctx context.Context, tx *store.Tx, p project.Name, id ExperimentID, tags []Pair) error
	// DeleteExperimentTag reports whether there was one.
	DeleteExperimentTag(ctx context.Context, tx *store.Tx, p project.Name, id ExperimentID, key string) (bool, error)
	DatasetSummaries(ctx context.Context, tx *store.Tx, p project.Name, experiments []ExperimentID, limit int) ([]DatasetSummary, error)
}

// RunStore keeps runs.
type RunStore interface {
	// PutRun inserts or updates a run without its data.
	PutRun(ctx context.Context, tx *store.Tx, r Run) error
	Run(ctx context.Context, tx *store.Tx, p project.Name, id RunID) (Run, error)
	// StageRuns puts all runs of an experiment into a stage.
	// at is when they are deleted, if that is the stage.
	StageRuns(ctx context.Context, tx *store.Tx, p project.Name, experiment ExperimentID, stage Stage, at time.Time) error
	// RunOfAttempt is the first run that the attempt's job made for it.
	RunOfAttempt(ctx context.Context, tx *store.Tx, p project.Name, attempt string) (Run, error)
	// SearchRuns gives runs without their data.
	SearchRuns(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Run, error)
	// FillRuns adds params, tags, latest metrics, inputs and models.
	FillRuns(ctx context.Context, tx *store.Tx, runs []Run) error
}

// LogStore keeps what runs log.
type LogStore interface {
	Params(ctx context.Context, tx *store.Tx, run RunID, keys []string) ([]LoggedParam, error)
	// InsertParams inserts params, which are of the run's attempt, as are those of PutParams
	// and the points of PutLatestMetrics.
	InsertParams(ctx context.Context, tx *store.Tx, run Run, params []Pair) error
	// PutParams inserts params or changes their values, which imports do, and the attempts
	// of a job that share a run.
	PutParams(ctx context.Context, tx *store.Tx, run Run, params []Pair) error
	PutTags(ctx context.Context, tx *store.Tx, run Run, tags []Pair) error
	DeleteTag(ctx context.Context, tx *store.Tx, run RunID, key string) (bool, error)
	// InsertMetrics appends points that are not there yet.
	InsertMetrics(ctx context.Context, tx *store.Tx, run RunID, metrics []Metric) error
	// PutLatestMetrics keeps points as the latest of their keys, each key once, unless
	// the latest of now is as late: by attempt of the job, then step, time and value; NaN
	// counts as 0.
	PutLatestMetrics(ctx context.Context, tx *store.Tx, run Run, metrics []Metric) error
	// History gives points by time, step and value.
	History(ctx context.Context, tx *store.Tx, run RunID, key string, offset, limit int) ([]Metric, error)
	// PointSince gives a metric's first point since a time, or its newest; nil when it has none.
	PointSince(ctx context.Context, tx *store.Tx, run RunID, key string, since Millis, newest bool) (*Metric, error)
	PutInputs(ctx context.Context, tx *store.Tx, run Run, inputs []DatasetInput) error
	PutModelLinks(ctx context.Context, tx *store.Tx, run RunID, links []ModelLink) error
}

// LoggedModelStore keeps logged models.
type LoggedModelStore interface {
	PutLoggedModel(ctx context.Context, tx *store.Tx, m LoggedModel) error
	LoggedModel(ctx context.Context, tx *store.Tx, p project.Name, id LoggedModelID) (LoggedModel, error)
	SearchLoggedModels(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]LoggedModel, error)
	// FillLoggedModels adds params, tags and metrics.
	FillLoggedModels(ctx context.Context, tx *store.Tx, models []LoggedModel) error
	PutLoggedModelParams(ctx context.Context, tx *store.Tx, id LoggedModelID, params []Pair) error
	PutLoggedModelTags(ctx context.Context, tx *store.Tx, id LoggedModelID, tags []Pair) error
	DeleteLoggedModelTag(ctx context.Context, tx *store.Tx, id LoggedModelID, key string) (bool, error)
	PutModelMetrics(ctx context.Context, tx *store.Tx, run RunID, metrics []Metric) error
}

// Stored is an artifact with the name of its object.
type Stored struct {
	File
	Object string // blob key
}

// ArtifactStore keeps which object holds which path.
type ArtifactStore interface {
	PutArtifact(ctx context.Context, tx *store.Tx, p project.Name, owner string, s Stored) error
	Artifact(ctx context.Context, tx *store.Tx, owner, path string) (Stored, error)
	// Artifacts gives the file at prefix and those below it, by path; prefix ""
	// is all.
	Artifacts(ctx context.Context, tx *store.Tx, owner, prefix string, limit int) ([]Stored, error)
	CountArtifacts(ctx context.Context, tx *store.Tx, owner string) (int, error)
	// DeleteArtifacts removes the file at prefix and those below it.
	DeleteArtifacts(ctx context.Context, tx *store.Tx, owner, prefix string) error
	// Holds gives those of the objects that some artifact or part of an upload has.
	Holds(ctx context.Context, tx *store.Tx, p project.Name, objects []string) ([]string, error)
	// Holders lists the runs and logged models of a project that have files, by ID.
	Holders(ctx context.Context, tx *store.Tx, p project.Name) ([]Holder, error)
}

// UploadStore keeps files that come in parts.
type UploadStore interface {
	// PutUpload inserts an upload, or says that it is done.
	PutUpload(ctx context.Context, tx *store.Tx, u Upload) error
	Upload(ctx context.Context, tx *store.Tx, p project.Name, id UploadID) (Upload, error)
	// CountUploads counts those that are not done.
	CountUploads(ctx context.Context, tx *store.Tx, p project.Name) (int, error)
	// StaleUploads are some that were begun before a time.
	StaleUploads(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) ([]Upload, error)
	DeleteUpload(ctx context.Context, tx *store.Tx, id UploadID) error
	PutPart(ctx context.Context, tx *store.Tx, p project.Name, id UploadID, part Part) error
	// Parts gives an upload's parts by number.
	Parts(ctx context.Context, tx *store.Tx, id UploadID) ([]Part, error)
	DeleteParts(ctx context.Context, tx *store.Tx, id UploadID) error
}

// ImportStore keeps what came from other MLflow servers.
type ImportStore interface {
	// Imported gives the records of what came, by id.
	Imported(ctx context.Context, tx *store.Tx, p project.Name, kind ImportKind, ids []string) (map[string]Imported, error)
	// ImportedFrom gives those of objects that the source knows by an origin, by origin.
	ImportedFrom(ctx context.Context, tx *store.Tx, p project.Name, kind ImportKind, origins []string) (map[string]Imported, error)
	PutImported(ctx context.Context, tx *store.Tx, p project.Name, kind ImportKind, r Imported, at time.Time) error
	DeleteImported(ctx context.Context, tx *store.Tx, p project.Name, kind ImportKind, id string) error
	// ReplaceRun inserts a run, or gives the one of its id in its project all that a client
	// sees; owner, creation and origin stay. false: another project has the id.
	ReplaceRun(ctx context.Context, tx *store.Tx, r Run) (bool, error)
	// ReplaceLoggedModel is ReplaceRun for a logged model.
	ReplaceLoggedModel(ctx context.Context, tx *store.Tx, m LoggedModel) (bool, error)
}

// PruneStore removes for ever what was deleted before a time: runs by themselves or with
// their experiment, logged models by themselves, or whose experiment is. What came by an
// import counts from then. Runs of jobs that have not ended are left alone.
type PruneStore interface {
	// OfJobs are the runs of jobs; MarkRun marks one, which has ended.
	OfJobs(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) ([]OfJob, error)
	MarkRun(ctx context.Context, tx *store.Tx, run RunID, at store.Time) error
	// MarkedRuns are some, by id.
	MarkedRuns(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) ([]Marked, error)
	// MarkedModels are some, by id.
	MarkedModels(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) ([]Marked, error)
	// RemoveMarked removes one, if it is marked still, with its data, its uploads and that it was
	// imported; artifacts are left to DeleteArtifacts, points to RemovePoints.
	RemoveMarked(ctx context.Context, tx *store.Tx, p project.Name, m Marked, before time.Time) (bool, error)
	// PrunedRuns are removed runs of which there are points.
	PrunedRuns(ctx context.Context, tx *store.Tx, p project.Name) ([]RunID, error)
	// Pruning are those of the runs that are such, in whichever project.
	Pruning(ctx context.Context, tx *store.Tx, runs []string) ([]RunID, error)
	// RemovePoints removes about as many points of a removed run; done when none is left.
	RemovePoints(ctx context.Context, tx *store.Tx, run RunID, most int) (done bool, err error)
	// MarkedExperiments are those all of whose runs are marked; never the first.
	MarkedExperiments(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) ([]ExperimentID, error)
	// EmptyExperiments are some of those that have no runs and no logged models.
	EmptyExperiments(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, limit int) ([]Experiment, error)
	// RemoveExperiment removes one, whose number no new one gets.
	RemoveExperiment(ctx context.Context, tx *store.Tx, e Experiment) error
}

// Holder is a run or logged model that has files.
type Holder struct {
	Owner string // ID of the run or logged model
	Job   string // that made it; empty for what a person logged
	Files int64
	Logs  int64 // of the files, those that hold the output of a job
}
