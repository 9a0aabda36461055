package trackingsql

import (
	"context"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

type modelRow struct {
	bun.BaseModel `bun:"table:tracking_model,alias:t"`
	ID            string `bun:",pk"`
	Project       string
	Experiment    int64
	Name          string
	Type          string
	Run           string
	Status        string
	Stage         string
	Owner         string
	Created       store.Time
	Updated       store.Time
	OriginColumns
}

func (r modelRow) model() (tracking.LoggedModel, error) {
	origin, err := r.origin()
	return tracking.LoggedModel{
		Project: project.Name(r.Project), ID: tracking.LoggedModelID(r.ID), Experiment: tracking.ExperimentID(r.Experiment),
		Name: r.Name, Type: r.Type, Run: tracking.RunID(r.Run), Status: tracking.ModelStatus(r.Status),
		Stage: tracking.Stage(r.Stage), Owner: r.Owner, Created: r.Created.Time(), Updated: r.Updated.Time(), Origin: origin,
	}, err
}

func rowOfModel(m tracking.LoggedModel) modelRow {
	return modelRow{
		ID: string(m.ID), Project: string(m.Project), Experiment: int64(m.Experiment), Name: m.Name, Type: m.Type,
		Run: string(m.Run), Status: string(m.Status), Stage: string(m.Stage), Owner: m.Owner,
		Created: store.At(m.Created), Updated: store.At(m.Updated), OriginColumns: originRow(m.Origin),
	}
}

// PutLoggedModel implements tracking.LoggedModelStore.
func (LoggedModelStore) PutLoggedModel(ctx context.Context, tx *store.Tx, m tracking.LoggedModel) error {
	row := rowOfModel(m)
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (id) DO UPDATE").
		Set("status = EXCLUDED.status").Set("stage = EXCLUDED.stage").Set("updated = EXCLUDED.updated").Exec(ctx)
	return err
}

// LoggedModel implements tracking.LoggedModelStore.
func (LoggedModelStore) LoggedModel(ctx context.Context, tx *store.Tx, p project.Name, id tracking.LoggedModelID) (tracking.LoggedModel, error) {
	var row modelRow
	err := tx.NewSelect().Model(&row).Where("t.id = ? AND t.project = ?", string(id), string(p)).Scan(ctx)
	if err != nil {
		return tracking.LoggedModel{}, store.NotFound(err, "Logged model with ID '%s' not found.", id)
	}
	return row.model()
}

var modelColumns = map[string]string{
	"name": "t.name", "model_id": "t.id", "model_type": "t.type", "status": "t.status", "source_run_id": "t.run",
	"experiment_id": "CAST(t.experiment AS TEXT)", "creation_timestamp": "t.created / 1000", "last_updated_timestamp": "t.updated / 1000",
}

// SearchLoggedModels implements tracking.LoggedModelStore.
func (LoggedModelStore) SearchLoggedModels(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.LoggedModel, error) {
	var c condition
	c.and("t.project = ?", string(p))
	c.and("t.experiment IN (?)", bun.List(q.Experiments))
	c.view(q.View)
	sqlite := isSQLite(tx)
	on, onArgs := onDatasets(q.Datasets)
	if on != "" && !slices.ContainsFunc(q.Where, func(cmp search.Comparison) bool { return cmp.Entity == search.Metric }) {
		c.and("EXISTS (SELECT 1 FROM tracking_model_metric x WHERE x.model = t.id"+on+")", onArgs...)
	}
	for _, cmp := range q.Where {
		switch cmp.Entity {
		case search.Param:
			c.pairs(cmp, "tracking_model_param", "x.model = t.id", sqlite)
		case search.Tag:
			c.pairs(cmp, "tracking_model_tag", "x.model = t.id", sqlite)
		case search.Metric:
			part, args := metricWhere(cmp, "x.rank")
			args = append([]any{cmp.Key}, args...)
			c.and("EXISTS (SELECT 1 FROM tracking_model_metric x WHERE x.model = t.id AND x.key = ? AND "+part+on+")", append(args, onArgs...)...)
		default:
			numeric := cmp.Key == "creation_timestamp" || cmp.Key == "last_updated_timestamp"
			part, args := search.Where(cmp, modelColumns[cmp.Key], numeric, sqlite)
			c.and(part, args...)
		}
	}
	sel := tx.NewSelect().Model((*modelRow)(nil)).Where(c.String(), c.args...)
	for i, o := range q.Order {
		switch o.Entity {
		case search.Metric:
			// The newest value on the data set that the clause names, whatever q.Datasets has.
			var measured tracking.DatasetInput
			if i < len(q.OrderOn) {
				measured = q.OrderOn[i]
			}
			column := "(SELECT x.rank FROM tracking_model_metric x WHERE x.model = t.id AND x.key = ?"
			args := []any{o.Key}
			if measured.Name != "" {
				column, args = column+" AND x.dataset_name = ?", append(args, measured.Name)
			}
			if measured.Digest != "" {
				column, args = column+" AND x.dataset_digest = ?", append(args, measured.Digest)
			}
			column += " ORDER BY x.at DESC, x.step DESC, x.run LIMIT 1)"
			sel = sel.OrderExpr(direction(column, o.Desc), append(args, args...)...)
		case search.Param, search.Tag:
			table := "tracking_model_tag"
			if o.Entity == search.Param {
				table = "tracking_model_param"
			}
			sel = sel.OrderExpr(direction("(SELECT x.value FROM "+table+" x WHERE x.model = t.id AND x.key = ?)", o.Desc), o.Key, o.Key)
		default:
			sel = sel.OrderExpr(direction(modelColumns[o.Key], o.Desc))
		}
	}
	var rows []modelRow
	if err := sel.OrderExpr("t.created DESC, t.id").Limit(q.Limit).Offset(q.Offset).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]tracking.LoggedModel, len(rows))
	for i, row := range rows {
		var err error
		if out[i], err = row.model(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// onDatasets narrows metrics "x" to those on one of the data sets.
func onDatasets(datasets []tracking.DatasetInput) (string, []any) {
	if len(datasets) == 0 {
		return "", nil
	}
	parts := make([]string, len(datasets))
	var args []any
	for i, d := range datasets {
		parts[i] = "x.dataset_name = ?"
		args = append(args, d.Name)
		if d.Digest != "" {
			parts[i] = "(x.dataset_name = ? AND x.dataset_digest = ?)"
			args = append(args, d.Digest)
		}
	}
	return " AND (" + strings.Join(parts, " OR ") + ")", args
}

type modelMetricRow struct {
	Model         string
	Key           string
	Run           string
	At            int64
	Step          int64
	Value         store.Float
	DatasetName   string
	DatasetDigest string
}

// FillLoggedModels implements tracking.LoggedModelStore.
func (LoggedModelStore) FillLoggedModels(ctx context.Context, tx *store.Tx, models []tracking.LoggedModel) error {
	ids := make([]string, len(models))
	at := make(map[string]*tracking.LoggedModel, len(models))
	for i := range models {
		ids[i] = string(models[i].ID)
		at[ids[i]] = &models[i]
	}
	params, err := pairsOf(ctx, tx, "tracking_model_param", "model", ids)
	if err != nil {
		return err
	}
	tags, err := pairsOf(ctx, tx, "tracking_model_tag", "model", ids)
	if err != nil {
		return err
	}
	for id, m := range at {
		m.Params, m.Tags, m.Metrics = params[id], tags[id], nil
	}
	return chunks(ids, func(ids []string) error {
		var rows []modelMetricRow
		err := tx.NewRaw("SELECT model, key, run, at, step, value, dataset_name, dataset_digest FROM tracking_model_metric WHERE model IN (?) ORDER BY key, at, step", store.Texts(ids)).Scan(ctx, &rows)
		for _, r := range rows {
			at[r.Model].Metrics = append(at[r.Model].Metrics, tracking.Metric{
				Key: r.Key, Value: float64(r.Value), At: tracking.Millis(r.At), Step: r.Step, Run: tracking.RunID(r.Run),
				Model: tracking.LoggedModelID(r.Model), DatasetName: r.DatasetName, DatasetDigest: r.DatasetDigest,
			})
		}
		return err
	})
}

// PutLoggedModelParams implements tracking.LoggedModelStore.
func (LoggedModelStore) PutLoggedModelParams(ctx context.Context, tx *store.Tx, id tracking.LoggedModelID, params []tracking.Pair) error {
	return putPairs(ctx, tx, "tracking_model_param", "model", string(id), params)
}

// PutLoggedModelTags implements tracking.LoggedModelStore.
func (LoggedModelStore) PutLoggedModelTags(ctx context.Context, tx *store.Tx, id tracking.LoggedModelID, tags []tracking.Pair) error {
	return putPairs(ctx, tx, "tracking_model_tag", "model", string(id), tags)
}

// DeleteLoggedModelTag implements tracking.LoggedModelStore.
func (LoggedModelStore) DeleteLoggedModelTag(ctx context.Context, tx *store.Tx, id tracking.LoggedModelID, key string) (bool, error) {
	return exists(ctx, tx, "DELETE FROM tracking_model_tag WHERE model = ? AND key = ?", string(id), key)
}

// PutModelMetrics implements tracking.LoggedModelStore.
func (LoggedModelStore) PutModelMetrics(ctx context.Context, tx *store.Tx, run tracking.RunID, metrics []tracking.Metric) error {
	for _, m := range metrics {
		_, err := tx.NewRaw(`INSERT INTO tracking_model_metric (model, key, run, at, step, value, rank, dataset_name, dataset_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (model, key, run, at, step, dataset_name, dataset_digest) DO UPDATE SET value = excluded.value, rank = excluded.rank`,
			string(m.Model), m.Key, string(run), int64(m.At), m.Step, store.Float(m.Value), rank(m.Value), m.DatasetName, m.DatasetDigest).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}
