package online

import (
	"context"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Copier is a driver that can also keep the newest rows of tables in the clear, in the
// layout of another system, whose clients read them without Falaj. Copies follow the
// rows: what Drop and Remove take away, they take away there, too. What was copied before
// can be found and removed also while none are made any more.
type Copier interface {
	Driver
	// Copies reports whether it is configured to make them.
	Copies() bool
	// Copy stores what is not older than the copy that is there, as durably as Write. The
	// copies that a view's other versions have are removed first.
	Copy(ctx context.Context, shape Shape, copies []Copy) error
	// CopiedViews lists the views that may have copies.
	CopiedViews(ctx context.Context) ([]CopiedView, error)
	// CopiedKeys visits the keys of the entities that a table's rows were copied of, some
	// at a time.
	CopiedKeys(ctx context.Context, table TableKey, visit func(keys [][]byte) error) error
	// DropCopiesOf removes the copies of all tables of a view, or of a project when view is
	// empty, durably. It needs no key. While others write copies, some may stay, and the
	// view is listed.
	DropCopiesOf(ctx context.Context, project, view string) error
	// Settled reports whether the database's files are without the copies that were
	// removed, and otherwise sees to it: asked again, it is so sometime.
	Settled(ctx context.Context) (bool, error)
}

// Shape is what the rows of a table mean.
type Shape struct {
	Project  string
	View     string
	Version  int
	JoinKeys []string     // beside the parts of keys
	Features []string     // beside Types
	Types    []value.Type // of the features
	Hidden   []bool       // beside Features: is NULL in copies
	Table    TableKey
	Instead  TableKey // whose copies are replaced whatever their stamps; may be zero
}

// Copy is a row in the clear.
type Copy struct {
	Row    RowKey
	Stamp  Stamp
	Entity []byte // value.AppendKey of each part
	Key    []value.Value
	Values []value.Value
}

// CopiedView is a view that may have copies.
type CopiedView struct {
	Project, View string
	Version       int // 0 when it is not known
}

func (s *Store) copier() Copier {
	c, _ := s.driver.(Copier)
	return c
}

// Copies reports whether the store keeps copies for another system.
func (s *Store) Copies() bool { return s.copier() != nil && s.copier().Copies() }

// MayHaveCopies reports whether there may be copies, also of before.
func (s *Store) MayHaveCopies() bool { return s.copier() != nil }

// Copy copies rows of the table, and returns when the copies are as safe as the driver's
// writes. The shape's Table is set here. The caller decides that the rows may be in the
// clear.
func (s *Store) Copy(ctx context.Context, table Table, shape Shape, rows []Row) error {
	seal, err := s.sealer(ctx, table, table.Subkey)
	if err != nil {
		return err
	}
	shape.Table = seal.table
	copies := make([]Copy, len(rows))
	for i, r := range rows {
		c := Copy{Row: seal.row(r.Key), Stamp: Stamp{Event: r.Event, Created: r.Created}, Entity: r.Key, Values: make([]value.Value, len(shape.Types))}
		if c.Key, err = value.ParseKey(r.Key); err != nil {
			return err
		}
		if len(c.Key) != len(shape.JoinKeys) {
			return fault.New(fault.Internal, "a key of %d parts in a table of %d join keys", len(c.Key), len(shape.JoinKeys))
		}
		if err := value.DecodeRow(r.Packed, shape.Types, c.Values); err != nil {
			return err
		}
		for n, hidden := range shape.Hidden {
			if hidden {
				c.Values[n] = value.Null(shape.Types[n])
			}
		}
		copies[i] = c
	}
	return fault.Wrap(s.copier().Copy(ctx, shape, copies), "copying features of %s@%d", table.View, table.Version)
}

// Recopy puts the newest rows of other tables in the places of what was copied of a table
// that is about to be dropped, where these have the entities.
func (s *Store) Recopy(ctx context.Context, table Table, by []Table, shape Shape) error {
	keys, err := s.TableKeys(ctx, table)
	if err != nil {
		return err
	}
	for _, shape.Instead = range keys {
		if err := s.copier().CopiedKeys(ctx, shape.Instead, func(keys [][]byte) error {
			for _, t := range by {
				rows, err := s.newest(ctx, t, keys)
				if err != nil {
					return err
				}
				if err := s.Copy(ctx, t, shape, rows); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return fault.Wrap(err, "copying features of %s@%d again", table.View, table.Version)
		}
	}
	return nil
}

// newest are the rows of keys that the newest stamps have, of those that are there.
func (s *Store) newest(ctx context.Context, table Table, keys [][]byte) ([]Row, error) {
	answers, err := s.Read(ctx, table, Query{Keys: keys, At: time.UnixMicro(math.MaxInt64)})
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, a := range answers {
		if a.Status == Present {
			rows = append(rows, Row{Key: keys[i], Event: a.Event.UnixMicro(), Created: a.Created, Packed: a.Packed})
		}
	}
	return rows, nil
}

// CopiedViews lists the views that may have copies.
func (s *Store) CopiedViews(ctx context.Context) ([]CopiedView, error) {
	if !s.MayHaveCopies() {
		return nil, nil
	}
	views, err := s.copier().CopiedViews(ctx)
	return views, fault.Wrap(err, "listing views with copies")
}

// DropCopiesOf removes the copies of a view, or of a whole project when view is empty.
// It needs no key, so it works when that was destroyed.
func (s *Store) DropCopiesOf(ctx context.Context, project, view string) error {
	if !s.MayHaveCopies() {
		return nil
	}
	return fault.Wrap(s.copier().DropCopiesOf(ctx, project, view), "removing copies of %s", view)
}

// settlePause is between looks at whether the driver has settled.
const settlePause = 50 * time.Millisecond

// Settle waits until the database's files are without the copies that were removed, at
// most for a time, and reports whether they are.
func (s *Store) Settle(ctx context.Context, most time.Duration) (bool, error) {
	if !s.MayHaveCopies() {
		return true, nil
	}
	end := time.Now().Add(most)
	again := time.NewTicker(settlePause)
	defer again.Stop()
	for {
		settled, err := s.copier().Settled(ctx)
		if err != nil || settled {
			return settled, err
		}
		if !time.Now().Before(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-again.C:
		}
	}
}
