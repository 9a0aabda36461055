package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
)

// DefaultLimit bounds an object whose writer names no limit: 1 TiB.
const DefaultLimit int64 = 1 << 40

// maxInMemory bounds an encrypted object that OpenAt decrypts as a whole.
const maxInMemory = 256 << 20

// Store is encrypted object storage over a driver. Safe for concurrent use.
type Store struct {
	driver    Driver
	sealer    Sealer
	onDamaged func(ctx context.Context, ref Ref, err error)
}

// New makes a store.
func New(driver Driver, sealer Sealer) *Store { return &Store{driver: driver, sealer: sealer} }

// OnDamaged sets what is told of every object that was read and is damaged, besides its
// reader. Call it before the store is used.
func (s *Store) OnDamaged(tell func(ctx context.Context, ref Ref, err error)) { s.onDamaged = tell }

// told tells of an error if it says that the object is damaged.
func (s *Store) told(ctx context.Context, ref Ref, err error) error {
	if s.onDamaged != nil && errors.Is(err, ErrDamaged) {
		s.onDamaged(ctx, ref, err)
	}
	return err
}

// Option says how an object is written.
type Option func(*options)

type options struct {
	limit  int64
	sealed bool
	digest string
	hashed bool // digest is of what will be written, and need not be computed
}

// WithLimit refuses an object of more than n plaintext bytes with fault.TooLarge.
func WithLimit(n int64) Option { return func(o *options) { o.limit = n } }

// WithSealed stores the bytes as they come, because their own format encrypts
// and authenticates them (Parquet modular encryption). The digest is recorded.
func WithSealed() Option { return func(o *options) { o.sealed = true } }

// WithDigest refuses an object whose digest is another one ("sha256:<hex>") with
// fault.Invalid: nothing is stored.
func WithDigest(digest string) Option { return func(o *options) { o.digest = digest } }

// WithHashed says that the caller has computed the digest ("sha256:<hex>") of
// exactly what it writes, so that it is not computed again. With a wrong one the
// object opens as damaged.
func WithHashed(digest string) Option { return func(o *options) { o.digest, o.hashed = digest, true } }

// Put stores what body gives. Errors: those of Create and Commit, and body's own.
func (s *Store) Put(ctx context.Context, ref Ref, body io.Reader, opts ...Option) (Info, error) {
	w, err := s.Create(ctx, ref, opts...)
	if err != nil {
		return Info{}, err
	}
	defer w.Abort()
	if _, err := io.Copy(w, body); err != nil {
		return Info{}, fault.Wrap(err, "store object %s", ref.Key)
	}
	return w.Commit()
}

// Writer writes one object. Nobody sees it before Commit. Not safe for
// concurrent use. End it with Commit or Abort; ending ctx aborts it.
type Writer struct {
	ctx     context.Context // of the one operation that this is
	ref     Ref
	opts    options
	aead    tink.AEAD
	body    io.WriteCloser // encrypts into counted
	counted *counting
	pipe    *io.PipeWriter
	stop    func() bool // takes ctx's hand off the pipe
	done    chan error  // the driver's answer
	hash    hash.Hash
	size    int64
	err     error // the first error, then of every call
	ended   bool
}

var (
	errAborted = errors.New("the write was aborted")
	errEnded   = errors.New("the writer is closed")
)

