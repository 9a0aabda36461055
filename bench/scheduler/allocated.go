package main

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/schedulertest"
)

// The nodes and requests have the shape of Alibaba's GPU cluster trace of 2023
// (alibaba/clusterdata, cluster-trace-gpu-v2023; Weng et al., USENIX ATC 2023): its
// 1,213 nodes by type, with its 6,212 GPUs; its parts of requests by number of GPUs
// (13.3 % none, 37.8 % less than one, 48.0 % one, 0.9 % several), and within each the
// commonest pairs of CPU and memory, by a sample of its lines. It is not the trace.

// machines are nodes of one type.
type machines struct {
	n          int
	cpu, gpus  int64
	memory     int64 // GiB
	sharedHere int   // in the mix with shares, each so many-th has halves of GPUs; 0 is none
}

var park = []machines{
	{549, 96, 8, 384, 4}, {389, 104, 2, 512, 1}, {16, 96, 4, 384, 0}, // G2, T4
	{106, 16, 2, 120, 0}, {22, 64, 2, 256, 0}, {9, 8, 1, 60, 0}, // P100
	{39, 128, 8, 768, 0},                     // G3
	{12, 96, 8, 768, 0}, {27, 48, 4, 368, 0}, // V100, 32 GB
	{8, 64, 8, 256, 0}, {32, 32, 4, 128, 0}, {3, 8, 1, 32, 0}, // V100, 16 GB
	{1, 128, 2, 512, 0}, // A10
}

// task is a request, and how many of a hundred are like it.
type task struct {
	cpu, memory, gpu int64 // thousandths of a core, MiB, thousandths of a GPU
	percent          float64
}

var tasks = []task{
	{8000, 30517, 0, 4.5},
	{32000, 49152, 0, 3.5},
	{12500, 57344, 0, 3},
	{15400, 51200, 0, 1.3},
	{16500, 51200, 0, 1},
	{8000, 30517, 470, 9},
	{11908, 47104, 470, 8},
	{4000, 15258, 320, 5},
	{8000, 30517, 320, 4},
	{6000, 12288, 460, 4},
	{4000, 30517, 220, 2.8},
	{3152, 5600, 810, 3},
	{4152, 10600, 550, 1},
	{8000, 30517, 650, 1},
	{11300, 49152, 1000, 8},
	{15700, 58368, 1000, 8},
	{3152, 5600, 1000, 8},
	{18708, 64512, 1000, 6},
	{16000, 32768, 1000, 5},
	{12000, 24576, 1000, 5},
	{12000, 16384, 1000, 3},
	{9810, 41560, 1000, 2.5},
	{8000, 16384, 1000, 1},
	{4000, 24576, 1000, 0.8},
	{24200, 93184, 1000, 0.7},
	{16200, 66560, 2000, 0.2},
	{32200, 132096, 4000, 0.2},
	{88000, 327680, 8000, 0.5},
}

const (
	gpu    = "nvidia.com/gpu"
	shared = "nvidia.com/gpu.shared" // half of one here
)

// mix is what is asked for, and of what.
type mix struct {
	name    string
	several float64 // the part of all GPUs asked for by who asks for several; 0 is the trace's
	halves  bool    // GPUs of some nodes are cut in halves, for who asks for no more
	churn   bool    // works end, and others come
}

var mixes = []mix{
	{"whole GPUs", 0, false, false},
	{"whole GPUs, half of them asked for by several at a time", 0.5, false, false},
	{"GPUs and halves", 0, true, false},
	{"whole GPUs, works come and go", 0, false, true},
	{"whole GPUs, half of them asked for by several at a time, works come and go", 0.5, false, true},
}

// requests are the tasks with their part of all, as Falaj counts GPUs.
func (m mix) requests() (all []resource.Amount, parts []float64) {
	one, several, sum := 0.0, 0.0, 0.0
	for _, t := range tasks {
		if t.gpu > 1000 {
			several += t.percent * float64(t.gpu) / 1000
		} else if t.gpu > 0 {
			one += t.percent
		}
	}
	for _, t := range tasks {
		a, part := resource.Amount{CPU: resource.CPU(t.cpu), Memory: resource.Bytes(t.memory) * resource.MiB}, t.percent
		switch {
		case t.gpu == 0:
		case t.gpu <= 500 && m.halves:
			a.Accelerators = map[string]int64{shared: 1}
		default:
			a.Accelerators = map[string]int64{gpu: (t.gpu + 999) / 1000}
		}
		if t.gpu > 1000 && m.several > 0 {
			part *= m.several / (1 - m.several) * one / several
		}
		all, parts, sum = append(all, a), append(parts, part), sum+part
	}
	for i := range parts {
		parts[i] /= sum
	}
	return all, parts
}

