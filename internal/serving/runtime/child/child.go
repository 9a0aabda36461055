// Package child runs each model in a process of its own, so that a model whose
// native code crashes, or is taken over, takes only itself down.
//
//   - child.go: Runtime and its sessions; process.go is one process, and death.go says
//     why it died.
//   - wire.go: what goes over the pipes, bounded where it is read.
//   - lanes.go: runs go through memory that both share (package lane) where they fit: the
//     pipes cost ten times as much. Over the pipes goes the rest: the model, errors, what is
//     cancelled, and what is large.
//   - main.go: the child.
//
// # Guarantees
//
// A process that ends is started again, after pauses that grow while it keeps
// ending, unless Options.Died says that it should not be; it has as long to load its model
// as the first one had. A process that does not load in its time, or does not end a run
// whose time is up, is killed. Requests in flight
// are answered once, by fault.Unavailable; so are those that come while there is no
// process. A run holds its cores until the process has ended it, or was ended.
//
// Nothing that a process sends is trusted: room is made for what was asked for, and
// within bounds. What is not the protocol, or not the answer to what was asked, ends
// it. A process has seen rows: of what it prints only fixed words reach the log, and
// what it says of a run is data of who asked.
package child

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"reflect"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Mode is the hidden mode of the binary that calls Main.
const Mode = "model"

// Process is a child to be started, without keys, files or network. The stdin,
// stdout and stderr of its Command are set here before Start. One that also has
// OutOfMemory() bool says so after Wait.
type Process interface {
	Command() *exec.Cmd
	Start() error
	Wait() error
}

// Launcher makes a process that calls Main. It is not started, and dies with
// ctx.
type Launcher interface {
	Launch(ctx context.Context, o runtime.Options) (Process, error)
}

// Runtime runs models in processes. Make it with New, end it with Close.
type Runtime struct {
	launcher Launcher
	log      *slog.Logger
	cores    int64
	slots    *semaphore.Weighted // cores that no run of any process has
	sessions atomic.Uint64

	life      context.Context
	end       context.CancelFunc
	mu        sync.Mutex // over adding to processes once life has ended
	processes sync.WaitGroup

	piped bool // processes are asked over pipes alone; of tests
}

var _ runtime.Runtime = (*Runtime)(nil)

// New makes a runtime; log may be nil.
func New(l Launcher, log *slog.Logger) *Runtime {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	n := int64(goruntime.GOMAXPROCS(0))
	life, end := context.WithCancel(context.Background())
	return &Runtime{launcher: l, log: log, cores: n, slots: semaphore.NewWeighted(n), life: life, end: end}
}

// Close ends all processes and waits until they are gone. Nothing is loaded after
// it, and nothing started again.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.end()
	r.mu.Unlock()
	r.processes.Wait()
}

// The pauses before a process is started again. One that lived for steady does
// not count its predecessors.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
	steady     = time.Minute
)

// Load starts a process and has it load the model. The file is kept only where
// there is no way to read it again.
func (r *Runtime) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	if o.Memory == 0 {
		o.Memory = Memory(len(model))
	}
	if o.Time == 0 {
		o.Time = runtime.DefaultTime
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(r.life, cancel)
	end := func() {
		detach()
		cancel()
	}
	s := &session{runtime: r, number: r.sessions.Add(1), again: o.Again, options: o, end: end}
	if s.again == nil {
		s.again = func(context.Context) ([]byte, error) { return model, nil }
	}
	stop := context.AfterFunc(ctx, end) // who gives up while it loads
	p, err := r.start(life, model, o)
	if !stop() && err == nil {
		p.stop(errEnded)
		<-p.gone
		err = fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	if err != nil {
		end()
		return nil, err
	}
	s.meta, s.process = p.meta, p
	s.watcher.Go(func() { s.watch(life, p) })
	return s, nil
}

// Memory is what the process of a model of so many bytes may use when nothing else
// is said.
func Memory(size int) resource.Bytes { return 2*resource.GiB + 8*resource.Bytes(size) }

type session struct {
	runtime *Runtime
	number  uint64
	again   func(context.Context) ([]byte, error)
	options runtime.Options
	meta    runtime.Metadata
	end     func()
	watcher sync.WaitGroup
	runs    sync.WaitGroup

	mu      sync.Mutex
	process *process // nil while there is none
	reason  string   // why the last one died; empty: none did
	aside   bool     // no other one is started
}

var _ runtime.Restarting = (*session)(nil)

func (s *session) Metadata() runtime.Metadata { return s.meta }

func (s *session) Close() error {
	s.runs.Wait()
	s.end()
	s.watcher.Wait()
	return nil
}

// Unavailable implements runtime.Restarting.
func (s *session) Unavailable() error {
	if p := s.now(); p != nil && !p.ending() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.aside:
		return fault.New(fault.Unavailable, "the model's process exited and is not restarted: %s", s.reason)
	case s.reason != "":
		return fault.New(fault.Unavailable, "the model's process exited: %s; it is restarted", s.reason).WithRetry(firstPause)
	}
	return unavailable()
}

