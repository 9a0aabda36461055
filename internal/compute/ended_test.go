package compute

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// TestEnded: a program that ends with 0 within its grace has exited with 0, whatever asked it
// to stop, but a cancellation.
func TestEnded(t *testing.T) {
	ran := time.Unix(1, 0)
	stop := func(code int) engine.Status {
		return engine.Status{State: engine.Ended, Reason: engine.Stopped, ExitCode: code, Started: ran}
	}
	late := stop(0)
	late.Reason = engine.TimedOut
	killed := stop(-1)
	killed.Signal = "SIGKILL"
	for name, c := range map[string]struct {
		stop string
		st   engine.Status
		want engine.Reason
	}{
		"preempted, finished":          {preempted + "x", stop(0), engine.Exited},
		"preempted, saved":             {preempted + "x", stop(75), engine.Preempted},
		"preempted, killed":            {preempted + "x", killed, engine.Preempted},
		"preempted before it ran":      {preempted + "x", engine.Status{State: engine.Ended, Reason: engine.Stopped}, engine.Preempted},
		"preempted and lost":           {preempted + "x", engine.Status{State: engine.Lost}, ""},
		"reclaimed, finished":          {reclaimed + "x", stop(0), engine.Exited},
		"reclaimed, saved":             {reclaimed + "x", stop(75), engine.Reclaimed},
		"resized, finished":            {resized + "x", stop(0), engine.Exited},
		"resized, saved":               {resized + "x", stop(75), engine.Stopped},
		"timed out, finished":          {"", late, engine.Exited},
		"stopped outside, finished":    {"", stop(0), engine.Exited},
		"stopped outside before a run": {"", engine.Status{State: engine.Ended, Reason: engine.Stopped}, engine.Stopped},
		"cancelled, finished":          {"cancelled by alice", stop(0), engine.Stopped},
		"failed":                       {"", engine.Status{State: engine.Ended, Reason: engine.Exited, ExitCode: 1, Started: ran}, engine.Exited},
	} {
		if got := (Workload{Stop: c.stop}).ended(c.st); got.Reason != c.want || got.ExitCode != c.st.ExitCode {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}

// TestEndedAt: a workload ended when its engine says, however late that is heard of, unless a
// clock was set.
func TestEndedAt(t *testing.T) {
	t.Parallel()
	started := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	now := started.Add(2 * time.Hour) // after an outage of most of it
	for name, c := range map[string]struct{ said, want time.Time }{
		"during the outage":     {started.Add(10 * time.Minute), started.Add(10 * time.Minute)},
		"now":                   {now, now},
		"not known":             {time.Time{}, now},
		"before it started":     {started.Add(-time.Second), now},
		"in the future":         {now.Add(time.Second), now},
		"as soon as it started": {started, started},
	} {
		if got := (Workload{StartedAt: started}).endedAt(engine.Status{Ended: c.said}, now); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
