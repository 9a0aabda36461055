package feature_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// mixed is a world with two views, of other keys and types, in one service.
func mixed(tb testing.TB, w *world) *world {
	tb.Helper()
	w.data.put("weather", weatherRows())
	cols := []col{{"route", value.Int64}, {"time", value.Timestamp}, {"n", value.Int64}, {"busy", value.Bool}}
	w.data.put("counts", table{cols, [][]value.Value{
		{value.OfInt(7), ts(0), value.OfInt(1), value.OfBool(true)}, {value.OfInt(8), ts(2), value.OfInt(2), null},
	}})
	w.entity("origin", "string")
	w.entity("route", "int64")
	w.view("weather", weatherSpec)
	w.view("counts", feature.ViewSpec{
		Source: feature.Source{Dataset: "counts"}, Entities: []string{"route"}, Timestamp: "time",
		Features: []feature.FieldSpec{{Name: "n", Type: "int64"}, {Name: "busy", Type: "bool"}},
	})
	if _, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "all"}, feature.ServiceSpec{Features: []string{"counts:busy", "weather:temp", "counts:n", "weather:humid"}}); err != nil {
		tb.Fatal(err)
	}
	w.mustMaterialise("weather", w.now)
	w.mustMaterialise("counts", w.now)
	return w
}

// TestLookupIsOnline: the path of a prediction answers what Online answers.
func TestLookupIsOnline(t *testing.T) {
	w := mixed(t, newWorld(t))
	shape, err := w.Shape(w.ctx, nyc, "all")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, shape, feature.Shape{
		Service: "all@1", JoinKeys: []string{"route", "origin"},
		Features: []string{"counts@1:busy", "counts@1:n", "weather@1:temp", "weather@1:humid"},
		Types:    []value.Type{value.Bool, value.Int64, value.Float64, value.Float64},
		Views: []residency.Parent{
			{Name: "feature view counts@1", Label: residency.Of(residency.Home)}, {Name: "feature view weather@1", Label: residency.Of(residency.Home)},
		},
		Classification: project.Internal,
	})
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(0, 5).Draw(t, "rows")
		origins := rapid.SliceOfN(rapid.SampledFrom([]string{"EWR", "JFK", "LGA", ""}), rows, rows).Draw(t, "origins")
		routes := rapid.SliceOfN(rapid.Int64Range(6, 9), rows, rows).Draw(t, "routes")
		when := at(float64(rapid.IntRange(0, 13).Draw(t, "hour")))
		entities := make([]map[string]any, rows)
		for i := range entities {
			entities[i] = map[string]any{"origin": origins[i], "route": routes[i]}
		}
		want, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "all"}, Entities: entities, AsOf: when})
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "all@1", Rows: rows, AsOf: when, Keys: []feature.KeyColumn{{Name: "origin", Texts: origins}, {Name: "route", Ints: routes}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Columns) != len(want.Columns) || !got.AsOf.Equal(want.AsOf) {
			t.Fatalf("%d columns as of %s", len(got.Columns), got.AsOf)
		}
		for i, c := range want.Columns {
			for row := range rows {
				g := got.Columns[i]
				number := math.NaN()
				if c.Statuses[row] == online.Present {
					switch v := c.Values[row]; v.Type() {
					case value.Int64:
						number = float64(v.Int())
					case value.Bool:
						if number = 0; v.Bool() {
							number = 1
						}
					default:
						number = v.Float()
					}
				}
				event := time.Time{}
				if c.EventTimes[row] != nil {
					event = *c.EventTimes[row]
				}
				if g.Statuses[row] != c.Statuses[row] || !g.Events[row].Equal(event) || math.Float64bits(g.Values[row]) != math.Float64bits(number) {
					t.Fatalf("%s of row %d: %v %s %s, want %v %s %s", c.Feature, row, g.Values[row], g.Statuses[row], g.Events[row], number, c.Statuses[row], event)
				}
			}
		}
	})
}

