package keys_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// door is an authorizer that allows all but what a test denies.
type door struct {
	mu     sync.Mutex
	denied policy.Action
	asked  []policy.Object
}

func (d *door) Allow(_ context.Context, action policy.Action, object policy.Object) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, object)
	if action == d.denied {
		return fault.New(fault.PermissionDenied, "no %s for you", action)
	}
	return nil
}

type place struct {
	dir  string
	db   *store.DB
	door *door
}

// schema lists the migrations of the database.
var schema = []store.Migrations{keyssql.Migrations}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	return newPlaceOn(t, dir, storetest.SQLiteURL(t, dir, schema...))
}

// onEachDatabase runs a test on SQLite and on PostgreSQL.
func onEachDatabase(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, newPlace(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, newPlaceOn(t, t.TempDir(), storetest.Postgres(t, schema...))) })
}

func newPlaceOn(t *testing.T, dir, url string) *place {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{
		URL:        url,
		Migrations: schema,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &place{dir: dir, db: db, door: &door{}}
}

func (p *place) masterFile() string { return filepath.Join(p.dir, "master.key") }

func (p *place) open(ctx context.Context, passphrase string) (*keys.Service, error) {
	return keys.Open(ctx, keys.Config{
		DB: p.db, Store: keyssql.Store{}, Authorizer: p.door,
		MasterFile: p.masterFile(), Passphrase: []byte(passphrase), CacheTTL: time.Hour,
	})
}

func (p *place) mustOpen(t *testing.T, passphrase string) *keys.Service {
	t.Helper()
	s, err := p.open(t.Context(), passphrase)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func user(t *testing.T) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

func wantFault(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v (%v), want %v with %q", err, fault.KindOf(err), kind, text)
	}
	if kind == fault.Invalid && fault.HintOf(err) == "" {
		t.Fatalf("%v has no hint", err)
	}
}

func TestKeysSurviveARestart(t *testing.T) { onEachDatabase(t, keysSurviveARestart) }

func keysSurviveARestart(t *testing.T, p *place) {
	t.Helper()
	s := p.mustOpen(t, "")
	ctx := user(t)

	a, err := s.AEAD(ctx, "wind", "dataset/weather")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := a.Encrypt([]byte("secret"), []byte("place"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.StreamingAEAD(ctx, "wind", "dataset/weather")
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	w, err := st.NewEncryptingWriter(&stream, []byte("place"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("streamed")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	key, err := s.DataKey(ctx, "wind", "dataset/weather", "parquet footer")
	if err != nil {
		t.Fatal(err)
	}

	s = p.mustOpen(t, "")
	a, err = s.AEAD(ctx, "wind", "dataset/weather")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.Decrypt(sealed, []byte("place")); err != nil || string(got) != "secret" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	st, err = s.StreamingAEAD(ctx, "wind", "dataset/weather")
	if err != nil {
		t.Fatal(err)
	}
	r, err := st.NewDecryptingReader(&stream, []byte("place"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "streamed" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	again, err := s.DataKey(ctx, "wind", "dataset/weather", "parquet footer")
	if err != nil || !bytes.Equal(again, key) || len(key) != 32 {
		t.Errorf("data key changed: %v", err)
	}
}

func TestScopesAndUsesHaveTheirOwnKeys(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	ctx := user(t)
	scopes := []keys.Scope{{}, {"", "audit-log"}, {"wind", ""}, {"wind", "artifacts"}, {"wind", "dataset/a"}, {"sun", "dataset/a"}}
	seen := map[string]string{}
	for _, at := range scopes {
		for _, use := range []string{"one", "two"} {
			k, err := s.DataKey(ctx, at.Project, at.Owner, use)
			if err != nil {
				t.Fatal(err)
			}
			name := at.Project + "|" + at.Owner + "|" + use
			if other, ok := seen[string(k)]; ok {
				t.Errorf("%s and %s share a key", name, other)
			}
			seen[string(k)] = name
		}
	}
	a, err := s.AEAD(ctx, "wind", "dataset/a")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := a.Encrypt([]byte("x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.AEAD(ctx, "sun", "dataset/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Decrypt(sealed, nil); err == nil {
		t.Error("another project's key opened it")
	}
}

// TestDataKeyIsTheCallers: what a caller does to a derived key does not reach the next.
func TestDataKeyIsTheCallers(t *testing.T) {
	s := newPlace(t).mustOpen(t, "")
	first, err := s.DataKey(user(t), "wind", "artifacts", "x")
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(first)
	clear(first)
	for i := range 200 { // more than are remembered
		if _, err := s.DataKey(user(t), "wind", "artifacts", "use "+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
		if again, err := s.DataKey(user(t), "wind", "artifacts", "x"); err != nil || !bytes.Equal(again, want) {
			t.Fatalf("it is another key: %v", err)
		}
	}
}

func TestNoKeyIsStoredBare(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	key, err := s.DataKey(user(t), "wind", "artifacts", "x")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Sealed []byte }
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT sealed FROM keys_key").Scan(ctx, &rows)
	}); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 {
		t.Fatalf("%d rows, want the project's and the owner's", len(rows))
	}
	for _, r := range rows {
		if bytes.Contains(r.Sealed, key) || bytes.Contains(r.Sealed, []byte("secret")) || bytes.Contains(r.Sealed, []byte("type.googleapis.com")) {
			t.Error("a row holds key material in clear")
		}
	}
}

func TestSealedRowsOpenOnlyAtTheirPlace(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	for _, owner := range []string{"a", "b"} {
		if _, err := s.AEAD(user(t), "wind", owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("UPDATE keys_key SET sealed = (SELECT sealed FROM keys_key WHERE owner = 'a') WHERE owner = 'b'").Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	_, err := p.mustOpen(t, "").AEAD(user(t), "wind", "b")
	wantFault(t, err, fault.Internal, "cannot be decrypted")
}

func TestDestroy(t *testing.T) { onEachDatabase(t, destroy) }

func destroy(t *testing.T, p *place) {
	t.Helper()
	s := p.mustOpen(t, "")
	ctx := user(t)
	for _, owner := range []string{"dataset/a", "dataset/b"} {
		if _, err := s.AEAD(ctx, "wind", owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Destroy(ctx, "wind", "dataset/a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(ctx, "wind", "dataset/a"); err != nil {
		t.Errorf("the second time: %v", err)
	}
	for name, s := range map[string]*keys.Service{"same process": s, "after a restart": p.mustOpen(t, "")} {
		_, err := s.AEAD(ctx, "wind", "dataset/a")
		wantFault(t, err, fault.Gone, "destroyed")
		_, err = s.DataKey(ctx, "wind", "dataset/a", "x")
		wantFault(t, err, fault.Gone, "destroyed")
		if _, err := s.AEAD(ctx, "wind", "dataset/b"); err != nil {
			t.Errorf("%s: a sibling went too: %v", name, err)
		}
	}

	// A project takes its owners with it, also ones not made yet.
	if err := s.Destroy(ctx, "wind", ""); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{"", "dataset/b", "dataset/new"} {
		_, err := s.StreamingAEAD(ctx, "wind", owner)
		wantFault(t, err, fault.Gone, "destroyed")
	}
	if err := p.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var rows []struct{ Sealed []byte }
		if err := tx.NewRaw("SELECT sealed FROM keys_key WHERE project = 'wind'").Scan(ctx, &rows); err != nil {
			return err
		}
		for _, r := range rows {
			if len(bytes.Trim(r.Sealed, "\x00")) > 0 {
				t.Error("sealed bytes are left")
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	records, _, err := p.db.ReadStream(ctx, "audit", store.Position{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	destroyed := 0
	for _, r := range records {
		if r.Kind == "keys.destroy" {
			destroyed++
			if !bytes.Contains(r.Body, []byte(`"usr_1"`)) {
				t.Errorf("no actor in %s", r.Body)
			}
		}
	}
	if destroyed != 3 {
		t.Errorf("%d audit rows of destruction, want 3: a, the project, b", destroyed)
	}
	events, _, err := p.db.ReadStream(ctx, "event", store.Position{}, 100)
	if err != nil || len(events) != 3 || events[0].Kind != keys.KeyDestroyed {
		t.Errorf("events %v, %v", events, err)
	}
}

func TestDestroyIsUndoneWithItsTransaction(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	ctx := user(t)
	if _, err := s.AEAD(ctx, "wind", "a"); err != nil {
		t.Fatal(err)
	}
	stop := fault.New(fault.Conflict, "changed my mind")
	err := p.db.Update(ctx, "wind", func(ctx context.Context, tx *store.Tx) error {
		if err := s.DestroyTx(ctx, tx, "wind", "a"); err != nil {
			return err
		}
		return stop
	})
	wantFault(t, err, fault.Conflict, "mind")
	if _, err := p.mustOpen(t, "").AEAD(ctx, "wind", "a"); err != nil {
		t.Errorf("the key is gone: %v", err)
	}
}

func TestDestroyRefusals(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	wantFault(t, s.Destroy(user(t), "", ""), fault.Invalid, "installation")
	wantFault(t, s.Destroy(user(t), "wind", "nothing"), fault.NotFound, "nothing")
	if _, err := s.AEAD(user(t), "wind", "a"); err != nil {
		t.Fatal(err)
	}
	p.door.denied = keys.ActionDestroy
	wantFault(t, s.Destroy(user(t), "wind", "a"), fault.PermissionDenied, "")
	if _, err := s.AEAD(user(t), "wind", "a"); err != nil {
		t.Errorf("destroyed without permission: %v", err)
	}
}

// Another process sees a destroyed key as soon as its cache runs out.
func TestCacheEnds(t *testing.T) {
	p := newPlace(t)
	a := p.mustOpen(t, "")
	b, err := keys.Open(t.Context(), keys.Config{
		DB: p.db, Store: keyssql.Store{}, Authorizer: p.door, MasterFile: p.masterFile(), CacheTTL: time.Nanosecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.AEAD(user(t), "wind", "a"); err != nil {
		t.Fatal(err)
	}
	if err := a.Destroy(user(t), "wind", "a"); err != nil {
		t.Fatal(err)
	}
	_, err = b.AEAD(user(t), "wind", "a")
	wantFault(t, err, fault.Gone, "destroyed")
}

func TestConcurrentFirstUseMakesOneKey(t *testing.T) {
	onEachDatabase(t, concurrentFirstUseMakesOneKey)
}

func concurrentFirstUseMakesOneKey(t *testing.T, p *place) {
	t.Helper()
	rings := []*keys.Service{p.mustOpen(t, ""), p.mustOpen(t, "")}
	ctx := user(t)
	got := make([][]byte, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			k, err := rings[i%2].DataKey(ctx, "wind", "artifacts", "x")
			if err != nil {
				t.Error(err)
			}
			got[i] = k
		})
	}
	wg.Wait()
	for _, k := range got {
		if !bytes.Equal(k, got[0]) {
			t.Fatal("two keys for one scope")
		}
	}
}

// Making a key on the way does not use up the request's idempotency key.
func TestFirstUseIsNotTheEffectOfARequest(t *testing.T) {
	p := newPlace(t)
	s := p.mustOpen(t, "")
	for range 2 {
		ctx, once, err := p.db.Once(user(t), "alice", "key-1", []byte("request"))
		if err != nil {
			t.Fatal(err)
		}
		if _, done := once.Replayed(); done {
			t.Fatal("the request counts as done")
		}
		if _, err := s.AEAD(ctx, "wind", "a"); err != nil {
			t.Fatal(err)
		}
		if err := once.Keep(ctx, []byte("failed")); err != nil { // the request did nothing else
			t.Fatal(err)
		}
	}
}

func TestMasterFile(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, p *place)
		pass string
		want string // text of the refusal; empty: opens
	}{
		{"untouched", func(*testing.T, *place) {}, "", ""},
		{"missing", func(t *testing.T, p *place) { t.Helper(); remove(t, p.masterFile()) }, "", "missing"},
		{"readable by others", func(t *testing.T, p *place) { t.Helper(); chmod(t, p.masterFile(), 0o640) }, "", "other users can read"},
		{"of another installation", func(t *testing.T, p *place) {
			t.Helper()
			q := newPlace(t)
			q.mustOpen(t, "")
			b, err := os.ReadFile(q.masterFile())
			if err != nil {
				t.Fatal(err)
			}
			write(t, p.masterFile(), string(b))
		}, "", "not the key of this database"},
		{"empty", func(t *testing.T, p *place) { t.Helper(); write(t, p.masterFile(), "") }, "", "not a master key"},
		{"too long", func(t *testing.T, p *place) { t.Helper(); write(t, p.masterFile(), strings.Repeat(" ", 5000)) }, "", "too long"},
		{"short key", func(t *testing.T, p *place) {
			t.Helper()
			write(t, p.masterFile(), `{"falaj_master_key":1,"key":"AAAA"}`)
		}, "", "32 bytes"},
		{"sealed, no passphrase", func(t *testing.T, p *place) { t.Helper(); p.mustOpen(t, "correct horse battery") }, "", "sealed by a passphrase"},
		{"sealed, wrong passphrase", func(t *testing.T, p *place) { t.Helper(); p.mustOpen(t, "correct horse battery") }, "incorrect horse", "cannot decrypt"},
		{"sealed, right passphrase", func(t *testing.T, p *place) { t.Helper(); p.mustOpen(t, "correct horse battery") }, "correct horse battery", ""},
		{"weak passphrase", func(*testing.T, *place) {}, "short", "has 5 bytes"},
		{"a directory", func(t *testing.T, p *place) {
			t.Helper()
			remove(t, p.masterFile())
			if err := os.Mkdir(p.masterFile(), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "", "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t)
			s := p.mustOpen(t, "")
			before, err := s.DataKey(user(t), "wind", "a", "x")
			if err != nil {
				t.Fatal(err)
			}
			tt.do(t, p)
			s, err = p.open(t.Context(), tt.pass)
			if tt.want != "" {
				wantFault(t, err, fault.Invalid, tt.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			after, err := s.DataKey(user(t), "wind", "a", "x")
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the key changed: %v", err)
			}
		})
	}
}

func TestMasterFileIsPrivateAndResealed(t *testing.T) {
	p := newPlace(t)
	p.mustOpen(t, "")
	bare, err := os.ReadFile(p.masterFile())
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(p.masterFile()) // keeps the old file's bytes in reach
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if sealed, err := keys.Sealed(p.masterFile()); err != nil || sealed {
		t.Errorf("sealed %v, %v", sealed, err)
	}
	p.mustOpen(t, "the first passphrase")
	if sealed, err := keys.Sealed(p.masterFile()); err != nil || !sealed {
		t.Errorf("sealed %v, %v", sealed, err)
	}
	if left, err := io.ReadAll(old); err != nil || len(bytes.Trim(left, "\x00")) > 0 || len(left) != len(bare) {
		t.Errorf("the bare key is still on the disk: %v", err)
	}
	if err := keys.Reseal(p.masterFile(), []byte("the first passphrase"), []byte("the second passphrase")); err != nil {
		t.Fatal(err)
	}
	_, err = p.open(t.Context(), "the first passphrase")
	wantFault(t, err, fault.Invalid, "cannot decrypt")
	p.mustOpen(t, "the second passphrase")
	if err := keys.Reseal(p.masterFile(), []byte("the second passphrase"), nil); err != nil {
		t.Fatal(err)
	}
	p.mustOpen(t, "")
	info, err := os.Stat(p.masterFile())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if rest, _ := filepath.Glob(filepath.Join(p.dir, ".master-*")); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
}

// A crash between writing the file and recording its check is healed.
func TestFileWithoutCheck(t *testing.T) {
	p, q := newPlace(t), newPlace(t)
	p.mustOpen(t, "")
	b, err := os.ReadFile(p.masterFile())
	if err != nil {
		t.Fatal(err)
	}
	write(t, q.masterFile(), string(b))
	q.mustOpen(t, "")
	if again, err := os.ReadFile(q.masterFile()); err != nil || !bytes.Equal(again, b) {
		t.Errorf("the file was replaced: %v", err)
	}
}

func TestReadPassphrase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pass")
	write(t, path, "a long enough one\n")
	if p, err := keys.ReadPassphrase(path); err != nil || string(p) != "a long enough one" {
		t.Errorf("%q, %v", p, err)
	}
	chmod(t, path, 0o644)
	_, err := keys.ReadPassphrase(path)
	wantFault(t, err, fault.Invalid, "all users can read")
	chmod(t, path, 0o400)
	for _, bad := range []string{"", "\n", "short\n", strings.Repeat("x", 1025)} {
		write(t, path, bad)
		_, err := keys.ReadPassphrase(path)
		wantFault(t, err, fault.Invalid, "bytes")
	}
	_, err = keys.ReadPassphrase(path + "nothing")
	wantFault(t, err, fault.Invalid, "open the passphrase")
}

func TestInventory(t *testing.T) { onEachDatabase(t, inventory) }

func inventory(t *testing.T, p *place) {
	t.Helper()
	s := p.mustOpen(t, "")
	ctx := user(t)
	for _, at := range []keys.Scope{{}, {"", "audit-log"}, {"sun", "a"}, {"wind", "a"}, {"wind", "b"}} {
		if _, err := s.AEAD(ctx, at.Project, at.Owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Destroy(ctx, "wind", "a"); err != nil {
		t.Fatal(err)
	}
	all, next, err := s.List(ctx, keys.Filter{}, 0, "")
	if err != nil || next != "" || len(all) != 7 {
		t.Fatalf("%d keys, next %q, %v", len(all), next, err)
	}
	var paged []keys.Key
	for token := ""; ; {
		page, next, err := s.List(ctx, keys.Filter{}, 2, token)
		if err != nil {
			t.Fatal(err)
		}
		paged = append(paged, page...)
		if next == "" {
			break
		}
		token = next
	}
	if len(paged) != len(all) {
		t.Fatalf("pages give %d, the list %d", len(paged), len(all))
	}
	for i := range all {
		if paged[i] != all[i] {
			t.Errorf("%d: %+v and %+v", i, paged[i], all[i])
		}
	}
	wind := "wind"
	gone, _, err := s.List(ctx, keys.Filter{Project: &wind, State: keys.Destroyed}, 0, "")
	if err != nil || len(gone) != 1 || gone[0].Owner != "a" || gone[0].Destroyed.IsZero() || gone[0].Algorithms == "" {
		t.Errorf("%+v, %v", gone, err)
	}
	for _, token := range []string{"!", "AAAA", "Li4vLi4AYQ"} {
		_, _, err = s.List(ctx, keys.Filter{}, 2, token)
		wantFault(t, err, fault.Invalid, "page token")
	}
	p.door.denied = keys.ActionRead
	_, _, err = s.List(ctx, keys.Filter{}, 2, "")
	wantFault(t, err, fault.PermissionDenied, "")
}

func TestCheckScope(t *testing.T) {
	bad := []keys.Scope{
		{"Wind", ""},
		{"../x", ""},
		{"wind", "/a"},
		{"wind", "a/"},
		{"wind", "a//b"},
		{"wind", "a\x00b"},
		{"wind", "a b"},
		{"wind", "ä"},
		{"wind", strings.Repeat("a", 201)},
		{"wind\x00", "a"},
	}
	for _, at := range bad {
		wantFault(t, keys.CheckScope(at.Project, at.Owner), fault.Invalid, "")
	}
	rapid.Check(t, func(t *rapid.T) {
		owner := rapid.StringMatching(`[A-Za-z0-9._=@+-]{1,20}(/[A-Za-z0-9._=@+-]{1,20}){0,3}`).Draw(t, "owner")
		if err := keys.CheckScope("wind", owner); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkAEADCached(b *testing.B) {
	dir := b.TempDir()
	db, err := store.Open(b.Context(), store.Config{URL: "sqlite://" + filepath.Join(dir, "x.db"), Migrations: []store.Migrations{keyssql.Migrations}})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	s, err := keys.Open(b.Context(), keys.Config{DB: db, Store: keyssql.Store{}, MasterFile: filepath.Join(dir, "master.key")})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.AEAD(b.Context(), "wind", "a"); err != nil {
			b.Fatal(err)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
