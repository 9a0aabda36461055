package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

func gpus(n int) resource.Amount {
	return resource.Amount{Accelerators: map[string]int64{"nvidia.com/gpu": int64(n)}}
}

func gpuPool(nodes ...int) Pool {
	p := Pool{Name: "sim", Zone: "home", Isolation: Sandbox}
	for i, n := range nodes {
		p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", i), Amount: gpus(n).Plus(resource.Amount{CPU: resource.Cores(64)})})
	}
	return p
}

// gpuGang is of workers with so many accelerators each.
func gpuGang(id, queue string, each, least, most int) Workload {
	return Workload{
		ID: ID(id), Project: "p", Queue: queue, Request: gpus(each), Workers: least, MaxWorkers: most, Residency: []string{"home"},
		Isolation: Sandbox, Preemptible: true, Grace: 2 * time.Second, Submitted: start,
	}
}

func quotaQueue(name, parent string, quota int) Queue {
	q := Queue{Name: name, Parent: parent}
	if quota >= 0 {
		q.Quota = resource.LimitOf(gpus(quota))
	}
	return q
}

// lab is a scheduler with workloads that nobody adds to or takes from: who must leave has saved
// after a while, and waits again under another name, as an attempt does.
type lab struct {
	world   Delta
	state   *State
	now     time.Time
	left    map[string]int // how often each workload left, by its first name
	names   map[ID]string
	leaves  map[ID]time.Time
	pending []Workload // have left, and are not in line yet
	anew    bool       // reads the world anew in every cycle
	takes   func(cycle int, id ID) time.Duration
}

func newLab(policy Policy, pools []Pool, queues []Queue) *lab {
	l := &lab{
		world: Delta{Policy: policy, Pools: pools, Queues: queues}, state: &State{}, now: start, left: map[string]int{}, names: map[ID]string{}, leaves: map[ID]time.Time{},
		takes: func(int, ID) time.Duration { return time.Second },
	}
	l.state.Step(Delta{Now: start, Policy: policy, Pools: pools, Queues: queues})
	return l
}

// run goes on for some cycles of a second, and gives how many preemptions there were in each.
func (l *lab) run(cycles int, works ...Workload) (preempted []int) {
	for _, w := range works {
		l.names[w.ID] = string(w.ID)
		w.Submitted = l.now
		l.pending = append(l.pending, w)
	}
	for n := range cycles {
		l.now = l.now.Add(time.Second)
		d := Delta{Now: l.now, Submitted: l.pending}
		l.pending = nil
		for _, id := range slices.Sorted(maps.Keys(l.leaves)) {
			if l.leaves[id].After(l.now) {
				continue
			}
			w := l.state.running[id].Workload
			again := w
			again.ID, again.Submitted = ID(fmt.Sprintf("%s+%d", l.names[id], l.left[l.names[id]])), l.now
			l.names[again.ID] = l.names[id]
			d.Removed = append(d.Removed, id)
			l.pending = append(l.pending, again) // it stands in line in the next cycle only
			delete(l.leaves, id)
		}
		if l.anew {
			whole := l.state.World()
			whole.Now = l.now
			whole.Removed, whole.Submitted = nil, append(whole.Submitted, d.Submitted...)
			whole.Started = slices.DeleteFunc(whole.Started, func(r Running) bool { return slices.Contains(d.Removed, r.ID) })
			l.state, d = &State{}, whole
		}
		plan := l.state.Step(d)
		for _, p := range plan.Preempt {
			l.left[l.names[p.Workload]]++
			l.leaves[p.Workload] = l.now.Add(l.takes(n, p.Workload))
		}
		preempted = append(preempted, len(plan.Preempt))
	}
	return preempted
}

// workers says how many each running workload has, by its first name.
func (l *lab) workers() map[string]int {
	out := map[string]int{}
	for id, r := range l.state.running {
		out[l.names[id]] = r.placed()
	}
	return out
}

