package event

import (
	"context"

	"github.com/falaj-ml/falaj/internal/store"
)

// Watcher follows the events of a project. Not safe for concurrent use; there is
// nothing to close.
type Watcher struct {
	db      *store.DB
	project string
	at      store.Position
	pending []store.Record
}

// Watch follows the events of a project after a position, of all projects when
// it is "". The zero Position is before the oldest event kept; Now is the place
// to see only what comes.
func Watch(db *store.DB, project string, after store.Position) *Watcher {
	return &Watcher{db: db, project: project, at: after}
}

// Now is the position after every event that is readable now.
func Now(ctx context.Context, db *store.DB) (store.Position, error) { return db.Watermark(ctx) }

// Next waits for the next event. When ctx ends it returns ctx's error and may be
// called again, so a caller that gives it a deadline can say in between that it
// is still there.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		for len(w.pending) > 0 {
			r := w.pending[0]
			w.pending = w.pending[1:]
			w.at = r.Position
			if w.project == "" || w.project == r.Project {
				return of(r), nil
			}
		}
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		changed := w.db.Changed(stream)
		records, _, err := w.db.ReadStream(ctx, stream, w.at, page)
		if err != nil {
			return Event{}, err
		}
		if w.pending = records; len(records) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-changed:
		}
	}
}

// Pending reports whether Next has an event without waiting.
func (w *Watcher) Pending() bool { return len(w.pending) > 0 }

// Position is where the watcher is: its last event, or a later one of another
// project.
func (w *Watcher) Position() store.Position { return w.at }
