package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

const told = 500

// latency measures a suggestion of TPE after 500 random trials, alternating with the
// peer's.
func (b *bench) latency(ctx context.Context) error {
	told, rounds := told, 20
	if b.Quick {
		told, rounds = 20, 2
	}
	whole := space.Space{}
	for i := range 10 {
		whole.Parameters = append(whole.Parameters, space.Parameter{Name: fmt.Sprintf("n%d", i), Type: space.Int, Low: 1, High: 1000})
	}
	problems := []problem{{name: "10 floats", space: cube(10, 0, 1)}, {name: "10 ints", space: whole}}
	for _, p := range functions() {
		if p.name == "mixed" || p.name == "conditional" {
			problems = append(problems, p)
		}
	}
	optuna, reason := b.startPeer(ctx)
	if optuna != nil {
		defer optuna.Stop()
	}
	if err := b.tell(problems); err != nil {
		return err
	}
	for _, p := range problems {
		history, err := p.random(told)
		if err != nil {
			return err
		}
		asked := search.Problem{Space: p.space, Directions: []trial.Direction{trial.Minimize}}
		var ours, theirs []float64
		for round := range b.Rounds + 1 { // the first warms up
			var took []float64
			for i := range rounds {
				began := time.Now()
				if _, err := search.Suggest(asked, search.Config{Seed: uint64(round)}, history, told+i); err != nil {
					return err
				}
				took = append(took, harness.Millis(time.Since(began)))
			}
			ours = append(ours, harness.Median(took))
			if optuna == nil {
				continue
			}
			if err := optuna.ask(&took, "wait", p.name, told, rounds); err != nil {
				return err
			}
			theirs = append(theirs, harness.Median(took)*1000)
		}
		row := harness.Row{
			Name: fmt.Sprintf("suggestion after %d trials, %s", told, p.name), Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(ours[1:])),
			Peer: "TPESampler of Optuna, in memory: ask and suggest", Aim: &harness.Aim{Value: harness.Value(5)}, Note: "medians; ours has the history in memory, too",
		}
		if optuna != nil {
			row.Theirs, row.Peer = harness.Value(harness.Median(theirs[1:])), optuna.Name+", TPESampler in memory: ask and suggest"
		} else {
			row.Note += "; " + reason
		}
		b.Add(row)
	}
	return nil
}

// random is a history of random trials with random values.
func (p problem) random(n int) ([]trial.Trial, error) {
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // Repeatable, not secret.
	var out []trial.Trial
	for i := range n {
		params, err := search.Suggest(search.Problem{Space: p.space, Directions: []trial.Direction{trial.Minimize}}, search.Config{Algorithm: search.Random}, nil, i)
		if err != nil {
			return nil, err
		}
		out = append(out, trial.Trial{Number: i, State: trial.Complete, Params: params, Values: []float64{rng.Float64()}})
	}
	return out, nil
}