func sum(all []int) (n int) {
	for _, x := range all {
		n += x
	}
	return n
}

// TestElasticSettle: of two elastic gangs in two queues the second takes back its own, and
// no more: nobody takes it back from it.
func TestElasticSettle(t *testing.T) {
	for _, policy := range Policies {
		for _, anew := range []bool{false, true} {
			t.Run(fmt.Sprint(policy, anew), func(t *testing.T) {
				l := newLab(policy, []Pool{gpuPool(11)}, []Queue{quotaQueue("coh", "", -1), quotaQueue("qa", "coh", 5), quotaQueue("qb", "coh", 5)})
				l.anew = anew
				l.run(2, gpuGang("a", "qa", 2, 2, 5))
				if first := l.workers()["a"]; first != 5 && policy != Goodput {
					t.Fatalf("alone it has %d workers: it may borrow", first)
				}
				left := sum(l.run(60, gpuGang("b", "qb", 2, 2, 5)))
				has := l.workers()
				if left > 1 || l.left["b"] > 0 || has["b"] != 2 || has["a"] < 2 || has["a"] > 3 {
					t.Errorf("%d preemptions, then workers %v", left, has)
				}
			})
		}
	}
}

// TestQuotasInTrees: the quota of a queue holds for the queues below it, which have none.
func TestQuotasInTrees(t *testing.T) {
	for _, policy := range Policies {
		t.Run("takes back/"+string(policy), func(t *testing.T) {
			l := newLab(policy, []Pool{gpuPool(8)}, []Queue{
				quotaQueue("lab", "", -1), quotaQueue("a", "lab", 4), quotaQueue("b", "lab", 4), quotaQueue("a-night", "a", -1), quotaQueue("b-night", "b", -1),
			})
			for n := range 8 {
				l.run(1, gpuGang(fmt.Sprint("a", n), "a-night", 1, 1, 1))
			}
			left := sum(l.run(20, gpuGang("b", "b-night", 4, 1, 1)))
			if has := l.workers(); left != 4 || has["b"] != 1 || len(has) != 5 {
				t.Errorf("%d left, and %v run", left, has)
			}
		})
		t.Run("protects/"+string(policy), func(t *testing.T) {
			l := newLab(policy, []Pool{gpuPool(12)}, []Queue{
				quotaQueue("lab", "", -1), quotaQueue("a", "lab", 4), quotaQueue("a-night", "a", -1), quotaQueue("b", "lab", 4), quotaQueue("c", "lab", 4),
			})
			l.run(3, gpuGang("c0", "c", 4, 1, 1), gpuGang("c1", "c", 4, 1, 1))
			l.run(3, gpuGang("a", "a-night", 4, 1, 1))
			l.run(20, gpuGang("b", "b", 4, 1, 1))
			if has := l.workers(); l.left["a"] > 0 || l.left["c0"]+l.left["c1"] != 1 || has["a"]+has["b"] != 2 {
				t.Errorf("left: %v; %v run", l.left, has)
			}
		})
	}
}

// TestReclaimOnFragments: who takes back a whole node gets one, though those that would lose
// least stand on several.
func TestReclaimOnFragments(t *testing.T) {
	for _, nodes := range []int{2, 4} {
		var sizes []int
		for range nodes {
			sizes = append(sizes, 4)
		}
		l := newLab(Fifo, []Pool{gpuPool(sizes...)}, []Queue{quotaQueue("lab", "", -1), quotaQueue("a", "lab", 4*nodes-4), quotaQueue("b", "lab", 4)})
		d := Delta{Now: l.now}
		for n := range 4 * nodes { // in turn on one node and the other, by when they began
			w := gpuGang(fmt.Sprintf("a%02d", n), "a", 1, 1, 1)
			l.names[w.ID] = string(w.ID)
			d.Started = append(d.Started, Running{Workload: w, Pool: "sim", Nodes: []string{fmt.Sprint("n", n%nodes)}, Started: start.Add(-time.Hour + time.Duration(n)*time.Minute)})
		}
		l.state.Step(d)
		left := sum(l.run(10, gpuGang("b", "b", 4, 1, 1)))
		if has := l.workers(); has["b"] != 1 || left != 4 {
			t.Errorf("on %d nodes %d left, and %v run", nodes, left, has)
		}
	}
}

