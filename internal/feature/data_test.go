package feature_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// col is a column of a table.
type col struct {
	name string
	typ  value.Type
}

// table is rows in memory.
type table struct {
	cols []col
	rows [][]value.Value
}

func (tb table) schema() *arrow.Schema {
	fields := make([]arrow.Field, len(tb.cols))
	for i, c := range tb.cols {
		fields[i] = arrow.Field{Name: c.name, Type: offline.ArrowType(c.typ), Nullable: true}
	}
	return arrow.NewSchema(fields, nil)
}

// pick keeps columns in an order; all when there are none.
func (tb table) pick(columns []string) (table, error) {
	if len(columns) == 0 {
		return tb, nil
	}
	out := table{rows: make([][]value.Value, len(tb.rows))}
	for _, name := range columns {
		at := slices.IndexFunc(tb.cols, func(c col) bool { return c.name == name })
		if at < 0 {
			return out, fault.New(fault.Invalid, "no column %q", name)
		}
		out.cols = append(out.cols, tb.cols[at])
		for i, r := range tb.rows {
			out.rows[i] = append(out.rows[i], r[at])
		}
	}
	return out, nil
}

// batchRows is the rows of a batch in these tests: more than one batch is the
// usual case.
const batchRows = 7

func (tb table) reader() array.RecordReader {
	schema := tb.schema()
	var batches []arrow.RecordBatch
	for part := range slices.Chunk(tb.rows, batchRows) {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for _, row := range part {
			for i, v := range row {
				if err := offline.Append(b.Field(i), v); err != nil {
					panic(err)
				}
			}
		}
		batches = append(batches, b.NewRecordBatch())
	}
	r, err := array.NewRecordReader(schema, batches)
	if err != nil {
		panic(err)
	}
	return r
}

// version is a dataset version in memory.
type version struct {
	feature.DatasetVersion
	table    table
	rejected bool
	derived  feature.Derived
}

// data is feature.Data in memory. SQL is a name given to a Go function.
type data struct {
	mu       sync.Mutex
	versions map[string][]version // by dataset name, version 1 first
	queries  map[string]query
	declared map[string][]col
	db       *store.DB
	redacted map[string]string // what stands for a version
	// appending, when set, may fail an Append.
	appending func() error
	// interrupt, when set, fails the reading of any source after some rows.
	interrupt func(rows int) error
	closed    string          // the version that may be read no longer
	asked     []feature.Local // of each query
}

// query is what a piece of SQL means: the tables it reads and what it makes.
type query struct {
	tables []string
	local  []string // columns whose times have no zone
	run    func(in map[string]table) table
}

func newData() *data {
	return &data{versions: map[string][]version{}, queries: map[string]query{}, declared: map[string][]col{}, redacted: map[string]string{}}
}

// put makes a version.
func (d *data) put(name string, tb table, change ...func(*version)) string {
	v := d.make(name, tb)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range change {
		c(&v)
	}
	d.versions[name] = append(d.versions[name], v)
	return v.Ref
}

// make is what the next version would be.
func (d *data) make(name string, tb table) version {
	d.mu.Lock()
	defer d.mu.Unlock()
	return version{table: tb, DatasetVersion: feature.DatasetVersion{
		Ref: fmt.Sprintf("%s@%d", name, len(d.versions[name])+1), Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, tb))), Schema: tb.schema(), Rows: int64(len(tb.rows)),
		Residency: residency.Of(residency.Home), Classification: project.Internal,
	}}
}

func (d *data) find(ref string) (version, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, _, exact := strings.Cut(ref, "@")
	for _, v := range slices.Backward(d.versions[name]) {
		if exact && v.Ref == ref && d.redacted[ref] != "" {
			return v, fault.New(fault.Gone, "%s contained rows of an erased person", ref)
		}
		if exact && v.Ref == ref || !exact && !v.rejected {
			if v.rejected {
				return v, fault.New(fault.Conflict, "%s is rejected", v.Ref)
			}
			return v, nil
		}
	}
	return version{}, fault.New(fault.NotFound, "there is no dataset %q", ref)
}

func (d *data) Resolve(_ context.Context, _ project.Name, ref string) (feature.DatasetVersion, error) {
	v, err := d.find(ref)
	return v.DatasetVersion, err
}

func (d *data) Standing(_ context.Context, _ project.Name, ref string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.redacted[ref] != "" {
		ref = d.redacted[ref]
	}
	return ref, nil
}

func (d *data) Open(_ context.Context, _ project.Name, ref string, columns []string) (array.RecordReader, error) {
	v, err := d.find(ref)
	if err != nil {
		return nil, err
	}
	tb, err := v.table.pick(columns)
	if err != nil {
		return nil, err
	}
	return d.guarded(tb), nil
}

// guarded is a reader that d may interrupt.
func (d *data) guarded(tb table) array.RecordReader {
	if d.interrupt == nil {
		return tb.reader()
	}
	return &failing{RecordReader: tb.reader(), fail: d.interrupt}
}

type failing struct {
	array.RecordReader
	fail func(rows int) error
	rows int
	err  error
}

func (f *failing) Next() bool {
	if f.err != nil || !f.RecordReader.Next() {
		return false
	}
	f.rows += int(f.RecordBatch().NumRows())
	f.err = f.fail(f.rows)
	return f.err == nil
}

func (f *failing) Err() error { return f.err }

var (
	wrapped = regexp.MustCompile(`(?s)^SELECT (.*) FROM \(\n(.*)\n\) AS source( LIMIT 0)?$`)
	quoted  = regexp.MustCompile(`"([^"]+)"`)
)

