package source

import (
	"context"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
)

// Blobs keeps source archives in a blob store, sealed by a key of the
// project.
type Blobs struct{ Store *blob.Store }

var _ Objects = Blobs{}

// ref names the object of an archive: its digest and, of this release, a name that no other
// upload has.
func (b Blobs) ref(p project.Name, a Stored) blob.Ref {
	name := strings.ReplaceAll(a.Digest, ":", "-")
	if a.Object != "" {
		name += "." + a.Object
	}
	return blob.Ref{Project: string(p), Owner: "sources", Key: prefixOf(p) + blob.Key(name)}
}

// Save stores an archive. What does not have the digest is refused with
// fault.Invalid and not kept.
func (b Blobs) Save(ctx context.Context, p project.Name, a Stored, archive io.Reader) error {
	_, err := b.Store.Put(ctx, b.ref(p, a), archive, blob.WithDigest(a.Digest), blob.WithLimit(maxArchive))
	return err
}

// Open reads an archive back.
func (b Blobs) Open(ctx context.Context, p project.Name, a Stored) (io.ReadCloser, error) {
	return b.Store.Open(ctx, b.ref(p, a))
}

// List gives the archives of a project.
func (b Blobs) List(ctx context.Context, p project.Name, yield func(Stored) error) error {
	prefix := prefixOf(p)
	return b.Store.List(ctx, prefix, func(key blob.Key) error {
		name, object, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), ".")
		digest := strings.Replace(name, "-", ":", 1)
		if ours := object == "" || id.Check(part, object) == nil; !ours || !ValidDigest(digest) {
			return nil
		}
		return yield(Stored{Digest: digest, Object: object})
	})
}

// Delete removes an archive.
func (b Blobs) Delete(ctx context.Context, p project.Name, a Stored) error {
	return b.Store.Delete(ctx, b.ref(p, a))
}

func prefixOf(p project.Name) blob.Key { return blob.Key("projects/" + string(p) + "/sources/") }
