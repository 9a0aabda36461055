// Package store is the one door to the metadata database: SQLite embedded, or
// PostgreSQL, behind the same transaction.
//
// # Map
//
//   - Open gives a DB. Update runs a closure in the one kind of write
//     transaction there is; View in a read transaction. A Tx carries bun's query
//     builder, so the *sql packages write one query for both databases.
//   - Domain rows, audit entries and events commit in the same Tx.
//   - A stream (Tx.Append, DB.ReadStream) is an append-only log read in commit
//     order: the outbox, the audit rows and watches are streams.
//   - A Lease makes one process the owner of a background loop; its epoch
//     fences the writes of a former owner.
//
// # Guarantees
//
// When Update returns nil, the write is synced to disk. Closures that Update
// refuses (an error, a panic, a lost lease) leave nothing behind. Transactions
// are serialisable. A reader of a stream never skips an entry that commits late:
// positions are handed out up to a watermark below which nothing can appear.
//
// # What the caller owes
//
// Closures do no I/O but the transaction's, start no goroutine, and may run more
// than once (PostgreSQL retries serialisation failures). Time in rows is UTC
// microseconds (Time), floating point that may be NaN is a Float, DDL is written
// in the common subset: TEXT, BIGINT, DOUBLE PRECISION, BOOLEAN, BYTEA.
package store

import (
	"io/fs"

	"github.com/uptrace/bun"
)

// Config says which database to open.
type Config struct {
	// URL is "sqlite:///path/to/falaj.db" or "postgres://user@host/db".
	URL string
	// Migrations are applied in order, each set under its own version table.
	Migrations []Migrations
}

// Migrations is one package's schema: goose SQL files at the root of FS, in the
// common subset of both databases, forward only. Name is the package's domain
// ("training"); its tables carry it as prefix.
type Migrations struct {
	Name string
	FS   fs.FS
}

// Tx is a transaction shared by a domain, the audit log and the outbox.
// It is valid inside its closure only and not safe for concurrent use.
type Tx struct {
	bun.IDB
	hooks *hooks
}

type hooks struct{ committed []func() }

// OnCommit runs f after the transaction is durable, before Update returns.
// f must not block; it is for waking loops.
func (tx *Tx) OnCommit(f func()) { tx.hooks.committed = append(tx.hooks.committed, f) }

// Position is a place in a stream. The zero Position is before the first entry.
type Position struct {
	Tx  uint64 // commit group: 0 on SQLite, the transaction id on PostgreSQL
	Seq uint64
}

// Record is one entry of a stream.
type Record struct {
	Position Position
	Time     Time
	Project  string // owner, for filtered watches; may be empty
	Kind     string // what it is, e.g. "job.finished"
	Body     []byte // JSON
}
