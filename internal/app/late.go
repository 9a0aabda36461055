package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training/score"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
	"github.com/falaj-ml/falaj/internal/usecase/jobs"
)

// lateSteps and lateStable reach services that are opened after their user.
type (
	lateSteps  struct{ a *App }
	lateStable struct{ a *App }
)

// Begin implements dataset.Steps.
func (l lateSteps) Begin(ctx context.Context, s dataset.Step) error {
	return jobs.SparkSteps{Training: l.a.training.Submission, Environments: l.a.environments}.Begin(ctx, s)
}

// Stable implements score.Deployments.
func (l lateStable) Stable(ctx context.Context, p project.Name, name, ref string) (score.Target, error) {
	return deployments.StableVersions{Deployments: l.a.serving.Deployments, Datasets: l.a.datasets, Features: l.a.features.OfflineReads}.Stable(ctx, p, name, ref)
}
