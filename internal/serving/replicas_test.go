package serving

import (
	"context"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// mortal is a session that may be away, and knows how many runs it has.
type mortal struct {
	runtimetest.Tokens
	away   atomic.Bool
	runs   atomic.Int64
	served atomic.Int64
	closed atomic.Int64
	hold   chan struct{}
}

func (m *mortal) Unavailable() error {
	if m.away.Load() {
		return fault.New(fault.Unavailable, "its process ended")
	}
	return nil
}

func (m *mortal) Infer(ctx context.Context, in []runtime.Tensor, out []string) ([]runtime.Tensor, error) {
	m.runs.Add(1)
	defer m.runs.Add(-1)
	m.served.Add(1)
	if err := m.Unavailable(); err != nil {
		return nil, err
	}
	if m.hold != nil {
		<-m.hold
	}
	return m.Tokens.Infer(ctx, in, out)
}

func (m *mortal) Close() error {
	m.closed.Add(1)
	return m.Tokens.Close()
}

// herd is replicas of mortal sessions, in the order in which they came.
type herd struct {
	*replicas
	mu    sync.Mutex
	all   []*mortal
	lost  []*testPlace
	fails error
	opens int
	told  int
}

// testPlace is a place that may be taken away.
type testPlace struct {
	lost     chan struct{}
	once     sync.Once
	released atomic.Int64
}

func (p *testPlace) Lost() <-chan struct{} { return p.lost }
func (p *testPlace) Release()              { p.released.Add(1) }
func (p *testPlace) take()                 { p.once.Do(func() { close(p.lost) }) }

func newHerd() *herd {
	h := &herd{all: []*mortal{{}}, lost: []*testPlace{nil}}
	h.replicas = newReplicas(h.all[0], func(context.Context, func(string)) (runtime.Session, Reservation, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.opens++
		if h.fails != nil {
			return nil, nil, h.fails
		}
		m, place := &mortal{}, &testPlace{lost: make(chan struct{})}
		h.all, h.lost = append(h.all, m), append(h.lost, place)
		return m, place, nil
	}, func(error) { h.told++ })
	return h
}

func (h *herd) ask(t *testing.T, token int64) error {
	t.Helper()
	out, err := h.Infer(t.Context(), runtimetest.TokensOf(token, 1, 1), []string{"same"})
	if err == nil && out[0].Data.([]int64)[0] != token {
		t.Errorf("%d is answered by %v", token, out[0].Data)
	}
	return err
}

// TestReplicasComeAndGo: as many as are wanted, one after the other; a run goes to the
// one with the fewest; who goes ends its runs before.
func TestReplicasComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHerd()
		h.resize(3)
		synctest.Wait()
		if n, loads, _ := h.size(); n != 3 || loads || h.ready() != 3 || h.trouble() != "" {
			t.Fatalf("%d replicas, %d answer: %s", n, h.ready(), h.trouble())
		}
		for i := range int64(30) {
			if err := h.ask(t, i); err != nil {
				t.Error(err)
			}
		}
		for i, m := range h.all {
			if n := m.served.Load(); n != 10 {
				t.Errorf("replica %d answered %d of 30", i, n)
			}
			m.hold = make(chan struct{})
		}
		var all sync.WaitGroup
		for i := range int64(6) {
			all.Go(func() {
				if err := h.ask(t, i); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for i, m := range h.all {
			if n := m.runs.Load(); n != 2 {
				t.Errorf("replica %d has %d runs of 6", i, n)
			}
		}
		h.resize(1)
		synctest.Wait()
		closed := 0
		for _, m := range h.all {
			closed += int(m.closed.Load())
		}
		if n, _, _ := h.size(); n != 1 || closed != 0 {
			t.Errorf("%d replicas, %d closed that have runs", n, closed)
		}
		for _, m := range h.all {
			close(m.hold)
		}
		all.Wait()
		synctest.Wait()
		closed = 0
		for _, m := range h.all {
			closed += int(m.closed.Load())
		}
		if closed != 2 {
			t.Errorf("%d are closed", closed)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		for i, m := range h.all {
			if m.closed.Load() != 1 || m.Late.Load() != 0 {
				t.Errorf("replica %d was closed %d times, and asked %d times after", i, m.closed.Load(), m.Late.Load())
			}
		}
		h.resize(5)
		if err := h.ask(t, 1); !fault.Is(err, fault.Unavailable) {
			t.Errorf("after its end: %v", err)
		}
	})
}

// TestReplicaLost: who is away is not asked while others answer, and goes first.
func TestReplicaLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHerd()
		defer h.Close()
		h.resize(3)
		synctest.Wait()
		h.all[0].away.Store(true)
		for i := range int64(30) {
			if err := h.ask(t, i); err != nil {
				t.Errorf("one of three is away: %v", err)
			}
		}
		if h.Unavailable() != nil || h.ready() != 2 || h.all[0].served.Load() != 0 {
			t.Errorf("%v, %d answer, and who is away was asked %d times", h.Unavailable(), h.ready(), h.all[0].served.Load())
		}
		h.all[1].away.Store(true)
		h.all[2].away.Store(true)
		if err := h.ask(t, 1); !fault.Is(err, fault.Unavailable) || h.Unavailable() == nil {
			t.Errorf("all are away: %v, %v", err, h.Unavailable())
		}
		h.all[2].away.Store(false)
		h.resize(1)
		synctest.Wait()
		if err := h.ask(t, 1); err != nil || h.all[2].closed.Load() != 0 || h.all[0].closed.Load() != 1 {
			t.Errorf("the one that answered went: %v", err)
		}
	})
}

