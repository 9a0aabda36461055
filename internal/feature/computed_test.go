package feature_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/lineage"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func (w *world) service(name string, spec feature.ServiceSpec) feature.ServiceDefinition {
	w.t.Helper()
	b, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: name}, spec)
	if err != nil {
		w.t.Fatal(err, fault.HintOf(err))
	}
	return b
}

// felt computes from a feature, from one that is only used, and from the request.
var felt = feature.ServiceSpec{
	Features: []string{"weather:temp"}, Inputs: []string{"weather:humid"},
	Request: []feature.RequestSpec{{Name: "delay", Type: "int64"}, {Name: "note", Type: "string"}},
	Computed: []feature.ComputedSpec{
		{Name: "felt", Type: "float64", Expression: "temp + weather__humid / 10.0"},
		{Name: "late", Type: "float64", Expression: "felt + double(delay)"},
		{Name: "word", Type: "string", Expression: "note == null ? 'none' : note + '!'"},
		{Name: "share", Type: "int64", Expression: "100 / delay"},
	},
}

func (w *world) read(service string, asOf time.Time, entities ...map[string]any) (out []string) {
	w.t.Helper()
	a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: service}, Entities: entities, AsOf: asOf})
	if err != nil {
		w.t.Fatal(err, fault.HintOf(err))
	}
	for n := range entities {
		var line strings.Builder
		for _, c := range a.Columns {
			fmt.Fprintf(&line, "%s=%s/%s ", c.Name, c.Values[n], c.Statuses[n])
		}
		out = append(out, line.String())
	}
	return out
}

func TestComputed(t *testing.T) {
	w := weather(t)
	b := w.service("delay", felt)
	expect(t, b.Selected, []string{"weather@1:temp"})
	expect(t, b.Used, []string{"weather@1:humid"})
	w.mustMaterialise("weather", w.now)
	row := func(origin, delay, note any) map[string]any {
		return map[string]any{"origin": origin, "delay": delay, "note": note}
	}
	expect(t, w.read("delay", at(0.5), row("EWR", 4, "a"), row("EWR", "8", nil), row("JFK", 2, "b"), row("EWR", 0, ""), row("EWR", nil, "c")), []string{
		"temp=10/PRESENT felt=15/PRESENT late=19/PRESENT word=a!/PRESENT share=25/PRESENT ",
		"temp=10/PRESENT felt=15/PRESENT late=23/PRESENT word=none/PRESENT share=12/PRESENT ",
		"temp=NULL/NOT_FOUND felt=NULL/NOT_FOUND late=NULL/NOT_FOUND word=b!/PRESENT share=50/PRESENT ",
		"temp=10/PRESENT felt=15/PRESENT late=15/PRESENT word=!/PRESENT share=NULL/INVALID ",
		"temp=10/PRESENT felt=15/PRESENT late=NULL/NULL_VALUE word=c!/PRESENT share=NULL/NULL_VALUE ",
	})
	// humid is NULL at 1, and too old at 5.
	expect(t, w.read("delay", at(1.5), row("EWR", 4, "a")), []string{"temp=11/PRESENT felt=NULL/NULL_VALUE late=NULL/NULL_VALUE word=a!/PRESENT share=25/PRESENT "})
	expect(t, w.read("delay", at(5), row("EWR", 4, "a")), []string{"temp=NULL/OUTSIDE_MAX_AGE felt=NULL/OUTSIDE_MAX_AGE late=NULL/OUTSIDE_MAX_AGE word=a!/PRESENT share=25/PRESENT "})

	a, err := w.Online(w.ctx, feature.OnlineRequest{
		Project: nyc, Selection: feature.Selection{Service: "delay", FullNames: true}, Entities: []map[string]any{row("EWR", 1, "")}, AsOf: at(0.5),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := a.Columns[1]
	expect(t, []string{c.Name, c.Feature, c.Type}, []string{"delay__felt", "delay@1:felt", "float64"})
	if c.EventTimes[0] == nil || !c.EventTimes[0].Equal(at(0)) {
		t.Errorf("felt is of %v", c.EventTimes[0])
	}

	// A value that is missing in all rows was forgotten.
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "delay"}, Entities: origin("EWR"), AsOf: at(1)})
	refused(t, err, fault.Invalid, `the request lacks the value "delay"`, "int64")
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "delay"}, Entities: []map[string]any{row("EWR", 1.5, "")}, AsOf: at(1)})
	refused(t, err, fault.Invalid, "entity 1: value delay of the request: 1.5 is not an int64")
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "delay"}, Entities: []map[string]any{{"origin": "EWR", "dely": 1}}, AsOf: at(1)})
	refused(t, err, fault.Invalid, `"dely" is not a join key of these features; did you mean "delay"?`)
}

