package trial_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// points on a coarse lattice, so that there are ties.
func points(t *rapid.T, dimensions int) [][]float64 {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []float64 {
		p := make([]float64, dimensions)
		for i := range p {
			p[i] = float64(rapid.IntRange(0, 5).Draw(t, "coordinate"))
		}
		return p
	}), 0, 12).Draw(t, "points")
}

// TestHypervolume: the volume is the count of the lattice's cells that a point covers.
func TestHypervolume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.IntRange(1, 3).Draw(t, "dimensions")
		all := points(t, d)
		reference := []float64{5, 4, 5}[:d]
		want := 0
		var count func(cell []float64)
		count = func(cell []float64) {
			if len(cell) == d {
				if slices.ContainsFunc(all, func(p []float64) bool {
					for i := range p {
						if p[i] > cell[i] {
							return false
						}
					}
					return true
				}) {
					want++
				}
				return
			}
			for x := range int(reference[len(cell)]) {
				count(append(slices.Clone(cell), float64(x)))
			}
		}
		count(nil)
		if got := trial.Hypervolume(all, reference); math.Abs(got-float64(want)) > 1e-9 {
			t.Fatalf("%v: %v, not %d", all, got, want)
		}
	})
}

// TestRanks: a rank is one more than the highest of what dominates the point.
func TestRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := points(t, rapid.IntRange(1, 4).Draw(t, "dimensions"))
		ranks := trial.Ranks(all, len(all))
		for i, p := range all {
			want := 0
			for j, q := range all {
				if trial.Dominates(q, p) {
					want = max(want, ranks[j]+1)
				}
			}
			if ranks[i] != want {
				t.Fatalf("%v: %v, %v has not %d", all, ranks, p, want)
			}
		}
	})
}

func TestFront(t *testing.T) {
	done := func(n int, values ...float64) trial.Trial {
		return trial.Trial{Number: n, State: trial.Complete, Values: values}
	}
	running := done(9, 100, 0)
	running.State = trial.Running
	infeasible := done(7, 100, 0)
	infeasible.Infeasible = true
	got := trial.Front([]trial.Trial{
		running, infeasible, done(5, 3, 1), done(4, 3, 1), done(0, 1, 1), done(1, 3, 3), done(2, 4, math.NaN()), done(3, 5, 9), done(6, 9),
	}, []trial.Direction{trial.Maximize, trial.Minimize})
	var numbers []int
	for _, f := range got {
		numbers = append(numbers, f.Number)
	}
	if !slices.Equal(numbers, []int{3, 4, 5}) {
		t.Errorf("%v", numbers)
	}
	if last, ok := (trial.Trial{Reports: []trial.Report{{Step: 3, Value: 1}, {Step: 7, Value: 2}, {Step: 5, Value: 3}}}).Last(); !ok || last.Value != 2 {
		t.Errorf("the last report is %+v", last)
	}
}
