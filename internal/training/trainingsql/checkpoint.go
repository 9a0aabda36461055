package trainingsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

// rowsAtOnce keeps statements within the databases' limits on parameters.
const rowsAtOnce = 500

type checkpointRow struct {
	bun.BaseModel `bun:"table:training_checkpoint"`

	ID       string `bun:"id,pk"`
	Job      string `bun:"job"`
	Project  string `bun:"project"`
	Number   int    `bun:"number"`
	Damaged  bool   `bun:"damaged"`
	Body     string `bun:"body"`
	Manifest string `bun:"manifest"`
	Revision int64  `bun:"revision"`
}

// recordColumns are all but the manifest, which may be large.
var recordColumns = []string{"id", "job", "project", "number", "damaged", "body", "revision"}

type chunkRow struct {
	bun.BaseModel `bun:"table:training_checkpoint_chunk"`

	Project    string `bun:"project,pk"`
	Digest     string `bun:"digest,pk"`
	Checkpoint string `bun:"checkpoint,pk"`
}

type seenRow struct {
	bun.BaseModel `bun:"table:training_checkpoint_seen"`

	Job   string `bun:"job,pk"`
	Name  string `bun:"name,pk"`
	State string `bun:"state"`
}

func checkpointRowOf(r checkpoint.Record) (checkpointRow, error) {
	body, err := json.Marshal(r)
	return checkpointRow{
		ID: r.ID, Job: r.Job, Project: string(r.Project), Number: r.Number, Damaged: r.Damaged != "",
		Body: string(body), Revision: r.Revision,
	}, err
}

func (r checkpointRow) record() (rec checkpoint.Record, err error) {
	err = json.Unmarshal([]byte(r.Body), &rec)
	rec.Number, rec.Revision = r.Number, r.Revision
	return rec, fault.Wrap(err, "reading checkpoint %s", r.ID)
}

