package sqlworker

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/fault"
)

// tableFunctions are those that read nothing but their arguments.
var tableFunctions = []string{"range", "generate_series", "unnest"}

// maxDepth bounds how deep a query's tree may be.
const maxDepth = 1000

// tree is DuckDB's own parse of a query, as json_serialize_sql gives it.
type tree struct {
	Error      bool   `json:"error"`
	Message    string `json:"error_message"`
	Position   string `json:"position"`
	Statements []struct {
		Node node `json:"node"`
	} `json:"statements"`
}

type node = map[string]any

// analyse finds the tables of a query, and a superset of the columns that it
// reads of each. Error: fault.Invalid for what is not one SELECT of tables.
func analyse(serialized string) (child.SQLAnalysis, error) {
	var t tree
	if err := json.Unmarshal(finite(serialized), &t); err != nil {
		return child.SQLAnalysis{}, fault.New(fault.Internal, "DuckDB returned an invalid syntax tree: %v", err)
	}
	if t.Error {
		if t.Position != "" {
			f := fault.New(fault.Invalid, "%s (at character %s)", t.Message, t.Position)
			if strings.Contains(t.Message, `at or near "@"`) {
				f = f.WithHint(`Quote the name of a version: FROM "orders@2".`)
			}
			return child.SQLAnalysis{}, f
		}
		if strings.Contains(t.Message, "can be serialized") {
			return child.SQLAnalysis{}, fault.New(fault.Invalid, "only SELECT statements can be run").
				WithHint("Write a pivot as aggregates with FILTER: SELECT sum(x) FILTER (WHERE k = 'a') AS a. Datasets are changed by importing, and listed by `falaj get datasets`.")
		}
		return child.SQLAnalysis{}, fault.New(fault.Invalid, "%s", t.Message).WithHint("A query is one SELECT statement; datasets are changed by importing.")
	}
	if len(t.Statements) != 1 {
		return child.SQLAnalysis{}, fault.New(fault.Invalid, "%d statements instead of one", len(t.Statements)).WithHint("Send one SELECT at a time.")
	}
	w := walker{uses: map[string]*use{}, names: map[string]bool{}}
	if err := w.walk(t.Statements[0].Node, nil, nil, 0); err != nil {
		return child.SQLAnalysis{}, err
	}
	return w.result(), nil
}

// finite is DuckDB's JSON with null for the numbers that JSON has none for: it writes NaN
// and Infinity, such as the value of 1e400, as they are. Nothing here asks for a number.
func finite(serialized string) []byte {
	words := []string{"-Infinity", "Infinity", "-inf", "inf", "NaN", "-nan", "nan"}
	out := make([]byte, 0, len(serialized))
	for i, quoted := 0, false; i < len(serialized); i++ {
		c := serialized[i]
		switch {
		case quoted && c == '\\' && i+1 < len(serialized):
			out = append(out, c)
			i++
			c = serialized[i]
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '-' || c == 'I' || c == 'i' || c == 'N' || c == 'n'):
			if w := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(serialized[i:], w) }); w >= 0 {
				out = append(out, "null"...)
				i += len(words[w]) - 1
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

// use is what is known of one table.
type use struct {
	all     bool
	aliases []string
}

type walker struct {
	uses      map[string]*use // by lower-case name
	names     map[string]bool // identifiers, lower case
	wholeRows []string        // last parts of column references: a table's alias there means its whole row
	qualified []string        // relations of "t.*"
}

// scope is the names of the common table expressions that a node sees.
type scope struct {
	parent *scope
	names  []string
}

func (s *scope) has(name string) bool {
	for ; s != nil; s = s.parent {
		if slices.Contains(s.names, name) {
			return true
		}
	}
	return false
}

func text(n node, key string) string {
	s, _ := n[key].(string)
	return strings.ToLower(s)
}

// walk visits a value of the tree. from lists the tables that stand directly in
// the FROM of the innermost SELECT.
func (w *walker) walk(v any, sc *scope, from *[]*use, depth int) error {
	if depth > maxDepth {
		return fault.New(fault.Invalid, "the query is nested too deeply")
	}
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			if err := w.walk(e, sc, from, depth+1); err != nil {
				return err
			}
		}
	case node:
		return w.node(x, sc, from, depth+1)
	}
	return nil
}

