package servingsql

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

type usageRow struct {
	Caller   string `bun:"caller"`
	User     string `bun:"user_id"`
	Name     string `bun:"user_name"`
	Token    string `bun:"token"`
	Requests int64  `bun:"request_count"`
	Rows     int64  `bun:"row_count"`
}

// AddUsage implements serving.Store.
func (UsageStore) AddUsage(ctx context.Context, tx *store.Tx, of serving.ID, starts, ends time.Time, add []serving.Usage) ([]serving.Usage, error) {
	var there int
	if err := tx.NewRaw("SELECT COUNT(*) FROM serving_deployment WHERE id = ?", string(of)).Scan(ctx, &there); err != nil {
		return nil, err
	}
	if there == 0 {
		return nil, fault.New(fault.NotFound, "deployment %s does not exist any more", of)
	}
	all := make([]serving.Usage, len(add))
	for i, u := range add {
		all[i] = u
		err := tx.NewRaw("INSERT INTO serving_usage (deployment, starts, ends, caller, user_id, user_name, token, request_count, row_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "+
			"ON CONFLICT (deployment, starts, ends, caller) DO UPDATE SET user_name = EXCLUDED.user_name, "+
			"request_count = serving_usage.request_count + EXCLUDED.request_count, row_count = serving_usage.row_count + EXCLUDED.row_count "+
			"RETURNING request_count, row_count",
			string(of), store.At(starts), store.At(ends), u.Caller, u.User, u.Name, u.Token, u.Requests, u.Rows).Scan(ctx, &all[i].Requests, &all[i].Rows)
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Usage implements serving.Store.
func (UsageStore) Usage(ctx context.Context, tx *store.Tx, of serving.ID, starts, ends time.Time, limit int) ([]serving.Usage, error) {
	var rows []usageRow
	if err := tx.NewRaw("SELECT caller, user_id, user_name, token, request_count, row_count FROM serving_usage WHERE deployment = ? AND starts = ? AND ends = ? ORDER BY caller LIMIT ?",
		string(of), store.At(starts), store.At(ends), limit).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]serving.Usage, len(rows))
	for i, r := range rows {
		out[i] = serving.Usage(r)
	}
	return out, nil
}

// UsageOf implements serving.Store.
func (UsageStore) UsageOf(ctx context.Context, tx *store.Tx, of serving.ID, starts, ends time.Time, caller string) (serving.Usage, error) {
	var rows []usageRow
	if err := tx.NewRaw("SELECT caller, user_id, user_name, token, request_count, row_count FROM serving_usage WHERE deployment = ? AND starts = ? AND ends = ? AND caller = ?",
		string(of), store.At(starts), store.At(ends), caller).Scan(ctx, &rows); err != nil || len(rows) == 0 {
		return serving.Usage{}, err
	}
	return serving.Usage(rows[0]), nil
}

// ForgetUsage implements serving.Store.
func (UsageStore) ForgetUsage(ctx context.Context, tx *store.Tx, before time.Time) error {
	_, err := tx.NewRaw("DELETE FROM serving_usage WHERE ends <= ?", store.At(before)).Exec(ctx)
	return err
}
