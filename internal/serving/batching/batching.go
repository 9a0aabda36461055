// Package batching is how requests wait for a model and run on it. It does no I/O:
// it stands between serving and a runtime.Session.
//
// # Map
//
//   - batching.go: Queue, the requests of one loaded model; Queue.Infer is the way
//     of a request.
//   - cores.go: Cores, which all queues of a process share. Whoever ends a run
//     hands its core to the next batch.
//   - batch.go: one run of several requests. rows.go puts rows together and takes
//     them apart. size.go says how many are worth it. trial.go finds out whether a
//     model may be batched.
//
// # A request's way
//
// When a core is free and nothing waits, the request runs at once, in the caller's
// goroutine. Otherwise it waits. A batch is formed when a core comes free: out of
// what waits anyway, so that nobody waits for company, unless MaxDelay says so.
// The batch runs in the goroutine of the request that leads it; the others sleep.
//
//	waiting → running → answered
//	waiting → left (cancelled, out of time)
//	running → left: its rows go through the model, and nobody reads them
//
// # Order
//
// Priority 1 comes first; within a priority, who came first. Every eighth run of a
// model begins with who waits longest, so that nobody waits for ever: a request
// with k older ones before it leads a batch within 8·(k+1) runs of its model. What
// is alike joins the batch that is led, in the same order, until one has too many
// rows for it; what is not alike is passed.
// A session with replicas on other machines (runtime.Spread) runs there first: cores
// here serve all models, and those there only this one.
//
// Between models the one goes first whose project used least of the cores while it wanted
// them, and of the project's the one that did: a project with many models has the share of
// one with a single model. A run takes as many cores as it has threads; one that needs several keeps
// the cores that come free until it has them. Background requests run when no
// other wants the core, and may starve.
//
// # Guarantees
//
// A request is answered once, with its own rows. Rows are put together only when
// the model was seen to answer them as it answers them alone (trial.go), the
// inputs agree in all dimensions but the first, and the same outputs are wanted.
// When a batch fails, each of its requests is run once again alone: one that is
// bad spoils nobody else's answer. When the model's process does not survive a
// run, half its rows are what runs together from then on. Who leaves takes nobody
// along; a run whose requests have all left is broken off. Waiting is bounded in
// rows, bytes and time; where there is no place, who comes displaces the newest of
// the lowest priority below its own.
package batching

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Options of a queue. The zero value is the defaults.
type Options struct {
	MaxRows    int           // of a run of several requests; 0 is 64, 1 is one request a run
	MaxDelay   time.Duration // how long a request waits for company on a free core; 0: not at all
	MaxWaiting int           // rows that wait; 0 is 4096. One request may always wait
	MaxBytes   int64         // of their inputs; 0 is 256 MiB
	Priorities int           // levels; requests of others are of the last one. 0 is 1
	Timeout    time.Duration // of the wait, for requests that do not say; 0: none
	Threads    int           // cores that a run takes; 0 is 1
	Project    string        // whose queues take turns with those of others as one; empty: this one does alone
	Tolerance  float64       // see Try; 0 is DefaultTolerance
}

// DefaultMaxRows is Options.MaxRows that is not said.
const DefaultMaxRows = 64

// MaxPriorities bounds Options.Priorities.
const MaxPriorities = 16

