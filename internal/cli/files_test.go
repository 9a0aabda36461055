package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
		switch key := r.URL.Path + " " + r.URL.Query().Encode(); key {
		case "/api/v1/projects/nyc/runs/run_1 ":
			_, _ = io.WriteString(w, `{"models":[{"id":"m_read","name":"plots"},{"id":"m_made","name":"model","output":true}]}`)
			return
		case "/api/2.0/mlflow/logged-models/m_made/artifacts/directories ":
			_, _ = io.WriteString(w, `{"files":[{"path":"MLmodel","file_size":2},{"path":"data","is_dir":true}]}`)
			return
		case "/api/2.0/mlflow/logged-models/m_made/artifacts/directories artifact_directory_path=data":
			_, _ = io.WriteString(w, `{"files":[{"path":"data/w","file_size":3}]}`)
			return
		case "/ajax-api/2.0/mlflow/logged-models/m_made/artifacts/files artifact_file_path=MLmodel":
			_, _ = io.WriteString(w, "ml")
			return
		case "/ajax-api/2.0/mlflow/logged-models/m_made/artifacts/files artifact_file_path=data%2Fw":
			_, _ = io.WriteString(w, "www")
			return
		}
		if r.Header.Get("Falaj-Project") != "nyc" || r.URL.Query().Get("run_id") != "run_1" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := map[string]string{
			"/api/2.0/mlflow/artifacts/list ":      `{"files":[{"path":"a.txt","is_dir":false,"file_size":5},{"path":"plots","is_dir":true}]}`,
			"/api/2.0/mlflow/artifacts/list model": `{"files":[{"path":"model/MLmodel","file_size":99}]}`,
			"/api/2.0/mlflow/artifacts/list plots": `{"files":[{"path":"plots/b.txt","is_dir":false,"file_size":4}]}`,
			"/api/2.0/mlflow/artifacts/list cut":   `{"files":[{"path":"cut/c.txt","is_dir":false,"file_size":9}]}`,
			"/api/2.0/mlflow/artifacts/list evil":  `{"files":[{"path":"../evil.txt","is_dir":false,"file_size":1}]}`,
			"/api/2.0/mlflow/artifacts/list loop":  `{"files":[{"path":"loop","is_dir":true}]}`,
			"/api/2.0/mlflow/artifacts/list more":  `{"files":[{"path":"more/d.txt","is_dir":false,"file_size":3}]}`,
			"/api/2.0/mlflow/artifacts/list none":  `{"files":[{"path":"none/e.txt","is_dir":false,"file_size":-1}]}`,
			"/get-artifact more/d.txt":             "longer",
			"/get-artifact none/e.txt":             "without end",
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
	for _, same := range []string{"plots/", "./plots"} {
		if code, said := run(filepath.Join(t.TempDir(), "same"), same); code != 0 {
			t.Errorf("%s: %d: %s", same, code, said)
		}
	}
	for name, want := range map[string]string{"a.txt": "hello", "plots/b.txt": "plot", "model/MLmodel": "ml", "model/data/w": "www"} {
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
	for path, want := range map[string]string{"cut": "broke off after 5 of 9 bytes", "evil": "escapes", "loop": `lists the directory "loop" in "loop"`, "more": "has more than the 3 bytes", "none": "with -1 bytes", "absent": "no file or directory"} {
		dir := filepath.Join(t.TempDir(), "in", "here")
		code, said := run(dir, path)
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if above, _ := filepath.Glob(filepath.Join(dir, "..", "evil*")); code == 0 || !strings.Contains(said, want) || len(left)+len(above) > 0 || err != nil {
			t.Errorf("%s: %d: %s; left %v %v (%v)", path, code, said, left, above, err)
		}
	}
}

// TestJobFiles: files have their sizes, and it is said that a listing is not whole.
func TestJobFiles(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"items":[{"path":"a.txt","bytes":4,"changed_at":"2026-01-02T03:04:05Z"},{"path":"b","bytes":1610612736}],"more":%t}`, r.URL.Query().Get("path") == "b")
	}))
	defer server.Close()
	for path, more := range map[string]bool{"": false, "b": true} {
		var out strings.Builder
		code := Run(t.Context(), World{Args: []string{"job", "files", "job_1", path, "-p", "nyc", "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out})
		if said := strings.Join(strings.Fields(out.String()), " "); code != 0 || !strings.Contains(said, "a.txt 4 bytes 2026-01-02") || !strings.Contains(said, "b 1.5 GiB") || strings.Contains(said, "the list is truncated") != more {
			t.Errorf("%q: %d: %s", path, code, said)
		}
	}
}

// TestJobDownload: each file arrives whole or not at all; one that the job removed meanwhile
// is left out, and said.
func TestJobDownload(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.Query().Get("path")
		switch r.URL.Path {
		case "/api/v1/projects/nyc/jobs/job_1/files":
			items := map[string]string{
				"": `{"path":"a.txt","bytes":1},{"path":"gone.txt","bytes":1},{"path":"plots/b.txt","bytes":1}`, "cut": `{"path":"a.txt","bytes":1},{"path":"cut/c.txt","bytes":9}`,
				"evil": `{"path":"../evil.txt","bytes":1}`, "failing": `{"path":"failing/d.txt","bytes":1},{"path":"a.txt","bytes":1}`,
			}[at]
			_, _ = fmt.Fprintf(w, `{"items":[%s],"more":%t}`, items, at == "many")
		case "/api/v1/projects/nyc/jobs/job_1/files/content":
			switch at {
			case "a.txt", "plots/b.txt", "../evil.txt":
				_, _ = io.WriteString(w, "as long as it is")
			case "cut/c.txt":
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case "gone.txt":
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"status":404,"kind":"not_found","detail":"no plain file gone.txt"}`)
			default:
				w.WriteHeader(http.StatusInternalServerError)
			}
		default:
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer server.Close()
	for path, c := range map[string]struct {
		code int
		says string
		left string
	}{
		"":        {0, "gone.txt  not fetched, it was listed before: no plain file gone.txt", "a.txt plots plots/b.txt"},
		"cut":     {6, "fetching cut/c.txt", "a.txt cut"},
		"evil":    {1, "escapes", ""},
		"failing": {1, "500", ""},
		"many":    {2, "more files", ""},
	} {
		dir := filepath.Join(t.TempDir(), "in", "here")
		var out strings.Builder
		code := Run(t.Context(), World{Args: []string{"job", "download", "job_1", path, "--to", dir, "-p", "nyc", "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out})
		var left []string
		err := filepath.WalkDir(filepath.Join(dir, "..", ".."), func(name string, e fs.DirEntry, err error) error {
			if rel, _ := filepath.Rel(dir, name); err == nil && (!e.IsDir() || !strings.HasPrefix(rel, ".")) {
				left = append(left, rel)
			}
			return err
		})
		if code != c.code || !strings.Contains(out.String(), c.says) || strings.Join(left, " ") != c.left || err != nil {
			t.Errorf("%q: %d: %s; left %v (%v)", path, code, out.String(), left, err)
		}
	}
}

// TestAuditExport: an export is whole, or is not there.
func TestAuditExport(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{}\n")
		if r.URL.Query().Get("project") == "cut" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	for project, want := range map[string]struct {
		code int
		left string
	}{"whole": {0, "{}\n"}, "cut": {6, ""}} {
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		var out strings.Builder
		code := Run(t.Context(), World{Args: []string{"audit", "export", "-f", file, "-p", project, "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out})
		left, err := os.ReadFile(file)
		if code != want.code || string(left) != want.left || want.left == "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %d: %s; left %q, %v", project, code, out.String(), left, err)
		}
	}
}
