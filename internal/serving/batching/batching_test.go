package batching_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

var same = []string{"same"}

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

// bench is a queue on a few cores, whose runs wait for the test.
type bench struct {
	t     *testing.T
	model *runtimetest.Tokens
	queue *batching.Queue
	all   sync.WaitGroup
	mu    sync.Mutex
	sizes []int // of the counted runs
}

func newBench(t *testing.T, cores *batching.Cores, o batching.Options) *bench {
	t.Helper()
	return benchOf(t, cores, o, func(s runtime.Session) runtime.Session { return s })
}

// narrow is a session that takes so many runs.
type narrow struct {
	runtime.Session
	runs *atomic.Int64
}

func (n narrow) Runs() int { return int(n.runs.Load()) }

func newNarrow(t *testing.T, cores *batching.Cores, runs *atomic.Int64) *bench {
	t.Helper()
	return benchOf(t, cores, batching.Options{}, func(s runtime.Session) runtime.Session { return narrow{s, runs} })
}

func benchOf(t *testing.T, cores *batching.Cores, o batching.Options, session func(runtime.Session) runtime.Session) *bench {
	t.Helper()
	b := &bench{t: t, model: &runtimetest.Tokens{Runs: make(chan *runtimetest.TokenRun)}}
	b.queue = batching.New(cores, session(b.model), o, batching.Verdict{May: batching.Yes}, func(r batching.Run) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.sizes = append(b.sizes, r.Rows)
	})
	return b
}

// reply is what a request got.
type reply struct {
	token int64
	rows  int
	done  bool
	batching.Answer
	err error
}

// own says what is wrong with an answer that should have the request's own rows.
func (r *reply) own() string {
	switch {
	case !r.done:
		return "there is no answer yet"
	case r.err != nil:
		return r.err.Error()
	case len(r.Outputs) != 1 || r.Outputs[0].Shape[0] != int64(r.rows) || int64(len(r.Outputs[0].Data.([]int64))) != r.Outputs[0].Shape[0]*r.Outputs[0].Shape[1]:
		return "it has other rows than were asked"
	case slices.ContainsFunc(r.Outputs[0].Data.([]int64), func(v int64) bool { return v != r.token }):
		return "it has somebody else's rows"
	}
	return ""
}

// ask asks in the background, and waits until the request waits or runs.
func (b *bench) ask(ctx context.Context, token int64, rows int, change ...func(*batching.Request)) *reply {
	b.t.Helper()
	r := &reply{token: token, rows: rows}
	q := batching.Request{Inputs: runtimetest.TokensOf(token, rows, 2), Outputs: same}
	for _, c := range change {
		c(&q)
	}
	b.all.Go(func() {
		defer func() {
			if recover() != nil {
				r.err, r.done = fault.New(fault.Internal, "panic"), true
			}
		}()
		a, err := b.queue.Infer(ctx, q)
		r.Answer, r.err, r.done = a, err, true
	})
	synctest.Wait()
	return r
}

// run is the next run, with these tokens.
func (b *bench) run(tokens ...int64) *runtimetest.TokenRun {
	b.t.Helper()
	synctest.Wait()
	select {
	case r := <-b.model.Runs:
		if !slices.Equal(r.Tokens, tokens) {
			b.t.Fatalf("the run has tokens %v, want %v", r.Tokens, tokens)
		}
		return r
	default:
		b.t.Fatalf("nothing runs; it should with %v", tokens)
		return nil
	}
}

func (b *bench) idle() {
	b.t.Helper()
	synctest.Wait()
	select {
	case r := <-b.model.Runs:
		b.t.Fatalf("%v run", r.Tokens)
	default:
	}
}

func (b *bench) owns(replies ...*reply) {
	b.t.Helper()
	synctest.Wait()
	for _, r := range replies {
		if why := r.own(); why != "" {
			b.t.Errorf("request %d: %s", r.token, why)
		}
	}
}

func (b *bench) failed(r *reply, kind fault.Kind) {
	b.t.Helper()
	synctest.Wait()
	if !r.done || !fault.Is(r.err, kind) {
		b.t.Errorf("request %d: done %v, %v; it should fail as %s", r.token, r.done, r.err, kind)
	}
}

func priority(p int64) func(*batching.Request) {
	return func(r *batching.Request) { r.Priority = p }
}

func timeout(d time.Duration) func(*batching.Request) {
	return func(r *batching.Request) { r.Timeout = d }
}

func background(r *batching.Request) { r.Background = true }

func columns(token int64, rows, n int) func(*batching.Request) {
	return func(r *batching.Request) { r.Inputs = runtimetest.TokensOf(token, rows, n) }
}

// try runs a test in a bubble, on one core.
func try(t *testing.T, name string, o batching.Options, f func(ctx context.Context, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, batching.NewCores(1), o)
			f(t.Context(), b)
			b.all.Wait()
			if n := b.model.Most.Load(); n > 1 {
				t.Errorf("%d runs at once on one core", n)
			}
			if n := b.queue.Waiting(); n != 0 {
				t.Errorf("%d rows still wait", n)
			}
		})
	})
}

