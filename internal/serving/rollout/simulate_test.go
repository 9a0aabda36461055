package rollout

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slow is set under the race detector, where a look costs ten times as much.
var slow bool

// trials runs n simulations on all cores, each with a generator of its own seed,
// so that the counts are the same on each machine.
func trials(n int, one func(i int, r *rand.Rand)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				one(i, rand.New(rand.NewPCG(20130101, uint64(i))))
			}
		})
	}
	wg.Wait()
}

// scaled is the number of simulations: all of them in a normal run.
func scaled(t *testing.T, n int) int {
	t.Helper()
	if slow || testing.Short() {
		return n / 20
	}
	return n
}

func bernoulli(p float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 {
		if r.Float64() < p {
			return 1
		}
		return 0
	}
}

// squaredProbability is a Brier loss: most answers cost little, few nearly 1.
func squaredProbability(r *rand.Rand) float64 {
	p := r.Float64()
	p *= p * p
	if r.Float64() < p {
		p = 1 - p
	}
	return p * p
}

// logNormal is skewed to the right and has no bound: skewness 6.
func logNormal(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) }

// TestSameVersionIsRarelyTakenForAnother compares a version with itself, 20 to
// 80, and looks after every label: the interval may leave out 0 in at most alpha
// of the trials. The usual z-test at the same alpha does so far more often, so
// the test is one that can fail.
func TestSameVersionIsRarelyTakenForAnother(t *testing.T) {
	const labels = 5000
	for _, test := range []struct {
		name   string
		metric Metric
		loss   func(*rand.Rand) float64
		margin float64 // that the interval reaches at about 2500 labels
	}{
		{"binary", Error, bernoulli(0.2), 0.06},
		{"skewed in [0, 1]", Brier, squaredProbability, 0.03},
		{"skewed without bound", AbsoluteError, logNormal, 0.33},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Spec{Metric: test.metric, Margin: test.margin, MinLabels: 50}.WithDefaults()
			n, rho := scaled(t, 10_000), mixtureFor(s.Margin, s.Alpha)
			var rejected, naive, rolledBack atomic.Int64
			trials(n, func(_ int, r *rand.Rand) {
				var o Observations
				left, fooled := false, false
				for range labels {
					if r.Float64() < 0.2 {
						o.Candidate.Loss.Add(test.loss(r))
					} else {
						o.Stable.Loss.Add(test.loss(r))
					}
					c := compare(o, s.Metric, rho)
					if o.Candidate.Loss.N < int64(s.MinLabels) || !c.ok || left && fooled {
						continue
					}
					if !left && math.Abs(c.difference) > c.halfWidth(s.Alpha) {
						left = true
						rejected.Add(1)
						// What Decide makes of it is the same comparison.
						o.Candidate.Requests, o.Stable.Requests = o.Candidate.Loss.N, o.Stable.Loss.N
						switch d := Decide(o, s); {
						case d.Low > 0 && d.Outcome == Rollback:
							rolledBack.Add(1)
						case d.High < 0 && d.Outcome == Promote:
						default:
							t.Errorf("the interval leaves out 0, and Decide says %+v", d)
						}
					}
					if !fooled && math.Abs(c.difference)*math.Sqrt(c.information) > 1.959964 {
						fooled = true
						naive.Add(1)
					}
				}
			})
			share := func(x *atomic.Int64) float64 { return float64(x.Load()) / float64(n) }
			t.Logf("%d trials of %d labels, a look after each: rejected %.4f (rolled back %.4f), alpha %v; naive z-test %.4f",
				n, labels, share(&rejected), share(&rolledBack), s.Alpha, share(&naive))
			if share(&rejected) > s.Alpha {
				t.Errorf("rejected in %.4f of the trials, more than alpha", share(&rejected))
			}
			if rejected.Load() == 0 && n >= 10_000 {
				t.Error("never rejected: the interval is far too wide, or the test tests nothing")
			}
			if share(&naive) < 2*s.Alpha {
				t.Errorf("the naive test rejects in %.4f only: the trials do not show what peeking does", share(&naive))
			}
		})
	}
}

