package store

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"
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
}

var (
	sqliteMigrations   = ownSchema{goose.DialectSQLite3, "migrations/sqlite", "*.postgres.sql"}
	postgresMigrations = ownSchema{goose.DialectPostgres, "migrations/postgres", "*.sqlite.sql"}
)

// Open opens the database and applies the migrations.
//
// Errors: fault.Invalid for a URL or a database that Falaj cannot use (the hint
// says how to make one), fault.Unavailable when it does not answer.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	db := &DB{later: later{stop: make(chan struct{})}}
	if path, ok := sqlitePath(cfg.URL); ok {
		e, err := openSQLite(ctx, path, cfg.Migrations)
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

// notNewer refuses a database that a newer version of Falaj has changed: this one would
// read and write what it does not know.
func notNewer(ctx context.Context, p *goose.Provider, name string) error {
	have, known, err := p.GetVersions(ctx)
	if err != nil {
		return fault.Wrap(classify(err), "migrations of %s", name)
	}
	if have > known {
		return fault.New(fault.Conflict, "the database is of a newer version of Falaj: its schema %s is version %d, and this program knows version %d", name, have, known).
			WithHint("Start the version that wrote it, or restore a backup of this version into an empty data directory.")
	}
	return nil
}

// migrate applies the store's own migrations, then the others in order.
func migrate(ctx context.Context, db *sql.DB, own ownSchema, others []Migrations) error {
	dir, err := fs.Sub(migrationFiles, own.dir)
	if err != nil {
		return err
	}
	var sets []*goose.Provider
	all := append([]Migrations{{Name: "store", FS: dir}}, others...)
	for _, m := range all {
		others, err := fs.Glob(m.FS, own.others)
		if err != nil {
			return err
		}
		p, err := goose.NewProvider(own.dialect, db, m.FS,
			goose.WithTableName("store_version_"+m.Name), goose.WithDisableGlobalRegistry(true), goose.WithExcludeNames(others))
		if err != nil {
			return fault.Wrap(err, "migrations of %s", m.Name)
		}
		if err := notNewer(ctx, p, m.Name); err != nil { // before any of them changes it
			return err
		}
		sets = append(sets, p)
	}
	for i, p := range sets {
		if _, err := p.Up(ctx); err != nil {
			return fault.Wrap(classify(err), "migrations of %s", all[i].Name)
		}
	}
	return nil
}
