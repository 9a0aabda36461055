package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqltable"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Main is the child: it reads a request and a file from stdin and writes what the
// file has, then the end, or a fault, to stdout.
func Main(stdin io.Reader, stdout io.Writer) error {
	in, out := child.NewReader(stdin), child.NewWriter(stdout)
	var a asked
	err := in.Header(&a)
	if err != nil {
		return out.Fault(err)
	}
	file, err := io.ReadAll(io.LimitReader(in.Stream(), MaxFile+1))
	switch {
	case err != nil:
		return out.Fault(err)
	case len(file) > MaxFile:
		return out.Fault(fault.New(fault.TooLarge, "the database has more than %d bytes", int64(MaxFile)))
	}
	lost, err := give(out, a, file)
	if lost || err == nil {
		return err
	}
	return out.Fault(err)
}

// give writes the rows. lost says that nobody is listening.
func give(out *child.Writer, a asked, file []byte) (lost bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Invalid, "the database cannot be read: %v", p)
		}
	}()
	ctx := context.Background()
	c, err := load(file)
	if err != nil {
		return false, err
	}
	d := dialect{a, map[string]table.Type{}}
	what, err := d.plain(ctx, c)
	if err != nil {
		return false, sqltable.Explain(d, a.What.Host, err)
	}
	rows, err := sqltable.Open(ctx, sql.OpenDB(&connector{c}), d, what, a.request())
	if err != nil {
		return false, err
	}
	defer func() { _ = rows.Close() }()
	schema := rows.Schema()
	columns, err := table.FromArrow(schema)
	if err != nil {
		return false, err
	}
	if err := out.Header(begun{Schema: columns, Until: rows.Until()}); err != nil {
		return true, err
	}
	for {
		rec, at, err := rows.Next(ctx)
		if errors.Is(err, io.EOF) {
			return true, out.Header(step{End: true})
		}
		if err != nil {
			return false, err
		}
		err = out.Header(step{At: at})
		if err == nil {
			batch := out.Records(schema)
			if err = batch.Write(rec); err == nil {
				err = batch.Close()
			}
		}
		rec.Release()
		if err != nil {
			return true, err
		}
	}
}

// connector gives the one connection that has the file in its memory.
type connector struct{ c *sqlite3.SQLiteConn }

// Connect implements driver.Connector. A second connection would have nothing, and
// sqltable uses one.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	if c.c == nil {
		return nil, errors.New("a second connection")
	}
	one := conn{c.c}
	c.c = nil
	return one, nil
}

// conn writes times as timeOf does.
type conn struct{ *sqlite3.SQLiteConn }

// CheckNamedValue implements driver.NamedValueChecker.
func (conn) CheckNamedValue(v *driver.NamedValue) (err error) {
	if t, ok := v.Value.(time.Time); ok {
		v.Value = t.UTC().Format(timeForm)
		return nil
	}
	v.Value, err = driver.DefaultParameterConverter.ConvertValue(v.Value)
	return err
}

// timeForm has the order of times as text, which SQLite compares.
const timeForm = "2006-01-02 15:04:05.000000Z07:00"

// timeOf is the time that a column's value says. SQLite has no such type.
func timeOf(value any) (any, error) {
	if b, ok := value.([]byte); ok && b == nil || value == nil {
		return nil, nil //nolint:nilnil // NULL
	}
	v, err := source.Convert(table.Timestamp, value)
	if err != nil {
		return nil, err
	}
	t, ok := v.(time.Time)
	if !ok {
		return nil, errors.New("not a time")
	}
	return t.Format(timeForm), nil
}

