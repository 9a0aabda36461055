package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
)

// Bounds of one group: the closures that share a COMMIT, and so a sync. A group
// ends at either bound or when no closure is waiting, so that later closures do not delay
// its first one.
const (
	maxGroup     = 512
	maxGroupTime = 25 * time.Millisecond
	maxTurnWait  = 30 * time.Second
)

// inMemory keeps the old pages of savepoints in memory: they would be a file for each
// closure, outside of the data directory.
const inMemory = `PRAGMA temp_store = MEMORY`

// busyTimeout is how long SQLite waits for another's lock, in milliseconds.
const busyTimeout = "10000"

// sqliteDB is SQLite in WAL mode with synchronous=FULL: one goroutine owns the
// one connection that writes; readers have connections of their own.
//
// The writer opens a transaction, gives the waiting closures their turn in it
// one after the other, each inside a savepoint, and commits once. A closure runs
// in its caller's goroutine while the writer waits, so that a panic or a Goexit
// of it is the caller's and not the writer's. Also a closure that failed is
// answered only after the commit: what it saw may be from the same group.
type sqliteDB struct {
	path   string
	queue  *queue[*turn]
	writes *bun.DB
	reads  *bun.DB
	holder atomic.Pointer[string] // lane of the running closure, for the message of a wait that timed out
	done   chan struct{}          // closed when the writer has ended
	// unscrubbed says that the log of before could not be cut while it was opened.
	unscrubbed bool
}

// turn is one closure on its way through the writer.
type turn struct {
	lane  string
	begin chan bun.Tx // writer → caller: run in this transaction; closed with err set: not at all
	ran   chan verdict
	ended chan struct{} // writer → caller: the outcome is in err
	err   error         // of the group, or of a closure that hid a statement's failure
}

type verdict uint8

const (
	keep    verdict = iota
	undo            // and the caller waits for the outcome
	abandon         // and the caller is gone
)

// idleReaders is how many connections that read stay open.
const idleReaders = 4

func openSQLite(ctx context.Context, path string, cfg Config) (*sqliteDB, error) {
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	file := "file:" + url.PathEscape(path)
	params := url.Values{
		"_busy_timeout": {busyTimeout}, "_foreign_keys": {"1"},
		"_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_txlock": {"immediate"},
		"_stmt_cache_size": {strconv.Itoa(keptStatements)},
	}
	writer := &sqliteWriter{dsn: file + "?" + params.Encode()}
	writes := sql.OpenDB(writer)
	writes.SetMaxOpenConns(1)
	s := &sqliteDB{path: path, queue: newQueue[*turn](), writes: bun.NewDB(writes, sqlitedialect.New()), done: make(chan struct{})}
	err := s.check(ctx)
	if err == nil {
		err = migrate(ctx, writes, sqliteMigrations, cfg, roomBeside(path))
	}
	if err == nil {
		// A lease on SQLite is another process's only if that process is dead: the
		// data directory has one server.
		_, err = writes.ExecContext(ctx, `UPDATE store_lease SET expires = 0`)
	}
	if err == nil {
		// What a crash kept from being scrubbed. A backup that reads the file holds
		// up no start.
		s.unscrubbed, err = s.truncate(ctx)
	}
	if err == nil {
		err = fsync.Dir(filepath.Dir(path))
	}
	if writer.running.Store(true); err == nil {
		_, err = writes.ExecContext(ctx, inMemory)
	}
	if err != nil {
		_ = writes.Close()
		return nil, classify(err)
	}
	params.Del("_journal_mode")
	params.Del("_txlock")
	params.Set("mode", "ro")
	params.Set("_query_only", "1")
	reads := sql.OpenDB(&sqliteReader{dsn: file + "?" + params.Encode()})
	reads.SetMaxOpenConns(max(8, 2*runtime.GOMAXPROCS(0)))
	reads.SetMaxIdleConns(idleReaders)
	s.reads = bun.NewDB(reads, sqlitedialect.New())
	if err := warm(ctx, reads); err != nil {
		return nil, errors.Join(classify(err), reads.Close(), writes.Close())
	}
	go s.write()
	return s, nil
}

