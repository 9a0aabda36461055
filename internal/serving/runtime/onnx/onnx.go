// Package onnx runs ONNX models in this process by ONNX Runtime on CPUs. The
// library is loaded at the first Load, so a server without models pays nothing.
//
// Runs in flight are bounded by the number of cores: more only thrash caches
// and hold an OS thread each. A run is cancelled when its context ends.
package onnx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

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
	// Errors come back to us; on the way the library would print each, and a
	// caller can cause as many as it likes.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		errInit = fault.New(fault.Unavailable, "load ONNX Runtime from %q: %w", r.library, err)
	}
	return errInit
}

// Load makes a session of an ONNX model. The file is read here before the
// library sees it: data in other files is refused, since all of a model is in
// the bytes that were signed.
func (r *Runtime) Load(_ context.Context, model []byte, o serving.Options) (serving.Session, error) {
	meta, err := inspect(model)
	if err != nil {
		return nil, err
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	return r.open(model, meta, o)
}

// nowhere is a directory that cannot be: what is looked for in it or beside it
// is not found. It is where the library would look for a tensor's data, should a
// way to name a file ever slip through inspect.
const nowhere = "/dev/null/none"

// entries are settings of every session.
var entries = map[string]string{
	// A spinning thread steals its core from the other requests.
	"session.intra_op.allow_spinning": "0",
	// What inspect read is what the library reads.
	"session.load_model_format":                            "ONNX",
	"session.model_external_initializers_file_folder_path": nowhere,
}

func (r *Runtime) open(model []byte, meta serving.Metadata, o serving.Options) (serving.Session, error) {
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
	for key, value := range entries {
		if err := options.AddSessionConfigEntry(key, value); err != nil {
			return nil, fault.Wrap(err, "set %s", key)
		}
	}
	s, err := ort.NewDynamicAdvancedSessionWithONNXData(model, namesOf(meta.Inputs), namesOf(meta.Outputs), options)
	if err != nil {
		if outOfMemory(err) {
			return nil, fault.New(fault.Exhausted, "no memory to load the model: %w", err)
		}
		return nil, fault.New(fault.Invalid, "not a model that ONNX Runtime %s can run: %w", ort.GetVersion(), err)
	}
	return &session{meta: meta, s: s, slots: r.slots, scalar: make([]atomic.Bool, len(meta.Outputs))}, nil
}

type session struct {
	meta  serving.Metadata
	s     *ort.DynamicAdvancedSession
	slots chan struct{}
	runs  sync.WaitGroup
	// scalar marks the outputs that were met without a dimension; see answer.
	scalar []atomic.Bool
}

func (s *session) Metadata() serving.Metadata { return s.meta }

func (s *session) Close() error {
	s.runs.Wait()
	return s.s.Destroy()
}

func (s *session) Infer(ctx context.Context, inputs []serving.Tensor, outputs []string) ([]serving.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request's time was up before the model ran")
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "waited for a free core until the request's time was up")
	}
	s.runs.Add(1)
	defer s.runs.Done()

	in := make([]ort.Value, len(s.meta.Inputs))
	defer destroy(in)
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
	out, err := s.answer(ctx, in)
	if err != nil {
		return nil, err
	}
	defer destroy(out)
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

// answer runs the model and hands over its outputs, to be destroyed.
//
// The binding takes an output without dimensions out of the library only when
// it was allocated before the run, and what a model's file says of its outputs'
// dimensions need not hold. So an output that was met without dimensions is
// allocated from then on; when the run fails with it, it is tried as the rest
// are, because some models answer one row without a dimension and several with.
func (s *session) answer(ctx context.Context, in []ort.Value) ([]ort.Value, error) {
	scalar := make([]bool, len(s.scalar))
	for i := range scalar {
		scalar[i] = s.scalar[i].Load()
	}
	for try := 0; ; try++ {
		out, err := allocated(s.meta.Outputs, scalar)
		if err != nil {
			return nil, err
		}
		err = s.run(ctx, in, out)
		if err == nil {
			return out, nil
		}
		met := false
		for i, v := range out {
			if v == nil || !reflect.ValueOf(v).IsNil() {
				continue
			}
			out[i] = nil
			if errors.Is(err, ort.ZeroShapeLengthError) && !scalar[i] {
				met, scalar[i] = true, true
				s.scalar[i].Store(true)
			}
		}
		destroy(out)
		switch {
		case ctx.Err() != nil || try > len(out)+1:
			return nil, err
		case met:
		case try == 0 && slices.Contains(scalar, true):
			clear(scalar)
		default:
			return nil, err
		}
	}
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

// failed gives a run's error its kind. The binding drops the library's status
// code, so the text has to do: it names the input that does not fit, or the node
// that refused what it was given. Anything else is not the caller's doing.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case outOfMemory(err):
		return fault.New(fault.Exhausted, "no memory to run the model: %w", err).WithHint("Send fewer rows at once.")
	case refused.MatchString(err.Error()):
		return fault.New(fault.Invalid, "the model refused the input: %w", err)
	}
	return fault.New(fault.Internal, "run the model: %w", err)
}

var (
	refused = regexp.MustCompile(`Got invalid dimensions for input|Invalid rank for input|Unexpected input data type|Missing Input:|Invalid [Ii]nput [Nn]ame|Non-zero status code returned while running|required input`)
	noRoom  = regexp.MustCompile(`bad_alloc|Failed to allocate memory|[Oo]ut of memory|bad array new length`)
)

func outOfMemory(err error) bool { return noRoom.MatchString(err.Error()) }

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

