// Package diagnosis says what happened to an attempt: in words, with a class,
// evidence, the lines of the log that decide, and what to do. It is pure: what
// the engine says, how each worker ended and the ends of their logs go in, a
// Finding comes out.
//
// Map: ends.go has the table of what an end means and what follows (training.Job.again applies
// it, within the limits of attempts); diagnosis.go the
// question and the answer; signs.go the table of what logs say; log.go reads logs.
//
// A program that ends with 0 within its grace is done, and one that saves and ends with 75
// runs again, whatever asked it to stop. Only limits that kill, a lost node and a
// cancellation come before what the program says. Of a gang, the
// worker that failed first is the cause, except that a worker which only lost
// its peers never is: it is a consequence of one that did something else.
package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Class of an attempt's end.
type Class string

// The classes.
const (
	Done           Class = "succeeded"
	Saved          Class = "saved"       // the program saved a checkpoint and exited with 75, to be run again
	Idle           Class = "no_progress" // the program exited with 75, but saved no new checkpoint
	Resized        Class = "resized"     // stopped by Falaj to run with another number of workers
	Moved          Class = "moved"       // stopped by Falaj to resume in other pools
	UserError      Class = "user_error"  // the program failed
	OutOfMemory    Class = "out_of_memory"
	OutOfDisk      Class = "out_of_disk"      // it exceeded its disk limit
	OutOfTasks     Class = "out_of_processes" // it exceeded its limit of processes and threads
	TimedOut       Class = "timeout"
	NodeLost       Class = "node_lost" // a node was lost, or the engine cannot say how the attempt ended
	Preempted      Class = "preempted" // stopped by the scheduler or the engine: its place was needed, or its node drained
	Reclaimed      Class = "reclaimed" // stopped because its accelerators were idle and others were pending for them
	Hung           Class = "hung"      // stopped because it made no progress
	Straggler      Class = "straggler" // stopped because one worker slowed the others
	Killed         Class = "killed"    // by a signal that Falaj did not send
	Environment    Class = "environment"
	Infrastructure Class = "infrastructure" // a service that it needs did not respond
	Unwanted       Class = "cancelled"      // stopped on request of a user, or with its job
	Unstored       Class = "output"         // it succeeded, but its output cannot be stored
)

// TempFail is EX_TEMPFAIL of sysexits.h: "saved, run me again".
const TempFail = 75

// Input is what is known about an ended attempt.
type Input struct {
	Status  engine.Status
	Members []engine.Member // in order; empty if the engine lists none
	// Failure is the kind of the error that prevented the start, and Hint is that
	// error's hint.
	Failure, Hint string
	// Outcome is the description of the end by package compute.
	Outcome string
	// Asked is the class of an end that was asked for (Unwanted, Resized, Moved, Hung,
	// Straggler); empty without such a request. Why has the message.
	Asked Class
	Why   string
	Saved bool // the attempt left a new checkpoint
	Log   Log
	// Limits and facts.
	Memory      resource.Bytes // of each worker
	Environment string
	Job         string
	Denials     int // refused attempts in the audit log
}

// Finding is what happened.
type Finding struct {
	Class    Class    `json:"class"`
	Words    string   `json:"words,omitempty"`
	Evidence []string `json:"evidence,omitempty"`
	Lines    []Line   `json:"lines,omitempty"` // of the log, which decide
	Hint     string   `json:"hint,omitempty"`
	// Worker that was the cause; -1 is none in particular.
	Worker int `json:"worker"`
	// Blamed are nodes that may be at fault.
	Blamed []string `json:"blamed,omitempty"`
}

