package stop

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

const defaultReduction = 3

func (r Rule) lowest() int64    { return max(r.MinResource, 1) }
func (r Rule) reduction() int64 { return cmp.Or(r.Reduction, defaultReduction) }

// rung is the step of a rung; ok is false for one that nobody reaches.
func (r Rule) rung(k int) (step int64, ok bool) {
	step = r.lowest()
	for range k {
		if step > maxStep/r.reduction() {
			return 0, false
		}
		step *= r.reduction()
	}
	return step, r.MaxResource == 0 || step < r.MaxResource
}

// halving is asynchronous successive halving (Li et al., "A System for Massively
// Parallel Hyperparameter Tuning", MLSys 2020) in the form that stops instead of
// pausing: who reaches a rung goes on if among the best 1/η of all who have reached
// it so far; while those are fewer than η, if the best of them. A trial is judged once
// at a rung, by the first value that it reports there or beyond. Who was stopped still
// counts, but for NaN.
func (r Rule) halving(skip int, t trial.Trial, last trial.Report, others []trial.Trial) Decision {
	d := goOn("step %d is before the first rung", last.Step)
	for k := skip; ; k++ {
		step, ok := r.rung(k)
		if !ok || last.Step < step {
			return d
		}
		own, _ := at(t, step)
		if own.Step != last.Step {
			d = goOn("it was evaluated at the rung of step %d", step)
			continue
		}
		if math.IsNaN(own.Value) {
			return end("it reported NaN at the rung of step %d", step)
		}
		loss, better, reached := r.Direction.Loss(own.Value), 0, 1
		for _, o := range others {
			if v, ok := at(o, step); ok && !math.IsNaN(v.Value) {
				reached++
				if r.Direction.Loss(v.Value) < loss {
					better++
				}
			}
		}
		if keep := max(reached/int(r.reduction()), 1); better >= keep {
			return end("%d of %d trials at the rung of step %d are better, and %d continue", better, reached, step, keep)
		}
		d = goOn("%d of %d trials at the rung of step %d are better", better, reached, step)
	}
}

// at is the first report at or beyond a step.
func at(t trial.Trial, step int64) (first trial.Report, ok bool) {
	for _, p := range t.Reports {
		if p.Step >= step && (!ok || p.Step < first.Step) {
			first, ok = p, true
		}
	}
	return first, ok
}

// hyperband (Li et al., JMLR 18, 2018) hedges over how early to judge: bracket s skips
// s rungs. Trials are spread over brackets by a hash of their numbers, in the shares
// that the paper gives them, and judged among their own.
func (r Rule) hyperband(seed uint64, t trial.Trial, last trial.Report, others []trial.Trial) Decision {
	b := r.Bracket(seed, t.Number)
	others = slices.DeleteFunc(others, func(o trial.Trial) bool { return r.Bracket(seed, o.Number) != b })
	d := r.halving(b, t, last, others)
	d.Reason = fmt.Sprintf("in bracket %d: %s", b, d.Reason)
	return d
}

// Bracket is hyperband's of a trial.
func (r Rule) Bracket(seed uint64, number int) int {
	brackets := 1
	for step := r.lowest(); step <= r.MaxResource/r.reduction(); step *= r.reduction() {
		brackets++
	}
	var shares []float64
	total := 0.0
	for b := range brackets {
		s := brackets - 1 - b
		share := math.Ceil(float64(brackets) * math.Pow(float64(r.reduction()), float64(s)) / float64(s+1))
		shares, total = append(shares, share), total+share
	}
	h := fnv.New64a()
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(number)) //nolint:gosec // any bits will do
	_, _ = h.Write(key[:])
	x := h.Sum64()
	x = (x ^ x>>32) * 0xd6e8feb86659fd93 // the high bits of FNV differ little
	at := float64((x^x>>32)>>11) / (1 << 53) * total
	for b, share := range shares {
		if at < share {
			return b
		}
		at -= share
	}
	return brackets - 1
}
