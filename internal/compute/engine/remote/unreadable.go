package remote

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
)

// unreadable is a workload with a directory that cannot be read, such as one of another version. It
// is unknown, not lost: while the engine holds its launch nothing else may start for it.
// Its agents get the answer that the server is unavailable, so they run until their lease ends.
type unreadable struct {
	id   string
	err  error
	gone time.Time // since when the engine says that it is over, by Config.Now
	mu   sync.Mutex
}

func (u *unreadable) words(name string) string {
	return fmt.Sprintf("its record on engine %s cannot be read (%v): its state is unknown, and it is not started again while the engine runs it. "+
		"Repair the record and restart the server, or cancel it", name, u.err)
}

// unreadable finds one by its handle; nil is none.
func (d *Driver) unreadable(h engine.Handle) *unreadable {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread[string(h)]
}

// ended asks the engine whether the launch is over, which it has to say for the settle time.
func (d *Driver) ended(ctx context.Context, u *unreadable) (st engine.Status, over bool, err error) {
	seen, err := d.c.Launcher.Observe(ctx, []string{u.id})
	if err != nil {
		return st, false, err
	}
	o := seen[u.id]
	st = engine.Status{State: engine.Running, Started: o.Started, Isolated: d.c.Isolation, Message: u.words(d.c.Name)}
	now := d.c.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case o.State != engine.Ended && o.State != engine.Lost:
		u.gone = time.Time{}
		return st, false, nil
	case u.gone.IsZero():
		u.gone = now
	}
	if now.Sub(u.gone) < d.c.Settle {
		return st, false, nil
	}
	st.State, st.ExitCode, st.Ended = engine.Lost, -1, now.UTC()
	st.Message = fmt.Sprintf("its record on engine %s cannot be read (%v), and the engine runs it no more", d.c.Name, u.err)
	return st, true, nil
}

// await waits for the end of one that cannot be read. An engine that does not answer has not
// said that it is over.
func (d *Driver) await(ctx context.Context, u *unreadable) (engine.Status, error) {
	tick := time.NewTicker(d.c.Poll)
	defer tick.Stop()
	for {
		if st, over, err := d.ended(ctx, u); err == nil && over {
			return st, nil
		}
		select {
		case <-ctx.Done():
			return engine.Status{}, ctx.Err()
		case <-d.down:
			return engine.Status{}, fault.New(fault.Unavailable, "engine %s is shutting down", d.c.Name)
		case <-tick.C:
		}
	}
}

// adopt decides what a Start means for a workload that cannot be read: when the engine holds
// its launch it was started already; otherwise its directory goes, and it starts anew.
func (d *Driver) adopt(ctx context.Context, u *unreadable) (started bool, err error) {
	held, err := d.c.Launcher.List(ctx)
	if err != nil {
		return false, fault.Wrap(err, "asking whether %s runs, whose record cannot be read", u.id)
	}
	if slices.Contains(held, u.id) {
		return true, nil
	}
	d.discard(u)
	return false, nil
}

func (d *Driver) discard(u *unreadable) {
	d.mu.Lock()
	delete(d.unread, u.id)
	d.mu.Unlock()
	_ = os.RemoveAll(filepath.Join(d.c.Dir, u.id))
}
