package search

import (
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// The defaults, Optuna's.
const (
	startup    = 10
	candidates = 24
)

// tpe is the tree-structured Parzen estimator of Bergstra et al., "Algorithms for
// Hyper-Parameter Optimization", NeurIPS 2011, as Optuna 5 has it: one density for the
// good trials, l, and one for the bad, g; of some draws from l the one with the highest
// l/g is suggested, as it has the highest expected improvement. Parameters that are
// always active together share a density (Falkner et al., "BOHB", ICML 2018), which for
// conditional ones is what Optuna's group=True does.
func (c Config) tpe(p Problem, history []trial.Trial, n int) space.Params {
	rng := c.rng(n)
	var trials []trial.Trial
	ended := 0
	for _, t := range inOrder(history) {
		_, complete := t.Losses(p.Directions)
		switch {
		case t.Number == n:
		case complete || t.State == trial.Stopped:
			ended++
			trials = append(trials, t)
		case t.State == trial.Running && !c.IgnoreBusy:
			trials = append(trials, t)
		}
	}
	if ended < or(c.Startup, startup) {
		return random(p.Space, rng)
	}
	good, bad := split(trials, p.Directions)
	weights := ageing
	if len(p.Directions) > 1 {
		weights = alike // a front has no old points
	}
	params := space.Params{}
	for _, g := range c.groups(p) {
		if !p.Space.Active(g.Parameters[0].Name, params) {
			continue
		}
		var free []space.Parameter
		for _, q := range g.Parameters {
			if q.Single() {
				params[q.Name] = q.Decode(q.Low)
				continue
			}
			free = append(free, q)
		}
		if len(free) == 0 {
			continue
		}
		l, b := observe(free, good, weights), observe(free, bad, ageing)
		draws := make([][]float64, or(c.Candidates, candidates))
		for i := range draws {
			draws[i] = l.draw(rng)
		}
		x := draws[highest(l.logDensities(draws), b.logDensities(draws))]
		for i, q := range free {
			params[q.Name] = q.Decode(x[i])
		}
	}
	return params
}

// groups are the parameters that share a density.
func (c Config) groups(p Problem) []space.Group {
	together := len(p.Directions) == 1
	if c.Multivariate != nil {
		together = *c.Multivariate
	}
	if together {
		return p.Space.Groups()
	}
	out := make([]space.Group, len(p.Space.Parameters))
	for i, q := range p.Space.Parameters {
		out[i] = space.Group{When: q.When, Parameters: []space.Parameter{q}}
	}
	return out
}

// observe is the density of those trials that have the parameters.
func observe(params []space.Parameter, trials []trial.Trial, weights func(n int) []float64) *parzen {
	rows := make([][]float64, 0, len(trials))
	flat := make([]float64, 0, len(trials)*len(params))
	for _, t := range trials {
		from := len(flat)
		var ok bool
		if flat, ok = encoded(params, t.Params, flat); !ok {
			flat = flat[:from]
			continue
		}
		rows = append(rows, flat[from:])
	}
	return newParzen(params, rows, weights(len(rows)))
}

// encoded adds the values of parameters to a row; ok is false where one has none.
func encoded(params []space.Parameter, values space.Params, row []float64) (_ []float64, ok bool) {
	for _, p := range params {
		v, there := values[p.Name]
		if !there {
			return row, false
		}
		x, err := p.Encode(v)
		if err != nil {
			return row, false
		}
		row = append(row, x)
	}
	return row, true
}

// highest is where good is highest above bad.
func highest(good, bad []float64) int {
	at := 0
	for i := range good {
		if good[i]-bad[i] > good[at]-bad[at] {
			at = i
		}
	}
	return at
}

func alike(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

// or is n, or the default where it is 0.
func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
