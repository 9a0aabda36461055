package feature

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// Compaction has three parts, each of which may be cut short at any line and goes on in the
// next round; reads and writes go on meanwhile.
//
// Rows are written under subkeys of the view's key. When a subkey has its age, the
// view gets the next one: from then on rows are written under it and answered from both.
// After the pause in which reads of before end, rows are moved step by step, and when none
// is left the former subkey is used no more.
//
//	(subkey n) ── Rotate ──▶ (n+1, former n) ── nothing is under n ──▶ (n+1)
//
// Rows that answer no read of the last Compaction.History or later are removed. In the round
// before the first one goes the view's record says so: reads of an older time are refused,
// and those that were admitted have ended by then.
//
// Tables that no record names for a day, such as those of a view whose key was destroyed,
// are dropped.

// Compaction configures the rotation of subkeys and the expiry of online rows.
type Compaction struct {
	// Rotate is the age at which a view's subkey is followed by the next; 0: never.
	Rotate time.Duration
	// History is how long reads as of a past time go back; 0: for ever, and no row is
	// removed for its age.
	History time.Duration
	// Rate is the number of row versions inspected per second: 20,000 when 0.
	Rate int
}

const compactionInterval = time.Hour

func (t Compaction) withDefaults() Compaction {
	if t.Rate <= 0 {
		t.Rate = 20_000
	}
	return t
}

// CompactionStats counts the work of compaction since the process started.
type CompactionStats struct {
	Moved   int64 // versions of rows that are under another subkey now
	Swept   int64 // expired versions of rows removed
	Dropped int64 // tables of generations that are read no more
	Orphans int64 // tables that no record named
}

type compactionCounters struct{ moved, swept, dropped, orphans atomic.Int64 }

// OnlineRows looks after what is online: it names the online store, compacts rows, and
// removes rows of replaced generations and copies that may not be there.
type OnlineRows struct {
	*core
	copying   *lifecycle.Loop // removes copies that may not be there
	compactor *lifecycle.Loop
	compacted compactionCounters

	mu      sync.Mutex
	orphans map[online.TableKey]time.Time // tables that no record names, since when
}

func newOnlineRows(c *core) *OnlineRows {
	s := &OnlineRows{core: c}
	s.compactor = &lifecycle.Loop{
		Name: "feature compaction", Every: compactionInterval, Logger: s.log, Timeout: 7 * 24 * time.Hour, // steps are small, and begin again
		Run: func(ctx context.Context) error { return s.CompactOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	s.copying = &lifecycle.Loop{
		Name: "feature copies", Every: copiesPause, Logger: s.log, Timeout: time.Hour, // what was removed stays so
		Run: func(ctx context.Context) error {
			return s.RemoveStaleCopies(identity.With(ctx, identity.Loop("feature")))
		},
	}
	return s
}

// Compacting moves online rows to new subkeys and removes those that answer nobody, as
// Config.Compaction says.
func (s *OnlineRows) Compacting() lifecycle.Service { return s.compactor.Service() }

// Copying removes copies that may not be there any more; it is for an online store that
// may have some, whether it is configured to make them or not.
func (s *OnlineRows) Copying() lifecycle.Service { return s.copying.Service() }

// CompactionStats counts the work of compaction since the process started.
func (s *OnlineRows) CompactionStats() CompactionStats {
	return CompactionStats{Moved: s.compacted.moved.Load(), Swept: s.compacted.swept.Load(), Dropped: s.compacted.dropped.Load(), Orphans: s.compacted.orphans.Load()}
}

// CompactOnce goes through the online store once; the background loop calls it, and tests
// do. A view that cannot be compacted holds up no other.
func (s *OnlineRows) CompactOnce(ctx context.Context) error {
	if !s.cfg.Online.Compacts() {
		return nil
	}
	var all []Online
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.onlineStore.Onlines(ctx, tx, "")
		return err
	}); err != nil {
		return err
	}
	var failed []error
	for _, o := range all {
		for _, do := range []func(ctx context.Context, o Online) error{s.rotate, s.sweepRows} {
			err := do(ctx, o)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil && !fault.Is(err, fault.Gone) { // of a destroyed key there are orphans
				failed = append(failed, fault.Wrap(err, "compacting the online rows of %s in project %s", o.ref(), o.Project))
			}
		}
	}
	return errors.Join(append(failed, s.sweepOrphans(ctx))...)
}

