package tracking_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

const proj = "flights"

// database is where the tests keep their rows.
var database storetest.Open = storetest.SQLite

// TestPostgreSQL runs what asks the database on PostgreSQL too.
func TestPostgreSQL(t *testing.T) {
	database = storetest.PostgreSQL
	t.Cleanup(func() { database = storetest.SQLite })
	t.Run("experiments", TestExperiments)
	t.Run("log and read", TestLogAndRead)
	t.Run("latest metric", TestLatestMetric)
	t.Run("writers", TestWriters)
	t.Run("search runs", TestSearchRuns)
	t.Run("logged models", TestLoggedModels)
	t.Run("artifacts", TestArtifacts)
	t.Run("attempts", TestAttemptsKeepLabels)
	t.Run("continue", TestContinue)
	t.Run("latest of an attempt", TestLatestOfAttempt)
	t.Run("params of attempts", TestParamsOfAttempts)
	t.Run("import", TestImport)
	t.Run("import refuses", TestImportRefuses)
	t.Run("import models", TestImportModels)
	t.Run("prune", TestPrune)
	t.Run("prune goes on", TestPruneGoesOn)
	t.Run("prune keeps", TestPruneKeeps)
}

type world struct {
	tracking.Services
	db        *store.DB
	artifacts *blob.Store
	dir       string
	journal   *trackingtest.Journal
	clock     time.Time
}

func open(tb testing.TB) *world {
	tb.Helper()
	db := database(tb, trackingsql.Migrations)
	w := &world{db: db, journal: &trackingtest.Journal{}, clock: time.Now()}
	w.artifacts, w.dir, _ = trackingtest.NewArtifacts(tb)
	w.Services = tracking.New(tracking.Config{
		DB: db, Store: trackingsql.Store{}, Objects: w.artifacts, Journal: w.journal, MaxFile: 1 << 20, MaxFiles: 50,
		Now: func() time.Time { return w.clock },
		Authz: trackingtest.Policy{
			"alice": {proj: {"*"}, "other": {"*"}},
			"vera":  {proj: {tracking.ActionRead}},
			"logan": {proj: {tracking.ActionRead, tracking.ActionLogs}},
			"att_1": {proj: {"*"}},
			"att_2": {proj: {"*"}},
			"att_3": {proj: {"*"}},
			"att_4": {proj: {"*"}},
		},
	})
	return w
}

func as(tb testing.TB, who string) context.Context {
	tb.Helper()
	kind := identity.User
	if strings.HasPrefix(who, "att_") {
		kind = identity.Attempt
	}
	return identity.With(tb.Context(), identity.Principal{Kind: kind, ID: who, Project: proj})
}

func wantKind(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v (%v), want %v with %q", err, fault.KindOf(err), kind, text)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func auditRows(t *testing.T, w *world) []string {
	t.Helper()
	var out []string
	var at store.Position
	for {
		rows, next, err := w.db.ReadStream(t.Context(), "audit", at, 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return out
		}
		for _, r := range rows {
			out = append(out, string(r.Body))
		}
		at = next
	}
}

