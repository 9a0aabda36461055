package tracking_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// rowsOf counts what the tables have of runs and logged models.
func rowsOf(t *testing.T, w *world, ids ...string) map[string]int {
	t.Helper()
	out := map[string]int{}
	err := w.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		for table, column := range map[string]string{
			"tracking_run": "id", "tracking_param": "run", "tracking_tag": "run", "tracking_metric": "run", "tracking_metric_latest": "run", "tracking_input": "run",
			"tracking_model_link": "run", "tracking_model": "id", "tracking_model_param": "model", "tracking_model_tag": "model", "tracking_model_metric": "model",
			"tracking_artifact": "owner", "tracking_imported": "id", "tracking_pruned": "run",
		} {
			var n int
			if err := tx.NewRaw("SELECT COUNT(*) FROM "+table+" WHERE "+column+" IN (?)", store.Texts(ids)).Scan(ctx, &n); err != nil {
				return err
			}
			if n > 0 {
				out[table] = n
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPrune: what was deleted long enough ago is gone with all it had, and nothing else.
func TestPrune(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	a := must(w.Experiments.CreateExperiment(ctx, proj, "a", nil))(t)
	b := must(w.Experiments.CreateExperiment(ctx, proj, "b", []tracking.Pair{{"team", "ops"}}))(t)
	run := func(e tracking.ExperimentID) tracking.RunID {
		w.clock = w.clock.Add(time.Millisecond)
		r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Experiment: e}, tracking.RunOptions{}))(t)
		m := must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Experiment: e, Name: "m", Params: []tracking.Pair{{"p", "1"}}, Tags: []tracking.Pair{{"t", "1"}}}))(t)
		err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: "auc", Value: 1, Model: m.ID}, {Key: "auc", Value: 2, Step: 1}}, Params: []tracking.Pair{{"p", "1"}}})
		if err == nil {
			err = w.Logging.LogInputs(ctx, proj, r.ID, []tracking.DatasetInput{{Name: "d", Digest: "1", SourceType: "local", Source: "x"}}, []tracking.LoggedModelID{m.ID})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range []tracking.Place{{Run: r.ID}, {Model: m.ID}} {
			must(w.Artifacts.PutArtifact(ctx, proj, place, "dir/file", strings.NewReader("12345")))(t)
		}
		return r.ID
	}
	model := func(e tracking.ExperimentID, n int) tracking.LoggedModelID {
		all, _, err := w.LoggedModels.SearchLoggedModels(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{e}, Max: 10, OrderBy: []string{"creation_timestamp"}})
		if err != nil || len(all) <= n {
			t.Fatal(all, err)
		}
		return all[n].ID
	}
	// Of a: a run with more points than are removed at once, one that stays, one that is
	// restored, one that is deleted too late. b is deleted as a whole.
	long, stays, restored, late, ofB := run(a.ID), run(a.ID), run(a.ID), run(a.ID), run(b.ID)
	deletedModel, modelOfB, modelStays := model(a.ID, 0), model(b.ID, 0), model(a.ID, 1)
	for n := range 21 {
		points := make([]tracking.Metric, 1000)
		for i := range points {
			points[i] = tracking.Metric{Key: "loss", Value: float64(i), Step: int64(n*1000 + i)} // all of one time
		}
		if err := w.Logging.Log(ctx, proj, long, tracking.Batch{Metrics: points}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []tracking.RunID{long, restored} {
		if err := w.Runs.DeleteRun(ctx, proj, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.LoggedModels.DeleteLoggedModel(ctx, proj, deletedModel); err != nil {
		t.Fatal(err)
	}
	if err := w.Experiments.DeleteExperiment(ctx, proj, b.ID); err != nil {
		t.Fatal(err)
	}
	w.clock = w.clock.Add(2 * time.Hour)
	if err := w.Runs.RestoreRun(ctx, proj, restored); err != nil {
		t.Fatal(err)
	}
	if err := w.Runs.DeleteRun(ctx, proj, late); err != nil {
		t.Fatal(err)
	}
	if err := w.Runs.DeleteRun(ctx, proj, long); err != nil { // again, which is not later
		t.Fatal(err)
	}

	for _, dry := range []bool{false, true} {
		_, err := w.Maintenance.Prune(as(t, "vera"), proj, 0, dry)
		wantKind(t, err, fault.PermissionDenied, "run.prune")
	}
	_, err := w.Maintenance.Prune(ctx, proj, -time.Hour, true)
	wantKind(t, err, fault.Invalid, "is negative")
	if none := must(w.Maintenance.Prune(ctx, proj, 3*time.Hour, false))(t); none != (tracking.Pruned{}) {
		t.Fatalf("what was deleted two hours ago is older than three: %+v", none)
	}
	want := tracking.Pruned{Experiments: 1, Runs: 2, Models: 2, Files: 4, Bytes: 20}
	if would := must(w.Maintenance.Prune(ctx, proj, time.Hour, true))(t); would != want {
		t.Errorf("would remove %+v, want %+v", would, want)
	}
	kept := rowsOf(t, w, string(stays), string(restored), string(late), string(modelStays))
	if gone := must(w.Maintenance.Prune(ctx, proj, time.Hour, false))(t); gone != want {
		t.Errorf("removed %+v, want %+v", gone, want)
	}
	if rows := rowsOf(t, w, string(long), string(ofB), string(deletedModel), string(modelOfB)); len(rows) > 0 {
		t.Errorf("left in the tables: %v", rows)
	}
	if diff := cmp.Diff(kept, rowsOf(t, w, string(stays), string(restored), string(late), string(modelStays))); diff != "" {
		t.Error("others changed:", diff)
	}
	if objects := trackingtest.Objects(t, w.dir, "art_"); len(objects) != 6 { // of three runs and three models
		t.Errorf("%d objects are left, want 6", len(objects))
	}
	_, err = w.Runs.Run(ctx, proj, long)
	wantKind(t, err, fault.NotFound, string(long))
	wantKind(t, w.Experiments.RestoreExperiment(ctx, proj, b.ID), fault.NotFound, "No Experiment")
	again := must(w.Experiments.CreateExperiment(ctx, proj, "b", nil))(t)
	if again.ID <= b.ID || len(again.Tags) > 0 {
		t.Errorf("the new experiment b is %+v; the old one had number %d", again, b.ID)
	}
	var acts int
	for _, row := range auditRows(t, w) {
		if strings.Contains(row, "run.prune") {
			acts++
		}
	}
	if acts != 5 {
		t.Errorf("%d acts are on record, want 5", acts)
	}
	if none := must(w.Maintenance.Prune(ctx, proj, time.Hour, false))(t); none != (tracking.Pruned{}) {
		t.Errorf("removed again: %+v", none)
	}

	// The first experiment is there for clients, even deleted; its runs are not.
	first := run(0)
	if err := w.Experiments.DeleteExperiment(ctx, proj, 0); err != nil {
		t.Fatal(err)
	}
	if gone := must(w.Maintenance.Prune(ctx, proj, 0, false))(t); gone.Runs != 2 || gone.Experiments != 0 { // and the late one
		t.Errorf("of the first experiment %+v", gone)
	}
	if _, err := w.Runs.Run(ctx, proj, first); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	must(w.Experiments.Experiment(ctx, proj, 0))(t)
}

// TestPruneGoesOn: a run that was removed when the server ended has its points removed by
// the next Prune, and does not come back with them before.
func TestPruneGoesOn(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	in := tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}, Runs: []tracking.ImportedRun{foreignRun(1)}}
	if got := results(t, w, in); got != "created\ncreated" {
		t.Fatal(got)
	}
	if err := w.Runs.DeleteRun(ctx, proj, foreign(1)); err != nil {
		t.Fatal(err)
	}
	err := w.db.Update(ctx, proj, func(ctx context.Context, tx *store.Tx) error {
		return errOf(trackingsql.Store{}.RemoveMarked(ctx, tx, proj, tracking.Marked{Place: tracking.Place{Run: foreign(1)}, Experiment: 7}, w.clock))
	})
	if err != nil {
		t.Fatal(err)
	}
	in.Runs[0].Digest, in.Runs[0].Metrics = "later", []tracking.Metric{{Key: "loss", Value: 7, At: 9}}
	for _, p := range []project.Name{proj, "other"} { // the points would be there, too
		out := must(w.Imports.Import(identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "alice", Project: p}), p, in))(t)
		if !strings.Contains(out[1].Reason, "falaj run prune") {
			t.Fatal(out)
		}
	}
	if gone := must(w.Maintenance.Prune(ctx, proj, 0, false))(t); gone != (tracking.Pruned{}) {
		t.Fatalf("%+v", gone)
	}
	if got := results(t, w, in); got != "unchanged\ncreated" {
		t.Fatal(got)
	}
	points, _, err := w.Runs.History(ctx, proj, foreign(1), "loss", 0, "")
	if err != nil || len(points) != 1 || points[0].Value != 7 {
		t.Errorf("points %v %v, want the new one", points, err)
	}
	if rows := rowsOf(t, w, string(foreign(1))); rows["tracking_pruned"] != 0 || rows["tracking_metric"] != 1 {
		t.Error(rows)
	}
}

