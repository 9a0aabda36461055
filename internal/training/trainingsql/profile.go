package trainingsql

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

type profileRow struct {
	bun.BaseModel `bun:"table:training_profile"`

	ID            string  `bun:"id,pk"`
	Job           string  `bun:"job"`
	Project       string  `bun:"project"`
	Attempt       string  `bun:"attempt"`
	Worker        int     `bun:"worker"`
	Compute       float64 `bun:"compute"`
	Memory        float64 `bun:"memory"`
	Communication float64 `bun:"communication"`
	Idle          float64 `bun:"idle"`
	Body          string  `bun:"body"`
}

// InsertProfile adds a profile.
func (ProfileStore) InsertProfile(ctx context.Context, tx *store.Tx, p training.Profile) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	r := profileRow{
		ID: string(p.ID), Job: string(p.Job), Project: string(p.Project), Attempt: string(p.Attempt), Worker: p.Worker,
		Compute: p.Compute, Memory: p.Memory, Communication: p.Communication, Idle: p.Idle, Body: string(body),
	}
	_, err = tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// Profiles lists the last so many profiles of a job, oldest first.
func (ProfileStore) Profiles(ctx context.Context, tx *store.Tx, id training.JobID, limit int) ([]training.Profile, error) {
	var rows []profileRow
	if err := tx.NewSelect().Model(&rows).Where("job = ?", string(id)).OrderExpr("id DESC").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	slices.Reverse(rows)
	all := make([]training.Profile, len(rows))
	for i, r := range rows {
		if err := json.Unmarshal([]byte(r.Body), &all[i]); err != nil {
			return nil, fault.Wrap(err, "reading profile %s", r.ID)
		}
	}
	return all, nil
}

// CountProfiles says how many an attempt has.
func (ProfileStore) CountProfiles(ctx context.Context, tx *store.Tx, id training.AttemptID) (int, error) {
	return tx.NewSelect().Model((*profileRow)(nil)).Where("attempt = ?", string(id)).Count(ctx)
}
