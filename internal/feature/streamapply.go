package feature

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	streamInterval = time.Second      // between looks for events of other processes
	streamTimeout  = 30 * time.Minute // of a look
)

type streamName struct {
	project project.Name
	dataset string
}

// streamProgress is what this process knows of a stream that it follows.
type streamProgress struct {
	log          Stream           // as it was when it was last looked at
	views        map[string]int64 // where views are, by ref
	trouble      string           // why it does not go on; empty when it does
	starved      string           // why its source gives nothing; empty when it does
	nextSnapshot time.Time        // not before
}

// ProcessStreamsOnce applies what the logs have to the views that are online, makes the dataset
// versions that are due, reads the sources, and trims; the background loop calls it, and tests do.
// While another process does it, nothing happens.
func (s *Streams) ProcessStreamsOnce(ctx context.Context) error {
	err := s.withStreamLease(ctx, s.processStreams)
	if errors.Is(err, errElsewhere) {
		return nil
	}
	return err
}

// withStreamLease runs fn while no other process follows streams.
func (s *Streams) withStreamLease(ctx context.Context, fn func(ctx context.Context) error) error {
	if !s.cfg.DB.Shared() {
		return fn(ctx)
	}
	lease, err := s.cfg.DB.Lease(ctx, "feature.streams", strconv.FormatUint(rand.Uint64(), 36), leaseTime) //nolint:gosec // a name, no secret
	if fault.Is(err, fault.Conflict) {
		return errElsewhere
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, fn)
}

// reserveApply keeps this process from applying events to a view's online rows; release is nil
// while it does.
func (s *Streams) reserveApply(v View) (release func()) {
	return s.occupy(v.Project, v.Ref()+" folding")
}

func (s *Streams) processStreams(ctx context.Context) error {
	var all []Stream
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.streamStore.Streams(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, st := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := s.processStream(ctx, st)
		s.recordOutcome(st, err)
		failed = append(failed, fault.Wrap(err, "the stream of dataset %s in project %s", st.Dataset, st.Project))
	}
	return errors.Join(failed...)
}

// logOnChange makes a loop of a round whose streams fail on their own: what is wrong with
// one is logged when it changes, and slows down no other.
func (s *Streams) logOnChange(round func(ctx context.Context) error) func(ctx context.Context) error {
	var told string
	return func(ctx context.Context) error {
		text := ""
		if err := round(system(ctx)); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != told && text != "" {
			s.log.WarnContext(ctx, "applying a stream failed", slog.String("error", text))
		}
		told = text
		return nil
	}
}

// recordOutcome remembers why a stream does not go on, and wakes who waits for it.
func (s *Streams) recordOutcome(st Stream, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.stream(st)
	if f.trouble = ""; err != nil {
		f.trouble = err.Error()
	}
	close(s.applied)
	s.applied = make(chan struct{})
}

// stream is what is known of a stream; s.mu is held.
func (s *Streams) stream(st Stream) *streamProgress {
	name := streamName{st.Project, st.Dataset}
	f := s.streams[name]
	if f == nil {
		f = &streamProgress{views: map[string]int64{}}
		s.streams[name] = f
	}
	return f
}

// streamViews are the view versions that are online and follow a dataset's events.
func (s *Streams) streamViews(ctx context.Context, st Stream) (views []View, online []Online, runs []Run, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		views, online, runs = nil, nil, nil
		all, err := s.onlineStore.Onlines(ctx, tx, st.Project)
		if err != nil {
			return err
		}
		for _, o := range all {
			v, err := s.versionOf(ctx, tx, st, o.View, o.Version)
			if err != nil {
				return err
			}
			if v != nil {
				views, online = append(views, *v), append(online, o)
			}
		}
		open, err := s.runStore.OpenRuns(ctx, tx, openRuns)
		for _, r := range open {
			if v, err := s.versionOf(ctx, tx, st, r.View, r.Version); err != nil {
				return err
			} else if v != nil && r.Project == st.Project {
				runs = append(runs, r)
			}
		}
		return err
	})
	return views, online, runs, err
}

// versionOf is a view version if it follows the stream; else nil.
func (s *Streams) versionOf(ctx context.Context, tx *store.Tx, st Stream, name string, version int) (*View, error) {
	d, err := s.definitionStore.Definition(ctx, tx, st.Project, ViewKind, name, version)
	if fault.Is(err, fault.NotFound) {
		return nil, nil //nolint:nilnil // of another project
	}
	if err != nil {
		return nil, err
	}
	v, err := d.view()
	if err != nil || v.Source.Stream == nil || v.Source.Dataset != st.Dataset {
		return nil, err
	}
	return &v, nil
}

