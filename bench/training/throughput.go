package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

const (
	oneSecond = 2000 // jobs
	eachCores = "8"  // of the 64 of the four nodes
)

// slurmPools are the same nodes, given out by Falaj, which names the node of each
// job, and by Slurm, which has some waiting in its own queue.
const slurmPools = `{api_version: falaj/v1, kind: Pool, name: named, spec: {engine: hpc, mode: exclusive, ahead: 0.5, options: {partition: batch}}}
---
{api_version: falaj/v1, kind: Pool, name: queued, spec: {engine: hpc, mode: delegated, ahead: 2, options: {partition: batch}}}`

// throughput runs many jobs of one second on Slurm, by itself and behind Falaj. A
// job has half a node, so that the cluster and not this machine is what they wait for.
func (b *bench) throughput(ctx context.Context) error {
	n := oneSecond
	if b.Quick {
		n = 8
	}
	row := harness.Row{
		Name: "jobs of one second on Slurm, on named nodes", Unit: "jobs/s", Better: harness.Higher, Aim: &harness.Aim{Ratio: harness.Value(0.9)},
		Peer: "sbatch, two at a time (Slurm 22.05, four virtual nodes, two jobs on each)",
		Note: fmt.Sprintf("%d jobs of sleep 1, from the first submission until the last has ended; an exclusive pool with ahead: 0.5, so that one waits on each node; each ran on the node that it was given", n),
	}
	slurm, why := b.startSlurm(ctx)
	if slurm == nil {
		row.Note = why
		b.Add(row)
		return nil
	}
	defer slurm.stop()
	bare, err := b.bareSlurm(ctx, slurm, n)
	if err != nil {
		return err
	}
	row.Theirs = harness.Value(float64(n) / bare.Seconds())
	s, c, err := b.up(ctx, "throughput", b.engine(slurm), slurmPools)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	rate := func(pool string, n int) (ids []string, perSecond *float64, err error) {
		began := time.Now()
		ids, _, err = submitMany(ctx, c, n, map[string]any{
			"command": []string{"/bin/sleep", "1"}, "pools": []string{pool}, "resources": map[string]any{"cpu": eachCores, "memory": "64MiB"},
		})
		for _, id := range ids {
			if err == nil {
				err = finished(ctx, c, id)
			}
		}
		return ids, harness.Value(float64(n) / time.Since(began).Seconds()), err
	}
	ids, ours, err := rate("named", n)
	if err == nil {
		err = asPlanned(ctx, c, ids)
	}
	if err != nil {
		return err
	}
	row.Ours = ours
	b.Add(row)
	row.Name, row.Aim = "jobs of one second on Slurm, which queues them", nil
	few := max(n/4, 1)
	row.Note = fmt.Sprintf("%d jobs; a delegated pool with ahead: 2", few)
	if _, row.Ours, err = rate("queued", few); err != nil {
		return err
	}
	b.Add(row)
	return nil
}

// bareSlurm is how long Slurm takes by itself.
func (b *bench) bareSlurm(ctx context.Context, c *cluster, n int) (time.Duration, error) {
	const atOnce = 2
	began := time.Now()
	errs := make(chan error, atOnce)
	var all sync.WaitGroup
	for k := range atOnce {
		all.Go(func() {
			for i := k; i < n; i += atOnce {
				if _, err := c.command(ctx, "#!/bin/sh\nsleep 1\n", "sbatch", "--output=/dev/null", "--job-name=bare", "--ntasks=1", "--cpus-per-task="+eachCores, "--mem=64"); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return 0, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := c.command(ctx, "", "squeue", "--noheader", "--name=bare", "--states=PENDING,RUNNING,COMPLETING", "--format=%i")
		if err != nil || left == "" {
			return time.Since(began), err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// asPlanned refuses a job that ran elsewhere than on the node it was given.
func asPlanned(ctx context.Context, c *client.Client, ids []string) error {
	for _, id := range ids {
		var all struct {
			Tries []struct {
				Nodes   []string `json:"nodes"`
				Members []struct {
					Node string `json:"node"`
				} `json:"members"`
			} `json:"tries"`
		}
		if err := c.Do(ctx, "GET", jobs+"/"+id+"?view=full", nil, &all); err != nil {
			return err
		}
		for _, a := range all.Tries {
			if len(a.Nodes) != 1 || len(a.Members) != 1 || a.Members[0].Node != a.Nodes[0] {
				return fmt.Errorf("job %s was to run on %q: %+v", id, a.Nodes, a)
			}
		}
		if len(all.Tries) == 0 {
			return errors.New("a job has no attempts")
		}
	}
	return nil
}