func TestQueue(t *testing.T) {
	try(t, "what waits runs together", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, three, four := b.ask(ctx, 2, 1), b.ask(ctx, 3, 2), b.ask(ctx, 4, 1)
		pass(time.Second)
		first.End(nil)
		b.owns(one)
		second := b.run(2, 3, 3, 4)
		pass(2 * time.Second)
		second.End(nil)
		b.owns(two, three, four)
		if one.Queue != 0 || one.Infer != time.Second || three.Queue != time.Second || three.Infer != 2*time.Second {
			b.t.Errorf("%+v, %+v", one.Answer, three.Answer)
		}
		if !slices.Equal(b.sizes, []int{1, 4}) {
			b.t.Errorf("runs of %v rows were counted", b.sizes)
		}
	})
	try(t, "only alike ones", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, wide, three := b.ask(ctx, 2, 1), b.ask(ctx, 9, 1, columns(9, 1, 3)), b.ask(ctx, 3, 1)
		first.End(nil)
		b.run(2, 3).End(nil)
		b.run(9).End(nil)
		b.owns(one, two, wide, three)
	})
	try(t, "rows whose shape is a lie run alone", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two := b.ask(ctx, 2, 1)
		liar := b.ask(ctx, 9, 1, func(r *batching.Request) { r.Inputs[0].Data = []int64{9} })
		three := b.ask(ctx, 3, 1)
		first.End(nil)
		b.run(2, 3).End(nil)
		b.run(9).End(fault.New(fault.Invalid, "a lie"))
		b.owns(one, two, three)
		b.failed(liar, fault.Invalid)
	})
	try(t, "no more rows than a run may have", batching.Options{MaxRows: 4}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 9)
		first := b.run(1, 1, 1, 1, 1, 1, 1, 1, 1) // alone, it may
		two, large, three, four, five := b.ask(ctx, 2, 2), b.ask(ctx, 6, 5), b.ask(ctx, 3, 2), b.ask(ctx, 4, 3), b.ask(ctx, 5, 1)
		first.End(nil)
		b.run(2, 2, 3, 3).End(nil) // past the one that runs alone
		b.run(6, 6, 6, 6, 6).End(nil)
		b.run(4, 4, 4, 5).End(nil)
		b.owns(one, two, large, three, four, five)
	})
	try(t, "nobody is passed who is too many for the rest of a run", batching.Options{MaxRows: 4}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, three, four := b.ask(ctx, 2, 2), b.ask(ctx, 3, 3), b.ask(ctx, 4, 2)
		first.End(nil)
		b.run(2, 2).End(nil)
		b.run(3, 3, 3).End(nil)
		b.run(4, 4).End(nil)
		b.owns(one, two, three, four)
	})
	try(t, "one request a run", batching.Options{MaxRows: 1}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, three := b.ask(ctx, 2, 1), b.ask(ctx, 3, 1)
		first.End(nil)
		b.run(2).End(nil)
		b.run(3).End(nil)
		b.owns(one, two, three)
	})
	try(t, "priorities", batching.Options{MaxRows: 1, Priorities: 2}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 100, 1)
		first := b.run(100)
		rest := []*reply{one, b.ask(ctx, 101, 1), b.ask(ctx, 102, 1, priority(7)), b.ask(ctx, 103, 1, background)}
		for i := range int64(10) {
			pass(time.Millisecond)
			rest = append(rest, b.ask(ctx, i, 1, priority(1)))
		}
		first.End(nil)
		for _, want := range []int64{0, 1, 2, 3, 4, 5, 6, 101, 7, 8, 9, 102, 103} { // the eighth is who waits longest
			b.run(want).End(nil)
		}
		b.owns(rest...)
	})
	try(t, "the queue is full", batching.Options{MaxWaiting: 3}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two := b.ask(ctx, 2, 2)
		full := b.ask(ctx, 3, 2)
		b.failed(full, fault.Unavailable)
		if fault.RetryOf(full.err) <= 0 || fault.HintOf(full.err) == "" {
			b.t.Errorf("%v says not when to come back", full.err)
		}
		four := b.ask(ctx, 4, 1)
		first.End(nil)
		b.run(2, 2, 4).End(nil)
		b.owns(one, two, four)
	})
	try(t, "the queue is full of less important ones", batching.Options{MaxWaiting: 3, Priorities: 2}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, three, shadow := b.ask(ctx, 2, 1), b.ask(ctx, 3, 1), b.ask(ctx, 4, 1, background)
		better := b.ask(ctx, 5, 1, priority(1))
		b.failed(shadow, fault.Unavailable) // the least first
		b.failed(b.ask(ctx, 6, 3, priority(7)), fault.Unavailable)
		b.failed(b.ask(ctx, 7, 3, priority(1)), fault.Unavailable) // it would not be enough
		if two.done || three.done {
			b.t.Error("somebody was displaced for nobody")
		}
		best := b.ask(ctx, 8, 1, priority(1))
		b.failed(three, fault.Unavailable) // who came last
		if fault.RetryOf(three.err) <= 0 || fault.HintOf(three.err) == "" {
			b.t.Errorf("%v says not when to come back", three.err)
		}
		b.failed(b.ask(ctx, 9, 1, background), fault.Unavailable)
		first.End(nil)
		b.run(5, 8, 2).End(nil)
		b.owns(one, two, better, best)
	})
	try(t, "one request may always wait", batching.Options{MaxWaiting: 3, MaxBytes: 8}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		large := b.ask(ctx, 2, 5)
		b.failed(b.ask(ctx, 3, 1), fault.Unavailable)
		first.End(nil)
		b.run(2, 2, 2, 2, 2).End(nil)
		b.owns(one, large)
	})
	try(t, "time-outs", batching.Options{Timeout: time.Minute}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, three, four := b.ask(ctx, 2, 1, timeout(time.Second)), b.ask(ctx, 3, 1), b.ask(ctx, 4, 1, timeout(time.Hour))
		pass(time.Second)
		b.failed(two, fault.Unavailable)
		pass(time.Minute)
		b.failed(three, fault.Unavailable)
		first.End(nil)
		last := b.run(4)
		pass(2 * time.Hour) // it does not wait any more: it runs
		last.End(nil)
		b.owns(one, four)
	})
	try(t, "cancelled while it waits", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		over, cancel := context.WithCancel(ctx)
		two, three := b.ask(over, 2, 1), b.ask(ctx, 3, 1)
		cancel()
		b.failed(two, fault.Timeout)
		first.End(nil)
		b.run(3).End(nil)
		b.owns(one, three)
	})
	try(t, "cancelled while it runs with others", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		over, cancel := context.WithCancel(ctx)
		two, three, four := b.ask(over, 2, 1), b.ask(over, 3, 1), b.ask(ctx, 4, 1)
		first.End(nil)
		run := b.run(2, 3, 4)
		cancel() // the one that leads, too
		b.failed(three, fault.Timeout)
		if run.Ctx.Err() != nil {
			b.t.Error("the run was broken off although somebody waits for it")
		}
		run.End(nil)
		b.owns(one, four)
		if !two.done {
			b.t.Error("the leader did not come back")
		}
	})
	try(t, "all cancelled", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		over, cancel := context.WithCancel(ctx)
		two, three := b.ask(over, 2, 1), b.ask(over, 3, 1)
		first.End(nil)
		run := b.run(2, 3)
		cancel()
		b.failed(two, fault.Timeout)
		b.failed(three, fault.Timeout)
		if run.Ctx.Err() == nil {
			b.t.Error("the run goes on for nobody")
		}
		four := b.ask(ctx, 4, 1)
		b.run(4).End(nil)
		b.owns(one, four)
	})
	try(t, "a bad row spoils nobody else's answer", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two, bad, four := b.ask(ctx, 2, 2), b.ask(ctx, -3, 1), b.ask(ctx, 4, 1)
		first.End(nil)
		b.run(2, 2, -3, 4).End(nil)
		b.run(2, 2).End(nil)
		b.run(-3).End(nil)
		b.run(4).End(nil)
		b.owns(one, two, four)
		b.failed(bad, fault.Invalid)
		if !slices.Equal(b.sizes, []int{1, 2, 1}) {
			b.t.Errorf("runs of %v rows were counted", b.sizes)
		}
	})
	try(t, "a panic of the runtime", batching.Options{}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, runtimetest.Panic, 1) // alone
		b.run(runtimetest.Panic).End(nil)
		b.failed(one, fault.Internal)
		two := b.ask(ctx, 2, 1)
		first := b.run(2)
		three, four := b.ask(ctx, 3, 1), b.ask(ctx, runtimetest.Panic, 1)
		first.End(nil)
		b.run(3, runtimetest.Panic).End(nil)
		b.failed(three, fault.Internal)
		b.failed(four, fault.Internal)
		five := b.ask(ctx, 5, 1)
		b.run(5).End(nil)
		b.owns(two, five)
	})
	try(t, "who cannot be served in time is refused at once", batching.Options{MaxRows: 1}, func(ctx context.Context, b *bench) {
		var one *reply
		for range 16 {
			one = b.ask(ctx, 1, 1)
			run := b.run(1)
			pass(time.Second)
			run.End(nil) // a run takes a second
		}
		b.owns(one)
		two := b.ask(ctx, 2, 1)
		run := b.run(2)
		soon, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		three := b.ask(soon, 3, 1) // it may be that the core comes free at once
		b.failed(b.ask(soon, 4, 1), fault.Unavailable)
		b.failed(b.ask(ctx, 5, 1, timeout(900*time.Millisecond)), fault.Unavailable)
		six := b.ask(ctx, 6, 1, timeout(1100*time.Millisecond))
		run.End(nil)
		b.run(3).End(nil)
		b.run(6).End(nil)
		b.owns(two, three, six)
		pass(time.Minute) // what was measured is of another time
		seven := b.ask(ctx, 7, 1)
		run = b.run(7)
		eight := b.ask(ctx, 8, 1, timeout(time.Millisecond))
		run.End(nil)
		b.run(8).End(nil)
		b.owns(seven, eight)
	})
	try(t, "waiting for company", batching.Options{MaxDelay: time.Second, MaxRows: 3}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		b.idle()
		pass(500 * time.Millisecond)
		two := b.ask(ctx, 2, 1)
		b.idle()
		pass(500 * time.Millisecond)
		b.run(1, 2).End(nil)
		b.owns(one, two)
		three, four, five := b.ask(ctx, 3, 1), b.ask(ctx, 4, 1), b.ask(ctx, 5, 1)
		b.run(3, 4, 5).End(nil) // full
		large := b.ask(ctx, 6, 3)
		b.run(6, 6, 6).End(nil)
		b.owns(three, four, five, large)
		seven := b.ask(ctx, 7, 1)
		pass(time.Second)
		run := b.run(7)
		eight := b.ask(ctx, 8, 1)
		pass(2 * time.Second)
		run.End(nil)
		b.run(8).End(nil)
		b.owns(seven, eight)
	})
	try(t, "who needed no company leaves", batching.Options{MaxDelay: time.Second, MaxRows: 3}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 3)
		run := b.run(1, 1, 1)
		gone, cancel := context.WithCancel(ctx)
		large, two := b.ask(gone, 2, 4), b.ask(ctx, 3, 1) // of four rows: runs alone, at once
		cancel()
		b.idle()
		run.End(nil)
		pass(time.Second)
		b.run(3).End(nil)
		b.owns(one, two)
		b.failed(large, fault.Timeout)
	})
	try(t, "background", batching.Options{MaxRows: 1}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1, background) // nobody else wants the core
		run := b.run(1)
		two, three := b.ask(ctx, 2, 1, background), b.ask(ctx, 3, 1)
		run.End(nil)
		b.run(3).End(nil)
		b.run(2).End(nil)
		b.owns(one, two, three)
	})
}

