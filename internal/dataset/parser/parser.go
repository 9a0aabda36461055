// Package parser turns an uploaded file into Arrow record batches, in a process
// of its own: whatever a hostile file does to a parser, it does where there are
// no keys, no database and no network.
//
// # Map
//
//   - Main is the child: it reads a Request and the file from stdin and writes
//     record batches, then a Summary, or a fault, to stdout (package child).
//   - Parse is Main without the pipes, for tests and fuzzing.
//   - SnapshotMain (snapshot.go) is the child for what other engines committed to
//     an open table: a snapshot's manifests and data files, sent one by one.
//   - csv.go reads CSV, json.go JSON objects and documents, parquet.go Parquet,
//     avro.go Avro, arrow.go rows that are sent in Arrow's IPC; infer.go finds the
//     types of columns, convert.go reads the cells.
//
// # Guarantees
//
// The same bytes and Request give the same batches. Memory is bounded by the
// limits, whatever the file says about itself. Every refusal is a fault that
// names the row (counted from 1, the header not counted) and the column; the value
// is the fault's data, which is not written down.
package parser

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Format of a file.
type Format string

// The formats. The empty Format is found out by the content.
const (
	CSV     Format = "csv"
	CSVGzip Format = "csv.gz"
	Parquet Format = "parquet"
	CSVZstd Format = "csv.zst"
	Avro    Format = "avro" // object container files

	JSONLines Format = "jsonl" // objects, a line each or not, or an array of them; gzip and zstd are unpacked
	JSON      Format = "json"  // one document with a list of objects; never found out

	// Arrow is a stream of Arrow's IPC. It is never found out: rows that are sent
	// are, files are not.
	Arrow Format = "arrow"
)

// Column is a column whose type is declared.
type Column struct {
	Name string     `json:"name"`
	Type table.Type `json:"type"`
}

// Request describes how to read the file.
type Request struct {
	Format    Format   `json:"format,omitempty"` // refused when the content says otherwise
	Delimiter string   `json:"delimiter,omitempty"`
	Nulls     []string `json:"nulls"`             // cells that mean null, as they stand
	Columns   []Column `json:"columns,omitempty"` // must be in the file; others are inferred
	CSV       *Layout  `json:"csv,omitempty"`
	Optional  []string `json:"optional,omitempty"`  // of Columns: null where the file has none of the name
	Inferred  []string `json:"inferred,omitempty"`  // of Columns: the type is of another file, and only what inference would take is read
	LeaveOut  []string `json:"leave_out,omitempty"` // columns of the file that are not read
	Only      bool     `json:"only,omitempty"`      // JSON: no columns but those declared
	Batch     int      `json:"batch,omitempty"`     // JSON: most rows of a batch
	Records   string   `json:"records,omitempty"`   // JSON document: where the list is
	Next      string   `json:"next,omitempty"`      // JSON document: where it says how to go on
	Limits    Limits   `json:"limits"`
}

// Limits bound the work; a zero field means its default.
type Limits struct {
	Rows     int64 `json:"rows"`     // default 1,000,000,000
	Expanded int64 `json:"expanded"` // bytes after decompression, default 64 GiB
	Ratio    int64 `json:"ratio"`    // of decompression, once 16 MiB have come out; default 200
	Field    int   `json:"field"`    // bytes in a cell, default 4 MiB
	Record   int   `json:"record"`   // bytes in a row, default 16 MiB
	Parquet  int64 `json:"parquet"`  // bytes of a Parquet file or an Arrow stream, which is held in memory, default 1 GiB
}

// WithDefaults are the limits with the defaults where there are none.
func (l Limits) WithDefaults() Limits {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Rows, 1e9)
	def(&l.Expanded, 64<<30)
	def(&l.Ratio, 200)
	def(&l.Parquet, 1<<30)
	if l.Field <= 0 {
		l.Field = 4 << 20
	}
	if l.Record <= 0 {
		l.Record = 16 << 20
	}
	return l
}

// Summary describes the rows read.
type Summary struct {
	Format Format `json:"format"`
	Rows   int64  `json:"rows"`
	Next   string `json:"next,omitempty"` // what stands where Request.Next says
}

