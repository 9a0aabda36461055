package goodput

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestSplit(t *testing.T) {
	l := Limits{MinLocal: 8, MaxLocal: 64, MinBatch: 32, MaxBatch: 1024, MaxReplicas: 64}
	for _, c := range []struct {
		global, replicas int
		want             Batch
	}{
		{32, 1, Batch{32, 0}}, // the initial batch size accumulates nothing
		{33, 1, Batch{17, 1}}, // a larger one on one replica once
		{256, 1, Batch{64, 3}},
		{256, 4, Batch{64, 0}},
		{260, 4, Batch{33, 1}},
		{1024, 3, Batch{56, 5}}, // 342 each are 6 times 57, which would be 1026 in all
	} {
		if got := l.Split(c.global, c.replicas); got != c.want {
			t.Errorf("%d on %d is %+v, want %+v", c.global, c.replicas, got, c.want)
		}
	}
	if got := (Limits{MinLocal: 1, MaxLocal: 1, MinBatch: 2, MaxBatch: 4}).Split(4, 3); got != (Batch{1, 0}) {
		t.Errorf("more parts than samples: %+v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.IntRange(1, 64).Draw(t, "replicas")
		global := rapid.IntRange(max(l.MinBatch, replicas*l.MinLocal), l.MaxBatch).Draw(t, "global")
		b := l.Split(global, replicas)
		if b.Local < 1 || b.Local > l.MaxLocal || b.Global(replicas) > l.MaxBatch || b.Global(replicas) < min(global, l.MaxBatch-replicas*(b.Accumulated+1)) {
			t.Fatalf("%+v", b)
		}
	})
}

func TestGain(t *testing.T) {
	quiet, noisy := Gradient{Sqr: 1}, Gradient{Var: 1}
	if quiet.Gain(8) != 1 || noisy.Gain(8) != 8 || (Gradient{1, 1}).Gain(1) != 1 || (Gradient{}).Gain(8) != 1 {
		t.Error(quiet.Gain(8), noisy.Gain(8))
	}
}

// truth is a job whose steps follow the model.
type truth struct{ a, b, near, far, slope, overlap float64 }

func (u truth) see(nodes, replicas, local int) Observation {
	compute := u.a + u.b*float64(local)
	sync := 0.0
	if replicas > 1 {
		sync = u.near
		if nodes > 1 {
			sync = u.far
		}
		sync += u.slope * float64(replicas-2)
	}
	step := math.Pow(math.Pow(compute, u.overlap)+math.Pow(sync, u.overlap), 1/u.overlap)
	return Observation{Nodes: nodes, Replicas: replicas, Local: local, Step: step, Sync: step - compute}
}

// TestFit: from a few configurations of a job that follows the model, others are
// predicted to 5 %.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := truth{
			a: rapid.Float64Range(0.01, 0.2).Draw(t, "a"), b: rapid.Float64Range(0.001, 0.01).Draw(t, "b"),
			near: rapid.Float64Range(0, 0.1).Draw(t, "near"), far: rapid.Float64Range(0.1, 0.5).Draw(t, "far"),
			slope: rapid.Float64Range(0, 0.005).Draw(t, "slope"), overlap: rapid.SampledFrom([]float64{1, 1.5, 2, 4}).Draw(t, "overlap"),
		}
		var seen []Observation
		for _, s := range []shape{{1, 1}, {1, 2}, {1, 4}, {2, 8}, {4, 16}} {
			for _, local := range []int{16, 40, 64} {
				seen = append(seen, u.see(s.nodes, s.replicas, local))
			}
		}
		m := Fit(seen)
		for _, s := range []shape{{1, 1}, {1, 3}, {3, 12}, {8, 32}} {
			want := u.see(s.nodes, s.replicas, 30)
			got, part := m.Times(s.nodes, s.replicas, 30)
			if math.Abs(got/want.Step-1) > 0.05 || math.Abs(part/(want.Step-want.Sync)-1) > 0.01 {
				t.Fatalf("%+v: step %v, want %v", s, got, want.Step)
			}
		}
		for _, o := range seen {
			if !m.Explains(o) {
				t.Fatalf("does not explain %+v", o)
			}
		}
	})
}

// TestFitHopes: what was not seen is taken to be free, so that it is tried.
func TestFitHopes(t *testing.T) {
	if m := Fit(nil); m.Known() || m.Most() != 0 {
		t.Error("nothing was seen")
	}
	m := Fit([]Observation{{1, 1, 32, 1, 0.1}})
	one, _ := m.Times(1, 1, 32)
	two, _ := m.Times(1, 2, 32)
	many, _ := m.Times(8, 32, 32)
	if math.Abs(one-1) > 0.11 || two != many || two > one {
		t.Error(one, two, many)
	}
	m = Fit([]Observation{{1, 1, 32, 1, 0}, {1, 2, 32, 1.5, 0.5}})
	near, _ := m.Times(1, 2, 32)
	far, _ := m.Times(2, 2, 48)
	if far < near || math.IsNaN(far) {
		t.Error(near, far)
	}
}

