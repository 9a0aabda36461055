// Package pebble is the embedded driver of the online feature store: Pebble in a
// directory of its own.
//
// A key is the row (24 bytes) and the stamp (16 bytes, newest first), so the
// versions of an entity lie together and the one that answers is the first at
// or after a seek. Writes are one batch each, synced. A read of many rows is one
// iterator that moves forward; a Bloom filter on the row answers for entities
// that are not there. Block cache and memtables are outside the Go heap.
package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
)

// Config locates the database.
type Config struct {
	Dir    string
	Cache  int64        // bytes of block cache, 32 MiB when 0
	Logger *slog.Logger // slog.Default() when nil
	fs     vfs.FS       // tests cut the power
}

// DB is an open database. Safe for concurrent use; Close it.
type DB struct {
	db     *pebble.DB
	mu     sync.RWMutex // held for reading by each call, so that Close waits
	closed bool
	fence  sync.Mutex // held by WriteIf
	// change is held by Replace, and for reading by whatever else writes: a version that
	// was looked at is the same when another takes its place.
	change sync.RWMutex
	spare  *ballast // nil in tests on file systems of their own
}

var (
	_ online.Driver = (*DB)(nil)
	_ online.Fenced = (*DB)(nil)
	_ online.Walked = (*DB)(nil)
)

const (
	rowSize = len(online.RowKey{})
	keySize = rowSize + online.StampSize
)

// Open opens or makes the database. Error: fault.Conflict when another process
// has it open.
func Open(cfg Config) (*DB, error) {
	if cfg.Cache <= 0 {
		cfg.Cache = 32 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	var spare *ballast
	if cfg.fs == nil {
		cfg.fs = vfs.Default
		spare = &ballast{path: filepath.Join(cfg.Dir, "ballast"), log: cfg.Logger}
		cfg.fs = vfs.OnDiskFull(cfg.fs, spare.give)
		// Pebble itself makes directories that others can read.
		if err := errors.Join(os.MkdirAll(cfg.Dir, 0o700), os.Chmod(cfg.Dir, 0o700)); err != nil { //nolint:gosec // a directory
			return nil, fault.New(fault.Invalid, "online feature store: %w", err)
		}
	}
	cache := pebble.NewCache(cfg.Cache)
	defer cache.Unref()
	opts := &pebble.Options{
		Cache:              cache,
		Comparer:           comparer(),
		FS:                 cfg.fs,
		FormatMajorVersion: pebble.FormatTableFormatV6,
		Logger:             logger{cfg.Logger},
		MemTableSize:       8 << 20,
	}
	for i := range opts.Levels {
		l := &opts.Levels[i]
		l.FilterPolicy = bloom.FilterPolicy(10)
		l.FilterType = pebble.TableFilter
		l.IndexBlockSize = 256 << 10 // one level of index for usual sizes: a seek less
		// Keys and values look random: compressing them costs time and saves nothing.
		l.Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	db, err := pebble.Open(cfg.Dir, opts)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fault.New(fault.Conflict, "the online feature store in %s is locked by another process", cfg.Dir).
			WithHint("A data directory supports one server. Stop the other server first.")
	}
	if err != nil {
		return nil, fault.Wrap(err, "opening the online feature store in %s", cfg.Dir)
	}
	return &DB{db: db, spare: spare}, nil
}

// comparer orders keys by their bytes and tells Pebble that the row is the
// prefix: filters are built on rows, and a seek stays within one.
func comparer() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = "falaj.online.v1"
	c.Split = func(key []byte) int { return min(len(key), rowSize) }
	// Keys in index blocks stay whole: a shortened one would have no stamp.
	c.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	c.Successor = func(dst, a []byte) []byte { return append(dst, a...) }
	c.ImmediateSuccessor = func(dst, prefix []byte) []byte { return append(append(dst, prefix...), 0) }
	return &c
}

// use keeps the database open during a call.
func (d *DB) use() (done func(), err error) {
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return nil, fault.New(fault.Unavailable, "the online feature store is closed")
	}
	return d.mu.RUnlock, nil
}

// Write stores versions in one synced batch. Error: fault.Exhausted when the disk is
// full; what was written stays, and it goes on when there is space.
func (d *DB) Write(ctx context.Context, versions []online.Version) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	return d.commit(versions)
}

