package agent

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// searches are what the server wants of the output, at the same time.
type searches struct {
	find  func(ctx context.Context, w protocol.Wanted)
	under map[string]context.CancelFunc // by id; those that are done, too, until they are forgotten
	all   sync.WaitGroup
}

// told is what the server wants now: what it has forgotten ends.
func (s *searches) told(ctx context.Context, wanted []protocol.Wanted) {
	for id, cancel := range s.under {
		if !slices.ContainsFunc(wanted, func(w protocol.Wanted) bool { return w.ID == id }) {
			cancel()
			delete(s.under, id)
		}
	}
	for _, w := range wanted {
		if s.under[w.ID] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		s.under[w.ID] = cancel
		s.all.Go(func() { s.find(ctx, w) })
	}
}

// end waits for all, which end at once.
func (s *searches) end() {
	for _, cancel := range s.under {
		cancel()
	}
	s.all.Wait()
}

// find answers what the server wants of the output.
func (a *agent) find(ctx context.Context, w protocol.Wanted) {
	found := protocol.Found{ID: w.ID}
	err := a.found(ctx, w, &found)
	if ctx.Err() != nil || err == nil && found.Listing == nil {
		return // nobody waits, or the file was sent
	}
	if err != nil {
		found.Problem = &protocol.Problem{Kind: fault.KindOf(err).String(), Detail: err.Error(), Hint: fault.HintOf(err)}
	}
	if err := a.c.retry(ctx, func(ctx context.Context) error { return a.c.found(ctx, found) }); err != nil && ctx.Err() == nil {
		a.say("reporting the content of the output: %v", err)
	}
}

// found lists into found, or sends a file.
func (a *agent) found(ctx context.Context, w protocol.Wanted, found *protocol.Found) error {
	a.mu.Lock()
	ready := a.sender != nil // the mounts are here
	a.mu.Unlock()
	i := -1
	if ready {
		i = slices.IndexFunc(a.places, func(p place) bool { return p.Role == protocol.RoleOutput })
	}
	if i < 0 {
		return fault.New(fault.Conflict, "worker %d has no output yet", a.index).WithHint("Try again later.")
	}
	name, err := outputdir.Clean(w.Path)
	if err != nil {
		return err
	}
	root, err := outputdir.OpenDir(a.places[i].here)
	if err != nil {
		return err
	}
	defer root.Close()
	if w.Most == 0 {
		l, err := outputdir.List(ctx, root, name)
		found.Listing = &l
		return err
	}
	f, err := outputdir.Open(root, name, w.Most)
	if err != nil {
		return err
	}
	defer f.Close()
	return a.c.file(ctx, w.ID, f)
}

func (c *client) found(ctx context.Context, f protocol.Found) error {
	_, err := c.post(ctx, "output", f, &struct{}{})
	return err
}

// file streams a file of the output to the server, which is told its size before.
func (c *client) file(ctx context.Context, id string, f outputdir.Opened) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := newStall(cancel)
	defer watch.stop()
	query := url.Values{"id": {id}}
	resp, err := c.sized(ctx, http.MethodPut, "output", query, watch.reader(f), f.Size)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return cut(ctx, err)
}
