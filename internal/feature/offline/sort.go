package offline

import (
	"bytes"
	"context"
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Row is a row of a view as the online store takes it. Its slices are valid
// until the next call of Next.
type Row struct {
	Key     []byte // value.AppendKey of each part
	Event   int64  // microseconds
	Created int64  // microseconds; math.MinInt64 when there is none
	Packed  []byte // value.AppendRow of all features
}

// Range bounds event times, in microseconds; both ends are included.
type Range struct{ From, To int64 }

// Always is the range of all times.
func Always() Range { return Range{math.MinInt64, math.MaxInt64} }

// Sorted is the rows of a view in the order of (key, event, created), one for
// each: ties are decided as in Join. Of a view with Windows it is all rows. The
// order is the same for the same rows, however they come. Close it.
type Sorted struct {
	Stats  Stats
	all    bool // also those that are tied
	sorter *sorter
	give   func() // its memory back
	in     records
	ahead  bool // in is at a record that has not been returned
	key    []byte
	packed []byte
	row    Row
	err    error
}

// Sort reads a view whole. Errors as Join's.
func Sort(ctx context.Context, v View, within Range, opts Options) (*Sorted, error) {
	opts = opts.withDefaults()
	memory, give := opts.Pool.take(opts.Memory)
	s := &Sorted{Stats: Stats{View: v.Name}, all: v.Windows != nil, sorter: newSorter(newDisk(opts), memory), give: give}
	if err := s.read(ctx, &v, within); err != nil {
		_ = s.Close() // nameless temporary files
		return nil, fault.Wrap(err, "reading view %s", v.Name)
	}
	return s, nil
}

func (s *Sorted) read(ctx context.Context, v *View, within Range) error {
	rows, err := v.Open(ctx)
	if err != nil {
		return err
	}
	defer rows.Release()
	columns, err := v.resolve(rows.Schema())
	if err != nil {
		return err
	}
	var key, packed []byte
	values := make([]value.Value, len(v.Features))
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := columns.read(v, rows.RecordBatch())
		if err != nil {
			return err
		}
		for row := range p.rows() {
			s.Stats.Rows++
			if p.nullKey(row) {
				s.Stats.NullKeys++
				continue
			}
			if p.event.null(row) {
				s.Stats.NoTime++
				continue
			}
			event, created, _ := p.times(row)
			if event < within.From || event > within.To {
				continue
			}
			key = appendTime(appendTime(appendSizedKey(key[:0], p.keys, row), event), created)
			if packed, err = p.pack(packed[:0], row, values); err != nil {
				return err
			}
			if err := s.sorter.add(key, packed); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	s.Stats.Spilled = len(s.sorter.runs) > 0
	if s.in, err = s.sorter.sorted(); err != nil {
		return err
	}
	s.ahead = s.in.next()
	return s.in.failed()
}

// Next moves to the next row.
func (s *Sorted) Next() bool {
	if s.err != nil || !s.ahead {
		return false
	}
	key, packed := s.in.record()
	s.key = append(s.key[:0], key...)
	for {
		// Among equal keys the last has the greatest bytes.
		s.packed = append(s.packed[:0], packed...)
		if s.ahead = s.in.next(); !s.ahead {
			break
		}
		key, packed = s.in.record()
		if s.all || !bytes.Equal(key, s.key) {
			break
		}
		s.Stats.Ties++
	}
	if s.err = s.in.failed(); s.err != nil {
		return false
	}
	n := len(s.key)
	s.row = Row{Key: s.key[4 : n-16], Event: timeAt(s.key[n-16:]), Created: timeAt(s.key[n-8:]), Packed: s.packed}
	return true
}

// Row is the current row.
func (s *Sorted) Row() Row { return s.row }

// Err is what ended the rows early.
func (s *Sorted) Err() error { return s.err }

// Close frees the temporary files.
func (s *Sorted) Close() error {
	defer s.give()
	return s.sorter.Close()
}
