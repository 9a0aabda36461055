package window

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

var equal = gocmp.Comparer(func(a, b value.Value) bool { return a.Equal(b) && a.Type() == b.Type() })

// naive is the rule, read off the package comment. It shares no code with what it
// checks. Large sets are compared with a tolerance by their own tests.
func naive(rows []Row, f Feature, in int, at int64) value.Value {
	var all []Row
	for _, r := range rows {
		if r.Event <= at && r.Event > before(at, f.Window.Microseconds()) && r.Created <= at {
			all = append(all, r)
		}
	}
	if f.Column == "" {
		return value.OfInt(int64(len(all)))
	}
	all = slices.DeleteFunc(all, func(r Row) bool { return r.Values[in].IsNull() })
	less := func(a, b value.Value) int {
		switch a.Type() {
		case value.Float64:
			x, y := a.Float(), b.Float()
			switch {
			case math.IsNaN(x) && math.IsNaN(y) || x == y:
				return 0
			case math.IsNaN(x) || x > y:
				return 1
			}
			return -1
		case value.String:
			return strings.Compare(a.Str(), b.Str())
		default:
			return cmp.Compare(a.Int(), b.Int())
		}
	}
	zero := func(v value.Value) value.Value {
		if v.Type() == value.Float64 && v.Float() == 0 {
			return value.OfFloat(0)
		}
		return v
	}
	byTime := func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Created, b.Created), less(a.Values[in], b.Values[in]))
	}
	byValue := func(a, b Row) int { return less(a.Values[in], b.Values[in]) }
	floats := func() (out []float64) {
		for _, r := range all {
			if f.Type == value.Int64 {
				out = append(out, float64(r.Values[in].Int()))
			} else {
				out = append(out, r.Values[in].Float())
			}
		}
		return out
	}
	exactSum := func() (sum, squares *big.Rat, odd float64) {
		sum, squares = new(big.Rat), new(big.Rat)
		for _, r := range all {
			x := new(big.Rat)
			if f.Type == value.Int64 {
				x.SetInt64(r.Values[in].Int())
			} else if x.SetFloat64(r.Values[in].Float()) == nil {
				odd += r.Values[in].Float()
				continue
			}
			sum.Add(sum, x)
			squares.Add(squares, x.Mul(x, x))
		}
		return sum, squares, odd
	}
	n := len(all)
	null := value.Null(f.Result())
	switch f.Function {
	case Count:
		return value.OfInt(int64(n))
	case ApproxDistinct:
		seen := map[string]bool{}
		for _, r := range all {
			seen[zero(r.Values[in]).String()] = true
		}
		return value.OfInt(int64(len(seen)))
	default:
		if n == 0 {
			return null
		}
	}
	switch f.Function {
	case Min:
		return zero(slices.MinFunc(all, byValue).Values[in])
	case Max:
		return zero(slices.MaxFunc(all, byValue).Values[in])
	case First:
		return zero(slices.MinFunc(all, byTime).Values[in])
	case Last:
		return zero(slices.MaxFunc(all, byTime).Values[in])
	case Quantile:
		x := floats()
		slices.SortFunc(x, func(a, b float64) int { return less(value.OfFloat(a), value.OfFloat(b)) })
		return zero(value.OfFloat(x[max(int(math.Ceil(f.Q*float64(n))), 1)-1]))
	case TopK:
		counts, example := map[string]int{}, map[string]value.Value{}
		for _, r := range all {
			v := zero(r.Values[in])
			counts[v.String()]++
			example[v.String()] = v
		}
		names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), less(example[a], example[b]))
		})
		list := []value.Value{}
		for _, s := range names[:min(f.K, len(names))] {
			list = append(list, example[s])
		}
		b, err := json.Marshal(list)
		if err != nil {
			panic(err)
		}
		return value.OfString(string(b))
	default:
	}
	sum, squares, odd := exactSum()
	special := math.IsNaN(odd) || math.IsInf(odd, 0)
	switch {
	case f.Function == Sum && f.Type == value.Int64:
		if !sum.Num().IsInt64() {
			return null
		}
		return value.OfInt(sum.Num().Int64())
	case f.Function == Sum && special, f.Function == Mean && special:
		return value.OfFloat(odd)
	case f.Function == Sum:
		return value.OfFloat(nearestOf(sum))
	case f.Function == Mean:
		return value.OfFloat(nearestOf(sum.Quo(sum, new(big.Rat).SetInt64(int64(n)))))
	case n < 2:
		return null
	case special:
		return value.OfFloat(math.NaN())
	}
	count := new(big.Rat).SetInt64(int64(n))
	v := squares.Mul(squares, count)
	v.Sub(v, sum.Mul(sum, sum))
	v.Quo(v, count.SetInt64(int64(n)*int64(n-1)))
	if f.Function == Std {
		return value.OfFloat(rootOf(v))
	}
	return value.OfFloat(nearestOf(v))
}