// warm opens the connections that stay open anyway, so that the files that the server has
// open tell of its work and not of how much of it once came at a time.
func warm(ctx context.Context, reads *sql.DB) error {
	var conns []*sql.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range idleReaders {
		c, err := reads.Conn(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		var n int64 // a connection opens the log with its first read
		if err := c.QueryRowContext(ctx, `SELECT COUNT(*) FROM store_lease`).Scan(&n); err != nil {
			return err
		}
	}
	return nil
}

// createPrivate makes an empty database file that only we may read; SQLite gives
// the files beside it the same permissions.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return fault.New(fault.Invalid, "the directory of the database %s does not exist", path).WithHint("Create the directory first.")
	}
	if err != nil {
		return fault.New(fault.Unavailable, "open database: %w", err).WithHint("Check that the server has read and write permission in the database's directory.")
	}
	return f.Close()
}

// check refuses a place where SQLite cannot keep its promise.
func (s *sqliteDB) check(ctx context.Context) error {
	var journal string
	var synchronous int
	if err := s.writes.DB.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&journal); err != nil {
		return fault.Wrap(classify(err), "open database")
	}
	if err := s.writes.DB.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&synchronous); err != nil {
		return fault.Wrap(classify(err), "open database")
	}
	if journal != "wal" || synchronous != 2 {
		return fault.New(fault.Unsupported, "the database has journal_mode %s and synchronous %d instead of wal and 2", journal, synchronous).
			WithHint("Move the data directory to a local file system; network file systems are not supported.")
	}
	return nil
}

