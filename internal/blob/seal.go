package blob

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A stored object is
//
//	body | trailer | length of trailer (4 bytes, big endian) | magic
//
// The body is a Tink AES-256-GCM-HKDF stream of the plaintext, or the bytes as
// they came when their own format encrypts them. The trailer is sealed by the
// scope's AES-256-GCM with the Ref as associated data; it authenticates size,
// digest and the kind of body, so a body of another version is refused.
const (
	magic      = "FALAJOB1"
	footerSize = 4 + len(magic)
	maxTrailer = 1 << 10
)

type trailer struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
	Sealed bool   `json:"sealed,omitempty"`
	Stored int64  `json:"stored"` // bytes of the body as stored
}

// ErrDamaged is in the chain of every error about an object whose bytes are not
// those that were written. Its kind is fault.Internal.
var ErrDamaged = errors.New("object is damaged")

func damaged(k Key, what string) error {
	return fault.New(fault.Internal, "object %s: %s: %w", k, what, ErrDamaged).
		WithHint("The stored bytes were changed or lost: restore the object from a backup, or create it again.")
}

func encodeTrailer(a tink.AEAD, ref Ref, t trailer) ([]byte, error) {
	plain, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	b, err := a.Encrypt(plain, ref.associated("trailer"))
	if err != nil {
		return nil, err
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(b))) //nolint:gosec // some hundred bytes
	return append(b, magic...), nil
}

// readTrailer reads and proves the end of a stored object.
func readTrailer(a tink.AEAD, ref Ref, o Object) (trailer, error) {
	var t trailer
	footer := make([]byte, footerSize)
	if o.Size() < int64(footerSize) {
		return t, damaged(ref.Key, "too short")
	}
	if _, err := o.ReadAt(footer, o.Size()-int64(footerSize)); err != nil && !errors.Is(err, io.EOF) {
		return t, fault.Wrap(err, "read the end of object %s", ref.Key)
	}
	n := int64(binary.BigEndian.Uint32(footer))
	body := o.Size() - int64(footerSize) - n
	if string(footer[4:]) != magic || n > maxTrailer || body < 0 {
		return t, damaged(ref.Key, "no trailer")
	}
	sealed := make([]byte, n)
	if _, err := o.ReadAt(sealed, body); err != nil && !errors.Is(err, io.EOF) {
		return t, fault.Wrap(err, "read the end of object %s", ref.Key)
	}
	plain, err := a.Decrypt(sealed, ref.associated("trailer"))
	if err != nil {
		return t, damaged(ref.Key, "the trailer cannot be decrypted")
	}
	if err := json.Unmarshal(plain, &t); err != nil {
		return t, damaged(ref.Key, "the trailer cannot be read")
	}
	if t.Stored != body {
		return t, damaged(ref.Key, "the length is wrong")
	}
	return t, nil
}

func (t trailer) info() Info { return Info{Size: t.Size, Digest: t.Digest, Sealed: t.Sealed} }

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// Reader reads an object from its start. Close it. Not safe for concurrent use.
type Reader struct {
	ctx    context.Context // of the one operation that this is
	key    Key
	object Object
	info   Info
	source *recording
	plain  io.Reader
	hash   hash.Hash
	n      int64
	err    error
	told   func(error) // of a damaged object; may be nil
}

// recording keeps the error of the driver, which Tink's reader may hide.
type recording struct {
	r   io.Reader
	err error
}

func (r *recording) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

func newReader(ctx context.Context, s tink.StreamingAEAD, ref Ref, o Object, t trailer) (*Reader, error) {
	source := &recording{r: io.NewSectionReader(o, 0, t.Stored)}
	r := &Reader{ctx: ctx, key: ref.Key, object: o, info: t.info(), source: source, plain: source, hash: sha256.New()}
	if !t.Sealed {
		var err error
		if r.plain, err = s.NewDecryptingReader(source, ref.associated("body")); err != nil {
			return nil, damaged(ref.Key, err.Error())
		}
	}
	return r, nil
}

// Info describes the object; its digest is proven once Read has said io.EOF.
func (r *Reader) Info() Info { return r.info }

// Read gives plaintext. It says io.EOF only when size and digest are right;
// otherwise the error has ErrDamaged in its chain.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.ctx.Err(); err != nil {
		r.err = fault.New(fault.Timeout, "read object %s: %w", r.key, context.Cause(r.ctx))
		return 0, r.err
	}
	n, err := r.plain.Read(p)
	r.hash.Write(p[:n])
	r.n += int64(n)
	switch {
	case err == nil && r.n <= r.info.Size:
		return n, nil
	case r.source.err != nil:
		r.err = fault.Wrap(r.source.err, "read object %s", r.key)
	case err != nil && !errors.Is(err, io.EOF):
		r.err = damaged(r.key, "the body cannot be decrypted")
	case r.n != r.info.Size || digestOf(r.hash) != r.info.Digest:
		r.err = damaged(r.key, "the digest is wrong")
	default:
		r.err = io.EOF
	}
	if r.told != nil && errors.Is(r.err, ErrDamaged) {
		r.told(r.err)
	}
	if n > 0 && errors.Is(r.err, io.EOF) {
		return n, nil // the next call says io.EOF
	}
	return n, r.err
}

// Close ends the reading.
func (r *Reader) Close() error { return r.object.Close() }

// counting counts what the driver gets.
type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// asIs is the body of a sealed object: no second encryption.
type asIs struct{ io.Writer }

func (asIs) Close() error { return nil }
