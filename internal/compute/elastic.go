package compute

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// Limits and defaults of elastic pools.
const (
	maxStartup    = 6 * time.Hour
	maxIdle       = 7 * 24 * time.Hour
	defaultIdle   = 10 * time.Minute
	defaultNotice = 2 * time.Minute
	maxRate       = 1e6 // of interruptions and transfers, an hour
)

// simulatedCloud is the provisioner whose nodes are this machine.
const simulatedCloud = "simulated"

// Elastic is how the nodes of a pool come and go.
type Elastic struct {
	Provisioner  string            `json:"provisioner" doc:"Provisioner of the nodes: slurm, or simulated for a simulated cloud"`
	Min          int               `json:"min,omitempty" doc:"Minimum number of nodes, kept also without demand"`
	Max          int               `json:"max" doc:"Maximum number of nodes; 0 releases all"`
	Startup      Duration          `json:"startup" doc:"Expected time until a node is ready; replaced by measurements of the last day"`
	Idle         Duration          `json:"idle,omitempty" doc:"A node without workloads is released after this time; default 10m"`
	Node         ElasticNode       `json:"node,omitzero" doc:"Resources of a node; on Slurm the default comes from Slurm"`
	Spot         *Spot             `json:"spot,omitempty" doc:"Spot nodes, which may be reclaimed; their price is cost.rented.spot"`
	TransferRate float64           `json:"transfer_gib_per_hour,omitempty" doc:"GiB of data transferred to a node per hour; default unlimited"`
	Simulated    *ElasticSimulated `json:"simulated,omitempty" doc:"Behaviour of the simulated cloud"`
}

// ElasticNode is what each node to come has.
type ElasticNode struct {
	CPU             resource.CPU       `json:"cpu,omitempty" doc:"Cores, such as 16"`
	Memory          resource.Bytes     `json:"memory,omitempty" doc:"Memory, such as 64GiB"`
	MemoryBandwidth resource.Bandwidth `json:"memory_bandwidth,omitempty" doc:"Memory bandwidth, such as 300GB/s; default jobs are not limited by it"`
	Accelerators    map[string]int64   `json:"accelerators,omitempty" doc:"Count of each accelerator by resource name"`
	Labels          map[string]string  `json:"labels,omitempty" doc:"Node labels"`
}

// Spot is the risk of nodes that may be taken away.
type Spot struct {
	Interruptions float64 `json:"interruptions_per_hour" doc:"Average number of times per hour that a node is reclaimed: 0.05 is once in 20 hours"`
}

// ElasticSimulated says how a cloud behaves that is not there.
type ElasticSimulated struct {
	Startup        Duration `json:"startup,omitempty" doc:"Time until a node is ready; default the expected time"`
	Capacity       *int     `json:"capacity,omitempty" doc:"Total nodes of the simulated cloud, beyond which requests fail; default max"`
	InterruptAfter Duration `json:"interrupt_after,omitempty" doc:"A node is reclaimed this long after it became ready; default never"`
	Notice         Duration `json:"notice,omitempty" doc:"Notice before a node is reclaimed; default 2m"`
}

func (e Elastic) validate() error {
	between := func(name string, d Duration, most time.Duration) error {
		if d < 0 || time.Duration(d) > most {
			return fault.New(fault.Invalid, "%s %s is not between 0 and %s", name, time.Duration(d), most)
		}
		return nil
	}
	switch {
	case e.Provisioner == "":
		return fault.New(fault.Invalid, "provisioner: required").WithHint("Set slurm, or simulated for a simulated cloud.")
	case e.Min < 0 || e.Max < 0:
		return fault.New(fault.Invalid, "min %d and max %d must not be negative", e.Min, e.Max)
	case e.Min > e.Max:
		return fault.New(fault.Invalid, "min %d is more than max %d", e.Min, e.Max)
	case e.Max > maxNodes:
		return fault.New(fault.Invalid, "max: %d exceeds the limit of %d nodes per pool", e.Max, maxNodes)
	case e.Startup == 0:
		return fault.New(fault.Invalid, "startup: required").WithHint("Set the time until a node is ready, such as 90s; measurements replace it later.")
	case !(e.TransferRate >= 0 && e.TransferRate <= maxRate):
		return fault.New(fault.Invalid, "transfer_gib_per_hour: %g is not between 0 and %g", e.TransferRate, maxRate)
	case e.Spot != nil && !(e.Spot.Interruptions >= 0 && e.Spot.Interruptions <= maxRate):
		return fault.New(fault.Invalid, "spot.interruptions_per_hour: %g is not between 0 and %g", e.Spot.Interruptions, maxRate)
	case e.Simulated != nil && e.Provisioner != simulatedCloud:
		return fault.New(fault.Invalid, "simulated: not allowed with provisioner %.40s", e.Provisioner)
	case e.Provisioner == simulatedCloud && (e.Node.CPU == 0 || e.Node.Memory == 0):
		return fault.New(fault.Invalid, "node: set cpu and memory").WithHint("Set the resources of a rented node, such as node: {cpu: 4, memory: 16GiB}.")
	}
	if err := between("startup", e.Startup, maxStartup); err != nil {
		return err
	}
	if err := between("idle", e.Idle, maxIdle); err != nil {
		return err
	}
	if s := e.Simulated; s != nil {
		if s.Capacity != nil && *s.Capacity < 0 {
			return fault.New(fault.Invalid, "simulated.capacity: %d is negative", *s.Capacity)
		}
		for name, d := range map[string]Duration{"simulated.startup": s.Startup, "simulated.interrupt_after": s.InterruptAfter, "simulated.notice": s.Notice} {
			if err := between(name, d, 365*24*time.Hour); err != nil {
				return err
			}
		}
	}
	if err := e.Node.amount().Validate(); err != nil {
		return fault.Wrap(err, "node")
	}
	return settings("label of node", e.Node.Labels)
}

