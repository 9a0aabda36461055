package app

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/classifier"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
)

// openClassifiers takes what domain classifiers found to the windows that asked.
// It changes no deployment: it is no automatic act.
func (a *App) openClassifiers(context.Context) error {
	ended := event.Subscribe(a.db, event.Config{
		Name: "domain classifiers", Names: []string{training.JobFinished}, FromNow: true, Logger: a.log,
		Handle: func(ctx context.Context, e event.Event) error {
			var j training.Event
			if err := e.Decode(&j); err != nil {
				return err
			}
			return a.monitoring.ClassifierEnded(identity.With(ctx, identity.Loop("domain classifiers")), e.Project, string(j.Job))
		},
	})
	a.group.Add(ended.Service())
	return nil
}

// classifiers keeps the rows of windows as datasets, and trains on them.
type classifiers struct{ *App }

var _ monitoring.Classifiers = classifiers{}

func (c classifiers) Check(ctx context.Context, p, baseline, env string) error {
	if _, err := (trainingData{datasets: c.datasets, authz: c.authorizer}).Resolve(ctx, project.Name(p), baseline); err != nil {
		return err
	}
	_, err := c.environments.Use(ctx, project.Name(p), env)
	return err
}

// Keep makes the dataset version. What the version saw may be only where the
// deployment, the version and what it was trained on may be.
func (c classifiers) Keep(ctx context.Context, w monitoring.KeptWindow) (string, error) {
	p := project.Name(w.Project)
	loop := identity.With(ctx, identity.Loop("domain classifiers")) // looks at labels, not at rows
	d, err := labelled{c.db, c.features}.one(ctx, w.Project, w.Deployment)
	if err != nil {
		return "", err
	}
	label, class, err := labelOf(ctx, c.features, d)
	if err != nil {
		return "", err
	}
	v, err := c.registry.Version(loop, p, w.Model, strconv.FormatInt(w.Version, 10))
	if err != nil {
		return "", err
	}
	r := dataset.CreateRequest{
		Project: p, Name: w.Dataset, Rows: w.Rows, Description: "What deployment " + w.Deployment + " saw, by window",
		Beside: []dataset.Labelled{
			{Name: "deployment " + d.Name, Residency: label, Classification: classOf(class)},
			{Name: "model " + v.String(), Residency: v.Residency, Classification: classOf(v.Classification)},
		},
		Producer: dataset.Producer{Kind: "window", Text: w.Window},
	}
	for _, name := range v.Datasets {
		ref, err := dataset.ParseRef(name)
		if err != nil {
			return "", err
		}
		parent, err := c.datasets.Version(loop, p, ref)
		if fault.Is(err, fault.NotFound) || err == nil && parent.State == dataset.Deleted {
			continue // its labels are in the model's
		}
		if err != nil {
			return "", err
		}
		r.Parents = append(r.Parents, ref)
	}
	made, err := c.datasets.Create(ctx, r)
	return made.Ref().String(), err
}

// classOf reads the classification of a deployment or model: empty is internal.
func classOf(text string) project.Classification {
	if text == "" {
		return project.Internal
	}
	return project.Classification(text)
}

func (c classifiers) Begin(ctx context.Context, j monitoring.ClassifierJob) (string, error) {
	made, _, err := c.training.Apply(ctx, project.Name(j.Project), j.Name, training.Spec{
		Environment: j.Environment, Script: j.Script, Command: []string{j.Argument}, Data: j.Data,
		Resources: resource.Amount{CPU: resource.Cores(1), Memory: 2 * resource.GiB}, Timeout: compute.Duration(30 * time.Minute),
	})
	return string(made.ID), err
}

func (c classifiers) Outcome(ctx context.Context, p, job string) (monitoring.ClassifierOutcome, error) {
	ctx = identity.With(ctx, identity.Loop("domain classifiers"))
	j, err := c.training.One(ctx, project.Name(p), training.JobID(job))
	if err != nil || !j.State.Ended() {
		return monitoring.ClassifierOutcome{}, err
	}
	o := monitoring.ClassifierOutcome{Ended: true, Succeeded: j.State == training.Succeeded, Reason: j.Reason}
	if o.Reason == "" {
		o.Reason = "it was " + string(j.State)
	}
	if j.Run == "" {
		return o, nil
	}
	r, _, err := c.tracking.OpenArtifact(ctx, project.Name(p), tracking.Place{Run: tracking.RunID(j.Run)}, classifier.Output)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Gone) {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	defer func() { _ = r.Close() }()
	// One byte over the limit tells Decode that it is over.
	o.Result, err = io.ReadAll(io.LimitReader(r, classifier.MaxOutput+1))
	return o, err
}
