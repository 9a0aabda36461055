package remote

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

const (
	// maxWanted is how much of one member's output may be asked for at the same time.
	maxWanted = 8
	// membersAtOnce is how many members are asked at the same time.
	membersAtOnce = 16
	// findTime is how long an agent may take to answer: a beat, and reading directories.
	findTime = 30 * time.Second
)

// wanted is a request for a part of a member's output. It is not stored: the client that waits for it
// is disconnected when the server stops.
type wanted struct {
	request protocol.Wanted
	sent    bool
	answer  chan found
	gone    chan struct{} // closed when the client no longer waits for it
}

// found is a member's answer.
type found struct {
	listing outputdir.Listing
	file    *arriving // of a file
	err     error
}

// arriving is a file while its agent sends it.
type arriving struct {
	body  io.Reader
	size  int64 // still to come
	close func()
}

func (a *arriving) Read(b []byte) (int, error) {
	if a.size == 0 {
		return 0, io.EOF
	}
	n, err := a.body.Read(b[:min(int64(len(b)), a.size)])
	if a.size -= int64(n); err == io.EOF && a.size > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close lets the agent's request end.
func (a *arriving) Close() error {
	a.close()
	return nil
}

// ListOutput asks the agents of all members that run. One that has no output yet, or ends
// meanwhile, is left out where others answer. Listings of no more than membersAtOnce members
// are in memory.
func (d *Driver) ListOutput(ctx context.Context, h engine.Handle, below string) (outputdir.Listing, error) {
	w, err := d.find(h)
	if err != nil {
		return outputdir.Listing{}, err
	}
	members, err := w.running()
	if err != nil {
		return outputdir.Listing{}, err
	}
	ctx, cancel := w.finding(ctx)
	defer cancel()
	all, some := outputdir.Listing{}, false
	var why error
	for part := range slices.Chunk(members, membersAtOnce) {
		answers := make([]found, len(part))
		g, asking := errgroup.WithContext(ctx)
		for i, index := range part {
			g.Go(func() error {
				a := d.want(asking, w, index, protocol.Wanted{Path: below})
				if answers[i] = a; nothing(a.err) {
					return nil
				}
				return a.err
			})
		}
		if err := g.Wait(); err != nil {
			return outputdir.Listing{}, err
		}
		for _, a := range answers {
			if a.err != nil {
				why = weightier(why, a.err)
				continue
			}
			all, some = all.Merge(a.listing), true
		}
	}
	if !some {
		return all, why
	}
	return all, nil
}

// OpenOutput asks one member after the other.
func (d *Driver) OpenOutput(ctx context.Context, h engine.Handle, path string, most int64) (io.ReadCloser, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	members, err := w.running()
	if err != nil {
		return nil, err
	}
	ctx, cancel := w.finding(ctx)
	defer cancel() // nothing of it is needed to read the file
	var why error
	for _, index := range members {
		a := d.want(ctx, w, index, protocol.Wanted{Path: path, Most: max(most, 1)})
		if a.err == nil && a.file != nil {
			return a.file, nil
		}
		if !nothing(a.err) {
			return nil, a.err
		}
		why = weightier(why, a.err)
	}
	return nil, why
}

// finding bounds how long all members together may take to answer.
func (w *work) finding(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, 2*findTime, fault.New(fault.Timeout, "the agents of %s did not answer in %s", w.id, 2*findTime).
		WithHint("Check with `falaj job top` that they report."))
}

// nothing reports the error of a member that has nothing to give, while others may.
func nothing(err error) bool { return fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) }

// weightier is the error to report of two members that have nothing: fault.Conflict (not yet) rather
// than fault.NotFound.
func weightier(a, b error) error {
	if a == nil || fault.Is(a, fault.NotFound) && fault.Is(b, fault.Conflict) {
		return b
	}
	return a
}

// running are the members whose agents can be asked.
func (w *work) running() ([]int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var members []int
	for i, m := range w.members {
		if !w.state.Begun.IsZero() && w.state.Final == nil && !m.over() {
			members = append(members, i)
		}
	}
	if len(members) == 0 {
		return nil, fault.New(fault.Conflict, "no worker of %s is running", w.id).WithHint("The output exists from the start of the workers, and is stored when they have ended.")
	}
	return members, nil
}