// TestCores: two models share a core by time, and neither by turns nor by how many
// ask.
func TestCores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cores := batching.NewCores(1)
		slow, fast := newBench(t, cores, batching.Options{MaxRows: 1}), newBench(t, cores, batching.Options{MaxRows: 1})
		for i := range int64(20) {
			slow.ask(t.Context(), i, 1)
		}
		for i := range int64(100) {
			fast.ask(t.Context(), i, 1)
		}
		var slowTime, fastTime time.Duration
		for slowTime+fastTime < 100*time.Second {
			synctest.Wait()
			select {
			case r := <-slow.model.Runs:
				pass(4 * time.Second)
				slowTime += 4 * time.Second
				r.End(nil)
			case r := <-fast.model.Runs:
				pass(time.Second)
				fastTime += time.Second
				r.End(nil)
			}
		}
		if d := slowTime - fastTime; d.Abs() > 8*time.Second {
			t.Errorf("the slow model had %s, the fast one %s", slowTime, fastTime)
		}
		go func() {
			for r := range slow.model.Runs {
				r.End(nil)
			}
		}()
		go func() {
			for r := range fast.model.Runs {
				r.End(nil)
			}
		}()
		slow.all.Wait()
		fast.all.Wait()
		close(slow.model.Runs)
		close(fast.model.Runs)
	})
}

