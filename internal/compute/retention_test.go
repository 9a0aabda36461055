package compute_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// TestSumsStayRight: reports, forecasts and budgets over whole days say the same when the
// records of half of the workloads are gone, and again when those of all are.
func TestSumsStayRight(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	now := c.now().UTC()
	if _, _, err := w.ApplyBudget(t.Context(), "p", compute.BudgetSpec{Amount: 1e6, Currency: "AED"}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var ids []compute.WorkloadID
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for i := range 300 {
		wall := time.Duration(r.Int64N(int64(60 * time.Hour)))
		if i%17 == 0 {
			wall = 0 // it took no time
		}
		ended := now.Truncate(24 * time.Hour).Add(-time.Duration(r.Int64N(int64(60 * 24 * time.Hour)))).Truncate(time.Microsecond)
		if i%11 == 0 {
			ended = ended.Truncate(24 * time.Hour)
		}
		if days := map[int]int{0: 20, 187: 1}[i]; days > 0 { // it took no time, at the first instant of a report
			ended = now.Truncate(24*time.Hour).AddDate(0, 0, -days)
		}
		u := compute.Usage{
			Workload: compute.WorkloadID(fmt.Sprint("att_", i)), Project: "p", Kind: compute.JobAttempt, Label: fmt.Sprint("job_", i/2), User: pick("ana", "badr"),
			Queue: pick("", "night"), Model: pick("", "delay"), Pool: compute.Home, Workers: 1, Started: ended.Add(-wall.Truncate(time.Microsecond)), Ended: ended,
			Wall: wall.Truncate(time.Microsecond), CPU: wall.Truncate(time.Microsecond), NodeHours: wall.Hours(), EnergyKWh: wall.Hours() * r.Float64(), Cost: wall.Hours() * r.Float64(),
			Currency: pick("AED", "AED", "AED", "EUR"), Accelerators: map[string]float64{pick("gpu", "tpu"): wall.Hours()},
		}
		ids = append(ids, u.Workload)
		if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return computesql.Store{}.InsertUsage(ctx, tx, u) }); err != nil {
			t.Fatal(err)
		}
	}
	type figures map[string]float64
	read := func() figures {
		f := figures{}
		add := func(name string, row compute.CostRow) {
			f[name+" cost"], f[name+" nodes"], f[name+" cpu"], f[name+" energy"] = row.Cost, row.NodeHours, row.CPUHours, row.EnergyKWh
			for a, h := range row.Accelerators {
				f[name+" "+a] = h
			}
		}
		for _, days := range []int{70, 20, 1} {
			q := compute.CostQuery{Since: now.Truncate(24*time.Hour).AddDate(0, 0, -days), Limit: 1000}
			for _, by := range []string{"project", "user", "queue", "pool", "model", "day"} {
				q.By = by
				report := w.report(t, q)
				for _, row := range report.Items {
					add(fmt.Sprint(days, by, row.Key), row)
				}
				add(fmt.Sprint(days, by, " in all"), report.Total)
				if days == 70 && by == "project" { // all of each is in it
					f["workloads"], f["left out"] = float64(report.Total.Workloads), float64(report.LeftOut)
				}
			}
		}
		forecast, err := w.CostForecast(t.Context(), "p", now.AddDate(0, 0, -14))
		if err != nil {
			t.Fatal(err)
		}
		f["month"], f["spent"] = forecast.Total.Month.Total, forecast.Total.Spent
		b, err := w.Budget(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		f["budget"] = b.Spent
		return f
	}
	before := read()
	if before["workloads"]+before["left out"] != 300 || before["budget"] == 0 || before["budget"] != before["spent"] && !near(before["budget"], before["spent"]) {
		t.Fatalf("before: %v of 300 workloads, %v left out; budget %v, spent %v", before["workloads"], before["left out"], before["budget"], before["spent"])
	}
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, some := range [][]compute.WorkloadID{ids[:100], ids[50:150], ids} { // some twice
		if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return w.ForgetIn(ctx, tx, some) }); err != nil {
			t.Fatal(err)
		}
		after := read()
		for name, want := range before {
			if !near(after[name], want) {
				t.Errorf("%d forgotten: %s is %v, was %v", len(some), name, after[name], want)
			}
		}
		for name := range after {
			if _, was := before[name]; !was {
				t.Errorf("%d forgotten: %s is new", len(some), name)
			}
		}
	}
	left, err := w.Usage(t.Context(), "p", time.Time{}, 1000)
	if err != nil || len(left) != 0 {
		t.Errorf("%d lines are left, %v", len(left), err)
	}
}

