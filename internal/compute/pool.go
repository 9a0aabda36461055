package compute

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Home is the pool of the machine that Falaj runs on.
const Home PoolName = "home"

// PoolName names a pool; unique in the installation.
type PoolName string

// Mode says who picks the node.
type Mode string

// The modes. Falaj picks the node of an exclusive pool; a delegated pool's own
// scheduler picks it, and Falaj only admits and explains.
const (
	Exclusive Mode = "exclusive"
	Delegated Mode = "delegated"
)

// Limits of a pool's manifest.
const (
	maxNodes    = 10_000
	maxPools    = 1_000
	maxSettings = 200 // options, variables, labels of a node
	maxSetting  = 4 << 10
)

// Node is one machine of a pool and what Falaj may use of it.
type Node struct {
	Name   string         `json:"name" doc:"Unique in the pool"`
	CPU    resource.CPU   `json:"cpu" doc:"Cores, such as 16"`
	Memory resource.Bytes `json:"memory" doc:"Memory, such as 64GiB"`
	// MemoryBandwidth is 0 where it is unknown: see Room.
	MemoryBandwidth resource.Bandwidth `json:"memory_bandwidth,omitzero" doc:"Memory bandwidth, such as 300GB/s; default the measured one; without either, jobs are not limited by it"`
	Accelerators    map[string]int64   `json:"accelerators,omitempty" doc:"Count of each accelerator by resource name"`
	Labels          map[string]string  `json:"labels,omitempty" doc:"Node labels: architecture, driver versions and so on"`
}

// Amount is what the node has, as far as it is known.
func (n Node) Amount() resource.Amount {
	return resource.Amount{CPU: n.CPU, Memory: n.Memory, MemoryBandwidth: n.MemoryBandwidth, Accelerators: n.Accelerators}
}

// Room is what workloads may use of the node. A resource of unknown size is not limited.
func (n Node) Room() resource.Amount {
	a := n.Amount()
	if a.MemoryBandwidth == 0 {
		a.MemoryBandwidth = resource.AnyBandwidth
	}
	return a
}

func (n Node) equal(o Node) bool {
	return n.Name == o.Name && n.CPU == o.CPU && n.Memory == o.Memory && n.MemoryBandwidth == o.MemoryBandwidth && maps.Equal(n.Accelerators, o.Accelerators) && maps.Equal(n.Labels, o.Labels)
}

func (n Node) validate() error {
	if !nodeName.MatchString(n.Name) {
		return fault.New(fault.Invalid, "node name %.80q is invalid", n.Name).
			WithHint("Use 1 to 253 letters, digits, '.', '-' and '_', beginning with a letter or digit.")
	}
	if err := n.Amount().Validate(); err != nil {
		return fault.Wrap(err, "node %s", n.Name)
	}
	if n.CPU == 0 || n.Memory == 0 {
		return fault.New(fault.Invalid, "node %q: set cpu and memory", n.Name)
	}
	return settings("label of node "+n.Name, n.Labels)
}

