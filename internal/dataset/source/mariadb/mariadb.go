// Package mariadb reads tables of MariaDB and MySQL: one query in one consistent
// snapshot, streamed.
package mariadb

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqltable"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

const usual = 3306

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	return sqltable.Check("mariadb", usual, *r.From.MariaDB, r)
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (source.Reader, error) {
	o := *r.From.MariaDB
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", sqltable.Address(o, usual), o.Database
	cfg.User, cfg.Passwd = r.Secret["username"].Reveal(), r.Secret["password"].Reveal()
	cfg.ParseTime, cfg.Loc = true, time.UTC
	cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = source.ConnectTime, source.StallTime, source.StallTime
	cfg.DialFunc = r.Access.Dial
	cfg.Logger = &mysql.NopLogger{} // what is wrong is returned
	var err error
	if cfg.TLS, err = source.TLS(o.TLS, o.Host, r.Secret); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fault.New(fault.Invalid, "spec.from.mariadb is invalid") // the error may have the password
	}
	return sqltable.Open(ctx, sql.OpenDB(connector), dialect{r}, o, r)
}

type dialect struct{ req source.Request }

// Quote implements sqltable.Dialect.
func (dialect) Quote(ident string) string { return "`" + strings.ReplaceAll(ident, "`", "``") + "`" }

// Arg implements sqltable.Dialect.
func (dialect) Arg(int) string { return "?" }

// Type implements sqltable.Dialect.
func (dialect) Type(_ context.Context, _ *sql.Tx, c *sql.ColumnType) (table.Type, error) {
	switch strings.TrimPrefix(c.DatabaseTypeName(), "UNSIGNED ") {
	case "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "YEAR":
		return table.Int64, nil
	case "FLOAT", "DOUBLE":
		return table.Float64, nil
	case "DECIMAL":
		if _, scale, ok := c.DecimalSize(); ok && scale == 0 {
			return table.Int64, nil
		}
		return table.Float64, nil
	case "CHAR", "VARCHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "JSON":
		return table.String, nil
	case "DATETIME", "TIMESTAMP":
		return table.Timestamp, nil
	case "DATE":
		return table.Date, nil
	}
	return "", nil
}

// Explain implements sqltable.Dialect.
func (d dialect) Explain(err error) error {
	o := d.req.From.MariaDB
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		if errors.Is(err, mysql.ErrNoTLS) {
			return fault.New(fault.Invalid, "%s does not support TLS", o.Host).WithHint("Enable TLS on that server, or set tls: off in a trusted network.")
		}
		if errors.Is(err, mysql.ErrInvalidConn) {
			return fault.New(fault.Unavailable, "%s closed the connection", o.Host)
		}
		return nil
	}
	switch e.Number {
	case 1045, 1698:
		return fault.New(fault.Invalid, "%s rejected the login of %q: %s", o.Host, d.req.Secret["username"].Reveal(), e.Message).
			WithHint("Check username and password in the secret.")
	case 1044, 1142, 1143:
		return fault.New(fault.Invalid, "%s: %s", o.Host, e.Message).WithHint("Grant SELECT to the user of the secret.")
	case 1049:
		return fault.New(fault.NotFound, "there is no database %q at %s", o.Database, o.Host)
	case 1146:
		return fault.New(fault.NotFound, "there is no table %q in database %s at %s", o.Table, o.Database, o.Host)
	case 1054:
		return fault.New(fault.Invalid, "%s: %s", o.Host, e.Message).WithHint("Check columns, cursor, key and query.")
	case 1040, 1053, 1203, 1205, 1213, 1927, 3024: // too many, shutdown, lock wait, deadlock, killed, time
		return fault.New(fault.Unavailable, "%s: %s", o.Host, e.Message)
	}
	if state := string(e.SQLState[:]); strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") { // its words have values
		return fault.New(fault.Invalid, "%s: a value is out of range (SQLSTATE %s)", o.Host, state).WithData("%s", e.Message).
			WithHint("Check query and the rows that it reads.")
	}
	return fault.New(fault.Invalid, "%s rejected the request: %s", o.Host, e.Message).WithHint("Check table and query.")
}
