package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// How long a process may go on with a run that was cancelled, before it is ended:
// as long as runs of it took, and between these. The longer one is also how long it
// may take no bytes.
const (
	impatient = time.Second
	stuck     = 30 * time.Second
)

// exiting is how long a process that hung up may take to exit before it is killed.
const exiting = time.Second

var (
	errEnded = errors.New("it was ended")
	errSlow  = errors.New("it took too long to load its model")

	errStubborn = errors.New("it did not end what was cancelled")
	errDeaf     = errors.New("it takes nothing")
)

// process is one process of a model. Who asks it registers a call and sends; a
// reader gives the answers out. Each call is answered once: by who takes it out
// of calls.
type process struct {
	proc   Process
	cancel context.CancelFunc
	in     channel       // what it reads
	gone   chan struct{} // closed when everything of it is over
	exit   error         // how it ended, known then
	stderr head
	meta   runtime.Metadata
	link   bool         // it is on another machine
	lanes  *lane.Memory // nil: all goes over in

	leaving chan struct{} // closed when it asks to be let go
	asks    sync.Once

	sending chan struct{} // holds a token while somebody writes
	w       *writer

	mu      sync.Mutex
	calls   map[uint64]*waiting // nil when the process is ending
	last    uint64
	longest time.Duration // that a run took
	why     error
}

// channel is a way to a process: a pipe, or a connection.
type channel interface {
	io.WriteCloser
	SetWriteDeadline(at time.Time) error
}

// waiting is a call that was sent. Its answer is dropped when it was cancelled.
type waiting struct {
	asked  []runtime.Spec
	began  time.Time
	free   func()        // gives its cores back, when the process is done with it
	over   chan struct{} // closed then
	answer chan answer
	late   *time.Timer // of a cancelled one
	looks  int         // at a lane whose answer is missing; of who waits for it
}

type answer struct {
	tensors []runtime.Tensor
	err     error
}

// end tells a call that was taken out of calls its answer.
func (c *waiting) end(a answer) {
	if c.late != nil {
		c.late.Stop()
	}
	c.free()
	c.answer <- a
	close(c.over)
}

