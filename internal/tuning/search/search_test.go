package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/space/spacetest"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

type reference struct {
	Space     map[string]json.RawMessage
	Densities []struct {
		Rows, Points []space.Params
		LogPDF       []float64 `json:"log_pdf"`
	}
	Fronts []struct {
		Values       [][]float64
		K            int
		Below, Front []int
		Volume       float64
	}
	Suggested struct {
		History []struct {
			Params space.Params
			Value  float64
		}
		Counts map[string]map[int]float64
	}
}

func optuna(t *testing.T) (reference, space.Space) {
	t.Helper()
	text, err := os.ReadFile("testdata/optuna.json")
	if err != nil {
		t.Fatal(err)
	}
	var ref reference
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	var s space.Space
	for _, name := range []string{"x", "lr", "drop", "units", "layers", "act"} {
		p, err := space.FromOptuna(name, ref.Space[name])
		if err != nil {
			t.Fatal(err)
		}
		s.Parameters = append(s.Parameters, p)
	}
	return ref, s
}

// TestDensities: the densities are those of Optuna, whatever the types.
func TestDensities(t *testing.T) {
	ref, s := optuna(t)
	for _, c := range ref.Densities {
		var points [][]float64
		for _, params := range c.Points {
			row, ok := encoded(s.Parameters, params, nil)
			if !ok {
				t.Fatalf("%v is not in the space", params)
			}
			points = append(points, row)
		}
		for i, got := range observe(s.Parameters, asTrials(c.Rows), ageing).logDensities(points) {
			// Optuna's of a continuous log is of the logarithm, as ours is.
			if want := c.LogPDF[i]; math.Abs(got-want) > 1e-6*math.Abs(want) {
				t.Errorf("%d rows, point %d: %v, Optuna says %v", len(c.Rows), i, got, want)
			}
		}
	}
}

func asTrials(params []space.Params) []trial.Trial {
	out := make([]trial.Trial, len(params))
	for i, p := range params {
		out[i] = trial.Trial{Number: i, State: trial.Complete, Params: p}
	}
	return out
}

// TestFronts: with several objectives the same trials are good as in Optuna.
func TestFronts(t *testing.T) {
	ref, _ := optuna(t)
	for _, c := range ref.Fronts {
		dirs := slices.Repeat([]trial.Direction{trial.Minimize}, len(c.Values[0]))
		var trials []trial.Trial
		for i, v := range c.Values {
			trials = append(trials, trial.Trial{Number: i, State: trial.Complete, Values: v})
		}
		var front []int
		below := slices.Sorted(slices.Values(best(c.Values, c.K)))
		for _, f := range trial.Front(trials, dirs) {
			front = append(front, f.Number)
		}
		if !slices.Equal(below, c.Below) {
			t.Errorf("good are %v, in Optuna %v", below, c.Below)
		}
		if !slices.Equal(front, c.Front) {
			t.Errorf("the front is %v, in Optuna %v", front, c.Front)
		}
		if got := trial.Hypervolume(c.Values, slices.Repeat([]float64{1.2}, len(dirs))); math.Abs(got-c.Volume) > 1e-9 {
			t.Errorf("the volume is %v, in Optuna %v", got, c.Volume)
		}
	}
}

// TestLongFront: of thousands that none surpasses the good ones are found in time, and
// none is lost.
func TestLongFront(t *testing.T) {
	const n = 10_000
	rng := rand.New(rand.NewPCG(1, 2))
	directions := []trial.Direction{trial.Minimize, trial.Minimize, trial.Minimize}
	trials := make([]trial.Trial, n)
	for i := range trials {
		x, y := rng.Float64(), rng.Float64()
		r := math.Sqrt(1 - x*x)
		trials[i] = trial.Trial{Number: i, State: trial.Complete, Values: []float64{-x, -r * y, -r * math.Sqrt(1-y*y)}}
	}
	good, bad := split(trials, directions)
	seen := map[int]bool{}
	for _, t := range slices.Concat(good, bad) {
		seen[t.Number] = true
	}
	if len(good) != n/10 || len(seen) != n {
		t.Errorf("%d good trials, %d in all", len(good), len(seen))
	}
}

