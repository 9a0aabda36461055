package feature_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// featureTypes are one of each kind that a feature may have.
var featureTypes = []value.Type{
	value.Int64, value.Int32, value.Float64, value.Float32, value.String, value.Bool, value.Timestamp,
	value.VectorOf(2), value.ListOf(value.String, 3), value.ListOf(value.Int32, 2), value.ListOf(value.Timestamp, 2), value.ListOf(value.Float64, 4), value.ListOf(value.Bool, 1),
}

// drawOf draws few values of a type, so that rows tie.
func drawOf(t *rapid.T, of value.Type) value.Value {
	n := rapid.IntRange(0, 2).Draw(t, "value")
	if !of.Scalar() {
		if of.IsVector() {
			n = of.Length()
		}
		var elements []value.Value
		for range min(n, of.Length()) {
			elements = append(elements, drawOf(t, of.Elem()))
		}
		return list(t, of, elements...)
	}
	switch of {
	case value.Int64:
		return value.OfInt([]int64{0, 1 << 62, -1}[n])
	case value.Int32:
		return value.OfInt32([]int32{0, 1<<31 - 1, -1 << 31}[n])
	case value.Float64:
		return num([]float64{0, 1e300, -0.1}[n])
	case value.Float32:
		return value.OfFloat32([]float32{0, 0.1, 1e38}[n])
	case value.Bool:
		return value.OfBool(n == 1)
	case value.Timestamp:
		return ts(float64(n))
	default:
		return str([]string{"", "y", "☃"}[n])
	}
}

