package app

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/simulate"
)

// Simulation is what `falaj simulate` is asked to do.
type Simulation struct {
	Workloads []string // files
	Profiles  string   // directory
	Policy    string
	Compare   string // another policy on the same; may be empty
	Nodes     int
	GPUs      int
	Interval  time.Duration
	Seed      uint64
	Rigid     float64 // share of jobs that are
	Load      float64 // so many times as fast; 1 is as it is
	HTML      string  // file to write; may be empty
}

// Simulate plays workloads in virtual time, several at once. done is told how
// much is done, from 0 to 1, by several goroutines.
func Simulate(ctx context.Context, s Simulation, done func(share float64)) (simulate.Summary, error) {
	cluster := simulate.Cluster{Nodes: s.Nodes, GPUs: s.GPUs}
	if err := cluster.Validate(); err != nil {
		return simulate.Summary{}, err
	}
	if s.Interval%time.Second != 0 {
		return simulate.Summary{}, fault.New(fault.Invalid, "an interval of %s is not of whole seconds", s.Interval)
	}
	workloads, err := s.read()
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
	var mu sync.Mutex
	shares, sum := make([]float64, len(policies)*len(workloads)), 0.0
	traces := make([][]simulate.Trace, len(policies))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, policy := range policies {
		traces[i] = make([]simulate.Trace, len(workloads))
		for k, w := range workloads {
			group.Go(func() error {
				p, err := simulate.NewPolicy(policy)
				if err != nil {
					return err
				}
				began := time.Now()
				traces[i][k], err = simulate.Run(ctx, w, cluster, p, simulate.Options{
					Interval: int(s.Interval / time.Second),
					Clock:    func() time.Duration { return time.Since(began) },
					Step: func(share float64) {
						mu.Lock()
						defer mu.Unlock()
						at := &shares[i*len(workloads)+k]
						sum += share - *at
						*at = share
						done(sum / float64(len(shares)))
					},
				})
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return simulate.Summary{}, err
	}
	summary := simulate.Summarise(s.Policy, traces[0])
	if s.Compare != "" {
		c := simulate.Compare(s.Compare, traces[0], traces[1], s.Seed)
		summary.Compared = &c
	}
	if s.HTML == "" {
		return summary, nil
	}
	return summary, writePage(s.HTML, summary, cluster, traces[0])
}

func (s Simulation) read() ([]simulate.Workload, error) {
	profiles, err := simulate.ReadProfiles(os.DirFS(s.Profiles))
	if err != nil {
		return nil, fault.Wrap(err, "%s", s.Profiles)
	}
	var out []simulate.Workload
	for _, file := range s.Workloads {
		w, err := readWorkload(file, profiles)
		if err != nil {
			return nil, err
		}
		if w, err = w.Load(s.Load); err != nil {
			return nil, err
		}
		if w, err = w.Rigid(s.Rigid, s.Seed); err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

func readWorkload(file string, profiles map[string]*simulate.Profile) (simulate.Workload, error) {
	in, err := os.Open(file)
	if err != nil {
		return simulate.Workload{}, fault.New(fault.NotFound, "the workload: %w", err)
	}
	defer in.Close()
	w, err := simulate.ReadWorkload(filepath.Base(file), in, profiles)
	w.Name = strings.TrimSuffix(w.Name, ".csv")
	return w, err
}

func writePage(file string, s simulate.Summary, c simulate.Cluster, traces []simulate.Trace) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fault.New(fault.Invalid, "the page: %w", err)
	}
	if err := simulate.WritePage(out, s, c, traces); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
