package scheduler

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/resource"
)

// vector is an amount as bare numbers, for the inner loops: CPU, memory, its
// bandwidth, then one for each accelerator that a pool, a queue or a running workload
// names. What is beyond its end is zero.
type vector []int64

// accelerators is the first part of a vector that is one.
const accelerators = 3

// unlimited stands for no limit; sums of some of them do not overflow.
const unlimited = math.MaxInt64 / 1024

// names says which accelerator is which part of a vector.
type names struct {
	list []string
	at   map[string]int
}

func (n *names) width() int { return accelerators + len(n.list) }

// vector is the amount in numbers; false when it requests what no node has.
func (n *names) vector(a resource.Amount) (vector, bool) {
	v, known := make(vector, n.width()), true
	v[0], v[1], v[2] = min(int64(a.CPU), unlimited), min(int64(a.Memory), unlimited), min(int64(a.MemoryBandwidth), unlimited)
	for name, count := range a.Accelerators {
		if i, ok := n.at[name]; ok {
			v[i] = min(count, unlimited)
		} else if count > 0 {
			known = false
		}
	}
	return v, known
}

// limits is the vector of a limit: of parts that it does not name there is no limit.
func (n *names) limits(l resource.Limit) vector {
	v := make(vector, n.width())
	for i := range v {
		v[i] = unlimited
	}
	if l.CPU != nil {
		v[0] = min(int64(*l.CPU), unlimited)
	}
	if l.Memory != nil {
		v[1] = min(int64(*l.Memory), unlimited)
	}
	if l.MemoryBandwidth != nil {
		v[2] = min(int64(*l.MemoryBandwidth), unlimited)
	}
	for name, count := range l.Accelerators {
		v[n.at[name]] = min(count, unlimited)
	}
	return v
}

// amount is the way back, for words; what has no limit is left out.
func (n *names) amount(v vector) resource.Amount {
	var a resource.Amount
	for i, x := range v {
		switch {
		case x >= unlimited/2:
		case i == 0:
			a.CPU = resource.CPU(x)
		case i == 1:
			a.Memory = resource.Bytes(x)
		case i == 2:
			a.MemoryBandwidth = resource.Bandwidth(x)
		default:
			if a.Accelerators == nil {
				a.Accelerators = map[string]int64{}
			}
			a.Accelerators[n.list[i-accelerators]] = x
		}
	}
	return a
}

// plus is v with n times o, in place where v is long enough.
func (v vector) plus(o vector, n int64) vector {
	for len(v) < len(o) {
		v = append(v, 0)
	}
	for i, x := range o {
		v[i] += n * x
	}
	return v
}

// times is n times v; an amount beyond all capacity stays so.
func (v vector) times(n int) vector {
	out := make(vector, len(v))
	for i, x := range v {
		if out[i] = unlimited; x <= unlimited/int64(max(n, 1)) {
			out[i] = int64(n) * x
		}
	}
	return out
}

func (v vector) part(i int) int64 {
	if i < len(v) {
		return v[i]
	}
	return 0
}

// fits reports that one request fits into free.
func (v vector) fits(free vector) bool {
	for i, x := range v {
		if x > 0 && (i >= len(free) || x > free[i]) {
			return false
		}
	}
	return true
}

// count is how many requests fit into free, at most most.
func (v vector) count(free vector, most int) int {
	n := int64(most)
	for i, x := range v {
		if x <= 0 {
			continue
		}
		if i >= len(free) || x > free[i] {
			return 0
		}
		n = min(n, free[i]/x)
	}
	return int(n)
}

// misfits are requests that found no room in this cycle, the smallest of them:
// what asks for as much or more in every part finds none either.
type misfits []vector

const maxMisfits = 128

func (m misfits) cover(v vector) bool {
	return slices.ContainsFunc(m, func(f vector) bool { return atMost(f, v) })
}

func (m misfits) with(v vector) misfits {
	m = slices.DeleteFunc(m, func(f vector) bool { return atMost(v, f) })
	if len(m) < maxMisfits {
		m = append(m, v)
	}
	return m
}

func atMost(a, b vector) bool {
	for i, x := range a {
		if x > b.part(i) {
			return false
		}
	}
	return true
}
