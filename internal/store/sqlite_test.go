package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/falaj-ml/falaj/internal/fault"
)

// What only the inside of the SQLite engine shows: groups, and what a failure
// does to one.

var rowSchema = Migrations{Name: "t", FS: fstest.MapFS{"00001_t.sql": {Data: []byte(
	"-- +goose Up\nCREATE TABLE t_row (name TEXT PRIMARY KEY, filler TEXT NOT NULL DEFAULT '');\n")}}}

func openFile(tb testing.TB, path string) *DB {
	tb.Helper()
	db, err := Open(tb.Context(), Config{URL: "sqlite://" + path, Migrations: []Migrations{rowSchema}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func insert(ctx context.Context, db *DB, name, filler string) error {
	return db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
		_, err := tx.NewRaw(`INSERT INTO t_row (name, filler) VALUES (?, ?)`, name, filler).Exec(ctx)
		return err
	})
}

func names(tb testing.TB, db *DB) map[string]bool {
	tb.Helper()
	var all []string
	err := db.View(tb.Context(), func(ctx context.Context, tx *Tx) error {
		return tx.NewRaw(`SELECT name FROM t_row`).Scan(ctx, &all)
	})
	if err != nil {
		tb.Fatal(err)
	}
	m := map[string]bool{}
	for _, n := range all {
		m[n] = true
	}
	return m
}

// onWriter runs f with the writer's connection, between two groups.
func onWriter(tb testing.TB, db *DB, f func(c *sqliteConn)) {
	tb.Helper()
	conn, err := db.engine.(*sqliteDB).writes.DB.Conn(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Raw(func(c any) error { f(c.(*sqliteConn)); return nil }); err != nil {
		tb.Fatal(err)
	}
}

// group runs the closures in one group: they queue up behind one that waits, and
// returns their errors.
func group(tb testing.TB, db *DB, closures ...func(ctx context.Context, tx *Tx) error) []error {
	tb.Helper()
	gate, open := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = db.Update(tb.Context(), "", func(context.Context, *Tx) error { close(open); <-gate; return nil })
	})
	<-open
	errs := make([]error, len(closures))
	for i, fn := range closures {
		wg.Go(func() { errs[i] = db.Update(tb.Context(), "", fn) })
		for db.Waiting() <= i { // so that they run in order
			runtime.Gosched()
		}
	}
	close(gate)
	wg.Wait()
	return errs
}

func add(name string) func(ctx context.Context, tx *Tx) error {
	return func(ctx context.Context, tx *Tx) error {
		_, err := tx.NewRaw(`INSERT INTO t_row (name) VALUES (?)`, name).Exec(ctx)
		return err
	}
}

func TestGroupSharesOneCommit(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
	commits := 0
	onWriter(t, db, func(c *sqliteConn) { c.RegisterCommitHook(func() int { commits++; return 0 }) })
	var closures []func(context.Context, *Tx) error
	for i := range 100 {
		closures = append(closures, add(strconv.Itoa(i)))
	}
	for i, err := range group(t, db, closures...) {
		if err != nil {
			t.Errorf("closure %d: %v", i, err)
		}
	}
	if n := len(names(t, db)); n != 100 {
		t.Errorf("%d rows", n)
	}
	if commits > 50 { // a group ends after 25 ms, so one is not certain on a busy machine
		t.Errorf("100 waiting closures took %d commits", commits)
	}
}

// TestCommitFails: the commit of a group fails, and with it every closure.
func TestCommitFails(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
	onWriter(t, db, func(c *sqliteConn) { c.RegisterCommitHook(func() int { return 1 }) })
	own := errors.New("own")
	hook := false
	errs := group(t, db, add("a"), add("b"),
		func(context.Context, *Tx) error { return own },
		func(_ context.Context, tx *Tx) error { tx.OnCommit(func() { hook = true }); return nil })
	for i, err := range errs {
		var lite sqlite3.Error
		if !errors.As(err, &lite) || !strings.HasPrefix(err.Error(), "commit: ") {
			t.Errorf("closure %d: %v", i, err)
		}
		// What it saw may have been written by the group that is lost.
		if errors.Is(err, own) {
			t.Errorf("closure %d was answered though its group is lost", i)
		}
	}
	if hook {
		t.Error("an OnCommit ran without a commit")
	}
	onWriter(t, db, func(c *sqliteConn) { c.RegisterCommitHook(nil) })
	if err := insert(t.Context(), db, "after", ""); err != nil {
		t.Errorf("after the failure: %v", err)
	}
	if got := names(t, db); len(got) != 1 || !got["after"] {
		t.Errorf("rows %v", got)
	}
}

