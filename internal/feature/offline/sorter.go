package offline

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// sorter is an external merge sort of (key, payload) by key bytes, then payload
// bytes. It holds up to budget bytes; beyond that it writes sorted runs.
type sorter struct {
	disk   *disk
	budget int64
	arena  []byte
	items  []sortItem
	runs   []*spill
}

// sortItem is a record in the arena: key, then payload. The first bytes of the
// key are beside it, so that most comparisons stay in the list.
type sortItem struct {
	head    uint64
	at      int64
	key     int32
	payload int32
}

const (
	minSorter  = 1 << 20   // a sorter gets at least this
	maxRuns    = 64        // runs merged at once
	maxRecord  = 2 << 20   // bytes of a key or a payload
	itemBytes  = 24        // of a sortItem
	recordHead = 2 * 4     // lengths before a record in a run
	firstArena = 256 << 10 // bytes of the first arena
)

func newSorter(d *disk, budget int64) *sorter {
	return &sorter{disk: d, budget: max(budget, minSorter)}
}

func (s *sorter) add(key, payload []byte) error {
	if len(key) > maxRecord || len(payload) > maxRecord {
		return fault.New(fault.TooLarge, "a row of %d bytes exceeds the sort limit of %d", len(key)+len(payload), maxRecord)
	}
	need := int64(len(s.arena)+len(key)+len(payload)) + int64(len(s.items)+1)*itemBytes
	if need > s.budget && len(s.items) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if s.arena == nil {
		s.arena = make([]byte, 0, min(s.budget, firstArena))
	}
	item := sortItem{at: int64(len(s.arena)), key: int32(len(key)), payload: int32(len(payload))} //nolint:gosec // at most maxRecord
	var head [8]byte
	copy(head[:], key)
	item.head = binary.BigEndian.Uint64(head[:])
	s.arena = append(append(s.arena, key...), payload...)
	s.items = append(s.items, item)
	return nil
}

func (s *sorter) record(it sortItem) (key, payload []byte) {
	k := it.at + int64(it.key)
	return s.arena[it.at:k:k], s.arena[k : k+int64(it.payload) : k+int64(it.payload)]
}

func (s *sorter) sort() {
	slices.SortFunc(s.items, func(a, b sortItem) int {
		if a.head != b.head {
			if a.head < b.head {
				return -1
			}
			return 1
		}
		ak, ap := s.record(a)
		bk, bp := s.record(b)
		if c := bytes.Compare(ak, bk); c != 0 {
			return c
		}
		return bytes.Compare(ap, bp)
	})
}

// flush writes what is held as a run.
func (s *sorter) flush() error {
	s.sort()
	run, err := s.disk.create()
	if err != nil {
		return err
	}
	s.runs = append(s.runs, run)
	for _, it := range s.items {
		key, payload := s.record(it)
		if err := writeRecord(run, key, payload); err != nil {
			return err
		}
	}
	s.arena, s.items = s.arena[:0], s.items[:0]
	if len(s.runs) < maxRuns {
		return nil
	}
	return s.compact()
}

// compact merges all runs into one.
func (s *sorter) compact() error {
	merged, err := s.disk.create()
	if err != nil {
		return err
	}
	in, err := mergeRuns(s.runs)
	if err == nil {
		for in.next() {
			if err = writeRecord(merged, in.key, in.payload); err != nil {
				break
			}
		}
		err = errors.Join(err, in.err)
	}
	for _, run := range s.runs {
		err = errors.Join(err, run.Close())
	}
	s.runs = []*spill{merged}
	return err
}

