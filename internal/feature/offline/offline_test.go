package offline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// table is rows of values, NULL as the zero Value.
type table struct {
	columns []Column
	rows    [][]value.Value
}

// reader cuts the table into batches of the sizes, the last size repeated.
func (d table) reader(tb testing.TB, batch int) array.RecordReader {
	tb.Helper()
	fields := make([]arrow.Field, len(d.columns))
	for i, c := range d.columns {
		fields[i] = arrow.Field{Name: c.Name, Type: ArrowType(c.Type), Nullable: true}
	}
	schema := arrow.NewSchema(fields, nil)
	var batches []arrow.RecordBatch
	for from := 0; from < len(d.rows); from += batch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for _, row := range d.rows[from:min(from+batch, len(d.rows))] {
			for i, v := range row {
				if err := Append(b.Field(i), v); err != nil {
					tb.Fatal(err)
				}
			}
		}
		batches = append(batches, b.NewRecordBatch())
		b.Release()
	}
	r, err := array.NewRecordReader(schema, batches)
	if err != nil {
		tb.Fatal(err)
	}
	for _, b := range batches {
		b.Release()
	}
	return r
}

// drain reads the columns of a result from "from" on as values.
func drain(tb testing.TB, r array.RecordReader, types []value.Type) [][]value.Value {
	tb.Helper()
	var rows [][]value.Value
	for r.Next() {
		b := r.RecordBatch()
		columns := make([]column, len(types))
		for i := range columns {
			var err error
			if columns[i], err = read(b.ColumnName(i), b.Column(i), types[i]); err != nil {
				tb.Fatal(err)
			}
		}
		for row := range int(b.NumRows()) {
			out := make([]value.Value, len(types))
			for i := range columns {
				out[i] = columns[i].value(row)
				out[i] = out[i].Clone()
			}
			rows = append(rows, out)
		}
	}
	if err := r.Err(); err != nil {
		tb.Fatal(err)
	}
	return rows
}

// open is a source that gives the table.
func (d table) open(tb testing.TB, batch int) Open {
	tb.Helper()
	return func(context.Context) (array.RecordReader, error) { return d.reader(tb, batch), nil }
}

var equal = cmp.Comparer(func(a, b value.Value) bool { return a.Equal(b) })

// model is a generated view with its rows.
type model struct {
	name    string
	keys    []Column
	created bool
	ttl     time.Duration
	feats   []Column
	rows    table // keys, event, created, features
}

// answer is the rule, read off the package comment, in O(n).
func (m *model) answer(key []value.Value, t int64) []value.Value {
	nulls := make([]value.Value, len(m.feats))
	for i, f := range m.feats {
		nulls[i] = value.Null(f.Type)
	}
	if slices.ContainsFunc(key, value.Value.IsNull) {
		return nulls
	}
	k := len(m.keys)
	var best []value.Value
	var bestBytes []byte
	created := func(row []value.Value) int64 {
		if !m.created || row[k+1].IsNull() {
			return math.MinInt64
		}
		return row[k+1].Int()
	}
	for _, row := range m.rows.rows {
		if !slices.EqualFunc(row[:k], key, value.Value.Equal) || slices.ContainsFunc(row[:k], value.Value.IsNull) {
			continue
		}
		if row[k].IsNull() || row[k].Int() > t || created(row) > t {
			continue
		}
		packed, err := value.AppendRow(nil, row[k+2:])
		if err != nil {
			panic(err)
		}
		better := best == nil || row[k].Int() > best[k].Int() ||
			row[k].Int() == best[k].Int() && (created(row) > created(best) ||
				created(row) == created(best) && bytes.Compare(packed, bestBytes) > 0)
		if better {
			best, bestBytes = row, packed
		}
	}
	if best == nil || m.ttl > 0 && t-best[k].Int() > m.ttl.Microseconds() {
		return nulls
	}
	return best[k+2:]
}

func (m *model) view(tb testing.TB, batch int, selected []bool) View {
	tb.Helper()
	v := View{Name: m.name, Open: m.rows.open(tb, batch), Keys: m.keys, Event: "event", TTL: m.ttl}
	if m.created {
		v.Created = "created"
	}
	for i, f := range m.feats {
		feature := Feature{Column: f}
		if selected[i] {
			feature.Select = m.name + "__" + f.Name
		}
		v.Features = append(v.Features, feature)
	}
	for _, k := range m.keys {
		v.SpineKeys = append(v.SpineKeys, "s_"+k.Name)
	}
	return v
}

