package child

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// forger is a child that a model has taken over, and that does to its lanes what the
// model's name says.
func forger(in io.Reader, out io.Writer) error {
	r, w := newReader(in), newWriter(out)
	places, err := r.lanes()
	if err != nil {
		return err
	}
	what, _, err := r.load()
	if err != nil {
		return err
	}
	meta := fragileSession{}.Metadata()
	w.loaded(meta)
	if err := w.flush(); err != nil {
		return err
	}
	for _, p := range places {
		go func() {
			for {
				q, ok := p.Next(meta)
				if !ok {
					return
				}
				if q.Inputs[0].Data.([]int64)[0] == forged {
					forgeries[string(what)](p, q, w)
					continue
				}
				p.Answer(q, q.Inputs)
			}
		}()
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// answeredOf is the number that the server waits for.
func answeredOf(p *lane.Place) *uint32 {
	return (*uint32)(unsafe.Pointer(&p.Memory()[64]))
}

// turnOf is the turn that was asked.
func turnOf(p *lane.Place) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.Memory()[0])))
}

// forged is what a forger does not answer as it should.
const forged = 4711

// told says that what was asked is answered, whatever there is.
func told(p *lane.Place) {
	atomic.StoreUint32(answeredOf(p), turnOf(p))
	_, _, _ = syscall.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(answeredOf(p))), 1, 1)
}

func scribble(b []byte) {
	for len(b) >= 8 {
		binary.NativeEndian.PutUint64(b, rand.Uint64())
		b = b[8:]
	}
}

// forgeries are what it does, by the model's name.
var forgeries = map[string]func(*lane.Place, lane.Question, *writer){
	"garbage": func(p *lane.Place, _ lane.Question, _ *writer) {
		scribble(p.Memory()[128 : 1<<20])
		told(p)
	},
	"garbage everywhere": func(p *lane.Place, _ lane.Question, _ *writer) {
		scribble(p.Memory())
		_, _, _ = syscall.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(answeredOf(p))), 1, 1)
	},
	"half an answer": func(p *lane.Place, _ lane.Question, _ *writer) { told(p) },
	"counts on": func(p *lane.Place, _ lane.Question, _ *writer) {
		for {
			atomic.AddUint32(answeredOf(p), 1)
			_, _, _ = syscall.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(answeredOf(p))), 1, 1)
		}
	},
	"wakes for nothing": func(p *lane.Place, _ lane.Question, _ *writer) {
		for {
			_, _, _ = syscall.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(answeredOf(p))), 1, 1)
		}
	},
	"dies": func(p *lane.Place, _ lane.Question, _ *writer) {
		scribble(p.Memory()[128:4096])
		die()
	},
	"stops":                       func(*lane.Place, lane.Question, *writer) { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) },
	"sleeps":                      func(*lane.Place, lane.Question, *writer) { pause() },
	"elsewhere, which is nowhere": func(p *lane.Place, _ lane.Question, _ *writer) { p.Elsewhere() },
	"an answer to the next": func(p *lane.Place, q lane.Question, _ *writer) {
		q.ID++
		p.Answer(q, q.Inputs)
	},
	"another output": func(p *lane.Place, q lane.Question, _ *writer) {
		p.Answer(q, []runtime.Tensor{{Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}})
	},
	"answers twice": func(p *lane.Place, q lane.Question, w *writer) {
		p.Answer(q, x(5))
		w.answer(q.ID, x(6))
		_ = w.flush()
	},
	"answers by half": func(_ *lane.Place, q lane.Question, w *writer) {
		w.answer(q.ID, x(5))
		_ = w.flush()
	},
	"takes the memory away": func(p *lane.Place, _ lane.Question, _ *writer) { _ = unix.Madvise(p.Memory(), unix.MADV_REMOVE) },
}

// TestForger: whatever a process does to its lanes, who asked is answered in time, once,
// and not by what is wrong; it is ended, and another one of the model goes on.
func TestForger(t *testing.T) {
	t.Parallel()
	for what := range forgeries {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := load(t, &launcher{what: "forger"}, what)
			if err := asks(t, s, 1); err != nil {
				t.Fatal(err)
			}
			p := s.(*session).process
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // some never answer
			defer cancel()
			out, err := s.Infer(ctx, x(forged), []string{"x"})
			switch {
			case err == nil:
				if !strings.HasPrefix(what, "answers") || !slices.Contains([]int64{5, 6}, out[0].Data.([]int64)[0]) {
					t.Errorf("answered %+v", out)
				}
			case !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Timeout):
				t.Errorf("got %v", err)
			}
			if over := runtime.Over(err); over != nil {
				within(t, over, "its core is never free again")
			}
			within(t, p.gone, "it is not ended")
			recovers(t, s)
		})
	}
}