func list(tb interface{ Fatal(...any) }, of value.Type, elements ...value.Value) value.Value {
	v, err := value.OfList(of, elements)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// products is a world with a view of every type over products, whose key is an int32.
func products(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	words, vector := value.ListOf(value.String, 2), value.VectorOf(2)
	single := value.OfFloat32
	w.data.put("products", table{
		[]col{{"product", value.Int32}, {"time", value.Timestamp}, {"stock", value.Int32}, {"price", value.Float32}, {"tags", words}, {"embedding", vector}},
		[][]value.Value{
			{value.OfInt32(1), ts(0), value.OfInt32(1<<31 - 1), single(0.1), list(t, words, str("new"), str("")), list(t, vector, single(1), single(-0.5))},
			{value.OfInt32(1), ts(1), value.OfInt32(-7), single(16777217), list(t, words), null},
			{value.OfInt32(2), ts(0), null, null, null, list(t, vector, single(0), single(0))},
		},
	})
	w.entity("product", "int32")
	w.view("products", productSpec())
	return w
}

func productSpec() feature.ViewSpec {
	return feature.ViewSpec{
		Source: feature.Source{Dataset: "products"}, Entities: []string{"product"}, Timestamp: "time",
		Features: []feature.FieldSpec{
			{Name: "stock", Type: "int32"}, {Name: "price", Type: "float32"}, {Name: "tags", Type: "list<string>(2)"}, {Name: "embedding", Type: "vector(2)"},
		},
	}
}

// What is materialised, pushed and trained on is of the type that was declared, and
// the same.
func TestTypes(t *testing.T) {
	w := products(t)
	run := w.mustMaterialise("products", w.now)
	if run.Rows != 3 {
		t.Errorf("%d rows", run.Rows)
	}
	product := func(ids ...any) (out []map[string]any) {
		for _, id := range ids {
			out = append(out, map[string]any{"product": id})
		}
		return out
	}
	all := []string{"products:*"}
	expect(t, w.ask(at(0.5), all, product(1, "2", 3)...), []string{
		`2147483647/PRESENT | 0.1/PRESENT | ["new",""]/PRESENT | [1.0,-0.5]/PRESENT`,
		`NULL/NULL_VALUE | NULL/NULL_VALUE | NULL/NULL_VALUE | [0.0,0.0]/PRESENT`,
		`NULL/NOT_FOUND | NULL/NOT_FOUND | NULL/NOT_FOUND | NULL/NOT_FOUND`,
	})
	_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: all}, Entities: product(1 << 31)})
	refused(t, err, fault.Invalid, "2147483648 is not an int32", "join key product")

	w.data.put("spine", table{[]col{{"product", value.Int32}, {"at", value.Timestamp}}, [][]value.Value{
		{value.OfInt32(1), ts(0.5)}, {value.OfInt32(1), ts(1)}, {value.OfInt32(2), ts(9)},
	}})
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
		Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: all},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, w.data.show(t, set.Dataset), []string{
		"product, at, stock, price, tags, embedding",
		`1, 2013-01-01T00:30:00Z, 2147483647, 0.1, ["new",""], [1.0,-0.5]`,
		"1, 2013-01-01T01:00:00Z, -7, 1.6777216e+07, [], NULL",
		"2, 2013-01-01T09:00:00Z, NULL, NULL, NULL, [0.0,0.0]",
	})
	report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
	if err != nil || report.Mismatches != 0 || report.Rows != 3 {
		t.Errorf("%+v, %v", report, err)
	}

	row := func(change func(map[string][]any)) map[string][]any {
		columns := map[string][]any{
			"product": {3}, "time": {at(2)}, "stock": {int64(5)}, "price": {0.25}, "tags": {[]any{"a"}}, "embedding": {[]any{1.0, 2.0}},
		}
		change(columns)
		return columns
	}
	push := func(change func(map[string][]any)) error {
		_, err := w.Push(w.ctx, feature.PushRequest{Project: nyc, View: "products", Columns: row(change)})
		return err
	}
	if err := push(func(map[string][]any) {}); err != nil {
		t.Fatal(err)
	}
	expect(t, w.ask(at(3), all, product(3)...), []string{`5/PRESENT | 0.25/PRESENT | ["a"]/PRESENT | [1.0,2.0]/PRESENT`})
	for words, change := range map[string]func(map[string][]any){
		`column "stock": 2147483648 is not an int32`:                     func(c map[string][]any) { c["stock"] = []any{int64(1) << 31} },
		`column "price": 1e+39 is not a float32`:                         func(c map[string][]any) { c["price"] = []any{1e39} },
		`column "tags": a list has 3 elements`:                           func(c map[string][]any) { c["tags"] = []any{[]any{"a", "b", "c"}} },
		`column "tags": element 2: this is not a string`:                 func(c map[string][]any) { c["tags"] = []any{[]any{"a", nil}} },
		`column "embedding": a vector has 1 dimensions instead of the 2`: func(c map[string][]any) { c["embedding"] = []any{[]any{1.0}} },
		`column "product": 1099511627776 is not an int32`:                func(c map[string][]any) { c["product"] = []any{int64(1) << 40} },
		`column "embedding": "[1,2]" is not a vector(2)`:                 func(c map[string][]any) { c["embedding"] = []any{"[1,2]"} },
		`column "stock": 1.5 is not an int32`:                            func(c map[string][]any) { c["stock"] = []any{1.5} },
		`column "embedding": element 1: true is not a float32`:           func(c map[string][]any) { c["embedding"] = []any{[]any{true, 1.0}} },
		`column "stock": a list is not an int32`:                         func(c map[string][]any) { c["stock"] = []any{[]any{1.0}} },
		`column "price": 16777217 is not a float32`:                      func(c map[string][]any) { c["price"] = []any{int64(1<<24 + 1)} },
	} {
		refused(t, push(change), fault.Invalid, words)
	}
}

