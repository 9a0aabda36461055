package store_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestNewerSchema: a database that a newer version has changed is refused, and nothing in
// it is changed, also not by migrations of others that it lacks.
func TestNewerSchema(t *testing.T) {
	file := func(name, sql string) fstest.MapFS {
		return fstest.MapFS{name: {Data: []byte("-- +goose Up\n" + sql + ";\n")}}
	}
	first := "CREATE TABLE newer_row (id BIGINT NOT NULL PRIMARY KEY)"
	newer := file("00001_a.sql", first)
	newer["00007_b.sql"] = file("x", "CREATE TABLE newer_more (id BIGINT NOT NULL PRIMARY KEY)")["x"]
	for name, url := range map[string]string{"SQLite": "sqlite://" + filepath.Join(t.TempDir(), "a.db"), "PostgreSQL": storetest.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			open := func(sets ...store.Migrations) error {
				db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: sets})
				if err == nil {
					err = db.Close()
				}
				return err
			}
			if err := open(store.Migrations{Name: "newer", FS: newer}); err != nil {
				t.Fatal(err)
			}
			other := store.Migrations{Name: "other", FS: file("00001_c.sql", "CREATE TABLE newer_other (id BIGINT NOT NULL PRIMARY KEY)")}
			err := open(other, store.Migrations{Name: "newer", FS: file("00001_a.sql", first)})
			if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "newer is version 7, but this program supports version 1") || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
			if err := open(); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "a schema newer, which this program does not support") {
				t.Errorf("without the whole schema: %v", err)
			}
			if _, err := store.Pending(t.Context(), store.Config{URL: url}); !fault.Is(err, fault.Conflict) {
				t.Errorf("asked whether an upgrade waits: %v", err)
			}
			db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: []store.Migrations{{Name: "newer", FS: newer}}})
			if err != nil {
				t.Fatal("the version that wrote it does not open it any more: ", err)
			}
			defer db.Close()
			if err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.NewRaw("SELECT id FROM newer_other").Exec(ctx)
				return err
			}); err == nil {
				t.Error("a program that refused the database made a table in it")
			}
		})
	}
}
