package tracking

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// modelGrammar is what a search of logged models may ask.
var modelGrammar = search.Grammar{
	Of: search.LoggedModels,
	Attributes: map[string]search.Column{
		"name":                   {Name: "name", List: true, Filter: true, Sort: true},
		"model_id":               {Name: "model_id", List: true, Filter: true, Sort: true},
		"model_type":             {Name: "model_type", List: true, Filter: true, Sort: true},
		"status":                 {Name: "status", List: true, Filter: true, Sort: true},
		"source_run_id":          {Name: "source_run_id", List: true, Filter: true, Sort: true},
		"experiment_id":          {Name: "experiment_id", List: true, Filter: true, Sort: true},
		"creation_timestamp":     {Name: "creation_timestamp", Numeric: true, Filter: true, Sort: true},
		"creation_time":          {Name: "creation_timestamp", Numeric: true, Filter: true, Sort: true},
		"last_updated_timestamp": {Name: "last_updated_timestamp", Numeric: true, Filter: true, Sort: true},
		"last_updated_time":      {Name: "last_updated_timestamp", Numeric: true, Filter: true, Sort: true},
	},
	Entities: []search.Entity{search.Metric, search.Param, search.Tag},
	Nulls:    true,
}

// LoggedModelSpec describes a logged model to create.
type LoggedModelSpec struct {
	Experiment ExperimentID
	Name       string // empty: one is made up
	Type       string
	Run        RunID // that makes it; may be empty
	Params     []Pair
	Tags       []Pair
}

// LoggedModels creates, changes, finds and reads logged models. Its callers are MLflow's protocol,
// jobs and the registry.
type LoggedModels struct{ *core }

// CreateLoggedModel makes a logged model, pending until it is finalised. It
// inherits the origin of its run.
func (s *LoggedModels) CreateLoggedModel(ctx context.Context, p project.Name, spec LoggedModelSpec) (LoggedModel, error) {
	if err := s.allow(ctx, ActionWrite, p, "logged_model", ""); err != nil {
		return LoggedModel{}, err
	}
	if spec.Name == "" {
		spec.Name = madeUpName()
	}
	if err := checkLoggedModelName(spec.Name); err != nil {
		return LoggedModel{}, err
	}
	if err := checkText("model_type", spec.Type, MaxLoggedModelName); err != nil {
		return LoggedModel{}, err
	}
	var cutParams, cutTags []string
	spec.Params, cutParams = cutPairs(spec.Params, MaxLoggedModelParam)
	spec.Tags, cutTags = cutPairs(spec.Tags, MaxTagValue)
	if err := checkModelPairs(spec.Params, spec.Tags); err != nil {
		return LoggedModel{}, err
	}
	origin, err := s.origin(ctx, p, Origin{})
	if err != nil {
		return LoggedModel{}, err
	}
	if spec.Run != "" {
		r, err := s.run(ctx, p, spec.Run, ActionWrite)
		if err != nil {
			return LoggedModel{}, err
		}
		origin = r.Origin
	}
	if spec.Experiment == 0 {
		if err := s.ensureDefault(ctx, p); err != nil {
			return LoggedModel{}, err
		}
	}
	m := LoggedModel{
		Project: p, ID: LoggedModelID(id.New("m")), Experiment: spec.Experiment, Name: spec.Name, Type: spec.Type,
		Run: spec.Run, Status: ModelPending, Stage: Active, Owner: identity.From(ctx).Owner(), Created: s.now(),
		Origin: origin, Params: latestPairs(spec.Params), Tags: latestPairs(spec.Tags),
	}
	m.Updated = m.Created
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		e, err := s.store.Experiment(ctx, tx, p, spec.Experiment)
		if err != nil {
			return err
		}
		if err := e.mustBeActive(); err != nil {
			return err
		}
		if err := s.store.PutLoggedModel(ctx, tx, m); err != nil {
			return err
		}
		if err := s.putModelPairs(ctx, tx, m.ID, m.Params, m.Tags); err != nil {
			return err
		}
		detail := map[string]any{"act": "create", "name": m.Name, "residency": m.Residency.String()}
		noteCut(detail, cutParams, cutTags)
		return s.audit(ctx, tx, p, "logged model "+string(m.ID), detail)
	})
	return m, err
}

