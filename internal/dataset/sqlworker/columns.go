package sqlworker

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/fault"
)

// What a column of a table is to a column of the result. The words are OpenLineage's;
// the first three say that values go into it, the others that they decide about it.
const (
	identity       = "identity"
	transformation = "transformation"
	aggregation    = "aggregation"
	conditional    = "conditional"
	joined         = "join"
	filtered       = "filter"
	grouped        = "group_by"
	sorted         = "sort"
	windowed       = "window"
)

// strength orders them: of two ways from one column to another the stronger counts.
var strength = []string{windowed, sorted, grouped, filtered, joined, conditional, aggregation, transformation, identity}

// stronger is the one of two ways that counts.
func stronger(a, b string) string {
	if slices.Index(strength, b) > slices.Index(strength, a) {
		return b
	}
	return a
}

// through is what a way becomes by one more step.
func through(before, step string) string {
	direct := func(how string) bool { return slices.Index(strength, how) > slices.Index(strength, conditional) }
	switch {
	case !direct(before):
		return before
	case !direct(step):
		return step
	case before == aggregation || step == aggregation:
		return aggregation
	case step == identity:
		return before
	}
	return step
}

// origin is a column of a table.
type origin struct{ table, column string }

// origins are where the values of a column come from, and how.
type origins map[origin]string

func (o origins) add(more origins, step string) {
	for k, how := range more {
		if how = through(how, step); o[k] != "" {
			how = stronger(o[k], how)
		}
		o[k] = how
	}
}

// columnsOf follows the columns of a result through DuckDB's bound plan, as
// json_serialize_plan gives it without optimizing: its expressions name the columns of
// what is below them by position, so nothing is guessed. names are those of the
// result. ok is false for a plan with a part that is not known here: then nothing is
// said instead of something wrong.
func columnsOf(serialized string, names []string) (out child.SQLColumns, ok bool) {
	var t struct {
		Error bool   `json:"error"`
		Plans []node `json:"plans"`
	}
	if err := json.Unmarshal(finite(serialized), &t); err != nil || t.Error || len(t.Plans) != 1 {
		return out, false
	}
	p := planner{all: origins{}, ctes: map[int][]origins{}}
	columns, err := p.operator(t.Plans[0], 0)
	if err != nil || len(columns) != len(names) {
		return out, false
	}
	out.Known = true
	for i, c := range columns {
		out.Columns = append(out.Columns, child.SQLColumn{Name: names[i], From: c.list()})
	}
	out.Rows = p.all.list()
	return out, true
}

func (o origins) list() []child.SQLSource {
	out := make([]child.SQLSource, 0, len(o))
	for k, how := range o {
		out = append(out, child.SQLSource{Table: k.table, Column: k.column, How: how})
	}
	slices.SortFunc(out, func(a, b child.SQLSource) int {
		if c := strings.Compare(a.Table, b.Table); c != 0 {
			return c
		}
		return strings.Compare(a.Column, b.Column)
	})
	return out
}

// planner walks a plan from its leaves.
type planner struct {
	all  origins           // what decides about whole rows
	ctes map[int][]origins // common table expressions by their table index
	// delims are what the nearest correlated joins hand to their other side.
	delims [][]origins
}

var errUnknown = fault.New(fault.Unsupported, "the plan contains an unknown part")

func number(n node, key string) int {
	f, _ := n[key].(float64)
	return int(f)
}

func list(n node, key string) []any {
	l, _ := n[key].([]any)
	return l
}

