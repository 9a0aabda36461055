// Package storetest is the conformance suite of store: what holds on SQLite holds
// on PostgreSQL. Run checks a database that the caller opens; Postgres starts a
// server to check against.
package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// Open opens an empty database of the test's own with the migrations, and closes
// it when the test ends.
type Open func(tb testing.TB, migrations ...store.Migrations) *store.DB

// SQLite opens a database in the test's temporary directory.
func SQLite(tb testing.TB, migrations ...store.Migrations) *store.DB {
	tb.Helper()
	return open(tb, SQLiteURL(tb, tb.TempDir(), migrations...), migrations)
}

// PostgreSQL opens a database of the shared server, see Postgres.
func PostgreSQL(tb testing.TB, migrations ...store.Migrations) *store.DB {
	tb.Helper()
	return open(tb, Postgres(tb, migrations...), migrations)
}

func open(tb testing.TB, url string, migrations []store.Migrations) *store.DB {
	tb.Helper()
	db, err := store.Open(tb.Context(), store.Config{URL: url, Migrations: migrations})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return db
}

// schema is what the suite works on.
var schema = store.Migrations{Name: "suite", FS: fstest.MapFS{"00001_suite.sql": {Data: []byte(`-- +goose Up
CREATE TABLE suite_item (name TEXT PRIMARY KEY, number BIGINT NOT NULL, real DOUBLE PRECISION, flag BOOLEAN, raw BYTEA);
CREATE TABLE suite_note (project TEXT NOT NULL, body TEXT NOT NULL);
`)}}}

type item struct {
	Name   string
	Number int64
	Real   store.Float
	Flag   bool
	Raw    []byte
}

// subject is one test of the suite and the database under test.
type subject struct {
	*testing.T
	db *store.DB
}

// Run runs the suite.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *subject)
	}{
		{"CommittedIsVisible", committedIsVisible},
		{"ErrorUndoesOnlyItsClosure", errorUndoesOnlyItsClosure},
		{"PanicUndoesOnlyItsClosure", panicUndoesOnlyItsClosure},
		{"Savepoints", savepoints},
		{"Hooks", hooks},
		{"Nesting", nesting},
		{"Floats", floats},
		{"Times", times},
		{"Values", values},
		{"TextOrder", textOrder},
		{"Texts", texts},
		{"Mentions", mentions},
		{"UniqueViolation", uniqueViolation},
		{"HiddenFailure", hiddenFailure},
		{"Snapshot", snapshot},
		{"WriteSkew", writeSkew},
		{"Counter", counter},
		{"LikeAMap", likeAMap},
		{"LateCommit", lateCommit},
		{"NothingSkipped", nothingSkipped},
		{"Streams", streams},
		{"RefusedStream", refusedStream},
		{"Scrub", scrub},
		{"Trim", trim},
		{"Cursors", cursors},
		{"Leases", leases},
		{"LeaseRetaken", leaseRetaken},
		{"LeaseTakeover", leaseTakeover},
		{"Idempotency", idempotency},
		{"Fairness", fairness},
		{"Cancellation", cancellation},
		{"LaneBound", laneBound},
		{"Closing", closing},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(&subject{t, open(t, schema)}) })
	}
}

// mentions are texts of one project with a word as it stands, whatever signs of
// patterns are in it.
func mentions(t *subject) {
	update(t, t.db, func(ctx context.Context, tx *store.Tx) error {
		for _, n := range [][2]string{{"a", `{"ref":"x_y@1"}`}, {"b", "x_y@2"}, {"a", "xzy@3"}, {"a", "100%!"}, {"a", "1000"}, {"a", "say x_y@4"}} {
			if _, err := tx.NewRaw(`INSERT INTO suite_note (project, body) VALUES (?, ?)`, n[0], n[1]).Exec(ctx); err != nil {
				return err
			}
		}
		for word, want := range map[string][]string{"x_y@": {"say x_y@4", `{"ref":"x_y@1"}`}, "0%!": {"100%!"}, "none": nil} {
			var got []string
			if err := store.Mentions(ctx, tx, store.Mention{Table: "suite_note", Column: "body", By: "'note ' || project"}, "a", word, func(by, text string) {
				if by != "note a" {
					t.Errorf("%q is said by %q", text, by)
				}
				got = append(got, text)
			}); err != nil {
				return err
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s is mentioned in %q, not %q", word, got, want)
			}
		}
		return nil
	})
}

// update fails the test on an error.
func update(tb testing.TB, db *store.DB, fn func(ctx context.Context, tx *store.Tx) error) {
	tb.Helper()
	if err := db.Update(tb.Context(), "", fn); err != nil {
		tb.Fatalf("update: %v", err)
	}
}

func put(ctx context.Context, tx *store.Tx, name string, number int64) error {
	_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES (?, ?)
		ON CONFLICT (name) DO UPDATE SET number = excluded.number`, name, number).Exec(ctx)
	return err
}

func number(ctx context.Context, tx *store.Tx, name string) (int64, error) {
	var n int64
	err := tx.NewRaw(`SELECT number FROM suite_item WHERE name = ?`, name).Scan(ctx, &n)
	return n, err
}

// items is the content of the table as names and numbers.
func items(tb testing.TB, db *store.DB) map[string]int64 {
	tb.Helper()
	var rows []item
	err := db.View(tb.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT name, number FROM suite_item`).Scan(ctx, &rows)
	})
	if err != nil {
		tb.Fatalf("view: %v", err)
	}
	m := map[string]int64{}
	for _, r := range rows {
		m[r.Name] = r.Number
	}
	return m
}

