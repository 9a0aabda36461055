// Package onnx runs ONNX models in this process by ONNX Runtime on CPUs. The
// library is loaded at the first Load, so a server without models pays nothing.
//
// Runs in flight are bounded by the number of cores: more only thrash caches
// and hold an OS thread each. A run is cancelled when its context ends.
package onnx

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Runtime is ONNX Runtime. Make it with New.
type Runtime struct {
	library string
	slots   chan struct{}
}

var _ serving.Runtime = (*Runtime)(nil)

// New makes a runtime of the shared library at a path; nothing is loaded yet.
func New(library string) *Runtime {
	return &Runtime{library: library, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// The library can be initialised once in a process.
var (
	initMu  sync.Mutex
	errInit error
	inited  bool
)

func (r *Runtime) load() error {
	initMu.Lock()
	defer initMu.Unlock()
	if inited {
		return errInit
	}
	if _, err := os.Stat(r.library); err != nil {
		return fault.New(fault.Unavailable, "the ONNX Runtime library is not at %q", r.library).
			WithHint("Run `make deps`, or set FALAJ_ORT_LIB to libonnxruntime.so.")
	}
	ort.SetSharedLibraryPath(r.library)
	inited = true
	if err := ort.InitializeEnvironment(ort.WithLogLevelError()); err != nil {
		errInit = fault.New(fault.Unavailable, "load ONNX Runtime from %q: %w", r.library, err)
	}
	return errInit
}

// Load makes a session of an ONNX model. External data files are refused: all
// of a model is in the bytes that were signed.
func (r *Runtime) Load(_ context.Context, model []byte, o serving.Options) (serving.Session, error) {
	if err := r.load(); err != nil {
		return nil, err
	}
	if len(model) == 0 {
		return nil, fault.New(fault.Invalid, "the model file is empty")
	}
	in, out, err := ort.GetInputOutputInfoWithONNXData(model)
	if err != nil {
		return nil, fault.New(fault.Invalid, "not a model that ONNX Runtime %s can run: %w", ort.GetVersion(), err)
	}
	meta := serving.Metadata{Platform: "onnxruntime_onnx"}
	if meta.Inputs, err = specs(in); err != nil {
		return nil, err
	}
	if meta.Outputs, err = specs(out); err != nil {
		return nil, err
	}
	options, err := ort.NewSessionOptions()
	if err != nil {
		return nil, fault.Wrap(err, "session options")
	}
	defer func() { _ = options.Destroy() }()
	if err := options.SetIntraOpNumThreads(max(1, o.Threads)); err != nil {
		return nil, fault.Wrap(err, "threads")
	}
	if err := options.SetInterOpNumThreads(1); err != nil {
		return nil, fault.Wrap(err, "threads")
	}
	// A spinning thread steals its core from the other requests.
	if err := options.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"); err != nil {
		return nil, fault.Wrap(err, "spinning")
	}
	s, err := ort.NewDynamicAdvancedSessionWithONNXData(model, namesOf(meta.Inputs), namesOf(meta.Outputs), options)
	if err != nil {
		return nil, fault.New(fault.Invalid, "load the model: %w", err)
	}
	return &session{meta: meta, s: s, slots: r.slots}, nil
}

type session struct {
	meta  serving.Metadata
	s     *ort.DynamicAdvancedSession
	slots chan struct{}
	runs  sync.WaitGroup
}

func (s *session) Metadata() serving.Metadata { return s.meta }

func (s *session) Close() error {
	s.runs.Wait()
	return s.s.Destroy()
}

func (s *session) Infer(ctx context.Context, inputs []serving.Tensor, outputs []string) ([]serving.Tensor, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "waited for a free core until the request's time was up")
	}
	s.runs.Add(1)
	defer s.runs.Done()

	in := make([]ort.Value, len(s.meta.Inputs))
	out := make([]ort.Value, len(s.meta.Outputs))
	defer destroy(in)
	defer destroy(out)
	for i, spec := range s.meta.Inputs {
		j := slices.IndexFunc(inputs, func(t serving.Tensor) bool { return t.Name == spec.Name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "input %q is missing", spec.Name)
		}
		v, err := value(inputs[j])
		if err != nil {
			return nil, err
		}
		in[i] = v
	}
	if err := s.run(ctx, in, out); err != nil {
		return nil, err
	}
	tensors := make([]serving.Tensor, len(outputs))
	for i, name := range outputs {
		j := slices.IndexFunc(s.meta.Outputs, func(o serving.Spec) bool { return o.Name == name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "the model has no output %q; it has %v", name, namesOf(s.meta.Outputs))
		}
		t, err := tensor(name, out[j])
		if err != nil {
			return nil, err
		}
		tensors[i] = t
	}
	return tensors, nil
}

func (s *session) run(ctx context.Context, in, out []ort.Value) error {
	if ctx.Done() == nil {
		return failed(s.s.Run(in, out))
	}
	options, err := ort.NewRunOptions()
	if err != nil {
		return fault.Wrap(err, "run options")
	}
	defer func() { _ = options.Destroy() }()
	terminated := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(terminated)
		_ = options.Terminate()
	})
	err = s.s.RunWithOptions(in, out, options)
	if !stop() { // Terminate is using options: it must end before they are destroyed
		<-terminated
	}
	if err != nil && ctx.Err() != nil {
		return fault.New(fault.Timeout, "the model did not answer in the request's time")
	}
	return failed(err)
}

