package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestMeasured: loops are listed while they run, by name, with their failures.
func TestMeasured(t *testing.T) {
	t.Parallel()
	w := watchlist{loops: map[*Loop]bool{}, notes: map[string]Status{}}
	broken := errors.New("broken")
	fails := &Loop{Name: "b", Run: func(context.Context) error { return broken }}
	works := &Loop{Name: "b", Run: func(context.Context) error { return nil }}
	for range 3 {
		_ = fails.RunOnce(t.Context())
	}
	if err := works.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.add(works)
	w.add(fails)
	w.note("a", nil)
	w.note("a", broken)
	w.note("a", nil)
	got := w.list()
	if len(got) != 2 || got[0].Name != "a" || got[0].Runs != 3 || got[0].Failed != 1 || got[0].Failures != 0 || got[0].Worked.IsZero() {
		t.Fatalf("%+v", got)
	}
	if b := got[1]; b.Name != "b" || b.Runs != 4 || b.Failed != 3 || b.Failures != 3 || !errors.Is(b.Err, broken) || !b.Worked.Equal(time.Time{}) {
		t.Errorf("%+v", b)
	}
	w.remove(fails)
	if got := w.list(); len(got) != 2 || got[1].Failed != 0 || got[1].Worked.IsZero() {
		t.Errorf("%+v", got)
	}
}
