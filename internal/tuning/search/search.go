// Package search suggests what a sweep tries next: grid, random, Sobol and TPE.
//
// # Map
//
//   - search.go: what is asked (Problem, Config), Suggest, warm starts.
//   - grid.go, sobol.go: points that depend on the trial's number; joekuo.go holds
//     Sobol's numbers.
//   - tpe.go: the tree-structured Parzen estimator; parzen.go: its two densities.
//   - split.go: which trials are good, with one objective or several.
//
// It is pure: a suggestion is a function of the problem, the configuration, the trials
// told so far, in whatever order, and the trial's number. So a sweep that is resumed
// goes on as it would have, and nothing but trials is kept.
package search

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// Algorithm is a way to search.
type Algorithm string

// The algorithms.
const (
	Grid   Algorithm = "grid"   // every combination, once
	Random Algorithm = "random" // uniform, or by the logarithm
	Sobol  Algorithm = "sobol"  // uniform, spread more evenly than random
	TPE    Algorithm = "tpe"    // what good trials have and bad ones have not
)

// Problem is what is searched.
type Problem struct {
	Space      space.Space
	Directions []trial.Direction // of each objective
}

// Config is how it is searched. The zero value of a number is its default.
type Config struct {
	Algorithm Algorithm      `json:"algorithm,omitempty" enum:"grid,random,sobol,tpe" doc:"Search algorithm; tpe by default."`
	Seed      uint64         `json:"seed,omitempty" doc:"Random seed: the same seed gives the same suggestions."`
	First     []space.Params `json:"first,omitempty" doc:"Parameters of the first trials, such as the current values; at most 1000."`

	GridPoints int `json:"grid_points,omitempty" doc:"Maximum number of grid values of a parameter, evenly spaced, including both ends. By default 5 for a continuous parameter and all values otherwise."`

	Startup    int `json:"startup_trials,omitempty" doc:"Number of complete or stopped trials before tpe uses its model; until then it suggests at random; 10 by default."`
	Candidates int `json:"candidates,omitempty" doc:"Number of candidates from which tpe suggests the best; 24 by default."`
	// Multivariate defaults to true with one objective.
	Multivariate *bool `json:"multivariate,omitempty" doc:"Whether tpe models parameters jointly, including interactions; by default only with one objective."`
	IgnoreBusy   bool  `json:"ignore_running,omitempty" doc:"Whether tpe ignores running trials. By default it treats them as bad (constant liar), so that concurrent trials differ."`
}

// Limits of a configuration.
const (
	maxFirst      = 1000
	maxCandidates = 10_000
	maxStartup    = 100_000
)

// ErrDone is when a grid has no point left.
var ErrDone = fault.New(fault.Exhausted, "every point of the grid has been evaluated").WithHint("Use finer grid_points, or another algorithm.")

// Validate says what is wrong with a search.
func (c Config) Validate(p Problem) error {
	if err := p.Space.Validate(); err != nil {
		return err
	}
	if n := len(p.Directions); n == 0 || n > trial.MaxObjectives {
		return fault.New(fault.Invalid, "a search must have 1 to %d objectives, not %d", trial.MaxObjectives, n)
	}
	for _, d := range p.Directions {
		if d != trial.Minimize && d != trial.Maximize {
			return fault.New(fault.Invalid, "the direction is %q, and must be minimize or maximize", d)
		}
	}
	for _, l := range []struct {
		name     string
		n, limit int
	}{
		{"first", len(c.First), maxFirst},
		{"grid_points", c.GridPoints, maxGrid},
		{"startup_trials", c.Startup, maxStartup},
		{"candidates", c.Candidates, maxCandidates},
	} {
		if l.n < 0 || l.n > l.limit {
			return fault.New(fault.Invalid, "%s is %d, and must be 0 to %d", l.name, l.n, l.limit)
		}
	}
	for i, params := range c.First {
		if _, err := p.Space.Check(params); err != nil {
			return fault.Wrap(err, "first[%d]", i)
		}
	}
	switch c.Algorithm {
	case "", Random, Sobol, TPE:
		return nil
	case Grid:
		_, err := c.grid(p.Space)
		return err
	}
	return fault.New(fault.Invalid, "there is no algorithm %q", c.Algorithm).WithHint("The algorithms are grid, random, sobol and tpe.")
}

// Suggest gives the parameters of trial n. The history has the other trials, those
// that run included. The problem and the configuration are valid.
func Suggest(p Problem, c Config, history []trial.Trial, n int) (space.Params, error) {
	if n < 0 {
		return nil, fault.New(fault.Invalid, "a trial has no number %d", n)
	}
	if n < len(c.First) {
		return p.Space.Check(c.First[n])
	}
	switch c.Algorithm {
	case Grid:
		return c.nextOfGrid(p.Space, history)
	case Random:
		return random(p.Space, c.rng(n)), nil
	case Sobol:
		return p.Space.Fill(func(i int, q space.Parameter) any { return q.At(sobolPoint(uint32(n), i, c.Seed)) }), nil //nolint:gosec // the sequence starts again after 2³² trials
	case "", TPE:
		return c.tpe(p, history, n), nil
	}
	return nil, fault.New(fault.Invalid, "there is no algorithm %q", c.Algorithm).WithHint("The algorithms are grid, random, sobol and tpe.")
}

// Warm gives trials of another sweep to learn from: those whose parameters this space
// can have, with numbers below 0, in their order. The objectives must be the same.
func Warm(s space.Space, earlier []trial.Trial) []trial.Trial {
	var out []trial.Trial
	for _, t := range inOrder(earlier) {
		if t.State != trial.Complete {
			continue
		}
		params, err := s.Check(t.Params)
		if err != nil {
			continue
		}
		t.Params = params
		out = append(out, t)
	}
	for i := range out {
		out[i].Number = i - len(out)
	}
	return out
}

func inOrder(trials []trial.Trial) []trial.Trial {
	byNumber := func(a, b trial.Trial) int { return a.Number - b.Number }
	if slices.IsSortedFunc(trials, byNumber) {
		return trials
	}
	out := slices.Clone(trials)
	slices.SortStableFunc(out, byNumber)
	return out
}

func random(s space.Space, rng *rand.Rand) space.Params {
	return s.Fill(func(_ int, p space.Parameter) any { return p.At(rng.Float64()) })
}

// rng is the randomness of a trial, which shares nothing with that of others.
func (c Config) rng(n int) *rand.Rand {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], c.Seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(n)) //nolint:gosec // any bits will do
	return rand.New(rand.NewChaCha8(key))             //nolint:gosec // to be repeated, not to be secret
}
