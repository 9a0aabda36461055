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
	Version    string            `json:"version,omitempty" doc:"Version number or alias; default the alias champion. A promotion moves the alias"`
	Threads    int               `json:"threads,omitempty" doc:"Threads per run; 0 means 1, best for many concurrent requests"`
	Inputs     []chain.InputSpec `json:"inputs,omitempty" doc:"Request inputs of the steps, where no model defines them"`
	Before     []chain.StepSpec  `json:"before,omitempty" doc:"Steps that transform request inputs into the model's inputs"`
	After      []chain.StepSpec  `json:"after,omitempty" doc:"Steps that transform the model's outputs into the response"`
	Outputs    []string          `json:"outputs,omitempty" doc:"Tensors and columns of the response; default the outputs of the model and the steps after it"`
	Runtime    *RuntimeSpec      `json:"runtime,omitempty" doc:"Where and how the model runs"`
	Batching   *BatchingSpec     `json:"batching,omitempty" doc:"Queueing and batching of requests; the defaults suit most models"`
	Scale      *ScaleSpec        `json:"scale,omitempty" doc:"Replicas of the model; default one, always loaded"`
	Limits     *LimitsSpec       `json:"limits,omitempty" doc:"Rate limits and quotas; requests beyond them are rejected with 429"`
	Features   *FeaturesSpec     `json:"features,omitempty" doc:"Features that are looked up online by keys of the request and fill the model's input"`
	Prediction *PredictionSpec   `json:"prediction,omitempty" doc:"Monitored output (default: the last column of the only float output), and whether predictions are logged"`
	Rollout    rollout.Spec      `json:"rollout,omitzero" doc:"Canary analysis of new versions"`
	Automation *bool             `json:"automation,omitempty" doc:"false disables automatic actions on this deployment" default:"true"`
}

// RuntimeSpec is where a model runs.
type RuntimeSpec struct {
	Isolation Isolation      `json:"isolation,omitempty" doc:"child: in its own process, without keys, files or network; in-process: in the server's process, only for models listed in the server's serving.in_process; auto: in-process for models listed there without replicas, otherwise child" default:"auto"`
	Memory    resource.Bytes `json:"memory,omitempty" doc:"Memory limit of the model's process, such as 4GiB; default 2 GiB plus eight times the model's file; at most the server's serving.process_memory"`
	Python    PythonSpec     `json:"python,omitzero" doc:"Runs the version as a Python model: a predict.py, a scikit-learn model in MLflow's format or a model.tflite, even if it also has a model.onnx"`
	Remote    RemoteSpec     `json:"remote,omitzero" doc:"Remote inference server that runs the model"`
}

// minMemory is less than a process with the smallest model needs.
const minMemory = 256 * resource.MiB

func (r *RuntimeSpec) validate() error {
	switch {
	case r == nil:
		return nil
	case r.Remote != (RemoteSpec{}) && (r.Isolation != "" || r.Memory != 0):
		return fault.New(fault.Invalid, "spec.runtime.remote: isolation and memory are not supported for remote models")
	case r.Remote != (RemoteSpec{}) && r.Python != (PythonSpec{}):
		return fault.New(fault.Invalid, "spec.runtime.remote: python is not supported for remote models")
	case r.Isolation != "" && r.Isolation != Auto && r.Isolation != InProcess && r.Isolation != Child:
		return fault.New(fault.Invalid, "spec.runtime.isolation: unknown value %.40q: use auto, in-process or child", r.Isolation)
	case r.Memory != 0 && r.Memory < minMemory:
		return fault.New(fault.Invalid, "spec.runtime.memory: %s is less than the minimum of %s", r.Memory, minMemory)
	}
	return r.Python.validate(r.Isolation)
}

