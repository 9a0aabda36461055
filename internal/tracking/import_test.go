package tracking_test

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// foreign is the n-th identifier that another server made.
func foreign(n int) tracking.RunID {
	return tracking.RunID(strings.Repeat("0", 24) + "abcd" + strconv.Itoa(1000+n))
}

func foreignRun(n int) tracking.ImportedRun {
	return tracking.ImportedRun{Digest: "d" + strconv.Itoa(n), Run: tracking.Run{
		ID: foreign(n), Experiment: 7, Name: "first", User: "maryam", Status: tracking.Finished, Start: 1000, End: 2000, Stage: tracking.Active,
		Params: []tracking.Pair{{"lr", "0.1"}}, Tags: []tracking.Pair{{"note", "x"}},
		Metrics: []tracking.Metric{{Key: "loss", Value: 1, At: 5, Step: 0}, {Key: "loss", Value: math.NaN(), At: 6, Step: 1}, {Key: "auc", Value: math.Inf(1), At: 6, Step: math.MaxInt64}},
	}}
}

func foreignExperiment() tracking.ImportedExperiment {
	at := time.UnixMilli(1_600_000_000_000)
	return tracking.ImportedExperiment{Digest: "e", Experiment: tracking.Experiment{ID: 7, Name: "delays", Stage: tracking.Active, Created: at, Updated: at, Tags: []tracking.Pair{{"team", "ops"}}}}
}

func results(t *testing.T, w *world, in tracking.Import) string {
	t.Helper()
	out := must(w.Imports.Import(as(t, "alice"), proj, in))(t)
	words := make([]string, len(out))
	for i, o := range out {
		words[i] = string(o.Result)
		if o.Reason != "" {
			words[i] += ": " + o.Reason
		}
		for _, lost := range o.Lost {
			words[i] += "; lost " + lost
		}
	}
	return strings.Join(words, "\n")
}

func want(t *testing.T, got string, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(lines, "\n"), got); diff != "" {
		t.Fatalf("-want +got\n%s", diff)
	}
}

func TestImport(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	batch := tracking.Import{From: "http://old", Experiments: []tracking.ImportedExperiment{foreignExperiment()}, Runs: []tracking.ImportedRun{foreignRun(1)}}

	dry := batch
	dry.DryRun = true
	want(t, results(t, w, dry), "created", "created")
	part := foreignRun(1)
	part.Part = true // of one that another batch tried
	want(t, results(t, w, tracking.Import{DryRun: true, Runs: []tracking.ImportedRun{part}}), "created")
	_, err := w.Runs.Run(ctx, proj, foreign(1))
	wantKind(t, err, fault.NotFound, "not found")
	linked := foreignRun(1) // with a model that another batch would have brought
	linked.Models = []tracking.ModelLink{{Model: "m-" + tracking.LoggedModelID(strings.Repeat("7", 32))}}
	want(t, results(t, w, tracking.Import{DryRun: true, Experiments: batch.Experiments, Runs: []tracking.ImportedRun{linked}}), "created", "created")

	before := len(auditRows(t, w))
	want(t, results(t, w, batch), "created", "created")
	if rows := auditRows(t, w); len(rows) != before+1 || !strings.Contains(rows[before], "http://old") {
		t.Fatalf("audited as %v", rows[before:])
	}
	r := must(w.Runs.Run(ctx, proj, foreign(1)))(t)
	if r.User != "maryam" || r.Start != 1000 || r.End != 2000 || r.Experiment != 7 || r.Owner != "alice" || len(r.Params) != 1 || len(r.Metrics) != 2 || !math.IsNaN(r.Metrics[1].Value) {
		t.Fatalf("the run is %+v", r)
	}
	if e := must(w.Experiments.Experiment(ctx, proj, 7))(t); e.Created.UnixMilli() != 1_600_000_000_000 || len(e.Tags) != 1 {
		t.Fatalf("the experiment is %+v", e)
	}
	want(t, results(t, w, batch), "unchanged", "unchanged")
	if rows := auditRows(t, w); len(rows) != before+1 {
		t.Fatalf("nothing was done, and audited: %v", rows[before+1:])
	}

	// What was logged here stays, whether or not the source has something new.
	if err := w.Logging.Log(ctx, proj, foreign(1), tracking.Batch{Params: []tracking.Pair{{"here", "1"}}, Metrics: []tracking.Metric{{Key: "loss", Value: 9, At: 7, Step: 2}}}); err != nil {
		t.Fatal(err)
	}
	batch.Runs[0].Digest, batch.Runs[0].Name, batch.Runs[0].Params = "another", "renamed", []tracking.Pair{{"lr", "0.2"}}
	want(t, results(t, w, batch), "unchanged", "updated")
	r = must(w.Runs.Run(ctx, proj, foreign(1)))(t)
	if diff := cmp.Diff([]tracking.Pair{{"here", "1"}, {"lr", "0.2"}}, r.Params); diff != "" || r.Name != "renamed" || r.Metrics[1].Value != 9 {
		t.Fatalf("the run is %+v\n%s", r, diff)
	}
	points, _, err := w.Runs.History(ctx, proj, foreign(1), "loss", 0, "")
	if err != nil || len(points) != 3 {
		t.Fatalf("%d points, %v", len(points), err)
	}
	if digests := must(w.Imports.Imported(ctx, proj, tracking.ImportRun, []string{string(foreign(1)), string(foreign(2))}))(t); len(digests) != 1 || digests[string(foreign(1))] != "another" {
		t.Fatalf("digests %v", digests)
	}
}

