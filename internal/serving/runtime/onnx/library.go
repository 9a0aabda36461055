package onnx

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "ort.h"
*/
import "C"

import (
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// This file is the only one that talks to the library; see ort.h.

// The library can be opened once in a process.
var opened struct {
	sync.Mutex
	done    bool
	version string
	err     error
}

// Missing is the error of a library that is not there.
func Missing(library string) error {
	return fault.New(fault.Unavailable, "the ONNX Runtime library is not at %q", library).
		WithHint("Run `make deps`, or set FALAJ_ORT_LIB to libonnxruntime.so.")
}

func (r *Runtime) open() error {
	opened.Lock()
	defer opened.Unlock()
	if opened.done {
		return opened.err
	}
	if _, err := os.Stat(r.library); err != nil {
		return Missing(r.library)
	}
	opened.done = true
	path := C.CString(r.library)
	defer C.free(unsafe.Pointer(path))
	var version *C.char
	if f := C.ort_open(path, C.int(r.cores), C.size_t(r.memory), &version); f.message != nil { //nolint:gocritic // dupSubExpr in what cgo makes of it
		opened.err = fault.New(fault.Unavailable, "load ONNX Runtime from %q: %s", r.library, C.GoString(f.message))
		C.ort_forgive(f)
		return opened.err
	}
	opened.version = C.GoString(version)
	return nil
}

// failed makes an error of the library's and frees it.
func failed(f C.failure) *failure {
	if f.message == nil {
		return nil
	}
	defer C.ort_forgive(f)
	return &failure{text: readable(C.GoString(f.message))}
}

// failure is an error of the library.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// The library's messages name the lines and functions that they come from, which
// is no business of who asks.
var (
	source = regexp.MustCompile(`\S+\.(?:cc|h|hpp|cpp|c|cu|cuh):\d+ (?:(?:[^()]*::)?(?:[\w:~<>]*<lambda\(\)>|[\w~<>]*(?:operator)?\((?:[^()]|\([^()]*\))*\))(?: const)?(?: \[[^\]]*\])? |[\w:~<>]+ )?`)
	within = regexp.MustCompile(`\S*(?:/onnxruntime|onnxruntime::)\S*`)
	spaces = regexp.MustCompile(`\s+`)
)

func readable(message string) string {
	message = within.ReplaceAllString(source.ReplaceAllString(message, ""), "…")
	return strings.ToValidUTF8(strings.TrimSpace(spaces.ReplaceAllString(message, " ")), "?")
}

// native is a session of the library.
type native struct {
	session *C.OrtSession
	names   []*C.char // of the inputs, the optional ones and the outputs
	inputs  int       // that each run has
	most    int       // that a run may have
	outputs int

	mu   sync.Mutex
	idle []*call
}

// settings of a session.
type settings struct {
	threads int // 0: the pool of the process
	arena   bool
	entries map[string]string
}

func loadNative(file []byte, meta serving.Metadata, s settings) (*native, *failure) {
	how := C.settings{threads: C.int(s.threads), entries: C.size_t(len(s.entries))}
	if s.arena {
		how.arena = 1
	}
	size := C.size_t(unsafe.Sizeof(uintptr(0)))
	how.keys = (**C.char)(C.calloc(how.entries+1, size))
	how.values = (**C.char)(C.calloc(how.entries+1, size))
	keys, values := unsafe.Slice(how.keys, len(s.entries)), unsafe.Slice(how.values, len(s.entries))
	defer func() {
		for i := range keys {
			C.free(unsafe.Pointer(keys[i]))
			C.free(unsafe.Pointer(values[i]))
		}
		C.free(unsafe.Pointer(how.keys))
		C.free(unsafe.Pointer(how.values))
	}()
	i := 0
	for k, v := range s.entries {
		keys[i], values[i] = C.CString(k), C.CString(v)
		i++
	}
	m := &native{inputs: len(meta.Inputs), most: len(meta.Inputs) + len(meta.Optional), outputs: len(meta.Outputs)}
	if f := C.ort_load(unsafe.Pointer(unsafe.SliceData(file)), C.size_t(len(file)), &how, &m.session); f.message != nil { //nolint:gocritic // dupSubExpr in what cgo makes of it
		return nil, failed(f)
	}
	for _, s := range slices.Concat(meta.Inputs, meta.Optional, meta.Outputs) {
		m.names = append(m.names, C.CString(s.Name))
	}
	return m, nil
}

// unload frees everything; no run may be under way.
func (m *native) unload() {
	C.ort_unload(m.session)
	for _, c := range m.idle {
		C.ort_free_call(c.c)
	}
	for _, n := range m.names {
		C.free(unsafe.Pointer(n))
	}
}

// call is the memory of one run, and what of ours the library sees meanwhile.
type call struct {
	c       *C.call
	pins    runtime.Pinner
	filled  int        // bytes of given_small
	given   int        // inputs of each run
	inputs  []C.tensor // optional ones after the others
	outputs []C.tensor
	names   []*C.char // of the outputs wanted
	shrinks bool      // its runs give back what the arena does not need
	watched watched
}

// begin takes an idle call, or makes one.
func (m *native) begin() (*call, error) {
	m.mu.Lock()
	if n := len(m.idle); n > 0 {
		c := m.idle[n-1]
		m.idle = m.idle[:n-1]
		m.mu.Unlock()
		return c, nil
	}
	m.mu.Unlock()
	c := &call{c: C.ort_new_call(C.size_t(m.most), C.size_t(m.outputs)), given: m.inputs}
	if c.c == nil {
		return nil, fault.New(fault.Exhausted, "no memory to run the model")
	}
	c.inputs, c.outputs = unsafe.Slice(c.c.input, m.most), unsafe.Slice(c.c.output, m.outputs)
	c.names = unsafe.Slice(c.c.output_names, m.outputs)
	c.c.inputs = C.size_t(m.inputs)
	copy(unsafe.Slice(c.c.input_names, m.most), m.names[:m.inputs])
	return c, nil
}

// end frees what the run left and keeps the call for another.
func (m *native) end(c *call) {
	c.empty()
	m.mu.Lock()
	m.idle = append(m.idle, c)
	m.mu.Unlock()
}

func (c *call) empty() {
	if c.c.released == 0 {
		C.ort_release(c.c)
	}
	for i := range c.inputs {
		c.inputs[i].data, c.inputs[i].at, c.inputs[i].size = nil, nil, 0
	}
	c.c.inputs = C.size_t(c.given)
	c.filled, c.c.released = 0, 0
	c.pins.Unpin()
}

func (m *native) run(c *call, wanted []int) *failure {
	for i, w := range wanted {
		c.names[i] = m.names[m.most+w]
	}
	c.c.wanted = C.size_t(len(wanted))
	f := C.ort_run(m.session, c.c)
	if f.message == nil {
		return nil
	}
	return failed(f)
}

// shrink says whether the call's next runs give back what the arena does not need.
func (c *call) shrink(on bool) {
	if c.shrinks == on {
		return
	}
	to := C.int(0)
	if on {
		to = 1
	}
	if failed(C.ort_shrink(c.c, to)) == nil {
		c.shrinks = on
	}
}

func (c *call) terminate() { C.ort_terminate(c.c) }
func (c *call) resume()    { C.ort_resume(c.c) }

// also gives the run an optional input, by its position among the model's names.
func (c *call) also(m *native, name int, t serving.Tensor) error {
	i := int(c.c.inputs)
	unsafe.Slice(c.c.input_names, m.most)[i] = m.names[name]
	c.c.inputs++ // what is given is released with the others, whatever follows
	return c.give(i, t)
}

// nothing is where the elements of empty tensors are.
var nothing [8]byte

// give puts a tensor where the run finds it. Its elements are not copied, but
// those of strings, and stay where they are until the run ends.
func (c *call) give(i int, t serving.Tensor) error {
	if len(t.Shape) > C.max_rank {
		return fault.New(fault.Invalid, "input %q has %d dimensions; it may have %d", t.Name, len(t.Shape), C.max_rank)
	}
	want, err := serving.Elements(t.Shape)
	if err != nil {
		return fault.Wrap(err, "input %q", t.Name)
	}
	to := &c.inputs[i]
	var have int
	var fits bool
	switch data := t.Data.(type) {
	case []string:
		have, fits = c.words(to, data), t.Datatype == serving.Bytes
	case []bool:
		have, fits = pin(c, to, data), t.Datatype == serving.Bool
	case []uint8:
		have, fits = pin(c, to, data), t.Datatype == serving.Uint8
	case []uint16:
		have, fits = pin(c, to, data), t.Datatype == serving.Uint16 || t.Datatype == serving.FP16 || t.Datatype == serving.BF16
	case []uint32:
		have, fits = pin(c, to, data), t.Datatype == serving.Uint32
	case []uint64:
		have, fits = pin(c, to, data), t.Datatype == serving.Uint64
	case []int8:
		have, fits = pin(c, to, data), t.Datatype == serving.Int8
	case []int16:
		have, fits = pin(c, to, data), t.Datatype == serving.Int16
	case []int32:
		have, fits = pin(c, to, data), t.Datatype == serving.Int32
	case []int64:
		have, fits = pin(c, to, data), t.Datatype == serving.Int64
	case []float32:
		have, fits = pin(c, to, data), t.Datatype == serving.FP32
	case []float64:
		have, fits = pin(c, to, data), t.Datatype == serving.FP64
	}
	if !fits || have != want {
		return fault.New(fault.Invalid, "input %q of datatype %s and shape %v holds a %T of %d elements", t.Name, t.Datatype, t.Shape, t.Data, have)
	}
	to._type, to.rank = C.int(slices.Index(datatypes[:], t.Datatype)), C.int(len(t.Shape))
	for d, n := range t.Shape {
		to.shape[d] = C.int64_t(n)
	}
	return nil
}

// pin lends the library the memory of a slice until the call ends, or a copy of a small one.
func pin[T any](c *call, to *C.tensor, data []T) int {
	size := len(data) * int(unsafe.Sizeof(*new(T)))
	switch at := unsafe.Pointer(unsafe.SliceData(data)); {
	case size == 0:
		to.data = unsafe.Pointer(&nothing)
	case size <= C.small-c.filled:
		to.data = unsafe.Pointer(&c.c.given_small[c.filled])
		copy(unsafe.Slice((*byte)(to.data), size), unsafe.Slice((*byte)(at), size))
		c.filled += (size + 63) &^ 63
	default:
		c.pins.Pin(at)
		to.data = at
	}
	to.size, to.count = C.size_t(size), C.size_t(len(data))
	return len(data)
}

// words puts strings one after another, where the library copies them from.
func (c *call) words(to *C.tensor, data []string) int {
	size := 0
	for _, s := range data {
		size += len(s)
	}
	bytes, at := make([]byte, 0, size), make([]C.size_t, len(data))
	for i, s := range data {
		at[i] = C.size_t(len(bytes))
		bytes = append(bytes, s...)
	}
	pin(c, to, bytes)
	to.count, to.at = C.size_t(len(data)), nil
	if len(at) > 0 {
		c.pins.Pin(&at[0])
		to.at = &at[0]
	}
	return len(data)
}

// bytes is how many bytes of numbers the inputs have, and of strings.
func (c *call) bytes() (n int64) {
	for i := range c.inputs {
		n += int64(c.inputs[i].size)
	}
	return n
}

// room takes what an output takes in Go from the bytes that are left; it is an error
// when they are too few.
func (c *call) room(i int, left int64) (int64, error) {
	from := &c.outputs[i]
	count, size := int64(from.count), int64(1)
	switch d := datatypeOf(uint64(from._type)); d { //nolint:exhaustive // the others have one byte
	case serving.Bytes:
		size = int64(unsafe.Sizeof(""))
		left -= int64(from.size)
	case serving.Int64, serving.Uint64, serving.FP64:
		size = 8
	case serving.Int32, serving.Uint32, serving.FP32:
		size = 4
	case serving.Int16, serving.Uint16, serving.FP16, serving.BF16:
		size = 2
	}
	if left < 0 || count > left/size {
		return 0, serving.TooLong()
	}
	return left - count*size, nil
}

// take copies an output out of the library's memory.
func (c *call) take(i int, name string) (serving.Tensor, error) {
	from := &c.outputs[i]
	t := serving.Tensor{Name: name, Shape: make([]int64, from.rank)}
	for d := range t.Shape {
		t.Shape[d] = int64(from.shape[d])
	}
	if from.count > serving.MaxElements {
		return t, fault.New(fault.TooLarge, "output %q has %d elements; an answer may have %d", name, uint64(from.count), serving.MaxElements).WithHint("Send fewer rows at once.")
	}
	if t.Datatype = datatypeOf(uint64(from._type)); t.Datatype == "" {
		return t, fault.New(fault.Unsupported, "output %q is of element type %d, which the Open Inference Protocol has no form for", name, int(from._type))
	}
	switch t.Datatype {
	case serving.Bytes:
		t.Data = texts(from)
	case serving.Bool:
		t.Data = truths(from)
	case serving.Uint8:
		t.Data = copied[uint8](from)
	case serving.Uint16, serving.FP16, serving.BF16:
		t.Data = copied[uint16](from)
	case serving.Uint32:
		t.Data = copied[uint32](from)
	case serving.Uint64:
		t.Data = copied[uint64](from)
	case serving.Int8:
		t.Data = copied[int8](from)
	case serving.Int16:
		t.Data = copied[int16](from)
	case serving.Int32:
		t.Data = copied[int32](from)
	case serving.Int64:
		t.Data = copied[int64](from)
	case serving.FP32:
		t.Data = copied[float32](from)
	case serving.FP64:
		t.Data = copied[float64](from)
	}
	return t, nil
}

func copied[T any](t *C.tensor) []T {
	return append(make([]T, 0, t.count), unsafe.Slice((*T)(t.data), t.count)...)
}

// truths are bools that Go can hold: a model's file may have other bytes.
func truths(t *C.tensor) []bool {
	out := make([]bool, t.count)
	for i, b := range unsafe.Slice((*byte)(t.data), t.count) {
		out[i] = b != 0
	}
	return out
}

func texts(t *C.tensor) []string {
	out := make([]string, t.count)
	if t.count == 0 {
		return out
	}
	all := string(unsafe.Slice((*byte)(t.data), t.size))
	at := unsafe.Slice(t.at, t.count)
	for i := range out {
		end := t.size
		if i+1 < len(at) {
			end = at[i+1]
		}
		out[i] = all[at[i]:end]
	}
	return out
}
