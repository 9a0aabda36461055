package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// TestStrictBodies: what two readers of JSON could understand differently is refused, with the
// place, and names are exact.
func TestStrictBodies(t *testing.T) {
	w := open(t)
	for body, want := range map[string]string{
		`{"project":"flights","name":"a","name":"b","role":"viewer"}`:        `duplicate key \"name\"`,
		`{"project":"flights","name":"a","role":"viewer","Name":"b"}`:        "Name",
		`{"project":"flights","Name":"a","role":"viewer"}`:                   "Name",
		`{"project":"flights","name":"\ud800","role":"viewer"}`:              "name (byte",
		"{\"project\":\"flights\",\"name\":\"caf\xe9\",\"role\":\"viewer\"}": "not UTF-8",
		`{"project":"flights","name":"a","role":"viewer"} {}`:                "after its end",
	} {
		got := w.do(t, w.Secret, "POST", "/api/v1/tokens", body, "Content-Type", "application/json")
		if got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			t.Errorf("%q: %d %s, want %s", body, got.status, got.body, want)
		}
	}
	got := w.do(t, w.Secret, "POST", "/api/v1/tokens", `{"project":"flights","name":"a","role":"viewer"}`, "Content-Type", "application/json")
	if got.status != http.StatusCreated {
		t.Errorf("%d %s", got.status, got.body)
	}
	// Manifests are YAML, of which JSON is a part.
	const spec = `"api_version":"falaj/v1","kind":"Dataset","project":"flights"`
	for body, want := range map[string]string{
		`{` + spec + `,"name":"a","name":"b","spec":{}}`:                    "duplicate",
		`{` + spec + `,"Name":"a","spec":{}}`:                               "Name",
		`{` + spec + `,"name":"a","spec":{"description":"\ud800"}}`:         "",
		"{" + spec + ",\"name\":\"a\",\"spec\":{\"description\":\"\xe9\"}}": "",
	} {
		if got := w.do(t, w.Secret, "POST", "/api/v1/apply", body); got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			t.Errorf("%q: %d %s, want %s", body, got.status, got.body, want)
		}
	}
}
