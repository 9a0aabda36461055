package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestDeadLettersFormerName: the former spelling asks the same of the server, and no help shows it.
func TestDeadLettersFormerName(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		_, _ = io.WriteString(w, `{"items":[]}`)
	}))
	defer server.Close()
	for name, hidden := range map[string]bool{"dead-letters": false, "dead": true} {
		cmd, _, err := (&app{}).root().Find([]string{"feature", name})
		if err != nil || cmd.Name() != name || cmd.Hidden != hidden {
			t.Fatalf("feature %s: %s, hidden %v, %v", name, cmd.Name(), cmd.Hidden, err)
		}
		code := Run(t.Context(), World{
			Args: []string{"feature", name, "spending", "-p", "shop", "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: io.Discard, Stderr: io.Discard,
		})
		if code != 0 {
			t.Fatalf("feature %s ends with %d", name, code)
		}
		if got, want := <-asked, "GET /api/v1/projects/shop/feature-views/spending/dead"; got != want {
			t.Errorf("feature %s asks %s, not %s", name, got, want)
		}
	}
}