func TestExperiments(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	def := must(w.Experiments.Experiment(ctx, proj, 0))(t)
	if def.Name != "Default" {
		t.Fatalf("experiment 0 is %q, want Default", def.Name)
	}
	e := must(w.Experiments.CreateExperiment(ctx, proj, "delays", []tracking.Pair{{"team", "ops"}}))(t)
	if e.ID != 1 {
		t.Fatalf("first experiment is %d, want 1", e.ID)
	}
	_, err := w.Experiments.CreateExperiment(ctx, proj, "delays", nil)
	wantKind(t, err, fault.Conflict, "already exists")
	if err := w.Experiments.DeleteExperiment(ctx, proj, e.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.Experiments.CreateExperiment(ctx, proj, "delays", nil)
	wantKind(t, err, fault.Conflict, "deleted state")
	_, err = w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Experiment: e.ID}, tracking.RunOptions{})
	wantKind(t, err, fault.Invalid, "must be in the 'active' state")
	if err := w.Experiments.RestoreExperiment(ctx, proj, e.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, w.Experiments.RestoreExperiment(ctx, proj, e.ID), fault.NotFound, "No Experiment with id=")
	if err := w.Experiments.SetExperimentTag(ctx, proj, e.ID, tracking.Pair{Key: "note", Value: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Experiments.RenameExperiment(ctx, proj, e.ID, "Delays"); err != nil {
		t.Fatal(err)
	}
	got := must(w.Experiments.ExperimentNamed(ctx, proj, "Delays"))(t)
	if diff := cmp.Diff([]tracking.Pair{{"note", "x"}, {"team", "ops"}}, got.Tags); diff != "" {
		t.Fatal(diff)
	}
	for filter, want := range map[string]int{
		"name = 'Delays'": 1, "name LIKE 'del%'": 0, "name ILIKE 'del%'": 1, "tags.team = 'ops'": 1,
		"tags.absent IS NULL": 2, "tags.team IS NOT NULL": 1, "attribute.creation_time > 0": 2, "experiment_id IN ('0', '7')": 1,
	} {
		found, _, err := w.Experiments.SearchExperiments(ctx, proj, tracking.Search{Filter: filter, Max: 10})
		if err != nil || len(found) != want {
			t.Errorf("%s: %d experiments (%v), want %d", filter, len(found), err, want)
		}
	}
	// Another project counts for itself.
	if other := must(w.Experiments.CreateExperiment(ctx, "other", "delays", nil))(t); other.ID != 1 {
		t.Errorf("first experiment of another project is %d, want 1", other.ID)
	}
}

func TestLogAndRead(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{User: "", Tags: []tracking.Pair{{"a", "1"}, {"a", "2"}}}, tracking.RunOptions{}))(t)
	if r.User != "" || r.Name == "" || r.Status != tracking.Running {
		t.Fatalf("run %+v", r)
	}
	batch := tracking.Batch{
		Metrics: []tracking.Metric{
			{Key: "auc", Value: 0.5, At: 10, Step: 0},
			{Key: "auc", Value: 0.7, At: 5, Step: 1},
			{Key: "auc", Value: 0.6, At: 5, Step: 1},
			{Key: "nan", Value: math.NaN(), At: 0},
			{Key: "inf", Value: math.Inf(1), At: 0},
			{Key: "-inf", Value: math.Inf(-1), At: 0},
		},
		Params: []tracking.Pair{{"lr", "0.1"}},
		Tags:   []tracking.Pair{{"mlflow.runName", "renamed"}},
	}
	for range 2 { // a retry changes nothing
		if err := w.Logging.Log(ctx, proj, r.ID, batch); err != nil {
			t.Fatal(err)
		}
	}
	got := must(w.Runs.Run(ctx, proj, r.ID))(t)
	values := map[string]float64{}
	for _, m := range got.Metrics {
		values[m.Key] = m.Value
	}
	if values["auc"] != 0.7 || !math.IsNaN(values["nan"]) || !math.IsInf(values["inf"], 1) || !math.IsInf(values["-inf"], -1) {
		t.Fatalf("latest metrics %v", values)
	}
	if got.Name != "renamed" {
		t.Errorf("name %q, want renamed", got.Name)
	}
	history, next, err := w.Runs.History(ctx, proj, r.ID, "auc", 2, "")
	if err != nil || len(history) != 2 || next == "" || history[0].Value != 0.6 {
		t.Fatalf("history %v %q %v", history, next, err)
	}
	history, next, err = w.Runs.History(ctx, proj, r.ID, "auc", 2, next)
	if err != nil || len(history) != 1 || next != "" {
		t.Fatalf("second page %v %q %v", history, next, err)
	}

	// A changed param refuses the whole batch.
	err = w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Params: []tracking.Pair{{"new", "1"}, {"lr", "0.2"}}, Tags: []tracking.Pair{{"half", "way"}}})
	wantKind(t, err, fault.Invalid, "Changing param values is not allowed. Params were already logged='[{'key': 'lr', 'old_value': '0.1', 'new_value': '0.2'}]'")
	again := must(w.Runs.Run(ctx, proj, r.ID))(t)
	if diff := cmp.Diff(got.Params, again.Params); diff != "" {
		t.Error("params of a refused batch were kept", diff)
	}

	if _, err := w.Runs.UpdateRun(ctx, proj, r.ID, tracking.RunUpdate{Status: new(tracking.Finished), End: new(tracking.Millis(99))}); err != nil {
		t.Fatal(err)
	}
	if err := w.Runs.DeleteRun(ctx, proj, r.ID); err != nil {
		t.Fatal(err)
	}
	wantKind(t, w.Logging.Log(ctx, proj, r.ID, batch), fault.Invalid, "must be in the 'active' state. Current state is deleted")
	if err := w.Runs.RestoreRun(ctx, proj, r.ID); err != nil {
		t.Fatal(err)
	}
	if got := must(w.Runs.Run(ctx, proj, r.ID))(t); got.Status != tracking.Finished || got.End != 99 {
		t.Errorf("run after restore %+v", got)
	}
	events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range events {
		names = append(names, e.Kind)
	}
	if diff := cmp.Diff([]string{tracking.EventRunCreated, tracking.EventRunFinished, tracking.EventRunDeleted}, names); diff != "" {
		t.Error(diff)
	}
}

func TestBatchLimits(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	pairs := func(n int) []tracking.Pair {
		out := make([]tracking.Pair, n)
		for i := range out {
			out[i] = tracking.Pair{Key: fmt.Sprint("k", i), Value: "v"}
		}
		return out
	}
	metrics := func(n int) []tracking.Metric {
		out := make([]tracking.Metric, n)
		for i := range out {
			out[i] = tracking.Metric{Key: "loss", Value: float64(i), Step: int64(i)}
		}
		return out
	}
	if err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Metrics: metrics(800), Params: pairs(100), Tags: pairs(100)}); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", 250)
	tests := []struct {
		name  string
		batch tracking.Batch
		want  string
	}{
		{"metrics", tracking.Batch{Metrics: metrics(1001)}, "A batch logging request can contain at most 1000 metrics. Got 1001 metrics. Please split up metrics across multiple requests and try again."},
		{"params", tracking.Batch{Params: pairs(101)}, "at most 100 params"},
		{"tags", tracking.Batch{Tags: pairs(101)}, "at most 100 tags"},
		{"all", tracking.Batch{Metrics: metrics(950), Params: pairs(51)}, "at most 1000 metrics, params, and tags"},
		{"key", tracking.Batch{Params: []tracking.Pair{{long + "é", "v"}}}, "exceeds the maximum length of 250"},
		{"characters", tracking.Batch{Tags: []tracking.Pair{{"a;b", "v"}}}, "Names may only contain alphanumerics"},
		{"traversal", tracking.Batch{Params: []tracking.Pair{{"../x", "v"}}}, "must not resolve to other names"},
		{"absolute", tracking.Batch{Metrics: []tracking.Metric{{Key: "/x"}}}, "must not resolve to other names"},
		{"empty", tracking.Batch{Tags: []tracking.Pair{{"", "v"}}}, "Missing value for required parameter 'tags[0].key'"},
		{"nul", tracking.Batch{Tags: []tracking.Pair{{"k", "a\x00b"}}}, "contains a NUL character"},
		{"time", tracking.Batch{Metrics: []tracking.Metric{{Key: "m", At: -1}}}, "for parameter 'metrics[0].timestamp' supplied"},
		{"duplicate", tracking.Batch{Params: []tracking.Pair{{"x", "1"}, {"x", "2"}}}, "Duplicate parameter keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantKind(t, w.Logging.Log(ctx, proj, r.ID, tt.batch), fault.Invalid, tt.want) })
	}
	if err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Params: []tracking.Pair{{long, strings.Repeat("x", 6000)}}}); err != nil {
		t.Error("at the limit:", err)
	}
}

