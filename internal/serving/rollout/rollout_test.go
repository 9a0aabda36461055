package rollout

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestSpecsThatAreRefused(t *testing.T) {
	if err := (Spec{}).Validate(); err != nil {
		t.Errorf("the empty spec: %v", err)
	}
	for field, s := range map[string]Spec{
		"weight":       {Weight: 100},
		"metric":       {Metric: "accuracy"},
		"margin":       {Margin: math.NaN()},
		"alpha":        {Alpha: 0.9},
		"min_labels":   {MinLabels: 10},
		"max_duration": {MaxDuration: "fortnight"},
		"label_delay":  {MaxDuration: "14d", LabelDelay: "14d"},
		"inconclusive": {Inconclusive: "shrug"},
		"error_rate":   {Guardrails: Guardrails{ErrorRate: -1}},
		"latency_p99":  {Guardrails: Guardrails{LatencyP99: "-3ms"}},
		"min_requests": {Guardrails: Guardrails{MinRequests: -1}},
		"is required":  {Metric: SquaredError},
	} {
		err := s.Validate()
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), field) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (hint %q)", field, err, fault.HintOf(err))
		}
	}
	for _, margin := range []float64{math.Inf(1), -1, 0.0000000001} {
		if (Spec{Margin: margin}).Validate() == nil {
			t.Errorf("margin %v is accepted", margin)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{"14d": 14 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "": 14 * 24 * time.Hour} {
		s := Spec{MaxDuration: text}
		if err := s.Validate(); err != nil || s.Duration() != want {
			t.Errorf("%q: %v, %v", text, s.Duration(), err)
		}
	}
	for _, text := range []string{"0d", "d", "-1d", "1d-1h", "99999d", "1d99999h", "1dd", strings.Repeat("1", 50) + "d"} {
		if (Spec{MaxDuration: text}).Validate() == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestLoss(t *testing.T) {
	for _, test := range []struct {
		metric             Metric
		score, label, want float64
	}{
		{Brier, 0.75, 1, 0.0625},
		{"", 0.75, 1, 0.0625},
		{LogLoss, 0.5, 0, math.Ln2},
		{LogLoss, 0, 1, 6 * math.Ln10}, // clipped
		{Error, 0.5, 1, 0},
		{Error, 0.49, 1, 1},
		{AbsoluteError, -3, 4, 7},
		{SquaredError, -3, 4, 49},
	} {
		got, err := Spec{Metric: test.metric}.Loss(test.score, test.label)
		if err != nil || math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s of %v by %v: %v, %v", test.metric, test.score, test.label, got, err)
		}
	}
	for _, metric := range metrics {
		for _, pair := range [][2]float64{{math.NaN(), 1}, {0.5, math.NaN()}, {math.Inf(1), 1}, {0.5, math.Inf(-1)}} {
			if _, err := (Spec{Metric: metric}).Loss(pair[0], pair[1]); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s of %v: %v", metric, pair, err)
			}
		}
	}
	for _, pair := range [][2]float64{{1.1, 1}, {-0.1, 0}, {0.5, 0.5}, {0.5, 2}} {
		if _, err := (Spec{}).Loss(pair[0], pair[1]); !fault.Is(err, fault.Invalid) {
			t.Errorf("brier of %v: %v", pair, err)
		}
	}
	if _, err := (Spec{Metric: SquaredError}).Loss(1e200, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("an error whose square is infinite: %v", err)
	}
}

func TestMomentsMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(-1e3, 1e3), 0, 60).Draw(t, "xs")
		cut := rapid.IntRange(0, len(xs)).Draw(t, "cut")
		var all, a, b Moments
		for i, x := range xs {
			all.Add(x)
			if i < cut {
				a.Add(x)
			} else {
				b.Add(x)
			}
		}
		a.Merge(b)
		if a.N != all.N || math.Abs(a.Mean-all.Mean) > 1e-9 || math.Abs(a.M2-all.M2) > 1e-6*(1+all.M2) {
			t.Fatalf("merged %+v, added %+v", a, all)
		}
	})
}

func arm(version int64) *rapid.Generator[Arm] {
	return rapid.Custom(func(t *rapid.T) Arm {
		a := Arm{Version: version, Requests: rapid.Int64Range(0, 100_000).Draw(t, "requests")}
		a.Assigned = a.Requests
		if rapid.Bool().Draw(t, "counts") { // otherwise the losses decide
			a.Errors = rapid.Int64Range(0, a.Requests).Draw(t, "errors")
			a.Slow = rapid.Int64Range(0, a.Requests).Draw(t, "slow")
			a.Share = rapid.Float64Range(0, 1).Draw(t, "share")
		}
		a.Loss.N = rapid.Int64Range(0, a.Requests).Draw(t, "labels")
		a.Loss.Mean = rapid.Float64Range(0, 1).Draw(t, "mean")
		a.Loss.M2 = rapid.Float64Range(0, 0.25).Draw(t, "variance") * float64(a.Loss.N)
		return a
	})
}