// Sizes of the batches handed on.
const (
	batchRows  = 64 << 10
	batchBytes = 8 << 20
)

// Main runs the child. What is wrong with the file goes to stdout as a fault; an
// error is returned only when stdout cannot be written.
func Main(stdin io.Reader, stdout io.Writer) error {
	in, out := child.NewReader(stdin), child.NewWriter(stdout)
	var req Request
	if err := in.Header(&req); err != nil {
		return out.Fault(err)
	}
	sink := &pipeSink{out: out}
	sum, err := Parse(in.Stream(), req, sink)
	if sink.err != nil {
		return sink.err // nobody is listening
	}
	if err != nil {
		return out.Fault(err)
	}
	if err := sink.close(); err != nil {
		return err
	}
	return out.Header(sum)
}

// Sink receives the parsed rows: Begin once, then batches.
type Sink interface {
	Begin(schema *arrow.Schema) error
	Write(rec arrow.RecordBatch) error
}

type pipeSink struct {
	out *child.Writer
	rec *child.RecordWriter
	err error
}

func (s *pipeSink) Begin(schema *arrow.Schema) error {
	s.rec = s.out.Records(schema)
	return nil
}

func (s *pipeSink) Write(rec arrow.RecordBatch) error {
	s.err = s.rec.Write(rec)
	return s.err
}

func (s *pipeSink) close() error { return s.rec.Close() }

// Parse reads a file to its end and writes its batches to the sink.
func Parse(body io.Reader, req Request, sink Sink) (sum Summary, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Invalid, "the file cannot be read: %v", p)
		}
	}()
	if err := req.check(); err != nil {
		return Summary{}, err
	}
	req.Limits = req.Limits.WithDefaults()
	if req.Format == Arrow {
		sum.Format = Arrow
		sum.Rows, err = parseArrow(body, req, sink)
		return sum, err
	}
	in := bufio.NewReaderSize(body, 256<<10)
	format, in, err := open(in, req)
	if err != nil {
		return Summary{}, err
	}
	sum.Format = format
	switch format {
	case Parquet:
		sum.Rows, err = parseParquet(in, req, sink)
	case Avro:
		sum.Rows, err = parseAvro(in, req, sink)
	case JSONLines:
		sum.Rows, err = parseJSONLines(in, req, sink)
	case JSON:
		sum.Rows, sum.Next, err = parseJSON(in, req, sink)
	default:
		sum.Rows, err = parseCSV(in, req, sink)
	}
	return sum, err
}

// open finds the format by the content and unpacks what is packed. A format that
// was asked for is refused when the content says otherwise.
func open(in *bufio.Reader, req Request) (Format, *bufio.Reader, error) {
	if req.Format == JSON || req.Only { // of messages and answers, each is looked at for itself
		return req.Format, in, nil
	}
	head, err := in.Peek(headBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", nil, err
	}
	format, err := detect(head)
	encoded := req.CSV != nil && req.CSV.Encoding != ""
	if fault.Is(err, fault.Invalid) && encoded && utf16(head) {
		format, err = CSV, nil
	}
	if err != nil {
		return "", nil, err
	}
	if packed := format; packed == CSVGzip || packed == CSVZstd {
		unpack := newGunzip
		if packed == CSVZstd {
			unpack = newUnzstd
		}
		plain, err := unpack(in, req.Limits)
		if err != nil {
			return "", nil, err
		}
		in = bufio.NewReaderSize(plain, 256<<10)
		if head, err = in.Peek(headBytes); err != nil && !errors.Is(err, io.EOF) {
			return "", nil, err
		}
		switch inner, err := detect(head); {
		case err != nil && encoded && utf16(head):
		case err != nil:
			return "", nil, err
		case inner == JSONLines:
			format = inner
		case inner != CSV:
			return "", nil, fault.New(fault.Invalid, "the compressed file contains %s, not CSV or JSON lines", inner).WithHint("Decompress the file and import its content.")
		case req.Format == CSV:
			format = CSV // by its content; that it is packed is no matter
		}
	}
	if format == CSV && req.Format == JSONLines {
		if text := plainHead(head); len(text) == 0 || text[0] == '[' {
			format = JSONLines // nothing, blank lines, or an array whatever is in it
		}
	}
	if req.Format != "" && req.Format != format {
		return "", nil, fault.New(fault.Invalid, "the file's content is %s, not %s", format, req.Format).
			WithHint("Omit the format, or set the correct one.")
	}
	switch format {
	case CSV, CSVGzip, CSVZstd:
		in, err = req.CSV.decoded(in)
	default:
	}
	return format, in, err
}

