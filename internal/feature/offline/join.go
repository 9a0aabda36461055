package offline

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// joiner is the state of one join.
type joiner struct {
	from     Spine
	spine    array.RecordReader // nil until the views are read
	views    []View
	opts     Options
	disk     *disk
	schema   *arrow.Schema
	timeAt   int
	stages   []*stage
	stats    []Stats
	external bool
	spilled  *spill // the spine, when a view is external
	give     func() // the memory back
}

// stage is one view, ready to answer. Exactly one of index and external is set.
type stage struct {
	view     *View
	keyAt    []int // the spine's key columns
	ttl      int64
	index    *index
	external *external
}

func (j *joiner) start(ctx context.Context) (*Result, error) {
	// 1. Read the views.
	j.disk = newDisk(j.opts)
	j.stats = make([]Stats, len(j.views))
	left := j.opts.Memory
	for i := range j.views {
		s, err := newStage(&j.views[i])
		if err != nil {
			return nil, err
		}
		j.stages = append(j.stages, s)
		j.stats[i].View = s.view.Name
		used, err := s.load(ctx, j.disk, left, j.sorterBudget(), &j.stats[i])
		if err != nil {
			return nil, fault.Wrap(err, "reading view %s", s.view.Name)
		}
		left = max(left-used, 0)
		j.external = j.external || s.external != nil
	}

	// 2. Look at the spine.
	var err error
	if j.spine, err = j.from.Open(ctx); err != nil {
		return nil, fault.Wrap(err, "reading the spine")
	}
	schema := j.spine.Schema()
	if j.timeAt, err = columnIndex(schema, "the spine", j.from.Timestamp, value.Timestamp); err != nil {
		return nil, err
	}
	for _, s := range j.stages {
		if err := s.findKeys(schema); err != nil {
			return nil, fault.Wrap(err, "joining view %s", s.view.Name)
		}
	}
	if j.schema, err = outputSchema(schema, j.views); err != nil {
		return nil, err
	}

	// 3. Join.
	if !j.external {
		return j.parallel(ctx), nil
	}
	if err := j.spillSpine(ctx); err != nil {
		return nil, err
	}
	for i, s := range j.stages {
		if s.external == nil {
			continue
		}
		if err := s.external.merge(ctx, s.ttl, &j.stats[i]); err != nil {
			return nil, err
		}
	}
	return j.sequential(ctx)
}

// sorterBudget is a sorter's share: at most three per view live at once.
func (j *joiner) sorterBudget() int64 { return j.opts.Memory / int64(3*len(j.views)+1) }

func newStage(v *View) (*stage, error) {
	if len(v.Keys) == 0 || len(v.SpineKeys) != len(v.Keys) {
		return nil, fault.New(fault.Invalid, "view %s has %d join keys, and %d spine columns are given", v.Name, len(v.Keys), len(v.SpineKeys))
	}
	if len(v.Features) > value.MaxFeatures {
		return nil, fault.New(fault.TooLarge, "view %s has %d features, over the limit of %d", v.Name, len(v.Features), value.MaxFeatures)
	}
	if w := v.Windows; w != nil && (len(w.Select) != len(w.Plan.Features()) || len(v.Features) != len(w.Plan.Inputs())) {
		return nil, fault.New(fault.Internal, "view %s does not match the inputs and outputs of its windows", v.Name)
	}
	if v.TTL < 0 {
		return nil, fault.New(fault.Invalid, "view %s has a negative TTL", v.Name)
	}
	s := &stage{view: v, ttl: v.TTL.Microseconds()}
	if v.TTL > 0 && s.ttl == 0 {
		return nil, fault.New(fault.Invalid, "the TTL of view %s is less than a microsecond", v.Name)
	}
	for _, k := range v.Keys {
		if !k.Type.Keys() {
			return nil, fault.New(fault.Invalid, "key %q of view %s has the type %s, which cannot be a join key", k.Name, v.Name, k.Type)
		}
	}
	return s, nil
}

