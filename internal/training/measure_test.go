package training_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/event/eventtest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/sizing"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// using is an engine whose workers use what the test says.
type using struct {
	*enginetest.Fake
	clock *clock
	mu    sync.Mutex
	now   []engine.Member
	took  map[engine.Handle]time.Duration // how long a workload ran, where the test says so
}

func (u *using) Members(ctx context.Context, h engine.Handle) ([]engine.Member, error) {
	st, err := u.Status(ctx, h)
	u.mu.Lock()
	defer u.mu.Unlock()
	all := slices.Clone(u.now)
	for i := range all {
		all[i].Index, all[i].State, all[i].Started, all[i].Ended = i, st.State, st.Started, st.Ended
		all[i].CPU = 2 * u.clock.now().Sub(st.Started) // two cores, all the time
	}
	return all, err
}

func (u *using) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	st, err := u.Fake.Wait(ctx, h)
	u.mu.Lock()
	defer u.mu.Unlock()
	if d, ok := u.took[h]; ok {
		st.Ended = st.Started.Add(d)
	}
	return st, err
}

func (u *using) takes(h engine.Handle, d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.took[h] = d
}

func (u *using) uses(all ...engine.Member) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now = all
}

// clock is a time that the test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// gpus are two nodes with an A100 each, and one with a T4, each a pool.
func gpus(tb testing.TB, w *world) {
	tb.Helper()
	pool := func(name compute.PoolName, model string, price float64, nodes ...string) {
		spec := compute.PoolSpec{Engine: "local", PricePerHour: price}
		for _, n := range nodes {
			spec.Nodes = append(spec.Nodes, compute.Node{
				Name: n, CPU: resource.Cores(16), Memory: 64 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 1},
				Labels: map[string]string{"gpu.model": model},
			})
		}
		if _, _, err := w.compute.ApplyPool(alice(tb.Context()), name, spec); err != nil {
			tb.Fatal(err)
		}
	}
	pool("big", "NVIDIA A100-SXM4-80GB", 30, "a1", "a2")
	pool("small", "Tesla T4", 9, "t1")
}

var oneGPU = resource.Amount{CPU: resource.Cores(16), Memory: 64 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 1}}

// of is a sample of a worker with a GPU.
func of(busy float64, memory resource.Bytes) engine.Member {
	return engine.Member{PeakRSS: 5 * resource.GiB, Usage: engine.Usage{
		Memory: 4 * resource.GiB, Accelerators: []engine.Accelerator{{Name: "GPU", Utilisation: &busy, Memory: memory, Watts: 100}},
	}}
}

