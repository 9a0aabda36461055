package lane

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Tick is how late who waits for an answer sees that its context is over, or that the
// process is gone, at most.
const Tick = 10 * time.Millisecond

// Lane is a lane on the side that asks. It is of one run at a time.
type Lane struct {
	memory *Memory
	mem    []byte
	at     int // in the memory
	turn   uint32
	id     uint64
	answer int // where the answer begins
	used   int // bytes of question and answer
	usual  int // of a run
	began  time.Time
	took   time.Duration // what runs take of late, from question to answer
}

// short is what a run may take that is waited for without giving the processor away.
const short = 150 * time.Microsecond

// Ask puts a question into the lane and wakes who answers it: inputs in the model's order,
// and the numbers of the outputs wanted. ok is false when it does not fit, or has not the
// form that tensors have: then nothing was asked.
func (l *Lane) Ask(id uint64, inputs []runtime.Tensor, wanted []int) (ok bool) {
	described := questionAt + headSize + (4*len(wanted)+7)&^7
	elements := described + TensorSize*len(inputs)
	if elements > len(l.mem) {
		return false
	}
	end := putTensors(l.mem, described, elements, inputs)
	if end < 0 {
		return false
	}
	l.answer = aligned(end)
	if l.answer+headSize+TensorSize*len(wanted) > len(l.mem) {
		return false
	}
	for i, w := range wanted {
		put32(l.mem, questionAt+headSize+4*i, uint32(w)) //nolint:gosec // G115: below MaxPorts
	}
	l.turn++
	l.id, l.used = id, l.answer
	put64(l.mem, questionAt, id)
	put32(l.mem, questionAt+8, l.turn)
	put32(l.mem, questionAt+12, uint32(len(inputs))) //nolint:gosec // G115: below MaxPorts
	put32(l.mem, questionAt+16, uint32(len(wanted))) //nolint:gosec // G115: below MaxPorts
	put64(l.mem, questionAt+24, uint64(l.answer))    //nolint:gosec // G115: within the lane
	put64(l.mem, questionAt+32, uint64(len(l.mem)))
	l.began = time.Now()
	asked := word(l.mem, askedAt)
	atomic.StoreUint32(asked, l.turn)
	wake(asked)
	return true
}

// errProtocol has nothing of what was read: the other side has seen rows.
var errProtocol = errors.New("what it left in the shared memory is no answer to what was asked")

// errRestless is of a process that wakes who waits for it without an answer.
var errRestless = errors.New("it wakes the server without an answer")

// idle is how many times in a wait nothing may have changed although it ended.
const idle = 256

// Wait waits until the question is answered (true), or until there is something else to
// look at: a Tick has passed or the lanes have ended. An error is of a process that does not
// keep to the protocol.
func (l *Lane) Wait() (bool, error) {
	answered := word(l.mem, answeredAt)
	here := l.took > 0 && l.took < short
	for range idle {
		switch atomic.LoadUint32(answered) {
		case l.turn:
			l.took += (time.Since(l.began) - l.took + 7) / 8
			return true, nil
		case l.turn - 1:
		default:
			return false, errProtocol
		}
		if l.memory.over() {
			return false, nil
		}
		if here {
			here = waitHere(answered, l.turn-1, 2*short) != late
			continue
		}
		if wait(answered, l.turn-1, Tick) == late {
			return false, nil
		}
	}
	return false, errRestless
}

// Answer reads the answer, of the outputs that were wanted. elsewhere: it comes another
// way. It is read once.
func (l *Lane) Answer(wanted []runtime.Spec) (out []runtime.Tensor, elsewhere bool, err error) {
	said := slices.Clone(l.mem[l.answer : l.answer+headSize+TensorSize*len(wanted)])
	if get64(said, 0) != l.id || get32(said, 8) != l.turn {
		return nil, false, errProtocol
	}
	switch get32(said, 12) {
	case Answered:
	case Elsewhere:
		return nil, true, nil
	default:
		return nil, false, errProtocol
	}
	// Tensors may not lie one over the other: what they take in memory is bounded by the lane.
	left := len(l.mem) - l.answer
	out = make([]runtime.Tensor, len(wanted))
	for i, spec := range wanted {
		d := said[headSize+TensorSize*i : headSize+TensorSize*(i+1)]
		size := get64(d, 16)
		if get32(d, 0) != number(spec.Datatype) || size > uint64(left) { //nolint:gosec // G115: not negative
			return nil, false, errProtocol
		}
		left -= int(size) //nolint:gosec // G115: at most left
		if out[i], err = l.tensor(d, spec); err != nil {
			return nil, false, err
		}
		l.used += int(size) //nolint:gosec // G115: within the lane
	}
	return out, false, nil
}

// tensor copies a tensor that a description names, which is not shared.
func (l *Lane) tensor(d []byte, spec runtime.Spec) (t runtime.Tensor, err error) {
	rank, at, size, count := get32(d, 4), get64(d, 8), get64(d, 16), get64(d, 24)
	room := uint64(len(l.mem))
	if rank > runtime.MaxRank || at > room || size > room-at {
		return t, errProtocol
	}
	t.Name, t.Datatype, t.Shape = spec.Name, spec.Datatype, make([]int64, rank)
	for i := range t.Shape {
		n := get64(d, 32+8*i)
		if n > runtime.MaxElements {
			return t, errProtocol
		}
		t.Shape[i] = int64(n)
	}
	n, err := runtime.Elements(t.Shape)
	if err != nil || uint64(n) != count { //nolint:gosec // G115: not negative
		return t, errProtocol
	}
	from := l.mem[at : at+size]
	if t.Datatype == runtime.Bytes {
		t.Data, err = texts(from, n)
		return t, err
	}
	_, one := view(t.Datatype, runtime.Zeros(t.Datatype, 0))
	if uint64(n)*uint64(one) != size { //nolint:gosec // G115: not negative
		return t, errProtocol
	}
	t.Data = runtime.Zeros(t.Datatype, n)
	to, _ := view(t.Datatype, t.Data)
	copy(to, from)
	if t.Datatype == runtime.Bool {
		for _, b := range to {
			if b > 1 {
				return t, errProtocol
			}
		}
	}
	return t, nil
}

// texts copies strings. Where they begin was copied before it is looked at.
func texts(from []byte, n int) ([]string, error) {
	if len(from)/8 < n {
		return nil, errProtocol
	}
	begins, all := slices.Clone(from[:8*n]), string(from[8*n:])
	out := make([]string, n)
	end := uint64(len(all))
	for i := n - 1; i >= 0; i-- {
		at := get64(begins, 8*i)
		if at > end {
			return nil, errProtocol
		}
		out[i] = all[at:end]
		end = at
	}
	if end != 0 {
		return nil, errProtocol
	}
	return out, nil
}

// trim gives back the memory of a run that was much larger than they usually are.
func (l *Lane) trim() {
	const keep = 1 << 20
	if usual := l.usual; l.used > keep && l.used > 4*usual {
		_ = unix.Fallocate(int(l.memory.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(l.at+keep), int64(len(l.mem)-keep))
	}
	l.usual += (l.used - l.usual) / 8
	l.used = 0
}
