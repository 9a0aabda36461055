package search

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/space/spacetest"
)

// TestLogMass: the series is what the error functions say, where these are exact.
func TestLogMass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Float64Range(-30, 30).Draw(t, "a")
		b := a + math.Exp(rapid.Float64Range(-3, 3).Draw(t, "log of the width"))
		x, y := a, b
		if x > 0 {
			x, y = -y, -x
		}
		want := math.Log((math.Erfc(-y/math.Sqrt2) - math.Erfc(-x/math.Sqrt2)) / 2)
		if got := logMass(a, b); math.Abs(got-want) > 2e-5*max(1, math.Abs(want)*1e-3) {
			t.Fatalf("from %v to %v: %v, not %v", a, b, got, want)
		}
	})
}

// TestMassIsOne: what cells and choices have sums to one, whatever was observed.
func TestMassIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := spacetest.Parameter(t)
		n, countable := p.Count()
		if !countable || p.Single() {
			t.Skip("nothing to sum")
		}
		var rows [][]float64
		for range rapid.IntRange(0, 40).Draw(t, "observed") {
			x, err := p.Encode(p.At(rapid.Float64Range(0, 0.999).Draw(t, "u")))
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, []float64{x})
		}
		var points [][]float64
		for i := range int(n) {
			x := float64(i)
			if p.Type != space.Categorical {
				x = nearest(p, p.Low+float64(i)*p.Stride())
			}
			points = append(points, []float64{x})
		}
		sum := 0.0
		for _, l := range newParzen([]space.Parameter{p}, rows, ageing(len(rows))).logDensities(points) {
			sum += math.Exp(l)
		}
		// The last step may be cut off by high, and a single value has no neighbours.
		if math.Abs(sum-1) > 1e-4 {
			t.Fatalf("%+v: the sum of %v values is %v", p, n, sum)
		}
	})
}

// TestDrawsFollow: draws are as dense as the density says.
func TestDrawsFollow(t *testing.T) {
	for _, p := range []space.Parameter{
		{Name: "float", Type: space.Float, Low: -1, High: 1},
		{Name: "log", Type: space.Float, Low: 1e-3, High: 1, Log: true},
		{Name: "int", Type: space.Int, Low: 0, High: 9},
		{Name: "log int", Type: space.Int, Low: 1, High: 10, Log: true},
		{Name: "step", Type: space.Float, Low: 0, High: 0.95, Step: 0.1},
		{Name: "choice", Type: space.Categorical, Choices: space.Choices{"a", "b", "c"}},
	} {
		rng := Config{Seed: 1}.rng(1)
		var rows [][]float64
		for _, u := range []float64{0.1, 0.12, 0.8, 0.7, 0.11} {
			x, _ := p.Encode(p.At(u))
			rows = append(rows, []float64{x})
		}
		e := newParzen([]space.Parameter{p}, rows, ageing(len(rows)))
		// Importance sampling: the mean of uniform over density is one.
		low, high := p.Bounds()
		const n = 20_000
		var draws [][]float64
		for range n {
			draws = append(draws, e.draw(rng))
		}
		mean := 0.0
		count, countable := p.Count()
		for _, l := range e.logDensities(draws) {
			uniform := 1 / (high - low)
			if countable {
				uniform = 1 / count
			}
			mean += uniform / math.Exp(l) / n
		}
		if math.Abs(mean-1) > 0.05 {
			t.Errorf("%s: the mean of uniform over density is %.3f, not 1", p.Name, mean)
		}
	}
}
