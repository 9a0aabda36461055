package parser

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/klauspost/compress/zstd"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// The sample that types are inferred from: the first rows, up to either limit.
const (
	sampleRows  = 32 << 10
	sampleBytes = 8 << 20
)

// gunzip decompresses under the limits on expansion.
type gunzip struct {
	z      io.Reader
	kind   string // gzip or zstd
	in     *countReader
	out    int64
	limits Limits
}

type countReader struct {
	r *bufio.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// ReadByte keeps gzip from reading ahead of what it needs.
func (c *countReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

func newGunzip(in *bufio.Reader, limits Limits) (io.Reader, error) {
	src := &countReader{r: in}
	z, err := gzip.NewReader(src)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the gzip header is invalid: %v", err)
	}
	return &gunzip{z: z, kind: "gzip", in: src, limits: limits}, nil
}

// newUnzstd is newGunzip for zstd.
func newUnzstd(in *bufio.Reader, limits Limits) (io.Reader, error) {
	src := &countReader{r: in}
	z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the zstd header is invalid: %v", err)
	}
	return &gunzip{z: z, kind: "zstd", in: src, limits: limits}, nil
}

func (g *gunzip) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	g.out += int64(n)
	if g.out > g.limits.Expanded {
		return 0, fault.New(fault.TooLarge, "the file is over %d bytes when decompressed", g.limits.Expanded).WithHint("Split it.")
	}
	if g.out > 16<<20 && g.out/max(g.in.n, 1) > g.limits.Ratio {
		return 0, fault.New(fault.TooLarge, "the file expands more than %d-fold, which suggests a decompression bomb", g.limits.Ratio).
			WithHint("To import it anyway, decompress it first.")
	}
	var f *fault.Error
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.As(err, &f):
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, fault.New(fault.Invalid, "the %s data is truncated after %d bytes", g.kind, g.out).WithHint("Upload the whole file.")
	default:
		return n, fault.New(fault.Invalid, "the %s data is corrupt after %d bytes: %v", g.kind, g.out, err)
	}
	return n, err
}

// recordGuard bounds what one row may make the CSV reader collect.
type recordGuard struct {
	r     io.Reader
	since int // bytes read since the last row was complete
	limit int
}

var errRecordTooLarge = errors.New("row too large")

func (g *recordGuard) Read(p []byte) (int, error) {
	if g.since > g.limit {
		return 0, errRecordTooLarge
	}
	n, err := g.r.Read(p)
	g.since += n
	return n, err
}

type csvReader struct {
	*csv.Reader
	guard  *recordGuard
	req    Request
	all    []string // columns of the file
	names  []string // columns that are kept
	kept   []int    // of all; nil where that is all
	cells  []string // of a row that are kept
	row    int64    // of the last record read, from 1
	line   int64    // that it began in
	expect int64    // the line that a record begins in when no blank line is before it
}

func parseCSV(body io.Reader, req Request, sink Sink) (int64, error) {
	guard := &recordGuard{r: body, limit: req.Limits.Record}
	in := bufio.NewReaderSize(guard, 64<<10)
	if err := skipBOM(in); err != nil {
		return 0, err
	}
	if req.CSV != nil {
		if err := skipLines(in, req.CSV.SkipLines); err != nil {
			return 0, err
		}
		guard.since = 0
	}
	r := &csvReader{Reader: csv.NewReader(&returns{r: in}), guard: guard, req: req}
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	if req.Delimiter != "" {
		r.Comma, _ = utf8.DecodeRuneInString(req.Delimiter)
	}
	if err := r.header(); err != nil {
		return 0, err
	}
	sample, err := r.sample()
	if err != nil {
		return 0, err
	}
	columns, schema, err := plan(r.names, req, sample)
	if err != nil {
		return 0, err
	}
	b := &batcher{sink: sink, schema: schema.Arrow(), columns: columns, names: schema.Names()}
	defer b.release()
	if err := sink.Begin(b.schema); err != nil {
		return 0, err
	}
	for _, rec := range sample {
		if err := b.add(rec.cells, rec.row, rec.line); err != nil {
			return 0, err
		}
	}
	for {
		cells, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if err := b.add(cells, r.row, r.line); err != nil {
			return 0, err
		}
	}
	return r.row, b.flush()
}

func (r *csvReader) header() error {
	if r.req.CSV != nil && len(r.req.CSV.Header) > 0 {
		r.all = slices.Clone(r.req.CSV.Header)
		return r.leaveOut()
	}
	names, err := r.Read()
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "the file is empty").WithHint("A CSV file begins with a header that names its columns.")
	}
	if err != nil {
		return r.explain(err)
	}
	r.all = make([]string, len(names))
	for i, n := range names {
		if r.req.CSV.undecodable(n) {
			return fault.New(fault.Invalid, "the name of column %d %s", i+1, r.req.CSV.wrongBytes())
		}
		if len(n) > table.MaxName {
			n = n[:table.MaxName+1]
		}
		r.all[i] = strings.Clone(n)
	}
	if len(r.all) <= table.MaxColumns {
		distinct(r.all)
	}
	r.guard.since = 0
	return r.leaveOut()
}

