// Package webhooksql keeps webhooks in the metadata database.
package webhooksql

import (
	"context"
	"embed"
	"encoding/json"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("webhook", files)

// Store implements webhook.Store.
type Store struct{}

var _ webhook.Store = Store{}

type row struct {
	bun.BaseModel `bun:"table:webhook"`

	ID          string     `bun:"id,pk"`
	Project     string     `bun:"project"`
	Name        string     `bun:"name"`
	Description string     `bun:"description"`
	URL         string     `bun:"url"`
	Events      string     `bun:"events"`
	Disabled    bool       `bun:"disabled"`
	Sealed      []byte     `bun:"sealed"`
	Created     store.Time `bun:"created"`
	Updated     store.Time `bun:"updated"`
}

func (r row) webhook() (webhook.Webhook, error) {
	w := webhook.Webhook{
		Project: r.Project, ID: webhook.ID(r.ID), Name: r.Name, Description: r.Description, URL: r.URL, Disabled: r.Disabled, Sealed: r.Sealed,
		Created: r.Created.Time(), Updated: r.Updated.Time(),
	}
	return w, fault.Wrap(json.Unmarshal([]byte(r.Events), &w.Events), "webhook %s", r.ID)
}

// Put implements webhook.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, w webhook.Webhook) error {
	events, err := json.Marshal(w.Events)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&row{
		ID: string(w.ID), Project: w.Project, Name: w.Name, Description: w.Description, URL: w.URL, Events: string(events), Disabled: w.Disabled,
		Sealed: w.Sealed, Created: store.At(w.Created), Updated: store.At(w.Updated),
	}).On("CONFLICT (id) DO UPDATE").
		Set("name = EXCLUDED.name, description = EXCLUDED.description, url = EXCLUDED.url, events = EXCLUDED.events, disabled = EXCLUDED.disabled, sealed = EXCLUDED.sealed, updated = EXCLUDED.updated").Exec(ctx)
	return err
}

// One implements webhook.Store.
func (Store) One(ctx context.Context, tx *store.Tx, project string, id webhook.ID) (webhook.Webhook, error) {
	var r row
	if err := tx.NewSelect().Model(&r).Where("id = ? AND project = ?", string(id), project).Scan(ctx); err != nil {
		return webhook.Webhook{}, store.NotFound(err, "Webhook with ID %s not found.", id)
	}
	return r.webhook()
}

// List implements webhook.Store. Identifiers sort by time.
func (Store) List(ctx context.Context, tx *store.Tx, project string, offset, limit int) ([]webhook.Webhook, error) {
	var rows []row
	if err := tx.NewSelect().Model(&rows).Where("project = ?", project).OrderBy("id", bun.OrderDesc).Limit(limit).Offset(offset).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]webhook.Webhook, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.webhook(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Delete implements webhook.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, project string, id webhook.ID) error {
	res, err := tx.NewDelete().Model((*row)(nil)).Where("id = ? AND project = ?", string(id), project).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return fault.New(fault.NotFound, "Webhook with ID %s not found.", id)
}

// Forget implements webhook.Store.
func (Store) Forget(ctx context.Context, tx *store.Tx, project string) error {
	_, err := tx.NewDelete().Model((*row)(nil)).Where("project = ?", project).Exec(ctx)
	return err
}
