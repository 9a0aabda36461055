package serving_test

import (
	"context"
	"errors"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
)

// TestLoad: what did not load is tried again at once, without waiting for the
// loader's pause, and what is loaded stays.
func TestLoad(t *testing.T) {
	w := newWorld()
	s, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	ctx := t.Context()
	if _, _, err := s.Apply(ctx, "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(ctx, "nyc", "d"); err != nil {
		t.Errorf("what is loaded: %v", err)
	}
	m := w.models["delay/1"]
	delete(w.models, "delay/1")
	again := newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: runtimetest.Fake{}})
	if err := again.RunOnce(ctx); !fault.Is(err, fault.NotFound) {
		t.Errorf("loaded what is not there: %v", err)
	}
	if err := again.Load(ctx, "nyc", "d"); !fault.Is(err, fault.NotFound) {
		t.Errorf("loaded what is not there: %v", err)
	}
	w.models["delay/1"] = m
	if err := again.Load(ctx, "nyc", "d"); err != nil || !again.Ready("nyc") {
		t.Errorf("not ready: %v", err)
	}
	if err := again.Load(ctx, "nyc", "nothing"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a deployment that is not there: %v", err)
	}
	w.denied["deployment.apply"] = true
	if err := again.Load(ctx, "nyc", "d"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("without permission: %v", err)
	}
}

// held is a runtime that loads when it is let.
type held struct {
	runtimetest.Fake
	began, let chan struct{}
	loads      atomic.Int64
	fails      error
}

func (h *held) Load(ctx context.Context, m []byte, o runtime.Options) (runtime.Session, error) {
	h.loads.Add(1)
	h.began <- struct{}{}
	select {
	case <-h.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if h.fails != nil {
		return nil, h.fails
	}
	return h.Fake.Load(ctx, m, o)
}

// restarted is a service that finds a deployment in its database and nothing in memory.
func restarted(t *testing.T) (*services, *held) {
	t.Helper()
	w := newWorld()
	s, db := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	if _, _, err := s.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	h := &held{began: make(chan struct{}, 16), let: make(chan struct{})}
	return newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: h}), h
}

// looked is a store that tells when the deployments were read.
type looked struct {
	servingsql.Store
	all chan struct{}
}

func (l looked) All(ctx context.Context, tx *store.Tx) ([]serving.Deployment, error) {
	defer func() { l.all <- struct{}{} }()
	return l.Store.All(ctx, tx)
}

// TestLoadTogether: whoever asks for the same model at the same time has it loaded once.
func TestLoadTogether(t *testing.T) {
	s, h := restarted(t)
	const loaders = 4
	all := make(chan struct{}, loaders)
	c := s.config
	c.Store = looked{all: all}
	s = newServices(c)
	errs := make(chan error)
	for range loaders {
		go func() { errs <- s.RunOnce(t.Context()) }()
		go func() { errs <- s.Load(t.Context(), "nyc", "d") }()
	}
	<-h.began
	for range loaders {
		<-all
	}
	for range 1000 {
		goruntime.Gosched()
	}
	close(h.let)
	for range 2 * loaders {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := h.loads.Load(); n != 1 {
		t.Errorf("it was loaded %d times", n)
	}
}

// TestLoadLeft: a caller whose time is up ends its wait; the load goes on, and is no
// failure of the model.
func TestLoadLeft(t *testing.T) {
	s, h := restarted(t)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- s.Load(ctx, "nyc", "d") }()
	<-h.began
	leave()
	if err := <-left; !fault.Is(err, fault.Timeout) {
		t.Errorf("the wait: %v", err)
	}
	if d, err := s.One(t.Context(), "nyc", "d"); err != nil || d.State != serving.Loading {
		t.Errorf("%s %s %v", d.State, d.Reason, err)
	}
	close(h.let)
	if err := s.Load(t.Context(), "nyc", "d"); err != nil || h.loads.Load() != 1 {
		t.Errorf("%v after %d loads", err, h.loads.Load())
	}
	if d, err := s.One(t.Context(), "nyc", "d"); err != nil || d.State != serving.Ready {
		t.Errorf("%s %s %v", d.State, d.Reason, err)
	}
}

// TestLoaderStopped: that the server stopped is no failure of the model.
func TestLoaderStopped(t *testing.T) {
	s, h := restarted(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.RunOnce(ctx) }()
	<-h.began
	stop()
	t.Log("the round ended: ", <-ended)
	if d, err := s.One(t.Context(), "nyc", "d"); err != nil || d.State != serving.Loading {
		t.Errorf("%s %s %v", d.State, d.Reason, err)
	}
}

// TestReason: callers hear what is wrong with the model, and nothing of the inside.
func TestReason(t *testing.T) {
	const inside = "/srv/falaj/lib.so: pid 7"
	for kind := fault.Internal; kind <= fault.Timeout; kind++ {
		s, h := restarted(t)
		h.fails = fault.New(kind, inside).WithHint(inside)
		if kind == fault.Internal {
			h.fails = errors.New(inside)
		}
		close(h.let)
		err := s.Load(t.Context(), "nyc", "d")
		d, look := s.One(t.Context(), "nyc", "d")
		if err == nil || look != nil || fault.KindOf(err) != kind || d.State != serving.Failed {
			t.Fatalf("%s: %v, %s, %v", kind, err, d.State, look)
		}
		ours := kind == fault.Internal || kind == fault.Unavailable || kind == fault.Exhausted
		for _, text := range []string{err.Error() + fault.HintOf(err), d.Reason, d.Targets[0].Reason} {
			if strings.Contains(text, inside) == ours || text == "" {
				t.Errorf("%s: %s", kind, text)
			}
		}
	}
}

// TestTakes: who may ask a model may know what it takes.
func TestTakes(t *testing.T) {
	w := newWorld()
	s, _ := open(t, w, filepath.Join(t.TempDir(), "falaj.db"))
	if _, _, err := s.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "delay", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.denied["deployment.read"] = true
	if in, err := s.Takes(t.Context(), "nyc", "d", ""); err != nil || len(in.Inputs) != 1 || in.Inputs[0].Name != "X" || in.Columns != nil {
		t.Errorf("%v %v", in, err)
	}
	if _, err := s.Takes(t.Context(), "nyc", "nothing", ""); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	w.denied["deployment.infer"] = true
	if _, err := s.Takes(t.Context(), "nyc", "d", ""); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
}
