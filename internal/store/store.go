// Package store is the one door to the metadata database: SQLite embedded, or
// PostgreSQL, behind the same transaction.
//
// # Map
//
//   - Open gives a DB. Update runs a closure in the one kind of write
//     transaction there is; View in a read transaction. A Tx carries bun's query
//     builder, so the *sql packages write one query for both databases.
//   - Domain rows, audit entries and events commit in the same Tx.
//   - A stream (Tx.Append, DB.ReadStream, DB.Changed) is an append-only log read
//     in commit order: the outbox, the audit rows and watches are streams. A
//     cursor (Tx.Cursor, Tx.SetCursor) is a reader's durable place in one.
//   - A Lease makes one process the owner of a background loop; its epoch
//     fences the writes of a former owner.
//   - Once makes a request with an idempotency key take effect at most once.
//
// rows.go inserts many rows at once, later.go spares round trips to PostgreSQL. sqlite.go holds the group commit, literals.go lets SQLite keep statements
// prepared, postgres.go holds the retries, queue.go the fair turn that both take;
// storetest is the suite that both pass.
//
// # Guarantees
//
// When Update returns nil, the write is synced to disk. Closures that Update
// refuses (an error, a panic, a lost lease) leave nothing behind. Transactions
// are serialisable. A reader of a stream never skips an entry that commits late:
// positions are handed out up to a watermark below which nothing can appear.
//
// An error that Update returns because the commit itself failed may hide a write
// that took place after all (the power failed, the connection broke): its kind
// is Unavailable or Exhausted, never Conflict, and Once makes the repetition safe.
//
// # What the caller owes
//
// Closures do no I/O but the transaction's, start no goroutine, and may run more
// than once (PostgreSQL retries serialisation failures). After a statement failed,
// the closure returns, unless a Savepoint contains the failure. A View or an Update is
// not nested in an Update: the first joins the transaction, the second is refused.
// Time in rows is UTC microseconds (Time), floating point that may be NaN is a
// Float, DDL is written in the common subset: TEXT, BIGINT, DOUBLE PRECISION,
// BOOLEAN, BYTEA, no deferred constraints.
package store

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Config says which database to open.
type Config struct {
	// URL is "sqlite:///path/to/falaj.db" (the path as it is, nothing escaped) or
	// "postgres://user@host/db".
	URL string
	// Password is that of PostgreSQL, asked for each new connection; nil is what the URL
	// says.
	Password func() string
	// Migrations are applied in order, each set under its own version table.
	Migrations []Migrations
	// Upgrading is called before the schema of a database of an older version is changed; if it
	// returns an error, the database is not changed. Nil for none.
	Upgrading func(Upgrade) error
	// Upgraded is called after each step of an upgrade with the number of finished steps. Nil
	// for none.
	Upgraded func(done int, of Upgrade)
	// Log gets the progress of an upgrade and outages of PostgreSQL. Nil for none.
	Log *slog.Logger
}

// Migrations is one package's schema: goose SQL files at the root of FS, in the
// common subset of both databases, forward only; what one of them alone needs is in a
// file that ends with .sqlite.sql or .postgres.sql. Name is the package's domain
// ("training"); its tables carry it as prefix.
type Migrations struct {
	Name string
	FS   fs.FS
}

// Embedded are the migrations of a *sql package, which embeds its migrations/*.sql.
func Embedded(name string, files embed.FS) Migrations {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the path is valid
	}
	return Migrations{Name: name, FS: dir}
}

// DB is an open database. Safe for concurrent use; Close it.
type DB struct {
	engine  engine
	changes *changes
	later   later
	refused atomic.Pointer[map[string]error] // streams that take no entries, and why; never changed, only replaced
	close   sync.Once
	closed  error
}

