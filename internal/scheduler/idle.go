package scheduler

import (
	"fmt"
	"time"
)

// reclaimed is when a running workload has to leave for others that wait for its idle
// accelerators; false is never.
func (r *run) reclaimed() (time.Time, bool) {
	can := r.Preemptible || r.queue.IdleEnd
	if r.EvictableWorkers && !r.Preemptible {
		can = r.whole != nil || r.surplus() > 0
	}
	if r.Idle.IsZero() || r.queue.IdleReclaim <= 0 || r.Leaving || !can {
		return time.Time{}, false
	}
	return r.Idle.Add(r.queue.IdleReclaim), true
}

// idles reports that a running workload has accelerators to give back that w asks for.
func (s *State) idles(w *waiter, r *run) bool {
	at, ok := r.reclaimed()
	return ok && !at.After(s.now) && w.known.wants(r)
}

// wants reports that a pending workload requests accelerators of the kind that a running workload
// has.
func (k *shape) wants(r *run) bool {
	for i := accelerators; i < len(k.total); i++ {
		if k.total[i] > 0 && r.total.part(i) > 0 {
			return true
		}
	}
	return false
}

// idlers are those who could give accelerators back to w now; who may have to later
// asks for a step then.
func (s *State) idlers(w *waiter, plan *Plan) (out []*run) {
	for id := range s.idle {
		r := s.running[id]
		at, ok := r.reclaimed()
		switch {
		case !ok || !w.known.wants(r):
		case at.After(s.now):
			plan.wake(at)
		default:
			out = append(out, r)
		}
	}
	return out
}

// Idle says of a running workload whose accelerators are idle when it may have to leave;
// empty when it may stay.
func (s *State) Idle(id ID) string {
	r := s.running[id]
	if r == nil {
		return ""
	}
	at, ok := r.reclaimed()
	if !ok {
		return ""
	}
	what := "is preempted"
	switch {
	case r.Preemptible:
	case r.EvictableWorkers:
		what = fmt.Sprintf("releases %d of its workers", r.surplus())
	default:
		what = "is ended"
	}
	return fmt.Sprintf("its accelerators are idle: after %s it %s when pending workloads need them (idle_reclaim of queue %s)", at.UTC().Format(time.RFC3339), what, r.queue.Name)
}