func failed(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Invalid, "the model refused the input: %w", err)
}

func destroy(values []ort.Value) {
	for _, v := range values {
		if v != nil {
			_ = v.Destroy()
		}
	}
}

func namesOf(specs []serving.Spec) []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	return names
}

var datatypes = map[ort.TensorElementDataType]serving.Datatype{
	ort.TensorElementDataTypeBool: serving.Bool, ort.TensorElementDataTypeString: serving.Bytes,
	ort.TensorElementDataTypeUint8: serving.Uint8, ort.TensorElementDataTypeInt8: serving.Int8,
	ort.TensorElementDataTypeUint16: serving.Uint16, ort.TensorElementDataTypeInt16: serving.Int16,
	ort.TensorElementDataTypeUint32: serving.Uint32, ort.TensorElementDataTypeInt32: serving.Int32,
	ort.TensorElementDataTypeUint64: serving.Uint64, ort.TensorElementDataTypeInt64: serving.Int64,
	ort.TensorElementDataTypeFloat: serving.FP32, ort.TensorElementDataTypeDouble: serving.FP64,
}

func specs(infos []ort.InputOutputInfo) ([]serving.Spec, error) {
	out := make([]serving.Spec, len(infos))
	for i, info := range infos {
		dt, ok := datatypes[info.DataType]
		if info.OrtValueType != ort.ONNXTypeTensor || !ok {
			return nil, fault.New(fault.Unsupported, "%q is a %s of %s, which the Open Inference Protocol has no form for", info.Name, info.OrtValueType, info.DataType).
				WithHint("For scikit-learn classifiers convert with options={'zipmap': False}.")
		}
		out[i] = serving.Spec{Name: info.Name, Datatype: dt, Shape: info.Dimensions}
	}
	return out, nil
}

func value(t serving.Tensor) (ort.Value, error) {
	shape := ort.NewShape(t.Shape...)
	var v ort.Value
	var err error
	switch data := t.Data.(type) {
	case []string:
		var s *ort.StringTensor
		if s, err = ort.NewStringTensor(shape); err == nil {
			v, err = s, s.SetContents(data)
		}
	case []bool:
		v, err = ort.NewTensor(shape, data)
	case []uint8:
		v, err = ort.NewTensor(shape, data)
	case []uint16:
		v, err = ort.NewTensor(shape, data)
	case []uint32:
		v, err = ort.NewTensor(shape, data)
	case []uint64:
		v, err = ort.NewTensor(shape, data)
	case []int8:
		v, err = ort.NewTensor(shape, data)
	case []int16:
		v, err = ort.NewTensor(shape, data)
	case []int32:
		v, err = ort.NewTensor(shape, data)
	case []int64:
		v, err = ort.NewTensor(shape, data)
	case []float32:
		v, err = ort.NewTensor(shape, data)
	case []float64:
		v, err = ort.NewTensor(shape, data)
	default:
		return nil, fmt.Errorf("tensor %q holds %T", t.Name, t.Data)
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "input %q: %w", t.Name, err)
	}
	return v, nil
}

// tensor copies an output out of the library's memory.
func tensor(name string, v ort.Value) (serving.Tensor, error) {
	t := serving.Tensor{Name: name, Shape: slices.Clone(v.GetShape())}
	switch v := v.(type) {
	case *ort.StringTensor:
		s, err := v.GetContents()
		if err != nil {
			return t, fault.Wrap(err, "output %q", name)
		}
		t.Datatype, t.Data = serving.Bytes, s
	case *ort.Tensor[bool]:
		t.Datatype, t.Data = serving.Bool, slices.Clone(v.GetData())
	case *ort.Tensor[uint8]:
		t.Datatype, t.Data = serving.Uint8, slices.Clone(v.GetData())
	case *ort.Tensor[uint16]:
		t.Datatype, t.Data = serving.Uint16, slices.Clone(v.GetData())
	case *ort.Tensor[uint32]:
		t.Datatype, t.Data = serving.Uint32, slices.Clone(v.GetData())
	case *ort.Tensor[uint64]:
		t.Datatype, t.Data = serving.Uint64, slices.Clone(v.GetData())
	case *ort.Tensor[int8]:
		t.Datatype, t.Data = serving.Int8, slices.Clone(v.GetData())
	case *ort.Tensor[int16]:
		t.Datatype, t.Data = serving.Int16, slices.Clone(v.GetData())
	case *ort.Tensor[int32]:
		t.Datatype, t.Data = serving.Int32, slices.Clone(v.GetData())
	case *ort.Tensor[int64]:
		t.Datatype, t.Data = serving.Int64, slices.Clone(v.GetData())
	case *ort.Tensor[float32]:
		t.Datatype, t.Data = serving.FP32, slices.Clone(v.GetData())
	case *ort.Tensor[float64]:
		t.Datatype, t.Data = serving.FP64, slices.Clone(v.GetData())
	default:
		return t, fault.New(fault.Unsupported, "output %q is a %T, which the Open Inference Protocol has no form for", name, v)
	}
	return t, nil
}
