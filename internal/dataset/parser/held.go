package parser

import (
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// pieceBytes is the size of the pieces of a file that is held in memory.
const pieceBytes = 1 << 20

// held is a file in memory, in pieces. A slice that grows would be copied to a larger one
// again and again, with both of them in memory.
type held struct {
	pieces [][]byte // all of pieceBytes, except the last
	size   int64
}

// hold reads a file to its end. whole is false for one over the limit.
func hold(in io.Reader, limit int64) (h *held, whole bool, err error) {
	h = &held{}
	in = io.LimitReader(in, limit+1)
	for {
		piece := make([]byte, pieceBytes)
		n, err := io.ReadFull(in, piece)
		if n > 0 {
			h.pieces = append(h.pieces, piece[:n])
			h.size += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return h, h.size <= limit, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// ReadAt implements io.ReaderAt.
func (h *held) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, errors.New("a negative offset")
	}
	for n < len(p) && at < h.size {
		m := copy(p[n:], h.pieces[at/pieceBytes][at%pieceBytes:])
		n, at = n+m, at+int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// file is the whole of it, for random access.
func (h *held) file() *io.SectionReader { return io.NewSectionReader(h, 0, h.size) }

// replaceTail ends the file at an offset, and appends to it.
func (h *held) replaceTail(at int64, tail []byte) {
	last := int(at / pieceBytes)
	tail = append(append(make([]byte, 0, int(at%pieceBytes)+len(tail)), h.pieces[last][:at%pieceBytes]...), tail...)
	h.pieces, h.size = h.pieces[:last], at-at%pieceBytes+int64(len(tail))
	for len(tail) > 0 {
		n := min(len(tail), pieceBytes)
		h.pieces, tail = append(h.pieces, tail[:n:n]), tail[n:]
	}
}

// consumed reads the file once, and drops what it has read.
type consumed struct{ h *held }

func (c consumed) Read(p []byte) (int, error) {
	if len(c.h.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.h.pieces[0])
	if c.h.pieces[0] = c.h.pieces[0][n:]; len(c.h.pieces[0]) == 0 {
		c.h.pieces[0] = nil
		c.h.pieces = c.h.pieces[1:]
	}
	return n, nil
}

// budget is an allocator of at most so many bytes. More is a panic with a fault, because
// its callers expect no error. Not safe for concurrent use.
type budget struct {
	memory.Allocator
	most int64
	used int64
	over bool // it was not enough
}

func newBudget(most int64) *budget { return &budget{Allocator: memory.DefaultAllocator, most: most} }

func (b *budget) take(n int) {
	b.used = max(0, b.used+int64(n)) // below 0 by what was allocated before renew
	if n > 0 && b.used > b.most {
		b.over = true
		panic(fault.New(fault.TooLarge, "the rows need more than %s of memory at once", resource.Bytes(b.most)))
	}
}

// renew counts from 0 again.
func (b *budget) renew() { b.used = 0 }

// Allocate implements memory.Allocator.
func (b *budget) Allocate(size int) []byte {
	b.take(size)
	return b.Allocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (b *budget) Reallocate(size int, p []byte) []byte {
	b.take(size - len(p))
	return b.Allocator.Reallocate(size, p)
}

// Free implements memory.Allocator.
func (b *budget) Free(p []byte) {
	b.take(-len(p))
	b.Allocator.Free(p)
}
