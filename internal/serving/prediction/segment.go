package prediction

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A segment is one file, "0000000000000007.seg":
//
//	header   magic (8 bytes), salt (32 random bytes)
//	frame …  length of what follows (4 bytes, little endian), sealed bytes
//	footer   a frame of kind footer, then its offset (8 bytes) and endMagic (8)
//
// A frame holds what one write took to disk: records, each after its length. It
// is sealed by AES-256-GCM under a key that HKDF derives for this one file, with
// the number of the frame as nonce and the kind and the file's name as
// additional data, so that frames cannot be moved. A file without a footer was
// being written when the process ended; it ends where its last whole frame does.
// Nothing is ever appended to it, because a nonce must not be used again.
const (
	magic      = "FALAJPR1"
	endMagic   = "FALAJEND"
	saltSize   = 32
	headerSize = int64(len(magic) + saltSize)
	trailer    = int64(8 + len(endMagic))
	frameHead  = 4
	overhead   = 16 // of GCM
	maxFrame   = maxRecord + maxBatch + 1024

	kindRecords = 'r'
	kindFooter  = 'f'
)

// span is what a segment holds.
type span struct {
	records  int64
	from, to int64 // of At, in microseconds
	received int64 // the latest, in microseconds
	first    int64 // the earliest received
}

func (s *span) add(t span) {
	if t.records == 0 {
		return
	}
	if s.records == 0 {
		*s = t
		return
	}
	s.records += t.records
	s.from, s.to = min(s.from, t.from), max(s.to, t.to)
	s.first, s.received = min(s.first, t.first), max(s.received, t.received)
}

func spanOf(r *Record) span {
	at, received := micros(r.At), micros(r.Received)
	return span{records: 1, from: at, to: at, first: received, received: received}
}

func (s *span) encode() []byte {
	b := make([]byte, 0, 40)
	for _, x := range [...]int64{s.records, s.from, s.to, s.first, s.received} {
		b = binary.LittleEndian.AppendUint64(b, uint64(x)) //nolint:gosec // G115: the bits are meant
	}
	return b
}

func decodeSpan(b []byte) (span, bool) {
	if len(b) != 40 {
		return span{}, false
	}
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) } //nolint:gosec // G115: the bits are meant
	return span{records: at(0), from: at(1), to: at(2), first: at(3), received: at(4)}, true
}

// sealer seals and opens the frames of one segment. Safe for concurrent use.
type sealer struct {
	aead cipher.AEAD
	name string
}

func newSealer(key, salt []byte, name string) (*sealer, error) {
	own, err := hkdf.Key(sha256.New, key, salt, "falaj prediction segment", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &sealer{aead: aead, name: name}, err
}

func (s *sealer) bind(kind byte) []byte { return append([]byte{kind}, s.name...) }

func nonceOf(frame uint64) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 4, 12), frame)
}

// frame appends a whole frame with its length.
func (s *sealer) frame(dst []byte, kind byte, number uint64, plain []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(plain)+overhead)) //nolint:gosec // G115: at most maxFrame
	return s.aead.Seal(dst, nonceOf(number), plain, s.bind(kind))
}

// open opens the sealed part of a frame in place.
func (s *sealer) open(kind byte, number uint64, sealed []byte) ([]byte, error) {
	return s.aead.Open(sealed[:0], nonceOf(number), sealed, s.bind(kind))
}

// segment is a file of the log, whole or being written. Its number rises with
// each of a deployment.
type segment struct {
	number uint64
	path   string
	span   span
	size   int64 // bytes of the file
	end    int64 // where its frames end
	broken bool  // a frame before its footer cannot be opened
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x.seg", number) }

func parseSegmentName(s string) (uint64, bool) {
	hex, ok := strings.CutSuffix(s, ".seg")
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, ok && err == nil && segmentName(n) == s
}

// create begins a segment file and returns its sealer.
func create(dir string, number uint64, key []byte, bound string) (*os.File, *sealer, error) {
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	s, err := newSealer(key, salt, bound+"/"+segmentName(number))
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, segmentName(number)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if _, err := f.Write(append([]byte(magic), salt...)); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, nil, err
	}
	return f, s, nil
}

