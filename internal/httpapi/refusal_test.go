package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// TestRefusalsAreOnRecord: whatever refuses a caller, at whatever door, one entry says so.
func TestRefusalsAreOnRecord(t *testing.T) {
	w := open(t)
	engineer, _ := w.member(t, "flights", "eve", project.Engineer)
	unbound := w.do(t, w.Secret, "POST", "/api/v1/tokens", `{"user":"uma"}`)
	var made tokenAnswer
	if err := json.Unmarshal([]byte(unbound.body), &made); err != nil {
		t.Fatal(err)
	}
	loose := made.Secret
	for _, c := range []struct {
		name, token, method, path, body string
		headers                         []string
		status                          int
		want                            string // action, object and a part of the reason
	}{
		{"no right", engineer, "POST", "/api/v1/projects/flights/keys/destroy", `{"confirm":"flights"}`, nil, 403, "keys.destroy"},
		{"another project", engineer, "GET", "/api/v1/projects/other/datasets", "", nil, 404, "dataset.read"},
		{"another project by the header", engineer, "GET", "/api/v1/whoami", "", []string{"Falaj-Project", "other"}, 403, "request GET /api/v1/whoami: this token is bound to project flights"},
		{"another project by the header, MLflow", engineer, "GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=x", "", []string{"Falaj-Project", "other"}, 403, "request GET /api/2.0/mlflow/experiments/get-by-name: this token is bound"},
		{"another project by the header, inference", engineer, "GET", "/v2/models/x", "", []string{"Falaj-Project", "other"}, 403, "request GET /v2/models/x: this token is bound"},
		{"no project, inference", loose, "GET", "/v2/models/x", "", nil, 403, "request GET /v2/models/x: this token is not bound to a project"},
		{"no project, MLflow", loose, "GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=x", "", nil, 403, "is not bound to a project"},
		{"no project, Feast", loose, "POST", "/get-online-features", `{}`, nil, 403, "request POST /get-online-features: this token is not bound"},
		{"no project, Flight", loose, "POST", "/arrow.flight.protocol.FlightService/ListFlights", "", nil, 403, "ListFlights: this token is not bound"},
		{"a manifest", engineer, "POST", "/api/v1/apply?project=flights", "api_version: falaj/v1\nkind: Zone\nname: XX\nspec: {jurisdiction: XX}\n", nil, 403, "zone.apply"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.Journal.Take()
			got := w.do(t, c.token, c.method, c.path, c.body, c.headers...)
			if got.status != c.status {
				t.Errorf("status %d: %s", got.status, got.body)
			}
			entries := w.Journal.Take()
			if len(entries) != 1 {
				t.Fatalf("%d entries: %+v", len(entries), entries)
			}
			e := entries[0]
			if text := e.Action + " " + e.Object + ": " + e.Reason; e.Outcome != audit.Refused || e.Actor.ID == "" || !strings.Contains(text, c.want) {
				t.Errorf("%s by %+v, want %s", text, e.Actor, c.want)
			}
		})
	}
}

func TestAddressOf(t *testing.T) {
	s := &Server{cfg: Config{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}}
	for _, c := range []struct {
		from      string
		forwarded []string
		want      string
	}{
		{"192.0.2.7:4711", nil, "192.0.2.7"},
		{"192.0.2.7:4711", []string{"198.51.100.1"}, "192.0.2.7"},
		{"[::ffff:192.0.2.7]:1", nil, "192.0.2.7"},
		{"[2001:db8::7]:1", nil, "2001:db8::7"},
		{"10.0.0.1:1", nil, "10.0.0.1"},
		{"10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"198.51.100.1", "10.0.0.2"}, "198.51.100.1"},
		{"[fd00::1]:1", []string{"198.51.100.1,fd00::2 , 10.9.9.9"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"garbage"}, "10.0.0.1"},
		{"10.0.0.1:1", []string{"198.51.100.1, garbage, 10.0.0.2"}, "10.0.0.2"},
		{"@", []string{"198.51.100.1"}, ""},
		{"", nil, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		for _, f := range c.forwarded {
			r.Header.Add("X-Forwarded-For", f)
		}
		if got := s.addressOf(r); got != c.want {
			t.Errorf("%s, forwarded for %q: %q, want %q", c.from, c.forwarded, got, c.want)
		}
	}
}
