package dataset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/share"
)

// OpenRequest asks for rows.
type OpenRequest struct {
	Project project.Name
	Ref     Ref
	Columns []string // in the order wanted; none for all
	Shard   Shard    // which rows; the zero Shard is all
	// Digest refuses a version with another content; empty takes any.
	Digest string
	// Where the rows go, for the residency door; this server when both are empty.
	Where string // "pool home"
	Zone  residency.Zone
	// Purpose is in the journal of classified reads: "training set delays".
	Purpose string

	aside bool // the rows in quarantine instead
}

// Reads gives rows: as a reader, a page, a file, a profile or the answer of a query. Its callers
// are the HTTP API, Flight, jobs, features and ingestion.
type Reads struct{ *core }

// Open reads an accepted version. The reader gives batches of the six column
// types; release it. Needs dataset.query. Errors: fault.Conflict for a rejected
// version, naming the expectation; fault.Gone for a deleted one, or a destroyed
// key; fault.PermissionDenied where the data may not be; fault.Invalid for an
// unknown column or a part that cannot be; fault.Conflict for another digest.
func (s *Reads) Open(ctx context.Context, r OpenRequest) (*Reader, error) {
	v, err := s.admit(ctx, r, false)
	if err != nil {
		return nil, err
	}
	return s.read(ctx, v, r)
}

// admit passes a read through every door: permission, state, residency, journal.
func (s *core) admit(ctx context.Context, r OpenRequest, look bool) (Version, error) {
	v, err := s.find(ctx, ActionQuery, r.Project, r.Ref)
	if err != nil {
		return Version{}, err
	}
	return v, s.pass(ctx, v, r, look)
}

// pass is the doors behind the permission.
func (s *core) pass(ctx context.Context, v Version, r OpenRequest, look bool) error {
	if err := s.fits(ctx, v, r, look); err != nil {
		return err
	}
	return s.journal(ctx, v, r)
}

// fits is pass without the journal.
func (s *core) fits(ctx context.Context, v Version, r OpenRequest, look bool) error {
	if err := r.fits(v, look); err != nil {
		return err
	}
	if err := s.within(ctx, v); err != nil {
		return err
	}
	where, zone := r.Where, r.Zone
	if where == "" && zone == "" {
		where, zone = "this server", s.cfg.Zone
	}
	return s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: string(r.Project), What: "dataset " + v.Ref().String(), Label: v.Residency, Where: where, Zone: zone, Action: string(ActionQuery),
	})
}

// within refuses to an attempt what may be in fewer zones than what it makes: its
// job was confined by the versions that there were when it was submitted. Its own
// versions come from those.
func (s *core) within(ctx context.Context, v Version) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt || s.cfg.Confined == nil || v.CreatedBy == who.ID {
		return nil
	}
	l, err := s.cfg.Confined(ctx, who.ID)
	if err != nil {
		return fault.Wrap(err, "residency of the outputs of %s", who)
	}
	if !l.Within(v.Residency) {
		return fault.New(fault.PermissionDenied, "%s has the residency %s, and the outputs of the job have %s", v.Ref(), v.Residency, l).
			WithHint("The version is newer than the job's submission, or is not in its data. Submit the job again with this version in its data.")
	}
	return nil
}

// fits refuses a version that cannot give what is asked. look takes a rejected one.
func (r OpenRequest) fits(v Version, look bool) error {
	if err := v.Usable(); err != nil && (!look || v.State != Rejected) {
		return err
	}
	if r.Digest != "" && r.Digest != v.ContentDigest {
		return fault.New(fault.Conflict, "%s has the digest %s, not %s", v.Ref(), v.ContentDigest, r.Digest).
			WithHint("The version differs from the one that was requested before. Request it again.")
	}
	if err := r.Shard.Validate(); err != nil {
		return err
	}
	_, err := v.Schema.Select(r.Columns)
	return fault.Wrap(err, "%s", v.Ref())
}

