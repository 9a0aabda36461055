// Package protocol is what the server and the agent on a node say to each other.
// Standard library only. All bodies are JSON unless said otherwise; the paths are
// below /api/v1/projects/{project}/workloads/{workload}/worker/.
//
//	POST join                       Join → Order, or 202 with Waiting until the gang is complete
//	GET  mounts/{n}                 the n-th mount of the order as a tar stream
//	POST log?offset=N               raw bytes of the member from offset N of its output → Reached
//	POST beat                       Beat → Instructions; answered when there is news or Beat.Wait has passed
//	POST mounts/{n}/manifest        Manifest → Needed
//	PUT  mounts/{n}/tree            a tar stream of the files that were needed
//	POST profile                    Look, which Instructions.Profile asked for
//	POST output                     Found, which Instructions.Wanted asked for
//	PUT  output?id=ID               the bytes of a file, which Instructions.Wanted asked for
//	GET  secrets                    secret.Set, where Order.Secrets or Gang.Secrets says so
//	POST end                        End; repeating it is no change
//
// Everything after join names the member in the query, index=I&start=S. A tree
// also names its directory and its manifest: name=NAME&manifest=DIGEST. Tar
// streams are gzip where Content-Encoding says so.
//
// The caller is the attempt's own token. A member joins with a number drawn at
// its start; another number for a member that has joined is a second start, and
// is refused with fault conflict: nothing runs twice.
//
// Both sides count durations by their own clocks and never compare times: the
// clocks of nodes differ.
package protocol

