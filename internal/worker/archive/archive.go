// Package archive moves directories between the server and its nodes: as tar
// streams, and as manifests that say what need not be moved.
//
// What is unpacked is bounded and stays below its directory: every step goes
// through os.Root, and other things than directories, plain files and, where
// allowed, symbolic links are refused.
package archive

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Limits of what is packed, scanned or unpacked; zero fields are the defaults.
type Limits struct {
	Files int   // entries; 0 is a million
	Bytes int64 // 0 is 1 TiB
}

func (l *Limits) setDefaults() {
	if l.Files == 0 {
		l.Files = 1_000_000
	}
	if l.Bytes == 0 {
		l.Bytes = 1 << 40
	}
}

// count takes one entry off the limits.
func (l *Limits) count(name string, size int64) error {
	if l.Files--; l.Files < 0 {
		return fault.New(fault.TooLarge, "there are too many files, at %.200q", name)
	}
	if size < 0 || size > l.Bytes {
		return fault.New(fault.TooLarge, "there are too many bytes, at %.200q", name)
	}
	l.Bytes -= size
	return nil
}

// self is the name of what a stream is of, when that is a file.
const self = "."

// Pack writes a directory, or a file, as a tar stream: directories, plain files
// and symbolic links. Other things are left out, and so is what has a name at
// the top that leave is true for; a nil leave is for none.
func Pack(w io.Writer, from string, leave func(name string) bool) error {
	t := tar.NewWriter(w)
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pack(t, self, f, info); err != nil {
			return err
		}
		return t.Close()
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if leave != nil && !strings.Contains(name, "/") && leave(name) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch e.Type() {
		case fs.ModeDir:
			info, err := e.Info()
			if err != nil {
				return err
			}
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX})
		case fs.ModeSymlink:
			to, err := root.Readlink(name)
			if err != nil {
				return err
			}
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Format: tar.FormatPAX})
		case 0:
			f, err := root.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			return pack(t, name, f, info)
		default:
			return nil
		}
	})
	if err != nil {
		return err
	}
	return t.Close()
}

// pack writes one file; one that shrinks meanwhile is an error.
func pack(t *tar.Writer, name string, f io.Reader, info fs.FileInfo) error {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX,
		ModTime: info.ModTime().Truncate(time.Microsecond),
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.CopyN(t, f, info.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Unpack makes what Pack has written, at a path where nothing is.
func Unpack(r io.Reader, to string, limits Limits) error {
	limits.setDefaults()
	t := tar.NewReader(r)
	h, err := t.Next()
	if err == nil && h.Typeflag == tar.TypeReg && h.Name == self {
		if err := limits.count(self, h.Size); err != nil {
			return err
		}
		return write(func(flag int, perm fs.FileMode) (*os.File, error) { return os.OpenFile(to, flag, perm) }, h.FileInfo(), t, nil)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	root, rerr := os.OpenRoot(to)
	if rerr != nil {
		return rerr
	}
	defer root.Close()
	modes := map[string]fs.FileMode{} // of directories, set last: some are read-only
	for ; !errors.Is(err, io.EOF); h, err = t.Next() {
		if err != nil {
			return broken(err)
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return fault.New(fault.Invalid, "%.200q leaves its directory", h.Name)
		}
		if err := limits.count(name, h.Size); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err := root.MkdirAll(name, 0o700); err != nil {
				return err
			}
			modes[name] = h.FileInfo().Mode().Perm()
		case tar.TypeSymlink:
			if err := root.Symlink(h.Linkname, name); err != nil {
				return err
			}
		case tar.TypeReg:
			open := func(flag int, perm fs.FileMode) (*os.File, error) { return root.OpenFile(name, flag, perm) }
			if err := write(open, h.FileInfo(), t, nil); err != nil {
				return err
			}
		default:
			return fault.New(fault.Invalid, "%.200q is not a file, a directory or a link", h.Name)
		}
	}
	for name, mode := range modes {
		if err := root.Chmod(name, mode|0o700); err != nil {
			return err
		}
	}
	return nil
}

// write makes a new file with a content.
func write(open func(int, fs.FileMode) (*os.File, error), info fs.FileInfo, r io.Reader, sum hash.Hash) error {
	f, err := open(os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	sparse := NewSparse(f)
	var to io.Writer = sparse
	if sum != nil {
		to = io.MultiWriter(sparse, sum)
	}
	_, err = io.CopyN(to, r, info.Size())
	return errors.Join(broken(err), sparse.Finish(), f.Close())
}

// broken says of an unexpected end that the stream was cut.
func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
		return fault.New(fault.Invalid, "the stream is not complete: %w", err)
	}
	return err
}

// Scan lists the plain files of a directory with their digests, and its empty
// directories. Left names other things, which cannot be sent.
func Scan(dir string, limits Limits) (m protocol.Manifest, left []string, err error) {
	limits.setDefaults()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return m, nil, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		switch e.Type() {
		case fs.ModeDir:
			entries, err := fs.ReadDir(root.FS(), name)
			if err != nil || len(entries) > 0 {
				return err
			}
			m.Dirs = append(m.Dirs, protocol.Dir{Path: name})
			return limits.count(name, 0)
		case 0:
			f, err := root.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			sum := sha256.New()
			n, err := io.Copy(sum, f)
			if err != nil {
				return err
			}
			m.Files = append(m.Files, protocol.File{
				Path: name, Size: n, Mode: uint32(info.Mode().Perm()), SHA256: hex.EncodeToString(sum.Sum(nil)),
			})
			return limits.count(name, n)
		default:
			left = append(left, name)
			return limits.count(name, 0)
		}
	})
	return m, left, err
}

