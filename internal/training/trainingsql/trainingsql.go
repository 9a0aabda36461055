// Package trainingsql keeps jobs and attempts in SQLite or PostgreSQL.
package trainingsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"strings"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("training", migrations)

type jobRow struct {
	bun.BaseModel `bun:"table:training_job"`

	ID        string `bun:"id,pk"`
	Project   string `bun:"project"`
	Name      string `bun:"name"`
	Digest    string `bun:"digest"`
	State     string `bun:"state"`
	Waiting   bool   `bun:"waiting"`
	Submitter string `bun:"submitter"`
	Body      string `bun:"body"`
	Revision  int64  `bun:"revision"`

	Due     store.Time `bun:"due"`
	Resumes string     `bun:"resumes"`
	Source  string     `bun:"source"`
	Inputs  string     `bun:"inputs"`
}

func jobRowOf(j training.Job) (jobRow, error) {
	body, err := json.Marshal(j)
	resumes, _, _ := strings.Cut(j.Spec.Resume, "/")
	due := store.Time(0) // of what has not ended; the condition of an index
	if j.State.Ended() {
		due = max(store.At(j.EndedAt), 1)
	}
	return jobRow{
		Due: due, Resumes: resumes, Source: j.Spec.Source, Inputs: inputsOf(j.Inputs),
		ID: string(j.ID), Project: string(j.Project), Name: j.Name, Digest: j.Digest, State: string(j.State),
		Waiting: j.State == training.Queued && j.Attempt == "", Submitter: j.By.ID, Body: string(body), Revision: j.Revision,
	}, err
}

func (r jobRow) job() (j training.Job, err error) {
	err = json.Unmarshal([]byte(r.Body), &j)
	j.Revision = r.Revision
	return j, fault.Wrap(err, "reading job %s", r.ID)
}

type attemptRow struct {
	bun.BaseModel `bun:"table:training_attempt"`

	ID       string `bun:"id,pk"`
	Job      string `bun:"job"`
	Number   int    `bun:"number"`
	State    string `bun:"state"`
	Body     string `bun:"body"`
	Revision int64  `bun:"revision"`
}

func attemptRowOf(a training.Attempt) (attemptRow, error) {
	body, err := json.Marshal(a)
	return attemptRow{
		ID: string(a.ID), Job: string(a.Job), Number: a.Number, State: string(a.State), Body: string(body), Revision: a.Revision,
	}, err
}

func (r attemptRow) attempt() (a training.Attempt, err error) {
	err = json.Unmarshal([]byte(r.Body), &a)
	a.Revision = r.Revision
	return a, fault.Wrap(err, "reading attempt %s", r.ID)
}

// Store implements training.Store.
type Store struct {
	JobStore
	SourceStore
	RetentionStore
	AttemptStore
	ProfileStore
	MeasurementStore
}

type (
	// JobStore implements training.JobStore.
	JobStore struct{}
	// SourceStore implements source.Store.
	SourceStore struct{}
	// RetentionStore implements training.RetentionStore.
	RetentionStore struct{}
	// AttemptStore implements training.AttemptStore.
	AttemptStore struct{}
	// ProfileStore implements training.ProfileStore.
	ProfileStore struct{}
	// MeasurementStore implements training.MeasurementStore.
	MeasurementStore struct{}
)

var _ training.Store = Store{}

