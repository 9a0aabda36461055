package online

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Fenced is the power of a driver that writes versions all or none, and only if a
// version is still what it was, whoever else writes to the database. For other drivers
// WriteUpTo writes what it is about to do first, and another server that writes at the
// same moment is kept out by its lease alone.
type Fenced interface {
	// WriteIf writes versions as Write does, if the version with the row and stamp of
	// was has its bytes; was.Sealed is nil when there is to be none. written is false
	// when it is not so: then nothing was written, nor after an error. Error:
	// fault.Unsupported when this database cannot.
	WriteIf(ctx context.Context, was Version, versions []Version) (written bool, err error)
}

// place is the row that says how far a table has come; no entity has its key. It has
// two versions: the position, and what a write that is not atomic is about to do.
var place = []byte{0xff, 'p'}

const (
	positionStamp = 0
	intentStamp   = 1
)

// Nowhere is the position of a table that has none.
const Nowhere int64 = -1

// WriteUpTo writes rows as Write does, and in the same batch that the table has come
// from one position to another: after a crash either both are there or, once Position
// was asked, none. Error: fault.Conflict when the table is elsewhere, because another
// server writes to it; nothing was written then.
func (s *Store) WriteUpTo(ctx context.Context, table Table, rows []Row, from, position int64) error {
	seal, err := s.sealer(ctx, table, table.Subkey)
	if err != nil {
		return err
	}
	was, at, err := s.standing(ctx, seal)
	if err == nil && was.Sealed == nil && table.Former != table.Subkey {
		var former *sealer
		if former, err = s.sealer(ctx, table, table.Former); err == nil {
			_, at, err = s.standing(ctx, former)
		}
	}
	if err != nil {
		return fault.Wrap(err, "reading features of %s@%d", table.View, table.Version)
	}
	elsewhere := func() error {
		return fault.New(fault.Conflict, "the online rows of %s@%d are no longer at record %d: another server updates them", table.View, table.Version, from)
	}
	if at != from {
		return elsewhere()
	}
	here := Row{Key: place, Created: positionStamp, Packed: binary.BigEndian.AppendUint64(nil, uint64(position))} //nolint:gosec // the bits are meant
	if d, ok := s.driver.(Fenced); ok {
		versions, err := s.versions(seal, table, append(slices.Clip(rows), here))
		if err != nil {
			return err
		}
		written, err := d.WriteIf(ctx, was, versions)
		if err == nil && !written {
			return elsewhere()
		}
		if !fault.Is(err, fault.Unsupported) {
			return fault.Wrap(err, "writing features of %s@%d", table.View, table.Version)
		}
	}
	done := Row{Key: place, Created: intentStamp}
	if len(rows) > 0 {
		if err := s.Write(ctx, table, []Row{{Key: place, Created: intentStamp, Packed: appendIntent(nil, position, rows)}}); err != nil {
			return err
		}
		if err := s.Write(ctx, table, rows); err != nil {
			return err
		}
	}
	return s.Write(ctx, table, []Row{here, done}) // one row: all or nothing
}

// standing is the version that says where a table is, as it is stored, and what it
// says: Nowhere when there is none.
func (s *Store) standing(ctx context.Context, seal *sealer) (was Version, at int64, err error) {
	was = Version{Row: seal.row(place), Stamp: Stamp{Created: positionStamp}}
	err = s.driver.Scan(ctx, []RowKey{was.Row}, was.Stamp, func(_ int, v Stamp, sealed []byte) bool {
		if v == was.Stamp {
			was.Sealed = bytes.Clone(sealed)
		}
		return false
	})
	if err != nil || was.Sealed == nil {
		return was, Nowhere, err
	}
	packed, err := seal.open(nil, place, was.Row, was.Stamp, was.Sealed)
	if err == nil && len(packed) != 8 {
		err = errDamaged()
	}
	if err != nil {
		return was, Nowhere, err
	}
	return was, int64(binary.BigEndian.Uint64(packed)), nil //nolint:gosec // the bits are meant
}

// Position says how far a table has come by WriteUpTo, after it has finished a write
// that was cut short. What a finished one was about to do is forgotten: a driver that is
// fenced leaves what was there before it was one, in a cluster or an older release, and
// twice it would take the table back.
func (s *Store) Position(ctx context.Context, table Table) (position int64, found bool, err error) {
	position, found, next, intent, err := s.look(ctx, table)
	if err != nil || intent == nil {
		return position, found, err
	}
	from := Nowhere
	if found {
		from = position
	}
	if next <= from {
		return position, found, s.Write(ctx, table, []Row{{Key: place, Created: intentStamp}})
	}
	if err := s.WriteUpTo(ctx, table, intent, from, next); err != nil {
		return position, found, err
	}
	return next, true, nil
}

// Look says how far a table has come, and changes nothing.
func (s *Store) Look(ctx context.Context, table Table) (position int64, found bool, err error) {
	position, found, _, _, err = s.look(ctx, table)
	return position, found, err
}

func (s *Store) look(ctx context.Context, table Table) (position int64, found bool, next int64, intent []Row, err error) {
	r, err := s.Reader(ctx, table)
	if err != nil {
		return 0, false, 0, nil, err
	}
	err = r.Span(ctx, place, 0, 0, func(_, created int64, packed []byte) (bool, error) {
		switch {
		case created == intentStamp && len(packed) > 0:
			var err error
			next, intent, err = readIntent(packed)
			return true, err
		case created == positionStamp && len(packed) == 8:
			position, found = int64(binary.BigEndian.Uint64(packed)), true //nolint:gosec // the bits are meant
		}
		return true, nil
	})
	return position, found, next, intent, err
}

func appendIntent(dst []byte, position int64, rows []Row) []byte {
	dst = binary.AppendVarint(dst, position)
	for i := range rows {
		r := &rows[i]
		dst = append(binary.AppendUvarint(dst, uint64(len(r.Key))), r.Key...)
		dst = binary.AppendVarint(binary.AppendVarint(dst, r.Event), r.Created)
		dst = append(binary.AppendUvarint(dst, uint64(len(r.Packed))), r.Packed...)
	}
	return dst
}

func readIntent(b []byte) (position int64, rows []Row, err error) {
	bad := false
	number := func() int64 {
		x, n := binary.Varint(b)
		if n <= 0 {
			bad, b = true, nil
			return 0
		}
		b = b[n:]
		return x
	}
	text := func() []byte {
		x, n := binary.Uvarint(b)
		if n <= 0 || x > uint64(len(b)-n) { //nolint:gosec // n is at most len(b)
			bad, b = true, nil
			return nil
		}
		out := append([]byte(nil), b[n:n+int(x)]...) //nolint:gosec // x is at most len(b)
		b = b[n+int(x):]                             //nolint:gosec // as above
		return out
	}
	position = number()
	for len(b) > 0 {
		r := Row{Key: text()}
		r.Event, r.Created = number(), number()
		r.Packed = text()
		rows = append(rows, r)
	}
	if bad {
		return 0, nil, fault.New(fault.Internal, "a pending write of the online store is corrupt").WithHint("Materialise the view again.")
	}
	return position, rows, nil
}
