package replay

import (
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Answer is the forecast of all workloads, as the cluster is and with changes.
type Answer struct {
	At      time.Time `json:"at"`
	Policy  string    `json:"policy"`
	Assumed []string  `json:"assumed"`           // in words
	Changes []string  `json:"changes,omitempty"` // in words
	Jobs    []Row     `json:"jobs"`
	Now     Sums      `json:"now"`
	WhatIf  *Sums     `json:"what_if,omitempty"`
}

// Row is one workload.
type Row struct {
	About
	Now    *Forecast `json:"now,omitempty"` // nil for a workload that is only in the what-if
	WhatIf *Forecast `json:"what_if,omitempty"`
	// Later is the delay of its end in the what-if; nil unless it ends in both.
	Later *float64 `json:"later_s,omitempty"`
}

// Forecast is the outcome of a workload in a play.
type Forecast struct {
	Pool      string    `json:"pool,omitempty"`
	Workers   int       `json:"workers,omitempty"`
	Start     time.Time `json:"start,omitzero"` // first start; for a running workload, in the past
	End       time.Time `json:"end,omitzero"`
	Wait      float64   `json:"wait_s"` // from the snapshot to the start
	Preempted int       `json:"preempted,omitempty"`
	Never     []string  `json:"never,omitempty"` // why not

	spans  []Span
	shares []float64 // by span: the share of its pool's schedulable nodes
}

// Sums are the figures of a play.
type Sums struct {
	MeanWait float64   `json:"mean_wait_s"` // of workloads that were pending at the snapshot and start
	LastEnd  time.Time `json:"last_end,omitzero"`
	Ended    int       `json:"ended"`
	Never    int       `json:"never"`
	Preempts int       `json:"preemptions"`
	Pools    []Use     `json:"pools"`
}

// Use is the use of a pool, from the snapshot to the last end of all plays.
type Use struct {
	Pool        string  `json:"pool"`
	Nodes       int     `json:"nodes"` // schedulable ones
	Utilisation float64 `json:"utilisation"`
}

// Answers returns the figures and texts of a play, and of a what-if if given.
func Answers(now World, played Played, changed World, whatif *Played, about []About) Answer {
	a := Answer{At: now.Start.Now, Jobs: make([]Row, 0, len(about))}
	until := played.End
	if whatif != nil && whatif.End.After(until) {
		until = whatif.End
	}
	rows := map[scheduler.ID]*Row{}
	for _, x := range about {
		a.Jobs = append(a.Jobs, Row{About: x})
	}
	for i := range a.Jobs {
		rows[a.Jobs[i].ID] = &a.Jobs[i]
	}
	for _, f := range played.Fates {
		rows[f.ID].Now = f.forecast(now)
	}
	a.Now = now.sums(played, until)
	if whatif == nil {
		return a
	}
	for _, f := range whatif.Fates {
		r := rows[f.ID]
		r.WhatIf = f.forecast(changed)
		if r.Now != nil && !r.Now.End.IsZero() && !r.WhatIf.End.IsZero() {
			later := r.WhatIf.End.Sub(r.Now.End).Seconds()
			r.Later = &later
		}
	}
	sums := changed.sums(*whatif, until)
	a.WhatIf = &sums
	return a
}

func (f Fate) forecast(w World) *Forecast {
	at := w.Start.Now
	out := &Forecast{Start: f.Start(), End: f.End, Preempted: f.Preempted, spans: f.Spans}
	for _, s := range f.Spans {
		share := 0.0
		if p := w.pool(s.Pool); p != nil {
			share = f.share(s, p) / float64(max(open(p), 1))
		}
		out.shares = append(out.shares, share)
	}
	if len(f.Spans) > 0 {
		out.Pool, out.Workers = f.Spans[0].Pool, f.Spans[0].Workers
		out.Wait = max(out.Start.Sub(at).Seconds(), 0)
	}
	if f.Never != nil {
		for _, r := range f.Never.Reasons {
			out.Never = append(out.Never, r.Text)
		}
	}
	return out
}

// share is the number of nodes that a span uses, as a fraction of whole nodes.
func (f Fate) share(s Span, p *scheduler.Pool) float64 {
	if len(p.Nodes) == 0 {
		return 0
	}
	return f.Work.Share(p.Nodes[0].Amount, s.Workers)
}

// open is the number of schedulable nodes of a pool.
func open(p *scheduler.Pool) (n int) {
	for _, node := range p.Nodes {
		if node.Closed == "" {
			n++
		}
	}
	return n
}

func (w World) pool(name string) *scheduler.Pool {
	i := slices.IndexFunc(w.Start.Pools, func(p scheduler.Pool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &w.Start.Pools[i]
}

func (w World) sums(p Played, until time.Time) Sums {
	s := Sums{LastEnd: p.End, Pools: []Use{}}
	waited, n := 0.0, 0
	runs := map[scheduler.ID]bool{}
	for _, r := range w.Start.Started {
		runs[r.ID] = true
	}
	used := map[string]float64{} // node-seconds
	for _, f := range p.Fates {
		if f.Never == nil {
			s.Ended++
		} else {
			s.Never++
		}
		s.Preempts += f.Preempted
		if start := f.Start(); !runs[f.ID] && !start.IsZero() {
			waited += start.Sub(w.Start.Now).Seconds()
			n++
		}
		for _, span := range f.Spans {
			from, to := span.From, span.To
			if from.Before(w.Start.Now) {
				from = w.Start.Now
			}
			if to.IsZero() {
				to = until
			}
			if p := w.pool(span.Pool); p != nil && to.After(from) {
				used[span.Pool] += f.share(span, p) * to.Sub(from).Seconds()
			}
		}
	}
	if n > 0 {
		s.MeanWait = waited / float64(n)
	}
	for _, pool := range w.Start.Pools {
		u := Use{Pool: pool.Name, Nodes: open(&pool)}
		if window := until.Sub(w.Start.Now).Seconds(); u.Nodes > 0 && window > 0 {
			u.Utilisation = used[pool.Name] / (float64(u.Nodes) * window)
		}
		s.Pools = append(s.Pools, u)
	}
	return s
}
