package score

import (
	"context"
	"strconv"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/onnxjob"
)

// Jobs is *training.Submission.
type Jobs interface {
	Submit(ctx context.Context, p project.Name, name string, spec training.Spec) (training.Job, error)
}

// Deployments tells what answers. Deployments are later in the flow of data than jobs, so
// the application answers this.
type Deployments interface {
	// Stable is the version that answers what no other one that is tried does. Errors:
	// fault.NotFound; fault.PermissionDenied; fault.Unsupported where it runs on another
	// server. The columns are those of the dataset.
	Stable(ctx context.Context, p project.Name, deployment, dataset string) (Target, error)
}

// Config is what a Service needs.
type Config struct {
	Jobs         Jobs
	Environments onnxjob.Environments
	Deployments  Deployments
	Models       onnxjob.Models
}

// Service answers datasets. Safe for concurrent use.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service { return &Service{cfg} }

// Begin submits the job that answers a dataset with the version that is stable in a
// deployment now; the job's inputs say which one that is. Needs job.submit, deployment.read,
// leave to read the model and the dataset, and dataset.import on the one that gets the
// answers; also environment.apply the first time. Errors besides those of Submit and of
// Deployments: fault.Invalid.
func (s *Service) Begin(ctx context.Context, p project.Name, deployment string, r Request) (training.Job, error) {
	by, err := s.cfg.Deployments.Stable(ctx, p, deployment, r.Dataset)
	if err != nil {
		return training.Job{}, err
	}
	name, spec, err := r.Job(deployment, by)
	if err != nil {
		return training.Job{}, err
	}
	if err := s.cfg.Models.Runnable(ctx, p, by.Model, strconv.FormatInt(by.Version, 10)); err != nil {
		return training.Job{}, err
	}
	if spec.Environment == Environment {
		if err := onnxjob.Declare(ctx, s.cfg.Environments, p, Environment, Requirements); err != nil {
			return training.Job{}, err
		}
	}
	return s.cfg.Jobs.Submit(ctx, p, name, spec)
}
