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
	Dataset  string              `json:"dataset" maxLength:"300" doc:"Dataset or training set whose rows are answered, with or without @version"`
	Into     string              `json:"into" maxLength:"63" doc:"Another dataset, which gets a version of the rows with the answers"`
	Keep     []string            `json:"keep,omitempty" maxItems:"4096" doc:"Columns that are kept beside the answers; default all"`
	Prefix   string              `json:"prefix,omitempty" maxLength:"100" doc:"What stands before the names of the model's outputs, such as predicted_"`
	Columns  map[string][]string `json:"columns,omitempty" doc:"Columns of the dataset that are each input of the model, in order; default those of the deployment's features, the column of its name or, for one input, all numbers"`
	Shapes   map[string][]int    `json:"shapes,omitempty" doc:"What a row of an input is, such as [3, 224, 224], where the model leaves more than one dimension open"`
	Nulls    Nulls               `json:"nulls,omitempty" enum:"refuse,nan" doc:"What a null is to an input of fractions: refuse (the default) fails the job, nan answers as for the null of a request"`
	Batch    int                 `json:"batch_rows,omitempty" minimum:"0" maximum:"1048576" doc:"Rows that are read, and run, at once; default 4096"`
	Threads  int                 `json:"threads,omitempty" minimum:"0" maximum:"64" doc:"Threads of a run; default as the deployment has them"`
	Env      string              `json:"environment,omitempty" maxLength:"300" doc:"An environment with numpy, onnxruntime and pyarrow; default score, which is declared where it is missing"`
	Pools    []string            `json:"pools,omitempty" maxItems:"50" doc:"Only these pools; default any that may"`
	Resource resource.Amount     `json:"resources,omitzero" doc:"What the job needs; default a core for each thread, and 2GiB"`
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

// told is what the script is told.
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
		return bad("a dataset is needed whose rows are answered")
	case strings.HasPrefix(r.Dataset, "models:"):
		return bad("dataset %.100q is a model", r.Dataset)
	case r.Into == "":
		return bad("a dataset is needed that gets the answers")
	case strings.Contains(r.Into, "@"):
		return bad("into %.100q names a version, and the rows become a new one", r.Into)
	case r.Into == name:
		return r, fault.New(fault.Invalid, "the answers to dataset %s cannot be a version of it: it would have other columns", name).
			WithHint("Name another dataset, such as %s-scored; it is made where it is missing.", name)
	case r.Nulls != Refuse && r.Nulls != NaN:
		return bad("nulls is %.40q; it may be %s or %s", string(r.Nulls), Refuse, NaN)
	case r.Batch < 1 || r.Batch > maxBatch:
		return bad("batch_rows %d is not between 1 and %d", r.Batch, maxBatch)
	case r.Threads < 0 || r.Threads > 64:
		return bad("threads %d is not between 1 and 64", r.Threads)
	}
	for i, c := range r.Keep {
		if c == "" || slices.Contains(r.Keep[:i], c) {
			return bad("column %.100q to keep is empty or named twice", c)
		}
	}
	for input, of := range r.Columns {
		if len(of) == 0 || slices.Contains(of, "") {
			return bad("the columns of input %.100q are none, or have one without a name", input)
		}
	}
	for name, shape := range r.Shapes {
		if len(shape) == 0 || len(shape) > 8 || slices.ContainsFunc(shape, func(d int) bool { return d < 1 || d > 1<<20 }) {
			return bad("shape of %.100q: %v is not one to eight sizes", name, shape)
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
