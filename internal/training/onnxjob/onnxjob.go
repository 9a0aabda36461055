// Package onnxjob is what the jobs share that Falaj writes itself to run an ONNX model over
// a dataset: the Python that feeds rows to a model, how the version is named, and the
// environment, which is declared where it is missing.
package onnxjob

import (
	"context"
	_ "embed"
	"strings"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
)

//go:embed rows.py
var rows string

// Script is a job's program with what feeds rows to a model before it.
func Script(program string) string { return rows + "\n\n" + program }

// Runtime is the ONNX Runtime that serves: answers of jobs are those of deployments.
const Runtime = "onnxruntime==1.32.0"

// Reference names a version of a model, a number or an alias, as data of a job.
func Reference(model, version string) string {
	if version != "" && strings.Trim(version, "0123456789") == "" {
		return "models:/" + model + "/" + version
	}
	return "models:/" + model + "@" + version
}

// Name is that of a job that does something with a thing of that name.
func Name(does, of string) string { return id.Name(strings.ReplaceAll(does+"-"+of, "_", "-")) }

// Models inspects what a job is to load.
type Models interface {
	// Runnable refuses a version, a number or an alias, whose ONNX file has a structure that
	// would crash or exhaust a runtime. Errors: fault.Invalid; fault.NotFound;
	// fault.PermissionDenied.
	Runnable(ctx context.Context, p project.Name, model, version string) error
}

// Environments is *environment.Service.
type Environments interface {
	One(ctx context.Context, p project.Name, name string) (environment.Environment, error)
	Apply(ctx context.Context, p project.Name, name string, spec environment.Spec) (environment.Environment, project.Change, error)
}

// Declare creates an environment if there is none of the name. A caller who declares one of
// that name before chooses what the job runs in.
func Declare(ctx context.Context, in Environments, p project.Name, name string, requirements []string) error {
	_, err := in.One(ctx, p, name)
	if fault.Is(err, fault.NotFound) {
		_, _, err = in.Apply(ctx, p, name, environment.Spec{Requirements: requirements})
	}
	return fault.Wrap(err, "declaring environment %s", name)
}
