package offline

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
)

// sliding is a view with every function that a type has, over some windows.
func sliding(tb testing.TB, m *model, batch int, windows ...time.Duration) View {
	tb.Helper()
	var features []window.Feature
	for _, c := range m.feats {
		for _, f := range window.Functions() {
			x := window.Feature{Name: fmt.Sprint(c.Name, f, len(features)), Column: c.Name, Type: c.Type, Function: f, Window: windows[len(features)%len(windows)]}
			switch f {
			case window.TopK:
				x.K = 2
			case window.Quantile:
				x.Q = 0.5
			default:
			}
			if x.Check() == nil {
				features = append(features, x)
			}
		}
	}
	plan, err := window.NewPlan(features)
	if err != nil {
		tb.Fatal(err)
	}
	v := m.view(tb, batch, make([]bool, len(m.feats)))
	v.Features = nil
	for _, in := range plan.Inputs() {
		v.Features = append(v.Features, Feature{Column: Column{in.Column, in.Type}})
	}
	v.Windows = &Windows{Plan: plan, Select: make([]string, len(features))}
	for i, f := range features {
		if i%3 != 1 { // some are left out
			v.Windows.Select[i] = f.Name
		}
	}
	return v
}

// rowsOf are the rows of a key as package window takes them.
func (m *model) rowsOf(key []value.Value) []window.Row {
	var out []window.Row
	k := len(m.keys)
	for _, r := range m.rows.rows {
		if !slices.EqualFunc(r[:k], key, value.Value.Equal) || slices.ContainsFunc(r[:k], value.Value.IsNull) || r[k].IsNull() {
			continue
		}
		row := window.Row{Event: r[k].Int(), Created: window.NoCreated, Values: r[k+2:]}
		if m.created && !r[k+1].IsNull() {
			row.Created = r[k+1].Int()
		}
		out = append(out, row)
	}
	return out
}

// A spine row's windows are those of a tree of all the rows of its key, which
// package window compares with the rule.
func TestWindowsAgreeWithTheRule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := []Column{{"k0", rapid.SampledFrom(keyTypes).Draw(rt, "key type")}, {"k1", value.String}}
		m := drawModel(rt, "w", keys, value.Int64, value.Float64, value.String, value.Bool, value.Timestamp)
		v := sliding(t, m, rapid.IntRange(1, 9).Draw(rt, "batch"), time.Microsecond, 3*time.Microsecond, 50*time.Microsecond)
		plan := v.Windows.Plan
		spine := table{columns: []Column{{"at", value.Timestamp}, {"s_k0", keys[0].Type}, {"s_k1", value.String}}}
		types := []value.Type{value.Timestamp, keys[0].Type, value.String}
		for i, s := range v.Windows.Select {
			if s != "" {
				types = append(types, plan.Types()[i])
			}
		}
		var want [][]value.Value
		for range rapid.IntRange(0, 25).Draw(rt, "spine rows") {
			at := int64(rapid.IntRange(-4, 14).Draw(rt, "at"))
			row := []value.Value{value.OfMicros(at), drawValue(rt, keys[0].Type, true, "key"), drawValue(rt, value.String, true, "key")}
			spine.rows = append(spine.rows, row)
			rows := m.rowsOf(row[1:])
			tree, newest, seen := plan.NewTree(), int64(0), false
			for _, r := range rows {
				packed, err := value.AppendRow(nil, r.Values)
				if err != nil {
					rt.Fatal(err)
				}
				if err := tree.Insert(r.Event, r.Created, packed); err != nil {
					rt.Fatal(err)
				}
				if r.Event <= at && r.Created <= at && (!seen || r.Event > newest) {
					newest, seen = r.Event, true
				}
			}
			answer := make([]value.Value, len(plan.Types()))
			if err := tree.At(at, answer); err != nil {
				rt.Fatal(err)
			}
			full := slices.Clone(row)
			for i, s := range v.Windows.Select {
				switch {
				case s == "":
				case !seen || v.TTL > 0 && at-newest > v.TTL.Microseconds():
					full = append(full, value.Null(plan.Types()[i]))
				default:
					full = append(full, answer[i])
				}
			}
			want = append(want, full)
		}
		for _, opts := range []Options{{Workers: 2}, {Memory: 1}} {
			opts.Dir = os.TempDir()
			result, err := Join(context.Background(), Spine{Open: spine.open(t, rapid.IntRange(1, 9).Draw(rt, "spine batch")), Timestamp: "at"}, []View{v}, opts)
			if err != nil {
				rt.Fatal(err)
			}
			got := drain(t, result, types)
			result.Release()
			if diff := cmp.Diff(want, got, equal); diff != "" {
				rt.Fatalf("memory %d: (-want +got):\n%s", opts.Memory, diff)
			}
		}
	})
}

