// Package rollout tries, promotes and rolls back versions of a model on the real
// server: requests carry keys, the server is killed in the middle, and the same
// keys meet the same versions.
package rollout

import (
	"bytes"
	"context"
	"errors"
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
    max_age: {weather: 3h}
  rollout: {weight: 30}
`

const observations = "origin,observed_at,temp\nJFK,2013-07-04T10:00:00Z,3\nLGA,2013-07-04T10:00:00Z,0\n"

// ocean is the server with a client.
type ocean struct {
	*live.Server
	t *testing.T
	c *client.Client
}

func (o *ocean) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *ocean) start() {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), live.Wait)
	defer cancel()
	o.must(o.Start(ctx))
	o.c = o.Client(o.t)
}

func (o *ocean) apply(manifest string) []client.Applied {
	o.t.Helper()
	applied, err := o.c.Apply(o.t.Context(), "nyc", []byte(manifest), false)
	o.must(err)
	return applied
}

// foreign speaks a protocol that names no project in its path.
func (o *ocean) foreign(method, path string, body, out any) error {
	resp, err := o.c.Send(o.t.Context(), method, path, body, http.Header{"Falaj-Project": {"nyc"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

// register makes versions of the model, all of them the same file.
func (o *ocean) register(model []byte, versions int) {
	o.t.Helper()
	o.must(o.foreign(http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	for range versions {
		var run struct {
			Run struct {
				Info struct {
					ID string `json:"run_id"`
				} `json:"info"`
			} `json:"run"`
		}
		o.must(o.foreign(http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
		id := run.Run.Info.ID
		o.must(o.foreign(http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/model.onnx", bytes.NewReader(model), nil))
		o.must(o.foreign(http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id}, nil))
	}
	o.must(o.c.Do(o.t.Context(), http.MethodPut, "/api/v1/projects/nyc/models/delay/aliases/champion", map[string]any{"version": "1"}, nil))
}

type answer struct {
	ID      string `json:"id"`
	Version string `json:"model_version"`
	Outputs []struct {
		Name string    `json:"name"`
		Data []float64 `json:"data"`
	} `json:"outputs"`
}

// ask sends a flight's keys, as of the time of the observations and two hours.
func (o *ocean) ask(origin, routeKey, at string) (answer, error) {
	var a answer
	err := o.foreign(http.MethodPost, "/v2/models/delay/infer", map[string]any{
		"parameters": map[string]any{"as_of": at, "route_key": routeKey},
		"inputs": []any{
			map[string]any{"name": "origin", "datatype": "BYTES", "shape": []int{1}, "data": []string{origin}},
			map[string]any{"name": "hours", "datatype": "FP64", "shape": []int{1}, "data": []float64{4}},
		},
		"outputs": []any{map[string]any{"name": "label"}},
	}, &a)
	return a, err
}

const noon = "2013-07-04T12:00:00Z"

func TestRollout(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	o := &ocean{Server: live.New(t, ""), t: t}
	model, err := os.ReadFile(filepath.Join(o.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	o.must(err)
	o.start()
	ctx := t.Context()
	o.apply(manifests)
	if _, err := o.c.Import(ctx, "nyc", "weather", "weather.csv", strings.NewReader(observations)); err != nil {
		t.Fatal(err)
	}
	o.apply(features)
	o.must(o.c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/feature-views/weather/materialise", map[string]any{"wait": "30s"}, nil))
	o.register(model, 3)
	o.apply(deployment)

	// Keys in, features looked up: the label turns on the temperature.
	for origin, want := range map[string]float64{"JFK": 1, "LGA": 0} {
		a, err := o.ask(origin, "", noon)
		o.must(err)
		if a.Version != "1" || a.Outputs[0].Data[0] != want || !strings.HasPrefix(a.ID, "prd_") || len(a.Outputs) != 1 {
			t.Errorf("%s: %+v", origin, a)
		}
	}
	for says, ask := range map[string][2]string{
		"feature weather:temp of row 0 (origin=SFO) is NOT_FOUND":       {"SFO", noon},
		"feature weather:temp of row 0 (origin=JFK) is OUTSIDE_MAX_AGE": {"JFK", "2013-07-04T13:00:01Z"},
		"feature weather:temp of row 0 (origin=LGA) is NOT_FOUND":       {"LGA", "2013-07-04T09:59:59Z"},
		"as_of 2999-01-01T00:00:00Z is in the future":                   {"LGA", "2999-01-01T00:00:00Z"},
	} {
		_, err := o.ask(ask[0], "", ask[1])
		refused, ok := errors.AsType[*client.Error](err)
		if !ok || refused.Kind != "invalid" || !strings.Contains(refused.Detail, says) || strings.Contains(says, "feature") != (refused.Status == http.StatusUnprocessableEntity) {
			t.Errorf("%v, want %s", err, says)
		}
	}

	// A canary, killed in the middle.
	if out, code := o.Command(ctx, "deploy", "canary", "delay", "--version", "2", "--reason", "let us see", "-p", "nyc"); code != 0 || !strings.Contains(out, "version 2 beside 1 with 30 %") {
		t.Fatal(out)
	}
	met := map[string]string{}
	for i := range 60 {
		k := "flight " + strconv.Itoa(i)
		a, err := o.ask("JFK", k, noon)
		o.must(err)
		met[k] = a.Version
	}
	o.must(o.Kill())
	o.start()
	o.ready()
	seen := map[string]int{}
	for k, version := range met {
		a, err := o.ask("JFK", k, noon)
		o.must(err)
		if a.Version != version {
			t.Errorf("%s met version %s, and after the kill %s", k, version, a.Version)
		}
		seen[version]++
	}
	if len(seen) != 2 {
		t.Errorf("60 keys at 30 %% met %v", seen)
	}
	if err := o.c.Do(ctx, http.MethodDelete, "/api/2.0/mlflow/model-versions/delete", nil, nil); err == nil {
		t.Error("a wrong request was taken")
	}
	err = o.foreign(http.MethodDelete, "/api/2.0/mlflow/model-versions/delete", map[string]any{"name": "delay", "version": "2"}, nil)
	if refused, ok := errors.AsType[*client.Error](err); !ok || !strings.Contains(refused.Detail, "deployment delay") {
		t.Errorf("a canary's version was deleted: %v", err)
	}

	// Promoted: the alias moved, and the manifest changes nothing.
	if out, code := o.Command(ctx, "deploy", "promote", "delay", "-p", "nyc"); code != 0 || !strings.Contains(out, "answers with version 2 (before: 1)") {
		t.Fatal(out)
	}
	if got := o.apply(deployment)[0].Result; got != "unchanged" {
		t.Errorf("the manifest again: %s", got)
	}
	if a, err := o.ask("JFK", "", noon); err != nil || a.Version != "2" {
		t.Errorf("%+v %v", a, err)
	}
	if out, code := o.Command(ctx, "deploy", "rollback", "delay", "-p", "nyc", "--reason", "never mind"); code != 0 || !strings.Contains(out, "answers with version 1") {
		t.Fatal(out)
	}
	if got := o.apply(deployment)[0].Result; got != "unchanged" {
		t.Errorf("the manifest after the rollback: %s", got)
	}
	if out, code := o.Command(ctx, "deploy", "automation", "delay", "off", "-p", "nyc", "--reason", "holiday"); code != 0 {
		t.Fatal(out)
	}
	out, code := o.Command(ctx, "deploy", "status", "delay", "-p", "nyc")
	for _, want := range []string{"automation off", "holiday", "stable", "rolled_back", "never mind"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("the status does not say %q:\n%s", want, out)
		}
	}
	if out, code := o.Command(ctx, "deploy", "status", "delay", "-p", "nyc", "-o", "json"); code != 0 || !strings.Contains(out, `"candidate": 2`) {
		t.Errorf("%s", out)
	}
	if _, code := o.Command(ctx, "deploy", "promote", "delay", "-p", "nyc"); code != 5 {
		t.Errorf("promoting nothing exits with %d", code)
	}
}

// ready waits until the models are loaded.
func (o *ocean) ready() {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := o.foreign(http.MethodGet, "/v2/health/ready", nil, nil)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			o.t.Fatal(fmt.Errorf("the models are not loaded: %w", err))
		}
	}
}
