package scheduler

import (
	"strings"
	"time"
)

// Plan is the decisions of a step. State.Why returns the wait reasons of the other workloads.
type Plan struct {
	Place   []Placement  // in the order in which they were decided
	Preempt []Preemption // victims, to save and stop; the workloads that they leave for stay pending until then
	Resize  []Resize     // workloads to run with another number of workers
	// Wake is when the next step is needed without a change: a delayed workload may start, victims
	// may be searched again, or a workload becomes urgent; zero is never.
	Wake time.Time
}

// Placement places a workload: all of its workers in one pool.
type Placement struct {
	Workload ID
	Pool     string
	// Workers is between the workload's minimum and maximum. Nodes has one name for each
	// worker, and is empty in a delegated pool.
	Workers int
	Nodes   []string
	// Passed says why other pools were skipped.
	Passed []Reason
}

// Preemption stops a running workload for a pending one, or because its node is in
// maintenance.
type Preemption struct {
	Workload, For ID     // For is empty for maintenance
	Why           string // "job_2 has priority 5 in queue research, this has 0"
	Ends          bool   // it is not preemptible: it ends for good
}

// Resize restarts a running workload with another number of workers: its owner submits
// it again, with that Target. With Evict it does not restart: those workers stop, and the
// others continue.
type Resize struct {
	Workload, For ID // For gets the freed capacity; empty when Workload grows
	Workers       int
	Evict         []int // which of its workers, as in Running.Nodes
	Why           string
}

// Wait says why a workload is pending.
type Wait struct {
	// Possible is true when some pool could run it as the pools are now: it
	// waits for capacity, time or quota, not for a change of configuration.
	Possible bool
	Reasons  []Reason // at least one
}

// Code is the kind of a reason, for programs.
type Code string

// The codes.
const (
	Residency   Code = "residency"    // the data may not be there
	Isolated    Code = "isolation"    // the pool has less isolation than required
	NoRoomEver  Code = "too_large"    // larger than the pool
	Closed      Code = "closed"       // the pool or its nodes are closed
	NoSuch      Code = "no_such"      // no such pool, accelerator or files there
	Refused     Code = "refused"      // the pool's engine refused to start it; retried later
	OverQuota   Code = "over_quota"   // larger than a limit, even when nothing is used
	Delayed     Code = "delayed"      // not before a time
	QuotaUsed   Code = "quota_used"   // a limit is used up
	QuotaKept   Code = "quota_kept"   // the rest of a limit is reserved for an earlier workload
	StrictOrder Code = "strict_order" // behind the first of a strict queue
	Full        Code = "full"         // the pool has not enough free capacity
	Kept        Code = "kept"         // the free capacity is reserved for an earlier workload
	Preempting  Code = "preempting"   // victims are saving and stopping for it
	Late        Code = "late"         // its deadline cannot be met any more
	Demoted     Code = "demoted"      // under Tiresias: it has had much service, others come first
)

// Reason is one cause in words, and the step that found it.
type Reason struct {
	Step string // "admit", "rank", "fit", "preempt"
	Code Code
	Pool string // empty when it concerns no pool
	Text string // "pool gpu-de is in DE and the data is allowed only in home"
}

// String joins the reasons with semicolons.
func (w Wait) String() string {
	texts := make([]string, len(w.Reasons))
	for i, r := range w.Reasons {
		texts[i] = r.Text
	}
	return strings.Join(texts, "; ")
}
