package deployments

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/training"
)

// has reports whether a version has a file.
func has(v *registry.Verified, name string) bool {
	return slices.ContainsFunc(v.Files(), func(f registry.File) bool { return f.Path == name })
}

// files are those of a version that Python can run; nil for others.
func (m Models) files(v *registry.Verified) *serving.Files {
	if !has(v, "predict.py") && !has(v, "MLmodel") && !has(v, "model.tflite") {
		return nil
	}
	out := &serving.Files{
		Write:       func(ctx context.Context, dir string) error { return writeFiles(ctx, v, dir) },
		Environment: func(ctx context.Context) (string, error) { return m.environment(ctx, v.Version) },
	}
	for _, f := range v.Files() {
		out.Size += f.Size
	}
	return out
}

// writeFiles writes a version's files below a directory, each checked against what was
// signed while it is read. No name of theirs leads out of it.
func writeFiles(ctx context.Context, v *registry.Verified, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range v.Files() {
		if !filepath.IsLocal(f.Path) {
			return fault.New(fault.Invalid, "the model has a file %.100q, which is not a path below its directory", f.Path)
		}
		if err := writeFile(ctx, v, root, f.Path); err != nil {
			return fault.Wrap(err, "write %.100q of model %s", f.Path, v.Version)
		}
	}
	return nil
}

func writeFile(ctx context.Context, v *registry.Verified, root *os.Root, name string) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	from, err := v.Open(ctx, name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// environment is the one that the job ran in which left a version's files; empty when
// none did, or the job is gone.
func (m Models) environment(ctx context.Context, v registry.Version) (string, error) {
	if v.Job == "" || v.Environment == "" {
		return "", nil
	}
	j, err := m.Training.One(identity.With(ctx, identity.Loop("environment of a model")), v.Project, training.JobID(v.Job))
	if fault.Is(err, fault.NotFound) {
		return "", nil
	}
	name, _, _ := strings.Cut(j.Spec.Environment, "@")
	if err != nil || name == "" {
		return "", err
	}
	return name + "@" + v.Environment, nil
}

// Environments says what a Python model runs in.
type Environments struct{ Environments *environment.Service }

var _ serving.Environments = Environments{}

// Use implements serving.Environments.
func (e Environments) Use(ctx context.Context, p, ref string) (runtime.Python, error) {
	if identity.From(ctx).Kind == "" {
		ctx = identity.With(ctx, identity.Loop("model loader"))
	}
	u, err := e.Environments.Use(ctx, project.Name(p), ref)
	if err != nil {
		return runtime.Python{}, err
	}
	if u.State != environment.Ready {
		return runtime.Python{}, fault.New(fault.Unavailable, "environment %s is being built: %w", u.Name, serving.ErrNotYet).
			WithHint("Wait for it with `falaj env wait %s`; the model is loaded afterwards.", u.Name)
	}
	if u.Python == "" || u.Image != "" {
		return runtime.Python{}, fault.New(fault.Unsupported, "environment %s is an image, or modules; a model runs in a Python with packages", u.Name).
			WithHint("Make an Environment with the model's requirements, and name it in spec.runtime.python.environment.")
	}
	out := runtime.Python{Environment: u.Name + "@" + string(u.Digest), Interpreter: u.Python, Env: u.Env}
	for _, m := range u.Mounts {
		out.Mounts = append(out.Mounts, m.Path)
	}
	return out, nil
}

// HeldEnvironments are those that models run in, loaded or to be loaded at a request: they are
// not pruned. running gives those of loaded models, as NAME@DIGEST.
func HeldEnvironments(s *serving.Loader, r *registry.Versions, e *environment.Service, running func() []string) environment.Holder {
	return func(ctx context.Context) (held []environment.Digest, err error) {
		for _, ref := range running() {
			_, digest, _ := strings.Cut(ref, "@")
			held = append(held, environment.Digest(digest))
		}
		ctx = identity.With(ctx, identity.Loop("environments of models"))
		dormant, err := dormantEnvironments(s.Unloaded(),
			func(p, name string) (string, error) {
				one, err := e.One(ctx, project.Name(p), name)
				return string(one.Digest), err
			},
			func(p, model string, version int64) (string, error) {
				v, err := r.Version(ctx, project.Name(p), model, strconv.FormatInt(version, 10))
				return v.Environment, err
			})
		return append(held, dormant...), err
	}
}

// dormantEnvironments are the environments of versions that are not in memory. newest is
// the digest that a name has, and made that of the environment which made a version. What
// is gone holds nothing.
func dormantEnvironments(all []serving.Unloaded, newest func(project, name string) (string, error), made func(project, model string, version int64) (string, error)) (held []environment.Digest, err error) {
	for _, d := range all {
		name, digest, _ := strings.Cut(d.Environment, "@")
		switch {
		case digest != "":
		case name != "":
			digest, err = newest(d.Project, name)
		case !d.Known:
			digest, err = made(d.Project, d.Model, d.Version)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
		if digest != "" {
			held = append(held, environment.Digest(digest))
		}
	}
	return held, nil
}
