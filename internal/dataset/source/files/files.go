// Package files reads files of directories that the configuration names, on local
// disks or mounted file systems.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/objects"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.Files
	if err := objects.Check("files", o.Match, o.Format, r); err != nil {
		return err
	}
	_, err := r.Access.Directory(o.Directory)
	return err
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (source.Reader, error) {
	o := *r.From.Files
	dir, err := r.Access.Directory(o.Directory)
	if err != nil {
		return nil, err
	}
	// Nothing outside of the root is opened, whatever links there are in it.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, explain(o.Directory, err)
	}
	return objects.Open(ctx, &bucket{root, o.Match}, o.Format, r)
}

type bucket struct {
	root  *os.Root
	match string
}

// List implements objects.Bucket.
func (b *bucket) List(ctx context.Context) (objects.Listing, error) {
	depth := strings.Count(b.match, "/")
	out := objects.Listing{}
	err := fs.WalkDir(b.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return explain(name, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.Count(name, "/") >= depth || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !objects.Match(b.match, name) || !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return explain(name, err)
		}
		if out[name] = tag(info); len(out) > objects.MaxFiles {
			return fault.New(fault.TooLarge, "there are more than %d files", objects.MaxFiles).WithHint("Narrow spec.from.files.match.")
		}
		return nil
	})
	return out, err
}

func tag(i fs.FileInfo) string { return fmt.Sprintf("%d-%d", i.Size(), i.ModTime().UnixNano()) }

// Open implements objects.Bucket.
func (b *bucket) Open(_ context.Context, name string) (io.ReadCloser, string, error) {
	f, err := b.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would block
	if err != nil {
		return nil, "", explain(name, err)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, "", fault.New(fault.Invalid, "%s is not a regular file", name)
	}
	return &file{f: f, name: name, was: tag(info), left: info.Size()}, tag(info), nil
}

// file is read up to the size that it had, and has not been read when it was changed
// meanwhile.
type file struct {
	f         *os.File
	name, was string
	left      int64
}

func (f *file) Read(p []byte) (int, error) {
	if f.left > 0 {
		n, err := f.f.Read(p[:min(int64(len(p)), f.left)])
		f.left -= int64(n)
		if err == nil || !errors.Is(err, io.EOF) {
			return n, explain(f.name, err)
		}
	}
	info, err := f.f.Stat()
	if err != nil {
		return 0, explain(f.name, err)
	}
	if tag(info) != f.was {
		return 0, objects.Changed(f.name)
	}
	return 0, io.EOF
}

func (f *file) Close() error { return f.f.Close() }

// Close implements objects.Bucket.
func (b *bucket) Close() error { return b.root.Close() }

func explain(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.NotFound, "there is no %s", name)
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Invalid, "the server may not read %s", name).WithHint("Grant the server's user read permission.")
	}
	return fault.New(fault.Unavailable, "reading %s: %w", name, err)
}
