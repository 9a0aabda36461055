package remote

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// TestTakenAway: what an engine said of a launch counts while it is being taken away
// from it, whatever is left of it is seen meanwhile.
func TestTakenAway(t *testing.T) {
	now := time.Now()
	w := &work{}
	said := Observed{State: engine.Ended, Reason: engine.NotStarted, Message: "there is no such image"}
	w.observe(said, now)
	w.state.Forced = now
	for _, o := range []Observed{{State: engine.Pending}, {State: engine.Lost, Message: "there is no such job"}} {
		w.observe(o, now.Add(time.Second))
		if w.observed.Message != said.Message || !w.gone.Equal(now) {
			t.Errorf("after %+v: %+v since %s", o, w.observed, w.gone)
		}
	}
	w.observe(Observed{State: engine.Ended, Reason: engine.Preempted}, now)
	if w.observed.Reason != engine.Preempted {
		t.Error("what it says anew does not count")
	}
}
