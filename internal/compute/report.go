package compute

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionCostRead is to see what was used and what it cost: of a project, or without
// one of the installation.
const ActionCostRead policy.Action = "cost.read"

// Limits of reports.
const (
	maxCostWindow = 10 * 366 * 24 * time.Hour
	maxCostRows   = 1000
	costRows      = 100
	costWindow    = 30 * 24 * time.Hour
	day           = 24 * time.Hour
)

// CostQuery asks for a report.
type CostQuery struct {
	Project project.Name // empty is all of the installation
	By      string       // see CostKeys; empty is project
	Since   time.Time    // zero is 30 days ago
	Until   time.Time    // zero is now
	Limit   int          // rows; 0 is 100
}

// costKeys are what a report may be by.
var costKeys = map[string]func(Usage) string{
	"project": func(u Usage) string { return string(u.Project) },
	"user":    func(u Usage) string { return u.User },
	"queue":   func(u Usage) string { return u.Queue },
	"pool":    func(u Usage) string { return string(u.Pool) },
	"job":     func(u Usage) string { return u.Label },
	"model":   func(u Usage) string { return u.Model },
	"day":     func(u Usage) string { return u.Started.UTC().Format(time.DateOnly) },
}

// CostKeys lists what a report may be by.
func CostKeys() []string { return slices.Sorted(maps.Keys(costKeys)) }

// CostRow is a sum of what was used.
type CostRow struct {
	Key          string             `json:"key" doc:"Key of the group; empty for unassigned usage; by job for deleted jobs"`
	Workloads    int                `json:"workloads"`
	Running      int                `json:"running" doc:"Workloads still running, counted until now"`
	NodeHours    float64            `json:"node_hours" doc:"Node hours, by the requested share of a node"`
	CPUHours     float64            `json:"cpu_hours" doc:"Busy core hours, measured at the end"`
	Accelerators map[string]float64 `json:"accelerator_hours,omitempty" doc:"By resource name"`
	EnergyKWh    float64            `json:"energy_kwh" doc:"Energy, estimated from the power of the nodes"`
	Cost         float64            `json:"cost"`
}

func (r *CostRow) add(u Usage) {
	if u.Sum {
		r.Workloads += u.Workloads
	} else {
		r.Workloads++
	}
	if u.Running {
		r.Running++
	}
	r.NodeHours += u.NodeHours
	r.CPUHours += u.CPU.Hours()
	r.EnergyKWh += u.EnergyKWh
	r.Cost += u.Cost
	for name, h := range u.Accelerators {
		if r.Accelerators == nil {
			r.Accelerators = map[string]float64{}
		}
		r.Accelerators[name] += h
	}
}

// IdlePool is what a pool had and did not use.
type IdlePool struct {
	Pool        PoolName `json:"pool"`
	Nodes       int      `json:"nodes" doc:"Current nodes"`
	NodeHours   float64  `json:"node_hours" doc:"Node hours available since the pool was created"`
	Used        float64  `json:"used_node_hours"`
	Utilisation float64  `json:"utilisation"`
	Cost        float64  `json:"idle_cost" doc:"Cost of the idle node hours"`
}

// CostReport is usage and its cost, the most expensive first.
type CostReport struct {
	Currency string       `json:"currency"`
	Project  project.Name `json:"project,omitempty"`
	By       string       `json:"by"`
	Since    time.Time    `json:"since"`
	Until    time.Time    `json:"until"`
	Items    []CostRow    `json:"items"`
	Others   *CostRow     `json:"others,omitempty" doc:"Sum of the groups beyond the limit"`
	Total    CostRow      `json:"total"`
	Idle     []IdlePool   `json:"idle,omitempty" doc:"Idle capacity by pool; only for the whole installation"`
	LeftOut  int          `json:"left_out,omitempty" doc:"Workloads metered in another currency"`
}

// window completes and checks the interval of a query.
func (q *CostQuery) window(now time.Time) error {
	if q.Until.IsZero() || q.Until.After(now) {
		q.Until = now
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Add(-costWindow)
	}
	q.Since, q.Until = q.Since.UTC(), q.Until.UTC()
	if !q.Since.Before(q.Until) || q.Until.Sub(q.Since) > maxCostWindow {
		return fault.New(fault.Invalid, "the interval from %s to %s must lie in the past and span at most ten years", q.Since.Format(time.RFC3339), q.Until.Format(time.RFC3339))
	}
	return nil
}

