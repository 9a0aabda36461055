// Package id makes object identifiers: a type prefix, an underscore, a ULID
// ("job_01J9Z6…"). They sort by creation time within one process, even when the
// clock goes back, and their grammar holds no character that means anything in
// a path, a URL or SQL.
package id

import (
	"crypto/rand"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/falaj-ml/falaj/internal/fault"
)

var (
	mu      sync.Mutex
	last    uint64
	entropy io.Reader = ulid.Monotonic(rand.Reader, 0)
)

// New returns a fresh identifier with the prefix. Safe for concurrent use.
// It never goes back: while the clock is behind the last identifier's
// millisecond, that millisecond is used again with a larger random part.
func New(prefix string) string {
	mu.Lock()
	defer mu.Unlock()
	last = max(last, ulid.Timestamp(time.Now()))
	u, err := ulid.New(last, entropy)
	if err != nil { // the random part overflowed within one millisecond
		last++
		u = ulid.MustNew(last, entropy)
	}
	var room [64]byte // else it is made, and then the string
	text := append(append(room[:0], prefix...), '_')
	at := len(text)
	text = append(text, make([]byte, ulid.EncodedSize)...)
	_ = u.MarshalTextTo(text[at:]) // it is as long as it has to be
	return string(text)
}

// Check refuses a string that is not an identifier with the prefix.
func Check(prefix, s string) error {
	rest, ok := strings.CutPrefix(s, prefix+"_")
	if !ok {
		return fault.New(fault.Invalid, "%q is not a %s identifier (it starts with %q)", clip(s), prefix, prefix+"_")
	}
	if _, err := ulid.ParseStrict(rest); err != nil {
		return fault.New(fault.Invalid, "%q is not a %s identifier", clip(s), prefix)
	}
	return nil
}

// Made is when an identifier was made, to the millisecond; zero for what is none.
func Made(s string) time.Time {
	_, rest, _ := strings.Cut(s, "_")
	u, err := ulid.ParseStrict(rest)
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(u.Time()).UTC()
}

var nameRE = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?$`)

// CheckName refuses a name that an object may not have: names are 1 to 63
// characters of a-z, 0-9, '-' and '_', and begin and end with a letter or digit.
// what names the field in the message, e.g. "dataset name".
func CheckName(what, s string) error {
	if nameRE.MatchString(s) {
		return nil
	}
	return fault.New(fault.Invalid, "%s %q is not a name", what, clip(s)).
		WithHint("Use 1 to 63 characters of a-z, 0-9, '-' and '_', beginning and ending with a letter or digit.")
}

var versionRE = regexp.MustCompile(`@[0-9]+$`)

// CutVersion takes the version off a name such as "weather@3". Only a number after the last @
// is one: the name of a registered model may have an @ of its own.
func CutVersion(name string) (base string, versioned bool) {
	at := versionRE.FindStringIndex(name)
	if at == nil {
		return name, false
	}
	return name[:at[0]], true
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
