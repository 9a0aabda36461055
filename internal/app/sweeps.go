package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

func (a *App) openSweeps(context.Context) error {
	a.sweeps = sweep.New(sweep.Config{
		DB: a.db, Store: tuningsql.Sweeps{}, Studies: tuning.Studies{Store: tuningsql.Store{}, Now: time.Now},
		Authorizer: a.authorizer, Journal: a.journal, Origins: a.tracking, Jobs: sweepJobs{a.training.Submission, a.training.Jobs, a.training.Control, a.training.SourceArchives}, Runs: sweepRuns{a.db}, Costs: sweepCosts{a.compute.Costs, a.compute.Pools}, Log: a.log,
	})
	loop := &lifecycle.Loop{Name: "sweeps", Every: 300 * time.Millisecond, Run: a.sweeps.RunOnce, Logger: a.log}
	a.group.Add(lifecycle.Service{Name: "sweeps", Stop: a.sweeps.Release})
	a.group.Add(loop.Service())
	ended := event.Subscribe(a.db, event.Config{
		Name: "sweeps", Names: []string{training.JobFinished}, FromNow: true, Logger: a.log,
		Handle: func(context.Context, event.Event) error { loop.Wake(); return nil },
	})
	a.group.Add(ended.Service())
	return nil
}

// sweepJobs are the services of training that sweeps use.
type sweepJobs struct {
	*training.Submission
	*training.Jobs
	*training.Control
	*training.SourceArchives
}

// driven reports whether a study is a sweep's.
func driven(ctx context.Context, tx *store.Tx, study tuning.Study) (bool, error) {
	_, err := tuningsql.Sweeps{}.Sweep(ctx, tx, study.Project, study.Name)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// sweepRuns reads what the jobs of sweeps log. It is read as often as they log, so not by
// the service, which records each read of what is classified: a sweep is as classified as
// its jobs.
type sweepRuns struct{ db *store.DB }

func (r sweepRuns) Stamp(ctx context.Context, _ project.Name, run, metric string) (stamp string, err error) {
	err = r.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		// The newest point tells of steps that are logged again, the latest one of a program
		// whose clock is behind that of the attempt before it.
		latest, err := trackingsql.Store{}.LatestMetrics(ctx, tx, tracking.RunID(run), []string{metric})
		if err != nil {
			return err
		}
		newest, err := trackingsql.Store{}.PointSince(ctx, tx, tracking.RunID(run), metric, 0, true)
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

func (r sweepRuns) Points(ctx context.Context, p project.Name, job training.JobID, run, metric string, limit int) (points []sweep.Point, n int, err error) {
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

func (r sweepRuns) After(ctx context.Context, _ project.Name, run, metric string, n, limit int) (points []sweep.Point, next int, err error) {
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
func (r sweepRuns) attempts(ctx context.Context, p project.Name, job training.JobID, run string) (all []training.Attempt, err error) {
	err = r.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if job == "" {
			of, err := trackingsql.Store{}.Run(ctx, tx, p, tracking.RunID(run))
			if fault.Is(err, fault.NotFound) || err == nil && of.Job == "" {
				return nil
			}
			if err != nil {
				return err
			}
			job = training.JobID(of.Job)
		}
		all, err = trainingsql.Store{}.Attempts(ctx, tx, job)
		return err
	})
	return all, err
}

// history adds what a run logged of a metric from a value and a time on, of each step the
// last, and gives how many values were read.
func (r sweepRuns) history(ctx context.Context, run, metric string, from int, since tracking.Millis, into map[int64]float64) (read int, err error) {
	for {
		var part []tracking.Metric
		err := r.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			part, err = trackingsql.Store{}.History(ctx, tx, tracking.RunID(run), metric, from+read, tracking.MaxHistory)
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

type sweepCosts struct {
	costs *compute.Costs
	pools *compute.Pools
}

func (c sweepCosts) Spent(ctx context.Context, p project.Name, jobs []training.JobID) (map[training.JobID]float64, error) {
	labels := make([]string, len(jobs))
	for i, j := range jobs {
		labels[i] = string(j)
	}
	spent, err := c.costs.Spent(ctx, p, labels)
	out := make(map[training.JobID]float64, len(spent))
	for label, cost := range spent {
		out[training.JobID(label)] = cost
	}
	return out, err
}

func (c sweepCosts) Free(ctx context.Context, job training.Job) ([]string, error) {
	pools, err := c.pools.Free(ctx, job.Spec.Pools, job.Spec.Isolation, job.Residency)
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = string(p)
	}
	return names, err
}