// Few keys, times and values, so that ties, duplicates and exact TTL limits are
// the rule rather than the exception.
func drawValue(t *rapid.T, typ value.Type, nulls bool, what string) value.Value {
	n := rapid.IntRange(0, 5).Draw(t, what)
	if n == 0 && nulls {
		return value.Null(typ)
	}
	if !typ.Scalar() {
		elements := []value.Value{}
		if n %= typ.Length() + 1; typ.IsVector() {
			n = typ.Length()
		}
		for range n {
			elements = append(elements, drawValue(t, typ.Elem(), false, what+" element"))
		}
		list, err := value.OfList(typ, elements)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	switch typ {
	case value.Int64:
		return value.OfInt(int64(n))
	case value.Int32:
		return value.OfInt32(int32(n) - 3)
	case value.Float32:
		return value.OfFloat32([]float32{0, 0.1, -1.5, float32(math.NaN()), float32(math.Inf(-1)), 2}[n])
	case value.Float64:
		return value.OfFloat([]float64{0, 1, -1.5, math.NaN(), math.Inf(1), 2}[n])
	case value.Bool:
		return value.OfBool(n%2 == 0)
	case value.Timestamp:
		return value.OfMicros(int64(n) - 2)
	default:
		return value.OfString([]string{"", "a", "ab", "b", "\x00", "é"}[n])
	}
}

var (
	keyTypes     = []value.Type{value.Int64, value.Int32, value.String, value.Bool, value.Timestamp}
	featureTypes = append([]value.Type{
		value.Float64, value.Float32, value.VectorOf(3), value.ListOf(value.String, 2), value.ListOf(value.Float64, 4),
		value.ListOf(value.Bool, 3), value.ListOf(value.Int32, 3), value.ListOf(value.Timestamp, 2),
	}, keyTypes...)
)

// Its features are of these types, of any if there are none.
func drawModel(t *rapid.T, name string, keys []Column, types ...value.Type) *model {
	if len(types) == 0 {
		types = featureTypes
	}
	m := &model{
		name: name, keys: keys,
		created: rapid.Bool().Draw(t, "has created"),
		ttl:     time.Duration(rapid.IntRange(0, 4).Draw(t, "ttl")) * time.Microsecond,
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "features") {
		m.feats = append(m.feats, Column{fmt.Sprintf("f%d", i), rapid.SampledFrom(types).Draw(t, "type")})
	}
	m.rows.columns = slices.Concat(keys, []Column{{"event", value.Timestamp}, {"created", value.Timestamp}}, m.feats)
	for range rapid.IntRange(0, 30).Draw(t, "rows") {
		var row []value.Value
		for _, k := range keys {
			row = append(row, drawValue(t, k.Type, true, "key"))
		}
		event := value.OfMicros(int64(rapid.IntRange(-3, 9).Draw(t, "event")))
		if rapid.IntRange(0, 9).Draw(t, "no event") == 0 {
			event = value.Null(value.Timestamp)
		}
		created := value.OfMicros(int64(rapid.IntRange(-3, 9).Draw(t, "created")))
		if rapid.IntRange(0, 4).Draw(t, "no created") == 0 {
			created = value.Null(value.Timestamp)
		}
		row = append(row, event, created)
		for _, f := range m.feats {
			row = append(row, drawValue(t, f.Type, true, "feature"))
		}
		m.rows.rows = append(m.rows.rows, row)
	}
	return m
}

func TestJoinAgreesWithTheRule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var keys []Column
		for i := range rapid.IntRange(1, 2).Draw(rt, "keys") {
			keys = append(keys, Column{fmt.Sprintf("k%d", i), rapid.SampledFrom(keyTypes).Draw(rt, "key type")})
		}
		spine := table{columns: []Column{{"n", value.Int64}, {"at", value.Timestamp}}}
		for _, k := range keys {
			spine.columns = append(spine.columns, Column{"s_" + k.Name, k.Type})
		}
		for n := range rapid.IntRange(0, 25).Draw(rt, "spine rows") {
			row := []value.Value{value.OfInt(int64(n)), value.OfMicros(int64(rapid.IntRange(-4, 14).Draw(rt, "at")))}
			for _, k := range keys {
				row = append(row, drawValue(rt, k.Type, true, "key"))
			}
			spine.rows = append(spine.rows, row)
		}

		models := []*model{drawModel(rt, "a", keys), drawModel(rt, "b", keys[:1])}
		var selected [2][]bool
		want := slices.Clone(spine.rows)
		types := []value.Type{}
		for _, c := range spine.columns {
			types = append(types, c.Type)
		}
		for i, m := range models {
			for _, f := range m.feats {
				sel := rapid.Bool().Draw(rt, "selected")
				selected[i] = append(selected[i], sel)
				if sel {
					types = append(types, f.Type)
				}
			}
			for n, row := range want {
				answer := m.answer(row[2:2+len(m.keys)], row[1].Int())
				for f, sel := range selected[i] {
					if sel {
						row = append(slices.Clip(row), answer[f])
					}
				}
				want[n] = row
			}
		}

		for _, opts := range []Options{{Workers: 2}, {Memory: 1}, {Memory: 3000}} {
			opts.Dir = os.TempDir()
			views := []View{
				models[0].view(t, rapid.IntRange(1, 9).Draw(rt, "batch"), selected[0]),
				models[1].view(t, 4, selected[1]),
			}
			result, err := Join(context.Background(), Spine{Open: spine.open(t, rapid.IntRange(1, 9).Draw(rt, "spine batch")), Timestamp: "at"}, views, opts)
			if err != nil {
				rt.Fatal(err)
			}
			got := drain(t, result, types)
			result.Release()
			if diff := cmp.Diff(want, got, equal); diff != "" {
				rt.Fatalf("memory %d: result differs from the rule (-want +got):\n%s", opts.Memory, diff)
			}
		}
	})
}

func TestSortIsTheSameForEveryOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt, "v", []Column{{"k", value.String}})
		selected := make([]bool, len(m.feats))
		list := func(m *model) []string {
			s, err := Sort(context.Background(), m.view(t, 7, selected), Range{-1, 6}, Options{Dir: os.TempDir()})
			if err != nil {
				rt.Fatal(err)
			}
			var rows []string
			for s.Next() {
				r := s.Row()
				if r.Event < -1 || r.Event > 6 {
					rt.Fatalf("event %d is outside the range", r.Event)
				}
				rows = append(rows, fmt.Sprintf("%x %d %d %x", r.Key, r.Event, r.Created, r.Packed))
			}
			if err := errors.Join(s.Err(), s.Close()); err != nil {
				rt.Fatal(err)
			}
			return rows
		}
		first := list(m)
		shuffled := *m
		shuffled.rows.rows = rapid.Permutation(m.rows.rows).Draw(rt, "order")
		if diff := cmp.Diff(first, list(&shuffled)); diff != "" {
			rt.Fatal(diff)
		}
		seen := map[string]bool{}
		for _, r := range first {
			var key, packed string
			var event, created int64
			if _, err := fmt.Sscanf(r, "%s %d %d %s", &key, &event, &created, &packed); err != nil {
				rt.Fatal(err)
			}
			at := fmt.Sprint(key, event, created)
			if seen[at] {
				rt.Fatalf("%s comes twice", at)
			}
			seen[at] = true
		}
	})
}

// weatherLike is hourly rows of a few stations and a spine that asks about them.
func weatherLike(stations, hours, asks, features int) (spine, view table) {
	rnd := rand.New(rand.NewPCG(1, 2))
	view.columns = []Column{{"station", value.String}, {"event", value.Timestamp}, {"created", value.Timestamp}}
	for f := range features {
		view.columns = append(view.columns, Column{fmt.Sprintf("f%d", f), value.Float64})
	}
	for s := range stations {
		for h := range hours {
			row := []value.Value{value.OfString(fmt.Sprintf("ST%d", s)), value.OfMicros(int64(h) * 3_600_000_000), value.Null(value.Timestamp)}
			for range features {
				row = append(row, value.OfFloat(rnd.Float64()))
			}
			view.rows = append(view.rows, row)
		}
	}
	spine.columns = []Column{{"at", value.Timestamp}, {"s_station", value.String}, {"label", value.Bool}}
	for i := range asks {
		at := int64(float64(hours) * float64(i) / float64(asks) * 3_600_000_000)
		spine.rows = append(spine.rows, []value.Value{value.OfMicros(at), value.OfString(fmt.Sprintf("ST%d", rnd.IntN(stations))), value.OfBool(rnd.IntN(5) == 0)})
	}
	return spine, view
}

