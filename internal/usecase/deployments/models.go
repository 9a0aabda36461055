package deployments

import (
	"context"
	"path"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/onnxfile"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// modelFile is the file of a version that serving loads.
const modelFile = "model.onnx"

// maxModel bounds a model file that is held in memory, in bytes.
const maxModel = 4 << 30

// Models hands verified model files to serving. Deployments are loaded
// by a loop of ours, too, which has no token.
type Models struct {
	Registry registry.Services
	Training *training.Jobs
}

var _ serving.Models = Models{}

// RequireVersion implements serving.Models.
func (m Models) RequireVersion(ctx context.Context, tx *store.Tx, p, model string, version int64) error {
	return m.Registry.Versions.RequireVersion(ctx, tx, project.Name(p), model, int(version))
}

// Cleared implements serving.Models.
func (m Models) Cleared(ctx context.Context, tx *store.Tx, p, model string, version int64, alias string) error {
	return m.Registry.Approvals.Cleared(ctx, tx, project.Name(p), model, int(version), alias, "", true)
}

// Point implements serving.Models.
func (m Models) Point(ctx context.Context, tx *store.Tx, p, model, alias string, version int64) error {
	return m.Registry.Models.Point(ctx, tx, project.Name(p), model, alias, int(version))
}

// OpenVerified implements serving.Models.
func (m Models) OpenVerified(ctx context.Context, p, model, version string) (serving.Model, error) {
	if identity.From(ctx).Kind == "" {
		ctx = identity.With(ctx, identity.Loop("model loader"))
	}
	v, err := m.Registry.Files.OpenVerified(ctx, project.Name(p), model, version)
	if err != nil {
		return serving.Model{}, err
	}
	out := serving.Model{
		Name: v.Version.Model, Version: int64(v.Version.Number), Digest: v.Version.Digest,
		Residency: v.Version.Residency, Classification: v.Version.Classification, Signer: v.Version.KeyID, Files: m.files(v),
	}
	if out.Files == nil || has(v, modelFile) {
		out.File, err = v.ReadFile(ctx, modelFile, maxModel)
		if err == nil {
			out.File, err = onnxfile.Embed(out.File, beside(ctx, v), maxModel)
		}
	}
	return out, err
}

// beside gives the files of a version that its model has data of tensors in: none but
// those that were signed with it.
func beside(ctx context.Context, v *registry.Verified) func(location string) ([]byte, error) {
	return func(location string) ([]byte, error) {
		if !filepath.IsLocal(location) || !has(v, path.Clean(location)) {
			return nil, fault.New(fault.Invalid, "%.100q is not among the files of the version", location).
				WithHint("Register it next to %s, or save the model as one file: onnx.save(onnx.load(PATH), \"model.onnx\"), and save_as_external_data=False of mlflow.onnx.log_model.", modelFile)
		}
		return v.ReadFile(ctx, path.Clean(location), maxModel)
	}
}

// RunnableModels are registered models to the jobs that run them.
type RunnableModels struct {
	*registry.Models
	Files *registry.Files
}

// Runnable implements onnxjob.Models by what the scan of the version's files found.
func (m RunnableModels) Runnable(ctx context.Context, p project.Name, model, version string) error {
	r, err := m.Files.ContentOf(ctx, p, model, version)
	if err != nil {
		return err
	}
	for _, c := range r.Contents {
		if c.Path == modelFile && c.Format == "onnx" {
			return fault.New(fault.Invalid, "model %s, version %s, cannot be run: %s", model, version, strings.Join(c.Reasons, "; "))
		}
	}
	return nil
}
