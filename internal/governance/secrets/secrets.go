// Package secrets keeps what other systems want to hear before they answer:
// passwords, tokens, keys. A secret goes in by a manifest and never comes out by
// the API; only services of this process that were given Open read it.
//
// # Map
//
//   - secrets.go: Secret, Spec, Text and what they must satisfy.
//   - Service is the only way in: Apply (also to rotate), One, List, Delete, and
//     Open for those who use a secret.
//   - store.go says what this needs of a database; secretssql implements it.
//
// # Guarantees
//
// The values are in the database only sealed by the project's key for secrets,
// bound to project, name and revision: a row that was copied elsewhere does not
// open. Every change is audited in its transaction, with the names of the keys
// and nothing of the values. Text prints as "(secret)" whatever prints it. A
// secret that something uses is not deleted, and what was deleted or replaced is
// in no file of the database afterwards.
package secrets

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// ManifestKind is the kind of manifest that makes a secret.
const ManifestKind = "Secret"

// Limits of a secret.
const (
	MaxValues   = 32
	MaxValue    = 64 << 10 // bytes of one value
	maxAll      = 256 << 10
	maxKeyName  = 63
	maxSecrets  = 1000 // of a project
	description = 4 << 10
)

// hidden is what a value prints as.
const hidden = "(secret)"

// Text is a value that does not print: not by fmt, not by slog, not as JSON.
type Text struct{ bytes []byte }

// NewText keeps a value.
func NewText(s string) Text { return Text{[]byte(s)} }

// Reveal is the value. Hand it to what needs it and to nothing else.
func (t Text) Reveal() string { return string(t.bytes) }

// String implements fmt.Stringer.
func (Text) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (Text) GoString() string { return hidden }

// LogValue implements slog.LogValuer.
func (Text) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler.
func (Text) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Spec is what a Secret manifest says.
type Spec struct {
	Description string           `json:"description,omitempty" doc:"Description, such as what the secret gives access to"`
	Values      map[string]Value `json:"values" doc:"Values by key, such as username and password: each {value: …}, or {file: …} or {stdin: true}, which the command line reads, or {keep: true}, which keeps the current value"`
}

// Value is one value of a manifest.
type Value struct {
	Text

	// Keep leaves the value as it is; the manifest does not say what it is.
	Keep bool
}

// forms are the forms of a value, for people.
const forms = "{value: …}, {file: …}, {stdin: true} or {keep: true}"

// MarshalJSON writes {"keep": true}, and nothing of any other value.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Keep {
		return []byte(`{"keep":true}`), nil
	}
	return json.Marshal(hidden)
}

// UnmarshalJSON reads {"value": "…"} and {"keep": true}. No error repeats what stands there.
func (v *Value) UnmarshalJSON(b []byte) error {
	var said struct {
		Value *string `json:"value"`
		File  *string `json:"file"`
		Stdin *bool   `json:"stdin"`
		Keep  *bool   `json:"keep"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&said) != nil {
		return fault.New(fault.Invalid, "a value of a secret is %s", forms).
			WithHint("Put text that looks like a number in quotes.")
	}
	switch {
	case said.Keep != nil:
		if !*said.Keep || said.Value != nil || said.File != nil || said.Stdin != nil {
			return fault.New(fault.Invalid, "a value of a secret is either kept, {keep: true}, or set")
		}
		v.Keep = true
		return nil
	case said.File != nil || said.Stdin != nil:
		return fault.New(fault.Invalid, "the server does not read files for secrets").
			WithHint("Apply the manifest with `falaj apply`, which reads `file` and `stdin` and sends their contents.")
	case said.Value == nil:
		return fault.New(fault.Invalid, "a value of a secret is %s", forms)
	}
	v.Text = NewText(*said.Value)
	return nil
}

var keyRE = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`)

// ValidKey reports whether a secret can have a value of this name.
func ValidKey(key string) bool { return len(key) <= maxKeyName && keyRE.MatchString(key) }

// Validate refuses a spec that cannot be kept. Error: fault.Invalid, naming the
// key and nothing of a value.
func (s Spec) Validate() error {
	if len(s.Description) > description {
		return fault.New(fault.Invalid, "spec.description: %d bytes are over the limit of %d", len(s.Description), description)
	}
	if n := len(s.Values); n == 0 || n > MaxValues {
		return fault.New(fault.Invalid, "spec.values: a secret has 1 to %d values, not %d", MaxValues, n)
	}
	for _, key := range s.keys() {
		if !ValidKey(key) {
			return fault.New(fault.Invalid, "spec.values: %.80q is not a key of a secret", key).
				WithHint("Begin with a letter; letters, digits and . _ - may follow, %d at most.", maxKeyName)
		}
		v := s.Values[key].bytes
		switch {
		case s.Values[key].Keep:
		case len(v) == 0:
			return fault.New(fault.Invalid, "spec.values.%s is empty", key)
		case len(v) > MaxValue:
			return fault.New(fault.Invalid, "spec.values.%s: %d bytes are over the limit of %d", key, len(v), MaxValue)
		case !utf8.Valid(v):
			return fault.New(fault.Invalid, "spec.values.%s is not text", key).WithHint("Encode it, for example as base64, if its consumer accepts that.")
		}
	}
	return nil
}

// kept is how many of the values are those that the secret has.
func (s Spec) kept() (n int) {
	for _, v := range s.Values {
		if v.Keep {
			n++
		}
	}
	return n
}

func (s Spec) keys() []string { return slices.Sorted(maps.Keys(s.Values)) }

// ID identifies a secret: "sec_01J…".
type ID string

// Secret is the visible part of a secret, without its values.
type Secret struct {
	ID          ID        `json:"id"`
	Project     string    `json:"project"`
	Name        string    `json:"name"`
	Description string    `json:"description,omitempty"`
	Keys        []string  `json:"keys"`     // which values it has
	Revision    int64     `json:"revision"` // counts how often the values were set
	Created     time.Time `json:"created_at"`
	CreatedBy   string    `json:"created_by"`
	Updated     time.Time `json:"updated_at"`
	UpdatedBy   string    `json:"updated_by"`
	UsedBy      []string  `json:"used_by,omitempty"` // "source orders"
}

// Spec is the manifest that changes nothing of the secret.
func (s Secret) Spec() Spec {
	spec := Spec{Description: s.Description, Values: make(map[string]Value, len(s.Keys))}
	for _, key := range s.Keys {
		spec.Values[key] = Value{Keep: true}
	}
	return spec
}
