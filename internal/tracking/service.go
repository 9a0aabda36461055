package tracking

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// The actions that tracking asks for.
const (
	ActionRead  policy.Action = "run.read"
	ActionWrite policy.Action = "run.write"
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config is what a Service needs.
type Config struct {
	DB        *store.DB
	Store     Store
	Authz     Authorizer
	Journal   audit.Journal // reads of classified runs
	Artifacts Artifacts

	// Cited reports whether something needs the record of a run, so that it is not
	// pruned; nil knows of nothing.
	Cited func(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error)

	MaxFile  int64            // bytes of one artifact; 0 is 64 GiB
	MaxFiles int              // artifacts of one run or logged model; 0 is 20,000
	Now      func() time.Time // nil is time.Now
}

// Service is the only way to experiments, runs, logged models and artifacts.
// Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name an object
// with fault.NotFound; those that take data with fault.Invalid.
type Service struct {
	db        *store.DB
	store     Store
	authz     Authorizer
	journal   audit.Journal
	artifacts Artifacts
	maxFile   int64
	maxFiles  int
	now       func() time.Time
	cited     func(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error)

	defaults sync.Map // project.Name whose default experiment is known to exist
}

// New makes a service.
func New(cfg Config) *Service {
	s := &Service{
		db: cfg.DB, store: cfg.Store, authz: cfg.Authz, journal: cfg.Journal, artifacts: cfg.Artifacts,
		maxFile: cfg.MaxFile, maxFiles: cfg.MaxFiles, now: cfg.Now, cited: cfg.Cited,
	}
	if s.maxFile == 0 {
		s.maxFile = 64 << 30
	}
	if s.maxFiles == 0 {
		s.maxFiles = 20_000
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// experimentGrammar is what a search of experiments may ask.
var experimentGrammar = search.Grammar{
	Of: search.Experiments,
	Attributes: map[string]search.Column{
		"name":             {Name: "name", Filter: true, Sort: true},
		"experiment_id":    {Name: "experiment_id", List: true, Filter: true, Sort: true},
		"creation_time":    {Name: "creation_time", Numeric: true, Filter: true, Sort: true},
		"last_update_time": {Name: "last_update_time", Numeric: true, Filter: true, Sort: true},
	},
	Entities: []search.Entity{search.Tag},
	Nulls:    true,
}

// Search is a search as a client asks it.
type Search struct {
	Experiments []ExperimentID
	View        View
	Filter      string
	OrderBy     []string
	Datasets    []DatasetInput // logged models only: metrics on these data sets
	OrderOn     []DatasetInput // logged models only: of each clause of OrderBy, on which data set; may be empty
	Max         int            // results per page, at least 1
	Page        string         // token of an earlier answer
}

func (s Search) query(g search.Grammar, limit int) (Query, error) {
	q := Query{Experiments: s.Experiments, View: s.View, Datasets: s.Datasets, OrderOn: s.OrderOn}
	if q.View == "" {
		q.View = ViewActive
	}
	if s.Max < 1 {
		return q, fault.New(fault.Invalid, "Invalid value %d for parameter 'max_results' supplied. It must be a positive integer", s.Max)
	}
	if s.Max > limit {
		return q, fault.New(fault.Invalid, "Invalid value %d for parameter 'max_results' supplied. It must be at most %d", s.Max, limit)
	}
	var err error
	if q.Offset, err = search.Offset(s.Page); err != nil {
		return q, err
	}
	q.Limit = s.Max + 1 // one more says whether there is a next page
	if q.Where, err = g.Parse(s.Filter); err != nil {
		return q, err
	}
	q.Order, err = g.ParseOrder(s.OrderBy)
	return q, err
}

// page cuts the surplus row and makes the next token.
func page[T any](rows []T, s Search, q Query) ([]T, string) {
	if len(rows) <= s.Max {
		return rows, ""
	}
	return rows[:s.Max], search.Token(q.Offset + s.Max)
}

// CreateExperiment makes an experiment. Error: fault.Conflict when the name is
// taken, by a deleted one too.
func (s *Service) CreateExperiment(ctx context.Context, p project.Name, name string, tags []Pair) (Experiment, error) {
	if err := s.allow(ctx, ActionWrite, p, "experiment", name); err != nil {
		return Experiment{}, err
	}
	if err := checkExperimentName(name); err != nil {
		return Experiment{}, err
	}
	for _, t := range tags {
		if err := t.validate("", "", MaxExperimentTag); err != nil {
			return Experiment{}, err
		}
	}
	if err := s.ensureDefault(ctx, p); err != nil {
		return Experiment{}, err
	}
	e := Experiment{Project: p, Name: name, Stage: Active, Created: s.now(), Tags: tags}
	e.Updated = e.Created
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if err := s.nameFree(ctx, tx, p, name); err != nil {
			return err
		}
		var err error
		if e.ID, err = s.store.NextExperiment(ctx, tx, p); err != nil {
			return err
		}
		if err := s.store.PutExperiment(ctx, tx, e); err != nil {
			return err
		}
		if err := s.store.PutExperimentTags(ctx, tx, p, e.ID, tags); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, "experiment "+name, map[string]any{"act": "create"})
	})
	return e, err
}

