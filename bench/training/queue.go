package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

const (
	submitters = 32
	inQueue    = 10_000
	atOnce     = 200
)

const (
	parkedPool = `{api_version: falaj/v1, kind: Pool, name: parked, spec: {closed: "for the measurement", nodes: [{name: a, cpu: 100000, memory: 100TiB}]}}`
	openPool   = `{api_version: falaj/v1, kind: Pool, name: open, spec: {nodes: [{name: b, cpu: 10000, memory: 10TiB}]}}`
	gatePool   = `{api_version: falaj/v1, kind: Pool, name: gate, spec: {%snodes: [{name: c, cpu: %d, memory: 10TiB}]}}`
)

// queue measures many jobs at once on the local engine: how fast they are durably
// queued by many clients, how fast those that may run are run, and the server's
// memory while most wait and some run.
func (b *bench) queue(ctx context.Context) error {
	s, c, err := b.up(ctx, "queue", "", parkedPool, openPool, fmt.Sprintf(gatePool, "closed: soon, ", 100))
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	waiting, running, burst := inQueue, atOnce, 1000
	if b.Quick {
		waiting, running, burst = 60, 4, 10
	}
	small := map[string]any{"cpu": "10m", "memory": "16MiB"}

	// Dispatching, with nothing else there: as many at once as the pool has cores.
	noop := map[string]any{"command": []string{"/bin/true"}, "pools": []string{"gate"}, "resources": map[string]any{"cpu": "1", "memory": "16MiB"}}
	ids, _, err := submitMany(ctx, c, burst, noop)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := c.Apply(ctx, project, fmt.Appendf(nil, gatePool, "", 100), false); err != nil {
		return err
	}
	for _, id := range ids {
		if err := finished(ctx, c, id); err != nil {
			return err
		}
	}
	dispatched := float64(burst) / time.Since(began).Seconds()

	// Queueing.
	parked := map[string]any{"command": []string{"/bin/true"}, "pools": []string{"parked"}, "resources": small}
	_, took, err := submitMany(ctx, c, waiting, parked)
	if err != nil {
		return err
	}

	// Memory.
	sleeps := map[string]any{"command": []string{"/bin/sleep", "100000"}, "pools": []string{"open"}, "resources": small, "max_attempts": 1}
	if ids, _, err = submitMany(ctx, c, running, sleeps); err != nil {
		return err
	}
	if err := b.allRun(ctx, c, ids); err != nil {
		return err
	}
	anon, _ := harness.Resident(s.PID())

	b.Add(harness.Row{
		Name: "jobs durably queued", Unit: "jobs/s", Better: harness.Higher, Ours: harness.Value(float64(waiting) / took.Seconds()), Aim: &harness.Aim{Value: harness.Value(1000)},
		Note: fmt.Sprintf("%d submissions over HTTP by %d clients, each answered after its commit, with run and audit entry", waiting, submitters),
	})
	b.Add(harness.Row{
		Name: "jobs dispatched on local", Unit: "jobs/s", Better: harness.Higher, Ours: harness.Value(dispatched), Aim: &harness.Aim{Value: harness.Value(100)},
		Note: fmt.Sprintf("%d jobs of /bin/true, from the opening of their pool until the last has finished: sandboxes, runs, logs and audit included; bound by the %d cores, which this program shares", burst, runtime.NumCPU()),
	})
	b.Add(harness.Row{
		Name: "server RssAnon, 10,000 queued and 200 running", Unit: "MiB", Better: harness.Lower, Ours: harness.Value(anon), Aim: &harness.Aim{Value: harness.Value(200)},
		Note: fmt.Sprintf("%d queued, %d running", waiting, running),
	})
	for _, id := range ids {
		if err := c.Do(ctx, "POST", jobs+"/"+id+"/cancel", map[string]any{}, nil); err != nil {
			return err
		}
	}
	return nil
}

// submitMany submits n jobs by many clients at once.
func submitMany(ctx context.Context, c *client.Client, n int, spec map[string]any) (ids []string, took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ids = make([]string, n)
	next := make(chan int)
	var all sync.WaitGroup
	began := time.Now()
	for range min(submitters, n) {
		all.Go(func() {
			for i := range next {
				id, err := submit(ctx, c, spec)
				if err != nil {
					cancel(err)
					return
				}
				ids[i] = id
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	all.Wait()
	return ids, time.Since(began), context.Cause(ctx)
}

// allRun waits until all jobs run.
func (b *bench) allRun(ctx context.Context, c *client.Client, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for _, id := range ids {
		for {
			var job client.Object
			if err := c.Do(ctx, "GET", jobs+"/"+id, nil, &job); err != nil {
				return err
			}
			if state := job.Text("state"); state == "running" {
				break
			} else if state != "queued" {
				return fmt.Errorf("job %s is %s: %v", id, state, job)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("job %s does not run: %w", id, ctx.Err())
			}
		}
	}
	return nil
}
