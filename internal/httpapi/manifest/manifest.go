// Package manifest reads what people write: YAML (or JSON) documents of the
// form {api_version, kind, name, project, spec}. A wrong field is an error that
// names the line, the field and the nearest right name; nothing is guessed.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/yamldoc"
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
	spec       *yamldoc.Node
}

type header struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Project    string `json:"project"`
	Spec       any    `json:"spec"`
	// Status is what else there is to know of an object. `falaj get -o yaml` prints it, and
	// applying does not read it.
	Status any `json:"status"`
}

// Parse splits a file into documents and checks their headers. kinds are the
// kinds that exist. Errors are fault.Invalid.
func Parse(file []byte, kinds []string) ([]Document, error) {
	if len(file) > MaxBytes {
		return nil, fault.New(fault.TooLarge, "the manifest has %[2]d bytes; the maximum is %[1]d", MaxBytes, len(file))
	}
	if bytes.IndexByte(file, 0) >= 0 {
		return nil, fault.New(fault.Invalid, "the manifest contains a NUL byte; it must be a text file")
	}
	parsed, err := yamldoc.Documents(file)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s", err)
	}
	if len(parsed) == 0 {
		return nil, fault.New(fault.Invalid, "the manifest contains no document")
	}
	if len(parsed) > MaxDocuments {
		return nil, fault.New(fault.TooLarge, "the manifest has more than %d documents", MaxDocuments)
	}
	docs := make([]Document, 0, len(parsed))
	for _, body := range parsed {
		doc, err := document(body, kinds)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

func document(body *yamldoc.Node, kinds []string) (Document, error) {
	var h header
	spec := fieldOf(body, "spec")
	if _, err := decode(body, &h, "", map[string]bool{"spec": true, "status": true}); err != nil {
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

// Mentions reports whether a text of the spec has the name as a word, as points, points@2
// and SELECT a FROM points have points.
func (d Document) Mentions(name string) bool { return mentions(d.spec, name) }

func mentions(n *yamldoc.Node, name string) bool {
	if n == nil {
		return false
	}
	part := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_' || r == '.'
	}
	if n.Kind == yaml.ScalarNode {
		return slices.Contains(strings.FieldsFunc(n.Value, func(r rune) bool { return !part(r) }), name)
	}
	return slices.ContainsFunc(n.Content, func(n *yamldoc.Node) bool { return mentions(n, name) })
}

// decode checks names and shape against the type first, where lines are known,
// and then lets encoding/json fill it, from the JSON that it returns.
func decode(n *yamldoc.Node, into any, path string, opaque map[string]bool) (json.RawMessage, error) {
	c := checker{opaque: opaque}
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
	opaque map[string]bool // fields left for a later decode
	nodes  int
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value turns a node into what encoding/json marshals, checking it against t.
func (c *checker) value(n *yamldoc.Node, t reflect.Type, path string, depth int) (any, error) {
	if c.nodes++; c.nodes > maxNodes || depth > maxDepth {
		return nil, fault.New(fault.TooLarge, "line %d: the manifest is nested too deep or expands to too much", lineOf(n))
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n == nil:
		return nil, nil //nolint:nilnil // YAML null is JSON null
	case n.Kind == yaml.AliasNode:
		return c.value(n.Alias, t, path, depth+1)
	case yamldoc.Tagged(n):
		return nil, fault.New(fault.Invalid, "line %d: %s: YAML tags are not supported", lineOf(n), path)
	case yamldoc.IsNull(n):
		return nil, nil //nolint:nilnil // YAML null is JSON null
	case n.Kind == yaml.MappingNode:
		return c.mapping(n, t, path, depth)
	case n.Kind == yaml.SequenceNode:
		return c.sequence(n, t, path, depth)
	}
	return c.scalar(n, t, path)
}

func (c *checker) mapping(n *yamldoc.Node, t reflect.Type, path string, depth int) (any, error) {
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
	for key, value := range pairs(n) {
		name, err := keyOf(key, path)
		if err != nil {
			return nil, err
		}
		if _, dup := out[name]; dup {
			return nil, fault.New(fault.Invalid, "line %d: duplicate field %s", lineOf(key), join(path, name))
		}
		elem := reflect.TypeFor[any]()
		switch {
		case isStruct:
			ft, ok := fields[name]
			if !ok {
				names := slices.Sorted(maps.Keys(fields))
				return nil, fault.New(fault.Invalid, "line %d: unknown field %q%s%s", lineOf(key), name, in(path), nearest(name, names)).
					WithHint("Valid fields: %s.", strings.Join(names, ", "))
			}
			elem = ft
		case t.Kind() == reflect.Map:
			elem = t.Elem()
		}
		if c.opaque[name] && depth == 0 {
			out[name] = nil
			continue
		}
		if out[name], err = c.value(value, elem, join(path, name), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *checker) sequence(n *yamldoc.Node, t reflect.Type, path string, depth int) (any, error) {
	elem := reflect.TypeFor[any]()
	switch {
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		elem = t.Elem()
	case t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(unmarshaler):
	default:
		return nil, fault.New(fault.Invalid, "line %d: %s must be %s, not a list", lineOf(n), path, nameOf(t))
	}
	out := make([]any, 0, min(len(n.Content), maxNodes))
	for i, v := range n.Content {
		x, err := c.value(v, elem, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

func (c *checker) scalar(n *yamldoc.Node, t reflect.Type, path string) (any, error) {
	v, err := yamldoc.Scalar(n)
	if wrong, ok := errors.AsType[*yamldoc.Error](err); ok {
		return nil, fault.New(fault.Invalid, "line %d: %s: %s", lineOf(n), path, wrong.Message)
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
			v = n.Value
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
		err := fault.New(fault.Invalid, "line %d: %s must be %s, not %q", lineOf(n), path, nameOf(t), n.Value)
		if hint := resource.AcceleratorHint(path); hint != "" {
			err = err.WithHint("%s", hint)
		}
		return nil, err
	}
	return v, nil
}

// pairs are the keys and values of a mapping, none of another node.
func pairs(n *yamldoc.Node) iter.Seq2[*yamldoc.Node, *yamldoc.Node] {
	return func(yield func(key, value *yamldoc.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

func keyOf(key *yamldoc.Node, path string) (string, error) {
	switch {
	case key.Kind != yaml.ScalarNode:
		return "", fault.New(fault.Invalid, "line %d: %s: a key must be text", lineOf(key), path)
	case yamldoc.Tagged(key):
		return "", fault.New(fault.Invalid, "line %d: %s: YAML tags are not supported", lineOf(key), path)
	case key.Tag == "!!merge":
		return "", fault.New(fault.Invalid, "line %d: %s: YAML merge keys are not supported", lineOf(key), path)
	}
	return key.Value, nil
}

func fieldOf(n *yamldoc.Node, name string) *yamldoc.Node {
	for key, value := range pairs(n) {
		if key.Kind == yaml.ScalarNode && key.Value == name {
			return value
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

func lineOf(n *yamldoc.Node) int {
	if n == nil {
		return 0
	}
	return n.Line
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
