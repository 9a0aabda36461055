package training

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// Workers is how many workers a job has: a number, or as many as there is room
// for between two. The zero value is one.
type Workers struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Exactly is a fixed number.
func Exactly(n int) Workers { return Workers{Min: n, Max: n} }

// Fixed reports whether there is only one possible number.
func (w Workers) Fixed() bool { return w.Min == w.Max }

// IsZero reports whether nothing was said, which is one worker.
func (w Workers) IsZero() bool { return w == Workers{} }

func (w Workers) orOne() Workers {
	if w.IsZero() {
		return Exactly(1)
	}
	return w
}

// String is "4" or "2 to 4".
func (w Workers) String() string {
	if w = w.orOne(); w.Fixed() {
		return strconv.Itoa(w.Min)
	}
	return fmt.Sprintf("%d to %d", w.Min, w.Max)
}

// MarshalJSON writes a number where there is only one.
func (w Workers) MarshalJSON() ([]byte, error) {
	if w.Fixed() {
		return json.Marshal(w.Min)
	}
	type plain Workers
	return json.Marshal(plain(w))
}

// UnmarshalJSON reads a number or {min, max}.
func (w *Workers) UnmarshalJSON(b []byte) error {
	var n int
	if json.Unmarshal(b, &n) == nil {
		*w = Exactly(n)
		if n == 0 {
			w.Min, w.Max = -1, -1 // said, and impossible; Validate refuses it
		}
		return nil
	}
	type plain Workers
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(w)); err != nil {
		return fault.New(fault.Invalid, "spec.workers: %.80s is neither a number nor {min: 2, max: 4}", b)
	}
	return nil
}

// Parallel says how processes share the work: each a factor, 0 is left out.
type Parallel struct {
	Data     int `json:"data,omitempty" doc:"Data-parallel replicas of the model; default the remaining processes"`
	Tensor   int `json:"tensor,omitempty" doc:"Tensor parallelism: processes that share each layer; default 1"`
	Pipeline int `json:"pipeline,omitempty" doc:"Pipeline parallelism: stages of consecutive layers; default 1"`
}

// of gives the factors for a world of n processes; ok when they fit it.
func (p Parallel) of(n int) (full Parallel, ok bool) {
	full = Parallel{Data: p.Data, Tensor: max(p.Tensor, 1), Pipeline: max(p.Pipeline, 1)}
	model := full.Tensor * full.Pipeline
	if full.Data == 0 {
		full.Data = n / model
	}
	return full, full.Data > 0 && full.Data*model == n
}

// Precision of a training's numbers.
type Precision string

// Precisions are what a job may declare.
var Precisions = []Precision{"fp32", "tf32", "bf16", "fp16", "fp8", "int8"}

const (
	maxAccumulate = 1 << 20
	maxBatch      = 1 << 40
	maxProgress   = 7 * 24 * time.Hour
	minProgress   = time.Second
)

// world is the number of processes of all workers together.
func (s Spec) world(workers int) int { return workers * max(s.Processes, 1) }

// validGang holds what concerns several workers together. Error: fault.Invalid.
func (s Spec) validGang() error {
	f := s.Framework
	if f == "" {
		f = launch.Plain
	}
	switch {
	case !f.Known():
		return fault.New(fault.Invalid, "spec.framework: unknown framework %.40q", string(f)).WithHint("Use one of %s.", names(launch.Frameworks))
	case s.Processes < 0 || s.Processes > launch.MaxProcesses:
		return fault.New(fault.Invalid, "spec.processes: %d is not between 1 and %d", s.Processes, launch.MaxProcesses)
	case s.Processes > 1 && !f.Spawns():
		return fault.New(fault.Invalid, "spec.processes: framework %s starts one process per worker, not %d", f, s.Processes).
			WithHint("Request more workers, or use torchrun, deepspeed, accelerate, horovod or mpi.")
	case f.Python() && s.Environment == "":
		return fault.New(fault.Invalid, "spec.framework: %s needs an environment with its Python package", f).WithHint("Set spec.environment.")
	case s.Precision != "" && !slices.Contains(Precisions, s.Precision):
		return fault.New(fault.Invalid, "spec.precision: unknown precision %.40q", string(s.Precision)).WithHint("Use one of %s.", names(Precisions))
	case s.Accumulate < 0 || s.Accumulate > maxAccumulate:
		return fault.New(fault.Invalid, "spec.accumulate: %d is not between 1 and %d", s.Accumulate, maxAccumulate)
	case s.Batch < 0 || s.Batch > maxBatch:
		return fault.New(fault.Invalid, "spec.batch: %d is not between 1 and %d", s.Batch, maxBatch)
	case s.Steps < 0:
		return fault.New(fault.Invalid, "spec.steps: %d is negative", s.Steps)
	case s.Progress != 0 && (time.Duration(s.Progress) < minProgress || time.Duration(s.Progress) > maxProgress):
		return fault.New(fault.Invalid, "spec.progress_timeout: %s is not between %s and %s", time.Duration(s.Progress), minProgress, maxProgress).
			WithHint("Omit it to disable the time-out.")
	case s.Parallel.Data < 0 || s.Parallel.Tensor < 0 || s.Parallel.Pipeline < 0:
		return fault.New(fault.Invalid, "spec.parallel: a factor is negative")
	}
	return s.validSize(s.Workers.orOne())
}

