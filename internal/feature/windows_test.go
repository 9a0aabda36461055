package feature_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

var purchaseCols = []col{{"origin", value.String}, {"time", value.Timestamp}, {"known", value.Timestamp}, {"amount", value.Float64}, {"shop", value.String}}

var purchases = feature.ViewSpec{
	Source: feature.Source{Dataset: "purchases"}, Entities: []string{"origin"}, Timestamp: "time", CreatedTimestamp: "known", TTL: "6h",
	Aggregations: []feature.AggregationSpec{
		{Name: "spent", Function: window.Sum, Column: "amount", Type: "float64", Window: "2h"},
		{Name: "bought", Function: window.Count, Window: "4h"},
		{Name: "shops", Function: window.TopK, Column: "shop", Type: "string", K: 2, Window: "4h"},
	},
}

// shop is a world with purchases of two origins.
func shop(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.data.put("purchases", table{purchaseCols, [][]value.Value{
		{str("EWR"), ts(1), null, num(10), str("a")},
		{str("EWR"), ts(2), ts(2), num(0.1), str("b")},
		{str("EWR"), ts(2), ts(2), num(0.1), str("b")}, // counts, too
		{str("EWR"), ts(3), ts(5), num(100), null},     // comes late
		{str("JFK"), ts(1), null, null, str("c")},
	}})
	w.entity("origin", "string")
	w.view("purchases", purchases)
	return w
}

func TestWindowsOnline(t *testing.T) {
	w := shop(t)
	v, err := w.View(w.ctx, nyc, "purchases")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, v.Features, []feature.FieldSpec{{Name: "spent", Type: "float64"}, {Name: "bought", Type: "int64"}, {Name: "shops", Type: "string"}})
	w.mustMaterialise("purchases", w.now)
	micro := func(hours float64, by int) time.Time { return at(hours).Add(time.Duration(by) * time.Microsecond) }
	all := []string{"purchases"}
	for _, c := range []struct {
		at   time.Time
		want string
	}{
		{micro(1, -1), "NULL/NOT_FOUND | NULL/NOT_FOUND | NULL/NOT_FOUND"},
		{at(1), `10/PRESENT | 1/PRESENT | ["a"]/PRESENT`},
		{at(2), `10.2/PRESENT | 3/PRESENT | ["b","a"]/PRESENT`},
		{micro(3, -1), `10.2/PRESENT | 3/PRESENT | ["b","a"]/PRESENT`},
		{at(3), `0.2/PRESENT | 3/PRESENT | ["b","a"]/PRESENT`}, // the row at 1 is out of two hours
		{micro(5, -1), `NULL/NULL_VALUE | 3/PRESENT | ["b","a"]/PRESENT`},
		{at(5), `NULL/NULL_VALUE | 3/PRESENT | ["b"]/PRESENT`}, // the late row is known, and just out of two hours; the first is out of four
		{micro(6, 0), `NULL/NULL_VALUE | 1/PRESENT | NULL/NULL_VALUE`},
		{micro(7, 0), `NULL/NULL_VALUE | 0/PRESENT | NULL/NULL_VALUE`},
		{micro(9, 0), `NULL/NULL_VALUE | 0/PRESENT | NULL/NULL_VALUE`},
		{micro(9, 1), "NULL/OUTSIDE_MAX_AGE | NULL/OUTSIDE_MAX_AGE | NULL/OUTSIDE_MAX_AGE"},
	} {
		if got := w.ask(c.at, all, origin("EWR")...); got[0] != c.want {
			t.Errorf("at %s: %s, want %s", c.at.Format(time.RFC3339Nano), got[0], c.want)
		}
	}
	expect(t, w.ask(at(1), all, origin("JFK", nil, "LGA")...), []string{
		`NULL/NULL_VALUE | 1/PRESENT | ["c"]/PRESENT`,
		"NULL/NOT_FOUND | NULL/NOT_FOUND | NULL/NOT_FOUND",
		"NULL/NOT_FOUND | NULL/NOT_FOUND | NULL/NOT_FOUND",
	})
	// For a model: numbers, by the same path.
	if _, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "spending"}, feature.ServiceSpec{Features: []string{"purchases:bought", "purchases:spent"}}); err != nil {
		t.Fatal(err)
	}
	a, err := w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "spending", Rows: 2, Keys: []feature.KeyColumn{{Name: "origin", Texts: []string{"EWR", "LGA"}}}, AsOf: at(2)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(a.Columns[0].Values, a.Columns[1].Values, a.Columns[0].Statuses); got != "[3 NaN] [10.2 NaN] [PRESENT NOT_FOUND]" {
		t.Error(got)
	}
}