// CostReport sums what was used. Needs cost.read of the project, or of the
// installation. Error: fault.Invalid.
func (s *Service) CostReport(ctx context.Context, q CostQuery) (CostReport, error) {
	if err := s.mayReadCost(ctx, q.Project); err != nil {
		return CostReport{}, err
	}
	q.By = cmp.Or(q.By, "project")
	key := costKeys[q.By]
	if key == nil {
		return CostReport{}, fault.New(fault.Invalid, "unknown report %.40q", q.By).WithHint("Use one of %s.", strings.Join(CostKeys(), ", "))
	}
	if err := q.window(s.now()); err != nil {
		return CostReport{}, err
	}
	r := CostReport{Currency: s.cfg.Currency, Project: q.Project, By: q.By, Since: q.Since, Until: q.Until, Items: []CostRow{}}
	rows := map[string]*CostRow{}
	used := map[PoolName]float64{}
	var l ledger
	var rentals []Rental
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if l, err = s.ledger(ctx, tx, ""); err != nil {
			return err
		}
		if rentals, err = s.cfg.Store.Rentals(ctx, tx, q.Since); err != nil {
			return err
		}
		return s.metered(ctx, tx, l, q.Project, q.Since, q.Until, func(u Usage) {
			u = u.within(q.Since, q.Until)
			used[u.Pool] += u.NodeHours
			if u.Currency != "" && u.Currency != s.cfg.Currency {
				var left CostRow
				left.add(u)
				r.LeftOut += left.Workloads
				return
			}
			r.Total.add(u)
			for part := range u.parts(q.By) {
				k := key(part)
				if rows[k] == nil {
					rows[k] = &CostRow{Key: k}
				}
				rows[k].add(part)
			}
		})
	})
	if err != nil {
		return r, err
	}
	for _, row := range rows {
		r.Items = append(r.Items, *row)
	}
	slices.SortFunc(r.Items, func(a, b CostRow) int {
		if q.By == "day" {
			return cmp.Compare(a.Key, b.Key)
		}
		return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.NodeHours, a.NodeHours), cmp.Compare(a.Key, b.Key))
	})
	if q.By != "day" {
		r.cut(min(cmp.Or(max(q.Limit, 0), costRows), maxCostRows))
	}
	if q.Project == "" {
		r.Idle = l.idle(used, rentals, q)
	}
	return r, nil
}

// Spent is what the workloads of a project cost until now by label, those that run
// included; a label without cost may be left out. What ended is looked up by its label,
// so that old usage costs no time. It checks no permission: it is for budgets of other services.
func (s *Service) Spent(ctx context.Context, p project.Name, labels []string) (sums map[string]float64, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if sums, err = s.cfg.Store.SpentBy(ctx, tx, p, s.cfg.Currency, labels); err != nil {
			return err
		}
		active, err := s.cfg.Store.Active(ctx, tx)
		if err != nil {
			return err
		}
		wanted := make(map[string]bool, len(labels))
		for _, l := range labels {
			wanted[l] = true
		}
		active = slices.DeleteFunc(active, func(w Workload) bool { return w.State != Running || w.Project != p || !wanted[w.Label] })
		if len(active) == 0 {
			return nil
		}
		l, err := s.ledger(ctx, tx, "")
		if err != nil {
			return err
		}
		for _, w := range active {
			sums[w.Label] += l.meter(w, s.now()).Cost
		}
		return nil
	})
	return sums, err
}

// Free are those of the named pools, or of all, that a workload with this need of isolation
// and this label may run in and that cost nothing, over a week from now.
func (s *Service) Free(ctx context.Context, names []string, least scheduler.Isolation, label residency.Label) ([]PoolName, error) {
	pools, _, err := s.PricedPools(ctx)
	now := s.now()
	var free []PoolName
	for _, p := range pools {
		may := (len(names) == 0 || slices.Contains(names, string(p.Name))) && p.NotOpen() == "" && p.Allows(label) && p.Isolation.AtLeast(least)
		if may && p.Price().Rate().Over(now, now.Add(week)) == 0 {
			free = append(free, p.Name)
		}
	}
	return free, err
}

