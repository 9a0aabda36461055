package remote

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Beyond the grace, an agent has this long to tell the end of its worker; longer
// while it says that it is bringing back what that has left.
const (
	margin    = 15 * time.Second
	returning = 15 * time.Minute
)

// tempFail is EX_TEMPFAIL of sysexits.h: "saved, run me again".
const tempFail = 75

// amount is what an agent says of memory, within what there can be: it is not
// trusted, and what is kept must be readable.
func amount(n int64) resource.Bytes { return resource.Bytes(min(max(n, 0), 1<<60)) }

// next is what follows from what is known of a workload.
type next struct {
	stop  *stop          // tell the members to stop
	lose  map[int]string // members that count as lost, and why
	force bool           // have the engine end it
	grace time.Duration  // for force
	final *engine.Status // it is over
}

// settle decides purely what follows now. The caller holds mu.
//
//  1. A member that has been silent for the lease and the grace is lost.
//  2. A member that failed, or was lost, stops the others; so does a gang that
//     does not come together. When all members have succeeded except those that serve, the
//     serving ones are stopped.
//  3. The engine ends members that do not end themselves, that never joined, or that it
//     reports as lost but that may still run.
//  4. It is over when all members have ended; or when the engine says that it is
//     over, and the members that have not ended are silent.
func (w *work) settle(now time.Time) next {
	var n next
	if w.state.Final != nil {
		return n
	}

	// 1.
	patience := w.c.Lease + w.spec.Grace + w.c.Settle
	for i, m := range w.members {
		if m.joined() && !m.over() && now.Sub(m.heard) > patience {
			if n.lose == nil {
				n.lose = map[int]string{}
			}
			n.lose[i] = fmt.Sprintf("%sno report from it for %s", who(w, i), now.Sub(m.heard).Round(time.Second))
		}
	}

	// 2.
	st := w.state.Stop
	if st == nil {
		st = w.reasonToStop(now, n.lose)
		n.stop = st
	}

	// 3.
	over, running := 0, 0
	heard := time.Time{} // the last of those that have not ended
	for i, m := range w.members {
		_, lost := n.lose[i]
		switch {
		case m.over() || lost:
			over++
		case m.joined():
			running++
			if m.heard.After(heard) {
				heard = m.heard
			}
		}
	}
	if st != nil && w.state.Forced.IsZero() {
		switch {
		case over < len(w.members) && (running == 0 || w.state.Begun.IsZero()): // nothing runs: members that have not joined need not start
			n.force = true
		case over < len(w.members) && now.Sub(st.At) > st.Grace+w.patience():
			n.force = true
		case slices.ContainsFunc(w.members, func(m *member) bool { return m.Lost != "" }) || len(n.lose) > 0:
			n.force, n.grace = true, st.Grace
		}
	}

	// 4.
	if over == len(w.members) {
		if status, sure := w.outcome(st, now); sure {
			n.final = &status
		}
		return n
	}
	if w.gone.IsZero() {
		return n
	}
	quiet := w.gone
	if heard.After(quiet) {
		quiet = heard
	}
	wait := w.c.Settle
	sure := w.observed.State == engine.Ended || now.Sub(heard) > w.c.Settle
	if running == 0 || w.explained() && sure {
		wait /= 5 // no member can still report, or would add anything
	}
	switch o := w.observed; {
	case now.Sub(quiet) <= wait:
	case w.state.Forced.IsZero() && now.Sub(quiet) <= wait+w.c.Lease && (o.State == engine.Lost && o.Reason != "" || o.Reason == engine.NotStarted):
		n.force = true // it may still start there; an engine that cannot stop it does not delay the end
	default:
		status := w.verdict(st, now)
		n.final = &status
	}
	return n
}

// patience is how long to wait for the ends of members that are to stop, beyond
// their grace.
func (w *work) patience() time.Duration {
	for _, m := range w.members {
		if m.joined() && !m.over() && m.beat.Phase == protocol.Returning {
			return returning
		}
	}
	return margin
}

// who is "worker 2 on node-b: ", or nothing for a single worker on a node
// without a name.
func who(w *work, i int) string {
	node := w.members[i].Join.Node
	switch {
	case w.gang() && node != "":
		return fmt.Sprintf("worker %d on %s: ", i, node)
	case w.gang():
		return fmt.Sprintf("worker %d: ", i)
	case node != "":
		return node + ": "
	}
	return ""
}

