package simulate

// most gives whole requests to jobs in an order while GPUs last. Jobs that go on
// stay where they are, the others are placed on the nodes with most free GPUs
// first, the first of them if several have as many. A job that does not fit is
// passed over; strict stops at it.
func most(c Cluster, order []Job, strict bool) map[int]Placement {
	left := c.Total()
	plan := map[int]Placement{}
	var chosen []Job
	free := make([]int, c.Nodes)
	for i := range free {
		free[i] = c.GPUs
	}
	for _, j := range order {
		if j.Replicas > left {
			if strict {
				break
			}
			continue
		}
		left -= j.Replicas
		chosen = append(chosen, j)
		for _, s := range j.Placement {
			free[s.Node] -= s.GPUs
		}
	}
	for _, j := range chosen {
		if len(j.Placement) > 0 {
			plan[j.ID] = j.Placement
			continue
		}
		var p Placement
		for need := j.Replicas; need > 0; {
			best := 0
			for n, f := range free {
				if f > free[best] {
					best = n
				}
			}
			s := Share{Node: best, GPUs: min(need, free[best])}
			free[best] -= s.GPUs
			need -= s.GPUs
			p = append(p, s)
		}
		plan[j.ID] = p
	}
	return plan
}

// fifo gives whole requests in the order of submission and waits for the first
// that does not fit.
type fifo struct{}

func (fifo) Plan(_ int, c Cluster, jobs []Job) map[int]Placement { return most(c, jobs, true) }

func (fifo) Batch(j Job) int { return j.Batch }
