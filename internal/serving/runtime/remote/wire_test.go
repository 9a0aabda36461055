package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// far is a server of both protocols that runs the suite's models in Go. Tests against
// real ones are in test/oip.
type far struct {
	mu      sync.Mutex
	answers func(m *inference.ModelInferResponse) error // changes an answer before it leaves
	begins  func(ctx context.Context)
	tokens  []string
	count   atomic.Int64
}

func (f *far) change(answers func(m *inference.ModelInferResponse) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = answers
}

// models are the suite's, by name.
var models = map[string][]byte{"logistic": runtimetest.FakeModels.Logistic, "echo": runtimetest.FakeModels.Echo, "total": runtimetest.FakeModels.Total}

func (f *far) session(name, version string) (runtime.Session, error) {
	b, ok := models[name]
	if !ok || version != "3" {
		return nil, status.Error(codes.NotFound, "secret words of the inside")
	}
	return runtimetest.Fake{}.Load(context.Background(), b, runtime.Options{})
}

func (f *far) infer(ctx context.Context, q *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	f.count.Add(1)
	f.mu.Lock()
	answers, begins := f.answers, f.begins
	f.mu.Unlock()
	if begins != nil {
		begins(ctx)
	}
	s, err := f.session(q.GetModelName(), q.GetModelVersion())
	if err != nil {
		return nil, err
	}
	var in []runtime.Tensor
	for i, t := range q.GetInputs() {
		x := runtime.Tensor{Name: t.GetName(), Datatype: runtime.Datatype(t.GetDatatype()), Shape: append([]int64{}, t.GetShape()...)}
		if err := inference.FromRaw(&x, q.GetRawInputContents()[i]); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		in = append(in, x)
	}
	var wanted []string
	for _, o := range q.GetOutputs() {
		wanted = append(wanted, o.GetName())
	}
	out, err := s.Infer(ctx, in, wanted)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	m := &inference.ModelInferResponse{ModelName: q.GetModelName(), ModelVersion: q.GetModelVersion(), Id: q.GetId()}
	for _, t := range out {
		raw, _ := inference.ToRaw(t)
		m.Outputs = append(m.Outputs, &inference.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape})
		m.RawOutputContents = append(m.RawOutputContents, raw)
	}
	if answers != nil {
		if err := answers(m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// token notes what authorises a request.
func (f *far) token(t string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens = append(f.tokens, t)
}

// serveGRPC answers on a listener until the test ends.
func (f *far) serveGRPC(t *testing.T, l net.Listener, o ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	s := grpc.NewServer(append(o, grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32))...)
	method := func(name string, in func() any, do func(ctx context.Context, q any) (any, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			q := in()
			if err := decode(q); err != nil {
				return nil, err
			}
			md, _ := metadata.FromIncomingContext(ctx)
			f.token(strings.Join(md.Get("authorization"), ","))
			return do(ctx, q)
		}}
	}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "inference.GRPCInferenceService", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method("ModelReady", func() any { return &inference.ModelReadyRequest{} }, func(_ context.Context, q any) (any, error) {
			_, err := f.session(q.(*inference.ModelReadyRequest).GetName(), q.(*inference.ModelReadyRequest).GetVersion())
			return &inference.ModelReadyResponse{Ready: err == nil}, nil
		}),
		method("ModelMetadata", func() any { return &inference.ModelMetadataRequest{} }, func(_ context.Context, q any) (any, error) {
			s, err := f.session(q.(*inference.ModelMetadataRequest).GetName(), q.(*inference.ModelMetadataRequest).GetVersion())
			if err != nil {
				return nil, err
			}
			out := &inference.ModelMetadataResponse{Name: q.(*inference.ModelMetadataRequest).GetName(), Versions: []string{"1", "3"}, Platform: "fake"}
			for _, i := range s.Metadata().Inputs {
				out.Inputs = append(out.Inputs, &inference.ModelMetadataResponse_TensorMetadata{Name: i.Name, Datatype: string(i.Datatype), Shape: i.Shape})
			}
			for _, o := range s.Metadata().Outputs {
				out.Outputs = append(out.Outputs, &inference.ModelMetadataResponse_TensorMetadata{Name: o.Name, Datatype: string(o.Datatype), Shape: o.Shape})
			}
			return out, nil
		}),
		method("ModelConfig", func() any { return &inference.ModelConfigRequest{} }, func(context.Context, any) (any, error) {
			return &inference.ModelConfigResponse{Config: &inference.ModelConfig{MaxBatchSize: 16}}, nil
		}),
		method("ModelInfer", func() any { return &inference.ModelInferRequest{} }, func(ctx context.Context, q any) (any, error) { return f.infer(ctx, q.(*inference.ModelInferRequest)) }),
	}}, f)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ServeHTTP answers by HTTP, in binary or, if the request's id is even, in JSON.