// TestKeysThatStickAreOneObservation compares a version with itself where 100 keys
// send all requests, each to one version, and each key costs what it costs: taken
// for independent, their requests show a difference that is not there in most
// trials; taken by key they do not, whatever the split.
func TestKeysThatStickAreOneObservation(t *testing.T) {
	const labels, keys = 6000, 200
	s := Spec{Metric: Brier, Margin: 0.05, MinLabels: 50}.WithDefaults()
	n, rho := scaled(t, 1000), mixtureFor(s.Margin, s.Alpha)
	var byKey, byRequest atomic.Int64
	trials(n, func(_ int, r *rand.Rand) {
		var cost [keys]float64
		for i := range cost {
			cost[i] = 0.3 * r.Float64()
		}
		var groups [2][keys]Group
		var all Observations
		left, fooled := false, false
		for i := range labels {
			key := int(float64(keys) * r.Float64() * r.Float64()) // some come more often
			arm, single := 0, &all.Stable.Loss
			if key%3 == 0 {
				arm, single = 1, &all.Candidate.Loss
			}
			loss := min(1, cost[key]+0.2*r.Float64())
			single.Add(loss)
			g := &groups[arm][key]
			g.N, g.Sum = g.N+1, g.Sum+loss
			if i%50 != 0 || i < 1000 {
				continue
			}
			if c := compare(all, s.Metric, rho); !fooled && c.ok && math.Abs(c.difference) > c.halfWidth(s.Alpha) {
				fooled = true
				byRequest.Add(1)
			}
			var o Observations
			o.Stable.Loss, o.Stable.Groups = Grouped(Moments{}, seen(groups[0][:]))
			o.Candidate.Loss, o.Candidate.Groups = Grouped(Moments{}, seen(groups[1][:]))
			if c := compare(o, s.Metric, rho); !left && c.ok && o.Candidate.sufficient(s) && math.Abs(c.difference) > c.halfWidth(s.Alpha) {
				left = true
				byKey.Add(1)
			}
		}
	})
	t.Logf("%d trials: rejected by key %d, by request %d", n, byKey.Load(), byRequest.Load())
	if float64(byKey.Load()) > s.Alpha*float64(n) {
		t.Errorf("rejected in %d of %d trials", byKey.Load(), n)
	}
	if float64(byRequest.Load()) < 0.5*float64(n) {
		t.Errorf("by request rejected in %d of %d only: the trials do not show what keys do", byRequest.Load(), n)
	}
}

func seen(all []Group) (out []Group) {
	for _, g := range all {
		if g.N > 0 {
			out = append(out, g)
		}
	}
	return out
}

// TestSinglesAreGroupsOfOne: both ways to count give the same moments.
func TestSinglesAreGroupsOfOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all, half Moments
	var groups, rest []Group
	for i := range 1000 {
		x := squaredProbability(r)
		all.Add(x)
		groups = append(groups, Group{1, x})
		if i%2 == 0 {
			half.Add(x)
		} else {
			rest = append(rest, Group{1, x})
		}
	}
	for name, got := range map[string]func() (Moments, int64){
		"groups": func() (Moments, int64) { return Grouped(Moments{}, groups) },
		"mixed":  func() (Moments, int64) { return Grouped(half, rest) },
	} {
		if m, k := got(); k != 1000 || m.N != 1000 || math.Abs(m.Mean-all.Mean) > 1e-12 || math.Abs(m.M2-all.M2) > 1e-9 {
			t.Errorf("%s: %+v of %d, want %+v", name, m, k, all)
		}
	}
	if m, k := Grouped(all, nil); k != 0 || m != all {
		t.Errorf("%+v of %d", m, k)
	}
	if m, k := Grouped(Moments{}, []Group{{10, 2}}); k != 1 || m.M2 != 0 || m.Mean != 0.2 {
		t.Errorf("one group: %+v of %d", m, k)
	}
}

