// Package membudget admits requests by the memory that they take: one budget of bytes for
// the bodies, the decoded forms and the answers of all requests of a server.
//
// # Map
//
//   - A Budget is the server's; a Share is what one request holds of it, until Free.
//   - With puts a share into a request's context, and Take takes from there: what collects
//     an answer whose size a caller controls takes for each part before it keeps it.
//   - meter.go weighs bodies while they are read, and bounds how deep JSON nests.
//
// # Guarantees
//
// What is refused is not held. A request that would pass the budget waits for room, at most
// Patience, and is then refused with fault.Exhausted and a time after which to retry; one
// that alone would pass half of the budget is refused with fault.TooLarge at once. Nothing
// is held for what a request announces and does not send. All may be used concurrently.
package membudget

import (
	"context"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Setting is the configuration key of the budget's size, which refusals name.
const Setting = "limits.requests"

// Patience is the longest wait of a request for room.
const Patience = 2 * time.Second

// Budget is the bytes that requests share. Make it with New; nil bounds nothing.
type Budget struct {
	most     int64
	patience time.Duration

	mu    sync.Mutex
	used  int64
	by    map[string]int64 // by principal
	freed chan struct{}    // closed, and made anew, when something is given back
}

// New makes a budget of so many bytes. Half of it is the most of one principal, and of one
// request.
func New(most int64) *Budget {
	return &Budget{most: most, patience: Patience, by: map[string]int64{}, freed: make(chan struct{})}
}

// Most is the size of the budget in bytes.
func (b *Budget) Most() int64 { return b.most }

// Used is how many bytes are held.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Share is what one request of a principal holds. nil holds nothing, and may take all.
type Share struct {
	of  *Budget
	who string
	n   int64 // under of.mu
}

// Share begins a request of a principal.
func (b *Budget) Share(principal string) *Share {
	if b == nil {
		return nil
	}
	return &Share{of: b, who: principal}
}

// Take holds n bytes more, and waits for room. Errors: fault.TooLarge, fault.Exhausted, the
// context's.
func (s *Share) Take(ctx context.Context, n int64) error {
	if s == nil || n <= 0 {
		return nil
	}
	b := s.of
	var late <-chan time.Time
	for {
		freed, err := b.take(s, n)
		if freed == nil || err != nil {
			return err
		}
		if late == nil {
			timer := time.NewTimer(b.patience)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return b.full()
		}
	}
}

// Try is Take without the wait.
func (s *Share) Try(n int64) error {
	if s == nil || n <= 0 {
		return nil
	}
	freed, err := s.of.take(s, n)
	if err == nil && freed != nil {
		return s.of.full()
	}
	return err
}

// take holds n more, or gives a channel that is closed when something is given back.
func (b *Budget) take(s *Share, n int64) (freed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.n+n > b.most/2 {
		return nil, fault.New(fault.TooLarge, "the request needs more than %s of memory, half of %s", resource.Bytes(b.most/2).Words(), Setting).
			WithHint("Ask for less, in several requests, or raise %s.", Setting)
	}
	if b.used+n > b.most || b.by[s.who]+n > b.most/2 {
		return b.freed, nil
	}
	b.add(s, n)
	return nil, nil //nolint:nilnil // held
}

func (b *Budget) full() error {
	return fault.New(fault.Exhausted, "the requests under way use the memory for requests, %s (%s)", resource.Bytes(b.most).Words(), Setting).
		WithHint("Try again in a moment.").WithRetry(time.Second)
}

// Hold holds n bytes more that are in memory already, whether there is room or not: others
// then wait.
func (s *Share) Hold(n int64) {
	if s == nil || n <= 0 {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.add(s, n)
}

// Give gives n bytes back.
func (s *Share) Give(n int64) {
	if s == nil || n <= 0 {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.add(s, -min(n, s.n))
}

// Free gives back all; it may be called again.
func (s *Share) Free() {
	if s == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.add(s, -s.n)
}

// add is called under mu.
func (b *Budget) add(s *Share, n int64) {
	s.n += n
	b.used += n
	if b.by[s.who] += n; b.by[s.who] == 0 {
		delete(b.by, s.who)
	}
	if n < 0 {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

type contextKey struct{}

// With puts the share of a request into its context.
func With(ctx context.Context, s *Share) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// From is the share of the context's request, nil where there is none.
func From(ctx context.Context) *Share {
	s, _ := ctx.Value(contextKey{}).(*Share)
	return s
}

// Take holds n bytes more for the context's request, as Share.Take does.
func Take(ctx context.Context, n int64) error { return From(ctx).Take(ctx, n) }