func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.token(r.Header.Get("Authorization"))
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // v2 models NAME versions V [WHAT]
	if len(part) < 5 {
		http.Error(w, "secret words of the inside", http.StatusNotFound)
		return
	}
	s, err := f.session(part[2], part[4])
	what := strings.Join(part[5:], "/")
	if err != nil {
		http.Error(w, "secret words of the inside", http.StatusNotFound)
		return
	}
	reply := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	specs := func(in []runtime.Spec) (out []map[string]any) {
		for _, s := range in {
			out = append(out, map[string]any{"name": s.Name, "datatype": s.Datatype, "shape": s.Shape})
		}
		return out
	}
	switch what {
	case "ready":
	case "":
		reply(map[string]any{"name": part[2], "platform": "fake", "versions": []string{"3"}, "inputs": specs(s.Metadata().Inputs), "outputs": specs(s.Metadata().Outputs)})
	case "config":
		reply(map[string]any{"max_batch_size": 16})
	case "infer":
		f.inferHTTP(w, r, part[2], part[4])
	}
}

func (f *far) inferHTTP(w http.ResponseWriter, r *http.Request, name, version string) {
	b, _ := io.ReadAll(r.Body)
	n, _ := strconv.Atoi(r.Header.Get(headerLength))
	var d document
	if err := json.Unmarshal(b[:n], &d); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q, rest := &inference.ModelInferRequest{ModelName: name, ModelVersion: version, Id: d.ID}, b[n:]
	for _, i := range d.Inputs {
		q.Inputs = append(q.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: i.Name, Datatype: string(i.Datatype), Shape: i.Shape})
		q.RawInputContents = append(q.RawInputContents, rest[:*i.Parameters.Size])
		rest = rest[*i.Parameters.Size:]
	}
	for _, o := range d.Outputs {
		q.Outputs = append(q.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: o.Name})
	}
	m, err := f.infer(r.Context(), q)
	if err != nil {
		code := map[codes.Code]int{codes.InvalidArgument: 400, codes.NotFound: 404, codes.Unauthenticated: 401, codes.ResourceExhausted: 429, codes.Unavailable: 503, codes.Internal: 500, codes.DeadlineExceeded: 504}[status.Code(err)]
		http.Error(w, status.Convert(err).Message(), code)
		return
	}
	out := reply{Model: m.GetModelName(), Version: m.GetModelVersion(), ID: m.GetId(), Outputs: few[port]{}}
	var raws []byte
	binary := f.count.Load()%2 == 1
	for i, o := range m.GetOutputs() {
		p := port{Name: o.GetName(), Datatype: runtime.Datatype(o.GetDatatype()), Shape: append([]int64{}, o.GetShape()...)}
		raw := m.GetRawOutputContents()[min(i, len(m.GetRawOutputContents())-1)]
		t := runtime.Tensor{Datatype: p.Datatype, Shape: p.Shape}
		if !binary && inference.FromRaw(&t, raw) == nil {
			if p.Data, err = json.Marshal(t.Data); err != nil || p.Datatype == runtime.Uint8 {
				panic(err)
			}
		} else {
			size := len(raw)
			p.Parameters.Size = &size
			raws = append(raws, raw...)
		}
		out.Outputs = append(out.Outputs, p)
	}
	head, _ := json.Marshal(out)
	w.Header().Set(headerLength, strconv.Itoa(len(head)))
	_, _ = w.Write(append(head, raws...))
}