func TestComputedTrainingSet(t *testing.T) {
	w := weather(t)
	w.service("delay", felt)
	w.data.put("spine", table{
		[]col{{"origin", value.String}, {"at", value.Timestamp}, {"delay", value.Int64}, {"note", value.String}},
		[][]value.Value{{str("EWR"), ts(0.5), value.OfInt(4), str("a")}, {str("EWR"), ts(1), value.OfInt(0), null}, {str("LGA"), ts(1), null, null}},
	})
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
		Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Service: "delay"},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, w.data.show(t, set.Dataset), []string{
		"origin, at, delay, note, temp, felt, late, word, share",
		"EWR, 2013-01-01T00:30:00Z, 4, a, 10, 15, 19, a!, 25",
		"EWR, 2013-01-01T01:00:00Z, 0, NULL, 11, NULL, NULL, none, NULL",
		"LGA, 2013-01-01T01:00:00Z, NULL, NULL, NULL, NULL, NULL, none, NULL",
	})
	expect(t, set.Views[0].Features, []feature.UsedFeature{{Feature: "temp", Column: "temp"}})
	expect(t, set.Computed[3], feature.ComputedFeature{Feature: "delay@1:share", Column: "share", Expression: "100 / delay", Failed: 1})
	// What it was made of is what the expression names, down to the columns.
	v, err := w.data.find(set.Dataset)
	if err != nil {
		t.Fatal(err)
	}
	made := v.derived.Origins()
	for _, want := range []lineage.Origin{
		{Dataset: "weather@1", Column: "temp", How: "transformation"},
		{Dataset: "weather@1", Column: "humid", How: "transformation"},
		{Dataset: "spine@1", Column: "delay", How: "transformation"},
		{Dataset: "spine@1", Column: "at", How: "join"},
	} {
		if !slices.Contains(made["late"], want) {
			t.Errorf("late is made of %+v, without %+v", made["late"], want)
		}
	}
	expect(t, made["temp"][0], lineage.Origin{Dataset: "weather@1", Column: "temp", How: "identity"})
	expect(t, slices.Sorted(maps.Keys(made)), []string{"at", "delay", "felt", "late", "note", "origin", "share", "temp", "word"})
	w.mustMaterialise("weather", w.now)
	report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
	if err != nil || report.Mismatches != 0 || report.Values != 3 {
		t.Errorf("report %+v, %v", report, err)
	}
	for words, change := range map[string]func(*table){
		`no column "delay", which is a request value of feature service delay@1`: func(tb *table) { tb.cols[2].name = "x" },
		`column "delay" of the spine`: func(tb *table) {
			tb.cols[2].typ = value.String
			tb.rows[0][2] = str("4")
		},
		`column "felt" is in the features and in the spine`: func(tb *table) {
			tb.cols = append(tb.cols, col{"felt", value.Float64})
			tb.rows[0] = append(tb.rows[0], num(1))
		},
	} {
		tb := table{
			[]col{{"origin", value.String}, {"at", value.Timestamp}, {"delay", value.Int64}, {"note", value.String}},
			[][]value.Value{{str("EWR"), ts(1), value.OfInt(1), str("")}},
		}
		change(&tb)
		w.data.put("other", tb)
		_, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
			Project: nyc, Name: "set", Spine: feature.Source{Dataset: "other"}, Timestamp: "at", Selection: feature.Selection{Service: "delay"},
		})
		refused(t, err, fault.Invalid, words)
	}
}