// errTorn says that a file ends before its header does: it holds nothing.
var errTorn = errors.New("torn before the first frame")

// openSegment opens a segment for reading. Error: errTorn.
func openSegment(path string, number uint64, key []byte, bound string) (*os.File, *sealer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	head := make([]byte, headerSize)
	if _, err := f.ReadAt(head, 0); err != nil || string(head[:len(magic)]) != magic {
		_ = f.Close()
		if err == nil || errors.Is(err, io.EOF) {
			err = errTorn
		}
		return nil, nil, err
	}
	s, err := newSealer(key, head[len(magic):], bound+"/"+segmentName(number))
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, s, nil
}

// footer reads what the end of a sealed segment says. ok is false when it has no
// footer that can be opened.
func footer(f *os.File, s *sealer, size int64) (sp span, end int64, ok bool) {
	if size < headerSize+trailer+frameHead+overhead {
		return sp, 0, false
	}
	tail := make([]byte, trailer)
	if _, err := f.ReadAt(tail, size-trailer); err != nil || string(tail[8:]) != endMagic {
		return sp, 0, false
	}
	at := int64(binary.LittleEndian.Uint64(tail)) //nolint:gosec // G115: checked next
	length := size - trailer - at - frameHead
	if at < headerSize || length < overhead || length > 1024 {
		return sp, 0, false
	}
	sealed := make([]byte, length)
	if _, err := f.ReadAt(sealed, at+frameHead); err != nil {
		return sp, 0, false
	}
	plain, err := s.open(kindFooter, 1<<63, sealed)
	if err != nil {
		return sp, 0, false
	}
	sp, ok = decodeSpan(plain)
	return sp, at, ok
}

// appendFooter is the footer with its trailer, for a file whose frames end at end.
func appendFooter(dst []byte, s *sealer, sp span, end int64) []byte {
	dst = s.frame(dst, kindFooter, 1<<63, sp.encode())
	dst = binary.LittleEndian.AppendUint64(dst, uint64(end)) //nolint:gosec // G115: not negative
	return append(dst, endMagic...)
}

// frames reads the frames of a file one after the other.
type frames struct {
	f      io.ReaderAt
	s      *sealer
	at     int64  // of the next frame
	number uint64 // of the next frame
	end    int64  // nothing is read from there on
	buf    []byte
}

// next is the next frame's content, valid until the next call. io.EOF is the
// end; errFrame a frame that is not whole or not ours.
func (fs *frames) next() (plain []byte, at int64, err error) {
	if fs.at >= fs.end {
		return nil, fs.at, io.EOF
	}
	var head [frameHead]byte
	if fs.end-fs.at < frameHead {
		return nil, fs.at, errFrame
	}
	if _, err := fs.f.ReadAt(head[:], fs.at); err != nil {
		return nil, fs.at, frameError(err)
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n < overhead || n > maxFrame || n > fs.end-fs.at-frameHead {
		return nil, fs.at, errFrame
	}
	if int64(cap(fs.buf)) < n {
		fs.buf = make([]byte, n)
	}
	sealed := fs.buf[:n]
	if _, err := fs.f.ReadAt(sealed, fs.at+frameHead); err != nil {
		return nil, fs.at, frameError(err)
	}
	plain, err = fs.s.open(kindRecords, fs.number, sealed)
	if err != nil {
		return nil, fs.at, errFrame
	}
	at = fs.at
	fs.at += frameHead + n
	fs.number++
	return plain, at, nil
}

var errFrame = errors.New("a frame that is not whole")

func frameError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errFrame
	}
	return err
}

// eachRecord calls visit for the records of a frame; index counts them from 0.
func eachRecord(plain []byte, visit func(index int, b []byte) error) error {
	for i := 0; len(plain) > 0; i++ {
		n, k := binary.Uvarint(plain)
		if k <= 0 || n > uint64(len(plain)-k) { //nolint:gosec // G115: not negative
			return errRecord("its frame is corrupted")
		}
		if err := visit(i, plain[k:k+int(n)]); err != nil { //nolint:gosec // G115: at most len(plain)
			return err
		}
		plain = plain[k+int(n):] //nolint:gosec // G115: as above
	}
	return nil
}