// TestThreads: a run takes as many cores as it has threads, and is not passed by
// small ones while it waits for them.
func TestThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cores := batching.NewCores(2)
		small, large := newBench(t, cores, batching.Options{MaxRows: 1}), newBench(t, cores, batching.Options{Threads: 9})
		one, two := small.ask(t.Context(), 1, 1), small.ask(t.Context(), 2, 1)
		a, b := small.run(1), small.run(2)
		wide := large.ask(t.Context(), 10, 1)
		a.End(nil)
		large.idle()
		three := small.ask(t.Context(), 3, 1)
		small.idle() // it would take what the large one waits for
		b.End(nil)
		run := large.run(10)
		small.idle()
		run.End(nil)
		small.run(3).End(nil)
		small.owns(one, two, three, wide)
	})
}

// TestThreadsLeave: a core that was kept for a request is nobody's when it leaves.
func TestThreadsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cores := batching.NewCores(2)
		small, large := newBench(t, cores, batching.Options{MaxRows: 1}), newBench(t, cores, batching.Options{Threads: 2})
		one := small.ask(t.Context(), 1, 1)
		run := small.run(1)
		gone, cancel := context.WithCancel(t.Context())
		wide, two := large.ask(gone, 10, 1), small.ask(t.Context(), 2, 1)
		small.idle()
		cancel()
		small.run(2).End(nil)
		run.End(nil)
		small.owns(one, two)
		large.failed(wide, fault.Timeout)
	})
}

