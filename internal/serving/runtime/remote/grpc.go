package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// calls asks by gRPC. A request goes over one of the connections, each of which
// carries many at a time; over another one when that is broken. grpc sends it again
// only where it knows that the server has not begun with it.
type calls struct {
	connections []*grpc.ClientConn
	next        atomic.Uint64
	token       bearer
}

func openGRPC(s Server) (*calls, error) {
	secure := insecure.NewCredentials()
	if s.TLS != nil {
		secure = credentials.NewTLS(s.TLS.Clone())
	}
	c := &calls{token: bearer{path: s.TokenFile}}
	for range max(1, s.Connections) {
		conn, err := grpc.NewClient("dns:///"+s.Address,
			grpc.WithTransportCredentials(secure), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
			grpc.WithUserAgent("falaj"), grpc.WithIdleTimeout(0), grpc.WithMaxHeaderListSize(64<<10),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
				MinConnectTimeout: probeTime,
			}),
			// Servers end connections that ping more often than every five minutes. A
			// connection whose data nobody acknowledges for the time-out ends all the same.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 10 * time.Second}),
		)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.connections = append(c.connections, conn)
	}
	return c, nil
}

func (c *calls) close() error {
	var all []error
	for _, conn := range c.connections {
		all = append(all, conn.Close())
	}
	return errors.Join(all...)
}

// pick is the next connection that is not broken, or the next one.
func (c *calls) pick() *grpc.ClientConn {
	n := uint64(len(c.connections))
	first := c.next.Add(1)
	for i := range n {
		if conn := c.connections[(first+i)%n]; conn.GetState() != connectivity.TransientFailure {
			return conn
		}
	}
	return c.connections[first%n]
}

func (c *calls) call(ctx context.Context, name string, limit int, in, out proto.Message, o ...grpc.CallOption) error {
	token, err := c.token.header()
	if err != nil {
		return err
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
	}
	scale := &scale{CodecV2: encoding.GetCodecV2(grpcproto.Name), most: heavy * limit}
	o = append(o, grpc.MaxCallRecvMsgSize(limit), grpc.ForceCodecV2(scale))
	err = c.pick().Invoke(ctx, "/inference.GRPCInferenceService/"+name, in, out, o...)
	if scale.refused {
		return &failure{Garbled}
	}
	return failed(ctx, err)
}

// heavy is how much memory an answer may take for each byte that it may have.
const heavy = 4

// scale is the codec of one call. It weighs the answer, also one that came compressed,
// before it reads it.
type scale struct {
	encoding.CodecV2
	most    int
	refused bool
}

func (s *scale) Unmarshal(data mem.BufferSlice, v any) error {
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	m := v.(proto.Message)
	if inference.Weigh(b.ReadOnlyData(), m.ProtoReflect().Descriptor()) > s.most || proto.Unmarshal(b.ReadOnlyData(), m) != nil {
		s.refused = true
		return &failure{Garbled}
	}
	return nil
}

// failed is an error of gRPC as a failure.
func failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &failure{Slow}
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return &failure{Unreachable}
	case codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return &failure{Slow}
	case codes.InvalidArgument, codes.OutOfRange:
		return &failure{Rejected}
	case codes.NotFound, codes.Unimplemented:
		return &failure{Missing}
	case codes.Unauthenticated, codes.PermissionDenied:
		return &failure{Denied}
	case codes.ResourceExhausted: // also grpc's, of an answer over the limit
		return &failure{Busy}
	default:
		return &failure{Broken}
	}
}

func (c *calls) ready(ctx context.Context, m model) error {
	q, out := &inference.ModelReadyRequest{Name: m.name, Version: m.version}, inference.ModelReadyResponse{}
	err := c.call(ctx, "ModelReady", maxTold, q, &out)
	if err != nil && c.reconnect() { // grpc would wait before it tries again
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		err = c.call(ctx, "ModelReady", maxTold, q, &out, grpc.WaitForReady(true))
	}
	if err != nil {
		return err
	}
	if !out.GetReady() {
		return &failure{Missing}
	}
	return nil
}

// connectTime is how long a look waits for a connection that was broken.
const connectTime = time.Second

// reconnect has the connections that are broken try again now; false: there are none.
func (c *calls) reconnect() (some bool) {
	for _, conn := range c.connections {
		if conn.GetState() == connectivity.TransientFailure {
			conn.ResetConnectBackoff()
			some = true
		}
	}
	return some
}

func (c *calls) metadata(ctx context.Context, m model) (runtime.Metadata, []string, error) {
	var out inference.ModelMetadataResponse
	if err := c.call(ctx, "ModelMetadata", maxTold, &inference.ModelMetadataRequest{Name: m.name, Version: m.version}, &out); err != nil {
		return runtime.Metadata{}, nil, err
	}
	specs := func(in []*inference.ModelMetadataResponse_TensorMetadata) []runtime.Spec {
		var specs []runtime.Spec
		for _, t := range in {
			if t.GetParameters()["optional"].GetBoolParam() {
				continue // nothing is asked that has a default there
			}
			specs = append(specs, runtime.Spec{Name: t.GetName(), Datatype: runtime.Datatype(t.GetDatatype()), Shape: t.GetShape()})
		}
		return specs
	}
	return believable(runtime.Metadata{Platform: out.GetPlatform(), Inputs: specs(out.GetInputs()), Outputs: specs(out.GetOutputs())}, out.GetVersions())
}

func (c *calls) maxRows(ctx context.Context, m model) (int, error) {
	var out inference.ModelConfigResponse
	if err := c.call(ctx, "ModelConfig", maxTold, &inference.ModelConfigRequest{Name: m.name, Version: m.version}, &out); err != nil {
		return 0, err
	}
	return int(max(0, out.GetConfig().GetMaxBatchSize())), nil
}

func (c *calls) infer(ctx context.Context, m model, id string, inputs []runtime.Tensor, outputs []string) (answer, error) {
	q := &inference.ModelInferRequest{ModelName: m.name, ModelVersion: m.version, Id: id}
	for _, t := range inputs {
		raw, err := inference.ToRaw(t)
		if err != nil {
			return answer{}, &failure{Rejected}
		}
		q.Inputs = append(q.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape})
		q.RawInputContents = append(q.RawInputContents, raw)
	}
	for _, name := range outputs {
		q.Outputs = append(q.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: name})
	}
	var out inference.ModelInferResponse
	if err := c.call(ctx, "ModelInfer", maxAnswer, q, &out); err != nil {
		return answer{}, err
	}
	return read(&out)
}

// read takes an answer's tensors out of the message, whose memory they may keep.
func read(m *inference.ModelInferResponse) (answer, error) {
	a := answer{id: m.GetId(), model: m.GetModelName(), version: m.GetModelVersion(), outputs: make([]runtime.Tensor, 0, min(len(m.GetOutputs()), runtime.MaxPorts))}
	raw := m.GetRawOutputContents()
	if len(m.GetOutputs()) > runtime.MaxPorts || len(raw) > 0 && len(raw) != len(m.GetOutputs()) {
		return a, &failure{Garbled}
	}
	for i, o := range m.GetOutputs() {
		t := runtime.Tensor{Name: o.GetName(), Datatype: runtime.Datatype(o.GetDatatype()), Shape: o.GetShape()}
		if t.Shape == nil {
			t.Shape = []int64{}
		}
		var err error
		if len(raw) > 0 {
			err = inference.FromRaw(&t, raw[i])
		} else {
			err = inference.FromContents(&t, o.GetContents())
		}
		if err != nil {
			return a, &failure{Garbled}
		}
		a.outputs = append(a.outputs, t)
	}
	return a, nil
}
