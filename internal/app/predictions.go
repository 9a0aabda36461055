package app

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
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
		MaxBytes: bytes(a.cfg.Predictions.MaxBytes), Erased: a.erasedEntities, Logger: a.log,
	})
	if err != nil {
		return fault.Wrap(err, "prediction log")
	}
	a.onClose(a.predictions.Close)
	a.group.Add(a.predictions.Service())
	return nil
}

// erasedEntities gives for each entity of which persons were erased from a project who
// they all are.
func (a *App) erasedEntities(ctx context.Context, p string) ([]prediction.Person, error) {
	if a.erasures == nil { // while the server opens
		return nil, nil
	}
	ctx = identity.With(ctx, identity.Loop("erasure"))
	erased, err := pseudonyms{a}.Erased(ctx, project.Name(p))
	if err != nil {
		return nil, err
	}
	var all []prediction.Person
	for entity, persons := range erased {
		use, err := a.features.Use(ctx, project.Name(p), entity)
		if fault.Is(err, fault.NotFound) {
			continue // nothing is called like its keys
		}
		if err != nil {
			return nil, err
		}
		all = append(all, prediction.Person{Project: p, Keys: use.Keys, Is: func(values []string) bool {
			return persons[a.erasures.Pseudonym(p, entity, values)] != ""
		}})
	}
	return all, nil
}

// openLabels opens what joins labels to predictions and judges rollouts by them.
func (a *App) openLabels(context.Context) error {
	keep, _ := resource.ParseDuration(a.cfg.Predictions.Retention) // validated; 0 is for ever
	a.labels = label.New(label.Config{
		DB: a.db, Store: labelsql.Store{}, Authorizer: a.authorizer, Sealer: a.keys, Predictions: a.predictions, Deployments: labelled{a.db, a.features}, Keep: keep, Logger: a.log,
	})
	a.verifications = verification.New(verification.Config{
		Authorizer: a.authorizer, Predictions: a.predictions, Features: a.features, Deployments: labelled{a.db, a.features},
	})
	judge := label.NewJudge(a.labels, trials{a.serving})
	settler := &lifecycle.Loop{Name: "labels that wait", Every: 5 * time.Second, Logger: a.log, Run: func(ctx context.Context) error {
		return a.labels.RunOnce(identity.With(ctx, identity.Loop("labels")))
	}}
	judging := &lifecycle.Loop{Name: "rollout judge", Every: 2 * time.Second, Logger: a.log, Run: func(ctx context.Context) error {
		return judge.RunOnce(identity.With(ctx, identity.Loop("rollout judge")))
	}}
	a.group.Add(settler.Service())
	a.group.Add(judging.Service())
	a.group.Add(event.Subscribe(a.db, event.Config{
		Name: "predictions of deleted deployments", Names: []string{serving.EventDeleted}, Logger: a.log, Handle: a.forgetPredictions,
	}).Service())
	return nil
}

// forgetPredictions removes what is kept of a deployment that was deleted, unless
// there is one of its name again.
func (a *App) forgetPredictions(ctx context.Context, e event.Event) error {
	var gone serving.Changed
	if err := e.Decode(&gone); err != nil {
		return err
	}
	ctx = identity.With(ctx, identity.Loop("predictions"))
	if _, err := (labelled{a.db, a.features}).Facts(ctx, e.Project, gone.Name); !fault.Is(err, fault.NotFound) {
		return err
	}
	if err := a.predictions.Drop(e.Project, gone.Name); err != nil {
		return err
	}
	return a.labels.Forget(ctx, e.Project, gone.Name)
}

// labelled says what a deployment is to those who label its predictions; who may
// label need not be allowed to see it.
type labelled struct {
	db       *store.DB
	features *feature.Service
}

func (l labelled) Facts(ctx context.Context, project, deployment string) (label.Facts, error) {
	d, err := l.one(ctx, project, deployment)
	if err != nil {
		return label.Facts{}, err
	}
	f := label.Facts{Owner: prediction.OwnerOf(string(d.ID))}
	f.Residency, f.Classification, err = labelOf(ctx, l.features, d)
	return f, err
}

func (l labelled) one(ctx context.Context, project, deployment string) (d serving.Deployment, err error) {
	err = l.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = servingsql.Store{}.One(ctx, tx, project, deployment)
		return err
	})
	return d, err
}

// Served is what a deployment gives its models, as features that can be recomputed.
func (l labelled) Served(ctx context.Context, project, deployment string) (verification.Served, error) {
	d, err := l.one(ctx, project, deployment)
	if err != nil {
		return verification.Served{}, err
	}
	spec := d.Spec.Features
	if spec == nil || d.FeatureSet == nil {
		return verification.Served{}, fault.New(fault.Invalid, "deployment %q has no online features", deployment).
			WithHint("Set spec.features; request-time values cannot be recomputed.")
	}
	out := verification.Served{Service: d.FeatureSet.Ref, Owner: prediction.OwnerOf(string(d.ID))}
	for _, name := range spec.Columns {
		view, _, ok := strings.Cut(name, ":")
		if !ok {
			continue // the request brings it
		}
		column := feature.AnswerColumn{Feature: name}
		value, there := spec.Defaults[name]
		if !there {
			value, there = spec.Defaults[view+":*"]
		}
		if there {
			x := float64(value)
			column.Default = &x
		}
		if age := spec.MaxAge[view]; age != "" {
			if column.MaxAge, err = resource.ParseDuration(age); err != nil {
				return out, fault.Wrap(err, "max_age of %s", view)
			}
		}
		out.Columns = append(out.Columns, column)
	}
	return out, nil
}

// trials are serving's rollouts as the judge sees them.
type trials struct{ serving *serving.Service }

func (t trials) Running(ctx context.Context) ([]label.Rollout, error) {
	all, err := t.serving.Running(ctx)
	out := make([]label.Rollout, len(all))
	for i, r := range all {
		out[i] = label.Rollout{
			ID: string(r.ID), Project: r.Project, Deployment: r.Deployment, Stable: r.Stable, Candidate: r.Candidate,
			Weight: r.Weight, Spec: r.Spec, Started: r.Started, StartedAt: r.StartedAt,
		}
	}
	return out, err
}

func (t trials) Began(ctx context.Context, project, rollout string, at time.Time) error {
	return t.serving.Began(ctx, project, serving.RolloutID(rollout), at)
}

// predictionGauges say how the prediction log goes.
type predictionGauges struct{ log *prediction.Log }

var (
	predictionsKept = prometheus.NewDesc("falaj_predictions_logged_total", "Number of predictions written to the log since the server started.", nil, nil)
	predictionsLost = prometheus.NewDesc("falaj_predictions_lost_total", "Number of predictions that could not be written to the log since the server started.", nil, nil)
)

func (g predictionGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- predictionsKept
	ch <- predictionsLost
}

func (g predictionGauges) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(predictionsKept, prometheus.CounterValue, float64(g.log.Appended()))
	ch <- prometheus.MustNewConstMetric(predictionsLost, prometheus.CounterValue, float64(g.log.Lost()))
}
