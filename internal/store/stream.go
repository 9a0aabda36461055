package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of streams.
const (
	maxBody  = 4 << 20 // bytes of one entry
	maxPage  = 10000   // entries of one read
	trimStep = 1000    // entries that one transaction of TrimStream deletes
)

// Position is a place in a stream. The zero Position is before the first entry.
// Positions rise in commit order and are never used again; they are opaque but
// for Compare and their text form.
type Position struct {
	Tx  uint64 // commit group: 0 on SQLite, the transaction id on PostgreSQL
	Seq uint64
}

// Compare is negative when p is before q, positive when it is after it.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Tx, q.Tx), cmp.Compare(p.Seq, q.Seq))
}

// String is "17-42", which ParsePosition reads.
func (p Position) String() string {
	return strconv.FormatUint(p.Tx, 10) + "-" + strconv.FormatUint(p.Seq, 10)
}

// ParsePosition reads what String wrote. Error: fault.Invalid.
func ParsePosition(s string) (Position, error) {
	tx, seq, ok := strings.Cut(s, "-")
	a, err1 := strconv.ParseUint(tx, 10, 63) // the databases count in signed numbers
	b, err2 := strconv.ParseUint(seq, 10, 63)
	if p := (Position{a, b}); ok && err1 == nil && err2 == nil && p.String() == s {
		return p, nil
	}
	if len(s) > 50 {
		s = s[:50] + "…"
	}
	return Position{}, fault.New(fault.Invalid, "%q is not a position", s).WithHint("Use the last position that the server sent.")
}

// MarshalText is String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePosition(string(b))
	return err
}

// Record is one entry of a stream.
type Record struct {
	Position Position
	Time     Time
	Project  string // owner, for filtered watches; may be empty
	Kind     string // what it is, e.g. "job.finished"
	Body     []byte // JSON, at most 4 MiB
}

// Refuse makes every Append to a stream fail with why, in this process, until it
// is called with nil. What was appended before is not touched.
func (db *DB) Refuse(stream string, why error) {
	for {
		old := db.refused.Load()
		fresh := map[string]error{}
		if old != nil {
			maps.Copy(fresh, *old)
		}
		if fresh[stream] = why; why == nil {
			delete(fresh, stream)
		}
		if db.refused.CompareAndSwap(old, &fresh) {
			return
		}
	}
}

// Append adds an entry to a stream. Errors: fault.TooLarge; that of Refuse.
func (tx *Tx) Append(ctx context.Context, stream, project, kind string, body []byte) error {
	if refused := tx.db.refused.Load(); refused != nil && (*refused)[stream] != nil {
		return (*refused)[stream]
	}
	if len(body) > maxBody {
		return fault.New(fault.TooLarge, "entry %s of %d bytes exceeds the limit of %d", kind, len(body), maxBody)
	}
	if body == nil {
		body = []byte{}
	}
	_, err := tx.NewRaw(`INSERT INTO store_stream (tx, stream, at, project, kind, body) VALUES (`+tx.db.engine.entryTx()+`, ?, ?, ?, ?, ?)`,
		stream, At(time.Now()), project, kind, body).Exec(Later(ctx))
	if err != nil {
		return err
	}
	tx.hooks.streams = append(tx.hooks.streams, stream)
	return nil
}

// ReadStream returns up to limit entries (at most 10,000) after a position, in
// commit order, and the position to go on from. No entry will ever appear before
// that position.
func (db *DB) ReadStream(ctx context.Context, stream string, after Position, limit int) ([]Record, Position, error) {
	var rows []struct {
		Tx, Seq uint64
		At      Time
		Project string
		Kind    string
		Body    []byte
	}
	err := db.engine.glance(ctx, func(ctx context.Context, from bun.IDB) error {
		return from.NewRaw(`SELECT tx, seq, at, project, kind, body FROM store_stream
			WHERE stream = ? AND `+db.engine.past()+` AND `+db.engine.below()+` ORDER BY tx, seq LIMIT ?`,
			stream, after.Tx, after.Seq, min(limit, maxPage)).Scan(ctx, &rows)
	})
	if err != nil {
		return nil, after, classify(err)
	}
	records := make([]Record, len(rows))
	for i, r := range rows {
		records[i] = Record{Position: Position{r.Tx, r.Seq}, Time: r.At, Project: r.Project, Kind: r.Kind, Body: r.Body}
		after = records[i].Position
	}
	return records, after, nil
}