func records(rows []checkpointRow) ([]checkpoint.Record, error) {
	out := make([]checkpoint.Record, len(rows))
	for i, r := range rows {
		var err error
		if out[i], err = r.record(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Checkpoints implements checkpoint.Store.
type Checkpoints struct{}

var _ checkpoint.Store = Checkpoints{}

// Job gives the job that checkpoints belong to.
func (Checkpoints) Job(ctx context.Context, tx *store.Tx, id string) (checkpoint.Job, error) {
	j, err := Store{}.Job(ctx, tx, training.JobID(id))
	return checkpoint.Job{
		ID: string(j.ID), Project: j.Project, Owner: j.By.ID, Residency: j.Residency, Classification: j.Classification,
		Rules: j.Spec.Checkpoints, Ended: j.EndedAt,
	}, err
}

// AttemptAt is the last attempt of a job that there was at a time; empty when
// there was none.
func (Checkpoints) AttemptAt(ctx context.Context, tx *store.Tx, job string, at time.Time) (string, error) {
	tries, err := Store{}.Attempts(ctx, tx, training.JobID(job))
	slices.SortFunc(tries, func(a, b training.Attempt) int { return b.Number - a.Number })
	for _, a := range tries {
		if !a.Made.After(at) {
			return string(a.ID), err
		}
	}
	return "", err
}

// JobsWith lists jobs that have checkpoints.
func (Checkpoints) JobsWith(ctx context.Context, tx *store.Tx, after string, limit int) (jobs []string, err error) {
	err = tx.NewSelect().Model((*checkpointRow)(nil)).ColumnExpr("DISTINCT job").Where("job > ?", after).
		OrderExpr("job").Limit(limit).Scan(ctx, &jobs)
	return jobs, err
}

// InsertCheckpoint adds a record with what it consists of.
func (Checkpoints) InsertCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record, m checkpoint.Manifest) error {
	row, err := checkpointRowOf(r)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return err
	}
	row.Manifest = string(manifest)
	if _, err := tx.NewInsert().Model(&row).Exec(ctx); err != nil {
		return err
	}
	known := map[string]bool{}
	var chunks []chunkRow
	for _, c := range m.Chunks {
		if !known[c.Digest] {
			known[c.Digest] = true
			chunks = append(chunks, chunkRow{Project: string(r.Project), Digest: c.Digest, Checkpoint: r.ID})
		}
	}
	for part := range slices.Chunk(chunks, rowsAtOnce) {
		if _, err := tx.NewInsert().Model(&part).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// UpdateCheckpoint writes a record unless it changed concurrently.
func (Checkpoints) UpdateCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record) error {
	row, err := checkpointRowOf(r)
	if err != nil {
		return err
	}
	row.Revision++
	res, err := tx.NewUpdate().Model(&row).Column("damaged", "body", "revision").
		Where("id = ? AND revision = ?", r.ID, r.Revision).Exec(ctx)
	return changed(res, err, "checkpoint "+r.ID)
}

// DeleteCheckpoint removes a record unless it changed concurrently.
func (Checkpoints) DeleteCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record) error {
	if _, err := tx.NewDelete().Model((*chunkRow)(nil)).Where("checkpoint = ?", r.ID).Exec(ctx); err != nil {
		return err
	}
	res, err := tx.NewDelete().Model((*checkpointRow)(nil)).Where("id = ? AND revision = ?", r.ID, r.Revision).Exec(ctx)
	return changed(res, err, "checkpoint "+r.ID)
}

// Checkpoint finds one record.
func (Checkpoints) Checkpoint(ctx context.Context, tx *store.Tx, id string) (checkpoint.Record, error) {
	var row checkpointRow
	err := tx.NewSelect().Model(&row).Column(recordColumns...).Where("id = ?", id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return checkpoint.Record{}, fault.New(fault.NotFound, "checkpoint %.64q not found", id)
	}
	if err != nil {
		return checkpoint.Record{}, err
	}
	return row.record()
}

// Checkpoints lists a job's records by number.
func (Checkpoints) Checkpoints(ctx context.Context, tx *store.Tx, job string) ([]checkpoint.Record, error) {
	var rows []checkpointRow
	if err := tx.NewSelect().Model(&rows).Column(recordColumns...).Where("job = ?", job).OrderExpr("number").Scan(ctx); err != nil {
		return nil, err
	}
	return records(rows)
}

// Manifest gives what a record consists of.
func (Checkpoints) Manifest(ctx context.Context, tx *store.Tx, id string) (m checkpoint.Manifest, err error) {
	var row checkpointRow
	err = tx.NewSelect().Model(&row).Column("manifest").Where("id = ?", id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return m, fault.New(fault.NotFound, "checkpoint %.64q not found", id)
	}
	if err != nil {
		return m, err
	}
	return m, fault.Wrap(json.Unmarshal([]byte(row.Manifest), &m), "reading the manifest of checkpoint %s", id)
}

// Damaged lists all records that cannot be restored.
func (Checkpoints) Damaged(ctx context.Context, tx *store.Tx) ([]checkpoint.Record, error) {
	var rows []checkpointRow
	if err := tx.NewSelect().Model(&rows).Column(recordColumns...).Where("damaged = ?", true).OrderExpr("id").Scan(ctx); err != nil {
		return nil, err
	}
	return records(rows)
}

// Used gives those of the digests that a record of the project has.
func (Checkpoints) Used(ctx context.Context, tx *store.Tx, p project.Name, digests []string) (map[string]bool, error) {
	used := map[string]bool{}
	for part := range slices.Chunk(digests, rowsAtOnce) {
		var found []string
		err := tx.NewSelect().Model((*chunkRow)(nil)).ColumnExpr("DISTINCT digest").
			Where("project = ? AND digest IN (?)", string(p), bun.List(part)).Scan(ctx, &found)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			used[d] = true
		}
	}
	return used, nil
}

// Seen gives the state in which a checkpoint was taken last.
func (Checkpoints) Seen(ctx context.Context, tx *store.Tx, job, name string) (string, error) {
	var row seenRow
	err := tx.NewSelect().Model(&row).Where("job = ? AND name = ?", job, name).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return row.State, err
}

// See notes the state in which a checkpoint was taken.
func (Checkpoints) See(ctx context.Context, tx *store.Tx, job, name, state string) error {
	row := seenRow{Job: job, Name: name, State: state}
	_, err := tx.NewInsert().Model(&row).On("CONFLICT (job, name) DO UPDATE").Set("state = EXCLUDED.state").Exec(ctx)
	return err
}

// Unsee forgets what was seen of a job.
func (Checkpoints) Unsee(ctx context.Context, tx *store.Tx, job string) error {
	_, err := tx.NewDelete().Model((*seenRow)(nil)).Where("job = ?", job).Exec(ctx)
	return err
}
