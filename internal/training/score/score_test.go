package score

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training"
)

func TestJob(t *testing.T) {
	by := Target{Model: "delay_2", Version: 3, Threads: 2, Columns: map[string][]string{"x": {"temp", "dist"}}}
	name, spec, err := Request{Dataset: "flights@4", Into: "scored", Keep: []string{"flight"}, Prefix: "p_"}.Job("delay_2", by)
	if err != nil {
		t.Fatal(err)
	}
	var got told
	if err := json.Unmarshal([]byte(spec.Command[0]), &got); err != nil {
		t.Fatal(err)
	}
	if name != "predict-delay-2" || !maps.Equal(spec.Data, map[string]string{"model": "models:/delay_2/3", "rows": "flights@4"}) || spec.Into != "scored" || spec.Register != "" ||
		spec.Script != script || spec.Environment != Environment || spec.Resources.CPU.String() != "2" {
		t.Errorf("%s %+v", name, spec)
	}
	if got.Batch != 4096 || got.Nulls != Refuse || got.Threads != 2 || got.Prefix != "p_" || !slices.Equal(got.Keep, []string{"flight"}) || !slices.Equal(got.Columns["x"], by.Columns["x"]) {
		t.Errorf("%+v", got)
	}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}

// What the caller says of an input is what it is, and not what the deployment does.
func TestColumns(t *testing.T) {
	by := Target{Model: "delay", Version: 1, Columns: map[string][]string{"x": {"temp"}}}
	for name, c := range map[string]struct {
		asked map[string][]string
		input string
		want  string
	}{
		"none":        {nil, "x", "temp"},
		"another one": {map[string][]string{"y": {"b"}}, "x", "temp"},
		"that one":    {map[string][]string{"x": {"a"}}, "x", "a"},
		"the only":    {map[string][]string{"": {"a"}}, "x", ""},
	} {
		r := Request{Dataset: "d", Into: "e", Columns: c.asked}
		_, spec, err := r.Job("delay", by)
		if err != nil {
			t.Fatal(err)
		}
		var got told
		if err := json.Unmarshal([]byte(spec.Command[0]), &got); err != nil {
			t.Fatal(err)
		}
		if strings.Join(got.Columns[c.input], ",") != c.want || len(by.Columns) != 1 || len(c.asked) > 1 {
			t.Errorf("%s: %v", name, got.Columns)
		}
	}
}

func TestRefused(t *testing.T) {
	for says, r := range map[string]Request{
		"dataset to predict":          {Into: "e"},
		"is a model":                  {Dataset: "models:/delay/1", Into: "e"},
		"dataset for the predictions": {Dataset: "d"},
		"names a version":             {Dataset: "d", Into: "e@1"},
		"need another dataset":        {Dataset: "d@3", Into: "d"},
		"nulls":                       {Dataset: "d", Into: "e", Nulls: "zero"},
		"batch_rows":                  {Dataset: "d", Into: "e", Batch: -1},
		"threads":                     {Dataset: "d", Into: "e", Threads: 65},
		"duplicated":                  {Dataset: "d", Into: "e", Keep: []string{"a", "a"}},
		"columns: input":              {Dataset: "d", Into: "e", Columns: map[string][]string{"x": {}}},
		"shapes: ":                    {Dataset: "d", Into: "e", Shapes: map[string][]int{"x": {0}}},
		"into":                        {Dataset: "d", Into: "../e"},
	} {
		_, spec, err := r.Job("delay", Target{Model: "delay", Version: 1})
		if err == nil { // what any job is refused for
			err = spec.Validate()
		}
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// world answers the service's questions.
type world struct {
	stable   error
	broken   error
	sent     training.Spec
	declared map[string]environment.Spec
}

func (w *world) Submit(_ context.Context, _ project.Name, _ string, spec training.Spec) (training.Job, error) {
	w.sent = spec
	return training.Job{ID: "job_1", Spec: spec}, nil
}

func (w *world) Runnable(context.Context, project.Name, string, string) error { return w.broken }

func (w *world) Stable(context.Context, project.Name, string, string) (Target, error) {
	return Target{Model: "delay", Version: 7}, w.stable
}

func (w *world) One(_ context.Context, _ project.Name, name string) (environment.Environment, error) {
	if _, ok := w.declared[name]; !ok {
		return environment.Environment{}, fault.New(fault.NotFound, "there is none")
	}
	return environment.Environment{}, nil
}

func (w *world) Apply(_ context.Context, _ project.Name, name string, spec environment.Spec) (environment.Environment, project.Change, error) {
	w.declared[name] = spec
	return environment.Environment{}, project.Created, spec.Validate()
}

func TestBegin(t *testing.T) {
	w := &world{declared: map[string]environment.Spec{}}
	s := New(Config{Jobs: w, Environments: w, Deployments: w, Models: w})
	r := Request{Dataset: "flights", Into: "scored"}
	if j, err := s.Begin(t.Context(), "nyc", "delay", r); err != nil || j.ID != "job_1" || w.sent.Data["model"] != "models:/delay/7" {
		t.Fatal(j, err)
	}
	if !slices.Equal(w.declared[Environment].Requirements, Requirements) {
		t.Errorf("%+v", w.declared)
	}
	r.Env = "mine"
	if _, err := s.Begin(t.Context(), "nyc", "delay", r); err != nil || len(w.declared) != 1 || w.sent.Environment != "mine" {
		t.Error(err, w.declared)
	}
	w.broken, w.sent = fault.New(fault.Invalid, "its structure is wrong"), training.Spec{}
	if _, err := s.Begin(t.Context(), "nyc", "delay", r); !errors.Is(err, w.broken) || w.sent.Script != "" {
		t.Error("submitted although the model would crash", err)
	}
	w.stable, w.sent = fault.New(fault.Unsupported, "it runs elsewhere"), training.Spec{}
	if _, err := s.Begin(t.Context(), "nyc", "delay", r); !fault.Is(err, fault.Unsupported) || w.sent.Script != "" {
		t.Error("submitted although nothing answers here", err)
	}
}
