// Package sweeps is what sweeps and studies ask of other domains: what their jobs logged, what they
// cost, and that they ended.
package sweeps

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

// Runs reads what the jobs of sweeps log. It is read as often as they log, so not by
// the service, which records each read of what is classified: a sweep is as classified as
// its jobs.
type Runs struct {
	DB      *store.DB
	Metrics interface {
		Run(ctx context.Context, tx *store.Tx, p project.Name, run tracking.RunID) (tracking.Run, error)
		LatestMetrics(ctx context.Context, tx *store.Tx, run tracking.RunID, keys []string) ([]tracking.Metric, error)
		PointSince(ctx context.Context, tx *store.Tx, run tracking.RunID, key string, since tracking.Millis, newest bool) (*tracking.Metric, error)
		History(ctx context.Context, tx *store.Tx, run tracking.RunID, key string, offset, limit int) ([]tracking.Metric, error)
	}
	Attempts interface {
		Attempts(ctx context.Context, tx *store.Tx, job training.JobID) ([]training.Attempt, error)
	}
}

// Stamp implements sweep.Runs.
func (r Runs) Stamp(ctx context.Context, _ project.Name, run, metric string) (stamp string, err error) {
	err = r.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		// The newest point tells of steps that are logged again, the latest one of a program
		// whose clock is behind that of the attempt before it.
		latest, err := r.Metrics.LatestMetrics(ctx, tx, tracking.RunID(run), []string{metric})
		if err != nil {
			return err
		}
		newest, err := r.Metrics.PointSince(ctx, tx, tracking.RunID(run), metric, 0, true)
		if err != nil || newest == nil {
			return err
		}
		var b strings.Builder // anew in each try of the transaction
		for _, m := range append(latest, *newest) {
			_, _ = fmt.Fprintln(&b, m.Attempt, m.Step, m.At, m.Value)
		}
		stamp = b.String()
		return nil
	})
	return stamp, err
}

// Points implements sweep.Runs.
func (r Runs) Points(ctx context.Context, p project.Name, job training.JobID, run, metric string, limit int) (points []sweep.Point, n int, err error) {
	attempts, err := r.attempts(ctx, p, job, run)
	if err != nil {
		return nil, 0, err
	}
	runs, since := []string{run}, tracking.Millis(0)
	if job != "" {
		runs = nil
		for _, a := range attempts { // in their order; they share a run, but where it was deleted
			if a.Run != "" && !slices.Contains(runs, a.Run) {
				runs = append(runs, a.Run)
			}
		}
	} else if n := len(attempts); n > 1 { // the newest alone, whose run has those of others
		since = tracking.Millis(attempts[n-1].Made.UnixMilli())
	}
	at := map[int64]float64{}
	for _, one := range runs {
		read, err := r.history(ctx, one, metric, 0, since, at)
		if err != nil {
			return nil, 0, err
		}
		if one == run {
			n = read
		}
	}
	return sorted(at, limit), n, nil
}

// After implements sweep.Runs.
func (r Runs) After(ctx context.Context, _ project.Name, run, metric string, n, limit int) (points []sweep.Point, next int, err error) {
	at := map[int64]float64{}
	read, err := r.history(ctx, run, metric, n, 0, at)
	return sorted(at, limit), n + read, err
}

func sorted(at map[int64]float64, limit int) (points []sweep.Point) {
	steps := slices.Sorted(maps.Keys(at))
	for _, step := range steps[max(len(steps)-limit, 0):] {
		points = append(points, sweep.Point{Step: step, Value: at[step]})
	}
	return points
}

// attempts are those of a job, or of the job that a run is of.
func (r Runs) attempts(ctx context.Context, p project.Name, job training.JobID, run string) (all []training.Attempt, err error) {
	err = r.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if job == "" {
			of, err := r.Metrics.Run(ctx, tx, p, tracking.RunID(run))
			if fault.Is(err, fault.NotFound) || err == nil && of.Job == "" {
				return nil
			}
			if err != nil {
				return err
			}
			job = training.JobID(of.Job)
		}
		all, err = r.Attempts.Attempts(ctx, tx, job)
		return err
	})
	return all, err
}

// history adds what a run logged of a metric from a value and a time on, of each step the
// last, and gives how many values were read.
func (r Runs) history(ctx context.Context, run, metric string, from int, since tracking.Millis, into map[int64]float64) (read int, err error) {
	for {
		var part []tracking.Metric
		err := r.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			part, err = r.Metrics.History(ctx, tx, tracking.RunID(run), metric, from+read, tracking.MaxHistory)
			return err
		})
		if err != nil {
			return read, err
		}
		for _, m := range part { // by time
			if m.At >= since {
				into[m.Step] = m.Value
			}
		}
		if read += len(part); len(part) < tracking.MaxHistory {
			return read, nil
		}
	}
}

// JobEnded handles the end of jobs: the trials of Optuna studies that one has left running have
// failed, and wake has the loop of sweeps look at its own.
func JobEnded(studies *tuning.Service, wake func()) func(ctx context.Context, tx *store.Tx, e event.Event) error {
	return func(ctx context.Context, tx *store.Tx, e event.Event) error {
		defer wake()
		var j training.Event
		if err := e.Decode(&j); err != nil {
			return err
		}
		return studies.JobEnded(identity.With(ctx, identity.Loop("sweeps")), tx, j.Project, string(j.Job))
	}
}

// Costs are what the jobs of sweeps cost. It implements sweep.Costs.
type Costs struct {
	Costs *compute.Costs
	Pools *compute.Pools
}

// Spent implements sweep.Costs.
func (c Costs) Spent(ctx context.Context, p project.Name, jobs []training.JobID) (map[training.JobID]float64, error) {
	labels := make([]string, len(jobs))
	for i, j := range jobs {
		labels[i] = string(j)
	}
	spent, err := c.Costs.Spent(ctx, p, labels)
	out := make(map[training.JobID]float64, len(spent))
	for label, cost := range spent {
		out[training.JobID(label)] = cost
	}
	return out, err
}

// Free implements sweep.Costs.
func (c Costs) Free(ctx context.Context, job training.Job) ([]string, error) {
	pools, err := c.Pools.Free(ctx, job.Spec.Pools, job.Spec.Isolation, job.Residency)
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = string(p)
	}
	return names, err
}
