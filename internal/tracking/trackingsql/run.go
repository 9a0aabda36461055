package trackingsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

type runRow struct {
	bun.BaseModel `bun:"table:tracking_run,alias:t"`
	ID            string `bun:",pk"`
	Project       string
	Experiment    int64
	Name          string
	UserName      string
	Owner         string
	Status        string
	Started       int64
	Ended         int64
	Stage         string
	Created       store.Time
	Deleted       store.Time `bun:",nullzero"`
	AttemptNumber int
	OriginColumns
}

func (r runRow) run() (tracking.Run, error) {
	origin, err := r.origin()
	return tracking.Run{
		Project: project.Name(r.Project), ID: tracking.RunID(r.ID), Experiment: tracking.ExperimentID(r.Experiment),
		Name: r.Name, User: r.UserName, Owner: r.Owner, Status: tracking.RunStatus(r.Status),
		Start: tracking.Millis(r.Started), End: tracking.Millis(r.Ended), Stage: tracking.Stage(r.Stage),
		Created: r.Created.Time(), Deleted: r.Deleted.Time(), Origin: origin,
		AttemptNumber: r.AttemptNumber,
	}, err
}

func rowOf(r tracking.Run) runRow {
	return runRow{
		ID: string(r.ID), Project: string(r.Project), Experiment: int64(r.Experiment), Name: r.Name, UserName: r.User,
		Owner: r.Owner, Status: string(r.Status), Started: int64(r.Start), Ended: int64(r.End), Stage: string(r.Stage),
		Created: store.At(r.Created), Deleted: store.At(r.Deleted), OriginColumns: originRow(r.Origin),
		AttemptNumber: r.AttemptNumber,
	}
}

// PutRun implements tracking.RunStore.
func (RunStore) PutRun(ctx context.Context, tx *store.Tx, r tracking.Run) error {
	row := rowOf(r)
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").
		Set("name = EXCLUDED.name").Set("status = EXCLUDED.status").Set("ended = EXCLUDED.ended").Set("stage = EXCLUDED.stage").Set("deleted = EXCLUDED.deleted").Set("attempt = EXCLUDED.attempt").Set("attempt_number = EXCLUDED.attempt_number").Exec(store.Later(ctx))
	return err
}

// Run implements tracking.RunStore.
func (RunStore) Run(ctx context.Context, tx *store.Tx, p project.Name, id tracking.RunID) (tracking.Run, error) {
	var row runRow
	err := tx.NewSelect().Model(&row).Where("t.id = ? AND t.project = ?", string(id), string(p)).Scan(ctx)
	if err != nil {
		return tracking.Run{}, store.NotFound(err, "Run with id=%s not found", id)
	}
	return row.run()
}

// StageRuns implements tracking.RunStore.
func (RunStore) StageRuns(ctx context.Context, tx *store.Tx, p project.Name, experiment tracking.ExperimentID, stage tracking.Stage, at time.Time) error {
	if stage != tracking.Deleted {
		at = time.Time{}
	}
	_, err := tx.NewRaw("UPDATE tracking_run SET stage = ?, deleted = NULLIF(?, 0) WHERE project = ? AND experiment = ? AND stage <> ?",
		string(stage), store.At(at), string(p), int64(experiment), string(stage)).Exec(ctx)
	return err
}

// RunOfAttempt implements tracking.RunStore.
func (RunStore) RunOfAttempt(ctx context.Context, tx *store.Tx, p project.Name, attempt string) (tracking.Run, error) {
	var row runRow
	err := tx.NewSelect().Model(&row).Where("t.attempt = ? AND t.project = ?", attempt, string(p)).OrderExpr("t.id").Limit(1).Scan(ctx)
	if err != nil {
		return tracking.Run{}, store.NotFound(err, "attempt %s has no run", attempt)
	}
	return row.run()
}

type metricRow struct {
	Run           string
	Key           string
	At            int64
	Step          int64
	Value         store.Float
	Model         string
	DatasetName   string
	DatasetDigest string
	AttemptNumber int // of the latest alone
}

func (r metricRow) metric() tracking.Metric {
	return tracking.Metric{
		Key: r.Key, Value: float64(r.Value), At: tracking.Millis(r.At), Step: r.Step, Model: tracking.LoggedModelID(r.Model),
		DatasetName: r.DatasetName, DatasetDigest: r.DatasetDigest, Run: tracking.RunID(r.Run), Attempt: r.AttemptNumber,
	}
}

