package chain

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

func itoa(i int) string { return strconv.Itoa(i) }

// step makes tensors of tensors.
type step interface {
	needs() []int // slots that it reads, whatever is wanted of it
	makes() []int
	// run makes those that are wanted. n is how many rows there are.
	run(ctx context.Context, f *frame) error
}

// placed is a step in its place; the deployment's own model has no name.
type placed struct {
	step
	name          string
	before        bool
	reads, writes []int // needs and makes
}

// Session is a model with steps before and after it. It answers as runtime.Session
// says, and closes the models' sessions. Safe for concurrent use.
type Session struct {
	steps   []placed
	main    int // the deployment's own model
	ports   []port
	slots   map[string]int
	models  []runtime.Session
	single  bool
	meta    runtime.Metadata // with all that is made
	visible runtime.Metadata
	seen    []string
	counts  []counter // of steps
}

// Runs implements runtime.Narrow: as many as the model that takes the fewest; 0 when all
// take as many as come.
func (s *Session) Runs() (least int) {
	for _, m := range s.models {
		if one, ok := m.(runtime.Narrow); ok {
			if n := one.Runs(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	return least
}

var _ runtime.Narrow = (*Session)(nil)

// counter counts what a step did.
type counter struct{ runs, rows, nanos atomic.Int64 }

// Count is what a step did since the session was loaded: those of its runs that gave
// something.
type Count struct {
	Step string        `json:"step"` // "before[0]"; "model" is the deployment's own
	Runs int64         `json:"runs"`
	Rows int64         `json:"rows"`
	Time time.Duration `json:"time_ns"` // of all runs
}

// Counts are those of the steps, in order.
func (s *Session) Counts() []Count {
	out := make([]Count, len(s.steps))
	for i := range s.counts {
		c := &s.counts[i]
		out[i] = Count{Step: cmp.Or(s.steps[i].name, "model"), Runs: c.runs.Load(), Rows: c.rows.Load(), Time: time.Duration(c.nanos.Load())}
	}
	return out
}

var _ runtime.Distant = (*Session)(nil)

// Metadata has every tensor that is made among its outputs.
func (s *Session) Metadata() runtime.Metadata { return s.meta }

// Visible is what clients see: of the outputs those that are given.
func (s *Session) Visible() runtime.Metadata { return s.visible }

// Seen are the model's inputs that steps made, which can be asked for as outputs.
func (s *Session) Seen() []string { return s.seen }

// Model is what the deployment's own model says of itself.
func (s *Session) Model() runtime.Metadata {
	return s.steps[s.main].step.(*modelStep).session.Metadata()
}

// Columns are what the columns of the model's inputs are called, by input.
func (s *Session) Columns() map[string][]string {
	out := map[string][]string{}
	for _, w := range s.steps[s.main].step.(*modelStep).in {
		if c := s.ports[w.slot].columns; c != nil {
			out[w.spec.Name] = c
		}
	}
	return out
}

// MaxRows implements runtime.Distant: what a model says that takes a fixed number of
// rows, or one on another server.
func (s *Session) MaxRows() int {
	rows := 0
	if s.single {
		rows = 1
	}
	for _, m := range s.models {
		if d, ok := m.(runtime.Distant); ok && d.MaxRows() > 0 && (rows == 0 || d.MaxRows() < rows) {
			rows = d.MaxRows()
		}
	}
	return rows
}

// Unavailable implements runtime.Restarting.
func (s *Session) Unavailable() error {
	for _, m := range s.models {
		if err := runtime.Unavailable(m); err != nil {
			return err
		}
	}
	return nil
}

// Close implements runtime.Session.
func (s *Session) Close() error {
	var all []error
	for _, m := range s.models {
		all = append(all, m.Close())
	}
	return errors.Join(all...)
}

// maxMade bounds what the steps of a run make beside models, in bytes.
const maxMade = 256 << 20

// frame is one run.
type frame struct {
	ports   []port
	tensors []runtime.Tensor // by slot; without Data: not there
	wanted  []bool
	rows    int
	made    int // bytes
}

// Infer implements runtime.Session.
func (s *Session) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	f := &frame{ports: s.ports, tensors: make([]runtime.Tensor, len(s.ports)), wanted: make([]bool, len(s.ports))}
	for _, t := range inputs {
		slot, there := s.slots[t.Name]
		if !there || !s.ports[slot].asked {
			return nil, fault.New(fault.Invalid, "unknown input %q", t.Name)
		}
		f.tensors[slot] = t
	}
	f.rows = f.count()
	for _, name := range outputs {
		slot, there := s.slots[name]
		if !there {
			return nil, fault.New(fault.Invalid, "the model has no output %q", name).WithHint("Its outputs: %s.", listed(s.visible.Outputs))
		}
		f.wanted[slot] = true
	}
	for _, x := range slices.Backward(s.steps) {
		if slices.ContainsFunc(x.writes, func(slot int) bool { return f.wanted[slot] }) {
			for _, slot := range x.reads {
				f.wanted[slot] = true
			}
		}
	}
	began := time.Now()
	for i, x := range s.steps {
		if !slices.ContainsFunc(x.writes, func(slot int) bool { return f.wanted[slot] }) {
			continue
		}
		if ctx.Err() != nil {
			return nil, late()
		}
		if err := x.run(ctx, f); err != nil {
			if x.name != "" {
				err = fault.Wrap(err, "step %s", x.name)
			}
			if x.before {
				err = refused{err}
			}
			return nil, err
		}
		ended := time.Now()
		c := &s.counts[i]
		c.runs.Add(1)
		c.rows.Add(int64(f.rows))
		c.nanos.Add(int64(ended.Sub(began)))
		began = ended
	}
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		out[i] = f.tensors[s.slots[name]]
		out[i].Name = name
	}
	return out, nil
}

// count is how many rows there are: what the first input has, in the chain's order and not
// the client's, whose first dimension varies.
func (f *frame) count() int {
	for slot, p := range f.ports {
		if t := f.tensors[slot]; t.Data != nil && len(t.Shape) > 0 && (p.Shape == nil || p.Shape[0] < 0) {
			return int(t.Shape[0])
		}
	}
	return 1
}

func late() error {
	return fault.New(fault.Timeout, "the request timed out between the steps of the model")
}

// refused is the error of a step before the model, which never saw the request.
type refused struct{ error }

func (e refused) Unwrap() error { return e.error }

// Refused reports whether the model was not asked, because a step before it failed.
func Refused(err error) bool {
	_, is := errors.AsType[refused](err)
	return is
}

// wire is a tensor of the chain as a model calls it.
type wire struct {
	slot int
	spec runtime.Spec
}

// modelStep is a model.
type modelStep struct {
	session runtime.Session
	in, out []wire
}

func (m *modelStep) needs() []int { return slotsOf(m.in) }
func (m *modelStep) makes() []int { return slotsOf(m.out) }

func slotsOf(ws []wire) []int {
	out := make([]int, len(ws))
	for i, w := range ws {
		out[i] = w.slot
	}
	return out
}

func (m *modelStep) run(ctx context.Context, f *frame) error {
	in := make([]runtime.Tensor, len(m.in))
	for i, w := range m.in {
		in[i] = f.tensors[w.slot]
		in[i].Name = w.spec.Name
		if err := w.spec.Accepts(in[i]); err != nil {
			return err
		}
	}
	var names []string
	var slots []int
	for _, w := range m.out {
		if f.wanted[w.slot] {
			names, slots = append(names, w.spec.Name), append(slots, w.slot)
		}
	}
	out, err := m.session.Infer(ctx, in, names)
	if err != nil {
		return err
	}
	for i, slot := range slots {
		f.tensors[slot] = out[i]
		f.tensors[slot].Name = f.ports[slot].Name
	}
	return nil
}

// take counts what a step is about to make.
func (f *frame) take(bytes int) error {
	if f.made += bytes; f.made > maxMade {
		return fault.New(fault.TooLarge, "the steps of the model exceed %d MiB for this request", maxMade>>20).WithHint("Send fewer rows at once.")
	}
	return nil
}
