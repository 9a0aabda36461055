package serving_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
)

func TestScaleSpec(t *testing.T) {
	n := func(n int) *int { return &n }
	remote := &serving.RuntimeSpec{Remote: serving.RemoteSpec{Name: "triton"}}
	for says, spec := range map[string]serving.Spec{
		"":                              {Scale: &serving.ScaleSpec{}},
		" ":                             {Scale: &serving.ScaleSpec{Min: n(0), Idle: "90s"}},
		"  ":                            {Scale: &serving.ScaleSpec{Min: n(2), Max: 4, Concurrency: 0.5, QueueTime: "50ms"}},
		"   ":                           {Scale: &serving.ScaleSpec{Max: 4}, Runtime: &serving.RuntimeSpec{Isolation: serving.Auto}},
		"spec.scale.min: -1 is":         {Scale: &serving.ScaleSpec{Min: n(-1)}},
		"spec.scale.min: 65 is":         {Scale: &serving.ScaleSpec{Min: n(65)}},
		"spec.scale.max: 65 is":         {Scale: &serving.ScaleSpec{Max: 65}},
		"spec.scale.max: -2 is":         {Scale: &serving.ScaleSpec{Max: -2}},
		"max: 1 is less than min":       {Scale: &serving.ScaleSpec{Min: n(2), Max: 1}},
		"concurrency: -1 is":            {Scale: &serving.ScaleSpec{Max: 2, Concurrency: -1}},
		"queue_time: \"1\" is no":       {Scale: &serving.ScaleSpec{Max: 2, QueueTime: "1"}},
		"queue_time: \"2m\" is no":      {Scale: &serving.ScaleSpec{Max: 2, QueueTime: "2m"}},
		"idle: \"soon\" is no":          {Scale: &serving.ScaleSpec{Min: n(0), Idle: "soon"}},
		"idle: \"1ms\" is no":           {Scale: &serving.ScaleSpec{Min: n(0), Idle: "1ms"}},
		"requires min 0":                {Scale: &serving.ScaleSpec{Idle: "10m"}},
		"need more than 1":              {Scale: &serving.ScaleSpec{Concurrency: 4}},
		"need more than 3":              {Scale: &serving.ScaleSpec{Min: n(3), QueueTime: "50ms"}},
		"not supported in-process":      {Scale: &serving.ScaleSpec{Max: 2}, Runtime: &serving.RuntimeSpec{Isolation: serving.InProcess}},
		"the model runs on remote":      {Scale: &serving.ScaleSpec{Min: n(0)}, Runtime: remote, Version: "1"},
		"spec.scale: the model runs on": {Scale: &serving.ScaleSpec{}, Runtime: remote, Version: "1"},
	} {
		spec.Model = "m"
		err := spec.Validate()
		if says = strings.TrimSpace(says); says == "" {
			if err != nil {
				t.Errorf("%+v: %v", spec.Scale, err)
			}
			continue
		}
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, and not %s", spec.Scale, err, says)
		}
	}
}

// sleepy loads numbered models when it is let.
type sleepy struct {
	*numbered
	loads atomic.Int64
	began chan struct{} // not nil: told when a load waits
	let   chan struct{} // not nil: waited for by each load
	fails atomic.Pointer[error]
	odd   string // the model that takes something else
}

func (r *sleepy) Load(ctx context.Context, m []byte, o runtime.Options) (runtime.Session, error) {
	r.loads.Add(1)
	if r.let != nil {
		if r.began != nil {
			r.began <- struct{}{}
		}
		select {
		case <-r.let:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := r.fails.Load(); err != nil {
		return nil, *err
	}
	s, err := r.numbered.Load(ctx, m, o)
	if err == nil && string(m) == r.odd {
		return oddSession{s}, nil
	}
	return punctual{s}, err
}

type oddSession struct{ runtime.Session }

func (s oddSession) Metadata() runtime.Metadata {
	m := s.Session.Metadata()
	m.Inputs = []runtime.Spec{{Name: "Y", Datatype: runtime.FP32, Shape: []int64{-1, 3}}}
	return m
}

// punctual is a session that runs nothing for who has no time left.
type punctual struct{ runtime.Session }

func (s punctual) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "time was up before the model ran")
	}
	return s.Session.Infer(ctx, in, outputs)
}

