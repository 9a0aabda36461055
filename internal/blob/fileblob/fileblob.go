// Package fileblob keeps objects as files under one directory.
//
// # Life of a put
//
// The bytes go to a file in ",staging/stg_…", a directory of this Driver alone;
// the file is synced, renamed to its place, and the directory of the place is
// synced. A killed process leaves its staging directory behind; the next Open
// removes those that no living Driver holds locked.
//
// An object "a/b" is the file "a/b,": no key has a comma, so an object and a
// directory of the same name do not meet, and nothing of ours looks like a key.
// OpenNamed leaves the comma out, for files that other programs read by name; an
// object is then no directory of another.
//
// # Guarantees
//
// Everything happens inside an os.Root: no key, link or race leads out of the
// directory. A link on the way to an object, and an object with a second hard
// link, are refused: nothing of ours makes them. Objects are read and removed in
// directories that are opened one below the other, so that whoever moves things
// in a part of a named directory meanwhile leads us nowhere else in it.
package fileblob

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

const (
	mark     = "," // in no key
	staging  = mark + "staging"
	bufBytes = 256 << 10
)

// Driver is a blob.Driver on a directory. Safe for concurrent use; Close it.
type Driver struct {
	root   *os.Root
	suffix string   // of the files of objects
	stage  string   // our directory under staging
	lock   *os.File // holds the lock on stage

	// mu: placing a file in a directory that exists is shared; making and
	// removing directories is exclusive. So no directory vanishes between the
	// look at it and the rename into it, and none is used before it is synced.
	mu sync.RWMutex
}

var _ blob.Driver = (*Driver)(nil)

// Open opens (or makes, mode 0700) the directory and removes what killed
// processes left unfinished. Several Drivers may share a directory.
func Open(dir string) (*Driver, error) { return openDir(dir, mark) }

// OpenNamed is Open for a directory where an object's key is its file's name, as
// other programs read and write it.
func OpenNamed(dir string) (*Driver, error) { return openDir(dir, "") }

func openDir(dir, suffix string) (*Driver, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, describe(err, "create the object directory")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(err, "open the object directory")
	}
	d := &Driver{root: root, suffix: suffix}
	if err := d.prepare(); err != nil {
		_ = root.Close()
		return nil, describe(err, "prepare the object directory")
	}
	return d, nil
}

