package compute

import (
	"context"
	"reflect"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Price is what a pool's manifest says of money and power.
type Price struct {
	PricePerHour float64     `json:"price_per_hour,omitempty"`
	PowerWatts   float64     `json:"power_watts,omitempty"`
	Cost         *cost.Price `json:"cost,omitempty"`
}

// Price of the pool's nodes.
func (p Pool) Price() Price { return Price{p.PricePerHour, p.PowerWatts, p.Cost} }

// Rate is the price made ready. One that is not valid was refused when the pool
// was applied.
func (p Price) Rate() cost.Rate {
	if p.PricePerHour > 0 || p.Cost == nil {
		return cost.Flat(p.PricePerHour)
	}
	r, err := p.Cost.Rate(p.PowerWatts)
	if err != nil {
		return cost.Flat(0)
	}
	return r
}

// DatedPrice is the price of a pool from an instant on, until the next.
type DatedPrice struct {
	Pool  PoolName
	Since time.Time
	Price Price
}

// reprice keeps what a pool costs from now on; what ran before is metered by the
// price of then. The zero old pool is none.
func (s *Pools) reprice(ctx context.Context, tx *store.Tx, old, p Pool) error {
	if old.Revision > 0 && reflect.DeepEqual(old.Price(), p.Price()) {
		return nil
	}
	history, err := s.poolStore.Prices(ctx, tx, p.Name)
	if err != nil {
		return err
	}
	since := s.now().UTC()
	switch n := len(history); {
	case n > 0 && !history[n-1].Since.Before(since): // the clock went back: the newest price is the one that holds
		since = history[n-1].Since
	case n == 0 && old.Revision > 0:
		if err := s.poolStore.SavePrice(ctx, tx, DatedPrice{p.Name, old.CreatedAt, old.Price()}); err != nil {
			return err
		}
	}
	return s.poolStore.SavePrice(ctx, tx, DatedPrice{p.Name, since, p.Price()})
}

// ledger is what is needed to meter.
type ledger struct {
	currency string
	pools    map[PoolName]Pool
	rates    map[PoolName][]cost.Dated
}

// ledger reads one pool, or all without a name.
func (s *core) ledger(ctx context.Context, tx *store.Tx, name PoolName) (ledger, error) {
	l := ledger{currency: s.cfg.Currency, pools: map[PoolName]Pool{}, rates: map[PoolName][]cost.Dated{}}
	var pools []Pool
	var err error
	if name == "" {
		pools, _, err = s.all(ctx, tx)
	} else {
		pools = make([]Pool, 1)
		pools[0], err = s.pool(ctx, tx, name)
	}
	if err != nil {
		return l, err
	}
	for _, p := range pools {
		l.pools[p.Name] = p
	}
	history, err := s.poolStore.Prices(ctx, tx, name)
	if err != nil {
		return l, err
	}
	for _, h := range history {
		l.rates[h.Pool] = append(l.rates[h.Pool], cost.Dated{Since: h.Since, Rate: h.Price.Rate()})
	}
	for _, p := range pools {
		if len(l.rates[p.Name]) == 0 {
			l.rates[p.Name] = []cost.Dated{{Rate: p.Price().Rate()}}
		}
	}
	return l, nil
}

// ran is from when to when a workload ran, until an instant at most. A clock that
// went back makes nothing negative.
func (w Workload) ran(until time.Time) (from, to time.Time) {
	from, to = w.StartedAt, until
	if !w.Status.Started.IsZero() && !w.Status.Ended.IsZero() {
		from, to = w.Status.Started, w.Status.Ended
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// served is what an ended workload, and those before it, attained.
func (w Workload) served() float64 {
	if w.StartedAt.IsZero() {
		return w.Served
	}
	from, to := w.ran(w.EndedAt)
	r := scheduler.Running{Workload: w.work(), Placed: w.Placed, Started: from}
	return r.Attained(to)
}

// meter is what a workload used until an instant, and what that costs.
func (l ledger) meter(w Workload, until time.Time) Usage {
	p := l.pools[w.Pool]
	from, until := w.ran(until)
	share, workers := 0.0, max(w.Placed, 1)
	for i := range workers {
		name := ""
		if i < len(w.Nodes) {
			name = w.Nodes[i]
		}
		share += scheduler.Share(w.Of(i), p.node(name).Amount())
	}
	wall := until.Sub(from)
	u := Usage{
		Workload: w.ID, Project: w.Project, Kind: w.Kind, Label: w.Label, User: w.User, Queue: w.Queue, Model: w.Model,
		Pool: w.Pool, Workers: workers, Started: from.UTC(), Ended: until.UTC(), Running: w.State != Ended,
		Wall: wall, CPU: w.Status.CPU, PeakRSS: w.Status.PeakRSS,
		NodeHours: share * wall.Hours(), EnergyKWh: share * p.Price().Rate().Energy(p.PowerWatts, wall),
		Cost: share * cost.Over(l.rates[w.Pool], from, until), Currency: l.currency,
	}
	for name, n := range w.Amount().Accelerators {
		if u.Accelerators == nil {
			u.Accelerators = map[string]float64{}
		}
		u.Accelerators[name] = float64(n) * wall.Hours()
	}
	return u
}

// metered gives what ran between two instants, that which runs until now too.
func (s *Costs) metered(ctx context.Context, tx *store.Tx, l ledger, p project.Name, from, until time.Time, each func(Usage)) error {
	if err := s.usageStore.EachUsage(ctx, tx, p, from, until, each); err != nil {
		return fault.Wrap(err, "reading usage")
	}
	if err := s.usageStore.EachUsageDay(ctx, tx, p, from, until, func(d UsageDay) { each(d.usage()) }); err != nil {
		return fault.Wrap(err, "reading usage by day")
	}
	active, err := s.workloadStore.Active(ctx, tx)
	if err != nil {
		return err
	}
	for _, w := range active {
		if w.State != Running || p != "" && w.Project != p {
			continue
		}
		if u := l.meter(w, s.now()); u.Started.Before(until) && (u.Ended.After(from) || u.Started.Equal(from)) {
			each(u)
		}
	}
	return nil
}

// within is the part of what was used that falls between two instants, as if it
// was used evenly.
func (u Usage) within(from, until time.Time) Usage {
	a, b := u.Started, u.Ended
	if a.Before(from) {
		a = from
	}
	if b.After(until) {
		b = until
	}
	if u.Wall <= 0 || a.Equal(u.Started) && b.Equal(u.Ended) {
		return u
	}
	part := max(b.Sub(a), 0)
	share := float64(part) / float64(u.Wall)
	u.Started, u.Ended, u.Wall = a, b, part
	u.CPU = time.Duration(share * float64(u.CPU))
	u.NodeHours *= share
	u.EnergyKWh *= share
	u.Cost *= share
	hours := make(map[string]float64, len(u.Accelerators))
	for name, h := range u.Accelerators {
		hours[name] = share * h
	}
	u.Accelerators = hours
	return u
}
