package remote

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// TestBreaker draws what happens at a server and compares with the states as they are
// defined.
func TestBreaker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBreaker()
		type inside struct {
			turn  uint64
			state State
			at    int // changes before
		}
		var under []inside
		want, failed, missed, changes, trial := Closed, 0, 0, 0, false
		to := func(s State) {
			want, failed, trial = s, 0, false
			if changes++; s == Closed {
				missed = 0
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"enter", "leave", "look"}).Draw(t, "step") {
			case "enter":
				turn, ok := b.enter()
				if may := want == Closed || want == HalfOpen && !trial; ok != may {
					t.Fatalf("%d lets a request in: %t", want, ok)
				}
				if ok {
					trial = want == HalfOpen
					under = append(under, inside{turn, want, changes})
				}
			case "leave":
				if len(under) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(under)-1).Draw(t, "who")
				w := under[i]
				under = slices.Delete(under, i, i+1)
				o := rapid.SampledFrom([]outcome{unknown, good, bad}).Draw(t, "outcome")
				b.leave(w.turn, o, Slow)
				if w.at != changes {
					break // it says nothing about what is now
				}
				trial = false
				switch {
				case o == good && want == HalfOpen:
					to(Closed)
				case o == good:
					failed = 0
				case o == bad:
					if failed++; want == HalfOpen || failed == maxFailed {
						to(Open)
					}
				}
			case "look":
				why := rapid.SampledFrom([]Reason{"", Unreachable}).Draw(t, "look")
				b.looked(why)
				if why == "" {
					missed = 0
					if want == Open {
						to(HalfOpen)
					}
				} else if missed++; want == HalfOpen || want == Closed && missed >= maxMissed {
					to(Open)
				}
			}
			if got := b.now(); got != want {
				t.Fatalf("it is %d, want %d", got, want)
			}
		}
	})
}

// scripted is a server in memory, in the bubble of a test.
type scripted struct {
	mu     sync.Mutex
	fails  Reason // of requests
	looks  Reason
	slow   time.Duration
	meta   runtime.Metadata
	asked  int
	looked int
}

func (s *scripted) set(fails, looks Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails, s.looks = fails, looks
}

func (s *scripted) ready(context.Context, model) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked++
	if s.looks != "" {
		return &failure{s.looks}
	}
	return nil
}

func (s *scripted) metadata(context.Context, model) (runtime.Metadata, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meta, []string{"3"}, nil
}

func (s *scripted) maxRows(context.Context, model) (int, error) { return 0, &failure{Missing} }

func (s *scripted) infer(ctx context.Context, m model, id string, in []runtime.Tensor, outputs []string) (answer, error) {
	s.mu.Lock()
	s.asked++
	fails, slow := s.fails, s.slow
	s.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return answer{}, &failure{Slow}
		}
	}
	if fails != "" {
		return answer{}, &failure{fails}
	}
	fake, _ := runtimetest.Fake{}.Load(ctx, runtimetest.FakeModel, runtime.Options{})
	out, err := fake.Infer(ctx, in, outputs)
	return answer{id: id, model: m.name, version: m.version, outputs: out}, err
}

func (s *scripted) close() error { return nil }

func fakeSignature(b []byte) (runtime.Metadata, error) {
	s, err := runtimetest.Fake{}.Load(context.Background(), b, runtime.Options{})
	if err != nil {
		return runtime.Metadata{}, err
	}
	return s.Metadata(), nil
}

var one = []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{4, 3}}}

