package membudget

import (
	"context"
	"io"

	"github.com/falaj-ml/falaj/internal/fault"
)

// MaxDepth bounds how deep the JSON of a request nests.
const MaxDepth = 128

// What a part of a text takes in memory when it is decoded, in bytes; measured with
// encoding/json into interfaces, which takes the most, and with package yamldoc.
const (
	perValue  = 64  // an element of a list, a member, a list
	perObject = 256 // a map that has a member
	perYAML   = 256 // an indicator: , : - [ { ? & # or a line
)

// Form is how a body is weighed.
type Form struct {
	json, yaml bool
	factor     int64 // bytes of memory for a byte that is neither
	copied     bool
}

// Forms of bodies.
var (
	JSON = Form{json: true, factor: 2}
	YAML = Form{yaml: true, factor: 2}
)

// Binary is a body of which a byte takes factor bytes of memory.
func Binary(factor int64) Form { return Form{factor: factor} }

// Copied is a body that is kept, and not decoded as a whole; a byte takes factor bytes of
// memory.
func Copied(factor int64) Form { return Form{factor: factor, copied: true} }

// Copied reports whether the body is not decoded as a whole.
func (f Form) Copied() bool { return f.copied }

// Meter is a body that is weighed while it is read: each piece is taken of the share
// before the reader gets it. Its errors are those of Take, and fault.TooLarge where JSON
// nests deeper than MaxDepth.
type Meter struct {
	io.ReadCloser
	ctx   context.Context //nolint:containedctx // of the request whose body it is
	share *Share
	form  Form
	scan  scanner
	total int64
	err   error
}

// NewMeter weighs a body.
func NewMeter(ctx context.Context, body io.ReadCloser, share *Share, form Form) *Meter {
	return &Meter{ReadCloser: body, ctx: ctx, share: share, form: form}
}

func (m *Meter) Read(p []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	n, err := m.ReadCloser.Read(p)
	if n > 0 {
		weight, werr := m.scan.weigh(p[:n], m.form)
		m.total += weight
		if werr == nil {
			werr = m.share.Take(m.ctx, weight)
		}
		if werr != nil {
			m.err = werr
			return 0, werr
		}
	}
	return n, err
}

// Weight is what the body takes so far, in bytes.
func (m *Meter) Weight() int64 { return m.total }

// Close does nothing: the server reads the rest of a refused body, and closes it.
func (m *Meter) Close() error { return nil }

// CheckJSON weighs JSON that is already in memory, such as JSON within a string of JSON,
// before it is parsed. Errors are as of Meter.
func CheckJSON(ctx context.Context, text []byte) error {
	var s scanner
	weight, err := s.weigh(text, JSON)
	if err != nil {
		return err
	}
	return Take(ctx, weight)
}

// scanner counts what a text is made of, piece by piece. It does not say whether the text
// is JSON: that is for the parser behind it.
type scanner struct {
	depth   int
	quoted  bool
	escaped bool
	opened  bool // the last indicator was {
	at      int64
}

func (s *scanner) weigh(b []byte, form Form) (int64, error) {
	weight := int64(len(b)) * form.factor
	switch {
	case form.yaml:
		for _, c := range b {
			switch c {
			case ',', ':', '-', '[', '{', '?', '&', '#', '\n':
				weight += perYAML
			}
		}
	case form.json:
		for i, c := range b {
			if s.quoted {
				switch {
				case s.escaped:
					s.escaped = false
				case c == '\\':
					s.escaped = true
				case c == '"':
					s.quoted = false
				}
				continue
			}
			switch c {
			case '"':
				s.quoted = true
			case '[', '{':
				weight += perValue
				s.opened = c == '{'
				if s.depth++; s.depth > MaxDepth {
					return 0, fault.New(fault.TooLarge, "the body nests deeper than %d levels at byte %d", MaxDepth, s.at+int64(i)+1).
						WithHint("Send a flatter document.")
				}
			case ']', '}':
				s.opened = false
				s.depth = max(0, s.depth-1)
			case ',':
				weight += perValue
				s.opened = false
			case ':':
				weight += perValue
				if s.opened {
					weight += perObject
				}
				s.opened = false
			}
		}
	}
	s.at += int64(len(b))
	return weight, nil
}
