package stop

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// TestOptuna: median, percentile and asha decide as Optuna's pruners, of trials that run
// at the same time, skip steps and report NaN (testdata/reference.py).
func TestOptuna(t *testing.T) {
	text, err := os.ReadFile("testdata/optuna.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name    string
		Rule    Rule
		Last    int64
		Reports [][4]any // trial, step, value, whether it was pruned
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if err := c.Rule.Validate(); err != nil {
			t.Fatal(err)
		}
		trials := make([]trial.Trial, 40)
		for i := range trials {
			trials[i] = trial.Trial{Number: i, State: trial.Running}
		}
		stopped := 0
		// Who is not stopped and reports no more is complete from its last report on.
		final := map[int]int{}
		for i, r := range c.Reports {
			final[int(number(r[0]))] = i
		}
		for i, r := range c.Reports {
			at := &trials[int(number(r[0]))]
			at.Reports = append(at.Reports, trial.Report{Step: int64(number(r[1])), Value: number(r[2])})
			d := Decide(c.Rule, 0, *at, trials, time.Time{})
			if d.Stop != (r[3] == true) {
				t.Fatalf("%s, %s: trial %v at step %v with %v: %+v, Optuna says %v", c.Name, c.Rule.Direction, r[0], r[1], r[2], d, r[3])
			}
			if d.Reason == "" {
				t.Fatalf("%s: a decision without a reason", c.Name)
			}
			switch {
			case d.Stop:
				stopped++
				at.State = trial.Stopped
			case final[at.Number] == i:
				at.State = trial.Complete
			}
		}
		if stopped < 5 || stopped > 38 {
			t.Errorf("%s: %d of 40 were stopped, which tells little", c.Name, stopped)
		}
	}
}

func number(v any) float64 {
	if x, ok := v.(float64); ok {
		return x
	}
	return math.NaN()
}

func running(n int, values ...float64) trial.Trial {
	t := trial.Trial{Number: n, State: trial.Running}
	for i, v := range values {
		t.Reports = append(t.Reports, trial.Report{Step: int64(i), Value: v})
	}
	return t
}

func TestDecide(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	nan := math.NaN()
	silent := trial.Trial{State: trial.Running, Started: noon}
	reported := silent
	reported.Reports = []trial.Report{{Step: 1, Value: 1, At: noon.Add(50 * time.Minute)}}
	ended := running(0, 1, 2, 3, 4)
	ended.State = trial.Complete
	var complete, failed []trial.Trial
	for i := range 6 {
		o := running(i+10, 1, 1, 1)
		o.State = trial.Complete
		complete = append(complete, o)
		o.State = trial.Failed
		failed = append(failed, o)
	}
	hour := Rule{ReportWithin: compute.Duration(time.Hour)}
	patience := Rule{Kind: Patience, Patience: 2, Direction: trial.Minimize}
	for name, c := range map[string]struct {
		rule   Rule
		t      trial.Trial
		others []trial.Trial
		after  time.Duration
		stop   bool
		says   string
	}{
		"nothing to judge by":      {Rule{}, running(0, 1), nil, 0, false, "early stopping is disabled"},
		"never reported":           {hour, silent, nil, 61 * time.Minute, true, "it has not reported for 1h1m0s"},
		"may be silent yet":        {hour, silent, nil, 59 * time.Minute, false, "early stopping is disabled"},
		"silent since a report":    {hour, reported, nil, 111 * time.Minute, true, "not reported"},
		"reported since":           {hour, reported, nil, 109 * time.Minute, false, "early stopping is disabled"},
		"silence without a limit":  {Rule{Kind: Median}, silent, complete, 1000 * time.Hour, false, "has no reports"},
		"ended":                    {patience, ended, nil, 0, false, "it is complete"},
		"all NaN":                  {Rule{Kind: Median, Direction: trial.Minimize}, running(0, nan, nan), complete, 0, true, "NaN"},
		"failed are no measure":    {Rule{Kind: Median, Direction: trial.Minimize}, running(0, 9), failed, 0, false, "0 of the 5 trials required"},
		"worse than the median":    {Rule{Kind: Median, Direction: trial.Minimize}, running(0, 9, 9), complete, 0, true, "worse than 1"},
		"better the other way":     {Rule{Kind: Median, Direction: trial.Maximize}, running(0, 9, 9), complete, 0, false, "within"},
		"no better for long":       {patience, running(0, 3, 1, 2, 2), nil, 0, true, "none of its last 2"},
		"better lately":            {patience, running(0, 3, 2, 2, 1), nil, 0, false, "is its best"},
		"few reports":              {patience, running(0, 1, 2), nil, 0, false, "2 reports"},
		"NaN is no better":         {patience, running(0, 3, nan, nan), nil, 0, true, "none of its last 2"},
		"NaN first":                {patience, running(0, nan, 3, nan), nil, 0, false, "is its best"},
		"patience, the other way":  {Rule{Kind: Patience, Patience: 2, Direction: trial.Maximize}, running(0, 3, 1, 2, 2), nil, 0, true, "better than 3"},
		"better by too little":     {Rule{Kind: Patience, Patience: 2, MinDelta: 0.5, Direction: trial.Minimize}, running(0, 3, 2.8, 2.6), nil, 0, true, "none"},
		"before the warmup":        {Rule{Kind: Median, Warmup: 5, Direction: trial.Minimize}, running(0, 9), complete, 0, false, "before 5"},
		"no step beyond the last":  {Rule{Kind: ASHA, MinResource: maxStep, Direction: trial.Minimize}, running(0, 1), complete, 0, false, "before the first rung"},
		"asha, NaN at a rung":      {Rule{Kind: ASHA, Direction: trial.Minimize}, running(0, 1, nan), nil, 0, true, "NaN at the rung"},
		"asha, from where no more": {Rule{Kind: ASHA, MaxResource: 1, Direction: trial.Minimize}, running(0, 1, nan), nil, 0, false, "before the first rung"},
		"step at the edge":         {Rule{Kind: ASHA, Direction: trial.Minimize}, trial.Trial{State: trial.Running, Reports: []trial.Report{{Step: math.MaxInt64, Value: 1}}}, nil, 0, false, "better"},
	} {
		d := Decide(c.rule, 1, c.t, c.others, noon.Add(c.after))
		if d.Stop != c.stop || !strings.Contains(d.Reason, c.says) {
			t.Errorf("%s: %+v, not %v with %q", name, d, c.stop, c.says)
		}
	}
}

