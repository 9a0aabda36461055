// Package labelsql keeps labels and judgements in SQLite or PostgreSQL.
package labelsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("label", migrations)

// chunk is how many rows a statement names.
const chunk = 500

// Store implements label.Store.
type Store struct{}

var _ label.Store = Store{}

type labelRow struct {
	bun.BaseModel `bun:"table:label_label,alias:l"`

	Project     string `bun:",pk"`
	Deployment  string `bun:",pk"`
	ID          string `bun:",pk"`
	LabelValues string // sealed, in base64
	At          store.Time
	Received    store.Time
	Status      string
	Seq         int64
	Place       string
}

func rowOf(p label.Place, r label.Row) labelRow {
	return labelRow{
		Project: p.Project, Deployment: p.Deployment, ID: r.ID, LabelValues: base64.StdEncoding.EncodeToString(r.Sealed), At: store.At(r.At),
		Received: store.At(r.Received), Status: string(r.Status), Seq: r.Seq, Place: r.Where,
	}
}

func (r labelRow) row() (label.Row, error) {
	sealed, err := base64.StdEncoding.DecodeString(r.LabelValues)
	return label.Row{
		ID: r.ID, Sealed: sealed, At: r.At.Time(), Received: r.Received.Time(), Status: label.Status(r.Status), Seq: r.Seq, Where: r.Place,
	}, fault.Wrap(err, "label %s", r.ID)
}

