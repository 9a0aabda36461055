package environment

import (
	"context"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// The events of this package; the body of each is Event.
const (
	EnvironmentApplied = "environment.applied"
	EnvironmentReady   = "environment.ready"
	EnvironmentFailed  = "environment.failed"
)

// Event is the body of this package's events.
type Event struct {
	Environment ID           `json:"environment"`
	Project     project.Name `json:"project"`
	Name        string       `json:"name"`
	Digest      Digest       `json:"digest,omitempty"`
	Reason      string       `json:"reason,omitempty"`
}

func publish(ctx context.Context, tx *store.Tx, name string, e Environment) error {
	return event.Publish(ctx, tx, string(e.Project), name, Event{Environment: e.ID, Project: e.Project, Name: e.Name, Digest: e.Digest, Reason: e.Reason})
}
