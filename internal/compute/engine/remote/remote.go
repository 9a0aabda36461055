// Package remote is what the engines whose nodes are other machines share:
// Driver is an engine.Driver over a Launcher, the few things in which Slurm,
// Kubernetes and Ray differ; Hub is where the agents on the nodes report.
package remote

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// Launch is what a Launcher starts: Workers times the agent.
type Launch struct {
	ID      string // names it on the engine; starting an ID twice starts it once
	Spec    engine.Spec
	Workers int // at least 1
	// Agent is the agent's environment: where the server is, the token. Each
	// worker also gets FALAJ_WORKER_INDEX, 0 to Workers-1, from the launcher.
	Agent map[string]string
}

// Observed is what an engine says of a launch.
type Observed struct {
	State   engine.State // Lost when the engine knows none such
	Reason  engine.Reason
	Message string // for people, in the engine's own terms
	Nodes   []string
	Started time.Time
	Ended   time.Time
	Words   []string // why it is pending there
}

// Launcher starts agents. Safe for concurrent use; errors as in engine.Driver.
type Launcher interface {
	// Start queues the launch on the engine. A crash after it and a second call
	// start nothing twice.
	Start(ctx context.Context, l Launch) error
	// Observe asks for all of ids at once; those it does not know are Lost.
	Observe(ctx context.Context, ids []string) (map[string]Observed, error)
	// Stop has the engine end it: SIGTERM to the agents, SIGKILL after grace.
	// It returns when the engine has taken the order.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// List gives the ids of all launches of this Falaj that the engine holds.
	List(ctx context.Context) ([]string, error)
	// Forget removes what the engine keeps of an ended launch.
	Forget(ctx context.Context, id string) error
}
