package compute

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Records removes the records of ended workloads. Housekeeping calls it for their owners.
type Records struct{ *core }

// UsageDay is what workloads whose records are gone used on one day, in UTC.
type UsageDay struct {
	DayKey
	Workloads    int // that ended on the day
	CPU          time.Duration
	NodeHours    float64
	Accelerators map[string]float64
	EnergyKWh    float64
	Cost         float64
}

// DayKey is what reports tell apart of a day. There is one sum for each.
type DayKey struct {
	Project  project.Name
	Day      time.Time
	Kind     Kind
	User     string
	Queue    string
	Model    string
	Pool     PoolName
	Currency string
}

// usage is the day as reports count it: evenly used from midnight to midnight.
func (d *UsageDay) usage() Usage {
	return Usage{
		Project: d.Project, Kind: d.Kind, User: d.User, Queue: d.Queue, Model: d.Model, Pool: d.Pool, Currency: d.Currency,
		Started: d.Day, Ended: d.Day.Add(day), Wall: day, Sum: true, Workloads: d.Workloads,
		CPU: d.CPU, NodeHours: d.NodeHours, Accelerators: d.Accelerators, EnergyKWh: d.EnergyKWh, Cost: d.Cost,
	}
}

// add puts a part of what a workload used on the day.
func (d *UsageDay) add(u Usage) {
	d.CPU += u.CPU
	d.NodeHours += u.NodeHours
	d.EnergyKWh += u.EnergyKWh
	d.Cost += u.Cost
	for name, h := range u.Accelerators {
		if d.Accelerators == nil {
			d.Accelerators = map[string]float64{}
		}
		d.Accelerators[name] += h
	}
}

// Days are sums of what was used by day, each from midnight to midnight. A workload counts
// on the day on which it ended.
func Days(used []Usage) map[DayKey]*UsageDay {
	days := map[DayKey]*UsageDay{}
	at := func(u Usage, t time.Time) *UsageDay {
		k := DayKey{u.Project, t.UTC().Truncate(day), u.Kind, u.User, u.Queue, u.Model, u.Pool, u.Currency}
		if days[k] == nil {
			days[k] = &UsageDay{DayKey: k}
		}
		return days[k]
	}
	for _, u := range used {
		at(u, u.last()).Workloads++
		for part := range u.parts("day") {
			at(u, part.Started).add(part)
		}
	}
	return days
}

// last is an instant on the day on which it ended: what ended at midnight ended on the day before.
func (u Usage) last() time.Time {
	if u.Ended.After(u.Started) {
		return u.Ended.Add(-1)
	}
	return u.Started
}

// ForgetIn removes the records of settled workloads in the caller's transaction, and adds
// up by day what they used. What an engine still holds stays, and so does what has not
// ended. It is for their owners, once a day has passed since the end: a sum is of a whole day.
func (s *Records) ForgetIn(ctx context.Context, tx *store.Tx, ids []WorkloadID) error {
	if err := s.TrimIn(ctx, tx, ids); err != nil {
		return err
	}
	used, err := s.usageStore.TakeUsage(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, d := range Days(used) {
		if err := s.usageStore.AddUsageDay(ctx, tx, *d); err != nil {
			return err
		}
	}
	return nil
}

// TrimIn is ForgetIn that leaves what was used by workload.
func (s *Records) TrimIn(ctx context.Context, tx *store.Tx, ids []WorkloadID) error {
	return s.workloadStore.DeleteWorkloads(ctx, tx, ids)
}

// HeldIn gives those of workloads that ForgetIn and TrimIn leave: an engine still holds
// something of them, or their end is not settled.
func (s *Records) HeldIn(ctx context.Context, tx *store.Tx, ids []WorkloadID) (held []WorkloadID, err error) {
	ws, err := s.workloadStore.Workloads(ctx, tx, ids)
	for _, w := range ws {
		if !w.Settled || w.Handle != "" {
			held = append(held, w.ID)
		}
	}
	return held, err
}

var (
	// recordsBatch bounds the records of a transaction: each has sums of several days to add to.
	recordsBatch = 50
	// recordsBatches bounds the batches of a pass, for which the budgets wait to be looked at:
	// 720,000 records a day. What is left over goes with the next pass.
	recordsBatches = 100
)

// forgetRecords removes the records of builds, queries and replicas that ended before the
// retention of records, some batches of them.
func (s *Scheduling) forgetRecords(ctx context.Context) error {
	if s.cfg.Records == 0 {
		return nil
	}
	before := s.now().Add(-s.cfg.Records)
	for range recordsBatches {
		var ids []WorkloadID
		err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			err := s.fence(ctx, tx)
			if err == nil {
				ids, err = s.workloadStore.Over(ctx, tx, before, recordsBatch)
			}
			if err != nil || len(ids) == 0 {
				return err
			}
			return s.records.ForgetIn(ctx, tx, ids)
		})
		if err != nil || len(ids) < recordsBatch {
			return err
		}
	}
	return nil
}
