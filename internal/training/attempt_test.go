package training

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/training/diagnosis"
)

// TestTransitions holds the diagrams in the comments against the tables.
func TestTransitions(t *testing.T) {
	states := []State{Queued, Running, Succeeded, Failed, Cancelled}
	drawn := diagram(t, "training.go")
	for _, a := range states {
		for _, b := range states {
			if a.CanBecome(b) != drawn[[2]string{string(a), string(b)}] {
				t.Errorf("job %s to %s: table %t", a, b, a.CanBecome(b))
			}
		}
		if a.Ended() != (len(transitions[a]) == 0) {
			t.Errorf("job %s: ended is %t", a, a.Ended())
		}
	}
	drawn = diagram(t, "attempt.go")
	attempts := []AttemptState{Placing, Starting, Executing, Checkpointing, AttemptEnded}
	for _, a := range attempts {
		for _, b := range attempts {
			if a.CanBecome(b) != drawn[[2]string{string(a), string(b)}] {
				t.Errorf("attempt %s to %s: table %t", a, b, a.CanBecome(b))
			}
		}
	}
}

func diagram(t *testing.T, file string) map[[2]string]bool {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[[2]string]bool{}
	for _, m := range regexp.MustCompile(`//\s+(\w+) --> (\w+)`).FindAllStringSubmatch(string(src), -1) {
		drawn[[2]string{m[1], m[2]}] = true
	}
	if len(drawn) == 0 {
		t.Fatalf("%s has no diagram", file)
	}
	return drawn
}

func TestClassify(t *testing.T) {
	ended := func(st engine.Status) compute.Workload {
		st.State = engine.Ended
		return compute.Workload{State: compute.Ended, Label: "job_1", Status: st}
	}
	stopped := ended(engine.Status{Reason: engine.Stopped})
	stopped.Stop = "cancelled by alice"
	away := ended(engine.Status{Reason: engine.NotStarted, Message: "x"})
	away.Failure = "unavailable"
	for name, c := range map[string]struct {
		w     compute.Workload
		saved bool
		want  Class
	}{
		"done":               {ended(engine.Status{Reason: engine.Exited}), false, Done},
		"error":              {ended(engine.Status{Reason: engine.Exited, ExitCode: 1}), true, UserError},
		"saved":              {ended(engine.Status{Reason: engine.Exited, ExitCode: 75}), true, Saved},
		"idle":               {ended(engine.Status{Reason: engine.Exited, ExitCode: 75}), false, Idle},
		"oom":                {ended(engine.Status{Reason: engine.OutOfMemory}), false, OutOfMemory},
		"timeout":            {ended(engine.Status{Reason: engine.TimedOut}), true, TimedOut},
		"cancelled":          {stopped, false, Unwanted},
		"stopped by another": {ended(engine.Status{Reason: engine.Stopped}), false, Killed},
		"killed":             {ended(engine.Status{Reason: engine.Signalled, Signal: "SIGKILL"}), false, Killed},
		"crashed":            {ended(engine.Status{Reason: engine.Signalled, Signal: "SIGSEGV"}), false, UserError},
		"not started":        {ended(engine.Status{Reason: engine.NotStarted}), false, Unprepared},
		"not answered":       {away, false, Elsewhere},
		"node failed":        {ended(engine.Status{Reason: engine.NodeFailed}), false, NodeLost},
		"preempted":          {ended(engine.Status{Reason: engine.Preempted}), false, Preempted},
		"lost":               {compute.Workload{State: compute.Ended, Status: engine.Status{State: engine.Lost}}, false, NodeLost},
	} {
		if e := classifyEnd(Job{}, Attempt{}, c.w, nil, c.saved, diagnosis.Log{}); e.class != c.want {
			t.Errorf("%s: %s, want %s", name, e.class, c.want)
		} else if _, ok := diagnosis.After[e.class]; !ok {
			t.Errorf("%s has no rule", e.class)
		}
	}
}

func TestAgain(t *testing.T) {
	for name, c := range map[string]struct {
		job   Job
		class Class
		again bool
		delay time.Duration
	}{
		"saved":           {Job{Attempts: 500, Failures: 2, Spec: Spec{MaxAttempts: 3}}, Saved, true, 0},
		"saved for ever":  {Job{Attempts: maxSaves, Spec: Spec{MaxAttempts: 3}}, Saved, false, 0},
		"first loss":      {Job{Spec: Spec{MaxAttempts: 3}}, NodeLost, true, firstDelay},
		"second loss":     {Job{Failures: 1, Spec: Spec{MaxAttempts: 3}}, NodeLost, true, 2 * firstDelay},
		"third loss":      {Job{Failures: 2, Spec: Spec{MaxAttempts: 3}}, NodeLost, false, 0},
		"delay is capped": {Job{Failures: 40, Spec: Spec{MaxAttempts: 100}}, NodeLost, true, lastDelay},
		"preempted":       {Job{Failures: 2, Spec: Spec{MaxAttempts: 3}}, Preempted, true, 0},
		"resized":         {Job{Failures: 2, Spec: Spec{MaxAttempts: 3}}, Resized, true, 0},
		"hung":            {Job{Spec: Spec{MaxAttempts: 3}}, Hung, true, firstDelay},
		"user error":      {Job{Spec: Spec{MaxAttempts: 3}}, UserError, false, 0},
		"cancelled":       {Job{Stop: "x", Spec: Spec{MaxAttempts: 3}}, Saved, false, 0},
	} {
		e := end{class: c.class}
		if again, delay := c.job.again(&e); again != c.again || delay != c.delay {
			t.Errorf("%s: %t after %s, want %t after %s", name, again, delay, c.again, c.delay)
		}
	}
}
