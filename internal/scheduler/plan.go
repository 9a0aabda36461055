package scheduler

import (
	"strings"
	"time"
)

// Plan is what a step decided. State.Why says why the others wait.
type Plan struct {
	Place   []Placement  // in the order in which they were decided
	Preempt []Preemption // to be told to save and stop; those for whom wait until they have
	Resize  []Resize     // to be told to go on with another number of workers
	// Wake is when the next delayed work may start, or the next may be preempted, or
	// the next becomes urgent; zero is never.
	Wake time.Time
}

// Placement gives a workload its place: all of its workers in one pool.
type Placement struct {
	Workload ID
	Pool     string
	// Workers is between the work's least and most. Nodes has one name for each
	// of them, and is empty in a delegated pool.
	Workers int
	Nodes   []string
	// Passed says why the pools that may not take the work were passed by.
	Passed []Reason
}

// Preemption takes the place of a running workload for one that waits, or from a node
// in maintenance.
type Preemption struct {
	Workload, For ID     // For is empty for maintenance
	Why           string // "job_2 has priority 5 in queue research, this has 0"
	Ends          bool   // it is not preemptible: it ends for good
}

// Resize has a running workload restart with another number of workers: its owner submits
// it again, with that Target. With Evict it does not restart: those workers stop, and the
// others go on.
type Resize struct {
	Workload, For ID // For is who gets what it gives up; empty when it gets more
	Workers       int
	Evict         []int // which of its workers, as in Running.Nodes
	Why           string
}

// Wait says why a workload has no place.
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
	Isolated    Code = "isolation"    // the pool isolates less than is wanted
	NoRoomEver  Code = "too_large"    // larger than the pool
	Closed      Code = "closed"       // the pool or its nodes take nothing
	NoSuch      Code = "no_such"      // no such pool, accelerator or files there
	Refused     Code = "refused"      // the pool's engine refused to start it, and is asked again later
	OverQuota   Code = "over_quota"   // more than its limits, however empty
	Delayed     Code = "delayed"      // not before a time
	QuotaUsed   Code = "quota_used"   // a limit is used up
	QuotaKept   Code = "quota_kept"   // what is left of a limit is kept for one before it
	StrictOrder Code = "strict_order" // behind the first of a strict queue
	Full        Code = "full"         // no room in the pool now
	Kept        Code = "kept"         // the room there is, is kept for one before it
	Preempting  Code = "preempting"   // others are saving and stopping for it
	Late        Code = "late"         // its deadline cannot be met any more
	Demoted     Code = "demoted"      // it had much: others come first for a while
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