// LoggedModel gives a logged model with its data.
func (s *LoggedModels) LoggedModel(ctx context.Context, p project.Name, model LoggedModelID) (LoggedModel, error) {
	m, err := s.loggedModel(ctx, p, model, ActionRead)
	if err != nil {
		return LoggedModel{}, err
	}
	rows := []LoggedModel{m}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error { return s.store.FillLoggedModels(ctx, tx, rows) })
	if err != nil {
		return LoggedModel{}, err
	}
	whole, err := s.shows(ctx, p, "logged_model", string(model), m.Owner, m.Origin)
	if err != nil {
		return LoggedModel{}, err
	}
	if !whole {
		rows[0].withhold()
		return rows[0], nil
	}
	return rows[0], s.noteRead(ctx, p, "logged model "+string(model), m.Classification)
}

// FinalizeLoggedModel says that a logged model is complete or has failed.
func (s *LoggedModels) FinalizeLoggedModel(ctx context.Context, p project.Name, model LoggedModelID, status ModelStatus) (LoggedModel, error) {
	if status != ModelReady && status != ModelFailed {
		return LoggedModel{}, fault.New(fault.Invalid, "Invalid model status: '%s'. Expected statuses are LOGGED_MODEL_READY and LOGGED_MODEL_UPLOAD_FAILED.", clip(string(status)))
	}
	return s.changeModel(ctx, p, model, "finalize", nil, func(ctx context.Context, tx *store.Tx, m *LoggedModel) error {
		m.Status = status
		if status == ModelReady {
			return publish(ctx, tx, p, EventLoggedModelReady, LoggedModelEvent{Model: m.ID, Run: m.Run})
		}
		return nil
	})
}

// DeleteLoggedModel marks a logged model deleted. One that is already is no error, as
// in MLflow: clients repeat what they had no answer to.
func (s *LoggedModels) DeleteLoggedModel(ctx context.Context, p project.Name, model LoggedModelID) error {
	_, err := s.changeModel(ctx, p, model, "delete", nil, func(ctx context.Context, tx *store.Tx, m *LoggedModel) error {
		m.Stage = Deleted
		return publish(ctx, tx, p, EventLoggedModelDeleted, LoggedModelEvent{Model: m.ID, Run: m.Run})
	})
	if !fault.Is(err, fault.NotFound) || CheckModelID(model) != nil {
		return err
	}
	var m LoggedModel
	if missing := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (e error) {
		m, e = s.store.LoggedModel(ctx, tx, p, model)
		return e
	}); missing != nil {
		return err
	}
	return s.allowLabelled(ctx, ActionWrite, p, "logged_model", string(model), m.Owner, m.Origin)
}

// SetLoggedModelTags sets tags and gives the model with its data.
func (s *LoggedModels) SetLoggedModelTags(ctx context.Context, p project.Name, model LoggedModelID, tags []Pair) (LoggedModel, error) {
	tags, cut := cutPairs(tags, MaxTagValue)
	if err := checkModelPairs(nil, tags); err != nil {
		return LoggedModel{}, err
	}
	return s.changeModel(ctx, p, model, "tag", cut, func(ctx context.Context, tx *store.Tx, m *LoggedModel) error {
		return s.putModelPairs(ctx, tx, m.ID, nil, latestPairs(tags))
	})
}

// tagVersions is where MLflow's clients look for the versions that a logged model became.
const tagVersions = "mlflow.modelVersions"

