//go:build duckdb_arrow

package sqlworker_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
)

// traced are queries over flights and weather, and what their columns are made of:
// f.x is flights@1's column x, and all is what decides about all rows.
var traced = []struct{ sql, want string }{
	{"SELECT origin, delay FROM flights", "delay: f.delay identity; origin: f.origin identity"},
	{"SELECT * FROM flights f WHERE id > 1", "*: f.id filter; day: f.day identity; delay: f.delay identity; id: f.id identity; late: f.late identity; moment: f.moment identity; origin: f.origin identity"},
	{"SELECT delay * 2 + id AS d, upper(origin) u, 1 AS c FROM flights", "c: ; d: f.delay transformation, f.id transformation; u: f.origin transformation"},
	{"SELECT a.d FROM (SELECT delay::BIGINT d, id FROM flights) a", "d: f.delay transformation"},
	{"SELECT origin, avg(delay) m, count(*) n FROM flights WHERE late GROUP BY origin HAVING max(id) > 0", "*: f.id filter, f.late filter, f.origin group_by; m: f.delay aggregation; n: ; origin: f.origin identity"},
	{"SELECT f.id, w.temp FROM flights f JOIN weather w USING (origin)", "*: f.origin join, w.origin join; id: f.id identity; temp: w.temp identity"},
	{"SELECT f.id, w.temp FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.delay > w.temp", "*: f.delay join, f.origin join, w.origin join, w.temp join; id: f.id identity; temp: w.temp identity"},
	{"SELECT f.id, w.temp FROM flights f JOIN weather w ON f.origin = w.origin OR f.delay > w.temp", "*: f.delay join, f.origin join, w.origin join, w.temp join; id: f.id identity; temp: w.temp identity"},
	{"SELECT f.id, w.temp FROM flights f ASOF JOIN weather w ON f.origin = w.origin AND f.delay >= w.temp", "*: f.delay join, f.origin join, w.origin join, w.temp join; id: f.id identity; temp: w.temp identity"},
	{"SELECT CASE WHEN late THEN origin ELSE 'x' END c FROM flights", "c: f.late conditional, f.origin transformation"},
	{"SELECT row_number() OVER (PARTITION BY origin ORDER BY moment) r, lag(delay) OVER (ORDER BY id) l, id FROM flights", "id: f.id identity; l: f.delay transformation, f.id window; r: f.moment window, f.origin window"},
	{"SELECT sum(delay) FILTER (WHERE late) s FROM flights", "s: f.delay aggregation, f.late conditional"},
	{"WITH x AS (SELECT id AS a, delay AS b FROM flights), y AS (SELECT a, max(b) AS b FROM x GROUP BY a) SELECT y.b, x.b + 1 AS c FROM x JOIN y USING (a)", "*: f.id join; b: f.delay aggregation; c: f.delay transformation"},
	{"WITH RECURSIVE r(n, o) AS (SELECT id, origin FROM flights UNION ALL SELECT n + 1, o FROM r WHERE n < 3) SELECT n, o FROM r", "*: f.id filter; n: f.id identity; o: f.origin identity"},
	{"SELECT id AS x, origin AS y FROM flights UNION ALL SELECT temp, secret FROM weather", "x: f.id identity, w.temp identity; y: f.origin identity, w.secret identity"},
	{"SELECT origin FROM flights EXCEPT SELECT origin FROM weather WHERE temp > 1", "*: f.origin filter, w.origin filter, w.temp filter; origin: f.origin identity"},
	{"SELECT id, (SELECT max(temp) FROM weather w WHERE w.origin = f.origin) t FROM flights f", "*: f.origin join, w.origin filter; id: f.id identity; t: w.temp aggregation"},
	{"SELECT id FROM flights WHERE origin IN (SELECT origin FROM weather)", "*: f.origin join, w.origin join; id: f.id identity"},
	{"SELECT id FROM flights f WHERE EXISTS (SELECT 1 FROM weather w WHERE w.origin = f.origin AND w.temp > 1)", "*: f.origin join, w.origin filter, w.temp filter; id: f.id identity"},
	{"SELECT DISTINCT ON (origin) origin, delay FROM flights ORDER BY origin, moment DESC", "*: f.moment sort, f.origin group_by; delay: f.delay identity; origin: f.origin identity"},
	{"SELECT id FROM flights ORDER BY delay LIMIT 2", "*: f.delay sort; id: f.id identity"},
	{"SELECT id FROM flights QUALIFY row_number() OVER (PARTITION BY origin ORDER BY moment) = 1", "*: f.moment window, f.origin window; id: f.id identity"},
	{"SELECT v.a, f.id FROM (VALUES (1, 'x'), (2, 'y')) v(a, b), flights f", "a: ; id: f.id identity"},
	{"SELECT unnest([delay, id]) u FROM flights", "*: f.delay filter, f.id filter; u: f.delay transformation, f.id transformation"},
	{"SELECT id, unnest(string_split(origin, 'W')) part FROM flights", "*: f.origin filter; id: f.id identity; part: f.origin transformation"},
	{"SELECT id FROM (SELECT id, unnest(string_split(origin, 'W')) part FROM flights)", "*: f.origin filter; id: f.id identity"},
	{"SELECT id FROM flights LIMIT (SELECT max(temp)::BIGINT FROM weather)", "*: w.temp filter; id: f.id identity"},
	{"SELECT id FROM flights LIMIT 5 OFFSET (SELECT count(*) FROM weather WHERE temp > 1)", "*: w.temp filter; id: f.id identity"},
	{"WITH RECURSIVE r(n, o) AS (SELECT 1, delay > -1 FROM flights UNION SELECT n + 1, o FROM r WHERE n < 2) SELECT n FROM r", "*: f.delay group_by; n: "},
	{"SELECT s.o FROM (SELECT {'o': origin, 'd': delay} s FROM flights)", "o: f.delay transformation, f.origin transformation"},
	{"SELECT count(*) n FROM flights", "n: "},
	{"SELECT 1 AS a", "a: "},
	{"PIVOT (SELECT id, late, delay FROM flights) ON late IN (true, false) USING sum(delay) GROUP BY id", "*: f.id group_by; false: f.delay aggregation, f.late conditional; id: f.id identity; true: f.delay aggregation, f.late conditional"},
	{"SELECT r.range, f.id FROM flights f, range(f.id) r", "unknown"},
}