// zero is a pond whose deployment d may have no model in memory, and has none.
func zero(t *testing.T, spec serving.Spec) (*pond, *sleepy) {
	t.Helper()
	p := newPond(t)
	r := &sleepy{numbered: p.rt}
	c := p.config()
	c.Runtime = r
	p.services = newServices(c)
	spec.Model, spec.Scale = "m", &serving.ScaleSpec{Min: new(int), Idle: "1m"}
	p.apply(t, spec)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.rest(t)
	r.loads.Store(0)
	return p, r
}

// rest lets the time pass until nothing of d is in memory.
func (p *pond) rest(t *testing.T) {
	t.Helper()
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(2 * time.Minute)} {
		if err := p.ScaleAt(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := p.One(t.Context(), "nyc", "d"); err != nil || d.Replicas != 0 || d.State != serving.Ready || d.Reason != "" {
		t.Fatalf("%+v, %v", d, err)
	}
	p.rt.sessions.Wait()
}

// later asks without waiting for the answer.
func (p *pond) later(ctx context.Context, r serving.Request) <-chan error {
	done := make(chan error, 1)
	r.Project, r.Name, r.Inputs = "nyc", "d", ask
	go func() {
		a, err := p.Infer(ctx, r)
		if err == nil && (len(a.Outputs) == 0 || int64(a.Outputs[0].Data.([]float32)[0]) != a.Version) {
			err = errors.New("another version's answer")
		}
		done <- err
	}()
	return done
}

// waiting waits until so many are held.
func (p *pond) waiting(t *testing.T, n int) {
	t.Helper()
	for {
		if _, holds := p.Scaled(); len(holds) == 1 && holds[0].Waiting == n {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("they are not held")
		}
		<-time.After(100 * time.Microsecond)
	}
}

// TestScaleToZero: a model that nobody asks for leaves the memory, is ready all the
// same, says the same of itself, and answers who asks.
func TestScaleToZero(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	for range 2 {
		for range 3 {
			if p.ask(t, "", "") != 1 {
				t.Error("another version answered")
			}
		}
		if n := r.loads.Load(); n != 1 || r.open.Load() != 1 {
			t.Errorf("it was loaded %d times, and is open %d times", n, r.open.Load())
		}
		if d, err := p.One(ctx, "nyc", "d"); err != nil || d.Replicas != 1 || d.Targets[0].Wanted != 1 || d.Targets[0].Weight != 100 {
			t.Errorf("awake: %+v, %v", d, err)
		}
		began := time.Now()
		for _, c := range []struct {
			after time.Duration
			open  int64
		}{{0, 1}, {59 * time.Second, 1}, {61 * time.Second, 0}} {
			if err := p.ScaleAt(ctx, began.Add(c.after)); err != nil {
				t.Fatal(err)
			}
			if c.open == 0 {
				r.sessions.Wait()
			}
			if n := r.open.Load(); n != c.open {
				t.Errorf("after %s %d are open", c.after, n)
			}
		}
		r.loads.Store(0)
		d, err := p.One(ctx, "nyc", "d")
		if err != nil || d.State != serving.Ready || d.Replicas != 0 || d.Targets[0].Scaling == "" || d.Targets[0].Weight != 100 {
			t.Errorf("asleep: %+v, %v", d, err)
		}
		if err := p.RunOnce(ctx); err != nil {
			t.Error(err)
		}
		if away, err := p.Answers(ctx, "nyc", "d", ""); err != nil || away != nil || !p.Ready("nyc") {
			t.Errorf("it answers whoever asks: %v, %v, %v", away, err, p.Ready("nyc"))
		}
		if d, err := p.Metadata(ctx, "nyc", "d", ""); err != nil || d.Platform != "numbered" || len(d.Versions) != 1 || d.Versions[0] != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := p.Metadata(ctx, "nyc", "d", "1"); err != nil || d.Platform != "numbered" {
			t.Errorf("%+v, %v", d, err)
		}
		if in, err := p.Takes(ctx, "nyc", "d", ""); err != nil || len(in.Inputs) != 1 {
			t.Errorf("%+v, %v", in, err)
		}
		if s, err := p.Statistics(ctx, "nyc", "d", ""); err != nil || len(s) != 1 || s[0].Success.Count%3 != 0 || s[0].Success.Count == 0 {
			t.Errorf("%+v, %v", s, err)
		}
		if m := p.Measured(); len(m) != 1 || m[0].Success.Count == 0 || m[0].Deployment != "d" {
			t.Errorf("%+v", m)
		}
		for _, version := range []string{"7", "x"} {
			if err := second(p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Version: version, Inputs: ask})); !fault.Is(err, fault.NotFound) {
				t.Errorf("version %s: %v", version, err)
			}
		}
		if n := r.loads.Load(); n != 0 {
			t.Errorf("%d loads that nobody asked for", n)
		}
	}
	p.Settled() // a load is counted behind the answers that waited for it
	if _, holds := p.Scaled(); len(holds) != 1 || holds[0].Loads.Count != 2 || holds[0].Waiting != 0 {
		t.Errorf("%+v", holds)
	}
}

