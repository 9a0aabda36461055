package goodput

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// Job is a job that requests accelerators.
type Job struct {
	ID        int
	Min, Max  int               // allowed replicas; equal for a rigid job
	Each      int               // accelerators of a replica; 0 is one
	On        map[string]Device // by device; it runs on no other
	Gradient  Gradient          // observed by the job, or by similar jobs at their start
	Batch     int               // fixed global batch; 0 if it may take the best
	Placement Placement
	Device    string  // of its placement
	Age       float64 // seconds since it was submitted
	Service   float64 // attained accelerator-seconds
	Started   bool
	Restarts  int
	Restart   float64 // seconds that a restart costs; 0 means the policy's constant
	// Speed replaces the models of On: the speeds of Min to Max replicas, relative to
	// that of Min.
	Speed []float64
}

// Device is a job's model and limits on a type of accelerators.
type Device struct {
	Model  *Model // one without observations is assumed to scale perfectly, and to be as fast as the first with some
	Limits Limits
}

func (j Job) each() int { return max(j.Each, 1) }

func (j Job) rigid() bool { return j.Min == j.Max }

// Node has some accelerators that the plan may use, of one device type.
type Node struct {
	GPUs   int
	Device string
}

// Placement is where the replicas of a job are. No node is in it twice.
type Placement []Share

// Share are replicas on a node, by its index.
type Share struct{ Node, GPUs int }

// Replicas is the number of accelerators.
func (p Placement) Replicas() (sum int) {
	for _, s := range p {
		sum += s.GPUs
	}
	return sum
}

// Params are the constants of the policy. They are round numbers in the range where the results on
// Pollux's eight workloads hardly change; docs/design/simulation.md shows their influence.
type Params struct {
	Restart  float64 // seconds that a job loses when it gets another placement
	Patience float64 // seconds after which a job's age counts
	Enough   float64 // seconds of waiting after which a rigid job counts for more
	Probe    float64 // accelerator-seconds after which a job counts as long
	Favour   float64 // of short jobs over long: the exponent of attained service
}

// Default are the constants of the policy `goodput`. Restart is the time that the simulator
// deducts from a job at each new placement.
var Default = Params{Restart: 30, Patience: 6 * 3600, Enough: 24 * 3600, Probe: 1200, Favour: 1.0 / 3}

// option is a configuration that a job may have.
type option struct {
	device   int
	replicas int     // accelerators
	speed    float64 // goodput relative to one replica
	value    float64 // weighted speed, less the cost of a restart
}

// bid is a job in the plan.
type bid struct {
	*Job
	options []option // by replicas
	taken   int      // index of options; -1 is none
}

// pool are the nodes of one device.
type pool struct {
	device string
	nodes  []int
	most   int // accelerators of the largest node
	free   int
	price  float64 // of an accelerator-second, in job-seconds
	cost   float64 // of an accelerator, relative to the most expensive pool
}

// Plan returns the placements of the jobs that run, by their ID.
//
//  1. Value. For each job and number of replicas r, packed on as few nodes as
//     hold them, the model gives the goodput with the best batch size; s(r) is
//     that goodput in terms of one replica's.
//  2. Price. An accelerator-second has a price λ: the cost of the waiting it
//     causes others, in job-seconds. A job that pays for what it uses and for its
//     own time demands r* = argmax s(r) / (1 + λ·r), because a unit of work takes
//     1/s(r) seconds and costs (1 + λ·r) / s(r). λ is the price at which the total
//     demand equals the capacity. The size of a job does not matter. Each device has its
//     own λ: a faster device is more expensive, and jobs that gain least from it take another.
//  3. Worth. A unit of work is worth what it costs at r*, so that a second of
//     waiting costs every job the same, however well it scales:
//     μ = (1 + λ·r*) / s(r*). It is weighted: by (1 + service/Probe)^−Favour,
//     because a job with much attained service probably needs much more (least attained
//     service; sizes of jobs have heavy tails), and by (1 + age/Patience)², so that
//     no job starves. Rigid jobs cannot give up a part, and alternating between
//     them would not help: their weight is the mean of the others, and grows
//     only after they have waited longer than Enough.
//  4. Restarts. A configuration that a job does not have is worth less by the
//     share of its time that restarts have cost and this one would cost:
//     max(age − restarts·Restart, 0) / (age + Restart) (Pollux, section 4.2).
//  5. Allocation. The sum of weight·μ·s(r) is maximised greedily: the increase,
//     of any job, that gains most per accelerator, or per its price where there are
//     several devices, is taken next, until nothing fits. For concave s on one
//     device that is optimal.
//  6. Placement. See place.
func (p Params) Plan(nodes []Node, jobs []Job) map[int]Placement {
	bids, pools := p.divide(nodes, jobs)
	out := map[int]Placement{}
	for d, pl := range pools {
		place(nodes, pl, d, bids, out)
	}
	return out
}

