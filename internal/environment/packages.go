package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Environments share the files of their packages. What uv has installed of a locked
// package, with its bytecode, stays in a directory of its own; the next environment that
// locks the same files for the same Python links them instead of installing them again.
//
// Only this process links, after the sandbox of a build has ended, so that no build ever
// has a file of another environment in its mounts. A package is kept only if no code of
// any package ran while it was installed, and if every file is what its RECORD says,
// which came with the wheel whose hash uv verified. The files are read-only before they
// have a second name.

const (
	maxRecord  = 64 << 20 // bytes of the list of a package's files
	maxRecords = 500_000  // files of one package
	// unfinishedPackages begins the name of a directory in which packages are put together.
	unfinishedPackages = ".new-"
	// downloadsFor is how long what was fetched stays for a build that is tried again.
	downloadsFor = 24 * time.Hour
)

// compiler writes the bytecode of an environment. It runs in the interpreter alone: with
// -S no .pth file of a package is run, as it is when uv compiles. The files never change,
// so their bytecode need not be compared with them, and it names no directory of a build.
const compiler = `import compileall, py_compile, sys
compileall.compile_dir(sys.argv[1], quiet=2, stripdir=sys.argv[2], invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`

func (s *Service) packagesDir() string { return filepath.Join(s.cfg.Dir, ".packages") }

// packageDir is where the files of a locked package are, as one Python has them.
func (s *Service) packageDir(in Interpreter, p Package) string {
	parts := []string{"falaj package 1", in.Version, in.Platform, canonical(p.Name), p.Version}
	key := sum(append(parts, slices.Sorted(slices.Values(p.Hashes))...)...)
	return filepath.Join(s.packagesDir(), strings.TrimPrefix(key, "sha256:"))
}

// given is the lock that uv is given of an environment, beside what the sandbox sees.
func (s *Service) given(e ID) string { return filepath.Join(s.staging(e), "given.txt") }

// whole marks an environment whose packages have files of one name and different
// contents: which of them stays is uv's to say, so that it installs them all.
func (s *Service) whole(e ID) string { return filepath.Join(s.staging(e), "whole") }

// missing is the part of the lock that uv must install, and notes it for link.
func (s *Service) missing(e Environment) (string, error) {
	lock := e.Lock
	if _, err := os.Stat(s.whole(e.ID)); errors.Is(err, fs.ErrNotExist) {
		packages, err := parseLock(e.Lock)
		if err != nil {
			return "", err
		}
		have := map[string]bool{}
		for _, p := range packages {
			if _, err := os.Stat(s.packageDir(e.Interpreter, p)); err == nil {
				have[p.Name] = true
			}
		}
		lock = onlyPackages(e.Lock, func(name, _ string) bool { return !have[name] })
		if len(have) == len(packages) {
			lock = ""
		}
	} else if err != nil {
		return "", err
	}
	if err := os.MkdirAll(s.staging(e.ID), 0o700); err != nil {
		return "", fault.Wrap(err, "making the staging directory")
	}
	return lock, fault.Wrap(os.WriteFile(s.given(e.ID), []byte(lock), 0o600), "noting what is to be installed")
}

// installedNames are the packages that uv was given.
func (s *Service) installedNames(e Environment) (map[string]bool, error) {
	b, err := os.ReadFile(s.given(e.ID))
	if err != nil {
		return nil, fault.Wrap(err, "reading what was installed")
	}
	packages, err := parseLock(string(b))
	names := map[string]bool{}
	for _, p := range packages {
		names[p.Name] = true
	}
	return names, err
}

// errApart is that an environment cannot be put together from what earlier builds left.
var errApart = errors.New("the packages of earlier builds do not make this environment")

// errOverlap is one reason for it.
var errOverlap = errors.New("two packages have different files of one name")

// link puts the packages that uv was not given into a staged environment. It may be
// called again after a crash.
func (s *Service) link(e Environment, venv string) error {
	installed, err := s.installedNames(e)
	if err != nil {
		return err
	}
	packages, err := parseLock(e.Lock)
	if err != nil {
		return err
	}
	to, err := os.OpenRoot(venv)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, p := range packages {
		if installed[p.Name] {
			continue
		}
		from, err := os.OpenRoot(s.packageDir(e.Interpreter, p))
		if err != nil {
			return err
		}
		err = linkTree(from, to, ".")
		if err = errors.Join(err, from.Close()); err != nil {
			return fault.Wrap(err, "linking package %s", p.Name)
		}
	}
	return nil
}

