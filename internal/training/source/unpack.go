package source

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Limits of a source archive.
const (
	maxArchive  = 256 << 20 // packed bytes
	maxUnpacked = 1 << 30
	maxFiles    = 20_000
	maxDepth    = 40
	maxName     = 1000
)

// Unpack reads a gzipped tar archive and writes its files below root; with a
// nil root it only checks. It returns the number of files and their bytes.
func Unpack(r io.Reader, root *os.Root) (files int, size int64, err error) {
	bad := func(format string, args ...any) (int, int64, error) {
		return files, size, fault.New(fault.Invalid, "source archive: "+format, args...).
			WithHint("Pack plain files and directories with relative names: tar czf source.tar.gz -C DIR .")
	}
	gz, err := gzip.NewReader(r)
	if err != nil {
		return bad("the archive is not gzip: %v", err)
	}
	t := tar.NewReader(gz)
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, size, nil
		}
		if err != nil {
			return bad("%v", err)
		}
		if entries >= maxFiles {
			return files, size, fault.New(fault.TooLarge, "the source archive has more than %d entries", maxFiles)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // git archive writes one
		}
		name := path.Clean(h.Name)
		if len(h.Name) > maxName || strings.ContainsAny(h.Name, "\\\x00") || !filepath.IsLocal(name) || strings.Count(name, "/") > maxDepth ||
			path.IsAbs(h.Name) || hasDotDot(h.Name) {
			return bad("%.200q is not a relative name below the archive's root", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if root != nil && name != "." {
				if err := root.MkdirAll(name, 0o700); err != nil {
					return files, size, placing(name, err)
				}
			}
		case tar.TypeReg:
			if name == "." {
				return bad("%.200q is not a relative name below the archive's root", h.Name)
			}
			files++
			if size += h.Size; h.Size < 0 || size > maxUnpacked {
				return files, size, fault.New(fault.TooLarge, "the source archive exceeds %d bytes unpacked", maxUnpacked)
			}
			if err := place(root, name, h.FileInfo().Mode(), t); err != nil {
				return files, size, err
			}
		case tar.TypeSymlink, tar.TypeLink:
			return bad("%.200q is a link", h.Name)
		default:
			return bad("%.200q is neither a file nor a directory", h.Name)
		}
	}
}

func hasDotDot(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// place writes one file of an archive; the owner's execute bit is kept.
func place(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	if root == nil {
		if _, err := io.Copy(io.Discard, content); err != nil {
			return fault.New(fault.Invalid, "source archive: %.200q: %v", name, err)
		}
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return placing(name, err)
		}
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600|mode&0o100)
	if err != nil {
		return placing(name, err)
	}
	sparse := archive.NewSparse(f)
	_, err = io.Copy(sparse, content)
	return placing(name, errors.Join(err, sparse.Finish(), f.Close()))
}

func placing(name string, err error) error {
	return fault.Wrap(err, "unpacking %.200s", name)
}

// PackProgram writes an archive of one program under a name; the same program gives the same
// bytes.
func PackProgram(w io.Writer, path, name string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: info.Size(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return errors.Join(err, t.Close(), z.Close())
}
