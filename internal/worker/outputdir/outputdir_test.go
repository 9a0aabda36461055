package outputdir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestListing: a listing has each plain file up to its limits, and says where it stopped.
func TestListing(t *testing.T) {
	t.Parallel()
	bounds := limits{files: 300, entries: 600, path: 100, paths: 20_000}
	deep := strings.Repeat("d/", 30)
	file := func(t *testing.T, root *os.Root, name string) {
		t.Helper()
		f, err := root.Create(name)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		dirs    string
		entries int
		entry   func(i int) string // its path; a directory ends in a slash
		files   int
		more    bool
	}{
		"none":                 {entries: 0},
		"as many as may be":    {entries: 300, entry: strconv.Itoa, files: 300},
		"one more":             {entries: 301, entry: strconv.Itoa, files: 300, more: true},
		"and more directories": {dirs: "d", entries: 300, entry: func(i int) string { return fmt.Sprintf("d/%d", i) }, files: 300},
		"too many entries":     {entries: 601, entry: func(i int) string { return fmt.Sprintf("%d/", i) }, more: true},
		"a long path": {dirs: deep, entries: 2, entry: func(i int) string {
			return deep + strings.Repeat("f", 100-len(deep)+i)
		}, files: 1, more: true},
		"long paths": {dirs: deep, entries: 200, entry: func(i int) string { return deep + fmt.Sprintf("%040d", i) }, files: 191, more: true}, // (20,000 bytes - 900 of directories) / 100
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, err := os.OpenRoot(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			if err := root.MkdirAll(path.Clean("./"+c.dirs), 0o755); err != nil {
				t.Fatal(err)
			}
			for i := range c.entries {
				if e := c.entry(i); !strings.HasSuffix(e, "/") {
					file(t, root, e)
				} else if err := root.Mkdir(strings.TrimSuffix(e, "/"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			l := listing{limits: bounds, dirs: []string{"."}}
			if err := l.walk(t.Context(), root); err != nil || len(l.Files) != c.files || l.More != c.more {
				t.Errorf("%d files, more %t, %v; want %d, %t", len(l.Files), l.More, err, c.files, c.more)
			}
			if l.walked > bounds.entries+1 || l.paths > bounds.paths {
				t.Errorf("%d entries, %d directories, %d bytes of paths", l.walked, len(l.dirs), l.paths)
			}
		})
	}
}

// TestListingEnds: it stops with its caller, and passes over a directory that goes meanwhile.
func TestListingEnds(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := errors.Join(root.WriteFile("a", nil, 0o600), syscall.Mkfifo(filepath.Join(root.Name(), "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	l := listing{limits: standard, dirs: []string{".", "gone", "pipe"}}
	if err := l.walk(t.Context(), root); err != nil || len(l.Files) != 1 || l.More {
		t.Errorf("%v, %v", l, err)
	}
	l = listing{limits: standard, dirs: []string{"gone"}}
	if err := l.walk(t.Context(), root); !absent(root, err) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l = listing{limits: standard, dirs: []string{"."}}
	if err := l.walk(ctx, root); !errors.Is(err, context.Canceled) || len(l.Files) > 0 {
		t.Errorf("%v, %v", l, err)
	}
}

// TestUnread: only what is not there is not found.
func TestUnread(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	at := func(name string) string { return filepath.Join(root.Name(), name) }
	t.Chdir(root.Name()) // the path of a socket may have 108 bytes
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: "socket", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	err = errors.Join(os.WriteFile(at("file"), nil, 0o600), os.Symlink("loop", at("loop")), os.Symlink("/etc", at("out")))
	if err != nil {
		t.Fatal(err)
	}
	open := func(name string, flag int) error {
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|flag, 0)
		if err == nil {
			_ = f.Close()
		}
		return err
	}
	for name, c := range map[string]struct {
		err  error
		kind fault.Kind
	}{
		"no such file":          {open("nothing", 0), fault.NotFound},
		"below a file":          {open("file/nothing", 0), fault.NotFound},
		"a link to itself":      {open("loop", 0), fault.NotFound},
		"a link":                {open("out", syscall.O_NOFOLLOW), fault.NotFound},
		"out by a link":         {open("out/passwd", 0), fault.NotFound},
		"out":                   {open("../x", 0), fault.NotFound},
		"a socket":              {open("socket", 0), fault.NotFound},
		"longer than any":       {open(strings.Repeat("x", 300), 0), fault.NotFound},
		"not readable":          {&os.PathError{Op: "openat", Path: "x", Err: syscall.EACCES}, fault.Conflict},
		"a disk that fails":     {&os.PathError{Op: "openat", Path: "x", Err: syscall.EIO}, fault.Internal},
		"too many files opened": {&os.PathError{Op: "openat", Path: "x", Err: syscall.EMFILE}, fault.Internal},
	} {
		if got := unread(root, "x", c.err); c.err == nil || got == nil || fault.KindOf(got) != c.kind {
			t.Errorf("%s: %v: %v", name, c.err, got)
		}
	}
}

// TestListingOfAnAgent: what another machine tells is checked, and merged in the order of
// the workers.
func TestListingOfAnAgent(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]OutputFile{
		"leaves": {Path: "../x"}, "absolute": {Path: "/etc/passwd"}, "nothing": {Path: ""}, "all": {Path: "."}, "not clean": {Path: "a//b"},
		"long": {Path: strings.Repeat("x", 5000)}, "no text": {Path: "\xff"}, "less than nothing": {Path: "a", Size: -1},
	} {
		if err := (Listing{Files: []OutputFile{f}}).Check(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := Listing{Files: make([]OutputFile, MaxFiles)}
	for i := range many.Files {
		many.Files[i].Path = fmt.Sprintf("b%05d", i)
	}
	if err := many.Check(); err != nil {
		t.Error(err)
	}
	first := Listing{Files: []OutputFile{{Path: "a", Size: 1}, {Path: "b00001", Size: 2}}}
	all := first.Merge(many)
	if len(all.Files) != MaxFiles || !all.More || all.Files[0].Size != 1 || all.Files[2] != (OutputFile{Path: "b00001", Size: 2}) {
		t.Errorf("%d files, more %v, %+v", len(all.Files), all.More, all.Files[:3])
	}
	many.Files = append(many.Files, OutputFile{Path: "c"})
	if err := many.Check(); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	if both := first.Merge(Listing{Files: []OutputFile{{Path: "0"}}}); both.More || len(both.Files) != 3 || both.Files[0].Path != "0" {
		t.Errorf("%+v", both)
	}
}

// TestLongPathsOfAgents: the paths of a listing have no more bytes than List gives, however
// many are merged.
func TestLongPathsOfAgents(t *testing.T) {
	t.Parallel()
	long := func(of string, n int) (l Listing) {
		for i := range n {
			l.Files = append(l.Files, OutputFile{Path: fmt.Sprintf("%s%04095d", of, i)})
		}
		return l
	}
	a, b := long("a", standard.paths/4096), long("b", 1)
	if err := a.Check(); err != nil {
		t.Error(err)
	}
	if err := (Listing{Files: append(slices.Clone(a.Files), b.Files...)}).Check(); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	if all := b.Merge(a); !slices.Equal(all.Files, a.Files) || !all.More {
		t.Errorf("%d files, more %t", len(all.Files), all.More)
	}
}
