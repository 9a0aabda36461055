package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Program is what a workload of Fake does. It returns how it ended; after
// Process.Kill is closed it should return soon.
type Program func(*Process) Exit

// Process is a running workload as its Program sees it.
type Process struct {
	Spec engine.Spec
	Term <-chan struct{} // closed at SIGTERM, and at SIGKILL
	Kill <-chan struct{} // closed at SIGKILL
	Log  io.Writer
}

// Exit is how a Program ended; the zero value is exit code 0.
type Exit struct {
	Code        int
	Signal      syscall.Signal
	OutOfMemory bool
	NotStarted  string // a message: the program did not run
}

// Fake is a driver in memory. Its workloads run until the test ends them with
// Finish, are stopped or time out, unless Behave says what they do. Safe for
// concurrent use. All Fakes that Restarted gave share the workloads.
type Fake struct{ *machine }

type machine struct {
	mu       sync.Mutex
	behave   Program
	fail     error
	started  chan engine.Handle
	works    map[engine.Handle]*fakeWork
	launched map[string]int
}

type fakeWork struct {
	spec    engine.Spec
	status  engine.Status
	log     bytes.Buffer
	denials []engine.Denial
	changed chan struct{} // closed and replaced at each change
	done    chan struct{}
	term    chan struct{}
	kill    chan struct{}
	finish  chan Exit
	why     engine.Reason
}

// NewFake has no workloads.
func NewFake() *Fake {
	return &Fake{&machine{works: map[engine.Handle]*fakeWork{}, launched: map[string]int{}, started: make(chan engine.Handle, 1024)}}
}

// Restarted is the driver after a restart of Falaj.
func (f *Fake) Restarted() *Fake { return &Fake{f.machine} }

// Behave says what workloads started from now on do.
func (m *machine) Behave(p Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behave = p
}

// FailNext makes the next Start return err and start nothing.
func (m *machine) FailNext(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// Started receives the handle of each workload that was really started, once.
func (m *machine) Started() <-chan engine.Handle { return m.started }

// Launched is how many processes were made for an ID; more than one is a bug of
// the driver's user or of Fake.
func (m *machine) Launched(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launched[id]
}

// Spec is what a workload was started with.
func (m *machine) Spec(h engine.Handle) (engine.Spec, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.works[h]
	if w == nil {
		return engine.Spec{}, false
	}
	return w.spec, true
}

// Finish ends a workload that has no Program.
func (m *machine) Finish(h engine.Handle, e Exit) {
	if w, err := m.find(h); err == nil {
		select {
		case w.finish <- e:
		case <-w.done:
		}
	}
}

// Print adds to a workload's log.
func (m *machine) Print(h engine.Handle, text string) {
	if w, err := m.find(h); err == nil {
		_, _ = (&fakeLog{m, w}).Write([]byte(text))
	}
}

// Deny adds a refused attempt.
func (m *machine) Deny(h engine.Handle, d engine.Denial) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.works[h]; w != nil {
		w.denials = append(w.denials, d)
	}
}

// Lose makes a workload disappear.
func (m *machine) Lose(h engine.Handle) {
	w, err := m.find(h)
	if err != nil {
		return
	}
	m.mu.Lock()
	if w.status.State == engine.Running {
		w.status.State, w.status.ExitCode, w.status.Message = engine.Lost, -1, "the test lost it"
		closeOnce(w.term)
		closeOnce(w.kill)
		close(w.done)
	}
	m.mu.Unlock()
}

var fakeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// Start implements engine.Driver.
func (m *machine) Start(_ context.Context, spec engine.Spec) (engine.Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail; err != nil {
		m.fail = nil
		return "", err
	}
	if err := checkSpec(spec); err != nil {
		return "", err
	}
	h := engine.Handle("fake:" + spec.ID)
	if m.works[h] != nil {
		return h, nil
	}
	w := &fakeWork{
		spec: spec, changed: make(chan struct{}), done: make(chan struct{}),
		term: make(chan struct{}), kill: make(chan struct{}), finish: make(chan Exit),
		status: engine.Status{State: engine.Running, Started: time.Now(), Isolated: "none"},
	}
	m.works[h] = w
	m.launched[spec.ID]++
	run := m.behave
	if run == nil {
		run = func(p *Process) Exit {
			select {
			case e := <-w.finish:
				return e
			case <-p.Term:
				return Exit{Signal: syscall.SIGTERM}
			}
		}
	}
	go m.run(w, run)
	select {
	case m.started <- h:
	default: // they are not read
	}
	return h, nil
}

func checkSpec(spec engine.Spec) error {
	bad := ""
	switch {
	case !fakeID.MatchString(spec.ID):
		bad = "id"
	case len(spec.Command) == 0 || spec.Command[0] == "":
		bad = "command"
	case spec.Timeout < 0 || spec.Grace < 0:
		bad = "time"
	case spec.Isolation != "" && !slices.Contains([]string{"none", "process", "sandbox", "container", "node"}, spec.Isolation):
		bad = "isolation"
	case spec.Resources.Validate() != nil:
		bad = "resources"
	}
	for _, m := range spec.Mounts {
		if _, err := filepath.EvalSymlinks(m.Path); err != nil || !filepath.IsAbs(m.Path) {
			bad = "mount"
		}
	}
	for k := range spec.Env {
		if k == "" || strings.Contains(k, "=") {
			bad = "variable"
		}
	}
	for _, a := range spec.Network.Allow {
		if !strings.Contains(a, ":") {
			bad = "allow-list"
		}
	}
	if bad != "" {
		return fault.New(fault.Invalid, "the %s of workload %q is not valid", bad, spec.ID)
	}
	return nil
}

