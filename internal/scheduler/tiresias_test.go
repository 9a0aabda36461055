package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestTheSecondQueueHasItsTurn: however many come that had nothing, who had enough
// runs after a day, and then for 16 hours again.
func TestTheSecondQueueHasItsTurn(t *testing.T) {
	work := func(id string, at time.Time) Workload {
		return Workload{ID: ID(id), Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: resource.Cores(1)}, Submitted: at, Preemptible: true}
	}
	old := work("old", start)
	old.Served = 100 * enough
	d := Delta{
		Now: start, Policy: Tiresias, Submitted: []Workload{old, work("w", start)},
		Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: resource.Cores(1)}}}}},
	}
	s := &State{}
	ends := map[ID]time.Time{}
	var began, left time.Time
	for now := start; now.Before(start.Add(60 * time.Hour)); now = now.Add(time.Hour) {
		d.Now = now
		for id, at := range ends {
			if !at.After(now) {
				d.Removed = append(d.Removed, id)
				delete(ends, id)
			}
		}
		plan := s.Step(d)
		for _, pl := range plan.Place {
			if pl.Workload == "old" {
				began = now
				continue
			}
			ends[pl.Workload] = now.Add(time.Hour)
		}
		for _, p := range plan.Preempt {
			if p.Workload != "old" || !left.IsZero() {
				t.Fatalf("at %s: %+v", now.Sub(start), p)
			}
			left = now
			ends["old"] = now
		}
		d = Delta{Submitted: []Workload{work(fmt.Sprintf("w%s", now.Sub(start)), now)}}
	}
	if waited := began.Sub(start); waited < 24*time.Hour || waited > 27*time.Hour {
		t.Errorf("it waited for %s", waited)
	}
	if ran := left.Sub(began); ran != 16*time.Hour {
		t.Errorf("it left after %s", ran)
	}
}