// named loads the suite's models by their names there.
type named struct{ *Runtime }

func (n named) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	o.Remote = runtime.Remote{Server: "far", Model: "logistic", Version: "3"}
	for name, b := range models {
		if bytes.Equal(b, model) {
			o.Remote.Model = name
		}
	}
	return n.Runtime.Load(ctx, model, o)
}

// world is a far server of a protocol and a runtime that asks it.
func world(t *testing.T, p Protocol, s Server, log *slog.Logger) (*far, named) {
	t.Helper()
	f := &far{}
	s.Protocol = p
	if s.Timeout == 0 {
		s.Timeout = 20 * time.Second
	}
	switch p {
	case GRPC:
		l := listen(t)
		f.serveGRPC(t, l)
		s.Address = l.Addr().String()
	case HTTP:
		h := httptest.NewServer(f)
		t.Cleanup(h.Close)
		s.Address = h.Listener.Addr().String()
	}
	return f, named{begun(t, s, log)}
}

func begun(t *testing.T, s Server, log *slog.Logger) *Runtime {
	t.Helper()
	r, err := New(Config{Servers: map[string]Server{"far": s}, Signature: fakeSignature, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestRuntime(t *testing.T) {
	for _, p := range Protocols {
		t.Run(string(p), func(t *testing.T) {
			_, r := world(t, p, Server{Connections: 3}, nil)
			runtimetest.Run(t, r, runtimetest.FakeModels)
			if m := r.Measured(); len(m) != 0 {
				t.Errorf("sessions are left: %+v", m)
			}
		})
	}
}

// load is a session of the logistic regression.
func load(t *testing.T, r named) *session {
	t.Helper()
	s, err := r.Load(t.Context(), runtimetest.FakeModels.Logistic, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*session)
}

// TestLies: what is not an answer to what was asked is none, and tells nobody a word.
func TestLies(t *testing.T) {
	short := func(m *inference.ModelInferResponse) { m.RawOutputContents[0] = m.GetRawOutputContents()[0][1:] }
	for name, lie := range map[string]struct {
		change func(m *inference.ModelInferResponse)
		says   error
		kind   fault.Kind
	}{
		"other id":      {change: func(m *inference.ModelInferResponse) { m.Id = "another" }},
		"other model":   {change: func(m *inference.ModelInferResponse) { m.ModelName = "another" }},
		"other version": {change: func(m *inference.ModelInferResponse) { m.ModelVersion = "1" }},
		"other output":  {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Name = "another" }},
		"no output":     {change: func(m *inference.ModelInferResponse) { m.Outputs, m.RawOutputContents = nil, nil }},
		"output twice": {change: func(m *inference.ModelInferResponse) {
			m.Outputs, m.RawOutputContents = append(m.Outputs, m.GetOutputs()[0]), append(m.RawOutputContents, m.GetRawOutputContents()[0])
		}},
		"datatype":       {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Datatype = "FP64" }},
		"no datatype":    {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Datatype = "FP33" }},
		"rank":           {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Shape = []int64{2} }},
		"columns":        {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Shape = []int64{2, 1} }},
		"negative shape": {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Shape = []int64{-1, -2} }},
		"endless shape":  {change: func(m *inference.ModelInferResponse) { m.Outputs[0].Shape = []int64{math.MaxInt64, 2} }},
		"too few bytes":  {change: short},
		"too large": {change: func(m *inference.ModelInferResponse) {
			m.Outputs[0].Shape, m.RawOutputContents[0] = []int64{1 << 23, 2}, make([]byte, 1<<26+8)
		}, kind: fault.Exhausted},
		"rejected the input": {says: status.Error(codes.InvalidArgument, "secret words"), kind: fault.Invalid},
		"no room":            {says: status.Error(codes.ResourceExhausted, "secret words"), kind: fault.Exhausted},
		"fails":              {says: status.Error(codes.Internal, "secret words"), kind: fault.Internal},
		"no such model":      {says: status.Error(codes.NotFound, "secret words"), kind: fault.Unavailable},
		"no such token":      {says: status.Error(codes.Unauthenticated, "secret words"), kind: fault.Unavailable},
	} {
		for _, p := range Protocols {
			t.Run(name+" "+string(p), func(t *testing.T) {
				var log strings.Builder
				f, r := world(t, p, Server{}, slog.New(slog.NewTextHandler(&log, nil)))
				s := load(t, r)
				f.change(func(m *inference.ModelInferResponse) error {
					if lie.says == nil {
						lie.change(m)
					}
					return lie.says
				})
				want := lie.kind
				if lie.says == nil && want == fault.Internal { // none is said
					want = fault.Unavailable
				}
				for range 2 { // HTTP answers in binary and in JSON
					out, err := s.Infer(t.Context(), one, []string{"probabilities"})
					if out != nil || !fault.Is(err, want) || strings.Contains(err.Error()+fault.HintOf(err), "secret") {
						t.Errorf("got %v, %v", out, err)
					}
				}
				f.change(nil)
				if out, err := s.Infer(t.Context(), one, []string{"probabilities"}); err != nil || math.Abs(float64(out[0].Data.([]float32)[1])-runtimetest.Logistic(4, 3)) > 1e-5 {
					t.Errorf("afterwards: %v, %v", out, err)
				}
				if strings.Contains(log.String(), "secret") {
					t.Errorf("the log has what the server said: %s", log.String())
				}
			})
		}
	}
}