// Experiment gives one experiment with its tags.
func (s *Service) Experiment(ctx context.Context, p project.Name, id ExperimentID) (Experiment, error) {
	if err := s.allow(ctx, ActionRead, p, "experiment", itoa(int(id))); err != nil {
		return Experiment{}, err
	}
	if id == 0 {
		if err := s.ensureDefault(ctx, p); err != nil {
			return Experiment{}, err
		}
	}
	var e Experiment
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		e, err = s.store.Experiment(ctx, tx, p, id)
		return err
	})
	return e, err
}

// ExperimentNamed gives an experiment by name, a deleted one too.
func (s *Service) ExperimentNamed(ctx context.Context, p project.Name, name string) (Experiment, error) {
	if err := s.allow(ctx, ActionRead, p, "experiment", name); err != nil {
		return Experiment{}, err
	}
	if err := s.ensureDefault(ctx, p); err != nil {
		return Experiment{}, err
	}
	var e Experiment
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		e, err = s.store.ExperimentNamed(ctx, tx, p, name)
		return err
	})
	return e, err
}

// SearchExperiments gives a page of experiments with tags and the token of the
// next page.
func (s *Service) SearchExperiments(ctx context.Context, p project.Name, in Search) ([]Experiment, string, error) {
	if err := s.allow(ctx, ActionRead, p, "experiment", ""); err != nil {
		return nil, "", err
	}
	q, err := in.query(experimentGrammar, MaxSearchResults)
	if err != nil {
		return nil, "", err
	}
	if err := s.ensureDefault(ctx, p); err != nil {
		return nil, "", err
	}
	var found []Experiment
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		found, err = s.store.SearchExperiments(ctx, tx, p, q)
		return err
	})
	found, next := page(found, in, q)
	return found, next, err
}

// RenameExperiment gives an active experiment another name.
func (s *Service) RenameExperiment(ctx context.Context, p project.Name, id ExperimentID, name string) error {
	if err := checkExperimentName(name); err != nil {
		return err
	}
	return s.changeExperiment(ctx, p, id, "rename", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if err := e.mustBeActive(); err != nil {
			return err
		}
		if e.Name != name {
			if err := s.nameFree(ctx, tx, p, name); err != nil {
				return err
			}
		}
		e.Name = name
		return nil
	})
}

// DeleteExperiment marks an active experiment and its runs deleted; they can be
// restored.
func (s *Service) DeleteExperiment(ctx context.Context, p project.Name, id ExperimentID) error {
	return s.changeExperiment(ctx, p, id, "delete", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if e.Stage != Active {
			return noExperiment(id)
		}
		e.Stage = Deleted
		return s.store.StageRuns(ctx, tx, p, id, Deleted, s.now())
	})
}

// RestoreExperiment undoes DeleteExperiment, for all of its runs, as MLflow does.
func (s *Service) RestoreExperiment(ctx context.Context, p project.Name, id ExperimentID) error {
	return s.changeExperiment(ctx, p, id, "restore", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if e.Stage != Deleted {
			return noExperiment(id)
		}
		e.Stage = Active
		return s.store.StageRuns(ctx, tx, p, id, Active, time.Time{})
	})
}

// noExperiment says that there is none in the stage that an act needs.
func noExperiment(id ExperimentID) error {
	return fault.New(fault.NotFound, "No Experiment with id=%d exists", id)
}

