package trackingsql

import (
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

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

// NextExperiment implements tracking.ExperimentStore.
func (ExperimentStore) NextExperiment(ctx context.Context, tx *store.Tx, p project.Name) (tracking.ExperimentID, error) {
	var last int64
	err := tx.NewRaw(`SELECT COALESCE(MAX(id), 0) FROM (SELECT id FROM tracking_experiment WHERE project = ?
		UNION ALL SELECT id FROM tracking_experiment_used WHERE project = ?) AS used`, string(p), string(p)).Scan(ctx, &last)
	return tracking.ExperimentID(last + 1), err
}

// PutExperiment implements tracking.ExperimentStore.
func (ExperimentStore) PutExperiment(ctx context.Context, tx *store.Tx, e tracking.Experiment) error {
	row := experimentRow{
		Project: string(e.Project), ID: int64(e.ID), Name: e.Name, Stage: string(e.Stage),
		Created: store.At(e.Created), Updated: store.At(e.Updated),
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, id) DO UPDATE").
		Set("name = EXCLUDED.name").Set("stage = EXCLUDED.stage").Set("updated = EXCLUDED.updated").Exec(ctx)
	return err
}

// Experiment implements tracking.ExperimentStore.
func (s ExperimentStore) Experiment(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID) (tracking.Experiment, error) {
	var row experimentRow
	err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.id = ?", string(p), int64(id)).Scan(ctx)
	if err != nil {
		return tracking.Experiment{}, store.NotFound(err, "No Experiment with id=%d exists", id)
	}
	return s.withTags(ctx, tx, row)
}

// ExperimentNamed implements tracking.ExperimentStore.
func (s ExperimentStore) ExperimentNamed(ctx context.Context, tx *store.Tx, p project.Name, name string) (tracking.Experiment, error) {
	var row experimentRow
	err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.name = ?", string(p), name).Scan(ctx)
	if err != nil {
		return tracking.Experiment{}, store.NotFound(err, "Could not find experiment with name '%s'", name)
	}
	return s.withTags(ctx, tx, row)
}

func (ExperimentStore) withTags(ctx context.Context, tx *store.Tx, row experimentRow) (tracking.Experiment, error) {
	e := row.experiment()
	err := tx.NewRaw("SELECT key, value FROM tracking_experiment_tag WHERE project = ? AND experiment = ? ORDER BY key", row.Project, row.ID).Scan(ctx, &e.Tags)
	return e, err
}

var experimentColumns = map[string]string{
	"name": "t.name", "experiment_id": "CAST(t.id AS TEXT)", "creation_time": "t.created / 1000", "last_update_time": "t.updated / 1000",
}

// SearchExperiments implements tracking.ExperimentStore.
func (s ExperimentStore) SearchExperiments(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.Experiment, error) {
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

// ExperimentLines implements tracking.ExperimentStore.
func (ExperimentStore) ExperimentLines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error) {
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

// PutExperimentTags implements tracking.ExperimentStore.
func (ExperimentStore) PutExperimentTags(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID, tags []tracking.Pair) error {
	for _, t := range tags {
		_, err := tx.NewRaw("INSERT INTO tracking_experiment_tag (project, experiment, key, value) VALUES (?, ?, ?, ?) ON CONFLICT (project, experiment, key) DO UPDATE SET value = excluded.value",
			string(p), int64(id), t.Key, t.Value).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteExperimentTag implements tracking.ExperimentStore.
func (ExperimentStore) DeleteExperimentTag(ctx context.Context, tx *store.Tx, p project.Name, id tracking.ExperimentID, key string) (bool, error) {
	return exists(ctx, tx, "DELETE FROM tracking_experiment_tag WHERE project = ? AND experiment = ? AND key = ?", string(p), int64(id), key)
}

// DatasetSummaries implements tracking.ExperimentStore.
func (ExperimentStore) DatasetSummaries(ctx context.Context, tx *store.Tx, p project.Name, experiments []tracking.ExperimentID, limit int) ([]tracking.DatasetSummary, error) {
	var out []tracking.DatasetSummary
	err := tx.NewRaw(`SELECT DISTINCT i.experiment, i.name, i.digest, i.context FROM tracking_input i
		JOIN tracking_run r ON r.id = i.run AND r.stage = 'active'
		WHERE i.project = ? AND i.experiment IN (?) ORDER BY i.experiment, i.name, i.digest, i.context LIMIT ?`,
		string(p), bun.List(experiments), limit).Scan(ctx, &out)
	return out, err
}