// TestLostTransaction: SQLite undoes the whole transaction during a closure, and
// nothing that follows runs outside one.
func TestLostTransaction(t *testing.T) {
	for _, statement := range []string{"ROLLBACK", "COMMIT"} {
		t.Run(statement, func(t *testing.T) {
			db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
			errs := group(t, db, add("before"),
				func(ctx context.Context, tx *Tx) error {
					_, _ = tx.ExecContext(ctx, statement)
					_, err := tx.ExecContext(ctx, `INSERT INTO t_row (name) VALUES ('outside')`)
					if err == nil {
						t.Error("a statement ran outside the transaction")
					}
					return nil // and the closure hides it
				},
				add("later"))
			got := names(t, db)
			if errs[1] == nil || errs[0] == nil && !got["before"] { // on a busy machine the first has a group of its own
				t.Errorf("the group is lost, and it answers %v", errs)
			}
			if errs[2] != nil {
				t.Errorf("the group after it: %v", errs[2])
			}
			if got["outside"] || !got["later"] || statement == "ROLLBACK" && errs[0] != nil && got["before"] {
				t.Errorf("rows %v", got)
			}
		})
	}
}

// TestCancelledStatement: a closure is cancelled in the middle of a statement.
// SQLite would undo the whole group if it were interrupted.
func TestCancelledStatement(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var own error
	errs := group(t, db, add("before"),
		func(_ context.Context, tx *Tx) error {
			go cancel()
			_, own = tx.ExecContext(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
				INSERT INTO t_row (name) SELECT 'n' || i FROM n`)
			if own == nil {
				own = ctx.Err()
			}
			return own
		},
		add("after"))
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the others: %v", errs)
	}
	if !errors.Is(errs[1], context.Canceled) {
		t.Errorf("the cancelled one: %v", errs[1])
	}
	if got := names(t, db); len(got) != 2 {
		t.Errorf("%d rows, want the two of the others", len(got))
	}
}

// TestDatabaseFull fills the database to a page limit, which SQLite treats as a
// full disk.
func TestDatabaseFull(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "a.db"))
	limit := func(pages string) {
		onWriter(t, db, func(c *sqliteConn) {
			if _, err := c.SQLiteConn.ExecContext(t.Context(), "PRAGMA max_page_count = "+pages, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	limit("200")
	fillUp(t, db)
	limit("100000")
	if err := insert(t.Context(), db, "space again", ""); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

// fillUp writes until the database is full, and checks what that looks like.
func fillUp(tb testing.TB, db *DB) {
	tb.Helper()
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var full []error
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100000 {
				name := fmt.Sprint(w, "/", i)
				err := insert(tb.Context(), db, name, strings.Repeat("x", 3000))
				mu.Lock()
				if err == nil {
					acknowledged[name] = true
				} else {
					full = append(full, err)
				}
				stop := len(full) > 0
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range full {
		if !fault.Is(err, fault.Exhausted) || !strings.Contains(fault.HintOf(err), "disk space") {
			tb.Errorf("full: kind %v, %v (%s)", fault.KindOf(err), err, fault.HintOf(err))
		}
	}
	if len(full) == 0 || len(acknowledged) == 0 {
		tb.Fatalf("%d acknowledged, %d refused", len(acknowledged), len(full))
	}
	rows := names(tb, db) // it can still be read
	for name := range acknowledged {
		if !rows[name] {
			tb.Errorf("%s was acknowledged and is lost", name)
		}
	}
}

func TestSQLiteSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd % name?#é.db")
	db := openFile(t, path)
	if err := insert(t.Context(), db, "a", ""); err != nil {
		t.Fatal(err)
	}
	info, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(info) != 3 {
		t.Errorf("files %q, %v", info, err)
	}
	for _, f := range info {
		if !strings.HasPrefix(f, path) {
			t.Errorf("file %q beside %q", f, path)
		}
		if mode := stat(t, f); mode != 0o600 {
			t.Errorf("%s has the permissions %o", f, mode)
		}
	}
	for query, want := range map[string]string{"PRAGMA synchronous": "2", "PRAGMA journal_mode": "wal", "PRAGMA foreign_keys": "1"} {
		onWriter(t, db, func(c *sqliteConn) {
			rows, err := c.SQLiteConn.QueryContext(t.Context(), query, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			row := make([]sqlValue, 1)
			if err := rows.Next(row); err != nil || fmt.Sprint(row[0]) != want {
				t.Errorf("%s is %v, %v", query, row[0], err)
			}
		})
	}
	err = db.engine.reader().DB.QueryRowContext(t.Context(), `INSERT INTO t_row (name) VALUES ('b') RETURNING name`).Scan(new(string))
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a reader wrote: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	for url, kind := range map[string]fault.Kind{
		"": fault.Invalid, "sqlite://": fault.Invalid, "mysql://x": fault.Invalid,
		"sqlite://" + dir + "/missing/a.db": fault.Invalid,
		"sqlite://" + dir:                   fault.Unavailable,
		"postgres://%zz":                    fault.Invalid,
		"postgres://nobody@127.0.0.1:1/x":   fault.Unavailable,
	} {
		db, err := Open(t.Context(), Config{URL: url})
		if err == nil {
			_ = db.Close()
		}
		if !fault.Is(err, kind) || fault.HintOf(err) == "" {
			t.Errorf("%q: kind %v, %v (%s)", url, fault.KindOf(err), err, fault.HintOf(err))
		}
	}
	bad := Migrations{Name: "bad", FS: fstest.MapFS{"00001_bad.sql": {Data: []byte("-- +goose Up\nCREATE TABEL x (y);\n")}}}
	_, err := Open(t.Context(), Config{URL: "sqlite://" + dir + "/b.db", Migrations: []Migrations{bad}})
	if err == nil || !strings.Contains(err.Error(), "migrations of bad") {
		t.Errorf("a bad migration: %v", err)
	}
}

// TestReopen: migrations are applied once, positions and lease epochs go on, and
// the leases of the dead process do not bind the new one.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	ctx := t.Context()
	var last Position
	var epoch uint64
	for round := range 3 {
		db, err := Open(ctx, Config{URL: "sqlite://" + path, Migrations: []Migrations{rowSchema}})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := db.Lease(ctx, "loop", strconv.Itoa(round), 1<<50)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Epoch() <= epoch {
			t.Errorf("epoch %d after %d", lease.Epoch(), epoch)
		}
		epoch = lease.Epoch()
		if err := db.Update(ctx, "", func(ctx context.Context, tx *Tx) error { return tx.Append(ctx, "s", "", "k", nil) }); err != nil {
			t.Fatal(err)
		}
		records, next, err := db.ReadStream(ctx, "s", last, 10)
		if err != nil || len(records) != 1 {
			t.Errorf("round %d: %d new entries, %v", round, len(records), err)
		}
		// Numbers are not used again after the newest entries are gone.
		if err := db.TrimStream(ctx, "s", Position{Seq: 1 << 40}); err != nil {
			t.Fatal(err)
		}
		last = next
		if err := errors.Join(db.Close(), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenBesideAReader: somebody who reads the file, as a backup does, does not
// keep the server from starting; the log is cut when the reader has ended.
func TestOpenBesideAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "falaj.db")
	db := openFile(t, path)
	reader, err := sql.Open("sqlite3", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	tx, err := reader.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var n int
	if err := tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM t_row`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := insert(t.Context(), db, "a", ""); err != nil { // which the reader does not see
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	db, err = Open(ctx, Config{URL: "sqlite://" + path, Migrations: []Migrations{rowSchema}})
	if err != nil {
		t.Fatalf("beside a reader: %v", err)
	}
	defer db.Close()
	if err := insert(t.Context(), db, "b", ""); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	db.later.Wait()
	if info, err := os.Stat(path + "-wal"); err != nil || info.Size() != 0 {
		t.Errorf("the log was not cut: %v, %v", info, err)
	}
}

// TestScrubLaterIsOne: however many could not be scrubbed in time, one goes on
// trying, for all of them.
func TestScrubLaterIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &scrubs{asked: make(chan []string, 10)}
		db := &DB{engine: e, later: later{stop: make(chan struct{})}}
		ask := func(tables ...string) {
			t.Helper()
			e.busy.Store(true)
			for _, table := range tables {
				if err := db.scrub(t.Context(), []string{table}); !fault.Is(err, fault.Unavailable) {
					t.Errorf("scrub %s: %v", table, err)
				}
				<-e.asked
			}
		}
		ask("a", "b", "a")
		for _, busy := range []bool{true, false} {
			e.busy.Store(busy)
			if got := <-e.asked; !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("later, %v are scrubbed", got)
			}
		}
		db.later.Wait()
		ask("c")
		e.busy.Store(false)
		if got := <-e.asked; !slices.Equal(got, []string{"c"}) {
			t.Errorf("after all was done, %v are scrubbed", got)
		}
		db.later.Wait()
		if len(e.asked) != 0 {
			t.Errorf("%d more scrubs", len(e.asked))
		}
	})
}

// scrubs is an engine that only tells what it is asked to scrub.
type scrubs struct {
	engine

	busy  atomic.Bool
	asked chan []string
}

func (s *scrubs) scrub(_ context.Context, tables []string) error {
	var err error
	if s.busy.Load() {
		err = errors.New("busy")
	}
	s.asked <- tables
	return err
}
