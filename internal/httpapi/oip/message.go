package oip

import (
	"io"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zlib"
	"google.golang.org/grpc/encoding"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// fromMessage reads a request of gRPC. Its tensors may live in the message, which
// belongs to the request from now on.
func fromMessage(m *inference.ModelInferRequest) (*ask, error) {
	raw := m.GetRawInputContents()
	switch n := len(m.GetInputs()); {
	case n == 0:
		return nil, fault.New(fault.Invalid, "the request has no inputs")
	case n > MaxTensors:
		return nil, fault.New(fault.TooLarge, "a request may have %d inputs and %d outputs", MaxTensors, MaxTensors)
	case len(raw) > 0 && len(raw) != n:
		return nil, fault.New(fault.Invalid, "raw_input_contents has %d tensors for %d inputs", len(raw), n)
	}
	a := &ask{}
	a.ID = m.GetId()
	if err := parameters(m.GetParameters(), a.parameter); err != nil {
		return nil, err
	}
	a.Inputs = make([]runtime.Tensor, len(m.GetInputs()))
	for i, in := range m.GetInputs() {
		t := runtime.Tensor{Name: in.GetName(), Datatype: datatype([]byte(in.GetDatatype())), Shape: in.GetShape()}
		if t.Shape == nil {
			t.Shape = []int64{}
		}
		encoded := false
		err := parameters(in.GetParameters(), func(name string, v any) error { return inputParameter(&t, name, v, &encoded) })
		switch {
		case err != nil:
		case len(raw) == 0:
			err = inference.FromContents(&t, in.GetContents())
		case in.GetContents() != nil:
			err = fault.New(fault.Invalid, "input %q has both contents and raw_input_contents", t.Name)
		default:
			err = inference.FromRaw(&t, raw[i])
		}
		if err == nil && encoded {
			err = fromBase64(&t)
		}
		if err != nil {
			return nil, err
		}
		a.Inputs[i] = t
	}
	for _, o := range m.GetOutputs() {
		if err := a.output(o.GetName()); err != nil {
			return nil, err
		}
		if err := parameters(o.GetParameters(), a.outputs[len(a.outputs)-1].parameter); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func parameters(in map[string]*inference.InferParameter, take func(name string, v any) error) error {
	if len(in) > maxParameters {
		return fault.New(fault.Invalid, "there may be %d parameters", maxParameters)
	}
	for name, p := range in {
		var v any
		switch c := p.GetParameterChoice().(type) {
		case *inference.InferParameter_BoolParam:
			v = c.BoolParam
		case *inference.InferParameter_Int64Param:
			v = c.Int64Param
		case *inference.InferParameter_StringParam:
			v = c.StringParam
		case *inference.InferParameter_DoubleParam:
			v = c.DoubleParam
		case *inference.InferParameter_Uint64Param:
			v = c.Uint64Param
		}
		if err := take(name, v); err != nil {
			return err
		}
	}
	return nil
}

// toMessage is an answer of gRPC: its outputs are raw, as Triton's are.
func toMessage(name string, got serving.Answer, outputs []runtime.Tensor) (*inference.ModelInferResponse, error) {
	m := &inference.ModelInferResponse{
		ModelName: name, ModelVersion: strconv.FormatInt(got.Version, 10), Id: got.ID,
		Outputs: make([]*inference.ModelInferResponse_InferOutputTensor, len(outputs)), RawOutputContents: make([][]byte, len(outputs)),
	}
	for i, t := range outputs {
		m.Outputs[i] = &inference.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape}
		var err error
		if m.RawOutputContents[i], err = inference.ToRaw(t); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// deflate is the other compression that clients of gRPC have: that of zlib.
type deflate struct{ writers sync.Pool }

func init() { encoding.RegisterCompressor(&deflate{}) }

func (*deflate) Name() string { return "deflate" }

func (d *deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	z, ok := d.writers.Get().(*zlib.Writer)
	if !ok {
		var err error
		if z, err = zlib.NewWriterLevel(w, zlib.BestSpeed); err != nil {
			return nil, err
		}
	}
	z.Reset(w)
	return &deflating{z, &d.writers}, nil
}

type deflating struct {
	*zlib.Writer
	pool *sync.Pool
}

func (w *deflating) Close() error {
	defer w.pool.Put(w.Writer)
	return w.Writer.Close()
}

func (*deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }
