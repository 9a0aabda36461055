// Package sqlite reads tables of SQLite's files. The server sends the file's bytes to
// a child (Main), which alone has SQLite look at them: in memory, without files,
// keys or a network. It says what sqltable reads of them, batch by batch.
//
// A file is read as it is when a reading begins, and sent again when it is taken up.
// One that is being written, or whose log has what the file does not, is refused:
// its pages may be of two states.
package sqlite

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqltable"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Bounds on a reading. The child has the file in memory, for a moment twice.
const (
	MaxFile     = 1 << 30
	childMemory = resource.Bytes(4 << 30)
	childTime   = time.Hour
)

// Driver implements source.Driver.
type Driver struct{ Launcher child.Launcher }

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.SQLite
	if err := sqltable.CheckTable("sqlite", database(o), r); err != nil {
		return err
	}
	_, err := r.Access.Directory(o.File)
	return err
}

func database(o source.SQLite) source.Database {
	return source.Database{Host: o.File, Table: o.Table, Query: o.Query, Columns: o.Columns}
}

// asked heads the conversation: what to read of the file that follows.
type asked struct {
	What     source.Database
	Mode     source.Mode
	Cursor   string
	Key      []string
	Op       string
	Overlap  string
	Declared []source.Column

	Begun     bool
	After     source.Position `json:",omitempty"`
	Resume    source.Position `json:",omitempty"`
	Until     source.Position `json:",omitempty"`
	BatchRows int
}

func ask(r source.Request) asked {
	return asked{
		What: database(*r.From.SQLite), Mode: r.Mode, Cursor: r.Cursor, Key: r.Key, Op: r.Op, Overlap: r.Overlap, Declared: r.Declared,
		Begun: r.Begun, After: r.After, Resume: r.Resume, Until: r.Until, BatchRows: r.BatchRows,
	}
}

func (a asked) request() source.Request {
	return source.Request{
		Mode: a.Mode, Cursor: a.Cursor, Key: a.Key, Op: a.Op, Overlap: a.Overlap, Declared: a.Declared,
		Begun: a.Begun, After: a.After, Resume: a.Resume, Until: a.Until, BatchRows: a.BatchRows,
	}
}

// begun is the child's first answer.
type begun struct {
	Schema table.Schema
	Until  source.Position `json:",omitempty"`
}

// step heads a batch, or says that there are no more.
type step struct {
	End bool
	At  source.Position `json:",omitempty"`
}

// Open implements source.Driver.
func (d Driver) Open(ctx context.Context, r source.Request) (_ source.Reader, err error) {
	path, err := r.Access.Directory(r.From.SQLite.File)
	if err != nil {
		return nil, err
	}
	file, err := openWhole(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	session, err := child.Start(own, d.Launcher, child.SQLiteMode, child.LaunchOptions{Memory: childMemory, CPU: childTime})
	if err != nil {
		cancel()
		return nil, err
	}
	s := &reader{ctx: own, cancel: cancel, session: session}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := s.send(file, ask(r)); err != nil {
		return nil, err
	}
	var first begun
	if err := session.Out.Header(&first); err != nil {
		return nil, session.Explain(own, err)
	}
	s.schema, s.until = first.Schema, first.Until
	for _, f := range s.schema { // the child may be somebody else by now
		if !f.Type.Valid() {
			return nil, fault.New(fault.Internal, "the child process reports column %.80q as %.80q", f.Name, string(f.Type))
		}
	}
	return s, table.CheckNames(s.schema.Names())
}

// openWhole opens a database that nobody is writing.
func openWhole(path string) (*os.File, error) {
	for _, log := range []string{"-wal", "-journal"} {
		if info, err := os.Lstat(path + log); err == nil && info.Size() > 0 {
			return nil, fault.New(fault.Unavailable, "%s is in use: %s contains changes that are not in it yet", path, path+log).
				WithHint("Ingest when the database has no writers (PRAGMA wal_checkpoint(TRUNCATE)), or from a copy: sqlite3 FILE \".backup COPY\".")
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.NotFound, "there is no %s", path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.New(fault.Invalid, "the server may not read %s", path).WithHint("Grant the server's user read permission.")
	case err != nil:
		return nil, fault.New(fault.Unavailable, "reading %s: %w", path, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		err = fault.New(fault.Invalid, "%s is not a regular file", path)
	case info.Size() > MaxFile:
		err = fault.New(fault.TooLarge, "%s has %d bytes, over the limit of %d", path, info.Size(), int64(MaxFile)).WithHint("Export the table as Parquet or CSV.")
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// send gives the child the file, and refuses one that changes meanwhile.
func (s *reader) send(f *os.File, a asked) error {
	before, err := f.Stat()
	if err != nil {
		return err
	}
	if err := s.session.In.Header(a); err != nil {
		return s.session.Explain(s.ctx, err)
	}
	out := s.session.In.Stream()
	n, err := io.Copy(out, io.LimitReader(f, MaxFile+1))
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		var said begun
		if told := s.session.Out.Header(&said); told != nil { // the child has ended first, and says why
			err = told
		}
		return s.session.Explain(s.ctx, err)
	}
	after, err := f.Stat() // another file in its place is no matter
	if err != nil || n != before.Size() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return fault.New(fault.Unavailable, "%s changed during the read", f.Name()).WithHint("Ingest when the database has no writers, or from a copy: sqlite3 FILE \".backup COPY\".")
	}
	return nil
}

// reader is a reading that the child does.
type reader struct {
	ctx     context.Context //nolint:containedctx // of one reading
	cancel  context.CancelFunc
	session *child.Session
	schema  table.Schema
	until   source.Position
	end     bool
}

// Schema implements source.Reader.
func (s *reader) Schema() *arrow.Schema { return s.schema.Arrow() }

// Until implements source.Reader.
func (s *reader) Until() source.Position { return s.until }

// Next implements source.Reader.
func (s *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	if s.end {
		return nil, nil, io.EOF
	}
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	rec, at, err := s.next()
	if err != nil && !errors.Is(err, io.EOF) {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, s.session.Explain(s.ctx, err)
	}
	return rec, at, err
}

func (s *reader) next() (arrow.RecordBatch, source.Position, error) {
	var head step
	if err := s.session.Out.Header(&head); err != nil {
		return nil, nil, err
	}
	if head.End {
		s.end = true
		return nil, nil, io.EOF
	}
	rows, err := s.session.Out.Records()
	if err != nil {
		return nil, nil, err
	}
	defer rows.Release()
	if !rows.Next() {
		return nil, nil, errors.Join(errors.New("a batch without rows"), rows.Err())
	}
	rec := rows.RecordBatch()
	rec.Retain()
	if !rec.Schema().Equal(s.schema.Arrow()) {
		rec.Release()
		return nil, nil, errors.New("a batch with other columns")
	}
	if rows.Next() || rows.Err() != nil { // to its end
		rec.Release()
		return nil, nil, errors.Join(errors.New("data after the batch"), rows.Err())
	}
	return rec, head.At, nil
}

// Close implements source.Reader.
func (s *reader) Close() error {
	s.cancel()
	s.session.Close()
	return nil
}

// quote is an identifier in SQL.
func quote(ident string) string { return `"` + strings.ReplaceAll(ident, `"`, `""`) + `"` }
