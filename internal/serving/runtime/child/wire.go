package child

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// A message is a byte that says what it is and then its parts, numbers in the
// machine's order. Both ends are of the same build and machine.
const (
	kindLanes  = 'S' // how many, and of how many bytes: they are in descriptor 3. Before a load, or not at all
	kindLoad   = 'L' // options, the model
	kindLoaded = 'M' // its metadata
	kindInfer  = 'I' // id, outputs wanted, inputs
	kindCancel = 'C' // id
	kindAnswer = 'A' // id, outputs
	kindFault  = 'F' // id (0: of the load), kind, message, hint, data
	kindPing   = 'P' // 0; its answer is the same
	kindLeave  = 'E' // 0: of a process that is to end: it takes no more, and goes on with what it has
)

// Limits of what is read.
const (
	maxText    = 8 << 10
	maxRequest = 1 << 40 // bytes of a request's tensors, which the server has checked
	step       = 1 << 20 // bytes that are made room for before they came
)

// writer keeps its first error for flush.
type writer struct {
	w   *bufio.Writer
	err error
}

func newWriter(w io.Writer) *writer { return &writer{w: bufio.NewWriterSize(w, 64<<10)} }

func (w *writer) bytes(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
}

func (w *writer) kind(k byte) { w.bytes([]byte{k}) }

func (w *writer) truth(v bool) {
	if v {
		w.number(1)
		return
	}
	w.number(0)
}

func (w *writer) number(v uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	w.bytes(b[:])
}

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	if w.err == nil {
		_, w.err = w.w.WriteString(s)
	}
}

func (w *writer) flush() error {
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

func (w *writer) lanes(n, size int) {
	w.kind(kindLanes)
	w.number(uint64(n))    //nolint:gosec // G115: a few
	w.number(uint64(size)) //nolint:gosec // G115: not negative
}

func (w *writer) load(model []byte, o runtime.Options) {
	w.kind(kindLoad)
	w.document(o)
	w.number(uint64(len(model)))
	w.bytes(model)
}

func (w *writer) loaded(m runtime.Metadata) {
	w.kind(kindLoaded)
	w.text(m.Platform)
	for _, specs := range [][]runtime.Spec{m.Inputs, m.Outputs, m.Optional} {
		w.number(uint64(len(specs)))
		for _, s := range specs {
			w.spec(s)
		}
	}
}

// spec writes a spec; its rank is one more than it is, and 0 for any.
func (w *writer) spec(s runtime.Spec) {
	w.text(s.Name)
	w.datatype(s.Datatype)
	w.truth(s.Binary)
	w.number(uint64(len(s.Columns)))
	for _, name := range s.Columns {
		w.text(name)
	}
	if s.Shape == nil {
		w.number(0)
		return
	}
	w.number(uint64(len(s.Shape)) + 1)
	for _, d := range s.Shape {
		w.number(uint64(d + 1)) //nolint:gosec // G115: -1 or more
	}
}

func (w *writer) datatype(d runtime.Datatype) {
	w.kind(byte(slices.Index(runtime.Datatypes, d))) //nolint:gosec // G115: an index into fourteen
}

// document writes a struct as JSON: its fields are called the same at both ends.
func (w *writer) document(v any) {
	b, err := json.Marshal(v)
	w.err = errors.Join(w.err, err)
	w.text(string(b))
}

func (w *writer) infer(id uint64, inputs []runtime.Tensor, outputs []runtime.Spec) {
	if w.err = sound(inputs); w.err != nil {
		return
	}
	w.kind(kindInfer)
	w.number(id)
	w.number(uint64(len(outputs)))
	for _, o := range outputs {
		w.text(o.Name)
	}
	w.tensors(inputs)
}

func (w *writer) cancel(id uint64) {
	w.kind(kindCancel)
	w.number(id)
}

// signal writes a message that is of no run.
func (w *writer) signal(kind byte) {
	w.kind(kind)
	w.number(0)
}

func (w *writer) answer(id uint64, outputs []runtime.Tensor) {
	w.kind(kindAnswer)
	w.number(id)
	w.tensors(outputs)
}

func (w *writer) fault(id uint64, err error) {
	w.kind(kindFault)
	w.number(id)
	for _, s := range []string{fault.KindOf(err).String(), err.Error(), fault.HintOf(err), fault.DataOf(err)} {
		w.text(s[:min(len(s), maxText)])
	}
}

// sound refuses tensors that cannot be written: nothing of a message may be on
// the pipe before that is known.
func sound(tensors []runtime.Tensor) error {
	for _, t := range tensors {
		n, err := runtime.Elements(t.Shape)
		if err != nil {
			return fault.Wrap(err, "tensor %q", t.Name)
		}
		have, ok := elements(t.Data)
		if !ok || have != n || len(t.Shape) > runtime.MaxRank || len(t.Name) > runtime.MaxName || reflect.TypeOf(t.Data) != reflect.TypeOf(runtime.Zeros(t.Datatype, 0)) {
			return fault.New(fault.Invalid, "tensor %.100q of datatype %s and shape %v holds a %T of %d elements", t.Name, t.Datatype, t.Shape, t.Data, have)
		}
	}
	return nil
}

// size is how many bytes tensors are in memory, as counts.
func size(tensors []runtime.Tensor) (n int) {
	for _, t := range tensors {
		if words, ok := t.Data.([]string); ok {
			n += len(words) * word
			for _, s := range words {
				n += len(s)
			}
			continue
		}
		b, _ := view(t.Data)
		n += len(b)
	}
	return n
}

// word is what a string takes beside its bytes.
const word = int(unsafe.Sizeof(""))

func elements(data any) (int, bool) {
	if s, ok := data.([]string); ok {
		return len(s), true
	}
	b, size := view(data)
	if size == 0 {
		return 0, false
	}
	return len(b) / size, true
}

func (w *writer) tensors(all []runtime.Tensor) {
	w.number(uint64(len(all)))
	for _, t := range all {
		w.text(t.Name)
		w.datatype(t.Datatype)
		w.number(uint64(len(t.Shape)))
		for _, d := range t.Shape {
			w.number(uint64(d)) //nolint:gosec // G115: not negative
		}
		if words, ok := t.Data.([]string); ok {
			for _, s := range words {
				w.text(s)
			}
			continue
		}
		b, _ := view(t.Data)
		w.bytes(b)
	}
}

// view is the memory of a slice of numbers and the size of one.
func view(data any) (memory []byte, size int) {
	switch d := data.(type) {
	case []bool:
		return viewOf(d)
	case []uint8:
		return viewOf(d)
	case []uint16:
		return viewOf(d)
	case []uint32:
		return viewOf(d)
	case []uint64:
		return viewOf(d)
	case []int8:
		return viewOf(d)
	case []int16:
		return viewOf(d)
	case []int32:
		return viewOf(d)
	case []int64:
		return viewOf(d)
	case []float32:
		return viewOf(d)
	case []float64:
		return viewOf(d)
	}
	return nil, 0
}

func viewOf[T any](d []T) ([]byte, int) {
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(d))), len(d)*size), size //nolint:gosec // G103: numbers, and as long as they are
}

