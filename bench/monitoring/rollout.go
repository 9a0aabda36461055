package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

// rollouts measures decisions, and how many labels they take.
func (b *bench) rollouts(context.Context) error {
	b.decide()
	trials, most := 200, 400_000
	if b.Quick {
		trials, most = 4, 40_000
	}
	spec := rollout.Spec{Metric: rollout.Brier}.WithDefaults()
	for _, c := range []struct {
		name   string
		excess float64 // true difference of the losses
		want   rollout.Outcome
	}{
		{"equal", 0, rollout.Promote},
		{"worse by half the margin", spec.Margin / 2, rollout.Promote},
		{"worse by two margins", 2 * spec.Margin, rollout.Rollback},
	} {
		var labels []float64
		outcomes := map[rollout.Outcome]int{}
		var losses rollout.Moments
		for i := range trials {
			r := rand.New(rand.NewPCG(uint64(i), 30)) //nolint:gosec // Repeatable, not secret.
			outcome, n, stable := trial(r, spec, c.excess, most)
			outcomes[outcome]++
			losses.Merge(stable)
			if outcome == c.want {
				labels = append(labels, float64(n))
			} else {
				labels = append(labels, math.Inf(1))
			}
		}
		row := harness.Row{
			Name: "labels until a decision, candidate " + c.name, Unit: "labels", Better: harness.Lower,
			Peer: "one test at a size fixed beforehand, same alpha, power 80 %, no look before",
			Note: fmt.Sprintf("Brier, margin %v, alpha %v, a fifth to the candidate, a look after each tenth label; %d seeded trials of at most %d labels, median: promoted %d, rolled back %d, undecided %d",
				spec.Margin, spec.Alpha, trials, most, outcomes[rollout.Promote], outcomes[rollout.Rollback], outcomes[rollout.Continue]),
		}
		if m := harness.Median(labels); !math.IsInf(m, 1) {
			row.Ours = harness.Value(m)
		}
		// Non-inferiority when the truth is within the margin, else inferiority.
		gap := spec.Margin - c.excess
		if c.want == rollout.Rollback {
			gap = c.excess
		}
		z := 1.644854 + 0.841621 // one-sided 5 %, and 80 %
		row.Theirs = harness.Value(z * z * losses.Variance() * (1/0.2 + 1/0.8) / (gap * gap))
		b.Add(row)
	}
	return nil
}

// trial plays a rollout until it is decided. The candidate's probabilities are the
// stable version's true ones, off by the root of the excess to either side: its
// Brier loss is larger by just that.
func trial(r *rand.Rand, spec rollout.Spec, excess float64, most int) (rollout.Outcome, int, rollout.Moments) {
	var o rollout.Observations
	off := math.Sqrt(excess)
	for n := range most {
		p := 0.15 + 0.7*r.Float64()
		label := 0.0
		if r.Float64() < p {
			label = 1
		}
		arm, score := &o.Stable, p
		if r.Float64() < 0.2 {
			arm = &o.Candidate
			if r.Float64() < 0.5 {
				score += off
			} else {
				score -= off
			}
		}
		arm.Requests++
		arm.Loss.Add((score - label) * (score - label))
		if n%10 != 9 {
			continue
		}
		if d := rollout.Decide(o, spec); d.Final() {
			return d.Outcome, n + 1, o.Stable.Loss
		}
	}
	return rollout.Continue, most, o.Stable.Loss
}

// decide measures decisions on observations of a trial under way.
func (b *bench) decide() {
	spec := rollout.Spec{Metric: rollout.Brier}.WithDefaults()
	arm := func(version, n int64, share, mean float64) rollout.Arm {
		return rollout.Arm{
			Version: version, Share: share, Assigned: n, Requests: n, Errors: n / 200,
			Loss: rollout.Moments{N: n / 2, Mean: mean, M2: 0.02 * float64(n/2)},
		}
	}
	o := rollout.Observations{Stable: arm(1, 8000, 0.8, 0.18), Candidate: arm(2, 2000, 0.2, 0.182), Elapsed: 24 * time.Hour}
	span := time.Second
	if b.Quick {
		span = time.Millisecond
	}
	var rates []float64
	for range b.Rounds + 1 {
		n, began := 0, time.Now()
		for n == 0 || n%100 != 0 || time.Since(began) < span {
			if rollout.Decide(o, spec).Final() {
				panic("the trial is decided")
			}
			n++
		}
		rates = append(rates, float64(n)/time.Since(began).Seconds())
	}
	b.Add(harness.Row{
		Name: "rollout.Decide", Unit: "decisions/s", Better: harness.Higher, Ours: harness.Value(harness.Median(rates[1:])),
		Note: "10,000 requests and 5,000 labels so far: guardrails, split, confidence sequence, and the reason in words",
	})
}
