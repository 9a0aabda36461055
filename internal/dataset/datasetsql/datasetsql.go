// Package datasetsql keeps datasets and their versions in the metadata
// database, SQLite or PostgreSQL alike: rows for what is searched, a JSON
// document for the rest.
package datasetsql

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of datasets.
var Migrations = store.Embedded("dataset", files)

// Store implements dataset.Store.
type Store struct{}

var _ dataset.Store = Store{}

type datasetRow struct {
	bun.BaseModel `bun:"table:dataset_dataset,alias:t"`
	ID            dataset.ID `bun:",pk"`
	Project       project.Name
	Name          string
	Revision      int64
	Latest        int64
	Accepted      int64
	Metadata      string
	Owner         string
	Created       store.Time
	Updated       store.Time
	Deleted       bool
	Line          string
	Doc           string
}

type datasetDoc struct {
	Spec       dataset.Spec      `json:"spec"`
	Fields     dataset.FieldIDs  `json:"fields"`
	Columns    []string          `json:"columns"`
	Properties map[string]string `json:"properties,omitempty"`
	Next       dataset.Schema    `json:"next,omitempty"`
	Stale      bool              `json:"stale,omitempty"`
	Lowered    int64             `json:"lowered,omitempty"`
}

func (r datasetRow) dataset() (dataset.Dataset, error) {
	var doc datasetDoc
	if err := json.Unmarshal([]byte(r.Doc), &doc); err != nil {
		return dataset.Dataset{}, fmt.Errorf("the document of dataset %s: %w", r.ID, err)
	}
	return dataset.Dataset{
		ID: r.ID, Project: r.Project, Name: r.Name, Spec: doc.Spec, Revision: r.Revision, Latest: r.Latest, Accepted: r.Accepted,
		Owner: r.Owner, Created: r.Created.Time(), Updated: r.Updated.Time(), Metadata: r.Metadata, Fields: doc.Fields, Columns: doc.Columns, Properties: doc.Properties, Next: doc.Next, Stale: doc.Stale, Lowered: doc.Lowered, Deleted: r.Deleted,
	}, nil
}

// Dataset implements dataset.Store.
func (Store) Dataset(ctx context.Context, tx *store.Tx, p project.Name, name string) (dataset.Dataset, error) {
	var r datasetRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", p, name).Scan(ctx); err != nil {
		return dataset.Dataset{}, store.NotFound(err, "there is no dataset %q", name)
	}
	return r.dataset()
}

// PutDataset implements dataset.Store.
func (Store) PutDataset(ctx context.Context, tx *store.Tx, d dataset.Dataset) error {
	doc, err := json.Marshal(datasetDoc{Spec: d.Spec, Fields: d.Fields, Columns: d.Columns, Properties: d.Properties, Next: d.Next, Stale: d.Stale, Lowered: d.Lowered})
	if err != nil {
		return err
	}
	r := datasetRow{
		ID: d.ID, Project: d.Project, Name: d.Name, Revision: d.Revision, Latest: d.Latest, Accepted: d.Accepted, Metadata: d.Metadata,
		Owner: d.Owner, Created: store.At(d.Created), Updated: store.At(d.Updated), Deleted: d.Deleted, Doc: string(doc),
		Line: store.JoinFields(append(d.SearchFields(), store.Field{Name: "description", Value: d.Spec.Description})),
	}
	q := tx.NewInsert().Model(&r).On("CONFLICT (id) DO UPDATE")
	for _, c := range []string{"revision", "latest", "accepted", "metadata", "owner", "created", "updated", "deleted", "line", "doc"} {
		q = q.Set("? = EXCLUDED.?", bun.Ident(c), bun.Ident(c))
	}
	_, err = q.Exec(ctx)
	return err
}