// Driver implements driver.Connector.
func (*connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

// load has SQLite take the bytes for a database that nobody can write to.
func load(file []byte) (*sqlite3.SQLiteConn, error) {
	const header = "SQLite format 3\x00"
	if len(file) < 100 || string(file[:len(header)]) != header {
		return nil, fault.New(fault.Invalid, "the file is not an SQLite database, or is encrypted")
	}
	page := int(binary.BigEndian.Uint16(file[16:]))
	if page == 1 {
		page = 1 << 16
	}
	if pages := int64(binary.BigEndian.Uint32(file[28:])); page < 512 || len(file)%page != 0 || int64(len(file)) < pages*int64(page) {
		return nil, fault.New(fault.Invalid, "the database is truncated: it has %d bytes, and its header says %d pages of %d bytes", len(file), pages, page)
	}
	file[18], file[19] = 1, 1 // a database of the WAL mode, whose log is empty, opens as one without
	conn, err := (&sqlite3.SQLiteDriver{}).Open("file::memory:?_loc=UTC")
	if err != nil {
		return nil, err
	}
	c, ok := conn.(*sqlite3.SQLiteConn)
	if !ok {
		return nil, errors.New("another driver")
	}
	if err := c.Deserialize(file, "main"); err != nil {
		return nil, fault.New(fault.Invalid, "the database cannot be opened: %v", err)
	}
	c.SetLimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
	for _, pragma := range []string{"query_only = 1", "trusted_schema = 0", "cell_size_check = 1", "mmap_size = 0", "temp_store = 2"} {
		if _, err := c.Exec("PRAGMA "+pragma, nil); err != nil {
			return nil, fault.New(fault.Invalid, "the database cannot be opened: %v", err)
		}
	}
	if err := whole(c); err != nil {
		return nil, err
	}
	return c, c.RegisterFunc("falaj_time", timeOf, true)
}

// whole refuses a damaged database: of such SQLite may read rows that were never
// written.
func whole(c *sqlite3.SQLiteConn) error {
	rows, err := c.QueryContext(context.Background(), "PRAGMA quick_check(1)", nil)
	if err != nil {
		return fault.New(fault.Invalid, "the database cannot be read: %v", err)
	}
	defer func() { _ = rows.Close() }()
	said := make([]driver.Value, 1)
	if err := rows.Next(said); err != nil || said[0] != "ok" {
		return fault.New(fault.Invalid, "the database is corrupt: %v %v", said[0], err).WithHint("Check it with: sqlite3 FILE 'PRAGMA integrity_check'.")
	}
	return nil
}

// dialect is SQLite's.
type dialect struct {
	a     asked
	types map[string]table.Type
}

// plain is what is asked for without the declared types of columns, of which the
// driver makes its own values, and with times in one form.
func (d dialect) plain(ctx context.Context, c *sqlite3.SQLiteConn) (source.Database, error) {
	from := quote(d.a.What.Table)
	if d.a.What.Query != "" {
		from = "(" + strings.TrimRight(strings.TrimSpace(d.a.What.Query), ";") + ") AS q"
	}
	list := "*"
	if len(d.a.What.Columns) > 0 {
		quoted := make([]string, len(d.a.What.Columns))
		for i, name := range d.a.What.Columns {
			quoted[i] = "q." + quote(name) // with its table: else SQLite takes an unknown name for text
		}
		list = strings.Join(quoted, ", ")
		if d.a.What.Query == "" {
			from += " AS q"
		}
	}
	rows, err := c.QueryContext(ctx, "SELECT "+list+" FROM "+from+" WHERE 1 = 0", nil)
	if err != nil {
		return source.Database{}, err
	}
	defer func() { _ = rows.Close() }()
	lite, ok := rows.(*sqlite3.SQLiteRows)
	if !ok {
		return source.Database{}, errors.New("another driver")
	}
	names := lite.Columns()
	if len(names) == 0 {
		return source.Database{}, fault.New(fault.Invalid, "spec.from.sqlite.query: it must be a single SELECT")
	}
	if err := table.CheckNames(names); err != nil {
		return source.Database{}, err
	}
	selected, ordered := make([]string, len(names)), map[string]table.Type{}
	for i, name := range names {
		declared := lite.ColumnTypeDatabaseTypeName(i)
		t := typeOf(declared)
		for _, c := range d.a.Declared {
			if c.Name == name {
				t = c.Type
			}
		}
		if t == "" {
			return source.Database{}, fault.New(fault.Invalid, "column %q has the type %.40s, which tables do not support", name, strings.ToLower(declared)).
				WithHint("Omit it with `columns`, or cast it in a `query` to text or a number.")
		}
		if name == d.a.Cursor || slices.Contains(d.a.Key, name) {
			ordered[name] = t
		}
		d.types[name] = t
		selected[i] = "+" + quote(name) + " AS " + quote(name)
		if t == table.Timestamp {
			selected[i] = "falaj_time(" + quote(name) + ") AS " + quote(name)
		}
	}
	if err := lite.Close(); err != nil {
		return source.Database{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(ordered)) {
		if err := oneClass(ctx, c, from, name, ordered[name]); err != nil {
			return source.Database{}, err
		}
	}
	what := d.a.What
	what.Table, what.Columns, what.Query = "", nil, "SELECT "+strings.Join(selected, ", ")+" FROM "+from
	return what, nil
}

// oneClass refuses a cursor or a key whose values are not all of the class that its
// type is compared as: to SQLite every number is less than every text, and rows would
// be passed over in silence.
func oneClass(ctx context.Context, c *sqlite3.SQLiteConn, from, name string, t table.Type) error {
	var class string
	switch t {
	case table.Int64:
		class = "integer"
	case table.String:
		class = "text"
	case table.Timestamp: // falaj_time makes text of each, or refuses it
		return nil
	case table.Date:
		return fault.New(fault.Invalid, "column %q is a date, which SQLite stores as text; it cannot order rows", name).
			WithHint("Use a cursor or key of integers, text or timestamps.")
	default: // sqltable refuses it
		return nil
	}
	rows, err := c.QueryContext(ctx, "SELECT typeof("+quote(name)+") FROM "+from+" WHERE typeof("+quote(name)+") NOT IN ('"+class+"', 'null') LIMIT 1", nil)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	found := make([]driver.Value, 1)
	switch err := rows.Next(found); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fault.New(fault.Invalid, "column %q, the cursor or part of the key, is read as %s and has values that SQLite stores as %s", name, t, found[0]).
		WithHint("Such rows would be skipped. Declare the column's type in the Dataset's spec.columns, or cast it in a `query`; all values of a key must have one type.")
}

// Quote implements sqltable.Dialect.
func (dialect) Quote(ident string) string { return quote(ident) }

// Arg implements sqltable.Dialect.
func (dialect) Arg(int) string { return "?" }

// Type implements sqltable.Dialect.
func (d dialect) Type(_ context.Context, _ *sql.Tx, c *sql.ColumnType) (table.Type, error) {
	return d.types[c.Name()], nil
}

// typeOf is what a declared type is kept as. SQLite lets a column have any value: one
// that is not of the declared type is refused with its row.
func typeOf(declared string) table.Type {
	t, _, _ := strings.Cut(strings.ToUpper(declared), "(")
	switch t = strings.TrimSpace(t); {
	case t == "": // of an expression, or undeclared
		return table.String
	case t == "DATE":
		return table.Date
	case t == "DATETIME", t == "TIMESTAMP":
		return table.Timestamp
	case strings.HasPrefix(t, "BOOL"):
		return table.Bool
	case strings.Contains(t, "INT"):
		return table.Int64
	case strings.Contains(t, "CHAR"), strings.Contains(t, "CLOB"), strings.Contains(t, "TEXT"), strings.Contains(t, "JSON"):
		return table.String
	case strings.Contains(t, "REAL"), strings.Contains(t, "FLOAT"), strings.Contains(t, "DOUBLE"), t == "NUMERIC", t == "DECIMAL":
		return table.Float64
	}
	return ""
}

// Explain implements sqltable.Dialect.
func (d dialect) Explain(err error) error {
	said, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return fault.New(fault.Invalid, "the database cannot be read: %v", err)
	}
	switch said.Code {
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return fault.New(fault.Invalid, "the database is corrupt: %v", err).WithHint("Check it with: sqlite3 FILE 'PRAGMA integrity_check'.")
	case sqlite3.ErrNomem:
		return fault.New(fault.Exhausted, "reading the database exceeds the memory limit")
	}
	if strings.Contains(err.Error(), "no such table") && d.a.What.Table != "" {
		return fault.New(fault.NotFound, "there is no table %q in %s", d.a.What.Table, d.a.What.Host)
	}
	return fault.New(fault.Invalid, "SQLite rejected the query: %v", err).WithHint("Check table, columns, cursor, key and query.")
}
