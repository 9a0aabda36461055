package trackingsql

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// What was deleted before a time, of a project and a time each: experiments, runs by
// themselves or with theirs, and logged models by themselves or of such an experiment.
const (
	goneExperiment = "t.project = ? AND t.stage = 'deleted' AND t.updated <= ?"
	goneRun        = "t.project = ? AND t.stage = 'deleted' AND t.deleted <= ?"
	goneModel      = `t.project = ? AND (t.stage = 'deleted' AND t.updated <= ? OR
		EXISTS (SELECT 1 FROM tracking_experiment e WHERE e.project = t.project AND e.id = t.experiment AND e.id > 0 AND e.stage = 'deleted' AND e.updated <= ?))`
)

// CountDeleted implements tracking.Store.
func (Store) CountDeleted(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) (out tracking.Pruned, err error) {
	at := store.At(before)
	var runs, models struct {
		N, Files int
		Bytes    int64
	}
	count := func(table, where string) string {
		return `SELECT COUNT(DISTINCT t.id) AS n, COUNT(a.path) AS files, COALESCE(SUM(a.size), 0) AS bytes
			FROM ` + table + ` t LEFT JOIN tracking_artifact a ON a.owner = t.id WHERE ` + where
	}
	if err := tx.NewRaw(count("tracking_run", goneRun), string(p), at).Scan(ctx, &runs); err != nil {
		return out, err
	}
	if err := tx.NewRaw(count("tracking_model", goneModel), string(p), at, at).Scan(ctx, &models); err != nil {
		return out, err
	}
	// An experiment goes if none of its runs stays.
	err = tx.NewRaw(`SELECT COUNT(*) FROM tracking_experiment t WHERE `+goneExperiment+` AND t.id > 0 AND NOT EXISTS
		(SELECT 1 FROM tracking_run r WHERE r.project = t.project AND r.experiment = t.id AND (r.stage <> 'deleted' OR r.deleted > ?))`,
		string(p), at, at).Scan(ctx, &out.Experiments)
	out.Runs, out.Models, out.Files, out.Bytes = runs.N, models.N, runs.Files+models.Files, runs.Bytes+models.Bytes
	return out, err
}

// DeletedRuns implements tracking.Store.
func (Store) DeletedRuns(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after tracking.RunID, limit int) ([]tracking.Run, error) {
	sel := tx.NewSelect().Model((*runRow)(nil)).Where(goneRun, string(p), store.At(before)).Where("t.id > ?", string(after)).OrderExpr("t.id")
	return scanRuns(ctx, sel, limit, 0)
}

// RemoveRun implements tracking.Store.
func (Store) RemoveRun(ctx context.Context, tx *store.Tx, r tracking.Run) error {
	for _, table := range []string{"tracking_param", "tracking_tag", "tracking_metric_latest", "tracking_input", "tracking_model_link"} {
		if err := remove(ctx, tx, "DELETE FROM "+table+" WHERE run = ?", string(r.ID)); err != nil {
			return err
		}
	}
	if err := remove(ctx, tx, "DELETE FROM tracking_run WHERE id = ?", string(r.ID)); err != nil {
		return err
	}
	if err := forget(ctx, tx, r.Project, tracking.ImportRun, string(r.ID)); err != nil {
		return err
	}
	return remove(ctx, tx, "INSERT INTO tracking_pruned (run, project) VALUES (?, ?)", string(r.ID), string(r.Project))
}

// PrunedRuns implements tracking.Store.
func (Store) PrunedRuns(ctx context.Context, tx *store.Tx, p project.Name) ([]tracking.RunID, error) {
	var out []tracking.RunID
	err := tx.NewRaw("SELECT run FROM tracking_pruned WHERE project = ? ORDER BY run", string(p)).Scan(ctx, &out)
	return out, err
}

