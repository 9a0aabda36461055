package serving_test

import (
	"context"
	"math/rand/v2"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// herd runs models in processes that die: they answer tokens with a mark of their
// version, and each run of each is counted.
type herd struct {
	t        *testing.T
	fails    atomic.Bool // nothing loads
	loads    atomic.Int64
	sessions sync.WaitGroup

	mu  sync.Mutex
	all []*herdSession
}

type herdSession struct {
	runtimetest.Tokens
	of     *herd
	mark   int64
	dead   atomic.Bool
	closed atomic.Int64
}

func (h *herd) Load(ctx context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	for range 50 {
		goruntime.Gosched()
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(string(model), "model "), 10, 64)
	switch {
	case err != nil:
		return nil, fault.New(fault.Invalid, "not a model")
	case h.fails.Load():
		return nil, fault.New(fault.Unavailable, "no process starts")
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	h.loads.Add(1)
	h.sessions.Add(1)
	s := &herdSession{of: h, mark: markOf(n)}
	h.mu.Lock()
	h.all = append(h.all, s)
	h.mu.Unlock()
	return s, nil
}

// kill ends some processes, or starts all of them again.
func (h *herd) kill(r *rand.Rand, some bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.all {
		s.dead.Store(some && r.IntN(3) == 0)
	}
}

func (s *herdSession) Unavailable() error {
	if s.dead.Load() {
		return fault.New(fault.Unavailable, "the process ended")
	}
	return nil
}

func (s *herdSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	for range 20 {
		goruntime.Gosched() // others come meanwhile
	}
	if s.dead.Load() {
		err := fault.New(fault.Unavailable, "the process ended")
		err.Err = runtime.ErrEnded
		return nil, err
	}
	out, err := s.Tokens.Infer(ctx, in, outputs)
	if err == nil {
		data := out[0].Data.([]int64)
		for i := range data {
			data[i] += s.mark
		}
	}
	if s.Late.Load() > 0 {
		s.of.t.Error("a session was asked after it was closed")
	}
	return out, err
}

func (s *herdSession) Close() error {
	if s.closed.Add(1) > 1 {
		s.of.t.Error("a session was closed twice")
	}
	s.of.sessions.Done()
	return s.Tokens.Close()
}

// rooms gives places, and takes some away.
type rooms struct {
	mu   sync.Mutex
	r    *rand.Rand
	held map[*room]bool
}

type room struct {
	of   *rooms
	lost chan struct{}
	once sync.Once
}

func (m *rooms) Reserve(ctx context.Context, _ serving.ReplicaRequest, waits func(string)) (serving.Reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.r.IntN(5) == 0 {
		waits("there is no room")
		m.mu.Unlock()
		<-time.After(time.Millisecond)
		m.mu.Lock()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if m.r.IntN(10) == 0 {
		return nil, fault.New(fault.Exhausted, "over quota")
	}
	r := &room{of: m, lost: make(chan struct{})}
	m.held[r] = true
	return r, nil
}

// take takes a place away.
func (m *rooms) take() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.held {
		r.once.Do(func() { close(r.lost) })
		return
	}
}

func (r *room) Lost() <-chan struct{} { return r.lost }

func (r *room) Release() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.held, r)
}

