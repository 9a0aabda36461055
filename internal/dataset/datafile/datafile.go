// Package datafile keeps the files of datasets: sealed ones in the object store, and plain ones
// where other engines read them.
package datafile

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Form is how a file's bytes are kept.
type Form uint8

// The forms.
const (
	Enveloped  Form = iota // encrypted by the storage under the dataset's key
	SelfSealed             // encrypted by the file's own format
	Plain                  // as they are, for other engines to read
)

// File names a stored file.
type File struct {
	Project project.Name
	Dataset string // name; its key seals the file
	Key     string // "projects/p/datasets/weather/dsv_01J…/data-00000.parquet"
	Form    Form
}

// CheckKey refuses what is not the key of a file. Error: fault.Invalid.
func CheckKey(key string) error { return blob.CheckKey(blob.Key(key)) }

// Owner is the scope whose key seals the dataset's files.
func Owner(dataset string) string { return "dataset/" + dataset }

// Store keeps files.
type Store interface {
	// Create begins a file. Nothing of it is visible before Commit returns nil;
	// then it is there after power loss.
	Create(ctx context.Context, f File) (Writer, error)
	// Open reads a file at any place. Error: fault.NotFound.
	Open(ctx context.Context, f File) (Reader, error)
	// Remove removes every file whose key begins with the prefix.
	Remove(ctx context.Context, prefix string) error
	// Sweep removes the plain files below the prefix that were written before a
	// time and that stray holds for; it gives how many.
	Sweep(ctx context.Context, prefix string, before time.Time, stray func(key string) bool) (int, error)
	// URI is where another engine finds a file.
	URI(key string) string
}

// Writer writes a file. Abort after Commit does nothing.
type Writer interface {
	io.Writer
	Commit() error
	Abort()
}

// Reader reads a file. Close it.
type Reader interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Blobs keeps files in the object store; plain ones go around its encryption
// to a place of their own, where other engines read them by their names.
type Blobs struct {
	Blobs  *blob.Store
	Driver blob.Driver // under Blobs
	Tables blob.Driver // of plain files
	// Locate returns the address of a plain file for other engines: "file:///data/tables/KEY",
	// "s3://bucket/KEY". nil gives "falaj:KEY".
	Locate func(key blob.Key) string
}

var _ Store = (*Blobs)(nil)

func (f File) ref() blob.Ref {
	return blob.Ref{Project: string(f.Project), Owner: Owner(f.Dataset), Key: blob.Key(f.Key)}
}

// Create implements Store.
func (b *Blobs) Create(ctx context.Context, f File) (Writer, error) {
	switch f.Form {
	case Plain:
		if err := blob.CheckKey(blob.Key(f.Key)); err != nil {
			return nil, err
		}
		return newPlainWriter(ctx, b.Tables, blob.Key(f.Key)), nil
	case SelfSealed:
		w, err := b.Blobs.Create(ctx, f.ref(), blob.WithSealed())
		if err != nil {
			return nil, err
		}
		return blobWriter{w}, nil
	default:
		w, err := b.Blobs.Create(ctx, f.ref())
		if err != nil {
			return nil, err
		}
		return blobWriter{w}, nil
	}
}

type blobWriter struct{ *blob.Writer }

func (w blobWriter) Commit() error {
	_, err := w.Writer.Commit()
	return err
}

// plainWriter streams into a driver's Put.
type plainWriter struct {
	pipe *io.PipeWriter
	done chan struct{} // closed when Put has returned
	err  error         // of Put; read after done
	end  bool
}

func newPlainWriter(ctx context.Context, d blob.Driver, key blob.Key) *plainWriter {
	r, w := io.Pipe()
	p := &plainWriter{pipe: w, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = d.Put(ctx, key, r)
		_ = r.CloseWithError(p.err)
	}()
	return p
}

func (p *plainWriter) Write(b []byte) (int, error) { return p.pipe.Write(b) }

func (p *plainWriter) Commit() error {
	if p.end {
		return fault.New(fault.Internal, "the file is already complete")
	}
	p.end = true
	_ = p.pipe.Close()
	<-p.done
	return p.err
}

func (p *plainWriter) Abort() {
	if p.end {
		return
	}
	p.end = true
	_ = p.pipe.CloseWithError(fault.New(fault.Internal, "given up"))
	<-p.done
}

// Open implements Store.
func (b *Blobs) Open(ctx context.Context, f File) (Reader, error) {
	if f.Form == Plain {
		if err := blob.CheckKey(blob.Key(f.Key)); err != nil {
			return nil, err
		}
		o, err := b.Tables.Open(ctx, blob.Key(f.Key))
		if fault.Is(err, fault.NotFound) { // of a version before plain files had a place of their own
			o, err = b.Driver.Open(ctx, blob.Key(f.Key))
		}
		if err != nil {
			return nil, err
		}
		return plainReader{o}, nil
	}
	r, err := b.Blobs.OpenAt(ctx, f.ref())
	if err != nil {
		return nil, err
	}
	return r, nil
}

type plainReader struct{ blob.Object }

// Remove implements Store.
func (b *Blobs) Remove(ctx context.Context, prefix string) error {
	if err := blob.CheckPrefix(blob.Key(prefix)); err != nil {
		return err
	}
	for _, d := range []blob.Driver{b.Driver, b.Tables} {
		if err := d.List(ctx, blob.Key(prefix), func(k blob.Key) error { return d.Delete(ctx, k) }); err != nil {
			return err
		}
	}
	return nil
}

// aged is a driver that knows when objects were written. What is in one that does
// not is not swept.
type aged interface {
	Written(ctx context.Context, key blob.Key) (time.Time, error)
}

// Sweep implements Store.
func (b *Blobs) Sweep(ctx context.Context, prefix string, before time.Time, stray func(key string) bool) (n int, err error) {
	driver, ok := b.Tables.(aged)
	if !ok {
		return 0, nil
	}
	err = b.Tables.List(ctx, blob.Key(prefix), func(k blob.Key) error {
		if !stray(string(k)) {
			return nil
		}
		at, err := driver.Written(ctx, k)
		if fault.Is(err, fault.NotFound) || err == nil && !at.Before(before) {
			return nil
		}
		if err == nil {
			err = b.Tables.Delete(ctx, k)
		}
		if err == nil {
			n++
		}
		return err
	})
	return n, err
}

// URI implements Store.
func (b *Blobs) URI(key string) string {
	if b.Locate == nil {
		return "falaj:" + key
	}
	return b.Locate(blob.Key(key))
}

// Put writes a small file whole.
func Put(ctx context.Context, s Store, f File, write func(w io.Writer) error) error {
	var buf bytes.Buffer
	if err := write(&buf); err != nil {
		return err
	}
	w, err := s.Create(ctx, f)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := buf.WriteTo(w); err != nil {
		return err
	}
	return w.Commit()
}
