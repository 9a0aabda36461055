// Package sqltable reads a table of a database through database/sql: what the
// drivers postgres and mariadb share. A Dialect says how the databases differ.
//
// A reading is one query in one snapshot. In the order of cursor and key its rows
// have places, so that it can be taken up after any row, in another snapshot.
// Which rows belong to it is fixed when it begins: those up to the largest cursor
// of its first snapshot. Rows that were committed late, under a smaller cursor
// than that, are read by the next reading if they are within the overlap.
package sqltable

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// Dialect is how a database differs from others.
type Dialect interface {
	Quote(ident string) string
	Arg(n int) string // the n-th argument, from 1
	// Type is what a column is kept as; an empty type is none that tables keep.
	Type(ctx context.Context, tx *sql.Tx, c *sql.ColumnType) (table.Type, error)
	// Explain puts an error of the database into words; nil for one it does not know.
	Explain(err error) error
}

// How far before the last cursor a reading begins, when the manifest does not say.
const (
	OverlapTime = 10 * time.Minute
	OverlapRows = 10_000
)

// Address is host:port of the server; usual is the port when none is given.
func Address(o source.Database, usual int) string {
	port := o.Port
	if port == 0 {
		port = usual
	}
	return net.JoinHostPort(o.Host, strconv.Itoa(port))
}

// Check refuses what cannot be read.
func Check(kind string, usual int, o source.Database, r source.Request) error {
	bad := func(field, format string, args ...any) error {
		return fault.New(fault.Invalid, "spec.from.%s.%s: %s", kind, field, fmt.Sprintf(format, args...))
	}
	switch {
	case o.Host == "" || strings.ContainsAny(o.Host, "/ @"):
		return bad("host", "%q is not a host name", o.Host)
	case o.Port < 0 || o.Port > 65535:
		return bad("port", "%d is not a port", o.Port)
	case o.Database == "":
		return bad("database", "it is required")
	}
	if err := source.CheckTLS("spec.from."+kind+".tls", o.TLS); err != nil {
		return err
	}
	if err := CheckTable(kind, o, r); err != nil {
		return err
	}
	return r.Access.Allowed(Address(o, usual))
}

// CheckTable refuses what cannot be read of a database.
func CheckTable(kind string, o source.Database, r source.Request) error {
	bad := func(field, format string, args ...any) error {
		return fault.New(fault.Invalid, "spec.from.%s.%s: %s", kind, field, fmt.Sprintf(format, args...))
	}
	switch {
	case (o.Table == "") == (o.Query == ""):
		return bad("table", "either table or query is required")
	case len(o.Query) > 64<<10:
		return bad("query", "%d bytes are over the limit of 65536", len(o.Query))
	}
	if r.Mode == source.Full {
		return nil
	}
	if r.Cursor == "" {
		return fault.New(fault.Invalid, "spec.cursor: mode %s requires it", r.Mode).
			WithHint("Name the column that increases with each change, such as updated_at or id, or use mode: full.")
	}
	if len(r.Key) == 0 {
		return fault.New(fault.Invalid, "spec.key: mode %s requires the columns that identify a row", r.Mode).
			WithHint("Rows near the last cursor are read again, and the key distinguishes them from new rows.")
	}
	if len(o.Columns) > 0 {
		for _, c := range append([]string{r.Cursor}, r.Key...) {
			if !slices.Contains(o.Columns, c) {
				return bad("columns", "%q, the cursor or part of the key, is missing", c)
			}
		}
	}
	return nil
}

// place is a position: the cursor and the key of a row, as text.
type place struct {
	Cursor *string  `json:"cursor,omitempty"`
	Key    []string `json:"key,omitempty"`
}

func parse(p source.Position) (out place, err error) {
	if len(p) == 0 {
		return place{}, nil
	}
	if err := json.Unmarshal(p, &out); err != nil {
		return place{}, fault.New(fault.Internal, "the position is not a position in a table").WithData("%.200s", p)
	}
	return out, nil
}

// Open begins a reading. It owns db.
func Open(ctx context.Context, db *sql.DB, d Dialect, o source.Database, r source.Request) (_ source.Reader, err error) {
	s := &reader{db: db, d: d, o: o, req: r}
	defer func() {
		if err != nil {
			_ = s.Close()
			err = s.explain(ctx, err)
		}
	}()
	// The context of a transaction ends it: this one is the reader's, not Open's.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	if s.tx, err = db.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}); err != nil {
		return nil, err
	}
	if err := s.shape(own); err != nil {
		return nil, err
	}
	if err := s.bounds(own); err != nil {
		return nil, err
	}
	if s.empty {
		return s, nil
	}
	return s, s.query(own)
}

