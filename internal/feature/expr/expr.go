// Package expr computes features from other features and from values of the
// request: expressions in CEL (https://cel.dev), checked against their types once
// and evaluated by the same function in training sets and online.
//
// # Map
//
//   - Compile checks an expression: its names, its types, what it may cost. Infer
//     does so for one whose type nobody declares.
//   - Program.Eval computes it for a row of values.
//
// # What an expression can do
//
// CEL's operators, conversions and functions of text and time, without its macros,
// and so without loops; ext/math of cel-go; coalesce; and of mathematics exp, log,
// log10, pow, sin, cos, tan, asin, acos, atan, atan2 and hypot, as math.exp and so
// on; of a list of float64 math.argmax, the place of the first largest, and math.softmax. There is no clock, no randomness and no input: a value depends on nothing but
// the row. Instants are in UTC; the functions of CEL that take a time zone are left
// out, because they read the machine's files. Types do not mix: int64 and int32 are
// CEL's int, float64 and float32 its double, and double(x) makes one of the other. A
// list or a vector is a list: size(tags), "new" in tags, vector[0], [x, y].
//
// # Nulls
//
// Any value may be null. `x == null` says whether it is (not of a list, which CEL
// compares with lists only), and coalesce(x, 0.0) puts something in its place. What cannot be computed because a value is null is null.
// What cannot be computed otherwise is null, too, and Failed says so: a division by
// zero, an int64 that overflows, a text that is no number, a text above MaxText, a
// result that is no int32 or float32, or a list of another length than the type's.
//
// # Limits
//
// An expression has at most MaxSource bytes; what it may cost at most, by CEL's
// model with texts of MaxText bytes, is bounded when it is compiled, so that
// nothing has to be counted when it runs: Program.Cost says it for who has many rows.
package expr

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Limits of an expression.
const (
	MaxSource = 4 << 10
	MaxText   = 16 << 10 // of a text that goes in or comes out
	maxCost   = 100_000  // in units of CEL's model: about one for each operator
	maxDepth  = 250
	maxNodes  = 1000
)

// Variable is what an expression may name: the value at a place of the row. One
// whose name is no identifier of CEL cannot be named, and is no error.
type Variable struct {
	Name  string
	Type  value.Type
	Place int
}

// Outcome classifies a value.
type Outcome uint8

// The outcomes.
const (
	Computed Outcome = iota
	Null             // by the expression, or because a value that it needs is null
	Failed           // it cannot be computed from these values
)

// Program is a compiled expression. Safe for concurrent use.
type Program struct {
	program cel.Program
	result  value.Type
	places  map[string]int // of the variables that it uses
	uses    []int
	cost    int
	nanos   bool
}

// Error is what is wrong with an expression, and where: line and column from 1.
type Error struct {
	Line, Column int
	Text         string
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Text)
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved words, and names of types, are no names of variables.
var reserved = []string{
	"as", "bool", "break", "bytes", "const", "continue", "double", "duration", "dyn", "else", "false", "for", "function", "google", "if",
	"import", "in", "int", "let", "list", "loop", "map", "math", "namespace", "null", "null_type", "package", "return", "string",
	"timestamp", "true", "type", "uint", "var", "void", "while",
}

// Nameable reports whether an expression can name a variable.
func Nameable(name string) bool {
	return identifier.MatchString(name) && !slices.Contains(reserved, name)
}

// Compile checks an expression whose value is to be of a type. Error: fault.Invalid,
// with an Error where there is a place to tell.
func Compile(source string, result value.Type, variables []Variable) (*Program, error) {
	c, err := check(source, variables)
	if err != nil {
		return nil, err
	}
	if out := c.tree.OutputType(); !yields(out, result) {
		hint := convert(result)
		if out.Kind() == types.NullTypeKind {
			hint = "Write the value first: a > 0.0 ? x : null."
		}
		return nil, fault.New(fault.Invalid, "its value is %s, not %s", typeName(out), result).WithHint("%s", hint)
	}
	return c.program(result)
}

