package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
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
	made, lost, err := w.Import(ctx, proj, spec)
	if err != nil || !made || len(lost) != 1 || !strings.Contains(lost[0], "alias v1: ") {
		t.Fatal(made, lost, err)
	}
	v, err := w.Version(ctx, proj, "Delay model", "champion")
	if err != nil || v.Number != 3 || v.Stage != registry.StageProduction || !v.Created.Equal(spec.Created) || !v.Updated.Equal(spec.Updated) || v.KeyID == "" || v.Digest == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	if _, err := w.OpenVerified(ctx, proj, "Delay model", "3"); err != nil {
		t.Fatal(err)
	}
	m, err := w.Model(ctx, proj, "Delay model")
	if err != nil || !m.Created.Equal(at) || !m.Updated.Equal(spec.Model.Updated) || m.Description != spec.Model.Description {
		t.Fatalf("%+v, %v", m, err)
	}

	// Repeated, nothing that was moved here moves back.
	if err := w.DeleteAlias(ctx, proj, "Delay model", "champion"); err != nil {
		t.Fatal(err)
	}
	next, err := w.CreateVersion(ctx, proj, "Delay model", registry.VersionSpec{Source: spec.Source})
	if err != nil || next.Number != 4 {
		t.Fatal(next, err)
	}
	if err := w.SetAlias(ctx, proj, "Delay model", "champion", 4); err != nil {
		t.Fatal(err)
	}
	spec.Aliases = spec.Aliases[:1]
	if made, lost, err := w.Import(ctx, proj, spec); err != nil || made || len(lost) > 0 {
		t.Fatal(made, lost, err)
	}
	if v, err := w.Version(ctx, proj, "Delay model", "champion"); err != nil || v.Number != 4 {
		t.Fatal(v, err)
	}
	// A number before that nobody had may be taken, another version's may not.
	spec.Number, spec.Aliases, spec.Stage = 1, nil, ""
	if made, _, err := w.Import(ctx, proj, spec); err != nil || !made {
		t.Fatal(made, err)
	}
	spec.Number = 4
	_, _, err = w.Import(ctx, proj, spec)
	wantKind(t, err, fault.Conflict, "another version 4")
	if err := w.DeleteVersion(ctx, proj, "Delay model", 1); err != nil {
		t.Fatal(err)
	}
	spec.Number = 1
	if made, lost, err := w.Import(ctx, proj, spec); err != nil || made || len(lost) != 1 {
		t.Fatal(made, lost, err)
	}

	_, _, err = w.Import(as(t, "erin"), proj, spec)
	wantKind(t, err, fault.PermissionDenied, "run.import")
	spec.Source, spec.Number = "file:///etc/passwd", 9
	_, _, err = w.Import(ctx, proj, spec)
	wantKind(t, err, fault.Invalid, "Invalid model version source")
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
	if _, _, err := w.Import(ctx, proj, spec); err == nil {
		t.Fatal("a version of broken files was made")
	}
	if v, err := w.Version(ctx, proj, "m", "2"); err != nil || v.State != registry.Failed {
		t.Fatal(v.State, err)
	}
	if err := os.Rename(away, files[0]); err != nil {
		t.Fatal(err)
	}
	made, _, err := w.Import(ctx, proj, spec)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if _, err := w.OpenVerified(ctx, proj, "m", "2"); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Sweep(ctx, proj); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}
