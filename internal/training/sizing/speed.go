package sizing

import (
	"maps"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// whole is how many examples a step has of which nobody said so: it is divided among
// the replicas.
const whole = 1 << 16

// Speeds says how fast work of a kind is on a device with least workers, with one more,
// and so on, in terms of the least: by the model of a step that the scheduler shares
// accelerators by, fitted to what all profiles of the kind show there, or elsewhere
// where there is none of that device. It ends at most, or at twice the workers that
// anything of the family had: more is not tried at once. What nothing is known of is
// taken to scale perfectly.
//
// What of a step a profiler did not see as communication is taken for it as far as
// more replicas did not shorten the step: with r₀ the fewest that were seen,
// sync(r) = T(r) − T(r₀)·r₀/r.
func Speeds(k Kind, device string, processes, least, most int, all []Profile) []float64 {
	seen, tried := map[int][]Profile{}, least
	for _, here := range []bool{true, false} {
		for _, p := range all {
			if p.Family == k.Family {
				tried = max(tried, 2*p.Workers)
			}
			if p.Kind == k && p.Rate > 0 && p.Workers > 0 && (p.Device == device || !here) {
				seen[p.Workers] = append(seen[p.Workers], p)
			}
		}
		if len(seen) > 0 {
			break
		}
	}
	out := make([]float64, max(min(most, tried)-least+1, 1))
	if len(seen) == 0 {
		for i := range out {
			out[i] = float64(least+i) / float64(least)
		}
		return out
	}
	processes = max(processes, 1)
	m := goodput.Fit(observed(seen, processes))
	step := func(workers int) float64 {
		replicas := workers * processes
		t, _ := m.Times(1, replicas, local(seen, replicas))
		return t
	}
	for i := range out {
		if out[i] = step(least) / step(least+i); !(out[i] > 0) || math.IsInf(out[i], 0) {
			return out[:max(i, 1)]
		}
	}
	return out
}

// local is how many examples of a step each of some replicas has.
func local(seen map[int][]Profile, replicas int) int {
	batch := whole
	for _, p := range seen {
		if p[0].Batch > 0 {
			batch = p[0].Batch
		}
	}
	return max(batch/replicas, 1)
}

// observed are the mean steps of each number of workers.
func observed(seen map[int][]Profile, processes int) (out []goodput.Observation) {
	fewest := math.MaxInt
	steps, comm := map[int]float64{}, map[int]float64{}
	for workers, all := range seen {
		looks := 0.0
		for _, p := range all {
			step := 1 / p.Rate
			if p.Unit == Examples {
				step *= float64(max(p.Batch, 1))
			}
			steps[workers] += math.Log(step) / float64(len(all))
			if p.Seen {
				looks++
				comm[workers] += (p.Communication - comm[workers]) / looks
			}
		}
		steps[workers] = math.Exp(steps[workers])
		fewest = min(fewest, workers)
	}
	for _, workers := range slices.Sorted(maps.Keys(steps)) { // sums in one order give one answer
		step := steps[workers]
		sync, looked := comm[workers], false
		for _, p := range seen[workers] {
			looked = looked || p.Seen
		}
		if sync *= step; !looked {
			sync = max(step-steps[fewest]*float64(fewest)/float64(workers), 0)
		}
		replicas := workers * processes
		out = append(out, goodput.Observation{Nodes: 1, Replicas: replicas, Local: local(seen, replicas), Step: step, Sync: min(sync, 0.99*step)})
	}
	return out
}
