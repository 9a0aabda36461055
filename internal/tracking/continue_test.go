package tracking_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// TestContinue: the attempts of a job write one curve into one run, each only while it is the
// newest, and may change once what an earlier one logged as a param.
func TestContinue(t *testing.T) {
	w, loop := open(t), identity.With(t.Context(), identity.Loop("training"))
	run := must(w.Runs.CreateRun(loop, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1", Residency: residency.Of("home")}, AttemptNumber: 1}))(t)
	point := func(step int64, at tracking.Millis, value float64) tracking.Batch {
		return tracking.Batch{Metrics: []tracking.Metric{{Key: "loss", Value: value, At: at, Step: step}}}
	}
	param := func(key, value string) tracking.Batch {
		return tracking.Batch{Params: []tracking.Pair{{Key: key, Value: value}}}
	}
	first, second := as(t, "att_1"), as(t, "att_2")
	for step := range int64(5) {
		if err := w.Logging.Log(first, proj, run.ID, point(step, 1000+tracking.Millis(step), 5)); err != nil {
			t.Fatal(err)
		}
	}
	for key, value := range map[string]string{"lr": "0.1", "dir": "/a"} {
		if err := w.Logging.Log(first, proj, run.ID, param(key, value)); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, w.Logging.Log(first, proj, run.ID, param("dir", "/c")), fault.Invalid, "Changing param values is not allowed")
	failed, end := tracking.Failed, tracking.Millis(1010)
	must(w.Runs.UpdateRun(loop, proj, run.ID, tracking.RunUpdate{Status: &failed, End: &end}))(t)

	wantKind(t, errOf(w.Runs.Continue(first, proj, run.ID, "att_1", 2)), fault.PermissionDenied, "may not change the owner of a run")
	got := must(w.Runs.Continue(loop, proj, run.ID, "att_2", 2))(t)
	if got.Status != tracking.Running || got.End != 0 || got.Attempt != "att_2" {
		t.Errorf("%+v", got)
	}
	if again := must(w.Runs.AttemptRun(loop, proj, "att_2"))(t); again.ID != run.ID {
		t.Errorf("the attempt's run is %s", again.ID)
	}
	wantKind(t, w.Logging.Log(first, proj, run.ID, param("late", "1")), fault.PermissionDenied, "")
	for step := int64(3); step < 5; step++ { // it resumed from step 3
		if err := w.Logging.Log(second, proj, run.ID, point(step, 2000+tracking.Millis(step), 4)); err != nil {
			t.Fatal(err)
		}
	}
	from, to, ok, err := w.Runs.Span(loop, proj, run.ID, 1500)
	if err != nil || !ok || from.Step != 3 || from.At != 2003 || to.Step != 4 || to.At != 2004 {
		t.Errorf("%+v %+v %t %v", from, to, ok, err)
	}
	if _, _, ok, err := w.Runs.Span(loop, proj, run.ID, 3000); ok || err != nil {
		t.Errorf("a span of nothing: %t %v", ok, err)
	}
	if points, _, err := w.Runs.History(loop, proj, run.ID, "loss", 100, ""); err != nil || len(points) != 7 {
		t.Errorf("%d points, %v", len(points), err)
	}

	for _, b := range []tracking.Batch{param("lr", "0.1"), param("dir", "/b")} {
		if err := w.Logging.Log(second, proj, run.ID, b); err != nil {
			t.Error(err)
		}
	}
	wantKind(t, w.Logging.Log(second, proj, run.ID, param("dir", "/c")), fault.Invalid, "Changing param values is not allowed")
	wantKind(t, w.Logging.Log(as(t, "alice"), proj, run.ID, param("lr", "0.2")), fault.Invalid, "Changing param values is not allowed")
	whole := must(w.Runs.Run(loop, proj, run.ID))(t)
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

	if err := w.Runs.DeleteRun(loop, proj, run.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Runs.Continue(loop, proj, run.ID, "att_3", 3)), fault.NotFound, "is deleted")
}

// TestLatestOfAttempt: the latest value of a metric is of the newest attempt that logged it,
// and of its points that of the largest step, as MLflow has it.
func TestLatestOfAttempt(t *testing.T) {
	w, loop := open(t), identity.With(t.Context(), identity.Loop("training"))
	run := must(w.Runs.CreateRun(loop, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1}))(t)
	log := func(attempt string, key string, step int64, at tracking.Millis, value float64) {
		t.Helper()
		if err := w.Logging.Log(as(t, attempt), proj, run.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: key, Value: value, At: at, Step: step}}}); err != nil {
			t.Fatal(err)
		}
	}
	latest := func() string {
		t.Helper()
		var out strings.Builder
		for _, m := range must(w.Runs.Run(loop, proj, run.ID))(t).Metrics {
			fmt.Fprintf(&out, "%s %v at step %d of attempt %d\n", m.Key, m.Value, m.Step, m.Attempt)
		}
		return out.String()
	}
	log("att_1", "accuracy", 9, 1009, 0.9)
	log("att_1", "loss", 100, 1100, math.NaN())
	log("att_1", "loss", 50, 2000, 1)
	if got, want := latest(), "accuracy 0.9 at step 9 of attempt 1\nloss NaN at step 100 of attempt 1\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	must(w.Runs.Continue(loop, proj, run.ID, "att_2", 2))(t)
	log("att_2", "loss", 20, 1050, 3) // whose clock is behind
	log("att_2", "loss", 30, 1060, 2)
	log("att_2", "loss", 25, 3000, 4)
	if got, want := latest(), "accuracy 0.9 at step 9 of attempt 1\nloss 2 at step 30 of attempt 2\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	found, _, err := w.Runs.SearchRuns(loop, proj, tracking.Search{Experiments: []tracking.ExperimentID{run.Experiment}, Filter: "metrics.loss < 3", Max: 10})
	if err != nil || len(found) != 1 {
		t.Errorf("%d runs are found by the value, %v", len(found), err)
	}
}

