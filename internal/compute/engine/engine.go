// Package engine is how compute acts: a Driver starts, watches and stops
// workloads on something that runs processes (local children, Slurm,
// Kubernetes, Ray).
//
// A Handle survives a restart of Falaj: whatever a driver needs to find the
// workload again is in it or on disk. Start is idempotent per Spec.ID, so a
// crash between starting and recording it makes no second process.
package engine

import (
	"context"
	"io"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Spec is a workload as an engine sees it.
type Spec struct {
	ID        string            // "att_01J…", "bld_01J…"; names the workload on the engine
	Project   string            // for accounting and separation
	Command   []string          // argv; no shell
	Env       map[string]string // complete; nothing is inherited
	Dir       string            // working directory; must be inside a writable or read-only mount
	Mounts    []Mount
	Resources resource.Amount // limits and reservation
	Isolation string          // sandbox.Level wanted at least: none, process, sandbox, container, node
	Network   Network
	Timeout   time.Duration // wall clock; 0 is no limit
	Grace     time.Duration // between SIGTERM and SIGKILL
}

// Mount makes a host path visible inside at the same path.
type Mount struct {
	Path     string
	Writable bool
}

// Network is what the workload may reach. Everything else fails and is
// reported as a Denial.
type Network struct {
	API   bool     // Falaj's own HTTP API, at FALAJ_URL inside
	Allow []string // "host:port" reached through HTTP(S)_PROXY inside
}

// Handle finds a started workload again. Opaque outside its driver.
type Handle string

// State of a workload on its engine.
type State string

// The states. Lost means the engine knows no such workload or can no longer
// say how it ended.
const (
	Pending State = "pending"
	Running State = "running"
	Ended   State = "ended"
	Lost    State = "lost"
)

// Reason why a workload ended.
type Reason string

// The reasons.
const (
	Exited      Reason = "exited"        // see ExitCode
	Signalled   Reason = "signalled"     // see Signal
	TimedOut    Reason = "timed_out"     // Spec.Timeout passed
	Stopped     Reason = "stopped"       // Stop was called
	OutOfMemory Reason = "out_of_memory" // the memory limit killed it
	NotStarted  Reason = "not_started"   // see Message
)

// Status is what is known of a workload now.
type Status struct {
	State    State
	Reason   Reason
	ExitCode int
	Signal   string
	Message  string // for people
	Started  time.Time
	Ended    time.Time
	CPU      time.Duration  // user and system time so far
	PeakRSS  resource.Bytes // highest resident memory so far
	Isolated string         // the sandbox.Level reached
}

// Denial is an attempt of a workload to reach what it may not.
type Denial struct {
	Time   time.Time
	Kind   string // "open", "connect"
	Target string // path or address
	PID    int
}

// Driver runs workloads. Safe for concurrent use. Errors: fault.NotFound for an
// unknown handle, fault.Unavailable when the engine does not answer.
type Driver interface {
	Start(ctx context.Context, spec Spec) (Handle, error)
	Status(ctx context.Context, h Handle) (Status, error)
	// Wait returns when the workload has ended or is lost, or ctx is done.
	Wait(ctx context.Context, h Handle) (Status, error)
	// Stop asks with SIGTERM, kills after grace, and returns when nothing of
	// the workload runs any more. Stopping what has ended is no error.
	Stop(ctx context.Context, h Handle, grace time.Duration) error
	// Logs reads combined output from a byte offset; with follow it goes on
	// until the workload ends or ctx is done.
	Logs(ctx context.Context, h Handle, offset int64, follow bool) (io.ReadCloser, error)
	// List gives every workload the engine still holds, for finding orphans.
	List(ctx context.Context) ([]Handle, error)
	// Forget removes an ended workload's traces.
	Forget(ctx context.Context, h Handle) error
}

// Denials is an optional power: the refused attempts of a workload, from an
// index on.
type Denials interface {
	Denials(ctx context.Context, h Handle, from int) ([]Denial, error)
}
