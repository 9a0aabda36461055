// Package audit is the tamper-evident record of who did what: rows written in
// the transaction of each change, a synced journal for reads and refusals, and
// a sequencer that folds both into a Merkle log with signed checkpoints.
//
// # Map
//
//   - audit.go: Entry, Append for changes, the Journal and RecordRead.
//   - refusal.go: RecordRefusal, by which requests end; summary.go: Summary, which
//     counts the refusals of a storm.
//   - journal.go, segment.go: FileJournal, files that share one sync between
//     concurrent callers, with disk space in reserve.
//   - sequencer.go: folds rows and journal into the log, exactly once.
//   - merkle.go, checkpoint.go: commitments, tree, signed notes, and the second
//     place that exposes a rolled-back or forked log; of both the database and that
//     place, an hour keeps one checkpoint.
//   - archive.go, archivecodec.go: old entries leave the database for the object store, and
//     are read and proven as before.
//   - service.go: List, Export, Erase. verify.go: Verify, which needs no server.
//   - store.go says what this needs from a database; auditsql implements it.
//
// # Life of an entry
//
// A change appends its entry to the stream "audit" in its own transaction. A
// read or a refusal is in the journal, synced, before it is answered. Within a
// second the sequencer gives each entry an index, a random salt and a leaf
// HMAC-SHA-256(salt, entry), extends the RFC 6962 tree, and signs its root. The
// entry is then in the log's table, and gone from stream and journal. Erasing
// salt and entry leaves the leaf: the tree stays verifiable and tells nothing. An old
// entry is in a segment in the object store; its hashes stay in the database.
//
// # Guarantees
//
// What was acknowledged is in the log exactly once, in the order of its source,
// also after kill -9 or power loss. A change of any byte of the log or of an
// export is found by who holds the public key; a log restored from an old copy
// or rewritten with a stolen key is found by who also holds a newer checkpoint.
// Once this process has found that, Append refuses every change, until a person
// has accepted the finding (Sequencer.Accept) or the right database is back.
//
// # What the caller owes
//
// Entries hold names and digests, no contents and no secrets. When Record or
// Append fails, the act must not happen.
package audit

import (
	"context"
	"encoding/json"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

const stream = "audit"

// maxEntry bounds an encoded entry: 64 KiB.
const maxEntry = 64 << 10

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
	// Address is where the request came from, taken from the context unless it is set;
	// empty for Falaj's own work and for a job's requests out of its sandbox.
	Address string `json:"address,omitempty"`
}

// Append records a change in its own transaction. Errors: fault.TooLarge over
// 64 KiB; fault.Unavailable while the log differs from the signed one.
func Append(ctx context.Context, tx *store.Tx, e Entry) error {
	b, err := e.encode(ctx)
	if err != nil {
		return err
	}
	return tx.Append(ctx, stream, e.Project, e.Action, b)
}

func (e Entry) encode(ctx context.Context) ([]byte, error) {
	if e.Actor.Kind == "" {
		e.Actor = identity.From(ctx)
	}
	if e.Outcome == "" {
		e.Outcome = Done
	}
	if e.Address == "" {
		e.Address = identity.CallOf(ctx).Address
	}
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fault.Wrap(err, "encode the audit entry of %s", e.Action)
	}
	if len(b) > maxEntry {
		return nil, fault.New(fault.TooLarge, "the audit entry of %s has %d bytes", e.Action, len(b)).
			WithHint("An entry holds at most %d bytes: names and digests, not contents.", maxEntry)
	}
	return b, nil
}

// Journal records reads of classified data and refused attempts. Record returns
// when the entry is synced; entries of concurrent callers share one sync.
type Journal interface {
	Record(ctx context.Context, e Entry) error
}

// RecordRead records a read of classified data before its answer leaves; nil
// means the answer may. Data of the classification "public" or "internal" is not
// recorded; everything else is, so that a forgotten classification costs time
// and not evidence.
func RecordRead(ctx context.Context, j Journal, classification string, e Entry) error {
	switch classification {
	case "public", "internal":
		return nil
	}
	return fault.Wrap(j.Record(ctx, e), "record the read of %s", e.Object)
}
