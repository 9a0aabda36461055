package training

import (
	"context"
	"maps"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/jobsecret"
)

// maxJobSecrets is how many secrets a job may name.
const maxJobSecrets = 64

func (s Spec) validSecrets() error {
	if len(s.Secrets) > maxJobSecrets {
		return fault.New(fault.Invalid, "spec.secrets: a job has at most %d secrets, not %d", maxJobSecrets, len(s.Secrets))
	}
	for _, variable := range slices.Sorted(maps.Keys(s.Secrets)) {
		if err := validEnv(map[string]string{variable: ""}); err != nil {
			return fault.Wrap(err, "spec.secrets")
		}
		if _, twice := s.Env[variable]; twice {
			return fault.New(fault.Invalid, "spec.secrets.%s: duplicate of a variable in spec.env", variable).WithHint("Remove it from spec.env.")
		}
		if err := s.Secrets[variable].Check("spec.secrets." + variable); err != nil {
			return err
		}
	}
	return nil
}

// secretsOf is the job of a running attempt, with the secrets that it names.
func (s *core) secretsOf(ctx context.Context, attempt string) (of jobsecret.Job, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, AttemptID(attempt))
		if err != nil {
			return err
		}
		if a.State == AttemptEnded {
			return fault.New(fault.Conflict, "attempt %s has ended", attempt)
		}
		j, err := s.jobStore.Job(ctx, tx, a.Job)
		of = jobsecret.Job{ID: string(j.ID), Project: j.Project, Secrets: j.Spec.Secrets}
		return err
	})
	return of, err
}
