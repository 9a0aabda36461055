package oip

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	turns "github.com/falaj-ml/falaj/internal/share"
)

// counter is a body that counts what was read of it.
type counter struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// watched is a model that looks before it answers.
type watched struct {
	oneModel
	look func()
}

func (w watched) Infer(ctx context.Context, r serving.Request) (serving.Answer, error) {
	w.look()
	return w.oneModel.Infer(ctx, r)
}

// TestBackPressure: of a stream whose client sends on and on, the server has read what
// it answers and the next message.
func TestBackPressure(t *testing.T) {
	const messages = 16
	for _, squeezed := range []string{"", "gzip"} {
		q := asking(make([]byte, 64<<10), "label")
		b, err := proto.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		var read, answered atomic.Int64
		sent := make(chan struct{})
		api := edge(t)
		api.Serving = watched{api.Serving.(oneModel), func() {
			<-sent
			n := answered.Add(1)
			if most := (n + 1) * int64(header+len(b)); read.Load() > most {
				t.Errorf("%d bytes were read with message %d of %d bytes", read.Load(), n, len(b))
			}
			api.held.mu.Lock()
			defer api.held.mu.Unlock()
			if api.held.all > 3*int64(header+len(b)) { // one of them is being read
				t.Errorf("%d bytes are held", api.held.all)
			}
		}}
		conn := dialTo(t, api, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = counter{r.Body, &read}
				h.ServeHTTP(w, r)
			})
		})
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer", grpc.UseCompressor(squeezed))
		if err != nil {
			t.Fatal(err)
		}
		for range messages {
			if err := s.SendMsg(q); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		close(sent)
		for range messages {
			if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

// TestStreamErrors: errors are answers, and add nothing to the end of the stream; what
// is no message ends it.
func TestStreamErrors(t *testing.T) {
	conn := dial(t)
	open := func() grpc.ClientStream {
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	for range 100 {
		q := asking(floats(1, 2), "label")
		q.ModelName = "nothing"
		if err := s.SendMsg(q); err != nil {
			t.Fatal(err)
		}
		m := &inference.ModelStreamInferResponse{}
		if err := s.RecvMsg(m); err != nil || !strings.Contains(m.GetErrorMessage(), "unknown model") || m.GetInferResponse().GetId() != "7" {
			t.Fatal(m, err)
		}
	}
	if err := errors.Join(s.CloseSend(), s.RecvMsg(&inference.ModelStreamInferResponse{})); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if n := len(s.Trailer().Get("problem")); n != 0 {
		t.Errorf("the end has %d errors", n)
	}
	s = open()
	if err := s.SendMsg(&inference.ModelStreamInferResponse{ErrorMessage: "\x01\x02"}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); err != nil {
		t.Errorf("a message that is something else is answered: %v", err)
	}
}

// TestExpansion: messages that would be much larger in memory than they were sent are
// refused before anything is made of them.
func TestExpansion(t *testing.T) {
	conn := dial(t)
	many := &inference.ModelInferRequest{ModelName: "delay"}
	for range maxMessages + 1 {
		many.Inputs = append(many.Inputs, &inference.ModelInferRequest_InferInputTensor{})
	}
	for _, c := range []string{"", "gzip", "deflate"} {
		if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", many, grpc.UseCompressor(c)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "tensors and parameters") {
			t.Errorf("%q: %v", c, err)
		}
		if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", asking(make([]byte, MaxBody)), grpc.MaxCallSendMsgSize(2*MaxBody), grpc.UseCompressor(c)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%q: too large: %v", c, err)
		}
	}
	texts := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, 8, protowire.BytesType), nil), maxTexts+1)
	contents := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), texts)
	tensor := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), contents)
	d := (&inference.ModelInferRequest{}).ProtoReflect().Descriptor()
	if err := (&weight{}).add(tensor, d); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	if err := (&weight{}).add(tensor[:len(tensor)-1], d); err != nil {
		t.Errorf("what proto refuses is left to it: %v", err)
	}
}

