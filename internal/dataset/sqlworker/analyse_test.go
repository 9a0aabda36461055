//go:build duckdb_arrow

package sqlworker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/fault"
)

func serializer(tb testing.TB) func(sql string) string {
	tb.Helper()
	w := &worker{ctx: tb.Context(), req: child.SQLRequest{Memory: 64 << 20, Threads: 1}}
	if err := w.start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.close)
	return func(sql string) string {
		s, err := w.serialize(sql)
		if err != nil {
			return ""
		}
		return s
	}
}

func TestAnalyse(t *testing.T) {
	serialize := serializer(t)
	for _, c := range []struct{ sql, want string }{ // tables, '*' for all columns; then identifiers
		{"SELECT 1", " / "},
		{"SELECT a, count(*) FROM t GROUP BY 1", "t / a"},
		{"SELECT count(*) FROM t", "t / "},
		{"SELECT * FROM t", "t* / "},
		{"FROM t", "t* / "},
		{"SELECT A FROM T JOIN Main.T u USING (K)", "t / a k"},
		{`SELECT x."a b" FROM "w@3" x WHERE x.c > 1 ORDER BY d`, "w@3 / a b c d x"},
		{"SELECT t.* FROM t JOIN u ON t.a = u.b", "t* u / a b t u"},
		{"SELECT t FROM t", "t* / t"},
		{"SELECT t.u FROM t JOIN u ON true", "t u* / t u"},
		{"SELECT a FROM t NATURAL JOIN u", "t* u* / a"},
		{"SELECT a FROM t AS x(a, b)", "t* / a"},
		{"SELECT COLUMNS('a.*') FROM t", "t* / "},
		{"SELECT * EXCLUDE (a) FROM t", "t* / "},
		{"WITH c AS (SELECT a FROM t) SELECT * FROM c", "t / a"},
		{"WITH t AS (SELECT a FROM t) SELECT * FROM t", "t / a"},
		{"WITH c AS (SELECT * FROM t), d AS (SELECT b FROM c, u) SELECT * FROM d", "t* u / b"},
		{"WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM r WHERE a < 5) SELECT * FROM r", "t / a"},
		{"SELECT a FROM t WHERE EXISTS (SELECT * FROM u WHERE u.k = t.k)", "t u* / a k t u"},
		{"SELECT a FROM t UNION SELECT b FROM u", "t u / a b"},
		{"SELECT a FROM (SELECT * FROM t) JOIN (SELECT b FROM u) ON true", "t* u / a b"},
		{"SELECT sum(a) OVER (PARTITION BY b ORDER BY c) FROM t QUALIFY d > 1", "t / a b c d"},
		{"SELECT a FROM t ASOF JOIN u ON t.k = u.k AND t.at >= u.at", "t u / a at k t u"},
		{"SELECT i, a FROM t, range(3) r(i)", "t / a i"},
		{"SELECT * FROM (PIVOT t ON year IN (2013) USING sum(p))", "t* / p year"},
		{"SELECT list_transform([a], x -> x + b) FROM t", "t / a b x"},
		{"SELECT CASE WHEN a THEN b ELSE (SELECT max(c) FROM u) END FROM t", "t u / a b c"},
		{"SELECT a FROM t LIMIT (SELECT b FROM u)", "t u / a b"},
		{"DESCRIBE t", "t* / "},
		{"VALUES (1), (2)", " / "},
	} {
		a, err := analyse(serialize(c.sql))
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		var tables []string
		for _, u := range a.Tables {
			star := ""
			if u.All {
				star = "*"
			}
			tables = append(tables, u.Name+star)
		}
		got := fmt.Sprintf("%s / %s", strings.Join(tables, " "), strings.Join(a.Identifiers, " "))
		if got != c.want {
			t.Errorf("%s\n got  %s\n want %s", c.sql, got, c.want)
		}
	}
	for _, c := range []struct{ sql, want string }{
		{"SELEC 1", "syntax error"},
		{"", "0 statements"},
		{"SELECT 1; SELECT 2", "2 statements"},
		{"INSERT INTO t VALUES (1)", "only SELECT"},
		{"CREATE TABLE x AS SELECT 1", "only SELECT"},
		{"COPY t TO '/tmp/x'", "only SELECT"},
		{"ATTACH '/tmp/x'", "only SELECT"},
		{"INSTALL httpfs", "only SELECT"},
		{"SET threads = 1", "only SELECT"},
		{"PRAGMA database_list", "only SELECT"},
		{"DELETE FROM t", "only SELECT"},
		{"SELECT * FROM read_csv('/etc/passwd')", "read_csv cannot be used"},
		{"SELECT * FROM read_text('/etc/passwd')", "cannot be used"},
		{"SELECT * FROM glob('/*')", "cannot be used"},
		{"SELECT * FROM duckdb_settings()", "cannot be used"},
		{"SELECT * FROM query('SELECT 1')", "cannot be used"},
		{"SELECT * FROM arrow_scan(1, 2, 3)", "cannot be used"},
		{"SELECT * FROM sqlite_scan('a', 'b')", "cannot be used"},
		{"WITH c AS (SELECT * FROM glob('*')) SELECT 1", "cannot be used"},
		{"SELECT (SELECT max(size) FROM read_blob('/etc/passwd'))", "cannot be used"},
		{"SELECT * FROM information_schema.tables", "there is no table"},
		{"SELECT * FROM system.main.x", "there is no table"},
		{"SELECT * FROM temp.x", "there is no table"},
	} {
		s := serialize(c.sql)
		if s == "" {
			continue // refused by DuckDB before it was a tree
		}
		if a, err := analyse(s); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: %v, %v, want %q", c.sql, a, err, c.want)
		}
	}
}

// TestVersionToQuote: the error for a version without quotes says to quote it.
func TestVersionToQuote(t *testing.T) {
	_, err := analyse(serializer(t)("SELECT * FROM orders@2"))
	if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), `"orders@2"`) {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func FuzzAnalyse(f *testing.F) {
	serialize := serializer(f)
	for _, s := range []string{"SELECT a FROM t", "WITH c AS (FROM t) SELECT * FROM c NATURAL JOIN u", "FROM range(3)", "VALUES (1)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		a, err := analyse(serialize(sql))
		if err == nil {
			for _, u := range a.Tables {
				if u.Name != strings.ToLower(u.Name) {
					t.Errorf("table %q", u.Name)
				}
			}
		}
	})
}