// TestLongValues: what is longer than MLflow keeps is cut as its server does, the end says so,
// what came along is kept, and the audit log names the keys.
func TestLongValues(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	text := func(n int) string { return strings.Repeat("aé字", n/3) + strings.Repeat("z", n%3) }
	cut := func(n, limit int) string {
		end := fmt.Sprintf("…[cut from %d]", n)
		return string([]rune(text(n))[:limit-utf8.RuneCountInString(end)]) + end
	}
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Tags: []tracking.Pair{{"argv", text(8001)}}}, tracking.RunOptions{}))(t)
	long := tracking.Batch{
		Params: []tracking.Pair{{"whole", text(6000)}, {"long", text(6001)}, {"longer", text(700_000)}, {"lr", "0.1"}},
		Tags:   []tracking.Pair{{"whole", text(8000)}, {"long", text(9000)}},
	}
	for range 2 { // the same once more is no change
		if err := w.Logging.Log(ctx, proj, r.ID, long); err != nil {
			t.Fatal(err)
		}
	}
	got := must(w.Runs.Run(ctx, proj, r.ID))(t)
	params := []tracking.Pair{{"long", cut(6001, 6000)}, {"longer", cut(700_000, 6000)}, {"lr", "0.1"}, {"whole", text(6000)}}
	if diff := cmp.Diff(params, got.Params); diff != "" {
		t.Error(diff)
	}
	for _, tag := range got.Tags {
		want := map[string]string{"argv": cut(8001, 8000), "whole": text(8000), "long": cut(9000, 8000), "mlflow.runName": r.Name}[tag.Key]
		if tag.Value != want {
			t.Errorf("tag %s has %d characters", tag.Key, utf8.RuneCountInString(tag.Value))
		}
	}
	for name, tag := range map[string]tracking.Pair{ // the first would be no list any more, the second is no text
		"a list of models": {"mlflow.log-model.history", "[" + strings.Repeat(" ", 8000) + "]"},
		"no UTF-8":         {"argv", strings.Repeat("a", 8001) + "\xff"},
	} {
		if err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Tags: []tracking.Pair{tag}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Params: long.Params[1:2], Tags: long.Tags[1:]}))(t).ID
	if err := w.LoggedModels.LogLoggedModelParams(ctx, proj, m, long.Params[1:3]); err != nil {
		t.Fatal(err)
	}
	model := must(w.LoggedModels.SetLoggedModelTags(ctx, proj, m, []tracking.Pair{{"argv", text(8001)}}))(t)
	if !slices.Equal(model.Params, params[:2]) || !slices.Equal(model.Tags, []tracking.Pair{{"argv", cut(8001, 8000)}, {"long", cut(9000, 8000)}}) {
		t.Errorf("the logged model has %d params and %d tags, not as cut", len(model.Params), len(model.Tags))
	}
	var noted []string
	for _, row := range auditRows(t, w) {
		var entry struct{ Detail struct{ Cut []string } }
		if err := json.Unmarshal([]byte(row), &entry); err != nil {
			t.Fatal(err)
		}
		noted = append(noted, entry.Detail.Cut...)
	}
	if want := []string{"argv", "long", "longer", "long", "long", "longer", "long", "long", "long", "long", "longer", "argv"}; !slices.Equal(noted, want) {
		t.Errorf("the audit log says that %v were cut, want %v", noted, want)
	}
}

// TestInputsInOrder: data sets and models come in the order in which they were logged, one by
// one or at once; one that is logged again keeps its place.
func TestInputsInOrder(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	var models []tracking.LoggedModelID
	for range 4 {
		models = append(models, must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{}))(t).ID)
	}
	slices.Reverse(models)
	var datasets []tracking.DatasetInput
	for _, name := range []string{"train", "holdout", "again", "zeta", "extra"} {
		datasets = append(datasets, tracking.DatasetInput{Name: name, Digest: "d", SourceType: "local", Source: "x"})
	}
	single := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t).ID
	for i := range datasets {
		if err := w.Logging.LogInputs(ctx, proj, single, datasets[i:i+1], nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range models {
		if err := w.Logging.LogInputs(ctx, proj, single, datasets[:2], []tracking.LoggedModelID{m}); err != nil {
			t.Fatal(err)
		}
	}
	batch := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t).ID
	if err := w.Logging.LogInputs(ctx, proj, batch, datasets, models); err != nil {
		t.Fatal(err)
	}
	found, _, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(found, must(w.Runs.Run(ctx, proj, single))(t), must(w.Runs.Run(ctx, proj, batch))(t)) {
		var names []string
		for _, in := range r.Inputs {
			names = append(names, in.Name)
		}
		var linked []tracking.LoggedModelID
		for _, l := range r.Models {
			linked = append(linked, l.Model)
		}
		if !slices.Equal(names, []string{"train", "holdout", "again", "zeta", "extra"}) || !slices.Equal(linked, models) {
			t.Errorf("run %s has data sets %v and models %v, logged were %v", r.ID, names, linked, models)
		}
	}
}

// TestOrderOnDataset: each clause orders by the newest value on its own data set.
func TestOrderOnDataset(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	for name, on := range map[string][3]float64{"a": {1, 9, 3}, "b": {2, 8, 2}, "c": {3, 8, 1}} {
		m := must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Name: name}))(t).ID
		err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Metrics: []tracking.Metric{
			{Key: "acc", Value: on[0], At: 1, Model: m, DatasetName: "train", DatasetDigest: "1"},
			{Key: "acc", Value: on[1], At: 2, Model: m, DatasetName: "test", DatasetDigest: "1"},
			{Key: "acc", Value: 50 - on[2], At: 3, Step: 7, Model: m, DatasetName: "test", DatasetDigest: "2"}, // older, with a larger step
			{Key: "acc", Value: on[2], At: 4, Step: 1, Model: m, DatasetName: "test", DatasetDigest: "2"},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		by   []string
		on   []tracking.DatasetInput
		want string
	}{
		{[]string{"metrics.acc"}, nil, "cba"},
		{[]string{"metrics.acc"}, []tracking.DatasetInput{{Name: "train"}}, "abc"},
		{[]string{"metrics.acc DESC"}, []tracking.DatasetInput{{Name: "train"}}, "cba"},
		{[]string{"metrics.acc"}, []tracking.DatasetInput{{Name: "test"}}, "cba"},
		{[]string{"metrics.acc DESC", "metrics.acc"}, []tracking.DatasetInput{{Name: "test", Digest: "1"}, {Name: "test", Digest: "2"}}, "acb"},
		{[]string{"metrics.acc DESC", "metrics.acc DESC"}, []tracking.DatasetInput{{Name: "test", Digest: "1"}, {Name: "test", Digest: "2"}}, "abc"},
		{[]string{"metrics.acc", "name DESC"}, []tracking.DatasetInput{{Name: "none"}}, "cba"},
	} {
		found, _, err := w.LoggedModels.SearchLoggedModels(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 10, OrderBy: tt.by, OrderOn: tt.on})
		var names []string
		for _, m := range found {
			names = append(names, m.Name)
		}
		if got := strings.Join(names, ""); err != nil || got != tt.want {
			t.Errorf("%v on %v: %s (%v), want %s", tt.by, tt.on, got, err, tt.want)
		}
	}
}

