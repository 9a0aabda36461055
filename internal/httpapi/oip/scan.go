package oip

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// maxDepth bounds how deep JSON may nest, and with it the stack.
const maxDepth = 64

// scanner reads JSON once, from left to right, and makes nothing of what the
// protocol has no word for. It takes exactly what package jsondoc takes, and NaN; a fuzz
// target compares them. The first error stays, and ends every loop.
type scanner struct {
	buf   []byte // UTF-8
	pos   int
	depth int
	err   error

	lenient bool // texts of numbers are numbers, and truths are 0 and 1
	wraps   bool // BYTES may be {"b64": "…"}
	encoded bool // BYTES are base64
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fault.New(fault.Invalid, format, args...)
	}
}

// want says what stands at the position instead of what.
func (s *scanner) want(what string) {
	found := "the end of the request"
	if s.pos < len(s.buf) {
		r, _ := utf8.DecodeRune(s.buf[s.pos:])
		found = strconv.QuoteRune(r)
	}
	s.fail("the request is not an inference request in JSON: byte %d is %s, expected %s", s.pos+1, found, what)
}

// next is the byte after white space; 0 at the end and after an error.
func (s *scanner) next() byte {
	if s.err != nil {
		return 0
	}
	for s.pos < len(s.buf) {
		switch c := s.buf[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// open enters an object or an array. It reports whether anything is in it.
func (s *scanner) open(begin, end byte) bool {
	if s.next() != begin {
		s.want("'" + string(begin) + "'")
		return false
	}
	s.pos++
	if s.depth++; s.depth > maxDepth {
		s.fail("the request nests deeper than %d", maxDepth)
	}
	if s.next() == end {
		s.pos++
		s.depth--
		return false
	}
	return s.err == nil
}

// more goes on to the next in an object or an array, or leaves it.
func (s *scanner) more(end byte) bool {
	switch s.next() {
	case ',':
		s.pos++
		return true
	case end:
		s.pos++
		s.depth--
	default:
		s.want("',' or '" + string(end) + "'")
	}
	return false
}

// key is the name of an object's member. It lives as long as the request.
func (s *scanner) key() []byte {
	b := s.quoted()
	if s.next() != ':' {
		s.want("':'")
		return nil
	}
	s.pos++
	return b
}

// first refuses a member that an object has twice.
func (s *scanner) first(seen *uint, bit uint, name string) {
	if *seen&(1<<bit) != 0 {
		s.fail("duplicate %s", name)
	}
	*seen |= 1 << bit
}

// quoted is what a string says: of the request's own bytes when nothing in it is
// escaped.
func (s *scanner) quoted() []byte {
	if s.next() != '"' {
		s.want("a string")
		return nil
	}
	start := s.pos
	plain := true
	for s.pos++; s.pos < len(s.buf); s.pos++ {
		switch c := s.buf[s.pos]; {
		case c == '"':
			s.pos++
			if plain {
				return s.buf[start+1 : s.pos-1]
			}
			out, err := jsontext.AppendUnquote(nil, s.buf[start:s.pos]) // which refuses half surrogate pairs
			if err != nil {
				s.pos = start
				s.want("a string of whole characters, without half a surrogate pair")
				return nil
			}
			return out
		case c == '\\':
			plain = false
			s.pos++
		case c < ' ':
			s.want("the rest of a string, with control characters as escapes")
			return nil
		}
	}
	s.pos = len(s.buf)
	s.want("the end of a string")
	return nil
}

func (s *scanner) text() string { return string(s.quoted()) }

// number is the token of a number.
func (s *scanner) number() []byte {
	c := s.next()
	start, p, b := s.pos, s.pos, s.buf
	if c == '-' {
		p++
	}
	digits := func() bool {
		from := p
		for p < len(b) && b[p]-'0' <= 9 {
			p++
		}
		return p > from
	}
	var ok bool
	if p < len(b) && b[p] == '0' {
		p++
		ok = true
	} else {
		ok = digits()
	}
	if ok && p < len(b) && b[p] == '.' {
		p++
		ok = digits()
	}
	if ok && p < len(b) && b[p]|' ' == 'e' {
		if p++; p < len(b) && (b[p] == '+' || b[p] == '-') {
			p++
		}
		ok = digits()
	}
	if !ok || s.err != nil {
		s.want("a number")
		return nil
	}
	s.pos = p
	return b[start:p]
}

// literal takes true, false or null.
func (s *scanner) literal(word string) bool {
	if s.next() == 0 || len(s.buf)-s.pos < len(word) || string(s.buf[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// skip passes over any value. The names of an object in it are there once, too.
func (s *scanner) skip() {
	c, from := s.next(), s.pos
	s.scalar()
	if s.err != nil || c != '{' && c != '[' {
		return
	}
	if e, ok := errors.AsType[*jsondoc.Error](jsondoc.Check(s.buf[from:s.pos])); ok {
		s.fail("the request is not an inference request in JSON: byte %d: %s", int64(from)+e.Offset+1, e.What)
	}
}

// pass passes over any value, among which may be the words for numbers that are none, as
// Python's json writes them. What the names of objects are is not looked at.
func (s *scanner) pass() {
	switch s.next() {
	case '"':
		s.quoted()
	case '{':
		for ok := s.open('{', '}'); ok; ok = s.more('}') {
			s.key()
			s.pass()
		}
	case '[':
		for ok := s.open('[', ']'); ok; ok = s.more(']') {
			s.pass()
		}
	case 't', 'f', 'n', 'N', 'I':
		if !s.literal("true") && !s.literal("false") && !s.literal("null") && !s.literal("NaN") && !s.literal("Infinity") {
			s.want("a value")
		}
	case '-':
		if !s.literal("-Infinity") {
			s.number()
		}
	default:
		s.number()
	}
}

// other passes over a member that the protocol has no word for, and that is there once.
func (s *scanner) other(seen *map[string]bool, key []byte) {
	if (*seen)[string(key)] {
		s.fail("duplicate field %.80q", key)
	}
	if *seen == nil {
		*seen = map[string]bool{}
	}
	(*seen)[string(key)] = true
	s.skip()
}

// scalar is a value that is a string, a bool, an int64, a uint64 or a float64; nil
// for null, and for an array or an object, which it passes over.
func (s *scanner) scalar() any {
	switch s.next() {
	case '"':
		return s.text()
	case '{':
		for ok := s.open('{', '}'); ok; ok = s.more('}') {
			s.key()
			s.scalar()
		}
	case '[':
		for ok := s.open('[', ']'); ok; ok = s.more(']') {
			s.scalar()
		}
	case 't', 'f', 'n':
		switch {
		case s.literal("true"):
			return true
		case s.literal("false"):
			return false
		case !s.literal("null"):
			s.want("a value")
		}
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		tok := words(s.number())
		if n, err := strconv.ParseInt(tok, 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(tok, 10, 64); err == nil {
			return n
		}
		f, _ := strconv.ParseFloat(tok, 64) // beyond its range: an infinity
		return f
	default:
		s.want("a value")
	}
	return nil
}

// end wants that nothing follows.
func (s *scanner) end() {
	if s.next(); s.err == nil && s.pos < len(s.buf) {
		s.want("the end")
	}
}

// shape reads the dimensions of a tensor.
func (s *scanner) shape() []int64 {
	out := make([]int64, 0, 4)
	for ok := s.open('[', ']'); ok; ok = s.more(']') {
		tok := s.number()
		d, err := strconv.ParseInt(words(tok), 10, 64)
		if err != nil && s.err == nil {
			s.fail("the dimension %.40s is not a whole number", tok)
		}
		if out = append(out, d); len(out) > inference.MaxDims {
			s.fail("a tensor may have %d dimensions", inference.MaxDims)
		}
	}
	return out
}

// words reads bytes as a string that does not outlive them.
func words(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // only read

// elements reads the data of a tensor whose datatype and shape are known: flat, or
// nested as the shape says.
func (s *scanner) elements(t *runtime.Tensor) {
	if s.err != nil {
		return
	}
	n, err := inference.Check(*t)
	if err != nil {
		s.err = err
		return
	}
	// Each element is at least one byte and, but for the last, a comma: a shape
	// that promises more than the request holds is refused before memory is taken.
	if n > (len(s.buf)-s.pos)/2+1 {
		s.fail("input %q: shape %v requires %d elements, but data has fewer", t.Name, t.Shape, n)
		return
	}
	switch t.Datatype {
	case runtime.Bool:
		t.Data = all(s, t, n, (*scanner).boolean)
	case runtime.Uint8:
		t.Data = all(s, t, n, unsigned[uint8])
	case runtime.Uint16:
		t.Data = all(s, t, n, unsigned[uint16])
	case runtime.Uint32:
		t.Data = all(s, t, n, unsigned[uint32])
	case runtime.Uint64:
		t.Data = all(s, t, n, unsigned[uint64])
	case runtime.Int8:
		t.Data = all(s, t, n, signed[int8])
	case runtime.Int16:
		t.Data = all(s, t, n, signed[int16])
	case runtime.Int32:
		t.Data = all(s, t, n, signed[int32])
	case runtime.Int64:
		t.Data = all(s, t, n, signed[int64])
	case runtime.FP32:
		t.Data = all(s, t, n, float[float32])
	case runtime.FP64:
		t.Data = all(s, t, n, float[float64])
	case runtime.Bytes:
		t.Data = all(s, t, n, (*scanner).string)
	default:
		s.err = fault.New(fault.Invalid, "input %q: %s cannot be sent as JSON", t.Name, t.Datatype).WithHint("Send it as binary data.")
	}
}

func all[T any](s *scanner, t *runtime.Tensor, n int, one func(*scanner) T) []T {
	out := make([]T, 0, n)
	dims := []int64{int64(n)}
	if len(t.Shape) > 0 && s.nested() {
		dims = t.Shape
	}
	out = fill(s, t, dims, out, one)
	if s.err != nil {
		return nil
	}
	return out
}

// nested reports whether an array begins whose first element is one.
func (s *scanner) nested() bool {
	at := s.pos
	defer func() { s.pos = at }()
	if s.next() != '[' {
		return false
	}
	s.pos++
	return s.next() == '['
}

// fill reads an array of dims[0] elements or, at depth, arrays.
func fill[T any](s *scanner, t *runtime.Tensor, dims []int64, out []T, one func(*scanner) T) []T {
	if s.next() != '[' {
		s.misshapen(t)
		return nil
	}
	s.pos++
	for i := range dims[0] {
		if i > 0 {
			if s.next() != ',' {
				s.misshapen(t)
				return nil
			}
			s.pos++
		}
		if len(dims) > 1 {
			out = fill(s, t, dims[1:], out, one)
		} else {
			switch c := s.next(); c {
			case '[', '{', ']', ',', 0:
				if c != '{' || !s.wraps || t.Datatype != runtime.Bytes {
					s.misshapen(t)
					return nil
				}
			}
			at := s.pos
			out = append(out, one(s))
			if s.err != nil {
				s.name(t, len(out)-1, at)
			}
		}
		if s.err != nil {
			return nil
		}
	}
	if s.next() != ']' {
		s.misshapen(t)
		return nil
	}
	s.pos++
	return out
}

// name says which element is wrong.
func (s *scanner) name(t *runtime.Tensor, i, at int) {
	kind := "not a value"
	if r, ok := errors.AsType[refusal](s.err); ok {
		kind = string(r)
	}
	tok := shownToken(s.buf[at:])
	if tok == "null" {
		s.err = fault.New(fault.Invalid, "input %q: element %d is null, but tensors have no missing values", t.Name, i).
			WithHint("Send the model's replacement for missing values: NaN for FP32 and FP64, or for BYTES a text that the model's predict.py maps to None.")
		return
	}
	s.err = fault.New(fault.Invalid, "input %q: element %d, %s, is %s", t.Name, i, tok, kind)
}

// shownToken is the beginning of a value as an error shows it: as the request has it, as far as
// that can be printed.
func shownToken(b []byte) string {
	const most = 40
	end := bytes.IndexAny(b[min(1, len(b)):], ",] ") + 1
	if len(b) > 0 && b[0] == '"' {
		s := scanner{buf: b}
		if s.quoted(); s.err == nil {
			end = s.pos
		}
	}
	if end <= 0 {
		end = len(b)
	}
	text := string(b[:min(end, most)])
	if text = strings.ToValidUTF8(text, ""); end > most {
		text += "…"
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func (s *scanner) misshapen(t *runtime.Tensor) {
	if s.err == nil {
		s.err = fault.New(fault.Invalid, "input %q: data does not have shape %v", t.Name, t.Shape).
			WithHint("data is a flat array of all elements in row-major order, or nested exactly as the shape.")
	}
}

// infinite refuses an infinity, for which JSON has no form.
const infinite refusal = "an infinity, which cannot be sent as JSON; send the input as binary data"

// refusal is what is wrong with an element.
type refusal string

func (r refusal) Error() string { return string(r) }

func (s *scanner) boolean() bool {
	if s.literal("true") {
		return true
	}
	if c := s.next(); s.lenient && (c == '0' || c == '1') {
		switch words(s.number()) {
		case "0", "0.0":
			return false
		case "1", "1.0":
			return true
		}
		s.err = refusal("not true or false")
		return false
	}
	if !s.literal("false") && s.err == nil {
		s.err = refusal("not true or false")
	}
	return false
}

func (s *scanner) string() string {
	wrapped := s.next() == '{'
	if wrapped {
		if !s.open('{', '}') || string(s.key()) != wrapKey {
			s.err = refusal(`not a string, nor bytes as {"b64": "…"}`)
			return ""
		}
	}
	if s.next() != '"' && s.err == nil {
		s.err = refusal("not a string")
	}
	text := s.quoted()
	if wrapped && s.err == nil && s.more('}') {
		s.err = refusal(`not a string, nor bytes as {"b64": "…"}`)
	}
	if s.err != nil || !wrapped && !s.encoded {
		return string(text)
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(out, text)
	if err != nil {
		s.err = refusal("not base64")
	}
	return words(out[:n])
}

// figures is the token of a number, and nothing else.
func (s *scanner) figures(what string) string {
	if c := s.next(); c != '-' && (c < '0' || c > '9') {
		s.err = refusal(what)
		return ""
	}
	return words(s.number())
}

// whole is the token of a number that should be whole. Where that is lenient, true is 1, 2.0 is
// 2, and a text is read as a number.
func (s *scanner) whole() string {
	if !s.lenient {
		return s.figures("not a number")
	}
	switch s.next() {
	case '"':
		return strings.TrimPrefix(strings.TrimSpace(string(s.quoted())), "+")
	case 't':
		if s.literal("true") {
			return "1"
		}
	case 'f':
		if s.literal("false") {
			return "0"
		}
	}
	text := s.figures("not a number")
	if before, after, ok := strings.Cut(text, "."); ok && strings.Trim(after, "0") == "" {
		return before
	}
	return text
}

func signed[T int8 | int16 | int32 | int64](s *scanner) T {
	bits := int(unsafe.Sizeof(T(0))) * 8
	v, err := strconv.ParseInt(s.whole(), 10, bits)
	if err != nil {
		s.err = refusal("not a whole number of " + strconv.Itoa(bits) + " bits")
	}
	return T(v)
}

func unsigned[T uint8 | uint16 | uint32 | uint64](s *scanner) T {
	bits := int(unsafe.Sizeof(T(0))) * 8
	v, err := strconv.ParseUint(s.whole(), 10, bits)
	if err != nil {
		s.err = refusal("not a whole number from 0 of " + strconv.Itoa(bits) + " bits")
	}
	return T(v)
}

func float[T float32 | float64](s *scanner) T {
	nan := T(math.NaN())
	switch s.next() {
	case '"':
		text := string(s.quoted())
		switch text {
		case "NaN": // what clients send for a missing value
			return nan
		case "Infinity", "-Infinity":
			s.err = infinite
			return 0
		}
		if text = strings.TrimSpace(text); s.lenient && strings.Trim(text, "0123456789+-.eE") == "" {
			if v, err := strconv.ParseFloat(text, int(unsafe.Sizeof(T(0)))*8); err == nil {
				return T(v)
			}
		}
		s.err = refusal("not a number")
		return 0
	case 't', 'f':
		if s.lenient {
			switch {
			case s.literal("true"):
				return 1
			case s.literal("false"):
				return 0
			}
		}
	case 'n':
		if s.literal("null") {
			return nan
		}
	case 'N': // as Python writes it, and Triton reads it
		if s.literal("NaN") {
			return nan
		}
	case 'I', '-':
		if s.literal("Infinity") || s.literal("-Infinity") {
			s.err = infinite
			return 0
		}
	}
	bits := int(unsafe.Sizeof(T(0))) * 8
	tok := s.figures("not a number")
	if s.err != nil {
		return 0
	}
	v, err := strconv.ParseFloat(tok, bits)
	if err != nil {
		s.err = refusal("not a number of " + strconv.Itoa(bits) + " bits")
	}
	return T(v)
}