func value(t serving.Tensor) (v ort.Value, err error) {
	switch data := t.Data.(type) {
	case []string:
		v, err = words(t.Shape, data)
	case []bool:
		v, err = numbers(t.Shape, data)
	case []uint8:
		v, err = numbers(t.Shape, data)
	case []uint16:
		v, err = numbers(t.Shape, data)
	case []uint32:
		v, err = numbers(t.Shape, data)
	case []uint64:
		v, err = numbers(t.Shape, data)
	case []int8:
		v, err = numbers(t.Shape, data)
	case []int16:
		v, err = numbers(t.Shape, data)
	case []int32:
		v, err = numbers(t.Shape, data)
	case []int64:
		v, err = numbers(t.Shape, data)
	case []float32:
		v, err = numbers(t.Shape, data)
	case []float64:
		v, err = numbers(t.Shape, data)
	default:
		return nil, fmt.Errorf("tensor %q holds %T", t.Name, t.Data)
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "input %q: %w", t.Name, err)
	}
	return v, nil
}

func numbers[T ort.TensorData](shape []int64, data []T) (ort.Value, error) {
	if len(shape) > 0 {
		t, err := ort.NewTensor(ort.NewShape(shape...), data)
		if err != nil {
			return nil, err // not t: an interface with a nil in it is not nil
		}
		return t, nil
	}
	if len(data) != 1 {
		return nil, fmt.Errorf("a tensor without dimensions has one element, not %d", len(data))
	}
	t, err := ort.NewScalar(data[0])
	if err != nil {
		return nil, err
	}
	return t, nil
}

// words are strings as a tensor. The library takes them as C strings, which end
// at the first NUL: one with a NUL in it would arrive cut.
func words(shape []int64, data []string) (ort.Value, error) {
	for i, w := range data {
		if strings.ContainsRune(w, 0) {
			return nil, fmt.Errorf("element %d has a NUL in it, which ONNX Runtime cannot take", i)
		}
	}
	t, err := ort.NewStringTensor(ort.NewShape(shape...))
	if err != nil {
		return nil, err
	}
	if err := t.SetContents(data); err != nil {
		_ = t.Destroy()
		return nil, err
	}
	return t, nil
}

// allocated makes the values that a run's outputs go to: none, for the library
// to allocate, but for scalars.
func allocated(specs []serving.Spec, scalar []bool) ([]ort.Value, error) {
	out := make([]ort.Value, len(specs))
	for i, s := range specs {
		if !scalar[i] {
			continue
		}
		var err error
		if out[i], err = empty(s.Datatype); err != nil {
			destroy(out)
			return nil, fault.Wrap(err, "output %q", s.Name)
		}
	}
	return out, nil
}

func empty(d serving.Datatype) (ort.Value, error) {
	switch d {
	case serving.Bool:
		return numbers(nil, []bool{false})
	case serving.Uint8:
		return numbers(nil, []uint8{0})
	case serving.Uint16:
		return numbers(nil, []uint16{0})
	case serving.Uint32:
		return numbers(nil, []uint32{0})
	case serving.Uint64:
		return numbers(nil, []uint64{0})
	case serving.Int8:
		return numbers(nil, []int8{0})
	case serving.Int16:
		return numbers(nil, []int16{0})
	case serving.Int32:
		return numbers(nil, []int32{0})
	case serving.Int64:
		return numbers(nil, []int64{0})
	case serving.FP32:
		return numbers(nil, []float32{0})
	case serving.FP64:
		return numbers(nil, []float64{0})
	case serving.Bytes: // the library's own come out without dimensions, too
	}
	return nil, nil
}

// tensor copies an output out of the library's memory.
func tensor(name string, v ort.Value) (serving.Tensor, error) {
	t := serving.Tensor{Name: name, Shape: append([]int64{}, v.GetShape()...)}
	switch v := v.(type) {
	case *ort.StringTensor:
		s, err := contents(v)
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
	case *ort.Scalar[bool]:
		t.Datatype, t.Data = serving.Bool, []bool{v.GetData()}
	case *ort.Scalar[uint8]:
		t.Datatype, t.Data = serving.Uint8, []uint8{v.GetData()}
	case *ort.Scalar[uint16]:
		t.Datatype, t.Data = serving.Uint16, []uint16{v.GetData()}
	case *ort.Scalar[uint32]:
		t.Datatype, t.Data = serving.Uint32, []uint32{v.GetData()}
	case *ort.Scalar[uint64]:
		t.Datatype, t.Data = serving.Uint64, []uint64{v.GetData()}
	case *ort.Scalar[int8]:
		t.Datatype, t.Data = serving.Int8, []int8{v.GetData()}
	case *ort.Scalar[int16]:
		t.Datatype, t.Data = serving.Int16, []int16{v.GetData()}
	case *ort.Scalar[int32]:
		t.Datatype, t.Data = serving.Int32, []int32{v.GetData()}
	case *ort.Scalar[int64]:
		t.Datatype, t.Data = serving.Int64, []int64{v.GetData()}
	case *ort.Scalar[float32]:
		t.Datatype, t.Data = serving.FP32, []float32{v.GetData()}
	case *ort.Scalar[float64]:
		t.Datatype, t.Data = serving.FP64, []float64{v.GetData()}
	default:
		return t, fault.New(fault.Unsupported, "output %q is a %T, which the Open Inference Protocol has no form for", name, v)
	}
	return t, nil
}

func contents(v *ort.StringTensor) ([]string, error) {
	if len(v.GetShape()) > 0 {
		return v.GetContents()
	}
	s, err := v.GetElement(0) // GetContents takes a tensor without dimensions for an empty one
	return []string{s}, err
}