func (s *Service) mayReadCost(ctx context.Context, p project.Name) error {
	err := s.cfg.Authorizer.Allow(ctx, ActionCostRead, policy.Object{Project: string(p), Kind: "cost"})
	if p == "" && fault.Is(err, fault.PermissionDenied) && fault.HintOf(err) == "" {
		return audit.OnRecord(fault.New(fault.PermissionDenied, "%s", err.Error()).WithHint("Name a project that you may read."))
	}
	return err
}

// parts are the pieces of what was used that a report counts by themselves: days,
// or all of it.
func (u Usage) parts(by string) func(yield func(Usage) bool) {
	return func(yield func(Usage) bool) {
		if by != "day" || u.Wall <= 0 {
			yield(u)
			return
		}
		for at := u.Started.UTC().Truncate(day); at.Before(u.Ended); at = at.Add(day) {
			if !yield(u.within(at, at.Add(day))) {
				return
			}
		}
	}
}

// cut leaves the first rows and adds the others up.
func (r *CostReport) cut(limit int) {
	if len(r.Items) <= limit {
		return
	}
	others := CostRow{Key: "others"}
	for _, row := range r.Items[limit:] {
		others.Workloads += row.Workloads
		others.Running += row.Running
		others.NodeHours += row.NodeHours
		others.CPUHours += row.CPUHours
		others.EnergyKWh += row.EnergyKWh
		others.Cost += row.Cost
		for name, h := range row.Accelerators {
			if others.Accelerators == nil {
				others.Accelerators = map[string]float64{}
			}
			others.Accelerators[name] += h
		}
	}
	r.Items, r.Others = r.Items[:limit], &others
}

// idle is what each pool had and did not use, by its nodes and price of now; an
// elastic pool had its nodes from when they were asked for until they were gone, and
// at the prices of then.
func (l ledger) idle(used map[PoolName]float64, rentals []Rental, q CostQuery) []IdlePool {
	var out []IdlePool
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		p := l.pools[name]
		if p.Closed != "" && p.PricePerHour == 0 && p.Cost != nil && p.Cost.Rented != nil {
			continue // it holds prices of what is not rented
		}
		from := q.Since
		if p.CreatedAt.After(from) {
			from = p.CreatedAt
		}
		i := IdlePool{Pool: name, Nodes: len(p.Nodes), NodeHours: float64(len(p.Nodes)) * max(q.Until.Sub(from), 0).Hours(), Used: used[name]}
		paid := float64(i.Nodes) * p.Price().Rate().Idle(from, q.Until)
		if p.Elastic != nil {
			i.Nodes, i.NodeHours, paid = 0, 0, 0
			for _, r := range rentals {
				if r.Pool != name {
					continue
				}
				if r.open() && !r.Began.IsZero() {
					i.Nodes++
				}
				from, until := r.cost(q.Since, q.Until)
				i.NodeHours += until.Sub(from).Hours()
				paid += cost.Over(l.rates[name], from, until)
			}
		}
		if i.NodeHours > 0 {
			i.Utilisation = min(i.Used/i.NodeHours, 1)
			i.Cost = paid * (1 - i.Utilisation)
		}
		out = append(out, i)
	}
	return out
}

// Forecast is where a project's month ends.
type Forecast struct {
	Project project.Name    `json:"project"`
	Spent   float64         `json:"spent" doc:"Spent this month so far"`
	Month   cost.Projection `json:"month" doc:"Forecast to month end"`
	Budget  float64         `json:"budget,omitempty" doc:"Budget per month; absent without a budget"`
	Share   float64         `json:"share,omitempty" doc:"Forecast share of the budget; absent before the first full day"`
	UsedUp  time.Time       `json:"used_up_at,omitzero" doc:"Time at which the budget is used up at this rate, if within this month"`
}

// CostForecast is a forecast for each project.
type CostForecast struct {
	Currency string     `json:"currency"`
	Since    time.Time  `json:"since" doc:"Start of the measured period, in whole days (UTC)"`
	Until    time.Time  `json:"until" doc:"End of the month"`
	Items    []Forecast `json:"items"`
	Total    Forecast   `json:"total"`
}

