package secrets_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/governance/secrets/secretssql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// canary is what must be nowhere.
const canary = "canary-4f1d2c7a9be0"

type door struct{ denied policy.Action }

func (d *door) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	if action == d.denied {
		return fault.New(fault.PermissionDenied, "no %s for you", action)
	}
	return nil
}

type place struct {
	dir  string
	db   *store.DB
	door *door
	used []string
	*secrets.Service
}

// schema lists the migrations of the database.
var schema = []store.Migrations{keyssql.Migrations, secretssql.Migrations, auditsql.Migrations}

func newPlace(t *testing.T, url func(dir string) string) *place {
	t.Helper()
	p := &place{dir: t.TempDir(), door: &door{}}
	db, err := store.Open(t.Context(), store.Config{
		URL: url(p.dir), Migrations: schema,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.db = db
	t.Cleanup(func() { _ = db.Close() })
	ring, err := keys.Open(t.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: p.door, MasterFile: filepath.Join(p.dir, "master.key")})
	if err != nil {
		t.Fatal(err)
	}
	p.Service = secrets.New(secrets.Config{DB: db, Store: secretssql.Store{}, Authorizer: p.door, Sealer: ring})
	p.Register(func(context.Context, *store.Tx, string, string) ([]string, error) { return p.used, nil })
	return p
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

func user(t *testing.T) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

func spec(kv ...string) secrets.Spec {
	s := secrets.Spec{Values: map[string]secrets.Value{}}
	for i := 0; i < len(kv); i += 2 {
		s.Values[kv[i]] = secrets.Value{Text: secrets.NewText(kv[i+1])}
	}
	return s
}

func (p *place) apply(t *testing.T, name string, s secrets.Spec) {
	t.Helper()
	if _, _, err := p.Apply(user(t), secrets.Request{Project: "shop", Name: name, Spec: s}); err != nil {
		t.Fatal(err)
	}
}

func TestLifeOfASecret(t *testing.T) { onEachDatabase(t, lifeOfASecret) }

func lifeOfASecret(t *testing.T, p *place) {
	t.Helper()
	p.apply(t, "db", spec("username", "reader", "password", canary))
	got, err := p.Open(t.Context(), "shop", "db")
	if err != nil || got["password"].Reveal() != canary || got["username"].Reveal() != "reader" || len(got) != 2 {
		t.Fatalf("opened %v, %v", got, err)
	}
	p.apply(t, "db", spec("password", canary+"-rotated"))
	if got, err = p.Open(t.Context(), "shop", "db"); err != nil || got["password"].Reveal() != canary+"-rotated" || len(got) != 1 {
		t.Fatalf("after rotation %v, %v", got, err)
	}
	one, err := p.One(user(t), "shop", "db")
	if err != nil || one.Revision != 2 || strings.Join(one.Keys, ",") != "password" || one.CreatedBy != "usr_1" {
		t.Fatalf("%+v, %v", one, err)
	}
	if _, err := p.Open(t.Context(), "other", "db"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project has it: %v", err)
	}
	p.used = []string{"source orders"}
	if err := p.Delete(user(t), "shop", "db"); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "source orders") {
		t.Errorf("deleting what is used: %v", err)
	}
	p.used = nil
	if err := p.Delete(user(t), "shop", "db"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), "shop", "db"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it opens after it was deleted: %v", err)
	}
	p.apply(t, "db", spec("password", "again"))
	if list, _, err := p.List(user(t), "shop", 0, ""); err != nil || len(list) != 1 || list[0].Revision != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestKeptValues(t *testing.T) { onEachDatabase(t, keptValues) }

// keptValues: a manifest may leave values as they are; one of them all changes nothing.
func keptValues(t *testing.T, p *place) {
	t.Helper()
	request := func(s secrets.Spec) secrets.Request {
		return secrets.Request{Project: "shop", Name: "db", Spec: s}
	}
	keep := func(s secrets.Spec, keys ...string) secrets.Spec {
		for _, k := range keys {
			s.Values[k] = secrets.Value{Keep: true}
		}
		return s
	}
	if _, _, err := p.Apply(user(t), request(keep(spec(), "password"))); !fault.Is(err, fault.Invalid) {
		t.Errorf("a value of no secret is kept: %v", err)
	}
	p.apply(t, "db", spec("username", "reader", "password", canary))
	if _, _, err := p.Apply(user(t), request(keep(spec(), "password", "other"))); !fault.Is(err, fault.Invalid) {
		t.Errorf("a value that is not there is kept: %v", err)
	}
	one, err := p.One(user(t), "shop", "db")
	if err != nil {
		t.Fatal(err)
	}
	if got, change, err := p.Apply(user(t), request(one.Spec())); err != nil || change != project.Unchanged || got.Revision != 1 {
		t.Errorf("applied as it is: %+v, %s, %v", got, change, err)
	}
	for _, step := range []struct {
		spec     secrets.Spec
		user, pw string
	}{
		{keep(spec("username", "writer"), "password"), "writer", canary},
		{keep(spec("password", "new"), "username"), "writer", "new"},
		{keep(spec(), "password"), "", "new"},
	} {
		if _, change, err := p.Apply(user(t), request(step.spec)); err != nil || change != project.Updated {
			t.Fatal(change, err)
		}
		if got, err := p.Open(t.Context(), "shop", "db"); err != nil || got["username"].Reveal() != step.user || got["password"].Reveal() != step.pw {
			t.Errorf("%v, want %q and %q: %v", got, step.user, step.pw, err)
		}
	}
	b, err := json.Marshal(keep(spec("username", "u"), "password"))
	if err != nil || strings.Contains(string(b), `"u"`) || !strings.Contains(string(b), `"password":{"keep":true}`) {
		t.Errorf("%s, %v", b, err)
	}
	for _, wrong := range []string{`{"keep": false}`, `{"keep": true, "value": "x"}`, `{"keep": true, "file": "x"}`} {
		if err := json.Unmarshal([]byte(wrong), new(secrets.Value)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// A row that was copied over another does not open as that one.
func TestSealedRowsAreBoundToTheirPlace(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	p.apply(t, "a", spec("k", "one"))
	p.apply(t, "b", spec("k", "two"))
	if err := p.db.Update(user(t), "shop", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(`UPDATE secrets_secret SET sealed = (SELECT sealed FROM secrets_secret WHERE name = 'a') WHERE name = 'b'`).Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), "shop", "b"); !fault.Is(err, fault.Internal) {
		t.Errorf("a copied row opens: %v", err)
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	s := spec("password", canary)
	p.apply(t, "db", s)
	p.apply(t, "db", spec("password", canary+canary))
	opened, err := p.Open(t.Context(), "shop", "db")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, v := range []any{s, &s, s.Values, opened, opened["password"]} {
		fmt.Fprintf(&out, "%v %+v %#v %s %q\n", v, v, v, v, v)
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	slog.New(slog.NewTextHandler(&out, nil)).InfoContext(t.Context(), "m", slog.Any("secret", opened["password"]), slog.Any("all", opened))
	slog.New(slog.NewJSONHandler(&out, nil)).InfoContext(t.Context(), "m", slog.Any("secret", opened["password"]), slog.Any("spec", s))
	for _, doc := range []string{`"` + canary + `"`, `{"valu":"` + canary + `"}`, `{"value":["` + canary + `"]}`, `{"file":"` + canary + `"}`} {
		var v secrets.Value
		err := json.Unmarshal([]byte(doc), &v)
		if err == nil {
			t.Errorf("%s is taken", doc)
		}
		fmt.Fprintln(&out, err, fault.HintOf(err))
	}
	bad := spec(canary+" "+strings.Repeat("x", 100), "v", "long", strings.Repeat(canary, 10_000))
	delete(bad.Values, canary+" "+strings.Repeat("x", 100))
	fmt.Fprintln(&out, bad.Validate())
	if strings.Contains(out.String(), canary) {
		t.Errorf("it prints:\n%s", out.String())
	}
	// Nor is it in any file: the database with its log, old pages, the audit trail.
	if err := p.Delete(user(t), "shop", "db"); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("%s has it", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestRefused(t *testing.T) {
	p := newPlace(t, func(dir string) string { return storetest.SQLiteURL(t, dir, schema...) })
	for name, s := range map[string]secrets.Spec{
		"no values": spec(), "an odd key": spec("a b", "x"), "an empty value": spec("k", ""), "not text": spec("k", "\xff"),
		"a long value": spec("k", strings.Repeat("x", secrets.MaxValue+1)),
	} {
		if _, _, err := p.Apply(user(t), secrets.Request{Project: "shop", Name: "s", Spec: s}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.apply(t, "s", spec("k", "v"))
	for action, do := range map[policy.Action]func() error{
		secrets.ActionApply: func() error {
			_, _, err := p.Apply(user(t), secrets.Request{Project: "shop", Name: "s", Spec: spec("k", "w")})
			return err
		},
		secrets.ActionRead:   func() error { _, err := p.One(user(t), "shop", "s"); return err },
		secrets.ActionUse:    func() error { return p.Use(user(t), "shop", "s") },
		secrets.ActionDelete: func() error { return p.Delete(user(t), "shop", "s") },
	} {
		p.door.denied = action
		if err := do(); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", action, err)
		}
	}
	p.door.denied = ""
	if v, err := p.Open(t.Context(), "shop", "s"); err != nil || v["k"].Reveal() != "v" {
		t.Errorf("a refused change changed it: %v, %v", v, err)
	}
}