// PackFiles writes some files of a directory. One that is no longer as long as
// it was is an error.
func PackFiles(w io.Writer, dir string, files []protocol.File) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewWriter(w)
	for _, want := range files {
		if err := packOne(t, root, want); err != nil {
			return err
		}
	}
	return t.Close()
}

func packOne(t *tar.Writer, root *os.Root, want protocol.File) error {
	f, err := root.Open(want.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != want.Size {
		return fault.New(fault.Conflict, "%s changed while it was sent", want.Path)
	}
	return pack(t, want.Path, f, info)
}

// Check refuses a manifest that makes no sense or is over the limits.
func Check(m protocol.Manifest, limits Limits) error {
	limits.setDefaults()
	seen := map[string]bool{}
	one := func(name string, size int64) error {
		if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.ContainsRune(name, 0) || len(name) > 4096 || strings.HasSuffix(name, partSuffix) {
			return fault.New(fault.Invalid, "%.200q is not the path of a file below a directory", name)
		}
		if seen[name] {
			return fault.New(fault.Invalid, "duplicate name %.200q", name)
		}
		seen[name] = true
		return limits.count(name, size)
	}
	for _, f := range m.Files {
		if err := one(f.Path, f.Size); err != nil {
			return err
		}
		if b, err := hex.DecodeString(f.SHA256); err != nil || len(b) != sha256.Size {
			return fault.New(fault.Invalid, "the digest of %.200q is not a SHA-256", f.Path)
		}
	}
	for _, d := range m.Dirs {
		if err := one(d.Path, 0); err != nil {
			return err
		}
	}
	return nil
}

// Receive reads a stream of PackFiles into a directory: only files that are
// wanted by the path, each of which must be what the manifest says. Files are
// synced, and have their name when they are whole.
func Receive(r io.Reader, into *os.Root, want map[string]protocol.File) error {
	t := tar.NewReader(bufio.NewReaderSize(r, 1<<18))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return broken(err)
		}
		f, wanted := want[h.Name]
		if !wanted || h.Typeflag != tar.TypeReg || h.Size != f.Size {
			return fault.New(fault.Invalid, "%.200q is not a file of the manifest", h.Name)
		}
		delete(want, h.Name)
		if err := Place(into, f, t); err != nil {
			return err
		}
	}
}

// partSuffix is of the names that files have before they are whole.
const partSuffix = ".falaj-part"

// Place makes one file of a manifest from its content, which is verified.
func Place(into *os.Root, f protocol.File, content io.Reader) error {
	if err := into.MkdirAll(path.Dir(f.Path), 0o700); err != nil {
		return err
	}
	part := f.Path + partSuffix
	if err := into.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := into.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(f.Mode)&0o777|0o600)
	if err != nil {
		return err
	}
	sum, sparse := sha256.New(), NewSparse(out)
	_, err = io.CopyN(io.MultiWriter(sparse, sum), content, f.Size)
	if err = errors.Join(broken(err), sparse.Finish(), out.Sync(), out.Close()); err == nil && hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		err = fault.New(fault.Conflict, "%.200q does not match its manifest", f.Path).WithHint("It was changed while it was sent.")
	}
	if err != nil {
		_ = into.Remove(part)
		return err
	}
	return into.Rename(part, f.Path)
}

// Remove removes a tree, also where a program has made directories read-only.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(name string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(name, 0o700) //nolint:gosec // A directory that goes away.
		}
		return nil
	})
	return os.RemoveAll(dir)
}
