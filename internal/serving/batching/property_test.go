package batching_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// asking is a request of a drawn load.
type asking struct {
	At, Cancel, Timeout time.Duration // Cancel: after it came; 0: never
	Model, Rows, Wide   int
	Priority            int64
	Background          bool
	Deadline            bool // Cancel is one
	Kind                int  // 0: good; 1: invalid; 2: the runtime fails on it
}

func (a asking) token(i int) int64 {
	switch a.Kind {
	case 1:
		return -int64(i) - 1
	case 2:
		return runtimetest.Crash
	}
	return int64(i) + 1
}

// load is what happens to two models that share a few cores.
type load struct {
	Cores   int
	Options [2]batching.Options
	Took    []time.Duration // of the runs, in turn
	Killed  []int           // 1: they fail because there is no process; 2: because it ended
	Lingers []time.Duration // how long they go on when they are cancelled
	Asked   []asking
}

func millis(low, high int) *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(low, high).Draw(t, "ms")) * time.Millisecond
	})
}

func seldom(g *rapid.Generator[time.Duration]) *rapid.Generator[time.Duration] {
	return rapid.OneOf(rapid.Just(time.Duration(0)), rapid.Just(time.Duration(0)), g)
}

var loads = rapid.Custom(func(t *rapid.T) load {
	l := load{Cores: rapid.IntRange(1, 3).Draw(t, "cores")}
	for i := range l.Options {
		l.Options[i] = batching.Options{
			MaxRows: rapid.IntRange(1, 6).Draw(t, "rows of a run"), MaxDelay: seldom(millis(1, 5)).Draw(t, "delay"), MaxWaiting: rapid.SampledFrom([]int{0, 0, 3, 20}).Draw(t, "queue"),
			Priorities: rapid.IntRange(1, 3).Draw(t, "priorities"), Timeout: seldom(millis(1, 30)).Draw(t, "time-out"), Threads: rapid.IntRange(1, 2).Draw(t, "threads"),
			Project: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "project"),
		}
	}
	l.Took = rapid.SliceOfN(millis(0, 6), 1, 8).Draw(t, "took")
	l.Killed = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) int { return max(0, rapid.IntRange(-8, 2).Draw(t, "n")) }), 1, 5).Draw(t, "killed")
	l.Lingers = rapid.SliceOfN(seldom(millis(1, 10)), 1, 4).Draw(t, "lingers")
	l.Asked = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) asking {
		return asking{
			At: millis(0, 40).Draw(t, "at"), Cancel: seldom(millis(1, 20)).Draw(t, "cancel"), Timeout: seldom(millis(1, 20)).Draw(t, "time-out"),
			Model: rapid.IntRange(0, 1).Draw(t, "model"), Rows: rapid.IntRange(1, 7).Draw(t, "rows"), Wide: rapid.IntRange(1, 2).Draw(t, "columns"),
			Deadline: rapid.Bool().Draw(t, "deadline"), Priority: int64(rapid.IntRange(0, 4).Draw(t, "priority")), Background: rapid.IntRange(0, 5).Draw(t, "background") == 5,
			Kind: max(0, rapid.IntRange(-6, 2).Draw(t, "kind")),
		}
	}), 1, 60).Draw(t, "asked")
	return l
})

// TestReplies: whatever the load, each request is answered once, with its own rows
// or with an error that it has a reason for, and nothing is left behind.
func TestReplies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := loads.Draw(rt, "load")
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = l.run(t.Context()) })
		for _, w := range wrong {
			rt.Error(w)
		}
	})
}

// weighed says when runs take more cores than there are.
type weighed struct {
	*runtimetest.Tokens
	busy          *atomic.Int64
	weight, cores int64
	runs          atomic.Int64
	lingers       []time.Duration
	say           func(format string, args ...any)
}

func (w *weighed) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if n := w.busy.Add(w.weight); n > w.cores {
		w.say("runs take %d of %d cores", n, w.cores)
	}
	out, err := w.Tokens.Infer(ctx, in, outputs)
	more := w.lingers[int(w.runs.Add(1))%len(w.lingers)]
	if ctx.Err() == nil || more == 0 {
		w.busy.Add(-w.weight)
		return out, err
	}
	over := make(chan struct{})
	time.AfterFunc(more, func() {
		w.busy.Add(-w.weight)
		close(over)
	})
	return nil, fault.New(fault.Timeout, "over: %w", runtime.LingersError{Over: over})
}

