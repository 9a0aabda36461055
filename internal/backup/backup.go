// Package backup copies an installation, in use or not, and puts the copy back.
//
// # Map
//
//   - backup.go: Installation, Make. live.go: Live, for an installation in use; hold.go:
//     Held, which preserves the objects of the snapshot. restore.go: Restore. manifest.go:
//     the manifest of a backup, Look. note.go: the audit entry about the backup.
//
// # Layout
//
// A backup is a directory: files/ has the content of the data directory, tables/ the files
// of open datasets, wherever they were, objects/ the sealed objects, numbered, from any
// driver, ledger the erasure ledger. manifest.jsonl names each
// file and object with its SHA-256, and ends with the SHA-256 of itself. It is written
// last.
//
// # Guarantees
//
// A backup is a consistent snapshot. If the installation is stopped and the caller holds the
// data directory's lock, any moment is consistent. In use, the snapshot is taken while the
// database commits nothing: its snapshot begins, and files that change in place (the online
// features, the audit journal) are copied or linked. Objects never change; those of the
// snapshot are copied afterwards, or right before they are removed, and later ones are
// omitted. So the restored data equals that of a server killed at the snapshot, and each part
// of Falaj recovers from it. The rest of the data directory (environments, images, cached
// answers) may be later. The directories of jobs are omitted: they contain plain rows of
// sealed datasets, which must not outlive an attempt, and each attempt creates them again.
//
// Names and link targets may be any bytes. Unreadable files in an open table or an image are
// skipped, as are entries that are not files.
//
// A failed backup leaves nothing. A killed one has no manifest, and is refused; it is made
// again under the same name, or removed (Discard). Restore compares every byte with the
// manifest; a directory of an interrupted restore has a mark (Unfinished), and no server
// starts on it. The erasure ledger is not rolled back: an existing ledger that continues the
// backup's is kept.
package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Installation is what is backed up, or restored.
type Installation struct {
	Data string // the data directory, absolute
	// Database is the file of the database, as seen from the data directory.
	Database string
	Tables   string // directory of open datasets
	Ledger   string // file of the erasure ledger
	// Objects keeps the objects. Owner is their location as recorded in the manifest.
	Objects blob.Driver
	Owner   string
	// Live is set for an installation in use; nil if it is stopped.
	Live *Live
	Log  *slog.Logger // gets the files that Make skipped; nil discards them
}

// DatabaseIn is where a backup in dir has the database.
func (of Installation) DatabaseIn(dir string) string { return filepath.Join(dir, inFiles, of.Database) }

// Report is what was copied.
type Report struct {
	Files, Objects int
	Bytes          int64
	Sequence       string // that of the database at the snapshot; empty if unknown
	Time           time.Time
	Digest         string // SHA-256 of the manifest, which has those of everything
	// Ledger reports, after Restore, that no erasure ledger continues the backup's:
	// later erasures are unknown.
	Ledger bool
}

// ObjectsHome is the file of the data directory that records the location of the objects,
// which is separate for each installation.
const ObjectsHome = "objects.id"

// OnlineHome is the file of the data directory that records, after a restore, that the
// database's online state does not match Redis: "restored" and a name by which this
// installation claims a Redis.
const OnlineHome = "online.id"

// left are the parts of a data directory that backups omit: files that are created again,
// lock files, the directories of jobs, and parts that have their own place in the backup.
var left = []string{
	"objects", ObjectsHome, "tmp", "ballast", "ballast.files", "falaj.lock", "cgroups.json", "lost+found", mark, notes, OnlineHome,
	"training", "workloads", "engines/*/workloads",
}

// foreign are directories that other programs fill: their files may have any mode.
var foreign = []string{"images", "environments", "cache", "engines"}

// maxPath is that of Linux; a program gets deeper by going step by step.
const maxPath = 4096

