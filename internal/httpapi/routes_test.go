package httpapi

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
)

func edge(tb testing.TB, d Domains) *Server {
	tb.Helper()
	return New(Options{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Ready: func() error { return nil }, Console: http.NotFoundHandler()}, d)
}

// TestOpenAPI: what is checked in describes this code, and every route of ours is
// in it once.
func TestOpenAPI(t *testing.T) {
	s := edge(t, Domains{})
	got, err := s.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
		t.Error("api/openapi.json is not what the code gives: run make generate")
	}
	var doc struct {
		OpenAPI string `json:"openapi"`
		Info    struct{ Version string }
		Paths   map[string]map[string]struct {
			ID         string `json:"operationId"`
			Summary    string
			Permission *string               `json:"x-falaj-permission"`
			Security   []map[string][]string `json:"security"`
			Responses  map[string]struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
	}
	if err := json.Unmarshal(got, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI[:3] != "3.1" || doc.Info.Version != APIVersion {
		t.Errorf("OpenAPI %s of version %s", doc.OpenAPI, doc.Info.Version)
	}
	ids := map[string]string{}
	documented := map[string]Route{} // by the path that clients write
	for _, r := range s.Routes() {
		documented[r.Method+" "+oip.Documented(r.Path)] = r
	}
	count := 0
	for path, methods := range doc.Paths {
		for method, op := range methods {
			count++
			if other, ok := ids[op.ID]; ok {
				t.Errorf("%s %s and %s have the operationId %s", method, path, other, op.ID)
			}
			ids[op.ID] = method + " " + path
			if len(op.Security) != 1 {
				t.Errorf("%s %s does not ask for a token", method, path)
			}
			if op.Summary == "" {
				t.Errorf("%s %s says nothing of itself", method, path)
			}
			declared, ok := documented[strings.ToUpper(method)+" "+path]
			if !ok || op.Permission == nil || *op.Permission != string(declared.Action) {
				t.Errorf("%s %s does not say that it takes %q", method, path, declared.Action)
			}
			if _, known := policy.Lookup(declared.Action); declared.Action != "" && !known {
				t.Errorf("%s %s takes %s, which is no action", method, path, declared.Action)
			}
			for _, status := range refusals {
				r := op.Responses[strconv.Itoa(status)]
				if len(r.Content) != 1 {
					t.Errorf("%s %s does not say how it answers %d", method, path, status)
				}
				for _, c := range r.Content {
					if c.Schema == nil {
						t.Errorf("%s %s: no schema of %d", method, path, status)
					}
				}
			}
			if _, ok := op.Responses["422"]; ok {
				t.Errorf("%s %s: we answer 400 to a wrong field, never 422", method, path)
			}
		}
	}
	others := foreignRoutes()
	for _, r := range s.Routes() {
		_, foreign := others[r.Method+" "+r.Path]
		foreign = foreign || iceberg.Ours(r.Path) || flight.Ours(r.Path) || rpc.Ours(r.Path) || optuna.Ours(r.Path) || oip.Calls(r.Path) // these protocols have documents of their own
		if _, described := doc.Paths[oip.Documented(r.Path)][strings.ToLower(r.Method)]; described == (foreign || r.Open || r.Method == "") {
			t.Errorf("%s %s: it is described: %t", r.Method, r.Path, described)
		}
	}
	if count < 60 {
		t.Errorf("only %d operations are described", count)
	}
}

func foreignRoutes() map[string]mlflow.Route {
	out := map[string]mlflow.Route{}
	for _, r := range mlflow.Routes() {
		out[r.Method+" "+r.Pattern] = r
	}
	return out
}