// want asks a member and waits for its answer.
func (d *Driver) want(ctx context.Context, w *work, index int, r protocol.Wanted) found {
	r.ID = id.New("out")
	asked := &wanted{request: r, answer: make(chan found), gone: make(chan struct{})}
	w.mu.Lock()
	if len(w.wanted[index]) >= maxWanted {
		w.mu.Unlock()
		return found{err: fault.New(fault.Exhausted, "%d parts of the output of worker %d of %s are already being read", maxWanted, index, w.id).WithHint("Wait for them to end.")}
	}
	w.wanted[index] = append(w.wanted[index], asked)
	w.notify()
	w.mu.Unlock()
	a := d.answer(ctx, w, index, asked)
	forget := sync.OnceFunc(func() {
		close(asked.gone)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wanted[index] = slices.DeleteFunc(w.wanted[index], func(o *wanted) bool { return o == asked })
	})
	if a.file == nil {
		forget()
		return a
	}
	a.file.close = forget // until then the agent is asked for it
	return a
}

// answer waits for the answer of a member, until that or the workload is over.
func (d *Driver) answer(ctx context.Context, w *work, index int, asked *wanted) found {
	late := time.NewTimer(findTime)
	defer late.Stop()
	for {
		w.mu.Lock()
		changed, over := w.changed, w.members[index].over()
		w.mu.Unlock()
		if over {
			return found{err: fault.New(fault.Conflict, "worker %d of %s has ended meanwhile", index, w.id)}
		}
		select {
		case <-changed:
		case a := <-asked.answer:
			return a
		case <-late.C:
			return found{err: fault.New(fault.Timeout, "the agent of worker %d did not answer in %s", index, findTime).
				WithHint("Agents of earlier releases cannot do this. Check with `falaj job top` that the agent reports.")}
		case <-w.done:
			return found{err: fault.New(fault.Conflict, "workload %s has ended meanwhile", w.id)}
		case <-d.down:
			return found{err: fault.New(fault.Unavailable, "the engine is shutting down")}
		case <-ctx.Done():
			return found{err: context.Cause(ctx)}
		}
	}
}

// wants finds what a member was asked.
func (h *Hub) wants(id string, s sender, request string) (*wanted, error) {
	w, err := h.open(id, s)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, asked := range w.wanted[s.index] {
		if asked.request.ID == request {
			return asked, nil
		}
	}
	return nil, fault.New(fault.Gone, "output %.80q is not expected", request)
}

// output takes a list, or why there is nothing.
func (h *Hub) output(ctx context.Context, id string, s sender, f protocol.Found) error {
	asked, err := h.wants(id, s, f.ID)
	if err != nil {
		return err
	}
	a := found{}
	switch {
	case f.Problem != nil:
		a.err = problem(f.Problem)
	case f.Listing == nil || asked.request.Most > 0:
		return fault.New(fault.Invalid, "the response to output %.80q has none of the requested data", f.ID)
	default:
		if err := f.Listing.Check(); err != nil {
			return err
		}
		a.listing = *f.Listing
	}
	return asked.give(ctx, a)
}

// outputFile accepts a file, and returns when the requester has read it.
func (h *Hub) outputFile(ctx context.Context, id string, s sender, request string, size int64, body io.Reader) error {
	asked, err := h.wants(id, s, request)
	switch {
	case err != nil:
		return err
	case asked.request.Most == 0 || size < 0:
		return fault.New(fault.Invalid, "output %.80q is not a file of a known size", request)
	case size > asked.request.Most:
		return outputdir.TooLarge(asked.request.Path, size, asked.request.Most)
	}
	if err := asked.give(ctx, found{file: &arriving{body: body, size: size}}); err != nil {
		return err
	}
	select { // the body is read until then
	case <-asked.gone:
		return nil
	case <-h.d.down:
		return fault.New(fault.Unavailable, "the engine is shutting down")
	}
}

// give hands a response to its waiting caller.
func (w *wanted) give(ctx context.Context, a found) error {
	select {
	case w.answer <- a:
		return nil
	case <-w.gone:
		return fault.New(fault.Gone, "output %.80q is not expected any more", w.request.ID)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// problem is an agent's error, in bounded and plain words.
func problem(p *protocol.Problem) error {
	clip := func(s string) string { return plain(strings.ToValidUTF8(s[:min(len(s), maxText)], "")) }
	e := &fault.Error{Kind: fault.ParseKind(p.Kind), Message: clip(p.Detail), Hint: clip(p.Hint)}
	switch e.Kind {
	case fault.NotFound, fault.Conflict, fault.TooLarge, fault.Invalid:
	default:
		e.Kind = fault.Unavailable
	}
	return e
}

var _ engine.OutputFiles = (*Driver)(nil)
