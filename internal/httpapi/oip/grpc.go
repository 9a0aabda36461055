package oip

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // messages may be compressed by it
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving/inference"
)

// service is the name of the protocol's calls.
const service = "inference.GRPCInferenceService"

// reflections are the calls by which clients learn the others.
var reflections = []string{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}

// CallPrefix begins the path of the calls.
const CallPrefix = "/" + service + "/"

// Calls reports whether a path is a call of gRPC that is ours.
func Calls(path string) bool {
	return strings.HasPrefix(path, CallPrefix) || slices.Contains(reflections, path)
}

// Streams reports whether a path is a call that goes on as long as its client
// wants: each message of it is bounded, not all of them.
func Streams(path string) bool { return path == CallPrefix+"ModelStreamInfer" }

// Limits of streams.
const (
	maxStreams = 256              // of one caller
	maxOpen    = 4096             // of all
	recheck    = 15 * time.Second // how late a revoked token or role ends one
)

// RegisterCalls adds the calls of gRPC; they are requests of HTTP/2 like others, so
// they pass what all requests pass. action is as in Register; refuse answers what the
// gate refuses.
func (a *API) RegisterCalls(handle func(path, action string, h http.HandlerFunc), refuse func(w http.ResponseWriter, r *http.Request, err error)) {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(MaxBody), grpc.ForceServerCodecV2(newCodec()))
	desc := grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil), Metadata: inference.File_inference_service_proto.Path(),
		Streams: []grpc.StreamDesc{{StreamName: "ModelStreamInfer", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return a.callError(s.Context(), callOf(s.Context()).body.work(func() error {
				return recovered(func() error { return a.stream(s) })
			}))
		}}},
	}
	for _, c := range a.calls() {
		desc.Methods = append(desc.Methods, c.MethodDesc)
	}
	server.RegisterService(&desc, a)
	reflection.Register(server)
	serve := func(path, action string) {
		handle(path, action, func(w http.ResponseWriter, r *http.Request) {
			c, err := a.call(r, action)
			if err == nil && r.ProtoMajor < 2 {
				err = fault.New(fault.Invalid, "gRPC requires HTTP/2")
			}
			if err != nil {
				refuse(w, r, err)
				return
			}
			control := http.NewResponseController(w)
			c.body = &frames{body: r.Body, kind: r.Header.Get("Grpc-Encoding"), most: MaxBody, share: a.held.share(r.Context()), closed: make(chan struct{}), working: make(chan struct{}, 1)}
			c.body.share.in = c.project
			defer c.body.share.done()
			ctx, cancel := context.WithCancel(context.WithValue(r.Context(), callKey{}, c))
			// A call that its client gave up is over for grpc while its handler still works:
			// until that returns, what it holds and its place in the connection are taken.
			defer c.body.finish()
			defer cancel()
			switch {
			case Streams(path):
				c.body.wanted, c.body.deadline = make(chan struct{}, 1), control.SetReadDeadline
				c.body.share.turn = c.body.share.turn.Another() // that of the request ends with each answer
				_ = control.SetReadDeadline(time.Time{})
			case slices.Contains(reflections, path):
				c.body.wanted, c.body.most = everything, maxQuestion
			}
			r = r.WithContext(ctx)
			r.URL = &url.URL{Path: path} // what the gate was asked for is what is called
			r.Body = c.body
			writer := flusher{w, control, c.body.share.encoded}
			if Streams(path) {
				writer.encoded = func() {} // the answer after the one that is written may have a turn
			}
			server.ServeHTTP(writer, r)
		})
	}
	for _, c := range a.calls() {
		serve(CallPrefix+c.MethodName, c.action)
	}
	serve(CallPrefix+"ModelStreamInfer", infer)
	for _, path := range reflections {
		serve(path, "")
	}
}

// call is the part of a gRPC call's request that its method needs.
type call struct {
	project  string // empty: the token belongs to no project
	routeKey string
	recheck  func() error // authorises the caller again
	body     *frames
}

type callKey struct{}

func callOf(ctx context.Context) call { return ctx.Value(callKey{}).(call) }

