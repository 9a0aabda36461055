package trainingsql

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/source"
)

type sourceRow struct {
	bun.BaseModel `bun:"table:training_source,alias:s"`

	Project string     `bun:"project,pk"`
	Digest  string     `bun:"digest,pk"`
	Used    store.Time `bun:"used"`
	Object  string     `bun:"object"`
}

func rowOf(p project.Name, a source.Stored, at time.Time) sourceRow {
	return sourceRow{Project: string(p), Digest: a.Digest, Used: store.At(at), Object: a.Object}
}

// Sources gives archives on record.
func (SourceStore) Sources(ctx context.Context, tx *store.Tx, p project.Name, digests []string) (map[string]source.Stored, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	var rows []sourceRow
	if err := tx.NewSelect().Model(&rows).Column("digest", "object").Where("project = ? AND digest IN (?)", string(p), bun.List(digests)).Scan(ctx); err != nil {
		return nil, err
	}
	out := make(map[string]source.Stored, len(rows))
	for _, r := range rows {
		out[r.Digest] = source.Stored{Digest: r.Digest, Object: r.Object}
	}
	return out, nil
}

// UseSource notes a use.
func (SourceStore) UseSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, at time.Time) error {
	res, err := tx.NewUpdate().Model((*sourceRow)(nil)).Set("used = ?", store.At(at)).Where("s.project = ? AND s.digest = ?", string(p), digest).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fault.New(fault.NotFound, "source archive %s not found", digest).WithHint("Upload it again: falaj job submit --source DIR")
}

// PutSource puts an archive on record.
func (SourceStore) PutSource(ctx context.Context, tx *store.Tx, p project.Name, a source.Stored, at time.Time) error {
	row := rowOf(p, a, at)
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, digest) DO UPDATE").Set("used = EXCLUDED.used, object = EXCLUDED.object").Exec(ctx)
	return err
}

// FoundSources notes archives of which nothing is on record as used at a time.
func (SourceStore) FoundSources(ctx context.Context, tx *store.Tx, p project.Name, found []source.Stored, at time.Time) error {
	if len(found) == 0 {
		return nil
	}
	rows := make([]sourceRow, len(found))
	for i, a := range found {
		rows[i] = rowOf(p, a, at)
	}
	_, err := tx.NewInsert().Model(&rows).On("CONFLICT (project, digest) DO NOTHING").Exec(ctx)
	return err
}

// UnusedSources gives archives that no job names.
func (SourceStore) UnusedSources(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) (digests []string, err error) {
	err = tx.NewSelect().Model((*sourceRow)(nil)).Column("digest").Where("project = ? AND digest > ? AND used < ?", string(p), after, store.At(before)).
		Where("NOT EXISTS (SELECT 1 FROM training_job AS j WHERE j.project = ? AND j.source = s.digest AND j.source <> '')", string(p)).
		Order("digest").Limit(limit).Scan(ctx, &digests)
	return digests, err
}

// RemoveSource ends the record of an archive, unless it was used since.
func (SourceStore) RemoveSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, before time.Time) (a source.Stored, removed bool, err error) {
	var objects []string
	err = tx.NewDelete().Model((*sourceRow)(nil)).
		Where("s.project = ? AND s.digest = ? AND s.used < ?", string(p), digest, store.At(before)).
		Where("NOT EXISTS (SELECT 1 FROM training_job AS j WHERE j.project = ? AND j.source = ?)", string(p), digest).
		Returning("object").Scan(ctx, &objects)
	if err != nil || len(objects) == 0 {
		return a, false, err
	}
	return source.Stored{Digest: digest, Object: objects[0]}, true, nil
}