// engine is what differs between the two databases.
type engine interface {
	// update runs fn in a write transaction when lane's turn has come, and
	// returns when the outcome is known. fn may run more than once.
	update(ctx context.Context, lane string, fn func(ctx context.Context, tx bun.Tx) error) error
	// view runs fn in a read-only transaction of one snapshot.
	view(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error

	// glance runs fn for one statement, which is a transaction of its own.
	glance(ctx context.Context, fn func(ctx context.Context, db bun.IDB) error) error

	// entryTx is the expression for an entry's column tx, the first part of its
	// position; below is the condition that keeps a reader under the watermark.
	entryTx() (expr string)
	below() (where string)
	// past is the condition for an entry after a position; its two arguments are the
	// position's tx and seq.
	past() (where string)
	// watermark is the position below or at which nothing can appear any more.
	watermark(ctx context.Context) (Position, error)
	// now is the clock that leases go by, as an expression in microseconds.
	now() (expr string)
	// reader runs single statements outside a transaction.
	reader() *bun.DB
	// others reports whether other processes may write to the database.
	others() bool
	// outage says that the database does not answer; nil while it does.
	outage() error
	// waiting counts the closures that wait for their turn to write.
	waiting() int
	// scrub makes sure that nothing that was deleted or overwritten in the tables
	// by a transaction that has committed is left in the database's files.
	scrub(ctx context.Context, tables []string) error

	close() error
}

// Tx is a transaction shared by a domain, the audit log and the outbox.
// It is valid inside its closure only and not safe for concurrent use.
type Tx struct {
	bun.IDB
	db       *DB
	hooks    *hooks
	writable bool
	ended    *atomic.Bool
}

// hooks are what a transaction does once it is durable.
type hooks struct {
	committed []func()
	streams   []string
	scrubs    bool
	tables    []string // to scrub
}

type contextKey struct{}

// inside is the transaction of db that ctx runs in, or nil.
func (db *DB) inside(ctx context.Context) *Tx {
	tx, _ := ctx.Value(contextKey{}).(*Tx)
	if tx == nil || tx.db != db || tx.ended.Load() {
		return nil
	}
	return tx
}

// Update runs fn in a write transaction and returns when it is durable. lane is
// the project (or "" for the system) in the fair write queue.
//
// Errors: fn's own; fault.Exhausted when the lane has too many writes waiting or
// the disk is full; fault.Unavailable when the whole queue is full, did not move
// for half a minute, or the database is away; ctx's while waiting for the turn.
// A panic in fn rolls fn back and continues in the caller.
func (db *DB) Update(ctx context.Context, lane string, fn func(ctx context.Context, tx *Tx) error) error {
	if tx := db.inside(ctx); tx != nil && tx.writable {
		return fault.New(fault.Internal, "store: Update inside Update; pass the transaction on instead")
	}
	once := onceFrom(ctx, db)
	var h *hooks
	var streams []string // that have new entries
	n := db.changes.begin()
	defer func() { db.changes.end(n, streams) }()
	err := db.engine.update(ctx, lane, func(ctx context.Context, btx bun.Tx) error {
		h = &hooks{}
		tx := &Tx{IDB: btx, db: db, hooks: h, writable: true, ended: &atomic.Bool{}}
		defer tx.ended.Store(true)
		ctx = context.WithValue(ctx, contextKey{}, tx)
		if once != nil {
			if err := once.claim(ctx, tx); err != nil {
				return err
			}
		}
		return fn(ctx, tx)
	})
	if err != nil {
		return classify(err)
	}
	if once != nil {
		once.claimed.Store(true)
	}
	streams = h.streams
	for _, f := range h.committed {
		f()
	}
	if h.scrubs {
		return db.scrub(ctx, h.tables)
	}
	return nil
}

// scrubTimeout bounds the wait for readers that still see what was deleted.
const scrubTimeout = 5 * time.Second

// scrub does what Tx.Scrub asked for, also when the caller is gone; what it cannot
// do in time is done later.
func (db *DB) scrub(ctx context.Context, tables []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scrubTimeout)
	defer cancel()
	err := db.engine.scrub(ctx, tables)
	if err == nil {
		return nil
	}
	db.scrubLater(tables)
	return fault.New(fault.Unavailable, "the deletion is done, but the old bytes may remain in the database's files: %w", err).
		WithHint("Long reads may be in progress. The server retries, also after a restart.")
}

// later is the background work until Close: one scrub, shared by all
// callers.
type later struct {
	sync.Mutex
	sync.WaitGroup
	closed  bool
	stop    chan struct{}
	running bool
	asked   int      // how often a scrub was left for later
	tables  []string // to scrub
}

// scrubLater has tables scrubbed in the background.
func (db *DB) scrubLater(tables []string) {
	l := &db.later
	l.Lock()
	defer l.Unlock()
	for _, t := range tables {
		if !slices.Contains(l.tables, t) {
			l.tables = append(l.tables, t)
		}
	}
	l.asked++
	if l.running || l.closed {
		return
	}
	l.running = true
	l.Go(db.scrubAgain)
}

