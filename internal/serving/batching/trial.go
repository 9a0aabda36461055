package batching

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// May is whether requests of a model are batched.
type May uint8

// The verdicts.
const (
	Untried May = iota // the first batches of real requests are compared with what each gets alone
	Yes
	No
)

// Verdict is whether requests of a model are batched, and why not.
type Verdict struct {
	May May
	Why string
}

// DefaultTolerance is how far the numbers of a row may be apart when it is answered
// alone and in a batch, in parts of the largest number of its column (see distance).
// Other sums of float32 differ by about a hundredth of it; what is of another row, or
// of a scale that all rows share, by much more.
const DefaultTolerance = 1e-4

// fixed says why a model's signature forbids batches; "" if it does not.
func fixed(m runtime.Metadata) string {
	if len(m.Inputs) == 0 || len(m.Outputs) == 0 {
		return "it has no inputs or no outputs"
	}
	for _, s := range slices.Concat(m.Inputs, m.Outputs) {
		if !varies(s) {
			return fmt.Sprintf("%q has no first dimension that varies", s.Name)
		}
	}
	return ""
}

func varies(s runtime.Spec) bool { return len(s.Shape) > 0 && s.Shape[0] < 0 }

// settled reports whether the first dimension does not vary, as far as is known.
func settled(s runtime.Spec) bool { return s.Shape != nil && !varies(s) }

// lengths are what is tried for dimensions that vary, beyond the first.
var lengths = []int64{8, 1, 64}

// maxTrial bounds the elements of an input that is made up.
const maxTrial = 1 << 22

// Try asks a model for made-up rows, each alone and together, and compares; each run
// waits for its cores as a request does. A model that does not take what was made up
// is Untried.
func Try(ctx context.Context, c *Cores, s runtime.Session, o Options) Verdict {
	meta, tolerance := s.Metadata(), o.Tolerance
	q := New(c, s, Options{MaxRows: 1, Threads: o.Threads, Project: o.Project}, Verdict{}, nil)
	ask := func(in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
		a, err := q.Infer(ctx, Request{Inputs: in, Outputs: outputs})
		return a.Outputs, err
	}
	if why := fixed(meta); why != "" {
		return Verdict{May: No, Why: why}
	}
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	outputs := make([]string, len(meta.Outputs))
	for i, o := range meta.Outputs {
		outputs[i] = o.Name
	}
	v := Verdict{Why: "it rejects all generated test inputs"}
	for _, length := range lengths {
		var alone [2][]runtime.Tensor
		members := make([]*request, 2)
		taken := true
		for i := range members { // one of a row, and one of two
			w := &request{Request: Request{Inputs: madeUp(meta.Inputs, i+1, length, uint64(i)), Outputs: outputs}, rows: i + 1}
			var err error
			if w.Inputs == nil {
				return v
			}
			if alone[i], err = ask(w.Inputs, outputs); err != nil {
				if ctx.Err() != nil {
					return Verdict{Why: "there was no time to test batching when it was loaded"}
				}
				if fault.Is(err, fault.Unavailable) { // it ended the process that runs it
					return v
				}
				taken = false
				break
			}
			members[i] = w
		}
		if !taken {
			continue
		}
		out, err := ask(gather(members, 3), outputs)
		if ctx.Err() != nil {
			return v
		}
		if err != nil {
			return Verdict{May: No, Why: "it takes one row and two rows, but not three"}
		}
		parts, why := split(out, members, 3)
		if why == "" {
			why = differs(alone[:], parts, tolerance)
		}
		if why != "" {
			return Verdict{May: No, Why: why}
		}
		if tells(alone[:]) {
			return Verdict{May: Yes}
		}
		v.Why = "it returns the same outputs for all generated test inputs"
	}
	return v
}

// madeUp are inputs of so many rows; nil when they would be too large.
func madeUp(specs []runtime.Spec, rows int, length int64, seed uint64) []runtime.Tensor {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it protects nothing
	out := make([]runtime.Tensor, len(specs))
	for i, s := range specs {
		shape := []int64{int64(rows)}
		for _, d := range s.Shape[1:] {
			if d < 0 {
				d = length
			}
			shape = append(shape, d)
		}
		n, err := runtime.Elements(shape)
		if err != nil || n > maxTrial {
			return nil
		}
		out[i] = runtime.Tensor{Name: s.Name, Datatype: s.Datatype, Shape: shape, Data: numbersOf(s.Datatype, n, r)}
		if out[i].Data == nil {
			return nil
		}
	}
	return out
}

func fill[T any](n int, f func() T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = f()
	}
	return out
}

