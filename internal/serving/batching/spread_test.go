package batching

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// spread is a session that takes runs elsewhere, and holds all of them.
type spread struct {
	runtimetest.Tokens
	elsewhere int
	gate      chan struct{}

	mu         sync.Mutex
	here, away int
}

func (s *spread) RemoteRuns() int { return s.elsewhere }

func (s *spread) count(n *int, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n += by
}

func (s *spread) Infer(ctx context.Context, in []runtime.Tensor, out []string) ([]runtime.Tensor, error) {
	s.count(&s.here, 1)
	<-s.gate
	defer s.count(&s.here, -1)
	return s.Tokens.Infer(ctx, in, out)
}

func (s *spread) InferRemote(ctx context.Context, in []runtime.Tensor, out []string) ([]runtime.Tensor, error) {
	s.count(&s.away, 1)
	<-s.gate
	defer s.count(&s.away, -1)
	return s.Tokens.Infer(ctx, in, out)
}

// TestSpread: runs elsewhere take no core here, and are as many as there may be; then the
// cores here are used; what waits goes wherever there is room first; all cores and places
// come back.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCores(2)
		s := &spread{elsewhere: 3, gate: make(chan struct{})}
		q := New(c, s, Options{MaxRows: 1}, Verdict{}, nil)
		var all sync.WaitGroup
		for i := range int64(12) {
			all.Go(func() {
				a, err := q.Infer(t.Context(), Request{Inputs: runtimetest.TokensOf(i, 1, 1), Outputs: []string{"same"}})
				if err != nil || a.Outputs[0].Data.([]int64)[0] != i {
					t.Errorf("%d is answered by %v, %v", i, a.Outputs, err)
				}
			})
		}
		for left := 12; left > 0; left-- {
			synctest.Wait()
			s.mu.Lock()
			here, away := s.here, s.away
			s.mu.Unlock()
			if here > 2 || away > 3 || here+away != min(left, 5) {
				t.Errorf("%d left: %d run here, %d elsewhere", left, here, away)
			}
			s.gate <- struct{}{}
		}
		all.Wait()
		if c.free != 2 || q.away != 0 || q.inside != 0 || len(c.queues) != 0 {
			t.Errorf("%d cores free, %d runs elsewhere, %d here", c.free, q.away, q.inside)
		}
		if got := q.side(); got != 5 {
			t.Errorf("%d runs side by side", got)
		}
	})
}
