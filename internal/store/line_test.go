package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestLines: a line has the fields that it was made of, or says that there are more.
func TestLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) store.Field {
			return store.Field{Name: rapid.SampledFrom([]string{"name", "tag"}).Draw(t, "name"), Value: rapid.String().Draw(t, "value")}
		}), 0, 5).Draw(t, "fields")
		var want []store.Field
		for _, f := range fields {
			if f.Value != "" {
				want = append(want, f)
			}
		}
		var l store.Line
		if l.Add(store.JoinFields(fields)); l.More {
			return
		}
		if diff := cmp.Diff(want, l.Fields); diff != "" {
			t.Fatal(diff)
		}
	})
	for _, value := range []string{strings.Repeat("x", 2000), "a\x00", "a\x1e", "a\x1f", "a\xff", "*"} {
		var l store.Line
		l.Add(store.JoinFields(store.FieldsOf("tag", value)))
		if want := value != "*"; l.More != want || !want && len(l.Fields) != 1 {
			t.Errorf("%.5q: %+v", value, l)
		}
	}
}

// TestFind: pages of lines go on behind those that were inspected, also where none may be what
// is looked for, and what is gone meanwhile is left out.
func TestFind(t *testing.T) {
	db := storetest.SQLite(t)
	const n = 5000
	key := func(i int) string { return fmt.Sprintf("%04d", i) }
	look := store.Lookup[string]{
		Lines: func(_ context.Context, _ *store.Tx, after string, limit int) (lines []store.Line, err error) {
			for i := 0; i < n && len(lines) < limit; i++ {
				if key(i) > after {
					lines = append(lines, store.Line{Key: key(i)})
				}
			}
			return lines, nil
		},
		Read: func(_ context.Context, _ *store.Tx, keys []string) ([]string, error) {
			var out []string
			for _, k := range keys {
				if k != "1000" { // gone
					out = append([]string{k}, out...) // in any order
				}
			}
			return out, nil
		},
		Key: func(k string) string { return k },
	}
	for suffix, want := range map[string]int{"000": 4, "00": 49, "": n - 1, "x": 0} {
		var got []string
		seen := 0
		for after, pages := "", 0; ; pages++ {
			found, err := store.Find(t.Context(), db, look, after, 30, func(l store.Line) (bool, error) { return strings.HasSuffix(l.Key, suffix), nil })
			if err != nil || pages > n || len(found.Objects) > 30 || found.Seen > 2000 {
				t.Fatal(found, err)
			}
			got, seen = append(got, found.Objects...), seen+found.Seen
			if after = found.Next; after == "" {
				break
			}
		}
		if len(got) != want || seen != n {
			t.Errorf("%q: %d found of %d lines", suffix, len(got), seen)
		}
		for i := 1; i < len(got); i++ {
			if got[i-1] >= got[i] {
				t.Fatalf("%q: %s before %s", suffix, got[i-1], got[i])
			}
		}
	}
}