// call passes the gate of an action.
func (a *API) call(r *http.Request, action string) (call, error) {
	route, err := single(r, routeKey)
	if err != nil {
		return call{}, err
	}
	c := call{routeKey: route}
	if action == "" {
		if p, err := a.Project(r); err == nil { // for ServerReady, which does without
			c.project = p
			c.recheck = func() error { return a.Gate(r, read, p) }
		}
		return c, nil
	}
	if c.project, err = a.enter(r, action); err != nil {
		return c, err
	}
	c.recheck = func() error {
		who, err := a.Reauthenticate(r)
		if err != nil {
			return err
		}
		return a.Gate(r.WithContext(identity.With(r.Context(), who)), action, c.project)
	}
	return c, nil
}

// flusher is a writer that grpc takes: it asks for http.Flusher, which writers
// around writers lose. encoded is called before anything is written.
type flusher struct {
	http.ResponseWriter
	control *http.ResponseController
	encoded func()
}

func (f flusher) Flush() {
	f.encoded()
	_ = f.control.Flush()
}

func (f flusher) WriteHeader(status int) {
	f.encoded()
	f.ResponseWriter.WriteHeader(status)
}

func (f flusher) Write(b []byte) (int, error) {
	f.encoded()
	return f.ResponseWriter.Write(b)
}

// method is a call of one message and one answer.
type method struct {
	grpc.MethodDesc
	action string
}

func unary[Q, A any, P interface {
	*Q
	proto.Message
}](a *API, name, action string, do func(ctx context.Context, q P) (*A, error)) method {
	return method{grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (out any, err error) {
		q := P(new(Q))
		var came payload
		body := callOf(ctx).body
		err = body.work(func() error {
			if err := decode(&came); err != nil {
				return err // of grpc itself
			}
			return recovered(func() error {
				if err := body.check(&came); err != nil {
					return err
				}
				if err := came.into(q, body.share); err != nil {
					return err
				}
				out, err = do(ctx, q)
				body.share.free() // the answer is made; who reads it slowly holds no more than that
				return err
			})
		})
		return out, a.callError(ctx, err)
	}}, action}
}

// recovered makes an error of a panic: grpc's goroutines are not net/http's.
func recovered(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Internal, "panic: %v", p)
		}
	}()
	return do()
}

// callError is an error as clients of gRPC receive it.
func (a *API) callError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err // of grpc itself
	}
	return a.EndedCall(ctx, err)
}

// calls lists them, but for the stream.
func (a *API) calls() []method {
	return []method{
		unary(a, "ServerLive", "", func(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
			return &inference.ServerLiveResponse{Live: true}, nil
		}),
		unary(a, "ServerReady", "", func(ctx context.Context, _ *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
			c := callOf(ctx)
			if c.recheck != nil {
				if err := c.recheck(); err != nil {
					return nil, err
				}
			}
			return &inference.ServerReadyResponse{Ready: a.Serving.Ready(c.project)}, nil
		}),
		unary(a, "ModelReady", read, a.callReady),
		unary(a, "ServerMetadata", "", func(context.Context, *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
			return &inference.ServerMetadataResponse{Name: "falaj", Version: a.Version, Extensions: extensions}, nil
		}),
		unary(a, "ModelMetadata", read, a.callMetadata),
		unary(a, "ModelInfer", infer, a.callInfer),
		unary(a, "ModelConfig", read, a.callConfig),
		unary(a, "ModelStatistics", read, a.callStatistics),
		unary(a, "RepositoryIndex", read, a.callIndex),
		unary(a, "RepositoryModelLoad", apply, a.callLoad),
		unary(a, "RepositoryModelUnload", apply, func(context.Context, *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
			return nil, errNoUnload
		}),
		unary(a, "TraceSetting", read, a.callTrace),
		unary(a, "LogSettings", read, a.callLog),
		refused[inference.SystemSharedMemoryStatusRequest](a, "SystemSharedMemoryStatus"),
		refused[inference.SystemSharedMemoryRegisterRequest](a, "SystemSharedMemoryRegister"),
		refused[inference.SystemSharedMemoryUnregisterRequest](a, "SystemSharedMemoryUnregister"),
		refused[inference.CudaSharedMemoryStatusRequest](a, "CudaSharedMemoryStatus"),
		refused[inference.CudaSharedMemoryRegisterRequest](a, "CudaSharedMemoryRegister"),
		refused[inference.CudaSharedMemoryUnregisterRequest](a, "CudaSharedMemoryUnregister"),
	}
}

