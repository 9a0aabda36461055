package tracking

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A repeated import merges three states of an object: that of the source at the last import,
// that of the source now, and that in Falaj. What only the source changed is imported, also a
// removal. What was changed in Falaj stays; if the source changed it, too, that is a conflict,
// which each import reports until both sides agree.

// Values are what can change in an imported object, by what it is: "description", "tag team",
// "alias champion". An absent key is a value that is not set.
type Values map[string]string

// Base are digests of the values that the source had at the last import, as far as Falaj had
// them, too. nil is the base of an object of which none was stored.
type Base map[string]string

// Merged is the result of a merge.
type Merged struct {
	Set       Values   // to set in Falaj
	Remove    []string // to remove in Falaj
	Conflicts []string // in words
}

// Unchanged reports whether there is nothing to do.
func (m Merged) Unchanged() bool { return len(m.Set)+len(m.Remove) == 0 }

// Merge compares the values of the source and of Falaj with the base.
func (b Base) Merge(theirs, ours Values) Merged {
	m := Merged{Set: Values{}}
	for _, key := range slices.Sorted(maps.Keys(joined(theirs, ours, b))) {
		was, known := b[key]
		their, there := theirs[key]
		our, here := ours[key]
		if there == here && their == our {
			continue
		}
		changedThere := there != known || there && digestOf(their) != was
		changedHere := here != known || here && digestOf(our) != was
		switch {
		case !changedThere:
		case !changedHere && there:
			m.Set[key] = their
		case !changedHere:
			m.Remove = append(m.Remove, key)
		case !known:
			m.Conflicts = append(m.Conflicts, fmt.Sprintf("%s is %q in the source and %q in Falaj, which no import has set: Falaj's value stays", clip(key), brief(their), brief(our)))
		case there && here:
			m.Conflicts = append(m.Conflicts, fmt.Sprintf("%s was changed in the source, to %q, and in Falaj, to %q: Falaj's value stays", clip(key), brief(their), brief(our)))
		case here:
			m.Conflicts = append(m.Conflicts, fmt.Sprintf("%s was removed in the source and changed in Falaj, to %q: Falaj's value stays", clip(key), brief(our)))
		default:
			m.Conflicts = append(m.Conflicts, fmt.Sprintf("%s was changed in the source, to %q, and removed in Falaj: it stays removed", clip(key), brief(their)))
		}
	}
	return m
}

// Next is the base after a merge that left Falaj with the values ours.
func (b Base) Next(theirs, ours Values) Base {
	next := Base{}
	for key := range joined(theirs, ours, b) {
		their, there := theirs[key]
		our, here := ours[key]
		switch {
		case there != here || their != our:
			if was, known := b[key]; known {
				next[key] = was
			}
		case there:
			next[key] = digestOf(their)
		}
	}
	return next
}

// Apply gives the values with those of a merge.
func (v Values) Apply(m Merged) Values {
	out := maps.Clone(v)
	maps.Copy(out, m.Set)
	for _, key := range m.Remove {
		delete(out, key)
	}
	return out
}

// With adds a value, unless it is empty, which is the same as absent.
func (v Values) With(key, value string) Values {
	if value != "" {
		v[key] = value
	}
	return v
}

// tagPrefix begins the keys of tags in Values.
const tagPrefix = "tag "

// WithTags adds tags.
func (v Values) WithTags(tags []Pair) Values {
	for _, t := range tags {
		v[tagPrefix+t.Key] = t.Value
	}
	return v
}

// Tags are the tags that a merge sets and those that it removes.
func (m Merged) Tags() (set []Pair, remove []string) {
	for _, key := range slices.Sorted(maps.Keys(m.Set)) {
		if tag, ok := cutTag(key); ok {
			set = append(set, Pair{tag, m.Set[key]})
		}
	}
	for _, key := range m.Remove {
		if tag, ok := cutTag(key); ok {
			remove = append(remove, tag)
		}
	}
	return set, remove
}

func cutTag(key string) (string, bool) {
	if len(key) < len(tagPrefix) || key[:len(tagPrefix)] != tagPrefix {
		return "", false
	}
	return key[len(tagPrefix):], true
}

func joined(theirs, ours Values, b Base) map[string]bool {
	all := make(map[string]bool, len(theirs)+len(ours))
	for key := range theirs {
		all[key] = true
	}
	for key := range ours {
		all[key] = true
	}
	for key := range b {
		all[key] = true
	}
	return all
}

func digestOf(value string) string {
	h := sha256.Sum256([]byte(value))
	return base64.RawURLEncoding.EncodeToString(h[:9])
}

func brief(s string) string { return fault.Clip(s, 60) }
