package scheduler

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
)

// The placement of a worker determines what later requests can use. As in FGD (Weng et
// al., USENIX ATC 2023) it goes to the node where the number of accelerators that typical
// requests can still use decreases least. Typical requests are those of waiting and running
// workloads: requests for the same accelerators form one kind, with the mean of their other
// resources. Finer kinds are no better, and worse under churn (docs/adr/0023).

// maxTypical bounds the kinds that a pool keeps.
const maxTypical = 32

// demand is the workers that ask for the same accelerators.
type demand struct {
	key     string
	request vector // of one of them: all have its accelerators
	n       int64
	besides [accelerators]int64 // what they ask for besides, in sum
}

// countDemand adds n workers of a workload to what is typical, sign times.
func (s *State) countDemand(w *Workload, n int, sign int64) {
	for _, r := range w.Parts(n) {
		if len(r.Request.Accelerators) == 0 {
			continue
		}
		v, known := s.names.vector(r.Request)
		key := make([]byte, 0, 64)
		for i, x := range v[accelerators:] {
			if x > 0 {
				key = append(strconv.AppendInt(append(append(key, s.names.list[i]...), ' '), x, 10), ' ')
			}
		}
		if !known || len(key) == 0 {
			continue
		}
		d := s.demands[string(key)]
		if d == nil {
			d = &demand{key: string(key), request: v}
			s.demands[d.key] = d
		}
		workers := sign * int64(r.Workers)
		d.n += workers
		for i := range d.besides {
			d.besides[i] += workers * v[i]
		}
		if d.n == 0 {
			delete(s.demands, d.key)
		}
	}
}

// typical is a demand as a pool sees it: how often it fits is the least of what is
// free of each part, times per.
type typical struct {
	at     []int
	per    []float64
	weight float64 // the accelerators of one, times its part of all
}

// setTypicalDemands gives each pool the demands for what one of its rows has, the most frequent
// of them.
func (s *State) setTypicalDemands() {
	all := slices.SortedFunc(maps.Values(s.demands), func(a, b *demand) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.key, b.key)) })
	for _, p := range s.order {
		p.typical = p.typical[:0]
		total := 0.0
		for _, d := range all {
			if len(p.typical) < maxTypical && p.fits(d) {
				p.typical = append(p.typical, d.typical())
				total += float64(d.n)
			}
		}
		for i := range p.typical {
			p.typical[i].weight /= total
		}
		for i := range p.worth {
			p.worth[i] = math.NaN()
		}
	}
}

// fits reports that one of its rows has the accelerators of a demand. Rows do not change.
func (p *pool) fits(d *demand) bool {
	fits, known := p.demands[d.key]
	if !known {
		fits = slices.ContainsFunc(p.has, func(has vector) bool { return d.request[accelerators:].fits(has[accelerators:]) })
		p.demands[d.key] = fits
	}
	return fits
}

func (d *demand) typical() typical {
	t := typical{}
	for i, x := range d.request {
		each := float64(x)
		if i < accelerators {
			each = float64(d.besides[i]) / float64(d.n)
		} else {
			t.weight += float64(max(x, 0) * d.n)
		}
		if each > 0 {
			t.at, t.per = append(t.at, i), append(t.per, 1/each)
		}
	}
	return t
}

// usable is how many of the free accelerators, less n times a request, typical
// requests could use on average. What is too little for one of them counts half:
// there may be more, once others have ended.
func (p *pool) usable(free, request vector, n int64) float64 {
	left, sum := p.left[:0], 0.0
	for i, x := range free {
		left = append(left, float64(max(x-n*request.part(i), 0)))
	}
	p.left = left
	for i := range p.typical {
		t := &p.typical[i]
		times := math.Inf(1)
		for j, at := range t.at {
			times = min(times, left[at]*t.per[j])
		}
		if times < 1 {
			times /= 2
		}
		sum += times * t.weight
	}
	return sum
}

// merit says how good a row is for some workers.
type merit struct {
	loss float64 // of usable accelerators, in quarters of one: less is noise
	bare bool    // it has no free accelerator and they ask for none
	load float64
}

func (m merit) better(o merit) bool {
	return cmp.Or(cmp.Compare(m.loss, o.loss), cmp.Compare(btoi(o.bare), btoi(m.bare)), cmp.Compare(o.load, m.load)) < 0
}

// merit is that of row i for n times a request.
func (p *pool) merit(k *known, i int, request vector, n int) merit {
	m := merit{load: p.load[i]}
	if !p.accelerators {
		return m
	}
	m.bare = !k.accelerated && !slices.ContainsFunc(p.free[i][accelerators:], func(n int64) bool { return n > 0 })
	if len(p.typical) > 0 && !m.bare {
		if math.IsNaN(p.worth[i]) {
			p.worth[i] = p.usable(p.free[i], nil, 0)
		}
		m.loss = math.Floor(4*(p.worth[i]-p.usable(p.free[i], request, int64(n))) + 0.5 + 1e-6)
	}
	return m
}
