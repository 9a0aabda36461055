package cost

import (
	"fmt"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Case is a workload that could run on own nodes or on rented ones.
type Case struct {
	Own    Owned
	Watts  float64 // of a busy own node
	Rented Rented
	Nodes  int // that would be owned
	// NodeHours are what the workload takes in a month on own nodes.
	NodeHours float64
	// Speed is how many own nodes a rented one does the work of; 0 is 1.
	Speed  float64
	Egress float64 // GiB a month that would leave the provider
	Now    time.Time
}

// Comparison is own against rented, each for a month.
type Comparison struct {
	Nodes       int     `json:"nodes" doc:"Number of owned nodes"`
	NodeHours   float64 `json:"node_hours_per_month" doc:"Hours of owned nodes that the workload needs"`
	Utilisation float64 `json:"utilisation" doc:"Utilisation of the owned nodes by the workload"`
	OwnFixed    float64 `json:"own_fixed_per_month" doc:"Fixed cost of the owned nodes"`
	OwnEnergy   float64 `json:"own_energy_per_node_hour" doc:"Energy cost of a busy owned node, mean over a week"`
	RentedHour  float64 `json:"rented_per_node_hour" doc:"Rented cost of the work that an owned node does in an hour, including egress; mean over a week"`
	Own         float64 `json:"own_per_month"`
	Rented      float64 `json:"rented_per_month"`
	// BreakEven is the utilisation from which owning is cheaper; absent when it
	// never is.
	BreakEven *float64 `json:"break_even_utilisation,omitempty"`
	// Months until what is saved by not renting has paid the purchase; absent when
	// nothing is saved.
	Months *float64 `json:"break_even_months,omitempty"`
	Answer string   `json:"answer"`
}

// Compare says what is cheaper, and from when. With a utilisation u of n own nodes
//
//	own(u)    = n × 730 × (fixed + u × energy)
//	rented(u) = n × 730 × u × rent
//	u*        = fixed / (rent − energy)
//	months    = purchase / (730 × (u × (rent − energy) − running))
//
// where fixed is Owned.Fixed, and running its part without the purchase. Error:
// fault.Invalid.
func Compare(c Case) (Comparison, error) {
	if c.Speed == 0 {
		c.Speed = 1
	}
	for name, v := range map[string]float64{"speed": c.Speed, "egress": c.Egress, "node-hours": c.NodeHours, "nodes": float64(c.Nodes)} {
		if err := Sound(name, v); err != nil {
			return Comparison{}, err
		}
	}
	if c.NodeHours == 0 {
		return Comparison{}, fault.New(fault.Invalid, "there is no measured usage to compare").WithHint("Choose a longer period with --since, or another project or job.")
	}
	if need := NodesFor(c.NodeHours); c.Nodes < need {
		return Comparison{}, fault.New(fault.Invalid, "the workload needs %.0f node-hours a month, and %d nodes have %.0f", c.NodeHours, c.Nodes, float64(c.Nodes)*HoursPerMonth).
			WithHint("Compare with --nodes %d or more.", need)
	}
	own, err := Price{Owned: &c.Own}.Rate(c.Watts)
	if err != nil {
		return Comparison{}, err
	}
	rented, err := Price{Rented: &c.Rented}.Rate(0)
	if err != nil {
		return Comparison{}, err
	}
	hours := float64(c.Nodes) * HoursPerMonth
	r := Comparison{
		Nodes: c.Nodes, NodeHours: c.NodeHours, Utilisation: c.NodeHours / hours,
		OwnFixed:   hours * c.Own.Fixed(),
		OwnEnergy:  own.mean(c.Now) - own.fixed,
		RentedHour: rented.mean(c.Now)/c.Speed + c.Egress*c.Rented.Egress/c.NodeHours,
	}
	r.Own, r.Rented = r.at(r.Utilisation)
	if gain := r.RentedHour - r.OwnEnergy; gain > 0 {
		if u := c.Own.Fixed() / gain; u <= 1 {
			r.BreakEven = &u
		}
		if saved := r.NodeHours*gain - hours*c.Own.running(); saved > 0 {
			months := float64(c.Nodes) * c.Own.Purchase / saved
			r.Months = &months
		}
	}
	r.Answer = r.answer(c)
	return r, nil
}

// NodesFor is how many nodes have so many hours in a month.
func NodesFor(hours float64) int {
	return max(int(math.Ceil(min(hours/HoursPerMonth-1e-9, math.MaxInt32))), 1)
}

// Point is a point of both lines.
type Point struct {
	Utilisation float64 `json:"utilisation"`
	Own         float64 `json:"own"`
	Rented      float64 `json:"rented"`
}

// Chart gives both costs of a month for utilisations from 0 to 1.
func (c Comparison) Chart() []Point {
	const steps = 20
	points := make([]Point, steps+1)
	for i := range points {
		u := float64(i) / steps
		own, rented := c.at(u)
		points[i] = Point{u, own, rented}
	}
	return points
}

// at is what a month costs at a utilisation.
func (c Comparison) at(u float64) (own, rented float64) {
	busy := float64(c.Nodes) * HoursPerMonth * u
	return c.OwnFixed + busy*c.OwnEnergy, busy * c.RentedHour
}

func (c Comparison) answer(in Case) string {
	switch {
	case c.BreakEven == nil:
		return "renting is cheaper at every utilisation"
	case c.Utilisation < *c.BreakEven:
		return fmt.Sprintf("renting is cheaper: the break-even utilisation is %.0f %%, and the workload reaches %.0f %%", 100**c.BreakEven, 100*c.Utilisation)
	case c.Months != nil && *c.Months <= 12*in.Own.Lifetime:
		return fmt.Sprintf("owning is cheaper: the workload reaches a utilisation of %.0f %%, the break-even utilisation is %.0f %%, and the purchase is paid back after %.1f months", 100*c.Utilisation, 100**c.BreakEven, *c.Months)
	}
	return fmt.Sprintf("owning is cheaper because of the nodes' residual value: the workload reaches a utilisation of %.0f %%, and the break-even utilisation is %.0f %%", 100*c.Utilisation, 100**c.BreakEven)
}
