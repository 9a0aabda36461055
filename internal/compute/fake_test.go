package compute_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// fake is an engine whose workloads end when the test says so, that can fail
// to stop, and that meters.
type fake struct {
	*enginetest.Fake
	quiet atomic.Bool // the next Stop is not answered
	tardy atomic.Bool // time-outs are not kept
	vague atomic.Bool // it does not say when
}

func (f *fake) Start(ctx context.Context, spec engine.Spec) (engine.Handle, error) {
	if f.tardy.Load() {
		spec.Timeout = 0
	}
	return f.Fake.Start(ctx, spec)
}

func (f *fake) Stop(ctx context.Context, h engine.Handle, grace time.Duration) error {
	if f.quiet.CompareAndSwap(true, false) {
		return fault.New(fault.Unavailable, "the engine does not respond")
	}
	return f.Fake.Stop(ctx, h, grace)
}

func (f *fake) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	st, err := f.Fake.Wait(ctx, h)
	st.CPU, st.PeakRSS = 2*time.Second, resource.GiB
	if f.vague.Load() {
		st.Started, st.Ended = time.Time{}, time.Time{}
	}
	return st, err
}

var (
	_ engine.Driver  = (*fake)(nil)
	_ engine.Denials = (*fake)(nil)
)

// owner records what it is told.
type owner struct {
	mu       sync.Mutex
	changed  []string
	finished map[compute.WorkloadID]int
	prepare  func(ctx context.Context, w compute.Workload) (engine.Spec, error)
	finish   func(w compute.Workload) error
}

func (o *owner) Prepare(ctx context.Context, w compute.Workload, _ compute.Pool) (engine.Spec, error) {
	if o.prepare != nil {
		return o.prepare(ctx, w)
	}
	return engine.Spec{Command: []string{"true"}}, nil
}

func (o *owner) Changed(_ context.Context, tx *store.Tx, w compute.Workload) error {
	note := fmt.Sprintf("%s %s", w.ID, w.State)
	tx.OnCommit(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.changed = append(o.changed, note)
	})
	return nil
}

func (o *owner) Finish(_ context.Context, w compute.Workload) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished == nil {
		o.finished = map[compute.WorkloadID]int{}
	}
	o.finished[w.ID]++
	if o.finish != nil {
		return o.finish(w)
	}
	return nil
}

type allowAll struct{}

func (allowAll) Allow(context.Context, policy.Action, policy.Object) error { return nil }

type allowNone struct{}

func (allowNone) Allow(_ context.Context, a policy.Action, _ policy.Object) error {
	return fault.New(fault.PermissionDenied, "%s is not allowed", a)
}

type journal struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (j *journal) Record(_ context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	return nil
}

// world is a service over a real database and a fake engine.
type world struct {
	*services
	db      *store.DB
	engine  *fake
	owner   *owner
	journal *journal
	cfg     compute.Config
	handles map[string]engine.Handle // of what awaitStart saw
}

func newWorld(tb testing.TB, edit ...func(*compute.Config)) *world {
	tb.Helper()
	db := database(tb, computesql.Migrations)
	w := &world{db: db, engine: &fake{Fake: enginetest.NewFake()}, owner: &owner{}, journal: &journal{}, handles: map[string]engine.Handle{}}
	w.cfg = compute.Config{
		DB: db, Store: computesql.Store{}, Authorizer: allowAll{}, Journal: w.journal, Guard: border.NewGuard(w.journal),
		Engines: map[string]compute.Engine{"local": {
			Driver: w.engine, Isolation: scheduler.Sandbox, Machine: resource.Amount{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
		}},
		Log: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	for _, e := range edit {
		e(&w.cfg)
	}
	w.restart(tb)
	if _, err := w.EnsureHome(tb.Context(), "local"); err != nil {
		tb.Fatal(err)
	}
	return w
}

// withFar adds an engine whose nodes are not the server's machine.
func withFar(c *compute.Config) {
	far := c.Engines["local"]
	far.Remote = true
	c.Engines["far"] = far
}

// restart makes a new service over the same database and engine; Start it.
func (w *world) restart(tb testing.TB) {
	tb.Helper()
	if w.services != nil {
		w.Stop()
	}
	w.services = newServices(w.cfg)
	w.RegisterOwner(compute.JobAttempt, w.owner)
	tb.Cleanup(w.Stop)
}

func (w *world) submit(t *testing.T, r compute.Request) {
	t.Helper()
	if r.Kind == "" {
		r.Kind = compute.JobAttempt
	}
	if r.Project == "" {
		r.Project = "p"
	}
	if r.Amount.CPU == 0 {
		r.Amount = resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB}
	}
	if err := w.db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error { return w.Submit(ctx, tx, r) }); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop(t *testing.T, id compute.WorkloadID, reason string) {
	t.Helper()
	if err := w.db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error { return w.Cancel(ctx, tx, id, reason) }); err != nil {
		t.Fatal(err)
	}
}

// awaitStart waits until the engine has started a workload.
func (w *world) awaitStart(t *testing.T) string {
	t.Helper()
	select {
	case h := <-w.engine.Started():
		spec, _ := w.engine.Spec(h)
		w.handles[spec.ID] = h
		return spec.ID
	case <-t.Context().Done():
		t.Fatal("nothing was started")
		return ""
	}
}

func (w *world) wait(t *testing.T, id compute.WorkloadID) compute.Workload {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := w.Wait(ctx, id)
	if err != nil {
		t.Fatalf("%s does not settle: %v (%+v)", id, err, got)
	}
	return got
}

// end ends a workload that awaitStart saw.
func (w *world) end(id string, e enginetest.Exit) { w.engine.Finish(w.handles[id], e) }

// services are those of compute as one.
type services struct {
	*compute.Pools
	*compute.Queues
	*compute.Costs
	*compute.Workloads
	*compute.Programs
	*compute.Records
	*compute.Scheduling
}

func newServices(cfg compute.Config) *services {
	s := compute.New(cfg)
	return &services{s.Pools, s.Queues, s.Costs, s.Workloads, s.Programs, s.Records, s.Scheduling}
}
