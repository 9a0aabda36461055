package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSourcesArePacked: manifests name directories beside them, and the server gets
// digests; all else of them stays as it is written.
func TestSourcesArePacked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "the code"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "the code", "train.py"), []byte("pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var uploaded []string
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.HasSuffix(r.URL.Path, "/sources") {
			uploaded = append(uploaded, strings.Split(r.URL.Path, "/")[4])
			fmt.Fprintf(w, `{"digest":"sha256:%064d","files":1,"size":5}`, len(uploaded))
			return
		}
		sent = string(b)
		_, _ = io.WriteString(w, `{"items":[]}`)
	}))
	defer server.Close()
	apply := func(manifest string) (code int, said string) {
		t.Helper()
		file := filepath.Join(dir, "m.yaml")
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		uploaded, sent = nil, ""
		var out, complaints strings.Builder
		code = Run(t.Context(), World{Args: []string{"apply", "-f", file, "-p", "nyc", "--server", server.URL}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &complaints})
		return code, complaints.String()
	}
	digest := func(n int) string { return fmt.Sprintf("sha256:%064d", n) }
	manifest := `# one
api_version: falaj/v1
kind: Sweep
name: é
spec:
  job: &job {command: [python, é.py], source: 'the code', env: {V: 3.10}} # here
  parameters: [{name: lr, type: float, low: 1e-5, high: 1.0}]
---
api_version: falaj/v1
kind: Job
name: j
spec:
  source: "the code"   # and here
  command: [x]
---
{"api_version": "falaj/v1", "kind": "Job", "name": "k", "spec": {"source": "` + digest(9) + `"}}
---
api_version: falaj/v1
kind: Source
name: not-a-job
spec: {source: the code}
`
	want := strings.Replace(strings.Replace(manifest, "'the code'", digest(1), 1), `"the code"`, digest(2), 1)
	if code, said := apply(manifest); code != 0 || sent != want {
		t.Errorf("exit code %d, %s\nsent\n%s", code, said, sent)
	}
	if strings.Join(uploaded, " ") != "nyc nyc" {
		t.Errorf("uploaded into %v", uploaded)
	}
	for bad, why := range map[string]string{
		"{kind: Job, name: j, spec: {source: gone}}":                            `job j: its source "` + filepath.Join(dir, "gone") + `" is neither a directory`,
		"{kind: Job, name: j, spec: {source: m.yaml}}":                          "is neither a directory",
		"kind: Job\nname: j\nspec:\n  source: |\n    the\n    code\n":           "is neither a directory",
		"{kind: Sweep, name: s, spec: {job: {source: ../nowhere}}}":             "sweep s: its source",
		"kind: Job\nname: j\nspec:\n  source: \"the \\x63ode\"\n":               "write its source in one line",
		"kind: Job\nname: j\nspec:\n  source: the\n    code\n  command: [sh]\n": "write its source in one line",
	} {
		if code, said := apply(bad); code != 2 || !strings.Contains(said, why) || sent != "" {
			t.Errorf("%s: exit code %d, %s, sent %q", bad, code, said, sent)
		}
	}
	for _, fine := range []string{"kind: Job\nspec: [", "{kind: Job, spec: {source: 7}}", "{kind: Job, spec: {source: {a: b}}}", "{kind: Job, name: source}", "kind: Job\nspec: null\n# source"} {
		if code, said := apply(fine); code != 0 || sent != fine {
			t.Errorf("%s: exit code %d, %s; the server was to say what is wrong with it", fine, code, said)
		}
	}
}