func (n ElasticNode) amount() resource.Amount {
	return resource.Amount{CPU: n.CPU, Memory: n.Memory, MemoryBandwidth: n.MemoryBandwidth, Accelerators: n.Accelerators}
}

func (e Elastic) idle() time.Duration {
	if e.Idle == 0 {
		return defaultIdle
	}
	return time.Duration(e.Idle)
}

// provider is the pool as its provisioner sees it.
func (p Pool) provider() provisioner.Pool {
	out := provisioner.Pool{Name: string(p.Name), Max: p.Elastic.Max, Options: p.Options}
	if p.Elastic.Provisioner != simulatedCloud {
		return out
	}
	s := provisioner.Simulated{Startup: time.Duration(p.Elastic.Startup), Capacity: p.Elastic.Max, Notice: defaultNotice}
	if set := p.Elastic.Simulated; set != nil {
		if set.Startup > 0 {
			s.Startup = time.Duration(set.Startup)
		}
		if set.Capacity != nil {
			s.Capacity = *set.Capacity
		}
		if set.Notice > 0 {
			s.Notice = time.Duration(set.Notice)
		}
		s.InterruptAfter = time.Duration(set.InterruptAfter)
	}
	out.Simulated = &s
	return out
}

// Rental is a node that was asked for, from the wish to its end. There is at most
// one that has not ended for each place of a pool.
type Rental struct {
	ID      string
	Pool    PoolName
	Node    string
	For     WorkloadID // whose need it was; empty is the pool's minimum
	Asked   time.Time  // the wish, and the same for all nodes of a need
	Began   time.Time  // when the provider had it, and it cost; zero is not yet
	Ready   time.Time  // when it was up
	Opened  time.Time  // when it took work: with the others of its need
	Leaving time.Time  // when it was to go
	Ended   time.Time  // when it was gone
	Failed  bool       // the provider had none, or it did not come up
	Why     string     // it leaves, or has failed
}

// open reports that the node is there, will be, or may be.
func (r Rental) open() bool { return r.Ended.IsZero() }

// takes reports that the node takes work.
func (r Rental) takes() bool { return !r.Opened.IsZero() && r.Leaving.IsZero() && r.Ended.IsZero() }

// cost is over which interval it costs, as far as it falls between two instants.
func (r Rental) cost(from, until time.Time) (time.Time, time.Time) {
	if r.Began.IsZero() {
		return from, from
	}
	if r.Began.After(from) {
		from = r.Began
	}
	if !r.Ended.IsZero() && r.Ended.Before(until) {
		until = r.Ended
	}
	if until.Before(from) {
		until = from
	}
	return from, until
}

// Wish is how many nodes an elastic pool shall have, as last decided.
type Wish struct {
	Pool    PoolName
	Nodes   int
	Why     []string
	Decided time.Time // when that changed
}

// Renting is how an elastic pool stands.
type Renting struct {
	Wished  int       `json:"wished" doc:"Desired nodes"`
	Ready   int       `json:"ready" doc:"Nodes that are ready"`
	Coming  int       `json:"coming" doc:"Nodes that are starting, or wait for others of the same request"`
	Leaving int       `json:"leaving" doc:"Nodes that are being released or reclaimed"`
	Startup Duration  `json:"startup" doc:"Startup time of a node: the median of the last day, or the expected time"`
	Why     []string  `json:"why,omitempty" doc:"Reason for the desired number"`
	Decided time.Time `json:"decided_at,omitzero" doc:"When the desired number was decided"`
	Cost    float64   `json:"cost_today" doc:"Cost of the nodes rented since midnight (UTC), used or idle"`
}

// ElasticStore is what elastic pools need from a database.
type ElasticStore interface {
	// Rentals lists those that have not ended, and those that ended after t, the
	// oldest first.
	Rentals(ctx context.Context, tx *store.Tx, t time.Time) ([]Rental, error)
	// SaveRental inserts or replaces. Error: fault.Conflict when another one that has
	// not ended is at the same place.
	SaveRental(ctx context.Context, tx *store.Tx, r Rental) error
	// Wishes lists all; SaveWish inserts or replaces.
	Wishes(ctx context.Context, tx *store.Tx) ([]Wish, error)
	SaveWish(ctx context.Context, tx *store.Tx, w Wish) error
}
