package trainingsql

import (
	"context"
	"strings"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

const (
	// maxInputs bounds the inputs in the index: PostgreSQL takes no entry of more than 2,700 bytes.
	maxInputs = 1000
	unlisted  = "*" // inputs that are longer
)

// inputsOf are the inputs of a job for a search.
func inputsOf(inputs []training.Input) string {
	refs := make([]string, len(inputs))
	for i, in := range inputs {
		refs[i] = in.Ref
	}
	if all := strings.Join(refs, "\n"); len(all) <= maxInputs {
		return all
	}
	return unlisted
}

// Lines gives what a search reads of jobs, newest first, out of an index.
func (JobStore) Lines(ctx context.Context, tx *store.Tx, p project.Name, before training.JobID, limit int) ([]store.Line, error) {
	var rows []struct{ ID, Name, Submitter, Inputs string }
	q := tx.NewSelect().Table("training_job").Column("id", "name", "submitter", "inputs").Where("project = ?", string(p)).OrderExpr("id DESC").Limit(limit)
	if before != "" {
		q = q.Where("id < ?", string(before))
	}
	if err := q.Scan(ctx, &rows); err != nil {
		return nil, err
	}
	lines := make([]store.Line, len(rows))
	for i, r := range rows {
		lines[i] = store.Line{Key: r.ID, Owner: r.Submitter, More: r.Inputs == unlisted, Fields: []store.Field{{Name: "name", Value: r.Name}, {Name: "description", Value: r.Name}}}
		if r.Inputs != "" && !lines[i].More {
			lines[i].Fields = append(lines[i].Fields, store.FieldsOf("from", strings.Split(r.Inputs, "\n")...)...)
		}
	}
	return lines, nil
}

// JobsAt gives those jobs that are there, newest first.
func (JobStore) JobsAt(ctx context.Context, tx *store.Tx, ids []string) ([]training.Job, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var rows []jobRow
	if err := tx.NewSelect().Model(&rows).Where("id IN (?)", bun.List(ids)).OrderExpr("id DESC").Scan(ctx); err != nil {
		return nil, err
	}
	return jobs(rows)
}