// TestRepliesWhileScaling: many ask, with rows of their own, cancel, run out of time and
// send nonsense, while the deployment sleeps and is woken, replicas come, go, die and
// lose their places, loads fail, versions are tried, promoted, rolled back, shadowed and
// loaded by name, the manifest changes and the deployment is deleted. Each request is
// answered once, with its own rows, by the version that it is told, or has an error with
// a reason; in the end every session is closed and every place given back.
func TestRepliesWhileScaling(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	h, m := &herd{t: t}, &rooms{r: rand.New(rand.NewPCG(seed, 2)), held: map[*room]bool{}}
	c := p.config()
	c.Runtime, c.Capacity = h, m
	p.services = newServices(c)
	spec := func(low, high int) serving.Spec {
		return serving.Spec{
			Model: "m", Version: "1", Batching: &serving.BatchingSpec{MaxRows: 8, Priorities: 3, Queue: 64},
			Scale: &serving.ScaleSpec{Min: &low, Max: high},
		}
	}
	p.apply(t, spec(0, 4))
	done := make(chan struct{})
	var all sync.WaitGroup
	var answered, deleted atomic.Int64
	for g := range 12 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g+7)))
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				token, rows := int64(g*10_000+i%10_000+1), 1+r.IntN(4)
				bad, cancelled, hurried := r.IntN(20) == 0, r.IntN(10) == 0, r.IntN(10) == 0
				if bad {
					token = -token
				}
				q := serving.Request{Project: "nyc", Name: "d", Inputs: runtimetest.TokensOf(token, rows, 1+r.IntN(2)), Priority: r.Int64N(5)}
				if hurried {
					q.Timeout = time.Duration(1+r.IntN(100)) * time.Microsecond
				}
				ctx, cancel := context.WithCancel(ctx)
				if cancelled {
					go cancel()
				}
				a, err := p.Infer(ctx, q)
				cancel()
				switch kind := fault.KindOf(err); {
				case err == nil:
					answered.Add(1)
					out := a.Outputs[0].Data.([]int64)
					if bad || a.Outputs[0].Shape[0] != int64(rows) || len(out)%rows != 0 {
						t.Errorf("request %d of %d rows: %+v", token, rows, a.Outputs)
					}
					for _, v := range out {
						if v != token+markOf(a.Version) {
							t.Errorf("request %d by version %d: %v", token, a.Version, out)
						}
					}
				case a.Outputs != nil:
					t.Errorf("request %d has an error and an answer", token)
				case kind == fault.Invalid && bad, kind == fault.Timeout && cancelled, kind == fault.Unavailable: // killed, full, hurried, not loaded
				case kind == fault.NotFound && deleted.Load() > 0:
				default:
					t.Errorf("request %d: %s, %v", token, kind, err)
				}
			}
		})
	}
	now := time.Now()
	tick := func(after time.Duration) {
		now = now.Add(after)
		if err := p.ScaleAt(ctx, now); err != nil {
			t.Error(err)
		}
	}
	may := func(err error) { // it may not load just now
		t.Helper()
		if err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Conflict) {
			t.Error(err)
		}
	}
	for i := range 60 {
		for range 5 {
			tick(time.Second)
		}
		switch r.IntN(9) {
		case 0:
			tick(time.Hour)
			tick(time.Hour)
		case 1:
			_, _, err := p.Apply(ctx, "nyc", "d", spec(r.IntN(4), 2+r.IntN(3)+2), false)
			may(err)
		case 2:
			h.kill(r, true)
			tick(time.Second)
			h.kill(r, false)
		case 3:
			h.fails.Store(true)
			tick(time.Hour)
			tick(time.Hour)
			h.fails.Store(false)
			may(p.RunOnce(ctx))
		case 4:
			may(second(p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: strconv.Itoa(2 + r.IntN(6)), Weight: 40})))
		case 5:
			may(second(p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})))
		case 6:
			may(second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})))
		case 7:
			may(second(p.Shadow(ctx, "nyc", "d", strconv.Itoa(8+r.IntN(2)))))
			may(p.Load(ctx, "nyc", "d"))
		case 8:
			m.take()
		}
		if i == 30 {
			deleted.Add(1)
			may(p.Delete(ctx, "nyc", "d"))
			p.apply(t, spec(2, 4))
		}
	}
	may(p.Load(ctx, "nyc", "d"))
	close(done)
	all.Wait()
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	h.sessions.Wait() // for ever, if one is left open
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.held) > 0 || answered.Load() == 0 || h.loads.Load() < 10 {
		t.Errorf("%d places are left, %d requests were answered, %d sessions were loaded", len(m.held), answered.Load(), h.loads.Load())
	}
}

// replace gives a version another digest, and answers with the one that it had.
func (w *world) replace(version, digest string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.models[version]
	was := m.Digest
	m.Digest = digest
	w.models[version] = m
	return was
}