// measured is what was kept of a job's newest attempt.
func (w *world) measured(tb testing.TB, family string) (all []training.Measurement) {
	tb.Helper()
	err := w.cfg.DB.View(tb.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = trainingsql.Store{}.Measured(ctx, tx, nyc, family, 100)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// still is a world whose clock stands, on an engine that says what is used.
func still(tb testing.TB) (*world, *using, *clock) {
	tb.Helper()
	c := &clock{at: time.Now()}
	e := &using{Fake: enginetest.NewFake(), clock: c, took: map[engine.Handle]time.Duration{}}
	w := newWorld(tb, e)
	w.fake = e.Fake
	w.stop()
	w.cfg.Now, w.cfg.MeasureEvery = c.now, time.Hour
	w.start(tb)
	gpus(tb, w)
	return w, e, c
}

func (w *world) running(tb testing.TB, id training.JobID) training.Job {
	tb.Helper()
	for {
		j, err := w.Wait(alice(tb.Context()), nyc, id, 50*time.Millisecond)
		if err != nil || tb.Context().Err() != nil {
			tb.Fatal(err)
		}
		if j.State == training.Running {
			return j
		}
	}
}

// run is a job that uses something for some minutes and succeeds.
func (w *world) run(tb testing.TB, e *using, c *clock, name string, spec training.Spec, pace float64, uses ...engine.Member) training.Job {
	tb.Helper()
	spec.Command = []string{"/bin/true"}
	e.uses(uses[0])
	w.runs.mu.Lock()
	w.runs.progress = training.Progress{First: training.Point{Step: 1, At: c.now()}, Last: training.Point{Step: 1 + int64(1000*pace), At: c.now().Add(1000 * time.Second)}}
	w.runs.mu.Unlock()
	j, err := w.Submit(alice(tb.Context()), nyc, name, spec)
	if err != nil {
		tb.Fatal(err)
	}
	h := w.started(tb)
	w.running(tb, j.ID)
	for _, u := range uses {
		e.uses(u)
		c.pass(10 * time.Second)
		if err := w.MeasureOnce(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	w.fake.Finish(h, enginetest.Exit{})
	return w.ended(tb, j.ID)
}

// TestMeasurement: what an attempt used and its pace are kept, as means and peaks.
func TestMeasurement(t *testing.T) {
	w, e, c := still(t)
	j := w.run(t, e, c, "resnet-seed-3", training.Spec{Resources: oneGPU, Pools: []string{"big"}, Batch: 256, Precision: "bf16", Accumulate: 2}, 2,
		of(0.1, 4*resource.GiB), of(0.3, 6*resource.GiB), of(0.2, 5*resource.GiB))
	all := w.measured(t, "resnet")
	if len(all) != 1 {
		t.Fatalf("%d measurements", len(all))
	}
	m := all[0]
	a := m.Accelerators
	if m.Job != j.ID || m.Pool != "big" || m.Device != "NVIDIA A100-SXM4-80GB" || m.Workers != 1 || m.Samples != 3 || m.Class != training.Done || m.Ended.IsZero() {
		t.Errorf("%+v", m)
	}
	if a == nil || a.Count != 1 || fmt.Sprintf("%.3f %.3f %.0f", a.Busy, a.Peak, a.Watts) != "0.200 0.300 100" || a.Memory != 6*resource.GiB {
		t.Errorf("%+v", a)
	}
	if fmt.Sprintf("%.1f", m.PeakCores) != "2.0" || m.AskedCores != 16 || m.Memory != 5*resource.GiB || m.Asked.Memory != 64*resource.GiB || m.Cores <= 0 {
		t.Errorf("%+v", m.Use)
	}
	if m.Unit != sizing.Examples || m.Rate != 512 || m.PerStep != 2 || m.Setting != "batch 256, accumulate 2, bf16" {
		t.Errorf("%s %g %s", m.Unit, m.Rate, m.Setting)
	}
	if got := w.runs.specs[0].Params["falaj.batch"]; got != "256" {
		t.Errorf("the run has batch %q", got)
	}
}

// Without steps a job that succeeded at once is the unit, and one that did not is
// none.
func TestMeasurementOfRuns(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, j.ID)
	j = w.submit(t, training.Spec{})
	w.fake.Finish(w.started(t), enginetest.Exit{Code: 1})
	w.ended(t, j.ID)
	all := w.measured(t, "train")
	if len(all) != 2 || all[1].Unit != sizing.Runs || all[1].Rate <= 0 || all[0].Rate != 0 || all[0].Class != training.UserError {
		t.Errorf("%+v", all)
	}
}

// What others do on a shared GPU, or beside one's own, is not one's use.
func TestMeasuresOnlyItsOwn(t *testing.T) {
	w, e, c := still(t)
	two := of(0.9, resource.GiB)
	two.Usage.Accelerators = append(two.Usage.Accelerators, two.Usage.Accelerators[0])
	w.run(t, e, c, "beside", training.Spec{Resources: oneGPU, Pools: []string{"big"}}, 1, two)
	if m := w.measured(t, "beside")[0]; m.Accelerators != nil || m.Samples != 1 {
		t.Errorf("%+v", m)
	}
}

// A program that makes its steps up has no rate, and spoils nobody's advice.
func TestMadeUpSteps(t *testing.T) {
	w, e, c := still(t)
	spec := training.Spec{Resources: oneGPU, Pools: []string{"big"}, Batch: 1 << 30}
	honest := w.run(t, e, c, "honest", spec, 1, of(0.5, resource.GiB))
	w.run(t, e, c, "liar", spec, 1e14, of(0.5, 4096*resource.TiB))
	m := w.measured(t, "liar")[0]
	if m.Unit != sizing.Steps || m.Rate > sizing.MaxRate || m.Accelerators.Memory != 0 {
		t.Errorf("%+v", m)
	}
	if d := w.advice(t, honest.ID); d.Sentence == "" {
		t.Errorf("%+v", d)
	}
	if d := w.advice(t, m.Job); d.Sentence == "" {
		t.Errorf("%+v", d)
	}
}

// told are the events of a name, from the first on.
func told[T any](tb testing.TB, w *world, name string) (all []T) {
	tb.Helper()
	for _, e := range eventtest.All(tb, w.cfg.DB, name) {
		var body T
		if err := e.Decode(&body); err != nil {
			tb.Fatal(err)
		}
		all = append(all, body)
	}
	return all
}

// TestIdleAccelerator: a job that stopped using its GPU is told of once, also over a
// restart, and once when it uses it again or ends.
func TestIdleAccelerator(t *testing.T) {
	unknown := of(0, resource.GiB)
	unknown.Usage.Accelerators[0].Utilisation = nil // as in some virtual machines
	for name, c := range map[string]struct {
		later engine.Member
		want  []string
	}{"idle": {of(0, resource.GiB), []string{"began", "ended"}}, "not known": {unknown, nil}} {
		t.Run(name, func(t *testing.T) {
			w, e, at := still(t)
			e.uses(of(0.8, resource.GiB))
			j := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"big"}})
			h := w.started(t)
			w.running(t, j.ID)
			for i := range 200 {
				switch i {
				case 20:
					e.uses(c.later)
				case 100:
					w.stop()
					w.start(t)
				}
				at.pass(10 * time.Second)
				if err := w.MeasureOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			w.fake.Finish(h, enginetest.Exit{})
			w.ended(t, j.ID)
			var changes []string
			for _, e := range told[training.IdleAccelerator](t, w, training.JobIdleAccelerator) {
				changes = append(changes, string(e.Change))
				if e.Job != j.ID || e.Device != "NVIDIA A100-SXM4-80GB" || e.Busy <= 0 {
					t.Errorf("%+v", e)
				}
			}
			if !slices.Equal(changes, c.want) {
				t.Errorf("told %q, wanted %q", changes, c.want)
			}
		})
	}
}

// TestIdleAcceleratorIsReclaimed: a while after its owner was told, who leaves its GPU
// idle leaves for a job that waits for it, and goes on later; or ends, if it is not
// preemptible and its queue says so.
func TestIdleAcceleratorIsReclaimed(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		preemptible *bool
		class       training.Class
		event       string
	}{
		"saves": {nil, training.Preempted, "workload.preempted"},
		"ends":  {&no, training.Reclaimed, "workload.reclaimed"},
	} {
		t.Run(name, func(t *testing.T) {
			w, e, at := still(t)
			w.stop()
			w.ccfg.Now = at.now
			w.start(t)
			ctx := alice(t.Context())
			if _, _, err := w.compute.ApplyQueue(ctx, "lab", compute.QueueSpec{IdleReclaim: compute.Duration(30 * time.Minute), IdleEnd: true}); err != nil {
				t.Fatal(err)
			}
			e.uses(of(0.8, resource.GiB))
			idle := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"small"}, Queue: "lab", Preemptible: c.preemptible})
			w.started(t)
			w.running(t, idle.ID)
			waits := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"small"}})
			pass := func(busy float64, long time.Duration) {
				t.Helper()
				e.uses(of(busy, resource.GiB))
				for end := at.now().Add(long); at.now().Before(end); {
					at.pass(10 * time.Second)
					if err := w.MeasureOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			pass(0.8, 3*time.Minute)
			pass(0, 39*time.Minute)
			if _, err := w.compute.RunOnce(ctx); err != nil {
				t.Fatal(err)
			}
			why, err := w.Why(ctx, nyc, idle.ID)
			if err != nil || !strings.Contains(strings.Join(why, "\n"), "its accelerators are idle: after ") {
				t.Fatalf("%q, %v", why, err)
			}
			pass(0, 2*time.Minute)
			w.compute.Wake()
			h := w.started(t)
			if j := w.running(t, waits.ID); j.Pool != "small" {
				t.Fatalf("%+v", j)
			}
			if got := told[compute.WorkloadEvent](t, w, c.event); len(got) != 1 || got[0].For != compute.WorkloadID(waits.Attempt) || !strings.Contains(got[0].Reason, "have been idle for 30m") {
				t.Errorf("%+v", got)
			}
			w.fake.Finish(h, enginetest.Exit{})
			w.ended(t, waits.ID)
			if c.class == training.Preempted {
				w.fake.Finish(w.started(t), enginetest.Exit{})
			}
			if j := w.ended(t, idle.ID); (j.State == training.Succeeded) != (c.class == training.Preempted) || j.Class == "" {
				t.Fatalf("%+v", j)
			}
			d, err := w.Describe(ctx, nyc, idle.ID)
			if err != nil || d.Tries[0].Class != c.class || !strings.Contains(d.Tries[0].Reason, "and the accelerators of this workload have been idle for 30m") {
				t.Fatalf("%+v, %v", d.Tries, err)
			}
		})
	}
}

