package httpapi

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
)

func edge(t *testing.T, d Domains) *Server {
	t.Helper()
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
			ID       string                `json:"operationId"`
			Security []map[string][]string `json:"security"`
		}
	}
	if err := json.Unmarshal(got, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI[:3] != "3.1" || doc.Info.Version != APIVersion {
		t.Errorf("OpenAPI %s of version %s", doc.OpenAPI, doc.Info.Version)
	}
	ids := map[string]string{}
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
		}
	}
	foreign := map[string]bool{}
	for _, r := range mlflow.Routes() {
		foreign[r.Method+" "+r.Pattern] = true
	}
	described := 0
	for _, r := range s.Routes() {
		if !foreign[r.Method+" "+r.Path] {
			described++
		}
	}
	if count != described || count < 60 {
		t.Errorf("%d operations are described, %d routes are ours", count, described)
	}
}