// Sizes is Plan without its last step: the number of accelerators of each job that runs.
func (p Params) Sizes(nodes []Node, jobs []Job) map[int]int {
	bids, _ := p.divide(nodes, jobs)
	out := map[int]int{}
	for i := range bids {
		if b := &bids[i]; b.taken >= 0 {
			out[b.ID] = b.options[b.taken].replicas
		}
	}
	return out
}

func (p Params) divide(nodes []Node, jobs []Job) ([]bid, []pool) {
	pools := poolsOf(nodes)
	bids := make([]bid, len(jobs))
	for i := range jobs {
		bids[i] = bid{Job: &jobs[i], options: p.options(&jobs[i], pools), taken: -1}
	}
	prices(bids, pools)
	p.weigh(bids, pools)
	allocate(bids, pools)
	return bids, pools
}

func poolsOf(nodes []Node) []pool {
	var pools []pool
	for i, n := range nodes {
		at := slices.IndexFunc(pools, func(p pool) bool { return p.device == n.Device })
		if at < 0 {
			at = len(pools)
			pools = append(pools, pool{device: n.Device})
		}
		pl := &pools[at]
		pl.nodes = append(pl.nodes, i)
		pl.most = max(pl.most, n.GPUs)
		pl.free += n.GPUs
	}
	return pools
}

// options are the configurations that a job may have: within a node, powers of two and the whole
// node; beyond, whole nodes in growing steps, so that the free parts of nodes stay usable.
// A job with Speed may have every number of replicas with a speed.
func (p Params) options(j *Job, pools []pool) []option {
	var out []option
	restart := p.Restart
	if j.Restart > 0 {
		restart = j.Restart
	}
	stay := max(0, j.Age-float64(j.Restarts)*restart) / (j.Age + restart)
	now := j.Placement.Replicas()
	one := 0.0 // goodput of one replica on the first device with a model
	for d, pl := range pools {
		on, ok := j.On[pl.device]
		if !ok {
			continue
		}
		m := on.Model
		for i, s := range j.Speed {
			o := option{device: d, replicas: (j.Min + i) * j.each(), speed: s, value: s}
			if o.replicas > pl.free || s <= 0 {
				break
			}
			if j.Started && (o.replicas != now || pl.device != j.Device) {
				o.value *= stay
			}
			out = append(out, o)
		}
		if j.Speed != nil {
			continue
		}
		add := func(r int) {
			if r < max(j.Min, 1) || r > min(j.Max, on.Limits.MaxReplicas, pl.free) {
				return
			}
			s := float64(r)
			if m.Known() {
				if one == 0 {
					_, one = m.Best(on.Limits, j.Gradient, 1, 1)
				}
				if one > 0 {
					s = on.rate(j, ceil(r, pl.most), r) / one
				}
			}
			if s <= 0 {
				return
			}
			o := option{device: d, replicas: r, speed: s, value: s}
			if j.Started && (r != now || pl.device != j.Device) {
				o.value *= stay
			}
			out = append(out, o)
		}
		if j.rigid() {
			add(j.Max)
			continue
		}
		for r := 1; r <= j.Max && r <= pl.free; {
			add(r)
			switch {
			case r < pl.most:
				r = min(2*r, pl.most)
			default:
				r += max(1, r/pl.most/4) * pl.most
			}
		}
	}
	slices.SortStableFunc(out, func(a, b option) int { return a.replicas - b.replicas })
	return out
}

// rate is the goodput of a job in a configuration.
func (d Device) rate(j *Job, nodes, replicas int) float64 {
	if j.Batch > 0 {
		return d.Model.Rate(d.Limits, j.Gradient, nodes, replicas, d.Limits.Split(j.Batch, replicas))
	}
	_, rate := d.Model.Best(d.Limits, j.Gradient, nodes, replicas)
	return rate
}

// want is a bid's demand at the pools' prices, and the cost of a unit of its work at that
// demand.
func (b *bid) want(pools []pool) (device, replicas int, cost float64) {
	cost = math.Inf(1)
	for _, o := range b.options {
		if c := (1 + pools[o.device].price*float64(o.replicas)) / o.speed; c < cost {
			device, replicas, cost = o.device, o.replicas, c
		}
	}
	return device, replicas, cost
}

// dearest is a price at which every job demands its smallest efficient configuration.
const dearest = 10.0

// rounds is how often the price of each device is adapted to those of the others.
const rounds = 6

// cheapest is the lowest cost of an accelerator relative to the most expensive: capacity without
// demand is not free, because later jobs will demand it.
const cheapest = 0.1

