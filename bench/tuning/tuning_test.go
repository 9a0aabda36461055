package main

import (
	"math"
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
	"github.com/falaj-ml/falaj/internal/tuning/space"
)

func TestQuick(t *testing.T) {
	harnesstest.Quick(t, "tuning", steps,
		"branin, best of 15 trials: distance from the least value", "conditional, best of 15 trials: distance from the least value, beside random search",
		"suggestion after 20 trials, 10 ints", "sweep of 4 jobs with ASHA: time")
}

// TestLeast: the functions are 0 where papers say, and nowhere below.
func TestLeast(t *testing.T) {
	at := map[string]space.Params{
		"branin":      {"x0": math.Pi, "x1": 2.275},
		"hartmann6":   {"x0": 0.20169, "x1": 0.150011, "x2": 0.476874, "x3": 0.275332, "x4": 0.311652, "x5": 0.6573},
		"ackley":      {"x0": 0.0, "x1": 0.0, "x2": 0.0, "x3": 0.0, "x4": 0.0},
		"rosenbrock":  {"x0": 1.0, "x1": 1.0, "x2": 1.0, "x3": 1.0},
		"mixed":       {"lr": 1e-3, "dropout": 0.3, "layers": int64(4), "units": int64(128), "activation": "relu", "norm": true},
		"conditional": {"model": "net", "lr": math.Pow(10, -2.5), "dropout": 0.2, "layers": int64(2), "units2": int64(64)},
	}
	for _, p := range functions() {
		if err := p.space.Validate(); err != nil {
			t.Fatal(err)
		}
		params, err := p.space.Check(at[p.name])
		if err != nil {
			t.Fatal(err)
		}
		if got := p.loss(params); math.Abs(got) > 1e-6 {
			t.Errorf("%s is %v where it is least", p.name, got)
		}
		history, err := p.random(2000)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range history {
			if got := p.loss(h.Params); !(got > -1e-6) {
				t.Fatalf("%s is %v at %v", p.name, got, h.Params)
			}
		}
	}
}

// TestMannWhitney: the numbers are scipy's.
func TestMannWhitney(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8}, []float64{3, 4, 5, 6, 7, 8, 9, 10}, 0.9369},
		{[]float64{3, 4, 5, 6, 7, 8, 9, 10}, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 0.0772},
		{[]float64{1, 1, 1, 2}, []float64{1, 1, 1, 1}, 0.2266},
		{[]float64{1, 1}, []float64{1, 1}, 1},
	} {
		if got := mannWhitney(c.a, c.b); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("%v and %v: %.4f, not %v", c.a, c.b, got, c.want)
		}
	}
	if got := holm([]float64{0.04, 0.01, 0.03}); got[0] != 0.06 || got[1] != 0.03 || got[2] != 0.06 {
		t.Errorf("%v", got)
	}
}
