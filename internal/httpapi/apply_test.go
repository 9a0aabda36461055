package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestIfMatch: what is read with an ETag is changed only while it is as read.
func TestIfMatch(t *testing.T) {
	w := open(t)
	apply := func(manifest string, headers ...string) answered {
		t.Helper()
		return w.do(t, w.Secret, "POST", "/api/v1/apply", manifest, headers...)
	}
	tag := func(path string) string {
		t.Helper()
		got := w.do(t, w.Secret, "GET", path, "")
		if got.status != http.StatusOK || got.header.Get("ETag") == "" {
			t.Fatalf("%s: %d with the ETag %q", path, got.status, got.header.Get("ETag"))
		}
		return got.header.Get("ETag")
	}
	if got := apply(`{api_version: falaj/v1, kind: Dataset, name: weather, project: flights}`); got.status != http.StatusOK {
		t.Fatal(got)
	}
	for path, manifest := range map[string]string{
		"/api/v1/projects/flights":                  `{api_version: falaj/v1, kind: Project, name: flights, spec: {description: TEXT}}`,
		"/api/v1/projects/flights/datasets/weather": `{api_version: falaj/v1, kind: Dataset, name: weather, project: flights, spec: {description: TEXT}}`,
	} {
		with := func(text string, headers ...string) answered {
			t.Helper()
			return apply(strings.ReplaceAll(manifest, "TEXT", text), headers...)
		}
		first := tag(path)
		if got := with("one", "If-Match", first); got.status != http.StatusOK {
			t.Errorf("%s, fresh: %v", path, got)
		}
		second := tag(path)
		if second == first {
			t.Errorf("%s has the ETag %s before and after a change", path, first)
		}
		for _, dry := range []string{"", "?dry_run=true"} {
			got := w.do(t, w.Secret, "POST", "/api/v1/apply"+dry, strings.ReplaceAll(manifest, "TEXT", "two"), "If-Match", first)
			if got.status != http.StatusConflict || !strings.Contains(got.body, "revision") {
				t.Errorf("%s, stale: %v", path, got)
			}
		}
		if now := tag(path); now != second || strings.Contains(w.do(t, w.Secret, "GET", path, "").body, `"two"`) {
			t.Errorf("%s changed under a stale If-Match: %s", path, now)
		}
		for _, whatever := range []string{"", "*"} {
			if got := with("any"+whatever, "If-Match", whatever); got.status != http.StatusOK {
				t.Errorf("%s, If-Match %q: %v", path, whatever, got)
			}
		}
		for _, bad := range []string{"1", `W/"1"`, `"0"`, `"-1"`, `"x"`, `"1", "2"`, "`1`", `"99999999999999999999"`} {
			if got := with("bad", "If-Match", bad); got.status != http.StatusBadRequest {
				t.Errorf("%s, If-Match %s: %v", path, bad, got)
			}
		}
		if got := with("both\n---\n"+manifest, "If-Match", second); got.status != http.StatusBadRequest {
			t.Errorf("%s, two manifests: %v", path, got)
		}
	}
	for _, missing := range []string{
		`{api_version: falaj/v1, kind: Project, name: absent}`, `{api_version: falaj/v1, kind: Dataset, name: absent, project: flights}`,
	} {
		if got := apply(missing, "If-Match", `"1"`); got.status != http.StatusConflict {
			t.Errorf("what is not there: %v", got)
		}
	}
	if got := apply(`{api_version: falaj/v1, kind: Zone, name: DE, spec: {jurisdiction: DE}}`, "If-Match", `"1"`); got.status != http.StatusNotImplemented {
		t.Errorf("a kind without: %v", got)
	}
}

func TestKeys(t *testing.T) {
	w := open(t)
	const path = "/api/v1/projects/flights/keys"
	for _, owner := range []string{"dataset/a", "dataset/b"} {
		if _, err := w.server.Keys.DataKey(t.Context(), "flights", owner, "test"); err != nil {
			t.Fatal(err)
		}
	}
	list := func() string {
		t.Helper()
		got := w.do(t, w.Secret, "GET", path, "")
		if got.status != http.StatusOK {
			t.Fatal(got)
		}
		return got.body
	}
	if body := list(); strings.Count(body, `"state":"active"`) != 3 || !strings.Contains(body, `"owner":"dataset/a"`) {
		t.Errorf("listed: %s", body)
	}
	destroy := func(body string) int { return w.do(t, w.Secret, "POST", path+"/destroy", body).status }
	for body, want := range map[string]int{
		`{"owner":"dataset/a"}`:                                 400, // not confirmed
		`{"owner":"dataset/a","confirm":"dataset/b"}`:           400,
		`{"owner":"dataset/a","confirm":""}`:                    400,
		`{"confirm":""}`:                                        400,
		`{"owner":"","confirm":"other"}`:                        400,
		`{"owner":"dataset/absent","confirm":"dataset/absent"}`: 404,
		`{"owner":"../x","confirm":"../x"}`:                     404,
	} {
		if got := destroy(body); got != want {
			t.Errorf("%s: %d, not %d", body, got, want)
		}
	}
	if body := list(); strings.Contains(body, "destroyed") {
		t.Errorf("without confirmation: %s", body)
	}
	if got := destroy(`{"owner":"dataset/a","confirm":"dataset/a"}`); got != http.StatusOK {
		t.Errorf("destroyed with %d", got)
	}
	if body := list(); strings.Count(body, `"state":"destroyed"`) != 1 || strings.Count(body, "destroyed_at") != 1 {
		t.Errorf("afterwards: %s", body)
	}
	if _, err := w.server.Keys.DataKey(t.Context(), "flights", "dataset/a", "test"); !fault.Is(err, fault.Gone) {
		t.Errorf("the destroyed key: %v", err)
	}
	if _, err := w.server.Keys.DataKey(t.Context(), "flights", "dataset/b", "test"); err != nil {
		t.Errorf("another key: %v", err)
	}
	if got := destroy(`{"confirm":"flights"}`); got != http.StatusOK {
		t.Errorf("all of the project: %d", got)
	}
	if body := list(); strings.Contains(body, `"active"`) {
		t.Errorf("of all: %s", body)
	}
}

// FuzzHeaders: what clients send in headers is read or refused, never a defect.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{`"1"`, "*", `W/"1"`, "Bearer flj_x", "Basic eDp5", "Bearer", `"\x31"`, "'1'", "`1`", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := &http.Request{Header: http.Header{"If-Match": {s}, "Authorization": {s}}}
		n, err := ifMatch(r)
		if err != nil && !fault.Is(err, fault.Invalid) || err == nil && n < 0 {
			t.Errorf("If-Match %q: %d, %v", s, n, err)
		}
		if err == nil && n > 0 && s[0] != '"' {
			t.Errorf("If-Match %q is read as %d", s, n)
		}
		if token := bearer(r); len(token) > len(s) {
			t.Errorf("Authorization %q is read as %q", s, token)
		}
	})
}