// Create begins an object. What is written goes encrypted to its place at once,
// so a large object is on the disk one time only. Errors: fault.Invalid for the
// Ref, fault.Gone for a destroyed key.
func (s *Store) Create(ctx context.Context, ref Ref, opts ...Option) (*Writer, error) {
	o := options{limit: DefaultLimit}
	for _, f := range opts {
		f(&o)
	}
	if err := ref.check(); err != nil {
		return nil, err
	}
	a, err := s.sealer.AEAD(ctx, ref.Project, ref.Owner)
	if err != nil {
		return nil, fault.Wrap(err, "store object %s", ref.Key)
	}
	streaming, err := s.sealer.StreamingAEAD(ctx, ref.Project, ref.Owner)
	if err != nil {
		return nil, fault.Wrap(err, "store object %s", ref.Key)
	}

	pr, pw := io.Pipe()
	w := &Writer{
		ctx: ctx, ref: ref, opts: o, aead: a, pipe: pw, counted: &counting{w: pw}, hash: sha256.New(), done: make(chan error, 1),
	}
	w.stop = context.AfterFunc(ctx, func() { _ = pr.CloseWithError(stopped(ctx)) })
	go func() {
		err := s.driver.Put(ctx, ref.Key, pr)
		w.done <- err
		// The driver may have stopped before the end; nobody may wait for it.
		if err == nil {
			err = errEnded
		}
		_ = pr.CloseWithError(err)
	}()

	w.body = asIs{w.counted}
	if !o.sealed {
		if w.body, err = streaming.NewEncryptingWriter(w.counted, ref.associated("body")); err != nil {
			w.err = err
			w.Abort()
			return nil, fault.Wrap(err, "store object %s", ref.Key)
		}
	}
	return w, nil
}

// Write adds plaintext. Errors: fault.TooLarge over the limit, fault.Exhausted
// on a full disk.
func (w *Writer) Write(p []byte) (int, error) {
	if w.ended && w.err == nil {
		return 0, errEnded
	}
	if w.err != nil {
		return 0, w.err
	}
	if int64(len(p)) > w.opts.limit-w.size {
		w.err = fault.New(fault.TooLarge, "object %s exceeds %d bytes", w.ref.Key, w.opts.limit).
			WithHint("Split it, or raise the limit of its kind.")
		return 0, w.err
	}
	n, err := w.body.Write(p)
	if !w.opts.hashed {
		w.hash.Write(p[:n])
	}
	w.size += int64(n)
	if err != nil {
		w.err = fault.Wrap(err, "write object %s", w.ref.Key)
	}
	return n, w.err
}

// Commit publishes the object, durably, and describes it. Errors: fault.Invalid
// for another digest than promised, fault.Exhausted on a full disk, and the
// first error of Write. After an error nothing is stored.
func (w *Writer) Commit() (Info, error) {
	if w.ended && w.err == nil {
		w.err = errEnded
	}
	if w.err != nil {
		w.Abort()
		return Info{}, w.err
	}
	info := Info{Size: w.size, Digest: w.opts.digest, Sealed: w.opts.sealed}
	if !w.opts.hashed {
		info.Digest = digestOf(w.hash)
	}
	if w.opts.digest != "" && w.opts.digest != info.Digest {
		w.err = fault.New(fault.Invalid, "object %s has the digest %s, not %s", w.ref.Key, info.Digest, w.opts.digest).
			WithHint("Send it again: it was corrupted in transit, or the digest belongs to other content.")
		w.Abort()
		return Info{}, w.err
	}
	if err := w.finish(info); err != nil {
		w.err = fault.Wrap(err, "store object %s", w.ref.Key)
		w.Abort()
		return Info{}, w.err
	}
	w.end()
	if err := <-w.done; err != nil {
		if w.ctx.Err() != nil {
			err = stopped(w.ctx)
		}
		w.err = fault.Wrap(err, "store object %s", w.ref.Key)
		return Info{}, w.err
	}
	return info, nil
}

func stopped(ctx context.Context) error {
	return fault.New(fault.Timeout, "the write was stopped: %w", context.Cause(ctx))
}

func (w *Writer) finish(info Info) error {
	if err := w.body.Close(); err != nil {
		return err
	}
	t, err := encodeTrailer(w.aead, w.ref, trailer{Size: info.Size, Digest: info.Digest, Sealed: info.Sealed, Stored: w.counted.n})
	if err != nil {
		return err
	}
	if _, err := w.pipe.Write(t); err != nil {
		return err
	}
	return w.pipe.Close()
}

// Abort gives the object up and waits until nothing of it is left. After Commit
// or a second time it does nothing, so it can be deferred.
func (w *Writer) Abort() {
	if w.ended {
		return
	}
	_ = w.pipe.CloseWithError(errAborted)
	w.end()
	<-w.done //nolint:errcheck // our own error
}

