package simulate

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Summary are the figures of one policy on workloads.
type Summary struct {
	Policy    string      `json:"policy"`
	Cluster   []Group     `json:"cluster,omitempty"` // where it has types
	Workloads []Row       `json:"workloads"`
	Pooled    Row         `json:"pooled"`
	Compared  *Comparison `json:"compared,omitempty"`
	Smallest  *Sizing     `json:"smallest,omitempty"` // of which the figures above are
}

// Row are the figures of a workload, or of all. Times are in seconds of the
// simulation, plans in milliseconds of this machine.
type Row struct {
	Name     string  `json:"name"`
	Jobs     int     `json:"jobs"`
	AvgJCT   float64 `json:"avg_jct_s"`
	P50JCT   float64 `json:"p50_jct_s"`
	P99JCT   float64 `json:"p99_jct_s"`
	Makespan float64 `json:"makespan_s"`
	GPUHours float64 `json:"gpu_hours"`
	// Guessed are those of them in configurations that were not measured and that lie
	// between no measurements: steps there took as long as at the nearest one.
	Guessed float64 `json:"guessed_gpu_hours,omitempty"`
	// Utilisation is the share of the GPU-seconds until the makespan that jobs had.
	Utilisation float64 `json:"utilisation"`
	Restarts    int     `json:"restarts"`
	PlanP50     float64 `json:"plan_ms_p50"`
	PlanP99     float64 `json:"plan_ms_p99"`
	Due         int     `json:"due,omitempty"`  // jobs with a deadline
	Late        int     `json:"late,omitempty"` // of them
	Cost        float64 `json:"cost,omitempty"` // of the GPU-hours, by the nodes' prices
	Types       []Use   `json:"types,omitempty"`
}

// Use is what jobs had of a type of GPU.
type Use struct {
	Type        string  `json:"type"`
	GPUs        int     `json:"gpus"`
	GPUHours    float64 `json:"gpu_hours"`
	Utilisation float64 `json:"utilisation"`
	Cost        float64 `json:"cost,omitempty"`

	had float64 // GPU-hours that there were
}

// Summarise gives the figures of the traces of a policy. Pooled are the averages
// and quantiles over the jobs of all workloads; its makespan is the mean of
// theirs, as published. A makespan begins at time zero of the workload.
func Summarise(policy string, traces []Trace) Summary {
	s := Summary{Policy: policy}
	all := Trace{Workload: "pooled"}
	for _, t := range traces {
		s.Workloads = append(s.Workloads, t.row())
		all.Jobs = append(all.Jobs, t.Jobs...)
		all.Plans = append(all.Plans, t.Plans...)
	}
	s.Pooled = all.row()
	s.Pooled.Makespan = 0
	used, had := 0.0, 0.0
	for i, t := range traces {
		r := s.Workloads[i]
		s.Pooled.Makespan += r.Makespan / float64(len(traces))
		s.Pooled.Cost += r.Cost
		uses := t.uses(r.Makespan)
		for _, u := range uses {
			used, had = used+u.GPUHours, had+u.had
		}
		if r.Types != nil {
			s.Cluster = t.Cluster.Groups
			s.Pooled.Types = sum(s.Pooled.Types, uses)
		}
	}
	s.Pooled.Utilisation = used / max(had, 1e-9)
	return s
}

func sum(a, b []Use) []Use {
	if a == nil {
		return b
	}
	for i := range a {
		u := &a[i]
		u.GPUHours, u.Cost, u.had = u.GPUHours+b[i].GPUHours, u.Cost+b[i].Cost, u.had+b[i].had
		u.Utilisation = u.GPUHours / max(u.had, 1e-9)
	}
	return a
}

// uses are what jobs had of each group until a time.
func (t Trace) uses(until float64) []Use {
	out := make([]Use, len(t.Cluster.Groups))
	for i, g := range t.Cluster.Groups {
		u := Use{Type: g.Type, GPUs: g.Nodes * g.GPUs, had: g.up(until) / 3600}
		for _, o := range t.Jobs {
			for _, s := range o.Spans {
				if s.Type == g.Type {
					u.GPUHours += float64((s.To-s.From)*s.Placement.Replicas()) / 3600
				}
			}
		}
		u.Cost = u.GPUHours / float64(g.GPUs) * g.Price
		u.Utilisation = u.GPUHours / max(u.had, 1e-9)
		out[i] = u
	}
	return out
}

