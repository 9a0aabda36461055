package serving

// Names of this domain's events; the body is Changed.
const (
	EventDeployed = "deployment.deployed"
	EventDeleted  = "deployment.deleted"
)

// Changed tells which deployment changed and to which version.
type Changed struct {
	Deployment ID     `json:"deployment"`
	Name       string `json:"name"`
	Model      string `json:"model"`
	Version    int64  `json:"version"`
}