// validSize holds a number of workers against the specification: every one that
// is possible must be shared out evenly.
func (s Spec) validSize(w Workers) error {
	if w.Min < 1 || w.Max < w.Min || w.Max > launch.MaxWorkers {
		said := fmt.Sprintf("%d to %d workers", w.Min, w.Max)
		switch {
		case w.Max < 1: // 0 is read as less: see UnmarshalJSON
			said = "less than one worker"
		case w.Fixed():
			said = fmt.Sprintf("%d workers", w.Min)
		}
		return fault.New(fault.Invalid, "spec.workers: %s is out of range", said).
			WithHint("Set a number from 1 to %d, such as workers: 4, or workers: {min: 2, max: 4}.", launch.MaxWorkers)
	}
	if why, only := s.Framework.OneWorker(); only && w.Max > 1 {
		return fault.New(fault.Invalid, "spec.workers: framework %s runs on one worker: %s", s.Framework, why).
			WithHint("Use workers: 1 and processes: %d.", s.world(w.Max))
	}
	if s.Parallel == (Parallel{}) {
		return nil
	}
	for n := w.Min; n <= w.Max; n++ {
		world := s.world(n)
		full, ok := s.Parallel.of(world)
		if ok {
			continue
		}
		return fault.New(fault.Invalid, "spec.parallel: %d workers × %d processes are %d processes, which does not equal data %s × tensor %d × pipeline %d",
			n, max(s.Processes, 1), world, orAny(s.Parallel.Data), full.Tensor, full.Pipeline).
			WithHint("%s", s.fitting(w, full))
	}
	return nil
}

// fitting says which numbers of workers would divide.
func (s Spec) fitting(w Workers, p Parallel) string {
	var sizes []string
	for n := 1; n <= min(2*w.Max+8, launch.MaxWorkers) && len(sizes) < 8; n++ {
		if _, ok := s.Parallel.of(s.world(n)); ok {
			sizes = append(sizes, strconv.Itoa(n))
		}
	}
	if len(sizes) == 0 {
		return fmt.Sprintf("No number of workers fits: each replica of the model needs %d processes.", p.Tensor*p.Pipeline)
	}
	if !w.Fixed() {
		return "Every number of workers from min to max must divide evenly; valid numbers are " + strings.Join(sizes, ", ") + "."
	}
	return "Valid numbers of workers are " + strings.Join(sizes, ", ") + "."
}

func orAny(n int) string {
	if n == 0 {
		return "(any)"
	}
	return strconv.Itoa(n)
}

func names[T ~string](all []T) string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = string(v)
	}
	return strings.Join(out, ", ")
}

// size is what the next attempt wants.
func (j Job) size() Workers {
	if len(j.Spec.Roles) > 0 {
		return Exactly(j.Spec.inRoles())
	}
	if !j.Workers.IsZero() {
		return j.Workers
	}
	return j.Spec.Workers.orOne()
}

// declared are the run's parameters that say how an attempt trains.
func (s Spec) declared(workers int) map[string]string {
	p := map[string]string{}
	for name, v := range s.Params.words() {
		p[paramPrefix+name] = v
	}
	if workers > 1 || s.Processes > 1 || s.Framework != launch.Plain {
		p["falaj.framework"], p["falaj.workers"], p["falaj.processes"] = string(s.Framework), strconv.Itoa(workers), strconv.Itoa(max(s.Processes, 1))
	}
	if s.Precision != "" {
		p["falaj.precision"] = string(s.Precision)
	}
	if s.Batch > 0 {
		p["falaj.batch"] = strconv.Itoa(s.Batch)
	}
	if s.Accumulate > 0 {
		p["falaj.accumulate"] = strconv.Itoa(s.Accumulate)
	}
	if s.Parallel != (Parallel{}) {
		full, _ := s.Parallel.of(s.world(workers))
		p["falaj.parallel.data"], p["falaj.parallel.tensor"], p["falaj.parallel.pipeline"] = strconv.Itoa(full.Data), strconv.Itoa(full.Tensor), strconv.Itoa(full.Pipeline)
	}
	return p
}

// declarations are the variables that tell the program the same.
func (s Spec) declarations(workers int) map[string]string {
	full, _ := s.Parallel.of(s.world(workers))
	v := map[string]string{
		"FALAJ_ACCUMULATE": strconv.Itoa(max(s.Accumulate, 1)), "FALAJ_PARALLEL_DATA": strconv.Itoa(full.Data),
		"FALAJ_PARALLEL_TENSOR": strconv.Itoa(full.Tensor), "FALAJ_PARALLEL_PIPELINE": strconv.Itoa(full.Pipeline),
	}
	if s.Precision != "" {
		v["FALAJ_PRECISION"] = string(s.Precision)
	}
	if s.Framework == launch.Accelerate {
		v["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = strconv.Itoa(max(s.Accumulate, 1))
		switch s.Precision {
		case "bf16", "fp16", "fp8":
			v["ACCELERATE_MIXED_PRECISION"] = string(s.Precision)
		}
	}
	return v
}