// Make backs an installation up into a directory, which is made, or empty, or has what an
// interrupted one left. Errors, after which nothing of it is left: fault.Conflict when it is
// not; fault.Exhausted on a full disk.
func Make(ctx context.Context, dir string, of Installation, version string) (r Report, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return r, err
	}
	for _, in := range []string{of.Data, of.Tables} {
		if inside(in, dir) {
			return r, fault.New(fault.Invalid, "%s is inside %s, which is to be backed up", dir, in).WithHint("Name a directory elsewhere, preferably on another disk.")
		}
	}
	_, err = os.Lstat(dir)
	ours := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, describe(err, "create the backup directory")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, describe(err, "open the backup directory")
	}
	defer func() { _ = root.Close() }()
	m, err := begin(root)
	if err != nil {
		return r, describe(err, "start the backup")
	}
	defer m.close()
	defer func() {
		if err == nil {
			return
		}
		if uerr := m.undo(); uerr != nil {
			err = errors.Join(err, fault.Wrap(uerr, "removing the incomplete backup"))
		} else if ours {
			_ = os.Remove(dir)
		}
	}()
	h := header{Format: format, Version: version, Owner: of.Owner, Tables: of.Tables, Time: time.Now().UTC().Truncate(time.Second)}
	var without []string
	for _, path := range []string{of.Ledger, of.Tables} {
		if rel, ok := within(of.Data, path); ok {
			without = append(without, rel)
		}
	}
	if of.Log == nil {
		of.Log = slog.New(slog.DiscardHandler)
	}
	files := copying{ctx: ctx, m: m, to: root, in: inFiles, log: of.Log}
	tables := copying{ctx: ctx, m: m, to: root, in: inTables, log: of.Log}
	objects := saving{ctx: ctx, m: m, to: root, from: of.Objects}
	if live := of.Live; live != nil {
		without = append(without, live.leaves()...)
		end, err := live.take(ctx, cancel, m, &h, files, &tables, &objects)
		if err != nil {
			return r, describe(err, "back up the database")
		}
		defer end()
	} else if err := m.header(h); err != nil {
		return r, describe(err, "start the backup")
	}
	if err := files.save(of.Data, func(name string) bool { return slices.Contains(without, name) || isLeft(name) }); err != nil {
		return r, describe(err, "back up the data directory")
	}
	if err := tables.save(of.Tables, nil); err != nil {
		return r, describe(err, "back up the open tables")
	}
	if err := saveLedger(m, root, of.Ledger); err != nil {
		return r, describe(err, "back up the erasure ledger")
	}
	if err := objects.save(); err != nil {
		return r, describe(err, "back up the objects")
	}
	for _, k := range []*keeper{tables.keeper, objects.keeper} {
		if k == nil {
			continue
		}
		if err := k.end(); err != nil {
			return r, describe(err, "back up objects removed during the backup")
		}
	}
	if err := syncAll(dir); err != nil {
		return r, describe(err, "sync the backup")
	}
	err = m.finish()
	return m.report(), describe(err, "finish the backup")
}

// inside reports whether a path is a directory or below it, whatever links lead there.
func inside(dir, path string) bool {
	for _, p := range []string{path, resolved(path)} {
		for _, d := range []string{dir, resolved(dir)} {
			if _, ok := within(d, p); ok {
				return true
			}
		}
	}
	return false
}

// resolved is a path without links, as far as it exists.
func resolved(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	up := filepath.Dir(path)
	if up == path {
		return path
	}
	return filepath.Join(resolved(up), filepath.Base(path))
}

