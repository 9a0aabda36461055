package oip

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Limits of a message of gRPC, beside its size.
const (
	maxMessages = 100_000         // within it: tensors, and their parameters
	maxTexts    = 1 << 22         // elements of BYTES that are not raw
	maxQuestion = 64 << 10        // bytes of a question about the calls
	messageTime = 5 * time.Minute // until a message of a stream is whole
)

// frames is the body of a call: messages, one after the other, each with a header of
// five bytes. grpc takes as many of them as come; frames reads the next one when the
// call wants it, decompressed, and counts it.
type frames struct {
	body     io.ReadCloser
	kind     string // of compression
	most     int    // bytes of a message
	share    *share
	wanted   chan struct{}         // one message for each; nil: there is but one
	deadline func(time.Time) error // of the connection's reads; nil: there is one for the call

	out    []byte // of a message, for grpc
	closed chan struct{}
	once   sync.Once
	came   bool // a message
	ended  bool

	mu  sync.Mutex
	err error

	working chan struct{} // one place: of the call's handler, and in the end of finish
}

// work runs the call's handler, which grpc has in a goroutine of its own.
func (f *frames) work(do func() error) error {
	select {
	case f.working <- struct{}{}:
	default:
		return context.Canceled
	}
	defer func() { <-f.working }()
	return do()
}

// finish waits for the handler, and lets none begin.
func (f *frames) finish() { f.working <- struct{}{} }

// header of a message: whether it is compressed, and its length.
const header = 5

func (f *frames) Read(p []byte) (int, error) {
	if f.ended && len(f.out) == 0 {
		return 0, io.EOF
	}
	if len(f.out) == 0 {
		var err error
		f.out, err = f.next()
		f.ended = err != nil
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			f.mu.Lock()
			f.err = broken(err)
			f.mu.Unlock()
			f.out = make([]byte, header)
		}
	}
	n := copy(p, f.out)
	if f.out = f.out[n:]; len(f.out) == 0 {
		f.out = nil
	}
	return n, nil
}

// check says why there was no message. In its place grpc has an empty one: an error of
// the body it would tell in its own way.
func (f *frames) check(p *payload) error {
	if p.Len() > 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// everything wants all messages.
var everything = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// want lets the next message come.
func (f *frames) want() {
	select {
	case f.wanted <- struct{}{}:
	default:
	}
}

// next reads a message; io.EOF: there is none.
func (f *frames) next() ([]byte, error) {
	if f.wanted != nil {
		select {
		case <-f.wanted:
		case <-f.closed:
			return nil, io.EOF
		}
	}
	var head [header]byte
	_, err := io.ReadFull(f.body, head[:])
	if errors.Is(err, io.EOF) && f.wanted == nil && !f.came {
		return nil, fault.New(fault.Invalid, "the call has no message")
	}
	if err != nil {
		return nil, err
	}
	if f.wanted == nil && f.came {
		return make([]byte, header), nil // grpc refuses it
	}
	f.came = true
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > int64(f.most) {
		return nil, f.tooLarge()
	}
	if f.deadline != nil && (size > 64<<10 || head[0] == 1) { // compressed, a few bytes may be a message of the largest size
		_ = f.deadline(time.Now().Add(messageTime))
		defer func() { _ = f.deadline(time.Time{}) }()
	}
	from := &io.LimitedReader{R: f.body, N: size}
	var b []byte
	if squeezed := head[0] == 1 && (f.kind == "gzip" || f.kind == "deflate"); squeezed {
		head[0] = 0
		b, err = inflate(f.kind, from, header, f.most, f.share)
		f.share.turn.End() // who wants the message may still work at the one before it
		if err == nil {
			_, err = io.Copy(io.Discard, from) // what is behind it
		}
	} else {
		b, err = readAll(from, size, header, f.most, f.share)
	}
	switch {
	case fault.Is(err, fault.TooLarge):
		return nil, f.tooLarge()
	case err != nil:
		return nil, err
	case from.N > 0:
		return nil, io.ErrUnexpectedEOF
	}
	n := len(b) - header
	f.share.give(cap(b) - n)                        // the message remains
	binary.BigEndian.PutUint32(head[1:], uint32(n)) //nolint:gosec // at most f.most
	copy(b, head[:])
	return b, nil
}

func (f *frames) tooLarge() error { // gRPC's own status of it
	return fault.New(fault.Exhausted, "the message has more than %d bytes", f.most).WithHint("Split the request.")
}

func (f *frames) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.body.Close()
}

// payload is a message that is still bytes.
type payload struct {
	mem.Buffer
	more int // that is held of what was made of them
}

// codec leaves messages in bytes for who asks for a payload.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if p, ok := v.(*payload); ok {
		p.Buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// into reads the message, once, and holds what it takes in memory beyond its bytes.
// Errors: fault.Invalid, fault.Exhausted, fault.Unavailable.
func (p *payload) into(m proto.Message, s *share) error {
	defer p.Free()
	turn, err := s.beside(p.Len()) // the next message may be decompressed meanwhile
	if err != nil {
		return err
	}
	defer turn.End()
	b := p.ReadOnlyData()
	w := &weight{}
	if err := w.add(b, m.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	if err := s.take(w.beside); err != nil {
		return err
	}
	p.more = w.beside
	if err := proto.Unmarshal(b, m); err != nil {
		return fault.New(fault.Invalid, "the message is not a %s: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}

// weight counts what of a message takes much more memory than it has bytes: empty
// messages and texts have two bytes each, numbers one.
type weight struct {
	messages, texts int
	beside          int // bytes that it takes beside its own
}

// add counts a message, and refuses names that are too long. Errors: fault.Invalid,
// fault.Exhausted.
func (w *weight) add(b []byte, d protoreflect.MessageDescriptor) error {
	dims := 0
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil // proto says what is wrong
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return nil
		}
		value := b[:n]
		b = b[n:]
		if f := d.Fields().ByNumber(number); f != nil {
			w.beside += inference.Beside(value, kind, f)
			if kind == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
			switch f.Kind() { //nolint:exhaustive // others cost what they have bytes
			case protoreflect.MessageKind:
				if kind != protowire.BytesType {
					continue // proto refuses it
				}
				w.messages++
				if err := w.add(value, f.Message()); err != nil {
					return err
				}
			case protoreflect.StringKind:
				// Whatever else is a text is a name, which errors have.
				most := maxName
				if f.Name() == "name" { // of a tensor; that of the model is model_name
					most = runtime.MaxName
				}
				if len(value) > most && f.Name() != "string_param" {
					return fault.New(fault.Invalid, "%s has %d bytes; it may have %d", f.Name(), len(value), most)
				}
				w.texts++
			case protoreflect.BytesKind:
				w.texts++
			case protoreflect.Int64Kind:
				if f.Name() == "shape" {
					dims += ends(value)
				}
			}
		}
		switch {
		case dims > inference.MaxDims:
			return fault.New(fault.Invalid, "a tensor may have %d dimensions", inference.MaxDims)
		case w.messages > maxMessages:
			return fault.New(fault.Exhausted, "the message has more than %d tensors and parameters", maxMessages)
		case w.texts > maxTexts:
			return fault.New(fault.Exhausted, "the message has more than %d texts", maxTexts).WithHint("Send BYTES in raw_input_contents, or split the request.")
		}
	}
	return nil
}

// ends counts numbers of variable length: the last byte of each is less than 0x80.
func ends(b []byte) int {
	n := 0
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}
