package training

import (
	"context"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// The events of this package; the body of each is Event.
const (
	JobQueued   = "job.queued"   // submitted, or to run again
	JobStarted  = "job.started"  // an attempt runs
	JobFinished = "job.finished" // succeeded, failed or cancelled
)

// Event is the body of this package's events.
type Event struct {
	Job      JobID            `json:"job"`
	Project  project.Name     `json:"project"`
	Name     string           `json:"name"`
	State    State            `json:"state"`
	Attempts int              `json:"attempts"`
	Pool     compute.PoolName `json:"pool,omitempty"`
	Class    Class            `json:"class,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	Run      string           `json:"run_id,omitempty"`
	Model    string           `json:"model,omitempty"`
}

func publish(ctx context.Context, tx *store.Tx, name string, j Job) error {
	return event.Publish(ctx, tx, string(j.Project), name, Event{
		Job: j.ID, Project: j.Project, Name: j.Name, State: j.State, Attempts: j.Attempts, Pool: j.Pool,
		Class: j.Class, Reason: j.Reason, Run: j.Run, Model: j.Model,
	})
}
