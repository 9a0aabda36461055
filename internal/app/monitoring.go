package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/usecase/automation"
	"github.com/falaj-ml/falaj/internal/usecase/watch"
)

// openAlerts opens what tells people of findings.
func (a *App) openAlerts(context.Context) error {
	level, err := sandbox.ParseLevel(a.cfg.Isolation)
	if err != nil {
		return err
	}
	commands := a.cfg.Alerts.Commands
	if commands != "" {
		if commands, err = filepath.Abs(commands); err != nil {
			return fault.Wrap(err, "alerts.commands")
		}
	}
	a.alerts = alert.New(alert.Config{
		DB: a.db, Store: alertsql.Store{}, Authz: a.authorizer, Sealer: a.keys, Guard: a.guard, Allow: a.cfg.Alerts.Hosts, Log: a.log,
		Commands: alert.Commands{Dir: commands, Worker: a.cfg.WorkerPath(), Level: level, Owner: a.groupsOwner},
	})
	a.group.Add(a.alerts.Loop().Service())
	a.webhooks = webhook.New(webhook.Config{DB: a.db, Store: webhooksql.Store{}, Authz: a.authorizer, Sealer: a.keys, Alerts: a.alerts})
	a.projects.Register(projectAlerts{a.alerts, a.webhooks})
	return nil
}

// openMonitoring watches deployments. The prediction log, the labels and the
// alerts are open before it.
func (a *App) openMonitoring(context.Context) error {
	a.monitoring = monitoring.New(monitoring.Config{
		DB: a.db, Store: monitoringsql.Store{}, Authz: a.authorizer, Journal: a.journal, Sealer: a.keys,
		Predictions: a.predictions, Labels: a.labels, Alerts: a.alerts,
		Deployments: a.watched(), Log: a.log,
		Sources: watch.Baselines{Deployments: a.serving.Deployments, Inference: a.serving.Inference, Registry: a.registry.Versions, Datasets: a.datasets, Features: a.features.OfflineReads},
		Classifiers: watch.Classifiers{
			Serving: a.serving.Deployments, Features: a.features.OnlineReads, Datasets: a.datasets, Registry: a.registry.Versions, Environments: a.environments, Submission: a.training.Submission, Jobs: a.training.Jobs,
			Artifacts: a.tracking.Artifacts, Authorizer: a.authorizer,
		},
		Keep: config.Kept(a.cfg.Retention.Windows),
	})
	a.group.Add(lifecycle.Service{Name: "monitoring", Stop: a.monitoring.Release})
	a.every(2*time.Second, "monitor", a.monitoring.RunOnce)
	deployed := event.Subscribe(a.db, event.Config{
		Name: "monitors of deployments", Names: []string{serving.EventDeployed, serving.EventDeleted}, Logger: a.log,
		HandleTx: func(ctx context.Context, tx *store.Tx, e event.Event) error {
			ctx = identity.With(ctx, identity.Loop("monitoring"))
			var c serving.Changed
			if err := e.Decode(&c); err != nil {
				return err
			}
			if e.Name == serving.EventDeleted {
				return a.monitoring.Forget(ctx, tx, e.Project, c.Name)
			}
			return a.monitoring.Ensure(ctx, tx, e.Project, c.Name)
		},
	})
	a.group.Add(deployed.Service())
	a.projects.Register(monitoring.Contents{Store: monitoringsql.Store{}})
	return nil
}

// openAutomation opens what changes deployments without a person, and takes the results of
// domain classifiers to the windows that asked for them.
func (a *App) openAutomation(context.Context) error {
	acts := automation.Service{DB: a.db, Deployments: a.serving.Deployments, Rollouts: a.serving.Rollouts, Actions: a.serving.AutoActions, Submission: a.training.Submission, Jobs: a.training.Jobs, Features: a.features.OfflineReads, Monitoring: a.monitoring, Log: a.log}
	for _, s := range acts.Subscriptions() {
		a.group.Add(s)
	}
	a.group.Add(event.Subscribe(a.db, event.Config{
		Name: "domain classifiers", Names: []string{training.JobFinished}, FromNow: true, Logger: a.log,
		Handle: watch.ClassifierEnded(a.monitoring),
	}).Service())
	return nil
}