func (d *Driver) prepare() error {
	if err := d.root.Mkdir(staging, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.clean(); err != nil {
		return err
	}
	// Another Open may take a directory for abandoned before it is locked; then
	// it is gone when we look again.
	for {
		d.stage = path.Join(staging, id.New("stg"))
		if err := d.root.Mkdir(d.stage, 0o700); err != nil {
			return err
		}
		lock, err := d.root.Open(d.stage)
		if err != nil {
			return err
		}
		if locked(lock) {
			if _, err := d.root.Lstat(d.stage); err == nil {
				d.lock = lock
				return d.syncDir(".")
			}
		}
		_ = lock.Close()
	}
}

// clean removes the staging directories of processes that are gone.
func (d *Driver) clean() error {
	names, err := d.read(staging)
	if err != nil {
		return err
	}
	for _, e := range names {
		name := path.Join(staging, e.Name())
		f, err := d.root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if locked(f) {
			err = d.root.RemoveAll(name)
		}
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func locked(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// Close gives the directory back. Puts that still run fail.
func (d *Driver) Close() error {
	err := d.root.RemoveAll(d.stage)
	if cerr := d.lock.Close(); err == nil {
		err = cerr
	}
	if cerr := d.root.Close(); err == nil {
		err = cerr
	}
	return err
}

var buffers = sync.Pool{New: func() any { b := make([]byte, bufBytes); return &b }}

// Put stores body under key. See blob.Driver.
func (d *Driver) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	name := path.Join(d.stage, id.New("put"))
	if err := d.write(ctx, name, body); err != nil {
		_ = d.root.Remove(name)
		return describe(err, "write")
	}
	if err := d.publish(name, string(key)+d.suffix); err != nil {
		_ = d.root.Remove(name)
		return describe(err, "publish")
	}
	return nil
}

func (d *Driver) write(ctx context.Context, name string, body io.Reader) error {
	f, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	buf, _ := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// The structs hide ReadFrom and WriteTo, which would use smaller buffers.
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{&until{ctx, body}}, *buf)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// until reads while ctx lasts.
type until struct {
	ctx context.Context // of the one Put
	r   io.Reader
}

func (u *until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, fault.New(fault.Timeout, "the write was stopped: %w", context.Cause(u.ctx))
	}
	return u.r.Read(p)
}

func (d *Driver) publish(from, to string) error {
	d.mu.RLock()
	err := d.place(from, to)
	d.mu.RUnlock()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mkdirs(path.Dir(to)); err != nil {
		return err
	}
	return d.place(from, to)
}

func (d *Driver) place(from, to string) error {
	if err := d.checkParents(to); err != nil {
		return err
	}
	if err := d.root.Rename(from, to); err != nil {
		return err
	}
	return d.syncDir(path.Dir(to))
}

func (d *Driver) mkdirs(dir string) error {
	for _, p := range prefixes(dir) {
		err := d.root.Mkdir(p, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = d.syncDir(path.Dir(p))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prefixes of "a/b/c" are "a", "a/b", "a/b/c"; of "." none.
func prefixes(dir string) []string {
	if dir == "." {
		return nil
	}
	var all []string
	for i := range len(dir) {
		if dir[i] == '/' {
			all = append(all, dir[:i])
		}
	}
	return append(all, dir)
}

// enter opens a directory by a way that leads over no link, whatever happens to it
// meanwhile. Close it.
func (d *Driver) enter(dir string) (*os.File, error) {
	at, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	for _, p := range prefixes(path.Clean(dir)) {
		next, err := openIn(at, path.Base(p), syscall.O_RDONLY|syscall.O_DIRECTORY)
		_ = at.Close()
		if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
			return nil, foreign(p, "not a directory")
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// openIn opens what has a name in an open directory, and is no link.
func openIn(dir *os.File, base string, flags int) (f *os.File, err error) {
	err = in(dir, "openat", base, func(fd int) error {
		got, err := unix.Openat(fd, base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			f = os.NewFile(uintptr(got), base)
		}
		return err
	})
	return f, err
}

// in does something in an open directory, again where a signal came between.
func in(dir *os.File, doing, base string, do func(fd int) error) error {
	for {
		err := do(int(dir.Fd()))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return &fs.PathError{Op: doing, Path: base, Err: err}
		default:
			return nil
		}
	}
}

// checkParents refuses a way that leads over a link.
func (d *Driver) checkParents(name string) error {
	at, err := d.enter(path.Dir(name))
	if err != nil {
		return err
	}
	return at.Close()
}

func foreign(name, what string) error {
	return fault.New(fault.Internal, "%s in the object directory is %s", name, what).
		WithHint("Falaj did not create it: find out what did, and remove it.")
}

func (d *Driver) syncDir(name string) error {
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// object is an open file of known size.
type object struct {
	*os.File
	size int64
}

func (o object) Size() int64 { return o.size }

// Open opens an object. See blob.Driver.
func (d *Driver) Open(_ context.Context, key blob.Key) (blob.Object, error) {
	o, err := d.open(string(key) + d.suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "object %s not found", key)
	}
	if err != nil {
		return nil, describe(err, "open")
	}
	return o, nil
}

func (d *Driver) open(name string) (blob.Object, error) {
	dir, err := d.enter(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	f, err := openIn(dir, path.Base(name), syscall.O_RDONLY)            // a pipe does not block it
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, a socket
		return nil, foreign(name, "not a regular file")
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		switch st, ok := info.Sys().(*syscall.Stat_t); {
		case !info.Mode().IsRegular():
			err = foreign(name, "not a regular file")
		case ok && st.Nlink > 1:
			err = foreign(name, "a file with a second hard link")
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return object{File: f, size: info.Size()}, nil
}

// Written is when an object was put. Error: fault.NotFound.
func (d *Driver) Written(_ context.Context, key blob.Key) (time.Time, error) {
	info, err := d.root.Lstat(string(key) + d.suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, fault.New(fault.NotFound, "object %s not found", key)
	}
	if err != nil {
		return time.Time{}, describe(err, "look at")
	}
	return info.ModTime(), nil
}

// Size implements blob.Sized.
func (d *Driver) Size(_ context.Context, key blob.Key) (int64, error) {
	info, err := d.root.Lstat(string(key) + d.suffix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && info.IsDir() {
		return 0, fault.New(fault.NotFound, "object %s not found", key)
	}
	if err != nil {
		return 0, describe(err, "look at")
	}
	return info.Size(), nil
}

// Sizes implements blob.Sized.
func (d *Driver) Sizes(ctx context.Context, prefix blob.Key, yield func(blob.Key, int64) error) error {
	return d.List(ctx, prefix, func(key blob.Key) error {
		size, err := d.Size(ctx, key)
		if fault.Is(err, fault.NotFound) { // deleted meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		return yield(key, size)
	})
}

// Delete removes an object and the directories it leaves empty.
func (d *Driver) Delete(_ context.Context, key blob.Key) error {
	name := string(key) + d.suffix
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.remove(name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return describe(err, "delete")
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if d.remove(dir, unix.AT_REMOVEDIR) != nil {
			break // not empty
		}
	}
	return nil
}

// remove removes a file, or with AT_REMOVEDIR an empty directory, durably.
func (d *Driver) remove(name string, flags int) error {
	dir, err := d.enter(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	base := path.Base(name)
	if err := in(dir, "unlinkat", base, func(fd int) error { return unix.Unlinkat(fd, base, flags) }); err != nil {
		return err
	}
	return dir.Sync()
}

// List yields keys in byte order. See blob.Driver.
func (d *Driver) List(ctx context.Context, prefix blob.Key, yield func(blob.Key) error) error {
	dir := ""
	if i := strings.LastIndexByte(string(prefix), '/'); i >= 0 {
		dir = string(prefix)[:i+1]
	}
	return d.list(ctx, dir, string(prefix), yield)
}

// list walks dir, which is "" or ends in '/'.
func (d *Driver) list(ctx context.Context, dir, prefix string, yield func(blob.Key) error) error {
	if err := ctx.Err(); err != nil {
		return fault.New(fault.Timeout, "listing objects was stopped: %w", context.Cause(ctx))
	}
	entries, err := d.read(path.Clean("./" + dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // never there, or deleted meanwhile
	}
	if err != nil {
		return describe(err, "list")
	}
	type item struct {
		key string
		dir bool
	}
	var items []item
	for _, e := range entries {
		name, isObject := strings.CutSuffix(e.Name(), d.suffix)
		switch {
		case e.IsDir() && !strings.Contains(e.Name(), mark):
			items = append(items, item{dir + e.Name() + "/", true})
		case e.Type().IsRegular() && isObject && !strings.Contains(name, mark):
			items = append(items, item{dir + name, false})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.key, b.key) })
	for _, it := range items {
		if it.dir {
			if !strings.HasPrefix(it.key, prefix) && !strings.HasPrefix(prefix, it.key) {
				continue
			}
			err = d.list(ctx, it.key, prefix, yield)
		} else if strings.HasPrefix(it.key, prefix) {
			err = yield(blob.Key(it.key))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) read(dir string) ([]os.DirEntry, error) {
	f, err := d.enter(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// describe gives errors of the file system their kind.
func describe(err error, doing string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.New(fault.Exhausted, "%s: the disk of the object directory is full: %w", doing, err).
			WithHint("Free space on the disk of the data directory, then try again; nothing was stored.")
	}
	return fault.Wrap(err, "%s", doing)
}
