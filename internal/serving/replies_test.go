package serving_test

import (
	"context"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// marked runs models that answer tokens with a mark of their version.
type marked struct {
	t        *testing.T
	dead     atomic.Bool // the worker of every session was killed, and is not there again
	sessions sync.WaitGroup
}

type markedSession struct {
	runtimetest.Tokens
	of   *marked
	mark int64
}

// markOf is what a version adds to a token.
func markOf(version int64) int64 { return version << 20 }

func (m *marked) Load(_ context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(string(model), "model "), 10, 64)
	if err != nil {
		return nil, fault.New(fault.Invalid, "not a model")
	}
	m.sessions.Add(1)
	return &markedSession{of: m, mark: markOf(n)}, nil
}

func (s *markedSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	for range 20 {
		goruntime.Gosched() // others come meanwhile
	}
	if s.of.dead.Load() {
		return nil, fault.New(fault.Unavailable, "the worker was killed")
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

func (s *markedSession) Close() error {
	s.of.sessions.Done()
	return s.Tokens.Close()
}

// TestRepliesWhileVersionsChange: many ask, with rows of their own, cancel, run out
// of time and send nonsense, while versions load, are tried, promoted, rolled back
// and shadowed, the deployment is deleted and made again, and workers are killed.
// Each request is answered once, with its own rows, by the version that it is told,
// or has an error with a reason; in the end every session is closed.
func TestRepliesWhileVersionsChange(t *testing.T) {
	spec := serving.Spec{Model: "m", Version: "1", Batching: &serving.BatchingSpec{MaxRows: 8, Priorities: 3, Queue: 64}}
	t.Run("a model", func(t *testing.T) { repliesWhileVersionsChange(t, spec, 0, runtimetest.TokensOf) })
	// A chain whose first model adds its mark, too, of columns that a step puts together.
	spec.Inputs = []chain.InputSpec{{Name: "own", Datatype: runtime.Int64}}
	spec.Before = []chain.StepSpec{
		{Compute: map[string]string{"same_own": "own + 0"}},
		{Tensor: &chain.TensorSpec{Name: "raw", Datatype: runtime.Int64, From: []string{"same_own"}}},
		{Model: "m", Version: "9", Inputs: map[string]string{"token": "raw"}, Outputs: map[string]string{"same": "token"}},
	}
	t.Run("a chain", func(t *testing.T) {
		repliesWhileVersionsChange(t, spec, markOf(9), func(token int64, rows, _ int) []runtime.Tensor {
			return []runtime.Tensor{{Name: "own", Datatype: runtime.Int64, Shape: []int64{int64(rows)}, Data: slices.Repeat([]int64{token}, rows)}}
		})
	})
}

func repliesWhileVersionsChange(t *testing.T, spec serving.Spec, mark int64, inputs func(token int64, rows, columns int) []runtime.Tensor) {
	t.Helper()
	p := newPond(t)
	ctx := t.Context()
	rt := &marked{t: t}
	c := p.config()
	c.Runtime = rt
	p.services = newServices(c)
	p.apply(t, spec)
	done := make(chan struct{})
	var all sync.WaitGroup
	var answered, together, deleted atomic.Int64
	for g := range 12 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 7))
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
				q := serving.Request{Project: "nyc", Name: "d", Inputs: inputs(token, rows, 1+r.IntN(2)), Priority: r.Int64N(5)}
				if hurried {
					q.Timeout = time.Duration(r.IntN(100)) * time.Microsecond
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
						if v != token+markOf(a.Version)+mark {
							t.Errorf("request %d by version %d: %v", token, a.Version, out)
						}
					}
				case a.Outputs != nil:
					t.Errorf("request %d has an error and an answer", token)
				case kind == fault.Invalid && bad, kind == fault.Timeout && cancelled, kind == fault.Unavailable: // killed, full, hurried
				case kind == fault.NotFound && deleted.Load() > 0:
				default:
					t.Errorf("request %d: %s, %v", token, kind, err)
				}
			}
		})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 6 {
		_, err := p.Shadow(ctx, "nyc", "d", "9")
		must(err)
		_, err = p.Start(ctx, "nyc", "d", serving.RolloutRequest{Version: strconv.Itoa(2 + i%6), Weight: 40})
		must(err)
		rt.dead.Store(true)
		must(second(p.SetWeight(ctx, "nyc", "d", 70)))
		rt.dead.Store(false)
		if i%2 == 0 {
			must(second(p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{})))
		} else {
			must(second(p.Promote(ctx, "nyc", "d", serving.RolloutEnd{})))
		}
		stats, err := p.Statistics(ctx, "nyc", "d", "")
		must(err)
		for _, s := range stats {
			for _, b := range s.Batches {
				if b.Size > 4 {
					together.Add(b.Infer.Count)
				}
			}
		}
		if i == 3 {
			deleted.Add(1)
			must(p.Delete(ctx, "nyc", "d"))
			p.apply(t, spec)
		}
	}
	close(done)
	all.Wait()
	must(p.Close(ctx))
	if answered.Load() == 0 || together.Load() == 0 {
		t.Errorf("%d requests were answered, %d runs had rows of several", answered.Load(), together.Load())
	}
	must(p.Delete(ctx, "nyc", "d"))
	rt.sessions.Wait() // for ever, if one is left open
}