// journal records a read of classified data and returns when that is synced.
func (s *core) journal(ctx context.Context, v Version, r OpenRequest) error {
	if !v.Classification.Journalled() {
		return nil
	}
	detail := map[string]any{"classification": v.Classification, "digest": v.ContentDigest}
	if r.aside {
		detail["quarantine"] = true
	}
	if len(r.Columns) > 0 {
		detail["columns"] = r.Columns
	}
	if r.Shard != (Shard{}) {
		from, to := r.Shard.Rows(v.Rows)
		detail["rows"] = []int64{from, to}
	}
	if r.Where != "" {
		detail["where"] = r.Where
	}
	err := s.cfg.Journal.Record(ctx, audit.Entry{
		Project: string(v.Project), Action: string(ActionQuery), Object: "dataset " + v.Ref().String(), Reason: r.Purpose, Detail: detail,
	})
	return fault.Wrap(err, "journaling the read of %s", v.Ref())
}

// Reader reads a version's rows. It is an array.RecordReader whose batches have
// the types of tables. Not safe for concurrent use; Release it.
type Reader struct {
	version Version
	schema  *arrow.Schema
	next    func(p piece) (array.RecordReader, datafile.Reader, error)
	refs    atomic.Int64
	pieces  []piece // still to be read
	rows    array.RecordReader
	file    datafile.Reader
	err     error
}

var _ array.RecordReader = (*Reader)(nil)

// piece is rows of a data file: from its row from to before its row to.
type piece struct {
	file     int
	from, to int64
}

// rowset is rows of a version that are kept together: its own, or those in
// quarantine.
type rowset struct {
	name   string // that its files begin with
	schema Schema
	files  []DataFile
	rows   int64
}

// kept is the version's own rows.
func (v Version) kept() rowset { return rowset{"data", v.Schema, v.Files, v.Rows} }

// sealName binds a data file to its version and place.
func (s rowset) sealName(v VersionID, i int) string {
	if s.name == "data" {
		return fmt.Sprintf("%s/%05d", v, i)
	}
	return fmt.Sprintf("%s/%s/%05d", v, s.name, i)
}

// pieces are the rows of the files between two rows of the set. There
// is always one, if of no rows, so that a missing file is noticed.
func (s rowset) pieces(from, to int64) []piece {
	var out []piece
	first := int64(0)
	for i, f := range s.files {
		if p := (piece{i, max(from-first, 0), min(to-first, f.Rows)}); p.from < p.to {
			out = append(out, p)
		}
		first += f.Rows
	}
	if len(out) == 0 {
		out = []piece{{}}
	}
	return out
}

// read opens a version that was admitted.
func (s *core) read(ctx context.Context, v Version, q OpenRequest) (*Reader, error) {
	from, to := q.Shard.Rows(v.Rows)
	return s.readSet(ctx, v, v.kept(), q.Columns, from, to)
}

