// Package labels closes the loop on the real server: answers are logged, labels
// come late, a rollout is judged by them, and what the model saw is verified;
// with kill -9 in the middle.
package labels

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = `
api_version: falaj/v1
kind: Project
name: nyc
spec: {display_name: Flights}
---
api_version: falaj/v1
kind: Dataset
name: weather
project: nyc
spec:
  classification: internal
  columns:
  - {name: observed_at, type: timestamp}
  - {name: temp, type: float64}
---
api_version: falaj/v1
kind: Entity
name: origin
project: nyc
spec: {}
`

const features = `
api_version: falaj/v1
kind: FeatureView
name: weather
project: nyc
spec:
  source: {dataset: weather}
  entities: [origin]
  timestamp: observed_at
  ttl: 3h
  features: [{name: temp, type: float64}]
---
api_version: falaj/v1
kind: FeatureService
name: weather
project: nyc
spec: {features: ["weather:temp"]}
`

const deployment = `
api_version: falaj/v1
kind: Deployment
name: delay
project: nyc
spec:
  model: delay
  version: champion
  features:
    service: weather
    input: X
    columns: [hours, "weather:temp"]
    defaults: {"weather:temp": 1}
  prediction: {output: probabilities, index: 1}
  automation: false
  rollout: {weight: 50, min_labels: 50, margin: 0.5}
`

var begin = time.Date(2013, 5, 1, 0, 0, 0, 0, time.UTC)

const (
	hours    = 200
	requests = 400
)

// weather has a row for each hour, and the late ones.
func weather(late ...string) string {
	var b strings.Builder
	b.WriteString("origin,observed_at,temp\n")
	for h := range hours {
		fmt.Fprintf(&b, "JFK,%s,%.1f\n", begin.Add(time.Duration(h)*time.Hour).Format(time.RFC3339), float64(h%24)/2)
	}
	for _, l := range late {
		b.WriteString(l + "\n")
	}
	return b.String()
}

type world struct {
	*live.Server
	t *testing.T
	c *client.Client
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), live.Wait)
	defer cancel()
	w.must(w.Start(ctx))
	w.c = w.Client(w.t)
}