func (w *walker) node(n node, sc *scope, from *[]*use, depth int) error {
	kind, _ := n["type"].(string)
	if strings.HasSuffix(kind, "_NODE") {
		// A query of its own: its stars mean its own tables.
		own := &scope{parent: sc}
		if kind == "RECURSIVE_CTE_NODE" {
			own.names = append(own.names, text(n, "cte_name"))
		}
		if err := w.expressions(n, own, depth); err != nil {
			return err
		}
		var tables []*use
		if f, ok := n["from_table"]; ok { // first, so that stars find its tables
			if err := w.walk(f, own, &tables, depth); err != nil {
				return err
			}
		}
		for key, child := range n {
			if key == "cte_map" || key == "from_table" {
				continue
			}
			if err := w.walk(child, own, &tables, depth); err != nil {
				return err
			}
		}
		return nil
	}
	switch kind {
	case "BASE_TABLE":
		return w.table(n, sc, from)
	case "TABLE_FUNCTION":
		f, _ := n["function"].(node)
		if name := text(f, "function_name"); !slices.Contains(tableFunctions, name) {
			return fault.New(fault.Invalid, "the table function %s cannot be used here", name).
				WithHint("A query reads only datasets. Import the file to query it.")
		}
	case "FUNCTION":
		if text(n, "function_name") == "current_setting" {
			return setting(n)
		}
	case "COLUMN_REF":
		parts, _ := n["column_names"].([]any)
		for i, p := range parts {
			name, _ := p.(string)
			name = strings.ToLower(name)
			w.names[name] = true
			if i == len(parts)-1 { // in "t.a" t is no row, and a may be one only if it is a table's alias
				w.wholeRows = append(w.wholeRows, name)
			}
		}
	case "STAR":
		if rel := text(n, "relation_name"); rel != "" {
			w.qualified = append(w.qualified, rel)
		} else if from != nil {
			for _, u := range *from {
				u.all = true
			}
		}
	case "PIVOT":
		return w.allOf(n, sc, from, depth)
	case "JOIN":
		if ref, _ := n["ref_type"].(string); ref == "NATURAL" {
			return w.allOf(n, sc, from, depth)
		}
		using, _ := n["using_columns"].([]any)
		for _, c := range using {
			s, _ := c.(string)
			w.names[strings.ToLower(s)] = true
		}
	}
	for _, child := range n {
		if err := w.walk(child, sc, from, depth); err != nil {
			return err
		}
	}
	return nil
}

// machineSettings are those in which DuckDB notes absolute paths, whatever we set.
var machineSettings = []string{"allowed_directories", "allowed_paths"}

// setting permits current_setting of a setting that is named outright, and that holds no
// path of the machine.
func setting(call node) error {
	arguments, _ := call["children"].([]any)
	for _, a := range arguments {
		argument, _ := a.(node)
		value, _ := argument["value"].(node)
		name, constant := value["value"].(string)
		if !constant || slices.Contains(machineSettings, strings.ToLower(name)) {
			return fault.New(fault.Invalid, "current_setting cannot be used here with %q", name).
				WithHint("Name a setting of the query, such as 'TimeZone', in quotes.")
		}
	}
	return nil
}

// allOf visits a table reference that needs every column of what is in it.
func (w *walker) allOf(n node, sc *scope, from *[]*use, depth int) error {
	var inside []*use
	for _, child := range n {
		if err := w.walk(child, sc, &inside, depth); err != nil {
			return err
		}
	}
	for _, u := range inside {
		u.all = true
	}
	if from != nil {
		*from = append(*from, inside...)
	}
	return nil
}

// expressions visits the common table expressions of a query in order: each sees
// those before it.
func (w *walker) expressions(n node, sc *scope, depth int) error {
	m, _ := n["cte_map"].(node)
	list, _ := m["map"].([]any)
	for _, e := range list {
		entry, _ := e.(node)
		value, _ := entry["value"].(node)
		if err := w.walk(value, sc, nil, depth+1); err != nil {
			return err
		}
		sc.names = append(sc.names, text(entry, "key"))
	}
	return nil
}

func (w *walker) table(n node, sc *scope, from *[]*use) error {
	name := text(n, "table_name")
	schema, catalog := text(n, "schema_name"), text(n, "catalog_name")
	if schema == "" && catalog == "" && sc.has(name) {
		return nil
	}
	if catalog != "" || schema != "" && schema != "main" {
		return fault.New(fault.Invalid, "there is no table %q", strings.Trim(catalog+"."+schema+"."+name, ".")).
			WithHint(`A table is a dataset: flights, or "flights@3" for a version.`)
	}
	u := w.uses[name]
	if u == nil {
		u = &use{}
		w.uses[name] = u
	}
	alias := text(n, "alias")
	if alias == "" {
		alias = name
	}
	u.aliases = append(u.aliases, alias)
	if renamed, _ := n["column_name_alias"].([]any); len(renamed) > 0 {
		u.all = true // names by position
	}
	if from != nil {
		*from = append(*from, u)
	}
	return nil
}

func (w *walker) result() child.SQLAnalysis {
	a := child.SQLAnalysis{Tables: []child.SQLUse{}, Identifiers: []string{}}
	for name, u := range w.uses {
		for _, alias := range u.aliases {
			if slices.Contains(w.wholeRows, alias) || slices.Contains(w.qualified, alias) {
				u.all = true
			}
		}
		a.Tables = append(a.Tables, child.SQLUse{Name: name, All: u.all})
	}
	slices.SortFunc(a.Tables, func(x, y child.SQLUse) int { return strings.Compare(x.Name, y.Name) })
	for name := range w.names {
		a.Identifiers = append(a.Identifiers, name)
	}
	slices.Sort(a.Identifiers)
	return a
}
