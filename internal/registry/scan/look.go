package scan

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// head is how many bytes of a file are looked at to know what it is.
const head = 64 << 10

// file looks at one file: its start says what it is, its end whether it is a zip archive,
// too, as Python's reader would find.
func (s *scanner) file(ctx context.Context, f File) error {
	ra := &rewinding{ctx: ctx, open: f.Open, size: f.Size}
	defer ra.Close()
	end := make([]byte, min(f.Size, 66<<10)) // a zip's last record is within 64 KiB of the end
	if _, err := ra.ReadAt(end, f.Size-int64(len(end))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	isZip := bytes.Contains(end, []byte(endMagic))
	start := make([]byte, min(f.Size, 4))
	if _, err := ra.ReadAt(start, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.HasPrefix(start, []byte("PK\x03\x04")) || bytes.HasPrefix(start, []byte("PK\x05\x06")) {
		return s.unread(s.zip(ctx, f.Path, ra, f.Size, 0))
	}
	r, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := s.unread(s.stream(ctx, f.Path, reading{r}, 0)); err != nil {
		return err
	}
	if err := s.onnx(ctx, f); err != nil {
		return err
	}
	if !isZip {
		return nil
	}
	if zipFace(end) {
		s.danger(f.Path, "zip", "is a zip archive appended to other content: different readers see different files")
		return nil
	}
	// The four bytes may stand there by chance; a directory that can be read does not.
	probe := &scanner{limits: s.limits, report: &Report{Level: Data}, size: s.size}
	if err := probe.unread(probe.zip(ctx, f.Path, ra, f.Size, 0)); err != nil || probe.members == 0 {
		return err
	}
	s.danger(f.Path, "zip", "is a zip archive appended to other content: different readers see different files")
	return s.unread(s.zip(ctx, f.Path, ra, f.Size, 0))
}

func (s *scanner) unread(err error) error {
	if read, ok := errors.AsType[*readError](err); ok {
		return read.err
	}
	return err
}

// reading marks errors of reading the file itself.
type reading struct{ io.Reader }

func (r reading) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}

var (
	lambda    = regexp.MustCompile(`"class_name"\s*:\s*"(?:[A-Za-z_.]*>)?(?:Lambda|__lambda__)"`)
	escaped   = regexp.MustCompile(`(?i)\\u00(?:4[1-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a])`) // a letter that no writer of JSON escapes
	hdf5Magic = []byte("\x89HDF\r\n\x1a\n")
)

// stream looks at a file, or a member of an archive, from its start to where it matters.
func (s *scanner) stream(ctx context.Context, name string, from io.Reader, depth int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r := bufio.NewReaderSize(from, head)
	b, err := r.Peek(head)
	if err != nil && !errors.Is(err, io.EOF) {
		return s.broken(ctx, name, "file", err)
	}
	if depth > s.limits.Depth {
		if format := archiveOf(b); format != "" {
			s.danger(name, format, "has archives nested more than %d deep", s.limits.Depth)
			return nil
		}
	}
	switch format := archiveOf(b); format {
	case "zip":
		in, err := s.inMemory(ctx, name, format, r)
		if in == nil {
			return err
		}
		return s.zip(ctx, name, in, in.Size(), depth)
	case "tar":
		return s.tar(ctx, name, r, depth)
	case "gzip", "zlib", "bzip2", "zstd":
		return s.compressed(ctx, name, format, r, depth)
	case "xz", "7z", "rar", "lz4":
		s.danger(name, format, "is compressed with %s, which cannot be scanned", format)
		return nil
	}
	if format := executable(b); format != "" {
		s.danger(name, format, "is an executable or a shared library")
		return nil
	}
	switch {
	case bytes.HasPrefix(b, []byte("\x93NUMPY")):
		return s.numpy(ctx, name, r, b)
	case isHDF5(b):
		return s.lambdas(ctx, name, "hdf5", r)
	case bytes.HasPrefix(bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n"), []byte("{")):
		return s.lambdas(ctx, name, "json", r)
	}
	return s.broken(ctx, name, "pickle", s.pickles(ctx, name, r, 0))
}

// archiveOf is what kind of archive begins so; empty: none.
func archiveOf(b []byte) string {
	for _, m := range []struct{ magic, format string }{
		{"PK\x03\x04", "zip"},
		{"PK\x05\x06", "zip"},
		{"\x1f\x8b", "gzip"},
		{"BZh", "bzip2"},
		{"\x28\xb5\x2f\xfd", "zstd"},
		{"\xfd7zXZ\x00", "xz"},
		{"7z\xbc\xaf\x27\x1c", "7z"},
		{"Rar!\x1a\x07", "rar"},
		{"\x04\x22\x4d\x18", "lz4"},
	} {
		if bytes.HasPrefix(b, []byte(m.magic)) {
			return m.format
		}
	}
	switch {
	case isTar(b):
		return "tar"
	case isLZMA(b):
		return "xz"
	case len(b) > 6 && b[0] == 0x78 && (uint16(b[0])<<8|uint16(b[1]))%31 == 0:
		return "zlib" // joblib's own
	}
	return ""
}

// isTar is whether a tar archive begins so. The first format has no magic: its readers,
// Python's and that of PyTorch's old files among them, know it by its checksum alone, which they read
// as Python reads a number.
func isTar(b []byte) bool {
	if len(b) < 512 {
		return false
	}
	if string(b[257:262]) == "ustar" {
		return true
	}
	said, sum, signed := b[148:156], int64(8*' '), int64(8*' ')
	for i, c := range b[:512] {
		if i < 148 || i >= 156 {
			sum += int64(c)
			signed += int64(int8(c)) //nolint:gosec // as old writers summed it
		}
	}
	var n int64
	if said[0] == 0x80 || said[0] == 0xff {
		for _, c := range said[1:] {
			n = n<<8 | int64(c)
		}
	} else {
		text, _, _ := strings.Cut(string(said), "\x00")
		text = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(text), "+"), "_", "")
		text = strings.TrimPrefix(strings.TrimPrefix(text, "0o"), "0O")
		var err error
		if n, err = strconv.ParseInt(text, 8, 64); err != nil {
			return false
		}
	}
	return n > 8*' ' && (n == sum || n == signed)
}

// isLZMA is whether a stream of xz's older format begins so, as joblib knows it and as the
// library accepts it: a size that is unknown or below 256 GiB.
func isLZMA(b []byte) bool {
	if len(b) < 13 || b[0] != 0x5d || b[1] != 0 {
		return false
	}
	size := binary.LittleEndian.Uint64(b[5:])
	return size == math.MaxUint64 || size < 1<<38
}

// isHDF5 is whether a file of HDF5 begins so: it may have a block of the user's before it,
// of 512 bytes or twice that and so on.
func isHDF5(b []byte) bool {
	for at := 0; at < len(b); at = max(512, 2*at) {
		if bytes.HasPrefix(b[at:], hdf5Magic) {
			return true
		}
	}
	return false
}

// executable is which kind of machine code begins so; empty: none.
func executable(b []byte) string {
	if len(b) < 64 {
		return ""
	}
	switch binary.BigEndian.Uint32(b) {
	case 0x7f454c46:
		return "elf"
	case 0xfeedface, 0xfeedfacf, 0xcefaedfe, 0xcffaedfe:
		return "mach-o"
	case 0xcafebabe, 0xcafebabf:
		if n := binary.BigEndian.Uint32(b[4:]); n > 0 && n < 40 { // a Java class has its version there
			return "mach-o"
		}
	}
	if b[0] == 'M' && b[1] == 'Z' {
		at := binary.LittleEndian.Uint32(b[60:])
		if at < uint32(len(b)-4) && string(b[at:at+4]) == "PE\x00\x00" { //nolint:gosec // 64 KiB
			return "pe"
		}
	}
	return ""
}

func (s *scanner) compressed(ctx context.Context, name, format string, r *bufio.Reader, depth int) error {
	var out io.Reader
	var err error
	switch format {
	case "gzip":
		out, err = gzip.NewReader(r)
	case "zlib":
		out, err = newZlibs(r)
	case "bzip2":
		out = bzip2.NewReader(r)
	case "zstd":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(s.limits.InMemory)), zstd.WithDecoderMaxWindow(64<<20)); err == nil { //nolint:gosec // not negative
			defer d.Close()
			out = d
		}
	}
	if err != nil {
		if format == "zlib" { // two bytes are little to know it by
			return nil
		}
		return s.broken(ctx, name, format, err)
	}
	in := bufio.NewReaderSize(s.expand(out, s.size), head)
	if format == "zlib" { // two bytes are little to know it by: text may begin so
		if b, err := in.Peek(head); err != nil && !errors.Is(err, io.EOF) {
			if read, ok := errors.AsType[*readError](err); ok {
				return read
			}
			return s.stream(ctx, name+"!", bytes.NewReader(b), depth+1)
		}
	}
	return s.broken(ctx, name, format, s.stream(ctx, name+"!", in, depth+1))
}