// NoteVersion adds a version of a registered model to those that a logged model became.
func (s *LoggedModels) NoteVersion(ctx context.Context, p project.Name, model LoggedModelID, name string, number int) error {
	_, err := s.changeModel(ctx, p, model, "note_version", nil, func(ctx context.Context, tx *store.Tx, m *LoggedModel) error {
		known := []LoggedModel{*m}
		if err := s.store.FillLoggedModels(ctx, tx, known); err != nil {
			return err
		}
		type version struct {
			Name    string `json:"name"`
			Version int    `json:"version"`
		}
		var versions []version
		for _, t := range known[0].Tags {
			if t.Key == tagVersions {
				_ = json.Unmarshal([]byte(t.Value), &versions) // a list that a client broke begins anew
			}
		}
		if v := (version{name, number}); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		for ; ; versions = versions[1:] { // the oldest make room
			parts := make([]string, len(versions))
			for i, v := range versions {
				text, err := json.Marshal(v.Name)
				if err != nil {
					return err
				}
				parts[i] = `{"name": ` + string(text) + `, "version": ` + itoa(v.Version) + "}" // as Python writes it
			}
			if list := "[" + strings.Join(parts, ", ") + "]"; utf8.RuneCountInString(list) <= MaxTagValue {
				return s.store.PutLoggedModelTags(ctx, tx, m.ID, []Pair{{tagVersions, list}})
			}
		}
	})
	return err
}

// DeleteLoggedModelTag removes a tag.
func (s *LoggedModels) DeleteLoggedModelTag(ctx context.Context, p project.Name, model LoggedModelID, key string) error {
	_, err := s.changeModel(ctx, p, model, "untag", nil, func(ctx context.Context, tx *store.Tx, _ *LoggedModel) error {
		had, err := s.store.DeleteLoggedModelTag(ctx, tx, model, key)
		if err == nil && !had {
			err = fault.New(fault.NotFound, "No tag with key '%s' found for model with ID '%s'.", clip(key), model)
		}
		return err
	})
	return err
}

// LogLoggedModelParams adds params to a logged model. One that is there with another value is
// fault.Invalid, and nothing is kept.
func (s *LoggedModels) LogLoggedModelParams(ctx context.Context, p project.Name, model LoggedModelID, params []Pair) error {
	params, cut := cutPairs(latestPairs(params), MaxLoggedModelParam)
	if err := checkModelPairs(params, nil); err != nil {
		return err
	}
	_, err := s.changeModel(ctx, p, model, "params", cut, func(ctx context.Context, tx *store.Tx, m *LoggedModel) error {
		known := []LoggedModel{*m}
		if err := s.store.FillLoggedModels(ctx, tx, known); err != nil {
			return err
		}
		for _, had := range known[0].Params {
			if i := slices.IndexFunc(params, func(p Pair) bool { return p.Key == had.Key }); i >= 0 && params[i].Value != had.Value {
				return fault.New(fault.Invalid, "Changing param values is not allowed. Param with key='%s' was already logged for model ID='%s'.", clip(had.Key), model).
					WithHint("Log it under another key, or create another logged model.")
			}
		}
		return s.putModelPairs(ctx, tx, m.ID, params, nil)
	})
	return err
}

// SearchLoggedModels gives a page of active logged models with their data,
// newest first unless ordered otherwise, and the token of the next page.
func (s *LoggedModels) SearchLoggedModels(ctx context.Context, p project.Name, in Search) ([]LoggedModel, string, error) {
	if err := s.allow(ctx, ActionRead, p, "logged_model", ""); err != nil {
		return nil, "", err
	}
	q, err := in.query(modelGrammar, MaxSearchResults)
	if err != nil {
		return nil, "", err
	}
	if len(in.Experiments) == 0 {
		return nil, "", fault.New(fault.Invalid, "At least one experiment ID has to be specified for searching logged models.")
	}
	var found []LoggedModel
	next := ""
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err = s.store.SearchLoggedModels(ctx, tx, p, q)
		if err != nil {
			return err
		}
		found, next = page(found, in, q)
		return s.store.FillLoggedModels(ctx, tx, found)
	})
	if err != nil {
		return nil, "", err
	}
	origins, names := make([]Origin, len(found)), make([]string, len(found))
	for i, m := range found {
		origins[i], names[i] = m.Origin, string(m.ID)
	}
	kept, err := s.listed(ctx, ActionRead, p, "logged_model", origins)
	if err != nil {
		return nil, "", err
	}
	whole, err := s.seen(ctx, p, "logged_model", origins, names)
	if err != nil {
		return nil, "", err
	}
	out := found[:0]
	worst := ""
	for i, m := range found {
		if !kept[i] || !whole[i] && q.looksInto() {
			continue
		}
		if !whole[i] {
			m.withhold()
			out = append(out, m)
			continue
		}
		out = append(out, m)
		if classifications[m.Classification] > classifications[worst] {
			worst = m.Classification
		}
	}
	return out, next, s.noteRead(ctx, p, "logged models in search results", worst)
}

