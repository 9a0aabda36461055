package agent

import (
	"context"
	"testing"

	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// TestLooks: there is one look at a time, and none that the server has forgotten.
func TestLooks(t *testing.T) {
	t.Parallel()
	began, ended := make(chan string, 9), make(chan string, 9)
	l := looks{take: func(ctx context.Context, r profiler.Request) {
		began <- r.ID
		<-ctx.Done()
		ended <- r.ID
	}}
	first, second := &profiler.Request{ID: "1"}, &profiler.Request{ID: "2"}
	l.told(t.Context(), first)
	l.told(t.Context(), first)
	l.told(t.Context(), second)
	if a, b, over := <-began, <-began, <-ended; a != "1" || b != "2" || over != "1" {
		t.Errorf("%s %s, %s has ended", a, b, over)
	}
	l.told(t.Context(), nil)
	select {
	case id := <-ended:
		if id != "2" {
			t.Errorf("%s has ended", id)
		}
	default:
		t.Error("the look goes on when nobody waits")
	}
	l.told(t.Context(), second) // an answer of the server that came late
	l.end()
	if len(began) > 0 {
		t.Error("looked twice")
	}
}