// TestSmallNumbers: numbers of a byte are held as what they take, and a shape has so many.
func TestSmallNumbers(t *testing.T) {
	const most = 32 << 20 // one caller has half of it
	within := func(name protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, name, protowire.BytesType), b)
	}
	single := func(name protowire.Number, n int) []byte {
		return bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, name, protowire.VarintType), 0), n)
	}
	for name, c := range map[string]struct {
		tensor []byte
		want   fault.Kind
	}{
		"shape":           {within(3, make([]byte, inference.MaxDims+1)), fault.Invalid},
		"shape, singly":   {single(3, inference.MaxDims+1), fault.Invalid},
		"shape, as it is": {within(3, make([]byte, inference.MaxDims)), 0},
		"int":             {within(5, within(2, make([]byte, most/8+1))), fault.Exhausted},
		"int64":           {within(5, within(3, make([]byte, most/16+1))), fault.Exhausted},
		"int64, singly":   {within(5, single(3, most/16+1)), fault.Exhausted},
		"uint":            {within(5, within(4, make([]byte, most/8+1))), fault.Exhausted},
		"uint64":          {within(5, within(5, make([]byte, most/16+1))), fault.Exhausted},
		"few of them":     {within(5, within(5, make([]byte, most/32))), 0},
		"floats":          {within(5, within(6, make([]byte, most/4))), 0},
	} {
		m := &inference.ModelInferRequest{}
		p := &payload{Buffer: mem.SliceBuffer(within(5, c.tensor))}
		s, size := (&held{most: most}).share(t.Context()), p.Len()
		if err := s.take(size); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err := p.into(m, s)
		if fault.KindOf(err) != c.want || (err == nil) != (c.want == 0) || err != nil && (len(m.GetInputs()) > 0 || s.n != int64(size)) {
			t.Errorf("%s: %v, %d bytes are held", name, err, s.n)
		}
		if s.give(p.more); s.n != int64(size) {
			t.Errorf("%s: %d bytes remain", name, s.n)
		}
	}
}

// TestHeld: what the bodies of all requests hold is bounded, for each caller and for all.
func TestHeld(t *testing.T) {
	h := &held{most: 100}
	of := func(id string) *share {
		return h.share(identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: id}))
	}
	a, again, b, c := of("a"), of("a"), of("b"), of("c")
	for _, step := range []struct {
		s    *share
		n    int
		want fault.Kind
	}{
		{a, 30, 0}, {again, 21, fault.Exhausted}, {again, 20, 0}, {a, 1, fault.Exhausted}, {b, 40, 0}, {c, 11, fault.Unavailable}, {c, 10, 0},
	} {
		if err := step.s.take(step.n); fault.KindOf(err) != step.want || (err == nil) != (step.want == 0) || err != nil && fault.RetryOf(err) == 0 {
			t.Errorf("%s takes %d: %v", step.s.who.ID, step.n, err)
		}
	}
	a.free()
	a.free()
	again.give(5)
	if h.all != 65 || h.of["a"] != 15 {
		t.Error(h.all, h.of)
	}
	again.free()
	b.free()
	c.free()
	if h.all != 0 || len(h.of) != 0 {
		t.Error(h.all, h.of)
	}

	api := edge(t)
	api.held.most = 64 << 10
	srv := serverOf(t, api)
	large := strings.Repeat(" ", 33<<10)
	for _, body := range []io.Reader{strings.NewReader(large), io.MultiReader(strings.NewReader(large))} {
		resp, err := srv.Client().Post(srv.URL+"/v2/models/delay/infer", "", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" {
			t.Error(resp.Status, resp.Header)
		}
	}
	api = edge(t)
	api.held.most = 64 << 10
	conn := dialTo(t, api, func(h http.Handler) http.Handler { return h })
	for _, c := range []string{"", "gzip"} {
		if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", asking(make([]byte, 40<<10)), grpc.UseCompressor(c)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the active requests") {
			t.Errorf("%q: %v", c, err)
		}
	}
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // together they would be too much
		if err := s.SendMsg(asking(make([]byte, 8<<10), "label")); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SendMsg(asking(make([]byte, 40<<10), "label")); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// TestBroken: a body that cannot be read is the caller's, and the answer says nothing of
