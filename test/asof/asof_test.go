//go:build duckdb_arrow

// Package asof holds the join of package offline against another engine, DuckDB,
// over random schemas: by its own ASOF JOIN where that can say the rule, and by
// the rule written out in SQL where it cannot (created times, ties).
package asof

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	duckdb "github.com/duckdb/duckdb-go/v2"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// The first four are those of keys.
var types = []value.Type{
	value.Int64, value.String, value.Bool, value.Int32, value.Timestamp, value.Float64, value.Float32,
	value.ListOf(value.Int64, 3), value.ListOf(value.String, 2), value.VectorOf(2),
}

// sqlTypes are those of DuckDB; times are microseconds there.
var sqlTypes = map[value.Type]string{
	value.Int64: "BIGINT", value.Int32: "INTEGER", value.Timestamp: "BIGINT", value.Float64: "DOUBLE", value.Float32: "FLOAT", value.Bool: "BOOLEAN", value.String: "VARCHAR",
	value.ListOf(value.Int64, 3): "BIGINT[]", value.ListOf(value.String, 2): "VARCHAR[]", value.VectorOf(2): "FLOAT[]",
}

// relation is a table with rows of values.
type relation struct {
	name    string
	columns []offline.Column
	rows    [][]value.Value
}

// input is what is joined: a spine (n, at, keys) and views (keys, event, created,
// features).
type input struct {
	keys  []offline.Column
	spine relation
	views []view
}

type view struct {
	relation
	keys     int // the first so many of the input's
	created  bool
	ttl      int64 // microseconds; 0 for ever
	features []offline.Column
}

// Few values, so that keys meet, times tie and limits are hit exactly.
func draw(t *rapid.T, of value.Type, nulls bool) value.Value {
	n := rapid.IntRange(0, 5).Draw(t, "value")
	if n == 0 && nulls {
		return value.Null(of)
	}
	if !of.Scalar() {
		if n %= of.Length() + 1; of.IsVector() {
			n = of.Length()
		}
		var elements []value.Value
		for range n {
			elements = append(elements, draw(t, of.Elem(), false))
		}
		list, err := value.OfList(of, elements)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	switch of {
	case value.Int32:
		return value.OfInt32([]int32{0, 1, -1, math.MaxInt32, math.MinInt32, 7}[n])
	case value.Float32:
		return value.OfFloat32([]float32{0, 0.1, -1.5, float32(math.NaN()), float32(math.Inf(-1)), 3e38}[n])
	case value.Int64:
		return value.OfInt([]int64{0, 1, -1, math.MaxInt64, math.MinInt64, 7}[n])
	case value.Float64:
		return value.OfFloat([]float64{0, 1, -1.5, math.NaN(), math.Inf(-1), 1e300}[n])
	case value.Bool:
		return value.OfBool(n%2 == 0)
	case value.Timestamp:
		return value.OfMicros([]int64{0, -1, 1, 1_700_000_000_000_000, -62_135_596_800_000_000, 3}[n])
	default:
		return value.OfString([]string{"", "a", "A", "ab", "é", "a "}[n])
	}
}

func moment(t *rapid.T, from, to int) value.Value {
	return value.OfMicros(int64(rapid.IntRange(from, to).Draw(t, "time")))
}

func drawInput(t *rapid.T) input {
	var in input
	for i := range rapid.IntRange(1, 3).Draw(t, "keys") {
		in.keys = append(in.keys, offline.Column{Name: fmt.Sprintf("k%d", i), Type: types[rapid.IntRange(0, 3).Draw(t, "key type")]})
	}
	in.spine = relation{name: "spine", columns: slices.Concat([]offline.Column{{Name: "n", Type: value.Int64}, {Name: "at", Type: value.Timestamp}}, in.keys)}
	for n := range rapid.IntRange(0, 40).Draw(t, "spine rows") {
		row := []value.Value{value.OfInt(int64(n)), moment(t, -4, 14)}
		for _, k := range in.keys {
			row = append(row, draw(t, k.Type, true))
		}
		in.spine.rows = append(in.spine.rows, row)
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "views") {
		v := view{
			keys: rapid.IntRange(1, len(in.keys)).Draw(t, "keys of the view"), created: rapid.Bool().Draw(t, "created"),
			ttl: int64(rapid.IntRange(0, 5).Draw(t, "ttl")),
		}
		for f := range rapid.IntRange(1, 3).Draw(t, "features") {
			v.features = append(v.features, offline.Column{Name: fmt.Sprintf("v%d_f%d", i, f), Type: rapid.SampledFrom(types).Draw(t, "type")})
		}
		v.name = fmt.Sprintf("v%d", i)
		v.columns = slices.Concat(in.keys[:v.keys], []offline.Column{{Name: "event", Type: value.Timestamp}, {Name: "created", Type: value.Timestamp}}, v.features)
		for range rapid.IntRange(0, 60).Draw(t, "rows") {
			var row []value.Value
			for _, k := range in.keys[:v.keys] {
				row = append(row, draw(t, k.Type, true))
			}
			event, created := moment(t, -4, 14), moment(t, -4, 14)
			switch rapid.IntRange(0, 9).Draw(t, "no time") {
			case 0:
				event = value.Null(value.Timestamp)
			case 1, 2:
				created = value.Null(value.Timestamp)
			}
			row = append(row, event, created)
			for _, f := range v.features {
				row = append(row, draw(t, f.Type, true))
			}
			v.rows = append(v.rows, row)
		}
		in.views = append(in.views, v)
	}
	return in
}

func TestDuckDB(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := drawInput(rt)
		db := load(t, in)
		defer db.Close()
		for _, o := range []offline.Options{{Workers: 2}, {Memory: 1}} {
			o.Dir = t.TempDir()
			got := in.join(t, o)
			for i, v := range in.views {
				same(rt, fmt.Sprintf("view %d by the rule in SQL", i), got[i], ask(t, db, v, rule(v)))
				if !v.created {
					same(rt, fmt.Sprintf("view %d by ASOF JOIN", i), got[i], ask(t, db, v, asof(v)))
				}
			}
		}
	})
}

