package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// TestEveryKindIsShown: what can be applied can be printed, at a gateway, too.
func TestEveryKindIsShown(t *testing.T) {
	for _, s := range []*Server{{}, {central: "https://falaj.example"}} {
		for kind, k := range s.appliers() {
			if k.show == nil {
				t.Errorf("a %s cannot be printed as a manifest", kind)
			}
		}
	}
}

// TestManifestOfAnObject: it is read with the rights that reading the object takes, and
// what is not there is said.
func TestManifestOfAnObject(t *testing.T) {
	w := open(t)
	viewer, _ := w.member(t, "flights", "looks", "viewer")
	outsider, _ := w.member(t, "other", "else", "admin")
	if got := w.do(t, w.Secret, "POST", "/api/v1/apply", "{api_version: falaj/v1, kind: Dataset, name: weather, project: flights, spec: {description: x}, status: {anything: [1]}}"); got.status != http.StatusOK {
		t.Fatal(got)
	}
	for _, c := range []struct {
		token, path string
		status      int
		says        string
	}{
		{viewer, "Dataset/weather?project=flights", 200, `{"api_version":"falaj/v1","kind":"Dataset","name":"weather","project":"flights","spec":{"description":"x",`},
		{viewer, "Dataset/weather", 400, "project is required"},
		{viewer, "Dataset/absent?project=flights", 404, "absent"},
		{outsider, "Dataset/weather?project=flights", 404, "flights"},
		{w.Secret, "Zone/home", 200, `"kind":"Zone","name":"home","spec":{`},
		{w.Secret, "Zone/absent", 404, `zone \"absent\" not found`},
		{w.Secret, "Grant/absent?project=flights", 404, `grant \"absent\" not found`},
		{w.Secret, "Datset/weather?project=flights", 404, "Did you mean Dataset?"},
		{w.Secret, "Project/flights?project=other", 200, `"kind":"Project","name":"flights","spec":{`},
	} {
		got := w.do(t, c.token, "GET", "/api/v1/manifests/"+c.path, "")
		if got.status != c.status || !strings.Contains(got.body, c.says) {
			t.Errorf("%s: %d %s, want %d with %s", c.path, got.status, got.body, c.status, c.says)
		}
	}
}
