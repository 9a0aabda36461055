package training

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/anomaly"
	"github.com/falaj-ml/falaj/internal/training/sizing"
	"github.com/falaj-ml/falaj/internal/training/source"
)

// Filter selects jobs of one project, newest first.
type Filter struct {
	State  State  // empty is every state
	Name   string // empty is every name
	Limit  int    // 0 is 100, at most 1000
	Before JobID  // only older ones; the page token
}

// Count is how many jobs of a project are in a state, and the oldest of them.
type Count struct {
	Project project.Name
	State   State
	Jobs    int
	Oldest  JobID
}

// Store is what this package needs from a database. Single objects that do not
// exist are fault.NotFound; an update of a row that changed concurrently is
// fault.Conflict, and raises the revision otherwise.
type Store interface {
	JobStore
	source.Store
	RetentionStore
	AttemptStore
	ProfileStore
	MeasurementStore
}

// JobStore keeps jobs.
type JobStore interface {
	// Mentions gives the texts of jobs that have a word in them.
	Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error
	InsertJob(ctx context.Context, tx *store.Tx, j Job) error
	Job(ctx context.Context, tx *store.Tx, id JobID) (Job, error)
	UpdateJob(ctx context.Context, tx *store.Tx, j Job) error
	// Lines gives of the jobs of a project, newest first and older than before (empty: all),
	// what a search reads: the names, the submitter and the refs of inputs, as field "from".
	Lines(ctx context.Context, tx *store.Tx, p project.Name, before JobID, limit int) ([]store.Line, error)
	// JobsAt gives those of jobs that are there, newest first.
	JobsAt(ctx context.Context, tx *store.Tx, ids []string) ([]Job, error)
	Jobs(ctx context.Context, tx *store.Tx, p project.Name, f Filter) ([]Job, error)
	// LastJob is the newest job with a digest in a project.
	LastJob(ctx context.Context, tx *store.Tx, p project.Name, digest string) (Job, error)
	// CountAlive counts the jobs of a project that have not ended, and those of them
	// that a principal submitted.
	CountAlive(ctx context.Context, tx *store.Tx, p project.Name, submitter string) (all, own int, err error)
	// Counts are the jobs of all projects that have not ended, by project and state.
	Counts(ctx context.Context, tx *store.Tx) ([]Count, error)
	// Unstarted lists jobs that are queued and have no attempt under way.
	Unstarted(ctx context.Context, tx *store.Tx) ([]Job, error)
	// Underway lists the jobs of all projects that run.
	Underway(ctx context.Context, tx *store.Tx) ([]Job, error)
}

// RetentionStore finds and removes jobs whose retention is over.
type RetentionStore interface {
	// Due lists jobs of all projects whose retention is counted from before an instant, the
	// longest ended first; Postpone has it counted from another one.
	Due(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]Job, error)
	Postpone(ctx context.Context, tx *store.Tx, ids []JobID, to time.Time) error
	// ResumedBy gives, for those of the jobs from whose checkpoints others go on, one of these;
	// WithCheckpoints those that have checkpoints.
	ResumedBy(ctx context.Context, tx *store.Tx, ids []JobID) (map[JobID]JobID, error)
	WithCheckpoints(ctx context.Context, tx *store.Tx, ids []JobID) ([]JobID, error)
	AttemptsOf(ctx context.Context, tx *store.Tx, ids []JobID) (map[JobID][]AttemptID, error)
	// TrimJobs removes the profiles of jobs, DeleteJobs all that there is of jobs without
	// checkpoints.
	TrimJobs(ctx context.Context, tx *store.Tx, ids []JobID) error
	DeleteJobs(ctx context.Context, tx *store.Tx, ids []JobID) error
}

// AttemptStore keeps the attempts of jobs.
type AttemptStore interface {
	InsertAttempt(ctx context.Context, tx *store.Tx, a Attempt) error
	Attempt(ctx context.Context, tx *store.Tx, id AttemptID) (Attempt, error)
	UpdateAttempt(ctx context.Context, tx *store.Tx, a Attempt) error
	// Attempts lists a job's attempts by number.
	Attempts(ctx context.Context, tx *store.Tx, id JobID) ([]Attempt, error)
}

// ProfileStore keeps the profiles of running attempts.
type ProfileStore interface {
	InsertProfile(ctx context.Context, tx *store.Tx, p Profile) error
	// Profiles lists the last so many profiles of a job, oldest first.
	Profiles(ctx context.Context, tx *store.Tx, id JobID, limit int) ([]Profile, error)
	// CountProfiles says how many an attempt has.
	CountProfiles(ctx context.Context, tx *store.Tx, id AttemptID) (int, error)
}

// MeasurementStore keeps what attempts used, and which nodes were slow.
type MeasurementStore interface {
	// SaveMeasurement writes that of an attempt, over an earlier one.
	SaveMeasurement(ctx context.Context, tx *store.Tx, m Measurement) error
	Measurement(ctx context.Context, tx *store.Tx, id AttemptID) (m Measurement, found bool, err error)
	// Measured lists what the attempts of a family showed that ended last, Rates how
	// fast those of all projects were, and Ran those on one node of a pool, each
	// newest first.
	Measured(ctx context.Context, tx *store.Tx, p project.Name, family string, limit int) ([]Measurement, error)
	Rates(ctx context.Context, tx *store.Tx, limit int) ([]sizing.Profile, error)
	Ran(ctx context.Context, tx *store.Tx, pool compute.PoolName, device string, limit int) ([]anomaly.Ran, error)
	// SlowNode is what was told of a node last.
	SlowNode(ctx context.Context, tx *store.Tx, pool compute.PoolName, node string) (n SlowNode, found bool, err error)
	SaveSlowNode(ctx context.Context, tx *store.Tx, n SlowNode) error
}
