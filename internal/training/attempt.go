package training

import (
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/training/diagnosis"
)

// AttemptID names an attempt and its workload: "att_01J…".
type AttemptID string

// AttemptState is how far an attempt is.
type AttemptState string

// The attempt states. TestTransitions holds the diagram against the table.
//
//	stateDiagram-v2
//	    [*] --> placing: submitted
//	    placing --> starting: the scheduler gave it a pool
//	    placing --> ended: cancelled in the queue
//	    starting --> placing: the pool may not take it any more
//	    starting --> running: the engine started it
//	    starting --> checkpointing: asked to stop
//	    starting --> ended: it could not start
//	    running --> checkpointing: asked to stop
//	    running --> ended
//	    checkpointing --> placing: the pool may not take it any more
//	    checkpointing --> ended
const (
	Placing       AttemptState = "placing"
	Starting      AttemptState = "starting"
	Executing     AttemptState = "running"
	Checkpointing AttemptState = "checkpointing"
	AttemptEnded  AttemptState = "ended"
)

var attemptTransitions = map[AttemptState][]AttemptState{
	Placing:       {Starting, AttemptEnded},
	Starting:      {Placing, Executing, Checkpointing, AttemptEnded},
	Executing:     {Checkpointing, AttemptEnded},
	Checkpointing: {Placing, AttemptEnded},
}

// CanBecome reports whether the transition exists.
func (s AttemptState) CanBecome(next AttemptState) bool {
	return slices.Contains(attemptTransitions[s], next)
}

// Attempt is one try of a job.
type Attempt struct {
	ID      AttemptID        `json:"id"`
	Job     JobID            `json:"job"`
	Number  int              `json:"number"` // from 1
	State   AttemptState     `json:"state"`
	Pool    compute.PoolName `json:"pool,omitempty"`
	Workers int              `json:"workers,omitempty"` // placed
	Nodes   []string         `json:"nodes,omitempty"`   // of each worker, where known
	// Machine is what the machines are called that have its workers, and Zone where they
	// are: of a pool on the server's machine it is that machine, of others the nodes.
	Machine string         `json:"machine,omitempty"`
	Zone    residency.Zone `json:"zone,omitempty"`
	Run     string         `json:"run_id,omitempty"`
	Class   Class          `json:"class,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Notes   []string       `json:"notes,omitempty"` // what else is worth knowing
	// Evidence, Lines and Hint are what the end was judged by, and what to do.
	Evidence []string         `json:"evidence,omitempty"`
	Lines    []diagnosis.Line `json:"lines,omitempty"`
	Hint     string           `json:"hint,omitempty"`
	Blamed   []string         `json:"blamed,omitempty"`  // nodes that may be at fault
	Members  []engine.Member  `json:"members,omitempty"` // how each worker ended
	// Asked is the class of the end that Falaj asked for, and Why it did.
	Asked    Class     `json:"asked,omitempty"`
	Why      string    `json:"why,omitempty"`
	Target   int       `json:"target,omitempty"` // how many workers the scheduler wants the next one to have
	Made     time.Time `json:"made_at"`
	Started  time.Time `json:"started_at,omitzero"`
	Ended    time.Time `json:"ended_at,omitzero"`
	Revision int64     `json:"-"`
}

// since is the time from which on what its run says is of this attempt; zero for the first,
// whose run has nothing of others.
func (a Attempt) since() time.Time {
	if a.Number <= 1 {
		return time.Time{}
	}
	return a.Made
}

// Class of an attempt's end decides whether the job runs again.
type Class = diagnosis.Class

// The classes. diagnosis.After has what follows from each.
const (
	Done        = diagnosis.Done
	Saved       = diagnosis.Saved
	Idle        = diagnosis.Idle
	Resized     = diagnosis.Resized
	Moved       = diagnosis.Moved
	UserError   = diagnosis.UserError
	OutOfMemory = diagnosis.OutOfMemory
	OutOfDisk   = diagnosis.OutOfDisk
	OutOfTasks  = diagnosis.OutOfTasks
	TimedOut    = diagnosis.TimedOut
	NodeLost    = diagnosis.NodeLost
	Preempted   = diagnosis.Preempted
	Reclaimed   = diagnosis.Reclaimed
	Hung        = diagnosis.Hung
	Straggler   = diagnosis.Straggler
	Killed      = diagnosis.Killed
	Unprepared  = diagnosis.Environment    // it could not be prepared or started
	Elsewhere   = diagnosis.Infrastructure // something it needed did not answer
	Unwanted    = diagnosis.Unwanted
	Unstored    = diagnosis.Unstored
)

// maxSaves bounds the attempts of a job that is repeated without being counted as failed.
const maxSaves = 1000

// The delays before a repetition.
const (
	firstDelay = 2 * time.Second
	lastDelay  = 5 * time.Minute
)

// end is an attempt's end as the job takes it.
type end struct {
	class        Class
	reason, hint string
	evidence     []string
	lines        []diagnosis.Line
	blamed       []string
	at           time.Time // zero is now
}

// classifyEnd says how an attempt ended. saved is true if the attempt left a new checkpoint.
//
// Before Falaj stops an attempt for a resize, a move, a hang or a straggler, it records that class in
// a.Asked. If the workload was stopped (w.Stop) without such a record, or the job is cancelled (j.Stop),
// the end is a cancellation: class Unwanted.
func classifyEnd(j Job, a Attempt, w compute.Workload, members []engine.Member, saved bool, log diagnosis.Log) end {
	in := diagnosis.Input{
		Status: w.Status, Members: members, Failure: w.Failure, Hint: w.Hint, Outcome: w.Outcome(), Asked: a.Asked, Why: a.Why, Saved: saved,
		Log: log, Memory: w.Largest().Memory, Environment: j.Spec.Environment, Job: w.Label, Denials: w.Denials,
	}
	if w.Stop != "" && (a.Asked == "" || j.Stop != "") {
		in.Asked, in.Why = Unwanted, w.Stop // an end with 0 in a preemption or resize is Exited here, see compute.Workload
	}
	f := diagnosis.Find(in)
	return end{class: f.Class, reason: f.Words, hint: f.Hint, evidence: f.Evidence, lines: f.Lines, blamed: f.Blamed}
}

// The quarantine of a node that is blamed doubles with each attempt of the job
// that blames it.
const (
	firstBlame = 10 * time.Minute
	lastBlame  = 24 * time.Hour
)

// quarantine says how long nothing shall be placed on a blamed node: at once
// where it was lost, otherwise from the second time on.
func quarantine(class Class, earlier int) time.Duration {
	if class != NodeLost && earlier == 0 {
		return 0
	}
	return min(firstBlame<<min(earlier, 20), lastBlame)
}

// again decides whether a job runs again after an attempt ended, and when. It
// may change the end to say why not.
func (j Job) again(e *end) (bool, time.Duration) {
	r := diagnosis.After[e.class]
	if !r.Again || j.Stop != "" {
		return false, 0
	}
	if r.Free {
		if j.Attempts >= maxSaves && e.class != Resized {
			e.reason = fmt.Sprintf("the job was restarted %d times, the limit", j.Attempts)
			e.hint = "Do more work between checkpoints."
			return false, 0
		}
		return true, 0
	}
	if j.Failures+1 >= j.Spec.MaxAttempts {
		e.reason += fmt.Sprintf(" (failed %d of at most %d attempts)", j.Failures+1, j.Spec.MaxAttempts)
		return false, 0
	}
	if !r.Delay {
		return true, 0
	}
	return true, min(firstDelay<<min(j.Failures, 20), lastDelay)
}
