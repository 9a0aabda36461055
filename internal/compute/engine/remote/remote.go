// Package remote is the common part of engines that run workloads on other machines:
// Driver is an engine.Driver over a Launcher, the few things in which Slurm,
// Kubernetes and Ray differ; Hub is where the agents on the nodes report.
//
// Life of a workload. Driver.Start makes DIR/ID with what to run (work.json) and
// has the Launcher start Workers agents. Each joins by HTTP (handler.go); when
// all have, each gets its order, fetches its mounts and runs. Their output,
// checkpoints and beats come to the Hub (hub.go, log.go, trees.go), and at last
// how they ended. Meanwhile the Driver asks the Launcher about all launches at
// once and settles, purely, what follows from both (settle.go): agents that
// report win over what the engine says; the engine decides where they are silent.
//
// All that matters is in DIR, synced before it is answered, so a restarted Falaj
// resumes where it was: a member's number drawn at its start makes a second start
// of it fail.
package remote

import (
	"context"
	"log/slog"
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
	State   engine.State // Lost when the engine knows none such, or cannot see what became of it
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

// Config of a Driver.
type Config struct {
	Name     string // of the engine in the configuration
	Dir      string // of the workloads' directories; made, for our user only
	Launcher Launcher
	// URL is where the nodes reach this server, "https://host:port".
	URL string
	// CA gives the PEM certificate that signed the server's now, for each launch; nil or
	// empty when the nodes trust it anyway.
	CA func() string
	// Isolation is the sandbox.Level that the engine's nodes reach; empty is none.
	Isolation string

	// Poll is how often the engine is asked; 0 is 1 s.
	Poll time.Duration
	// Lease is how long a worker runs without contact to the server; 0 is 5 minutes.
	Lease time.Duration
	// Settle is how long agents may be silent after the engine has said that the
	// launch is over; 0 is 10 s.
	Settle time.Duration
	// Gather is how long the members of a gang may take to come after the first;
	// 0 is 10 minutes.
	Gather time.Duration
	// LogLimit bounds one worker's log, in bytes; 0 is 64 MiB.
	LogLimit int64
	// MaxTree bounds a checkpoint, or an output, in bytes; 0 is 1 TiB.
	MaxTree int64
	// MaxManifests bounds what is kept to know what a workload's checkpoints
	// consist of, in bytes; 0 is 256 MiB.
	MaxManifests int
	Log          *slog.Logger
	Now          func() time.Time
}

func (c Config) orDefault() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Poll, time.Second)
	def(&c.Lease, 5*time.Minute)
	def(&c.Settle, 10*time.Second)
	def(&c.Gather, 10*time.Minute)
	if c.MaxManifests == 0 {
		c.MaxManifests = 256 << 20
	}
	if c.LogLimit == 0 {
		c.LogLimit = 64 << 20
	}
	if c.Isolation == "" {
		c.Isolation = "none"
	}
	if c.CA == nil {
		c.CA = func() string { return "" }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Shared is the option of a pool with nodes that see the server's directories at the
// same paths: then nothing is mirrored.
const Shared = "shared"
