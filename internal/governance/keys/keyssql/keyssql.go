// Package keyssql keeps sealed keys in SQLite or PostgreSQL.
package keyssql

import (
	"context"
	"database/sql"
	"embed"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("keys", migrations)

type keyRow struct {
	bun.BaseModel `bun:"table:keys_key"`

	Project    string     `bun:"project,pk"`
	Owner      string     `bun:"owner,pk"`
	ID         string     `bun:"id"`
	Algorithms string     `bun:"algorithms"`
	State      string     `bun:"state"`
	Created    store.Time `bun:"created"`
	Destroyed  store.Time `bun:"destroyed"`
	Sealed     []byte     `bun:"sealed"`
}

func (r keyRow) key() keys.Key {
	return keys.Key{
		ID: keys.ID(r.ID), Project: r.Project, Owner: r.Owner, Algorithms: r.Algorithms,
		State: keys.State(r.State), Created: r.Created.Time(), Destroyed: r.Destroyed.Time(),
	}
}

type checkRow struct {
	bun.BaseModel `bun:"table:keys_check"`

	ID   int64  `bun:"id,pk"`
	Salt []byte `bun:"salt"`
	MAC  []byte `bun:"mac"`
}

// Store implements keys.Store.
type Store struct{}

var _ keys.Store = Store{}

// Find gives a scope's row.
func (Store) Find(ctx context.Context, tx *store.Tx, project, owner string) (keys.Row, error) {
	var r keyRow
	err := tx.NewSelect().Model(&r).Where("project = ? AND owner = ?", project, owner).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return keys.Row{}, fault.New(fault.NotFound, "the key does not exist")
	}
	return keys.Row{Key: r.key(), Sealed: r.Sealed}, err
}

// Insert adds a row.
func (Store) Insert(ctx context.Context, tx *store.Tx, row keys.Row) error {
	_, err := tx.NewInsert().Model(&keyRow{
		Project: row.Project, Owner: row.Owner, ID: string(row.ID), Algorithms: row.Algorithms, State: string(row.State),
		Created: store.At(row.Created), Destroyed: store.At(row.Destroyed), Sealed: row.Sealed,
	}).Exec(ctx)
	return err
}

// Destroy overwrites the sealed bytes with zeros of the same length. The page
// from before is in the database's log until the transaction is scrubbed.
func (Store) Destroy(ctx context.Context, tx *store.Tx, project, owner string, at store.Time) ([]keys.Key, error) {
	tx.Scrub("keys_key")
	var rows []keyRow
	q := tx.NewSelect().Model(&rows).Where("project = ? AND state = ?", project, keys.Active).Order("owner")
	if owner != "" {
		q = q.Where("owner = ?", owner)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	gone := make([]keys.Key, 0, len(rows))
	for _, r := range rows {
		r.State, r.Destroyed, r.Sealed = string(keys.Destroyed), at, make([]byte, len(r.Sealed))
		if _, err := tx.NewUpdate().Model(&r).Column("state", "destroyed", "sealed").WherePK().Exec(ctx); err != nil {
			return nil, err
		}
		gone = append(gone, r.key())
	}
	return gone, nil
}

// List gives the inventory in the order of (project, owner).
func (Store) List(ctx context.Context, tx *store.Tx, f keys.Filter, after *keys.Scope, limit int) ([]keys.Key, error) {
	var rows []keyRow
	q := tx.NewSelect().Model(&rows).ExcludeColumn("sealed").Order("project", "owner").Limit(limit)
	if f.Project != nil {
		q = q.Where("project = ?", *f.Project)
	}
	if f.State != "" {
		q = q.Where("state = ?", f.State)
	}
	if after != nil {
		q = q.Where("(project > ? OR (project = ? AND owner > ?))", after.Project, after.Project, after.Owner)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]keys.Key, len(rows))
	for i, r := range rows {
		list[i] = r.key()
	}
	return list, nil
}

// Check gives the master key's check.
func (Store) Check(ctx context.Context, tx *store.Tx) (keys.Check, error) {
	var r checkRow
	err := tx.NewSelect().Model(&r).Where("id = 1").Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return keys.Check{}, fault.New(fault.NotFound, "no master key was recorded")
	}
	return keys.Check{Salt: r.Salt, MAC: r.MAC}, err
}

// SetCheck records the master key's check, once.
func (Store) SetCheck(ctx context.Context, tx *store.Tx, c keys.Check) error {
	_, err := tx.NewInsert().Model(&checkRow{ID: 1, Salt: c.Salt, MAC: c.MAC}).Exec(ctx)
	return err
}