// guarded is a policy by which nobody removes what is restricted.
type guarded struct {
	trackingtest.Policy
	asked *int
}

func (g guarded) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	if action == tracking.ActionPrune && object.Classification != "" {
		if *g.asked++; object.Classification == "restricted" {
			return fault.New(fault.PermissionDenied, "it is restricted")
		}
	}
	return g.Policy.Allow(ctx, action, object)
}

// TestPruneKeeps: what one may not remove for its label stays, with its experiment, and the
// run of a job that goes on; a dry run says so, and neither asks for each run.
func TestPruneKeeps(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	asked := 0
	s := tracking.New(tracking.Config{
		DB: w.db, Store: trackingsql.Store{}, Objects: w.artifacts, Now: func() time.Time { return w.clock },
		Authz: guarded{trackingtest.Policy{"alice": {proj: {"*"}}}, &asked},
	})
	e := must(s.Experiments.CreateExperiment(ctx, proj, "secret", nil))(t)
	run := func(o tracking.Origin) tracking.RunID {
		return must(s.Runs.CreateRun(ctx, proj, tracking.RunSpec{Experiment: e.ID}, tracking.RunOptions{Origin: o}))(t).ID
	}
	for range 3 {
		run(tracking.Origin{Classification: "restricted"})
		run(tracking.Origin{Classification: "internal"})
	}
	if err := s.Experiments.DeleteExperiment(ctx, proj, e.ID); err != nil {
		t.Fatal(err)
	}
	other := must(s.Experiments.CreateExperiment(ctx, proj, "job", nil))(t)
	e.ID = other.ID
	ofJob := run(tracking.Origin{Job: "job_1"})
	if err := s.Experiments.DeleteExperiment(ctx, proj, other.ID); err != nil {
		t.Fatal(err)
	}
	want := tracking.Pruned{Runs: 3, Kept: 3}
	for _, dry := range []bool{true, false} {
		if gone := must(s.Maintenance.Prune(ctx, proj, 0, dry))(t); gone != want {
			t.Errorf("dry %t: %+v, want %+v", dry, gone, want)
		}
	}
	if asked != 4 {
		t.Errorf("%d decisions about two labels in two calls", asked)
	}
	// The job ends its run, which is deleted.
	finished := tracking.Finished
	_, err := s.Runs.UpdateRun(ctx, proj, ofJob, tracking.RunUpdate{Status: &finished})
	wantKind(t, err, fault.Invalid, "must be in the 'active' state")
	must(s.Runs.UpdateRun(ctx, proj, ofJob, tracking.RunUpdate{Status: &finished, Deleted: true}))(t)
	want = tracking.Pruned{Runs: 1, Experiments: 1, Kept: 3}
	for _, dry := range []bool{true, false} {
		if gone := must(s.Maintenance.Prune(ctx, proj, 0, dry))(t); gone != want {
			t.Errorf("dry %t: %+v, want %+v", dry, gone, want)
		}
	}
}