func (d *data) Query(_ context.Context, _ project.Name, sql string, inputs map[string]string, local feature.Local) (feature.Rows, error) {
	inner, columns, none := strings.TrimPrefix(sql, "\n"), []string(nil), false
	if m := wrapped.FindStringSubmatch(sql); m != nil {
		inner, none = m[2], m[3] != ""
		for _, c := range quoted.FindAllStringSubmatch(m[1], -1) {
			columns = append(columns, c[1])
		}
	}
	q, ok := d.queries[inner]
	if !ok {
		return feature.Rows{}, fault.New(fault.Invalid, "Parser Error: %q", inner)
	}
	rows := feature.Rows{Local: q.local}
	d.mu.Lock()
	d.asked = append(d.asked, local)
	d.mu.Unlock()
	in := map[string]table{}
	for _, t := range q.tables {
		ref := t
		if inputs != nil {
			if ref, ok = inputs[t]; !ok {
				return rows, fault.New(fault.Invalid, "there is no table %q", t)
			}
		}
		v, err := d.find(ref)
		if err != nil {
			return rows, err
		}
		in[t] = v.table
		rows.Inputs = append(rows.Inputs, feature.Input{Table: t, DatasetVersion: v.DatasetVersion})
	}
	tb, err := q.run(in).pick(columns)
	if err != nil {
		return rows, err
	}
	if none {
		tb.rows = nil
	}
	rows.RecordReader = d.guarded(tb)
	return rows, nil
}

func (d *data) Create(_ context.Context, r feature.Derived) (feature.DatasetVersion, error) {
	tb := read(r.Rows)
	if err := r.Rows.Err(); err != nil {
		return feature.DatasetVersion{}, err
	}
	parents := make([]residency.Parent, len(r.Parents))
	for i, p := range r.Parents {
		v, err := d.find(p)
		if err != nil {
			return feature.DatasetVersion{}, err
		}
		parents[i] = residency.Parent{Name: p, Label: v.Residency}
	}
	label, err := residency.Derive(parents...)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	ref := d.put(r.Name, tb, func(v *version) { v.Residency, v.derived = label, r })
	v, err := d.find(ref)
	return v.DatasetVersion, err
}

// read takes all rows into memory.
func read(rows array.RecordReader) table {
	var tb table
	for _, f := range rows.Schema().Fields() {
		tb.cols = append(tb.cols, col{f.Name, typeOf(f.Type)})
	}
	for rows.Next() {
		b := rows.RecordBatch()
		names, types := make([]string, len(tb.cols)), make([]value.Type, len(tb.cols))
		for i, c := range tb.cols {
			names[i], types[i] = c.name, c.typ
		}
		cells, err := offline.Cells(b, names, types)
		if err != nil {
			panic(err)
		}
		for row := range int(b.NumRows()) {
			out := make([]value.Value, len(tb.cols))
			for i := range out {
				out[i] = cells(row, i).Clone()
			}
			tb.rows = append(tb.rows, out)
		}
	}
	return tb
}

// typeOf is the type that a column is kept as; of lists the widest.
func typeOf(t arrow.DataType) value.Type {
	if l, ok := t.(*arrow.ListType); ok {
		return value.ListOf(typeOf(l.Elem()), value.MaxLength)
	}
	for _, name := range value.Names() {
		var of value.Type
		if of.UnmarshalText([]byte(name)) == nil && arrow.TypeEqual(offline.ArrowType(of), t) {
			return of
		}
	}
	panic(t)
}

func (d *data) Reauthorize(_ context.Context, _ project.Name, ref string) error {
	if ref == d.closed {
		return fault.New(fault.PermissionDenied, "dataset.query on %s is not allowed", ref)
	}
	_, err := d.find(ref)
	return err
}

// Columns of a dataset are those that declare gave it.
func (d *data) Columns(_ context.Context, _ project.Name, name string) (*arrow.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cols, ok := d.declared[name]
	if !ok {
		return nil, fault.New(fault.NotFound, "there is no dataset %q", name)
	}
	return table{cols: cols}.schema(), nil
}

func (d *data) Append(ctx context.Context, r feature.Appended) (feature.DatasetVersion, error) {
	if d.appending != nil {
		if err := d.appending(); err != nil {
			return feature.DatasetVersion{}, err
		}
	}
	tb := read(r.Rows)
	if err := r.Rows.Err(); err != nil {
		return feature.DatasetVersion{}, err
	}
	now, err := d.find(r.Dataset)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return feature.DatasetVersion{}, err
	}
	if now.Ref != r.Base {
		return feature.DatasetVersion{}, fault.New(fault.Conflict, "%s is not the newest", r.Base)
	}
	var out feature.DatasetVersion
	// As the database does it: what Then says decides whether the version is there.
	return out, d.db.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		out = d.make(r.Dataset, tb).DatasetVersion
		if err := r.Then(ctx, tx, out); err != nil {
			return err
		}
		tx.OnCommit(func() { d.put(r.Dataset, tb) })
		return nil
	})
}

// show is the rows of a dataset version as text.
func (d *data) show(tb testing.TB, ref string) []string {
	tb.Helper()
	v, err := d.find(ref)
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, c := range v.table.cols {
		names = append(names, c.name)
	}
	out := []string{strings.Join(names, ", ")}
	for _, r := range v.table.rows {
		var cells []string
		for _, x := range r {
			cells = append(cells, x.String())
		}
		out = append(out, strings.Join(cells, ", "))
	}
	return out
}