// leaveOut finds the columns that are kept.
func (r *csvReader) leaveOut() error {
	r.names = r.all
	if len(r.req.LeaveOut) > 0 {
		r.names, r.kept = nil, []int{}
		for i, n := range r.all {
			if !slices.Contains(r.req.LeaveOut, n) {
				r.names, r.kept = append(r.names, n), append(r.kept, i)
			}
		}
	}
	return table.CheckNames(r.names)
}

// distinct gives each column a name of its own: pandas and R write the names of rows under an
// empty one, and joins and spreadsheets the same name twice, or in other capitals.
func distinct(names []string) {
	taken := make(map[string]bool, len(names))
	for _, n := range names {
		taken[strings.ToLower(n)] = true
	}
	seen := make(map[string]bool, len(names))
	for i, n := range names {
		name := n
		if n == "" {
			if name = fmt.Sprintf("column%d", i+1); taken[name] {
				name = another(name, taken)
			}
		} else if seen[strings.ToLower(n)] {
			name = another(n, taken)
		}
		lower := strings.ToLower(name)
		names[i], taken[lower], seen[lower] = name, true, true
	}
}

// another is a name with the first number that makes it new.
func another(name string, taken map[string]bool) string {
	for n := 1; ; n++ {
		if next := fmt.Sprintf("%s_%d", name, n); !taken[strings.ToLower(next)] {
			return next
		}
	}
}

// returns keeps the carriage return before a line break in quotes, which encoding/csv drops:
// it drops one, so there it is given two. Quotes that are doubled open and close again.
type returns struct {
	r      io.Reader
	chunk  []byte
	rest   []byte // of the chunk, or of out
	out    []byte
	quoted bool // the chunk's end is
	after  bool // it is behind a carriage return
	err    error
}

func (c *returns) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		if c.chunk == nil {
			c.chunk = make([]byte, 64<<10)
		}
		var n int
		n, c.err = c.r.Read(c.chunk)
		c.rest = c.double(c.chunk[:n])
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// double is the chunk with what has to be there twice.
func (c *returns) double(chunk []byte) []byte {
	if len(chunk) == 0 {
		return nil
	}
	if !c.after && bytes.IndexByte(chunk, '\r') < 0 {
		c.quoted = c.quoted != (bytes.Count(chunk, []byte{'"'})%2 == 1)
		return chunk
	}
	c.out = c.out[:0]
	for _, b := range chunk {
		switch b {
		case '"':
			c.quoted = !c.quoted
		case '\n':
			if c.after && c.quoted {
				c.out = append(c.out, '\r')
			}
		}
		c.after = b == '\r'
		c.out = append(c.out, b)
	}
	return c.out
}

// next reads a row. The cells are valid until the next call.
func (r *csvReader) next() ([]string, error) {
	cells, err := r.Read()
	if err != nil {
		return nil, r.explain(err)
	}
	r.row++
	first, _ := r.FieldPos(0)
	r.line = int64(first)
	if r.req.CSV != nil {
		r.line += int64(r.req.CSV.SkipLines)
	}
	r.guard.since = 0
	if r.row > r.req.Limits.Rows {
		return nil, fault.New(fault.TooLarge, "the file has more than %d rows", r.req.Limits.Rows).WithHint("Split it.")
	}
	if len(r.all) == 1 {
		// The reader skips blank lines. In a file of one column that would drop rows.
		if r.expect != 0 && r.line > r.expect {
			return nil, fault.New(fault.Invalid, "line %d is blank, and blank lines of a file with one column are ambiguous", r.expect).
				WithHint(`Write "" for an empty value, or remove the line.`)
		}
		r.expect = r.line + 1 + int64(strings.Count(cells[0], "\n"))
	}
	if len(cells) != len(r.all) {
		where, value := len(r.all)-1, ""
		if len(cells) < len(r.all) {
			where = len(cells)
		} else {
			value = cells[len(r.all)]
		}
		f := fault.New(fault.Invalid, "row %d (line %d) has %d columns instead of %d", r.row, r.line, len(cells), len(r.all))
		if value != "" {
			return nil, f.WithHint("There is more data after column %q. Quote cells that contain the delimiter %q. If the file has another delimiter, set spec.delimiter; if its header is not in the first line, set spec.csv.skip_lines.", r.all[where], string(r.Comma)).WithData("%q", value[:min(len(value), 80)])
		}
		return nil, f.WithHint("The difference begins at column %q.", r.all[where])
	}
	for i, c := range cells {
		if len(c) > r.req.Limits.Field {
			return nil, fault.New(fault.TooLarge, "row %d (line %d), column %q: a cell of %d bytes is over the limit of %d", r.row, r.line, r.all[i], len(c), r.req.Limits.Field)
		}
		if r.req.CSV.undecodable(c) && (r.kept == nil || slices.Contains(r.kept, i)) {
			return nil, cellFault(r.row, r.line, r.all[i], c, r.req.CSV.wrongBytes()).WithHint("Set the dataset's spec.csv.encoding to the file's encoding.")
		}
	}
	if r.kept == nil {
		return cells, nil
	}
	r.cells = r.cells[:0]
	for _, i := range r.kept {
		r.cells = append(r.cells, cells[i])
	}
	return r.cells, nil
}

