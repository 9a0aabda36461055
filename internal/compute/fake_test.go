package compute_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// fake is an engine whose workloads end when the test says so. It outlives the
// service, as processes do.
type fake struct {
	mu      sync.Mutex
	procs   map[engine.Handle]*proc
	starts  map[string]int
	started chan string // each new workload's id
	deny    []engine.Denial
	fail    error // of the next Start
	quiet   bool  // Stop is ignored once
}

type proc struct {
	spec   engine.Spec
	status engine.Status
	ended  chan struct{}
}

func newFake() *fake {
	return &fake{procs: map[engine.Handle]*proc{}, starts: map[string]int{}, started: make(chan string, 100)}
}

func (f *fake) Start(_ context.Context, spec engine.Spec) (engine.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail; err != nil {
		f.fail = nil
		return "", err
	}
	h := engine.Handle("fake:" + spec.ID)
	if f.procs[h] != nil {
		return h, nil
	}
	f.procs[h] = &proc{spec: spec, status: engine.Status{State: engine.Running, Started: time.Now()}, ended: make(chan struct{})}
	f.starts[spec.ID]++
	f.started <- spec.ID
	return h, nil
}

func (f *fake) find(h engine.Handle) (*proc, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.procs[h]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.NotFound, "no workload %s", h)
}

func (f *fake) end(id string, st engine.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[engine.Handle("fake:"+id)]
	st.State, st.Started, st.Ended = engine.Ended, p.status.Started, time.Now()
	p.status = st
	close(p.ended)
}

func (f *fake) Status(_ context.Context, h engine.Handle) (engine.Status, error) {
	p, err := f.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.status, nil
}

func (f *fake) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	p, err := f.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	select {
	case <-p.ended:
		return f.Status(ctx, h)
	case <-ctx.Done():
		return engine.Status{}, ctx.Err()
	}
}

func (f *fake) Stop(_ context.Context, h engine.Handle, _ time.Duration) error {
	p, err := f.find(h)
	if err != nil {
		return err
	}
	f.mu.Lock()
	running, quiet := p.status.State == engine.Running, f.quiet
	f.quiet = false
	f.mu.Unlock()
	if quiet {
		return fault.New(fault.Unavailable, "the engine does not answer")
	}
	if running {
		f.end(p.spec.ID, engine.Status{Reason: engine.Stopped})
	}
	return nil
}

func (f *fake) Logs(_ context.Context, h engine.Handle, offset int64, _ bool) (io.ReadCloser, error) {
	if _, err := f.find(h); err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(("output of " + string(h))[offset:])), nil
}

func (f *fake) List(context.Context) ([]engine.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var hs []engine.Handle
	for h := range f.procs {
		hs = append(hs, h)
	}
	return hs, nil
}

func (f *fake) Forget(_ context.Context, h engine.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.procs, h)
	return nil
}

func (f *fake) Denials(_ context.Context, _ engine.Handle, from int) ([]engine.Denial, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deny[min(from, len(f.deny)):], nil
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
	*compute.Service
	db      *store.DB
	engine  *fake
	owner   *owner
	journal *journal
	cfg     compute.Config
}

func newWorld(t *testing.T, edit ...func(*compute.Config)) *world {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{
		URL: "sqlite://" + filepath.Join(t.TempDir(), "falaj.db"), Migrations: []store.Migrations{computesql.Migrations},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	w := &world{db: db, engine: newFake(), owner: &owner{}, journal: &journal{}}
	w.cfg = compute.Config{
		DB: db, Store: computesql.Store{}, Authorizer: allowAll{}, Journal: w.journal,
		Engines: map[string]compute.Engine{"local": {
			Driver: w.engine, Isolation: scheduler.Sandbox, Machine: resource.Amount{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
		}},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, e := range edit {
		e(&w.cfg)
	}
	w.restart(t)
	if _, err := w.EnsureHome(t.Context(), "local"); err != nil {
		t.Fatal(err)
	}
	return w
}

// restart makes a new service over the same database and engine; Start it.
func (w *world) restart(t *testing.T) {
	t.Helper()
	if w.Service != nil {
		w.Stop()
	}
	w.Service = compute.New(w.cfg)
	w.Own(compute.JobAttempt, w.owner)
	t.Cleanup(w.Stop)
}

func (w *world) submit(t *testing.T, r compute.Request) {
	t.Helper()
	if r.Kind == "" {
		r.Kind = compute.JobAttempt
	}
	r.Project = "p"
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
	case id := <-w.engine.started:
		return id
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
