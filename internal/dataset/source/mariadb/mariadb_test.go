package mariadb_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/mariadb"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

func TestMariaDB(t *testing.T) {
	port, db := sourcetest.MariaDB(t)
	exec := func(t *testing.T, statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	subject := sourcetest.Database{
		Driver: mariadb.Driver{},
		Request: func() source.Request {
			return source.Request{
				From:   source.From{MariaDB: &source.Database{Host: "127.0.0.1", Port: port, Database: "shop", TLS: source.TLSOff}},
				Secret: map[string]secrets.Text{"username": secrets.NewText(sourcetest.MariaDBUser), "password": secrets.NewText(sourcetest.MariaDBPassword)},
				Access: source.Access{Hosts: []string{"127.0.0.1"}},
			}
		},
		Select: func(r *source.Request, what sourcetest.What) { what.Of(r.From.MariaDB) },
		Exec:   exec,
		Types: []sourcetest.Value{
			sourcetest.Of("tinyint", "-7", table.Int64, "-7"),
			sourcetest.Of("bigint", "9223372036854775807", table.Int64, "9223372036854775807"),
			sourcetest.Of("bigint unsigned", "7", table.Int64, "7"),
			sourcetest.Of("year", "2024", table.Int64, "2024"),
			sourcetest.Of("decimal(18,0)", "123456789012", table.Int64, "123456789012"),
			sourcetest.Of("decimal(10,2)", "12.25", table.Float64, "12.25"),
			sourcetest.Of("float", "1.5", table.Float64, "1.5"),
			sourcetest.Of("double", "-0.25", table.Float64, "-0.25"),
			sourcetest.Of("boolean", "true", table.Int64, "1"),
			sourcetest.Of("varchar(20) character set utf8mb4", "'a''b ü'", table.String, "a'b ü"),
			sourcetest.Of("text", "'long'", table.String, "long"),
			sourcetest.Of("enum('glad','sad')", "'glad'", table.String, "glad"),
			sourcetest.Of("json", `'{"a": 1}'`, table.String, `{"a": 1}`),
			sourcetest.Of("datetime(6)", "'2024-03-31 03:30:00.123456'", table.Timestamp, "2024-03-31T03:30:00.123456Z"),
			sourcetest.Of("timestamp null", "'2024-03-31 01:30:00'", table.Timestamp, "2024-03-31T01:30:00Z"),
			sourcetest.Of("date", "'1969-12-31'", table.Date, "1969-12-31"),
		},
		Refused: "blob",
	}
	sourcetest.Tables(t, subject)

	for _, c := range []struct {
		name   string
		kind   fault.Kind
		change func(r *source.Request)
	}{
		{"nobody listens", fault.Unavailable, func(r *source.Request) { r.From.MariaDB.Port = 1 }},
		{"a wrong password", fault.Invalid, func(r *source.Request) { r.Secret["password"] = secrets.NewText("wrong-password") }},
		{"an unknown user", fault.Invalid, func(r *source.Request) { r.Secret["username"] = secrets.NewText("nobody") }},
		{"a database that one may not see", fault.Invalid, func(r *source.Request) { r.From.MariaDB.Database = "nix" }},
		{"no TLS there", fault.Invalid, func(r *source.Request) { r.From.MariaDB.TLS = source.TLSVerify }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := subject.Request()
			r.Mode, r.From.MariaDB.Table = source.Full, "falaj_wrong"
			c.change(&r)
			in, err := subject.Driver.Open(t.Context(), r)
			if err == nil {
				_ = in.Close()
			}
			if !fault.Is(err, c.kind) || fault.HintOf(err) == "" {
				t.Errorf("%v (%v), hint %q", err, fault.KindOf(err), fault.HintOf(err))
			}
		})
	}
}
