package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
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
		DB: a.db, Store: alertsql.Store{}, Authz: a.authority, Sealer: a.keys, Guard: a.guard, Allow: a.cfg.Alerts.Hosts, Log: a.log,
		Commands: alert.Commands{Dir: commands, Worker: a.cfg.workerPath(), Level: level},
	})
	a.group.Add(a.alerts.Loop().Service())
	a.webhooks = webhook.New(webhook.Config{DB: a.db, Store: webhooksql.Store{}, Authz: a.authority, Sealer: a.keys, Alerts: a.alerts})
	a.projects.Register(projectAlerts{a.alerts, a.webhooks})
	return nil
}

// openMonitoring watches deployments. The prediction log, the labels and the
// alerts are open before it.
func (a *App) openMonitoring(context.Context) error {
	a.monitoring = monitoring.New(monitoring.Config{
		DB: a.db, Store: monitoringsql.Store{}, Authz: a.authority, Journal: a.journal, Sealer: a.keys,
		Predictions: a.predictions, Labels: a.labels, Alerts: a.alerts,
		Deployments: watchedDeployments{labelled{a.db, a.features}}, Sources: &baselineSources{App: a}, Classifiers: classifiers{a}, Log: a.log,
	})
	loop := &lifecycle.Loop{Name: "monitor", Every: 2 * time.Second, Run: a.monitoring.RunOnce, Logger: a.log}
	a.group.Add(lifecycle.Service{Name: "monitoring", Stop: a.monitoring.Release})
	a.group.Add(loop.Service())
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
	a.projects.Register(holds("monitors", func(ctx context.Context, tx *store.Tx, p project.Name) (int, error) {
		ms, err := monitoringsql.Store{}.List(ctx, tx, string(p), "", 1<<20)
		// Those that came with deployments go after them.
		return len(slices.DeleteFunc(ms, func(m monitoring.Monitor) bool { return m.Automatic })), err
	}))
	return nil
}

// watchedDeployments answers monitoring's questions about deployments.
type watchedDeployments struct{ labelled }

func (d watchedDeployments) Watched(ctx context.Context, p, name string) (monitoring.Watched, error) {
	one, err := d.one(ctx, p, name)
	if err != nil {
		return monitoring.Watched{}, err
	}
	w := monitoring.Watched{ID: string(one.ID), Revision: one.Revision, Model: one.Model, Version: one.Version}
	w.Residency, w.Classification, err = labelOf(ctx, d.features, one)
	return w, err
}

// baselineSources hands monitoring what model versions were trained on.
type baselineSources struct{ *App }

