package registry_test

import (
	"context"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// measured makes a version of "delay" whose run has a metric.
func (w *world) measured(t *testing.T, metrics map[string]float64) registry.Version {
	t.Helper()
	v := w.registered(t)
	for k, m := range metrics {
		if err := w.runs.Logging.Log(as(t, "alice"), proj, v.Run, tracking.Batch{Metrics: []tracking.Metric{{Key: k, Value: m, At: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

func (w *world) govern(t *testing.T, name string, p registry.Promotion) {
	t.Helper()
	if _, _, err := w.Approvals.ApplyPolicy(as(t, "alice"), proj, name, registry.PolicySpec{Promotion: p}, false); err != nil {
		t.Fatal(err)
	}
}

// TestTwoPeople: a protected alias, stage and traffic need two people who did not make the
// version, each once, who may still approve.
func TestTwoPeople(t *testing.T) {
	w := open(t)
	alice, bob, carol := as(t, "alice"), as(t, "bob"), as(t, "carol")
	w.cfg.Authors = func(context.Context, *store.Tx, registry.Version) ([]string, error) { return []string{"dave"}, nil }
	w.cfg.May = func(ctx context.Context, a policy.Action, o policy.Object) (bool, error) {
		return w.cfg.Authz.Allow(ctx, a, o) == nil, nil
	}
	w.Services = registry.New(w.cfg)
	v := w.registered(t)
	if err := w.Models.SetAlias(alice, proj, "delay", "champion", 1); err != nil {
		t.Fatalf("without a policy: %v", err)
	}
	if err := w.Models.DeleteAlias(alice, proj, "delay", "champion"); err != nil {
		t.Fatal(err)
	}
	w.govern(t, registry.DefaultPolicy, registry.Promotion{Approvals: 2})

	refused := func(text string) {
		t.Helper()
		err := w.Models.SetAlias(alice, proj, "delay", "champion", 1)
		wantKind(t, err, fault.Conflict, text)
		if !strings.Contains(fault.HintOf(err), "falaj model approve delay 1") {
			t.Errorf("hint %q", fault.HintOf(err))
		}
		_, err = w.Versions.Transition(alice, proj, "delay", 1, registry.StageProduction, false)
		wantKind(t, err, fault.Conflict, text)
		wantKind(t, w.cleared(t, 1, "", true), fault.Conflict, text)
		wantKind(t, w.cleared(t, 1, "champion", false), fault.Conflict, text)
	}
	refused("it requires 2 approvals and has 0")
	for alias, ok := range map[string]bool{"challenger": true, "CHAMPION": false} {
		if err := w.Models.SetAlias(alice, proj, "delay", alias, 1); (err == nil) != ok {
			t.Errorf("%s: %v", alias, err)
		}
	}
	if _, err := w.Versions.Transition(alice, proj, "delay", 1, registry.StageStaging, false); err != nil {
		t.Error(err)
	}

	approve := func(ctx context.Context) error {
		_, err := w.Approvals.Review(ctx, proj, "delay", "1", registry.Approved, v.Digest, "fine")
		return err
	}
	wantKind(t, approve(alice), fault.PermissionDenied, "authors cannot approve their own versions")
	wantKind(t, approve(as(t, "dave")), fault.PermissionDenied, "authors cannot approve their own versions") // who submitted the job
	wantKind(t, approve(as(t, "erin")), fault.PermissionDenied, "")
	wantKind(t, approve(as(t, "att_2")), fault.PermissionDenied, "is not a user")
	wantKind(t, approve(as(t, "loop")), fault.PermissionDenied, "is not a user")
	wantKind(t, approve(identity.With(t.Context(), identity.Principal{Kind: identity.Service, ID: "bob", Project: proj})), fault.PermissionDenied, "is not a user")
	wantKind(t, errOf(w.Approvals.Review(bob, proj, "delay", "1", registry.Approved, "sha256:00", "")), fault.Conflict, "differs from the reviewed digest")
	wantKind(t, errOf(w.Approvals.Review(bob, proj, "delay", "9", registry.Approved, "", "")), fault.NotFound, "")
	wantKind(t, errOf(w.Approvals.Review(bob, proj, "delay", "1", "perhaps", "", "")), fault.Invalid, "verdict")
	if err := approve(bob); err != nil {
		t.Fatal(err)
	}
	wantKind(t, approve(bob), fault.Conflict, "already")
	refused("it requires 2 approvals and has 1 (by bob)")
	if err := approve(carol); err != nil {
		t.Fatal(err)
	}
	if c, err := w.Approvals.Clearance(alice, proj, "delay", "1"); err != nil || !c.Cleared || c.Given != 2 || c.Policy != "default" || len(c.Approvals) != 2 || !c.Approvals[0].Counts {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := w.Models.SetAlias(alice, proj, "delay", "champion", 1); err != nil {
		t.Fatal(err)
	}
	if err := w.Models.DeleteAlias(alice, proj, "delay", "champion"); err != nil {
		t.Fatal(err)
	}

	// Who lost the right takes their approval along, and brings it back.
	delete(w.authz, "carol")
	refused("it requires 2 approvals and has 1 (by bob)")
	w.authz["carol"] = w.authz["bob"]
	if err := w.cleared(t, 1, "champion", true); err != nil {
		t.Error(err)
	}
	// A rejection stands until its giver thinks otherwise; nothing is lost.
	if _, err := w.Approvals.Review(carol, proj, "delay", "1", registry.Rejected, "", "it is biased"); err != nil {
		t.Fatal(err)
	}
	refused("it was rejected by carol (it is biased)")
	if err := approve(carol); err != nil {
		t.Fatal(err)
	}
	if c, err := w.Approvals.Clearance(alice, proj, "delay", "1"); err != nil || !c.Cleared || len(c.Approvals) != 4 || c.Approvals[1].Counts || c.Approvals[2].Counts {
		t.Fatalf("%+v, %v", c, err)
	}
	// Another policy counts the same approvals anew.
	w.govern(t, "delay", registry.Promotion{Approvals: 3})
	refused("it requires 3 approvals and has 2 (by bob, carol)")
	w.govern(t, "delay", registry.Promotion{Approvals: 2, Aliases: []string{"best"}, Stages: []string{"Staging"}, Traffic: new(bool)})
	if err := errorsOf(w.cleared(t, 1, "best", true)); err != "" {
		t.Error(err)
	}
	// They are of one version: the next one has none.
	w.registered(t)
	wantKind(t, w.Models.SetAlias(alice, proj, "delay", "best", 2), fault.Conflict, "has 0")
	if err := w.Models.SetAlias(alice, proj, "delay", "champion", 2); err != nil { // this policy protects another
		t.Error(err)
	}
	// A model does not leave its policy by another name.
	if _, err := w.Models.RenameModel(alice, proj, "delay", "delay2"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, w.Models.SetAlias(alice, proj, "delay2", "best", 2), fault.Conflict, "has 0")
	w.govern(t, "lax", registry.Promotion{})
	wantKind(t, errOf(w.Models.RenameModel(alice, proj, "delay2", "lax")), fault.Conflict, "model policy lax")
}

func errorsOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// cleared asks as serving does.
func (w *world) cleared(t *testing.T, number int, alias string, traffic bool) error {
	t.Helper()
	return w.db.Update(as(t, "loop"), proj, func(ctx context.Context, tx *store.Tx) error {
		return w.Approvals.Cleared(ctx, tx, proj, "delay", number, alias, "", traffic)
	})
}

// TestApprovalHint: a command to paste has the model's name as one word.
func TestApprovalHint(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.registered(t)
	name := "x'y $(id);id"
	if _, err := w.Models.RenameModel(ctx, proj, "delay", name); err != nil {
		t.Fatal(err)
	}
	w.govern(t, registry.DefaultPolicy, registry.Promotion{Approvals: 2})
	err := w.Models.SetAlias(ctx, proj, name, "champion", 1)
	for _, command := range []string{`falaj model approvals 'x'\''y $(id);id' 1`, `falaj model approve 'x'\''y $(id);id' 1`} {
		if !strings.Contains(fault.HintOf(err), "`"+command+"`") {
			t.Errorf("%v: hint %q, want %s", err, fault.HintOf(err), command)
		}
	}
}

// TestGates: conditions on the run's metrics, also against the champion's.
func TestGates(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.measured(t, map[string]float64{"auc": 0.85, "val loss": 0.3})
	w.measured(t, map[string]float64{"auc": 0.84, "val loss": 0.2})
	w.measured(t, map[string]float64{"auc": math.NaN()})
	for _, test := range []struct {
		champion, version int
		gate, want        string
	}{
		{0, 1, "metrics.auc >= 0.8", ""},
		{0, 1, "metrics.auc >= 0.85", ""},
		{0, 1, "metrics.auc > 0.85", "auc is 0.85"},
		{0, 1, `metrics."val loss" < 0.25`, `val loss is 0.3`},
		{0, 2, `metrics."val loss" < 0.25`, ""},
		{0, 3, "metrics.auc >= -1e9", "auc is NaN"},
		{0, 3, "metrics.auc <= 1e9", "auc is NaN"},
		{0, 1, "metrics.f1 >= 0", "its run has no metric f1"},
		{0, 2, "metrics.auc >= champion", ""}, // there is none
		{1, 2, "metrics.auc >= champion", "auc is 0.84, and the champion, delay@1, has 0.85"},
		{1, 2, "metrics.auc >= champion - 0.02", ""},
		{1, 2, "metrics.auc >= champion.metrics.auc + 0.01", "has 0.85"},
		{1, 2, `metrics."val loss" <= champion`, ""},
		{1, 2, `metrics.auc >= champion.metrics."val loss"`, ""},
		{1, 2, "metrics.auc >= champion.metrics.f1", "the run of the champion, delay@1, has no metric f1"},
		{3, 2, "metrics.auc >= champion", "has NaN"},
		{1, 1, "metrics.auc > champion", ""}, // it is the champion
	} {
		w.govern(t, registry.DefaultPolicy, registry.Promotion{})
		if test.champion > 0 {
			if err := w.Models.SetAlias(ctx, proj, "delay", "champion", test.champion); err != nil {
				t.Fatal(err)
			}
		}
		w.govern(t, registry.DefaultPolicy, registry.Promotion{Gates: []string{test.gate}})
		err := w.cleared(t, test.version, "champion", true)
		if (err == nil) != (test.want == "") || !strings.Contains(errorsOf(err), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
		w.govern(t, registry.DefaultPolicy, registry.Promotion{})
		if err := w.Models.DeleteAlias(ctx, proj, "delay", "champion"); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []string{"", "auc >= 0.8", "metrics.auc", "metrics.auc => 1", "metrics.auc >= x", "metrics.auc >= NaN", "metrics.auc >= 1e999", "metrics.auc >= 0.8 and metrics.x > 1", "metrics.a b > 1", "metrics.auc >= champion * 2", "metrics.auc >= 1.2.3"} {
		_, _, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", registry.PolicySpec{Promotion: registry.Promotion{Gates: []string{wrong}}}, false)
		wantKind(t, err, fault.Invalid, "is not a condition")
	}
}

// TestApprovedOfWhatWasMeasured: who may write to the run cannot have people's approval of
// one result stand for another, of what the gates ask for.
func TestApprovedOfWhatWasMeasured(t *testing.T) {
	w, alice := open(t), as(t, "alice")
	w.govern(t, "delay", registry.Promotion{Approvals: 1, Gates: []string{"metrics.auc >= 0.8", "metrics.recall >= 0.5"}})
	v := w.measured(t, map[string]float64{"auc": math.NaN(), "recall": 0.5, "loss": 1})
	log := func(name string, value float64, step int64) {
		t.Helper()
		if err := w.runs.Logging.Log(alice, proj, v.Run, tracking.Batch{Metrics: []tracking.Metric{{Key: name, Value: value, At: 2, Step: step}}}); err != nil {
			t.Fatal(err)
		}
	}
	approve := func(who string) error {
		_, err := w.Approvals.Review(as(t, who), proj, "delay", "1", registry.Approved, v.Digest, "")
		return err
	}
	if err := approve("bob"); err != nil {
		t.Fatal(err)
	}
	log("auc", 0.9, 1)
	wantKind(t, w.cleared(t, 1, "champion", true), fault.Conflict, "it requires 1 approvals and has 0; auc was NaN when bob approved, and is 0.9 now")
	if c, err := w.Approvals.Clearance(alice, proj, "delay", "1"); err != nil || c.Cleared || c.Given != 0 || c.Approvals[0].Counts || c.Approvals[0].Measured["auc"] != "NaN" || len(c.Approvals[0].Measured) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if err := approve("bob"); err != nil { // of what it is now
		t.Fatal(err)
	}
	wantKind(t, approve("bob"), fault.Conflict, "already")
	log("loss", 0.1, 1) // which no gate asks for
	if err := w.cleared(t, 1, "champion", true); err != nil {
		t.Error(err)
	}
	// One that still counts is enough, and a gate that came later asks people nothing.
	if err := approve("carol"); err != nil {
		t.Fatal(err)
	}
	log("recall", 0.7, 1)
	if err := approve("carol"); err != nil {
		t.Fatal(err)
	}
	w.govern(t, "delay", registry.Promotion{Approvals: 1, Gates: []string{"metrics.auc >= 0.8", "metrics.recall >= 0.5", "metrics.loss < 1"}})
	if err := w.cleared(t, 1, "champion", true); err != nil {
		t.Error(err)
	}
}

// TestPolicies: who may set them, what is refused, and that nothing changes by a look.
func TestPolicies(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	for name, spec := range map[string]registry.PolicySpec{
		"content":   {Content: "danger"},
		"signers":   {Signers: []string{"key"}},
		"signed as": {SignedAs: "model"},
		"approvals": {Promotion: registry.Promotion{Approvals: 11}},
		"alias":     {Promotion: registry.Promotion{Aliases: []string{"latest"}}},
		"Stage":     {Promotion: registry.Promotion{Stages: []string{"Live"}}},
	} {
		_, _, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", spec, false)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	spec := registry.PolicySpec{Content: "known", Promotion: registry.Promotion{Approvals: 1}}
	wantKind(t, errOf3(w.Approvals.ApplyPolicy(as(t, "erin"), proj, "delay", spec, false)), fault.PermissionDenied, "")
	for i, want := range []project.Change{project.Created, project.Created, project.Unchanged} {
		_, change, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", spec, i == 0)
		if err != nil || change != want {
			t.Errorf("%d: %s, %v", i, change, err)
		}
	}
	spec.Content = "data"
	if p, change, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", spec, false); err != nil || change != project.Updated || p.Revision != 2 {
		t.Error(p, change, err)
	}
	if all, err := w.Approvals.Policies(as(t, "vera"), proj); err != nil || len(all) != 1 || all[0].Spec.Content != "data" || all[0].UpdatedBy != "alice" {
		t.Error(all, err)
	}
	wantKind(t, w.Approvals.DeletePolicy(as(t, "erin"), proj, "delay"), fault.PermissionDenied, "")
	if err := w.Approvals.DeletePolicy(ctx, proj, "delay"); err != nil {
		t.Error(err)
	}
	wantKind(t, w.Approvals.DeletePolicy(ctx, proj, "delay"), fault.NotFound, "delay")
	wantKind(t, errOf(w.Approvals.Policy(ctx, proj, "delay")), fault.NotFound, "delay")
}

func errOf3[A, B any](_ A, _ B, err error) error { return err }

func FuzzGate(f *testing.F) {
	for _, s := range []string{"metrics.auc >= 0.8", `metrics."a b" < champion.metrics.c - 1e3`, "metrics.x>champion"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := registry.PolicySpec{Promotion: registry.Promotion{Gates: []string{text}}}.Validate()
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// mallory may do all with models but say what is asked of them.
func (w *world) mallory(t *testing.T) context.Context {
	t.Helper()
	w.authz["mallory"] = map[string][]policy.Action{proj: {
		registry.ActionRead, registry.ActionWrite, registry.ActionPromote, registry.ActionApprove, tracking.ActionRead, tracking.ActionWrite,
	}}
	return as(t, "mallory")
}

// TestAuthorsOfCopies: who logged a model, or registered it first, is an author of whatever
// version has its files, whoever registers that.
func TestAuthorsOfCopies(t *testing.T) {
	w := open(t)
	alice, mallory := as(t, "alice"), w.mallory(t)
	w.govern(t, registry.DefaultPolicy, registry.Promotion{Approvals: 1})
	v := w.registered(t) // by alice
	mine := w.logged(t, tracking.Origin{}, map[string]string{"model/model.onnx": "another"})
	if _, err := w.Models.CreateModel(alice, proj, "copy", "", nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Models.SetAlias(alice, proj, "delay", "candidate", v.Number); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"models:/delay/1", "models:/delay@candidate", "runs:/" + string(v.Run) + "/model", "runs:/" + string(mine.ID) + "/model"} {
		c, err := w.Versions.CreateVersion(mallory, proj, "copy", registry.VersionSpec{Source: source})
		if err != nil {
			t.Fatal(source, err)
		}
		_, err = w.Approvals.Review(alice, proj, "copy", strconv.Itoa(c.Number), registry.Approved, "", "")
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: alice approved of what she made: %v", source, err)
		}
	}
	// What bears another name since, or was deleted, is hers all the same.
	if _, err := w.Models.RenameModel(alice, proj, "delay", "delay2"); err != nil {
		t.Fatal(err)
	}
	if err := w.Versions.DeleteVersion(alice, proj, "delay2", 1); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Approvals.Review(alice, proj, "copy", "2", registry.Approved, "", "")), fault.PermissionDenied, "authors cannot approve")
	if c, err := w.Approvals.Review(as(t, "bob"), proj, "copy", "2", registry.Approved, "", ""); err != nil || !c.Cleared {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestChampionStays: a gate that compares with the champion is not passed by taking the
// champion away, nor by another champion that was let through by nothing.
func TestChampionStays(t *testing.T) {
	w := open(t)
	alice, mallory := as(t, "alice"), w.mallory(t)
	w.measured(t, map[string]float64{"auc": 0.9})
	w.measured(t, map[string]float64{"auc": 0.1})
	if err := w.Models.SetAlias(alice, proj, "delay", "champion", 1); err != nil {
		t.Fatal(err)
	}
	w.govern(t, "delay", registry.Promotion{Gates: []string{"metrics.auc >= champion"}, Aliases: []string{"live"}})
	worse := "auc is 0.1, and the champion, delay@1, has 0.9"
	wantKind(t, w.Models.SetAlias(mallory, proj, "delay", "live", 2), fault.Conflict, worse)
	wantKind(t, w.Models.SetAlias(mallory, proj, "delay", "champion", 2), fault.Conflict, worse)
	for name, err := range map[string]error{
		"alias":   w.Models.DeleteAlias(mallory, proj, "delay", "champion"),
		"version": w.Versions.DeleteVersion(mallory, proj, "delay", 1),
		"model":   w.Models.DeleteModel(mallory, proj, "delay"),
	} {
		if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(fault.HintOf(err), "Move the alias champion") {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantKind(t, w.Models.SetAlias(mallory, proj, "delay", "live", 2), fault.Conflict, worse)
	if err := w.Versions.DeleteVersion(mallory, proj, "delay", 2); err != nil { // others may go
		t.Error(err)
	}
	if err := w.Models.DeleteAlias(alice, proj, "delay", "champion"); err != nil { // who governs
		t.Error(err)
	}
}

// TestWayBack: a deployment that goes back takes its alias along to what had been let
// through, but not to what was never asked.
func TestWayBack(t *testing.T) {
	w := open(t)
	w.registered(t)
	back := func() error {
		return w.db.Update(as(t, "loop"), proj, func(ctx context.Context, tx *store.Tx) error {
			return w.Models.Point(ctx, tx, proj, "delay", "champion", 1)
		})
	}
	w.govern(t, "delay", registry.Promotion{Approvals: 1, Traffic: new(bool)})
	wantKind(t, back(), fault.Conflict, "may not have the alias champion yet")
	w.govern(t, "delay", registry.Promotion{Approvals: 1})
	if err := back(); err != nil {
		t.Error(err)
	}
}

// TestRenameIsNoWayOut: a model with a policy of its own takes it along, and leaves its name free for
// one of which nothing is asked: that is for who says what is asked.
func TestRenameIsNoWayOut(t *testing.T) {
	w := open(t)
	alice, mallory := as(t, "alice"), w.mallory(t)
	w.registered(t)
	w.govern(t, "delay", registry.Promotion{Approvals: 1})
	wantKind(t, errOf(w.Models.RenameModel(mallory, proj, "delay", "old")), fault.PermissionDenied, "has its own policy")
	if _, err := w.Models.RenameModel(alice, proj, "delay", "old"); err != nil {
		t.Fatal(err)
	}
	if err := w.Approvals.DeletePolicy(alice, proj, "old"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Models.RenameModel(mallory, proj, "old", "delay"); err != nil { // it has none
		t.Error(err)
	}
}
