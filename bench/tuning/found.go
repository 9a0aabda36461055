package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

const (
	seeds  = 30
	trials = 100
	level  = 0.05
)

// found compares the best loss of each seed, ours, Optuna's and random search's.
func (b *bench) found(ctx context.Context) error {
	seeds, trials := seeds, trials
	if b.Quick {
		seeds, trials = 3, 15
	}
	problems := functions()
	optuna, reason := b.startPeer(ctx)
	if optuna != nil {
		defer optuna.Stop()
		tables, err := b.tables()
		if err != nil {
			return err
		}
		problems = append(problems, tables...)
	}
	if err := b.tell(problems); err != nil {
		return err
	}
	var worse, better []float64 // p of each problem
	randomWorse := 0
	for _, p := range problems {
		var ours, theirs, random []float64
		for seed := range seeds {
			if err := ctx.Err(); err != nil {
				return err
			}
			for algorithm, to := range map[search.Algorithm]*[]float64{search.TPE: &ours, search.Random: &random} {
				best, err := p.study(algorithm, uint64(seed), trials)
				if err != nil {
					return err
				}
				*to = append(*to, best)
			}
			if optuna == nil {
				continue
			}
			best, err := p.ask(optuna, seed, trials)
			if err != nil {
				return err
			}
			theirs = append(theirs, best)
		}
		name := fmt.Sprintf("%s, best of %d trials: distance from the least value", p.name, trials)
		row := harness.Row{Name: name, Unit: "loss", Better: harness.Lower, Ours: middle(ours), Peer: "TPESampler of Optuna, with its defaults"}
		if optuna == nil {
			row.Note = reason
		} else {
			w, g := mannWhitney(ours, theirs), mannWhitney(theirs, ours)
			worse, better = append(worse, w), append(better, g)
			row.Theirs, row.Peer = middle(theirs), optuna.Name+", TPESampler with its defaults"
			row.Note = fmt.Sprintf("medians of %d seeds; one-sided Mann-Whitney U: p = %.3f that ours is worse, %.3f that it is better; random search: %.4g", seeds, w, g, *middle(random))
			if mannWhitney(random, theirs) < level {
				randomWorse++
			}
		}
		b.Add(row)
		b.Add(harness.Row{
			Name: name + ", beside random search", Unit: "loss", Better: harness.Lower, Ours: middle(ours), Theirs: middle(random), Peer: "our random search", Detail: true,
			Note: fmt.Sprintf("medians of %d seeds; one-sided Mann-Whitney U: p = %.2g that random search is worse", seeds, mannWhitney(random, ours)),
		})
		b.Say("%s: %.4g, theirs %s", p.name, *row.Ours, row.Note)
	}
	if optuna == nil {
		return nil
	}
	count := func(p []float64) *float64 {
		n := 0
		for _, p := range p {
			if p < level {
				n++
			}
		}
		return harness.Value(float64(n))
	}
	b.Add(harness.Row{
		Name: fmt.Sprintf("problems of %d on which TPE finds significantly worse values", len(problems)), Unit: "problems", Better: harness.Lower,
		Ours: count(holm(worse)), Theirs: count(holm(better)), Peer: "those on which Optuna's does, worse than ours", Aim: &harness.Aim{Value: harness.Value(0)},
		Note: "one-sided Mann-Whitney U, p < 0.05 after Holm's correction over the problems",
	})
	b.Add(harness.Row{
		Name: fmt.Sprintf("problems of %d with p < 0.05 that TPE finds worse values, uncorrected", len(problems)), Unit: "problems", Better: harness.Lower,
		Ours: count(worse), Theirs: count(better), Peer: "that Optuna's does, worse than ours",
		Note: fmt.Sprintf("of as many tests of equal samplers one in twenty is expected; random search is worse than Optuna's in %d", randomWorse),
	})
	return nil
}

// study is the least loss of a search.
func (p problem) study(a search.Algorithm, seed uint64, trials int) (float64, error) {
	asked, config := search.Problem{Space: p.space, Directions: []trial.Direction{trial.Minimize}}, search.Config{Algorithm: a, Seed: seed}
	if err := config.Validate(asked); err != nil {
		return 0, err
	}
	var history []trial.Trial
	best := math.Inf(1)
	for n := range trials {
		params, err := search.Suggest(asked, config, history, n)
		if err != nil {
			return 0, err
		}
		loss := p.loss(params)
		best = min(best, loss)
		history = append(history, trial.Trial{Number: n, State: trial.Complete, Params: params, Values: []float64{loss}})
	}
	return best, nil
}

// ask is the least loss of the peer's search, which must be that of its parameters here.
func (p problem) ask(optuna *peer, seed, trials int) (float64, error) {
	var answer struct {
		Params space.Params
		Loss   float64
	}
	if err := optuna.ask(&answer, "study", p.name, seed, trials); err != nil {
		return 0, err
	}
	params, err := p.space.Check(answer.Params)
	if err != nil {
		return 0, fmt.Errorf("%s: the peer's best: %w", p.name, err)
	}
	if here := p.loss(params); !(math.Abs(here-answer.Loss) <= 1e-9*max(1, math.Abs(here))) {
		return 0, fmt.Errorf("%s: %v has %v here and %v at the peer", p.name, params, here, answer.Loss)
	}
	return answer.Loss, nil
}

// middle is the median, of an even number the mean of the two.
func middle(values []float64) *float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return harness.Value((sorted[(n-1)/2] + sorted[n/2]) / 2)
}

// mannWhitney is the probability that values of equal kind differ so: that those of a
// are as high above those of b. It is U's normal approximation with ties and
// continuity (scipy's mannwhitneyu(a, b, "greater", method="asymptotic")).
func mannWhitney(a, b []float64) float64 {
	u := 0.0
	for _, x := range a {
		for _, y := range b {
			switch {
			case x > y:
				u++
			case x == y:
				u += 0.5
			}
		}
	}
	all := slices.Sorted(slices.Values(slices.Concat(a, b)))
	n, m, ties := float64(len(a)), float64(len(b)), 0.0
	for i := 0; i < len(all); {
		from := i
		for i < len(all) && all[i] == all[from] {
			i++
		}
		t := float64(i - from)
		ties += t*t*t - t
	}
	sigma := math.Sqrt(n * m / 12 * (n + m + 1 - ties/((n+m)*(n+m-1))))
	if sigma == 0 {
		return 1
	}
	return math.Erfc((u-n*m/2-0.5)/sigma/math.Sqrt2) / 2
}

// holm corrects p values for how many there are.
func holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case p[i] < p[j]:
			return -1
		case p[i] > p[j]:
			return 1
		}
		return 0
	})
	out, least := make([]float64, len(p)), 0.0
	for rank, i := range order {
		least = max(least, min(p[i]*float64(len(p)-rank), 1))
		out[i] = least
	}
	return out
}
