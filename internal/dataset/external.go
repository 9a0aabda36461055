package dataset

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// What other engines write to an open table they write as files beside ours, and
// commit by naming them. The rows are then read from those files by a child and
// written again, as every version is: so they are checked, their digest is of
// what is kept, and who can write to the directory changes no version.

// TableCommit is what another engine wants of a table.
type TableCommit = table.Commit

// CreateTableRequest declares an open dataset as a client of the catalog does.
type CreateTableRequest struct {
	Project    project.Name
	Name       string
	Schema     table.Declared
	Properties map[string]string
	Stage      bool // say what the table would be; a commit makes it
}

// CreateTable declares an open dataset with columns and no versions. A column
// that may hold no nulls becomes an expectation. Needs dataset.import. Errors:
// fault.Conflict for one that exists; fault.Unsupported for types that are not
// kept.
func (s *Tables) CreateTable(ctx context.Context, r CreateTableRequest) (OpenTable, error) {
	schema, required, err := r.Schema.Columns()
	if err != nil {
		return OpenTable{}, err
	}
	if err := table.CheckProperties(r.Properties); err != nil {
		return OpenTable{}, err
	}
	if _, err := s.allowed(ctx, ActionImport, r.Project, r.Name); err == nil {
		return OpenTable{}, fault.New(fault.Conflict, "dataset %s already exists", r.Name)
	} else if !fault.Is(err, fault.NotFound) {
		return OpenTable{}, err
	}
	d, err := s.declare(ctx, r.Project, r.Name, table.Change{Schema: schema, Required: required, Set: r.Properties}, r.Stage)
	if err != nil {
		return OpenTable{}, err
	}
	t := s.emptied(d)
	if r.Stage {
		t.Required = required
	}
	return asTable(t, "")
}

// declare makes the dataset of a table that is created. It asks no permission.
func (s *Tables) declare(ctx context.Context, p project.Name, name string, c table.Change, dry bool) (d Dataset, err error) {
	spec := Spec{Protection: Open, Description: c.Set["comment"]}
	for _, column := range c.Required {
		spec.Expectations = append(spec.Expectations, expectation.Rule{Check: expectation.NotNull, Column: column})
	}
	spec = spec.withDefaults()
	if err := spec.Validate(); err != nil {
		return Dataset{}, err
	}
	def, err := s.defaults(ctx, p)
	if err != nil {
		return Dataset{}, err
	}
	do := func(ctx context.Context, tx *store.Tx) error {
		if _, err := s.live(ctx, tx, p, name); err == nil {
			return fault.New(fault.Conflict, "dataset %s already exists", name)
		} else if !fault.Is(err, fault.NotFound) {
			return err
		}
		if d, _, err = s.plan(ctx, tx, ApplyRequest{Project: p, Name: name, Spec: spec}, def); err != nil {
			return err
		}
		d.Next, _ = d.Fields.assign(c.Schema, d.Spec.Columns)
		d.Properties = c.Set
		if dry {
			return nil
		}
		return s.altered(ctx, tx, d, "created")
	}
	if dry {
		return d, s.cfg.DB.View(ctx, do)
	}
	return d, s.cfg.DB.Update(ctx, string(p), do)
}

// altered keeps a dataset whose table changed, with its audit row and event.
func (s *Tables) altered(ctx context.Context, tx *store.Tx, d Dataset, change string) error {
	if err := s.cfg.Store.PutDataset(ctx, tx, d); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: string(d.Project), Action: string(ActionImport), Object: "dataset " + d.Name,
		Detail: map[string]any{"change": change, "revision": d.Revision, "columns": d.Next.Names(), "properties": slices.Sorted(maps.Keys(d.Properties))},
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(d.Project), EventApplied, Event{Dataset: d.ID, Name: d.Name})
}