// sorted ends the adding and returns the records in order; spilled tells whether
// runs were written. Close the sorter after reading.
func (s *sorter) sorted() (records, error) {
	s.sort()
	if len(s.runs) == 0 {
		return &memoryRecords{s: s, at: -1}, nil
	}
	if len(s.items) > 0 {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	s.arena, s.items = nil, nil
	return mergeRuns(s.runs)
}

// Close gives everything back; it may be called twice.
func (s *sorter) Close() error {
	var err error
	for _, run := range s.runs {
		err = errors.Join(err, run.Close())
	}
	s.runs, s.arena, s.items = nil, nil, nil
	return err
}

// records are read in order. What record returns is valid until the next call.
type records interface {
	next() bool
	record() (key, payload []byte)
	failed() error
}

type memoryRecords struct {
	s  *sorter
	at int
}

func (m *memoryRecords) next() bool { m.at++; return m.at < len(m.s.items) }

func (m *memoryRecords) record() (key, payload []byte) { return m.s.record(m.s.items[m.at]) }

func (m *memoryRecords) failed() error { return nil }

func writeRecord(w io.Writer, key, payload []byte) error {
	var head [recordHead]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(key)))      //nolint:gosec // at most maxRecord
	binary.BigEndian.PutUint32(head[4:], uint32(len(payload))) //nolint:gosec // at most maxRecord
	for _, part := range [...][]byte{head[:], key, payload} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// run is the front of one run.
type run struct {
	in           *bufio.Reader
	buf          []byte
	key, payload []byte
}

func (r *run) advance() error {
	var head [recordHead]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return err
	}
	k, p := int(binary.BigEndian.Uint32(head[:])), int(binary.BigEndian.Uint32(head[4:]))
	if k > maxRecord || p > maxRecord {
		return fault.New(fault.Internal, "a temporary file of a join is corrupt")
	}
	r.buf = slices.Grow(r.buf[:0], k+p)[:k+p]
	if _, err := io.ReadFull(r.in, r.buf); err != nil {
		return fault.Wrap(err, "reading a temporary file of a join")
	}
	r.key, r.payload = r.buf[:k], r.buf[k:]
	return nil
}

// runHeap is a heap.Interface, which takes both kinds of receiver.
type runHeap []*run //nolint:recvcheck // as in the documentation of container/heap

func (h runHeap) Len() int { return len(h) }

func (h runHeap) Less(i, j int) bool {
	if c := bytes.Compare(h[i].key, h[j].key); c != 0 {
		return c < 0
	}
	return bytes.Compare(h[i].payload, h[j].payload) < 0
}

func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *runHeap) Push(x any) { *h = append(*h, x.(*run)) }

func (h *runHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// merge reads several runs as one.
type merge struct {
	heap         runHeap
	started      bool
	key, payload []byte
	err          error
}

func mergeRuns(spills []*spill) (*merge, error) {
	m := &merge{}
	for _, s := range spills {
		in, err := s.read()
		if err != nil {
			return nil, err
		}
		r := &run{in: in}
		switch err := r.advance(); {
		case errors.Is(err, io.EOF):
		case err != nil:
			return nil, err
		default:
			m.heap = append(m.heap, r)
		}
	}
	heap.Init(&m.heap)
	return m, nil
}

func (m *merge) next() bool {
	if m.err != nil || len(m.heap) == 0 {
		return false
	}
	if m.started {
		switch err := m.heap[0].advance(); {
		case errors.Is(err, io.EOF):
			heap.Pop(&m.heap)
		case err != nil:
			m.err = err
			return false
		default:
			heap.Fix(&m.heap, 0)
		}
	}
	m.started = true
	if len(m.heap) == 0 {
		return false
	}
	m.key, m.payload = m.heap[0].key, m.heap[0].payload
	return true
}

func (m *merge) record() (key, payload []byte) { return m.key, m.payload }

func (m *merge) failed() error { return m.err }

// Bytes of times and keys that sort as the values do.

func appendTime(dst []byte, t int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(t)^1<<63) //nolint:gosec // the bits are meant
}

func timeAt(b []byte) int64 {
	return int64(binary.BigEndian.Uint64(b) ^ 1<<63) //nolint:gosec // the bits are meant
}

// appendSizedKey appends the key of a row after its length, so that no key is a
// prefix of another. dst is empty.
func appendSizedKey(dst []byte, keys []column, row int) []byte {
	dst = appendKey(append(dst, 0, 0, 0, 0), keys, row)
	binary.BigEndian.PutUint32(dst, uint32(len(dst)-4)) //nolint:gosec // the sorter bounds keys
	return dst
}

// every reports ctx's error on each 4,096th call: long loops without a wait.
type every struct{ n int }

func (e *every) check(ctx context.Context) error {
	if e.n++; e.n%4096 != 0 {
		return nil
	}
	return ctx.Err()
}