import (
	"time"

	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Version of this protocol; a server takes its own and the one before.
const Version = 4

// Secrets is the first version whose orders may have secrets: an agent of the version
// before would start the program without them, so it gets none of these.
const Secrets = 4

// The agent's own environment, which a launcher gives it. None of it reaches
// the worker.
const (
	EnvURL   = "FALAJ_AGENT_URL"     // of the routes above, ends with "/worker/"
	EnvToken = "FALAJ_AGENT_TOKEN"   //nolint:gosec // The name of a variable: the attempt's token
	EnvCA    = "FALAJ_AGENT_CA"      // PEM certificates that the server's is signed by; empty is the node's own
	EnvLease = "FALAJ_AGENT_LEASE"   // how long it goes on without the server, "5m0s"
	EnvIndex = "FALAJ_WORKER_INDEX"  // which member this is, from 0
	EnvFirst = "FALAJ_WORKER_FIRST"  // added to the index, where the engine counts each role by itself; empty is 0
	EnvNode  = "FALAJ_WORKER_NODE"   // the node's name on its engine; empty is the host's
	EnvAddr  = "FALAJ_WORKER_ADDR"   // where the others reach it; empty is the address it reaches the server from
	EnvDir   = "FALAJ_AGENT_DIR"     // for what it keeps while it runs; empty is below TMPDIR
	EnvCache = "FALAJ_AGENT_CACHE"   // for what it keeps between workloads; empty is below TMPDIR
	EnvKeep  = "FALAJ_AGENT_KEEP"    // names of the agent's variables that the worker gets, too, by commas
	EnvLimit = "FALAJ_AGENT_STORAGE" // bytes that the cache may hold; empty is 20 GiB
)

// Join is the first thing an agent says.
type Join struct {
	Version int    `json:"version"`
	Index   int    `json:"index"`
	Start   string `json:"start"` // drawn at the agent's start
	Node    string `json:"node"`
	Address string `json:"address"`
	Port    int    `json:"port"`
	// Interface that has the address; may be empty.
	Interface string `json:"interface,omitempty"`
	PID       int    `json:"pid"`
	// Facts of the node by name, for checks and describe.
	Facts map[string]string `json:"facts,omitempty"`
}

// Waiting answers a join while others have yet to come: the agent joins again.
type Waiting struct {
	Joined int `json:"joined"`
	Of     int `json:"of"`
}

// Order is what a member runs.
type Order struct {
	Version int               `json:"version"` // that both speak
	ID      string            `json:"id"`
	Index   int               `json:"index"`
	Roster  []launch.Peer     `json:"roster"`
	Launch  launch.Spec       `json:"launch"` // the zero Launch runs Command as it is
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"` // complete, beside what Launch and Inherit add
	// Inherit are beginnings of names: such variables of the agent's own
	// environment reach the worker.
	Inherit []string `json:"inherit,omitempty"`
	Dir     string   `json:"dir"`
	Mounts  []Mount  `json:"mounts"`
	API     bool     `json:"api"` // the worker reaches Falaj at FALAJ_URL
	// Secrets says that the job has secrets: the agent fetches them before the start.
	Secrets bool          `json:"secrets,omitempty"`
	Timeout time.Duration `json:"timeout_ns"`
	Grace   time.Duration `json:"grace_ns"`
	Lease   time.Duration `json:"lease_ns"`
	// LogLimit bounds the member's output, in bytes.
	LogLimit int64 `json:"log_limit"`
	// Memory that the member may use, in bytes; 0 is not bounded by us.
	Memory int64 `json:"memory,omitempty"`
	// Options of the pool.
	Options map[string]string `json:"options,omitempty"`
}

// Roles of a mount; see engine.MountRole.
const (
	RoleOutput      = "output"
	RoleCheckpoints = "checkpoints"
	RoleVenv        = "venv"
	RoleInterpreter = "interpreter"
	RoleScratch     = "scratch"
)

// Mount is a directory or file of the server that the worker sees.
type Mount struct {
	Path     string `json:"path"` // on the server
	Role     string `json:"role,omitempty"`
	Writable bool   `json:"writable,omitempty"`
	Digest   string `json:"digest,omitempty"`   // of the content: a key for caches
	InPlace  bool   `json:"in_place,omitempty"` // the node sees Path itself
	// Of checkpoints: when one is complete, see package settled; 0 is its default.
	Settle time.Duration `json:"settle,omitempty"`
	Ready  string        `json:"ready,omitempty"`
}

// Reached answers a log: where the next bytes begin. It may be less than what
// was sent, and less than what an earlier answer said.
type Reached struct {
	Offset int64 `json:"offset"`
}

// Beat is a sign of life.
type Beat struct {
	Phase Phase `json:"phase"`
	// Wait is how long the server may keep the answer back for want of news.
	Wait  time.Duration `json:"wait_ns"`
	Usage Usage         `json:"usage"`
	// CPU used so far and the most memory held.
	CPU     time.Duration `json:"cpu_ns"`
	PeakRSS int64         `json:"peak_rss"`
	// None are the checkpoints that Instructions.Asked named and this member has no part of.
	None []string `json:"none,omitempty"`
	// Notes are what is in the way now: "the server's disk is full" ….
	Notes []string `json:"notes,omitempty"`
}

// Phase is how far a member is.
type Phase string

// The phases.
const (
	Fetching  Phase = "fetching"
	Running   Phase = "running"
	Stopping  Phase = "stopping"
	Returning Phase = "returning" // its program has ended, what it left is on its way
)

// Usage is one sample of what a member uses.
type Usage struct {
	CPU          float64       `json:"cpu"`    // cores busy
	Memory       int64         `json:"memory"` // resident now, in bytes
	NetworkIn    float64       `json:"network_in"`
	NetworkOut   float64       `json:"network_out"` // bytes a second
	Accelerators []Accelerator `json:"accelerators,omitempty"`
}

// Accelerator is one sample of an accelerator.
type Accelerator struct {
	Name        string   `json:"name"`
	Index       int      `json:"index"`
	Utilisation *float64 `json:"utilisation,omitempty"` // 0 to 1; nil is not known
	Memory      int64    `json:"memory"`
	Watts       float64  `json:"watts"`
	Celsius     float64  `json:"celsius"`
}

// Instructions are the answer to a heartbeat: the news for a member.
type Instructions struct {
	Stop bool `json:"stop,omitempty"`
	// Grace between SIGTERM and SIGKILL.
	Grace time.Duration `json:"grace_ns,omitempty"`
	Why   string        `json:"why,omitempty"`
	// Asked are checkpoints of which others have delivered their part.
	Asked []string `json:"asked,omitempty"`
	// Profile is what to look at; it is asked for until it is answered.
	Profile *profiler.Request `json:"profile,omitempty"`
	// Wanted are parts of the output, each asked for until it is answered.
	Wanted []Wanted `json:"wanted,omitempty"`
}

// Wanted is what somebody wants to see below the output directory while the worker runs.
type Wanted struct {
	ID   string `json:"id"`
	Path string `json:"path"` // slashes; "." is the directory itself
	// Most bytes of the file whose content is wanted; 0 wants a list of what is at and
	// below the path.
	Most int64 `json:"most,omitempty"`
}

// Found answers Instructions.Wanted with a list, or with why there is none, or no file.
type Found struct {
	ID      string             `json:"id"`
	Listing *outputdir.Listing `json:"listing,omitempty"`
	Problem *Problem           `json:"problem,omitempty"`
}

// Look answers Instructions.Profile.
type Look struct {
	ID     string          `json:"id"` // of the request
	Answer profiler.Answer `json:"answer"`
}

// Manifest is what a directory holds, before it is sent.
type Manifest struct {
	// Name of the checkpoint; empty is the mount itself.
	Name  string `json:"name,omitempty"`
	Files []File `json:"files"`
	Dirs  []Dir  `json:"dirs,omitempty"` // that hold nothing
}

// File is a plain file; nothing else is sent.
type File struct {
	Path   string `json:"path"` // relative, with slashes
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"` // permission bits
	SHA256 string `json:"sha256"`
}

// Dir is an empty directory.
type Dir struct {
	Path string `json:"path"`
}

// Needed answers a manifest.
type Needed struct {
	Manifest string `json:"manifest"` // names it when the tree is sent
	// Files are the indexes of those that the server has not.
	Files []int `json:"files"`
	// Have is true when all of this was taken before: there is nothing to send.
	Have bool `json:"have,omitempty"`
}

// End is how a member ended.
type End struct {
	Reason   string `json:"reason"` // an engine.Reason
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	Message  string `json:"message,omitempty"`
	// Ran is how long its program ran, Ago how long ago that ended.
	Ran     time.Duration `json:"ran_ns"`
	Ago     time.Duration `json:"ago_ns"`
	CPU     time.Duration `json:"cpu_ns"`
	PeakRSS int64         `json:"peak_rss"`
	// LogSize is the whole output's size; what the server has not by now is lost.
	LogSize int64 `json:"log_size"`
}

// Problem is an error answer, RFC 9457.
type Problem struct {
	Status int    `json:"status"`
	Kind   string `json:"kind"` // a fault.Kind
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// Gang is what `falaj-worker gang --spec PATH` runs: all members of a gang, on
// this machine. Each has the environment of the supervisor itself, then what
// launch.Plan gives, then its own.
type Gang struct {
	Launch launch.Spec `json:"launch"`
	Dir    string      `json:"dir,omitempty"` // working directory; empty is the supervisor's
	// Members are started in order; their number is the gang's size.
	Members []GangMember `json:"members"`
	// Grace between SIGTERM and SIGKILL, when one has failed or the supervisor
	// is asked to stop.
	Grace time.Duration `json:"grace_ns"`
	// Secrets says that the job has secrets: the supervisor fetches them before the start.
	Secrets bool `json:"secrets,omitempty"`
	// Report is the path of a JSON list of Member, replaced by a rename at each
	// change and every two seconds; empty writes none.
	Report string `json:"report,omitempty"`
}

// GangMember is one worker of a Gang.
type GangMember struct {
	Env  map[string]string `json:"env,omitempty"`
	CPUs []int             `json:"cpus,omitempty"` // cores that it is bound to; empty is all
	// Nodes are the NUMA nodes whose memory it may use; empty is all.
	Nodes []int `json:"nodes,omitempty"`
}

// Member is what is known of one worker; the same JSON as engine.Member.
type Member struct {
	Index    int           `json:"index"`
	Node     string        `json:"node,omitempty"`
	State    string        `json:"state"`
	Reason   string        `json:"reason,omitempty"`
	ExitCode int           `json:"exit_code"`
	Signal   string        `json:"signal,omitempty"`
	Message  string        `json:"message,omitempty"`
	Started  time.Time     `json:"started_at,omitzero"`
	Ended    time.Time     `json:"ended_at,omitzero"`
	CPU      time.Duration `json:"cpu_ns"`
	PeakRSS  int64         `json:"peak_rss"`
	Heard    time.Time     `json:"heard_at,omitzero"`
	Usage    Usage         `json:"usage"`
}

// SiteFile in a virtual environment lists the packages of the interpreter that it
// stands on, {"packages": {name: version}}: nodes compare them with their own.
const SiteFile = ".falaj-site.json"