func (w *Writer) end() {
	w.ended = true
	w.stop()
}

// Open reads an object. Errors: fault.NotFound, fault.Gone for a destroyed key,
// ErrDamaged.
func (s *Store) Open(ctx context.Context, ref Ref) (*Reader, error) {
	o, t, err := s.open(ctx, ref)
	if err != nil {
		return nil, err
	}
	streaming, err := s.sealer.StreamingAEAD(ctx, ref.Project, ref.Owner)
	if err != nil {
		_ = o.Close()
		return nil, fault.Wrap(err, "open object %s", ref.Key)
	}
	r, err := newReader(ctx, streaming, ref, o, t)
	if err != nil {
		_ = o.Close()
		return nil, s.told(ctx, ref, err)
	}
	r.told = func(err error) { _ = s.told(ctx, ref, err) }
	return r, nil
}

// ReaderAt reads an object at any place. Close it. Safe for concurrent use.
type ReaderAt struct {
	io.ReaderAt
	io.Closer
	info Info
}

// Info describes the object.
func (r *ReaderAt) Info() Info { return r.info }

// Size is in plaintext bytes.
func (r *ReaderAt) Size() int64 { return r.info.Size }

// OpenAt opens an object for reading at any place. Of a sealed object the length
// is proven, and the object's own format authenticates what is read. An
// encrypted object is decrypted into memory and proven whole; over 256 MiB that
// is a fault.TooLarge. Other errors as Open.
func (s *Store) OpenAt(ctx context.Context, ref Ref) (*ReaderAt, error) {
	o, t, err := s.open(ctx, ref)
	if err != nil {
		return nil, err
	}
	if t.Sealed {
		return &ReaderAt{ReaderAt: io.NewSectionReader(o, 0, t.Stored), Closer: o, info: t.info()}, nil
	}
	_ = o.Close()
	if t.Size > maxInMemory {
		return nil, fault.New(fault.TooLarge, "object %s has %d bytes and can only be read sequentially", ref.Key, t.Size).
			WithHint("Read it as a stream.")
	}
	r, err := s.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, 0, t.Size+1) // one more, so that the end is seen without growing
	buf := bytes.NewBuffer(b)
	if _, err := io.Copy(buf, io.LimitReader(r, t.Size+1)); err != nil {
		return nil, err
	}
	return &ReaderAt{ReaderAt: bytes.NewReader(buf.Bytes()), Closer: io.NopCloser(nil), info: r.Info()}, nil
}

// Stat describes an object without reading its body. Errors as Open.
func (s *Store) Stat(ctx context.Context, ref Ref) (Info, error) {
	o, t, err := s.open(ctx, ref)
	if err != nil {
		return Info{}, err
	}
	return t.info(), o.Close()
}

// Delete removes an object; that there is none is not an error.
func (s *Store) Delete(ctx context.Context, ref Ref) error {
	if err := ref.check(); err != nil {
		return err
	}
	return fault.Wrap(s.driver.Delete(ctx, ref.Key), "delete object %s", ref.Key)
}

// List yields the keys that begin with prefix, in byte order. yield may delete.
func (s *Store) List(ctx context.Context, prefix Key, yield func(Key) error) error {
	if err := CheckPrefix(prefix); err != nil {
		return err
	}
	return s.driver.List(ctx, prefix, yield)
}

// open opens the stored bytes and proves their trailer.
func (s *Store) open(ctx context.Context, ref Ref) (Object, trailer, error) {
	if err := ref.check(); err != nil {
		return nil, trailer{}, err
	}
	o, err := s.driver.Open(ctx, ref.Key)
	if err != nil {
		return nil, trailer{}, fault.Wrap(err, "open object %s", ref.Key)
	}
	a, err := s.sealer.AEAD(ctx, ref.Project, ref.Owner)
	if err != nil {
		_ = o.Close()
		return nil, trailer{}, fault.Wrap(err, "open object %s", ref.Key)
	}
	t, err := readTrailer(a, ref, o)
	if err != nil {
		_ = o.Close()
		return nil, trailer{}, s.told(ctx, ref, err)
	}
	return o, t, nil
}
