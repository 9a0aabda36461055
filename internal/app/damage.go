package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// ObjectDamaged is the action of audit entries about objects that are not what was written.
const ObjectDamaged = "object.damaged"

const (
	damageAgain = time.Hour // between entries about the same object
	damageMost  = 10_000    // objects that are remembered
)

// damageLog records objects that were read and are damaged: in the audit journal, the
// server's log and a counter. Safe for concurrent use.
type damageLog struct {
	journal audit.Journal
	log     *slog.Logger

	mu    sync.Mutex
	told  map[blob.Key]time.Time
	count int64
}

// Count is how many reads came upon a damaged object.
func (d *damageLog) Count() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return float64(d.count)
}

// tell implements blob.Store.OnDamaged.
func (d *damageLog) tell(ctx context.Context, ref blob.Ref, err error) {
	now := time.Now()
	d.mu.Lock()
	d.count++
	again := now.Sub(d.told[ref.Key]) < damageAgain
	if !again {
		if len(d.told) >= damageMost {
			clear(d.told)
		}
		d.told[ref.Key] = now
	}
	d.mu.Unlock()
	if again {
		return
	}
	d.log.ErrorContext(ctx, "a stored object is damaged", slog.String("object", string(ref.Key)), slog.String("project", ref.Project), slog.Any("error", err))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := d.journal.Record(ctx, audit.Entry{
		Actor: identity.Loop("objects"), Project: ref.Project, Action: ObjectDamaged, Object: "object " + string(ref.Key), Reason: err.Error(),
		Detail: map[string]any{"reader": identity.From(ctx).String(), "owner": ref.Owner},
	}); err != nil {
		d.log.ErrorContext(ctx, "a damaged object could not be recorded", slog.Any("error", err))
	}
}
