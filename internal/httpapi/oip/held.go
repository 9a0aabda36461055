package oip

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	turns "github.com/falaj-ml/falaj/internal/share"
)

// maxHeld bounds the bodies of all requests that are read or answered at a time, in
// bytes as they were sent, as they were decompressed and, of gRPC, what a message takes
// beyond them. Half of it is for one caller.
const maxHeld = 1 << 30

// held counts those bodies. What was not sent counts nothing, whatever a request
// announces.
type held struct {
	most int64 // 0: maxHeld

	mu  sync.Mutex
	all int64
	of  map[string]int64 // by caller
}

// share is what one request, or one stream of them, holds.
type share struct {
	of     *held
	who    identity.Principal
	memory *membudget.Share // of the server's budget for all requests
	ctx    context.Context  //nolint:containedctx // of the one request, or stream
	turn   *turns.Turn      // at a processor; nil: the request is small
	in     string           // project, once it is known
	answer *turns.Turn      // at a processor, to encode a large answer; nil: none was so far
	taken  bool             // answer, until encoded
	n      int64            // under of.mu
}

// heavy is the least body that is decoded, and the least answer that is encoded, in turn, in
// bytes.
const heavy = turns.Heavy / 4

// begin takes the turn of a body of so many bytes at a processor; the body is here as a whole.
// Who has decoded it calls turn.End. Errors: fault.Exhausted, the context's.
func (s *share) begin(size int) error {
	if size < heavy {
		return nil
	}
	return s.turn.Begin(s.ctx)
}

// encoding takes the turn of an answer at a processor, also of a small request, before any of
// it is made. Call encoded before its first byte is written: its reader may be slow. Errors:
// those of begin.
func (s *share) encoding(outputs []runtime.Tensor) error {
	if textOf(outputs) < heavy {
		return nil
	}
	if s.answer == nil {
		s.answer = turns.NewTurn(identity.Share(s.ctx, project.Name(s.in)))
	}
	err := s.answer.Begin(s.ctx)
	s.taken = err == nil
	return err
}

// encoded ends the turn of the answer, if there is one.
func (s *share) encoded() {
	s.answer.End()
	s.taken = false
}

// done gives back all that the request holds.
func (s *share) done() {
	s.encoded()
	s.free()
}

// beside is begin with a turn of its own, for work beside that at another message of a stream:
// nil for a small one. End it.
func (s *share) beside(size int) (*turns.Turn, error) {
	if size < heavy {
		return nil, nil
	}
	turn := s.turn.Another()
	return turn, turn.Begin(s.ctx)
}

func (h *held) share(ctx context.Context) *share {
	return &share{of: h, who: identity.From(ctx), memory: membudget.From(ctx), ctx: ctx, turn: turns.TurnOf(ctx)}
}

// take holds more; what it refuses it does not hold. Errors: fault.Exhausted,
// fault.Unavailable.
func (s *share) take(n int) error {
	h, more := s.of, int64(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	most := cmp.Or(h.most, maxHeld)
	switch {
	case h.of[s.who.ID]+more > most/2:
		return fault.New(fault.Exhausted, "the active requests of %s have %d bytes; with this one they exceed %d", s.who, h.of[s.who.ID], most/2).
			WithHint("Wait for responses before you send more requests.").WithRetry(time.Second)
	case h.all+more > most:
		return fault.New(fault.Unavailable, "the active requests have %d bytes; with this one they exceed %d", h.all, most).
			WithHint("Retry later.").WithRetry(time.Second)
	}
	if err := s.memory.Try(more); err != nil {
		return err
	}
	h.add(s, more)
	return nil
}

// give is the opposite of take.
func (s *share) give(n int) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.add(s, -int64(n))
	s.memory.Give(int64(n))
}

// free gives all back; it may be called again.
func (s *share) free() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.memory.Give(s.n)
	s.of.add(s, -s.n)
}

func (h *held) add(s *share, n int64) {
	if h.of == nil {
		h.of = map[string]int64{}
	}
	s.n += n
	h.all += n
	if h.of[s.who.ID] += n; h.of[s.who.ID] == 0 {
		delete(h.of, s.who.ID)
	}
}