// now is the process that there is; nil when there is none.
func (s *session) now() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *session) set(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
}

// watch starts the model's process again whenever it dies, until the session is closed
// or Died says that it should not.
func (s *session) watch(life context.Context, p *process) {
	pause := firstPause
	for p != nil {
		began := time.Now()
		<-p.gone
		s.set(nil)
		if life.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		s.runtime.log.ErrorContext(life, "a model's process exited", slog.String("reason", p.reason()), slog.Duration("again_in", pause))
		if p = s.revive(life, p.death(s.options), &pause); p != nil {
			s.set(p)
		}
	}
}

// revive starts another process after one died, with growing pauses; nil: there will be
// none. A process that dies while it loads the model is another death; a failure to
// start one is not.
func (s *session) revive(life context.Context, d runtime.Death, pause *time.Duration) *process {
	for died := true; ; {
		if died && !s.died(d) {
			s.runtime.log.ErrorContext(life, "a model's process is not restarted", slog.String("reason", d.Reason))
			return nil
		}
		timer := time.NewTimer(*pause)
		select {
		case <-life.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		*pause = min(2**pause, lastPause)
		next, err := s.restart(life)
		if err == nil {
			return next
		}
		if life.Err() != nil {
			return nil
		}
		s.runtime.log.ErrorContext(life, "a model's process did not start again", slog.String("error", err.Error()), slog.Duration("again_in", *pause))
		var of runtime.DeathError
		if of, died = errors.AsType[runtime.DeathError](err); died {
			d = of.Death
		}
	}
}

// died keeps why the last process died, and reports whether to start another one.
func (s *session) died(d runtime.Death) (again bool) {
	d.Child = s.number
	again = s.options.Died == nil || s.options.Died(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason, s.aside = d.Reason, !again
	return again
}

// restart starts another process of the same model.
func (s *session) restart(life context.Context) (*process, error) {
	ctx, cancel := context.WithTimeout(life, s.options.Time)
	defer cancel()
	model, err := s.again(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "read the model's file again")
	}
	p, err := s.runtime.start(life, model, s.options)
	if err == nil && !reflect.DeepEqual(p.meta, s.meta) {
		p.stop(errEnded)
		<-p.gone
		err = errors.New("its model differs from the previous one")
	}
	return p, err
}

// unavailable is what requests hear while there is no process.
func unavailable() *fault.Error {
	return fault.New(fault.Unavailable, "the model's process exited and is restarted").WithHint("Try again in a few seconds.").WithRetry(firstPause)
}

// died is what requests hear that the process was answering when it ended.
func died() *fault.Error {
	err := unavailable()
	err.Err = runtime.ErrEnded
	return err
}

func (s *session) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request timed out before the model ran")
	}
	asked := make([]runtime.Spec, len(outputs))
	for i, name := range outputs {
		j := slices.IndexFunc(s.meta.Outputs, func(o runtime.Spec) bool { return o.Name == name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "the model has no output %.100q", name)
		}
		asked[i] = s.meta.Outputs[j]
	}
	s.runs.Add(1)
	defer s.runs.Done()
	cores := min(int64(max(1, s.options.Threads)), s.runtime.cores)
	if s.runtime.slots.Acquire(ctx, cores) != nil {
		return nil, fault.New(fault.Timeout, "the request timed out waiting for a free core")
	}
	free := func() { s.runtime.slots.Release(cores) }
	p := s.now()
	if p == nil {
		free()
		return nil, unavailable()
	}
	return p.infer(ctx, inputs, asked, free)
}
