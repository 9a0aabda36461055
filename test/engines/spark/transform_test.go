package spark

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const transformed = `
{api_version: falaj/v1, kind: Dataset, name: flights, project: nyc, spec: {protection: open, columns: [{name: id, type: int64}, {name: delay, type: float64}]}}
---
{api_version: falaj/v1, kind: Dataset, name: weather, project: nyc, spec: {protection: open}}
---
{api_version: falaj/v1, kind: Dataset, name: secret, project: nyc}
---
{api_version: falaj/v1, kind: Environment, name: spark, project: nyc, spec: {requirements: ["pyspark==4.0.5", setuptools], allow_source: true}}
---
{api_version: falaj/v1, kind: Environment, name: bare, project: nyc, spec: {requirements: ["six==1.17.0"]}}
`

// bySQL has what steps have: a join on times, groups, windows, text, dates, nulls, and
// what the two call and type differently when nobody tells them.
const bySQL = `WITH late AS (SELECT * FROM flights WHERE delay > 0 OR delay IS NULL),
joined AS (
  SELECT l.id, l.origin, l."moment", l.delay, w.temp, row_number() OVER (PARTITION BY l.origin ORDER BY l.id) AS nth
  FROM late l LEFT JOIN "weather@1" w ON w.origin = l.origin AND w.seen = date_trunc('hour', l.moment)
)
SELECT upper(origin) AS origin, CAST(moment AS DATE) AS day, count(*), sum(id) AS ids, max(delay) AS worst, avg(temp) AS temp, max(nth) > 1 AS more,
  max(nth) AS nth, max(extract(hour FROM moment)) AS hour, CAST(count(temp) AS INTEGER) AS seen, CAST(max(delay) AS REAL) AS about,
  array_sort(array_agg(CAST(id AS INTEGER))) AS members, max(moment) AS newest, min(coalesce(delay, -1)) AS least, DATE '1500-03-01' AS old
FROM joined GROUP BY upper(origin), CAST(moment AS DATE) ORDER BY origin, day`

func made(p *live.Project, name, ref string) client.Object {
	p.T.Helper()
	var v client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodGet, p.Path("datasets/"+name+"@"+ref+"/version"), nil, &v))
	return v
}

