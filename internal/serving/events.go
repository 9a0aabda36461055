package serving

// Names of this domain's events.
const (
	EventDeployed          = "deployment.deployed"   // body Changed
	EventDeleted           = "deployment.deleted"    // body Changed
	EventShadowed          = "deployment.shadowed"   // body Changed; version 0: there is no shadow any more
	EventAutomationChanged = "deployment.automation" // body Switch
	EventRolloutStarted    = "rollout.started"       // body Rollout
	EventRolloutEnded      = "rollout.ended"         // body Rollout
	EventActed             = "deployment.acted"      // body Act: claimed, or concluded
)

// Changed tells which deployment changed and to which version.
type Changed struct {
	Deployment ID     `json:"deployment"`
	Name       string `json:"name"`
	Model      string `json:"model"`
	Version    int64  `json:"version"`
}