// prices finds λ of each pool by bisection: first one λ for all pools, then, in turns, each
// with the others fixed. Where rigid jobs demand more than the capacity at every
// price, no price clears the market; the prices then make the demand for each device
// proportional to its capacity.
func prices(bids []bid, pools []pool) {
	total := 0
	for _, pl := range pools {
		total += pl.free
	}
	// wanted is the total demand for one pool, or for all.
	wanted := func(of int) (sum int) {
		for i := range bids {
			if d, r, _ := bids[i].want(pools); of < 0 || d == of {
				sum += r
			}
		}
		return sum
	}
	find := func(some []pool, of int, highest, supply float64) {
		low, high := 0.0, highest
		set := func(price float64) {
			for i := range some {
				some[i].price = price
			}
		}
		for range 40 {
			mid := (low + high) / 2
			if set(mid); float64(wanted(of)) > supply {
				low = mid
			} else {
				high = mid
			}
		}
		set(high)
	}
	find(pools, -1, dearest, float64(total))
	if len(pools) > 1 {
		excess := max(1, float64(wanted(-1))/float64(max(total, 1)))
		for range rounds {
			for d := range pools {
				find(pools[d:d+1], d, 100*dearest, excess*float64(pools[d].free))
			}
		}
	}
	top := 0.0
	for _, pl := range pools {
		top = max(top, pl.price)
	}
	for d := range pools {
		pools[d].cost = max(pools[d].price/top, cheapest)
	}
}

// weigh sets the values of options from their speeds.
func (p Params) weigh(bids []bid, pools []pool) {
	var weights, wanted float64
	for i := range bids {
		if b := &bids[i]; !b.rigid() {
			_, r, _ := b.want(pools)
			weights += float64(r) * p.weight(b.Job)
			wanted += float64(r)
		}
	}
	for i := range bids {
		b := &bids[i]
		_, _, worth := b.want(pools)
		switch {
		case b.rigid():
			waited := b.Age - b.Service/float64(b.Max*b.each())
			worth *= square(max(1, waited/p.Enough))
		case wanted > 0:
			worth *= p.weight(b.Job) * wanted / weights
		}
		for k := range b.options {
			b.options[k].value *= worth
		}
	}
}

func (p Params) weight(j *Job) float64 {
	return square(1+j.Age/p.Patience) * math.Pow(1+j.Service/p.Probe, -p.Favour)
}

func square(x float64) float64 { return x * x }

// step is the best next increase of a bid.
type step struct {
	gain float64 // per accelerator
	bid  int
	to   int
}

type steps []step

func (s *steps) Len() int { return len(*s) }
func (s *steps) Less(i, k int) bool {
	a, b := (*s)[i], (*s)[k]
	return cmp.Or(cmp.Compare(b.gain, a.gain), cmp.Compare(a.bid, b.bid)) < 0
}
func (s *steps) Swap(i, k int) { (*s)[i], (*s)[k] = (*s)[k], (*s)[i] }
func (s *steps) Push(x any)    { *s = append(*s, x.(step)) }
func (s *steps) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	*s = (*s)[:last]
	return x
}

// allocate takes options greedily.
func allocate(bids []bid, pools []pool) {
	next := func(i int) (best step, ok bool) {
		b := &bids[i]
		have, paid := option{device: -1}, 0.0
		if b.taken >= 0 {
			have = b.options[b.taken]
			paid = pools[have.device].cost * float64(have.replicas)
		}
		best.bid = i
		for k, o := range b.options {
			free := pools[o.device].free
			if o.device == have.device {
				free += have.replicas
			}
			if o.replicas > free || o.value <= have.value {
				continue
			}
			// On another device as many or fewer replicas may be better.
			cost := pools[o.device].cost
			if g := (o.value - have.value) / max(cost*float64(o.replicas)-paid, cost/2); g > best.gain {
				best.gain, best.to, ok = g, k, true
			}
		}
		return best, ok
	}
	var queue steps
	var rest []int // bids without an option that fits
	add := func(i int) {
		if s, ok := next(i); ok {
			heap.Push(&queue, s)
		} else {
			rest = append(rest, i)
		}
	}
	for i := range bids {
		add(i)
	}
	for len(queue) > 0 {
		s := heap.Pop(&queue).(step)
		// A step whose gain has shrunk since it was queued is queued again.
		now, ok := next(s.bid)
		if !ok || now.gain < s.gain {
			add(s.bid)
			continue
		}
		b := &bids[s.bid]
		to, affected := b.options[now.to], []int{s.bid}
		if b.taken >= 0 {
			from := b.options[b.taken]
			pools[from.device].free += from.replicas
			if from.device != to.device || from.replicas > to.replicas { // capacity was freed
				affected, rest = append(affected, rest...), nil
			}
		}
		b.taken = now.to
		pools[to.device].free -= to.replicas
		for _, i := range affected {
			add(i)
		}
	}
}