// TestBackgroundOfAnother: another model's background waits for everybody.
func TestBackgroundOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cores := batching.NewCores(1)
		shadow, asked := newBench(t, cores, batching.Options{}), newBench(t, cores, batching.Options{MaxRows: 1})
		one := asked.ask(t.Context(), 1, 1)
		run := asked.run(1)
		seen := shadow.ask(t.Context(), 9, 1, background)
		two, three := asked.ask(t.Context(), 2, 1), asked.ask(t.Context(), 3, 1)
		for token := int64(2); token <= 3; token++ {
			pass(time.Second)
			run.End(nil)
			shadow.idle()
			run = asked.run(token)
		}
		run.End(nil)
		shadow.run(9).End(nil)
		asked.owns(one, two, three, seen)
	})
}

// odd is a model that is not what it seems: f answers all rows at once.
type odd struct {
	meta runtime.Metadata
	f    func(x []float32, rows int) ([]float32, error)
}

func (o odd) Metadata() runtime.Metadata { return o.meta }
func (odd) Close() error                 { return nil }

func (o odd) Infer(_ context.Context, in []runtime.Tensor, _ []string) ([]runtime.Tensor, error) {
	y, err := o.f(in[0].Data.([]float32), int(in[0].Shape[0]))
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(in[0].Shape)
	if len(y) != len(in[0].Data.([]float32)) {
		shape = []int64{int64(len(y))}
	}
	return []runtime.Tensor{{Name: "y", Datatype: runtime.FP32, Shape: shape, Data: y}}, nil
}

func oddOf(f func(x []float32, rows int) ([]float32, error), shape ...int64) odd {
	if shape == nil {
		shape = []int64{-1, 3}
	}
	return odd{runtime.Metadata{Inputs: []runtime.Spec{{Name: "x", Datatype: runtime.FP32, Shape: shape}}, Outputs: []runtime.Spec{{Name: "y", Datatype: runtime.FP32, Shape: shape}}}, f}
}

// centred subtracts the mean of all rows: an answer depends on who else asks.
func centred(x []float32, _ int) ([]float32, error) {
	var mean float32
	for _, v := range x {
		mean += v / float32(len(x))
	}
	return each(x, func(v float32) float32 { return v - mean }), nil
}

// beside answers a thousand times the first column, and for the second how many rows
// there are, times size.
func beside(x []float32, rows int, size float32) ([]float32, error) {
	y := make([]float32, len(x))
	for at := 0; at < len(x); at += 3 {
		y[at], y[at+1] = 1000+x[at], size*float32(rows)
	}
	return y, nil
}

func each(x []float32, f func(float32) float32) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

func double(x []float32, _ int) ([]float32, error) {
	return each(x, func(v float32) float32 { return 2 * v }), nil
}

func TestTry(t *testing.T) {
	for name, c := range map[string]struct {
		model runtime.Session
		may   batching.May
		says  string
	}{
		"rows by themselves": {oddOf(double), batching.Yes, ""},
		"any width":          {oddOf(double, -1, -1), batching.Yes, ""},
		"other sums": {oddOf(func(x []float32, rows int) ([]float32, error) {
			return each(x, func(v float32) float32 { return v * (1 + float32(rows)*1e-6) }), nil
		}), batching.Yes, ""},
		"tokens": {&runtimetest.Tokens{}, batching.Yes, ""},
		"a small column beside a large one": {oddOf(func(x []float32, rows int) ([]float32, error) {
			return beside(x, rows, 2e-2)
		}), batching.No, "of its column"},
		"what rounding leaves beside a large one": {oddOf(func(x []float32, rows int) ([]float32, error) {
			return beside(x, rows, 1e-3)
		}), batching.Yes, ""},
		"across the batch": {oddOf(centred), batching.No, "differs in a batch"},
		"another scale": {oddOf(func(x []float32, _ int) ([]float32, error) { // as int8 that finds its scale while it runs
			scale := slices.Max(x) / 127
			return each(x, func(v float32) float32 { return float32(math.Round(float64(v/scale))) * scale }), nil
		}), batching.No, "batching.tolerance"},
		"one row for all": {oddOf(func(x []float32, _ int) ([]float32, error) { return x[:1], nil }), batching.No, "has shape"},
		"no three rows": {oddOf(func(x []float32, rows int) ([]float32, error) {
			if rows == 3 {
				return nil, fault.New(fault.Invalid, "no")
			}
			return x, nil
		}), batching.No, "three"},
		"takes nothing": {oddOf(func([]float32, int) ([]float32, error) { return nil, fault.New(fault.Invalid, "no") }), batching.Untried, "generated test inputs"},
		"no numbers": {oddOf(func(x []float32, _ int) ([]float32, error) {
			return each(x, func(float32) float32 { return float32(math.NaN()) }), nil
		}), batching.Untried, "the same"},
		"one constant":      {oddOf(func(x []float32, _ int) ([]float32, error) { return make([]float32, len(x)), nil }), batching.Untried, "the same"},
		"too large":         {oddOf(double, -1, 1<<27), batching.Untried, "generated test inputs"},
		"a fixed number":    {oddOf(double, 1, 3), batching.No, "first dimension"},
		"no dimension":      {oddOf(double, []int64{}...), batching.No, "first dimension"},
		"unknown dimension": {odd{meta: runtime.Metadata{Inputs: []runtime.Spec{{Name: "x"}}, Outputs: []runtime.Spec{{Name: "y"}}}}, batching.No, "first dimension"},
		"no inputs":         {odd{}, batching.No, "no inputs"},
	} {
		if v := batching.Try(t.Context(), batching.NewCores(1), c.model, batching.Options{}); v.May != c.may || !strings.Contains(v.Why, c.says) {
			t.Errorf("%s: %+v, want %d", name, v, c.may)
		}
	}
	if v := batching.Try(t.Context(), batching.NewCores(1), oddOf(centred), batching.Options{Tolerance: 10}); v.May != batching.Yes {
		t.Errorf("whatever is tolerated: %+v", v)
	}
}

