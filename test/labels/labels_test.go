// Package labels closes the loop on the real server: answers are logged, labels
// come late, a rollout is judged by them, and what the model saw is verified;
// with kill -9 in the middle.
package labels

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

type world struct{ *live.Project }

// deployed is a project with a deployment of versions that are as good as each
// other.
func deployed(t *testing.T, manifests string, versions int) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	w := &world{s.Project(t, "nyc")}
	w.Apply(manifests)
	w.Import("weather", weather())
	w.Apply(live.WeatherView("3h"))
	w.Materialise("weather")
	w.Register("delay", slices.Repeat([][]byte{w.Logistic()}, versions)...)
	w.Apply(deployment)
	return w
}

// ask sends the nth request, half an hour after the one before, and returns the
// answer's id.
func (w *world) ask(n int) string {
	w.T.Helper()
	a, err := w.Infer(w.C, "delay", map[string]any{"as_of": begin.Add(time.Duration(n) * 30 * time.Minute).Format(time.RFC3339)},
		live.Tensor("origin", "BYTES", []string{"JFK"}, 1), live.Tensor("hours", "FP64", []float64{float64(n % 7)}, 1))
	w.Must(err)
	return a.ID
}

func TestLoopIsClosed(t *testing.T) {
	w := deployed(t, live.Weather, 2)
	ctx := t.Context()
	w.Run(0, "deploy", "canary", "delay", "--version", "2")

	// Asked, killed, and asked again.
	var ids []string
	for n := range requests {
		if n == requests/2 {
			w.Must(w.Kill())
			w.Again()
			w.Loaded()
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
		w.Must(os.WriteFile(path, []byte(b.String()), 0o600))
		return path
	}
	if out := w.Run(0, "deploy", "label", "delay", file("first.csv", 0, 40, "")); !strings.Contains(out, "40 labels accepted") {
		t.Error(out)
	}
	if out := w.Run(0, "deploy", "label", "delay", file("all.csv", 0, requests, ids[0]+",1,\nprd_nobody,1,\n")); !strings.Contains(out, "360 labels accepted") ||
		!strings.Contains(out, "40 already existed") || !strings.Contains(out, "1 contradict") || !strings.Contains(out, "1 are of predictions that are not known yet") {
		t.Error(out)
	}
	w.Run(2, "deploy", "label", "delay", file("wrong.csv", 0, 0, "a,perhaps,\n"))

	// The judge has seen every request and label, and decides once.
	var progress client.Object
	w.Eventually("nothing is decided", func() (bool, error) {
		var err error
		progress, err = w.C.Rollout(ctx, "nyc", "delay")
		return err == nil && progress.Text("concluded") == "true", err
	})
	if got := progress.Text("decision.outcome"); got != "promote" {
		t.Errorf("%s: %s", got, progress.Text("decision.reason"))
	}
	if out := w.Run(0, "deploy", "status", "delay"); !strings.Contains(out, ": promote") || !strings.Contains(out, "MEAN LOSS") {
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
	w.Must(w.C.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/deployments/delay/labels", nil, &counts))
	if counts.Text("joined") != strconv.Itoa(requests) || counts.Text("waiting") != "1" || counts.Text("contradicts") != "1" {
		t.Errorf("counts %v", counts)
	}

	// What the model saw is what training would see; until a row comes late, which
	// is on one side only.
	if out := w.Run(0, "feature", "verify", "--deployment", "delay", "--sample", "300"); !strings.Contains(out, "0 differ") {
		t.Error(out)
	}
	w.Import("weather", weather("JFK,2013-05-03T10:20:00Z,99"))
	out := w.Run(1, "feature", "verify", "--deployment", "delay", "--sample", "400")
	if !strings.Contains(out, "1 because of late_data") || !strings.Contains(out, "weather@1 → weather@2") {
		t.Error(out)
	}
	w.Materialise("weather")
	if out := w.Run(1, "feature", "verify", "--deployment", "delay", "--sample", "400", "-o", "json"); !strings.Contains(out, `"late_data": 1`) {
		t.Error(out)
	}

	// A deployment that is gone leaves no predictions behind.
	w.Must(w.C.Do(ctx, http.MethodDelete, "/api/v1/projects/nyc/deployments/delay", nil, nil))
	w.Eventually("its predictions are still there", func() (bool, error) {
		left, err := filepath.Glob(filepath.Join(w.Data, "predictions", "nyc", "delay"))
		return err == nil && len(left) == 0, err
	})
}
