package backup

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Held is a driver of objects that lets a running backup copy an object before it is
// removed or replaced. It adds nothing else. Safe for concurrent use.
type Held struct {
	blob.Driver
	keeps atomic.Pointer[keeper]
}

// Hold wraps a driver.
func Hold(d blob.Driver) *Held { return &Held{Driver: d} }

// Put implements blob.Driver.
func (h *Held) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	if k := h.keeps.Load(); k != nil {
		if err := k.before(ctx, key, true); err != nil {
			return err
		}
	}
	return h.Driver.Put(ctx, key, body)
}

// Delete implements blob.Driver.
func (h *Held) Delete(ctx context.Context, key blob.Key) error {
	if k := h.keeps.Load(); k != nil {
		if err := k.before(ctx, key, false); err != nil {
			return err
		}
	}
	return h.Driver.Delete(ctx, key)
}

// Written is when an object was put, as far as the driver knows. Errors:
// fault.NotFound; fault.Unsupported.
func (h *Held) Written(ctx context.Context, key blob.Key) (time.Time, error) {
	d, ok := h.Driver.(interface {
		Written(ctx context.Context, key blob.Key) (time.Time, error)
	})
	if !ok {
		return time.Time{}, fault.New(fault.Unsupported, "this store does not record when objects were written")
	}
	return d.Written(ctx, key)
}

// keeper saves the objects that existed at the snapshot of a backup: in order, by the walk
// over all objects, or earlier, before an object is removed. An operation in progress at the
// snapshot may have had its effect or not, as when a server is killed.
type keeper struct {
	ctx context.Context // of the one backup
	// save copies an object. Error: fault.NotFound when there is none.
	save func(key blob.Key) error
	all  sync.WaitGroup // what is saved before its turn

	mu     sync.Mutex                 // never held while something is copied
	saving map[blob.Key]chan struct{} // those that are copied now, each closed when that is over
	early  map[blob.Key]bool          // saved before their turn
	fresh  map[blob.Key]bool          // younger than the moment
	done   map[blob.Key]bool          // those whose turn was; nil when they come in order
	at     blob.Key                   // the last one whose turn was, in order
	ended  bool
	err    error // what the backup fails with
}

func newKeeper(ctx context.Context, ordered bool, save func(key blob.Key) error) *keeper {
	k := &keeper{ctx: ctx, save: save, saving: map[blob.Key]chan struct{}{}, early: map[blob.Key]bool{}, fresh: map[blob.Key]bool{}}
	if !ordered {
		k.done = map[blob.Key]bool{}
	}
	return k
}

// maxFresh bounds those that are remembered; others are saved though nothing cites them.
const maxFresh = 1 << 20

func (k *keeper) passed(key blob.Key) bool {
	if k.done != nil {
		return k.done[key]
	}
	return k.at != "" && key <= k.at
}

// before saves an object that is about to be removed or replaced, and waits for that. A
// failure fails the backup; the only returned error is that of an ended ctx.
func (k *keeper) before(ctx context.Context, key blob.Key, put bool) error {
	for {
		copied, ours := k.begin(key, put)
		if copied == nil {
			return nil
		}
		select {
		case <-copied:
			if ours {
				return nil
			}
		case <-k.ctx.Done():
			return nil // there will be no backup
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "a backup copies %s before it is deleted: %w", key, context.Cause(ctx)).WithHint("Try again, or stop the backup; see falaj backup list.")
		}
	}
}

// begin starts to save an object ahead of the walk. It returns nil if the object need not be
// saved, else a channel that is closed at the end, and whether this call started it.
func (k *keeper) begin(key blob.Key, put bool) (copied chan struct{}, ours bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if copied := k.saving[key]; copied != nil {
		return copied, false
	}
	if k.ended || k.err != nil || k.early[key] || k.fresh[key] || k.passed(key) {
		return nil, false
	}
	copied = make(chan struct{})
	k.saving[key] = copied
	k.all.Go(func() {
		err := k.save(key)
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case err == nil:
			k.early[key] = true
		case !fault.Is(err, fault.NotFound):
			k.err = err
		case put && len(k.fresh) < maxFresh:
			k.fresh[key] = true
		}
		delete(k.saving, key)
		close(copied)
	})
	return copied, true
}

// turn saves an object in the order of the walk, unless it is already saved or later than the snapshot.
func (k *keeper) turn(key blob.Key, save func() error) error {
	k.mu.Lock()
	for k.saving[key] != nil {
		copied := k.saving[key]
		k.mu.Unlock()
		select {
		case <-copied:
		case <-k.ctx.Done():
			return fault.New(fault.Timeout, "the backup was stopped: %w", context.Cause(k.ctx))
		}
		k.mu.Lock()
	}
	err, skip := k.err, k.early[key] || k.fresh[key]
	if k.done != nil {
		k.done[key] = true
	} else {
		k.at = key
	}
	if err != nil || skip {
		k.mu.Unlock()
		return err
	}
	copied := make(chan struct{})
	k.saving[key] = copied
	k.mu.Unlock()
	err = save()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.saving, key)
	close(copied)
	if fault.Is(err, fault.NotFound) { // whoever removed it did not go through us
		return nil
	}
	return err
}

// end lets go, and says what went wrong meanwhile.
func (k *keeper) end() error {
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	k.all.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.early, k.fresh, k.done = nil, nil, nil
	return k.err
}
