package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// Main is the child: it loads the one model it is given and answers until in
// ends. Where the server says so, what it is asked also comes in the memory that
// descriptor 3 is.
func Main(in io.Reader, out io.Writer, rt runtime.Runtime) error {
	r := newReader(in)
	places, err := r.lanes()
	if err != nil {
		return err
	}
	return serve(context.Background(), in, r, out, rt, places)
}

// Serve is Main without lanes, of a child that is told to end by its context. It says so,
// goes on with what it is asked, and ends when in does, as who asks it sees to. Before it
// has a model there is nothing to go on with: it closes in, if it can.
func Serve(ctx context.Context, in io.Reader, out io.Writer, rt runtime.Runtime) error {
	return serve(ctx, in, newReader(in), out, rt, nil)
}

func serve(ctx context.Context, in io.Reader, r *reader, out io.Writer, rt runtime.Runtime, places []*lane.Place) error {
	w := newWriter(out)
	waits := context.AfterFunc(ctx, func() {
		if c, ok := in.(io.Closer); ok {
			_ = c.Close()
		}
	})
	model, o, err := r.load()
	if !waits() {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := rt.Load(context.Background(), model, o)
	debug.FreeOSMemory() // of the file: the library has its own copy by now
	if err != nil {
		w.fault(0, err)
		return w.flush()
	}
	c := &served{session: s, w: w, running: map[uint64]context.CancelFunc{}}
	lanes, err := c.open(places)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	w.loaded(s.Metadata())
	if err := w.flush(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.signal(kindLeave) })
	err = c.serve(r)
	stop()
	for _, l := range lanes {
		l.Stop()
	}
	c.mu.Lock()
	for _, cancel := range c.running {
		cancel()
	}
	c.mu.Unlock()
	c.runs.Wait()
	err = errors.Join(err, s.Close())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// served is a loaded model and what it is asked at the moment.
type served struct {
	session runtime.Session
	runs    sync.WaitGroup
	native  []lane.Answerer

	mu      sync.Mutex
	running map[uint64]context.CancelFunc

	writing sync.Mutex
	w       *writer
}

func (c *served) serve(r *reader) error {
	for {
		kind, err := r.r.ReadByte()
		if err != nil {
			return err
		}
		id, err := r.number(1 << 63)
		if err != nil {
			return err
		}
		switch kind {
		case kindInfer:
			outputs, inputs, err := r.infer()
			if err != nil {
				return err
			}
			run := c.begin(id)
			c.runs.Go(func() {
				out, err := run(inputs, outputs)
				c.answer(id, out, err)
			})
		case kindPing:
			c.signal(kindPing)
		case kindCancel:
			c.mu.Lock()
			if cancel := c.running[id]; cancel != nil {
				cancel()
			}
			c.mu.Unlock()
			for _, a := range c.native {
				a.Cancel(id)
			}
		default:
			return fmt.Errorf("a message of kind %q where a request belongs", kind)
		}
	}
}

// begin makes a run that a cancel ends from now on.
func (c *served) begin(id uint64) func(inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	c.running[id] = cancel
	c.mu.Unlock()
	return func(inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
		out, err := c.session.Infer(ctx, inputs, outputs)
		c.mu.Lock()
		delete(c.running, id)
		c.mu.Unlock()
		cancel()
		return out, err
	}
}

// stopper is what waits for questions of a lane.
type stopper interface{ Stop() }

// open begins to answer lanes: by the session itself where it can.
func (c *served) open(places []*lane.Place) ([]stopper, error) {
	native, _ := c.session.(lane.Native)
	var lanes []stopper
	for _, p := range places {
		if native == nil {
			lanes = append(lanes, p)
			c.runs.Go(func() { c.lane(p) })
			continue
		}
		a, err := native.Lane(p)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, a)
		c.native = append(c.native, a)
		c.runs.Go(func() {
			defer a.Free()
			for {
				id, out, err, ok := a.Answer()
				if !ok {
					return
				}
				c.answer(id, out, err)
				p.Elsewhere()
			}
		})
	}
	return lanes, nil
}

// lane answers a lane for a session that knows of none.
func (c *served) lane(p *lane.Place) {
	for {
		q, ok := p.Next(c.session.Metadata())
		if !ok {
			return
		}
		out, err := c.begin(q.ID)(q.Inputs, q.Wanted)
		if err == nil && sound(out) == nil && p.Answer(q, out) {
			continue
		}
		c.answer(q.ID, out, err)
		p.Elsewhere()
	}
}

// signal says what is of no run.
func (c *served) signal(kind byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.w.signal(kind)
	_ = c.w.flush()
}

// answer says what came out. When that cannot be written, the server is gone or
// has closed the pipe, and the end of in follows.
func (c *served) answer(id uint64, out []runtime.Tensor, err error) {
	if err == nil {
		err = sound(out)
	}
	if err == nil && size(out) > runtime.MaxAnswer {
		err = runtime.TooLong()
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err != nil {
		c.w.fault(id, err)
	} else {
		c.w.answer(id, out)
	}
	_ = c.w.flush()
}

// lanes opens the lanes that the server offers; it need not.
func (r *reader) lanes() ([]*lane.Place, error) {
	n, size, err := r.offered()
	if err != nil || n == 0 {
		return nil, err
	}
	return lane.Open(os.NewFile(3, "lanes"), n, size)
}

func (r *reader) offered() (n, size int, err error) {
	kind, err := r.r.Peek(1)
	if err != nil || kind[0] != kindLanes {
		return 0, 0, err
	}
	_, _ = r.r.Discard(1)
	many, err := r.number(lane.MaxLanes)
	if err != nil {
		return 0, 0, err
	}
	large, err := r.number(1 << 40)
	return int(many), int(large), err //nolint:gosec // G115: below 1<<40
}

func (r *reader) load() (model []byte, o runtime.Options, err error) {
	kind, err := r.r.ReadByte()
	if err != nil {
		return nil, o, err
	}
	if kind != kindLoad {
		return nil, o, fmt.Errorf("a message of kind %q where a model belongs", kind)
	}
	if err := r.document(maxText, &o); err != nil {
		return nil, o, err
	}
	n, err := r.number(1 << 40)
	if err != nil {
		return nil, o, err
	}
	model, err = r.bytes(int(n)) //nolint:gosec // G115: below 1<<40
	return model, o, err
}

func (r *reader) infer() (outputs []string, inputs []runtime.Tensor, err error) {
	n, err := r.number(runtime.MaxPorts)
	if err != nil {
		return nil, nil, err
	}
	outputs = make([]string, n)
	for i := range outputs {
		if outputs[i], err = r.text(runtime.MaxName); err != nil {
			return nil, nil, err
		}
	}
	inputs, err = r.tensors(maxRequest)
	return outputs, inputs, err
}
