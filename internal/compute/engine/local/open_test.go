package local

import (
	"strconv"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// TestEndedWorkloadsAreLookedAtOnce: who asks what runs goes through what has ended once, not
// each time for as long as its traces are kept.
func TestEndedWorkloadsAreLookedAtOnce(t *testing.T) {
	d := &Driver{workloads: map[engine.Handle]*workload{}, open: map[engine.Handle]*workload{}, starting: map[engine.Handle]*birth{}}
	for n := range 10 {
		w := &workload{handle: engine.Handle(strconv.Itoa(n)), done: make(chan struct{})}
		d.hold(w)
		if n > 0 {
			close(w.done)
		}
	}
	for range 2 {
		if live := d.live(); len(live) != 1 || live[0].handle != "0" {
			t.Fatalf("%d run", len(live))
		}
		if len(d.open) != 1 || len(d.workloads) != 10 {
			t.Fatalf("%d are open, %d are kept", len(d.open), len(d.workloads))
		}
	}
	close(d.workloads["0"].done)
	if live := d.running(); len(live) != 0 || len(d.open) != 0 {
		t.Errorf("%d run, %d are open", len(live), len(d.open))
	}
}
