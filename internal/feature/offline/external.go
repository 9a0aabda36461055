package offline

import (
	"bytes"
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// external answers for a view that is too large for memory, in three sorts:
// the view's rows by (key, visible), the spine's rows by (key, time), merged in
// one pass that remembers one row; then the answers by row number.
type external struct {
	view    *View
	outputs []Feature
	disk    *disk
	budget  int64
	rows    *sorter // (key, visible) → event, created, packed row: the payloads sort as the rule prefers
	asks    *sorter // (key, time, row number)
	answers *sorter // row number → packed row
	out     records
	more    bool // out is at a record
	scratch []byte
	payload []byte
	values  []value.Value // of a row
	answer  []value.Value // of outputs
	types   []value.Type  // of outputs
}

func newExternal(v *View, d *disk, budget int64) *external {
	e := &external{view: v, outputs: v.outputs(), disk: d, budget: budget, rows: newSorter(d, budget), asks: newSorter(d, budget)}
	for _, f := range e.outputs {
		e.types = append(e.types, f.Type)
	}
	e.values, e.answer = make([]value.Value, len(v.Features)), make([]value.Value, len(e.types))
	return e
}

// takeOver adds what a builder has collected, whose rows are counted already.
func (e *external) takeOver(ctx context.Context, b *builder) error {
	defer b.release()
	var counted Stats
	for i := range b.parts {
		if err := e.add(ctx, b.parts[i], &counted); err != nil {
			return err
		}
	}
	return nil
}

// add takes the rows of a batch of the view.
func (e *external) add(ctx context.Context, p part, stats *Stats) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for row := range p.rows() {
		stats.Rows++
		if p.nullKey(row) {
			stats.NullKeys++
			continue
		}
		if p.event.null(row) {
			stats.NoTime++
			continue
		}
		event, created, visible := p.times(row)
		e.payload = appendTime(appendTime(e.payload[:0], event), created)
		var err error
		if e.payload, err = p.pack(e.payload, row, e.values); err != nil {
			return err
		}
		if err := e.rows.add(appendTime(e.key(p.keys, row), visible), e.payload); err != nil {
			return err
		}
	}
	return nil
}

// key is the sized key of a row, in memory that the next call uses again.
func (e *external) key(keys []column, row int) []byte {
	e.scratch = appendSizedKey(e.scratch[:0], keys, row)
	return e.scratch
}

// ask notes the rows of a batch of the spine.
func (e *external) ask(keys []column, times []int64, before int64) error {
	for row := range times {
		if anyNull(keys, row) {
			continue
		}
		ask := appendTime(appendTime(e.key(keys, row), times[row]), before+int64(row))
		if err := e.asks.add(ask, nil); err != nil {
			return err
		}
	}
	return nil
}

// merge finds the answers and leaves them sorted by row number.
func (e *external) merge(ctx context.Context, ttl int64, stats *Stats) error {
	rows, err := e.rows.sorted()
	if err != nil {
		return err
	}
	asks, err := e.asks.sorted()
	if err != nil {
		return err
	}
	e.answers = newSorter(e.disk, e.budget)
	find := e.newest
	if e.view.Windows != nil {
		find = e.windows
	}
	if err := find(ctx, rows, asks, ttl, stats); err != nil {
		return err
	}
	if err := rows.failed(); err != nil {
		return err
	}
	if err := asks.failed(); err != nil {
		return err
	}
	if err := e.rows.Close(); err != nil {
		return err
	}
	if err := e.asks.Close(); err != nil {
		return err
	}
	if e.out, err = e.answers.sorted(); err != nil {
		return err
	}
	e.more = e.out.next()
	return e.out.failed()
}

// newest answers with the newest row.
func (e *external) newest(ctx context.Context, rows, asks records, ttl int64, stats *Stats) error {
	var (
		key  []byte // of the asks being answered
		best []byte // payload of the best row seen with that key; nil: none
		tick every
	)
	more := rows.next()
	for asks.next() {
		if err := tick.check(ctx); err != nil {
			return err
		}
		ask, _ := asks.record()
		askKey, number := ask[:len(ask)-16], ask[len(ask)-8:]
		if !bytes.Equal(askKey, key) {
			key, best = append(key[:0], askKey...), nil
		}
		for more {
			if err := tick.check(ctx); err != nil {
				return err
			}
			row, payload := rows.record()
			if bytes.Compare(row, ask[:len(ask)-8]) > 0 {
				break
			}
			if bytes.Equal(row[:len(row)-8], key) {
				if best != nil && bytes.Equal(payload[:16], best[:16]) {
					stats.Ties++
				}
				if best == nil || bytes.Compare(payload, best) > 0 {
					best = append(best[:0], payload...)
				}
			}
			more = rows.next()
		}
		if best == nil {
			continue
		}
		t := timeAt(ask[len(ask)-16:])
		if ttl != 0 && timeAt(best) < saturatingSub(t, ttl) {
			continue
		}
		if err := e.answers.add(number, best[16:]); err != nil {
			return err
		}
	}
	return nil
}

// take makes the output columns for rows before … before+n−1. Calls go upwards
// without gaps. The caller releases the arrays, also beside an error.
func (e *external) take(mem memory.Allocator, before int64, n int) ([]arrow.Array, error) {
	var builders []array.Builder
	var selected []int
	for i, f := range e.outputs {
		if f.Select != "" {
			builders = append(builders, array.NewBuilder(mem, ArrowType(f.Type)))
			selected = append(selected, i)
		}
	}
	defer func() {
		for _, b := range builders {
			b.Release()
		}
	}()
	for row := before; row < before+int64(n); row++ {
		found := false
		if e.more {
			number, packed := e.out.record()
			if timeAt(number) == row {
				if err := value.DecodeRow(packed, e.types, e.answer); err != nil {
					return nil, err
				}
				found = true
			}
		}
		for i, f := range selected {
			if !found {
				builders[i].AppendNull()
				continue
			}
			if err := Append(builders[i], e.answer[f]); err != nil {
				return nil, err
			}
		}
		if found {
			e.more = e.out.next()
		}
	}
	if err := e.out.failed(); err != nil {
		return nil, err
	}
	arrays := make([]arrow.Array, len(builders))
	for i, b := range builders {
		arrays[i] = b.NewArray()
	}
	return arrays, nil
}

// Append appends a value to a builder of its ArrowType.
func Append(b array.Builder, v value.Value) error {
	if v.IsNull() {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(v.Int())
	case *array.Int32Builder:
		b.Append(int32(v.Int())) //nolint:gosec // it is one
	case *array.Float64Builder:
		b.Append(v.Float())
	case *array.Float32Builder:
		b.Append(float32(v.Float()))
	case *array.StringBuilder:
		b.Append(v.Str())
	case *array.BooleanBuilder:
		b.Append(v.Bool())
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.Int()))
	case *array.ListBuilder:
		b.Append(true)
		if floats, ok := b.ValueBuilder().(*array.Float32Builder); ok {
			floats.AppendValues(v.Floats(nil), nil)
			return nil
		}
		for e := range v.Elements() {
			if err := Append(b.ValueBuilder(), e); err != nil {
				return err
			}
		}
	default:
		return fault.New(fault.Internal, "no builder for %s", v.Type())
	}
	return nil
}

func (e *external) close() {
	for _, s := range []*sorter{e.rows, e.asks, e.answers} {
		if s != nil {
			_ = s.Close() // nameless temporary files
		}
	}
}
