package monitoring

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const persons = live.Weather + `
---
{api_version: falaj/v1, kind: Entity, name: customer, project: nyc, spec: {}}
---
api_version: falaj/v1
kind: Dataset
name: history
project: nyc
spec:
  classification: internal
  entities: {customer: {customer: customer}}
  columns:
  - {name: customer, type: string}
  - {name: hours, type: float64}
  - {name: weather__temp, type: float64}
`

// TestBaselineWithoutAnErasedPerson: a person is erased from the baseline of traffic that
// has drifted. The version without the person takes its place, and nothing recovers.
func TestBaselineWithoutAnErasedPerson(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	l := lakeOf(s.Project(t, "nyc"))
	l.Apply(persons)
	var history strings.Builder
	history.WriteString("customer,hours,weather__temp\n")
	for i := range 3000 {
		hours, temp := l.row(0)
		fmt.Fprintf(&history, "c%d,%g,%g\n", i%300, hours, temp)
	}
	l.Import("history", history.String())
	l.Import("weather", "origin,observed_at,temp\nJFK,2013-06-01T00:00:00Z,3\n")
	l.Register("delay", l.Logistic())
	l.Apply(live.WeatherView("0"))
	l.Apply(deployment)
	l.Apply(monitor)
	day := 0
	warmDays := func(n, windows int) []client.Object {
		for range n {
			l.day(day, 3)
			day++
		}
		return l.until(windows)
	}
	warmDays(3, 2)
	l.follow("monitor.drifted")

	var erasure client.Object
	l.Must(l.C.Do(t.Context(), http.MethodPost, l.Path("erasures/erase"), map[string]any{"entity": "customer", "keys": []string{"c7"}, "reason": "request 2026-17"}, &erasure))
	l.Eventually("the person is not erased", func() (bool, error) {
		var e client.Object
		err := l.C.Do(t.Context(), http.MethodGet, l.Path("erasures/"+erasure.Text("id")), nil, &e)
		return strings.HasPrefix(e.Text("state"), "done"), err
	})
	all := warmDays(2, 4)
	for _, w := range all[3:] {
		if w.Text("judged") != "true" || w.Text("drifted") != "true" || w.Text("baseline") != "dataset history@2" {
			t.Errorf("%v", w)
		}
	}
	b, err := l.C.Baseline(t.Context(), "nyc", "delay", 0)
	if err != nil || b.Text("rows") != "2990" || b.Text("ref") != "history@2" {
		t.Errorf("%v, %v", b, err)
	}

	if m, err := l.C.Monitor(t.Context(), "nyc", "delay"); err != nil || m.Text("state") != "drifted" || m.Text("since") != begin.Format(time.RFC3339) {
		t.Errorf("%v, %v", m, err)
	}
}
