// Package trial is what a sweep knows of one try: its parameters, what it reported and
// how it ended. Samplers (search), stopping rules (stop) and pictures (importance, Front)
// are functions of trials.
package trial

import (
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/tuning/space"
)

// State is how far a trial is.
type State string

// The states. Only Running is not final.
const (
	Running  State = "running"
	Complete State = "complete" // it returned its values, NaN perhaps
	Stopped  State = "stopped"  // by a stopping rule, before it was through
	Failed   State = "failed"   // it has no result, and nothing is learnt from it
)

// Direction is what of a value is better.
type Direction string

// The directions.
const (
	Minimize Direction = "minimize"
	Maximize Direction = "maximize"
)

// Loss is a value whose lower is better; NaN is worse than anything.
func (d Direction) Loss(v float64) float64 {
	switch {
	case math.IsNaN(v):
		return math.Inf(1)
	case d == Maximize:
		return -v
	}
	return v
}

// Report is a value on the way.
type Report struct {
	Step  int64     `json:"step"`
	Value float64   `json:"value"`
	At    time.Time `json:"at"`
}

// Trial is a try. Its number is its own within the sweep, from 0.
type Trial struct {
	Number  int
	State   State
	Params  space.Params
	Values  []float64 // of a complete one, one for each objective
	Reports []Report  // a step once, in any order
	Started time.Time
	// Infeasible says that it violates a constraint, and so is never the best.
	Infeasible bool
}

// Last is the report of the highest step.
func (t Trial) Last() (Report, bool) {
	if len(t.Reports) == 0 {
		return Report{}, false
	}
	return slices.MaxFunc(t.Reports, func(a, b Report) int { return compare(a.Step, b.Step) }), true
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Losses are the values of a complete trial, lower better. ok is false for one that is
// not complete or has not a value for each objective.
func (t Trial) Losses(directions []Direction) (losses []float64, ok bool) {
	if t.State != Complete || len(t.Values) != len(directions) {
		return nil, false
	}
	for i, d := range directions {
		losses = append(losses, d.Loss(t.Values[i]))
	}
	return losses, true
}