var specs = rapid.Custom(func(t *rapid.T) Spec {
	return Spec{
		Margin:       rapid.Float64Range(1e-4, 0.3).Draw(t, "margin"),
		Alpha:        rapid.SampledFrom([]float64{0, 0.001, 0.2}).Draw(t, "alpha"),
		MinLabels:    rapid.IntRange(50, 2000).Draw(t, "min_labels"),
		Inconclusive: rapid.SampledFrom([]Inconclusive{"", InconclusivePromote, InconclusiveHold}).Draw(t, "inconclusive"),
		Guardrails:   Guardrails{LatencyP99: rapid.SampledFrom([]string{"", "100ms"}).Draw(t, "latency")},
	}
})

var observations = rapid.Custom(func(t *rapid.T) Observations {
	return Observations{
		Stable: arm(1).Draw(t, "stable"), Candidate: arm(2).Draw(t, "candidate"),
		Elapsed: time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "elapsed")),
	}
})

// Decide is a function of its arguments, always has a reason, can be written as
// JSON, and never promotes without labels.
func TestDecideHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, s := observations.Draw(t, "o"), specs.Draw(t, "s")
		d := Decide(o, s)
		if again := Decide(o, s); again != d {
			t.Fatalf("%+v, and again %+v", d, again)
		}
		if d.Reason == "" {
			t.Fatal("no reason")
		}
		if _, err := json.Marshal(d); err != nil {
			t.Fatal(err)
		}
		least := int64(s.WithDefaults().MinLabels)
		switch {
		case d.Outcome == Promote && (o.Candidate.Loss.N < least || o.Stable.Loss.N < least):
			t.Fatalf("promoted with too few labels: %+v", d)
		case d.Outcome == Promote && d.Guardrail != "":
			t.Fatalf("promoted against a guardrail: %+v", d)
		case d.Outcome == Promote && d.High >= s.Margin && o.Elapsed < s.Duration():
			t.Fatalf("promoted without a proof: %+v", d)
		case d.Outcome == Continue && o.Elapsed >= s.Duration():
			t.Fatalf("goes on after its time: %+v", d)
		case d.Comparable && !(d.Low <= d.Difference && d.Difference <= d.High):
			t.Fatalf("the interval does not hold the difference: %+v", d)
		case d.Comparable && (d.P < d.Alpha) != (d.High < d.Margin) && math.Abs(d.P-d.Alpha) > 1e-9:
			t.Fatalf("p and interval contradict each other: %+v", d)
		}
	})
}

// The same again, k times: what was decided stays decided, and the interval is
// not wider.
func TestMoreOfTheSameEvidenceDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, s := observations.Draw(t, "o"), specs.Draw(t, "s")
		// What is always valid is not what was looked for before or after the labels decide.
		o.Stable.Share, o.Stable.Errors, o.Candidate.Errors, o.Candidate.Slow = 0, 0, 0, 0
		o.Elapsed = 0
		k := rapid.Int64Range(2, 9).Draw(t, "k")
		more := o
		for _, a := range []*Arm{&more.Stable, &more.Candidate} {
			a.Requests *= k
			a.Assigned *= k
			a.Loss.N *= k
			a.Loss.M2 *= float64(k)
		}
		one, many := Decide(o, s), Decide(more, s)
		if one.Comparable && many.High-many.Low > (one.High-one.Low)*(1+1e-12) {
			t.Fatalf("wider: %+v, then %+v", one, many)
		}
		if one.Outcome == Promote && many.Outcome != Promote {
			t.Fatalf("promoted, then %+v", many)
		}
		if one.Outcome == Rollback && many.Outcome == Continue {
			t.Fatalf("rolled back, then %+v", many)
		}
	})
}

// A candidate that costs less, all else alike, never fares worse.
func TestCheaperIsNeverWorse(t *testing.T) {
	rank := map[Outcome]int{Rollback: 0, Continue: 1, Promote: 2}
	rapid.Check(t, func(t *rapid.T) {
		o, s := observations.Draw(t, "o"), specs.Draw(t, "s")
		o.Stable.Share, o.Elapsed = 0, 0
		better := o
		better.Candidate.Loss.Mean -= rapid.Float64Range(0, 1).Draw(t, "by")
		if a, b := Decide(o, s), Decide(better, s); rank[b.Outcome] < rank[a.Outcome] {
			t.Fatalf("%+v, and cheaper %+v", a, b)
		}
	})
}

