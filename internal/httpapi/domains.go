package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/optimize"
	"github.com/falaj-ml/falaj/internal/training/score"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

// Backups are those that the server makes of itself.
type Backups interface {
	// Make begins one and returns. Errors: fault.Conflict while another is made, or
	// when there is one of the name; fault.Unsupported where the server makes none.
	Make(ctx context.Context, name string) (backup.Backup, error)
	List(ctx context.Context) ([]backup.Backup, error)
	One(ctx context.Context, name string) (backup.Backup, error)
	// Stop ends the making of one. Error: fault.Conflict when it is not being made.
	Stop(ctx context.Context, name string) (backup.Backup, error)
}

// Deletions knows what cites an object.
type Deletions interface {
	// Allow refuses to delete what something cites, unless the request says that it may
	// go. Error: fault.Conflict.
	Allow(ctx context.Context, p project.Name, kind, name string, r deletion.Request) error
}

// Domains are the services that the edge translates for.
type Domains struct {
	Projects      *tenancy.Service
	Stored        *quota.Accounts
	Policies      *authorizer.Service
	Accounts      *account.Service
	SignIn        *signin.Service // nil at a gateway
	Zones         *border.Service
	Requests      *request.Service
	Keys          *keys.Service
	Secrets       *secrets.Service
	Erasures      *privacy.Service
	Deletions     Deletions
	Backups       Backups
	Audit         *audit.Service
	Compute       compute.Services
	Replicas      Replicas // nil: none is on another machine
	Environments  *environment.Service
	Datasets      dataset.Services
	Ingestion     *ingestion.Service
	Lineage       *openlineage.Service
	Features      feature.Services
	Tracking      tracking.Services
	Tuning        *tuning.Service
	Registry      registry.Services
	Training      training.Services
	Optimize      *optimize.Service
	Scores        *score.Service
	Checkpoints   *checkpoint.Service
	Sweeps        *sweep.Service
	Monitoring    *monitoring.Service
	Serving       serving.Services
	Gateways      *gateway.Service
	Labels        *label.Service
	Verifications *verification.Service
	Alerts        *alert.Sender
	Webhooks      *webhook.Service
}
