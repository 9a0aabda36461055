package spark

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// Spark's own OpenLineage listener tells Falaj what a job read of an open dataset, found
// by the place of its files, and what it wrote.
func TestSparkTellsLineage(t *testing.T) {
	s := live.New(t, "")
	python, jar := installed(t, s, "spark/bin/python"), installed(t, s, "spark/openlineage.jar")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply("{api_version: falaj/v1, kind: Dataset, name: weather, project: nyc, spec: {protection: open}}")
	p.Import("weather", "id,temp\n1,2.5\n2,3\n")
	files, err := filepath.Glob(filepath.Join(s.Data, "tables", "projects", "nyc", "datasets", "weather", "*", "dsv_*", "*.parquet"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q %v", files, err)
	}
	var token client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": "nyc", "name": "spark", "role": "engineer"}, &token))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/lineage.py", jar, s.URL, token.Text("secret"), files[0], filepath.Join(t.TempDir(), "out"))
	cmd.Env = append(os.Environ(), "HOME="+s.Home)
	out, err := cmd.CombinedOutput()
	out = out[max(0, len(out)-4000):]
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := p.Run(0, "lineage", "weather", "--down", "--columns")
	for _, want := range []string{"job nightly", "in lake", "/out", "double ← "} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in the lineage:\n%s\n%s", want, said, out)
		}
	}
}