// Find says what happened.
func Find(in Input) Finding {
	f := Finding{Worker: -1, Words: in.Outcome, Hint: in.Hint}
	culprit := in.culprit()
	if culprit >= 0 && len(in.Members) > 1 {
		f.Worker = culprit
	}
	f.Evidence = in.evidence(culprit)
	cause, word := in.cause(), in.word()
	f.Class = class(cause, word)
	switch f.Class {
	case Done:
		return Finding{Class: Done, Worker: -1}
	case Saved:
		return Finding{Class: Saved, Words: savedWords[cause], Worker: -1}
	case Idle:
		f.Words = fmt.Sprintf("asked to run again (exit code %d) without a new checkpoint", TempFail)
		f.Hint = "Before exiting with this code, write a checkpoint into FALAJ_CHECKPOINT_DIR under its final name."
		return f
	default:
	}
	st := in.Status
	switch cause {
	case Vanished:
		return in.nodeLost(f)
	case Eviction:
		f.Words, f.Lines = "it exceeded its disk limit: "+st.Message, in.Log.last(in.Log.order())
		f.Hint = "Write less to FALAJ_SCRATCH_DIR and /tmp, or request more in spec.disk."
		return f
	case Preemption:
		f.Words = cmp.Or(st.Message, "preempted by the engine")
		f.Hint = "The job resumes automatically from its last checkpoint."
		return f
	case Reclaim:
		f.Hint = "End the job when it no longer needs its accelerators; save at SIGTERM and exit with code 75, or make it preemptible, so that it resumes later."
		return f
	case Resize, Move, Silence, Slowness, Cancelling:
		return in.asked(f)
	case Memory:
		f.Hint = fmt.Sprintf("Request more than %s in resources.memory, or use less.", in.Memory)
		f.Lines = in.Log.last(in.Log.order())
		return f
	case Disk:
		f.Words, f.Lines = cmp.Or(f.Words, st.Message), in.Log.last(in.Log.order())
		f.Hint = "Write less, remove temporary files while the job runs, or request more in spec.disk."
		return f
	case Tasks:
		f.Words, f.Lines = cmp.Or(f.Words, st.Message), in.Log.last(in.Log.order())
		f.Hint = "Start fewer processes and threads at a time."
		return f
	case Timeout:
		f.Lines = in.Log.last(in.Log.order())
		f.Hint = "Raise timeout, or save at SIGTERM and exit with code 75 within grace: a new attempt then resumes from the checkpoint with the full timeout."
		if word == Empty {
			f.Words += ", and exited with code 75 without a new checkpoint"
			f.Hint = "Raise timeout, or write a checkpoint into FALAJ_CHECKPOINT_DIR before exiting with this code: a new attempt then resumes from it."
		}
		return in.straggler(f)
	case Unstarted:
		return in.notStarted(f)
	case Outside:
		if st.Message != "" && st.Message != in.Outcome {
			f.Words = cmp.Or(f.Words, "stopped externally") + ": " + st.Message
		}
		return f
	case Nothing:
	}
	return in.failed(f, culprit)
}

// notBrought is what an agent says whose worker did well, and whose output the
// server does not take.
const notBrought = "what it left was not brought back"

// savedWords say what asked a program to stop that saved and asked to run again.
var savedWords = map[Cause]string{
	Nothing:  "saved a checkpoint and asked to run again",
	Reclaim:  "its accelerators were idle: it saved a checkpoint and asked to run again",
	Timeout:  "reached its time-out, saved a checkpoint and asked to run again",
	Outside:  "was stopped externally, saved a checkpoint and asked to run again",
	Eviction: "exceeded its disk limit, saved a checkpoint and asked to run again",
}

// ownDisk is what a kubelet says of a pod that it evicts for what the pod itself
// wrote; when the node is short of disk it says something else.
var ownDisk = []string{"local ephemeral storage limit", "ephemeral local storage usage exceeds", "Usage of EmptyDir volume"}

func (in Input) asked(f Finding) Finding {
	f.Words = cmp.Or(in.Why, f.Words)
	if f.Class == Hung {
		f.Lines = in.Log.last(in.Log.order())
		f.Hint = "See its last output in `falaj job logs " + in.Job + "`; raise progress_timeout to allow longer pauses."
		return in.straggler(f)
	}
	f.Evidence = nil // it ended as it was asked to
	return f
}

