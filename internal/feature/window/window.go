// Package window aggregates events over sliding windows of event time, exactly:
// whoever computes a window, from whatever parts, gives the same bits. It knows
// neither Arrow nor a store.
//
// # Map
//
//   - Feature and Plan (this file): what is asked for, and what has to be kept to
//     answer it.
//   - State (state.go) is a mergeable summary of rows: an accumulator for each
//     column and function, in exact.go (sums), distinct.go, top.go and buckets.go
//     (quantiles), its binary form in codec.go.
//   - Tree (tree.go) holds the events of one entity in memory: training sets.
//   - Tiler, Reader and Plan.Aggregate (tiles.go) keep them in a store as points and
//     tiles of several widths: backfill, online reads, and rows that come one by
//     one.
//
// # The rule
//
// The value of a feature at time T is its function over the rows with
// T − window < event ≤ T and, where there is a created time, created ≤ T. Each
// row counts, also one that equals another. NULL values are left out, as in SQL:
// of no values count and approx_distinct are 0, everything else is NULL; var and
// std are those of a sample and NULL below two values. A NaN makes a sum, mean,
// var and std NaN, and is greater than every number for min, max and quantile.
// −0 is 0.
//
// If no row has event ≤ T (and created ≤ T), or the newest of them is older than
// the TTL, all features are NULL, counts as well.
//
// # Why it is exact
//
// A state is a function of the set of rows in it, not of the order in which they
// came or of how they were split: merging is associative and commutative to the
// bit. Sums are exact to the last bit and rounded once, when they are asked for.
// The summaries of large sets are chosen to be such functions, too, which the
// usual ones (space-saving, KLL) are not:
//
//   - approx_distinct is exact up to 512 values, then HyperLogLog with 4,096
//     registers: a standard error of 1.6 %.
//   - quantile is the least value whose rank is at least q·n: exact for up to
//     1,024 different values; with more, values count as the middle of a bucket of
//     at most 1/64 of their size, an error of at most 1/128 of the value.
//   - topk is exact for up to 4,096 different values in the window and NULL with
//     more. Ties go to the lesser value.
//
// Nothing is ever subtracted.
package window