func TestBadRules(t *testing.T) {
	for name, r := range map[string]Rule{
		"kind":                        {Kind: "luck"},
		"direction":                   {Direction: "up"},
		"no percentile":               {Kind: Percentile},
		"NaN percentile":              {Kind: Percentile, Percentile: math.NaN()},
		"negative warmup":             {Kind: Median, Warmup: -1},
		"reduction of 1":              {Kind: ASHA, Reduction: 1},
		"hyperband without an end":    {Kind: Hyperband},
		"end before the first":        {Kind: Hyperband, MinResource: 5, MaxResource: 4},
		"no patience":                 {Kind: Patience},
		"NaN of delta":                {Kind: Patience, Patience: 1, MinDelta: math.NaN()},
		"negative time of no reports": {ReportWithin: -1},
	} {
		if err := r.Validate(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBrackets: hyperband's brackets get the paper's shares of trials, of any seed, and
// each judges only its own.
func TestBrackets(t *testing.T) {
	r := Rule{Kind: Hyperband, MinResource: 1, MaxResource: 27, Direction: trial.Minimize}
	// η = 3 and four brackets: ⌈4·27/4⌉, ⌈4·9/3⌉, ⌈4·3/2⌉ and 4 of 49.
	want := []float64{27, 12, 6, 4}
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		counts := make([]float64, 4)
		const n = 10_000
		for i := range n {
			counts[r.Bracket(seed, i)]++
		}
		for b, w := range want {
			if share := counts[b] / n; math.Abs(share-w/49) > 0.035 {
				t.Fatalf("bracket %d has %.3f, not %.3f", b, share, w/49)
			}
		}
	})
	in := map[int][]int{}
	for i := range 100 {
		b := r.Bracket(1, i)
		in[b] = append(in[b], i)
	}
	bad := running(in[0][0], 9, 9)
	better, other := running(in[0][1], 1, 1), running(in[1][0], 1, 1)
	if d := Decide(r, 1, bad, []trial.Trial{better, other}, time.Time{}); !d.Stop || !strings.Contains(d.Reason, "in bracket 0") {
		t.Errorf("beside a better one of its bracket: %+v", d)
	}
	if d := Decide(r, 1, bad, []trial.Trial{other}, time.Time{}); d.Stop {
		t.Errorf("beside a better one of another bracket: %+v", d)
	}
	// Bracket 1 has its first rung at step 3.
	late := running(in[1][1], 9, 9, 9)
	if d := Decide(r, 1, late, []trial.Trial{running(in[1][0], 1, 1, 1, 1)}, time.Time{}); d.Stop {
		t.Errorf("before its bracket's first rung: %+v", d)
	}
	if d := Decide(r, 1, running(in[1][1], 9, 9, 9, 9), []trial.Trial{running(in[1][0], 1, 1, 1, 1)}, time.Time{}); !d.Stop {
		t.Errorf("at its bracket's first rung: %+v", d)
	}
}

// TestBestGoesOn: whatever the rule, the best of all trials at each of its steps is not
// stopped by what others have, and the answer is the same whatever their order.
func TestBestGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{
			Kind: rapid.SampledFrom([]Kind{Median, Percentile, ASHA, Hyperband}).Draw(t, "kind"), Percentile: 10, Startup: 1, MaxResource: 30,
			Direction: rapid.SampledFrom([]trial.Direction{trial.Minimize, trial.Maximize}).Draw(t, "direction"),
		}
		best := 0.0
		if r.Direction == trial.Maximize {
			best = 1
		}
		var others []trial.Trial
		for i := range rapid.IntRange(0, 30).Draw(t, "others") {
			o := running(i+1, rapid.SliceOfN(rapid.Float64Range(0, 1), 0, 30).Draw(t, "values")...)
			o.State = rapid.SampledFrom([]trial.State{trial.Running, trial.Complete, trial.Stopped, trial.Failed}).Draw(t, "state")
			others = append(others, o)
		}
		var values []float64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			values = append(values, best)
			own := running(0, values...)
			d := Decide(r, 7, own, others, time.Time{})
			if d.Stop {
				t.Fatalf("the best is stopped: %+v", d)
			}
			if again := Decide(r, 7, own, rapid.Permutation(others).Draw(t, "order"), time.Time{}); again != d {
				t.Fatalf("%+v, then %+v", d, again)
			}
		}
	})
}

