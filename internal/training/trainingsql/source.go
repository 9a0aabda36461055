package trainingsql

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

type sourceRow struct {
	bun.BaseModel `bun:"table:training_source,alias:s"`

	Project string     `bun:"project,pk"`
	Digest  string     `bun:"digest,pk"`
	Used    store.Time `bun:"used"`
	Going   bool       `bun:"going"`
}

// UseSource notes a use.
func (Store) UseSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, at time.Time) error {
	res, err := tx.NewInsert().Model(&sourceRow{Project: string(p), Digest: digest, Used: store.At(at)}).
		On("CONFLICT (project, digest) DO UPDATE").Set("used = EXCLUDED.used").Where("s.going = FALSE").Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fault.New(fault.NotFound, "source archive %s has expired and is being removed", digest).WithHint("Upload it again: falaj job submit --source DIR")
}

// KeepSource notes an upload.
func (Store) KeepSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, at time.Time) error {
	_, err := tx.NewInsert().Model(&sourceRow{Project: string(p), Digest: digest, Used: store.At(at)}).
		On("CONFLICT (project, digest) DO UPDATE").Set("used = EXCLUDED.used, going = FALSE").Exec(ctx)
	return err
}

// FoundSources notes archives of which nothing is on record as used at a time.
func (Store) FoundSources(ctx context.Context, tx *store.Tx, p project.Name, digests []string, at time.Time) error {
	if len(digests) == 0 {
		return nil
	}
	rows := make([]sourceRow, len(digests))
	for i, d := range digests {
		rows[i] = sourceRow{Project: string(p), Digest: d, Used: store.At(at)}
	}
	_, err := tx.NewInsert().Model(&rows).On("CONFLICT (project, digest) DO NOTHING").Exec(ctx)
	return err
}

// UnusedSources gives archives that no job names.
func (Store) UnusedSources(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) (digests []string, err error) {
	err = tx.NewSelect().Model((*sourceRow)(nil)).Column("digest").Where("project = ? AND digest > ? AND (going OR used < ?)", string(p), after, store.At(before)).
		Where("NOT EXISTS (SELECT 1 FROM training_job AS j WHERE j.project = ? AND j.source = s.digest AND j.source <> '')", string(p)).
		Order("digest").Limit(limit).Scan(ctx, &digests)
	return digests, err
}

// RemoveSource marks an archive as going, unless it was used since.
func (Store) RemoveSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, before time.Time) (going bool, err error) {
	res, err := tx.NewUpdate().Model((*sourceRow)(nil)).Set("going = TRUE").
		Where("s.project = ? AND s.digest = ? AND (going OR used < ?)", string(p), digest, store.At(before)).
		Where("NOT EXISTS (SELECT 1 FROM training_job AS j WHERE j.project = ? AND j.source = ?)", string(p), digest).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// GoingSources gives those of archives that are going.
func (Store) GoingSources(ctx context.Context, tx *store.Tx, p project.Name, digests []string) (going []string, err error) {
	if len(digests) == 0 {
		return nil, nil
	}
	err = tx.NewSelect().Model((*sourceRow)(nil)).Column("digest").Where("project = ? AND going AND digest IN (?)", string(p), bun.List(digests)).Order("digest").Scan(ctx, &going)
	return going, err
}

// StaySource marks an archive as not going.
func (Store) StaySource(ctx context.Context, tx *store.Tx, p project.Name, digest string) error {
	_, err := tx.NewUpdate().Model((*sourceRow)(nil)).Set("going = FALSE").Where("s.project = ? AND s.digest = ?", string(p), digest).Exec(ctx)
	return err
}

// DropSource forgets an archive that is gone.
func (Store) DropSource(ctx context.Context, tx *store.Tx, p project.Name, digest string) error {
	_, err := tx.NewDelete().Model((*sourceRow)(nil)).Where("project = ? AND digest = ? AND going", string(p), digest).Exec(ctx)
	return err
}
