// Package search reads the filter and order_by language of MLflow's searches.
//
//	filter     := "" | comparison ("AND" comparison)*
//	comparison := identifier op value | identifier "IS" ["NOT"] "NULL"
//	identifier := [entity "."] key          no entity means an attribute
//	key        := bare | `in back ticks` | "in double quotes"
//	op         := = != > >= < <= LIKE ILIKE IN "NOT IN"
//	value      := number | 'text' | "text" | ('text', …)
//
// There is no OR, no NOT and no nesting. A Grammar says what one kind of search
// allows; Parse and ParseOrder give checked conditions with canonical names;
// Where turns a condition on a column into SQL for both databases. Texts of
// errors are MLflow's where its clients and users know them.
package search

import (
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of what is parsed, so that one request costs little.
const (
	MaxFilter      = 16 << 10 // bytes of a filter
	MaxComparisons = 64       // comparisons in a filter, values in a list are bounded by MaxFilter
	MaxOrders      = 16       // order_by clauses
)

// Entity is what an identifier names.
type Entity string

// The entities.
const (
	Attribute Entity = "attribute"
	Metric    Entity = "metric"
	Param     Entity = "parameter"
	Tag       Entity = "tag"
	Dataset   Entity = "dataset"
)

var entityNames = map[string]Entity{
	"attribute": Attribute, "attributes": Attribute, "attr": Attribute, "run": Attribute,
	"metric": Metric, "metrics": Metric,
	"parameter": Param, "parameters": Param, "param": Param, "params": Param,
	"tag": Tag, "tags": Tag,
	"dataset": Dataset, "datasets": Dataset,
}

// Op is a comparison operator, in upper case.
type Op string

// The operators.
const (
	Equal     Op = "="
	NotEqual  Op = "!="
	Greater   Op = ">"
	AtLeast   Op = ">="
	Less      Op = "<"
	AtMost    Op = "<="
	Like      Op = "LIKE"
	ILike     Op = "ILIKE"
	In        Op = "IN"
	NotIn     Op = "NOT IN"
	IsNull    Op = "IS NULL"
	IsNotNull Op = "IS NOT NULL"
)

var (
	numericOps = []Op{Equal, NotEqual, Greater, AtLeast, Less, AtMost}
	textOps    = []Op{Equal, NotEqual, Like, ILike}
	listOps    = []Op{Equal, NotEqual, Like, ILike, In, NotIn}
	nullOps    = []Op{Equal, NotEqual, Like, ILike, IsNull, IsNotNull}
)

// Comparison is one checked condition. Number is set for numeric keys, Text for
// text ones, List for IN and NOT IN.
type Comparison struct {
	Entity Entity
	Key    string
	Op     Op
	Number float64
	Text   string
	List   []string
}

// Order is one checked sort key.
type Order struct {
	Entity Entity
	Key    string
	Desc   bool
}

// Column is an attribute of a search.
type Column struct {
	Name    string // canonical key, e.g. "start_time" for "Created"
	Numeric bool
	List    bool // IN and NOT IN allowed
	Filter  bool // may be filtered on
	Sort    bool // may be sorted on
}

// Grammar is what one kind of search allows.
type Grammar struct {
	Attributes map[string]Column // by every accepted spelling
	Entities   []Entity          // beside attributes
	Nulls      bool              // IS NULL and IS NOT NULL on params and tags
}

// Parse reads a filter. Errors are fault.Invalid.
func (g Grammar) Parse(filter string) ([]Comparison, error) {
	if len(filter) > MaxFilter {
		return nil, fault.New(fault.Invalid, "the filter string has %d bytes; at most %d are read", len(filter), MaxFilter)
	}
	tokens, err := lex(filter)
	if err != nil {
		return nil, err
	}
	p := parser{tokens: tokens, filter: filter}
	var out []Comparison
	for !p.end() {
		if len(out) > 0 && !p.keyword("AND") {
			return nil, fault.New(fault.Invalid, "Invalid clause(s) in filter string: '%s'", clip(p.peek().text)).
				WithHint("Join comparisons with AND; OR, NOT and parentheses are not part of the language.")
		}
		if len(out) == MaxComparisons {
			return nil, fault.New(fault.Invalid, "the filter string has more than %d comparisons", MaxComparisons)
		}
		c, err := g.comparison(&p)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// ParseOrder reads order_by clauses. Errors are fault.Invalid.
func (g Grammar) ParseOrder(clauses []string) ([]Order, error) {
	if len(clauses) > MaxOrders {
		return nil, fault.New(fault.Invalid, "order_by has %d clauses; at most %d are read", len(clauses), MaxOrders)
	}
	var out []Order
	for _, clause := range clauses {
		bad := fault.New(fault.Invalid, "Invalid order_by clause '%s'. Could not be parsed.", clip(clause))
		if len(clause) > MaxFilter {
			return nil, bad
		}
		tokens, err := lex(clause)
		if err != nil || len(tokens) == 0 {
			return nil, bad
		}
		p := parser{tokens: tokens, filter: clause}
		entity, key, err := g.identifier(&p)
		if err != nil {
			return nil, err
		}
		o := Order{Entity: entity, Key: key}
		switch {
		case p.end() || p.keyword("ASC"):
		case p.keyword("DESC"):
			o.Desc = true
		default:
			return nil, fault.New(fault.Invalid, "Invalid ordering key in order_by clause '%s'.", clip(clause))
		}
		if !p.end() || entity == Dataset {
			return nil, bad
		}
		if entity == Attribute {
			col, ok := g.Attributes[key]
			if !ok || !col.Sort {
				return nil, g.badAttribute(key, func(c Column) bool { return c.Sort })
			}
			o.Key = col.Name
		}
		if slices.ContainsFunc(out, func(x Order) bool { return x.Entity == o.Entity && x.Key == o.Key }) {
			return nil, fault.New(fault.Invalid, "`order_by` contains duplicate fields: %s", clip(strings.Join(clauses, ", ")))
		}
		out = append(out, o)
	}
	return out, nil
}

func (g Grammar) comparison(p *parser) (Comparison, error) {
	entity, key, err := g.identifier(p)
	if err != nil {
		return Comparison{}, err
	}
	op, err := p.operator()
	if err != nil {
		return Comparison{}, err
	}
	c := Comparison{Entity: entity, Key: key, Op: op}
	var allowed []Op
	numeric := false
	switch entity {
	case Attribute:
		col, ok := g.Attributes[key]
		if !ok || !col.Filter {
			return c, g.badAttribute(key, func(c Column) bool { return c.Filter })
		}
		c.Key, numeric = col.Name, col.Numeric
		allowed = listOps
		if col.Numeric {
			allowed = numericOps
		}
		if (op == In || op == NotIn) && !col.Numeric && !col.List {
			return c, fault.New(fault.Invalid, "Only [%s] attributes support comparison with a list of quoted string values.",
				strings.Join(g.names(func(c Column) bool { return c.List }), ", "))
		}
	case Metric:
		allowed, numeric = numericOps, true
	case Dataset:
		allowed = listOps
		if key != "name" && key != "digest" && key != "context" {
			return c, fault.New(fault.Invalid, "Invalid dataset key '%s' specified. Valid keys are 'name, digest, context'", clip(key))
		}
	case Param, Tag:
		allowed = textOps
		if g.Nulls {
			allowed = nullOps
		}
	}
	if !slices.Contains(allowed, op) {
		return c, fault.New(fault.Invalid, "Invalid comparator '%s' not one of '%s'", op, joinOps(allowed))
	}
	switch op {
	case IsNull, IsNotNull:
		return c, nil
	case In, NotIn:
		c.List, err = p.list()
		return c, err
	default:
	}
	v := p.next()
	if numeric {
		if v.kind == tokenText && entity == Attribute { // MLflow takes quoted numbers for attributes
			v.kind = tokenNumber
		}
		n, err := strconv.ParseFloat(v.text, 64)
		if v.kind != tokenNumber || err != nil {
			return c, fault.New(fault.Invalid, "Expected numeric value type for %s. Found '%s'", entity, clip(v.text))
		}
		c.Number = n
		return c, nil
	}
	if v.kind != tokenText && v.kind != tokenQuoted {
		return c, fault.New(fault.Invalid, "Expected a quoted string value for %s (e.g. 'my-value'). Got value '%s'", entity, clip(v.text))
	}
	c.Text = v.text
	return c, nil
}

func (g Grammar) identifier(p *parser) (Entity, string, error) {
	t := p.next()
	if t.kind != tokenName && t.kind != tokenQuoted {
		return "", "", fault.New(fault.Invalid, "Invalid clause(s) in filter string: '%s'", clip(t.text))
	}
	parts := t.parts
	if len(parts) == 1 {
		return Attribute, parts[0], nil
	}
	entity, ok := entityNames[parts[0]]
	if !ok || (entity != Attribute && !slices.Contains(g.Entities, entity)) {
		valid := []string{string(Attribute)}
		for _, e := range g.Entities {
			valid = append(valid, string(e))
		}
		return "", "", fault.New(fault.Invalid, "Invalid entity type '%s'. Valid values are ['%s']", clip(parts[0]), strings.Join(valid, "', '"))
	}
	return entity, strings.Join(parts[1:], "."), nil
}

func (g Grammar) badAttribute(key string, valid func(Column) bool) error {
	return fault.New(fault.Invalid, "Invalid attribute key '%s' specified. Valid keys are '%s'", clip(key), strings.Join(g.names(valid), ", "))
}

func (g Grammar) names(valid func(Column) bool) []string {
	var names []string
	for spelling, c := range g.Attributes {
		if valid(c) && spelling == c.Name {
			names = append(names, spelling)
		}
	}
	slices.Sort(names)
	return names
}

func joinOps(ops []Op) string {
	s := make([]string, len(ops))
	for i, op := range ops {
		s[i] = string(op)
	}
	return strings.Join(s, ", ")
}

func clip(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}
