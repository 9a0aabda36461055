package training

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
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// MaxListedFiles is how many files of an output are listed.
const MaxListedFiles = 10_000

// listLimits bound a listing.
type listLimits struct {
	files   int
	entries int // that are read
	path    int // bytes of one; a longer one is left out, as Linux opens none
	paths   int // bytes of all
}

var outputLimits = listLimits{files: MaxListedFiles, entries: 50_000, path: 4096, paths: 4 << 20}

// entriesAtOnce is how much of a directory is read before its listing looks at its context.
const entriesAtOnce = 256

// OutputFile is a file below the output directory of an attempt that runs.
type OutputFile struct {
	Path    string    `json:"path"`
	Size    int64     `json:"bytes"` // as now: it may grow
	Changed time.Time `json:"changed_at"`
}

// Output is what an attempt has written below its output directory so far.
type Output struct {
	Attempt AttemptID    `json:"attempt"`
	Number  int          `json:"number"`
	Files   []OutputFile `json:"items"`
	More    bool         `json:"more"` // there are more than the limits allow to list
}

// OutputFiles lists what the attempt that runs has written below its output directory, at and
// below a path. It takes what reading the job's log takes. Only plain files are listed, sorted by
// path. Errors: fault.NotFound; fault.Gone when the job has ended, and what it left are the run's artifacts;
// fault.Unsupported where the files are on other machines.
func (s *Service) OutputFiles(ctx context.Context, p project.Name, jid JobID, below string) (Output, error) {
	a, root, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return Output{}, err
	}
	defer func() { _ = root.Close() }()
	out := Output{Attempt: a.ID, Number: a.Number, Files: []OutputFile{}}
	below, err = outputPath(below)
	if err != nil {
		return out, err
	}
	missing := fault.New(fault.NotFound, "attempt %d of job %s has written no %q yet", a.Number, jid, below).WithHint("See `falaj job files %s`.", jid)
	info, err := root.Stat(below)
	switch {
	case err != nil:
		return out, unread(root, below, err, missing)
	case info.IsDir():
		l := listing{limits: outputLimits, files: out.Files, dirs: []string{below}}
		if err := l.walk(ctx, root); err != nil {
			return out, unread(root, below, err, missing)
		}
		out.Files, out.More = l.files, l.more
		return out, nil
	}
	if info, err = root.Lstat(below); err != nil {
		return out, unread(root, below, err, missing)
	}
	if info.Mode().IsRegular() && utf8.ValidString(below) {
		out.Files = append(out.Files, OutputFile{Path: below, Size: info.Size(), Changed: info.ModTime().UTC()})
	}
	return out, nil
}

// listing collects the plain files below a directory within the limits, however many a job has
// written there.
type listing struct {
	limits listLimits
	files  []OutputFile
	dirs   []string // to be read
	walked int      // entries
	paths  int      // bytes of the paths in files, and of those that were in dirs
	full   bool     // no more entries are read
	more   bool     // a limit left something out
}

// walk reads the directories and sorts the files by path. A directory that goes meanwhile is
// skipped, except the first.
func (l *listing) walk(ctx context.Context, root *os.Root) error {
	for i := 0; i < len(l.dirs) && !l.full; i++ {
		if err := l.read(ctx, root, l.dirs[i]); err != nil && (i == 0 || !absent(root, err)) {
			return err
		}
	}
	slices.SortFunc(l.files, func(a, b OutputFile) int { return strings.Compare(a.Path, b.Path) })
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
		l.full, l.more = true, true
		return
	case !e.IsDir() && !e.Type().IsRegular() || !utf8.ValidString(name):
		return
	case len(name) > l.limits.path:
		l.more = true
		return
	case l.paths+len(name) > l.limits.paths || !e.IsDir() && len(l.files) == l.limits.files:
		l.full, l.more = true, true
		return
	}
	if e.IsDir() {
		l.dirs = append(l.dirs, name)
	} else if info, err := e.Info(); err == nil { // otherwise it was removed
		l.files = append(l.files, OutputFile{Path: name, Size: info.Size(), Changed: info.ModTime().UTC()})
	}
	l.paths += len(name)
}

