package search

import (
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenName             // identifier or keyword; parts are its dotted parts, unquoted
	tokenQuoted           // one part in double quotes or back ticks: a key, or (double quotes) a value
	tokenText             // 'text'
	tokenNumber
	tokenOp
	tokenPunct // ( ) ,
)

type token struct {
	kind  tokenKind
	text  string
	raw   string // as it was written, for messages
	parts []string
}

// isText reports whether a token is a text, in single or in double quotes.
func (t token) isText() bool {
	return t.kind == tokenText || t.kind == tokenQuoted && strings.HasPrefix(t.raw, `"`)
}

func lex(s string) ([]token, error) {
	var out []token
	begin := 0
	for i := 0; i < len(s); {
		if n := len(out); n > 0 && out[n-1].raw == "" {
			out[n-1].raw = s[begin:i]
		}
		begin = i
		c := s[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '(' || c == ')' || c == ',':
			out = append(out, token{kind: tokenPunct, text: s[i : i+1]})
			i++
		case c == '=' || c == '<' || c == '>' || c == '!':
			n := 1
			if i+1 < len(s) && (s[i+1] == '=' || c == '<' && s[i+1] == '>') {
				n = 2 // also == and <>, which no key takes
			}
			op := s[i : i+n]
			if op == "!" {
				return nil, fault.New(fault.Invalid, "Invalid clause(s) in filter string: '!'")
			}
			out = append(out, token{kind: tokenOp, text: op})
			i += n
		case c == '\'':
			text, n, ok := quoted(s[i:])
			if !ok {
				return nil, unclosed(s[i:])
			}
			out = append(out, token{kind: tokenText, text: text})
			i += n
		case isDigit(c) || (c == '-' || c == '+' || c == '.') && i+1 < len(s) && (isDigit(s[i+1]) || s[i+1] == '.'):
			n := 1
			for i+n < len(s) && (isDigit(s[i+n]) || s[i+n] == '.' || s[i+n] == 'e' || s[i+n] == 'E' ||
				(s[i+n] == '-' || s[i+n] == '+') && (s[i+n-1] == 'e' || s[i+n-1] == 'E')) {
				n++
			}
			out = append(out, token{kind: tokenNumber, text: s[i : i+n]})
			i += n
		default:
			t, n, err := name(s[i:])
			if err != nil {
				return nil, err
			}
			out = append(out, t)
			i += n
		}
	}
	if n := len(out); n > 0 && out[n-1].raw == "" {
		out[n-1].raw = s[begin:]
	}
	return out, nil
}

// name reads part("."part)*, where a part is bare or quoted; alone, a part in single quotes is a
// text.
func name(s string) (token, int, error) {
	t := token{kind: tokenName}
	i := 0
	for {
		if i < len(s) && (s[i] == '"' || s[i] == '`' || s[i] == '\'' && len(t.parts) > 0) {
			text, n, ok := quoted(s[i:])
			if !ok {
				return t, 0, unclosed(s[i:])
			}
			t.parts = append(t.parts, text)
			i += n
		} else {
			start := i
			for i < len(s) && isBare(s[i]) {
				i++
			}
			if i == start {
				return t, 0, fault.New(fault.Invalid, "Invalid clause(s) in filter string: '%s'", clip(s))
			}
			t.parts = append(t.parts, s[start:i])
		}
		if i >= len(s) || s[i] != '.' {
			break
		}
		i++
	}
	t.text = strings.Join(t.parts, ".")
	if len(t.parts) == 1 && (s[0] == '"' || s[0] == '`') {
		t.kind = tokenQuoted
	}
	return t, i, nil
}

// quoted reads a string that begins with its quote; a doubled quote stands for
// one.
func quoted(s string) (text string, n int, ok bool) {
	q := s[0]
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != q {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == q {
			b.WriteByte(q)
			i++
			continue
		}
		return b.String(), i + 1, true
	}
	return "", 0, false
}

func unclosed(s string) error {
	return fault.New(fault.Invalid, "Invalid clause(s) in filter string: the quote in %s is not closed", clip(s))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isBare(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-' || c == '/' || c == ':' || c == '@' || c >= 0x80
}

type parser struct {
	tokens []token
	filter string
}

func (p *parser) end() bool { return len(p.tokens) == 0 }

func (p *parser) peek() token {
	if p.end() {
		return token{text: "end of the filter"}
	}
	return p.tokens[0]
}

func (p *parser) next() token {
	t := p.peek()
	if !p.end() {
		p.tokens = p.tokens[1:]
	}
	return t
}

// keyword consumes the word, in any case, if it is next.
func (p *parser) keyword(word string) bool {
	if t := p.peek(); t.kind == tokenName && strings.EqualFold(t.text, word) {
		p.next()
		return true
	}
	return false
}

func (p *parser) operator() (Op, error) {
	switch {
	case p.keyword("LIKE"):
		return Like, nil
	case p.keyword("ILIKE"):
		return ILike, nil
	case p.keyword("IN"):
		return In, nil
	case p.keyword("NOT"):
		if p.keyword("IN") {
			return NotIn, nil
		}
	case p.keyword("IS"):
		not := p.keyword("NOT")
		if p.keyword("NULL") {
			if not {
				return IsNotNull, nil
			}
			return IsNull, nil
		}
	case p.peek().kind == tokenOp:
		return Op(p.next().text), nil
	}
	return "", fault.New(fault.Invalid, "Invalid comparison clause in '%s': expected a comparator, found '%s'", clip(p.filter), clip(p.peek().text))
}

// rest is what was not read yet, for messages.
func (p *parser) rest() string {
	words := make([]string, 0, min(len(p.tokens), 16))
	for _, t := range p.tokens[:min(len(p.tokens), 16)] {
		words = append(words, strings.TrimSpace(t.raw))
		if t.text == ")" && t.kind == tokenPunct {
			break
		}
	}
	return strings.Join(words, "")
}

func (p *parser) list() ([]string, error) {
	bad := fault.New(fault.Invalid, "While parsing a list in the query, expected string value, punctuation, or whitespace, but got different type in list: %s", clip(p.filter)).
		WithHint("Write a list as ('a', 'b').")
	if t := p.next(); t.text != "(" || t.kind != tokenPunct {
		return nil, bad
	}
	var out []string
	if t := p.peek(); t.kind == tokenPunct && t.text == ")" {
		return nil, fault.New(fault.Invalid, "While parsing a list in the query, expected a non-empty list of string values, but got empty list")
	}
	for {
		t := p.next()
		if !t.isText() {
			return nil, bad
		}
		out = append(out, t.text)
		if t := p.peek(); t.kind == tokenPunct && t.text == "," {
			p.next()
		} else if t.text != ")" {
			return nil, bad
		}
		if t := p.peek(); t.kind == tokenPunct && t.text == ")" { // also after a comma: ('a',) is a tuple of Python
			p.next()
			return out, nil
		}
	}
}
