package tuningsql_test

import (
	"context"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// TestSweepsNameSourceArchives: a source archive is named by the sweeps of its project.
func TestSweepsNameSourceArchives(t *testing.T) {
	for name, open := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			db := open(t, tuningsql.Migrations)
			if err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.NewRaw(`INSERT INTO tuning_sweep (project, name, study, state, body, revision) VALUES ('nyc', 's', 1, 'done', '{"spec":{"job":{"source":"sha256:ab"}}}', 1)`).Exec(ctx)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			for p, want := range map[string][]string{"nyc": {"sha256:ab"}, "sfo": nil} {
				var got []string
				if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
					got, err = tuningsql.Sweeps{}.Naming(ctx, tx, project.Name(p), []string{"sha256:ab", "sha256:cd"})
					return err
				}); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: %v, %v", p, got, err)
				}
			}
		})
	}
}