func columnsText(c dataset.Columns) string {
	if c == nil {
		return "unknown"
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		var from []string
		for _, s := range c[name] {
			from = append(from, s.Ref[:1]+"."+s.Column+" "+s.How)
		}
		slices.Sort(from)
		out = append(out, name+": "+strings.Join(from, ", "))
	}
	return strings.Join(out, "; ")
}

func TestColumnLineage(t *testing.T) {
	h := harness(t, nil)
	for _, c := range traced {
		q, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: c.sql})
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		if got := columnsText(q.Columns()); got != c.want {
			t.Errorf("%s\n got  %s\n want %s", c.sql, got, c.want)
		}
		q.Release()
	}
}

// What lineage does not name has no part in a column: other values in all cells of all
// unnamed columns change nothing.
func TestColumnLineageIsComplete(t *testing.T) {
	if testing.Short() {
		t.Skip("runs each query many times")
	}
	tables := map[string][][]string{
		"flights": {
			{"id", "origin", "delay", "moment", "day", "late"},
			{"1", "EWR", "5", "2013-01-01T10:00:00Z", "2013-01-01", "false"},
			{"2", "JFK", "0.5", "2013-01-01T11:30:00Z", "2013-01-02", "true"},
			{"3", "EWR", "-2.5", "2013-07-02T12:00:00Z", "2013-07-02", "true"},
		},
		"weather": {{"origin", "temp", "secret"}, {"EWR", "1", "a"}, {"JFK", "2", "b"}, {"LGA", "0", "c"}},
	}
	other := map[string][]string{
		"id": {"7", "1", "5"}, "origin": {"JFK", "LGA", "LGA"}, "delay": {"0.25", "9", "1"}, "moment": {"2014-01-01T10:00:00Z", "2012-01-01T11:30:00Z", "2013-02-02T12:00:00Z"},
		"day": {"2015-01-01", "2013-01-01", "2011-07-02"}, "late": {"true", "false", "false"}, "temp": {"-3", "1", "8"}, "secret": {"x", "a", "y"},
	}
	var columns []string // "flights.id"
	for _, table := range []string{"flights", "weather"} {
		for _, c := range tables[table][0] {
			columns = append(columns, table+"."+c)
		}
	}
	worlds := map[string]*datasettest.Harness{} // by the columns with other values
	world := func(changed []string) *datasettest.Harness {
		key := strings.Join(changed, " ")
		if worlds[key] != nil {
			return worlds[key]
		}
		h := datasettest.New(t, nil)
		for name, rows := range tables {
			var b strings.Builder
			for i, row := range rows {
				cells := slices.Clone(row)
				for j, c := range rows[0] {
					if i > 0 && slices.Contains(changed, name+"."+c) {
						cells[j] = other[c][i-1]
					}
				}
				b.WriteString(strings.Join(cells, ",") + "\n")
			}
			h.Put(t, name, dataset.Spec{}, b.String())
		}
		worlds[key] = h
		return h
	}
	run := func(h *datasettest.Harness, sql string) (map[string]string, dataset.Columns) {
		q, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: sql})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		defer q.Release()
		rows, err := dataset.Collect(t.Context(), q, 1000, 0)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for i, f := range q.Schema().Fields() {
			var cells []string
			for _, r := range rows.Rows {
				cells = append(cells, fmt.Sprint(r[i]))
			}
			slices.Sort(cells) // the order of rows is nobody's, but where it is asked for
			out[f.Name] = strings.Join(cells, " ")
		}
		return out, q.Columns()
	}
	differed := 0
	for _, c := range traced {
		before, made := run(world(nil), c.sql)
		if made == nil {
			continue
		}
		for out, cells := range before {
			var unnamed []string
			for _, column := range columns {
				if !slices.ContainsFunc(slices.Concat(made[out], made[dataset.AllRows]), func(s dataset.ColumnSource) bool {
					table, _, _ := strings.Cut(s.Ref, "@")
					return table+"."+s.Column == column
				}) {
					unnamed = append(unnamed, column)
				}
			}
			if after, _ := run(world(unnamed), c.sql); after[out] != cells {
				t.Errorf("%s\n column %s changes with %s, which lineage does not name: %s", c.sql, out, unnamed, columnsText(made))
			}
		}
		after, _ := run(world(columns), c.sql)
		for out := range before {
			if after[out] != before[out] {
				differed++
			}
		}
	}
	if differed < 30 {
		t.Errorf("only %d columns change when everything does: this shows too little", differed)
	}
}

func TestColumnsOfUnknownPlans(t *testing.T) {
	for _, sql := range []string{"SELECT id FROM flights TABLESAMPLE 50%"} {
		h := harness(t, nil)
		q, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: sql})
		if err != nil {
			t.Fatal(err)
		}
		if got := columnsText(q.Columns()); got != "unknown" {
			t.Errorf("%s: %s", sql, got)
		}
		q.Release()
	}
}
