package tracking

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// Experiments creates, changes, finds and lists experiments. Its callers are MLflow's protocol, the
// HTTP API, jobs and the search over all kinds of objects.
type Experiments struct{ *core }

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

// CreateExperiment makes an experiment. Error: fault.Conflict when the name is
// taken, by a deleted one too.
func (s *Experiments) CreateExperiment(ctx context.Context, p project.Name, name string, tags []Pair) (Experiment, error) {
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
func (s *Experiments) Experiment(ctx context.Context, p project.Name, id ExperimentID) (Experiment, error) {
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
func (s *Experiments) ExperimentNamed(ctx context.Context, p project.Name, name string) (Experiment, error) {
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
func (s *Experiments) SearchExperiments(ctx context.Context, p project.Name, in Search) ([]Experiment, string, error) {
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
func (s *Experiments) RenameExperiment(ctx context.Context, p project.Name, id ExperimentID, name string) error {
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
func (s *Experiments) DeleteExperiment(ctx context.Context, p project.Name, id ExperimentID) error {
	return s.changeExperiment(ctx, p, id, "delete", func(ctx context.Context, tx *store.Tx, e *Experiment) error {
		if e.Stage != Active {
			return noExperiment(id)
		}
		e.Stage = Deleted
		return s.store.StageRuns(ctx, tx, p, id, Deleted, s.now())
	})
}

// RestoreExperiment undoes DeleteExperiment, for all of its runs, as MLflow does.
func (s *Experiments) RestoreExperiment(ctx context.Context, p project.Name, id ExperimentID) error {
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
func (s *Experiments) SetExperimentTag(ctx context.Context, p project.Name, id ExperimentID, tag Pair) error {
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
func (s *Experiments) DeleteExperimentTag(ctx context.Context, p project.Name, id ExperimentID, key string) error {
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
func (s *Experiments) DatasetSummaries(ctx context.Context, p project.Name, experiments []ExperimentID) ([]DatasetSummary, error) {
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

func (s *Experiments) changeExperiment(ctx context.Context, p project.Name, id ExperimentID, act string, change func(context.Context, *store.Tx, *Experiment) error) error {
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

func (s *Experiments) nameFree(ctx context.Context, tx *store.Tx, p project.Name, name string) error {
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

func checkExperimentName(name string) error {
	if name == "" {
		return fault.New(fault.Invalid, "Invalid experiment name: ''")
	}
	return checkText("name", name, MaxExperimentName)
}
