package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
	"github.com/falaj-ml/falaj/internal/scheduler/schedulertest"
)

// generator is an input of Kueue's scheduler performance test: its cohorts, queues,
// quotas, works and times (kubernetes-sigs/kueue, test/performance/scheduler/configs,
// as of 2026; large-scale was once 1,000 queues with 50,000 works). Not its
// preemption: upstream's queues say reclaimWithinCohort: Any and
// withinClusterQueue: LowerPriority, and here no queue preempts. A work that was
// preempted would begin again, so the bound would be no bound.
type generator struct {
	name            string
	cohorts, queues int // queues of each cohort
	classes         []class
}

type class struct {
	count             int // in each queue
	every, takes      time.Duration
	request, priority int
}

const (
	nominalQuota   = 20
	borrowingLimit = 100
)

var generators = []generator{
	{"baseline", 5, 6, []class{
		{350, 100 * time.Millisecond, 200 * time.Millisecond, 1, 50},
		{100, 500 * time.Millisecond, 500 * time.Millisecond, 5, 100},
		{50, 1200 * time.Millisecond, time.Second, 20, 200},
	}},
	{"large-scale", 20, 100, []class{
		{20, 20 * time.Millisecond, 50 * time.Millisecond, 1, 50},
		{7, 50 * time.Millisecond, 100 * time.Millisecond, 5, 100},
		{3, 200 * time.Millisecond, 200 * time.Millisecond, 20, 200},
	}},
}

type arrival struct {
	at     time.Duration
	cohort int
	takes  time.Duration
	work   scheduler.Workload
}

// kueue plays the inputs of Kueue's test in virtual time, and holds the time until
// all is over against that of a server that never idles while there is work.
func (b *bench) kueue(ctx context.Context) error {
	for _, g := range generators {
		if b.Quick && g.cohorts > 5 {
			continue
		}
		took, steps, err := g.play(ctx)
		if err != nil {
			return err
		}
		bound := g.bound()
		b.Add(harness.Row{
			Name: fmt.Sprintf("Kueue's %s, %d queues, %d works: time until all is over, over the bound", g.name, g.cohorts*g.queues, len(g.arrivals())),
			Unit: "×", Better: harness.Lower, Ours: harness.Value(took.Seconds() / bound.Seconds()), Aim: &harness.Aim{Value: harness.Value(1.2)},
			Note: fmt.Sprintf("%.2f s of virtual time, the bound is %.2f s; %d steps; preemption is off, upstream's queues have it on; the sizes are upstream's of 2026; no API server in the loop, by whose client Kueue's own figure is limited", took.Seconds(), bound.Seconds(), steps),
		})
	}
	return nil
}

// arrivals are all works, in the order in which they come.
func (g generator) arrivals() []arrival {
	var all []arrival
	for c := range g.cohorts {
		for q := range g.queues {
			for k, class := range g.classes {
				for n := range class.count {
					at := time.Duration(n+1) * class.every
					all = append(all, arrival{at, c, class.takes, scheduler.Workload{
						ID: scheduler.ID(fmt.Sprintf("%02d.%03d.%d.%03d", c, q, k, n)), Queue: fmt.Sprintf("%d.%d", c, q), Residency: []string{"home"},
						Isolation: scheduler.Sandbox, Priority: class.priority, Submitted: schedulertest.Began.Add(at), Request: resource.Amount{CPU: resource.Cores(int64(class.request))},
					}})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return int(a.at - b.at) })
	return all
}

// bound is when a cohort whose quota is never idle while something waits is done:
// no schedule is shorter.
func (g generator) bound() time.Duration {
	capacity := float64(g.queues * nominalQuota)
	done := make([]float64, g.cohorts) // s, when the work that came so far is over
	last := time.Duration(0)
	for _, a := range g.arrivals() {
		done[a.cohort] = max(done[a.cohort], a.at.Seconds()) + a.work.Request.CPU.Cores()*a.takes.Seconds()/capacity
		last = max(last, a.at+a.takes)
	}
	return max(last, time.Duration(slices.Max(done)*float64(time.Second)))
}

func (g generator) play(ctx context.Context) (took time.Duration, steps int, err error) {
	borrow := resource.Amount{CPU: resource.Cores(borrowingLimit)}
	d := scheduler.Delta{Now: schedulertest.Began, Pools: []scheduler.Pool{{Name: "all", Zone: "home", Isolation: scheduler.Sandbox, Delegated: true, Nodes: []scheduler.Node{
		{Name: "n", Amount: resource.Amount{CPU: resource.Cores(int64(g.cohorts * g.queues * nominalQuota))}},
	}}}}
	for c := range g.cohorts {
		d.Queues = append(d.Queues, scheduler.Queue{Name: strconv.Itoa(c)})
		for q := range g.queues {
			d.Queues = append(d.Queues, scheduler.Queue{
				Name: fmt.Sprintf("%d.%d", c, q), Parent: strconv.Itoa(c), Quota: resource.LimitOf(resource.Amount{CPU: resource.Cores(nominalQuota)}), Borrow: &borrow, NeverPreempts: true,
			})
		}
	}
	all := g.arrivals()
	world := replay.World{Start: d, Takes: make(map[scheduler.ID]time.Duration, len(all))}
	for _, a := range all {
		world.Later = append(world.Later, a.work)
		world.Takes[a.work.ID] = a.takes
	}
	played, err := replay.Play(ctx, world)
	return played.End.Sub(schedulertest.Began), played.Steps, err
}