// CostForecast says where the month ends if the days to come are like those since.
// Months and days are in UTC. Needs cost.read of the project, or of the
// installation.
func (s *Service) CostForecast(ctx context.Context, p project.Name, since time.Time) (CostForecast, error) {
	if err := s.mayReadCost(ctx, p); err != nil {
		return CostForecast{}, err
	}
	now := s.now().UTC()
	q := CostQuery{Since: since}
	if err := q.window(now); err != nil {
		return CostForecast{}, err
	}
	began, ends := cost.Month(now)
	today := now.Truncate(day)
	if q.Since = q.Since.Truncate(day); q.Since.After(today) {
		q.Since = today
	}
	from := q.Since
	if began.Before(from) {
		from = began
	}
	f := CostForecast{Currency: s.cfg.Currency, Since: q.Since, Until: ends, Items: []Forecast{}}
	spent := map[project.Name]float64{}
	daily := map[project.Name]map[time.Time]float64{}
	amounts := map[project.Name]float64{}
	count := func(name project.Name, u Usage) {
		spent[name] += u.within(began, ends).Cost
		if daily[name] == nil {
			daily[name] = map[time.Time]float64{}
		}
		for part := range u.parts("day") {
			if at := part.Started.UTC().Truncate(day); !at.Before(q.Since) && at.Before(today) {
				daily[name][at] += part.Cost
			}
		}
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		budgets, err := s.cfg.Store.Budgets(ctx, tx)
		if err != nil {
			return err
		}
		for _, b := range budgets {
			if p == "" || b.Project == p {
				amounts[b.Project] = b.Amount
				daily[b.Project] = map[time.Time]float64{}
			}
		}
		l, err := s.ledger(ctx, tx, "")
		if err != nil {
			return err
		}
		return s.metered(ctx, tx, l, p, from, now, func(u Usage) {
			if u.Currency == "" || u.Currency == s.cfg.Currency {
				count(u.Project, u)
				count("", u)
			}
		})
	})
	if err != nil {
		return f, err
	}
	of := func(name project.Name) Forecast {
		return forecast(name, spent[name], daily[name], today, now, ends, amounts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(daily)) {
		if name != "" {
			f.Items = append(f.Items, of(name))
		}
	}
	f.Total = of("")
	return f, nil
}

// forecast is one project's, from the cost of its days since the first on which it
// used anything.
func forecast(name project.Name, spent float64, daily map[time.Time]float64, today, now, ends time.Time, budget float64) Forecast {
	f := Forecast{Project: name, Spent: spent, Budget: budget}
	var days []float64
	if len(daily) > 0 {
		for at := slices.MinFunc(slices.Collect(maps.Keys(daily)), time.Time.Compare); at.Before(today); at = at.Add(day) {
			days = append(days, daily[at])
		}
	}
	f.Month = cost.Forecast(spent, days, ends.Sub(now).Hours()/24)
	if budget > 0 {
		if f.Month.Days > 0 {
			f.Share = f.Month.Total / budget
		}
		if left := budget - spent; left <= 0 {
			f.UsedUp = now
		} else if f.Month.PerDay > 0 {
			if at := now.Add(time.Duration(min(left/f.Month.PerDay, 400) * float64(day))); at.Before(ends) {
				f.UsedUp = at.Truncate(time.Second)
			}
		}
	}
	return f
}

// CompareQuery asks whether owning or renting is cheaper for a measured workload.
type CompareQuery struct {
	CostQuery
	Job    string   // only this one; empty is all of the project, or installation
	Own    PoolName // with cost.owned
	Rented PoolName // with cost.rented, or price_per_hour
	Nodes  int      // that would be owned; 0 is those of the pool, or as many as it takes
	Speed  float64  // how many own nodes a rented one does the work of; 0 is 1
	Egress float64  // GiB a month that would leave the provider
}

// CostComparison is a comparison with its inputs.
type CostComparison struct {
	Currency string    `json:"currency"`
	Owned    PoolName  `json:"own_pool"`
	Renting  PoolName  `json:"rented_pool"`
	Since    time.Time `json:"since" doc:"Start of the measurements: not before the pool and metering existed"`
	Until    time.Time `json:"until"`
	Measured float64   `json:"measured_node_hours" doc:"Node hours on both pools, as hours of owned nodes"`
	LeftOut  float64   `json:"left_out_node_hours" doc:"Node hours on other pools, whose nodes are not comparable"`
	cost.Comparison
	Points []cost.Point `json:"points" doc:"Both monthly costs by utilisation, for a chart"`
}

