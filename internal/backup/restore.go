package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// mark is in a data directory as long as it is being restored. It has the path of the
// directory of open tables: that one was empty when the restoring began.
const mark = "restore.unfinished"

// Unfinished refuses a data directory whose restoring was interrupted.
func Unfinished(data string) error {
	if _, err := os.Lstat(filepath.Join(data, mark)); err == nil {
		return fault.New(fault.Conflict, "the restore of %s is incomplete", data).WithHint("Restore it again: falaj restore DIR.")
	}
	return nil
}

// Prepare makes a data directory ready for Restore: one that has nothing but an erasure
// ledger, or what an interrupted Restore left. Errors: fault.Conflict for one that has
// an installation; fault.Invalid when dir has no whole backup, or one with another digest
// than the given, where one is. owner is what the manifest notes of where the objects are.
func Prepare(dir string, to Installation, digest string) (owner string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fault.New(fault.Invalid, "the backup: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := read(root, func(h header, _ entry) error {
		owner = h.Owner
		return nil
	}); err != nil {
		return "", err
	}
	if digest != "" {
		if s, err := Look(dir); err != nil || s.Digest != digest {
			return "", fault.New(fault.Invalid, "the backup in %s does not have the digest %s", dir, digest).WithHint("It was modified, or it is another backup.")
		}
	}
	stay := []string{"falaj.lock", "lost+found", mark, ObjectsHome}
	if rel, ok := within(to.Data, to.Ledger); ok {
		if rel != filepath.Base(rel) {
			return "", fault.New(fault.Invalid, "the erasure ledger (erasures.ledger) is inside the data directory, which must be empty").
				WithHint("Move it to the top of the data directory, or preferably to another disk: --set erasures.ledger=FILE")
		}
		stay = append(stay, rel)
	}
	again := Unfinished(to.Data) != nil
	if !again {
		stay = slices.DeleteFunc(stay, func(name string) bool { return name == ObjectsHome })
	}
	if err := empty(to.Data, stay, again); err != nil {
		return "", err
	}
	if _, inside := within(to.Data, to.Tables); !inside {
		was, err := os.ReadFile(filepath.Join(to.Data, mark))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", describe(err, "read the mark")
		}
		if err := empty(to.Tables, []string{"lost+found"}, string(was) == to.Tables); err != nil {
			return "", err
		}
	}
	if err := putMark(to); err != nil {
		return "", describe(err, "mark the data directory")
	}
	return owner, syncAll(to.Data)
}

