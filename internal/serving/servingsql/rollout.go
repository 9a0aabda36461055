package servingsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

type rolloutRow struct {
	ID         string     `bun:"id,pk"`
	Project    string     `bun:"project"`
	Deployment string     `bun:"deployment"`
	Model      string     `bun:"model"`
	Stable     int64      `bun:"stable"`
	Candidate  int64      `bun:"candidate"`
	Weight     int64      `bun:"weight"`
	Spec       string     `bun:"spec"`
	State      string     `bun:"state"`
	Cause      string     `bun:"cause"`
	Started    store.Time `bun:"started"`
	StartedAt  store.Time `bun:"started_at"`
	Ended      store.Time `bun:"ended"`
	Reason     string     `bun:"reason"`
	Evidence   string     `bun:"evidence"`
	Promoted   store.Time `bun:"promoted"`
	Promotion  string     `bun:"promotion"`
}

const rolloutColumns = "id, project, deployment, model, stable, candidate, weight, spec, state, cause, started, started_at, ended, reason, evidence, promoted, promotion"

// PutRollout implements serving.Store.
func (RolloutStore) PutRollout(ctx context.Context, tx *store.Tx, r serving.Rollout) error {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return err
	}
	row := rolloutRow{
		ID: string(r.ID), Project: r.Project, Deployment: r.Deployment, Model: r.Model, Stable: r.Stable, Candidate: r.Candidate,
		Weight: int64(r.Weight), Spec: string(spec), State: string(r.State), Cause: r.Cause, Started: store.At(r.Started),
		StartedAt: store.At(r.StartedAt), Ended: store.At(r.Ended), Reason: r.Reason, Evidence: string(r.Evidence),
		Promoted: store.At(r.PromotedAt), Promotion: r.Promotion,
	}
	_, err = tx.NewInsert().Model(&row).ModelTableExpr("serving_rollout").
		On("CONFLICT (id) DO UPDATE").
		Set("state = EXCLUDED.state, started_at = EXCLUDED.started_at, ended = EXCLUDED.ended, reason = EXCLUDED.reason, evidence = EXCLUDED.evidence, promoted = EXCLUDED.promoted, promotion = EXCLUDED.promotion").
		Exec(ctx)
	if store.IsUnique(err) {
		return fault.New(fault.Conflict, "deployment %s already has a running rollout", r.Deployment)
	}
	return err
}

func (r rolloutRow) rollout() (serving.Rollout, error) {
	out := serving.Rollout{
		ID: serving.RolloutID(r.ID), Project: r.Project, Deployment: r.Deployment, Model: r.Model, Stable: r.Stable, Candidate: r.Candidate,
		Weight: int(r.Weight), State: serving.RolloutState(r.State), Cause: r.Cause, Started: r.Started.Time(),
		StartedAt: r.StartedAt.Time(), Ended: r.Ended.Time(), Reason: r.Reason, Evidence: raw(r.Evidence),
		PromotedAt: r.Promoted.Time(), Promotion: r.Promotion,
	}
	return out, fault.Wrap(json.Unmarshal([]byte(r.Spec), &out.Spec), "rollout %s", r.ID)
}

func raw(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// Rollout implements serving.Store.
func (RolloutStore) Rollout(ctx context.Context, tx *store.Tx, id serving.RolloutID) (serving.Rollout, error) {
	var r rolloutRow
	err := tx.NewRaw("SELECT "+rolloutColumns+" FROM serving_rollout WHERE id = ?", string(id)).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return serving.Rollout{}, fault.New(fault.NotFound, "rollout %q not found", id)
	}
	if err != nil {
		return serving.Rollout{}, err
	}
	return r.rollout()
}

