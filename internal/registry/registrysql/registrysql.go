// Package registrysql keeps registered models in the metadata database, SQLite
// or PostgreSQL alike.
//
// registrysql.go holds models and keys, version.go versions and their files, imported.go what
// came from other MLflow servers.
package registrysql

import (
	"context"
	"embed"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of the registry.
var Migrations = store.Embedded("registry", files)

// Store implements registry.Store.
type Store struct {
	ModelStore
	VersionStore
	ApprovalStore
	KeyStore
	ImportStore
}

// ModelStore implements registry.ModelStore.
type ModelStore struct{}

// VersionStore implements registry.VersionStore.
type VersionStore struct{}

// ApprovalStore implements registry.ApprovalStore.
type ApprovalStore struct{}

// KeyStore implements registry.KeyStore.
type KeyStore struct{}

var _ registry.Store = Store{}

func isSQLite(tx *store.Tx) bool { return tx.Dialect().Name() == dialect.SQLite }

type modelRow struct {
	bun.BaseModel `bun:"table:registry_model,alias:t"`
	ID            string `bun:",pk"`
	Project       string
	Name          string
	Description   string
	Owner         string
	Created       store.Time
	Updated       store.Time
}

func (r modelRow) model() registry.Model {
	return registry.Model{
		Project: project.Name(r.Project), ID: registry.ModelID(r.ID), Name: r.Name, Description: r.Description,
		Owner: r.Owner, Created: r.Created.Time(), Updated: r.Updated.Time(),
	}
}

// PutModel implements registry.Store.
func (ModelStore) PutModel(ctx context.Context, tx *store.Tx, m registry.Model) error {
	row := modelRow{
		ID: string(m.ID), Project: string(m.Project), Name: m.Name, Description: m.Description, Owner: m.Owner,
		Created: store.At(m.Created), Updated: store.At(m.Updated),
	}
	if _, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").
		Set("name = EXCLUDED.name").Set("description = EXCLUDED.description").Set("updated = EXCLUDED.updated").Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw("UPDATE registry_version SET model_name = ? WHERE model = ? AND model_name <> ?", m.Name, row.ID, m.Name).Exec(ctx)
	return err
}

// Model implements registry.Store.
func (s ModelStore) Model(ctx context.Context, tx *store.Tx, p project.Name, name string) (registry.Model, error) {
	var row modelRow
	err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.name = ?", string(p), name).Scan(ctx)
	if err != nil {
		return registry.Model{}, store.NotFound(err, "Registered Model with name=%s not found", name)
	}
	return s.filled(ctx, tx, row)
}

// ModelName implements registry.Store.
func (ModelStore) ModelName(ctx context.Context, tx *store.Tx, p project.Name, id registry.ModelID) (string, error) {
	var name string
	err := tx.NewRaw("SELECT name FROM registry_model WHERE project = ? AND id = ?", string(p), string(id)).Scan(ctx, &name)
	return name, store.NotFound(err, "Registered Model with id=%s not found", id)
}

func (ModelStore) filled(ctx context.Context, tx *store.Tx, row modelRow) (registry.Model, error) {
	m := row.model()
	if err := tx.NewRaw("SELECT key, value FROM registry_model_tag WHERE model = ? ORDER BY key", row.ID).Scan(ctx, &m.Tags); err != nil {
		return m, err
	}
	err := tx.NewRaw("SELECT name, version FROM registry_alias WHERE model = ? ORDER BY name", row.ID).Scan(ctx, &m.Aliases)
	return m, err
}

// condition is a WHERE clause under construction.
type condition struct {
	parts []string
	args  []any
}

func (c *condition) and(part string, args ...any) {
	c.parts = append(c.parts, part)
	c.args = append(c.args, args...)
}

// where adds a comparison on a column, or on a table of tags.
func (c *condition) where(cmp search.Comparison, columns map[string]string, numeric func(string) bool, tags string, sqlite bool) {
	if cmp.Entity == search.Tag {
		part, args := search.Where(cmp, "x.value", false, sqlite)
		c.and("EXISTS (SELECT 1 FROM "+tags+" AND x.key = ? AND "+part+")", append([]any{cmp.Key}, args...)...)
		return
	}
	part, args := search.Where(cmp, columns[cmp.Key], numeric(cmp.Key), sqlite)
	c.and(part, args...)
}

func (c *condition) String() string { return strings.Join(c.parts, " AND ") }

func direction(o search.Order, columns map[string]string) string {
	if o.Desc {
		return columns[o.Key] + " DESC"
	}
	return columns[o.Key] + " ASC"
}

func isTimestamp(key string) bool {
	return key == "creation_timestamp" || key == "last_updated_timestamp" || key == "version_number"
}

var modelColumns = map[string]string{
	"name": "t.name", "creation_timestamp": "t.created / 1000", "last_updated_timestamp": "t.updated / 1000",
}

// SearchModels implements registry.Store.
func (s ModelStore) SearchModels(ctx context.Context, tx *store.Tx, p project.Name, q registry.Query) ([]registry.Model, error) {
	var c condition
	c.and("t.project = ?", string(p))
	sqlite := isSQLite(tx)
	for _, cmp := range q.Where {
		c.where(cmp, modelColumns, isTimestamp, "registry_model_tag x WHERE x.model = t.id", sqlite)
	}
	sel := tx.NewSelect().Model((*modelRow)(nil)).Where(c.String(), c.args...)
	for _, o := range q.Order {
		if o.Entity == search.Tag {
			sel = sel.OrderExpr("(SELECT x.value FROM registry_model_tag x WHERE x.model = t.id AND x.key = ?) "+map[bool]string{true: "DESC", false: "ASC"}[o.Desc], o.Key)
			continue
		}
		sel = sel.OrderExpr(direction(o, modelColumns))
	}
	var rows []modelRow
	if err := sel.OrderExpr("t.name").Limit(q.Limit).Offset(q.Offset).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	return s.models(ctx, tx, rows)
}

// ModelLines implements registry.Store: it also has the fields of versions that are not the
// latest.
func (ModelStore) ModelLines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error) {
	var models []struct{ ID, Name, Owner, Description string }
	page := tx.NewSelect().Table("registry_model").Where("project = ? AND name > ?", string(p), after).OrderExpr("name").Limit(limit)
	if err := page.Clone().Column("id", "name", "owner", "description").Scan(ctx, &models); err != nil {
		return nil, err
	}
	lines, at := make([]store.Line, len(models)), map[string]*store.Line{}
	for i, m := range models {
		lines[i] = store.Line{Key: m.Name, Owner: m.Owner, Fields: store.FieldsOf("description", m.Description)}
		at[m.ID] = &lines[i]
	}
	var tags []struct{ Model, Key, Value string }
	if err := tx.NewRaw("SELECT model, key, value FROM registry_model_tag WHERE model IN (SELECT id FROM (?) AS page)", page.Clone().Column("id")).Scan(ctx, &tags); err != nil {
		return nil, err
	}
	for _, t := range tags {
		if l := at[t.Model]; l != nil {
			l.Fields = append(l.Fields, tracking.TagFields(tracking.Pair{Key: t.Key, Value: t.Value})...)
		}
	}
	var versions []struct{ Model, Line string }
	if err := tx.NewRaw("SELECT DISTINCT model, line FROM registry_version WHERE model IN (SELECT id FROM (?) AS page)", page.Clone().Column("id")).Scan(ctx, &versions); err != nil {
		return nil, err
	}
	for _, v := range versions {
		if l := at[v.Model]; l != nil {
			l.Add(v.Line)
		}
	}
	return lines, nil
}

