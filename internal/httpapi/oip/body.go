package oip

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// MaxBody bounds a request, in bytes: as it is sent, and once it is decompressed.
const MaxBody = runtime.MaxRequest

// trusted is how many bytes a request must have sent before the length that it
// announces is believed, and start how many have room before any came: who sends
// nothing costs no more memory.
const (
	trusted = 1 << 20
	start   = 16 << 10
)

// copied is how many bytes are moved at a time: the runtime, and with it everybody, may have
// to wait for the end of that.
const copied = 256 << 10

// headLength is the header that says how long the JSON before binary tensors is.
const headLength = "Inference-Header-Content-Length"

// single is a header that a request may have once, by its canonical name.
func single(r *http.Request, name string) (string, error) {
	switch values := r.Header[name]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	default:
		return "", fault.New(fault.Invalid, "the request has the header %s %d times", name, len(values))
	}
}

// headOf is the length of a request's JSON, -1 for all of it.
func headOf(r *http.Request) (int, error) {
	text, err := single(r, headLength)
	if err != nil || text == "" {
		return -1, err
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%s: %.40q is not a number of bytes", headLength, text)
	}
	return int(n), nil
}

// receive reads the body of a request, decompressed, of at most so many bytes. What
// follows the first head bytes begins where numbers of eight bytes may. The turn of a large
// one is held then.
func receive(r *http.Request, head, most int, s *share) ([]byte, error) {
	kind, err := single(r, "Content-Encoding")
	if err != nil {
		return nil, err
	}
	if kind, err = coding.Of(kind, coding.Gzip, coding.Deflate); err != nil {
		return nil, err
	}
	gap := -max(head, 0) & 7
	var out []byte
	if kind == coding.Identity {
		if out, err = readAll(r.Body, r.ContentLength, gap, most, s); err == nil {
			err = s.begin(len(out))
		}
	} else {
		out, err = inflate(kind, r.Body, gap, most, s)
	}
	if err != nil {
		return nil, broken(err)
	}
	return out[gap:], nil
}

// source remembers how reading ended.
type source struct {
	io.Reader
	err   error
	whole bool // all of it is in memory
}

func (s *source) Read(p []byte) (n int, err error) {
	n, s.err = s.Reader.Read(p)
	return n, s.err
}

// unpacking is what is decompressed. Once it is large, it goes on in turn, and what is still
// compressed is read before: nobody holds a processor while a client sends.
type unpacking struct {
	plain io.Reader
	from  *source
	share *share
	most  int
	n     int
}

func (u *unpacking) Read(p []byte) (int, error) {
	if u.n >= heavy && !u.from.whole {
		rest, err := readAll(u.from.Reader, -1, 0, u.most, u.share)
		if err == nil {
			err = u.share.begin(u.n)
		}
		if err != nil {
			return 0, err
		}
		u.from.Reader, u.from.whole = bytes.NewReader(rest), true
	}
	n, err := u.plain.Read(p)
	u.n += n
	return n, err
}

// inflate reads what is compressed, to behind a gap.
func inflate(kind string, r io.Reader, gap, most int, s *share) ([]byte, error) {
	from := &source{Reader: r}
	plain, done, err := decompress(kind, from)
	var out []byte
	if err == nil {
		defer done()
		out, err = readAll(&unpacking{plain: plain, from: from, share: s, most: most}, -1, gap, most, s)
	}
	switch {
	case err == nil || fault.KindOf(err) != fault.Internal:
		return out, err
	case from.err != nil && !errors.Is(from.err, io.EOF):
		return nil, from.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, err
	}
	return nil, fault.New(fault.Invalid, "the body is not %s: %v", kind, err)
}

// errLate is told as 408.
var errLate = fault.New(fault.Timeout, "the request body timed out")

// broken is why a body could not be read, without what the connection says of itself.
func broken(err error) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return tooLarge(MaxBody)
	}
	switch {
	case fault.KindOf(err) != fault.Internal:
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errLate
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.Invalid, "the request body is incomplete")
	}
	return fault.New(fault.Invalid, "the request body cannot be read completely")
}

