// Package score answers the rows of a dataset with the model behind a deployment, by a
// job: its stable version reads a version of the dataset in the job's sandbox, and the rows
// with the answers become a version of another dataset.
//
// # Map
//
//   - score.go: Request and its rules, and the job that it becomes.
//   - service.go: Begin.
//   - score.py is the job, behind what onnxjob has for it.
//
// # Guarantees
//
// The model is parsed and run by the job alone. One version of the model and one of the
// dataset are pinned when the job is submitted: a promotion or an import that comes later
// changes nothing, and what is made has the zones, the classification and the lineage of
// both. Rows keep their order, and each has the answer that it would have alone.
package score

import (
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/onnxjob"
)

//go:embed score.py
var program string

// script is the job.
var script = onnxjob.Script(program)

// Environment is what the job runs in where none is named; Begin declares it.
const Environment = "score"

// Requirements of Environment.
var Requirements = []string{"numpy>=1.26,<3", onnxjob.Runtime, "pyarrow>=21"}

// Nulls is what a null of a column is to an input of fractions.
type Nulls string

// The meanings.
const (
	Refuse Nulls = "refuse" // the job fails
	NaN    Nulls = "nan"    // as a request's null
)

// Request is what is to be answered, and what becomes of it.
type Request struct {
	Dataset  string              `json:"dataset" maxLength:"300" doc:"Dataset or training set to predict, with or without @version"`
	Into     string              `json:"into" maxLength:"63" doc:"Dataset that gets a new version with the rows and predictions"`
	Keep     []string            `json:"keep,omitempty" maxItems:"4096" doc:"Columns to keep beside the predictions; default all"`
	Prefix   string              `json:"prefix,omitempty" maxLength:"100" doc:"Prefix of the model's output names, such as predicted_"`
	Columns  map[string][]string `json:"columns,omitempty" doc:"Dataset columns of each input of the model, in order; default those of the deployment's features, the column of the same name or, for one input, all numeric columns"`
	Shapes   map[string][]int    `json:"shapes,omitempty" doc:"Shape of one row of an input, such as [3, 224, 224], for models with more than one dynamic dimension"`
	Nulls    Nulls               `json:"nulls,omitempty" enum:"refuse,nan" doc:"How nulls in floating-point inputs are handled: refuse (the default) fails the job, nan passes NaN, as in requests"`
	Batch    int                 `json:"batch_rows,omitempty" minimum:"0" maximum:"1048576" doc:"Rows per batch; default 4096"`
	Threads  int                 `json:"threads,omitempty" minimum:"0" maximum:"64" doc:"Threads per inference; default as in the deployment"`
	Env      string              `json:"environment,omitempty" maxLength:"300" doc:"Environment with numpy, onnxruntime and pyarrow; default score, which is created if missing"`
	Pools    []string            `json:"pools,omitempty" maxItems:"50" doc:"Pools that may run the job; default any that fits"`
	Resource resource.Amount     `json:"resources,omitzero" doc:"Resources of the job; default one core per thread, and 2GiB"`
}

// Target is the version that answers.
type Target struct {
	Model   string
	Version int64
	Threads int
	// Columns that the deployment itself makes inputs of, in order; empty for an input
	// that requests fill.
	Columns map[string][]string
}

// told is the input of the script.
type told struct {
	Keep    []string            `json:"keep,omitempty"`
	Prefix  string              `json:"prefix,omitempty"`
	Columns map[string][]string `json:"columns,omitempty"`
	Shapes  map[string][]int    `json:"shapes,omitempty"`
	Nulls   Nulls               `json:"nulls"`
	Batch   int                 `json:"batch_rows"`
	Threads int                 `json:"threads"`
}

// maxBatch bounds Request.Batch.
const maxBatch = 1 << 20

// complete fills in the defaults and refuses what cannot be done. Error:
// fault.Invalid.
func (r Request) complete() (Request, error) {
	bad := func(format string, args ...any) (Request, error) { return r, fault.New(fault.Invalid, format, args...) }
	if r.Batch == 0 {
		r.Batch = 4096
	}
	if r.Nulls == "" {
		r.Nulls = Refuse
	}
	if r.Env == "" {
		r.Env = Environment
	}
	name, _, _ := strings.Cut(r.Dataset, "@")
	switch {
	case r.Dataset == "":
		return bad("dataset is missing: name the dataset to predict")
	case strings.HasPrefix(r.Dataset, "models:"):
		return bad("dataset: %.100q is a model", r.Dataset)
	case r.Into == "":
		return bad("into is missing: name the dataset for the predictions")
	case strings.Contains(r.Into, "@"):
		return bad("into: %.100q names a version; name only the dataset, which gets a new one", r.Into)
	case r.Into == name:
		return r, fault.New(fault.Invalid, "into: the predictions of dataset %s need another dataset, because their columns differ", name).
			WithHint("Name another dataset, such as %s-scored; it is created if missing.", name)
	case r.Nulls != Refuse && r.Nulls != NaN:
		return bad("nulls: unknown value %.40q; use %s or %s", string(r.Nulls), Refuse, NaN)
	case r.Batch < 1 || r.Batch > maxBatch:
		return bad("batch_rows %d is not between 1 and %d", r.Batch, maxBatch)
	case r.Threads < 0 || r.Threads > 64:
		return bad("threads %d is not between 1 and 64", r.Threads)
	}
	for i, c := range r.Keep {
		if c == "" || slices.Contains(r.Keep[:i], c) {
			return bad("keep: column %.100q is empty or duplicated", c)
		}
	}
	for input, of := range r.Columns {
		if len(of) == 0 || slices.Contains(of, "") {
			return bad("columns: input %.100q has no columns, or an empty name", input)
		}
	}
	for name, shape := range r.Shapes {
		if len(shape) == 0 || len(shape) > 8 || slices.ContainsFunc(shape, func(d int) bool { return d < 1 || d > 1<<20 }) {
			return bad("shapes: %.100q: %v needs one to eight dimensions", name, shape)
		}
	}
	return r, nil
}

// Job is what a request becomes, with the version that answers. Error: fault.Invalid.
func (r Request) Job(deployment string, by Target) (name string, spec training.Spec, err error) {
	if r, err = r.complete(); err != nil {
		return "", spec, err
	}
	threads := r.Threads
	if threads == 0 {
		threads = min(max(by.Threads, 1), 64)
	}
	columns := maps.Clone(r.Columns)
	if len(r.Columns[""]) == 0 { // else they are of the only input
		for input, of := range by.Columns {
			if _, named := columns[input]; !named {
				if columns == nil {
					columns = map[string][]string{}
				}
				columns[input] = of
			}
		}
	}
	b, err := json.Marshal(told{
		Keep: r.Keep, Prefix: r.Prefix, Columns: columns, Shapes: r.Shapes, Nulls: r.Nulls, Batch: r.Batch, Threads: threads,
	})
	if err != nil {
		return "", spec, err
	}
	amount := r.Resource
	if amount.CPU == 0 {
		amount.CPU = resource.Cores(int64(threads))
	}
	if amount.Memory == 0 {
		amount.Memory = 2 * resource.GiB
	}
	return onnxjob.Name("predict", deployment), training.Spec{
		Environment: r.Env, Script: script, Command: []string{string(b)},
		Data: map[string]string{"model": onnxjob.Reference(by.Model, strconv.FormatInt(by.Version, 10)), "rows": r.Dataset},
		Into: r.Into, Resources: amount, Pools: r.Pools,
	}, nil
}
