package flight

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// Commands is what clients may ask by DoExchange and DoPut: a command and rows.
// The rows are a stream of Arrow's IPC as strangers wrote it, which no more than
// passes through here: whoever reads it does so in another process.
type Commands interface {
	// Exchange answers with rows.
	Exchange(ctx context.Context, command []byte, rows io.Reader) (Rows, error)
	// Put answers with nothing.
	Put(ctx context.Context, command []byte, rows io.Reader) error
	// Words is an error as the clients of these commands understand it.
	Words(err error, words string) string
}

// Rows is an answer. Release it.
type Rows interface {
	array.RecordReader
	// Reauthorize asks whether the caller may go on reading.
	Reauthorize(ctx context.Context) error
}

// MaxUpload bounds the body of DoExchange and DoPut, in bytes.
const MaxUpload = 257 << 20

// maxHead bounds what describes a message of rows, in bytes.
const maxHead = 8 << 20

// Uploads reports whether calls of a path bring rows.
func Uploads(p string) bool {
	return Ours(p) && (path.Base(p) == "DoExchange" || path.Base(p) == "DoPut")
}

// upload answers DoExchange and DoPut. They are not left to grpc, which takes
// whole messages into memory, as fast as they come: pyarrow sends a table in one.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	out := &frames{w: w}
	err := recovered(func() error {
		end, err := s.begin(r.Context())
		if err != nil {
			return err
		}
		defer end()
		in, err := openMessages(r.Body)
		if err != nil {
			return err
		}
		if path.Base(r.URL.Path) == "DoPut" {
			if in.path != nil {
				out.own = true
				return s.bring(r.Context(), out, in)
			}
			return s.commands.Put(r.Context(), in.command, in)
		}
		if in.command == nil {
			return fault.New(fault.Invalid, "the call has no command")
		}
		rows, err := s.commands.Exchange(r.Context(), in.command, in)
		if err != nil {
			return err
		}
		defer rows.Release()
		return s.answer(r.Context(), out, rows)
	})
	if err != nil {
		err = s.ended(r.Context(), r.URL.Path, err)
	}
	drain(w, r)
	out.end(err, s.commands)
}

// bring makes a version of a dataset of the rows of DoPut, whose descriptor is a path
// that names it. The answer says which: what becomes of rows, whoever sends them has
// to know.
func (s *Server) bring(ctx context.Context, out *frames, in *messages) error {
	if len(in.path) != 1 {
		return fault.New(fault.Invalid, "the path has %d parts", len(in.path)).WithHint("Write the name of a dataset.")
	}
	v, err := s.datasets.Writes.Import(ctx, dataset.ImportRequest{Project: identity.From(ctx).Project, Name: in.path[0], Filename: "flight", Format: parser.Arrow, Body: in})
	if err != nil {
		return err
	}
	b, err := json.Marshal(brought{Dataset: v.Ref().String(), Digest: v.ContentDigest, Rows: v.Rows, State: string(v.State), Reason: v.Reason, Unchanged: v.Unchanged})
	if err != nil {
		return err
	}
	return out.message(&flight.PutResult{AppMetadata: b})
}

// brought is the metadata of DoPut's answer.
type brought struct {
	Dataset   string `json:"dataset"` // "weather@3"
	Digest    string `json:"digest"`
	Rows      int64  `json:"rows"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`    // why it is rejected
	Unchanged bool   `json:"unchanged,omitempty"` // the same rows were there
}

// drain takes what is still on its way before a call ends: clients that write look
// for an answer when they have written, and have no good words for one before it.
// A stream that ends with its other half open is reset, and some clients forget
// then what they had been sent.
func drain(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, r.Body, maxDrain) // what is longer is cut off
}

const (
	drainTime = 5 * time.Second
	maxDrain  = 4 << 20
)

