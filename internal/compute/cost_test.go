package compute_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(0, c.at.Load()) }
func (c *clock) move(d time.Duration) { c.at.Add(int64(d)) }

// costWorld has a clock at noon of 10 November 2026, and one node of two cores and
// two GPUs.
func costWorld(t *testing.T, price compute.PoolSpec) (*world, *clock) {
	t.Helper()
	c := &clock{}
	c.at.Store(time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC).UnixNano())
	w := newWorld(t, func(cfg *compute.Config) { cfg.Now = c.now })
	w.engine.vague.Store(true)
	w.price(t, price)
	w.Start(t.Context())
	return w, c
}

func (w *world) price(t *testing.T, p compute.PoolSpec) {
	t.Helper()
	p.Nodes = []compute.Node{{Name: "local", CPU: resource.Cores(2), Memory: 4 * resource.GiB, Accelerators: map[string]int64{"gpu": 2}}}
	if _, _, err := w.ApplyPool(t.Context(), compute.Home, p); err != nil {
		t.Fatal(err)
	}
}

func (w *world) report(t *testing.T, q compute.CostQuery) compute.CostReport {
	t.Helper()
	r, err := w.CostReport(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func TestCostReport(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10, PowerWatts: 1000})
	half := resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB, Accelerators: map[string]int64{"gpu": 1}}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", User: "ana", Model: "delay", Amount: half})
	w.awaitStart(t)
	if _, err := w.Wait(t.Context(), "att_0"); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	await(t, w, "att_1", compute.Running)

	// What runs counts until now.
	c.move(2 * time.Hour)
	r := w.report(t, compute.CostQuery{By: "user"})
	if len(r.Items) != 1 || r.Currency != "AED" {
		t.Fatalf("%+v", r)
	}
	got := r.Items[0]
	if got.Key != "ana" || got.Running != 1 || !near(got.Cost, 10) || !near(got.NodeHours, 1) || !near(got.Accelerators["gpu"], 2) || !near(got.EnergyKWh, 1) {
		t.Errorf("after two hours: %+v", got)
	}

	// A new price does not change what was before it.
	w.price(t, compute.PoolSpec{PricePerHour: 20, PowerWatts: 1000})
	c.move(time.Hour)
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	for by, key := range map[string]string{"project": "p", "user": "ana", "queue": "", "pool": "home", "job": "job_1", "model": "delay", "day": "2026-11-10"} {
		r := w.report(t, compute.CostQuery{By: by})
		if len(r.Items) != 1 || r.Items[0].Key != key || !near(r.Items[0].Cost, 20) || r.Items[0].Running != 0 || !near(r.Total.Cost, 20) {
			t.Errorf("by %s: %+v", by, r)
		}
	}
	usage, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if err != nil || len(usage) != 1 {
		t.Fatal(usage, err)
	}
	u := usage[0]
	if u.User != "ana" || u.Model != "delay" || u.Currency != "AED" || !near(u.Accelerators["gpu"], 3) || !near(u.NodeHours, 1.5) || !near(u.EnergyKWh, 1.5) || u.Wall != 3*time.Hour || !u.Ended.Equal(c.now()) {
		t.Errorf("%+v", u)
	}

	// Idle hours are money: three there were, half of each was used.
	r = w.report(t, compute.CostQuery{})
	if len(r.Idle) != 1 || !near(r.Idle[0].NodeHours, 3) || !near(r.Idle[0].Utilisation, 0.5) || !near(r.Idle[0].Cost, 30) {
		t.Errorf("idle: %+v", r.Idle)
	}
	if r = w.report(t, compute.CostQuery{Project: "p"}); r.Idle != nil {
		t.Errorf("a project sees the installation: %+v", r.Idle)
	}
	if r = w.report(t, compute.CostQuery{Project: "other"}); len(r.Items) != 0 || r.Total.Cost != 0 {
		t.Errorf("another project: %+v", r)
	}
	// Of what is half in the window half counts; windows add.
	first := w.report(t, compute.CostQuery{Until: c.now().Add(-time.Hour)}).Total.Cost
	second := w.report(t, compute.CostQuery{Since: c.now().Add(-time.Hour)}).Total.Cost
	if !near(second, 20.0/3) || !near(first+second, 20) {
		t.Errorf("windows of %g and %g", first, second)
	}

	for want, q := range map[string]compute.CostQuery{
		"unknown report":    {By: "colour"},
		"the interval from": {Since: c.now().Add(time.Hour)},
		"at most ten years": {Since: time.Unix(0, 0)},
	} {
		if _, err := w.CostReport(t.Context(), q); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}

	// Amounts of another currency are not added.
	w.cfg.Currency = "EUR"
	w.restart(t)
	if r = w.report(t, compute.CostQuery{}); r.LeftOut != 1 || r.Total.Cost != 0 || r.Currency != "EUR" {
		t.Errorf("in another currency: %+v", r)
	}
}

