// Package yamldoc reads YAML, and JSON, which is YAML: the one YAML parser that Falaj's
// server and command line use for texts of others. Its time and memory grow with the size of
// the text, whatever the text says: at most 256 bytes of memory for a byte, and nesting ends
// at 10,000 levels in the scanner, before there is a tree.
//
// Callers bound the size of a text first, and walk aliases with a limit of their own: a node
// refers to the node that its alias names, so few lines may expand to many.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Node is a value of a document with the line and column at which it begins.
type Node = yaml.Node

// Error says where a text is wrong. Line is 0 when it is not known.
type Error struct {
	Line    int
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Message)
}

// Documents are the contents of a text's documents; empty ones are left out. An error is an
// *Error.
func Documents(text []byte) ([]*Node, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, &Error{Message: "it contains a NUL byte; check that it is a text file"}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var documents []*Node
	for {
		var document Node
		err := next(decoder, &document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, located(err, text)
		}
		for _, content := range document.Content {
			if content.Kind != yaml.ScalarNode || content.ShortTag() != "!!null" {
				documents = append(documents, content)
			}
		}
	}
}

// next shields callers from a panic of the parser.
func next(decoder *yaml.Decoder, into any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is not YAML: %v", p)
		}
	}()
	return decoder.Decode(into)
}

// Decode fills a struct, by its yaml tags, from the first document; a field that the struct
// lacks is an error. Aliases may expand to a few times the text.
func Decode(text []byte, into any) error {
	if bytes.IndexByte(text, 0) >= 0 {
		return &Error{Message: "it contains a NUL byte; check that it is a text file"}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := next(decoder, into); err != nil && !errors.Is(err, io.EOF) {
		return located(err, text)
	}
	return nil
}

// Messages of the parser, "yaml: line 5: text", of which it leaves out the line when it is
// the first, and of its decoder, "line 5: field x not found in type y".
var (
	parserRE  = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(?s:(.*))$`)
	anchorRE  = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	unknownRE = regexp.MustCompile(`^field (.*) not found in type .*$`)
)

func located(err error, text []byte) error {
	message := err.Error()
	if wrong, ok := errors.AsType[*yaml.TypeError](err); ok && len(wrong.Errors) > 0 {
		message = wrong.Errors[0]
	}
	parts := parserRE.FindStringSubmatch(message)
	at := &Error{Line: 1, Message: parts[2]}
	if parts[1] != "" {
		at.Line, _ = strconv.Atoi(parts[1])
	}
	if field := unknownRE.FindStringSubmatch(at.Message); field != nil {
		at.Message = fmt.Sprintf("unknown field %q", field[1])
	}
	if anchor := anchorRE.FindStringSubmatch(at.Message); anchor != nil {
		before, _, _ := bytes.Cut(text, []byte("*"+anchor[1]))
		at.Line, at.Message = 1+bytes.Count(before, []byte("\n")), fmt.Sprintf("alias *%s has no anchor before it", anchor[1])
	}
	return at
}

// exponentRE is a number with an exponent, which the parser takes for text when it is too
// large.
var exponentRE = regexp.MustCompile(`^[-+]?[0-9]+[eE][-+]?[0-9]+$`)

// Quoted reports whether a scalar is text by how it is written.
func Quoted(n *Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

// Tagged reports whether a node has a tag that is written.
func Tagged(n *Node) bool { return n.Style&yaml.TaggedStyle != 0 }

// IsNull reports whether a node is YAML's null.
func IsNull(n *Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// Scalar is the value of a scalar: nil, text, true or false, a whole number (int, int64 or
// uint64), or a fraction. Dates are text.
func Scalar(n *Node) (any, error) {
	if Quoted(n) {
		return n.Value, nil
	}
	switch tag := n.ShortTag(); tag {
	case "!!null":
		return nil, nil //nolint:nilnil // YAML's null
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), nil
	case "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, &Error{Line: n.Line, Message: fmt.Sprintf("%.40s is not a number", n.Value)}
		}
		if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return nil, &Error{Line: n.Line, Message: fmt.Sprintf("%.40s is not a finite number", n.Value)}
		}
		return v, nil
	case "!!merge":
		return nil, &Error{Line: n.Line, Message: "YAML merge keys are not supported"}
	}
	if exponentRE.MatchString(n.Value) {
		return nil, &Error{Line: n.Line, Message: fmt.Sprintf("the number %.40s is too large", n.Value)}
	}
	return n.Value, nil
}

// Limits of Value.
const (
	maxDepth = 100
	maxNodes = 100_000
)

// Value turns a node into what encoding/json marshals. Aliases count with what they expand
// to: at most 100,000 values, nested at most 100 deep.
func Value(n *Node) (any, error) {
	left := maxNodes
	return value(n, 0, &left)
}

func value(n *Node, depth int, left *int) (any, error) {
	if *left--; *left < 0 || depth > maxDepth {
		return nil, &Error{Line: n.Line, Message: "it is nested too deeply or expands too far"}
	}
	switch n.Kind {
	case yaml.AliasNode:
		return value(n.Alias, depth+1, left)
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			var err error
			if out[i], err = value(item, depth+1, left); err != nil {
				return nil, err
			}
		}
		return out, nil
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, err := value(n.Content[i+1], depth+1, left)
			if err != nil {
				return nil, err
			}
			out[n.Content[i].Value] = v
		}
		return out, nil
	default:
		return Scalar(n)
	}
}
