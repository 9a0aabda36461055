// Package eventtest reads what domains published.
package eventtest

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/store"
)

// All are the events of these names that were published before, in order. It publishes
// one of its own and reads up to that: on PostgreSQL an event is seen when all
// transactions that began before it have ended, also those of other databases.
func All(tb testing.TB, db *store.DB, names ...string) (all []event.Event) {
	tb.Helper()
	const end = "eventtest.end"
	mine := rand.Text()
	if err := db.Update(tb.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return event.Publish(ctx, tx, "", end, mine)
	}); err != nil {
		tb.Fatal(err)
	}
	for watch := event.Watch(db, "", store.Position{}); ; {
		e, err := watch.Next(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		var body string
		switch {
		case slices.Contains(names, e.Name):
			all = append(all, e)
		case e.Name == end && e.Decode(&body) == nil && body == mine:
			return all
		}
	}
}
