// Package blob keeps encrypted objects under keys such as
// "projects/p/runs/run_01J…/model.onnx". The concrete Store holds the behaviour
// (encryption, digest, name rules); a Driver holds bytes.
package blob

import (
	"context"
	"io"

	"github.com/tink-crypto/tink-go/v2/tink"
)

// Key is an object's name: segments of [A-Za-z0-9._=@+-] joined by '/', no
// empty, "." or ".." segment, at most 1,024 bytes.
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
}

// Sealer gives the primitive that encrypts a scope's objects.
type Sealer interface {
	StreamingAEAD(ctx context.Context, project, owner string) (tink.StreamingAEAD, error)
}

// Driver stores bytes. Put is atomic and durable: after it returns nil the
// object is there after power loss; before, a reader sees the old object or
// none. Open's error is fault.NotFound when there is no object.
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

// Store is encrypted object storage over a driver. Safe for concurrent use.
type Store struct {
	driver Driver
	sealer Sealer
}

// New makes a store.
func New(driver Driver, sealer Sealer) *Store { return &Store{driver: driver, sealer: sealer} }
