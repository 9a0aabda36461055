package anomaly

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// When a node counts as slow: the median of at least so many pairs is a tenth
// slower, and so many slower ones of a node like its peers come up in less than one
// of a hundred looks at a pool. It is as fast again when the median is a twentieth
// slower at most.
const (
	SlowFrom  = 0.90
	FastFrom  = 0.95
	MinPairs  = 8
	MaxPairs  = 20 // the newest
	chance    = 0.01
	farApart  = 30 * 24 * time.Hour // two attempts that are no pair
	sameSpeed = 1e-9
)

// Ran is an attempt that ran on one node.
type Ran struct {
	Kind string // attempts of one kind do the same work
	Node string
	Rate float64 // work a second
	At   time.Time
}

// Evidence is how fast a node was, against its peers.
type Evidence struct {
	Pairs  int     `json:"pairs"`  // attempts there, each with one of the same kind elsewhere
	Slower int     `json:"slower"` // of them
	Median float64 `json:"median"` // rate there over that elsewhere
	P      float64 `json:"p"`      // of so many slower ones, were it like its peers
}

// Compare pairs what ran on a node since a time, the newest first, with what of the
// same kind ran on other nodes nearest in time, each once. That so many of the
// pairs are slower is judged by the sign test (Dixon and Mood, Journal of the
// American Statistical Association 41, 1946), which asks nothing of how rates are
// distributed:
//
//	p = P(X ≥ slower),  X ~ Binomial(pairs that differ, ½)
func Compare(node string, all []Ran, since time.Time) Evidence {
	var here []Ran
	peers := map[string][]Ran{}
	for _, r := range all {
		switch {
		case !(r.Rate > 0) || math.IsInf(r.Rate, 0):
		case r.Node != node:
			peers[r.Kind] = append(peers[r.Kind], r)
		case r.At.After(since):
			here = append(here, r)
		}
	}
	newest := func(a, b Ran) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Rate, b.Rate), cmp.Compare(a.Node, b.Node))
	}
	slices.SortFunc(here, newest)
	for _, p := range peers {
		slices.SortFunc(p, newest)
	}
	var ratios []float64
	for _, h := range here {
		found, gap := -1, farApart
		for i, p := range peers[h.Kind] {
			if d := h.At.Sub(p.At).Abs(); d < gap {
				found, gap = i, d
			}
		}
		if found < 0 {
			continue
		}
		ratios = append(ratios, h.Rate/peers[h.Kind][found].Rate)
		peers[h.Kind] = slices.Delete(peers[h.Kind], found, found+1)
		if len(ratios) == MaxPairs {
			break
		}
	}
	e := Evidence{Pairs: len(ratios), P: 1}
	if e.Pairs == 0 {
		return e
	}
	slices.Sort(ratios)
	e.Median = ratios[len(ratios)/2]
	if len(ratios)%2 == 0 {
		e.Median = math.Sqrt(ratios[len(ratios)/2-1] * e.Median) // of factors, the geometric mean
	}
	differ := 0
	for _, r := range ratios {
		if math.Abs(r-1) <= sameSpeed {
			continue
		}
		differ++
		if r < 1 {
			e.Slower++
		}
	}
	if differ > 0 && e.Slower > 0 {
		e.P = 1 - distuv.Binomial{N: float64(differ), P: 0.5}.CDF(float64(e.Slower-1))
	}
	return e
}

// Slow reports that the node is slower than its peers, one of so many that are
// looked at: each gets its part of the chance (Bonferroni).
func (e Evidence) Slow(nodes int) bool {
	return e.Pairs >= MinPairs && e.Median <= SlowFrom && e.P <= chance/float64(max(nodes, 1))
}

// Fast reports that it is as fast as its peers.
func (e Evidence) Fast() bool { return e.Pairs >= MinPairs && e.Median >= FastFrom }