// TestBusyStays: what is asked, however slowly it answers, stays in memory.
func TestBusyStays(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	p.ask(t, "", "")
	r.hold, r.inside = make(chan struct{}), make(chan struct{}, 1)
	answer := p.later(t.Context(), serving.Request{})
	<-r.inside
	now := time.Now()
	for i := range 5 {
		if err := p.ScaleAt(t.Context(), now.Add(time.Duration(i)*2*time.Minute)); err != nil || r.open.Load() != 1 {
			t.Fatalf("%v, %d are open", err, r.open.Load())
		}
	}
	close(r.hold)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// TestHeldTogether: those who ask meanwhile have it loaded once, and each has its
// answer.
func TestHeldTogether(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	r.began, r.let = make(chan struct{}, 1), make(chan struct{})
	const many = 50
	answers := make([]<-chan error, many)
	for i := range answers {
		answers[i] = p.later(t.Context(), serving.Request{})
	}
	<-r.began
	p.waiting(t, many)
	if d, err := p.One(t.Context(), "nyc", "d"); err != nil || d.State != serving.Ready || d.Replicas != 0 || !p.Ready("nyc") {
		t.Errorf("while it loads: %+v, %v", d, err)
	}
	close(r.let)
	for _, a := range answers {
		if err := <-a; err != nil {
			t.Error(err)
		}
	}
	if n := r.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	s, err := p.Statistics(t.Context(), "nyc", "d", "")
	if err != nil || s[0].Success.Count != many || s[0].Inferences != many {
		t.Errorf("%+v, %v", s, err)
	}
	p.waiting(t, 0)
}

// TestHeldBounds: who is held has a time, and there is room for so many.
func TestHeldBounds(t *testing.T) {
	p, r := zero(t, serving.Spec{Batching: &serving.BatchingSpec{Queue: 3, Timeout: "1h"}})
	r.began, r.let = make(chan struct{}, 1), make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	kept := []<-chan error{p.later(t.Context(), serving.Request{}), p.later(t.Context(), serving.Request{})}
	left := p.later(ctx, serving.Request{})
	<-r.began
	p.waiting(t, 3)
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.Unavailable) || fault.RetryOf(err) == 0 || !strings.Contains(err.Error(), "is full") {
		t.Errorf("beyond the room: %v", err)
	}
	leave()
	if err := <-left; !fault.Is(err, fault.Timeout) {
		t.Errorf("who went away: %v", err)
	}
	p.waiting(t, 2)
	if err := <-p.later(t.Context(), serving.Request{Timeout: time.Millisecond}); !fault.Is(err, fault.Unavailable) || !errors.Is(err, batching.ErrHurried) {
		t.Errorf("in a hurry: %v", err)
	}
	close(r.let)
	for _, a := range kept {
		if err := <-a; err != nil {
			t.Error(err)
		}
	}
	if n := r.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
}

// TestHeldTime: nobody is held for longer than a model may take to load.
func TestHeldTime(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	c := p.config()
	c.Runtime, c.LoadTime = r, 20*time.Millisecond
	p.services = newServices(c)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.began, r.let = make(chan struct{}, 1), make(chan struct{})
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.Unavailable) || fault.RetryOf(err) == 0 {
		t.Errorf("held for ever: %v", err)
	}
	close(r.let)
}

// TestHeldIsNotAsking: the time that a request was held is not taken from the time that
// it may take.
func TestHeldIsNotAsking(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	c := p.config()
	c.Runtime, c.Timeout = r, time.Second
	p.services = newServices(c)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.began, r.let = make(chan struct{}, 1), make(chan struct{})
	held := p.later(t.Context(), serving.Request{})
	<-r.began
	<-time.After(c.Timeout)
	close(r.let)
	if err := <-held; err != nil {
		t.Errorf("held for longer than a request may take: %v", err)
	}
}

