// Package audit is the tamper-evident record of who did what: rows written in
// the transaction of each change, a synced journal for reads and refusals, and
// a sequencer that folds both into a Merkle log with signed checkpoints.
package audit

import (
	"context"
	"encoding/json"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

const stream = "audit"

// Outcome of the audited act.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused"
)

// Entry is one audited act. The actor is taken from the context unless Actor
// is set.
type Entry struct {
	Actor   identity.Principal `json:"actor"`
	Project string             `json:"project,omitempty"`
	Action  string             `json:"action"`           // "dataset.import", the permission's name
	Object  string             `json:"object,omitempty"` // "dataset weather@1"
	Outcome Outcome            `json:"outcome"`
	Reason  string             `json:"reason,omitempty"` // in words, for refusals and widenings
	Detail  map[string]any     `json:"detail,omitempty"` // small; digests, not contents
}

// Append records a change in its own transaction.
func Append(ctx context.Context, tx *store.Tx, e Entry) error {
	if e.Actor.Kind == "" {
		e.Actor = identity.From(ctx)
	}
	if e.Outcome == "" {
		e.Outcome = Done
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return tx.Append(ctx, stream, e.Project, e.Action, b)
}

// Journal records reads of classified data and refused attempts. Record returns
// when the entry is synced; entries of concurrent callers share one sync.
type Journal interface {
	Record(ctx context.Context, e Entry) error
}
