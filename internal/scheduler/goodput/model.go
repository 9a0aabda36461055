package goodput

import (
	"math"
	"slices"
)

// Observation is a step that was measured: how long it took without
// accumulation, and the part of it that synchronised replicas, in seconds.
type Observation struct {
	Nodes, Replicas, Local int
	Step, Sync             float64
}

// Same says whether two observations are of one configuration.
func (o Observation) Same(p Observation) bool {
	return o.Nodes == p.Nodes && o.Replicas == p.Replicas && o.Local == p.Local
}

// Possible says whether an observation can be: a clock that jumps, or a counter
// that overflows, gives others.
func (o Observation) Possible() bool {
	return o.Nodes >= 1 && o.Replicas >= o.Nodes && o.Local >= 1 && o.Sync >= 0 && o.Step > o.Sync && o.Step < math.MaxInt32
}

// Model predicts the time of a step of a job from observations of it and of like
// jobs. It is that of Pollux (OSDI 2021, section 3.2):
//
//	T_compute(b)  = αc + βc·b
//	T_sync(n, r)  = 0 with one replica, else α + β·max(r−2, 0), with α and β of
//	                one node or of several
//	T_step        = (T_compute^γ + T_sync^γ)^(1/γ)
//
// for n nodes, r replicas and a local batch b, where γ from 1 to 10 says how far
// computing and synchronising overlap. Where like jobs have run with (n, r),
// T_sync is what was seen there, and steps are corrected by what was seen with
// local batches around. The zero Model knows nothing.
type Model struct {
	compute line
	overlap float64
	near    line // T_sync within a node
	far     line // between nodes
	seen    map[shape]float64
	parts   curve           // log of seen compute over predicted, by log of local batch
	steps   map[shape]curve // the same of steps
	most    int             // replicas that were seen
}

type shape struct{ nodes, replicas int }

// line is at + slope·x.
type line struct{ at, slope float64 }

func (l line) of(x float64) float64 { return l.at + l.slope*x }

// Known says whether anything was observed.
func (m *Model) Known() bool { return m != nil && m.most > 0 }

// Most is the largest number of replicas that was observed.
func (m *Model) Most() int {
	if m == nil {
		return 0
	}
	return m.most
}

// Explains says whether an observation tells the model nothing new: it has seen
// as many replicas, and predicts the step to one per cent.
func (m *Model) Explains(o Observation) bool {
	if o.Replicas > m.Most() {
		return false
	}
	step, _ := m.Times(o.Nodes, o.Replicas, o.Local)
	return math.Abs(step-o.Step) <= 0.01*o.Step
}

// overlaps are tried for γ: between them, predictions differ by less than
// measurements do.
var overlaps = [...]float64{1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 10}

// Fit fits the model to observations. Only γ is not linear, so the
// other parameters are fitted by least squares of relative errors for each γ, and the γ with
// the least error is taken (separable least squares, Golub and Pereyra 1973).
//
// Synchronisation that was not observed is assumed to cost little, so that it is tried:
// without an observation of two replicas T_sync is 0; without one of several nodes T_sync
// between nodes is that within a node, only a tenth slower, as in Pollux. Impossible
// observations are ignored.
func Fit(seen []Observation) *Model {
	m := &Model{}
	seen = slices.DeleteFunc(slices.Clone(seen), func(o Observation) bool { return !o.Possible() })
	var b, compute []float64
	for _, o := range seen {
		b = append(b, float64(o.Local))
		compute = append(compute, o.Step-o.Sync)
		m.most = max(m.most, o.Replicas)
	}
	if len(seen) == 0 {
		return m
	}
	if slices.Min(b) == slices.Max(b) {
		half := mean(compute) / 2 // of one batch size, half is taken to be constant
		m.compute = line{half, half / b[0]}
	} else {
		m.compute = fit(b, compute, compute)
	}
	best := math.Inf(1)
	for _, overlap := range overlaps {
		next := *m
		next.overlap = overlap
		next.link(seen)
		if e := next.misfit(seen); e < best*(1-1e-3) {
			best, *m = e, next
		}
	}
	m.remember(seen)
	m.correct(seen)
	return m
}