// scrubAgain retries until it succeeds without a later request.
func (db *DB) scrubAgain() {
	l := &db.later
	tick := time.NewTicker(scrubTimeout)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		l.Lock()
		tables, asked := slices.Clone(l.tables), l.asked
		l.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), scrubTimeout)
		err := db.engine.scrub(ctx, tables)
		cancel()
		if err != nil {
			continue
		}
		l.Lock()
		done := l.asked == asked
		if done {
			l.running, l.tables = false, nil
		}
		l.Unlock()
		if done {
			return
		}
	}
}

// View runs fn in a read transaction that sees one snapshot: every write
// acknowledged before View was called, and none of a later one. Inside an Update
// or a View it joins that transaction.
func (db *DB) View(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if tx := db.inside(ctx); tx != nil {
		return fn(ctx, tx)
	}
	return classify(db.engine.view(ctx, func(ctx context.Context, btx bun.Tx) error {
		tx := &Tx{IDB: btx, db: db, hooks: &hooks{}, ended: &atomic.Bool{}}
		defer tx.ended.Store(true)
		return fn(context.WithValue(ctx, contextKey{}, tx), tx)
	}))
}

// Glance is View for a closure of one statement. On PostgreSQL it runs without BEGIN and COMMIT,
// in one round trip. Like a View it sees every write acknowledged before.
func (db *DB) Glance(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if tx := db.inside(ctx); tx != nil {
		return fn(ctx, tx)
	}
	return classify(db.engine.glance(ctx, func(ctx context.Context, idb bun.IDB) error {
		tx := &Tx{IDB: idb, db: db, hooks: &hooks{}, ended: &atomic.Bool{}}
		defer tx.ended.Store(true)
		return fn(context.WithValue(ctx, contextKey{}, tx), tx)
	}))
}

// Shared reports whether other processes may use the database, so that loops
// need a Lease.
func (db *DB) Shared() bool { return db.engine.others() }

// Outage says that the database does not answer, and nil while it does: without asking
// it. Error: fault.Unavailable.
func (db *DB) Outage() error { return db.engine.outage() }

// Waiting is how many closures wait for their turn to write now, for metrics.
func (db *DB) Waiting() int { return db.engine.waiting() }

// Close refuses new transactions, waits for those that run or wait for their
// turn, and closes the database. It may be called twice.
func (db *DB) Close() error {
	db.close.Do(func() {
		db.changes.stop()
		db.later.Lock()
		db.later.closed = true
		close(db.later.stop)
		db.later.Unlock()
		db.later.Wait()
		db.closed = db.engine.close()
	})
	return db.closed
}

// Writes reports whether the transaction may change something: what is read in it may
// be undone.
func (tx *Tx) Writes() bool { return tx.writable }

// OnCommit runs f after the transaction is durable, before Update returns.
// f must not block; it is for waking loops.
func (tx *Tx) OnCommit(f func()) { tx.hooks.committed = append(tx.hooks.committed, f) }

// Scrub asks that nothing of what this transaction deleted or overwrote is left
// in the database's files when Update returns; for keys and for erased persons.
// Copies that others have (backups, replicas, archived logs) are theirs. On
// PostgreSQL, which keeps old rows, the named tables are written anew. Error, of
// Update: fault.Unavailable; the transaction is durable all the same, and the
// trace is removed later.
func (tx *Tx) Scrub(tables ...string) {
	tx.hooks.scrubs, tx.hooks.tables = true, append(tx.hooks.tables, tables...)
}

// Savepoint runs fn so that its error or panic undoes only what fn did.
func (tx *Tx) Savepoint(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	committed, streams := len(tx.hooks.committed), len(tx.hooks.streams)
	kept := false
	defer func() {
		if !kept {
			tx.hooks.committed, tx.hooks.streams = tx.hooks.committed[:committed], tx.hooks.streams[:streams]
		}
	}()
	err := tx.RunInTx(ctx, nil, func(ctx context.Context, inner bun.Tx) error {
		sub := *tx
		sub.IDB = inner
		if err := fn(context.WithValue(ctx, contextKey{}, &sub), &sub); err != nil {
			return err
		}
		return sub.send(ctx)
	})
	kept = err == nil
	return err
}

// send has PostgreSQL take what was left for later, so that its errors are those of now.
func (tx *Tx) send(ctx context.Context) error {
	if tx.Dialect().Name() != dialect.PG {
		return nil
	}
	_, err := tx.ExecContext(context.WithValue(ctx, sendKey{}, true), "")
	return err
}

// readOnly are the options of a View.
var readOnly = &sql.TxOptions{ReadOnly: true}
