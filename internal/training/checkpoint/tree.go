package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of one checkpoint, beside its bytes.
const (
	maxFiles = 10_000
	maxName  = 200
	maxPath  = 1000
)

// tree is what lies in a directory, by path.
type tree struct {
	files     []File // in the order of WalkDir
	bytes     int64
	allocated int64 // of them, without holes
}

// survey notes what lies below a directory that user code wrote. Errors:
// fault.Invalid for what is neither a plain file nor a directory,
// fault.TooLarge.
func survey(ctx context.Context, root *os.Root, most int64) (tree, error) {
	var t tree
	err := fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case name == ".":
			return nil
		case !utf8.ValidString(name): // its record could not say it
			return fault.New(fault.Invalid, "the name %.80q is not UTF-8", name).WithHint("Rename the file: names in checkpoints are UTF-8.")
		case len(name) > maxPath:
			return fault.New(fault.Invalid, "the path %.80q… has %d bytes; the limit is %d", name, len(name), maxPath)
		case e.IsDir():
			entries, err := fs.ReadDir(root.FS(), name)
			if err != nil {
				return err
			}
			if len(entries) == 0 {
				t.files = append(t.files, File{Path: name + "/"})
			}
		case e.Type().IsRegular():
			info, err := e.Info()
			if err != nil {
				return err
			}
			t.add(name, info)
		default:
			return fault.New(fault.Invalid, "%.200q is neither a plain file nor a directory", name).
				WithHint("Write plain files and directories into a checkpoint; links are not followed.")
		}
		if len(t.files) > maxFiles || t.bytes > most {
			return fault.New(fault.TooLarge, "it has more than %d files or %d bytes", maxFiles, most).
				WithHint("Write fewer, larger files, or ask an administrator to raise limits.checkpoint.")
		}
		return nil
	})
	return t, gone(err)
}

// surveyLoose notes plain files that lie directly in a job's directory.
func surveyLoose(root *os.Root, names []string, most int64) (tree, error) {
	var t tree
	for _, name := range names {
		info, err := root.Lstat(name)
		if err == nil && !info.Mode().IsRegular() {
			err = errChanged
		}
		if err != nil {
			return t, gone(err)
		}
		if !utf8.ValidString(name) || len(name) > maxPath {
			return t, fault.New(fault.Invalid, "the name %.80q is not UTF-8, or longer than %d bytes", name, maxPath).WithHint("Rename the file: names in checkpoints are UTF-8.")
		}
		t.add(name, info)
		if len(t.files) > maxFiles || t.bytes > most {
			return t, fault.New(fault.TooLarge, "FALAJ_CHECKPOINT_DIR directly contains more than %d files or %d bytes", maxFiles, most).
				WithHint("Write each checkpoint into its own directory, or remove old ones.")
		}
	}
	return t, nil
}

func (t *tree) add(name string, info fs.FileInfo) {
	t.files = append(t.files, File{
		Path: name, Size: info.Size(), Exec: info.Mode()&0o100 != 0, Modified: info.ModTime().UTC(),
	})
	t.bytes += info.Size()
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		t.allocated += min(sys.Blocks*512, info.Size())
	}
}

// gone makes a conflict of what vanished while it was read.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Conflict, "it was removed while it was read: %w", err)
	}
	return err
}

// state identifies what survey saw.
func (t *tree) state() string {
	b, err := json.Marshal(t.files)
	if err != nil {
		panic(err) // none of these can fail
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// open opens a file of the tree as it was surveyed.
func (f File) open(root *os.Root) (*os.File, error) {
	file, err := root.OpenFile(f.Path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, gone(err)
	}
	info, err := file.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != f.Size || !info.ModTime().Equal(f.Modified)) {
		err = errChanged
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// errChanged: the program owes not to change a finished checkpoint; one that is
// written under its final name is taken once it has come to rest.
var errChanged = fault.New(fault.Conflict, "it changed while it was read").
	WithHint("Write a checkpoint under a temporary name, such as step-100.tmp, and rename it when it is complete.")

// digest identifies a checkpoint by what it restores to, times aside.
func (m Manifest) digest() string {
	m.Files = slices.Clone(m.Files)
	for i := range m.Files {
		m.Files[i].Modified = time.Time{}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // none of these can fail
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// whole reports whether the chunks are what the files were cut into.
func (m Manifest) whole() bool {
	if m.Cut <= 0 || m.Cut > chunkSize {
		return false
	}
	want := cut(m.Files, m.Cut)
	if len(want) != len(m.Chunks) {
		return false
	}
	for i, c := range m.Chunks {
		if c.Size != want[i].Size || len(c.Digest) != 2*sha256.Size {
			return false
		}
	}
	return true
}
