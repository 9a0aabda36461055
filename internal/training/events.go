package training

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/anomaly"
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

// The events of what is out of the ordinary: one when it begins and one when it
// ends.
const (
	JobIdleAccelerator = "job.idle_accelerator" // IdleAccelerator
	NodeSlow           = "node.slow"            // SlowNode
)

// IdleAccelerator is a running job that stopped using its accelerators, or uses
// them again, or has ended.
type IdleAccelerator struct {
	Job     JobID            `json:"job"`
	Project project.Name     `json:"project"`
	Attempt AttemptID        `json:"attempt"`
	Change  anomaly.Change   `json:"change"` // began, ended
	Pool    compute.PoolName `json:"pool"`
	Device  string           `json:"device"`
	Since   time.Time        `json:"since,omitzero"` // idle
	Busy    float64          `json:"busy"`           // mean share of the attempt so far
}

// SlowNode is a node on which the same work is slower than on the other nodes of
// its pool, or is no longer.
type SlowNode struct {
	Pool   compute.PoolName `json:"pool"`
	Node   string           `json:"node"`
	Change anomaly.Change   `json:"change"`
	Since  time.Time        `json:"since"` // the attempt that showed it had ended
	anomaly.Evidence
}

func publish(ctx context.Context, tx *store.Tx, name string, j Job) error {
	if j.Classification.Journalled() && j.State == Failed { // who hears of it may not read the data
		j.Reason = withheld
	}
	return event.Publish(ctx, tx, string(j.Project), name, Event{
		Job: j.ID, Project: j.Project, Name: j.Name, State: j.State, Attempts: j.Attempts, Pool: j.Pool,
		Class: j.Class, Reason: j.Reason, Run: j.Run, Model: j.Model,
	})
}