// zlibs reads streams of zlib one after another, as joblib does. The end of the first, with
// its checksum, is proof that it is one: what stands behind it must be another.
type zlibs struct {
	from *bufio.Reader
	io.ReadCloser
}

func newZlibs(r *bufio.Reader) (*zlibs, error) {
	z, err := zlib.NewReader(r)
	return &zlibs{r, z}, err
}

// Read implements io.Reader.
func (z *zlibs) Read(b []byte) (int, error) {
	n, err := z.ReadCloser.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, err := z.from.Peek(1); err != nil {
		return n, err
	}
	if err := z.ReadCloser.(zlib.Resetter).Reset(z.from, nil); err != nil {
		return n, errBehind
	}
	return n, nil
}

var errBehind = errors.New("the zlib stream is followed by invalid data")

// numpy looks at an array: one of objects is a pickle behind its header. What the header
// says is not asked, for Python has many ways to write it.
func (s *scanner) numpy(ctx context.Context, name string, r *bufio.Reader, b []byte) error {
	if len(b) < 12 {
		return nil
	}
	length := int(binary.LittleEndian.Uint16(b[8:]))
	start := 10
	if b[6] >= 2 {
		length, start = int(binary.LittleEndian.Uint32(b[8:])), 12
	}
	if length > len(b)-start {
		s.danger(name, "numpy", "has a header of %d bytes", length)
		return nil
	}
	if _, err := r.Discard(start + length); err != nil {
		return err
	}
	return s.broken(ctx, name, "numpy", s.pickles(ctx, name, r, int64(start+length)))
}

