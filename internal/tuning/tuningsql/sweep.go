package tuningsql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

// Sweeps implements sweep.Store.
type Sweeps struct{}

var _ sweep.Store = Sweeps{}

type sweepRow struct {
	bun.BaseModel `bun:"table:tuning_sweep,alias:w"`
	Project       string `bun:",pk"`
	Name          string `bun:",pk"`
	Study         int64
	State         string
	Body          string
	Revision      int64
	Owner         string
	Line          string
}

// body is what of a sweep no query asks for, with what the API leaves out.
type body struct {
	sweep.Sweep
	Used     time.Duration `json:"used"`
	Forgiven int           `json:"forgiven"`
}

// PutSweep implements sweep.Store.
func (Sweeps) PutSweep(ctx context.Context, tx *store.Tx, s sweep.Sweep) error {
	b, err := json.Marshal(body{s, s.Used, s.Forgiven})
	if err != nil {
		return err
	}
	row := sweepRow{Project: string(s.Project), Name: s.Name, Study: int64(s.Study), State: string(s.State), Body: string(b), Revision: s.Revision, Owner: s.By.ID, Line: store.JoinFields(s.SearchFields())}
	res, err := tx.NewInsert().Model(&row).On("CONFLICT (project, name) DO UPDATE").
		Set("study = EXCLUDED.study, state = EXCLUDED.state, body = EXCLUDED.body, revision = EXCLUDED.revision, owner = EXCLUDED.owner, line = EXCLUDED.line").
		Where("w.revision = EXCLUDED.revision - 1").Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return fault.New(fault.Conflict, "sweep %s was changed by another request", s.Name).WithHint("Try again.")
	}
	return nil
}

// Sweep implements sweep.Store.
func (Sweeps) Sweep(ctx context.Context, tx *store.Tx, p project.Name, name string) (sweep.Sweep, error) {
	all, err := sweeps(ctx, tx.NewSelect().Where("project = ? AND name = ?", string(p), name))
	if err == nil && len(all) == 0 {
		err = fault.New(fault.NotFound, "there is no sweep %q", name).WithHint("List sweeps with `falaj sweep list`.")
	}
	if err != nil {
		return sweep.Sweep{}, err
	}
	return all[0], nil
}

// Lines implements sweep.Store.
func (Sweeps) Lines(ctx context.Context, tx *store.Tx, p project.Name, after tuning.StudyID, limit int) ([]store.Line, error) {
	var rows []struct{ ID, Name, Owner, Line string }
	err := tx.NewRaw(`SELECT CAST(t.id AS TEXT) AS id, t.name, COALESCE(w.owner, t.owner) AS owner, COALESCE(w.line, '') AS line FROM tuning_study t
		LEFT JOIN tuning_sweep w ON w.project = t.project AND w.name = t.name WHERE t.project = ? AND t.id > ? ORDER BY t.id LIMIT ?`, string(p), int64(after), limit).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	lines := make([]store.Line, len(rows))
	for i, r := range rows {
		lines[i] = store.Line{Key: r.ID, Owner: r.Owner, Fields: store.FieldsOf("name", r.Name)}
		lines[i].Add(r.Line)
	}
	return lines, nil
}

// UnderWay implements sweep.Store.
func (Sweeps) UnderWay(ctx context.Context, tx *store.Tx) ([]sweep.Sweep, error) {
	return sweeps(ctx, tx.NewSelect().Where("state = ?", string(sweep.Running)).OrderExpr("project, name"))
}

func sweeps(ctx context.Context, sel *bun.SelectQuery) ([]sweep.Sweep, error) {
	var rows []sweepRow
	if err := sel.Model(&rows).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]sweep.Sweep, len(rows))
	for i, r := range rows {
		var b body
		if err := json.Unmarshal([]byte(r.Body), &b); err != nil {
			return nil, fault.Wrap(err, "sweep %s", r.Name)
		}
		out[i] = b.Sweep
		out[i].Used, out[i].Forgiven, out[i].Revision = b.Used, b.Forgiven, r.Revision
	}
	return out, nil
}

// DeleteSweep implements sweep.Store.
func (Sweeps) DeleteSweep(ctx context.Context, tx *store.Tx, s sweep.Sweep) error {
	if _, err := tx.NewRaw("DELETE FROM tuning_task WHERE project = ? AND study = ?", string(s.Project), int64(s.Study)).Exec(ctx); err != nil {
		return err
	}
	_, err := tx.NewRaw("DELETE FROM tuning_sweep WHERE project = ? AND name = ?", string(s.Project), s.Name).Exec(ctx)
	return err
}

type taskRow struct {
	bun.BaseModel `bun:"table:tuning_task,alias:k"`
	Project       string `bun:",pk"`
	Study         int64  `bun:",pk"`
	Number        int64  `bun:",pk"`
	Trial         int64
	Job           string
	Reason        string
	Done          bool
}

// PutTask implements sweep.Store.
func (Sweeps) PutTask(ctx context.Context, tx *store.Tx, t sweep.Task) error {
	row := taskRow{
		Project: string(t.Project), Study: int64(t.Study), Number: int64(t.Number), Trial: int64(t.Trial),
		Job: string(t.Job), Reason: t.Reason, Done: t.Done,
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, study, number) DO UPDATE").Set("reason = EXCLUDED.reason, done = EXCLUDED.done").Exec(ctx)
	return err
}

// Tasks implements sweep.Store.
func (Sweeps) Tasks(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, open bool) ([]sweep.Task, error) {
	sel := tx.NewSelect()
	if open {
		sel = sel.Where("NOT done")
	}
	return tasks(ctx, sel, p, study)
}

// TasksOf implements sweep.Store.
func (Sweeps) TasksOf(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, from, to int) ([]sweep.Task, error) {
	return tasks(ctx, tx.NewSelect().Where("number BETWEEN ? AND ?", from, to), p, study)
}

func tasks(ctx context.Context, sel *bun.SelectQuery, p project.Name, study tuning.StudyID) ([]sweep.Task, error) {
	var rows []taskRow
	if err := sel.Model(&rows).Where("project = ? AND study = ?", string(p), int64(study)).OrderExpr("number").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]sweep.Task, len(rows))
	for i, r := range rows {
		out[i] = sweep.Task{
			Project: p, Study: study, Number: int(r.Number), Trial: tuning.TrialID(r.Trial), Job: training.JobID(r.Job), Reason: r.Reason, Done: r.Done,
		}
	}
	return out, nil
}