// TestQuotaOfWhoCannotLeave: where workloads beyond a quota cannot be preempted, those that can do.
func TestQuotaOfWhoCannotLeave(t *testing.T) {
	l := newLab(Fifo, []Pool{gpuPool(8)}, []Queue{quotaQueue("lab", "", -1), quotaQueue("a", "lab", 4), quotaQueue("b", "lab", 4)})
	l.run(2, gpuGang("goes", "a", 4, 1, 1))
	stays := gpuGang("stays", "a", 4, 1, 1)
	stays.Preemptible = false
	l.run(2, stays)
	l.run(10, gpuGang("b", "b", 4, 1, 1))
	if has := l.workers(); has["b"] != 1 || has["stays"] != 1 || l.left["goes"] != 1 {
		t.Errorf("%v run; left: %v", has, l.left)
	}
}

// TestOverQuotaHasNobodyWithinLeave: by priority a workload takes the place of those within their
// queue's quota only when it is within it as well.
func TestOverQuotaHasNobodyWithinLeave(t *testing.T) {
	queues := []Queue{quotaQueue("lab", "", -1), quotaQueue("a", "lab", 4), quotaQueue("b", "lab", 4)}
	high := func(n int) Workload { w := gpuGang("high", "a", 1, n, n); w.Priority = 9; return w }
	for most, leave := range map[int]int{4: 4, 6: 0} {
		l := newLab(Fifo, []Pool{gpuPool(6)}, queues)
		for n := range 4 {
			l.run(1, gpuGang(fmt.Sprint("a", n), "a", 1, 1, 1))
		}
		if left := sum(l.run(10, high(most))); left != leave {
			t.Errorf("for %d workers %d left, %d may", most, left, leave)
		}
	}
}

// TestQuotasDoNotOverflow: the sum of quotas as large as they can be is still a quota.
func TestQuotasDoNotOverflow(t *testing.T) {
	most := gpus(1)
	most.Accelerators["nvidia.com/gpu"] = 1<<63 - 1
	most.CPU, most.Memory = 1<<63-1, 1<<63-1
	l := newLab(Fifo, []Pool{gpuPool(8)}, []Queue{{Name: "lab", Quota: resource.LimitOf(most)}, {Name: "a", Parent: "lab", Quota: resource.LimitOf(most)}, {Name: "b", Parent: "lab", Quota: resource.LimitOf(most), Borrow: &most, Lend: &most}})
	l.run(1, gpuGang("a", "a", 4, 1, 1), gpuGang("b", "b", 4, 1, 1))
	if has := l.workers(); has["a"]+has["b"] != 2 {
		t.Errorf("%v run of two that fit", has)
	}
	huge := gpuGang("huge", "a", 1, 2, 2)
	huge.Request = most
	roles := gpuGang("roles", "a", 1, 1, 1)
	roles.Roles = []Role{{"a", 2, most}, {"b", 1, most}}
	l.run(2, huge, roles)
	for _, id := range []ID{"huge", "roles"} {
		if why, waits := l.state.Why(id); !waits || why.Possible {
			t.Errorf("%s asks for more than there is: %v, %t", id, why, waits)
		}
	}
}

