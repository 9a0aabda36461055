package tracking

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Batch is what is logged in one transaction: all of it or nothing.
type Batch struct {
	Metrics []Metric
	Params  []Pair
	Tags    []Pair
	// One says that a request named this one thing and no list, as messages do.
	One bool
}

func (b Batch) validate() error {
	if err := b.validateItems(); err != nil {
		return err
	}
	for _, l := range []struct {
		what    string
		n, most int
	}{
		{"metrics", len(b.Metrics), MaxBatchMetrics},
		{"params", len(b.Params), MaxBatchParams},
		{"tags", len(b.Tags), MaxBatchTags},
		{"metrics, params, and tags", len(b.Metrics) + len(b.Params) + len(b.Tags), MaxBatchItems},
	} {
		if l.n > l.most {
			return fault.New(fault.Invalid, "A batch logging request can contain at most %d %s. Got %d %s. Please split up %s across multiple requests and try again.", l.most, l.what, l.n, l.what, l.what)
		}
	}
	seen := map[string]bool{}
	var twice []string
	for _, p := range b.Params {
		if seen[p.Key] {
			twice = append(twice, "'"+clip(p.Key)+"'")
		}
		seen[p.Key] = true
	}
	if len(twice) > 0 {
		return fault.New(fault.Invalid, "Duplicate parameter keys have been submitted: [%s]. Please ensure the request contains only one param value per param key.", clip(strings.Join(twice, ", ")))
	}
	return nil
}

// validateItems refuses what may not be logged, in MLflow's order: metrics,
// params, tags, and of each its parts.
func (b Batch) validateItems() error {
	where := func(list string, i int) string {
		if b.One {
			return ""
		}
		return list + "[" + itoa(i) + "]."
	}
	for i, m := range b.Metrics {
		if err := m.validate(where("metrics", i)); err != nil {
			return err
		}
	}
	for i, p := range b.Params {
		if err := p.validate(where("params", i), "Param ", MaxParamValue); err != nil {
			return err
		}
	}
	for i, t := range b.Tags {
		if err := t.validate(where("tags", i), where("tags", i), MaxTagValue); err != nil {
			return err
		}
	}
	return nil
}

// Logging logs into runs: metrics, params, tags, inputs and outputs. Its callers are MLflow's
// protocol, jobs and imports.
type Logging struct{ *core }

// Log logs a batch into an active run. A value that is too long is cut; its end and the audit
// log say so. A parameter that was logged with another
// value is fault.Invalid, and nothing of the batch is kept.
func (s *Logging) Log(ctx context.Context, p project.Name, run RunID, b Batch) error {
	known, err := s.run(ctx, p, run, ActionWrite)
	if err != nil {
		return err
	}
	whole, err := s.shows(ctx, p, "run", string(run), known.Owner, known.Origin)
	if err != nil {
		return err
	}
	var cutParams, cutTags []string
	b.Params, cutParams = cutPairs(b.Params, MaxParamValue)
	b.Tags, cutTags = cutPairs(b.Tags, MaxTagValue)
	if err := b.validate(); err != nil {
		return err
	}
	if err := mayTag(ctx, b.Tags); err != nil {
		return err
	}
	if len(b.Metrics)+len(b.Params)+len(b.Tags) == 0 {
		return known.mustBeActive()
	}
	params, tags := latestPairs(b.Params), latestPairs(b.Tags)
	metrics := slices.Clone(b.Metrics)
	for i := range metrics {
		metrics[i].Value += 0 // no minus zero: PostgreSQL would read it back as zero
	}
	return s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		r, err := s.store.Run(ctx, tx, p, run)
		if err != nil {
			return err
		}
		if err := r.mustBeActive(); err != nil {
			return err
		}
		r.Withheld = !whole
		if err := s.logParams(ctx, tx, r, params, b.One); err != nil {
			return err
		}
		if err := s.logMetrics(ctx, tx, r, metrics); err != nil {
			return err
		}
		if len(tags) > 0 {
			if err := s.store.PutTags(ctx, tx, r, tags); err != nil {
				return err
			}
			for _, t := range tags {
				if t.Key == tagRunName && t.Value != "" {
					r.Name = t.Value
					if err := s.store.PutRun(ctx, tx, r); err != nil {
						return err
					}
				}
			}
		}
		detail := map[string]any{"act": "log", "metrics": len(b.Metrics), "params": len(params), "tags": len(tags)}
		noteCut(detail, cutParams, cutTags)
		return s.audit(ctx, tx, p, "run "+string(run), detail)
	})
}