// TestReplicasOfADeployment: as many as the manifest wants, of the version's own bytes;
// losing one costs nobody an answer; more, fewer and none as the manifest says.
func TestReplicasOfADeployment(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	h, m := &herd{t: t}, &rooms{r: rand.New(rand.NewPCG(1, 1)), held: map[*room]bool{}}
	c := p.config()
	c.Runtime, c.Capacity = h, m
	p.services = newServices(c)
	apply := func(low, high int) {
		t.Helper()
		p.apply(t, serving.Spec{Model: "m", Version: "1", Scale: &serving.ScaleSpec{Min: &low, Max: high}})
	}
	awaited := func(replicas int) {
		t.Helper()
		for now := time.Now(); ; now = now.Add(10 * time.Minute) { // over all pauses
			if err := p.ScaleAt(ctx, now); err != nil {
				t.Fatal(err)
			}
			d, err := p.One(ctx, "nyc", "d")
			if err != nil {
				t.Fatal(err)
			}
			if d.Replicas == replicas {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("%+v", d.Targets)
			}
			<-time.After(time.Millisecond)
		}
	}
	ask := func() error {
		a, err := p.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Inputs: runtimetest.TokensOf(3, 1, 1)})
		if err == nil && a.Outputs[0].Data.([]int64)[0] != 3+markOf(1) {
			t.Errorf("%+v", a)
		}
		return err
	}
	apply(3, 3)
	awaited(3)
	if len(m.held) != 2 {
		t.Errorf("%d of 3 replicas have a place beyond the first", len(m.held))
	}
	h.all[1].dead.Store(true)
	for range 20 {
		if err := ask(); err != nil {
			t.Errorf("one of three died: %v", err)
		}
	}
	if d, err := p.One(ctx, "nyc", "d"); err != nil || d.State != serving.Ready || d.Replicas != 2 || d.Targets[0].Wanted != 3 {
		t.Errorf("%+v, %v", d.Targets, err)
	}
	versions, _ := p.Scaled()
	if len(versions) != 1 || versions[0].Wanted != 3 || versions[0].Running != 2 {
		t.Errorf("%+v", versions)
	}
	h.all[1].dead.Store(false)
	if err := second(p.Shadow(ctx, "nyc", "d", "2")); err != nil {
		t.Fatal(err)
	}
	awaited(3)
	if d, err := p.One(ctx, "nyc", "d"); err != nil || len(d.Targets) != 2 || d.Targets[1].Replicas != 1 || d.Targets[1].Wanted != 1 {
		t.Errorf("a shadow: %+v, %v", d.Targets, err)
	}
	if err := second(p.Shadow(ctx, "nyc", "d", "")); err != nil {
		t.Fatal(err)
	}
	loads := h.loads.Load()
	apply(2, 4)
	awaited(2)
	if n := h.loads.Load(); n > loads+1 { // what is deployed has answered once
		t.Errorf("%d loads to have fewer", n-loads)
	}
	low := 4
	if _, _, err := p.Apply(ctx, "nyc", "d", serving.Spec{Model: "m", Version: "2", Scale: &serving.ScaleSpec{Min: &low}}, false); err != nil {
		t.Fatal(err)
	}
	signed := p.world.replace("m/2", "sha256:other")
	for {
		if err := p.ScaleAt(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
		d, err := p.One(ctx, "nyc", "d")
		if err != nil || d.Replicas != 1 || t.Context().Err() != nil {
			t.Fatalf("a replica of other bytes: %+v, %v", d.Targets, err)
		}
		if strings.Contains(d.Targets[0].Scaling, "digest differs from the loaded one") || strings.Contains(d.Targets[0].Scaling, "over quota") {
			break
		}
		<-time.After(time.Millisecond)
	}
	p.world.replace("m/2", signed)
	for d, err := p.One(ctx, "nyc", "d"); err == nil && d.Replicas < 4; d, err = p.One(ctx, "nyc", "d") { // after the pauses of failures
		if err := p.ScaleAt(ctx, time.Now()); err != nil || t.Context().Err() != nil {
			t.Fatal(err, d.Targets)
		}
		<-time.After(10 * time.Millisecond)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	h.sessions.Wait()
	if len(m.held) != 0 {
		t.Errorf("%d places are left", len(m.held))
	}
}
