// Package engine is how compute acts: a Driver starts, watches and stops
// workloads on something that runs processes (local children, Slurm,
// Kubernetes, Ray).
//
// A Handle survives a restart of Falaj: whatever a driver needs to find the
// workload again is in it or on disk. Start is idempotent per Spec.ID, so a
// crash between starting and recording it makes no second process.
//
// A workload has one worker or a gang of them. Engines whose nodes are this
// machine (local) run it in place: every Mount is the host's own path. The
// others run falaj-worker's agent on their nodes, which mirrors the mounts there
// and back (package remote).
package engine

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Spec is a workload as an engine sees it.
type Spec struct {
	ID        string // "att_01J…", "bld_01J…"; names the workload on the engine
	Project   string // for accounting and separation
	Name      string // what people call it, and User who asked for it: for the engine's own lists
	User      string
	Command   []string          // argv; no shell
	Env       map[string]string // complete; nothing is inherited
	Dir       string            // working directory; must be inside a writable or read-only mount
	Mounts    []Mount
	Resources resource.Amount // limits and reservation of each worker, without Roles
	Disk      Disk            // what it may keep on disk, all workers together
	Isolation string          // sandbox.Level wanted at least: none, process, sandbox, container, node
	Network   Network
	// Secrets says that the workload has named secrets: whatever starts its program
	// fetches them from Falaj with the attempt's token. They are in no Spec.
	Secrets bool
	Timeout time.Duration // wall clock; 0 is no limit
	Grace   time.Duration // between SIGTERM and SIGKILL

	// Workers is the size of the gang; 0 is one worker. Nodes says where each
	// stands; empty where the engine picks.
	Workers int
	Nodes   []string
	// Roles say what each worker has where they differ; they follow each other, and
	// have all Workers. Those of Launch are the same ones, if it has any.
	Roles []Role
	// Launch says how the workers find each other; the zero Launch starts
	// Command as it is.
	Launch launch.Spec
	// Image is an OCI image by digest, "registry/name@sha256:…", in which the
	// workers run; empty is what the nodes have.
	Image string
	// Options are the pool's, for its engine: "partition", "queue", "image" ….
	Options map[string]string
}

// Disk bounds what a workload keeps on disk where it runs. Zero is what the engine
// gives; an engine gives less where its disk has less.
type Disk struct {
	Scratch     resource.Bytes `json:"scratch,omitzero" doc:"In the working directory and FALAJ_SCRATCH_DIR, such as 20GiB"`
	Output      resource.Bytes `json:"output,omitzero" doc:"In FALAJ_OUTPUT_DIR"`
	Checkpoints resource.Bytes `json:"checkpoints,omitzero" doc:"In FALAJ_CHECKPOINT_DIR"`
	Files       int64          `json:"files,omitzero" doc:"Files and directories in all of these"`
}

// Role is some workers of a gang that have the same.
type Role struct {
	Name      string
	Workers   int
	Resources resource.Amount // of each
}

// Size is how many workers there are.
func (s Spec) Size() int { return max(s.Workers, 1) }

// Parts are the roles; where there are none, one of all workers.
func (s Spec) Parts() []Role {
	if len(s.Roles) > 0 {
		return s.Roles
	}
	return []Role{{Workers: s.Size(), Resources: s.Resources}}
}

// Of is what a worker has.
func (s Spec) Of(index int) resource.Amount {
	for _, r := range s.Roles {
		if index < r.Workers {
			return r.Resources
		}
		index -= r.Workers
	}
	return s.Resources
}

// Total is what all workers have together.
func (s Spec) Total() (sum resource.Amount) {
	for _, r := range s.Parts() {
		sum = sum.Plus(r.Resources.Times(r.Workers))
	}
	return sum
}

// CheckAmounts refuses amounts that make no sense, and roles that do not have all
// workers. Error: fault.Invalid.
func (s Spec) CheckAmounts() error {
	n := 0
	for _, r := range s.Parts() {
		if err := r.Resources.Validate(); err != nil {
			return err
		}
		n += r.Workers
	}
	if n != s.Size() {
		return fault.New(fault.Invalid, "workload %s: the roles have %d workers and the gang %d", s.ID, n, s.Size())
	}
	return nil
}

// MountRole is what engines that mirror a mount to their nodes do with it.
type MountRole string

// The roles. A mount without one is fetched before the start, and what is
// written into it is dropped.
const (
	// Output is taken back when the worker has ended.
	Output MountRole = "output"
	// Checkpoints are taken back as each is complete, and those that are there are
	// fetched before the start.
	Checkpoints MountRole = "checkpoints"
	// Venv is a Python virtual environment: kept on the node by its Digest,
	// and moved to the node's own interpreter of the same version.
	Venv MountRole = "venv"
	// Interpreter is the prefix of a Python; fetched only where the node has
	// none of its version.
	Interpreter MountRole = "interpreter"
	// Scratch is made empty and dropped; every worker has its own.
	Scratch MountRole = "scratch"
	// Shared is written by several workloads: what is in it is no workload's own.
	Shared MountRole = "shared"
)