var (
	nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// settings refuses maps that are too large, and keys that cannot be written.
func settings(what string, m map[string]string) error {
	if len(m) > maxSettings {
		return fault.New(fault.Invalid, "%d entries of %s exceed the limit of %d", len(m), what, maxSettings)
	}
	for k, v := range m {
		if k == "" || len(k) > 128 || strings.ContainsFunc(k, unicode.IsControl) {
			return fault.New(fault.Invalid, "%s: %.80q is not a valid name", what, k)
		}
		if len(v) > maxSetting || strings.ContainsRune(v, 0) {
			return fault.New(fault.Invalid, "%s %s: the value has %d bytes or contains a zero byte; the limit is %d bytes", what, k, len(v), maxSetting)
		}
	}
	return nil
}

// PoolSpec is the manifest of kind Pool.
type PoolSpec struct {
	Zone         residency.Zone      `json:"zone,omitempty" doc:"Zone of the nodes; with engine local it is the server's, the default"`
	Engine       string              `json:"engine,omitempty" doc:"Engine that runs the workloads; default local"`
	Mode         Mode                `json:"mode,omitempty" doc:"exclusive or delegated; default exclusive"`
	Nodes        []Node              `json:"nodes,omitempty" doc:"Nodes; default those that the engine lists, or this machine"`
	Isolation    scheduler.Isolation `json:"isolation,omitempty" doc:"none, process, sandbox, container or node; default the strongest that the engine supports"`
	PricePerHour float64             `json:"price_per_hour,omitempty" doc:"Price per node and hour, in the installation's currency; overrides cost"`
	PowerWatts   float64             `json:"power_watts,omitempty" doc:"Power of a busy node in watts"`
	Cost         *cost.Price         `json:"cost,omitempty" doc:"Cost of a node over time: rented or owned"`
	Closed       string              `json:"closed,omitempty" doc:"Reason why no workloads start; empty means open"`
	Options      map[string]string   `json:"options,omitempty" doc:"Engine options: partition, account, queue, image, node selectors, shared and so on"`
	Env          map[string]string   `json:"env,omitempty" doc:"Environment variables of every job in the pool, such as NCCL_SOCKET_IFNAME; a job's own take precedence"`
	Ahead        float64             `json:"ahead,omitempty" doc:"Additional workloads submitted to the engine's own queue, as a fraction of each node's capacity, or of the pool's capacity in a delegated pool, such as 0.5; not supported by the local engine; default 0"`
	Topology     []string            `json:"topology,omitempty" doc:"Node labels that describe the topology, outermost first, such as fabric and rack: gangs are placed close together"`
	Maintenance  []Window            `json:"maintenance,omitempty" doc:"Maintenance windows: a workload that would still run when a window begins is not started; running workloads that save checkpoints are preempted"`
	Hardware     *Hardware           `json:"hardware,omitempty" doc:"Hardware generation and end of vendor support"`
	Elastic      *Elastic            `json:"elastic,omitempty" doc:"Rents nodes when they cost less than waiting, and releases them"`
}

// Validate refuses what no pool may be. Error: fault.Invalid.
func (s PoolSpec) Validate() error {
	if s.Zone != "" {
		if err := s.Zone.Validate(); err != nil {
			return err
		}
	}
	if s.Mode != "" && s.Mode != Exclusive && s.Mode != Delegated {
		return fault.New(fault.Invalid, "mode: unknown mode %.40q", string(s.Mode)).WithHint("Use exclusive or delegated.")
	}
	if s.Isolation != "" && !s.Isolation.Known() {
		return fault.New(fault.Invalid, "isolation: unknown isolation %.40q", string(s.Isolation)).
			WithHint("Use none, process, sandbox, container or node.")
	}
	if !(s.PricePerHour >= 0) || !(s.PowerWatts >= 0) || math.IsInf(s.PricePerHour, 0) || math.IsInf(s.PowerWatts, 0) {
		return fault.New(fault.Invalid, "price_per_hour and power_watts must not be negative")
	}
	if !(s.Ahead >= 0 && s.Ahead <= maxAhead) {
		return fault.New(fault.Invalid, "ahead: must be between 0 and %d", maxAhead)
	}
	if len(s.Closed) > 200 {
		return fault.New(fault.Invalid, "closed: %d bytes exceed the limit of 200", len(s.Closed))
	}
	if len(s.Nodes) > maxNodes {
		return fault.New(fault.Invalid, "nodes: a pool has at most %d nodes, not %d", maxNodes, len(s.Nodes))
	}
	if s.Hardware != nil {
		if err := s.Hardware.validate(); err != nil {
			return fault.Wrap(err, "hardware")
		}
	}
	if s.Elastic != nil {
		if err := s.Elastic.validate(); err != nil {
			return fault.Wrap(err, "elastic")
		}
		if len(s.Nodes) > 0 {
			return fault.New(fault.Invalid, "nodes: not allowed in an elastic pool").WithHint("Remove nodes and set elastic.node, the resources of a rented node.")
		}
	}
	seen := map[string]bool{}
	for _, n := range s.Nodes {
		if err := n.validate(); err != nil {
			return err
		}
		if seen[n.Name] {
			return fault.New(fault.Invalid, "duplicate node %q", n.Name)
		}
		seen[n.Name] = true
	}
	if err := settings("option", s.Options); err != nil {
		return err
	}
	if err := validTopology(s.Topology); err != nil {
		return err
	}
	if err := validWindows(s.Maintenance); err != nil {
		return err
	}
	for k := range s.Env {
		if !variable.MatchString(k) {
			return fault.New(fault.Invalid, "env: %.80q is not a valid variable name", k)
		}
		if strings.HasPrefix(k, "FALAJ_") || strings.HasPrefix(k, "MLFLOW_TRACKING_") || k == "MLFLOW_RUN_ID" {
			return fault.New(fault.Invalid, "env: %s is reserved for Falaj", k)
		}
	}
	return settings("variable", s.Env)
}

// Pool is a set of like nodes in one zone behind one engine.
type Pool struct {
	Name         PoolName            `json:"name"`
	Zone         residency.Zone      `json:"zone"`
	Engine       string              `json:"engine"`
	Mode         Mode                `json:"mode"`
	Nodes        []PoolNode          `json:"nodes"`
	Isolation    scheduler.Isolation `json:"isolation"`
	PricePerHour float64             `json:"price_per_hour"`
	PowerWatts   float64             `json:"power_watts,omitempty"`
	Cost         *cost.Price         `json:"cost,omitempty"`
	Closed       string              `json:"closed,omitempty"`
	Options      map[string]string   `json:"options,omitempty"`
	Env          map[string]string   `json:"env,omitempty"`
	Ahead        float64             `json:"ahead,omitempty"`
	Topology     []string            `json:"topology,omitempty"`
	Maintenance  []Window            `json:"maintenance,omitempty"`
	Hardware     *Hardware           `json:"hardware,omitempty"`
	Elastic      *Elastic            `json:"elastic,omitempty"`
	CreatedAt    time.Time           `json:"created_at"`
	UpdatedAt    time.Time           `json:"updated_at"`
	Revision     int64               `json:"revision"` // grows with each change; the ETag

	Kind string `json:"kind,omitempty"` // of its engine: local, slurm, kube, ray
	// MachineZone is where the machines are that run its work: its zone, but the server's
	// for a simulated cloud. Misplaced says why nothing is placed here: its zone is not
	// that of its machine.
	MachineZone residency.Zone `json:"machine_zone,omitempty"`
	Misplaced   string         `json:"misplaced,omitempty"`

	State    string          `json:"state"`             // open, or closed and why
	Remote   bool            `json:"remote"`            // runs work on other machines than the server's
	Trouble  string          `json:"trouble,omitempty"` // why the engine could not tell its nodes last time
	Support  string          `json:"support,omitempty"` // what people should know of its hardware
	Capacity resource.Amount `json:"capacity"`          // of all nodes
	Used     resource.Amount `json:"used"`              // by what runs now
	Running  int             `json:"running"`           // workloads that have their place
	Renting  *Renting        `json:"renting,omitempty"` // of an elastic pool

	// Listed are the nodes of the manifest, Seen those that the engine reported.
	// Without Listed all of Seen are the pool's Nodes.
	Listed []Node     `json:"-"`
	Seen   []PoolNode `json:"-"`
	// Warned is the end of support that the last warning named.
	Warned string `json:"-"`
}

// Spec is the manifest that would make the pool as it is.
func (p Pool) Spec() PoolSpec {
	return PoolSpec{
		Zone: p.Zone, Engine: p.Engine, Mode: p.Mode, Nodes: p.Listed, Isolation: p.Isolation,
		PricePerHour: p.PricePerHour, PowerWatts: p.PowerWatts, Cost: p.Cost, Closed: p.Closed, Options: p.Options, Env: p.Env,
		Ahead: p.Ahead, Topology: p.Topology, Maintenance: p.Maintenance, Hardware: p.Hardware, Elastic: p.Elastic,
	}
}

// node finds a node by name; a delegated pool's placement names none and gets
// its first.
func (p Pool) node(name string) Node {
	if i := slices.IndexFunc(p.Nodes, func(n PoolNode) bool { return n.Name == name }); i >= 0 {
		return p.Nodes[i].Node
	}
	if p.Elastic != nil { // it is gone
		return p.nodeToCome()
	}
	if len(p.Nodes) > 0 {
		return p.Nodes[0].Node
	}
	return Node{}
}

// capacity is the sum of the nodes.
func (p Pool) capacity() resource.Amount {
	var sum resource.Amount
	for _, n := range p.Nodes {
		sum = sum.Plus(n.Amount())
	}
	return sum
}