// TestWriters: what several write into one run at the same time is all there, but for a
// param that each gives another value: one has it, and the others' batches are refused whole.
func TestWriters(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r, err := w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const writers, batches = 8, 5
	failed := make([]error, writers)
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			for i := range batches {
				b := tracking.Batch{Tags: []tracking.Pair{{Key: fmt.Sprint("t", n, i), Value: "v"}}, Metrics: []tracking.Metric{
					{Key: "m", Value: float64(n), Step: int64(i*writers + n), At: 1}, {Key: "m", Value: 1, Step: 0, At: 0}, // the second is everybody's
				}}
				if err := w.Logging.Log(ctx, proj, r.ID, b); err != nil {
					t.Errorf("writer %d: %v", n, err)
				}
			}
			failed[n] = w.Logging.Log(ctx, proj, r.ID, tracking.Batch{
				Params: []tracking.Pair{{Key: "who", Value: strconv.Itoa(n)}}, Metrics: []tracking.Metric{{Key: "won", Value: float64(n), Step: int64(n)}},
			})
		})
	}
	all.Wait()
	got, err := w.Runs.Run(ctx, proj, r.ID)
	if err != nil || len(got.Params) != 1 || len(got.Tags) < writers*batches {
		t.Fatalf("%+v %v", got, err)
	}
	points, _, err := w.Runs.History(ctx, proj, r.ID, "m", 0, "")
	if err != nil || len(points) != writers*batches+1 {
		t.Errorf("%d points, not %d: %v", len(points), writers*batches+1, err)
	}
	won, _, err := w.Runs.History(ctx, proj, r.ID, "won", 0, "")
	if err != nil || len(won) != 1 || strconv.FormatInt(won[0].Step, 10) != got.Params[0].Value {
		t.Errorf("%v won, the param is %v: %v", won, got.Params, err)
	}
	for n, err := range failed {
		if winner := strconv.Itoa(n) == got.Params[0].Value; winner != (err == nil) || !winner && !fault.Is(err, fault.Invalid) {
			t.Errorf("writer %d: %v", n, err)
		}
	}
	if last := got.Metrics[slices.IndexFunc(got.Metrics, func(m tracking.Metric) bool { return m.Key == "m" })]; last.Step != writers*batches-1 {
		t.Errorf("the latest is %+v", last)
	}
}

// TestLatestMetric compares the stored latest value with a model over random
// batches.
func TestLatestMetric(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	rapid.Check(t, func(rt *rapid.T) {
		r, err := w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
		if err != nil {
			rt.Fatal(err)
		}
		value := rapid.OneOf(rapid.Float64Range(-10, 10), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.MaxFloat64}))
		number := func(x float64) float64 {
			if math.IsNaN(x) { // MLflow keeps it as 0
				return 0
			}
			return x
		}
		type point struct {
			step, at int64
			value    float64
		}
		var want point
		have := false
		distinct := map[string]bool{}
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			var b tracking.Batch
			for range rapid.IntRange(1, 6).Draw(rt, "points") {
				p := point{rapid.Int64Range(0, 2).Draw(rt, "step"), rapid.Int64Range(0, 2).Draw(rt, "at"), value.Draw(rt, "value") + 0}
				b.Metrics = append(b.Metrics, tracking.Metric{Key: "m", Value: p.value, At: tracking.Millis(p.at), Step: p.step})
				distinct[fmt.Sprint(p)] = true
				later := p.step > want.step || p.step == want.step && (p.at > want.at || p.at == want.at &&
					number(p.value) > number(want.value))
				if !have || later {
					want, have = p, true
				}
			}
			if err := w.Logging.Log(ctx, proj, r.ID, b); err != nil {
				rt.Fatal(err)
			}
		}
		got, err := w.Runs.Run(ctx, proj, r.ID)
		if err != nil {
			rt.Fatal(err)
		}
		m := got.Metrics[0]
		if fmt.Sprint(point{m.Step, int64(m.At), m.Value}) != fmt.Sprint(want) {
			rt.Fatalf("latest %+v, want %+v", m, want)
		}
		history, _, err := w.Runs.History(ctx, proj, r.ID, "m", 0, "")
		if err != nil || len(history) != len(distinct) {
			rt.Fatalf("%d points (%v), want %d", len(history), err, len(distinct))
		}
	})
}