// meet lets two closures reach a point together where the database runs them at
// the same time; where it does not, the first goes on after a moment.
type meet chan struct{}

func (m meet) wait() {
	select {
	case <-m:
	case <-time.After(100 * time.Millisecond):
	}
}

func committedIsVisible(t *subject) {
	db := t.db
	for i := range 50 {
		name := strconv.Itoa(i)
		update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, name, int64(i)) })
		if n, ok := items(t, db)[name]; !ok || n != int64(i) {
			t.Fatalf("item %s is not visible after its Update returned", name)
		}
	}
}

func errorUndoesOnlyItsClosure(t *subject) {
	db := t.db
	refused := errors.New("refused")
	want := map[string]int64{}
	var wg sync.WaitGroup
	for i := range 100 {
		name := strconv.Itoa(i)
		fails := i%3 == 0
		if !fails {
			want[name] = int64(i)
		}
		wg.Go(func() {
			err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
				if err := put(ctx, tx, name, int64(i)); err != nil {
					return err
				}
				if fails {
					return refused
				}
				return nil
			})
			if errors.Is(err, refused) != fails {
				t.Errorf("item %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, items(t, db)); diff != "" {
		t.Error(diff)
	}
	// A statement that the database refuses undoes only its closure, too.
	err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		if err := put(ctx, tx, "before", 1); err != nil {
			return err
		}
		_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES (?, NULL)`, "null").Exec(ctx)
		return err
	})
	if err == nil {
		t.Error("a NULL was accepted where it may not be")
	}
	if diff := cmp.Diff(want, items(t, db)); diff != "" {
		t.Error(diff)
	}
}

func panicUndoesOnlyItsClosure(t *subject) {
	db := t.db
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			defer func() {
				if r := recover(); (r != nil) != (i%3 == 0) {
					t.Errorf("item %d: recovered %v", i, r)
				}
			}()
			err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
				if err := put(ctx, tx, strconv.Itoa(i), int64(i)); err != nil {
					return err
				}
				switch i % 3 {
				case 0:
					panic("at the disco")
				case 1:
					runtime.Goexit() // what t.FailNow does
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := items(t, db)
	if len(got) != 10 {
		t.Errorf("%d items, want the 10 whose closures returned", len(got))
	}
	for name, n := range got {
		if n%3 != 2 {
			t.Errorf("item %s of a closure that did not return is there", name)
		}
	}
}

func savepoints(t *subject) {
	db := t.db
	undone := errors.New("undone")
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		if err := put(ctx, tx, "outer", 1); err != nil {
			return err
		}
		err := tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := put(ctx, tx, "inner", 1); err != nil {
				return err
			}
			err := tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "innermost", 1) })
			return errors.Join(err, undone)
		})
		if !errors.Is(err, undone) {
			return fmt.Errorf("savepoint: %w", err)
		}
		// Also after a statement failed, the transaction goes on.
		err = tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES ('outer', 2)`).Exec(ctx)
			return err
		})
		if !store.IsUnique(err) {
			return fmt.Errorf("duplicate: %w", err)
		}
		return tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "second", 2) })
	})
	if diff := cmp.Diff(map[string]int64{"outer": 1, "second": 2}, items(t, db)); diff != "" {
		t.Error(diff)
	}
}

func hooks(t *subject) {
	db := t.db
	var ran []string
	hook := func(name string) func() { return func() { ran = append(ran, name) } }
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		tx.OnCommit(hook("first"))
		_ = tx.Savepoint(ctx, func(_ context.Context, tx *store.Tx) error {
			tx.OnCommit(hook("undone"))
			return errors.New("undo")
		})
		return tx.Savepoint(ctx, func(_ context.Context, tx *store.Tx) error {
			tx.OnCommit(hook("second"))
			return nil
		})
	})
	_ = db.Update(t.Context(), "", func(_ context.Context, tx *store.Tx) error {
		tx.OnCommit(hook("refused"))
		return errors.New("refused")
	})
	if diff := cmp.Diff([]string{"first", "second"}, ran); diff != "" {
		t.Error(diff)
	}
}

func nesting(t *subject) {
	db := t.db
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		if err := put(ctx, tx, "a", 1); err != nil {
			return err
		}
		err := db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
			_, err := number(ctx, tx, "a")
			return err
		})
		if err != nil {
			return fmt.Errorf("a View inside an Update does not see its writes: %w", err)
		}
		err = db.Update(ctx, "", func(context.Context, *store.Tx) error { return nil })
		if err == nil {
			return errors.New("an Update inside an Update was accepted")
		}
		return nil
	})
	err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "b", 1) })
	if err == nil {
		t.Error("a View wrote")
	}
}

