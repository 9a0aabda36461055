// Package manifest reads what people write: YAML (or JSON) documents of the
// form {api_version, kind, name, project, spec}. A wrong field is an error that
// names the line, the field and the nearest right name; nothing is guessed.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Limits of a manifest file. An alias may be used, but what it expands to
// counts, so a few lines cannot become gigabytes.
const (
	MaxBytes     = 1 << 20
	MaxDocuments = 200
	maxDepth     = 32
	maxNodes     = 100_000
)

// APIVersion is the only one there is.
const APIVersion = "falaj/v1"

// Document is one object of a manifest.
type Document struct {
	Kind    string
	Name    string
	Project string // empty: the caller's project
	Line    int    // where the document begins
	// IfRevision is the revision that the object must have, from the request's
	// If-Match; 0 is any.
	IfRevision int64
	spec       ast.Node
}

type header struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Project    string `json:"project"`
	Spec       any    `json:"spec"`
}

// Parse splits a file into documents and checks their headers. kinds are the
// kinds that exist. Errors are fault.Invalid.
func Parse(file []byte, kinds []string) ([]Document, error) {
	if len(file) > MaxBytes {
		return nil, fault.New(fault.TooLarge, "a manifest may have %d bytes, this one has %d", MaxBytes, len(file))
	}
	if bytes.IndexByte(file, 0) >= 0 {
		return nil, fault.New(fault.Invalid, "the manifest holds a NUL byte: is it a text file?")
	}
	parsed, err := parse(file)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s", syntax(err))
	}
	var docs []Document
	for _, d := range parsed.Docs {
		if d.Body == nil || d.Body.Type() == ast.NullType {
			continue
		}
		doc, err := document(d.Body, kinds)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
		if len(docs) > MaxDocuments {
			return nil, fault.New(fault.TooLarge, "a manifest may have %d documents", MaxDocuments)
		}
	}
	if len(docs) == 0 {
		return nil, fault.New(fault.Invalid, "the manifest has no document")
	}
	return docs, nil
}

// parse shields callers from a panic of the YAML parser on odd input.
func parse(file []byte) (f *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("not YAML: %v", p)
		}
	}()
	return parser.ParseBytes(file, 0)
}

func syntax(err error) string {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		p := y.GetToken().Position
		return fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, y.GetMessage())
	}
	return err.Error()
}

func document(body ast.Node, kinds []string) (Document, error) {
	var h header
	spec := fieldOf(body, "spec")
	if _, err := decode(body, &h, "", map[string]bool{"spec": true}); err != nil {
		return Document{}, err
	}
	doc := Document{Kind: h.Kind, Name: h.Name, Project: h.Project, Line: lineOf(body), spec: spec}
	at := func(field string) string {
		if n := fieldOf(body, field); n != nil {
			return fmt.Sprintf("line %d: ", lineOf(n))
		}
		return fmt.Sprintf("line %d: ", doc.Line)
	}
	switch {
	case h.APIVersion != APIVersion:
		return Document{}, fault.New(fault.Invalid, "%sapi_version is %q", at("api_version"), h.APIVersion).WithHint("Write `api_version: %s`.", APIVersion)
	case !slices.Contains(kinds, h.Kind):
		return Document{}, fault.New(fault.Invalid, "%skind %q does not exist%s", at("kind"), h.Kind, nearest(h.Kind, kinds)).
			WithHint("Kinds: %s.", strings.Join(kinds, ", "))
	case h.Name == "":
		return Document{}, fault.New(fault.Invalid, "line %d: the %s has no name", doc.Line, h.Kind).WithHint("Add a `name:` line.")
	}
	return doc, nil
}

// Into decodes the spec into a pointer to struct, by its json tags.
func (d Document) Into(spec any) error {
	_, err := d.JSON(spec)
	return err
}

// JSON is Into, and the spec as JSON with all that is written there and nothing
// else.
func (d Document) JSON(spec any) (json.RawMessage, error) {
	if d.spec == nil {
		return json.RawMessage("{}"), nil
	}
	return decode(d.spec, spec, "spec", nil)
}