// readAll reads what has size bytes, or an unknown number of them when size is
// negative, to behind a gap.
func readAll(r io.Reader, size int64, gap, most int, s *share) ([]byte, error) {
	if size > int64(most) {
		return nil, tooLarge(most)
	}
	first := 4096
	if size >= 0 {
		first = int(min(size, start))
	}
	if err := s.take(gap + first + 1); err != nil {
		return nil, err
	}
	out := make([]byte, gap, gap+first+1) // the byte more is where the end is noticed
	for {
		if len(out) == cap(out) {
			room := 2 * cap(out)
			if whole := gap + int(size) + 1; whole > cap(out) && (whole < room || len(out) >= trusted) {
				room = whole
			}
			if err := s.take(room - cap(out)); err != nil {
				return nil, err
			}
			grown := make([]byte, 0, room)
			for rest := range slices.Chunk(out, copied) {
				grown = append(grown, rest...)
			}
			out = grown
		}
		n, err := r.Read(out[len(out):cap(out)])
		if out = out[:len(out)+n]; len(out)-gap > most {
			return nil, tooLarge(most)
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func tooLarge(most int) error {
	return fault.New(fault.TooLarge, "the request has more than %d bytes", most).WithHint("Split the request.")
}

// Readers and writers are large, so they are used again.
var (
	gzipReaders, zlibReaders sync.Pool
	gzipWriters              = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
	zlibWriters              = sync.Pool{New: func() any { w, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return w }}
)

// decompress reads a body; done gives the reader back.
func decompress(kind string, body io.Reader) (plain io.Reader, done func(), err error) {
	if kind == coding.Gzip {
		z, ok := gzipReaders.Get().(*gzip.Reader)
		if !ok {
			z = &gzip.Reader{}
		}
		return z, func() { gzipReaders.Put(z) }, z.Reset(body)
	}
	z, ok := zlibReaders.Get().(io.ReadCloser)
	if !ok {
		z, err = zlib.NewReader(body)
		return z, func() { zlibReaders.Put(z) }, err
	}
	return z, func() { zlibReaders.Put(z) }, z.(zlib.Resetter).Reset(body, nil)
}

// worth is the least answer that is compressed, in bytes: a smaller one is one
// packet in any case.
const worth = 1400

func compress(kind string, parts [][]byte) ([]byte, error) {
	var out bytes.Buffer
	var z interface {
		io.WriteCloser
		Reset(w io.Writer)
	}
	if kind == coding.Gzip {
		w := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(w)
		z = w
	} else {
		w := zlibWriters.Get().(*zlib.Writer)
		defer zlibWriters.Put(w)
		z = w
	}
	z.Reset(&out)
	for _, p := range parts {
		if _, err := z.Write(p); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return out.Bytes(), err
}

// heads are buffers for the JSON of answers.
var heads = sync.Pool{New: func() any { return new(make([]byte, 0, 4096)) }}

// joined is how many bytes that follow the JSON of an answer are copied behind it at most:
// to write them by themselves costs more than that.
const joined = 16 << 10

// Values of headers that most answers have. Nobody changes them.
var (
	typeJSON  = []string{"application/json"}
	typeBytes = []string{"application/octet-stream"}
)

// send writes an answer, and ends its turn before: JSON, and what follows it, for which there
// may be room behind it.
// When not all of it was written, net/http may still read what it was given. Nothing was
// written after an error.
func send(w http.ResponseWriter, r *http.Request, s *share, head []byte, raw [][]byte) (whole bool, err error) {
	h := w.Header()
	if len(raw) == 0 {
		h["Content-Type"] = typeJSON
	} else {
		h["Content-Type"] = typeBytes
		h[headLength] = []string{strconv.Itoa(len(head))}
	}
	if sizeOf(raw) <= joined {
		for _, b := range raw {
			head = append(head, b...)
		}
		raw = nil
	}
	size := len(head) + sizeOf(raw)
	kind := coding.Identity
	if size >= worth {
		kind = coding.Accepted(strings.Join(r.Header.Values("Accept-Encoding"), ","), coding.Gzip, coding.Deflate)
	}
	if kind != coding.Identity {
		if head, err = compress(kind, append([][]byte{head}, raw...)); err != nil {
			return false, fault.Wrap(err, "compress the response")
		}
		h.Set("Content-Encoding", kind)
		raw, size = nil, len(head)
	}
	h["Content-Length"] = []string{strconv.Itoa(size)}
	s.encoded()
	_, err = w.Write(head) //nolint:gosec // never a page
	for _, b := range raw {
		if err == nil {
			_, err = w.Write(b) //nolint:gosec // never a page
		}
	}
	return err == nil, nil // a client that went away cannot be told
}

func sizeOf(raw [][]byte) (size int) {
	for _, b := range raw {
		size += len(b)
	}
	return size
}