func naiveAll(p *Plan, rows []Row, at int64) []value.Value {
	out := make([]value.Value, len(p.features))
	for i := range p.features {
		in := -1
		if f := p.features[i]; f.Column != "" {
			in = slices.Index(p.inputs, Input{f.Column, f.Type})
		}
		out[i] = naive(rows, p.features[i].Feature, in, at)
	}
	return out
}

// shelf is Records in memory.
type shelf map[[3]int64][]byte

func (s shelf) put(r Record) { s[[3]int64{int64(r.Level), r.Event, r.Created}] = slices.Clone(r.State) }

func (s shelf) Span(_ context.Context, level int, from, to int64, visit func(event, created int64, state []byte) (bool, error)) error {
	var keys [][3]int64
	for k := range s {
		if k[0] == int64(level) && k[1] >= from && k[1] <= to {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b [3]int64) int { return cmp.Or(cmp.Compare(b[1], a[1]), cmp.Compare(b[2], a[2])) })
	for _, k := range keys {
		if more, err := visit(k[1], k[2], s[k]); err != nil || !more {
			return err
		}
	}
	return nil
}

func packed(tb testing.TB, r Row) []byte {
	tb.Helper()
	b, err := value.AppendRow(nil, r.Values)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func byTime(tb testing.TB) func(a, b Row) int {
	tb.Helper()
	return func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Created, b.Created), bytes.Compare(packed(tb, a), packed(tb, b)))
	}
}

