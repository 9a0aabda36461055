package serving

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Spec is what a Deployment manifest says.
type Spec struct {
	Model      string            `json:"model" doc:"Registered model"`
	Version    string            `json:"version,omitempty" doc:"Version number or alias; empty is the alias champion. A promotion moves the alias"`
	Threads    int               `json:"threads,omitempty" doc:"Threads inside one run; 0 is 1, best when many requests run side by side"`
	Inputs     []chain.InputSpec `json:"inputs,omitempty" doc:"What requests bring for the steps, where no model says it"`
	Before     []chain.StepSpec  `json:"before,omitempty" doc:"Steps that make the model's inputs of what a request brings"`
	After      []chain.StepSpec  `json:"after,omitempty" doc:"Steps that make the answer of the model's outputs"`
	Outputs    []string          `json:"outputs,omitempty" doc:"What is answered, of all that is there after the last step; what the model and the steps after it make when left out"`
	Runtime    *RuntimeSpec      `json:"runtime,omitempty" doc:"Where the model runs"`
	Batching   *BatchingSpec     `json:"batching,omitempty" doc:"How requests wait for the model and share its runs; what is left out has a default that suits most models"`
	Scale      *ScaleSpec        `json:"scale,omitempty" doc:"How many replicas of the model there are; without it one, which is always in memory"`
	Limits     *LimitsSpec       `json:"limits,omitempty" doc:"How much may be asked; more is refused with 429"`
	Features   *FeaturesSpec     `json:"features,omitempty" doc:"Requests may carry keys; the model's input is filled with features looked up online"`
	Prediction *PredictionSpec   `json:"prediction,omitempty" doc:"Which number of the answer is monitored, the last column of the only float output when left out; and whether answers are remembered"`
	Rollout    rollout.Spec      `json:"rollout,omitzero" doc:"How new versions are tried"`
	Automation *bool             `json:"automation,omitempty" doc:"false: nothing automatic happens to this deployment" default:"true"`
}

// RuntimeSpec is where a model runs.
type RuntimeSpec struct {
	Isolation Isolation      `json:"isolation,omitempty" doc:"child: in a process of its own, without keys, files or network; in-process: in the server's process, refused unless the server's setting serving.in_process names the model; auto: child, or in-process where that setting names the model and it has no replicas" default:"auto"`
	Memory    resource.Bytes `json:"memory,omitempty" doc:"What a process of its own may use, such as 4GiB; the default is 2 GiB and eight times the model's file; at most the server's serving.process_memory"`
	Python    PythonSpec     `json:"python,omitzero" doc:"How a Python model runs: a predict.py, a scikit-learn model in MLflow's format or a model.tflite. Said of a version that also has a model.onnx, it is not that which answers"`
	Remote    RemoteSpec     `json:"remote,omitzero" doc:"Another server that runs the model"`
}

// minMemory is less than a process with the smallest model needs.
const minMemory = 256 * resource.MiB

func (r *RuntimeSpec) validate() error {
	switch {
	case r == nil:
		return nil
	case r.Remote != (RemoteSpec{}) && (r.Isolation != "" || r.Memory != 0):
		return fault.New(fault.Invalid, "spec.runtime.remote: isolation and memory are of models that run here")
	case r.Remote != (RemoteSpec{}) && r.Python != (PythonSpec{}):
		return fault.New(fault.Invalid, "spec.runtime.remote: python is of models that run here")
	case r.Isolation != "" && r.Isolation != Auto && r.Isolation != InProcess && r.Isolation != Child:
		return fault.New(fault.Invalid, "spec.runtime.isolation is %.40q; it may be auto, in-process or child", r.Isolation)
	case r.Memory != 0 && r.Memory < minMemory:
		return fault.New(fault.Invalid, "spec.runtime.memory is %s; a process needs at least %s", r.Memory, minMemory)
	}
	return r.Python.validate(r.Isolation)
}

// options are how the runtime loads a version.
func (s Spec) options(project string, m Model, policy InProcessPolicy) (o models.Options, err error) {
	o.Threads = s.Threads
	if r := s.remote(); r.Name != "" {
		if r.fixed() && s.Version != strconv.FormatInt(m.Version, 10) {
			return o, fault.New(fault.Invalid, "the deployment's model at the remote %s is of version %s, and not of %d", r.Name, s.Version, m.Version).
				WithHint("Write {version} into spec.runtime.remote, where the remote has a model for each version.")
		}
		o.Remote = r.of(m)
		return o, nil
	}
	if s.Runtime != nil {
		o.Memory = s.Runtime.Memory
	}
	o.InProcess, err = policy.inProcess(project, s, m)
	return o, err
}

