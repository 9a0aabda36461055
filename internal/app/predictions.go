package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/usecase/watch"
)

// openPredictions opens the log of predictions, which serving writes to.
func (a *App) openPredictions(context.Context) error {
	retention, _ := resource.ParseDuration(a.cfg.Predictions.Retention) // validated
	if retention == 0 {
		retention = -1 // for ever
	}
	var err error
	a.predictions, err = prediction.Open(prediction.Config{
		Dir: filepath.Join(a.cfg.Data, "predictions"), Keys: a.keys, Retention: retention,
		MaxBytes: config.Bytes(a.cfg.Predictions.MaxBytes), Erased: a.erasure.Entities, Logger: a.log,
	})
	if err != nil {
		return fault.Wrap(err, "prediction log")
	}
	a.onClose(a.predictions.Close)
	a.group.Add(a.predictions.Service())
	return nil
}

// openLabels opens what joins labels to predictions and judges rollouts by them.
func (a *App) openLabels(context.Context) error {
	keep, _ := resource.ParseDuration(a.cfg.Predictions.Retention) // validated; 0 is for ever
	a.labels = label.New(label.Config{
		DB: a.db, Store: labelsql.Store{}, Authorizer: a.authorizer, Sealer: a.keys, Predictions: a.predictions, Deployments: a.watched(), Keep: keep, Logger: a.log,
	})
	a.verifications = verification.New(verification.Config{
		Authorizer: a.authorizer, Predictions: a.predictions, Features: a.features.Verification, Deployments: a.watched(),
	})
	judge := label.NewJudge(a.labels, watch.Rollouts{Serving: a.serving.Rollouts})
	a.every(5*time.Second, "labels that wait", func(ctx context.Context) error {
		return a.labels.RunOnce(identity.With(ctx, identity.Loop("labels")))
	})
	a.every(2*time.Second, "rollout judge", func(ctx context.Context) error {
		return judge.RunOnce(identity.With(ctx, identity.Loop("rollout judge")))
	})
	a.group.Add(event.Subscribe(a.db, event.Config{
		Name: "predictions of deleted deployments", Names: []string{serving.EventDeleted}, Logger: a.log, Handle: a.forgetPredictions,
	}).Service())
	return nil
}

// watched are the deployments, for monitors, labels and verification.
func (a *App) watched() watch.Deployments {
	return watch.Deployments{Serving: a.serving.Deployments, Features: a.features.OnlineReads}
}

// forgetPredictions removes what is kept of a deployment that was deleted, unless
// there is one of its name again.
func (a *App) forgetPredictions(ctx context.Context, e event.Event) error {
	var gone serving.Changed
	if err := e.Decode(&gone); err != nil {
		return err
	}
	ctx = identity.With(ctx, identity.Loop("predictions"))
	if _, err := a.watched().Facts(ctx, e.Project, gone.Name); !fault.Is(err, fault.NotFound) {
		return err
	}
	if err := a.predictions.Drop(e.Project, gone.Name); err != nil {
		return err
	}
	return a.labels.Forget(ctx, e.Project, gone.Name)
}