func (m *machine) run(w *fakeWork, program Program) {
	if w.spec.Timeout > 0 {
		t := time.AfterFunc(w.spec.Timeout, func() { m.terminate(w, engine.TimedOut, w.spec.Grace) })
		defer t.Stop()
	}
	e := program(&Process{Spec: w.spec, Term: w.term, Kill: w.kill, Log: &fakeLog{m, w}})
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.status.State != engine.Running {
		return // lost
	}
	st := &w.status
	st.State, st.Ended, st.ExitCode = engine.Ended, time.Now(), e.Code
	if e.Signal != 0 {
		st.Signal, st.ExitCode = unix.SignalName(e.Signal), -1
	}
	switch {
	case w.why != "":
		st.Reason = w.why
		if w.why == engine.TimedOut {
			st.Message = "did not finish in " + w.spec.Timeout.String()
		}
	case e.NotStarted != "":
		st.Reason, st.Message, st.ExitCode = engine.NotStarted, e.NotStarted, -1
	case e.OutOfMemory:
		st.Reason = engine.OutOfMemory
	case e.Signal != 0:
		st.Reason = engine.Signalled
	default:
		st.Reason = engine.Exited
	}
	close(w.done)
}

// terminate asks, and kills after the grace.
func (m *machine) terminate(w *fakeWork, why engine.Reason, grace time.Duration) {
	m.mu.Lock()
	if w.why == "" {
		w.why = why
	}
	closeOnce(w.term)
	if grace <= 0 {
		closeOnce(w.kill)
	}
	m.mu.Unlock()
	if grace > 0 {
		time.AfterFunc(grace, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			closeOnce(w.kill)
		})
	}
}

// closeOnce closes under the machine's lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

func (m *machine) find(h engine.Handle) (*fakeWork, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.works[h]; w != nil {
		return w, nil
	}
	return nil, fault.New(fault.NotFound, "the fake engine has no workload %q", string(h))
}

// Status implements engine.Driver.
func (m *machine) Status(_ context.Context, h engine.Handle) (engine.Status, error) {
	w, err := m.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return w.status, nil
}

// Wait implements engine.Driver.
func (m *machine) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	w, err := m.find(h)
	if err != nil {
		return engine.Status{}, err
	}
	select {
	case <-w.done:
		return m.Status(ctx, h)
	case <-ctx.Done():
		return engine.Status{}, ctx.Err()
	}
}

// Stop implements engine.Driver.
func (m *machine) Stop(ctx context.Context, h engine.Handle, grace time.Duration) error {
	w, err := m.find(h)
	if err != nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	default:
	}
	m.terminate(w, engine.Stopped, grace)
	_, err = m.Wait(ctx, h)
	return err
}

// Logs implements engine.Driver.
func (m *machine) Logs(ctx context.Context, h engine.Handle, offset int64, follow bool) (io.ReadCloser, error) {
	w, err := m.find(h)
	if err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fault.New(fault.Invalid, "log offset %d is negative", offset)
	}
	return &fakeReader{m: m, w: w, ctx: ctx, offset: offset, follow: follow, closed: make(chan struct{})}, nil
}

// List implements engine.Driver.
func (m *machine) List(context.Context) ([]engine.Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.works)), nil
}

// Forget implements engine.Driver.
func (m *machine) Forget(_ context.Context, h engine.Handle) error {
	w, err := m.find(h)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.status.State == engine.Running {
		return fault.New(fault.Conflict, "workload %s is still running", h)
	}
	delete(m.works, h)
	return nil
}

// Denials implements engine.Denials.
func (m *machine) Denials(_ context.Context, h engine.Handle, from int) ([]engine.Denial, error) {
	w, err := m.find(h)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(w.denials[min(max(from, 0), len(w.denials)):]), nil
}

// fakeLog writes to a workload's log and wakes its readers.
type fakeLog struct {
	m *machine
	w *fakeWork
}

func (l *fakeLog) Write(b []byte) (int, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.w.log.Write(b)
	close(l.w.changed)
	l.w.changed = make(chan struct{})
	return len(b), nil
}

type fakeReader struct {
	m      *machine
	w      *fakeWork
	ctx    context.Context //nolint:containedctx // The life of the stream, given by its opener.
	offset int64
	follow bool
	once   sync.Once
	closed chan struct{}
}

func (r *fakeReader) Read(b []byte) (int, error) {
	for {
		r.m.mu.Lock()
		all, changed := r.w.log.Bytes(), r.w.changed
		over := r.w.status.State != engine.Running
		if r.offset < int64(len(all)) {
			n := copy(b, all[r.offset:])
			r.offset += int64(n)
			r.m.mu.Unlock()
			return n, nil
		}
		r.m.mu.Unlock()
		if over || !r.follow {
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-r.w.done:
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case <-r.closed:
			return 0, errors.Join(fs.ErrClosed)
		}
	}
}

func (r *fakeReader) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

var (
	_ engine.Driver  = (*Fake)(nil)
	_ engine.Denials = (*Fake)(nil)
)
