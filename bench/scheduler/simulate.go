package main

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/scheduler/simulate"
)

// published are the averages of tiresias in seconds, by workload (Pollux, OSDI
// 2021, its simulator's results).
var published = [...]float64{2473.65, 5144.96, 3876.26, 3280.26, 3501.01, 3469.69, 5479.91, 5079.71}

// Published figures of Pollux in hours; its makespan is from the completion times
// that its repository has.
const (
	pollux         = "Pollux, as published (OSDI 2021), the same workloads and model"
	polluxAverage  = 0.764
	polluxP99      = 12.78
	polluxMakespan = 16.81
)

// setting is a cluster and what is done to the workloads.
type setting struct {
	name        string
	cluster     simulate.Cluster
	load, rigid float64
	workloads   []simulate.Workload // where they are others, for they name types of GPU
}

var usual = setting{"1.0x on 16×4", simulate.Uniform(16, 4), 1, 0, nil}

func (b *bench) simulation(ctx context.Context) error {
	dir := filepath.Join(b.Root, "examples", "pollux")
	profiles, err := simulate.ReadProfiles(os.DirFS(filepath.Join(dir, "traces")))
	if err != nil {
		return err
	}
	workloads, err := b.read(dir, simulate.Measured{"": profiles})
	if err != nil {
		return err
	}
	types, measured, err := readCluster(dir)
	if err != nil {
		return err
	}
	typed, err := b.read(dir, measured)
	if err != nil {
		return err
	}
	theirs, err := run(ctx, "tiresias", usual, workloads)
	if err != nil {
		return err
	}
	ours, err := run(ctx, "goodput", usual, workloads)
	if err != nil {
		return err
	}
	t, g := simulate.Summarise("tiresias", theirs), simulate.Summarise("goodput", ours)
	furthest := 0.0
	for i, w := range t.Workloads {
		furthest = max(furthest, math.Abs(w.AvgJCT/published[b.number(i)]-1)*100)
	}
	b.Add(harness.Row{
		Name: "tiresias, average JCT, furthest from the published", Unit: "%", Better: harness.Lower,
		Ours: harness.Value(furthest), Aim: &harness.Aim{Value: harness.Value(1)}, Note: "of the eight workloads; what is left is rounding",
	})
	hours := func(name string, ours, theirs float64, peer string, aim *float64, note string) {
		row := harness.Row{Name: name, Unit: "h", Better: harness.Lower, Ours: harness.Value(ours / 3600), Peer: peer, Note: note}
		if theirs > 0 {
			row.Theirs = harness.Value(theirs)
		}
		if aim != nil {
			row.Aim = &harness.Aim{Value: aim}
		}
		b.Add(row)
	}
	c := simulate.Compare("tiresias", ours, theirs, 1)
	hours("goodput, average JCT", g.Pooled.AvgJCT, polluxAverage, pollux, harness.Value(0.70), "")
	hours("goodput, p99 JCT", g.Pooled.P99JCT, polluxP99, pollux, harness.Value(12), "")
	hours("goodput, makespan", g.Pooled.Makespan, polluxMakespan, pollux, harness.Value(polluxMakespan), "mean of the workloads; Pollux's is computed from its published completion times")
	hours("goodput, average JCT, against tiresias", g.Pooled.AvgJCT, t.Pooled.AvgJCT/3600, "tiresias here", nil, interval(c.AvgJCT))
	hours("goodput, p99 JCT, against tiresias", g.Pooled.P99JCT, t.Pooled.P99JCT/3600, "tiresias here", nil, interval(c.P99JCT))
	hours("goodput, makespan, against tiresias", g.Pooled.Makespan, t.Pooled.Makespan/3600, "tiresias here", nil, interval(c.Makespan))
	hours("goodput, median JCT, against tiresias", g.Pooled.P50JCT, t.Pooled.P50JCT/3600, "tiresias here", nil, "")
	b.Add(harness.Row{
		Name: "goodput, GPU-hours", Unit: "GPU-hours", Better: harness.Lower, Ours: harness.Value(g.Pooled.GPUHours), Theirs: harness.Value(t.Pooled.GPUHours),
		Peer: "tiresias here", Note: fmt.Sprintf("%d restarts against %d", g.Pooled.Restarts, t.Pooled.Restarts),
	})
	others := []setting{
		{"half the jobs rigid", usual.cluster, 1, 0.5, nil},
		{"all jobs rigid", usual.cluster, 1, 1, nil},
		{"0.5x", usual.cluster, 0.5, 0, nil},
		{"1.5x", usual.cluster, 1.5, 0, nil},
		{"2.0x", usual.cluster, 2, 0, nil},
		{"8×4", simulate.Uniform(8, 4), 1, 0, nil},
		{"8×4, half rigid", simulate.Uniform(8, 4), 1, 0.5, nil},
		{"8×4, all rigid", simulate.Uniform(8, 4), 1, 1, nil},
		{"16×8", simulate.Uniform(16, 8), 1, 0, nil},
		{"32×2", simulate.Uniform(32, 2), 1, 0, nil},
		{"4×4", simulate.Uniform(4, 4), 1, 0, nil},
	}
	for _, of := range []struct {
		name  string
		rigid float64
	}{{"", 0}, {", half rigid", 0.5}, {", all rigid", 1}} {
		others = append(others, setting{"two types of GPU (one synthetic), 3 nodes down for 3 h" + of.name, types, 1, of.rigid, typed})
	}
	if b.Quick {
		others = others[:1]
	}
	for _, s := range others {
		workloads := workloads
		if s.workloads != nil {
			workloads = s.workloads
		}
		ours, err := run(ctx, "goodput", s, workloads)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		theirs, err := run(ctx, "tiresias", s, workloads)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		g, t, c := simulate.Summarise("", ours).Pooled, simulate.Summarise("", theirs).Pooled, simulate.Compare("tiresias", ours, theirs, 1)
		hours("average JCT, "+s.name, g.AvgJCT, t.AvgJCT/3600, "tiresias here", nil, fmt.Sprintf("%s; p99 %.2f against %.2f h, makespan %.2f against %.2f h",
			interval(c.AvgJCT), g.P99JCT/3600, t.P99JCT/3600, g.Makespan/3600, t.Makespan/3600))
	}
	return nil
}

