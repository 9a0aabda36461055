// Package monitoringsql keeps monitors, their windows and baselines in the
// metadata database.
package monitoringsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("monitoring", files)

// Store implements monitoring.Store.
type Store struct{}

var _ monitoring.Store = Store{}

type monitorRow struct {
	Project    string     `bun:"project,pk"`
	Name       string     `bun:"name,pk"`
	ID         string     `bun:"id"`
	Deployment string     `bun:"deployment"`
	Spec       string     `bun:"spec"`
	Automatic  bool       `bun:"automatic"`
	Author     string     `bun:"author"`
	CreatedAt  store.Time `bun:"created_at"`
	UpdatedAt  store.Time `bun:"updated_at"`
	Revision   int64      `bun:"revision"`
}

// shownRow is a monitor beside its status.
type shownRow struct {
	monitorRow
	Status string `bun:"status"`
}

const shown = "SELECT m.project, m.name, m.id, m.deployment, m.spec, m.automatic, m.author, m.created_at, m.updated_at, m.revision, COALESCE(p.status, '') AS status " +
	"FROM monitoring_monitor m LEFT JOIN monitoring_progress p ON p.monitor_id = m.id "

// Put implements monitoring.Store.
func (Store) Put(ctx context.Context, tx *store.Tx, m monitoring.Monitor) error {
	spec, err := json.Marshal(m.Spec)
	if err != nil {
		return err
	}
	author, err := json.Marshal(m.By)
	if err != nil {
		return err
	}
	r := monitorRow{
		Project: m.Project, Name: m.Name, ID: string(m.ID), Deployment: m.Deployment, Spec: string(spec), Automatic: m.Automatic, Author: string(author),
		CreatedAt: store.At(m.CreatedAt), UpdatedAt: store.At(m.UpdatedAt), Revision: m.Revision,
	}
	_, err = tx.NewInsert().Model(&r).ModelTableExpr("monitoring_monitor").
		On("CONFLICT (project, name) DO UPDATE").
		Set("deployment = EXCLUDED.deployment, spec = EXCLUDED.spec, automatic = EXCLUDED.automatic, author = EXCLUDED.author, updated_at = EXCLUDED.updated_at, revision = EXCLUDED.revision").
		Exec(ctx)
	return err
}

// One implements monitoring.Store.
func (Store) One(ctx context.Context, tx *store.Tx, project, name string) (monitoring.Monitor, error) {
	ms, err := monitors(ctx, tx, "WHERE m.project = ? AND m.name = ?", project, name)
	if err != nil {
		return monitoring.Monitor{}, err
	}
	if len(ms) == 0 {
		return monitoring.Monitor{}, fault.New(fault.NotFound, "no monitor %q", name).WithHint("List monitors with `falaj monitor list`.")
	}
	return ms[0], nil
}

// List implements monitoring.Store.
func (Store) List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]monitoring.Monitor, error) {
	return monitors(ctx, tx, "WHERE m.project = ? AND m.name > ? ORDER BY m.name LIMIT ?", project, after, limit)
}

// Lines implements monitoring.Store.
func (Store) Lines(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]store.Line, error) {
	var rows []struct{ Name, Deployment, Author string }
	err := tx.NewRaw("SELECT name, deployment, author FROM monitoring_monitor WHERE project = ? AND name > ? ORDER BY name LIMIT ?", project, after, limit).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	lines := make([]store.Line, len(rows))
	for i, r := range rows {
		var by identity.Principal
		if err := json.Unmarshal([]byte(r.Author), &by); err != nil {
			return nil, fault.Wrap(err, "monitor %s", r.Name)
		}
		lines[i] = store.Line{Key: r.Name, Owner: by.ID, Fields: monitoring.Monitor{Deployment: r.Deployment}.SearchFields()}
	}
	return lines, nil
}

// All implements monitoring.Store.
func (Store) All(ctx context.Context, tx *store.Tx) ([]monitoring.Monitor, error) {
	return monitors(ctx, tx, "ORDER BY m.project, m.name")
}

func monitors(ctx context.Context, tx *store.Tx, where string, args ...any) ([]monitoring.Monitor, error) {
	var rows []shownRow
	if err := tx.NewRaw(shown+where, args...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]monitoring.Monitor, len(rows))
	for i, r := range rows {
		m := monitoring.Monitor{
			ID: monitoring.ID(r.ID), Project: r.Project, Name: r.Name, Deployment: r.Deployment, Automatic: r.Automatic,
			CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
			Status: monitoring.Status{State: monitoring.Waiting, Reason: "no prediction was read yet"},
		}
		if err := errors.Join(json.Unmarshal([]byte(r.Spec), &m.Spec), json.Unmarshal([]byte(r.Author), &m.By)); err != nil {
			return nil, fault.Wrap(err, "monitor %s", r.Name)
		}
		if r.Status != "" {
			var s status
			if err := json.Unmarshal([]byte(r.Status), &s); err != nil {
				return nil, fault.Wrap(err, "monitor %s", r.Name)
			}
			m.Status = s.Status
		}
		out[i] = m
	}
	return out, nil
}