// run plays the load and says what was wrong.
func (l load) run(ctx context.Context) (wrong []string) {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		wrong = append(wrong, fmt.Sprintf(format, args...))
	}
	cores := batching.NewCores(l.Cores)
	var models [2]*runtimetest.Tokens
	var queues [2]*batching.Queue
	var counted, answered, busy atomic.Int64
	stop := make(chan struct{})
	var servers sync.WaitGroup
	killed := false
	for i := range models {
		weight := int64(min(l.Options[i].Threads, l.Cores))
		models[i] = &runtimetest.Tokens{Runs: make(chan *runtimetest.TokenRun)}
		queues[i] = batching.New(cores, &weighed{Tokens: models[i], busy: &busy, weight: weight, cores: int64(l.Cores), lingers: l.Lingers, say: say}, l.Options[i], batching.Verdict{May: batching.Yes}, func(r batching.Run) { counted.Add(int64(r.Rows)) })
		servers.Go(func() {
			for n := 0; ; n++ {
				select {
				case r := <-models[i].Runs:
					took, kill := l.Took[n%len(l.Took)], l.Killed[n%len(l.Killed)]
					servers.Go(func() {
						select {
						case <-time.After(took):
						case <-r.Ctx.Done():
						}
						switch kill {
						case 1:
							r.End(fault.New(fault.Unavailable, "there is no process"))
						case 2:
							r.End(fault.New(fault.Unavailable, "the process ended: %w", runtime.ErrEnded))
						default:
							r.End(nil)
						}
					})
				case <-stop:
					return
				}
			}
		})
	}
	for _, k := range l.Killed {
		killed = killed || k > 0
	}
	var all sync.WaitGroup
	for i, a := range l.Asked {
		all.Go(func() {
			pass(a.At)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			switch {
			case a.Cancel > 0 && a.Deadline:
				ctx, cancel = context.WithTimeout(ctx, a.Cancel)
				defer cancel()
			case a.Cancel > 0:
				defer time.AfterFunc(a.Cancel, cancel).Stop()
			}
			o := l.Options[a.Model]
			patience := cmp.Or(a.Timeout, o.Timeout)
			came := time.Now()
			r := reply{token: a.token(i), rows: a.Rows, done: true}
			r.Answer, r.err = queues[a.Model].Infer(ctx, batching.Request{
				Inputs: runtimetest.TokensOf(r.token, a.Rows, a.Wide), Outputs: same, Priority: a.Priority, Timeout: a.Timeout, Background: a.Background,
			})
			if n := queues[a.Model].Waiting(); n > 7 && o.MaxWaiting > 0 && n > o.MaxWaiting {
				say("%d rows wait, and no more than %d may", n, o.MaxWaiting)
			}
			if patience > 0 && r.Queue > patience {
				say("request %d waited for %s, and allowed %s", i, r.Queue, patience)
			}
			if errors.Is(r.err, batching.ErrHurried) && (a.Timeout == 0 && !a.Deadline || time.Since(came) > max(a.Timeout, a.Cancel)) {
				say("request %d hurried: %v after %s", i, r.err, time.Since(came))
			}
			switch kind := fault.KindOf(r.err); {
			case r.err == nil:
				answered.Add(int64(a.Rows))
				if why := r.own(); why != "" {
					say("request %d: %s", i, why)
				}
				if a.Kind != 0 {
					say("request %d was answered and could not be", i)
				}
			case r.Outputs != nil:
				say("request %d has an error and an answer", i)
			case kind == fault.Invalid && a.Kind == 1, kind == fault.Internal && a.Kind == 2, kind == fault.Timeout && a.Cancel > 0:
			case kind == fault.Unavailable && (killed || a.Timeout > 0 || o.Timeout > 0 || o.MaxWaiting > 0 || a.Deadline && a.Cancel > 0):
			default:
				say("request %d %+v: %s, %v", i, a, kind, r.err)
			}
		})
	}
	all.Wait()
	synctest.Wait()
	for i, q := range queues {
		if n := q.Waiting(); n != 0 {
			say("%d rows still wait", n)
		}
		_ = models[i].Close()
	}
	if counted.Load() < answered.Load() {
		say("%d rows were answered and %d were counted", answered.Load(), counted.Load())
	}
	pass(time.Second) // what was cancelled goes on for a while
	// The cores are all there again: a request that needs them all runs at once.
	whole := batching.New(cores, &runtimetest.Tokens{}, batching.Options{Threads: l.Cores}, batching.Verdict{}, nil)
	if a, err := whole.Infer(ctx, batching.Request{Inputs: runtimetest.TokensOf(1, 1, 1), Outputs: same}); err != nil || a.Queue != 0 {
		say("after all, a request waits: %+v, %v", a, err)
	}
	close(stop)
	servers.Wait()
	return wrong
}

// TestRepliesUnheld is many at once in real time.
func TestRepliesUnheld(t *testing.T) {
	cores := batching.NewCores(2)
	q := batching.New(cores, &runtimetest.Tokens{}, batching.Options{MaxRows: 8, Priorities: 2}, batching.Verdict{May: batching.Yes}, nil)
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 300 {
				r := reply{token: int64(g*1000 + i), rows: 1 + i%3, done: true}
				r.Answer, r.err = q.Infer(t.Context(), batching.Request{Inputs: runtimetest.TokensOf(r.token, r.rows, 2), Outputs: same, Priority: int64(i % 3)})
				if why := r.own(); why != "" {
					t.Errorf("request %d: %s", r.token, why)
				}
			}
		})
	}
	all.Wait()
}