// A type that could not hold what the column may have is refused when it is applied.
func TestTypesRefused(t *testing.T) {
	w := products(t)
	w.data.put("wide", table{[]col{
		{"product", value.Int64}, {"time", value.Timestamp}, {"stock", value.Int64}, {"price", value.Float64}, {"tags", value.ListOf(value.Int64, 9)}, {"embedding", value.ListOf(value.Float64, 9)},
	}, nil})
	for words, change := range map[string]func(*feature.ViewSpec){
		`spec.entities: join key "product" is int32 in entity product@1, and the source's column is int64`: func(s *feature.ViewSpec) { s.Source.Dataset = "wide" },
		`column "stock" is int32, not float32`:                 func(s *feature.ViewSpec) { s.Features[0].Type = "float32" },
		`column "price" is float32, not int32`:                 func(s *feature.ViewSpec) { s.Features[1].Type = "int32" },
		`not list<int64>(2)`:                                   func(s *feature.ViewSpec) { s.Features[2].Type = "list<int64>(2)" },
		`column "stock" is int32, not vector(2)`:               func(s *feature.ViewSpec) { s.Features[0].Type = "vector(2)" },
		"spec.features[3].type: type \"vector\" has no length": func(s *feature.ViewSpec) { s.Features[3].Type = "vector" },
		"must be between 1 and 16384":                          func(s *feature.ViewSpec) { s.Features[3].Type = "vector(99999)" },
		"mask or pseudonym":                                    func(s *feature.ViewSpec) { s.Features[2].Protect = "pseudonym" },
		"aggregations support int64":                           aggregate,
	} {
		s := productSpec()
		s.Features = slices.Clone(s.Features)
		change(&s)
		_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "other"}, s)
		if words == "mask or pseudonym" {
			refused(t, err, fault.Invalid)
			continue
		}
		refused(t, err, fault.Invalid, words)
	}
	s := productSpec() // a wider one is what the column is, too
	s.Features = []feature.FieldSpec{{Name: "stock", Type: "int64"}, {Name: "price", Type: "float64"}, {Name: "embedding", Type: "list<float64>(8)"}}
	w.view("wider", s)
	w.mustMaterialise("wider", w.now)
	expect(t, w.ask(at(0.5), []string{"wider:*"}, map[string]any{"product": 1}), []string{"2147483647/PRESENT | 0.10000000149011612/PRESENT | [1.0,-0.5]/PRESENT"})

	// What only reading shows names the row.
	s = productSpec()
	s.Features = []feature.FieldSpec{{Name: "tags", Type: "list<string>(1)"}}
	w.view("short", s)
	if run := w.materialise("short", w.now); run.State == feature.Succeeded {
		t.Error("a list that is too long was materialised")
	}
	for _, typ := range []string{"float32", "vector(2)", "list<string>(2)"} {
		_, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: "x"}, feature.EntitySpec{Type: typ})
		refused(t, err, fault.Invalid, "cannot be a join key")
	}
}

// An event that a view cannot take is refused, or a dead letter: in the log it would hold up
// the view, and with it the stream, for ever.
func TestListsOfEvents(t *testing.T) {
	w := newWorld(t)
	words, floats := value.ListOf(value.String, value.MaxLength), value.ListOf(value.Float32, value.MaxLength)
	cols := []col{{"product", value.Int32}, {"time", value.Timestamp}, {"tags", words}, {"embedding", floats}}
	for n := range 17 {
		cols = append(cols, col{fmt.Sprint("more", n), floats})
	}
	w.data.declared["products"] = cols
	w.entity("product", "int32")
	spec := feature.ViewSpec{
		Source: feature.Source{Dataset: "products", Stream: &feature.StreamSpec{Push: &struct{}{}}}, Entities: []string{"product"}, Timestamp: "time",
		Features: []feature.FieldSpec{{Name: "tags", Type: "list<string>(16384)"}, {Name: "embedding", Type: "vector(2)"}},
	}
	w.view("products", spec)
	event := func(hours float64, embedding ...any) feature.Event {
		return feature.Event{"product": 1, "time": at(hours).Format(time.RFC3339Nano), "embedding": embedding}
	}
	push := func(keep bool, e feature.Event) (feature.EventsAnswer, error) {
		return w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "products", Events: []feature.Event{e}, Keep: keep})
	}
	accepted := func(e feature.Event) {
		t.Helper()
		if _, err := push(false, e); err != nil {
			t.Fatal(err)
		}
	}
	accepted(event(1, 1.0, 2.0))
	w.mustMaterialise("products", time.Time{})

	_, err := push(false, event(2, 1.0))
	refused(t, err, fault.Invalid, `column "embedding"`, "a vector has 1 dimensions instead of the 2")
	if a, err := push(true, event(2, 1.0)); err != nil || a.Accepted != 0 || a.Dead != 1 {
		t.Errorf("%+v %v", a, err)
	}
	full := event(2, 1.0, 2.0)
	many := make([]any, value.MaxLength)
	for i := range many {
		many[i] = 1.0
	}
	for n := range 17 {
		full[fmt.Sprint("more", n)] = many
	}
	_, err = push(false, full)
	refused(t, err, fault.Invalid, "over the limit of 262144")

	// Short texts count as what they take, however they come.
	short := event(3, 3.0, 4.0)
	texts := make([]any, 12_000)
	for i := range texts {
		texts[i] = "x"
	}
	short["tags"] = texts
	accepted(short)
	w.follow()
	read := func() string {
		return w.ask(at(4), []string{"products:embedding"}, map[string]any{"product": 1})[0]
	}
	expect(t, read(), "[3.0,4.0]/PRESENT")
	w.mustMaterialise("products", time.Time{})
	expect(t, read(), "[3.0,4.0]/PRESENT")

	// The other views that events are folded into have a say.
	longer := spec
	longer.Features = []feature.FieldSpec{{Name: "embedding", Type: "list<float32>(3)"}}
	w.view("longer", longer)
	pushLonger := func(e feature.Event) error {
		_, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "longer", Events: []feature.Event{e}})
		return err
	}
	refused(t, pushLonger(event(4, 1.0, 2.0, 3.0)), fault.Invalid, "products@1")
	if err := w.Clear(w.ctx, nyc, "products"); err != nil {
		t.Fatal(err)
	}
	if err := pushLonger(event(4, 1.0, 2.0, 3.0)); err != nil {
		t.Fatal(err)
	}
}

