package scan

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
)

const (
	endMagic       = "PK\x05\x06" // begins the record at the end of a zip
	directoryMagic = "PK\x01\x02" // begins an entry of its directory
	endSize        = 22
	end64Size      = 56 // of the record of zip64, before its locator
	locatorSize    = 20
)

// zipFace is whether the end of a file is that of a zip with members, as Python finds it.
func zipFace(end []byte) bool {
	at := bytes.LastIndex(end, []byte(endMagic))
	if at < 0 || at+endSize > len(end) {
		return false
	}
	size := int(binary.LittleEndian.Uint32(end[at+12:]))
	return size > 0 && size <= at && bytes.HasPrefix(end[at-size:], []byte(directoryMagic))
}

// twoFaces says why readers would not agree on where the directory of a zip is; empty:
// they do. Go and C go by the offset that is written, Python by the size, and by what
// zip64 says even where nothing asks for it.
func twoFaces(ra io.ReaderAt, size int64) (string, error) {
	end := make([]byte, min(size, 66<<10))
	if _, err := ra.ReadAt(end, size-int64(len(end))); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	at := bytes.LastIndex(end, []byte(endMagic))
	if at < 0 || at+endSize > len(end) {
		return "", nil // nobody reads it
	}
	le := binary.LittleEndian
	long, offset := uint64(le.Uint32(end[at+12:])), uint64(le.Uint32(end[at+16:]))
	ends := size - int64(len(end)) + int64(at) // where the directory must end
	if l := at - locatorSize; l >= 0 && string(end[l:l+4]) == "PK\x06\x07" {
		ends -= locatorSize + end64Size
		r := l - end64Size
		if r < 0 || string(end[r:r+4]) != "PK\x06\x06" || le.Uint64(end[l+8:]) != uint64(ends) { //nolint:gosec // not negative
			return "has an ambiguous zip64 record, which different readers locate differently", nil
		}
		long64, offset64 := le.Uint64(end[r+40:]), le.Uint64(end[r+48:])
		if long != math.MaxUint32 && long != long64 || offset != math.MaxUint32 && offset != offset64 {
			return "has two central directories, one of them zip64", nil
		}
		long, offset = long64, offset64
	}
	if long > uint64(size) || offset > uint64(size) || long+offset != uint64(ends) { //nolint:gosec // not negative
		return "has a misplaced central directory: different readers see different archives", nil
	}
	return "", nil
}

