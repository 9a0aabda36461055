package replay

import (
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Snapshot is a live scheduler's world as a server tells it.
type Snapshot struct {
	At    time.Time `json:"at"`
	Works []About   `json:"works" doc:"Running and pending workloads"`
	// Maintenance of pools. Their nodes are as without it.
	Maintenance map[string]scheduler.Windows `json:"maintenance,omitempty" doc:"Maintenance windows by pool"`
	// Scheduler is a scheduler.Delta. It is not part of what the API promises.
	Scheduler any `json:"scheduler" doc:"State of the scheduler, for falaj simulate of the same version; its fields may change"`
}

// Proposal is a workload that is not submitted.
type Proposal struct {
	About About `json:"about"`
	// Work is a scheduler.Workload. It is not part of what the API promises.
	Work any `json:"work" doc:"Workload as the scheduler sees it, for falaj simulate of the same version; its fields may change"`
}

// About is what is told of a workload beside what the scheduler knows.
type About struct {
	ID      scheduler.ID `json:"id" doc:"Identifier of the workload"`
	Label   string       `json:"label"`
	Project string       `json:"project" doc:"Project; names of projects that you may not read are replaced"`
	Queue   string       `json:"queue,omitempty"`
	Kind    string       `json:"kind,omitempty" doc:"job, build, query or replica"`
	State   string       `json:"state" doc:"running, waiting or leaving"`
	// Left is nil where nothing is known but perhaps a time-out.
	Left  *float64 `json:"left_s,omitempty" doc:"Estimated remaining run time in seconds; for a pending workload, from its start"`
	Basis Basis    `json:"basis,omitempty" doc:"Basis of the estimate: pace, history or expected"`
	Gone  bool     `json:"gone,omitempty" doc:"Stopping for good: the workload is not retried"`
}

// Basis is from what it is known how long a workload still runs.
type Basis string

// The bases, the best first.
const (
	Pace     Basis = "pace"     // its steps left over its steps a second
	History  Basis = "history"  // the median of the last of its name that succeeded
	Expected Basis = "expected" // what its owner says
	Timeout  Basis = "timeout"  // it is stopped by then at the latest
	Assumed  Basis = "assumed"  // nothing is known
)

// Assumptions are what a play takes for granted.
type Assumptions struct {
	// Takes is how long a workload runs of which nothing is known. Over is that it also
	// wins over time-outs, which are often generous.
	Takes time.Duration
	Over  bool
	Leave time.Duration // see World
}

// Read decodes what a server told.
func Read(b []byte) (Snapshot, scheduler.Delta, error) {
	var s struct {
		Snapshot
		Scheduler scheduler.Delta `json:"scheduler"`
	}
	if err := json.Unmarshal(b, &s); err != nil { //nolint:musttag // the scheduler's types, by their own names
		return Snapshot{}, scheduler.Delta{}, fault.New(fault.Invalid, "the server's snapshot cannot be parsed: %w", err).
			WithHint("Use the same version of server and command line.")
	}
	if s.Scheduler.Now.IsZero() {
		return Snapshot{}, scheduler.Delta{}, fault.New(fault.Invalid, "the server's snapshot has no time").
			WithHint("Use the same version of server and command line.")
	}
	return s.Snapshot, s.Scheduler, nil
}

// ReadProposal decodes a workload that is not submitted.
func ReadProposal(b []byte) (About, scheduler.Workload, error) {
	var p struct {
		About About              `json:"about"`
		Work  scheduler.Workload `json:"work"`
	}
	if err := json.Unmarshal(b, &p); err != nil || p.Work.ID == "" { //nolint:musttag // as above
		return About{}, scheduler.Workload{}, fault.New(fault.Invalid, "a job in the server's snapshot cannot be parsed").
			WithHint("Use the same version of server and command line.")
	}
	return p.About, p.Work, nil
}

// World is what is played, and About of each workload with what was assumed filled in.
func (s Snapshot) World(start scheduler.Delta, a Assumptions) (World, []About) {
	w := World{Start: start, Maintenance: s.Maintenance, Takes: map[scheduler.ID]time.Duration{}, Leave: a.Leave, Gone: map[scheduler.ID]bool{}}
	about := make(map[scheduler.ID]About, len(s.Works))
	for _, x := range s.Works {
		about[x.ID] = x
	}
	var all []About
	add := func(work scheduler.Workload, state string, ran time.Duration, deadline time.Time) {
		x := a.fill(about[work.ID], work, ran)
		x.State = state
		w.Gone[work.ID] = x.Gone
		left := seconds(*x.Left)
		if !deadline.IsZero() {
			left = min(left, max(deadline.Sub(start.Now), 0))
		} else if work.Timeout > 0 {
			left = min(left, work.Timeout)
		}
		w.Takes[work.ID] = left
		*x.Left = left.Seconds()
		all = append(all, x)
	}
	for _, r := range start.Started {
		ran, state := start.Now.Sub(r.Started), "running"
		if r.Started.IsZero() {
			ran = 0
		}
		if r.Leaving {
			state = "leaving"
		}
		add(r.Workload, state, ran, r.Deadline)
	}
	for _, work := range start.Submitted {
		add(work, "waiting", 0, time.Time{})
	}
	return w, all
}

func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, horizon.Seconds()) * float64(time.Second))
}

// fill says how long a workload that ran for a while still runs.
func (a Assumptions) fill(x About, w scheduler.Workload, ran time.Duration) About {
	x.ID, x.Label, x.Project, x.Queue = w.ID, w.Label, w.Project, w.Queue
	if x.Label == "" {
		x.Label = string(w.ID)
	}
	left := 0.0
	switch {
	case x.Left != nil:
		left = max(*x.Left, 0)
	case w.Expected > ran:
		left, x.Basis = (w.Expected - ran).Seconds(), Expected
	case w.Timeout > 0 && (!a.Over || ran >= a.Takes):
		left, x.Basis = max(w.Timeout-ran, 0).Seconds(), Timeout
	default:
		left, x.Basis = a.Takes.Seconds(), Assumed
		if ran < a.Takes {
			left = (a.Takes - ran).Seconds()
		}
	}
	x.Left = &left
	return x
}