// operator gives the columns of an operator, in their order.
func (p *planner) operator(n node, depth int) ([]origins, error) {
	if depth > maxDepth {
		return nil, errUnknown
	}
	kind, _ := n["type"].(string)
	switch kind {
	case "LOGICAL_DELIM_JOIN", "LOGICAL_MATERIALIZED_CTE", "LOGICAL_RECURSIVE_CTE":
		return p.scoped(kind, n, depth)
	}
	for _, key := range []string{"projection_map", "left_projection_map", "right_projection_map", "projection_ids"} {
		if len(list(n, key)) > 0 { // an optimizer's
			return nil, errUnknown
		}
	}
	var in [][]origins
	for _, c := range list(n, "children") {
		below, _ := c.(node)
		columns, err := p.operator(below, depth+1)
		if err != nil {
			return nil, err
		}
		in = append(in, columns)
	}
	one := func() []origins {
		if len(in) == 1 {
			return in[0]
		}
		return nil
	}
	switch kind {
	case "LOGICAL_GET":
		return p.get(n, in)
	case "LOGICAL_DUMMY_SCAN":
		return []origins{{}}, nil
	case "LOGICAL_EMPTY_RESULT":
		return nil, errUnknown
	case "LOGICAL_CTE_REF":
		columns, ok := p.ctes[number(n, "cte_index")]
		if !ok || len(columns) != len(list(n, "chunk_types")) {
			return nil, errUnknown
		}
		return columns, nil
	case "LOGICAL_DELIM_GET":
		if len(p.delims) == 0 || len(p.delims[len(p.delims)-1]) != len(list(n, "chunk_types")) {
			return nil, errUnknown
		}
		return p.delims[len(p.delims)-1], nil
	case "LOGICAL_PROJECTION":
		return p.expressions(list(n, "expressions"), one())
	case "LOGICAL_FILTER":
		return one(), p.decide(n["expressions"], one(), filtered)
	case "LOGICAL_ORDER_BY", "LOGICAL_TOP_N":
		return one(), p.decide(n["orders"], one(), sorted)
	case "LOGICAL_LIMIT":
		// A limit that a query computes is a column of what is below.
		return one(), p.decide([]any{n["limit_val"], n["offset_val"]}, one(), filtered)
	case "LOGICAL_DISTINCT":
		if err := p.decide(n["distinct_targets"], one(), grouped); err != nil {
			return nil, err
		}
		return one(), p.decide(n["order_by"], one(), sorted)
	case "LOGICAL_WINDOW":
		more, err := p.expressions(list(n, "expressions"), one())
		return slices.Concat(one(), more), err
	case "LOGICAL_UNNEST":
		more, err := p.expressions(list(n, "expressions"), one())
		if err != nil {
			return nil, err
		}
		// How often each row comes is how long its lists are.
		return slices.Concat(one(), more), p.decide(n["expressions"], one(), filtered)
	case "LOGICAL_AGGREGATE_AND_GROUP_BY":
		return p.aggregate(n, one())
	case "LOGICAL_EXPRESSION_GET":
		return p.values(n, one())
	case "LOGICAL_UNION", "LOGICAL_EXCEPT", "LOGICAL_INTERSECT":
		return p.set(kind, in)
	case "LOGICAL_CROSS_PRODUCT", "LOGICAL_POSITIONAL_JOIN":
		if len(in) != 2 {
			return nil, errUnknown
		}
		return slices.Concat(in[0], in[1]), nil
	case "LOGICAL_COMPARISON_JOIN", "LOGICAL_ASOF_JOIN", "LOGICAL_ANY_JOIN":
		return p.join(n, in)
	}
	return nil, errUnknown
}

// get is a table, or a function that makes rows of nothing but its arguments.
func (p *planner) get(n node, in [][]origins) ([]origins, error) {
	data, _ := n["function_data"].(node)
	table, _ := data["table"].(string)
	if len(in) > 0 || table == "" {
		return nil, errUnknown
	}
	names := list(n, "names")
	var out []origins
	for _, c := range list(n, "column_indexes") {
		index, _ := c.(node)
		if len(list(index, "child_indexes")) > 0 {
			return nil, errUnknown
		}
		o := origins{}
		if i := number(index, "index"); i >= 0 && i < len(names) { // others are virtual, such as the number of the row
			name, _ := names[i].(string)
			o[origin{table, name}] = identity
		}
		out = append(out, o)
	}
	return out, nil
}

