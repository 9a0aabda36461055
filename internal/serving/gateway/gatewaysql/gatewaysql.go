// Package gatewaysql keeps gateways, and what a gateway mirrors, in the metadata
// database.
package gatewaysql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("gateway", files)

// Store implements gateway.Store.
type Store struct{}

var _ gateway.Store = Store{}

type row struct {
	Project   string     `bun:"project"`
	Name      string     `bun:"name"`
	Spec      string     `bun:"spec"`
	CreatedAt store.Time `bun:"created_at"`
	UpdatedAt store.Time `bun:"updated_at"`
	Revision  int64      `bun:"revision"`
	Seen      string     `bun:"seen"`
}

func (r row) gateway() (gateway.Gateway, error) {
	g := gateway.Gateway{Project: r.Project, Name: r.Name, CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision}
	return g, errors.Join(json.Unmarshal([]byte(r.Spec), &g.Spec), json.Unmarshal([]byte(r.Seen), &g.Seen))
}

// Put implements gateway.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, g gateway.Gateway) error {
	spec, err := json.Marshal(g.Spec)
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO gateway (project, name, spec, created_at, updated_at, revision) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (project, name) DO UPDATE SET spec = EXCLUDED.spec, updated_at = EXCLUDED.updated_at, revision = EXCLUDED.revision`,
		g.Project, g.Name, string(spec), store.At(g.CreatedAt), store.At(g.UpdatedAt), g.Revision).Exec(ctx)
	return err
}

// One implements gateway.Store.
func (Store) One(ctx context.Context, tx *store.Tx, project, name string) (gateway.Gateway, error) {
	var r row
	err := tx.NewRaw("SELECT * FROM gateway WHERE project = ? AND name = ?", project, name).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return gateway.Gateway{}, fault.New(fault.NotFound, "gateway %q not found", name)
	}
	if err != nil {
		return gateway.Gateway{}, err
	}
	return r.gateway()
}

// List implements gateway.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]gateway.Gateway, error) {
	var rows []row
	if err := tx.NewRaw("SELECT * FROM gateway WHERE project = ? AND name > ? ORDER BY name LIMIT ?", project, after, limit).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]gateway.Gateway, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.gateway(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Delete implements gateway.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, project, name string) error {
	_, err := tx.NewRaw("DELETE FROM gateway WHERE project = ? AND name = ?", project, name).Exec(ctx)
	return err
}

// Saw implements gateway.Store.
func (Store) Saw(ctx context.Context, tx *store.Tx, project, name string, seen gateway.Seen) error {
	b, err := json.Marshal(seen)
	if err == nil {
		_, err = tx.NewRaw("UPDATE gateway SET seen = ? WHERE project = ? AND name = ?", string(b), project, name).Exec(ctx)
	}
	return err
}

// Position implements gateway.Store.
func (Store) Position(ctx context.Context, tx *store.Tx, project, name string, deployment serving.ID, instance string) (gateway.Position, error) {
	p := gateway.Position{Project: project, Gateway: name, Deployment: deployment, Instance: instance}
	err := tx.NewRaw("SELECT position, next, ours FROM gateway_position WHERE project = ? AND gateway = ? AND deployment = ? AND instance = ?", project, name, string(deployment), instance).
		Scan(ctx, &p.At, &p.Next, &p.Before)
	if errors.Is(err, sql.ErrNoRows) {
		return p, fault.New(fault.NotFound, "gateway %s has not delivered predictions of that deployment", name)
	}
	return p, err
}

// PutPosition implements gateway.Store.
func (Store) PutPosition(ctx context.Context, tx *store.Tx, p gateway.Position) error {
	_, err := tx.NewRaw(`INSERT INTO gateway_position (project, gateway, deployment, instance, position, next, ours) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (project, gateway, deployment, instance) DO UPDATE SET position = EXCLUDED.position, next = EXCLUDED.next, ours = EXCLUDED.ours`,
		p.Project, p.Gateway, string(p.Deployment), p.Instance, p.At, p.Next, p.Before).Exec(ctx)
	return err
}
