// Package outputdir lists and opens what a running worker has written below its output
// directory, for the server where the directory is on its machine, and for the agent
// elsewhere. A worker may write what it likes there: listings are bounded, links that
// leave the directory lead nowhere, and no pipe is waited for. Standard library only.
package outputdir

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// MaxFiles is how many files are listed.
const MaxFiles = 10_000

// limits bound a listing.
type limits struct {
	files   int
	entries int // that are read
	path    int // bytes of one; a longer one is left out, as Linux opens none
	paths   int // bytes of all
}

var standard = limits{files: MaxFiles, entries: 50_000, path: 4096, paths: 4 << 20}

// entriesAtOnce is how much of a directory is read before its listing looks at its context.
const entriesAtOnce = 256

// OutputFile is a plain file below the output directory.
type OutputFile struct {
	Path    string    `json:"path"`
	Size    int64     `json:"bytes"` // as now: it may grow
	Changed time.Time `json:"changed_at"`
}

// Listing is what is below a path, sorted by path.
type Listing struct {
	Files []OutputFile `json:"items"`
	More  bool         `json:"more"` // there are more than the limits allow to list
}

// Clean gives a path below the output directory. Error: fault.Invalid.
func Clean(p string) (string, error) {
	p = path.Clean("/" + p)[1:]
	if p == "" {
		p = "."
	}
	if !fs.ValidPath(p) {
		return "", fault.New(fault.Invalid, "%.200q is not a path below the output directory", p)
	}
	return p, nil
}

// OpenDir opens an output directory, which is in a directory of Falaj's. A link out of that in
// its place, which a job without a sandbox can make, is not followed: fault.NotFound.
func OpenDir(dir string) (*os.Root, error) {
	above, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	root, err := above.OpenRoot(filepath.Base(dir))
	if err != nil {
		err = unread(above, filepath.Base(dir), err)
	}
	return root, err
}

// List lists the plain files at and below a path that Clean gave. Errors: fault.NotFound;
// fault.Conflict where modes forbid it.
func List(ctx context.Context, root *os.Root, below string) (Listing, error) {
	out := Listing{Files: []OutputFile{}}
	info, err := root.Stat(below)
	switch {
	case err != nil:
		return out, unread(root, below, err)
	case info.IsDir():
		l := listing{limits: standard, Listing: out, dirs: []string{below}}
		if err := l.walk(ctx, root); err != nil {
			return out, unread(root, below, err)
		}
		return l.Listing, nil
	}
	if info, err = root.Lstat(below); err != nil {
		return out, unread(root, below, err)
	}
	if info.Mode().IsRegular() && utf8.ValidString(below) {
		out.Files = append(out.Files, OutputFile{Path: below, Size: info.Size(), Changed: info.ModTime().UTC()})
	}
	return out, nil
}

// Check refuses a listing that another machine tells and that List would not give.
func (l Listing) Check() error {
	if len(l.Files) > standard.files {
		return fault.New(fault.TooLarge, "a listing has more than %d files", standard.files)
	}
	paths := 0
	for _, f := range l.Files {
		if paths += len(f.Path); paths > standard.paths {
			return fault.New(fault.TooLarge, "the paths of a listing have more than %d bytes", standard.paths)
		}
		if !fs.ValidPath(f.Path) || f.Path == "." || len(f.Path) > standard.path || !utf8.ValidString(f.Path) || f.Size < 0 {
			return fault.New(fault.Invalid, "%.200q is not a file below an output directory", f.Path)
		}
	}
	return nil
}

// Merge adds the files of another worker; of files of one path that of the receiver stays,
// as when the output is stored. The limits are those of one listing.
func (l Listing) Merge(other Listing) Listing {
	out := Listing{Files: slices.Clone(l.Files), More: l.More || other.More}
	have := make(map[string]bool, len(l.Files))
	for _, f := range l.Files {
		have[f.Path] = true
	}
	for _, f := range other.Files {
		if !have[f.Path] {
			out.Files = append(out.Files, f)
		}
	}
	slices.SortFunc(out.Files, func(a, b OutputFile) int { return strings.Compare(a.Path, b.Path) })
	paths := 0
	for i, f := range out.Files {
		if paths += len(f.Path); i == standard.files || paths > standard.paths {
			clear(out.Files[i:]) // their paths are not kept in memory
			out.Files, out.More = out.Files[:i], true
			break
		}
	}
	return out
}

