package trackingsql

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type artifactRow struct {
	bun.BaseModel `bun:"table:tracking_artifact,alias:t"`
	Owner         string `bun:",pk"`
	Path          string `bun:",pk"`
	Project       string
	Object        string
	Size          int64
	Digest        string
	Created       store.Time
	OfJob         bool
}

func (r artifactRow) stored() tracking.Stored {
	return tracking.Stored{
		File:   tracking.File{Path: r.Path, Size: r.Size, Digest: r.Digest, Created: r.Created.Time(), OfJob: r.OfJob},
		Object: r.Object,
	}
}

// PutArtifact implements tracking.ArtifactStore.
func (ArtifactStore) PutArtifact(ctx context.Context, tx *store.Tx, p project.Name, owner string, s tracking.Stored) error {
	row := artifactRow{
		Owner: owner, Path: s.Path, Project: string(p), Object: s.Object, Size: s.Size, Digest: s.Digest, Created: store.At(s.Created), OfJob: s.OfJob,
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (owner, path) DO UPDATE").
		Set("object = EXCLUDED.object").Set("size = EXCLUDED.size").Set("digest = EXCLUDED.digest").Set("created = EXCLUDED.created").Set("of_job = EXCLUDED.of_job").Exec(ctx)
	return err
}

// Artifact implements tracking.ArtifactStore.
func (ArtifactStore) Artifact(ctx context.Context, tx *store.Tx, owner, path string) (tracking.Stored, error) {
	var row artifactRow
	err := tx.NewSelect().Model(&row).Where("t.owner = ? AND t.path = ?", owner, path).Scan(ctx)
	return row.stored(), store.NotFound(err, "No such artifact: '%s'", path)
}

// below is the condition for a path and what lies below it: '0' follows '/'.
func below(owner, prefix string) (string, []any) {
	if prefix == "" {
		return "owner = ?", []any{owner}
	}
	return "owner = ? AND (path = ? OR (path >= ? AND path < ?))", []any{owner, prefix, prefix + "/", prefix + "0"}
}

// Artifacts implements tracking.ArtifactStore.
func (ArtifactStore) Artifacts(ctx context.Context, tx *store.Tx, owner, prefix string, limit int) ([]tracking.Stored, error) {
	where, args := below(owner, prefix)
	var rows []artifactRow
	err := tx.NewSelect().Model(&rows).Where(where, args...).OrderExpr("t.path").Limit(limit).Scan(ctx)
	out := make([]tracking.Stored, len(rows))
	for i, r := range rows {
		out[i] = r.stored()
	}
	return out, err
}

// CountArtifacts implements tracking.ArtifactStore.
func (ArtifactStore) CountArtifacts(ctx context.Context, tx *store.Tx, owner string) (int, error) {
	return tx.NewSelect().Model((*artifactRow)(nil)).Where("t.owner = ?", owner).Count(ctx)
}

// DeleteArtifacts implements tracking.ArtifactStore.
func (ArtifactStore) DeleteArtifacts(ctx context.Context, tx *store.Tx, owner, prefix string) error {
	where, args := below(owner, prefix)
	_, err := tx.NewRaw("DELETE FROM tracking_artifact WHERE "+where, args...).Exec(ctx)
	return err
}

// Holds implements tracking.ArtifactStore.
func (ArtifactStore) Holds(ctx context.Context, tx *store.Tx, p project.Name, objects []string) ([]string, error) {
	var out []string
	err := chunks(objects, func(objects []string) error {
		var held []string
		err := tx.NewRaw(`SELECT object FROM tracking_artifact WHERE project = ? AND object IN (?)
			UNION ALL SELECT object FROM tracking_upload_part WHERE project = ? AND object IN (?)`,
			string(p), store.Texts(objects), string(p), store.Texts(objects)).Scan(ctx, &held)
		out = append(out, held...)
		return err
	})
	return out, err
}

// Holders implements tracking.ArtifactStore.
func (ArtifactStore) Holders(ctx context.Context, tx *store.Tx, p project.Name) (all []tracking.Holder, err error) {
	err = tx.NewRaw(`SELECT a.owner, COALESCE(MAX(r.job), MAX(m.job), '') AS job, COUNT(*) AS files, SUM(CASE WHEN a.path LIKE 'logs/%' THEN 1 ELSE 0 END) AS logs
		FROM tracking_artifact a LEFT JOIN tracking_run r ON r.id = a.owner LEFT JOIN tracking_model m ON m.id = a.owner
		WHERE a.project = ? GROUP BY a.owner ORDER BY a.owner`, p).Scan(ctx, &all)
	return all, err
}
