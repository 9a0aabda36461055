package postgres_test

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/postgres"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func TestPostgres(t *testing.T) {
	at := storetest.Postgres(t)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	port := sourcetest.Bridge(t, filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432"))
	db, err := sql.Open("pgx", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	exec := func(t *testing.T, statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	exec(t, "CREATE TYPE mood AS ENUM ('glad', 'sad')", "CREATE ROLE reader LOGIN", "GRANT USAGE ON SCHEMA public TO reader")
	subject := sourcetest.Database{
		Driver: postgres.Driver{},
		Request: func() source.Request {
			return source.Request{
				From:   source.From{Postgres: &source.Database{Host: "127.0.0.1", Port: port, Database: u.Path[1:], TLS: source.TLSOff}},
				Secret: map[string]secrets.Text{"username": secrets.NewText("postgres"), "password": secrets.NewText("canary-password")},
				Access: source.Access{Hosts: []string{"127.0.0.1"}},
			}
		},
		Select: func(r *source.Request, what sourcetest.What) { what.Of(r.From.Postgres) },
		Exec:   exec,
		Types: []sourcetest.Value{
			sourcetest.Of("smallint", "-7", table.Int64, "-7"),
			sourcetest.Of("bigint", "9223372036854775807", table.Int64, "9223372036854775807"),
			sourcetest.Of("numeric(30,0)", "123456789012", table.Int64, "123456789012"),
			sourcetest.Of("numeric(10,2)", "12.25", table.Float64, "12.25"),
			sourcetest.Of("numeric", "0.5", table.Float64, "0.5"),
			sourcetest.Of("real", "1.5", table.Float64, "1.5"),
			sourcetest.Of("double precision", "'NaN'", table.Float64, "NaN"),
			sourcetest.Of("boolean", "true", table.Bool, "true"),
			sourcetest.Of("text", "'a''b ü'", table.String, "a'b ü"),
			sourcetest.Of("char(3)", "'ab'", table.String, "ab "),
			sourcetest.Of("uuid", "'6f1e1f2c-7b1d-4a57-9a3c-2f3a0f1f9b11'", table.String, "6f1e1f2c-7b1d-4a57-9a3c-2f3a0f1f9b11"),
			sourcetest.Of("jsonb", `'{"a": 1}'`, table.String, `{"a": 1}`),
			sourcetest.Of("mood", "'glad'", table.String, "glad"),
			sourcetest.Of("inet", "'10.0.0.1'", table.String, "10.0.0.1"),
			sourcetest.Of("timestamptz", "'2024-03-31 03:30:00.123456+02'", table.Timestamp, "2024-03-31T01:30:00.123456Z"),
			sourcetest.Of("timestamp", "'2024-03-31 03:30:00'", table.Timestamp, "2024-03-31T03:30:00Z"),
			sourcetest.Of("date", "'1969-12-31'", table.Date, "1969-12-31"),
		},
		Refused: "bytea",
	}
	sourcetest.Tables(t, subject)

	wrong := func(name string, kind fault.Kind, change func(r *source.Request)) {
		t.Run(name, func(t *testing.T) {
			r := subject.Request()
			r.Mode, r.From.Postgres.Table = source.Full, "falaj_wrong"
			change(&r)
			in, err := subject.Driver.Open(t.Context(), r)
			if err == nil {
				_ = in.Close()
			}
			if !fault.Is(err, kind) || fault.HintOf(err) == "" && kind == fault.Invalid {
				t.Errorf("%v (%v), hint %q", err, fault.KindOf(err), fault.HintOf(err))
			}
		})
	}
	wrong("a user who may not", fault.Invalid, func(r *source.Request) { r.Secret["username"] = secrets.NewText("reader") })
	wrong("an unknown user", fault.Invalid, func(r *source.Request) { r.Secret["username"] = secrets.NewText("nobody") })
	wrong("an unknown database", fault.NotFound, func(r *source.Request) { r.From.Postgres.Database = "nix" })
	wrong("no TLS there", fault.Invalid, func(r *source.Request) { r.From.Postgres.TLS = source.TLSVerify })
}
