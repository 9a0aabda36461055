package console

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestConsole goes with the real binary from the login over an empty project to
// a deployment that was made while the page was open, and the job behind it.
func TestConsole(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	b := open(t, s.URL)
	b.login(s.Token)
	b.see("No projects")
	p := s.Project(t, "tiny")
	b.do(chromedp.Reload())
	b.see("Overview", "Quiet")
	b.until(`document.querySelector('.link.live') !== null`)
	b.visit("d")
	b.see("No deployments", "kind: Deployment")
	b.visit("j")
	b.see("No jobs")

	// Everything below appears by itself.
	p.Apply(`{api_version: falaj/v1, kind: Dataset, name: weather, project: PROJECT, spec: {}}`)
	p.Import("weather", "airport,seen,temp\nJFK,2026-01-01T00:00:00Z,1.5\nLGA,2026-01-01T00:00:00Z,2.5\n")
	p.Apply(`{api_version: falaj/v1, kind: Entity, name: airport, project: PROJECT}
---
{api_version: falaj/v1, kind: FeatureView, name: heat, project: PROJECT, spec: {source: {sql: "SELECT airport, seen, temp * 2 AS twice FROM weather"}, entities: [airport], timestamp: seen, features: [{name: twice, type: float64}]}}
---
{api_version: falaj/v1, kind: FeatureService, name: trips, project: PROJECT, spec: {features: ["heat:twice"]}}`)
	p.Materialise("heat")
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("training-sets"), map[string]any{
		"name": "joined", "timestamp": "seen", "spine": "SELECT airport, seen, temp > 2 AS hot FROM weather", "service": "trips",
	}, nil))
	job := train(p)
	b.see("train", "succeeded")
	b.picture("real-jobs")
	b.visit("d")
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: live, project: tiny, spec: {model: tiny, version: "1"}}`)
	b.see("live", "v1 100 %", "ready")
	b.picture("real-deployments")
	b.do(chromedp.Click(`tr[data-index="0"] a`))
	b.see("Versions", "stable", "No rollout is running", "No closed windows", "No rollouts or automatic acts")
	p.Apply(`{api_version: falaj/v1, kind: Monitor, name: live, project: tiny, spec: {window: {rows: 200}, baseline: "window:first", drift: {min_rows: 100}}}`)
	for i := range 8 {
		infer(p, 100, float32(i/4)*3) // the last four are far from the first
	}
	b.until(`[...document.querySelectorAll('table.plain tbody tr:first-child td')].some((td) => td.innerText === '8')`)
	b.until(`document.querySelectorAll('.heatmap td.s6').length > 0 && document.querySelectorAll('.histogram .pair').length > 0`)
	b.see("drifted", "by window")
	b.picture("real-deployment")
	b.do(chromedp.ScrollIntoView(`.heatmap`))
	b.picture("real-drift")
	b.do(chromedp.Evaluate(`document.querySelector('.page').scrollTo(0, 0)`, nil))

	b.visit("j")
	b.do(chromedp.Click(`tr[data-index="0"] a`, chromedp.NodeVisible))
	b.see(job, "the log of a tiny job", "The job succeeded")
	b.picture("real-job")
	// A deep link is served by the binary, too.
	b.do(chromedp.Reload())
	b.see(job, "the log of a tiny job")
	for key, words := range map[string]string{"r": "tiny", "a": "deployment.apply", "m": "live", "s": "joined", "f": "heat"} {
		b.visit(key)
		b.see(words)
		b.until(`document.querySelector('.wait') === null && document.querySelector('[role=alert]') === null`)
	}
	b.visit("o")
	b.see("deployment live", "2 of 2 inputs drifted")
	b.picture("real-overview")

	// From what the deployment came, found by a column that its training set has.
	b.do(chromedp.KeyEvent("k", chromedp.KeyModifiers(input.ModifierCtrl)))
	b.until(`document.activeElement === document.querySelector('.search input')`)
	b.press("twice")
	b.until(`document.querySelector('.found a[href="/console/p/tiny/datasets/joined"]') !== null`)
	b.do(chromedp.Click(`.found a[href="/console/p/tiny/features/heat"]`))
	b.see("heat@1", "temp * 2 AS twice", "2 rows", "trips@1", "joined@1", "train", "tiny@1", "live", "As they are in joined@1")
	b.picture("real-feature-view")
	b.do(chromedp.Navigate(s.URL + "/console/p/tiny/lineage/deployment%20live"))
	b.until(`[...document.querySelectorAll('.node')].map((n) => n.getAttribute('aria-label').split(',')[0]).sort().join() === 'dataset joined@1,dataset weather@1,deployment live,feature service trips@1,feature view heat@1,job train,model tiny@1'`)
	b.until(`document.querySelectorAll('.lineage .edge').length === 6`) // the set's own way to its rows leads over the view
	b.do(chromedp.Click(`button[aria-label="Column temp of dataset weather@1"]`))
	b.see("twice of feature view heat@1", "heat:twice of feature service trips@1", "twice of dataset joined@1")
	b.picture("real-lineage")
	if said := p.Run(0, "lineage", "live", "--kind", "deployment"); !strings.Contains(said, "feature view heat@1") || !strings.Contains(said, "model tiny@1") {
		t.Error(said)
	}

	b.visit("x")
	b.see("No sweep was made")
	p.Apply(sweep)
	b.see("parabola")
	b.do(chromedp.Click(`tr[data-index="0"] a`, chromedp.NodeVisible))
	b.see("12 complete", "loss, minimized", "History of loss", "Parallel coordinates", "x and layers")
	b.until(`[...document.querySelectorAll('img.picture')].every((i) => i.complete && i.naturalWidth > 0)`)
	b.accessible("sweep")
	b.picture("real-sweep")
	b.do(chromedp.ScrollIntoView(`img.picture`))
	b.picture("real-sweep-pictures")

	// Its runs are found by what they measured, and stand beside each other.
	b.visit("e")
	b.see("parabola-0", "loss", "layers")
	b.do(chromedp.SendKeys(`.ask input`, "metrics.loss < 'x'\r"))
	b.see("Request failed")
	b.do(chromedp.Evaluate(`document.querySelector('.ask input').select()`, nil), chromedp.SendKeys(`.ask input`, "metrics.loss > 0\r"))
	b.do(chromedp.Click(`tr[data-index="0"] input`, chromedp.NodeVisible), chromedp.Click(`tr[data-index="1"] input`))
	b.accessible("runs")
	b.picture("real-runs")
	b.do(chromedp.Click(`.ask button:not([type=submit])`))
	b.see("Compare runs", "finished", "By step, of 2 runs", "Parameters and loss")
	b.until(`[...document.querySelectorAll('img.picture')].every((i) => i.complete && i.naturalWidth > 0)`)
	b.accessible("runs-compared")
	b.picture("real-runs-compared")

	// The links that MLflow's clients print lead to the run, also from another project.
	run := b.text(`document.querySelector('thead th[title^=run_]').title`)
	s.Project(t, "another")
	b.do(chromedp.Evaluate(`localStorage.setItem('falaj.project', 'another')`, nil), chromedp.Navigate(s.URL+"/#/experiments/0/runs/"+run))
	b.until(`location.pathname === '/console/p/tiny/runs/` + run + `' && location.hash === ''`)
	b.see(run, "finished")
	b.do(chromedp.Navigate(s.URL + "/#/experiments/0"))
	b.until(`location.pathname === '/console/p/tiny/runs'`)

	b.do(chromedp.Click(`.who button`))
	b.see("Access token")
	if kept := b.text(`sessionStorage.length + document.cookie.length`); kept != "0" {
		t.Error("logging out leaves something behind")
	}
}

const sweep = `
api_version: falaj/v1
kind: Sweep
name: parabola
project: PROJECT
spec:
  job:
    command:
      - python3
      - -c
      - |
        import json, os, time, urllib.request
        p = json.loads(os.environ["FALAJ_PARAMS"])
        for step in range(3):
            body = {"run_id": os.environ["MLFLOW_RUN_ID"], "key": "loss", "value": (p["x"] - 1) ** 2 + p["layers"] + 1 / (step + 1), "timestamp": int(time.time() * 1000), "step": step}
            urllib.request.urlopen(urllib.request.Request(
                os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-metric", json.dumps(body).encode(),
                {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"})).read()
    resources: {cpu: 100m, memory: 128MiB}
  parameters: [{name: x, type: float, low: -3, high: 3}, {name: layers, type: int, low: 1, high: 8}]
  objectives: [{metric: loss}]
  budget: {trials: 12}
  parallel: 4
`

// train runs a job that registers a tiny model, and waits for its end.
func train(p *live.Project) (job string) {
	p.T.Helper()
	spec := map[string]any{
		"command": []string{"/bin/sh", "-ec", `echo the log of a tiny job; mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"`},
		"source":  p.Source("model.onnx", p.Logistic()), "data": map[string]string{"joined": "joined"}, "register": "tiny", "resources": map[string]any{"cpu": "0.2", "memory": "128MiB"},
	}
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "train", "spec": spec}, &o))
	job = o.Text("id")
	ctx, stop := context.WithTimeout(p.T.Context(), live.Wait)
	defer stop()
	for o.Text("state") != "succeeded" {
		if err := p.C.Do(ctx, http.MethodGet, p.Path("jobs/"+job+"?wait=30s"), nil, &o); err != nil || o.Text("state") == "failed" {
			p.T.Fatal(o, err)
		}
	}
	return job
}

// infer asks the deployment once, with so many rows around a middle.
func infer(p *live.Project, rows int, middle float32) {
	p.T.Helper()
	data := make([]float32, 2*rows)
	for i := range data {
		data[i] = middle + float32(i%17)/17
	}
	_, err := p.Infer(p.C, "live", nil, live.Tensor("X", "FP32", data, rows, 2))
	p.Must(err)
}