// The same step by DuckDB and on Spark gives the same rows and the same lineage. What
// Spark may not have is refused at once, with what to do.
func TestSparkTransforms(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(transformed)
	var flights, weather strings.Builder
	flights.WriteString("id,origin,moment,delay\n")
	weather.WriteString("origin,seen,temp\n")
	for i := range 3000 {
		at := time.Date(2013, 1, 1, 0, 0, 0, 250_000_000, time.UTC).Add(time.Duration(i) * 17 * time.Minute)
		delay := fmt.Sprint(float64(i%91)/2 - 10)
		if i%13 == 0 {
			delay = ""
		}
		fmt.Fprintf(&flights, "%d,%s,%s,%s\n", i, []string{"ewr", "Jfk", "lga"}[i%3], at.Format(time.RFC3339Nano), delay)
		if i%2 == 0 {
			fmt.Fprintf(&weather, "%s,%s,%g\n", []string{"ewr", "Jfk", "lga"}[i%3], at.Truncate(time.Hour).Format(time.RFC3339), float64(i%64)/4)
		}
	}
	p.Import("flights", flights.String())
	p.Import("weather", weather.String())
	p.Import("secret", "id,name\n1,canary\n")

	step := func(name, engine, sql, more string) {
		t.Helper()
		p.Apply(fmt.Sprintf("api_version: falaj/v1\nkind: Dataset\nname: %s\nproject: nyc\nspec:\n  transform: {engine: %s, sql: %q%s}\n", name, engine, sql, more))
	}
	const onSpark = ", environment: spark" // and what a step has by default
	step("byduckdb", "duckdb", bySQL, "")
	step("byspark", "spark", bySQL, onSpark)
	p.Run(0, "dataset", "derive", "byduckdb")
	var begun client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/byspark/derive"), map[string]any{}, &begun))
	if job := ends(p, begun.Text("job"), 14*time.Minute); job.Text("dataset") != "byspark@1" {
		t.Errorf("the job made %q", job.Text("dataset"))
	}
	ours, theirs := made(p, "byduckdb", "1"), made(p, "byspark", "1")
	if ours.Text("rows") == "0" || ours.Text("digest") != theirs.Text("digest") {
		t.Errorf("DuckDB made %s rows, %s, and Spark %s, %s:\n%s\n%s", ours.Text("rows"), ours.Text("digest"), theirs.Text("rows"), theirs.Text("digest"),
			p.Run(0, "dataset", "preview", "byduckdb"), p.Run(0, "dataset", "preview", "byspark"))
	}
	for _, part := range []string{"schema", "lineage.parents", "lineage.columns", "lineage.producer.text", "residency", "classification"} {
		if diff := cmp.Diff(ours.Text(part), theirs.Text(part)); diff != "" || ours.Text(part) == "" {
			t.Errorf("%s (-DuckDB +Spark):\n%s", part, diff)
		}
	}
	if by := theirs.Text("lineage.producer.id"); by != begun.Text("job") {
		t.Errorf("it was made by %q", by)
	}

	// The server is killed while Spark runs, and takes what it left.
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/byspark/derive"), map[string]any{}, &begun))
	p.Within(2*time.Minute, "the job does not run", func() (bool, error) {
		var o client.Object
		err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+begun.Text("job")+"?wait=5s"), nil, &o)
		return o.Text("state") == "running", err
	})
	p.Must(s.Kill())
	p.Again()
	if job := ends(p, begun.Text("job"), 5*time.Minute); job.Text("dataset") != "byspark@1" {
		t.Errorf("the same step again made %q", job.Text("dataset"))
	}
	// It is cancelled, and makes nothing.
	step("cancelled", "spark", "SELECT id FROM flights", onSpark)
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/cancelled/derive"), map[string]any{}, &begun))
	p.Run(0, "job", "cancel", begun.Text("job"))
	p.Within(time.Minute, "the job is not cancelled", func() (bool, error) {
		var o client.Object
		err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+begun.Text("job")+"?wait=5s"), nil, &o)
		return o.Text("state") == "cancelled", err
	})
	if _, err := p.Try(p.C, `{api_version: falaj/v1, kind: Dataset, name: x, project: nyc, spec: {transform: {sql: FROM flights, engine: spark}}}`); err == nil || !strings.Contains(err.Error(), "spec.transform.environment") {
		t.Errorf("without an environment: %v", err)
	}
	refused := func(sql, more string, words ...string) {
		t.Helper()
		step("refused", "spark", sql, more)
		err := p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/refused/derive"), map[string]any{}, nil)
		refusal, ok := errors.AsType[*client.Error](err)
		if !ok {
			t.Fatalf("%s: %v", sql, err)
		}
		said := refusal.Error() + refusal.Hint
		for _, w := range words {
			if !strings.Contains(said, w) {
				t.Errorf("%q is not in %s", w, said)
			}
		}
	}
	refused("SELECT id FROM secret", onSpark, "secret@1 is sealed", "engine: duckdb")
	refused("SELECT id FROM flights", ", environment: bare", "no PySpark", "pyspark==")
	refused("SELECT id FROM flights", ", environment: absent", "environment absent not found", "pyspark==")
	refused("SELECT id, TIMESTAMP '2013-01-01 00:00:00' AS seen FROM flights", onSpark, "seen", "time_zone: UTC")
	refused("SELECT * FROM read_csv('/etc/passwd')", onSpark, "read_csv")
}

