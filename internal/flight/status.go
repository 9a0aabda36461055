package flight

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/falaj-ml/falaj/internal/fault"
)

// problemKey is the trailer that has what a status has no room for: the kind and
// the hint, as in the problem documents of HTTP.
const problemKey = "falaj-problem-bin"

var codeOf = map[fault.Kind]codes.Code{
	fault.Internal:         codes.Internal,
	fault.Invalid:          codes.InvalidArgument,
	fault.Unauthenticated:  codes.Unauthenticated,
	fault.PermissionDenied: codes.PermissionDenied,
	fault.NotFound:         codes.NotFound,
	fault.Conflict:         codes.FailedPrecondition,
	fault.Gone:             codes.NotFound,
	fault.TooLarge:         codes.OutOfRange,
	fault.Exhausted:        codes.ResourceExhausted,
	fault.Unsupported:      codes.Unimplemented,
	fault.Unavailable:      codes.Unavailable,
	fault.Timeout:          codes.DeadlineExceeded,
}

type problem struct {
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// problemOf is what callers may know of an error.
func problemOf(err error) problem {
	kind := fault.KindOf(err)
	if kind == fault.Internal { // a defect's text is for our log, not for callers
		return problem{kind.String(), "internal error", "The server's log has the cause; please report it."}
	}
	told, hint := fault.Brief(err)
	return problem{kind.String(), told, hint}
}

// words are one message for clients that know no more than a status.
func (p problem) words() string {
	if p.Hint == "" {
		return p.Detail
	}
	return p.Detail + " → " + p.Hint
}

func (p problem) bytes() []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic("flight: a problem does not marshal: " + err.Error())
	}
	return b
}

// refusal is the error of a call as gRPC has it; what callers may not see is
// logged.
func (s *Server) refusal(ctx context.Context, method string, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err() // the client went away: no defect
	}
	if _, ok := status.FromError(err); ok {
		return err // of grpc itself: a connection that broke, a method that is not offered
	}
	return Status(ctx, s.ended(ctx, method, err))
}

// Status is an error as the clients of any call of gRPC hear it.
func Status(ctx context.Context, err error) error {
	p := problemOf(err)
	_ = grpc.SetTrailer(ctx, metadata.Pairs(problemKey, string(p.bytes())))
	return status.Error(codeOf[fault.KindOf(err)], p.words())
}

// percent writes words as the header of a status has them.
func percent(words string) string { return strings.ReplaceAll(url.QueryEscape(words), "+", "%20") }

// Refuse answers a call that did not come as far as its handler, in the form that
// clients of gRPC read, beside the status of HTTP.
func Refuse(w http.ResponseWriter, httpStatus int, err error) {
	RefuseAs(w, httpStatus, codeOf[fault.KindOf(err)], err)
}

// RefuseAs is Refuse for protocols in which the error has another code.
func RefuseAs(w http.ResponseWriter, httpStatus int, code codes.Code, err error) {
	p := problemOf(err)
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(code)))
	h.Set("Grpc-Message", percent(p.words()))
	h.Set(problemKey, base64.RawStdEncoding.EncodeToString(p.bytes()))
	w.WriteHeader(httpStatus)
}
