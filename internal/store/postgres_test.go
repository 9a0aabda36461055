package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// What only PostgreSQL has: other processes, locales, restored databases.

func openPostgres(t *testing.T, url string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: []store.Migrations{writeSchema}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func rawPostgres(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestPostgresRefusesOtherLocales(t *testing.T) {
	url := storetest.Postgres(t)
	admin := rawPostgres(t, url)
	for name, options := range map[string]string{
		"locale":   `ENCODING 'UTF8' LOCALE 'C.UTF-8'`,
		"icu":      `ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'en'`,
		"encoding": `ENCODING 'SQL_ASCII' LOCALE 'C'`,
	} {
		t.Run(name, func(t *testing.T) {
			database := "refused_" + name
			if _, err := admin.ExecContext(t.Context(), `CREATE DATABASE `+database+` TEMPLATE template0 `+options); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), `DROP DATABASE `+database+` WITH (FORCE)`) })
			_, query, _ := strings.Cut(url, "?")
			_, err := store.Open(t.Context(), store.Config{URL: "postgres://postgres@/" + database + "?" + query})
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "createdb") {
				t.Errorf("opened: %v (%s)", err, fault.HintOf(err))
			}
		})
	}
}

// TestPostgresOtherProcess: a commit of another process wakes a reader, also when
// it was late.
func TestPostgresOtherProcess(t *testing.T) {
	url := storetest.Postgres(t)
	here := openPostgres(t, url)
	var there []*store.DB
	var wg sync.WaitGroup
	for range 3 { // which all find the migrations done or wait for them
		there = append(there, nil)
		i := len(there) - 1
		wg.Go(func() { there[i] = openPostgres(t, url) })
	}
	wg.Wait()
	started, finish := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		err := there[0].Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			if err := tx.Append(ctx, "w", "", "k", []byte("late")); err != nil {
				return err
			}
			if _, err := tx.Cursor(ctx, "none"); err != nil { // for which it is sent
				return err
			}
			close(started)
			<-finish
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-started
	if err := write(t.Context(), there[1], 1); err != nil {
		t.Fatal(err)
	}
	if records, _, err := here.ReadStream(t.Context(), "w", store.Position{}, 10); err != nil || len(records) != 0 {
		t.Errorf("read past a transaction that still runs: %d entries, %v", len(records), err)
	}
	changed := here.Changed("w")
	close(finish)
	wg.Wait()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody woke the reader")
	}
	for {
		changed := here.Changed("w")
		records, _, err := here.ReadStream(t.Context(), "w", store.Position{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 2 {
			if string(records[0].Body) != "late" || string(records[1].Body) != "1" {
				t.Errorf("order %s, %s", records[0].Body, records[1].Body)
			}
			return
		}
		<-changed
	}
}

// TestPostgresRestored: the database is restored into a server whose transaction
// ids are lower; positions go on rising.
func TestPostgresRestored(t *testing.T) {
	url := storetest.Postgres(t)
	db := openPostgres(t, url)
	if err := write(t.Context(), db, 1); err != nil {
		t.Fatal(err)
	}
	raw := rawPostgres(t, url)
	for _, q := range []string{ // as if it came from a server a million transactions ahead
		`UPDATE store_stream SET tx = tx + 1000000`,
		`INSERT INTO store_cursor (name, tx, seq) VALUES ('reader', (SELECT MAX(tx) FROM store_stream), 1)`,
	} {
		if _, err := raw.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // the second changes nothing
		db = openPostgres(t, url)
		if err := write(t.Context(), db, int64(2+round)); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	db = openPostgres(t, url)
	var bodies []string
	for len(bodies) < 3 {
		changed := db.Changed("w")
		records, _, err := db.ReadStream(t.Context(), "w", store.Position{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		bodies = nil
		for _, r := range records {
			bodies = append(bodies, string(r.Body))
		}
		if len(bodies) < 3 {
			<-changed
		}
	}
	if got := strings.Join(bodies, " "); got != "1 2 3" {
		t.Errorf("order after the restore: %s", got)
	}
}

// TestPostgresGoesAway: the server ends the connections; errors say so, and later
// writes succeed.
func TestPostgresGoesAway(t *testing.T) {
	url := storetest.Postgres(t)
	db := openPostgres(t, url)
	raw := rawPostgres(t, url)
	kill := func() {
		_, err := raw.ExecContext(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		if err != nil {
			t.Error(err)
		}
	}
	err := db.Update(t.Context(), "", func(context.Context, *store.Tx) error { kill(); return nil })
	if !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("the connection broke: kind %v, %v (%s)", fault.KindOf(err), err, fault.HintOf(err))
	}
	err = db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		kill()
		return tx.Append(ctx, "w", "", "k", nil)
	})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("the connection broke in a statement: kind %v, %v", fault.KindOf(err), err)
	}
	for i := range int64(20) {
		if err := write(t.Context(), db, i); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// TestPostgresHiddenConflict: a closure hides that it lost; it runs again all
// the same.
func TestPostgresHiddenConflict(t *testing.T) {
	db := openPostgres(t, storetest.Postgres(t))
	if err := write(t.Context(), db, 1); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		runs++
		var filler string
		if err := tx.NewRaw(`SELECT filler FROM w_row WHERE id = 1`).Scan(ctx, &filler); err != nil {
			return err
		}
		if runs == 1 { // somebody else changes the row that was read
			raw := make(chan error)
			go func() {
				raw <- db.Update(t.Context(), "other", func(ctx context.Context, tx *store.Tx) error {
					_, err := tx.NewRaw(`UPDATE w_row SET filler = 'theirs' WHERE id = 1`).Exec(ctx)
					return err
				})
			}()
			if err := <-raw; err != nil {
				return err
			}
		}
		_, err := tx.NewRaw(`UPDATE w_row SET filler = ? WHERE id = 1`, filler+" and ours").Exec(ctx)
		if err != nil {
			return fmt.Errorf("the chain is cut: %s", err.Error())
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
	var got string
	err = db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT filler FROM w_row WHERE id = 1`).Scan(ctx, &got)
	})
	if err != nil || got != "theirs and ours" {
		t.Errorf("%q, %v", got, err)
	}
	// One that loses every time ends with an error that says so.
	err = db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$`)
		return err
	})
	if !fault.Is(err, fault.Unavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("it lost every time: %v", err)
	}
}

// TestPostgresScrubWhileReading: rows that somebody's snapshot still sees are kept
// by the server, and nobody is told that they are gone.
func TestPostgresScrubWhileReading(t *testing.T) {
	db := openPostgres(t, storetest.Postgres(t))
	reading, done := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			var n int
			err := tx.NewRaw(`SELECT COUNT(*) FROM store_stream`).Scan(ctx, &n) // another table, which nothing locks
			close(reading)
			<-done
			return err
		})
	}()
	<-reading
	scrub := func() error {
		return db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			tx.Scrub("store_cursor")
			return tx.SetCursor(ctx, "c", store.Position{Seq: 1})
		})
	}
	if err := scrub(); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the deletion is done") {
		t.Errorf("while somebody reads: %v", err)
	}
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := scrub(); err != nil {
		t.Errorf("when nobody reads: %v", err)
	}
}

