package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestUpgrade: whoever opens hears what an upgrade changes before it does, may refuse it, and
// reads how far it is; one that fails in the middle goes on where it was.
func TestUpgrade(t *testing.T) {
	migration := func(sql string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql + ";\n")}
	}
	first := fstest.MapFS{"00001_a.sql": migration("CREATE TABLE up_a (id BIGINT NOT NULL)")}
	second := fstest.MapFS{
		"00001_a.sql": first["00001_a.sql"],
		"00002_b.sql": migration("CREATE TABLE up_b (id BIGINT NOT NULL)"),
		"00005_c.sql": migration("INSERT INTO up_a SELECT id FROM up_missing"),
	}
	for name, url := range map[string]string{"SQLite": "sqlite://" + filepath.Join(t.TempDir(), "a.db"), "PostgreSQL": storetest.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			var told []store.Upgrade
			var answer error
			config := func(fs fstest.MapFS) store.Config {
				return store.Config{
					URL: url, Migrations: []store.Migrations{{Name: "up", FS: fs}}, Log: slog.New(slog.NewTextHandler(&log, nil)),
					Upgrading: func(u store.Upgrade) error { told = append(told, u); return answer },
				}
			}
			open := func(fs fstest.MapFS) error {
				db, err := store.Open(t.Context(), config(fs))
				if err == nil {
					err = db.Close()
				}
				return err
			}
			pending := func(fs fstest.MapFS) string {
				u, err := store.Pending(t.Context(), config(fs))
				return fmt.Sprint(u, u.Steps, u.Size > 0, err)
			}
			if diff := cmp.Diff(" 0 false <nil>", pending(first)); diff != "" {
				t.Errorf("of a new database: %s", diff)
			}
			for range 2 {
				if err := open(first); err != nil {
					t.Fatal(err)
				}
			}
			if told != nil || log.Len() > 0 {
				t.Errorf("a new database is an upgrade: %v %s", told, &log)
			}
			if diff := cmp.Diff("up 1 to 5 2 true <nil>", pending(second)); diff != "" {
				t.Error(diff)
			}
			if answer = errors.New("not now"); !errors.Is(open(second), answer) {
				t.Error("nobody was asked")
			}
			if answer = nil; len(told) != 1 || told[0].String() != "up 1 to 5" || told[0].Steps != 2 || told[0].Size == 0 {
				t.Errorf("told %+v", told)
			}
			if diff := cmp.Diff("up 1 to 5 2 true <nil>", pending(second)); diff != "" {
				t.Errorf("a refused upgrade changed something: %s", diff)
			}
			if err := open(second); err == nil {
				t.Fatal("a migration that reads a missing table succeeds")
			}
			if diff := cmp.Diff("up 2 to 5 1 true <nil>", pending(second)); diff != "" {
				t.Errorf("after the failure: %s", diff)
			}
			second["00005_c.sql"] = migration("INSERT INTO up_a SELECT id FROM up_b")
			defer func() { second["00005_c.sql"] = migration("INSERT INTO up_a SELECT id FROM up_missing") }()
			if err := open(second); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`step="1 of 2" schema=up version=2`, `step="1 of 1" schema=up version=5`, "the database upgrade is complete"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %s: %s", want, &log)
				}
			}
			db, err := store.Open(context.Background(), config(second))
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			if len(told) != 3 {
				t.Errorf("an open without change is an upgrade: %v", told)
			}
		})
	}
}