// TestBatchingState: a deployment says whether its requests run together, and why
// not.
func TestBatchingState(t *testing.T) {
	p := newPond(t)
	for _, c := range []struct {
		rt       runtime.Runtime
		batching *serving.BatchingSpec
		together bool
		says     string
	}{
		{&marked{t: t}, nil, true, ""},
		{&marked{t: t}, &serving.BatchingSpec{MaxRows: 1}, false, "max_rows is 1"},
		{crossed{&marked{t: t}}, nil, false, "differs in a batch"},
	} {
		cfg := p.config()
		cfg.Runtime = c.rt
		p.services = newServices(cfg)
		p.apply(t, serving.Spec{Model: "m", Version: "1"}) // not tried when nothing changes
		if _, _, err := p.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "m", Version: "2", Batching: c.batching}, false); err != nil {
			t.Fatal(err)
		}
		d, err := p.One(t.Context(), "nyc", "d")
		if err != nil || d.Targets[0].Batching != c.together || !strings.Contains(d.Targets[0].Unbatched, c.says) {
			t.Errorf("%+v, %v; want %v, %q", d.Targets, err, c.together, c.says)
		}
	}
}

// crossed runs models whose answers depend on who else asks.
type crossed struct{ *marked }

func (c crossed) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	s, err := c.marked.Load(ctx, model, o)
	return crossedSession{s}, err
}

type crossedSession struct{ runtime.Session }

func (s crossedSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	out, err := s.Session.Infer(ctx, in, outputs)
	if err == nil {
		out[0].Data.([]int64)[0] += in[0].Shape[0]
	}
	return out, err
}

// TestLimited: what is over a deployment's limits is refused before it is looked at,
// and counted; other deployments are not concerned.
func TestLimited(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m", Version: "1", Limits: &serving.LimitsSpec{Requests: 0.001}})
	if _, _, err := p.Apply(ctx, "nyc", "free", serving.Spec{Model: "m", Version: "1"}, false); err != nil {
		t.Fatal(err)
	}
	infer := func(name string) error {
		return second(p.Infer(ctx, serving.Request{Project: "nyc", Name: name, Inputs: ask}))
	}
	if err := infer("d"); err != nil {
		t.Fatal(err)
	}
	if err := infer("d"); !fault.Is(err, fault.Exhausted) || fault.RetryOf(err) < 900*time.Second || fault.HintOf(err) == "" {
		t.Errorf("over the limit: %v, again in %s", err, fault.RetryOf(err))
	}
	for range 3 {
		if err := infer("free"); err != nil {
			t.Error(err)
		}
	}
	for _, m := range p.Measured() {
		limited, answered := int64(0), int64(3)
		if m.Deployment == "d" {
			limited, answered = 1, 1
		}
		if m.Failures[fault.Exhausted] != limited || m.Success.Count != answered || m.Fail.Count != 0 || m.Queue.Count != answered || m.Waiting != 0 {
			t.Errorf("%+v", m)
		}
	}
	p.world.denied["deployment.infer"] = true
	if err := infer("d"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("who may not ask hears of limits: %v", err)
	}
	p.world.denied["deployment.infer"] = false
	p.apply(t, serving.Spec{Model: "m", Version: "1"})
	if err := infer("d"); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}