func TestWindowsAreVersions(t *testing.T) {
	w := shop(t)
	same := purchases
	same.Features = []feature.FieldSpec{{Name: "spent", Type: "float64"}, {Name: "bought", Type: "int64"}, {Name: "shops", Type: "string"}}
	if v := w.view("purchases", same); v.Version != 1 {
		t.Errorf("what the server tells is another version: %s", v.Ref())
	}
	longer := purchases
	longer.Aggregations = slices.Clone(purchases.Aggregations)
	longer.Aggregations[0].Window = "3h"
	if v := w.view("purchases", longer); v.Version != 2 {
		t.Errorf("another window is %s", v.Ref())
	}
	for words, change := range map[string]func(*feature.ViewSpec){
		"features or aggregations":          func(s *feature.ViewSpec) { s.Features = weatherSpec.Features },
		`duplicate "spent"`:                 func(s *feature.ViewSpec) { s.Aggregations[1].Name = "spent" },
		"spec.aggregations[0].window":       func(s *feature.ViewSpec) { s.Aggregations[0].Window = "soon" },
		"spec.aggregations[0]: a window of": func(s *feature.ViewSpec) { s.Aggregations[0].Window = "" },
		"there is no function":              func(s *feature.ViewSpec) { s.Aggregations[0].Function = "sums" },
		"sum requires a number":             func(s *feature.ViewSpec) { s.Aggregations[0].Type = "string" },
		"spec.aggregations[0].type":         func(s *feature.ViewSpec) { s.Aggregations[0].Type = "money" },
		`no column "amounts"`:               func(s *feature.ViewSpec) { s.Aggregations[0].Column = "amounts" },
		"spec.aggregations[2]: column":      func(s *feature.ViewSpec) { s.Aggregations[2].Type = "int64" },
		`"origin" is a join key`:            func(s *feature.ViewSpec) { s.Aggregations[0].Name = "origin" },
		"contains ':'":                      func(s *feature.ViewSpec) { s.Aggregations[0].Name = "a:b" },
	} {
		spec := purchases
		spec.Aggregations = slices.Clone(purchases.Aggregations)
		change(&spec)
		_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "wrong"}, spec)
		refused(t, err, fault.Invalid, words)
	}
}

