package tuning

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// The actions that tuning asks for.
const (
	ActionRead   policy.Action = "sweep.read"
	ActionWrite  policy.Action = "sweep.write"
	ActionDelete policy.Action = "sweep.delete"
)

// MaxPage is the most studies or trials in a page.
const MaxPage = 1000

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Origins knows what job attempts pass on to what they write; *tracking.Origins is one.
type Origins interface {
	// OriginOf is the label of the context's principal, zero for people and services.
	OriginOf(ctx context.Context, p project.Name) (tracking.Origin, error)
	// Admit refuses a read that would narrow the label of what the principal makes.
	Admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error
}

// Config is what a Service needs.
type Config struct {
	DB      *store.DB
	Store   Store
	Authz   Authorizer
	Journal audit.Journal // reads of classified studies
	Origins Origins
	// Driven reports whether Falaj itself makes the trials of a study, which then is
	// not deleted under it. nil: of none.
	Driven func(ctx context.Context, tx *store.Tx, study Study) (bool, error)
	Now    func() time.Time // nil is time.Now
}

// Service is the only way to studies and trials. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name an object
// with fault.NotFound; those that change a trial with fault.Conflict once it has
// finished; those that take data with fault.Invalid and fault.TooLarge. A request is
// the key of the client's request, by which its repetition is known; it may be empty.
//
// The audit log has the beginning and the end of each study and trial, and studies'
// attributes. What a trial reports meanwhile is summed up in the row of its end.
type Service struct {
	db      *store.DB
	store   Store
	rules   Studies
	authz   Authorizer
	journal audit.Journal
	origins Origins
	driven  func(ctx context.Context, tx *store.Tx, study Study) (bool, error)
	now     func() time.Time
}

// New makes a service.
func New(cfg Config) *Service {
	s := &Service{db: cfg.DB, store: cfg.Store, authz: cfg.Authz, journal: cfg.Journal, origins: cfg.Origins, driven: cfg.Driven, now: cfg.Now}
	if s.now == nil {
		s.now = time.Now
	}
	s.rules = Studies{Store: cfg.Store, Now: s.now}
	return s
}

// Create begins a study, whose ID, Owner and Created do not count, and gives its
// number. Error: fault.Conflict when the name is taken.
func (s *Service) Create(ctx context.Context, study Study) (StudyID, error) {
	p := study.Project
	origin, err := s.enter(ctx, ActionWrite, p)
	if err != nil {
		return 0, err
	}
	if err := requested(study.Request); err != nil {
		return 0, err
	}
	study.Owner = identity.From(ctx).ID
	study.Residency, study.Classification = origin.Residency, origin.Classification
	var id StudyID
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var made bool
		var err error
		if id, made, err = s.rules.Create(ctx, tx, study); err != nil || !made {
			return err
		}
		for scope, attributes := range map[Scope]Attributes{User: study.User, System: study.System} {
			for key, value := range attributes {
				if err := s.rules.SetStudyAttribute(ctx, tx, p, id, scope, key, value); err != nil {
					return err
				}
			}
		}
		return note(ctx, tx, p, ActionWrite, study.Name, map[string]any{"act": "create", "id": int64(id)})
	})
	return id, err
}

// Study gives a study with its attributes.
func (s *Service) Study(ctx context.Context, p project.Name, id StudyID) (Study, error) {
	return s.read(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) {
		return s.store.Study(ctx, tx, p, id)
	})
}

// StudyNamed gives a study by its name.
func (s *Service) StudyNamed(ctx context.Context, p project.Name, name string) (Study, error) {
	return s.read(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) {
		return s.store.StudyNamed(ctx, tx, p, name)
	})
}

// List gives at most limit studies that the caller may read, by ID, greater than
// after, and the ID to go on after; 0 at the end.
func (s *Service) List(ctx context.Context, p project.Name, after StudyID, limit int) ([]Study, StudyID, error) {
	if _, err := s.enter(ctx, ActionRead, p); err != nil {
		return nil, 0, err
	}
	limit = page(limit)
	var found []Study
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		found, err = s.store.Studies(ctx, tx, p, after, limit+1)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	var next StudyID
	if len(found) > limit {
		found, next = found[:limit], found[limit-1].ID
	}
	may := found[:0]
	for _, study := range found {
		err := s.may(ctx, ActionRead, study)
		switch {
		case fault.Is(err, fault.PermissionDenied), fault.Is(err, fault.NotFound):
		case err != nil:
			return nil, 0, err
		default:
			may = append(may, study)
		}
	}
	return may, next, nil
}

