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
	Provisioner  string            `json:"provisioner" doc:"Who rents the nodes: slurm, or simulated for a cloud that is not there"`
	Min          int               `json:"min,omitempty" doc:"Nodes that are there also when nobody needs them"`
	Max          int               `json:"max" doc:"Nodes that there may be at once; 0 lets those that are there go"`
	Startup      Duration          `json:"startup" doc:"How long a node is expected to take until it takes work; what was measured in the last day wins"`
	Idle         Duration          `json:"idle,omitempty" doc:"A node without work is given back after so long; default 10m"`
	Node         ElasticNode       `json:"node,omitzero" doc:"What a node has; on Slurm the default is what Slurm says"`
	Spot         *Spot             `json:"spot,omitempty" doc:"The nodes may be taken away; their price is cost.rented.spot"`
	TransferRate float64           `json:"transfer_gib_per_hour,omitempty" doc:"GiB of data that get there in an hour; default at once"`
	Simulated    *ElasticSimulated `json:"simulated,omitempty" doc:"How the simulated cloud behaves"`
}

// ElasticNode is what each node to come has.
type ElasticNode struct {
	CPU             resource.CPU       `json:"cpu,omitempty" doc:"Cores, such as 16"`
	Memory          resource.Bytes     `json:"memory,omitempty" doc:"Memory, such as 64GiB"`
	MemoryBandwidth resource.Bandwidth `json:"memory_bandwidth,omitempty" doc:"Bytes a second from and to memory, such as 300GB/s; default jobs are not limited by it"`
	Accelerators    map[string]int64   `json:"accelerators,omitempty" doc:"Count of each accelerator by resource name"`
	Labels          map[string]string  `json:"labels,omitempty" doc:"What it is like"`
}

// Spot is the risk of nodes that may be taken away.
type Spot struct {
	Interruptions float64 `json:"interruptions_per_hour" doc:"How often in an hour a node is taken away, on average: 0.05 is once in 20 hours"`
}

// ElasticSimulated says how a cloud behaves that is not there.
type ElasticSimulated struct {
	Startup        Duration `json:"startup,omitempty" doc:"How long a node takes until it takes work; default what is expected"`
	Capacity       *int     `json:"capacity,omitempty" doc:"Nodes that there are in all: who asks for more gets none; default max"`
	InterruptAfter Duration `json:"interrupt_after,omitempty" doc:"A node is taken away so long after it was ready; default never"`
	Notice         Duration `json:"notice,omitempty" doc:"How long before that it is said; default 2m"`
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
		return fault.New(fault.Invalid, "provisioner is missing").WithHint("Write slurm, or simulated for a cloud that is not there.")
	case e.Min < 0 || e.Max < 0:
		return fault.New(fault.Invalid, "min %d and max %d must not be negative", e.Min, e.Max)
	case e.Min > e.Max:
		return fault.New(fault.Invalid, "min %d is more than max %d", e.Min, e.Max)
	case e.Max > maxNodes:
		return fault.New(fault.Invalid, "max is %d, and a pool has at most %d nodes", e.Max, maxNodes)
	case e.Startup == 0:
		return fault.New(fault.Invalid, "startup is missing").WithHint("Write how long a node takes until it takes work, such as 90s; what is measured later wins.")
	case !(e.TransferRate >= 0 && e.TransferRate <= maxRate):
		return fault.New(fault.Invalid, "transfer_gib_per_hour is %g, and must be 0 to %g", e.TransferRate, maxRate)
	case e.Spot != nil && !(e.Spot.Interruptions >= 0 && e.Spot.Interruptions <= maxRate):
		return fault.New(fault.Invalid, "spot.interruptions_per_hour is %g, and must be 0 to %g", e.Spot.Interruptions, maxRate)
	case e.Simulated != nil && e.Provisioner != simulatedCloud:
		return fault.New(fault.Invalid, "simulated is there and the provisioner is %.40s", e.Provisioner)
	case e.Provisioner == simulatedCloud && (e.Node.CPU == 0 || e.Node.Memory == 0):
		return fault.New(fault.Invalid, "node needs cpu and memory").WithHint("Say what each node to come has: node: {cpu: 4, memory: 16GiB}.")
	}
	if err := between("startup", e.Startup, maxStartup); err != nil {
		return err
	}
	if err := between("idle", e.Idle, maxIdle); err != nil {
		return err
	}
	if s := e.Simulated; s != nil {
		if s.Capacity != nil && *s.Capacity < 0 {
			return fault.New(fault.Invalid, "simulated.capacity is %d, and must not be negative", *s.Capacity)
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
	Wished  int       `json:"wished" doc:"Nodes that it shall have"`
	Ready   int       `json:"ready" doc:"That take work"`
	Coming  int       `json:"coming" doc:"That start up, or wait for others that are wanted with them"`
	Leaving int       `json:"leaving" doc:"That are given back, or taken away"`
	Startup Duration  `json:"startup" doc:"How long a node takes: the median of the last day, or what the manifest expects"`
	Why     []string  `json:"why,omitempty" doc:"Why it shall have so many"`
	Decided time.Time `json:"decided_at,omitzero" doc:"Since when"`
	Cost    float64   `json:"cost_today" doc:"Of what was rented since midnight (UTC), used or not"`
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