// TestPruneKeepsWhatIsCited: the run of a model version stays, whatever its age, and is
// counted.
func TestPruneKeepsWhatIsCited(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	cited := ""
	s := tracking.New(tracking.Config{
		DB: w.db, Store: trackingsql.Store{}, Objects: w.artifacts, Now: func() time.Time { return w.clock }, Authz: trackingtest.Policy{"alice": {proj: {"*"}}},
		Cited: func(_ context.Context, _ *store.Tx, _ project.Name, run string) (bool, error) {
			return run == cited, nil
		},
	})
	e := must(s.Experiments.CreateExperiment(ctx, proj, "train", nil))(t)
	for range 2 {
		r := must(s.Runs.CreateRun(ctx, proj, tracking.RunSpec{Experiment: e.ID}, tracking.RunOptions{}))(t)
		cited = string(r.ID)
		if err := s.Runs.DeleteRun(ctx, proj, r.ID); err != nil {
			t.Fatal(err)
		}
	}
	w.clock = w.clock.Add(time.Hour)
	want := tracking.Pruned{Runs: 1, Kept: 1}
	for _, dry := range []bool{true, false} {
		if gone := must(s.Maintenance.Prune(ctx, proj, 0, dry))(t); gone != want {
			t.Errorf("dry %t: %+v, want %+v", dry, gone, want)
		}
	}
	if got := rowsOf(t, w, cited); got["tracking_run"] != 1 {
		t.Errorf("of the cited run there is %v", got)
	}
}