type inputRow struct {
	Run, Name, Digest, Tags, SourceType, Source, SchemaText, Profile string
}

type linkRow struct {
	Run    string
	Model  string
	Output bool
	Step   int64
}

// FillRuns implements tracking.RunStore.
func (RunStore) FillRuns(ctx context.Context, tx *store.Tx, runs []tracking.Run) error {
	ids := make([]string, len(runs))
	at := make(map[string]*tracking.Run, len(runs))
	for i := range runs {
		ids[i] = string(runs[i].ID)
		at[ids[i]] = &runs[i]
	}
	params, err := pairsOf(ctx, tx, "tracking_param", "run", ids)
	if err != nil {
		return err
	}
	tags, err := pairsOf(ctx, tx, "tracking_tag", "run", ids)
	if err != nil {
		return err
	}
	for id, r := range at {
		r.Params, r.Tags, r.Metrics, r.Inputs, r.Models = params[id], tags[id], nil, nil, nil
	}
	return chunks(ids, func(ids []string) error {
		var m metricRow
		metrics := make([]tracking.Metric, 0, 4*len(ids))
		err := each(ctx, tx, func(rows *sql.Rows) error {
			err := rows.Scan(&m.Run, &m.Key, &m.At, &m.Step, &m.Value, &m.Model, &m.DatasetName, &m.DatasetDigest, &m.AttemptNumber)
			metrics = append(metrics, m.metric())
			return err
		}, "SELECT run, key, at, step, value, model, dataset_name, dataset_digest, attempt_number FROM tracking_metric_latest WHERE run IN (?) ORDER BY run, key", store.Texts(ids))
		if err != nil {
			return err
		}
		for _, of := range alike(metrics, func(m *tracking.Metric) tracking.RunID { return m.Run }) {
			at[string(of[0].Run)].Metrics = of
		}
		var inputs []inputRow
		if err := tx.NewRaw(`SELECT i.run, i.name, i.digest, i.tags, d.source_type, d.source, d.schema_text, d.profile FROM tracking_input i
			JOIN tracking_dataset d ON d.project = i.project AND d.experiment = i.experiment AND d.name = i.name AND d.digest = i.digest
			WHERE i.run IN (?) ORDER BY i.run, i.position, i.name, i.digest`, store.Texts(ids)).Scan(ctx, &inputs); err != nil {
			return err
		}
		for _, in := range inputs {
			d := tracking.DatasetInput{Name: in.Name, Digest: in.Digest, SourceType: in.SourceType, Source: in.Source, Schema: in.SchemaText, Profile: in.Profile}
			if err := json.Unmarshal([]byte(in.Tags), (*pairsJSON)(&d.Tags)); err != nil {
				return err
			}
			at[in.Run].Inputs = append(at[in.Run].Inputs, d)
		}
		var links []linkRow
		if err := tx.NewRaw("SELECT run, model, output, step FROM tracking_model_link WHERE run IN (?) ORDER BY run, position, model, output", store.Texts(ids)).Scan(ctx, &links); err != nil {
			return err
		}
		for _, l := range links {
			at[l.Run].Models = append(at[l.Run].Models, tracking.ModelLink{Model: tracking.LoggedModelID(l.Model), Output: l.Output, Step: l.Step})
		}
		return nil
	})
}

// Params implements tracking.LogStore.
func (LogStore) Params(ctx context.Context, tx *store.Tx, run tracking.RunID, keys []string) ([]tracking.LoggedParam, error) {
	var out []tracking.LoggedParam
	err := each(ctx, tx, func(rows *sql.Rows) error {
		var p tracking.LoggedParam
		err := rows.Scan(&p.Key, &p.Value, &p.Attempt)
		out = append(out, p)
		return err
	}, "SELECT key, value, attempt_number FROM tracking_param WHERE run = ? AND key IN (?)", string(run), store.Texts(keys))
	return out, err
}

// InsertParams implements tracking.LogStore.
func (LogStore) InsertParams(ctx context.Context, tx *store.Tx, run tracking.Run, params []tracking.Pair) error {
	return insertParams(ctx, tx, "", run, params)
}

