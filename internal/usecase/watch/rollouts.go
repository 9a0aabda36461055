package watch

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Rollouts are serving's rollouts as the judge sees them.
type Rollouts struct{ Serving *serving.Rollouts }

// Running implements label.Rollouts.
func (t Rollouts) Running(ctx context.Context) ([]label.Rollout, error) {
	all, err := t.Serving.Running(ctx)
	out := make([]label.Rollout, len(all))
	for i, r := range all {
		out[i] = label.Rollout{
			ID: string(r.ID), Project: r.Project, Deployment: r.Deployment, Stable: r.Stable, Candidate: r.Candidate,
			Weight: r.Weight, Spec: r.Spec, Started: r.Started, StartedAt: r.StartedAt,
		}
	}
	return out, err
}

// Began implements label.Rollouts.
func (t Rollouts) Began(ctx context.Context, project, rollout string, at time.Time) error {
	return t.Serving.Began(ctx, project, serving.RolloutID(rollout), at)
}
