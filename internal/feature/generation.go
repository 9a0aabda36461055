package feature

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

func newGeneration() Generation { return Generation(id.New("fog")) }

// sameInputs reports whether two sets of inputs have the same content, whatever
// their numbers are.
func sameInputs(a, b []InputRef) bool { return len(differing(a, b)) == 0 }

// differing lists the tables whose content differs, by name, each as in a and in
// b; a table that is missing on one side is empty there.
func differing(a, b []InputRef) [][2]InputRef {
	var out [][2]InputRef
	find := func(in []InputRef, table string) InputRef {
		if i := slices.IndexFunc(in, func(r InputRef) bool { return r.Table == table }); i >= 0 {
			return in[i]
		}
		return InputRef{}
	}
	for _, x := range a {
		if y := find(b, x.Table); y.Digest != x.Digest {
			out = append(out, [2]InputRef{x, y})
		}
	}
	for _, y := range b {
		if x := find(a, y.Table); x.Table == "" {
			out = append(out, [2]InputRef{x, y})
		}
	}
	slices.SortFunc(out, func(x, y [2]InputRef) int {
		return strings.Compare(max(x[0].Table, x[1].Table), max(y[0].Table, y[1].Table))
	})
	return out
}

// firstSubkey is that of a view's first rows. Older releases had none.
const firstSubkey = 1

// at is where the rows of a generation are.
func (o Online) at(g Generation) online.Table {
	return online.Table{Project: string(o.Project), View: o.View, Version: o.Version, Generation: string(g), Subkey: o.Subkey, Former: o.Former}
}

// table is where the rows that answer are, but for those that were pushed.
func (o Online) table() online.Table { return o.at(o.Generation) }

// tables are all whose rows answer.
func (o Online) tables() []online.Table {
	tables := []online.Table{o.table()}
	if o.Pushed != "" {
		tables = append(tables, o.at(o.Pushed))
	}
	return tables
}

// replaces refuses a run over other inputs that would leave less online than
// there is: only a run of everything takes the place of what is there.
func (s *Materialisation) replaces(ctx context.Context, tx *store.Tx, r Run) error {
	o, err := s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || sameInputs(o.Inputs, r.Inputs) {
		return err
	}
	until := o.Watermark.UTC().Format(time.RFC3339Nano)
	switch {
	case !r.From.IsZero():
		return fault.New(fault.Conflict, "the sources of %s differ from those of the online rows (%s)", r.ref(), changes(o.Inputs, r.Inputs)).
			WithHint("Materialise it without from, which recreates all rows.")
	case r.Until.Before(o.Watermark):
		return fault.New(fault.Conflict, "the sources of %s differ from those of the online rows (%s), which reach %s", r.ref(), changes(o.Inputs, r.Inputs), until).
			WithHint("Materialise it up to %s or later, or clear it first: falaj feature clear %s.", until, r.ref())
	}
	return nil
}

// changes says how inputs differ: "weather@1 → weather@2".
func changes(before, now []InputRef) string {
	var parts []string
	for _, d := range differing(before, now) {
		name := func(r InputRef) string {
			if r.Dataset == "" {
				return "unknown"
			}
			return r.Dataset
		}
		parts = append(parts, name(d[0])+" → "+name(d[1]))
	}
	return clipList(parts)
}

func (s *Materialisation) stale(o Online, g Generation) Stale {
	return Stale{Project: o.Project, View: o.View, Version: o.Version, Generation: g, Since: store.At(s.now()).Time(), Subkey: o.Subkey}
}

func (g Stale) table() online.Table {
	return online.Table{Project: string(g.Project), View: g.View, Version: g.Version, Generation: string(g.Generation), Subkey: g.Subkey, Former: g.Subkey}
}

// abandon marks the generation that a run wrote for removal, unless it is read.
func (s *Materialisation) abandon(ctx context.Context, tx *store.Tx, r *Run) error {
	if r.Generation == "" {
		return nil // nothing was written
	}
	o, err := s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if err == nil && o.Generation == r.Generation {
		return nil
	}
	if err != nil { // it was cleared; what has another subkey is found as an orphan
		o = Online{Project: r.Project, View: r.View, Version: r.Version, Subkey: firstSubkey}
	}
	return s.onlineStore.PutStale(ctx, tx, s.stale(o, r.Generation))
}