// TestRecordsAreForgotten: builds go by their age, attempts only with their jobs, and what an
// engine still holds or has not ended stays.
func TestRecordsAreForgotten(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	w.cfg.Records, w.cfg.Retention = 48*time.Hour, 24*time.Hour
	w.restart(t)
	w.Start(t.Context())
	run := func(id string, kind compute.Kind) {
		w.submit(t, compute.Request{ID: compute.WorkloadID(id), Kind: kind, Label: id, Spec: &engine.Spec{Command: []string{"x"}}})
		w.awaitStart(t)
		await(t, w, compute.WorkloadID(id), compute.Running)
		c.move(time.Hour)
		w.end(id, enginetest.Exit{})
		w.wait(t, compute.WorkloadID(id))
	}
	run("bld_old", compute.Build)
	run("att_old", compute.JobAttempt)
	cost := w.report(t, compute.CostQuery{}).Total.Cost
	c.move(30 * time.Hour)
	there := func() string {
		var left []string
		for _, id := range []compute.WorkloadID{"bld_old", "att_old"} {
			if _, err := w.Workload(t.Context(), id); err == nil {
				left = append(left, string(id))
			} else if !fault.Is(err, fault.NotFound) {
				t.Fatal(err)
			}
		}
		return strings.Join(left, " ")
	}
	forget := func() {
		t.Helper()
		if err := w.ForgetRecords(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if forget(); there() != "bld_old att_old" {
		t.Fatalf("before their time there are %q", there())
	}
	c.move(30 * time.Hour)
	if forget(); there() != "bld_old att_old" {
		t.Fatalf("the engine holds them, and there are %q", there())
	}
	if err := w.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if forget(); there() != "att_old" {
		t.Fatalf("after their time there are %q", there())
	}
	if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return w.ForgetIn(ctx, tx, []compute.WorkloadID{"att_old"})
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.report(t, compute.CostQuery{}).Total; there() != "" || !near(got.Cost, cost) || got.Workloads != 2 {
		t.Errorf("in the end there are %q; %+v, want %g", there(), got, cost)
	}
}

// TestUsageOfManyIsAddedUp: that of the last of many, the first of which used nothing, too.
func TestUsageOfManyIsAddedUp(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	ended := c.now().UTC().Truncate(24 * time.Hour).Add(-time.Hour)
	u := compute.Usage{
		Workload: "att_last", Project: "p", Kind: compute.JobAttempt, Pool: compute.Home, Currency: "AED", Cost: 7,
		Started: ended.Add(-time.Hour), Ended: ended, Wall: time.Hour,
	}
	var ids []compute.WorkloadID
	for i := range 1200 {
		ids = append(ids, compute.WorkloadID(fmt.Sprint("att_", i)))
	}
	ids = append(ids, u.Workload)
	if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		if err := (computesql.Store{}).InsertUsage(ctx, tx, u); err != nil {
			return err
		}
		return w.ForgetIn(ctx, tx, ids)
	}); err != nil {
		t.Fatal(err)
	}
	left, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if total := w.report(t, compute.CostQuery{Since: ended.Add(-48 * time.Hour)}).Total; err != nil || len(left) != 0 || total.Cost != 7 || total.Workloads != 1 {
		t.Errorf("%d lines are left, %v; in all %+v", len(left), err, total)
	}
}

// TestRecordsAreForgottenInParts: a pass ends after some batches, and the next goes on.
func TestRecordsAreForgottenInParts(t *testing.T) {
	w, c := costWorld(t, compute.PoolSpec{PricePerHour: 10})
	compute.SetRecordsBatch(t, 2, 3)
	w.cfg.Records = 48 * time.Hour
	w.restart(t)
	var ids []compute.WorkloadID
	for i := range 15 {
		ids = append(ids, compute.WorkloadID(fmt.Sprint("bld_", i)))
	}
	if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for i, id := range ids {
			x := compute.Workload{ID: id, Project: "p", Kind: compute.Build, State: compute.Ended, Settled: true, EndedAt: c.now().Add(-72 * time.Hour).Add(time.Duration(i) * time.Minute)}
			if err := (computesql.Store{}).InsertWorkload(ctx, tx, x); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{9, 3, 0, 0} {
		if err := w.ForgetRecords(t.Context()); err != nil {
			t.Fatal(err)
		}
		var left []compute.Workload
		if err := w.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
			left, err = computesql.Store{}.Workloads(ctx, tx, ids)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if len(left) != want {
			t.Fatalf("%d records are left, want %d", len(left), want)
		}
	}
}

// TestForgettingReadsWhatIsDue: of a hundred thousand workloads that are kept, none is read.
func TestForgettingReadsWhatIsDue(t *testing.T) {
	db := database(t, computesql.Migrations)
	var plan []struct {
		ID, Parent, Notused int
		Detail              string
	}
	for _, q := range []string{
		"settled AND handle <> '' AND kind = 'replica' AND ended < 5 ORDER BY ended LIMIT 10",
		"settled AND handle = '' AND kind <> 'job' AND ended < 5 ORDER BY ended LIMIT 10",
	} {
		if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return tx.NewRaw("EXPLAIN QUERY PLAN SELECT * FROM compute_workload WHERE "+q).Scan(ctx, &plan)
		}); err != nil {
			t.Fatal(err)
		}
		if len(plan) != 1 || !strings.Contains(plan[0].Detail, "USING INDEX") || !strings.Contains(plan[0].Detail, "ended") {
			t.Errorf("%s: %+v", q, plan)
		}
	}
}
