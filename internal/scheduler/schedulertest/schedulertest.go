// Package schedulertest makes busy installations for measurements.
package schedulertest

import (
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Began is when works begin to come.
var Began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Installation has nodes of eight accelerators in pools of a thousand, and works
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

// Work is the n-th.
func Work(n int) scheduler.Work {
	w := scheduler.Work{
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

// Roles makes a gang with roles of every work that is a gang: a chief and parameter servers
// beside its workers.
func Roles(w scheduler.Work) scheduler.Work {
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