// processStream does what is to do for one stream: one view that cannot go on holds
// up no other.
func (s *Streams) processStream(ctx context.Context, st Stream) error {
	views, onlines, runs, err := s.streamViews(ctx, st)
	if err != nil {
		return err
	}
	var failed []error
	keep := st.SnapshotSeq // what no view needs any more
	at := map[string]int64{}
	for i, v := range views {
		position, found, err := s.applyToView(ctx, v, onlines[i].table())
		switch {
		case fault.Is(err, fault.Gone): // its key was destroyed: nobody reads it
			continue
		case err != nil:
			failed = append(failed, fault.Wrap(err, "feature view %s", v.Ref()))
		case !found:
			continue // it is being materialised, or its run failed
		case position < st.Head: // it goes on when the others had their turn
			s.streamProcessor.Wake()
		}
		at[v.Ref()] = position
		keep = min(keep, position)
	}
	for _, r := range runs {
		keep = min(keep, r.Position)
	}
	s.mu.Lock()
	f := s.stream(st)
	f.log, f.views = st, at
	due := !s.now().Before(f.nextSnapshot)
	s.mu.Unlock()
	if due && st.Head > st.SnapshotSeq && (st.Bytes > s.cfg.StreamBytes/4 || s.now().Sub(st.SnapshotAt) >= s.cfg.SnapshotInterval) {
		if err := s.snapshotStream(ctx, st.Project, st.Dataset); err != nil {
			failed = append(failed, err)
			s.mu.Lock()
			f.nextSnapshot = s.now().Add(time.Minute)
			s.mu.Unlock()
		}
	}
	if err := s.trim(ctx, st, keep); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// applyToView applies events unless a person's rows are being removed from the view.
func (s *Streams) applyToView(ctx context.Context, v View, table online.Table) (position int64, found bool, err error) {
	release := s.reserveApply(v)
	if release == nil {
		return 0, true, fault.New(fault.Unavailable, "rows of a person are being removed")
	}
	defer release()
	return s.applyEvents(ctx, v, table, applyPages)
}

// trim removes records that are in the dataset and in every view.
func (s *Streams) trim(ctx context.Context, st Stream, until int64) error {
	if until < st.First {
		return nil
	}
	return s.cfg.DB.Update(ctx, string(st.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.streamStore.Stream(ctx, tx, st.Project, st.Dataset)
		if err != nil || now.First > until {
			return err
		}
		freed, err := s.streamStore.TrimRecords(ctx, tx, st.Project, st.Dataset, until)
		if err != nil {
			return err
		}
		now.First, now.Bytes = until+1, now.Bytes-freed
		return s.streamStore.PutStream(ctx, tx, now)
	})
}

// applyEvents brings a table from where it is towards the head of the log, by so many pages.
// found is false when nothing says where it is: it is not filled yet. Two must not write
// one table.
func (s *Streams) applyEvents(ctx context.Context, v View, table online.Table, pages int) (position int64, found bool, err error) {
	position, found, err = s.cfg.Online.Position(ctx, table)
	if err != nil || !found {
		return position, found, err
	}
	var l *eventLog
	for range pages {
		records, err := s.records(ctx, v, position)
		if err != nil || len(records) == 0 {
			return position, true, err
		}
		if l == nil {
			if l, err = s.openLog(ctx, v); err != nil {
				return position, true, err
			}
			if err := s.tightenLabels(ctx, l); err != nil {
				return position, true, err
			}
		}
		rows, err := s.rowsToWrite(ctx, l, table, records)
		if err != nil {
			return position, true, err
		}
		next := records[len(records)-1].Seq
		// Before the place moves on: what is not copied now is not applied again.
		if err := s.rows.copyApplied(ctx, v, table, rows); err != nil {
			return position, true, err
		}
		if err := s.cfg.Online.WriteUpTo(ctx, table, rows, position, next); err != nil {
			return position, true, err
		}
		position = next
	}
	return position, true, nil
}

// tightenLabels gives the online rows of a view the labels of the events that come.
func (s *Streams) tightenLabels(ctx context.Context, l *eventLog) error {
	v := l.view
	var o Online
	changed := func(ctx context.Context, tx *store.Tx) (bool, error) {
		var err error
		if o, err = s.onlineStore.Online(ctx, tx, v.Project, v.Name, v.Version); err != nil {
			return false, err
		}
		label, err := residency.Derive(
			residency.Parent{Name: "the online rows of " + v.Ref(), Label: o.Residency},
			residency.Parent{Name: "dataset " + l.newest.Ref, Label: l.newest.Residency})
		if err != nil {
			return false, err
		}
		class := project.Strictest(o.Classification, l.newest.Classification)
		same := class == o.Classification && slices.Equal(label.Zones(), o.Residency.Zones())
		o.Residency, o.Classification = label, class
		return !same, nil
	}
	var work bool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		work, err = changed(ctx, tx)
		return err
	})
	if err != nil || !work {
		return err
	}
	if err := s.pass(ctx, ActionPush, v.Project, v.Ref(), o.Residency); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error {
		if work, err := changed(ctx, tx); err != nil || !work {
			return err
		}
		tx.OnCommit(s.plans.forget)
		return s.onlineStore.PutOnline(ctx, tx, o)
	})
}