// SetExperimentTag sets a tag of an active experiment.
func (s *Service) SetExperimentTag(ctx context.Context, p project.Name, id ExperimentID, tag Pair) error {
	if err := checkKey("key", "key", tag.Key); err != nil {
		return err
	}
	if err := checkText("value", tag.Value, MaxExperimentTag); err != nil {
		return err
	}
	return s.changeExperiment(ctx, p, id, "tag", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if err := e.mustBeActive(); err != nil {
			return err
		}
		return s.store.PutExperimentTags(ctx, tx, p, id, []Pair{tag})
	})
}

// DeleteExperimentTag removes a tag.
func (s *Service) DeleteExperimentTag(ctx context.Context, p project.Name, id ExperimentID, key string) error {
	return s.changeExperiment(ctx, p, id, "untag", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if err := e.mustBeActive(); err != nil {
			return err
		}
		had, err := s.store.DeleteExperimentTag(ctx, tx, p, id, key)
		if err == nil && !had {
			err = fault.New(fault.NotFound, "No tag with name: %s in experiment with id %d", clip(key), id)
		}
		return err
	})
}

// DatasetSummaries lists the data sets that runs of the experiments name, at
// most 1,000.
func (s *Service) DatasetSummaries(ctx context.Context, p project.Name, experiments []ExperimentID) ([]DatasetSummary, error) {
	if err := s.allow(ctx, ActionRead, p, "run", ""); err != nil {
		return nil, err
	}
	if len(experiments) == 0 {
		return nil, fault.New(fault.Invalid, "SearchDatasets request must specify at least one experiment_id.")
	}
	if len(experiments) > MaxDatasetExperiments {
		return nil, fault.New(fault.Invalid, "SearchDatasets request cannot specify more than %d experiment_ids. Received %d experiment_ids.", MaxDatasetExperiments, len(experiments))
	}
	var out []DatasetSummary
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		out, err = s.store.DatasetSummaries(ctx, tx, p, experiments, 1000)
		return err
	})
	return out, err
}

func (s *Service) changeExperiment(ctx context.Context, p project.Name, id ExperimentID, act string, change func(context.Context, *store.Tx, *Experiment) error) error {
	if err := s.allow(ctx, ActionWrite, p, "experiment", itoa(int(id))); err != nil {
		return err
	}
	if err := ofAnother(ctx, "experiment "+itoa(int(id))); err != nil {
		return err
	}
	if id == 0 {
		if err := s.ensureDefault(ctx, p); err != nil {
			return err
		}
	}
	return s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		e, err := s.store.Experiment(ctx, tx, p, id)
		if err != nil {
			return err
		}
		if err := change(ctx, tx, &e); err != nil {
			return err
		}
		if act != "tag" && act != "untag" { // tags leave the time alone, as MLflow has it
			e.Updated = s.now()
		}
		if err := s.store.PutExperiment(ctx, tx, e); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, "experiment "+e.Name, map[string]any{"act": act, "id": int64(id)})
	})
}

func (e Experiment) mustBeActive() error {
	if e.Stage == Active {
		return nil
	}
	return fault.New(fault.Invalid, "The experiment %d must be in the 'active' state. Current state is %s.", e.ID, e.Stage)
}

func (s *Service) nameFree(ctx context.Context, tx *store.Tx, p project.Name, name string) error {
	other, err := s.store.ExperimentNamed(ctx, tx, p, name)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case other.Stage == Deleted:
		return fault.New(fault.Conflict, "Experiment(name=%s) already exists. It is in deleted state.", clip(name)).
			WithHint("Restore it, choose another name, or remove it permanently with falaj run prune.")
	}
	return fault.New(fault.Conflict, "Experiment(name=%s) already exists.", clip(name))
}

// ensureDefault makes experiment 0, which MLflow clients take for granted.
func (s *Service) ensureDefault(ctx context.Context, p project.Name) error {
	if _, ok := s.defaults.Load(p); ok {
		return nil
	}
	exists := false
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := s.store.Experiment(ctx, tx, p, 0)
		exists = err == nil
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if !exists {
		ctx := identity.With(ctx, identity.Loop("tracking"))
		err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			if _, err := s.store.Experiment(ctx, tx, p, 0); !fault.Is(err, fault.NotFound) {
				return err
			}
			e := Experiment{Project: p, Name: "Default", Stage: Active, Created: s.now()}
			e.Updated = e.Created
			if err := s.store.PutExperiment(ctx, tx, e); err != nil {
				return err
			}
			return s.audit(ctx, tx, p, "experiment Default", map[string]any{"act": "create"})
		})
		if err != nil {
			return fault.Wrap(err, "making the default experiment")
		}
	}
	s.defaults.Store(p, true)
	return nil
}

