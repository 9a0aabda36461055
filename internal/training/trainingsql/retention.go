package trainingsql

import (
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// Due implements training.RetentionStore.
func (RetentionStore) Due(ctx context.Context, tx *store.Tx, before time.Time, limit int) ([]training.Job, error) {
	var rows []jobRow
	err := tx.NewSelect().Model(&rows).Where("due > 0 AND due < ?", store.At(before)).OrderExpr("due").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	return jobs(rows)
}

// Postpone implements training.RetentionStore.
func (RetentionStore) Postpone(ctx context.Context, tx *store.Tx, ids []training.JobID, to time.Time) error {
	return inParts(ids, func(part []training.JobID) error {
		_, err := tx.NewUpdate().Model((*jobRow)(nil)).Set("due = ?", store.At(to)).Where("due > 0 AND id IN (?)", bun.List(part)).Exec(ctx)
		return err
	})
}

// ResumedBy implements training.RetentionStore.
func (RetentionStore) ResumedBy(ctx context.Context, tx *store.Tx, ids []training.JobID) (map[training.JobID]training.JobID, error) {
	by := map[training.JobID]training.JobID{}
	err := inParts(ids, func(part []training.JobID) error {
		var rows []struct{ ID, Resumes string }
		err := tx.NewSelect().Table("training_job").Column("id", "resumes").Where("resumes <> '' AND resumes IN (?)", bun.List(part)).Scan(ctx, &rows)
		for _, r := range rows {
			by[training.JobID(r.Resumes)] = training.JobID(r.ID)
		}
		return err
	})
	return by, err
}

// WithCheckpoints implements training.RetentionStore.
func (RetentionStore) WithCheckpoints(ctx context.Context, tx *store.Tx, ids []training.JobID) (with []training.JobID, err error) {
	err = inParts(ids, func(part []training.JobID) error {
		var some []training.JobID
		err := tx.NewSelect().Model((*checkpointRow)(nil)).ColumnExpr("DISTINCT job").Where("job IN (?)", bun.List(part)).Scan(ctx, &some)
		with = append(with, some...)
		return err
	})
	return with, err
}

// AttemptsOf implements training.RetentionStore.
func (RetentionStore) AttemptsOf(ctx context.Context, tx *store.Tx, ids []training.JobID) (map[training.JobID][]training.AttemptID, error) {
	of := map[training.JobID][]training.AttemptID{}
	err := inParts(ids, func(part []training.JobID) error {
		var rows []struct{ ID, Job string }
		err := tx.NewSelect().Table("training_attempt").Column("id", "job").Where("job IN (?)", bun.List(part)).OrderExpr("id").Scan(ctx, &rows)
		for _, r := range rows {
			of[training.JobID(r.Job)] = append(of[training.JobID(r.Job)], training.AttemptID(r.ID))
		}
		return err
	})
	return of, err
}

// TrimJobs implements training.RetentionStore.
func (RetentionStore) TrimJobs(ctx context.Context, tx *store.Tx, ids []training.JobID) error {
	return remove(ctx, tx, ids, (*profileRow)(nil), (*seenRow)(nil))
}

// DeleteJobs implements training.RetentionStore.
func (RetentionStore) DeleteJobs(ctx context.Context, tx *store.Tx, ids []training.JobID) error {
	if err := remove(ctx, tx, ids, (*profileRow)(nil), (*seenRow)(nil), (*measurementRow)(nil), (*attemptRow)(nil)); err != nil {
		return err
	}
	return inParts(ids, func(part []training.JobID) error {
		_, err := tx.NewDelete().Model((*jobRow)(nil)).Where("id IN (?)", bun.List(part)).Exec(ctx)
		return err
	})
}

// remove deletes the rows of jobs from tables, in their order.
func remove(ctx context.Context, tx *store.Tx, ids []training.JobID, tables ...any) error {
	return inParts(ids, func(part []training.JobID) error {
		for _, table := range tables {
			if _, err := tx.NewDelete().Model(table).Where("job IN (?)", bun.List(part)).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func inParts(ids []training.JobID, do func(part []training.JobID) error) error {
	for part := range slices.Chunk(ids, rowsAtOnce) {
		if err := do(part); err != nil {
			return err
		}
	}
	return nil
}
