// Package secretssql keeps sealed secrets in SQLite or PostgreSQL.
package secretssql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("secrets", migrations)

const table = "secrets_secret"

type row struct {
	bun.BaseModel `bun:"table:secrets_secret"`

	ID          secrets.ID `bun:",pk"`
	Project     string
	Name        string
	Description string
	Keys        string // JSON list
	Revision    int64
	Created     store.Time
	CreatedBy   string
	Updated     store.Time
	UpdatedBy   string
	Sealed      []byte
}

func (r row) secret() (secrets.Secret, error) {
	s := secrets.Secret{
		ID: r.ID, Project: r.Project, Name: r.Name, Description: r.Description, Revision: r.Revision,
		Created: r.Created.Time(), CreatedBy: r.CreatedBy, Updated: r.Updated.Time(), UpdatedBy: r.UpdatedBy,
	}
	return s, json.Unmarshal([]byte(r.Keys), &s.Keys)
}

// Store implements secrets.Store.
type Store struct{}

var _ secrets.Store = Store{}

// Find implements secrets.Store.
func (Store) Find(ctx context.Context, tx *store.Tx, project, name string) (secrets.Row, error) {
	var r row
	err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", project, name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return secrets.Row{}, fault.New(fault.NotFound, "secret %q does not exist", name)
	}
	if err != nil {
		return secrets.Row{}, err
	}
	s, err := r.secret()
	return secrets.Row{Secret: s, Sealed: r.Sealed}, err
}

// Put implements secrets.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, s secrets.Row) error {
	keys, err := json.Marshal(s.Keys)
	if err != nil {
		return err
	}
	if s.Revision > 1 {
		tx.Scrub(table) // of the values before
	}
	r := row{
		ID: s.ID, Project: s.Project, Name: s.Name, Description: s.Description, Keys: string(keys), Revision: s.Revision,
		Created: store.At(s.Created), CreatedBy: s.CreatedBy, Updated: store.At(s.Updated), UpdatedBy: s.UpdatedBy, Sealed: s.Sealed,
	}
	q := tx.NewInsert().Model(&r).On("CONFLICT (id) DO UPDATE")
	for _, c := range []string{"description", "keys", "revision", "updated", "updated_by", "sealed"} {
		q = q.Set("? = EXCLUDED.?", bun.Ident(c), bun.Ident(c))
	}
	_, err = q.Exec(ctx)
	return err
}

// Delete implements secrets.Store. The page is overwritten before it is given up.
func (Store) Delete(ctx context.Context, tx *store.Tx, id secrets.ID) error {
	tx.Scrub(table)
	var r row
	if err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx); err != nil {
		return err
	}
	if _, err := tx.NewRaw(`UPDATE secrets_secret SET sealed = ? WHERE id = ?`, make([]byte, len(r.Sealed)), id).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw(`DELETE FROM secrets_secret WHERE id = ?`, id).Exec(ctx)
	return err
}

// List implements secrets.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]secrets.Secret, error) {
	var rows []row
	err := tx.NewSelect().Model(&rows).ExcludeColumn("sealed").Where("project = ? AND name > ?", project, after).OrderExpr("name").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]secrets.Secret, len(rows))
	for i, r := range rows {
		if out[i], err = r.secret(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
