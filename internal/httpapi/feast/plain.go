package feast

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/share"
)

// buffers are for bodies of requests and answers.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxBuffer bounds the bytes of a buffer that is used again.
const maxBuffer = 4 << 20

func buffer() *bytes.Buffer {
	b := buffers.Get().(*bytes.Buffer) //nolint:forcetypeassert // nothing else is put there
	b.Reset()
	return b
}

func release(b *bytes.Buffer) {
	if b.Cap() <= maxBuffer {
		buffers.Put(b)
	}
}

// receive reads the request of a read. Errors are those of decode.
func (in *readRequest) receive(r *http.Request) error {
	body := buffer()
	defer release(body)
	defer share.TurnOf(r.Context()).End()
	if _, err := body.ReadFrom(r.Body); err != nil {
		return refused(err)
	}
	in.Entities.reads = true
	if in.plain(body.Bytes()) {
		return nil
	}
	*in = readRequest{Entities: columns{reads: true}}
	return decodeFrom(body, in)
}

// plain takes a request in the form in which clients write it: each field once, by its
// very name, nothing escaped, lists of one length. It is three times as fast as
// encoding/json, which reads, or refuses, every request for which plain is false.
func (in *readRequest) plain(body []byte) bool {
	if bytes.Count(body, []byte{','}) > maxValues {
		return false
	}
	p := &plain{text: string(body)}
	seen := 0
	ok := p.object(func(name string) bool {
		field := 0
		var took bool
		switch name {
		case "features":
			field, took = 1, p.list(func() bool {
				text, ok := p.quoted()
				in.Features = append(in.Features, text)
				return ok
			})
		case "entities":
			field, took = 2, p.entities(&in.Entities)
		case "feature_service":
			field = 4
			in.Service, took = p.quoted()
		case "full_feature_names":
			field = 8
			in.Full, took = p.boolean()
		case "include_feature_view_version_metadata":
			field = 16
			in.Versions, took = p.boolean()
		}
		took = took && seen&field == 0
		seen |= field
		return took
	})
	p.space()
	return ok && p.at == len(p.text)
}

// plain is a text that is read from left to right. Its methods are false for what they
// do not take.
type plain struct {
	text string
	at   int
}

func (p *plain) space() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\n' || p.text[p.at] == '\t' || p.text[p.at] == '\r') {
		p.at++
	}
}

// takes passes over a byte, and the space before it.
func (p *plain) takes(c byte) bool {
	p.space()
	if p.at == len(p.text) || p.text[p.at] != c {
		return false
	}
	p.at++
	return true
}

func (p *plain) word(word string) bool {
	if !strings.HasPrefix(p.text[p.at:], word) {
		return false
	}
	p.at += len(word)
	return true
}

// items reads what stands between two brackets, with commas.
func (p *plain) items(begin, end byte, item func() bool) bool {
	if !p.takes(begin) {
		return false
	}
	if p.takes(end) {
		return true
	}
	for item() {
		if !p.takes(',') {
			return p.takes(end)
		}
	}
	return false
}

func (p *plain) list(item func() bool) bool { return p.items('[', ']', item) }

func (p *plain) object(member func(name string) bool) bool {
	return p.items('{', '}', func() bool {
		name, ok := p.quoted()
		return ok && p.takes(':') && member(name)
	})
}

// quoted is a string in which nothing is escaped.
func (p *plain) quoted() (string, bool) {
	if !p.takes('"') {
		return "", false
	}
	ascii := true
	for i := p.at; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '"':
			text := p.text[p.at:i]
			p.at = i + 1
			return text, ascii || utf8.ValidString(text)
		case c == '\\' || c < ' ':
			return "", false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return "", false
}

func (p *plain) boolean() (is, ok bool) {
	p.space()
	if p.word("true") {
		return true, true
	}
	return false, p.word("false")
}

// number is as JSON writes one.
func (p *plain) number() (json.Number, bool) {
	start := p.at
	digits := func() int {
		from := p.at
		for p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
			p.at++
		}
		return p.at - from
	}
	p.word("-")
	first := p.at
	if n := digits(); n == 0 || n > 1 && p.text[first] == '0' {
		return "", false
	}
	if p.word(".") && digits() == 0 {
		return "", false
	}
	if p.word("e") || p.word("E") {
		_ = p.word("+") || p.word("-")
		if digits() == 0 {
			return "", false
		}
	}
	return json.Number(p.text[start:p.at]), true
}

// cell is a scalar as encoding/json gives it.
func (p *plain) cell() (any, bool) {
	p.space()
	if p.at == len(p.text) {
		return nil, false
	}
	switch p.text[p.at] {
	case '"':
		return p.quoted()
	case 't', 'f':
		return p.boolean()
	case 'n':
		return nil, p.word("null")
	}
	return p.number()
}

// entities are columns of one length.
func (p *plain) entities(to *columns) bool {
	to.names, to.values = nil, map[string][]any{}
	return p.object(func(name string) bool {
		list := make([]any, 0, to.rows())
		if !p.list(func() bool {
			x, ok := p.cell()
			if ok = ok && !to.full(list); ok {
				list = append(list, x)
			}
			return ok
		}) {
			return false
		}
		_, twice := to.values[name]
		same := len(to.names) == 0 || len(list) == to.rows()
		to.names, to.values[name] = append(to.names, name), list
		return same && !twice
	})
}
