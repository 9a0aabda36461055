package monitoring

import (
	"context"
	"errors"
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

// A domain classifier on the real server: the window becomes a dataset with the
// labels of what it came of, a sandboxed job runs, and what it says, here that
// its environment has no scikit-learn, stands beside the window. That it tells
// drift when it has is shown by the demo, whose environment has it.
func TestClassify(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	l := &lake{Server: live.New(t, ""), t: t, r: rand.New(rand.NewPCG(1, 2))}
	model, err := os.ReadFile(filepath.Join(l.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	l.must(err)
	l.start()
	ctx := t.Context()
	l.apply(strings.Replace(manifests, "name: history\nproject: nyc\nspec:", "name: history\nproject: nyc\nspec:\n  classification: confidential", 1))
	var history strings.Builder
	history.WriteString("hours,weather__temp\n")
	for range 500 {
		hours, temp := l.row(0)
		fmt.Fprintf(&history, "%g,%g\n", hours, temp)
	}
	for name, csv := range map[string]string{"history": history.String(), "weather": "origin,observed_at,temp\nJFK,2013-06-01T00:00:00Z,3\n"} {
		_, err := l.c.Import(ctx, "nyc", name, name+".csv", strings.NewReader(csv))
		l.must(err)
	}
	l.register(model)
	l.apply(features)
	l.apply(monitor + "  # without packages\n---\napi_version: falaj/v1\nkind: Environment\nname: bare\nproject: nyc\nspec: {}\n")

	classify := func(c *client.Client, window, env string) (client.Object, error) {
		return c.Classify(ctx, "nyc", "delay", window, env)
	}
	if _, err := classify(l.c, "", "bare"); status(err) != http.StatusNotFound {
		t.Errorf("before there is a window: %v", err)
	}
	l.day(0, 0)
	l.day(1, 3)
	windows := l.until(1)
	id := windows[0].Text("id")
	if _, err := classify(l.c, id, ""); status(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "environment") {
		t.Errorf("without an environment: %v", err)
	}
	if _, err := classify(l.c, id, "none"); status(err) != http.StatusNotFound {
		t.Errorf("an environment that is not there: %v", err)
	}
	var token client.Object
	l.must(l.c.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"project": "nyc", "name": "looker", "role": "viewer", "expires_in": "1h"}, &token))
	if _, err := classify(l.ClientWith(t, token.Text("secret")), id, "bare"); status(err) != http.StatusForbidden {
		t.Errorf("a viewer began a job: %v", err)
	}
	if windows := l.until(1); windows[0].Text("classifier") != "" {
		t.Errorf("a refusal left %s", windows[0].Text("classifier"))
	}

	began, err := classify(l.c, id, "bare")
	l.must(err)
	for path, want := range map[string]string{"window": id, "dataset": "delay-window@1", "baseline": "history@1", "environment": "bare", "threshold": "0.55"} {
		if began.Text(path) != want {
			t.Errorf("%s is %q, want %q", path, began.Text(path), want)
		}
	}
	var rows client.Object
	l.must(l.c.List(ctx, "/api/v1/projects/nyc/datasets/delay-window/versions", nil, func(o client.Object) error {
		rows = o
		return nil
	}))
	if rows.Text("rows") != "300" || rows.Text("lineage.producer.kind") != "window" || !strings.Contains(rows.Text("lineage.producer.text"), id) || rows.Text("classification") != "internal" {
		t.Errorf("%v", rows)
	}
	var job client.Object
	l.must(l.c.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/jobs/"+began.Text("job"), nil, &job))
	if job.Text("classification") != "confidential" {
		t.Errorf("the job reads confidential data, and is %s", job.Text("classification"))
	}
	found := l.classified(id)
	if found.Text("state") != "failed" || !strings.Contains(found.Text("reason"), "a domain classifier needs scikit-learn and pyarrow") {
		t.Errorf("%v", found)
	}
	if out, code := l.Command(ctx, "monitor", "show", "delay", "-p", "nyc"); code != 0 || !strings.Contains(out, "Domain classifier, window from 2013-06-03 to 2013-06-04: classifier failed") {
		t.Errorf("%s", out)
	}
	if out, code := l.Command(ctx, "monitor", "classify", "delay", "--environment", "bare", "--window", id, "-p", "nyc"); code != 0 || !strings.Contains(out, "classifier running as job job_") {
		t.Errorf("%s", out)
	}
	l.classified(id)
}

// classified waits until the classifier of a window has ended.
func (l *lake) classified(id string) client.Object {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		w, err := l.c.Window(ctx, "nyc", "delay", id)
		l.must(err)
		if c, ok := w["classifier"].(map[string]any); ok && c["state"] != "running" {
			return c
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.t.Fatalf("it goes on: %v\n%s", w["classifier"], l.LogTail(4000))
		}
	}
}

func status(err error) int {
	if p, ok := errors.AsType[*client.Error](err); ok {
		return p.Status
	}
	return 0
}
