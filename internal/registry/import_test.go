package registry_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// bring imports a model, one of its versions and aliases, and joins what became of them.
func bring(ctx context.Context, w *world, m registry.ImportedModel, v registry.ImportSpec, aliases ...registry.Alias) (registry.ImportOutcome, error) {
	out, err := w.Imports.Model(ctx, proj, m)
	if err != nil {
		return out, err
	}
	next := func(more registry.ImportOutcome, failed error) {
		if err != nil {
			return
		}
		if err = failed; out.Result == tracking.ImportUnchanged {
			out.Result = more.Result
		}
		out.Lost = append(out.Lost, more.Lost...)
	}
	if v.Number > 0 {
		v.Model = m.ImportedName
		next(w.Imports.Version(ctx, proj, v))
	}
	if err == nil {
		next(w.Imports.Aliases(ctx, proj, registry.ImportedAliases{Model: m.ImportedName, Aliases: aliases, DryRun: m.DryRun}))
	}
	return out, err
}

func foreignModel(name string, at time.Time) registry.ImportedModel {
	return registry.ImportedModel{ImportedName: registry.ImportedName{Name: name}, Created: at, Updated: at.Add(time.Hour)}
}

func wantOutcome(t *testing.T, out registry.ImportOutcome, err error, result tracking.ImportResult, lost ...string) {
	t.Helper()
	if err != nil || out.Result != result || len(out.Lost) != len(lost) {
		t.Fatalf("%+v, %v; want %s, lost %q", out, err, result, lost)
	}
	for i, part := range lost {
		if !strings.Contains(out.Lost[i], part) {
			t.Errorf("lost %q, want %q", out.Lost[i], part)
		}
	}
}

func TestImport(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	at := time.UnixMilli(1_600_000_000_000)
	m := foreignModel("Delay model", at)
	m.Description, m.Tags = "Says how late.", []tracking.Pair{{Key: "owner", Value: "a"}}
	spec := registry.ImportSpec{
		Number: 3, Source: "runs:/" + string(r.ID) + "/model", Run: r.ID, Description: "third", Stage: "Production",
		Created: at.Add(time.Minute), Updated: at.Add(time.Hour), Tags: []tracking.Pair{{Key: "n", Value: "3"}},
	}
	champion := registry.Alias{Name: "champion", Version: 3}
	dry := m
	dry.DryRun = true
	out, err := w.Imports.Model(ctx, proj, dry)
	wantOutcome(t, out, err, tracking.ImportCreated)
	if _, err := w.Models.Model(ctx, proj, "Delay model"); !fault.Is(err, fault.NotFound) {
		t.Fatal("a dry run made a model", err)
	}
	out, err = bring(ctx, w, m, spec, champion, registry.Alias{Name: "v1", Version: 3})
	wantOutcome(t, out, err, tracking.ImportCreated, "alias v1: ")
	v, err := w.Versions.Version(ctx, proj, "Delay model", "champion")
	if err != nil || v.Number != 3 || v.Stage != registry.StageProduction || !v.Created.Equal(spec.Created) || !v.Updated.Equal(spec.Updated) || v.KeyID == "" || v.Digest == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := w.Files.OpenVerified(ctx, proj, "Delay model", "3"); err != nil {
		t.Fatal(err)
	}
	got, err := w.Models.Model(ctx, proj, "Delay model")
	if err != nil || !got.Created.Equal(at) || !got.Updated.Equal(m.Updated) || got.Description != m.Description {
		t.Fatalf("%+v, %v", got, err)
	}

	// Repeated, nothing that was moved here moves back.
	if err := w.Models.DeleteAlias(ctx, proj, "Delay model", "champion"); err != nil {
		t.Fatal(err)
	}
	next, err := w.Versions.CreateVersion(ctx, proj, "Delay model", registry.VersionSpec{Source: spec.Source})
	if err != nil || next.Number != 4 {
		t.Fatal(next, err)
	}
	if err := w.Models.SetAlias(ctx, proj, "Delay model", "champion", 4); err != nil {
		t.Fatal(err)
	}
	out, err = bring(ctx, w, m, spec, champion)
	wantOutcome(t, out, err, tracking.ImportUnchanged)
	if v, err := w.Versions.Version(ctx, proj, "Delay model", "champion"); err != nil || v.Number != 4 {
		t.Fatal(v, err)
	}
	// A number before that nobody had may be taken, another version's may not.
	spec.Number, spec.Stage = 1, ""
	out, err = bring(ctx, w, m, spec, champion)
	wantOutcome(t, out, err, tracking.ImportCreated)
	spec.Number = 4
	_, err = bring(ctx, w, m, spec, champion)
	wantKind(t, err, fault.Conflict, "a different version 4")
	if err := w.Versions.DeleteVersion(ctx, proj, "Delay model", 1); err != nil {
		t.Fatal(err)
	}
	spec.Number = 1
	out, err = bring(ctx, w, m, spec, champion)
	wantOutcome(t, out, err, tracking.ImportUnchanged, "version 1 was deleted here")

	// Who may import and not promote gets the version without its stage and aliases.
	w.authz["frank"] = map[string][]policy.Action{proj: {registry.ActionRead, registry.ActionWrite, tracking.ActionRead, tracking.ActionImport}}
	spec.Number, spec.Stage = 7, "Staging"
	out, err = bring(as(t, "frank"), w, m, spec, champion, registry.Alias{Name: "seventh", Version: 7})
	wantOutcome(t, out, err, tracking.ImportCreated, "stage: ", "alias seventh: ")
	if v, err := w.Versions.Version(ctx, proj, "Delay model", "7"); err != nil || v.Stage != registry.StageNone || len(v.Aliases) > 0 || !v.Updated.Equal(spec.Updated) {
		t.Fatal(v, err)
	}
	// They come when somebody else imports, who may.
	out, err = bring(ctx, w, m, spec, champion, registry.Alias{Name: "seventh", Version: 7})
	wantOutcome(t, out, err, tracking.ImportUpdated)

	_, err = bring(as(t, "erin"), w, m, spec)
	wantKind(t, err, fault.PermissionDenied, "run.import")
	spec.Source, spec.Number = "file:///etc/passwd", 9
	_, err = bring(ctx, w, m, spec, champion)
	wantKind(t, err, fault.Invalid, "Invalid model version source")
}