// scriptedSession is a session on a scripted server.
func scriptedSession(t *testing.T, w *scripted, log *slog.Logger) *session {
	t.Helper()
	w.meta, _ = fakeSignature(runtimetest.FakeModel)
	r, err := New(Config{Signature: fakeSignature, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	r.servers["far"] = &server{name: "far", wire: w, timeout: 10 * time.Second, failures: map[Reason]int64{}}
	s, err := r.Load(t.Context(), runtimetest.FakeModel, runtime.Options{Remote: runtime.Remote{Server: "far", Model: "delay", Version: "3"}})
	if err != nil {
		t.Fatal(err)
	}
	return s.(*session)
}

// TestRecovery: a server that fails is not asked, and is asked again by itself.
func TestRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{}
		var log strings.Builder
		s := scriptedSession(t, w, slog.New(slog.NewTextHandler(&log, nil)))
		ask := func() error {
			_, err := s.Infer(t.Context(), one, []string{"label"})
			return err
		}
		if err := ask(); err != nil || s.Unavailable() != nil {
			t.Fatal(err, s.Unavailable())
		}
		w.set(Unreachable, Unreachable)
		for range maxFailed {
			if err := ask(); !fault.Is(err, fault.Unavailable) || fault.RetryOf(err) == 0 {
				t.Fatal(err)
			}
		}
		asked := w.asked
		if err := ask(); !fault.Is(err, fault.Unavailable) || w.asked != asked {
			t.Errorf("%v, and the server was asked %d times more", err, w.asked-asked)
		}
		if err := s.Unavailable(); err == nil || !strings.Contains(err.Error(), "the remote far is unavailable for the model: it is unreachable") {
			t.Errorf("away: %v", err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if w.looked < 8 || w.looked > 20 { // 0.5, 1, 2 … 10 s
			t.Errorf("it was looked at %d times in a minute", w.looked)
		}
		w.set("", "")
		<-time.After(2 * lastPause)
		synctest.Wait()
		if err := s.Unavailable(); err != nil || s.breaker.now() != HalfOpen {
			t.Fatalf("state %d, away: %v", s.breaker.now(), err)
		}
		if err := ask(); err != nil || s.breaker.now() != Closed {
			t.Errorf("state %d: %v", s.breaker.now(), err)
		}
		// Looks alone open it, too: nobody need be turned away first.
		w.set("", Slow)
		<-time.After(3 * every)
		synctest.Wait()
		if s.breaker.now() != Open {
			t.Error("two looks in vain have not opened it")
		}
		for _, says := range []string{"suspended", "ready again", "available again", "remote=far", "reason=unreachable"} {
			if !strings.Contains(log.String(), says) {
				t.Errorf("the log does not say %q:\n%s", says, log.String())
			}
		}
		_ = s.Close()
	})
}

// TestHalfOpen: one request goes ahead of the others; if it fails, the next look is
// later than the last.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{}
		s := scriptedSession(t, w, nil)
		w.set(Slow, "")
		w.slow = time.Second
		infer := func() { _, _ = s.Infer(t.Context(), one, []string{"label"}) }
		for range maxFailed {
			infer()
		}
		var before time.Duration
		for range 4 {
			from := time.Now()
			for s.breaker.now() == Open {
				<-time.After(10 * time.Millisecond)
			}
			if took := time.Since(from); took <= before {
				t.Errorf("it was looked at again after %s, and before after %s", took, before)
			} else {
				before = took
			}
			asked := w.asked
			var all sync.WaitGroup
			for range 10 {
				all.Go(infer)
			}
			all.Wait()
			if w.asked != asked+1 || s.breaker.now() != Open {
				t.Fatalf("%d requests went there while one was tried; state %d", w.asked-asked, s.breaker.now())
			}
		}
		_ = s.Close()
	})
}

// TestWhoIsToBlame: what the request or who asked is to blame for says nothing about
// the server.
func TestWhoIsToBlame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{}
		s := scriptedSession(t, w, nil)
		for why, want := range map[Reason]fault.Kind{Rejected: fault.Invalid, Busy: fault.Exhausted, Broken: fault.Internal} {
			w.set(why, "")
			for range 3 * maxFailed {
				if _, err := s.Infer(t.Context(), one, []string{"label"}); !fault.Is(err, want) {
					t.Fatalf("%s: %v", why, err)
				}
			}
		}
		w.set("", "")
		w.slow = time.Minute
		for range 3 * maxFailed {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := s.Infer(ctx, one, []string{"label"}); !fault.Is(err, fault.Timeout) {
				t.Fatal(err)
			}
			cancel()
		}
		if s.breaker.now() != Closed {
			t.Fatal("the server was blamed")
		}
		for range maxFailed { // its own time-out
			if _, err := s.Infer(t.Context(), one, []string{"label"}); !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
		}
		if s.breaker.now() != Open {
			t.Error("a server that hangs is asked on")
		}
		_ = s.Close()
	})
}

// TestAnotherModelComesBack: after it was away, a server is compared again with what
// was registered.
func TestAnotherModelComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &scripted{}
		s := scriptedSession(t, w, nil)
		w.set(Unreachable, Unreachable)
		for range maxFailed {
			_, _ = s.Infer(t.Context(), one, []string{"label"})
		}
		w.set("", "")
		w.mu.Lock()
		w.meta.Inputs = []runtime.Spec{{Name: "X", Datatype: runtime.FP64, Shape: []int64{-1, 2}}}
		w.mu.Unlock()
		<-time.After(time.Minute)
		synctest.Wait()
		if err := s.Unavailable(); err == nil || !strings.Contains(err.Error(), "differs from the registered one") {
			t.Errorf("away: %v", err)
		}
		_ = s.Close()
	})
}
