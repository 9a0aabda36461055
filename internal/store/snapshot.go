package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"net/url"
	"os"

	"github.com/mattn/go-sqlite3"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Snapshot is the database as it was at one moment. Close it: until then the log of
// the database only grows, and no scrub ends.
type Snapshot struct {
	// Sequence is the position of the last entry of the streams.
	Sequence Position
	conn     *sqlite3.SQLiteConn // in a read transaction
}

// Snapshot takes one, for a backup of a database that is in use. note runs in a write
// transaction that is not in the snapshot, and commits only if the snapshot was taken. still
// runs while all other writes wait, so that it sees the state at the moment of the
// snapshot. Error: fault.Unsupported on PostgreSQL, which has its own
// tools for that.
func (db *DB) Snapshot(ctx context.Context, note func(ctx context.Context, tx *Tx) error, still func(ctx context.Context, sequence Position) error) (s *Snapshot, err error) {
	lite, ok := db.engine.(*sqliteDB)
	if !ok {
		return nil, fault.New(fault.Unsupported, "the database is not SQLite").
			WithHint("Back it up with its own tools, such as pg_dump, while the server is stopped, together with the data directory: the directory last.")
	}
	err = db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
		if err := note(ctx, tx); err != nil {
			return err
		}
		if s, err = lite.snapshot(ctx); err != nil {
			return err
		}
		return still(ctx, s.Sequence)
	})
	if err != nil && s != nil {
		err = errors.Join(err, s.Close())
		s = nil
	}
	return s, err
}

// snapshot begins a read transaction on a connection of its own. What the writer has not
// committed is not in it.
func (s *sqliteDB) snapshot(ctx context.Context) (*Snapshot, error) {
	c, err := (&sqlite3.SQLiteDriver{}).Open("file:" + url.PathEscape(s.path) + "?mode=ro&_busy_timeout=" + busyTimeout)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*sqlite3.SQLiteConn)
	if !ok {
		return nil, errors.Join(errors.New("store: the SQLite driver has other connections"), c.Close())
	}
	out := &Snapshot{conn: conn}
	if _, err := conn.ExecContext(ctx, `BEGIN`, nil); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	// The first look at the database is what fixes the moment.
	if out.Sequence, err = out.watermark(ctx); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

func (s *Snapshot) watermark(ctx context.Context) (p Position, err error) {
	rows, err := s.conn.QueryContext(ctx, sqliteWatermark, nil)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	seq := make([]driver.Value, 1)
	if err := rows.Next(seq); err != nil {
		return p, err
	}
	n, ok := seq[0].(int64)
	if !ok {
		return p, errors.New("store: the last number of the streams is none")
	}
	p.Seq = uint64(n) //nolint:gosec // SQLite counts from 1
	return p, nil
}

// stepPages are copied between two checks of the context: 16 MiB.
const stepPages = 4096

// CopyTo writes the database into a file, which is made. It is not synced.
func (s *Snapshot) CopyTo(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	c, err := (&sqlite3.SQLiteDriver{}).Open("file:" + url.PathEscape(path) + "?_journal_mode=OFF&_synchronous=OFF")
	if err != nil {
		return err
	}
	to, ok := c.(*sqlite3.SQLiteConn)
	if !ok {
		return errors.Join(errors.New("store: the SQLite driver has other connections"), c.Close())
	}
	return errors.Join(s.copyTo(ctx, to), to.Close())
}

func (s *Snapshot) copyTo(ctx context.Context, to *sqlite3.SQLiteConn) error {
	b, err := to.Backup("main", s.conn, "main")
	if err != nil {
		return err
	}
	for {
		done, err := b.Step(stepPages)
		if err == nil && ctx.Err() != nil {
			err = fault.New(fault.Timeout, "the copy was stopped: %w", context.Cause(ctx))
		}
		if err != nil || done {
			return errors.Join(err, b.Finish())
		}
	}
}

// Close ends the snapshot. It may be called twice.
func (s *Snapshot) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}
