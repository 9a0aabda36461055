package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Upgrade is what this program changes in the schema of a database that an older one wrote.
// The zero Upgrade changes nothing.
type Upgrade struct {
	Schemas []SchemaChange // that change, in the order in which they do
	Steps   int            // migrations in all
	Size    int64          // bytes of the database before; 0 when it is not known
}

// SchemaChange is the versions of one schema before and after. From is 0 for a new schema.
type SchemaChange struct {
	Name     string
	From, To int64
}

// Pending reports whether there is anything to change.
func (u Upgrade) Pending() bool { return u.Steps > 0 }

// Room is the free space that the upgrade needs on the database's disk, in bytes: a table
// that is rewritten is stored twice, and once more in the log of changes.
func (u Upgrade) Room() int64 { return 3 * u.Size }

// String lists the schemas: "compute 12 to 14, dataset 3 to 4".
func (u Upgrade) String() string {
	said := make([]string, 0, len(u.Schemas))
	for _, s := range u.Schemas {
		said = append(said, fmt.Sprintf("%s %d to %d", s.Name, s.From, s.To))
	}
	return strings.Join(said, ", ")
}

// schemaSet is one set of migrations on one of the databases.
type schemaSet struct {
	Migrations
	files    map[int64]string // by version
	excluded []string         // files of the other database
	latest   int64
}

// schemas are the store's own set and then the others.
func (own ownSchema) schemas(sets []Migrations) ([]schemaSet, error) {
	dir, err := fs.Sub(migrationFiles, own.dir)
	if err != nil {
		return nil, err
	}
	all := make([]schemaSet, 0, len(sets)+1)
	for _, m := range append([]Migrations{{Name: "store", FS: dir}}, sets...) {
		s := schemaSet{Migrations: m, files: map[int64]string{}}
		if s.excluded, err = fs.Glob(m.FS, own.others); err != nil {
			return nil, err
		}
		files, err := fs.Glob(m.FS, "*.sql")
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if ok, _ := filepath.Match(own.others, file); ok {
				continue
			}
			version, err := goose.NumericComponent(file)
			if err != nil {
				return nil, fault.Wrap(err, "migration %s of %s", file, m.Name)
			}
			s.files[version] = file
			s.latest = max(s.latest, version)
		}
		all = append(all, s)
	}
	return all, nil
}

// compare says what the schemas of a database lack. fresh is true for a database without
// any. Error: fault.Conflict for one that a newer program has changed: this one would read
// and write what it does not know.
func compare(ctx context.Context, db *sql.DB, own ownSchema, all []schemaSet) (u Upgrade, fresh bool, err error) {
	tables, err := texts(ctx, db, own.tables)
	if err != nil {
		return u, false, err
	}
	there := map[string]bool{}
	for _, table := range tables {
		there[strings.TrimPrefix(table, versionTable)] = true
	}
	fresh = len(there) == 0
	for _, s := range all {
		applied := map[int64]bool{}
		change := SchemaChange{Name: s.Name, To: s.latest}
		if there[s.Name] {
			delete(there, s.Name)
			if applied, err = versions(ctx, db, s.Name); err != nil {
				return u, false, err
			}
			for version := range applied {
				change.From = max(change.From, version)
			}
		}
		if change.From > s.latest {
			return u, false, newer("its schema %s is version %d, but this program supports version %d", s.Name, change.From, s.latest)
		}
		steps := 0
		for version := range s.files {
			if !applied[version] {
				steps++
			}
		}
		if steps > 0 {
			u.Steps += steps
			u.Schemas = append(u.Schemas, change)
		}
	}
	for name := range there {
		return u, false, newer("it has a schema %s, which this program does not support", name)
	}
	return u, fresh, nil
}

func newer(format string, args ...any) error {
	return fault.New(fault.Conflict, "the database was written by a newer version of Falaj: "+format, args...).
		WithHint("Start the version that wrote it, or restore a backup of this version into an empty data directory.")
}

const versionTable = "store_version_"

func versions(ctx context.Context, db *sql.DB, name string) (map[int64]bool, error) {
	rows, err := db.QueryContext(ctx, `SELECT version_id FROM `+versionTable+name+` WHERE is_applied`) //nolint:gosec // the name of one of our sets
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[int64]bool{}
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out[v] = true
	}
	return out, rows.Err()
}