func TestImportRefuses(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	_, err := w.Imports.Import(as(t, "vera"), proj, tracking.Import{})
	wantKind(t, err, fault.PermissionDenied, "run.import")
	own := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	want(t, results(t, w, tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}}), "created")

	nowhere, stranger, undead, odd, mine, part := foreignRun(1), foreignRun(2), foreignRun(3), foreignRun(4), foreignRun(5), foreignRun(6)
	nowhere.Experiment = 99
	stranger.ID = "../x"
	undead.Stage = "undead"
	odd.Params = append(odd.Params, tracking.Pair{Key: "../up", Value: "1"}, tracking.Pair{Key: "long", Value: strings.Repeat("x", 7000)})
	odd.Models = []tracking.ModelLink{{Model: "m-00000000000000000000000000000000"}}
	odd.Metrics = append(odd.Metrics, tracking.Metric{Key: "t", At: -1})
	mine.ID = own.ID
	part.Part = true
	got := results(t, w, tracking.Import{Runs: []tracking.ImportedRun{nowhere, stranger, undead, odd, mine, part}})
	for i, part := range []string{
		"refused: No Experiment with id=99", `refused: Invalid value "../x"`, `refused: its lifecycle stage "undead"`,
		"created; lost param long: its value was truncated to 6000 characters", "refused: the identifier is already used", "refused: its first part is missing",
	} {
		if line := strings.Split(got, "\n")[i]; !strings.HasPrefix(line, part) {
			t.Errorf("%q, want %q", line, part)
		}
	}
	if n := strings.Count(got, "lost "); n != 4 {
		t.Errorf("%d losses were told, want 4:\n%s", n, got)
	}
	// An identifier is one object's, in whatever project.
	other := tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}, Runs: []tracking.ImportedRun{foreignRun(4)}}
	out := must(w.Imports.Import(ctx, "other", other))(t)
	if out[1].Result != tracking.ImportRefused {
		t.Fatalf("a run is in two projects: %+v", out[1])
	}
	if r := must(w.Runs.Run(ctx, proj, foreign(4)))(t); r.Project != proj {
		t.Fatalf("the run is in %s", r.Project)
	}
	_, err = w.Imports.Import(ctx, proj, tracking.Import{Runs: make([]tracking.ImportedRun, tracking.MaxImportItems+1)})
	wantKind(t, err, fault.TooLarge, "at most 1000 items")
}

func TestImportNumbers(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	for range 7 {
		must(w.Experiments.CreateExperiment(ctx, proj, "e"+strconv.Itoa(int(w.clock.UnixNano())), nil))(t)
		w.clock = w.clock.Add(time.Second)
	}
	out := must(w.Imports.Import(ctx, proj, tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}}))(t)
	if out[0].Result != tracking.ImportCreated || out[0].Experiment != 8 {
		t.Fatalf("number 7 is taken, and got %+v", out[0])
	}
	again := foreignExperiment()
	again.Digest, again.Stage = "now", tracking.Deleted
	out = must(w.Imports.Import(ctx, proj, tracking.Import{Experiments: []tracking.ImportedExperiment{again}}))(t)
	if e := must(w.Experiments.Experiment(ctx, proj, 8))(t); out[0].Result != tracking.ImportUpdated || e.Stage != tracking.Deleted {
		t.Fatalf("%+v, %+v", out[0], e)
	}
}