// await waits until a workload is in a state.
func await(t *testing.T, w *world, id compute.WorkloadID, state compute.State) {
	t.Helper()
	for t.Context().Err() == nil {
		got, err := w.Workload(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got.State == state {
			return
		}
	}
}

func TestOthersAreAddedUp(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	for _, id := range []string{"att_1", "att_2"} {
		w.submit(t, compute.Request{ID: compute.WorkloadID(id), Label: "job_" + id})
		w.awaitStart(t)
		await(t, w, compute.WorkloadID(id), compute.Running)
		c.move(time.Hour)
	}
	r := w.report(t, compute.CostQuery{By: "job", Limit: 1})
	if len(r.Items) != 1 || r.Items[0].Key != "job_att_1" || !near(r.Items[0].Cost, 10) || r.Others == nil || r.Others.Workloads != 1 || !near(r.Others.Cost, 5) || !near(r.Total.Cost, 15) {
		t.Errorf("%+v, others %+v", r, r.Others)
	}
}

func TestClockThatWentBackCostsNothing(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	w.awaitStart(t)
	await(t, w, "att_1", compute.Running)
	c.move(-2 * time.Hour)
	w.price(t, compute.PoolSpec{PricePerHour: 20}) // holds from now on, not from two hours ago
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	usage, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if err != nil || len(usage) != 1 || usage[0].Cost != 0 || usage[0].Wall != 0 || usage[0].NodeHours != 0 {
		t.Fatalf("%+v, %v", usage, err)
	}
	c.move(4 * time.Hour)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2"})
	w.awaitStart(t)
	await(t, w, "att_2", compute.Running)
	c.move(time.Hour)
	if r := w.report(t, compute.CostQuery{}); !near(r.Total.Cost, 10) {
		t.Errorf("an hour costs %g, want 10", r.Total.Cost)
	}
}

// TestSpent: what jobs cost, of all their attempts, those that run included.
func TestSpent(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	half := resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB}
	run := func(id, label string) {
		t.Helper()
		w.submit(t, compute.Request{ID: compute.WorkloadID(id), Label: label, Amount: half})
		w.awaitStart(t)
		await(t, w, compute.WorkloadID(id), compute.Running)
	}
	run("att_1", "job_1")
	c.move(2 * time.Hour)
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	run("att_2", "job_1")
	run("att_3", "job_2")
	c.move(time.Hour)
	for label, want := range map[string]float64{"job_1": 15, "job_2": 5, "job_3": 0} {
		if got, err := w.Spent(t.Context(), "p", []string{label}); err != nil || !near(got[label], want) || len(got) > 1 {
			t.Errorf("%s: %v, %v; want %g", label, got, err, want)
		}
	}
	var many []string
	for i := range 1200 {
		many = append(many, fmt.Sprint("job_", i))
	}
	if got, err := w.Spent(t.Context(), "p", many); err != nil || !near(got["job_1"], 15) || !near(got["job_2"], 5) {
		t.Errorf("of many: %v, %v", got, err)
	}
	if got, err := w.Spent(t.Context(), "other", many); err != nil || len(got) != 0 {
		t.Errorf("of another project: %v, %v", got, err)
	}
	if free, err := w.Free(t.Context(), nil, scheduler.None, nil); err != nil || len(free) != 0 {
		t.Errorf("with a price: %v, %v", free, err)
	}
	w.price(t, compute.PoolSpec{})
	if free, err := w.Free(t.Context(), nil, scheduler.None, nil); err != nil || !slices.Equal(free, []compute.PoolName{compute.Home}) {
		t.Errorf("without: %v, %v", free, err)
	}
	if free, err := w.Free(t.Context(), []string{"other"}, scheduler.None, nil); err != nil || len(free) != 0 {
		t.Errorf("of another pool: %v, %v", free, err)
	}
}

