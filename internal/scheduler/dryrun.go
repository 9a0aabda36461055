package scheduler

import (
	"slices"
	"time"
)

// Forecast is what would become of a workload that is not submitted yet.
type Forecast struct {
	Place *Placement     // that it would get; nil when it would wait
	Wait  Wait           // why, when it would
	Leave []ID           // workloads that would be preempted for it, or are leaving already
	Pools []PoolForecast // the pools that may take it, cheapest first
}

// PoolForecast is what a pool could give a workload.
type PoolForecast struct {
	Pool    string
	Workers int       // of its workers, those that fit now without using reservations of others
	At      time.Time // when the least of them have it at the latest, by the grace of those that leave for it, or by the time-outs of what runs and were nobody before it; zero is unknown
	Price   float64   // of an hour, all workers
}

// DryRun returns what the next step would decide for a workload if nothing else changed.
func (s *State) DryRun(work Workload) Forecast { return DryRun(s.World(), work) }

// DryRun tells what a step gives a workload that is submitted to a world. It is that step: the
// same function decides, on a state of its own.
func DryRun(world Delta, work Workload) Forecast {
	var f Forecast
	if len(world.Pools) == 0 {
		f.Wait = Wait{Reasons: []Reason{{Step: "admit", Code: NoSuch, Text: "no pools exist"}}}
		return f
	}
	world.Submitted = append(slices.Clip(world.Submitted), work)
	s, plan := Decide(world)
	if i := slices.IndexFunc(plan.Place, func(p Placement) bool { return p.Workload == work.ID }); i >= 0 {
		f.Place = &plan.Place[i]
		f.Pools = s.poolForecasts(&waiter{Workload: work}, f.Place)
		return f
	}
	w := s.waiting[work.ID]
	if w == nil { // it runs already
		return f
	}
	f.Wait = s.why(w)
	for _, r := range w.preempts {
		f.Leave = append(f.Leave, r.ID)
	}
	f.Pools = s.poolForecasts(w, nil)
	return f
}

// poolForecasts are what the pools have for a workload that a step placed, or has wait.
func (s *State) poolForecasts(w *waiter, at *Placement) (out []PoolForecast) {
	most := 0
	if at != nil {
		s.remove(w.ID)
		for _, q := range s.keeping { // quota reserved for pending workloads is not available
			q.use(q.mine, 1)
			defer q.use(q.mine, -1)
		}
		s.know(w)
		if most = s.allowed(w); most >= w.least() {
			most = s.initialSize(w, most)
		}
	}
	k := s.know(w)
	for _, p := range k.pools {
		forecast := PoolForecast{Pool: p.Name, Price: price(&w.Workload, p, w.least())}
		n := 0
		if at != nil && at.Pool == p.Name {
			n = at.Workers
		} else if most >= w.least() {
			n = len(p.rowsFor(w, most, s.now))
		}
		switch {
		case n > 0:
			forecast.Workers, forecast.At, forecast.Price = n, s.now, price(&w.Workload, p, n)
		case w.into == p && len(w.preempts) > 0:
			forecast.At = w.leavingDone()
		default:
			forecast.At = s.planReservation(p, w).at
		}
		out = append(out, forecast)
	}
	return out
}

// leavingDone is when the last victim of a workload has left, at the latest.
func (w *waiter) leavingDone() (at time.Time) {
	for _, r := range w.preempts {
		if left := r.LeavingSince.Add(r.Grace); left.After(at) {
			at = left
		}
	}
	return at
}
