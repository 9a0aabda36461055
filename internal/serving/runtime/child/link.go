package child

import (
	"context"
	"net"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Over a connection a process that is gone may not be seen to be: it is asked every
// pingEvery whether it is there, and is gone when nothing came for silence. That is
// longer than a message may take to be written, which a ping waits for.
const (
	pingEvery = 5 * time.Second
	silence   = 40 * time.Second
)

// abreast is how many runs a process elsewhere has at a time for each that it has the
// cores for: one runs, and one is on its way.
const abreast = 2

// Linked is a session of a process on another machine, which has called this one. It is
// not started again: one that has ended is away for ever.
type Linked struct {
	p     *process
	end   context.CancelFunc
	slots chan struct{}
	pings sync.WaitGroup
	runs  sync.WaitGroup
}

var _ runtime.Restarting = (*Linked)(nil)

// Link gives the process at the other end of a connection its model. It has so many
// cores. The connection is the session's, and is closed with it, or when there is none.
func (r *Runtime) Link(ctx context.Context, conn net.Conn, model []byte, o runtime.Options, cores int) (*Linked, error) {
	if o.Time == 0 {
		o.Time = runtime.DefaultTime
	}
	r.mu.Lock()
	if ctx.Err() != nil || r.life.Err() != nil {
		r.mu.Unlock()
		_ = conn.Close()
		return nil, fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	r.processes.Add(1)
	r.mu.Unlock()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(r.life, cancel)
	end := func() {
		detach()
		cancel()
	}
	context.AfterFunc(life, func() { _ = conn.Close() })
	stop := context.AfterFunc(ctx, end) // who gives up while it loads
	p := newProcess(distant{}, conn, end)
	p.link = true
	late := &attentive{Conn: conn}
	err := r.load(ctx, life, p, late, model, o)
	if !stop() && err == nil {
		p.stop(errEnded)
		<-p.gone
		err = fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	if err != nil {
		end()
		return nil, err
	}
	l := &Linked{p: p, end: end, slots: make(chan struct{}, abreast*max(1, cores/max(1, o.Threads)))}
	late.attend()
	l.pings.Go(func() { l.ping(life) })
	return l, nil
}

// ping asks whether the process is there, until it is not.
func (l *Linked) ping(life context.Context) {
	every := time.NewTicker(pingEvery)
	defer every.Stop()
	for {
		select {
		case <-l.p.gone:
			return
		case <-every.C:
			_ = l.p.send(life, func(w *writer) { w.signal(kindPing) })
		}
	}
}

// Metadata implements runtime.Session.
func (l *Linked) Metadata() runtime.Metadata { return l.p.meta }

// Same reports whether it says of itself what another model does.
func (l *Linked) Same(m runtime.Metadata) bool { return reflect.DeepEqual(l.p.meta, m) }

// Runs is how many runs it takes at a time.
func (l *Linked) Runs() int { return cap(l.slots) }

// Unavailable implements runtime.Restarting.
func (l *Linked) Unavailable() error {
	if l.p.ending() {
		return parted()
	}
	return nil
}

// Gone is closed when the process has ended, or is not reached any more.
func (l *Linked) Gone() <-chan struct{} { return l.p.gone }

// Leaving is closed when the process asks to be let go.
func (l *Linked) Leaving() <-chan struct{} { return l.p.leaving }

// Infer implements runtime.Session.
func (l *Linked) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request timed out before the model ran")
	}
	asked := make([]runtime.Spec, len(outputs))
	for i, name := range outputs {
		j := slices.IndexFunc(l.p.meta.Outputs, func(o runtime.Spec) bool { return o.Name == name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "the model has no output %.100q", name)
		}
		asked[i] = l.p.meta.Outputs[j]
	}
	l.runs.Add(1)
	defer l.runs.Done()
	select {
	case l.slots <- struct{}{}:
	case <-l.p.gone:
		return nil, parted()
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "the request timed out waiting for a replica")
	}
	return l.p.infer(ctx, inputs, asked, func() { <-l.slots })
}

// Close implements runtime.Session: the process ends with its connection.
func (l *Linked) Close() error {
	l.runs.Wait()
	l.p.stop(errEnded)
	<-l.p.gone
	l.end()
	l.pings.Wait()
	return nil
}

// parted is what requests hear whose replica is gone.
func parted() *fault.Error {
	return fault.New(fault.Unavailable, "the model's replica ended or is unreachable; the other replicas keep serving").WithHint("Try again.").WithRetry(firstPause)
}

// distant is the process of a Linked: nobody here has started it, or knows how it ends.
type distant struct{}

func (distant) Command() *exec.Cmd { return nil }
func (distant) Start() error       { return nil }
func (distant) Wait() error        { return nil }

// attentive is a connection that fails when nothing comes for a while, once somebody
// attends: while a model is loaded nothing does.
type attentive struct {
	net.Conn

	mu      sync.Mutex
	attends bool
}

func (a *attentive) attend() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attends = true
	_ = a.SetReadDeadline(time.Now().Add(silence))
}

// Read implements net.Conn.
func (a *attentive) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attends && err == nil {
		_ = a.SetReadDeadline(time.Now().Add(silence))
	}
	return n, err
}