// tiled is the records of a backfill.
func tiled(tb testing.TB, p *Plan, rows []Row) shelf {
	tb.Helper()
	s := shelf{}
	t := p.NewTiler(func(r Record) error {
		if _, twice := s[[3]int64{int64(r.Level), r.Event, r.Created}]; twice {
			tb.Errorf("record %d %d %d comes twice", r.Level, r.Event, r.Created)
		}
		s.put(r)
		return nil
	})
	for _, r := range slices.SortedFunc(slices.Values(rows), byTime(tb)) {
		if err := t.Add(r.Event, r.Created, packed(tb, r)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := t.End(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// folded is the records of a stream: rows in their order, some at a time.
func folded(tb testing.TB, p *Plan, rows []Row, some int) shelf {
	tb.Helper()
	s := shelf{}
	for batch := range slices.Chunk(rows, some) {
		records, err := p.Aggregate(tb.Context(), s, batch)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range records {
			s.put(r)
		}
	}
	return s
}

func grown(tb testing.TB, p *Plan, rows []Row) *Tree {
	tb.Helper()
	t := p.NewTree()
	for _, r := range rows {
		if err := t.Insert(r.Event, r.Created, packed(tb, r)); err != nil {
			tb.Fatal(err)
		}
	}
	return t
}

// drawPlan is some features of few columns over short windows.
func drawPlan(t *rapid.T) *Plan {
	types := []value.Type{value.Int64, value.Float64, value.String, value.Bool, value.Timestamp}
	var fs []Feature
	for i := range rapid.IntRange(1, 8).Draw(t, "features") {
		f := Feature{
			Name: fmt.Sprint("f", i), Function: rapid.SampledFrom(Functions()).Draw(t, "function"),
			Window: time.Duration(rapid.SampledFrom([]int{1, 2, 5, 40, 300, 2000}).Draw(t, "window")) * time.Microsecond,
		}
		f.Type = rapid.SampledFrom(types).Draw(t, "type")
		if f.Function.numeric() {
			f.Type = rapid.SampledFrom(types[:2]).Draw(t, "number")
		}
		f.Column = "c_" + f.Type.String()
		if f.Function == Count && rapid.Bool().Draw(t, "rows") {
			f.Column, f.Type = "", 0
		}
		if f.Function == TopK {
			f.K = rapid.IntRange(1, 4).Draw(t, "k")
		}
		if f.Function == Quantile {
			f.Q = rapid.SampledFrom([]float64{0.01, 0.25, 0.5, 0.9, 0.999}).Draw(t, "q")
		}
		fs = append(fs, f)
	}
	p, err := NewPlan(fs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawValue(t *rapid.T, typ value.Type) value.Value {
	n := rapid.IntRange(0, 9).Draw(t, "value")
	if n == 0 {
		return value.Null(typ)
	}
	switch typ {
	case value.Int64:
		return value.OfInt([]int64{0, 0, 1, -1, 2, 3, math.MaxInt64, math.MinInt64, 7, 1 << 40}[n])
	case value.Float64:
		return value.OfFloat([]float64{0, math.Copysign(0, -1), 0.1, -0.1, 1e16, 1e-300, -math.MaxFloat64, 5e-324, math.NaN(), math.Inf(n%2*2 - 1)}[n])
	case value.Bool:
		return value.OfBool(n%2 == 0)
	case value.Timestamp:
		return value.OfMicros(int64(n) - 5)
	default:
		return value.OfString([]string{"", "", "a", "b", "<", "é", "\x00", "ab", "c", "d"}[n])
	}
}

func drawRows(t *rapid.T, p *Plan, most, span int) []Row {
	var rows []Row
	late := rapid.Bool().Draw(t, "created times")
	for range rapid.IntRange(0, most).Draw(t, "rows") {
		r := Row{Event: int64(rapid.IntRange(-span/4, span).Draw(t, "event")), Created: NoCreated}
		if late && rapid.IntRange(0, 3).Draw(t, "created") > 0 {
			r.Created = r.Event + int64(rapid.IntRange(-3, span/3).Draw(t, "late"))
		}
		for _, typ := range p.types {
			r.Values = append(r.Values, drawValue(t, typ))
		}
		rows = append(rows, r)
	}
	return rows
}

// boundaries are the times at which an answer may change, and their neighbours.
func boundaries(p *Plan, rows []Row) []int64 {
	var out []int64
	for _, r := range rows {
		for _, t := range append([]int64{0}, p.windows...) {
			for d := int64(-1); d <= 1; d++ {
				out = append(out, r.Event+t+d)
				if r.Created != NoCreated {
					out = append(out, r.Created+d)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Backfill, stream and recomputation agree, at every boundary, whatever the order
// in which rows come.
func TestAllWaysAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPlan(rt)
		rows := drawRows(rt, p, 40, rapid.SampledFrom([]int{8, 400, 6000}).Draw(rt, "span"))
		arrival := rapid.Permutation(rows).Draw(rt, "arrival")
		backfill := tiled(t, p, rows)
		stream := folded(t, p, arrival, rapid.IntRange(1, 7).Draw(rt, "at once"))
		if diff := gocmp.Diff(backfill, stream); diff != "" {
			rt.Fatalf("records of the stream are not those of the backfill:\n%s", diff)
		}
		tree := grown(t, p, arrival)
		reader := p.NewReader()
		got := make([]value.Value, len(p.features))
		for _, at := range boundaries(p, rows) {
			want := naiveAll(p, rows, at)
			if err := tree.At(at, got); err != nil {
				rt.Fatal(err)
			}
			if diff := gocmp.Diff(want, got, equal); diff != "" {
				rt.Fatalf("tree at %d (-want +got):\n%s", at, diff)
			}
			clear(got)
			newest, found, err := reader.At(context.Background(), stream, at, minTime, got)
			if err != nil {
				rt.Fatal(err)
			}
			wantNewest, wantFound := int64(0), false
			for _, r := range rows {
				if r.Event <= at && r.Created <= at && (!wantFound || r.Event > wantNewest) {
					wantNewest, wantFound = r.Event, true
				}
			}
			if found != wantFound || newest != wantNewest {
				rt.Fatalf("newest at %d: %d %v, want %d %v", at, newest, found, wantNewest, wantFound)
			}
			if !found {
				continue
			}
			if diff := gocmp.Diff(want, got, equal); diff != "" {
				rt.Fatalf("records at %d (-want +got):\n%s", at, diff)
			}
			if _, _, err := reader.At(context.Background(), stream, at, newest+1, got); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// The pass of a training set: rows enter when they are known, and are forgotten.
func TestForgottenRowsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPlan(rt)
		rows := drawRows(rt, p, 300, 6000)
		slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(max(a.Event, a.Created), max(b.Event, b.Created)) })
		times := boundaries(p, rows)
		times = slices.DeleteFunc(times, func(int64) bool { return rapid.IntRange(0, 9).Draw(rt, "asked") > 0 })
		tree := p.NewTree()
		got := make([]value.Value, len(p.features))
		next := 0
		for _, at := range times {
			for ; next < len(rows) && max(rows[next].Event, rows[next].Created) <= at; next++ {
				if rows[next].Event <= at-p.Longest() {
					continue
				}
				if err := tree.Insert(rows[next].Event, rows[next].Created, packed(t, rows[next])); err != nil {
					rt.Fatal(err)
				}
			}
			tree.Forget(at - p.Longest())
			if err := tree.At(at, got); err != nil {
				rt.Fatal(err)
			}
			if diff := gocmp.Diff(naiveAll(p, rows, at), got, equal); diff != "" {
				rt.Fatalf("at %d (-want +got):\n%s", at, diff)
			}
		}
		tree.Forget(math.MaxInt64)
		if tree.Bytes() != 0 {
			rt.Fatalf("an empty tree holds %d bytes", tree.Bytes())
		}
	})
}

// The worked example: {10, 20, 100, −5, 3, 7} by the hour, two hours of which
// count.
func TestWorkedExample(t *testing.T) {
	hour := time.Hour.Microseconds()
	var fs []Feature
	for _, f := range []Function{Sum, Count, Mean, Min, Max, Std, Var, First, Last} {
		fs = append(fs, Feature{Name: string(f), Column: "x", Type: value.Float64, Function: f, Window: 2 * time.Hour})
	}
	p, err := NewPlan(fs)
	if err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for i, x := range []float64{10, 20, 100, -5, 3, 7} {
		rows = append(rows, Row{Event: int64(i+1) * hour, Created: NoCreated, Values: []value.Value{value.OfFloat(x)}})
	}
	got := make([]value.Value, len(fs))
	if _, _, err := p.NewReader().At(t.Context(), tiled(t, p, rows), 6*hour, minTime, got); err != nil {
		t.Fatal(err)
	}
	want := []value.Value{
		value.OfFloat(10), value.OfInt(2), value.OfFloat(5), value.OfFloat(3), value.OfFloat(7),
		value.OfFloat(math.Sqrt(8)), value.OfFloat(8), value.OfFloat(3), value.OfFloat(7),
	}
	if diff := gocmp.Diff(want, got, equal); diff != "" {
		t.Error(diff)
	}
}

var millions = flag.Bool("millions", false, "run TestManyEvents with three million events, in some minutes")

// A stream of many events of some entities, with late ones and whole bursts at the
// same time: every way gives the same at boundaries, and each so often it is
// computed anew from all rows. With -millions large sets pass their exact limits.
func TestManyEvents(t *testing.T) {
	events, entities, asked := 10_000, 2, 120
	if *millions {
		events, entities, asked = 3_000_000, 10, 2000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	p, err := NewPlan([]Feature{
		{Name: "n", Function: Count, Window: time.Minute},
		{Name: "sum", Column: "x", Type: value.Float64, Function: Sum, Window: time.Minute},
		{Name: "mean", Column: "x", Type: value.Float64, Function: Mean, Window: time.Hour},
		{Name: "std", Column: "x", Type: value.Float64, Function: Std, Window: time.Hour},
		{Name: "min", Column: "x", Type: value.Float64, Function: Min, Window: time.Hour},
		{Name: "max", Column: "x", Type: value.Float64, Function: Max, Window: 24 * time.Hour},
		{Name: "var", Column: "i", Type: value.Int64, Function: Var, Window: 24 * time.Hour},
		{Name: "first", Column: "i", Type: value.Int64, Function: First, Window: time.Hour},
		{Name: "last", Column: "i", Type: value.Int64, Function: Last, Window: time.Minute},
		{Name: "distinct", Column: "s", Type: value.String, Function: ApproxDistinct, Window: 24 * time.Hour},
		{Name: "top", Column: "s", Type: value.String, Function: TopK, Window: time.Hour, K: 5},
		{Name: "median", Column: "x", Type: value.Float64, Function: Quantile, Window: 24 * time.Hour, Q: 0.5},
	})
	if err != nil {
		t.Fatal(err)
	}
	loose := map[string]float64{"distinct": 0.1, "median": 1. / 127} // once the sets are large
	for range entities {
		n := events / entities
		span := 48 * time.Hour.Microseconds()
		rows := make([]Row, n)
		for i := range rows {
			r := Row{Event: rnd.Int64N(span), Created: NoCreated}
			if i > 0 && rnd.IntN(20) == 0 {
				r.Event = rows[i-1].Event
			}
			if rnd.IntN(2) == 0 {
				r.Created = r.Event + int64(rnd.ExpFloat64()*float64(time.Minute.Microseconds()))
			}
			r.Values = []value.Value{
				value.OfFloat(math.Exp(rnd.NormFloat64()*3) * float64(rnd.IntN(3)-1)), value.OfInt(rnd.Int64N(1000)),
				value.OfString(fmt.Sprint("s", int(math.Abs(rnd.NormFloat64())*float64(rnd.IntN(4000))))),
			}
			rows[i] = r
		}
		sorted := slices.SortedFunc(slices.Values(rows), func(a, b Row) int {
			return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Created, b.Created))
		})
		backfill := &sortedShelf{}
		tiler := p.NewTiler(backfill.put)
		tree := p.NewTree()
		for i := range rows {
			if err := tiler.Add(sorted[i].Event, sorted[i].Created, packed(t, sorted[i])); err != nil {
				t.Fatal(err)
			}
			if err := tree.Insert(rows[i].Event, rows[i].Created, packed(t, rows[i])); err != nil { // as they come
				t.Fatal(err)
			}
		}
		if err := tiler.End(); err != nil {
			t.Fatal(err)
		}
		stream := &sortedShelf{}
		if !*millions { // a fold looks up and writes each record
			for batch := range slices.Chunk(rows, 100) {
				records, err := p.Aggregate(t.Context(), stream, batch)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range records {
					if err := stream.put(r); err != nil {
						t.Fatal(err)
					}
				}
			}
		} else {
			stream = backfill
		}
		reader := p.NewReader()
		fromTree, fromRecords := make([]value.Value, len(p.features)), make([]value.Value, len(p.features))
		for i := range asked / entities {
			r := rows[rnd.IntN(n)]
			at := max(r.Event, r.Created*int64(rnd.IntN(2))) + append([]int64{0}, p.windows...)[rnd.IntN(len(p.windows)+1)] + int64(rnd.IntN(3)) - 1
			if err := tree.At(at, fromTree); err != nil {
				t.Fatal(err)
			}
			known := slices.ContainsFunc(rows, func(r Row) bool { return r.Event <= at && r.Created <= at })
			_, found, err := reader.At(t.Context(), stream, at, minTime, fromRecords)
			if err != nil || found != known {
				t.Fatalf("at %d: found %v, of rows known by then %v, %v", at, found, known, err)
			}
			if !known {
				continue
			}
			if diff := gocmp.Diff(fromTree, fromRecords, equal); diff != "" {
				t.Fatalf("at %d: tree and records differ:\n%s", at, diff)
			}
			if i%20 > 0 {
				continue
			}
			for f, want := range naiveAll(p, window(sorted, at, p.Longest()), at) {
				got := fromTree[f]
				if name := p.features[f].Name; loose[name] > 0 {
					if a, b := number(want), number(got); math.Abs(a-b) > loose[name]*math.Abs(a) {
						t.Errorf("at %d: %s is %v, want about %v", at, name, b, a)
					}
					continue
				}
				if p.features[f].Function == TopK && got.IsNull() {
					continue // more than maxTop
				}
				if !got.Equal(want) {
					t.Errorf("at %d: %s is %v, want %v", at, p.features[f].Name, got, want)
				}
			}
		}
	}
}

func number(v value.Value) float64 {
	if v.Type() == value.Int64 {
		return float64(v.Int())
	}
	return v.Float()
}

// window cuts what may count out of sorted rows.
func window(sorted []Row, at, longest int64) []Row {
	cut := func(t int64) int {
		i, _ := slices.BinarySearchFunc(sorted, t, func(r Row, t int64) int { return cmp.Compare(r.Event, t) })
		return i
	}
	return sorted[cut(at-longest):cut(at+1)]
}

// sortedShelf is Records in memory, sorted.
type sortedShelf struct {
	levels [8][]Record // newest first once sorted
	sorted bool
}

func newest(a, b Record) int {
	return cmp.Or(cmp.Compare(b.Event, a.Event), cmp.Compare(b.Created, a.Created))
}

func (s *sortedShelf) put(r Record) error {
	r.State = slices.Clone(r.State)
	level := s.levels[r.Level]
	if n := len(level); !s.sorted && (n == 0 || newest(level[n-1], r) > 0) {
		s.levels[r.Level] = append(level, r) // ascending, as a tiler gives them
		return nil
	}
	s.sort()
	at, there := slices.BinarySearchFunc(s.levels[r.Level], r, newest)
	if there {
		s.levels[r.Level][at] = r
		return nil
	}
	s.levels[r.Level] = slices.Insert(s.levels[r.Level], at, r)
	return nil
}

func (s *sortedShelf) sort() {
	if !s.sorted {
		for _, l := range s.levels {
			slices.Reverse(l)
		}
		s.sorted = true
	}
}

func (s *sortedShelf) Span(_ context.Context, level int, from, to int64, visit func(event, created int64, state []byte) (bool, error)) error {
	s.sort()
	l := s.levels[level]
	at, _ := slices.BinarySearchFunc(l, Record{Event: to, Created: math.MaxInt64}, newest)
	for ; at < len(l) && l[at].Event >= from; at++ {
		if more, err := visit(l[at].Event, l[at].Created, l[at].State); err != nil || !more {
			return err
		}
	}
	return nil
}

// Sums do not depend on the order, where adding floats does.
func TestSumsAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		floats := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float64 {
			return math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		}), 0, 50).Draw(rt, "floats")
		floats = slices.DeleteFunc(floats, func(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) })
		var one, two, other, squares exact
		want, wantSquares := new(big.Rat), new(big.Rat)
		for i, f := range floats {
			one.addFloat(f)
			squares.addSquare(f)
			if i%2 == 0 {
				two.addFloat(f)
			} else {
				other.addFloat(f)
			}
			if rapid.IntRange(0, 5).Draw(rt, "carry") == 0 {
				one.load = maxLoad // as after very many
				squares.carry()
			}
			x := new(big.Rat)
			x.SetFloat64(f)
			want.Add(want, x)
			wantSquares.Add(wantSquares, x.Mul(x, x))
		}
		two.merge(&other)
		w, _ := want.Float64()
		if a, b := one.float(), two.float(); a != w || b != w {
			rt.Fatalf("%v: sums %v and %v, want %v", floats, a, b, w)
		}
		if !bytes.Equal(one.append(nil), two.append(nil)) {
			rt.Fatal("the same sum has two forms")
		}
		if s, _ := wantSquares.Float64(); squares.float() != s {
			rt.Fatalf("%v: squares %v, want %v", floats, squares.float(), s)
		}
		if len(floats) > 1 {
			n := new(big.Rat).SetInt64(int64(len(floats)))
			v := wantSquares.Mul(wantSquares, n)
			v.Sub(v, want.Mul(want, want))
			v.Quo(v, n.SetInt64(int64(len(floats)*(len(floats)-1))))
			if w, _ := v.Float64(); variance(int64(len(floats)), &one, &squares) != w {
				rt.Fatalf("%v: variance %v, want %v", floats, variance(int64(len(floats)), &one, &squares), w)
			}
			if w := rootOf(v); deviation(int64(len(floats)), &one, &squares) != w {
				rt.Fatalf("%v: deviation %v, want %v", floats, deviation(int64(len(floats)), &one, &squares), w)
			}
		}
		if len(floats) > 0 {
			exact := sumOf(floats)
			exact.Quo(exact, new(big.Rat).SetInt64(int64(len(floats))))
			if w := nearestOf(exact); mean(int64(len(floats)), &one) != w {
				rt.Fatalf("%v: mean %v, want %v", floats, mean(int64(len(floats)), &one), w)
			}
		}
	})
}

