package computesql

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// atOnce keeps statements within the databases' limits on parameters.
const atOnce = 500

// over is the condition of the index compute_workload_over.
const over = "settled AND handle = '' AND kind <> 'job'"

// Over implements compute.WorkloadStore.
func (WorkloadStore) Over(ctx context.Context, tx *store.Tx, before time.Time, limit int) (ids []compute.WorkloadID, err error) {
	err = tx.NewSelect().Table("compute_workload").Column("id").Where(over).Where("ended < ?", store.At(before)).OrderExpr("ended").Limit(limit).Scan(ctx, &ids)
	return ids, err
}

// DeleteWorkloads implements compute.WorkloadStore.
func (WorkloadStore) DeleteWorkloads(ctx context.Context, tx *store.Tx, ids []compute.WorkloadID) error {
	for chunk := range slices.Chunk(ids, atOnce) {
		_, err := tx.NewDelete().Model((*workloadRow)(nil)).Where("settled AND handle = ''").Where("id IN (?)", bun.List(chunk)).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// TakeUsage implements compute.UsageStore.
func (UsageStore) TakeUsage(ctx context.Context, tx *store.Tx, ids []compute.WorkloadID) (all []compute.Usage, err error) {
	for chunk := range slices.Chunk(ids, atOnce) {
		var rows []usageRow
		// A workload that an engine still holds stays, and so does its usage.
		err := tx.NewSelect().Model(&rows).Where("workload IN (?)", bun.List(chunk)).
			Where("NOT EXISTS (SELECT 1 FROM compute_workload w WHERE w.id = workload)").OrderExpr("workload").Scan(ctx)
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			continue // the next chunk may have some
		}
		gone := make([]string, len(rows))
		for i, r := range rows {
			u, err := r.usage()
			if err != nil {
				return nil, err
			}
			all, gone[i] = append(all, u), r.Workload
		}
		if _, err := tx.NewDelete().Model((*usageRow)(nil)).Where("workload IN (?)", bun.List(gone)).Exec(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

type dayRow struct {
	bun.BaseModel `bun:"table:compute_usage_day"`

	Project      string     `bun:"project,pk"`
	Day          store.Time `bun:"day,pk"`
	Kind         string     `bun:"kind,pk"`
	User         string     `bun:"username,pk"`
	Queue        string     `bun:"queue,pk"`
	Model        string     `bun:"model,pk"`
	Pool         string     `bun:"pool,pk"`
	Currency     string     `bun:"currency,pk"`
	Workloads    int        `bun:"workloads"`
	CPUUS        int64      `bun:"cpu_us"`
	NodeHours    float64    `bun:"node_hours"`
	Accelerators string     `bun:"accelerators"`
	EnergyKWh    float64    `bun:"energy_kwh"`
	Cost         float64    `bun:"cost"`
}

func (r dayRow) day() (d compute.UsageDay, err error) {
	d = compute.UsageDay{
		DayKey: compute.DayKey{
			Project: project.Name(r.Project), Day: r.Day.Time(), Kind: compute.Kind(r.Kind), User: r.User, Queue: r.Queue, Model: r.Model,
			Pool: compute.PoolName(r.Pool), Currency: r.Currency,
		},
		Workloads: r.Workloads, CPU: time.Duration(r.CPUUS) * time.Microsecond, NodeHours: r.NodeHours, EnergyKWh: r.EnergyKWh, Cost: r.Cost,
	}
	err = json.Unmarshal([]byte(r.Accelerators), &d.Accelerators)
	return d, fault.Wrap(err, "reading the usage on %s", d.Day.Format(time.DateOnly))
}

// AddUsageDay implements compute.UsageStore.
func (UsageStore) AddUsageDay(ctx context.Context, tx *store.Tx, d compute.UsageDay) error {
	r := dayRow{
		Project: string(d.Project), Day: store.At(d.Day), Kind: string(d.Kind), User: d.User, Queue: d.Queue, Model: d.Model,
		Pool: string(d.Pool), Currency: d.Currency,
	}
	var was []dayRow
	if err := tx.NewSelect().Model(&was).Where("project = ? AND day = ? AND kind = ? AND username = ? AND queue = ? AND model = ? AND pool = ? AND currency = ?",
		r.Project, r.Day, r.Kind, r.User, r.Queue, r.Model, r.Pool, r.Currency).Scan(ctx); err != nil {
		return err
	}
	for _, w := range was {
		old, err := w.day()
		if err != nil {
			return err
		}
		d.Workloads, d.CPU, d.NodeHours, d.EnergyKWh, d.Cost = d.Workloads+old.Workloads, d.CPU+old.CPU, d.NodeHours+old.NodeHours, d.EnergyKWh+old.EnergyKWh, d.Cost+old.Cost
		sum := maps.Clone(old.Accelerators)
		for name, h := range d.Accelerators {
			if sum == nil {
				sum = map[string]float64{}
			}
			sum[name] += h
		}
		d.Accelerators = sum
	}
	accelerators, err := json.Marshal(d.Accelerators)
	if err != nil {
		return err
	}
	r.Workloads, r.CPUUS, r.NodeHours, r.Accelerators, r.EnergyKWh, r.Cost = d.Workloads, d.CPU.Microseconds(), d.NodeHours, string(accelerators), d.EnergyKWh, d.Cost
	_, err = tx.NewInsert().Model(&r).On("CONFLICT (project, day, kind, username, queue, model, pool, currency) DO UPDATE").
		Set("workloads = EXCLUDED.workloads").Set("cpu_us = EXCLUDED.cpu_us").Set("node_hours = EXCLUDED.node_hours").
		Set("accelerators = EXCLUDED.accelerators").Set("energy_kwh = EXCLUDED.energy_kwh").Set("cost = EXCLUDED.cost").Exec(ctx)
	return err
}

// EachUsageDay implements compute.UsageStore.
func (UsageStore) EachUsageDay(ctx context.Context, tx *store.Tx, p project.Name, from, until time.Time, each func(compute.UsageDay)) error {
	var rows []dayRow
	q := tx.NewSelect().Model(&rows).Where("day > ? AND day < ?", store.At(from.Add(-24*time.Hour)), store.At(until))
	if p != "" {
		q = q.Where("project = ?", string(p))
	}
	if err := q.Scan(ctx); err != nil {
		return err
	}
	for _, r := range rows {
		d, err := r.day()
		if err != nil {
			return err
		}
		each(d)
	}
	return nil
}
