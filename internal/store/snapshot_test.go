package store_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func entry(ctx context.Context, t *testing.T, db *store.DB, kind string) {
	t.Helper()
	if err := db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, "acts", "", kind, nil) }); err != nil {
		t.Error(err)
	}
}

func kinds(t *testing.T, db *store.DB) (all []string) {
	t.Helper()
	records, _, err := db.ReadStream(t.Context(), "acts", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		all = append(all, r.Kind)
	}
	return all
}

// A snapshot has what was committed when it was taken, and neither its own note nor what
// waited meanwhile or came later.
func TestSnapshot(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	db, err := store.Open(ctx, store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 20 {
		entry(ctx, t, db, "before")
	}
	waited := make(chan struct{})
	note := func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, "acts", "", "note", nil) }
	s, err := db.Snapshot(ctx, note, func(_ context.Context, sequence store.Position) error {
		go func() { // not the closure's context, which is inside the transaction
			defer close(waited)
			entry(t.Context(), t, db, "meanwhile")
		}()
		if sequence.Seq != 20 {
			t.Errorf("the sequence is %s", sequence)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	<-waited
	entry(ctx, t, db, "after")
	path := filepath.Join(dir, "copy.db")
	if err := errors.Join(s.CopyTo(ctx, path), s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if n := len(kinds(t, db)); n != 23 {
		t.Errorf("the database has %d entries", n)
	}
	of, err := store.Open(ctx, store.Config{URL: "sqlite://" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	all := kinds(t, of)
	for _, kind := range all {
		if kind != "before" {
			t.Errorf("the copy has %q", kind)
		}
	}
	if len(all) != 20 {
		t.Errorf("the copy has %d entries", len(all))
	}

	// What fails leaves no note, and holds nothing up.
	if _, err := db.Snapshot(ctx, note, func(context.Context, store.Position) error { return errors.New("the disk is full") }); err == nil {
		t.Error("a failure is no error")
	}
	if n := len(kinds(t, db)); n != 23 {
		t.Errorf("after a failure the database has %d entries", n)
	}
	stopped, cancel := context.WithCancel(ctx)
	s, err = db.Snapshot(ctx, note, func(context.Context, store.Position) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cancel()
	if err := s.CopyTo(stopped, filepath.Join(dir, "stopped.db")); err != nil && !fault.Is(err, fault.Timeout) {
		t.Errorf("stopped: %v", err)
	}
}

func TestSnapshotOfPostgreSQL(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: storetest.Postgres(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.Snapshot(t.Context(), func(context.Context, *store.Tx) error { return nil }, func(context.Context, store.Position) error { return nil })
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}
