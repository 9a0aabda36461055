// Package jsondoc reads JSON that other programs and people wrote. All bodies, events, commands and
// files from outside go through it. What two readers could understand differently is refused, with the place:
// text that is not UTF-8, half a surrogate pair (\ud800 alone), a name that an object has
// twice, and anything behind the value. Names are matched exactly: "Events" is not "events".
//
// encoding/json changes the first two to U+FFFD, takes the last of two names, and matches
// names without regard to case. It stays the reader of what Falaj itself wrote.
//
// Callers bound the size and the depth of a text first (package membudget).
package jsondoc

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Error says where a text is wrong.
type Error struct {
	Offset int64  // of the byte, from 0
	Path   string // of the value, such as events[0].shop; empty is the text itself
	What   string // is wrong, such as NotUTF8
	Twice  string // the name that the object at Path has twice, or empty
	cause  error  // of a type's own reader, or nil
}

// What is wrong with a text, where callers have words of their own.
const (
	NotUTF8  = "not UTF-8"
	HalfPair = "half a surrogate pair, which is not a character"
	behind   = "there is data after its end"
)

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("byte %d: %s", e.Offset+1, e.What)
	}
	return fmt.Sprintf("%s (byte %d): %s", e.Path, e.Offset+1, e.What)
}

// Unwrap is the error of a type's own reader.
func (e *Error) Unwrap() error { return e.cause }

// Option changes how Decode reads.
type Option struct{ json.Options }

var (
	// Known refuses members that the struct lacks.
	Known = Option{json.RejectUnknownMembers(true)}
	// Floats makes numbers in interfaces float64; otherwise they stay as they are written,
	// as encoding/json's Number: a float64 does not hold every int64.
	Floats = Option{json.WithUnmarshalers(number)}
)

// number reads encoding/json's Number, which the library knows nothing of.
var number = json.UnmarshalFromFunc(func(d *jsontext.Decoder, n *stdjson.Number) error {
	v, err := d.ReadValue()
	switch {
	case err != nil:
		return err
	case v.Kind() == jsontext.KindNumber:
		*n = stdjson.Number(v)
	case v.Kind() != jsontext.KindNull:
		return errors.New("not a number")
	}
	return nil
})

// numbers keeps the digits of numbers in interfaces.
var numbers = json.WithUnmarshalers(json.JoinUnmarshalers(number, json.UnmarshalFromFunc(func(d *jsontext.Decoder, x *any) error {
	if d.PeekKind() != jsontext.KindNumber {
		return errors.ErrUnsupported
	}
	v, err := d.ReadValue()
	*x = stdjson.Number(v)
	return err
})))

// Decode reads a text that is one value into what into points to, by its json tags.
// An error is an *Error; it wraps that of a type's own UnmarshalJSON.
func Decode(text []byte, into any, options ...Option) error {
	all := append(make([]json.Options, 0, 4), numbers)
	for _, o := range options {
		all = append(all, o.Options)
	}
	if err := json.Unmarshal(text, into, all...); err != nil {
		return located(err)
	}
	return nil
}

// DecodeFrom is Decode of what a reader gives. Its own errors are given as they are.
func DecodeFrom(r io.Reader, into any, options ...Option) error {
	var text bytes.Buffer
	if _, err := text.ReadFrom(r); err != nil {
		return err
	}
	return Decode(text.Bytes(), into, options...)
}

// Check is Decode into nothing.
func Check(text []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(text))
	if err := d.SkipValue(); err != nil {
		return located(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return &Error{Offset: d.InputOffset(), What: behind}
	}
	return nil
}

// Located is what is wrong by an error of the library's decoder, for those who read token by
// token; nil for an error of the reader below it.
func Located(err error) *Error {
	e, _ := located(err).(*Error) //nolint:errorlint // located does not wrap
	return e
}

func located(err error) error {
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		e := &Error{Offset: s.ByteOffset, Path: path(s.JSONPointer)}
		switch why := s.Err; {
		case errors.Is(why, jsontext.ErrDuplicateName):
			e.Path = path(s.JSONPointer.Parent())
			e.Twice = s.JSONPointer.LastToken()
			e.What = fmt.Sprintf("duplicate key %q", clip(e.Twice))
		case errors.Is(why, io.ErrUnexpectedEOF):
			e.What = "the JSON is truncated"
		case why == nil:
			e.What = "not JSON"
		case why.Error() == "invalid UTF-8":
			e.What = NotUTF8
		case strings.HasPrefix(why.Error(), "invalid surrogate pair"), strings.HasPrefix(why.Error(), "invalid escape sequence `\\u"):
			e.What = HalfPair
		case strings.HasSuffix(why.Error(), "after top-level value"):
			e.What = behind
		default:
			e.What = "not JSON: " + why.Error()
		}
		return e
	}
	if s, ok := errors.AsType[*json.SemanticError](err); ok {
		e := &Error{Offset: s.ByteOffset, Path: path(s.JSONPointer), cause: s.Err}
		switch {
		case errors.Is(s.Err, json.ErrUnknownName):
			e.Path = path(s.JSONPointer.Parent())
			e.What = fmt.Sprintf("there is no field %q", clip(s.JSONPointer.LastToken()))
		case s.Err != nil:
			e.What = s.Err.Error()
		case s.GoType != nil:
			e.What = fmt.Sprintf("a %s cannot be read as %s", s.JSONKind, s.GoType)
		default:
			e.What = "not what is asked for here"
		}
		return e
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{What: "there is no JSON"}
	}
	return err
}

// path is a JSON pointer as people write one.
func path(p jsontext.Pointer) string {
	const most = 20
	var out strings.Builder
	n := 0
	for name := range p.Tokens() {
		if n++; n > most {
			return out.String() + "…"
		}
		if _, err := strconv.ParseUint(name, 10, 64); err == nil {
			out.WriteString("[" + name + "]")
			continue
		}
		if out.Len() > 0 {
			out.WriteByte('.')
		}
		out.WriteString(clip(name))
	}
	return out.String()
}

func clip(s string) string { return fault.Clip(s, 80) }
