package child

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// TestMain lends the test binary to children.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != Mode {
		m.Run() // the exit code is what it says
		return
	}
	var err error
	switch what := os.Args[2]; what {
	case "fake":
		err = Main(os.Stdin, os.Stdout, runtimetest.Fake{})
	case "fragile":
		err = Main(os.Stdin, os.Stdout, fragile{})
	case "hostile":
		err = hostile(os.Stdin, os.Stdout)
	case "liar":
		err = liar(os.Stdin, os.Stdout)
	case "forger":
		err = forger(os.Stdin, os.Stdout)
	case "scribbler":
		err = scribbler(os.Stdin, os.Stdout)
	case "deaf":
		err = deaf(os.Stdin, os.Stdout)
	default:
		err = Main(os.Stdin, os.Stdout, onnx.New(what))
	}
	if err != nil {
		panic(err)
	}
}

// launcher starts the test binary as a child, without isolation, and keeps what
// it started.
type launcher struct {
	what string

	mu      sync.Mutex
	started []*exec.Cmd
}

func (l *launcher) Launch(ctx context.Context, _ runtime.Options) (Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, Mode, l.what)
	cmd.Env = []string{}
	l.mu.Lock()
	l.started = append(l.started, cmd)
	l.mu.Unlock()
	return plain{cmd}, nil
}

// newest is the process that was started last.
func (l *launcher) newest() (cmd *exec.Cmd, count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.started[len(l.started)-1], len(l.started)
}

type plain struct{ *exec.Cmd }

func (p plain) Command() *exec.Cmd { return p.Cmd }

// TestConformance: through lanes, and over pipes alone.
func TestConformance(t *testing.T) {
	for _, piped := range []bool{false, true} {
		way := map[bool]string{false: "lanes", true: "pipes"}[piped]
		apart := func(what string) *Runtime {
			r := New(&launcher{what: what}, nil)
			r.piped = piped
			return r
		}
		t.Run("fake, "+way, func(t *testing.T) { runtimetest.Run(t, apart("fake"), runtimetest.FakeModels) })
		t.Run("onnx, "+way, func(t *testing.T) {
			runtimetest.Run(t, apart(library(t)), runtimetest.Models{
				Logistic: file(t, "logistic.onnx"), Echo: file(t, "echo.onnx"), Total: file(t, "total.onnx"), Optional: file(t, "optional.onnx"),
			})
		})
	}
}

// fragile answers x with x, but for what ends it: 13 crashes, 14 ends when it is
// cancelled, 15 never, 16 is refused. A model "crash" or "hang" does so when it is
// loaded.
type fragile struct{}

func (fragile) Load(_ context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	switch string(model) {
	case "crash":
		die()
	case "hang":
		pause()
	}
	return fragileSession{}, nil
}

// die is how native code ends a process.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
	select {}
}

type fragileSession struct{}

func (fragileSession) Metadata() runtime.Metadata {
	x := []runtime.Spec{{Name: "x", Datatype: runtime.Int64, Shape: []int64{-1}}}
	return runtime.Metadata{Platform: "fragile", Inputs: x, Outputs: x}
}

func (fragileSession) Infer(ctx context.Context, in []runtime.Tensor, _ []string) ([]runtime.Tensor, error) {
	switch in[0].Data.([]int64)[0] {
	case 13:
		_, _ = os.Stderr.WriteString("the row has 4711\n")
		die()
	case 14:
		<-ctx.Done()
		return nil, fault.New(fault.Timeout, "cancelled")
	case 15:
		select {}
	case 16:
		return nil, fault.New(fault.PermissionDenied, "the inside")
	}
	return in, nil
}

func (fragileSession) Close() error { return nil }

func x(v ...int64) []runtime.Tensor {
	return []runtime.Tensor{{Name: "x", Datatype: runtime.Int64, Shape: []int64{int64(len(v))}, Data: v}}
}

func load(t *testing.T, l Launcher, model string) runtime.Session {
	t.Helper()
	return loadBy(t, New(l, nil), model)
}