// explain turns an error of the CSV reader into a fault that names the row.
func (r *csvReader) explain(err error) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	if errors.Is(err, errRecordTooLarge) {
		return fault.New(fault.TooLarge, "row %d is over the limit of %d bytes", r.row+1, r.req.Limits.Record).
			WithHint("Check for an unclosed quote or a missing line break after row %d.", r.row)
	}
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		hint := "Quote a cell that contains a quote, and double the quote inside."
		if errors.Is(p.Err, csv.ErrQuote) && p.Line > p.StartLine {
			hint = "A quote that was opened earlier in this row may be unclosed."
		}
		return fault.New(fault.Invalid, "row %d (line %d), character %d: %v", r.row+1, p.Line, p.Column, p.Err).WithHint("%s", hint)
	}
	return err
}

type sampled struct {
	cells     []string
	row, line int64
}

func (r *csvReader) sample() ([]sampled, error) {
	var rows []sampled
	size := 0
	for len(rows) < sampleRows && size < sampleBytes {
		cells, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, sampled{append([]string(nil), cells...), r.row, r.line})
		for _, c := range cells {
			size += len(c) + 16
		}
	}
	return rows, nil
}

// batcher collects rows into batches.
type batcher struct {
	sink    Sink
	schema  *arrow.Schema
	names   []string
	columns []*column
	most    int // rows of a batch; 0 is batchRows
	rows    int
	bytes   int
}

// layoutHint names the setting of a file's layout that a cell calls for; empty for none.
func layoutHint(cell string, t arrow.Type) string {
	switch {
	case !utf8.ValidString(cell):
		return "If the file is not UTF-8, set its encoding: spec.csv.encoding, such as windows-1252."
	case (t == arrow.FLOAT64 || t == arrow.FLOAT32 || t == arrow.INT64 || t == arrow.INT32) && commaRE.MatchString(cell):
		return "If numbers have a decimal comma, set spec.csv.decimal to a comma; if they have thousands separators, set spec.csv.thousands."
	}
	return ""
}

// commaRE is a number with a comma in it.
var commaRE = regexp.MustCompile(`^[+-]?[0-9.]*,[0-9.,]*$`)

func (b *batcher) add(cells []string, row, line int64) error {
	for i, c := range cells {
		if why := b.columns[i].add(c); why != "" {
			f := cellFault(row, line, b.names[i], c, why)
			if hint := layoutHint(c, b.schema.Field(i).Type.ID()); hint != "" {
				return f.WithHint("%s", hint)
			}
			if b.columns[i].strict {
				return f.WithHint("The type was inferred from the first rows. Correct the value, or declare the column's type in the dataset's spec.")
			}
			if t := b.schema.Field(i).Type.ID(); t == arrow.DATE32 || t == arrow.TIMESTAMP {
				return f.WithHint("%s", "Dates and times must be in ISO 8601 format. Declare type string for the column, and convert it in SQL: strptime(x, '%d.%m.%Y').")
			}
			return f.WithHint("Correct the value, or declare another type for the column.")
		}
		b.bytes += len(c)
	}
	for _, absent := range b.columns[len(cells):] {
		absent.build.AppendNull()
	}
	b.rows++
	if b.rows >= batchRows || b.most > 0 && b.rows >= b.most || b.bytes >= batchBytes {
		return b.flush()
	}
	return nil
}

func (b *batcher) flush() error {
	if b.rows == 0 {
		return nil
	}
	cols := make([]arrow.Array, len(b.columns))
	for i, c := range b.columns {
		cols[i] = c.build.NewArray()
	}
	rec := array.NewRecordBatch(b.schema, cols, int64(b.rows))
	for _, c := range cols {
		c.Release()
	}
	defer rec.Release()
	b.rows, b.bytes = 0, 0
	return b.sink.Write(rec)
}

func (b *batcher) release() {
	for _, c := range b.columns {
		c.build.Release()
	}
}
