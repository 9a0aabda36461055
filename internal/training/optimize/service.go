package optimize

import (
	"context"
	"io"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/onnxjob"
)

// Submission is *training.Submission.
type Submission interface {
	Submit(ctx context.Context, p project.Name, name string, spec training.Spec) (training.Job, error)
}

// Jobs is *training.Jobs.
type Jobs interface {
	One(ctx context.Context, p project.Name, id training.JobID) (training.Job, error)
}

// Models asks whether the caller may register versions of a model. Errors:
// fault.PermissionDenied; fault.NotFound.
type Models interface {
	onnxjob.Models
	Writable(ctx context.Context, p project.Name, name string) error
}

// Artifacts opens a file of a run. Error: fault.NotFound.
type Artifacts interface {
	Open(ctx context.Context, p project.Name, run, name string) (io.ReadCloser, error)
}

// Config is what a Service needs.
type Config struct {
	Submission   Submission
	Jobs         Jobs
	Environments onnxjob.Environments
	Models       Models
	Artifacts    Artifacts
}

// Service optimises models. Safe for concurrent use.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service { return &Service{cfg} }

// Begin submits the job that optimises a version, a number or an alias, of a model.
// Needs job.submit, model.write, and leave to read the model and the dataset; also
// environment.apply the first time. Errors besides those of Submit: fault.Invalid, also for a
// model whose structure is wrong.
func (s *Service) Begin(ctx context.Context, p project.Name, model, version string, r Request) (training.Job, error) {
	name, spec, err := r.Job(model, version)
	if err != nil {
		return training.Job{}, err
	}
	if err := s.cfg.Models.Writable(ctx, p, model); err != nil {
		return training.Job{}, err
	}
	if err := s.cfg.Models.Runnable(ctx, p, model, version); err != nil {
		return training.Job{}, err
	}
	if spec.Environment == Environment {
		if err := onnxjob.Declare(ctx, s.cfg.Environments, p, Environment, Requirements); err != nil {
			return training.Job{}, err
		}
	}
	return s.cfg.Submission.Submit(ctx, p, name, spec)
}

// Report gives what a job measured. Needs job.read and run.read. Errors:
// fault.NotFound for another job, and for one that measured nothing, with why;
// fault.Conflict while it goes on.
func (s *Service) Report(ctx context.Context, p project.Name, id training.JobID) (Report, error) {
	j, err := s.cfg.Jobs.One(ctx, p, id)
	if err != nil {
		return Report{}, err
	}
	switch {
	case j.Spec.Script != script:
		return Report{}, fault.New(fault.NotFound, "job %s is not an optimisation", id)
	case !j.State.Ended():
		return Report{}, fault.New(fault.Conflict, "job %s is %s: no measurements yet", id, j.State).WithHint("falaj job logs %s -f", id)
	case j.Run == "":
		return Report{}, fault.New(fault.NotFound, "job %s has no measurements: %s", id, j.Reason)
	}
	in, err := s.cfg.Artifacts.Open(ctx, p, j.Run, reportFile)
	if fault.Is(err, fault.NotFound) {
		return Report{}, fault.New(fault.NotFound, "job %s has no measurements: %s", id, j.Reason).WithHint("falaj job logs %s", id)
	}
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = in.Close() }()
	b, err := io.ReadAll(io.LimitReader(in, maxReport+1))
	if err != nil {
		return Report{}, err
	}
	if len(b) > maxReport {
		return Report{}, fault.New(fault.TooLarge, "%s exceeds %d bytes", reportFile, maxReport)
	}
	r, err := readReport(b)
	if err != nil {
		return Report{}, err
	}
	r.Job, r.State, r.Made = string(j.ID), string(j.State), j.Model
	if j.Spec.Register == "" {
		r.Made = ""
	}
	for _, in := range j.Inputs {
		if model := in.Model(); model != "" {
			r.Of = model
		}
	}
	return r, nil
}