// Infer checks an expression whose value is of the type that it says itself: int64,
// float64, bool or string. Errors are Compile's.
func Infer(source string, variables []Variable) (*Program, error) {
	c, err := check(source, variables)
	if err != nil {
		return nil, err
	}
	for _, t := range []value.Type{value.Float64, value.Int64, value.Bool, value.String} {
		if yields(c.tree.OutputType(), t) {
			return c.program(t)
		}
	}
	return nil, fault.New(fault.Invalid, "its value is %s; it may be a float64, an int64, a bool or a string", typeName(c.tree.OutputType())).
		WithHint("For a list, take an element: x[0].")
}

// checked is an expression whose names and types are right.
type checked struct {
	env       *cel.Env
	tree      *cel.Ast
	variables []Variable
}

func check(source string, variables []Variable) (*checked, error) {
	if strings.TrimSpace(source) == "" {
		return nil, fault.New(fault.Invalid, "it is empty")
	}
	if len(source) > MaxSource {
		return nil, fault.New(fault.Invalid, "%d bytes are over the limit of %d", len(source), MaxSource)
	}
	e, err := environment()
	if err != nil {
		return nil, err
	}
	var declared []cel.EnvOption
	var names []string
	for _, v := range variables {
		if Nameable(v.Name) {
			declared = append(declared, cel.Variable(v.Name, celType(v.Type)))
			names = append(names, v.Name)
		}
	}
	if e, err = e.Extend(declared...); err != nil {
		return nil, err
	}
	tree, issues := e.Compile(source)
	if issues.Err() != nil {
		return nil, explain(issues, names)
	}
	return &checked{e, tree, variables}, nil
}

// program makes it ready to run, if it does not cost too much.
func (c *checked) program(result value.Type) (*Program, error) {
	longest := sizes{}
	for _, v := range c.variables {
		if !v.Type.Scalar() {
			longest[v.Name] = uint64(v.Type.Length()) //nolint:gosec // at most value.MaxLength
		}
	}
	bound, err := c.env.EstimateCost(c.tree, longest)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	if bound.Max > maxCost {
		return nil, fault.New(fault.Invalid, "its cost is up to %d steps with texts of %d bytes, over the limit of %d", bound.Max, MaxText, maxCost).
			WithHint("Preprocess the texts in the SQL of the view.")
	}
	program, err := c.env.Program(c.tree, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s", firstLine(err.Error()))
	}
	p := &Program{program: program, result: result, places: map[string]int{}, cost: int(bound.Max)}
	for _, r := range c.tree.NativeRep().ReferenceMap() {
		at := slices.IndexFunc(c.variables, func(v Variable) bool { return v.Name == r.Name })
		p.nanos = p.nanos || slices.Contains(r.OverloadIDs, overloads.DurationToInt)
		if at >= 0 && len(r.OverloadIDs) == 0 {
			p.places[r.Name] = c.variables[at].Place
			p.uses = append(p.uses, c.variables[at].Place)
		}
	}
	slices.Sort(p.uses)
	p.uses = slices.Compact(p.uses)
	return p, nil
}

// Result is the type of its value.
func (p *Program) Result() value.Type { return p.result }

// Uses are the places of what the expression names, in order.
func (p *Program) Uses() []int { return p.uses }

// Cost is what it may cost at most to compute it once, in units of CEL's model. Who
// computes it for many rows bounds their sum.
func (p *Program) Cost() int { return p.cost }

// CountsNanoseconds reports whether the expression has int(x) of a duration, whose unit
// nothing says: CEL's are nanoseconds.
func (p *Program) CountsNanoseconds() bool { return p.nanos }

// Eval computes the value for a row, which has a value at each variable's place.
func (p *Program) Eval(row []value.Value) (value.Value, Outcome) {
	for _, at := range p.uses {
		if v := row[at]; v.Type().Elem() == value.String && len(v.Str()) > MaxText {
			return value.Null(p.result), Failed
		}
	}
	out, _, err := p.program.Eval(activation{p, row})
	if err != nil {
		if slices.ContainsFunc(p.uses, func(at int) bool { return row[at].IsNull() }) {
			return value.Null(p.result), Null
		}
		return value.Null(p.result), Failed
	}
	if out == types.NullValue || holdsNull(out) {
		return value.Null(p.result), Null
	}
	if v, ok := fromCEL(out, p.result); ok && len(v.Str()) <= MaxText {
		return v, Computed
	}
	return value.Null(p.result), Failed
}