// answer streams rows, and asks now and then whether it may.
func (s *Server) answer(ctx context.Context, out *frames, rows Rows) error {
	to := flight.NewRecordWriter(out, ipc.WithSchema(rows.Schema()))
	for due := time.Now().Add(s.cfg.Recheck); rows.Next(); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !time.Now().Before(due) {
			who, err := again(ctx)
			if err != nil {
				return err
			}
			if err := rows.Reauthorize(identity.With(ctx, who)); err != nil {
				return err
			}
			due = time.Now().Add(s.cfg.Recheck)
		}
		if err := s.send(ctx, to, rows.RecordBatch()); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return to.Close()
}

// messages is the body of a call: gRPC's messages, each a FlightData. Read gives
// the stream of Arrow's IPC that they carry. Nothing of Arrow is looked at, and a
// body is never held.
//
// In FlightData, the fields are the descriptor (1), the head (2) and the body
// (1000), which Arrow's libraries write in this order.
type messages struct {
	in      *bufio.Reader
	command []byte   // of the first message
	path    []string // instead of a command

	frame int64  // bytes of the message that are not read
	body  int64  // bytes of its body that are not read
	ready []byte // to be given before the body
	pad   int    // zeros after the body
	ended bool
}

const (
	fieldDescriptor = 1
	fieldHead       = 2
	fieldBody       = 1000
)

// openMessages reads up to the first head, and so the command.
func openMessages(body io.Reader) (*messages, error) {
	m := &messages{in: bufio.NewReaderSize(body, 64<<10)}
	for len(m.ready) == 0 && !m.ended {
		if err := m.next(); err != nil {
			return nil, err
		}
	}
	if m.command == nil && m.path == nil {
		return nil, fault.New(fault.Invalid, "the call has no descriptor").WithHint("DoExchange needs a command, DoPut the path of a dataset.")
	}
	return m, nil
}

// Read implements io.Reader.
func (m *messages) Read(p []byte) (int, error) {
	for {
		switch {
		case len(m.ready) > 0:
			n := copy(p, m.ready)
			m.ready = m.ready[n:]
			return n, nil
		case m.body > 0:
			n, err := m.in.Read(p[:min(int64(len(p)), m.body)])
			m.body, m.frame = m.body-int64(n), m.frame-int64(n)
			if n > 0 {
				return n, nil
			}
			return 0, cutOff(err)
		case m.pad > 0:
			m.ready, m.pad = make([]byte, m.pad), 0
		case m.ended:
			return 0, io.EOF
		default:
			if err := m.next(); err != nil {
				return 0, err
			}
		}
	}
}

// next reads on to the body of a message, or over one without.
func (m *messages) next() error {
	if m.frame == 0 {
		var head [5]byte
		if _, err := io.ReadFull(m.in, head[:]); errors.Is(err, io.EOF) {
			m.ended = true
			m.ready = []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0} // the end of a stream of IPC
			return nil
		} else if err != nil {
			return cutOff(err)
		}
		if head[0] != 0 {
			return fault.New(fault.Unsupported, "the message is compressed by gRPC").WithHint("Send messages as they are; Arrow's own compression may be used.")
		}
		m.frame = int64(binary.BigEndian.Uint32(head[1:]))
	}
	var head []byte
	for m.frame > 0 {
		number, kind, err := m.tag()
		if err != nil {
			return err
		}
		if kind != protowire.BytesType {
			return strange("a field of kind %d", kind)
		}
		size, err := m.varint()
		if err != nil {
			return err
		}
		if size > uint64(m.frame) {
			return strange("a field that is longer than its message")
		}
		switch {
		case number == fieldBody:
			if head == nil {
				return strange("a body before its head")
			}
			m.body = int64(size) //nolint:gosec // at most frame
			if m.body != m.frame {
				return strange("something after the body")
			}
			m.pad = int(-m.body & 7)
			m.encapsulate(head)
			return nil
		case number == fieldDescriptor && m.command == nil && m.path == nil:
			b, err := m.take(size, maxAsk)
			if err != nil {
				return err
			}
			var d flight.FlightDescriptor
			if err := proto.Unmarshal(b, &d); err != nil {
				return strange("a descriptor that is none")
			}
			switch d.GetType() {
			case flight.DescriptorCMD:
				m.command = append([]byte{}, d.GetCmd()...) // one that is there is not nil
			case flight.DescriptorPATH:
				m.path = append([]string{}, d.GetPath()...)
			default:
				return fault.New(fault.Invalid, "the descriptor is neither a path nor a command")
			}
		case number == fieldHead:
			if head, err = m.take(size, maxHead); err != nil {
				return err
			}
		default:
			if _, err := io.CopyN(io.Discard, m.in, int64(size)); err != nil { //nolint:gosec // at most frame
				return cutOff(err)
			}
			m.frame -= int64(size) //nolint:gosec // at most frame
		}
	}
	if len(head) > 0 {
		m.encapsulate(head)
	}
	return nil
}