// CommitTable does what another engine wants of a table: a new version of the
// rows that it wrote, other columns for the rows to come, properties. The answer
// is the table after it. Needs dataset.import and dataset.query. Errors:
// fault.Conflict when the table is not as the engine saw it; fault.Invalid for
// rows that fail an expectation (the version is kept as rejected), files that
// cannot be read or are elsewhere; fault.Unsupported.
func (s *Tables) CommitTable(ctx context.Context, p project.Name, name string, c TableCommit) (OpenTable, error) {
	_, err := s.allowed(ctx, ActionImport, p, name)
	created := fault.Is(err, fault.NotFound)
	if err != nil && !created {
		return OpenTable{}, err
	}
	var d Dataset
	var t table.Table
	var kept []Version
	if created {
		// The table that was staged: what a dataset of this name would begin as.
		if d, err = s.declare(ctx, p, name, table.Change{}, true); err == nil {
			t = s.emptied(d)
		}
	} else {
		d, t, kept, err = s.state(ctx, p, name)
	}
	if err != nil {
		return OpenTable{}, err
	}
	change, err := t.Plan(c, !created)
	if err != nil {
		return OpenTable{}, fault.Wrap(err, "table %s", name)
	}
	switch {
	case change.Done:
	case created:
		err = s.createWith(ctx, p, name, change)
	case change.Write != nil || change.Empty:
		err = s.ingest(ctx, d, kept, change)
	default:
		err = s.alter(ctx, d, t, change)
	}
	if err != nil {
		return OpenTable{}, err
	}
	return s.Table(ctx, p, name)
}

// createWith makes a table with its first rows. Of one whose rows could not be
// taken nothing stays, so that creating it can be tried again.
func (s *Tables) createWith(ctx context.Context, p project.Name, name string, c table.Change) error {
	d, err := s.declare(ctx, p, name, c, false)
	if err != nil || c.Write == nil {
		return err
	}
	err = s.ingest(ctx, d, nil, c)
	if err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.QueueTime)
	defer cancel()
	if now, lerr := s.load(clean, p, name); lerr == nil && now.ID == d.ID && now.Latest == 0 {
		if _, _, derr := s.deleteAll(clean, now, grave{}); derr != nil {
			s.cfg.Log.ErrorContext(clean, "an empty table remains after a failed creation", slog.String("dataset", name), slog.Any("error", derr))
		}
	}
	return err
}

// alter changes the columns for the rows to come, and properties.
func (s *Tables) alter(ctx context.Context, d Dataset, t table.Table, c table.Change) error {
	if c.Anew {
		for _, f := range t.Columns() {
			if !slices.Contains(c.Schema, f) {
				return fault.New(fault.Unsupported, "column %q of table %s cannot be renamed, changed or dropped without new rows", f.Name, d.Name).
					WithHint("Only adding columns needs no rows. Make other changes in an overwriting commit that contains the rows.")
			}
		}
		if len(c.Required) > 0 {
			return fault.New(fault.Unsupported, "columns %q are required, and tables have only optional columns", c.Required).WithHint("Declare an expectation `not_null` in the dataset's manifest.")
		}
	}
	var newest []Version
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		newest, err = s.present(ctx, tx, d.ID)
		return err
	})
	if err != nil {
		return err
	}
	was := d
	s.adopt(&d, c)
	if c.Anew {
		d.Next, _ = d.Fields.assign(c.Schema, d.Spec.Columns)
	}
	d.Revision++
	d.Updated = s.cfg.Now().UTC()
	if len(newest) > 0 {
		if d.Metadata, err = s.describeTable(ctx, d, newest, newest[0]); err != nil {
			return err
		}
	}
	return s.cfg.DB.Update(ctx, string(d.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.live(ctx, tx, d.Project, d.Name)
		if err != nil {
			return err
		}
		if now.ID != was.ID || now.Revision != was.Revision || now.Latest != was.Latest || now.Metadata != was.Metadata {
			return moved(d.Name)
		}
		return s.altered(ctx, tx, d, "altered")
	})
}

// adopt takes over a commit's properties.
func (s *Tables) adopt(d *Dataset, c table.Change) {
	p := maps.Clone(d.Properties)
	if p == nil {
		p = map[string]string{}
	}
	for _, name := range c.Unset {
		delete(p, name)
	}
	maps.Copy(p, c.Set)
	d.Properties = p
}

func moved(name string) error {
	return fault.New(fault.Conflict, "dataset %s was changed by a concurrent write", name).WithHint("Read the table again and repeat.")
}

// onto binds a write to the version that it follows, and says what else becomes
// of the dataset with it.
type onto struct {
	base   int64 // the newest accepted version; 0 for none
	change func(*Dataset)
}

