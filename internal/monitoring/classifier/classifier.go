// Package classifier is the domain classifier: the program that a job runs to
// tell the rows of a window from those of a baseline, what it is told, and what
// it answers. Pure, but for the program, which runs in the job's sandbox.
//
// # Map
//
//   - domain.py: the program. It needs scikit-learn and pyarrow, and nothing of
//     Falaj but the variables that every job has.
//   - Task is its argument, Decode reads its answer.
//
// # Guarantees
//
// The same rows give the same answer: all choices are seeded. The answer comes
// from another process in an environment that users choose: Decode takes nothing
// from it that is not finite, in range and of bounded size.
package classifier

import (
	_ "embed"
	"encoding/json"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Script is the program.
//
//go:embed domain.py
var Script string

// The names of the job's inputs, and the file of its output that has the answer.
const (
	BaselineData = "baseline"
	WindowData   = "window"
	Output       = "domain.json"
)

// What the program is told where nobody says otherwise.
const (
	Rows         = 20_000 // looked at of each side
	Permutations = 999
	Minimum      = 50 // rows that each side must have
	MaxOutput    = 1 << 20
	maxFeatures  = 100
	maxName      = 512
)

// Task is what the program is to do; its JSON is the program's first argument.
type Task struct {
	Columns      []Column `json:"columns"`
	Rows         int      `json:"rows"`
	Seed         uint32   `json:"seed"`
	Permutations int      `json:"permutations"`
	Minimum      int      `json:"minimum"`
}

// Column is an input of the model, and the column of both datasets that has it.
type Column struct {
	Name      string   `json:"name"`
	Column    string   `json:"column"`
	Text      bool     `json:"text,omitempty"`
	Otherwise *float64 `json:"otherwise,omitempty"` // what the model sees of a null; nil is NaN
}

// TaskOf is the usual task for some columns.
func TaskOf(columns []Column) Task {
	return Task{Columns: columns, Rows: Rows, Seed: 1, Permutations: Permutations, Minimum: Minimum}
}

// Argument is the program's first argument.
func (t Task) Argument() (string, error) {
	b, err := json.Marshal(t)
	return string(b), err
}

// Result is what the program found.
type Result struct {
	AUC       float64   // how well rows of the two sides are told apart: 0.5 is not at all
	Low, High float64   // its 95 % interval
	PValue    float64   // chance to do as well when there is no difference
	Sampled   [2]int64  // rows looked at of baseline and window
	Features  []Feature // the most important first
}

// Feature is an input and how much worse the sides are told apart without it.
type Feature struct {
	Name       string  `json:"name"`
	Importance float64 `json:"importance" doc:"Decrease of the area under the ROC curve when the input's values are shuffled"`
	Deviation  float64 `json:"deviation" doc:"Standard deviation of the importance over the folds"`
}

// Decode reads the answer. Errors: fault.Conflict with the program's own words
// when it says why it has no result; fault.Invalid when it is no answer.
func Decode(b []byte) (Result, error) {
	if len(b) > MaxOutput {
		return Result{}, fault.New(fault.Invalid, "%s has %d bytes, over the limit of %d", Output, len(b), MaxOutput)
	}
	var a struct {
		Error    string     `json:"error"`
		AUC      *float64   `json:"auc"`
		Low      *float64   `json:"low"`
		High     *float64   `json:"high"`
		PValue   *float64   `json:"p_value"`
		Sampled  *[2]int64  `json:"sampled"`
		Features *[]Feature `json:"features"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return Result{}, fault.New(fault.Invalid, "%s is not valid output of the classifier", Output)
	}
	if a.Error != "" {
		return Result{}, fault.New(fault.Conflict, "%s", clean(a.Error))
	}
	if a.AUC == nil || a.Low == nil || a.High == nil || a.PValue == nil || a.Sampled == nil || a.Features == nil {
		return Result{}, fault.New(fault.Invalid, "%s lacks a required field", Output)
	}
	r := Result{AUC: *a.AUC, Low: *a.Low, High: *a.High, PValue: *a.PValue, Sampled: *a.Sampled, Features: *a.Features}
	return r, r.validate()
}

func (r Result) validate() error {
	for _, v := range []float64{r.AUC, r.Low, r.High, r.PValue} {
		if v < 0 || v > 1 {
			return fault.New(fault.Invalid, "%s has %g, and the value must be from 0 to 1", Output, v)
		}
	}
	// The interval has the area in it, but for what floats round.
	if r.Low > r.AUC+1e-9 || r.High < r.AUC-1e-9 || r.Sampled[0] < 1 || r.Sampled[1] < 1 {
		return fault.New(fault.Invalid, "%s is inconsistent", Output)
	}
	if len(r.Features) > maxFeatures {
		return fault.New(fault.Invalid, "%s has %d features, over the limit of %d", Output, len(r.Features), maxFeatures)
	}
	for _, f := range r.Features {
		if f.Name == "" || len(f.Name) > maxName || f.Name != clean(f.Name) || math.Abs(f.Importance) > 1 || f.Deviation < 0 || f.Deviation > 2 {
			return fault.New(fault.Invalid, "%s has the invalid feature %.80q", Output, f.Name)
		}
	}
	return nil
}

// clean is text that may be shown: one line, of bounded length.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > maxName {
		s = string(runes[:maxName])
	}
	return s
}