// TestSlowNode: a node on which the same work is slower than on its peer is told of
// once, and once when it is as fast again.
func TestSlowNode(t *testing.T) {
	w, e, c := still(t)
	on := map[string]int{}
	for i := range 24 {
		c.pass(time.Hour)
		// Full nodes: the second job of a pair goes to the other node.
		e.uses(of(0.5, resource.GiB))
		var jobs []training.JobID
		var handles []engine.Handle
		for range 2 {
			j := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"big"}, Command: []string{"/bin/true"}})
			handles = append(handles, w.started(t))
			jobs = append(jobs, w.running(t, j.ID).ID)
		}
		for k, id := range jobs {
			d, err := w.Describe(alice(t.Context()), nyc, id)
			if err != nil {
				t.Fatal(err)
			}
			pace := 10.0
			if on[d.Tries[0].Nodes[0]]++; d.Tries[0].Nodes[0] == "a1" && i < 10 {
				pace = 7
			}
			w.runs.mu.Lock()
			w.runs.progress = training.Progress{First: training.Point{Step: 1, At: c.now()}, Last: training.Point{Step: 1 + int64(1000*pace), At: c.now().Add(1000 * time.Second)}}
			w.runs.mu.Unlock()
			w.fake.Finish(handles[k], enginetest.Exit{})
			w.ended(t, id)
		}
		if on["a1"] != on["a2"] {
			t.Fatalf("%v", on)
		}
	}
	got := told[training.SlowNode](t, w, training.NodeSlow)
	if len(got) != 2 || got[0].Change != "began" || got[0].Node != "a1" || got[0].Pairs < 8 || got[0].Slower < 8 || got[1].Change != "ended" || got[1].Node != "a1" {
		t.Errorf("%+v", got)
	}
}