func TestComputedRefuses(t *testing.T) {
	w := weather(t)
	w.data.put("other", weatherRows())
	spec := weatherSpec
	spec.Source.Dataset = "other"
	w.view("other", spec)
	for words, change := range map[string]func(*feature.ServiceSpec){
		"spec.inputs: no feature is computed":                                              func(s *feature.ServiceSpec) { s.Computed = nil },
		"spec.computed[0].expression: line 1, column 1: undeclared reference to 'x'":       func(s *feature.ServiceSpec) { s.Computed[0].Expression = "x" },
		"The available names are temp, weather__temp, humid, weather__humid, delay, note.": func(s *feature.ServiceSpec) { s.Computed[0].Expression = "late" },
		"spec.computed[0].expression: its value is float64, not int64":                     func(s *feature.ServiceSpec) { s.Computed[0].Type = "int64" },
		"spec.computed[0].expression: int() of a duration has no unit": func(s *feature.ServiceSpec) {
			s.Computed[0].Expression = "double(int(duration('90m')))"
		},
		"spec.computed[0].type":                                            func(s *feature.ServiceSpec) { s.Computed[0].Type = "int33" },
		"spec.request[0].type":                                             func(s *feature.ServiceSpec) { s.Request[0].Type = "" },
		`spec.request[0].name: "in" is not a valid name`:                   func(s *feature.ServiceSpec) { s.Request[0].Name = "in" },
		`spec.request[0].name: "temp" is already a feature`:                func(s *feature.ServiceSpec) { s.Request[0].Name = "temp" },
		`spec.request[0].name: "weather__temp" is already a feature`:       func(s *feature.ServiceSpec) { s.Request[0].Name = "weather__temp" },
		`spec.computed[1].name: "weather__temp" is already a feature`:      func(s *feature.ServiceSpec) { s.Computed[1].Name = "weather__temp" },
		`"origin" is a join key of weather@1 with the type string`:         func(s *feature.ServiceSpec) { s.Request[0].Name = "origin" },
		`spec.computed: duplicate "felt"`:                                  func(s *feature.ServiceSpec) { s.Computed[1].Name = "felt" },
		`spec.computed: duplicate "delay"`:                                 func(s *feature.ServiceSpec) { s.Computed[1].Name = "delay" },
		`spec.computed[1].name: "temp" is already a feature or a join key`: func(s *feature.ServiceSpec) { s.Computed[1].Name = "temp" },
		`spec.computed[1].name: "a:b" contains`:                            func(s *feature.ServiceSpec) { s.Computed[1].Name = "a:b" },
		"duplicate feature weather@1:temp":                                 func(s *feature.ServiceSpec) { s.Inputs = []string{"weather:temp"} },
		"undeclared reference to 'temp'":                                   func(s *feature.ServiceSpec) { s.Inputs = append(s.Inputs, "other:temp") },
	} {
		s := felt
		s.Inputs = append([]string(nil), felt.Inputs...)
		s.Request = append([]feature.RequestSpec(nil), felt.Request...)
		s.Computed = append([]feature.ComputedSpec(nil), felt.Computed...)
		change(&s)
		_, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "delay"}, s)
		refused(t, err, fault.Invalid, words)
	}
	// Nor is it one by the name that it has where names are in full.
	w.view("a__b", feature.ViewSpec{Source: weatherSpec.Source, Entities: weatherSpec.Entities, Timestamp: "time", Features: []feature.FieldSpec{{Name: "temp", Type: "float64"}}})
	_, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "a"}, feature.ServiceSpec{
		Features: []string{"a__b:temp"}, Computed: []feature.ComputedSpec{{Name: "b__temp", Type: "float64", Expression: "temp + 1.0"}},
	})
	refused(t, err, fault.Invalid, `spec.computed[0].name: "b__temp" is already a feature or a join key`)
	// A join key that the request has anyhow can be computed from.
	s := felt
	s.Request = append([]feature.RequestSpec{{Name: "origin", Type: "string"}}, felt.Request...)
	s.Computed = append(slices.Clip(s.Computed), feature.ComputedSpec{Name: "far", Type: "bool", Expression: "origin != 'EWR'"})
	w.service("delay", s)
	w.mustMaterialise("weather", w.now)
	expect(t, w.read("delay", at(0.5), map[string]any{"origin": "EWR", "delay": 4, "note": "a"}), []string{
		"temp=10/PRESENT felt=15/PRESENT late=19/PRESENT word=a!/PRESENT share=25/PRESENT far=false/PRESENT ",
	})
}

