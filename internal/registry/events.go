package registry

import "github.com/falaj-ml/falaj/internal/tracking"

// Names of the events that the registry publishes.
const (
	EventVersionCreated = "model.version_created"
	EventVersionFailed  = "model.version_failed"
	EventVersionDeleted = "model.version_deleted"
	EventAliasMoved     = "model.alias_moved"
)

// VersionEvent is the body of the version events.
type VersionEvent struct {
	ModelID ModelID        `json:"model_id"`
	Model   string         `json:"model"`
	Version int            `json:"version"`
	Digest  string         `json:"digest,omitempty"`
	Run     tracking.RunID `json:"run,omitempty"`
	Message string         `json:"message,omitempty"`
}

// AliasEvent is the body of EventAliasMoved. From or To is 0 where there is no
// version.
type AliasEvent struct {
	ModelID ModelID `json:"model_id"`
	Model   string  `json:"model"`
	Alias   string  `json:"alias"`
	From    int     `json:"from"`
	To      int     `json:"to"`
}
