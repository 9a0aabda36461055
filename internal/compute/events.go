package compute

import (
	"context"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// The events of this package.
const (
	EventPoolApplied     = "pool.applied"          // PoolEvent
	EventNodeQuarantined = "pool.node_quarantined" // PoolEvent
	EventNodeReleased    = "pool.node_released"    // PoolEvent
	EventSupportEnds     = "pool.support_ends"     // PoolEvent
	EventPoolScaled      = "pool.scaled"           // PoolScaledEvent
	EventQueueApplied    = "queue.applied"         // QueueEvent
	EventQueueDeleted    = "queue.deleted"         // QueueEvent
	EventBudgetApplied   = "budget.applied"        // BudgetEvent
	EventBudgetDeleted   = "budget.deleted"        // BudgetEvent
	EventBudgetWarned    = "budget.warned"         // BudgetEvent
	EventPreempted       = "workload.preempted"    // WorkloadEvent
	EventReclaimed       = "workload.reclaimed"    // WorkloadEvent
	EventResized         = "workload.resized"      // WorkloadEvent
	EventWorkloadPlaced  = "workload.placed"       // WorkloadEvent
	EventWorkloadEnded   = "workload.ended"        // WorkloadEvent
)

// PoolEvent is the body of pool events.
type PoolEvent struct {
	Pool   PoolName `json:"pool"`
	Node   string   `json:"node,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

// PoolScaledEvent is the body of pool.scaled: an elastic pool shall have another
// number of nodes.
type PoolScaledEvent struct {
	Pool    PoolName `json:"pool"`
	From    int      `json:"from"`
	To      int      `json:"to"`
	Rent    []string `json:"rent,omitempty"`    // nodes that are asked for
	Release []string `json:"release,omitempty"` // nodes that are given back
	Reason  string   `json:"reason"`
}

// QueueEvent is the body of queue events.
type QueueEvent struct {
	Queue string `json:"queue"`
}

// BudgetEvent is the body of budget events.
type BudgetEvent struct {
	Project  project.Name `json:"project"`
	Month    string       `json:"month,omitempty"`   // 2026-11
	Reached  float64      `json:"reached,omitempty"` // share of the amount
	Spent    float64      `json:"spent,omitempty"`
	Amount   float64      `json:"per_month,omitempty"`
	Currency string       `json:"currency,omitempty"`
}

// WorkloadEvent is the body of workload events.
type WorkloadEvent struct {
	Workload WorkloadID     `json:"workload"`
	Project  project.Name   `json:"project"`
	Kind     Kind           `json:"kind"`
	Label    string         `json:"label"`
	Pool     PoolName       `json:"pool,omitempty"`
	Machine  string         `json:"machine,omitempty"` // that has its workers, where it is known
	Zone     residency.Zone `json:"zone,omitempty"`    // of the machine
	State    State          `json:"state"`
	Workers  int            `json:"workers,omitempty"` // that have their place
	Target   int            `json:"target,omitempty"`  // workload.resized: how many workers it goes on with
	For      WorkloadID     `json:"for,omitempty"`     // workload.preempted, .reclaimed, .resized: who gets what it gives up, if one does
	Reason   string         `json:"reason,omitempty"`  // of these in words, of workload.ended an engine.Reason
	ExitCode int            `json:"exit_code,omitempty"`
}

func (w Workload) event() WorkloadEvent {
	return WorkloadEvent{
		Workload: w.ID, Project: w.Project, Kind: w.Kind, Label: w.Label, Pool: w.Pool, Machine: w.Machine, Zone: w.Zone, State: w.State, Workers: w.Placed,
		Reason: string(w.Status.Reason), ExitCode: w.Status.ExitCode,
	}
}

// leaves is the event of a workload that is asked to save and leave.
func (w Workload) leaves(of scheduler.ID, target int, why string) WorkloadEvent {
	e := w.event()
	e.For, e.Target, e.Reason = WorkloadID(of), target, why
	return e
}

func publish(ctx context.Context, tx *store.Tx, name string, e WorkloadEvent) error {
	return event.Publish(ctx, tx, string(e.Project), name, e)
}