// TestImportSameName: an experiment that was made here has its runs and its stage, whatever
// became of one of its name elsewhere.
func TestImportSameName(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	theirs := foreignExperiment()
	own := must(w.Experiments.CreateExperiment(ctx, proj, theirs.Name, nil))(t).ID
	before := must(w.Experiments.Experiment(ctx, proj, own))(t)
	bring := func(digest string, stage tracking.Stage) tracking.ImportOutcome {
		t.Helper()
		theirs.Digest, theirs.Stage = digest, stage
		return must(w.Imports.Import(ctx, proj, tracking.Import{Experiments: []tracking.ImportedExperiment{theirs}}))(t)[0]
	}
	for n, step := range []struct {
		digest string
		stage  tracking.Stage
		want   tracking.ImportResult
		lost   int
	}{
		{"one", tracking.Deleted, tracking.ImportUpdated, 1},
		{"one", tracking.Deleted, tracking.ImportUnchanged, 1},
		{"two", tracking.Active, tracking.ImportUnchanged, 0},
		{"three", tracking.Deleted, tracking.ImportUnchanged, 1},
	} {
		out := bring(step.digest, step.stage)
		if out.Result != step.want || out.LostCount != step.lost || out.Experiment != own {
			t.Errorf("%d: %+v", n, out)
		}
		if e := must(w.Experiments.Experiment(ctx, proj, own))(t); e.Stage != tracking.Active || e.Updated.Before(before.Updated) {
			t.Fatalf("%d: what was made here is %s, of %s", n, e.Stage, e.Updated)
		}
	}
}

func TestImportFiles(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	gone := foreignRun(1)
	gone.Stage = tracking.Deleted
	place := tracking.Place{Run: gone.ID}
	put := func(ctx context.Context, place tracking.Place, name string) error {
		_, err := w.Imports.ImportArtifact(ctx, proj, place, name, strings.NewReader("x"))
		return err
	}
	wantKind(t, put(ctx, place, "a.txt"), fault.NotFound, "was not imported")
	results(t, w, tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}, Runs: []tracking.ImportedRun{gone}})
	if err := put(ctx, place, "d/a.txt"); err != nil {
		t.Fatal(err)
	}
	if files := must(w.Artifacts.Files(ctx, proj, place, ""))(t); len(files) != 1 || files[0].Path != "d/a.txt" {
		t.Fatalf("files %v", files)
	}
	wantKind(t, put(ctx, place, "../a.txt"), fault.Invalid, "Invalid path")
	wantKind(t, put(as(t, "vera"), place, "b.txt"), fault.PermissionDenied, "run.import")
	own := must(w.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{}))(t)
	wantKind(t, put(ctx, tracking.Place{Run: own.ID}, "b.txt"), fault.NotFound, "was not imported")
}

func TestImportModels(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	at := time.UnixMilli(1_600_000_000_000)
	m := tracking.ImportedModel{Digest: "m", LoggedModel: tracking.LoggedModel{
		ID: "m-0123456789abcdef0123456789abcdef", Experiment: 7, Name: "tree", Type: "xgboost", Run: foreign(1), Status: tracking.ModelReady, Stage: tracking.Active,
		Created: at, Updated: at.Add(time.Second), Params: []tracking.Pair{{"depth", "3"}}, Tags: []tracking.Pair{{"k", "v"}},
		Metrics: []tracking.Metric{{Key: "auc", Value: 0.5, At: 3, Run: foreign(1), DatasetName: "flights"}},
	}}
	run := foreignRun(1)
	run.Models = []tracking.ModelLink{{Model: m.ID, Output: true, Step: 4}}
	batch := tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}, Models: []tracking.ImportedModel{m}, Runs: []tracking.ImportedRun{run}}
	want(t, results(t, w, batch), "created", "created", "created")
	want(t, results(t, w, batch), "unchanged", "unchanged", "unchanged")
	got := must(w.LoggedModels.LoggedModel(ctx, proj, m.ID))(t)
	if !got.Created.Equal(at) || got.Run != foreign(1) || len(got.Metrics) != 1 || got.Metrics[0].DatasetName != "flights" || len(got.Params) != 1 || len(got.Tags) != 1 {
		t.Fatalf("the model is %+v", got)
	}
	if r := must(w.Runs.Run(ctx, proj, foreign(1)))(t); len(r.Models) != 1 || r.Models[0].Step != 4 {
		t.Fatalf("the run made %v", r.Models)
	}
}

