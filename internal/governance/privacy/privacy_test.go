package privacy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/privacy/privacysql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// canary is the key of the person: it must be nowhere.
const canary = "canary-4f1d2c7a9be0"

type door struct{ denied policy.Action }

func (d *door) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	if action == d.denied {
		return fault.New(fault.PermissionDenied, "no %s for you", action)
	}
	return nil
}

// shelf is a place that keeps rows, by the key of whose they are.
type shelf struct {
	rows  map[string]int64
	was   map[string]int64 // of versions that were deleted
	left  []privacy.Unsearched
	again int   // so many times the person is there again after it was erased
	fails error // of Erase
	memo  string
	where privacy.Where
}

func (*shelf) Kind() string { return "shelf" }

func (s *shelf) Find(_ context.Context, who privacy.Subject) (f privacy.Found, err error) {
	for key, n := range s.rows {
		if who.Is([]string{key}) {
			f.Places = append(f.Places, privacy.Place{Name: "top", Rows: n})
		}
	}
	for key, n := range s.was {
		if who.Is([]string{key}) {
			f.Deleted = append(f.Deleted, privacy.Place{Name: "attic@1", Rows: n})
		}
	}
	return f, nil
}

func (s *shelf) Prepare(context.Context, privacy.Subject) ([]byte, []string, error) {
	return []byte("remember"), []string{"token"}, nil
}

func (s *shelf) Erase(_ context.Context, who privacy.Subject, done func(privacy.Found) error) error {
	if s.fails != nil {
		return s.fails
	}
	s.memo, s.where = string(who.Memo("shelf")), who.Where()
	if !slices.Equal(who.Tokens(), []string{"token"}) {
		return fmt.Errorf("the tokens are %v", who.Tokens())
	}
	for key, n := range s.rows {
		if !who.Is([]string{key}) {
			continue
		}
		delete(s.rows, key)
		if err := done(privacy.Found{Places: []privacy.Place{{Name: "top", Rows: n}}}); err != nil {
			return err
		}
		if s.again > 0 {
			s.again--
			s.rows[key] = n
		}
	}
	return nil
}

type place struct {
	beyond privacy.Found // that Beyond was asked with
	t      *testing.T
	dir    string
	db     *store.DB
	door   *door
	shelf  *shelf
	now    time.Time
	where  privacy.Where // by which columns persons are found now
	two    policy.TwoPeople
	*privacy.Service
}

// schema lists the migrations of the database.
var schema = []store.Migrations{keyssql.Migrations, privacysql.Migrations, auditsql.Migrations}

