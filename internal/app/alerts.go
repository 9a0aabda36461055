package app

import (
	"context"
	"errors"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/store"
)

// projectAlerts go with their project: what was told, and the secrets that signed
// it.
type projectAlerts struct {
	alerts   *alert.Sender
	webhooks *webhook.Service
}

// Contents implements tenancy.Contents.
func (c projectAlerts) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	return "", errors.Join(c.alerts.Forget(ctx, tx, string(p)), c.webhooks.Forget(ctx, tx, string(p)))
}