// TestPostgresLater: statements whose answers nobody waits for are done in their order,
// before what reads them, and fail as if they had been done at once.
func TestPostgresLater(t *testing.T) {
	db := openPostgres(t, storetest.Postgres(t))
	insert := func(ctx context.Context, tx *store.Tx, id int64) error {
		_, err := tx.NewRaw("INSERT INTO w_row (id, filler) VALUES (?, '')", id).Exec(store.Later(ctx))
		return err
	}
	count := func(ctx context.Context, tx *store.Tx) (n int, err error) {
		err = tx.NewRaw("SELECT COUNT(*) FROM w_row").Scan(ctx, &n)
		return n, err
	}
	update := func(fn func(ctx context.Context, tx *store.Tx) error) error { return db.Update(t.Context(), "", fn) }
	holds := func(want int) {
		t.Helper()
		var n int
		err := db.Glance(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
			n, err = count(ctx, tx)
			return err
		})
		if err != nil || n != want {
			t.Errorf("%d rows, not %d: %v", n, want, err)
		}
	}
	err := update(func(ctx context.Context, tx *store.Tx) error {
		if err := errors.Join(insert(ctx, tx, 1), insert(ctx, tx, 2)); err != nil {
			return err
		}
		if n, err := count(ctx, tx); err != nil || n != 2 {
			t.Errorf("the transaction sees %d of its 2 rows: %v", n, err)
		}
		_, err := tx.NewRaw("DELETE FROM w_row WHERE id = 1").Exec(store.Later(ctx))
		return errors.Join(err, insert(ctx, tx, 1), insert(ctx, tx, 3)) // in this order
	})
	if err != nil {
		t.Fatal(err)
	}
	holds(3)
	err = update(func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(insert(ctx, tx, 4), insert(ctx, tx, 1), insert(ctx, tx, 5))
	})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("a row that is there is inserted: %v", err)
	}
	holds(3)
	err = update(func(ctx context.Context, tx *store.Tx) error {
		if err := errors.Join(insert(ctx, tx, 4), insert(ctx, tx, 1)); err != nil {
			return err
		}
		if _, err := count(ctx, tx); err == nil {
			t.Error("what follows a statement that fails does not")
		}
		return nil
	})
	if err == nil {
		t.Error("a failed transaction commits")
	}
	holds(3)
	stop := errors.New("stop")
	err = update(func(ctx context.Context, tx *store.Tx) error {
		if err := insert(ctx, tx, 4); err != nil {
			return err
		}
		for _, want := range []error{nil, stop} { // the failure of what is kept, or another before it is sent
			err := tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error {
				return errors.Join(insert(ctx, tx, 5), insert(ctx, tx, 1), want)
			})
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("the savepoint's failure is lost: %v", err)
			}
		}
		return insert(ctx, tx, 6)
	})
	if err != nil {
		t.Errorf("a savepoint does not contain the failure of what was left for later: %v", err)
	}
	holds(5)
	if err := update(func(ctx context.Context, tx *store.Tx) error { return errors.Join(insert(ctx, tx, 7), stop) }); !errors.Is(err, stop) {
		t.Error(err)
	}
	holds(5)
	big := strings.Repeat("-- words\n", 100_000)
	err = update(func(ctx context.Context, tx *store.Tx) error {
		for id := int64(7); id < 12; id++ {
			if _, err := tx.NewRaw(big+"INSERT INTO w_row (id, filler) VALUES (?, '')", id).Exec(store.Later(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	holds(10)
}
