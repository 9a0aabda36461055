package pebble

import (
	"bytes"
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
)

// Tables hops from table to table.
func (d *DB) Tables(ctx context.Context, after online.TableKey, limit int) (tables []online.TableKey, err error) {
	from := behind(after)
	if after == (online.TableKey{}) {
		from = nil
	}
	err = d.iterate(ctx, &pebble.IterOptions{LowerBound: from}, func(it *pebble.Iterator) error {
		for ok := it.First(); ok && len(tables) < limit; {
			if err := ctx.Err(); err != nil {
				return err
			}
			table := online.TableKey(it.Key())
			tables = append(tables, table)
			ok = it.SeekGE(behind(table))
		}
		return nil
	})
	return tables, err
}

// Walk visits the versions of a table in one iterator.
func (d *DB) Walk(ctx context.Context, table online.TableKey, after online.RowKey, visit func(row online.RowKey, stamp online.Stamp, sealed []byte) bool) error {
	from := table[:]
	if bytes.HasPrefix(after[:], table[:]) {
		from = afterRow(after)
	}
	return d.iterate(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: behind(table)}, func(it *pebble.Iterator) error {
		for ok := it.First(); ok; ok = it.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			at := it.Key()
			if len(at) != keySize {
				return fault.New(fault.Internal, "the online feature store contains a key of %d bytes", len(at))
			}
			sealed, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			if !visit(online.RowKey(at[:rowSize]), online.StampOf(at[rowSize:]), sealed) {
				return nil
			}
		}
		return nil
	})
}

func (d *DB) iterate(ctx context.Context, opts *pebble.IterOptions, do func(it *pebble.Iterator) error) (err error) {
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	it, err := d.db.NewIterWithContext(ctx, opts)
	if err != nil {
		return err
	}
	err = do(it)
	return errors.Join(err, it.Close())
}

// Replace changes versions in one synced batch; nothing else is written meanwhile.
func (d *DB) Replace(ctx context.Context, changes []online.Change) (removed int, err error) {
	if err := ctx.Err(); err != nil || len(changes) == 0 {
		return 0, err
	}
	done, err := d.use()
	if err != nil {
		return 0, err
	}
	defer done()
	if err := d.spare.ready(); err != nil {
		return 0, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	batch := d.db.NewBatch()
	defer batch.Close()
	for _, c := range changes {
		key := c.Was.Stamp.Append(c.Was.Row[:])
		have, there, err := d.get(key)
		if err != nil {
			return 0, err
		}
		if !there || !bytes.Equal(have, c.Was.Sealed) {
			continue
		}
		if err := batch.Delete(key, nil); err != nil {
			return 0, err
		}
		removed++
		if c.By == nil {
			continue
		}
		key = c.By.Stamp.Append(c.By.Row[:])
		if _, there, err = d.get(key); err != nil {
			return 0, err
		}
		if !there {
			if err := batch.Set(key, c.By.Sealed, nil); err != nil {
				return 0, err
			}
		}
	}
	if removed == 0 {
		return 0, nil
	}
	return removed, batch.Commit(pebble.Sync)
}

func (d *DB) get(key []byte) (sealed []byte, there bool, err error) {
	have, closer, err := d.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return bytes.Clone(have), true, closer.Close()
}
