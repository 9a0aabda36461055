package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestStreams: a job in its sandbox streams its input by the name that it has in
// the manifest, goes on after the server was killed, and may not read another
// dataset.
func TestStreams(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "streams")
	p.Apply(`
{api_version: falaj/v1, kind: Environment, name: arrow, project: PROJECT, spec: {python: /usr/bin/python3.11, requirements: [pyarrow==25.0.1]}}
---
{api_version: falaj/v1, kind: Dataset, name: numbers, project: PROJECT, spec: {classification: confidential}}
---
{api_version: falaj/v1, kind: Dataset, name: other, project: PROJECT}
`)
	p.Run(0, "env", "wait", "arrow")
	const rows = 100_000 // more than is on its way at once
	var csv strings.Builder
	csv.WriteString("n,pad\n")
	for i := range rows {
		fmt.Fprintf(&csv, "%d,%0100d\n", i, i)
	}
	p.Import("numbers", csv.String())
	p.Import("other", "n\n1\n")

	source := t.TempDir()
	p.Must(os.CopyFS(filepath.Join(source, "falaj"), os.DirFS("../../sdk/python/falaj")))
	p.Must(os.WriteFile(filepath.Join(source, "train.py"), []byte(`
import os, pathlib, time
import falaj

try:
    falaj.dataset("other")
except falaj.Error as e:
    print("other:", e.kind, flush=True)
data, seen = falaj.dataset("train"), []
for batch in data.batches(["n", "pad"]):
    if not seen:
        pathlib.Path(os.environ["FALAJ_CHECKPOINT_DIR"], "begun").touch()
        print("begun", flush=True)
        while os.path.exists(os.environ["FALAJ_CHECKPOINT_DIR"] + "/begun"):
            time.sleep(0.02)
    seen += batch.column(0).to_pylist()
print(data.version, seen == list(range(len(data))), len(seen), flush=True)
`), 0o600))
	file := filepath.Join(t.TempDir(), "job.yaml")
	p.Must(os.WriteFile(file, []byte(`{api_version: falaj/v1, kind: Job, name: streams, spec: {environment: arrow, max_attempts: 1, data: {train: numbers},
		resources: {cpu: 300m, memory: 1GiB}, timeout: 5m, command: [python, train.py]}}`), 0o600))
	said := strings.Fields(p.Run(0, "job", "submit", "-f", file, "--source", source))
	job := said[len(said)-1]
	begun := filepath.Join(s.Data, "training", "checkpoints", job, "begun")
	p.Eventually("it does not begin", func() (bool, error) {
		_, err := os.Stat(begun)
		return err == nil, err
	})
	p.Must(s.Kill())
	p.Must(os.Remove(begun))
	p.Again()
	got, log := ended(p, job), p.Run(0, "job", "logs", job)
	if got.State != "succeeded" || log != fmt.Sprintf("other: permission_denied\nbegun\nnumbers@1 True %d\n", rows) {
		t.Errorf("%+v\n%s", got, log)
	}
}