func floats(t *subject) {
	db := t.db
	stored := func(f store.Float) store.Float {
		var got store.Float
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewInsert().Model(&item{Name: "f", Real: f}).ModelTableExpr("suite_item").
				On("CONFLICT (name) DO UPDATE").Set("real = excluded.real").Exec(ctx)
			if err != nil {
				return err
			}
			return tx.NewRaw(`SELECT real FROM suite_item WHERE name = 'f'`).Scan(ctx, &got)
		})
		return got
	}
	rapid.Check(t, func(r *rapid.T) {
		f := rapid.Float64().Draw(r, "f")
		got := stored(store.Float(f))
		if f == 0 {
			f = 0 // -0 comes back as 0, on both
		}
		if math.Float64bits(float64(got)) != math.Float64bits(f) {
			r.Fatalf("wrote %b, read %b", f, float64(got))
		}
	})
	order := []store.Float{
		store.Float(math.Inf(-1)), -math.MaxFloat64, -1, -math.SmallestNonzeroFloat64, 0,
		math.SmallestNonzeroFloat64, 1, math.MaxFloat64, store.Float(math.Inf(1)), store.Float(math.NaN()),
	}
	var got []store.Float
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.NewRaw(`DELETE FROM suite_item`).Exec(ctx); err != nil {
			return err
		}
		for i, f := range order {
			if _, err := tx.NewRaw(`INSERT INTO suite_item (name, number, real) VALUES (?, ?, ?)`, strconv.Itoa(len(order)-i), i, f).Exec(ctx); err != nil {
				return err
			}
		}
		return tx.NewRaw(`SELECT real FROM suite_item ORDER BY real`).Scan(ctx, &got)
	})
	if fmt.Sprint(got) != fmt.Sprint(order) {
		t.Errorf("order %v, want %v", got, order)
	}
}

func times(t *subject) {
	db := t.db
	rapid.Check(t, func(r *rapid.T) {
		at := time.UnixMicro(rapid.Int64Range(-1<<52, 1<<52).Draw(r, "µs")).UTC()
		if at.UnixMicro() == 0 {
			at = time.Time{} // 1970 itself is never
		}
		var got store.Time
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES ('t', ?)
				ON CONFLICT (name) DO UPDATE SET number = excluded.number`, store.At(at)).Exec(ctx)
			if err != nil {
				return err
			}
			return tx.NewRaw(`SELECT number FROM suite_item WHERE name = 't'`).Scan(ctx, &got)
		})
		if !got.Time().Equal(at) {
			r.Fatalf("wrote %v, read %v", at, got.Time())
		}
	})
}

func values(t *subject) {
	db := t.db
	rapid.Check(t, func(r *rapid.T) {
		want := item{
			Name:   text().Draw(r, "name"),
			Number: rapid.Int64().Draw(r, "number"),
			Flag:   rapid.Bool().Draw(r, "flag"),
			Raw:    rapid.SliceOf(rapid.Byte()).Draw(r, "raw"),
		}
		var got item
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.NewRaw(`DELETE FROM suite_item`).Exec(ctx); err != nil {
				return err
			}
			if _, err := tx.NewInsert().Model(&want).ModelTableExpr("suite_item").Exec(ctx); err != nil {
				return err
			}
			return tx.NewSelect().Model(&got).ModelTableExpr("suite_item AS item").Where("name = ?", want.Name).Scan(ctx)
		})
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatal(diff)
		}
	})
}

// text draws strings that both databases can hold.
func text() *rapid.Generator[string] {
	return rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "0") })
}

func textOrder(t *subject) {
	db := t.db
	rapid.Check(t, func(r *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.OneOf(text(), rapid.StringMatching(`[ab A-Cé_.\-]{0,4}`)), rapid.ID).Draw(r, "names")
		var got []string
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.NewRaw(`DELETE FROM suite_item`).Exec(ctx); err != nil {
				return err
			}
			for _, n := range names {
				if err := put(ctx, tx, n, 0); err != nil {
					return err
				}
			}
			return tx.NewRaw(`SELECT name FROM suite_item ORDER BY name`).Scan(ctx, &got)
		})
		slices.Sort(names)
		if !slices.Equal(names, got) {
			r.Fatalf("order %q, want %q", got, names)
		}
	})
}

// texts finds those of a list that are there, whatever is in them.
func texts(t *subject) {
	db := t.db
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.OneOf(text(), rapid.StringMatching(`['"\\<&\x{2028}a]{0,3}`))
		there := rapid.SliceOfNDistinct(name, 0, 8, rapid.ID).Draw(r, "there")
		list := append(rapid.SliceOfN(name, 0, 4).Draw(r, "others"), there[:len(there)/2]...)
		var want, got []string
		for _, n := range there {
			if slices.Contains(list, n) {
				want = append(want, n)
			}
		}
		slices.Sort(want)
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.NewRaw(`DELETE FROM suite_item`).Exec(ctx); err != nil {
				return err
			}
			for _, n := range there {
				if err := put(ctx, tx, n, 0); err != nil {
					return err
				}
			}
			return tx.NewRaw(`SELECT name FROM suite_item WHERE name IN (?) ORDER BY name`, store.Texts(list)).Scan(ctx, &got)
		})
		if !slices.Equal(want, got) {
			r.Fatalf("of %q in %q found %q, want %q", there, list, got, want)
		}
	})
}

