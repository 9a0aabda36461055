// Package servingsql keeps deployments in the metadata database.
package servingsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema.
var Migrations = store.Embedded("serving", files)

// Store implements serving.Store.
type Store struct {
	DeploymentStore
	RolloutStore
	ActionStore
	UsageStore
}

// DeploymentStore implements serving.DeploymentStore.
type DeploymentStore struct{}

// RolloutStore implements serving.RolloutStore.
type RolloutStore struct{}

// ActionStore implements serving.ActionStore.
type ActionStore struct{}

// UsageStore implements serving.UsageStore.
type UsageStore struct{}

var _ serving.Store = Store{}

type row struct {
	Project        string     `bun:"project,pk"`
	Name           string     `bun:"name,pk"`
	ID             string     `bun:"id"`
	Spec           string     `bun:"spec"`
	Model          string     `bun:"model"`
	Version        int64      `bun:"version"`
	Digest         string     `bun:"digest"`
	Residency      string     `bun:"residency"`
	Classification string     `bun:"classification"`
	CreatedAt      store.Time `bun:"created_at"`
	UpdatedAt      store.Time `bun:"updated_at"`
	Revision       int64      `bun:"revision"`
	Trials         string     `bun:"trials"`
	Earlier        string     `bun:"earlier"`
	FeatureSet     string     `bun:"feature_set"`
	Steps          string     `bun:"steps"`
	Line           string     `bun:"line"`
	Owner          string     `bun:"owner"`
}

const columns = "project, name, id, spec, model, version, digest, residency, classification, created_at, updated_at, revision, trials, earlier, feature_set, steps, line, owner"

// Put implements serving.Store.
func (DeploymentStore) Put(ctx context.Context, tx *store.Tx, d serving.Deployment) error {
	spec, err := json.Marshal(d.Spec)
	if err != nil {
		return err
	}
	label, err := json.Marshal(d.Residency)
	if err != nil {
		return err
	}
	if d.Trials == nil {
		d.Trials = []serving.Trial{}
	}
	trials, err := json.Marshal(d.Trials)
	if err != nil {
		return err
	}
	if d.Before == nil {
		d.Before = []int64{}
	}
	earlier, err := json.Marshal(d.Before)
	if err != nil {
		return err
	}
	set, err := json.Marshal(d.FeatureSet)
	if err != nil {
		return err
	}
	if d.Steps == nil {
		d.Steps = []serving.StepModel{}
	}
	steps, err := json.Marshal(d.Steps)
	if err != nil {
		return err
	}
	r := row{
		Project: d.Project, Name: d.Name, ID: string(d.ID), Spec: string(spec), Model: d.Model, Version: d.Version,
		Digest: d.Digest, Residency: string(label), Classification: d.Classification,
		CreatedAt: store.At(d.CreatedAt), UpdatedAt: store.At(d.UpdatedAt), Revision: d.Revision,
		Trials: string(trials), Earlier: string(earlier), FeatureSet: string(set), Steps: string(steps), Line: store.JoinFields(d.SearchFields()), Owner: d.Owner,
	}
	_, err = tx.NewInsert().Model(&r).ModelTableExpr("serving_deployment").
		On("CONFLICT (project, name) DO UPDATE").
		Set("spec = EXCLUDED.spec, model = EXCLUDED.model, version = EXCLUDED.version, digest = EXCLUDED.digest, residency = EXCLUDED.residency, classification = EXCLUDED.classification, updated_at = EXCLUDED.updated_at, revision = EXCLUDED.revision, trials = EXCLUDED.trials, earlier = EXCLUDED.earlier, feature_set = EXCLUDED.feature_set, steps = EXCLUDED.steps, line = EXCLUDED.line").
		Exec(ctx)
	return err
}

// One implements serving.Store.
func (DeploymentStore) One(ctx context.Context, tx *store.Tx, project, name string) (serving.Deployment, error) {
	var r row
	err := tx.NewRaw("SELECT "+columns+" FROM serving_deployment WHERE project = ? AND name = ?", project, name).Scan(ctx, &r)
	if errors.Is(err, sql.ErrNoRows) {
		return serving.Deployment{}, fault.New(fault.NotFound, "deployment %q not found", name).WithHint("List deployments with `falaj get deployments`.")
	}
	if err != nil {
		return serving.Deployment{}, err
	}
	return r.deployment()
}

// List implements serving.Store.
func (DeploymentStore) List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]serving.Deployment, error) {
	return scan(ctx, tx, "WHERE project = ? AND name > ? ORDER BY name LIMIT ?", project, after, limit)
}

// Lines implements serving.Store.
func (DeploymentStore) Lines(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]store.Line, error) {
	return store.ReadLines(ctx, tx.NewRaw("SELECT name AS key, owner, line FROM serving_deployment WHERE project = ? AND name > ? ORDER BY name LIMIT ?", project, after, limit))
}

// All implements serving.Store.
func (DeploymentStore) All(ctx context.Context, tx *store.Tx) ([]serving.Deployment, error) {
	return scan(ctx, tx, "ORDER BY project, name")
}

// Of implements serving.Store.
func (DeploymentStore) Of(ctx context.Context, tx *store.Tx, project, model string) ([]serving.Deployment, error) {
	return scan(ctx, tx, "WHERE project = ? AND (model = ? OR steps <> '[]') ORDER BY name", project, model)
}

func scan(ctx context.Context, tx *store.Tx, where string, args ...any) ([]serving.Deployment, error) {
	var rows []row
	if err := tx.NewRaw("SELECT "+columns+" FROM serving_deployment "+where, args...).Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]serving.Deployment, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.deployment(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DropRollouts implements serving.Store.
func (RolloutStore) DropRollouts(ctx context.Context, tx *store.Tx, project, name string) error {
	_, err := tx.NewRaw("DELETE FROM serving_rollout WHERE project = ? AND deployment = ?", project, name).Exec(ctx)
	return err
}

// Delete implements serving.Store.
func (DeploymentStore) Delete(ctx context.Context, tx *store.Tx, project, name string) error {
	for _, table := range []string{"serving_rollout", "serving_act", "serving_switch"} {
		if _, err := tx.NewRaw("DELETE FROM "+table+" WHERE project = ? AND deployment = ?", project, name).Exec(ctx); err != nil {
			return err
		}
	}
	if _, err := tx.NewRaw("DELETE FROM serving_usage WHERE deployment IN (SELECT id FROM serving_deployment WHERE project = ? AND name = ?)", project, name).Exec(ctx); err != nil {
		return err
	}
	res, err := tx.NewRaw("DELETE FROM serving_deployment WHERE project = ? AND name = ?", project, name).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return fault.New(fault.NotFound, "deployment %q not found", name).WithHint("List deployments with `falaj get deployments`.")
	}
	return nil
}

func (r row) deployment() (serving.Deployment, error) {
	d := serving.Deployment{
		ID: serving.ID(r.ID), Project: r.Project, Name: r.Name, Model: r.Model, Version: r.Version, Digest: r.Digest,
		Classification: r.Classification, Owner: r.Owner, CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
	}
	for _, c := range []struct {
		text string
		into any
	}{{r.Spec, &d.Spec}, {r.Residency, &d.Residency}, {r.Trials, &d.Trials}, {r.Earlier, &d.Before}, {r.FeatureSet, &d.FeatureSet}, {r.Steps, &d.Steps}} {
		if err := json.Unmarshal([]byte(c.text), c.into); err != nil {
			return d, fault.Wrap(err, "deployment %s", r.Name)
		}
	}
	return d, nil
}
