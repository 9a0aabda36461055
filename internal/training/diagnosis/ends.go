package diagnosis

import (
	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// Word is what a program says by how it ends.
type Word string

// The words.
const (
	Zero  Word = "0"                      // its work is done
	Again Word = "75, new checkpoint"     // it saved: run me again
	Empty Word = "75, no new checkpoint"  // run me again, from where it began
	Other Word = "another code or signal" // it failed, or was killed at the end of its grace
)

// Words are all of them, in the order of the table.
var Words = []Word{Zero, Again, Empty, Other}

// Cause is what ended a program.
type Cause string

// The causes.
const (
	Nothing    Cause = "nothing"             // it ended by itself
	Preemption Cause = "preemption"          // its place was needed, or a node drained
	Reclaim    Cause = "reclaim"             // its accelerators were idle, and it is not preemptible
	Resize     Cause = "resize"              // another number of workers
	Move       Cause = "move"                // other pools
	Silence    Cause = "silence"             // no progress for progress_timeout
	Slowness   Cause = "slowness"            // one worker held up the others
	Timeout    Cause = "timeout"             // the attempt reached spec.timeout
	Outside    Cause = "stop from outside"   // scancel, kubectl delete, a node that shuts down
	Cancelling Cause = "cancellation"        // somebody cancelled the job
	Eviction   Cause = "eviction for disk"   // a kubelet ended it for what it wrote itself
	Memory     Cause = "memory limit"        //
	Disk       Cause = "disk limit"          //
	Tasks      Cause = "process limit"       //
	Unstarted  Cause = "start failed"        // no program ran; its class follows from the error
	Vanished   Cause = "node or engine lost" // the engine cannot say how it ended
)

// Row is what follows when a program ends for a cause: the class for each word, in the order
// of Words. An empty class is read from the signal and the log.
type Row struct {
	Cause   Cause
	Classes [4]Class
}

// Ends is the one table of what an end means: what the program said decides before what
// asked it to stop. docs/design/compute.md has it, and a test compares the two.
var Ends = []Row{
	{Nothing, [4]Class{Done, Saved, Idle, ""}},
	{Preemption, [4]Class{Done, Preempted, Preempted, Preempted}},
	{Reclaim, [4]Class{Done, Saved, Reclaimed, Reclaimed}},
	{Resize, [4]Class{Done, Resized, Resized, Resized}},
	{Move, [4]Class{Done, Moved, Moved, Moved}},
	{Silence, [4]Class{Done, Hung, Hung, Hung}},
	{Slowness, [4]Class{Done, Straggler, Straggler, Straggler}},
	{Timeout, [4]Class{Done, Saved, TimedOut, TimedOut}},
	{Outside, [4]Class{Done, Saved, Killed, Killed}},
	{Eviction, [4]Class{Done, Saved, OutOfDisk, OutOfDisk}},
	{Cancelling, [4]Class{Unwanted, Unwanted, Unwanted, Unwanted}},
	{Memory, [4]Class{OutOfMemory, OutOfMemory, OutOfMemory, OutOfMemory}},
	{Disk, [4]Class{OutOfDisk, OutOfDisk, OutOfDisk, OutOfDisk}},
	{Tasks, [4]Class{OutOfTasks, OutOfTasks, OutOfTasks, OutOfTasks}},
	{Unstarted, [4]Class{"", "", "", ""}},
	{Vanished, [4]Class{NodeLost, NodeLost, NodeLost, NodeLost}},
}

// class of a row's end.
func class(c Cause, w Word) Class {
	for _, r := range Ends {
		if r.Cause != c {
			continue
		}
		for i, word := range Words {
			if word == w {
				return r.Classes[i]
			}
		}
	}
	return ""
}

// Rule is what follows from a class. A job that runs again does so from its newest complete
// checkpoint.
type Rule struct {
	Again bool // the job runs again
	Free  bool // and this attempt does not count against max_attempts
	Delay bool // not at once, but after a while that doubles
}

// After has what follows from each class.
var After = map[Class]Rule{
	Done:           {},
	Saved:          {Again: true, Free: true},
	Idle:           {Again: true, Delay: true},
	Resized:        {Again: true, Free: true},
	Moved:          {Again: true, Free: true},
	Preempted:      {Again: true, Free: true},
	Hung:           {Again: true, Delay: true},
	Straggler:      {Again: true, Delay: true},
	Reclaimed:      {},
	UserError:      {},
	OutOfMemory:    {},
	OutOfDisk:      {},
	OutOfTasks:     {},
	TimedOut:       {},
	NodeLost:       {Again: true, Delay: true},
	Killed:         {Again: true, Delay: true},
	Environment:    {},
	Infrastructure: {Again: true, Delay: true},
	Unstored:       {},
	Unwanted:       {},
}

// word is what the program said.
func (in Input) word() Word {
	switch st := in.Status; {
	case st.Finished():
		return Zero
	case st.ExitCode == TempFail && st.Signal == "" && in.Saved:
		return Again
	case st.ExitCode == TempFail && st.Signal == "":
		return Empty
	}
	return Other
}

// causes of the ends that training asks for.
var asked = map[Class]Cause{
	Unwanted: Cancelling, Resized: Resize, Moved: Move, Hung: Silence, Straggler: Slowness,
}

// cause is what ended the program.
func (in Input) cause() Cause {
	switch st := in.Status; {
	case st.State == engine.Lost, st.Reason == engine.NodeFailed:
		return Vanished
	case st.Reason == engine.Preempted && matches(st.Message, ownDisk...):
		return Eviction
	case st.Reason == engine.Stopped && in.Asked != "":
		return asked[in.Asked]
	case st.Reason == engine.Exited && st.ExitCode == TempFail && (in.Asked == Resized || in.Asked == Moved):
		return asked[in.Asked] // it left before the order to stop reached it
	}
	switch in.Status.Reason {
	case engine.Preempted:
		return Preemption
	case engine.Reclaimed:
		return Reclaim
	case engine.TimedOut:
		return Timeout
	case engine.Stopped:
		return Outside
	case engine.OutOfMemory:
		return Memory
	case engine.OutOfDisk:
		return Disk
	case engine.OutOfTasks:
		return Tasks
	case engine.NotStarted:
		return Unstarted
	default:
		return Nothing
	}
}
