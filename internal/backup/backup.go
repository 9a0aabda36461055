// Package backup copies an installation that nobody writes to, and puts the copy back.
//
// # Map
//
//   - backup.go: Installation, Make. restore.go: Restore. manifest.go: what a
//     backup says of itself.
//
// # Layout
//
// A backup is a directory: files/ has what was in the data directory, tables/ the files
// of open datasets, wherever they were, objects/ the objects, sealed as they are and
// numbered, whatever kept them, ledger the erasure ledger. manifest.jsonl names each
// file and object with its SHA-256, and ends with the SHA-256 of itself. It is written
// last.
//
// # Guarantees
//
// The caller holds the data directory's lock, so all is of one moment. A backup whose
// making was interrupted has no manifest, and is refused. Every byte that Restore puts
// back is compared with the manifest; a directory whose restoring was interrupted has a
// mark (Unfinished), and no server starts on it. The erasure ledger is not rolled back:
// one that is already there, and goes on where the backup's ends, stays.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Installation is what is backed up, or restored.
type Installation struct {
	Data   string // the data directory, absolute
	Tables string // directory of open datasets
	Ledger string // file of the erasure ledger
	// Objects keeps the objects. Owner is what the manifest notes of where they are.
	Objects blob.Driver
	Owner   string
}

// Report is what was copied.
type Report struct {
	Files, Objects int
	Bytes          int64
	// Ledger says, after Restore, that no erasure ledger is there that goes on after
	// the backup's: who was erased since is not known.
	Ledger bool
}

// ObjectsHome is the file of the data directory that says where the objects are: of
// each installation its own.
const ObjectsHome = "objects.id"

// left is what of a data directory no backup has: what is made anew, what says who
// runs, and what has a place of its own in the backup.
var left = []string{"objects", ObjectsHome, "tmp", "ballast", "falaj.lock", "lost+found", mark}

// Make backs an installation up into a directory, which is made, or empty. Errors:
// fault.Conflict when it is not; fault.Exhausted on a full disk.
func Make(ctx context.Context, dir string, of Installation, version string) (r Report, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return r, err
	}
	for _, in := range []string{of.Data, of.Tables} {
		if _, ok := within(in, dir); ok {
			return r, fault.New(fault.Invalid, "%s is in %s, which is to be backed up", dir, in).WithHint("Name a directory elsewhere, best on another disk.")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, describe(err, "make the directory of the backup")
	}
	switch there, err := os.ReadDir(dir); {
	case err != nil:
		return r, describe(err, "read the directory of the backup")
	case len(there) > 0:
		return r, fault.New(fault.Conflict, "%s is not empty", dir).WithHint("Name another directory for each backup; remove one that was not finished.")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, describe(err, "open the directory of the backup")
	}
	defer func() { _ = root.Close() }()
	m, err := begin(root, header{Format: format, Version: version, Owner: of.Owner})
	if err != nil {
		return r, describe(err, "begin the backup")
	}
	defer m.close()
	without := slices.Clone(left)
	for _, path := range []string{of.Ledger, of.Tables} {
		if rel, ok := within(of.Data, path); ok {
			without = append(without, rel)
		}
	}
	if err := save(ctx, m, root, inFiles, of.Data, without); err != nil {
		return r, describe(err, "back up the data directory")
	}
	if err := save(ctx, m, root, inTables, of.Tables, nil); err != nil {
		return r, describe(err, "back up the open tables")
	}
	if err := saveLedger(m, root, of.Ledger); err != nil {
		return r, describe(err, "back up the erasure ledger")
	}
	if err := saveObjects(ctx, m, root, of.Objects); err != nil {
		return r, describe(err, "back up the objects")
	}
	if err := syncAll(dir); err != nil {
		return r, describe(err, "sync the backup")
	}
	return m.r, describe(m.finish(), "finish the backup")
}

// within is a path as it is seen from a directory that it is below.
func within(dir, path string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// save copies a directory but for some of its entries.
func save(ctx context.Context, m *manifest, to *os.Root, in, from string, without []string) error {
	src, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	if err := to.Mkdir(in, 0o700); err != nil {
		return err
	}
	return fs.WalkDir(src.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case name != "." && errors.Is(err, fs.ErrNotExist):
			return nil // of a job that goes on
		case err != nil:
			return err
		case ctx.Err() != nil:
			return fault.New(fault.Timeout, "the backup was stopped: %w", context.Cause(ctx))
		case name == ".":
			return nil
		case slices.Contains(without, name):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		e := entry{In: in, Path: name, Mode: info.Mode().Perm(), Time: info.ModTime().UnixNano()}
		switch at := filepath.Join(in, name); {
		case d.IsDir():
			e.Kind = aDirectory
			if err := to.Mkdir(at, 0o700); err != nil {
				return err
			}
		case d.Type()&fs.ModeSymlink != 0:
			e.Kind = aLink
			if e.Link, err = src.Readlink(name); err != nil {
				return err
			}
		case d.Type().IsRegular():
			e.Kind = aFile
			f, err := src.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			e.Size, e.Digest, err = write(to, at, f)
			_ = f.Close()
			if err != nil {
				return err
			}
		default: // a socket, a pipe: of who runs
			return nil
		}
		return m.add(e)
	})
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
	if e.Size, e.Digest, err = write(to, inLedger, f); err != nil {
		return err
	}
	return m.add(e)
}

// crowd is how many objects are in a directory of the backup.
const crowd = 1000

func saveObjects(ctx context.Context, m *manifest, to *os.Root, from blob.Driver) error {
	if err := to.Mkdir(inObjects, 0o700); err != nil {
		return err
	}
	return from.List(ctx, "", func(k blob.Key) error {
		n := m.r.Objects
		dir := filepath.Join(inObjects, strconv.Itoa(n/crowd))
		if n%crowd == 0 {
			if err := to.Mkdir(dir, 0o700); err != nil {
				return err
			}
		}
		o, err := from.Open(ctx, k)
		if err != nil {
			return err
		}
		defer func() { _ = o.Close() }()
		e := entry{In: inObjects, Kind: anObject, Path: string(k), At: filepath.Join(dir, strconv.Itoa(n))}
		if e.Size, e.Digest, err = write(to, e.At, o); err != nil {
			return err
		}
		if e.Size != o.Size() {
			return fault.New(fault.Unavailable, "object %s has %d bytes instead of %d", k, e.Size, o.Size())
		}
		return m.add(e)
	})
}

// write makes a file of what r gives.
func write(to *os.Root, name string, r io.Reader) (size int64, digest string, err error) {
	f, err := to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	sum := newSumming(r)
	_, err = io.Copy(f, sum)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return sum.n, sum.digest(), err
}

// summing computes the digest of what is read.
type summing struct {
	r io.Reader
	h hash.Hash
	n int64
}

func newSumming(r io.Reader) *summing { return &summing{r: r, h: sha256.New()} }

func (s *summing) Read(p []byte) (int, error) {
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
		return fault.New(fault.Exhausted, "%s: the disk is full: %w", doing, err).WithHint("Free space, remove what was begun, and try again.")
	}
	return fault.Wrap(err, "%s", doing)
}

// local refuses a path of a manifest that leads elsewhere.
func local(p string) bool { return filepath.IsLocal(p) && !strings.Contains(p, "\x00") }