func newPlace(t *testing.T, url func(dir string) string) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir(), door: &door{}, shelf: &shelf{rows: map[string]int64{canary: 3, "badr": 2}}, now: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)}
	db, err := store.Open(t.Context(), store.Config{
		URL: url(p.dir), Migrations: schema,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.db = db
	t.Cleanup(func() { _ = db.Close() })
	p.open()
	return p
}

// open makes the service, as a start of the server does.
func (p *place) open() {
	p.t.Helper()
	ring, err := keys.Open(p.t.Context(), keys.Config{DB: p.db, Store: keyssql.Store{}, Authorizer: p.door, MasterFile: filepath.Join(p.dir, "master.key")})
	if err != nil {
		p.t.Fatal(err)
	}
	ledger, err := privacy.OpenLedger(filepath.Join(p.dir, "ledger"), ring.Lasting("ledger"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.Service = privacy.New(privacy.Config{
		DB: p.db, Store: privacysql.Store{}, Authorizer: p.door, TwoPeople: p.two, Sealer: ring, Ledger: ledger, Key: ring.Lasting("persons"),
		Canonical: func(_ context.Context, _, entity string, values []string) ([]string, error) {
			if entity != "customer" || len(values) != 1 {
				return nil, fault.New(fault.NotFound, "there is no entity %s", entity)
			}
			return []string{strings.TrimSpace(values[0])}, nil
		},
		Where: func(context.Context, string, string) (privacy.Where, error) { return p.where, nil },
		Trained: func(_ context.Context, _ string, f privacy.Found, id privacy.ID) ([]string, error) {
			if len(f.Places)+len(f.Deleted) == 0 {
				return nil, nil
			}
			return []string{"churn@1 " + string(id)}, nil
		},
		Beyond: func(_ context.Context, _ privacy.Subject, f privacy.Found) ([]privacy.Unsearched, []string, error) {
			p.beyond = f
			return p.shelf.left, []string{"notes"}, nil
		},
		Now: func() time.Time { return p.now },
	})
	p.Register(p.shelf)
}

func (p *place) ask(values ...string) privacy.Ask {
	return privacy.Ask{Project: "shop", Entity: "customer", Values: values, Reason: "request 1"}
}

func (p *place) user() context.Context {
	return identity.With(p.t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

func (p *place) one(id privacy.ID) privacy.Erasure {
	p.t.Helper()
	e, err := p.One(p.user(), "shop", id)
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

func onEachDatabase(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) {
		test(t, newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) }))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		test(t, newPlace(t, func(string) string { return storetest.Postgres(t, schema...) }))
	})
}

func TestErasure(t *testing.T) { onEachDatabase(t, erasure) }

func erasure(t *testing.T, p *place) {
	t.Helper()
	f, err := p.Look(p.user(), p.ask(canary))
	if err != nil || len(f.Places) != 1 || f.Places[0] != (privacy.Place{Kind: "shelf", Name: "top", Rows: 3}) || len(p.shelf.rows) != 2 {
		t.Fatalf("found %+v, error %v, left %v", f, err, p.shelf.rows)
	}
	e, err := p.Request(p.user(), p.ask(" "+canary))
	if err != nil || e.State != privacy.Requested || !e.Deadline.Equal(p.now.AddDate(0, 0, 30)) {
		t.Fatalf("%+v, %v", e, err)
	}
	same, err := p.Request(p.user(), p.ask(canary))
	if err != nil || same.ID != e.ID {
		t.Errorf("asked twice: %s and %s, error %v", e.ID, same.ID, err)
	}

	// What fails is said, tried again, and goes on where it was.
	p.shelf.fails = errors.New("the shelf is locked")
	if err := p.RunOnce(t.Context()); err == nil {
		t.Error("a failure is no error")
	}
	if got := p.one(e.ID); got.State != privacy.Erasing || !strings.Contains(got.Trouble, "locked") || got.Ledger != 1 {
		t.Errorf("after a failure: %+v", got)
	}
	p.shelf.fails = nil
	p.open() // as after a crash
	// Who comes again while it is erased is not forgotten.
	p.shelf.again = 1
	if err := p.RunOnce(t.Context()); err == nil {
		t.Error("the person is there again, and that is no error")
	}
	p.now = p.now.AddDate(0, 0, 31)
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := p.one(e.ID)
	if got.State != privacy.Done || got.Trouble != "" || !got.Late || len(got.Places) != 1 || got.Places[0].Rows != 3 || !slices.Equal(got.Models, []string{"churn@1 " + string(e.ID)}) {
		t.Errorf("it ended as %+v", got)
	}
	if p.shelf.memo != "remember" {
		t.Errorf("what was prepared is %q", p.shelf.memo)
	}
	if n := p.shelf.rows["badr"]; n != 2 || len(p.shelf.rows) != 1 {
		t.Errorf("the shelf has %v", p.shelf.rows)
	}
	if err := p.RunOnce(t.Context()); err != nil {
		t.Error(err)
	}
	// What is made of these places later is known to be.
	for place, want := range map[string][]string{"top": {string(e.ID)}, "bottom": nil} {
		if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			ids, err := p.Touching(ctx, tx, "shop", []string{"side", place})
			if !slices.Equal(ids, want) {
				t.Errorf("%s was touched by %v", place, ids)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	list, next, err := p.List(p.user(), "shop", 0, "")
	if err != nil || len(list) != 1 || next != "" {
		t.Errorf("the list is %v, %q, %v", list, next, err)
	}
	if _, err := p.One(p.user(), "other", e.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("in another project: %v", err)
	}
	if err := p.db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(p.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("the person's key is in %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// After a restore the ledger erases again whom it names, before anybody is answered.
func TestRestored(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	p.where = privacy.Where{Keys: []string{"customer_id"}, Columns: map[string][]string{"visits": {"visitor"}}}
	e, err := p.Request(p.user(), p.ask(canary))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The database of before, with what the shelf had.
	if err := p.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("DELETE FROM privacy_erasure").Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.shelf.rows[canary] = 5
	p.where, p.shelf.where = privacy.Where{}, privacy.Where{} // the entity is younger than the backup
	p.open()
	p.shelf.fails = errors.New("the shelf is locked")
	if err := p.Recover(t.Context()); err == nil {
		t.Error("the person is still there, and somebody would be answered")
	}
	p.shelf.fails = nil
	p.open()
	if err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := p.one(e.ID)
	if got.State != privacy.Done || !got.Restored || len(got.Places) != 1 || got.Places[0].Rows != 5 || got.RequestedBy != "usr_1" || len(p.shelf.rows) != 1 {
		t.Errorf("after a restore: %+v, the shelf has %v", got, p.shelf.rows)
	}
	if got := p.shelf.where; !slices.Equal(got.Columns["visits"], []string{"visitor"}) || !slices.Equal(got.Keys, []string{"customer_id"}) {
		t.Errorf("after a restore the person is looked for by %+v", got)
	}
	// An older ledger than the database knows of.
	if err := os.Remove(filepath.Join(p.dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	p.open()
	if err := p.Recover(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("an older ledger: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	for name, c := range map[string]struct {
		change func(*privacy.Ask)
		kind   fault.Kind
	}{
		"no reason":         {func(a *privacy.Ask) { a.Reason = "" }, fault.Invalid},
		"the key in it":     {func(a *privacy.Ask) { a.Reason = "erase " + canary + ", please" }, fault.Invalid},
		"its beginning":     {func(a *privacy.Ask) { a.Reason = "erase <" + strings.ToUpper(canary) + ">." }, fault.Invalid},
		"a long reason":     {func(a *privacy.Ask) { a.Reason = strings.Repeat("x", 2001) }, fault.Invalid},
		"no key":            {func(a *privacy.Ask) { a.Values = nil }, fault.Invalid},
		"an empty key":      {func(a *privacy.Ask) { a.Values = []string{""} }, fault.Invalid},
		"a passed deadline": {func(a *privacy.Ask) { a.Deadline = p.now }, fault.Invalid},
		"an unknown entity": {func(a *privacy.Ask) { a.Entity = "planet" }, fault.NotFound},
		"no entity":         {func(a *privacy.Ask) { a.Entity = "../x" }, fault.Invalid},
	} {
		a := p.ask(canary)
		c.change(&a)
		if _, err := p.Request(p.user(), a); !fault.Is(err, c.kind) || strings.Contains(fmt.Sprint(err), canary) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.door.denied = privacy.ActionErase
	if _, err := p.Request(p.user(), p.ask(canary)); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("erasing: %v", err)
	}
	if _, err := p.Look(p.user(), p.ask(canary)); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("looking: %v", err)
	}
	p.door.denied = privacy.ActionRead
	if _, _, err := p.List(p.user(), "shop", 0, ""); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("listing: %v", err)
	}
	if _, err := p.One(p.user(), "shop", "ers_1"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("one: %v", err)
	}
}

// waiting is a rule of two people under which each act waits.
type waiting struct {
	acts  []policy.Act
	carry policy.Carry
}

func (w *waiting) Register(_ string, carry policy.Carry) { w.carry = carry }

func (w *waiting) Ask(_ context.Context, a policy.Act) error {
	w.acts = append(w.acts, a)
	return fault.New(fault.PermissionDenied, "this takes two people")
}

// TestErasureTakesTwo: nothing is on record or removed before the second person approves,
// and what waits does not name the person.
func TestErasureTakesTwo(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, p *place) {
		t.Helper()
		two := &waiting{}
		p.two = two
		p.open()
		if _, err := p.Request(p.user(), p.ask(canary)); !fault.Is(err, fault.PermissionDenied) || len(two.acts) != 1 {
			t.Fatalf("%v, acts %+v", err, two.acts)
		}
		if err := p.RunOnce(t.Context()); err != nil || len(p.shelf.rows) != 2 {
			t.Errorf("%v, left %v", err, p.shelf.rows)
		}
		payload, err := json.Marshal(two.acts[0].Payload)
		if err != nil || bytes.Contains(payload, []byte(canary)) || strings.Contains(two.acts[0].Summary+two.acts[0].Same, canary) {
			t.Fatalf("what waits names the person: %s, %v", payload, err)
		}
		for range 2 {
			if err := two.carry(p.user(), payload); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.RunOnce(t.Context()); err != nil || len(p.shelf.rows) != 1 {
			t.Errorf("approved: %v, left %v", err, p.shelf.rows)
		}
		p.door.denied = privacy.ActionErase
		if err := two.carry(p.user(), payload); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("who requested it may no longer: %v", err)
		}
	})
}

// end asks for an erasure, carries it to its end and gives the certificate, whose digest
// has to be the one in the audit log.
func (p *place) end(values ...string) (privacy.Erasure, string) {
	p.t.Helper()
	e, err := p.Request(p.user(), p.ask(values...))
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Certificate(p.user(), "shop", e.ID); !fault.Is(err, fault.Conflict) {
		p.t.Errorf("a certificate of what has not ended: %v", err)
	}
	if err := p.RunOnce(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	file, err := p.Certificate(p.user(), "shop", e.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	var leaves [][]byte
	if err := p.db.View(p.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT body FROM store_stream").Scan(ctx, &leaves)
	}); err != nil {
		p.t.Fatal(err)
	}
	digest := sha256.Sum256(file)
	if !bytes.Contains(bytes.Join(leaves, nil), []byte(hex.EncodeToString(digest[:]))) {
		p.t.Errorf("the digest of %s is not in the audit log", file)
	}
	return p.one(e.ID), string(file)
}

// TestHowItEnds: done is said only when every place was searched; a key that nobody has
// is not done.
func TestHowItEnds(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, p *place) {
		t.Helper()
		if e, _ := p.end("canary-typo"); e.State != privacy.NotFound || !strings.Contains(e.Note, "Check the key") || len(e.Places) != 0 {
			t.Errorf("a mistyped key: %+v", e)
		}
		if e, _ := p.end("canary-typo"); e.State != privacy.NotFound {
			t.Errorf("a mistyped key, asked twice: %+v", e)
		}
		if e, file := p.end(canary); e.State != privacy.Done || !slices.Equal(e.Searched, []string{"notes", "shelf"}) || !strings.Contains(file, `"state":"done"`) {
			t.Errorf("%+v %s", e, file)
		}
		// Who was erased is known, though nothing is left.
		if e, _ := p.end(canary); e.State != privacy.Done || len(e.Places) != 0 {
			t.Errorf("asked again: %+v", e)
		}
		p.shelf.left = []privacy.Unsearched{{Kind: "backups", Name: "monday", Reason: "it is a copy", Tool: "falaj backup remove monday"}}
		e, file := p.end("badr")
		if e.State != privacy.InPart || !slices.Equal(e.Unsearched, p.shelf.left) || !strings.Contains(file, "monday") {
			t.Errorf("with a place that was not searched: %+v %s", e, file)
		}
		// A note that has the key says that somebody by it was seen.
		p.shelf.left[0].Seen = true
		if e, _ := p.end("carla"); e.State != privacy.InPart {
			t.Errorf("seen as text: %+v", e)
		}
		p.shelf.left, p.shelf.was = nil, map[string]int64{"dana": 2}
		e, _ = p.end("dana")
		if want := (privacy.Place{Kind: "shelf", Name: "attic@1", Rows: 2}); e.State != privacy.Done || len(e.Deleted) != 1 || e.Deleted[0] != want || len(e.Models) != 1 {
			t.Errorf("in what was deleted: %+v", e)
		}
		if _, err := p.Certificate(p.user(), "other", e.ID); !fault.Is(err, fault.NotFound) {
			t.Errorf("in another project: %v", err)
		}
	})
}

// TestEarlierCertificates: what an earlier release wrote keeps its bytes.
func TestEarlierCertificates(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	const doc = `{"id":"ers_1","project":"shop","entity":"customer","pseudonym":"00","state":"done","reason":"r","places":[],"unsearched":["sums@4"],"requested_by":"usr_1"}`
	if err := p.db.Update(t.Context(), "shop", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("INSERT INTO privacy_erasure (id, project, entity, pseudonym, state, ledger, hash, doc) VALUES ('ers_1', 'shop', 'customer', '00', 'done', 0, '', ?)", doc).Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	file, err := p.Certificate(p.user(), "shop", "ers_1")
	if want := `{"entity":"customer","id":"ers_1","places":[],"project":"shop","pseudonym":"00","reason":"r","requested_by":"usr_1","state":"done","unsearched":["sums@4"]}`; err != nil || string(file) != want {
		t.Errorf("%s %v", file, err)
	}
	if e := p.one("ers_1"); len(e.Unsearched) != 1 || e.Unsearched[0].Name != "sums@4" {
		t.Errorf("%+v", e)
	}
}

// TestAskedAgain: what an erasure found is not forgotten because the rows are gone: who
// asks again, or erases again, hears of the same models, and the places that are not
// searched are listed as of the same rows.
func TestAskedAgain(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, p *place) {
		t.Helper()
		p.shelf.left = []privacy.Unsearched{{Kind: "job logs", Name: "job_1", Reason: "it is not searched"}}
		had := func(f privacy.Found) bool {
			return slices.ContainsFunc(slices.Concat(f.Places, f.Deleted), func(q privacy.Place) bool { return q.Kind == "shelf" && q.Name == "top" && q.Rows == 3 })
		}
		if _, err := p.Look(p.user(), p.ask("nobody")); err != nil || had(p.beyond) {
			t.Errorf("somebody else: %+v, %v", p.beyond, err)
		}
		for range 2 {
			e, err := p.Request(p.user(), p.ask(canary))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := p.one(e.ID); got.State != privacy.InPart || !had(p.beyond) || len(got.Models) != 1 {
				t.Errorf("it ended as %+v", got)
			}
			p.beyond = privacy.Found{}
			f, err := p.Look(p.user(), p.ask(canary))
			if err != nil || len(f.Places)+len(f.Deleted) != 0 || len(f.Models) != 1 || len(f.Unsearched) != 1 || !had(p.beyond) {
				t.Errorf("asked again: %+v, of %+v, %v", f, p.beyond, err)
			}
		}
		if _, err := p.Look(p.user(), p.ask("nobody")); err != nil || had(p.beyond) {
			t.Errorf("somebody else: %+v, %v", p.beyond, err)
		}
	})
}