// Training finds the data of the run that made the version: the training set that
// was joined from features, or else its only dataset.
func (b *baselineSources) Training(ctx context.Context, p, deployment string, version int64) (monitoring.Origin, error) {
	d, err := labelled{b.db, b.features}.one(ctx, p, deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	v, err := b.registry.Version(ctx, project.Name(p), d.Model, strconv.FormatInt(version, 10))
	if err != nil {
		return monitoring.Origin{}, err
	}
	for _, ref := range v.Datasets {
		set, err := b.features.TrainingSet(ctx, project.Name(p), ref)
		if fault.Is(err, fault.NotFound) {
			continue // not a training set
		}
		if err != nil {
			return monitoring.Origin{}, err
		}
		return b.origin(ctx, p, d, ref, &set)
	}
	if len(v.Datasets) == 1 {
		return b.origin(ctx, p, d, v.Datasets[0], nil)
	}
	return monitoring.Origin{}, fault.New(fault.NotFound, "%s was trained on %d datasets, none of which is a training set", v, len(v.Datasets)).
		WithHint("Name the baseline in the Monitor's spec.baseline, as dataset:NAME@VERSION.")
}

// Dataset is the dataset that a manifest names.
func (b *baselineSources) Dataset(ctx context.Context, p, deployment string, _ int64, ref string) (monitoring.Origin, error) {
	d, err := labelled{b.db, b.features}.one(ctx, p, deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	set, err := b.features.TrainingSet(ctx, project.Name(p), ref)
	if fault.Is(err, fault.NotFound) {
		return b.origin(ctx, p, d, ref, nil)
	}
	if err != nil {
		return monitoring.Origin{}, err
	}
	return b.origin(ctx, p, d, ref, &set)
}

// origin says which columns of a dataset version are which of the model's inputs.
func (b *baselineSources) origin(ctx context.Context, p string, d serving.Deployment, ref string, set *feature.TrainingSet) (monitoring.Origin, error) {
	v, err := featureData{b.datasets}.Resolve(ctx, project.Name(p), ref)
	if err != nil {
		return monitoring.Origin{}, err
	}
	o := monitoring.Origin{Ref: v.Ref, Digest: v.Digest, Residency: v.Residency, Classification: string(v.Classification)}
	if d.Spec.Features != nil {
		o.Inputs, o.Scored = inputsOf(d.Spec.Features, v.Schema, set)
		o.Declared = true
	} else {
		for _, f := range v.Schema.Fields() {
			if set == nil || f.Name != set.Timestamp && !slices.Contains(set.Labels, f.Name) {
				o.Inputs = append(o.Inputs, monitoring.OriginInput{Name: f.Name, Column: f.Name})
			}
		}
	}
	definition, err := json.Marshal([]any{o.Inputs, d.Spec.Prediction, d.Model})
	if err != nil {
		return monitoring.Origin{}, err
	}
	sum := sha256.Sum256(definition)
	o.Definition = hex.EncodeToString(sum[:8])
	return o, nil
}

// inputsOf finds the column of each of the deployment's columns; all says that
// there is one for each.
func inputsOf(spec *serving.FeaturesSpec, schema *arrow.Schema, set *feature.TrainingSet) (inputs []monitoring.OriginInput, all bool) {
	all = true
	for _, name := range spec.Columns {
		column := name
		if view, feat, ok := strings.Cut(name, ":"); ok {
			column = view + "__" + feat
			if set != nil {
				column = columnOf(set, view, feat, column)
			}
		}
		if !schema.HasField(column) {
			all = false
			continue
		}
		inputs = append(inputs, monitoring.OriginInput{Name: name, Column: column, Otherwise: defaultOf(spec, name)})
	}
	return inputs, all
}

// columnOf is the column of the training set that has a feature.
func columnOf(set *feature.TrainingSet, view, name, otherwise string) string {
	view, _, _ = strings.Cut(view, "@")
	for _, used := range set.Views {
		if bare, _, _ := strings.Cut(used.View, "@"); bare != view {
			continue
		}
		for _, f := range used.Features {
			if f.Feature == name {
				return f.Column
			}
		}
	}
	return otherwise
}

// defaultOf is what the model sees of a feature that is missing; nil is NaN.
func defaultOf(spec *serving.FeaturesSpec, name string) *float64 {
	view, _, _ := strings.Cut(name, ":")
	for _, rule := range []string{name, view + ":*"} {
		if n, ok := spec.Defaults[rule]; ok {
			if v := float64(n); !math.IsNaN(v) {
				return &v
			}
			return nil
		}
	}
	return nil
}

func (b *baselineSources) Open(ctx context.Context, p, ref string, columns []string) (array.RecordReader, error) {
	return featureData{b.datasets}.Open(ctx, project.Name(p), ref, columns)
}

// Scores runs the version in a session of its own: nothing is routed, counted or
// remembered.
func (b *baselineSources) Scores(ctx context.Context, p, deployment string, version int64, o monitoring.Origin, rows [][]float64) ([]float64, error) {
	return b.serving.Score(ctx, p, deployment, version, serving.Rows{What: "dataset " + o.Ref, Label: o.Residency, Values: rows})
}
