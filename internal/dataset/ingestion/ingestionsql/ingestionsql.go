// Package ingestionsql keeps sources and their runs in the metadata database,
// SQLite or PostgreSQL alike.
package ingestionsql

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of ingestion.
var Migrations = store.Embedded("ingestion", files)

// Store implements ingestion.Store.
type Store struct{}

var _ ingestion.Store = Store{}

type sourceRow struct {
	bun.BaseModel `bun:"table:ingestion_source,alias:t"`
	ID            ingestion.ID `bun:",pk"`
	Project       project.Name
	Name          string
	Dataset       string
	Secret        string
	Scheduled     bool
	Revision      int64
	Owner         string
	Created       store.Time
	Updated       store.Time
	Line          string
	Doc           string
}

type sourceDoc struct {
	Spec      ingestion.Spec  `json:"spec"`
	Position  source.Position `json:"position,omitempty"`
	Version   int64           `json:"version"`
	Scheduled time.Time       `json:"scheduled,omitzero"`
}

func (r sourceRow) source() (ingestion.Source, error) {
	var d sourceDoc
	if err := json.Unmarshal([]byte(r.Doc), &d); err != nil {
		return ingestion.Source{}, fmt.Errorf("the document of source %s: %w", r.ID, err)
	}
	return ingestion.Source{
		ID: r.ID, Project: r.Project, Name: r.Name, Spec: d.Spec, What: d.Spec.From.What(), Revision: r.Revision, Position: d.Position,
		Version: d.Version, Owner: r.Owner, Created: r.Created.Time(), Updated: r.Updated.Time(), Scheduled: d.Scheduled,
	}, nil
}

func sourcesOf(rows []sourceRow, err error) ([]ingestion.Source, error) {
	if err != nil {
		return nil, err
	}
	out := make([]ingestion.Source, len(rows))
	for i, r := range rows {
		if out[i], err = r.source(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Source implements ingestion.Store.
func (Store) Source(ctx context.Context, tx *store.Tx, p project.Name, name string) (ingestion.Source, error) {
	var r sourceRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", p, name).Scan(ctx); err != nil {
		return ingestion.Source{}, store.NotFound(err, "there is no such source")
	}
	return r.source()
}

// SourceOf implements ingestion.Store.
func (Store) SourceOf(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (ingestion.Source, error) {
	var r sourceRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND dataset = ?", p, dataset).Scan(ctx); err != nil {
		return ingestion.Source{}, store.NotFound(err, "there is no source of that dataset")
	}
	return r.source()
}

// PutSource implements ingestion.Store.
func (Store) PutSource(ctx context.Context, tx *store.Tx, s ingestion.Source) error {
	doc, err := json.Marshal(sourceDoc{Spec: s.Spec, Position: s.Position, Version: s.Version, Scheduled: s.Scheduled})
	if err != nil {
		return err
	}
	r := sourceRow{
		ID: s.ID, Project: s.Project, Name: s.Name, Dataset: s.Spec.Dataset, Secret: s.Spec.Secret, Scheduled: s.Spec.Schedule != "",
		Revision: s.Revision, Owner: s.Owner, Created: store.At(s.Created), Updated: store.At(s.Updated), Doc: string(doc),
		Line: store.JoinFields(append(s.SearchFields(), store.Field{Name: "description", Value: s.Spec.Description})),
	}
	q := tx.NewInsert().Model(&r).On("CONFLICT (id) DO UPDATE")
	for _, c := range []string{"dataset", "secret", "scheduled", "revision", "updated", "line", "doc"} {
		q = q.Set("? = EXCLUDED.?", bun.Ident(c), bun.Ident(c))
	}
	_, err = q.Exec(ctx)
	return err
}

// DeleteSource implements ingestion.Store.
func (Store) DeleteSource(ctx context.Context, tx *store.Tx, id ingestion.ID) error {
	_, err := tx.NewRaw(`DELETE FROM ingestion_source WHERE id = ?`, id).Exec(ctx)
	return err
}

// Sources implements ingestion.Store.
func (Store) Sources(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]ingestion.Source, error) {
	var rows []sourceRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND name > ?", p, after).OrderExpr("name").Limit(limit).Scan(ctx)
	return sourcesOf(rows, err)
}

// Lines implements ingestion.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error) {
	return store.ReadLines(ctx, tx.NewRaw("SELECT name AS key, owner, line FROM ingestion_source WHERE project = ? AND name > ? ORDER BY name LIMIT ?", p, after, limit))
}

// SourcesOf implements ingestion.Store.
func (Store) SourcesOf(ctx context.Context, tx *store.Tx, p project.Name, names []string) ([]ingestion.Source, error) {
	var rows []sourceRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND name IN (?)", p, bun.List(names)).Scan(ctx)
	return sourcesOf(rows, err)
}

// WithSecret implements ingestion.Store.
func (Store) WithSecret(ctx context.Context, tx *store.Tx, p project.Name, secret string) (names []string, err error) {
	err = tx.NewSelect().Model((*sourceRow)(nil)).Column("name").Where("project = ? AND secret = ?", p, secret).OrderExpr("name").Scan(ctx, &names)
	return names, err
}

// Scheduled implements ingestion.Store.
func (Store) Scheduled(ctx context.Context, tx *store.Tx, limit int) ([]ingestion.Source, error) {
	var rows []sourceRow
	err := tx.NewSelect().Model(&rows).Where("scheduled").OrderExpr("id").Limit(limit).Scan(ctx)
	return sourcesOf(rows, err)
}

