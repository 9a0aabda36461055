package tracking_test

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// TestContinue: the attempts of a job write one curve into one run, each only while it is the
// newest, and may change once what an earlier one logged as a param.
func TestContinue(t *testing.T) {
	w, loop := open(t), identity.With(t.Context(), identity.Loop("training"))
	run := must(w.CreateRun(loop, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1", Residency: residency.Of("home")}}))(t)
	point := func(step int64, at tracking.Millis, value float64) tracking.Batch {
		return tracking.Batch{Metrics: []tracking.Metric{{Key: "loss", Value: value, At: at, Step: step}}}
	}
	param := func(key, value string) tracking.Batch {
		return tracking.Batch{Params: []tracking.Pair{{Key: key, Value: value}}}
	}
	first, second := as(t, "att_1"), as(t, "att_2")
	for step := range int64(5) {
		if err := w.Log(first, proj, run.ID, point(step, 1000+tracking.Millis(step), 5)); err != nil {
			t.Fatal(err)
		}
	}
	for key, value := range map[string]string{"lr": "0.1", "dir": "/a"} {
		if err := w.Log(first, proj, run.ID, param(key, value)); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, w.Log(first, proj, run.ID, param("dir", "/c")), fault.Invalid, "Changing param values is not allowed")
	failed, end := tracking.Failed, tracking.Millis(1010)
	must(w.UpdateRun(loop, proj, run.ID, tracking.RunUpdate{Status: &failed, End: &end}))(t)

	wantKind(t, errOf(w.Continue(first, proj, run.ID, "att_1", nil)), fault.PermissionDenied, "may not give a run away")
	got := must(w.Continue(loop, proj, run.ID, "att_2", []tracking.Pair{{Key: tracking.AttemptsTag, Value: "2"}}))(t)
	if got.Status != tracking.Running || got.End != 0 || got.Attempt != "att_2" {
		t.Errorf("%+v", got)
	}
	if again := must(w.AttemptRun(loop, proj, "att_2"))(t); again.ID != run.ID {
		t.Errorf("the attempt's run is %s", again.ID)
	}
	wantKind(t, w.Log(first, proj, run.ID, param("late", "1")), fault.PermissionDenied, "")
	for step := int64(3); step < 5; step++ { // it resumed from step 3
		if err := w.Log(second, proj, run.ID, point(step, 2000+tracking.Millis(step), 4)); err != nil {
			t.Fatal(err)
		}
	}
	from, to, ok, err := w.Span(loop, proj, run.ID, 1500)
	if err != nil || !ok || from.Step != 3 || from.At != 2003 || to.Step != 4 || to.At != 2004 {
		t.Errorf("%+v %+v %t %v", from, to, ok, err)
	}
	if _, _, ok, err := w.Span(loop, proj, run.ID, 3000); ok || err != nil {
		t.Errorf("a span of nothing: %t %v", ok, err)
	}
	if points, _, err := w.History(loop, proj, run.ID, "loss", 100, ""); err != nil || len(points) != 7 {
		t.Errorf("%d points, %v", len(points), err)
	}

	for _, b := range []tracking.Batch{param("lr", "0.1"), param("dir", "/b")} {
		if err := w.Log(second, proj, run.ID, b); err != nil {
			t.Error(err)
		}
	}
	wantKind(t, w.Log(second, proj, run.ID, param("dir", "/c")), fault.Invalid, "Changing param values is not allowed")
	wantKind(t, w.Log(as(t, "alice"), proj, run.ID, param("lr", "0.2")), fault.Invalid, "Changing param values is not allowed")
	whole := must(w.Run(loop, proj, run.ID))(t)
	var params, tags []string
	for _, p := range whole.Params {
		params = append(params, p.Key+"="+p.Value)
	}
	for _, p := range whole.Tags {
		tags = append(tags, p.Key+"="+p.Value)
	}
	if got := strings.Join(params, " "); got != "dir=/b lr=0.1" {
		t.Errorf("params %s", got)
	}
	if got := strings.Join(tags, " "); !strings.Contains(got, "falaj.attempt.1.param.dir=/a") || !strings.Contains(got, "falaj.attempts=2") {
		t.Errorf("tags %s", got)
	}

	if err := w.DeleteRun(loop, proj, run.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Continue(loop, proj, run.ID, "att_3", nil)), fault.NotFound, "is deleted")
}
