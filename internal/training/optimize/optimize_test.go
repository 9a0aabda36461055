package optimize

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/training"
)

func TestJob(t *testing.T) {
	name, spec, err := Request{Data: "flights", Label: "late", MaxLoss: 0.02, Try: []string{"pruned", "fp16", "pruned-25"}, Choose: "pruned-25", Threads: 2}.Job("delay_2", "3")
	if err != nil {
		t.Fatal(err)
	}
	var got told
	if err := json.Unmarshal([]byte(spec.Command[0]), &got); err != nil {
		t.Fatal(err)
	}
	if name != "optimize-delay-2" || spec.Data["model"] != "models:/delay_2/3" || spec.Data["rows"] != "flights" || spec.Register != "delay_2" || spec.Script != script ||
		spec.Environment != Environment || spec.Resources.CPU.String() != "2" {
		t.Errorf("%s %+v", name, spec)
	}
	if !slices.Equal(got.Try, []string{"fp16", "pruned-25", "pruned-50", "pruned-75"}) || !slices.Equal(got.Batches, []int{1, 32}) || got.Speedup != 1.05 || got.MaxLoss != 0.02 || got.Rounds != 10 {
		t.Errorf("%+v", got)
	}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
	if name, spec, err = (Request{Data: "flights"}).Job("ResNet50.v2", "3"); err != nil || name != "optimize-resnet50-v2" || spec.Register != "ResNet50.v2" || spec.Data["model"] != "models:/ResNet50.v2/3" || spec.Validate() != nil {
		t.Errorf("%s %+v %v", name, spec, err)
	}
	if name, spec, err = (Request{Data: "flights"}).Job("نموذج + 2", "3"); err != nil || id.CheckName("job", name) != nil || spec.Register != "نموذج + 2" || spec.Data["model"] != "models:/نموذج + 2/3" || spec.Validate() != nil {
		t.Errorf("%s %+v %v", name, spec, err)
	}
	if _, spec, err = (Request{Data: "flights", DryRun: true}).Job("delay", "champion"); err != nil || spec.Register != "" || spec.Data["model"] != "models:/delay@champion" {
		t.Errorf("%+v %v", spec, err)
	}
}