type reader struct {
	db     *sql.DB
	d      Dialect
	o      source.Database
	req    source.Request
	cancel context.CancelFunc

	tx     *sql.Tx
	rows   *sql.Rows
	schema table.Schema
	order  []int // columns of cursor and key, in that order
	cursor bool  // the first of order is the cursor
	until  place
	empty  bool
	build  *source.Builder
	read   int64
	values []any
	before []any // cursor and key of the last row
	end    bool
}

// from is what stands after FROM.
func (s *reader) from() string {
	if s.o.Query != "" {
		return "(" + strings.TrimRight(strings.TrimSpace(s.o.Query), ";") + ") AS q"
	}
	parts := strings.Split(s.o.Table, ".")
	for i, p := range parts {
		parts[i] = s.d.Quote(p)
	}
	return strings.Join(parts, ".")
}

func (s *reader) columns() string {
	if len(s.o.Columns) == 0 {
		return "*"
	}
	return s.list(s.o.Columns)
}

func (s *reader) list(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = s.d.Quote(n)
	}
	return strings.Join(quoted, ", ")
}

// shape finds the columns and their types.
func (s *reader) shape(ctx context.Context) error {
	rows, err := s.tx.QueryContext(ctx, "SELECT "+s.columns()+" FROM "+s.from()+" WHERE 1 = 0") //nolint:gosec // G202: quoted names, or the query that the manifest gives
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	types, err := rows.ColumnTypes()
	if err = errors.Join(err, rows.Err()); err != nil {
		return err
	}
	_ = rows.Close() // a connection has one result at a time
	names := make([]string, len(types))
	for i, c := range types {
		names[i] = c.Name()
		t, err := s.d.Type(ctx, s.tx, c)
		if err != nil {
			return err
		}
		for _, declared := range s.req.Declared {
			if declared.Name != c.Name() || t == "" || declared.Type == t {
				continue
			}
			if s.ordered(c.Name()) { // the database would order by one type, and compare by another
				return fault.New(fault.Invalid, "column %q, the cursor or part of the key, is declared as %s and is %s in the database", c.Name(), declared.Type, t).
					WithHint("Declare it as %s, or cast it in a `query`.", t)
			}
			t = declared.Type // values are converted, or refused with their row
		}
		if name := c.DatabaseTypeName(); (name == "ENUM" || name == "SET") && s.ordered(c.Name()) { // the same
			return fault.New(fault.Invalid, "column %q, the cursor or part of the key, is an %s: it is ordered as a number and compared as text", c.Name(), strings.ToLower(name)).
				WithHint("Cast it to text in a `query`.")
		}
		if t == "" {
			return fault.New(fault.Invalid, "column %q has the type %s, which tables do not support", c.Name(), strings.ToLower(c.DatabaseTypeName())).
				WithHint("Omit it with `columns`, or cast it in a `query` to text, a number, a timestamp or a date.")
		}
		s.schema = append(s.schema, table.Field{Name: c.Name(), Type: t})
	}
	if err := table.CheckNames(names); err != nil {
		return err
	}
	ordered := s.req.Key
	if s.req.Mode != source.Full {
		ordered, s.cursor = append([]string{s.req.Cursor}, s.req.Key...), true
	}
	for _, name := range ordered {
		i := slices.Index(names, name)
		if i < 0 {
			return fault.New(fault.Invalid, "there is no column %q, the cursor or part of the key", name).WithHint("The columns are %s.", strings.Join(names, ", "))
		}
		if t := s.schema[i].Type; t == table.Float32 || t == table.Float64 || t == table.Bool {
			return fault.New(fault.Invalid, "column %q is %s, which cannot order rows", name, t).
				WithHint("Use a cursor or key of integers, text, timestamps or dates.")
		}
		s.order = append(s.order, i)
	}
	if s.req.Op != "" && !slices.Contains(names, s.req.Op) {
		return fault.New(fault.Invalid, "there is no column %q, named by spec.op", s.req.Op).WithHint("The columns are %s.", strings.Join(names, ", "))
	}
	return nil
}

// ordered reports whether rows are in the order of a column.
func (s *reader) ordered(name string) bool {
	return slices.Contains(s.req.Key, name) || s.req.Mode != source.Full && name == s.req.Cursor
}

