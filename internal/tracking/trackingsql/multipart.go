package trackingsql

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type uploadRow struct {
	bun.BaseModel `bun:"table:tracking_upload,alias:t"`
	ID            string `bun:",pk"`
	Project       string
	Run           string
	Model         string
	Path          string
	Parts         int
	Created       store.Time
	Done          bool
}

func (r uploadRow) upload() tracking.Upload {
	return tracking.Upload{
		Project: project.Name(r.Project), ID: tracking.UploadID(r.ID), Place: tracking.Place{Run: tracking.RunID(r.Run), Model: tracking.LoggedModelID(r.Model)},
		Path: r.Path, Parts: r.Parts, Created: r.Created.Time(), Done: r.Done,
	}
}

// PutUpload implements tracking.UploadStore.
func (UploadStore) PutUpload(ctx context.Context, tx *store.Tx, u tracking.Upload) error {
	row := uploadRow{
		ID: string(u.ID), Project: string(u.Project), Run: string(u.Place.Run), Model: string(u.Place.Model), Path: u.Path, Parts: u.Parts,
		Created: store.At(u.Created), Done: u.Done,
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").Set("done = EXCLUDED.done").Exec(ctx)
	return err
}

// Upload implements tracking.UploadStore.
func (UploadStore) Upload(ctx context.Context, tx *store.Tx, p project.Name, id tracking.UploadID) (tracking.Upload, error) {
	var row uploadRow
	err := tx.NewSelect().Model(&row).Where("t.id = ? AND t.project = ?", string(id), string(p)).Scan(ctx)
	return row.upload(), store.NotFound(err, "there is no upload %.40s", string(id))
}

// CountUploads implements tracking.UploadStore.
func (UploadStore) CountUploads(ctx context.Context, tx *store.Tx, p project.Name) (int, error) {
	return tx.NewSelect().Model((*uploadRow)(nil)).Where("t.project = ? AND NOT t.done", string(p)).Count(ctx)
}

// StaleUploads implements tracking.UploadStore.
func (UploadStore) StaleUploads(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) ([]tracking.Upload, error) {
	var rows []uploadRow
	err := tx.NewSelect().Model(&rows).Where("t.project = ? AND t.created < ?", string(p), store.At(before)).Limit(batch).Scan(ctx)
	out := make([]tracking.Upload, len(rows))
	for i, r := range rows {
		out[i] = r.upload()
	}
	return out, err
}

// DeleteUpload implements tracking.UploadStore.
func (UploadStore) DeleteUpload(ctx context.Context, tx *store.Tx, id tracking.UploadID) error {
	_, err := tx.NewRaw("DELETE FROM tracking_upload WHERE id = ?", string(id)).Exec(ctx)
	return err
}

// PutPart implements tracking.UploadStore.
func (UploadStore) PutPart(ctx context.Context, tx *store.Tx, p project.Name, id tracking.UploadID, part tracking.Part) error {
	_, err := tx.NewRaw(`INSERT INTO tracking_upload_part (upload, number, project, object, size, digest) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (upload, number) DO UPDATE SET object = excluded.object, size = excluded.size, digest = excluded.digest`,
		string(id), part.Number, string(p), part.Object, part.Size, part.Digest).Exec(ctx)
	return err
}

// Parts implements tracking.UploadStore.
func (UploadStore) Parts(ctx context.Context, tx *store.Tx, id tracking.UploadID) ([]tracking.Part, error) {
	var out []tracking.Part
	err := tx.NewRaw("SELECT number, object, size, digest FROM tracking_upload_part WHERE upload = ? ORDER BY number", string(id)).Scan(ctx, &out)
	return out, err
}

// DeleteParts implements tracking.UploadStore.
func (UploadStore) DeleteParts(ctx context.Context, tx *store.Tx, id tracking.UploadID) error {
	_, err := tx.NewRaw("DELETE FROM tracking_upload_part WHERE upload = ?", string(id)).Exec(ctx)
	return err
}
