package blob

import (
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	maxKey     = 1024
	maxSegment = 200 // a file name has at most 255 bytes, and drivers add to it
	maxScope   = 256
)

const keyHint = "Use segments of letters, digits and . _ = @ + - joined by '/', at most 200 bytes each and 1,024 together."

// CheckKey refuses what is not a key. Error: fault.Invalid.
func CheckKey(k Key) error {
	if len(k) == 0 || len(k) > maxKey {
		return fault.New(fault.Invalid, "an object key has 1 to %d bytes, not %d", maxKey, len(k)).WithHint(keyHint)
	}
	for segment := range strings.SplitSeq(string(k), "/") {
		if !validSegment(segment) {
			return fault.New(fault.Invalid, "%.80q is not a valid object key", string(k)).WithHint(keyHint)
		}
	}
	return nil
}

// CheckPrefix refuses what no key begins with. An empty prefix is every key.
func CheckPrefix(p Key) error {
	if p == "" {
		return nil
	}
	// Whole segments must be segments; the last may be the beginning of one.
	last := string(p)
	if i := strings.LastIndexByte(last, '/'); i >= 0 {
		dir := p[:i]
		last = last[i+1:]
		if err := CheckKey(dir); err != nil {
			return err
		}
	}
	if len(p) > maxKey || len(last) > maxSegment || !validBytes(last) {
		return fault.New(fault.Invalid, "%.80q is not a valid prefix of an object key", string(p)).WithHint(keyHint)
	}
	return nil
}

func validSegment(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= maxSegment && validBytes(s)
}

func validBytes(s string) bool {
	for i := range len(s) {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '.' || c == '_' || c == '=' || c == '@' || c == '+' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}

// check refuses a Ref that could not be told from another one.
func (r Ref) check() error {
	if err := CheckKey(r.Key); err != nil {
		return err
	}
	if len(r.Project) > maxScope || len(r.Owner) > maxScope || strings.ContainsRune(r.Project+r.Owner, 0) {
		return fault.New(fault.Invalid, "object %s has no valid project and owner", r.Key).
			WithHint("Name a project and a key owner of at most %d bytes.", maxScope)
	}
	return nil
}

// associated binds ciphertext to its place and part. NUL is in none of the
// fields, so no two Refs give the same bytes.
func (r Ref) associated(part string) []byte {
	return []byte(strings.Join([]string{"falaj blob v1", part, r.Project, r.Owner, string(r.Key)}, "\x00"))
}
