// Package environmentsql keeps environments in SQLite or PostgreSQL.
package environmentsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("environment", migrations)

type row struct {
	bun.BaseModel `bun:"table:environment_environment"`

	ID          string `bun:"id,pk"`
	Project     string `bun:"project"`
	Name        string `bun:"name"`
	Digest      string `bun:"digest"`
	SpecDigest  string `bun:"spec_digest"`
	State       string `bun:"state"`
	Step        string `bun:"step"`
	Lock        string `bun:"lock_text"`
	Interpreter string `bun:"interpreter"`
	Body        string `bun:"body"`
	Revision    int64  `bun:"revision"`
}

func rowOf(e environment.Environment) (row, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return row{}, err
	}
	in, err := json.Marshal(e.Interpreter)
	return row{
		ID: string(e.ID), Project: string(e.Project), Name: e.Name, Digest: string(e.Digest), SpecDigest: e.SpecDigest,
		State: string(e.State), Step: string(e.Step), Lock: e.Lock, Interpreter: string(in), Body: string(body), Revision: e.Revision,
	}, err
}

func (r row) environment() (e environment.Environment, err error) {
	err = errors.Join(json.Unmarshal([]byte(r.Body), &e), json.Unmarshal([]byte(r.Interpreter), &e.Interpreter))
	e.SpecDigest, e.Step, e.Lock, e.Revision = r.SpecDigest, environment.Step(r.Step), r.Lock, r.Revision
	return e, fault.Wrap(err, "reading environment %s", r.ID)
}

// Store implements environment.Store.
type Store struct{}

var _ environment.Store = Store{}

// Insert adds an environment.
func (Store) Insert(ctx context.Context, tx *store.Tx, e environment.Environment) error {
	r, err := rowOf(e)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// One finds an environment.
func (Store) One(ctx context.Context, tx *store.Tx, id environment.ID) (environment.Environment, error) {
	var r row
	return one(&r, tx.NewSelect().Model(&r).Where("id = ?", string(id)).Scan(ctx), string(id))
}

// Named finds the newest environment of a name, or of a name and a content.
func (Store) Named(ctx context.Context, tx *store.Tx, p project.Name, name string, d environment.Digest) (environment.Environment, error) {
	var r row
	q := tx.NewSelect().Model(&r).Where("project = ? AND name = ?", string(p), name).OrderExpr("id DESC").Limit(1)
	if d != "" {
		q = q.Where("digest = ?", string(d))
		name += "@" + string(d)
	}
	return one(&r, q.Scan(ctx), name)
}

func one(r *row, err error, what string) (environment.Environment, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return environment.Environment{}, fault.New(fault.NotFound, "there is no environment %.150q", what).
			WithHint("See `falaj get environments`.")
	}
	if err != nil {
		return environment.Environment{}, err
	}
	return r.environment()
}

// List gives the newest environment of each name, by name.
func (Store) List(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]environment.Environment, error) {
	var rows []row
	err := tx.NewSelect().Model(&rows).
		Where("project = ? AND name > ?", string(p), after).
		Where("id = (SELECT max(newest.id) FROM environment_environment AS newest WHERE newest.project = ? AND newest.name = ?TableAlias.name)", string(p)).
		OrderExpr("name").Limit(limit).Scan(ctx)
	return all(rows, err)
}

// Lines implements environment.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error) {
	return store.ReadLines(ctx, tx.NewRaw("SELECT DISTINCT name AS key, '' AS owner, '' AS line FROM environment_environment WHERE project = ? AND name > ? ORDER BY name LIMIT ?",
		string(p), after, limit))
}

// Images gives the contents of images by their pinned references.
func (Store) Images(ctx context.Context, tx *store.Tx) (map[string][]environment.Digest, error) {
	var rows []row // an image has no lock
	err := tx.NewSelect().Model(&rows).Where("lock_text = '' AND state = ?", string(environment.Ready)).Scan(ctx)
	list, err := all(rows, err)
	images := map[string][]environment.Digest{}
	for _, e := range list {
		if e.Image != "" {
			images[e.Image] = append(images[e.Image], e.Digest)
		}
	}
	return images, err
}

// Newest lists the newest environment of each name of every project.
func (Store) Newest(ctx context.Context, tx *store.Tx) ([]environment.Environment, error) {
	var rows []row
	err := tx.NewSelect().Model(&rows).
		Where("id IN (SELECT max(newest.id) FROM environment_environment AS newest GROUP BY newest.project, newest.name)").
		OrderExpr("project, name").Scan(ctx)
	return all(rows, err)
}

// Unfinished lists environments that are being locked or built.
func (Store) Unfinished(ctx context.Context, tx *store.Tx) ([]environment.Environment, error) {
	var rows []row
	err := tx.NewSelect().Model(&rows).Where("state IN (?, ?)", string(environment.Locking), string(environment.Building)).OrderExpr("id").Scan(ctx)
	return all(rows, err)
}

func all(rows []row, err error) ([]environment.Environment, error) {
	if err != nil {
		return nil, err
	}
	es := make([]environment.Environment, len(rows))
	for i, r := range rows {
		if es[i], err = r.environment(); err != nil {
			return nil, err
		}
	}
	return es, nil
}

// Update writes an environment if nobody else has.
func (Store) Update(ctx context.Context, tx *store.Tx, e environment.Environment) error {
	r, err := rowOf(e)
	if err != nil {
		return err
	}
	r.Revision++
	res, err := tx.NewUpdate().Model(&r).Column("digest", "state", "step", "lock_text", "interpreter", "body", "revision").
		Where("id = ? AND revision = ?", r.ID, e.Revision).Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return fault.New(fault.Conflict, "environment %s was changed by somebody else", r.ID)
	}
	return err
}
