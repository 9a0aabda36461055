package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/store"
)

// A set of migrations runs once in a test process. Each database after the first is a copy:
// under the race detector the migrations of all domains take two seconds of CPU.

// SQLiteURL returns the URL of falaj.db in dir. If the file does not exist, it is created
// with the migrations and the store's own.
func SQLiteURL(tb testing.TB, dir string, migrations ...store.Migrations) string {
	tb.Helper()
	path := filepath.Join(dir, "falaj.db")
	if err := CreateSQLite(path, migrations...); err != nil {
		tb.Fatal(err)
	}
	return "sqlite://" + path
}

// CreateSQLite creates a database file that has the migrations and the store's own. It leaves
// an existing file as it is.
func CreateSQLite(path string, migrations ...store.Migrations) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := schemaKey(migrations)
	if err != nil {
		return err
	}
	made, _ := files.LoadOrStore(key, sync.OnceValues(func() ([]byte, error) { return migratedFile(migrations) }))
	content, err := made.(func() ([]byte, error))()
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// files holds the content of database files, by schemaKey.
var files sync.Map

func migratedFile(migrations []store.Migrations) (content []byte, err error) {
	dir, err := os.MkdirTemp("", "falaj-schema-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "falaj.db")
	db, err := store.Open(context.Background(), store.Config{URL: "sqlite://" + path, Migrations: migrations})
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the closed database %s still has a log: %w", path, err)
	}
	return os.ReadFile(path)
}

// schemaKey identifies migrations by their names, order and content.
func schemaKey(migrations []store.Migrations) (key [32]byte, err error) {
	h := sha256.New()
	for _, m := range migrations {
		fmt.Fprintf(h, "%q\n", m.Name)
		names, err := fs.Glob(m.FS, "*.sql")
		if err != nil {
			return key, err
		}
		for _, name := range names {
			content, err := fs.ReadFile(m.FS, name)
			if err != nil {
				return key, err
			}
			fmt.Fprintf(h, "%q %d\n", name, len(content))
			h.Write(content)
		}
	}
	return [32]byte(h.Sum(nil)), nil
}