// TestImportMerges: what the source changed since the last import comes, what was changed here
// stays, and what both changed stays and is reported each time.
func TestImportMerges(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	at := time.UnixMilli(1_600_000_000_000)
	tags := func(values ...string) (out []tracking.Pair) {
		for i := 0; i < len(values); i += 2 {
			out = append(out, tracking.Pair{Key: values[i], Value: values[i+1]})
		}
		return out
	}
	m := foreignModel("delay", at)
	m.Origin, m.Description, m.Tags = "0@1", "one", tags("both", "1", "gone", "1", "here", "1", "there", "1")
	spec := registry.ImportSpec{Number: 1, Source: "runs:/" + string(r.ID) + "/model", Created: at, Updated: at, Description: "one", Tags: m.Tags, Origin: m.Origin}
	second := spec
	second.Number, second.Stage = 2, "Production"
	if _, err := bring(ctx, w, m, second); err != nil {
		t.Fatal(err)
	}
	aliases := func(values ...any) (out []registry.Alias) {
		for i := 0; i < len(values); i += 2 {
			out = append(out, registry.Alias{Name: values[i].(string), Version: values[i+1].(int)})
		}
		return out
	}
	out, err := bring(ctx, w, m, spec, aliases("both", 1, "gone", 1, "here", 1, "moved", 1)...)
	wantOutcome(t, out, err, tracking.ImportCreated)

	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range tags("both", "ours", "here", "ours", "own", "ours") {
		check(w.Models.SetModelTag(ctx, proj, "delay", tag))
		check(w.Versions.SetVersionTag(ctx, proj, "delay", 1, tag))
	}
	if _, err = w.Versions.DescribeVersion(ctx, proj, "delay", 1, "ours"); err != nil {
		t.Fatal(err)
	}
	third, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: spec.Source})
	check(err)
	check(w.Models.SetAlias(ctx, proj, "delay", "both", third.Number))
	check(w.Models.SetAlias(ctx, proj, "delay", "here", third.Number))

	m.Description, m.Tags = "two", tags("both", "theirs", "here", "1", "new", "2", "there", "2")
	spec.Description, spec.Tags = "two", m.Tags
	second.Stage, second.Description = "Archived", ""
	now := aliases("both", 2, "here", 1, "moved", 2, "new", 2)
	lost := []string{
		`tag both was changed in the source, to "theirs", and in Falaj, to "ours"`, `description was changed in the source, to "two", and in Falaj, to "ours"`, "tag both was",
		`alias both was changed in the source, to "2", and in Falaj, to "3": Falaj's value stays`,
	}
	dry := m
	dry.DryRun = true
	dryOut, err := w.Imports.Model(ctx, proj, dry)
	wantOutcome(t, dryOut, err, tracking.ImportUpdated, lost[0])
	out, err = bring(ctx, w, m, second, now...)
	wantOutcome(t, out, err, tracking.ImportUpdated, lost[0], lost[3])
	out, err = bring(ctx, w, m, spec, now...)
	wantOutcome(t, out, err, tracking.ImportUpdated, lost...)
	see := func(name string) {
		t.Helper()
		got, err := w.Models.Model(ctx, proj, name)
		check(err)
		v1, err := w.Versions.Version(ctx, proj, name, "1")
		check(err)
		v2, err := w.Versions.Version(ctx, proj, name, "2")
		check(err)
		all := tags("both", "ours", "here", "ours", "new", "2", "own", "ours", "there", "2")
		for _, has := range [][]tracking.Pair{got.Tags, v1.Tags} {
			if diff := cmp.Diff(all, has); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		}
		if diff := cmp.Diff(aliases("both", 3, "here", 3, "moved", 2, "new", 2), got.Aliases); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if got.Description != "two" || v1.Description != "ours" || v2.Description != "" || v2.Stage != registry.StageArchived {
			t.Errorf("%q, %q, %q %s", got.Description, v1.Description, v2.Description, v2.Stage)
		}
	}
	see("delay")
	out, err = bring(ctx, w, m, spec, now...)
	wantOutcome(t, out, err, tracking.ImportUnchanged, lost...)

	// Renamed in the source: the same model, unless another has the name here, or a person
	// renamed it.
	m.Name, m.From = "late", "delay"
	out, err = bring(ctx, w, m, spec, now...)
	wantOutcome(t, out, err, tracking.ImportUpdated, lost...)
	see("late")
	if _, err := w.Models.CreateModel(ctx, proj, "taken", "", nil); err != nil {
		t.Fatal(err)
	}
	m.Name, m.From = "taken", "late"
	out, err = bring(ctx, w, m, spec, now...)
	wantOutcome(t, out, err, tracking.ImportUnchanged, append([]string{lost[0], "name: Registered Model (name=taken) already exists"}, lost[1:]...)...)
	see("late")
	if _, err := w.Models.RenameModel(ctx, proj, "late", "ours"); err != nil {
		t.Fatal(err)
	}
	m.Name, m.From = "latest", "taken"
	_, err = bring(ctx, w, m, spec, now...)
	if err != nil {
		t.Fatal(err)
	}
	see("ours")

	known, err := w.Imports.Imported(ctx, proj, registry.Imported{}, 10)
	if err != nil || len(known) != 3 || known[0].Name != "latest" || known[1].Number != 1 || known[2].Number != 2 || known[2].Origin != m.Origin {
		t.Errorf("%+v, %v", known, err)
	}
	if more, err := w.Imports.Imported(ctx, proj, known[1], 10); err != nil || len(more) != 1 || more[0].Number != 2 {
		t.Errorf("%+v, %v", more, err)
	}
	if _, err := w.Imports.Imported(as(t, "erin"), proj, registry.Imported{}, 10); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}

	// What was deleted here stays so, and is not told of as deleted there.
	check(w.Versions.DeleteVersion(ctx, proj, "ours", 2))
	if known, err = w.Imports.Imported(ctx, proj, registry.Imported{}, 10); err != nil || len(known) != 2 {
		t.Errorf("%+v, %v", known, err)
	}
	check(w.Models.DeleteModel(ctx, proj, "ours"))
	m.From = ""
	_, err = bring(ctx, w, m, spec, now...)
	wantKind(t, err, fault.Conflict, "was deleted in Falaj")
	if _, err := w.Models.CreateModel(ctx, proj, "latest", "", nil); err != nil {
		t.Fatal(err)
	}
	out, err = bring(ctx, w, m, spec, aliases("new", 1)...)
	wantOutcome(t, out, err, tracking.ImportUpdated)
	if v, err := w.Versions.Version(ctx, proj, "latest", "new"); err != nil || v.Number != 1 || v.Description != "two" {
		t.Error(v, err)
	}
}