func rows(in []labelRow) ([]label.Row, error) {
	out := make([]label.Row, len(in))
	for i, r := range in {
		var err error
		if out[i], err = r.row(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Existing implements label.Store.
func (Store) Existing(ctx context.Context, tx *store.Tx, p label.Place, ids []string) (map[string]label.Row, error) {
	out := make(map[string]label.Row, len(ids))
	for part := range slices.Chunk(ids, chunk) {
		var found []labelRow
		if err := tx.NewSelect().Model(&found).Where("l.project = ? AND l.deployment = ? AND l.id IN (?)", p.Project, p.Deployment, bun.List(part)).Scan(ctx); err != nil {
			return nil, err
		}
		for _, r := range found {
			row, err := r.row()
			if err != nil {
				return nil, err
			}
			out[row.ID] = row
		}
	}
	return out, nil
}

// Insert implements label.Store.
func (Store) Insert(ctx context.Context, tx *store.Tx, p label.Place, in []label.Row) error {
	for part := range slices.Chunk(in, chunk) {
		all := make([]labelRow, len(part))
		for i, r := range part {
			all[i] = rowOf(p, r)
		}
		if _, err := tx.NewInsert().Model(&all).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Next implements label.Store.
func (s Store) Next(ctx context.Context, tx *store.Tx, p label.Place, n int) (int64, error) {
	if err := s.Count(ctx, tx, p, label.Counts{}); err != nil { // there is a row now
		return 0, err
	}
	var last int64
	err := tx.NewRaw("UPDATE label_count SET seq = seq + ? WHERE project = ? AND deployment = ? RETURNING seq", n, p.Project, p.Deployment).Scan(ctx, &last)
	return last - int64(n) + 1, err
}

// Count implements label.Store.
func (Store) Count(ctx context.Context, tx *store.Tx, p label.Place, c label.Counts) error {
	_, err := tx.NewRaw(`INSERT INTO label_count (project, deployment, seq, joined, waiting, duplicates, contradicts, too_late, wrong_rows, expired)
		VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project, deployment) DO UPDATE SET
		joined = label_count.joined + excluded.joined, waiting = label_count.waiting + excluded.waiting,
		duplicates = label_count.duplicates + excluded.duplicates, contradicts = label_count.contradicts + excluded.contradicts,
		too_late = label_count.too_late + excluded.too_late, wrong_rows = label_count.wrong_rows + excluded.wrong_rows,
		expired = label_count.expired + excluded.expired`,
		p.Project, p.Deployment, c.Joined, c.Waiting, c.Duplicates, c.Contradicts, c.TooLate, c.WrongRows, c.Expired).Exec(ctx)
	return err
}

// Counts implements label.Store.
func (Store) Counts(ctx context.Context, tx *store.Tx, p label.Place) (label.Counts, error) {
	var c label.Counts
	err := tx.NewRaw(`SELECT joined, waiting, duplicates, contradicts, too_late, wrong_rows, expired
		FROM label_count WHERE project = ? AND deployment = ?`, p.Project, p.Deployment).
		Scan(ctx, &c.Joined, &c.Waiting, &c.Duplicates, &c.Contradicts, &c.TooLate, &c.WrongRows, &c.Expired)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return c, err
}

// Joined implements label.Store.
func (Store) Joined(ctx context.Context, tx *store.Tx, p label.Place, after int64, limit int) ([]label.Row, error) {
	var found []labelRow
	err := tx.NewSelect().Model(&found).Where("l.project = ? AND l.deployment = ? AND l.seq > ? AND l.seq > 0", p.Project, p.Deployment, after).
		OrderExpr("l.seq").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	return rows(found)
}

// Before implements label.Store.
func (Store) Before(ctx context.Context, tx *store.Tx, p label.Place, received time.Time) (int64, error) {
	var seq int64
	// A label that waited has a later place than its time says: so the first of
	// those received since, not the last of those before.
	err := tx.NewRaw("SELECT COALESCE(MIN(seq), 0) FROM label_label WHERE project = ? AND deployment = ? AND seq > 0 AND received >= ?",
		p.Project, p.Deployment, store.At(received)).Scan(ctx, &seq)
	if err != nil || seq > 0 {
		return seq - 1, err
	}
	err = tx.NewRaw("SELECT seq FROM label_count WHERE project = ? AND deployment = ?", p.Project, p.Deployment).Scan(ctx, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return seq, err
}

// Waiting implements label.Store.
func (Store) Waiting(ctx context.Context, tx *store.Tx, p label.Place, after string, limit int) ([]label.Row, error) {
	var found []labelRow
	err := tx.NewSelect().Model(&found).Where("l.project = ? AND l.deployment = ? AND l.id > ? AND l.status = 'unknown'", p.Project, p.Deployment, after).
		OrderExpr("l.id").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	return rows(found)
}

// WaitingPlaces implements label.Store.
func (Store) WaitingPlaces(ctx context.Context, tx *store.Tx) ([]label.Place, error) {
	var out []label.Place
	err := tx.NewRaw("SELECT project, deployment FROM label_count WHERE waiting > 0 ORDER BY project, deployment").Scan(ctx, &out)
	return out, err
}

// Settle implements label.Store.
func (Store) Settle(ctx context.Context, tx *store.Tx, p label.Place, r label.Row) error {
	_, err := tx.NewRaw("UPDATE label_label SET status = ?, seq = ?, place = ? WHERE project = ? AND deployment = ? AND id = ? AND status = 'unknown'",
		string(r.Status), r.Seq, r.Where, p.Project, p.Deployment, r.ID).Exec(ctx)
	return err
}

// Trim implements label.Store.
func (Store) Trim(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	res, err := tx.NewRaw(`DELETE FROM label_label WHERE (project, deployment, id) IN
		(SELECT project, deployment, id FROM label_label WHERE received < ? AND status <> 'unknown' LIMIT ?)`, store.At(before), limit).Exec(ctx)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// Delete implements label.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, p label.Place) error {
	for _, table := range []string{"label_label", "label_count", "label_judgement"} {
		if _, err := tx.NewRaw("DELETE FROM ? WHERE project = ? AND deployment = ?", bun.Ident(table), p.Project, p.Deployment).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

type judgementRow struct {
	bun.BaseModel `bun:"table:label_judgement,alias:j"`

	Rollout    string `bun:",pk"`
	Project    string
	Deployment string
	LogCursor  string
	LabelSeq   int64
	Tally      string
	Final      bool
	Revision   int64
	Made       store.Time
	Updated    store.Time
}

func (r judgementRow) judgement() label.Judgement {
	return label.Judgement{
		Rollout: r.Rollout, Place: label.Place{Project: r.Project, Deployment: r.Deployment}, Log: r.LogCursor, Labels: r.LabelSeq,
		Tally: json.RawMessage(r.Tally), Final: r.Final, Revision: r.Revision, Made: r.Made.Time(), Updated: r.Updated.Time(),
	}
}

// Judgement implements label.Store.
func (Store) Judgement(ctx context.Context, tx *store.Tx, rollout string) (label.Judgement, error) {
	var r judgementRow
	err := tx.NewSelect().Model(&r).Where("j.rollout = ?", rollout).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return label.Judgement{}, nil
	}
	return r.judgement(), err
}

// Newest implements label.Store.
func (Store) Newest(ctx context.Context, tx *store.Tx, p label.Place) (label.Judgement, error) {
	var r judgementRow
	err := tx.NewSelect().Model(&r).Where("j.project = ? AND j.deployment = ?", p.Project, p.Deployment).OrderExpr("j.made DESC, j.rollout DESC").Limit(1).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return label.Judgement{}, nil
	}
	return r.judgement(), err
}

// PutJudgement implements label.Store.
func (Store) PutJudgement(ctx context.Context, tx *store.Tx, j label.Judgement) error {
	r := judgementRow{
		Rollout: j.Rollout, Project: j.Place.Project, Deployment: j.Place.Deployment, LogCursor: j.Log, LabelSeq: j.Labels,
		Tally: string(j.Tally), Final: j.Final, Revision: j.Revision, Made: store.At(j.Made), Updated: store.At(j.Updated),
	}
	var res sql.Result
	var err error
	if j.Revision == 1 {
		res, err = tx.NewInsert().Model(&r).On("CONFLICT (rollout) DO NOTHING").Exec(ctx)
	} else {
		res, err = tx.NewUpdate().Model(&r).WherePK().Where("j.revision = ?", j.Revision-1).Exec(ctx)
	}
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return fault.New(fault.Conflict, "rollout %s is evaluated by another server", j.Rollout)
}
