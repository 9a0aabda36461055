package store

import (
	"context"
	"embed"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/falaj-ml/falaj/internal/fault"
)

//go:embed migrations
var migrationFiles embed.FS

// ownSchema is the store's own tables on one of the databases, and which migrations of
// others are not for it.
type ownSchema struct {
	dialect goose.Dialect
	dir     string
	others  string
	tables  string // lists the tables that hold the versions of schemas
}

var (
	sqliteMigrations = ownSchema{
		goose.DialectSQLite3, "migrations/sqlite", "*.postgres.sql",
		`SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'store\_version\_%' ESCAPE '\'`,
	}
	postgresMigrations = ownSchema{
		goose.DialectPostgres, "migrations/postgres", "*.sqlite.sql",
		`SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'store\_version\_%'`,
	}
)

// Open opens the database and applies the migrations.
//
// Errors: fault.Invalid for a URL or a database that Falaj cannot use (the hint
// says how to make one), fault.Unavailable when it does not answer, fault.Conflict for a
// database of a newer version, fault.Exhausted when its disk has no room for an upgrade.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	db := &DB{later: later{stop: make(chan struct{})}}
	if path, ok := sqlitePath(cfg.URL); ok {
		e, err := openSQLite(ctx, path, cfg)
		if err != nil {
			return nil, err
		}
		db.engine = e
		if e.unscrubbed {
			db.scrubLater(nil)
		}
	} else if isPostgres(cfg.URL) {
		e, err := openPostgres(ctx, cfg)
		if err != nil {
			return nil, err
		}
		db.engine = e
	} else {
		return nil, errScheme
	}
	db.changes = newChanges(db.engine)
	return db, nil
}

var errScheme = fault.New(fault.Invalid, "the store URL is neither sqlite:// nor postgres://").
	WithHint("Use sqlite:///path/to/falaj.db or postgres://user@host/database.")

func isPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

// CheckURL says what is wrong with a URL without asking the database. Error:
// fault.Invalid, also for a connection to another host that TLS does not protect.
func CheckURL(url string) error {
	if _, ok := sqlitePath(url); ok {
		return nil
	}
	if !isPostgres(url) {
		return errScheme
	}
	_, err := parsePostgres(url)
	return err
}
