// Package optimize makes a registered model smaller and faster by a job: variants of it
// (fused, 8 bits, 16 bits, pruned, distilled) are made and measured beside it in the
// job's sandbox, and the best becomes a new version.
//
// # Map
//
//   - optimize.go: Request and its rules, and the job that it becomes.
//   - report.go: what the job measured.
//   - service.go: Begin, Report.
//   - optimize.py is the job, behind what onnxjob has for it.
//
// # Guarantees
//
// The model is parsed and run by the job alone. The job reads one version of the model
// and one of a dataset, both pinned, so what it makes has their zones, their
// classification and their lineage. No version is made that loses more than was
// allowed, or is not faster.
package optimize

import (
	_ "embed"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/onnxjob"
)

//go:embed optimize.py
var program string

// script is the job. A job with this script optimised a model.
var script = onnxjob.Script(program)

// Environment is what the job runs in where none is named; Begin declares it.
const Environment = "optimize"

// Requirements of Environment.
var Requirements = []string{
	"ml_dtypes>=0.5", "numpy>=1.26,<3", "onnx==1.18.0", onnxjob.Runtime, "protobuf<6", "pyarrow>=21", "scikit-learn>=1.7,<2", "sympy>=1.13",
}

// Candidates that can be tried; pruned is three of them.
var Candidates = []string{"fused", "int8-dynamic", "int8-static", "int8-static-all", "fp16", "pruned-25", "pruned-50", "pruned-75", "distilled"}

// metrics that answers are compared by.
var metrics = []string{"accuracy", "auc", "rmse", "agreement", "r2"}

// Request is what is to be optimised, and how.
type Request struct {
	Data     string              `json:"data" maxLength:"300" doc:"Dataset, with or without @version: half of a sample of its rows is used to evaluate, the other half to calibrate and distil"`
	Label    string              `json:"label,omitempty" maxLength:"300" doc:"Label column; without one, predictions are compared with those of the original model"`
	Metric   string              `json:"metric,omitempty" enum:"accuracy,auc,rmse,agreement,r2" doc:"Metric that compares predictions; default one that fits the label and the model's outputs"`
	MaxLoss  float64             `json:"max_loss" minimum:"0" maximum:"1" doc:"Largest accepted loss of the metric: 0.01 is one percentage point; for rmse, the relative increase"`
	Speedup  float64             `json:"min_speedup,omitempty" minimum:"0" maximum:"100" doc:"Smallest accepted speed-up; default 1.05"`
	Try      []string            `json:"try,omitempty" maxItems:"20" doc:"Candidates: fused, int8-dynamic, int8-static, int8-static-all, fp16, pruned (or pruned-25, -50, -75), distilled; default all"`
	Choose   string              `json:"choose,omitempty" maxLength:"40" doc:"Candidate to register, if its loss is acceptable; default the fastest acceptable one"`
	DryRun   bool                `json:"dry_run,omitempty" doc:"Measures only; registers no version"`
	Columns  map[string][]string `json:"columns,omitempty" doc:"Dataset columns of each input of the model, in order; default the column of the same name or, for one input, all numeric columns except the label"`
	Shapes   map[string][]int    `json:"shapes,omitempty" doc:"Shape of one row of an input, such as [3, 224, 224], for models with more than one dynamic dimension"`
	Threads  int                 `json:"threads,omitempty" minimum:"0" maximum:"64" doc:"Threads per inference, as in the deployment; default 1"`
	Batches  []int               `json:"batches,omitempty" maxItems:"4" doc:"Batch sizes to measure; the first is used to choose; default 1 and 32"`
	Rows     int                 `json:"rows,omitempty" minimum:"0" maximum:"200000" doc:"Rows of the sample; default 4096"`
	Rounds   int                 `json:"rounds,omitempty" minimum:"0" maximum:"100" doc:"Measurement rounds; all candidates take turns in each; default 10"`
	Env      string              `json:"environment,omitempty" maxLength:"300" doc:"Environment with onnx, onnxruntime, pyarrow, scikit-learn and sympy; default optimize, which is created if missing"`
	Pools    []string            `json:"pools,omitempty" maxItems:"50" doc:"Pools that may run the job; default any that fits"`
	Resource resource.Amount     `json:"resources,omitzero" doc:"Resources of the job; default one core per thread, and 2GiB"`
}

// told is the input of the script.
type told struct {
	Label   string              `json:"label,omitempty"`
	Metric  string              `json:"metric,omitempty"`
	MaxLoss float64             `json:"max_loss"`
	Speedup float64             `json:"min_speedup"`
	Try     []string            `json:"try"`
	Choose  string              `json:"choose,omitempty"`
	DryRun  bool                `json:"dry_run"`
	Columns map[string][]string `json:"columns,omitempty"`
	Shapes  map[string][]int    `json:"shapes,omitempty"`
	Threads int                 `json:"threads"`
	Batches []int               `json:"batches"`
	Rows    int                 `json:"rows"`
	Rounds  int                 `json:"rounds"`
}