// cutting ends a context when it was asked so often.
type cutting struct {
	registry.Authorizer
	asked, at int
	cut       context.CancelFunc
}

func (c *cutting) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	if c.asked++; c.asked == c.at {
		c.cut()
	}
	return c.Authorizer.Allow(ctx, action, object)
}

// TestImportCutOff: wherever an import is cut off, the next one does what was left to do,
// and nothing shows that there were two.
func TestImportCutOff(t *testing.T) {
	w, alice := open(t), as(t, "alice")
	authz := &cutting{Authorizer: w.cfg.Authz}
	w.cfg.Authz = authz
	w.cfg.Told = func(context.Context, *store.Tx, registry.Change) error {
		return errors.New("a webhook hears of an import")
	}
	w.Services = registry.New(w.cfg)
	r := w.logged(t, tracking.Origin{}, onnx)
	at := time.UnixMilli(1_600_000_000_000)
	whole, readied := false, false
	for n := 1; !whole; n++ {
		model := foreignModel("m"+strconv.Itoa(n), at)
		spec := registry.ImportSpec{Number: 2, Source: "runs:/" + string(r.ID) + "/model", Created: at, Updated: at.Add(time.Minute), Stage: "Production"}
		aliases := []registry.Alias{{Name: "champion", Version: 2}, {Name: "v1", Version: 2}, {Name: "other", Version: 2}}
		ctx, cut := context.WithCancel(alice)
		authz.asked, authz.at, authz.cut = 0, n, cut
		_, err := bring(ctx, w, model, spec, aliases...)
		whole = err == nil
		authz.at = 0
		if v, err := w.Versions.Version(alice, proj, model.Name, "2"); !whole && err == nil && v.State == registry.Ready {
			readied = true
		}
		if out, err := bring(alice, w, model, spec, aliases...); err != nil || len(out.Lost) != 1 {
			t.Fatal(out, err)
		}
		m, err := w.Models.Model(alice, proj, model.Name)
		if err != nil || !m.Created.Equal(at) || !m.Updated.Equal(model.Updated) {
			t.Errorf("cut off at %d: %+v, %v", n, m, err)
		}
		v, err := w.Versions.Version(alice, proj, model.Name, "2")
		if err != nil || v.Stage != registry.StageProduction || len(v.Aliases) != 2 || !v.Created.Equal(at) || !v.Updated.Equal(spec.Updated) {
			t.Errorf("cut off at %d: %+v, %v", n, v, err)
		}
		cut()
		// What was changed here meanwhile is of then.
		v, err = w.Versions.DescribeVersion(alice, proj, m.Name, 2, "ours")
		if err != nil {
			t.Fatal(err)
		}
		aliases = append(aliases, registry.Alias{Name: "later", Version: 2})
		if _, err := bring(alice, w, model, spec, aliases...); err != nil {
			t.Fatal(err)
		}
		if again, err := w.Versions.Version(alice, proj, m.Name, "later"); err != nil || again.Description != "ours" || !again.Updated.Equal(v.Updated) {
			t.Errorf("%+v, %v", again, err)
		}
	}
	if !readied {
		t.Error("no import was cut off with a version that was ready")
	}
}