func (o Options) withDefaults() Options {
	if o.MaxRows == 0 {
		o.MaxRows = DefaultMaxRows
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 4096
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Tolerance == 0 {
		o.Tolerance = DefaultTolerance
	}
	o.Priorities, o.Threads = min(max(1, o.Priorities), MaxPriorities), max(1, o.Threads)
	return o
}

// Request asks the model. The inputs have passed Metadata.Check, and nobody changes
// anything of them.
type Request struct {
	Inputs     []runtime.Tensor
	Outputs    []string
	Priority   int64         // 1 is first; 0, and what the model has no level for: last
	Timeout    time.Duration // of the wait; 0: the queue's
	Background bool          // only when nobody else wants the core
}

// Answer is what the model said, and how long it took: in a batch, the batch.
// Others may read the same memory; nobody changes it.
type Answer struct {
	Outputs []runtime.Tensor
	Queue   time.Duration // waiting for a batch and a core
	Input   time.Duration // gathering the batch
	Infer   time.Duration // in the model
	Output  time.Duration // taking the batch apart
}

// Run is one run of the model that gave answers.
type Run struct {
	Rows                 int
	Input, Infer, Output time.Duration
	Ended                time.Time
}

// Queue is the requests of one loaded model. Safe for concurrent use.
type Queue struct {
	narrow  runtime.Narrow // the session, when it takes so many runs only; nil
	spread  runtime.Spread // the session, when some of its runs are elsewhere; nil
	session runtime.Session
	meta    runtime.Metadata
	o       Options
	cores   *Cores
	weight  int       // cores of a run
	project *project  // nil: of none
	ran     func(Run) // counts
	single  bool      // a request is one row, whatever its shape: so says an output

	// All that follows is under cores.mu.
	verdict Verdict
	proofs  int             // batches that answered as their requests did alone
	levels  []level         // by priority; the last one is of the background
	groups  map[kind]*group // of those that wait and may join others
	count   int             // of requests that wait
	rows    int
	bytes   int64
	lone    int // of those that wait: not to be batched
	largest int // rows of one of them, since nothing waited
	runs    uint
	served  time.Duration // time of cores that its runs took: compared between queues, see Cores.next
	inside  int           // runs that have not ended
	// expected is what those are counted with in project.running, but for those elsewhere.
	expected time.Duration
	away     int           // those of them that are elsewhere, beside inside
	typical  time.Duration // of a run, lately
	cost     cost
	most     int       // rows of a batch that the model's process survives, as far as is known
	size     int       // rows of a batch at most, see cost.size
	ended    time.Time // the last run that was measured
	death    death
	armed    bool // a timer will look at what waits for company
}

// level is the requests of a priority that wait.
type level struct {
	list.List // of *request, the oldest first
	rows      int
	bytes     int64
}

// kind is what requests have in common that are of a priority and alike.
type kind struct {
	level int
	shape uint64
}

// group is those of a kind that wait.
type group struct {
	list.List // of *request, the oldest first
	rows      int
}

// death is the last time that the model's process did not survive a run.
type death struct {
	at     time.Time
	rows   int // of the largest run that ended with it
	before int // Queue.most until then
}

// New makes the queue of a session. ran is called after each run that gave
// answers, without locks held.
func New(c *Cores, s runtime.Session, o Options, v Verdict, ran func(Run)) *Queue {
	o = o.withDefaults()
	if ran == nil {
		ran = func(Run) {}
	}
	q := &Queue{session: s, meta: s.Metadata(), o: o, cores: c, weight: min(o.Threads, c.all), ran: ran, levels: make([]level, o.Priorities+1), groups: map[kind]*group{}}
	q.project = c.project(o.Project)
	q.narrow, _ = s.(runtime.Narrow)
	q.spread, _ = s.(runtime.Spread)
	q.verdict, q.most, q.size = v, o.MaxRows, o.MaxRows
	q.single = slices.ContainsFunc(q.meta.Outputs, settled)
	switch why := fixed(q.meta); {
	case o.MaxRows < 2:
		q.verdict = Verdict{May: No, Why: "batching.max_rows is 1"}
	case why != "":
		q.verdict = Verdict{May: No, Why: why}
	}
	return q
}

// state of a request.
type state uint8

const (
	waiting state = iota
	running       // in a batch
	left          // nobody reads its answer
)

// request is a Request that waits or runs in a batch.
type request struct {
	Request
	ctx     context.Context
	rows    int
	bytes   int64
	joins   bool   // may run with others
	shape   uint64 // requests that differ in it are not alike
	level   int
	own     bool // Timeout is the request's, and not the queue's
	arrived time.Time

	wake chan *batch // once: a batch to lead, or nil when answer and err are there

	// Under cores.mu.
	state state
	at    *list.Element // in its level
	among *list.Element // in its group
	batch *batch

	answer Answer
	err    error
}

// ErrHurried is in the chain of errors that requests had because their own time-out,
// or the deadline of their context, was shorter than the wait.
var ErrHurried = errors.New("the request allowed less time than it would have taken")

// Infer answers a request. Errors are the session's, and fault.Unavailable when
// too many wait, when the wait was longer than the request allows, or when it is
// clear that it would be; fault.Timeout when ctx is over.
func (q *Queue) Infer(ctx context.Context, r Request) (Answer, error) {
	now := time.Now()
	c := q.cores
	c.mu.Lock()
	if q.o.MaxDelay == 0 || q.verdict.May == No {
		away := q.count == 0 && !r.Background && q.elsewhere()
		if away || c.free >= q.weight && q.room() && (len(c.queues) == 0 || c.next(now) == nil) {
			c.start(q, away)
			c.mu.Unlock()
			return q.alone(ctx, &r, now, away)
		}
	}
	c.mu.Unlock()
	w := q.requestOf(ctx, r, now) // looks at all inputs, outside of the lock
	c.mu.Lock()
	if err := q.admit(w); err != nil {
		c.mu.Unlock()
		return Answer{}, err
	}
	q.push(w)
	c.dispatch(now) // a core may have come free
	c.mu.Unlock()
	return q.wait(w)
}

// run has the model answer, on cores that were taken here, or elsewhere.
func (q *Queue) run(ctx context.Context, away bool, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if away {
		return q.spread.InferRemote(ctx, inputs, outputs)
	}
	return q.session.Infer(ctx, inputs, outputs)
}

// alone runs a request on the core that was taken for it, or elsewhere.
func (q *Queue) alone(ctx context.Context, r *Request, began time.Time, away bool) (Answer, error) {
	finished := false
	defer func() {
		if !finished { // the runtime panicked
			q.cores.finish(q, away, 0, began, time.Now())
		}
	}()
	out, err := q.run(ctx, away, r.Inputs, r.Outputs)
	ended, rows, measured := time.Now(), q.Rows(r.Inputs), 0
	if err == nil {
		measured = rows
	}
	finished = true
	q.failed(err, rows, began, ended)
	q.release(err, away, measured, began, ended)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Outputs: out, Infer: ended.Sub(began)}
	q.ran(Run{Rows: rows, Infer: a.Infer, Ended: ended})
	return a, nil
}