func (t Trace) row() Row {
	r := Row{Name: t.Workload, Jobs: len(t.Jobs)}
	jcts := t.jcts()
	for _, o := range t.Jobs {
		r.Makespan = max(r.Makespan, o.Completed)
		r.GPUHours += float64(o.Service) / 3600
		r.Guessed += float64(o.Guessed) / 3600
		r.Restarts += o.Restarts
		if o.Deadline > 0 {
			r.Due++
		}
		if o.Late() {
			r.Late++
		}
	}
	used, had := 0.0, 0.0
	for _, u := range t.uses(r.Makespan) {
		used, had, r.Cost = used+u.GPUHours, had+u.had, r.Cost+u.Cost
		if u.Type != "" {
			r.Types = append(r.Types, u)
		}
	}
	r.Utilisation = used / max(had, 1e-9)
	r.AvgJCT = mean(jcts)
	r.P50JCT, r.P99JCT = quantile(jcts, 0.5), quantile(jcts, 0.99)
	plans := make([]float64, len(t.Plans))
	for i, p := range t.Plans {
		plans[i] = float64(p) / float64(time.Millisecond)
	}
	r.PlanP50, r.PlanP99 = quantile(plans, 0.5), quantile(plans, 0.99)
	return r
}

func (t Trace) jcts() []float64 {
	out := make([]float64, len(t.Jobs))
	for i, o := range t.Jobs {
		out[i] = o.JCT()
	}
	return out
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(len(values), 1))
}

// quantile interpolates linearly between the closest ranks, as numpy does.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	lo := int(at)
	hi := min(lo+1, len(sorted)-1)
	return sorted[lo] + (at-float64(lo))*(sorted[hi]-sorted[lo])
}

// Comparison is how much of another policy's figures a policy has, 1 being the
// same and less being better, over all jobs.
type Comparison struct {
	Policy   string   `json:"policy"`
	AvgJCT   Interval `json:"avg_jct_ratio"`
	P99JCT   Interval `json:"p99_jct_ratio"`
	Makespan Interval `json:"makespan_ratio"`
}

// Interval is a ratio with its 95 % confidence interval.
type Interval struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

const draws = 2000

// Compare pairs two policies job by job on the same workloads. The intervals are
// of the percentile bootstrap (Efron 1979), in two stages, because jobs of one
// workload share a cluster and are not independent: workloads are drawn with
// replacement, and jobs within each. With one workload only jobs are drawn, and
// the makespan, of which there is one, has no width.
func Compare(policy string, ours, theirs []Trace, seed uint64) Comparison {
	type pair struct {
		ours, theirs         []float64
		spanOurs, spanTheirs float64
	}
	pairs := make([]pair, len(ours))
	all := func(pick func() (workload int, jobs []int)) (a, b []float64, spanA, spanB float64) {
		for range ours {
			w, jobs := pick()
			for _, j := range jobs {
				a, b = append(a, pairs[w].ours[j]), append(b, pairs[w].theirs[j])
			}
			spanA, spanB = spanA+pairs[w].spanOurs, spanB+pairs[w].spanTheirs
		}
		return a, b, spanA, spanB
	}
	for i := range ours {
		pairs[i] = pair{ours[i].jcts(), theirs[i].jcts(), ours[i].row().Makespan, theirs[i].row().Makespan}
	}
	next := -1
	a, b, spanA, spanB := all(func() (int, []int) {
		next++
		jobs := make([]int, len(pairs[next].ours))
		for i := range jobs {
			jobs[i] = i
		}
		return next, jobs
	})
	c := Comparison{
		Policy: policy, AvgJCT: Interval{Ratio: mean(a) / mean(b)}, P99JCT: Interval{Ratio: quantile(a, 0.99) / quantile(b, 0.99)},
		Makespan: Interval{Ratio: spanA / spanB},
	}
	draw := rand.New(rand.NewPCG(seed, uint64(len(ours)))) //nolint:gosec // a draw that can be repeated, not a secret
	var avg, p99, span []float64
	for range draws {
		a, b, spanA, spanB := all(func() (int, []int) {
			w := draw.IntN(len(pairs))
			jobs := make([]int, len(pairs[w].ours))
			for i := range jobs {
				jobs[i] = draw.IntN(len(jobs))
			}
			return w, jobs
		})
		avg = append(avg, mean(a)/mean(b))
		p99 = append(p99, quantile(a, 0.99)/quantile(b, 0.99))
		span = append(span, spanA/spanB)
	}
	for _, of := range []struct {
		into  *Interval
		drawn []float64
	}{{&c.AvgJCT, avg}, {&c.P99JCT, p99}, {&c.Makespan, span}} {
		of.into.Low, of.into.High = quantile(of.drawn, 0.025), quantile(of.drawn, 0.975)
	}
	return c
}