// Delete implements monitoring.Store.
func (Store) Delete(ctx context.Context, tx *store.Tx, m monitoring.Monitor) error {
	for _, table := range []string{"monitoring_progress", "monitoring_window", "monitoring_pairs", "monitoring_classifier"} {
		if _, err := tx.NewRaw("DELETE FROM "+table+" WHERE monitor_id = ?", string(m.ID)).Exec(ctx); err != nil {
			return err
		}
	}
	_, err := tx.NewRaw("DELETE FROM monitoring_monitor WHERE project = ? AND name = ?", m.Project, m.Name).Exec(ctx)
	return err
}

// status is what of the progress people and the next round need, as JSON.
type status struct {
	monitoring.Status

	Of    string            `json:"of"`
	Drift monitoring.Streak `json:"drift_streak"`
	Worse monitoring.Streak `json:"worse_streak"`

	Blind    monitoring.Streak             `json:"blind_streak,omitzero"`
	Silent   monitoring.Streak             `json:"silent_streak,omitzero"`
	Compared map[int64]monitoring.Compared `json:"compared,omitempty"`
}

// Progress implements monitoring.Store.
func (Store) Progress(ctx context.Context, tx *store.Tx, monitor monitoring.ID) (monitoring.Progress, error) {
	var r struct {
		Seq        int64
		Place      string
		LabelPlace string
		Status     string
		Open       []byte
	}
	err := tx.NewRaw("SELECT seq, place, label_place, status, open FROM monitoring_progress WHERE monitor_id = ?", string(monitor)).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return monitoring.Progress{}, nil
	}
	if err != nil {
		return monitoring.Progress{}, err
	}
	var s status
	if err := json.Unmarshal([]byte(r.Status), &s); err != nil {
		return monitoring.Progress{}, fault.Wrap(err, "progress of monitor %s", monitor)
	}
	return monitoring.Progress{Seq: r.Seq, Of: s.Of, Cursor: r.Place, Labels: r.LabelPlace, Status: s.Status, Drift: s.Drift, Worse: s.Worse, Blind: s.Blind, Silent: s.Silent, Compared: s.Compared, Open: r.Open}, nil
}

