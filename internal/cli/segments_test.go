package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSegmentsAreShown: the metrics of each segment, with their intervals.
func TestSegmentsAreShown(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/windows") {
			_, _ = io.WriteString(w, `{"name":"delay","deployment":"delay","version":2,"state":"ok"}`)
			return
		}
		_, _ = io.WriteString(w, `{"items":[{"from":"2013-08-19T00:00:00Z","to":"2013-08-26T00:00:00Z","version":2,"rows":100,"judged":true,"features":[],"performance":{"state":"ok",
			"metrics":[{"name":"accuracy","value":0.75}],"segments":[{"column":"carrier","value":"AA","rows":60,"metrics":[{"name":"accuracy","value":0.8,"low":0.7,"high":0.9},{"name":"recall","value":0.5}]},
			{"column":"carrier","value":"U\u001bA","rows":40,"metrics":[{"name":"accuracy"}]}]}}]}`)
	}))
	defer server.Close()
	var out, said strings.Builder
	if code := Run(t.Context(), World{Args: []string{"monitor", "show", "delay", "-p", "nyc", "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said}); code != 0 {
		t.Fatalf("exit code %d: %s", code, &said)
	}
	for _, want := range []string{
		"Performance by segment, window from 2013-08-19 to 2013-08-26\n", "  carrier  AA      60    accuracy 0.8 [0.7, 0.9], recall 0.5\n", "  carrier  U\\x1bA  40    accuracy -\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}