// TestFitGarbage: whatever was observed, times are finite and positive.
func TestFitGarbage(t *testing.T) {
	number := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 10), rapid.Just(math.NaN()), rapid.Just(math.Inf(1)))
	rapid.Check(t, func(t *rapid.T) {
		seen := make([]Observation, rapid.IntRange(0, 20).Draw(t, "seen"))
		for i := range seen {
			seen[i] = Observation{
				Nodes: rapid.IntRange(-1, 8).Draw(t, "nodes"), Replicas: rapid.IntRange(-1, 32).Draw(t, "replicas"), Local: rapid.IntRange(-1, 4096).Draw(t, "local"),
				Step: number.Draw(t, "step"), Sync: number.Draw(t, "sync"),
			}
		}
		m := Fit(seen)
		if !m.Known() {
			return
		}
		for _, s := range []shape{{1, 1}, {1, 4}, {2, 8}, {16, 64}} {
			for _, local := range []int{1, 77, 100_000} {
				if step, part := m.Times(s.nodes, s.replicas, local); !(step > 0 && part > 0) || math.IsInf(step+part, 0) {
					t.Fatalf("%+v with %d: %v, %v", s, local, step, part)
				}
			}
		}
	})
}

// TestBest: no batch size is much better than the one that is taken.
func TestBest(t *testing.T) {
	l := Limits{MinLocal: 8, MaxLocal: 64, MinBatch: 32, MaxBatch: 2048, MaxReplicas: 64}
	u := truth{0.05, 0.002, 0.02, 0.3, 0.001, 1.5}
	var seen []Observation
	for _, s := range []shape{{1, 1}, {1, 2}, {1, 4}, {2, 8}} {
		for _, local := range []int{8, 32, 64} {
			seen = append(seen, u.see(s.nodes, s.replicas, local))
		}
	}
	m := Fit(seen)
	rapid.Check(t, func(t *rapid.T) {
		g := Gradient{Sqr: 1, Var: math.Pow(10, rapid.Float64Range(-2, 3).Draw(t, "noise"))}
		replicas := rapid.IntRange(1, 32).Draw(t, "replicas")
		nodes := ceil(replicas, 4)
		_, rate := m.Best(l, g, nodes, replicas)
		for global := max(l.MinBatch, replicas*l.MinLocal); global <= l.MaxBatch; global++ {
			if r := m.Rate(l, g, nodes, replicas, l.Split(global, replicas)); r > rate*1.03 {
				t.Fatalf("batch %d gives %v, the best %v", global, r, rate)
			}
		}
	})
}

// TestFitLike: of a device on which one replica was seen, the growth with replicas
// comes from the other device, the time of computing from here.
func TestFitLike(t *testing.T) {
	slow, fast := truth{0.1, 0.004, 0.02, 0.3, 0.001, 1.5}, truth{0.04, 0.0016, 0.02, 0.3, 0.001, 1.5}
	var seen []Observation
	for _, s := range []shape{{1, 1}, {1, 2}, {1, 4}, {2, 8}} {
		for _, local := range []int{8, 32, 64} {
			seen = append(seen, slow.see(s.nodes, s.replicas, local))
		}
	}
	known := Fit(seen)
	m := FitLike([]Observation{fast.see(1, 1, 32)}, known)
	if by, ok := m.Ratio(known); !ok || math.Abs(by-0.4) > 0.01 {
		t.Errorf("takes %v of the time", by)
	}
	for _, s := range []shape{{1, 1}, {1, 4}, {2, 8}, {4, 16}} {
		want := fast.see(s.nodes, s.replicas, 32).Step
		if got, _ := m.Times(s.nodes, s.replicas, 32); math.Abs(got/want-1) > 0.1 {
			t.Errorf("%+v: %v, want %v", s, got, want)
		}
	}
	if m := FitLike(nil, known); m.Known() {
		t.Error("of nothing")
	}
	if m := FitLike(seen, Fit(nil)); m.Most() != 8 {
		t.Error("like nothing")
	}
}

