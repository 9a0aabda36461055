package crash

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	segments   = 12                                    // of the archive, with old entries only
	oldEntries = segments*audit.MaxSegmentLeaves + 100 // the last ones stay, beside newer ones
)

// TestKillsWhileAuditEntriesAreArchived: a server that is killed while it moves old audit entries
// out of the database loses none, doubles none, and its log is intact.
func TestKillsWhileAuditEntriesAreArchived(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server many times")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	s := live.New(t, "")
	w := &world{s: s}
	prepareOldEntries(t, s)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := w.exported(t)
	if len(before) <= oldEntries {
		t.Fatalf("the log has %d entries", len(before))
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}

	moments := rand.New(rand.NewPCG(*seed, 1))
	env, halfway := s.Env, 0
	for left := segments; left > 0 && halfway < *kills; {
		s.Env = slices.Concat(env, []string{"FALAJ_RETENTION_AUDIT=30d"})
		w.killAt(t, 1+moments.IntN(min(3, left)), time.Duration(moments.IntN(40))*time.Millisecond)
		if left = unarchived(t, s); left > 0 {
			halfway++
		}
		s.Env = env // archives nothing
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("after a kill: %v", err)
		}
		w.compare(t, before)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d segments are left", left, segments)
	}
	if halfway < 2 {
		t.Errorf("%d kills came while entries were archived: the test tests nothing", halfway)
	}
	if unarchived(t, s) == segments {
		t.Error("nothing was archived")
	}
}

// prepareOldEntries makes a database whose oldest audit entries are 100 days old.
func prepareOldEntries(t *testing.T, s *live.Server) {
	t.Helper()
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	db := openDatabase(t, s)
	ctx := t.Context()
	for from := 0; from < oldEntries; from += 1000 {
		if err := db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			for i := from; i < min(from+1000, oldEntries); i++ {
				if err := audit.Append(ctx, tx, audit.Entry{Action: "test.act", Object: fmt.Sprintf("object %d", i)}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("UPDATE store_stream SET at = ?", store.At(time.Now().Add(-100*24*time.Hour))).Exec(ctx)
		return err
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// openDatabase opens the database of a server that does not run.
func openDatabase(t *testing.T, s *live.Server) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: "sqlite://" + filepath.Join(s.Data, "falaj.db"), Migrations: schema.Migrations})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// unarchived counts the segments whose entries are still in the database.
func unarchived(t *testing.T, s *live.Server) int {
	t.Helper()
	db, left := openDatabase(t, s), 0
	if err := errors.Join(db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT COUNT(*) FROM audit_leaf WHERE action = 'test.act'").Scan(ctx, &left)
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	return left / audit.MaxSegmentLeaves
}

// killAt starts the server, and kills it a moment after it has stored so many more segments.
func (w *world) killAt(t *testing.T, more int, after time.Duration) {
	t.Helper()
	stored := func() int {
		objects, err := os.ReadDir(filepath.Join(w.s.Data, "objects", "audit"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(objects)
	}
	want := stored() + more
	if err := w.s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(live.Wait); stored() < want; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d segments were stored, waiting for %d", stored(), want)
		}
	}
	moment := time.NewTimer(after)
	defer moment.Stop()
	<-moment.C
	if err := w.s.Kill(); err != nil {
		t.Fatal(err)
	}
}

// exported verifies an export of the log, and gives the old entries by their index.
func (w *world) exported(t *testing.T) map[int64]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, args := range [][]string{
		{"audit", "export", "-f", file},
		{"audit", "verify", file, "--checkpoints", filepath.Join(w.s.Data, "checkpoints")},
	} {
		if out, code := w.s.Command(t.Context(), args...); code != 0 {
			t.Fatalf("falaj %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[int64]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Buffer(nil, 1<<24); lines.Scan(); {
		var e struct{ Index *int64 }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Index == nil {
			continue
		}
		if entries[*e.Index] != "" {
			t.Errorf("entry %d is doubled", *e.Index)
		}
		entries[*e.Index] = lines.Text()
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return entries
}

// compare compares the log with an earlier export of it.
func (w *world) compare(t *testing.T, before map[int64]string) {
	t.Helper()
	now := w.exported(t)
	wrong := 0
	for index, entry := range before {
		if now[index] != entry {
			if wrong++; wrong < 4 {
				t.Errorf("entry %d is\n%s\nbut was\n%s", index, now[index], entry)
			}
		}
	}
	for i := range int64(len(now)) {
		if now[i] == "" {
			t.Fatalf("entry %d of %d is lost", i, len(now))
		}
	}
	if wrong > 0 {
		t.Fatalf("%d entries of %d differ", wrong, len(before))
	}
}
