package registrysql

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
)

// ImportStore implements registry.ImportStore.
type ImportStore struct{}

// ImportedObject implements registry.ImportStore.
func (ImportStore) ImportedObject(ctx context.Context, tx *store.Tx, p project.Name, name string, number int) (registry.Imported, error) {
	var row struct {
		Model, Origin, Base, Aliases string
		Created                      int64
	}
	err := tx.NewRaw("SELECT model, created, origin, base, aliases FROM registry_imported WHERE project = ? AND name = ? AND number = ?", string(p), name, number).Scan(ctx, &row)
	if err != nil {
		return registry.Imported{}, store.NotFound(err, "%s was not imported", name)
	}
	out := registry.Imported{Name: name, Number: number, Model: registry.ModelID(row.Model), Created: row.Created, Origin: row.Origin}
	return out, errors.Join(json.Unmarshal([]byte(row.Base), &out.Base), json.Unmarshal([]byte(row.Aliases), &out.Aliases))
}

// ImportedObjects implements registry.ImportStore.
func (ImportStore) ImportedObjects(ctx context.Context, tx *store.Tx, p project.Name, after registry.Imported, limit int) ([]registry.Imported, error) {
	var rows []struct {
		Name, Model, Origin string
		Number, Created     int64
	}
	err := tx.NewRaw(`SELECT i.name, i.number, i.model, i.created, i.origin FROM registry_imported i JOIN registry_model m ON m.id = i.model
		WHERE i.project = ? AND (i.name > ? OR i.name = ? AND i.number > ?)
			AND (i.number = 0 OR EXISTS (SELECT 1 FROM registry_version v WHERE v.model = i.model AND v.number = i.number AND v.state <> 'deleted'))
		ORDER BY i.name, i.number LIMIT ?`, string(p), after.Name, after.Name, after.Number, limit).Scan(ctx, &rows)
	out := make([]registry.Imported, len(rows))
	for i, r := range rows {
		out[i] = registry.Imported{Name: r.Name, Number: int(r.Number), Model: registry.ModelID(r.Model), Created: r.Created, Origin: r.Origin}
	}
	return out, err
}

// PutImported implements registry.ImportStore.
func (ImportStore) PutImported(ctx context.Context, tx *store.Tx, p project.Name, r registry.Imported) error {
	base, err := json.Marshal(r.Base)
	if err != nil {
		return err
	}
	aliases, err := json.Marshal(r.Aliases)
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO registry_imported (project, name, number, model, created, origin, base, aliases) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (project, name, number) DO UPDATE SET model = excluded.model, created = excluded.created, origin = excluded.origin, base = excluded.base, aliases = excluded.aliases`,
		string(p), r.Name, r.Number, string(r.Model), r.Created, r.Origin, string(base), string(aliases)).Exec(ctx)
	return err
}

// RenameImported implements registry.ImportStore.
func (ImportStore) RenameImported(ctx context.Context, tx *store.Tx, p project.Name, from, to string) error {
	_, err := tx.NewRaw("UPDATE registry_imported SET name = ? WHERE project = ? AND name = ?", to, string(p), from).Exec(ctx)
	return err
}
