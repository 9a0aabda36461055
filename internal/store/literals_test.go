package store

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"pgregory.net/rapid"
)

func TestLift(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, text string
		values   []driver.Value // nil is left alone
	}{
		{`SELECT "t"."a" FROM "t2" AS "t" WHERE (a = 'x''y') AND b IN ('', 'é') LIMIT 51`, `SELECT "t"."a" FROM "t2" AS "t" WHERE (a = ?) AND b IN (?, ?) LIMIT ?`, []driver.Value{"x'y", "", "é", int64(51)}},
		{`INSERT INTO s (tx, body) VALUES (0, X'00ff', -12, TRUE, NULL)`, `INSERT INTO s (tx, body) VALUES (?, ?, -?, TRUE, NULL)`, []driver.Value{int64(0), []byte{0, 0xff}, int64(12)}},
		{`UPDATE t SET a1 = 1.5, b = 2e-7, c = .5, d = 0x10, e = 9223372036854775808, f = 7`, `UPDATE t SET a1 = 1.5, b = 2e-7, c = .5, d = 0x10, e = 9223372036854775808, f = ?`, []driver.Value{int64(7)}},
		{`DELETE FROM t WHERE a = "a'1" AND b = 'x'`, `DELETE FROM t WHERE a = "a'1" AND b = ?`, []driver.Value{"x"}},
		// The number of a column is not a value.
		{`SELECT a, 3 FROM t WHERE b = 'x' ORDER BY 1, 2 LIMIT 5`, `SELECT a, ? FROM t WHERE b = ? ORDER BY 1, 2 LIMIT 5`, []driver.Value{int64(3), "x"}},
		{in: `SELECT a FROM t WHERE b = ?`},
		{in: `SELECT 'a' -- b`},
		{in: `SELECT 'a' /* b */`},
		{in: `SELECT 1; DROP TABLE t`},
		{in: `SELECT 'a`},
		{in: `SELECT X'0'`},
		{in: `CREATE INDEX i ON t (a) WHERE b <> ''`},
		{in: `PRAGMA busy_timeout = 200`},
		{in: `SELECT ` + strings.Repeat("'a', ", maxLiterals) + `'a', 'a'`},
		{in: `SELECT '` + strings.Repeat("a", maxLifted) + `'`},
	} {
		text, values, ok := lift(tt.in)
		var got []driver.Value
		for i, v := range values {
			if v.Ordinal != i+1 {
				t.Errorf("%s: value %d has the number %d", tt.in, i+1, v.Ordinal)
			}
			got = append(got, v.Value)
		}
		if ok != (tt.values != nil) || text != tt.text || ok && !reflect.DeepEqual(got, tt.values) {
			t.Errorf("%s:\n%s\n%#v %v", tt.in, text, got, ok)
		}
	}
}

// TestLiftKeepsValues: SQLite takes a lifted value for what the literal was.
func TestLiftKeepsValues(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	as := map[string]*sql.DB{"lifted": sql.OpenDB(&sqliteReader{dsn: "file:" + path + "?_stmt_cache_size=4"})}
	var err error
	if as["literal"], err = sql.Open("sqlite3", "file:"+path); err != nil {
		t.Fatal(err)
	}
	for _, db := range as {
		defer db.Close()
	}
	format := bun.NewDB(as["literal"], sqlitedialect.New()).QueryGen()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.Bool().AsAny(), rapid.StringMatching(`['"?X\-/*;0-9]{0,9}`).AsAny())
		var told, given []string
		values := rapid.SliceOfN(value, 1, 5).Draw(t, "values")
		for i := range values {
			told = append(told, fmt.Sprintf("typeof(c%[1]d) || ' ' || quote(c%[1]d)", i))
			given = append(given, fmt.Sprintf("? AS c%d", i))
		}
		query := format.FormatQuery("SELECT "+strings.Join(told, " || ', ' || ")+" FROM (SELECT "+strings.Join(given, ", ")+")", values...)
		got := map[string]string{}
		for name, db := range as {
			var s string
			if err := db.QueryRowContext(t.Context(), query).Scan(&s); err != nil {
				t.Fatal(name, err)
			}
			got[name] = s
		}
		if got["lifted"] != got["literal"] {
			t.Fatalf("%s\n%s\n%s", query, got["lifted"], got["literal"])
		}
	})
}

func FuzzLift(f *testing.F) {
	for _, s := range []string{`SELECT 'a''b', X'00', 1.5, 2, "c" FROM t ORDER BY 1`, `INSERT INTO t VALUES ('`, `SELECT 1e-5, x'0g', é1`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		text, values, ok := lift(query)
		if !ok {
			return
		}
		// What is left has nothing to lift, and a place for each value.
		bare := strings.ReplaceAll(text, "?", "NULL")
		if again, more, ok := lift(bare); ok && (len(more) > 0 || again != bare) {
			t.Errorf("%q became %q, which became %q", query, text, again)
		}
		if strings.Count(text, "?")-strings.Count(query, "?") != len(values) {
			t.Errorf("%q became %q with %d values", query, text, len(values))
		}
	})
}