// decode checks names and shape against the type first, where lines are known,
// and then lets encoding/json fill it, from the JSON that it returns.
func decode(n ast.Node, into any, path string, opaque map[string]bool) (json.RawMessage, error) {
	c := checker{anchors: map[string]ast.Node{}, opaque: opaque}
	value, err := c.value(n, reflect.TypeOf(into).Elem(), path, 0)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(value)
	if err != nil {
		return nil, fault.New(fault.Invalid, "line %d: %s: %v", lineOf(n), path, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fault.New(fault.Invalid, "line %d: %s must be a %s, not a %s", lineOf(n), join(path, t.Field), t.Type, t.Value)
		}
		return nil, fault.Wrap(fault.New(fault.Invalid, "%v", err), "line %d: %s", lineOf(n), path)
	}
	return b, nil
}

type checker struct {
	anchors map[string]ast.Node
	opaque  map[string]bool // fields left for a later decode
	nodes   int
}

// exponentRE is a number of YAML 1.2 without a point, 1e-5, which the parser takes for
// text.
var exponentRE = regexp.MustCompile(`^[-+]?[0-9]+[eE][-+]?[0-9]+$`)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value turns a node into what encoding/json marshals, checking it against t.
func (c *checker) value(n ast.Node, t reflect.Type, path string, depth int) (any, error) {
	if c.nodes++; c.nodes > maxNodes || depth > maxDepth {
		return nil, fault.New(fault.TooLarge, "line %d: the manifest is nested too deep or expands to too much", lineOf(n))
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil, nil //nolint:nilnil // YAML null is JSON null
	case *ast.AnchorNode:
		c.anchors[n.Name.String()] = n.Value
		return c.value(n.Value, t, path, depth+1)
	case *ast.AliasNode:
		target, ok := c.anchors[n.Value.String()]
		if !ok {
			return nil, fault.New(fault.Invalid, "line %d: alias *%s has no anchor before it", lineOf(n), n.Value)
		}
		return c.value(target, t, path, depth+1)
	case *ast.TagNode:
		return nil, fault.New(fault.Invalid, "line %d: %s: YAML tags are not used here", lineOf(n), path)
	case *ast.MappingValueNode, *ast.MappingNode:
		return c.mapping(n, t, path, depth)
	case *ast.SequenceNode:
		return c.sequence(n, t, path, depth)
	}
	return c.scalar(n, t, path)
}