// the connection.
func TestBroken(t *testing.T) {
	api := edge(t)
	api.Ended = func(_ *http.Request, err error) error {
		if fault.KindOf(err) == fault.Internal {
			t.Errorf("taken for a defect: %v", err)
		}
		return err
	}
	mux := http.NewServeMux()
	api.Register(func(method, path, _, _ string, h http.HandlerFunc) { mux.Handle(method+" "+path, h) })
	srv := httptest.NewUnstartedServer(balanced(t, api, mux))
	srv.Config.ReadTimeout = 2 * time.Second
	srv.Start()
	t.Cleanup(srv.Close)
	const post = "POST /v2/models/delay/infer HTTP/1.1\r\nHost: x\r\n"
	for name, c := range map[string]struct {
		request string
		ends    bool // the client closes its side
		status  int
		error   string
	}{
		"too few bytes":         {post + "Content-Length: 100\r\n\r\n{", true, 400, "the request body is incomplete"},
		"too few bytes of gzip": {post + "Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00", true, 400, "the request body is incomplete"},
		"half a gzip":           {post + "Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00", false, 400, "the request body is incomplete"},
		"half a deflate":        {post + "Content-Encoding: deflate\r\nContent-Length: 2\r\n\r\n\x78\x9c", false, 400, "the request body is incomplete"},
		"no gzip":               {post + "Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n{\"inputs\":[]", false, 400, "the body is not gzip: gzip: invalid header"},
		"late":                  {post + "Content-Length: 100\r\n\r\n{", false, 408, "the request body timed out"},
		"late gzip":             {post + "Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n\x1f\x8b\x08\x00", false, 408, "the request body timed out"},
		"no chunks":             {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", false, 400, "the request body cannot be read completely"},
		"no chunks of gzip":     {post + "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false, 400, "the request body cannot be read completely"},
		"too large":             {post + "Content-Length: 67108865\r\n\r\n", false, 413, "the request has more than 67108864 bytes. Split the request."},
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		if c.ends {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		b, _ := io.ReadAll(conn) // a server that leaves bytes unread resets, after its answer
		_ = conn.Close()
		head, body, _ := strings.Cut(string(b), "\r\n\r\n")
		if want := fmt.Sprintf("{%q:%q}\n", "error", c.error); !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || body != want {
			t.Errorf("%s: %s\n%s want %s", name, head, body, want)
		}
	}
	for want, err := range map[string]error{
		"the request body cannot be read completely": &net.OpError{Op: "read", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, Err: errors.New("connection reset by peer")},
		"more than 67108864 bytes":                   &http.MaxBytesError{Limit: 1},
	} {
		for _, encoding := range []string{"", "gzip"} {
			r := httptest.NewRequest(http.MethodPost, "/", iotest.ErrReader(err))
			r.Header.Set("Content-Encoding", encoding)
			if _, got := receive(r, -1, MaxBody, new(held).share(t.Context())); fault.KindOf(got) == fault.Internal || !strings.Contains(got.Error(), want) {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
}

// TestMessageTime: whatever of a message may hold much memory has a time to be whole in,
// and what comes after it has none.
func TestMessageTime(t *testing.T) {
	packed, err := compress("gzip", [][]byte{make([]byte, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		squeezed byte
		size     int
		body     []byte
		want     bool
	}{
		"small":      {0, 10, make([]byte, 9), false},
		"large":      {0, 65 << 10, make([]byte, 9), true},
		"compressed": {1, len(packed), packed[:len(packed)-12], true},
	} {
		var set []bool
		body := append(binary.BigEndian.AppendUint32([]byte{c.squeezed}, uint32(c.size)), c.body...)
		f := &frames{
			body: io.NopCloser(bytes.NewReader(body)), kind: "gzip", most: MaxBody, share: new(held).share(t.Context()), wanted: everything, closed: make(chan struct{}),
			deadline: func(at time.Time) error { set = append(set, !at.IsZero()); return nil },
		}
		if _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != slices.Equal(set, []bool{true, false}) || !c.want && len(set) > 0 {
			t.Errorf("%s: deadlines %v", name, set)
		}
	}
}

// TestLongNames: an error has none, whichever way it came; values may be longer.
func TestLongNames(t *testing.T) {
	conn, srv := dial(t), server(t)
	long := strings.Repeat("é", 1<<20)
	const short = 512
	for name, c := range map[string]struct {
		call string
		q    proto.Message
	}{
		"model":   {"ModelInfer", &inference.ModelInferRequest{ModelName: long}},
		"version": {"ModelInfer", &inference.ModelInferRequest{ModelVersion: long}},
		"id":      {"ModelInfer", &inference.ModelInferRequest{Id: long}},
		"input":   {"ModelInfer", &inference.ModelInferRequest{Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: long}}}},
		"output":  {"ModelInfer", asking(floats(1, 2), long)},
		"ready":   {"ModelReady", &inference.ModelReadyRequest{Name: long}},
		"about":   {"ModelMetadata", &inference.ModelMetadataRequest{Version: long}},
		"counts":  {"ModelStatistics", &inference.ModelStatisticsRequest{Name: long}},
		"load":    {"RepositoryModelLoad", &inference.RepositoryModelLoadRequest{RepositoryName: long}},
		"setting": {"TraceSetting", &inference.TraceSettingRequest{Settings: map[string]*inference.TraceSettingRequest_SettingValue{long: {}}}},
	} {
		_, err := invoke[inference.ModelInferResponse](t, conn, c.call, c.q)
		most := "may have 256"
		if m, ok := c.q.(*inference.ModelInferRequest); (ok && len(m.GetInputs()) > 0) || name == "ready" || name == "counts" { // fields that are called name
			most = "may have 1024"
		}
		if s, _ := status.FromError(err); s.Code() != codes.InvalidArgument || len(s.Message()) > short || !strings.Contains(s.Message(), most) {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	q := asking(floats(1, 2), "label")
	q.Parameters = map[string]*inference.InferParameter{"other": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: long}}}
	if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", q); err != nil {
		t.Errorf("a value: %.200v", err)
	}
	for name, body := range map[string]string{
		"input":  `{"inputs":[{"name":"` + long + `"}]}`,
		"output": `{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}],"outputs":[{"name":"` + long + `"}]}`,
	} {
		if got, b := post(t, srv, "/v2/models/delay/infer", []byte(body)); got.StatusCode != http.StatusBadRequest || len(b) > short || !strings.Contains(string(b), "may have 1024") {
			t.Errorf("%s: %d %.200s", name, got.StatusCode, b)
		}
	}
	w := httptest.NewRecorder()
	Refuse(w, http.StatusBadRequest, fault.New(fault.Invalid, "x%s", long).WithHint("%s", long))
	if n := w.Body.Len(); n > 4<<10 || !utf8.Valid(w.Body.Bytes()) || strings.Contains(w.Body.String(), "\ufffd") {
		t.Errorf("%d bytes of an error", n)
	}
}

// TestGivenUp: a call that its client gives up holds what it has, and its place, until
// nobody works on it.
func TestGivenUp(t *testing.T) {
	for _, name := range []string{"ModelInfer", "ModelStreamInfer"} {
		synctest.Test(t, func(t *testing.T) {
			api := edge(t)
			asked, answer := make(chan struct{}), make(chan struct{})
			api.Serving = watched{api.Serving.(oneModel), func() { close(asked); <-answer }}
			mux := http.NewServeMux()
			api.RegisterCalls(func(path, _ string, h http.HandlerFunc) { mux.Handle(path, h) }, func(_ http.ResponseWriter, _ *http.Request, err error) { t.Error(err) })
			b, err := proto.Marshal(asking(make([]byte, 8<<10), "label"))
			if err != nil {
				t.Fatal(err)
			}
			sent, send := io.Pipe()
			defer send.Close()
			go func() { _, _ = send.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)) }()
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, CallPrefix+name, sent)
			r.ProtoMajor = 2
			r.Header.Set("Content-Type", "application/grpc")
			var returned atomic.Bool
			go func() {
				mux.ServeHTTP(httptest.NewRecorder(), r)
				returned.Store(true)
			}()
			if name == "ModelInfer" {
				synctest.Wait()
				_ = send.Close() // a call has one message
			}
			<-asked
			cancel()
			synctest.Wait()
			if returned.Load() || api.held.all < int64(len(b)) {
				t.Errorf("%s: the call is over: %t; %d bytes are held", name, returned.Load(), api.held.all)
			}
			close(answer)
			synctest.Wait()
			if !returned.Load() || api.held.all != 0 {
				t.Errorf("%s: the call is over: %t; %d bytes are held", name, returned.Load(), api.held.all)
			}
		})
	}
	f := &frames{working: make(chan struct{}, 1)}
	f.finish()
	if err := f.work(func() error { t.Error("works on a call that is over"); return nil }); err == nil {
		t.Error("a call that is over begins")
	}
}

// looks is a writer that looks before it writes.
type looks struct {
	http.ResponseWriter
	look func()
}

func (w looks) Write(b []byte) (int, error) {
	w.look()
	return w.ResponseWriter.Write(b)
}

func (w looks) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestSlowReaders: a request holds nothing while its answer is read.
func TestSlowReaders(t *testing.T) {
	api := edge(t)
	writes := 0
	within := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(looks{w, func() {
				api.held.mu.Lock()
				defer api.held.mu.Unlock()
				if writes++; api.held.all != 0 {
					t.Errorf("%s: %d bytes are held while the answer is written", r.URL.Path, api.held.all)
				}
			}}, r)
		})
	}
	mux := http.NewServeMux()
	api.Register(func(method, path, _, _ string, h http.HandlerFunc) { mux.Handle(method+" "+path, h) })
	srv := httptest.NewServer(within(mux))
	t.Cleanup(srv.Close)
	const x = `{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`
	if got, b := post(t, srv, "/v2/models/delay/infer", []byte(x)); got.StatusCode != http.StatusOK {
		t.Errorf("%s", b)
	}
	conn := dialTo(t, api, within)
	if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", asking(floats(1, 2), "label")); err != nil {
		t.Error(err)
	}
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer")
	if err == nil {
		err = errors.Join(s.SendMsg(asking(floats(1, 2), "label")), s.RecvMsg(&inference.ModelStreamInferResponse{}), s.CloseSend())
	}
	if err == nil {
		err = s.RecvMsg(&inference.ModelStreamInferResponse{})
	}
	if !errors.Is(err, io.EOF) || writes < 3 {
		t.Errorf("%v after %d writes", err, writes)
	}
}