// TestReplicaPlaceLost: a replica whose place is taken away goes, and its runs end.
func TestReplicaPlaceLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHerd()
		defer h.Close()
		h.resize(2)
		synctest.Wait()
		h.lost[1].take()
		synctest.Wait()
		if n, _, _ := h.size(); n != 1 || h.all[1].closed.Load() != 1 || h.lost[1].released.Load() != 1 {
			t.Errorf("%d replicas", n)
		}
		h.resize(2)
		synctest.Wait()
		if n, _, _ := h.size(); n != 2 || len(h.all) != 3 {
			t.Errorf("%d replicas", n)
		}
		// The one that needs no place goes, so that the other one needs none.
		h.all[0].away.Store(true)
		h.resize(1)
		synctest.Wait()
		if h.all[0].closed.Load() != 1 || h.lost[2].released.Load() != 1 {
			t.Errorf("the first is closed %d times, and %d places are given back", h.all[0].closed.Load(), h.lost[2].released.Load())
		}
		h.lost[2].take()
		synctest.Wait()
		if n, _, _ := h.size(); n != 1 || h.ask(t, 1) != nil {
			t.Errorf("%d replicas are left", n)
		}
	})
}

// TestReplicaDoesNotCome: what is there goes on, the reason is told, and it is tried
// again after pauses that grow.
func TestReplicaDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHerd()
		defer h.Close()
		h.fails = fault.New(fault.Exhausted, "no memory at /srv")
		for range 100 {
			h.resize(2)
			synctest.Wait()
			<-time.After(time.Second)
		}
		if h.opens < 4 || h.opens > 8 || h.told != h.opens {
			t.Errorf("%d tries in 100 s", h.opens)
		}
		if why := h.trouble(); why != "starting another replica failed: out of memory; the server's log has details" {
			t.Error(why)
		}
		if err := h.ask(t, 1); err != nil {
			t.Error(err)
		}
		h.fails = nil
		<-time.After(maxPause)
		h.resize(2)
		synctest.Wait()
		if n, _, _ := h.size(); n != 2 || h.trouble() != "" {
			t.Errorf("%d replicas: %s", n, h.trouble())
		}
	})
}

