// Package monitoring sends a deployment on the real server a cold week and a warm
// one: the monitor that was made for it says what drifted and since when, also
// after a kill.
package monitoring

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
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
  columns:
  - {name: origin, type: string}
  - {name: observed_at, type: timestamp}
  - {name: temp, type: float64}
---
api_version: falaj/v1
kind: Dataset
name: history
project: nyc
spec:
  columns:
  - {name: hours, type: float64}
  - {name: weather__temp, type: float64}
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
  features: [{name: temp, type: float64}]
---
api_version: falaj/v1
kind: FeatureService
name: weather
project: nyc
spec: {features: ["weather:temp"]}
---
api_version: falaj/v1
kind: Deployment
name: delay
project: nyc
spec:
  model: delay
  features:
    service: weather
    input: X
    columns: [hours, "weather:temp"]
`

const monitor = `
api_version: falaj/v1
kind: Monitor
name: delay
project: nyc
spec:
  window: {every: 1d}
  lateness: 1h
  baseline: dataset:history@1
  drift: {method: ks, alpha: 0.001}
`

const (
	perDay = 300
	warm   = 4 // the first warm day
)

var begin = time.Date(2013, 6, 3, 0, 0, 0, 0, time.UTC)

// lake is the server with a client.
type lake struct {
	*live.Server
	t *testing.T
	c *client.Client
	r *rand.Rand
}

func (l *lake) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lake) start() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), live.Wait)
	defer cancel()
	l.must(l.Start(ctx))
	l.c = l.Client(l.t)
}

func (l *lake) apply(manifest string) {
	l.t.Helper()
	_, err := l.c.Apply(l.t.Context(), "nyc", []byte(manifest), false)
	l.must(err)
}

func (l *lake) foreign(method, path string, body, out any) error {
	resp, err := l.c.Send(l.t.Context(), method, path, body, http.Header{"Falaj-Project": {"nyc"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

// register makes version 1 of the model.
func (l *lake) register(model []byte) {
	l.t.Helper()
	l.must(l.foreign(http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	var run struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	l.must(l.foreign(http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id := run.Run.Info.ID
	l.must(l.foreign(http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/model.onnx", bytes.NewReader(model), nil))
	l.must(l.foreign(http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id}, nil))
	l.must(l.c.Do(l.t.Context(), http.MethodPut, "/api/v1/projects/nyc/models/delay/aliases/champion", map[string]any{"version": "1"}, nil))
}

func (l *lake) row(shift float64) (hours, temp float64) {
	return 2 + l.r.NormFloat64(), 1 + shift + l.r.NormFloat64()
}

// day sends a day's flights, some at a time, of which the model sees all columns.
func (l *lake) day(n int, shift float64) {
	l.t.Helper()
	const some = 30
	for i := range perDay / some {
		var data []float64
		for range some {
			hours, temp := l.row(shift)
			data = append(data, hours, temp)
		}
		at := begin.AddDate(0, 0, n).Add(time.Duration(i) * time.Hour)
		l.must(l.foreign(http.MethodPost, "/v2/models/delay/infer", map[string]any{
			"parameters": map[string]any{"as_of": at.Format(time.RFC3339)},
			"inputs":     []any{map[string]any{"name": "X", "datatype": "FP32", "shape": []int{some, 2}, "data": data}},
		}, nil))
	}
}

// follow waits for an event about the monitor.
func (l *lake) follow(name string) client.Object {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), live.Wait)
	defer cancel()
	var found client.Object
	err := l.c.Watch(ctx, "/api/v1/projects/nyc/events", "0-0", func(_ string, e client.Object) bool {
		if e.Text("name") == name {
			found = e
		}
		return found == nil
	})
	if found == nil {
		l.t.Fatalf("no event %s: %v\n%s", name, err, l.LogTail(4000))
	}
	return found
}

// until waits for the monitor to have closed so many windows.
func (l *lake) until(windows int) []client.Object {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var all []client.Object
		l.must(l.c.Windows(ctx, "nyc", "delay", 0, func(o client.Object) error {
			all = append([]client.Object{o}, all...)
			return nil
		}))
		if len(all) >= windows {
			return all
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m, err := l.c.Monitor(l.t.Context(), "nyc", "delay")
			l.t.Fatalf("%d windows and not %d: %v %v\n%s", len(all), windows, m, err, l.LogTail(4000))
		}
	}
}

// ready waits until the model is loaded.
func (l *lake) ready() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := l.foreign(http.MethodGet, "/v2/health/ready", nil, nil)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.t.Fatal(err)
		}
	}
}

func TestMonitoring(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	l := &lake{Server: live.New(t, ""), t: t, r: rand.New(rand.NewPCG(1, 2))}
	model, err := os.ReadFile(filepath.Join(l.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	l.must(err)
	l.start()
	ctx := t.Context()
	l.apply(manifests)
	var history strings.Builder
	history.WriteString("hours,weather__temp\n")
	for range 3000 {
		hours, temp := l.row(0)
		fmt.Fprintf(&history, "%g,%g\n", hours, temp)
	}
	for name, csv := range map[string]string{"history": history.String(), "weather": "origin,observed_at,temp\nJFK,2013-06-01T00:00:00Z,3\n"} {
		_, err := l.c.Import(ctx, "nyc", name, name+".csv", strings.NewReader(csv))
		l.must(err)
	}
	l.register(model)
	l.apply(features)

	// A monitor with good defaults comes with the deployment; then one of ours.
	if e := l.follow("monitor.applied"); e.Text("body.deployment") != "delay" {
		t.Errorf("%v", e)
	}
	if m, err := l.c.Monitor(ctx, "nyc", "delay"); err != nil || m.Text("automatic") != "true" || m.Text("state") != "waiting" {
		t.Errorf("%v, %v", m, err)
	}
	l.apply(monitor)

	for n := range warm + 1 { // the first warm day stays open
		shift := 0.0
		if n >= warm {
			shift = 3
		}
		l.day(n, shift)
	}
	for _, w := range l.until(warm) {
		if w.Text("drifted") != "false" || w.Text("judged") != "true" || w.Text("rows") != "300" || w.Text("baseline") != "dataset history@1" || !strings.Contains(w.Text("score"), "statistic") {
			t.Errorf("%v", w)
		}
	}
	l.must(l.Kill())
	l.start()
	l.ready()
	l.day(warm+1, 3)
	e := l.follow("monitor.drifted")
	since := begin.AddDate(0, 0, warm)
	for path, want := range map[string]string{
		"body.version": "1", "body.kind": "drift", "body.since": since.Format(time.RFC3339), "body.window.rows": "300", "body.deployment": "delay",
	} {
		if e.Text(path) != want {
			t.Errorf("%s is %q, want %q", path, e.Text(path), want)
		}
	}
	if !strings.Contains(e.Text("body.reason"), "weather:temp") {
		t.Errorf("reason %q", e.Text("body.reason"))
	}
	all := l.until(warm + 1)
	if len(all) != warm+1 {
		t.Errorf("%d windows", len(all))
	}
	one, err := l.c.Window(ctx, "nyc", "delay", all[warm].Text("id"))
	if err != nil || !strings.Contains(one.Text("columns"), "histogram") {
		t.Errorf("%v, %v", one, err)
	}
	b, err := l.c.Baseline(ctx, "nyc", "delay", 0)
	if err != nil || b.Text("rows") != "3000" || !strings.Contains(b.Text("score_source"), "the model over 3000 rows") {
		t.Errorf("%v, %v", b, err)
	}

	for command, wants := range map[string][]string{
		"monitor list":          {"NAME", "delay", "drifted"},
		"monitor show delay":    {"drifted since", "weather:temp", "█", "hours", "(score)", "2013-06-07", "dataset history@1"},
		"monitor windows delay": {"2013-06-07", "VERSION", "true", "false"},
		"get monitors":          {"delay"},
	} {
		out, code := l.Command(ctx, append(strings.Fields(command), "-p", "nyc")...)
		for _, want := range wants {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("falaj %s does not say %q:\n%s", command, want, out)
			}
		}
		t.Logf("falaj %s\n%s", command, out)
	}
	if out, code := l.Command(ctx, "monitor", "show", "delay", "-p", "nyc", "-o", "json"); code != 0 || !strings.Contains(out, `"p_value"`) {
		t.Error(out)
	}
	if _, code := l.Command(ctx, "delete", "monitor", "delay", "-p", "nyc"); code != 0 {
		t.Errorf("delete exits with %d", code)
	}
	if _, err := l.c.Monitor(ctx, "nyc", "delay"); err == nil {
		t.Error("it is still there")
	}
}