// gone is a client that went away.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, net.ErrClosed }

// TestHeadsOfBrokenAnswers: a buffer of which not all was written is not used again.
func TestHeadsOfBrokenAnswers(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for want, w := range map[bool]http.ResponseWriter{true: httptest.NewRecorder(), false: gone{httptest.NewRecorder()}} {
		if whole, err := send(w, r, new(held).share(r.Context()), []byte("{}"), nil); whole != want || err != nil {
			t.Errorf("%t %v, want %t", whole, err, want)
		}
	}
}

// asker is a model of which its caller may know nothing but what it answers.
type asker struct{ oneModel }

func (asker) Metadata(context.Context, string, string, string) (serving.Description, error) {
	return serving.Description{}, fault.New(fault.PermissionDenied, "no deployment.read")
}

func (a asker) Takes(ctx context.Context, project, name, version string) (serving.Takes, error) {
	return a.oneModel.Takes(ctx, project, name, version)
}

// TestRawNeedsInfer: who may ask a model may ask it in bytes alone.
func TestRawNeedsInfer(t *testing.T) {
	api := edge(t)
	m := api.Serving.(oneModel)
	api.Serving = asker{m}
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(floats(1, 2)))
	r.Header.Set(headLength, "0")
	r.SetPathValue("model", "delay")
	if q, err := api.read(r, "nyc", new(held).share(t.Context())); err != nil || len(q.Inputs) != 1 {
		t.Error(q, err)
	}
}

