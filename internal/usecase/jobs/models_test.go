package jobs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestModelOfRun: a job's model is an output of its run, and has the name that MLflow's clients
// look for at runs:/RUN/model, whatever it is registered as.
func TestModelOfRun(t *testing.T) {
	db := storetest.SQLite(t, trackingsql.Migrations, registrysql.Migrations)
	authz := trackingtest.Policy{"loop": {"p": {"*"}}}
	objects, _, _ := trackingtest.NewArtifacts(t)
	s := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: authz, Objects: objects})
	models := Models{Tracking: s, Registry: registry.New(registry.Config{
		DB: db, Store: registrysql.Store{}, Authz: authz, Runs: s.Runs, LoggedModels: s.LoggedModels, Artifacts: s.Artifacts, Origins: s.Origins, Objects: objects, Sealer: blobtest.NewSealer(),
	})}
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "MLmodel"), []byte("flavors: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for register, attempt := range map[string]string{"": "att_1", "ResNet50.v2": "att_2"} {
		r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: attempt}})
		if err != nil {
			t.Fatal(err)
		}
		spec := training.ModelSpec{Project: "p", Register: register, Run: string(r.ID), Job: "job_1", Attempt: training.AttemptID(attempt), Dir: dir}
		var first string
		for n := range 2 { // the second as after a crash
			ref, err := models.Save(ctx, spec)
			if err != nil || n > 0 && ref != first {
				t.Fatal(ref, first, err)
			}
			first = ref
		}
		if r, err = s.Runs.Run(ctx, "p", r.ID); err != nil || len(r.Models) != 1 || !r.Models[0].Output {
			t.Fatalf("the run made %v, %v", r.Models, err)
		}
		made, _, err := s.LoggedModels.SearchLoggedModels(ctx, "p", tracking.Search{Experiments: []tracking.ExperimentID{r.Experiment}, Filter: "name = 'model'", Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range made {
			if m.Run == r.ID && m.ID == r.Models[0].Model {
				found++
			}
		}
		if found != 1 {
			t.Errorf("registered as %q: %d logged models of the run are found by their name in %v", register, found, made)
		}
	}

	// A job whose run somebody deleted keeps its model all the same.
	r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_2", Attempt: "att_3"}})
	if err == nil {
		err = s.Runs.DeleteRun(ctx, "p", r.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if ref, err := models.Save(ctx, training.ModelSpec{Project: "p", Run: string(r.ID), Job: "job_2", Attempt: "att_3", Dir: dir}); err != nil || ref == "" {
		t.Error(ref, err)
	}
}