// RemovePoints implements tracking.Store.
func (Store) RemovePoints(ctx context.Context, tx *store.Tx, run tracking.RunID, most int) (bool, error) {
	var last []struct {
		Key string
		At  int64
	}
	err := tx.NewRaw("SELECT key, at FROM tracking_metric WHERE run = ? ORDER BY key, at LIMIT 1 OFFSET ?", string(run), most).Scan(ctx, &last)
	if err != nil {
		return false, err
	}
	if len(last) > 0 {
		return false, remove(ctx, tx, "DELETE FROM tracking_metric WHERE run = ? AND (key, at) <= (?, ?)", string(run), last[0].Key, last[0].At)
	}
	if err := remove(ctx, tx, "DELETE FROM tracking_metric WHERE run = ?", string(run)); err != nil {
		return false, err
	}
	return true, remove(ctx, tx, "DELETE FROM tracking_pruned WHERE run = ?", string(run))
}

// DeletedModels implements tracking.Store.
func (Store) DeletedModels(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after tracking.LoggedModelID, limit int) ([]tracking.LoggedModel, error) {
	at := store.At(before)
	var rows []modelRow
	err := tx.NewSelect().Model(&rows).Where(goneModel, string(p), at, at).Where("t.id > ?", string(after)).OrderExpr("t.id").Limit(limit).Scan(ctx)
	out := make([]tracking.LoggedModel, len(rows))
	for i, r := range rows {
		if err != nil {
			return nil, err
		}
		out[i], err = r.model()
	}
	return out, err
}

// RemoveModel implements tracking.Store.
func (Store) RemoveModel(ctx context.Context, tx *store.Tx, m tracking.LoggedModel, before time.Time) (bool, error) {
	at := store.At(before)
	removed, err := exists(ctx, tx, "DELETE FROM tracking_model AS t WHERE t.id = ? AND "+goneModel, string(m.ID), string(m.Project), at, at)
	if err != nil || !removed {
		return false, err
	}
	for _, table := range []string{"tracking_model_param", "tracking_model_tag", "tracking_model_metric", "tracking_model_link"} {
		if err := remove(ctx, tx, "DELETE FROM "+table+" WHERE model = ?", string(m.ID)); err != nil {
			return false, err
		}
	}
	return true, forget(ctx, tx, m.Project, tracking.ImportModel, string(m.ID))
}

// DeletedExperiments implements tracking.Store.
func (Store) DeletedExperiments(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) ([]tracking.Experiment, error) {
	var rows []experimentRow
	err := tx.NewSelect().Model(&rows).Where(goneExperiment, string(p), store.At(before)).Where("t.id > 0").
		Where("NOT EXISTS (SELECT 1 FROM tracking_run r WHERE r.project = t.project AND r.experiment = t.id)").
		Where("NOT EXISTS (SELECT 1 FROM tracking_model m WHERE m.project = t.project AND m.experiment = t.id)").OrderExpr("t.id").Scan(ctx)
	out := make([]tracking.Experiment, len(rows))
	for i, r := range rows {
		out[i] = r.experiment()
	}
	return out, err
}

// RemoveExperiment implements tracking.Store.
func (Store) RemoveExperiment(ctx context.Context, tx *store.Tx, e tracking.Experiment) error {
	for _, query := range []string{
		"DELETE FROM tracking_experiment_tag WHERE project = ? AND experiment = ?",
		"DELETE FROM tracking_dataset WHERE project = ? AND experiment = ?",
		"DELETE FROM tracking_experiment WHERE project = ? AND id = ?",
		`INSERT INTO tracking_experiment_used (project, id) VALUES (?, ?) ON CONFLICT (project) DO UPDATE SET
			id = CASE WHEN excluded.id > tracking_experiment_used.id THEN excluded.id ELSE tracking_experiment_used.id END`,
	} {
		if err := remove(ctx, tx, query, string(e.Project), int64(e.ID)); err != nil {
			return err
		}
	}
	return forget(ctx, tx, e.Project, tracking.ImportExperiment, e.Name)
}

// forget removes that something was imported: it may come again.
func forget(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, id string) error {
	return remove(ctx, tx, "DELETE FROM tracking_imported WHERE project = ? AND kind = ? AND id = ?", string(p), string(kind), id)
}

func remove(ctx context.Context, tx bun.IDB, query string, args ...any) error {
	_, err := tx.NewRaw(query, args...).Exec(store.Later(ctx))
	return err
}