func (w *world) foreign(method, path string, body, out any) error {
	resp, err := w.c.Send(w.t.Context(), method, path, body, http.Header{"Falaj-Project": {"nyc"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

func (w *world) apply(manifest string) {
	w.t.Helper()
	_, err := w.c.Apply(w.t.Context(), "nyc", []byte(manifest), false)
	w.must(err)
}

// eventually asks until it is so.
func (w *world) eventually(what string, so func() (bool, error)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := so()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("%s: %v\n%s", what, err, w.LogTail(20))
		}
	}
}

// ask sends the nth request, half an hour after the one before, and returns the
// answer's id.
func (w *world) ask(n int) string {
	w.t.Helper()
	var a struct {
		ID string `json:"id"`
	}
	w.must(w.foreign(http.MethodPost, "/v2/models/delay/infer", map[string]any{
		"parameters": map[string]any{"as_of": begin.Add(time.Duration(n) * 30 * time.Minute).Format(time.RFC3339)},
		"inputs": []any{
			map[string]any{"name": "origin", "datatype": "BYTES", "shape": []int{1}, "data": []string{"JFK"}},
			map[string]any{"name": "hours", "datatype": "FP64", "shape": []int{1}, "data": []float64{float64(n % 7)}},
		},
	}, &a))
	return a.ID
}

func (w *world) run(code int, args ...string) string {
	w.t.Helper()
	out, got := w.Command(w.t.Context(), append(args, "-p", "nyc")...)
	if got != code {
		w.t.Fatalf("%v exits with %d:\n%s", args, got, out)
	}
	return out
}

func TestLoopIsClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	w := &world{Server: live.New(t, ""), t: t}
	model, err := os.ReadFile(filepath.Join(w.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	w.must(err)
	w.start()
	ctx := t.Context()
	w.apply(manifests)
	_, err = w.c.Import(ctx, "nyc", "weather", "weather.csv", strings.NewReader(weather()))
	w.must(err)
	w.apply(features)
	materialise := func() {
		w.must(w.c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/feature-views/weather/materialise", map[string]any{"wait": "30s"}, nil))
	}
	materialise()
	w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	for range 2 {
		var run struct {
			Run struct {
				Info struct {
					ID string `json:"run_id"`
				} `json:"info"`
			} `json:"run"`
		}
		w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
		id := run.Run.Info.ID
		w.must(w.foreign(http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/model.onnx", bytes.NewReader(model), nil))
		w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id}, nil))
	}
	w.must(w.c.Do(ctx, http.MethodPut, "/api/v1/projects/nyc/models/delay/aliases/champion", map[string]any{"version": "1"}, nil))
	w.apply(deployment)
	w.run(0, "deploy", "canary", "delay", "--version", "2")

	// Asked, killed, and asked again.
	var ids []string
	for n := range requests {
		if n == requests/2 {
			w.must(w.Kill())
			w.start()
			w.eventually("the models are not loaded", func() (bool, error) {
				err := w.foreign(http.MethodGet, "/v2/health/ready", nil, nil)
				return err == nil, err
			})
		}
		ids = append(ids, w.ask(n))
	}

	// The first labels; then those again, the others, and some that are wrong.
	file := func(name string, from, to int, more string) string {
		var b strings.Builder
		b.WriteString("id,value,at\n")
		for n := from; n < to; n++ {
			fmt.Fprintf(&b, "%s,%d,%s\n", ids[n], n%2, begin.Add(time.Duration(n+10)*30*time.Minute).Format(time.RFC3339))
		}
		b.WriteString(more)
		path := filepath.Join(t.TempDir(), name)
		w.must(os.WriteFile(path, []byte(b.String()), 0o600))
		return path
	}
	if out := w.run(0, "deploy", "label", "delay", file("first.csv", 0, 40, "")); !strings.Contains(out, "40 labels accepted") {
		t.Error(out)
	}
	if out := w.run(0, "deploy", "label", "delay", file("all.csv", 0, requests, ids[0]+",1,\nprd_nobody,1,\n")); !strings.Contains(out, "360 labels accepted") ||
		!strings.Contains(out, "40 were there already") || !strings.Contains(out, "1 contradict") || !strings.Contains(out, "1 are of predictions that are not known yet") {
		t.Error(out)
	}
	w.run(2, "deploy", "label", "delay", file("wrong.csv", 0, 0, "a,perhaps,\n"))

	// The judge has seen every request and label, and decides once.
	var progress client.Object
	w.eventually("nothing is decided", func() (bool, error) {
		var err error
		progress, err = w.c.Rollout(ctx, "nyc", "delay")
		return err == nil && progress.Text("concluded") == "true", err
	})
	if got := progress.Text("decision.outcome"); got != "promote" {
		t.Errorf("%s: %s", got, progress.Text("decision.reason"))
	}
	if out := w.run(0, "deploy", "status", "delay"); !strings.Contains(out, ": promote") || !strings.Contains(out, "MEAN LOSS") {
		t.Error(out)
	}
	sum := func(path string) int {
		var a, b int
		_, err1 := fmt.Sscan(progress.Text("stable."+path), &a)
		_, err2 := fmt.Sscan(progress.Text("candidate."+path), &b)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2, progress)
		}
		return a + b
	}
	if n := sum("requests"); n != requests {
		t.Errorf("%d of %d requests were judged", n, requests)
	}
	var counts client.Object
	w.must(w.c.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/deployments/delay/labels", nil, &counts))
	if counts.Text("joined") != strconv.Itoa(requests) || counts.Text("waiting") != "1" || counts.Text("contradicts") != "1" {
		t.Errorf("counts %v", counts)
	}

	// What the model saw is what training would see; until a row comes late, which
	// is on one side only.
	if out := w.run(0, "feature", "verify", "--deployment", "delay", "--sample", "300"); !strings.Contains(out, "0 differ") {
		t.Error(out)
	}
	_, err = w.c.Import(ctx, "nyc", "weather", "weather.csv", strings.NewReader(weather("JFK,2013-05-03T10:20:00Z,99")))
	w.must(err)
	out := w.run(1, "feature", "verify", "--deployment", "delay", "--sample", "400")
	if !strings.Contains(out, "1 because of late_data") || !strings.Contains(out, "weather@1 → weather@2") {
		t.Error(out)
	}
	materialise()
	if out := w.run(1, "feature", "verify", "--deployment", "delay", "--sample", "400", "-o", "json"); !strings.Contains(out, `"late_data": 1`) {
		t.Error(out)
	}

	// A deployment that is gone leaves no predictions behind.
	w.must(w.c.Do(ctx, http.MethodDelete, "/api/v1/projects/nyc/deployments/delay", nil, nil))
	w.eventually("its predictions are still there", func() (bool, error) {
		left, err := filepath.Glob(filepath.Join(w.Data, "predictions", "nyc", "delay"))
		return err == nil && len(left) == 0, err
	})
}