func rollouts(ctx context.Context, tx *store.Tx, where string, args ...any) ([]serving.Rollout, error) {
	var rows []rolloutRow
	if err := tx.NewRaw("SELECT "+rolloutColumns+" FROM serving_rollout "+where, args...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]serving.Rollout, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.rollout(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Rollouts implements serving.Store.
func (RolloutStore) Rollouts(ctx context.Context, tx *store.Tx, project, deployment string, limit int) ([]serving.Rollout, error) {
	return rollouts(ctx, tx, "WHERE project = ? AND deployment = ? ORDER BY id DESC LIMIT ?", project, deployment, limit)
}

// Running implements serving.Store.
func (RolloutStore) Running(ctx context.Context, tx *store.Tx) ([]serving.Rollout, error) {
	return rollouts(ctx, tx, "WHERE state = 'running' ORDER BY id")
}

type actRow struct {
	ID         string     `bun:"id,pk"`
	Project    string     `bun:"project"`
	Deployment string     `bun:"deployment"`
	Kind       string     `bun:"kind"`
	Cause      string     `bun:"cause"`
	At         store.Time `bun:"act_at"`
	Made       store.Time `bun:"made"`
	Outcome    string     `bun:"outcome"`
	Reason     string     `bun:"reason"`
	Evidence   string     `bun:"evidence"`
	Result     string     `bun:"result"`
}

const actColumns = "id, project, deployment, kind, cause, act_at, made, outcome, reason, evidence, result"

func rowOf(a serving.AutoAction) actRow {
	return actRow{
		ID: string(a.ID), Project: a.Project, Deployment: a.Deployment, Kind: string(a.Kind), Cause: a.Cause, At: store.At(a.At),
		Made: store.At(a.Made), Outcome: string(a.Outcome), Reason: a.Reason, Evidence: string(a.Evidence), Result: a.Result,
	}
}

func (r actRow) act() serving.AutoAction {
	return serving.AutoAction{
		ID: serving.AutoActionID(r.ID), Project: r.Project, Deployment: r.Deployment, Kind: serving.AutoActionKind(r.Kind), Cause: r.Cause, At: r.At.Time(),
		Made: r.Made.Time(), Outcome: serving.AutoActionOutcome(r.Outcome), Reason: r.Reason, Evidence: raw(r.Evidence), Result: r.Result,
	}
}

// InsertAction implements serving.Store.
func (ActionStore) InsertAction(ctx context.Context, tx *store.Tx, a serving.AutoAction) error {
	row := rowOf(a)
	_, err := tx.NewInsert().Model(&row).ModelTableExpr("serving_act").Exec(ctx)
	if store.IsUnique(err) {
		return fault.New(fault.Conflict, "deployment %s already has the automatic action %s for %s", a.Deployment, a.Kind, a.Cause)
	}
	return err
}

// UpdateAction implements serving.Store.
func (ActionStore) UpdateAction(ctx context.Context, tx *store.Tx, a serving.AutoAction) error {
	_, err := tx.NewRaw("UPDATE serving_act SET outcome = ?, reason = ?, result = ? WHERE id = ?", string(a.Outcome), a.Reason, a.Result, string(a.ID)).Exec(ctx)
	return err
}

func oneAct(ctx context.Context, tx *store.Tx, where string, args ...any) (serving.AutoAction, error) {
	var r actRow
	err := tx.NewRaw("SELECT "+actColumns+" FROM serving_act WHERE "+where+" LIMIT 1", args...).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return serving.AutoAction{}, fault.New(fault.NotFound, "automatic action not found")
	}
	return r.act(), err
}

// Action implements serving.Store.
func (ActionStore) Action(ctx context.Context, tx *store.Tx, id serving.AutoActionID) (serving.AutoAction, error) {
	return oneAct(ctx, tx, "id = ?", string(id))
}

// ActionFor implements serving.Store.
func (ActionStore) ActionFor(ctx context.Context, tx *store.Tx, project, deployment string, kind serving.AutoActionKind, cause string) (serving.AutoAction, error) {
	return oneAct(ctx, tx, "project = ? AND deployment = ? AND kind = ? AND cause = ?", project, deployment, string(kind), cause)
}

// ActionWithResult implements serving.Store.
func (ActionStore) ActionWithResult(ctx context.Context, tx *store.Tx, project string, kind serving.AutoActionKind, result string) (serving.AutoAction, error) {
	return oneAct(ctx, tx, "project = ? AND kind = ? AND result = ? ORDER BY id", project, string(kind), result)
}

// ActionWithin implements serving.Store.
func (ActionStore) ActionWithin(ctx context.Context, tx *store.Tx, project, deployment string, kind serving.AutoActionKind, from, until time.Time) (serving.AutoAction, error) {
	return oneAct(ctx, tx, "project = ? AND deployment = ? AND kind = ? AND act_at > ? AND act_at < ? AND outcome IN ('claimed', 'done') ORDER BY act_at DESC",
		project, deployment, string(kind), store.At(from), store.At(until))
}

func acts(ctx context.Context, tx *store.Tx, where string, args ...any) ([]serving.AutoAction, error) {
	var rows []actRow
	if err := tx.NewRaw("SELECT "+actColumns+" FROM serving_act "+where, args...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]serving.AutoAction, len(rows))
	for i, r := range rows {
		out[i] = r.act()
	}
	return out, nil
}