func checkExperimentName(name string) error {
	if name == "" {
		return fault.New(fault.Invalid, "Invalid experiment name: ''")
	}
	return checkText("name", name, MaxExperimentName)
}

// allow asks for a collection or an object whose label is not known yet.
func (s *Service) allow(ctx context.Context, action policy.Action, p project.Name, kind, name string) error {
	if p == "" {
		return fault.New(fault.PermissionDenied, "a project is required").
			WithHint("Use a token that is bound to one project.")
	}
	return s.authz.Allow(ctx, action, policy.Object{Project: string(p), Kind: kind, Name: clip(name)})
}

// allowLabelled asks for an object with a label, and holds a job attempt to
// what leaves its own label as it is.
func (s *Service) allowLabelled(ctx context.Context, action policy.Action, p project.Name, kind, name, owner string, o Origin) error {
	if err := s.authz.Allow(ctx, action, o.object(p, kind, name, owner)); err != nil {
		return err
	}
	who := identity.From(ctx)
	if who.Kind != identity.Attempt || who.ID == o.Attempt {
		return nil
	}
	if action == ActionWrite {
		return fault.New(fault.PermissionDenied, "%s may not write %s %s, which another producer made", who, kind, name).
			WithHint("Log into the run of MLFLOW_RUN_ID, or into runs created by this attempt.")
	}
	return s.Admit(ctx, p, kind+" "+name, o.Residency, o.Classification)
}

// Admit refuses a read that would narrow the label of what the reading job
// attempt makes: its outputs carry the zones and classification it was started
// with. Other principals pass.
func (s *Service) Admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil
	}
	own, err := s.OriginOf(ctx, p)
	if err != nil {
		return err
	}
	for _, z := range own.Residency.Zones() {
		if !label.Allows(z) {
			return fault.New(fault.PermissionDenied, "%s has the residency %s, and the outputs of %s have %s", what, label, who, own.Residency).
				WithHint("Declare it as an input of the job, so that its outputs inherit the label.")
		}
	}
	if classifications[classification] > classifications[own.Classification] {
		return fault.New(fault.PermissionDenied, "%s is %s, and the outputs of %s have a lower classification", what, classification, who).
			WithHint("Declare it as an input of the job, so that its outputs inherit the classification.")
	}
	return nil
}

// OriginOf is what the context's principal passes on to what it makes: for a
// job attempt the origin of its run, for others the zero Origin.
func (s *Service) OriginOf(ctx context.Context, p project.Name) (Origin, error) {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return Origin{}, nil
	}
	var r Run
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		r, err = s.store.RunOfAttempt(ctx, tx, p, who.ID)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return Origin{}, fault.New(fault.PermissionDenied, "%s has no run whose label its outputs could inherit", who)
	}
	return r.Origin, err
}

// noteRead puts a read of something classified into the journal before the
// answer leaves.
func (s *Service) noteRead(ctx context.Context, p project.Name, object, classification string) error {
	if !classified(classification) || s.journal == nil {
		return nil
	}
	return s.journal.Record(ctx, audit.Entry{Project: string(p), Action: string(ActionRead), Object: object})
}

func (s *Service) audit(ctx context.Context, tx *store.Tx, p project.Name, object string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionWrite), Object: object, Detail: detail})
}

func publish(ctx context.Context, tx *store.Tx, p project.Name, name string, body any) error {
	return event.Publish(ctx, tx, string(p), name, body)
}

func itoa(n int) string { return strconv.Itoa(n) }

// Holders lists the runs and logged models of a project that have files. It asks no permission.
func (s *Service) Holders(ctx context.Context, tx *store.Tx, p project.Name) ([]Holder, error) {
	return s.store.Holders(ctx, tx, p)
}

// AnyRun reports whether a project has a run, active or deleted. It asks no permission.
func (s *Service) AnyRun(ctx context.Context, tx *store.Tx, p project.Name) (bool, error) {
	all, err := s.store.SearchExperiments(ctx, tx, p, Query{View: ViewAll, Limit: 1000})
	if err != nil || len(all) == 0 {
		return false, err
	}
	q := Query{View: ViewAll, Limit: 1}
	for _, e := range all {
		q.Experiments = append(q.Experiments, e.ID)
	}
	runs, err := s.store.SearchRuns(ctx, tx, p, q)
	return len(runs) > 0, err
}
