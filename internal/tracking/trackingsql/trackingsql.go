// Package trackingsql keeps tracking's objects in the metadata database, SQLite
// or PostgreSQL alike.
//
// trackingsql.go holds experiments and what all share, run.go runs and what
// they log, searchruns.go how they are found, loggedmodel.go logged models,
// artifact.go the paths of artifacts, multipart.go uploads, imported.go what came
// from elsewhere, prune.go what goes for ever.
package trackingsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of tracking.
var Migrations = store.Embedded("tracking", files)

// Store implements tracking.Store.
type Store struct{}

var _ tracking.Store = Store{}

// batch bounds rows and arguments of one statement: SQLite takes 32,766
// variables, though bun inlines them.
const batch = 500

func isSQLite(tx *store.Tx) bool { return tx.Dialect().Name() == dialect.SQLite }

// putPairs upserts rows of a table whose key is (column, key).
func putPairs(ctx context.Context, tx *store.Tx, table, column, owner string, pairs []tracking.Pair) error {
	for len(pairs) > 0 {
		n := min(len(pairs), batch)
		args := []any{bun.Ident(table), bun.Ident(column)}
		for _, p := range pairs[:n] {
			args = append(args, owner, p.Key, p.Value)
		}
		values := strings.Repeat(", (?, ?, ?)", n)[2:]
		args = append(args, bun.Ident(column))
		if _, err := tx.NewRaw("INSERT INTO ? (?, key, value) VALUES "+values+" ON CONFLICT (?, key) DO UPDATE SET value = excluded.value", args...).Exec(ctx); err != nil {
			return err
		}
		pairs = pairs[n:]
	}
	return nil
}

// pairsOf reads the pairs of the owners, by key.
func pairsOf(ctx context.Context, tx *store.Tx, table, column string, owners []string) (map[string][]tracking.Pair, error) {
	type owned struct {
		owner string
		tracking.Pair
	}
	out := make(map[string][]tracking.Pair, len(owners))
	err := chunks(owners, func(ids []string) error {
		var p owned
		pairs := make([]owned, 0, 8*len(ids))
		err := each(ctx, tx, func(rows *sql.Rows) error {
			err := rows.Scan(&p.owner, &p.Key, &p.Value)
			pairs = append(pairs, p)
			return err
		}, "SELECT ?, key, value FROM ? WHERE ? IN (?) ORDER BY ?, key", bun.Ident(column), bun.Ident(table), bun.Ident(column), store.Texts(ids), bun.Ident(column))
		for _, of := range alike(pairs, func(p *owned) string { return p.owner }) {
			kept := make([]tracking.Pair, len(of))
			for i := range of {
				kept[i] = of[i].Pair
			}
			out[of[0].owner] = kept
		}
		return err
	})
	return out, err
}

// alike splits rows where their key changes.
func alike[T any, K comparable](rows []T, key func(*T) K) (out [][]T) {
	from := 0
	for i := range rows {
		if i+1 == len(rows) || key(&rows[i]) != key(&rows[i+1]) {
			out, from = append(out, rows[from:i+1:i+1]), i+1
		}
	}
	return out
}

