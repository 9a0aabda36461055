package oip

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// dial is a connection to the calls, of HTTP/2 without TLS.
func dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	return dialTo(t, edge(t), func(h http.Handler) http.Handler { return h })
}

// dialTo is one to calls within a handler.
func dialTo(t *testing.T, api *API, within func(http.Handler) http.Handler) *grpc.ClientConn {
	t.Helper()
	mux := http.NewServeMux()
	api.RegisterCalls(func(path, _ string, h http.HandlerFunc) { mux.Handle("POST "+path, h) }, func(w http.ResponseWriter, r *http.Request, err error) {
		s, _ := status.FromError(api.EndedCall(r.Context(), err))
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", map[codes.Code]string{codes.Unimplemented: "12", codes.InvalidArgument: "3"}[s.Code()])
		w.Header().Set("Grpc-Message", s.Message())
	})
	srv := httptest.NewUnstartedServer(balanced(t, api, within(mux)))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Start()
	t.Cleanup(srv.Close)
	conn, err := grpc.NewClient(strings.TrimPrefix(srv.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func invoke[A any, P interface {
	*A
	proto.Message
}](t *testing.T, conn *grpc.ClientConn, name string, q proto.Message, o ...grpc.CallOption) (P, error) {
	t.Helper()
	out := P(new(A))
	err := conn.Invoke(t.Context(), "/"+service+"/"+name, q, out, o...)
	return out, err
}

func asking(data []byte, outputs ...string) *inference.ModelInferRequest {
	m := &inference.ModelInferRequest{
		ModelName: "delay", Id: "7", RawInputContents: [][]byte{data},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "X", Datatype: "FP32", Shape: []int64{int64(len(data) / 8), 2}}},
	}
	for _, o := range outputs {
		m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: o})
	}
	return m
}

const twoLabels = "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"

// TestCalls: each call answers, plain and compressed.
func TestCalls(t *testing.T) {
	conn := dial(t)
	if m, err := invoke[inference.ServerLiveResponse](t, conn, "ServerLive", &inference.ServerLiveRequest{}); err != nil || !m.GetLive() {
		t.Error(m, err)
	}
	if m, err := invoke[inference.ServerReadyResponse](t, conn, "ServerReady", &inference.ServerReadyRequest{}); err != nil || !m.GetReady() {
		t.Error(m, err)
	}
	foreign := metadata.AppendToOutgoingContext(t.Context(), "falaj-project", "foreign")
	if err := conn.Invoke(foreign, "/"+service+"/ServerReady", &inference.ServerReadyRequest{}, new(inference.ServerReadyResponse)); err == nil {
		t.Error("who may see nothing of a project heard whether its models are ready")
	}
	none := metadata.AppendToOutgoingContext(t.Context(), "falaj-project", "none")
	if err := conn.Invoke(none, "/"+service+"/ServerReady", &inference.ServerReadyRequest{}, new(inference.ServerReadyResponse)); err != nil {
		t.Errorf("a token of no project asks for the server alone: %v", err)
	}
	if m, err := invoke[inference.ModelReadyResponse](t, conn, "ModelReady", &inference.ModelReadyRequest{Name: "delay"}); err != nil || !m.GetReady() {
		t.Error(m, err)
	}
	if m, err := invoke[inference.ModelReadyResponse](t, conn, "ModelReady", &inference.ModelReadyRequest{Name: "nothing"}); err != nil || m.GetReady() {
		t.Error(m, err)
	}
	if m, err := invoke[inference.ServerMetadataResponse](t, conn, "ServerMetadata", &inference.ServerMetadataRequest{}); err != nil || m.GetName() != "falaj" || !slices.Equal(m.GetExtensions(), extensions) {
		t.Error(m, err)
	}
	if m, err := invoke[inference.ModelMetadataResponse](t, conn, "ModelMetadata", &inference.ModelMetadataRequest{Name: "delay"}); err != nil || !slices.Equal(m.GetVersions(), []string{"3"}) || !slices.Equal(m.GetInputs()[0].GetShape(), []int64{-1, 2}) || m.GetOutputs()[0].GetDatatype() != "INT64" {
		t.Error(m, err)
	}
	if m, err := invoke[inference.ModelConfigResponse](t, conn, "ModelConfig", &inference.ModelConfigRequest{Name: "delay"}); err != nil || m.GetConfig().GetInput()[0].GetDataType() != inference.DataType_TYPE_FP32 || !slices.Equal(m.GetConfig().GetVersionPolicy().GetSpecific().GetVersions(), []int64{3}) {
		t.Error(m, err)
	}
	if m, err := invoke[inference.RepositoryIndexResponse](t, conn, "RepositoryIndex", &inference.RepositoryIndexRequest{}); err != nil || len(m.GetModels()) != 2 || m.GetModels()[1].GetState() != "UNAVAILABLE" {
		t.Error(m, err)
	}
	for _, q := range []*inference.RepositoryModelLoadRequest{{ModelName: "delay"}, {RepositoryName: "delay"}} { // Triton's, KServe's
		if m, err := invoke[inference.RepositoryModelLoadResponse](t, conn, "RepositoryModelLoad", q); err != nil || !m.GetIsLoaded() {
			t.Error(m, err)
		}
	}
	if m, err := invoke[inference.TraceSettingResponse](t, conn, "TraceSetting", &inference.TraceSettingRequest{Settings: map[string]*inference.TraceSettingRequest_SettingValue{"trace_level": {}}}); err != nil || m.GetSettings()["trace_level"].GetValue()[0] != "OFF" {
		t.Error(m, err)
	}
	if m, err := invoke[inference.LogSettingsResponse](t, conn, "LogSettings", &inference.LogSettingsRequest{}); err != nil || !m.GetSettings()["log_info"].GetBoolParam() {
		t.Error(m, err)
	}
	for _, c := range []string{"", "gzip", "deflate", "gzip", "deflate"} {
		m, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", asking(floats(0, 0, 4, 3), "label"), grpc.UseCompressor(c))
		if err != nil || m.GetId() != "7" || m.GetModelVersion() != "3" || len(m.GetOutputs()) != 1 || !slices.Equal(m.GetOutputs()[0].GetShape(), []int64{2}) || string(m.GetRawOutputContents()[0]) != twoLabels {
			t.Errorf("%q: %v %v", c, m, err)
		}
	}
	q := asking(nil, "label")
	q.Parameters = map[string]*inference.InferParameter{"as_of": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: "2013-07-04T12:00:00Z"}}}
	q.Id, q.RawInputContents, q.Inputs[0].Shape = "", nil, []int64{2, 2}
	q.Inputs[0].Contents = &inference.InferTensorContents{Fp32Contents: []float32{0, 0, 4, 3}}
	q.Outputs[0].Parameters = map[string]*inference.InferParameter{"classification": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1}}}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "falaj-route-key", "k")
	m := &inference.ModelInferResponse{}
	if err := conn.Invoke(ctx, "/"+service+"/ModelInfer", q, m); err != nil || m.GetId() != "prd_k@2013-07-04T12:00:00Z" || m.GetOutputs()[0].GetDatatype() != "BYTES" || string(m.GetRawOutputContents()[0]) != "\x03\x00\x00\x001:1" {
		t.Errorf("%v %v", m, err)
	}
}

