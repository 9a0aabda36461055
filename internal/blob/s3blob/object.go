package s3blob

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	tailBytes = 64 << 10 // of an object, fetched by Open: its trailer, and all of a small one
	ahead     = 4 << 20  // fetched at once of what is read in order
)

// object is an object at one version. What is read in order is fetched ahead.
type object struct {
	d      *Driver
	ctx    context.Context // of Open without its end; Close ends it
	cancel context.CancelFunc
	name   string
	etag   string
	size   int64
	tail   []byte // the last bytes

	mu     sync.Mutex // one reader has window; others fetch what they want
	window []byte
	from   int64 // where window begins
	next   int64 // where the last read ended

	at int64 // of Read
}

// Open opens an object. See blob.Driver.
func (d *Driver) Open(ctx context.Context, key blob.Key) (blob.Object, error) {
	name := d.name(key)
	tail, info, err := d.fetch(ctx, name, func(o *minio.GetObjectOptions) { _ = o.SetRange(0, -tailBytes) }, tailBytes)
	if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable { // of nothing there are no last bytes
		tail, info, err = d.fetch(ctx, name, func(*minio.GetObjectOptions) {}, 0)
	}
	if absent(err) {
		return nil, fault.New(fault.NotFound, "object %s not found", key)
	}
	if err != nil {
		return nil, d.explain(ctx, err, "open")
	}
	o := &object{d: d, name: name, etag: info.etag, size: info.size, tail: tail}
	o.ctx, o.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return o, nil
}

// version is what an answer says of the whole object.
type version struct {
	etag string
	size int64
}

// fetch gets a piece of at most so many bytes, whole. minio-go tries requests again,
// and fetch answers that break off.
func (d *Driver) fetch(ctx context.Context, name string, piece func(*minio.GetObjectOptions), most int64) (b []byte, v version, err error) {
	ctx, cancel := limit(ctx, most)
	defer cancel()
	for try := 1; ; try++ {
		var broken bool
		b, v, broken, err = d.fetchOnce(ctx, name, piece, most)
		if !broken || try == tries || ctx.Err() != nil {
			return b, v, err
		}
	}
}

func (d *Driver) fetchOnce(ctx context.Context, name string, piece func(*minio.GetObjectOptions), most int64) (b []byte, v version, broken bool, err error) {
	opts := minio.GetObjectOptions{}
	piece(&opts)
	body, info, header, err := d.c.GetObject(ctx, d.cfg.Bucket, name, opts)
	if err != nil {
		return nil, version{}, false, err
	}
	defer func() { _ = body.Close() }()
	v = version{etag: info.ETag, size: info.Size}
	if whole := header.Get("Content-Range"); whole != "" {
		_, total, _ := strings.Cut(whole, "/")
		if v.size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return nil, v, false, fault.New(fault.Unavailable, "%s returned the range %q", d.cfg.Endpoint, whole)
		}
	}
	if info.Size < 0 { // a proxy sends it in chunks
		return nil, v, false, fault.New(fault.Unavailable, "%s returned no Content-Length", d.cfg.Endpoint)
	}
	if info.Size > most {
		return nil, v, false, fault.New(fault.Unavailable, "%s returned %d bytes instead of %d", d.cfg.Endpoint, info.Size, most)
	}
	b = make([]byte, info.Size)
	if _, err := io.ReadFull(body, b); err != nil {
		return nil, v, true, err
	}
	return b, v, false, nil
}

// Size implements blob.Object.
func (o *object) Size() int64 { return o.size }

// Close implements blob.Object.
func (o *object) Close() error {
	o.cancel()
	return nil
}

// Read implements blob.Object. It is not safe for concurrent use, as no Reader is.
func (o *object) Read(p []byte) (int, error) {
	n, err := o.ReadAt(p, o.at)
	o.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// ReadAt implements blob.Object.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fault.New(fault.Internal, "a read at %d", off)
	}
	if off >= o.size {
		return 0, io.EOF
	}
	want := min(int64(len(p)), o.size-off)
	if err := o.read(p[:want], off); err != nil {
		return 0, err
	}
	if want < int64(len(p)) {
		return int(want), io.EOF
	}
	return int(want), nil
}

// read fills p, which is not beyond the end.
func (o *object) read(p []byte, off int64) error {
	if before := o.size - int64(len(o.tail)); off >= before {
		copy(p, o.tail[off-before:])
		return nil
	}
	if !o.mu.TryLock() {
		return o.get(p, off)
	}
	defer o.mu.Unlock()
	inOrder := off == o.next
	o.next = off + int64(len(p))
	for len(p) > 0 {
		if in := off - o.from; in >= 0 && in < int64(len(o.window)) {
			n := copy(p, o.window[in:])
			p, off = p[n:], off+int64(n)
			continue
		}
		if !inOrder || len(p) >= ahead {
			return o.get(p, off)
		}
		window := make([]byte, min(ahead, o.size-off))
		if err := o.get(window, off); err != nil {
			return err
		}
		o.window, o.from = window, off
	}
	return nil
}

// get fetches a piece of the version that was opened.
func (o *object) get(p []byte, off int64) error {
	b, _, err := o.d.fetch(o.ctx, o.name, func(g *minio.GetObjectOptions) {
		_ = g.SetRange(off, off+int64(len(p))-1)
		_ = g.SetMatchETag(o.etag)
	}, int64(len(p)))
	switch {
	case absent(err) || minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed:
		return fault.New(fault.Conflict, "the object was replaced or deleted while it was read").WithHint("Read the object again.")
	case err != nil:
		return o.d.explain(o.ctx, err, "read")
	case len(b) != len(p):
		return fault.New(fault.Unavailable, "read: %s returned %d bytes instead of %d", o.d.cfg.Endpoint, len(b), len(p))
	}
	copy(p, b)
	return nil
}