// nodeLost names the nodes that did not tell how their workers ended.
func (in Input) nodeLost(f Finding) Finding {
	f.Class = NodeLost
	var where []string
	for _, m := range in.Members {
		if m.State != engine.Lost && m.Reason != engine.NodeFailed {
			continue
		}
		if f.Worker < 0 || in.Members[f.Worker].State != engine.Lost {
			f.Worker = m.Index
		}
		if m.Node != "" && !slices.Contains(f.Blamed, m.Node) {
			f.Blamed = append(f.Blamed, m.Node)
		}
		what := who(m)
		if !m.Heard.IsZero() {
			what += ", last heartbeat at " + m.Heard.UTC().Format(time.RFC3339)
		}
		where = append(where, what)
	}
	if in.Status.Message != "" && !strings.Contains(f.Words, in.Status.Message) {
		f.Words += ": " + in.Status.Message
	}
	if len(where) > 0 {
		f.Words = "lost " + strings.Join(where, "; ")
	}
	f.Hint = "The job resumes on another node from its last checkpoint. If this repeats, run `falaj pool doctor`."
	if len(in.Members) > 0 && in.Members[0].Node == here {
		f.Words = "how it ended is unknown: its supervisor on the server's machine is gone"
		f.Hint = "The machine restarted, its disk was full, or falaj-worker was killed. The job resumes from its last checkpoint."
	}
	return f
}

// notStarted tells what the machine lacks from what does not answer and from
// what the job has wrong.
func (in Input) notStarted(f Finding) Finding {
	switch {
	case in.Failure == "unavailable" || in.Failure == "timeout" || in.Failure == "exhausted":
		f.Class = Infrastructure
	case matches(in.Status.Message, notBrought):
		f.Class = Infrastructure
		f.Hint = cmp.Or(f.Hint, "Free space on the server's disk: the worker retried the upload of its output until its lease expired.")
	case matches(in.Status.Message, "is not in the job's source", "is neither in the environment nor on the machine"):
		f.Class = UserError
	case matches(in.Status.Message, "manifest unknown", "MANIFEST_UNKNOWN", "ImagePullBackOff", "ErrImagePull", "NAME_UNKNOWN", "image is absent"):
		f.Class = Environment
		f.Hint = cmp.Or(f.Hint, "Check the image's name and digest, and that the nodes have permission to pull it.")
	default:
		f.Class = Environment
	}
	return f
}