// Mount makes a host path visible inside at the same path, or, on engines that
// mirror, under another: every occurrence of Path in Command, Env and Dir is
// then replaced.
type Mount struct {
	Path     string
	Writable bool
	Role     MountRole
	Digest   string // of the content, where it never changes: a key for caches
	// Settle and Ready say of Checkpoints when one is complete: see package settled.
	Settle time.Duration
	Ready  string
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
	Exited      Reason = "exited"           // see ExitCode
	Signalled   Reason = "signalled"        // see Signal
	TimedOut    Reason = "timed_out"        // Spec.Timeout passed
	Stopped     Reason = "stopped"          // Stop was called
	OutOfMemory Reason = "out_of_memory"    // the memory limit killed it
	OutOfDisk   Reason = "out_of_disk"      // it kept more on disk than it may; see Message
	OutOfTasks  Reason = "out_of_processes" // it had more processes and threads than it may; see Message
	NotStarted  Reason = "not_started"      // see Message
	NodeFailed  Reason = "node_failed"      // its node went away; see Message
	Preempted   Reason = "preempted"        // the engine took the node for somebody else
	Reclaimed   Reason = "reclaimed"        // of compute alone: ended for accelerators that it left idle; see Message
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

// Finished reports a program that did its work: it ended with exit code 0, by itself or
// within the grace after it was asked to stop.
func (s Status) Finished() bool {
	switch s.Reason {
	case Exited:
	case Stopped, TimedOut, Preempted, Reclaimed:
		if s.Started.IsZero() { // there was no program whose exit code that could be
			return false
		}
	default:
		return false
	}
	return s.State == Ended && s.ExitCode == 0 && s.Signal == ""
}

// Denial is an attempt of a workload to reach what it may not.
type Denial struct {
	Time   time.Time
	Kind   string // "open", "connect"
	Target string // path or address
	PID    int
}

// refusal is an error of Start, of which the engine has nothing then.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refuse marks an error of Start: what the engine talks to does not take the workload as
// this pool asks for it. Another pool may, and this one later.
func Refuse(err error) error { return refusal{err} }

// Refused reports an error that Refuse marked.
func Refused(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// Driver runs workloads. Safe for concurrent use. Errors: fault.NotFound for an
// unknown handle, fault.Unavailable when the engine does not respond; see Refused.
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

// Member is what is known of one worker of a workload.
type Member struct {
	Index    int            `json:"index"`
	Role     string         `json:"role,omitempty"` // of a gang that has some; compute fills it in
	Node     string         `json:"node,omitempty"`
	State    State          `json:"state"`
	Reason   Reason         `json:"reason,omitempty"`
	ExitCode int            `json:"exit_code"`
	Signal   string         `json:"signal,omitempty"`
	Message  string         `json:"message,omitempty"`
	Started  time.Time      `json:"started_at,omitzero"`
	Ended    time.Time      `json:"ended_at,omitzero"`
	CPU      time.Duration  `json:"cpu_ns"`
	PeakRSS  resource.Bytes `json:"peak_rss"`
	Heard    time.Time      `json:"heard_at,omitzero"` // the last sign of life
	Usage    Usage          `json:"usage,omitzero"`    // the last sample
	Notes    []string       `json:"notes,omitempty"`   // what is in its way now, in words
}

// Usage is one sample of what a worker uses.
type Usage struct {
	CPU        float64        `json:"cpu"`           // cores busy
	Memory     resource.Bytes `json:"memory"`        // resident now
	Disk       resource.Bytes `json:"disk,omitzero"` // kept on disk
	DiskLimit  resource.Bytes `json:"disk_limit,omitzero"`
	Files      int64          `json:"files,omitzero"`
	FilesLimit int64          `json:"files_limit,omitzero"`
	NetworkIn  float64        `json:"network_in"`
	NetworkOut float64        `json:"network_out"` // bytes a second
	// NoNetwork says that the network is not known: it is one of several workers.
	NoNetwork    bool          `json:"no_network,omitempty"`
	Accelerators []Accelerator `json:"accelerators,omitempty"`
}

// Accelerator is one sample of an accelerator.
type Accelerator struct {
	Name        string         `json:"name"`
	Index       int            `json:"index"`
	Utilisation *float64       `json:"utilisation,omitempty"` // 0 to 1; nil is not known
	Memory      resource.Bytes `json:"memory"`
	Watts       float64        `json:"watts"`
	Celsius     float64        `json:"celsius"`
}

// Liver is an optional power of a driver that keeps what ended until it is forgotten: the
// handles of what has not ended, without those.
type Liver interface {
	Live(ctx context.Context) ([]Handle, error)
}

// Members is an optional power: what is known of each worker, in order.
type Members interface {
	Members(ctx context.Context, h Handle) ([]Member, error)
}

// Profiler is an optional power: look for a while at what a running worker does,
// without stopping it. Errors besides the driver's: fault.Conflict when there is
// nothing to profile, or a profile is already running; fault.Unsupported where the
// tool is missing or forbidden.
type Profiler interface {
	Profile(ctx context.Context, h Handle, r profiler.Request) (profiler.Result, error)
}

// OutputFiles is an optional power of a driver whose workers run on other machines: what
// they have written below the mount of role Output while they run. Of a path that several
// workers have, the first one's file counts. Errors besides the driver's: fault.NotFound;
// fault.Conflict when nothing runs yet, or any more; fault.Timeout when an agent does not
// answer; fault.TooLarge of a file of more than most bytes.
type OutputFiles interface {
	ListOutput(ctx context.Context, h Handle, below string) (outputdir.Listing, error)
	OpenOutput(ctx context.Context, h Handle, path string, most int64) (io.ReadCloser, error)
}

// Explainer is an optional power: why a workload that is Pending on its engine
// waits there, in words.
type Explainer interface {
	Explain(ctx context.Context, h Handle) ([]string, error)
}

// Inventory is an optional power: the nodes that the engine has now.
type Inventory interface {
	Inventory(ctx context.Context, options map[string]string) ([]Node, error)
}

// Node is one machine of an engine.
type Node struct {
	Name   string
	Amount resource.Amount
	Labels map[string]string // architecture, vector instructions, driver versions …
	Down   string            // why it takes no work; empty takes it
	Busy   string            // what work from elsewhere holds there, in words
}

// Denials is an optional power: the refused attempts of a workload, from an
// index on.
type Denials interface {
	Denials(ctx context.Context, h Handle, from int) ([]Denial, error)
}
