package tuning

import (
	"context"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// The limits of what a study keeps.
const (
	maxName         = 512 // bytes of a study's name, a parameter's or an attribute's key
	maxDirections   = 64
	maxDistribution = 64 << 10
	maxAttribute    = 1 << 20 // CMA-ES keeps its state in attributes
	maxTrials       = 100_000 // of a study
	maxItems        = 10_000  // parameters, attributes or intermediate values that a new trial brings
)

// Studies are the rules of a study, on a Store. Who may call is the caller's matter,
// and so is the transaction: one that fails must be undone.
type Studies struct {
	Store Store
	Now   func() time.Time
}

// Create begins a study and gives its number. The repetition of the request that
// made a study gets that study, and made is false.
func (s Studies) Create(ctx context.Context, tx *store.Tx, study Study) (id StudyID, made bool, err error) {
	if err := named("study", study.Name); err != nil {
		return 0, false, err
	}
	if n := len(study.Directions); n == 0 || n > maxDirections {
		return 0, false, fault.New(fault.Invalid, "a study must have 1 to %d directions, not %d", maxDirections, n).WithHint("Set one direction per objective.")
	}
	for _, d := range study.Directions {
		if d != Minimize && d != Maximize {
			return 0, false, fault.New(fault.Invalid, "unknown direction %q", d).WithHint("Use minimize or maximize.")
		}
	}
	if study.Request != "" {
		before, err := s.Store.StudyNamed(ctx, tx, study.Project, study.Name)
		if err == nil && before.Request == study.Request {
			return before.ID, false, nil
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return 0, false, err
		}
	}
	if study.ID, err = s.Store.NextStudy(ctx, tx, study.Project); err != nil {
		return 0, false, err
	}
	study.Created = s.Now()
	return study.ID, true, s.Store.AddStudy(ctx, tx, study)
}

// SetStudyAttribute sets or replaces an attribute of a study.
func (s Studies) SetStudyAttribute(ctx context.Context, tx *store.Tx, p project.Name, id StudyID, scope Scope, key, value string) error {
	if err := attribute(key, value); err != nil {
		return err
	}
	if _, err := s.Store.Study(ctx, tx, p, id); err != nil {
		return err
	}
	return s.Store.PutStudyAttribute(ctx, tx, p, id, scope, key, value)
}

// CreateTrial adds a trial: a running one, or one like the template, whose ID,
// Study, Number, Made and Moved do not count. A request that was made before, by its key
// unless that is empty, gets the trial that it made, and made is false.
func (s Studies) CreateTrial(ctx context.Context, tx *store.Tx, p project.Name, id StudyID, template *Trial, request string) (trial TrialID, made bool, err error) {
	study, err := s.Store.Study(ctx, tx, p, id)
	if err != nil {
		return 0, false, err
	}
	if request != "" {
		if before, err := s.Store.TrialOf(ctx, tx, p, id, request); err == nil || !fault.Is(err, fault.NotFound) {
			return before, false, err
		}
	}
	t := Trial{State: Running, Started: s.Now()}
	if template != nil {
		t = *template
		if err := checked(t, len(study.Directions)); err != nil {
			return 0, false, err
		}
	}
	if t.Number, err = s.Store.TrialCount(ctx, tx, p, id); err != nil {
		return 0, false, err
	}
	if t.Number >= maxTrials {
		return 0, false, fault.New(fault.Exhausted, "study %q has %d trials, the limit", study.Name, t.Number).WithHint("Continue in a new study.")
	}
	if t.ID, err = s.Store.NextTrial(ctx, tx, p); err != nil {
		return 0, false, err
	}
	t.Study, t.Made, t.Moved = id, request, ""
	return t.ID, true, s.add(ctx, tx, p, t)
}

func (s Studies) add(ctx context.Context, tx *store.Tx, p project.Name, t Trial) error {
	if err := s.Store.PutTrial(ctx, tx, p, t); err != nil {
		return err
	}
	for name, param := range t.Params {
		if err := s.Store.PutParam(ctx, tx, p, t.ID, name, param); err != nil {
			return err
		}
	}
	for scope, attributes := range map[Scope]Attributes{User: t.User, System: t.System} {
		for key, value := range attributes {
			if err := s.Store.PutTrialAttribute(ctx, tx, p, t.ID, scope, key, value); err != nil {
				return err
			}
		}
	}
	for step, value := range t.Intermediate {
		if err := s.Store.PutIntermediate(ctx, tx, p, t.ID, step, value); err != nil {
			return err
		}
	}
	return nil
}

// Declare says what a parameter of a study is before a trial has it.
func (s Studies) Declare(ctx context.Context, tx *store.Tx, p project.Name, id StudyID, name string, d Distribution) error {
	if err := parameter(name, Param{Distribution: d}); err != nil {
		return err
	}
	return s.Store.PutDistribution(ctx, tx, p, id, name, d)
}

// SetParam sets a parameter, whose distribution must go with the study's.
func (s Studies) SetParam(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, name string, param Param) error {
	t, err := s.updatable(ctx, tx, p, id)
	if err != nil {
		return err
	}
	if err := parameter(name, param); err != nil {
		return err
	}
	before, err := s.Store.Distribution(ctx, tx, p, t.Study, name)
	if err != nil {
		return err
	}
	if before != "" {
		if err := compatible(before, param.Distribution); err != nil {
			return err
		}
	}
	if before != param.Distribution {
		if err := s.Store.PutDistribution(ctx, tx, p, t.Study, name, param.Distribution); err != nil {
			return err
		}
	}
	return s.Store.PutParam(ctx, tx, p, id, name, param)
}

// SetState moves a trial on. It is false when the trial was to run and somebody
// else has claimed it. A request that moved it, by its key unless that is empty, has
// moved it when it is repeated; then again is true.
func (s Studies) SetState(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, state State, values []float64, request string) (moved, again bool, err error) {
	t, err := s.Store.TrialHead(ctx, tx, p, id)
	if err != nil {
		return false, false, err
	}
	if request != "" && t.Moved == request {
		return true, true, nil
	}
	if err := unfinished(t); err != nil {
		return false, false, err
	}
	if state == Running && t.State != Waiting {
		return false, false, nil
	}
	study, err := s.Store.Study(ctx, tx, p, t.Study)
	if err != nil {
		return false, false, err
	}
	t.State, t.Moved = state, request
	if len(values) > 0 {
		t.Values = values
	}
	if err := outcome(t.State, t.Values, len(study.Directions)); err != nil {
		return false, false, err
	}
	switch {
	case state == Running:
		t.Started = s.Now()
	case state.Finished():
		t.Completed = s.Now()
	}
	return true, false, s.Store.PutTrial(ctx, tx, p, t)
}

// SetIntermediate sets or replaces what a trial reported at a step.
func (s Studies) SetIntermediate(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, step int64, value float64) error {
	if _, err := s.updatable(ctx, tx, p, id); err != nil {
		return err
	}
	return s.Store.PutIntermediate(ctx, tx, p, id, step, value)
}

// SetTrialAttribute sets or replaces an attribute of a trial.
func (s Studies) SetTrialAttribute(ctx context.Context, tx *store.Tx, p project.Name, id TrialID, scope Scope, key, value string) error {
	if err := attribute(key, value); err != nil {
		return err
	}
	if _, err := s.updatable(ctx, tx, p, id); err != nil {
		return err
	}
	return s.Store.PutTrialAttribute(ctx, tx, p, id, scope, key, value)
}

func (s Studies) updatable(ctx context.Context, tx *store.Tx, p project.Name, id TrialID) (Trial, error) {
	t, err := s.Store.TrialHead(ctx, tx, p, id)
	if err == nil {
		err = unfinished(t)
	}
	return t, err
}

func unfinished(t Trial) error {
	if !t.State.Finished() {
		return nil
	}
	return fault.New(fault.Conflict, "Trial#%d has already finished and can not be updated.", t.Number).WithHint("Start another trial.")
}

func checked(t Trial, directions int) error {
	if n := max(len(t.Params), len(t.User), len(t.System), len(t.Intermediate)); n > maxItems {
		return fault.New(fault.TooLarge, "the trial has %d parameters, attributes or values, over the limit of %d", n, maxItems).
			WithHint("Add the rest after creating the trial.")
	}
	for name, param := range t.Params {
		if err := parameter(name, param); err != nil {
			return err
		}
	}
	for _, attributes := range []Attributes{t.User, t.System} {
		for key, value := range attributes {
			if err := attribute(key, value); err != nil {
				return err
			}
		}
	}
	return outcome(t.State, t.Values, directions)
}

// outcome checks a state and the values that go with it.
func outcome(state State, values []float64, directions int) error {
	switch {
	case !state.known():
		return fault.New(fault.Invalid, "unknown state %q", state).WithHint("Use waiting, running, complete, pruned or fail.")
	case state == Complete && len(values) != directions, len(values) != 0 && len(values) != directions:
		return fault.New(fault.Invalid, "the trial has %d values, and its study has %d directions", len(values), directions).
			WithHint("Return one value per objective.")
	case slices.ContainsFunc(values, math.IsNaN):
		return fault.New(fault.Invalid, "a value of the trial is not a number").WithHint("Fail or prune the trial instead.")
	}
	return nil
}

func parameter(name string, param Param) error {
	if err := named("parameter", name); err != nil {
		return err
	}
	if math.IsNaN(param.Value) || math.IsInf(param.Value, 0) {
		return fault.New(fault.Invalid, "parameter %q is not a finite number", name).WithHint("Set finite bounds for its distribution.")
	}
	_, err := param.Distribution.parse()
	return err
}

func attribute(key, value string) error {
	if len(value) > maxAttribute {
		return fault.New(fault.TooLarge, "attribute %q has %d bytes, over the limit of %d", key, len(value), maxAttribute).
			WithHint("Store it as an artifact, and its path as the attribute.")
	}
	if !storable(value) {
		return fault.New(fault.Invalid, "attribute %q is not text", key).WithHint("Send JSON in UTF-8.")
	}
	return named("attribute", key)
}

func named(what, name string) error {
	if name == "" || len(name) > maxName || !storable(name) {
		return fault.New(fault.Invalid, "the name of a %s must have 1 to %d bytes of UTF-8", what, maxName).WithHint("Choose another name.")
	}
	return nil
}

// storable is text that both databases take: PostgreSQL has no zero byte.
func storable(s string) bool { return utf8.ValidString(s) && !slices.Contains([]byte(s), 0) }