// events is a view of purchases and a spine that asks about them.
func events(entities, perEntity, asks int) (spine, view table) {
	rnd := rand.New(rand.NewPCG(1, 2))
	day := 24 * time.Hour.Microseconds()
	view.columns = []Column{{"user", value.Int64}, {"event", value.Timestamp}, {"created", value.Timestamp}, {"x", value.Float64}, {"s", value.String}}
	for i := range entities * perEntity {
		at := int64(i) * 30 * day / int64(entities*perEntity)
		view.rows = append(view.rows, []value.Value{
			value.OfInt(rnd.Int64N(int64(entities))), value.OfMicros(at), value.OfMicros(at + rnd.Int64N(day/24/60)),
			value.OfFloat(float64(rnd.IntN(10000)) / 100), value.OfString(fmt.Sprint("m", rnd.IntN(40))),
		})
	}
	spine.columns = []Column{{"at", value.Timestamp}, {"s_user", value.Int64}}
	for i := range asks {
		spine.rows = append(spine.rows, []value.Value{value.OfMicros(int64(i) * 30 * day / int64(asks)), value.OfInt(rnd.Int64N(int64(entities)))})
	}
	return spine, view
}

func eventsView(tb testing.TB, view table, batch int, features ...window.Feature) View {
	tb.Helper()
	plan, err := window.NewPlan(features)
	if err != nil {
		tb.Fatal(err)
	}
	v := View{Name: "purchases", Open: view.open(tb, batch), Keys: view.columns[:1], Event: "event", Created: "created", SpineKeys: []string{"s_user"}}
	v.Windows = &Windows{Plan: plan}
	for _, in := range plan.Inputs() {
		v.Features = append(v.Features, Feature{Column: Column{in.Column, in.Type}})
	}
	for _, f := range features {
		v.Windows.Select = append(v.Windows.Select, f.Name)
	}
	return v
}

func TestWindowsThatDoNotFit(t *testing.T) {
	spine, view := events(1, 60_000, 10)
	all := window.Feature{Name: "n", Column: "x", Type: value.Float64, Function: window.Sum, Window: 30 * 24 * time.Hour}
	_, err := Join(t.Context(), Spine{spine.open(t, 100), "at"}, []View{eventsView(t, view, 4096, all)}, Options{Memory: 1 << 20, Dir: t.TempDir()})
	if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
		t.Errorf("error %v with hint %q", err, fault.HintOf(err))
	}
	hour := all
	hour.Window = time.Hour
	result, err := Join(t.Context(), Spine{spine.open(t, 100), "at"}, []View{eventsView(t, view, 4096, hour)}, Options{Memory: 1 << 20, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer result.Release()
	if rows := drain(t, result, []value.Type{value.Timestamp, value.Int64, value.Float64}); len(rows) != 10 {
		t.Errorf("%d rows", len(rows))
	}
	if !result.Stats()[0].Spilled {
		t.Error("it fits in memory: the test says nothing")
	}
}

// BenchmarkWindows joins purchases of a month with their sums and more over the
// hour, the day and the week before.
func BenchmarkWindows(b *testing.B) {
	f := func(fn window.Function, column string, t value.Type, w time.Duration) window.Feature {
		x := window.Feature{Name: fmt.Sprint(fn, column, w), Column: column, Type: t, Function: fn, Window: w}
		switch fn {
		case window.TopK:
			x.K = 3
		case window.Quantile:
			x.Q = 0.5
		default:
		}
		return x
	}
	const day = 24 * time.Hour
	sets := map[string][]window.Feature{
		"sums": {
			f(window.Sum, "x", value.Float64, time.Hour), f(window.Count, "x", value.Float64, day), f(window.Mean, "x", value.Float64, day),
			f(window.Sum, "x", value.Float64, 7*day), f(window.Max, "x", value.Float64, 7*day),
		},
		"all": {
			f(window.Std, "x", value.Float64, day), f(window.Min, "x", value.Float64, time.Hour), f(window.Last, "s", value.String, day),
			f(window.ApproxDistinct, "s", value.String, 7*day), f(window.TopK, "s", value.String, 7*day), f(window.Quantile, "x", value.Float64, 7*day),
		},
	}
	for _, name := range []string{"sums", "all"} {
		for _, entities := range []int{10_000, 100} {
			b.Run(fmt.Sprint(name, "/", entities), func(b *testing.B) {
				spine, view := events(entities, 500_000/entities, 200_000)
				for b.Loop() {
					b.StopTimer()
					rows, purchases := spine.reader(b, 32<<10), view.reader(b, 32<<10)
					v := eventsView(b, view, 1, sets[name]...)
					v.Open = func(context.Context) (array.RecordReader, error) { return purchases, nil }
					b.StartTimer()
					result, err := Join(b.Context(), Spine{func(context.Context) (array.RecordReader, error) { return rows, nil }, "at"}, []View{v}, Options{Dir: b.TempDir()})
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
				b.ReportMetric(float64(len(view.rows))*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}
