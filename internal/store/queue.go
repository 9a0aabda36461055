package store

import (
	"slices"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of the write queue. A lane that sends more than its share is refused
// long before the queue is full for the others.
const (
	maxWaiting     = 16384
	maxLaneWaiting = 4096
)

// queue holds what waits for its turn to write: first come first served within
// a lane, round-robin over the lanes, so that a busy project delays another by
// one write, not by its backlog. Safe for concurrent use.
type queue[T comparable] struct {
	mu      sync.Mutex
	lanes   map[string]*lane[T]
	ring    []*lane[T] // lanes that wait, in the order of their turns
	waiting int
	closed  bool
	filled  chan struct{} // holds a token while something may wait or the queue is closed
}

type lane[T comparable] struct {
	name  string
	items []T
}

func newQueue[T comparable]() *queue[T] {
	return &queue[T]{lanes: map[string]*lane[T]{}, filled: make(chan struct{}, 1)}
}

// push lets item wait in the lane. Errors: fault.Exhausted when the lane is
// full, fault.Unavailable when the queue is full or closed.
func (q *queue[T]) push(name string, item T) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	if q.waiting >= maxWaiting {
		return fault.New(fault.Unavailable, "the write queue is full: %d writes are pending", q.waiting).
			WithHint("Try again in a few seconds; if this persists, the disk of the database is too slow for the load.")
	}
	l := q.lanes[name]
	if l == nil {
		l = &lane[T]{name: name}
		q.lanes[name] = l
		q.ring = append(q.ring, l)
	}
	if len(l.items) >= maxLaneWaiting {
		return fault.New(fault.Exhausted, "project %q already has %d pending writes", name, len(l.items)).
			WithHint("Send fewer concurrent requests for this project, or combine changes in one request.")
	}
	l.items = append(l.items, item)
	q.waiting++
	q.wake()
	return nil
}

// pop takes the item whose turn it is.
func (q *queue[T]) pop() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ring) == 0 {
		return item, false
	}
	l := q.ring[0]
	item, l.items = l.items[0], l.items[1:]
	q.ring = q.ring[1:]
	if len(l.items) > 0 {
		q.ring = append(q.ring, l)
	} else {
		delete(q.lanes, l.name)
	}
	q.waiting--
	return item, true
}

// remove takes an item out that no longer wants its turn; false means that it
// has been popped already.
func (q *queue[T]) remove(name string, item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[name]
	if l == nil {
		return false
	}
	i := slices.Index(l.items, item)
	if i < 0 {
		return false
	}
	l.items = slices.Delete(l.items, i, i+1)
	if len(l.items) == 0 {
		delete(q.lanes, name)
		q.ring = slices.DeleteFunc(q.ring, func(x *lane[T]) bool { return x == l })
	}
	q.waiting--
	return true
}

// length is how many items wait.
func (q *queue[T]) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// stop refuses further items; those that wait keep their turn.
func (q *queue[T]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake()
}

// stopped reports whether stop was called and nothing waits.
func (q *queue[T]) stopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed && q.waiting == 0
}

func (q *queue[T]) wake() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}
