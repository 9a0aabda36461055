package trainingsql

import (
	"context"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestOldJobsGetTheirEnd: the migration reads out of the jobs of an older version what is
// written of new ones, whatever their specification and their reason say.
func TestOldJobsGetTheirEnd(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { oldJobsGetTheirEnd(t, "sqlite://"+filepath.Join(t.TempDir(), "falaj.db")) })
	t.Run("PostgreSQL", func(t *testing.T) { oldJobsGetTheirEnd(t, storetest.Postgres(t)) })
}

func oldJobsGetTheirEnd(t *testing.T, url string) {
	t.Helper()
	older := fstest.MapFS{}
	for _, name := range []string{"00001_training.sql", "00002_checkpoint.sql", "00003_state.sql", "00004_profile.sql", "00005_measurement.sql", "00006_submitter.sql"} {
		text, err := fs.ReadFile(Migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		older[name] = &fstest.MapFile{Data: text}
	}
	open := func(m store.Migrations) *store.DB {
		t.Helper()
		db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: []store.Migrations{m}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	manyInputs := make([]training.Input, 64) // more than the index takes
	for i := range manyInputs {
		manyInputs[i].Ref = "dataset a-long-name-of-a-dataset@1"
	}
	ended := time.Date(2026, 11, 2, 3, 4, 5, 0, time.UTC)
	jobs := []training.Job{
		{ID: "job_ended", State: training.Succeeded, EndedAt: ended},
		{ID: "job_reason", State: training.Failed, EndedAt: ended, Reason: "it said \x00\x00, \\\x00 and \\u0000 and \"ended_at\":\"never\"", Spec: training.Spec{Resume: "job_ended/step-1"}},
		{ID: "job_names", State: training.Cancelled, EndedAt: ended, Spec: training.Spec{Env: map[string]string{"ended_at": "soon", "resume": "\x00", "source": "sha256:ef"}}},
		{ID: "job_zone", State: training.Succeeded, EndedAt: ended.In(time.FixedZone("", 4*60*60)), Spec: training.Spec{Resume: "job_ended", Source: "sha256:ab"}, Inputs: []training.Input{{Ref: "dataset w@1"}, {Ref: "model m@2"}}},
		{ID: "job_no-end", State: training.Cancelled},
		{ID: "job_running", State: training.Running, Reason: "\x00", Spec: training.Spec{Resume: "job_reason/a/b", Source: "sha256:cd"}, Inputs: manyInputs},
	}
	db := open(store.Migrations{Name: "training", FS: older})
	err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for _, j := range jobs {
			r, err := jobRowOf(j)
			if err != nil {
				return err
			}
			if _, err := tx.NewInsert().Model(&r).ExcludeColumn("due", "resumes", "source", "inputs").Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(Migrations)
	for _, j := range jobs {
		want, err := jobRowOf(j)
		if err != nil {
			t.Fatal(err)
		}
		var got jobRow
		if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return tx.NewSelect().Model(&got).Where("id = ?", want.ID).Scan(ctx)
		}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", j.ID, got, want)
		}
	}
}