func TestWithoutTraffic(t *testing.T) {
	s := Spec{}.WithDefaults()
	o := Observations{Stable: Arm{Version: 3, Requests: 90_000, Assigned: 90_000}, Candidate: Arm{Version: 4}}
	if d := Decide(o, s); d.Outcome != Continue || !strings.Contains(d.Reason, "version 4 has not received requests") {
		t.Errorf("%+v", d)
	}
	o.Elapsed = 14 * 24 * time.Hour
	for inconclusive, want := range map[Inconclusive]Outcome{InconclusiveRollback: Rollback, InconclusivePromote: Rollback, InconclusiveHold: Hold} {
		s.Inconclusive = inconclusive
		if d := Decide(o, s); d.Outcome != want || !strings.Contains(d.Reason, "inconclusive after 14d") || !strings.Contains(d.Reason, "not received requests") {
			t.Errorf("%s: %+v", inconclusive, d)
		}
	}
	o.Candidate.Loss, o.Stable.Loss = Moments{N: 600, Mean: 0.2, M2: 24}, Moments{N: 2400, Mean: 0.2, M2: 96}
	s.Inconclusive = InconclusivePromote
	if d := Decide(o, s); d.Outcome != Promote || !strings.Contains(d.Reason, "inconclusive") {
		t.Errorf("labels that do not suffice, and inconclusive is promote: %+v", d)
	}
}

// What is not a number decides nothing, and says so.
func TestNumbersThatAreNoneAreHeld(t *testing.T) {
	fine := Observations{
		Stable:    Arm{Version: 1, Requests: 5000, Loss: Moments{N: 5000, Mean: 0.3, M2: 100}},
		Candidate: Arm{Version: 2, Requests: 5000, Loss: Moments{N: 5000, Mean: 0.1, M2: 100}},
	}
	if d := Decide(fine, Spec{}); d.Outcome != Promote {
		t.Fatalf("without it: %+v", d)
	}
	for name, change := range map[string]func(*Observations){
		"NaN mean":       func(o *Observations) { o.Candidate.Loss.Mean = math.NaN() },
		"infinite mean":  func(o *Observations) { o.Stable.Loss.Mean = math.Inf(-1) },
		"NaN M2":         func(o *Observations) { o.Candidate.Loss.M2 = math.NaN() },
		"infinite M2":    func(o *Observations) { o.Stable.Loss.M2 = math.Inf(1) },
		"negative M2":    func(o *Observations) { o.Stable.Loss.M2 = -1 },
		"NaN share":      func(o *Observations) { o.Stable.Share = math.NaN() },
		"more errors":    func(o *Observations) { o.Candidate.Errors = 5001 },
		"fewer than 0":   func(o *Observations) { o.Candidate.Assigned = -1 },
		"labels below 0": func(o *Observations) { o.Candidate.Loss.N = -5 },
	} {
		o := fine
		change(&o)
		if d := Decide(o, Spec{}); d.Outcome != Hold || !strings.Contains(d.Reason, "cannot be judged") {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := Decide(fine, Spec{Metric: "accuracy"}); d.Outcome != Hold {
		t.Errorf("a spec that is not valid: %+v", d)
	}
	constant := Observations{
		Stable:    Arm{Version: 1, Requests: 5000, Loss: Moments{N: 5000, Mean: 2}},
		Candidate: Arm{Version: 2, Requests: 5000, Loss: Moments{N: 5000, Mean: 2}},
	}
	if d := Decide(constant, Spec{Metric: AbsoluteError, Margin: 1}); d.Outcome != Continue || d.Comparable || !strings.Contains(d.Reason, "are constant") {
		t.Errorf("losses that do not vary: %+v", d)
	}
}

func TestReasonsAreWords(t *testing.T) {
	o := Observations{
		Stable:    Arm{Version: 3, Requests: 48_000, Loss: Moments{N: 48_000, Mean: 0.1500, M2: 48_000 * 0.03}},
		Candidate: Arm{Version: 4, Requests: 12_000, Loss: Moments{N: 12_000, Mean: 0.1437, M2: 12_000 * 0.03}},
	}
	d := Decide(o, Spec{})
	const want = "brier of version 4 is 0.1437, of version 3 0.15: difference −0.0063, between −0.01167 and −0.0009287 (12,000 and 48,000 labels): worse by less than the margin 0.005, with 95 % confidence"
	if d.Outcome != Promote || d.Reason != want {
		t.Errorf("%s: %s", d.Outcome, d.Reason)
	}
}

func BenchmarkDecide(b *testing.B) {
	o := Observations{
		Stable:    Arm{Version: 3, Share: 0.8, Assigned: 48_000, Requests: 48_000, Errors: 10, Loss: Moments{N: 48_000, Mean: 0.1500, M2: 48_000 * 0.03}},
		Candidate: Arm{Version: 4, Share: 0.2, Assigned: 12_000, Requests: 12_000, Errors: 3, Loss: Moments{N: 12_000, Mean: 0.1501, M2: 12_000 * 0.03}},
	}
	s := Spec{}.WithDefaults()
	for b.Loop() {
		Decide(o, s)
	}
}