func (m mix) nodes(every int) []scheduler.Node {
	var all []scheduler.Node
	for _, t := range park {
		for i := range (t.n + every - 1) / every {
			name, n := gpu, t.gpus
			if m.halves && t.sharedHere > 0 && i%t.sharedHere == 0 {
				name, n = shared, 2*t.gpus
			}
			all = append(all, scheduler.Node{Name: strconv.Itoa(len(all)), Amount: resource.Amount{
				CPU: resource.Cores(t.cpu), Memory: resource.Bytes(t.memory) * resource.GiB, Accelerators: map[string]int64{name: n},
			}})
		}
	}
	return all
}

// gpus is how many GPUs an amount has.
func gpus(a resource.Amount) float64 {
	return float64(a.Accelerators[gpu]) + float64(a.Accelerators[shared])/2
}

// placer gives works places, or does not.
type placer interface {
	place(n int, request resource.Amount) bool
	end(n int)
}

// live is the scheduler itself. Who finds no place goes away again.
type live struct {
	state *scheduler.State
	gone  []scheduler.ID
	now   time.Time
}

func newLive(nodes []scheduler.Node) *live {
	l := &live{state: &scheduler.State{}, now: schedulertest.Began}
	l.state.Step(scheduler.Delta{Now: schedulertest.Began, Pools: []scheduler.Pool{{Name: "all", Zone: "home", Isolation: scheduler.Sandbox, Nodes: nodes}}})
	return l
}

func (l *live) place(n int, request resource.Amount) bool {
	l.now = l.now.Add(time.Second)
	w := scheduler.Workload{ID: scheduler.ID(strconv.Itoa(n)), Residency: []string{"home"}, Isolation: scheduler.Sandbox, Submitted: l.now, Request: request}
	plan := l.state.Step(scheduler.Delta{Now: l.now, Removed: l.gone, Submitted: []scheduler.Workload{w}})
	l.gone = l.gone[:0]
	if len(plan.Place) == 0 {
		l.end(n)
	}
	return len(plan.Place) > 0
}

func (l *live) end(n int) { l.gone = append(l.gone, scheduler.ID(strconv.Itoa(n))) }

// plain places by a rule that looks at one node at a time; the least of what it
// gives is best.
type plain struct {
	has, free [][4]float64 // CPU, memory, GPUs, halves
	on        map[int]int
	asked     map[int][4]float64
	rule      func(p *plain, node int, request [4]float64) float64
}

func newPlain(nodes []scheduler.Node, rule func(p *plain, node int, request [4]float64) float64) *plain {
	p := &plain{on: map[int]int{}, asked: map[int][4]float64{}, rule: rule}
	for _, n := range nodes {
		p.has = append(p.has, numbers(n.Amount))
	}
	p.free = slices.Clone(p.has)
	return p
}

func numbers(a resource.Amount) [4]float64 {
	return [4]float64{float64(a.CPU), float64(a.Memory), float64(a.Accelerators[gpu]), float64(a.Accelerators[shared])}
}

func (p *plain) place(n int, request resource.Amount) bool {
	v, best, least := numbers(request), -1, 0.0
	for i, free := range p.free {
		if v[0] > free[0] || v[1] > free[1] || v[2] > free[2] || v[3] > free[3] {
			continue
		}
		if x := p.rule(p, i, v); best < 0 || x < least {
			best, least = i, x
		}
	}
	if best < 0 {
		return false
	}
	p.on[n], p.asked[n] = best, v
	p.add(best, v, -1)
	return true
}

func (p *plain) end(n int) { p.add(p.on[n], p.asked[n], 1) }

func (p *plain) add(node int, v [4]float64, sign float64) {
	for d := range v {
		p.free[node][d] += sign * v[d]
	}
}

// bestFit leaves least, in parts of the largest node, summed over CPU, memory and GPUs.
func bestFit(p *plain, node int, v [4]float64) float64 {
	most := [4]float64{128e3, 768 * float64(resource.GiB), 8, 16}
	sum := 0.0
	for d := range v {
		sum += (p.free[node][d] - v[d]) / most[d]
	}
	return sum
}

// fullest is the rule that Falaj had before: the node in use most, by its scarcest
// part; for work without GPUs one that has none free, if there is one.
func fullest(p *plain, node int, v [4]float64) float64 {
	load := 0.0
	for d, has := range p.has[node] {
		if has > 0 {
			load = max(load, 1-p.free[node][d]/has)
		}
	}
	if v[2]+v[3] == 0 && p.free[node][2]+p.free[node][3] > 0 {
		return 2 - load
	}
	return -load
}

