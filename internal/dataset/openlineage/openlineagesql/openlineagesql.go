// Package openlineagesql keeps what others told of their runs in the metadata
// database, SQLite or PostgreSQL alike.
package openlineagesql

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of external lineage.
var Migrations = store.Embedded("openlineage", files)

// Store implements openlineage.Store.
type Store struct{}

var _ openlineage.Store = Store{}

type runRow struct {
	bun.BaseModel `bun:"table:openlineage_run,alias:t"`
	Project       project.Name `bun:",pk"`
	ID            string       `bun:",pk"`
	JobNamespace  string
	JobName       string
	Last          store.Time
	Doc           string
}

func (r runRow) record() (out openlineage.RunRecord, err error) {
	if err := json.Unmarshal([]byte(r.Doc), &out); err != nil {
		return out, fmt.Errorf("the document of run %s: %w", r.ID, err)
	}
	out.Project, out.ID = r.Project, r.ID
	return out, nil
}

// Run implements openlineage.Store.
func (Store) Run(ctx context.Context, tx *store.Tx, p project.Name, id string) (openlineage.RunRecord, error) {
	var r runRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND id = ?", p, id).Scan(ctx); err != nil {
		return openlineage.RunRecord{}, store.NotFound(err, "there is no such run")
	}
	return r.record()
}

// PutRun implements openlineage.Store.
func (Store) PutRun(ctx context.Context, tx *store.Tx, r openlineage.RunRecord) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	row := runRow{Project: r.Project, ID: r.ID, JobNamespace: r.Job.Namespace, JobName: r.Job.Name, Last: store.At(r.Last), Doc: string(doc)}
	return put(ctx, tx.NewInsert().Model(&row), "project, id", "job_namespace", "job_name", "last", "doc")
}

// Runs implements openlineage.Store.
func (Store) Runs(ctx context.Context, tx *store.Tx, p project.Name, job openlineage.Name, limit int) ([]openlineage.RunRecord, error) {
	var rows []runRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND job_namespace = ? AND job_name = ?", p, job.Namespace, job.Name).
		OrderExpr("last DESC, id").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]openlineage.RunRecord, len(rows))
	for i, r := range rows {
		if out[i], err = r.record(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DropRuns implements openlineage.Store.
func (Store) DropRuns(ctx context.Context, tx *store.Tx, p project.Name, job openlineage.Name, keep int) error {
	_, err := tx.NewRaw(`DELETE FROM openlineage_run WHERE project = ? AND job_namespace = ? AND job_name = ? AND id NOT IN (
		SELECT id FROM openlineage_run WHERE project = ? AND job_namespace = ? AND job_name = ? ORDER BY last DESC, id LIMIT ?)`,
		p, job.Namespace, job.Name, p, job.Namespace, job.Name, keep).Exec(ctx)
	return err
}

type thingRow struct {
	bun.BaseModel `bun:"table:openlineage_thing,alias:t"`
	Project       project.Name     `bun:",pk"`
	Kind          openlineage.Kind `bun:",pk"`
	Namespace     string           `bun:",pk"`
	Name          string           `bun:",pk"`
	Own           string
	Last          store.Time
	Line          string
	Doc           string
}

func (r thingRow) thing() (out openlineage.Thing, err error) {
	if err := json.Unmarshal([]byte(r.Doc), &out); err != nil {
		return out, fmt.Errorf("the document of %s %s: %w", r.Kind, r.Name, err)
	}
	out.Project = r.Project
	return out, nil
}

// Thing implements openlineage.Store.
func (Store) Thing(ctx context.Context, tx *store.Tx, p project.Name, kind openlineage.Kind, n openlineage.Name) (openlineage.Thing, error) {
	var r thingRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND kind = ? AND namespace = ? AND name = ?", p, kind, n.Namespace, n.Name).Scan(ctx); err != nil {
		return openlineage.Thing{}, store.NotFound(err, "there is no such job or dataset in the lineage")
	}
	return r.thing()
}

// PutThing implements openlineage.Store.
func (Store) PutThing(ctx context.Context, tx *store.Tx, t openlineage.Thing) error {
	doc, err := json.Marshal(t)
	if err != nil {
		return err
	}
	row := thingRow{Project: t.Project, Kind: t.Kind, Namespace: t.Namespace, Name: t.Name.Name, Own: t.Own, Last: store.At(t.Last), Line: lineOf(t), Doc: string(doc)}
	return put(ctx, tx.NewInsert().Model(&row), "project, kind, namespace, name", "own", "last", "line", "doc")
}

// Things implements openlineage.Store.
func (Store) Things(ctx context.Context, tx *store.Tx, p project.Name) (int, error) {
	return tx.NewSelect().Model((*thingRow)(nil)).Where("project = ?", p).Count(ctx)
}

// maxIndexed bounds a line and the names beside it in the index, in bytes: PostgreSQL takes no
// entry of more than 2,700.
const maxIndexed = 2400

func lineOf(t openlineage.Thing) string {
	line := store.JoinFields(t.SearchFields())
	if len(line)+len(t.Namespace)+len(t.Name.Name) > maxIndexed {
		return store.Unlisted
	}
	return line
}

// Lines implements openlineage.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx, p project.Name, after openlineage.Thing, limit int) ([]store.Line, error) {
	var rows []thingRow
	err := tx.NewSelect().Model(&rows).Column("name", "namespace", "kind", "line").Where("project = ?", p).
		Where("(name, namespace, kind) > (?, ?, ?)", after.Name.Name, after.Namespace, after.Kind).
		OrderExpr("name, namespace, kind").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]store.Line, len(rows))
	for i, r := range rows {
		t := openlineage.Thing{Kind: r.Kind, Name: openlineage.Name{Namespace: r.Namespace, Name: r.Name}}
		out[i] = store.Line{Key: openlineage.After(t), Fields: store.FieldsOf("description", t.About())}
		out[i].Add(r.Line)
	}
	return out, nil
}

