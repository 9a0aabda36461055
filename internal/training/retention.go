package training

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Traces are what is kept of jobs beside their records, and what names them.
type Traces interface {
	// Citing says of those of a project's jobs that something else names what does, such as
	// "run 5f…": their records stay.
	Citing(ctx context.Context, tx *store.Tx, p project.Name, jobs []JobID) (map[JobID]string, error)
	// Trim removes what only the running of attempts needed.
	Trim(ctx context.Context, tx *store.Tx, attempts []AttemptID) error
	// Forget removes all that is left of attempts, and the runs of jobs on which nobody logged
	// anything. What the attempts used counts in reports as before.
	Forget(ctx context.Context, tx *store.Tx, p project.Name, jobs []JobID, attempts []AttemptID) error
}

const (
	// forgetBatch bounds the jobs of a transaction, for which other writes wait.
	forgetBatch = 200
	// again is after how long a job is looked at again that something cited.
	againAfter = 30 * 24 * time.Hour
)

// Forget removes jobs that ended before the retention, a batch at a time. Of a job that
// something cites (a run with results, a model, a dataset, a sweep, a checkpoint, a job that
// goes on from it) the record and its attempts stay: its specification, its inputs with
// their digests, its environment, where it ran and how it ended. What goes is not named
// singly in the audit log, which has the submission and the end of each.
func (s *Service) Forget(ctx context.Context) error {
	if s.cfg.Keep == 0 || s.cfg.Traces == nil {
		return nil
	}
	ctx = identity.With(ctx, identity.Loop("retention of jobs"))
	for ctx.Err() == nil {
		n := 0
		err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			due, err := s.cfg.Store.Due(ctx, tx, s.now().Add(-s.cfg.Keep), forgetBatch)
			if n = len(due); err != nil || n == 0 {
				return err
			}
			return s.forget(ctx, tx, due)
		})
		if err != nil {
			return fault.Wrap(err, "forgetting ended jobs")
		}
		if n < forgetBatch {
			return nil
		}
	}
	return ctx.Err()
}

// forget removes those of jobs that nothing cites, and trims the others.
func (s *Service) forget(ctx context.Context, tx *store.Tx, due []Job) error {
	ids := make([]JobID, len(due))
	of := map[project.Name][]JobID{}
	for i, j := range due {
		ids[i] = j.ID
		of[j.Project] = append(of[j.Project], j.ID)
	}
	resumed, err := s.cfg.Store.ResumedBy(ctx, tx, ids)
	if err != nil {
		return err
	}
	with, err := s.cfg.Store.WithCheckpoints(ctx, tx, ids)
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
	if err := s.trim(ctx, tx, kept); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(gone)) {
		if err := s.remove(ctx, tx, p, gone[p]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) trim(ctx context.Context, tx *store.Tx, ids []JobID) error {
	if len(ids) == 0 {
		return nil
	}
	attempts, err := s.cfg.Store.AttemptsOf(ctx, tx, ids)
	if err == nil {
		err = s.cfg.Traces.Trim(ctx, tx, attempts)
	}
	if err == nil {
		err = s.cfg.Store.TrimJobs(ctx, tx, ids)
	}
	if err != nil {
		return err
	}
	return s.cfg.Store.Postpone(ctx, tx, ids, s.now().Add(againAfter-s.cfg.Keep))
}

func (s *Service) remove(ctx context.Context, tx *store.Tx, p project.Name, ids []JobID) error {
	attempts, err := s.cfg.Store.AttemptsOf(ctx, tx, ids)
	if err == nil {
		err = s.cfg.Traces.Forget(ctx, tx, p, ids, attempts)
	}
	if err == nil {
		err = s.cfg.Store.DeleteJobs(ctx, tx, ids)
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
