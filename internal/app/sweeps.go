package app

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
	"github.com/falaj-ml/falaj/internal/usecase/sweeps"
)

func (a *App) openSweeps(context.Context) error {
	a.sweeps = sweep.New(sweep.Config{
		DB: a.db, Store: tuningsql.Sweeps{}, Studies: tuning.Studies{Store: tuningsql.Store{}, Now: time.Now},
		Authorizer: a.authorizer, Journal: a.journal, Origins: a.tracking.Origins, Jobs: sweepJobs{a.training.Submission, a.training.Jobs, a.training.Control, a.training.SourceArchives}, Runs: sweeps.Runs{DB: a.db, Metrics: trackingsql.Store{}, Attempts: trainingsql.Store{}}, Costs: sweeps.Costs{Costs: a.compute.Costs, Pools: a.compute.Pools}, Log: a.log,
	})
	a.group.Add(lifecycle.Service{Name: "sweeps", Stop: a.sweeps.Release})
	loop := a.every(300*time.Millisecond, "sweeps", a.sweeps.RunOnce)
	ended := event.Subscribe(a.db, event.Config{
		Name: "sweeps", Names: []string{training.JobFinished}, FromNow: true, Logger: a.log,
		HandleTx: sweeps.JobEnded(a.tuning, loop.Wake),
	})
	a.group.Add(ended.Service())
	return nil
}

// sweepJobs are the services of training that sweeps use.
type sweepJobs struct {
	*training.Submission
	*training.Jobs
	*training.Control
	archives *source.Archives
}

func (j sweepJobs) CheckSource(ctx context.Context, p project.Name, digest string) error {
	return j.archives.Check(ctx, p, digest)
}

// driven reports whether a study is a sweep's.
func driven(ctx context.Context, tx *store.Tx, study tuning.Study) (bool, error) {
	_, err := tuningsql.Sweeps{}.Sweep(ctx, tx, study.Project, study.Name)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}
