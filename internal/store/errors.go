package store

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"

	"github.com/falaj-ml/falaj/internal/fault"
)

// untrusted reports a server whose certificate TLS refuses.
func untrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

var errClosed = fault.New(fault.Unavailable, "the database is closed").WithHint("The server is stopping; try again when it is running.")

// Ended adds the end of ctx to the error of a statement that came after it: database/sql
// rolls the transaction back then, closes the rows that are being read, and says only that.
// It is for every transaction that ctx ends, also of other databases.
func Ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	if errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone) || strings.Contains(err.Error(), rowsClosed) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// rowsClosed is an error that database/sql does not export.
const rowsClosed = "sql: Rows are closed"

// IsUnique reports whether err is a violation of a primary key or unique index,
// on either database. The transaction can continue only if the statement was in a
// Savepoint.
func IsUnique(err error) bool {
	if lite, ok := errors.AsType[sqlite3.Error](err); ok {
		return lite.ExtendedCode == sqlite3.ErrConstraintUnique || lite.ExtendedCode == sqlite3.ErrConstraintPrimaryKey
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505"
}

// NotFound returns a fault.NotFound with this message if err is sql.ErrNoRows; any other err is
// returned unchanged.
func NotFound(err error, format string, args ...any) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fault.New(fault.NotFound, format, args...)
	}
	return err
}

// classify gives an error of the database without a kind its kind and a hint. The chain of
// errors stays. The text stays if it names no address, because callers see it.
func classify(err error) error {
	if err == nil || fault.KindOf(err) != fault.Internal {
		return err
	}
	kind, hint := kindOf(err)
	if kind == fault.Internal && hint == "" {
		return err
	}
	text := err.Error()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		text = pg.Message // without the connection that it came by
	} else if lostConnection(err) {
		return away(err)
	}
	out := &fault.Error{Kind: kind, Message: text, Hint: hint, Err: err}
	if kind == fault.Exhausted { // of a database, that is its disk
		return out.WithCause(fault.ErrFull)
	}
	return out
}

// opening is classify for the start of the server, with the address in the error.
func opening(err error) error {
	if err == nil || fault.KindOf(err) != fault.Internal {
		return fault.Wrap(err, "open database")
	}
	kind, hint := kindOf(err)
	text := strings.Join(strings.Fields(err.Error()), " ") // it has a line for each address
	return fault.Wrap(&fault.Error{Kind: kind, Message: text, Hint: hint, Err: err}, "open database")
}

func kindOf(err error) (fault.Kind, string) {
	const (
		full  = "Free disk space for the database; acknowledged writes are safe."
		perm  = "Check that the server has read and write permission in the database's directory."
		retry = "Try again."
		owned = "Let the user of the store URL own the database, its schema and Falaj's tables: ALTER DATABASE NAME OWNER TO USER."
	)
	var lite sqlite3.Error
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fault.Timeout, retry
	case errors.Is(err, context.Canceled):
		return fault.Unavailable, "The caller canceled before the write began."
	case IsUnique(err):
		return fault.Conflict, "The object already exists."
	case errors.As(err, &lite):
		switch {
		case lite.Code == sqlite3.ErrFull, lite.SystemErrno == syscall.ENOSPC, lite.SystemErrno == syscall.EDQUOT,
			lite.ExtendedCode == sqlite3.ErrIoErrSHMSize:
			return fault.Exhausted, full
		case lite.Code == sqlite3.ErrBusy, lite.Code == sqlite3.ErrLocked:
			return fault.Unavailable, "Another program has locked the database; stop it and try again."
		case lite.Code == sqlite3.ErrReadonly, lite.Code == sqlite3.ErrCantOpen, lite.Code == sqlite3.ErrPerm:
			return fault.Unavailable, perm
		case lite.Code == sqlite3.ErrIoErr:
			return fault.Unavailable, "The disk of the database reports errors; check the kernel's log."
		case lite.Code == sqlite3.ErrCorrupt, lite.Code == sqlite3.ErrNotADB:
			return fault.Internal, "The database file is damaged; restore the latest backup."
		case lite.Code == sqlite3.ErrTooBig:
			return fault.TooLarge, ""
		}
	case errors.As(err, &pg):
		switch pg.Code[:2] {
		case "40":
			return fault.Unavailable, "Too many writers changed the same rows; try again."
		case "53":
			if pg.Code == "53100" { // disk_full
				return fault.Exhausted, full
			}
			return fault.Unavailable, "PostgreSQL is out of memory or connections; try again, or raise max_connections."
		case "08", "57":
			return fault.Unavailable, "PostgreSQL is stopping or unavailable; try again when it is running."
		case "28", "3D":
			return fault.Unavailable, "Check the user, password and database of the store URL."
		case "42":
			if pg.Code == "42501" { // insufficient_privilege
				return fault.Unavailable, owned
			}
		}
	case untrusted(err):
		return fault.Unavailable, "Set sslrootcert in the store URL to the authority's PEM file, and use a host name that the certificate contains."
	case errors.As(err, &connect), errors.Is(err, driver.ErrBadConn), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return fault.Unavailable, "Check that PostgreSQL is running and that the store URL is correct."
	}
	return fault.Internal, ""
}