// listing collects the plain files below a directory within the limits, however many a
// worker has written there.
type listing struct {
	Listing
	limits limits
	dirs   []string // to be read
	walked int      // entries
	paths  int      // bytes of the paths in files, and of those that were in dirs
	full   bool     // no more entries are read
}

// walk reads the directories and sorts the files by path. A directory that goes meanwhile is
// skipped, except the first.
func (l *listing) walk(ctx context.Context, root *os.Root) error {
	for i := 0; i < len(l.dirs) && !l.full; i++ {
		if err := l.read(ctx, root, l.dirs[i]); err != nil && (i == 0 || !absent(root, err)) {
			return err
		}
	}
	slices.SortFunc(l.Files, func(a, b OutputFile) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// read reads a directory in parts.
func (l *listing) read(ctx context.Context, root *os.Root, dir string) error {
	// A pipe could be put in its place, and is not waited for.
	d, err := root.OpenFile(filepath.FromSlash(dir), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	for !l.full {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		entries, err := d.ReadDir(entriesAtOnce)
		for _, e := range entries {
			l.add(dir, e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) add(dir string, e fs.DirEntry) {
	if l.full {
		return
	}
	name := path.Join(dir, e.Name())
	l.walked++
	switch {
	case l.walked > l.limits.entries:
		l.full, l.More = true, true
		return
	case !e.IsDir() && !e.Type().IsRegular() || !utf8.ValidString(name):
		return
	case len(name) > l.limits.path:
		l.More = true
		return
	case l.paths+len(name) > l.limits.paths || !e.IsDir() && len(l.Files) == l.limits.files:
		l.full, l.More = true, true
		return
	}
	if e.IsDir() {
		l.dirs = append(l.dirs, name)
	} else if info, err := e.Info(); err == nil { // otherwise it was removed
		l.Files = append(l.Files, OutputFile{Path: name, Size: info.Size(), Changed: info.ModTime().UTC()})
	}
	l.paths += len(name)
}

// Opened is a file that is read as long as it was when it was opened, whatever is written
// to it meanwhile. It must be closed.
type Opened struct {
	io.Reader
	io.Closer
	Size int64
}

// Open opens a plain file at a path that Clean gave, if it has no more than most bytes. Errors:
// fault.NotFound; fault.Conflict where modes forbid it; fault.TooLarge, as a sparse file
// can be.
func Open(root *os.Root, name string, most int64) (Opened, error) {
	// A link could be put in its place: neither it nor a pipe, which nobody may write, is waited for.
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Opened{}, unread(root, name, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = unread(root, name, err)
	case !info.Mode().IsRegular():
		err = missing(name)
	case info.Size() > most:
		err = TooLarge(name, info.Size(), most)
	default:
		return Opened{Reader: io.LimitReader(f, info.Size()), Closer: f, Size: info.Size()}, nil
	}
	_ = f.Close()
	return Opened{}, err
}

// TooLarge is the error of a file that has more bytes than an output may have.
func TooLarge(name string, size, most int64) error {
	return fault.New(fault.TooLarge, "%.200q has %d bytes; the limit of an output is %d", name, size, most).WithHint("Write less of it, or raise spec.disk.output.")
}

func missing(name string) error {
	return fault.New(fault.NotFound, "no regular file %.200q exists below the output directory", name)
}

// unread is what is said of a path that cannot be read.
func unread(root *os.Root, name string, err error) error {
	switch {
	case absent(root, err):
		return missing(name)
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Conflict, "the file modes do not allow the server to read %.200q: %w", name, err).
			WithHint("Have the job make its files readable (chmod u+r) and its directories (chmod u+rx).")
	}
	return fault.Wrap(err, "read %.200q of the output", name)
}

// absent reports whether an error says that root has no such file: there is none, its path
// leads through a file, through too many links or out of root, or is longer than any, or it is
// a socket, which cannot be opened.
func absent(root *os.Root, err error) bool {
	for _, e := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENXIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	_, out := root.Lstat("..") // package os does not export the error
	return errors.Is(err, errors.Unwrap(out))
}
