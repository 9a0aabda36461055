package s3blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

const (
	mark      = "Falaj-Put" // in an object's metadata: which put stored it
	atOnce    = 4           // parts of a put that are on their way
	maxParts  = 10_000      // of S3
	growAfter = 500         // parts are larger by a PartSize after so many: a TiB fits
)

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Put stores body under key. See blob.Driver.
func (d *Driver) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	name := d.name(key)
	if len(name) > maxName {
		return fault.New(fault.Invalid, "the name of object %s has %d bytes in the bucket", key, len(name)).WithHint("A name has at most %d bytes: shorten blob.s3.prefix.", maxName)
	}
	opts := minio.PutObjectOptions{UserMetadata: map[string]string{mark: id.New("put")}, ContentType: "application/octet-stream"}
	first, last, err := part(body, d.cfg.PartSize)
	if err != nil {
		return err
	}
	if !last {
		return d.inParts(ctx, name, first, body, opts)
	}
	if err := d.send(ctx, name, first.Bytes(), opts); err != nil && !d.stored(ctx, name, opts, err) {
		return d.explain(ctx, err, "write")
	}
	buffers.Put(first)
	return nil
}

// part reads the next part, and says whether it is the last.
func part(body io.Reader, size int64) (b *bytes.Buffer, last bool, err error) {
	b, _ = buffers.Get().(*bytes.Buffer)
	b.Reset()
	n, err := io.Copy(b, io.LimitReader(body, size))
	if err != nil {
		return nil, false, fault.Wrap(err, "write")
	}
	return b, n < size, nil
}

// inParts stores an object that has more than the first part, which is given to it.
func (d *Driver) inParts(ctx context.Context, name string, next *bytes.Buffer, body io.Reader, opts minio.PutObjectOptions) error {
	begin, cancel := limit(ctx, 0)
	upload, err := d.c.NewMultipartUpload(begin, d.cfg.Bucket, name, opts)
	cancel()
	if err != nil {
		return d.explain(ctx, err, "write")
	}
	parts, err := d.sendParts(ctx, name, upload, next, body)
	if err == nil {
		end, cancel := limit(ctx, 0)
		err = again(end, func() error {
			_, err := d.c.CompleteMultipartUpload(end, d.cfg.Bucket, name, upload, parts, minio.PutObjectOptions{})
			return err
		})
		cancel()
		if err == nil || d.stored(ctx, name, opts, err) {
			return nil
		}
	}
	// Also when ctx has ended; if it fails, the next Open does it.
	_ = d.giveUp(context.WithoutCancel(ctx), name, upload)
	return d.explain(ctx, err, "write")
}

func (d *Driver) sendParts(ctx context.Context, name, upload string, next *bytes.Buffer, body io.Reader) (done []minio.CompletePart, err error) {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	var mu sync.Mutex
	for n, last := 1, false; ; n++ {
		b := next
		group.Go(func() error {
			sent, err := d.sendPart(within, name, upload, n, b.Bytes())
			if err == nil { // else the connection may still be reading it
				buffers.Put(b)
			}
			mu.Lock()
			done = append(done, sent)
			mu.Unlock()
			return err
		})
		if last || within.Err() != nil {
			break
		}
		if n == maxParts {
			err = fault.New(fault.TooLarge, "the object has more than %d parts", maxParts).WithHint("Split it.")
			break
		}
		if next, last, err = part(body, d.cfg.PartSize*int64(1+n/growAfter)); err != nil {
			break
		}
		if last && next.Len() == 0 {
			break
		}
	}
	if failed := group.Wait(); err == nil {
		err = failed
	}
	slices.SortFunc(done, func(a, b minio.CompletePart) int { return a.PartNumber - b.PartNumber })
	return done, err
}

func (d *Driver) sendPart(ctx context.Context, name, upload string, n int, body []byte) (minio.CompletePart, error) {
	ctx, cancel := limit(ctx, int64(len(body)))
	defer cancel()
	sent, err := d.c.PutObjectPart(ctx, d.cfg.Bucket, name, upload, n, bytes.NewReader(body), int64(len(body)), minio.PutObjectPartOptions{Sha256Hex: sum(body)})
	return minio.CompletePart{PartNumber: n, ETag: sent.ETag}, err
}

// stored reports whether a put that ended with an error is there all the same,
// because only the answer was lost.
func (d *Driver) stored(ctx context.Context, name string, opts minio.PutObjectOptions, err error) bool {
	said, answered := errors.AsType[minio.ErrorResponse](err)
	if answered && said.StatusCode >= 400 && said.StatusCode < 500 && said.Code != "NoSuchUpload" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	info, err := d.c.StatObject(ctx, d.cfg.Bucket, name, minio.StatObjectOptions{})
	return err == nil && info.UserMetadata[mark] == opts.UserMetadata[mark]
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
