package sizing

import (
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// scaled predicts another number of workers on the device of now, by the model of
// throughput that the scheduler shares accelerators by (package goodput; Pollux,
// OSDI 2021): the time of a step for a local batch, and of synchronising so many
// replicas. It is fitted to what this family showed with the global batch of now.
// Of several replicas only attempts count at which a profiler looked, since it
// knows what part of a step is communication. The model takes what was never seen
// to be free, so several replicas must have been seen.
func (q Question) scaled(p Place) (Option, bool) {
	if p.Device != q.Now.Device || p.Workers == q.Now.Workers || q.Batch == 0 || q.Unit != Examples {
		return Option{}, false
	}
	var seen []goodput.Observation
	counts, most, perNode := map[int]bool{}, 0, 0
	for _, x := range q.Profiles {
		replicas := x.Workers * max(x.Processes, 1)
		if x.Kind != q.Kind || x.Device != p.Device || x.Batch != q.Batch || replicas > q.Batch || replicas > 1 && !x.Seen {
			continue
		}
		step := float64(x.Batch) / x.Rate
		o := goodput.Observation{Nodes: max(x.Nodes, 1), Replicas: replicas, Local: max(x.Batch/replicas, 1), Step: step, Sync: x.Communication * step}
		if !o.Possible() {
			continue // the model leaves it out, too
		}
		seen = append(seen, o)
		counts[replicas] = true
		most = max(most, replicas)
		perNode = max(perNode, x.Workers/max(x.Nodes, 1))
	}
	replicas, now := p.Workers*max(q.Processes, 1), q.Now.Workers*max(q.Processes, 1)
	if len(counts) < 2 || most < 2 || replicas > q.Batch || !counts[now] {
		return Option{}, false
	}
	m := goodput.Fit(seen)
	time := func(replicas, workers int) float64 {
		nodes := max((workers+perNode-1)/max(perNode, 1), 1)
		step, _ := m.Times(nodes, replicas, max(q.Batch/replicas, 1))
		return step
	}
	there, here := time(replicas, p.Workers), time(now, q.Now.Workers)
	if !(there > 0) || !(here > 0) {
		return Option{}, false
	}
	return Option{Place: p, Known: Fitted, Attempts: len(seen), Time: Ratio{Is: there / here}}, true
}
