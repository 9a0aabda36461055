// Package offline joins features to a spine as of each row's time, and sorts
// the rows of a view for the online store. It knows Arrow and nothing of
// datasets, projects or permissions.
//
// # Map
//
//   - Join (this file, join.go) is the as-of join: a stream of spine rows in, the
//     same rows in the same order with feature columns appended out.
//   - The rule below is in two places that must agree: index.go applies it to a view in
//     memory, as a timeline per key; external.go to sorted, encrypted temporary files when a
//     view is larger than its share of memory.
//   - windows.go answers with aggregations over windows instead of the newest row.
//   - Sort (sort.go) gives a view's rows ordered by key and time, each tie decided.
//   - pool.go shares memory among joins.
//   - sorter.go and spill.go are the external merge sort below both.
//
// # The rule
//
// A spine row at time T sees, of the rows with its key, those with event ≤ T
// and, where the view has a created time, created ≤ T (a created time of NULL
// counts as known from the event on): what was known at T. Of these it takes
// the one with the latest event; among equal events the latest created; among
// equal both, the one whose packed row has the greater bytes, so that the answer
// does not depend on the order of the input. If T − event > TTL, or no row is
// seen, or a part of the key is NULL, the features are NULL. Both limits include
// equality. Rows of a view without an event time or with a NULL in the key are
// never seen and are counted.
//
// A view with Windows answers with what package window makes of all the rows that
// are seen, each of which counts; the TTL is that of the newest.
//
// # Guarantees
//
// Spine rows, their order and their columns are unchanged. Memory stays near
// Options.Memory plus a few batches, whatever the size and skew of the input:
// the external path holds one row per key at a time, or with Windows the rows of
// one key that a window may still count. Temporary files have no name, are
// encrypted with a key that is only in memory, and vanish with the process.
package offline

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
)

// Column is a column of a view or spine and the type to read it as.
type Column struct {
	Name string
	Type value.Type
}

// Feature is a feature of a view. Select names its output column; an empty
// Select leaves it out of the output. (It still takes part in deciding ties,
// which is why all features of a view have to be given.)
type Feature struct {
	Column
	Select string
}

// Open starts reading. The caller of Open releases the reader; it reads one
// input at a time, so that sources that count their readers cannot lock up.
type Open func(ctx context.Context) (array.RecordReader, error)

// View is one side of the join. Its rows hold at least the named columns, in any
// order of rows.
type View struct {
	Name     string // for messages
	Open     Open
	Keys     []Column
	Event    string        // timestamp column
	Created  string        // timestamp column; may be empty
	TTL      time.Duration // 0: for ever
	Features []Feature     // all features of the view, in the order of its definition
	// Windows are computed from the rows, whose Features are then its inputs, in
	// its order, and none is selected.
	Windows *Windows
	// SpineKeys are the spine's columns that hold Keys, in the same order.
	SpineKeys []string
}

// Windows are aggregations, and the output column of each; none for one that is not selected.
type Windows struct {
	Plan   *window.Plan
	Select []string
}

// outputs are what the view answers with.
func (v *View) outputs() []Feature {
	if v.Windows == nil {
		return v.Features
	}
	out := make([]Feature, 0, len(v.Windows.Select))
	types := v.Windows.Plan.Types()
	for i, f := range v.Windows.Plan.Features() {
		out = append(out, Feature{Column{f.Name, types[i]}, v.Windows.Select[i]})
	}
	return out
}

// Spine is the side whose rows are kept.
type Spine struct {
	Open      Open
	Timestamp string
}

// Options bound the work. The zero Options are usable.
type Options struct {
	Dir     string // for temporary files; the system's default when empty
	Memory  int64  // bytes that views and sorting may use together; 400 MiB when 0
	Pool    *Pool  // of which Memory is taken, as far as it goes; nil for none
	Disk    int64  // bytes of temporary files; 64 GiB when 0
	Workers int    // batches joined at the same time; the number of CPUs when 0
}

