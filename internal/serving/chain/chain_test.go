package chain_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// model is a session of a function.
type model struct {
	meta   runtime.Metadata
	answer func(ctx context.Context, in []runtime.Tensor) ([]runtime.Tensor, error)
	asked  [][]string
	closed int
}

func (m *model) Metadata() runtime.Metadata { return m.meta }

func (m *model) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	m.asked = append(m.asked, outputs)
	if err := m.meta.Check(in); err != nil {
		return nil, err
	}
	all, err := m.answer(ctx, in)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		at := slices.IndexFunc(all, func(t runtime.Tensor) bool { return t.Name == name })
		out[i] = all[at]
	}
	return out, nil
}

func (m *model) Close() error { m.closed++; return nil }

func of(name string, d runtime.Datatype, shape ...int64) runtime.Spec {
	return runtime.Spec{Name: name, Datatype: d, Shape: shape}
}

// linear gives p [-1,2], 1-s and s, for X [-1,3], of which s is the mean; and class,
// whether s is over a half.
func linear() *model {
	return &model{
		meta: runtime.Metadata{Platform: "test", Inputs: []runtime.Spec{of("X", runtime.FP32, -1, 3)}, Outputs: []runtime.Spec{of("class", runtime.Int64, -1), of("p", runtime.FP32, -1, 2)}},
		answer: func(_ context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
			x := in[0].Data.([]float32)
			n := len(x) / 3
			class, p := make([]int64, n), make([]float32, 2*n)
			for i := range n {
				s := (x[3*i] + x[3*i+1] + x[3*i+2]) / 3
				if s > 0.5 {
					class[i] = 1
				}
				p[2*i], p[2*i+1] = 1-s, s
			}
			return []runtime.Tensor{
				{Name: "class", Datatype: runtime.Int64, Shape: []int64{int64(n)}, Data: class},
				{Name: "p", Datatype: runtime.FP32, Shape: []int64{int64(n), 2}, Data: p},
			}, nil
		},
	}
}

// scaler halves x [-1,1] into y.
func scaler() *model {
	return &model{
		meta: runtime.Metadata{Inputs: []runtime.Spec{of("x", runtime.FP32, -1, 1)}, Outputs: []runtime.Spec{of("y", runtime.FP32, -1, 1), of("extra", runtime.FP32, -1, 1)}},
		answer: func(_ context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
			x := in[0].Data.([]float32)
			y := make([]float32, len(x))
			for i, v := range x {
				if math.IsNaN(float64(v)) {
					return nil, fault.New(fault.Invalid, "a missing value")
				}
				y[i] = v / 2
			}
			return []runtime.Tensor{{Name: "y", Datatype: runtime.FP32, Shape: in[0].Shape, Data: y}, {Name: "extra", Datatype: runtime.FP32, Shape: in[0].Shape, Data: y}}, nil
		},
	}
}

// full is a chain of all kinds of steps.
func full() chain.Spec {
	return chain.Spec{
		Inputs: []chain.InputSpec{{Name: "temp", Datatype: runtime.FP64}, {Name: "carrier", Datatype: runtime.Bytes}, {Name: "hour", Datatype: runtime.Int32}},
		Before: []chain.StepSpec{
			{Compute: map[string]string{"warm": "(temp - 10.0) / 10.0", "code": "{'AA': 1, 'UA': 2}[carrier]"}},
			{Tensor: &chain.TensorSpec{Name: "w", Datatype: runtime.FP32, From: []string{"warm"}}},
			{Model: "scaler", Inputs: map[string]string{"x": "w"}, Outputs: map[string]string{"y": "half"}},
			{Tensor: &chain.TensorSpec{Name: "X", Datatype: runtime.FP32, From: []string{"half", "code", "hour"}}},
		},
		After: []chain.StepSpec{
			{Compute: map[string]string{"label": "['on time', 'late'][class]", "sure": "math.softmax(p)[math.argmax(p)]", "over": "p[1] > 0.75"}},
		},
		Outputs: []string{"label", "over", "sure", "hour"},
	}
}

