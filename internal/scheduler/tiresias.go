package scheduler

import (
	"fmt"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Under Tiresias (Gu et al., NSDI 2019) works wait in two queues by the service that
// they attained, because sizes have heavy tails: who had much will want much more.
const (
	// enough is the service, in accelerator-seconds, with which a work is in the
	// second queue: 16 hours, as in the simulator of Pollux.
	enough = 16 * 3600.0
	// behind is how much later works of the second queue count as submitted, so that
	// their turn comes. Who waited so long has had nothing once it starts, and may have
	// as much again before it must leave for others (the paper's PromoteKnob).
	behind = 24 * time.Hour
)

// width is how many accelerators an amount has; without any, cores.
func width(a resource.Amount) float64 {
	n := int64(0)
	for _, count := range a.Accelerators {
		n += count
	}
	if n == 0 {
		return a.CPU.Cores()
	}
	return float64(n)
}

// second reports that a work that waits does so in the second queue.
func (w *Workload) second() bool { return w.Served >= enough }

// served is the service that counts of what it had before.
func (r *Running) served() float64 {
	if !r.Started.IsZero() && r.Started.Sub(r.Submitted) >= behind {
		return 0
	}
	return r.Served
}

// Attained is the service that counts of a running work by a time: accelerator-seconds,
// or core-seconds of what asks for no accelerator.
func (r *Running) Attained(until time.Time) float64 {
	if r.Started.IsZero() || until.Before(r.Started) {
		return r.served()
	}
	return r.served() + width(r.amount())*until.Sub(r.Started).Seconds()
}

// demoted is when a running work drops to the second queue; false is never.
func (r *Running) demoted() (time.Time, bool) {
	left, wide := enough-r.served(), width(r.amount())
	switch {
	case left <= 0:
		return r.Started, true
	case r.Started.IsZero() || left/wide > behind.Seconds()*10_000:
		return time.Time{}, false
	}
	return r.Started.Add(time.Duration(math.Ceil(left / wide * float64(time.Second)))), true
}

// second reports that a running work has had enough.
func (r *Running) second(now time.Time) bool {
	at, ok := r.demoted()
	return ok && !now.Before(at)
}

// service says how much a work had, in words.
func (w *Workload) service(seconds float64) string {
	what := "core"
	for _, n := range w.Amount(w.least()).Accelerators {
		if n > 0 {
			what = "accelerator"
		}
	}
	return fmt.Sprintf("%.1f %s-hours", math.Floor(seconds/360)/10, what)
}

// demotion says that a work waits in the second queue; false when it does not.
func (s *State) demotion(w *waiter) (Reason, bool) {
	if s.policy != Tiresias || !w.second() {
		return Reason{}, false
	}
	return Reason{Step: "rank", Code: Demoted, Text: fmt.Sprintf("it had %s: workloads with less than %g come first, unless submitted a day later", w.service(w.Served), enough/3600)}, true
}