func TestSearchRuns(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	type seed struct {
		name  string
		auc   float64
		model string
	}
	for i, s := range []seed{{"a", 0.5, "gbm"}, {"b", 0.9, "linear"}, {"c", math.NaN(), "GBM%"}, {"d", math.Inf(1), ""}, {"e", math.Inf(-1), "gbm"}} {
		r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Name: s.name, User: "u" + s.name, Start: tracking.Millis(1000 + i)}, tracking.RunOptions{}))(t)
		b := tracking.Batch{Metrics: []tracking.Metric{{Key: "val auc", Value: s.auc}}}
		if s.model != "" {
			b.Params = []tracking.Pair{{"model", s.model}}
		}
		if err := w.Logging.Log(ctx, proj, r.ID, b); err != nil {
			t.Fatal(err)
		}
		if s.name == "a" {
			if err := w.Logging.LogInputs(ctx, proj, r.ID, []tracking.DatasetInput{{Name: "weather", Digest: "d1", SourceType: "local", Source: "{}", Tags: []tracking.Pair{{"mlflow.data.context", "training"}}}}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	none := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Name: "f", Start: 1}, tracking.RunOptions{}))(t)
	many := strings.Repeat("'0123456789abcdef0123456789abcdef',", 10_000)
	if b, _, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Filter: "run_name = 'b'", Max: 1}); err != nil || len(b) != 1 {
		t.Fatal(b, err)
	} else if end := tracking.Millis(2000); errOf(w.Runs.UpdateRun(ctx, proj, b[0].ID, tracking.RunUpdate{End: &end})) != nil {
		t.Fatal("the end of b")
	}
	if err := w.Runs.DeleteRun(ctx, proj, must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Name: "gone"}, tracking.RunOptions{}))(t).ID); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		filter, order string
		want          string
	}{
		{"", "", "edcbaf"},
		{"", "start_time ASC", "fabcde"},
		{"", "end_time", "bedcaf"},
		{"", "end_time DESC", "bedcaf"},
		{"end_time < 1e15", "", "b"},
		{"end_time != 5", "", "b"},
		{"end_time = 0", "", ""},
		{"", "metrics.`val auc` DESC", "dbaecf"},
		{"", "metrics.\"val auc\"", "eabdcf"},
		{"", "params.model ASC, ", "!Could not be parsed"},
		{"", "params.model", "ceabdf"},
		{"metrics.`val auc` > 0.4", "", "dba"},
		{"metrics.`val auc` != 0.5", "", "edcb"},
		{"metrics.`val auc` <= 0.5 and params.model = 'gbm'", "", "ea"},
		{"params.model LIKE 'gb%'", "", "ea"},
		{"params.model ILIKE 'gb%'", "", "eca"},
		{"params.model LIKE '%\\%'", "", ""},
		{"params.model IS NULL", "", "df"},
		{"params.model != 'gbm'", "", "cb"},
		{"attributes.run_name = 'b'", "", "b"},
		{"`Run Name` = 'b'", "", "b"},
		{"user_id = 'ua' AND status = 'RUNNING'", "", "a"},
		{"start_time >= 1003", "", "ed"},
		{"run_id IN ('" + string(none.ID) + "', 'x')", "", "f"},
		{"run_id NOT IN ('" + string(none.ID) + "')", "", "edcba"},
		{"run_id IN (" + many + "'" + string(none.ID) + "')", "", "f"},
		{"run_id NOT IN (" + many + "'" + string(none.ID) + "')", "", "edcba"},
		{"dataset.name = 'weather' AND datasets.context = 'training'", "", "a"},
		{"attribute.artifact_uri LIKE '%" + string(none.ID) + "%'", "", "f"},
		{"tags.`mlflow.runName` = 'd'", "", "d"},
		{"params.model = 'x' OR params.model = 'gbm'", "", "!Invalid clause(s) in filter string: 'OR'"},
		{"metrics.auc = 'x'", "", "!Expected numeric value type for metric. Found 'x'"},
		{"params.model = 3", "", "!Expected a quoted string value"},
		{"params.model > 'a'", "", "!Invalid comparator '>'"},
		{"status IN ('RUNNING')", "", "!Only ['run_id'] attributes support"},
		{"colour = 'red'", "", "!Invalid attribute key 'colour' specified"},
		{"thing.x = 'red'", "", "!Invalid entity type 'thing'"},
		{"params.model = 'gbm", "", "!not closed"},
		{"", "metrics.a SIDEWAYS", "!Invalid ordering key"},
		{"", "metrics.a,metrics.a", "!Invalid ordering key"},
	}
	for _, tt := range tests {
		t.Run(tt.filter[:min(len(tt.filter), 80)]+"|"+tt.order, func(t *testing.T) {
			in := tracking.Search{Experiments: []tracking.ExperimentID{0}, Filter: tt.filter, Max: 100}
			if tt.order != "" {
				in.OrderBy = []string{tt.order}
			}
			found, _, err := w.Runs.SearchRuns(ctx, proj, in)
			if text, bad := strings.CutPrefix(tt.want, "!"); bad {
				wantKind(t, err, fault.Invalid, text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := names(found); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("pages", func(t *testing.T) {
		var got strings.Builder
		token := ""
		for range 10 {
			found, next, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 4, Page: token})
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(names(found))
			if token = next; token == "" {
				break
			}
		}
		if got.String() != "edcbaf" {
			t.Errorf("pages gave %q", got.String())
		}
		_, _, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 4, Page: "!"})
		wantKind(t, err, fault.Invalid, "Invalid page token")
		_, _, err = w.Runs.SearchRuns(ctx, proj, tracking.Search{Max: 123456789})
		wantKind(t, err, fault.Invalid, "Invalid value 123456789 for parameter 'max_results' supplied")
	})
	t.Run("deleted", func(t *testing.T) {
		found, _, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 4, View: tracking.ViewDeleted})
		if err != nil || len(found) != 1 || found[0].Name != "gone" {
			t.Errorf("deleted runs %v %v", found, err)
		}
	})
}

func names(runs []tracking.Run) string {
	var b strings.Builder
	for _, r := range runs {
		b.WriteString(r.Name)
	}
	return b.String()
}

