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

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

func TestImport(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	at := time.UnixMilli(1_600_000_000_000)
	spec := registry.ImportSpec{
		Model:  registry.Model{Name: "Delay model", Description: "Says how late.", Created: at, Updated: at.Add(time.Hour), Tags: []tracking.Pair{{Key: "owner", Value: "a"}}},
		Number: 3, Source: "runs:/" + string(r.ID) + "/model", Run: r.ID, Description: "third", Stage: "Production",
		Created: at.Add(time.Minute), Updated: at.Add(time.Hour), Tags: []tracking.Pair{{Key: "n", Value: "3"}}, Aliases: []string{"champion", "v1"},
	}
	made, lost, err := w.Versions.Import(ctx, proj, spec)
	if err != nil || !made || len(lost) != 1 || !strings.Contains(lost[0], "alias v1: ") {
		t.Fatal(made, lost, err)
	}
	v, err := w.Versions.Version(ctx, proj, "Delay model", "champion")
	if err != nil || v.Number != 3 || v.Stage != registry.StageProduction || !v.Created.Equal(spec.Created) || !v.Updated.Equal(spec.Updated) || v.KeyID == "" || v.Digest == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := w.Files.OpenVerified(ctx, proj, "Delay model", "3"); err != nil {
		t.Fatal(err)
	}
	m, err := w.Models.Model(ctx, proj, "Delay model")
	if err != nil || !m.Created.Equal(at) || !m.Updated.Equal(spec.Model.Updated) || m.Description != spec.Model.Description {
		t.Fatalf("%+v, %v", m, err)
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
	spec.Aliases = spec.Aliases[:1]
	if made, lost, err := w.Versions.Import(ctx, proj, spec); err != nil || made || len(lost) > 0 {
		t.Fatal(made, lost, err)
	}
	if v, err := w.Versions.Version(ctx, proj, "Delay model", "champion"); err != nil || v.Number != 4 {
		t.Fatal(v, err)
	}
	// A number before that nobody had may be taken, another version's may not.
	spec.Number, spec.Aliases, spec.Stage = 1, nil, ""
	if made, _, err := w.Versions.Import(ctx, proj, spec); err != nil || !made {
		t.Fatal(made, err)
	}
	spec.Number = 4
	_, _, err = w.Versions.Import(ctx, proj, spec)
	wantKind(t, err, fault.Conflict, "a different version 4")
	if err := w.Versions.DeleteVersion(ctx, proj, "Delay model", 1); err != nil {
		t.Fatal(err)
	}
	spec.Number = 1
	if made, lost, err := w.Versions.Import(ctx, proj, spec); err != nil || made || len(lost) != 1 {
		t.Fatal(made, lost, err)
	}

	// Who may import and not promote gets the version without its stage and aliases.
	w.authz["frank"] = map[string][]policy.Action{proj: {registry.ActionRead, registry.ActionWrite, tracking.ActionRead, tracking.ActionImport}}
	spec.Number, spec.Aliases, spec.Stage = 7, []string{"seventh"}, "Staging"
	made, lost, err = w.Versions.Import(as(t, "frank"), proj, spec)
	if err != nil || !made || len(lost) != 2 || !strings.Contains(lost[0], "stage Staging: ") || !strings.Contains(lost[1], "alias seventh: ") {
		t.Fatal(made, lost, err)
	}
	if v, err := w.Versions.Version(ctx, proj, "Delay model", "7"); err != nil || v.Stage != registry.StageNone || len(v.Aliases) > 0 || !v.Updated.Equal(spec.Updated) {
		t.Fatal(v, err)
	}

	_, _, err = w.Versions.Import(as(t, "erin"), proj, spec)
	wantKind(t, err, fault.PermissionDenied, "run.import")
	spec.Source, spec.Number = "file:///etc/passwd", 9
	_, _, err = w.Versions.Import(ctx, proj, spec)
	wantKind(t, err, fault.Invalid, "Invalid model version source")
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
		spec := registry.ImportSpec{
			Model: registry.Model{Name: "m" + strconv.Itoa(n), Created: at, Updated: at.Add(time.Hour)}, Number: 2, Source: "runs:/" + string(r.ID) + "/model",
			Created: at, Updated: at.Add(time.Minute), Stage: "Production", Aliases: []string{"champion", "v1", "other"},
		}
		ctx, cut := context.WithCancel(alice)
		authz.asked, authz.at, authz.cut = 0, n, cut
		_, _, err := w.Versions.Import(ctx, proj, spec)
		whole = err == nil
		authz.at = 0
		if v, err := w.Versions.Version(alice, proj, spec.Model.Name, "2"); !whole && err == nil && v.State == registry.Ready {
			readied = true
		}
		if _, lost, err := w.Versions.Import(alice, proj, spec); err != nil || len(lost) != 1 {
			t.Fatal(lost, err)
		}
		m, err := w.Models.Model(alice, proj, spec.Model.Name)
		if err != nil || !m.Created.Equal(at) || !m.Updated.Equal(spec.Model.Updated) {
			t.Errorf("cut off at %d: %+v, %v", n, m, err)
		}
		v, err := w.Versions.Version(alice, proj, spec.Model.Name, "2")
		if err != nil || v.Stage != registry.StageProduction || len(v.Aliases) != 2 || !v.Created.Equal(at) || !v.Updated.Equal(spec.Updated) {
			t.Errorf("cut off at %d: %+v, %v", n, v, err)
		}
		cut()
		// What was changed here meanwhile is of then.
		v, err = w.Versions.DescribeVersion(alice, proj, m.Name, 2, "ours")
		if err != nil {
			t.Fatal(err)
		}
		spec.Aliases = append(spec.Aliases, "later")
		if _, _, err := w.Versions.Import(alice, proj, spec); err != nil {
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
	spec := registry.ImportSpec{
		Model: registry.Model{Name: "m", Created: time.UnixMilli(1), Updated: time.UnixMilli(2)}, Number: 2, Source: "runs:/" + string(r.ID) + "/model",
		Created: time.UnixMilli(1), Updated: time.UnixMilli(2),
	}
	files := trackingtest.Objects(t, w.dir, "/artifacts/")
	if len(files) == 0 {
		t.Fatal("the run has no files")
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(files[0], away); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Versions.Import(ctx, proj, spec); err == nil {
		t.Fatal("a version of broken files was made")
	}
	if v, err := w.Versions.Version(ctx, proj, "m", "2"); err != nil || v.State != registry.Failed {
		t.Fatal(v.State, err)
	}
	if err := os.Rename(away, files[0]); err != nil {
		t.Fatal(err)
	}
	made, _, err := w.Versions.Import(ctx, proj, spec)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if _, err := w.Files.OpenVerified(ctx, proj, "m", "2"); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Maintenance.Sweep(ctx, proj); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}
