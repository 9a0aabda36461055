package remote

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// Hub is where the agents of an engine's workloads report. Safe for concurrent
// use. Errors of all methods: fault.NotFound for a workload that it does not
// have, fault.Conflict for a member that is not the one that joined, fault.Gone
// when the workload is over, fault.Invalid.
type Hub struct{ d *Driver }

const (
	longPoll  = 20 * time.Second // of a join; proxies in between have patience for it
	maxFacts  = 64
	maxText   = 1 << 10
	maxPiece  = 4 << 20 // of a log
	maxNotes  = 16
	maxWaited = 5 * time.Second // of a beat
)

// Join takes a member in; it waits a while for the others. Without an order the
// member joins again.
func (h *Hub) Join(ctx context.Context, id string, j protocol.Join) (*protocol.Order, protocol.Waiting, error) {
	none := protocol.Waiting{}
	w, err := h.d.find(engine.Handle(id))
	if err != nil {
		return nil, none, err
	}
	if err := checkJoin(w, j); err != nil {
		if fault.Is(err, fault.Unsupported) {
			h.unfit(w, j, err)
		}
		return nil, none, err
	}
	until := time.NewTimer(longPoll)
	defer until.Stop()
	for {
		order, waiting, changed, err := h.take(w, j)
		if err != nil || order != nil {
			return order, waiting, err
		}
		select {
		case <-changed:
		case <-until.C:
			return nil, waiting, nil
		case <-ctx.Done():
			return nil, waiting, ctx.Err()
		case <-h.d.down:
			return nil, waiting, fault.New(fault.Unavailable, "the engine is shutting down")
		}
	}
}

// otherRelease is what to do about agents that cannot take an order.
const otherRelease = "Install the falaj-worker of this server's release on the nodes."

func checkJoin(w *work, j protocol.Join) error {
	switch {
	case j.Version > protocol.Version || j.Version < protocol.Version-1:
		return fault.New(fault.Unsupported, "the agent speaks protocol %d, this server %d and %d", j.Version, protocol.Version, protocol.Version-1).WithHint(otherRelease)
	case j.Version < protocol.Secrets && w.spec.Secrets:
		return fault.New(fault.Unsupported, "the agent speaks protocol %d and secrets need %d", j.Version, protocol.Secrets).WithHint(otherRelease)
	case j.Index < 0 || j.Index >= len(w.members):
		return fault.New(fault.Invalid, "workload %s has no worker %d: it has %d", w.id, j.Index, len(w.members))
	case len(j.Start) < 8 || len(j.Start) > 64:
		return fault.New(fault.Invalid, "a start identifier of %d bytes is invalid", len(j.Start))
	case len(j.Node) > 255 || len(j.Address) > 255 || strings.ContainsAny(j.Address, " ,/") || len(j.Interface) > 64,
		garbled(j.Node), garbled(j.Address), garbled(j.Interface):
		return fault.New(fault.Invalid, "the node's name or address is invalid")
	case j.Port < 0 || j.Port > 65535:
		return fault.New(fault.Invalid, "%d is not a port", j.Port)
	case len(j.Facts) > maxFacts:
		return fault.New(fault.TooLarge, "more than %d facts of a node", maxFacts)
	}
	for k, v := range j.Facts {
		if len(k) > maxText || len(v) > maxText {
			return fault.New(fault.TooLarge, "a fact of the node is longer than %d bytes", maxText)
		}
		if garbled(k) || garbled(v) {
			return fault.New(fault.Invalid, "fact %.80q of the node is not plain text", k)
		}
	}
	return nil
}

// unfit ends a workload that has not begun for an agent that cannot take its order:
// another one for that worker will not come.
func (h *Hub) unfit(w *work, j protocol.Join, why error) {
	done, err := h.d.writing()
	if err != nil {
		return
	}
	defer done()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Stop != nil || w.state.Final != nil || !w.state.Begun.IsZero() || j.Index < 0 || j.Index >= len(w.members) || w.members[j.Index].joined() {
		return
	}
	who := fmt.Sprintf("worker %d", j.Index)
	if j.Node != "" && len(j.Node) <= 255 && !garbled(j.Node) {
		who += " on " + j.Node
	}
	st := &stop{At: h.d.c.Now().UTC(), Grace: w.spec.Grace, Why: fmt.Sprintf("%s: %s. %s", who, why, otherRelease)}
	st.Cause = &engine.Status{State: engine.Ended, Reason: engine.NotStarted, ExitCode: -1, Message: st.Why}
	w.state.Stop = st
	if err := w.save(); err != nil {
		w.state.Stop = nil
		return // its next try, or its end, says so
	}
	w.notify()
	h.d.nudge()
}

