// Package tuningsql keeps studies and trials in the metadata database, SQLite or
// PostgreSQL alike.
package tuningsql

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"strconv"
	"strings"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tuning"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of tuning.
var Migrations = store.Embedded("tuning", files)

// Store implements tuning.Store.
type Store struct{}

var _ tuning.Store = Store{}

// batch bounds the numbers named in one statement.
const batch = 500

func next(ctx context.Context, tx *store.Tx, p project.Name, kind string) (n int64, err error) {
	err = tx.NewRaw("INSERT INTO tuning_sequence (project, kind, last) VALUES (?, ?, 1) ON CONFLICT (project, kind) DO UPDATE SET last = tuning_sequence.last + 1 RETURNING last",
		string(p), kind).Scan(ctx, &n)
	return n, err
}

// NextStudy implements tuning.Store.
func (Store) NextStudy(ctx context.Context, tx *store.Tx, p project.Name) (tuning.StudyID, error) {
	n, err := next(ctx, tx, p, "study")
	return tuning.StudyID(n), err
}

// NextTrial implements tuning.Store.
func (Store) NextTrial(ctx context.Context, tx *store.Tx, p project.Name) (tuning.TrialID, error) {
	n, err := next(ctx, tx, p, "trial")
	return tuning.TrialID(n), err
}

type studyRow struct {
	bun.BaseModel `bun:"table:tuning_study,alias:t"`
	Project       string `bun:",pk"`
	ID            int64  `bun:",pk"`
	Name          string
	Directions    string
	Owner         string
	Created       store.Time
	Request       string
	Residency     string

	Classification string
}

// AddStudy implements tuning.Store.
func (Store) AddStudy(ctx context.Context, tx *store.Tx, s tuning.Study) error {
	var directions []string
	for _, d := range s.Directions {
		directions = append(directions, string(d))
	}
	row := studyRow{
		Project: string(s.Project), ID: int64(s.ID), Name: s.Name, Directions: strings.Join(directions, " "),
		Owner: s.Owner, Created: store.At(s.Created), Request: s.Request, Residency: zones(s.Residency), Classification: s.Classification,
	}
	err := tx.Savepoint(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewInsert().Model(&row).Exec(ctx)
		return err
	})
	if store.IsUnique(err) {
		return fault.New(fault.Conflict, "study %q already exists", s.Name).WithHint("Choose another name, or load the existing study.")
	}
	return err
}

// Study implements tuning.Store.
func (Store) Study(ctx context.Context, tx *store.Tx, p project.Name, id tuning.StudyID) (tuning.Study, error) {
	rows, err := studies(ctx, tx, tx.NewSelect().Where("t.project = ? AND t.id = ?", string(p), int64(id)))
	if err == nil && len(rows) == 0 {
		err = fault.New(fault.NotFound, "no study with number %d exists", id)
	}
	if err != nil {
		return tuning.Study{}, err
	}
	return rows[0], nil
}

// StudyNamed implements tuning.Store.
func (Store) StudyNamed(ctx context.Context, tx *store.Tx, p project.Name, name string) (tuning.Study, error) {
	rows, err := studies(ctx, tx, tx.NewSelect().Where("t.project = ? AND t.name = ?", string(p), name))
	if err == nil && len(rows) == 0 {
		err = fault.New(fault.NotFound, "no study %q exists", name)
	}
	if err != nil {
		return tuning.Study{}, err
	}
	return rows[0], nil
}

// Studies implements tuning.Store.
func (Store) Studies(ctx context.Context, tx *store.Tx, p project.Name, after tuning.StudyID, limit int) ([]tuning.Study, error) {
	return studies(ctx, tx, tx.NewSelect().Where("t.project = ? AND t.id > ?", string(p), int64(after)).OrderExpr("t.id").Limit(limit))
}

