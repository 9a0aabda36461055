package batching

import (
	"context"
	"errors"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// batch is requests that run together; the first one's goroutine does it.
type batch struct {
	queue   *Queue
	members []*request
	rows    int
	alive   int                // members that have not left; under cores.mu
	broken  bool               // everybody has left; under cores.mu
	cancel  context.CancelFunc // of the run; nil while there is none; under cores.mu
	told    int                // members whose answer is there
	away    bool               // it runs elsewhere
}

// add makes a request a member.
func (b *batch) add(w *request) {
	b.queue.remove(w, running)
	w.batch = b
	b.members = append(b.members, w)
	b.alive++
}

// lost is told when a member has left.
func (b *batch) lost() {
	b.alive--
	if b.alive == 0 {
		b.broken = true
		if b.cancel != nil {
			b.cancel()
		}
	}
}

// context is that of a run for several: it ends when all members have left. It
// carries nothing of any of them.
func (b *batch) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	mu := &b.queue.cores.mu
	mu.Lock()
	defer mu.Unlock()
	b.cancel = cancel
	if b.broken {
		cancel()
	}
	leader := b.members[0].ctx
	stop := context.AfterFunc(leader, func() {
		mu.Lock()
		defer mu.Unlock()
		b.lost()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// run runs the batch on the core that was taken for it, and answers everybody.
func (b *batch) run() {
	q, began, finished := b.queue, time.Now(), false
	finish := func(rows int, now time.Time, err error) {
		if !finished {
			finished = true
			q.release(err, b.away, rows, began, now)
		}
	}
	defer func() { // the runtime may have panicked
		finish(0, time.Now(), nil)
		for _, w := range b.members[b.told:] {
			b.tell(w, Answer{}, fault.New(fault.Internal, "the run of the batch broke off"))
		}
	}()
	for _, w := range b.members {
		w.answer.Queue = began.Sub(w.arrived)
	}
	if len(b.members) == 1 {
		w := b.members[0]
		out, err := q.run(w.ctx, b.away, w.Inputs, w.Outputs)
		now := time.Now()
		rows := 0
		if err == nil {
			rows = q.Rows(w.Inputs)
		}
		finish(rows, now, err)
		q.failed(err, b.rows, began, now)
		b.answer(w, out, err, now.Sub(began), now)
		return
	}
	ctx, end := b.context()
	defer end()
	in := gather(b.members, b.rows)
	gathered := time.Now()
	out, err := q.run(ctx, b.away, in, b.members[0].Outputs)
	ran := time.Now()
	q.failed(err, b.rows, began, ran)
	switch {
	case ctx.Err() != nil: // everybody has left
		finish(0, ran, err)
		for _, w := range b.members {
			b.tell(w, Answer{}, over())
		}
		return
	case errors.Is(err, runtime.ErrEnded):
		finish(0, ran, err)
		for _, w := range b.members {
			b.tell(w, Answer{}, fault.New(fault.Unavailable, "the model's process crashed on a batch with this request; smaller batches are used from now on: %w", err).
				WithHint("Try again in a few seconds.").WithRetry(again))
		}
		return
	case fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout):
		finish(0, ran, err)
		for _, w := range b.members { // it may have run, and is not run again
			b.tell(w, Answer{}, err)
		}
		return
	case err == nil && !q.mayBatch():
		b.compare(out)
		return
	case err == nil:
		parts, why := split(out, b.members, b.rows)
		if why == "" {
			finish(b.rows, ran, nil)
			b.deal(parts, gathered.Sub(began), ran.Sub(gathered), ran)
			return
		}
		q.disprove(why)
	}
	b.each()
}

// deal gives everybody their part.
func (b *batch) deal(parts [][]runtime.Tensor, input, infer time.Duration, ran time.Time) {
	now := time.Now()
	output := now.Sub(ran)
	b.queue.ran(Run{Rows: b.rows, Input: input, Infer: infer, Output: output, Ended: now})
	for i, w := range b.members {
		b.tell(w, Answer{Outputs: parts[i], Queue: w.answer.Queue, Input: input, Infer: infer, Output: output}, nil)
	}
}

// each runs every request alone, one after the other.
func (b *batch) each() {
	for _, w := range b.members {
		began := time.Now()
		out, err := b.queue.run(w.ctx, b.away, w.Inputs, w.Outputs)
		now := time.Now()
		b.queue.failed(err, w.rows, began, now)
		b.answer(w, out, err, now.Sub(began), now)
		if over := runtime.Over(err); over != nil {
			<-over // the cores are of one run at a time
		}
	}
}

// compare is a batch of a model of which nobody knows yet whether it may be
// batched: each request is run alone, too, and has that answer.
func (b *batch) compare(out []runtime.Tensor) {
	q := b.queue
	parts, why := split(out, b.members, b.rows)
	b.each()
	var alone, together [][]runtime.Tensor
	for i, w := range b.members {
		if why == "" && w.err == nil { // who left, or was refused, proves nothing
			alone, together = append(alone, w.answer.Outputs), append(together, parts[i])
		}
	}
	if why == "" {
		why = differs(alone, together, q.o.Tolerance)
	}
	if why == "" && (len(alone) < 2 || !tells(alone)) {
		return
	}
	q.tried(why)
}

// answer gives a member what the model said to it alone.
func (b *batch) answer(w *request, out []runtime.Tensor, err error, took time.Duration, now time.Time) {
	if err == nil {
		b.queue.ran(Run{Rows: b.queue.Rows(w.Inputs), Infer: took, Ended: now})
	}
	b.tell(w, Answer{Outputs: out, Queue: w.answer.Queue, Infer: took}, err)
}

// tell hands the next member its answer. One that has left does not read it. The
// leader is in run and needs no waking.
func (b *batch) tell(w *request, a Answer, err error) {
	if err != nil {
		a.Outputs = nil
	}
	w.answer, w.err = a, err
	b.told++
	if w != b.members[0] {
		w.wake <- nil
	}
}