func TestLookupRefuses(t *testing.T) {
	w := mixed(t, newWorld(t))
	keys := func(origin, route feature.KeyColumn) feature.LookupRequest {
		origin.Name, route.Name = "origin", "route"
		return feature.LookupRequest{Project: nyc, Service: "all", Rows: 1, Keys: []feature.KeyColumn{origin, route}}
	}
	ewr, seven := feature.KeyColumn{Texts: []string{"EWR"}}, feature.KeyColumn{Ints: []int64{7}}
	if _, err := w.Lookup(w.ctx, keys(ewr, feature.KeyColumn{Texts: []string{"7"}})); err != nil { // keys may come as text
		t.Error(err)
	}
	_, err := w.Lookup(w.ctx, keys(feature.KeyColumn{Ints: []int64{1}}, seven))
	refused(t, err, fault.Invalid, "row 0: join key origin")
	_, err = w.Lookup(w.ctx, keys(ewr, feature.KeyColumn{Texts: []string{"far"}}))
	refused(t, err, fault.Invalid, "join key route")
	_, err = w.Lookup(w.ctx, keys(ewr, feature.KeyColumn{Ints: []int64{7, 8}}))
	refused(t, err, fault.Invalid, "must have 1 rows")
	_, err = w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "all", Rows: 10_001})
	refused(t, err, fault.TooLarge, "10000")
	_, err = w.Lookup(w.ctx, feature.LookupRequest{Project: nyc, Service: "x"})
	refused(t, err, fault.NotFound)
	r := keys(ewr, seven)
	w.gates.refuse[feature.ActionOnline] = true
	_, err = w.Lookup(w.ctx, r)
	refused(t, err, fault.PermissionDenied)
	r.AsOf = at(1)
	if _, err := w.Lookup(w.ctx, r); err != nil {
		t.Error(err)
	}
	w.gates.refuse[feature.ActionHistory] = true
	_, err = w.Lookup(w.ctx, r)
	refused(t, err, fault.PermissionDenied)
	w.gates.refuse[feature.ActionRead] = true
	_, err = w.Shape(w.ctx, nyc, "all")
	refused(t, err, fault.PermissionDenied)
}

func TestLookupIsJournaledFirst(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Confidential })
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	if _, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "all"}, feature.ServiceSpec{Features: []string{"weather"}}); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("weather", w.now)
	r := feature.LookupRequest{Project: nyc, Service: "all", Rows: 2, Keys: []feature.KeyColumn{{Name: "origin", Texts: []string{"EWR", "JFK"}}}}
	if _, err := w.Lookup(w.ctx, r); err != nil || len(w.gates.entries) != 1 || w.gates.entries[0].Detail["entities"] != 2 {
		t.Errorf("%v, journal %+v", err, w.gates.entries)
	}
	w.gates.broken = fault.New(fault.Unavailable, "disk full")
	_, err := w.Lookup(w.ctx, r)
	refused(t, err, fault.Unavailable, "disk full")
}

// open lets everybody through and remembers nothing.
type open struct{}

func (open) Allow(context.Context, policy.Action, policy.Object) error { return nil }
func (open) Pass(context.Context, residency.Transfer) error            { return nil }

// newOpenWorld is a world on Pebble whose doors are open.
func newOpenWorld(b *testing.B) *world {
	b.Helper()
	db, err := pebble.Open(pebble.Config{Dir: filepath.Join(b.TempDir(), "online")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	meta, err := store.Open(b.Context(), store.Config{URL: "sqlite://" + filepath.Join(b.TempDir(), "falaj.db"), Migrations: []store.Migrations{featuresql.Migrations}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = meta.Close() })
	w := newWorldOn(b, meta)
	w.online = online.New(db, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(c *feature.Config) { c.Authorizer, c.Guard = open{}, open{} })
	return w
}

// BenchmarkLookup reads the features of one entity out of Pebble, as a
// prediction does: two views, doors and journal included. Aim: under 100 µs.
func BenchmarkLookup(b *testing.B) {
	w := newOpenWorld(b)
	mixed(b, w)
	for _, rows := range []int{1, 100} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			r := feature.LookupRequest{Project: nyc, Service: "all@1", Rows: rows, Keys: []feature.KeyColumn{{Name: "origin"}, {Name: "route"}}}
			for i := range rows {
				r.Keys[0].Texts = append(r.Keys[0].Texts, []string{"EWR", "JFK", "LGA"}[i%3])
				r.Keys[1].Ints = append(r.Keys[1].Ints, int64(6+i%4))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Lookup(w.ctx, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOnline reads many features of many entities out of Pebble, as a client
// asks for them by name: doors and journal included.
func BenchmarkOnline(b *testing.B) {
	w := newOpenWorld(b)
	const features = 250
	cols := []col{{"route", value.Int64}, {"time", value.Timestamp}}
	spec := feature.ViewSpec{Source: feature.Source{Dataset: "wide"}, Entities: []string{"route"}, Timestamp: "time"}
	var names []string
	for f := range features {
		name := fmt.Sprintf("f%03d", f)
		cols = append(cols, col{name, value.Float64})
		spec.Features = append(spec.Features, feature.FieldSpec{Name: name, Type: "float64"})
		names = append(names, "wide:"+name)
	}
	var rows [][]value.Value
	for i := range 1000 {
		row := []value.Value{value.OfInt(int64(i)), ts(0)}
		for f := range features {
			row = append(row, value.OfFloat(float64(i*f)/1000))
		}
		rows = append(rows, row)
	}
	w.data.put("wide", table{cols, rows})
	w.entity("route", "int64")
	w.view("wide", spec)
	w.mustMaterialise("wide", w.now)
	for _, entities := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%d entities", entities), func(b *testing.B) {
			r := feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: names}}
			for i := range entities {
				r.Entities = append(r.Entities, map[string]any{"route": int64(i * 7)})
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
