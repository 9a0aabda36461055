package training

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// Traces are what is kept of jobs beside their records, and what names them.
type Traces interface {
	// Citing says of those of a project's jobs that something else names what does, such as
	// "run 5f…": their records stay.
	Citing(ctx context.Context, tx *store.Tx, p project.Name, jobs []JobID) (map[JobID]string, error)
	// Sources gives those of source archives that something beside jobs names.
	Sources(ctx context.Context, tx *store.Tx, p project.Name, digests []string) ([]string, error)
	// Held gives those of attempts that are not over for their engine: it still holds something
	// of them, or has not told all of their end. Trim and Forget would leave that for ever.
	Held(ctx context.Context, tx *store.Tx, attempts []AttemptID) ([]AttemptID, error)
	// Trim removes what only the running of attempts needed.
	Trim(ctx context.Context, tx *store.Tx, attempts []AttemptID) error
	// Forget removes all that is left of attempts, and the runs of jobs on which nobody logged
	// anything. What the attempts used counts in reports as before.
	Forget(ctx context.Context, tx *store.Tx, p project.Name, jobs []JobID, attempts []AttemptID) error
}

const (
	// forgetBatch bounds the jobs of a transaction, for which other writes wait.
	forgetBatch = 50
	// againAfter is after how long a job is looked at again that something cited; soonAfter
	// one that an engine still held, or that could not be forgotten.
	againAfter = 30 * 24 * time.Hour
	soonAfter  = 24 * time.Hour
)

// Retention removes jobs whose retention is over. Housekeeping calls it.
type Retention struct {
	*core
	retentionStore RetentionStore
}

// Forget removes jobs that ended before the retention, a batch at a time, for some minutes. Of
// a job that something cites (a run with results, a model, a dataset, a sweep, a checkpoint, a
// job that goes on from it) the record and its attempts stay: its specification, its inputs with
// their digests, its environment, where it ran and how it ended. What goes is not named
// singly in the audit log, which has the submission and the end of each.
//
// A job that cannot be forgotten holds up no other: it is tried again a day later, and its
// error comes back with those of others. Where as many fail as a batch has, it ends: more would.
func (s *Retention) Forget(ctx context.Context) error {
	if s.cfg.Keep == 0 || s.cfg.Traces == nil {
		return nil
	}
	ctx = identity.With(ctx, identity.Loop("retention of jobs"))
	var failed []error
	for pass := lifecycle.NewPass(s.now); ctx.Err() == nil; {
		var due []Job
		err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) (err error) {
			if due, err = s.due(ctx, tx); err != nil || len(due) == 0 {
				return err
			}
			return s.forget(ctx, tx, due)
		})
		if err != nil && ctx.Err() == nil && len(due) > 0 {
			var singly []error
			singly, err = s.forgetSingly(ctx, due, pass)
			failed = append(failed, singly...)
		}
		if err != nil {
			return errors.Join(append(failed, fault.Wrap(err, "deleting expired jobs"))...)
		}
		if len(due) < forgetBatch || len(failed) >= forgetBatch || pass.Over() {
			break
		}
	}
	return errors.Join(append(failed, ctx.Err())...)
}

func (s *Retention) due(ctx context.Context, tx *store.Tx) ([]Job, error) {
	return s.retentionStore.Due(ctx, tx, s.now().Add(-s.cfg.Keep), forgetBatch)
}

// forgetSingly forgets each job in a transaction of its own until the pass is over, and postpones those
// that fail.
func (s *Retention) forgetSingly(ctx context.Context, due []Job, pass lifecycle.Pass) (failed []error, err error) {
	for i, j := range due {
		if i > 0 && pass.Over() {
			return failed, nil
		}
		one := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.forget(ctx, tx, []Job{j}) })
		if one == nil {
			continue
		}
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
		failed = append(failed, fault.Wrap(one, "deleting expired job %s; retried in a day", j.ID))
		if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.postpone(ctx, tx, []JobID{j.ID}, soonAfter) }); err != nil {
			return failed, err
		}
	}
	return failed, nil
}