// within is a path as it is seen from a directory that it is below.
func within(dir, path string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

func isLeft(name string) bool {
	return slices.ContainsFunc(left, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// copying copies files into a part of the backup.
type copying struct {
	ctx    context.Context // of the one backup
	m      *manifest
	to     *os.Root
	in     string
	log    *slog.Logger
	from   *os.Root // of what the keeper saves
	keeper *keeper  // nil where nobody removes anything meanwhile
}

// save copies a directory, but for some of its entries, into the part.
func (c copying) save(from string, without func(name string) bool) error {
	src, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	if err := c.to.MkdirAll(c.in, 0o700); err != nil {
		return err
	}
	return c.walk(src, ".", without)
}

// walk copies what a directory has. fs.WalkDir refuses names that are not UTF-8.
func (c copying) walk(src *os.Root, dir string, without func(name string) bool) error {
	there, err := list(src, dir)
	if dir != "." && (errors.Is(err, fs.ErrNotExist) || c.unread(dir, err)) {
		return nil // of a program that goes on
	}
	if err != nil {
		return err
	}
	for _, d := range there {
		if c.ctx.Err() != nil {
			return fault.New(fault.Timeout, "the backup was stopped: %w", context.Cause(c.ctx))
		}
		name := path.Join(dir, d.Name())
		if without != nil && without(name) {
			continue
		}
		if len(name) >= maxPath {
			c.log.WarnContext(c.ctx, "an unreachable file is not backed up", slog.String("below", name[:100]))
			continue
		}
		isDir := false
		save := func() (err error) {
			isDir, err = c.one(src, name)
			return err
		}
		if c.keeper != nil && d.Type().IsRegular() {
			err = c.keeper.turn(blob.Key(name), save)
		} else {
			err = save()
		}
		if err == nil && isDir {
			err = c.walk(src, name, without)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list gives what a directory has, in order.
func list(src *os.Root, dir string) ([]fs.DirEntry, error) {
	f, err := src.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	there, err := f.ReadDir(-1)
	slices.SortFunc(there, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return there, err
}

// unread reports an error that is no reason to have no backup: a program that may make
// files has made one that nobody can read, and the server does not read it either.
func (c copying) unread(name string, err error) bool {
	top, _, _ := strings.Cut(name, "/")
	if !errors.Is(err, fs.ErrPermission) || c.in != inTables && !slices.Contains(foreign, top) {
		return false
	}
	c.log.WarnContext(c.ctx, "an unreadable file is not backed up", slog.String("in", c.in), slog.String("path", name), slog.Any("error", err))
	return true
}

// one copies a file, link or directory without what is in it.
func (c copying) one(src *os.Root, name string) (isDir bool, err error) {
	info, err := src.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || c.unread(name, err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	e := entry{In: c.in, Path: name, Mode: info.Mode().Perm(), Time: info.ModTime().UnixNano()}
	switch at := filepath.Join(c.in, name); {
	case info.IsDir():
		e.Kind = aDirectory
		if err := c.to.MkdirAll(at, 0o700); err != nil {
			return false, err
		}
	case info.Mode()&fs.ModeSymlink != 0:
		e.Kind = aLink
		if e.Link, err = src.Readlink(name); err != nil {
			return false, err
		}
	case info.Mode().IsRegular():
		e.Kind = aFile
		// It may be a pipe by now, which nobody writes to.
		f, err := src.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) || c.unread(name, err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer func() { _ = f.Close() }()
		if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
			return false, err
		}
		e.Size, e.Digest, err = write(c.ctx, c.to, at, io.LimitReader(f, info.Size())) // what comes later is of later
		if err != nil {
			return false, err
		}
	default: // a socket, a pipe: of who runs
		return false, nil
	}
	return info.IsDir(), c.m.add(e)
}

// early copies a file that is about to go.
func (c copying) early(key blob.Key) error {
	name := string(key)
	if _, err := c.from.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "file %s does not exist", name)
	}
	if err := c.to.MkdirAll(filepath.Join(c.in, filepath.Dir(name)), 0o700); err != nil {
		return err
	}
	_, err := c.one(c.from, name)
	return err
}

func saveLedger(m *manifest, to *os.Root, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	e := entry{In: inLedger, Kind: aFile, Path: inLedger, Mode: 0o600}
	if e.Size, e.Digest, err = write(context.Background(), to, inLedger, f); err != nil {
		return err
	}
	return m.add(e)
}

// crowd is how many objects are in a directory of the backup.
const crowd = 1000

// saving copies the objects.
type saving struct {
	ctx    context.Context // of the one backup
	m      *manifest
	to     *os.Root
	from   blob.Driver
	keeper *keeper // nil where nobody removes any meanwhile
}

func (s saving) save() error {
	if err := s.to.MkdirAll(inObjects, 0o700); err != nil {
		return err
	}
	return s.from.List(s.ctx, "", func(k blob.Key) error {
		if s.keeper != nil {
			return s.keeper.turn(k, func() error { return s.one(k) })
		}
		return s.one(k)
	})
}

// one copies an object. Error: fault.NotFound when there is none.
func (s saving) one(k blob.Key) error {
	o, err := s.from.Open(s.ctx, k)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }()
	n := s.m.number()
	dir := filepath.Join(inObjects, strconv.Itoa(n/crowd))
	if err := s.to.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	e := entry{In: inObjects, Kind: anObject, Path: string(k), At: filepath.Join(dir, strconv.Itoa(n))}
	if e.Size, e.Digest, err = write(s.ctx, s.to, e.At, o); err != nil {
		return err
	}
	if e.Size != o.Size() {
		return fault.New(fault.Unavailable, "object %s has %d bytes instead of %d", k, e.Size, o.Size())
	}
	return s.m.add(e)
}

// write makes a file of what r gives. Zeros take no room: a program may have made a file
// of which nothing else is there.
func write(ctx context.Context, to *os.Root, name string, r io.Reader) (size int64, digest string, err error) {
	f, err := to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	sum := newSumming(r)
	sum.ctx = ctx
	if _, err = io.Copy(&sparse{f: f}, sum); err == nil {
		err = f.Truncate(sum.n)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return sum.n, sum.digest(), err
}

// sparse writes to a file that is empty all but zeros.
type sparse struct {
	f  *os.File
	at int64
}

var zeros [32 << 10]byte

func (s *sparse) Write(p []byte) (int, error) {
	if len(p) > len(zeros) || !bytes.Equal(p, zeros[:len(p)]) {
		if n, err := s.f.WriteAt(p, s.at); err != nil {
			return n, err
		}
	}
	s.at += int64(len(p))
	return len(p), nil
}

func digestOf(ctx context.Context, r io.Reader) (size int64, digest string, err error) {
	sum := newSumming(r)
	sum.ctx = ctx
	_, err = io.Copy(io.Discard, sum)
	return sum.n, sum.digest(), err
}

// summing computes the digest of what is read.
type summing struct {
	ctx context.Context // of the one copying
	r   io.Reader
	h   hash.Hash
	n   int64
}

func newSumming(r io.Reader) *summing {
	return &summing{ctx: context.Background(), r: r, h: sha256.New()}
}

func (s *summing) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, fault.New(fault.Timeout, "the copy was stopped: %w", context.Cause(s.ctx))
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.h.Write(p[:n])
	return n, err
}

func (s *summing) digest() string { return hex.EncodeToString(s.h.Sum(nil)) }

// syncAll syncs the file system that a directory is on.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return err
	}
	return f.Sync()
}

// describe gives errors of the file system their kind.
func describe(err error, doing string) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.New(fault.Exhausted, "%s: the disk is full: %w", doing, err).WithHint("Free space, and try again.")
	}
	return fault.Wrap(err, "%s", doing)
}

// local refuses a path of a manifest that leads elsewhere.
func local(p string) bool { return filepath.IsLocal(p) && !strings.Contains(p, "\x00") }