func sumOf(floats []float64) *big.Rat {
	sum := new(big.Rat)
	for _, f := range floats {
		sum.Add(sum, new(big.Rat).SetFloat64(f))
	}
	return sum
}

func nearestOf(x *big.Rat) float64 {
	f, _ := x.Float64()
	return f
}

// rootOf is the float64 nearest to the square root: 5,000 bits are more than any of a
// float64's squares has.
func rootOf(x *big.Rat) float64 {
	f, _ := new(big.Float).Sqrt(new(big.Float).SetPrec(5000).SetRat(x)).Float64()
	return f
}

// Where a sum or a square leaves the range of a float64, and where a result is rounded twice.
func TestMeansAndDeviationsAreRoundedOnce(t *testing.T) {
	for _, c := range []struct {
		values          []float64
		mean, deviation float64
	}{
		{[]float64{1.7e308, 1.7e308}, 1.7e308, 0},
		{[]float64{-1.7e308, -1.7e308, -1.7e308}, -1.7e308, 0},
		{[]float64{0.1, 0.2, 0.3}, 0.2, 0.09999999999999999},
		{[]float64{1e200, 3e200}, 2e200, 1.414213562373095e200},
		{[]float64{3e-200, 9e-200}, 6e-200, 4.2426406871192855e-200},
		{[]float64{5e-324, 5e-324, 0}, 5e-324, 5e-324},
		{[]float64{1 << 53, 1, 1, 1}, 1<<51 + 1, 4503599627370495.5},
		{[]float64{math.MaxFloat64, -math.MaxFloat64}, 0, math.Inf(1)},
	} {
		var sum, squares exact
		for _, x := range c.values {
			sum.addFloat(x)
			squares.addSquare(x)
		}
		n := int64(len(c.values))
		if got := mean(n, &sum); got != c.mean {
			t.Errorf("mean of %v: %v, want %v", c.values, got, c.mean)
		}
		exact := new(big.Rat)
		for _, x := range c.values {
			d := new(big.Rat).SetFloat64(x)
			d.Sub(d, new(big.Rat).Quo(sumOf(c.values), new(big.Rat).SetInt64(n)))
			exact.Add(exact, d.Mul(d, d))
		}
		want := rootOf(exact.Quo(exact, new(big.Rat).SetInt64(n-1)))
		if got := deviation(n, &sum, &squares); got != want || got != c.deviation {
			t.Errorf("deviation of %v: %v, want %v and %v", c.values, got, want, c.deviation)
		}
	}
}