// records are the next ones behind a position.
func (s *Streams) records(ctx context.Context, v View, after int64) (records []Record, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		st, err := s.streamStore.Stream(ctx, tx, v.Project, v.Source.Dataset)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if after+1 < st.First || after > st.Head {
			return fault.New(fault.Conflict, "%s is at record %d of the log, which contains records %d to %d", v.Ref(), after, st.First, st.Head).
				WithHint("Materialise it again: falaj feature materialise %s.", v.Ref())
		}
		records, err = s.streamStore.Records(ctx, tx, v.Project, v.Source.Dataset, after, st.Head, pageRecords)
		return err
	})
	return records, err
}

// rowsToWrite makes the rows to write for records. They are read as a backfill reads
// the dataset, so that both see the same rows.
func (s *Streams) rowsToWrite(ctx context.Context, l *eventLog, table online.Table, records []Record) ([]online.Row, error) {
	v := l.view
	view := s.offline(v, nil, nil)
	view.Open = func(context.Context) (array.RecordReader, error) { return l.reader(records) }
	sorted, err := offline.Sort(ctx, view, offline.Always(), s.cfg.Join)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sorted.Close() }() // nameless temporary files
	reader, err := s.cfg.Online.Reader(ctx, table)
	if err != nil {
		return nil, err
	}
	f := rowBuilder{ctx: ctx, view: v, reader: reader}
	if p := v.windows(); p != nil {
		f.windows = true
		for _, in := range p.Inputs() {
			f.types = append(f.types, in.Type)
		}
	}
	for sorted.Next() {
		if err := f.add(sorted.Row()); err != nil {
			return nil, err
		}
	}
	if err := sorted.Err(); err != nil {
		return nil, err
	}
	if err := f.flush(); err != nil {
		return nil, err
	}
	return f.rows, nil
}

// reader gives the rows of records.
func (l *eventLog) reader(records []Record) (array.RecordReader, error) {
	batches := make([]arrow.RecordBatch, 0, len(records))
	defer func() {
		for _, b := range batches {
			b.Release()
		}
	}()
	for _, r := range records {
		b, err := l.decode(r)
		if err != nil {
			return nil, err
		}
		batches = append(batches, b)
		if b, err = conform(b, l.schema); err != nil {
			return nil, fault.Wrap(err, "%s of the stream of %s", recordPlace(r.Seq), l.dataset)
		}
		batches[len(batches)-1] = b
	}
	return array.NewRecordReader(l.schema, batches)
}

// rowBuilder collects the rows of an entity, and what becomes of them.
type rowBuilder struct {
	ctx    context.Context //nolint:containedctx // of one batch
	view   View
	reader *online.Reader
	// windows is of a view with aggregations, types those of its inputs; a count of
	// rows has none.
	windows bool
	types   []value.Type
	key     []byte
	events  []window.Row
	rows    []online.Row
}

func (f *rowBuilder) add(r offline.Row) error {
	if !f.windows {
		return f.newer(online.Row{Key: bytes.Clone(r.Key), Event: r.Event, Created: r.Created, Packed: bytes.Clone(r.Packed)})
	}
	if !bytes.Equal(r.Key, f.key) {
		if err := f.flush(); err != nil {
			return err
		}
		f.key = bytes.Clone(r.Key)
	}
	e := window.Row{Event: r.Event, Created: r.Created, Values: make([]value.Value, len(f.types))}
	f.events = append(f.events, e)
	return value.DecodeRow(bytes.Clone(r.Packed), f.types, e.Values)
}

// newer takes a row unless the one that is there of the same times has the greater
// bytes: the order in which events came does not matter.
func (f *rowBuilder) newer(r online.Row) error {
	keep := true
	err := f.reader.Span(f.ctx, r.Key, r.Event, r.Event, func(_, created int64, packed []byte) (bool, error) {
		if created == r.Created {
			keep = bytes.Compare(packed, r.Packed) < 0
		}
		return created > r.Created, nil
	})
	if keep && err == nil {
		f.rows = append(f.rows, r)
	}
	return err
}