// Datasets implements dataset.Store.
func (Store) Datasets(ctx context.Context, tx *store.Tx, p project.Name, only []string, after string, limit int) ([]dataset.Dataset, error) {
	if only != nil && len(only) == 0 {
		return nil, nil
	}
	var rows []datasetRow
	q := tx.NewSelect().Model(&rows).Where("project = ? AND name > ?", p, after).Where("NOT deleted").OrderExpr("name").Limit(limit)
	if only != nil {
		q = q.Where("name IN (?)", bun.List(only))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]dataset.Dataset, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.dataset(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Lines implements dataset.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx, p project.Name, only []string, from bool, after string, limit int) ([]store.Line, error) {
	if only != nil && len(only) == 0 {
		return nil, nil
	}
	q := tx.NewSelect().TableExpr("dataset_dataset AS t").ColumnExpr("t.name AS key, t.owner AS owner, t.line AS line").
		Where("t.project = ? AND t.name > ?", p, after).Where("NOT t.deleted").OrderExpr("t.name").Limit(limit)
	if only != nil {
		q = q.Where("t.name IN (?)", bun.List(only))
	}
	if !from {
		return store.ReadLines(ctx, q)
	}
	// Those of a dataset and of its newest version, one after the other.
	q = q.ColumnExpr("t.id AS id, t.latest AS latest")
	return store.ReadLines(ctx, tx.NewRaw(`SELECT b.key, b.owner, b.line FROM (
		SELECT t.key, t.owner, t.line, 0 AS part FROM (?) t UNION ALL
		SELECT t.key, t.owner, v.line, 1 FROM (?) t JOIN dataset_version v ON v.dataset_id = t.id AND v.number = t.latest) b ORDER BY b.key, b.part`, q, q))
}

type versionRow struct {
	bun.BaseModel  `bun:"table:dataset_version,alias:t"`
	ID             dataset.VersionID `bun:",pk"`
	DatasetID      dataset.ID
	Project        project.Name
	Name           string
	Number         int64
	State          dataset.State
	RowCount       int64
	Digest         string
	SourceDigest   string
	Fingerprint    string
	Classification dataset.Classification
	Protection     dataset.Protection
	Created        store.Time
	CreatedBy      string
	Line           string
	Doc            string
}

type versionDoc struct {
	Reason       string               `json:"reason,omitempty"`
	Schema       dataset.Schema       `json:"schema"`
	Bytes        int64                `json:"bytes"`
	Statistics   []statistics.Summary `json:"statistics,omitempty"`
	Expectations []expectation.Result `json:"expectations,omitempty"`
	Values       []byte               `json:"values,omitempty"` // instead of the two, sealed
	Residency    residency.Label      `json:"residency"`
	Lineage      dataset.Lineage      `json:"lineage"`
	Files        []dataset.DataFile   `json:"files,omitempty"`
	Quarantined  int64                `json:"quarantined,omitempty"`
	Quarantine   []dataset.DataFile   `json:"quarantine,omitempty"`
	Room         string               `json:"room,omitempty"`
	ManifestList string               `json:"manifest_list,omitempty"`
	Snapshot     int64                `json:"snapshot,omitempty"`
	Redacts      int64                `json:"redacts,omitempty"`
	RedactedBy   int64                `json:"redacted_by,omitempty"`
	Order        int64                `json:"order,omitempty"`
	DeletedAt    time.Time            `json:"deleted_at,omitzero"`
	DeletedBy    string               `json:"deleted_by,omitempty"`
	Tombstone    *dataset.Tombstone   `json:"tombstone,omitempty"`
	Returned     []dataset.Returned   `json:"returned,omitempty"`
}

func rowOf(v dataset.Version) (versionRow, error) {
	if len(v.SealedStatistics) > 0 {
		v.Statistics, v.Expectations = nil, nil
	}
	doc, err := json.Marshal(versionDoc{
		Reason: v.Reason, Schema: v.Schema, Bytes: v.Bytes, Statistics: v.Statistics, Expectations: v.Expectations, Values: v.SealedStatistics,
		Residency: v.Residency, Lineage: v.Lineage, Files: v.Files, Quarantined: v.Quarantined, Quarantine: v.Quarantine, Room: v.Room, ManifestList: v.ManifestList, Snapshot: v.Snapshot,
		Redacts: v.Redacts, RedactedBy: v.RedactedBy, Order: v.Order, DeletedAt: v.DeletedAt, DeletedBy: v.DeletedBy, Tombstone: v.Tombstone, Returned: v.Returned,
	})
	source := ""
	if v.Lineage.Source != nil {
		source = v.Lineage.Source.Digest
	}
	return versionRow{
		SourceDigest: source, ID: v.ID, DatasetID: v.DatasetID, Project: v.Project, Name: v.Dataset, Number: v.Number, State: v.State, RowCount: v.Rows,
		Digest: v.ContentDigest, Fingerprint: v.Fingerprint, Classification: v.Classification, Protection: v.Protection,
		Created: store.At(v.Created), CreatedBy: v.CreatedBy, Line: store.JoinFields(v.Lineage.SearchFields()), Doc: string(doc),
	}, err
}

func (r versionRow) version() (dataset.Version, error) {
	var d versionDoc
	if err := json.Unmarshal([]byte(r.Doc), &d); err != nil {
		return dataset.Version{}, fmt.Errorf("the document of dataset version %s: %w", r.ID, err)
	}
	return dataset.Version{
		ID: r.ID, Project: r.Project, Dataset: r.Name, DatasetID: r.DatasetID, Number: r.Number, State: r.State, Reason: d.Reason,
		Schema: d.Schema, Rows: r.RowCount, Bytes: d.Bytes, ContentDigest: r.Digest, Statistics: d.Statistics, Expectations: d.Expectations, SealedStatistics: d.Values,
		Classification: r.Classification, Residency: d.Residency, Protection: r.Protection, Lineage: d.Lineage,
		Created: r.Created.Time(), CreatedBy: r.CreatedBy, Files: d.Files, Quarantined: d.Quarantined, Quarantine: d.Quarantine, Room: d.Room, ManifestList: d.ManifestList, Snapshot: d.Snapshot, Fingerprint: r.Fingerprint,
		Redacts: d.Redacts, RedactedBy: d.RedactedBy, Order: d.Order, DeletedAt: d.DeletedAt, DeletedBy: d.DeletedBy, Tombstone: d.Tombstone, Returned: d.Returned,
	}, nil
}

func versionsOf(rows []versionRow) ([]dataset.Version, error) {
	out := make([]dataset.Version, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.version(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// InsertVersion implements dataset.Store.
func (Store) InsertVersion(ctx context.Context, tx *store.Tx, v dataset.Version) error {
	r, err := rowOf(v)
	if err != nil {
		return err
	}
	if _, err := tx.NewInsert().Model(&r).Exec(ctx); err != nil {
		return err
	}
	for _, p := range v.Lineage.Parents {
		if _, err := tx.NewRaw(`INSERT INTO dataset_parent (child, parent) VALUES (?, ?)`, v.ID, p.ID).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// UpdateVersion implements dataset.Store.
func (Store) UpdateVersion(ctx context.Context, tx *store.Tx, v dataset.Version) error {
	r, err := rowOf(v)
	if err != nil {
		return err
	}
	_, err = tx.NewUpdate().Model(&r).Column("state", "classification", "line", "doc").WherePK().Exec(ctx)
	return err
}

// ClassesOf implements dataset.Store.
func (Store) ClassesOf(ctx context.Context, tx *store.Tx, digests []string) ([]dataset.Classification, error) {
	var classes []dataset.Classification
	err := tx.NewSelect().Model((*versionRow)(nil)).ColumnExpr("DISTINCT classification").
		Where("row_count > 0 AND (digest IN (?) OR source_digest IN (?))", bun.List(digests), bun.List(digests)).Scan(ctx, &classes)
	return classes, err
}

// Version implements dataset.Store.
func (Store) Version(ctx context.Context, tx *store.Tx, d dataset.ID, number int64) (dataset.Version, error) {
	var r versionRow
	if err := tx.NewSelect().Model(&r).Where("dataset_id = ? AND number = ?", d, number).Scan(ctx); err != nil {
		return dataset.Version{}, store.NotFound(err, "there is no version %d", number)
	}
	return r.version()
}

// VersionByID implements dataset.Store.
func (Store) VersionByID(ctx context.Context, tx *store.Tx, p project.Name, id dataset.VersionID) (dataset.Version, error) {
	var r versionRow
	if err := tx.NewSelect().Model(&r).Where("id = ? AND project = ?", id, p).Scan(ctx); err != nil {
		return dataset.Version{}, store.NotFound(err, "there is no dataset version %s", id)
	}
	return r.version()
}

// Twin implements dataset.Store.
func (Store) Twin(ctx context.Context, tx *store.Tx, d dataset.ID, fingerprint string) (dataset.Version, error) {
	var r versionRow
	err := tx.NewSelect().Model(&r).Where("dataset_id = ? AND fingerprint = ? AND state <> ?", d, fingerprint, dataset.Deleted).
		OrderExpr("state, number").Limit(1).Scan(ctx)
	if err != nil {
		return dataset.Version{}, store.NotFound(err, "there is no version with this fingerprint")
	}
	return r.version()
}

// Versions implements dataset.Store.
func (Store) Versions(ctx context.Context, tx *store.Tx, d dataset.ID, state dataset.State, below int64, limit int) ([]dataset.Version, error) {
	var rows []versionRow
	q := tx.NewSelect().Model(&rows).Where("dataset_id = ?", d).OrderExpr("number DESC").Limit(limit)
	if below > 0 {
		q = q.Where("number < ?", below)
	}
	if state != "" {
		q = q.Where("state = ?", state)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	return versionsOf(rows)
}

// Children implements dataset.Store.
func (Store) Children(ctx context.Context, tx *store.Tx, id dataset.VersionID, limit int) ([]dataset.Version, error) {
	var rows []versionRow
	err := tx.NewSelect().Model(&rows).Where("id IN (SELECT child FROM dataset_parent WHERE parent = ?)", id).
		OrderExpr("created, id").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	return versionsOf(rows)
}

type personsRow struct {
	bun.BaseModel `bun:"table:dataset_persons,alias:t"`
	Version       dataset.VersionID `bun:",pk"`
	Entity        string            `bun:",pk"`
	Part          int64             `bun:",pk"`
	Project       project.Name
	Sealed        []byte
}

// PutPersons implements dataset.Store.
func (Store) PutPersons(ctx context.Context, tx *store.Tx, p dataset.Persons) error {
	r := personsRow{Version: p.Version, Entity: p.Entity, Part: p.Part, Project: p.Project, Sealed: p.Sealed}
	_, err := tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// DropPersons implements dataset.Store.
func (Store) DropPersons(ctx context.Context, tx *store.Tx, v dataset.VersionID) error {
	_, err := tx.NewDelete().Model((*personsRow)(nil)).Where("version = ?", v).Exec(ctx)
	return err
}

// Persons implements dataset.Store.
func (Store) Persons(ctx context.Context, tx *store.Tx, after dataset.Persons, limit int) ([]dataset.Persons, error) {
	var rows []personsRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND entity = ?", after.Project, after.Entity).
		Where("version > ? OR version = ? AND part > ?", after.Version, after.Version, after.Part).OrderExpr("version, part").Limit(limit).Scan(ctx)
	out := make([]dataset.Persons, len(rows))
	for i, r := range rows {
		out[i] = dataset.Persons{Version: r.Version, Entity: r.Entity, Part: r.Part, Project: r.Project, Sealed: r.Sealed}
	}
	return out, err
}

// Buried implements dataset.Store.
func (Store) Buried(ctx context.Context, tx *store.Tx, p project.Name, after dataset.VersionID, limit int) ([]dataset.Version, error) {
	var rows []versionRow
	if err := tx.NewSelect().Model(&rows).Where("project = ? AND state = ? AND id > ?", p, dataset.Deleted, after).OrderExpr("id").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	return versionsOf(rows)
}

type stagingRow struct {
	bun.BaseModel `bun:"table:dataset_staging,alias:t"`
	ID            dataset.VersionID `bun:",pk"`
	Project       project.Name
	Dataset       string
	Room          string
	Instance      string
	Deadline      store.Time
}

// InsertStaging implements dataset.Store.
func (Store) InsertStaging(ctx context.Context, tx *store.Tx, s dataset.Staging) error {
	r := stagingRow{ID: s.ID, Project: s.Project, Dataset: s.Dataset, Room: s.Room, Instance: s.Instance, Deadline: store.At(s.Deadline)}
	_, err := tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// DeleteStaging implements dataset.Store.
func (Store) DeleteStaging(ctx context.Context, tx *store.Tx, id dataset.VersionID) error {
	_, err := tx.NewRaw(`DELETE FROM dataset_staging WHERE id = ?`, id).Exec(ctx)
	return err
}

// Stagings implements dataset.Store.
func (Store) Stagings(ctx context.Context, tx *store.Tx, instance string, now time.Time) ([]dataset.Staging, error) {
	var rows []stagingRow
	err := tx.NewSelect().Model(&rows).Where("instance = ? OR deadline < ?", instance, store.At(now)).OrderExpr("id").Scan(ctx)
	out := make([]dataset.Staging, len(rows))
	for i, r := range rows {
		out[i] = dataset.Staging{ID: r.ID, Project: r.Project, Dataset: r.Dataset, Room: r.Room, Instance: r.Instance, Deadline: r.Deadline.Time()}
	}
	return out, err
}