// join is ours: the features of each view, by spine row.
func (in input) join(t *testing.T, o offline.Options) [][][]value.Value {
	t.Helper()
	open := func(r relation) offline.Open {
		return func(context.Context) (array.RecordReader, error) { return r.reader(t), nil }
	}
	var views []offline.View
	for _, v := range in.views {
		ours := offline.View{Name: v.name, Open: open(v.relation), Keys: in.keys[:v.keys], Event: "event", TTL: time.Duration(v.ttl) * time.Microsecond}
		if v.created {
			ours.Created = "created"
		}
		for _, k := range in.keys[:v.keys] {
			ours.SpineKeys = append(ours.SpineKeys, k.Name)
		}
		for _, f := range v.features {
			ours.Features = append(ours.Features, offline.Feature{Column: f, Select: f.Name})
		}
		views = append(views, ours)
	}
	result, err := offline.Join(t.Context(), offline.Spine{Open: open(in.spine), Timestamp: "at"}, views, o)
	if err != nil {
		t.Fatal(err)
	}
	defer result.Release()
	out := make([][][]value.Value, len(in.views))
	for result.Next() {
		b := result.RecordBatch()
		var names []string
		var kinds []value.Type
		for _, v := range in.views {
			for _, f := range v.features {
				names, kinds = append(names, f.Name), append(kinds, f.Type)
			}
		}
		cell, err := offline.Cells(b, names, kinds)
		if err != nil {
			t.Fatal(err)
		}
		for row := range int(b.NumRows()) {
			at := 0
			for i, v := range in.views {
				var values []value.Value
				for range v.features {
					values = append(values, cell(row, at).Clone())
					at++
				}
				out[i] = append(out[i], values)
			}
		}
	}
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// rule is the rule of package offline as SQL, row by row.
func rule(v view) string {
	on := make([]string, 0, v.keys+2)
	for i := range v.keys {
		on = append(on, fmt.Sprintf("s.k%d = v.k%d", i, i))
	}
	on = append(on, `v.event <= s."at"`)
	order := "v.event DESC, v.tie DESC"
	if v.created {
		on = append(on, `(v.created IS NULL OR v.created <= s."at")`)
		order = "v.event DESC, v.created DESC NULLS LAST, v.tie DESC"
	}
	return fmt.Sprintf(`SELECT %s FROM spine s LEFT JOIN (
		SELECT s.n AS asked, v.* FROM spine s JOIN %s v ON %s
		QUALIFY row_number() OVER (PARTITION BY s.n ORDER BY %s) = 1
	) x ON x.asked = s.n ORDER BY s.n`, selected(v, "x"), v.name, strings.Join(on, " AND "), order)
}

// asof is DuckDB's own join; of rows with equal key and time one is left, as the
// rule decides.
func asof(v view) string {
	var on, keys []string
	for i := range v.keys {
		on = append(on, fmt.Sprintf("s.k%d = x.k%d", i, i))
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	return fmt.Sprintf(`SELECT %s FROM spine s ASOF LEFT JOIN (
		SELECT * FROM %s WHERE event IS NOT NULL
		QUALIFY row_number() OVER (PARTITION BY %s, event ORDER BY tie DESC) = 1
	) x ON %s AND s."at" >= x.event ORDER BY s.n`, selected(v, "x"), v.name, strings.Join(keys, ", "), strings.Join(on, " AND "))
}

func selected(v view, from string) string {
	out := make([]string, len(v.features))
	for i, f := range v.features {
		out[i] = from + "." + f.Name
		if v.ttl > 0 {
			out[i] = fmt.Sprintf(`CASE WHEN s."at" - %s.event <= %d THEN %s.%s END`, from, v.ttl, from, f.Name)
		}
	}
	return strings.Join(out, ", ")
}

// load puts all into DuckDB; times are microseconds, and a view has the packed
// bytes of its features, which decide ties.
func load(t *testing.T, in input) *sql.DB {
	t.Helper()
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	conn, err := connector.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	put := func(r relation, features int) {
		var columns []string
		for _, c := range r.columns {
			columns = append(columns, `"`+c.Name+`" `+sqlTypes[c.Type])
		}
		if features > 0 {
			columns = append(columns, "tie BLOB")
		}
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf("CREATE TABLE %s (%s)", r.name, strings.Join(columns, ", "))); err != nil {
			t.Fatal(err)
		}
		appender, err := duckdb.NewAppenderFromConn(conn, "", r.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range r.rows {
			var out []driver.Value
			for _, v := range row {
				switch {
				case v.IsNull():
					out = append(out, nil)
				case v.Type() == value.Timestamp:
					out = append(out, v.Int())
				default:
					out = append(out, v.Any())
				}
			}
			if features > 0 {
				packed, err := value.AppendRow(nil, row[len(row)-features:])
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, packed)
			}
			if err := appender.AppendRow(out...); err != nil {
				t.Fatal(err)
			}
		}
		if err := appender.Close(); err != nil {
			t.Fatal(err)
		}
	}
	put(in.spine, 0)
	for _, v := range in.views {
		put(v.relation, len(v.features))
	}
	return db
}

func ask(t *testing.T, db *sql.DB, v view, query string) [][]value.Value {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var out [][]value.Value
	for rows.Next() {
		cells, to := make([]any, len(v.features)), make([]any, len(v.features))
		for i := range cells {
			to[i] = &cells[i]
		}
		if err := rows.Scan(to...); err != nil {
			t.Fatal(err)
		}
		values := make([]value.Value, len(cells))
		for i, f := range v.features {
			switch c := cells[i].(type) {
			case nil:
				values[i] = value.Null(f.Type)
			case int64:
				values[i] = value.OfInt(c)
				if f.Type == value.Timestamp {
					values[i] = value.OfMicros(c)
				}
			case int32:
				values[i] = value.OfInt32(c)
			case float32:
				values[i] = value.OfFloat32(c)
			case []any:
				var err error
				if values[i], err = value.Parse(f.Type, c); err != nil {
					t.Fatal(err)
				}
			case float64:
				values[i] = value.OfFloat(c)
			case bool:
				values[i] = value.OfBool(c)
			case string:
				values[i] = value.OfString(c)
			default:
				t.Fatalf("DuckDB gave a %T", c)
			}
		}
		out = append(out, values)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *rapid.T, what string, got, want [][]value.Value) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows instead of %d", what, len(got), len(want))
	}
	for row := range got {
		if !slices.EqualFunc(got[row], want[row], value.Value.Equal) {
			t.Fatalf("%s, spine row %d: %v instead of %v", what, row, got[row], want[row])
		}
	}
}

// reader gives the rows in batches of seven.
func (r relation) reader(t *testing.T) array.RecordReader {
	t.Helper()
	fields := make([]arrow.Field, len(r.columns))
	for i, c := range r.columns {
		fields[i] = arrow.Field{Name: c.Name, Type: offline.ArrowType(c.Type), Nullable: true}
	}
	schema := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	var batches []arrow.RecordBatch
	for rows := range slices.Chunk(r.rows, 7) {
		for _, row := range rows {
			for i, v := range row {
				if err := offline.Append(b.Field(i), v); err != nil {
					t.Fatal(err)
				}
			}
		}
		batches = append(batches, b.NewRecordBatch())
	}
	reader, err := array.NewRecordReader(schema, batches)
	if err != nil {
		t.Fatal(err)
	}
	return reader
}
