// Package change finds change, by the tests of package drift: in a column, between a window and
// its baseline (Compare, Correct); in scores, along a stream of records (Streams). It is pure:
// which windows and columns there are, and what follows, monitoring decides.
package change

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Methods are the tests that a manifest may name.
func Methods() []string { return words(drift.Methods()) }

// Corrections are the corrections for several tests that a manifest may name.
func Corrections() []string { return words(drift.Corrections()) }

func words[T ~string](of []T) []string {
	out := make([]string, len(of))
	for i, w := range of {
		out[i] = string(w)
	}
	return out
}

// Settings are how a column is tested.
type Settings struct {
	Method    string // of Methods
	Alpha     float64
	Threshold float64
	// CheckAlpha is the level of the checks beside the test, which are corrected by themselves.
	CheckAlpha float64
	// Hide keeps values of the data out of notes.
	Hide bool
}

// Result is what a test and the checks say of a column.
type Result struct {
	drift.Result
	Tested bool
	Failed bool     // a check says that it drifted, whatever the test says
	Notes  []string // of the checks, and of the test
}

// Compare tests a column of a window against the baseline's.
func Compare(ref, cur *sketch.Column, s Settings) Result {
	ref, cur = sketch.Alike(ref, cur)
	r := Untested()
	for _, check := range drift.Checks(ref, cur, drift.CheckOptions{Alpha: s.CheckAlpha, Hide: s.Hide}) {
		if !check.Failed {
			continue
		}
		r.Notes = append(r.Notes, check.Detail)
		switch check.Name {
		case drift.CheckType, drift.CheckMissing, drift.CheckInfinite:
			r.Failed = true
		default: // new categories and values out of range are for people
		}
	}
	options := drift.Options{Alpha: s.Alpha, Threshold: s.Threshold, Seed: 1}
	result, err := drift.Test(drift.Method(s.Method), ref, cur, options)
	if err != nil { // the method is for columns of another kind
		result, err = drift.Test(drift.Auto, ref, cur, options)
	}
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
		return r
	}
	r.Result, r.Tested = result, result.Outcome == drift.Compared
	if result.Note != "" {
		r.Notes = append(r.Notes, result.Note)
	}
	return r
}

// Untested is the result of a column that has no test.
func Untested() Result {
	return Result{Result: drift.Result{Outcome: drift.Undecided, PValue: math.NaN(), Adjusted: math.NaN()}}
}

// Correct gives the results with the p-values corrected for their number, as Corrections name it;
// unchanged for a name that is none of them.
func Correct(of []Result, correction string) []Result {
	tests := make([]drift.Result, len(of))
	for i, r := range of {
		tests[i] = r.Result
	}
	corrected, err := drift.Correct(tests, drift.Correction(correction))
	if err != nil {
		return of
	}
	out := slices.Clone(of)
	for i := range out {
		out[i].Result = corrected[i]
	}
	return out
}