// TestUnevenLabelsDecideNothing until the other version's come, too.
func TestUnevenLabelsDecideNothing(t *testing.T) {
	s := Spec{MinLabels: 50}.WithDefaults()
	arm := func(version int64, share float64, labelled int64, mean float64) Arm {
		return Arm{
			Version: version, Share: share, Assigned: int64(share * 10_000), Requests: int64(share * 10_000), Labelled: labelled,
			Loss: Moments{N: labelled, Mean: mean, M2: 1e-4 * float64(labelled)},
		}
	}
	o := Observations{Stable: arm(3, 0.8, 5000, 0.2), Candidate: arm(4, 0.2, 400, 0.1)}
	if d := Decide(o, s); d.Outcome != Continue || !strings.Contains(d.Reason, "400 labelled requests belong to version 4 and 5,000 to version 3, 20 % expected") {
		t.Errorf("%+v", d)
	}
	o.Elapsed, s.Inconclusive = s.Duration(), InconclusivePromote
	if d := Decide(o, s); d.Outcome != Rollback {
		t.Errorf("promoted on uneven labels: %+v", d)
	}
	o.Elapsed = 0
	for _, n := range []int64{1250, 1170} { // 1170 of 6170 are 19 %: within what a few failures do
		o.Candidate = arm(4, 0.2, n, 0.1)
		if d := Decide(o, s); d.Outcome != Promote {
			t.Errorf("%d: %+v", n, d)
		}
	}
}

// play is a whole trial by Decide, which is asked after every tenth label.
func play(r *rand.Rand, s Spec, candidate, stable func(*rand.Rand) float64, labels int) (Outcome, int) {
	var o Observations
	for i := range labels {
		if r.Float64() < 0.2 {
			o.Candidate.Loss.Add(candidate(r))
			o.Candidate.Requests++
		} else {
			o.Stable.Loss.Add(stable(r))
			o.Stable.Requests++
		}
		if i%10 != 0 {
			continue
		}
		if d := Decide(o, s); d.Final() {
			return d.Outcome, i + 1
		}
	}
	return Continue, labels
}

// TestInferiorVersionIsRarelyPromoted: worse by exactly the margin is the hardest.
func TestInferiorVersionIsRarelyPromoted(t *testing.T) {
	s := Spec{Metric: Error, Margin: 0.06, MinLabels: 50}.WithDefaults()
	n := scaled(t, 2000)
	var promoted, back atomic.Int64
	trials(n, func(_ int, r *rand.Rand) {
		switch o, _ := play(r, s, bernoulli(0.26), bernoulli(0.2), 8000); o {
		case Promote:
			promoted.Add(1)
		case Rollback:
			back.Add(1)
		default:
		}
	})
	t.Logf("%d trials of a version worse by the margin: %d promoted, %d rolled back", n, promoted.Load(), back.Load())
	if float64(promoted.Load()) > s.Alpha*float64(n) {
		t.Errorf("promoted in %d of %d trials", promoted.Load(), n)
	}
}

// TestPower: a version worse by two margins is rolled back, one that is as good
// is promoted, in all but one of twenty trials within the labels stated here.
func TestPower(t *testing.T) {
	s := Spec{Metric: Error, Margin: 0.06, MinLabels: 50}.WithDefaults()
	for _, test := range []struct {
		name      string
		candidate float64
		want      Outcome
		labels    int
	}{
		{"two margins worse", 0.32, Rollback, 2000},
		{"as good", 0.20, Promote, 8000},
		{"better by a margin", 0.14, Promote, 2000},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := scaled(t, 1000)
			var right, total atomic.Int64
			trials(n, func(_ int, r *rand.Rand) {
				o, labels := play(r, s, bernoulli(test.candidate), bernoulli(0.2), test.labels)
				total.Add(int64(labels))
				if o == test.want {
					right.Add(1)
				}
			})
			t.Logf("%d of %d: %s within %d labels, %d on average", right.Load(), n, test.want, test.labels, total.Load()/int64(n))
			if float64(right.Load()) < 0.95*float64(n) {
				t.Errorf("%d of %d trials ended in %s within %d labels", right.Load(), n, test.want, test.labels)
			}
		})
	}
}