// holdsNull reports whether a value is a list of which one element is null.
func holdsNull(v ref.Val) bool {
	list, is := v.(traits.Lister)
	if !is {
		return false
	}
	n, _ := list.Size().(types.Int)
	for i := range n {
		if list.Get(i) == types.NullValue {
			return true
		}
	}
	return false
}

// activation gives a program the values of a row.
type activation struct {
	of  *Program
	row []value.Value
}

func (a activation) ResolveName(name string) (any, bool) {
	at, ok := a.of.places[name]
	if !ok {
		return nil, false
	}
	return toCEL(a.row[at]), true
}

func (activation) Parent() cel.Activation { return nil }

func toCEL(v value.Value) ref.Val {
	if v.IsNull() {
		return types.NullValue
	}
	if !v.Type().Scalar() {
		list := make([]ref.Val, 0, v.Len())
		for e := range v.Elements() {
			list = append(list, toCEL(e))
		}
		return types.NewRefValList(types.DefaultTypeAdapter, list)
	}
	switch v.Type() {
	case value.Int64, value.Int32:
		return types.Int(v.Int())
	case value.Float64, value.Float32:
		return types.Double(v.Float())
	case value.Bool:
		return types.Bool(v.Bool())
	case value.Timestamp:
		return types.Timestamp{Time: v.Time()}
	default:
		return types.String(v.Str())
	}
}

// fromCEL is a value as one of a type. CEL has one type of whole numbers and one of
// others: what does not fit 32 bits is none.
func fromCEL(v ref.Val, t value.Type) (value.Value, bool) {
	if list, is := v.(traits.Lister); is {
		n, _ := list.Size().(types.Int)
		if t.Scalar() || t.Fits(int(n)) != nil {
			return value.Value{}, false
		}
		elements := make([]value.Value, n)
		for i := range elements {
			var ok bool
			if elements[i], ok = fromCEL(list.Get(types.Int(i)), t.Elem()); !ok {
				return value.Value{}, false
			}
		}
		out, err := value.OfList(t, elements)
		return out, err == nil
	}
	switch v := v.(type) {
	case types.Int:
		if t == value.Int32 {
			return value.OfInt32(int32(v)), v == types.Int(int32(v)) //nolint:gosec // the second result says whether it fits
		}
		return value.OfInt(int64(v)), t == value.Int64
	case types.Double:
		if t == value.Float32 {
			f := float32(v)
			return value.OfFloat32(f), math.IsInf(float64(f), 0) == math.IsInf(float64(v), 0)
		}
		return value.OfFloat(float64(v)), t == value.Float64
	case types.Bool:
		return value.OfBool(bool(v)), t == value.Bool
	case types.String:
		return value.OfString(string(v)), t == value.String
	case types.Timestamp:
		return value.OfTime(v.Time), t == value.Timestamp
	}
	return value.Value{}, false
}

// celType is the type of a variable: any of them may be null, but CEL lets no list be
// compared with null.
func celType(t value.Type) *cel.Type {
	if !t.Scalar() {
		return cel.ListType(plainType(t.Elem()))
	}
	if t == value.Timestamp {
		return cel.TimestampType // which null is assignable to
	}
	return cel.NullableType(plainType(t))
}

func plainType(t value.Type) *cel.Type {
	switch t {
	case value.Int64, value.Int32:
		return cel.IntType
	case value.Float64, value.Float32:
		return cel.DoubleType
	case value.Bool:
		return cel.BoolType
	case value.Timestamp:
		return cel.TimestampType
	default:
		return cel.StringType
	}
}

// yields reports whether a CEL type is that of a feature, or that or null.
func yields(t *cel.Type, want value.Type) bool {
	if !want.Scalar() {
		if t.Kind() != types.ListKind {
			return false
		}
		of := t.Parameters()[0]
		return of.Kind() == plainType(want.Elem()).Kind() || of.Kind() == types.DynKind || of.Kind() == types.TypeParamKind // of none
	}
	return t.Kind() == plainType(want).Kind() && t.Kind() != types.DynKind
}

