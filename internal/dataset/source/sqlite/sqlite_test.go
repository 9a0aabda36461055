package sqlite_test

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver that writes the database

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqlite"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestMain(m *testing.M) {
	datasettest.Main(m, map[string]datasettest.Mode{child.SQLiteMode: sqlite.Main})
}

// written is a database that statements are run on, each with a connection of its own.
func written(t *testing.T, dir string) (file string, exec func(t *testing.T, statements ...string)) {
	t.Helper()
	file = filepath.Join(dir, "shop.db")
	return file, func(t *testing.T, statements ...string) {
		t.Helper()
		db, err := sql.Open("sqlite3", file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
}

func subject(file string) source.Request {
	return source.Request{From: source.From{SQLite: &source.SQLite{File: file}}, Access: source.Access{Files: []string{filepath.Dir(file)}}}
}

var driver = sqlite.Driver{Launcher: datasettest.Launcher{}}

func TestSQLite(t *testing.T) {
	file, exec := written(t, t.TempDir())
	sourcetest.Tables(t, sourcetest.Database{
		Driver: driver, Local: true, Exec: exec,
		Request: func() source.Request { return subject(file) },
		Select: func(r *source.Request, what sourcetest.What) {
			o := r.From.SQLite
			o.Table, o.Query, o.Columns = what.Table, what.Query, what.Columns
		},
		Types: []sourcetest.Value{
			sourcetest.Of("INTEGER", "-7", table.Int64, "-7"),
			sourcetest.Of("BIGINT", "9223372036854775807", table.Int64, "9223372036854775807"),
			sourcetest.Of("REAL", "1.5", table.Float64, "1.5"),
			sourcetest.Of("NUMERIC(10,2)", "12.25", table.Float64, "12.25"),
			sourcetest.Of("BOOLEAN", "1", table.Bool, "true"),
			sourcetest.Of("TEXT", "'a''b ü'", table.String, "a'b ü"),
			sourcetest.Of("VARCHAR(20)", "'x'", table.String, "x"),
			sourcetest.Of("", "'7'", table.String, "7"),
			sourcetest.Of("DATETIME", "'2024-03-31 03:30:00.123456'", table.Timestamp, "2024-03-31T03:30:00.123456Z"),
			sourcetest.Of("TIMESTAMP", "'2024-03-31T03:30:00+02:00'", table.Timestamp, "2024-03-31T01:30:00Z"),
			sourcetest.Of("DATE", "'1969-12-31'", table.Date, "1969-12-31"),
		},
		Refused: "BLOB",
	})
}

// What SQLite keeps in another class than the column is read as is refused, where rows
// would be passed over; with its type declared it is read to its end, from each row on.
func TestClasses(t *testing.T) {
	file, exec := written(t, t.TempDir())
	exec(t, "CREATE TABLE t (id, n TEXT, at TEXT, doc JSON)",
		"INSERT INTO t VALUES (1, '1', '2024-01-01 10:00:00', '1'), (2, '2', '2024-01-01T10:00:00Z', '2'), (3, '3', '2024-01-01 10:00:00', '3')")
	for name, change := range map[string]func(r *source.Request){
		"an untyped cursor":        func(r *source.Request) { r.Cursor, r.Key = "id", []string{"n"} },
		"an untyped key":           func(r *source.Request) { r.Mode, r.Key = source.Full, []string{"id"} },
		"text that is no number":   func(r *source.Request) { r.Cursor, r.Key, r.Declared = "n", []string{"at"}, columns("n", table.Int64) },
		"numbers in a JSON column": func(r *source.Request) { r.Cursor, r.Key = "doc", []string{"n"} },
		"an expression of a number": func(r *source.Request) {
			r.From.SQLite.Table, r.From.SQLite.Query, r.Cursor = "", "SELECT CAST(n AS INTEGER) AS c, n FROM t", "c"
			r.Key = []string{"n"}
		},
	} {
		r := subject(file)
		r.From.SQLite.Table, r.Mode = "t", source.Incremental
		change(&r)
		t.Run(name, func(t *testing.T) { sourcetest.Refused(t, driver, r, fault.Invalid, "would be skipped") })
	}
	for name, change := range map[string]func(r *source.Request){
		"an untyped cursor, declared": func(r *source.Request) { r.Cursor, r.Key, r.Declared = "id", []string{"n"}, columns("id", table.Int64) },
		"times as text, declared": func(r *source.Request) {
			r.Cursor, r.Key, r.Declared, r.Overlap = "at", []string{"n"}, columns("at", table.Timestamp), "0s"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(file)
			r.From.SQLite.Table, r.Mode, r.BatchRows = "t", source.Incremental, 1
			change(&r)
			rows, until, after, _ := sourcetest.ReadAll(t, driver, r)
			if len(rows) != 3 {
				t.Fatalf("read %v", rows)
			}
			for i, at := range after {
				again := r
				again.Begun, again.Resume, again.Until = true, at, until
				if rest, _, _, _ := sourcetest.ReadAll(t, driver, again); len(rest) != 2-i {
					t.Errorf("after row %d: %v", i, rest)
				}
			}
			exec(t, "INSERT INTO t VALUES (10, '9', '2024-01-02 00:00:00', '9')")
			r.After = until
			if rows, _, _, _ := sourcetest.ReadAll(t, driver, r); len(rows) == 0 || !strings.Contains(rows[len(rows)-1], "9") {
				t.Errorf("the next run reads %v", rows)
			}
			exec(t, "DELETE FROM t WHERE n = '9'")
		})
	}
}

func columns(name string, t table.Type) []source.Column {
	return []source.Column{{Name: name, Type: t}}
}

// A cursor of times that are written in several ways.
func TestTimes(t *testing.T) {
	file, exec := written(t, t.TempDir())
	exec(t, "CREATE TABLE t (id INTEGER, seq TIMESTAMP)",
		"INSERT INTO t VALUES (1, '2024-01-01 10:00:00'), (2, '2024-01-01T10:00:00Z'), (3, '2024-01-01 10:00:00.5'), (4, '2024-01-01 13:00:01+03:00')")
	r := subject(file)
	r.From.SQLite.Table, r.Mode, r.Cursor, r.Key, r.Overlap, r.BatchRows = "t", source.Incremental, "seq", []string{"id"}, "0s", 1
	rows, until, after, _ := sourcetest.ReadAll(t, driver, r)
	if len(rows) != 4 || rows[0] != "1|2024-01-01T10:00:00Z" || rows[3] != "4|2024-01-01T10:00:01Z" {
		t.Fatalf("read %v", rows)
	}
	for i, at := range after {
		again := r
		again.Begun, again.Resume, again.Until = true, at, until
		if rest, _, _, _ := sourcetest.ReadAll(t, driver, again); len(rest) != 3-i {
			t.Errorf("after row %d: %v", i, rest)
		}
	}
	exec(t, "INSERT INTO t VALUES (5, '2024-01-01 10:00:01')")
	r.After = until
	if rows, _, _, _ := sourcetest.ReadAll(t, driver, r); len(rows) != 2 {
		t.Errorf("of the last instant: %v", rows)
	}
	exec(t, "INSERT INTO t VALUES (6, 'soon')")
	sourcetest.Refused(t, driver, r, fault.Invalid, "the value is not a timestamp")
}

func TestWhatIsRefused(t *testing.T) {
	dir := t.TempDir()
	file, exec := written(t, dir)
	exec(t, "CREATE TABLE t (id INTEGER, day DATE, n INTEGER)", "INSERT INTO t VALUES (1, '2024-01-01', 'seven')")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	damaged := bytes.Clone(whole)
	for i := 4096; i < len(damaged); i++ {
		damaged[i] = 0xff
	}
	wal := bytes.Clone(whole)
	wal[18], wal[19] = 2, 2
	for name, w := range map[string]struct {
		kind   fault.Kind
		word   string
		change func(r *source.Request)
	}{
		"no file":           {fault.NotFound, "there is no", func(r *source.Request) { r.From.SQLite.File = filepath.Join(dir, "nix.db") }},
		"another directory": {fault.PermissionDenied, "may not read", func(r *source.Request) { r.From.SQLite.File = "/etc/passwd" }},
		"no database":       {fault.Invalid, "not an SQLite database", func(r *source.Request) { r.From.SQLite.File = put("text.db", bytes.Repeat([]byte("text "), 100)) }},
		"damaged":           {fault.Invalid, "", func(r *source.Request) { r.From.SQLite.File = put("damaged.db", damaged) }},
		"cut off":           {fault.Invalid, "", func(r *source.Request) { r.From.SQLite.File = put("short.db", whole[:5000]) }},
		"a log beside it": {fault.Unavailable, "in use", func(r *source.Request) {
			r.From.SQLite.File = put("live.db", wal)
			put("live.db-wal", []byte("frames"))
		}},
		"a value of another type": {fault.Invalid, `column "n"`, func(*source.Request) {}},
		"a date as the key":       {fault.Invalid, "is a date", func(r *source.Request) { r.Key = []string{"day"} }},
		"a file that SQL names": {fault.Invalid, "", func(r *source.Request) {
			r.From.SQLite.Table, r.From.SQLite.Query = "", "SELECT load_extension('/tmp/x.so')"
		}},
		"nothing to read": {fault.Invalid, "either table or query", func(r *source.Request) { r.From.SQLite.Table = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(file)
			r.From.SQLite.Table, r.Mode, r.BatchRows = "t", source.Full, 10
			w.change(&r)
			sourcetest.Refused(t, driver, r, w.kind, w.word)
		})
	}
	r := subject(put("quiet.db", wal)) // of the WAL mode, with an empty log
	r.From.SQLite.Table, r.From.SQLite.Columns, r.Mode, r.BatchRows = "t", []string{"id"}, source.Full, 10
	if rows, _, _, _ := sourcetest.ReadAll(t, driver, r); len(rows) != 1 {
		t.Errorf("read %v", rows)
	}
}

// Whatever the bytes are, the child answers, with rows or a fault.
func FuzzMain(f *testing.F) {
	dir := f.TempDir()
	db, err := sql.Open("sqlite3", filepath.Join(dir, "seed.db"))
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"} {
		if _, err := db.ExecContext(f.Context(), s); err != nil {
			f.Fatal(err)
		}
	}
	_ = db.Close()
	seed, err := os.ReadFile(filepath.Join(dir, "seed.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:4096])
	f.Fuzz(func(t *testing.T, file []byte) {
		var in, out bytes.Buffer
		w := child.NewWriter(&in)
		if err := w.Header(map[string]any{"What": source.Database{Table: "t"}, "Mode": "full", "BatchRows": 10}); err != nil {
			t.Fatal(err)
		}
		s := w.Stream()
		if _, err := s.Write(file); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := sqlite.Main(&in, &out); err != nil || out.Len() == 0 {
			t.Fatalf("%v, %d bytes", err, out.Len())
		}
	})
}
