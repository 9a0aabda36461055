// Package blob keeps encrypted objects under keys such as
// "projects/p/runs/run_01J…/model.onnx". The concrete Store holds the behaviour
// (encryption, digest, name rules); a Driver holds bytes.
//
// # Map
//
//   - blob.go: the words and the driver contract. key.go: the grammar of keys.
//   - store.go: Put, Create, Open, OpenAt, Stat, Delete, List.
//   - seal.go: the format of a stored object.
//   - fileblob keeps objects as files, s3blob in a bucket; blobtest has the suite
//     that every driver passes, a driver in memory and one that fails on purpose.
//
// # Life of an object
//
// Create encrypts what is written to it, segment by segment, straight into the
// driver's temporary object, and hashes the plaintext on the way. Commit adds a
// sealed trailer (size, digest) and has the driver publish the whole. Open
// decrypts segment by segment and, before it says io.EOF, has compared size and
// digest with the trailer.
//
// # Guarantees
//
// After Put or Commit returns nil the object is there after power loss; before,
// a reader sees the old object or none. Each object opens only at its own Ref:
// bytes moved to another key, owner or project are refused, as are truncated,
// extended and changed ones. No plaintext touches the disk.
//
// # What the caller owes
//
// Permission was asked before. A reader that stops before io.EOF has checked
// the segments that it got, not the whole.
package blob

import (
	"context"
	"io"

	"github.com/tink-crypto/tink-go/v2/tink"
)

// Key is an object's name: segments of [A-Za-z0-9._=@+-] joined by '/', no
// empty, "." or ".." segment, at most 200 bytes each and 1,024 together.
type Key string

// Ref names an object and whose key seals it.
type Ref struct {
	Project string
	Owner   string // key scope within the project: "dataset/weather", "artifacts"
	Key     Key
}

// Info describes a stored object; Digest is "sha256:<hex>" of the plaintext.
type Info struct {
	Size   int64 // plaintext bytes
	Digest string
	// Sealed says that the object's own format encrypts it (see WithSealed).
	Sealed bool
}

// Sealer gives the primitives that encrypt a scope's objects. keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
	StreamingAEAD(ctx context.Context, project, owner string) (tink.StreamingAEAD, error)
}

// Driver stores bytes. Safe for concurrent use.
//
// Put is atomic and durable: after it returns nil the object is there after
// power loss; before, a reader sees the old object or none. When body fails or
// ctx ends, Put stores nothing and returns that error wrapped. A full store is a
// fault.Exhausted. Open's error is fault.NotFound when there is no object.
// Delete of an absent object is nil. List yields the keys that begin with
// prefix, in byte order; an error of yield ends it and is returned; yield may
// call Delete. Keys reach a driver checked, and a key may be a directory of
// another ("a" and "a/b").
type Driver interface {
	Put(ctx context.Context, key Key, body io.Reader) error
	Open(ctx context.Context, key Key) (Object, error)
	Delete(ctx context.Context, key Key) error
	List(ctx context.Context, prefix Key, yield func(Key) error) error
}

// Object is an opened object. Close it.
type Object interface {
	io.ReadCloser
	io.ReaderAt
	Size() int64 // stored bytes
}