// release gives the cores of a run of so many rows back, when it uses them no more; 0
// rows: it failed, or was several runs.
func (q *Queue) release(err error, away bool, rows int, began, ended time.Time) {
	over := runtime.Over(err)
	if over == nil {
		q.cores.finish(q, away, rows, began, ended)
		return
	}
	go func() {
		<-over
		q.cores.finish(q, away, 0, began, time.Now())
	}()
}

// requestOf prepares a request for waiting.
func (q *Queue) requestOf(ctx context.Context, r Request, now time.Time) *request {
	w := &request{Request: r, ctx: ctx, arrived: now, level: q.level(r), own: r.Timeout > 0, wake: make(chan *batch, 1)}
	if w.Timeout == 0 {
		w.Timeout = q.o.Timeout
	}
	w.Inputs = inOrder(r.Inputs, q.meta)
	w.rows, w.bytes = measure(w.Inputs)
	// An optional input is one for all rows of a run, so a request that has one has no company.
	if w.joins = w.rows > 0 && w.rows <= q.o.MaxRows && !q.single && len(w.Inputs) == len(q.meta.Inputs); w.joins {
		w.shape = shapeOf(w.Inputs, w.Outputs)
	} else {
		w.rows = max(1, q.Rows(w.Inputs))
	}
	return w
}

// level is the index of a request's priority.
func (q *Queue) level(r Request) int {
	last := q.o.Priorities
	switch {
	case r.Background:
		return last
	case r.Priority < 1 || r.Priority > int64(last):
		return last - 1
	}
	return int(r.Priority) - 1
}

// again is after how long somebody who was refused may ask again, at least.
const again = time.Second

// fresh is how old a measured run may be to say something about the next.
const fresh = 10 * time.Second

// admit refuses what need not wait: its time will be over before its turn, even if
// nothing comes between, or there is no place for it.
func (q *Queue) admit(w *request) error {
	if w.ctx.Err() != nil {
		return over()
	}
	if w.level < q.o.Priorities && w.arrived.Sub(q.ended) <= fresh {
		wait := q.soonest(w)
		late := w.Timeout > 0 && wait > w.Timeout
		deadline, ok := w.ctx.Deadline()
		never := ok && w.arrived.Add(wait+q.cost.least(1, w.rows)).After(deadline)
		if late || never {
			err := fault.New(fault.Unavailable, "the model is overloaded: the request would time out after waiting %s", wait.Round(time.Microsecond)).
				WithHint("Try again in a moment, or raise the time-out.").WithRetry(max(again, wait))
			if never || w.own {
				err.Err = ErrHurried
			}
			return err
		}
	}
	if !q.makeRoom(w) {
		return q.full()
	}
	return nil
}