// What a service computes may be a thousand times what it reads: it is bounded, however
// many rows there are.
func TestComputedIsBounded(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", w.now)
	long := []feature.ComputedSpec{
		{Name: "t0", Type: "string", Expression: "'" + strings.Repeat("a", 4000) + "'"}, {Name: "t1", Type: "string", Expression: "t0 + t0 + t0 + t0"},
	}
	w.service("texts", feature.ServiceSpec{Features: []string{"weather:temp"}, Computed: long})
	ask := func(service string, entities int) error {
		_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: service}, Entities: slices.Repeat(origin("EWR"), entities)})
		return err
	}
	if err := ask("texts", 1000); err != nil {
		t.Error(err)
	}
	refused(t, ask("texts", 5000), fault.TooLarge, "the computed features of feature service texts@1 for 5000 entities exceed the limit of 67108864 bytes", "Split the request")

	// Rows that are joined come in smaller batches.
	const rows = 3000
	spine := array.NewRecordBuilder(memory.DefaultAllocator, table{cols: []col{{"origin", value.String}, {"at", value.Timestamp}, {"n", value.Int64}}}.schema())
	defer spine.Release()
	for n := range rows {
		spine.Field(0).(*array.StringBuilder).Append("EWR")
		spine.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(at(1).UnixMicro()))
		spine.Field(2).(*array.Int64Builder).Append(int64(n))
	}
	batch := spine.NewRecordBatch()
	defer batch.Release()
	reader, err := array.NewRecordReader(batch.Schema(), []arrow.RecordBatch{batch})
	if err != nil {
		t.Fatal(err)
	}
	h, err := w.History(w.ctx, feature.HistoryRequest{Project: nyc, Rows: reader, Timestamp: "at", Selection: feature.Selection{Service: "texts"}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	next, batches := int64(0), 0
	for h.Next() {
		rec := h.RecordBatch()
		texts := rec.Column(5).(*array.String)
		if n := len(texts.ValueBytes()); n > 17<<20 {
			t.Errorf("a batch of %d bytes", n)
		}
		numbers := rec.Column(2).(*array.Int64)
		for i := range int(rec.NumRows()) {
			if numbers.Value(i) != next || rec.Column(3).(*array.Float64).Value(i) != 11 || len(texts.Value(i)) != 16000 {
				t.Fatalf("row %d: %v", next, rec)
			}
			next++
		}
		batches++
	}
	if err := h.Err(); err != nil || next != rows || batches != 4 {
		t.Errorf("%d rows in %d batches, %v", next, batches, err)
	}

	// Nor does it take for ever.
	for n := range 20 {
		long = append(long, feature.ComputedSpec{Name: fmt.Sprintf("found%d", n), Type: "bool", Expression: "t1 + t1 + t1 + t1 + t1 + t1 == t0"})
	}
	w.service("slow", feature.ServiceSpec{Features: []string{"weather:temp"}, Computed: long})
	if err := ask("slow", 1); err != nil {
		t.Error(err)
	}
	refused(t, ask("slow", 10_000), fault.TooLarge, "feature service slow@1 takes up to", "steps per entity", "with at most")
}

// TestComputedIsTheSame: on random rows, a training set has what the online store
// and the path of a prediction answer as of each row's time.
func TestComputedIsTheSame(t *testing.T) {
	db := storetest.SQLite(t, featuresql.Migrations)
	round := 0
	types := []string{"int64", "float64", "string", "bool", "timestamp"}
	spec := feature.ServiceSpec{
		Features: []string{"v:vint64", "v:vstring"}, Inputs: []string{"v:vfloat64", "v:vbool", "v:vtimestamp"},
		Computed: []feature.ComputedSpec{
			{Name: "ratio", Type: "int64", Expression: "vint64 / rint64"},
			{Name: "sum", Type: "int64", Expression: "vint64 + rint64"},
			{Name: "mean", Type: "float64", Expression: "(vfloat64 + rfloat64) / 2.0"},
			{Name: "either", Type: "bool", Expression: "vbool || rbool"},
			{Name: "text", Type: "string", Expression: "coalesce(vstring, '?') + coalesce(rstring, '?')"},
			{Name: "parsed", Type: "int64", Expression: "int(rstring)"},
			{Name: "age", Type: "int64", Expression: "(rtimestamp - vtimestamp).getSeconds()"},
			{Name: "next", Type: "timestamp", Expression: "vtimestamp + duration('36h')"},
			{Name: "again", Type: "float64", Expression: "either ? mean : double(sum)"},
			{Name: "known", Type: "int64", Expression: "vint64 == null ? 0 : 1"},
		},
	}
	for _, typ := range types {
		spec.Request = append(spec.Request, feature.RequestSpec{Name: "r" + typ, Type: typ})
	}
	rapid.Check(t, func(rt *rapid.T) {
		round++
		w := newWorldOn(t, db)
		draw := func(typ, what string) value.Value {
			var parsed value.Type
			_ = parsed.UnmarshalText([]byte(typ))
			if rapid.IntRange(0, 4).Draw(rt, "null") == 0 {
				return value.Null(parsed)
			}
			switch parsed {
			case value.Int64:
				return value.OfInt(rapid.SampledFrom([]int64{0, 1, -3, 1 << 53, math.MaxInt64, math.MinInt64}).Draw(rt, what))
			case value.Float64:
				return num(rapid.SampledFrom([]float64{0, 1.5, -2, math.Inf(1), math.NaN()}).Draw(rt, what))
			case value.Bool:
				return value.OfBool(rapid.Bool().Draw(rt, what))
			case value.Timestamp:
				return ts(float64(rapid.IntRange(-9, 9).Draw(rt, what)))
			default:
				return str(rapid.SampledFrom([]string{"", "7", "é"}).Draw(rt, what))
			}
		}
		columns := func(prefix string, first ...col) (out []col) {
			out = append(out, first...)
			for _, typ := range types {
				var parsed value.Type
				_ = parsed.UnmarshalText([]byte(typ))
				out = append(out, col{prefix + typ, parsed})
			}
			return out
		}
		rows := table{cols: columns("v", col{"k", value.String}, col{"time", value.Timestamp})}
		for range rapid.IntRange(0, 12).Draw(rt, "rows") {
			row := []value.Value{str(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "k")), ts(float64(rapid.IntRange(0, 5).Draw(rt, "time")))}
			for _, typ := range types {
				row = append(row, draw(typ, typ))
			}
			rows.rows = append(rows.rows, row)
		}
		spine := table{cols: columns("r", col{"k", value.String}, col{"at", value.Timestamp})}
		for range rapid.IntRange(1, 12).Draw(rt, "spine") {
			row := []value.Value{str(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "k")), ts(float64(rapid.IntRange(-1, 8).Draw(rt, "at")))}
			for _, typ := range types {
				row = append(row, draw(typ, typ))
			}
			spine.rows = append(spine.rows, row)
		}
		w.data.put("rows", rows)
		w.data.put("spine", spine)
		w.entity("k", "string")
		w.view("v", feature.ViewSpec{
			Description: strconv.Itoa(round), Source: feature.Source{Dataset: "rows"}, Entities: []string{"k"}, Timestamp: "time", TTL: "3h",
			Features: []feature.FieldSpec{
				{Name: "vint64", Type: "int64"}, {Name: "vfloat64", Type: "float64"}, {Name: "vstring", Type: "string"}, {Name: "vbool", Type: "bool"}, {Name: "vtimestamp", Type: "timestamp"},
			},
		})
		w.service("s", spec)
		set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
			Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Service: "s"},
		})
		if err != nil {
			rt.Fatal(err)
		}
		version, err := w.data.find(set.Dataset)
		if err != nil {
			rt.Fatal(err)
		}
		w.mustMaterialise("v", w.now)
		made, err := version.table.pick([]string{"vint64", "vstring", "ratio", "sum", "mean", "either", "text", "parsed", "age", "next", "again", "known"})
		if err != nil {
			rt.Fatal(err)
		}
		for n, row := range spine.rows {
			entity := map[string]any{"k": row[0].Any()}
			for i, c := range spine.cols[2:] {
				entity[c.name] = row[2+i].Any()
			}
			a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "s"}, Entities: []map[string]any{entity}, AsOf: row[1].Time()})
			if err != nil {
				rt.Fatal(err)
			}
			for i, c := range a.Columns {
				if want := made.rows[n][i]; !c.Values[0].Equal(want) && (!want.IsNull() || !c.Values[0].IsNull()) {
					rt.Fatalf("row %d: %s is %s online and %s in the training set", n, c.Name, c.Values[0], want)
				}
				if c.Values[0].IsNull() == (c.Statuses[0] == online.Present) {
					rt.Fatalf("%s is %s and %s", c.Name, c.Values[0], c.Statuses[0])
				}
			}
		}
	})
}

