// Package lineage answers what an object was made of and what was made of it, across
// datasets, features, jobs, models and deployments, and reports Falaj's runs to an
// OpenLineage receiver.
//
// # Map
//
//   - walk.go: the steps of a walk, upstream and downstream, for package openlineage.
//   - report.go: what an event of Falaj becomes as OpenLineage events.
package lineage

import (
	"log/slog"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training"
)

// Service reads lineage from the services of the domains. All fields are required; Guard,
// Tables and Log serve reports only.
type Service struct {
	Authorizer policy.Permitter
	Datasets   *dataset.Definitions
	Features   feature.Services
	Training   *training.Jobs
	Registry   *registry.Versions
	Serving    *serving.Deployments
	Guard      residency.Guard
	Tables     string // directory of the open tables
	Log        *slog.Logger
}