// postpone schedules the next check of jobs.
func (s *Retention) postpone(ctx context.Context, tx *store.Tx, ids []JobID, after time.Duration) error {
	return s.retentionStore.Postpone(ctx, tx, ids, s.now().Add(after-s.cfg.Keep))
}

// over are those of jobs of which no engine holds anything; the others are postponed.
func (s *Retention) over(ctx context.Context, tx *store.Tx, due []Job, attempts map[JobID][]AttemptID) ([]Job, error) {
	held, err := s.cfg.Traces.Held(ctx, tx, ofAll(idsOf(due), attempts))
	if err != nil || len(held) == 0 {
		return due, err
	}
	var over []Job
	var later []JobID
	for _, j := range due {
		if slices.ContainsFunc(attempts[j.ID], func(a AttemptID) bool { return slices.Contains(held, a) }) {
			later = append(later, j.ID)
			continue
		}
		over = append(over, j)
	}
	return over, s.postpone(ctx, tx, later, soonAfter)
}

// forget removes those of jobs that nothing cites, and trims the others.
func (s *Retention) forget(ctx context.Context, tx *store.Tx, due []Job) error {
	attempts, err := s.retentionStore.AttemptsOf(ctx, tx, idsOf(due))
	if err != nil {
		return err
	}
	if due, err = s.over(ctx, tx, due, attempts); err != nil {
		return err
	}
	ids := idsOf(due)
	of := map[project.Name][]JobID{}
	for _, j := range due {
		of[j.Project] = append(of[j.Project], j.ID)
	}
	resumed, err := s.retentionStore.ResumedBy(ctx, tx, ids)
	if err != nil {
		return err
	}
	with, err := s.retentionStore.WithCheckpoints(ctx, tx, ids)
	if err != nil {
		return err
	}
	cited := map[JobID]bool{}
	for p, jobs := range of {
		by, err := s.cfg.Traces.Citing(ctx, tx, p, jobs)
		if err != nil {
			return err
		}
		for id := range by {
			cited[id] = true
		}
	}
	var kept []JobID
	gone := map[project.Name][]JobID{}
	for _, j := range due {
		if cited[j.ID] || resumed[j.ID] != "" || slices.Contains(with, j.ID) || j.Model != "" || j.Dataset != "" || len(j.Spec.Tables) > 0 {
			kept = append(kept, j.ID)
			continue
		}
		gone[j.Project] = append(gone[j.Project], j.ID)
	}
	if err := s.trim(ctx, tx, kept, attempts); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(gone)) {
		if err := s.remove(ctx, tx, p, gone[p], attempts); err != nil {
			return err
		}
	}
	return nil
}

func (s *Retention) trim(ctx context.Context, tx *store.Tx, ids []JobID, attempts map[JobID][]AttemptID) error {
	if len(ids) == 0 {
		return nil
	}
	err := s.cfg.Traces.Trim(ctx, tx, ofAll(ids, attempts))
	if err == nil {
		err = s.retentionStore.TrimJobs(ctx, tx, ids)
	}
	if err != nil {
		return err
	}
	return s.postpone(ctx, tx, ids, againAfter)
}

func (s *Retention) remove(ctx context.Context, tx *store.Tx, p project.Name, ids []JobID, attempts map[JobID][]AttemptID) error {
	err := s.cfg.Traces.Forget(ctx, tx, p, ids, ofAll(ids, attempts))
	if err == nil {
		err = s.retentionStore.DeleteJobs(ctx, tx, ids)
	}
	if err != nil {
		return err
	}
	slices.Sort(ids)
	return audit.Append(ctx, tx, audit.Entry{
		Project: string(p), Action: "job.forget", Object: "jobs",
		Detail: map[string]any{"jobs": len(ids), "first": ids[0], "last": ids[len(ids)-1], "kept_for": s.cfg.Keep.String()},
	})
}

func idsOf(jobs []Job) []JobID {
	ids := make([]JobID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return ids
}

// ofAll are the attempts of some of the jobs.
func ofAll(ids []JobID, attempts map[JobID][]AttemptID) (all []AttemptID) {
	for _, id := range ids {
		all = append(all, attempts[id]...)
	}
	return all
}