// refused is a call of shared memory.
func refused[Q any, P interface {
	*Q
	proto.Message
}](a *API, name string) method {
	return unary(a, name, infer, func(context.Context, P) (*Q, error) { return nil, errNoRegions })
}

var (
	errNoRegions = fault.New(fault.Unsupported, "shared memory is not supported: a client that shares memory with a server could access other clients' data").
			WithHint("Send tensors with the request, as binary data.")
	errNoUnload = fault.New(fault.Unsupported, "a deployment cannot be unloaded while its manifest exists").WithHint("Delete it with `falaj delete deployment NAME`.")
)

// callInfer answers one request. The turn of a large answer is held when it returns.
func (a *API) callInfer(ctx context.Context, m *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	q, err := fromMessage(m)
	if err != nil {
		return nil, err
	}
	c := callOf(ctx)
	q.Project, q.Name, q.Version = c.project, m.GetModelName(), m.GetModelVersion()
	if q.RouteKey == "" {
		q.RouteKey = c.routeKey
	}
	got, err := a.Serving.Infer(ctx, q.Request)
	if err != nil {
		return nil, err
	}
	if err := c.body.share.encoding(got.Outputs); err != nil {
		return nil, err
	}
	outputs, err := q.shaped(ctx, got.Outputs)
	if err != nil {
		return nil, err
	}
	return toMessage(q.Name, got, outputs)
}

// stream answers requests as they come, in order: one is answered, the next one is
// read, and those after it stay with the client. An error of one is its answer, and
// the stream goes on.
func (a *API) stream(s grpc.ServerStream) error {
	c := callOf(s.Context())
	end, err := a.streams.begin(identity.From(s.Context()))
	if err != nil {
		return err
	}
	defer end()
	type received struct {
		payload
		err error
	}
	came, done := make(chan received), make(chan struct{})
	defer close(done)
	go func() {
		for {
			var got received
			c.body.want()
			got.err = s.RecvMsg(&got.payload)
			select {
			case came <- got:
			case <-done:
			}
			if got.err != nil {
				return
			}
		}
	}()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := c.recheck(); err != nil {
				return err
			}
		case got := <-came:
			if errors.Is(got.err, io.EOF) {
				return nil
			}
			if got.err != nil {
				return got.err
			}
			if err := c.body.check(&got.payload); err != nil {
				return err
			}
			size := got.Len()
			var answer any = a.answerOf(s.Context(), &got.payload)
			c.body.share.give(size + got.more)
			if c.body.share.taken {
				// It is encoded and compressed in its turn, and sent after that: sending waits for
				// a client that still reads the answer before it.
				whole := &grpc.PreparedMsg{}
				err := whole.Encode(s, answer)
				c.body.share.encoded()
				if err != nil {
					return err
				}
				answer = whole
			}
			if err := s.SendMsg(answer); err != nil {
				return err
			}
		}
	}
}

// answerOf is the answer to a message of a stream.
func (a *API) answerOf(ctx context.Context, came *payload) *inference.ModelStreamInferResponse {
	m := &inference.ModelInferRequest{}
	var out *inference.ModelInferResponse
	err := came.into(m, callOf(ctx).body.share)
	if err == nil {
		out, err = a.callInfer(ctx, m)
	}
	answer := &inference.ModelStreamInferResponse{InferResponse: out}
	if err != nil {
		// Without the stream, to whose trailer each error would add its own.
		heard, _ := status.FromError(a.callError(grpc.NewContextWithServerTransportStream(ctx, nil), err))
		answer = &inference.ModelStreamInferResponse{ErrorMessage: heard.Message(), InferResponse: &inference.ModelInferResponse{Id: m.GetId()}}
	}
	// Triton's mark of a request's last answer, which is its only one here.
	answer.InferResponse.Parameters = map[string]*inference.InferParameter{"triton_final_response": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}}}
	return answer
}

// streams counts those that are open, by caller.
type streams struct {
	mu   sync.Mutex
	all  int
	open map[string]int
}

func (s *streams) begin(who identity.Principal) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[who.ID] >= maxStreams {
		return nil, fault.New(fault.Exhausted, "%s has %d streams open", who, maxStreams).WithHint("Close one.")
	}
	if s.all >= maxOpen {
		return nil, fault.New(fault.Unavailable, "%d streams are open", maxOpen).WithHint("Try again later.")
	}
	if s.open == nil {
		s.open = map[string]int{}
	}
	s.all++
	s.open[who.ID]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.open[who.ID]--; s.open[who.ID] == 0 {
			delete(s.open, who.ID)
		}
	}, nil
}