func interval(i simulate.Interval) string {
	return fmt.Sprintf("ratio %.3f, 95 %% interval %.3f to %.3f, paired", i.Ratio, i.Low, i.High)
}

// number is the index of the published workload that is the i-th here.
func (b *bench) number(i int) int {
	if b.Quick {
		return 2
	}
	return i
}

// readCluster reads the example of a cluster with two types of GPU.
func readCluster(dir string) (simulate.Cluster, simulate.Measured, error) {
	in, err := os.Open(filepath.Join(dir, "cluster.yaml"))
	if err != nil {
		return simulate.Cluster{}, nil, err
	}
	defer in.Close()
	return simulate.ReadCluster("cluster.yaml", in, "", func(of string) fs.FS { return os.DirFS(filepath.Join(dir, of)) })
}

func (b *bench) read(dir string, measured simulate.Measured) ([]simulate.Workload, error) {
	var out []simulate.Workload
	for i := range published {
		if b.Quick && i != b.number(0) {
			continue
		}
		name := fmt.Sprintf("workload-%d", i+1)
		in, err := os.Open(filepath.Join(dir, "workloads", name+".csv"))
		if err != nil {
			return nil, err
		}
		w, err := simulate.ReadWorkload(name, in, measured)
		_ = in.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

func run(ctx context.Context, policy string, s setting, workloads []simulate.Workload) ([]simulate.Trace, error) {
	traces := make([]simulate.Trace, len(workloads))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i, w := range workloads {
		group.Go(func() error {
			w, err := w.Load(s.load)
			if err != nil {
				return err
			}
			if w, err = w.Rigid(s.rigid, 1); err != nil {
				return err
			}
			p, err := simulate.NewPolicy(policy)
			if err != nil {
				return err
			}
			began := time.Now()
			traces[i], err = simulate.Run(ctx, w, s.cluster, p, simulate.Options{Interval: 60, Clock: func() time.Duration { return time.Since(began) }})
			return err
		})
	}
	return traces, group.Wait()
}
