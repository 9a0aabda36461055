// Package child is how the server talks to the processes that touch users'
// files and SQL: frames on a pipe, Arrow inside.
//
// # Map
//
//   - A Launcher starts this binary in a hidden mode, sandboxed; app implements it.
//   - Start gives the server's end, a Session: In to write to, Out to read from.
//   - The child's Main wraps its stdin and stdout in NewReader and NewWriter.
//   - A conversation is frames: JSON headers, streams of bytes in chunks that end
//     with an explicit mark (a pipe that just closes is an error, never an end),
//     and at most one fault, after which nothing follows.
//   - Record batches (records.go) are a header with the schema and a stream of
//     Arrow's own buffers behind fixed lengths. Not Arrow IPC: its FlatBuffers
//     let the sender choose how much memory the reader allocates.
//
// # Guarantees
//
// The server trusts nothing that comes back: frames, headers and batches are
// bounded before they are allocated, a child that dies is an error with its
// reason, and a fault from a child has only the kinds that a file or a query can
// cause. Close kills the child and waits for it, and may be called twice.
package child

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/membudget"
)

// The hidden modes of the binary.
const (
	ParserMode   = "dataset-parser"
	SnapshotMode = "snapshot-parser"
	SQLMode      = "sql-worker"
	SQLiteMode   = "sqlite-reader"
)

// Sizes that bound what one side makes the other allocate.
const (
	maxFrame  = 1 << 20  // bytes in a frame
	maxHeader = 16 << 20 // bytes in a JSON header, over several frames
)

// kind of a frame.
type kind byte

const (
	kindHeader kind = 'H' // a part of a JSON document
	kindData   kind = 'D' // a part of a stream
	kindEnd    kind = 'E' // the end of the document or stream
	kindFault  kind = 'F' // a wireFault; the last frame
)

// wireFault is a fault on the pipe.
type wireFault struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Data    string `json:"data,omitempty"`
	Full    bool   `json:"full,omitempty"` // a disk had no room: see fault.Full
}

// Writer writes frames. Not safe for concurrent use.
type Writer struct{ w *bufio.Writer }

// NewWriter makes a frame writer.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 256<<10)} }

func (w *Writer) frame(k kind, payload []byte) error {
	var head [5]byte
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload))) //nolint:gosec // callers cut at maxFrame
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(payload)
	return err
}

func (w *Writer) chunks(k kind, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		if err := w.frame(k, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (w *Writer) end() error {
	if err := w.frame(kindEnd, nil); err != nil {
		return err
	}
	return w.w.Flush()
}

// Header writes a JSON document and flushes.
func (w *Writer) Header(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := w.chunks(kindHeader, b); err != nil {
		return err
	}
	return w.end()
}

// Fault tells the other side why there is nothing more. The conversation is over.
func (w *Writer) Fault(err error) error {
	msg, data := err.Error(), fault.DataOf(err)
	b, jerr := json.Marshal(wireFault{Kind: fault.KindOf(err).String(), Message: msg[:min(len(msg), 64<<10)], Hint: fault.HintOf(err), Data: data[:min(len(data), 4<<10)], Full: fault.Full(err)})
	if jerr != nil {
		return jerr
	}
	if err := w.frame(kindFault, b); err != nil {
		return err
	}
	return w.w.Flush()
}

// Stream opens a stream; its Close writes the end mark. One at a time.
func (w *Writer) Stream() io.WriteCloser { return streamWriter{w} }

type streamWriter struct{ w *Writer }

func (s streamWriter) Write(p []byte) (int, error) {
	if err := s.w.chunks(kindData, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s streamWriter) Close() error { return s.w.end() }

// Reader reads frames. Not safe for concurrent use.
type Reader struct {
	r    *bufio.Reader
	left int // unread bytes of the current data frame
	done bool

	ctx   context.Context  //nolint:containedctx // of the request that reads
	share *membudget.Share // nil: none
}

// Within holds what batches take of a request's memory, until the next batch or Release.
func (r *Reader) Within(ctx context.Context) { r.ctx, r.share = ctx, membudget.From(ctx) }

// NewReader makes a frame reader.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 256<<10)} }

func (r *Reader) head() (kind, int, error) {
	var head [5]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, 0, fmt.Errorf("a frame of %d bytes is over the limit of %d", n, maxFrame)
	}
	return kind(head[0]), int(n), nil
}

func (r *Reader) fault(n int) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return err
	}
	var f wireFault
	if err := json.Unmarshal(b, &f); err != nil {
		return errors.New("an unreadable fault frame")
	}
	k := fault.ParseKind(f.Kind)
	switch k { // what a file or a query can be guilty of; a child says nothing about permissions
	case fault.Invalid, fault.NotFound, fault.TooLarge, fault.Exhausted, fault.Unsupported, fault.Timeout:
	default:
		k = fault.Internal
	}
	said := &fault.Error{Kind: k, Message: f.Message, Hint: f.Hint, Data: f.Data}
	if f.Full {
		said.Err = fault.ErrFull
	}
	return said
}

// Header reads a JSON document into v, or the other side's fault.
func (r *Reader) Header(v any) error {
	var doc []byte
	for {
		k, n, err := r.head()
		if err != nil {
			return err
		}
		switch k {
		case kindHeader:
			if len(doc)+n > maxHeader {
				return fault.New(fault.TooLarge, "a header over %d bytes", maxHeader)
			}
			at := len(doc)
			doc = append(doc, make([]byte, n)...)
			if _, err := io.ReadFull(r.r, doc[at:]); err != nil {
				return err
			}
		case kindEnd:
			if err := json.Unmarshal(doc, v); err != nil {
				return fmt.Errorf("an unreadable header: %w", err)
			}
			return nil
		case kindFault:
			return r.fault(n)
		default:
			return fmt.Errorf("a frame of kind %q instead of a header", byte(k))
		}
	}
}

// Stream reads the next stream, to io.EOF at its end mark. A fault of the other
// side, or a pipe that closes early, is an error. Read it to the end before
// anything else.
func (r *Reader) Stream() io.Reader { return r.stream() }

func (r *Reader) stream() streamReader {
	r.left, r.done = 0, false
	return streamReader{r}
}

type streamReader struct{ r *Reader }

func (s streamReader) Read(p []byte) (int, error) {
	r := s.r
	for r.left == 0 {
		if r.done {
			return 0, io.EOF
		}
		k, n, err := r.head()
		if err != nil {
			return 0, err
		}
		switch k {
		case kindData:
			r.left = n
		case kindEnd:
			r.done = true
		case kindFault:
			return 0, r.fault(n)
		default:
			return 0, fmt.Errorf("a frame of kind %q in a stream", byte(k))
		}
	}
	n, err := r.r.Read(p[:min(len(p), r.left)])
	r.left -= n
	if n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}
