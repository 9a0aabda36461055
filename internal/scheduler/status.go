package scheduler

import "github.com/falaj-ml/falaj/internal/resource"

// QueueStatus is how a queue stood after the last step.
type QueueStatus struct {
	Queue
	Used     resource.Amount // by its workloads and those of the queues below it
	Nominal  resource.Amount // its own quota, and what queues below lend it
	Left     resource.Amount // what it may still use of what is limited, borrowed too
	Borrowed resource.Amount // more than nominal
	Share    float64         // the dominant share that Fair goes by
	Running  int             // workloads in it and below
	Waiting  int
	First    string // the workload that waits for it, or the first in it; empty if none waits
}

// Queues tells how all queues stand, by path: a queue comes before those below
// it. The queue of workloads without a queue is the first, without a name.
func (s *State) Queues() []QueueStatus {
	if s.top == nil {
		return nil
	}
	running, waiting := map[*queue]int{}, map[*queue]int{}
	for _, r := range s.running {
		for q := r.queue; q != nil; q = q.up {
			running[q]++
		}
	}
	for _, w := range s.waiting {
		for q := s.queueOf(&w.Workload); q != nil; q = q.up {
			waiting[q]++
		}
	}
	var out []QueueStatus
	s.walk(s.top, func(q *queue) {
		if q == s.top {
			return
		}
		st := QueueStatus{
			Queue: q.Queue, Used: s.names.amount(q.all), Nominal: s.names.amount(q.subtree), Share: s.share(q, nil, 0),
			Running: running[q], Waiting: waiting[q],
		}
		left, borrowed := make(vector, len(q.subtree)), make(vector, len(q.subtree))
		for i, nominal := range q.subtree {
			left[i] = unlimited
			if nominal < unlimited/2 {
				left[i], borrowed[i] = max(q.left(i), 0), max(q.used.part(i)-nominal, 0)
			}
		}
		st.Left, st.Borrowed = s.names.amount(left), s.names.amount(borrowed)
		if q.first != nil {
			st.First = q.first.label()
		}
		out = append(out, st)
	})
	return out
}