// allocated fills the cluster with requests for 1.3 times its GPUs, one after the
// other, and drops those that find no room; or, where works come and go, that many
// all the time. It measures the share of GPUs that is allocated in the end, or on
// average.
func (b *bench) allocated(ctx context.Context) error {
	seeds, every := 5, 1
	if b.Quick {
		seeds, every = 2, 20
	}
	for _, m := range mixes {
		shares := map[string][]float64{}
		for seed := range seeds {
			if err := ctx.Err(); err != nil {
				return err
			}
			chance := rand.New(rand.NewPCG(uint64(seed), 2)) //nolint:gosec // a simulation is drawn again by its seed
			random := func(*plain, int, [4]float64) float64 { return chance.Float64() }
			nodes := m.nodes(every)
			if m.churn {
				nodes = m.nodes(4 * every)
			}
			for name, p := range map[string]placer{
				"ours": newLive(nodes), "best": newPlain(nodes, bestFit), "fullest": newPlain(nodes, fullest), "random": newPlain(nodes, random),
			} {
				shares[name] = append(shares[name], 100*m.play(p, nodes, uint64(seed)))
			}
		}
		ours, spread := meanOf(shares["ours"])
		best, bestSpread := meanOf(shares["best"])
		note := []string{fmt.Sprintf("± %.2f, best fit ± %.2f", spread, bestSpread)}
		for _, other := range []struct{ key, name string }{{"fullest", "the fullest node"}, {"random", "any node"}} {
			mean, spread := meanOf(shares[other.key])
			note = append(note, fmt.Sprintf("%s %.2f ± %.2f", other.name, mean, spread))
		}
		b.Add(harness.Row{
			Name: "GPUs allocated at 1.3 times the load, " + m.name, Unit: "%", Better: harness.Higher, Ours: harness.Value(ours), Theirs: harness.Value(best),
			Peer: "best fit here",
			Note: strings.Join(note, "; ") + fmt.Sprintf("; mean and standard deviation of %d seeds", seeds),
		})
	}
	return nil
}

// ending is a work that ends.
type ending struct {
	at   float64
	work int
	gpus float64
}

type endings []ending

func (e *endings) Len() int           { return len(*e) }
func (e *endings) Less(i, j int) bool { return (*e)[i].at < (*e)[j].at }
func (e *endings) Swap(i, j int)      { (*e)[i], (*e)[j] = (*e)[j], (*e)[i] }
func (e *endings) Push(x any)         { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// play gives the share of GPUs that is allocated. Where works come and go, they take
// one unit of time on average, exponentially, and ten units after the first two count.
func (m mix) play(p placer, nodes []scheduler.Node, seed uint64) float64 {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // as above
	all, parts := m.requests()
	total, mean := 0.0, 0.0
	for _, n := range nodes {
		total += gpus(n.Amount)
	}
	for i, a := range all {
		mean += parts[i] * gpus(a)
	}
	const load, from, until = 1.3, 2.0, 12.0
	asked, used, area, at, counted := 0.0, 0.0, 0.0, 0.0, from
	var ends endings
	pass := func(to float64) {
		if to > counted {
			area, counted = area+used*(to-counted), to
		}
	}
	for n := 0; m.churn && at < until || !m.churn && asked < load*total; n++ {
		if m.churn {
			at += r.ExpFloat64() * mean / (load * total)
			for len(ends) > 0 && ends[0].at <= at {
				e := heap.Pop(&ends).(ending)
				pass(e.at)
				p.end(e.work)
				used -= e.gpus
			}
			pass(at)
		}
		i, x := 0, r.Float64()
		for ; i < len(parts)-1 && x >= parts[i]; i++ {
			x -= parts[i]
		}
		asked += gpus(all[i])
		takes := r.ExpFloat64()
		if p.place(n, all[i]) {
			used += gpus(all[i])
			heap.Push(&ends, ending{at + takes, n, gpus(all[i])})
		}
	}
	if m.churn {
		return area / (counted - from) / total
	}
	return used / total
}

// meanOf is the mean and the standard deviation.
func meanOf(values []float64) (mean, spread float64) {
	for _, x := range values {
		mean += x / float64(len(values))
	}
	for _, x := range values {
		spread += (x - mean) * (x - mean) / float64(len(values)-1)
	}
	return mean, math.Sqrt(spread)
}