// PutParams implements tracking.LogStore.
func (LogStore) PutParams(ctx context.Context, tx *store.Tx, run tracking.Run, params []tracking.Pair) error {
	return insertParams(ctx, tx, anew+", attempt_number = excluded.attempt_number", run, params)
}

// PutTags implements tracking.LogStore.
func (LogStore) PutTags(ctx context.Context, tx *store.Tx, run tracking.Run, tags []tracking.Pair) error {
	return tx.InsertRows(ctx, "INSERT INTO tracking_tag (project, experiment, run, key, value, head) VALUES", anew, 6, len(tags), func(args []any, i int) []any {
		return valueOf(args, run, &tags[i])
	})
}

// anew replaces the value of a key that is there.
const anew = "ON CONFLICT (run, key) DO UPDATE SET value = excluded.value, head = excluded.head"

func insertParams(ctx context.Context, tx *store.Tx, then string, run tracking.Run, params []tracking.Pair) error {
	return tx.InsertRows(ctx, "INSERT INTO tracking_param (project, experiment, run, key, value, head, attempt_number) VALUES", then, 7, len(params), func(args []any, i int) []any {
		return append(valueOf(args, run, &params[i]), int64(run.AttemptNumber))
	})
}

func valueOf(args []any, run tracking.Run, p *tracking.Pair) []any {
	return append(args, string(run.Project), int64(run.Experiment), string(run.ID), p.Key, p.Value, head(p.Value))
}

// headLength is how many characters of a value its index has.
const headLength = 64

// head is the part of a value that its index has.
func head(value string) string {
	n := 0
	for i := range value {
		if n == headLength {
			return value[:i]
		}
		n++
	}
	return value
}

// DeleteTag implements tracking.LogStore.
func (LogStore) DeleteTag(ctx context.Context, tx *store.Tx, run tracking.RunID, key string) (bool, error) {
	return exists(ctx, tx, "DELETE FROM tracking_tag WHERE run = ? AND key = ?", string(run), key)
}

// InsertMetrics implements tracking.LogStore.
func (LogStore) InsertMetrics(ctx context.Context, tx *store.Tx, run tracking.RunID, metrics []tracking.Metric) error {
	return tx.InsertRows(ctx, "INSERT INTO tracking_metric (run, key, at, step, value, model, dataset_name, dataset_digest) VALUES", "ON CONFLICT DO NOTHING", 8, len(metrics),
		func(args []any, i int) []any {
			m := &metrics[i]
			return append(args, string(run), m.Key, int64(m.At), m.Step, store.Float(m.Value), string(m.Model), m.DatasetName, m.DatasetDigest)
		})
}

// LatestMetrics are the latest points of those of the keys that a run has.
func (LogStore) LatestMetrics(ctx context.Context, tx *store.Tx, run tracking.RunID, keys []string) ([]tracking.Metric, error) {
	var out []tracking.Metric
	err := chunks(keys, func(keys []string) error {
		var rows []metricRow
		err := tx.NewRaw("SELECT run, key, at, step, value, model, dataset_name, dataset_digest, attempt_number FROM tracking_metric_latest WHERE run = ? AND key IN (?)", string(run), store.Texts(keys)).Scan(ctx, &rows)
		for _, r := range rows {
			out = append(out, r.metric())
		}
		return err
	})
	return out, err
}

// PutLatestMetrics implements tracking.LogStore.
func (LogStore) PutLatestMetrics(ctx context.Context, tx *store.Tx, run tracking.Run, metrics []tracking.Metric) error {
	return tx.InsertRows(ctx, "INSERT INTO tracking_metric_latest (project, experiment, run, key, at, step, value, rank, model, dataset_name, dataset_digest, attempt_number) VALUES",
		`ON CONFLICT (run, key) DO UPDATE SET at = excluded.at, step = excluded.step, attempt_number = excluded.attempt_number,
			value = excluded.value, rank = excluded.rank, model = excluded.model, dataset_name = excluded.dataset_name, dataset_digest = excluded.dataset_digest
			WHERE (excluded.attempt_number, excluded.step, excluded.at, CASE WHEN excluded.rank IS NULL THEN 0 ELSE excluded.value END) >
				(tracking_metric_latest.attempt_number, tracking_metric_latest.step, tracking_metric_latest.at, CASE WHEN tracking_metric_latest.rank IS NULL THEN 0 ELSE tracking_metric_latest.value END)`, 12, len(metrics),
		func(args []any, i int) []any {
			m := &metrics[i]
			return append(args, string(run.Project), int64(run.Experiment), string(run.ID), m.Key, int64(m.At), m.Step, store.Float(m.Value), rank(m.Value), string(m.Model), m.DatasetName, m.DatasetDigest, int64(run.AttemptNumber))
		})
}