func studies(ctx context.Context, tx *store.Tx, sel *bun.SelectQuery) ([]tuning.Study, error) {
	var rows []studyRow
	if err := sel.Model(&rows).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]tuning.Study, len(rows))
	for i, r := range rows {
		s := tuning.Study{
			Project: project.Name(r.Project), ID: tuning.StudyID(r.ID), Name: r.Name, Owner: r.Owner, Created: r.Created.Time(),
			User: tuning.Attributes{}, System: tuning.Attributes{}, Request: r.Request, Classification: r.Classification,
		}
		for d := range strings.FieldsSeq(r.Directions) {
			s.Directions = append(s.Directions, tuning.Direction(d))
		}
		for z := range strings.FieldsSeq(r.Residency) {
			s.Residency = append(s.Residency, residency.Zone(z))
		}
		var pairs []attributeRow
		if err := tx.NewRaw("SELECT study AS owner, scope, key, value FROM tuning_study_attribute WHERE project = ? AND study = ?", r.Project, r.ID).Scan(ctx, &pairs); err != nil {
			return nil, err
		}
		for _, a := range pairs {
			a.into(s.User, s.System)
		}
		out[i] = s
	}
	return out, nil
}

func zones(l residency.Label) string {
	names := make([]string, len(l))
	for i, z := range l {
		names[i] = string(z)
	}
	return strings.Join(names, " ")
}

// Relabel implements tuning.Store.
func (Store) Relabel(ctx context.Context, tx *store.Tx, p project.Name, id tuning.StudyID, label residency.Label, classification string) error {
	_, err := tx.NewRaw("UPDATE tuning_study SET residency = ?, classification = ? WHERE project = ? AND id = ?", zones(label), classification, string(p), int64(id)).Exec(ctx)
	return err
}

type attributeRow struct {
	Owner             int64
	Scope, Key, Value string
}

func (a attributeRow) into(user, system tuning.Attributes) {
	if tuning.Scope(a.Scope) == tuning.User {
		user[a.Key] = a.Value
	} else {
		system[a.Key] = a.Value
	}
}

// DeleteStudy implements tuning.Store.
func (s Store) DeleteStudy(ctx context.Context, tx *store.Tx, p project.Name, id tuning.StudyID) error {
	if _, err := s.Study(ctx, tx, p, id); err != nil {
		return err
	}
	for _, table := range []string{"tuning_param", "tuning_trial_attribute", "tuning_intermediate"} {
		if _, err := tx.NewRaw("DELETE FROM ? WHERE project = ? AND trial IN (SELECT id FROM tuning_trial WHERE project = ? AND study = ?)",
			bun.Ident(table), string(p), string(p), int64(id)).Exec(ctx); err != nil {
			return err
		}
	}
	for _, table := range []string{"tuning_trial", "tuning_distribution", "tuning_study_attribute"} {
		if _, err := tx.NewRaw("DELETE FROM ? WHERE project = ? AND study = ?", bun.Ident(table), string(p), int64(id)).Exec(ctx); err != nil {
			return err
		}
	}
	_, err := tx.NewRaw("DELETE FROM tuning_study WHERE project = ? AND id = ?", string(p), int64(id)).Exec(ctx)
	return err
}

// PutStudyAttribute implements tuning.Store.
func (Store) PutStudyAttribute(ctx context.Context, tx *store.Tx, p project.Name, id tuning.StudyID, scope tuning.Scope, key, value string) error {
	_, err := tx.NewRaw("INSERT INTO tuning_study_attribute (project, study, scope, key, value) VALUES (?, ?, ?, ?, ?) ON CONFLICT (project, study, scope, key) DO UPDATE SET value = excluded.value",
		string(p), int64(id), string(scope), key, value).Exec(ctx)
	return err
}

// TrialCount implements tuning.Store.
func (Store) TrialCount(ctx context.Context, tx *store.Tx, p project.Name, id tuning.StudyID) (n int64, err error) {
	err = tx.NewRaw("SELECT COALESCE(MAX(number) + 1, 0) FROM tuning_trial WHERE project = ? AND study = ?", string(p), int64(id)).Scan(ctx, &n)
	return n, err
}

