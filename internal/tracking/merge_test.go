package tracking

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestMerge: each way in which a value can differ between the last import, the source and
// Falaj.
func TestMerge(t *testing.T) {
	const none = ""
	for _, c := range []struct {
		was, their, our string
		want            string // in Falaj afterwards
		conflict        bool
	}{
		{none, none, none, none, false},
		{none, "a", none, "a", false},
		{none, none, "a", "a", false},
		{none, "a", "a", "a", false},
		{none, "a", "b", "b", true},
		{"a", "a", "a", "a", false},
		{"a", "b", "a", "b", false},
		{"a", none, "a", none, false},
		{"a", "a", "b", "b", false},
		{"a", "a", none, none, false},
		{"a", "b", "b", "b", false},
		{"a", none, none, none, false},
		{"a", "b", "c", "c", true},
		{"a", "b", none, none, true},
		{"a", none, "c", "c", true},
	} {
		value := func(s string) Values {
			return Values{}.With("k", s)
		}
		base := Base(nil).Next(value(c.was), value(c.was))
		theirs, ours := value(c.their), value(c.our)
		m := base.Merge(theirs, ours)
		after := ours.Apply(m)
		if after["k"] != c.want || len(m.Conflicts) > 0 != c.conflict || m.Unchanged() != (c.our == c.want) {
			t.Errorf("%+v: %+v", c, m)
		}
		again := base.Next(theirs, after)
		if repeated := again.Merge(theirs, after); !repeated.Unchanged() || len(repeated.Conflicts) != len(m.Conflicts) {
			t.Errorf("%+v, repeated: %+v", c, repeated)
		}
	}
}

// TestMergeSteps: over any number of imports, a value that nobody touched in Falaj is that of
// the source, and one that only Falaj changed is that of Falaj.
func TestMergeSteps(t *testing.T) {
	values := rapid.SampledFrom([]string{"", "a", "b", "c"})
	keys := []string{"description", "tag x", "alias y"}
	rapid.Check(t, func(t *rapid.T) {
		base, theirs, ours := Base(nil), Values{}, Values{}
		changed := map[string]bool{}  // in Falaj
		imported := map[string]bool{} // with a value, after which the source did not change it
		change := func(v Values, key string) {
			delete(v, key)
			v.With(key, values.Draw(t, key))
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			before := maps.Clone(theirs)
			for _, key := range keys {
				if rapid.Bool().Draw(t, "there") {
					change(theirs, key)
				}
				if was := ours[key]; rapid.IntRange(0, 3).Draw(t, "here") == 0 {
					change(ours, key)
					changed[key] = changed[key] || ours[key] != was
				}
			}
			kept := maps.Clone(ours)
			m := base.Merge(theirs, ours)
			ours = ours.Apply(m)
			base = base.Next(theirs, ours)
			for _, key := range keys {
				if !changed[key] && ours[key] != theirs[key] {
					t.Fatalf("%s is %q, and %q in the source: %+v", key, ours[key], theirs[key], m)
				}
				if imported[key] && theirs[key] == before[key] && ours[key] != kept[key] {
					t.Fatalf("%s was changed from %q to %q, and the source did not change it", key, kept[key], ours[key])
				}
				imported[key] = ours[key] == theirs[key]
			}
		}
	})
}

func TestMergedTags(t *testing.T) {
	m := Merged{Set: Values{"tag b": "2", "tag a": "", "description": "x"}, Remove: []string{"alias a", "tag c", "tag "}}
	set, remove := m.Tags()
	if diff := cmp.Diff([]Pair{{"a", ""}, {"b", "2"}}, set); diff != "" || !slices.Equal(remove, []string{"c", ""}) {
		t.Errorf("%s %q", diff, remove)
	}
}
