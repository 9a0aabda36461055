package training

import (
	"context"
	"fmt"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Records answers other domains about jobs: for lineage, erasure, secrets and the deletion of
// what jobs use. It asks no permission; its callers do.
type Records struct{ *core }

// SecretUsers lists the queued and running jobs that use a secret, for secrets.Users.
func (s *Records) SecretUsers(ctx context.Context, tx *store.Tx, p, name string) (users []string, err error) {
	for _, state := range []State{Queued, Running} {
		jobs, err := s.jobStore.Jobs(ctx, tx, project.Name(p), Filter{State: state, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			for _, ref := range j.Spec.Secrets {
				if ref.Secret == name {
					users = append(users, "job "+string(j.ID))
					break
				}
			}
		}
	}
	return users, nil
}

// Submitter is the account that submitted a job; empty when the job is gone. It asks no
// permission.
func (s *Records) Submitter(ctx context.Context, tx *store.Tx, id JobID) (string, error) {
	j, err := s.jobStore.Job(ctx, tx, id)
	if fault.Is(err, fault.NotFound) {
		return "", nil
	}
	return j.By.ID, err
}

// JobsIn lists jobs as List does, in a transaction. It asks no permission.
func (s *Records) JobsIn(ctx context.Context, tx *store.Tx, p project.Name, f Filter) ([]Job, error) {
	return s.jobStore.Jobs(ctx, tx, p, f)
}

// ResumingFrom names the other jobs whose specification resumes from a checkpoint JOB/NAME, as
// "job ID". It asks no permission.
func (s *Records) ResumingFrom(ctx context.Context, tx *store.Tx, p project.Name, checkpoint string) (by []string, err error) {
	own, _, _ := strings.Cut(checkpoint, "/")
	word := fmt.Sprintf("%q:%q", "resume", checkpoint)
	err = s.jobStore.Mentions(ctx, tx, p, strings.TrimSuffix(word, `"`), func(who, text string) {
		if who != "job "+own && strings.Contains(text, word) {
			by = append(by, who)
		}
	})
	return by, err
}

// JobOf is the job of an attempt. It asks no permission.
func (s *Records) JobOf(ctx context.Context, attempt AttemptID) (Job, error) {
	j, _, err := s.both(ctx, compute.WorkloadID(attempt))
	return j, err
}

// Earlier are the jobs from whose checkpoints a job goes on, the last one first. It asks
// no permission.
func (s *Records) Earlier(ctx context.Context, j Job) ([]Job, error) { return s.earlier(ctx, j) }