// TestUntried: what could not be tried is tried on real requests, and everybody has
// the answer that they had alone.
func TestUntried(t *testing.T) {
	for name, c := range map[string]struct {
		f    func([]float32, int) ([]float32, error)
		may  batching.May
		same bool // all rows are alike
	}{
		"proved": {double, batching.Yes, false}, "disproved": {centred, batching.No, false},
		"alike": {double, batching.Untried, true}, "refused": {func(x []float32, rows int) ([]float32, error) {
			if rows == 1 && x[0] > 0 {
				return nil, fault.New(fault.Invalid, "no")
			}
			return x, nil
		}, batching.Untried, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var gate atomic.Pointer[chan struct{}]
				held := oddOf(func(x []float32, rows int) ([]float32, error) {
					<-*gate.Load()
					return c.f(x, rows)
				})
				q := batching.New(batching.NewCores(1), held, batching.Options{}, batching.Verdict{}, nil)
				for range 6 {
					closed := make(chan struct{})
					gate.Store(&closed)
					var all sync.WaitGroup
					for i := range 4 {
						all.Go(func() {
							x := []float32{float32(i), 1, 2}
							if c.same {
								x[0] = 0
							}
							a, err := q.Infer(t.Context(), batching.Request{Inputs: []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1, 3}, Data: x}}, Outputs: []string{"y"}})
							want, refused := c.f(x, 1)
							if refused != nil && err != nil {
								return
							}
							if err != nil || !slices.Equal(a.Outputs[0].Data.([]float32), want) {
								t.Errorf("%v → %+v, %v; alone it is %v", x, a.Outputs, err, want)
							}
						})
					}
					synctest.Wait()
					close(closed)
					all.Wait()
				}
				if v := q.Verdict(); v.May != c.may {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// TestCountedRows: the rows of a run are the first dimension, where that is rows.
func TestCountedRows(t *testing.T) {
	for want, model := range map[int]odd{2: oddOf(double), 1: oddOf(double, 2, 3)} {
		got := 0
		q := batching.New(batching.NewCores(1), model, batching.Options{}, batching.Verdict{}, func(r batching.Run) { got = r.Rows })
		in := []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2, 3}, Data: make([]float32, 6)}}
		if _, err := q.Infer(t.Context(), batching.Request{Inputs: in, Outputs: []string{"y"}}); err != nil || got != want {
			t.Errorf("%v: %d rows were counted, want %d; %v", model.meta.Inputs[0].Shape, got, want, err)
		}
	}
}

