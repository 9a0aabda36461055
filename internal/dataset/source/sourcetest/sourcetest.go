// Package sourcetest is the suite that drivers of sources pass. Tables runs it for
// drivers of databases; a test gives the driver, a request that reaches a real
// server, and how to change what is there.
package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Database is a database with a driver for it.
type Database struct {
	Driver source.Driver
	// Request reaches the server; the suite sets mode and the rest, and by Select what
	// is read.
	Request func() source.Request
	Select  func(r *source.Request, what What)
	Local   bool // a file: there is no host
	// Exec runs statements as somebody who writes to the database.
	Exec func(t *testing.T, statements ...string)
	// Types are literals of the database by column type, with what is read of them.
	Types []Value
	// Refused is a column type that tables do not keep.
	Refused string
}

// What is a table, or a query, and which of its columns; all when there are none.
type What struct {
	Table, Query string
	Columns      []string
}

// Of sets what is read of a database server.
func (w What) Of(o *source.Database) { o.Table, o.Query, o.Columns = w.Table, w.Query, w.Columns }

// Value is a column of a type with a value.
type Value struct {
	Column, Literal string
	Type            table.Type
	Text            string // of the value as it is read
}

// Of is a value of a column type, what is read of it and as what.
func Of(column, literal string, t table.Type, text string) Value {
	return Value{Column: column, Literal: literal, Type: t, Text: text}
}

// Row is a row as text, columns apart by '|'.
type Row = string

// ReadAll reads to the end and gives the rows with the place after each batch.
func ReadAll(t *testing.T, d source.Driver, r source.Request) (rows []Row, until source.Position, after []source.Position, schema table.Schema) {
	t.Helper()
	if err := d.Check(r); err != nil {
		t.Fatalf("check: %v", err)
	}
	in, err := d.Open(t.Context(), r)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = in.Close() }()
	if in.Schema() != nil { // else nothing is there
		if schema, err = table.FromArrow(in.Schema()); err != nil {
			t.Fatal(err)
		}
	}
	for {
		rec, at, err := in.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return rows, in.Until(), after, schema
		}
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		for i := range int(rec.NumRows()) {
			cells := make([]string, rec.NumCols())
			for c := range cells {
				cells[c] = "null"
				if a := rec.Column(c); !a.IsNull(i) {
					cells[c] = a.ValueStr(i)
				}
			}
			rows = append(rows, strings.Join(cells, "|"))
			after = append(after, at)
		}
		rec.Release()
	}
}