type linkRow struct {
	bun.BaseModel `bun:"table:openlineage_link,alias:t"`
	Project       project.Name `bun:",pk"`
	JobNamespace  string       `bun:",pk"`
	JobName       string       `bun:",pk"`
	Output        bool         `bun:",pk"`
	Namespace     string       `bun:",pk"`
	Name          string       `bun:",pk"`
	Own           string
	Run           string
	Last          store.Time
	Columns       string
	Size          int `bun:",scanonly"`
}

// links selects links without their columns.
func links(ctx context.Context, q *bun.SelectQuery) ([]openlineage.Link, error) {
	var rows []linkRow
	if err := q.Model(&rows).ExcludeColumn("columns").ColumnExpr("length(t.columns) AS size").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]openlineage.Link, len(rows))
	for i, r := range rows {
		out[i] = openlineage.Link{
			Project: r.Project, Job: openlineage.Name{Namespace: r.JobNamespace, Name: r.JobName}, Output: r.Output,
			Dataset: openlineage.Name{Namespace: r.Namespace, Name: r.Name}, Own: r.Own, Run: r.Run, Last: r.Last.Time(), Size: r.Size,
		}
	}
	return out, nil
}

// Links implements openlineage.Store.
func (Store) Links(ctx context.Context, tx *store.Tx, p project.Name) (int, error) {
	return tx.NewSelect().Model((*linkRow)(nil)).Where("project = ?", p).Count(ctx)
}

// Columns implements openlineage.Store.
func (Store) Columns(ctx context.Context, tx *store.Tx, l openlineage.Link) (out openlineage.Columns, err error) {
	var r linkRow
	err = tx.NewSelect().Model(&r).Column("columns").Where("project = ? AND job_namespace = ? AND job_name = ? AND output = ? AND namespace = ? AND name = ?",
		l.Project, l.Job.Namespace, l.Job.Name, l.Output, l.Dataset.Namespace, l.Dataset.Name).Scan(ctx)
	if err != nil {
		return nil, store.NotFound(err, "there is no such link")
	}
	if r.Columns == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(r.Columns), &out); err != nil {
		return nil, fmt.Errorf("the columns of %s: %w", l.Dataset.Name, err)
	}
	return out, nil
}

// PutLink implements openlineage.Store.
func (Store) PutLink(ctx context.Context, tx *store.Tx, l openlineage.Link) error {
	row := linkRow{
		Project: l.Project, JobNamespace: l.Job.Namespace, JobName: l.Job.Name, Output: l.Output, Namespace: l.Dataset.Namespace, Name: l.Dataset.Name,
		Own: l.Own, Run: l.Run, Last: store.At(l.Last),
	}
	set := []string{"own", "run", "last"}
	if len(l.Columns) > 0 {
		b, err := json.Marshal(l.Columns)
		if err != nil {
			return err
		}
		row.Columns, set = string(b), append(set, "columns")
	}
	return put(ctx, tx.NewInsert().Model(&row), "project, job_namespace, job_name, output, namespace, name", set...)
}

// LinksOf implements openlineage.Store.
func (Store) LinksOf(ctx context.Context, tx *store.Tx, p project.Name, job openlineage.Name, limit int) ([]openlineage.Link, error) {
	return links(ctx, tx.NewSelect().Where("project = ? AND job_namespace = ? AND job_name = ?", p, job.Namespace, job.Name).
		OrderExpr("output, namespace, name").Limit(limit))
}

// LinksTo implements openlineage.Store.
func (Store) LinksTo(ctx context.Context, tx *store.Tx, p project.Name, n openlineage.Name, own string, limit int) ([]openlineage.Link, error) {
	q := tx.NewSelect().Where("project = ?", p).OrderExpr("job_namespace, job_name, output, namespace, name").Limit(limit)
	if own != "" {
		q = q.Where("own = ?", own)
	} else {
		q = q.Where("namespace = ? AND name = ?", n.Namespace, n.Name)
	}
	return links(ctx, q)
}

// Forget implements openlineage.Store.
func (Store) Forget(ctx context.Context, tx *store.Tx, p project.Name) error {
	for _, table := range []string{"openlineage_run", "openlineage_thing", "openlineage_link"} {
		if _, err := tx.NewRaw("DELETE FROM ? WHERE project = ?", bun.Ident(table), p).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// put inserts a row, or sets the columns of the one that is there.
func put(ctx context.Context, q *bun.InsertQuery, key string, columns ...string) error {
	q = q.On("CONFLICT (" + key + ") DO UPDATE")
	for _, c := range columns {
		q = q.Set("? = EXCLUDED.?", bun.Ident(c), bun.Ident(c))
	}
	_, err := q.Exec(ctx)
	return err
}
