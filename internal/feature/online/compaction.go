package online

import (
	"bytes"
	"context"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A table is gone through in steps, each of which is bounded, so that the caller can
// pause between them. A step that was cut short is made again: what it did is done.

// stepChanges are made in a step at most: nothing else is written meanwhile.
const stepChanges = 256

const tablesPage = 1000

// Step is what a step has done.
type Step struct {
	Looked  int  // versions
	Changed int  // of these: moved or removed
	Done    bool // nothing is behind it
	Next    Mark // where the next one begins
}

// Mark is a place in a table. The zero Mark is its beginning.
type Mark struct {
	part int // of the table's subkeys
	row  RowKey
}

// IsZero reports whether the mark is the beginning.
func (m Mark) IsZero() bool { return m == Mark{} }

// Compacts reports whether the store can be gone through; if not, Move, Sweep and Orphans
// fail.
func (s *Store) Compacts() bool {
	_, ok := s.driver.(Walked)
	return ok
}

func (s *Store) walked() (Walked, error) {
	d, ok := s.driver.(Walked)
	if !ok {
		return nil, fault.New(fault.Unsupported, "this online store does not support iteration over rows")
	}
	return d, nil
}

// Move brings rows that are under the former subkey under the newest one. Rows of the
// first format cannot be: they stay, and answer, until they are swept or dropped. When
// all of them are done without a change, there is none under the former subkey, if
// stays is false. Nobody may remove rows of the table meanwhile.
func (s *Store) Move(ctx context.Context, table Table, from Mark) (step Step, stays bool, err error) {
	d, err := s.walked()
	if err != nil || table.Former == table.Subkey {
		return Step{Done: true}, false, err
	}
	old, err := s.sealer(ctx, table, table.Former)
	if err != nil {
		return step, false, err
	}
	seal, err := s.sealer(ctx, table, table.Subkey)
	if err != nil {
		return step, false, err
	}
	if table.Former == 0 {
		err := d.Walk(ctx, old.table, RowKey{}, func(RowKey, Stamp, []byte) bool {
			stays = true
			return false
		})
		return Step{Done: true}, stays, fault.Wrap(err, "reading features of %s@%d", table.View, table.Version)
	}
	if from == (Mark{}) {
		// First of all how far the table has come: from then on who does not know of the new
		// subkey is kept out by the fence.
		if err := s.movePlace(ctx, d, old, seal); err != nil {
			return step, false, err
		}
	}
	var changes []Change
	var failed error
	step, err = s.walk(ctx, d, []TableKey{old.table}, from, &changes, func(v Version) *Change {
		key, packed, err := old.opened(v)
		if err != nil {
			failed = err
			return nil
		}
		by, err := seal.version(&Row{Key: key, Event: v.Stamp.Event, Created: v.Stamp.Created, Packed: packed})
		if err != nil {
			failed = err
		}
		return &Change{Was: v, By: &by}
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		step.Changed, err = d.Replace(ctx, changes)
	}
	return step, false, fault.Wrap(err, "moving features of %s@%d to subkey %d", table.View, table.Version, table.Subkey)
}

func (s *Store) movePlace(ctx context.Context, d Walked, old, seal *sealer) error {
	row := old.row(place)
	for {
		var changes []Change
		var failed error
		err := s.driver.Scan(ctx, []RowKey{row}, Stamp{Event: 0, Created: intentStamp}, func(_ int, v Stamp, sealed []byte) bool {
			was := Version{Row: row, Stamp: v, Sealed: bytes.Clone(sealed)}
			packed, err := old.open(nil, place, row, v, sealed)
			if err == nil {
				var by Version
				by, err = seal.version(&Row{Key: place, Event: v.Event, Created: v.Created, Packed: packed})
				changes = append(changes, Change{Was: was, By: &by})
			}
			failed = err
			return err == nil
		})
		if err == nil {
			err = failed
		}
		if err != nil || len(changes) == 0 {
			return err
		}
		if n, err := d.Replace(ctx, changes); err != nil || n == len(changes) {
			return err
		} // somebody has written between
	}
}

// Rule selects the versions of rows that no read as of Since or later returns.
type Rule struct {
	Since int64 // microseconds since 1970
	// Keep is how long before Since a version counts: the TTL, or the longest window with
	// its widest tile.
	Keep int64
	// Expires says that nothing older counts; otherwise the newest version does for ever.
	Expires bool
	// Windows says that all versions of the time that is kept count, and not the newest
	// alone.
	Windows bool
}

// useless reports whether a version answers nobody. known says that a newer one of the
// row was known at Since.
func (r Rule) useless(v Stamp, known bool) bool {
	old := v.Event < r.Since-r.Keep
	switch {
	case r.Expires && old:
		return true
	case !known:
		return false
	}
	return old || !r.Windows
}

// Sweep removes versions of a table's rows that have expired by a rule.
func (s *Store) Sweep(ctx context.Context, table Table, rule Rule, from Mark) (Step, error) {
	d, err := s.walked()
	if err != nil {
		return Step{}, err
	}
	var parts []TableKey
	var places []RowKey
	for _, subkey := range table.subkeys() {
		seal, err := s.sealer(ctx, table, subkey)
		if err != nil {
			return Step{}, err
		}
		parts, places = append(parts, seal.table), append(places, seal.row(place))
	}
	var changes []Change
	var row RowKey
	known := false
	step, err := s.walk(ctx, d, parts, from, &changes, func(v Version) *Change {
		if v.Row != row {
			row, known = v.Row, false
		}
		if slices.Contains(places, v.Row) {
			return nil
		}
		if rule.useless(v.Stamp, known) {
			return &Change{Was: v}
		}
		known = known || v.Stamp.Event <= rule.Since && v.Stamp.Created <= rule.Since
		return nil
	})
	if err == nil {
		step.Changed, err = d.Replace(ctx, changes)
	}
	return step, fault.Wrap(err, "sweeping features of %s@%d", table.View, table.Version)
}

// walk goes through parts and collects what decide says. It ends between rows, or
// where there are enough changes: the row that it is in comes again.
func (s *Store) walk(ctx context.Context, d Walked, parts []TableKey, from Mark, changes *[]Change, decide func(v Version) *Change) (Step, error) {
	step := Step{Next: from}
	for ; step.Next.part < len(parts); step.Next = (Mark{part: step.Next.part + 1}) {
		full := false
		var row RowKey // being walked through
		err := d.Walk(ctx, parts[step.Next.part], step.Next.row, func(at RowKey, stamp Stamp, sealed []byte) bool {
			if at != row {
				if row != (RowKey{}) {
					step.Next.row = row
				}
				if full = step.Looked >= s.step; full {
					return false
				}
				row = at
			}
			step.Looked++
			if c := decide(Version{Row: at, Stamp: stamp, Sealed: bytes.Clone(sealed)}); c != nil {
				*changes = append(*changes, *c)
			}
			full = len(*changes) >= min(stepChanges, s.step)
			return !full
		})
		if err != nil || full {
			return step, err
		}
	}
	step.Done = true
	return step, nil
}

// Orphans lists tables in the store that are none of those that tables gives, which it
// asks for when it has looked: what is written is known of before. They are of views
// whose key was destroyed, and of generations that were not dropped.
func (s *Store) Orphans(ctx context.Context, tables func() ([]TableKey, error)) ([]TableKey, error) {
	d, err := s.walked()
	if err != nil {
		return nil, err
	}
	var there []TableKey
	for after := (TableKey{}); ; after = there[len(there)-1] {
		more, err := d.Tables(ctx, after, tablesPage)
		if err != nil {
			return nil, err
		}
		there = append(there, more...)
		if len(more) < tablesPage {
			break
		}
	}
	known, err := tables()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(there, func(t TableKey) bool { return slices.Contains(known, t) }), nil
}

// DropOrphan removes the rows of a table that Orphans gave.
func (s *Store) DropOrphan(ctx context.Context, table TableKey) error {
	return s.driver.Drop(ctx, table)
}