// WriteIf implements online.Fenced: no other process has the directory open.
func (d *DB) WriteIf(ctx context.Context, was online.Version, versions []online.Version) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	done, err := d.use()
	if err != nil {
		return false, err
	}
	defer done()
	d.fence.Lock()
	defer d.fence.Unlock()
	have, closer, err := d.db.Get(was.Stamp.Append(slices.Clone(was.Row[:])))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		if was.Sealed != nil {
			return false, nil
		}
	case err != nil:
		return false, err
	default:
		same := was.Sealed != nil && bytes.Equal(have, was.Sealed)
		if err := closer.Close(); err != nil || !same {
			return false, err
		}
	}
	if err := d.commit(versions); err != nil {
		return false, err
	}
	return true, nil
}

func (d *DB) commit(versions []online.Version) error {
	d.change.RLock()
	defer d.change.RUnlock()
	if err := d.spare.ready(); err != nil {
		return err
	}
	size := 0
	for i := range versions {
		size += keySize + len(versions[i].Sealed) + 8
	}
	batch := d.db.NewBatchWithSize(size)
	defer batch.Close()
	key := make([]byte, 0, keySize)
	for i := range versions {
		key = versions[i].Stamp.Append(append(key[:0], versions[i].Row[:]...))
		if err := batch.Set(key, versions[i].Sealed, nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.Sync)
}

// Scan walks forward through the rows with one iterator.
func (d *DB) Scan(ctx context.Context, rows []online.RowKey, from online.Stamp, visit func(int, online.Stamp, []byte) bool) (err error) {
	if len(rows) == 0 {
		return nil
	}
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	it, err := d.db.NewIterWithContext(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if closing := it.Close(); err == nil {
			err = closing
		}
	}()
	key := make([]byte, 0, keySize)
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		key = from.Append(append(key[:0], rows[i][:]...))
		for ok := it.SeekPrefixGE(key); ok; ok = it.Next() {
			at := it.Key()
			if len(at) != keySize {
				return fault.New(fault.Internal, "the online feature store contains a key of %d bytes", len(at))
			}
			sealed, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			if !visit(i, online.StampOf(at[rowSize:]), sealed) {
				break
			}
		}
		if err := it.Error(); err != nil {
			return err
		}
	}
	return nil
}

// Drop removes a table's rows.
func (d *DB) Drop(ctx context.Context, table online.TableKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	if err := d.spare.ready(); err != nil {
		return err
	}
	d.change.RLock()
	defer d.change.RUnlock()
	return d.db.DeleteRange(table[:], behind(table), pebble.Sync)
}

// behind is the first key behind a table.
func behind(table online.TableKey) []byte {
	end := table
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:]
		}
	}
	// All bits set: nothing sorts behind the table but longer keys of it.
	return bytes.Repeat([]byte{0xff}, keySize+1)
}

// Remove deletes rows and compacts what held them, so that the bytes go, too.
func (d *DB) Remove(ctx context.Context, rows []online.RowKey) error {
	if err := ctx.Err(); err != nil || len(rows) == 0 {
		return err
	}
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	if err := d.spare.ready(); err != nil {
		return err
	}
	batch := d.db.NewBatch()
	defer batch.Close()
	ends := make([][]byte, len(rows))
	for i, row := range rows {
		ends[i] = afterRow(row)
		if err := batch.DeleteRange(row[:], ends[i], nil); err != nil {
			return err
		}
	}
	d.change.RLock()
	err = batch.Commit(pebble.Sync)
	d.change.RUnlock()
	if err != nil {
		return err
	}
	if len(rows) > compactEach {
		return d.db.Compact(ctx, rows[0][:], ends[len(ends)-1], false)
	}
	for i, row := range rows {
		if err := d.db.Compact(ctx, row[:], ends[i], false); err != nil {
			return err
		}
	}
	return nil
}

// afterRow is behind every version of a row, and before any other row.
func afterRow(row online.RowKey) []byte {
	return append(slices.Clone(row[:]), bytes.Repeat([]byte{0xff}, online.StampSize+1)...)
}

// compactEach is for how many rows their places are compacted one by one.
const compactEach = 64

// Checkpoint makes a directory that has the database as it is now: what was written
// stays there, whatever is written or removed later. Files are linked, so it is quick
// and takes little space at first.
func (d *DB) Checkpoint(dir string) error {
	done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	return fault.Wrap(d.db.Checkpoint(dir, pebble.WithFlushedWAL()), "copying the online feature store")
}

// Close waits for running calls and closes the database. It may be called twice.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.db.Close()
}

// logger passes on what matters. Pebble calls Fatalf when it cannot go on
// without risking data, and expects it not to return.
type logger struct{ log *slog.Logger }

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	l.log.Error("online feature store", slog.String("error", fmt.Sprintf(format, args...)))
}

func (l logger) Fatalf(format string, args ...any) {
	panic("online feature store: " + fmt.Sprintf(format, args...))
}