// FeaturesSpec says how a request of keys becomes the model's input.
type FeaturesSpec struct {
	Service  string            `json:"service" doc:"Feature service, such as delay or delay@2; its newest version when this is applied"`
	Input    string            `json:"input" doc:"The model's tensor that is filled, or one that steps before it take: [n, number of columns], FP32 or FP64"`
	Columns  []string          `json:"columns" doc:"Its columns in order: weather:temp is a feature, other names are inputs of the request"`
	Defaults map[string]Number `json:"defaults,omitempty" doc:"Values for features that are missing, NULL or too old: by weather:temp, or weather:* for all of a view; nan is missing"`
	MaxAge   map[string]string `json:"max_age,omitempty" doc:"How old a view's values may be, such as weather: 3h; stricter than the view's TTL"`
}

// PredictionSpec is which number of an answer is the score of a row, and whether
// answers are remembered.
type PredictionSpec struct {
	Output string `json:"output,omitempty" doc:"Output tensor; the only float output when left out"`
	Index  *int   `json:"index,omitempty" doc:"Column of it, from 0; the last when left out"`
	// Task is not guessed from answers or labels.
	Task    prediction.Task `json:"task,omitempty" enum:"regression,binary,multiclass" doc:"What the model answers: regression, binary or multiclass; default, of a model with an output of classes beside its probabilities, binary for up to two and multiclass for more, else unknown"`
	Classes []string        `json:"classes,omitempty" maxItems:"1000" doc:"What labels call the classes, in the order of the probabilities; default their numbers from 0"`
	Log     *bool           `json:"log,omitempty" doc:"false: answers are not remembered, so that there is nothing to monitor, to label, to verify, or to judge a new version by" default:"true"`
}

// BatchingSpec is how requests wait for the model and share its runs.
type BatchingSpec struct {
	MaxRows    int     `json:"max_rows,omitempty" doc:"Rows of a run that several requests share; 1: each request runs alone" default:"64"`
	MaxDelay   string  `json:"max_delay,omitempty" doc:"How long a request waits for company although a core is free, such as 2ms, at most 1s. Without it only what waits anyway shares a run" default:"0"`
	Queue      int     `json:"queue,omitempty" doc:"Rows that may wait; a request beyond is refused with 503" default:"4096"`
	Priorities int     `json:"priorities,omitempty" doc:"Levels of the request parameter priority, up to 16: 1 comes first; a request of no level is of the last one" default:"1"`
	Timeout    string  `json:"timeout,omitempty" doc:"How long a request that does not say may wait, such as 500ms; default: as long as its client does"`
	Tolerance  float64 `json:"tolerance,omitempty" doc:"How far a row's numbers may be apart in a batch and alone, in parts of the largest of the output's column, 1e-9 to 0.5; a model that is further apart is not batched" default:"0.0001"`
}

// LimitsSpec is how much may be asked of a deployment, on each server.
type LimitsSpec struct {
	Per      string  `json:"per,omitempty" doc:"token: of each token by itself; user: of each user or service account, with all tokens; deployment: of all together" default:"token"`
	Requests float64 `json:"requests,omitempty" doc:"Requests a second; default: any number"`
	Rows     float64 `json:"rows,omitempty" doc:"Rows a second; default: any number"`
	Burst    string  `json:"burst,omitempty" doc:"What is allowed in this time may come at once, and is as much as may be saved up; 1s to 1h" default:"1s"`

	Quota QuotaSpec `json:"quota,omitzero" doc:"How much in a day or a month"`
}

// Number is a float64 whose JSON form may be "nan".
type Number float64

