package compute_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// large is a world with room for some one-core workloads at once, whose
// workloads without an owner run until they are told to end.
func large(tb testing.TB, slots int64) *world {
	tb.Helper()
	return newWorld(tb, func(c *compute.Config) {
		e := c.Engines["local"]
		e.Machine = resource.Amount{CPU: resource.Cores(slots), Memory: 1 << 50}
		c.Engines["local"] = e
		c.Log = slog.New(slog.DiscardHandler)
	})
}

func (w *world) enqueue(ctx context.Context, id compute.WorkloadID) error {
	return w.db.Update(ctx, "p", func(ctx context.Context, tx *store.Tx) error {
		return w.Submit(ctx, tx, compute.Request{
			ID: id, Project: "p", Kind: compute.Query, Spec: &engine.Spec{Command: []string{"x"}},
			Amount: resource.Amount{CPU: resource.Cores(1), Memory: resource.MiB},
		})
	})
}

// flood queues n workloads from many clients at once.
func (w *world) flood(tb testing.TB, n int) {
	tb.Helper()
	var clients sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		clients.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := w.enqueue(tb.Context(), compute.WorkloadID(fmt.Sprintf("att_%06d", i))); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// TestThousandsAtOnce: of all that is queued at once, what is cancelled never
// runs, and the rest runs, each once and some at a time. There are more than one
// cycle places and than the metrics explain.
func TestThousandsAtOnce(t *testing.T) {
	const jobs, wanted, slots = 3_000, 500, 200
	w := large(t, slots)
	var now, most, all atomic.Int64
	hold := make(chan struct{})
	w.engine.Behave(func(p *enginetest.Process) enginetest.Exit {
		n := now.Add(1)
		defer now.Add(-1)
		all.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select {
		case <-hold:
		case <-p.Term:
		}
		return enginetest.Exit{}
	})
	w.flood(t, jobs)
	w.Start(t.Context())
	why, err := w.Why(t.Context(), "att_003000")
	if err != nil || len(why) == 0 {
		t.Fatalf("why %q, %v", why, err)
	}
	name := func(i int) compute.WorkloadID { return compute.WorkloadID(fmt.Sprintf("att_%06d", i)) }
	for first := wanted + 1; first <= jobs; first += 500 {
		err := w.db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
			for i := first; i < first+500; i++ {
				if err := w.Cancel(ctx, tx, name(i), "not needed"); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	close(hold)
	ran := 0
	for i := 1; i <= jobs; i++ {
		got, err := w.Wait(t.Context(), name(i))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case got.Status.Reason == engine.Exited:
			ran++
		case i <= wanted || got.Outcome() != "not needed":
			t.Fatalf("%+v", got)
		}
	}
	if all.Load() != int64(ran) || most.Load() > slots {
		t.Errorf("%d ran, %d of them at once; not %d and at most %d", all.Load(), most.Load(), ran, slots)
	}
}

// BenchmarkSubmit is 64 clients that queue a workload each, durably.
func BenchmarkSubmit(b *testing.B) {
	w := large(b, 1)
	w.Start(b.Context())
	var next atomic.Int64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := w.enqueue(b.Context(), compute.WorkloadID(fmt.Sprintf("att_%09d", next.Add(1)))); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkDispatch is workloads that end at once: from queued to settled, 200
// at a time, with 10,000 more behind them that never get their turn.
func BenchmarkDispatch(b *testing.B) {
	w := large(b, 200)
	w.engine.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	w.flood(b, 10_000)
	err := w.db.Update(b.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
		for i := range b.N {
			err := w.Submit(ctx, tx, compute.Request{
				ID: compute.WorkloadID(fmt.Sprintf("first_%09d", i)), Project: "p", Kind: compute.JobAttempt, Priority: 1,
				Amount: resource.Amount{CPU: resource.Cores(1), Memory: resource.MiB},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	w.Start(b.Context())
	for i := range b.N {
		if _, err := w.Wait(b.Context(), compute.WorkloadID(fmt.Sprintf("first_%09d", i))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkQueued is the memory that 10,000 queued and 200 running workloads
// take.
func BenchmarkQueued(b *testing.B) {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what had a finaliser
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	for b.Loop() {
		w := large(b, 200)
		before := heap()
		w.Start(b.Context())
		w.flood(b, 10_200)
		for range 200 {
			select {
			case <-w.engine.Started():
			case <-time.After(time.Minute):
				b.Fatal("not all have started")
			}
		}
		b.ReportMetric(heap()-before, "MiB")
		w.Stop()
	}
}