// TestGuardsAreValidUnderPeeking: at the edge of what each permits, looked at
// after every request, each ends at most its budget of the trials; the fixed
// test of the same level, which they replace, ends more.
func TestGuardsAreValidUnderPeeking(t *testing.T) {
	const requests = 2000
	n := scaled(t, 1000)
	var failed, late, split, naive atomic.Int64
	trials(n, func(_ int, r *rand.Rand) {
		var c, b, x, y, slowOnes int64
		var seen [4]bool
		once := func(i int, hit bool, count *atomic.Int64) {
			if hit && !seen[i] {
				seen[i] = true
				count.Add(1)
			}
		}
		for range requests {
			if r.Float64() < 0.2 {
				c++
				if r.Float64() < 0.03 {
					x++
				}
				if r.Float64() < 0.01 {
					slowOnes++
				}
				once(1, above(slowOnes, c, 0.01) < guardAlpha, &late)
			} else {
				b++
				if r.Float64() < 0.01 {
					y++
				}
			}
			once(0, apart(x, c, y, b, 0.02) < guardAlpha, &failed)
			once(2, sampleRatio(c, b, 0.2) < guardAlpha, &split)
			expected := 0.2 * float64(b+c)
			once(3, expected > 5 && math.Abs(float64(c)-expected)/math.Sqrt(0.8*expected) > 2.5758, &naive)
		}
	})
	t.Logf("%d trials of %d requests at %v: errors %d, latency %d, split %d; naive chi-square of the split %d",
		n, requests, guardAlpha, failed.Load(), late.Load(), split.Load(), naive.Load())
	for name, count := range map[string]int64{"errors": failed.Load(), "latency": late.Load(), "split": split.Load()} {
		if float64(count) > max(guardAlpha*float64(n), 3) {
			t.Errorf("%s: %d of %d trials", name, count, n)
		}
	}
	if float64(naive.Load()) < 2*guardAlpha*float64(n) {
		t.Errorf("the naive test ends %d of %d only: the trials do not show what peeking does", naive.Load(), n)
	}
}

// TestGuardsFindWhatIsWrong, and how soon.
func TestGuardsFindWhatIsWrong(t *testing.T) {
	s := Spec{Guardrails: Guardrails{LatencyP99: "250ms"}}.WithDefaults()
	fine := Observations{
		Stable:    Arm{Version: 3, Share: 0.8, Assigned: 800, Requests: 800, Errors: 2},
		Candidate: Arm{Version: 4, Share: 0.2, Assigned: 200, Requests: 200, Errors: 1, Slow: 3, LatencyP99: 300 * time.Millisecond},
	}
	for _, test := range []struct {
		name      string
		change    func(*Observations)
		outcome   Outcome
		guardrail string
	}{
		{"nothing", func(*Observations) {}, Continue, ""},
		{"fails a tenth", func(o *Observations) { o.Candidate.Errors = 20 }, Rollback, "error_rate"},
		{"fails a tenth as the stable one does", func(o *Observations) { o.Candidate.Errors, o.Stable.Errors = 20, 80 }, Continue, ""},
		{"fails always, but few requests", func(o *Observations) { o.Candidate.Requests, o.Candidate.Errors, o.Candidate.Slow = 99, 99, 0 }, Continue, ""},
		{"slow", func(o *Observations) { o.Candidate.Slow = 12 }, Rollback, "latency_p99"},
		{"half of the split is missing", func(o *Observations) { o.Candidate.Assigned = 100 }, Hold, "sample_ratio"},
		{"the split is not checked", func(o *Observations) { o.Candidate.Assigned, o.Candidate.Share, o.Stable.Share = 100, 0, 0 }, Continue, ""},
	} {
		o := fine
		test.change(&o)
		if d := Decide(o, s); d.Outcome != test.outcome || d.Guardrail != test.guardrail || d.Reason == "" {
			t.Errorf("%s: %+v", test.name, d)
		}
	}
}