// start starts a process and gives it the model.
func (r *Runtime) start(life context.Context, model []byte, o runtime.Options) (*process, error) {
	r.mu.Lock()
	if life.Err() != nil || r.life.Err() != nil {
		r.mu.Unlock()
		return nil, fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	r.processes.Add(1)
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(life)
	failed := func(err error) (*process, error) {
		cancel()
		r.processes.Done()
		return nil, fault.Wrap(err, "start the model's process")
	}
	proc, err := r.launcher.Launch(ctx, o)
	if err != nil {
		return failed(err)
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return failed(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		_, _ = theirIn.Close(), in.Close()
		return failed(err)
	}
	p := newProcess(proc, in, cancel)
	cmd := proc.Command()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, &p.stderr
	if p.lanes = r.share(life, o); p.lanes != nil {
		cmd.ExtraFiles = []*os.File{p.lanes.File()}
	}
	err = proc.Start()
	_, _ = theirIn.Close(), theirOut.Close()
	if err != nil {
		p.endLanes()
		_, _ = in.Close(), out.Close()
		return failed(err)
	}
	if err := r.load(life, ctx, p, out, model, o); err != nil {
		return nil, err
	}
	return p, nil
}

// newProcess is one that nobody talks to yet.
func newProcess(proc Process, in channel, cancel context.CancelFunc) *process {
	return &process{
		proc: proc, cancel: cancel, in: in, gone: make(chan struct{}), leaving: make(chan struct{}),
		sending: make(chan struct{}, 1), w: newWriter(in), calls: map[uint64]*waiting{},
	}
}

// load gives a process its model, and begins to read what it answers. One that does not
// load it has ended. own ends with the process, and life is its caller's.
func (r *Runtime) load(life, own context.Context, p *process, out io.ReadCloser, model []byte, o runtime.Options) error {
	context.AfterFunc(own, func() { p.stop(errEnded) })
	reader := newReader(out)
	ended := func(why error) { // everything of it is over
		p.stop(why)
		p.exit = p.proc.Wait()
		_, _ = p.in.Close(), out.Close()
		p.endLanes()
		close(p.gone)
		r.processes.Done()
	}
	// A process that takes nothing and says nothing ends with its context, which
	// closes its side of the pipes.
	slow := time.AfterFunc(o.Time, func() { p.stop(errSlow) })
	if p.lanes != nil {
		p.w.lanes(p.lanes.Count(), lane.Size)
	}
	p.w.load(model, o)
	err := p.w.flush()
	if err == nil {
		p.meta, err = reader.loaded()
	}
	if !slow.Stop() && err == nil {
		err = errSlow
	}
	if err != nil {
		ended(err)
		err = p.loadError(life, err, o)
		// It has seen the model and no row.
		r.log.ErrorContext(life, "loading a model in its process failed", slog.String("reason", p.reason()), slog.String("said", p.stderr.String()), slog.String("error", err.Error()))
		return err
	}
	p.stderr.forget()
	go func() { ended(p.read(reader)) }()
	return nil
}

// loadError says why a model was not loaded: what the child said, or why it could
// not start, else that it died of the model.
func (p *process) loadError(ctx context.Context, err error, o runtime.Options) error {
	dead := func(e *fault.Error) error {
		e.Err = runtime.DeathError{Death: p.death(o)}
		return e
	}
	if said, ok := errors.AsType[*fault.Error](err); ok {
		if said.Kind == fault.Timeout { // it goes on with what it gave up, until it is killed
			p.late()
			return dead(said)
		}
		return said
	}
	if errors.Is(p.ended(), errSlow) {
		return dead(runtime.Late(o.Time))
	}
	if ctx.Err() != nil {
		return fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	if why, ok := errors.AsType[*fault.Error](p.exit); ok {
		return fault.Wrap(why, "start the model's process")
	}
	if p.outOfMemory() {
		return dead(fault.New(fault.Exhausted, "loading the model exceeds the memory limit %s of its process", o.Memory).
			WithHint("Set spec.runtime.memory."))
	}
	return dead(fault.New(fault.Invalid, "loading the model crashed its process: %s", p.death(o).Reason).
		WithHint("The file is damaged, or ONNX Runtime cannot load it. The server's log has details."))
}

// stop ends the process, for the first reason given; its calls are answered.
func (p *process) stop(why error) {
	p.mu.Lock()
	calls := p.calls
	if p.calls != nil {
		p.why = why
	}
	p.calls = nil
	p.mu.Unlock()
	if hungUp(why) && !errors.Is(why, errEnded) && !p.link {
		time.AfterFunc(exiting, p.cancel) // it has ended, or is about to: its exit says why
	} else {
		p.cancel()
	}
	err := died()
	if p.link { // that it is not reached says nothing of the runs
		err = parted()
	} else if errors.Is(why, errStubborn) || errors.Is(why, errDeaf) { // which none of the calls did
		err = unavailable()
	}
	for _, c := range calls {
		c.end(answer{err: err})
	}
	p.endLanes()
}

// ended is why it was stopped; nil when it was not.
func (p *process) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

func (p *process) ending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls == nil
}

func (p *process) outOfMemory() bool {
	m, ok := p.proc.(interface{ OutOfMemory() bool })
	return ok && m.OutOfMemory() || strings.Contains(p.stderr.String(), "out of memory")
}

// symptoms are what a log may have of what a process printed at its end.
var symptoms = []string{
	"SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS", "SIGQUIT", "out of memory", "std::bad_alloc", "stack overflow", "goroutine stack exceeds",
	"corrupted", "double free", "terminate called", "panic:", "fatal error:",
}

// reason is why it ended, for the log, when it is gone.
func (p *process) reason() string {
	words := []string{fmt.Sprintf("%v, %v", p.ended(), p.exit)}
	if p.outOfMemory() {
		words = append(words, "it took more memory than it may")
	}
	printed := p.stderr.String()
	for _, s := range symptoms {
		if strings.Contains(printed, s) {
			words = append(words, s)
		}
	}
	return strings.Join(words, ", ")
}

// infer asks for outputs. free is called once, when the process is done with the
// run or has ended, which may be after the answer.
func (p *process) infer(ctx context.Context, inputs []runtime.Tensor, asked []runtime.Spec, free func()) ([]runtime.Tensor, error) {
	c := &waiting{asked: asked, began: time.Now(), free: free, over: make(chan struct{}), answer: make(chan answer, 1)}
	p.mu.Lock()
	if p.calls == nil {
		p.mu.Unlock()
		free()
		return nil, p.unavailable()
	}
	p.last++
	id := p.last
	p.calls[id] = c
	p.mu.Unlock()
	if l := p.ask(id, inputs, asked); l != nil {
		return p.await(ctx, id, c, l)
	}
	if err := p.send(ctx, func(w *writer) { w.infer(id, inputs, asked) }); err != nil {
		if p.take(id) == nil {
			a := <-c.answer // meanwhile
			return a.tensors, a.err
		}
		free()
		return nil, err
	}
	select {
	case a := <-c.answer:
		return a.tensors, a.err
	case <-ctx.Done():
		a := p.leave(ctx, id, c)
		return a.tensors, a.err
	}
}

// leave gives a call up whose context is over, and has the process end it.
func (p *process) leave(ctx context.Context, id uint64, c *waiting) answer {
	p.mu.Lock()
	if p.calls[id] != c {
		p.mu.Unlock()
		return <-c.answer // it came just now
	}
	c.late = time.AfterFunc(p.patience(), func() { p.stop(errStubborn) })
	p.mu.Unlock()
	go func() { _ = p.send(context.WithoutCancel(ctx), func(w *writer) { w.cancel(id) }) }()
	late := fault.New(fault.Timeout, "the model did not answer in the request's time")
	late.Err = runtime.LingersError{Over: c.over}
	return answer{err: late}
}

// patience is how long the process may go on with what was cancelled. p.mu is held.
func (p *process) patience() time.Duration { return min(max(impatient, p.longest), stuck) }

// send writes a message. Half a message is no message: what cannot be written
// whole ends the process.
func (p *process) send(ctx context.Context, message func(*writer)) error {
	select {
	case p.sending <- struct{}{}:
		defer func() { <-p.sending }()
	case <-ctx.Done():
		return fault.New(fault.Timeout, "the request timed out waiting for the model's process")
	}
	_ = p.in.SetWriteDeadline(time.Now().Add(stuck))
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = p.in.SetWriteDeadline(time.Now().Add(impatient))
	})
	message(p.w)
	err := p.w.flush()
	if !stop() { // the deadline is not to be that of the next message
		<-hurried
	}
	if err != nil {
		if refused, ok := errors.AsType[*fault.Error](err); ok { // nothing was written
			p.w.err = nil
			return refused
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // else it has ended
			err = errDeaf
		}
		p.stop(err)
		return p.unavailable()
	}
	return nil
}

