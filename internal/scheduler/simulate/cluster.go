package simulate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Cluster is groups of like nodes.
type Cluster struct{ Groups []Group }

// Group are the nodes of one type of GPU.
type Group struct {
	Type      string   `json:"type"` // unique in the cluster; empty where there is one
	Nodes     int      `json:"nodes"`
	GPUs      int      `json:"gpus_per_node"`
	Price     float64  `json:"price_per_hour,omitempty"` // of a node
	Synthetic bool     `json:"synthetic,omitempty"`      // its profiles are others', scaled
	Down      []Outage `json:"down,omitempty"`
}

// Outage is a time in which the last nodes of a group are down, from one second to
// before another.
type Outage struct {
	From  int `json:"from_s"`
	To    int `json:"to_s"`
	Nodes int `json:"nodes"`
}

// Uniform is a cluster of like nodes.
func Uniform(nodes, gpus int) Cluster {
	return Cluster{Groups: []Group{{Nodes: nodes, GPUs: gpus}}}
}

// Bounds of a cluster.
const (
	maxNodes  = 10_000
	maxGPUs   = 64
	maxGroups = 64
	maxDown   = 1000
)

// Validate says whether the cluster can be simulated.
func (c Cluster) Validate() error {
	if len(c.Groups) == 0 || len(c.Groups) > maxGroups {
		return fault.New(fault.Invalid, "a cluster cannot have %d groups of nodes", len(c.Groups)).WithHint("Give 1 to %d groups.", maxGroups)
	}
	all := 0
	for i, g := range c.Groups {
		if g.Nodes < 1 || g.Nodes > maxNodes || g.GPUs < 1 || g.GPUs > maxGPUs {
			return fault.New(fault.Invalid, "%s%d nodes with %d GPUs each", of(g.Type, "a cluster of "), g.Nodes, g.GPUs).
				WithHint("Give 1 to %d nodes with 1 to %d GPUs each.", maxNodes, maxGPUs)
		}
		if slices.ContainsFunc(c.Groups[:i], func(o Group) bool { return o.Type == g.Type }) {
			return fault.New(fault.Invalid, "duplicate type %q", g.Type)
		}
		if !(g.Price >= 0 && g.Price <= maxNumber) {
			return fault.New(fault.Invalid, "%s%v is not a price", of(g.Type, ""), g.Price)
		}
		if len(g.Down) > maxDown {
			return fault.New(fault.Invalid, "%s%d times at which nodes are down, at most %d", of(g.Type, ""), len(g.Down), maxDown)
		}
		for _, o := range g.Down {
			if o.From < 0 || o.To <= o.From || o.To > maxTime || o.Nodes < 1 || o.Nodes > g.Nodes {
				return fault.New(fault.Invalid, "%s%d of %d nodes are down from %d s to %d s", of(g.Type, ""), o.Nodes, g.Nodes, o.From, o.To).
					WithHint("The end is after the beginning and within ten years, and no more nodes are down than there are.")
			}
		}
		if all += g.Nodes; all > maxNodes {
			return fault.New(fault.Invalid, "a cluster of more than %d nodes", maxNodes)
		}
	}
	return nil
}

func of(name, without string) string {
	if name == "" {
		return without
	}
	return "type " + name + ": "
}

// Total is the number of GPUs.
func (c Cluster) Total() (sum int) {
	for _, g := range c.Groups {
		sum += g.Nodes * g.GPUs
	}
	return sum
}

// String is "16 nodes with 4 GPUs each", or "16 × 4 v100 and 4 × 8 a100".
func (c Cluster) String() string {
	if len(c.Groups) == 1 && c.Groups[0].Type == "" {
		return fmt.Sprintf("%d nodes with %d GPUs each", c.Groups[0].Nodes, c.Groups[0].GPUs)
	}
	parts := make([]string, len(c.Groups))
	for i, g := range c.Groups {
		parts[i] = fmt.Sprintf("%d × %d %s", g.Nodes, g.GPUs, g.Type)
		if g.Synthetic {
			parts[i] += " (synthetic)"
		}
	}
	return strings.Join(parts, " and ")
}

// nodes are those of the cluster at a time, the groups one after the other.
func (c Cluster) nodes(now int) []Node {
	var out []Node
	for _, g := range c.Groups {
		down := 0
		for _, o := range g.Down {
			if o.From <= now && now < o.To {
				down = max(down, o.Nodes)
			}
		}
		for i := range g.Nodes {
			n := Node{GPUs: g.GPUs, Device: g.Type}
			if i >= g.Nodes-down {
				n.GPUs = 0
			}
			out = append(out, n)
		}
	}
	return out
}

// turns are the times at which nodes go down or come back.
func (c Cluster) turns() []int {
	var out []int
	for _, g := range c.Groups {
		for _, o := range g.Down {
			out = append(out, o.From, o.To)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// up is how many GPU-seconds a group has until a time.
func (g Group) up(until float64) float64 {
	// At each moment the largest outage counts: others are of the same nodes.
	at := []float64{0, until}
	for _, o := range g.Down {
		at = append(at, min(float64(o.From), until), min(float64(o.To), until))
	}
	slices.Sort(at)
	sum := 0.0
	for i := range at[1:] {
		down := 0
		for _, o := range g.Down {
			if float64(o.From) <= at[i] && at[i] < float64(o.To) {
				down = max(down, o.Nodes)
			}
		}
		sum += (at[i+1] - at[i]) * float64((g.Nodes-down)*g.GPUs)
	}
	return sum
}
