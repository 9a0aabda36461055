package jobs

import (
	"net/http"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestTrialsModels: models of a sweep's trials, whose jobs name a version of the environment,
// have its packages in their card and bill of materials. A viewer reads them, and by no way the
// log of the trial's job.
func TestTrialsModels(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "trials")
	p.Apply(live.Spied)
	p.Apply(`
api_version: falaj/v1
kind: Sweep
name: pair
project: PROJECT
spec:
  job:
    environment: spied
    register: pair
    resources: {cpu: 200m, memory: 256MiB}
    script: |
      import json, os, pathlib, time, urllib.request
      print("what the log says")
      out = pathlib.Path(os.environ["FALAJ_OUTPUT_DIR"], "model")
      out.mkdir()
      (out / "weights.bin").write_bytes(b"1" + os.environ["FALAJ_PARAMS"].encode())
      body = {"run_id": os.environ["MLFLOW_RUN_ID"], "key": "loss", "value": 1, "timestamp": int(time.time() * 1000), "step": 1}
      urllib.request.urlopen(urllib.request.Request(
          os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-metric", json.dumps(body).encode(),
          {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"})).read()
  parameters: [{name: x, type: float, low: 0, high: 1}]
  objectives: [{metric: loss}]
  budget: {trials: 2}
  parallel: 1
`)
	p.Run(0, "sweep", "wait", "pair")
	var built client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("environments/spied"), nil, &built))
	ref := "spied@" + built.Text("digest")
	for _, args := range [][]string{{"env", "show", ref}, {"env", "wait", ref}, {"env", "logs", ref}, {"env", "show", ref, "--sbom"}, {"env", "check", ref}} {
		p.Run(0, args...)
	}
	for _, version := range []string{"1", "2"} {
		if bom := p.Run(0, "model", "bom", "pair", version); !strings.Contains(bom, `"py-spy"`) {
			t.Errorf("no package of the environment in the bill of materials of version %s:\n%s", version, bom)
		}
		if card := p.Run(0, "model", "card", "pair", version); !strings.Contains(card, ", 2 packages.") {
			t.Errorf("no packages in the card of version %s:\n%s", version, card)
		}
	}

	var trials client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("sweeps/pair/trials"), nil, &trials))
	trial, _ := trials["items"].([]any)[0].(map[string]any)
	var job client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+trial["job"].(string)), nil, &job))
	run := job.Text("run_id")
	var token client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "looker", "role": "viewer", "expires_in": "1h"}, &token))
	viewer := s.ClientWith(t, token.Text("secret"))
	list := "/api/2.0/mlflow/artifacts/list?path=logs&run_id=" + run
	for name, c := range map[string]*client.Client{"engineer": p.C, "viewer": viewer} {
		may := name == "engineer"
		var files client.Object
		p.Must(p.Foreign(c, http.MethodGet, list, nil, &files))
		if _, listed := files["files"]; listed != may {
			t.Errorf("%s: %v", name, files)
		}
		for _, path := range []string{
			"/get-artifact?path=logs/attempt-1.log&run_id=" + run,
			"/api/2.0/mlflow-artifacts/artifacts/" + artifactsOf(p, run) + "/logs/attempt-1.log",
			p.Path("jobs/" + trial["job"].(string) + "/logs"),
		} {
			resp, err := c.Send(t.Context(), http.MethodGet, path, nil, http.Header{"Falaj-Project": {p.Name}})
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != may || err != nil && !strings.Contains(err.Error(), "job.logs") {
				t.Errorf("%s reads %s: %v", name, path, err)
			}
		}
	}
}

// artifactsOf is the path of a run's artifacts: "EXPERIMENT/RUN/artifacts".
func artifactsOf(p *live.Project, run string) string {
	var o client.Object
	p.Must(p.Foreign(p.C, http.MethodGet, "/api/2.0/mlflow/runs/get?run_id="+run, nil, &o))
	return o.Text("run.info.experiment_id") + "/" + run + "/artifacts"
}