// utf16 reports the byte order mark of UTF-16.
func utf16(head []byte) bool {
	return bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff"))
}

func (r Request) check() error {
	if err := r.CSV.Validate(); err != nil {
		return fault.Wrap(err, "csv")
	}
	names := make([]string, 0, len(r.Columns))
	for _, c := range r.Columns {
		if !c.Type.Valid() {
			return fault.New(fault.Invalid, "column %q: there is no type %q", c.Name, string(c.Type)).WithHint("The types are %v.", table.Types())
		}
		names = append(names, c.Name)
	}
	if len(names) > 0 {
		return table.CheckNames(names)
	}
	return nil
}

// headBytes are enough of a file to find its format, whatever blank lines it begins with.
const headBytes = 4096

// plainHead is the beginning of a text without the byte order mark and white space.
func plainHead(head []byte) []byte {
	return bytes.TrimLeft(bytes.TrimPrefix(head, []byte(bom)), " \t\r\n")
}

// bom is the mark of UTF-8 that some programs write.
const bom = "\xef\xbb\xbf"

func skipBOM(in *bufio.Reader) error {
	head, err := in.Peek(len(bom))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(head) == bom {
		_, _ = in.Discard(len(bom))
	}
	return nil
}

// jsonArray reports whether a text that begins with a bracket is an array of JSON, and not
// the header of a CSV file, such as "[id],[name]".
func jsonArray(text []byte) bool {
	inner := bytes.TrimLeft(text[1:], " \t\r\n")
	if len(inner) == 0 || bytes.IndexByte(text[:len(text)-len(inner)], '\n') >= 0 {
		return true
	}
	for _, word := range []string{"true", "false", "null"} {
		if rest, ok := bytes.CutPrefix(inner, []byte(word)); ok && len(rest) > 0 && bytes.IndexByte([]byte(" ,]\r\n"), rest[0]) >= 0 {
			return true
		}
	}
	return bytes.IndexByte([]byte(`{[]"-0123456789`), inner[0]) >= 0
}

// detect finds the format by the first bytes.
func detect(head []byte) (Format, error) {
	starts := func(magic string) bool { return len(head) >= len(magic) && string(head[:len(magic)]) == magic }
	switch {
	case starts("PAR1"):
		return Parquet, nil
	case starts("Obj\x01"):
		return Avro, nil
	case starts("PARE"):
		return "", fault.New(fault.Invalid, "the Parquet file is encrypted").WithHint("Decrypt it before importing; Falaj seals it with its own key.")
	case starts("\x1f\x8b"):
		return CSVGzip, nil
	case starts("PK\x03\x04"):
		return "", fault.New(fault.Invalid, "the file is a zip archive").WithHint("Unzip it and import the CSV or Parquet file in it.")
	case utf16(head):
		return "", fault.New(fault.Invalid, "the file is UTF-16").WithHint("Save it as UTF-8, or set the dataset's spec.csv.encoding to utf-16le.")
	case starts("\x28\xb5\x2f\xfd"):
		return CSVZstd, nil
	case starts("BZh"), starts("\xfd7zX"):
		return "", fault.New(fault.Invalid, "the file's compression is not gzip or zstd").WithHint("Decompress it, or use gzip.")
	}
	if text := plainHead(head); len(text) > 0 && (text[0] == '{' || text[0] == '[' && jsonArray(text)) {
		return JSONLines, nil
	}
	return CSV, nil
}

// cellFault is the refusal of one cell.
func cellFault(row, line int64, column, value, why string) *fault.Error {
	const most = 80
	if len(value) > most {
		value = value[:most] + "…"
	}
	return fault.New(fault.Invalid, "row %d (line %d), column %q %s", row, line, column, why).WithData("%q", value)
}
