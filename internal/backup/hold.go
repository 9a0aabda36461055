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

// Held is a driver of objects of which a backup that is under way still gets what
// somebody removes or replaces: that is copied first. It adds nothing else. Safe for
// concurrent use.
type Held struct {
	blob.Driver
	keeps atomic.Pointer[keeper]
}

// Hold makes one.
func Hold(d blob.Driver) *Held { return &Held{Driver: d} }

// Put implements blob.Driver.
func (h *Held) Put(ctx context.Context, key blob.Key, body io.Reader) error {
	if k := h.keeps.Load(); k != nil {
		k.before(key, true)
	}
	return h.Driver.Put(ctx, key, body)
}

// Delete implements blob.Driver.
func (h *Held) Delete(ctx context.Context, key blob.Key) error {
	if k := h.keeps.Load(); k != nil {
		k.before(key, false)
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
		return time.Time{}, fault.New(fault.Unsupported, "this store does not know when objects were written")
	}
	return d.Written(ctx, key)
}

// keeper has what there was at the moment of a backup saved: in turn, by who walks
// through it, or earlier, when it is about to go. What was under way at the moment
// itself may have had its effect or not, as when a server is killed.
type keeper struct {
	mu sync.Mutex // held while an object is copied: who removes it waits
	// save copies an object. Error: fault.NotFound when there is none.
	save  func(key blob.Key) error
	early map[blob.Key]bool // saved before their turn
	fresh map[blob.Key]bool // younger than the moment
	done  map[blob.Key]bool // those whose turn was; nil when they come in order
	at    blob.Key          // the last one whose turn was, in order
	ended bool
	err   error // what the backup fails with
}

func newKeeper(ordered bool, save func(key blob.Key) error) *keeper {
	k := &keeper{save: save, early: map[blob.Key]bool{}, fresh: map[blob.Key]bool{}}
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

// before saves an object that somebody is about to remove, or to put another one in the
// place of. It never fails: the backup does.
func (k *keeper) before(key blob.Key, put bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended || k.err != nil || k.early[key] || k.fresh[key] || k.passed(key) {
		return
	}
	switch err := k.save(key); {
	case err == nil:
		k.early[key] = true
	case !fault.Is(err, fault.NotFound):
		k.err = err
	case put && len(k.fresh) < maxFresh:
		k.fresh[key] = true
	}
}

// turn saves an object unless that was done, or it is younger than the moment.
func (k *keeper) turn(key blob.Key, save func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	if k.done != nil {
		k.done[key] = true
	} else {
		k.at = key
	}
	if k.early[key] || k.fresh[key] {
		return nil
	}
	err := save()
	if fault.Is(err, fault.NotFound) { // whoever removed it did not go through us
		return nil
	}
	return err
}

// end lets go, and says what went wrong meanwhile.
func (k *keeper) end() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended, k.early, k.fresh, k.done = true, nil, nil, nil
	return k.err
}