// staleAge is how long the rows of a replaced generation are kept for reads that started before.
const staleAge = time.Minute

// sweep removes the rows of generations that nobody reads any more. One that
// cannot be removed holds up no other, and comes again.
func (s *OnlineRows) sweep(ctx context.Context) error {
	var old []Stale
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		old, err = s.onlineStore.Stales(ctx, tx, s.now().Add(-staleAge), openRuns)
		return err
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range old {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		release := s.occupy(g.Project, Header{Name: g.View, Version: g.Version}.Ref())
		if release == nil {
			continue // it comes again
		}
		err := s.remove(ctx, g)
		release()
		failed = append(failed, fault.Wrap(err, "removing replaced online rows of %s in project %s", Header{Name: g.View, Version: g.Version}.Ref(), g.Project))
	}
	return errors.Join(failed...)
}

// sweepNow removes the rows of a project's generations that nobody reads any more,
// however young these are.
func (s *OnlineRows) sweepNow(ctx context.Context, p project.Name) error {
	var old []Stale
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		old, err = s.onlineStore.Stales(ctx, tx, s.now().Add(staleAge), openRuns)
		return err
	})
	if err != nil {
		return err
	}
	for _, g := range old {
		if g.Project != p {
			continue
		}
		if err := s.remove(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// abandonBegun marks the generations that runs have begun and that nobody reads yet for
// removal, where they may have rows of persons who were erased since: made of a version
// that was redacted, or of events. Such a run makes its rows anew, if it still can.
// Error: fault.Unavailable when an attempt has not ended yet.
func (s *Materialisation) abandonBegun(ctx context.Context, p project.Name) error {
	var open []Run
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		open, err = s.runStore.OpenRuns(ctx, tx, openRuns)
		return err
	}); err != nil {
		return err
	}
	for _, r := range open {
		if r.Project != p || r.Generation == "" {
			continue
		}
		if err := s.abandonRun(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *Materialisation) abandonRun(ctx context.Context, r Run) error {
	was, err := s.replaced(ctx, r.Project, r.Inputs)
	if err != nil {
		return err
	}
	release := s.occupy(r.Project, r.ref())
	if release == nil {
		s.stopRuns()
		return fault.New(fault.Unavailable, "%s is being materialised", r.ref()).WithHint("The materialisation is stopped, and the operation is retried.")
	}
	defer release()
	err = s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		r, err := s.runStore.Run(ctx, tx, r.Project, r.ID)
		if err != nil || r.State.Ended() || r.Generation == "" {
			return err
		}
		d, err := s.definitionStore.Definition(ctx, tx, r.Project, ViewKind, r.View, r.Version)
		if err != nil {
			return err
		}
		v, err := d.view()
		if err != nil {
			return err
		}
		o, err := s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if err == nil && o.Generation == r.Generation || was == "" && v.Source.Stream == nil {
			return nil // its rows answer, and are found by themselves; or nobody was in them
		}
		if err := s.abandon(ctx, tx, &r); err != nil {
			return err
		}
		before := r.Attempt
		r.Attempt++ // who has read the run already does not go on with it
		r.Generation, r.Rows, r.Chain, r.Newest = "", 0, "", time.Time{}
		return s.runStore.UpdateRun(ctx, tx, r, before)
	})
	return fault.Wrap(err, "discarding rows written by materialisation %s", r.ID)
}

// remove drops the rows of a generation, and then its mark. Rows whose key was
// destroyed cannot be read by anybody, nor named to be dropped.
func (s *OnlineRows) remove(ctx context.Context, g Stale) error {
	err := s.recopy(ctx, g)
	if err == nil {
		err = s.cfg.Online.Drop(ctx, g.table())
	}
	if err != nil && !fault.Is(err, fault.Gone) {
		return err
	}
	s.compacted.dropped.Add(1)
	return s.cfg.DB.Update(ctx, string(g.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.onlineStore.DeleteStale(ctx, tx, g)
	})
}
