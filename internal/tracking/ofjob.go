package tracking

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// OfJob is a run of a job.
type OfJob struct {
	Marked
	Job    string
	Logged bool // somebody logged something to it: metrics, params, tags, models, files
}

// Retention says which jobs have runs to keep, and removes the runs of the others. Its caller is
// the retention of jobs. It asks no permission.
type Retention struct{ *core }

// LoggedIn gives, for those of a project's jobs to whose runs somebody logged something, one
// of these.
func (s *Retention) LoggedIn(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) (map[string]RunID, error) {
	runs, err := s.store.OfJobs(ctx, tx, p, jobs)
	logged := map[string]RunID{}
	for _, r := range runs {
		if r.Logged {
			logged[r.Job] = r.Run
		}
	}
	return logged, err
}

// ForgetIn removes the runs of jobs to which nobody logged anything, in the caller's
// transaction. Their files, which are the logs of the jobs, go with the next Sweep.
func (s *Retention) ForgetIn(ctx context.Context, tx *store.Tx, p project.Name, jobs []string) error {
	runs, err := s.store.OfJobs(ctx, tx, p, jobs)
	if err != nil {
		return err
	}
	now := s.now()
	for _, r := range runs {
		if r.Logged {
			continue
		}
		if err := s.store.MarkRun(ctx, tx, r.Run, store.At(now)); err != nil {
			return err
		}
		if _, err := s.store.RemoveMarked(ctx, tx, p, r.Marked, now); err != nil {
			return err
		}
		if err := s.store.DeleteArtifacts(ctx, tx, r.ID(), ""); err != nil {
			return err
		}
		if _, err := s.store.RemovePoints(ctx, tx, r.Run, prunePoints); err != nil { // it has none
			return err
		}
	}
	return nil
}
