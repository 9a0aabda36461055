package remote

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// profileRequest is a request to profile a member. It is not stored: the client that waits for it is
// disconnected when the server stops.
type profileRequest struct {
	request profiler.Request
	sent    bool
	answer  chan profiler.Answer // holds one
}

// patience is added to the duration of a profile: for a heartbeat, and for sending the result.
const patience = time.Minute

// Profile has a member's agent profile its worker.
func (d *Driver) Profile(ctx context.Context, h engine.Handle, r profiler.Request) (profiler.Result, error) {
	none := profiler.Result{}
	if err := r.Check(); err != nil {
		return none, err
	}
	w, err := d.find(h)
	if err != nil {
		return none, err
	}
	l, err := w.ask(r)
	if err != nil {
		return none, err
	}
	defer w.forget(r.Worker)
	late := time.NewTimer(r.Patience() + patience)
	defer late.Stop()
	select {
	case a := <-l.answer:
		return a.Unpack()
	case <-late.C:
		return none, fault.New(fault.Timeout, "the agent of worker %d did not answer in time", r.Worker).
			WithHint("Agents of earlier releases cannot do this. Check with `falaj job top` that the agent reports.")
	case <-w.done:
		return none, fault.New(fault.Conflict, "workload %s has ended meanwhile", h)
	case <-d.down:
		return none, fault.New(fault.Unavailable, "the engine is shutting down")
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// ask queues a request for a member's next heartbeat, which comes at once.
func (w *work) ask(r profiler.Request) (*profileRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.Worker >= len(w.members):
		return nil, fault.New(fault.Invalid, "workload %s has no worker %d: it has %d", w.id, r.Worker, len(w.members))
	case w.state.Begun.IsZero() || w.state.Final != nil || w.members[r.Worker].over():
		return nil, fault.New(fault.Conflict, "worker %d of %s is not running", r.Worker, w.id)
	case w.looks[r.Worker] != nil:
		return nil, fault.New(fault.Conflict, "a profile of worker %d of %s is already running", r.Worker, w.id).WithHint("Wait for it to end.")
	}
	l := &profileRequest{request: r, answer: make(chan profiler.Answer, 1)}
	w.looks[r.Worker] = l
	w.notify()
	return l, nil
}

func (w *work) forget(index int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.looks, index)
}

// profile accepts a member's profile; an unexpected one is dropped.
func (h *Hub) profile(id string, s sender, l protocol.Look) error {
	w, err := h.open(id, s)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.looks[s.index]
	if asked == nil || asked.request.ID != l.ID {
		return fault.New(fault.Gone, "profile %.80q is not expected", l.ID)
	}
	select {
	case asked.answer <- l.Answer:
	default: // it was answered before
	}
	return nil
}

var _ engine.Profiler = (*Driver)(nil)
