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

// TestEndWaitsForNobody: while a turn waits for a processor, End returns at once; and what
// two have begun at once is one turn.
func TestEndWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []*Turn
		for range processors().l.Slots {
			turn := NewTurn(Owner{string(rune('a' + len(held))), ""})
			if err := turn.Begin(context.Background()); err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		turn := NewTurn(Owner{"late", ""})
		begun := make(chan error, 2)
		for range cap(begun) {
			go func() { begun <- turn.Begin(context.Background()) }()
		}
		synctest.Wait()
		turn.End()
		if len(begun) != 0 {
			t.Fatal("there is no processor, and the turn began")
		}
		for _, other := range held {
			other.End()
		}
		for range cap(begun) {
			if err := <-begun; err != nil {
				t.Error(err)
			}
		}
		if n := processors().Held(); n != 1 {
			t.Errorf("%d processors are held, want 1", n)
		}
		another := turn.Another()
		turn.End()
		if err := another.Begin(context.Background()); err != nil || turn.release != nil || another.release == nil {
			t.Errorf("another turn: %v", err)
		}
		another.End()
		if n := processors().Held(); n != 0 || (*Turn)(nil).Another() != nil {
			t.Errorf("%d processors are held at the end", n)
		}
	})
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
