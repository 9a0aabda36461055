package trackingsql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type importedRow struct {
	ID, Digest, Origin, Object, Base string
}

func (r importedRow) imported() (tracking.Imported, error) {
	out := tracking.Imported{ID: r.ID, Digest: r.Digest, Origin: r.Origin, Object: r.Object}
	if r.Base == "" {
		return out, nil
	}
	return out, json.Unmarshal([]byte(r.Base), &out.Base)
}

// Imported implements tracking.ImportStore.
func (ImportStore) Imported(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, ids []string) (map[string]tracking.Imported, error) {
	return importedBy(ctx, tx, "id", p, kind, ids, func(r tracking.Imported) string { return r.ID })
}

// ImportedFrom implements tracking.ImportStore.
func (ImportStore) ImportedFrom(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, origins []string) (map[string]tracking.Imported, error) {
	return importedBy(ctx, tx, "origin", p, kind, origins, func(r tracking.Imported) string { return r.Origin })
}

func importedBy(ctx context.Context, tx *store.Tx, column string, p project.Name, kind tracking.ImportKind, values []string, key func(tracking.Imported) string) (map[string]tracking.Imported, error) {
	out := make(map[string]tracking.Imported, len(values))
	err := chunks(values, func(values []string) error {
		var rows []importedRow
		err := tx.NewRaw("SELECT id, digest, origin, object, base FROM tracking_imported WHERE project = ? AND kind = ? AND ? IN (?)",
			string(p), string(kind), bun.Ident(column), store.Texts(values)).Scan(ctx, &rows)
		for _, row := range rows {
			if err != nil {
				break
			}
			var r tracking.Imported
			if r, err = row.imported(); err == nil {
				out[key(r)] = r
			}
		}
		return err
	})
	return out, err
}

// PutImported implements tracking.ImportStore.
func (ImportStore) PutImported(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, r tracking.Imported, at time.Time) error {
	base := ""
	if r.Base != nil {
		b, err := json.Marshal(r.Base)
		if err != nil {
			return err
		}
		base = string(b)
	}
	_, err := tx.NewRaw(`INSERT INTO tracking_imported (project, kind, id, digest, origin, object, base, imported) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (project, kind, id) DO UPDATE SET digest = excluded.digest, origin = excluded.origin, object = excluded.object, base = excluded.base, imported = excluded.imported`,
		string(p), string(kind), r.ID, r.Digest, r.Origin, r.Object, base, store.At(at)).Exec(ctx)
	return err
}

// DeleteImported implements tracking.ImportStore.
func (ImportStore) DeleteImported(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, id string) error {
	return forget(ctx, tx, p, kind, id)
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