// Delete removes a study and its trials. The repetition of a request that did so
// hears that there is none.
func (s *Service) Delete(ctx context.Context, p project.Name, id StudyID) error {
	study, err := s.study(ctx, ActionDelete, p, id)
	if err != nil {
		return err
	}
	return s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if s.driven != nil {
			if driven, err := s.driven(ctx, tx, study); err != nil || driven {
				return errors.Join(err, fault.New(fault.Conflict, "%q is a sweep, not a study of an Optuna client", clip(study.Name)).WithHint("falaj sweep stop %[1]s; falaj delete sweep %[1]s", fault.ShellWord(clip(study.Name))))
			}
		}
		n, err := s.store.TrialCount(ctx, tx, p, id)
		if err != nil {
			return err
		}
		if err := s.store.DeleteStudy(ctx, tx, p, id); err != nil {
			return err
		}
		return note(ctx, tx, p, ActionDelete, study.Name, map[string]any{"act": "delete", "id": int64(id), "trials": n})
	})
}

// SetStudyAttribute sets or replaces an attribute of a study.
func (s *Service) SetStudyAttribute(ctx context.Context, p project.Name, id StudyID, scope Scope, key, value string) error {
	return s.change(ctx, p, id, func(ctx context.Context, tx *store.Tx, study Study) error {
		if err := s.rules.SetStudyAttribute(ctx, tx, p, id, scope, key, value); err != nil {
			return err
		}
		return note(ctx, tx, p, ActionWrite, study.Name, map[string]any{"act": "attribute", "scope": string(scope)})
	})
}

// CreateTrial adds a trial: a running one, or one like the template.
func (s *Service) CreateTrial(ctx context.Context, p project.Name, id StudyID, template *Trial, request string) (TrialID, error) {
	if err := requested(request); err != nil {
		return 0, err
	}
	var trial TrialID
	err := s.change(ctx, p, id, func(ctx context.Context, tx *store.Tx, study Study) error {
		var made bool
		var err error
		if trial, made, err = s.rules.CreateTrial(ctx, tx, p, id, template, request); err != nil || !made {
			return err
		}
		t, err := s.store.TrialHead(ctx, tx, p, trial)
		if err == nil && t.State == Running {
			err = s.ofJob(ctx, tx, p, trial)
		}
		if err != nil {
			return err
		}
		return note(ctx, tx, p, ActionWrite, study.Name, map[string]any{"act": "trial", "trial": t.Number, "state": string(t.State)})
	})
	return trial, err
}

// SetParam sets a parameter, whose distribution must go with the study's.
func (s *Service) SetParam(ctx context.Context, p project.Name, id TrialID, name string, param Param) error {
	return s.changeTrial(ctx, p, id, func(ctx context.Context, tx *store.Tx, _ Study) error {
		return s.rules.SetParam(ctx, tx, p, id, name, param)
	})
}

// SetState moves a trial on. It is false when the trial was to run and somebody else
// has claimed it.
func (s *Service) SetState(ctx context.Context, p project.Name, id TrialID, state State, values []float64, request string) (moved bool, err error) {
	if err := requested(request); err != nil {
		return false, err
	}
	err = s.changeTrial(ctx, p, id, func(ctx context.Context, tx *store.Tx, study Study) error {
		var again bool
		var err error
		if moved, again, err = s.rules.SetState(ctx, tx, p, id, state, values, request); err != nil || !moved || again {
			return err
		}
		if state == Running {
			if err := s.ofJob(ctx, tx, p, id); err != nil {
				return err
			}
		}
		whole, err := s.store.Trials(ctx, tx, p, study.ID, math.MaxInt64, []TrialID{id}, 1)
		if err != nil {
			return err
		}
		t := whole[0]
		return note(ctx, tx, p, ActionWrite, study.Name, map[string]any{
			"act": "trial", "trial": t.Number, "state": string(t.State),
			"params": len(t.Params), "attributes": len(t.User) + len(t.System), "reports": len(t.Intermediate),
		})
	})
	return moved, err
}

// ofJob remembers the job whose program runs a trial.
func (s *Service) ofJob(ctx context.Context, tx *store.Tx, p project.Name, id TrialID) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt || who.Name == "" {
		return nil
	}
	return s.store.PutTrialAttribute(ctx, tx, p, id, System, JobAttribute, strconv.Quote(who.Name))
}

