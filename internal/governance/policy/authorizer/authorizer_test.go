package authorizer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policysql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/decisions.txt")

// TestEveryDecision asks for every action as every role, in the project and in
// the installation, and compares with a table that people can read.
func TestEveryDecision(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Project(t, "other")
	type caller struct {
		name string
		p    identity.Principal
	}
	var callers []caller
	for _, r := range project.Roles {
		callers = append(callers, caller{string(r), w.User(t, string(r)+"-of-flights", "flights", r)})
	}
	for _, r := range []project.Role{project.Admin, project.Auditor} {
		callers = append(callers, caller{"system " + string(r), w.User(t, string(r)+"-of-all", "", r)})
	}
	callers = append(callers,
		caller{"stranger", w.User(t, "stranger", "")},
		caller{"neighbour", w.User(t, "neighbour", "other", project.Admin)},
		caller{"attempt", identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: "flights", Scopes: allScopes()}},
		caller{"foreign attempt", identity.Principal{Kind: identity.Attempt, ID: "att_2", Project: "other", Scopes: allScopes()}},
		caller{"bare attempt", identity.Principal{Kind: identity.Attempt, ID: "att_3", Project: "flights"}},
		caller{"loop", identity.Loop("placer")},
	)
	objects := []struct {
		name   string
		object func(p identity.Principal) policy.Object
	}{
		{"object", func(identity.Principal) policy.Object {
			return policy.Object{Project: "flights", Kind: "thing", Name: "x@1", Classification: "internal", Owner: "usr_other"}
		}},
		{"own object", func(p identity.Principal) policy.Object {
			return policy.Object{Project: "flights", Kind: "thing", Name: "x@1", Classification: "internal", Owner: p.ID}
		}},
		{"confidential object", func(identity.Principal) policy.Object {
			return policy.Object{Project: "flights", Kind: "thing", Name: "x@1", Classification: "confidential"}
		}},
		{"unclassified object", func(identity.Principal) policy.Object {
			return policy.Object{Project: "flights", Kind: "thing", Name: "x@1"}
		}},
		{"restricted object", func(identity.Principal) policy.Object {
			return policy.Object{Project: "flights", Kind: "thing", Name: "x@1", Classification: "restricted"}
		}},
		{"object of the installation", func(identity.Principal) policy.Object {
			return policy.Object{Kind: "thing", Name: "x", Classification: "internal"}
		}},
		{"gate of the project", func(identity.Principal) policy.Object { return policy.Object{Project: "flights"} }},
		{"gate of the installation", func(identity.Principal) policy.Object { return policy.Object{} }},
	}
	var got strings.Builder
	plain := map[policy.Action]string{}
	for i, o := range objects {
		fmt.Fprintf(&got, "# %s\n", o.name)
		if i > 0 {
			fmt.Fprintf(&got, "(where it differs from %s)\n", objects[0].name)
		}
		for _, d := range policy.Actions() {
			var allowed []string
			for _, c := range callers {
				w.Journal.Take()
				err := w.Authority.Allow(identity.With(t.Context(), c.p), d.Action, o.object(c.p))
				entries := w.Journal.Take()
				switch {
				case err == nil && len(entries) == 0:
					allowed = append(allowed, c.name)
				case fault.Is(err, fault.PermissionDenied), fault.Is(err, fault.NotFound):
					if len(entries) != 1 || entries[0].Outcome != audit.Refused || entries[0].Actor.ID != c.p.ID || entries[0].Action != string(d.Action) || entries[0].Reason == "" {
						t.Errorf("%s, %s: the refusal's record is %+v", c.name, d.Action, entries)
					}
				default:
					t.Errorf("%s, %s: %v with the records %v", c.name, d.Action, err, entries)
				}
				if ok, perr := w.Authority.Permits(identity.With(t.Context(), c.p), d.Action, o.object(c.p)); perr != nil || ok != (err == nil) {
					t.Errorf("%s, %s: Permits says %v, %v where Allow says %v", c.name, d.Action, ok, perr, err)
				}
			}
			row := strings.TrimSpace(fmt.Sprintf("%-20s %s", d.Action, strings.Join(allowed, ", "))) + "\n"
			if i == 0 {
				plain[d.Action] = row
			}
			if i == 0 || row != plain[d.Action] {
				got.WriteString(row)
			}
		}
		got.WriteString("\n")
	}
	const path = "testdata/decisions.txt"
	if *rewrite {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("decisions differ from %s (-rewrite after thought):\n%s", path, diff)
	}
}

