package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAnotherVersion: a refusal says when the server is of another version than the command.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Falaj-Version", "v0.1.0")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"status":404,"kind":"not_found","detail":"there is nothing at /api/v1/later"}`)
	}))
	defer server.Close()
	for version, want := range map[string]bool{"v0.1.0": false, "v0.2.0": true} {
		var said strings.Builder
		code := Run(t.Context(), World{Args: []string{"get", "projects", "--server", server.URL}, Version: version, Env: []string{"FALAJ_TOKEN=x"}, Stdout: io.Discard, Stderr: &said})
		if code != 4 || strings.Contains(said.String(), "The server is Falaj v0.1.0 and this command is "+version) != want {
			t.Errorf("%s: %d\n%s", version, code, &said)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := World{Args: []string{"version"}, Version: "v0.2.0", Commit: "abc", Built: "2026-11-29T10:00:00Z", Stdout: &out, Stderr: io.Discard}
	if code := Run(t.Context(), w); code != 0 || !strings.HasPrefix(out.String(), "falaj v0.2.0\ncommit abc of 2026-11-29T10:00:00Z\ngo") {
		t.Errorf("%d %q", code, &out)
	}
}