// findKeys finds the view's keys among the spine's columns.
func (s *stage) findKeys(spine *arrow.Schema) error {
	for i, k := range s.view.Keys {
		at, err := columnIndex(spine, "the spine", s.view.SpineKeys[i], k.Type)
		if err != nil {
			return err
		}
		s.keyAt = append(s.keyAt, at)
	}
	return nil
}

// load reads the view whole, in memory up to limit bytes. It returns the bytes
// that stay in use.
func (s *stage) load(ctx context.Context, d *disk, limit, sorterBudget int64, stats *Stats) (int64, error) {
	rows, err := s.view.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer rows.Release()
	columns, err := s.view.resolve(rows.Schema())
	if err != nil {
		return 0, err
	}
	b := newBuilder(s.view, stats)
	defer b.release()
	if s.view.Windows != nil { // windows are slid over sorted rows
		s.external = newExternal(s.view, d, sorterBudget)
	}
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		p, err := columns.read(s.view, rows.RecordBatch())
		if err != nil {
			return 0, err
		}
		if s.external == nil {
			size := batchBytes(p.batch)
			if fits := b.bytes+size+int64(p.rows())*entryBytes <= limit && b.count+p.rows() <= maxIndexRows; fits {
				b.add(p, size)
				continue
			}
			stats.Spilled = true
			s.external = newExternal(s.view, d, sorterBudget)
			if err := s.external.takeOver(ctx, b); err != nil {
				return 0, err
			}
		}
		if err := s.external.add(ctx, p, stats); err != nil {
			return 0, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if s.external != nil {
		stats.Spilled = stats.Spilled || len(s.external.rows.runs) > 0
		return 3 * sorterBudget, nil
	}
	s.index, err = b.build()
	if err != nil {
		return 0, err
	}
	return s.index.bytes(), nil
}

// batchBytes estimates what a batch holds; a slice of something larger counts as
// what it shows.
func batchBytes(batch arrow.RecordBatch) int64 {
	total := int64(0)
	for _, c := range batch.Columns() {
		switch c := c.(type) {
		case *array.String:
			if offsets := c.ValueOffsets(); len(offsets) > 0 {
				total += int64(offsets[len(offsets)-1]-offsets[0]) + 4*int64(len(offsets))
			}
		case array.ListLike:
			total += listBytes(c)
		default:
			if w, fixed := c.DataType().(arrow.FixedWidthDataType); fixed {
				total += int64(c.Len()) * int64(w.BitWidth()+8) / 8
				continue
			}
			total += int64(c.Data().SizeInBytes()) //nolint:gosec // a size in memory
		}
	}
	return total
}

// listBytes estimates what the lists of a column show.
func listBytes(l array.ListLike) int64 {
	if l.Len() == 0 || l.ListValues().Len() == 0 {
		return 0
	}
	shown := int64(0)
	for i := range l.Len() {
		from, to := l.ValueOffsets(i)
		shown += to - from
	}
	all := int64(l.ListValues().Data().SizeInBytes()) //nolint:gosec // a size in memory
	return 8*int64(l.Len()) + all*shown/int64(l.ListValues().Len())
}

// spineBatch is what the stages need of a batch of the spine.
func (j *joiner) times(batch arrow.RecordBatch, before int64) ([]int64, error) {
	c, err := read(j.from.Timestamp, batch.Column(j.timeAt), value.Timestamp)
	if err != nil {
		return nil, err
	}
	if c.valid != nil {
		for row := range int(batch.NumRows()) {
			if c.null(row) {
				return nil, fault.New(fault.Invalid, "row %d of the spine has no time in column %q", before+int64(row)+1, j.from.Timestamp).
					WithHint("Remove rows without a time from the spine.")
			}
		}
	}
	return c.ints, nil
}

func (s *stage) keys(batch arrow.RecordBatch) ([]column, error) {
	keys := make([]column, len(s.keyAt))
	for i, at := range s.keyAt {
		var err error
		if keys[i], err = read(s.view.SpineKeys[i], batch.Column(at), s.view.Keys[i].Type); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// maxBatch bounds the rows of an output batch.
const maxBatch = 64 << 10

// Result is the joined stream: an array.RecordReader. Next, RecordBatch and Err
// are for one goroutine. A batch is valid until the next call of Next unless it
// is retained.
type Result struct {
	schema  *arrow.Schema
	stats   []Stats
	refs    atomic.Int64
	next    func() (arrow.RecordBatch, error) // io.EOF at the end
	stop    func()
	current arrow.RecordBatch
	err     error
}

var _ array.RecordReader = (*Result)(nil)

// Schema is the spine's schema with the features appended.
func (r *Result) Schema() *arrow.Schema { return r.schema }

// Stats returns the row counts of each view.
func (r *Result) Stats() []Stats { return r.stats }

// Retain adds a reference.
func (r *Result) Retain() { r.refs.Add(1) }

// Release drops a reference; the last one ends the join and frees everything.
func (r *Result) Release() {
	if r.refs.Add(-1) > 0 {
		return
	}
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
	r.stop()
}

// Next moves to the next batch.
func (r *Result) Next() bool {
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
	if r.err != nil {
		return false
	}
	batch, err := r.next()
	if err != nil {
		r.err = err
		return false
	}
	r.current = batch
	return true
}

// RecordBatch is the current batch.
func (r *Result) RecordBatch() arrow.RecordBatch { return r.current }

// Record is RecordBatch.
//
// Deprecated: the interface demands it.
func (r *Result) Record() arrow.RecordBatch { return r.current }

// Err is what ended the stream early.
func (r *Result) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// outcome is a joined batch or what prevented it.
type outcome struct {
	batch arrow.RecordBatch
	err   error
}

// job is a batch of the spine on its way through a worker.
type job struct {
	batch  arrow.RecordBatch
	before int64
	done   chan outcome // holds one
}

// parallel joins with in-memory indexes: a goroutine reads the spine, workers
// join batches, and the result takes them in the order in which they were read.
func (j *joiner) parallel(ctx context.Context) *Result {
	ctx, cancel := context.WithCancel(ctx)
	work := make(chan job)
	order := make(chan chan outcome, j.opts.Workers) // bounds the batches in flight
	var running sync.WaitGroup
	running.Go(func() {
		defer close(order)
		defer close(work)
		err := lifecycle.Recover(func() error { return j.feed(ctx, work, order) })
		if err == nil {
			return
		}
		failed := make(chan outcome, 1)
		failed <- outcome{err: fault.Wrap(err, "reading the spine")}
		select {
		case order <- failed:
		case <-ctx.Done():
		}
	})
	for range j.opts.Workers {
		running.Go(func() {
			w := newWorker(j)
			for next := range work {
				var o outcome
				// Rows come from other processes: what is odd in them must not end
				// this one.
				o.err = lifecycle.Recover(func() (err error) {
					o.batch, err = w.join(next.batch, next.before)
					return err
				})
				next.batch.Release()
				next.done <- o
			}
		})
	}
	r := &Result{schema: j.schema, stats: j.stats}
	r.refs.Store(1)
	r.next = func() (arrow.RecordBatch, error) {
		done, open := <-order
		if !open {
			// A cancelled reader may just have stopped.
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
		o := <-done
		return o.batch, o.err
	}
	r.stop = func() {
		cancel()
		for done := range order {
			if o := <-done; o.batch != nil {
				o.batch.Release()
			}
		}
		running.Wait()
		j.close()
	}
	return r
}

// feed cuts the spine into jobs until its end, an error or the end of ctx.
func (j *joiner) feed(ctx context.Context, work chan<- job, order chan<- chan outcome) error {
	before := int64(0)
	for j.spine.Next() {
		batch := j.spine.RecordBatch()
		for from := int64(0); from < batch.NumRows(); from += maxBatch {
			next := job{batch: batch.NewSlice(from, min(from+maxBatch, batch.NumRows())), before: before, done: make(chan outcome, 1)}
			select {
			case order <- next.done:
			case <-ctx.Done():
				next.batch.Release()
				return nil
			}
			before += next.batch.NumRows()
			work <- next // a worker always comes back
		}
	}
	return j.spine.Err()
}

func (j *joiner) close() {
	if j.spine != nil {
		j.spine.Release()
		j.spine = nil
	}
	for _, s := range j.stages {
		if s.external != nil {
			s.external.close()
		}
	}
	if j.spilled != nil {
		_ = j.spilled.Close() // a nameless temporary file
		j.spilled = nil
	}
	j.give()
}

// worker joins batches with its own hints.
type worker struct {
	j       *joiner
	probers []*prober // nil for external stages
	at      []int32
	mem     memory.Allocator
}

func newWorker(j *joiner) *worker {
	w := &worker{j: j, mem: memory.DefaultAllocator}
	for _, s := range j.stages {
		var p *prober
		if s.index != nil {
			p = newProber(s.index)
		}
		w.probers = append(w.probers, p)
	}
	return w
}

// join makes the output batch for a batch of the spine that "before" rows
// precede.
func (w *worker) join(batch arrow.RecordBatch, before int64) (arrow.RecordBatch, error) {
	times, err := w.j.times(batch, before)
	if err != nil {
		return nil, err
	}
	n := int(batch.NumRows())
	columns := append(make([]arrow.Array, 0, w.j.schema.NumFields()), batch.Columns()...)
	var made []arrow.Array
	defer func() {
		for _, a := range made {
			a.Release()
		}
	}()
	if cap(w.at) < n {
		w.at = make([]int32, n)
	}
	for i, s := range w.j.stages {
		if s.external != nil {
			arrays, err := s.external.take(w.mem, before, n)
			made = append(made, arrays...)
			if err != nil {
				return nil, err
			}
			columns = append(columns, arrays...)
			continue
		}
		keys, err := s.keys(batch)
		if err != nil {
			return nil, err
		}
		w.probers[i].probe(keys, times, s.ttl, w.at[:n])
		for c := range s.index.columns {
			a, err := s.index.columns[c].take(w.mem, w.at[:n])
			if err != nil {
				return nil, err
			}
			made = append(made, a)
			columns = append(columns, a)
		}
	}
	return array.NewRecordBatch(w.j.schema, columns, batch.NumRows()), nil
}

// spillSpine reads the spine whole: its rows into a temporary file, and each
// row's key, time and number into the sorters of the external stages.
func (j *joiner) spillSpine(ctx context.Context) error {
	var err error
	if j.spilled, err = j.disk.create(); err != nil {
		return err
	}
	out := ipc.NewWriter(j.spilled, ipc.WithSchema(j.spine.Schema()))
	before := int64(0)
	for j.spine.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		batch := j.spine.RecordBatch()
		times, err := j.times(batch, before)
		if err != nil {
			return err
		}
		for _, s := range j.stages {
			if s.external == nil {
				continue
			}
			keys, err := s.keys(batch)
			if err != nil {
				return err
			}
			if err := s.external.ask(keys, times, before); err != nil {
				return err
			}
		}
		for from := int64(0); from < batch.NumRows(); from += maxBatch {
			slice := batch.NewSlice(from, min(from+maxBatch, batch.NumRows()))
			err := out.Write(slice)
			slice.Release()
			if err != nil {
				return fault.Wrap(err, "writing the spine to a temporary file")
			}
		}
		before += batch.NumRows()
	}
	if err := j.spine.Err(); err != nil {
		return fault.Wrap(err, "reading the spine")
	}
	return out.Close()
}

// sequential joins from the temporary files.
func (j *joiner) sequential(ctx context.Context) (*Result, error) {
	in, err := j.spilled.read()
	if err != nil {
		return nil, err
	}
	spine, err := ipc.NewReader(in)
	if err != nil {
		return nil, fault.Wrap(err, "reading the spine from its temporary file")
	}
	w := newWorker(j)
	before := int64(0)
	r := &Result{schema: j.schema, stats: j.stats}
	r.refs.Store(1)
	r.next = func() (arrow.RecordBatch, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !spine.Next() {
			if err := spine.Err(); err != nil {
				return nil, fault.Wrap(err, "reading the spine from its temporary file")
			}
			return nil, io.EOF
		}
		batch, err := w.join(spine.RecordBatch(), before)
		before += spine.RecordBatch().NumRows()
		return batch, err
	}
	r.stop = func() {
		spine.Release()
		j.close()
	}
	return r, nil
}
