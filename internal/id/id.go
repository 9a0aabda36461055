// Package id makes object identifiers: a type prefix, an underscore, a ULID
// ("job_01J9Z6…"). They sort by creation time within one process, even when the
// clock goes back, and their grammar holds no character that means anything in
// a path, a URL or SQL.
package id

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

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

// First is before every identifier with the prefix that is made at a time or later, and after
// those that were made in the milliseconds before. A time before 1970 is 1970.
func First(prefix string, at time.Time) string {
	var u ulid.ULID
	if ms := at.UnixMilli(); ms > 0 {
		_ = u.SetTime(min(uint64(ms), ulid.MaxTime())) // it is not too late
	}
	return prefix + "_" + u.String()
}

var (
	nameRE      = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?$`)
	mixedNameRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	notNameRE   = regexp.MustCompile(`[^a-z0-9_]+`)
)

// CheckName refuses a name that an object may not have: names are 1 to 63
// characters of a-z, 0-9, '-' and '_', and begin and end with a letter or digit.
// what names the field in the message, e.g. "dataset name".
func CheckName(what, s string) error {
	if nameRE.MatchString(s) {
		return nil
	}
	hint := "Use 1 to 63 characters of a-z, 0-9, '-' and '_', beginning and ending with a letter or digit"
	if like := Name(s); like != "" {
		hint += ", such as " + like
	}
	return fault.New(fault.Invalid, "%s %q is not a name", what, clip(s)).WithHint("%s.", hint)
}

// CheckMixedName is CheckName for objects whose names come from elsewhere, such as models
// and deployments: letters may be capitals, and dots may stand between other characters.
// Names that differ only in case are different names. In paths, use FileName.
func CheckMixedName(what, s string) error {
	if mixedNameRE.MatchString(s) && !strings.Contains(s, "..") {
		return nil
	}
	return fault.New(fault.Invalid, "%s %q is not a name", what, clip(s)).
		WithHint("Use 1 to 63 letters, digits, '-', '_' and single dots, beginning and ending with a letter or digit.")
}

// MaxModelName bounds the name of a registered model, in characters.
const MaxModelName = 256

// CheckModelName refuses what a registered model may not be called: what MLflow refuses, and
// beyond that control characters, which no database or terminal takes as they are, and names
// that end like a version, which would say two things.
func CheckModelName(name string) error {
	_, versioned := CutVersion(name)
	switch {
	case strings.TrimSpace(name) == "":
		return fault.New(fault.Invalid, "Missing value for required parameter 'name'.")
	case strings.ContainsAny(name, "/:"):
		return fault.New(fault.Invalid, "Invalid model name '%s'. Names cannot contain '/' or ':'.", clip(name))
	case name == "." || strings.HasPrefix(name, ".."):
		return fault.New(fault.Invalid, "Invalid value %s for parameter 'name' supplied: Names may be treated as files in certain cases, and must not resolve to other names when treated as such. This name would resolve to '%s'", strconv.QuoteToASCII(clip(name)), clip(name))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fault.New(fault.Invalid, "Invalid model name %s.", strconv.QuoteToASCII(clip(name))).WithHint("Use UTF-8 text without control characters.")
	case versioned:
		return fault.New(fault.Invalid, "Invalid model name '%s'. A name that ends in @ and a number reads as a version of another model.", clip(name)).
			WithHint("End it with something else.")
	case utf8.RuneCountInString(name) > MaxModelName:
		return fault.New(fault.Invalid, "'name' exceeds the maximum length of %d characters", MaxModelName)
	}
	return nil
}

// Name is the name nearest to a text that CheckName takes; empty when the text has no
// ASCII letter or digit.
func Name(text string) string {
	name := strings.Trim(notNameRE.ReplaceAllString(strings.ToLower(text), "-"), "-_")
	return strings.TrimRight(name[:min(len(name), 63)], "-_")
}

// Derived is the name of a thing that belongs to one with a mixed name: the name and the
// suffix where CheckName takes that, else the name nearest to it with a digest, so that
// what two names derive are two things.
func Derived(name, suffix string) string {
	if nameRE.MatchString(name + suffix) {
		return name + suffix
	}
	digest := sha256.Sum256([]byte(name))
	suffix = "-" + hex.EncodeToString(digest[:4]) + suffix
	like := Name(name)
	return strings.TrimRight(like[:min(len(like), 63-len(suffix))], "-_") + suffix
}

// FileName is a mixed name as the name of a file or directory: each capital is written as
// '!' and the small letter, as Go's module cache does, because some disks do not tell
// capitals from small letters. A name of CheckName is its own file name.
func FileName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('!')
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// FromFileName is the name that FileName wrote; ok is false for any other text.
func FromFileName(file string) (name string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(file); i++ {
		c := file[i]
		if c == '!' {
			if i++; i == len(file) || file[i] < 'a' || file[i] > 'z' {
				return "", false
			}
			c = file[i] - ('a' - 'A')
		}
		b.WriteByte(c)
	}
	name = b.String()
	return name, FileName(name) == file
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

func clip(s string) string { return fault.Clip(s, 80) }
