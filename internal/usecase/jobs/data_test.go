package jobs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/training"
)

// The token of an attempt may read the job's inputs, by their versions, and
// write its tables; nothing else of the project's data.
func TestScopesOfAnAttempt(t *testing.T) {
	got := scopesOf(training.Job{
		Inputs: []training.Input{{Name: "a", Ref: "dataset delays@3"}, {Name: "b", Ref: "dataset delays@3"}},
		Spec:   training.Spec{Tables: []string{"late"}},
	})
	want := append(slices.Clone(attemptScopes), "dataset.read:delays@3", "dataset.query:delays@3", "dataset.read:late", "dataset.query:late", "dataset.import:late")
	if !slices.Equal(got, want) {
		t.Errorf("scopes %q, want %q", got, want)
	}
}

// Jobs write to the directories that hold makes, so what it finds there is a job's
// doing: it is neither followed nor written to.
func TestHoldWritesThroughNoLink(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := hold(root, "t/data"); err != nil {
		t.Fatal(err)
	}
	secret, held := filepath.Join(dir, "master.key"), filepath.Join(dir, "t/data", dataset.HeldFile)
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Remove(held), os.Symlink("../../master.key", held)); err != nil {
		t.Fatal(err)
	}
	if err := hold(root, "t/data"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the file that a job's link leads to is %q, %v", b, err)
	}
}

// A job has by path what it may read by the catalog: no version that may be in fewer
// zones than what it makes, whenever that came.
func TestPlaceHasWhatTheAttemptMayRead(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Confined = func(context.Context, string) (residency.Label, error) { return residency.Of("home", "AE"), nil }
	})
	spec := dataset.Spec{Protection: dataset.Open, Residency: residency.Of("home", "AE")}
	h.Put(t, "late", spec, "a\n1\n")
	tables := Tables{Data{Datasets: h.Services}, h.Files.Dir}
	j := training.Job{Project: datasettest.Project, Spec: training.Spec{Tables: []string{"late", "fresh"}}, Residency: residency.Of("home", "AE")}
	place := func(name string) (mounts []engine.Mount) {
		t.Helper()
		var err error
		if h.Inputs, err = inputsOf(j, nil); err != nil {
			t.Fatal(err)
		}
		mounts, err = tables.Place(t.Context(), j, "att_1", name)
		if err != nil {
			t.Fatal(err)
		}
		return mounts
	}
	// has tells whether the data of a version of late is below what is mounted.
	has := func(mounts []engine.Mount, number int64) bool {
		t.Helper()
		v, err := h.Definitions.Version(datasettest.Context(t), datasettest.Project, dataset.Ref{Name: "late", Number: number})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(mounts, func(m engine.Mount) bool {
			return !m.Writable && strings.HasPrefix(filepath.Join(h.Files.Dir, v.Files[0].Key), m.Path+"/")
		})
	}
	first := place("late")
	h.Put(t, "late", spec, "a\n2\n") // while it runs
	spec.Residency = residency.Of("home")
	h.Put(t, "late", spec, "a\n3\n")
	then := place("late")
	for number, may := range map[int64]bool{1: true, 2: true, 3: false} {
		if got := has(first, number); got != may {
			t.Errorf("of before: version %d is there: %v", number, got)
		}
		if got := has(then, number); got != may {
			t.Errorf("of after: version %d is there: %v", number, got)
		}
	}
	writes := 0
	for _, m := range slices.Concat(then, place("fresh")) {
		if _, err := os.Stat(m.Path); err != nil {
			t.Error(err)
		}
		if m.Writable {
			writes++
		}
	}
	if writes != 4 {
		t.Errorf("%d directories are written to", writes)
	}
	// What it makes of a table that was not there it has at once.
	j.Spec.Tables = []string{"new"}
	made := place("new")
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: datasettest.Project, Scopes: scopesOf(j)})
	if _, _, err := h.Definitions.Apply(ctx, dataset.ApplyRequest{Project: datasettest.Project, Name: "new", Spec: dataset.Spec{Protection: dataset.Open}}); err != nil {
		t.Fatal(err)
	}
	v, err := h.Writes.Import(ctx, dataset.ImportRequest{Project: datasettest.Project, Name: "new", Filename: "a.csv", Body: strings.NewReader("a\n4\n")})
	if err != nil {
		t.Fatal(err)
	}
	if at := filepath.Join(h.Files.Dir, v.Files[0].Key); !slices.ContainsFunc(made, func(m engine.Mount) bool { return strings.HasPrefix(at, m.Path+"/") }) {
		t.Errorf("its own version is at %s, and it has %v", at, made)
	}
}
