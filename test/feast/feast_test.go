// Package feast uses Falaj through the unmodified Feast SDK, and asks it and Feast's
// own server the same.
package feast

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const datasets = `
api_version: falaj/v1
kind: Dataset
name: weather
project: PROJECT
spec:
  classification: internal
  columns:
  - {name: origin, type: string}
  - {name: time_hour, type: timestamp}
  - {name: temp, type: float64}
  - {name: station, type: int64}
  - {name: sky, type: string}
  - {name: rain, type: bool}
  - {name: seen, type: timestamp}
---
api_version: falaj/v1
kind: Dataset
name: legs
project: PROJECT
spec:
  classification: internal
  columns:
  - {name: origin, type: string}
  - {name: plane_id, type: int64}
  - {name: departed, type: timestamp}
  - {name: distance, type: int64}
---
{api_version: falaj/v1, kind: Entity, name: origin, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Entity, name: plane, project: PROJECT, spec: {join_keys: [plane_id], type: int64}}
`

const views = `
api_version: falaj/v1
kind: FeatureView
name: weather
project: PROJECT
spec:
  source: {dataset: weather}
  entities: [origin]
  timestamp: time_hour
  features:
  - {name: temp, type: float64}
  - {name: station, type: int64}
  - {name: sky, type: string}
  - {name: rain, type: bool}
  - {name: seen, type: timestamp}
---
api_version: falaj/v1
kind: FeatureView
name: legs
project: PROJECT
spec:
  source: {dataset: legs}
  entities: [origin, plane]
  timestamp: departed
  features: [{name: distance, type: int64}]
---
{api_version: falaj/v1, kind: FeatureService, name: delay, project: PROJECT, spec: {features: ["weather:temp", "weather:station", legs]}}
`

func TestSDK(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server and the Feast SDK")
	}
	s := live.New(t, "")
	python := filepath.Join(s.Bin.Root, ".tmp", "venv", "feast", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		const how = "the Feast SDK is not installed: make engines"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	s.Up(t)
	p := s.Project(t, "flights")
	p.Apply(datasets)
	p.Import("weather", "origin,time_hour,temp,station,sky,rain,seen\n"+
		"EWR,2013-01-01T10:00:00Z,1.5,9007199254740993,clear,true,2013-01-01T09:00:00Z\n"+
		"JFK,2013-01-01T11:00:00Z,,-9007199254740995,snow ☃,false,2013-01-01T10:00:00Z\n"+
		"LGA,2013-01-01T12:00:00Z,3.0,7,,,2013-01-01T11:00:00Z\n")
	p.Import("legs", "origin,plane_id,departed,distance\nEWR,1,2013-01-01T10:00:00Z,500\nJFK,9007199254740993,2013-01-01T10:00:00Z,700\n")
	p.Apply(views)
	var token client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "feast", "role": "engineer", "expires_in": "24h"}, &token))

	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, filepath.Join(s.Bin.Root, "internal", "httpapi", "feast", "testdata", "sdk.py"))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+s.Home, "TZ=UTC", "FEAST_USAGE=False", "FALAJ_URL="+s.URL, "FALAJ_TOKEN="+token.Text("secret"))
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), log.String())
	}
}
