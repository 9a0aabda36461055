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
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

const stream = "event"

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
// ever ran has seen them. A subscription that is gone for good keeps them until
// Unsubscribe.
func Trim(ctx context.Context, db *store.DB, before time.Time) error {
	var end store.Position
	for {
		records, next, err := db.ReadStream(ctx, stream, end, page)
		if err != nil {
			return err
		}
		old := 0
		for old < len(records) && records[old].Time.Time().Before(before) {
			end = records[old].Position
			old++
		}
		if old < len(records) || len(records) == 0 {
			break
		}
		end = next
	}
	if end == (store.Position{}) {
		return nil
	}
	end.Seq++ // TrimStream's bound is exclusive
	err := db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		cursors, err := tx.Cursors(ctx, cursorPrefix)
		for _, c := range cursors {
			if c.Seq++; c.Compare(end) < 0 {
				end = c
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return db.TrimStream(ctx, stream, end)
}