// TestScribbler: a process that writes into an answer while it is read makes nothing of it
// but wrong numbers, or its end.
func TestScribbler(t *testing.T) {
	s := load(t, &launcher{what: "scribbler"}, "")
	for runs, ends := 0, 0; runs < 2000 && ends < 6; runs++ { // each end waits twice as long for the next start
		out, err := s.Infer(t.Context(), x(1, 2, 3), []string{"x"})
		if err != nil {
			if !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
			ends++
			for runtime.Unavailable(s) != nil && t.Context().Err() == nil {
				select {
				case <-t.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
			continue
		}
		if n, err := runtime.Elements(out[0].Shape); err != nil || n != len(out[0].Data.([]int64)) {
			t.Fatalf("%+v", out)
		}
	}
}

// scribbler answers, and goes on writing into what it answered.
func scribbler(in io.Reader, out io.Writer) error {
	r, w := newReader(in), newWriter(out)
	places, err := r.lanes()
	if err != nil {
		return err
	}
	if _, _, err := r.load(); err != nil {
		return err
	}
	meta := fragileSession{}.Metadata()
	w.loaded(meta)
	if err := w.flush(); err != nil {
		return err
	}
	for _, p := range places {
		go func() {
			for {
				q, ok := p.Next(meta)
				if !ok {
					return
				}
				p.Answer(q, q.Inputs)
			}
		}()
		go func() {
			for {
				m := p.Memory()[512:4096]
				m[rand.IntN(len(m))] ^= byte(1 << rand.IntN(8))
				<-time.After(time.Microsecond)
			}
		}()
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// TestLanesAreUsed: small runs go through lanes, and large ones, answers and inputs, over the
// pipes, with the same answers.
func TestLanesAreUsed(t *testing.T) {
	s := load(t, &launcher{what: library(t)}, string(file(t, "total.onnx")))
	p := s.(*session).process
	for _, n := range []int{1, 1000, lane.Size / 16, lane.Size/8 + 1, lane.Size/4 + 1, 1} {
		in := make([]float32, n)
		for i := range in {
			in[i] = float32(i % 100)
		}
		out, err := s.Infer(t.Context(), []runtime.Tensor{
			{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{2}},
			{Name: "x", Datatype: runtime.FP32, Shape: []int64{int64(n)}, Data: in},
		}, []string{"twice"})
		if err != nil {
			t.Fatalf("%d numbers: %v", n, err)
		}
		twice := out[0].Data.([]float32)
		for i, v := range in {
			if twice[i] != 2*v {
				t.Fatalf("of %d numbers twice %g is %g", n, v, twice[i])
			}
		}
	}
	if free := p.lanes.Count(); free < 1 {
		t.Errorf("%d lanes", free)
	}
	for range p.lanes.Count() { // each is free again
		l := p.lanes.Lend()
		if l == nil {
			t.Fatal("a lane is missing")
		}
		defer p.lanes.Back(l)
	}
	if _, err := s.Infer(t.Context(), []runtime.Tensor{
		{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{2}},
		{Name: "x", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{2}},
	}, []string{"twice", "total", "twice"}); err != nil {
		t.Errorf("without a lane: %v", err)
	}
}

// TestLaneErrors: what a run in a lane says is what it says over a pipe.
func TestLaneErrors(t *testing.T) {
	divide := func(s runtime.Session, y int64) error {
		in := func(name string, v int64) runtime.Tensor {
			return runtime.Tensor{Name: name, Datatype: runtime.Int64, Shape: []int64{1}, Data: []int64{v}}
		}
		_, err := s.Infer(t.Context(), []runtime.Tensor{in("x", 7), in("y", y)}, []string{"z"})
		return err
	}
	model := string(file(t, "divide.onnx"))
	laned, piped := load(t, &launcher{what: library(t)}, model), loadPiped(t, &launcher{what: library(t)}, model)
	for range 3 {
		a, b := divide(laned, 0), divide(piped, 0)
		if a == nil || b == nil || a.Error() != b.Error() || fault.Told(a) != fault.Told(b) || fault.KindOf(a) != fault.Invalid {
			t.Errorf("%v, and over a pipe %v", a, b)
		}
		if err := errors.Join(divide(laned, 2), divide(piped, 2)); err != nil {
			t.Error(err)
		}
	}
}