// reasonToStop is what makes the others stop; nil when nothing does.
func (w *work) reasonToStop(now time.Time, lose map[int]string) *stop {
	st := &stop{At: now, Grace: w.spec.Grace}
	if w.onlyServe() {
		st.Why, st.Done = "all others have ended", true
		return st
	}
	first := time.Time{}
	for i, m := range w.members {
		if why, lost := lose[i]; lost {
			st.Why, st.Cause = why, &engine.Status{State: engine.Lost, Reason: engine.NodeFailed, ExitCode: -1, Message: why}
			return st
		}
		if m.End != nil && !fine(m.End) {
			st.Why = who(w, i) + words(m.End)
			return st
		}
		if m.joined() && (first.IsZero() || m.Joined.Before(first)) {
			first = m.Joined
		}
	}
	if w.state.Begun.IsZero() && !first.IsZero() && now.Sub(first) > w.c.Gather {
		st.Why = fmt.Sprintf("only %d of %d workers joined within %s", len(w.members)-w.missing(), len(w.members), w.c.Gather)
		st.Cause = &engine.Status{State: engine.Ended, Reason: engine.NotStarted, ExitCode: -1, Message: st.Why}
		return st
	}
	return nil
}

// onlyServe reports that all members have ended well but those that serve, if any do.
func (w *work) onlyServe() bool {
	serve := false
	for i, m := range w.members {
		if w.spec.Launch.Serves(i) {
			serve = true
		} else if m.End == nil || !fine(m.End) {
			return false
		}
	}
	return serve
}

// fine reports a member that did its work, also when it was asked to stop meanwhile.
func fine(e *protocol.End) bool {
	switch engine.Reason(e.Reason) {
	case engine.Exited, engine.Stopped, engine.TimedOut:
		return e.ExitCode == 0 && e.Signal == ""
	default:
		return false
	}
}

// words say how a member ended.
func words(e *protocol.End) string {
	var said string
	switch engine.Reason(e.Reason) {
	case engine.Exited:
		said = fmt.Sprintf("exit code %d", e.ExitCode)
	case engine.Signalled:
		said = "killed by " + e.Signal
	case engine.OutOfMemory:
		said = "out of memory"
	case engine.TimedOut:
		said = "timed out"
	case engine.Stopped:
		said = "stopped"
	default:
		said = e.Reason
	}
	if e.Message != "" {
		said += ", " + e.Message
	}
	return said
}

// gravity orders ends by how much they explain of the others'. Of members that were asked
// to stop, one that saved speaks for the gang.
func gravity(e *protocol.End) int {
	saved := e.ExitCode == tempFail && e.Signal == ""
	switch r := engine.Reason(e.Reason); r {
	case engine.OutOfMemory, engine.OutOfDisk, engine.OutOfTasks:
		return 9
	case engine.NodeFailed, engine.Preempted, engine.Reclaimed:
		return 8
	case engine.NotStarted:
		return 7
	case engine.Signalled:
		return 6
	case engine.Exited, engine.Stopped, engine.TimedOut:
		switch {
		case fine(e):
			return 1
		case saved:
			return 4
		case r == engine.Exited:
			return 5
		case r == engine.TimedOut:
			return 3
		}
		return 2
	}
	return 0
}

// worst is the member with the end that explains most. A serving member explains less than
// another; of equal ones it is the first; -1 if no member has reported its end.
func (w *work) worst() int {
	worst, done := -1, w.onlyServe()
	works := func(i int) int {
		if w.spec.Launch.Serves(i) {
			return 0
		}
		return 1
	}
	for i, m := range w.members {
		if m.End == nil || done && w.spec.Launch.Serves(i) {
			continue
		}
		if worst < 0 || cmp.Or(
			cmp.Compare(gravity(m.End), gravity(w.members[worst].End)), cmp.Compare(works(i), works(worst)), w.members[worst].Ended.Compare(m.Ended),
		) > 0 {
			worst = i
		}
	}
	return worst
}

// unexplained reports an end with an outside cause, if there is none here. Slurm
// sends SIGTERM to all processes of a step, not to its agents only.
func unexplained(e *protocol.End) bool {
	r := engine.Reason(e.Reason)
	return r == engine.Stopped && !fine(e) || r == engine.Signalled && (e.Signal == "SIGKILL" || e.Signal == "SIGTERM")
}