func (c *checker) mapping(n ast.Node, t reflect.Type, path string, depth int) (any, error) {
	custom := reflect.PointerTo(t).Implements(unmarshaler)
	isStruct := t.Kind() == reflect.Struct && !custom && t != reflect.TypeFor[time.Time]()
	if !isStruct && t.Kind() != reflect.Map && t.Kind() != reflect.Interface && !custom {
		return nil, fault.New(fault.Invalid, "line %d: %s must be %s, not a mapping", lineOf(n), path, nameOf(t))
	}
	var fields map[string]reflect.Type
	if isStruct {
		fields = fieldsOf(t)
	}
	out := map[string]any{}
	for _, kv := range pairs(n) {
		key, err := keyOf(kv, path)
		if err != nil {
			return nil, err
		}
		if _, dup := out[key]; dup {
			return nil, fault.New(fault.Invalid, "line %d: %s is written twice", lineOf(kv.Key), join(path, key))
		}
		elem := reflect.TypeFor[any]()
		switch {
		case isStruct:
			ft, ok := fields[key]
			if !ok {
				names := make([]string, 0, len(fields))
				for name := range fields {
					names = append(names, name)
				}
				slices.Sort(names)
				return nil, fault.New(fault.Invalid, "line %d: unknown field %q%s%s", lineOf(kv.Key), key, in(path), nearest(key, names)).
					WithHint("Fields here: %s.", strings.Join(names, ", "))
			}
			elem = ft
		case t.Kind() == reflect.Map:
			elem = t.Elem()
		}
		if c.opaque[key] && depth == 0 {
			out[key] = nil
			continue
		}
		if out[key], err = c.value(kv.Value, elem, join(path, key), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *checker) sequence(n *ast.SequenceNode, t reflect.Type, path string, depth int) (any, error) {
	elem := reflect.TypeFor[any]()
	switch {
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		elem = t.Elem()
	case t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(unmarshaler):
	default:
		return nil, fault.New(fault.Invalid, "line %d: %s must be %s, not a list", lineOf(n), path, nameOf(t))
	}
	out := make([]any, 0, len(n.Values))
	for i, v := range n.Values {
		x, err := c.value(v, elem, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

func (c *checker) scalar(n ast.Node, t reflect.Type, path string) (any, error) {
	var v any
	switch n := n.(type) {
	case *ast.StringNode:
		v = n.Value
		if n.Token.Type == token.StringType && exponentRE.MatchString(n.Value) { // not quoted
			f, err := strconv.ParseFloat(n.Value, 64)
			if err != nil {
				return nil, fault.New(fault.Invalid, "line %d: %s: %.40s is too large a number", lineOf(n), path, n.Value)
			}
			v = f
		}
	case *ast.LiteralNode:
		v = n.Value.Value
	case *ast.IntegerNode:
		v = n.Value
	case *ast.FloatNode:
		v = n.Value
	case *ast.BoolNode:
		v = n.Value
	default:
		return nil, fault.New(fault.Invalid, "line %d: %s: this kind of YAML value is not used here", lineOf(n), path)
	}
	if reflect.PointerTo(t).Implements(unmarshaler) || t.Kind() == reflect.Interface || t == reflect.TypeFor[time.Time]() {
		return v, nil
	}
	_, isString := v.(string)
	_, isBool := v.(bool)
	_, isFloat := v.(float64)
	ok := true
	switch t.Kind() {
	case reflect.String:
		if !isString { // `python: 3.11` and `version: 2` mean the text that stands there
			v = n.GetToken().Value
		}
	case reflect.Bool:
		ok = isBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		ok = !isString && !isBool && !isFloat
	case reflect.Float32, reflect.Float64:
		ok = !isString && !isBool
	default:
		ok = false
	}
	if !ok {
		err := fault.New(fault.Invalid, "line %d: %s must be %s, not %q", lineOf(n), path, nameOf(t), n.GetToken().Value)
		if hint := resource.AcceleratorHint(path); hint != "" {
			err = err.WithHint("%s", hint)
		}
		return nil, err
	}
	return v, nil
}

func pairs(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func keyOf(kv *ast.MappingValueNode, path string) (string, error) {
	if s, ok := kv.Key.(*ast.StringNode); ok {
		return s.Value, nil
	}
	if _, merge := kv.Key.(*ast.MergeKeyNode); merge {
		return "", fault.New(fault.Invalid, "line %d: %s: YAML merge keys are not used here", lineOf(kv.Key), path)
	}
	return kv.Key.GetToken().Value, nil
}

func fieldOf(n ast.Node, name string) ast.Node {
	for _, kv := range pairs(n) {
		if kv.Key.GetToken().Value == name {
			return kv.Value
		}
	}
	return nil
}

// fieldsOf maps the JSON names of a struct, embedded structs included.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == "-":
		case f.Anonymous && tag == "":
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			maps.Copy(fields, fieldsOf(ft))
		case !f.IsExported():
		case tag != "":
			fields[tag] = f.Type
		default:
			fields[f.Name] = f.Type
		}
	}
	return fields
}

func nameOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	default:
		return "another kind of value"
	}
}

func lineOf(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		return lineOf(m.Values[0])
	}
	if kv, ok := n.(*ast.MappingValueNode); ok {
		return lineOf(kv.Key)
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func in(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}

// nearest suggests the closest name when it is close enough to be a slip.
func nearest(name string, names []string) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := levenshtein.ComputeDistance(strings.ToLower(name), strings.ToLower(n)); d < distance {
			best, distance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
