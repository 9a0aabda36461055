// Package monitoring sends a deployment on the real server a cold week and a warm
// one: the monitor that was made for it says what drifted and since when, also
// after a kill.
package monitoring

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = live.Weather + `
---
api_version: falaj/v1
kind: Dataset
name: history
project: nyc
spec:
  classification: internal
  columns:
  - {name: hours, type: float64}
  - {name: weather__temp, type: float64}
`

const deployment = `
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

// lake is a project with a deployment and the monitor that comes with it.
type lake struct {
	*live.Project
	r *rand.Rand
}

func deployed(t *testing.T, manifests string, rows int) *lake {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	l := lakeOf(s.Project(t, "nyc"))
	l.Apply(manifests)
	var history strings.Builder
	history.WriteString("hours,weather__temp\n")
	for range rows {
		hours, temp := l.row(0)
		fmt.Fprintf(&history, "%g,%g\n", hours, temp)
	}
	l.Import("history", history.String())
	l.Import("weather", "origin,observed_at,temp\nJFK,2013-06-01T00:00:00Z,3\n")
	l.Register("delay", l.Logistic())
	l.Apply(live.WeatherView("0"))
	l.Apply(deployment)
	return l
}

func lakeOf(p *live.Project) *lake { return &lake{p, rand.New(rand.NewPCG(1, 2))} }

func (l *lake) row(shift float64) (hours, temp float64) {
	return 2 + l.r.NormFloat64(), 1 + shift + l.r.NormFloat64()
}

// day sends a day's flights, some at a time, of which the model sees all columns.
func (l *lake) day(n int, shift float64) {
	l.T.Helper()
	const some = 30
	for i := range perDay / some {
		var data []float64
		for range some {
			hours, temp := l.row(shift)
			data = append(data, hours, temp)
		}
		at := begin.AddDate(0, 0, n).Add(time.Duration(i) * time.Hour)
		_, err := l.Infer(l.C, "delay", map[string]any{"as_of": at.Format(time.RFC3339)}, live.Tensor("X", "FP32", data, some, 2))
		l.Must(err)
	}
}

// follow waits for an event about the monitor.
func (l *lake) follow(name string) client.Object {
	l.T.Helper()
	ctx, cancel := context.WithTimeout(l.T.Context(), live.Wait)
	defer cancel()
	var found client.Object
	err := l.C.Watch(ctx, "/api/v1/projects/nyc/events", "0-0", func(_ string, e client.Object) bool {
		if e.Text("name") == name {
			found = e
		}
		return found == nil
	})
	if found == nil {
		l.T.Fatalf("no event %s: %v\n%s", name, err, l.LogTail(4000))
	}
	return found
}

// until waits for the monitor to have closed so many windows.
func (l *lake) until(windows int) []client.Object {
	l.T.Helper()
	var all []client.Object
	l.Eventually(fmt.Sprintf("%d windows are not closed", windows), func() (bool, error) {
		all = nil
		err := l.C.Windows(l.T.Context(), "nyc", "delay", 0, func(o client.Object) error {
			all = append([]client.Object{o}, all...)
			return nil
		})
		return len(all) >= windows, err
	})
	return all
}

func TestMonitoring(t *testing.T) {
	l, ctx := deployed(t, manifests, 3000), t.Context()

	// A monitor with good defaults comes with the deployment; then one of ours.
	if e := l.follow("monitor.applied"); e.Text("body.deployment") != "delay" {
		t.Errorf("%v", e)
	}
	if m, err := l.C.Monitor(ctx, "nyc", "delay"); err != nil || m.Text("automatic") != "true" || m.Text("state") != "waiting" {
		t.Errorf("%v, %v", m, err)
	}
	l.Apply(monitor)

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
	l.Must(l.Kill())
	l.Again()
	l.Loaded()
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
	one, err := l.C.Window(ctx, "nyc", "delay", all[warm].Text("id"))
	if err != nil || !strings.Contains(one.Text("columns"), "histogram") {
		t.Errorf("%v, %v", one, err)
	}
	b, err := l.C.Baseline(ctx, "nyc", "delay", 0)
	if err != nil || b.Text("rows") != "3000" || !strings.Contains(b.Text("score_source"), "scores of the model on 3000 rows") {
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
	if _, code := l.Command(ctx, "delete", "monitor", "delay", "--yes", "-p", "nyc"); code != 0 {
		t.Errorf("delete exits with %d", code)
	}
	if _, err := l.C.Monitor(ctx, "nyc", "delay"); err == nil {
		t.Error("it is still there")
	}
}
