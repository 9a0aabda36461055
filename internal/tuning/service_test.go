package tuning_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

const proj = "flights"

var unit = tuning.Param{Value: 0.5, Distribution: `{"name": "FloatDistribution", "attributes": {"low": 0, "high": 1, "log": false, "step": null}}`}

type world struct {
	*tuning.Service
	db      *store.DB
	runs    tracking.Services
	journal *trackingtest.Journal
}

func open(t *testing.T) *world {
	t.Helper()
	db := storetest.SQLite(t, trackingsql.Migrations, tuningsql.Migrations)
	may := trackingtest.Policy{
		"alice": {proj: {"*"}}, "vera": {proj: {tuning.ActionRead}}, "otto": {"other": {"*"}},
		"att_here": {proj: {"*"}}, "att_away": {proj: {"*"}}, "att_secret": {proj: {"*"}}, "att_new": {proj: {"*"}},
	}
	w := &world{db: db, journal: &trackingtest.Journal{}}
	w.runs = tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: may})
	w.Service = tuning.New(tuning.Config{DB: db, Store: tuningsql.Store{}, Authz: may, Journal: w.journal, Origins: w.runs.Origins})
	return w
}

func as(t *testing.T, who string) context.Context {
	t.Helper()
	kind := identity.User
	if strings.HasPrefix(who, "att_") {
		kind = identity.Attempt
	}
	return identity.With(t.Context(), identity.Principal{Kind: kind, ID: who, Project: proj})
}

func (w *world) study(t *testing.T, who, name string) tuning.StudyID {
	t.Helper()
	id, err := w.Create(as(t, who), tuning.Study{Project: proj, Name: name, Directions: []tuning.Direction{tuning.Minimize}})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// acts are the audit rows' details, in order.
func (w *world) acts(t *testing.T) (out []map[string]any) {
	t.Helper()
	rows, _, err := w.db.ReadStream(t.Context(), "audit", store.Position{}, 500)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		var e struct {
			Action, Object string
			Detail         map[string]any
		}
		if err := json.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(e.Action, "sweep.") {
			out = append(out, e.Detail)
		}
	}
	return out
}