func (f *rowBuilder) flush() error {
	if len(f.events) == 0 {
		return nil
	}
	rows, err := AggregateEvents(f.ctx, f.view, f.reader, f.key, f.events)
	f.rows, f.events = append(f.rows, rows...), f.events[:0]
	return err
}

// awaitApplied waits until reads of a view find what the log had at a position.
func (s *Streams) awaitApplied(ctx context.Context, v View, position int64, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		s.mu.Lock()
		applied := s.applied
		f := s.streams[streamName{v.Project, v.Source.Dataset}]
		there := f != nil && f.views[v.Ref()] >= position && position > 0
		s.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		case <-applied:
		}
	}
}

// StreamGauge is what a stream is like, for metrics.
type StreamGauge struct {
	Stream
	Waiting int64 // records that the view that is furthest behind does not have
	Stuck   bool  // it does not go on
}

// Gauges are the streams that this process follows, as of its last round.
func (s *Streams) Gauges() []StreamGauge {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []StreamGauge
	for _, f := range s.streams {
		if f.log.Dataset == "" {
			continue
		}
		g := StreamGauge{Stream: f.log, Stuck: f.trouble+f.starved != ""}
		for _, at := range f.views {
			g.Waiting = max(g.Waiting, f.log.Head-at)
		}
		out = append(out, g)
	}
	return out
}

// StreamStatus is how a stream goes.
type StreamStatus struct {
	Stream
	View string `json:"view"`
	// Position is the record up to which the view has the events; −1 when it is not
	// online.
	Position int64 `json:"position"`
	// Behind is how long the oldest event that reads do not find has waited.
	Behind          time.Duration `json:"behind_ns,omitempty"`
	Waiting         int64         `json:"waiting"`           // records that the view does not have
	PendingSnapshot int64         `json:"uncut"`             // records that the dataset does not have
	DeadLetters     int           `json:"dead"`              // letters
	Limit           int64         `json:"limit_bytes"`       // of the log: it takes no more beyond
	Trouble         string        `json:"trouble,omitempty"` // why it does not go on
}

// StreamStatus returns the lag of a view behind the events. Needs feature.read.
func (s *Streams) StreamStatus(ctx context.Context, p project.Name, ref string) (StreamStatus, error) {
	if err := s.allow(ctx, ActionRead, p, ref); err != nil {
		return StreamStatus{}, err
	}
	v, err := s.streamed(ctx, p, ref)
	if err != nil {
		return StreamStatus{}, err
	}
	return s.statusOf(ctx, v)
}

func (s *Streams) statusOf(ctx context.Context, v View) (StreamStatus, error) {
	out := StreamStatus{View: v.Ref(), Position: -1, Limit: s.cfg.StreamBytes}
	var o Online
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		out.Stream, err = s.streamStore.Stream(ctx, tx, v.Project, v.Source.Dataset)
		if fault.Is(err, fault.NotFound) {
			out.Stream, err = Stream{Project: v.Project, Dataset: v.Source.Dataset, First: 1}, nil
		}
		if err != nil {
			return err
		}
		if out.DeadLetters, err = s.streamStore.CountDeadLetters(ctx, tx, v.Project, v.Source.Dataset); err != nil {
			return err
		}
		if o, err = s.onlineStore.Online(ctx, tx, v.Project, v.Name, v.Version); fault.Is(err, fault.NotFound) {
			o, err = Online{}, nil
		}
		return err
	})
	if err != nil {
		return out, err
	}
	out.PendingSnapshot = out.Head - out.SnapshotSeq
	s.mu.Lock()
	out.Trouble = cmp.Or(s.stream(out.Stream).trouble, s.stream(out.Stream).starved)
	s.mu.Unlock()
	if o.View == "" {
		return out, nil
	}
	at, found, err := s.cfg.Online.Look(ctx, o.table())
	if err != nil {
		out.Trouble = err.Error()
		return out, nil //nolint:nilerr // it is what the status says
	}
	if found {
		out.Position, out.Waiting = at, out.Head-at
		next, err := s.records(ctx, v, at)
		if err != nil {
			return out, err
		}
		if len(next) > 0 {
			out.Behind = s.now().Sub(next[0].At)
		}
	}
	return out, nil
}

// watermark is the time up to which a view that follows a stream has what was
// accepted; zero when it is not online.
func (s *Streams) watermark(ctx context.Context, v View) (time.Time, error) {
	now := s.now()
	st, err := s.statusOf(ctx, v)
	if err != nil || st.Position < 0 {
		return time.Time{}, err
	}
	return now.Add(-st.Behind).UTC(), nil
}