// JobEnded fails the trials that a job has left running: nobody else would end them. Doing so
// again is no change.
func (s *Service) JobEnded(ctx context.Context, tx *store.Tx, p project.Name, job string) error {
	left, err := s.store.RunningOf(ctx, tx, p, strconv.Quote(job))
	if err != nil {
		return err
	}
	for _, id := range left {
		study, err := s.studyOf(ctx, tx, p, id)
		if err != nil {
			return err
		}
		t, err := s.store.TrialHead(ctx, tx, p, id)
		if err != nil {
			return err
		}
		if _, _, err := s.rules.SetState(ctx, tx, p, id, Failed, nil, ""); err != nil {
			return err
		}
		if err := note(ctx, tx, p, ActionWrite, study.Name, map[string]any{"act": "trial", "trial": t.Number, "state": string(Failed), "job": job, "reason": "its job ended"}); err != nil {
			return err
		}
	}
	return nil
}

// SetIntermediate sets or replaces what a trial reported at a step.
func (s *Service) SetIntermediate(ctx context.Context, p project.Name, id TrialID, step int64, value float64) error {
	return s.changeTrial(ctx, p, id, func(ctx context.Context, tx *store.Tx, _ Study) error {
		return s.rules.SetIntermediate(ctx, tx, p, id, step, value)
	})
}

// SetTrialAttribute sets or replaces an attribute of a trial.
func (s *Service) SetTrialAttribute(ctx context.Context, p project.Name, id TrialID, scope Scope, key, value string) error {
	return s.changeTrial(ctx, p, id, func(ctx context.Context, tx *store.Tx, _ Study) error {
		return s.rules.SetTrialAttribute(ctx, tx, p, id, scope, key, value)
	})
}

// Trial gives one trial, whole.
func (s *Service) Trial(ctx context.Context, p project.Name, id TrialID) (Trial, error) {
	study, err := s.read(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) { return s.studyOf(ctx, tx, p, id) })
	if err != nil {
		return Trial{}, err
	}
	found, err := s.trials(ctx, study, math.MaxInt64, []TrialID{id}, 1)
	if err == nil && len(found) == 0 {
		err = fault.New(fault.NotFound, "no trial with number %d exists", id)
	}
	if err != nil {
		return Trial{}, err
	}
	return found[0], nil
}

// TrialNumbered is the ID of the trial with a number in its study.
func (s *Service) TrialNumbered(ctx context.Context, p project.Name, id StudyID, number int64) (TrialID, error) {
	if _, err := s.study(ctx, ActionRead, p, id); err != nil {
		return 0, err
	}
	var found TrialID
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		found, err = s.store.TrialNumbered(ctx, tx, p, id, number)
		return err
	})
	return found, err
}

// Trials are whole and by ID: at most limit of those greater than after or included.
// Whoever pages by the last ID and asks for the same included ones sees each once.
func (s *Service) Trials(ctx context.Context, p project.Name, id StudyID, after TrialID, included []TrialID, limit int) ([]Trial, error) {
	if len(included) > maxTrials {
		return nil, fault.New(fault.TooLarge, "the request names %d trials, over the limit of %d", len(included), maxTrials).
			WithHint("Request only trials after the last one that you received.")
	}
	study, err := s.read(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) { return s.store.Study(ctx, tx, p, id) })
	if err != nil {
		return nil, err
	}
	return s.trials(ctx, study, after, included, page(limit))
}

func (s *Service) trials(ctx context.Context, study Study, after TrialID, included []TrialID, limit int) (found []Trial, err error) {
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err = s.store.Trials(ctx, tx, study.Project, study.ID, after, included, limit)
		return err
	})
	return found, err
}

// enter asks for the collection, and gives the caller's label.
func (s *Service) enter(ctx context.Context, action policy.Action, p project.Name) (tracking.Origin, error) {
	if p == "" {
		return tracking.Origin{}, fault.New(fault.PermissionDenied, "a project is required").WithHint("Use a token that is bound to one project.")
	}
	if err := s.authz.Allow(ctx, action, policy.Object{Project: string(p), Kind: "sweep"}); err != nil {
		return tracking.Origin{}, err
	}
	if identity.From(ctx).Kind != identity.Attempt {
		return tracking.Origin{}, nil
	}
	return s.origins.OriginOf(ctx, p)
}

// may asks for one study. A job attempt may not read what would narrow its label.
func (s *Service) may(ctx context.Context, action policy.Action, study Study) error {
	err := s.authz.Allow(ctx, action, policy.Object{
		Project: string(study.Project), Kind: "sweep", Name: clip(study.Name), Owner: study.Owner,
		Classification: study.Classification, Residency: study.Residency,
	})
	if err != nil || identity.From(ctx).Kind != identity.Attempt {
		return err
	}
	return s.origins.Admit(ctx, study.Project, "sweep "+clip(study.Name), study.Residency, study.Classification)
}