func (d table) asView(tb testing.TB, batch int) View {
	tb.Helper()
	v := View{Name: "weather", Open: d.open(tb, batch), Keys: d.columns[:1], Event: "event", TTL: 3 * time.Hour, SpineKeys: []string{"s_station"}}
	for _, c := range d.columns[3:] {
		v.Features = append(v.Features, Feature{c, c.Name})
	}
	return v
}

// The external path with many runs gives what the path in memory gives.
func TestJoinLargerThanMemory(t *testing.T) {
	spine, view := weatherLike(20, 1500, 30_000, 8)
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(view.rows), func(i, j int) { view.rows[i], view.rows[j] = view.rows[j], view.rows[i] })
	types := []value.Type{value.Timestamp, value.String, value.Bool}
	for range 8 {
		types = append(types, value.Float64)
	}
	var got [2][][]value.Value
	for i, memory := range []int64{0, 1} {
		result, err := Join(t.Context(), Spine{spine.open(t, 4000), "at"}, []View{view.asView(t, 1000)}, Options{Dir: t.TempDir(), Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		if spilled := result.Stats()[0].Spilled; spilled != (memory == 1) {
			t.Errorf("memory %d: spilled = %v", memory, spilled)
		}
		got[i] = drain(t, result, types)
		result.Release()
	}
	same := slices.EqualFunc(got[0], got[1], func(a, b []value.Value) bool { return slices.EqualFunc(a, b, value.Value.Equal) })
	if len(got[0]) != 30_000 || !same {
		t.Error("the external join differs from the one in memory")
	}
}

func TestSpillLeavesNothingAndIsBounded(t *testing.T) {
	spine, view := weatherLike(10, 2000, 100, 8)
	dir := t.TempDir()
	result, err := Join(t.Context(), Spine{spine.open(t, 50), "at"}, []View{view.asView(t, 1000)}, Options{Dir: dir, Memory: 1})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("temporary files have names: %v %v", entries, err)
	}
	result.Release()

	_, err = Join(t.Context(), Spine{spine.open(t, 50), "at"}, []View{view.asView(t, 1000)}, Options{Dir: dir, Memory: 1, Disk: 1 << 20})
	if !fault.Is(err, fault.Exhausted) {
		t.Errorf("more than the disk limit: %v, want exhausted", err)
	}
}

