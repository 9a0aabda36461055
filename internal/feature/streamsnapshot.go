package feature

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// maxSnapshotTries bounds how often a snapshot is tried that others get in the way of.
const maxSnapshotTries = 3

// newest is the newest accepted version of a stream's dataset; the first one has no
// rows.
func (s *Streams) newest(ctx context.Context, p project.Name, dataset string) (DatasetVersion, error) {
	v, err := s.cfg.Data.Resolve(system(ctx), p, dataset)
	if !fault.Is(err, fault.NotFound) {
		return v, err
	}
	schema, err := s.cfg.Data.Columns(system(ctx), p, dataset)
	if err != nil {
		return v, err
	}
	none, err := array.NewRecordReader(schema, nil)
	if err != nil {
		return v, err
	}
	defer none.Release()
	return s.cfg.Data.Append(system(ctx), Appended{
		Project: p, Dataset: dataset, Rows: none, Text: "empty version that precedes the first event of the stream",
		Then: func(context.Context, *store.Tx, DatasetVersion) error { return nil },
	})
}

// snapshotStream makes a version of the dataset that has all events which the log has now. When
// it has them already, nothing happens.
func (s *Streams) snapshotStream(ctx context.Context, p project.Name, dataset string) error {
	free, err := s.snapshotting.Take(ctx, share.Owner{Project: string(p)})
	if err != nil {
		return err
	}
	defer free()
	for range maxSnapshotTries {
		if err = s.trySnapshot(system(ctx), p, dataset); !fault.Is(err, fault.Conflict) {
			break
		}
	}
	return fault.Wrap(err, "taking a snapshot of the stream into dataset %s", dataset)
}

func (s *Streams) trySnapshot(ctx context.Context, p project.Name, dataset string) error {
	base, err := s.newest(ctx, p, dataset)
	if err != nil {
		return err
	}
	var st Stream
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		st, err = s.streamStore.Stream(ctx, tx, p, dataset)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || st.Head == st.SnapshotSeq {
		return err
	}
	l, err := s.openLog(ctx, View{Header: Header{Project: p}, ViewSpec: ViewSpec{Source: Source{Dataset: dataset}}})
	if err != nil {
		return err
	}
	before, err := s.cfg.Data.Open(ctx, p, base.Ref, nil)
	if err != nil {
		return err
	}
	defer before.Release()
	rows := &appended{ctx: ctx, s: s, l: l, schema: mergeSchemas(before.Schema(), l.schema), base: before, at: st.SnapshotSeq, until: st.Head}
	rows.refs.Add(1)
	defer rows.Release()
	_, err = s.cfg.Data.Append(ctx, Appended{
		Project: p, Dataset: dataset, Base: base.Ref, Rows: rows,
		Text: fmt.Sprintf("events of the stream: records %d to %d on top of %s", st.SnapshotSeq+1, st.Head, base.Ref),
		Then: func(ctx context.Context, tx *store.Tx, v DatasetVersion) error {
			now, err := s.streamStore.Stream(ctx, tx, p, dataset)
			if err != nil {
				return err
			}
			if now.SnapshotSeq != st.SnapshotSeq {
				return fault.New(fault.Conflict, "another server took the snapshot")
			}
			now.SnapshotSeq, now.Version, now.SnapshotAt = st.Head, v.Ref, store.At(s.now()).Time()
			if err := s.streamStore.PutStream(ctx, tx, now); err != nil {
				return err
			}
			return audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionPush), Object: "dataset " + v.Ref,
				Detail: map[string]any{"records_from": st.SnapshotSeq + 1, "records_to": st.Head},
			})
		},
	})
	return err
}

