package scheduler

import (
	"fmt"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Under Tiresias (Gu et al., NSDI 2019) pending workloads are in two queues by their attained
// service, because sizes have heavy tails: a workload with much service needs much more.
const (
	// enough is the service, in accelerator-seconds, with which a workload is in the
	// second queue: 16 hours, as in the simulator of Pollux.
	enough = 16 * 3600.0
	// behind is how much later workloads of the second queue count as submitted, so that
	// they do not starve. After so long a wait, the attained service of a workload counts as
	// zero when it starts, and it may attain as much again before it is preempted for others
	// (the paper's PromoteKnob).
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

// second reports that a pending workload is in the second queue.
func (w *Workload) second() bool { return w.Served >= enough }

// served is the service that counts of what it had before.
func (r *Running) served() float64 {
	if !r.Started.IsZero() && r.Started.Sub(r.Submitted) >= behind {
		return 0
	}
	return r.Served
}

// Attained is the service that counts of a running workload by a time: accelerator-seconds,
// or core-seconds of what asks for no accelerator.
func (r *Running) Attained(until time.Time) float64 {
	if r.Started.IsZero() || until.Before(r.Started) {
		return r.served()
	}
	return r.served() + width(r.amount())*until.Sub(r.Started).Seconds()
}

// demoted is when a running workload is demoted to the second queue; false is never.
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

// second reports that a running workload has attained enough for the second queue.
func (r *Running) second(now time.Time) bool {
	at, ok := r.demoted()
	return ok && !now.Before(at)
}

// service is a workload's attained service, in words.
func (w *Workload) service(seconds float64) string {
	what := "core"
	for _, n := range w.Amount(w.least()).Accelerators {
		if n > 0 {
			what = "accelerator"
		}
	}
	return fmt.Sprintf("%.1f %s-hours", math.Floor(seconds/360)/10, what)
}

// demotion says that a workload waits in the second queue; false if it does not.
func (s *State) demotion(w *waiter) (Reason, bool) {
	if s.policy != Tiresias || !w.second() {
		return Reason{}, false
	}
	return Reason{Step: "rank", Code: Demoted, Text: fmt.Sprintf("it had %s: workloads with less than %g come first, unless submitted a day later", w.service(w.Served), enough/3600)}, true
}