// FitLike is Fit for a device on which less was seen than on another: like is the
// model there. How steps grow with replicas is taken from it, and how long computing
// takes from what was seen here (Sia, SOSP 2023, section 3.3, which scales whole
// steps).
func FitLike(seen []Observation, like *Model) *Model {
	m := Fit(seen)
	if !m.Known() || m.Most() >= like.Most() {
		return m
	}
	by, _ := m.Ratio(like)
	out := like.Scaled(by)
	out.correct(slices.DeleteFunc(slices.Clone(seen), func(o Observation) bool { return !o.Possible() }))
	for s, c := range like.steps {
		if _, ok := out.steps[s]; !ok {
			out.steps[s] = c
		}
	}
	return out
}

// Ratio is how many times as long computing takes as in another model, by the
// geometric mean over the local batches that this one has seen; false when one of
// them knows nothing.
func (m *Model) Ratio(other *Model) (float64, bool) {
	if !m.Known() || !other.Known() {
		return 1, false
	}
	sum := 0.0
	for _, k := range m.parts {
		_, ours := m.Times(1, 1, k.local)
		_, theirs := other.Times(1, 1, k.local)
		sum += math.Log(ours / theirs)
	}
	return math.Exp(sum / float64(len(m.parts))), true
}

// Scaled is the model of a device that takes by times as long to compute, and as
// long to synchronise.
func (m *Model) Scaled(by float64) *Model {
	out := *m
	out.compute = line{by * m.compute.at, by * m.compute.slope}
	return &out
}

// correct keeps by how much steps differ from what the model says.
func (m *Model) correct(seen []Observation) {
	m.parts, m.steps = nil, nil
	var parts curve
	for _, o := range seen {
		parts = parts.with(o.Local, math.Log((o.Step-o.Sync)/m.compute.of(float64(o.Local))))
	}
	m.parts = parts
	steps := map[shape]curve{}
	for _, o := range seen {
		step, _ := m.Times(o.Nodes, o.Replicas, o.Local)
		s := shape{o.Nodes, o.Replicas}
		steps[s] = steps[s].with(o.Local, math.Log(o.Step/step))
	}
	m.steps = steps
}

// curve is a function of the local batch, piecewise linear between knots and
// constant beyond them.
type curve []knot

type knot struct {
	local int
	at    float64
	n     float64
}

func (c curve) with(local int, v float64) curve {
	i, ok := slices.BinarySearchFunc(c, local, func(k knot, l int) int { return k.local - l })
	if !ok {
		return slices.Insert(c, i, knot{local, v, 1})
	}
	c[i].n++
	c[i].at += (v - c[i].at) / c[i].n
	return c
}

func (c curve) of(local int) float64 {
	if len(c) == 0 {
		return 1
	}
	i := 0
	for i < len(c) && c[i].local < local {
		i++
	}
	switch {
	case i == len(c):
		return math.Exp(c[i-1].at)
	case i == 0 || c[i].local == local:
		return math.Exp(c[i].at)
	}
	a, b := c[i-1], c[i]
	w := float64(local-a.local) / float64(b.local-a.local)
	return math.Exp(a.at + w*(b.at-a.at))
}

// link fits T_sync for an overlap.
func (m *Model) link(seen []Observation) {
	var x, y, scale [2][]float64
	for _, o := range seen {
		if o.Replicas == 1 {
			continue
		}
		where := 0
		if o.Nodes > 1 {
			where = 1
		}
		x[where] = append(x[where], float64(max(o.Replicas-2, 0)))
		y[where] = append(y[where], m.sync(o))
		scale[where] = append(scale[where], o.Step)
	}
	m.near, m.far = fit(x[0], y[0], scale[0]), fit(x[1], y[1], scale[1])
	if len(x[1]) == 0 {
		m.far = line{1.1 * m.near.at, 1.1 * m.near.slope}
	}
}

// sync is the T_sync that makes the model take as long as was observed.
func (m *Model) sync(o Observation) float64 {
	compute := m.compute.of(float64(o.Local))
	if o.Step <= compute {
		return 0
	}
	return math.Pow(math.Pow(o.Step, m.overlap)-math.Pow(compute, m.overlap), 1/m.overlap)
}

func (m *Model) misfit(seen []Observation) (sum float64) {
	for _, o := range seen {
		step, _ := m.Times(o.Nodes, o.Replicas, o.Local)
		e := math.Log(step / o.Step)
		sum += e * e
	}
	return sum
}

