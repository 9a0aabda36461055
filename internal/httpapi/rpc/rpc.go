// Package rpc speaks gRPC for online features: the service of
// api/falaj/online/v1/online.proto, in the words of HTTP/2 that every client of gRPC
// has. It is another form of POST …/features/online and decides nothing: a call is a
// request of HTTP/2, and so it passes what every request passes (token, host, size,
// permission of the project), and the same service answers it.
//
// # Map
//
//   - rpc.go: the call: frames, deadline, trailers; optuna speaks by them, too.
//   - convert.go: messages to feature's requests, answers to messages.
//   - onlinev1/ is generated from the proto by scripts/proto.sh.
//
// One message comes and one goes: there is no stream, no reflection, and a compressed
// message is refused, which a client may learn from the answer.
package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc/onlinev1"
	"github.com/falaj-ml/falaj/internal/share"
)

// Prefix begins the path of every call.
const Prefix = "/falaj.online.v1.Features/"

// ReadPath is the call that there is.
const ReadPath = Prefix + "Read"

// Ours reports whether a path is a call of this service.
func Ours(path string) bool { return strings.HasPrefix(path, Prefix) }

// MaxBody bounds a request, in bytes.
const MaxBody = 16 << 20

// Features is what the service asks of features.
type Features interface {
	Online(ctx context.Context, r feature.OnlineRequest) (feature.OnlineAnswer, error)
}

// Read answers a call that has passed the gate of feature.online in its project.
// Nothing was written when it returns an error.
func Read(w http.ResponseWriter, r *http.Request, p project.Name, features Features) error {
	ctx, cancel, err := Deadline(r)
	if err != nil {
		return err
	}
	defer cancel()
	var ask onlinev1.ReadRequest
	if err := Receive(r, &ask); err != nil {
		return err
	}
	in, err := request(p, &ask)
	if err != nil {
		return err
	}
	got, err := features.Online(ctx, in)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.Context().Err() == nil {
			return fault.New(fault.Timeout, "the client's deadline has passed")
		}
		return err
	}
	out, err := answer(got)
	if err != nil {
		return err
	}
	return Send(ctx, w, out)
}

// header is what comes before a message: whether it is compressed, and its length.
const header = 5

// Receive reads the one message of a call.
func Receive(r *http.Request, m proto.Message) error {
	if r.ProtoMajor < 2 {
		return fault.New(fault.Invalid, "gRPC requires HTTP/2")
	}
	if kind := r.Header.Get("Content-Type"); kind != "application/grpc" && kind != "application/grpc+proto" {
		return fault.New(fault.Invalid, "Content-Type %.40q is not supported; gRPC requires application/grpc", kind)
	}
	b, err := io.ReadAll(r.Body)
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fault.New(fault.TooLarge, "the call has more than %d bytes", large.Limit).WithHint("Split the request.")
	}
	if err != nil {
		return err
	}
	switch {
	case len(b) < header || len(b)-header != int(binary.BigEndian.Uint32(b[1:])):
		return fault.New(fault.Invalid, "the call has %d bytes, but must contain exactly one message", len(b))
	case b[0] != 0:
		return fault.New(fault.Unsupported, "compressed messages are not supported").WithHint("Disable compression.")
	}
	defer share.TurnOf(r.Context()).End()
	if err := proto.Unmarshal(b[header:], m); err != nil {
		return fault.New(fault.Invalid, "the message is not a %s: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}

// heavy is the least answer, in bytes, that is encoded in the request's turn at a processor.
const heavy = share.Heavy / 4

// Send writes the one message of an answer, and that all is well. Errors: also
// fault.Exhausted where a large one gets no turn.
func Send(ctx context.Context, w http.ResponseWriter, m proto.Message) error {
	size := proto.Size(m)
	if size >= heavy {
		if err := share.TurnOf(ctx).Begin(ctx); err != nil {
			return err
		}
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, header, header+size), m)
	share.TurnOf(ctx).End() // its reader may be slow
	if err != nil {
		return fault.Wrap(err, "encode the response")
	}
	if len(b)-header > 1<<31-1 {
		return fault.New(fault.TooLarge, "the response is too large: %d bytes", len(b)).WithHint("Split the request.")
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-header)) //nolint:gosec // just looked at
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(b); err == nil { // else the client went away: nobody to tell
		w.Header().Set("Grpc-Status", "0")
	}
	return nil
}

// units of a deadline, as gRPC writes them.
var units = map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}

// Deadline bounds a call as its client wishes.
func Deadline(r *http.Request) (context.Context, context.CancelFunc, error) {
	text := r.Header.Get("Grpc-Timeout")
	if text == "" {
		return r.Context(), func() {}, nil
	}
	unit, known := units[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil || !known || len(text) > 9 {
		return nil, nil, fault.New(fault.Invalid, "grpc-timeout: %.20q is not a duration such as 100m", text)
	}
	most := uint64(24 * time.Hour / unit) //nolint:gosec // not negative
	d := time.Duration(min(n, most)) * unit
	ctx, cancel := context.WithTimeout(r.Context(), d)
	return ctx, cancel, nil
}