// For any view with windows and any spine, every value of the training set is what
// the online store answers as of the row's time, whether the events came by
// backfill or one by one.
func TestWindowsTrainAsTheyServe(t *testing.T) {
	db := storetest.SQLite(t, featuresql.Migrations)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		w := newWorldOn(t, db)
		micro := func(n int) value.Value { return value.OfTime(start.Add(time.Duration(n) * time.Microsecond)) }
		maybe := func(v value.Value) value.Value {
			if rapid.IntRange(0, 7).Draw(rt, "null") == 0 {
				return value.Value{}
			}
			return v
		}
		key := func() value.Value { return str(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "k")) }
		rows := table{cols: []col{{"k", value.String}, {"time", value.Timestamp}, {"created", value.Timestamp}, {"x", value.Float64}, {"s", value.String}}}
		for range rapid.IntRange(0, 60).Draw(rt, "rows") {
			rows.rows = append(rows.rows, []value.Value{
				maybe(key()), maybe(micro(rapid.IntRange(0, 99).Draw(rt, "time"))), maybe(micro(rapid.IntRange(0, 120).Draw(rt, "created"))),
				maybe(num(rapid.SampledFrom([]float64{0.1, 0.7, -3, 1e9}).Draw(rt, "x"))), maybe(str(rapid.SampledFrom([]string{"", "y", "z"}).Draw(rt, "s"))),
			})
		}
		spine := table{cols: []col{{"k", value.String}, {"at", value.Timestamp}}}
		for range rapid.IntRange(1, 40).Draw(rt, "spine") {
			spine.rows = append(spine.rows, []value.Value{maybe(key()), micro(rapid.IntRange(-1, 140).Draw(rt, "at"))})
		}
		w.data.put("rows", rows)
		w.data.put("spine", spine)
		if _, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: "k"}, feature.EntitySpec{}); err != nil {
			rt.Fatal(err)
		}
		spec := feature.ViewSpec{
			Description: strconv.Itoa(round), Source: feature.Source{Dataset: "rows"}, Entities: []string{"k"}, Timestamp: "time",
			TTL: rapid.SampledFrom([]string{"", "30us", "200us"}).Draw(rt, "ttl"),
		}
		if rapid.Bool().Draw(rt, "has created") {
			spec.CreatedTimestamp = "created"
		}
		for i, f := range window.Functions() {
			a := feature.AggregationSpec{
				Name: string(f), Function: f, Column: "x", Type: "float64",
				Window: []string{"1us", "9us", "70us", "2000us"}[(i+round)%4],
			}
			switch f {
			case window.TopK:
				a.K, a.Column, a.Type = 2, "s", "string"
			case window.Quantile:
				a.Q = 0.5
			case window.Last:
				a.Column, a.Type = "s", "string"
			default:
			}
			spec.Aggregations = append(spec.Aggregations, a)
		}
		name := "w" + strconv.Itoa(round)
		v := w.view(name, spec)
		set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: []string{name}}})
		if err != nil {
			rt.Fatal(err)
		}
		check := func(how string) {
			report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
			if err != nil {
				rt.Fatal(err)
			}
			if report.Rows != len(spine.rows) || report.Mismatches != 0 || report.Rounded != 0 {
				rt.Fatalf("%s: report %+v", how, report)
			}
		}

		// 1. Backfill, in steps: the second begins in the middle of tiles.
		until := rapid.IntRange(0, 99).Draw(rt, "until")
		w.mustMaterialise(name, start.Add(time.Duration(until)*time.Microsecond))
		r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: name, From: start.Add(time.Duration(until) * time.Microsecond), Until: w.now})
		if err != nil {
			rt.Fatal(err)
		}
		if err := w.RunOnce(w.ctx); err != nil {
			rt.Fatal(err)
		}
		if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded {
			rt.Fatalf("run %+v, error %v", r, err)
		}
		check("backfill")

		// 2. One by one, in any order, into an empty table.
		at := w.table(name)
		if err := w.online.Drop(w.ctx, at); err != nil {
			rt.Fatal(err)
		}
		inputs := v.Inputs()
		for _, row := range rapid.Permutation(rows.rows).Draw(rt, "arrival") {
			if row[0].IsNull() || row[1].IsNull() {
				continue
			}
			e := window.Row{Event: row[1].Int(), Created: window.NoCreated}
			if spec.CreatedTimestamp != "" && !row[2].IsNull() {
				e.Created = row[2].Int()
			}
			for _, in := range inputs {
				e.Values = append(e.Values, row[slices.IndexFunc(rows.cols, func(c col) bool { return c.name == in.Column })])
			}
			reader, err := w.online.Reader(w.ctx, at)
			if err != nil {
				rt.Fatal(err)
			}
			changed, err := feature.AggregateEvents(w.ctx, v, reader, value.AppendKey(nil, row[0]), []window.Row{e})
			if err != nil {
				rt.Fatal(err)
			}
			if err := w.online.Write(w.ctx, at, changed); err != nil {
				rt.Fatal(err)
			}
		}
		check("one by one")
	})
}

// An interrupted materialisation of windows goes on, and writes what one that was
// not interrupted writes.
func TestMaterialisationOfWindowsResumes(t *testing.T) {
	w := newWorld(t)
	rows := table{cols: purchaseCols}
	for i := range 300 {
		rows.rows = append(rows.rows, []value.Value{str(fmt.Sprint("o", i%7)), ts(float64(i) / 10), null, num(float64(i)), str("a")})
	}
	w.data.put("purchases", rows)
	w.entity("origin", "string")
	w.view("purchases", purchases)
	writes := 0
	w.driver.write = func() error {
		if writes++; writes%3 == 0 {
			return fault.New(fault.Unavailable, "the disk is away")
		}
		return nil
	}
	r := w.materialise("purchases", w.now)
	for tries := 0; !r.State.Ended() && tries < 4; tries++ {
		w.driver.write = nil
		w.now = w.now.Add(time.Hour)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		var err error
		if r, err = w.Run(w.ctx, nyc, r.ID); err != nil {
			t.Fatal(err)
		}
	}
	if r.State != feature.Succeeded || r.Failures == 0 {
		t.Fatalf("run %+v", r)
	}
	want := map[string]float64{}
	asked := at(25)
	for _, row := range rows.rows {
		if d := asked.Sub(row[1].Time()); d >= 0 && d < 2*time.Hour {
			want[row[0].Str()] += row[3].Float()
		}
	}
	for _, name := range []string{"o0", "o1", "o2", "o3", "o4", "o5", "o6"} {
		got := w.ask(asked, []string{"purchases:spent"}, origin(name)...)[0]
		if got != fmt.Sprintf("%s/PRESENT", value.OfFloat(want[name])) {
			t.Errorf("%s: %s, want %v", name, got, want[name])
		}
	}
}