func TestLoggedModels(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Residency: residency.Of("AE"), Classification: "confidential"}}))(t)
	m := must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Name: "delay", Run: r.ID, Params: []tracking.Pair{{"depth", "3"}}}))(t)
	if m.Residency.String() != "AE" || m.Classification != "confidential" || m.Status != tracking.ModelPending {
		t.Fatalf("logged model %+v", m)
	}
	if err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: "auc", Value: 0.8, Model: m.ID, DatasetName: "may", DatasetDigest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	err := w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: "auc", Value: 0.8, Model: "m_01J9Z6AAAAAAAAAAAAAAAAAAAA"}}})
	wantKind(t, err, fault.NotFound, "not found")
	if err := w.Logging.LogOutputs(ctx, proj, r.ID, []tracking.ModelLink{{Model: m.ID, Step: 3}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.LoggedModels.SetLoggedModelTags(ctx, proj, m.ID, []tracking.Pair{{"t", "1"}}); err != nil {
		t.Fatal(err)
	}
	got := must(w.LoggedModels.FinalizeLoggedModel(ctx, proj, m.ID, tracking.ModelReady))(t)
	if len(got.Metrics) != 1 || len(got.Params) != 1 || len(got.Tags) != 1 || got.Status != tracking.ModelReady {
		t.Fatalf("logged model %+v", got)
	}
	// What is there is there once more without an error; another value is refused, with all of the request.
	if err := w.LoggedModels.LogLoggedModelParams(ctx, proj, m.ID, []tracking.Pair{{"depth", "3"}, {"eta", "0.1"}}); err != nil {
		t.Fatal(err)
	}
	err = w.LoggedModels.LogLoggedModelParams(ctx, proj, m.ID, []tracking.Pair{{"new", "1"}, {"depth", "4"}})
	wantKind(t, err, fault.Invalid, "Changing param values is not allowed. Param with key='depth' was already logged")
	if p := must(w.LoggedModels.LoggedModel(ctx, proj, m.ID))(t).Params; !slices.Equal(p, []tracking.Pair{{"depth", "3"}, {"eta", "0.1"}}) {
		t.Errorf("params %v", p)
	}
	for filter, want := range map[string]int{"tags.t IN ('1', '2')": 1, "tags.t NOT IN ('1')": 0, "params.depth IN ('3',) AND params.eta NOT IN ('1')": 1, "metrics.auc > 0.7": 1, "metrics.auc > 0.9": 0, "name = 'delay' AND params.depth = '3'": 1, "creation_time > 0": 1, "source_run_id = '" + string(r.ID) + "'": 1} {
		found, _, err := w.LoggedModels.SearchLoggedModels(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Filter: filter, Max: 5, OrderBy: []string{"metrics.auc DESC", "creation_timestamp"}, Datasets: []tracking.DatasetInput{{Name: "may"}}})
		if err != nil || len(found) != want {
			t.Errorf("%s: %d (%v), want %d", filter, len(found), err, want)
		}
	}
	if err := w.LoggedModels.DeleteLoggedModel(ctx, proj, m.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.LoggedModels.LoggedModel(ctx, proj, m.ID)
	wantKind(t, err, fault.NotFound, "not found")
	// Reads of what is confidential are journaled.
	before := len(w.journal.Entries())
	must(w.Runs.Run(ctx, proj, r.ID))(t)
	if len(w.journal.Entries()) != before+1 {
		t.Error("the read of a confidential run is not in the journal")
	}
}

func TestArtifacts(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	place := tracking.Place{Run: r.ID}
	put := func(name, body string) error {
		_, err := w.Artifacts.PutArtifact(ctx, proj, place, name, strings.NewReader(body))
		return err
	}
	for name, body := range map[string]string{"model/model.onnx": "old", "model/a b/ü.txt": "x", "model.txt": "y", "100%.txt": "z"} {
		if err := put(name, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("model/model.onnx", "new!"); err != nil {
		t.Fatal(err)
	}
	body, file, err := w.Artifacts.OpenArtifact(ctx, proj, place, "model/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if b, err := io.ReadAll(body); string(b) != "new!" || err != nil || file.Size != 4 {
		t.Fatalf("read %q %v, file %+v", b, err, file)
	}
	if objects := trackingtest.Objects(t, w.dir, "art_"); len(objects) != 4 {
		t.Errorf("%d objects stored, want 4: the replaced one is gone", len(objects))
	}
	list := func(dir string) string {
		entries, err := w.Artifacts.ListArtifacts(ctx, proj, place, dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			out = append(out, fmt.Sprintf("%s:%v:%d", e.Path, e.Dir, e.Size))
		}
		return strings.Join(out, " ")
	}
	if got, want := list(""), "100%.txt:false:1 model:true:0 model.txt:false:1"; got != want {
		t.Errorf("root %q, want %q", got, want)
	}
	if got, want := list("model"), "model/a b:true:0 model/model.onnx:false:4"; got != want {
		t.Errorf("model %q, want %q", got, want)
	}
	if got := list("model/model.onnx"); got != "" {
		t.Errorf("a file lists %q", got)
	}
	wantKind(t, put("model", "x"), fault.Conflict, "is a directory")
	wantKind(t, put("model.txt/x", "x"), fault.Conflict, "is a file")
	wantKind(t, put("big", strings.Repeat("x", 1<<20+1)), fault.TooLarge, "exceeds 1048576 bytes")
	if err := put("exact", strings.Repeat("x", 1<<20)); err != nil {
		t.Error("at the limit:", err)
	}
	for i := range 45 {
		if err := put(fmt.Sprint("many/", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, put("one/more", "x"), fault.TooLarge, "artifacts, the limit")
	if err := w.Artifacts.DeleteArtifacts(ctx, proj, place, "many"); err != nil {
		t.Fatal(err)
	}
	if err := w.Artifacts.DeleteArtifacts(ctx, proj, place, "many"); err != nil {
		t.Errorf("deleted again: %v", err)
	}

	// What a crash between storing and recording leaves is swept, and only it.
	orphan := blob.Ref{Project: proj, Owner: "artifacts", Key: "projects/flights/artifacts/run_x/art_01ARZ3NDEKTSV4RRFFQ69G5FAV"}
	if _, err := w.artifacts.Put(ctx, orphan, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	w.clock = w.clock.Add(48 * time.Hour)
	if n := must(w.Maintenance.Sweep(ctx, proj, 24*time.Hour))(t); n != 1 {
		t.Errorf("swept %d objects, want 1", n)
	}
	if got := list("model"); !strings.Contains(got, "model.onnx:false:4") {
		t.Errorf("after the sweep %q", got)
	}
}

// failingReader ends an upload in the middle.
type failingReader struct{ io.Reader }

func (f failingReader) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestBrokenUploadLeavesNothing(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	_, err := w.Artifacts.PutArtifact(ctx, proj, tracking.Place{Run: r.ID}, "a", failingReader{strings.NewReader("half")})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("error %v", err)
	}
	if files := must(w.Artifacts.Files(ctx, proj, tracking.Place{Run: r.ID}, ""))(t); len(files) != 0 {
		t.Errorf("files %v", files)
	}
}

// badPaths is the attack list on artifact paths.
var badPaths = []string{
	"../x", "a/../../x", "a/..", "..", ".", "./a", "a/./b", "a//b", "/etc/passwd", "//x", "a/", `..\x`, `a\b`, "C:/x", `C:\x`, "c:/", "%43:/x", "C%3a%5cx",
	"%2e%2e/x", "%2e%2e%2fx", "%252e%252e%252fx", "%25252e%25252e/x", "a/%2e%2e/b", "..%2fx", "%2fetc/passwd", "%5c..", "a%5c..%5cb", "%2e%2e/x/100%", "%252e%252e/%zz",
	"a#b", "a%23/../b", "a\x00b", "a\nb", "a\x7fb", "a\u202eb", "\xff", strings.Repeat("a/", 40) + "b", strings.Repeat("x", 256), strings.Repeat("x/", 600),
}

// TestPlainPaths: names that MLflow's server takes are kept as they are. The images are as
// clients of 2.10 to 3.10 name them, KEY%step%N%timestamp%MS%UUID; a part of such a name may
// look like an encoded character.
func TestPlainPaths(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	place := tracking.Place{Run: r.ID}
	paths := []string{
		"t:10.txt", "k:5/fold.txt", "folds/k:5.txt", "c:x", "ab:cd", ":", "what?.txt", "100%", "a%20b", "a%00b", "a%2", "عرض\u200f.png", "a&b=c+d;e@f!", "~", "a b/c  d", "...", "..a",
		"images/loss%step%23%timestamp%1753000000000%c9e1f5a0-1.png", "images/loss%step%0%timestamp%1753000000000%5c9e1f5a-1.png",
		"images/loss%step%1%timestamp%1753000000000%2f9e1f5a-1.png", "images/loss%step%2%timestamp%1753000000000%009e1f5a-1.png", "images/loss%step%3%timestamp%1753000000000%2e9e1f5a-1.png",
	}
	for _, p := range paths {
		must(w.Artifacts.PutArtifact(ctx, proj, place, p, strings.NewReader(p)))(t)
	}
	files := must(w.Artifacts.Files(ctx, proj, place, ""))(t)
	if len(files) != len(paths) {
		t.Errorf("%d files of %d", len(files), len(paths))
	}
	for _, f := range files {
		if !slices.Contains(paths, f.Path) {
			t.Errorf("nothing was stored as %q", f.Path)
		}
	}
}

func TestPathAttacks(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	place := tracking.Place{Run: r.ID}
	for _, p := range badPaths {
		t.Run(p[:min(len(p), 30)], func(t *testing.T) {
			_, err := w.Artifacts.PutArtifact(ctx, proj, place, p, strings.NewReader("x"))
			wantKind(t, err, fault.Invalid, "Invalid path")
			_, _, err = w.Artifacts.OpenArtifact(ctx, proj, place, p)
			wantKind(t, err, fault.Invalid, "Invalid path")
			_, err = w.Artifacts.ListArtifacts(ctx, proj, place, p)
			wantKind(t, err, fault.Invalid, "Invalid path")
			wantKind(t, w.Artifacts.DeleteArtifacts(ctx, proj, place, p), fault.Invalid, "Invalid path")
		})
	}
	if objects := trackingtest.Objects(t, w.dir, "projects"); len(objects) != 0 {
		t.Errorf("files were touched: %v", objects)
	}
	for _, run := range []tracking.RunID{"", "x", "../x", "run_../../x", "run_01J9Z6", tracking.RunID(strings.Repeat("a", 5000))} {
		_, err := w.Runs.Run(ctx, proj, run)
		wantKind(t, err, fault.NotFound, "not found")
	}
}

func TestPermissions(t *testing.T) {
	w, alice := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(alice, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	vera, nobody := as(t, "vera"), as(t, "nobody")
	if _, err := w.Runs.Run(vera, proj, r.ID); err != nil {
		t.Error("a viewer reads:", err)
	}
	place := tracking.Place{Run: r.ID}
	writes := map[string]func(ctx context.Context) error{
		"log": func(ctx context.Context) error {
			return w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Tags: []tracking.Pair{{"a", "b"}}})
		},
		"delete": func(ctx context.Context) error { return w.Runs.DeleteRun(ctx, proj, r.ID) },
		"put": func(ctx context.Context) error {
			_, err := w.Artifacts.PutArtifact(ctx, proj, place, "a", strings.NewReader(""))
			return err
		},
		"create": func(ctx context.Context) error {
			_, err := w.Experiments.CreateExperiment(ctx, proj, "x", nil)
			return err
		},
		"run": func(ctx context.Context) error {
			_, err := w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
			return err
		},
		"model": func(ctx context.Context) error {
			_, err := w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{})
			return err
		},
		"no name": func(ctx context.Context) error {
			_, err := w.Runs.CreateRun(ctx, "", tracking.RunSpec{}, tracking.RunOptions{})
			return err
		},
	}
	for name, act := range writes {
		wantKind(t, act(vera), fault.PermissionDenied, "")
		if err := act(nobody); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s by nobody: %v", name, err)
		}
	}
	for _, err := range []error{
		errOf(w.Runs.Run(nobody, proj, r.ID)),
		errOf(w.Artifacts.ListArtifacts(nobody, proj, place, "")),
		errOf(w.Runs.Run(identity.With(t.Context(), identity.Principal{}), proj, r.ID)),
	} {
		wantKind(t, err, fault.PermissionDenied, "")
	}
	// Another project's object does not exist, whatever the permission there.
	wantKind(t, errOf(w.Runs.Run(alice, "other", r.ID)), fault.NotFound, "not found")
	wantKind(t, errOf(w.Artifacts.ListArtifacts(alice, "other", place, "")), fault.NotFound, "not found")

	// A job's log among the files of its run needs job.logs, and nothing else does.
	names := func(ctx context.Context, run tracking.RunID) (names []string) {
		for _, dir := range []string{"", "logs"} {
			for _, e := range must(w.Artifacts.ListArtifacts(ctx, proj, tracking.Place{Run: run}, dir))(t) {
				names = append(names, e.Path)
			}
		}
		return names
	}
	job := must(w.Runs.CreateRun(alice, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}}))(t)
	for _, run := range []tracking.RunID{r.ID, job.ID} {
		for _, name := range []string{"logs/attempt-1.log", "logs/attempt-12.log", "logs/loss.txt", "plot.png"} {
			must(w.Artifacts.PutArtifact(alice, proj, tracking.Place{Run: run}, name, strings.NewReader("text")))(t)
		}
	}
	all, open := []string{"logs", "plot.png", "logs/attempt-1.log", "logs/attempt-12.log", "logs/loss.txt"}, []string{"logs", "plot.png", "logs/loss.txt"}
	before := len(auditRows(t, w))
	for _, reader := range []struct {
		who   string
		run   tracking.RunID
		files []string
	}{{"vera", r.ID, all}, {"vera", job.ID, open}, {"logan", job.ID, all}, {"alice", job.ID, all}, {"att_1", job.ID, all}} {
		ctx := as(t, reader.who)
		if diff := cmp.Diff(reader.files, names(ctx, reader.run)); diff != "" {
			t.Errorf("%s lists of %s:\n%s", reader.who, reader.run, diff)
		}
		for _, name := range all[1:] {
			body, _, err := w.Artifacts.OpenArtifact(ctx, proj, tracking.Place{Run: reader.run}, name)
			if slices.Contains(reader.files, name) {
				if err != nil {
					t.Errorf("%s reads %s of %s: %v", reader.who, name, reader.run, err)
					continue
				}
				body.Close()
				continue
			}
			wantKind(t, err, fault.PermissionDenied, "job.logs")
		}
	}
	if after := len(auditRows(t, w)); after != before {
		t.Errorf("refused writes left %d audit rows of changes", after-before)
	}
}

