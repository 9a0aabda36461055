package monitoring

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

// A domain classifier on the real server: the window becomes a dataset with the
// labels of what it came of, a sandboxed job runs, and what it says, here that
// its environment has no scikit-learn, stands beside the window. That it tells
// drift when it has is shown by the demo, whose environment has it.
func TestClassify(t *testing.T) {
	l := deployed(t, strings.Replace(manifests, "name: history\nproject: nyc\nspec:\n  classification: internal", "name: history\nproject: nyc\nspec:\n  classification: confidential", 1), 500)
	ctx := t.Context()
	l.Apply(monitor + "  # without packages\n---\napi_version: falaj/v1\nkind: Environment\nname: bare\nproject: nyc\nspec: {}\n")

	classify := func(c *client.Client, window, env string) (client.Object, error) {
		return c.Classify(ctx, "nyc", "delay", window, env)
	}
	if _, err := classify(l.C, "", "bare"); status(err) != http.StatusNotFound {
		t.Errorf("before there is a window: %v", err)
	}
	l.day(0, 0)
	l.day(1, 3)
	windows := l.until(1)
	id := windows[0].Text("id")
	if _, err := classify(l.C, id, ""); status(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "environment") {
		t.Errorf("without an environment: %v", err)
	}
	if _, err := classify(l.C, id, "none"); status(err) != http.StatusNotFound {
		t.Errorf("an environment that is not there: %v", err)
	}
	var token client.Object
	l.Must(l.C.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"project": "nyc", "name": "looker", "role": "viewer", "expires_in": "1h"}, &token))
	if _, err := classify(l.ClientWith(t, token.Text("secret")), id, "bare"); status(err) != http.StatusForbidden {
		t.Errorf("a viewer began a job: %v", err)
	}
	if windows := l.until(1); windows[0].Text("classifier") != "" {
		t.Errorf("a refusal left %s", windows[0].Text("classifier"))
	}

	began, err := classify(l.C, id, "bare")
	l.Must(err)
	for path, want := range map[string]string{"window": id, "dataset": "delay-window@1", "baseline": "history@1", "environment": "bare", "threshold": "0.55"} {
		if began.Text(path) != want {
			t.Errorf("%s is %q, want %q", path, began.Text(path), want)
		}
	}
	var rows client.Object
	l.Must(l.C.List(ctx, "/api/v1/projects/nyc/datasets/delay-window/versions", nil, func(o client.Object) error {
		rows = o
		return nil
	}))
	if rows.Text("rows") != "300" || rows.Text("lineage.producer.kind") != "window" || !strings.Contains(rows.Text("lineage.producer.text"), id) || rows.Text("classification") != "internal" {
		t.Errorf("%v", rows)
	}
	var job client.Object
	l.Must(l.C.Do(ctx, http.MethodGet, "/api/v1/projects/nyc/jobs/"+began.Text("job"), nil, &job))
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
	l.T.Helper()
	var classifier client.Object
	l.Eventually("the classifier goes on", func() (bool, error) {
		w, err := l.C.Window(l.T.Context(), "nyc", "delay", id)
		l.Must(err)
		classifier, _ = w["classifier"].(map[string]any)
		return classifier != nil && classifier.Text("state") != "running", fmt.Errorf("%v", w["classifier"])
	})
	return classifier
}

func status(err error) int {
	if p, ok := errors.AsType[*client.Error](err); ok {
		return p.Status
	}
	return 0
}