import (
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Function of a window.
type Function string

// The functions.
const (
	Sum            Function = "sum"
	Count          Function = "count"
	Mean           Function = "mean"
	Min            Function = "min"
	Max            Function = "max"
	Std            Function = "std"
	Var            Function = "var"
	First          Function = "first"
	Last           Function = "last"
	ApproxDistinct Function = "approx_distinct"
	TopK           Function = "topk"
	Quantile       Function = "quantile"
)

// Functions lists them all.
func Functions() []Function {
	return []Function{Sum, Count, Mean, Min, Max, Std, Var, First, Last, ApproxDistinct, TopK, Quantile}
}

// numeric reports whether the function is of numbers only.
func (f Function) numeric() bool {
	return f == Sum || f == Mean || f == Std || f == Var || f == Quantile
}

// Feature is a function of a column over a window.
type Feature struct {
	Name     string
	Column   string     // may be empty for Count: rows are counted
	Type     value.Type // to read the column as; none without a column
	Function Function
	Window   time.Duration
	K        int     // of TopK
	Q        float64 // of Quantile
}

// Limits.
const (
	MaxK        = 50
	MaxFeatures = 512 // of a plan
	MaxWindows  = 16  // different ones of a plan
	MaxWindow   = 10 * 366 * 24 * time.Hour
	MaxLarge    = 16 // columns of approx_distinct, topk and quantile
)

// Result is the type of the feature's values.
func (f Feature) Result() value.Type {
	switch f.Function {
	case Count, ApproxDistinct:
		return value.Int64
	case Mean, Std, Var, Quantile:
		return value.Float64
	case TopK:
		return value.String
	default:
		return f.Type
	}
}

// Check refuses what no feature may be. Error: fault.Invalid.
func (f Feature) Check() error {
	bad := func(format string, args ...any) *fault.Error { return fault.New(fault.Invalid, format, args...) }
	switch {
	case !slices.Contains(Functions(), f.Function):
		return bad("there is no function %.80q", string(f.Function)).WithHint("The functions are %v.", Functions())
	case f.Column == "" && f.Function != Count:
		return bad("%s requires a column", f.Function)
	case f.Column == "" && f.Type != 0:
		return bad("it has a type and no column").WithHint("To count rows, omit the type.")
	case f.Column != "" && !f.Type.Valid():
		return bad("the type of column %.80q is missing", f.Column)
	case f.Type > value.Timestamp:
		return bad("column %q is read as %s, and aggregations support int64, float64, string, bool and timestamp", f.Column, f.Type).
			WithHint("Read an int32 as int64, and a float32 as float64, which keeps every value exact.")
	case f.Function.numeric() && f.Type != value.Int64 && f.Type != value.Float64:
		return bad("%s requires a number, and column %.80q is read as %s", f.Function, f.Column, f.Type)
	case f.Window < time.Microsecond || f.Window > MaxWindow || f.Window%time.Microsecond != 0:
		return bad("a window of %s is not between a microsecond and ten years in whole microseconds", f.Window)
	case f.Function == TopK && (f.K < 1 || f.K > MaxK):
		return bad("k is %d", f.K).WithHint("Set k between 1 and %d.", MaxK)
	case f.Function != TopK && f.K != 0:
		return bad("k is valid only with topk")
	case f.Function == Quantile && !(f.Q > 0 && f.Q < 1): // also NaN
		return bad("q is %v", f.Q).WithHint("Set q between 0 and 1, such as 0.5 for the median.")
	case f.Function != Quantile && f.Q != 0:
		return bad("q is valid only with quantile")
	}
	return nil
}

// Input is a column that a plan reads.
type Input struct {
	Column string
	Type   value.Type
}

// Plan is how a list of features is computed. Immutable; safe for concurrent
// use.
type Plan struct {
	features []planned
	inputs   []Input
	types    []value.Type // of inputs
	parts    []part
	windows  []int64 // microseconds, ascending
	levels   []int64 // widths of tiles in microseconds, ascending powers of two
}

type planned struct {
	Feature
	window int    // into windows
	parts  [2]int // into parts; the second is of var and std only
}

// part is an accumulator of each state.
type part struct {
	kind  kind
	input int // into inputs; −1: none
}

// kind of an accumulator. The numbers are in stored states.
type kind byte

const (
	kindCount    kind = 1
	kindSum      kind = 2
	kindSquares  kind = 3
	kindMin      kind = 4
	kindMax      kind = 5
	kindFirst    kind = 6
	kindLast     kind = 7
	kindDistinct kind = 8
	kindTop      kind = 9
	kindBuckets  kind = 10
)

var kinds = map[Function][]kind{
	Sum: {kindSum}, Count: {kindCount}, Mean: {kindSum}, Min: {kindMin}, Max: {kindMax}, Std: {kindSum, kindSquares}, Var: {kindSum, kindSquares},
	First: {kindFirst}, Last: {kindLast}, ApproxDistinct: {kindDistinct}, TopK: {kindTop}, Quantile: {kindBuckets},
}

// NewPlan makes the plan of features. Error: fault.Invalid.
func NewPlan(features []Feature) (*Plan, error) {
	if len(features) == 0 || len(features) > MaxFeatures {
		return nil, fault.New(fault.Invalid, "there are %d aggregations, and must be between 1 and %d", len(features), MaxFeatures)
	}
	p := &Plan{}
	for _, f := range features {
		if err := f.Check(); err != nil {
			return nil, fault.Wrap(err, "aggregation %s", f.Name)
		}
		if w := f.Window.Microseconds(); !slices.Contains(p.windows, w) {
			p.windows = append(p.windows, w)
		}
	}
	if len(p.windows) > MaxWindows {
		return nil, fault.New(fault.Invalid, "%d different windows are over the limit of %d", len(p.windows), MaxWindows).
			WithHint("Move some of them to a second view.")
	}
	slices.Sort(p.windows)
	for _, f := range features {
		out := planned{Feature: f, window: slices.Index(p.windows, f.Window.Microseconds())}
		input := p.input(f)
		for i, k := range kinds[f.Function] {
			out.parts[i] = p.part(part{k, input})
		}
		p.features = append(p.features, out)
	}
	large := 0
	for _, x := range p.parts {
		if x.kind == kindDistinct || x.kind == kindTop || x.kind == kindBuckets {
			large++
		}
	}
	if large > MaxLarge {
		return nil, fault.New(fault.Invalid, "approx_distinct, topk and quantile of %d columns are over the limit of %d", large, MaxLarge).
			WithHint("Move some of them to a second view.")
	}
	p.levels = levels(p.windows[0], p.windows[len(p.windows)-1])
	return p, nil
}

// input is the place of the column that a feature reads.
func (p *Plan) input(f Feature) int {
	if f.Column == "" {
		return -1
	}
	in := Input{f.Column, f.Type}
	at := slices.Index(p.inputs, in)
	if at < 0 {
		at = len(p.inputs)
		p.inputs, p.types = append(p.inputs, in), append(p.types, in.Type)
	}
	return at
}

// part is the place of an accumulator, which features share.
func (p *Plan) part(x part) int {
	at := slices.Index(p.parts, x)
	if at < 0 {
		at = len(p.parts)
		p.parts = append(p.parts, x)
	}
	return at
}

// Inputs are the columns that make a row, in order; a column may be there once
// for each type that it is read as.
func (p *Plan) Inputs() []Input { return p.inputs }

// Features is how many there are.
func (p *Plan) Features() []Feature {
	out := make([]Feature, len(p.features))
	for i := range out {
		out[i] = p.features[i].Feature
	}
	return out
}

// Types are the types of the features.
func (p *Plan) Types() []value.Type {
	types := make([]value.Type, len(p.features))
	for i := range types {
		types[i] = p.features[i].Result()
	}
	return types
}

// Reach is how long before a time records count for it, in microseconds: the longest
// window and the widest tile, in which it may begin.
func (p *Plan) Reach() int64 { return p.Longest() + p.levels[len(p.levels)-1] }

// Longest is the longest window in microseconds: older rows never count.
func (p *Plan) Longest() int64 { return p.windows[len(p.windows)-1] }

// results writes the features of a window from the state of its rows.
func (p *Plan) results(s *State, window int, out []value.Value) {
	for i := range p.features {
		if f := &p.features[i]; f.window == window {
			out[i] = s.result(f)
		}
	}
}

// Times are microseconds; these stop at the first and last instant.

// before is t − d for d ≥ 0.
func before(t, d int64) int64 {
	if x := t - d; x <= t {
		return x
	}
	return minTime
}
