package mirror

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/store"
)

// modelFile is what of a version is fetched: what is served.
const modelFile = "model.onnx"

// refOf is where the file of a version is.
func refOf(project, digest string) blob.Ref {
	return blob.Ref{Project: project, Owner: "gateway", Key: blob.Key("gateway/" + strings.TrimPrefix(digest, "sha256:") + "/" + modelFile)}
}

func numberText(n int64) string { return strconv.FormatInt(n, 10) }

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
		return serving.Model{}, fault.New(fault.NotFound, "a gateway has versions by their number, and %.40q is none", version)
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
	signed, err := signedOf(key, project, v)
	if err != nil {
		return serving.Model{}, err
	}
	file, err := signed.File(modelFile)
	if err != nil {
		return serving.Model{}, err
	}
	r, err := m.Blobs.Open(ctx, refOf(project, v.Digest))
	if err != nil {
		return serving.Model{}, err
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		return serving.Model{}, err
	}
	if r.Info().Digest != file.Digest { // the reader has proven its own
		return serving.Model{}, fault.New(fault.Conflict, "the file of version %d of %s is not what was signed", number, model)
	}
	return serving.Model{
		Name: model, Version: number, Digest: v.Digest, Residency: signed.Residency, Classification: signed.Classification, OfJob: signed.OfJob, File: b,
	}, nil
}

// Still implements serving.Models: nothing is deployed at a gateway.
func (Models) Still(context.Context, *store.Tx, string, string, int64) error { return errFollows() }

// Point implements serving.Models: nothing is promoted at a gateway.
func (Models) Point(context.Context, *store.Tx, string, string, string, int64) error {
	return errFollows()
}

func errFollows() error {
	return fault.New(fault.Unsupported, "this is a gateway: its deployments are those of the server that it follows").WithHint("Change them there.")
}
