package simulate

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Size is a cluster that was tried.
type Size struct {
	Nodes   int     `json:"nodes"` // of the group that is sized
	GPUs    int     `json:"gpus"`  // of the cluster
	Meets   bool    `json:"meets"`
	GaveUp  bool    `json:"gave_up,omitempty"` // as soon as too many were late: Late is at least that, the rest is not known
	Late    int     `json:"late"`
	AvgJCT  float64 `json:"avg_jct_s,omitempty"`
	P99JCT  float64 `json:"p99_jct_s,omitempty"`
	Span    float64 `json:"makespan_s,omitempty"`
	Used    float64 `json:"utilisation,omitempty"`
	PerHour float64 `json:"price_per_hour,omitempty"` // of all nodes
}

// Fill sets the results from the traces of the workloads.
func (s *Size) Fill(traces []Trace, allowed int) {
	for _, t := range traces {
		s.GaveUp = s.GaveUp || t.GaveUp
	}
	if s.GaveUp {
		s.Late = allowed + 1
		return
	}
	p := Summarise("", traces).Pooled
	s.Late, s.AvgJCT, s.P99JCT, s.Span, s.Used = p.Late, p.AvgJCT, p.P99JCT, p.Makespan, p.Utilisation
	s.Meets = s.Late <= allowed
}

// Sizing is the smallest cluster that meets deadlines.
type Sizing struct {
	Group string  `json:"group,omitempty"` // the group that is sized
	Nodes int     `json:"nodes"`           // of it; 0 when none up to Most is enough
	Most  int     `json:"most"`
	Meet  float64 `json:"meet"` // share of the jobs with a deadline that may not be late
	Due   int     `json:"due"`  // jobs with a deadline, of all workloads
	// Every says that every size up to Most was tried. Otherwise the search assumes that
	// more nodes are never worse, which does not hold for every scheduler (Graham 1969).
	Every bool `json:"every"`
	// Anomalies are tried sizes that meet the deadlines although a larger size does not.
	Anomalies []int  `json:"anomalies,omitempty"`
	Tried     []Size `json:"tried"`
}

// Allowed is how many jobs may be late.
func (s *Sizing) Allowed() int { return s.Due - int(math.Ceil(s.Meet*float64(s.Due)-1e-9)) }

// Check reports an error if there is nothing to search for.
func (s *Sizing) Check() error {
	switch {
	case !(s.Meet > 0 && s.Meet <= 1):
		return fault.New(fault.Invalid, "a share of %v of the jobs is not more than 0 and at most 1", s.Meet)
	case s.Most < 1 || s.Most > maxNodes:
		return fault.New(fault.Invalid, "the node limit %d is not between 1 and %d", s.Most, maxNodes)
	case s.Due == 0:
		return fault.New(fault.Invalid, "no job has a deadline").WithHint("Give --deadline, or a column deadline in the workload: seconds from the submission.")
	}
	return nil
}

// Search finds the size and fills in s. try simulates several sizes at once, and returns them in the
// same order. The result was simulated, and so was the next smaller size.
func (s *Sizing) Search(atOnce int, try func(nodes []int) ([]Size, error)) error {
	tried := func(nodes ...int) error {
		sizes, err := try(nodes)
		s.Tried = append(s.Tried, sizes...)
		slices.SortFunc(s.Tried, func(a, b Size) int { return a.Nodes - b.Nodes })
		return err
	}
	if s.Every {
		var all []int
		for n := range s.Most {
			all = append(all, n+1)
		}
		if err := tried(all...); err != nil {
			return err
		}
	} else if err := tried(s.Most); err != nil {
		return err
	}
	low, high := 0, s.Most // low is not enough
	for !s.Every && s.Tried[len(s.Tried)-1].Meets && high-low > 1 {
		if err := tried(sections(low, high, atOnce)...); err != nil {
			return err
		}
		for _, t := range s.Tried {
			if t.Meets {
				high = t.Nodes
				break
			}
			low = t.Nodes
		}
	}
	bad := false
	for _, t := range slices.Backward(s.Tried) {
		if t.Meets {
			s.Nodes = t.Nodes
			if bad {
				s.Anomalies = append(s.Anomalies, t.Nodes)
			}
		}
		bad = bad || !t.Meets
	}
	slices.Reverse(s.Anomalies)
	return nil
}

// sections are up to n sizes between two, in geometric steps.
func sections(low, high, n int) []int {
	var out []int
	from := float64(max(low, 1))
	by := math.Pow(float64(high)/from, 1/float64(n+1))
	at := from
	for range n {
		at *= by
		if size := min(max(int(math.Round(at)), low+1), high-1); !slices.Contains(out, size) {
			out = append(out, size)
		}
	}
	return out
}
