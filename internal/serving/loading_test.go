package serving_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
)

// watched is a runtime whose sessions are counted, and may be away. A load with
// hung threads does not end before the others have, nor before its time.
type watched struct {
	runtimetest.Fake

	mu      sync.Mutex
	open    int
	away    error
	options runtime.Options
	others  sync.WaitGroup
}

const hung = 7

func (r *watched) Load(ctx context.Context, m []byte, o runtime.Options) (runtime.Session, error) {
	if o.Threads == hung {
		r.others.Wait()
		select {
		case <-time.After(o.Time):
			return nil, runtime.Late(o.Time)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s, err := r.Fake.Load(ctx, m, o)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	r.options = o
	return watchedSession{s, r}, nil
}

type watchedSession struct {
	runtime.Session
	r *watched
}

func (s watchedSession) Close() error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.open--
	return nil
}

func (s watchedSession) Unavailable() error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.away
}

// TestHungLoad: a model that does not load in its time holds up no other one, and
// what answered before goes on.
func TestHungLoad(t *testing.T) {
	w, ctx := newWorld(), t.Context()
	s, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	apply := func(s *services, name string, threads int) {
		t.Helper()
		if _, _, err := s.Apply(ctx, "nyc", name, serving.Spec{Model: "delay", Version: "1", Threads: threads}, false); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"a", "b", "c"}
	for i, name := range names {
		apply(s, name, []int{hung, 1, 1}[i])
	}
	r := &watched{}
	r.others.Add(1) // until b and c answer
	again := newServices(serving.Config{
		DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: r, LoadTime: 50 * time.Millisecond,
	})
	ran := make(chan error, 1)
	go func() { ran <- again.RunOnce(ctx) }()
	for _, name := range names[1:] {
		for {
			if d, err := again.One(ctx, "nyc", name); err != nil || d.State == serving.Ready {
				break
			}
			select {
			case err := <-ran:
				t.Fatalf("the loader ended without %s: %v", name, err)
			case <-ctx.Done():
				t.Fatalf("%s waits for a", name)
			case <-time.After(time.Millisecond):
			}
		}
	}
	r.others.Done()
	if err := <-ran; !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	if d, err := again.One(ctx, "nyc", "a"); err != nil || d.State != serving.Failed || d.Reason != "loading the model exceeded 50ms" {
		t.Errorf("%s %q, %v", d.State, d.Reason, err)
	}
	if _, _, err := infer(ctx, again, "nyc", "a", "", ask, nil); !fault.Is(err, fault.Unavailable) || fault.RetryOf(err) == 0 {
		t.Errorf("got %v", err)
	}
	apply(s, "b", hung) // by another server
	if err := again.RunOnce(ctx); !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	if _, d, err := infer(ctx, again, "nyc", "b", "", ask, nil); err != nil || d.Spec.Threads != 1 {
		t.Errorf("%d threads, %v", d.Spec.Threads, err)
	}
}

// slowModels are files that are not read in their time.
type slowModels struct {
	serving.Models
	hang atomic.Bool
}

func (m *slowModels) OpenVerified(ctx context.Context, p, model, version string) (serving.Model, error) {
	if m.hang.Load() {
		<-ctx.Done()
		return serving.Model{}, ctx.Err()
	}
	return m.Models.OpenVerified(ctx, p, model, version)
}

// TestReadAgain: a process that is started again gets the file that was loaded, in
// its time, or none.
func TestReadAgain(t *testing.T) {
	w, ctx := newWorld(), t.Context()
	_, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	r, slow := &watched{}, &slowModels{Models: w}
	s := newServices(serving.Config{
		DB: db, Store: servingsql.Store{}, Authz: w, Models: slow, Journal: w, Guard: w, Runtime: r, LoadTime: 50 * time.Millisecond,
	})
	if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	if file, err := r.options.Again(ctx); err != nil || string(file) != string(runtimetest.FakeModel) {
		t.Errorf("%q, %v", file, err)
	}
	slow.hang.Store(true)
	if _, err := r.options.Again(ctx); !fault.Is(err, fault.Timeout) {
		t.Errorf("without an end: %v", err)
	}
	slow.hang.Store(false)
	w.models["delay/1"] = w.models["delay/2"]
	if _, err := r.options.Again(ctx); !fault.Is(err, fault.Conflict) {
		t.Errorf("another file: %v", err)
	}
}

// TestAway: a model whose process is gone is not ready, and has its share all the
// same.
func TestAway(t *testing.T) {
	w, ctx := newWorld(), t.Context()
	_, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	r := &watched{}
	s := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: r})
	if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	for _, away := range []error{nil, fault.New(fault.Unavailable, "it is started again"), nil} {
		r.mu.Lock()
		r.away = away
		r.mu.Unlock()
		want, reason := serving.Ready, ""
		if away != nil {
			want, reason = serving.Failed, away.Error()
		}
		if s.Ready("nyc") != (away == nil) || !s.Ready("empty") {
			t.Errorf("%v: ready is %v", away, s.Ready("nyc"))
		}
		if d, err := s.One(ctx, "nyc", "d"); err != nil || d.State != want || d.Reason != reason || d.Targets[0].Weight != 100 {
			t.Errorf("%v: %+v, %v", away, d, err)
		}
		if d, err := s.Metadata(ctx, "nyc", "d", ""); err != nil || (d.Away == nil) != (away == nil) {
			t.Errorf("%v: %v, %v", away, d.Away, err)
		}
	}
}

// TestCloseModels: the end of the service is that of its models, and nothing is
// loaded after it.
func TestCloseModels(t *testing.T) {
	w, ctx := newWorld(), t.Context()
	_, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	r := &watched{}
	s := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: r})
	for _, name := range []string{"a", "b"} {
		if _, _, err := s.Apply(ctx, "nyc", name, serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
			t.Fatal(err)
		}
	}
	if r.open != 2 {
		t.Fatalf("%d are open", r.open)
	}
	if err := s.Close(ctx); err != nil || r.open != 0 {
		t.Errorf("%d are open, %v", r.open, err)
	}
	if err := s.RunOnce(ctx); !fault.Is(err, fault.Unavailable) || r.open != 0 {
		t.Errorf("%d are open, %v", r.open, err)
	}
}

// hasty is a runtime whose models note how long they have for a run.
type hasty struct {
	*numbered
	most atomic.Int64
}

type hastySession struct {
	runtime.Session
	of *hasty
}

func (h *hasty) Load(ctx context.Context, m []byte, o runtime.Options) (runtime.Session, error) {
	s, err := h.numbered.Load(ctx, m, o)
	return hastySession{s, h}, err
}

func (s hastySession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	left := time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	s.of.most.Store(max(s.of.most.Load(), int64(left)))
	return s.Session.Infer(ctx, in, outputs)
}

// TestTrialTime: to find out whether a model may be batched takes no longer than it may
// take to load it.
func TestTrialTime(t *testing.T) {
	p := newPond(t)
	h := &hasty{numbered: p.rt}
	c := p.config()
	c.Runtime, c.LoadTime = h, time.Second
	p.services = newServices(c)
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	if most := time.Duration(h.most.Load()); most <= 0 || most > time.Second {
		t.Errorf("a run that tries it has %s", most)
	}
}