// explained reports that the engine knows why it ended the launch. That it was
// stopped explains nothing once we have had it stopped.
func (w *work) explained() bool {
	switch w.observed.Reason {
	case engine.Preempted, engine.OutOfMemory, engine.TimedOut, engine.NodeFailed:
		return true
	case engine.Stopped:
		return w.state.Forced.IsZero()
	default:
		return false
	}
}

// outcome is the status once all members have ended. It is not sure while the
// engine may still explain an end without a cause here.
func (w *work) outcome(st *stop, now time.Time) (s engine.Status, sure bool) {
	worst, last := w.worst(), time.Time{}
	for _, m := range w.members {
		if m.Ended.After(last) {
			last = m.Ended
		}
	}
	if st != nil && st.Cause != nil || worst < 0 {
		return w.verdict(st, now), true
	}
	e := w.members[worst].End
	s = w.status(engine.Ended)
	s.Reason, s.ExitCode, s.Signal, s.Message, s.Ended = engine.Reason(e.Reason), e.ExitCode, e.Signal, e.Message, last.UTC()
	if w.gang() && !fine(e) {
		s.Message = who(w, worst) + words(e)
	}
	if st != nil && st.Asked || !unexplained(e) {
		return s, true
	}
	// The engine ended it: it knows why.
	if w.explained() {
		v := w.verdict(st, now)
		if v.State == engine.Ended { // what its program said counts as well
			v.ExitCode, v.Signal, v.Ended = s.ExitCode, s.Signal, s.Ended
		}
		return v, true
	}
	return s, !w.gone.IsZero() || now.Sub(last) > w.c.Settle
}

// verdict is the status of what ended without telling how.
func (w *work) verdict(st *stop, now time.Time) engine.Status {
	s := w.status(engine.Lost)
	s.Ended, s.ExitCode = now.UTC(), -1
	switch {
	case st != nil && st.Done:
		s.State, s.Reason, s.ExitCode = engine.Ended, engine.Exited, 0
		return s
	case st != nil && st.Asked:
		s.State, s.Reason = engine.Ended, engine.Stopped
		return s
	case st != nil && st.Cause != nil:
		s.State, s.Reason, s.Message = st.Cause.State, st.Cause.Reason, st.Cause.Message
		return s
	}
	// A member that failed explains those that fell silent, unless it was the
	// engine's doing and that says why.
	if i := w.worst(); i >= 0 && !fine(w.members[i].End) && (!unexplained(w.members[i].End) || !w.explained()) {
		e := w.members[i].End
		s.State, s.Reason, s.ExitCode, s.Signal = engine.Ended, engine.Reason(e.Reason), e.ExitCode, e.Signal
		s.Message = who(w, i) + words(e)
		return s
	}
	o := w.observed
	s.Reason, s.Message = o.Reason, o.Message
	switch o.Reason {
	case engine.NotStarted, engine.OutOfMemory, engine.Preempted, engine.TimedOut:
		s.State = engine.Ended
	case engine.Stopped: // by somebody on the engine
		s.State = engine.Ended
	case engine.NodeFailed:
	case engine.Signalled: // an agent was killed, before or after its program began
		s.Reason = ""
	default:
		s.Reason = ""
		if w.state.Begun.IsZero() && o.State == engine.Ended {
			s.State, s.Reason = engine.Ended, engine.NotStarted
			s.Message = cmp.Or(o.Message, "it ended on "+w.c.Name+" before its worker had reported")
		}
	}
	if s.Message == "" {
		s.Message = "it disappeared from " + w.c.Name + " without a report"
	}
	return s
}

// status has what every status of the workload says.
func (w *work) status(state engine.State) engine.Status {
	s := engine.Status{State: state, Started: w.state.Begun, Isolated: w.c.Isolation}
	for _, m := range w.members {
		cpu, peak := m.beat.CPU, m.beat.PeakRSS
		if m.End != nil {
			cpu, peak = m.End.CPU, m.End.PeakRSS
		}
		s.CPU += cpu
		s.PeakRSS = max(s.PeakRSS, amount(peak))
	}
	return s
}

// now is the status for callers of the driver. The caller holds mu.
func (w *work) now() engine.Status {
	if w.state.Final != nil && w.over() {
		return *w.state.Final
	}
	if !w.state.Begun.IsZero() {
		return w.status(engine.Running)
	}
	s := w.status(engine.Pending)
	s.Message = w.observed.Message
	if came := len(w.members) - w.missing(); w.gang() && came > 0 {
		s.Message = fmt.Sprintf("%d of %d workers have joined", came, len(w.members))
	}
	return s
}
