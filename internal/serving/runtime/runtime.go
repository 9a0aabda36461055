// Package runtime is how serving runs a model: a Runtime loads model files into
// a Session, a Session answers. Tensors are typed Go slices in row-major order,
// so an implementation hands them to its library without copying.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Datatype is an Open Inference Protocol datatype.
type Datatype string

// The datatypes that have a Go slice type here, named beside each.
const (
	Bool   Datatype = "BOOL"   // []bool
	Uint8  Datatype = "UINT8"  // []uint8
	Uint16 Datatype = "UINT16" // []uint16
	Uint32 Datatype = "UINT32" // []uint32
	Uint64 Datatype = "UINT64" // []uint64
	Int8   Datatype = "INT8"   // []int8
	Int16  Datatype = "INT16"  // []int16
	Int32  Datatype = "INT32"  // []int32
	Int64  Datatype = "INT64"  // []int64
	FP16   Datatype = "FP16"   // []uint16, IEEE 754 binary16; no form in JSON
	BF16   Datatype = "BF16"   // []uint16, the upper half of an FP32; no form in JSON
	FP32   Datatype = "FP32"   // []float32
	FP64   Datatype = "FP64"   // []float64
	Bytes  Datatype = "BYTES"  // []string
)

// Datatypes lists them all.
var Datatypes = []Datatype{Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, FP16, BF16, FP32, FP64, Bytes}

// Zeros makes n elements of a datatype: a slice of zeros, false or "". It is nil
// for what is no datatype.
func Zeros(d Datatype, n int) any {
	switch d {
	case Bool:
		return make([]bool, n)
	case Uint8:
		return make([]uint8, n)
	case Uint16, FP16, BF16:
		return make([]uint16, n)
	case Uint32:
		return make([]uint32, n)
	case Uint64:
		return make([]uint64, n)
	case Int8:
		return make([]int8, n)
	case Int16:
		return make([]int16, n)
	case Int32:
		return make([]int32, n)
	case Int64:
		return make([]int64, n)
	case FP32:
		return make([]float32, n)
	case FP64:
		return make([]float64, n)
	case Bytes:
		return make([]string, n)
	}
	return nil
}

// Tensor is a named array. Data is the slice type of its Datatype, with as many
// elements as Shape's product; a Shape of no dimensions is a scalar.
type Tensor struct {
	Name     string
	Datatype Datatype
	Shape    []int64
	Data     any
	// Columns are the names of its columns, its second dimension, of a table that names them
	// (see Metadata.Arrange); nil of others.
	Columns []string
}

// MaxElements bounds one tensor.
const MaxElements = 1 << 28

// Elements is the product of a shape, refusing negative and absurd ones.
func Elements(shape []int64) (int, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fault.New(fault.Invalid, "shape %v has a negative dimension", shape)
		}
		if d > MaxElements || d > 0 && n > MaxElements/d { // also beside a dimension of nothing
			return 0, fault.New(fault.TooLarge, "shape %v has more than %d elements", shape, MaxElements)
		}
		n *= d
	}
	return int(n), nil
}

// Spec describes an input or output of a model; -1 is a dimension that varies,
// a nil Shape any number of them, an empty one a scalar.
type Spec struct {
	Name     string
	Datatype Datatype
	Shape    []int64
	Binary   bool // BYTES that are no text, where the model says so
	// Columns are the names of an input's columns, its second dimension, where the model
	// knows them: a table that names its columns is brought into this order.
	Columns []string
}

// Accepts refuses a tensor that does not match the spec, in words.
func (s Spec) Accepts(t Tensor) error {
	if t.Datatype != s.Datatype {
		return fault.New(fault.Invalid, "input %q has datatype %s, the model needs %s", t.Name, t.Datatype, s.Datatype)
	}
	fits := s.Shape == nil || len(t.Shape) == len(s.Shape)
	for i := 0; fits && i < len(s.Shape); i++ {
		fits = s.Shape[i] < 0 || s.Shape[i] == t.Shape[i]
	}
	if !fits {
		return fault.New(fault.Invalid, "input %q has shape %v, the model needs %v", t.Name, t.Shape, s.Shape).
			WithHint("-1 stands for any size; the first dimension is usually the number of rows.")
	}
	return nil
}

