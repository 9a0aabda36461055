// Package simulation plays schedulers in virtual time for `falaj simulate`: traces of jobs on a
// cluster from files, and the state of a server with what is changed in it.
package simulation

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/simulate"
)

// Traces is what `falaj simulate` is asked to do.
type Traces struct {
	Workloads []string // files
	Profiles  string   // directory
	Cluster   string   // file; empty is Nodes with GPUs each
	Policy    string
	Compare   string // another policy on the same; may be empty
	Nodes     int
	GPUs      int
	Interval  time.Duration
	Seed      uint64
	Rigid     float64       // share of jobs that are
	Load      float64       // so many times as fast; 1 is as it is
	Deadline  time.Duration // of jobs that have none of their own, from their submission; 0 is none
	HTML      string        // file to write; may be empty

	Smallest  bool    // look for the least number of nodes that is enough
	Group     string  // of this type of the cluster file
	Meet      float64 // share of the jobs with a deadline that may not be late
	MostNodes int
	Every     bool // try all sizes
}

// Run plays workloads in virtual time, several at once. done is told how
// much is done, from 0 to 1, by several goroutines.
func Run(ctx context.Context, s Traces, done func(share float64)) (simulate.Summary, error) {
	if s.Interval%time.Second != 0 {
		return simulate.Summary{}, fault.New(fault.Invalid, "an interval of %s is not of whole seconds", s.Interval)
	}
	cluster, measured, err := s.cluster()
	if err != nil {
		return simulate.Summary{}, err
	}
	workloads, err := s.read(measured)
	if err != nil {
		return simulate.Summary{}, err
	}
	policies := []string{s.Policy}
	if s.Compare != "" {
		policies = append(policies, s.Compare)
	}
	for _, p := range policies {
		if _, err := simulate.NewPolicy(p); err != nil {
			return simulate.Summary{}, err
		}
	}
	var sizing *simulate.Sizing
	if s.Smallest {
		if sizing, err = s.smallest(ctx, cluster, workloads, done); err != nil {
			return simulate.Summary{}, err
		}
		if sizing.Nodes == 0 {
			return simulate.Summary{Policy: s.Policy, Workloads: []simulate.Row{}, Smallest: sizing}, nil
		}
		cluster = s.sized(cluster, sizing.Nodes)
	}
	var plays []play
	for _, policy := range policies {
		for _, w := range workloads {
			plays = append(plays, play{cluster, policy, w, 0})
		}
	}
	traces, err := s.play(ctx, plays, done)
	if err != nil {
		return simulate.Summary{}, err
	}
	ours := traces[:len(workloads)]
	summary := simulate.Summarise(s.Policy, ours)
	summary.Smallest = sizing
	if s.Compare != "" {
		c := simulate.Compare(s.Compare, ours, traces[len(workloads):], s.Seed)
		summary.Compared = &c
	}
	if s.HTML == "" {
		return summary, nil
	}
	return summary, writePage(s.HTML, func(out *os.File) error { return simulate.WritePage(out, summary, ours) })
}

// play is one workload under one policy on one cluster.
type play struct {
	cluster  simulate.Cluster
	policy   string
	workload simulate.Workload
	giveUp   int
}

// play plays all, as many at once as there are processors.
func (s Traces) play(ctx context.Context, plays []play, done func(share float64)) ([]simulate.Trace, error) {
	var mu sync.Mutex
	shares, sum := make([]float64, len(plays)), 0.0
	traces := make([]simulate.Trace, len(plays))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, of := range plays {
		group.Go(func() error {
			p, err := simulate.NewPolicy(of.policy)
			if err != nil {
				return err
			}
			tell := func(share float64) {
				mu.Lock()
				defer mu.Unlock()
				sum += share - shares[i]
				shares[i] = share
				done(sum / float64(len(shares)))
			}
			began := time.Now()
			traces[i], err = simulate.Run(ctx, of.workload, of.cluster, p, simulate.Options{
				Interval: int(s.Interval / time.Second), GiveUp: of.giveUp,
				Clock: func() time.Duration { return time.Since(began) }, Step: tell,
			})
			tell(1)
			return err
		})
	}
	return traces, group.Wait()
}

