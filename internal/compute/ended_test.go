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
