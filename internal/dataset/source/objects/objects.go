// Package objects reads files that hold rows: what the drivers files, s3 and hdfs share.
// A Bucket lists and opens them; the parser child makes rows of their bytes.
//
// The files of a reading are listed when it begins and read in the order of their
// names. It can be taken up after any row: the file is then parsed again and the
// rows before are passed over. A file that changes while it is read ends the
// reading.
package objects

import (
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// MaxFiles is how many files a source may have.
const MaxFiles = 10_000

// Listing says of each file what tells one state of it from another: an ETag, or
// size and time.
type Listing map[string]string

// with is what was read when now has been, too: what is gone stays read, the last
// MaxFiles of it by name. A position is kept often, and may not grow for ever.
func (l Listing) with(now Listing) Listing {
	var gone []string
	for name := range l {
		if _, there := now[name]; !there {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	out := maps.Clone(now)
	if out == nil {
		out = Listing{}
	}
	for _, name := range gone[max(len(gone)-MaxFiles, 0):] {
		out[name] = l[name]
	}
	return out
}

// Bucket has files. Not safe for concurrent use.
type Bucket interface {
	List(ctx context.Context) (Listing, error)
	// Open reads a file and says in which state it is. All bytes are of that state, or
	// the body ends with Changed.
	Open(ctx context.Context, name string) (body io.ReadCloser, tag string, err error)
	Close() error
}

// Check validates a request to files.
func Check(kind, pattern string, f source.Format, r source.Request) error {
	if _, err := path.Match(pattern, ""); err != nil || strings.HasPrefix(pattern, "/") {
		return fault.New(fault.Invalid, "spec.from.%s.match: %q is not a valid pattern", kind, pattern).WithHint("Write *.csv, or 2024/*/orders-*.jsonl.gz.")
	}
	switch f {
	case "", "csv", "tsv", "jsonl", "parquet", "avro":
	default:
		return fault.New(fault.Invalid, "spec.from.%s.format: %q is not csv, tsv, jsonl, parquet or avro", kind, string(f))
	}
	if r.Cursor != "" || r.Overlap != "" {
		return fault.New(fault.Invalid, "spec.cursor and spec.overlap are valid only for tables; %s is read by whole files", kind)
	}
	if r.Mode == source.Changes && (len(r.Key) == 0 || r.Op == "") {
		return fault.New(fault.Invalid, "spec.key and spec.op: mode changes requires both")
	}
	return nil
}

// Match reports whether a name is of the pattern; the empty one is *. Hidden files
// and those of hidden directories are no one's rows: they are being written. Nor are
// the empty objects by which consoles of S3 show directories.
func Match(pattern, name string) bool {
	if pattern == "" {
		pattern = "*"
	}
	ok, _ := path.Match(pattern, name)
	return ok && name != "" && !strings.HasSuffix(name, "/") && !strings.HasPrefix(name, ".") && !strings.Contains(name, "/.")
}

// place is where a reading stands: a file, and how many of its rows were given.
type place struct {
	File string `json:"file"`
	Rows int64  `json:"rows"`
}

// Open begins a reading of the bucket. It owns b. Where there is nothing to read
// the schema is nil.
func Open(ctx context.Context, b Bucket, f source.Format, r source.Request) (_ source.Reader, err error) {
	s := &reader{bucket: b, format: f, req: r}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.ctx, s.cancel = own, cancel
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	var after Listing
	if err := source.ReadPosition(r.After, &after); err != nil {
		return nil, err
	}
	if r.Begun {
		if err := source.ReadPosition(r.Until, &s.until); err != nil {
			return nil, err
		}
	} else {
		now, err := b.List(ctx)
		if err != nil {
			return nil, err
		}
		if len(now) > MaxFiles {
			return nil, fault.New(fault.TooLarge, "%d files are over the limit of %d", len(now), MaxFiles).WithHint("Select fewer files, such as one directory per day.")
		}
		if s.until = now; r.Mode != source.Full {
			s.until = after.with(now)
		}
	}
	for name, tag := range s.until {
		was, read := after[name]
		if r.Mode != source.Full && read && was == tag {
			continue
		}
		if r.Mode != source.Full && read && len(r.Key) == 0 {
			return nil, fault.New(fault.Conflict, "the file %s was changed after it was read", name).
				WithHint("Set spec.key, which distinguishes its rows from new rows, or read everything again: ingest with --anew.")
		}
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	if r.Mode == source.Full && len(s.names) == 0 {
		return nil, fault.New(fault.NotFound, "there are no files")
	}
	if err := source.ReadPosition(r.Resume, &s.at); err != nil {
		return nil, err
	}
	for len(s.names) > 0 && s.names[0] < s.at.File {
		s.names = s.names[1:]
	}
	if len(s.names) == 0 && !r.Begun || len(s.until) == 0 {
		return s, nil
	}
	if len(s.names) == 0 { // taken up after the last row
		s.names = append(s.names, s.at.File)
	}
	return s, s.open()
}

type reader struct {
	bucket Bucket
	format source.Format
	req    source.Request
	ctx    context.Context //nolint:containedctx // of one reading
	cancel context.CancelFunc

	until  Listing
	names  []string // to read; the first is open
	at     place
	schema table.Schema
	part   *source.Part // the open file
}

// open begins the first of names.
func (s *reader) open() error {
	name := s.names[0]
	body, tag, err := s.bucket.Open(s.ctx, name)
	if err != nil {
		return err
	}
	if tag != s.until[name] {
		_ = body.Close()
		return Changed(name)
	}
	req := s.req.Parsing
	req.Format, req.Columns = "", slices.Clone(s.req.Declared)
	for _, f := range s.schema { // a file whose column is null throughout has the type of the files before it
		if !slices.ContainsFunc(req.Columns, func(c parser.Column) bool { return c.Name == f.Name }) {
			req.Columns, req.Inferred = append(req.Columns, parser.Column{Name: f.Name, Type: f.Type}), append(req.Inferred, f.Name)
		}
	}
	switch s.format {
	case "tsv":
		req.Delimiter = "\t"
	case "jsonl":
		req.Format = parser.JSONLines
	case "parquet":
		req.Format = parser.Parquet
	case "avro":
		req.Format = parser.Avro
	default:
	}
	given := int64(0)
	if name == s.at.File {
		given = s.at.Rows
	}
	if s.part, err = source.OpenPart(s.ctx, s.req.Parser, body, req, given); err != nil {
		return fault.Wrap(err, "%s", name)
	}
	schema, err := s.part.Schema()
	if err != nil {
		return fault.Wrap(err, "%s", name)
	}
	if s.schema == nil {
		s.schema = schema
	} else if !slices.Equal(s.schema, schema) {
		return fault.New(fault.Invalid, "the columns of %s differ from those of the previous files", name).
			WithHint("This file has %v, and the previous files have %v. Declare the differing columns in the Dataset's spec.columns: their types, and optional: true for columns that some files lack.", describe(schema), describe(s.schema))
	}
	s.at = place{File: name, Rows: given}
	return nil
}

// Changed is the error of a file that is not as it was when it was listed.
func Changed(name string) error {
	return fault.New(fault.Conflict, "the file %s changed during the read", name).WithHint("Ingest again when the file is complete. Write files under a temporary name, then rename them.")
}

func describe(s table.Schema) string {
	parts := make([]string, 0, min(len(s), 30))
	for _, f := range s[:min(len(s), 30)] {
		parts = append(parts, f.Name+" "+string(f.Type))
	}
	return strings.Join(parts, ", ")
}

// Schema implements source.Reader.
func (s *reader) Schema() *arrow.Schema {
	if s.schema == nil {
		return nil
	}
	return s.schema.Arrow()
}

// Until implements source.Reader.
func (s *reader) Until() source.Position { return source.PositionOf(s.until) }

// Next implements source.Reader.
func (s *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	for s.part != nil {
		rec, err := s.part.Next(s.req.BatchRows)
		if err == nil {
			s.at.Rows = s.part.Given
			return rec, source.PositionOf(s.at), nil
		}
		if !errors.Is(err, io.EOF) {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, nil, fault.Wrap(err, "%s", s.at.File)
		}
		s.part.Close()
		s.part = nil
		if s.names = s.names[1:]; len(s.names) == 0 {
			break
		}
		if err := s.open(); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, io.EOF
}

// Close implements source.Reader.
func (s *reader) Close() error {
	s.cancel()
	if s.part != nil {
		s.part.Close()
	}
	return s.bucket.Close()
}
