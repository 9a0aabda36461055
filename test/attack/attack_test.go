// Package attack runs what is hostile against the real binary: a training job
// that tries to reach what is not its own (job_test.go, whose program is
// testdata/attacker), outputs that are made to lead elsewhere (output_test.go),
// models that were changed on disk after they were signed (model_test.go), and
// requests for predictions in bad faith (inference_test.go).
package attack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	project = "attack"
	base    = "/api/v1/projects/" + project
)

// start starts a server with the project.
func start(t *testing.T, prepare func(*live.Server)) (*live.Server, *client.Client) {
	t.Helper()
	s := live.New(t, "")
	if prepare != nil {
		prepare(s)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := s.Client(t)
	apply(t, c, "{api_version: falaj/v1, kind: Project, name: "+project+"}")
	return s, c
}

func apply(t *testing.T, c *client.Client, manifest string) {
	t.Helper()
	if _, err := c.Apply(t.Context(), "", []byte(manifest+"\n"), false); err != nil {
		t.Fatalf("%s: %v", manifest, err)
	}
}

// source uploads files as a source archive and gives its digest.
func source(t *testing.T, c *client.Client, files map[string][]byte) string {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for name, content := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	var o client.Object
	if err := c.Do(t.Context(), http.MethodPost, base+"/sources", &b, &o); err != nil {
		t.Fatal(err)
	}
	return o.Text("digest")
}

// submit submits a job with little resources.
func submit(t *testing.T, c *client.Client, name string, spec map[string]any) string {
	t.Helper()
	if spec["resources"] == nil {
		spec["resources"] = map[string]any{"cpu": "0.2", "memory": "128MiB"}
	}
	var o client.Object
	if err := c.Do(t.Context(), http.MethodPost, base+"/jobs", map[string]any{"name": name, "spec": spec}, &o); err != nil {
		t.Fatalf("submitting %s: %v", name, err)
	}
	return o.Text("id")
}

// ended waits until the job has ended.
func ended(t *testing.T, c *client.Client, job string) client.Object {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	for {
		var o client.Object
		if err := c.Do(ctx, http.MethodGet, base+"/jobs/"+job+"?wait=30s", nil, &o); err != nil {
			t.Fatalf("job %s: %v", job, err)
		}
		switch o.Text("state") {
		case "succeeded", "failed", "cancelled":
			return o
		}
	}
}

func logs(t *testing.T, c *client.Client, job string) string {
	t.Helper()
	var b strings.Builder
	if err := c.Logs(t.Context(), project, job, 0, false, &b); err != nil {
		t.Fatalf("log of %s: %v", job, err)
	}
	return b.String()
}

// entry is one audited act, as `falaj audit list -o json` prints it.
type entry struct {
	Actor                           string `json:"actor_name"`
	Project, Action, Object, Reason string
	Outcome                         string
}

// refusals is what the audit log has as refused, newest first.
func refusals(t *testing.T, c *client.Client, filter url.Values) []entry {
	t.Helper()
	q := url.Values{"outcome": {"refused"}, "page_size": {"200"}}
	maps.Copy(q, filter)
	var out []entry
	err := c.List(t.Context(), "/api/v1/audit", q, func(o client.Object) error {
		b, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var e entry
		out = append(out, e)
		return json.Unmarshal(b, &out[len(out)-1])
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually asks until the answer is empty, which names what is missing. The
// audit log shows an entry within about a second of the act.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	if err := live.Until(ctx, func() (bool, error) {
		what := missing()
		return what == "", errors.New(what)
	}); err != nil {
		t.Fatal(err)
	}
}

// verify proves the audit log, exported and without the server.
func verify(t *testing.T, s *live.Server) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, args := range [][]string{
		{"audit", "export", "-f", file},
		{"audit", "verify", file, "--checkpoints", filepath.Join(s.Data, "checkpoints")},
	} {
		if out, code := s.Command(t.Context(), args...); code != 0 {
			t.Errorf("falaj %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		}
	}
}
