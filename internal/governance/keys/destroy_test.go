package keys_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/store"
)

// The sealed bytes of a destroyed key are in no file of the database: with the
// master key, whoever finds them has the key back.
func TestDestroyedKeyIsInNoFile(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	if _, err := s.AEAD(user(t), "wind", "dataset/a"); err != nil {
		t.Fatal(err)
	}
	sealed := p.sealed(t, "wind", "dataset/a")
	if found := p.filesWith(t, sealed); len(found) == 0 {
		t.Fatal("the key was in no file before: the test tests nothing")
	}
	if err := s.Destroy(user(t), "wind", "dataset/a"); err != nil {
		t.Fatal(err)
	}
	if found := p.filesWith(t, sealed); len(found) != 0 {
		t.Errorf("the destroyed key is still in %v", found)
	}
}

// A read that still sees the key keeps it in a file: then Destroy does not say
// that it is gone. Saying it again helps, and so does time.
func TestDestroySaysWhenTheKeyIsStillInAFile(t *testing.T) {
	t.Run("again", func(t *testing.T) { destroyWhileReading(t, true) })
	t.Run("later", func(t *testing.T) { destroyWhileReading(t, false) })
}

func destroyWhileReading(t *testing.T, again bool) {
	t.Helper()
	p := newPlace(t)
	s := p.mustOpen(t, "")
	if _, err := s.AEAD(user(t), "wind", "dataset/a"); err != nil {
		t.Fatal(err)
	}
	sealed := p.sealed(t, "wind", "dataset/a")
	reading, done := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			if _, err := (keyssql.Store{}).Find(ctx, tx, "wind", "dataset/a"); err != nil {
				return err
			}
			close(reading)
			<-done
			return nil
		})
	}()
	<-reading
	wantFault(t, s.Destroy(user(t), "wind", "dataset/a"), fault.Unavailable, "old bytes")
	if _, err := s.AEAD(user(t), "wind", "dataset/a"); !fault.Is(err, fault.Gone) {
		t.Errorf("it is not destroyed: %v", err)
	}
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if again {
		if err := s.Destroy(user(t), "wind", "dataset/a"); err != nil {
			t.Fatal(err)
		}
	}
	for found := p.filesWith(t, sealed); len(found) > 0; found = p.filesWith(t, sealed) {
		if again || t.Context().Err() != nil {
			t.Fatalf("the destroyed key is still in %v", found)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// A key that was read just before it was destroyed does not get into the cache
// after it was forgotten.
func TestDestroyedKeyStaysOutOfTheCache(t *testing.T) {
	p := newPlace(t)
	if _, err := p.mustOpen(t, "").AEAD(user(t), "wind", "a"); err != nil {
		t.Fatal(err)
	}
	slow := &slowStore{found: make(chan struct{}), forgotten: make(chan struct{})}
	s, err := keys.Open(t.Context(), keys.Config{
		DB: p.db, Store: slow, Authorizer: p.door, MasterFile: p.masterFile(), CacheTTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	slow.holds = "a"
	read := make(chan error, 1)
	go func() {
		_, err := s.AEAD(t.Context(), "wind", "a")
		read <- err
	}()
	<-slow.found
	if err := p.db.Update(user(t), "wind", func(ctx context.Context, tx *store.Tx) error {
		if err := s.DestroyTx(ctx, tx, "wind", "a"); err != nil {
			return err
		}
		tx.OnCommit(func() { close(slow.forgotten) })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if _, err := s.AEAD(t.Context(), "wind", "a"); !fault.Is(err, fault.Gone) {
		t.Errorf("a destroyed key is used: %v", err)
	}
}

// slowStore holds the first read of an owner in View until the key is forgotten.
type slowStore struct {
	keyssql.Store
	holds            string
	found, forgotten chan struct{}
}

func (s *slowStore) Find(ctx context.Context, tx *store.Tx, project, owner string) (keys.Row, error) {
	row, err := s.Store.Find(ctx, tx, project, owner)
	if owner != "" && owner == s.holds {
		s.holds = ""
		close(s.found)
		<-s.forgotten
	}
	return row, err
}

// sealed is the row of a key as it is in the database.
func (p *place) sealed(t *testing.T, project, owner string) []byte {
	t.Helper()
	var sealed []byte
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		row, err := (keyssql.Store{}).Find(ctx, tx, project, owner)
		sealed = row.Sealed
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sealed
}

// filesWith are the files of the directory that hold a part of the bytes: a row
// may lie over several pages.
func (p *place) filesWith(t *testing.T, b []byte) []string {
	t.Helper()
	files, err := os.ReadDir(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(p.dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for part := b; len(part) >= 32; part = part[32:] {
			if bytes.Contains(content, part[:32]) {
				found = append(found, f.Name())
				break
			}
		}
	}
	return found
}