// Equal sets have equal bytes, however they were put together, and bytes read
// back are the state.
func TestStatesAreFunctionsOfTheirRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	p, err := NewPlan([]Feature{
		{Name: "d", Column: "s", Type: value.String, Function: ApproxDistinct, Window: time.Hour},
		{Name: "t", Column: "s", Type: value.String, Function: TopK, Window: time.Hour, K: 3},
		{Name: "q", Column: "x", Type: value.Float64, Function: Quantile, Window: time.Hour, Q: 0.5},
		{Name: "v", Column: "x", Type: value.Float64, Function: Var, Window: time.Hour},
		{Name: "l", Column: "s", Type: value.String, Function: Last, Window: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, different := range []int{3, 400, 512, 513, 700, 1024, 1025, 4096, 4097, 9000} {
		var rows []Row
		for i := range different + different/2 {
			n := i % different
			rows = append(rows, Row{Event: int64(rnd.IntN(50)), Created: NoCreated, Values: []value.Value{
				value.OfString(fmt.Sprint(strings.Repeat("x", n%3*150), n)), value.OfFloat((float64(n) - 100) * 1.37),
			}})
		}
		whole := p.NewState()
		for _, r := range rows {
			whole.Add(r)
		}
		want := whole.Append(nil)
		for range 3 {
			rnd.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
			if got := together(p, rnd, rows).Append(nil); !bytes.Equal(want, got) {
				t.Errorf("%d different values: other bytes in another order", different)
			}
		}
		back := p.NewState()
		if err := back.Decode(want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, back.Append(nil)) {
			t.Errorf("%d different values: read back they are others", different)
		}
		out := make([]value.Value, len(p.features))
		p.results(back, 0, out)
		if n := out[0].Int(); different <= maxHashes && int(n) != different || math.Abs(float64(int(n)-different)) > 0.1*float64(different) {
			t.Errorf("%d different values are counted as %d", different, n)
		}
		if tooMany := different > maxTop; out[1].IsNull() != tooMany {
			t.Errorf("topk of %d different values: %v", different, out[1])
		}
		median := naive(rows, p.features[2].Feature, 1, 60)
		if a, b := median.Float(), out[2].Float(); math.Abs(a-b) > math.Abs(a)/128 || different <= maxExact && a != b {
			t.Errorf("median of %d different values: %v, want %v", different, b, a)
		}
	}
}

// together adds and merges in a random tree.
func together(p *Plan, rnd *rand.Rand, rows []Row) *State {
	s := p.NewState()
	if len(rows) < 3 || rnd.IntN(4) == 0 {
		for _, r := range rows {
			s.Add(r)
		}
		return s
	}
	at := rnd.IntN(len(rows))
	s.Merge(together(p, rnd, rows[:at]))
	s.Merge(together(p, rnd, rows[at:]))
	return s
}

func TestBucketsOfOddNumbers(t *testing.T) {
	b := &buckets{}
	for i := range 3000 {
		b.add(value.OfFloat(float64(i)), 0, 0)
		b.add(normal(value.OfFloat(-float64(i))), 0, 0)
	}
	for range 6000 {
		b.add(value.OfFloat(math.Inf(1)), 0, 0)
		b.add(value.OfFloat(math.Inf(-1)), 0, 0)
		b.add(normal(value.OfFloat(math.NaN())), 0, 0)
	}
	if b.shift == 0 {
		t.Fatal("the buckets are exact")
	}
	for q, want := range map[float64]float64{0.1: math.Inf(-1), 0.375: 0, 0.6: math.Inf(1), 0.9: math.NaN()} {
		if got := b.quantile(q); !value.OfFloat(got).Equal(value.OfFloat(want)) && math.Abs(got-want) > 1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	for k := range uint64(1000) {
		f := math.Float64frombits(k * 0x0123_4567_89ab_cdef)
		if math.IsNaN(f) || math.IsInf(f, 0) || math.Abs(f) < 1e-300 {
			continue
		}
		for shift := range uint(coarsest + 1) {
			c := buckets{shift: shift}
			if got := c.middle(ordered(f) >> shift); math.Abs(got-f) > math.Abs(f)/128 {
				t.Errorf("%v counts as %v without %d bits", f, got, shift)
			}
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	good := Feature{Name: "f", Column: "x", Type: value.Float64, Function: Sum, Window: time.Hour}
	for want, change := range map[string]func(*Feature){
		"there is no function":          func(f *Feature) { f.Function = "mode" },
		"sum requires a column":         func(f *Feature) { f.Column = "" },
		"has a type and no column":      func(f *Feature) { f.Function, f.Column = Count, "" },
		"type of column \"x\" is miss":  func(f *Feature) { f.Type = 0 },
		"sum requires a number":         func(f *Feature) { f.Type = value.String },
		"a window of 0s":                func(f *Feature) { f.Window = 0 },
		"a window of 1.5µs":             func(f *Feature) { f.Window = 1500 },
		"k is 0":                        func(f *Feature) { f.Function = TopK },
		"k is valid only with topk":     func(f *Feature) { f.K = 1 },
		"q is 1":                        func(f *Feature) { f.Function, f.Q = Quantile, 1 },
		"q is NaN":                      func(f *Feature) { f.Function, f.Q = Quantile, math.NaN() },
		"q is valid only with quantile": func(f *Feature) { f.Q = 0.5 },
	} {
		f := good
		change(&f)
		if _, err := NewPlan([]Feature{f}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", f, err, want)
		}
	}
	if _, err := NewPlan(nil); err == nil {
		t.Error("a plan of nothing is made")
	}
	var many []Feature
	for i := range MaxWindows + 1 {
		f := good
		f.Window = time.Duration(i+1) * time.Hour
		many = append(many, f)
	}
	if _, err := NewPlan(many); err == nil || !strings.Contains(err.Error(), "different windows") {
		t.Errorf("too many windows: %v", err)
	}
}

func TestLevels(t *testing.T) {
	for _, c := range []struct {
		shortest, longest time.Duration
		want              []int64
	}{
		{time.Microsecond, time.Microsecond, []int64{2}},
		{time.Hour, time.Hour, []int64{1 << 23, 1 << 28}},
		{time.Minute, 30 * 24 * time.Hour, []int64{1 << 17, 1 << 22, 1 << 27, 1 << 32, 1 << 37}},
	} {
		if got := levels(c.shortest.Microseconds(), c.longest.Microseconds()); !slices.Equal(got, c.want) {
			t.Errorf("%s to %s: %v, want %v", c.shortest, c.longest, got, c.want)
		}
	}
}

// A decoded state encodes to the very bytes it came from.
func FuzzDecode(f *testing.F) {
	var fs []Feature
	for _, fn := range Functions() {
		for _, typ := range []value.Type{value.Float64, value.String} {
			if fn.numeric() && typ == value.String {
				continue
			}
			x := Feature{Name: "f", Column: "c_" + typ.String(), Type: typ, Function: fn, Window: time.Hour}
			if fn == TopK {
				x.K = 3
			}
			if fn == Quantile {
				x.Q = 0.5
			}
			fs = append(fs, x)
		}
	}
	p, err := NewPlan(fs)
	if err != nil {
		f.Fatal(err)
	}
	s := p.NewState()
	f.Add(s.Append(nil))
	for i := range 3 {
		s.Add(Row{Event: int64(i), Created: int64(i), Values: []value.Value{value.OfFloat(-0.1 * float64(i)), value.OfString(strconv.Itoa(i))}})
		f.Add(s.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := p.NewState()
		if s.Decode(b) != nil {
			return
		}
		if again := s.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes, and encodes to %x", b, again)
		}
		out := make([]value.Value, len(fs))
		p.results(s, 0, out)
		s.Merge(s)
		s.Append(nil)
	})
}