// Limits of what a model may say about itself, of what a request may have, which are the
// same, and of what a model may answer. A model that no request can ask is not loaded.
const (
	MaxPorts   = 1024      // inputs, and outputs
	MaxColumns = 1 << 16   // names of columns of an input
	MaxName    = 1024      // bytes of the name of one
	MaxRank    = 32        // dimensions
	MaxDefault = 1024      // elements of a default; a larger one is a weight
	MaxRequest = 64 << 20  // bytes of a request
	MaxAnswer  = 512 << 20 // bytes of all outputs of a run
)

// TooLong refuses an answer that is too large to be held beside others.
func TooLong() error {
	return fault.New(fault.TooLarge, "the model's response exceeds %d MiB", MaxAnswer>>20).WithHint("Send fewer rows at once.")
}

// Metadata is what a loaded model says about itself.
type Metadata struct {
	Platform string // "onnxruntime_onnx"
	Inputs   []Spec // each request has them
	Outputs  []Spec
	// Optional are the inputs that have a default in the model, which a request may leave out.
	// A request that has one runs alone: the rows of others have the default.
	Optional []Spec
}

// Input is the input with a name, optional or not; nil when there is none.
func (m Metadata) Input(name string) *Spec {
	for _, specs := range [...][]Spec{m.Inputs, m.Optional} {
		for i := range specs {
			if specs[i].Name == name {
				return &specs[i]
			}
		}
	}
	return nil
}

// Offer gives those inputs, out of those that have a default, that a request may have beside
// the ones that it must have. largest is the number of elements of the largest default. None is
// offered of a model that lists its weights among its inputs: of one with too many inputs, or
// with a default of more than MaxDefault. Weights are no part of what a model takes: they differ
// from version to version. No input is offered that is larger than a request.
func (m Metadata) Offer(defaults []Spec, largest int64) (offered []Spec) {
	if len(m.Inputs)+len(defaults) > MaxPorts || largest > MaxDefault {
		return nil
	}
	for _, s := range defaults {
		if left(append(slices.Clip(m.Inputs), s)) >= 0 && validate("input", []Spec{s}) == nil {
			offered = append(offered, s)
		}
	}
	return offered
}

// Validate refuses what no model may say about itself.
func (m Metadata) Validate() error {
	switch {
	case len(m.Inputs)+len(m.Optional) > MaxPorts || len(m.Outputs) > MaxPorts:
		return fault.New(fault.Invalid, "the model has %d inputs and %d outputs; models and requests have at most %d of each", len(m.Inputs)+len(m.Optional), len(m.Outputs), MaxPorts).
			WithHint("Export it with one input of many columns instead of one per column.")
	case len(m.Inputs) == 0:
		return fault.New(fault.Invalid, "the model has no inputs: its outputs are constant, and requests need inputs").
			WithHint("Export it with the inputs that it depends on, or store its outputs as a dataset.")
	case len(m.Outputs) == 0:
		return fault.New(fault.Invalid, "the model has no outputs")
	}
	if err := validate("input", append(slices.Clip(m.Inputs), m.Optional...)); err != nil {
		return err
	}
	if err := validate("output", m.Outputs); err != nil {
		return err
	}
	return m.fits()
}

// fits refuses a model whose inputs, where their shape is fixed, are more than a request
// may have.
func (m Metadata) fits() error {
	for i, s := range m.Inputs {
		if left(m.Inputs[:i+1]) < 0 {
			return fault.New(fault.Invalid, "the inputs of the model exceed %d MiB, the limit of a request: input %.100q has the shape %v", MaxRequest>>20, s.Name, s.Shape).
				WithHint("Export the model with a smaller batch, or with a dynamic dimension.")
		}
	}
	return nil
}