func (p *planner) expressions(exprs []any, in []origins) ([]origins, error) {
	out := make([]origins, len(exprs))
	for i, e := range exprs {
		out[i] = origins{}
		if err := walkExpression(e, in, identity, out[i], 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decide notes what decides about whole rows.
func (p *planner) decide(exprs any, in []origins, how string) error {
	return walkExpression(exprs, in, how, p.all, 0)
}

func (p *planner) aggregate(n node, in []origins) ([]origins, error) {
	groups, err := p.expressions(list(n, "groups"), in)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		p.all.add(g, grouped)
	}
	out, err := p.expressions(list(n, "expressions"), in)
	if err != nil {
		return nil, err
	}
	for range list(n, "grouping_functions") {
		out = append(out, origins{})
	}
	return slices.Concat(groups, out), nil
}

// values are rows that are written out: the i-th column is the i-th expression of any.
func (p *planner) values(n node, in []origins) ([]origins, error) {
	var out []origins
	for _, row := range list(n, "expressions") {
		exprs, _ := row.([]any)
		columns, err := p.expressions(exprs, in)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = columns
			continue
		}
		if len(out) != len(columns) {
			return nil, errUnknown
		}
		for i := range out {
			out[i].add(columns[i], identity)
		}
	}
	return out, nil
}

func (p *planner) set(kind string, in [][]origins) ([]origins, error) {
	if len(in) < 2 {
		return nil, errUnknown
	}
	out := make([]origins, len(in[0]))
	for i := range out {
		out[i] = maps.Clone(in[0][i])
	}
	for _, other := range in[1:] {
		if len(other) != len(out) {
			return nil, errUnknown
		}
		for i := range other {
			if kind == "LOGICAL_UNION" {
				out[i].add(other[i], identity)
				continue
			}
			// What is on both sides, or on one only, is found by all columns.
			p.all.add(out[i], filtered)
			p.all.add(other[i], filtered)
		}
	}
	return out, nil
}

func (p *planner) join(n node, in [][]origins) ([]origins, error) {
	if len(in) != 2 {
		return nil, errUnknown
	}
	found := origins{}
	for _, c := range list(n, "conditions") {
		condition, _ := c.(node)
		if err := walkExpression(condition["left"], in[0], joined, found, 0); err != nil {
			return nil, err
		}
		if err := walkExpression(condition["right"], in[1], joined, found, 0); err != nil {
			return nil, err
		}
	}
	both := slices.Concat(in[0], in[1])
	for _, key := range []string{"condition", "predicate", "expressions"} { // of any other condition than comparisons
		if err := walkExpression(n[key], both, joined, found, 0); err != nil {
			return nil, err
		}
	}
	kind, _ := n["join_type"].(string)
	if kind != "MARK" { // which only says whether there is a match; who filters by that is above
		p.all.add(found, joined)
	}
	switch kind {
	case "INNER", "LEFT", "RIGHT", "OUTER", "SINGLE":
		return both, nil
	case "SEMI", "ANTI":
		return in[0], nil
	case "MARK":
		return append(slices.Clone(in[0]), found), nil
	}
	return nil, errUnknown
}

// scoped are the operators one side of which sees something of the other.
func (p *planner) scoped(kind string, n node, depth int) ([]origins, error) {
	children := list(n, "children")
	if len(children) != 2 {
		return nil, errUnknown
	}
	first, _ := children[0].(node)
	second, _ := children[1].(node)
	if flipped, _ := n["delim_flipped"].(bool); flipped {
		return nil, errUnknown
	}
	left, err := p.operator(first, depth+1)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "LOGICAL_DELIM_JOIN":
		seen, err := p.expressions(list(n, "duplicate_eliminated_columns"), left)
		if err != nil {
			return nil, err
		}
		p.delims = append(p.delims, seen)
		right, err := p.operator(second, depth+1)
		p.delims = p.delims[:len(p.delims)-1]
		if err != nil {
			return nil, err
		}
		return p.join(n, [][]origins{left, right})
	case "LOGICAL_MATERIALIZED_CTE":
		p.ctes[number(n, "table_index")] = left
		return p.operator(second, depth+1)
	}
	// A recursive expression adds to itself until nothing more comes; each round can
	// only lengthen the lists, which are as long as all columns at most.
	at := number(n, "table_index")
	if _, shadowed := p.ctes[at]; shadowed || len(list(n, "key_targets")) > 0 {
		return nil, errUnknown
	}
	total := make([]origins, len(left))
	for i := range left {
		total[i] = maps.Clone(left[i])
	}
	for range 1000 {
		p.ctes[at] = total
		right, err := p.operator(second, depth+1)
		if err != nil || len(right) != len(total) {
			return nil, errUnknown
		}
		grown := false
		for i := range right {
			before := maps.Clone(total[i])
			total[i].add(right[i], identity)
			grown = grown || !maps.Equal(before, total[i])
		}
		if !grown {
			delete(p.ctes, at)
			if all, _ := n["union_all"].(bool); !all { // of equal rows one stays
				for _, o := range total {
					p.all.add(o, grouped)
				}
			}
			return total, nil
		}
	}
	return nil, errUnknown
}