func (s *Logging) logParams(ctx context.Context, tx *store.Tx, r Run, params []Pair, one bool) error {
	run := r.ID
	if len(params) == 0 {
		return nil
	}
	keys := make([]string, len(params))
	for i, p := range params {
		keys[i] = p.Key
	}
	existing, err := s.store.Params(ctx, tx, run, keys)
	if err != nil {
		return err
	}
	have := make(map[string]LoggedParam, len(existing))
	for _, p := range existing {
		have[p.Key] = p
	}
	var fresh, anew, before []Pair
	var changed []string
	for _, p := range params {
		known, ok := have[p.Key]
		old := known.Value
		if ok && r.Withheld {
			return fault.New(fault.PermissionDenied, "param %s of run %s was already logged, and reading its value requires permission to read the run's data", clip(p.Key), run)
		}
		switch {
		case !ok:
			fresh = append(fresh, p)
		case known.Attempt < r.AttemptNumber && ofAttempt(ctx, r):
			// An earlier attempt logged it: this one may give it another value, such as the
			// directory of its checkpoints. From then on the param is its own.
			anew = append(anew, p)
			if old != p.Value {
				before = append(before, Pair{Key: earlierTag(known), Value: old})
			}
		case old != p.Value && one:
			return fault.New(fault.Invalid, "Changing param values is not allowed. Param with key='%s' was already logged with value='%s' for run ID='%s'. Attempted logging new value '%s'.", p.Key, clip(old), run, clip(p.Value))
		case old != p.Value:
			changed = append(changed, "{'key': '"+p.Key+"', 'old_value': '"+clip(old)+"', 'new_value': '"+clip(p.Value)+"'}")
		}
	}
	if len(changed) > 0 {
		return fault.New(fault.Invalid, "Changing param values is not allowed. Params were already logged='[%s]' for run ID='%s'.", strings.Join(changed[:min(len(changed), 5)], ", "), run)
	}
	if len(before) > 0 {
		if err := s.store.PutTags(ctx, tx, r, before); err != nil {
			return err
		}
	}
	if len(anew) > 0 {
		if err := s.store.PutParams(ctx, tx, r, anew); err != nil {
			return err
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.store.InsertParams(ctx, tx, r, fresh)
}

// ofAttempt reports whether the principal is the attempt that a run belongs to, or Falaj.
func ofAttempt(ctx context.Context, r Run) bool {
	who := identity.From(ctx)
	return r.Attempt != "" && (who.Kind == identity.System || who.Kind == identity.Attempt && who.ID == r.Attempt)
}

// earlierTag is the tag that keeps the value of a param that a later attempt changed. A key
// that would make it too long is cut, and its digest tells it from others.
func earlierTag(p LoggedParam) string {
	tag := attemptTags + itoa(max(p.Attempt, 1)) + ".param." + p.Key
	if utf8.RuneCountInString(tag) <= MaxKey {
		return tag
	}
	end := fmt.Sprintf(".%x", sha256.Sum256([]byte(p.Key)))[:17]
	return string([]rune(tag)[:MaxKey-len(end)]) + end
}

func (s *Logging) logMetrics(ctx context.Context, tx *store.Tx, r Run, metrics []Metric) error {
	run := r.ID
	if len(metrics) == 0 {
		return nil
	}
	if err := s.store.InsertMetrics(ctx, tx, run, metrics); err != nil {
		return err
	}
	newest := make(map[string]Metric)
	var ofModels []Metric
	for _, m := range metrics {
		if old, ok := newest[m.Key]; !ok || laterThan(m, old) {
			newest[m.Key] = m
		}
		if m.Model != "" {
			ofModels = append(ofModels, m)
		}
	}
	latest := make([]Metric, 0, len(newest))
	for _, k := range slices.Sorted(maps.Keys(newest)) {
		latest = append(latest, newest[k])
	}
	if err := s.store.PutLatestMetrics(ctx, tx, r, latest); err != nil {
		return err
	}
	checked := map[LoggedModelID]bool{}
	for _, m := range ofModels {
		if checked[m.Model] {
			continue
		}
		if _, err := s.store.LoggedModel(ctx, tx, r.Project, m.Model); err != nil {
			return err
		}
		checked[m.Model] = true
	}
	if len(ofModels) == 0 {
		return nil
	}
	return s.store.PutModelMetrics(ctx, tx, run, ofModels)
}

// laterThan says whether a replaces b, of the same attempt, as the latest of a key: by step,
// then time, then value; NaN counts as 0, as MLflow keeps it.
func laterThan(a, b Metric) bool {
	if c := cmp.Compare(a.Step, b.Step); c != 0 {
		return c > 0
	}
	if c := cmp.Compare(a.At, b.At); c != 0 {
		return c > 0
	}
	number := func(x float64) float64 {
		if math.IsNaN(x) {
			return 0
		}
		return x
	}
	return number(a.Value) > number(b.Value)
}

// DeleteTag removes a tag of an active run.
func (s *Logging) DeleteTag(ctx context.Context, p project.Name, run RunID, key string) error {
	if err := mayTag(ctx, []Pair{{Key: key}}); err != nil {
		return err
	}
	_, err := s.changeRun(ctx, p, run, "untag", func(ctx context.Context, tx *store.Tx, r *Run) error {
		if err := r.mustBeActive(); err != nil {
			return err
		}
		had, err := s.store.DeleteTag(ctx, tx, run, key)
		if err == nil && !had {
			err = fault.New(fault.NotFound, "No tag with name: %s in run with id %s", clip(key), run)
		}
		return err
	})
	return err
}

// LogInputs records the data sets and logged models that a run says it read.
func (s *Logging) LogInputs(ctx context.Context, p project.Name, run RunID, datasets []DatasetInput, models []LoggedModelID) error {
	if len(datasets) > MaxBatchInputs || len(models) > MaxBatchInputs {
		return fault.New(fault.Invalid, "A request can name at most %d datasets and as many models.", MaxBatchInputs)
	}
	for i, d := range datasets {
		if err := d.validate("datasets[" + itoa(i) + "]"); err != nil {
			return err
		}
	}
	links := make([]ModelLink, len(models))
	for i, m := range models {
		links[i] = ModelLink{Model: m}
	}
	return s.link(ctx, p, run, "log_inputs", datasets, links)
}

// LogOutputs records the logged models that a run made.
func (s *Logging) LogOutputs(ctx context.Context, p project.Name, run RunID, links []ModelLink) error {
	if len(links) > MaxBatchInputs {
		return fault.New(fault.Invalid, "A request can name at most %d models.", MaxBatchInputs)
	}
	for i := range links {
		links[i].Output = true
	}
	return s.link(ctx, p, run, "log_outputs", nil, links)
}

func (s *Logging) link(ctx context.Context, p project.Name, run RunID, act string, datasets []DatasetInput, links []ModelLink) error {
	for _, l := range links {
		if err := CheckModelID(l.Model); err != nil {
			return err
		}
	}
	_, err := s.changeRun(ctx, p, run, act, func(ctx context.Context, tx *store.Tx, r *Run) error {
		if err := r.mustBeActive(); err != nil {
			return err
		}
		for _, l := range links {
			if _, err := s.store.LoggedModel(ctx, tx, p, l.Model); err != nil {
				return err
			}
		}
		if len(datasets) > 0 {
			if err := s.store.PutInputs(ctx, tx, *r, datasets); err != nil {
				return err
			}
		}
		if len(links) > 0 {
			return s.store.PutModelLinks(ctx, tx, run, links)
		}
		return nil
	})
	return err
}

// tagModels is where old MLflow clients list the models of a run.
const tagModels = "mlflow.log-model.history"

// maxModels bounds that list.
const maxModels = 1 << 20

// RecordModel appends the description of a model, as old MLflow clients give it,
// to the run's list of models.
func (s *Logging) RecordModel(ctx context.Context, p project.Name, run RunID, modelJSON string) error {
	var description map[string]any
	if err := json.Unmarshal([]byte(modelJSON), &description); err != nil {
		return fault.New(fault.Invalid, "Malformed model info. \n %s \n is not a valid JSON.", clip(modelJSON))
	}
	for _, field := range []string{"artifact_path", "flavors", "utc_time_created", "run_id"} {
		if _, ok := description[field]; !ok {
			return fault.New(fault.Invalid, "Model json is missing mandatory fields: {'%s'}", field)
		}
	}
	_, err := s.changeRun(ctx, p, run, "record_model", func(ctx context.Context, tx *store.Tx, r *Run) error {
		if err := r.mustBeActive(); err != nil {
			return err
		}
		rows := []Run{*r}
		if err := s.store.FillRuns(ctx, tx, rows); err != nil {
			return err
		}
		var models []json.RawMessage
		for _, t := range rows[0].Tags {
			if t.Key == tagModels {
				_ = json.Unmarshal([]byte(t.Value), &models) // a list that a client broke begins anew
			}
		}
		b, err := json.Marshal(append(models, json.RawMessage(modelJSON)))
		if err != nil {
			return err
		}
		if len(b) > maxModels {
			return fault.New(fault.TooLarge, "the list of models of run %s has more than %d bytes", run, maxModels)
		}
		return s.store.PutTags(ctx, tx, *r, []Pair{{tagModels, string(b)}})
	})
	return err
}
