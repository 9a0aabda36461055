package share

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
)

// TestTurn: it is taken once however often it begins, given back once, and may begin anew.
func TestTurn(t *testing.T) {
	ctx := t.Context()
	turn := NewTurn(Owner{"p", "u"})
	if got := TurnOf(WithTurn(ctx, turn)); got != turn {
		t.Fatalf("the context's turn is %v", got)
	}
	for range 2 {
		for range 3 {
			if err := turn.Begin(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n := processors().Held(); n != 1 {
			t.Errorf("%d processors are held, want 1", n)
		}
		turn.End()
		turn.End()
		if n := processors().Held(); n != 0 {
			t.Errorf("%d processors are held after the end", n)
		}
	}
	var none *Turn
	if err := none.Begin(ctx); err != nil || TurnOf(ctx) != nil {
		t.Errorf("no turn: %v, %v", err, TurnOf(ctx))
	}
	none.End()
}

// TestOneProcessorIsLeftFree: never as many turns as processors are held, and who waits
// leaves nothing behind when it gives up.
func TestOneProcessorIsLeftFree(t *testing.T) {
	if most := max(1, runtime.GOMAXPROCS(0)-1); processors().l.Slots != most {
		t.Fatalf("%d turns on %d processors, want %d", processors().l.Slots, runtime.GOMAXPROCS(0), most)
	}
	synctest.Test(t, func(t *testing.T) {
		var held []*Turn
		for range processors().l.Slots {
			turn := NewTurn(Owner{string(rune('a' + len(held))), ""}) // each of another project
			if err := turn.Begin(context.Background()); err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error)
		late := NewTurn(Owner{"late", ""})
		go func() { failed <- late.Begin(ctx) }()
		synctest.Wait()
		select {
		case err := <-failed:
			t.Fatalf("one more turn than is left free: %v", err)
		default:
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("it gave up with %v", err)
		}
		late.End()
		for _, turn := range held {
			turn.End()
		}
		if n := processors().Held(); n != 0 {
			t.Errorf("%d processors are held at the end", n)
		}
	})
}
