package watch

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/classifier"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
	"github.com/falaj-ml/falaj/internal/usecase/jobs"
)

// Classifiers keeps the rows of windows as datasets, and trains on them.
type Classifiers struct {
	Serving      *serving.Deployments
	Features     *feature.OnlineReads
	Datasets     dataset.Services
	Registry     *registry.Versions
	Environments *environment.Service
	Submission   *training.Submission
	Jobs         *training.Jobs
	Tracking     *tracking.Service
	Authorizer   policy.Authorizer
}

var _ monitoring.Classifiers = Classifiers{}

// Check implements monitoring.Classifiers.
func (c Classifiers) Check(ctx context.Context, p, baseline, env string) error {
	if _, err := (jobs.Data{Datasets: c.Datasets, Authorizer: c.Authorizer}).Resolve(ctx, project.Name(p), baseline); err != nil {
		return err
	}
	_, err := c.Environments.Use(ctx, project.Name(p), env)
	return err
}

// Keep makes the dataset version. What the version saw may be only where the
// deployment, the version and what it was trained on may be.
func (c Classifiers) Keep(ctx context.Context, w monitoring.KeptWindow) (string, error) {
	p := project.Name(w.Project)
	loop := identity.With(ctx, identity.Loop("domain classifiers")) // looks at labels, not at rows
	d, err := c.Serving.Record(ctx, w.Project, w.Deployment)
	if err != nil {
		return "", err
	}
	label, class, err := deployments.Label(ctx, c.Features, d)
	if err != nil {
		return "", err
	}
	v, err := c.Registry.Version(loop, p, w.Model, strconv.FormatInt(w.Version, 10))
	if err != nil {
		return "", err
	}
	r := dataset.CreateRequest{
		Project: p, Name: w.Dataset, Rows: w.Rows, Description: "What deployment " + w.Deployment + " saw, by window",
		Beside: []dataset.Labelled{
			{Name: "deployment " + d.Name, Residency: label, Classification: deployments.ClassOf(class)},
			{Name: "model " + v.String(), Residency: v.Residency, Classification: deployments.ClassOf(v.Classification)},
		},
		Producer: dataset.Producer{Kind: "window", Text: w.Window},
	}
	for _, name := range v.Datasets {
		ref, err := dataset.ParseRef(name)
		if err != nil {
			return "", err
		}
		parent, err := c.Datasets.Definitions.Version(loop, p, ref)
		if fault.Is(err, fault.NotFound) || err == nil && parent.State == dataset.Deleted {
			continue // its labels are in the model's
		}
		if err != nil {
			return "", err
		}
		r.Parents = append(r.Parents, ref)
	}
	made, err := c.Datasets.Writes.Create(ctx, r)
	return made.Ref().String(), err
}

// Begin implements monitoring.Classifiers.
func (c Classifiers) Begin(ctx context.Context, j monitoring.ClassifierJob) (string, error) {
	made, _, err := c.Submission.Apply(ctx, project.Name(j.Project), j.Name, training.Spec{
		Environment: j.Environment, Script: j.Script, Command: []string{j.Argument}, Data: j.Data,
		Resources: resource.Amount{CPU: resource.Cores(1), Memory: 2 * resource.GiB}, Timeout: compute.Duration(30 * time.Minute),
	})
	return string(made.ID), err
}

// Outcome implements monitoring.Classifiers.
func (c Classifiers) Outcome(ctx context.Context, p, job string) (monitoring.ClassifierOutcome, error) {
	ctx = identity.With(ctx, identity.Loop("domain classifiers"))
	j, err := c.Jobs.One(ctx, project.Name(p), training.JobID(job))
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
	r, _, err := c.Tracking.OpenArtifact(ctx, project.Name(p), tracking.Place{Run: tracking.RunID(j.Run)}, classifier.Output)
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

// ClassifierEnded hands the end of a job to the windows that wait for their classifier. It
// changes no deployment.
func ClassifierEnded(m *monitoring.Service) func(context.Context, event.Event) error {
	return func(ctx context.Context, e event.Event) error {
		var j training.Event
		if err := e.Decode(&j); err != nil {
			return err
		}
		return m.ClassifierEnded(identity.With(ctx, identity.Loop("domain classifiers")), e.Project, string(j.Job))
	}
}