// PutProgress implements monitoring.Store.
func (Store) PutProgress(ctx context.Context, tx *store.Tx, monitor monitoring.ID, p monitoring.Progress) error {
	b, err := json.Marshal(status{Status: p.Status, Of: p.Of, Drift: p.Drift, Worse: p.Worse, Blind: p.Blind, Silent: p.Silent, Compared: p.Compared})
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO monitoring_progress (monitor_id, seq, place, label_place, status, open) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (monitor_id) DO UPDATE SET seq = excluded.seq, place = excluded.place, label_place = excluded.label_place, status = excluded.status, open = excluded.open`,
		string(monitor), p.Seq, p.Cursor, p.Labels, string(b), notNil(p.Open)).Exec(ctx)
	return err
}

// notNil is b, or an empty slice: the columns are NOT NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// PutWindow implements monitoring.Store.
func (Store) PutWindow(ctx context.Context, tx *store.Tx, monitor monitoring.ID, w monitoring.Window, summary []byte) error {
	w.Classifier = nil // it has a row of its own, which somebody else may write meanwhile
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	replace := "ends_at = excluded.ends_at, closed_at = excluded.closed_at, late = excluded.late, result = excluded.result"
	if summary != nil {
		replace += ", summary = excluded.summary"
	}
	_, err = tx.NewRaw(`INSERT INTO monitoring_window (monitor_id, version, replay, start, ends_at, closed_at, late, result, summary) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (monitor_id, version, replay, start) DO UPDATE SET `+replace,
		string(monitor), w.Version, w.Replay, w.Start, store.At(w.To), store.At(w.ClosedAt), w.Late, string(b), notNil(summary)).Exec(ctx)
	return err
}

// AddLate implements monitoring.Store.
func (Store) AddLate(ctx context.Context, tx *store.Tx, monitor monitoring.ID, k monitoring.WindowKey, n int64) (bool, error) {
	res, err := tx.NewRaw("UPDATE monitoring_window SET late = late + ? WHERE monitor_id = ? AND version = ? AND replay = ? AND start = ?",
		n, string(monitor), k.Version, k.Replay, k.Start).Exec(ctx)
	if err != nil {
		return false, err
	}
	rows, err := res.RowsAffected()
	return rows > 0, err
}

type windowRow struct {
	Start   int64
	Late    int64
	Result  string
	Summary []byte

	Classifier string
}

// classifiedIn is the classification of a window, ” when there is none.
const classifiedIn = `COALESCE((SELECT c.result FROM monitoring_classifier c WHERE c.monitor_id = monitoring_window.monitor_id
	AND c.version = monitoring_window.version AND c.replay = monitoring_window.replay AND c.start = monitoring_window.start), '') AS classifier`

func (r windowRow) window() (w monitoring.Window, err error) {
	if err := json.Unmarshal([]byte(r.Result), &w); err != nil {
		return w, fault.Wrap(err, "window %d", r.Start)
	}
	w.Start, w.Late = r.Start, r.Late
	if r.Classifier != "" {
		w.Classifier = &monitoring.Classification{}
		if err := json.Unmarshal([]byte(r.Classifier), w.Classifier); err != nil {
			return w, fault.Wrap(err, "classifier of window %d", r.Start)
		}
	}
	return w, nil
}

// Window implements monitoring.Store.
func (Store) Window(ctx context.Context, tx *store.Tx, monitor monitoring.ID, k monitoring.WindowKey) (monitoring.Window, []byte, error) {
	var r windowRow
	err := tx.NewRaw("SELECT start, late, result, summary, "+classifiedIn+" FROM monitoring_window WHERE monitor_id = ? AND version = ? AND replay = ? AND start = ?",
		string(monitor), k.Version, k.Replay, k.Start).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return monitoring.Window{}, nil, fault.New(fault.NotFound, "no window %s", k)
	}
	if err != nil {
		return monitoring.Window{}, nil, err
	}
	w, err := r.window()
	return w, r.Summary, err
}

// Windows implements monitoring.Store.
func (Store) Windows(ctx context.Context, tx *store.Tx, monitor monitoring.ID, f monitoring.WindowFilter) ([]monitoring.Window, error) {
	where, args := "WHERE monitor_id = ?", []any{string(monitor)}
	add := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	if f.Version != 0 {
		add("version = ?", f.Version)
	}
	if !f.From.IsZero() {
		add("ends_at > ?", store.At(f.From))
	}
	if !f.To.IsZero() {
		add("ends_at <= ?", store.At(f.To))
	}
	if !f.BeforeTo.IsZero() {
		at := store.At(f.BeforeTo)
		add("(ends_at < ? OR ends_at = ? AND (version < ? OR version = ? AND start < ?))", at, at, f.Before.Version, f.Before.Version, f.Before.Start)
	}
	var rows []windowRow
	if err := tx.NewRaw("SELECT start, late, result, "+classifiedIn+" FROM monitoring_window "+where+" ORDER BY ends_at DESC, version DESC, start DESC LIMIT ?",
		append(args, f.Limit)...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]monitoring.Window, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.window(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// TrimWindows implements monitoring.Store.
func (Store) TrimWindows(ctx context.Context, tx *store.Tx, before time.Time) error {
	at := store.At(before)
	if _, err := tx.NewRaw("DELETE FROM monitoring_window WHERE closed_at < ?", at).Exec(ctx); err != nil {
		return err
	}
	if _, err := tx.NewRaw("DELETE FROM monitoring_classifier WHERE updated_at < ?", at).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw("DELETE FROM monitoring_pairs WHERE updated_at < ?", at).Exec(ctx)
	return err
}

// PutClassification implements monitoring.Store.
func (Store) PutClassification(ctx context.Context, tx *store.Tx, c monitoring.StoredClassification, at time.Time) error {
	b, err := json.Marshal(c.Classification)
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO monitoring_classifier (monitor_id, version, replay, start, job, updated_at, result) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (monitor_id, version, replay, start) DO UPDATE SET job = excluded.job, updated_at = excluded.updated_at, result = excluded.result`,
		string(c.Monitor.ID), c.Key.Version, c.Key.Replay, c.Key.Start, c.Job, store.At(at), string(b)).Exec(ctx)
	return err
}