// TestImportParts: however a history is cut into parts, and wherever an import of it
// was cut off and begun again, the run is the same in the end.
func TestImportParts(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	results(t, w, tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}})
	n := 100
	rapid.Check(t, func(rt *rapid.T) {
		n++
		run := foreignRun(n)
		run.Metrics = nil
		length := rapid.IntRange(0, 40).Draw(rt, "points")
		for i := range length {
			run.Metrics = append(run.Metrics, tracking.Metric{Key: "k" + strconv.Itoa(i%3), Value: float64(i), At: tracking.Millis(i), Step: int64(i)})
		}
		var parts []tracking.ImportedRun
		for rest := run.Metrics; ; {
			cut := rapid.IntRange(0, len(rest)).Draw(rt, "cut")
			if len(parts) > 4 {
				cut = len(rest)
			}
			p := run
			if len(parts) > 0 {
				p = tracking.ImportedRun{Part: true, Digest: run.Digest}
				p.ID = run.ID
			}
			p.Metrics, rest = rest[:cut], rest[cut:]
			p.More = len(rest) > 0
			parts = append(parts, p)
			if !p.More {
				break
			}
		}
		send := func(parts []tracking.ImportedRun) {
			for _, p := range parts {
				if _, err := w.Imports.Import(ctx, proj, tracking.Import{Runs: []tracking.ImportedRun{p}}); err != nil {
					rt.Fatal(err)
				}
			}
		}
		send(parts[:rapid.IntRange(0, len(parts)).Draw(rt, "cut off")])
		send(parts)
		r, err := w.Runs.Run(ctx, proj, run.ID)
		if err != nil {
			rt.Fatal(err)
		}
		total := 0
		for _, m := range r.Metrics {
			points, _, err := w.Runs.History(ctx, proj, run.ID, m.Key, 0, "")
			if err != nil || m.Value != points[len(points)-1].Value {
				rt.Fatal(m, points, err)
			}
			total += len(points)
		}
		if total != length {
			rt.Fatalf("%d points, want %d", total, length)
		}
	})
}

