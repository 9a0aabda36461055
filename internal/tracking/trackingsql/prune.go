package trackingsql

import (
	"context"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// What was deleted before a time: experiments, runs by themselves or with theirs, and logged
// models by themselves or with their experiment. What came by an import was deleted there,
// and is looked at from when it came. Each ? is the time, but for the first, the project.
const (
	goneExperiment = `t.project = ? AND t.id > 0 AND t.stage = 'deleted' AND t.updated <= ? AND NOT EXISTS
		(SELECT 1 FROM tracking_imported i WHERE i.project = t.project AND i.kind = 'experiment' AND i.imported > ? AND
			(i.object = CAST(t.id AS TEXT) OR i.object = '' AND i.id = t.name))`
	goneRun   = `t.project = ? AND t.deleted IS NOT NULL AND t.deleted <= ? AND (t.job = '' OR t.status NOT IN ('RUNNING', 'SCHEDULED'))`
	goneModel = `t.project = ? AND (t.stage = 'deleted' AND t.updated <= ? OR EXISTS (SELECT 1 FROM tracking_experiment e
			WHERE e.project = t.project AND e.id = t.experiment AND e.id > 0 AND e.stage = 'deleted' AND e.updated <= ?)) AND NOT EXISTS
		(SELECT 1 FROM tracking_imported i WHERE i.project = t.project AND i.imported > ? AND
			(i.kind = 'logged_model' AND i.id = t.id OR i.kind = 'experiment' AND (i.object = CAST(t.experiment AS TEXT) OR i.object = '' AND i.id =
				(SELECT e.name FROM tracking_experiment e WHERE e.project = t.project AND e.id = t.experiment))))`
)

type markedRow struct {
	ID         string
	Name       string
	Experiment int64
	OriginColumns
	Files int
	Bytes int64
}

func marked(ctx context.Context, tx *store.Tx, table, gone string, args []any, after string, limit int, place func(id string) tracking.Place) ([]tracking.Marked, error) {
	var rows []markedRow
	err := tx.NewRaw(`SELECT t.id, t.name, t.experiment, t.job, t.attempt, t.datasets, t.trained_on, t.feature_views, t.environment, t.residency, t.classification,
			(SELECT COUNT(*) FROM tracking_artifact a WHERE a.owner = t.id) AS files, (SELECT COALESCE(SUM(a.size), 0) FROM tracking_artifact a WHERE a.owner = t.id) AS bytes
		FROM `+table+` t WHERE `+gone+` AND t.id > ? ORDER BY t.id LIMIT ?`, append(args, after, limit)...).Scan(ctx, &rows)
	out := make([]tracking.Marked, len(rows))
	for i, r := range rows {
		if err != nil {
			return nil, err
		}
		out[i] = tracking.Marked{Place: place(r.ID), Name: r.Name, Experiment: tracking.ExperimentID(r.Experiment), Files: r.Files, Bytes: r.Bytes}
		out[i].Origin, err = r.origin()
	}
	return out, err
}

// MarkedRuns implements tracking.PruneStore.
func (PruneStore) MarkedRuns(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) ([]tracking.Marked, error) {
	return marked(ctx, tx, "tracking_run", goneRun, []any{string(p), store.At(before)}, after, limit, func(id string) tracking.Place { return tracking.Place{Run: tracking.RunID(id)} })
}

// MarkedModels implements tracking.PruneStore.
func (PruneStore) MarkedModels(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) ([]tracking.Marked, error) {
	at := store.At(before)
	return marked(ctx, tx, "tracking_model", goneModel, []any{string(p), at, at, at}, after, limit, func(id string) tracking.Place { return tracking.Place{Model: tracking.LoggedModelID(id)} })
}

// RemoveMarked implements tracking.PruneStore.
func (PruneStore) RemoveMarked(ctx context.Context, tx *store.Tx, p project.Name, m tracking.Marked, before time.Time) (bool, error) {
	id, at := m.ID(), store.At(before)
	table, gone, args, column, kind := "tracking_run", goneRun, []any{id, string(p), at}, "run", tracking.ImportRun
	tables := []string{"tracking_param", "tracking_tag", "tracking_metric_latest", "tracking_model_link"}
	if m.Run == "" {
		table, gone, args, column, kind = "tracking_model", goneModel, []any{id, string(p), at, at, at}, "model", tracking.ImportModel
		tables = []string{"tracking_model_param", "tracking_model_tag", "tracking_model_metric", "tracking_model_link"}
	}
	removed, err := exists(ctx, tx, "DELETE FROM "+table+" AS t WHERE t.id = ? AND "+gone, args...)
	if err != nil || !removed {
		return false, err
	}
	queries := []string{
		"DELETE FROM tracking_upload_part WHERE upload IN (SELECT u.id FROM tracking_upload u WHERE u." + column + " = ?)",
		"DELETE FROM tracking_upload WHERE " + column + " = ?",
	}
	for _, table := range tables {
		queries = append(queries, "DELETE FROM "+table+" WHERE "+column+" = ?")
	}
	for _, query := range queries {
		if err := remove(ctx, tx, query, id); err != nil {
			return false, err
		}
	}
	if m.Run != "" {
		read, err := exists(ctx, tx, "DELETE FROM tracking_input WHERE run = ?", id)
		if err != nil {
			return false, err
		}
		if read { // descriptions of data sets that no other run of the experiment read
			err = remove(ctx, tx, `DELETE FROM tracking_dataset WHERE project = ? AND experiment = ? AND NOT EXISTS (SELECT 1 FROM tracking_input i
			WHERE i.project = tracking_dataset.project AND i.experiment = tracking_dataset.experiment AND i.name = tracking_dataset.name AND i.digest = tracking_dataset.digest)`,
				string(p), int64(m.Experiment))
		}
		if err == nil {
			err = remove(ctx, tx, "INSERT INTO tracking_pruned (run, project) VALUES (?, ?)", id, string(p))
		}
		if err != nil {
			return false, err
		}
	}
	return true, forget(ctx, tx, p, kind, id)
}

// PrunedRuns implements tracking.PruneStore.
func (PruneStore) PrunedRuns(ctx context.Context, tx *store.Tx, p project.Name) ([]tracking.RunID, error) {
	var out []tracking.RunID
	err := tx.NewRaw("SELECT run FROM tracking_pruned WHERE project = ? ORDER BY run", string(p)).Scan(ctx, &out)
	return out, err
}

// Pruning implements tracking.PruneStore.
func (PruneStore) Pruning(ctx context.Context, tx *store.Tx, runs []string) ([]tracking.RunID, error) {
	var out []tracking.RunID
	err := chunks(runs, func(runs []string) error {
		var some []tracking.RunID
		err := tx.NewRaw("SELECT run FROM tracking_pruned WHERE run IN (?)", store.Texts(runs)).Scan(ctx, &some)
		out = append(out, some...)
		return err
	})
	return out, err
}

// RemovePoints implements tracking.PruneStore.
func (PruneStore) RemovePoints(ctx context.Context, tx *store.Tx, run tracking.RunID, most int) (bool, error) {
	var last []struct {
		Key      string
		At, Step int64
	}
	err := tx.NewRaw("SELECT key, at, step FROM tracking_metric WHERE run = ? ORDER BY key, at, step LIMIT 1 OFFSET ?", string(run), most).Scan(ctx, &last)
	if err != nil {
		return false, err
	}
	if len(last) > 0 {
		return false, remove(ctx, tx, "DELETE FROM tracking_metric WHERE run = ? AND (key, at, step) <= (?, ?, ?)", string(run), last[0].Key, last[0].At, last[0].Step)
	}
	if err := remove(ctx, tx, "DELETE FROM tracking_metric WHERE run = ?", string(run)); err != nil {
		return false, err
	}
	return true, remove(ctx, tx, "DELETE FROM tracking_pruned WHERE run = ?", string(run))
}

// MarkedExperiments implements tracking.PruneStore.
func (PruneStore) MarkedExperiments(ctx context.Context, tx *store.Tx, p project.Name, before time.Time) ([]tracking.ExperimentID, error) {
	at := store.At(before)
	var out []tracking.ExperimentID
	err := tx.NewRaw("SELECT t.id FROM tracking_experiment t WHERE "+goneExperiment+` AND NOT EXISTS (SELECT 1 FROM tracking_run r WHERE r.project = t.project AND r.experiment = t.id
		AND (r.deleted IS NULL OR r.deleted > ? OR r.job <> '' AND r.status IN ('RUNNING', 'SCHEDULED')))`, string(p), at, at, at).Scan(ctx, &out)
	return out, err
}

// EmptyExperiments implements tracking.PruneStore.
func (PruneStore) EmptyExperiments(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, limit int) ([]tracking.Experiment, error) {
	at := store.At(before)
	var rows []experimentRow
	err := tx.NewSelect().Model(&rows).Where(goneExperiment, string(p), at, at).
		Where("NOT EXISTS (SELECT 1 FROM tracking_run r WHERE r.project = t.project AND r.experiment = t.id)").
		Where("NOT EXISTS (SELECT 1 FROM tracking_model m WHERE m.project = t.project AND m.experiment = t.id)").OrderExpr("t.id").Limit(limit).Scan(ctx)
	out := make([]tracking.Experiment, len(rows))
	for i, r := range rows {
		out[i] = r.experiment()
	}
	return out, err
}

// RemoveExperiment implements tracking.PruneStore.
func (PruneStore) RemoveExperiment(ctx context.Context, tx *store.Tx, e tracking.Experiment) error {
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
	return remove(ctx, tx, "DELETE FROM tracking_imported WHERE project = ? AND kind = ? AND (object = ? OR object = '' AND id = ?)",
		string(e.Project), string(tracking.ImportExperiment), strconv.FormatInt(int64(e.ID), 10), e.Name)
}

// forget removes that something was imported: it may come again.
func forget(ctx context.Context, tx *store.Tx, p project.Name, kind tracking.ImportKind, id string) error {
	return remove(ctx, tx, "DELETE FROM tracking_imported WHERE project = ? AND kind = ? AND id = ?", string(p), string(kind), id)
}

func remove(ctx context.Context, tx bun.IDB, query string, args ...any) error {
	_, err := tx.NewRaw(query, args...).Exec(store.Later(ctx))
	return err
}