// TestSuggestions: of one history Optuna suggested 3,000 times, by as many draws, and so
// do we: each parameter's values are as often as there, by chi-square.
func TestSuggestions(t *testing.T) {
	ref, s := optuna(t)
	var history []trial.Trial
	for i, h := range ref.Suggested.History {
		history = append(history, trial.Trial{Number: i, State: trial.Complete, Params: h.Params, Values: []float64{h.Value}})
	}
	counts := map[string]map[int]float64{}
	for seed := range uint64(3000) {
		params, err := Suggest(Problem{s, []trial.Direction{trial.Minimize}}, Config{Seed: seed}, history, len(history))
		if err != nil {
			t.Fatal(err)
		}
		row, _ := encoded(s.Parameters, params, nil)
		for i, bin := range []int{
			int((row[0] + 3) / 0.8), int(-math.Log10(row[1]) * 2), int(math.Round(row[2] * 10)), int(math.Log2(row[3]) * 2), int(row[4]), int(row[5]),
		} {
			name := s.Parameters[i].Name
			if counts[name] == nil {
				counts[name] = map[int]float64{}
			}
			counts[name][bin]++
		}
	}
	for name, theirs := range ref.Suggested.Counts {
		sum, freedom := 0.0, -1.0
		for bin := range 20 {
			if a, b := counts[name][bin], theirs[bin]; a+b >= 10 {
				sum += (a - b) * (a - b) / (a + b)
				freedom++
			}
		}
		// Wilson and Hilferty: the cube root is nearly normal.
		z := (math.Cbrt(sum/freedom) - (1 - 2/(9*freedom))) / math.Sqrt(2/(9*freedom))
		if freedom < 1 || z > 3 {
			t.Errorf("%s: chi-square %.1f of %v bins, z = %.1f\nours  %v\nthere %v", name, sum, freedom+1, z, counts[name], theirs)
		}
	}
}

// TestSobol: unscrambled, the points are scipy's (qmc.Sobol(128, scramble=False)),
// whose order of points 1, 2, 3 and 5 is 1, 3, 2 and 7 of ours.
func TestSobol(t *testing.T) {
	for n, want := range map[uint32][]float64{
		1: {0.5, 0.5, 0.5, 0.5, 0.5},
		3: {0.25, 0.25, 0.75, 0.25, 0.25},
		2: {0.75, 0.75, 0.25, 0.75, 0.75},
		7: {0.875, 0.125, 0.625, 0.875, 0.125},
	} {
		var got []float64
		for _, dim := range []int{1, 2, 5, 30, 127} {
			var x uint32
			for i := range 32 {
				if n>>i&1 != 0 {
					x ^= directions[dim][i]
				}
			}
			got = append(got, float64(x)/(1<<32))
		}
		if !slices.Equal(got, want) {
			t.Errorf("point %d is %v, scipy's %v", n, got, want)
		}
	}
}

// TestSobolIsEven: of each 2^k points in line each 2^-k of each axis has one, and
// each quarter of each plane of the first axes as many; scrambled as they are.
func TestSobolIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		k := rapid.IntRange(2, 8).Draw(t, "k")
		dim := rapid.IntRange(0, space.MaxParameters-1).Draw(t, "dim")
		n := 1 << k
		seen := make([]int, n)
		quarters := [4]int{}
		for i := range n {
			x, y := sobolPoint(uint32(i), dim, seed), sobolPoint(uint32(i), 0, seed)
			if x <= 0 || x >= 1 {
				t.Fatalf("%v", x)
			}
			seen[int(x*float64(n))]++
			if dim == 1 {
				quarters[int(x*2)*2+int(y*2)]++
			}
		}
		if slices.Max(seen) != 1 || slices.Min(seen) != 1 {
			t.Fatalf("dimension %d: %v", dim, seen)
		}
		if dim == 1 && quarters != [4]int{n / 4, n / 4, n / 4, n / 4} {
			t.Fatalf("%v", quarters)
		}
	})
}