// TestRepeated: what is there twice, or not at all, is refused and not guessed.
func TestRepeated(t *testing.T) {
	srv := server(t)
	const x = `"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]`
	for name, c := range map[string]struct {
		body    string
		headers []string
		want    string
	}{
		"lengths":        {`{}`, []string{headLength, "2", headLength, "2"}, "the request has the header Inference-Header-Content-Length 2 times"},
		"signed length":  {`{}`, []string{headLength, "+2"}, "is not a number of bytes"},
		"encodings":      {`{}`, []string{"Content-Encoding", "identity", "Content-Encoding", "gzip"}, "the header Content-Encoding 2 times"},
		"route keys":     {`{"inputs":[{` + x + `}]}`, []string{routeKey, "a", routeKey, "b"}, "the header Falaj-Route-Key 2 times"},
		"parameters":     {`{"parameters":{"priority":1,"priority":2},"inputs":[{` + x + `}]}`, nil, `duplicate parameter \"priority\"`},
		"of an input":    {`{"inputs":[{` + x + `,"parameters":{"a":1,"\u0061":2}}]}`, nil, `duplicate parameter \"a\"`},
		"of an output":   {`{"inputs":[{` + x + `}],"outputs":[{"name":"label","parameters":{"binary_data":true,"binary_data":false}}]}`, nil, `duplicate parameter \"binary_data\"`},
		"too many":       {`{"parameters":{` + parameterList(maxParameters+1) + `},"inputs":[{` + x + `}]}`, nil, "there may be 64 parameters"},
		"no shape":       {`{"inputs":[{"name":"X","datatype":"FP32","data":[1]}]}`, nil, `input \"X\" has no shape`},
		"no name":        {`{"inputs":[{"shape":[1,2],"datatype":"FP32","data":[1,2]}]}`, nil, "an input has no name"},
		"no datatype":    {`{"inputs":[{"name":"X","shape":[1,2],"data":[1,2]}]}`, nil, `input \"X\" has no datatype`},
		"no output name": {`{"inputs":[{` + x + `}],"outputs":[{}]}`, nil, "an output has no name"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v2/models/delay/infer", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Add(c.headers[i], c.headers[i+1])
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), c.want) {
			t.Errorf("%s: %s %s %v", name, resp.Status, b, err)
		}
	}
	ok := `{"parameters":{` + parameterList(maxParameters) + `},"inputs":[{` + x + `}]}`
	if got, b := post(t, srv, "/v2/models/delay/infer", []byte(ok)); got.StatusCode != http.StatusOK {
		t.Errorf("%+v %s", got, b)
	}
}