// ingest makes a version of the rows of a snapshot that another engine wrote.
func (s *Tables) ingest(ctx context.Context, d Dataset, kept []Version, c table.Change) error {
	for _, col := range d.Spec.Columns {
		at := slices.IndexFunc(c.Schema, func(f Field) bool { return f.Name == col.Name })
		if at >= 0 {
			if wide, ok := table.Wider(c.Schema[at].Type, col.Type); ok && wide == col.Type {
				c.Schema[at].Type = wide // as the manifest says
			}
		}
		if at < 0 || c.Schema[at].Type != col.Type {
			return fault.New(fault.Invalid, "dataset %s declares column %q as %s, and the new table has no such column", d.Name, col.Name, col.Type).
				WithHint("Write the column, or apply a manifest without it.")
		}
	}
	free, err := s.imports.Take(ctx, identity.Share(ctx, d.Project))
	if err != nil {
		return err
	}
	defer free()
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	in := &foreign{s: s.core, ctx: ctx, d: d, schema: c.Schema}
	defer in.close()
	producer := Producer{Kind: "commit", ID: identity.From(ctx).ID}
	if c.Write != nil {
		producer.Digest = digestOf(fmt.Appendf(nil, "snapshot %d %s", c.Write.ID, c.Write.List))
		if err := in.open(c.Write.List, kept); err != nil {
			return inTime(ctx, err)
		}
	}
	w, err := s.derivedFrom(ctx, d, in.parents)
	if err != nil {
		return err
	}
	w.rows = in
	lineage := w.producedBy
	lineage.Producer = &producer
	w.lineage = func() (Lineage, error) { return lineage, nil }
	w.onto = &onto{base: d.Accepted, change: func(d *Dataset) { s.adopt(d, c) }}
	if c.Write != nil {
		w.snapshot = c.Write.ID
	}
	v, err := s.write(ctx, w.draft)
	if err != nil {
		return inTime(ctx, err)
	}
	in.discard()
	if v.State == Rejected {
		return fault.New(fault.Invalid, "%s is rejected: %s", v.Ref(), v.Reason).
			WithHint("The table is unchanged. Inspect the rejected rows: falaj dataset preview %s", v.Ref())
	}
	return nil
}

// derived is a draft with the lineage that its parents give.
type derived struct {
	draft
	producedBy Lineage
}

// derivedFrom is the draft of what came from outside: as confined as the versions
// whose files it took over, and as all that an attempt could read.
func (s *core) derivedFrom(ctx context.Context, d Dataset, cited []Version) (derived, error) {
	read, err := s.jobInputs(ctx)
	if err != nil {
		return derived{}, err
	}
	parents, beside, err := s.withJobInputs(ctx, d.Project, cited, nil, read)
	if err != nil {
		return derived{}, err
	}
	def, err := s.defaults(ctx, d.Project)
	if err != nil {
		return derived{}, err
	}
	label, class, err := inherit(parents, beside...)
	if err != nil {
		return derived{}, err
	}
	w := draft{project: d.Project, name: d.Name, spec: d.Spec, read: read}
	orphan := len(parents)+len(beside) == 0
	w.residency, w.classification, err = confine(d, def, orphan, label, class)
	if err == nil && orphan {
		w.classification, err = s.notBelow(ctx, d, w.classification)
	}
	if err != nil {
		return derived{}, err
	}
	return derived{draft: w, producedBy: Lineage{Parents: lineageOf(parents)}}, s.settle(ctx, w)
}

// foreign reads the rows of a snapshot that another engine wrote, file by file,
// through a child. It is an array.RecordReader.
type foreign struct {
	s       *core
	ctx     context.Context //nolint:containedctx // of one commit
	d       Dataset
	schema  Schema
	parents []Version // whose files are cited
	files   []string  // keys of data files
	own     []string  // keys that only this commit cites

	session *child.Session
	at      int
	rows    array.RecordReader
	read    int64
	err     error
}

var _ array.RecordReader = (*foreign)(nil)