func TestPriceOfThePool(t *testing.T) {
	w, _ := costWorld(t, compute.PoolSpec{})
	owned := &cost.Price{Owned: &cost.Owned{Purchase: 87_600, Lifetime: 5}}
	for _, c := range []struct {
		name string
		spec compute.PoolSpec
		want string
	}{
		{"owned", compute.PoolSpec{Cost: owned}, ""},
		{"a currency", compute.PoolSpec{Cost: &cost.Price{Currency: "EUR", Owned: owned.Owned}}, "cost is in EUR, but this installation uses AED"},
		{"negative", compute.PoolSpec{Cost: &cost.Price{Rented: &cost.Rented{OnDemand: -1}}}, "on_demand is -1"},
		{"nothing", compute.PoolSpec{Cost: &cost.Price{}}, "either rented or owned"},
	} {
		p, change, err := w.PlanPool(t.Context(), compute.Home, c.spec)
		if c.want == "" && (err != nil || change != project.Updated || p.Price().Rate().At(time.Now()) != 2) {
			t.Errorf("%s: %s %v", c.name, change, err)
		}
		if c.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	w.price(t, compute.PoolSpec{Cost: owned, PricePerHour: 7})
	p, err := w.Pool(t.Context(), compute.Home)
	if err != nil || p.Price().Rate().At(time.Now()) != 7 {
		t.Fatalf("price_per_hour does not win: %+v, %v", p.Price(), err)
	}
	again := p.Spec()
	again.Cost = &cost.Price{Owned: &cost.Owned{Purchase: 87_600, Lifetime: 5}}
	if _, change, err := w.PlanPool(t.Context(), compute.Home, again); err != nil || change != project.Unchanged {
		t.Fatalf("the same again: %s, %v", change, err)
	}
}

func TestBudget(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	budget := compute.BudgetSpec{Amount: 10, Warn: []float64{1, 0.5}}
	if _, change, err := w.ApplyBudget(t.Context(), "p", budget); err != nil || change != project.Created {
		t.Fatal(change, err)
	}
	if _, change, err := w.ApplyBudget(t.Context(), "p", budget); err != nil || change != project.Unchanged {
		t.Fatal(change, err)
	}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Preemptible: true})
	w.awaitStart(t)
	await(t, w, "att_1", compute.Running)

	check := func() {
		t.Helper()
		for range 2 { // the second time nothing is new
			if err := w.CheckBudgets(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.move(time.Hour)
	check()
	c.move(2 * time.Hour)
	check()
	if got, want := w.warnings(t), []float64{0.5, 1}; !slices.Equal(got, want) {
		t.Errorf("warned at %v, want %v", got, want)
	}
	b, err := w.Budget(t.Context(), "p")
	if err != nil || !near(b.Spent, 15) {
		t.Fatalf("%+v, %v", b, err)
	}

	// Nothing new starts, in this month; what runs goes on, and so do builds.
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2"})
	why, err := w.Why(t.Context(), "att_2")
	if want := []string{"the budget of project p for November is used up: 15 AED of 10"}; err != nil || !slices.Equal(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
	if one, err := w.Workload(t.Context(), "att_1"); err != nil || one.State != compute.Running || one.Stop != "" {
		t.Fatalf("what ran: %+v, %v", one, err)
	}
	w.submit(t, compute.Request{ID: "bld_1", Kind: compute.Build, Spec: &engine.Spec{Command: []string{"x"}}})
	if id := w.awaitStart(t); id != "bld_1" {
		t.Fatalf("started %s", id)
	}
	w.end("bld_1", enginetest.Exit{})
	w.wait(t, "bld_1")

	// A restart does not forget it.
	w.restart(t)
	w.Start(t.Context())
	if why, err := w.Why(t.Context(), "att_2"); err != nil || !strings.Contains(why[0], "is used up") {
		t.Fatalf("why after a restart %q, %v", why, err)
	}

	// More money, and it starts.
	budget.Amount = 100
	if _, change, err := w.ApplyBudget(t.Context(), "p", budget); err != nil || change != project.Updated {
		t.Fatal(change, err)
	}
	if id := w.awaitStart(t); id != "att_2" {
		t.Fatalf("started %s", id)
	}
	await(t, w, "att_2", compute.Running)

	// A budget may stop what runs: it saves and waits.
	budget.Amount, budget.Stop = 1, compute.StopRunning
	if _, _, err := w.ApplyBudget(t.Context(), "p", budget); err != nil {
		t.Fatal(err)
	}
	check()
	for _, id := range []compute.WorkloadID{"att_1", "att_2"} {
		if got := w.wait(t, id); got.Status.Reason != engine.Preempted || !strings.Contains(got.Outcome(), "the budget of project p for November is used up") {
			t.Errorf("%s: %s", id, got.Outcome())
		}
	}
	w.submit(t, compute.Request{ID: "att_3", Label: "job_3"})
	if why, err := w.Why(t.Context(), "att_3"); err != nil || !strings.Contains(why[0], "is used up") {
		t.Fatalf("why %q, %v", why, err)
	}
	// The next month begins at nothing.
	c.move(21 * 24 * time.Hour)
	w.Wake()
	if id := w.awaitStart(t); id != "att_3" {
		t.Fatalf("started %s", id)
	}
	await(t, w, "att_3", compute.Running)

	if err := w.DeleteBudget(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteBudget(t.Context(), "p"); !fault.Is(err, fault.NotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := w.Budget(t.Context(), "p"); !fault.Is(err, fault.NotFound) {
		t.Errorf("still there: %v", err)
	}
}

// warnings are the shares that events told of.
func (w *world) warnings(t *testing.T) (shares []float64) {
	t.Helper()
	events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind != compute.EventBudgetWarned {
			continue
		}
		var b compute.BudgetEvent
		if err := json.Unmarshal(e.Body, &b); err != nil {
			t.Fatal(err)
		}
		shares = append(shares, b.Reached)
	}
	return shares
}

func TestBudgetsThatAreRefused(t *testing.T) {
	w, _ := costWorld(t, compute.PoolSpec{})
	for want, spec := range map[string]compute.BudgetSpec{
		"per_month is -1":              {Amount: -1},
		"per_month: must be":           {},
		"per_month is NaN":             {Amount: math.NaN()},
		"per_month is +Inf":            {Amount: math.Inf(1)},
		"warn_at: 80 is out of range":  {Amount: 1, Warn: []float64{80}},
		"warn_at: NaN is out of range": {Amount: 1, Warn: []float64{math.NaN()}},
		"stop: unknown value \"all\"":  {Amount: 1, Stop: "all"},
		"but this installation uses":   {Amount: 1, Currency: "USD"},
		"\"dirham\" is not a curren":   {Amount: 1, Currency: "dirham"},
		"exceed the limit of 20":       {Amount: 1, Warn: make([]float64, 21)},
	} {
		if _, _, err := w.ApplyBudget(t.Context(), "p", spec); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	if _, _, err := w.PlanBudget(t.Context(), "p", compute.BudgetSpec{Amount: 1}); err != nil {
		t.Fatal(err)
	}
	if all, err := w.Budgets(t.Context(), ""); err != nil || len(all) != 0 {
		t.Fatalf("a plan made %+v, %v", all, err)
	}
	w.cfg.Project = func(context.Context, *store.Tx, project.Name) error { return fault.New(fault.NotFound, "no project") }
	w.restart(t)
	for _, apply := range []func(context.Context, project.Name, compute.BudgetSpec) (compute.Budget, project.Change, error){w.ApplyBudget, w.PlanBudget} {
		if _, _, err := apply(t.Context(), "nope", compute.BudgetSpec{Amount: 1}); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "project nope not found") {
			t.Errorf("a budget of no project: %v", err)
		}
	}
	w.cfg.Authorizer = allowNone{}
	w.restart(t)
	for name, ask := range map[string]func() error{
		"apply":    func() error { _, _, err := w.ApplyBudget(t.Context(), "p", compute.BudgetSpec{Amount: 1}); return err },
		"delete":   func() error { return w.DeleteBudget(t.Context(), "p") },
		"list":     func() error { _, err := w.Budgets(t.Context(), ""); return err },
		"one":      func() error { _, err := w.Budget(t.Context(), "p"); return err },
		"report":   func() error { _, err := w.CostReport(t.Context(), compute.CostQuery{}); return err },
		"forecast": func() error { _, err := w.CostForecast(t.Context(), "p", time.Time{}); return err },
		"compare":  func() error { _, err := w.CostCompare(t.Context(), compute.CompareQuery{}); return err },
	} {
		if err := ask(); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCostForecast(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	if _, _, err := w.ApplyBudget(t.Context(), "p", compute.BudgetSpec{Amount: 2000}); err != nil {
		t.Fatal(err)
	}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	w.awaitStart(t)
	await(t, w, "att_1", compute.Running)
	c.move(time.Hour) // no day is whole
	if f, err := w.CostForecast(t.Context(), "", time.Time{}); err != nil || f.Items[0].Month.Days != 0 || f.Items[0].Share != 0 || !near(f.Items[0].Spent, 5) {
		t.Errorf("on the first day: %+v, %v", f, err)
	}
	c.move(4*24*time.Hour + 11*time.Hour) // until 15 November: 60 and four days of 120
	f, err := w.CostForecast(t.Context(), "", time.Time{})
	if err != nil || len(f.Items) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	got := f.Items[0]
	if got.Project != "p" || !near(got.Spent, 540) || got.Month.Days != 5 || !near(got.Month.PerDay, 108) || !near(got.Month.Total, 540+16*108) || got.Budget != 2000 {
		t.Errorf("%+v", got)
	}
	if got.Month.Low == nil || *got.Month.Low >= got.Month.Total || *got.Month.High <= got.Month.Total {
		t.Errorf("interval %+v", got.Month)
	}
	if want := time.Date(2026, 11, 28, 12, 26, 40, 0, time.UTC); !got.UsedUp.Equal(want) {
		t.Errorf("used up at %s, want %s", got.UsedUp, want)
	}
	if !near(f.Total.Spent, 540) || !f.Until.Equal(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("total %+v until %s", f.Total, f.Until)
	}
	// Only what falls into the month is spent in it.
	c.move(17 * 24 * time.Hour)
	if f, err = w.CostForecast(t.Context(), "p", time.Time{}); err != nil || !near(f.Items[0].Spent, 120) {
		t.Errorf("in December: %+v, %v", f.Items, err)
	}
}

func TestCostCompare(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PowerWatts: 10_000, Cost: &cost.Price{Owned: &cost.Owned{Purchase: 876_000, Lifetime: 5, Tariff: cost.Tariff{PerKWh: 0.4}}}})
	c.move(24 * time.Hour) // idle
	cloud := compute.PoolSpec{Closed: "only its prices are of interest", Cost: &cost.Price{Rented: &cost.Rented{OnDemand: 36}}}
	if _, _, err := w.ApplyPool(t.Context(), "cloud", cloud); err != nil {
		t.Fatal(err)
	}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Amount: resource.Amount{CPU: resource.Cores(2), Memory: resource.GiB}})
	w.awaitStart(t)
	await(t, w, "att_1", compute.Running)
	c.move(9 * 24 * time.Hour)
	// Nine days of ten at work: 20 an hour and 4 for energy, against 36.
	if r := w.report(t, compute.CostQuery{}); len(r.Idle) != 1 || r.Idle[0].Pool != compute.Home {
		t.Errorf("what is not rented is idle: %+v", r.Idle)
	}
	// Before the pool was there it was not idle: of the last 30 days ten count.
	q := compute.CompareQuery{Own: "home", Rented: "cloud"}
	got, err := w.CostCompare(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Since.Equal(got.Until.Add(-10*24*time.Hour)) || !got.Until.Equal(c.now()) {
		t.Errorf("measured from %s to %s", got.Since, got.Until)
	}
	if !near(got.Measured, 216) || !near(got.Utilisation, 0.9) || got.BreakEven == nil || !near(*got.BreakEven, 20.0/32) || !near(got.Rented, 0.9*730*36) || len(got.Points) != 21 {
		t.Errorf("%+v", got)
	}
	if got.Months == nil || !near(*got.Months, 876_000/(730*0.9*32)) || !strings.HasPrefix(got.Answer, "owning is cheaper") {
		t.Errorf("%v: %s", got.Months, got.Answer)
	}
	// A shorter window is as it was asked for, and all of it was at work.
	short := q
	short.Since = c.now().Add(-24 * time.Hour)
	if got, err := w.CostCompare(t.Context(), short); err != nil || !got.Since.Equal(short.Since) || !near(got.Utilisation, 1) {
		t.Errorf("of a day: %+v, %v", got, err)
	}
	// An own pool that is younger than what ran on the rented one: from then on.
	later := compute.PoolSpec{Closed: "to be bought", Cost: &cost.Price{Owned: &cost.Owned{Purchase: 876_000, Lifetime: 5}}}
	if _, _, err := w.ApplyPool(t.Context(), "next", later); err != nil {
		t.Fatal(err)
	}
	w.price(t, compute.PoolSpec{PricePerHour: 36})
	young := compute.CompareQuery{Own: "next", Rented: "home", Nodes: 1}
	if got, err := w.CostCompare(t.Context(), young); err != nil || !got.Since.Equal(got.Until.Add(-9*24*time.Hour)) || !near(got.Utilisation, 1) {
		t.Errorf("what was rented before: %+v, %v", got, err)
	}
	w.price(t, compute.PoolSpec{PowerWatts: 10_000, Cost: &cost.Price{Owned: &cost.Owned{Purchase: 876_000, Lifetime: 5, Tariff: cost.Tariff{PerKWh: 0.4}}}})
	for want, edit := range map[string]func(*compute.CompareQuery){
		"no measured usage":        func(q *compute.CompareQuery) { q.Job = "job_2" },
		"has no cost of ownership": func(q *compute.CompareQuery) { q.Own = "cloud" },
		"has no rental price":      func(q *compute.CompareQuery) { q.Rented = "home" },
		"\"nowhere\" not found":    func(q *compute.CompareQuery) { q.Own = "nowhere" },
		"must not be negative":     func(q *compute.CompareQuery) { q.Speed = math.NaN() },
		"speed and nodes":          func(q *compute.CompareQuery) { q.Nodes = -1 },
		"egress is +Inf":           func(q *compute.CompareQuery) { q.Egress = math.Inf(1) },
		"span at most ten years":   func(q *compute.CompareQuery) { q.Since = c.now().Add(time.Hour) },
	} {
		bad := q
		edit(&bad)
		if _, err := w.CostCompare(t.Context(), bad); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// TestCostOfRoles: each worker of a gang costs the share that it has.
func TestCostOfRoles(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Roles: []scheduler.Role{
		{Name: "chief", Workers: 1, Request: resource.Amount{CPU: resource.CPU(1000), Accelerators: map[string]int64{"gpu": 1}}}, {Name: "ps", Workers: 2, Request: resource.Amount{CPU: resource.CPU(500)}},
	}})
	w.awaitStart(t)
	await(t, w, "att_1", compute.Running)
	pools, err := w.ListPools(t.Context())
	if err != nil || pools[0].Used.CPU != resource.CPU(2000) || pools[0].Used.Accelerators["gpu"] != 1 {
		t.Errorf("%+v, %v", pools[0].Used, err)
	}
	c.move(2 * time.Hour)
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	usage, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if err != nil || len(usage) != 1 {
		t.Fatal(usage, err)
	}
	if u := usage[0]; u.Workers != 3 || !near(u.NodeHours, 2) || !near(u.Cost, 20) || !near(u.Accelerators["gpu"], 2) {
		t.Errorf("%+v", u)
	}
	for _, bad := range []compute.Request{
		{Roles: []scheduler.Role{{Name: "a", Workers: 1}}, Workers: 1, MaxWorkers: 2}, {Roles: []scheduler.Role{{Name: "a"}}}, {Roles: []scheduler.Role{{Name: "a", Workers: 700}, {Name: "b", Workers: 700}}},
	} {
		bad.ID, bad.Kind = "att_2", compute.JobAttempt
		if err := bad.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