// TestPlanDevices: who gains most by the faster device gets it, and nothing idles.
func TestPlanDevices(t *testing.T) {
	l := Limits{MinLocal: 1, MaxLocal: 64, MinBatch: 8, MaxBatch: 4096, MaxReplicas: 64}
	u := truth{0.01, 0.01, 0.001, 0.01, 0, 1}
	m := Fit([]Observation{u.see(1, 1, 8), u.see(1, 1, 32), u.see(1, 2, 32), u.see(1, 4, 32)})
	nodes := []Node{{4, "slow"}, {4, "fast"}}
	job := func(id int, by float64) Job {
		return Job{ID: id, Min: 4, Max: 4, Batch: 256, Gradient: Gradient{1, 100}, On: map[string]Device{"slow": {m, l}, "fast": {m.Scaled(by), l}}}
	}
	for _, jobs := range [][]Job{{job(1, 0.25), job(2, 0.9)}, {job(2, 0.9), job(1, 0.25)}} {
		plan := Default.Plan(nodes, jobs)
		if len(plan) != 2 || plan[1][0].Node != 1 || plan[2][0].Node != 0 {
			t.Error(plan)
		}
	}
}

// population draws a cluster and jobs, some of which run.
func population(t *rapid.T) ([]Node, []Job) {
	devices := rapid.SampledFrom([][]string{{"a"}, {"a", "b"}}).Draw(t, "devices")
	nodes := make([]Node, rapid.IntRange(1, 12).Draw(t, "nodes"))
	for i := range nodes {
		nodes[i] = Node{GPUs: rapid.IntRange(0, 8).Draw(t, "gpus"), Device: rapid.SampledFrom(devices).Draw(t, "device")}
	}
	u := truth{0.05, 0.002, 0.02, 0.3, 0.001, 1.5}
	m := Fit([]Observation{u.see(1, 1, 8), u.see(1, 1, 64), u.see(1, 2, 32), u.see(1, 4, 32), u.see(2, 8, 32)})
	l := Limits{MinLocal: 8, MaxLocal: 64, MinBatch: 32, MaxBatch: 4096, MaxReplicas: 64}
	models := []map[string]Device{{"a": {m, l}}, {"a": {Fit(nil), l}}, {"a": {m, l}, "b": {m.Scaled(0.4), l}}, {"a": {m, l}, "b": {Fit(nil), l}}, {"b": {m, l}}}
	free := make([]int, len(nodes))
	for i := range free {
		free[i] = nodes[i].GPUs
	}
	jobs := make([]Job, rapid.IntRange(0, 30).Draw(t, "jobs"))
	for i := range jobs {
		j := Job{
			ID: i + 100, Min: 1, Max: rapid.IntRange(1, 32).Draw(t, "max"), On: rapid.SampledFrom(models).Draw(t, "models"),
			Gradient: Gradient{Sqr: 1, Var: rapid.Float64Range(0, 1000).Draw(t, "noise")},
			Age:      rapid.Float64Range(0, 1e6).Draw(t, "age"), Service: rapid.Float64Range(0, 1e6).Draw(t, "service"),
			Restarts: rapid.IntRange(0, 40).Draw(t, "restarts"),
		}
		if rapid.Bool().Draw(t, "rigid") {
			j.Min, j.Batch = j.Max, max(512, 8*j.Max)
		}
		if n := rapid.IntRange(0, len(nodes)-1).Draw(t, "node"); free[n] > 0 && rapid.Bool().Draw(t, "runs") {
			if _, may := j.On[nodes[n].Device]; may {
				k := rapid.IntRange(1, free[n]).Draw(t, "replicas")
				free[n] -= k
				j.Placement, j.Device, j.Started = Placement{{n, k}}, nodes[n].Device, true
			}
		}
		jobs[i] = j
	}
	return nodes, jobs
}

// TestPlan: nothing is given twice, nobody gets what it cannot have, one device
// per job, no accelerator idles that somebody could use, and the plan is a
// function that changes nothing.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, jobs := population(t)
		before := fmt.Sprint(nodes, jobs)
		plan := Default.Plan(nodes, jobs)
		if fmt.Sprint(nodes, jobs) != before {
			t.Fatal("the plan changed its input")
		}
		if again := Default.Plan(nodes, jobs); !reflect.DeepEqual(plan, again) {
			t.Fatalf("two plans: %v, %v", plan, again)
		}
		free := map[int]int{}
		idle := map[string]int{}
		for i, n := range nodes {
			free[i] = n.GPUs
			idle[n.Device] += n.GPUs
		}
		for _, j := range jobs {
			p, ok := plan[j.ID]
			if !ok {
				continue
			}
			if n := p.Replicas(); n < j.Min || n > j.Max {
				t.Fatalf("job %d has %d replicas of %d to %d", j.ID, n, j.Min, j.Max)
			}
			on := map[int]bool{}
			for _, s := range p {
				if on[s.Node] || s.GPUs < 1 || nodes[s.Node].Device != nodes[p[0].Node].Device || j.On[nodes[s.Node].Device].Model == nil {
					t.Fatalf("job %d is on %v", j.ID, p)
				}
				on[s.Node] = true
				idle[nodes[s.Node].Device] -= s.GPUs
				if free[s.Node] -= s.GPUs; free[s.Node] < 0 {
					t.Fatalf("node %d is given twice", s.Node)
				}
			}
		}
		for _, j := range jobs {
			for device := range j.On {
				if _, runs := plan[j.ID]; !runs && idle[device] >= j.Min && j.Age > float64(j.Restarts+1)*Default.Restart {
					t.Fatalf("job %d waits beside %d idle accelerators", j.ID, idle[device])
				}
			}
		}
	})
}

