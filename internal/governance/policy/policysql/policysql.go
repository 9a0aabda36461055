// Package policysql stores the policies of projects in SQLite or PostgreSQL.
package policysql

import (
	"context"
	"database/sql"
	"embed"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("policy", files)

// Store implements authorizer.Store. The zero Store is ready.
type Store struct{}

var _ authorizer.Store = Store{}

type row struct {
	bun.BaseModel `bun:"table:policy_policy"`

	Project     string `bun:",pk"`
	Name        string `bun:",pk"`
	Description string
	Cedar       string
	UpdatedAt   store.Time
	UpdatedBy   string
	Revision    int64
}

func (r row) policy() authorizer.Policy {
	return authorizer.Policy{
		Project: project.Name(r.Project), Name: r.Name, Spec: authorizer.Spec{Description: r.Description, Cedar: r.Cedar},
		UpdatedAt: r.UpdatedAt.Time(), UpdatedBy: r.UpdatedBy, Revision: r.Revision,
	}
}

// Put implements authorizer.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, p authorizer.Policy) error {
	_, err := tx.NewInsert().Model(&row{
		Project: string(p.Project), Name: p.Name, Description: p.Description, Cedar: p.Cedar,
		UpdatedAt: store.At(p.UpdatedAt), UpdatedBy: p.UpdatedBy, Revision: p.Revision,
	}).On("CONFLICT (project, name) DO UPDATE").
		Set("description = EXCLUDED.description, cedar = EXCLUDED.cedar, updated_at = EXCLUDED.updated_at").
		Set("updated_by = EXCLUDED.updated_by, revision = EXCLUDED.revision").Exec(ctx)
	return err
}

// One implements authorizer.Store.
func (Store) One(ctx context.Context, tx *store.Tx, in project.Name, name string) (authorizer.Policy, error) {
	var r row
	err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", in, name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		err = fault.New(fault.NotFound, "policy %s does not exist", name)
	}
	return r.policy(), err
}

// List implements authorizer.Store.
func (Store) List(ctx context.Context, tx *store.Tx, in project.Name) ([]authorizer.Policy, error) {
	var rows []row
	if err := tx.NewSelect().Model(&rows).Where("project = ?", in).Order("name").Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]authorizer.Policy, len(rows))
	for i, r := range rows {
		list[i] = r.policy()
	}
	return list, nil
}

// Delete implements authorizer.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, in project.Name, name string) error {
	_, err := tx.NewDelete().Model((*row)(nil)).Where("project = ? AND name = ?", in, name).Exec(ctx)
	return err
}