// TestHeldLoadFails: those who are held hear why, who may; then nobody is held until
// the loader would try again, and the loader does.
func TestHeldLoadFails(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	why := error(fault.New(fault.Invalid, "operator Foo is unknown"))
	r.fails.Store(&why)
	r.began, r.let = make(chan struct{}, 1), make(chan struct{})
	first, other := p.later(ctx, serving.Request{}), p.later(ctx, serving.Request{})
	<-r.began
	p.waiting(t, 2)
	close(r.let)
	for _, a := range []<-chan error{first, other, p.later(ctx, serving.Request{})} {
		if err := <-a; !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "operator Foo") || fault.RetryOf(err) <= 0 {
			t.Errorf("held, and not loaded: %v, again in %s", err, fault.RetryOf(err))
		}
	}
	if n := r.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	d, err := p.One(ctx, "nyc", "d")
	if err != nil || d.State != serving.Failed || !strings.Contains(d.Reason, "operator Foo") || p.Ready("nyc") {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := p.Answers(ctx, "nyc", "d", ""); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a model that does not load answers: %v", err)
	}
	p.world.denied["deployment.read"] = true
	if err := <-p.later(ctx, serving.Request{}); !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "Foo") {
		t.Errorf("who may only ask: %v", err)
	}
	p.world.denied["deployment.read"] = false
	r.fails.Store(nil)
	if err := p.Load(ctx, "nyc", "d"); err != nil {
		t.Error(err)
	}
	p.ask(t, "", "")
	p.rest(t)
}

// TestFailedIsTriedAgain: what did not load for who asked is tried again by the loader
// without being asked for, so that it becomes ready again.
func TestFailedIsTriedAgain(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	why := error(fault.New(fault.Unavailable, "away"))
	r.fails.Store(&why)
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	r.fails.Store(nil)
	for !p.Ready("nyc") {
		if err := p.RunOnce(t.Context()); err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
	if p.ask(t, "", "") != 1 || r.loads.Load() != 2 {
		t.Errorf("%d loads", r.loads.Load())
	}
}

// TestLazyAfterRestart: after a restart nothing is loaded that nobody asks for.
func TestLazyAfterRestart(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	again := func() {
		c := p.config()
		c.Runtime = r
		p.services = newServices(c)
		r.loads.Store(0)
		for range 2 {
			if err := p.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if r.loads.Load() != 0 || !p.Ready("nyc") || !p.Ready("") {
			t.Errorf("%d loads, ready is %v", r.loads.Load(), p.Ready("nyc"))
		}
		if away, err := p.Answers(t.Context(), "nyc", "d", ""); err != nil || away != nil {
			t.Errorf("%v, %v", away, err)
		}
	}
	again()
	if p.ask(t, "", "") != 1 || r.loads.Load() != 1 {
		t.Errorf("%d loads", r.loads.Load())
	}
	p.rest(t)
	again()
	if d, err := p.Metadata(t.Context(), "nyc", "d", ""); err != nil || d.Platform != "numbered" || r.loads.Load() != 1 {
		t.Errorf("%+v, %v: what nothing is known of is loaded", d, err)
	}
	p.rest(t)
	again()
	m := p.world.models["m/1"]
	m.File = nil // somebody changed it
	p.world.models["m/1"] = m
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "was changed") || r.loads.Load() != 0 {
		t.Errorf("a file that is not what was signed: %v", err)
	}
}

// revocable lets one action be forbidden while others are asked for.
type revocable struct {
	serving.Authorizer
	denied atomic.Value // policy.Action
}

func (g *revocable) Allow(ctx context.Context, a policy.Action, o policy.Object) error {
	if g.denied.Load() == a {
		return fault.New(fault.PermissionDenied, "not any more")
	}
	return g.Authorizer.Allow(ctx, a, o)
}

// TestMeanwhile: what happens to a deployment, or to a caller, while requests are held.
func TestMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		asks serving.Request
		act  func(t *testing.T, p *pond, g *revocable)
		kind fault.Kind
		says string
	}{
		"deleted": {serving.Request{}, func(t *testing.T, p *pond, _ *revocable) {
			t.Helper()
			if err := p.Delete(t.Context(), "nyc", "d"); err != nil {
				t.Error(err)
			}
		}, fault.NotFound, "unknown model"},
		"denied":          {serving.Request{}, func(_ *testing.T, _ *pond, g *revocable) { g.denied.Store(policy.Action("deployment.infer")) }, fault.PermissionDenied, "not any more"},
		"denied the past": {serving.Request{AsOf: noon}, func(_ *testing.T, _ *pond, g *revocable) { g.denied.Store(policy.Action("feature.history")) }, fault.PermissionDenied, "not any more"},
		"stopped": {serving.Request{}, func(t *testing.T, p *pond, _ *revocable) {
			t.Helper()
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}, fault.Unavailable, "the server is stopping"},
	} {
		t.Run(name, func(t *testing.T) {
			p, r := zero(t, serving.Spec{})
			g := &revocable{Authorizer: p.world}
			cfg := p.config()
			cfg.Runtime, cfg.Authz = r, g
			p.services = newServices(cfg)
			if err := p.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.began, r.let = make(chan struct{}, 1), make(chan struct{})
			answer := p.later(t.Context(), c.asks)
			<-r.began
			p.waiting(t, 1)
			c.act(t, p, g)
			if strings.HasPrefix(name, "denied") {
				close(r.let)
			}
			if err := <-answer; fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if name == "deleted" {
				close(r.let)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			r.sessions.Wait()
		})
	}
}