// TestImportMerges: what the source changed since the last import comes, what was changed here
// stays, and what both changed stays and is reported each time.
func TestImportMerges(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	experiment, run := foreignExperiment(), foreignRun(1)
	model := tracking.ImportedModel{Digest: "m", LoggedModel: tracking.LoggedModel{
		ID: "m-0123456789abcdef0123456789abcdef", Experiment: 7, Name: "tree", Status: tracking.ModelReady, Stage: tracking.Active, Created: time.UnixMilli(1), Updated: time.UnixMilli(2),
	}}
	tags := func(values ...string) (out []tracking.Pair) {
		for i := 0; i < len(values); i += 2 {
			out = append(out, tracking.Pair{Key: values[i], Value: values[i+1]})
		}
		return out
	}
	first := tags("both", "1", "gone", "1", "here", "1", "removed", "1", "there", "1")
	experiment.Tags, run.Tags, model.Tags = first, first, first
	batch := func() tracking.Import {
		return tracking.Import{Experiments: []tracking.ImportedExperiment{experiment}, Models: []tracking.ImportedModel{model}, Runs: []tracking.ImportedRun{run}}
	}
	want(t, results(t, w, batch()), "created", "created", "created")

	ours := must(w.Experiments.Experiment(ctx, proj, 7))(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range tags("both", "ours", "here", "ours", "own", "ours") {
		check(w.Experiments.SetExperimentTag(ctx, proj, 7, tag))
		check(w.Logging.Log(ctx, proj, run.ID, tracking.Batch{Tags: []tracking.Pair{tag}}))
		must(w.LoggedModels.SetLoggedModelTags(ctx, proj, model.ID, []tracking.Pair{tag}))(t)
	}
	check(w.Logging.DeleteTag(ctx, proj, run.ID, "removed"))
	check(w.Experiments.DeleteExperimentTag(ctx, proj, 7, "removed"))
	check(w.LoggedModels.DeleteLoggedModelTag(ctx, proj, model.ID, "removed"))
	name := "ours"
	must(w.Runs.UpdateRun(ctx, proj, run.ID, tracking.RunUpdate{Name: &name}))(t)

	second := tags("both", "theirs", "here", "1", "new", "2", "removed", "1", "there", "2")
	experiment.Tags, run.Tags, model.Tags = second, second, second
	experiment.Digest, run.Digest, model.Digest = "e2", "r2", "m2"
	experiment.Name, run.Status, model.Name = "late", tracking.Failed, "bush"
	const lost = `; lost tag both was changed in the source, to "theirs", and in Falaj, to "ours": Falaj's value stays`
	want(t, results(t, w, batch()), "updated"+lost, "updated"+lost, "updated"+lost)
	all := tags("both", "ours", "here", "ours", "new", "2", "own", "ours", "there", "2")
	see := func() {
		t.Helper()
		e := must(w.Experiments.Experiment(ctx, proj, 7))(t)
		r, m := must(w.Runs.Run(ctx, proj, run.ID))(t), must(w.LoggedModels.LoggedModel(ctx, proj, model.ID))(t)
		r.Tags = slices.DeleteFunc(r.Tags, func(p tracking.Pair) bool { return p.Key == "mlflow.runName" })
		for _, has := range [][]tracking.Pair{e.Tags, r.Tags, m.Tags} {
			if diff := cmp.Diff(all, has); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		}
		if e.Name != "late" || e.ID != ours.ID || r.Name != "ours" || r.Status != tracking.Failed || m.Name != "bush" {
			t.Errorf("%s %d, %s %s, %s", e.Name, e.ID, r.Name, r.Status, m.Name)
		}
	}
	see()
	want(t, results(t, w, batch()), "unchanged"+lost, "unchanged"+lost, "unchanged"+lost)
	see()
	seen := must(w.Imports.Imported(ctx, proj, tracking.ImportRun, []string{string(run.ID)}))(t)
	if seen[string(run.ID)] == run.Digest {
		t.Error("a run with a conflict would not be sent again")
	}

	// A run in parts has its conflicts, too, whichever batch has the last part.
	run.More, run.Digest = true, "r3"
	want(t, results(t, w, tracking.Import{Runs: []tracking.ImportedRun{run}}), "updated"+lost)
	rest := tracking.ImportedRun{Part: true, Digest: "r3"}
	rest.ID = run.ID
	want(t, results(t, w, tracking.Import{Runs: []tracking.ImportedRun{rest}}), "updated")
	want(t, results(t, w, tracking.Import{Runs: []tracking.ImportedRun{run, rest}}), "unchanged"+lost, "unchanged")

	// Agreed, nothing is left to report.
	run.More = false
	for _, list := range []*[]tracking.Pair{&experiment.Tags, &run.Tags, &model.Tags} {
		*list = tags("both", "ours", "here", "1", "new", "2", "removed", "1", "there", "2")
	}
	experiment.Digest, run.Digest, model.Digest = "e4", "r4", "m4"
	results(t, w, batch())
	want(t, results(t, w, batch()), "unchanged", "unchanged", "unchanged")
	see()
}

// TestImportRenamed: an experiment that was renamed in the source or here is the same one, and
// a name that another has is not taken.
func TestImportRenamed(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	e := foreignExperiment()
	bring := func(name, digest string) string {
		e.Name, e.Digest = name, digest
		return results(t, w, tracking.Import{Experiments: []tracking.ImportedExperiment{e}})
	}
	named := func() string { return must(w.Experiments.Experiment(ctx, proj, 7))(t).Name }
	want(t, bring("delays", "1"), "created")
	want(t, bring("late", "2"), "updated")
	want(t, bring("late", "2"), "unchanged")
	if named() != "late" {
		t.Fatal(named())
	}
	must(w.Experiments.CreateExperiment(ctx, proj, "taken", nil))(t)
	const taken = "; lost it was renamed to taken in the source, a name that another experiment has in Falaj: it stays late"
	want(t, bring("taken", "3"), "unchanged"+taken)
	want(t, bring("taken", "3"), "unchanged"+taken)
	if err := w.Experiments.RenameExperiment(ctx, proj, 7, "ours"); err != nil {
		t.Fatal(err)
	}
	want(t, bring("late", "4"), "unchanged")
	want(t, bring("later", "5"), `unchanged; lost name was changed in the source, to "later", and in Falaj, to "ours": Falaj's value stays`)
	if found, _, err := w.Experiments.SearchExperiments(ctx, proj, tracking.Search{Max: 10}); err != nil || len(found) != 3 || named() != "ours" {
		t.Fatal(found, err)
	}
}