// each calls do for each row that a query finds. Of what a search reads there are
// thousands, for which bun's way by reflection costs twice as much.
func each(ctx context.Context, tx *store.Tx, do func(*sql.Rows) error, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func chunks(ids []string, do func([]string) error) error {
	for len(ids) > 0 {
		n := min(len(ids), batch)
		if err := do(ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

func exists(ctx context.Context, tx *store.Tx, query string, args ...any) (bool, error) {
	res, err := tx.NewRaw(query, args...).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
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

func (c *condition) view(v tracking.View) {
	switch v {
	case tracking.ViewActive:
		c.and("t.stage = ?", string(tracking.Active))
	case tracking.ViewDeleted:
		c.and("t.stage = ?", string(tracking.Deleted))
	case tracking.ViewAll:
	}
}

func (c *condition) String() string { return strings.Join(c.parts, " AND ") }

// pairs adds a condition on a table of pairs.
func (c *condition) pairs(cmp search.Comparison, table, join string, sqlite bool) {
	sub := "SELECT 1 FROM " + table + " x WHERE " + join + " AND x.key = ?"
	switch cmp.Op {
	case search.IsNull:
		c.and("NOT EXISTS ("+sub+")", cmp.Key)
	case search.IsNotNull:
		c.and("EXISTS ("+sub+")", cmp.Key)
	default:
		part, args := search.Where(cmp, "x.value", false, sqlite)
		c.and("EXISTS ("+sub+" AND "+part+")", append([]any{cmp.Key}, args...)...)
	}
}

// direction puts NULLs last whichever the direction.
func direction(column string, desc bool) string {
	d := " ASC"
	if desc {
		d = " DESC"
	}
	return "CASE WHEN " + column + " IS NULL THEN 1 ELSE 0 END, " + column + d
}

// rank is the comparable form of a value, see the migration.
func rank(v float64) *float64 {
	switch {
	case math.IsNaN(v):
		return nil
	case v > math.MaxFloat64:
		v = math.MaxFloat64
	case v < -math.MaxFloat64:
		v = -math.MaxFloat64
	}
	return &v
}

// pairsJSON are pairs as [["key","value"], …].
type pairsJSON []tracking.Pair

// MarshalJSON implements json.Marshaler.
func (p pairsJSON) MarshalJSON() ([]byte, error) {
	out := make([][2]string, len(p))
	for i, pair := range p {
		out[i] = [2]string{pair.Key, pair.Value}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *pairsJSON) UnmarshalJSON(b []byte) error {
	var in [][2]string
	err := json.Unmarshal(b, &in)
	*p = nil
	for _, pair := range in {
		*p = append(*p, tracking.Pair{Key: pair[0], Value: pair[1]})
	}
	return err
}

// fromJSON reads what toJSON wrote; most runs have nothing there.
func fromJSON[T any](text string, into *T) error {
	if text == "null" {
		return nil
	}
	return json.Unmarshal([]byte(text), into)
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and slices of strings always encode
	}
	return string(b)
}

// OriginColumns are the columns that runs and logged models share.
type OriginColumns struct {
	Job            string
	Attempt        string
	Datasets       string
	TrainedOn      string
	FeatureViews   string
	Environment    string
	Residency      string
	Classification string
}

func originRow(o tracking.Origin) OriginColumns {
	return OriginColumns{
		Job: o.Job, Attempt: o.Attempt, Datasets: toJSON(o.Datasets), TrainedOn: o.TrainedOn, FeatureViews: toJSON(o.FeatureViews),
		Environment: o.Environment, Residency: toJSON(o.Residency), Classification: o.Classification,
	}
}

func (c OriginColumns) origin() (tracking.Origin, error) {
	o := tracking.Origin{Job: c.Job, Attempt: c.Attempt, TrainedOn: c.TrainedOn, Environment: c.Environment, Classification: c.Classification}
	var label residency.Label
	err := errors.Join(fromJSON(c.Datasets, &o.Datasets), fromJSON(c.FeatureViews, &o.FeatureViews), fromJSON(c.Residency, &label))
	o.Residency = label
	return o, err
}

// Experiments.

type experimentRow struct {
	bun.BaseModel `bun:"table:tracking_experiment,alias:t"`
	Project       string `bun:",pk"`
	ID            int64  `bun:",pk"`
	Name          string
	Stage         string
	Created       store.Time
	Updated       store.Time
}

func (r experimentRow) experiment() tracking.Experiment {
	return tracking.Experiment{
		Project: project.Name(r.Project), ID: tracking.ExperimentID(r.ID), Name: r.Name, Stage: tracking.Stage(r.Stage),
		Created: r.Created.Time(), Updated: r.Updated.Time(),
	}
}

// NextExperiment implements tracking.Store.
func (Store) NextExperiment(ctx context.Context, tx *store.Tx, p project.Name) (tracking.ExperimentID, error) {
	var last int64
	err := tx.NewRaw(`SELECT COALESCE(MAX(id), 0) FROM (SELECT id FROM tracking_experiment WHERE project = ?
		UNION ALL SELECT id FROM tracking_experiment_used WHERE project = ?) AS used`, string(p), string(p)).Scan(ctx, &last)
	return tracking.ExperimentID(last + 1), err
}

// PutExperiment implements tracking.Store.
func (Store) PutExperiment(ctx context.Context, tx *store.Tx, e tracking.Experiment) error {
	row := experimentRow{
		Project: string(e.Project), ID: int64(e.ID), Name: e.Name, Stage: string(e.Stage),
		Created: store.At(e.Created), Updated: store.At(e.Updated),
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, id) DO UPDATE").
		Set("name = EXCLUDED.name").Set("stage = EXCLUDED.stage").Set("updated = EXCLUDED.updated").Exec(ctx)
	return err
}

// Experiment implements tracking.Store.
func (s Store) Experiment(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID) (tracking.Experiment, error) {
	var row experimentRow
	err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.id = ?", string(p), int64(id)).Scan(ctx)
	if err != nil {
		return tracking.Experiment{}, store.NotFound(err, "No Experiment with id=%d exists", id)
	}
	return s.withTags(ctx, tx, row)
}

// ExperimentNamed implements tracking.Store.
func (s Store) ExperimentNamed(ctx context.Context, tx *store.Tx, p project.Name, name string) (tracking.Experiment, error) {
	var row experimentRow
	err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.name = ?", string(p), name).Scan(ctx)
	if err != nil {
		return tracking.Experiment{}, store.NotFound(err, "Could not find experiment with name '%s'", name)
	}
	return s.withTags(ctx, tx, row)
}

func (Store) withTags(ctx context.Context, tx *store.Tx, row experimentRow) (tracking.Experiment, error) {
	e := row.experiment()
	err := tx.NewRaw("SELECT key, value FROM tracking_experiment_tag WHERE project = ? AND experiment = ? ORDER BY key", row.Project, row.ID).Scan(ctx, &e.Tags)
	return e, err
}

var experimentColumns = map[string]string{
	"name": "t.name", "experiment_id": "CAST(t.id AS TEXT)", "creation_time": "t.created / 1000", "last_update_time": "t.updated / 1000",
}

// SearchExperiments implements tracking.Store.
func (s Store) SearchExperiments(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.Experiment, error) {
	var c condition
	c.and("t.project = ?", string(p))
	c.view(q.View)
	sqlite := isSQLite(tx)
	for _, cmp := range q.Where {
		switch cmp.Entity {
		case search.Tag:
			c.pairs(cmp, "tracking_experiment_tag", "x.project = t.project AND x.experiment = t.id", sqlite)
		default:
			numeric := cmp.Key == "creation_time" || cmp.Key == "last_update_time"
			part, args := search.Where(cmp, experimentColumns[cmp.Key], numeric, sqlite)
			c.and(part, args...)
		}
	}
	sel := tx.NewSelect().Model((*experimentRow)(nil)).Where(c.String(), c.args...)
	for _, o := range q.Order {
		switch {
		case o.Entity == search.Tag:
			sel = sel.OrderExpr(direction("(SELECT x.value FROM tracking_experiment_tag x WHERE x.project = t.project AND x.experiment = t.id AND x.key = ?)", o.Desc), o.Key, o.Key)
		case o.Key == "experiment_id":
			sel = sel.OrderExpr(direction("t.id", o.Desc))
		default:
			sel = sel.OrderExpr(direction(experimentColumns[o.Key], o.Desc))
		}
	}
	if len(q.Order) == 0 { // as MLflow has it: milliseconds, then the oldest
		sel = sel.OrderExpr("t.created / 1000 DESC, t.id")
	}
	var rows []experimentRow
	if err := sel.OrderExpr("t.id DESC").Limit(q.Limit).Offset(q.Offset).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]tracking.Experiment, len(rows))
	for i, row := range rows {
		var err error
		if out[i], err = s.withTags(ctx, tx, row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ExperimentLines implements tracking.Store.
func (Store) ExperimentLines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error) {
	var found []struct {
		ID, Ms int64
		Name   string
	}
	q := tx.NewSelect().Table("tracking_experiment").ColumnExpr("id, created / 1000 AS ms, name").
		Where("project = ? AND stage = ?", string(p), string(tracking.Active)).OrderExpr("created / 1000 DESC, id").Limit(limit)
	if after != "" {
		ms, id, err := tracking.ParseSearchKey(after)
		if err != nil {
			return nil, err
		}
		q = q.Where("created / 1000 < ? OR created / 1000 = ? AND id > ?", ms, ms, int64(id))
	}
	if err := q.Scan(ctx, &found); err != nil {
		return nil, err
	}
	lines, at, ids := make([]store.Line, len(found)), map[int64]*store.Line{}, make([]int64, len(found))
	for i, e := range found {
		lines[i] = store.Line{Key: tracking.Experiment{ID: tracking.ExperimentID(e.ID), Created: time.UnixMilli(e.Ms)}.SearchKey(), Fields: store.FieldsOf("name", e.Name)}
		at[e.ID], ids[i] = &lines[i], e.ID
	}
	if len(ids) == 0 {
		return nil, nil
	}
	var tags []struct {
		Experiment int64
		Key, Value string
	}
	err := tx.NewSelect().Table("tracking_experiment_tag").Column("experiment", "key", "value").
		Where("project = ? AND experiment BETWEEN ? AND ?", string(p), slices.Min(ids), slices.Max(ids)).Scan(ctx, &tags)
	for _, t := range tags {
		if l := at[t.Experiment]; l != nil {
			l.Fields = append(l.Fields, tracking.TagFields(tracking.Pair{Key: t.Key, Value: t.Value})...)
		}
	}
	return lines, err
}

// PutExperimentTags implements tracking.Store.
func (Store) PutExperimentTags(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID, tags []tracking.Pair) error {
	for _, t := range tags {
		_, err := tx.NewRaw("INSERT INTO tracking_experiment_tag (project, experiment, key, value) VALUES (?, ?, ?, ?) ON CONFLICT (project, experiment, key) DO UPDATE SET value = excluded.value",
			string(p), int64(id), t.Key, t.Value).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteExperimentTag implements tracking.Store.
func (Store) DeleteExperimentTag(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID, key string) (bool, error) {
	return exists(ctx, tx, "DELETE FROM tracking_experiment_tag WHERE project = ? AND experiment = ? AND key = ?", string(p), int64(id), key)
}

// DatasetSummaries implements tracking.Store.
func (Store) DatasetSummaries(ctx context.Context, tx *store.Tx, p project.Name, experiments []tracking.ExperimentID, limit int) ([]tracking.DatasetSummary, error) {
	var out []tracking.DatasetSummary
	err := tx.NewRaw(`SELECT DISTINCT i.experiment, i.name, i.digest, i.context FROM tracking_input i
		JOIN tracking_run r ON r.id = i.run AND r.stage = 'active'
		WHERE i.project = ? AND i.experiment IN (?) ORDER BY i.experiment, i.name, i.digest, i.context LIMIT ?`,
		string(p), bun.List(experiments), limit).Scan(ctx, &out)
	return out, err
}

// Mentions gives the texts of what runs read that have a word in them.
func (Store) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	return store.Mentions(ctx, tx, store.Mention{Table: "tracking_dataset", Column: "source", By: `'run ' || COALESCE((SELECT MIN(i.run) FROM tracking_input i
		WHERE i.project = t.project AND i.experiment = t.experiment AND i.name = t.name AND i.digest = t.digest), 'that was removed')`}, string(p), word, each)
}

// Holders lists the runs and logged models of a project that have files, by ID.
func (Store) Holders(ctx context.Context, tx *store.Tx, p project.Name) (all []tracking.Holder, err error) {
	err = tx.NewRaw(`SELECT a.owner, COALESCE(MAX(r.job), MAX(m.job), '') AS job, COUNT(*) AS files, SUM(CASE WHEN a.path LIKE 'logs/%' THEN 1 ELSE 0 END) AS logs
		FROM tracking_artifact a LEFT JOIN tracking_run r ON r.id = a.owner LEFT JOIN tracking_model m ON m.id = a.owner
		WHERE a.project = ? GROUP BY a.owner ORDER BY a.owner`, p).Scan(ctx, &all)
	return all, err
}