// lambdas looks for the layers of Keras that bring code.
func (s *scanner) lambdas(ctx context.Context, name, format string, r io.Reader) error {
	const overlap = 256
	b := make([]byte, 0, 1<<20)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.ReadFull(r, b[len(b):cap(b)])
		b = b[:len(b)+n]
		if lambda.Match(b) {
			s.found(Content{Path: name, Format: format, Level: Code, Reasons: []string{"has a Keras Lambda layer, which contains code"}})
			return nil
		}
		if escaped.Match(b) {
			s.found(Content{Path: name, Format: format, Level: Code, Reasons: []string{"has escaped plain letters, which can hide a Keras Lambda layer"}})
			return nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return s.broken(ctx, name, format, err)
		}
		b = b[:copy(b, b[len(b)-overlap:])]
	}
}

// rewinding reads at any place of a file that can only be read from its start: it goes
// on from where it is, or begins anew. What it read last it remembers.
type rewinding struct {
	ctx  context.Context //nolint:containedctx // io.ReaderAt has none
	open func(ctx context.Context) (io.ReadCloser, error)
	size int64
	r    io.ReadCloser
	at   int64
	done int64  // bytes that were read, again and again
	tail []byte // the end of the file, once it was read
}

// tailSize is how much of a file's end is kept: a zip's directory is there.
const tailSize = 4 << 20

func (r *rewinding) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off >= r.size {
		return 0, io.EOF
	}
	if from := r.size - int64(len(r.tail)); r.tail != nil && off >= from {
		n := copy(b, r.tail[off-from:])
		if n < len(b) {
			return n, io.EOF
		}
		return n, nil
	}
	if r.tail == nil && off > r.size-tailSize {
		from := max(r.size-tailSize, 0)
		tail := make([]byte, r.size-from)
		if err := r.read(tail, from); err != nil {
			return 0, err
		}
		r.tail = tail
		return r.ReadAt(b, off)
	}
	want := b[:min(int64(len(b)), r.size-off)]
	if err := r.read(want, off); err != nil {
		return 0, err
	}
	if len(want) < len(b) {
		return len(want), io.EOF
	}
	return len(want), nil
}

func (r *rewinding) read(b []byte, off int64) error {
	if r.r == nil || off < r.at {
		if r.r != nil {
			_ = r.r.Close()
			r.r = nil
		}
		opened, err := r.open(r.ctx)
		if err != nil {
			return &readError{err}
		}
		r.r, r.at = opened, 0
	}
	if r.done > 8*r.size+1<<30 {
		return errLimit // members in an order that has it read from the start each time
	}
	r.done += off - r.at + int64(len(b))
	n, err := io.CopyN(io.Discard, r.r, off-r.at)
	r.at += n
	if err == nil {
		var did int
		did, err = io.ReadFull(r.r, b)
		r.at += int64(did)
	}
	if err != nil {
		return &readError{err}
	}
	return nil
}

// Close ends it.
func (r *rewinding) Close() error {
	if r.r == nil {
		return nil
	}
	return r.r.Close()
}