// left is how many bytes a request may have beside inputs of these specs, where their shape
// is fixed; below 0: it may not have them.
func left(specs []Spec) int64 {
	left := int64(MaxRequest)
	for _, s := range specs {
		n := int64(1)
		for _, d := range s.Shape {
			if d >= 0 && n > 0 {
				n *= min(d, MaxRequest+1)
			}
			if n = min(n, MaxRequest+1); d == 0 {
				n = 0
			}
		}
		if left -= n * elementSize(s.Datatype); left < 0 {
			break
		}
	}
	return left
}

// elementSize is the least that an element takes in a request, in bytes.
func elementSize(d Datatype) int64 {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32, Bytes: // of BYTES the length
		return 4
	case Uint64, Int64, FP64:
	}
	return 8
}

func validate(role string, specs []Spec) error {
	seen := make(map[string]bool, len(specs))
	for _, s := range specs {
		switch {
		case s.Name == "":
			return fault.New(fault.Invalid, "an %s of the model has no name, so requests cannot refer to it", role).WithHint("Name it when the model is exported.")
		case len(s.Name) > MaxName:
			return fault.New(fault.Invalid, "the name of an %s of the model has %d bytes; the limit is %d, also in requests: %.80q…", role, len(s.Name), MaxName, s.Name).
				WithHint("Export the model with a shorter name.")
		case !utf8.ValidString(s.Name) || strings.ContainsRune(s.Name, 0):
			return fault.New(fault.Invalid, "the name %.80q of an %s of the model is not valid text", s.Name, role)
		case seen[s.Name]:
			return fault.New(fault.Invalid, "the model has duplicate %ss %.100q", role, s.Name)
		case !slices.Contains(Datatypes, s.Datatype):
			return fault.New(fault.Invalid, "%s %.100q of the model has an unknown datatype", role, s.Name)
		case len(s.Shape) > MaxRank || slices.ContainsFunc(s.Shape, func(d int64) bool { return d < -1 }):
			return fault.New(fault.Invalid, "%s %.100q of the model has an invalid shape", role, s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

// Check refuses inputs that are not exactly the model's; optional ones may be missing.
func (m Metadata) Check(inputs []Tensor) error {
	for _, spec := range m.Inputs {
		i := slices.IndexFunc(inputs, func(t Tensor) bool { return t.Name == spec.Name })
		if i < 0 {
			return fault.New(fault.Invalid, "input %q is missing; the model needs %s", spec.Name, m.wants()).
				WithHint("Each request needs every input. For a missing column send NaN, or in BYTES a placeholder, which a predict.py beside the model converts to None.")
		}
		if err := spec.Accepts(inputs[i]); err != nil {
			return err
		}
	}
	for i, t := range inputs {
		if !slices.ContainsFunc(m.Inputs, func(s Spec) bool { return s.Name == t.Name }) {
			o := slices.IndexFunc(m.Optional, func(s Spec) bool { return s.Name == t.Name })
			if o < 0 {
				return fault.New(fault.Invalid, "unknown input %q; the model needs %s", t.Name, m.wants())
			}
			if err := m.Optional[o].Accepts(t); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(inputs[:i], func(o Tensor) bool { return o.Name == t.Name }) {
			return fault.New(fault.Invalid, "duplicate input %q", t.Name)
		}
	}
	return nil
}

// Arrange brings the columns of tables that name them into the order in which this model was
// trained: another version may have been trained in another one. Error: fault.Invalid where the
// names differ.
func (m Metadata) Arrange(inputs []Tensor) ([]Tensor, error) {
	arranged := inputs
	for i, t := range inputs {
		spec := m.Input(t.Name)
		if t.Columns == nil || spec == nil || len(spec.Columns) == 0 || slices.Equal(t.Columns, spec.Columns) || len(t.Shape) != 2 {
			continue
		}
		from := make([]int, len(spec.Columns))
		for to, name := range spec.Columns {
			if from[to] = slices.Index(t.Columns, name); from[to] < 0 || len(t.Columns) != len(spec.Columns) {
				return nil, fault.New(fault.Invalid, "input %q: the model was trained with other columns than those of the request", t.Name).
					WithHint("Columns of the model: %s.", fault.Clip(strings.Join(spec.Columns, ", "), 500))
			}
		}
		if &arranged[0] == &inputs[0] {
			arranged = slices.Clone(inputs)
		}
		width := len(from)
		old := reflect.ValueOf(t.Data)
		data := reflect.MakeSlice(old.Type(), old.Len(), old.Len())
		for at := range old.Len() {
			data.Index(at).Set(old.Index(at - at%width + from[at%width]))
		}
		arranged[i].Data, arranged[i].Columns = data.Interface(), spec.Columns
	}
	return arranged, nil
}

// wants lists the inputs in words.
func (m Metadata) wants() string {
	if len(m.Optional) == 0 {
		return names(m.Inputs)
	}
	return names(m.Inputs) + ", and may be given " + names(m.Optional)
}

// StandsIn refuses to take the place of another model when there are inputs that
// each request to the other has and this one does not take, or outputs that only the other
// gives. Optional inputs are not compared: small weights can be among them, and a request that
// has one is refused by a version that does not take it. A chain that names one is refused when
// it is compiled. What it says has words of the other alone, and few.
func (m Metadata) StandsIn(other Metadata) error {
	if len(m.Inputs) != len(other.Inputs) {
		return fault.New(fault.Invalid, "it has %d inputs instead of %d", len(m.Inputs), len(other.Inputs))
	}
	for _, theirs := range other.Inputs {
		i := slices.IndexFunc(m.Inputs, func(s Spec) bool { return s.Name == theirs.Name })
		if i < 0 || !m.Inputs[i].covers(theirs) {
			return fault.New(fault.Invalid, "it has no input %.100q (%s %v)", theirs.Name, theirs.Datatype, theirs.Shape)
		}
	}
	for _, theirs := range other.Outputs {
		if !slices.ContainsFunc(m.Outputs, func(s Spec) bool { return s.Name == theirs.Name && s.Datatype == theirs.Datatype }) {
			return fault.New(fault.Invalid, "it has no output %.100q (%s)", theirs.Name, theirs.Datatype)
		}
	}
	return nil
}

// covers reports whether each tensor that the other accepts is accepted.
func (s Spec) covers(other Spec) bool {
	if s.Datatype != other.Datatype {
		return false
	}
	if s.Shape == nil {
		return true
	}
	if other.Shape == nil || len(s.Shape) != len(other.Shape) {
		return false
	}
	for i, d := range s.Shape {
		if d >= 0 && d != other.Shape[i] {
			return false
		}
	}
	return true
}

func names(specs []Spec) string {
	const most = 20
	words := make([]string, 0, most+1)
	for _, s := range specs[:min(len(specs), most)] {
		words = append(words, fmt.Sprintf("%q (%s %v)", s.Name, s.Datatype, s.Shape))
	}
	if more := len(specs) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// Options tune a session.
type Options struct {
	Threads int // inside one run; 0 is 1: many requests run side by side
	// InProcess runs an ONNX model in this process. Without it the model has a process
	// of its own.
	InProcess bool
	Memory    resource.Bytes // that a process of its own may use; 0: by the model's size
	Remote    Remote         // empty: here
	// Again reads the model's file once more, for a process that is started again;
	// nil: the file is kept.
	Again func(context.Context) ([]byte, error) `json:"-"`
	// Time is how long the model may take to load, then and again; 0 is
	// DefaultTime.
	Time time.Duration
	// Died is notified of each death of a process of a session, also of one that was started
	// again and had not loaded the model yet. It reports whether to start another one; nil:
	// always. A first process that dies is the error of the load, with DeathError.
	Died func(Death) (again bool) `json:"-"`
	// Python is how a model that is no ONNX file is run; nil: it is one.
	Python *Python `json:"-"`
}

// Python is how a model runs that is Python: in processes of its own, in an
// environment that does not change.
type Python struct {
	Environment string            // its name and digest
	Interpreter string            // absolute path
	Mounts      []string          // what the environment consists of
	Env         map[string]string // variables of it
	Processes   int               // that share the requests, one at a time each; 0 is 1
	Size        int64             // of the model's files together
	// Write writes the files below a directory that is there, each verified while it
	// is read.
	Write func(ctx context.Context, dir string) error
	Dir   string // where they are; of the runtime
}

// DefaultTime is how long a model may take to load.
const DefaultTime = 2 * time.Minute

// Late is the error of a load that took longer than it may.
func Late(limit time.Duration) *fault.Error {
	return fault.New(fault.Timeout, "loading the model exceeded %s", limit)
}

// Remote names a model on another server.
type Remote struct {
	Server  string // one that the operator named
	Model   string
	Version string // empty: the server has none
}

// Distant is a Session whose model is on another server.
type Distant interface {
	Restarting
	// MaxRows is how many rows a run may have; 0: as many as are wanted.
	MaxRows() int
}

// Runtime loads models. Safe for concurrent use. Load's error is fault.Invalid
// when the model is at fault.
type Runtime interface {
	Load(ctx context.Context, model []byte, o Options) (Session, error)
}

// Narrow is a Session that takes so many runs at the same time, and lets more wait.
type Narrow interface {
	Session
	Runs() int
}

// Spread is a Session of which some runs are on other machines, whose cores are not
// those that all models share here. Infer runs here.
type Spread interface {
	Session
	// RemoteRuns is how many runs the other machines take at a time, now.
	RemoteRuns() int
	// InferRemote is Infer on one of them; here when none is left.
	InferRemote(ctx context.Context, inputs []Tensor, outputs []string) ([]Tensor, error)
}

// ErrEnded is in the chain of the error of a run that its process did not survive,
// for whatever reason but one: a process that is ended because it does not end another
// run, or takes nothing, has not ended of those that it had.
var ErrEnded = errors.New("the process exited")

// LingersError is in the chain of the error of a run that goes on although its context is
// over: it uses its cores until Over is closed.
type LingersError struct{ Over <-chan struct{} }

func (LingersError) Error() string { return "the run is still in progress" }

// Over is closed when the run that failed so uses no core any more; nil: it is over.
func Over(err error) <-chan struct{} {
	l, _ := errors.AsType[LingersError](err)
	return l.Over
}

// Session is a loaded model. Infer is safe for concurrent use; inputs have
// passed Metadata.Check; outputs names those wanted, in order, and is never
// empty. Close waits for running calls; no Infer may begin after it.
//
// Infer's errors: fault.Invalid when the input is at fault, fault.Exhausted when
// memory is, fault.Timeout when ctx is over, with LingersError where the run is not;
// fault.Unavailable when the process that it was in ended, with ErrEnded when the run
// may have ended it. Elements of BYTES reach the model whole or are refused.
type Session interface {
	Metadata() Metadata
	Infer(ctx context.Context, inputs []Tensor, outputs []string) ([]Tensor, error)
	Close() error
}

// Restarting is a Session whose model may be unavailable for a while.
type Restarting interface {
	Session
	// Unavailable is why it does not answer at the moment; nil when it does.
	Unavailable() error
}

// Unavailable is why a session does not answer at the moment; nil when it does.
func Unavailable(s Session) error {
	if r, ok := s.(Restarting); ok {
		return r.Unavailable()
	}
	return nil
}