func matches(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// failed is a program that ended by itself, and not well.
func (in Input) failed(f Finding, culprit int) Finding {
	st := in.Status
	if culprit >= 0 && culprit < len(in.Members) {
		m := in.Members[culprit]
		if m.State == engine.Lost {
			return in.nodeLost(f)
		}
		if m.Reason == engine.Stopped && crashed(m) {
			m.Reason = engine.Signalled
		}
		st.Reason, st.ExitCode, st.Signal = m.Reason, m.ExitCode, cmp.Or(m.Signal, st.Signal)
		if len(in.Members) > 1 {
			st.PeakRSS = m.PeakRSS // the other is of all workers together
			f.Words = outcome(m)
			if m.Reason == engine.Stopped {
				f.Words = who(m) + " failed and was stopped"
			}
		}
	}
	f.Class = UserError
	f.Hint = fmt.Sprintf("See `falaj job logs %s`.", in.Job)
	signal := signalOf(st)
	switch {
	case st.Reason == engine.NodeFailed:
		return in.nodeLost(f)
	case st.Reason == engine.OutOfMemory:
		f.Class, f.Hint = OutOfMemory, fmt.Sprintf("Request more than %s in resources.memory, or use less.", in.Memory)
		return f
	case signal == "SIGKILL" && in.Memory > 0 && st.PeakRSS >= in.Memory/10*9:
		f.Class, f.Hint = OutOfMemory, fmt.Sprintf("Request more than %s in resources.memory, or use less.", in.Memory)
		f.Evidence = append(f.Evidence, fmt.Sprintf("it had used %s of %s", round(st.PeakRSS), in.Memory))
		return f
	}
	if st.Reason == engine.Exited && st.ExitCode == 126 { // a shell says "Permission denied", which is not about what it may write
		f.Words += ": the program cannot be executed"
		f.Hint = "Make the file executable (chmod +x), or start it with its interpreter."
		f.Lines = in.Log.last(in.Log.order())
		return f
	}
	if in.read(&f, culprit) {
		return f
	}
	if n := len(f.Lines); n > 0 && strings.HasPrefix(f.Lines[n-1].Text, logEnds) {
		f.Evidence = append(f.Evidence, "its log is truncated: the last output is unknown")
		f.Hint = "Write less to the log, or write to a file below FALAJ_OUTPUT_DIR: the log has a size limit."
	}
	switch signal {
	case "SIGKILL", "SIGTERM", "SIGHUP", "SIGINT":
		f.Class, f.Hint = Killed, "It was killed by a user, or by the kernel because the node ran out of memory: see the node's log if this repeats."
	case "SIGILL":
		f.Class = Environment
		f.Hint = "A package needs instructions (such as AVX-512) that this processor lacks: `falaj env check` lists the pools that support them."
	case "SIGSEGV", "SIGABRT", "SIGFPE":
		f.Hint = "Native code failed, not Python. Set PYTHONFAULTHANDLER=1 in env to locate the fault."
	case "SIGXFSZ":
		f.Class, f.Words = OutOfDisk, f.Words+": a file exceeded the disk limit of the job"
		f.Hint = "Write less, or request more in spec.disk."
	case "SIGBUS":
		f.Hint = "A common cause is too little shared memory: use fewer data loader workers, or request more resources.memory."
	}
	if st.Reason == engine.Exited && st.ExitCode == 127 {
		f.Words += ": the program, or one that it starts, does not exist"
		f.Hint = "Add the package that provides it to the environment, or give its path."
	}
	return f
}

// logEnds begins the last line of a log that has reached its limit.
const logEnds = "[falaj: the log ends here"

// signalOf is the signal that ended a program, also one that a launcher or shell
// tells as 128 and its number.
func signalOf(st engine.Status) string {
	if st.Reason == engine.Signalled {
		return st.Signal
	}
	return map[int]string{
		129: "SIGHUP", 130: "SIGINT", 132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 153: "SIGXFSZ", 139: "SIGSEGV", 143: "SIGTERM",
	}[st.ExitCode]
}

// here is the node of the server's own machine.
const here = "local"

// who is a worker and where it ran; of the server's own machine nobody needs to
// be told.
func who(m engine.Member) string {
	if m.Node == "" || m.Node == here {
		return fmt.Sprintf("worker %d", m.Index)
	}
	return fmt.Sprintf("worker %d on node %s", m.Index, m.Node)
}

// round is a size without insignificant digits.
func round(b resource.Bytes) resource.Bytes {
	for _, unit := range []resource.Bytes{resource.GiB / 64, resource.MiB, resource.KiB} {
		if b >= 64*unit {
			return b / unit * unit
		}
	}
	return b
}

// outcome is how a worker ended, in words.
func outcome(m engine.Member) string {
	who := who(m)
	switch {
	case m.State == engine.Lost:
		return who + " was lost"
	case m.Reason == engine.Exited:
		return fmt.Sprintf("%s exited with code %d", who, m.ExitCode)
	case m.Reason == engine.Signalled:
		return who + " was killed by " + m.Signal
	case m.Reason == engine.OutOfMemory:
		return who + " was killed for exceeding its memory"
	case m.Message != "":
		return who + ": " + m.Message
	case m.Reason == engine.Stopped:
		return who + " was stopped with the others"
	}
	return who + " ended: " + string(m.Reason)
}

// culprit is the worker whose failure came first, leaving out those that only
// lost a peer; -1 when none failed.
func (in Input) culprit() int {
	failed := []engine.Member{}
	for _, m := range in.Members {
		bad := m.State == engine.Lost || m.State == engine.Ended && (m.Reason != engine.Exited || m.ExitCode != 0 && m.ExitCode != TempFail) && m.Reason != engine.Stopped
		if bad {
			failed = append(failed, m)
		}
	}
	if len(failed) == 0 {
		if len(in.Members) <= 1 {
			return len(in.Members) - 1
		}
		return -1
	}
	first, echo := -1, true
	for i, m := range failed {
		e := in.consequence(m)
		if first < 0 || echo && !e || echo == e && m.Ended.Before(failed[first].Ended) {
			first, echo = i, e
		}
	}
	if echo {
		// Who told of a failure of its own and was then stopped with the others
		// did not get as far as to end by itself.
		for _, m := range in.Members {
			if in.raised(m) {
				return m.Index
			}
		}
	}
	return failed[first].Index
}

// crashed reports a worker that died of a signal that is never sent to stop one.
func crashed(m engine.Member) bool {
	return slices.Contains([]string{"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"}, m.Signal)
}

// raised reports a worker that was stopped after the traceback of something that
// no peer caused, or after one of its processes was killed.
func (in Input) raised(m engine.Member) bool {
	if m.State != engine.Ended || m.Reason == engine.Exited && m.ExitCode == 0 {
		return false
	}
	if s, _, found := in.Log.sign(m.Index); found && s.class == Killed {
		return true
	}
	if crashed(m) {
		return true
	}
	t, found := lastTraceback(in.Log.workers[m.Index])
	return found && !lostPeer(t.exception.Text)
}

// consequence reports a worker that ended because its peers were gone, or was
// ended with them.
func (in Input) consequence(m engine.Member) bool {
	if m.State == engine.Lost || m.Reason == engine.OutOfMemory || m.Reason == engine.NodeFailed {
		return false
	}
	if s := signalOf(engine.Status{Reason: m.Reason, Signal: m.Signal, ExitCode: m.ExitCode}); s == "SIGTERM" {
		return true
	}
	s, _, found := in.Log.sign(m.Index)
	return found && s.peer
}

// straggler finds a worker that did much less than the others of its role.
func (in Input) straggler(f Finding) Finding {
	of := map[string][]engine.Member{}
	for _, m := range in.Members {
		of[m.Role] = append(of[m.Role], m)
	}
	for _, role := range slices.Sorted(maps.Keys(of)) {
		byCPU := of[role]
		slices.SortStableFunc(byCPU, func(a, b engine.Member) int { return cmp.Compare(a.CPU, b.CPU) })
		if least, typical := byCPU[0], byCPU[len(byCPU)/2]; len(byCPU) > 1 && typical.CPU >= 3*time.Second && least.CPU <= typical.CPU/4 {
			return in.straggles(f, least, typical)
		}
	}
	return f
}

func (in Input) straggles(f Finding, least, typical engine.Member) Finding {
	f.Class, f.Worker = Straggler, least.Index
	f.Lines = in.Log.last([]int{least.Index})
	f.Words = fmt.Sprintf("%s; worker %d made less progress than the others", f.Words, least.Index)
	f.Evidence = append(f.Evidence, fmt.Sprintf("worker %d computed for %s, others for %s", least.Index, least.CPU.Round(time.Second), typical.CPU.Round(time.Second)))
	if least.Node != "" {
		f.Blamed = []string{least.Node}
	}
	f.Hint = "Its node may be slow or busy: if this repeats, Falaj avoids the node."
	return f
}

// evidence is what is known besides.
func (in Input) evidence(culprit int) []string {
	var out []string
	if len(in.Members) > 1 {
		for _, m := range in.Members {
			if m.State == engine.Ended || m.State == engine.Lost {
				what := outcome(m)
				if m.Index == culprit {
					what += " first"
				}
				out = append(out, what)
			}
		}
		out = out[:min(len(out), 16)]
	}
	limit := in.Memory * resource.Bytes(max(len(in.Members), 1))
	if in.Status.PeakRSS > 0 && limit > 0 && in.Status.PeakRSS >= limit/10*8 {
		out = append(out, fmt.Sprintf("memory reached %s of %s", round(in.Status.PeakRSS), limit))
	}
	if in.Denials > 0 {
		out = append(out, fmt.Sprintf("%d refused attempts to access forbidden resources; see `falaj audit list --outcome refused`", in.Denials))
	}
	if l, ok := in.Log.notANumber(); ok {
		out = append(out, fmt.Sprintf("a loss was not a number at line %d: %s", l.Number, l.Text))
	}
	return out
}
