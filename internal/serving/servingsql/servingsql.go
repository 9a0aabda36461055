// Package servingsql keeps deployments in the metadata database.
package servingsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Migrations{Name: "serving", FS: sub(files)}

func sub(f embed.FS) fs.FS {
	s, err := fs.Sub(f, "migrations")
	if err != nil {
		panic(err) // the directory is embedded
	}
	return s
}

// Store implements serving.Store.
type Store struct{}

var _ serving.Store = Store{}

type row struct {
	Project        string     `bun:"project,pk"`
	Name           string     `bun:"name,pk"`
	ID             string     `bun:"id"`
	Spec           string     `bun:"spec"`
	Model          string     `bun:"model"`
	Version        int64      `bun:"version"`
	Digest         string     `bun:"digest"`
	Residency      string     `bun:"residency"`
	Classification string     `bun:"classification"`
	CreatedAt      store.Time `bun:"created_at"`
	UpdatedAt      store.Time `bun:"updated_at"`
	Revision       int64      `bun:"revision"`
}

const columns = "project, name, id, spec, model, version, digest, residency, classification, created_at, updated_at, revision"

// Put implements serving.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, d serving.Deployment) error {
	spec, err := json.Marshal(d.Spec)
	if err != nil {
		return err
	}
	label, err := json.Marshal(d.Residency)
	if err != nil {
		return err
	}
	r := row{
		Project: d.Project, Name: d.Name, ID: string(d.ID), Spec: string(spec), Model: d.Model, Version: d.Version,
		Digest: d.Digest, Residency: string(label), Classification: d.Classification,
		CreatedAt: store.At(d.CreatedAt), UpdatedAt: store.At(d.UpdatedAt), Revision: d.Revision,
	}
	_, err = tx.NewInsert().Model(&r).ModelTableExpr("serving_deployment").
		On("CONFLICT (project, name) DO UPDATE").
		Set("spec = EXCLUDED.spec, model = EXCLUDED.model, version = EXCLUDED.version, digest = EXCLUDED.digest, residency = EXCLUDED.residency, classification = EXCLUDED.classification, updated_at = EXCLUDED.updated_at, revision = EXCLUDED.revision").
		Exec(ctx)
	return err
}

// One implements serving.Store.
func (Store) One(ctx context.Context, tx *store.Tx, project, name string) (serving.Deployment, error) {
	var r row
	err := tx.NewRaw("SELECT "+columns+" FROM serving_deployment WHERE project = ? AND name = ?", project, name).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return serving.Deployment{}, fault.New(fault.NotFound, "no deployment %q", name)
	}
	if err != nil {
		return serving.Deployment{}, err
	}
	return r.deployment()
}

// List implements serving.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]serving.Deployment, error) {
	return scan(ctx, tx, "WHERE project = ? AND name > ? ORDER BY name LIMIT ?", project, after, limit)
}

// All implements serving.Store.
func (Store) All(ctx context.Context, tx *store.Tx) ([]serving.Deployment, error) {
	return scan(ctx, tx, "ORDER BY project, name")
}

// Of lists the deployments of a model, by name.
func (Store) Of(ctx context.Context, tx *store.Tx, project, model string) ([]serving.Deployment, error) {
	return scan(ctx, tx, "WHERE project = ? AND model = ? ORDER BY name", project, model)
}

func scan(ctx context.Context, tx *store.Tx, where string, args ...any) ([]serving.Deployment, error) {
	var rows []row
	if err := tx.NewRaw("SELECT "+columns+" FROM serving_deployment "+where, args...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]serving.Deployment, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.deployment(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Delete implements serving.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, project, name string) error {
	res, err := tx.NewRaw("DELETE FROM serving_deployment WHERE project = ? AND name = ?", project, name).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return fault.New(fault.NotFound, "no deployment %q", name)
	}
	return nil
}

func (r row) deployment() (serving.Deployment, error) {
	d := serving.Deployment{
		ID: serving.ID(r.ID), Project: r.Project, Name: r.Name, Model: r.Model, Version: r.Version, Digest: r.Digest,
		Classification: r.Classification, CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
	}
	if err := json.Unmarshal([]byte(r.Spec), &d.Spec); err != nil {
		return d, fault.Wrap(err, "deployment %s", r.Name)
	}
	var label residency.Label
	if err := json.Unmarshal([]byte(r.Residency), &label); err != nil {
		return d, fault.Wrap(err, "deployment %s", r.Name)
	}
	d.Residency = label
	return d, nil
}