// full is what a request hears for which there is no place.
func (q *Queue) full() error {
	return fault.New(fault.Unavailable, "the queue of the model is full: %d requests with %d rows are pending", q.count, q.rows).
		WithHint("Try again in a moment, or ask for a larger batching.queue.").WithRetry(again)
}

// makeRoom displaces who came last of the lowest priorities, where a request of a
// better one finds no place. It displaces nobody when that would not be enough.
func (q *Queue) makeRoom(w *request) bool {
	fits := func(count, rows int, bytes int64) bool {
		return count == 0 || rows+w.rows <= q.o.MaxWaiting && bytes+w.bytes <= q.o.MaxBytes
	}
	count, rows, bytes := 0, 0, int64(0)
	for l := range w.level + 1 {
		x := &q.levels[l]
		count, rows, bytes = count+x.Len(), rows+x.rows, bytes+x.bytes
	}
	if !fits(count, rows, bytes) {
		return false
	}
	for l := len(q.levels) - 1; l > w.level; {
		if fits(q.count, q.rows, q.bytes) {
			break
		}
		last := q.levels[l].Back()
		if last == nil {
			l--
			continue
		}
		gone := last.Value.(*request)
		gone.err = q.full()
		q.remove(gone, left)
		gone.wake <- nil
	}
	return true
}

// soonest is how long a request waits at least, if it could have all cores: for those
// of its priority and better ones that run before it, as quick as a run lately was.
func (q *Queue) soonest(w *request) time.Duration {
	count, rows, alike := 0, 0, 0
	for l := range w.level + 1 {
		count, rows = count+q.levels[l].Len(), rows+q.levels[l].rows
		if g := q.groups[kind{l, w.shape}]; g != nil && w.joins {
			alike += g.rows
		}
	}
	if count == 0 {
		return 0
	}
	runs, largest := count, q.largest
	if q.verdict.May != No {
		largest = max(largest, q.size)
		if alike > 0 { // it joins the last of them, and may be next
			rows = min(alike, max(0, alike+w.rows-largest))
		}
		runs = (rows + largest - 1) / largest
	}
	side := q.side() // runs side by side: all of them may wait for one that began last
	all := q.cost.least(runs, rows) - time.Duration(side-1)*q.cost.least(1, min(rows, largest))
	return max(0, all/time.Duration(side))
}

func over() error {
	return fault.New(fault.Timeout, "the request timed out in the model's queue")
}

// push puts a request into the queue.
func (q *Queue) push(w *request) {
	if q.count == 0 {
		q.cores.want(q)
	}
	l := &q.levels[w.level]
	w.at = l.PushBack(w)
	l.rows += w.rows
	l.bytes += w.bytes
	if q.count == 0 {
		q.largest = 0
	}
	q.largest = max(q.largest, w.rows)
	q.count++
	q.rows += w.rows
	q.bytes += w.bytes
	if !w.joins {
		q.lone++
		return
	}
	k := kind{w.level, w.shape}
	g := q.groups[k]
	if g == nil {
		g = &group{}
		q.groups[k] = g
	}
	w.among = g.PushBack(w)
	g.rows += w.rows
}

// used is served, and what runs that have not ended will typically take.
func (q *Queue) used() time.Duration {
	return q.served + time.Duration(q.inside*q.weight)*q.typical
}

// catchUp lets a queue that wanted nothing for a while begin where the others are, those of
// its project if it has one.
func (q *Queue) catchUp() {
	clock := q.cores.clock
	if q.project != nil {
		clock = q.project.clock
	}
	q.served += max(0, clock-q.used())
}

// before reports whether a queue goes before another one, which is as urgent.
func (q *Queue) before(other *Queue) bool {
	share := func(q *Queue) time.Duration {
		if q.project != nil {
			return q.project.used()
		}
		return q.used()
	}
	if q.project != nil && q.project == other.project {
		return q.used() < other.used()
	}
	return share(q) < share(other)
}

// remove takes a request out of the queue.
func (q *Queue) remove(w *request, s state) {
	l := &q.levels[w.level]
	l.Remove(w.at)
	l.rows -= w.rows
	l.bytes -= w.bytes
	if w.joins {
		k := kind{w.level, w.shape}
		g := q.groups[k]
		g.Remove(w.among)
		g.rows -= w.rows
		if g.Len() == 0 {
			delete(q.groups, k)
		}
	} else {
		q.lone--
	}
	w.at, w.among, w.state = nil, nil, s
	q.count--
	q.rows -= w.rows
	q.bytes -= w.bytes
	if q.count == 0 {
		q.cores.forget(q)
	}
}