func uniqueViolation(t *subject) {
	db := t.db
	insert := func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES ('one', 1)`).Exec(ctx)
		return err
	}
	update(t, db, insert)
	err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return fault.Wrap(insert(ctx, tx), "insert") })
	if !store.IsUnique(err) || !fault.Is(err, fault.Conflict) {
		t.Errorf("duplicate: kind %v, unique %v: %v", fault.KindOf(err), store.IsUnique(err), err)
	}
}

// hiddenFailure: a closure goes on after a statement failed.
func hiddenFailure(t *subject) {
	db := t.db
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "one", 1) })
	for name, statement := range map[string]string{
		"exec":  `INSERT INTO suite_item (name, number) VALUES ('one', 2)`,
		"query": `INSERT INTO suite_item (name, number) VALUES ('one', 2) RETURNING name`,
	} {
		err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			if err := put(ctx, tx, "before", 1); err != nil {
				return err
			}
			var failed error
			if name == "exec" {
				_, failed = tx.NewRaw(statement).Exec(ctx)
			} else {
				failed = tx.NewRaw(statement).Scan(ctx, new(string))
			}
			if failed == nil {
				t.Errorf("%s: a duplicate was accepted", name)
			}
			if err := put(ctx, tx, "after", 1); err == nil {
				t.Errorf("%s: the transaction goes on without a savepoint", name)
			}
			return nil
		})
		if err == nil {
			t.Errorf("%s: committed", name)
		}
		if diff := cmp.Diff(map[string]int64{"one": 1}, items(t, db)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func snapshot(t *subject) {
	db := t.db
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "n", 1) })
	err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		before, err := number(ctx, tx, "n")
		if err != nil {
			return err
		}
		update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "n", 2) })
		after, err := number(ctx, tx, "n")
		if before != 1 || after != 1 {
			t.Errorf("one View read %d, then %d", before, after)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := items(t, db)["n"]; n != 2 {
		t.Errorf("a new View reads %d, want 2", n)
	}
}

// writeSkew: of two people on call each may leave if the other stays.
func writeSkew(t *subject) {
	db := t.db
	for range 5 {
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(put(ctx, tx, "alice", 1), put(ctx, tx, "badr", 1))
		})
		read := map[string]meet{"alice": make(meet), "badr": make(meet)}
		var wg sync.WaitGroup
		leave := func(me, other string) {
			first := true
			err := db.Update(t.Context(), me, func(ctx context.Context, tx *store.Tx) error {
				stays, err := number(ctx, tx, other)
				if err != nil {
					return err
				}
				if first {
					first = false
					close(read[me])
					read[other].wait()
				}
				if stays == 0 {
					return nil
				}
				return put(ctx, tx, me, 0)
			})
			if err != nil {
				t.Error(err)
			}
		}
		wg.Go(func() { leave("alice", "badr") })
		wg.Go(func() { leave("badr", "alice") })
		wg.Wait()
		if got := items(t, db); got["alice"]+got["badr"] != 1 {
			t.Fatalf("on call: %v, want exactly one", got)
		}
	}
}

func counter(t *subject) {
	db := t.db
	const workers, each = 8, 20
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "n", 0) })
	var done atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				for {
					err := db.Update(t.Context(), strconv.Itoa(w), func(ctx context.Context, tx *store.Tx) error {
						n, err := number(ctx, tx, "n")
						if err != nil {
							return err
						}
						return put(ctx, tx, "n", n+1)
					})
					if err == nil {
						done.Add(1)
						break
					}
					if !fault.Is(err, fault.Unavailable) { // that is: too many losses, try again
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if n := items(t, db)["n"]; n != done.Load() || n != workers*each {
		t.Errorf("%d increments acknowledged, the counter is %d", done.Load(), n)
	}
}

// likeAMap compares random transactions with the same ones on a Go map.
func likeAMap(t *subject) {
	db := t.db
	refused := errors.New("refused")
	rapid.Check(t, func(r *rapid.T) {
		update(t, db, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw(`DELETE FROM suite_item`).Exec(ctx)
			return err
		})
		model := map[string]int64{}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		var block func(ctx context.Context, tx *store.Tx, m map[string]int64, depth int) error
		block = func(ctx context.Context, tx *store.Tx, m map[string]int64, depth int) error {
			for range rapid.IntRange(0, 4).Draw(r, "steps") {
				switch op := rapid.IntRange(0, 3).Draw(r, "op"); {
				case op == 0:
					k := name.Draw(r, "key")
					if _, err := tx.NewRaw(`DELETE FROM suite_item WHERE name = ?`, k).Exec(ctx); err != nil {
						return err
					}
					delete(m, k)
				case op == 1 && depth < 3:
					inner := maps.Clone(m)
					err := tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error { return block(ctx, tx, inner, depth+1) })
					if err == nil {
						clear(m)
						maps.Copy(m, inner)
					} else if !errors.Is(err, refused) {
						return err
					}
				default:
					k, v := name.Draw(r, "key"), rapid.Int64Range(0, 9).Draw(r, "value")
					if err := put(ctx, tx, k, v); err != nil {
						return err
					}
					m[k] = v
				}
			}
			if rapid.IntRange(0, 3).Draw(r, "refuse") == 0 {
				return refused
			}
			return nil
		}
		for range rapid.IntRange(1, 4).Draw(r, "transactions") {
			m := maps.Clone(model)
			err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return block(ctx, tx, m, 0) })
			if err == nil {
				model = m
			} else if !errors.Is(err, refused) {
				r.Fatal(err)
			}
			if diff := cmp.Diff(model, items(t, db)); diff != "" {
				r.Fatal(diff)
			}
		}
	})
}

// read reads a stream from a position to its end.
func read(tb testing.TB, db *store.DB, after store.Position) (bodies []string, next store.Position) {
	tb.Helper()
	for {
		records, p, err := db.ReadStream(tb.Context(), "s", after, 7)
		if err != nil {
			tb.Fatal(err)
		}
		if len(records) == 0 {
			return bodies, after
		}
		for _, r := range records {
			if r.Position.Compare(after) <= 0 {
				tb.Errorf("entry %s comes at %v, after %v", r.Body, r.Position, after)
			}
			after = r.Position
			bodies = append(bodies, string(r.Body))
		}
		if after != p {
			tb.Errorf("the last entry is at %v, but go on from %v", after, p)
		}
	}
}

// lateCommit: one transaction takes its position first and commits last.
func lateCommit(t *subject) {
	db := t.db
	for round := range 3 {
		_, from := read(t, db, store.Position{})
		started, finished, looked := make(chan struct{}), make(meet), make(meet)
		var wg sync.WaitGroup
		first := true
		wg.Go(func() {
			err := db.Update(t.Context(), "late", func(ctx context.Context, tx *store.Tx) error {
				if err := tx.Append(ctx, "s", "", "k", []byte("late")); err != nil {
					return err
				}
				if _, err := tx.Cursor(ctx, "none"); err != nil { // what was left for later is done
					return err
				}
				if first {
					first = false
					close(started)
					finished.wait()
					looked.wait()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-started
		wg.Go(func() {
			err := db.Update(t.Context(), "early", func(ctx context.Context, tx *store.Tx) error {
				return tx.Append(ctx, "s", "", "k", []byte("early"))
			})
			if err != nil {
				t.Error(err)
			}
			close(finished)
		})
		finished.wait()
		got, next := read(t, db, from) // the late one, at least, is under way
		close(looked)
		wg.Wait()
		more, _ := read(t, db, next)
		got = append(got, more...)
		slices.Sort(got)
		if !slices.Equal(got, []string{"early", "late"}) {
			t.Fatalf("round %d: a reader going on from its position saw %q", round, got)
		}
	}
}

// nothingSkipped: a reader that follows sees exactly what was committed, once.
func nothingSkipped(t *subject) {
	db := t.db
	const writers, each = 6, 25
	want := map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				body := fmt.Sprintf("%d/%d", w, i)
				err := db.Update(t.Context(), strconv.Itoa(w), func(ctx context.Context, tx *store.Tx) error {
					if err := tx.Append(ctx, "s", "", "k", []byte(body)); err != nil {
						return err
					}
					for range i % 4 {
						runtime.Gosched()
					}
					if i%5 == 4 {
						return errors.New("undo")
					}
					return put(ctx, tx, body, 1)
				})
				if err == nil {
					mu.Lock()
					want[body] = true
					mu.Unlock()
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()
	got := map[string]bool{}
	var at store.Position
	for done := false; ; {
		changed := db.Changed("s")
		bodies, next := read(t, db, at)
		at = next
		for _, b := range bodies {
			if got[b] {
				t.Errorf("%s was read twice", b)
			}
			got[b] = true
		}
		if done {
			break
		}
		select {
		case <-changed:
		case <-written:
			done = true // all Updates have returned; read once more
		}
	}
	// On PostgreSQL another database's transaction of the same server may hold
	// the watermark back for a moment; Changed tells when it is gone.
	for len(got) < len(want) {
		changed := db.Changed("s")
		bodies, next := read(t, db, at)
		at = next
		for _, b := range bodies {
			got[b] = true
		}
		if len(got) < len(want) {
			select {
			case <-changed:
			case <-time.After(20 * time.Second):
				t.Fatal("the stream does not go on")
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func streams(t *subject) {
	db := t.db
	changed := db.Changed("s")
	select {
	case <-changed:
		t.Error("changed before anything was")
	default:
	}
	before := time.Now().Add(-time.Second)
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(
			tx.Append(ctx, "s", "flights", "dataset.imported", []byte(`{"a":1}`)),
			tx.Append(ctx, "other", "", "k", nil),
			tx.Append(ctx, "s", "", "dataset.removed", []byte(`{}`)))
	})
	wait(t, changed)
	var records []store.Record
	for len(records) == 0 { // PostgreSQL's watermark may lag behind other databases of the server
		changed = db.Changed("s")
		var err error
		if records, _, err = db.ReadStream(t.Context(), "s", store.Position{}, 10); err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			wait(t, changed)
		}
	}
	if len(records) != 2 || records[0].Kind != "dataset.imported" || records[0].Project != "flights" || string(records[0].Body) != `{"a":1}` ||
		records[1].Kind != "dataset.removed" || records[1].Project != "" {
		t.Errorf("read %+v", records)
	}
	if at := records[0].Time.Time(); at.Before(before) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("time of the entry: %v", at)
	}
	p, err := store.ParsePosition(records[0].Position.String())
	if err != nil || p != records[0].Position {
		t.Errorf("position %v as text: %v, %v", records[0].Position, p, err)
	}
	mark, err := db.Watermark(t.Context())
	if err != nil || mark.Compare(records[1].Position) < 0 {
		t.Errorf("watermark %v, %v is before an entry that was read, %v", mark, err, records[1].Position)
	}
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, "s", "", "k", []byte(`new`)) })
	if bodies, _ := read(t, db, mark); len(bodies) > 1 || len(bodies) == 1 && bodies[0] != "new" {
		t.Errorf("after the watermark: %q", bodies)
	}
	err = db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return tx.Append(ctx, "s", "", "k", make([]byte, 5<<20))
	})
	if !fault.Is(err, fault.TooLarge) {
		t.Errorf("an entry of 5 MiB: %v", err)
	}
}

// refusedStream: a stream that takes nothing undoes what would go with the entry,
// and leaves other streams alone.
func refusedStream(t *subject) {
	db := t.db
	why := fault.New(fault.Unavailable, "the stream is shut")
	write := func(name, stream string) error {
		return db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			if err := put(ctx, tx, name, 1); err != nil {
				return err
			}
			return tx.Append(ctx, stream, "", "k", []byte(name))
		})
	}
	db.Refuse("s", why)
	if err := write("refused", "s"); !errors.Is(err, why) {
		t.Errorf("a refused entry: %v", err)
	}
	if err := write("other", "other"); err != nil {
		t.Errorf("another stream: %v", err)
	}
	db.Refuse("s", nil)
	if err := write("later", "s"); err != nil {
		t.Errorf("open again: %v", err)
	}
	if diff := cmp.Diff(map[string]int64{"other": 1, "later": 1}, items(t, db)); diff != "" {
		t.Error(diff)
	}
}

// scrub: what was asked to leave no trace is done like everything else, also
// while others write. That it leaves none is shown where files can be read.
func scrub(t *subject) {
	db := t.db
	update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, "secret", 1) })
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for k := range 10 {
				if err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
					return put(ctx, tx, fmt.Sprintf("w%d.%d", i, k), 1)
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		tx.Scrub("suite_item")
		return put(ctx, tx, "secret", 0)
	})
	writers.Wait()
	if got := items(t, db); len(got) != 41 || got["secret"] != 0 {
		t.Errorf("%d items, secret %d", len(got), got["secret"])
	}
}

func wait(tb testing.TB, ch <-chan struct{}) {
	tb.Helper()
	select {
	case <-ch:
	case <-time.After(20 * time.Second):
		tb.Fatal("no signal that the stream changed")
	}
}

func trim(t *subject) {
	db := t.db
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		for i := range 2500 {
			if err := tx.Append(ctx, "s", "", "k", fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return tx.Append(ctx, "other", "", "k", nil)
	})
	var records []store.Record
	for len(records) == 0 {
		changed := db.Changed("s")
		var err error
		if records, _, err = db.ReadStream(t.Context(), "s", store.Position{}, 10000); err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			wait(t, changed)
		}
	}
	if err := db.TrimStream(t.Context(), "s", records[2400].Position); err != nil {
		t.Fatal(err)
	}
	left, _ := read(t, db, store.Position{})
	if len(left) != 100 || left[0] != "2400" {
		t.Errorf("%d entries are left, from %q", len(left), left[:min(1, len(left))])
	}
	if others, _, err := db.ReadStream(t.Context(), "other", store.Position{}, 10); err != nil || len(others) != 1 {
		t.Errorf("the other stream has %d entries, %v", len(others), err)
	}
}

func cursors(t *subject) {
	db := t.db
	move := func(p store.Position) error {
		return db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return tx.SetCursor(ctx, "reader", p) })
	}
	at := func() (p store.Position) {
		err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
			p, err = tx.Cursor(ctx, "reader")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if at() != (store.Position{}) {
		t.Errorf("a new cursor is at %v", at())
	}
	for _, p := range []store.Position{{Tx: 1, Seq: 5}, {Tx: 1, Seq: 5}, {Tx: 2, Seq: 3}} {
		if err := move(p); err != nil || at() != p {
			t.Errorf("to %v: %v, now %v", p, err, at())
		}
	}
	if err := move(store.Position{Tx: 1, Seq: 9}); !fault.Is(err, fault.Conflict) {
		t.Errorf("back: %v", err)
	}
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(tx.SetCursor(ctx, "é/1", store.Position{Seq: 1}), tx.SetCursor(ctx, "é/2", store.Position{Seq: 2}),
			tx.SetCursor(ctx, "è/3", store.Position{Seq: 3}), tx.DropCursor(ctx, "é/1"), tx.DropCursor(ctx, "unknown"))
	})
	err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		got, err := tx.Cursors(ctx, "é/")
		if diff := cmp.Diff(map[string]store.Position{"é/2": {Seq: 2}}, got); diff != "" {
			t.Error(diff)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func leases(t *subject) {
	db := t.db
	ctx := t.Context()
	a, err := db.Lease(ctx, "loop", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Lease(ctx, "loop", "b", time.Hour); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "a holds") {
		t.Errorf("a second holder: %v", err)
	}
	if _, err := db.Lease(ctx, "other loop", "b", time.Hour); err != nil {
		t.Errorf("another lease: %v", err)
	}
	fenced := func(l *store.Lease, name string) error {
		return db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			if err := l.Fence(ctx, tx); err != nil {
				return err
			}
			return put(ctx, tx, name, int64(l.Epoch()&math.MaxInt64))
		})
	}
	if err := errors.Join(fenced(a, "by a"), a.Renew(ctx), a.Release(ctx)); err != nil {
		t.Fatal(err)
	}
	b, err := db.Lease(ctx, "loop", "b", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if b.Epoch() <= a.Epoch() {
		t.Errorf("epoch %d after %d", b.Epoch(), a.Epoch())
	}
	if err := fenced(a, "too late"); !fault.Is(err, fault.Conflict) {
		t.Errorf("a write of the former owner: %v", err)
	}
	if err := a.Renew(ctx); !fault.Is(err, fault.Conflict) {
		t.Errorf("the former owner renews: %v", err)
	}
	if err := errors.Join(a.Release(ctx), fenced(b, "by b")); err != nil { // a's release is not b's
		t.Error(err)
	}
	want := map[string]int64{"by a": int64(a.Epoch() & math.MaxInt64), "by b": int64(b.Epoch() & math.MaxInt64)}
	if diff := cmp.Diff(want, items(t, db)); diff != "" {
		t.Error(diff)
	}
}

// leaseRetaken: a process takes over what its predecessor of the same name holds, and nobody else's.
func leaseRetaken(t *subject) {
	db := t.db
	ctx := t.Context()
	first, err := db.Retake(ctx, "place/é 1", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Retake(ctx, "place/é 1", "b", time.Hour); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "a holds") {
		t.Errorf("another holder: %v", err)
	}
	second, err := db.Retake(ctx, "place/é 1", "a", time.Hour)
	if err != nil {
		t.Fatalf("the same holder: %v", err)
	}
	if err := first.Renew(ctx); !fault.Is(err, fault.Conflict) {
		t.Errorf("the predecessor renews: %v", err)
	}
	if _, err := db.Retake(ctx, "place/2", "c", time.Hour); err != nil {
		t.Fatal(err)
	}
	held := func(prefix string) map[string]string {
		t.Helper()
		got, err := db.Holders(ctx, prefix)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if diff := cmp.Diff(map[string]string{"é 1": "a", "2": "c"}, held("place/")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{" 1": "a"}, held("place/é")); diff != "" {
		t.Error(diff)
	}
	if err := second.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"2": "c"}, held("place/")); diff != "" {
		t.Error(diff)
	}
}

// leaseTakeover: an owner that does not renew loses the lease, and Keep tells it.
func leaseTakeover(t *subject) {
	db := t.db
	ctx := t.Context()
	a, err := db.Lease(ctx, "loop", "a", 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	var b *store.Lease
	for b == nil { // until a's has expired
		if b, err = db.Lease(ctx, "loop", "b", time.Hour); err != nil && !fault.Is(err, fault.Conflict) {
			t.Fatal(err)
		}
	}
	err = a.Keep(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable) { // the second on a machine that is too slow to ask in time
		t.Errorf("a goes on: %v", err)
	}
	finished := errors.New("finished")
	if err := b.Keep(ctx, func(context.Context) error { return finished }); !errors.Is(err, finished) {
		t.Errorf("Keep returned %v", err)
	}
	if _, err := db.Lease(ctx, "loop", "c", time.Hour); err != nil {
		t.Errorf("after Keep the lease is not free: %v", err)
	}
}

func idempotency(t *subject) {
	db := t.db
	// create is a service with two transactions, of which the second may fail.
	create := func(ctx context.Context, name string, fail error) error {
		err := db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw(`INSERT INTO suite_item (name, number) VALUES (?, 1)`, name).Exec(ctx)
			return errors.Join(err, fail)
		})
		if err != nil {
			return err
		}
		return db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, name, 2) })
	}
	begin := func(scope, key, request string) (context.Context, *store.Once, error) {
		return db.Once(t.Context(), scope, key, []byte(request))
	}
	ctx, once, err := begin("alice", "k1", "POST item a")
	if err != nil {
		t.Fatal(err)
	}
	// A request that fails without effect may be tried again with the same key.
	if err := create(ctx, "a", errors.New("no")); err == nil {
		t.Fatal("create did not fail")
	}
	if err := once.Keep(ctx, []byte("failed")); err != nil {
		t.Fatal(err)
	}
	ctx, once, err = begin("alice", "k1", "POST item a")
	if err != nil {
		t.Fatal(err)
	}
	ctxTwin, twin, err := begin("alice", "k1", "POST item a") // a repetition before the first is done
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := twin.Replayed(); ok {
		t.Error("replayed before it was done")
	}
	if err := create(ctx, "a", nil); err != nil {
		t.Fatal(err)
	}
	if err := create(ctxTwin, "a twin", nil); !fault.Is(err, fault.Conflict) {
		t.Errorf("the concurrent repetition: %v", err)
	}
	if err := twin.Keep(ctxTwin, []byte("of the twin")); err != nil {
		t.Error(err)
	}
	if _, _, err := begin("alice", "k1", "POST item a"); !fault.Is(err, fault.Conflict) {
		t.Errorf("a repetition before the answer: %v", err)
	}
	if err := once.Keep(ctx, []byte("created a")); err != nil {
		t.Fatal(err)
	}
	_, again, err := begin("alice", "k1", "POST item a")
	if err != nil {
		t.Fatal(err)
	}
	if answer, ok := again.Replayed(); !ok || string(answer) != "created a" {
		t.Errorf("the repetition got %q, %v", answer, ok)
	}
	if _, _, err := begin("alice", "k1", "POST item b"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the key with another request: %v", err)
	}
	ctx, other, err := begin("badr", "k1", "POST item c")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := other.Replayed(); ok || create(ctx, "c", nil) != nil {
		t.Error("somebody else's key is not free")
	}
	if _, _, err := begin("alice", "", ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("no key: %v", err)
	}
	// After a day the key is free again.
	update(t, db, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`UPDATE store_idempotency SET at = at - ?`, (25 * time.Hour).Microseconds()).Exec(ctx)
		return err
	})
	ctx, late, err := begin("alice", "k1", "POST item b")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := late.Replayed(); ok || create(ctx, "b", nil) != nil {
		t.Error("the key is not free after a day")
	}
	if diff := cmp.Diff(map[string]int64{"a": 2, "b": 2, "c": 2}, items(t, db)); diff != "" {
		t.Error(diff)
	}
	var rows int
	err = db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT COUNT(*) FROM store_idempotency`).Scan(ctx, &rows)
	})
	if err != nil || rows != 1 {
		t.Errorf("%d keys are kept, %v; want the newest only", rows, err)
	}
}

