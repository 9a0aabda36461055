package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// kindOfHistory is what is recorded of acts of one kind. remove removes some that are older
// than a time.
type kindOfHistory struct {
	what   string
	keep   func(config.Config) time.Duration // 0 is for ever
	remove func(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error)
}

// history is what is recorded of acts that are over, and of which nothing else needs more
// than the newest.
var history = []kindOfHistory{
	{"requests", func(c config.Config) time.Duration { return config.Kept(c.Retention.Requests) }, requestsql.Store{}.Forget},
	{"ingestions", func(c config.Config) time.Duration { return config.Kept(c.Retention.Ingestions) }, ingestionsql.Store{}.ForgetRuns},
	{"materialisations", materialisations, featuresql.Store{}.ForgetRuns},
}

// materialisations are kept as long as the predictions that are verified by them, if that is longer.
func materialisations(c config.Config) time.Duration {
	own, predictions := config.Kept(c.Retention.Materialisations), config.Kept(c.Predictions.Retention)
	if own == 0 || predictions == 0 {
		return 0
	}
	return max(own, predictions)
}

// historyBatch bounds the records of a transaction, for which other writes wait.
const historyBatch = 500

// forgetHistory removes what is older than its retention, a batch of each kind in turn, for
// some minutes.
func forgetHistory(ctx context.Context, db *store.DB, cfg config.Config, clock func() time.Time) error {
	var failed []error
	now, pass := clock(), lifecycle.NewPass(clock)
	for left := slices.Clone(history); len(left) > 0 && ctx.Err() == nil; {
		left = slices.DeleteFunc(left, func(h kindOfHistory) bool {
			keep, n := h.keep(cfg), 0
			if keep == 0 {
				return true
			}
			err := db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) (err error) {
				if n, err = h.remove(ctx, tx, now.Add(-keep), historyBatch); err != nil || n == 0 {
					return err
				}
				return audit.Append(ctx, tx, audit.Entry{Action: "retention.forget", Object: h.what, Detail: map[string]any{"removed": n, "kept_for": keep.String()}})
			})
			if err != nil {
				failed = append(failed, fault.Wrap(err, "forgetting %s", h.what))
			}
			return err != nil || n < historyBatch
		})
		if pass.Over() {
			break
		}
	}
	return errors.Join(append(failed, ctx.Err())...)
}

// jobTraces implements training.Traces.
type jobTraces struct {
	tracking *tracking.Retention
	compute  *compute.Records
}

// citers find jobs that something names for longer than they are kept. Whoever adds a table
// with jobs in it adds it here.
func (jobTraces) citers() map[string]func(context.Context, *store.Tx, project.Name, []string) ([]string, error) {
	return map[string]func(context.Context, *store.Tx, project.Name, []string) ([]string, error){
		"a model": registrysql.Store{}.OfJobs,
		"a sweep": tuningsql.Sweeps{}.OfJobs,
		"an automatic act": func(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) ([]string, error) {
			return servingsql.Store{}.Submitted(ctx, tx, string(p), jobs)
		},
	}
}

// Citing implements training.Traces.
func (t jobTraces) Citing(ctx context.Context, tx *store.Tx, p project.Name, jobs []training.JobID) (map[training.JobID]string, error) {
	ids := plain(jobs)
	cited := map[training.JobID]string{}
	logged, err := t.tracking.LoggedIn(ctx, tx, p, ids)
	if err != nil {
		return nil, err
	}
	for job, run := range logged {
		cited[training.JobID(job)] = "run " + string(run)
	}
	for what, find := range t.citers() {
		of, err := find(ctx, tx, p, ids)
		if err != nil {
			return nil, err
		}
		for _, job := range of {
			cited[training.JobID(job)] = what
		}
	}
	return cited, nil
}

// Sources implements training.Traces.
func (jobTraces) Sources(ctx context.Context, tx *store.Tx, p project.Name, digests []string) ([]string, error) {
	return tuningsql.Sweeps{}.Naming(ctx, tx, p, digests)
}

// Held implements training.Traces.
func (t jobTraces) Held(ctx context.Context, tx *store.Tx, attempts []training.AttemptID) ([]training.AttemptID, error) {
	ids, err := t.compute.HeldIn(ctx, tx, workloadsOf(attempts))
	held := make([]training.AttemptID, len(ids))
	for i, id := range ids {
		held[i] = training.AttemptID(id)
	}
	return held, err
}

// Trim implements training.Traces.
func (t jobTraces) Trim(ctx context.Context, tx *store.Tx, attempts []training.AttemptID) error {
	return t.compute.TrimIn(ctx, tx, workloadsOf(attempts))
}

// Forget implements training.Traces.
func (t jobTraces) Forget(ctx context.Context, tx *store.Tx, p project.Name, jobs []training.JobID, attempts []training.AttemptID) error {
	if err := t.tracking.ForgetIn(ctx, tx, p, plain(jobs)); err != nil {
		return err
	}
	return t.compute.ForgetIn(ctx, tx, workloadsOf(attempts))
}

// workloadsOf are the workloads of attempts, which have their names.
func workloadsOf(attempts []training.AttemptID) []compute.WorkloadID {
	ids := make([]compute.WorkloadID, len(attempts))
	for i, a := range attempts {
		ids[i] = compute.WorkloadID(a)
	}
	return ids
}

func plain[T ~string](ids []T) []string {
	out := make([]string, len(ids))
	for i, x := range ids {
		out[i] = string(x)
	}
	return out
}