// TestDeniedIsNotLoaded: who may not ask has nothing loaded.
func TestDeniedIsNotLoaded(t *testing.T) {
	p, r := zero(t, serving.Spec{Limits: &serving.LimitsSpec{Requests: 0.001}})
	p.world.denied["deployment.infer"] = true
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.PermissionDenied) || r.loads.Load() != 0 {
		t.Errorf("%v, %d loads", err, r.loads.Load())
	}
	p.world.denied["deployment.infer"] = false
	if err := <-p.later(t.Context(), serving.Request{RouteKey: strings.Repeat("x", 2000)}); !fault.Is(err, fault.Invalid) || r.loads.Load() != 0 {
		t.Errorf("%v, %d loads", err, r.loads.Load())
	}
	p.world.denied["feature.history"] = true
	if err := <-p.later(t.Context(), serving.Request{AsOf: noon}); !fault.Is(err, fault.PermissionDenied) || r.loads.Load() != 0 {
		t.Errorf("the past without permission: %v, %d loads", err, r.loads.Load())
	}
	if p.ask(t, "", "") != 1 || r.loads.Load() != 1 {
		t.Error("who was held was counted twice against the limits")
	}
	p.rest(t)
	if err := <-p.later(t.Context(), serving.Request{}); !fault.Is(err, fault.Exhausted) || r.loads.Load() != 1 {
		t.Errorf("over the limits: %v, %d loads", err, r.loads.Load())
	}
}

// TestRolloutsOfSleepers: what is tried, promoted, shadowed and rolled back may be
// asleep; the shares stay.
func TestRolloutsOfSleepers(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	p.start(t, "2", 40) // compared with the stable one, which is loaded for that
	if r.open.Load() != 2 {
		t.Errorf("%d are open", r.open.Load())
	}
	keys := p.mix(t)
	p.rest(t)
	d, err := p.One(ctx, "nyc", "d")
	if err != nil || len(d.Targets) != 2 || d.Targets[0].Weight != 60 || d.Targets[1].Weight != 40 || d.Targets[1].State != serving.Ready {
		t.Errorf("%+v, %v", d.Targets, err)
	}
	if again := p.mix(t); again[1] != keys[1] || again[2] != keys[2] || r.open.Load() != 2 {
		t.Errorf("%v, and %v before", again, keys)
	}
	p.rest(t)
	if err := second(p.Shadow(ctx, "nyc", "d", "3")); err != nil {
		t.Error(err)
	}
	p.ask(t, "", "")
	p.Drain()
	p.rest(t)
	if err := second(p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})); err != nil {
		t.Fatal(err)
	}
	if p.ask(t, "", "") != 2 {
		t.Error("what was promoted does not answer")
	}
	p.Drain()
	p.rest(t)
	if err := second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})); err != nil {
		t.Fatal(err)
	}
	if p.ask(t, "", "") != 1 {
		t.Error("what was stable before does not answer")
	}
	p.Drain()
	p.rest(t)
	if err := p.Load(ctx, "nyc", "d"); err != nil || r.open.Load() != 2 { // and the shadow
		t.Errorf("%v, %d are open", err, r.open.Load())
	}
	p.rest(t)
	if _, changed, err := p.Apply(ctx, "nyc", "d", serving.Spec{Model: "m", Version: "4"}, false); err != nil || !changed {
		t.Fatal(err)
	}
	if p.ask(t, "", "") != 4 {
		t.Error("what was applied does not answer")
	}
	now := time.Now()
	for i := range 3 {
		if err := p.ScaleAt(ctx, now.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Error(err)
		}
	}
	if d, err := p.One(ctx, "nyc", "d"); err != nil || d.Replicas != 1 || d.Targets[0].Wanted != 0 || d.Targets[0].Scaling != "" {
		t.Errorf("without spec.scale it stays: %+v, %v", d, err)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	r.sessions.Wait()
}

