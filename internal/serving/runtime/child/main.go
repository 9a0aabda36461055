package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Main is the child: it loads the one model it is given and answers until in
// ends.
func Main(in io.Reader, out io.Writer, rt runtime.Runtime) error {
	return Serve(context.Background(), in, out, rt)
}

// Serve is Main, of a child that is told to end by its context. It says so, goes on with
// what it is asked, and ends when in does, as who asks it sees to. Before it has a model
// there is nothing to go on with: it closes in, if it can.
func Serve(ctx context.Context, in io.Reader, out io.Writer, rt runtime.Runtime) error {
	r, w := newReader(in), newWriter(out)
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
	w.loaded(s.Metadata())
	if err := w.flush(); err != nil {
		return err
	}
	c := &served{session: s, w: w, running: map[uint64]context.CancelFunc{}}
	stop := context.AfterFunc(ctx, func() { c.signal(kindLeave) })
	err = c.serve(r)
	stop()
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
			ctx, cancel := context.WithCancel(context.Background())
			c.mu.Lock()
			c.running[id] = cancel
			c.mu.Unlock()
			c.runs.Go(func() {
				out, err := c.session.Infer(ctx, inputs, outputs)
				c.mu.Lock()
				delete(c.running, id)
				c.mu.Unlock()
				cancel()
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
		default:
			return fmt.Errorf("a message of kind %q where a request belongs", kind)
		}
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
