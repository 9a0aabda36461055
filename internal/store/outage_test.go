package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// entries counts the entries of a stream.
func entries(ctx context.Context, db *store.DB, stream string) (int, error) {
	all, _, err := db.ReadStream(ctx, stream, store.Position{}, 1000)
	return len(all), err
}

func add(ctx context.Context, db *store.DB, stream string) error {
	return db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return tx.Append(ctx, stream, "", "k", []byte("one")) })
}

// TestPostgresHangs: a server whose processes have stopped keeps nobody waiting for long,
// and its address is told to no caller.
func TestPostgresHangs(t *testing.T) {
	server := storetest.OwnPostgres(t)
	db := openPostgres(t, server.URL)
	if err := add(t.Context(), db, "s"); err != nil {
		t.Fatal(err)
	}
	resume := server.Pause()
	limit, cancel := context.WithTimeout(t.Context(), time.Minute) // it is not waited for
	defer cancel()
	for name, use := range map[string]func() error{
		"update": func() error { return add(limit, db, "s") },
		"view": func() error {
			return db.View(limit, func(ctx context.Context, tx *store.Tx) error {
				var n int
				return tx.NewRaw(`SELECT COUNT(*) FROM store_stream`).Scan(ctx, &n)
			})
		},
		"stream": func() error { _, err := entries(limit, db, "s"); return err },
	} {
		err := use()
		if !fault.Is(err, fault.Unavailable) || limit.Err() != nil || strings.Contains(err.Error(), "falaj-pg-") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if db.Outage() == nil {
		t.Error("the outage is not known")
	}
	resume()
	back(t, db)
	if n, err := entries(t.Context(), db, "s"); err != nil || n < 1 || n > 2 { // of the one under way the answer was lost
		t.Errorf("%d entries after it: %v", n, err)
	}
}

// back waits for the end of an outage.
func back(t *testing.T, db *store.DB) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for db.Outage() != nil {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the outage does not end")
		}
	}
}

// TestPostgresRestarts: writes go on over a restart, and none is done twice.
func TestPostgresRestarts(t *testing.T) {
	server := storetest.OwnPostgres(t)
	db := openPostgres(t, server.URL)
	stop := make(chan struct{})
	wrote := make(chan int)
	go func() {
		n := 0
		for {
			err := add(t.Context(), db, "s")
			switch {
			case err == nil:
				n++
			case strings.Contains(err.Error(), "may have taken place"): // it is known whose answer was lost
			default:
				t.Errorf("write %d: %v", n, err)
			}
			select {
			case <-stop:
				wrote <- n
				return
			default:
			}
		}
	}()
	server.Stop()
	server.Start()
	back(t, db)
	for {
		if err := add(t.Context(), db, "after"); err == nil {
			break
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	n := <-wrote
	got := 0
	for after := (store.Position{}); ; {
		all, next, err := db.ReadStream(t.Context(), "s", after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			break
		}
		got, after = got+len(all), next
	}
	if got < n || got > n+1 {
		t.Errorf("%d writes were acknowledged, and %d entries are there", n, got)
	}
}

// TestCheckURL: other databases, and PostgreSQL elsewhere in the clear, are refused before
// they are asked.
func TestCheckURL(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:///var/lib/falaj/falaj.db":                                               "",
		"postgres://falaj@localhost/falaj":                                               "",
		"postgres://falaj@127.0.0.1/falaj?sslmode=disable":                               "",
		"postgresql://falaj@[::1]:5433/falaj":                                            "",
		"postgres://falaj@/falaj?host=/run/postgresql":                                   "",
		"postgres://falaj@db.example/falaj?sslmode=verify-full":                          "",
		"postgres://falaj@db.example/falaj?sslmode=require":                              "",
		"postgres://falaj@db.example/falaj":                                              "not protected by TLS",
		"postgres://falaj@db.example/falaj?sslmode=disable":                              "not protected by TLS",
		"postgres://falaj@db.example/falaj?sslmode=prefer":                               "not protected by TLS",
		"postgres://falaj@db.example/falaj?sslmode=allow":                                "not protected by TLS",
		"postgres://falaj@127.0.0.1,10.0.0.7/falaj":                                      "at 10.0.0.7",
		"postgres://falaj@/falaj?host=10.0.0.7":                                          "at 10.0.0.7",
		"postgres://falaj@db.example/falaj?sslmode=verify-full&sslrootcert=/nowhere.pem": "CA file",
		"mysql://falaj@db.example/falaj":                                                 "neither sqlite:// nor postgres://",
		"falaj.db":                                                                       "neither sqlite:// nor postgres://",
		"postgres://falaj:secret@db.example:port/falaj":                                  "store URL",
	} {
		err := store.CheckURL(url)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || !fault.Is(err, fault.Invalid)) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// TestLookAtPostgres: what a server is, and who may use it, is known before anything is
// changed.
func TestLookAtPostgres(t *testing.T) {
	url := storetest.Postgres(t)
	is, err := store.Look(t.Context(), store.Config{URL: url})
	if err != nil || is.User != "postgres" || is.Locale != "C" || is.Encoding != "UTF8" || !is.Here || is.Encrypted || is.Conns < 100 {
		t.Errorf("%+v, %v", is, err)
	}
	admin := rawPostgres(t, url)
	for _, s := range []string{`CREATE ROLE stranger LOGIN`, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`} {
		if _, err := admin.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), `DROP OWNED BY stranger`)
		_, err2 := admin.ExecContext(context.Background(), `DROP ROLE stranger`)
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
		}
	})
	theirs := strings.Replace(url, "postgres@", "stranger@", 1)
	refused := func(want, hint string) {
		t.Helper()
		_, err := store.Look(t.Context(), store.Config{URL: theirs})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%v (%s), want %q", err, fault.HintOf(err), want)
		}
		if _, opened := store.Open(t.Context(), store.Config{URL: theirs}); opened == nil || !strings.Contains(opened.Error(), want) {
			t.Errorf("opened: %v", opened)
		}
	}
	refused("may not create tables", `OWNER TO "stranger"`)
	_ = openPostgres(t, url).Close() // the tables are another's now
	if _, err := admin.ExecContext(t.Context(), `GRANT ALL ON SCHEMA public TO stranger`); err != nil {
		t.Fatal(err)
	}
	refused("belong to postgres", `REASSIGN OWNED BY "postgres"`)
}

// TestPasswordIsAskedAnew: a new connection takes the password that is in force now.
func TestPasswordIsAskedAnew(t *testing.T) {
	asked := 0
	db, err := store.Open(t.Context(), store.Config{URL: storetest.Postgres(t), Password: func() string { asked++; return "secret" }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if asked == 0 {
		t.Error("the password was not asked for")
	}
}
