package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestSearchWords(t *testing.T) {
	for q, want := range map[string][]word{
		"Delay":                       {{"", "delay"}},
		` owner:alice  tag:team=ops `: {{"owner", "alice"}, {"tag", "team=ops"}},
		`from:"a b" "c d" column:x`:   {{"from", "a b"}, {"", "c d"}, {"column", "x"}},
		"s3://lake/x":                 {{"", "s3://lake/x"}},
		`"open`:                       {{"", "open"}},
	} {
		got, err := wordsOf(q)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(word{})); err != nil || diff != "" {
			t.Errorf("%q: %v %s", q, err, diff)
		}
	}
	for _, q := range []string{"", "  ", "owner:", `""`, "a b c d e f g h i j k"} {
		if got, err := wordsOf(q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v %v", q, got, err)
		}
	}
}

func TestSearchMatches(t *testing.T) {
	texts := []match{{"name", "delays"}, {"tag", "team=Ops"}, {"column", "temp"}, {"from", "weather@3"}}
	for q, want := range map[string]string{
		"delay": "delays", "OPS temp": "team=Ops temp", "tag:ops": "team=Ops", "from:weather kind:dataset": "weather@3", "column:delay": "-", "delay nothing": "-", "kind:model": "-", "kind:dataset": "",
	} {
		words, err := wordsOf(q)
		if err != nil {
			t.Fatal(err)
		}
		got := "-"
		if found, all := (thing{}).matches(words, "dataset", texts); all {
			values := make([]string, len(found))
			for i, m := range found {
				values[i] = m.Value
			}
			got = strings.Join(values, " ")
		}
		if got != want {
			t.Errorf("%q: %q, want %q", q, got, want)
		}
	}
}

// A search goes on page by page, finds each object once, and only what its caller may
// see.
func TestSearchPages(t *testing.T) {
	w := open(t)
	names := map[string]bool{}
	for _, n := range []string{"alpha", "beta", "gamma", "delta", "other"} {
		names[n] = true
		if got := w.do(t, w.Secret, "POST", "/api/v1/apply", `{api_version: falaj/v1, kind: Dataset, name: `+n+`, project: flights, spec: {description: needle `+n+`}}`); got.status != 200 {
			t.Fatal(got)
		}
	}
	viewer, _ := w.member(t, "flights", "eve", "viewer")
	stranger, _ := w.member(t, "other", "mallory", "admin")
	for _, token := range []string{w.Secret, viewer} {
		left, next := map[string]bool{}, ""
		for n := range names {
			left[n] = true
		}
		for pages := 0; ; pages++ {
			var page items[hit]
			got := w.do(t, token, "GET", "/api/v1/projects/flights/search?q=needle+kind:dataset&page_size=2&page_token="+next, "")
			if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 {
				t.Fatal(got, err)
			}
			if len(page.Items) > 2 || pages > 5 {
				t.Fatalf("page %d has %d objects", pages, len(page.Items))
			}
			for _, h := range page.Items {
				if !left[h.Name] || h.Kind != "dataset" || len(h.Matches) == 0 {
					t.Errorf("%+v", h)
				}
				delete(left, h.Name)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		if len(left) > 0 {
			t.Errorf("not found: %v", left)
		}
	}
	if got := w.do(t, stranger, "GET", "/api/v1/projects/flights/search?q=needle", ""); got.status != 403 && got.status != 404 {
		t.Errorf("a stranger: %+v", got)
	}
	for _, q := range []string{"q=", "q=x&page_token=abc", "q=x&page_token=eyJrIjo5OX0"} {
		if got := w.do(t, w.Secret, "GET", "/api/v1/projects/flights/search?"+q, ""); got.status != 400 {
			t.Errorf("%s: %+v", q, got)
		}
	}
}