func allScopes() []string {
	var scopes []string
	for _, d := range policy.Actions() {
		scopes = append(scopes, string(d.Action))
	}
	return scopes
}

// TestListMatchesDecision holds actions.go and Cedar together: with nothing else
// in play, a role has exactly the actions that the list gives it.
func TestListMatchesDecision(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	for _, r := range project.Roles {
		ctx := identity.With(t.Context(), w.User(t, string(r)+"-of-flights", "flights", r))
		for _, d := range policy.Actions() {
			object := policy.Object{Project: "flights", Kind: "thing", Name: "x", Classification: "public", Owner: "usr_other"}
			got, err := w.Authority.Permits(ctx, d.Action, object)
			if want := d.Has(r) && !d.Installation; err != nil || got != want {
				t.Errorf("%s may %s: %v, %v, want %v", r, d.Action, got, err, want)
			}
		}
	}
}

func TestRefusalSaysWhatToDo(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	viewer := w.User(t, "alice", "flights", project.Viewer)
	stranger := w.User(t, "mallory", "")
	narrow := viewer
	narrow.Scopes = []string{"model.read"}
	weather := policy.Object{Project: "flights", Kind: "dataset", Name: "weather@1", Classification: "internal"}
	if _, _, err := w.Authority.ApplyPolicy(w.AsAdmin(t.Context()), authorizer.PolicyRequest{Project: "flights", Name: "season", Spec: authorizer.Spec{
		Cedar: `@because("nothing is deleted in the season") forbid (principal, action == Action::"dataset.delete", resource);`,
	}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Authority.ApplyPolicy(w.AsAdmin(t.Context()), authorizer.PolicyRequest{Project: "flights", Name: "sum", Spec: authorizer.Spec{
		Cedar: `forbid (principal, action == Action::"feature.apply", resource) when { 9223372036854775807 + 1 > 0 };`,
	}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		p      identity.Principal
		action policy.Action
		object policy.Object
		kind   fault.Kind
		want   string
		hint   string
	}{
		{"a policy that fails", w.Admin, "feature.apply", policy.Object{Project: "flights", Kind: "feature_view", Name: "delay"}, fault.PermissionDenied, "policy sum#1 could not be evaluated", "No role lifts it. `falaj describe policy sum -p flights`"},
		{"a job", identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: "flights", Name: "job"}, "dataset.import", weather, fault.PermissionDenied, "", "service account's token as a secret"},
		{"role", viewer, "dataset.import", weather, fault.PermissionDenied, "user alice (" + viewer.ID + ") does not have the permission dataset.import on dataset weather@1 in project flights: it requires the role engineer or admin in project flights", "An admin of project flights can apply a Grant."},
		{"installation", viewer, "zone.apply", policy.Object{Kind: "zone", Name: "DE"}, fault.PermissionDenied, "user alice (" + viewer.ID + ") does not have the permission zone.apply on zone DE: it requires the role admin in the installation", "An admin of the installation can grant a role."},
		{"hidden", stranger, "dataset.import", weather, fault.NotFound, "project flights does not exist", ""},
		{"absent", viewer, "dataset.import", policy.Object{Project: "absent", Kind: "dataset"}, fault.NotFound, "project absent does not exist", ""},
		{"absent, to an admin", w.Admin, "feature.apply", policy.Object{Project: "absent"}, fault.NotFound, "project absent does not exist", ""},
		{"empty project", viewer, "dataset.read", policy.Object{Kind: "dataset", Name: "weather@1"}, fault.PermissionDenied, "user alice (" + viewer.ID + ") does not have the permission dataset.read on dataset weather@1: it requires the role viewer or engineer or deployer or admin or auditor in the installation", "An admin of the installation can grant a role."},
		{"no caller", identity.Principal{}, "dataset.read", weather, fault.Unauthenticated, "the request has no authenticated caller", ""},
		{"unknown action", viewer, "dataset.fly", weather, fault.Internal, "action dataset.fly is not in policy/actions.go", ""},
		{"confidential", viewer, "dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "pay", Classification: "confidential"}, fault.PermissionDenied, "the data is confidential, which takes the role engineer or admin", "can grant the role engineer."},
		{"a project's own policy", w.Admin, "dataset.delete", weather, fault.PermissionDenied, "nothing is deleted in the season", "No role lifts it. `falaj describe policy season -p flights`"},
		{"restricted", viewer, "dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "pay", Classification: "restricted"}, fault.PermissionDenied, "the data is restricted", "a Grant that names the object"},
		{"scopes", narrow, "dataset.read", weather, fault.PermissionDenied, "scopes do not cover it", "or one with the scope dataset.read"},
		{"unknown class", viewer, "dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "pay", Classification: "cosmic"}, fault.PermissionDenied, "the data is restricted", ""},
		{"long name", viewer, "dataset.import", policy.Object{Project: "flights", Kind: "dataset", Name: strings.Repeat("x", 1<<20)}, fault.PermissionDenied, "xxx…", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := w.Authority.Allow(identity.With(t.Context(), tt.p), tt.action, tt.object)
			if fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) || !strings.Contains(fault.HintOf(err), tt.hint) {
				t.Errorf("%v: %v (%s), want %v: %s (%s)", fault.KindOf(err), err, fault.HintOf(err), tt.kind, tt.want, tt.hint)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			for _, e := range w.Journal.Take() {
				if len(e.Object)+len(e.Project)+len(e.Reason) > 2000 {
					t.Errorf("a caller's name filled the journal: %d bytes", len(e.Object))
				}
			}
		})
	}
}

// TestRestrictedNeedsAGrantByName: not even an admin reads restricted data
// without one, and one for another object does not do.
func TestRestrictedNeedsAGrantByName(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	pay := policy.Object{Project: "flights", Kind: "dataset", Name: "pay@3", Classification: "restricted"}
	engineer := identity.With(t.Context(), w.User(t, "eve", "flights", project.Engineer))
	grant := func(principal, object string, role project.Role) {
		t.Helper()
		if _, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: principal, Role: role, Object: object}}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(who string, ok bool) {
		t.Helper()
		ctx := engineer
		if who == "admin" {
			ctx = admin
		}
		if got, err := w.Authority.Permits(ctx, "dataset.query", pay); err != nil || got == ok {
			t.Errorf("%s: %v, %v", who, got, err)
		}
	}
	refused("eve", true)
	refused("admin", true)
	grant("user/eve", "dataset/payroll", project.Engineer)
	refused("eve", true)
	grant("user/eve", "dataset/pay", project.Auditor) // a role without dataset.query
	refused("eve", true)
	grant("user/eve", "dataset/pay", project.Viewer)
	refused("eve", false)
	refused("admin", true)

	// A grant on one object gives nothing on others, and lets know that the project is there.
	only := w.User(t, "olaf", "")
	grant("user/olaf", "dataset/weather", project.Engineer)
	ctx := identity.With(t.Context(), only)
	for name, want := range map[string]fault.Kind{"weather@2": fault.Internal, "pay@3": fault.PermissionDenied} {
		err := w.Authority.Allow(ctx, "dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: name, Classification: "internal"})
		if (want == fault.Internal && err != nil) || (want != fault.Internal && !fault.Is(err, want)) {
			t.Errorf("olaf and %s: %v", name, err)
		}
	}
	if err := w.Authority.Allow(ctx, "dataset.query", policy.Object{Project: "flights"}); err != nil {
		t.Errorf("the gate stops one who may query one dataset: %v", err)
	}
	if err := w.Authority.Allow(ctx, "dataset.read", policy.Object{Project: "flights", Kind: "dataset"}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a grant on one object lists them all: %v", err)
	}
}

func TestAttemptDoesWhatItsScopesName(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: "flights", Scopes: []string{
		"run.write:run_1", "dataset.query:weather@1", "dataset.query:pay@2", "model.write", "job.submit", "token.create",
	}})
	for _, tt := range []struct {
		action policy.Action
		object policy.Object
		want   bool
	}{
		{"run.write", policy.Object{Project: "flights", Kind: "run", Name: "run_1"}, true},
		{"run.write", policy.Object{Project: "flights", Kind: "run", Name: "run_2"}, false},
		{"run.write", policy.Object{Project: "flights", Kind: "run"}, false}, // no new runs
		{"run.read", policy.Object{Project: "flights", Kind: "run", Name: "run_1"}, false},
		{"dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "weather@1", Classification: "public"}, true},
		{"dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "weather@2", Classification: "public"}, false},
		{"dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "pay@2", Classification: "restricted"}, true},
		{"dataset.query", policy.Object{Project: "flights"}, true}, // the gate
		{"dataset.import", policy.Object{Project: "flights"}, false},
		{"dataset.query", policy.Object{Project: "other", Kind: "dataset", Name: "weather@1", Classification: "public"}, false},
		{"dataset.query", policy.Object{Kind: "dataset", Name: "weather@1", Classification: "public"}, false},
		{"model.write", policy.Object{Project: "flights", Kind: "model", Name: "delay"}, true},
		{"model.write", policy.Object{Project: "other", Kind: "model", Name: "delay"}, false},
		{"job.submit", policy.Object{Project: "flights", Kind: "job"}, false},                                // no attempt's action
		{"token.create", policy.Object{Project: "flights", Kind: "token", Owner: "att_someone_else"}, false}, // nor this
		{"pool.read", policy.Object{Kind: "pool"}, false},
	} {
		if got, err := w.Authority.Permits(ctx, tt.action, tt.object); err != nil || got != tt.want {
			t.Errorf("%s on %s of %q: %v, %v, want %v", tt.action, tt.object, tt.object.Project, got, err, tt.want)
		}
	}
}

func TestTokenNarrowsRoles(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Project(t, "other")
	p := w.Admin
	allowed := func(p identity.Principal, a policy.Action, in string) bool {
		t.Helper()
		ok, err := w.Authority.Permits(identity.With(t.Context(), p), a, policy.Object{Project: in, Kind: "job", Name: "job_1"})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if p.Scopes = []string{"job.read"}; !allowed(p, "job.read", "flights") || allowed(p, "job.submit", "flights") {
		t.Error("scopes do not narrow an admin to reading")
	}
	p.Scopes = nil
	if p.Project = "flights"; !allowed(p, "job.submit", "flights") || allowed(p, "job.submit", "other") || allowed(p, "system.read", "") {
		t.Error("the binding does not keep an admin in the project")
	}
	// A bound token cannot tell other projects from none.
	err := w.Authority.Allow(identity.With(t.Context(), p), "job.read", policy.Object{Project: "other", Kind: "job"})
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("a bound token learns of another project: %v", err)
	}
	if ok, err := w.Authority.Permits(identity.With(t.Context(), p), "zone.read", policy.Object{Kind: "zone"}); err != nil || !ok {
		t.Errorf("a bound token cannot see zones: %v, %v", ok, err)
	}
	// A scope never widens.
	viewer := w.User(t, "vera", "flights", project.Viewer)
	if viewer.Scopes = []string{"job.submit"}; allowed(viewer, "job.submit", "flights") {
		t.Error("a scope gave what the role does not have")
	}
}

// TestRefusalWithoutRecordIsStillARefusal: when the journal is broken, the caller
// is refused with another reason, and nobody is let in.
func TestRefusalWithoutRecordIsStillARefusal(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Journal.Fail(errors.New("no space left on device"))
	ctx := identity.With(t.Context(), w.User(t, "vera", "flights", project.Viewer))
	if err := w.Authority.Allow(ctx, "job.submit", policy.Object{Project: "flights", Kind: "job"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestRoleChangesCountAtOnce(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	p := w.User(t, "eve", "flights", project.Engineer)
	ctx := identity.With(t.Context(), p)
	object := policy.Object{Project: "flights", Kind: "job"}
	if ok, _ := w.Authority.Permits(ctx, "job.submit", object); !ok {
		t.Fatal("an engineer cannot submit")
	}
	grants, _, err := w.Tenancy.Members(w.AsAdmin(t.Context()), "flights", "")
	if err != nil || len(grants) != 1 {
		t.Fatal(grants, err)
	}
	if err := w.Tenancy.Revoke(w.AsAdmin(t.Context()), "flights", grants[0].Name); err != nil {
		t.Fatal(err)
	}
	if err := w.Authority.Allow(ctx, "job.submit", object); !fault.Is(err, fault.NotFound) {
		t.Errorf("a revoked role still counts: %v", err)
	}
}

const nightPolicy = `
@because("only the night shift submits here")
forbid (principal, action == Action::"job.submit", resource)
unless { principal.name == "night" };

permit (principal is User, action in [Action::"dataset.query", Action::"dataset.import"], resource)
when { resource.name == "handover" && resource.residency.contains("home") };
`

func TestProjectPolicies(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Project(t, "other")
	admin := w.AsAdmin(t.Context())
	eve := w.User(t, "eve", "flights", project.Engineer)
	stranger := w.User(t, "stranger", "")
	night := w.User(t, "night", "flights", project.Engineer)
	permits := func(p identity.Principal, a policy.Action, o policy.Object) bool {
		t.Helper()
		ok, err := w.Authority.Permits(identity.With(t.Context(), p), a, o)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	job := policy.Object{Project: "flights", Kind: "job", Name: "job_1"}
	handover := policy.Object{Project: "flights", Kind: "dataset", Name: "handover", Classification: "internal"}
	if !permits(eve, "job.submit", job) {
		t.Fatal("an engineer cannot submit")
	}

	if _, change, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "night", Spec: authorizer.Spec{Cedar: nightPolicy}, DryRun: true}); err != nil || change != project.Created {
		t.Fatal(change, err)
	}
	if _, _, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "absent", Name: "night", Spec: authorizer.Spec{Cedar: nightPolicy}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a policy of a project that is not there: %v", err)
	}
	if !permits(eve, "job.submit", job) {
		t.Error("a dry run has an effect")
	}
	if _, _, err := w.Authority.ApplyPolicy(identity.With(t.Context(), eve), authorizer.PolicyRequest{Project: "flights", Name: "night", Spec: authorizer.Spec{Cedar: nightPolicy}}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an engineer changes policies: %v", err)
	}
	if _, change, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "night", Spec: authorizer.Spec{Cedar: nightPolicy}}); err != nil || change != project.Created {
		t.Fatal(change, err)
	}
	if _, change, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "night", Spec: authorizer.Spec{Cedar: nightPolicy}}); err != nil || change != project.Unchanged {
		t.Fatal(change, err)
	}
	w.Journal.Take()
	err := w.Authority.Allow(identity.With(t.Context(), eve), "job.submit", job)
	if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "only the night shift submits here") {
		t.Errorf("the project's forbid says %v", err)
	}
	if e := w.Journal.Take(); len(e) != 1 || e[0].Reason != "only the night shift submits here" {
		t.Errorf("recorded %+v", e)
	}
	for _, tt := range []struct {
		p      identity.Principal
		action policy.Action
		object policy.Object
		want   bool
	}{
		{night, "job.submit", job, true},
		{identity.Loop("pipeline"), "job.submit", job, true}, // loops act for what was authorised
		{eve, "job.submit", policy.Object{Project: "flights"}, true},
		{eve, "job.cancel", job, true},
		{stranger, "dataset.query", handover, true},
		{stranger, "dataset.query", policy.Object{Project: "flights"}, true}, // the gate lets through to the object
		{stranger, "dataset.query", policy.Object{Project: "other", Kind: "dataset", Name: "handover", Classification: "internal"}, false},
		{stranger, "dataset.delete", handover, false},
		{stranger, "dataset.query", policy.Object{Project: "flights", Kind: "dataset", Name: "handover", Classification: "restricted"}, false},
		{identity.Principal{Kind: identity.User, ID: stranger.ID, Scopes: []string{"job.read"}}, "dataset.query", handover, false},
		{identity.Principal{Kind: identity.User, ID: stranger.ID, Project: "other"}, "dataset.query", handover, false},
	} {
		if got := permits(tt.p, tt.action, tt.object); got != tt.want {
			t.Errorf("%s %s %s: %v", tt.p, tt.action, tt.object, got)
		}
	}

	list, err := w.Authority.Policies(admin, "flights")
	if err != nil || len(list) != 1 || list[0].Cedar != nightPolicy || list[0].Revision != 1 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := w.Authority.DeletePolicy(admin, "flights", "night"); err != nil {
		t.Fatal(err)
	}
	if !permits(eve, "job.submit", job) {
		t.Error("a deleted policy still counts")
	}
}

func TestBadProjectPolicies(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	for _, tt := range []struct{ name, text, want string }{
		{"syntax", "permit (principal, action, resource", ":1:36"},
		{"empty", "// nothing", "0 statements"},
		{"every action", "permit (principal, action, resource);", "names no action"},
		{"group", `permit (principal, action in Action::"admin", resource);`, "names no action"},
		{"unknown action", `permit (principal, action == Action::"job.sumbit", resource);`, "job.submit"},
		{"lock-out", `forbid (principal, action == Action::"project.update", resource);`, "cannot be about project.update"},
		{"tokens", `permit (principal, action == Action::"token.create", resource);`, "cannot be about token.create"},
		{"reads", `forbid (principal, action == Action::"dataset.read", resource);`, "cannot be about dataset.read"},
		{"relabel", `permit (principal, action == Action::"dataset.relabel", resource);`, "cannot be about dataset.relabel"},
		{"attribute", `forbid (principal, action == Action::"job.submit", resource) when { resource.sensitivity == "restricted" };`, "sensitivity"},
		{"type", `forbid (principal, action == Action::"job.submit", resource) when { resource.name > 3 };`, "line 1"},
		{"unknown entity", `permit (principal == Robot::"x", action == Action::"job.submit", resource);`, "Robot"},
		{"big", "// " + strings.Repeat("x", 20_000), "at most"},
		{"many", strings.Repeat(`permit (principal, action == Action::"job.submit", resource);`, 51), "51 statements"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := w.Authority.ApplyPolicy(w.AsAdmin(t.Context()), authorizer.PolicyRequest{Project: "flights", Name: "bad", Spec: authorizer.Spec{Cedar: tt.text}})
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error()+fault.HintOf(err), tt.want) {
				t.Errorf("%v: %v (%s)", fault.KindOf(err), err, fault.HintOf(err))
			}
		})
	}
}