// InsertJob adds a job.
func (JobStore) InsertJob(ctx context.Context, tx *store.Tx, j training.Job) error {
	r, err := jobRowOf(j)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// Job finds one job.
func (JobStore) Job(ctx context.Context, tx *store.Tx, id training.JobID) (training.Job, error) {
	var r jobRow
	err := tx.NewSelect().Model(&r).Where("id = ?", string(id)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return training.Job{}, fault.New(fault.NotFound, "job %.64q not found", string(id)).WithHint("List jobs with `falaj get jobs`. For expired jobs, `falaj audit list` has the submission and the end.")
	}
	if err != nil {
		return training.Job{}, err
	}
	return r.job()
}

// UpdateJob writes a job unless it changed concurrently.
func (JobStore) UpdateJob(ctx context.Context, tx *store.Tx, j training.Job) error {
	r, err := jobRowOf(j)
	if err != nil {
		return err
	}
	r.Revision++
	res, err := tx.NewUpdate().Model(&r).Column("state", "waiting", "body", "due", "revision").
		Where("id = ? AND revision = ?", r.ID, j.Revision).Exec(ctx)
	return changed(res, err, "job "+r.ID)
}

// Jobs lists a project's jobs, newest first.
func (JobStore) Jobs(ctx context.Context, tx *store.Tx, p project.Name, f training.Filter) ([]training.Job, error) {
	var rows []jobRow
	q := tx.NewSelect().Model(&rows).Where("project = ?", string(p)).OrderExpr("id DESC").Limit(f.Limit)
	if f.State != "" {
		q = q.Where("state = ?", string(f.State))
		if f.State.Ended() {
			q = q.Where("due > 0")
		} else { // few of all that there are
			q = q.Where("id IN (?)", tx.NewSelect().Model((*jobRow)(nil)).Column("id").
				Where("due = 0 AND state = ? AND waiting IN (?, ?) AND project = ?", string(f.State), false, true, string(p)))
		}
	}
	if f.Name != "" {
		q = q.Where("name = ?", f.Name)
	}
	if f.Before != "" {
		q = q.Where("id < ?", string(f.Before))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	return jobs(rows)
}

// LastJob finds the newest job with a digest.
func (JobStore) LastJob(ctx context.Context, tx *store.Tx, p project.Name, digest string) (training.Job, error) {
	var r jobRow
	err := tx.NewSelect().Model(&r).Where("project = ? AND digest = ?", string(p), digest).OrderExpr("id DESC").Limit(1).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return training.Job{}, fault.New(fault.NotFound, "job not found")
	}
	if err != nil {
		return training.Job{}, err
	}
	return r.job()
}

// Unstarted lists queued jobs without an attempt, oldest first.
func (JobStore) Unstarted(ctx context.Context, tx *store.Tx) ([]training.Job, error) {
	var rows []jobRow
	if err := tx.NewSelect().Model(&rows).Where("due = 0 AND state = ? AND waiting IN (?)", string(training.Queued), true).OrderExpr("id").Scan(ctx); err != nil {
		return nil, err
	}
	return jobs(rows)
}

// Underway lists the jobs that run, oldest first.
func (JobStore) Underway(ctx context.Context, tx *store.Tx) ([]training.Job, error) {
	var rows []jobRow
	if err := tx.NewSelect().Model(&rows).Where("due = 0 AND state = ?", string(training.Running)).OrderExpr("id").Scan(ctx); err != nil {
		return nil, err
	}
	return jobs(rows)
}

// CountAlive implements training.JobStore.
func (JobStore) CountAlive(ctx context.Context, tx *store.Tx, p project.Name, submitter string) (all, own int, err error) {
	var rows []struct {
		Submitter string
		N         int
	}
	err = tx.NewSelect().Model((*jobRow)(nil)).ColumnExpr("submitter, COUNT(*) AS n").
		Where("due = 0 AND state IN (?, ?) AND waiting IN (?, ?) AND project = ?", string(training.Queued), string(training.Running), false, true, p).GroupExpr("submitter").Scan(ctx, &rows)
	for _, r := range rows {
		all += r.N
		if r.Submitter == submitter {
			own = r.N
		}
	}
	return all, own, err
}

// Counts counts the jobs that have not ended.
func (JobStore) Counts(ctx context.Context, tx *store.Tx) ([]training.Count, error) {
	var rows []struct {
		Project, State, Oldest string
		N                      int
	}
	err := tx.NewSelect().Model((*jobRow)(nil)).ColumnExpr("project, state, MIN(id) AS oldest, COUNT(*) AS n").
		Where("due = 0 AND state IN (?, ?)", string(training.Queued), string(training.Running)).GroupExpr("project, state").OrderExpr("project, state").Scan(ctx, &rows)
	counts := make([]training.Count, len(rows))
	for i, r := range rows {
		counts[i] = training.Count{Project: project.Name(r.Project), State: training.State(r.State), Jobs: r.N, Oldest: training.JobID(r.Oldest)}
	}
	return counts, err
}

// Alive lists the jobs that have not ended, oldest first.
func (JobStore) Alive(ctx context.Context, tx *store.Tx) ([]training.Job, error) {
	var rows []jobRow
	if err := tx.NewSelect().Model(&rows).Where("due = 0 AND state IN (?, ?)", string(training.Queued), string(training.Running)).OrderExpr("id").Scan(ctx); err != nil {
		return nil, err
	}
	return jobs(rows)
}

func jobs(rows []jobRow) ([]training.Job, error) {
	js := make([]training.Job, len(rows))
	for i, r := range rows {
		var err error
		if js[i], err = r.job(); err != nil {
			return nil, err
		}
	}
	return js, nil
}

// InsertAttempt adds an attempt.
func (AttemptStore) InsertAttempt(ctx context.Context, tx *store.Tx, a training.Attempt) error {
	r, err := attemptRowOf(a)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// Attempt finds one attempt.
func (AttemptStore) Attempt(ctx context.Context, tx *store.Tx, id training.AttemptID) (training.Attempt, error) {
	var r attemptRow
	err := tx.NewSelect().Model(&r).Where("id = ?", string(id)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return training.Attempt{}, fault.New(fault.NotFound, "attempt %.64q not found", string(id))
	}
	if err != nil {
		return training.Attempt{}, err
	}
	return r.attempt()
}

// UpdateAttempt writes an attempt unless it changed concurrently.
func (AttemptStore) UpdateAttempt(ctx context.Context, tx *store.Tx, a training.Attempt) error {
	r, err := attemptRowOf(a)
	if err != nil {
		return err
	}
	r.Revision++
	res, err := tx.NewUpdate().Model(&r).Column("state", "body", "revision").
		Where("id = ? AND revision = ?", r.ID, a.Revision).Exec(ctx)
	return changed(res, err, "attempt "+r.ID)
}

// Attempts lists a job's attempts by number.
func (AttemptStore) Attempts(ctx context.Context, tx *store.Tx, id training.JobID) ([]training.Attempt, error) {
	var rows []attemptRow
	if err := tx.NewSelect().Model(&rows).Where("job = ?", string(id)).OrderExpr("number").Scan(ctx); err != nil {
		return nil, err
	}
	as := make([]training.Attempt, len(rows))
	for i, r := range rows {
		var err error
		if as[i], err = r.attempt(); err != nil {
			return nil, err
		}
	}
	return as, nil
}

func changed(res sql.Result, err error, what string) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return fault.New(fault.Conflict, "%s was changed concurrently", what)
	}
	return err
}

// Mentions implements training.JobStore.
func (JobStore) Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error {
	return store.Mentions(ctx, tx, store.Mention{Table: "training_job", Column: "body", By: "'job ' || id"}, string(p), word, each)
}