// ModelsOf implements registry.Store.
func (s ModelStore) ModelsOf(ctx context.Context, tx *store.Tx, p project.Name, names []string) ([]registry.Model, error) {
	var rows []modelRow
	if err := tx.NewSelect().Model(&rows).Where("t.project = ? AND t.name IN (?)", string(p), bun.List(names)).Scan(ctx); err != nil {
		return nil, err
	}
	return s.models(ctx, tx, rows)
}

func (s ModelStore) models(ctx context.Context, tx *store.Tx, rows []modelRow) ([]registry.Model, error) {
	out := make([]registry.Model, len(rows))
	for i, row := range rows {
		var err error
		if out[i], err = s.filled(ctx, tx, row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DeleteModel implements registry.Store.
func (ModelStore) DeleteModel(ctx context.Context, tx *store.Tx, id registry.ModelID) error {
	for _, query := range []string{
		"DELETE FROM registry_model_tag WHERE model = ?", "DELETE FROM registry_alias WHERE model = ?", "DELETE FROM registry_model WHERE id = ?",
	} {
		if _, err := tx.NewRaw(query, string(id)).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// PutModelTags implements registry.Store.
func (ModelStore) PutModelTags(ctx context.Context, tx *store.Tx, id registry.ModelID, tags []tracking.Pair) error {
	for _, t := range tags {
		_, err := tx.NewRaw("INSERT INTO registry_model_tag (model, key, value) VALUES (?, ?, ?) ON CONFLICT (model, key) DO UPDATE SET value = excluded.value",
			string(id), t.Key, t.Value).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteModelTag implements registry.Store.
func (ModelStore) DeleteModelTag(ctx context.Context, tx *store.Tx, id registry.ModelID, key string) error {
	_, err := tx.NewRaw("DELETE FROM registry_model_tag WHERE model = ? AND key = ?", string(id), key).Exec(ctx)
	return err
}

// PutAlias implements registry.Store.
func (ModelStore) PutAlias(ctx context.Context, tx *store.Tx, id registry.ModelID, a registry.Alias) error {
	_, err := tx.NewRaw("INSERT INTO registry_alias (model, name, version) VALUES (?, ?, ?) ON CONFLICT (model, name) DO UPDATE SET version = excluded.version",
		string(id), a.Name, a.Version).Exec(ctx)
	return err
}

// DeleteAlias implements registry.Store.
func (ModelStore) DeleteAlias(ctx context.Context, tx *store.Tx, id registry.ModelID, alias string) error {
	_, err := tx.NewRaw("DELETE FROM registry_alias WHERE model = ? AND name = ?", string(id), alias).Exec(ctx)
	return err
}

type keyRow struct {
	bun.BaseModel `bun:"table:registry_key,alias:t"`
	Project       string `bun:",pk"`
	ID            string
	Public        string
	Private       []byte
}

// InsertKey implements registry.Store.
func (s KeyStore) InsertKey(ctx context.Context, tx *store.Tx, k registry.Key) (registry.Key, error) {
	row := keyRow{Project: string(k.Project), ID: k.ID, Public: k.Public, Private: k.Private}
	if _, err := tx.NewInsert().Model(&row).On("CONFLICT (project) DO NOTHING").Exec(ctx); err != nil {
		return registry.Key{}, err
	}
	return s.Key(ctx, tx, k.Project)
}

// Key implements registry.Store.
func (KeyStore) Key(ctx context.Context, tx *store.Tx, p project.Name) (registry.Key, error) {
	var row keyRow
	err := tx.NewSelect().Model(&row).Where("t.project = ?", string(p)).Scan(ctx)
	return registry.Key{Project: p, ID: row.ID, Public: row.Public, Private: row.Private}, store.NotFound(err, "project %s has no signing key", p)
}

// FromRun reports whether a version came from a run.
func (VersionStore) FromRun(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error) {
	return tx.NewSelect().Table("registry_version").Where("run <> '' AND project = ? AND run = ?", p, run).Exists(ctx)
}

// OfJobs gives those of a project's jobs from which versions of models came.
func (VersionStore) OfJobs(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) (of []string, err error) {
	err = tx.NewSelect().Table("registry_version").ColumnExpr("DISTINCT job").Where("job <> '' AND job IN (?)", store.Texts(jobs)).Where("project = ?", p).Scan(ctx, &of)
	return of, err
}

// Mentions gives the texts of model versions that have a word in them.
func (VersionStore) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	return store.Mentions(ctx, tx, store.Mention{Table: "registry_version", Column: "datasets", By: "'model ' || model_name || '@' || CAST(number AS TEXT)"}, string(p), word, each)
}
