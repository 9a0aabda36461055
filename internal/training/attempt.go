package training

import (
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
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
	ID       AttemptID        `json:"id"`
	Job      JobID            `json:"job"`
	Number   int              `json:"number"` // from 1
	State    AttemptState     `json:"state"`
	Pool     compute.PoolName `json:"pool,omitempty"`
	Workers  int              `json:"workers,omitempty"` // placed
	Nodes    []string         `json:"nodes,omitempty"`   // of each worker, where known
	Run      string           `json:"run_id,omitempty"`
	Class    Class            `json:"class,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	Notes    []string         `json:"notes,omitempty"` // what else is worth knowing
	Made     time.Time        `json:"made_at"`
	Started  time.Time        `json:"started_at,omitzero"`
	Ended    time.Time        `json:"ended_at,omitzero"`
	Revision int64            `json:"-"`
}

// Class of an attempt's end decides whether the job runs again.
type Class string

// The classes. rules has what follows from each.
const (
	Done        Class = "succeeded"
	Saved       Class = "saved"       // exit 75 with a new checkpoint: run me again
	Idle        Class = "no_progress" // exit 75 without a new checkpoint
	UserError   Class = "user_error"  // the program failed
	OutOfMemory Class = "out_of_memory"
	TimedOut    Class = "timeout"
	NodeLost    Class = "node_lost"   // the engine can no longer say how it ended
	Killed      Class = "killed"      // by a signal that nobody here sent
	Unprepared  Class = "environment" // it could not be prepared or started
	Elsewhere   Class = "unavailable" // something it needed did not answer
	Unstored    Class = "output"      // what it left cannot be kept
	Unwanted    Class = "cancelled"
)

// rule says what follows from a class.
type rule struct {
	again bool // the job runs again
	free  bool // and this attempt does not count against max_attempts
	delay bool // not at once, but after a while that doubles
}

var rules = map[Class]rule{
	Done:        {},
	Saved:       {again: true, free: true},
	Idle:        {again: true, delay: true},
	UserError:   {},
	OutOfMemory: {},
	TimedOut:    {},
	NodeLost:    {again: true, delay: true},
	Killed:      {again: true, delay: true},
	Unprepared:  {},
	Elsewhere:   {again: true, delay: true},
	Unstored:    {},
	Unwanted:    {},
}

// maxSaves bounds how often a job may save and run again.
const maxSaves = 1000

// The delays before a repetition.
const (
	firstDelay = 2 * time.Second
	lastDelay  = 5 * time.Minute
)

// tempFail is EX_TEMPFAIL of sysexits.h: "saved, run me again".
const tempFail = 75

// end is an attempt's end as the job takes it.
type end struct {
	class        Class
	reason, hint string
}

// classify says how an attempt ended. saved is true when it left a checkpoint
// that was not there before.
func classify(w compute.Workload, saved bool) end {
	st := w.Status
	e := end{reason: w.Outcome(), hint: w.Hint}
	switch {
	case st.State == engine.Lost:
		e.class = NodeLost
	case st.Reason == engine.Stopped && w.Stop != "":
		e.class = Unwanted
	case st.Reason == engine.Stopped, st.Reason == engine.Signalled && st.Signal == "SIGKILL":
		e.class = Killed
	case st.Reason == engine.Exited && st.ExitCode == 0:
		e.class, e.reason = Done, ""
	case st.Reason == engine.Exited && st.ExitCode == tempFail && saved:
		e.class, e.reason = Saved, "saved a checkpoint and asked to run again"
	case st.Reason == engine.Exited && st.ExitCode == tempFail:
		e.class, e.reason = Idle, fmt.Sprintf("asked to run again (exit code %d) without a new checkpoint", tempFail)
		e.hint = "Rename a directory in FALAJ_CHECKPOINT_DIR to its final name before leaving with this code."
	case st.Reason == engine.OutOfMemory:
		e.class = OutOfMemory
		e.hint = fmt.Sprintf("Ask for more than %s in resources.memory, or use less.", w.Request.Memory)
	case st.Reason == engine.TimedOut:
		e.class = TimedOut
		e.hint = "Raise timeout, or leave with exit code 75 after a checkpoint to go on later."
	case st.Reason == engine.NotStarted:
		e.class = Unprepared
		if k := fault.ParseKind(w.Failure); k == fault.Unavailable || k == fault.Timeout || k == fault.Exhausted {
			e.class = Elsewhere
		}
	default:
		e.class = UserError
		e.hint = fmt.Sprintf("See `falaj job logs %s`.", w.Label)
	}
	return e
}

// again decides whether a job runs again after an attempt ended, and when. It
// may change the end to say why not.
func (j Job) again(e *end) (bool, time.Duration) {
	r := rules[e.class]
	if !r.again || j.Stop != "" {
		return false, 0
	}
	if r.free {
		if j.Attempts >= maxSaves {
			e.reason = fmt.Sprintf("saved and asked to run again %d times", j.Attempts)
			e.hint = "Do more work between checkpoints."
			return false, 0
		}
		return true, 0
	}
	if j.Failures+1 >= j.Spec.MaxAttempts {
		e.reason += fmt.Sprintf(" (failed %d of at most %d attempts)", j.Failures+1, j.Spec.MaxAttempts)
		return false, 0
	}
	if !r.delay {
		return true, 0
	}
	return true, min(firstDelay<<min(j.Failures, 20), lastDelay)
}