// A prediction gets what a client gets, as numbers.
func TestLookupComputes(t *testing.T) {
	w := weather(t)
	numbers := felt
	numbers.Computed = []feature.ComputedSpec{felt.Computed[0], felt.Computed[1], felt.Computed[3], {Name: "noted", Type: "bool", Expression: "size(note) > 0"}}
	w.service("delay", numbers)
	w.mustMaterialise("weather", w.now)
	shape, err := w.Shape(w.ctx, nyc, "delay")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, shape.Features, []string{"weather@1:temp", "delay@1:felt", "delay@1:late", "delay@1:share", "delay@1:noted"})
	expect(t, shape.Request, []string{"delay", "note"})
	got, err := w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "delay", Rows: 2, AsOf: at(0.5), Keys: []feature.KeyColumn{
		{Name: "origin", Texts: []string{"EWR", "EWR"}}, {Name: "delay", Floats: []float64{4, 0}}, {Name: "note", Texts: []string{"", "x"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]float64{{10, 10}, {15, 15}, {19, 15}, {25, math.NaN()}, {0, 1}}
	for i, c := range got.Columns {
		for n := range 2 {
			if c.Values[n] != want[i][n] && !(math.IsNaN(c.Values[n]) && math.IsNaN(want[i][n])) {
				t.Errorf("%s of row %d is %v, want %v", shape.Features[i], n, c.Values[n], want[i][n])
			}
		}
	}
	expect(t, got.Columns[3].Statuses, []online.Status{online.Present, online.Invalid})
	_, err = w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "delay", Rows: 1, Keys: []feature.KeyColumn{{Name: "origin", Texts: []string{"EWR"}}, {Name: "delay", Floats: []float64{0.5}}, {Name: "note", Texts: []string{""}}}})
	refused(t, err, fault.Invalid, "row 0: value delay of the request: 0.5 is not an int64")
	_, err = w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "delay", Rows: 1, Keys: []feature.KeyColumn{{Name: "origin", Texts: []string{"EWR"}}}})
	refused(t, err, fault.Invalid, `the request value "delay"`)

	// What was computed from the request is told and not compared.
	report, err := w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{
		Project: nyc, Service: "delay@1", Columns: []feature.AnswerColumn{{Feature: "weather:temp"}, {Feature: "delay:late"}},
		Answers: []feature.LoggedAnswer{{At: at(0.5), Received: at(100), Keys: map[string]any{"origin": "EWR"}, Values: []float64{10, 19}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, report.NotCompared, []string{"delay:late"})
	expect(t, []int{report.Values, report.Mismatches}, []int{1, 0})
}

// The doors of a view are those of what is computed from it.
func TestComputedReadIsARead(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Restricted })
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	w.data.put("plain", weatherRows())
	plain := weatherSpec
	plain.Source.Dataset = "plain"
	w.view("plain", plain)
	w.service("delay", feature.ServiceSpec{
		Features: []string{"plain:humid"}, Inputs: []string{"weather:temp"}, Computed: []feature.ComputedSpec{{Name: "warm", Type: "bool", Expression: "temp > 12.0"}},
	})
	w.mustMaterialise("weather", w.now)
	w.mustMaterialise("plain", w.now)
	w.gates.entries, w.gates.asked = nil, nil
	expect(t, w.read("delay", at(0.5), origin("EWR")...), []string{"humid=50/PRESENT warm=false/PRESENT "})
	expect(t, w.gates.asked, []string{"feature.history plain@1 internal", "feature.history weather@1 restricted"})
	if len(w.gates.entries) != 1 {
		t.Errorf("%d entries of the journal", len(w.gates.entries))
	}
	w.gates.broken = fault.New(fault.Unavailable, "the disk is full")
	_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "delay"}, Entities: origin("EWR"), AsOf: at(0.5)})
	refused(t, err, fault.Unavailable)
}