func putMark(to Installation) error {
	f, err := os.OpenFile(filepath.Join(to.Data, mark), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(to.Tables)
	return errors.Join(err, f.Sync(), f.Close())
}

// empty refuses a directory that has something, or removes it when an interrupted
// restore left it there: before that one, nothing was.
func empty(dir string, stay []string, again bool) error {
	there, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range there {
		switch {
		case slices.Contains(stay, e.Name()):
		case !again:
			return fault.New(fault.Conflict, "the data directory %s is not empty: it contains %s", dir, e.Name()).
				WithHint("Restore into an empty directory; move the existing data aside, except its erasure ledger.")
		default:
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Restore puts a backup into a data directory that Prepare has made ready, and compares
// every byte with its manifest. Errors: fault.Invalid for a backup that was changed;
// fault.Conflict for an erasure ledger of another installation.
func Restore(ctx context.Context, dir string, to Installation) (r Report, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, fault.New(fault.Invalid, "the backup: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := os.MkdirAll(to.Tables, 0o700); err != nil {
		return r, describe(err, "create the directory of open tables")
	}
	roots := map[string]*os.Root{}
	for in, path := range map[string]string{inFiles: to.Data, inTables: to.Tables} {
		if roots[in], err = os.OpenRoot(path); err != nil {
			return r, describe(err, "open the directory")
		}
		defer func() { _ = roots[in].Close() }()
	}
	var directories []entry
	var ledger []byte // of the backup
	known := map[[16]byte]struct{}{}
	err = read(root, func(h header, e entry) error {
		r.Sequence, r.Time = h.Sequence, h.Time
		if ctx.Err() != nil {
			return fault.New(fault.Timeout, "the restore was stopped: %w", context.Cause(ctx))
		}
		r.Bytes += e.Size
		switch {
		case e.Kind == anObject:
			r.Objects++
			known[short(blob.Key(e.Path))] = struct{}{}
			return restoreObject(ctx, root, to.Objects, e)
		case e.In == inLedger:
			ledger, err = restoreLedger(root, e, to.Ledger)
			return err
		case roots[e.In] == nil:
			return fault.New(fault.Invalid, "the backup contains a file in %q, which this release does not support", e.In)
		case e.Kind == aDirectory:
			directories = append(directories, e)
			return roots[e.In].MkdirAll(e.Path, 0o700)
		case e.Kind == aLink:
			return roots[e.In].Symlink(e.Link, e.Path)
		}
		r.Files++
		return restoreFile(root, roots[e.In], e)
	})
	if err != nil {
		return r, describe(err, "restore")
	}
	if err := removeOthers(ctx, to.Objects, known); err != nil {
		return r, describe(err, "remove objects that are not in the backup")
	}
	now, err := os.ReadFile(to.Ledger)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, describe(err, "read the erasure ledger")
	}
	r.Ledger = len(now) <= len(ledger)
	for _, e := range slices.Backward(directories) { // their times change with what is put into them
		if err := owned(roots[e.In], e); err != nil {
			return r, describe(err, "restore")
		}
	}
	for _, dir := range []string{to.Data, to.Tables} {
		if err := syncAll(dir); err != nil {
			return r, describe(err, "sync the restored data")
		}
	}
	if s, err := Look(dir); err == nil {
		r.Digest = s.Digest
	}
	if err := os.WriteFile(filepath.Join(to.Data, OnlineHome), []byte("restored "+id.New("onl")+"\n"), 0o600); err != nil {
		return r, describe(err, "record the restore")
	}
	if err := AddNote(to.Data, Note{Act: "backup.restore", Object: "installation", At: time.Now().UTC(), Detail: r.detail()}); err != nil {
		return r, err
	}
	if err := os.Remove(filepath.Join(to.Data, mark)); err != nil {
		return r, err
	}
	return r, syncAll(to.Data)
}

// detail is what the audit log says of a backup, or of its restoring.
func (r Report) detail() map[string]any {
	return map[string]any{"digest": r.Digest, "sequence": r.Sequence, "of": r.Time, "files": r.Files, "objects": r.Objects, "bytes": r.Bytes}
}

// short names an object: there may be many.
func short(k blob.Key) [16]byte {
	sum := sha256.Sum256([]byte(k))
	return [16]byte(sum[:16])
}

// removeOthers removes what came into a store after the backup, or from an interrupted
// restoring of another one: no record says of it, so no erasure would reach it.
func removeOthers(ctx context.Context, d blob.Driver, known map[[16]byte]struct{}) error {
	return d.List(ctx, "", func(k blob.Key) error {
		if _, ok := known[short(k)]; ok {
			return nil
		}
		return d.Delete(ctx, k)
	})
}

// same compares what was copied with what the manifest says.
func same(want, got entry, err error) error {
	if fault.Is(err, fault.NotFound) || errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Invalid, "the backup lacks %s %s", want.In, want.Path).WithHint("Restore another backup.")
	}
	if err == nil && (got.Size != want.Size || got.Digest != want.Digest) {
		return fault.New(fault.Invalid, "%s %s of the backup is corrupted", want.In, want.Path).WithHint("Restore another backup.")
	}
	return err
}

func restoreObject(ctx context.Context, from *os.Root, to blob.Driver, e entry) error {
	if err := blob.CheckKey(blob.Key(e.Path)); err != nil {
		return err
	}
	f, err := from.Open(e.At)
	if err != nil {
		return same(e, entry{}, err)
	}
	defer func() { _ = f.Close() }()
	sum := newSumming(f)
	err = to.Put(ctx, blob.Key(e.Path), sum)
	return same(e, entry{Size: sum.n, Digest: sum.digest()}, err)
}

func restoreFile(from, to *os.Root, e entry) error {
	f, err := from.Open(filepath.Join(e.In, e.Path))
	if err != nil {
		return same(e, entry{}, err)
	}
	defer func() { _ = f.Close() }()
	if up := filepath.Dir(e.Path); up != "." {
		if err := to.MkdirAll(up, 0o700); err != nil {
			return err
		}
	}
	var got entry
	got.Size, got.Digest, err = write(context.Background(), to, e.Path, f)
	if err := same(e, got, err); err != nil {
		return err
	}
	return owned(to, e)
}

// owned gives a file its rights and its time.
func owned(root *os.Root, e entry) error {
	if err := root.Chmod(e.Path, e.Mode); err != nil {
		return err
	}
	return root.Chtimes(e.Path, time.Time{}, time.Unix(0, e.Time))
}

// restoreLedger leaves a ledger that goes on where the backup's ends, and gives the
// backup's.
func restoreLedger(from *os.Root, e entry, path string) (then []byte, err error) {
	f, err := from.Open(inLedger)
	if err != nil {
		return nil, same(e, entry{}, err)
	}
	sum := newSumming(f)
	then, err = io.ReadAll(sum)
	_ = f.Close()
	if err := same(e, entry{Size: sum.n, Digest: sum.digest()}, err); err != nil {
		return nil, err
	}
	now, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case bytes.HasPrefix(now, whole(then)):
		return then, nil // newer, or the same
	case !bytes.HasPrefix(then, now):
		return nil, fault.New(fault.Conflict, "the erasure ledger %s belongs to another installation", path).
			WithHint("Replace it with the newest copy of this installation's ledger, or move it aside.")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path+".new", then, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, err
	}
	return then, syncAll(filepath.Dir(path)) // which may be another disk than the others
}

// whole is a ledger without a last line that was cut off: the server cuts that away
// before it goes on.
func whole(ledger []byte) []byte { return ledger[:bytes.LastIndexByte(ledger, '\n')+1] }