// block fills every place to write until release is called.
func block(tb testing.TB, db *store.DB) (release func()) {
	tb.Helper()
	const places = 32 // more than any engine has
	gate := make(chan struct{})
	var wg sync.WaitGroup
	var running atomic.Int64
	for range places {
		wg.Go(func() {
			err := db.Update(tb.Context(), "blocker", func(ctx context.Context, _ *store.Tx) error {
				running.Add(1)
				<-gate
				return nil
			})
			if err != nil {
				tb.Error(err)
			}
		})
	}
	// All wait before the first has its turn: then one of them no longer does.
	for running.Load() == 0 || running.Load()+int64(db.Waiting()) < places {
		runtime.Gosched()
	}
	return sync.OnceFunc(func() { close(gate); wg.Wait() })
}

// fairness: a quiet lane need not wait for a busy one's backlog.
func fairness(t *subject) {
	db := t.db
	const backlog = 300
	release := block(t, db)
	defer release()
	blocked := db.Waiting()
	var order []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	add := func(lane string) {
		wg.Go(func() {
			err := db.Update(t.Context(), lane, func(context.Context, *store.Tx) error {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, lane)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range backlog {
		add("busy")
	}
	for db.Waiting() < blocked+backlog {
		runtime.Gosched()
	}
	for range 3 {
		add("quiet")
	}
	for db.Waiting() < blocked+backlog+3 {
		runtime.Gosched()
	}
	release()
	wg.Wait()
	// Three lanes take turns, so the quiet one has its third among the first
	// ten. Between a turn and its closure lies a BEGIN, which the machine may
	// delay while others pass: only the backlog's order of magnitude is sure.
	last := len(order) - 1 - slices.Index(reversed(order), "quiet")
	if last > backlog/2 {
		t.Errorf("the quiet lane's third write came after %d others", last)
	}
}

func reversed(s []string) []string {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

func cancellation(t *subject) {
	db := t.db
	release := block(t, db)
	defer release()
	blocked := db.Waiting()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		result <- db.Update(ctx, "p", func(ctx context.Context, tx *store.Tx) error {
			t.Error("a closure ran that was cancelled in the queue")
			return nil
		})
	}()
	for db.Waiting() < blocked+1 {
		runtime.Gosched()
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in the queue: %v", err)
	}
	if n := db.Waiting(); n != blocked {
		t.Errorf("%d closures wait, want %d", n, blocked)
	}
	release()
	// Cancelled while it runs: its statements stop, and nothing of it stays; the
	// others of its group are not harmed.
	ctx, cancel = context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			update(t, db, func(ctx context.Context, tx *store.Tx) error { return put(ctx, tx, strconv.Itoa(i), 1) })
		})
	}
	err := db.Update(ctx, "p", func(ctx context.Context, tx *store.Tx) error {
		if err := put(ctx, tx, "cancelled", 1); err != nil {
			return err
		}
		cancel()
		return put(ctx, tx, "cancelled too", 1)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while it ran: %v", err)
	}
	wg.Wait()
	want := map[string]int64{"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}
	if diff := cmp.Diff(want, items(t, db)); diff != "" {
		t.Error(diff)
	}
	if err := db.Update(ctx, "p", func(context.Context, *store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	// A statement that finds the transaction rolled back says why; one that is running then is
	// cancelled itself.
	for found := false; !found; {
		ctx, cancel := context.WithCancel(t.Context())
		err := db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			cancel()
			for later := context.WithoutCancel(ctx); err == nil; {
				_, err = number(later, tx, "0")
			}
			return err
		})
		if found = errors.Is(err, sql.ErrTxDone); !errors.Is(err, context.Canceled) || fault.KindOf(err) == fault.Internal {
			t.Fatalf("cancelled between two statements of a view: %v", err)
		}
	}
}

// laneBound: a lane that lets too many wait is told so, and the others are not.
func laneBound(t *subject) {
	db := t.db
	release := block(t, db)
	defer release()
	blocked := db.Waiting()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	full := make(chan error, 5000)
	for range cap(full) {
		wg.Go(func() {
			full <- db.Update(ctx, "flood", func(context.Context, *store.Tx) error { return nil })
		})
	}
	err := <-full // nobody's turn comes, so the first answer is a refusal
	if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
		t.Errorf("a flooding lane: %v", err)
	}
	flood := db.Waiting()
	other := make(chan error, 1)
	go func() {
		other <- db.Update(t.Context(), "other", func(context.Context, *store.Tx) error { return nil })
	}()
	for db.Waiting() < min(flood, blocked+4096)+1 {
		runtime.Gosched()
	}
	cancel()
	release()
	wg.Wait()
	if err := <-other; err != nil {
		t.Errorf("another lane: %v", err)
	}
}

func closing(t *subject) {
	db := t.db
	release := block(t, db)
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	go release() // Close waits for those that run or wait; they end without an error
	if err := <-closed; err != nil {
		t.Error(err)
	}
	release()
	err := db.Update(t.Context(), "", func(context.Context, *store.Tx) error { return nil })
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("after Close: %v", err)
	}
}
