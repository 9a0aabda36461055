package main

import (
	"context"
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

const version = "Slurm 22.05, four virtual nodes, idle"

// noops measures a job that does nothing: on the local engine and on Slurm
// through Falaj, and by Slurm's and Ray's own commands, in turn.
func (b *bench) noops(ctx context.Context) (err error) {
	slurm, noSlurm := b.startSlurm(ctx)
	config := ""
	var pools []string
	if slurm != nil {
		defer slurm.stop()
		config, pools = b.engine(slurm), []string{slurmPool}
	}
	ray, noRay := b.startRay(ctx)
	if ray != nil {
		defer ray.stop()
	}
	s, c, err := b.up(ctx, "noop", config, pools...)
	if err != nil {
		return err
	}
	defer func() { _ = s.Stop() }()

	local := map[string]any{"command": []string{"/bin/true"}}
	var onLocal, onCluster, bare, direct, byRay []float64
	measure := func(keep bool, into *[]float64, f func() (time.Duration, error)) error {
		took, err := f()
		if err == nil && keep {
			*into = append(*into, harness.Millis(took))
		}
		return err
	}
	n := 5
	if b.Quick {
		n = 1
	}
	for round := range b.Rounds + 1 {
		keep := round > 0 // the first finds nothing in caches
		for range n {
			if err := measure(keep, &onLocal, func() (time.Duration, error) { return once(ctx, c, local) }); err != nil {
				return err
			}
			if slurm != nil {
				if err := measure(keep, &onCluster, func() (time.Duration, error) { return once(ctx, c, onSlurm("/bin/true")) }); err != nil {
					return err
				}
				if err := measure(keep, &bare, func() (time.Duration, error) {
					return slurm.noop(ctx, "sbatch", "--wait", "--output=/dev/null", "--wrap=/bin/true")
				}); err != nil {
					return err
				}
				if err := measure(keep, &direct, func() (time.Duration, error) { return slurm.noop(ctx, "srun", "/bin/true") }); err != nil {
					return err
				}
			}
		}
		if ray != nil {
			if err := measure(keep, &byRay, func() (time.Duration, error) { return ray.noop(ctx) }); err != nil {
				ray.stop()
				ray, noRay = nil, b.line(err.Error())
			}
		}
	}
	row := harness.Row{
		Name: "no-op job on local, submitted to finished", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(onLocal)),
		Peer: "sbatch --wait of /bin/true (" + version + ")", Note: fmt.Sprintf("median of %d", len(onLocal)),
	}
	peer(&row, bare, noSlurm)
	b.Add(row)
	row.Name, row.Peer, row.Note, row.Theirs = "no-op job on local, against Ray's", "ray job submit of /bin/true, a head on this machine", fmt.Sprintf("median of %d", len(onLocal)), nil
	peer(&row, byRay, noRay)
	b.Add(row)

	row = harness.Row{Name: "no-op job on Slurm, submitted to finished", Unit: "ms", Better: harness.Lower, Peer: "sbatch --wait of /bin/true (" + version + ")"}
	if slurm == nil {
		row.Note = noSlurm
	} else {
		row.Ours, row.Theirs = harness.Value(harness.Median(onCluster)), harness.Value(harness.Median(bare))
		row.Note = fmt.Sprintf("median of %d; prepared, submitted, joined, run and reported by the agent, tracked, audited", len(onCluster))
	}
	b.Add(row)
	more := added("Slurm", "sbatch --wait", row)
	row.Name, row.Peer, row.Theirs = "no-op job on Slurm, against srun", "srun of /bin/true, which waits for nothing ("+version+")", nil
	if slurm != nil {
		row.Theirs = harness.Value(harness.Median(direct))
		row.Note = "Slurm starts what is submitted by sbatch, as ours is, when its scheduler comes round; srun asks for nodes at once and has no script"
	}
	b.Add(row)
	b.Add(more)
	return nil
}

// peer puts the median of a peer into a row, or why there is none.
func peer(row *harness.Row, times []float64, reason string) {
	if len(times) == 0 {
		row.Note += "; no peer: " + reason
		return
	}
	row.Theirs = harness.Value(harness.Median(times))
}

// noop is a no-op job by one of Slurm's own commands.
func (c *cluster) noop(ctx context.Context, command string, args ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	_, err := c.command(ctx, "", command, append([]string{"--partition=batch", "--ntasks=1", "--mem-per-cpu=64M"}, args...)...)
	return time.Since(began), err
}
