// Package lane carries runs of a model to its process, and their answers back, through
// memory that both processes share. A lane has one run at a time; a process has as many
// lanes as it may have runs.
//
//   - lane.go: the memory, and where in it what lies.
//   - ask.go: the side that asks, the server.
//   - answer.go: the side that answers, the model's process.
//   - futex.go: how each side waits for the other.
//
// # Guarantees
//
// Nothing that the answering side writes is trusted. What an answer says of itself is
// copied out of the shared memory before it is looked at, and looked at only there; the
// elements of tensors are copied once, and are not looked at before. Every number is held
// against what was asked and against the lane. The memory's size is sealed: no access to it
// can fail. Whoever waits looks up every Tick, so that a side that is stopped, or gone, holds
// nobody.
//
// The answering side sees of a lane what it was given before in the same lane, by the same
// server for the same model, and nothing else. The asking side gives a caller only bytes
// that the answer names; a model that answers with what it saw before cannot be known from
// one that remembers it.
//
// # Layout
//
// Numbers are in the machine's order; both sides are of one build.
//
//	0    the turn that was asked last, 4 bytes: what the answering side waits for
//	64   the turn that was answered last, 4 bytes: what the asking side waits for
//	128  the question: head, the numbers of the outputs wanted (4 bytes each), a
//	     description of each input, their elements
//	...  the answer, from where the question says: head, a description of each output
//	     wanted, their elements
//
// Elements begin at multiples of 64. Those of strings are where each begins (8 bytes each,
// from 0), then their bytes. The same is written in C in onnx/ort.h.
package lane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Where what lies, and how many bytes it takes.
const (
	askedAt    = 0
	answeredAt = 64
	questionAt = 128
	headSize   = 64
	TensorSize = 32 + 8*runtime.MaxRank // of a description

	align = 64
)

// Outcomes of an answer.
const (
	Answered  = 0
	Elsewhere = 1 // it comes another way: it is an error, or it is too large for the lane
)

// Size is how large a lane is: what is larger goes another way. Memory is used only for as
// much of it as was ever written.
const Size = 16 << 20

// Bounds of the lanes of a process.
const (
	MaxLanes = 64
	maxSize  = 1 << 30
)

// Datatypes are the datatypes by the number that a lane has for each, that of
// TensorProto.DataType.
var Datatypes = [...]runtime.Datatype{
	1: runtime.FP32, 2: runtime.Uint8, 3: runtime.Int8, 4: runtime.Uint16, 5: runtime.Int16, 6: runtime.Int32, 7: runtime.Int64, 8: runtime.Bytes,
	9: runtime.Bool, 10: runtime.FP16, 11: runtime.FP64, 12: runtime.Uint32, 13: runtime.Uint64, 16: runtime.BF16,
}

// Memory is the lanes of a process, on the side that asks. Make it with New, end it with
// Close. Safe for concurrent use.
type Memory struct {
	file *os.File
	all  []byte
	n    int
	size int

	mu    sync.Mutex
	free  []*Lane
	lent  int
	ended bool
}

// New makes n lanes of size bytes each. Its File is for the other process.
func New(n, size int) (*Memory, error) {
	if n < 1 || n > MaxLanes || size < os.Getpagesize() || size > maxSize || size%os.Getpagesize() != 0 {
		return nil, fmt.Errorf("there cannot be %d lanes of %d bytes", n, size)
	}
	fd, err := unix.MemfdCreate("falaj-lanes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("falaj-lanes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	m := &Memory{file: os.NewFile(uintptr(fd), "lanes"), n: n, size: size}
	if err := unix.Ftruncate(fd, int64(n)*int64(size)); err != nil {
		_ = m.file.Close()
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = m.file.Close()
		return nil, fmt.Errorf("seal shared memory: %w", err)
	}
	if m.all, err = mapped(fd, n*size); err != nil {
		_ = m.file.Close()
		return nil, err
	}
	for i := range n {
		m.free = append(m.free, &Lane{memory: m, at: i * size, mem: m.all[i*size : (i+1)*size : (i+1)*size]})
	}
	slices.Reverse(m.free) // the first one is lent first
	return m, nil
}

func mapped(fd, size int) ([]byte, error) {
	all, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return all, nil
}

// File is the memory for the other process to inherit. It is closed by Close.
func (m *Memory) File() *os.File { return m.file }

// Count is how many lanes there are.
func (m *Memory) Count() int { return m.n }

// Lend gives a lane that no run has; nil when there is none.
func (m *Memory) Lend() *Lane {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.free)
	if n == 0 || m.ended {
		return nil
	}
	l := m.free[n-1]
	m.free = m.free[:n-1]
	m.lent++
	return l
}

