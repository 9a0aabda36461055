// Package feast uses Falaj through the unmodified Feast SDK, as its remote online
// and its remote offline store, and asks it and Feast's own stores the same.
package feast

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
api_version: falaj/v1
kind: Dataset
name: typed
project: PROJECT
spec:
  classification: internal
  columns:
  - {name: origin, type: string}
  - {name: at, type: timestamp}
  - {name: gates, type: int32}
  - {name: wind, type: float32}
  - {name: tags, type: list<string>}
  - {name: delays, type: list<int64>}
  - {name: embedding, type: list<float32>}
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
api_version: falaj/v1
kind: FeatureView
name: typed
project: PROJECT
spec:
  source: {dataset: typed}
  entities: [origin]
  timestamp: at
  features:
  - {name: gates, type: int32}
  - {name: wind, type: float32}
  - {name: tags, type: list<string>(4)}
  - {name: delays, type: list<int64>(4)}
  - {name: embedding, type: vector(3)}
---
{api_version: falaj/v1, kind: FeatureService, name: delay, project: PROJECT, spec: {features: ["weather:temp", "weather:station", legs]}}
`

func TestSDK(t *testing.T) {
	p := begin(t)
	p.Apply(datasets)
	p.Import("weather", "origin,time_hour,temp,station,sky,rain,seen\n"+
		"EWR,2013-01-01T10:00:00Z,1.5,9007199254740993,clear,true,2013-01-01T09:00:00Z\n"+
		"JFK,2013-01-01T11:00:00Z,,-9007199254740995,snow ☃,false,2013-01-01T10:00:00Z\n"+
		"LGA,2013-01-01T12:00:00Z,3.0,7,,,2013-01-01T11:00:00Z\n")
	p.Import("legs", "origin,plane_id,departed,distance\nEWR,1,2013-01-01T10:00:00Z,500\nJFK,9007199254740993,2013-01-01T10:00:00Z,700\n")
	p.Import("typed", "origin,at,gates,wind,tags,delays,embedding\n"+
		`EWR,2013-01-01T10:00:00Z,2147483647,0.1,"[""a"",""☃""]","[9007199254740993]","[0.1,-2,3.5]"`+"\n"+
		`JFK,2013-01-01T10:00:00Z,-2147483648,16777217,"[""""]","[1,2,3]","[0,0,0]"`+"\n")
	p.Apply(views)
	p.run(t, "sdk.py", t.TempDir())
}

const offline = `
api_version: falaj/v1
kind: Dataset
name: readings
project: PROJECT
spec:
  classification: confidential
  columns:
  - {name: sensor, type: string}
  - {name: slot, type: int64}
  - {name: at, type: timestamp}
  - {name: created, type: timestamp}
  - {name: temp, type: float64}
  - {name: count, type: int64}
---
api_version: falaj/v1
kind: Dataset
name: places
project: PROJECT
spec:
  classification: internal
  columns:
  - {name: sensor, type: string}
  - {name: since, type: timestamp}
  - {name: room, type: string}
  - {name: floor, type: int64}
---
{api_version: falaj/v1, kind: Entity, name: sensor, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Entity, name: slot, project: PROJECT, spec: {type: int64}}
`

const offlineViews = `
api_version: falaj/v1
kind: FeatureView
name: readings
project: PROJECT
spec:
  source: {dataset: readings}
  entities: [sensor, slot]
  timestamp: at
  created_timestamp: created
  ttl: 6h
  features: [{name: temp, type: float64}, {name: count, type: int64}]
---
api_version: falaj/v1
kind: FeatureView
name: places
project: PROJECT
spec:
  source: {sql: "SELECT sensor, since, room, floor FROM places"}
  entities: [sensor]
  timestamp: since
  features: [{name: room, type: string}, {name: floor, type: int64}]
`

// The same rows by Falaj as remote offline store and by Feast's file store.
func TestOffline(t *testing.T) {
	p := begin(t)
	dir := t.TempDir()
	var readings, places strings.Builder
	readings.WriteString("sensor,slot,at,created,temp,count\n")
	places.WriteString("sensor,since,room,floor\n")
	rnd := rand.New(rand.NewPCG(7, 0))
	start := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	stamp := func(minutes int) string { return start.Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339) }
	for i := range 900 {
		// Times meet those of the entity rows, on both edges of the TTL, and each
		// other; corrections of a row that are equally old have their own created.
		at := 15 * rnd.IntN(72*4)
		temp, count := strconv.Itoa(i), strconv.Itoa(9007199254740993+i)
		if i%7 == 0 {
			temp = ""
		}
		if i%11 == 0 {
			count = ""
		}
		fmt.Fprintf(&readings, "s%d,%d,%s,%s,%s,%s\n", rnd.IntN(5), rnd.IntN(3), stamp(at), start.Add(time.Duration(i-1000)*time.Second).Format(time.RFC3339), temp, count)
	}
	for i := range 5 {
		fmt.Fprintf(&places, "s%d,%s,room %d ☃,%d\n", i, stamp(15*rnd.IntN(72*4)), i, i)
	}
	for name, text := range map[string]string{"readings": readings.String(), "places": places.String()} {
		if err := os.WriteFile(filepath.Join(dir, name+".csv"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Apply(offline)
	p.Import("readings", readings.String())
	p.Import("places", places.String())
	p.Apply(offlineViews)
	p.run(t, "offline.py", dir)
}

type world struct {
	*live.Project
	s      *live.Server
	python string
}

// begin starts a server, where the SDK is installed.
func begin(t *testing.T) world {
	t.Helper()
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
	return world{s.Project(t, "flights"), s, python}
}

// run runs a script of testdata in dir.
func (w world) run(t *testing.T, script, dir string) {
	t.Helper()
	token := func(role string) string {
		var made client.Object
		w.Must(w.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": w.Name, "name": "feast-" + role, "role": role, "expires_in": "24h"}, &made))
		return made.Text("secret")
	}
	ctx, cancel := context.WithTimeout(t.Context(), live.WaitProgram)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.python, filepath.Join(w.s.Bin.Root, "internal", "httpapi", "feast", "testdata", script))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+w.s.Home, "TZ=UTC", "FEAST_USAGE=False", "FALAJ_URL="+w.s.URL, "FALAJ_TOKEN="+token("engineer"), "FALAJ_VIEWER="+token("viewer"))
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), log.String())
	}
}