// TestReplicaWaits: one that waits for a place says so, holds up nobody, and is not
// waited for when it is not wanted any more, or the deployment ends.
func TestReplicaWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(ctx context.Context, waits func(string)) (runtime.Session, Reservation, error) {
			waits("it waits for a place")
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		p := newReplicas(&mortal{}, open, func(err error) { t.Errorf("a failure: %v", err) })
		for range 3 {
			p.resize(2)
			synctest.Wait()
			if n, loads, _ := p.size(); n != 1 || !loads || p.trouble() != "it waits for a place" {
				t.Errorf("%d replicas, %v: %s", n, loads, p.trouble())
			}
			if out, err := p.Infer(t.Context(), runtimetest.TokensOf(1, 1, 1), []string{"same"}); err != nil || len(out) != 1 {
				t.Error(err)
			}
			p.resize(1)
			synctest.Wait()
			if _, loads, _ := p.size(); loads || p.trouble() != "" {
				t.Errorf("it still waits: %s", p.trouble())
			}
		}
		p.resize(2)
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// lingering is a session whose runs go on after their context is over.
type lingering struct {
	mortal
	over chan struct{}
}

func (l *lingering) Infer(context.Context, []runtime.Tensor, []string) ([]runtime.Tensor, error) {
	return nil, &lateError{runtime.LingersError{Over: l.over}}
}

type lateError struct{ error }

func (e *lateError) Unwrap() error { return e.error }

// TestReplicaLingers: a run that goes on counts, and its replica is not closed before.
func TestReplicaLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lingering{over: make(chan struct{})}
		p := newReplicas(l, nil, nil)
		if _, err := p.Infer(t.Context(), nil, nil); err == nil || runtime.Over(err) == nil {
			t.Errorf("%v", err)
		}
		var closed atomic.Bool
		go func() {
			_ = p.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("it was closed under its run")
		}
		close(l.over)
		synctest.Wait()
		if !closed.Load() || l.closed.Load() != 1 {
			t.Error("it was not closed")
		}
	})
}

// TestReplicasUnderLoad: while they come, go and die, each run has its own answer, or
// an error of a replica that is away.
func TestReplicasUnderLoad(t *testing.T) {
	h := newHerd()
	var all sync.WaitGroup
	done := make(chan struct{})
	for g := range int64(8) {
		all.Go(func() {
			for i := int64(0); ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if err := h.ask(t, g*1_000_000+i); err != nil && !fault.Is(err, fault.Unavailable) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 2000 {
		h.resize(1 + i*7%5)
		h.mu.Lock()
		m, lost := h.all[i%len(h.all)], h.lost[i%len(h.all)]
		h.mu.Unlock()
		m.away.Store(i%3 == 0)
		if lost != nil && i%11 == 0 {
			lost.take()
		}
		goruntime.Gosched()
	}
	close(done)
	all.Wait()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	for i, m := range h.all {
		if m.closed.Load() != 1 || m.Late.Load() != 0 || i > 0 && h.lost[i].released.Load() == 0 {
			t.Errorf("replica %d was closed %d times, and asked %d times after", i, m.closed.Load(), m.Late.Load())
		}
	}
	if len(h.all) < 3 {
		t.Errorf("%d replicas came", len(h.all))
	}
}

// TestReplicaOfAnotherModel is refused.
func TestReplicaOfAnotherModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := &otherModel{}
		var told error
		p := newReplicas(&mortal{}, func(context.Context, func(string)) (runtime.Session, Reservation, error) { return other, nil, nil }, func(err error) {
			told = err
		})
		p.resize(2)
		synctest.Wait()
		if n, _, _ := p.size(); n != 1 || told == nil || other.closed.Load() != 1 {
			t.Errorf("%d replicas, %v", n, told)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

type otherModel struct{ mortal }

func (*otherModel) Metadata() runtime.Metadata { return runtime.Metadata{Platform: "other"} }

// slim is a session that takes one run at a time.
type slim struct{ *mortal }

func (slim) Runs() int { return 1 }

// TestReplicasRuns: replicas take what they take together, and as many as come when
// nobody says how many.
func TestReplicasRuns(t *testing.T) {
	for want, first := range map[int]runtime.Session{0: &mortal{}, 1: slim{&mortal{}}} {
		more := make(chan runtime.Session, 1)
		p := newReplicas(first, func(context.Context, func(string)) (runtime.Session, Reservation, error) { return <-more, nil, nil }, nil)
		if got := p.Runs(); got != want {
			t.Errorf("one takes %d, want %d", got, want)
		}
		p.resize(2)
		another := runtime.Session(&mortal{})
		if want > 0 {
			another = slim{&mortal{}}
		}
		more <- another
		for p.ready() < 2 {
			<-time.After(100 * time.Microsecond)
		}
		if got := p.Runs(); got != 2*want {
			t.Errorf("two take %d, want %d", got, 2*want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
