package serving

import (
	"context"
	"errors"

	"github.com/falaj-ml/falaj/internal/fault"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// PythonSpec is how a model that is Python runs.
type PythonSpec struct {
	Environment string `json:"environment,omitempty" doc:"Environment with the model's packages, NAME or NAME@DIGEST; NAME resolves to the newest when the model is loaded; default the environment of the job that created the version"`
	Processes   int    `json:"processes,omitempty" doc:"Processes that share the requests; each handles one at a time" default:"1"`
}

// maxFiles bounds the files of a Python model, which each process's sandbox sees on
// disk, in bytes.
const maxFiles = 16 << 30

// maxProcesses bounds PythonSpec.Processes.
const maxProcesses = 64

func (p PythonSpec) validate(i Isolation) error {
	switch {
	case p == (PythonSpec{}):
		return nil
	case p.Processes < 0 || p.Processes > maxProcesses:
		return fault.New(fault.Invalid, "spec.runtime.python.processes: %d is outside the range 1 to %d, and must not exceed the number of cores", p.Processes, maxProcesses)
	case len(p.Environment) > 256:
		return fault.New(fault.Invalid, "spec.runtime.python.environment: %d bytes are too long; use NAME or NAME@DIGEST", len(p.Environment))
	case i == InProcess:
		return fault.New(fault.Invalid, "spec.runtime.isolation: Python models do not support in-process")
	}
	return nil
}

// Environments is what Python models run in.
type Environments interface {
	// Use resolves an environment, "sklearn" or "sklearn@sha256:…": all of a Python but
	// its processes and files. Errors: fault.NotFound, fault.PermissionDenied,
	// fault.Invalid (it cannot be built), fault.Unsupported (it is no Python),
	// fault.Gone, and fault.Unavailable with ErrNotYet while it is being built.
	Use(ctx context.Context, project, ref string) (models.Python, error)
}

// ErrNotYet is in the chain of why a version is not loaded when what it runs in is still
// being made: its deployment waits.
var ErrNotYet = errors.New("not there yet")

// Files are a version's, of a model that Python runs.
type Files struct {
	Size int64 // bytes of all
	// Write writes them below a directory that is there, each verified while it is read.
	Write func(ctx context.Context, dir string) error
	// Environment is the one that made them, with its digest; empty: none is known.
	Environment func(ctx context.Context) (string, error)
}

// python is how a version runs that is Python; nil for ONNX, and for a model elsewhere.
func (s *core) python(ctx context.Context, project string, spec Spec, m Model) (*models.Python, error) {
	var says PythonSpec
	isolation := Auto
	if spec.Runtime != nil {
		says, isolation = spec.Runtime.Python, spec.Runtime.Isolation
	}
	if says == (PythonSpec{}) && m.File != nil {
		return nil, nil //nolint:nilnil // nil is what is said of ONNX
	}
	invalid := func(hint, format string, args ...any) (*models.Python, error) {
		return nil, fault.New(fault.Invalid, format, args...).WithHint("%s", hint)
	}
	switch {
	case spec.remote().Name != "":
		return invalid("Register the remote's model as ONNX as well: it defines the inputs and outputs.", "version %d of %s has no model.onnx, which is needed to check a remote model", m.Version, m.Name)
	case m.Files == nil:
		return invalid("Register it with a predict.py, or remove spec.runtime.python.", "version %d of %s is not a Python model: it has no predict.py, no MLmodel and no model.tflite", m.Version, m.Name)
	case m.Files.Size > maxFiles:
		return nil, fault.New(fault.TooLarge, "the files of version %d of %s have %d bytes, over the limit of %d", m.Version, m.Name, m.Files.Size, int64(maxFiles)).
			WithHint("Register only the files that the model needs.")
	case isolation == InProcess:
		return invalid("Remove spec.runtime.isolation.", "version %d of %s is a Python model, which does not support in-process", m.Version, m.Name)
	case s.cfg.Environments == nil:
		return nil, fault.New(fault.Unsupported, "Python models are not enabled on this server")
	case says.Processes > s.cores.All():
		return invalid("Request fewer.", "spec.runtime.python.processes: %d exceeds the server's %d cores", says.Processes, s.cores.All())
	}
	name := says.Environment
	if name == "" {
		var err error
		if name, err = m.Files.Environment(ctx); err != nil {
			return nil, fault.Wrap(err, "find the environment of version %d of %s", m.Version, m.Name)
		}
	}
	if name == "" {
		return invalid("Create an Environment with the model's packages, and set spec.runtime.python.environment.",
			"version %d of %s is a Python model without an environment", m.Version, m.Name)
	}
	p, err := s.cfg.Environments.Use(ctx, project, name)
	if err != nil {
		return nil, fault.Wrap(err, "the environment of version %d of %s", m.Version, m.Name)
	}
	p.Processes, p.Size, p.Write = max(1, says.Processes), m.Files.Size, m.Files.Write
	return &p, nil
}