// position is the record of the log up to which a version of a view's dataset has
// the events. Error: fault.Conflict when the version is not the newest any more.
func (s *Streams) position(ctx context.Context, tx *store.Tx, p project.Name, dataset, version string) (int64, error) {
	st, err := s.streamStore.Stream(ctx, tx, p, dataset)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	if err != nil || st.Version == "" || st.Version == version {
		return st.SnapshotSeq, err
	}
	_, last, err := naming.SplitRef(st.Version)
	if err != nil {
		return 0, err
	}
	_, number, err := naming.SplitRef(version)
	if err == nil && number < last {
		return 0, fault.New(fault.Conflict, "%s was superseded by %s during the operation", version, st.Version).WithHint("Try again.")
	}
	return st.SnapshotSeq, err // others made a newer one, behind which the events will be
}

// mergeSchemas is a schema and the columns that another one has more.
func mergeSchemas(a, b *arrow.Schema) *arrow.Schema {
	fields := append([]arrow.Field(nil), a.Fields()...)
	for _, f := range b.Fields() {
		if len(a.FieldIndices(f.Name)) == 0 {
			fields = append(fields, f)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// conform gives a batch the columns of a schema; those that it does not have are
// null. It takes the batch over. Error: fault.Conflict for a column of another type.
func conform(b arrow.RecordBatch, schema *arrow.Schema) (arrow.RecordBatch, error) {
	defer b.Release()
	columns := make([]arrow.Array, schema.NumFields())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, f := range schema.Fields() {
		at := b.Schema().FieldIndices(f.Name)
		if len(at) == 0 {
			columns[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, int(b.NumRows()))
			continue
		}
		c := b.Column(at[0])
		if !arrow.TypeEqual(c.DataType(), f.Type) {
			return nil, fault.New(fault.Invalid, "column %q is %s, and pending events have %s", f.Name, f.Type, c.DataType()).
				WithHint("Keep the previous type until the pending events are in the dataset.")
		}
		c.Retain()
		columns[i] = c
	}
	return array.NewRecordBatch(schema, columns, b.NumRows()), nil
}

// appended is the rows of a version and then those of records, read page by page.
type appended struct {
	ctx       context.Context //nolint:containedctx // of one reading
	s         *Streams
	l         *eventLog
	schema    *arrow.Schema
	base      array.RecordReader // nil at its end
	at, until int64
	page      []Record
	rec       arrow.RecordBatch
	err       error
	refs      atomic.Int64
}

func (a *appended) Retain() { a.refs.Add(1) }

func (a *appended) Release() {
	if a.refs.Add(-1) == 0 && a.rec != nil {
		a.rec.Release()
		a.rec = nil
	}
}

func (a *appended) Schema() *arrow.Schema          { return a.schema }
func (a *appended) RecordBatch() arrow.RecordBatch { return a.rec }
func (a *appended) Record() arrow.RecordBatch      { return a.rec }
func (a *appended) Err() error                     { return a.err }

func (a *appended) Next() bool {
	if a.err != nil {
		return false
	}
	if a.rec != nil {
		a.rec.Release()
		a.rec = nil
	}
	var rec arrow.RecordBatch
	rec, a.err = a.next()
	if rec != nil && a.err == nil {
		a.rec, a.err = conform(rec, a.schema)
	}
	return a.rec != nil && a.err == nil
}

func (a *appended) next() (arrow.RecordBatch, error) {
	if a.base != nil {
		if a.base.Next() {
			rec := a.base.RecordBatch()
			rec.Retain()
			return rec, nil
		}
		if err := a.base.Err(); err != nil {
			return nil, err
		}
		a.base = nil
	}
	if len(a.page) == 0 {
		if a.at == a.until {
			return nil, nil //nolint:nilnil // the end
		}
		err := a.s.cfg.DB.View(a.ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			a.page, err = a.s.streamStore.Records(ctx, tx, a.l.project, a.l.dataset, a.at, a.until, pageRecords)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(a.page) == 0 || a.page[0].Seq != a.at+1 {
		return nil, fault.New(fault.Internal, "%s of the stream of %s is missing", recordPlace(a.at+1), a.l.dataset)
	}
	r := a.page[0]
	a.page, a.at = a.page[1:], r.Seq
	return a.l.decode(r)
}