func aggregate(s *feature.ViewSpec) {
	s.Features, s.Aggregations = nil, []feature.AggregationSpec{{Name: "sold", Function: "sum", Column: "stock", Type: "int32", Window: "1h"}}
}

// Expressions are over lists, and their results are of the declared type.
func TestComputedTypes(t *testing.T) {
	w := products(t)
	w.mustMaterialise("products", w.now)
	w.service("shop", feature.ServiceSpec{
		Features: []string{"products:stock"}, Inputs: []string{"products:price", "products:tags", "products:embedding"},
		Request: []feature.RequestSpec{{Name: "wanted", Type: "list<string>(3)"}},
		Computed: []feature.ComputedSpec{
			{Name: "more", Type: "int32", Expression: "stock + 1"},
			{Name: "double_price", Type: "float32", Expression: "price * 2.0"},
			{Name: "is_new", Type: "bool", Expression: "'new' in tags"},
			{Name: "first", Type: "float64", Expression: "embedding[0]"},
			{Name: "pair", Type: "vector(2)", Expression: "[price, double_price]"},
			{Name: "words", Type: "list<string>(3)", Expression: "tags + wanted"},
			{Name: "n", Type: "int64", Expression: "size(wanted)"},
		},
	})
	ask := func(product int, wanted ...any) map[string]any {
		return map[string]any{"product": product, "wanted": wanted}
	}
	expect(t, w.read("shop", at(0.5), ask(1, "x"), ask(1, "x", "y"), ask(2, "z")), []string{
		`stock=2147483647/PRESENT more=NULL/INVALID double_price=0.2/PRESENT is_new=true/PRESENT first=1/PRESENT pair=[0.1,0.2]/PRESENT words=["new","","x"]/PRESENT n=1/PRESENT `,
		`stock=2147483647/PRESENT more=NULL/INVALID double_price=0.2/PRESENT is_new=true/PRESENT first=1/PRESENT pair=[0.1,0.2]/PRESENT words=NULL/INVALID n=2/PRESENT `,
		`stock=NULL/NULL_VALUE more=NULL/NULL_VALUE double_price=NULL/NULL_VALUE is_new=NULL/NULL_VALUE first=0/PRESENT pair=NULL/NULL_VALUE words=NULL/NULL_VALUE n=1/PRESENT `,
	})
}

// A float32 that comes as text is the nearest one, as it is of an event.
func TestFloat32OfText(t *testing.T) {
	w := products(t)
	w.mustMaterialise("products", w.now)
	w.service("near", feature.ServiceSpec{
		Features: []string{"products:stock"}, Request: []feature.RequestSpec{{Name: "x", Type: "float32"}},
		Computed: []feature.ComputedSpec{{Name: "same", Type: "float32", Expression: "x"}},
	})
	const between = "1.000000059604644775390626"
	expect(t, w.read("near", at(0.5), map[string]any{"product": 1, "x": between}), []string{"stock=2147483647/PRESENT same=1.0000001/PRESENT "})
}
