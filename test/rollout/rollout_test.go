// Package rollout tries, promotes and rolls back versions of a model on the real
// server: requests carry keys, the server is killed in the middle, and the same
// keys meet the same versions.
package rollout

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

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

// ask sends a flight's keys, as of the time of the observations and two hours.
func ask(p *live.Project, origin, routeKey, at string) (live.Answer, error) {
	var a live.Answer
	err := p.Foreign(p.C, http.MethodPost, "/v2/models/delay/infer", map[string]any{
		"parameters": map[string]any{"as_of": at, "route_key": routeKey},
		"inputs":     []any{live.Tensor("origin", "BYTES", []string{origin}, 1), live.Tensor("hours", "FP64", []float64{4}, 1)},
		"outputs":    []any{map[string]any{"name": "label"}},
	}, &a)
	return a, err
}

const noon = "2013-07-04T12:00:00Z"

func TestRollout(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	o, ctx := s.Project(t, "nyc"), t.Context()
	o.Apply(live.Weather)
	o.Import("weather", observations)
	o.Apply(live.WeatherView("0"))
	o.Materialise("weather")
	o.Register("delay", slices.Repeat([][]byte{o.Logistic()}, 3)...)
	o.Apply(deployment)

	// Keys in, features looked up: the label turns on the temperature.
	for origin, want := range map[string]float64{"JFK": 1, "LGA": 0} {
		a, err := ask(o, origin, "", noon)
		o.Must(err)
		if a.Version != "1" || a.Score() != want || !strings.HasPrefix(a.ID, "prd_") || len(a.Outputs) != 1 {
			t.Errorf("%s: %+v", origin, a)
		}
	}
	for says, of := range map[string][2]string{
		"feature weather:temp of row 0 (origin=SFO) is NOT_FOUND":       {"SFO", noon},
		"feature weather:temp of row 0 (origin=JFK) is OUTSIDE_MAX_AGE": {"JFK", "2013-07-04T13:00:01Z"},
		"feature weather:temp of row 0 (origin=LGA) is NOT_FOUND":       {"LGA", "2013-07-04T09:59:59Z"},
		"as_of 2999-01-01T00:00:00Z is in the future":                   {"LGA", "2999-01-01T00:00:00Z"},
	} {
		_, err := ask(o, of[0], "", of[1])
		refused, ok := errors.AsType[*client.Error](err)
		if !ok || refused.Kind != "invalid" || !strings.Contains(refused.Detail, says) || strings.Contains(says, "feature") != (refused.Status == http.StatusUnprocessableEntity) {
			t.Errorf("%v, want %s", err, says)
		}
	}

	// A canary, killed in the middle.
	if out := o.Run(0, "deploy", "canary", "delay", "--version", "2", "--reason", "let us see"); !strings.Contains(out, "canary version 2, stable version 1, 30 %") {
		t.Fatal(out)
	}
	met := map[string]string{}
	for i := range 60 {
		k := "flight " + strconv.Itoa(i)
		a, err := ask(o, "JFK", k, noon)
		o.Must(err)
		met[k] = a.Version
	}
	o.Must(o.Kill())
	o.Again()
	o.Loaded()
	seen := map[string]int{}
	for k, version := range met {
		a, err := ask(o, "JFK", k, noon)
		o.Must(err)
		if a.Version != version {
			t.Errorf("%s met version %s, and after the kill %s", k, version, a.Version)
		}
		seen[version]++
	}
	if len(seen) != 2 {
		t.Errorf("60 keys at 30 %% met %v", seen)
	}
	if err := o.C.Do(ctx, http.MethodDelete, "/api/2.0/mlflow/model-versions/delete", nil, nil); err == nil {
		t.Error("a wrong request was taken")
	}
	err := o.Foreign(o.C, http.MethodDelete, "/api/2.0/mlflow/model-versions/delete", map[string]any{"name": "delay", "version": "2"}, nil)
	if refused, ok := errors.AsType[*client.Error](err); !ok || !strings.Contains(refused.Detail, "deployment delay") {
		t.Errorf("a canary's version was deleted: %v", err)
	}

	// Promoted: the alias moved, and the manifest changes nothing.
	if out := o.Run(0, "deploy", "promote", "delay"); !strings.Contains(out, "stable version 2 (previous: 1)") {
		t.Fatal(out)
	}
	if got := o.Apply(deployment)[0].Result; got != "unchanged" {
		t.Errorf("the manifest again: %s", got)
	}
	if a, err := ask(o, "JFK", "", noon); err != nil || a.Version != "2" {
		t.Errorf("%+v %v", a, err)
	}
	if out := o.Run(0, "deploy", "rollback", "delay", "--reason", "never mind"); !strings.Contains(out, "stable version 1") {
		t.Fatal(out)
	}
	if got := o.Apply(deployment)[0].Result; got != "unchanged" {
		t.Errorf("the manifest after the rollback: %s", got)
	}
	o.Run(0, "deploy", "automation", "delay", "off", "--reason", "holiday")
	out := o.Run(0, "deploy", "status", "delay")
	for _, want := range []string{"automation off", "holiday", "stable", "rolled_back", "never mind"} {
		if !strings.Contains(out, want) {
			t.Errorf("the status does not say %q:\n%s", want, out)
		}
	}
	if out := o.Run(0, "deploy", "status", "delay", "-o", "json"); !strings.Contains(out, `"candidate": 2`) {
		t.Errorf("%s", out)
	}
	o.Run(5, "deploy", "promote", "delay") // nothing
}
