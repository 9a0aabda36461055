package remote

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// wire asks a server by a protocol. Safe for concurrent use. Its errors are
// failures; the tensors that it reads are sound.
type wire interface {
	ready(ctx context.Context, m model) error
	// metadata is what the server says of a model, and which versions it has.
	metadata(ctx context.Context, m model) (runtime.Metadata, []string, error)
	// maxRows is how many rows a request may have; 0 when the server does not say.
	maxRows(ctx context.Context, m model) (int, error)
	infer(ctx context.Context, m model, id string, inputs []runtime.Tensor, outputs []string) (answer, error)
	close() error
}

// model is one on a server; a server without versions has an empty one.
type model struct{ name, version string }

// answer is what came back. What the server does not say is empty.
type answer struct {
	id, model, version string
	outputs            []runtime.Tensor
}

// open makes the connections' end here.
func open(s Server) (wire, error) {
	switch s.Protocol {
	case GRPC:
		return openGRPC(s)
	case HTTP:
		return openHTTP(s), nil
	}
	return nil, fault.New(fault.Invalid, "unknown protocol %.40q: use one of %q", s.Protocol, Protocols)
}

// Reason is why a server did not answer.
type Reason string

// The reasons.
const (
	Unreachable Reason = "unreachable"
	Slow        Reason = "timeout"
	Denied      Reason = "denied"
	Missing     Reason = "missing"
	Garbled     Reason = "garbled"
	Changed     Reason = "changed"
	Busy        Reason = "busy"
	Rejected    Reason = "rejected"
	Broken      Reason = "failed"
)

// Reasons lists them all.
var Reasons = []Reason{Unreachable, Slow, Denied, Missing, Garbled, Changed, Busy, Rejected, Broken}

func (r Reason) words() string {
	switch r {
	case Unreachable:
		return "it is unreachable, or closes the connection"
	case Slow:
		return "it does not respond in time"
	case Denied:
		return "it rejects the token"
	case Missing:
		return "its model does not exist, or is not ready"
	case Garbled:
		return "its response does not match the request"
	case Changed:
		return "its model differs from the registered one"
	case Busy:
		return "it is overloaded, or its response is too large"
	case Rejected:
		return "it rejects the inputs"
	default:
		return "its model fails"
	}
}

// counts reports whether a failure says something about the server and not about
// the request.
func (r Reason) counts() bool { return r != Busy && r != Rejected && r != Broken }

// failure is why a server did not answer, and nothing that it said.
type failure struct{ why Reason }

func (f *failure) Error() string { return f.why.words() }

// reasonOf is that of a failure; what is none is a comparison's refusal.
func reasonOf(err error) Reason {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.why
	}
	return Changed
}

// Limits of what a server says of a model.
const (
	maxVersions = 10_000
	maxText     = 256
	maxTold     = 4 << 20 // bytes
)

// believable refuses a description that is none.
func believable(m runtime.Metadata, versions []string) (runtime.Metadata, []string, error) {
	bad := len(m.Inputs) > runtime.MaxPorts || len(m.Outputs) > runtime.MaxPorts || len(versions) > maxVersions
	for _, specs := range [][]runtime.Spec{m.Inputs, m.Outputs} {
		for i, s := range specs {
			bad = bad || len(s.Name) > runtime.MaxName || len(s.Datatype) > maxText || len(s.Shape) > runtime.MaxRank
			if s.Shape == nil {
				specs[i].Shape = []int64{}
			}
		}
	}
	if len(m.Platform) > maxText || strings.ContainsFunc(m.Platform, func(r rune) bool { return !unicode.IsPrint(r) }) {
		m.Platform = ""
	}
	if bad {
		return runtime.Metadata{}, nil, &failure{Garbled}
	}
	return m, versions, nil
}

// bearer is a token in a file, which somebody may replace.
type bearer struct {
	path string

	mu    sync.Mutex
	text  string
	again time.Time
}

// Limits of a token.
const (
	maxToken  = 16 << 10
	tokenKept = 5 * time.Second
)

// header is what the authorization header says; "" for none.
func (b *bearer) header() (string, error) {
	if b.path == "" {
		return "", nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.After(b.again) {
		text, err := readToken(b.path)
		if err != nil {
			return "", &failure{Denied}
		}
		b.text, b.again = "Bearer "+text, now.Add(tokenKept)
	}
	return b.text, nil
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	if text == "" || len(b) > maxToken || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fault.New(fault.Invalid, "the token file is empty")
	}
	return text, nil
}