// changeModel changes an active model; cut are the keys whose values were too long.
func (s *LoggedModels) changeModel(ctx context.Context, p project.Name, model LoggedModelID, act string, cut []string, change func(context.Context, *store.Tx, *LoggedModel) error) (LoggedModel, error) {
	if _, err := s.loggedModel(ctx, p, model, ActionWrite); err != nil {
		return LoggedModel{}, err
	}
	var m LoggedModel
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if m, err = s.activeModel(ctx, tx, p, model); err != nil {
			return err
		}
		if err := change(ctx, tx, &m); err != nil {
			return err
		}
		m.Updated = s.now()
		if err := s.store.PutLoggedModel(ctx, tx, m); err != nil {
			return err
		}
		rows := []LoggedModel{m}
		if err := s.store.FillLoggedModels(ctx, tx, rows); err != nil {
			return err
		}
		m = rows[0]
		detail := map[string]any{"act": act, "status": string(m.Status)}
		noteCut(detail, cut)
		return s.audit(ctx, tx, p, "logged model "+string(model), detail)
	})
	if err != nil {
		return m, err
	}
	whole, err := s.shows(ctx, p, "logged_model", string(model), m.Owner, m.Origin)
	if err == nil && !whole {
		m.withhold()
	}
	return m, err
}

func (s *core) loggedModel(ctx context.Context, p project.Name, model LoggedModelID, action policy.Action) (LoggedModel, error) {
	if err := s.allow(ctx, action, p, "logged_model", string(model)); err != nil {
		return LoggedModel{}, err
	}
	if CheckModelID(model) != nil {
		return LoggedModel{}, fault.New(fault.NotFound, "Logged model with ID '%s' not found.", clip(string(model)))
	}
	var m LoggedModel
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		m, err = s.activeModel(ctx, tx, p, model)
		return err
	})
	if err != nil {
		return LoggedModel{}, err
	}
	return m, s.allowLabelled(ctx, action, p, "logged_model", string(model), m.Owner, m.Origin)
}

func (s *core) activeModel(ctx context.Context, tx *store.Tx, p project.Name, model LoggedModelID) (LoggedModel, error) {
	m, err := s.store.LoggedModel(ctx, tx, p, model)
	if err == nil && m.Stage != Active {
		err = fault.New(fault.NotFound, "Logged model with ID '%s' not found.", model)
	}
	return m, err
}

func (s *LoggedModels) putModelPairs(ctx context.Context, tx *store.Tx, model LoggedModelID, params, tags []Pair) error {
	if len(params) > 0 {
		if err := s.store.PutLoggedModelParams(ctx, tx, model, params); err != nil {
			return err
		}
	}
	if len(tags) > 0 {
		return s.store.PutLoggedModelTags(ctx, tx, model, tags)
	}
	return nil
}

func checkModelPairs(params, tags []Pair) error {
	if len(params) > MaxBatchItems || len(tags) > MaxBatchItems {
		return fault.New(fault.Invalid, "A request can contain at most %d params and as many tags.", MaxBatchItems)
	}
	if err := checkPairs("params", params, MaxLoggedModelParam); err != nil {
		return err
	}
	return checkPairs("tags", tags, MaxTagValue)
}

// notInLoggedModelNames are the characters that MLflow refuses there.
const notInLoggedModelNames = `/:.%"'`

// checkLoggedModelName follows MLflow: names stand in URIs.
func checkLoggedModelName(name string) error {
	for _, r := range name {
		if strings.ContainsRune(notInLoggedModelNames, r) {
			return fault.New(fault.Invalid, "Invalid model name ('%s') provided. Model name must be a non-empty string and cannot contain the following characters: ('/', ':', '.', '%%', '\"', \"'\")", clip(name))
		}
	}
	return checkText("name", name, MaxLoggedModelName)
}
