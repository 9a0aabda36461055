package trainingsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/anomaly"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

type measurementRow struct {
	bun.BaseModel `bun:"table:training_measurement"`

	Attempt string  `bun:"attempt,pk"`
	Job     string  `bun:"job"`
	Project string  `bun:"project"`
	Family  string  `bun:"family"`
	Unit    string  `bun:"unit"`
	Setting string  `bun:"setting"`
	Pool    string  `bun:"pool"`
	Node    string  `bun:"node"`
	Device  string  `bun:"device"`
	Workers int     `bun:"workers"`
	Rate    float64 `bun:"rate"`
	Ended   int64   `bun:"ended"`
	Body    string  `bun:"body"`
}

type slowNodeRow struct {
	bun.BaseModel `bun:"table:training_slow_node"`

	Pool  string `bun:"pool,pk"`
	Node  string `bun:"node,pk"`
	Since int64  `bun:"since"`
	Body  string `bun:"body"`
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// SaveMeasurement writes the measurement of an attempt over an earlier one.
func (MeasurementStore) SaveMeasurement(ctx context.Context, tx *store.Tx, m training.Measurement) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	node, _ := m.Node()
	r := measurementRow{
		Attempt: string(m.Attempt), Job: string(m.Job), Project: string(m.Project), Family: m.Family, Unit: string(m.Unit), Setting: m.Setting,
		Pool: string(m.Pool), Node: node, Device: m.Device, Workers: m.Workers, Rate: m.Rate, Ended: micros(m.Ended), Body: string(body),
	}
	_, err = tx.NewInsert().Model(&r).On("CONFLICT (attempt) DO UPDATE").
		Set("unit = EXCLUDED.unit, setting = EXCLUDED.setting, rate = EXCLUDED.rate, ended = EXCLUDED.ended, body = EXCLUDED.body").Exec(ctx)
	return err
}

// Measurement finds that of an attempt.
func (MeasurementStore) Measurement(ctx context.Context, tx *store.Tx, id training.AttemptID) (m training.Measurement, found bool, err error) {
	var r measurementRow
	err = tx.NewSelect().Model(&r).Where("attempt = ?", string(id)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	return m, true, r.into(&m)
}

func (r measurementRow) into(m *training.Measurement) error {
	return fault.Wrap(json.Unmarshal([]byte(r.Body), m), "reading the measurement of attempt %s", r.Attempt)
}

// Measured lists what the attempts of a family showed that ended last, newest first.
func (MeasurementStore) Measured(ctx context.Context, tx *store.Tx, p project.Name, family string, limit int) ([]training.Measurement, error) {
	var rows []measurementRow
	err := tx.NewSelect().Model(&rows).Where("project = ? AND family = ? AND ended > 0", string(p), family).
		OrderExpr("ended DESC, attempt DESC").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]training.Measurement, len(rows))
	for i, r := range rows {
		if err := r.into(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Rates gives how fast each kind of work was on each device, in the mean of the
// attempts of all projects that ended last.
func (MeasurementStore) Rates(ctx context.Context, tx *store.Tx, limit int) ([]sizing.Profile, error) {
	var rows []measurementRow
	last := tx.NewSelect().Model((*measurementRow)(nil)).ExcludeColumn("body").
		Where("ended > 0 AND rate > 0").OrderExpr("ended DESC, attempt DESC").Limit(limit)
	err := tx.NewSelect().TableExpr("(?) AS last", last).
		ColumnExpr("project, family, unit, setting, device, workers, AVG(rate) AS rate, MAX(ended) AS ended").
		GroupExpr("project, family, unit, setting, device, workers").
		OrderExpr("project, family, unit, setting, device, workers").Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	all := make([]sizing.Profile, len(rows))
	for i, r := range rows {
		all[i] = sizing.Profile{
			Kind:   sizing.Kind{Family: r.Project + "/" + r.Family, Unit: sizing.Unit(r.Unit), Setting: r.Setting},
			Device: r.Device, Workers: r.Workers, Rate: r.Rate, At: time.UnixMicro(r.Ended).UTC(),
		}
	}
	return all, nil
}

// Ran lists the attempts that ended last on one node of a pool, newest first.
func (MeasurementStore) Ran(ctx context.Context, tx *store.Tx, pool compute.PoolName, device string, limit int) ([]anomaly.Ran, error) {
	var rows []measurementRow
	err := tx.NewSelect().Model(&rows).ExcludeColumn("body").
		Where("pool = ? AND device = ? AND node <> '' AND ended > 0 AND rate > 0", string(pool), device).
		OrderExpr("ended DESC, attempt DESC").Limit(limit).Scan(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]anomaly.Ran, len(rows))
	for i, r := range rows {
		kind := r.Project + "/" + r.Family + " " + r.Unit + " " + r.Setting + " " + strconv.Itoa(r.Workers)
		all[i] = anomaly.Ran{Kind: kind, Node: r.Node, Rate: r.Rate, At: time.UnixMicro(r.Ended).UTC()}
	}
	return all, nil
}

// SlowNode finds what was told of a node last.
func (MeasurementStore) SlowNode(ctx context.Context, tx *store.Tx, pool compute.PoolName, node string) (n training.SlowNode, found bool, err error) {
	var r slowNodeRow
	err = tx.NewSelect().Model(&r).Where("pool = ? AND node = ?", string(pool), node).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return n, false, nil
	}
	if err != nil {
		return n, false, err
	}
	return n, true, fault.Wrap(json.Unmarshal([]byte(r.Body), &n), "reading the state of node %s", node)
}

// SaveSlowNode notes what was told of a node.
func (MeasurementStore) SaveSlowNode(ctx context.Context, tx *store.Tx, n training.SlowNode) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	r := slowNodeRow{Pool: string(n.Pool), Node: n.Node, Since: micros(n.Since), Body: string(body)}
	_, err = tx.NewInsert().Model(&r).On("CONFLICT (pool, node) DO UPDATE").Set("since = EXCLUDED.since, body = EXCLUDED.body").Exec(ctx)
	return err
}