// pause keeps to the rate.
func (s *OnlineRows) pause(ctx context.Context, step online.Step) error {
	wait := time.Duration(step.Looked) * time.Second / time.Duration(s.cfg.Compaction.Rate)
	if wait < time.Millisecond {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// rotate does what is next on a view's way to the next subkey.
func (s *OnlineRows) rotate(ctx context.Context, o Online) error {
	age := s.now().Sub(o.RotatedAt)
	switch {
	case o.Former != o.Subkey && age < staleAge:
		return nil // reads that began before look under the former one only
	case o.Former != o.Subkey:
		return s.moveRows(ctx, o)
	case o.RotatedAt.IsZero(): // it is of an older release: its age begins now
		return s.change(ctx, o, func(_ context.Context, _ *store.Tx, now *Online) error {
			now.RotatedAt = store.At(s.now()).Time()
			return nil
		})
	case s.cfg.Compaction.Rotate <= 0 || age < s.cfg.Compaction.Rotate:
		return nil
	}
	return s.change(ctx, o, func(ctx context.Context, tx *store.Tx, now *Online) error {
		runs, err := s.runStore.Runs(ctx, tx, o.Project, o.View, o.Version, "", 1)
		if err != nil || len(runs) > 0 && !runs[0].State.Ended() {
			return err // it writes under this one
		}
		now.Subkey, now.RotatedAt = now.Subkey+1, store.At(s.now()).Time()
		return s.auditSubkey(ctx, tx, now, "rows are written under another subkey")
	})
}

// change makes a change to a view's record unless its subkeys are others by now.
func (s *OnlineRows) change(ctx context.Context, o Online, do func(ctx context.Context, tx *store.Tx, now *Online) error) error {
	return s.cfg.DB.Update(ctx, string(o.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.onlineStore.Online(ctx, tx, o.Project, o.View, o.Version)
		if fault.Is(err, fault.NotFound) || err == nil && (now.Subkey != o.Subkey || now.Former != o.Former) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(ctx, tx, &now); err != nil {
			return err
		}
		tx.OnCommit(s.plans.forget)
		return s.onlineStore.PutOnline(ctx, tx, now)
	})
}

func (s *OnlineRows) auditSubkey(ctx context.Context, tx *store.Tx, o *Online, phase string) error {
	return audit.Append(ctx, tx, audit.Entry{
		Project: string(o.Project), Action: string(ActionMaterialise), Object: objectKind + " view " + o.ref(),
		Detail: map[string]any{"phase": phase, "subkey": o.Subkey},
	})
}

// moveRows brings a view's rows under the newest subkey, and gives up the former one
// when nothing is under it.
func (s *OnlineRows) moveRows(ctx context.Context, o Online) error {
	left := false
	for _, table := range o.tables() {
		for at, done := (online.Mark{}), false; !done; {
			step, stays, err := s.cfg.Online.Move(ctx, table, at)
			if err != nil {
				return err
			}
			s.compacted.moved.Add(int64(step.Changed))
			left = left || stays || step.Looked > 0
			if err := s.pause(ctx, step); err != nil {
				return err
			}
			at, done = step.Next, step.Done
		}
	}
	if left {
		return nil // the next round sees whether this was all
	}
	return s.change(ctx, o, func(ctx context.Context, tx *store.Tx, now *Online) error {
		if now.Generation != o.Generation || now.Pushed != o.Pushed {
			return nil
		}
		now.Former = now.Subkey
		return s.auditSubkey(ctx, tx, now, "no row is under the subkey before")
	})
}

// sweepRows removes a view's rows that answer no time whose history was kept in the
// round before, and says what is kept from now on.
func (s *OnlineRows) sweepRows(ctx context.Context, o Online) error {
	if s.cfg.Compaction.History <= 0 {
		return nil
	}
	var v View
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.definitionStore.Definition(ctx, tx, o.Project, ViewKind, o.View, o.Version)
		if err == nil {
			v, err = d.view()
		}
		return err
	}); err != nil {
		return err
	}
	removed := int64(0)
	for _, table := range o.tables() {
		for at, done := (online.Mark{}), o.HistorySince.IsZero(); !done; {
			step, err := s.cfg.Online.Sweep(ctx, table, v.expiryRule(o.HistorySince), at)
			if err != nil {
				return err
			}
			removed += int64(step.Changed)
			s.compacted.swept.Add(int64(step.Changed))
			if err := s.pause(ctx, step); err != nil {
				return err
			}
			at, done = step.Next, step.Done
		}
	}
	if removed > 0 {
		s.log.InfoContext(ctx, "removed expired versions of online rows", slog.String("project", string(o.Project)), slog.String("view", o.ref()), slog.Int64("rows", removed))
	}
	// Of the next round.
	since := store.At(s.now().Add(-s.cfg.Compaction.History)).Time()
	return s.cfg.DB.Update(ctx, string(o.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.onlineStore.Online(ctx, tx, o.Project, o.View, o.Version)
		if err != nil || !now.HistorySince.Before(since) {
			if fault.Is(err, fault.NotFound) {
				err = nil
			}
			return err
		}
		now.HistorySince = since
		tx.OnCommit(s.plans.forget)
		return s.onlineStore.PutOnline(ctx, tx, now)
	})
}