// TestImportAgain: a version that failed on the way is made anew under its number.
func TestImportAgain(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	model := foreignModel("m", time.UnixMilli(1))
	spec := registry.ImportSpec{Number: 2, Source: "runs:/" + string(r.ID) + "/model", Created: time.UnixMilli(1), Updated: time.UnixMilli(2)}
	files := trackingtest.Objects(t, w.dir, "/artifacts/")
	if len(files) == 0 {
		t.Fatal("the run has no files")
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(files[0], away); err != nil {
		t.Fatal(err)
	}
	if _, err := bring(ctx, w, model, spec); err == nil {
		t.Fatal("a version of broken files was made")
	}
	if v, err := w.Versions.Version(ctx, proj, "m", "2"); err != nil || v.State != registry.Failed {
		t.Fatal(v.State, err)
	}
	if err := os.Rename(away, files[0]); err != nil {
		t.Fatal(err)
	}
	out, err := w.Imports.Version(ctx, proj, registry.ImportSpec{Model: model.ImportedName, Number: 2, Source: spec.Source, Created: spec.Created, Updated: spec.Updated})
	wantOutcome(t, out, err, tracking.ImportCreated)
	if _, err := w.Files.OpenVerified(ctx, proj, "m", "2"); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Maintenance.Sweep(ctx, proj); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}