// find enters, finds a study in a transaction of its own and asks for it.
func (s *Service) find(ctx context.Context, action policy.Action, p project.Name, find func(ctx context.Context, tx *store.Tx) (Study, error)) (study Study, origin tracking.Origin, err error) {
	if origin, err = s.enter(ctx, action, p); err != nil {
		return Study{}, origin, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		study, err = find(ctx, tx)
		return err
	})
	if err != nil {
		return Study{}, origin, err
	}
	return study, origin, s.may(ctx, action, study)
}

func (s *Service) study(ctx context.Context, action policy.Action, p project.Name, id StudyID) (Study, error) {
	study, _, err := s.find(ctx, action, p, func(ctx context.Context, tx *store.Tx) (Study, error) { return s.store.Study(ctx, tx, p, id) })
	return study, err
}

func (s *Service) studyOf(ctx context.Context, tx *store.Tx, p project.Name, id TrialID) (Study, error) {
	t, err := s.store.TrialHead(ctx, tx, p, id)
	if err != nil {
		return Study{}, err
	}
	return s.store.Study(ctx, tx, p, t.Study)
}

// read finds a study to be read; of a classified one the journal knows before the
// answer leaves.
func (s *Service) read(ctx context.Context, p project.Name, find func(ctx context.Context, tx *store.Tx) (Study, error)) (Study, error) {
	study, _, err := s.find(ctx, ActionRead, p, find)
	if err != nil || s.journal == nil || rank[study.Classification] < rank["confidential"] {
		return study, err
	}
	return study, s.journal.Record(ctx, audit.Entry{Project: string(p), Action: string(ActionRead), Object: "sweep " + clip(study.Name)})
}

type changing func(ctx context.Context, tx *store.Tx, study Study) error

func (s *Service) change(ctx context.Context, p project.Name, id StudyID, do changing) error {
	return s.changeFound(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) { return s.store.Study(ctx, tx, p, id) }, do)
}

func (s *Service) changeTrial(ctx context.Context, p project.Name, id TrialID, do changing) error {
	return s.changeFound(ctx, p, func(ctx context.Context, tx *store.Tx) (Study, error) { return s.studyOf(ctx, tx, p, id) }, do)
}

// changeFound changes what a study has, which gets the label of the job that does so.
func (s *Service) changeFound(ctx context.Context, p project.Name, find func(ctx context.Context, tx *store.Tx) (Study, error), do changing) error {
	study, origin, err := s.find(ctx, ActionWrite, p, find)
	if err != nil {
		return err
	}
	return s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if identity.From(ctx).Kind == identity.Attempt {
			if err := s.narrow(ctx, tx, study, origin); err != nil {
				return err
			}
		}
		return do(ctx, tx, study)
	})
}

// narrow gives a study the label of who writes to it, beside what it had.
func (s *Service) narrow(ctx context.Context, tx *store.Tx, study Study, origin tracking.Origin) error {
	is, err := s.store.Study(ctx, tx, study.Project, study.ID) // as it is now
	if err != nil {
		return err
	}
	label, err := residency.Derive(
		residency.Parent{Name: "sweep " + clip(is.Name), Label: is.Residency}, residency.Parent{Name: identity.From(ctx).String(), Label: origin.Residency})
	if err != nil {
		return err
	}
	classification := is.Classification
	if rank[origin.Classification] > rank[classification] {
		classification = origin.Classification
	}
	if label.Same(is.Residency) && classification == is.Classification {
		return nil
	}
	if err := s.store.Relabel(ctx, tx, is.Project, is.ID, label, classification); err != nil {
		return err
	}
	return note(ctx, tx, is.Project, ActionWrite, is.Name, map[string]any{"act": "label", "residency": label.String(), "classification": classification})
}

// rank orders the classifications.
var rank = map[string]int{"public": 0, "internal": 1, "": 1, "confidential": 2, "restricted": 3}

func note(ctx context.Context, tx *store.Tx, p project.Name, action policy.Action, study string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(action), Object: "sweep " + clip(study), Detail: detail})
}

// clip bounds a name in messages: nobody has checked it.
func clip(name string) string { return fault.Clip(name, maxName) }

func page(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

// requested refuses the key of a request that is none.
func requested(key string) error {
	if len(key) > 255 || !storable(key) {
		return fault.New(fault.Invalid, "the idempotency key has %d bytes, over the limit of 255", len(key)).
			WithHint("Use a new random key, such as a UUID, for each new request.")
	}
	return nil
}