// reader reads messages. Its errors are of the pipe or of the protocol, and have
// nothing of what was read: a process has seen rows.
type reader struct{ r *bufio.Reader }

func newReader(r io.Reader) *reader { return &reader{bufio.NewReaderSize(r, 64<<10)} }

func (r *reader) number(most uint64) (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return 0, err
	}
	v := binary.NativeEndian.Uint64(b[:])
	if v > most {
		return 0, fmt.Errorf("a number where at most %d may be", most)
	}
	return v, nil
}

// bytes reads n bytes; room is made as they come.
func (r *reader) bytes(n int) ([]byte, error) {
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		at := len(b)
		b = slices.Grow(b, min(n-at, max(step, at)))[:min(n, at+max(step, at))]
		if _, err := io.ReadFull(r.r, b[at:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (r *reader) text(most int) (string, error) {
	n, err := r.number(uint64(most)) //nolint:gosec // G115: a limit
	if err != nil {
		return "", err
	}
	b, err := r.bytes(int(n)) //nolint:gosec // G115: below the limit
	return string(b), err
}

// document reads what a writer's document wrote.
func (r *reader) document(most int, v any) error {
	b, err := r.text(most)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(b), v)
}

// loaded reads the answer to a load.
func (r *reader) loaded() (m runtime.Metadata, err error) {
	kind, err := r.r.ReadByte()
	if err != nil {
		return m, err
	}
	switch kind {
	case kindLoaded:
		if m.Platform, err = r.text(maxText); err != nil {
			return m, err
		}
		if m.Inputs, err = r.specs(); err != nil {
			return m, err
		}
		if m.Outputs, err = r.specs(); err != nil {
			return m, err
		}
		if m.Optional, err = r.specs(); err != nil {
			return m, err
		}
		return m, m.Validate()
	case kindFault:
		if _, err := r.number(0); err != nil {
			return m, err
		}
		said, err := r.fault()
		if err != nil {
			return m, err
		}
		return m, said
	}
	return m, errors.New("another message where the model's metadata belongs")
}

func (r *reader) specs() ([]runtime.Spec, error) {
	n, err := r.number(runtime.MaxPorts)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]runtime.Spec, n)
	for i := range out {
		s := &out[i]
		if s.Name, err = r.text(runtime.MaxName); err != nil {
			return nil, err
		}
		if s.Datatype, err = r.datatype(); err != nil {
			return nil, err
		}
		binary, err := r.number(1)
		if err != nil {
			return nil, err
		}
		s.Binary = binary == 1
		columns, err := r.number(runtime.MaxColumns)
		if err != nil {
			return nil, err
		}
		for range columns {
			name, err := r.text(runtime.MaxName)
			if err != nil {
				return nil, err
			}
			s.Columns = append(s.Columns, name)
		}
		rank, err := r.number(runtime.MaxRank + 1)
		if err != nil {
			return nil, err
		}
		if rank == 0 {
			continue
		}
		s.Shape = make([]int64, rank-1)
		for d := range s.Shape {
			n, err := r.number(1 << 62)
			if err != nil {
				return nil, err
			}
			s.Shape[d] = int64(n) - 1 //nolint:gosec // G115: below 1<<62
		}
	}
	return out, nil
}

