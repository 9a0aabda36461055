// Package event is how a domain tells the ones before it that something
// happened: an outbox written in the transaction of the change, and
// subscriptions that see each event at least once, in commit order.
package event

import (
	"context"
	"encoding/json"
	"time"

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
		return err
	}
	return tx.Append(ctx, stream, project, name, b)
}