type trialRow struct {
	bun.BaseModel `bun:"table:tuning_trial,alias:t"`
	Project       string `bun:",pk"`
	ID            int64  `bun:",pk"`
	Study         int64
	Number        int64
	State         string
	Objectives    string
	Started       store.Time
	Completed     store.Time
	Made, Moved   string
}

func (r trialRow) trial() (tuning.Trial, error) {
	t := tuning.Trial{
		ID: tuning.TrialID(r.ID), Study: tuning.StudyID(r.Study), Number: r.Number, State: tuning.State(r.State),
		Started: r.Started.Time(), Completed: r.Completed.Time(), Made: r.Made, Moved: r.Moved,
	}
	for text := range strings.FieldsSeq(r.Objectives) {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return t, err
		}
		t.Values = append(t.Values, v)
	}
	return t, nil
}

// PutTrial implements tuning.Store.
func (Store) PutTrial(ctx context.Context, tx *store.Tx, p project.Name, t tuning.Trial) error {
	var values []string
	for _, v := range t.Values {
		values = append(values, strconv.FormatFloat(v, 'g', -1, 64))
	}
	row := trialRow{
		Project: string(p), ID: int64(t.ID), Study: int64(t.Study), Number: t.Number, State: string(t.State),
		Objectives: strings.Join(values, " "), Started: store.At(t.Started), Completed: store.At(t.Completed), Made: t.Made, Moved: t.Moved,
	}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (project, id) DO UPDATE").Set("state = EXCLUDED.state").
		Set("objectives = EXCLUDED.objectives").Set("started = EXCLUDED.started").Set("completed = EXCLUDED.completed").Set("moved = EXCLUDED.moved").Exec(ctx)
	return err
}

// TrialOf implements tuning.Store.
func (Store) TrialOf(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, request string) (tuning.TrialID, error) {
	var id int64
	err := tx.NewRaw("SELECT id FROM tuning_trial WHERE project = ? AND study = ? AND made = ? AND made <> ''", string(p), int64(study), request).Scan(ctx, &id)
	return tuning.TrialID(id), store.NotFound(err, "study %d has no trial of this request", study)
}

// TrialHead implements tuning.Store.
func (Store) TrialHead(ctx context.Context, tx *store.Tx, p project.Name, id tuning.TrialID) (tuning.Trial, error) {
	var row trialRow
	if err := tx.NewSelect().Model(&row).Where("t.project = ? AND t.id = ?", string(p), int64(id)).Scan(ctx); err != nil {
		return tuning.Trial{}, store.NotFound(err, "no trial with number %d exists", id)
	}
	return row.trial()
}

// TrialNumbered implements tuning.Store.
func (Store) TrialNumbered(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, number int64) (tuning.TrialID, error) {
	var id int64
	err := tx.NewRaw("SELECT id FROM tuning_trial WHERE project = ? AND study = ? AND number = ?", string(p), int64(study), number).Scan(ctx, &id)
	return tuning.TrialID(id), store.NotFound(err, "study %d has no trial %d", study, number)
}

// Trials implements tuning.Store.
func (Store) Trials(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, after tuning.TrialID, included []tuning.TrialID, limit int) ([]tuning.Trial, error) {
	sel := tx.NewSelect().Where("t.project = ? AND t.study = ?", string(p), int64(study))
	if len(included) > 0 {
		sel = sel.Where("(t.id > ? OR t.id IN (?))", int64(after), bun.List(included))
	} else {
		sel = sel.Where("t.id > ?", int64(after))
	}
	var rows []trialRow
	if err := sel.Model(&rows).OrderExpr("t.id").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]tuning.Trial, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.trial(); err != nil {
			return nil, err
		}
	}
	for part := out; len(part) > 0; {
		n := min(len(part), batch)
		if err := fill(ctx, tx, p, part[:n]); err != nil {
			return nil, err
		}
		part = part[n:]
	}
	return out, nil
}