// encapsulate makes the head as it is in a stream: behind a mark and its length,
// filled up to 8 bytes.
func (m *messages) encapsulate(head []byte) {
	pad := -len(head) & 7
	b := make([]byte, 8, 8+len(head)+pad)
	binary.LittleEndian.PutUint32(b, 0xffffffff)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(head)+pad)) //nolint:gosec // at most maxHead
	m.ready = append(append(b, head...), make([]byte, pad)...)
}

func (m *messages) take(size, most uint64) ([]byte, error) {
	if size > most {
		return nil, fault.New(fault.TooLarge, "%d bytes of what describes a message are over the limit of %d", size, most)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(m.in, b); err != nil {
		return nil, cutOff(err)
	}
	m.frame -= int64(size) //nolint:gosec // at most `most`
	return b, nil
}

func (m *messages) tag() (protowire.Number, protowire.Type, error) {
	v, err := m.varint()
	number, kind := protowire.DecodeTag(v)
	if err == nil && number < 1 {
		err = strange("a field without a number")
	}
	return number, kind, err
}

func (m *messages) varint() (uint64, error) {
	var b [10]byte
	for i := range b {
		c, err := m.in.ReadByte()
		if err != nil {
			return 0, cutOff(err)
		}
		if m.frame--; m.frame < 0 {
			return 0, strange("a message that is cut off")
		}
		if b[i] = c; c < 0x80 {
			v, n := protowire.ConsumeVarint(b[:i+1])
			if n < 0 {
				break
			}
			return v, nil
		}
	}
	return 0, strange("a number that is too long")
}

func strange(format string, args ...any) error {
	return fault.Wrap(fault.New(fault.Invalid, format, args...), "the message is not what Arrow's libraries write")
}

// cutOff is the error of a body in the middle of a message.
func cutOff(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.New(fault.TooLarge, "the rows are over the limit of %d bytes", MaxUpload).WithHint("Send fewer at a time.")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.New(fault.Invalid, "the call ended in the middle of a message")
	}
	return fault.Wrap(err, "reading the rows that are sent")
}

// frames answers a call with gRPC's messages.
type frames struct {
	w     http.ResponseWriter
	begun bool
	own   bool // the call is of this protocol alone, without Commands
}

// Send implements flight.DataStreamWriter.
func (f *frames) Send(d *flight.FlightData) error { return f.message(d) }

func (f *frames) message(d proto.Message) error {
	f.begin()
	size := proto.Size(d)
	b, err := proto.MarshalOptions{}.MarshalAppend(binary.BigEndian.AppendUint32(make([]byte, 1, 5+size), uint32(size)), d) //nolint:gosec // about a MiB
	if err != nil {
		return err
	}
	if _, err := f.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(f.w).Flush()
}

func (f *frames) begin() {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", "application/grpc")
		f.w.WriteHeader(http.StatusOK)
	}
}

// end says how the call ended, in the trailer.
func (f *frames) end(err error, c Commands) {
	f.begin()
	h := f.w.Header()
	code := codes.OK
	if err != nil {
		p := problemOf(err)
		code = codeOf[fault.KindOf(err)]
		words := p.words()
		if !f.own {
			words = c.Words(err, words)
		}
		h.Set(http.TrailerPrefix+"Grpc-Message", percent(words))
		h.Set(http.TrailerPrefix+problemKey, base64.RawStdEncoding.EncodeToString(p.bytes()))
	}
	h.Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(code)))
}