// The guide's table of what differs is what the two make of the same SQL, and what it names
// as the same is the same.
func TestWhatDiffersOnSpark(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(transformed + "---\n{api_version: falaj/v1, kind: Dataset, name: n, project: nyc, spec: {protection: open}}\n")
	p.Import("n", "id,v\n1,\n2,5\n")
	guide, err := os.ReadFile(filepath.Join(s.Bin.Root, "docs/guides/transformations.md"))
	if err != nil {
		t.Fatal(err)
	}
	type expression struct{ sql, duckdb, spark string } // the same where spark is empty
	var all []expression
	for _, row := range regexp.MustCompile("(?m)^\\| `(.+?)`[^|]* \\| (.+?) \\| (.+?) \\| `(.+?)` \\|$").FindAllStringSubmatch(string(guide), -1) {
		all = append(all, expression{row[1], strings.Trim(row[2], "`"), strings.Trim(row[3], "`")}, expression{sql: row[4]})
	}
	if len(all) < 20 {
		t.Fatalf("the guide's table has %d lines", len(all)/2)
	}
	for _, same := range []string{
		"7 / 2", "'a' || NULL", "'it''s'", `'\d'`, `length('a\''')`, `regexp_extract('a1', '\d', 0)`, "-7 % 3", "'a' < 'B'", "round(2.5e0)", "CAST(2.5e0 AS INTEGER)", "substr('abc', -2, 2)",
		"greatest(1, NULL)", "CAST(date_trunc('week', DATE '2013-01-06') AS DATE)", "CAST('NaN' AS DOUBLE) > 1", "length('é')", "weekofyear(DATE '2013-01-06')", "concat_ws('-', 'a', NULL, 'b')",
		"-- it's\n'a'", "/* it's */ 'a'", `(SELECT y."a""b" FROM (SELECT 'q' AS "a""b") AS y)`, "ID",
	} {
		all = append(all, expression{sql: same})
	}
	outer, inner := make([]string, len(all)), make([]string, len(all))
	for i, e := range all {
		inner[i], outer[i] = fmt.Sprintf("%s AS c%d", e.sql, i), fmt.Sprintf("CAST(c%d AS STRING) AS c%d", i, i)
	}
	sql := "SELECT " + strings.Join(outer, ", ") + " FROM (SELECT id AS picked, " + strings.Join(inner, ", ") + " FROM n) AS x WHERE picked = 1"
	p.Apply(fmt.Sprintf("api_version: falaj/v1\nkind: Dataset\nname: byduckdb\nproject: nyc\nspec:\n  transform: {sql: %q}\n", sql))
	p.Apply(fmt.Sprintf("api_version: falaj/v1\nkind: Dataset\nname: byspark\nproject: nyc\nspec:\n  transform: {engine: spark, environment: spark, sql: %q}\n", sql))
	p.Run(0, "dataset", "derive", "byduckdb")
	var begun client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/byspark/derive"), map[string]any{}, &begun))
	ends(p, begun.Text("job"), 14*time.Minute)
	made := func(name string) []any {
		t.Helper()
		var got struct {
			Rows [][]any `json:"rows"`
		}
		p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": "FROM " + name}, &got))
		if len(got.Rows) != 1 || len(got.Rows[0]) != len(all) {
			t.Fatalf("%s: %v", name, got)
		}
		return got.Rows[0]
	}
	said := func(v any) string {
		if v == nil {
			return "null"
		}
		return fmt.Sprint(v)
	}
	ours, theirs := made("byduckdb"), made("byspark")
	for i, e := range all {
		duckdb, spark := said(ours[i]), said(theirs[i])
		switch {
		case e.spark == "" && duckdb != spark:
			t.Errorf("%s is %s by DuckDB and %s on Spark", e.sql, duckdb, spark)
		case e.spark != "" && (duckdb != e.duckdb || spark != e.spark):
			t.Errorf("%s is %s by DuckDB and %s on Spark, and the guide says %s and %s", e.sql, duckdb, spark, e.duckdb, e.spark)
		}
	}

	// A result of more columns than the arguments of a program could say.
	const most = 1500
	names, cells := make([]string, most), make([]string, most)
	for i := range names {
		names[i], cells[i] = fmt.Sprintf("a_rather_long_name_of_what_is_measured_at_place_number_%d", i), strconv.Itoa(i)
	}
	p.Import("weather", strings.Join(names, ",")+"\n"+strings.Join(cells, ",")+"\n")
	p.Apply("{api_version: falaj/v1, kind: Dataset, name: wide, project: nyc, spec: {transform: {engine: spark, environment: spark, sql: SELECT * FROM weather}}}")
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("datasets/wide/derive"), map[string]any{}, &begun))
	ends(p, begun.Text("job"), 5*time.Minute)
	var v struct {
		Schema []any `json:"schema"`
	}
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/wide@1/version"), nil, &v))
	if len(v.Schema) != most {
		t.Errorf("it has %d columns", len(v.Schema))
	}
}