// garbled reports what no name has: control characters would reach terminals,
// and PostgreSQL takes no zero byte.
func garbled(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// plain is a text of a worker without control characters but ends of lines and
// tabs.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// take records a member, and gives its order when all have come.
func (h *Hub) take(w *work, j protocol.Join) (*protocol.Order, protocol.Waiting, <-chan struct{}, error) {
	waiting := protocol.Waiting{Of: len(w.members)}
	done, err := h.d.writing()
	if err != nil {
		return nil, waiting, nil, err
	}
	defer done()
	w.mu.Lock()
	defer w.mu.Unlock()
	m, now := w.members[j.Index], h.d.c.Now()
	switch {
	case m.joined() && m.Join.Start != j.Start:
		return nil, waiting, nil, fault.New(fault.Conflict, "worker %d of %s was already started on %s, and it cannot run twice", j.Index, w.id, m.Join.Node)
	case w.state.Final != nil:
		return nil, waiting, nil, fault.New(fault.Gone, "workload %s has ended", w.id)
	case m.over():
		return nil, waiting, nil, fault.New(fault.Gone, "worker %d of %s has ended", j.Index, w.id)
	case w.state.Stop != nil && w.state.Begun.IsZero():
		return nil, waiting, nil, fault.New(fault.Gone, "workload %s is stopping: %s", w.id, w.state.Stop.Why)
	}
	m.heard = now
	if !m.joined() {
		m.Join, m.Joined = j, now.UTC()
		if err := w.saveMember(j.Index); err != nil {
			m.Join, m.Joined = protocol.Join{}, time.Time{}
			return nil, waiting, nil, err
		}
		h.d.c.Log.Info("a worker has joined", slog.String("workload", w.id), slog.Int("worker", j.Index), slog.String("node", j.Node))
		w.notify()
	}
	missing := w.missing()
	waiting.Joined = len(w.members) - missing
	if missing > 0 {
		return nil, waiting, w.changed, nil
	}
	if w.state.Begun.IsZero() {
		w.state.Begun = now.UTC()
		if err := w.save(); err != nil {
			w.state.Begun = time.Time{}
			return nil, waiting, nil, err
		}
		w.notify()
	}
	o := w.order(j.Index, j.Version)
	return &o, waiting, nil, nil
}

// sender is the member that sent a request.
type sender struct {
	index int
	start string
}

// member finds the work and checks that the sender is the member that joined.
// It is a sign of life.
func (h *Hub) member(id string, s sender) (*work, *member, error) {
	w, err := h.d.find(engine.Handle(id))
	if err != nil {
		return nil, nil, err
	}
	if s.index < 0 || s.index >= len(w.members) {
		return nil, nil, fault.New(fault.Invalid, "workload %s has no worker %d: it has %d", id, s.index, len(w.members))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.members[s.index]
	if !m.joined() || m.Join.Start != s.start {
		return nil, nil, fault.New(fault.Conflict, "another worker %d of %s has joined, and it cannot run twice", s.index, id)
	}
	m.heard = h.d.c.Now()
	return w, m, nil
}

// open is member for what changes something: not once it is over.
func (h *Hub) open(id string, s sender) (*work, error) {
	w, _, err := h.member(id, s)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Final != nil || w.finish {
		return nil, fault.New(fault.Gone, "workload %s has ended", id)
	}
	return w, nil
}

// mount writes a mount as a tar stream.
func (h *Hub) mount(id string, s sender, n int, to io.Writer) error {
	w, err := h.open(id, s)
	if err != nil {
		return err
	}
	m, err := w.mirrored(n)
	if err != nil {
		return err
	}
	if m.Role == engine.Output {
		return fault.New(fault.Invalid, "mount %d of %s is for output: there is nothing to fetch", n, id)
	}
	return archive.Pack(to, m.Path, func(name string) bool { return m.Role == engine.Checkpoints && settled.Unfinished(name) })
}

// log takes a piece of a member's output.
func (h *Hub) log(id string, s sender, offset int64, last bool, r io.Reader) (protocol.Reached, error) {
	w, err := h.open(id, s)
	if err != nil {
		return protocol.Reached{}, err
	}
	if offset < 0 {
		return protocol.Reached{}, fault.New(fault.Invalid, "log offset %d is negative", offset)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxPiece+1))
	if err != nil {
		return protocol.Reached{}, fault.New(fault.Invalid, "reading a piece of the log: %w", err)
	}
	if len(b) > maxPiece {
		return protocol.Reached{}, fault.New(fault.TooLarge, "a piece of the log is longer than %d bytes", maxPiece)
	}
	done, err := h.d.writing()
	if err != nil {
		return protocol.Reached{}, err
	}
	defer done()
	reached, err := w.log.append(s.index, offset, b, last)
	return protocol.Reached{Offset: reached}, err
}

// beat takes a sign of life and answers with the news, for which it waits a
// while.
func (h *Hub) beat(ctx context.Context, id string, s sender, b protocol.Beat) (protocol.Instructions, error) {
	w, m, err := h.member(id, s)
	if err != nil {
		return protocol.Instructions{}, err
	}
	if len(b.None) > maxFacts || len(b.Notes) > maxNotes || len(b.Usage.Accelerators) > 256 {
		return protocol.Instructions{}, fault.New(fault.TooLarge, "a heartbeat has too much data")
	}
	if b.CPU < 0 || b.PeakRSS < 0 {
		return protocol.Instructions{}, fault.New(fault.Invalid, "a worker reports negative usage")
	}
	for i, n := range b.Notes {
		b.Notes[i] = plain(strings.ToValidUTF8(n[:min(len(n), maxText)], ""))
	}
	done, err := h.d.writing()
	if err != nil {
		return protocol.Instructions{}, err
	}
	w.mu.Lock()
	m.beat = b
	if len(b.None) > 0 {
		asked := w.asked(s.index)
		for _, name := range b.None { // of others there is nothing to remember
			if slices.Contains(asked, name) {
				m.none[name] = true
			}
		}
		h.complete(ctx, w)
	}
	w.mu.Unlock()
	done()
	until := time.NewTimer(min(max(b.Wait, 0), maxWaited))
	defer until.Stop()
	for waited := b.Wait <= 0; ; {
		w.mu.Lock()
		orders, news := w.instructions(s.index)
		changed := w.changed
		w.mu.Unlock()
		if news || waited {
			return orders, nil
		}
		select {
		case <-changed:
		case <-until.C:
			waited = true
		case <-h.d.down:
			waited = true
		case <-ctx.Done():
			return orders, ctx.Err()
		}
	}
}

// instructions is the answer to a member's heartbeat; news reports that it has something that
// the member was not sent before. The caller holds mu.
func (w *work) instructions(index int) (t protocol.Instructions, news bool) {
	switch st := w.state.Stop; {
	case w.state.Final != nil:
		t.Stop, t.Why = true, "the workload has ended"
	case st != nil:
		t.Stop, t.Grace, t.Why = true, st.Grace, st.Why
	}
	t.Asked = w.asked(index)
	m := w.members[index]
	news = t.Stop || !slices.Equal(t.Asked, m.asked)
	if l := w.looks[index]; l != nil {
		t.Profile, news, l.sent = &l.request, news || !l.sent, true
	}
	for _, asked := range w.wanted[index] {
		t.Wanted, news, asked.sent = append(t.Wanted, asked.request), news || !asked.sent, true
	}
	m.asked = t.Asked
	return t, news
}

// end takes a member's end.
func (h *Hub) end(ctx context.Context, id string, s sender, e protocol.End) error {
	w, m, err := h.member(id, s)
	if err != nil {
		return err
	}
	if err := checkEnd(e); err != nil {
		return err
	}
	e.Message, e.Signal = plain(e.Message), plain(e.Signal)
	done, err := h.d.writing()
	if err != nil {
		return err
	}
	defer done()
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.over() || w.state.Final != nil {
		return nil // the end was reported before, or is too late
	}
	if err := w.log.sync(); err != nil {
		return fault.New(fault.Exhausted, "storing the log: %w", err)
	}
	now := h.d.c.Now()
	m.End, m.Ended = &e, now.Add(-e.Ago).UTC()
	if m.Ended.Before(w.state.Begun) {
		m.Ended = w.state.Begun
	}
	if err := w.saveMember(s.index); err != nil {
		m.End, m.Ended = nil, time.Time{}
		return err
	}
	h.d.c.Log.InfoContext(ctx, "a worker has ended", slog.String("workload", w.id), slog.Int("worker", s.index), slog.String("how", words(&e)))
	w.notify()
	h.complete(ctx, w)
	h.d.advance(w, now)
	h.d.nudge()
	return nil
}

func checkEnd(e protocol.End) error {
	switch engine.Reason(e.Reason) {
	case engine.Exited, engine.Signalled, engine.TimedOut, engine.Stopped, engine.OutOfMemory, engine.NotStarted:
	default:
		return fault.New(fault.Invalid, "%.40q is not an end of a worker", e.Reason)
	}
	if len(e.Message) > 16<<10 || len(e.Signal) > 32 {
		return fault.New(fault.TooLarge, "the message of a worker's end is too long")
	}
	if e.Ago < 0 || e.Ran < 0 || e.CPU < 0 || e.PeakRSS < 0 {
		return fault.New(fault.Invalid, "a worker reports negative usage")
	}
	return nil
}
