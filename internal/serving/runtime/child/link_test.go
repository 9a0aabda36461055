package child

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// away is a runtime whose processes are at the other end of connections.
type away struct {
	t  *testing.T
	r  *Runtime
	rt runtime.Runtime
}

func (a away) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	near, far := connect(a.t)
	go func() {
		_ = Serve(a.t.Context(), far, far, a.rt)
		_ = far.Close()
	}()
	s, err := a.r.Link(ctx, near, model, o, 4)
	if err != nil { // not a *Linked that is nil
		return nil, err
	}
	return s, nil
}

// connect makes both ends of a connection.
func connect(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// TestLinkConformance: a model at the other end of a connection is as one here.
func TestLinkConformance(t *testing.T) {
	r := New(nil, nil)
	runtimetest.Run(t, away{t, r, runtimetest.Fake{}}, runtimetest.FakeModels)
	r.Close() // nothing is left
}

// linked is a fragile model at the other end.
func linked(t *testing.T, ctx context.Context) (l *Linked, far net.Conn, served chan error) { //nolint:revive // the test's own comes first
	t.Helper()
	near, far := connect(t)
	served = make(chan error, 1)
	go func() { served <- Serve(ctx, far, far, fragile{}) }()
	l, err := New(nil, nil).Link(t.Context(), near, nil, runtime.Options{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return l, far, served
}

func one(v int64) []runtime.Tensor {
	return []runtime.Tensor{{Name: "x", Datatype: runtime.Int64, Shape: []int64{1}, Data: []int64{v}}}
}

// TestLinkBroken: a run whose connection breaks is unavailable once, and is not held to
// have ended the process; the session is away for ever.
func TestLinkBroken(t *testing.T) {
	l, far, served := linked(t, t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := l.Infer(t.Context(), one(14), []string{"x"}) // until it is cancelled
		got <- err
	}()
	for len(l.slots) == 0 {
		<-time.After(time.Millisecond)
	}
	_ = far.Close()
	if err := <-got; !fault.Is(err, fault.Unavailable) || errors.Is(err, runtime.ErrEnded) {
		t.Errorf("%v", err)
	}
	<-l.Gone()
	if l.Unavailable() == nil {
		t.Error("it answers")
	}
	if _, err := l.Infer(t.Context(), one(1), []string{"x"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("afterwards: %v", err)
	}
	if err := l.Close(); err != nil || len(l.slots) != 0 {
		t.Errorf("%v, %d runs have not ended", err, len(l.slots))
	}
	if err := <-served; err == nil {
		t.Error("the process does not say that it was cut off")
	}
}

// TestLinkLeaves: a process that is told to end says so, goes on with what it has, and
// ends when the session is closed.
func TestLinkLeaves(t *testing.T) {
	told, tell := context.WithCancel(t.Context())
	l, _, served := linked(t, told)
	select {
	case <-l.Leaving():
		t.Error("it leaves")
	default:
	}
	tell()
	<-l.Leaving()
	out, err := l.Infer(t.Context(), one(7), []string{"x"})
	if err != nil || out[0].Data.([]int64)[0] != 7 || l.Unavailable() != nil {
		t.Errorf("%v, %v", out, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("the process: %v", err)
	}
}

// TestLinkSilent: a process that says nothing any more, and whose connection stays, is
// gone; one that answers pings is not, however long nobody asks it.
func TestLinkSilent(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			var end sync.WaitGroup
			in := &gate{Conn: far, open: make(chan struct{})}
			end.Go(func() { _ = Serve(t.Context(), in, far, fragile{}) })
			l, err := New(nil, nil).Link(t.Context(), near, nil, runtime.Options{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if deaf {
				in.close()
			}
			began := time.Now()
			select {
			case <-l.Gone():
				if took := time.Since(began); !deaf || took > 2*silence {
					t.Errorf("deaf %v, it is gone after %s", deaf, took)
				}
			case <-time.After(time.Hour):
				if deaf {
					t.Error("it is not gone")
				}
			}
			_ = l.Close()
			close(in.open)
			_ = far.Close()
			end.Wait()
		})
	}
}

// gate is a connection of which nothing is read while it is closed.
type gate struct {
	net.Conn
	mu     sync.Mutex
	closed bool
	open   chan struct{}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		<-g.open
		return 0, io.EOF
	}
	return n, err
}

// TestLinkGivenUp: who gives up while the model is loaded leaves no connection.
func TestLinkGivenUp(t *testing.T) {
	near, far := connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := New(nil, nil).Link(ctx, near, make([]byte, 1<<20), runtime.Options{}, 1)
		got <- err
	}()
	if _, err := io.ReadFull(far, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-got; !fault.Is(err, fault.Timeout) {
		t.Errorf("%v", err)
	}
	if _, err := io.Copy(io.Discard, far); err != nil && !errors.Is(err, net.ErrClosed) && !isReset(err) {
		t.Errorf("the connection: %v", err)
	}
}

func isReset(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

// TestLinkEarly: a process that is told to end before it has a model ends, and does not
// wait until it is killed.
func TestLinkEarly(t *testing.T) {
	near, far := connect(t)
	ctx, tell := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, far, far, fragile{}) }()
	tell()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection: %v", err)
	}
}
