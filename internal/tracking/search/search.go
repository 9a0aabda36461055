// Package search reads the filter and order_by language of MLflow's searches.
//
//	filter     := "" | comparison ("AND" comparison)*       an AND too many is ignored, as by MLflow
//	comparison := identifier op value | identifier "IS" ["NOT"] "NULL"
//	identifier := [entity "."] key          no entity means an attribute
//	key        := bare | `in back ticks` | "in double quotes" | 'in single quotes', behind an entity
//	op         := = != > >= < <= LIKE ILIKE IN "NOT IN"
//	value      := number | 'text' | "text" | ('text', …) | ("text", …)
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
	MaxFilter      = 512 << 10 // bytes of a filter; SQLite takes statements of 1,000,000
	MaxComparisons = 64        // comparisons in a filter, values in a list are bounded by MaxFilter
	MaxOrder       = 16 << 10  // bytes of an order_by clause
	MaxOrders      = 16        // order_by clauses
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

// Kind is what is searched. Each has its own words in MLflow.
type Kind uint8

// The kinds.
const (
	Runs Kind = iota
	Experiments
	Registry // models and their versions
	LoggedModels
)

// Grammar is what one kind of search allows.
type Grammar struct {
	Of         Kind
	Attributes map[string]Column // by every accepted spelling
	Entities   []Entity          // beside attributes
	Nulls      bool              // IS NULL and IS NOT NULL on params and tags
	OrderKeys  []string          // what the message about an unknown order key names, where that has words of its own
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
	if filter != "" && len(tokens) == 0 {
		if g.Of == LoggedModels {
			return nil, fault.New(fault.Invalid, "Invalid filter string: '%s'. Expected a single SQL expression.", clip(filter))
		}
		return nil, fault.New(fault.Invalid, "Invalid filter '%s'. Could not be parsed.", clip(filter))
	}
	p := parser{tokens: tokens, filter: filter}
	var out []Comparison
	for {
		joined := len(out) == 0
		for p.keyword("AND") { // MLflow also takes one too many
			joined = true
		}
		if p.end() {
			break
		}
		if !joined {
			if g.Of == LoggedModels {
				return nil, fault.New(fault.Invalid, "Invalid filter string: \"%s\". Expected a list of comparisons separated by 'AND' (e.g. 'metrics.loss > 0.1 AND params.lr = 0.01').", clip(filter))
			}
			return nil, fault.New(fault.Invalid, "Invalid clause(s) in filter string: %s", g.clause(p.peek().text)).
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
		if len(clause) > MaxOrder {
			return nil, bad
		}
		tokens, err := lex(clause)
		if err != nil || len(tokens) == 0 {
			return nil, bad
		}
		p := parser{tokens: tokens, filter: clause}
		if kind := p.peek().kind; kind != tokenName && kind != tokenQuoted {
			return nil, bad
		}
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
		if !p.end() {
			return nil, bad
		}
		if entity == Dataset {
			return nil, fault.New(fault.Invalid, "Invalid identifier type 'dataset'")
		}
		if entity == Attribute {
			col, ok := g.Attributes[key]
			switch {
			case ok && col.Sort:
			case g.Of == LoggedModels:
				return nil, fault.New(fault.Invalid, "Invalid order by field name: %s", clip(key))
			case len(g.OrderKeys) > 0:
				return nil, fault.New(fault.Invalid, "Invalid order by key '%s' specified. Valid keys are '%s'", clip(key), set(g.OrderKeys...))
			default:
				return nil, g.badAttribute(key, func(c Column) bool { return c.Sort })
			}
			o.Key = col.Name
		}
		// Of logged models a metric may be named once for each data set that it was measured on.
		if g.Of != LoggedModels && slices.ContainsFunc(out, func(x Order) bool { return x.Entity == o.Entity && x.Key == o.Key }) {
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
	c := Comparison{Entity: entity, Key: key}
	var col Column
	switch entity {
	case Attribute:
		var ok bool
		if col, ok = g.Attributes[key]; !ok || !col.Filter {
			return c, g.badAttribute(key, func(c Column) bool { return c.Filter })
		}
		c.Key = col.Name
	case Dataset:
		if key != "name" && key != "digest" && key != "context" {
			return c, fault.New(fault.Invalid, "Invalid dataset key '%s' specified. Valid keys are '%s'", clip(key), set("name", "digest", "context"))
		}
	default:
	}
	if c.Op, err = p.operator(); err != nil {
		return c, err
	}
	switch c.Op {
	case IsNull, IsNotNull:
		switch {
		case !g.Nulls:
			return c, fault.New(fault.Invalid, "Invalid comparison clause. Expected 3 tokens found 2")
		case entity != Param && entity != Tag && g.Of == Experiments:
			return c, fault.New(fault.Invalid, "IS NULL / IS NOT NULL is only supported for tags, not for attribute '%s'", clip(key))
		case entity != Param && entity != Tag:
			return c, fault.New(fault.Invalid, "IS NULL / IS NOT NULL is only supported for tags and params, not for '%s' '%s'", entity, clip(key))
		}
		return c, nil
	default:
	}
	if g.Of == LoggedModels {
		if err := g.operates(c, key, col); err != nil {
			return c, err
		}
	}
	if err := g.value(p, &c, key, col); err != nil {
		return c, err
	}
	return c, g.comparable(c, col)
}

// operates refuses an operator that a key of logged models does not take.
func (g Grammar) operates(c Comparison, key string, col Column) error {
	plural := map[Entity]string{Attribute: "attributes", Metric: "metrics", Param: "params", Tag: "tags"}[c.Entity]
	numeric := c.Entity == Metric || col.Numeric
	switch {
	case numeric && !slices.Contains(numericOps, c.Op):
		return fault.New(fault.Invalid, "Invalid comparison operator for %s.%s: '%s'. Expected one of ('<', '<=', '>', '>=', '=', '!=').", plural, clip(key), c.Op)
	case !numeric && !slices.Contains(listOps, c.Op):
		return fault.New(fault.Invalid, "Invalid comparison operator for %s.%s: '%s'. Expected one of ('=', '!=', 'LIKE', 'ILIKE', 'IN', 'NOT IN').", plural, clip(key), c.Op)
	}
	return nil
}

// value reads what is compared with.
func (g Grammar) value(p *parser, c *Comparison, key string, col Column) (err error) {
	if t := p.peek(); t.kind == tokenPunct && t.text == "(" {
		switch {
		case c.Entity == Metric:
			return fault.New(fault.Invalid, "Expected numeric value type for metric. Found %s", clip(p.rest()))
		case c.Entity == Attribute && col.Numeric:
			return fault.New(fault.Invalid, "Expected numeric value type for numeric attribute: %s. Found %s", clip(key), clip(p.rest()))
		case (c.Entity == Param || c.Entity == Tag) && g.Of != LoggedModels:
			return fault.New(fault.Invalid, "Expected a quoted string value for %s (e.g. 'my-value'). Got value %s", c.Entity, clip(p.rest()))
		case c.Entity == Attribute && !col.List:
			return fault.New(fault.Invalid, "Only ['%s'] attributes support comparison with a list of quoted string values.",
				strings.Join(g.names(func(c Column) bool { return c.List }), "', '"))
		}
		c.List, err = p.list()
		return err
	}
	v := p.next()
	if c.Entity == Metric || c.Entity == Attribute && col.Numeric {
		n, err := strconv.ParseFloat(v.text, 64)
		switch {
		case err == nil && (v.kind == tokenNumber || v.kind == tokenText && g.Of == Registry):
			c.Number = n
			return nil
		case c.Entity == Metric:
			return fault.New(fault.Invalid, "Expected numeric value type for metric. Found %s", clip(v.raw))
		}
		return fault.New(fault.Invalid, "Expected numeric value type for numeric attribute: %s. Found %s", clip(key), clip(v.raw))
	}
	switch {
	case v.isText():
		c.Text = v.text
		return nil
	case v.kind == tokenName || v.kind == tokenQuoted:
		return fault.New(fault.Invalid, "Parameter value is either not quoted or unidentified quote types used for string value %s. Use either single or double quotes.", clip(v.raw))
	case c.Entity == Dataset:
		return fault.New(fault.Invalid, "Expected a quoted string value for dataset attributes. Got value %s", clip(v.raw))
	case c.Entity != Attribute:
		return fault.New(fault.Invalid, "Expected a quoted string value for %s (e.g. 'my-value'). Got value %s", c.Entity, clip(v.raw))
	case g.Of == Registry && v.kind == tokenNumber && len(g.spellings(func(c Column) bool { return c.Numeric && c.Filter })) > 0:
		return fault.New(fault.Invalid, "Only the '%s' attributes support comparison with numeric values.", set(g.spellings(func(c Column) bool { return c.Numeric })...))
	case g.Of == Registry:
		return fault.New(fault.Invalid, "Expected a quoted string value or a list of quoted string values for attributes. Got value %s", clip(v.raw))
	}
	return fault.New(fault.Invalid, "Expected a quoted string value for attributes. Got value %s", clip(v.raw))
}

// clause is a part of a filter as messages have it.
func (g Grammar) clause(text string) string {
	if g.Of == Runs {
		return "'" + clip(text) + "'"
	}
	return clip(text)
}

// comparable refuses an operator that the key does not take. The texts are
// MLflow's, with the quotes that it forgets.
func (g Grammar) comparable(c Comparison, col Column) error {
	allowed, said, closing := listOps, listOps, ""
	switch c.Entity {
	case Attribute:
		closing = "'"
		if col.Numeric {
			allowed, closing = numericOps, ""
		}
	case Metric:
		allowed, said = numericOps, numericOps
	case Param, Tag:
		allowed, said = textOps, textOps
		if g.Of == LoggedModels {
			allowed = listOps
		}
		if g.Nulls {
			said = nullOps
		}
		if c.Entity == Param {
			closing = "'"
		}
	case Dataset:
	}
	if !slices.Contains(allowed, c.Op) || (c.Op == In || c.Op == NotIn) != (c.List != nil) {
		switch {
		case c.Entity == Tag && (g.Of == Registry || g.Of == Experiments):
			return fault.New(fault.Invalid, "Invalid comparator for tag: %s", c.Op)
		case g.Of == Registry && col.Numeric:
			return fault.New(fault.Invalid, "Invalid comparator for attribute %s: %s", col.Name, c.Op)
		case g.Of == Registry:
			return fault.New(fault.Invalid, "Invalid comparator for attribute: %s", c.Op)
		}
		words := make([]string, len(said))
		for i, op := range said {
			words[i] = string(op)
		}
		return fault.New(fault.Invalid, "Invalid comparator '%s' not one of '%s%s", c.Op, set(words...), closing)
	}
	return nil
}

// words are the entities that a search takes, by how it may spell them.
func (g Grammar) entity(word string) (Entity, error) {
	switch g.Of {
	case Experiments, Registry:
		switch word {
		case "attribute":
			return Attribute, nil
		case "tag", "tags":
			return Tag, nil
		}
		return "", fault.New(fault.Invalid, "Invalid entity type '%s'. Valid entity types are ('attribute', 'tag', 'tags')", clip(word))
	case LoggedModels:
		switch word {
		case "attributes":
			return Attribute, nil
		case "metrics":
			return Metric, nil
		case "params":
			return Param, nil
		case "tags":
			return Tag, nil
		}
		return "", fault.New(fault.Invalid, "Invalid entity type: '%s'. Expected one of ['attributes', 'metrics', 'params', 'tags'].", clip(word))
	case Runs:
	}
	if e, ok := entityNames[word]; ok && (e == Attribute || slices.Contains(g.Entities, e)) {
		return e, nil
	}
	return "", fault.New(fault.Invalid, "Invalid entity type '%s'. Valid values are ['metric', 'parameter', 'tag', 'attribute', 'dataset']", clip(word))
}

func (g Grammar) identifier(p *parser) (Entity, string, error) {
	t := p.next()
	if t.kind != tokenName && t.kind != tokenQuoted {
		return "", "", fault.New(fault.Invalid, "Invalid clause(s) in filter string: '%s'", clip(t.text))
	}
	if len(t.parts) == 1 {
		return Attribute, t.parts[0], nil
	}
	entity, err := g.entity(t.parts[0])
	return entity, strings.Join(t.parts[1:], "."), err
}

func (g Grammar) badAttribute(key string, valid func(Column) bool) error {
	return fault.New(fault.Invalid, "Invalid attribute key '%s' specified. Valid keys are '%s'", clip(key), set(g.spellings(valid)...))
}

// set is a set of texts as Python writes it.
func set(words ...string) string { return "{'" + strings.Join(words, "', '") + "'}" }

// spellings are all ways to write the attributes.
func (g Grammar) spellings(valid func(Column) bool) []string {
	var out []string
	for spelling, c := range g.Attributes {
		if valid(c) {
			out = append(out, spelling)
		}
	}
	slices.Sort(out)
	return out
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

func clip(s string) string { return fault.Clip(s, 200) }