type runRow struct {
	bun.BaseModel `bun:"table:ingestion_run,alias:t"`
	ID            ingestion.RunID `bun:",pk"`
	Project       project.Name
	Source        string
	State         ingestion.State
	Attempt       int64
	Done          bool
	Doc           string
	Progress      string
}

// runDoc is a run with what the API does not show.
type runDoc struct {
	Run       ingestion.Run `json:"run"`
	NotBefore time.Time     `json:"not_before,omitzero"`
	Clean     bool          `json:"clean,omitempty"`
}

func rowOf(r ingestion.Run) (*runRow, error) {
	doc, err := json.Marshal(runDoc{Run: r, NotBefore: r.NotBefore, Clean: r.Clean})
	if err != nil {
		return nil, err
	}
	progress, err := json.Marshal(r.Progress)
	return &runRow{
		ID: r.ID, Project: r.Project, Source: r.Source, State: r.State, Attempt: int64(r.Attempts), Done: r.State.Ended() && r.Clean,
		Doc: string(doc), Progress: string(progress),
	}, err
}

func (r runRow) run() (ingestion.Run, error) {
	var d runDoc
	if err := errors.Join(json.Unmarshal([]byte(r.Doc), &d), json.Unmarshal([]byte(r.Progress), &d.Run.Progress)); err != nil {
		return ingestion.Run{}, fmt.Errorf("the document of run %s: %w", r.ID, err)
	}
	d.Run.NotBefore, d.Run.Clean = d.NotBefore, d.Clean
	return d.Run, nil
}

func runsOf(rows []runRow, err error) ([]ingestion.Run, error) {
	if err != nil {
		return nil, err
	}
	out := make([]ingestion.Run, len(rows))
	for i, r := range rows {
		if out[i], err = r.run(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// InsertRun implements ingestion.Store.
func (Store) InsertRun(ctx context.Context, tx *store.Tx, r ingestion.Run) error {
	row, err := rowOf(r)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(row).Exec(ctx)
	return err
}

// UpdateRun implements ingestion.Store.
func (Store) UpdateRun(ctx context.Context, tx *store.Tx, r ingestion.Run, attempt int) error {
	row, err := rowOf(r)
	if err != nil {
		return err
	}
	q := tx.NewUpdate().Model(row).Column("state", "attempt", "done", "doc", "progress").Where("id = ? AND attempt = ?", r.ID, attempt)
	if r.Clean {
		q = q.Where("NOT done")
	} else {
		q = q.Where("state IN ?", bun.Tuple([]ingestion.State{ingestion.Queued, ingestion.Reading, ingestion.Writing}))
	}
	res, err := q.Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = fault.New(fault.Conflict, "run %s has ended or was taken over", r.ID)
	}
	return err
}

// Run implements ingestion.Store.
func (Store) Run(ctx context.Context, tx *store.Tx, p project.Name, id ingestion.RunID) (ingestion.Run, error) {
	var r runRow
	if err := tx.NewSelect().Model(&r).Where("project = ? AND id = ?", p, id).Scan(ctx); err != nil {
		return ingestion.Run{}, store.NotFound(err, "there is no such run")
	}
	return r.run()
}

// Runs implements ingestion.Store.
func (Store) Runs(ctx context.Context, tx *store.Tx, p project.Name, name string, before ingestion.RunID, limit int) ([]ingestion.Run, error) {
	var rows []runRow
	q := tx.NewSelect().Model(&rows).Where("project = ? AND source = ?", p, name).OrderExpr("id DESC").Limit(limit)
	if before != "" {
		q = q.Where("id < ?", before)
	}
	return runsOf(rows, q.Scan(ctx))
}

// ForgetRuns removes some runs that were asked for before a time and have ended and been cleaned
// up, but for the newest of each source and the newest that succeeded, and returns their number.
func (Store) ForgetRuns(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	var ids []string
	const ofSource = "SELECT MAX(n.id) FROM ingestion_run AS n WHERE n.project = t.project AND n.source = t.source"
	err := tx.NewSelect().Model((*runRow)(nil)).Column("id").Where("t.id < ? AND t.done", id.First("ing", before)).
		Where("t.id < ("+ofSource+") AND t.id <> COALESCE(("+ofSource+" AND n.state = ?), '')", string(ingestion.Succeeded)).
		OrderExpr("t.id").Limit(limit).Scan(ctx, &ids)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = tx.NewDelete().Model((*runRow)(nil)).Where("t.id IN (?)", store.Texts(ids)).Exec(ctx)
	return len(ids), err
}

// OpenRuns implements ingestion.Store.
func (Store) OpenRuns(ctx context.Context, tx *store.Tx, limit int) ([]ingestion.Run, error) {
	var rows []runRow
	err := tx.NewSelect().Model(&rows).Where("NOT done").OrderExpr("id").Limit(limit).Scan(ctx)
	return runsOf(rows, err)
}

// Mentions gives the version that a dataset's source continues, where the word is
// the dataset's name and "@".
func (s Store) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	name := strings.TrimSuffix(word, "@")
	src, err := s.SourceOf(ctx, tx, p, name)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	each("source "+src.Name, fmt.Sprintf("%s@%d", name, src.Version))
	return nil
}
