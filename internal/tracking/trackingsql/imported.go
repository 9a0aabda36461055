package trackingsql

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Imported implements tracking.ImportStore.
func (ImportStore) Imported(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, ids []string) (map[string]string, error) {
	out := make(map[string]string, len(ids))
	err := chunks(ids, func(ids []string) error {
		var rows []struct{ ID, Digest string }
		err := tx.NewRaw("SELECT id, digest FROM tracking_imported WHERE project = ? AND kind = ? AND id IN (?)", string(p), string(kind), store.Texts(ids)).Scan(ctx, &rows)
		for _, r := range rows {
			out[r.ID] = r.Digest
		}
		return err
	})
	return out, err
}

// PutImported implements tracking.ImportStore.
func (ImportStore) PutImported(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, id, digest string, at time.Time) error {
	_, err := tx.NewRaw(`INSERT INTO tracking_imported (project, kind, id, digest, imported) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (project, kind, id) DO UPDATE SET digest = excluded.digest, imported = excluded.imported`,
		string(p), string(kind), id, digest, store.At(at)).Exec(ctx)
	return err
}

// ReplaceRun implements tracking.ImportStore.
func (ImportStore) ReplaceRun(ctx context.Context, tx *store.Tx, r tracking.Run) (bool, error) {
	row := rowOf(r)
	res, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").
		Set("experiment = EXCLUDED.experiment").Set("name = EXCLUDED.name").Set("user_name = EXCLUDED.user_name").
		Set("status = EXCLUDED.status").Set("started = EXCLUDED.started").Set("ended = EXCLUDED.ended").Set("stage = EXCLUDED.stage").Set("deleted = EXCLUDED.deleted").
		Where("t.project = EXCLUDED.project").Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	if err != nil || n == 0 {
		return false, err
	}
	for _, table := range []string{"tracking_metric_latest", "tracking_param", "tracking_tag"} {
		_, err := tx.NewRaw("UPDATE ? SET experiment = ? WHERE run = ? AND experiment <> ?", bun.Ident(table), int64(r.Experiment), row.ID, int64(r.Experiment)).Exec(ctx)
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// ReplaceLoggedModel implements tracking.ImportStore.
func (ImportStore) ReplaceLoggedModel(ctx context.Context, tx *store.Tx, m tracking.LoggedModel) (bool, error) {
	row := rowOfModel(m)
	res, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").
		Set("experiment = EXCLUDED.experiment").Set("name = EXCLUDED.name").Set("type = EXCLUDED.type").Set("run = EXCLUDED.run").
		Set("status = EXCLUDED.status").Set("stage = EXCLUDED.stage").Set("updated = EXCLUDED.updated").
		Where("t.project = EXCLUDED.project").Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}