// TestRefusedCalls: what is not offered or is wrong has a code and words.
func TestRefusedCalls(t *testing.T) {
	conn := dial(t)
	edit := func(change func(*inference.ModelInferRequest)) *inference.ModelInferRequest {
		m := asking(floats(0, 0, 4, 3), "label")
		change(m)
		return m
	}
	int64Param := func(n int64) map[string]*inference.InferParameter {
		return map[string]*inference.InferParameter{"classification": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: n}}}
	}
	for name, c := range map[string]struct {
		call string
		q    proto.Message
		code codes.Code
		text string
	}{
		"unload": {"RepositoryModelUnload", &inference.RepositoryModelUnloadRequest{ModelName: "delay"}, codes.Unimplemented, "while its manifest exists"},
		"shared": {"SystemSharedMemoryRegister", &inference.SystemSharedMemoryRegisterRequest{}, codes.Unimplemented, "shared memory"},
		"cuda":   {"CudaSharedMemoryStatus", &inference.CudaSharedMemoryStatusRequest{}, codes.Unimplemented, "shared memory"},

		"no model":    {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.ModelName = "nothing" }), codes.NotFound, "unknown model"},
		"too few raw": {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.RawInputContents = [][]byte{{}, {}} }), codes.InvalidArgument, "2 tensors"},
		"half":        {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.RawInputContents[0] = m.RawInputContents[0][:15] }), codes.InvalidArgument, "needs 16 bytes, not 15"},
		"both":        {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.Inputs[0].Contents = &inference.InferTensorContents{} }), codes.InvalidArgument, "has both contents and raw_input_contents"},
		"no data":     {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.RawInputContents = nil }), codes.InvalidArgument, "its contents have 0"},
		"other list": {"ModelInfer", edit(func(m *inference.ModelInferRequest) {
			m.RawInputContents = nil
			m.Inputs[0].Contents = &inference.InferTensorContents{Fp64Contents: []float64{1, 2, 3, 4}}
		}), codes.InvalidArgument, "its contents have 0"},
		"no inputs":    {"ModelInfer", &inference.ModelInferRequest{ModelName: "delay"}, codes.InvalidArgument, "no inputs"},
		"batch":        {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.Inputs[0].Shape[0] = 1 << 40 }), codes.InvalidArgument, "more than"},
		"negative":     {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.Inputs[0].Shape[0] = -2 }), codes.InvalidArgument, "negative"},
		"half in list": {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.RawInputContents, m.Inputs[0].Datatype = nil, "FP16" }), codes.InvalidArgument, "has no contents"},
		"int8": {"ModelInfer", edit(func(m *inference.ModelInferRequest) {
			m.RawInputContents, m.Inputs[0].Datatype, m.Inputs[0].Contents = nil, "INT8", &inference.InferTensorContents{IntContents: []int32{1, 2, 3, 200}}
		}), codes.InvalidArgument, "outside the range"},
		"classes": {"ModelInfer", edit(func(m *inference.ModelInferRequest) { m.Outputs[0].Parameters = int64Param(0) }), codes.InvalidArgument, "classification"},
		"trace":   {"TraceSetting", &inference.TraceSettingRequest{Settings: map[string]*inference.TraceSettingRequest_SettingValue{"trace_level": {Value: []string{"MAX"}}}}, codes.Unimplemented, "trace_level"},
		"log":     {"LogSettings", &inference.LogSettingsRequest{Settings: map[string]*inference.LogSettingsRequest_SettingValue{"log_info": {ParameterChoice: &inference.LogSettingsRequest_SettingValue_BoolParam{}}}}, codes.Unimplemented, "log_info"},
	} {
		_, err := invoke[inference.ModelInferResponse](t, conn, c.call, c.q)
		if s, _ := status.FromError(err); s.Code() != c.code || !strings.Contains(s.Message(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := invoke[inference.ModelInferResponse](t, conn, "ModelInfer", asking(make([]byte, MaxBody+8)), grpc.MaxCallSendMsgSize(2*MaxBody), grpc.UseCompressor("gzip")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("too large: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := conn.Invoke(ctx, "/"+service+"/ServerLive", &inference.ServerLiveRequest{}, &inference.ServerLiveResponse{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("deadline: %v", err)
	}
}

// TestStream: answers come in order, an error is one of them, and the end is told.
func TestStream(t *testing.T) {
	conn := dial(t)
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/ModelStreamInfer")
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	for i := range n {
		q := asking(floats(0, 0, 4, 3), "label")
		if q.Id = strings.Repeat("x", i+1); i == 3 {
			q.RawInputContents[0] = nil
		}
		if err := s.SendMsg(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := &inference.ModelStreamInferResponse{}
		if err := s.RecvMsg(m); err != nil {
			t.Fatal(err)
		}
		if len(m.GetInferResponse().GetId()) != i+1 || !m.GetInferResponse().GetParameters()["triton_final_response"].GetBoolParam() || (m.GetErrorMessage() != "") != (i == 3) || i != 3 && string(m.GetInferResponse().GetRawOutputContents()[0]) != twoLabels {
			t.Errorf("%d: %v", i, m)
		}
	}
	if err := s.RecvMsg(&inference.ModelStreamInferResponse{}); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
}

// TestReflection: clients learn the calls from the server.
func TestReflection(t *testing.T) {
	s, err := reflectionv1.NewServerReflectionClient(dial(t)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Recv()
	if err != nil || len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v %v", got, err)
	}
}

// TestServiceIsWhole: every call of the proto is there.
func TestServiceIsWhole(t *testing.T) {
	var names []string
	for _, c := range (&API{}).calls() {
		names = append(names, c.MethodName)
	}
	names = append(names, "ModelStreamInfer")
	methods := inference.File_inference_service_proto.Services().ByName("GRPCInferenceService").Methods()
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); !slices.Contains(names, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// FuzzMessage: a message is refused, or its tensors are as large as their shapes.
func FuzzMessage(f *testing.F) {
	b, _ := proto.Marshal(asking(floats(1, 2), "label"))
	f.Add(b)
	b, _ = proto.Marshal(&inference.ModelInferRequest{Inputs: []*inference.ModelInferRequest_InferInputTensor{{Datatype: "BYTES", Shape: []int64{1}, Contents: &inference.InferTensorContents{BytesContents: [][]byte{{0}}}}}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &inference.ModelInferRequest{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		a, err := fromMessage(m)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge && k != fault.Unsupported {
				t.Errorf("kind %s: %v", k, err)
			}
			return
		}
		for _, in := range a.Inputs {
			if n, err := runtime.Elements(in.Shape); err != nil || n != lengthOf(in.Data) {
				t.Errorf("%v has %d elements: %v", in.Shape, lengthOf(in.Data), err)
			}
		}
	})
}