// MarshalJSON writes NaN as "nan".
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) {
		return []byte(`"nan"`), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads a number or "nan".
func (n *Number) UnmarshalJSON(b []byte) error {
	if s := strings.ToLower(strings.Trim(string(b), `"`)); s == "nan" || s == ".nan" {
		*n = Number(math.NaN())
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsInf(f, 0) {
		return fault.New(fault.Invalid, "%.40s is not a number; it may be a finite number, or nan", b)
	}
	*n = Number(f)
	return nil
}

// Limits of a spec.
const (
	maxColumns = 4096
	maxRules   = 1000
	maxBatch   = 4096
	maxQueue   = 1 << 20
	maxRate    = 1e9
)

// Validate says what is wrong with the spec.
func (s Spec) Validate() error {
	if s.Model == "" {
		return fault.New(fault.Invalid, "spec.model is missing").WithHint("Name a registered model; `falaj get models` lists them.")
	}
	if s.Threads < 0 || s.Threads > 256 {
		return fault.New(fault.Invalid, "spec.threads is %d; it may be 0 to 256", s.Threads)
	}
	if s.Prediction != nil && s.Prediction.Index != nil && *s.Prediction.Index < 0 {
		return fault.New(fault.Invalid, "spec.prediction.index is %d; columns are counted from 0", *s.Prediction.Index)
	}
	if err := s.Prediction.validTask(); err != nil {
		return err
	}
	if s.Rollout != (rollout.Spec{}) { // a metric's own defaults are its business
		if err := s.Rollout.Validate(); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Runtime.validate(), s.Batching.validate(), s.Limits.validate(), s.Scale.validate(s)); err != nil {
		return err
	}
	if err := s.remote().validate(s); err != nil {
		return fault.Wrap(err, "spec.runtime.remote")
	}
	return errors.Join(s.chain().Validate(), s.Features.validate())
}

func (p *PredictionSpec) validTask() error {
	if p == nil {
		return nil
	}
	switch p.Task {
	case "", prediction.Regression, prediction.Binary:
	case prediction.Multiclass:
		if p.Index != nil {
			return fault.New(fault.Invalid, "spec.prediction.index is given, and task multiclass takes all columns").WithHint("Leave out index.")
		}
	default:
		return fault.New(fault.Invalid, "spec.prediction.task is %.40q", string(p.Task)).WithHint("It may be regression, binary or multiclass.")
	}
	if n := len(p.Classes); n > 0 && (p.Task == prediction.Regression || n < 2 || n > maxClasses || p.Task == prediction.Binary && n != 2) {
		return fault.New(fault.Invalid, "spec.prediction.classes has %d names", n).
			WithHint("Name 2 classes of a binary model, or 2 to %d of one of several classes; a regression has none.", maxClasses)
	}
	for i, c := range p.Classes {
		if c == "" || len(c) > maxClass || !utf8.ValidString(c) || slices.Contains(p.Classes[:i], c) {
			return fault.New(fault.Invalid, "spec.prediction.classes[%d] is %.60q; a class is a text of up to %d bytes, named once", i, c, maxClass)
		}
	}
	return nil
}

func (b *BatchingSpec) validate() error {
	if b == nil {
		return nil
	}
	delay, err := resource.ParseDuration(b.MaxDelay)
	timeout, errTimeout := resource.ParseDuration(b.Timeout)
	var says string
	switch {
	case b.MaxRows < 0 || b.MaxRows > maxBatch:
		says = fmt.Sprintf("max_rows is %d; it may be 1 to %d", b.MaxRows, maxBatch)
	case err != nil || delay > time.Second:
		says = fmt.Sprintf("max_delay: %.40q is no duration up to 1s, such as 2ms", b.MaxDelay)
	case b.Queue < 0 || b.Queue > maxQueue:
		says = fmt.Sprintf("queue is %d; it may be 1 to %d", b.Queue, maxQueue)
	case b.Priorities < 0 || b.Priorities > batching.MaxPriorities:
		says = fmt.Sprintf("priorities is %d; it may be 1 to %d", b.Priorities, batching.MaxPriorities)
	case errTimeout != nil || timeout > time.Hour:
		says = fmt.Sprintf("timeout: %.40q is no duration up to 1h, such as 500ms", b.Timeout)
	case timeout > 0 && timeout <= delay:
		says = "timeout is not over max_delay, so that requests would be refused before they have waited for company"
	case b.Tolerance != 0 && !(b.Tolerance >= 1e-9 && b.Tolerance <= 0.5):
		says = fmt.Sprintf("tolerance is %g; it may be 1e-9 to 0.5", b.Tolerance)
	default:
		return nil
	}
	return fault.New(fault.Invalid, "spec.batching.%s", says)
}

// options are the spec's, which was validated.
func (b *BatchingSpec) options(threads int) batching.Options {
	if b == nil {
		return batching.Options{Threads: threads}
	}
	delay, _ := resource.ParseDuration(b.MaxDelay)
	timeout, _ := resource.ParseDuration(b.Timeout)
	return batching.Options{
		MaxRows: b.MaxRows, MaxDelay: delay, MaxWaiting: b.Queue, Priorities: b.Priorities, Timeout: timeout, Threads: threads, Tolerance: b.Tolerance,
	}
}

func (l *LimitsSpec) validate() error {
	if l == nil {
		return nil
	}
	burst, err := resource.ParseDuration(l.Burst)
	var says string
	switch {
	case l.Per != "" && l.Per != "token" && l.Per != "user" && l.Per != "deployment":
		says = fmt.Sprintf("per is %.40q; it may be token, user or deployment", l.Per)
	case !(l.Requests >= 0 && l.Requests <= maxRate):
		says = fmt.Sprintf("requests is %g; it may be up to %g", l.Requests, float64(maxRate))
	case !(l.Rows >= 0 && l.Rows <= maxRate):
		says = fmt.Sprintf("rows is %g; it may be up to %g", l.Rows, float64(maxRate))
	case err != nil || l.Burst != "" && (burst < time.Second || burst > time.Hour):
		says = fmt.Sprintf("burst: %.40q is no duration of 1s to 1h", l.Burst)
	default:
		return l.Quota.validate()
	}
	return fault.New(fault.Invalid, "spec.limits.%s", says)
}

func (f *FeaturesSpec) validate() error {
	if f == nil {
		return nil
	}
	wrong := func(field, format string, args ...any) error {
		return fault.Wrap(fault.New(fault.Invalid, format, args...), "spec.features.%s", field)
	}
	switch {
	case f.Service == "":
		return wrong("service", "it is missing")
	case f.Input == "":
		return wrong("input", "it is missing; name the model's input that the columns fill")
	case len(f.Columns) == 0 || len(f.Columns) > maxColumns:
		return wrong("columns", "there are %d; there may be 1 to %d", len(f.Columns), maxColumns)
	case len(f.Defaults) > maxRules || len(f.MaxAge) > maxRules:
		return wrong("defaults", "there are over %d rules", maxRules)
	}
	views := map[string]bool{}
	for i, c := range f.Columns {
		if c == "" || len(c) > 512 {
			return wrong("columns", "number %d has a name of %d bytes", i+1, len(c))
		}
		if slices.Contains(f.Columns[:i], c) {
			return wrong("columns", "%q is there twice", c)
		}
		if view, _, ok := strings.Cut(c, ":"); ok {
			views[view] = true
		}
	}
	for rule := range f.Defaults {
		view, feature, ok := strings.Cut(rule, ":")
		if !ok || (feature == "*" && !views[view]) || (feature != "*" && !slices.Contains(f.Columns, rule)) {
			return wrong("defaults", "%q is no feature among the columns", rule)
		}
	}
	for view, age := range f.MaxAge {
		if !views[view] {
			return wrong("max_age", "no column is a feature of %q", view)
		}
		if d, err := resource.ParseDuration(age); err != nil || d == 0 {
			return wrong("max_age", "%s: %.40q is no duration such as 90m, 3h or 7d", view, age)
		}
	}
	return nil
}

// same reports whether two specs say the same.
func (s Spec) same(o Spec) bool {
	a, errA := json.Marshal(s)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// alias is the registry's alias that the spec follows; "" for a number.
func (s Spec) alias() string {
	if s.Version == "" {
		return "champion"
	}
	if _, err := strconv.ParseInt(s.Version, 10, 64); err == nil {
		return ""
	}
	return s.Version
}

// remembered reports whether answers are written to the prediction log.
func (s Spec) remembered() bool {
	return s.Prediction == nil || s.Prediction.Log == nil || *s.Prediction.Log
}

// automatic reports whether the manifest allows automatic acts.
func (s Spec) automatic() bool { return s.Automation == nil || *s.Automation }

// Tied says why a deployment can only answer where it was applied; empty when it can
// elsewhere, too.
func (s Spec) Tied() string {
	switch {
	case s.Features != nil:
		return "it looks features up, which are kept at its own server"
	case s.remote().Name != "":
		return "it runs on the remote " + s.remote().Name + " of its own server"
	case s.Runtime != nil && s.Runtime.Python != (PythonSpec{}):
		return "its model is Python, and gateways run ONNX"
	}
	return ""
}