// TestRows: a request has as many rows as its inputs, whichever is first.
func TestRows(t *testing.T) {
	spec := func(name string, shape ...int64) runtime.Spec {
		return runtime.Spec{Name: name, Datatype: runtime.FP32, Shape: shape}
	}
	meta := runtime.Metadata{Inputs: []runtime.Spec{spec("x", -1, 2), spec("y", -1), spec("scale", 1), spec("scalar", []int64{}...), spec("any")}, Outputs: []runtime.Spec{spec("z", -1)}}
	several := batching.New(batching.NewCores(1), odd{meta: meta}, batching.Options{}, batching.Verdict{}, nil)
	one := oddOf(double, 5, 3)
	single := batching.New(batching.NewCores(1), one, batching.Options{}, batching.Verdict{}, nil)
	of := func(name string, shape ...int64) runtime.Tensor { return runtime.Tensor{Name: name, Shape: shape} }
	for name, c := range map[string]struct {
		queue *batching.Queue
		in    []runtime.Tensor
		want  int
	}{
		"none":                 {several, nil, 1},
		"of a fixed number":    {single, []runtime.Tensor{of("x", 5, 3)}, 1},
		"a fixed one is first": {several, []runtime.Tensor{of("scale", 1), of("scalar"), of("x", 7, 2)}, 7},
		"of any shape":         {several, []runtime.Tensor{of("any", 4)}, 4},
		"they do not agree":    {several, []runtime.Tensor{of("y", 1), of("x", 1000, 2)}, 1000},
		"none of them":         {several, []runtime.Tensor{of("x", 0, 2)}, 0},
		"keys":                 {several, []runtime.Tensor{of("station", 3)}, 3},
		"keys and one row":     {single, []runtime.Tensor{of("station", 3)}, 3},
		"absurd":               {several, []runtime.Tensor{of("x", 1<<62)}, math.MaxInt32},
	} {
		if got := c.queue.Rows(c.in); got != c.want {
			t.Errorf("%s: %d rows, want %d", name, got, c.want)
		}
	}
}

// looked counts who asks whether a request was cancelled.
type looked struct {
	context.Context
	times *atomic.Int64
}

func (l looked) Err() error {
	l.times.Add(1)
	return l.Context.Err()
}

// TestFormingIsBounded: a batch is formed without a look at what cannot join it.
func TestFormingIsBounded(t *testing.T) {
	try(t, "", batching.Options{MaxWaiting: 10_000}, func(ctx context.Context, b *bench) {
		one := b.ask(ctx, 1, 1)
		first := b.run(1)
		two := b.ask(ctx, 2, 1)
		var looks atomic.Int64
		gone, cancel := context.WithCancel(ctx)
		var others sync.WaitGroup
		for i := range 2000 {
			others.Go(func() {
				_, _ = b.queue.Infer(looked{gone, &looks}, batching.Request{Inputs: runtimetest.TokensOf(3, 1, 3+i), Outputs: same})
			})
		}
		synctest.Wait()
		three := b.ask(ctx, 4, 1)
		before := looks.Load()
		first.End(nil)
		run := b.run(2, 4)
		if n := looks.Load() - before; n > 10 {
			b.t.Errorf("%d looks at others", n)
		}
		cancel()
		others.Wait()
		run.End(nil)
		b.owns(one, two, three)
	})
}

// mortal is a model whose process does not survive runs of more than some rows.
type mortal struct {
	*runtimetest.Tokens
	survives int64
	deaths   atomic.Int64
}

func (m *mortal) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	pass(time.Millisecond)
	if in[0].Shape[0] <= m.survives {
		return m.Tokens.Infer(ctx, in, outputs)
	}
	m.deaths.Add(1)
	return nil, fault.New(fault.Unavailable, "the process ended: %w", runtime.ErrEnded)
}

// TestSizeIsLearned: a model whose process ends when many rows run together has fewer
// together from then on, whoever else was in the process.
func TestSizeIsLearned(t *testing.T) {
	for name, c := range map[string]struct {
		survives int64
		cores    int
		deaths   int64
		may      batching.May
	}{
		"five":         {5, 1, 4, batching.Yes},
		"on two cores": {5, 2, 8, batching.Yes},
		"one":          {1, 1, 6, batching.No},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mortal{Tokens: &runtimetest.Tokens{}, survives: c.survives}
				q := batching.New(batching.NewCores(c.cores), m, batching.Options{}, batching.Verdict{May: batching.Yes}, nil)
				var failed atomic.Int64
				round := func() {
					failed.Store(0)
					var all sync.WaitGroup
					for i := range int64(200) {
						all.Go(func() {
							_, err := q.Infer(t.Context(), batching.Request{Inputs: runtimetest.TokensOf(i, 1, 1), Outputs: same})
							if err == nil {
								return
							}
							failed.Add(1)
							if !fault.Is(err, fault.Unavailable) || fault.RetryOf(err) <= 0 {
								t.Error(err)
							}
						})
					}
					all.Wait()
				}
				for range 4 {
					round()
				}
				if n := m.deaths.Load(); n > c.deaths || n == 0 {
					t.Errorf("%d runs ended the process", n)
				}
				before := m.deaths.Load()
				if round(); failed.Load() > 0 || m.deaths.Load() > before {
					t.Errorf("%d requests failed, and %d more runs", failed.Load(), m.deaths.Load()-before)
				}
				v := q.Verdict()
				if v.May != c.may || v.Why == "" {
					t.Errorf("%+v", v)
				}
				for range 6 { // who brings many rows alone does nobody harm
					if _, err := q.Infer(t.Context(), batching.Request{Inputs: runtimetest.TokensOf(1, 100, 1), Outputs: same}); err == nil {
						t.Error("it survived")
					}
				}
				if got := q.Verdict(); got != v {
					t.Errorf("%+v, after %+v", got, v)
				}
			})
		})
	}
}