// complete fills in the defaults and refuses what cannot be done. Error:
// fault.Invalid.
func (r Request) complete() (Request, error) {
	bad := func(format string, args ...any) (Request, error) { return r, fault.New(fault.Invalid, format, args...) }
	if r.Speedup == 0 {
		r.Speedup = 1.05
	}
	r.Threads, r.Rows, r.Rounds = or(r.Threads, 1), or(r.Rows, 4096), or(r.Rounds, 10)
	if len(r.Batches) == 0 {
		r.Batches = []int{1, 32}
	}
	if r.Env == "" {
		r.Env = Environment
	}
	var tries []string
	for _, t := range r.Try {
		kinds := slices.DeleteFunc(slices.Clone(Candidates), func(c string) bool { return c != t && (t != "pruned" || !strings.HasPrefix(c, "pruned-")) })
		if len(kinds) == 0 {
			return bad("unknown candidate %.40q", t)
		}
		tries = append(tries, kinds...)
	}
	slices.Sort(tries)
	if r.Try = slices.Compact(tries); len(r.Try) == 0 {
		r.Try = Candidates
	}
	switch {
	case r.Data == "":
		return bad("data is missing: name a dataset")
	case strings.HasPrefix(r.Data, "models:"):
		return bad("data: %.100q is a model, not a dataset", r.Data)
	case r.Metric != "" && !slices.Contains(metrics, r.Metric):
		return bad("unknown metric %.40q: use one of %s", r.Metric, strings.Join(metrics, ", "))
	case math.IsNaN(r.MaxLoss) || r.MaxLoss < 0 || r.MaxLoss > 1:
		return bad("max_loss %v is not between 0 and 1", r.MaxLoss)
	case math.IsNaN(r.Speedup) || r.Speedup < 1 || r.Speedup > 100:
		return bad("min_speedup %v is not between 1 and 100", r.Speedup)
	case r.Choose != "" && !slices.Contains(r.Try, r.Choose):
		return bad("choose: %.40q is not among the candidates %s", r.Choose, strings.Join(r.Try, ", "))
	case r.Threads < 1 || r.Threads > 64:
		return bad("threads %d is not between 1 and 64", r.Threads)
	case r.Rows < 20 || r.Rows > 200_000:
		return bad("rows %d is not between 20 and 200000", r.Rows)
	case r.Rounds < 1 || r.Rounds > 100:
		return bad("rounds %d is not between 1 and 100", r.Rounds)
	case len(r.Batches) > 4:
		return bad("at most four batch sizes can be measured")
	}
	for i, b := range r.Batches {
		if b < 1 || b > 4096 || slices.Contains(r.Batches[:i], b) {
			return bad("batches: %v must be distinct numbers between 1 and 4096", r.Batches)
		}
	}
	for name, shape := range r.Shapes {
		if len(shape) == 0 || len(shape) > 8 || slices.ContainsFunc(shape, func(d int) bool { return d < 1 || d > 1<<20 }) {
			return bad("shapes: %.100q: %v needs one to eight dimensions", name, shape)
		}
	}
	return r, nil
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Job is what a request becomes: the version of the model is a number or an alias.
// Error: fault.Invalid.
func (r Request) Job(model, version string) (name string, spec training.Spec, err error) {
	if r, err = r.complete(); err != nil {
		return "", spec, err
	}
	if err := id.CheckModelName(model); err != nil {
		return "", spec, err
	}
	b, err := json.Marshal(told{
		Label: r.Label, Metric: r.Metric, MaxLoss: r.MaxLoss, Speedup: r.Speedup, Try: r.Try, Choose: r.Choose, DryRun: r.DryRun, Columns: maps.Clone(r.Columns),
		Shapes: r.Shapes, Threads: r.Threads, Batches: r.Batches, Rows: r.Rows, Rounds: r.Rounds,
	})
	if err != nil {
		return "", spec, err
	}
	amount := r.Resource
	if amount.CPU == 0 {
		amount.CPU = resource.Cores(int64(r.Threads))
	}
	if amount.Memory == 0 {
		amount.Memory = 2 * resource.GiB
	}
	spec = training.Spec{
		Environment: r.Env, Script: script, Command: []string{string(b)}, Data: map[string]string{"model": onnxjob.Reference(model, version), "rows": r.Data},
		Trains: "model", Resources: amount, Pools: r.Pools,
	}
	if !r.DryRun {
		spec.Register = model
	}
	return onnxjob.Name("optimize", model), spec, nil
}