// Back takes back a lane whose run is over, or whose process is.
func (m *Memory) Back(l *Lane) {
	l.trim()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lent--
	m.free = append(m.free, l)
	m.release()
}

// Close ends the lanes: whoever waits for an answer is told, and the memory is given back
// when the last of them has brought back its lane.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	m.ended = true
	for at := 0; at < len(m.all); at += m.size {
		wake(word(m.all[at:], answeredAt))
	}
	m.release()
}

// over reports whether the lanes have ended.
func (m *Memory) over() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// release gives the memory back when nobody uses it any more. m.mu is held.
func (m *Memory) release() {
	if !m.ended || m.lent > 0 || m.all == nil {
		return
	}
	_ = unix.Munmap(m.all)
	_ = m.file.Close()
	m.all, m.free = nil, nil
}

// word is one of the two numbers that a side waits for.
func word(mem []byte, at int) *uint32 {
	return (*uint32)(unsafe.Pointer(&mem[at])) //nolint:gosec // G103: a number at a multiple of 64 in memory of many pages
}

func put32(mem []byte, at int, v uint32) { binary.NativeEndian.PutUint32(mem[at:], v) }
func put64(mem []byte, at int, v uint64) { binary.NativeEndian.PutUint64(mem[at:], v) }
func get32(mem []byte, at int) uint32    { return binary.NativeEndian.Uint32(mem[at:]) }
func get64(mem []byte, at int) uint64    { return binary.NativeEndian.Uint64(mem[at:]) }

func aligned(n int) int { return (n + align - 1) &^ (align - 1) }

// tensors writes descriptions at one place and elements from another on. It gives where
// the elements end; -1 when they do not fit, or a tensor is none.
func putTensors(mem []byte, at, elements int, tensors []runtime.Tensor) int {
	for _, t := range tensors {
		elements = aligned(elements)
		if len(t.Shape) > runtime.MaxRank {
			return -1
		}
		var count, size int
		words, strings := t.Data.([]string)
		var raw []byte
		if strings {
			if t.Datatype != runtime.Bytes {
				return -1
			}
			count, size = len(words), 8*len(words)
			for _, w := range words {
				size += len(w)
			}
		} else {
			var one int
			if raw, one = view(t.Datatype, t.Data); one == 0 {
				return -1
			}
			count, size = len(raw)/one, len(raw)
		}
		if n, err := runtime.Elements(t.Shape); err != nil || n != count || size > len(mem)-elements {
			return -1
		}
		put32(mem, at, number(t.Datatype))
		put32(mem, at+4, uint32(len(t.Shape))) //nolint:gosec // G115: at most MaxRank
		put64(mem, at+8, uint64(elements))     //nolint:gosec // G115: within the lane
		put64(mem, at+16, uint64(size))
		put64(mem, at+24, uint64(count))
		for d, n := range t.Shape {
			put64(mem, at+32+8*d, uint64(n)) //nolint:gosec // G115: not negative
		}
		if strings {
			to := elements + 8*count
			for i, w := range words {
				put64(mem, elements+8*i, uint64(to-elements-8*count)) //nolint:gosec // G115: within the lane
				to += copy(mem[to:], w)
			}
		} else {
			copy(mem[elements:], raw)
		}
		elements += size
		at += TensorSize
	}
	return elements
}

// number is the number of a datatype.
func number(d runtime.Datatype) uint32 {
	return uint32(max(0, slices.Index(Datatypes[:], d))) //nolint:gosec // G115: an index into few
}

// view is the memory of a tensor's elements and the size of one; 0 when they are not of
// its datatype, or are strings.
func view(d runtime.Datatype, data any) (memory []byte, size int) {
	switch v := data.(type) {
	case []bool:
		return viewOf(v, d == runtime.Bool)
	case []uint8:
		return viewOf(v, d == runtime.Uint8)
	case []uint16:
		return viewOf(v, d == runtime.Uint16 || d == runtime.FP16 || d == runtime.BF16)
	case []uint32:
		return viewOf(v, d == runtime.Uint32)
	case []uint64:
		return viewOf(v, d == runtime.Uint64)
	case []int8:
		return viewOf(v, d == runtime.Int8)
	case []int16:
		return viewOf(v, d == runtime.Int16)
	case []int32:
		return viewOf(v, d == runtime.Int32)
	case []int64:
		return viewOf(v, d == runtime.Int64)
	case []float32:
		return viewOf(v, d == runtime.FP32)
	case []float64:
		return viewOf(v, d == runtime.FP64)
	}
	return nil, 0
}

func viewOf[T any](v []T, fits bool) ([]byte, int) {
	if !fits {
		return nil, 0
	}
	size := int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*size), size //nolint:gosec // G103: numbers, and as long as they are
}