func texts(ctx context.Context, db *sql.DB, query string) (out []string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// migrate brings the schemas to what this program knows: the store's own, then the others
// in order. Each migration is a transaction, so one that is interrupted begins again.
func migrate(ctx context.Context, db *sql.DB, own ownSchema, cfg Config, room func(*Upgrade) error) error {
	all, err := own.schemas(cfg.Migrations)
	if err != nil {
		return err
	}
	u, fresh, err := compare(ctx, db, own, all)
	if err != nil {
		return fault.Wrap(classify(err), "schema of the database")
	}
	log := cfg.Log
	if log == nil || fresh {
		log = slog.New(slog.DiscardHandler)
	}
	if u.Pending() && !fresh {
		if err := room(&u); err != nil {
			return err
		}
		if cfg.Upgrading != nil {
			if err := cfg.Upgrading(u); err != nil {
				return err
			}
		}
		log.InfoContext(ctx, "upgrading the database", slog.Int("steps", u.Steps), slog.String("schemas", u.String()), slog.Int64("bytes", u.Size))
	}
	began, step := time.Now(), 0
	for _, s := range all {
		if !slices.ContainsFunc(u.Schemas, func(c SchemaChange) bool { return c.Name == s.Name }) {
			continue
		}
		p, err := goose.NewProvider(own.dialect, db, s.FS,
			goose.WithTableName(versionTable+s.Name), goose.WithDisableGlobalRegistry(true), goose.WithExcludeNames(s.excluded))
		if err == nil && fresh {
			_, err = p.Up(ctx)
		}
		for err == nil && !fresh {
			var done *goose.MigrationResult
			if done, err = p.UpByOne(ctx); err == nil {
				step++
				log.InfoContext(ctx, "upgrading the database", slog.String("step", fmt.Sprintf("%d of %d", step, u.Steps)),
					slog.String("schema", s.Name), slog.Int64("version", done.Source.Version), slog.Duration("took", done.Duration))
				if cfg.Upgraded != nil {
					cfg.Upgraded(step, u)
				}
			}
		}
		if err != nil && !errors.Is(err, goose.ErrNoNextVersion) {
			return fault.Wrap(classify(err), "migrations of %s", s.Name)
		}
	}
	if u.Pending() {
		log.InfoContext(ctx, "the database upgrade is complete", slog.Duration("took", time.Since(began)))
	}
	return nil
}

// roomBeside refuses an upgrade that the disk of a SQLite database has no room for.
func roomBeside(path string) func(*Upgrade) error {
	return func(u *Upgrade) error {
		for _, suffix := range []string{"", "-wal"} {
			if info, err := os.Stat(path + suffix); err == nil {
				u.Size += info.Size()
			}
		}
		var disk unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(path), &disk); err != nil {
			return fault.Wrap(err, "reading the free space of the database's disk")
		}
		if free := int64(disk.Bavail) * disk.Bsize; free < u.Room() { //nolint:gosec // no disk has 2⁶³ blocks
			return fault.New(fault.Exhausted, "upgrading the database needs %d bytes of free space, but its disk has %d", u.Room(), free).
				WithHint("Free space, or move the data directory to a larger disk. Nothing was changed: the previous version still starts.")
		}
		return nil
	}
}

// roomOf sets the size of a PostgreSQL database. The free space of its disk is not known here.
func roomOf(ctx context.Context, db *sql.DB) func(*Upgrade) error {
	return func(u *Upgrade) error {
		return db.QueryRowContext(ctx, `SELECT pg_database_size(current_database())`).Scan(&u.Size)
	}
}

// Pending says what Open would change in a database, and changes nothing itself. The zero
// Upgrade is for one that is up to date, or new. Errors as of Open.
func Pending(ctx context.Context, cfg Config) (Upgrade, error) {
	if path, ok := sqlitePath(cfg.URL); ok {
		beside := roomBeside(path)
		return pendingInFile(ctx, path, "", cfg.Migrations, func(u *Upgrade) error { _ = beside(u); return nil }) // whoever asks compares
	}
	_, connector, err := connectPostgres(cfg)
	if err != nil {
		return Upgrade{}, err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	return pending(ctx, db, postgresMigrations, cfg.Migrations, roomOf(ctx, db))
}

// NotNewer refuses the file of a SQLite database that a newer program has changed. The file
// is a copy without writers, such as a backup's; nothing is left beside it.
func NotNewer(ctx context.Context, path string, sets []Migrations) error {
	_, err := pendingInFile(ctx, path, "&immutable=1", sets, func(*Upgrade) error { return nil })
	return err
}

func pendingInFile(ctx context.Context, path, options string, sets []Migrations, room func(*Upgrade) error) (Upgrade, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return Upgrade{}, nil
	}
	db := sql.OpenDB(&sqliteReader{dsn: "file:" + url.PathEscape(path) + "?mode=ro&_query_only=1&_busy_timeout=" + busyTimeout + options})
	defer func() { _ = db.Close() }()
	return pending(ctx, db, sqliteMigrations, sets, room)
}

func pending(ctx context.Context, db *sql.DB, own ownSchema, sets []Migrations, room func(*Upgrade) error) (Upgrade, error) {
	all, err := own.schemas(sets)
	if err != nil {
		return Upgrade{}, err
	}
	u, fresh, err := compare(ctx, db, own, all)
	if err != nil || fresh || !u.Pending() {
		return Upgrade{}, fault.Wrap(classify(err), "schema of the database")
	}
	return u, classify(room(&u))
}
