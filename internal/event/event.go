// Package event is how a domain tells the ones before it that something
// happened: an outbox written in the transaction of the change, and readers that
// see each event in commit order.
//
// # Map
//
//   - Publish records an event in the transaction of the change.
//   - A Subscription acts on events: durable, named, each event at least once,
//     one at a time, in commit order, again after an error. It is for reactions
//     inside Falaj.
//   - A Watcher follows events from a position that its reader keeps. It is for
//     clients (server-sent events) and for waiting in tests.
//   - Trim deletes old events that every subscription has seen.
//
// # What a handler owes
//
// The same event may come again: after a crash, or when another process takes
// over. A handler is idempotent, or does all it does in HandleTx's transaction.
package event

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

const stream = "event"

// trimPage is how many events Trim reads and deletes at a time.
const trimPage = 1000

// Event is something that happened, named in the past tense
// ("job.finished"). Body is the domain's own struct as JSON.
type Event struct {
	Position store.Position
	Time     time.Time
	Project  string
	Name     string
	Body     json.RawMessage
}

// Publish records an event in the transaction of the change it tells of.
func Publish(ctx context.Context, tx *store.Tx, project, name string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fault.Wrap(err, "event %s", name)
	}
	return tx.Append(ctx, stream, project, name, b)
}

// Decode reads the body into the domain's struct.
func (e Event) Decode(into any) error {
	return fault.Wrap(json.Unmarshal(e.Body, into), "event %s at %s", e.Name, e.Position)
}

func of(r store.Record) Event {
	return Event{Position: r.Position, Time: r.Time.Time(), Project: r.Project, Name: r.Kind, Body: r.Body}
}

// Trim deletes the events from before a time, as far as every subscription that
// ever ran has seen them, until the pass is over. A subscription that is gone for good keeps them until
// Unsubscribe.
func Trim(ctx context.Context, db *store.DB, before time.Time) error {
	return trim(ctx, db, before, lifecycle.NewPass(time.Now))
}

func trim(ctx context.Context, db *store.DB, before time.Time, pass lifecycle.Pass) error {
	seen := store.Position{Tx: math.MaxUint64}
	err := db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		cursors, err := tx.Cursors(ctx, cursorPrefix)
		for _, c := range cursors {
			if c.Compare(seen) < 0 {
				seen = c
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for from := (store.Position{}); ; {
		records, next, err := db.ReadStream(ctx, stream, from, trimPage)
		if err != nil || len(records) == 0 {
			return err
		}
		end, old := from, 0
		for old < len(records) && records[old].Time.Time().Before(before) && records[old].Position.Compare(seen) <= 0 {
			end = records[old].Position
			old++
		}
		if old > 0 {
			end.Seq++ // TrimStream's bound is exclusive
			if err := db.TrimStream(ctx, stream, end); err != nil {
				return err
			}
		}
		if old < len(records) || pass.Over() {
			return nil
		}
		from = next
	}
}