// linkTree gives the files below dir in from the same names in to. A build script may
// have left links in to: a Root follows none that leaves it.
func linkTree(from, to *os.Root, dir string) error {
	src, err := from.Open(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := to.Open(dir)
	if err != nil {
		return err
	}
	defer dst.Close()
	entries, err := src.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			if err := to.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if info, err := to.Stat(name); err != nil || !info.IsDir() {
				return errors.Join(errOverlap, err)
			}
			err = linkTree(from, to, name)
		} else {
			err = linkFile(src, dst, e.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linkFile gives a file of one directory its name in another, too.
func linkFile(src, dst *os.File, name string) error {
	err := unix.Linkat(int(src.Fd()), name, int(dst.Fd()), name, 0)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	same, err := sameContent(src, dst, name)
	if err == nil && !same {
		err = errOverlap
	}
	return err
}

func sameContent(a, b *os.File, name string) (bool, error) {
	var sums [2][]byte
	for i, dir := range []*os.File{a, b} {
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ELOOP) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		f := os.NewFile(uintptr(fd), name)
		info, err := f.Stat()
		if err == nil && info.Mode().IsRegular() {
			h := sha256.New()
			_, err = io.Copy(h, f)
			sums[i] = h.Sum(nil)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return false, err
		}
	}
	return sums[0] != nil && bytes.Equal(sums[0], sums[1]), nil
}

// keep leaves the packages that uv has installed for later environments, each under its
// name when it is whole. An environment that cannot share is no worse than a copy, so
// what goes wrong is logged. The environment must be sealed.
func (s *Service) keep(ctx context.Context, e Environment, venv string) {
	if e.Spec.AllowSource { // code of packages ran
		return
	}
	failed := func(err error) {
		if err != nil {
			s.log.WarnContext(ctx, "packages of an environment are not kept for others", slog.String("environment", string(e.ID)), slog.Any("error", err))
		}
	}
	installed, err := s.installedNames(e)
	if err != nil {
		failed(err)
		return
	}
	packages, err := parseLock(e.Lock)
	if err != nil {
		failed(err)
		return
	}
	from, err := os.OpenRoot(venv)
	if err != nil {
		failed(err)
		return
	}
	defer from.Close()
	records, err := recordsOf(from)
	if err != nil {
		failed(err)
		return
	}
	fresh := filepath.Join(s.packagesDir(), unfinishedPackages+string(e.ID))
	defer func() { failed(archive.Remove(fresh)) }()
	kept := map[string]string{} // where it is to be, by where it is
	for _, p := range packages {
		at := s.packageDir(e.Interpreter, p)
		record := records[canonical(p.Name)]
		if _, err := os.Stat(at); err == nil || !installed[p.Name] || record == "" {
			continue
		}
		dir := filepath.Join(fresh, canonical(p.Name))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			failed(err)
			return
		}
		if err := keepPackage(from, dir, record, bytecodeTag(e.Interpreter)); err != nil {
			failed(fault.Wrap(err, "package %s", p.Name))
			continue
		}
		kept[dir] = at
	}
	if len(kept) == 0 {
		return
	}
	if err := syncfs(s.packagesDir()); err != nil { // whole before it has its name
		failed(err)
		return
	}
	for dir, at := range kept {
		if err := os.Rename(dir, at); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			failed(err)
		}
	}
	failed(syncDir(s.packagesDir()))
}

// recordsOf finds the RECORD of each package in an environment, by canonical name.
func recordsOf(venv *os.Root) (map[string]string, error) {
	found, err := fs.Glob(venv.FS(), "lib/python3.*/site-packages/*.dist-info/RECORD")
	records := map[string]string{}
	for _, name := range found {
		project, _, _ := strings.Cut(path.Base(path.Dir(name)), "-") // a dash in the name is an underscore there
		records[canonical(project)] = name
	}
	return records, err
}

// bytecodeTag is what an interpreter has in the names of bytecode files, such as cpython-311.
func bytecodeTag(in Interpreter) string {
	implementation, _, _ := strings.Cut(in.Platform, "-")
	return implementation + "-" + strings.ReplaceAll(firstParts(in.Version, 2), ".", "")
}

// keepPackage links the files of one package, with their bytecode, into a new directory.
// A package of which any file is not what its RECORD says is refused: another one has
// overwritten it.
func keepPackage(venv *os.Root, dir, record, tag string) error {
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	f, err := venv.Open(record)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return err
	}
	if len(b) > maxRecord {
		return fault.New(fault.TooLarge, "%s has more than %d bytes", record, maxRecord)
	}
	rows, err := parseRecord(b)
	if err != nil {
		return fault.Wrap(err, "reading %s", record)
	}
	site := path.Dir(path.Dir(record))
	for _, row := range rows {
		name := path.Join(site, row.path)
		if path.IsAbs(row.path) || !filepath.IsLocal(name) {
			return fault.New(fault.Invalid, "%s names %.200q, which is outside of the environment", record, row.path)
		}
		if err := keepFile(venv, to, name, row.sum); err != nil {
			return fault.Wrap(err, "%.200s", name)
		}
		stem, isPython := strings.CutSuffix(path.Base(name), ".py")
		if !isPython {
			continue
		}
		code := path.Join(path.Dir(name), "__pycache__", stem+"."+tag+".pyc")
		if err := keepFile(venv, to, code, nil); err != nil && !errors.Is(err, fs.ErrNotExist) { // what cannot be compiled has none
			return fault.Wrap(err, "%.200s", code)
		}
	}
	return nil
}