func parameterList(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"p%d":%d`, i, i)
	}
	return strings.Join(all, ",")
}

// TestClassesBounded: classes cost no more than the output has elements, and end with
// their caller.
func TestClassesBounded(t *testing.T) {
	values := make([]float32, 1<<20+1)
	rows := runtime.Tensor{Name: "y", Datatype: runtime.FP32, Shape: []int64{int64(len(values)), 1}, Data: values}
	if _, err := classified(t.Context(), rows, 1); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	rows.Shape, rows.Data = []int64{2, 1}, values[:2]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := classified(ctx, rows, 1); !fault.Is(err, fault.Timeout) {
		t.Error(err)
	}
	for i := range values {
		values[i] = float32(i)
	}
	compared := 0
	_, ranking, err := ranked(runtime.Tensor{Data: values})
	if err != nil {
		t.Fatal(err)
	}
	plain := ranking.compare
	ranking.compare = func(i, j int) int { compared++; return plain(i, j) }
	best := ranks{ranking, make([]int, 3)}
	if best.find(0, len(values)); best.at[0] != len(values)-1 || best.at[2] != len(values)-3 || compared > 5*len(values) {
		t.Errorf("%v after %d comparisons", best.at, compared)
	}
}

// TestOpenStreams: there are so many streams, of one caller and of all.
func TestOpenStreams(t *testing.T) {
	var s streams
	var ends []func()
	begin := func(id int) error {
		end, err := s.begin(identity.Principal{ID: strconv.Itoa(id)})
		if err == nil {
			ends = append(ends, end)
		}
		return err
	}
	for i := range maxOpen {
		if err := begin(i / maxStreams); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin(0); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	if err := begin(maxOpen); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	var all sync.WaitGroup
	for _, end := range ends {
		all.Go(end)
	}
	all.Wait()
	if s.all != 0 || len(s.open) != 0 {
		t.Error(s.all, s.open)
	}
}

// FuzzFrames: whatever a body is, grpc gets whole messages within the limit, and what is
// held is what they have.
func FuzzFrames(f *testing.F) {
	b, err := proto.Marshal(asking(floats(1, 2), "label"))
	if err != nil {
		f.Fatal(err)
	}
	message := func(squeezed byte, b []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{squeezed}, uint32(len(b))), b...)
	}
	packed := func(kind string) []byte {
		out, err := compress(kind, [][]byte{b})
		if err != nil {
			f.Fatal(err)
		}
		return out
	}
	f.Add(message(0, b), byte(0))
	f.Add(append(message(1, packed("gzip")), message(0, nil)...), byte(1))
	f.Add(append(message(1, packed("deflate")), 0), byte(2))
	f.Add(message(1, b[:3]), byte(1))
	f.Add(message(0, b)[:9], byte(3))
	f.Fuzz(func(t *testing.T, b []byte, kind byte) {
		const most = 64 << 10
		s := new(held).share(t.Context())
		body := &frames{
			body: io.NopCloser(bytes.NewReader(b)), kind: []string{"", "gzip", "deflate", "br"}[kind%4], most: most,
			share: s, wanted: everything, closed: make(chan struct{}),
		}
		out, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for len(out) > 0 {
			if len(out) < header || binary.BigEndian.Uint32(out[1:]) > most || int(binary.BigEndian.Uint32(out[1:])) > len(out)-header {
				t.Fatalf("%d bytes are no message", len(out))
			}
			n := int(binary.BigEndian.Uint32(out[1:]))
			p := &payload{Buffer: mem.SliceBuffer(out[header : header+n])}
			err := p.into(&inference.ModelInferRequest{}, s)
			s.give(p.more)
			if err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Exhausted) {
				t.Error(err)
			}
			total += int64(n)
			out = out[header+n:]
		}
		if body.err == nil && s.n != total {
			t.Errorf("%d bytes are held, the messages have %d", s.n, total)
		}
		if s.free(); s.of.all != 0 {
			t.Errorf("%d bytes remain", s.of.all)
		}
	})
}

// heavyWork is the usage of processors.
func heavyWork() turns.Usage {
	for _, u := range turns.Measured() {
		if u.Name == "heavy_work" {
			return u
		}
	}
	return turns.Usage{}
}

// TestNoProcessorBetweenMessages: a large message of a stream takes a processor while it is
// decompressed and while it is decoded, and holds none while it waits in between for the
// answer to the one before it, nor while the model works at it.
func TestNoProcessorBetweenMessages(t *testing.T) {
	b, err := proto.Marshal(asking(make([]byte, 4*heavy), "label"))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := compress("gzip", [][]byte{b})
	if err != nil {
		t.Fatal(err)
	}
	for kind, body := range map[string][]byte{"": b, "gzip": packed} {
		message := append(binary.BigEndian.AppendUint32([]byte{byte(min(len(kind), 1))}, uint32(len(body))), body...)
		s := new(held).share(turns.WithTurn(t.Context(), turns.NewTurn(turns.Owner{Project: "p"})))
		f := &frames{body: io.NopCloser(bytes.NewReader(message)), kind: kind, most: MaxBody, share: s, wanted: everything, closed: make(chan struct{})}
		before := heavyWork()
		got, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		inflated := heavyWork()
		if took := inflated.Granted - before.Granted; took != int64(len(kind)/4) || inflated.Held != 0 {
			t.Errorf("%q: %d turns to have the message, %d held then", kind, took, inflated.Held)
		}
		p := &payload{Buffer: mem.SliceBuffer(got[header:])}
		if err := p.into(&inference.ModelInferRequest{}, s); err != nil {
			t.Fatal(err)
		}
		if decoded := heavyWork(); decoded.Granted != inflated.Granted+1 || decoded.Held != 0 {
			t.Errorf("%q: %d turns to decode it, %d held then", kind, decoded.Granted-inflated.Granted, decoded.Held)
		}
	}

	// The whole stream: the second message has come while the first one is inferred.
	var read atomic.Int64
	api := edge(t)
	sent := int64(2 * (header + len(b)))
	came := make(chan struct{})
	api.Serving = watched{api.Serving.(oneModel), func() {
		<-came
		if n := heavyWork().Held; n != 0 {
			t.Errorf("%d processors are held while the model works", n)
		}
	}}
	conn := dialTo(t, api, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = told{counter{r.Body, &read}, &read, sent, came}
			h.ServeHTTP(w, r.WithContext(turns.WithTurn(r.Context(), turns.NewTurn(turns.Owner{Project: "p"}))))
		})
	})
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.SendMsg(asking(make([]byte, 4*heavy), "label")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := stream.RecvMsg(&inference.ModelStreamInferResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// told closes a channel when so much of a body was read.
type told struct {
	io.ReadCloser
	n    *atomic.Int64
	much int64
	came chan struct{}
}

func (b told) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if at := b.n.Load(); at >= b.much && at-int64(n) < b.much {
		close(b.came)
	}
	return n, err
}

// TestNoProcessorForASlowSender: of a compressed body that becomes large, the rest is read
// before its turn begins; and the turn of a body in one piece is held until it is decoded.
func TestNoProcessorForASlowSender(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	plain := bytes.Repeat([]byte("0,"), 4*heavy)
	for piece := range slices.Chunk(plain, 1<<16) {
		if _, err := z.Write(piece); err != nil {
			t.Fatal(err)
		}
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	taken := func() int64 { return heavyWork().Held }
	turn := turns.NewTurn(turns.Owner{Project: "p"})
	ctx := turns.WithTurn(t.Context(), turn)
	in, out := io.Pipe()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v2/models/x/infer", in)
	r.Header.Set("Content-Encoding", "gzip")
	half := packed.Len() / 2
	var while int64
	go func() {
		_, _ = out.Write(packed.Bytes()[:half]) // is large by then
		while = taken()
		_, err := out.Write(packed.Bytes()[half:])
		_ = out.CloseWithError(err)
	}()
	s := new(held).share(ctx)
	defer s.free()
	got, err := receive(r, -1, MaxBody, s)
	if err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%d bytes of %d: %v", len(got), len(plain), err)
	}
	if while != 0 || taken() != 1 {
		t.Errorf("%d processors were held while the body came, %d when it is decompressed", while, taken())
	}
	turn.End()
	small := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v2/models/x/infer", bytes.NewReader(plain[:1000]))
	if _, err := receive(small, -1, MaxBody, s); err != nil || taken() != 0 {
		t.Errorf("a small body: %v; %d processors are held", err, taken())
	}
}