// Actions implements serving.Store.
func (ActionStore) Actions(ctx context.Context, tx *store.Tx, project, deployment string, limit int) ([]serving.AutoAction, error) {
	return acts(ctx, tx, "WHERE project = ? AND deployment = ? ORDER BY id DESC LIMIT ?", project, deployment, limit)
}

// ClaimedActions implements serving.Store.
func (ActionStore) ClaimedActions(ctx context.Context, tx *store.Tx) ([]serving.AutoAction, error) {
	return acts(ctx, tx, "WHERE outcome = 'claimed' ORDER BY id")
}

type switchRow struct {
	Project    string     `bun:"project,pk"`
	Deployment string     `bun:"deployment,pk"`
	Automatic  bool       `bun:"automatic"`
	Reason     string     `bun:"reason"`
	Who        string     `bun:"who"`
	ChangedAt  store.Time `bun:"changed_at"`
}

// PutSwitch implements serving.Store.
func (ActionStore) PutSwitch(ctx context.Context, tx *store.Tx, s serving.Switch) error {
	row := switchRow{Project: s.Project, Deployment: s.Deployment, Automatic: s.On, Reason: s.Reason, Who: s.By, ChangedAt: store.At(s.At)}
	_, err := tx.NewInsert().Model(&row).ModelTableExpr("serving_switch").
		On("CONFLICT (project, deployment) DO UPDATE").
		Set("automatic = EXCLUDED.automatic, reason = EXCLUDED.reason, who = EXCLUDED.who, changed_at = EXCLUDED.changed_at").
		Exec(ctx)
	return err
}

// Switch implements serving.Store.
func (ActionStore) Switch(ctx context.Context, tx *store.Tx, project, deployment string) (serving.Switch, error) {
	var r switchRow
	err := tx.NewRaw("SELECT project, deployment, automatic, reason, who, changed_at FROM serving_switch WHERE project = ? AND deployment = ?", project, deployment).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return serving.Switch{}, fault.New(fault.NotFound, "no automation setting found")
	}
	return serving.Switch{Project: r.Project, Deployment: r.Deployment, On: r.Automatic, Reason: r.Reason, By: r.Who, At: r.ChangedAt.Time()}, err
}

// Submitted gives those of a project's jobs that automatic acts submitted.
func (ActionStore) Submitted(ctx context.Context, tx *store.Tx, p string, jobs []string) (of []string, err error) {
	err = tx.NewSelect().Table("serving_act").ColumnExpr("DISTINCT result").
		Where("project = ? AND kind = ? AND result <> '' AND result IN (?)", p, string(serving.AutoRetrain), store.Texts(jobs)).Scan(ctx, &of)
	return of, err
}