// TestShortRunsJudgeNoNode: of jobs without steps, one that runs for seconds says
// nothing of its node, whose start-up it is; one that runs longer does.
func TestShortRunsJudgeNoNode(t *testing.T) {
	for _, tt := range []struct {
		fast, slow time.Duration
		want       int
	}{
		{4 * time.Second, 8 * time.Second, 0},
		{20 * time.Second, 40 * time.Second, 1},
	} {
		w, e, c := still(t)
		for range 10 {
			c.pass(time.Hour)
			e.uses(of(0.5, resource.GiB))
			var jobs []training.JobID
			var handles []engine.Handle
			for range 2 { // full nodes, as above
				j := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"big"}})
				handles = append(handles, w.started(t))
				jobs = append(jobs, w.running(t, j.ID).ID)
			}
			for k, id := range jobs {
				d, err := w.Describe(alice(t.Context()), nyc, id)
				if err != nil {
					t.Fatal(err)
				}
				if e.takes(handles[k], tt.fast); d.Tries[0].Nodes[0] == "a1" {
					e.takes(handles[k], tt.slow)
				}
				w.fake.Finish(handles[k], enginetest.Exit{})
				w.ended(t, id)
				if _, err := w.compute.Wait(t.Context(), compute.WorkloadID(d.Tries[0].ID)); err != nil { // and judged
					t.Fatal(err)
				}
			}
		}
		if m := w.measured(t, "train"); len(m) != 20 || m[0].Unit != sizing.Runs || m[0].Rate <= 0 {
			t.Errorf("%d measurements, the newest %+v", len(m), m[0])
		}
		got := told[training.SlowNode](t, w, training.NodeSlow)
		if len(got) != tt.want || tt.want > 0 && (got[0].Node != "a1" || got[0].Change != "began") {
			t.Errorf("runs of %s, and %s on a1: %+v", tt.fast, tt.slow, got)
		}
	}
}