// TestHeavyAnswers: of an answer that would take much more memory than it has bytes
// nothing is made here.
func TestHeavyAnswers(t *testing.T) {
	f, r := world(t, GRPC, Server{}, nil)
	s := load(t, r)
	many := slices.Repeat([]*inference.ModelInferResponse_InferOutputTensor{{}}, 1<<20)
	f.change(func(m *inference.ModelInferResponse) error {
		m.Outputs = append(m.Outputs, many...)
		return nil
	})
	if out, err := s.Infer(t.Context(), one, []string{"probabilities"}); out != nil || !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v, %v", out, err)
	}
	b, err := proto.Marshal(&inference.ModelInferResponse{Outputs: many})
	if err != nil {
		t.Fatal(err)
	}
	text := func(before, each, after string) []byte {
		return []byte(before + strings.Repeat(each+",", 1<<20) + each + after)
	}
	for name, answer := range map[string][]byte{
		"gRPC":    b,
		"outputs": text(`{"outputs":[`, "{}", `]}`),
		"inputs":  text(`{"inputs":[`, "{}", `]}`),
		"shape":   text(`{"outputs":[{"shape":[`, "1", `]}]}`),
	} {
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		if name == "gRPC" {
			var m inference.ModelInferResponse
			err = (&scale{most: heavy * maxAnswer}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(answer)}, &m)
		} else {
			_, err = parse(answer, -1)
		}
		goruntime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 6*uint64(len(answer)) || err == nil && name != "inputs" {
			t.Errorf("%s: %d bytes took %d, %v", name, len(answer), took, err)
		}
	}
}

// TestNotWhatWasRegistered: a model is compared before it is asked.
func TestNotWhatWasRegistered(t *testing.T) {
	for _, p := range Protocols {
		_, r := world(t, p, Server{}, nil)
		for says, o := range map[string]runtime.Remote{
			"from the registered one: it has no inp": {Server: "far", Model: "echo", Version: "3"},
			"does not exist, or is not ready":        {Server: "far", Model: "logistic", Version: "9"},
			"does not exist, or is not read":         {Server: "far", Model: "nothing", Version: "3"},
			"remote \"near\" is not configured":      {Server: "near", Model: "logistic", Version: "3"},
		} {
			s, err := r.Runtime.Load(t.Context(), runtimetest.FakeModels.Logistic, runtime.Options{Remote: o})
			if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, %v", says, s, err)
			}
		}
		if s := load(t, r); s.MaxRows() != 16 {
			t.Errorf("it takes %d rows", s.MaxRows())
		}
	}
}