// TestPlanRests: asked again a minute later, with nothing new, few jobs move.
func TestPlanRests(t *testing.T) {
	moved, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		nodes, jobs := population(t)
		for i := range jobs {
			jobs[i].Age, jobs[i].Restarts = jobs[i].Age+3600, 0
		}
		plan := Default.Plan(nodes, jobs)
		for i := range jobs {
			j := &jobs[i]
			j.Placement, j.Device = plan[j.ID], ""
			if n := j.Placement.Replicas(); n > 0 {
				j.Device, j.Started = nodes[j.Placement[0].Node].Device, true
				j.Service += float64(60 * n)
			}
			j.Age += 60
		}
		next := Default.Plan(nodes, jobs)
		for _, j := range jobs {
			all++
			if !reflect.DeepEqual(next[j.ID], j.Placement) {
				moved++
			}
		}
	})
	t.Logf("%d of %d moved", moved, all)
	if moved*10 > all {
		t.Errorf("%d of %d jobs move", moved, all)
	}
}

// TestPlanClears: a job of a whole node gets one, though small jobs are on all.
func TestPlanClears(t *testing.T) {
	on := map[string]Device{"a": {Fit(nil), Limits{MinLocal: 1, MaxLocal: 64, MinBatch: 8, MaxBatch: 1024, MaxReplicas: 64}}}
	nodes := []Node{{4, "a"}, {4, "a"}}
	job := func(id, replicas int, p Placement) Job {
		return Job{ID: id, Min: replicas, Max: replicas, Batch: 64, On: on, Placement: p, Device: "a", Started: len(p) > 0, Age: 1000}
	}
	plan := Default.Plan(nodes, []Job{job(1, 2, Placement{{0, 2}}), job(2, 2, Placement{{1, 2}}), job(3, 4, nil)})
	if len(plan) != 3 || len(plan[3]) != 1 || plan[1][0].Node != plan[2][0].Node {
		t.Error(plan)
	}
}

// TestPlanLearns: a job that does not scale leaves accelerators to one that does.
func TestPlanLearns(t *testing.T) {
	l := Limits{MinLocal: 1, MaxLocal: 64, MinBatch: 8, MaxBatch: 4096, MaxReplicas: 64}
	good, bad := truth{0.01, 0.01, 0.001, 0.001, 0, 1}, truth{0.01, 0.01, 5, 5, 1, 1}
	on := func(u truth) map[string]Device {
		return map[string]Device{"a": {Fit([]Observation{u.see(1, 1, 32), u.see(1, 2, 32), u.see(1, 4, 32), u.see(2, 8, 32), u.see(2, 8, 64)}), l}}
	}
	jobs := []Job{
		{ID: 1, Min: 1, Max: 16, On: on(bad), Gradient: Gradient{1, 0.1}},
		{ID: 2, Min: 1, Max: 16, On: on(good), Gradient: Gradient{1, 1000}},
	}
	plan := Default.Plan([]Node{{4, "a"}, {4, "a"}, {4, "a"}}, jobs)
	if plan[1].Replicas() != 1 || plan[2].Replicas() < 8 {
		t.Error(plan)
	}
}

func BenchmarkPlan(b *testing.B) {
	u := truth{0.05, 0.002, 0.02, 0.3, 0.001, 1.5}
	m := Fit([]Observation{u.see(1, 1, 8), u.see(1, 1, 64), u.see(1, 2, 32), u.see(1, 4, 32), u.see(2, 8, 32)})
	l := Limits{MinLocal: 8, MaxLocal: 64, MinBatch: 32, MaxBatch: 4096, MaxReplicas: 64}
	for _, size := range []struct{ nodes, jobs int }{{16, 160}, {512, 5120}} {
		b.Run(fmt.Sprintf("gpus=%d/jobs=%d", size.nodes*4, size.jobs), func(b *testing.B) {
			nodes, jobs := make([]Node, size.nodes), make([]Job, size.jobs)
			for i := range nodes {
				nodes[i] = Node{4, "a"}
			}
			for i := range jobs {
				jobs[i] = Job{
					ID: i, Min: 1, Max: 64, On: map[string]Device{"a": {m, l}}, Age: float64(i * 60), Service: float64(i * i % 100000), Gradient: Gradient{1, float64(i % 977)},
				}
			}
			for b.Loop() {
				Default.Plan(nodes, jobs)
			}
		})
	}
}
