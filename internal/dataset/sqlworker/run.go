//go:build duckdb_arrow

package sqlworker

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Main runs one query. What is wrong with it goes to stdout as a fault; an error
// is returned only when stdout cannot be written.
func Main(stdin io.Reader, stdout io.Writer) error {
	in, out := child.NewReader(stdin), child.NewWriter(stdout)
	w, err := open(in, out)
	if err == nil {
		err = w.run()
		w.close()
	}
	if err != nil {
		return out.Fault(explain(err))
	}
	return nil
}

type worker struct {
	ctx context.Context //nolint:containedctx // of the process
	in  *child.Reader
	out *child.Writer
	req child.SQLRequest

	connector *duckdb.Connector
	conn      driver.Conn
	arrow     *duckdb.Arrow
}

// open reads the request and starts DuckDB, locked down.
func open(in *child.Reader, out *child.Writer) (*worker, error) {
	w := &worker{ctx: context.Background(), in: in, out: out}
	if err := in.Header(&w.req); err != nil {
		return nil, err
	}
	return w, w.start()
}

func (w *worker) start() (err error) {
	if w.connector, err = duckdb.NewConnector("", nil); err != nil {
		return err
	}
	if w.conn, err = w.connector.Connect(w.ctx); err != nil {
		return errors.Join(err, w.connector.Close())
	}
	settings := []string{
		"SET autoinstall_known_extensions = false", "SET autoload_known_extensions = false", "SET allow_community_extensions = false",
		fmt.Sprintf("SET memory_limit = '%dB'", w.req.Memory), fmt.Sprintf("SET threads = %d", max(w.req.Threads, 1)),
		"SET TimeZone = 'UTC'", "SET secret_directory = 'secrets'", "SET extension_directory = 'extensions'", "SET errors_as_json = false", "SET enable_progress_bar = false",
	}
	if err := w.set(settings); err != nil {
		w.close()
		return err
	}
	if w.arrow, err = duckdb.NewArrowFromConn(w.conn); err != nil {
		w.close()
	}
	return err
}

func (w *worker) close() { _ = errors.Join(w.conn.Close(), w.connector.Close()) }