// zip looks at the members of a zip archive. ra has all of it.
func (s *scanner) zip(ctx context.Context, name string, ra io.ReaderAt, size int64, depth int) error {
	why, err := twoFaces(ra, size)
	if err != nil {
		return err
	}
	if why != "" {
		s.danger(name, "zip", "%s", why)
	}
	z, err := zip.NewReader(ra, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if errors.Is(err, zip.ErrFormat) || errors.Is(err, zip.ErrAlgorithm) || errors.Is(err, zip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, errLimit) {
			s.danger(name, "zip", "cannot be scanned: %v", err)
			return nil
		}
		return err
	}
	seen := map[string]bool{}
	for _, f := range z.File {
		at := name + "!" + clip(f.Name)
		if s.members++; s.members > s.limits.Members {
			s.danger(name, "zip", "has more than %d members", s.limits.Members)
			return nil
		}
		if why := wrongName(f.Name, seen); why != "" {
			s.danger(at, "zip", "%s", why)
		}
		mode := f.Mode()
		switch {
		case mode.IsDir() || strings.HasSuffix(f.Name, "/"):
			continue
		case !mode.IsRegular():
			s.danger(at, "zip", "is not a regular file but %s", mode.Type())
			continue
		case f.Flags&1 != 0:
			s.danger(at, "zip", "is encrypted and cannot be scanned")
			continue
		case f.Method != zip.Store && f.Method != zip.Deflate:
			s.danger(at, "zip", "uses the compression method %d, which cannot be scanned", f.Method)
			continue
		}
		if f.UncompressedSize64 > uint64(s.limits.Free) && f.UncompressedSize64/uint64(s.limits.Ratio) > f.CompressedSize64 { //nolint:gosec // not negative
			s.danger(at, "zip", "expands from %d to %d bytes", f.CompressedSize64, f.UncompressedSize64)
			continue
		}
		if err := s.member(ctx, at, f, depth); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) member(ctx context.Context, at string, f *zip.File, depth int) error {
	open := func() (io.ReadCloser, error) { return f.Open() }
	r, err := open()
	if err == nil {
		defer r.Close()
		err = s.stream(ctx, at, s.expand(r, int64(min(f.CompressedSize64, 1<<62))), depth+1)
	}
	return s.broken(ctx, at, "zip", err)
}

// broken is what became of an archive that does not unpack: a finding, and no error, as
// long as it could be read.
func (s *scanner) broken(ctx context.Context, at, format string, err error) error {
	read, ok := errors.AsType[*readError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ok:
		return read
	case errors.Is(err, errBomb):
		s.danger(at, format, "expands to far more than its size")
		return nil
	}
	s.danger(at, format, "cannot be scanned: %s", clip(err.Error()))
	return nil
}

// tar looks at the members of a tar archive.
func (s *scanner) tar(ctx context.Context, name string, r io.Reader, depth int) error {
	t := tar.NewReader(r)
	seen := map[string]bool{}
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return s.broken(ctx, name, "tar", err)
		}
		at := name + "!" + clip(h.Name)
		if s.members++; s.members > s.limits.Members {
			s.danger(name, "tar", "has more than %d members", s.limits.Members)
			return nil
		}
		if why := wrongName(h.Name, seen); why != "" {
			s.danger(at, "tar", "%s", why)
		}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeXGlobalHeader:
		case tar.TypeReg:
			if err := s.stream(ctx, at, t, depth+1); err != nil {
				return err
			}
		case tar.TypeSymlink, tar.TypeLink:
			s.danger(at, "tar", "is a link to %s", clip(h.Linkname))
		default:
			s.danger(at, "tar", "is not a regular file but has the type %q", h.Typeflag)
		}
	}
}

// wrongName says what is wrong with the name of a member; empty: nothing.
func wrongName(name string, seen map[string]bool) string {
	clean := path.Clean(strings.ReplaceAll(name, `\`, "/"))
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "has no name, or one with a NUL"
	case strings.HasPrefix(clean, "/") || len(clean) > 1 && clean[1] == ':':
		return "has an absolute name"
	case clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains("/"+strings.ReplaceAll(name, `\`, "/")+"/", "/../"):
		return "has a path outside the extraction directory"
	case seen[clean] && clean != ".":
		return "has a duplicate name: different readers see different members"
	}
	seen[clean] = true
	return ""
}

var errBomb = errors.New("expands to far more than its size")

// expand bounds what comes out of something compressed that has so many bytes.
func (s *scanner) expand(r io.Reader, compressed int64) io.Reader {
	return &expanding{s: s, r: r, from: compressed}
}

type expanding struct {
	s        *scanner
	r        io.Reader
	from, to int64
}

func (e *expanding) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.to += int64(n)
	e.s.expanded += int64(n)
	if l := e.s.limits; e.to > l.Free && e.to/l.Ratio > e.from || e.s.expanded > l.Expanded {
		return n, errBomb
	}
	return n, err
}

// inMemory holds an archive that is in an archive.
func (s *scanner) inMemory(ctx context.Context, name, format string, r io.Reader) (*bytes.Reader, error) {
	b, err := io.ReadAll(io.LimitReader(r, s.limits.InMemory+1))
	if err != nil {
		return nil, s.broken(ctx, name, format, err)
	}
	if int64(len(b)) > s.limits.InMemory {
		s.danger(name, format, "is a nested archive of more than %d bytes, which is not scanned", s.limits.InMemory)
		return nil, nil
	}
	return bytes.NewReader(b), nil
}

// readError is an error of who holds the file, and not of what is in it.
type readError struct{ err error }

func (e *readError) Error() string { return fmt.Sprint("reading: ", e.err) }
func (e *readError) Unwrap() error { return e.err }