func TestPoliciesGoWithTheirProject(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	text := `forbid (principal, action == Action::"job.submit", resource);`
	if _, _, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "freeze", Spec: authorizer.Spec{Cedar: text}}); err != nil {
		t.Fatal(err)
	}
	object := policy.Object{Project: "flights", Kind: "job", Name: "job_1"}
	if err := w.Authority.Allow(admin, "job.submit", object); !fault.Is(err, fault.PermissionDenied) {
		t.Fatalf("frozen, and yet %v", err)
	}
	if err := w.Tenancy.Delete(admin, "flights"); err != nil {
		t.Fatal(err)
	}
	err := w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		list, err := policysql.Store{}.List(ctx, tx, "flights")
		if len(list) > 0 {
			t.Errorf("%v outlives its project", list)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := w.Authority.Allow(admin, "job.submit", object); !fault.Is(err, fault.NotFound) {
		t.Errorf("after its end: %v", err)
	}
}

// TestRememberedAnswers: whatever was asked before and has changed since, an answer is
// that of an authorizer that remembers none.
func TestRememberedAnswers(t *testing.T) {
	w := policytest.Open(t)
	admin := w.AsAdmin(t.Context())
	names := []project.Name{"flights", "trains"}
	for _, p := range names {
		w.Project(t, p)
	}
	people := []identity.Principal{w.Admin, w.User(t, "eve", ""), w.User(t, "adam", "")}
	policies := []string{
		`forbid (principal, action == Action::"dataset.query", resource) when { resource.residency.contains("DE") };`,
		`forbid (principal, action == Action::"dataset.query", resource) when { resource.owner == "usr_x" };`,
		`permit (principal, action == Action::"job.submit", resource) when { principal.name == "eve" };`,
		`forbid (principal, action in [Action::"job.submit", Action::"dataset.query"], resource) when { resource.kind == "dataset" && resource.name == "weather@2" };`,
	}
	ignore := func(err error, kinds ...fault.Kind) {
		if err != nil && !slices.Contains(kinds, fault.KindOf(err)) {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		in := func() project.Name { return rapid.SampledFrom(names).Draw(rt, "project") }
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(rt *rapid.T) {
				p := rapid.SampledFrom(people).Draw(rt, "who")
				p.Project = rapid.SampledFrom([]project.Name{"", "", "flights"}).Draw(rt, "bound")
				p.Scopes = rapid.SampledFrom([][]string{nil, nil, {"dataset.query"}, {"dataset.query:weather@1"}, {"job.submit"}}).Draw(rt, "scopes")
				ctx := identity.With(t.Context(), p)
				action := rapid.SampledFrom([]policy.Action{"dataset.query", "job.submit", "project.read"}).Draw(rt, "action")
				o := policy.Object{Project: string(in())}
				if rapid.Bool().Draw(rt, "object") {
					o.Kind = rapid.SampledFrom([]string{"dataset", "job"}).Draw(rt, "kind")
					o.Name = rapid.SampledFrom([]string{"", "weather@1", "weather@2"}).Draw(rt, "name")
					o.Owner = rapid.SampledFrom([]string{"", "usr_x"}).Draw(rt, "owner")
					o.Classification = rapid.SampledFrom([]string{"", "public", "confidential", "restricted"}).Draw(rt, "class")
					o.Residency = rapid.SampledFrom([]residency.Label{nil, residency.Of("DE"), residency.Of("DE", "home")}).Draw(rt, "zones")
				}
				fresh, err := authorizer.New(authorizer.Config{DB: w.DB, Store: policysql.Store{}, Roster: w.Roster, Journal: w.Journal})
				if err != nil {
					rt.Fatal(err)
				}
				want := fresh.Allow(ctx, action, o)
				for range 2 {
					if got := w.Authority.Allow(ctx, action, o); fmt.Sprint(got) != fmt.Sprint(want) {
						rt.Fatalf("%v, want %v", got, want)
					}
				}
			},
			"grant": func(rt *rapid.T) {
				spec := project.GrantSpec{
					Principal: rapid.SampledFrom(people[1:]).Draw(rt, "who").ID, Role: rapid.SampledFrom(project.Roles[:4]).Draw(rt, "role"),
					Object: rapid.SampledFrom([]string{"", "dataset/weather"}).Draw(rt, "object"),
				}
				_, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: in(), Name: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "grant"), Spec: spec})
				ignore(err, fault.Conflict, fault.Invalid)
			},
			"revoke": func(rt *rapid.T) {
				ignore(w.Tenancy.Revoke(admin, in(), rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "grant")), fault.NotFound)
			},
			"policy": func(rt *rapid.T) {
				_, _, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: in(), Name: "own", Spec: authorizer.Spec{Cedar: rapid.SampledFrom(policies).Draw(rt, "policy")}})
				ignore(err)
			},
			"no policy": func(rt *rapid.T) {
				ignore(w.Authority.DeletePolicy(admin, in(), "own"), fault.NotFound)
			},
		})
	})
}

func BenchmarkAllow(b *testing.B) {
	w := policytest.Open(b)
	w.Project(b, "flights")
	engineer := identity.With(b.Context(), w.User(b, "eve", "flights", project.Engineer))
	object := policy.Object{Project: "flights", Kind: "dataset", Name: "weather@1", Classification: "confidential"}
	attempt := identity.With(b.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: "flights", Scopes: []string{"run.write:run_1"}})
	b.Run("engineer queries", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := w.Authority.Allow(engineer, "dataset.query", object); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("attempt logs", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := w.Authority.Allow(attempt, "run.write", policy.Object{Project: "flights", Kind: "run", Name: "run_1"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