// bounds fixes where the reading ends.
func (s *reader) bounds(ctx context.Context) error {
	if !s.cursor {
		return nil
	}
	if s.req.Begun {
		var err error
		s.until, err = parse(s.req.Until)
		s.empty = s.until.Cursor == nil
		return err
	}
	name, t := s.d.Quote(s.req.Cursor), s.schema[s.order[0]].Type
	var without bool
	if err := s.tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+s.from()+" WHERE "+name+" IS NULL)").Scan(&without); err != nil {
		return err
	}
	if without {
		return fault.New(fault.Invalid, "some rows have no %s, the cursor: they would never be read", s.req.Cursor).
			WithHint("Fill the column, choose another cursor, or use mode: full.")
	}
	var last any
	if err := s.tx.QueryRowContext(ctx, "SELECT max("+name+") FROM "+s.from()).Scan(&last); err != nil {
		return err
	}
	after, err := parse(s.req.After)
	if err != nil {
		return err
	}
	if last == nil {
		s.until, s.empty = after, true
		s.until.Key = nil
		return nil
	}
	text, err := source.Text(t, last)
	if err != nil {
		return fault.New(fault.Invalid, "column %q, the cursor: %w", s.req.Cursor, err)
	}
	s.until = place{Cursor: &text}
	return nil
}

// query begins to read.
func (s *reader) query(ctx context.Context) error {
	var where []string
	var args []any
	arg := func(i int, text string) (string, error) {
		v, err := source.Convert(s.schema[i].Type, text)
		args = append(args, v)
		return s.d.Arg(len(args)), err
	}
	after, err := parse(s.req.After)
	if err != nil {
		return err
	}
	resume, err := parse(s.req.Resume)
	if err != nil {
		return err
	}
	if s.cursor {
		name := s.d.Quote(s.req.Cursor)
		a, err := arg(s.order[0], *s.until.Cursor)
		if err != nil {
			return err
		}
		where = append(where, name+" <= "+a)
		if after.Cursor != nil {
			from, err := Before(s.schema[s.order[0]].Type, *after.Cursor, s.req.Overlap)
			if err != nil {
				return err
			}
			if a, err = arg(s.order[0], from); err != nil {
				return err
			}
			where = append(where, name+" >= "+a)
		}
	}
	if len(s.req.Resume) > 0 {
		texts := resume.Key
		if s.cursor && resume.Cursor != nil {
			texts = append([]string{*resume.Cursor}, texts...)
		}
		if len(texts) != len(s.order) {
			return fault.New(fault.Internal, "the position is not a position in this table").WithData("%.200s", s.req.Resume)
		}
		names, marks := make([]string, len(texts)), make([]string, len(texts))
		for n, i := range s.order {
			names[n] = s.d.Quote(s.schema[i].Name)
			if marks[n], err = arg(i, texts[n]); err != nil {
				return err
			}
		}
		where = append(where, "("+strings.Join(names, ", ")+") > ("+strings.Join(marks, ", ")+")")
		// The same said again of the first column: some planners use an index for this only.
		first, err := arg(s.order[0], texts[0])
		if err != nil {
			return err
		}
		where = append(where, names[0]+" >= "+first)
	}
	q := "SELECT " + s.columns() + " FROM " + s.from() //nolint:gosec // G202: quoted names, or the query that the manifest gives
	if len(where) > 0 {
		q += " WHERE " + strings.Join(where, " AND ")
	}
	if len(s.order) > 0 {
		names := make([]string, len(s.order))
		for n, i := range s.order {
			names[n] = s.schema[i].Name
		}
		q += " ORDER BY " + s.list(names)
	}
	if s.rows, err = s.tx.QueryContext(ctx, q, args...); err != nil { //nolint:rowserrcheck // Next asks for it at the end
		return err
	}
	s.build = source.NewBuilder(s.schema)
	s.values = make([]any, len(s.schema))
	return nil
}

// Before is the cursor from which a reading begins again.
func Before(t table.Type, cursor, overlap string) (string, error) {
	v, err := source.Convert(t, cursor)
	if err != nil {
		return "", fault.New(fault.Internal, "the position: %w", err)
	}
	switch v := v.(type) {
	case int64:
		n := int64(OverlapRows)
		if overlap != "" {
			if n, err = strconv.ParseInt(overlap, 10, 64); err != nil || n < 0 {
				return "", fault.New(fault.Invalid, "spec.overlap: %q is not a number, and the cursor is a number", overlap)
			}
		}
		if v-n > v { // below the smallest
			return cursor, nil
		}
		return strconv.FormatInt(v-n, 10), nil
	case time.Time:
		d := OverlapTime
		if overlap != "" {
			if d, err = time.ParseDuration(overlap); err != nil || d < 0 {
				return "", fault.New(fault.Invalid, "spec.overlap: %q is not a duration such as 10m, and the cursor is a time", overlap)
			}
		}
		return source.Text(t, v.Add(-d))
	}
	if overlap != "" {
		return "", fault.New(fault.Invalid, "spec.overlap: a text cursor supports no overlap")
	}
	return cursor, nil
}