// TestPreemptionsEnd: in any tree of queues, with gangs, elastic and rigid workloads, under every
// policy, preemptions end when nobody comes or goes, and soon; and nobody leaves for a workload of another queue
// whom the quotas of its own queues protect.
func TestPreemptionsEnd(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		var sizes []int
		for range rapid.IntRange(1, 3).Draw(t, "nodes") {
			sizes = append(sizes, rapid.IntRange(2, 6).Draw(t, "accelerators"))
		}
		queues := []Queue{quotaQueue("q0", "", mostly(t, "quota of the top", 3, -1, 4, 8))}
		for n := range rapid.IntRange(1, 6).Draw(t, "queues") {
			q := quotaQueue(fmt.Sprint("q", n+1), fmt.Sprint("q", mostly(t, "parent", 2, 0, rapid.IntRange(0, n).Draw(t, "below"))), mostly(t, "quota", 3, rapid.IntRange(2, 6).Draw(t, "gpus"), -1, 0, 1))
			if rarely(t, "cores too", 5) {
				cores := resource.Cores(rapid.Int64Range(0, 8).Draw(t, "cores"))
				q.Quota.CPU = &cores
			}
			if rarely(t, "lends", 5) {
				lend := gpus(rapid.IntRange(0, 3).Draw(t, "lend"))
				q.Lend = &lend
			}
			queues = append(queues, q)
		}
		leaf := func(name string) bool {
			return !slices.ContainsFunc(queues, func(q Queue) bool { return q.Parent == name })
		}
		var leaves []string
		for _, q := range queues {
			if leaf(q.Name) {
				leaves = append(leaves, q.Name)
			}
		}
		l := newLab(rapid.SampledFrom(Policies).Draw(t, "policy"), []Pool{gpuPool(sizes...)}, queues)
		l.anew = rapid.Bool().Draw(t, "anew")
		l.takes = func(cycle int, id ID) time.Duration { return time.Duration(1+(cycle+len(id))%3) * time.Second }
		works := rapid.IntRange(2, 14).Draw(t, "works")
		var before []int
		for n := range works {
			w := gpuGang(fmt.Sprintf("w%02d", n), rapid.SampledFrom(leaves).Draw(t, "queue"), mostly(t, "each", 3, rapid.IntRange(1, 2).Draw(t, "each"), 3, 4), mostly(t, "least", 3, 1, 2, 3), 0)
			w.MaxWorkers = w.Workers + max(rapid.IntRange(-2, 5).Draw(t, "more"), 0)
			w.Priority = rapid.IntRange(0, 2).Draw(t, "priority")
			w.Preemptible = !rarely(t, "stays", 6)
			w.Request.CPU = resource.Cores(rapid.Int64Range(0, 2).Draw(t, "cpu"))
			w.Served = rapid.SampledFrom([]float64{0, 0, 16 * 3600}).Draw(t, "served")
			before = append(before, l.run(rapid.IntRange(0, 3).Draw(t, "later"), w)...)
		}
		const cycles = 120
		all := l.run(cycles)
		if n := sum(all[cycles/2:]); n > 0 {
			t.Fatalf("%d preemptions of %d works after %d cycles in which nobody came or went: %v", n, works, cycles/2, l.left)
		}
		if n := sum(before) + sum(all); n > works*works {
			t.Fatalf("%d preemptions of %d works: %v", n, works, l.left)
		}
	})
}

// TestWorth: protecting more is worth more, and a higher standard more than any number of lower ones.
func TestWorth(t *testing.T) {
	low, high := standard{true, 0}, standard{true, 5}
	for _, c := range []struct {
		less, more []standard
	}{{nil, []standard{low}}, {[]standard{low}, []standard{low, low}}, {[]standard{low, low, low}, []standard{high}}, {[]standard{high}, []standard{high, low}}} {
		if slices.CompareFunc(c.less, c.more, standard.compare) >= 0 || slices.CompareFunc(c.more, c.less, standard.compare) <= 0 {
			t.Errorf("%v is not worth less than %v", c.less, c.more)
		}
	}
	if cmp.Compare(low.compare(standard{false, 9}), 0) <= 0 {
		t.Error("who had little service does not come before who had much")
	}
}
