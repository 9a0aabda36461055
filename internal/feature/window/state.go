package window

import (
	"cmp"
	"math"
	"strings"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// NoCreated is the created time of a row that has none: it is known from its
// event on.
const NoCreated = math.MinInt64

const minTime = math.MinInt64

// Row is an event of an entity. Values are beside the plan's inputs.
type Row struct {
	Event   int64 // microseconds since 1970
	Created int64 // microseconds since 1970, or NoCreated
	Values  []value.Value
}

// State is a summary of rows, the same for the same rows however it came to be.
// Not safe for concurrent use, not even to read.
type State struct {
	plan  *Plan
	rows  int64
	known int64 // the latest event or created time of its rows
	parts []accumulator
}

// accumulator is the summary of a column for a function. Values are not NULL, and
// normal; strings that it keeps are its own.
type accumulator interface {
	add(v value.Value, event, created int64)
	// merge takes in another of the same type, which stays as it is.
	merge(o accumulator)
	reset()
	append(dst []byte) []byte
	read(r *reader, t value.Type)
}

// NewState makes a state of no rows.
func (p *Plan) NewState() *State {
	s := &State{plan: p, known: minTime, parts: make([]accumulator, len(p.parts))}
	for i := range s.parts {
		s.parts[i] = p.parts[i].accumulator()
	}
	return s
}

func (x part) accumulator() accumulator {
	switch x.kind {
	case kindCount:
		return &counter{}
	case kindSum:
		return &sum{}
	case kindSquares:
		return &squares{}
	case kindMin:
		return &extreme{sign: -1}
	case kindMax:
		return &extreme{sign: 1}
	case kindFirst:
		return &edge{sign: -1}
	case kindLast:
		return &edge{sign: 1}
	case kindDistinct:
		return &distinct{}
	case kindTop:
		return &top{}
	default:
		return &buckets{}
	}
}

// Reset makes it a state of no rows.
func (s *State) Reset() {
	s.rows, s.known = 0, minTime
	for _, a := range s.parts {
		a.reset()
	}
}

// Rows is how many rows are in it.
func (s *State) Rows() int64 { return s.rows }

// Known is the time from which all its rows are known.
func (s *State) Known() int64 { return s.known }

// Add takes in a row, whose values it does not keep.
func (s *State) Add(r Row) {
	s.rows++
	s.known = max(s.known, r.Event, r.Created)
	for i, a := range s.parts {
		in := s.plan.parts[i].input
		if in < 0 {
			a.add(value.Value{}, r.Event, r.Created)
			continue
		}
		if v := r.Values[in]; !v.IsNull() {
			a.add(normal(v), r.Event, r.Created)
		}
	}
}

// Merge takes in the rows of another state of the plan, which stays as it is.
func (s *State) Merge(o *State) {
	s.rows += o.rows
	s.known = max(s.known, o.known)
	for i, a := range s.parts {
		a.merge(o.parts[i])
	}
}

// normal makes floats that are equal the same: there is one NaN and one zero.
func normal(v value.Value) value.Value {
	if v.Type() != value.Float64 {
		return v
	}
	switch f := v.Float(); {
	case f == 0:
		return value.OfFloat(0)
	case math.IsNaN(f):
		return value.OfFloat(math.NaN())
	}
	return v
}

// compare orders normal values of a type: numbers by size, NaN after them, false
// before true, strings by their bytes.
func compare(a, b value.Value) int {
	switch a.Type() {
	case value.Float64:
		x, y := a.Float(), b.Float()
		if nx, ny := math.IsNaN(x), math.IsNaN(y); nx || ny {
			return count(nx) - count(ny)
		}
		return cmp.Compare(x, y)
	case value.String:
		return strings.Compare(a.Str(), b.Str())
	default:
		return cmp.Compare(a.Int(), b.Int())
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// own is the value with a string of its own.
func own(v value.Value) value.Value {
	if v.Type() == value.String {
		return value.OfString(strings.Clone(v.Str()))
	}
	return v
}

// result is a feature's value.
func (s *State) result(f *planned) value.Value {
	null := value.Null(f.Result())
	switch a := s.parts[f.parts[0]].(type) {
	case *counter:
		return value.OfInt(a.n)
	case *distinct:
		return value.OfInt(a.estimate())
	case *extreme:
		if a.set {
			return a.value
		}
	case *edge:
		if a.set {
			return a.value
		}
	case *top:
		if list, ok := a.list(f.K); ok {
			return value.OfString(list)
		}
	case *buckets:
		if a.n > 0 {
			return value.OfFloat(a.quantile(f.Q))
		}
	case *sum:
		switch {
		case a.n == 0:
		case f.Function == Sum && f.Type == value.Int64:
			if n, ok := a.total.int(); ok {
				return value.OfInt(n)
			}
		case f.Function == Sum:
			return value.OfFloat(a.total.float())
		case f.Function == Mean:
			return value.OfFloat(mean(a.n, &a.total))
		case a.n > 1:
			of := variance
			if f.Function == Std {
				of = deviation
			}
			return value.OfFloat(of(a.n, &a.total, &s.parts[f.parts[1]].(*squares).total))
		}
	}
	return null
}

// counter counts values, or rows.
type counter struct{ n int64 }

func (c *counter) add(value.Value, int64, int64) { c.n++ }
func (c *counter) merge(o accumulator)           { c.n += o.(*counter).n }
func (c *counter) reset()                        { c.n = 0 }

// sum is of sum and mean, and the first half of var and std.
type sum struct {
	n     int64
	total exact
}

func (a *sum) add(v value.Value, _, _ int64) {
	a.n++
	if v.Type() == value.Int64 {
		a.total.addInt(v.Int())
		return
	}
	a.total.addFloat(v.Float())
}

func (a *sum) merge(o accumulator) {
	other := o.(*sum)
	a.n += other.n
	a.total.merge(&other.total)
}

func (a *sum) reset() { a.n = 0; a.total.reset() }

// squares is the second half of var and std.
type squares struct{ total exact }

func (a *squares) add(v value.Value, _, _ int64) {
	if v.Type() == value.Int64 {
		a.total.addIntSquare(v.Int())
		return
	}
	a.total.addSquare(v.Float())
}

func (a *squares) merge(o accumulator) { a.total.merge(&o.(*squares).total) }
func (a *squares) reset()              { a.total.reset() }

// extreme is min (sign −1) or max (sign 1).
type extreme struct {
	sign  int
	set   bool
	value value.Value
}

func (a *extreme) add(v value.Value, _, _ int64) {
	if !a.set || a.sign*compare(v, a.value) > 0 {
		a.set, a.value = true, own(v)
	}
}

func (a *extreme) merge(o accumulator) {
	if other := o.(*extreme); other.set && (!a.set || a.sign*compare(other.value, a.value) > 0) {
		a.set, a.value = true, other.value
	}
}

func (a *extreme) reset() { *a = extreme{sign: a.sign} }

// edge is first (sign −1) or last (sign 1) by event, then created, then value.
type edge struct {
	sign           int
	set            bool
	event, created int64
	value          value.Value
}

func (a *edge) beyond(v value.Value, event, created int64) bool {
	return !a.set || a.sign*cmp.Or(cmp.Compare(event, a.event), cmp.Compare(created, a.created), compare(v, a.value)) > 0
}

func (a *edge) add(v value.Value, event, created int64) {
	if a.beyond(v, event, created) {
		a.set, a.event, a.created, a.value = true, event, created, own(v)
	}
}

func (a *edge) merge(o accumulator) {
	if other := o.(*edge); other.set && a.beyond(other.value, other.event, other.created) {
		a.set, a.event, a.created, a.value = true, other.event, other.created, other.value
	}
}

func (a *edge) reset() { *a = edge{sign: a.sign} }