func (a *API) callReady(ctx context.Context, m *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	away, err := a.Serving.Answers(ctx, callOf(ctx).project, m.GetName(), m.GetVersion())
	if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotFound) {
		return &inference.ModelReadyResponse{}, nil
	}
	return &inference.ModelReadyResponse{Ready: err == nil && away == nil}, err
}

func (a *API) callMetadata(ctx context.Context, m *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	d, err := a.Serving.Metadata(ctx, callOf(ctx).project, m.GetName(), m.GetVersion())
	if err != nil {
		return nil, err
	}
	tensors := func(in []spec) []*inference.ModelMetadataResponse_TensorMetadata {
		out := make([]*inference.ModelMetadataResponse_TensorMetadata, len(in))
		for i, s := range in {
			out[i] = &inference.ModelMetadataResponse_TensorMetadata{Name: s.Name, Datatype: string(s.Datatype), Shape: s.Shape}
			if s.Parameters != nil {
				out[i].Parameters = map[string]*inference.InferParameter{
					"optional": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: s.Parameters.Optional}},
				}
			}
		}
		return out
	}
	return &inference.ModelMetadataResponse{
		Name: d.Name, Versions: versions(d), Platform: d.Platform, Inputs: tensors(inputsOf(d.Metadata)), Outputs: tensors(specs(d.Outputs)),
	}, nil
}

func (a *API) callIndex(ctx context.Context, m *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	rows, err := a.index(ctx, callOf(ctx).project, m.GetReady())
	if err != nil {
		return nil, err
	}
	out := &inference.RepositoryIndexResponse{}
	for _, r := range rows {
		out.Models = append(out.Models, &inference.RepositoryIndexResponse_ModelIndex{Name: r.Name, Version: r.Version, State: r.State, Reason: r.Reason})
	}
	return out, nil
}

func (a *API) callLoad(ctx context.Context, m *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	name := m.GetModelName()
	if name == "" {
		name = m.GetRepositoryName() // KServe has it there
	}
	if err := a.load(ctx, callOf(ctx).project, name, len(m.GetParameters()) > 0); err != nil {
		return nil, err
	}
	return &inference.RepositoryModelLoadResponse{ModelName: name, IsLoaded: true}, nil
}

func (a *API) callTrace(_ context.Context, m *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error) {
	out := &inference.TraceSettingResponse{Settings: map[string]*inference.TraceSettingResponse_SettingValue{}}
	for name, v := range m.GetSettings() {
		// An empty list is Triton's word for the default.
		if is, ok := traceSettings[name]; !ok || len(v.GetValue()) > 0 && !slices.Equal(v.GetValue(), listOf(is)) {
			return nil, unchangeable(name)
		}
	}
	for name, v := range traceSettings {
		out.Settings[name] = &inference.TraceSettingResponse_SettingValue{Value: listOf(v)}
	}
	return out, nil
}

func (a *API) callLog(_ context.Context, m *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	out := &inference.LogSettingsResponse{Settings: map[string]*inference.LogSettingsResponse_SettingValue{}}
	for name, v := range m.GetSettings() {
		var to any
		switch c := v.GetParameterChoice().(type) {
		case *inference.LogSettingsRequest_SettingValue_BoolParam:
			to = c.BoolParam
		case *inference.LogSettingsRequest_SettingValue_Uint32Param:
			to = int64(c.Uint32Param)
		case *inference.LogSettingsRequest_SettingValue_StringParam:
			to = c.StringParam
		}
		if is, ok := logSettings[name]; !ok || to != is {
			return nil, unchangeable(name)
		}
	}
	for name, v := range logSettings {
		s := &inference.LogSettingsResponse_SettingValue{}
		switch v := v.(type) {
		case bool:
			s.ParameterChoice = &inference.LogSettingsResponse_SettingValue_BoolParam{BoolParam: v}
		case int64:
			s.ParameterChoice = &inference.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: uint32(v)} //nolint:gosec // ours
		case string:
			s.ParameterChoice = &inference.LogSettingsResponse_SettingValue_StringParam{StringParam: v}
		}
		out.Settings[name] = s
	}
	return out, nil
}