// typeName is a CEL type as manifests name it.
func typeName(t *cel.Type) string {
	for _, v := range []value.Type{value.Int64, value.Float64, value.String, value.Bool, value.Timestamp} {
		if yields(t, v) {
			return v.String()
		}
	}
	if t.Kind() == types.ListKind {
		return "list<" + typeName(t.Parameters()[0]) + ">"
	}
	return t.String()
}

func convert(to value.Type) string {
	if !to.Scalar() {
		return "Write a list: [x, y]."
	}
	switch to {
	case value.Float64, value.Float32:
		return "Operands must have the same type: write 2.0 instead of 2, and double(x) for an int64."
	case value.Int64, value.Int32:
		return "Operands must have the same type: write 2 instead of 2.0, and int(x), which truncates, for a float64."
	case value.String:
		return "Write string(x)."
	case value.Timestamp:
		return "Write timestamp('2013-01-01T00:00:00Z') or an instant plus duration('90m')."
	default:
		return "Use a comparison, such as x > 0.0."
	}
}

var container = regexp.MustCompile(` \(in container '.*'\)`)

// explain tells the first of the issues, with its place.
func explain(issues *cel.Issues, names []string) error {
	first := issues.Errors()[0]
	text := firstLine(container.ReplaceAllString(first.Message, ""))
	e := &Error{Line: max(first.Location.Line(), 1), Column: max(first.Location.Column()+1, 1), Text: text}
	out := fault.New(fault.Invalid, "%w", e)
	switch {
	case strings.Contains(text, "undeclared reference"):
		return out.WithHint("The available names are %s.", strings.Join(names, ", "))
	case strings.Contains(text, "no matching overload"):
		return out.WithHint("Operands must have the same type: int(x) converts to int64, double(x) converts to float64; 2 is an int64, and 2.0 is a float64.")
	}
	return out
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// sizes bounds the texts that a program meets, and says how long its lists may be.
type sizes map[string]uint64

func (s sizes) EstimateCallCost(function, _ string, _ *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	var longest cost.SizeEstimate
	switch function {
	case "string":
		longest.Max = 64 // of a number, a bool, an instant, a duration
	case "coalesce", "math.argmax", "math.softmax":
	default:
		return nil
	}
	for _, a := range args {
		size := a.ComputedSize()
		if size == nil {
			size = s.EstimateSize(a)
		}
		if size == nil && a.Type().Kind() == types.StringKind {
			return nil
		}
		if size != nil {
			longest.Max = max(longest.Max, size.Max)
		}
	}
	one := cost.Estimate{Min: 1, Max: 1 + longest.Max/10} // as CEL's own conversions of texts
	if strings.HasPrefix(function, "math.") {
		one.Max = 1 + longest.Max // of each element
	}
	return &cost.CallEstimate{CostEstimate: one, ResultSize: &longest}
}

func (s sizes) EstimateSize(of cost.AstNode) *cost.SizeEstimate {
	if of.ComputedSize() == nil && of.Type().Kind() == types.ListKind && of.Expr() != nil && of.Expr().Kind() == ast.IdentKind {
		return &cost.SizeEstimate{Max: s[of.Expr().AsIdent()]}
	}
	if of.ComputedSize() != nil || of.Type().Kind() != types.StringKind || of.Expr() == nil {
		return nil
	}
	switch of.Expr().Kind() {
	case ast.IdentKind:
		return &cost.SizeEstimate{Max: MaxText}
	case ast.CallKind: // tags[0]
		if of.Expr().AsCall().FunctionName() == operators.Index {
			return &cost.SizeEstimate{Max: MaxText}
		}
		return nil
	case ast.LiteralKind: // null: of texts the size is computed
		return &cost.SizeEstimate{}
	default:
		return nil
	}
}

// environment is CEL as expressions have it, made once: it knows no variables yet.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	library := env.NewLibrarySubset().SetDisableMacros(true).AddExcludedFunctions(
		env.NewFunction("bytes"), env.NewFunction("dyn"), env.NewFunction("type"), env.NewFunction("uint"),
	)
	// A time zone is read from the machine's files.
	for name, overload := range map[string]string{
		"getFullYear": "timestamp_to_year_with_tz", "getMonth": "timestamp_to_month_with_tz", "getDayOfYear": "timestamp_to_day_of_year_with_tz",
		"getDayOfMonth": "timestamp_to_day_of_month_with_tz", "getDate": "timestamp_to_day_of_month_1_based_with_tz",
		"getDayOfWeek": "timestamp_to_day_of_week_with_tz", "getHours": "timestamp_to_hours_with_tz", "getMinutes": "timestamp_to_minutes_with_tz",
		"getSeconds": "timestamp_to_seconds_tz", "getMilliseconds": "timestamp_to_milliseconds_with_tz",
	} {
		library.AddExcludedFunctions(env.NewFunction(name, &env.Overload{ID: overload}))
	}
	options := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(library)), ext.Math(),
		cel.ParserRecursionLimit(maxDepth), cel.ExpressionNodeLimit(maxNodes), cel.ParserExpressionSizeLimit(MaxSource),
		cel.RegexProgramSizeLimit(1000),
	}
	for name, f := range map[string]func(float64) float64{
		"exp": math.Exp, "log": math.Log, "log10": math.Log10, "sin": math.Sin, "cos": math.Cos, "tan": math.Tan,
		"asin": math.Asin, "acos": math.Acos, "atan": math.Atan,
	} {
		options = append(options, cel.Function("math."+name, cel.Overload("falaj_"+name, []*cel.Type{cel.DoubleType}, cel.DoubleType,
			cel.UnaryBinding(func(x ref.Val) ref.Val { return types.Double(f(float64(x.(types.Double)))) }))))
	}
	for name, f := range map[string]func(a, b float64) float64{"pow": math.Pow, "atan2": math.Atan2, "hypot": math.Hypot} {
		options = append(options, cel.Function("math."+name, cel.Overload("falaj_"+name, []*cel.Type{cel.DoubleType, cel.DoubleType}, cel.DoubleType,
			cel.BinaryBinding(func(a, b ref.Val) ref.Val {
				return types.Double(f(float64(a.(types.Double)), float64(b.(types.Double))))
			}))))
	}
	numbers := cel.ListType(cel.DoubleType)
	options = append(options,
		cel.Function("math.argmax", cel.Overload("falaj_argmax", []*cel.Type{numbers}, cel.IntType, cel.UnaryBinding(argmax))),
		cel.Function("math.softmax", cel.Overload("falaj_softmax", []*cel.Type{numbers}, numbers, cel.UnaryBinding(softmax))))
	same := cel.TypeParamType("A")
	options = append(options, cel.DefaultUTCTimeZone(true), cel.Function("coalesce", cel.Overload("falaj_coalesce", []*cel.Type{same, same}, same,
		cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			if a == types.NullValue {
				return b
			}
			return a
		}))))
	return cel.NewCustomEnv(options...)
})

