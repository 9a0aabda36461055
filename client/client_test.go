package client_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

// TestRefusals: each protocol's way to say no becomes an Error with a kind.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		status       int
		body         string
		kind, detail string
	}{
		"problem":   {http.StatusConflict, `{"status":409,"kind":"conflict","detail":"it is there"}`, "conflict", "it is there"},
		"inference": {http.StatusNotFound, `{"error":"unknown model"}`, "not_found", "unknown model"},
		"MLflow":    {http.StatusUnauthorized, `{"error_code":"UNAUTHENTICATED","message":"who are you"}`, "unauthenticated", "who are you"},
		"a proxy":   {http.StatusBadGateway, "<html>", "unavailable", "502 Bad Gateway: <html>"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		t.Cleanup(srv.Close)
		falaj, err := client.New(srv.URL, "token")
		if err != nil {
			t.Fatal(err)
		}
		err = falaj.Do(t.Context(), http.MethodGet, "/x", nil, nil)
		refused, ok := errors.AsType[*client.Error](err)
		if !ok || refused.Kind != c.kind || refused.Detail != c.detail || refused.Status != c.status {
			t.Errorf("%s: %#v", name, err)
		}
	}
}