func (r *reader) datatype() (runtime.Datatype, error) {
	kind, err := r.r.ReadByte()
	if err != nil {
		return "", err
	}
	if int(kind) >= len(runtime.Datatypes) {
		return "", errors.New("a datatype that there is not")
	}
	return runtime.Datatypes[kind], nil
}

// head reads what an answer begins with: its kind, and to which question it is.
func (r *reader) head() (kind byte, id uint64, err error) {
	if kind, err = r.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	most := uint64(1 << 63)
	switch kind {
	case kindAnswer, kindFault:
	case kindPing, kindLeave:
		most = 0
	default:
		return 0, 0, errors.New("another message where an answer belongs")
	}
	id, err = r.number(most)
	return kind, id, err
}

// fault reads a fault: a child says nothing of permissions, or of what is where.
func (r *reader) fault() (said *fault.Error, err error) {
	var parts [4]string
	for i := range parts {
		if parts[i], err = r.text(maxText); err != nil {
			return nil, err
		}
		parts[i] = strings.ToValidUTF8(parts[i], "?")
	}
	kind := fault.ParseKind(parts[0])
	switch kind {
	case fault.Invalid, fault.Exhausted, fault.TooLarge, fault.Unsupported, fault.Timeout, fault.Unavailable:
	default:
		kind = fault.Internal
	}
	return &fault.Error{Kind: kind, Message: parts[1], Hint: parts[2], Data: parts[3]}, nil
}

// tensors reads tensors of at most so many bytes together.
func (r *reader) tensors(most int) ([]runtime.Tensor, error) {
	n, err := r.number(runtime.MaxPorts)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Tensor, n)
	for i := range out {
		if out[i], err = r.tensor(&most); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// outputs reads the tensors that were asked for, and no others.
func (r *reader) outputs(asked []runtime.Spec) ([]runtime.Tensor, error) {
	n, err := r.number(uint64(len(asked)))
	if err != nil {
		return nil, err
	}
	if int(n) != len(asked) { //nolint:gosec // G115: at most that
		return nil, fmt.Errorf("%d outputs for %d", n, len(asked))
	}
	out := make([]runtime.Tensor, n)
	left := runtime.MaxAnswer
	for i, spec := range asked {
		if out[i], err = r.tensor(&left, spec); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tensor reads a tensor, which is of a spec where one is given, and takes its
// bytes from those that are left.
func (r *reader) tensor(left *int, asked ...runtime.Spec) (t runtime.Tensor, err error) {
	if t.Name, err = r.text(runtime.MaxName); err != nil {
		return t, err
	}
	if t.Datatype, err = r.datatype(); err != nil {
		return t, err
	}
	for _, spec := range asked {
		if t.Name != spec.Name || t.Datatype != spec.Datatype {
			return t, fmt.Errorf("another output where %.100q of %s belongs", spec.Name, spec.Datatype)
		}
	}
	rank, err := r.number(runtime.MaxRank)
	if err != nil {
		return t, err
	}
	t.Shape = make([]int64, rank)
	for i := range t.Shape {
		d, err := r.number(1 << 62)
		if err != nil {
			return t, err
		}
		t.Shape[i] = int64(d) //nolint:gosec // G115: below 1<<62
	}
	n, err := runtime.Elements(t.Shape)
	if err != nil {
		return t, errors.New("a tensor of too many elements")
	}
	t.Data, err = r.data(t.Datatype, n, left)
	return t, err
}

// data reads the elements of a tensor: small ones into their place, of large
// ones only as many as there came.
func (r *reader) data(d runtime.Datatype, n int, left *int) (any, error) {
	size := word
	if d != runtime.Bytes {
		_, size = view(runtime.Zeros(d, 0))
	}
	if *left -= n * size; *left < 0 {
		return nil, errTooLarge
	}
	if d == runtime.Bytes {
		words := make([]string, 0, min(n, step/word))
		for range n {
			w, err := r.text(*left)
			if err != nil {
				return nil, err
			}
			*left -= len(w)
			words = append(words, w)
		}
		return words, nil
	}
	var all []byte
	if n*size > step { // it is made room for as it comes
		var err error
		if all, err = r.bytes(n * size); err != nil {
			return nil, err
		}
	}
	data := runtime.Zeros(d, n)
	to, _ := view(data)
	if all != nil {
		copy(to, all)
		return data, truth(data)
	}
	_, err := io.ReadFull(r.r, to)
	return data, errors.Join(err, truth(data))
}

var errTooLarge = errors.New("tensors of more bytes than there may be")

// truth refuses bools that are neither.
func truth(data any) error {
	if b, ok := data.([]bool); ok {
		memory, _ := view(b)
		for _, v := range memory {
			if v > 1 {
				return errors.New("a bool that is neither")
			}
		}
	}
	return nil
}