// open reads the snapshot's manifests. kept are the versions whose files it may
// cite: those that the writer may read.
func (f *foreign) open(list string, kept []Version) (err error) {
	if f.session, err = child.Start(f.ctx, f.s.cfg.Launcher, child.SnapshotMode, child.LaunchOptions{
		Memory: f.s.limits.ParserMemory, CPU: f.s.limits.ImportTime,
	}); err != nil {
		return err
	}
	if err := f.session.In.Header(parser.SnapshotRequest{Schema: f.schema, Limits: f.s.limits.Parser}); err != nil {
		return f.session.Explain(f.ctx, err)
	}
	owner := map[string]Version{}
	for _, v := range kept {
		for _, file := range v.Files {
			owner[file.Key] = v
		}
	}
	key, err := f.key(list)
	if err != nil {
		return err
	}
	manifests, err := f.ask(parser.Ask{Kind: parser.AskList}, key)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, m := range manifests {
		key, err := f.key(m.Path)
		if err != nil {
			return err
		}
		data, err := f.ask(parser.Ask{Kind: parser.AskManifest, Manifest: i}, key)
		if err != nil {
			return err
		}
		for _, c := range data {
			key, err := f.key(c.Path)
			if err != nil {
				return err
			}
			if seen[key] {
				return fault.New(fault.Invalid, "the snapshot has the duplicate file %.200s", c.Path)
			}
			if seen[key] = true; len(seen) > parser.MaxDataFiles {
				return fault.New(fault.TooLarge, "the snapshot has more than %d data files", parser.MaxDataFiles).WithHint("Write fewer and larger files.")
			}
			if err := f.cite(key, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// cite takes a data file in: one of ours only from a version that the writer may
// read.
func (f *foreign) cite(key string, owner map[string]Version) error {
	f.files = append(f.files, key)
	v, known := owner[key]
	switch {
	case known:
		if !slices.ContainsFunc(f.parents, func(o Version) bool { return o.ID == v.ID }) {
			f.parents = append(f.parents, v)
		}
	case f.ours(key):
		return fault.New(fault.Invalid, "the snapshot references %.200s, which belongs to no version of the table", key).
			WithHint("Read the table again and repeat.")
	}
	return nil
}

// ours reports whether a key is below a version's prefix, or in a room.
func (f *foreign) ours(key string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(key, location(f.d)+"/"), "/")
	return strings.HasPrefix(first, "dsv_") || strings.HasPrefix(first, roomPrefix)
}

// key is where a file that the snapshot names is kept: only below the table's own
// location.
func (f *foreign) key(uri string) (string, error) {
	base := location(f.d)
	rest, ok := strings.CutPrefix(plainURI(uri), plainURI(f.s.cfg.Files.URI(base))+"/")
	key := base + "/" + rest
	if !ok || datafile.CheckKey(key) != nil || path.Clean(key) != key {
		return "", fault.New(fault.Invalid, "the snapshot references %.200q, which is not a file of this table", uri).
			WithHint("Write files of table %s below %s.", f.d.Name, f.s.cfg.Files.URI(base))
	}
	return key, nil
}

// plainURI brings the ways in which engines write the same address together:
// Hadoop writes file:/x for file:///x, and s3a for s3.
func plainURI(uri string) string {
	if rest, ok := strings.CutPrefix(uri, "file:"); ok {
		return "file:///" + strings.TrimLeft(rest, "/")
	}
	for _, other := range []string{"s3a://", "s3n://"} {
		if rest, ok := strings.CutPrefix(uri, other); ok {
			return "s3://" + rest
		}
	}
	return uri
}

// ask sends the child a file and reads what that cites.
func (f *foreign) ask(a parser.Ask, key string) ([]parser.Cited, error) {
	if err := f.send(a, key, parser.MaxAvro); err != nil {
		return nil, err
	}
	var cited []parser.Cited
	return cited, f.session.Explain(f.ctx, f.session.Out.Header(&cited))
}

func (f *foreign) send(a parser.Ask, key string, limit int64) error {
	file, err := f.s.cfg.Files.Open(f.ctx, datafile.File{Project: f.d.Project, Dataset: f.d.Name, Key: key, Form: datafile.Plain})
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.Invalid, "the snapshot references %.200s, and this file does not exist", key)
	}
	if err != nil {
		return fault.Wrap(err, "reading %s", key)
	}
	defer func() { _ = file.Close() }()
	if file.Size() > limit {
		return fault.New(fault.TooLarge, "%.200s has %d bytes, over the limit of %d", key, file.Size(), limit).WithHint("Write smaller files.")
	}
	if !f.ours(key) {
		f.own = append(f.own, key)
	}
	err = f.session.In.Header(a)
	if err == nil {
		out := f.session.In.Stream()
		if _, err = io.Copy(out, io.NewSectionReader(file, 0, file.Size())); err == nil {
			err = out.Close()
		}
	}
	if err == nil {
		return nil
	}
	// The child stopped reading, and said why.
	var said any
	if why := f.session.Out.Header(&said); why != nil {
		err = why
	}
	return f.session.Explain(f.ctx, err)
}

// Schema is the columns that the client declared.
func (f *foreign) Schema() *arrow.Schema { return f.schema.Arrow() }

// Next goes to the next batch.
func (f *foreign) Next() bool {
	for f.err == nil {
		if f.rows == nil {
			if f.at >= len(f.files) {
				return false
			}
			f.err = f.begin()
			continue
		}
		if f.rows.Next() {
			f.read += f.rows.RecordBatch().NumRows()
			return true
		}
		f.err = f.end()
	}
	return false
}

// begin sends the next data file.
func (f *foreign) begin() (err error) {
	if err := f.send(parser.Ask{Kind: parser.AskData, Rows: f.read}, f.files[f.at], f.s.limits.Parser.Parquet); err != nil {
		return err
	}
	f.at++
	f.rows, err = f.session.Out.Records()
	return f.session.Explain(f.ctx, err)
}

// end is after the last batch of a data file.
func (f *foreign) end() error {
	err := f.rows.Err()
	f.rows.Release()
	f.rows = nil
	if err == nil {
		var sum parser.Summary
		err = f.session.Out.Header(&sum)
	}
	return f.session.Explain(f.ctx, err)
}

// RecordBatch is the current batch, valid until Next.
func (f *foreign) RecordBatch() arrow.RecordBatch {
	if f.rows == nil {
		return nil
	}
	return f.rows.RecordBatch()
}

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (f *foreign) Record() arrow.RecordBatch { return f.RecordBatch() }

// Err is what ended the reading early.
func (f *foreign) Err() error { return f.err }

// Retain does nothing: close ends it.
func (f *foreign) Retain() {}

// Release does nothing: close ends it.
func (f *foreign) Release() {}

func (f *foreign) close() {
	if f.rows != nil {
		f.rows.Release()
		f.rows = nil
	}
	if f.session != nil {
		f.session.Close()
	}
}

// discard removes the files that the client wrote, whose rows are in ours now.
// What it cannot remove, Sweep does.
func (f *foreign) discard() {
	for _, key := range f.own {
		if err := f.s.cfg.Files.Remove(f.ctx, key); err != nil {
			f.s.cfg.Log.WarnContext(f.ctx, "a file of a commit was not removed; the next sweep removes it", slog.String("key", key), slog.Any("error", err))
		}
	}
}

// Sweep removes uncommitted files of open tables: every file of a table that belongs to no
// version and is older than limits.Stray. It returns their number.
func (s *Tables) Sweep(ctx context.Context, p project.Name) (removed int, err error) {
	before := s.cfg.Now().Add(-s.limits.Stray)
	for after := ""; ; {
		var ds []Dataset
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			ds, err = s.cfg.Store.Datasets(ctx, tx, p, nil, after, 500)
			return err
		}); err != nil {
			return removed, err
		}
		for _, d := range ds {
			after = d.Name
			n, err := s.cfg.Files.Sweep(ctx, location(d)+"/", before, func(key string) bool {
				return !(&foreign{d: d}).ours(key) && !held(d, key)
			})
			removed += n
			if err != nil {
				return removed, fault.Wrap(err, "sweeping table %s", d.Name)
			}
		}
		if len(ds) < 500 {
			return removed, nil
		}
	}
}

// held reports whether a key is of a file that keeps a directory there.
func held(d Dataset, key string) bool {
	return slices.ContainsFunc(ForeignParts, func(part string) bool { return key == path.Join(location(d), part, HeldFile) })
}
