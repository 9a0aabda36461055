package serving

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

// Spec is what a Deployment manifest says.
type Spec struct {
	Model      string          `json:"model" doc:"Registered model"`
	Version    string          `json:"version,omitempty" doc:"Version number or alias; empty is the alias champion. A promotion moves the alias"`
	Threads    int             `json:"threads,omitempty" doc:"Threads inside one run; 0 is 1, best when many requests run side by side"`
	Features   *FeaturesSpec   `json:"features,omitempty" doc:"Requests may carry keys; the model's input is filled with features looked up online"`
	Prediction *PredictionSpec `json:"prediction,omitempty" doc:"Which number of the answer is monitored, the last column of the only float output when left out; and whether answers are remembered"`
	Rollout    rollout.Spec    `json:"rollout,omitzero" doc:"How new versions are tried"`
	Automation *bool           `json:"automation,omitempty" doc:"false: nothing automatic happens to this deployment" default:"true"`
}

// FeaturesSpec says how a request of keys becomes the model's input.
type FeaturesSpec struct {
	Service  string            `json:"service" doc:"Feature service, such as delay or delay@2; its newest version when this is applied"`
	Input    string            `json:"input" doc:"The model's tensor that is filled: [n, number of columns], FP32 or FP64"`
	Columns  []string          `json:"columns" doc:"Its columns in order: weather:temp is a feature, other names are inputs of the request"`
	Defaults map[string]Number `json:"defaults,omitempty" doc:"Values for features that are missing, NULL or too old: by weather:temp, or weather:* for all of a view; nan is missing"`
	MaxAge   map[string]string `json:"max_age,omitempty" doc:"How old a view's values may be, such as weather: 3h; stricter than the view's TTL"`
}

// PredictionSpec is which number of an answer is the score of a row, and whether
// answers are remembered.
type PredictionSpec struct {
	Output string `json:"output,omitempty" doc:"Output tensor; the only float output when left out"`
	Index  *int   `json:"index,omitempty" doc:"Column of it, from 0; the last when left out"`
	Log    *bool  `json:"log,omitempty" doc:"false: answers are not remembered, so that there is nothing to monitor, to label, to verify, or to judge a new version by" default:"true"`
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
	if s.Rollout != (rollout.Spec{}) { // a metric's own defaults are its business
		if err := s.Rollout.Validate(); err != nil {
			return err
		}
	}
	return s.Features.validate()
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
