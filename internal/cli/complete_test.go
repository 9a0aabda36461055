package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// TestComplete: names come from the server; without one there are none, and
// nothing is said.
func TestComplete(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"items":[{"id":"job_1","name":"from %s","state":"running"}]}`, strings.TrimPrefix(r.URL.Path, "/api/v1/"))
	}))
	defer server.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for line, want := range map[string]string{
		"job wait":                "job_1\tfrom projects/nyc/jobs running",
		"job move job_1":          "from pools",
		"job move job_1 home":     "from pools",
		"pool doctor":             "from pools",
		"env diff torch":          "from projects/nyc/environments",
		"model versions":          "from projects/nyc/models",
		"get jobs":                "job_1\tfrom projects/nyc/jobs running",
		"delete queue":            "from queues",
		"run show":                "job_1\tfrom projects/nyc/runs",
		"run compare job_1":       "job_1\tfrom projects/nyc/runs",
		"sweep plot":              "from projects/nyc/sweeps",
		"job run --env":           "from projects/nyc/environments",
		"job submit --pool":       "from pools",
		"job run --framework":     "torchrun",
		"job profile j --tool":    "py-spy",
		"job cancel job_1":        "",
		"job checkpoint get j d ": "",
	} {
		for _, url := range []string{server.URL, gone.URL} {
			var out, said bytes.Buffer
			args := append([]string{"__complete", "-p", "nyc", "--server", url}, strings.Fields(line)...)
			code := Run(t.Context(), World{Args: append(args, ""), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
			lines := strings.Split(out.String(), "\n")
			lines = lines[:slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, ":") })]
			wanted := want
			if url == gone.URL && strings.HasPrefix(strings.TrimPrefix(want, "job_1\t"), "from") {
				wanted = ""
			}
			if code != 0 || (wanted == "") != (len(lines) == 0) || wanted != "" && !slices.Contains(lines, wanted) || strings.Contains(said.String(), "falaj:") {
				t.Errorf("%s: %d, %q, not %q\n%s", line, code, lines, wanted, said.String())
			}
		}
	}
}

// TestCompletedWords: the lists here are those of the server.
func TestCompletedWords(t *testing.T) {
	t.Parallel()
	var want []string
	for _, f := range launch.Frameworks {
		want = append(want, string(f))
	}
	if !slices.Equal(frameworks, want) {
		t.Errorf("frameworks: %q, not %q", frameworks, want)
	}
	if want := []string{string(profiler.PySpy), string(profiler.Torch), string(profiler.Nsys)}; !slices.Equal(tools, want) {
		t.Errorf("tools: %q, not %q", tools, want)
	}
}