// loadPiped is load without lanes.
func loadPiped(t *testing.T, l Launcher, model string) runtime.Session {
	t.Helper()
	r := New(l, nil)
	r.piped = true
	return loadBy(t, r, model)
}

func loadBy(t *testing.T, r *Runtime, model string) runtime.Session {
	t.Helper()
	s, err := r.Load(t.Context(), []byte(model), runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func asks(t *testing.T, s runtime.Session, v int64) error {
	t.Helper()
	out, err := s.Infer(t.Context(), x(v), []string{"x"})
	if err == nil && (len(out) != 1 || !slices.Equal(out[0].Data.([]int64), []int64{v})) {
		t.Errorf("%d is answered by %+v", v, out)
	}
	return err
}

// recovers asks until there is a process again.
func recovers(t *testing.T, s runtime.Session) {
	t.Helper()
	for {
		err := asks(t, s, 1)
		if err == nil {
			return
		}
		if !fault.Is(err, fault.Unavailable) || t.Context().Err() != nil {
			t.Fatalf("while it is started again: %v", err)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestCrash: a crash answers what was in flight, once each, takes nothing else
// down, and the model is back.
func TestCrash(t *testing.T) {
	l := &launcher{what: "fragile"}
	s, other := load(t, l, ""), load(t, &launcher{what: "fragile"}, "")
	for range 2 {
		_, before := l.newest()
		ctx, cancel := context.WithCancel(t.Context())
		var inFlight sync.WaitGroup
		p := s.(*session).process
		inFlight.Go(func() {
			if _, err := p.infer(ctx, x(14), p.meta.Outputs, func() {}); !fault.Is(err, fault.Unavailable) || !errors.Is(err, runtime.ErrEnded) {
				t.Errorf("in flight: %v", err)
			}
		})
		for waits := 0; waits == 0; {
			p.mu.Lock()
			waits = len(p.calls)
			p.mu.Unlock()
		}
		if err := asks(t, s, 13); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
			t.Errorf("what crashed it: %v", err)
		}
		inFlight.Wait()
		cancel()
		if err := asks(t, other, 2); err != nil {
			t.Errorf("the other model: %v", err)
		}
		recovers(t, s)
		if _, after := l.newest(); after != before+1 {
			t.Errorf("%d processes were started", after-before)
		}
	}
}

// TestNativeCrash divides integers where ONNX Runtime does not look first.
func TestNativeCrash(t *testing.T) {
	l := &launcher{what: library(t)}
	s := load(t, l, string(file(t, "divide.onnx")))
	divide := func(x, y int64) ([]runtime.Tensor, error) {
		in := func(name string, v int64) runtime.Tensor {
			return runtime.Tensor{Name: name, Datatype: runtime.Int64, Shape: []int64{1}, Data: []int64{v}}
		}
		return s.Infer(t.Context(), []runtime.Tensor{in("x", x), in("y", y)}, []string{"z"})
	}
	if out, err := divide(7, 4); err != nil || out[0].Data.([]int64)[0] != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	// ONNX Runtime usually refuses to divide by zero, and sometimes crashes.
	if _, err := divide(7, 0); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unavailable) {
		t.Errorf("divided by zero: %v", err)
	}
	if _, err := divide(math.MinInt64, -1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("what the processor does not bear: %v", err)
	}
	for {
		out, err := divide(7, 4)
		if err == nil && out[0].Data.([]int64)[0] == 1 {
			break
		}
		if !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%+v, %v", out, err)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, n := l.newest(); n != 2 {
		t.Errorf("%d processes", n)
	}
}

func library(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.Abs("../../../../lib/libonnxruntime.so")
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// file is one of onnx's models.
func file(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../onnx/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestKill kills processes under load: each request is answered once, right or
// by fault.Unavailable.
func TestKill(t *testing.T) {
	l := &launcher{what: "fragile"}
	s := load(t, l, "")
	var asking sync.WaitGroup
	done := make(chan struct{})
	for g := range 4 {
		asking.Go(func() {
			for i := int64(0); ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if err := asks(t, s, 1000*int64(g+1)+i%500); err != nil && !fault.Is(err, fault.Unavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		recovers(t, s)
		cmd, _ := l.newest()
		gone := s.(*session).current(t).gone
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-gone
	}
	recovers(t, s)
	close(done)
	asking.Wait()
}

// current is the process that there is now.
func (s *session) current(t *testing.T) *process {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		gone := make(chan struct{})
		close(gone)
		return &process{gone: gone}
	}
	return s.process
}

// TestCancelled: who waits no longer is answered at once, also when the process
// does not care, and the model goes on.
func TestCancelled(t *testing.T) {
	s := load(t, &launcher{what: "fragile"}, "")
	for _, v := range []int64{14, 15, 14} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.Infer(ctx, x(v), []string{"x"})
		cancel()
		if !fault.Is(err, fault.Timeout) {
			t.Errorf("%d: %v", v, err)
		}
		if err := asks(t, s, 3); err != nil {
			t.Errorf("after it: %v", err)
		}
	}
	if err := asks(t, s, 16); !fault.Is(err, fault.Internal) || strings.Contains(err.Error(), "inside") {
		t.Errorf("a child speaks of permissions: %v", err)
	}
}

// TestSilent: a run that does not end when it is cancelled keeps its cores, and its
// process is ended.
func TestSilent(t *testing.T) {
	r := New(&launcher{what: "fragile"}, nil)
	s, err := r.Load(t.Context(), nil, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := s.(*session).process
	beside := &waiting{free: func() {}, over: make(chan struct{}), answer: make(chan answer, 1)}
	p.mu.Lock()
	p.calls[1<<32] = beside
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it runs by then
	defer cancel()
	if _, err := s.Infer(ctx, x(15), []string{"x"}); !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	if r.slots.TryAcquire(r.cores) {
		t.Error("its core is given to others while it runs")
	}
	within(t, p.gone, "it is not ended")
	if a := <-beside.answer; !fault.Is(a.err, fault.Unavailable) || errors.Is(a.err, runtime.ErrEnded) {
		t.Errorf("a run beside it is held to have ended the process: %v", a.err)
	}
	if err := r.slots.Acquire(t.Context(), r.cores); err != nil {
		t.Error(err)
	}
	r.slots.Release(r.cores)
	recovers(t, s)
}

// within waits for what takes much less than stuck.
func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(stuck / 2):
		t.Fatal(what)
	}
}

// unlaned reads what comes, and leaves the lanes that are offered.
func unlaned(in io.Reader) *reader {
	r := newReader(in)
	_, _, _ = r.offered()
	return r
}

// deaf takes a model and nothing after it.
func deaf(in io.Reader, out io.Writer) error {
	if _, _, err := unlaned(in).load(); err != nil {
		return err
	}
	w := newWriter(out)
	w.loaded(fragileSession{}.Metadata())
	if err := w.flush(); err != nil {
		return err
	}
	pause()
	return nil
}

// pause does not end.
func pause() {
	for {
		_ = syscall.Pause()
	}
}

// TestDeaf: who is asked for an answer of a process that takes nothing has a time,
// too.
func TestDeaf(t *testing.T) {
	s := load(t, &launcher{what: "deaf"}, "")
	much := x(make([]int64, lane.Size/8)...)                       // more than a lane has
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it is being written by then
	defer cancel()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if _, err := s.Infer(ctx, much, []string{"x"}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
	}()
	within(t, answered, "it waits for who takes nothing")
}

// TestPrinted: of what a process that has seen rows says at its end, the log has
// fixed words.
func TestPrinted(t *testing.T) {
	var log bytes.Buffer
	r := New(&launcher{what: "fragile"}, slog.New(slog.NewTextHandler(&log, nil)))
	s, err := r.Load(t.Context(), nil, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := asks(t, s, 13); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	recovers(t, s)
	if err := asks(t, s, 16); strings.Contains(fault.Told(err), "inside") != true || strings.Contains(err.Error(), "inside") {
		t.Errorf("who asked hears %q, and a log %q", fault.Told(err), err)
	}
	r.Close()
	if said := log.String(); strings.Contains(said, "4711") || !strings.Contains(said, "SIGSEGV") {
		t.Error(said)
	}
}

// TestAgain: a process that is started again reads the model again, and the model
// is away meanwhile.
func TestAgain(t *testing.T) {
	r, reads, failing := New(&launcher{what: "fragile"}, nil), 0, true
	s, err := r.Load(t.Context(), nil, runtime.Options{Again: func(context.Context) ([]byte, error) {
		reads++
		if failing = !failing; !failing {
			return nil, errors.New("not at the moment")
		}
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.Unavailable(s); err != nil {
		t.Error(err)
	}
	if err := asks(t, s, 13); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	if err := runtime.Unavailable(s); !fault.Is(err, fault.Unavailable) {
		t.Errorf("it is there: %v", err)
	}
	recovers(t, s)
	if err := runtime.Unavailable(s); err != nil {
		t.Error(err)
	}
	r.Close()
	if reads != 2 {
		t.Errorf("%d reads", reads)
	}
	if err := runtime.Unavailable(s); err == nil {
		t.Error("it is there after the end")
	}
}

// TestNotKept: a model's file is not kept in the server, where it can be read again.
func TestNotKept(t *testing.T) {
	r := New(&launcher{what: "fragile"}, nil)
	defer r.Close()
	collected := make(chan struct{})
	load := func() runtime.Session {
		model := new([32 << 20]byte)
		goruntime.AddCleanup(model, func(c chan struct{}) { close(c) }, collected)
		s, err := r.Load(t.Context(), model[:], runtime.Options{Again: func(context.Context) ([]byte, error) { return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := load()
	for range 10 {
		goruntime.GC()
	}
	within(t, collected, "the file is kept")
	if err := asks(t, s, 1); err != nil {
		t.Error(err)
	}
}

// TestCloseAll: the end of the runtime is that of its processes, and nothing is
// loaded after it.
func TestCloseAll(t *testing.T) {
	l := &launcher{what: "fragile"}
	r := New(l, nil)
	for range 2 {
		if _, err := r.Load(t.Context(), nil, runtime.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()
	for _, cmd := range l.started {
		if cmd.ProcessState == nil {
			t.Error("a process is left")
		}
	}
	if _, err := r.Load(t.Context(), nil, runtime.Options{}); !fault.Is(err, fault.Timeout) || len(l.started) != 2 {
		t.Errorf("loaded after the end: %v", err)
	}
}

// TestLoadFails: a model that ends its process is at fault itself.
func TestLoadFails(t *testing.T) {
	l := &launcher{what: "fragile"}
	_, err := New(l, nil).Load(t.Context(), []byte("crash"), runtime.Options{})
	if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if cmd, n := l.newest(); n != 1 || cmd.ProcessState == nil {
		t.Errorf("%d processes, %v", n, cmd.ProcessState)
	}
	_, err = New(l, nil).Load(t.Context(), []byte("hang"), runtime.Options{Time: 50 * time.Millisecond})
	if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "50ms") {
		t.Errorf("a load without an end: %v", err)
	}
	if cmd, n := l.newest(); n != 2 || cmd.ProcessState == nil {
		t.Errorf("%d processes, %v", n, cmd.ProcessState)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(l, nil).Load(ctx, nil, runtime.Options{}); !fault.Is(err, fault.Timeout) {
		t.Errorf("a load that nobody waits for: %v", err)
	}
	_, err = New(failing{}, nil).Load(t.Context(), nil, runtime.Options{})
	if err == nil {
		t.Error("loaded without a process")
	}
}

type failing struct{}

func (failing) Launch(context.Context, runtime.Options) (Process, error) {
	return nil, errors.New("no process")
}

// TestClose ends the process.
func TestClose(t *testing.T) {
	l := &launcher{what: "fragile"}
	s, err := New(l, nil).Load(t.Context(), nil, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if cmd, n := l.newest(); n != 1 || cmd.ProcessState == nil {
		t.Errorf("%d processes, %v", n, cmd.ProcessState)
	}
}

// TestBadTensors: what cannot be sent is refused, and the process goes on.
func TestBadTensors(t *testing.T) {
	l := &launcher{what: "fragile"}
	s := load(t, l, "")
	for name, in := range map[string]runtime.Tensor{
		"fewer elements":  {Name: "x", Datatype: runtime.Int64, Shape: []int64{2}, Data: []int64{1}},
		"other elements":  {Name: "x", Datatype: runtime.Int64, Shape: []int64{1}, Data: []float64{1}},
		"no elements":     {Name: "x", Datatype: runtime.Int64, Shape: []int64{1}},
		"no datatype":     {Name: "x", Shape: []int64{1}, Data: []int64{1}},
		"many dimensions": {Name: "x", Datatype: runtime.Int64, Shape: slices.Repeat([]int64{1}, 33), Data: []int64{1}},
	} {
		if _, err := s.Infer(t.Context(), []runtime.Tensor{in}, []string{"x"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err := asks(t, s, 1); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
	if _, n := l.newest(); n != 1 {
		t.Errorf("%d processes were started", n)
	}
}

// hostile is a child that a model has taken over: it answers what the model's
// file says, whatever it is asked.
func hostile(in io.Reader, out io.Writer) error {
	r, w := unlaned(in), newWriter(out)
	model, _, err := r.load()
	if err != nil {
		return err
	}
	w.loaded(fragileSession{}.Metadata())
	if err := w.flush(); err != nil {
		return err
	}
	if _, err := r.r.ReadByte(); err == nil {
		_, _ = out.Write(model)
	}
	_, _ = io.Copy(io.Discard, in)
	return nil
}

// say is what a writer writes.
func say(what func(*writer)) string {
	var b bytes.Buffer
	w := newWriter(&b)
	what(w)
	_ = w.flush()
	return b.String()
}

// liar says of its model what the model's file says.
func liar(in io.Reader, out io.Writer) error {
	model, _, err := unlaned(in).load()
	if err != nil {
		return err
	}
	if _, err := out.Write(model); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// TestLiar: what a process says of its model is bounded and makes sense, or there
// is no model.
func TestLiar(t *testing.T) {
	of := func(outputs ...runtime.Spec) string {
		return say(func(w *writer) {
			w.loaded(runtime.Metadata{Inputs: []runtime.Spec{{Name: "in", Datatype: runtime.FP32}}, Outputs: outputs})
		})
	}
	x := runtime.Spec{Name: "x", Datatype: runtime.FP32}
	for name, said := range map[string]string{
		"garbage":          "garbage",
		"a huge platform":  say(func(w *writer) { w.kind(kindLoaded); w.number(1 << 40) }),
		"many inputs":      say(func(w *writer) { w.kind(kindLoaded); w.text(""); w.number(runtime.MaxPorts + 1) }),
		"no outputs":       of(),
		"no name":          of(runtime.Spec{Datatype: runtime.FP32}),
		"no text":          of(runtime.Spec{Name: "\xff", Datatype: runtime.FP32}),
		"a long name":      of(runtime.Spec{Name: strings.Repeat("x", runtime.MaxName+1), Datatype: runtime.FP32}),
		"no datatype":      of(runtime.Spec{Name: "x"}),
		"twice":            of(x, x),
		"many dimensions":  of(runtime.Spec{Name: "x", Datatype: runtime.FP32, Shape: make([]int64, runtime.MaxRank+1)}),
		"a fault of a run": say(func(w *writer) { w.fault(1, errors.New("no")) }),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stuck/2)
			defer cancel()
			if _, err := New(&launcher{what: "liar"}, nil).Load(ctx, []byte(said), runtime.Options{}); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "garbage") {
				t.Errorf("got %v", err)
			}
		})
	}
	s := load(t, &launcher{what: "liar"}, of(x))
	if m := s.Metadata(); len(m.Inputs) != 1 || len(m.Outputs) != 1 || m.Outputs[0].Name != "x" || m.Outputs[0].Shape != nil {
		t.Errorf("%+v", m)
	}
}

func TestHostile(t *testing.T) {
	for name, said := range map[string]string{
		"garbage":             "garbage",
		"an answer to nobody": say(func(w *writer) { w.answer(7, x(1)) }),
		"too many outputs":    say(func(w *writer) { w.answer(1, append(x(1), x(2)...)) }),
		"another output": say(func(w *writer) {
			w.answer(1, []runtime.Tensor{{Name: "y", Datatype: runtime.Int64, Shape: []int64{0}, Data: []int64{}}})
		}),
		"a huge count": say(func(w *writer) { w.kind(kindAnswer); w.number(1); w.number(1 << 60) }),
		"a huge name":  say(func(w *writer) { w.kind(kindAnswer); w.number(1); w.number(1); w.number(1 << 40) }),
		"a huge shape": say(func(w *writer) {
			w.kind(kindAnswer)
			for _, n := range []uint64{1, 1, 0} {
				w.number(n)
			}
			w.kind(8)
			for _, n := range []uint64{2, 1 << 40, 1 << 40} {
				w.number(n)
			}
		}),
		"another datatype": say(func(w *writer) {
			w.answer(1, []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}})
		}),
		"more than an answer may have": say(func(w *writer) {
			w.kind(kindAnswer)
			w.number(1)
			w.number(1)
			w.text("x")
			w.datatype(runtime.Int64)
			w.number(1)
			w.number(runtime.MaxAnswer/8 + 1)
		}),
		"metadata again": say(func(w *writer) { w.loaded(runtime.Metadata{}) }),
	} {
		t.Run(name, func(t *testing.T) {
			s := loadPiped(t, &launcher{what: "hostile"}, said)
			p := s.(*session).process
			ctx, cancel := context.WithTimeout(t.Context(), stuck/2)
			defer cancel()
			if _, err := s.Infer(ctx, x(1), []string{"x"}); !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "garbage") {
				t.Errorf("got %v", err)
			}
			<-p.gone
		})
	}
}

// FuzzReader: whatever a process sends, reading it ends with an error or with
// tensors that are what they say.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := newWriter(&b)
	w.answer(1, append(x(1, 2), runtime.Tensor{Name: "s", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"a"}},
		runtime.Tensor{Name: "b", Datatype: runtime.Bool, Shape: []int64{2, 1}, Data: []bool{true, false}}))
	w.fault(2, fault.New(fault.Invalid, "no"))
	_ = w.flush()
	f.Add(b.Bytes())
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newReader(bytes.NewReader(data))
		for {
			kind, _, err := r.head()
			if err != nil {
				break
			}
			if kind == kindFault {
				if _, err := r.fault(); err != nil {
					break
				}
				continue
			}
			tensors, err := r.tensors(1 << 20)
			if err != nil {
				break
			}
			if err := sound(tensors); err != nil || size(tensors) > 1<<20 {
				t.Errorf("%d bytes, %v", size(tensors), err)
			}
		}
		_, _ = newReader(bytes.NewReader(data)).loaded()
		_, _, _ = newReader(bytes.NewReader(data)).load()
	})
}

func BenchmarkInfer(b *testing.B) {
	s, err := New(&launcher{what: "fake"}, nil).Load(b.Context(), runtimetest.FakeModel, runtime.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	in := []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}}}
	for b.Loop() {
		if _, err := s.Infer(b.Context(), in, []string{"probabilities"}); err != nil {
			b.Fatal(err)
		}
	}
}