// lingering is a model whose runs go on when they were cancelled.
type lingering struct {
	*runtimetest.Tokens
	over chan struct{}
}

func (l lingering) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	out, err := l.Tokens.Infer(ctx, in, outputs)
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "cancelled: %w", runtime.LingersError{Over: l.over})
	}
	return out, err
}

// TestCancelledRunsKeepTheirCores: who gave up is answered, and the core is nobody
// else's until the run is over.
func TestCancelledRunsKeepTheirCores(t *testing.T) {
	for name, tokens := range map[string][]int64{"at once": {2}, "out of the queue": {2}, "together": {2, 3}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, batching.NewCores(1), batching.Options{})
				over := make(chan struct{})
				b.queue = batching.New(batching.NewCores(1), lingering{b.model, over}, batching.Options{}, batching.Verdict{May: batching.Yes}, nil)
				gone, cancel := context.WithCancel(t.Context())
				var first *runtimetest.TokenRun
				if name != "at once" {
					b.ask(t.Context(), 1, 1)
					first = b.run(1)
				}
				var left []*reply
				for _, token := range tokens {
					left = append(left, b.ask(gone, token, 1))
				}
				if first != nil {
					first.End(nil)
				}
				b.run(tokens...)
				last := b.ask(t.Context(), 9, 1)
				cancel()
				for _, r := range left {
					b.failed(r, fault.Timeout)
				}
				b.idle()
				close(over)
				b.run(9).End(nil)
				b.owns(last)
				b.all.Wait()
			})
		})
	}
}

// TestRuns: a model that takes so many runs at a time lets more wait, as one batch when
// one ends, while others have the cores that it does not take.
func TestRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cores := batching.NewCores(3)
		var runs atomic.Int64
		runs.Store(1)
		narrow, other := newNarrow(t, cores, &runs), newBench(t, cores, batching.Options{})
		first := narrow.ask(t.Context(), 1, 1)
		running := narrow.run(1)
		second, third := narrow.ask(t.Context(), 2, 1), narrow.ask(t.Context(), 3, 1)
		narrow.idle()
		beside := other.ask(t.Context(), 4, 1)
		other.run(4).End(nil)
		other.owns(beside)
		narrow.idle() // the end of another model's run makes no room for it
		running.End(nil)
		narrow.run(2, 3).End(nil)
		narrow.owns(first, second, third)

		// Two of them leave a core to others; how many it takes may have changed since.
		wide := newNarrow(t, cores, &runs)
		runs.Store(2)
		replies := []*reply{wide.ask(t.Context(), 5, 1), wide.ask(t.Context(), 6, 1), wide.ask(t.Context(), 7, 1)}
		a, b := wide.run(5), wide.run(6)
		wide.idle()
		b.End(nil)
		wide.run(7).End(nil)
		a.End(nil)
		wide.owns(replies...)
	})
}

// TestCoresOfProjects: projects share a core by time, however many models each has, and so do
// the models of a project; one that asked nothing for a while has saved up nothing, and a
// project alone has all.
func TestCoresOfProjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = time.Second
		cores := batching.NewCores(1)
		names := []string{"many", "many", "many", "many", "one", ""}
		var models []*bench
		for _, name := range names {
			models = append(models, newBench(t, cores, batching.Options{MaxRows: 1, Project: name}))
		}
		ask := func(model int, n int64) {
			for i := range n {
				models[model].ask(t.Context(), i, 1)
			}
		}
		had := make([]time.Duration, len(models))
		work := func(runs int) {
			t.Helper()
			clear(had)
			for range runs {
				synctest.Wait()
				i := -1
				for n, m := range models {
					select {
					case r := <-m.model.Runs:
						pass(run)
						r.End(nil)
						i = n
					default:
					}
					if i >= 0 {
						break
					}
				}
				if i < 0 {
					t.Fatal("nothing runs")
				}
				had[i] += run
			}
		}
		ask(0, 100) // before anybody else asks
		work(20)
		for i := range 4 {
			ask(i, 100)
		}
		ask(4, 100)
		ask(5, 100)
		work(120)
		many := had[0] + had[1] + had[2] + had[3]
		for what, is := range map[string][2]time.Duration{
			"the project with four models": {many, 40 * run}, "that with one": {had[4], 40 * run}, "the model of none": {had[5], 40 * run},
			"one of the four": {had[0], 10 * run}, "the last of the four": {had[3], 10 * run},
		} {
			if d := is[0] - is[1]; d.Abs() > 3*run {
				t.Errorf("%s had %s, want %s", what, is[0], is[1])
			}
		}
		for _, m := range models {
			go func() {
				for r := range m.model.Runs {
					r.End(nil)
				}
			}()
		}
		for _, m := range models {
			m.all.Wait()
			close(m.model.Runs)
		}
	})
}