// History implements tracking.LogStore.
func (LogStore) History(ctx context.Context, tx *store.Tx, run tracking.RunID, key string, offset, limit int) ([]tracking.Metric, error) {
	var rows []metricRow
	err := tx.NewRaw(`SELECT run, key, at, step, value, model, dataset_name, dataset_digest FROM tracking_metric WHERE run = ? AND key = ?
		ORDER BY at, step, value, model, dataset_name, dataset_digest LIMIT ? OFFSET ?`, string(run), key, limit, offset).Scan(ctx, &rows)
	out := make([]tracking.Metric, len(rows))
	for i, r := range rows {
		out[i] = r.metric()
	}
	return out, err
}

// PointSince implements tracking.LogStore: the primary key is in the order of time.
func (LogStore) PointSince(ctx context.Context, tx *store.Tx, run tracking.RunID, key string, since tracking.Millis, newest bool) (*tracking.Metric, error) {
	order := "at, step"
	if newest {
		order = "at DESC, step DESC"
	}
	var rows []metricRow
	err := tx.NewRaw(`SELECT run, key, at, step, value, model, dataset_name, dataset_digest FROM tracking_metric
		WHERE run = ? AND key = ? AND at >= ? ORDER BY `+order+` LIMIT 1`, string(run), key, int64(since)).Scan(ctx, &rows)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	m := rows[0].metric()
	return &m, nil
}

// PutInputs implements tracking.LogStore.
func (LogStore) PutInputs(ctx context.Context, tx *store.Tx, run tracking.Run, inputs []tracking.DatasetInput) error {
	for _, in := range inputs {
		_, err := tx.NewRaw(`INSERT INTO tracking_dataset (project, experiment, name, digest, source_type, source, schema_text, profile)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project, experiment, name, digest) DO NOTHING`,
			string(run.Project), int64(run.Experiment), in.Name, in.Digest, in.SourceType, in.Source, in.Schema, in.Profile).Exec(ctx)
		if err != nil {
			return err
		}
		dataContext := ""
		for _, t := range in.Tags {
			if t.Key == "mlflow.data.context" {
				dataContext = t.Value
			}
		}
		_, err = tx.NewRaw(`INSERT INTO tracking_input (run, position, name, digest, context, tags, project, experiment)
			VALUES (?, (SELECT COALESCE(MAX(i.position), 0) + 1 FROM tracking_input i WHERE i.run = ?), ?, ?, ?, ?, ?, ?)
			ON CONFLICT (run, name, digest) DO NOTHING`,
			string(run.ID), string(run.ID), in.Name, in.Digest, dataContext, toJSON(pairsJSON(in.Tags)), string(run.Project), int64(run.Experiment)).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// PutModelLinks implements tracking.LogStore.
func (LogStore) PutModelLinks(ctx context.Context, tx *store.Tx, run tracking.RunID, links []tracking.ModelLink) error {
	for _, l := range links {
		_, err := tx.NewRaw(`INSERT INTO tracking_model_link (run, position, model, output, step)
			VALUES (?, (SELECT COALESCE(MAX(i.position), 0) + 1 FROM tracking_model_link i WHERE i.run = ?), ?, ?, ?)
			ON CONFLICT (run, model, output) DO UPDATE SET step = excluded.step`, string(run), string(run), string(l.Model), l.Output, l.Step).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// Mentions gives the texts of what runs read that have a word in them.
func (RunStore) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	return store.Mentions(ctx, tx, store.Mention{Table: "tracking_dataset", Column: "source", By: `'run ' || COALESCE((SELECT MIN(i.run) FROM tracking_input i
		WHERE i.project = t.project AND i.experiment = t.experiment AND i.name = t.name AND i.digest = t.digest), 'that was removed')`}, string(p), word, each)
}
