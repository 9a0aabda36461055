package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunDownload: files arrive whole, under their paths, and never outside of the directory.
func TestRunDownload(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Falaj-Project") != "nyc" || r.URL.Query().Get("run_id") != "run_1" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := map[string]string{
			"/api/2.0/mlflow/artifacts/list ":      `{"files":[{"path":"a.txt","is_dir":false,"file_size":5},{"path":"plots","is_dir":true}]}`,
			"/api/2.0/mlflow/artifacts/list plots": `{"files":[{"path":"plots/b.txt","is_dir":false,"file_size":4}]}`,
			"/api/2.0/mlflow/artifacts/list cut":   `{"files":[{"path":"cut/c.txt","is_dir":false,"file_size":9}]}`,
			"/api/2.0/mlflow/artifacts/list evil":  `{"files":[{"path":"../evil.txt","is_dir":false,"file_size":1}]}`,
			"/get-artifact a.txt":                  "hello",
			"/get-artifact plots/b.txt":            "plot",
			"/get-artifact cut/c.txt":              "short",
			"/get-artifact ../evil.txt":            "x",
		}[r.URL.Path+" "+r.URL.Query().Get("path")]
		if answer == "" {
			answer = `{}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	run := func(dir string, args ...string) (code int, said string) {
		var out strings.Builder
		args = append([]string{"run", "download", "run_1"}, args...)
		code = Run(t.Context(), World{Args: append(args, "--to", dir, "-p", "nyc", "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out})
		return code, out.String()
	}
	all := filepath.Join(t.TempDir(), "new")
	if code, said := run(all); code != 0 {
		t.Fatalf("%d: %s", code, said)
	}
	for name, want := range map[string]string{"a.txt": "hello", "plots/b.txt": "plot"} {
		if b, err := os.ReadFile(filepath.Join(all, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if code, said := run(all, "a.txt"); code != 5 || !strings.Contains(said, "is already there") {
		t.Errorf("over a file: %d: %s", code, said)
	}
	one := t.TempDir()
	if code, said := run(one, "plots/b.txt"); code != 0 {
		t.Errorf("one file: %d: %s", code, said)
	}
	for path, want := range map[string]string{"cut": "broke off after 5 of 9 bytes", "evil": "escapes", "absent": "no directory"} {
		dir := filepath.Join(t.TempDir(), "in", "here")
		code, said := run(dir, path)
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if above, _ := filepath.Glob(filepath.Join(dir, "..", "evil*")); code == 0 || !strings.Contains(said, want) || len(left)+len(above) > 0 || err != nil {
			t.Errorf("%s: %d: %s; left %v %v (%v)", path, code, said, left, above, err)
		}
	}
}
