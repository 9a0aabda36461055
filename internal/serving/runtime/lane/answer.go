package lane

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Place is a lane on the side that answers. What it reads there the server has written,
// and is trusted.
type Place struct {
	mem  []byte
	turn uint32
	stop atomic.Bool
}

// Open maps the lanes that a server made. The file is closed.
func Open(file *os.File, n, size int) ([]*Place, error) {
	defer file.Close()
	if n < 1 || n > MaxLanes || size < os.Getpagesize() || size > maxSize {
		return nil, fmt.Errorf("there cannot be %d lanes of %d bytes", n, size)
	}
	var about unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &about); err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if about.Size != int64(n)*int64(size) {
		return nil, fmt.Errorf("shared memory of %d bytes where %d lanes of %d belong", about.Size, n, size)
	}
	all, err := mapped(int(file.Fd()), n*size)
	if err != nil {
		return nil, err
	}
	places := make([]*Place, n)
	for i := range places {
		places[i] = &Place{mem: all[i*size : (i+1)*size : (i+1)*size]}
	}
	return places, nil
}

// Native is a runtime.Session that answers lanes by itself, without this process's
// scheduler between a question and its answer.
type Native interface {
	runtime.Session
	Lane(*Place) (Answerer, error)
}

// Answerer answers what comes on one lane.
type Answerer interface {
	// Answer answers questions until the place is stopped (ok is false), or until a run
	// has something that does not go through the lane: an error, or outputs that are too
	// large. Its caller tells that to who asked, and then calls Place.Elsewhere.
	Answer() (id uint64, out []runtime.Tensor, err error, ok bool)
	// Cancel breaks off the run of that id, now or when it begins. It may be called while
	// Answer goes on.
	Cancel(id uint64)
	// Stop ends the waiting for questions.
	Stop()
	// Free ends it. Answer is over.
	Free()
}

// Memory is where the lane lies, for who answers it in another language.
func (p *Place) Memory() []byte { return p.mem }

// Stop ends the waiting for questions.
func (p *Place) Stop() {
	p.stop.Store(true)
	asked := word(p.mem, askedAt)
	atomic.AddUint32(asked, 1<<31) // the server only writes it
	wake(asked)
}

// Question is what is asked. Its inputs lie in the lane, those of strings but for their
// bytes: they are there until it is answered.
type Question struct {
	ID     uint64
	Inputs []runtime.Tensor
	Wanted []string

	answer int
}

// Next waits for a question; ok is false when it was stopped.
func (p *Place) Next(meta runtime.Metadata) (q Question, ok bool) {
	asked := word(p.mem, askedAt)
	for !p.stop.Load() && atomic.LoadUint32(asked) == p.turn {
		wait(asked, p.turn, 0)
	}
	if p.stop.Load() {
		return q, false
	}
	p.turn = atomic.LoadUint32(asked)
	head := p.mem[questionAt:]
	q.ID, q.answer = get64(head, 0), int(get64(head, 24)) //nolint:gosec // G115: within the lane
	inputs, wanted := int(get32(head, 12)), int(get32(head, 16))
	for i := range wanted {
		q.Wanted = append(q.Wanted, meta.Outputs[get32(head, headSize+4*i)].Name)
	}
	at := questionAt + headSize + (4*wanted+7)&^7
	for i := range inputs {
		q.Inputs = append(q.Inputs, p.tensor(p.mem[at+i*TensorSize:], meta.Inputs[i].Name))
	}
	return q, true
}

// tensor is one of the server's.
func (p *Place) tensor(d []byte, name string) runtime.Tensor {
	t := runtime.Tensor{Name: name, Datatype: Datatypes[get32(d, 0)], Shape: make([]int64, get32(d, 4))}
	for i := range t.Shape {
		t.Shape[i] = int64(get64(d, 32+8*i)) //nolint:gosec // G115: the server's
	}
	at, size, n := get64(d, 8), get64(d, 16), int(get64(d, 24)) //nolint:gosec // G115: the server's
	from := p.mem[at : at+size]
	switch t.Datatype {
	case runtime.Bytes:
		t.Data, _ = texts(from, n)
	case runtime.Bool:
		t.Data = of[bool](from, n)
	case runtime.Uint8:
		t.Data = of[uint8](from, n)
	case runtime.Uint16, runtime.FP16, runtime.BF16:
		t.Data = of[uint16](from, n)
	case runtime.Uint32:
		t.Data = of[uint32](from, n)
	case runtime.Uint64:
		t.Data = of[uint64](from, n)
	case runtime.Int8:
		t.Data = of[int8](from, n)
	case runtime.Int16:
		t.Data = of[int16](from, n)
	case runtime.Int32:
		t.Data = of[int32](from, n)
	case runtime.Int64:
		t.Data = of[int64](from, n)
	case runtime.FP32:
		t.Data = of[float32](from, n)
	case runtime.FP64:
		t.Data = of[float64](from, n)
	}
	return t
}

// of are numbers where they lie.
func of[T any](from []byte, n int) []T {
	if n == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(from))), n) //nolint:gosec // G103: as many as the server wrote
}

// Answer answers a question; false when the outputs do not fit, and nothing was answered.
func (p *Place) Answer(q Question, out []runtime.Tensor) bool {
	at := q.answer + headSize
	if putTensors(p.mem, at, at+TensorSize*len(out), out) < 0 {
		return false
	}
	p.done(q.ID, q.answer, Answered)
	return true
}

// Elsewhere says that the question that was asked last is answered another way.
func (p *Place) Elsewhere() {
	head := p.mem[questionAt:]
	p.done(get64(head, 0), int(get64(head, 24)), Elsewhere) //nolint:gosec // G115: within the lane
}

func (p *Place) done(id uint64, at int, outcome uint32) {
	turn := get32(p.mem, questionAt+8)
	put64(p.mem, at, id)
	put32(p.mem, at+8, turn)
	put32(p.mem, at+12, outcome)
	answered := word(p.mem, answeredAt)
	atomic.StoreUint32(answered, turn)
	wake(answered)
}