// readSet opens rows of a version that was admitted, from one to before another.
func (s *core) readSet(ctx context.Context, v Version, set rowset, columns []string, from, to int64) (*Reader, error) {
	part, err := set.schema.Select(columns)
	if err != nil {
		return nil, err
	}
	seal, err := s.seal(ctx, v)
	if err != nil {
		return nil, err
	}
	r := &Reader{version: v, schema: part.Arrow(), pieces: set.pieces(from, to)}
	r.refs.Store(1)
	r.next = func(p piece) (array.RecordReader, datafile.Reader, error) {
		form := datafile.SelfSealed
		if v.Protection == Open {
			form = datafile.Plain
		}
		f, err := s.cfg.Files.Open(ctx, datafile.File{Project: v.Project, Dataset: v.Dataset, Key: set.files[p.file].Key, Form: form})
		if err != nil {
			return nil, nil, fault.Wrap(err, "opening %s", v.Ref())
		}
		own := seal
		if len(own.Key) > 0 {
			own.Name = set.sealName(v.ID, p.file)
		}
		rows, err := table.OpenRows(ctx, f, f.Size(), set.schema, columns, own, p.from, p.to)
		if err != nil {
			_ = f.Close()
			return nil, nil, fault.Wrap(err, "opening %s", v.Ref())
		}
		return rows, f, nil
	}
	// The first file is opened now, so that a missing or damaged one is an error of Open.
	if err := r.advance(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Reader) advance() (err error) {
	r.close()
	r.rows, r.file, err = r.next(r.pieces[0])
	r.pieces = r.pieces[1:]
	return err
}

func (r *Reader) close() {
	if r.rows != nil {
		r.rows.Release()
		_ = r.file.Close()
		r.rows, r.file = nil, nil
	}
}

// Version is what is read.
func (r *Reader) Version() Version { return r.version }

// Schema has the columns in the order asked for.
func (r *Reader) Schema() *arrow.Schema { return r.schema }

// Next goes to the next batch.
func (r *Reader) Next() bool {
	for r.err == nil && r.rows != nil {
		if r.rows.Next() {
			return true
		}
		if r.err = r.rows.Err(); r.err != nil || len(r.pieces) == 0 {
			r.close()
			return false
		}
		r.err = r.advance()
	}
	return false
}

// RecordBatch is the current batch, valid until Next.
func (r *Reader) RecordBatch() arrow.RecordBatch {
	if r.rows == nil {
		return nil
	}
	return r.rows.RecordBatch()
}

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (r *Reader) Record() arrow.RecordBatch { return r.RecordBatch() }

// Err is what ended the reading early.
func (r *Reader) Err() error { return r.err }

// Retain asks for one Release more.
func (r *Reader) Retain() { r.refs.Add(1) }

// Release closes the reader with the last reference.
func (r *Reader) Release() {
	if r.refs.Add(-1) == 0 {
		r.close()
	}
}

// Table is some rows as people and JSON read them: a value is nil, a string, an
// int64, a float64 or a bool; timestamps and dates are strings.
type Table struct {
	Columns []Column `json:"-"`
	Names   []string `json:"columns"`
	Rows    [][]any  `json:"rows"`
	// Truncated says that there are more rows than the limit let in.
	Truncated bool `json:"truncated,omitempty" doc:"The result is cut at the row limit"`

	size resource.Bytes
}

// Size is about how many bytes of JSON the rows have.
func (t Table) Size() int64 { return int64(t.size) }

// maxPreview bounds a preview.
const maxPreview = 1000

// Preview gives the first n rows (20 for 0, at most 1,000) of a version, also
// of a rejected one. Needs dataset.query; otherwise as Open.
func (s *Reads) Preview(ctx context.Context, r OpenRequest, n int) (Table, Version, error) {
	if n <= 0 {
		n = 20
	}
	v, err := s.admit(ctx, r, true)
	if err != nil {
		return Table{}, Version{}, err
	}
	rows, err := s.read(ctx, v, r)
	if err != nil {
		return Table{}, Version{}, err
	}
	defer rows.Release()
	t, err := Collect(ctx, rows, min(n, maxPreview), s.limits.Answer)
	return t, v, err
}

// Collect reads up to limit rows of the types of tables, in a table of at most so many
// bytes, about as JSON has them; 0 is DefaultAnswer. It holds them of the context's request.
// Errors: fault.TooLarge; those of membudget.Take; the rows'.
func Collect(ctx context.Context, rows array.RecordReader, limit int, most resource.Bytes) (Table, error) {
	most = cmp.Or(most, DefaultAnswer)
	schema, err := table.FromArrow(rows.Schema())
	if err != nil {
		return Table{}, err
	}
	t := Table{Names: schema.Names(), Rows: [][]any{}}
	for _, f := range schema {
		t.Columns = append(t.Columns, Column{Name: f.Name, Type: f.Type})
	}
	size, held := resource.Bytes(0), resource.Bytes(0)
	turn := share.TurnOf(ctx)
	defer turn.End()
	for !t.Truncated && rows.Next() {
		rec := rows.RecordBatch()
		t.Truncated = int(rec.NumRows()) > limit-len(t.Rows)
		for i := range min(int(rec.NumRows()), limit-len(t.Rows)) {
			for c := range schema {
				size += sizeOfCell(rec.Column(c), i, most)
			}
			if size > most {
				return Table{}, fault.New(fault.TooLarge, "the response exceeds %s (limits.answer) after %d rows", most, len(t.Rows)).
					WithHint("Request fewer rows or columns, or stream the rows over Arrow Flight.")
			}
			if size-held >= heldStep {
				turn.End() // room may be waited for
				// The values, and their JSON while it is written.
				if err := membudget.Take(ctx, int64(3*(size-held))); err != nil {
					return Table{}, err
				}
				held = size
				if err := turn.Begin(ctx); err != nil {
					return Table{}, err
				}
			}
			row := make([]any, len(schema))
			for c := range schema {
				row[c] = cell.Value(rec.Column(c), i)
			}
			t.Rows = append(t.Rows, row)
		}
		turn.End() // the next rows are waited for
	}
	t.size = size
	if err := rows.Err(); err != nil {
		return Table{}, err
	}
	return t, membudget.Take(ctx, int64(3*(size-held)))
}

// DefaultAnswer is limits.answer when it is not set.
const DefaultAnswer = 32 * resource.MiB

// heldStep is how much of an answer is held of a request's memory at a time.
const heldStep = 256 * resource.KiB

// sizeOfCell is about what a cell takes, in memory or as JSON, whichever is more; of one
// that has more than most bytes only that.
func sizeOfCell(a arrow.Array, i int, most resource.Bytes) resource.Bytes {
	const scalar = 24
	if a.IsNull(i) {
		return scalar
	}
	if s, ok := a.(*array.String); ok {
		size := scalar
		if n := resource.Bytes(len(s.Value(i))); n > most { // it is not worth counting
			return n
		}
		for _, c := range []byte(s.Value(i)) {
			if size++; c < ' ' || c == '<' || c == '>' || c == '&' { // six characters of JSON
				size += 5
			}
		}
		return resource.Bytes(size)
	}
	size := resource.Bytes(scalar)
	if elements, from, to := cell.Elements(a, i); elements != nil {
		for j := from; j < to; j++ {
			size += sizeOfCell(elements, j, most)
		}
	}
	return size
}

// ExportRequest asks for a version as a file.
type ExportRequest struct {
	OpenRequest
	Dir  string // must exist, be private (0700) and belong to the reader of the file
	File string // name without directory; "data.parquet" when empty
}

// Export writes an accepted version as one plain Parquet file into a private
// directory for a job, which has to remove it. Needs dataset.query; errors as
// Open. It returns the file's path; a failed export leaves none.
func (s *Reads) Export(ctx context.Context, r ExportRequest) (path string, v Version, err error) {
	if r.File == "" {
		r.File = "data.parquet"
	}
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return "", Version{}, fault.Wrap(err, "exporting %s", r.Ref)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(".")
	if err != nil {
		return "", Version{}, fault.Wrap(err, "exporting %s", r.Ref)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", Version{}, fault.New(fault.Internal, "the directory for %s is accessible to other users (mode %s)", r.Ref, info.Mode().Perm())
	}
	rows, err := s.Open(ctx, r.OpenRequest)
	if err != nil {
		return "", Version{}, err
	}
	defer rows.Release()
	f, err := root.OpenFile(r.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", Version{}, fault.Wrap(err, "exporting %s", r.Ref)
	}
	if err := errors.Join(export(ctx, rows, f), f.Close()); err != nil {
		_ = root.Remove(r.File)
		return "", Version{}, fault.Wrap(err, "exporting %s", r.Ref)
	}
	return filepath.Join(r.Dir, r.File), rows.Version(), nil
}

func export(ctx context.Context, rows *Reader, f *os.File) error {
	schema, err := rows.version.Schema.Select(namesOf(rows.schema))
	if err != nil {
		return err
	}
	w, err := table.NewFileWriter(f, schema, table.Seal{})
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Write(rows.RecordBatch()); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return w.Close()
}

func namesOf(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = f.Name
	}
	return names
}