// keepFile links one plain file, whose SHA-256 it compares where there is one.
func keepFile(venv, to *os.Root, name string, want []byte) error {
	info, err := venv.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o222 != 0 {
		return fault.New(fault.Invalid, "it is not a plain file that nobody can write")
	}
	if want != nil {
		f, err := venv.Open(name)
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if !bytes.Equal(h.Sum(nil), want) {
			return fault.New(fault.Conflict, "it is not what its package has")
		}
	}
	parent := path.Dir(name)
	if err := to.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	src, err := venv.Open(parent)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := to.Open(parent)
	if err != nil {
		return err
	}
	defer dst.Close()
	err = unix.Linkat(int(src.Fd()), path.Base(name), int(dst.Fd()), path.Base(name), 0)
	if errors.Is(err, unix.EEXIST) { // it is listed twice
		return nil
	}
	return err
}

// recorded is a file that a RECORD lists.
type recorded struct {
	path string // relative to site-packages
	sum  []byte // SHA-256; nil where it has none
}

// parseRecord reads a RECORD: path, hash and size of each file
// (packaging.python.org/specifications/recording-installed-packages).
func parseRecord(b []byte) ([]recorded, error) {
	r := csv.NewReader(bytes.NewReader(b))
	r.FieldsPerRecord, r.ReuseRecord = -1, true
	var rows []recorded
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fault.New(fault.Invalid, "it is no list of files: %w", err)
		}
		if len(rows) == maxRecords {
			return nil, fault.New(fault.TooLarge, "it lists more than %d files", maxRecords)
		}
		if row[0] == "" || strings.ContainsRune(row[0], 0) {
			return nil, fault.New(fault.Invalid, "line %d names no file", len(rows)+1)
		}
		one := recorded{path: row[0]}
		if len(row) > 1 && row[1] != "" {
			text, ok := strings.CutPrefix(row[1], "sha256=")
			if !ok {
				return nil, fault.New(fault.Invalid, "%.200q has the hash %.80q, which is no SHA-256", row[0], row[1])
			}
			if one.sum, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "=")); err != nil || len(one.sum) != sha256.Size {
				return nil, fault.New(fault.Invalid, "%.200q has the hash %.80q, which is no SHA-256", row[0], row[1])
			}
		}
		rows = append(rows, one)
	}
}

// sweepPackages removes the files of packages that no environment has, and downloads that
// no build needs any more. It does nothing while an environment is being built, which may
// count on either.
func (s *Service) sweepPackages(ctx context.Context) error {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	var unfinished []Environment
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		unfinished, err = s.cfg.Store.Unfinished(ctx, tx)
		return err
	})
	if err != nil || len(unfinished) > 0 {
		return err
	}
	entries, err := os.ReadDir(s.packagesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "listing packages")
	}
	for _, e := range entries {
		dir := filepath.Join(s.packagesDir(), e.Name())
		used, err := false, error(nil)
		if !strings.HasPrefix(e.Name(), unfinishedPackages) {
			used, err = shared(dir)
		}
		if err == nil && !used {
			err = archive.Remove(dir)
		}
		if err != nil {
			return fault.Wrap(err, "removing the files of a package")
		}
	}
	return fault.Wrap(s.sweepDownloads(), "removing downloads")
}

// sweepDownloads removes unpacked wheels from uv's cache; uv fetches again what it misses.
func (s *Service) sweepDownloads() error {
	root, err := os.OpenRoot(s.cfg.Cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	found, err := fs.Glob(root.FS(), "archive-v*/*")
	if err != nil {
		return err
	}
	for _, name := range found {
		info, err := root.Lstat(name)
		if err == nil && s.now().Sub(info.ModTime()) > downloadsFor {
			err = root.RemoveAll(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// shared reports whether a file below dir has another name somewhere.
func shared(dir string) (bool, error) {
	found := false
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && links(info) > 1 {
			found, err = true, fs.SkipAll
		}
		return err
	})
	return found, err
}

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
	}
	return 1
}

func syncfs(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