func errOf[T any](_ T, err error) error { return err }

// TestAttemptsKeepLabels holds that what an attempt makes carries its run's
// label, and that it reads nothing that would narrow it.
func TestAttemptsKeepLabels(t *testing.T) {
	w, alice := open(t), as(t, "alice")
	label := residency.Of("home", "AE")
	made := func(attempt string, label residency.Label, class string) tracking.Run {
		return must(w.Runs.CreateRun(alice, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{
			Job: "job_1", Attempt: attempt, Datasets: []string{"weather@1"}, Residency: label, Classification: class,
		}}))(t)
	}
	att := as(t, "att_1")
	_, err := w.Runs.CreateRun(att, proj, tracking.RunSpec{}, tracking.RunOptions{})
	wantKind(t, err, fault.PermissionDenied, "has no run whose label its outputs could inherit")
	own := made("att_1", label, "confidential")
	nested := must(w.Runs.CreateRun(att, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	if diff := cmp.Diff(own.Origin, nested.Origin); diff != "" {
		t.Error("a nested run does not inherit", diff)
	}
	if got := must(w.Runs.AttemptRun(alice, proj, "att_1"))(t); got.ID != own.ID {
		t.Errorf("the attempt's run is %s, want the one training made, %s", got.ID, own.ID)
	}
	model := must(w.LoggedModels.CreateLoggedModel(att, proj, tracking.LoggedModelSpec{}))(t)
	if diff := cmp.Diff(own.Origin, model.Origin); diff != "" {
		t.Error("a logged model does not inherit", diff)
	}
	_, err = w.Runs.CreateRun(att, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Residency: residency.Of("DE")}})
	wantKind(t, err, fault.PermissionDenied, "may not set an origin")

	narrow := made("att_2", residency.Of("AE"), "internal")
	wider := made("att_9", residency.Of("AE", "DE", "home"), "internal")
	secret := made("att_8", label, "restricted")
	wantKind(t, errOf(w.Runs.Run(att, proj, narrow.ID)), fault.PermissionDenied, "has the residency AE")
	wantKind(t, errOf(w.Runs.Run(att, proj, secret.ID)), fault.PermissionDenied, "is restricted")
	if _, err := w.Runs.Run(att, proj, wider.ID); err != nil {
		t.Error("a read that keeps the label:", err)
	}
	wantKind(t, w.Logging.Log(att, proj, wider.ID, tracking.Batch{Tags: []tracking.Pair{{"a", "b"}}}), fault.PermissionDenied, "another producer")
	if err := w.Logging.Log(att, proj, own.ID, tracking.Batch{Tags: []tracking.Pair{{"a", "b"}}}); err != nil {
		t.Error(err)
	}
	found, _, err := w.Runs.SearchRuns(att, proj, tracking.Search{Experiments: []tracking.ExperimentID{0}, Max: 50})
	if err != nil || len(found) != 3 {
		t.Errorf("the attempt's search gives %d runs (%v), want its two and the wider one", len(found), err)
	}
}

