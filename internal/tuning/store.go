package tuning

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is what tuning needs of a database. Methods run in the caller's
// transaction. What is not there is fault.NotFound; nothing else is decided here.
type Store interface {
	// NextStudy and NextTrial take a number that was never taken in the project.
	NextStudy(ctx context.Context, tx *store.Tx, p project.Name) (StudyID, error)
	NextTrial(ctx context.Context, tx *store.Tx, p project.Name) (TrialID, error)

	// AddStudy adds one without its attributes; fault.Conflict when the name is taken.
	AddStudy(ctx context.Context, tx *store.Tx, s Study) error
	Study(ctx context.Context, tx *store.Tx, p project.Name, id StudyID) (Study, error)
	StudyNamed(ctx context.Context, tx *store.Tx, p project.Name, name string) (Study, error)
	// Studies gives at most limit, by ID, greater than after.
	Studies(ctx context.Context, tx *store.Tx, p project.Name, after StudyID, limit int) ([]Study, error)
	// DeleteStudy removes it and all that it has.
	DeleteStudy(ctx context.Context, tx *store.Tx, p project.Name, id StudyID) error
	// Relabel sets where a study may be and how it is classified.
	Relabel(ctx context.Context, tx *store.Tx, p project.Name, id StudyID, label residency.Label, classification string) error
	PutStudyAttribute(ctx context.Context, tx *store.Tx, p project.Name, id StudyID, scope Scope, key, value string) error

	// TrialCount is also the next trial's Number: trials are never deleted alone.
	TrialCount(ctx context.Context, tx *store.Tx, p project.Name, id StudyID) (int64, error)
	// PutTrial inserts, or updates state, values and times; the rest has methods of its own.
	PutTrial(ctx context.Context, tx *store.Tx, p project.Name, t Trial) error
	// TrialOf is the trial that a request made.
	TrialOf(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, request string) (TrialID, error)
	// TrialHead is a trial without parameters, attributes and intermediate values.
	TrialHead(ctx context.Context, tx *store.Tx, p project.Name, id TrialID) (Trial, error)
	TrialNumbered(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, number int64) (TrialID, error)
	// Trials are whole and by ID: at most limit of those greater than after or included.
	Trials(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, after TrialID, included []TrialID, limit int) ([]Trial, error)

	// Heads are the trials in a state, by ID, without parameters, attributes and
	// intermediate values; at most limit of those greater than after.
	Heads(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, state State, after TrialID, limit int) ([]Trial, error)
	// RunningOf are the running trials of a project's studies, by ID, whose system attribute
	// JobAttribute has the value.
	RunningOf(ctx context.Context, tx *store.Tx, p project.Name, value string) ([]TrialID, error)
	// Constrained are the system attributes in which complete trials have their constraints.
	Constrained(ctx context.Context, tx *store.Tx, p project.Name, study StudyID) (map[TrialID]Attributes, error)
	// Counts are how many trials are in each state.
	Counts(ctx context.Context, tx *store.Tx, p project.Name, study StudyID) (map[State]int, error)

	// Distributions are what the parameters of the newest trial with each were, by name.
	Distributions(ctx context.Context, tx *store.Tx, p project.Name, study StudyID) (map[string]Distribution, error)
	// Distribution is what the study's parameter was last; "" if it never was.
	Distribution(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, name string) (Distribution, error)
	PutDistribution(ctx context.Context, tx *store.Tx, p project.Name, study StudyID, name string, d Distribution) error
	PutParam(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, name string, param Param) error
	PutTrialAttribute(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, scope Scope, key, value string) error
	PutIntermediate(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, step int64, value float64) error
}