// TestCrowd: many ask all the time while the deployment goes to sleep again and again.
func TestCrowd(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	var all sync.WaitGroup
	done := make(chan struct{})
	var answered atomic.Int64
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := <-p.later(ctx, serving.Request{}); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	now := time.Now()
	for i := range 200 {
		at := now.Add(time.Duration(i) * time.Hour)
		for _, at := range []time.Time{at, at.Add(time.Minute)} {
			if err := p.ScaleAt(ctx, at); err != nil {
				t.Error(err)
			}
		}
		for n := answered.Load(); answered.Load() < n+10 && !t.Failed(); {
			<-time.After(10 * time.Microsecond)
		}
	}
	close(done)
	all.Wait()
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	r.sessions.Wait()
}

// TestComparedWithTheStable: while a candidate is loaded the stable version, with which it
// is compared, does not go to sleep, and is not another one.
func TestComparedWithTheStable(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	r.odd, r.let, r.began = "model 9", make(chan struct{}), make(chan struct{}, 9)
	started := make(chan error, 1)
	try := func(version string, meanwhile func()) error {
		go func() {
			started <- second(p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: version, Weight: 50}))
		}()
		<-r.began // the candidate: what is asleep was loaded before
		meanwhile()
		r.let <- struct{}{}
		return <-started
	}
	go func() { // the stable one
		<-r.began
		r.let <- struct{}{}
	}()
	p.ask(t, "", "")
	now := time.Now()
	err := try("9", func() {
		for _, at := range []time.Duration{0, 2 * time.Minute, 4 * time.Minute} {
			if err := p.ScaleAt(ctx, now.Add(at)); err != nil {
				t.Error(err)
			}
		}
	})
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "its inputs and outputs are incompatible with version 1") {
		t.Errorf("a candidate that takes something else: %v", err)
	}
	close(r.let)
	r.began = nil
	for range 2 {
		if err := p.ScaleAt(ctx, now.Add(time.Hour)); err != nil {
			t.Error(err)
		}
	}
	r.let = nil
	p.rest(t)
	p.start(t, "2", 50)
}

// TestStopping: who is held hears at once that the server stops, and so does who comes
// then; what is in memory answers until the end.
func TestStopping(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	if _, _, err := p.Apply(t.Context(), "nyc", "awake", serving.Spec{Model: "m", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	r.let, r.began = make(chan struct{}), make(chan struct{}, 1)
	held := p.later(t.Context(), serving.Request{})
	<-r.began
	p.waiting(t, 1)
	for range 2 {
		p.Stopping()
	}
	for _, err := range []error{<-held, <-p.later(t.Context(), serving.Request{})} {
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the server is stopping") {
			t.Errorf("%v", err)
		}
	}
	if err := second(p.Infer(t.Context(), serving.Request{Project: "nyc", Name: "awake", Inputs: ask})); err != nil {
		t.Errorf("what is in memory: %v", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAdoptedAsleep: a deployment that is asleep and is changed where it was decided is not
// loaded for that; another version is, before it answers for it.
func TestAdoptedAsleep(t *testing.T) {
	p, r := zero(t, serving.Spec{})
	ctx := t.Context()
	adopt := func(change func(*serving.Deployment)) {
		t.Helper()
		d, err := p.One(ctx, "nyc", "d")
		if err != nil {
			t.Fatal(err)
		}
		change(&d)
		d.Revision++
		if err := p.Adopt(ctx, d, func(ctx context.Context) error {
			return p.db.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error { return servingsql.Store{}.Put(ctx, tx, d) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	adopt(func(d *serving.Deployment) { d.Spec.Limits = &serving.LimitsSpec{Requests: 1000} })
	if n := r.loads.Load(); n != 0 {
		t.Errorf("%d loads for another limit", n)
	}
	if p.ask(t, "", "") != 1 || r.loads.Load() != 1 {
		t.Errorf("it does not answer who asks, after %d loads", r.loads.Load())
	}
	p.rest(t)
	adopt(func(d *serving.Deployment) { d.Version, d.Digest = 2, "sha256:2" })
	if n := r.loads.Load(); n != 2 {
		t.Errorf("%d loads: another version is to be loaded first", n)
	}
	if p.ask(t, "", "") != 2 {
		t.Error("another version answers")
	}
}