func TestRefused(t *testing.T) {
	for says, r := range map[string]Request{
		"data is missing":          {},
		"is a model":               {Data: "models:/delay/1"},
		"unknown metric":           {Data: "d", Metric: "f1"},
		"max_loss":                 {Data: "d", MaxLoss: -1},
		"max_loss NaN":             {Data: "d", MaxLoss: math.NaN()},
		"min_speedup":              {Data: "d", Speedup: 0.5},
		"unknown candidate \"x\"":  {Data: "d", Try: []string{"x"}},
		"not among":                {Data: "d", Try: []string{"fp16"}, Choose: "fused"},
		"not among the candidates": {Data: "d", Choose: "best"},
		"threads":                  {Data: "d", Threads: -1},
		"rows":                     {Data: "d", Rows: 3},
		"rounds":                   {Data: "d", Rounds: 1000},
		"batches":                  {Data: "d", Batches: []int{1, 1}},
		"four batch sizes":         {Data: "d", Batches: []int{1, 2, 3, 4, 5}},
		"shapes: ":                 {Data: "d", Shapes: map[string][]int{"x": {0}}},
	} {
		if _, _, err := r.Job("delay", "1"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, _, err := (Request{Data: "d"}).Job("a/b", "1"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

const measured = `{"metric": "auc", "labelled": true, "rows": 9, "calibration_rows": 9, "threads": 1, "max_loss": 0.01, "min_speedup": 1.05, "runtime": "x",
"candidates": [{"name": "fp32", "value": 0.9, "loss": 0, "loss_error": 0}, {"name": "fp16", "reason": "no"}], "chosen": "", "reason": "none", "dry_run": false}`

func TestReadReport(t *testing.T) {
	if r, err := readReport([]byte(measured)); err != nil || r.Metric != "auc" || len(r.Candidates) != 2 || *r.Candidates[0].Value != 0.9 {
		t.Errorf("%+v %v", r, err)
	}
	for name, change := range map[string][2]string{
		"no JSON":           {"{", "<"},
		"another field":     {`"metric"`, `"metrics"`},
		"another candidate": {`"fp16"`, `"fp8"`},
		"one twice":         {`"fp16"`, `"fp32"`},
		"no first":          {`"fp32"`, `"fused"`},
		"chose none of it":  {`"chosen": ""`, `"chosen": "fused"`},
	} {
		if r, err := readReport([]byte(strings.Replace(measured, change[0], change[1], 1))); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	if r, err := readReport([]byte(strings.Replace(measured, `"dry_run": false`, `"made": "delay@9", "job": "job_x"`, 1))); err != nil || r.Made != "" || r.Job != "" {
		t.Errorf("the job says what is ours to say: %+v %v", r, err)
	}
}

// world answers the service's questions.
type world struct {
	job      training.Job
	file     string
	envs     map[string]environment.Spec
	denied   error
	broken   error
	sent     training.Spec
	declared int
}

func (w *world) Submit(_ context.Context, _ project.Name, _ string, spec training.Spec) (training.Job, error) {
	w.sent = spec
	return training.Job{ID: "job_1", Spec: spec}, nil
}

type jobs struct{ *world }

func (j jobs) One(context.Context, project.Name, training.JobID) (training.Job, error) {
	return j.job, nil
}

type environments struct{ *world }

func (e environments) One(_ context.Context, _ project.Name, name string) (environment.Environment, error) {
	if _, ok := e.envs[name]; !ok {
		return environment.Environment{}, fault.New(fault.NotFound, "there is none")
	}
	return environment.Environment{}, nil
}

func (e environments) Apply(_ context.Context, _ project.Name, name string, spec environment.Spec) (environment.Environment, project.Change, error) {
	e.declared++
	e.envs[name] = spec
	return environment.Environment{}, project.Created, spec.Validate()
}

func (w *world) Runnable(context.Context, project.Name, string, string) error { return w.broken }

func (w *world) Writable(context.Context, project.Name, string) error { return w.denied }

func (w *world) Open(_ context.Context, _ project.Name, _, name string) (io.ReadCloser, error) {
	if w.file == "" || name != reportFile {
		return nil, fault.New(fault.NotFound, "no file")
	}
	return io.NopCloser(strings.NewReader(w.file)), nil
}

func (w *world) service() *Service {
	return New(Config{Submission: jobs{w}, Jobs: jobs{w}, Environments: environments{w}, Models: w, Artifacts: w})
}

func TestBegin(t *testing.T) {
	w := &world{envs: map[string]environment.Spec{}}
	s := w.service()
	for range 2 {
		if j, err := s.Begin(t.Context(), "nyc", "delay", "1", Request{Data: "flights"}); err != nil || j.ID != "job_1" || w.sent.Register != "delay" {
			t.Fatal(j, err)
		}
	}
	if w.declared != 1 || !slices.Equal(w.envs[Environment].Requirements, Requirements) {
		t.Errorf("declared %d times: %+v", w.declared, w.envs)
	}
	if _, err := s.Begin(t.Context(), "nyc", "delay", "1", Request{Data: "flights", Env: "mine@sha256:a"}); err != nil || w.declared != 1 || w.sent.Environment != "mine@sha256:a" {
		t.Error(err, w.sent)
	}
	w.broken, w.sent = errors.New("its structure is wrong"), training.Spec{}
	if _, err := s.Begin(t.Context(), "nyc", "delay", "1", Request{Data: "flights"}); !errors.Is(err, w.broken) || w.sent.Script != "" {
		t.Error("submitted although the model would crash", err)
	}
	w.denied, w.sent = errors.New("no"), training.Spec{}
	if _, err := s.Begin(t.Context(), "nyc", "delay", "1", Request{Data: "flights"}); !errors.Is(err, w.denied) || w.sent.Script != "" {
		t.Error("submitted for somebody who may not register", err)
	}
}

func TestReport(t *testing.T) {
	done := training.Job{
		ID: "job_1", State: training.Succeeded, Run: "run_1", Model: "delay@4", Spec: training.Spec{Script: script, Register: "delay"},
		Inputs: []training.Input{{Name: "model", Ref: "model delay@3"}, {Name: "rows", Ref: "dataset flights@1"}},
	}
	w := &world{job: done, file: measured}
	if r, err := w.service().Report(t.Context(), "nyc", "job_1"); err != nil || r.Of != "delay@3" || r.Made != "delay@4" || r.State != "succeeded" || r.Job != "job_1" {
		t.Errorf("%+v %v", r, err)
	}
	for name, c := range map[string]struct {
		change func(*world)
		kind   fault.Kind
	}{
		"another job":    {func(w *world) { w.job.Spec.Script += "#" }, fault.NotFound},
		"under way":      {func(w *world) { w.job.State = training.Running }, fault.Conflict},
		"never ran":      {func(w *world) { w.job.State, w.job.Run = training.Failed, "" }, fault.NotFound},
		"measured none":  {func(w *world) { w.file = "" }, fault.NotFound},
		"nonsense":       {func(w *world) { w.file = "{" }, fault.Invalid},
		"without an end": {func(w *world) { w.file = strings.Repeat(" ", maxReport+1) }, fault.TooLarge},
	} {
		w := &world{job: done, file: measured}
		c.change(w)
		if r, err := w.service().Report(t.Context(), "nyc", "job_1"); !fault.Is(err, c.kind) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
}