// TestWordsOfARemote: a description may be long, and none of its words are repeated.
func TestWordsOfARemote(t *testing.T) {
	registered := runtime.Metadata{Inputs: []runtime.Spec{{Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 2}}}, Outputs: []runtime.Spec{{Name: "y", Datatype: runtime.FP32}}}
	for name, change := range map[string]func(m *runtime.Metadata){
		"name":     func(m *runtime.Metadata) { m.Inputs[0].Name = "secret" },
		"datatype": func(m *runtime.Metadata) { m.Inputs[0].Datatype = "secret" },
		"shape":    func(m *runtime.Metadata) { m.Inputs[0].Shape = []int64{7777, 2} },
		"inputs":   func(m *runtime.Metadata) { m.Inputs = append(m.Inputs, runtime.Spec{Name: "secret"}) },
		"output":   func(m *runtime.Metadata) { m.Outputs[0].Name = "secret" },
	} {
		m := runtime.Metadata{Inputs: slices.Clone(registered.Inputs), Outputs: slices.Clone(registered.Outputs)}
		change(&m)
		if err := m.StandsIn(registered); err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "7777") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for rank, sound := range map[int]bool{runtime.MaxRank: true, runtime.MaxRank + 1: false} {
		_, _, err := believable(runtime.Metadata{Inputs: []runtime.Spec{{Name: "X", Datatype: runtime.FP32, Shape: make([]int64, rank)}}}, nil)
		if (err == nil) != sound {
			t.Errorf("%d dimensions: %v", rank, err)
		}
	}
}