// walkExpression adds the origins of everything that an expression, or a list of
// them, names. how is what the expression is to what is made of it.
func walkExpression(v any, in []origins, how string, out origins, depth int) error {
	if depth > maxDepth {
		return errUnknown
	}
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			if err := walkExpression(e, in, how, out, depth+1); err != nil {
				return err
			}
		}
	case node:
		return walkNode(x, in, how, out, depth)
	}
	return nil
}

func walkNode(n node, in []origins, how string, out origins, depth int) error {
	class, _ := n["expression_class"].(string)
	below := func(v any, how string) error { return walkExpression(v, in, how, out, depth+1) }
	step := through(how, transformation)
	switch class {
	case "BOUND_REF":
		at := number(n, "index")
		if at < 0 || at >= len(in) {
			return errUnknown
		}
		out.add(in[at], how)
		return nil
	case "BOUND_COLUMN_REF", "BOUND_SUBQUERY", "BOUND_LAMBDA", "BOUND_DEFAULT", "BOUND_EXPANDED":
		return errUnknown // not resolved to a position
	case "BOUND_CONSTANT":
		return nil
	case "BOUND_CAST":
		return below(n["child"], step)
	case "BOUND_AGGREGATE":
		step = through(how, aggregation)
		if err := below(n["filter"], through(how, conditional)); err != nil {
			return err
		}
		if err := below(n["order_bys"], through(how, sorted)); err != nil {
			return err
		}
		return below(n["children"], step)
	case "BOUND_WINDOW":
		for key, deciding := range map[string]string{
			"partitions": windowed, "orders": windowed, "arg_orders": windowed, "filter_expr": conditional, "start_expr": windowed, "end_expr": windowed,
			"offset_expr": windowed, "default_expr": transformation,
		} {
			if err := below(n[key], through(how, deciding)); err != nil {
				return err
			}
		}
		return below(n["children"], step)
	case "BOUND_CASE":
		checks := list(n, "case_checks")
		for _, c := range checks {
			check, _ := c.(node)
			if err := below(check["when_expr"], through(how, conditional)); err != nil {
				return err
			}
			if err := below(check["then_expr"], step); err != nil {
				return err
			}
		}
		return below(n["else_expr"], step)
	case "BOUND_FUNCTION", "BOUND_OPERATOR", "BOUND_COMPARISON", "BOUND_CONJUNCTION", "BOUND_BETWEEN", "BOUND_UNNEST", "BOUND_PARAMETER":
	case "":
		step = how // a list of orders, a wrapper
	default:
		return errUnknown
	}
	for _, key := range slices.Sorted(maps.Keys(n)) {
		switch n[key].(type) {
		case []any, node:
			if err := below(n[key], step); err != nil {
				return err
			}
		}
	}
	return nil
}