func texts(name string, v ...string) runtime.Tensor {
	return runtime.Tensor{Name: name, Datatype: runtime.Bytes, Shape: []int64{int64(len(v))}, Data: v}
}

func doubles(name string, v ...float64) runtime.Tensor {
	return runtime.Tensor{Name: name, Datatype: runtime.FP64, Shape: []int64{int64(len(v))}, Data: v}
}

func hours(v ...int32) runtime.Tensor {
	return runtime.Tensor{Name: "hour", Datatype: runtime.Int32, Shape: []int64{int64(len(v))}, Data: v}
}

func made(t *testing.T, s chain.Spec, models ...runtime.Session) *chain.Session {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := chain.New(s, models[0], models[1:])
	if err != nil {
		t.Fatalf("%v (%s)", err, fault.HintOf(err))
	}
	return c
}

func TestChain(t *testing.T) {
	main, scale := linear(), scaler()
	c := made(t, full(), main, scale)
	v := c.Visible()
	if got := fmt.Sprint(v.Inputs, v.Outputs, c.Seen()); got != "[{temp FP64 [-1] false []} {carrier BYTES [-1] false []} {hour INT32 [-1] false []}] [{label BYTES [-1] false []} {over BOOL [-1] false []} {sure FP64 [-1] false []} {hour INT32 [-1] false []}] [X]" {
		t.Errorf("it says %s", got)
	}
	if got := fmt.Sprint(c.Columns()); got != "map[X:[half.0 code hour]]" && got != "map[X:[half code hour]]" {
		t.Errorf("columns %s", got)
	}
	in := []runtime.Tensor{doubles("temp", 20, 30), texts("carrier", "UA", "AA"), hours(0, -3)}
	out, err := c.Infer(t.Context(), in, []string{"label", "over", "hour", "X", "p"})
	if err != nil {
		t.Fatal(err)
	}
	late, early := float32(2.5)/3, float32(-1)/3
	got := make([]any, len(out))
	for i := range out {
		got[i] = out[i].Data
	}
	if s := fmt.Sprint(got...); s != fmt.Sprint([]string{"late", "on time"}, []bool{true, false}, []int32{0, -3}, []float32{0.5, 2, 0, 1, 1, -3}, []float32{1 - late, late, 1 - early, early}) {
		t.Errorf("answered %s", s)
	}
	if s := fmt.Sprint(scale.asked, main.asked); s != "[[y]] [[class p]]" {
		t.Errorf("the models were asked for %s", s)
	}
	// What nobody wants is not computed: neither the model, nor what would fail.
	in[1] = texts("carrier", "??", "??")
	if out, err = c.Infer(t.Context(), in, []string{"half"}); err != nil || !slices.Equal(out[0].Data.([]float32), []float32{0.5, 1}) || len(main.asked) != 1 {
		t.Errorf("%v %v, the model was asked %d times", out, err, len(main.asked))
	}
	if err := c.Close(); err != nil || main.closed != 1 || scale.closed != 1 {
		t.Errorf("closed %d and %d times, %v", main.closed, scale.closed, err)
	}
}

func TestRowsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*chain.Spec)
		in      []runtime.Tensor
		kind    fault.Kind
		refused bool
		says    []string
	}{
		"a key that is not there": {
			in:   []runtime.Tensor{doubles("temp", 1, 2), texts("carrier", "AA", "secret"), hours(1, 2)},
			kind: fault.Invalid, refused: true, says: []string{"before[0]", "code of row 1"},
		},
		"division by zero": {
			change: func(s *chain.Spec) { s.Before[0].Compute["code"] = "10 / hour + size(carrier)" },
			in:     []runtime.Tensor{doubles("temp", 1, 2), texts("carrier", "AA", "AA"), hours(0, 2)},
			kind:   fault.Invalid, refused: true, says: []string{"before[0]", "code of row 0"},
		},
		"null that has no form": {
			change: func(s *chain.Spec) { s.Before[0].Compute["code"] = "carrier != '' && hour > 1 ? hour : null" },
			in:     []runtime.Tensor{doubles("temp", 1, 2), texts("carrier", "AA", "AA"), hours(2, 1)},
			kind:   fault.Invalid, refused: true, says: []string{"before[0]", "code of row 1 is null"},
		},
		"a model that is a step": {
			in:   []runtime.Tensor{doubles("temp", math.NaN()), texts("carrier", "AA"), hours(1)},
			kind: fault.Invalid, refused: true, says: []string{"before[2]", "a missing value"},
		},
		"no whole number": {
			change: func(s *chain.Spec) {
				s.Before = append(s.Before, chain.StepSpec{Tensor: &chain.TensorSpec{Name: "n", Datatype: runtime.Int32, From: []string{"temp"}}})
				s.Outputs = append(s.Outputs, "n")
			},
			in:   []runtime.Tensor{doubles("temp", 1, 1.5), texts("carrier", "AA", "AA"), hours(1, 1)},
			kind: fault.Invalid, refused: true, says: []string{"before[4]", `column "temp" of row 1`},
		},
		"after the model": {
			change: func(s *chain.Spec) { s.After[0].Compute["label"] = "['late'][class]" },
			in:     []runtime.Tensor{doubles("temp", 20, 30), texts("carrier", "AA", "UA"), hours(-5, 20)},
			kind:   fault.Invalid, says: []string{"after[0]", "label of row 1"},
		},
		"rows that do not agree": {
			in:   []runtime.Tensor{doubles("temp", 1, 2), texts("carrier", "AA"), hours(1, 2)},
			kind: fault.Invalid, refused: true, says: []string{"before[0]", `"carrier" has 1 rows, other inputs have 2`},
		},
		"a text that is too long": {
			change: func(s *chain.Spec) {
				s.Before[0].Compute["long"] = "carrier + carrier"
				s.Outputs = append(s.Outputs, "long")
			},
			in:   []runtime.Tensor{doubles("temp", 1), texts("carrier", strings.Repeat("A", 10_000)), hours(1)},
			kind: fault.Invalid, refused: true, says: []string{"before[0]", "row 0"},
		},
		"too much would be spent": {
			change: func(s *chain.Spec) {
				s.Before[0].Compute["code"] = strings.Repeat("carrier.matches('(U|A)*A') && ", 9) + "carrier != '' ? 1 : 2"
			},
			in:   []runtime.Tensor{doubles("temp", make([]float64, 60_000)...), texts("carrier", slices.Repeat([]string{"A"}, 60_000)...), hours(make([]int32, 60_000)...)},
			kind: fault.TooLarge, refused: true, says: []string{"before[0]", "60000 rows may cost"},
		},
		"too much is made": {
			change: func(s *chain.Spec) {
				s.Before[0].Compute["code"], s.Before[0].Compute["long"] = "1", "carrier + carrier"
				s.Outputs = append(s.Outputs, "long")
			},
			in: []runtime.Tensor{
				doubles("temp", make([]float64, 40_000)...), texts("carrier", slices.Repeat([]string{strings.Repeat("A", 8_000)}, 40_000)...), hours(make([]int32, 40_000)...),
			},
			kind: fault.TooLarge, refused: true, says: []string{"before[0]", "256 MiB"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := full()
			if c.change != nil {
				c.change(&s)
			}
			x := made(t, s, linear(), scaler())
			_, err := x.Infer(t.Context(), c.in, s.Outputs)
			if !fault.Is(err, c.kind) || chain.Refused(err) != c.refused {
				t.Errorf("%v, refused %v", err, chain.Refused(err))
			}
			for _, word := range c.says {
				if err != nil && !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells a value: %v", err)
			}
		})
	}
}

func TestWhatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*chain.Spec)
		says   string
	}{
		"unknown tensor":     {func(s *chain.Spec) { s.Before[1].Tensor.From = []string{"wram"} }, `spec.before[1]: tensor.from: no tensor or column "wram" exists`},
		"unknown name":       {func(s *chain.Spec) { s.Before[0].Compute["warm"] = "tmp" }, "spec.before[0]: compute.warm: line 1, column 1: undeclared reference to 'tmp'"},
		"not yet there":      {func(s *chain.Spec) { s.Before[0].Compute["warm"] = "p[1]" }, "undeclared reference to 'p'"},
		"types that mix":     {func(s *chain.Spec) { s.Before[0].Compute["warm"] = "temp + hour" }, "no matching overload"},
		"a list":             {func(s *chain.Spec) { s.After[0].Compute["label"] = "p" }, "its value is list<float64>"},
		"a model's datatype": {func(s *chain.Spec) { s.Before[1].Tensor.Datatype = runtime.FP64 }, `"w" is FP64 [-1 1], but input "x" needs FP32 [-1 1]`},
		"the model's shape":  {func(s *chain.Spec) { s.Before[3].Tensor.From = []string{"half", "code"} }, `spec.model: the model: "X" is FP32 [-1 2], but input "X" needs FP32 [-1 3]`},
		"a name twice":       {func(s *chain.Spec) { s.Before[0].Compute["temp"] = "1.0" }, `"temp" already exists`},
		"made by the model":  {func(s *chain.Spec) { s.After[0].Compute["p"] = "1.0" }, `"p" already exists`},
		"a cycle":            {func(s *chain.Spec) { s.Before[1], s.Before[3] = s.Before[3], s.Before[1] }, `no tensor or column "half" exists`},
		"text into numbers":  {func(s *chain.Spec) { s.Before[3].Tensor.From[1] = "carrier" }, `"carrier" is BYTES, which cannot be converted to FP32`},
		"unknown output":     {func(s *chain.Spec) { s.Outputs = []string{"lable"} }, `spec.outputs: tensor "lable" does not exist`},
		"used by nobody": {
			func(s *chain.Spec) {
				s.Inputs = append(s.Inputs, chain.InputSpec{Name: "wind", Datatype: runtime.FP64})
			}, `"wind" is unused`,
		},
		"no such input of a model":  {func(s *chain.Spec) { s.Before[2].Inputs = map[string]string{"z": "w"} }, `model scaler has no input "z"`},
		"no such output of a model": {func(s *chain.Spec) { s.Before[2].Outputs = map[string]string{"z": "half"} }, `model scaler has no output "z"`},
		"no CEL name":               {func(s *chain.Spec) { s.Before[0].Compute["a-b"] = "1" }, "cannot be used in an expression"},
		"no datatype":               {func(s *chain.Spec) { s.Inputs[0].Datatype = "FLOAT" }, "unknown datatype"},
		"two in one":                {func(s *chain.Spec) { s.Before[0].Model = "m" }, "a step has exactly one of"},
		"none":                      {func(s *chain.Spec) { s.Before[0] = chain.StepSpec{} }, "a step has exactly one of"},
		"many steps":                {func(s *chain.Spec) { s.After = slices.Repeat(s.After, 40) }, "exceed the limit of 32"},
		"many expressions": {
			func(s *chain.Spec) {
				for i := range 300 {
					s.After[0].Compute[fmt.Sprintf("x%d", i)] = "1"
				}
			}, "exceed the limit of 256",
		},
		"costs": {func(s *chain.Spec) {
			s.After[0].Compute["label"] = strings.Repeat("carrier + ", 90) + "carrier == carrier ? 'a' : 'b'"
		}, "over the limit of 100000"},
		"inputs of nothing": {func(s *chain.Spec) { s.Before, s.After = nil, nil }, "with steps before or after"},
		"columns":           {func(s *chain.Spec) { s.Inputs[0].Columns = []string{"a", "b"} }, "2 names do not match the shape []"},
	} {
		t.Run(name, func(t *testing.T) {
			s := full()
			c.change(&s)
			err := s.Validate()
			if err == nil {
				_, err = chain.New(s, linear(), []runtime.Session{scaler()})
			}
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// Columns of a tensor that a request brings have names; a model's own input that no step
// makes is asked of the request.
func TestColumnsOfATensor(t *testing.T) {
	s := chain.Spec{
		Inputs: []chain.InputSpec{{Name: "F", Datatype: runtime.FP64, Shape: []int64{-1, 2}, Columns: []string{"weather:temp", "distance"}}},
		Before: []chain.StepSpec{
			{Compute: map[string]string{"sum": "weather__temp + distance + F[1]"}},
			{Tensor: &chain.TensorSpec{Name: "X", Datatype: runtime.FP32, From: []string{"sum", "F"}}},
		},
	}
	c := made(t, s, linear())
	in := []runtime.Tensor{{Name: "F", Datatype: runtime.FP64, Shape: []int64{2, 2}, Data: []float64{1, 2, 3, 4}}}
	out, err := c.Infer(t.Context(), in, []string{"X"})
	if err != nil || !slices.Equal(out[0].Data.([]float32), []float32{5, 1, 2, 11, 3, 4}) {
		t.Fatalf("%+v %v", out, err)
	}
	if got := c.Columns()["X"]; !slices.Equal(got, []string{"sum", "weather:temp", "distance"}) {
		t.Errorf("columns %v", got)
	}
	if got := fmt.Sprint(c.Visible().Outputs); got != "[{class INT64 [-1] false []} {p FP32 [-1 2] false []}]" {
		t.Errorf("outputs %s", got)
	}
	after := made(t, chain.Spec{After: []chain.StepSpec{{Compute: map[string]string{"late": "p[1] > 0.5"}}}}, linear())
	if got := fmt.Sprint(after.Visible()); got != "{test [{X FP32 [-1 3] false []}] [{class INT64 [-1] false []} {p FP32 [-1 2] false []} {late BOOL [-1] false []}] []}" {
		t.Errorf("it says %s", got)
	}
}

// A model that takes one row of a time is not batched, although the columns vary.
func TestModelsOfFixedRows(t *testing.T) {
	m := linear()
	m.meta.Inputs[0].Shape = []int64{1, 3}
	if c := made(t, full(), m, scaler()); c.MaxRows() != 1 {
		t.Errorf("runs have %d rows", c.MaxRows())
	}
	if c := made(t, full(), linear(), scaler()); c.MaxRows() != 0 {
		t.Errorf("runs have %d rows at most", c.MaxRows())
	}
}

func TestTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	slow := scaler()
	was := slow.answer
	slow.answer = func(ctx context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
		cancel()
		return was(ctx, in)
	}
	main := linear()
	c := made(t, full(), main, slow)
	in := []runtime.Tensor{doubles("temp", 20), texts("carrier", "UA"), hours(0)}
	if _, err := c.Infer(ctx, in, []string{"label"}); !fault.Is(err, fault.Timeout) || len(main.asked) != 0 {
		t.Errorf("%v, and the model was asked %d times", err, len(main.asked))
	}
	// What a model says of its process is known to who asked the chain.
	over := make(chan struct{})
	main.answer = func(context.Context, []runtime.Tensor) ([]runtime.Tensor, error) {
		return nil, fault.New(fault.Unavailable, "gone: %w", errors.Join(runtime.ErrEnded, runtime.LingersError{Over: over}))
	}
	c = made(t, full(), main, scaler())
	if _, err := c.Infer(t.Context(), in, []string{"label"}); !errors.Is(err, runtime.ErrEnded) || runtime.Over(err) == nil || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

// A chain is batched where its rows do not depend on each other, and is not where they do.
func TestTried(t *testing.T) {
	s := full()
	s.Before[0].Compute["code"] = "size(carrier)" // a made-up carrier has no code
	cores := batching.NewCores(1)
	if v := batching.Try(t.Context(), cores, made(t, s, linear(), scaler()), batching.Options{}); v.May == batching.No {
		t.Errorf("%+v", v)
	}
	mixes := scaler()
	was := mixes.answer
	mixes.answer = func(ctx context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
		out, err := was(ctx, in)
		if err == nil {
			y := out[0].Data.([]float32)
			for i := range y {
				y[i] += float32(len(y))
			}
		}
		return out, err
	}
	if v := batching.Try(t.Context(), cores, made(t, s, linear(), mixes), batching.Options{}); v.May != batching.No {
		t.Errorf("%+v", v)
	}
}

// BenchmarkChain is what a row costs beside its models.
func BenchmarkChain(b *testing.B) {
	c, err := chain.New(full(), linear(), []runtime.Session{scaler()})
	if err != nil {
		b.Fatal(err)
	}
	for _, rows := range []int{1, 64} {
		in := []runtime.Tensor{doubles("temp", make([]float64, rows)...), texts("carrier", slices.Repeat([]string{"AA"}, rows)...), hours(make([]int32, rows)...)}
		b.Run(strconv.Itoa(rows), func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Infer(b.Context(), in, []string{"label", "over", "sure", "hour"}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
		})
	}
}

// narrow is a model that takes so many runs at the same time.
type narrow struct {
	*model
	runs int
}

func (n narrow) Runs() int { return n.runs }

// TestRuns: a chain takes as many runs as the model that takes the fewest.
func TestRuns(t *testing.T) {
	for want, models := range map[int][]runtime.Session{
		0: {linear(), scaler()},
		3: {narrow{linear(), 3}, scaler()},
		2: {narrow{linear(), 3}, narrow{scaler(), 2}},
	} {
		if got := made(t, full(), models...).Runs(); got != want {
			t.Errorf("it takes %d runs, want %d", got, want)
		}
	}
}

// TestRowsInAnyOrder: what a request is told does not depend on the order of its inputs,
// also when they do not agree on how many rows there are.
func TestRowsInAnyOrder(t *testing.T) {
	c := made(t, full(), linear(), scaler())
	for what, in := range map[string][]runtime.Tensor{
		"two, one, two":   {doubles("temp", 1, 2), texts("carrier", "AA"), hours(1, 2)},
		"one, two, two":   {doubles("temp", 1), texts("carrier", "AA", "UA"), hours(1, 2)},
		"two, two, three": {doubles("temp", 1, 2), texts("carrier", "AA", "UA"), hours(1, 2, 3)},
		"two":             {doubles("temp", 1, 2), texts("carrier", "AA", "UA"), hours(1, 2)},
	} {
		said := map[string]bool{}
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			out, err := c.Infer(t.Context(), []runtime.Tensor{in[order[0]], in[order[1]], in[order[2]]}, []string{"label", "sure"})
			said[fmt.Sprint(out, err)] = true
		}
		if len(said) != 1 {
			t.Errorf("%s rows: %v", what, said)
		}
	}
}

// TestOptionalInputs: an input of a model that has a default is what something before the
// model makes of that name, or what the step says, and else the default.
func TestOptionalInputs(t *testing.T) {
	shifting := func() *model {
		return &model{
			meta: runtime.Metadata{
				Platform: "test", Inputs: []runtime.Spec{of("X", runtime.FP32, -1)}, Optional: []runtime.Spec{of("shift", runtime.FP64, -1)}, Outputs: []runtime.Spec{of("y", runtime.FP64, -1)},
			},
			answer: func(_ context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
				y := 100.0
				if len(in) == 2 {
					y = in[1].Data.([]float64)[0]
				}
				return []runtime.Tensor{{Name: "y", Datatype: runtime.FP64, Shape: []int64{1}, Data: []float64{y}}}, nil
			},
		}
	}
	x := []chain.InputSpec{{Name: "X", Datatype: runtime.FP32, Shape: []int64{-1}}}
	compute := func(name string) []chain.StepSpec {
		return []chain.StepSpec{{Compute: map[string]string{name: "X + 1.0"}}}
	}
	for name, c := range map[string]struct {
		spec chain.Spec
		want float64
	}{
		"its default":  {chain.Spec{Inputs: x, Before: compute("other")}, 100},
		"made before":  {chain.Spec{Inputs: x, Before: compute("shift")}, 5},
		"of a request": {chain.Spec{Inputs: append(slices.Clip(x), chain.InputSpec{Name: "shift", Datatype: runtime.FP64, Shape: []int64{-1}}), Before: compute("other")}, 7},
	} {
		s := made(t, c.spec, shifting())
		in := []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{4}}}
		if len(s.Metadata().Inputs) == 2 {
			in = append(in, runtime.Tensor{Name: "shift", Datatype: runtime.FP64, Shape: []int64{1}, Data: []float64{7}})
		}
		out, err := s.Infer(t.Context(), in, []string{"y"})
		if err != nil || out[0].Data.([]float64)[0] != c.want || len(s.Metadata().Optional) != 0 {
			t.Errorf("%s: %+v %v", name, out, err)
		}
	}
}
