package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/registry"
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
		DB: a.db, Store: alertsql.Store{}, Authz: a.authorizer, Sealer: a.keys, Guard: a.guard, Allow: a.cfg.Alerts.Hosts, Log: a.log,
		Commands: alert.Commands{Dir: commands, Worker: a.cfg.workerPath(), Level: level, Owner: a.groupsOwner},
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
		Deployments: watchedDeployments{labelled{a.db, a.features}}, Sources: &baselineSources{App: a}, Classifiers: classifiers{a}, Log: a.log,
		Keep: kept(a.cfg.Retention.Windows),
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
	if f := one.Spec.Features; f != nil && one.FeatureSet != nil {
		w.Columns = append(slices.Clone(one.FeatureSet.JoinKeys), f.Columns...)
	}
	if p := one.Spec.Prediction; p != nil && len(p.Classes) > 0 {
		w.Classes, w.Positive = p.Classes, len(p.Classes)-1
		if p.Index != nil {
			w.Positive = *p.Index
		}
	}
	w.Residency, w.Classification, err = labelOf(ctx, d.features, one)
	return w, err
}

// baselineSources hands monitoring what model versions were trained on.
type baselineSources struct{ *App }

// Training finds the data that the version was trained on: what its job declared, or the
// only dataset that it read. Which one of several is not guessed.
func (b *baselineSources) Training(ctx context.Context, q monitoring.OriginQuery) (monitoring.Origin, error) {
	d, err := labelled{b.db, b.features}.one(ctx, q.Project, q.Deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	v, err := b.registry.Version(ctx, project.Name(q.Project), d.Model, strconv.FormatInt(q.Version, 10))
	if err != nil {
		return monitoring.Origin{}, err
	}
	ref, err := trainedOn(v)
	if err != nil {
		return monitoring.Origin{}, err
	}
	return b.origin(ctx, q, d, ref)
}

// trainedOn is the dataset version that a model version was trained on. Errors:
// fault.NotFound where none is known; fault.Conflict where it may be several.
func trainedOn(v registry.Version) (string, error) {
	switch {
	case v.TrainedOn != "":
		return v.TrainedOn, nil
	case len(v.Datasets) == 1:
		return v.Datasets[0], nil
	case len(v.Datasets) == 0:
		return "", fault.New(fault.NotFound, "the training set of %s is unknown", v).
			WithHint("Name the baseline in the Monitor's spec.baseline, as dataset:NAME@VERSION.")
	}
	return "", fault.New(fault.Conflict, "the training set of %s is ambiguous: %s", v, strings.Join(v.Datasets, ", ")).
		WithHint("Declare training_data in the job that trains it, or name the baseline in the Monitor's spec.baseline, as dataset:NAME@VERSION.")
}

// Dataset is the dataset that a manifest names.
func (b *baselineSources) Dataset(ctx context.Context, q monitoring.OriginQuery, ref string) (monitoring.Origin, error) {
	d, err := labelled{b.db, b.features}.one(ctx, q.Project, q.Deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	return b.origin(ctx, q, d, ref)
}

// trainingSet says how a dataset version was joined from features; that of a version from
// which a person was erased is that of the one that it stands for. The zero TrainingSet is
// none.
func (a *App) trainingSet(ctx context.Context, p project.Name, ref string) (feature.TrainingSet, error) {
	set, err := a.features.TrainingSet(ctx, p, ref)
	if !fault.Is(err, fault.NotFound) {
		return set, err
	}
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return feature.TrainingSet{}, err
	}
	was, err := a.datasets.StoodFor(ctx, p, r)
	if err != nil {
		return feature.TrainingSet{}, err
	}
	for _, r := range was {
		if set, err = a.features.TrainingSet(ctx, p, r.String()); !fault.Is(err, fault.NotFound) {
			return set, err
		}
	}
	return feature.TrainingSet{}, nil
}

// origin says which columns of a dataset version are which of the model's inputs. Of a
// version from which a person was erased it is the one that stands for it now.
func (b *baselineSources) origin(ctx context.Context, q monitoring.OriginQuery, d serving.Deployment, ref string) (monitoring.Origin, error) {
	p, data := project.Name(q.Project), featureData{b.datasets}
	standing, err := data.Standing(ctx, p, ref)
	var v feature.DatasetVersion
	if err == nil {
		v, err = data.Resolve(ctx, p, standing)
	}
	if fault.Is(err, fault.NotFound) && identity.From(ctx).Kind == identity.System { // of somebody who applies a manifest, it is a name that is wrong
		err = fault.New(fault.Gone, "%s does not exist any more", ref)
	}
	if err != nil {
		return monitoring.Origin{}, err
	}
	set, err := b.trainingSet(ctx, p, v.Ref)
	if err != nil {
		return monitoring.Origin{}, err
	}
	o := monitoring.Origin{Ref: v.Ref, Digest: v.Digest, Residency: v.Residency, Classification: string(v.Classification)}
	names := namesOf(v.Schema)
	if o.Prediction, err = q.PredictionOf(names); err != nil {
		return monitoring.Origin{}, err
	}
	if d.Spec.Features != nil {
		o.Inputs, o.Unscored, o.Note = inputsOf(d.Spec.Features, set.ColumnsOf(names))
		o.Scored, o.Declared = o.Unscored == "", true
		if o.Scored && q.Prediction == "" {
			o.Prediction = "" // the model itself says it
		}
	} else {
		for _, name := range names {
			if name != set.Timestamp && name != o.Prediction && !slices.Contains(set.Labels, name) {
				o.Inputs = append(o.Inputs, monitoring.OriginInput{Name: name, Column: name})
			}
		}
		o.Unscored = "deployment " + d.Name + " has no spec.features, so that its model cannot be run over " + v.Ref +
			", which has no column prediction; name one in spec.prediction_column of the Monitor"
	}
	definition, err := json.Marshal([]any{2, o.Inputs, o.Prediction, d.Spec.Prediction, d.Model})
	if err != nil {
		return monitoring.Origin{}, err
	}
	sum := sha256.Sum256(definition)
	o.Definition = hex.EncodeToString(sum[:8])
	return o, nil
}

func namesOf(schema *arrow.Schema) []string {
	names := make([]string, schema.NumFields())
	for i, f := range schema.Fields() {
		names[i] = f.Name
	}
	return names
}

// inputsOf finds the column of each of the deployment's columns; unscored says which
// there is none of, note which may be several.
func inputsOf(spec *serving.FeaturesSpec, known []naming.Column) (inputs []monitoring.OriginInput, unscored, note string) {
	var without []string
	at, why := naming.Match(known, spec.Columns)
	for i, name := range spec.Columns {
		if at[i] < 0 {
			without = append(without, name)
			continue
		}
		inputs = append(inputs, monitoring.OriginInput{Name: name, Column: known[at[i]].Name, Otherwise: defaultOf(spec, name)})
	}
	if len(without) > 0 {
		unscored = "the dataset has no column of " + strings.Join(without, ", ")
	}
	return inputs, unscored, strings.Join(slices.Compact(slices.Sorted(maps.Values(why))), "; ")
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
