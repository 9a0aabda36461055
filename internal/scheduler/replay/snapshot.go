package replay

import (
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Snapshot is the state of a live scheduler, as the server's API returns it.
type Snapshot struct {
	At    time.Time `json:"at"`
	Works []About   `json:"works" doc:"Running and pending workloads"`
	// Maintenance windows by pool. Nodes are described as outside them.
	Maintenance map[string]scheduler.Windows `json:"maintenance,omitempty" doc:"Maintenance windows by pool"`
	// Scheduler is a scheduler.Delta. It is not a stable part of the API.
	Scheduler any `json:"scheduler" doc:"State of the scheduler, for falaj simulate of the same version; its fields may change"`
}

// Proposal is a workload that has not been submitted.
type Proposal struct {
	About About `json:"about"`
	// Work is a scheduler.Workload. It is not a stable part of the API.
	Work any `json:"work" doc:"Workload as the scheduler sees it, for falaj simulate of the same version; its fields may change"`
}

// About describes a workload beyond what the scheduler knows.
type About struct {
	ID      scheduler.ID `json:"id" doc:"Identifier of the workload"`
	Label   string       `json:"label"`
	Project string       `json:"project" doc:"Project; names of projects that you may not read are replaced"`
	Queue   string       `json:"queue,omitempty"`
	Kind    string       `json:"kind,omitempty" doc:"job, build, query or replica"`
	State   string       `json:"state" doc:"running, waiting or leaving"`
	// Left is nil if at most a time-out is known.
	Left  *float64 `json:"left_s,omitempty" doc:"Estimated remaining run time in seconds; for a pending workload, from its start"`
	Basis Basis    `json:"basis,omitempty" doc:"Basis of the estimate: pace, history or expected"`
	Gone  bool     `json:"gone,omitempty" doc:"Stopping for good: the workload is not retried"`
}

// Basis is the source of an estimated remaining run time.
type Basis string

// The bases, the best first.
const (
	Pace     Basis = "pace"     // remaining steps divided by steps per second
	History  Basis = "history"  // median of the last successful runs with its name
	Expected Basis = "expected" // stated by its owner
	Timeout  Basis = "timeout"  // its time-out: an upper bound
	Assumed  Basis = "assumed"  // nothing is known
)

// Assumptions fill in what is not known for a play.
type Assumptions struct {
	// Takes is the run time of workloads with an unknown one. With Over it also replaces
	// time-outs, which are often generous.
	Takes time.Duration
	Over  bool
	Leave time.Duration // see World
}

// Read decodes a server's snapshot.
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

// ReadProposal decodes a workload that has not been submitted.
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

// World returns the world to play, and the About of each workload with the assumptions filled in.
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

// fill sets the remaining run time of a workload that has run for a while.
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