// Watermark is the position at or below which no entry of any stream will
// appear any more: where a reader begins that wants only what comes now.
func (db *DB) Watermark(ctx context.Context) (Position, error) {
	p, err := db.engine.watermark(ctx)
	return p, classify(err)
}

// Newest is the position of a stream's newest committed entry; zero if the stream is empty. It may be an
// entry that ReadStream does not return yet, because an older transaction still runs.
func (db *DB) Newest(ctx context.Context, stream string) (p Position, err error) {
	err = db.engine.glance(ctx, func(ctx context.Context, from bun.IDB) error {
		return from.NewRaw(`SELECT tx, seq FROM store_stream WHERE stream = ? ORDER BY tx DESC, seq DESC LIMIT 1`, stream).Scan(ctx, &p.Tx, &p.Seq)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Position{}, nil
	}
	return p, classify(err)
}

// Changed returns a channel that is closed once the stream may have entries that
// were not readable when Changed was called, from this process or another one.
// Take the channel, read, and wait on it when there was nothing.
func (db *DB) Changed(stream string) <-chan struct{} { return db.changes.wait(stream) }

// TrimStream deletes the entries before a position, in transactions small enough
// that others get their turn between them. Readers behind the position lose the
// entries; the caller must know that none needs them.
func (db *DB) TrimStream(ctx context.Context, stream string, before Position) error {
	before.Tx, before.Seq = min(before.Tx, math.MaxInt64), min(before.Seq, math.MaxInt64)
	for {
		done := false
		err := db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
			var last Position
			err := tx.NewRaw(`SELECT tx, seq FROM store_stream WHERE stream = ? AND (tx, seq) < (?, ?)
				ORDER BY tx, seq LIMIT 1 OFFSET ?`, stream, before.Tx, before.Seq, trimStep-1).Scan(ctx, &last.Tx, &last.Seq)
			operator := "<="
			if errors.Is(err, sql.ErrNoRows) {
				done, last, operator, err = true, before, "<", nil
			}
			if err != nil {
				return err
			}
			_, err = tx.NewRaw(`DELETE FROM store_stream WHERE stream = ? AND (tx, seq) `+operator+` (?, ?)`, stream, last.Tx, last.Seq).Exec(ctx)
			return err
		})
		if err != nil || done {
			return err
		}
	}
}

// Cursor is a reader's durable place, the zero Position before it has one.
func (tx *Tx) Cursor(ctx context.Context, name string) (Position, error) {
	var p Position
	err := tx.NewRaw(`SELECT tx, seq FROM store_cursor WHERE name = ?`, name).Scan(ctx, &p.Tx, &p.Seq)
	if errors.Is(err, sql.ErrNoRows) {
		return Position{}, nil
	}
	return p, err
}

// SetCursor moves a reader's durable place. It never goes back: a reader that
// was overtaken, by a second process or a retry, gets fault.Conflict.
func (tx *Tx) SetCursor(ctx context.Context, name string, p Position) error {
	res, err := tx.NewRaw(`INSERT INTO store_cursor (name, tx, seq) VALUES (?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET tx = excluded.tx, seq = excluded.seq
		WHERE (store_cursor.tx, store_cursor.seq) <= (excluded.tx, excluded.seq)`, name, p.Tx, p.Seq).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return fault.New(fault.Conflict, "the cursor %q is already past %s", name, p).WithHint("Another process reads with the same cursor name; read again from the cursor.")
}

// Cursors returns the cursors with a prefix in their names.
func (tx *Tx) Cursors(ctx context.Context, prefix string) (map[string]Position, error) {
	var rows []struct {
		Name    string
		Tx, Seq uint64
	}
	err := tx.NewRaw(`SELECT name, tx, seq FROM store_cursor WHERE substr(name, 1, ?) = ?`, utf8.RuneCountInString(prefix), prefix).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	m := make(map[string]Position, len(rows))
	for _, r := range rows {
		m[r.Name] = Position{r.Tx, r.Seq}
	}
	return m, nil
}

// DropCursor forgets a reader's place; a reader of that name begins anew.
func (tx *Tx) DropCursor(ctx context.Context, name string) error {
	_, err := tx.NewRaw(`DELETE FROM store_cursor WHERE name = ?`, name).Exec(ctx)
	return err
}