// BenchmarkComputed reads 100 entities out of Pebble: 10 features, and beside them
// 10 that are computed.
func BenchmarkComputed(b *testing.B) {
	w := newOpenWorld(b)
	cols := []col{{"route", value.Int64}, {"time", value.Timestamp}}
	spec := feature.ViewSpec{Source: feature.Source{Dataset: "wide"}, Entities: []string{"route"}, Timestamp: "time"}
	for f := range 10 {
		cols = append(cols, col{fmt.Sprintf("f%d", f), value.Float64})
		spec.Features = append(spec.Features, feature.FieldSpec{Name: fmt.Sprintf("f%d", f), Type: "float64"})
	}
	var rows [][]value.Value
	for i := range 1000 {
		row := []value.Value{value.OfInt(int64(i)), ts(0)}
		for f := range 10 {
			row = append(row, value.OfFloat(float64(i*f)/1000))
		}
		rows = append(rows, row)
	}
	w.data.put("wide", table{cols, rows})
	w.entity("route", "int64")
	w.view("wide", spec)
	w.mustMaterialise("wide", w.now)
	w.service("plain", feature.ServiceSpec{Features: []string{"wide"}})
	computed := feature.ServiceSpec{Features: []string{"wide"}, Request: []feature.RequestSpec{{Name: "x", Type: "float64"}}}
	for f := range 10 {
		computed.Computed = append(computed.Computed, feature.ComputedSpec{Name: fmt.Sprintf("c%d", f), Type: "float64", Expression: fmt.Sprintf("f%d * 1.8 + x / 2.0", f)})
	}
	w.service("computed", computed)
	for _, service := range []string{"plain", "computed"} {
		b.Run(service, func(b *testing.B) {
			r := feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: service}, Loose: true}
			for i := range 100 {
				r.Entities = append(r.Entities, map[string]any{"route": int64(i * 7), "x": 1.5})
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Online(w.ctx, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