// OpenOutput opens a file below the output directory of the attempt that runs: as many bytes as
// it has now, whatever the job goes on to write. Errors as of OutputFiles; fault.TooLarge of
// one that is larger than an output may be, as a sparse file can be.
func (s *Service) OpenOutput(ctx context.Context, p project.Name, jid JobID, file string) (io.ReadCloser, error) {
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return nil, err
	}
	a, root, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	name, err := outputPath(file)
	if err != nil {
		return nil, err
	}
	missing := fault.New(fault.NotFound, "attempt %d of job %s has no plain file %q", a.Number, jid, name).WithHint("See `falaj job files %s`; links out of it are not followed.", jid)
	// A link could be put in its place: neither it nor a pipe, which nobody may write, is waited for.
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unread(root, name, err, missing)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, unread(root, name, err, missing)
	}
	most := int64(j.Spec.Disk.Output)
	if most == 0 {
		most = s.cfg.MaxOutput
	}
	switch {
	case !info.Mode().IsRegular():
		_ = f.Close()
		return nil, missing
	case info.Size() > most:
		_ = f.Close()
		return nil, fault.New(fault.TooLarge, "%q has %d bytes; an output may have %d", name, info.Size(), most).WithHint("Write less of it, or raise spec.disk.output.")
	}
	return limited{io.LimitReader(f, info.Size()), f}, nil
}

// unread is what is said of a path that cannot be read: missing of one that is absent.
func unread(root *os.Root, name string, err, missing error) error {
	switch {
	case absent(root, err):
		return missing
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Conflict, "the modes of files do not let the server read %.200q: %w", name, err).
			WithHint("Let the job make its files readable (chmod u+r) and its directories (chmod u+rx).")
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

type limited struct {
	io.Reader
	io.Closer
}

// outputPath is a path below the output directory.
func outputPath(p string) (string, error) {
	p = path.Clean("/" + p)[1:]
	if p == "" {
		p = "."
	}
	if !fs.ValidPath(p) {
		return "", fault.New(fault.Invalid, "%.200q is no path below the output directory", p)
	}
	return p, nil
}

// outputOf is the output directory of the attempt that runs, for whoever may read the job's log.
func (s *Service) outputOf(ctx context.Context, p project.Name, jid JobID) (a Attempt, root *os.Root, err error) {
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return a, nil, err
	}
	if j.Classification.Journalled() {
		err := s.cfg.Journal.Record(ctx, audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(ActionLogs), Object: "job " + string(jid), Outcome: audit.Done,
		})
		if err != nil {
			return a, nil, fault.Wrap(err, "recording the read")
		}
	}
	if j.Attempt == "" {
		if j.State.Ended() {
			return a, nil, fault.New(fault.Gone, "job %s has ended; what it left are artifacts of its run %s", jid, j.Run).WithHint("See `falaj run files %s`, and `falaj run download`.", j.Run)
		}
		return a, nil, fault.New(fault.NotFound, "job %s has not written anything yet: no attempt of it runs", jid).WithHint("`falaj job why %s` says what it waits for.", jid)
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.cfg.Store.Attempt(ctx, tx, j.Attempt)
		return err
	})
	if err != nil {
		return a, nil, err
	}
	pools, _, err := s.cfg.Compute.PricedPools(ctx)
	if err != nil {
		return a, nil, err
	}
	for _, pool := range pools {
		if pool.Name == a.Pool && pool.Remote {
			return a, nil, fault.New(fault.Unsupported, "the files of job %s are on the nodes of pool %s until its attempt ends", jid, a.Pool).
				WithHint("Log what you want to see before with mlflow.log_artifact: it is an artifact of run %s at once.", a.Run)
		}
	}
	root, err = s.openOutput(jid, a.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil, fault.New(fault.NotFound, "job %s has not written anything yet", jid).WithHint("`falaj job why %s` says what it is at.", jid)
	}
	return a, root, err
}

// openOutput opens the output directory of an attempt. It is in a directory of the server's; a
// link out of that in its place, which a job without a sandbox can make, is not followed.
func (s *Service) openOutput(jid JobID, a AttemptID) (*os.Root, error) {
	at := s.dirs(jid, a).output
	above, err := os.OpenRoot(filepath.Dir(at))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	root, err := above.OpenRoot(filepath.Base(at))
	if err != nil && absent(above, err) {
		err = fs.ErrNotExist
	}
	return root, err
}
