package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// recovery measures a lost node: from its loss until the job runs again on
// another, by Falaj's next attempt and by Slurm's own requeue. Both wait for Slurm
// to notice (SlurmdTimeout is 10 s here).
func (b *bench) recovery(ctx context.Context) error {
	row := harness.Row{
		Name: "recovery after node loss, on Slurm", Unit: "s", Better: harness.Lower, Peer: "Slurm's requeue of a batch job (" + version + ")",
	}
	var slurm *cluster
	reason := notNow
	if !b.Quick {
		slurm, reason = b.startSlurm(ctx)
	}
	if slurm == nil {
		row.Note = reason
		b.Add(row)
		return nil
	}
	defer slurm.stop()
	s, c, err := b.up(ctx, "recovery", b.engine(slurm), slurmPool)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()
	rounds := min(b.Rounds, 2) // each takes a minute
	var ours, theirs []float64
	for round := range rounds {
		own := filepath.Join(b.Dir, fmt.Sprintf("ours-%d", round))
		id, err := submit(ctx, c, onSlurm("/bin/sh", "-c", starts(own)))
		if err != nil {
			return err
		}
		took, err := slurm.lose(ctx, own)
		if err != nil {
			return err
		}
		ours = append(ours, took.Seconds())
		if err := c.Do(ctx, "POST", jobs+"/"+id+"/cancel", map[string]any{}, nil); err != nil {
			return err
		}

		bare := filepath.Join(b.Dir, fmt.Sprintf("theirs-%d", round))
		job, err := slurm.command(ctx, "#!/bin/sh\n"+starts(bare)+"\n", "sbatch", "--parsable", "--requeue", "--partition=batch", "--output=/dev/null")
		if err != nil {
			return err
		}
		if took, err = slurm.lose(ctx, bare); err != nil {
			return err
		}
		theirs = append(theirs, took.Seconds())
		if _, err := slurm.command(ctx, "", "scancel", job); err != nil {
			return err
		}
	}
	row.Ours, row.Theirs = harness.Value(harness.Median(ours)), harness.Value(harness.Median(theirs))
	row.Note = fmt.Sprintf("median of %d; from the node's end to the first line of the next start, SlurmdTimeout=10 s in both", rounds)
	b.Add(row)
	return nil
}

// starts is a program that notes each of its starts, with its node, and goes on.
func starts(file string) string {
	return fmt.Sprintf("echo \"${SLURMD_NODENAME:-}\" >>'%s'; exec sleep 100000", file)
}

// lose waits until a program has started, kills its node, waits until it has
// started again, and starts the node again.
func (c *cluster) lose(ctx context.Context, file string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := noted(ctx, file, 1); err != nil {
		return 0, err
	}
	out, err := c.command(ctx, "", "squeue", "--noheader", "--states=RUNNING", "--format=%N")
	if err != nil {
		return 0, err
	}
	node, _, _ := strings.Cut(out, "\n")
	began := time.Now()
	if err := c.order("fail " + node); err != nil {
		return 0, err
	}
	if err := noted(ctx, file, 2); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, c.order("restore " + node)
}

// noted waits for n starts.
func noted(ctx context.Context, file string, n int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(file); err == nil && strings.Count(string(text), "\n") >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("start %d: %w", n, ctx.Err())
		}
	}
}