// wait is what a request does after it was put into the queue.
func (q *Queue) wait(w *request) (Answer, error) {
	var late <-chan time.Time
	if w.Timeout > 0 {
		timer := time.NewTimer(w.Timeout)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case b := <-w.wake:
			if b != nil {
				b.run()
			}
			return w.answer, w.err
		case <-late:
			if q.withdraw(w) {
				err := fault.New(fault.Unavailable, "the request waited %s in the model's queue, its limit", w.Timeout).
					WithHint("Try again in a moment, or raise the time-out.").WithRetry(again)
				if w.own {
					err.Err = ErrHurried
				}
				return Answer{}, err
			}
			late = nil // it runs
		case <-w.ctx.Done():
			if b, leads := q.leave(w); leads {
				b.run() // for the others
				return w.answer, w.err
			}
			return Answer{}, over()
		}
	}
}

// withdraw takes a request out of the queue, if it is still there.
func (q *Queue) withdraw(w *request) bool {
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	if w.state == waiting {
		q.remove(w, left)
		q.cores.dispatch(time.Now())
	}
	return w.state == left
}

// leave gives a request up wherever it is. One that was made to lead a batch has
// to do so all the same.
func (q *Queue) leave(w *request) (b *batch, leads bool) {
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	switch {
	case w.state == waiting:
		q.remove(w, left)
		q.cores.dispatch(time.Now())
	case w.state == running && w.batch.members[0] == w:
		return <-w.wake, true // sent under the lock
	case w.state == running:
		w.state = left
		w.batch.lost()
	}
	return nil, false
}

// head is who leads the next batch: the first of the best priority, or who waits
// longest. Those who have gone are put out.
func (q *Queue) head(oldest bool) *request {
	var found *request
	for l := range q.levels {
		for e := q.levels[l].Front(); e != nil; e = q.levels[l].Front() {
			w := e.Value.(*request)
			if w.ctx.Err() != nil {
				q.remove(w, left)
				continue
			}
			if found == nil || oldest && l < q.o.Priorities && w.arrived.Before(found.arrived) {
				found = w
			}
			break
		}
		if found != nil && !oldest {
			break
		}
	}
	return found
}

// patience is how many runs may begin with the best priority until one begins with
// who waits longest.
const patience = 8

// take forms the next batch; nil when everybody has gone.
func (q *Queue) take() *batch {
	q.runs++
	first := q.head(q.runs%patience == 0)
	if first == nil {
		return nil
	}
	b := &batch{queue: q, rows: first.rows}
	b.add(first)
	if !first.joins || q.verdict.May == No {
		return b
	}
	for l := range q.levels {
		g := q.groups[kind{l, first.shape}]
		for g != nil && g.Len() > 0 {
			w := g.Front().Value.(*request)
			if w.ctx.Err() != nil {
				q.remove(w, left)
				continue
			}
			if b.rows+w.rows > q.size || !first.alike(w) {
				return b
			}
			b.rows += w.rows
			b.add(w)
		}
	}
	return b
}

// side is how many runs of it there may be at the same time.
func (q *Queue) side() int {
	n := q.cores.all / q.weight
	if runs := q.takes(); runs > 0 {
		n = min(n, runs)
	}
	if q.spread != nil {
		n += q.spread.RemoteRuns()
	}
	return n
}

// takes is how many runs the model takes at the same time; 0: as many as there are cores for.
// How many a session takes may change while it is asked.
func (q *Queue) takes() int {
	if q.narrow == nil {
		return 0
	}
	return q.narrow.Runs()
}

// elsewhere reports whether the model takes another run on another machine now.
func (q *Queue) elsewhere() bool { return q.spread != nil && q.away < q.spread.RemoteRuns() }

// room reports whether the model takes another run here now. When it does not, the end of
// one dispatches.
func (q *Queue) room() bool {
	runs := q.takes()
	return runs == 0 || q.inside < runs
}

// ripe reports whether something waits that need not wait for company any more.
func (q *Queue) ripe(now time.Time) bool {
	return q.o.MaxDelay == 0 || q.verdict.May == No || q.lone > 0 || q.rows >= q.size || now.Sub(q.oldest()) >= q.o.MaxDelay
}