// Heads implements tuning.Store.
func (Store) Heads(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, state tuning.State, after tuning.TrialID, limit int) ([]tuning.Trial, error) {
	var rows []trialRow
	if err := tx.NewSelect().Model(&rows).Where("t.project = ? AND t.study = ? AND t.state = ? AND t.id > ?", string(p), int64(study), string(state), int64(after)).
		OrderExpr("t.id").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]tuning.Trial, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.trial(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Constrained implements tuning.Store.
func (Store) Constrained(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID) (map[tuning.TrialID]tuning.Attributes, error) {
	var rows []attributeRow
	err := tx.NewRaw(`SELECT a.trial AS owner, a.scope, a.key, a.value FROM tuning_trial t JOIN tuning_trial_attribute a ON a.project = t.project AND a.trial = t.id
		WHERE t.project = ? AND t.study = ? AND t.state = ? AND a.scope = ? AND (a.key = ? OR a.key LIKE ?)`,
		string(p), int64(study), string(tuning.Complete), string(tuning.System), tuning.Constraints, tuning.Constraints+":%").Scan(ctx, &rows)
	out := map[tuning.TrialID]tuning.Attributes{}
	for _, r := range rows {
		of := out[tuning.TrialID(r.Owner)]
		if of == nil {
			of = tuning.Attributes{}
			out[tuning.TrialID(r.Owner)] = of
		}
		of[r.Key] = r.Value
	}
	return out, err
}

// Counts implements tuning.Store.
func (Store) Counts(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID) (map[tuning.State]int, error) {
	var rows []struct {
		State string
		N     int
	}
	err := tx.NewRaw("SELECT state, COUNT(*) AS n FROM tuning_trial WHERE project = ? AND study = ? GROUP BY state", string(p), int64(study)).Scan(ctx, &rows)
	out := map[tuning.State]int{}
	for _, r := range rows {
		out[tuning.State(r.State)] = r.N
	}
	return out, err
}

// RunningOf implements tuning.Store.
func (Store) RunningOf(ctx context.Context, tx *store.Tx, p project.Name, value string) ([]tuning.TrialID, error) {
	var ids []tuning.TrialID
	err := tx.NewRaw(`SELECT t.id FROM tuning_trial_attribute a JOIN tuning_trial t ON t.project = a.project AND t.id = a.trial
		WHERE a.project = ? AND a.value = ? AND a.scope = 'system' AND a.key = 'falaj:client_job' AND t.state = ? ORDER BY t.id`,
		string(p), value, string(tuning.Running)).Scan(ctx, &ids)
	return ids, err
}

// Distributions implements tuning.Store.
func (Store) Distributions(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID) (map[string]tuning.Distribution, error) {
	var rows []struct{ Name, Distribution string }
	err := tx.NewRaw(`SELECT q.name, q.distribution FROM tuning_param AS q JOIN (
		SELECT r.name, MAX(r.trial) AS trial FROM tuning_param AS r JOIN tuning_trial AS t ON t.project = r.project AND t.id = r.trial
		WHERE t.project = ? AND t.study = ? GROUP BY r.name
	) AS l ON l.trial = q.trial AND l.name = q.name WHERE q.project = ?`, string(p), int64(study), string(p)).Scan(ctx, &rows)
	out := map[string]tuning.Distribution{}
	for _, r := range rows {
		out[r.Name] = tuning.Distribution(r.Distribution)
	}
	return out, err
}

// fill reads what trials have beside their heads.
func fill(ctx context.Context, tx *store.Tx, p project.Name, trials []tuning.Trial) error {
	ids := make([]int64, len(trials))
	at := make(map[int64]*tuning.Trial, len(trials))
	for i := range trials {
		t := &trials[i]
		t.Params, t.Intermediate = map[string]tuning.Param{}, map[int64]float64{}
		t.User, t.System = tuning.Attributes{}, tuning.Attributes{}
		ids[i], at[int64(t.ID)] = int64(t.ID), t
	}
	const of = " WHERE project = ? AND trial IN (?)"
	var params []struct {
		Owner              int64
		Name, Distribution string
		Value              float64
	}
	if err := tx.NewRaw("SELECT trial AS owner, name, value, distribution FROM tuning_param"+of, string(p), bun.List(ids)).Scan(ctx, &params); err != nil {
		return err
	}
	for _, r := range params {
		at[r.Owner].Params[r.Name] = tuning.Param{Value: r.Value, Distribution: tuning.Distribution(r.Distribution)}
	}
	var attributes []attributeRow
	if err := tx.NewRaw("SELECT trial AS owner, scope, key, value FROM tuning_trial_attribute"+of, string(p), bun.List(ids)).Scan(ctx, &attributes); err != nil {
		return err
	}
	for _, r := range attributes {
		r.into(at[r.Owner].User, at[r.Owner].System)
	}
	var points []struct {
		Owner, Step int64
		Value       store.Float
	}
	if err := tx.NewRaw("SELECT trial AS owner, step, value FROM tuning_intermediate"+of, string(p), bun.List(ids)).Scan(ctx, &points); err != nil {
		return err
	}
	for _, r := range points {
		at[r.Owner].Intermediate[r.Step] = float64(r.Value)
	}
	return nil
}

// Distribution implements tuning.Store.
func (Store) Distribution(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, name string) (tuning.Distribution, error) {
	var d string
	err := tx.NewRaw("SELECT distribution FROM tuning_distribution WHERE project = ? AND study = ? AND name = ?", string(p), int64(study), name).Scan(ctx, &d)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return tuning.Distribution(d), err
}

// PutDistribution implements tuning.Store.
func (Store) PutDistribution(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, name string, d tuning.Distribution) error {
	_, err := tx.NewRaw("INSERT INTO tuning_distribution (project, study, name, distribution) VALUES (?, ?, ?, ?) ON CONFLICT (project, study, name) DO UPDATE SET distribution = excluded.distribution",
		string(p), int64(study), name, string(d)).Exec(ctx)
	return err
}

// PutParam implements tuning.Store.
func (Store) PutParam(ctx context.Context, tx *store.Tx, p project.Name, id tuning.TrialID, name string, param tuning.Param) error {
	_, err := tx.NewRaw("INSERT INTO tuning_param (project, trial, name, value, distribution) VALUES (?, ?, ?, ?, ?) ON CONFLICT (project, trial, name) DO UPDATE SET value = excluded.value, distribution = excluded.distribution",
		string(p), int64(id), name, store.Float(param.Value), string(param.Distribution)).Exec(ctx)
	return err
}

// PutTrialAttribute implements tuning.Store.
func (Store) PutTrialAttribute(ctx context.Context, tx *store.Tx, p project.Name, id tuning.TrialID, scope tuning.Scope, key, value string) error {
	_, err := tx.NewRaw("INSERT INTO tuning_trial_attribute (project, trial, scope, key, value) VALUES (?, ?, ?, ?, ?) ON CONFLICT (project, trial, scope, key) DO UPDATE SET value = excluded.value",
		string(p), int64(id), string(scope), key, value).Exec(ctx)
	return err
}

// PutIntermediate implements tuning.Store.
func (Store) PutIntermediate(ctx context.Context, tx *store.Tx, p project.Name, id tuning.TrialID, step int64, value float64) error {
	_, err := tx.NewRaw("INSERT INTO tuning_intermediate (project, trial, step, value) VALUES (?, ?, ?, ?) ON CONFLICT (project, trial, step) DO UPDATE SET value = excluded.value",
		string(p), int64(id), step, store.Float(value)).Exec(ctx)
	return err
}