func TestJoinEndsWithItsContext(t *testing.T) {
	spine, view := weatherLike(2, 100, 5000, 1)
	ctx, cancel := context.WithCancel(t.Context())
	result, err := Join(ctx, Spine{spine.open(t, 10), "at"}, []View{view.asView(t, 1000)}, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer result.Release()
	if !result.Next() {
		t.Fatal(result.Err())
	}
	cancel()
	for result.Next() {
	}
	if !errors.Is(result.Err(), context.Canceled) {
		t.Errorf("err = %v, want canceled", result.Err())
	}
}

func TestJoinRefuses(t *testing.T) {
	spine, view := weatherLike(2, 10, 10, 2)
	noTime := table{spine.columns, slices.Clone(spine.rows)}
	noTime.rows[7] = []value.Value{value.Null(value.Timestamp), value.OfString("ST0"), value.OfBool(true)}
	wrongKey := table{slices.Clone(spine.columns), nil}
	wrongKey.columns[1].Type = value.Int64
	taken := table{slices.Clone(spine.columns), nil}
	taken.columns[2].Name = "f1"
	for name, c := range map[string]struct {
		spine table
		edit  func(*View)
		want  string
	}{
		"row without a time": {noTime, func(*View) {}, `row 8 of the spine has no time in column "at"`},
		"key type":           {wrongKey, func(*View) {}, `joining view weather: column "s_station" of the spine is int64, not string`},
		"name taken":         {taken, func(*View) {}, `feature weather:f1 and the spine have the same column name "f1"`},
		"no such feature":    {spine, func(v *View) { v.Features[0].Name = "zz" }, `reading view weather: view weather has no column "zz"`},
		"feature type":       {spine, func(v *View) { v.Features[0].Type = value.Bool }, `reading view weather: column "f0" of view weather is float64, not bool`},
		"no such timestamp":  {spine, func(v *View) { v.Event = "f0" }, `reading view weather: column "f0" of view weather is float64, not timestamp`},
	} {
		t.Run(name, func(t *testing.T) {
			v := view.asView(t, 100)
			c.edit(&v)
			result, err := Join(t.Context(), Spine{c.spine.open(t, 3), "at"}, []View{v}, Options{})
			if err == nil {
				for result.Next() {
				}
				err = result.Err()
				result.Release()
			}
			if err == nil || err.Error() != c.want || !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestColumnsOfOtherArrowTypes(t *testing.T) {
	mem := memory.DefaultAllocator
	build := func(dt arrow.DataType, values string) arrow.Array {
		a, _, err := array.FromJSON(mem, dt, bytes.NewReader([]byte(values)))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	dict := array.NewDictionaryBuilder(mem, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}).(*array.BinaryDictionaryBuilder)
	for _, s := range []string{"x", "y", "x"} {
		if err := dict.AppendString(s); err != nil {
			t.Fatal(err)
		}
	}
	dict.AppendNull()
	for name, c := range map[string]struct {
		array arrow.Array
		typ   value.Type
		want  string
	}{
		"int32":      {build(arrow.PrimitiveTypes.Int32, `[1,null,-3]`), value.Int64, "[1 NULL -3]"},
		"uint8 as f": {build(arrow.PrimitiveTypes.Uint8, `[1,255]`), value.Float64, "[1 255]"},
		"float32":    {build(arrow.PrimitiveTypes.Float32, `[0.5,null]`), value.Float64, "[0.5 NULL]"},
		"decimal":    {build(&arrow.Decimal128Type{Precision: 10, Scale: 2}, `["12.25",null]`), value.Float64, "[12.25 NULL]"},
		"date":       {build(arrow.FixedWidthTypes.Date32, `[1]`), value.Timestamp, "[1970-01-02T00:00:00Z]"},
		"seconds":    {build(&arrow.TimestampType{Unit: arrow.Second}, `["1970-01-01 00:01:00",null]`), value.Timestamp, "[1970-01-01T00:01:00Z NULL]"},
		"nanos":      {build(arrow.FixedWidthTypes.Timestamp_ns, `["1969-12-31 23:59:59.999999999Z"]`), value.Timestamp, "[1969-12-31T23:59:59.999999Z]"},
		"null":       {build(arrow.Null, `[null,null]`), value.Bool, "[NULL NULL]"},
		"large":      {build(arrow.BinaryTypes.LargeString, `["a",null]`), value.String, "[a NULL]"},
		"view":       {build(arrow.BinaryTypes.StringView, `["a",null]`), value.String, "[a NULL]"},
		"dictionary": {dict.NewArray(), value.String, "[x y x NULL]"},
		"as it is":   {build(arrow.PrimitiveTypes.Int32, `[1,null,-3]`), value.Int32, "[1 NULL -3]"},
		"single":     {build(arrow.PrimitiveTypes.Float32, `[0.1,null]`), value.Float32, "[0.1 NULL]"},
		"int16":      {build(arrow.PrimitiveTypes.Int16, `[1,null]`), value.Float32, "[1 NULL]"},
		"list":       {build(arrow.ListOf(arrow.PrimitiveTypes.Int32), `[[1,2],null,[]]`), value.ListOf(value.Int64, 2), "[[1,2] NULL []]"},
		"texts":      {build(arrow.LargeListOf(arrow.BinaryTypes.String), `[["a",""],null]`), value.ListOf(value.String, 2), `[["a",""] NULL]`},
		"vector":     {build(arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32), `[[1,0.5],null]`), value.VectorOf(2), "[[1.0,0.5] NULL]"},
		"sliced":     {array.NewSlice(build(arrow.ListOf(arrow.PrimitiveTypes.Float32), `[[1,2],null,[3,4]]`), 1, 3), value.VectorOf(2), "[NULL [3.0,4.0]]"},
		"no lists":   {build(arrow.Null, `[null]`), value.VectorOf(2), "[NULL]"},
		"slice":      {array.NewSlice(build(arrow.PrimitiveTypes.Int64, `[1,null,3]`), 1, 3), value.Int64, "[NULL 3]"},
	} {
		t.Run(name, func(t *testing.T) {
			col, err := read("c", c.array, c.typ)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range c.array.Len() {
				got = append(got, col.value(i).String())
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
	for what, c := range map[string]struct {
		array arrow.Array
		typ   value.Type
		want  string
	}{
		"int64 as int32":        {build(arrow.PrimitiveTypes.Int64, `[1]`), value.Int32, `column "c" is int64, not int32`},
		"uint32 as int32":       {build(arrow.PrimitiveTypes.Uint32, `[1]`), value.Int32, `column "c" is uint32, not int32`},
		"float64 as float32":    {build(arrow.PrimitiveTypes.Float64, `[1]`), value.Float32, `column "c" is float64, not float32`},
		"int32 as float32":      {build(arrow.PrimitiveTypes.Int32, `[1]`), value.Float32, `column "c" is int32, not float32`},
		"a scalar as a list":    {build(arrow.PrimitiveTypes.Int64, `[1]`), value.ListOf(value.Int64, 3), `column "c" is int64, not list<int64>(3)`},
		"wide elements":         {build(arrow.ListOf(arrow.PrimitiveTypes.Float64), `[[1]]`), value.VectorOf(1), `not vector(1)`},
		"another size":          {build(arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32), `[[1,2,3]]`), value.VectorOf(2), "not vector(2)"},
		"another dimension":     {build(arrow.ListOf(arrow.PrimitiveTypes.Float32), `[[1,2],[1]]`), value.VectorOf(2), `column "c", row 2 of a batch: a vector has 1 dimensions instead of the 2 of vector(2)`},
		"a list that is longer": {build(arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1,2,3]]`), value.ListOf(value.Int64, 2), `column "c", row 1 of a batch: a list has 3 elements, over the 2 of list<int64>(2)`},
		"a NULL in a list":      {build(arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1],null,[2,null]]`), value.ListOf(value.Int64, 2), `the list in row 3 of a batch contains a NULL`},
	} {
		if _, err := read("c", c.array, c.typ); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	if _, err := read("c", build(arrow.PrimitiveTypes.Uint64, `[1]`), value.Int64); !fault.Is(err, fault.Invalid) {
		t.Errorf("uint64: %v", err)
	}
	far := build(&arrow.TimestampType{Unit: arrow.Second}, `["1970-01-01"]`)
	far.(*array.Timestamp).TimestampValues()[0] = math.MaxInt64 / 10
	if _, err := read("c", far, value.Timestamp); !fault.Is(err, fault.Invalid) {
		t.Errorf("instant out of range: %v", err)
	}
}

func TestSorterAgainstSort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type pair struct{ Key, Payload string }
		var want []pair
		s := &sorter{disk: newDisk(Options{Dir: os.TempDir(), Disk: 1 << 30}), budget: int64(rapid.IntRange(1, 400).Draw(rt, "budget"))}
		for range rapid.IntRange(0, 200).Draw(rt, "n") {
			p := pair{rapid.StringN(0, 12, 12).Draw(rt, "key"), rapid.StringN(0, 5, 5).Draw(rt, "payload")}
			want = append(want, p)
			if err := s.add([]byte(p.Key), []byte(p.Payload)); err != nil {
				rt.Fatal(err)
			}
		}
		slices.SortFunc(want, func(a, b pair) int {
			return bytes.Compare([]byte(a.Key+"\x00"+a.Payload), []byte(b.Key+"\x00"+b.Payload))
		})
		in, err := s.sorted()
		if err != nil {
			rt.Fatal(err)
		}
		var got []pair
		for in.next() {
			k, p := in.record()
			got = append(got, pair{string(k), string(p)})
		}
		if err := errors.Join(in.failed(), s.Close()); err != nil {
			rt.Fatal(err)
		}
		slices.SortFunc(want, func(a, b pair) int {
			if c := bytes.Compare([]byte(a.Key), []byte(b.Key)); c != 0 {
				return c
			}
			return bytes.Compare([]byte(a.Payload), []byte(b.Payload))
		})
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatal(diff)
		}
		if left := s.disk.left.Load(); left != 1<<30 {
			rt.Fatalf("disk left %d", left)
		}
	})
}

func TestSpillRefusesDamage(t *testing.T) {
	d := newDisk(Options{Dir: t.TempDir(), Disk: 1 << 30})
	s, err := d.create()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(bytes.Repeat([]byte("secret "), 30_000)); err != nil {
		t.Fatal(err)
	}
	in, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, 1<<20)
	n, _ := s.file.ReadAt(raw, 0)
	if bytes.Contains(raw[:n], []byte("secret")) {
		t.Error("the file holds plaintext")
	}
	if _, err := s.file.WriteAt([]byte{raw[100_000] ^ 1}, 100_000); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(in); !fault.Is(err, fault.Internal) || err.Error() != "a temporary file of a join is corrupt" {
		t.Errorf("after damage: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkAsOf joins flights-like rows with an hourly view of three keys.
func BenchmarkAsOf(b *testing.B) {
	spine, view := weatherLike(3, 8700, 336_000, 8)
	for _, memory := range []int64{0, 1} {
		b.Run(map[int64]string{0: "memory", 1: "external"}[memory], func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				rows, features := spine.reader(b, 32<<10), view.reader(b, 32<<10)
				s, v := Spine{func(context.Context) (array.RecordReader, error) { return rows, nil }, "at"}, view.asView(b, 1)
				v.Open = func(context.Context) (array.RecordReader, error) { return features, nil }
				b.StartTimer()
				result, err := Join(b.Context(), s, []View{v}, Options{Memory: memory, Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				for result.Next() {
				}
				if result.Err() != nil {
					b.Fatal(result.Err())
				}
				result.Release()
			}
			b.ReportMetric(float64(len(spine.rows))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkDemo has the shape of the flights of 2013: 336,776 departures, the
// weather of 3 origins, 3,322 aeroplanes, and 310,573 rows of 16 carriers in no
// order.
func BenchmarkDemo(b *testing.B) {
	const year = 365 * 24 * 3600 * 1_000_000
	rnd := rand.New(rand.NewPCG(1, 2))
	spine := table{columns: []Column{{"at", value.Timestamp}, {"s_origin", value.String}, {"s_plane", value.String}, {"s_carrier", value.String}}}
	for i := range 336_776 {
		spine.rows = append(spine.rows, []value.Value{
			value.OfMicros(int64(i) * (year / 336_776)), value.OfString(fmt.Sprint("OR", rnd.IntN(3))),
			value.OfString(fmt.Sprint("N", rnd.IntN(4044))), value.OfString(fmt.Sprint("C", rnd.IntN(16))),
		})
	}
	view := func(name string, ttl time.Duration, rows, features int, key func(i int) string, at func(i int) int64) (View, table) {
		d := table{columns: []Column{{name, value.String}, {"event", value.Timestamp}}}
		v := View{Name: name, Keys: d.columns[:1], Event: "event", TTL: ttl, SpineKeys: []string{"s_" + name}}
		for f := range features {
			c := Column{fmt.Sprintf("%s_%d", name, f), value.Float64}
			d.columns = append(d.columns, c)
			v.Features = append(v.Features, Feature{c, c.Name})
		}
		for i := range rows {
			row := []value.Value{value.OfString(key(i)), value.OfMicros(at(i))}
			for range features {
				row = append(row, value.OfFloat(rnd.Float64()))
			}
			d.rows = append(d.rows, row)
		}
		return v, d
	}
	origin, origins := view("origin", 3*time.Hour, 26_115, 5, func(i int) string { return fmt.Sprint("OR", i/8705) }, func(i int) int64 { return int64(i%8705) * 3_600_000_000 })
	plane, planes := view("plane", 0, 3322, 3, func(i int) string { return fmt.Sprint("N", i) }, func(int) int64 { return 0 })
	carrier, carriers := view("carrier", 7*24*time.Hour, 310_573, 2, func(int) string { return fmt.Sprint("C", rnd.IntN(16)) }, func(int) int64 { return rnd.Int64N(year) })
	for b.Loop() {
		b.StopTimer()
		views := []View{origin, plane, carrier}
		for i, d := range []table{origins, planes, carriers} {
			rows := d.reader(b, 32<<10)
			views[i].Open = func(context.Context) (array.RecordReader, error) { return rows, nil }
		}
		rows := spine.reader(b, 32<<10)
		b.StartTimer()
		result, err := Join(b.Context(), Spine{func(context.Context) (array.RecordReader, error) { return rows, nil }, "at"}, views, Options{})
		if err != nil {
			b.Fatal(err)
		}
		for result.Next() {
		}
		if result.Err() != nil {
			b.Fatal(result.Err())
		}
		result.Release()
	}
	b.ReportMetric(float64(len(spine.rows))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
