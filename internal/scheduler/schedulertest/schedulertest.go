// Package schedulertest makes busy installations for measurements.
package schedulertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Began is when workloads begin to come.
var Began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Installation has nodes of eight accelerators in pools of a thousand, and workloads
// of many shapes in a hundred queues, under the policy fair.
func Installation(nodes, works int) scheduler.Delta {
	d := scheduler.Delta{Now: Began, Policy: scheduler.Fair}
	for n := range nodes {
		if n%1000 == 0 {
			d.Pools = append(d.Pools, scheduler.Pool{Name: fmt.Sprintf("pool%02d", n/1000), Zone: "home", Isolation: scheduler.Sandbox, PricePerHour: float64(n / 1000)})
		}
		p := &d.Pools[len(d.Pools)-1]
		p.Nodes = append(p.Nodes, scheduler.Node{Name: fmt.Sprintf("n%05d", n), Amount: resource.Amount{
			CPU: resource.Cores(64), Memory: 512 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 8},
		}})
	}
	d.Queues = append(d.Queues, scheduler.Queue{Name: "all"})
	for n := range 100 {
		d.Queues = append(d.Queues, scheduler.Queue{Name: fmt.Sprint("q", n), Parent: "all", HalfLife: 24 * time.Hour})
	}
	for n := range works {
		d.Submitted = append(d.Submitted, Work(n))
	}
	return d
}

// Quotas gives every second queue of an installation half of the accelerators that are a fair
// share, and the others half as many again.
func Quotas(d *scheduler.Delta) {
	nodes := 0
	for _, p := range d.Pools {
		nodes += len(p.Nodes)
	}
	for i := range d.Queues[1:] {
		d.Queues[1+i].Quota.Accelerators = map[string]int64{"nvidia.com/gpu": int64(nodes * 8 / 100 * (1 + i%2*2) / 2)}
	}
}

// takes is how many steps after it was told to a workload has left.
const takes = 3

// Running is an installation while workloads come and go.
type Running struct {
	state   *scheduler.State
	now     time.Time
	running []scheduler.ID // the oldest first
	next    int            // of those that come
	// As makes workloads other than they are; nil leaves them.
	As func(scheduler.Workload) scheduler.Workload
}

// Run goes on from a first plan.
func Run(world scheduler.Delta, s *scheduler.State, first scheduler.Plan) *Running {
	r := &Running{state: s, now: world.Now, next: len(world.Submitted)}
	r.Done(first)
	return r
}

// Next is the change of a second: ten workloads end, and those that were preempted a
// while ago; ten come.
func (r *Running) Next() scheduler.Delta {
	r.now = r.now.Add(time.Second)
	d := scheduler.Delta{Now: r.now}
	for id, since := range r.state.Leaving() {
		if r.now.Sub(since) >= takes*time.Second {
			d.Removed = append(d.Removed, id)
		}
	}
	slices.Sort(d.Removed)
	r.running = slices.DeleteFunc(r.running, func(id scheduler.ID) bool { _, gone := slices.BinarySearch(d.Removed, id); return gone })
	n := min(10, len(r.running))
	d.Removed = append(d.Removed, r.running[:n]...)
	r.running = r.running[n:]
	for range 10 {
		w := Work(r.next)
		if r.As != nil {
			w = r.As(w)
		}
		d.Submitted = append(d.Submitted, w)
		r.next++
	}
	return d
}

// Done takes in what a plan placed.
func (r *Running) Done(plan scheduler.Plan) {
	for _, p := range plan.Place {
		r.running = append(r.running, p.Workload)
	}
}

// Work is the n-th.
func Work(n int) scheduler.Workload {
	w := scheduler.Workload{
		ID: scheduler.ID(fmt.Sprintf("%09d", n)), Queue: fmt.Sprint("q", n*31%100), Residency: []string{"home"}, Isolation: scheduler.Sandbox,
		Submitted: Began.Add(time.Duration(n) * time.Millisecond), Timeout: time.Duration(1+n*11%48) * time.Hour, Preemptible: n%2 == 0,
		Request: resource.Amount{
			CPU: resource.Cores(1 + int64(n*13%32)), Memory: resource.Bytes(4+n*17%200) * resource.GiB,
			Accelerators: map[string]int64{"nvidia.com/gpu": []int64{0, 1, 1, 2, 4, 8}[n*7%6]},
		},
	}
	if n%10 == 0 {
		w.Workers = 1 + n/10%8
	}
	return w
}

// Roles makes a gang with roles of every workload that is a gang: a chief and parameter servers
// beside its workers.
func Roles(w scheduler.Workload) scheduler.Workload {
	if w.Workers < 2 {
		return w
	}
	w.Roles = []scheduler.Role{
		{Name: "chief", Workers: 1, Request: w.Request},
		{Name: "worker", Workers: w.Workers, Request: w.Request},
		{Name: "ps", Workers: 2, Request: resource.Amount{CPU: resource.Cores(8), Memory: 32 * resource.GiB}},
	}
	w.Workers, w.Request = 0, resource.Amount{}
	return w
}
