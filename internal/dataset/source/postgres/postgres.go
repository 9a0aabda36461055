// Package postgres reads tables of PostgreSQL: one query in one repeatable-read
// snapshot, streamed.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqltable"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

const usual = 5432

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	return sqltable.Check("postgres", usual, *r.From.Postgres, r)
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (source.Reader, error) {
	o := *r.From.Postgres
	cfg, err := pgx.ParseConfig("postgres://")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(sqltable.Address(o, usual))
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.Database = host, uint16(n), o.Database
	cfg.User, cfg.Password = r.Secret["username"].Reveal(), r.Secret["password"].Reveal()
	if cfg.TLSConfig, err = source.TLS(o.TLS, host, r.Secret); err != nil {
		return nil, err
	}
	cfg.Fallbacks = nil
	cfg.ConnectTimeout = source.ConnectTime
	cfg.DialFunc = r.Access.Dial
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // Dial does, by name
	cfg.RuntimeParams = map[string]string{
		"application_name": "falaj", "timezone": "UTC", "datestyle": "ISO", "client_encoding": "UTF8",
		"idle_in_transaction_session_timeout": "0", // a slow reader is no idle one
	}
	return sqltable.Open(ctx, stdlib.OpenDB(*cfg), dialect{r, host}, o, r)
}

type dialect struct {
	req  source.Request
	host string
}

// Quote implements sqltable.Dialect.
func (dialect) Quote(ident string) string { return pgx.Identifier{ident}.Sanitize() }

// Arg implements sqltable.Dialect.
func (dialect) Arg(n int) string { return "$" + strconv.Itoa(n) }

// Type implements sqltable.Dialect. Numbers with a fraction become the nearest
// float64, as they do from files.
func (dialect) Type(ctx context.Context, tx *sql.Tx, c *sql.ColumnType) (table.Type, error) {
	switch name := c.DatabaseTypeName(); name {
	case "INT2", "INT4", "INT8", "OID":
		return table.Int64, nil
	case "FLOAT4", "FLOAT8":
		return table.Float64, nil
	case "NUMERIC":
		if _, scale, ok := c.DecimalSize(); ok && scale == 0 {
			return table.Int64, nil
		}
		return table.Float64, nil
	case "BOOL":
		return table.Bool, nil
	case "TEXT", "VARCHAR", "BPCHAR", "NAME", "CHAR", "UUID", "JSON", "JSONB", "XML", "CITEXT", "INET", "CIDR", "MACADDR":
		return table.String, nil
	case "TIMESTAMP", "TIMESTAMPTZ":
		return table.Timestamp, nil
	case "DATE":
		return table.Date, nil
	default:
		oid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return "", nil //nolint:nilerr // a type by name that tables do not keep
		}
		var kind string // of a type that somebody made
		if err := tx.QueryRowContext(ctx, "SELECT typtype::text || typcategory::text FROM pg_type WHERE oid = $1", int64(oid)).Scan(&kind); err != nil {
			return "", err
		}
		if kind[0] == 'e' || kind[1] == 'S' { // an enumeration, or text such as citext
			return table.String, nil
		}
		return "", nil
	}
}

// Explain implements sqltable.Dialect.
func (d dialect) Explain(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		if strings.Contains(err.Error(), "server refused TLS connection") { // pgx has no type for it
			return fault.New(fault.Invalid, "%s does not support TLS", d.host).WithHint("Enable TLS on that server, or set tls: off in a trusted network.")
		}
		return nil
	}
	o := d.req.From.Postgres
	switch e.Code {
	case "28P01", "28000":
		return fault.New(fault.Invalid, "%s rejected the login of %q: %s", d.host, d.req.Secret["username"].Reveal(), e.Message).
			WithHint("Check username and password in the secret, and the server's pg_hba.conf.")
	case "3D000":
		return fault.New(fault.NotFound, "there is no database %q at %s", o.Database, d.host)
	case "42P01", "3F000":
		return fault.New(fault.NotFound, "there is no table %q in database %s at %s", o.Table, o.Database, d.host).
			WithHint("If the table is not in the schema public, write schema.table.")
	case "42703":
		return fault.New(fault.Invalid, "%s: %s", d.host, e.Message).WithHint("Check columns, cursor, key and query.")
	case "42501":
		return fault.New(fault.Invalid, "%s: %s", d.host, e.Message).WithHint("Grant SELECT to the user of the secret.")
	}
	switch class := e.Code[:min(2, len(e.Code))]; class {
	case "22", "23": // its words have values
		return fault.New(fault.Invalid, "%s: a value is out of range (SQLSTATE %s)", d.host, e.Code).WithData("%s", strings.TrimSpace(e.Message+" "+e.Detail)).
			WithHint("Check query and the rows that it reads.")
	case "08", "53", "57", "40", "55": // connection, resources, shutdown, conflict with recovery, not ready
		return fault.New(fault.Unavailable, "%s: %s", d.host, e.Message)
	}
	return fault.New(fault.Invalid, "%s rejected the request: %s", d.host, e.Message).WithHint("Check table and query.")
}