// TestSuggest: whatever the space and the history, a suggestion is of the space, is the
// same again, and whatever the order of the history.
func TestSuggest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Problem{Space: spacetest.Space(t), Directions: []trial.Direction{trial.Minimize, trial.Maximize, trial.Minimize}[:rapid.IntRange(1, 3).Draw(t, "objectives")]}
		c := Config{
			Algorithm: rapid.SampledFrom([]Algorithm{Random, Sobol, TPE, ""}).Draw(t, "algorithm"), Seed: rapid.Uint64().Draw(t, "seed"),
			Startup: 1, Candidates: 4, IgnoreBusy: rapid.Bool().Draw(t, "ignore"),
		}
		if rapid.Bool().Draw(t, "explicit") {
			c.Multivariate = new(rapid.Bool().Draw(t, "multivariate"))
		}
		if err := c.Validate(p); err != nil {
			t.Fatal(err)
		}
		var history []trial.Trial
		for n := range rapid.IntRange(0, 20).Draw(t, "trials") {
			params, err := Suggest(p, c, history, n)
			if err != nil {
				t.Fatal(err)
			}
			checked, err := p.Space.Check(params)
			if err != nil {
				t.Fatalf("trial %d: %v is not of the space: %v", n, params, err)
			}
			if !reflect.DeepEqual(checked, params) {
				t.Fatalf("%v becomes %v", params, checked)
			}
			if again, _ := Suggest(p, c, rapid.Permutation(history).Draw(t, "order"), n); !reflect.DeepEqual(again, params) {
				t.Fatalf("trial %d is %v, then %v", n, params, again)
			}
			done := trial.Trial{Number: n, Params: params, State: rapid.SampledFrom([]trial.State{trial.Complete, trial.Complete, trial.Running, trial.Stopped, trial.Failed}).Draw(t, "state")}
			if done.State == trial.Complete {
				for range p.Directions {
					done.Values = append(done.Values, rapid.OneOf(rapid.Float64Range(-1, 1), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)})).Draw(t, "value"))
				}
			}
			if rapid.Bool().Draw(t, "reported") {
				done.Reports = []trial.Report{{Step: rapid.Int64().Draw(t, "step"), Value: rapid.Float64().Draw(t, "report")}}
			}
			history = append(history, done)
		}
	})
}

// TestGrid: a grid has each point once, conditional ones where their parents are, and
// ends.
func TestGrid(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{
		{Name: "model", Type: space.Categorical, Choices: space.Choices{"tree", "linear"}},
		{Name: "depth", Type: space.Int, Low: 2, High: 6, Step: 2, When: &space.Condition{Parameter: "model", In: space.Choices{"tree"}}},
		{Name: "leaf", Type: space.Int, Low: 1, High: 2, When: &space.Condition{Parameter: "depth", In: space.Choices{int64(6)}}},
		{Name: "c", Type: space.Float, Low: 1e-2, High: 1e2, Log: true, When: &space.Condition{Parameter: "model", In: space.Choices{"linear"}}},
		{Name: "seed", Type: space.Int, Low: 0, High: 1},
	}}
	p, c := Problem{s, []trial.Direction{trial.Minimize}}, Config{Algorithm: Grid}
	var history []trial.Trial
	seen := map[string]bool{}
	for {
		params, err := Suggest(p, c, history, len(history))
		if errors.Is(err, ErrDone) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Check(params); err != nil {
			t.Fatal(err)
		}
		if seen[fmt.Sprint(params)] {
			t.Fatalf("%v is there twice", params)
		}
		seen[fmt.Sprint(params)] = true
		history = append(history, trial.Trial{Number: len(history), Params: params, State: trial.Running})
	}
	// (depth 2, 4, 6 with two leaves; five c) and each twice.
	if len(seen) != (4+5)*2 {
		t.Errorf("%d points: %v", len(seen), seen)
	}
	for _, want := range []string{"map[c:1 model:linear seed:0]", "map[depth:6 leaf:2 model:tree seed:1]"} {
		if !seen[want] {
			t.Errorf("%s is missing in %v", want, seen)
		}
	}
	wide := space.Space{}
	for i := range 100 {
		wide.Parameters = append(wide.Parameters, space.Parameter{Name: strconv.Itoa(i), Type: space.Float, High: 1})
	}
	if err := c.Validate(Problem{wide, p.Directions}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("a grid of 5^100: %v", err)
	}
}