// TestRights: who may not do a thing does not, and learns nothing.
func TestRights(t *testing.T) {
	w := open(t)
	id := w.study(t, "alice", "a")
	trial, err := w.CreateTrial(as(t, "alice"), proj, id, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	before := len(w.acts(t))
	reads := map[string]func(ctx context.Context) error{
		"study":   func(ctx context.Context) error { _, err := w.Study(ctx, proj, id); return err },
		"named":   func(ctx context.Context) error { _, err := w.StudyNamed(ctx, proj, "a"); return err },
		"list":    func(ctx context.Context) error { _, _, err := w.List(ctx, proj, 0, 10); return err },
		"trial":   func(ctx context.Context) error { _, err := w.Trial(ctx, proj, trial); return err },
		"trials":  func(ctx context.Context) error { _, err := w.Trials(ctx, proj, id, 0, nil, 10); return err },
		"number":  func(ctx context.Context) error { _, err := w.TrialNumbered(ctx, proj, id, 0); return err },
		"missing": func(ctx context.Context) error { _, err := w.Study(ctx, proj, id+1); return nothing(err) },
	}
	writes := map[string]func(ctx context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := w.Create(ctx, tuning.Study{Project: proj, Name: "b", Directions: []tuning.Direction{tuning.Maximize}})
			return err
		},
		"trial": func(ctx context.Context) error { _, err := w.CreateTrial(ctx, proj, id, nil, ""); return err },
		"param": func(ctx context.Context) error { return w.SetParam(ctx, proj, trial, "x", unit) },
		"state": func(ctx context.Context) error {
			_, err := w.SetState(ctx, proj, trial, tuning.Failed, nil, "")
			return err
		},
		"intermediate": func(ctx context.Context) error { return w.SetIntermediate(ctx, proj, trial, 1, 1) },
		"attribute":    func(ctx context.Context) error { return w.SetTrialAttribute(ctx, proj, trial, tuning.User, "k", "1") },
		"of the study": func(ctx context.Context) error { return w.SetStudyAttribute(ctx, proj, id, tuning.User, "k", "1") },
		"delete":       func(ctx context.Context) error { return w.Delete(ctx, proj, id) },
	}
	for name, do := range reads {
		if err := do(as(t, "otto")); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s as one of another project: %v", name, err)
		}
		if err := do(as(t, "vera")); err != nil {
			t.Errorf("%s as a viewer: %v", name, err)
		}
	}
	for name, do := range writes {
		for _, who := range []string{"otto", "vera"} {
			if err := do(as(t, who)); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("%s as %s: %v", name, who, err)
			}
		}
	}
	if acts := w.acts(t); len(acts) != before {
		t.Errorf("who may not did %v", acts[before:])
	}
	for _, name := range []string{"create", "trial", "param", "intermediate", "attribute", "of the study", "state", "delete"} {
		if err := writes[name](as(t, "alice")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// nothing is the error when what is missing was found missing by one who may look.
func nothing(err error) error {
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// TestAudited: a trial's row of its end says how much it reported, and the reports
// have no rows of their own.
func TestAudited(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	id := w.study(t, "alice", "a")
	trial, err := w.CreateTrial(ctx, proj, id, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	begun := len(w.acts(t))
	for step := range int64(100) {
		if err := w.SetIntermediate(ctx, proj, trial, step, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.SetParam(ctx, proj, trial, "x", unit); err != nil {
		t.Fatal(err)
	}
	if acts := w.acts(t); len(acts) != begun {
		t.Errorf("reports are on record one by one: %v", acts[begun:])
	}
	for range 2 { // the repetition is no other act
		if moved, err := w.SetState(ctx, proj, trial, tuning.Complete, []float64{0.1}, "key"); !moved || err != nil {
			t.Fatal(moved, err)
		}
	}
	if err := w.Delete(ctx, proj, id); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, a := range w.acts(t) {
		b, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, string(b))
	}
	want := []string{
		`{"act":"create","id":1}`,
		`{"act":"trial","state":"running","trial":0}`,
		`{"act":"trial","attributes":0,"params":1,"reports":100,"state":"complete","trial":0}`,
		`{"act":"delete","id":1,"trials":1}`,
	}
	if len(said) == 5 && said[2] == said[3] {
		said = slices.Delete(said, 3, 4)
		t.Error("the repetition is on record, too")
	}
	if !slices.Equal(said, want) {
		t.Errorf("on record are\n%s", strings.Join(said, "\n"))
	}
}

// TestLabels: a sweep is where the jobs may be that wrote to it, and only jobs of the
// same label read it.
func TestLabels(t *testing.T) {
	w := open(t)
	for who, origin := range map[string]tracking.Origin{
		"att_here": {}, "att_away": {Residency: residency.Of("AE")}, "att_secret": {Classification: "restricted"},
	} {
		origin.Attempt = who
		if _, err := w.runs.Runs.CreateRun(as(t, "alice"), proj, tracking.RunSpec{}, tracking.RunOptions{Origin: origin}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Create(as(t, "att_new"), tuning.Study{Project: proj, Name: "x", Directions: []tuning.Direction{tuning.Minimize}}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an attempt whose label is not known: %v", err)
	}
	id := w.study(t, "att_secret", "secret")
	if _, err := w.CreateTrial(as(t, "att_secret"), proj, id, nil, ""); err != nil {
		t.Error(err)
	}
	if _, err := w.Trials(as(t, "att_here"), proj, id, 0, nil, 10); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a job reads what is restricted and makes what is not: %v", err)
	}
	if seen, _, err := w.List(as(t, "att_here"), proj, 0, 10); err != nil || len(seen) != 0 {
		t.Errorf("it sees %v %v", seen, err)
	}
	if n := len(w.journal.Entries()); n != 0 {
		t.Errorf("%d reads are on record that did not happen", n)
	}
	if _, err := w.Trials(as(t, "alice"), proj, id, 0, nil, 10); err != nil {
		t.Error(err)
	}
	if n := len(w.journal.Entries()); n != 1 {
		t.Errorf("%d reads of what is restricted are on record", n)
	}

	shared := w.study(t, "alice", "shared")
	trial, err := w.CreateTrial(as(t, "att_here"), proj, shared, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	// Another label joins: it may read what is less, and leaves it as narrow as it is.
	if err := w.SetTrialAttribute(as(t, "att_secret"), proj, trial, tuning.User, "k", "1"); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Study(as(t, "alice"), proj, shared); err != nil || got.Classification != "restricted" {
		t.Errorf("the sweep is %q, %v", got.Classification, err)
	}
	if err := w.SetIntermediate(as(t, "att_here"), proj, trial, 0, 0); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("the first job goes on: %v", err)
	}
	// What may be in the Emirates only, and what may be at home only, meet nowhere.
	if _, err := w.CreateTrial(as(t, "att_away"), proj, w.study(t, "alice", "home"), nil, ""); err == nil {
		t.Error("a sweep of home takes what may not be there")
	}
}

// TestJobEnded: the trials that a job left running have failed when it has ended, and no others.
func TestJobEnded(t *testing.T) {
	w := open(t)
	alice := as(t, "alice")
	if _, err := w.runs.Runs.CreateRun(alice, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_here"}}); err != nil {
		t.Fatal(err)
	}
	id := w.study(t, "alice", "a")
	inJob := func(job string) context.Context {
		return identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_here", Name: job, Project: proj})
	}
	add := func(ctx context.Context, template *tuning.Trial) tuning.TrialID {
		trial, err := w.CreateTrial(ctx, proj, id, template, "")
		if err != nil {
			t.Fatal(err)
		}
		return trial
	}
	move := func(ctx context.Context, trial tuning.TrialID, state tuning.State, values ...float64) {
		if moved, err := w.SetState(ctx, proj, trial, state, values, ""); err != nil || !moved {
			t.Fatal(moved, err)
		}
	}
	left, done, other, users := add(inJob("job_1"), nil), add(inJob("job_1"), nil), add(inJob("job_2"), nil), add(alice, nil)
	move(inJob("job_1"), done, tuning.Complete, 1)
	waiting, claimed := add(alice, &tuning.Trial{State: tuning.Waiting}), add(alice, &tuning.Trial{State: tuning.Waiting})
	move(inJob("job_1"), claimed, tuning.Running)
	sweeps := add(alice, nil) // as package sweep makes it
	if err := w.SetTrialAttribute(alice, proj, sweeps, tuning.System, "falaj:job", `"job_1"`); err != nil {
		t.Fatal(err)
	}
	before := len(w.acts(t))
	for range 2 {
		err := w.db.Update(t.Context(), proj, func(ctx context.Context, tx *store.Tx) error {
			return w.JobEnded(identity.With(ctx, identity.Loop("trials of jobs")), tx, proj, "job_1")
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for trial, want := range map[tuning.TrialID]tuning.State{
		left: tuning.Failed, claimed: tuning.Failed, done: tuning.Complete, other: tuning.Running, users: tuning.Running, sweeps: tuning.Running, waiting: tuning.Waiting,
	} {
		got, err := w.Trial(alice, proj, trial)
		if err != nil || got.State != want || want == tuning.Failed && got.Completed.IsZero() {
			t.Errorf("trial %d is %s, want %s (%v)", got.Number, got.State, want, err)
		}
	}
	if acts := w.acts(t)[before:]; len(acts) != 2 || acts[0]["reason"] != "its job ended" {
		t.Errorf("audit %v", acts)
	}
}