// ClassifiedBy implements monitoring.Store.
func (s Store) ClassifiedBy(ctx context.Context, tx *store.Tx, project, job string) ([]monitoring.StoredClassification, error) {
	var rows []struct {
		Name    string
		Version int64
		Replay  bool
		Start   int64
		Result  string
	}
	if err := tx.NewRaw(`SELECT m.name, c.version, c.replay, c.start, c.result FROM monitoring_classifier c
		JOIN monitoring_monitor m ON m.id = c.monitor_id WHERE c.job = ? AND m.project = ? ORDER BY m.name, c.version, c.replay, c.start`,
		job, project).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]monitoring.StoredClassification, len(rows))
	for i, r := range rows {
		c := &out[i]
		c.Key = monitoring.WindowKey{Version: r.Version, Replay: r.Replay, Start: r.Start}
		if err := json.Unmarshal([]byte(r.Result), &c.Classification); err != nil {
			return nil, fault.Wrap(err, "classifier of window %s", c.Key)
		}
		var err error
		if c.Monitor, err = s.One(ctx, tx, project, r.Name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Pairs implements monitoring.Store.
func (Store) Pairs(ctx context.Context, tx *store.Tx, monitor monitoring.ID, k monitoring.WindowKey) (sealed []byte, err error) {
	err = tx.NewRaw("SELECT pairs FROM monitoring_pairs WHERE monitor_id = ? AND version = ? AND replay = ? AND start = ?",
		string(monitor), k.Version, k.Replay, k.Start).Scan(ctx, &sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fault.New(fault.NotFound, "no labels of window %s", k)
	}
	return sealed, err
}

// PutPairs implements monitoring.Store.
func (Store) PutPairs(ctx context.Context, tx *store.Tx, monitor monitoring.ID, k monitoring.WindowKey, sealed []byte, at time.Time) error {
	_, err := tx.NewRaw(`INSERT INTO monitoring_pairs (monitor_id, version, replay, start, updated_at, pairs) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (monitor_id, version, replay, start) DO UPDATE SET updated_at = excluded.updated_at, pairs = excluded.pairs`,
		string(monitor), k.Version, k.Replay, k.Start, store.At(at), sealed).Exec(ctx)
	return err
}

// Baseline implements monitoring.Store.
func (Store) Baseline(ctx context.Context, tx *store.Tx, k monitoring.BaselineKey) (monitoring.StoredBaseline, error) {
	var r struct {
		Facts   string
		Columns []byte
	}
	err := tx.NewRaw("SELECT facts, columns FROM monitoring_baseline WHERE project = ? AND deployment = ? AND version = ? AND digest = ?",
		k.Project, k.Deployment, k.Version, k.Digest).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return monitoring.StoredBaseline{}, fault.New(fault.NotFound, "no baseline of version %d of %s", k.Version, k.Deployment)
	}
	if err != nil {
		return monitoring.StoredBaseline{}, err
	}
	b := monitoring.StoredBaseline{Sealed: r.Columns}
	return b, fault.Wrap(json.Unmarshal([]byte(r.Facts), &b.Facts), "baseline of version %d of %s", k.Version, k.Deployment)
}

// PutBaseline implements monitoring.Store.
func (Store) PutBaseline(ctx context.Context, tx *store.Tx, k monitoring.BaselineKey, b monitoring.StoredBaseline) error {
	facts, err := json.Marshal(b.Facts)
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO monitoring_baseline (project, deployment, version, digest, facts, columns, computed_at) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (project, deployment, version, digest) DO UPDATE SET facts = excluded.facts, columns = excluded.columns, computed_at = excluded.computed_at`,
		k.Project, k.Deployment, k.Version, k.Digest, string(facts), notNil(b.Sealed), store.At(b.Facts.ComputedAt)).Exec(ctx)
	return err
}

// DropBaselines implements monitoring.Store.
func (Store) DropBaselines(ctx context.Context, tx *store.Tx, project, deployment string) error {
	_, err := tx.NewRaw(`DELETE FROM monitoring_baseline WHERE project = ? AND deployment = ? AND NOT EXISTS (
		SELECT 1 FROM monitoring_monitor m WHERE m.project = monitoring_baseline.project AND m.deployment = monitoring_baseline.deployment)`, project, deployment).Exec(ctx)
	return err
}

// Keeps implements monitoring.Store.
func (Store) Keeps(ctx context.Context, tx *store.Tx, m monitoring.Monitor) (bool, error) {
	some, err := tx.NewSelect().Table("monitoring_window").Where("monitor_id = ?", m.ID).Exists(ctx)
	if err != nil || some {
		return some, err
	}
	return tx.NewSelect().Table("monitoring_baseline").Where("project = ? AND deployment = ?", m.Project, m.Deployment).Exists(ctx)
}

// Mentions gives the texts of monitors that have a word in them.
func (Store) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	return store.Mentions(ctx, tx, store.Mention{Table: "monitoring_monitor", Column: "spec", By: "'monitor ' || name"}, string(p), word, each)
}
