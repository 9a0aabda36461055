package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/governance/secrets/secretssql"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// contents say what a project still holds, so that it is not deleted with it.
var contents = []tenancy.Contents{
	dataset.Contents{Store: datasetsql.Store{}},
	feature.Contents{Store: featuresql.Store{}},
	environment.Contents{Store: environmentsql.Store{}},
	training.Contents{Store: trainingsql.Store{}},
	tracking.Contents{Store: trackingsql.Store{}},
	tuning.Contents{Store: tuningsql.Store{}},
	registry.Contents{Store: registrysql.Store{}},
	ingestion.Contents{Store: ingestionsql.Store{}},
	secrets.Contents{Store: secretssql.Store{}},
	gateway.Contents{Store: gatewaysql.Store{}},
	serving.Contents{Store: servingsql.Store{}},
}

// projectKeys are destroyed with their project: what the files and backups still
// hold of it can be read by nobody.
type projectKeys struct{ keys *keys.Service }

// Contents implements tenancy.Contents.
func (k projectKeys) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	if err := k.keys.DestroyTx(ctx, tx, string(p), ""); !fault.Is(err, fault.NotFound) {
		return "", err
	}
	return "", nil // it never had any
}

// citations are where versions of datasets are named, so that they do not expire.
var citations = []dataset.Citations{featuresql.Store{}, ingestionsql.Store{}, monitoringsql.Store{}, registrysql.Store{}, trackingsql.Store{}, trainingsql.Store{}}

// housekeeping adds the loops that nobody waits for, and the clock.
func (a *App) housekeeping(ctx context.Context) error {
	daily := &lifecycle.Loop{Name: "housekeeping", Every: 24 * time.Hour, Timeout: time.Hour, Logger: a.log, Run: func(ctx context.Context) error {
		ctx = identity.With(ctx, identity.Loop("housekeeping"))
		trimmed := errors.Join(
			event.Trim(ctx, a.db, time.Now().Add(-config.Kept(a.cfg.Retention.Events))),
			a.training.Retention.Forget(ctx), // first: what its jobs named may go then
			forgetHistory(ctx, a.db, a.cfg, time.Now),
			a.archiveAudit(ctx), // it has a pass of its own
		)
		pruning := lifecycle.NewPass(time.Now) // of runs and source archives, of all projects
		return errors.Join(trimmed, eachProject(ctx, a.projects.List, func(ctx context.Context, p project.Name) error {
			_, runs := a.tracking.Maintenance.Sweep(ctx, p, blob.Unrecorded)
			_, models := a.registry.Maintenance.Sweep(ctx, p)
			_, versions := a.datasets.Maintenance.Expire(ctx, p)
			_, tables := a.datasets.Tables.Sweep(ctx, p)
			_, sources := a.training.SourceArchives.Sweep(ctx, p, pruning)
			return errors.Join(a.pruneRuns(ctx, p, pruning), sources, runs, models, versions, tables, a.checkpoints.CollectProject(ctx, p))
		}))
	}}
	a.group.Add(daily.Service())
	a.group.Add((&lifecycle.Loop{Name: "dataset-freshness", Every: time.Minute, Timeout: time.Minute, Logger: a.log, Run: func(ctx context.Context) error {
		ctx = identity.With(ctx, identity.Loop("dataset-freshness"))
		return eachProject(ctx, a.projects.List, func(ctx context.Context, p project.Name) error {
			_, err := a.datasets.Maintenance.PublishStale(ctx, p)
			return err
		})
	}}).Service())
	return a.watchClock(ctx)
}

// pruneRuns removes for ever what was deleted long ago. When the pass is over, each further
// project has one call, which is short, so that none waits for the others for ever.
func (a *App) pruneRuns(ctx context.Context, p project.Name, pass lifecycle.Pass) error {
	older := config.Kept(a.cfg.Retention.DeletedRuns)
	if older == 0 {
		return nil
	}
	return pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		out, err := a.tracking.Maintenance.Prune(ctx, p, older, false)
		return out.More, err
	})
}

// archiveAudit moves old audit entries out of the database into the object store, and deletes
// objects of no use, also where no entries are archived any more.
func (a *App) archiveAudit(ctx context.Context) error {
	var before time.Time
	if keep := config.Kept(a.cfg.Retention.Audit); keep > 0 {
		before = time.Now().Add(-keep)
	}
	_, err := a.sequencer.Archive(ctx, before, lifecycle.NewPass(time.Now))
	return err
}

// watchClock tells when the wall clock goes back.
func (a *App) watchClock(ctx context.Context) error {
	newest, _, err := a.auditLog.List(identity.With(ctx, identity.Loop("clock")), audit.Filter{}, 1, "")
	if err != nil {
		return err
	}
	clock := &lifecycle.Clock{Back: func(by time.Duration) {
		a.log.ErrorContext(ctx, "the wall clock went back: times of new records are not to be relied on; tokens stay expired", slog.Duration("by", by))
	}}
	if len(newest) > 0 {
		clock.Last = newest[0].Time
	}
	a.group.Add(clock.Service())
	return nil
}

// eachProject acts in every project, a page of them at a time. One in which it
// fails holds up no other; all errors come back.
func eachProject(ctx context.Context, list func(ctx context.Context, limit int, token string) ([]project.Project, string, error), act func(context.Context, project.Name) error) error {
	var failed error
	for token := ""; ; {
		projects, next, err := list(ctx, 100, token)
		if err != nil {
			return errors.Join(failed, err)
		}
		for _, p := range projects {
			if err := act(ctx, p.Name); err != nil {
				failed = errors.Join(failed, fault.Wrap(err, "project %s", p.Name))
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(failed, err)
			}
		}
		if token = next; token == "" {
			return failed
		}
	}
}

// AcceptRollback accepts that the audit log and the witness of its
// checkpoints disagree, with a reason that becomes part of the log. It reports
// whether there was anything to accept. The server must not be running.
func AcceptRollback(ctx context.Context, cfg config.Config, w World, reason string) (accepted bool, err error) {
	a := newApp(cfg, w)
	a.upgrading = noUpgrade
	defer func() { _ = a.Stop(ctx) }()
	if a.lock, err = lifecycle.LockDir(cfg.Data); err != nil {
		return false, err
	}
	if err := backup.Unfinished(cfg.Data); err != nil {
		return false, err
	}
	ctx = identity.With(ctx, identity.Loop("operator"))
	if err := a.openGovernance(ctx); err != nil {
		return false, err
	}
	return a.sequencer.Accept(ctx, reason)
}