// unavailable is what who asks it in vain hears.
func (p *process) unavailable() *fault.Error {
	if p.link {
		return parted()
	}
	return unavailable()
}

// take removes a call, to answer it; nil when somebody else did.
func (p *process) take(id uint64) *waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.calls[id]
	delete(p.calls, id)
	return c
}

// asked is what a call wants, which is still to be answered.
func (p *process) asked(id uint64) ([]runtime.Spec, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.calls[id]
	if c == nil {
		return nil, false
	}
	return c.asked, true
}

// read gives answers out until the process ends or sends something else. A call
// stays until its answer was read, so that stop answers it when there is none.
func (p *process) read(r *reader) error {
	for {
		kind, id, err := r.head()
		if err != nil {
			return err
		}
		switch kind {
		case kindPing:
			continue // it is there
		case kindLeave:
			p.asks.Do(func() { close(p.leaving) })
			continue
		}
		asked, ok := p.asked(id)
		if !ok {
			return errors.New("it answered what was not asked")
		}
		var a answer
		if kind == kindAnswer {
			a.tensors, err = r.outputs(asked)
		} else {
			var said *fault.Error
			if said, err = r.fault(); err == nil {
				a.err = ofRun(said)
			}
		}
		if err != nil {
			return err
		}
		p.mu.Lock()
		c := p.calls[id]
		delete(p.calls, id)
		if c != nil && a.err == nil {
			p.longest = max(p.longest, time.Since(c.began))
		}
		p.mu.Unlock()
		if c != nil { // otherwise it was stopped
			c.end(a)
		}
	}
}

// ofRun is what a process says of a run: of what kind it is in words of ours, and
// the rest is data of who asked.
func ofRun(said *fault.Error) error {
	var what string
	switch said.Kind {
	case fault.Invalid:
		what = "the model refused the input"
	case fault.Exhausted:
		what = "no memory to run the model"
	case fault.TooLarge:
		what = "the model's answer is too large"
	case fault.Unsupported:
		what = "the model's answer has no form that can be sent"
	case fault.Timeout:
		what = "the model did not answer in the request's time"
	default:
		what = "the model failed"
	}
	data := said.Message
	if said.Data != "" {
		data += ": " + said.Data
	}
	err := fault.New(said.Kind, "%s", what).WithData("%s", strings.TrimPrefix(strings.TrimPrefix(data, what), ": "))
	err.Hint = said.Hint
	return err
}

// head keeps the first bytes written: what ended a process comes before its stacks.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	const keep = 8 << 10
	h.b = append(h.b, p[:min(len(p), keep-len(h.b))]...)
	return len(p), nil
}

func (h *head) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.ToValidUTF8(string(h.b), "?")
}