func TestBadConfigs(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{{Name: "x", Type: space.Float, High: 1}}}
	one := []trial.Direction{trial.Minimize}
	for name, c := range map[string]struct {
		c    Config
		dirs []trial.Direction
	}{
		"unknown algorithm": {Config{Algorithm: "genetic"}, one},
		"no objective":      {Config{}, nil},
		"many objectives":   {Config{}, slices.Repeat(one, 4)},
		"direction":         {Config{}, []trial.Direction{"up"}},
		"first":             {Config{First: []space.Params{{"x": 2.0}}}, one},
		"candidates":        {Config{Candidates: -1}, one},
	} {
		if err := c.c.Validate(Problem{s, c.dirs}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFirstAndWarm: what is named is tried first; trials of another sweep count, where
// they are of this space.
func TestFirstAndWarm(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{{Name: "x", Type: space.Float, High: 1}}}
	p := Problem{s, []trial.Direction{trial.Minimize}}
	c := Config{First: []space.Params{{"x": 0.25}}}
	if got, err := Suggest(p, c, nil, 0); err != nil || got["x"] != 0.25 {
		t.Errorf("%v, %v", got, err)
	}
	var earlier []trial.Trial
	for i := range 40 {
		x := float64(i) / 40
		earlier = append(earlier, trial.Trial{Number: i, State: trial.Complete, Params: space.Params{"x": x}, Values: []float64{math.Abs(x - 0.7)}})
	}
	earlier = append(earlier, trial.Trial{Number: 40, State: trial.Complete, Params: space.Params{"x": 7.0}, Values: []float64{0}},
		trial.Trial{Number: 41, State: trial.Failed, Params: space.Params{"x": 0.1}})
	warm := Warm(s, earlier)
	if len(warm) != 40 || warm[0].Number != -40 || warm[39].Number != -1 {
		t.Fatalf("%d warm trials", len(warm))
	}
	got, err := Suggest(p, c, warm, 1)
	if x, _ := got["x"].(float64); err != nil || math.Abs(x-0.7) > 0.15 {
		t.Errorf("after 40 trials of another sweep it tries %v, %v", got, err)
	}
}

// TestBusy: trials at the same time are less alike when those that run count.
func TestBusy(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{{Name: "x", Type: space.Float, High: 1}}}
	p := Problem{s, []trial.Direction{trial.Minimize}}
	spread := func(ignore bool) float64 {
		total := 0.0
		for seed := range 20 {
			c := Config{Seed: uint64(seed), IgnoreBusy: ignore}
			var history []trial.Trial
			for n := range 40 {
				params, _ := Suggest(p, c, history, n)
				done := trial.Trial{Number: n, Params: params, State: trial.Running}
				x, _ := params["x"].(float64)
				if n < 30 {
					done.State, done.Values = trial.Complete, []float64{(x - 0.5) * (x - 0.5)}
				}
				history = append(history, done)
			}
			var last []float64
			for _, h := range history[30:] {
				x, _ := h.Params["x"].(float64)
				last = append(last, x)
			}
			total += slices.Max(last) - slices.Min(last)
		}
		return total / 20
	}
	if counted, ignored := spread(false), spread(true); counted <= ignored {
		t.Errorf("the range of ten trials at once is %.3f, and %.3f when they ignore each other", counted, ignored)
	}
}

// TestLearns: TPE finds better values than random on a sphere.
func TestLearns(t *testing.T) {
	var s space.Space
	for i := range 4 {
		s.Parameters = append(s.Parameters, space.Parameter{Name: strconv.Itoa(i), Type: space.Float, Low: -5, High: 5})
	}
	p := Problem{s, []trial.Direction{trial.Minimize}}
	best := func(a Algorithm, seed uint64) float64 {
		var history []trial.Trial
		least := math.Inf(1)
		for n := range 100 {
			params, _ := Suggest(p, Config{Algorithm: a, Seed: seed}, history, n)
			v := 0.0
			for _, x := range params {
				f, _ := x.(float64)
				v += (f - 1) * (f - 1)
			}
			least = min(least, v)
			history = append(history, trial.Trial{Number: n, State: trial.Complete, Params: params, Values: []float64{v}})
		}
		return least
	}
	wins := 0
	for seed := range uint64(20) {
		if best(TPE, seed) < best(Random, seed) {
			wins++
		}
	}
	if wins < 18 {
		t.Errorf("TPE is better than random with %d of 20 seeds", wins)
	}
}

func BenchmarkSuggest(b *testing.B) {
	for _, k := range []struct {
		name string
		p    space.Parameter
	}{
		{"float", space.Parameter{Type: space.Float, High: 1}},
		{"int", space.Parameter{Type: space.Int, Low: 1, High: 1000}},
		{"categorical", space.Parameter{Type: space.Categorical, Choices: space.Choices{"a", "b", "c", "d"}}},
	} {
		for _, objectives := range []int{1, 2} {
			b.Run(fmt.Sprintf("10 %s, 500 trials, %d objectives", k.name, objectives), func(b *testing.B) {
				p := Problem{Directions: slices.Repeat([]trial.Direction{trial.Minimize}, objectives)}
				for i := range 10 {
					k.p.Name = strconv.Itoa(i)
					p.Space.Parameters = append(p.Space.Parameters, k.p)
				}
				var history []trial.Trial
				for n := range 500 {
					rng := Config{Seed: 1}.rng(n)
					history = append(history, trial.Trial{Number: n, State: trial.Complete, Params: random(p.Space, rng), Values: []float64{rng.Float64(), rng.Float64()}[:objectives]})
				}
				for b.Loop() {
					if _, err := Suggest(p, Config{}, history, 500); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
