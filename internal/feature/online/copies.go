package online

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Copier is a driver that also keeps the newest rows of tables in the clear, in the
// layout of another system, whose clients read them without Falaj. Copies follow the
// rows: what Drop and Remove take away, they take away there, too.
type Copier interface {
	Driver
	// Copies reports whether it is configured to.
	Copies() bool
	// Copy stores what is not older than the copy that is there, as durably as Write.
	Copy(ctx context.Context, shape Shape, copies []Copy) error
	// DropCopiesOf removes the copies of all tables of a view, or of a project when view is
	// empty, durably. It needs no key.
	DropCopiesOf(ctx context.Context, project, view string) error
}

// Shape is what the rows of a table mean.
type Shape struct {
	Project  string
	View     string
	JoinKeys []string     // beside the parts of keys
	Features []string     // beside Types
	Types    []value.Type // of the features
	Hidden   []bool       // beside Features: is NULL in copies
	Table    TableKey
}

// Copy is a row in the clear.
type Copy struct {
	Row    RowKey
	Stamp  Stamp
	Key    []value.Value
	Values []value.Value
}

// Copies reports whether the store keeps copies for another system.
func (s *Store) Copies() bool {
	c, ok := s.driver.(Copier)
	return ok && c.Copies()
}

// Copy copies rows that were written to the table, and returns when the copies are as
// safe as the driver's writes. The shape's Table is set here. The caller decides that
// the rows may be in the clear.
func (s *Store) Copy(ctx context.Context, table Table, shape Shape, rows []Row) error {
	seal, err := s.sealer(ctx, table, table.Subkey)
	if err != nil {
		return err
	}
	shape.Table = seal.table
	copies := make([]Copy, len(rows))
	for i, r := range rows {
		c := Copy{Row: seal.row(r.Key), Stamp: Stamp{Event: r.Event, Created: r.Created}, Values: make([]value.Value, len(shape.Types))}
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
	return fault.Wrap(s.driver.(Copier).Copy(ctx, shape, copies), "copying features of %s@%d", table.View, table.Version) //nolint:forcetypeassert // whom Copies said so
}

// DropCopiesOf removes the copies of a view, or of a whole project when view is empty.
// It needs no key, so it works when that was destroyed.
func (s *Store) DropCopiesOf(ctx context.Context, project, view string) error {
	if !s.Copies() {
		return nil
	}
	return fault.Wrap(s.driver.(Copier).DropCopiesOf(ctx, project, view), "removing copies of %s", view) //nolint:forcetypeassert // whom Copies said so
}
