package store

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Most of the cost of a small transaction on PostgreSQL is its round trips. Statements that
// only write need no answer: they are kept and sent with the next statement that needs one,
// the last with the commit.

// maxKept bounds the bytes of statements that are kept.
const maxKept = 1 << 20

type (
	laterKey struct{}
	sendKey  struct{}
)

// Later marks a statement of a write transaction that has no parameters of its own and no result that
// the caller reads. On PostgreSQL it may be sent later, before the next statement that is not
// marked; that statement or the commit then returns its error.
func Later(ctx context.Context) context.Context { return context.WithValue(ctx, laterKey{}, true) }

// laterConnector makes connections that keep such statements.
type laterConnector struct{ driver.Connector }

func (c laterConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &laterConn{Conn: conn.(*stdlib.Conn)}, nil
}

type laterConn struct {
	*stdlib.Conn
	tx    bool // one is open
	kept  []string
	bytes int
}

func (c *laterConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.forget()
	c.tx = true
	return &laterTx{Tx: tx, ctx: ctx, c: c}, nil
}

func (c *laterConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	later := c.tx && ctx.Value(laterKey{}) != nil && len(args) == 0
	switch {
	case ctx.Value(sendKey{}) != nil:
		return driver.ResultNoRows, c.send(ctx)
	case later && c.bytes+len(query) <= maxKept:
		c.kept, c.bytes = append(c.kept, query), c.bytes+len(query)
		return driver.ResultNoRows, nil
	case strings.HasPrefix(query, "ROLLBACK"): // to a savepoint: what was kept came after it
		c.forget()
	case len(args) > 0:
		if err := c.send(ctx); err != nil {
			return nil, err
		}
	default:
		query = c.with(query)
	}
	return c.Conn.ExecContext(ctx, query, args)
}

func (c *laterConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.send(ctx); err != nil {
		return nil, err
	}
	return c.Conn.QueryContext(ctx, query, args)
}

func (c *laterConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.send(ctx); err != nil {
		return nil, err
	}
	return c.Conn.PrepareContext(ctx, query)
}

// send sends what is kept.
func (c *laterConn) send(ctx context.Context) error {
	if len(c.kept) == 0 {
		return nil
	}
	_, err := c.Conn.Conn().Exec(ctx, c.with(""))
	return err
}

// with is what is kept and a statement that follows it. The server runs them one after
// the other, to the first that fails.
func (c *laterConn) with(query string) string {
	if len(c.kept) == 0 {
		return query
	}
	all := strings.Join(append(c.kept, query), ";\n")
	c.forget()
	return all
}

func (c *laterConn) forget() { c.kept, c.bytes = nil, 0 }

type laterTx struct {
	driver.Tx
	ctx context.Context //nolint:containedctx // that of the transaction, as database/sql has it
	c   *laterConn
}

func (t *laterTx) Commit() error {
	t.c.tx = false
	if len(t.c.kept) == 0 {
		return t.Tx.Commit()
	}
	tag, err := t.c.Conn.Conn().Exec(t.ctx, t.c.with("commit"))
	switch {
	case err == nil && tag.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	case err != nil && t.c.Conn.Conn().PgConn().TxStatus() != 'I':
		_ = t.Tx.Rollback()
	}
	return err
}

func (t *laterTx) Rollback() error {
	t.c.tx = false
	t.c.forget()
	return t.Tx.Rollback()
}