// expiryRule says which of the view's rows answer no read as of a time or later.
func (v View) expiryRule(since time.Time) online.Rule {
	r := online.Rule{Since: since.UnixMicro(), Keep: v.ttl().Microseconds(), Expires: v.ttl() > 0}
	if p := v.windows(); p != nil {
		r.Keep, r.Windows = max(r.Keep, p.Reach()), true
	}
	return r
}

// orphanAge is how long this process has to see that no record names a table, which is
// so also while somebody has started it on the wrong database.
const orphanAge = 24 * time.Hour

// sweepOrphans drops tables that no record names.
func (s *OnlineRows) sweepOrphans(ctx context.Context) error {
	orphans, err := s.cfg.Online.Orphans(ctx, func() ([]online.TableKey, error) { return s.namedTables(ctx) })
	if err != nil {
		return fault.Wrap(err, "searching for orphaned online rows")
	}
	for _, t := range s.aged(orphans) {
		if err := s.cfg.Online.DropOrphan(ctx, t); err != nil {
			return fault.Wrap(err, "dropping orphaned online rows")
		}
		s.compacted.orphans.Add(1)
	}
	return nil
}

// aged are the orphans that are old enough; the others are remembered.
func (s *OnlineRows) aged(orphans []online.TableKey) (old []online.TableKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[online.TableKey]time.Time{}
	for _, t := range orphans {
		since, known := s.orphans[t]
		if !known {
			since = s.now()
		}
		if seen[t] = since; s.now().Sub(since) >= orphanAge {
			old = append(old, t)
		}
	}
	s.orphans = seen
	return old
}

// namedTables are all tables that a record names and that can be read. Error:
// fault.Exhausted when there are too many records to know all of them.
func (s *OnlineRows) namedTables(ctx context.Context) ([]online.TableKey, error) {
	var tables []online.Table
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		tables = nil
		all, err := s.onlineStore.Onlines(ctx, tx, "")
		if err != nil {
			return err
		}
		subkeys := map[string]int{}
		for _, o := range all {
			tables = append(tables, o.tables()...)
			subkeys[o.watch()] = o.Subkey
		}
		runs, err := s.runStore.OpenRuns(ctx, tx, openRuns)
		if err != nil {
			return err
		}
		for _, r := range runs {
			o := Online{Project: r.Project, View: r.View, Version: r.Version}
			o.Subkey = max(subkeys[o.watch()], firstSubkey)
			tables = append(tables, o.at(r.Generation))
		}
		stales, err := s.onlineStore.Stales(ctx, tx, s.now().Add(staleAge), openRuns)
		if err != nil {
			return err
		}
		for _, g := range stales {
			tables = append(tables, g.table())
		}
		if len(runs) == openRuns || len(stales) == openRuns {
			return fault.New(fault.Exhausted, "there are %d materialisations or replaced generations, the limit: the cleanup is retried when there are fewer", openRuns)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var keys []online.TableKey
	for _, t := range tables {
		of, err := s.cfg.Online.TableKeys(ctx, t)
		if fault.Is(err, fault.Gone) {
			continue // nobody can read it
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, of...)
	}
	return keys, nil
}