// oldest is when the request came that waits longest.
func (q *Queue) oldest() time.Time {
	var t time.Time
	for l := range q.levels {
		if e := q.levels[l].Front(); e != nil {
			if at := e.Value.(*request).arrived; t.IsZero() || at.Before(t) {
				t = at
			}
		}
	}
	return t
}

// arm sees to it that somebody looks when the oldest has waited for company long
// enough.
func (q *Queue) arm(now time.Time) {
	if q.armed || q.count == 0 || !q.room() && !q.elsewhere() || q.ripe(now) {
		return
	}
	q.armed = true
	time.AfterFunc(q.oldest().Add(q.o.MaxDelay).Sub(now), func() {
		c := q.cores
		c.mu.Lock()
		defer c.mu.Unlock()
		now := time.Now()
		q.armed = false
		c.dispatch(now)
	})
}

// urgent reports whether somebody waits who is not of the background.
func (q *Queue) urgent() bool { return q.count > q.levels[q.o.Priorities].Len() }

// measured takes into account how long a run of so many rows took; 0 rows say
// nothing.
func (q *Queue) measured(rows int, d time.Duration, now time.Time) {
	if rows > 0 {
		q.ended = now
		q.cost.add(rows, d)
		q.size = q.cost.size(q.most)
	}
	if q.typical == 0 {
		q.typical = d
		return
	}
	q.typical += (d - q.typical) / 4
}

// failed takes into account why a run failed: of the rows that the model's process
// did not survive half run together from now on. Runs at the
// same time end with the process, too; the largest is held to have ended it.
func (q *Queue) failed(err error, rows int, began, now time.Time) {
	if !errors.Is(err, runtime.ErrEnded) { // fault.Exhausted is also what a busy remote says
		return
	}
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	d := &q.death
	if began.Before(d.at) {
		rows = max(rows, d.rows)
	} else {
		d.at, d.before = now, q.most
	}
	d.rows, q.most = rows, d.before
	if rows > 1 && rows <= d.before { // else it ran alone, and would again
		q.most = rows / 2
	}
	q.size = min(q.size, q.most)
	if q.most == 1 && q.verdict.May != No {
		q.verdict = Verdict{May: No, Why: "batches of two rows crash its process"}
	}
}

// Waiting is how many rows wait.
func (q *Queue) Waiting() int {
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	return q.rows
}

// Options are the queue's, with the defaults.
func (q *Queue) Options() Options { return q.o }

// Verdict says whether requests are batched, and why not, or not so many.
func (q *Queue) Verdict() Verdict {
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	v := q.verdict
	if v.May == Yes && q.most < q.o.MaxRows {
		v.Why = fmt.Sprintf("batches are limited to %d rows: larger ones crashed its process", q.most)
	}
	return v
}

// mayBatch reports whether batches need not be compared any more.
func (q *Queue) mayBatch() bool { return q.Verdict().May == Yes }

// disprove ends batching.
func (q *Queue) disprove(why string) {
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	q.verdict = Verdict{May: No, Why: why}
}

// proofsNeeded is how many batches of real requests are compared when nothing was
// to be known before.
const proofsNeeded = 4

// tried takes a compared batch into account.
func (q *Queue) tried(why string) {
	if why != "" {
		q.disprove(why)
		return
	}
	q.cores.mu.Lock()
	defer q.cores.mu.Unlock()
	if q.proofs++; q.proofs >= proofsNeeded && q.verdict.May == Untried {
		q.verdict = Verdict{May: Yes}
	}
}

// Rows is how many rows a request has: the first dimension of its inputs, which all
// of them have that vary in it; the largest where they do not agree. What the model
// has no input for, as keys of features, counts, too.
func (q *Queue) Rows(in []runtime.Tensor) int {
	rows := int64(-1)
	for _, t := range in {
		i := slices.IndexFunc(q.meta.Inputs, func(s runtime.Spec) bool { return s.Name == t.Name })
		if i < 0 && slices.ContainsFunc(q.meta.Optional, func(s runtime.Spec) bool { return s.Name == t.Name }) {
			continue // it has what the model says, not a row for each of the request
		}
		if len(t.Shape) > 0 && (i < 0 || !q.single && !settled(q.meta.Inputs[i])) {
			rows = max(rows, t.Shape[0])
		}
	}
	if rows < 0 {
		return 1
	}
	return int(min(rows, math.MaxInt32))
}