// smallest looks for the least number of nodes. A size is given up in a workload
// in which more are late than may be in all.
func (s Traces) smallest(ctx context.Context, cluster simulate.Cluster, workloads []simulate.Workload, done func(share float64)) (*simulate.Sizing, error) {
	sizing := &simulate.Sizing{Group: s.Group, Most: s.MostNodes, Meet: s.Meet, Every: s.Every}
	for _, w := range workloads {
		for _, j := range w.Jobs {
			if j.Deadline > 0 {
				sizing.Due++
			}
		}
	}
	if err := sizing.Check(); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(cluster.Groups, func(g simulate.Group) bool { return g.Type == s.Group }); i < 0 {
		return nil, fault.New(fault.Invalid, "--group: unknown type %q", s.Group).WithHint("Set --group to one of %s.", cluster)
	}
	atOnce := max(runtime.GOMAXPROCS(0)/len(workloads), 1)
	err := sizing.Search(atOnce, func(nodes []int) ([]simulate.Size, error) {
		var plays []play
		sizes := make([]simulate.Size, len(nodes))
		for i, n := range nodes {
			c := s.sized(cluster, n)
			if err := c.Validate(); err != nil {
				return nil, err
			}
			sizes[i] = simulate.Size{Nodes: n, GPUs: c.Total()}
			for _, g := range c.Groups {
				sizes[i].PerHour += float64(g.Nodes) * g.Price
			}
			for _, w := range workloads {
				plays = append(plays, play{c, s.Policy, w, sizing.Allowed() + 1})
			}
		}
		traces, err := s.play(ctx, plays, done)
		if err != nil {
			return nil, err
		}
		for i := range sizes {
			sizes[i].Fill(traces[i*len(workloads):][:len(workloads)], sizing.Allowed())
		}
		return sizes, nil
	})
	return sizing, err
}

// sized is the cluster with so many nodes of the group that is sized.
func (s Traces) sized(c simulate.Cluster, nodes int) simulate.Cluster {
	out := simulate.Cluster{Groups: slices.Clone(c.Groups)}
	for i := range out.Groups {
		g := &out.Groups[i]
		if g.Type != s.Group {
			continue
		}
		g.Nodes = nodes
		g.Down = slices.Clone(g.Down)
		for k := range g.Down {
			g.Down[k].Nodes = min(g.Down[k].Nodes, nodes)
		}
	}
	return out
}

// cluster is what is simulated, and what was measured of its types.
func (s Traces) cluster() (simulate.Cluster, simulate.Measured, error) {
	if s.Cluster == "" {
		c := simulate.Uniform(s.Nodes, s.GPUs)
		if err := c.Validate(); err != nil {
			return c, nil, err
		}
		profiles, err := simulate.ReadProfiles(os.DirFS(s.Profiles))
		return c, simulate.Measured{"": profiles}, fault.Wrap(err, "%s", s.Profiles)
	}
	in, err := os.Open(s.Cluster)
	if err != nil {
		return simulate.Cluster{}, nil, fault.New(fault.NotFound, "the cluster: %w", err)
	}
	defer in.Close()
	return simulate.ReadCluster(filepath.Base(s.Cluster), in, s.Profiles, func(dir string) fs.FS {
		if dir != s.Profiles && !filepath.IsAbs(dir) {
			dir = filepath.Join(filepath.Dir(s.Cluster), dir)
		}
		return os.DirFS(dir)
	})
}

func (s Traces) read(measured simulate.Measured) ([]simulate.Workload, error) {
	var out []simulate.Workload
	for _, file := range s.Workloads {
		w, err := readWorkload(file, measured)
		if err != nil {
			return nil, err
		}
		if w, err = w.Load(s.Load); err != nil {
			return nil, err
		}
		if w, err = w.Rigid(s.Rigid, s.Seed); err != nil {
			return nil, err
		}
		if s.Deadline != 0 {
			if w, err = w.Due(s.Deadline.Seconds()); err != nil {
				return nil, err
			}
		}
		out = append(out, w)
	}
	return out, nil
}

func readWorkload(file string, measured simulate.Measured) (simulate.Workload, error) {
	in, err := os.Open(file)
	if err != nil {
		return simulate.Workload{}, fault.New(fault.NotFound, "the workload: %w", err)
	}
	defer in.Close()
	w, err := simulate.ReadWorkload(filepath.Base(file), in, measured)
	w.Name = strings.TrimSuffix(w.Name, ".csv")
	return w, err
}

func writePage(file string, write func(out *os.File) error) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fault.New(fault.Invalid, "the page: %w", err)
	}
	if err := write(out); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
