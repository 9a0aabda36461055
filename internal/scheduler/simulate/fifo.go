package simulate

import "slices"

// most places jobs in the given order, each with its whole request. Running jobs keep their
// placement; others go to the nodes with most free GPUs, of equal nodes the first. A job that
// does not fit is skipped, or, with strict, ends the placement.
//
// All replicas are on one type: the present type of a job if it can stay, otherwise the first
// type of the cluster where it fits. The speed of types is ignored.
func most(nodes []Node, order []Job, strict bool) map[int]Placement {
	var types []string
	left := map[string]int{}
	free := make([]int, len(nodes))
	for i, n := range nodes {
		free[i] = n.GPUs
		if left[n.Device] += n.GPUs; !slices.Contains(types, n.Device) {
			types = append(types, n.Device)
		}
	}
	type choice struct {
		Job
		on    string
		stays bool
	}
	var chosen []choice
	for _, j := range order {
		fits := func(on string) bool {
			l, can := j.On[on]
			return can && j.Replicas <= min(left[on], l.MaxReplicas)
		}
		c := choice{Job: j, on: j.Type, stays: len(j.Placement) > 0 && fits(j.Type)}
		for _, s := range j.Placement {
			c.stays = c.stays && nodes[s.Node].GPUs > 0
		}
		if !c.stays {
			at := slices.IndexFunc(types, fits)
			if at < 0 && strict {
				break
			}
			if at < 0 {
				continue
			}
			c.on = types[at]
		}
		left[c.on] -= j.Replicas
		chosen = append(chosen, c)
		if c.stays {
			for _, s := range j.Placement {
				free[s.Node] -= s.GPUs
			}
		}
	}
	plan := map[int]Placement{}
	for _, c := range chosen {
		if c.stays {
			plan[c.ID] = c.Placement
			continue
		}
		var p Placement
		for need := c.Replicas; need > 0; {
			best := -1
			for n, f := range free {
				if nodes[n].Device == c.on && (best < 0 || f > free[best]) {
					best = n
				}
			}
			s := Share{Node: best, GPUs: min(need, free[best])}
			free[best] -= s.GPUs
			need -= s.GPUs
			p = append(p, s)
		}
		plan[c.ID] = p
	}
	return plan
}

// fifo places whole requests in the order of submission, and stops at the first job that does
// not fit.
type fifo struct{}

func (fifo) Plan(_ int, nodes []Node, jobs []Job) map[int]Placement { return most(nodes, jobs, true) }

func (fifo) Batch(j Job) int { return j.Batch }