// doubles are the elements of a list of them.
func doubles(v ref.Val) ([]float64, ref.Val) {
	list, is := v.(traits.Lister)
	if !is {
		return nil, types.MaybeNoSuchOverloadErr(v)
	}
	n, _ := list.Size().(types.Int)
	out := make([]float64, n)
	for i := range out {
		x, is := list.Get(types.Int(i)).(types.Double)
		if !is {
			return nil, types.NewErr("element %d is not a double", i)
		}
		out[i] = float64(x)
	}
	if n == 0 {
		return nil, types.NewErr("the list is empty")
	}
	return out, nil
}

// argmax is the place of the first of the largest; a NaN is never larger.
func argmax(v ref.Val) ref.Val {
	x, err := doubles(v)
	if err != nil {
		return err
	}
	at := 0
	for i := range x {
		if x[i] > x[at] || math.IsNaN(x[at]) && !math.IsNaN(x[i]) {
			at = i
		}
	}
	return types.Int(at)
}

func softmax(v ref.Val) ref.Val {
	x, err := doubles(v)
	if err != nil {
		return err
	}
	largest, sum := slices.Max(x), 0.0
	for i := range x {
		x[i] = math.Exp(x[i] - largest)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
	return types.DefaultTypeAdapter.NativeToValue(x)
}