// Tables is the suite for drivers of databases.
func Tables(t *testing.T, db Database) {
	t.Helper()
	request := func(name string, mode source.Mode) source.Request {
		r := db.Request()
		r.Mode, r.BatchRows = mode, 3
		db.Select(&r, What{Table: name})
		if mode != source.Full {
			r.Cursor, r.Key = "seq", []string{"id"}
		}
		return r
	}
	fill := func(t *testing.T, name string, n int) {
		t.Helper()
		stmts := []string{"DROP TABLE IF EXISTS " + name, "CREATE TABLE " + name + " (id INTEGER NOT NULL PRIMARY KEY, seq INTEGER, name VARCHAR(20))"}
		for i := range n {
			stmts = append(stmts, fmt.Sprintf("INSERT INTO %s VALUES (%d, %d, 'n%d')", name, i, i/2, i)) // cursors with ties
		}
		db.Exec(t, stmts...)
	}
	want := func(from, to int) (rows []Row) {
		for i := from; i < to; i++ {
			rows = append(rows, fmt.Sprintf("%d|%d|n%d", i, i/2, i))
		}
		return rows
	}
	equal := func(t *testing.T, got, want []Row) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}

	t.Run("full", func(t *testing.T) {
		fill(t, "falaj_full", 10)
		rows, until, after, _ := ReadAll(t, db.Driver, request("falaj_full", source.Full))
		slices.Sort(rows)
		equal(t, rows, want(0, 10))
		if until != nil || after[0] != nil {
			t.Errorf("a table without a key has places: %s %s", until, after[0])
		}
	})
	t.Run("full with a key is taken up anywhere", func(t *testing.T) {
		fill(t, "falaj_key", 10)
		r := request("falaj_key", source.Full)
		r.Key = []string{"id"}
		r.BatchRows = 1
		rows, _, after, _ := ReadAll(t, db.Driver, r)
		equal(t, rows, want(0, 10))
		for i, at := range after {
			r.Resume, r.Begun = at, true
			rest, _, _, _ := ReadAll(t, db.Driver, r)
			equal(t, rest, want(i+1, 10))
		}
	})
	t.Run("a key that does not tell rows apart", func(t *testing.T) {
		fill(t, "falaj_twice", 4)
		r := request("falaj_twice", source.Full)
		r.Key = []string{"seq"} // which two rows have
		Refused(t, db.Driver, r, fault.Invalid, "have the same seq", "spec.key")
		r = request("falaj_twice", source.Incremental)
		r.Key = []string{"seq"}
		Refused(t, db.Driver, r, fault.Invalid, "have the same seq and seq")
		db.Exec(t, "INSERT INTO falaj_twice VALUES (4, 9, NULL)")
		r = request("falaj_twice", source.Full)
		r.Key, r.BatchRows = []string{"id", "name"}, 100
		Refused(t, db.Driver, r, fault.Invalid, `no "name", a column of spec.key`)
		// What the manifest declares of it the database does not order by.
		r = request("falaj_twice", source.Incremental)
		r.Key, r.Declared = []string{"id", "name"}, []source.Column{{Name: "name", Type: table.Int64}}
		Refused(t, db.Driver, r, fault.Invalid, `"name"`, "int64")
	})
	t.Run("incremental", func(t *testing.T) {
		fill(t, "falaj_inc", 10)
		r := request("falaj_inc", source.Incremental)
		r.BatchRows = 1
		rows, until, after, _ := ReadAll(t, db.Driver, r)
		equal(t, rows, want(0, 10))
		// Rows that come meanwhile are not of this reading, wherever it is taken up.
		db.Exec(t, "INSERT INTO falaj_inc VALUES (10, 5, 'n10')", "INSERT INTO falaj_inc VALUES (11, 5, 'n11')")
		for i, at := range after {
			again := r
			again.Resume, again.Until, again.Begun = at, until, true
			rest, ends, _, _ := ReadAll(t, db.Driver, again)
			equal(t, rest, want(i+1, 10))
			if string(ends) != string(until) {
				t.Errorf("it ends at %s, and began to end at %s", ends, until)
			}
		}
		// The next one has them, and the rows of the overlap.
		next := r
		next.After, next.Overlap = until, "1"
		rows, until, _, _ = ReadAll(t, db.Driver, next)
		equal(t, rows, want(6, 12)) // seq 4-1 and more
		next.After, next.Overlap = until, "0"
		rows, _, _, _ = ReadAll(t, db.Driver, next)
		equal(t, rows, want(10, 12)) // ties of the last cursor are read again
		db.Exec(t, "INSERT INTO falaj_inc VALUES (12, NULL, 'n12')")
		Refused(t, db.Driver, next, fault.Invalid, "seq")
	})
	t.Run("an empty table", func(t *testing.T) {
		fill(t, "falaj_empty", 0)
		r := request("falaj_empty", source.Incremental)
		rows, until, _, schema := ReadAll(t, db.Driver, r)
		if len(rows) != 0 || len(schema) != 3 {
			t.Errorf("%v %v", rows, schema)
		}
		r.Until, r.Begun = until, true
		db.Exec(t, "INSERT INTO falaj_empty VALUES (0, 0, 'n0')")
		if rows, _, _, _ := ReadAll(t, db.Driver, r); len(rows) != 0 {
			t.Errorf("a reading that was to end at nothing has %v", rows)
		}
		r = request("falaj_empty", source.Incremental)
		r.After = until
		rows, _, _, _ = ReadAll(t, db.Driver, r)
		equal(t, rows, want(0, 1))
	})
	t.Run("types", func(t *testing.T) {
		var columns, values, texts []string
		for i, v := range db.Types {
			columns = append(columns, fmt.Sprintf("c%d %s", i, v.Column))
			values = append(values, v.Literal)
			texts = append(texts, v.Text)
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", len(values)), ",")
		db.Exec(t, "DROP TABLE IF EXISTS falaj_types", "CREATE TABLE falaj_types ("+strings.Join(columns, ", ")+")",
			"INSERT INTO falaj_types VALUES ("+strings.Join(values, ", ")+")", "INSERT INTO falaj_types VALUES ("+nulls+")")
		rows, _, _, schema := ReadAll(t, db.Driver, request("falaj_types", source.Full))
		slices.Sort(rows)
		wanted := []Row{strings.Join(texts, "|"), strings.TrimSuffix(strings.Repeat("null|", len(texts)), "|")}
		slices.Sort(wanted)
		equal(t, rows, wanted)
		for i, v := range db.Types {
			if schema[i].Type != v.Type {
				t.Errorf("%s is kept as %s, want %s", v.Column, schema[i].Type, v.Type)
			}
		}
		db.Exec(t, "DROP TABLE IF EXISTS falaj_refused", "CREATE TABLE falaj_refused (a INTEGER, b "+db.Refused+")")
		Refused(t, db.Driver, request("falaj_refused", source.Full), fault.Invalid, `"b"`)
		r := request("falaj_refused", source.Full)
		db.Select(&r, What{Table: "falaj_refused", Columns: []string{"a"}})
		if _, _, _, schema := ReadAll(t, db.Driver, r); len(schema) != 1 {
			t.Errorf("read %v", schema)
		}
	})
	t.Run("a query", func(t *testing.T) {
		fill(t, "falaj_query", 10)
		r := request("", source.Incremental)
		query := func(q string) { db.Select(&r, What{Query: q}) }
		query("SELECT id, seq, name FROM falaj_query WHERE id >= 4;")
		rows, _, _, _ := ReadAll(t, db.Driver, r)
		equal(t, rows, want(4, 10))
		query("DELETE FROM falaj_query")
		Refused(t, db.Driver, r, fault.Invalid)
		query("SELECT 1) AS q; DROP TABLE falaj_query; --")
		Refused(t, db.Driver, r, fault.Invalid)
		rows, _, _, _ = ReadAll(t, db.Driver, request("falaj_query", source.Incremental))
		equal(t, rows, want(0, 10))
	})
	t.Run("what is wrong is said", func(t *testing.T) {
		fill(t, "falaj_wrong", 3)
		Refused(t, db.Driver, request("falaj_nowhere", source.Full), fault.NotFound, "falaj_nowhere")
		r := request("falaj_wrong", source.Incremental)
		r.Cursor = "updated"
		Refused(t, db.Driver, r, fault.Invalid, "updated", "seq")
		r = request("falaj_wrong", source.Full)
		db.Select(&r, What{Table: "falaj_wrong", Columns: []string{"id", "nix"}})
		Refused(t, db.Driver, r, fault.Invalid, "nix")
		r = request("falaj_wrong", source.Incremental)
		r.Key = nil
		Refused(t, db.Driver, r, fault.Invalid, "key")
		if db.Local {
			return
		}
		r = request("falaj_wrong", source.Full)
		r.Access.Hosts = []string{"elsewhere"}
		Refused(t, db.Driver, r, fault.PermissionDenied, "sources may not connect to")
	})
	t.Run("an end that is asked for", func(t *testing.T) {
		fill(t, "falaj_end", 10)
		in, err := db.Driver.Open(t.Context(), request("falaj_end", source.Incremental))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		rec, _, err := in.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		rec.Release()
		cancel()
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Refused asks for a reading that is refused.
func Refused(t *testing.T, d source.Driver, r source.Request, kind fault.Kind, words ...string) {
	t.Helper()
	err := d.Check(r)
	if err == nil {
		var in source.Reader
		if in, err = d.Open(t.Context(), r); err == nil {
			_, _, err = in.Next(t.Context())
			_ = in.Close()
		}
	}
	if !fault.Is(err, kind) {
		t.Errorf("got %v (%v), want %v", err, fault.KindOf(err), kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error()+fault.HintOf(err), w) {
			t.Errorf("%q is not in %v (%s)", w, err, fault.HintOf(err))
		}
	}
	if p := r.Secret["password"].Reveal(); p != "" && strings.Contains(err.Error()+fault.HintOf(err), p) {
		t.Errorf("the error has the password: %v", err)
	}
}