// TestDatatypes: all of them go there and come back, in each form.
func TestDatatypes(t *testing.T) {
	for _, c := range []any{
		[]bool{true, false},
		[]uint8{1, 255},
		[]uint16{1, 65535},
		[]uint32{1, math.MaxUint32},
		[]uint64{1, math.MaxUint64},
		[]int8{1, -128},
		[]int16{1, -2},
		[]int32{1, -2},
		[]int64{1, math.MinInt64},
		[]float32{1.5, -2},
		[]float64{1.5, -2},
		[]string{"a\"", "نخلة"},
	} {
		i := slices.IndexFunc(runtime.Datatypes, func(d runtime.Datatype) bool { return reflect.TypeOf(runtime.Zeros(d, 0)) == reflect.TypeOf(c) })
		t.Run(string(runtime.Datatypes[i]), func(t *testing.T) {
			text, err := json.Marshal(c)
			if b, ok := c.([]uint8); ok {
				text = []byte("[" + strconv.Itoa(int(b[0])) + "," + strconv.Itoa(int(b[1])) + "]")
			}
			if err != nil {
				t.Fatal(err)
			}
			nested := strings.Replace(strings.Replace(strings.Replace(string(text), "[", "[[", 1), "]", "]]", 1), ",", "], [", 1)
			for shape, data := range map[string]string{"flat": string(text), "nested": nested} {
				x := runtime.Tensor{Name: "x", Datatype: runtime.Datatypes[i], Shape: []int64{2, 1}}
				if err := list(&x, []byte(data)); err != nil || !reflect.DeepEqual(x.Data, c) {
					t.Errorf("%s %s: %v, %v", shape, data, x.Data, err)
				}
			}
			for _, wrong := range []string{"", "null", "1", "[1", "[1,", "[]", string(text[:len(text)-1]) + ",1]", "[null,null]", "[{},{}]", strings.Repeat("[", 100), "[[1],[2]"} {
				x := runtime.Tensor{Name: "x", Datatype: runtime.Datatypes[i], Shape: []int64{2, 1}}
				if list(&x, []byte(wrong)) == nil {
					t.Errorf("%q was taken for %v", wrong, x.Data)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model_name":"m","id":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}abcd`), 114)
	f.Add([]byte(`{"outputs":[{"name":"y","datatype":"BYTES","shape":[2,1],"data":[["a"],["b"]]}]}`), -1)
	f.Fuzz(func(t *testing.T, b []byte, split int) {
		if split > len(b) {
			return
		}
		a, err := parse(b, split)
		if err != nil {
			return
		}
		for _, o := range a.outputs {
			if n, err := runtime.Elements(o.Shape); err != nil || reflect.ValueOf(o.Data).Len() != n {
				t.Errorf("%+v: %v", o, err)
			}
		}
	})
}

// TestToken: it is sent, is read again when it was replaced, and is in no log and no
// error; without one nothing is asked.
func TestToken(t *testing.T) {
	for _, p := range Protocols {
		t.Run(string(p), func(t *testing.T) {
			var log strings.Builder
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte("s3cr3t\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			f, r := world(t, p, Server{TokenFile: file}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			s := load(t, r)
			f.change(func(*inference.ModelInferResponse) error { return status.Error(codes.Unauthenticated, "no") })
			var all strings.Builder
			for range maxFailed {
				_, err := s.Infer(t.Context(), one, []string{"label"})
				all.WriteString(err.Error() + fault.HintOf(err))
			}
			if s.Unavailable() == nil || strings.Contains(all.String()+log.String(), "s3cr3t") || !strings.Contains(log.String(), "denied") {
				t.Errorf("away %v; told %s; logged %s", s.Unavailable(), all.String(), log.String())
			}
			f.mu.Lock()
			if len(f.tokens) == 0 || slices.ContainsFunc(f.tokens, func(got string) bool { return got != "Bearer s3cr3t" }) {
				t.Errorf("tokens %q", f.tokens)
			}
			f.mu.Unlock()
			for _, wrong := range []string{"", "two words", "line\nbreak", strings.Repeat("x", maxToken+1), "\x00"} {
				if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
					t.Fatal(err)
				}
				b := bearer{path: file}
				if text, err := b.header(); err == nil {
					t.Errorf("%.20q is a token: %q", wrong, text)
				}
			}
		})
	}
}

// TestOnce: what may have run is not sent again, and what was never sent needs no
// second time: a request reaches a server that breaks off once.
func TestOnce(t *testing.T) {
	for _, p := range Protocols {
		t.Run(string(p), func(t *testing.T) {
			f, r := world(t, p, Server{Connections: 2}, nil)
			s := load(t, r)
			before := f.count.Load()
			f.mu.Lock()
			f.begins = func(context.Context) { panic(http.ErrAbortHandler) }
			if p == GRPC {
				f.begins, f.answers = nil, func(*inference.ModelInferResponse) error { return status.Error(codes.Unavailable, "going away") }
			}
			f.mu.Unlock()
			if _, err := s.Infer(t.Context(), one, []string{"label"}); !fault.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
			if n := f.count.Load() - before; n != 1 {
				t.Errorf("it came %d times", n)
			}
		})
	}
}

// TestDeadline: the server hears of the request's end: by its deadline, or because the
// connection, or the stream, ends.
func TestDeadline(t *testing.T) {
	for _, p := range Protocols {
		t.Run(string(p), func(t *testing.T) {
			f, r := world(t, p, Server{}, nil)
			s := load(t, r)
			began, over, told := make(chan struct{}), make(chan struct{}), make(chan struct{})
			f.mu.Lock()
			f.begins = func(ctx context.Context) {
				close(began)
				<-ctx.Done()
				close(over)
				<-told // else an answer could be faster than the client's own clock
			}
			f.mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			asked := time.Now()
			_, err := s.Infer(ctx, one, []string{"label"})
			close(told)
			if !fault.Is(err, fault.Timeout) {
				t.Errorf("got %v", err)
			}
			select {
			case <-began:
				<-over
			default:
				if time.Since(asked) < time.Second {
					t.Fatal("it was never asked")
				}
				t.Skip("the request took a second to arrive")
			}
		})
	}
}

// TestNoRedirect: a server sends nobody elsewhere.
func TestNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was followed") }))
	defer elsewhere.Close()
	h := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer h.Close()
	r := begun(t, Server{Address: h.Listener.Addr().String(), Protocol: HTTP, Timeout: time.Second}, nil)
	if _, err := (named{r}).Load(t.Context(), runtimetest.FakeModels.Logistic, runtime.Options{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// TestTLS: TLS 1.3 with a trusted certificate, or nothing is sent.
func TestTLS(t *testing.T) {
	h := httptest.NewUnstartedServer(&far{})
	h.TLS = &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13}
	h.EnableHTTP2 = true
	h.StartTLS()
	defer h.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(h.Certificate())
	f := &far{}
	for _, p := range Protocols {
		for name, c := range map[string]struct {
			roots *x509.CertPool
			most  uint16
			ok    bool
		}{"trusted": {trusted, tls.VersionTLS13, true}, "not trusted": {x509.NewCertPool(), tls.VersionTLS13, false}, "old": {trusted, tls.VersionTLS12, false}} {
			t.Run(string(p)+" "+name, func(t *testing.T) {
				l := listen(t)
				config := &tls.Config{Certificates: h.TLS.Certificates, MinVersion: tls.VersionTLS12, MaxVersion: c.most, NextProtos: []string{"h2", "http/1.1"}}
				if p == GRPC {
					f.serveGRPC(t, tls.NewListener(l, config))
				} else {
					s := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
					go func() { _ = s.Serve(tls.NewListener(l, config)) }()
					t.Cleanup(func() { _ = s.Close() })
				}
				r := begun(t, Server{Address: l.Addr().String(), Protocol: p, Timeout: 2 * time.Second, TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: c.roots, ServerName: "example.com"}}, nil)
				s, err := (named{r}).Load(t.Context(), runtimetest.FakeModels.Logistic, runtime.Options{})
				if c.ok != (err == nil) {
					t.Errorf("got %v", err)
				}
				if err == nil {
					_ = s.Close()
				}
			})
		}
	}
}

// TestComesBack: a server that ends under load and begins again at its address is
// asked again, by itself; each answer is of its own request.
func TestComesBack(t *testing.T) {
	l := listen(t)
	address := l.Addr().String()
	f := &far{}
	server := f.serveGRPC(t, l)
	r := named{begun(t, Server{Address: address, Protocol: GRPC, Timeout: 20 * time.Second, Connections: 2}, nil)}
	s := load(t, r)
	done := make(chan struct{})
	var all sync.WaitGroup
	var good, bad atomic.Int64
	for g := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				x := float32(g*1000+i%1000) / 2000
				out, err := s.Infer(t.Context(), []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{x, 1}}}, []string{"probabilities"})
				switch {
				case err == nil:
					if math.Abs(float64(out[0].Data.([]float32)[1])-runtimetest.Logistic(x, 1)) > 1e-5 {
						t.Errorf("%v was answered with another's rows", x)
					}
					good.Add(1)
				case fault.Is(err, fault.Unavailable):
					bad.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	until := func(n *atomic.Int64) {
		for from := n.Load(); n.Load() < from+100; {
			<-time.After(time.Millisecond)
		}
	}
	until(&good)
	server.Stop()
	until(&bad)
	if s.Unavailable() == nil {
		t.Error("it is there, though it is not")
	}
	again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f.serveGRPC(t, again)
	until(&good)
	close(done)
	all.Wait()
	if s.Unavailable() != nil || s.breaker.now() != Closed {
		t.Errorf("state %d, away: %v", s.breaker.now(), s.Unavailable())
	}
}

// TestBase64: an output that a server writes in base64 is what it means.
func TestBase64(t *testing.T) {
	head := `{"outputs":[{"name":"y","datatype":"BYTES","shape":[2],"parameters":{"content_type":%s},"data":["/9j/",""]}]}`
	for content, want := range map[string][]string{`"base64"`: {"\xff\xd8\xff", ""}, `"str"`: {"/9j/", ""}, `7`: {"/9j/", ""}} {
		a, err := parse(fmt.Appendf(nil, head, content), -1)
		if err != nil || !slices.Equal(a.outputs[0].Data.([]string), want) {
			t.Errorf("%s: %+v, %v", content, a, err)
		}
	}
	for _, bad := range []string{
		`{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"parameters":{"content_type":"base64"},"data":["a cat"]}]}`,
		`{"outputs":[{"name":"y","datatype":"INT64","shape":[1],"parameters":{"content_type":"base64"},"data":[1]}]}`,
	} {
		if _, err := parse([]byte(bad), -1); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}