// look finds out what a segment file holds: from its footer, or, when a crash
// left none, by reading it up to its last whole frame.
func look(path string, number uint64, key []byte, bound string) (sg segment, sealed bool, err error) {
	sg = segment{number: number, path: path}
	f, s, err := openSegment(path, number, key, bound)
	if errors.Is(err, errTorn) {
		return sg, false, nil
	}
	if err != nil {
		return sg, false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return sg, false, err
	}
	sg.size = info.Size()
	var ok bool
	if sg.span, sg.end, ok = footer(f, s, sg.size); ok {
		return sg, true, nil
	}
	fs := frames{f: f, s: s, at: headerSize, end: sg.size}
	for {
		plain, at, err := fs.next()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, errFrame) {
				return sg, false, err
			}
			sg.end = at
			return sg, false, nil
		}
		err = eachRecord(plain, func(_ int, b []byte) error {
			var r Record
			if err := decodeRecord(b, &r); err != nil {
				return err
			}
			sg.span.add(spanOf(&r))
			return nil
		})
		if err != nil {
			return sg, false, err
		}
	}
}

// finish cuts what a crash left behind a segment's last frame and gives it a
// footer, so that it is looked through once.
func finish(sg *segment, key []byte, bound string) error {
	f, s, err := openSegment(sg.path, sg.number, key, bound)
	if errors.Is(err, errTorn) {
		return os.Remove(sg.path)
	}
	if err != nil {
		return err
	}
	_ = f.Close()
	w, err := os.OpenFile(sg.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	if err := w.Truncate(sg.end); err != nil {
		return err
	}
	tail := appendFooter(nil, s, sg.span, sg.end)
	if _, err := w.WriteAt(tail, sg.end); err != nil {
		return err
	}
	if err := w.Sync(); err != nil {
		return err
	}
	sg.size = sg.end + int64(len(tail))
	return nil
}

// Cursor is a place in the log of a deployment: just after a record. The zero
// Cursor is before the first. Cursors rise in the order of appending.
type Cursor struct {
	Segment uint64
	Offset  int64  // of the frame
	Frame   uint64 // its number in the segment
	Index   int    // of the record in its frame
}

// String is "7-4096-12-0", which ParseCursor reads; the zero Cursor is "".
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d-%d-%d", c.Segment, c.Offset, c.Frame, c.Index)
}

// ParseCursor reads what String wrote. Error: fault.Invalid.
func ParseCursor(s string) (Cursor, error) {
	if s == "" {
		return Cursor{}, nil
	}
	bad := fault.New(fault.Invalid, "%q is not a position in the prediction log", clip(s))
	parts := strings.Split(s, "-")
	if len(parts) != 4 {
		return Cursor{}, bad
	}
	var n [4]uint64
	for i, p := range parts {
		var err error
		if n[i], err = strconv.ParseUint(p, 10, 62); err != nil {
			return Cursor{}, bad
		}
	}
	c := Cursor{Segment: n[0], Offset: int64(n[1]), Frame: n[2], Index: int(n[3])} //nolint:gosec // G115: 62 bits
	if c.String() != s {
		return Cursor{}, bad
	}
	return c, nil
}

// MarshalText is String.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText is ParseCursor.
func (c *Cursor) UnmarshalText(b []byte) (err error) {
	*c, err = ParseCursor(string(b))
	return err
}

// Before reports whether c is before d.
func (c Cursor) Before(d Cursor) bool {
	switch {
	case c.Segment != d.Segment:
		return c.Segment < d.Segment
	case c.Offset != d.Offset:
		return c.Offset < d.Offset
	}
	return c.Index < d.Index
}

// rollAge and rollSize are when a segment is sealed and the next begins.
const (
	rollSize = 8 << 20
	rollAge  = 10 * time.Minute
)