func (o Options) withDefaults() Options {
	if o.Memory <= 0 {
		o.Memory = 400 << 20 // what the process holds peaks at twice as much
	}
	if o.Disk <= 0 {
		o.Disk = 64 << 30
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return o
}

// Stats counts a view's rows by their use in the join. It is complete once Join has returned.
type Stats struct {
	View     string `json:"view"`
	Rows     int64  `json:"rows"`
	NullKeys int64  `json:"null_keys,omitempty"` // rows skipped: NULL in the key
	NoTime   int64  `json:"no_time,omitempty"`   // rows skipped: no event time
	Ties     int64  `json:"ties,omitempty"`      // pairs of rows with equal key, event and created time
	Spilled  bool   `json:"spilled,omitempty"`   // the view went through temporary files
}

// noCreated is the created time of a row that has none: before all others.
const noCreated = math.MinInt64

// viewColumns finds a view's columns in its schema once.
type viewColumns struct {
	keys     []int
	event    int
	created  int // −1: none
	features []int
}

func (v *View) resolve(schema *arrow.Schema) (viewColumns, error) {
	vc := viewColumns{created: -1}
	find := func(name string, t value.Type) (int, error) {
		return columnIndex(schema, "view "+v.Name, name, t)
	}
	for _, k := range v.Keys {
		at, err := find(k.Name, k.Type)
		if err != nil {
			return vc, err
		}
		vc.keys = append(vc.keys, at)
	}
	var err error
	if vc.event, err = find(v.Event, value.Timestamp); err != nil {
		return vc, err
	}
	if v.Created != "" {
		if vc.created, err = find(v.Created, value.Timestamp); err != nil {
			return vc, err
		}
	}
	for _, f := range v.Features {
		at, err := find(f.Name, f.Type)
		if err != nil {
			return vc, err
		}
		vc.features = append(vc.features, at)
	}
	return vc, nil
}

func columnIndex(schema *arrow.Schema, where, name string, t value.Type) (int, error) {
	at := schema.FieldIndices(name)
	if len(at) == 0 {
		return 0, fault.New(fault.Invalid, "%s has no column %q", where, name)
	}
	if len(at) > 1 {
		return 0, fault.New(fault.Invalid, "%s has %d columns named %q", where, len(at), name)
	}
	if from := schema.Field(at[0]).Type; !Readable(from, t) {
		return 0, fault.New(fault.Invalid, "column %q of %s is %s, not %s", name, where, from, t).WithHint("Cast it in SQL.")
	}
	return at[0], nil
}

// part is a batch of a view, read.
type part struct {
	batch    arrow.RecordBatch
	keys     []column
	event    column
	created  column // typ 0: none
	features []column
}

func (vc viewColumns) read(v *View, batch arrow.RecordBatch) (part, error) {
	p := part{batch: batch, keys: make([]column, len(vc.keys)), features: make([]column, len(vc.features))}
	var err error
	for i, at := range vc.keys {
		if p.keys[i], err = read(v.Keys[i].Name, batch.Column(at), v.Keys[i].Type); err != nil {
			return p, err
		}
	}
	if p.event, err = read(v.Event, batch.Column(vc.event), value.Timestamp); err != nil {
		return p, err
	}
	if vc.created >= 0 {
		if p.created, err = read(v.Created, batch.Column(vc.created), value.Timestamp); err != nil {
			return p, err
		}
	}
	for i, at := range vc.features {
		if p.features[i], err = read(v.Features[i].Name, batch.Column(at), v.Features[i].Type); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *part) rows() int { return int(p.batch.NumRows()) }

func (p *part) nullKey(row int) bool {
	for i := range p.keys {
		if p.keys[i].null(row) {
			return true
		}
	}
	return false
}

// times are the event and created time of a row, and the time from which it is
// seen.
func (p *part) times(row int) (event, created, visible int64) {
	event, created = p.event.ints[row], noCreated
	if p.created.typ != 0 && !p.created.null(row) {
		created = p.created.ints[row]
	}
	return event, created, max(event, created)
}

// pack appends the packed row; scratch is as long as the view has features.
func (p *part) pack(dst []byte, row int, scratch []value.Value) ([]byte, error) {
	for i := range p.features {
		scratch[i] = p.features[i].value(row)
	}
	return value.AppendRow(dst, scratch)
}

func appendKey(dst []byte, keys []column, row int) []byte {
	for i := range keys {
		dst = value.AppendKey(dst, keys[i].value(row))
	}
	return dst
}

// Join starts the join and returns its result, whose schema is the spine's with
// the selected features appended, view by view. It reads the views first and
// whole, one after the other, then the spine as the result is read. Release the
// result; cancelling ctx ends it with an error. Errors, from Join or from the
// result's Err: fault.Invalid for columns that are missing, of another type or
// named twice and for a spine row without a time; fault.Exhausted when the
// temporary files outgrow Options.Disk; what the readers return.
func Join(ctx context.Context, spine Spine, views []View, opts Options) (*Result, error) {
	j := &joiner{from: spine, views: views, opts: opts.withDefaults()}
	j.opts.Memory, j.give = j.opts.Pool.take(j.opts.Memory)
	result, err := j.start(ctx)
	if err != nil {
		j.close()
		return nil, err
	}
	return result, nil
}

// ArrowType is the Arrow type of a feature column in the output. A vector is a list of
// float32, as tables have no lists of fixed size.
func ArrowType(t value.Type) arrow.DataType {
	if !t.Scalar() {
		return arrow.ListOf(ArrowType(t.Elem()))
	}
	switch t {
	case value.Int64:
		return arrow.PrimitiveTypes.Int64
	case value.Int32:
		return arrow.PrimitiveTypes.Int32
	case value.Float32:
		return arrow.PrimitiveTypes.Float32
	case value.Float64:
		return arrow.PrimitiveTypes.Float64
	case value.Bool:
		return arrow.FixedWidthTypes.Boolean
	case value.Timestamp:
		return arrow.FixedWidthTypes.Timestamp_us
	default:
		return arrow.BinaryTypes.String
	}
}

// outputSchema appends the selected features to the spine's schema.
func outputSchema(spine *arrow.Schema, views []View) (*arrow.Schema, error) {
	fields := slices.Clone(spine.Fields())
	from := make(map[string]string, len(fields))
	for _, f := range fields {
		from[f.Name] = "the spine"
	}
	for i := range views {
		v := &views[i]
		for _, f := range v.outputs() {
			if f.Select == "" {
				continue
			}
			if other, taken := from[f.Select]; taken {
				return nil, fault.New(fault.Invalid, "feature %s:%s and %s have the same column name %q", v.Name, f.Name, other, f.Select).
					WithHint("Request full feature names, or rename the column in the spine.")
			}
			from[f.Select] = "a feature of view " + v.Name
			fields = append(fields, arrow.Field{Name: f.Select, Type: ArrowType(f.Type), Nullable: true})
		}
	}
	meta := spine.Metadata()
	return arrow.NewSchema(fields, &meta), nil
}

// Cells reads columns of a batch as values: cell gives the value of a row and of
// a column by its place in names. Strings and lists are views into the batch.
func Cells(batch arrow.RecordBatch, names []string, types []value.Type) (cell func(row, column int) value.Value, err error) {
	columns := make([]column, len(names))
	for i, name := range names {
		at, err := columnIndex(batch.Schema(), "the batch", name, types[i])
		if err != nil {
			return nil, err
		}
		if columns[i], err = read(name, batch.Column(at), types[i]); err != nil {
			return nil, err
		}
	}
	return func(row, column int) value.Value { return columns[column].value(row) }, nil
}
