package deployments

import (
	"context"
	"io"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
)

// GatewayModels gives gateways signed versions.
type GatewayModels struct{ Registry registry.Services }

var _ gateway.Models = GatewayModels{}

// Signed implements gateway.Models.
func (m GatewayModels) Signed(ctx context.Context, p, model string, version int64) ([]byte, error) {
	files, bundle, err := m.Registry.Files.SignedFor(ctx, project.Name(p), model, strconv.FormatInt(version, 10))
	if err == nil && !slices.ContainsFunc(files, func(f registry.File) bool { return f.Path == gateway.ModelFile }) {
		err = fault.New(fault.Unsupported, "it has no %s, and gateways run no other models", gateway.ModelFile)
	}
	return bundle, err
}

// Open implements gateway.Models.
func (m GatewayModels) Open(ctx context.Context, p, model string, version int64, file string) (io.ReadCloser, int64, error) {
	r, f, err := m.Registry.Files.OpenFile(ctx, project.Name(p), model, strconv.FormatInt(version, 10), file)
	return r, f.Size, err
}

// MayPull implements gateway.Models. Confidential models are the deployers' to place, who
// read no confidential data; a restricted one needs a grant, as its files do everywhere.
func (m GatewayModels) MayPull(ctx context.Context, p, model string, version int64) error {
	number := strconv.FormatInt(version, 10)
	v, err := m.Registry.Versions.Version(identity.With(ctx, identity.Loop("gateways")), project.Name(p), model, number)
	if err != nil || v.Classification != string(project.Restricted) {
		return err
	}
	return m.Registry.Files.MayReadFiles(ctx, project.Name(p), model, number)
}

// PublicKey implements gateway.Models.
func (m GatewayModels) PublicKey(ctx context.Context, p string) (string, error) {
	return m.Registry.Files.PublicKey(ctx, project.Name(p))
}