// TestKept: with what is kept of trials that have ended, decisions are what they would be
// with all of it.
func TestKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{
			Kind:       rapid.SampledFrom([]Kind{None, Median, Percentile, ASHA, Hyperband, Patience}).Draw(t, "kind"),
			Percentile: 30, Startup: 1, MaxResource: 30, Patience: 2, Rate: rapid.IntRange(0, 2).Draw(t, "rate"), Direction: trial.Minimize,
		}
		value := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Just(math.NaN()))
		var others, kept []trial.Trial
		for i := range rapid.IntRange(0, 20).Draw(t, "others") {
			o := trial.Trial{Number: i + 1, State: rapid.SampledFrom([]trial.State{trial.Complete, trial.Stopped, trial.Failed}).Draw(t, "state")}
			for _, step := range rapid.SliceOfDistinct(rapid.Int64Range(0, 40), rapid.ID[int64]).Draw(t, "steps") {
				o.Reports = append(o.Reports, trial.Report{Step: step, Value: value.Draw(t, "value")})
			}
			others = append(others, o)
			o.Reports = r.Kept(o)
			kept = append(kept, o)
		}
		own := running(0, rapid.SliceOfN(value, 1, 40).Draw(t, "own")...)
		if all, some := Decide(r, 7, own, others, time.Time{}), Decide(r, 7, own, kept, time.Time{}); all != some {
			t.Fatalf("with all: %+v; with what is kept: %+v", all, some)
		}
	})
}

func TestBudget(t *testing.T) {
	b := Budget{Trials: 10, Failed: 3, Time: compute.Duration(time.Hour), Money: 5}
	for name, c := range map[string]struct {
		b    Budget
		s    Spent
		stop bool
		says string
	}{
		"left":     {b, Spent{Trials: 9, Failed: 2, Time: 59 * time.Minute, Money: 4.99}, false, "9 trials"},
		"trials":   {b, Spent{Trials: 10}, true, "10 trials were started, of 10"},
		"failed":   {b, Spent{Failed: 3}, true, "3 trials failed, the limit is 3"},
		"time":     {b, Spent{Time: time.Hour}, true, "1h0m0s passed, of 1h0m0s"},
		"money":    {b, Spent{Money: 5.001}, true, "5.00 were spent, of 5.00"},
		"no limit": {Budget{}, Spent{Trials: MaxTrials - 1, Failed: 1000, Time: 1e18, Money: 1e9}, false, ""},
		"ours":     {Budget{}, Spent{Trials: MaxTrials}, true, "of 100000"},
	} {
		if d := c.b.Decide(c.s); d.Stop != c.stop || !strings.Contains(d.Reason, c.says) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	for name, b := range map[string]Budget{
		"negative": {Trials: -1}, "many": {Trials: MaxTrials + 1}, "time": {Time: -1}, "NaN": {Money: math.NaN()}, "failed": {Failed: -1},
	} {
		if err := b.Validate(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTurns(t *testing.T) {
	var reports []trial.Report
	var steps []int64
	for step := int64(2); step < 400; step += 2 {
		reports, steps = append(reports, trial.Report{Step: step}), append(steps, step)
	}
	one := trial.Trial{Reports: reports}
	for kind, want := range map[Kind][]int64{
		None: nil, "": nil, ASHA: {2, 4, 10, 28, 82, 244}, Hyperband: {2, 4, 10, 28, 82}, Median: steps[len(steps)-100:], Patience: steps[len(steps)-100:],
	} {
		if got := (Rule{Kind: kind, MaxResource: map[Kind]int64{Hyperband: 243}[kind]}).Turns(one, steps); !slices.Equal(got, want) {
			t.Errorf("%s: %v", kind, got)
		}
	}
	if got := (Rule{Kind: ASHA}).Turns(one, []int64{6, 10, 12}); !slices.Equal(got, []int64{10}) {
		t.Errorf("of some: %v", got)
	}
}