// TestParamsOfAttempts: an attempt may give a param of an earlier one another value once, and
// none that it logged itself; whether it may is not decided by what it can write.
func TestParamsOfAttempts(t *testing.T) {
	w, loop := open(t), identity.With(t.Context(), identity.Loop("training"))
	run := must(w.Runs.CreateRun(loop, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1}))(t)
	long, longer := strings.Repeat("k", tracking.MaxKey-1)+"é", strings.Repeat("k", tracking.MaxKey)
	log := func(attempt string, key, value string) error {
		t.Helper()
		return w.Logging.Log(as(t, attempt), proj, run.ID, tracking.Batch{Params: []tracking.Pair{{Key: key, Value: value}}})
	}
	const refused = "Changing param values is not allowed"
	for _, step := range []struct{ attempt, key, value, want string }{
		{"att_1", "dir", "/a", ""},
		{"att_1", "dir", "/b", refused},
		{"att_1", long, "1", ""},
		{"att_1", longer, "1", ""},
		{attempt: "att_2"},
		{"att_2", "dir", "/b", ""},
		{"att_2", "dir", "/c", refused},
		{"att_2", "fresh", "1", ""},
		{"att_2", "fresh", "1", ""},
		{"att_2", "fresh", "2", refused},
		{"att_2", long, "2", ""},
		{"att_2", longer, "2", ""},
		{attempt: "att_3"},
		{"att_3", "dir", "/b", ""}, // now it is its own
		{"att_3", "dir", "/c", refused},
		{"att_3", "fresh", "2", ""},
		{attempt: "att_4"},
		{"att_4", "dir", "/d", ""},
	} {
		if step.key == "" {
			must(w.Runs.Continue(loop, proj, run.ID, step.attempt, int(step.attempt[4]-'0')))(t)
			continue
		}
		err := log(step.attempt, step.key, step.value)
		if step.want == "" && err != nil {
			t.Errorf("%+v: %v", step, err)
		}
		if step.want != "" {
			wantKind(t, err, fault.Invalid, step.want)
		}
	}
	var tags []string
	for _, p := range must(w.Runs.Run(loop, proj, run.ID))(t).Tags {
		if n := utf8.RuneCountInString(p.Key); n > tracking.MaxKey {
			t.Errorf("a tag of %d characters", n)
		}
		if strings.HasPrefix(p.Key, "falaj.attempt") {
			tags = append(tags, p.Key[:min(len(p.Key), 25)]+"="+p.Value)
		}
	}
	want := []string{
		"falaj.attempt=att_4", "falaj.attempt.1.param.dir=/a", "falaj.attempt.1.param.kkk=1", "falaj.attempt.1.param.kkk=1",
		"falaj.attempt.2.param.fre=1", "falaj.attempt.3.param.dir=/b", "falaj.attempts=4",
	}
	if !slices.Equal(tags, want) {
		t.Errorf("got  %v\nwant %v", tags, want)
	}
}

// TestAttemptTags: the tags that tell of a run's attempts are set by Falaj, and by no attempt.
func TestAttemptTags(t *testing.T) {
	w, loop := open(t), identity.With(t.Context(), identity.Loop("training"))
	run := must(w.Runs.CreateRun(loop, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1}))(t)
	first := as(t, "att_1")
	for _, key := range []string{"falaj.attempt", "falaj.attempts", "falaj.attempt.1.param.dir"} {
		tag := []tracking.Pair{{Key: key, Value: "2"}}
		wantKind(t, w.Logging.Log(first, proj, run.ID, tracking.Batch{Tags: tag}), fault.PermissionDenied, key)
		wantKind(t, errOf(w.Runs.CreateRun(first, proj, tracking.RunSpec{Tags: tag}, tracking.RunOptions{})), fault.PermissionDenied, key)
		wantKind(t, w.Logging.DeleteTag(first, proj, run.ID, key), fault.PermissionDenied, key)
	}
	if err := w.Logging.Log(first, proj, run.ID, tracking.Batch{Tags: []tracking.Pair{{Key: "falaj.attempted", Value: "2"}}}); err != nil {
		t.Error(err)
	}
}