// remember keeps the mean T_sync of every shape that was seen.
func (m *Model) remember(seen []Observation) {
	counts := map[shape]float64{}
	m.seen = map[shape]float64{}
	for _, o := range seen {
		if o.Replicas > 1 {
			s := shape{o.Nodes, o.Replicas}
			counts[s]++
			m.seen[s] += (m.sync(o) - m.seen[s]) / counts[s]
		}
	}
}

// fit is the line with the least squares of errors relative to scale. A line
// that falls, or begins below zero, is replaced by the best that does not.
func fit(x, y, scale []float64) line {
	var w, sx, sy, sxx, sxy float64
	for i := range x {
		k := 1 / (scale[i] * scale[i])
		w += k
		sx += k * x[i]
		sy += k * y[i]
		sxx += k * x[i] * x[i]
		sxy += k * x[i] * y[i]
	}
	if w == 0 {
		return line{}
	}
	if d := w*sxx - sx*sx; d > 1e-9*w*sxx {
		l := line{slope: (w*sxy - sx*sy) / d}
		l.at = (sy - l.slope*sx) / w
		if l.at >= 0 && l.slope >= 0 {
			return l
		}
		if l.at < 0 {
			return line{slope: sxy / sxx}
		}
	}
	return line{at: sy / w}
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// Times predicts the seconds of a step, and those of each accumulated part
// before it.
func (m *Model) Times(nodes, replicas, local int) (step, part float64) {
	part = m.compute.of(float64(local)) * m.parts.of(local)
	return m.whole(part, m.syncOf(nodes, replicas)) * m.steps[shape{nodes, replicas}].of(local), part
}

func (m *Model) syncOf(nodes, replicas int) float64 {
	if replicas == 1 {
		return 0
	}
	if s, ok := m.seen[shape{nodes, replicas}]; ok {
		return s
	}
	link := m.near
	if nodes > 1 {
		link = m.far
	}
	return link.of(float64(max(replicas-2, 0)))
}

func (m *Model) whole(compute, sync float64) float64 {
	switch {
	case sync == 0:
		return compute
	case m.overlap == 1:
		return compute + sync
	}
	// (c^γ + s^γ)^(1/γ), without overflow.
	if sync > compute {
		compute, sync = sync, compute
	}
	return compute * math.Pow(1+math.Pow(sync/compute, m.overlap), 1/m.overlap)
}

// Rate is the goodput of a configuration: initial batches of progress per second
// (Pollux, section 3).
func (m *Model) Rate(l Limits, g Gradient, nodes, replicas int, b Batch) float64 {
	step, part := m.Times(nodes, replicas, b.Local)
	return g.Gain(float64(b.Global(replicas))/float64(l.MinBatch)) / (step + float64(b.Accumulated)*part)
}

// sizes are how many batch sizes are tried, in geometric steps.
const sizes = 40

// Best is the global batch size with the most goodput of replicas on nodes, and
// that goodput.
func (m *Model) Best(l Limits, g Gradient, nodes, replicas int) (batch int, rate float64) {
	sync, steps := m.syncOf(nodes, replicas), m.steps[shape{nodes, replicas}]
	try := func(global int) {
		b := l.Split(global, replicas)
		if b.Local < l.MinLocal {
			return
		}
		part := m.compute.of(float64(b.Local)) * m.parts.of(b.Local)
		t := m.whole(part, sync)*steps.of(b.Local) + float64(b.Accumulated)*part
		if r := g.Gain(float64(b.Global(replicas))/float64(l.MinBatch)) / t; r > rate {
			batch, rate = global, r
		}
	}
	least := max(l.MinBatch, replicas*l.MinLocal)
	if least > l.MaxBatch {
		return 0, 0
	}
	by := math.Pow(float64(l.MaxBatch)/float64(least), 1.0/(sizes-1))
	last := 0
	for i, size := 0, float64(least); i < sizes; i, size = i+1, size*by {
		if global := min(int(size+1e-6), l.MaxBatch); global != last {
			try(global)
			last = global
		}
	}
	// The largest batches without accumulation, and with one: between the steps
	// lies a part of computing that costs no synchronisation.
	for k := 1; k <= 4; k++ {
		if global := k * replicas * l.MaxLocal; global >= least && global <= l.MaxBatch {
			try(global)
		}
	}
	return batch, rate
}
