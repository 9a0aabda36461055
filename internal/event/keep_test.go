package event_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestManyEventsMoveTheCursorOnce: a subscription that handles many events does not write
// its place for each page of them, and has it when it stops: nothing comes again then.
func TestManyEventsMoveTheCursorOnce(t *testing.T) {
	db := storetest.SQLite(t, schema)
	var names []string
	for range 500 {
		names = append(names, "a.b")
	}
	publish(t, db, "p", names...)
	place := func() (p store.Position) {
		t.Helper()
		if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
			p, err = tx.Cursor(ctx, "event/many")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	places := map[store.Position]bool{}
	var handled atomic.Int64
	cfg := event.Config{Name: "many", Handle: func(context.Context, event.Event) error {
		if handled.Add(1)%50 == 0 {
			places[place()] = true
		}
		return nil
	}}
	if err := event.Subscribe(db, cfg).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if handled.Load() != 500 {
		t.Fatalf("%d events were handled", handled.Load())
	}
	if len(places) > 3 { // at the start, and at most once a second
		t.Errorf("the place was written %d times within 500 events", len(places))
	}
	if end, err := event.Now(t.Context(), db); err != nil || place() != end {
		t.Errorf("it stopped at %v of %v, %v", place(), end, err)
	}
	if err := event.Subscribe(db, cfg).RunOnce(t.Context()); err != nil || handled.Load() != 500 {
		t.Errorf("after a restart %d events were handled, %v", handled.Load(), err)
	}
}
