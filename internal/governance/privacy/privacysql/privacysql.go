// Package privacysql keeps erasures in SQLite or PostgreSQL.
package privacysql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("privacy", migrations)

const table = "privacy_erasure"

type row struct {
	bun.BaseModel `bun:"table:privacy_erasure"`

	ID        privacy.ID `bun:",pk"`
	Project   string
	Entity    string
	Pseudonym string
	State     privacy.State
	Ledger    int64
	Hash      string
	Doc       string
	Sealed    []byte
}

// doc is what is not searched.
type doc struct {
	privacy.Erasure
	Tokens []string      `json:"tokens,omitempty"`
	Where  privacy.Where `json:"where,omitzero"`
}

func (r row) row() (privacy.Row, error) {
	var d doc
	if err := json.Unmarshal([]byte(r.Doc), &d); err != nil {
		return privacy.Row{}, fmt.Errorf("the document of erasure %s: %w", r.ID, err)
	}
	return privacy.Row{Erasure: d.Erasure, Tokens: d.Tokens, Where: d.Where, Sealed: r.Sealed}, nil
}

// open are the states of an erasure that has not ended.
var open = []privacy.State{privacy.Requested, privacy.Erasing}

// Store implements privacy.Store.
type Store struct{}

var _ privacy.Store = Store{}

func one(ctx context.Context, q *bun.SelectQuery, r *row) (privacy.Row, error) {
	if err := q.Scan(ctx); err != nil {
		return privacy.Row{}, store.NotFound(err, "the erasure does not exist")
	}
	return r.row()
}

func many(ctx context.Context, q *bun.SelectQuery, rows *[]row) ([]privacy.Row, error) {
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]privacy.Row, len(*rows))
	for i, r := range *rows {
		var err error
		if out[i], err = r.row(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Find implements privacy.Store.
func (Store) Find(ctx context.Context, tx *store.Tx, id privacy.ID) (privacy.Row, error) {
	var r row
	return one(ctx, tx.NewSelect().Model(&r).Where("id = ?", id), &r)
}

// Same implements privacy.Store.
func (Store) Same(ctx context.Context, tx *store.Tx, project, entity, pseudonym string) (privacy.Row, error) {
	var r row
	return one(ctx, tx.NewSelect().Model(&r).Where("project = ? AND entity = ? AND pseudonym = ? AND state IN (?)", project, entity, pseudonym, bun.List(open)).
		OrderExpr("id").Limit(1), &r)
}

// Document implements privacy.Store.
func (Store) Document(ctx context.Context, tx *store.Tx, id privacy.ID) ([]byte, error) {
	var r row
	if err := tx.NewSelect().Model(&r).Column("doc").Where("id = ?", id).Scan(ctx); err != nil {
		return nil, store.NotFound(err, "the erasure does not exist")
	}
	return []byte(r.Doc), nil
}

// Erased implements privacy.Store.
func (Store) Erased(ctx context.Context, tx *store.Tx, project, entity, pseudonym string) ([]privacy.Row, error) {
	var rows []row
	return many(ctx, tx.NewSelect().Model(&rows).Where("project = ? AND entity = ? AND pseudonym = ? AND state IN (?)",
		project, entity, pseudonym, bun.List([]privacy.State{privacy.Done, privacy.InPart})).OrderExpr("id"), &rows)
}

// Put implements privacy.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, e privacy.Row) error {
	if len(e.Sealed) == 0 {
		tx.Scrub(table)
	}
	d, err := json.Marshal(doc{Erasure: e.Erasure, Tokens: e.Tokens, Where: e.Where})
	if err != nil {
		return err
	}
	r := row{
		ID: e.ID, Project: e.Project, Entity: e.Entity, Pseudonym: e.Pseudonym, State: e.State, Ledger: e.Ledger, Hash: e.LedgerHash,
		Doc: string(d), Sealed: e.Sealed,
	}
	q := tx.NewInsert().Model(&r).On("CONFLICT (id) DO UPDATE")
	for _, c := range []string{"state", "ledger", "hash", "doc", "sealed"} {
		q = q.Set("? = EXCLUDED.?", bun.Ident(c), bun.Ident(c))
	}
	_, err = q.Exec(ctx)
	return err
}

// Open implements privacy.Store.
func (Store) Open(ctx context.Context, tx *store.Tx, limit int) ([]privacy.Row, error) {
	var rows []row
	return many(ctx, tx.NewSelect().Model(&rows).Where("state IN (?)", bun.List(open)).OrderExpr("id").Limit(limit), &rows)
}

// CountOpen implements privacy.Store.
func (Store) CountOpen(ctx context.Context, tx *store.Tx) (int, error) {
	return tx.NewSelect().Model((*row)(nil)).Where("state IN (?)", bun.List(open)).Count(ctx)
}

// List implements privacy.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project string, before privacy.ID, limit int) ([]privacy.Row, error) {
	var rows []row
	q := tx.NewSelect().Model(&rows).Where("project = ?", project).OrderExpr("id DESC").Limit(limit)
	if before != "" {
		q = q.Where("id < ?", before)
	}
	return many(ctx, q, &rows)
}

// Lines implements privacy.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx) (number int64, hash string, err error) {
	var r row
	err = tx.NewSelect().Model(&r).Column("ledger", "hash").OrderExpr("ledger DESC").Limit(1).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", nil
	}
	return r.Ledger, r.Hash, err
}
