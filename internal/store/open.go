package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	_ "github.com/mattn/go-sqlite3" // driver
	"github.com/pressly/goose/v3"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
)

// DB is an open database. Safe for concurrent use; Close it.
type DB struct {
	mu  sync.Mutex
	bun *bun.DB
}

// Open opens the database and applies the migrations.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	path, ok := strings.CutPrefix(cfg.URL, "sqlite://")
	if !ok {
		return nil, fault.New(fault.Unsupported, "store URL must begin with sqlite://")
	}
	sqldb, err := sql.Open("sqlite3", "file:"+path+"?_journal=WAL&_sync=FULL&_txlock=immediate&_busy_timeout=10000&_fk=1")
	if err != nil {
		return nil, err
	}
	if _, err := sqldb.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS store_stream (stream TEXT NOT NULL, seq INTEGER PRIMARY KEY AUTOINCREMENT, at BIGINT NOT NULL, project TEXT NOT NULL, kind TEXT NOT NULL, body BYTEA NOT NULL)`); err != nil {
		return nil, err
	}
	for _, m := range cfg.Migrations {
		p, err := goose.NewProvider(goose.DialectSQLite3, sqldb, m.FS, goose.WithTableName("store_version_"+m.Name), goose.WithDisableGlobalRegistry(true))
		if err != nil {
			return nil, fmt.Errorf("migrations of %s: %w", m.Name, err)
		}
		if _, err := p.Up(ctx); err != nil {
			return nil, fmt.Errorf("migrations of %s: %w", m.Name, err)
		}
	}
	return &DB{bun: bun.NewDB(sqldb, sqlitedialect.New())}, nil
}

// Close waits for running transactions and closes the database.
func (db *DB) Close() error { return db.bun.Close() }

// Update runs fn in a write transaction and returns when it is durable. lane is
// the project (or "" for the system) whose turn it is in the fair write queue.
func (db *DB) Update(ctx context.Context, lane string, fn func(ctx context.Context, tx *Tx) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	h := &hooks{}
	err := db.bun.RunInTx(ctx, nil, func(ctx context.Context, btx bun.Tx) error {
		return fn(ctx, &Tx{IDB: btx, hooks: h})
	})
	if err != nil {
		return err
	}
	for _, f := range h.committed {
		f()
	}
	return nil
}

// View runs fn in a read transaction that sees one snapshot.
func (db *DB) View(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return fn(ctx, &Tx{IDB: db.bun, hooks: &hooks{}})
}

// Savepoint runs fn so that its error undoes only what fn did.
func (tx *Tx) Savepoint(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return tx.IDB.RunInTx(ctx, nil, func(ctx context.Context, inner bun.Tx) error {
		return fn(ctx, &Tx{IDB: inner, hooks: tx.hooks})
	})
}

// Append adds an entry to a stream.
func (tx *Tx) Append(ctx context.Context, stream, project, kind string, body []byte) error {
	_, err := tx.NewRaw(`INSERT INTO store_stream (stream, at, project, kind, body) VALUES (?, ?, ?, ?, ?)`,
		stream, At(time.Now()), project, kind, body).Exec(ctx)
	return err
}

// ReadStream returns up to limit entries after a position, in commit order, and
// the position to go on from.
func (db *DB) ReadStream(ctx context.Context, stream string, after Position, limit int) ([]Record, Position, error) {
	var rows []struct {
		Seq     uint64
		At      Time
		Project string
		Kind    string
		Body    []byte
	}
	err := db.bun.NewRaw(`SELECT seq, at, project, kind, body FROM store_stream WHERE stream = ? AND seq > ? ORDER BY seq LIMIT ?`, stream, after.Seq, limit).Scan(ctx, &rows)
	if err != nil {
		return nil, after, err
	}
	records := make([]Record, len(rows))
	for i, r := range rows {
		records[i] = Record{Position: Position{Seq: r.Seq}, Time: r.At, Project: r.Project, Kind: r.Kind, Body: r.Body}
		after = records[i].Position
	}
	return records, after, nil
}