// TestMeasurementsAreKept on both databases.
func TestMeasurementsAreKept(t *testing.T) {
	db := database(t, computesql.Migrations, trainingsql.Migrations)
	s := trainingsql.Store{}
	m := training.Measurement{
		Attempt: "att_1", Job: "job_1", Project: nyc, Family: "f", Pool: "p", Nodes: []string{"n", "n"}, Device: "d", Workers: 2, Unit: sizing.Steps, Rate: 1.5,
		Started: time.UnixMicro(1e15).UTC(), Ended: time.UnixMicro(1e15 + 5).UTC(),
	}
	err := db.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		if err := s.InsertJob(ctx, tx, training.Job{ID: "job_1", Project: nyc, Name: "f", State: training.Queued}); err != nil {
			return err
		}
		if err := s.InsertAttempt(ctx, tx, training.Attempt{ID: "att_1", Job: "job_1", Number: 1}); err != nil {
			return err
		}
		running := m
		running.Ended, running.Rate = time.Time{}, 0
		if err := s.SaveMeasurement(ctx, tx, running); err != nil {
			return err
		}
		if all, err := s.Rates(ctx, tx, 10); err != nil || len(all) != 0 {
			return fmt.Errorf("what runs has a rate: %v, %w", all, err)
		}
		if err := s.SaveMeasurement(ctx, tx, m); err != nil {
			return err
		}
		got, found, err := s.Measurement(ctx, tx, "att_1")
		if err != nil || !found || got.Rate != 1.5 || !got.Ended.Equal(m.Ended) {
			return fmt.Errorf("%+v, %t, %w", got, found, err)
		}
		ran, err := s.Ran(ctx, tx, "p", "d", 10)
		if err != nil || len(ran) != 1 || ran[0].Node != "n" || !strings.HasPrefix(ran[0].Kind, "nyc/f steps") || !ran[0].At.Equal(m.Ended) {
			return fmt.Errorf("%+v, %w", ran, err)
		}
		rates, err := s.Rates(ctx, tx, 10)
		if err != nil || len(rates) != 1 || rates[0].Family != "nyc/f" || rates[0].Rate != 1.5 || rates[0].Workers != 2 {
			return fmt.Errorf("%+v, %w", rates, err)
		}
		n := training.SlowNode{Pool: "p", Node: "n", Since: m.Ended}
		if err := s.SaveSlowNode(ctx, tx, n); err != nil {
			return err
		}
		if was, found, err := s.SlowNode(ctx, tx, "p", "n"); err != nil || !found || !was.Since.Equal(n.Since) {
			return fmt.Errorf("%+v, %t, %w", was, found, err)
		}
		n.Change = "ended"
		if err := s.SaveSlowNode(ctx, tx, n); err != nil {
			return err
		}
		was, _, err := s.SlowNode(ctx, tx, "p", "n")
		if err != nil || was.Change != "ended" {
			return fmt.Errorf("%+v, %w", was, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFamily(t *testing.T) {
	for name, want := range map[string]string{
		"delay": "delay", "delay-7": "delay", "delay-seed-3": "delay", "delay-trial12": "delay", "lr-sweep-3-seed-1": "lr", "resnet50": "resnet50",
		"resnet-50": "resnet", "run-7": "run", "b2-7": "b2", "7": "7",
	} {
		if got := (training.Job{Name: name}).FamilyName(); got != want {
			t.Errorf("%s is of family %q, want %q", name, got, want)
		}
	}
	if got := (training.Job{Name: "resnet-50", Spec: training.Spec{Family: "r50"}}).FamilyName(); got != "r50" {
		t.Errorf("family %q", got)
	}
	spec := training.Spec{Batch: 64, Accumulate: 2, Precision: "bf16", Processes: 8, Parallel: training.Parallel{Data: 2, Tensor: 4}, Steps: 9}
	if got := training.SettingOf(spec); got != "batch 64, accumulate 2, bf16, 8 processes, data 2, tensor 4" {
		t.Errorf("%q", got)
	}
}

// BenchmarkAdvice: with as much measured as an answer goes by.
func BenchmarkAdvice(b *testing.B) {
	w, e, c := still(b)
	j := w.run(b, e, c, "f0-1", training.Spec{Resources: oneGPU, Pools: []string{"big"}}, 1, of(0.2, resource.GiB))
	err := w.cfg.DB.Update(b.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		if err := (trainingsql.Store{}).InsertJob(ctx, tx, training.Job{ID: "job_others", Project: nyc, Name: "others", State: training.Succeeded}); err != nil {
			return err
		}
		for i := range 20_000 {
			a := training.AttemptID(fmt.Sprintf("att_%05d", i))
			if err := (trainingsql.Store{}).InsertAttempt(ctx, tx, training.Attempt{ID: a, Job: "job_others", Number: i}); err != nil {
				return err
			}
			m := training.Measurement{
				Attempt: a, Job: "job_others", Project: nyc, Family: fmt.Sprint("f", i%40), Pool: "small", Nodes: []string{"t1"}, Workers: 1, Unit: sizing.Steps,
				Device: []string{"Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"}[i%3], Rate: 1 + float64(i%7), Class: training.Done, Started: c.now(), Ended: c.now(),
			}
			if err := (trainingsql.Store{}).SaveMeasurement(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if d := w.advice(b, j.ID); len(d.Options) == 0 {
			b.Fatal("no options")
		}
	}
}
