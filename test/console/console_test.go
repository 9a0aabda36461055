package console

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestConsole goes with the real binary from the login over an empty project to
// a deployment that was made while the page was open, and the job behind it.
func TestConsole(t *testing.T) {
	s := live.New(t, "")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := s.Client(t)
	b := open(t, s.URL)
	b.login(s.Token)
	b.see("There is no project yet")
	apply(t, c, "{api_version: falaj/v1, kind: Project, name: tiny}")
	b.do(chromedp.Reload())
	b.see("Overview", "Quiet")
	b.until(`document.querySelector('.link.live') !== null`)
	b.press("g", "d")
	b.see("Nothing is deployed", "kind: Deployment")
	b.press("g", "j")
	b.see("No job was submitted")

	// Everything below appears by itself.
	job := train(t, s, c)
	b.see("train", "succeeded")
	b.picture("real-jobs")
	b.press("g", "d")
	apply(t, c, `{api_version: falaj/v1, kind: Deployment, name: live, project: tiny, spec: {model: tiny, version: "1"}}`)
	b.see("live", "v1 100 %", "ready")
	b.picture("real-deployments")
	b.do(chromedp.Click(`tr[data-index="0"] a`))
	b.see("Versions", "stable", "No new version is being tried", "No window is closed yet", "Nothing has happened yet")
	apply(t, c, `{api_version: falaj/v1, kind: Monitor, name: live, project: tiny, spec: {window: {rows: 200}, baseline: "window:first", drift: {min_rows: 100}}}`)
	for i := range 8 {
		infer(t, c, 100, float32(i/4)*3) // the last four are far from the first
	}
	b.until(`[...document.querySelectorAll('table.plain tbody tr:first-child td')].some((td) => td.innerText === '8')`)
	b.until(`document.querySelectorAll('.heatmap td.s6').length > 0 && document.querySelectorAll('.histogram .pair').length > 0`)
	b.see("drifted", "by window")
	b.picture("real-deployment")
	b.do(chromedp.ScrollIntoView(`.heatmap`))
	b.picture("real-drift")
	b.do(chromedp.Evaluate(`document.querySelector('.page').scrollTo(0, 0)`, nil))

	b.press("g", "j")
	b.do(chromedp.Click(`tr[data-index="0"] a`, chromedp.NodeVisible))
	b.see(job, "the log of a tiny job", "It did what it was asked")
	b.picture("real-job")
	// A deep link is served by the binary, too.
	b.do(chromedp.Reload())
	b.see(job, "the log of a tiny job")
	for key, words := range map[string]string{"r": "tiny", "a": "deployment.apply", "m": "live", "s": "There is no dataset", "f": "There is no feature view"} {
		b.press("g", key)
		b.see(words)
		b.until(`document.querySelector('.wait') === null && document.querySelector('[role=alert]') === null`)
	}
	b.press("g", "o")
	b.see("deployment live", "2 of 2 inputs drifted")
	b.picture("real-overview")

	b.do(chromedp.Click(`.who button`))
	b.see("Access token")
	if kept := b.text(`sessionStorage.length + document.cookie.length`); kept != "0" {
		t.Error("logging out leaves something behind")
	}
}

func apply(t *testing.T, c *client.Client, manifest string) {
	t.Helper()
	if _, err := c.Apply(t.Context(), "", []byte(manifest+"\n"), false); err != nil {
		t.Fatalf("%s: %v", manifest, err)
	}
}

// train runs a job that registers a tiny model, and waits for its end.
func train(t *testing.T, s *live.Server, c *client.Client) (job string) {
	t.Helper()
	model, err := os.ReadFile(filepath.Join(s.Bin.Root, "internal", "serving", "runtime", "onnx", "testdata", "logistic.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	gz := gzip.NewWriter(&archive)
	w := tar.NewWriter(gz)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "model.onnx", Mode: 0o644, Size: int64(len(model))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(model); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	const base = "/api/v1/projects/tiny"
	var o client.Object
	if err := c.Do(t.Context(), http.MethodPost, base+"/sources", &archive, &o); err != nil {
		t.Fatal(err)
	}
	spec := map[string]any{
		"command": []string{"/bin/sh", "-ec", `echo the log of a tiny job; mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"`},
		"source":  o.Text("digest"), "register": "tiny", "resources": map[string]any{"cpu": "0.2", "memory": "128MiB"},
	}
	if err := c.Do(t.Context(), http.MethodPost, base+"/jobs", map[string]any{"name": "train", "spec": spec}, &o); err != nil {
		t.Fatal(err)
	}
	job = o.Text("id")
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	for o.Text("state") != "succeeded" {
		if err := c.Do(ctx, http.MethodGet, base+"/jobs/"+job+"?wait=30s", nil, &o); err != nil || o.Text("state") == "failed" {
			t.Fatal(o, err)
		}
	}
	return job
}

// infer asks the deployment once, with so many rows around a middle.
func infer(t *testing.T, c *client.Client, rows int, middle float32) {
	t.Helper()
	data := make([]float32, 2*rows)
	for i := range data {
		data[i] = middle + float32(i%17)/17
	}
	resp, err := c.Send(t.Context(), http.MethodPost, "/v2/models/live/infer", map[string]any{"inputs": []any{
		map[string]any{"name": "X", "datatype": "FP32", "shape": []int{rows, 2}, "data": data},
	}}, http.Header{"Falaj-Project": {"tiny"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
}