// CostCompare compares owning with renting for what ran on either of two pools.
// Needs cost.read of the project, or of the installation. Errors: fault.NotFound;
// fault.Invalid.
func (s *Service) CostCompare(ctx context.Context, q CompareQuery) (CostComparison, error) {
	if err := s.mayReadCost(ctx, q.Project); err != nil {
		return CostComparison{}, err
	}
	if err := q.window(s.now()); err != nil {
		return CostComparison{}, err
	}
	if !(q.Speed >= 0) || q.Speed > 1e6 || q.Nodes < 0 {
		return CostComparison{}, fault.New(fault.Invalid, "speed and nodes must not be negative, and speed at most a million")
	}
	q.Speed = cmp.Or(q.Speed, 1)
	c := CostComparison{Currency: s.cfg.Currency, Owned: q.Own, Renting: q.Rented, Since: q.Since, Until: q.Until}
	var l ledger
	first := q.Until // of what is compared
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if l, err = s.ledger(ctx, tx, ""); err != nil {
			return err
		}
		return s.metered(ctx, tx, l, q.Project, q.Since, q.Until, func(u Usage) {
			u = u.within(q.Since, q.Until)
			if (u.Pool == q.Own || u.Pool == q.Rented) && (q.Job == "" || u.Label == q.Job) && u.Started.Before(first) {
				first = u.Started
			}
			switch {
			case q.Job != "" && u.Label != q.Job:
			case u.Pool == q.Own:
				c.Measured += u.NodeHours
			case u.Pool == q.Rented:
				c.Measured += u.NodeHours * q.Speed
			default:
				c.LeftOut += u.NodeHours
			}
		})
	})
	if err != nil {
		return c, err
	}
	own, rented, err := l.pair(q.Own, q.Rented)
	if err != nil {
		return c, err
	}
	if own.CreatedAt.Before(first) { // its nodes were there, and idle
		first = own.CreatedAt
	}
	if first.After(q.Since) && first.Before(q.Until) {
		c.Since = first.UTC()
	}
	in := cost.Case{
		Own: *own.Cost.Owned, Watts: own.PowerWatts, Rented: rented, Nodes: q.Nodes, Speed: q.Speed, Egress: q.Egress, Now: s.now(),
		NodeHours: c.Measured * cost.HoursPerMonth / q.Until.Sub(c.Since).Hours(),
	}
	if in.Nodes == 0 {
		in.Nodes = max(len(own.Nodes), cost.NodesFor(in.NodeHours))
	}
	if c.Comparison, err = cost.Compare(in); err != nil {
		return c, err
	}
	c.Points = c.Chart()
	return c, nil
}

// pair finds a pool that is owned, and the price of one that is rented.
func (l ledger) pair(ownName, rentedName PoolName) (own Pool, rented cost.Rented, err error) {
	own, ok := l.pools[ownName]
	if !ok {
		return own, rented, fault.New(fault.NotFound, "pool %.64q not found", string(ownName)).WithHint("List pools with `falaj pool list`.")
	}
	other, ok := l.pools[rentedName]
	if !ok {
		return own, rented, fault.New(fault.NotFound, "pool %.64q not found", string(rentedName)).WithHint("List pools with `falaj pool list`; a closed pool may hold the prices of nodes that are not rented yet.")
	}
	if own.Cost == nil || own.Cost.Owned == nil {
		return own, rented, fault.New(fault.Invalid, "pool %s has no cost of ownership", ownName).WithHint("Add cost.owned to its manifest.")
	}
	switch {
	case other.PricePerHour > 0:
		rented.OnDemand = other.PricePerHour
	case other.Cost != nil && other.Cost.Rented != nil:
		rented = *other.Cost.Rented
	default:
		return own, rented, fault.New(fault.Invalid, "pool %s has no rental price", rentedName).WithHint("Add cost.rented or price_per_hour to its manifest.")
	}
	return own, rented, nil
}