// numbersOf are elements that most models take: whole numbers are 0 or 1, since
// they may be places in a table.
func numbersOf(d runtime.Datatype, n int, r *rand.Rand) any {
	bit := func() uint64 { return r.Uint64N(2) }
	switch d {
	case runtime.FP32:
		return fill(n, func() float32 { return float32(r.NormFloat64()) })
	case runtime.FP64:
		return fill(n, r.NormFloat64)
	case runtime.FP16:
		return fill(n, func() uint16 { return uint16(0x3800 + r.Uint32N(0x400)) }) //nolint:gosec // 0.5 to 1
	case runtime.BF16:
		return fill(n, func() uint16 { return uint16(math.Float32bits(float32(r.NormFloat64())) >> 16) })
	case runtime.Bool:
		return fill(n, func() bool { return bit() == 1 })
	case runtime.Int8:
		return fill(n, func() int8 { return int8(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Int16:
		return fill(n, func() int16 { return int16(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Int32:
		return fill(n, func() int32 { return int32(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Int64:
		return fill(n, func() int64 { return int64(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Uint8:
		return fill(n, func() uint8 { return uint8(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Uint16:
		return fill(n, func() uint16 { return uint16(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Uint32:
		return fill(n, func() uint32 { return uint32(bit()) }) //nolint:gosec // 0 or 1
	case runtime.Uint64:
		return fill(n, bit)
	case runtime.Bytes:
		return fill(n, func() string { return string('a' + r.Int32N(2)) })
	}
	return nil
}

// differs says how the answers of several requests differ from those in a batch by
// more than they may; "" if they do not. Numbers with fractions may be apart by the
// tolerance, those of 16 bits by two of their steps; all else is the same.
func differs(alone, batched [][]runtime.Tensor, tolerance float64) string {
	if len(alone) == 0 {
		return ""
	}
	for i, first := range alone[0] {
		var a, b []float64
		width := 1
		for n := range alone {
			x, y := alone[n][i], batched[n][i]
			if x.Datatype != y.Datatype || !slices.Equal(x.Shape, y.Shape) {
				return fmt.Sprintf("output %q has a different shape in a batch", x.Name)
			}
			f, g := floats(x), floats(y)
			if x.Datatype == runtime.Uint16 || f == nil {
				if !reflect.DeepEqual(x.Data, y.Data) {
					return fmt.Sprintf("output %q of a row differs in a batch", x.Name)
				}
				continue
			}
			if len(f) != len(g) {
				return fmt.Sprintf("output %q has a different number of elements in a batch", x.Name)
			}
			a, b = append(a, f...), append(b, g...)
			if len(x.Shape) > 0 && x.Shape[0] > 0 {
				width = max(1, len(f)/int(x.Shape[0]))
			}
		}
		allowed := tolerance
		switch first.Datatype {
		case runtime.FP16:
			allowed = max(allowed, 1.0/512)
		case runtime.BF16:
			allowed = max(allowed, 1.0/64)
		default:
		}
		if apart := distance(a, b, width); apart > allowed || math.IsNaN(apart) {
			return fmt.Sprintf("output %q of a row differs in a batch by %.2g of its column's largest number; batching.tolerance is %.2g", first.Name, apart, tolerance)
		}
	}
	return ""
}

// tells reports whether agreement with these answers says something: two of their
// rows are not alike in what is comparable, a finite number or anything but a number
// with fractions. A model whose rows are all NaN, or one constant, may mix them.
func tells(answers [][]runtime.Tensor) bool {
	for i := range answers[0] {
		var first reflect.Value
		for _, a := range answers {
			t := a[i]
			if len(t.Shape) == 0 || t.Shape[0] < 1 {
				continue
			}
			data := reflect.ValueOf(t.Data)
			if f := floats(t); f != nil && t.Datatype != runtime.Uint16 {
				data = reflect.ValueOf(f)
			}
			width := data.Len() / int(t.Shape[0])
			for at := 0; at+width <= data.Len() && width > 0; at += width {
				row := data.Slice(at, at+width)
				if !first.IsValid() {
					first = row
				} else if rowsTell(first, row) {
					return true
				}
			}
		}
	}
	return false
}

func rowsTell(a, b reflect.Value) bool {
	for i := range min(a.Len(), b.Len()) {
		x, y := a.Index(i), b.Index(i)
		if x.Equal(y) {
			continue
		}
		if !x.CanFloat() {
			return true
		}
		if apart := x.Float() - y.Float(); !math.IsNaN(apart) && !math.IsInf(apart, 0) {
			return true
		}
	}
	return false
}

// small is how much less than the largest number of the output that of a column may
// be until the column is held to be as large as that: by the default tolerance, what is
// below 4e-6 of the largest is what rounding leaves of sums of float32.
const small = 1.0 / 25

// distance is how far two arrays of rows are apart at most, in parts of the largest
// finite number of the first in the same column; infinite when one has a number where
// the other has none.
func distance(a, b []float64, width int) float64 {
	scales, apart, largest := make([]float64, width), make([]float64, width), 0.0
	for i, x := range a {
		y, at := b[i], i%width
		if size := math.Abs(x); !math.IsInf(x, 0) && !math.IsNaN(x) {
			scales[at], largest = max(scales[at], size), max(largest, size)
		}
		if x == y || math.IsNaN(x) && math.IsNaN(y) {
			continue
		}
		if math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
			return math.Inf(1)
		}
		apart[at] = max(apart[at], math.Abs(x-y))
	}
	worst := 0.0
	for at, d := range apart {
		if d > 0 {
			worst = max(worst, d/max(scales[at], small*largest))
		}
	}
	return worst
}

func floats(t runtime.Tensor) []float64 {
	switch d := t.Data.(type) {
	case []float64:
		return d
	case []float32:
		out := make([]float64, len(d))
		for i, x := range d {
			out[i] = float64(x)
		}
		return out
	case []uint16:
		out := make([]float64, len(d))
		for i, x := range d {
			if t.Datatype == runtime.BF16 {
				out[i] = float64(math.Float32frombits(uint32(x) << 16))
			} else {
				out[i] = half(x)
			}
		}
		return out
	}
	return nil
}

// half is an IEEE 754 binary16.
func half(x uint16) float64 {
	exponent, fraction := int(x>>10)&31, float64(x&1023)
	v := math.Ldexp(1024+fraction, exponent-25)
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		v = math.Inf(1)
		if fraction != 0 {
			v = math.NaN()
		}
	}
	if x>>15 == 1 {
		return -v
	}
	return v
}
