package mirror

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/store"
)

// refOf is where the file of a version is.
func refOf(project, digest string) blob.Ref {
	return blob.Ref{Project: project, Owner: "gateway", Key: blob.Key("gateway/" + strings.TrimPrefix(digest, "sha256:") + "/" + gateway.ModelFile)}
}

// Models gives serving the versions that are here.
type Models struct {
	DB    *store.DB
	Store Store
	Blobs *blob.Store
}

var _ serving.Models = Models{}

// OpenVerified implements serving.Models: the signature holds, by the key that the
// first answer named, and the file is, now, what was signed.
func (m Models) OpenVerified(ctx context.Context, project, model, version string) (serving.Model, error) {
	number, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return serving.Model{}, fault.New(fault.NotFound, "%.40q is not a version number; gateways do not support aliases", version)
	}
	var v gateway.Version
	var key string
	if err := m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if v, err = m.Store.Version(ctx, tx, project, model, number); err != nil {
			return err
		}
		key, err = m.Store.Fact(ctx, tx, factKey)
		return err
	}); err != nil {
		return serving.Model{}, err
	}
	again := func(err error) error { // it is fetched again
		return errors.Join(err, m.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
			return m.Store.DropVersion(ctx, tx, project, model, number)
		}))
	}
	signed, err := signedOf(registry.OpenSigned, key, project, v)
	if fault.Is(err, fault.Conflict) {
		err = again(err)
	}
	if err != nil {
		return serving.Model{}, err
	}
	file, err := signed.File(gateway.ModelFile)
	if err != nil {
		return serving.Model{}, err
	}
	b, digest, err := m.read(ctx, refOf(project, v.Digest))
	if fault.Is(err, fault.NotFound) || errors.Is(err, blob.ErrDamaged) {
		err = again(err)
	}
	if err != nil {
		return serving.Model{}, err
	}
	if digest != file.Digest { // the reader has proven its own
		return serving.Model{}, fault.New(fault.Conflict, "the file of version %d of %s does not match its signature", number, model)
	}
	return serving.Model{
		Name: model, Version: number, Digest: v.Digest, Residency: signed.Residency, Classification: signed.Classification, Signer: signed.KeyID, File: b,
	}, nil
}

func (m Models) read(ctx context.Context, ref blob.Ref) (b []byte, digest string, err error) {
	r, err := m.Blobs.Open(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = r.Close() }()
	b, err = io.ReadAll(r)
	return b, r.Info().Digest, err
}

// RequireVersion implements serving.Models: nothing is deployed at a gateway.
func (Models) RequireVersion(context.Context, *store.Tx, string, string, int64) error {
	return errFollows()
}

// Cleared implements serving.Models: nothing is deployed at a gateway.
func (Models) Cleared(context.Context, *store.Tx, string, string, int64, string) error {
	return errFollows()
}

// Point implements serving.Models: nothing is promoted at a gateway.
func (Models) Point(context.Context, *store.Tx, string, string, string, int64) error {
	return errFollows()
}

func errFollows() error {
	return fault.New(fault.Unsupported, "this is a gateway: its deployments are managed by the upstream server").WithHint("Change them on that server.")
}