func TestEveryChangeIsAudited(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	m := must(w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{}))(t)
	for _, c := range []struct {
		name string
		act  func() error
	}{
		{"log", func() error { return w.Logging.Log(ctx, proj, r.ID, tracking.Batch{Tags: []tracking.Pair{{"a", "b"}}}) }},
		{"untag", func() error { return w.Logging.DeleteTag(ctx, proj, r.ID, "a") }},
		{"put", func() error {
			return errOf(w.Artifacts.PutArtifact(ctx, proj, tracking.Place{Model: m.ID}, "x", strings.NewReader("")))
		}},
		{"params", func() error { return w.LoggedModels.LogLoggedModelParams(ctx, proj, m.ID, []tracking.Pair{{"p", "1"}}) }},
		{"finalize", func() error { return errOf(w.LoggedModels.FinalizeLoggedModel(ctx, proj, m.ID, tracking.ModelReady)) }},
		{"tag", func() error { return w.Experiments.SetExperimentTag(ctx, proj, 0, tracking.Pair{Key: "a", Value: "b"}) }},
	} {
		before := len(auditRows(t, w))
		if err := c.act(); err != nil {
			t.Fatal(c.name, err)
		}
		rows := auditRows(t, w)
		if len(rows) != before+1 || !strings.Contains(rows[before], `"id":"alice"`) || !strings.Contains(rows[before], string(tracking.ActionWrite)) {
			t.Errorf("%s: audit rows %v", c.name, rows[before:])
		}
	}
}
