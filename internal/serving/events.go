package serving

import models "github.com/falaj-ml/falaj/internal/serving/runtime"

// Names of this domain's events.
const (
	EventDeployed          = "deployment.deployed"   // body Changed
	EventDeleted           = "deployment.deleted"    // body Changed
	EventSetAside          = "deployment.set_aside"  // body SetAside
	EventShadowed          = "deployment.shadowed"   // body Changed; version 0: there is no shadow any more
	EventAutomationChanged = "deployment.automation" // body Switch
	EventRolloutStarted    = "rollout.started"       // body Rollout
	EventRolloutEnded      = "rollout.ended"         // body Rollout
	EventAutoAction        = "deployment.acted"      // body AutoAction: claimed, or concluded
)

// SetAside tells which version of a deployment is not started again, because its
// processes died too often.
type SetAside struct {
	Deployment ID             `json:"deployment"`
	Name       string         `json:"name"`
	Model      string         `json:"model"`
	Version    int64          `json:"version"`
	Digest     string         `json:"digest"`
	Role       Role           `json:"role"`
	Deaths     []models.Death `json:"deaths"`
}

// Changed tells which deployment changed and to which version.
type Changed struct {
	Deployment ID     `json:"deployment"`
	Name       string `json:"name"`
	Model      string `json:"model"`
	Version    int64  `json:"version"`
}