// options are how the runtime loads a version.
func (s Spec) options(project string, m Model, policy InProcessPolicy) (o models.Options, err error) {
	o.Threads = s.Threads
	if r := s.remote(); r.Name != "" {
		if r.fixed() && s.Version != strconv.FormatInt(m.Version, 10) {
			return o, fault.New(fault.Invalid, "the deployment's model at the remote %s belongs to version %s, not %d", r.Name, s.Version, m.Version).
				WithHint("Use {version} in spec.runtime.remote, if the remote has one model per version.")
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
	Service  string            `json:"service" doc:"Feature service, such as delay or delay@2; default its newest version when this is applied"`
	Input    string            `json:"input" doc:"Input tensor to fill, of the model or of steps before it: [n, number of columns], FP32 or FP64"`
	Columns  []string          `json:"columns" doc:"Columns of the tensor in order: weather:temp is a feature, other names are inputs of the request"`
	Defaults map[string]Number `json:"defaults,omitempty" doc:"Defaults for features that are missing, NULL or too old: by weather:temp, or weather:* for all of a view; nan means missing"`
	MaxAge   map[string]string `json:"max_age,omitempty" doc:"Maximum age of a view's values, such as weather: 3h, if stricter than the view's TTL"`
}

// PredictionSpec is which number of an answer is the score of a row, and whether
// answers are remembered.
type PredictionSpec struct {
	Output string `json:"output,omitempty" doc:"Output tensor; default the only float output"`
	Index  *int   `json:"index,omitempty" doc:"Column of the output, from 0; default the last"`
	// Task is not guessed from answers or labels.
	Task    prediction.Task `json:"task,omitempty" enum:"regression,binary,multiclass" doc:"Task of the model: regression, binary or multiclass; default, for a model with an output of classes beside its probabilities, binary up to two and multiclass for more, otherwise unknown"`
	Classes []string        `json:"classes,omitempty" maxItems:"1000" doc:"Class names used by labels, in the order of the probabilities; default their numbers from 0"`
	Log     *bool           `json:"log,omitempty" doc:"false disables the prediction log, and with it monitoring, labels, verification and canary analysis" default:"true"`
}

// BatchingSpec is how requests wait for the model and share its runs.
type BatchingSpec struct {
	MaxRows    int     `json:"max_rows,omitempty" doc:"Maximum rows of a batch; 1 disables batching" default:"64"`
	MaxDelay   string  `json:"max_delay,omitempty" doc:"Time that a request waits for a batch although a core is free, such as 2ms, at most 1s. By default only queued requests are batched" default:"0"`
	Queue      int     `json:"queue,omitempty" doc:"Maximum queued rows; further requests are rejected with 503" default:"4096"`
	Priorities int     `json:"priorities,omitempty" doc:"Levels of the request parameter priority, up to 16: 1 comes first; requests without one have the last level" default:"1"`
	Timeout    string  `json:"timeout,omitempty" doc:"Default time-out in the queue, such as 500ms; default the client's"`
	Tolerance  float64 `json:"tolerance,omitempty" doc:"Accepted difference between a row's numbers in a batch and alone, relative to the largest of the output's column, 1e-9 to 0.5; models with larger differences are not batched" default:"0.0001"`
}

// LimitsSpec is how much may be asked of a deployment, on each server.
type LimitsSpec struct {
	Per      string  `json:"per,omitempty" doc:"token: per token; user: per user or service account over all tokens; deployment: all callers together" default:"token"`
	Requests float64 `json:"requests,omitempty" doc:"Requests per second; default unlimited"`
	Rows     float64 `json:"rows,omitempty" doc:"Rows per second; default unlimited"`
	Burst    string  `json:"burst,omitempty" doc:"Burst: the amount allowed in this time may arrive at once; 1s to 1h" default:"1s"`

	Quota QuotaSpec `json:"quota,omitzero" doc:"Quota per day or month"`
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
		return fault.New(fault.Invalid, "%.40s is neither a finite number nor nan", b)
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
		return fault.New(fault.Invalid, "spec.model: required").WithHint("Name a registered model; `falaj get models` lists them.")
	}
	if s.Threads < 0 || s.Threads > 256 {
		return fault.New(fault.Invalid, "spec.threads: %d is outside the range 0 to 256", s.Threads)
	}
	if s.Prediction != nil && s.Prediction.Index != nil && *s.Prediction.Index < 0 {
		return fault.New(fault.Invalid, "spec.prediction.index: %d is negative", *s.Prediction.Index)
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
			return fault.New(fault.Invalid, "spec.prediction.index: not allowed with task multiclass, which uses all columns").WithHint("Remove index.")
		}
	default:
		return fault.New(fault.Invalid, "spec.prediction.task: unknown task %.40q", string(p.Task)).WithHint("Use regression, binary or multiclass.")
	}
	if n := len(p.Classes); n > 0 && (p.Task == prediction.Regression || n < 2 || n > maxClasses || p.Task == prediction.Binary && n != 2) {
		return fault.New(fault.Invalid, "spec.prediction.classes: invalid number of names: %d", n).
			WithHint("Name 2 classes for a binary model, or 2 to %d for a multiclass model; a regression has none.", maxClasses)
	}
	for i, c := range p.Classes {
		if c == "" || len(c) > maxClass || !utf8.ValidString(c) || slices.Contains(p.Classes[:i], c) {
			return fault.New(fault.Invalid, "spec.prediction.classes[%d]: %.60q is not a unique text of at most %d bytes", i, c, maxClass)
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
		says = fmt.Sprintf("max_rows: %d is outside the range 1 to %d", b.MaxRows, maxBatch)
	case err != nil || delay > time.Second:
		says = fmt.Sprintf("max_delay: %.40q is not a duration up to 1s, such as 2ms", b.MaxDelay)
	case b.Queue < 0 || b.Queue > maxQueue:
		says = fmt.Sprintf("queue: %d is outside the range 1 to %d", b.Queue, maxQueue)
	case b.Priorities < 0 || b.Priorities > batching.MaxPriorities:
		says = fmt.Sprintf("priorities: %d is outside the range 1 to %d", b.Priorities, batching.MaxPriorities)
	case errTimeout != nil || timeout > time.Hour:
		says = fmt.Sprintf("timeout: %.40q is not a duration up to 1h, such as 500ms", b.Timeout)
	case timeout > 0 && timeout <= delay:
		says = "timeout: must be greater than max_delay, or requests would time out before they are batched"
	case b.Tolerance != 0 && !(b.Tolerance >= 1e-9 && b.Tolerance <= 0.5):
		says = fmt.Sprintf("tolerance: %g is outside the range 1e-9 to 0.5", b.Tolerance)
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
		says = fmt.Sprintf("per: unknown value %.40q: use token, user or deployment", l.Per)
	case !(l.Requests >= 0 && l.Requests <= maxRate):
		says = fmt.Sprintf("requests: %g is outside the range 0 to %g", l.Requests, float64(maxRate))
	case !(l.Rows >= 0 && l.Rows <= maxRate):
		says = fmt.Sprintf("rows: %g is outside the range 0 to %g", l.Rows, float64(maxRate))
	case err != nil || l.Burst != "" && (burst < time.Second || burst > time.Hour):
		says = fmt.Sprintf("burst: %.40q is not a duration from 1s to 1h", l.Burst)
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
		return wrong("input", "required; name the model's input that the columns fill")
	case len(f.Columns) == 0 || len(f.Columns) > maxColumns:
		return wrong("columns", "%d is outside the range 1 to %d", len(f.Columns), maxColumns)
	case len(f.Defaults) > maxRules || len(f.MaxAge) > maxRules:
		return wrong("defaults", "more than %d rules", maxRules)
	}
	views := map[string]bool{}
	for i, c := range f.Columns {
		if c == "" || len(c) > 512 {
			return wrong("columns", "the name of number %d has %d bytes", i+1, len(c))
		}
		if slices.Contains(f.Columns[:i], c) {
			return wrong("columns", "duplicate column %q", c)
		}
		if view, _, ok := strings.Cut(c, ":"); ok {
			views[view] = true
		}
	}
	for rule := range f.Defaults {
		view, feature, ok := strings.Cut(rule, ":")
		if !ok || (feature == "*" && !views[view]) || (feature != "*" && !slices.Contains(f.Columns, rule)) {
			return wrong("defaults", "%q is not a feature among the columns", rule)
		}
	}
	for view, age := range f.MaxAge {
		if !views[view] {
			return wrong("max_age", "no column is a feature of %q", view)
		}
		if d, err := resource.ParseDuration(age); err != nil || d == 0 {
			return wrong("max_age", "%s: %.40q is not a duration such as 90m, 3h or 7d", view, age)
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
		return "it uses features, which gateways do not store"
	case s.remote().Name != "":
		return "it runs on the remote " + s.remote().Name + " of its own server"
	case s.Runtime != nil && s.Runtime.Python != (PythonSpec{}):
		return "its model is a Python model, and gateways only run ONNX"
	}
	return ""
}
