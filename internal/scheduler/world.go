package scheduler

import (
	"cmp"
	"maps"
	"slices"
)

// World is all that the state knows as it was after the last step, as a delta from nothing: with
// it another state decides as this one would.
func (s *State) World() Delta {
	d := Delta{Now: s.now, Policy: s.policy, Queues: []Queue{}, Quotas: s.quotas, History: s.History(), Turns: s.Turns()}
	for _, p := range s.order {
		d.Pools = append(d.Pools, p.Pool)
	}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if name != "" {
			d.Queues = append(d.Queues, s.queues[name].Queue)
		}
	}
	for _, w := range s.waiting {
		d.Submitted = append(d.Submitted, w.Workload)
	}
	slices.SortFunc(d.Submitted, func(a, b Workload) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range s.running {
		runningCopy := r.Running
		runningCopy.Evicted = slices.Clone(r.Evicted)
		d.Started = append(d.Started, runningCopy)
	}
	slices.SortFunc(d.Started, func(a, b Running) int { return cmp.Compare(a.ID, b.ID) })
	return d
}