func (s *sqliteDB) update(ctx context.Context, lane string, fn func(ctx context.Context, tx bun.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := &turn{lane: lane, begin: make(chan bun.Tx, 1), ran: make(chan verdict, 1), ended: make(chan struct{})}
	if err := s.queue.push(lane, t); err != nil {
		return err
	}
	tx, ok, err := s.await(ctx, t)
	if err != nil {
		return err
	}
	if !ok { // the group could not begin
		<-t.ended
		return t.err
	}
	v := abandon
	defer func() {
		if v == abandon { // fn panicked or ended the goroutine
			t.ran <- abandon
		}
	}()
	err = fn(ctx, tx)
	v = keep
	if err != nil {
		v = undo
	}
	t.ran <- v
	<-t.ended
	if t.err != nil {
		return t.err
	}
	return err
}

// await waits for the turn, at most until ctx ends or the queue seems stuck.
func (s *sqliteDB) await(ctx context.Context, t *turn) (bun.Tx, bool, error) {
	select {
	case tx, ok := <-t.begin: // the common case under load needs no timer
		return tx, ok, nil
	default:
	}
	timeout := time.NewTimer(maxTurnWait)
	defer timeout.Stop()
	var err error
	select {
	case tx, ok := <-t.begin:
		return tx, ok, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = s.writeLockTimeout()
	}
	if s.queue.remove(t.lane, t) {
		return bun.Tx{}, false, err
	}
	if _, ok := <-t.begin; ok { // the turn came at the same moment
		t.ran <- abandon
	}
	return bun.Tx{}, false, err
}

// writeLockTimeout is the error of a wait for the write lock; it names the project that holds it.
func (s *sqliteDB) writeLockTimeout() error {
	who := "the disk"
	if p := s.holder.Load(); p != nil {
		who = fmt.Sprintf("a write of project %q", *p)
	}
	return fault.New(fault.Unavailable, "waiting for the write lock exceeded %s: %s does not end", maxTurnWait, who).
		WithHint("Try again; if this persists, check the disk's health and restart the server.")
}

// write is the writer's loop.
func (s *sqliteDB) write() {
	defer close(s.done)
	last := 0
	for range s.queue.filled {
		for {
			first, ok := s.queue.pop()
			if !ok {
				break
			}
			last = s.group(first, last)
		}
		if s.queue.stopped() {
			return
		}
	}
}

// group runs closures, beginning with first, in one transaction. last is the
// size of the group before, which tells whether more are about to come.
func (s *sqliteDB) group(first *turn, last int) (size int) {
	ctx := context.Background()
	tx, err := s.writes.BeginTx(ctx, nil)
	if err != nil {
		s.refuse(first, err)
		return 0
	}
	var (
		waiting []*turn // for the outcome
		kept    int
		until   = time.Now().Add(maxGroupTime)
	)
	for t := first; t != nil; t = s.next(len(waiting), last, until) {
		v, err := s.run(ctx, tx, t)
		if v != abandon {
			waiting = append(waiting, t)
		}
		if err != nil { // the whole transaction is lost
			_ = tx.Rollback()
			finish(waiting, err)
			return len(waiting)
		}
		if v == keep {
			kept++
		}
	}
	if kept == 0 {
		err = tx.Rollback()
	} else {
		err = tx.Commit()
	}
	if err != nil {
		err = fault.Wrap(classify(err), "commit")
	}
	finish(waiting, err)
	return len(waiting)
}

// next is the next closure for a group of n so far, nil when the group is to end.
func (s *sqliteDB) next(n, last int, until time.Time) *turn {
	if n >= maxGroup || !time.Now().Before(until) {
		return nil
	}
	t, ok := s.queue.pop()
	// Those whom the group before answered are on their way back; a sync costs
	// more than letting them run.
	for i := 0; !ok && n < last && i < 4; i++ {
		runtime.Gosched()
		t, ok = s.queue.pop()
	}
	if !ok {
		return nil
	}
	return t
}

// run gives t its turn inside a savepoint. An error means that the transaction
// as a whole is gone.
func (s *sqliteDB) run(ctx context.Context, tx bun.Tx, t *turn) (verdict, error) {
	if _, err := tx.Tx.ExecContext(ctx, `SAVEPOINT turn`); err != nil {
		close(t.begin)
		return undo, err
	}
	s.holder.Store(&t.lane)
	t.begin <- tx
	v := <-t.ran
	s.holder.Store(nil)
	if v != keep {
		if _, err := tx.Tx.ExecContext(ctx, `ROLLBACK TO turn`); err != nil {
			return v, err
		}
	}
	_, err := tx.Tx.ExecContext(ctx, `RELEASE turn`)
	if v == keep && errors.Is(err, errAborted) {
		t.err, v = err, undo
		if _, err = tx.Tx.ExecContext(ctx, `ROLLBACK TO turn`); err == nil {
			_, err = tx.Tx.ExecContext(ctx, `RELEASE turn`)
		}
	}
	return v, err
}

// refuse answers t and all waiting turns with an error from opening the transaction.
func (s *sqliteDB) refuse(t *turn, err error) {
	err = fault.Wrap(classify(err), "begin")
	for ok := true; ok; t, ok = s.queue.pop() {
		close(t.begin)
		t.err = err
		close(t.ended)
	}
}

func finish(turns []*turn, err error) {
	for _, t := range turns {
		if err != nil {
			t.err = err
		}
		close(t.ended)
	}
}

func (s *sqliteDB) view(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return viewOn(ctx, s.reads, readOnly, fn)
}

func (s *sqliteDB) glance(ctx context.Context, fn func(ctx context.Context, db bun.IDB) error) error {
	return s.view(ctx, func(ctx context.Context, tx bun.Tx) error { return fn(ctx, tx) })
}

// viewOn runs fn in a read transaction on a connection of the pool, for which it
// waits as long as for a turn to write.
func viewOn(ctx context.Context, db *bun.DB, options *sql.TxOptions, fn func(ctx context.Context, tx bun.Tx) error) error {
	wait, cancel := context.WithTimeout(ctx, maxTurnWait)
	defer cancel()
	conn, err := db.Conn(wait)
	if err != nil {
		if ctx.Err() == nil && wait.Err() != nil {
			return fault.New(fault.Unavailable, "no database connection for reading within %s", maxTurnWait).
				WithHint("Try again; too many long reads are in progress.")
		}
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return Ended(ctx, fn(ctx, tx))
}

func (s *sqliteDB) entryTx() string { return `0` }
func (s *sqliteDB) below() string   { return `1 = 1` }

// Every tx is 0 here; for "(tx, seq) > (?, ?)" SQLite would use the index up to
// tx only, and read the whole stream for each new entry.
func (s *sqliteDB) past() string    { return `tx = ? AND seq > ?` }
func (s *sqliteDB) now() string     { return strconv.FormatInt(int64(At(time.Now())), 10) }
func (s *sqliteDB) reader() *bun.DB { return s.reads }
func (s *sqliteDB) others() bool    { return false }
func (s *sqliteDB) outage() error   { return nil }

func (s *sqliteDB) waiting() int { return s.queue.length() }

// scrub writes the log back into the database and cuts it to nothing: the old
// bytes are in pages of the log until then. Deleted bytes of the database itself
// are zeros (secure_delete). It waits for the readers of old pages in short turns,
// between which the writer has its own.
func (s *sqliteDB) scrub(ctx context.Context, _ []string) error {
	for {
		busy, err := s.truncate(ctx)
		switch {
		case err != nil:
			return err
		case !busy:
			return nil
		case ctx.Err() != nil:
			return errors.New("a read is in progress")
		}
	}
}

// truncate is one turn of scrub, in which SQLite waits for readers.
func (s *sqliteDB) truncate(ctx context.Context) (busy bool, err error) {
	conn, err := s.writes.DB.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = 200`); err != nil {
		return false, err
	}
	var frames, done int
	err = conn.QueryRowContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &frames, &done)
	_, resetErr := conn.ExecContext(ctx, `PRAGMA busy_timeout = `+busyTimeout)
	return busy, errors.Join(err, resetErr)
}

const sqliteWatermark = `SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'store_stream'`

// watermark is the last number handed out: there is one writer, and it numbers
// entries in the order in which it commits them.
func (s *sqliteDB) watermark(ctx context.Context) (Position, error) {
	var p Position
	err := s.reads.DB.QueryRowContext(ctx, sqliteWatermark).Scan(&p.Seq)
	return p, err
}

func (s *sqliteDB) close() error {
	s.queue.stop()
	<-s.done
	return errors.Join(s.reads.Close(), s.writes.Close())
}

// sqliteWriter opens the connection that writes.
type sqliteWriter struct {
	dsn string
	// running says that migrations are over, whose indexes are sorted in files.
	running atomic.Bool
}

func (w *sqliteWriter) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

func (w *sqliteWriter) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Driver().Open(w.dsn)
	if err != nil {
		return nil, err
	}
	conn := &sqliteConn{SQLiteConn: c.(*sqlite3.SQLiteConn)}
	// Fewer, larger checkpoints than by default; the file shrinks again after a
	// burst. 4096 pages are 16 MiB. What is deleted is overwritten with zeros.
	for _, pragma := range []string{`PRAGMA wal_autocheckpoint = 4096`, `PRAGMA journal_size_limit = 67108864`, `PRAGMA secure_delete = 1`} {
		if _, err := conn.SQLiteConn.ExecContext(ctx, pragma, nil); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	if w.running.Load() {
		if _, err := conn.SQLiteConn.ExecContext(ctx, inMemory, nil); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return conn, nil
}

// sqliteConn is the writer's connection. It keeps one closure from harming the
// others of its group: a cancelled context does not interrupt a statement
// (SQLite would undo the whole transaction), and after SQLite undid the
// transaction automatically (disk full, I/O error) no statement runs outside it.
//
// After a statement failed, the others fail too until the savepoint before it is
// rolled back. SQLite does not ask for that, but PostgreSQL does, and a closure
// must not work on one of them only.
type sqliteConn struct {
	*sqlite3.SQLiteConn
	inTx   bool
	cause  error // of the loss of this transaction
	failed error // of a statement that nothing has undone yet
}

var errAborted = errors.New("an earlier statement of this transaction failed")

func (c *sqliteConn) BeginTx(_ context.Context, options driver.TxOptions) (driver.Tx, error) {
	tx, err := c.SQLiteConn.BeginTx(context.Background(), options)
	if err != nil {
		return nil, err
	}
	c.inTx, c.cause, c.failed = true, nil, nil
	return &sqliteTx{c: c, tx: tx}, nil
}

func (c *sqliteConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.refuses(query); err != nil {
		return nil, err
	}
	query, args = lifted(query, args)
	res, err := c.SQLiteConn.ExecContext(context.WithoutCancel(ctx), query, args)
	c.note(err)
	return res, err
}

func (c *sqliteConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.refuses(query); err != nil {
		return nil, err
	}
	query, args = lifted(query, args)
	rows, err := c.SQLiteConn.QueryContext(context.WithoutCancel(ctx), query, args)
	c.note(err)
	if r, ok := rows.(*sqlite3.SQLiteRows); ok && err == nil {
		return &sqliteRows{SQLiteRows: r, c: c}, nil
	}
	return rows, err
}

// sqliteRows notes the errors that a statement shows only when it is read.
type sqliteRows struct {
	*sqlite3.SQLiteRows
	c *sqliteConn
}

func (r *sqliteRows) Next(dest []driver.Value) error {
	err := r.SQLiteRows.Next(dest)
	if !errors.Is(err, io.EOF) {
		r.c.note(err)
	}
	return err
}

func (c *sqliteConn) refuses(query string) error {
	if err := c.lost(); err != nil {
		return err
	}
	if !c.inTx || c.failed == nil {
		return nil
	}
	if strings.HasPrefix(query, "ROLLBACK TO") {
		c.failed = nil
		return nil
	}
	return fmt.Errorf("%w: %w", errAborted, c.failed)
}

func (c *sqliteConn) note(err error) {
	if err == nil || !c.inTx {
		return
	}
	if c.failed == nil {
		c.failed = err
	}
	if c.cause == nil && c.AutoCommit() {
		c.cause = err
	}
}

// lost is an error when the transaction that the caller believes in is gone.
func (c *sqliteConn) lost() error {
	if !c.inTx || !c.AutoCommit() {
		return nil
	}
	if c.cause != nil {
		return fmt.Errorf("the database rolled the transaction back: %w", c.cause)
	}
	return errors.New("the transaction was ended by a statement in it")
}

type sqliteTx struct {
	c  *sqliteConn
	tx driver.Tx
}

func (t *sqliteTx) Commit() error {
	err := t.c.lost()
	t.c.inTx = false
	if err != nil {
		return err
	}
	return t.tx.Commit()
}

func (t *sqliteTx) Rollback() error {
	lost := t.c.lost()
	t.c.inTx = false
	if lost != nil {
		return nil //nolint:nilerr // what is gone need not be undone
	}
	return t.tx.Rollback()
}

// sqliteReader opens connections that read.
type sqliteReader struct{ dsn string }

func (r *sqliteReader) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

func (r *sqliteReader) Connect(context.Context) (driver.Conn, error) {
	c, err := r.Driver().Open(r.dsn)
	if err != nil {
		return nil, err
	}
	return &readConn{c.(*sqlite3.SQLiteConn)}, nil
}

// readConn is a connection that reads.
type readConn struct{ *sqlite3.SQLiteConn }

// BeginTx takes no lock and so never waits: to watch for the end of a context
// would take a goroutine.
func (c *readConn) BeginTx(_ context.Context, options driver.TxOptions) (driver.Tx, error) {
	return c.SQLiteConn.BeginTx(context.Background(), options)
}

func (c *readConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	query, args = lifted(query, args)
	return c.SQLiteConn.QueryContext(ctx, query, args)
}

// sqlitePath is the file of a URL, and whether it is one of SQLite.
func sqlitePath(rawURL string) (string, bool) {
	path, ok := strings.CutPrefix(rawURL, "sqlite://")
	return path, ok && path != ""
}