func (w *worker) set(settings []string) error {
	for _, s := range settings {
		if err := w.exec(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// lock ends what may be set; until then no user's query has been run.
func (w *worker) lock(over child.SQLHandOver) error {
	spill := []string{"SET temp_directory = ''"}
	if over.Scratch != "" {
		// A query may read the settings: they name no path of the machine.
		if err := os.Chdir(over.Scratch); err != nil {
			return fmt.Errorf("the spill directory: %w", errors.Unwrap(err))
		}
		spill = []string{"SET temp_directory = 'spill'", fmt.Sprintf("SET max_temp_directory_size = '%dB'", over.Disk)}
	}
	return w.set(append(spill, "SET enable_external_access = false", "SET lock_configuration = true"))
}

func (w *worker) exec(sql string) error {
	_, err := w.conn.(driver.ExecerContext).ExecContext(w.ctx, sql, nil)
	return err
}

func (w *worker) run() error {
	tree, err := w.serialize(w.req.SQL)
	if err != nil {
		return err
	}
	uses, err := analyse(tree)
	if err != nil {
		return err
	}
	if err := w.out.Header(uses); err != nil {
		return err
	}
	var over child.SQLHandOver
	if err := w.in.Header(&over); err != nil {
		return err
	}
	if err := w.lock(over); err != nil {
		return err
	}
	for range over.Tables {
		if err := w.take(); err != nil {
			return err
		}
	}
	return w.answer()
}

// serialize gives DuckDB's parse of the query; it does not run it.
func (w *worker) serialize(sql string) (string, error) {
	return w.text("SELECT json_serialize_sql($1::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)::VARCHAR", sql)
}

// text is the one text that a query of ours gives about one of a user.
func (w *worker) text(ask, sql string) (string, error) {
	rows, err := w.conn.(driver.QueryerContext).QueryContext(w.ctx, ask, []driver.NamedValue{{Ordinal: 1, Value: sql}})
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	row := make([]driver.Value, 1)
	if err := rows.Next(row); err != nil {
		return "", err
	}
	s, ok := row[0].(string)
	if !ok {
		return "", fault.New(fault.Internal, "DuckDB returned no syntax tree")
	}
	return s, nil
}

// columns says what the result's are made of, by DuckDB's bound plan of the query,
// which is not run for it. Not knowing is no failure of the query.
func (w *worker) columns(names []string) child.SQLColumns {
	plan, err := w.text("SELECT json_serialize_plan($1::VARCHAR, skip_null := true, skip_empty := false, skip_default := false, optimize := false)::VARCHAR", w.req.SQL)
	if err != nil {
		return child.SQLColumns{}
	}
	columns, ok := columnsOf(plan, names)
	if !ok {
		return child.SQLColumns{}
	}
	return columns
}

// take makes a table of the next stream. It is copied into DuckDB, because a
// query may read it more than once.
func (w *worker) take() error {
	var head child.SQLTable
	if err := w.in.Header(&head); err != nil {
		return err
	}
	rows, err := w.in.Records()
	if err != nil {
		return err
	}
	defer rows.Release()
	const view = "falaj_handed_over"
	release, err := w.arrow.RegisterView(rows, view)
	if err != nil {
		return err
	}
	err = w.exec(fmt.Sprintf("CREATE TABLE %s AS SELECT * FROM %s", quote(head.Name), view))
	if err == nil {
		err = w.exec("DROP VIEW " + view)
	}
	release()
	if rerr := rows.Err(); rerr != nil {
		return rerr
	}
	return err
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// answer runs the query and sends its rows in the types of tables.
func (w *worker) answer() error {
	rows, err := w.arrow.QueryContext(w.ctx, w.req.SQL)
	if err != nil {
		return err
	}
	defer rows.Release()
	schema, err := table.NormalSchema(rows.Schema())
	if err != nil {
		return fault.Wrap(err, "the result")
	}
	local := table.Local{Early: w.req.Early}
	if w.req.TimeZone != "" {
		if local.Zone, err = table.ParseZone(w.req.TimeZone); err != nil {
			return err
		}
	}
	made := w.columns(schema.Names())
	made.Local = table.LocalColumns(rows.Schema())
	if err := w.out.Header(made); err != nil {
		return err
	}
	out := w.out.Records(schema.Arrow())
	sent := int64(0)
	var batch []arrow.RecordBatch // DuckDB's chunks are small
	held, size := int64(0), int64(0)
	defer func() { releaseAll(batch) }()
	flush := func() error {
		if held == 0 {
			return nil
		}
		rec, err := concat(schema, batch, held)
		releaseAll(batch)
		batch, held, size = nil, 0, 0
		if err != nil {
			return err
		}
		defer rec.Release()
		return out.Write(rec)
	}
	for rows.Next() {
		rec := rows.RecordBatch()
		if sent+rec.NumRows() > w.req.Rows {
			return fault.New(fault.TooLarge, "the result has more than %d rows", w.req.Rows).WithHint("Add a LIMIT, aggregate, or raise the limit.")
		}
		norm, err := table.NormalizeIn(rec, schema, sent+1, local)
		if err != nil {
			return fault.Wrap(err, "the result")
		}
		sent += rec.NumRows()
		held += rec.NumRows()
		batch = append(batch, norm)
		if size += sizeOf(norm); held >= 32<<10 || size >= 4<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return w.out.Header(child.SQLSummary{Rows: sent})
}

// sizeOf is about the size of a batch's text in bytes.
func sizeOf(rec arrow.RecordBatch) (size int64) {
	for _, c := range rec.Columns() {
		if s, ok := c.(*array.String); ok && s.Len() > 0 {
			size += int64(len(s.ValueBytes()))
		}
	}
	return size
}

func releaseAll(recs []arrow.RecordBatch) {
	for _, r := range recs {
		r.Release()
	}
}

func concat(schema table.Schema, recs []arrow.RecordBatch, rows int64) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, len(schema))
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i := range schema {
		parts := make([]arrow.Array, len(recs))
		for j, r := range recs {
			parts[j] = r.Column(i)
		}
		c, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			return nil, err
		}
		cols[i] = c
	}
	return array.NewRecordBatch(schema.Arrow(), cols, rows), nil
}

// explain gives DuckDB's errors their kinds, and keeps its words.
func explain(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	var d *duckdb.Error
	if !errors.As(err, &d) {
		return err
	}
	msg := strings.TrimSpace(d.Msg)
	if full(msg) {
		return fault.New(fault.Exhausted, "%s", firstLine(msg)).WithCause(fault.ErrFull).WithHint("The disk of the data directory is full. Free space or inodes, then try again.")
	}
	switch d.Type {
	case duckdb.ErrorTypeOutOfMemory:
		return fault.New(fault.Exhausted, "%s", firstLine(msg)).WithHint("Read fewer columns or rows, or raise limits.sql_memory. Open tables, and all tables with encrypted_disk, spill to the disk, up to limits.sql_disk.")
	case duckdb.ErrorTypeInternal, duckdb.ErrorTypeFatal:
		return fault.New(fault.Invalid, "DuckDB failed to run the query: %s", firstLine(msg)).WithHint("Rewrite the query.")
	case duckdb.ErrorTypeConversion, duckdb.ErrorTypeOutOfRange, duckdb.ErrorTypeInvalidInput, duckdb.ErrorTypeConstraint, duckdb.ErrorTypeMismatchType, duckdb.ErrorTypeDecimal:
		// Its words have values of rows.
		kind, words, _ := strings.Cut(msg, ": ")
		return fault.New(fault.Invalid, "%s: a value is out of range", kind).WithData("%s", words)
	default:
		// Its candidates are the columns that were handed over, not those there are.
		lines := slices.DeleteFunc(strings.Split(msg, "\n"), func(l string) bool { return strings.HasPrefix(l, "Candidate bindings:") })
		return fault.New(fault.Invalid, "%s", strings.Join(lines, "\n"))
	}
}

// full reports whether DuckDB's words are of a disk without room: of the operating system's
// errors it keeps the text alone. What limits.sql_disk allows is no such error.
func full(msg string) bool {
	msg = strings.ToLower(msg)
	return strings.Contains(msg, syscall.ENOSPC.Error()) || strings.Contains(msg, syscall.EDQUOT.Error())
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