// Schema implements source.Reader.
func (s *reader) Schema() *arrow.Schema { return s.schema.Arrow() }

// Until implements source.Reader.
func (s *reader) Until() source.Position {
	if !s.cursor {
		return nil
	}
	return position(s.until)
}

func position(p place) source.Position {
	b, err := json.Marshal(p)
	if err != nil {
		panic("sqltable: a place does not marshal: " + err.Error())
	}
	return b
}

// Next implements source.Reader.
func (s *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	if s.empty || s.end {
		return nil, nil, io.EOF
	}
	// database/sql has no context for Next: the whole reading ends with the call's.
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	targets := make([]any, len(s.values))
	for i := range s.values {
		targets[i] = &s.values[i]
	}
	for !s.build.Full(s.req.BatchRows) {
		if !s.rows.Next() {
			s.end = true
			break
		}
		if err := s.rows.Scan(targets...); err != nil {
			return nil, nil, s.explain(ctx, err)
		}
		s.read++
		if err := s.distinct(); err != nil {
			return nil, nil, err
		}
		if err := s.build.Add(s.read, s.values); err != nil {
			return nil, nil, err
		}
	}
	if s.end {
		if err := s.rows.Err(); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, nil, s.explain(ctx, err)
		}
		if s.build.Rows() == 0 {
			return nil, nil, io.EOF
		}
	}
	at, err := s.at()
	if err != nil {
		return nil, nil, err
	}
	return s.build.Take(), at, nil
}

// distinct refuses a row that has the place of the one before, or none: a reading that
// is taken up there would pass it over.
func (s *reader) distinct() error {
	if len(s.order) == 0 {
		return nil
	}
	same := s.before != nil
	now := make([]any, len(s.order))
	for n, i := range s.order {
		if now[n] = s.values[i]; now[n] == nil {
			return fault.New(fault.Invalid, "row %d has no %q, a column of spec.key", s.read, s.schema[i].Name).
				WithHint("Fill the column, or name others in spec.key.")
		}
		same = same && equal(s.before[n], now[n])
	}
	if s.before = now; !same {
		return nil
	}
	names := make([]string, len(s.order))
	for n, i := range s.order {
		names[n] = s.schema[i].Name
	}
	return fault.New(fault.Invalid, "rows %d and %d have the same %s: an interrupted run could lose one of them", s.read-1, s.read, strings.Join(names, " and ")).
		WithHint("Set spec.key to columns that identify each row. With mode: full you can omit it; an interrupted run then restarts from the beginning.")
}

// equal compares two values of one column.
func equal(a, b any) bool {
	switch x := a.(type) {
	case []byte:
		y, ok := b.([]byte)
		return ok && bytes.Equal(x, y)
	case time.Time:
		y, ok := b.(time.Time)
		return ok && x.Equal(y)
	}
	return a == b
}

// at is where the reading stands after the last row.
func (s *reader) at() (source.Position, error) {
	if len(s.order) == 0 {
		return nil, nil
	}
	var p place
	for n, i := range s.order {
		text, err := source.Text(s.schema[i].Type, s.values[i])
		if err != nil {
			return nil, fault.New(fault.Invalid, "row %d, column %q: %w", s.read, s.schema[i].Name, err)
		}
		if n == 0 && s.cursor {
			p.Cursor = &text
			continue
		}
		p.Key = append(p.Key, text)
	}
	return position(p), nil
}

// Close implements source.Reader.
func (s *reader) Close() error {
	s.cancel() // a query under way is given up, not read to its end
	if s.rows != nil {
		_ = s.rows.Close()
	}
	if s.tx != nil {
		_ = s.tx.Rollback()
	}
	if s.build != nil {
		s.build.Release()
	}
	return s.db.Close()
}

// explain puts an error of a call with ctx into words.
func (s *reader) explain(ctx context.Context, err error) error {
	return Explain(s.d, s.o.Host, store.Ended(ctx, err))
}

// Explain puts an error of a database or its network into words.
func Explain(d Dialect, host string, err error) error {
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("reading from %s was cancelled: %w", host, context.Canceled)
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Timeout, "reading from %s timed out: %w", host, context.DeadlineExceeded)
	}
	if said := d.Explain(err); said != nil {
		return said
	}
	if said := source.Unreachable(host, err); said != nil {
		return said
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, sql.ErrConnDone) {
		return fault.New(fault.Unavailable, "%s closed the connection", host)
	}
	return fault.New(fault.Unavailable, "%s: %w", host, err)
}
