package ingestion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/store"
)

// prefix is where a run's chunks are.
func (r Run) prefix() string {
	return fmt.Sprintf("projects/%s/datasets/%s/%s/", r.Project, r.Dataset, r.ID)
}

func (r Run) chunkPrefix(n int) string { return fmt.Sprintf("%schunk-%06d/", r.prefix(), n) }

func (r Run) chunk(n int) datafile.File {
	return datafile.File{Project: r.Project, Dataset: r.Dataset, Key: r.chunkPrefix(n) + "rows.parquet", Form: datafile.Enveloped}
}

// attempt takes a run up where it is and carries it to its end.
func (s *Service) attempt(ctx context.Context, r *Run) error {
	src, err := s.claim(ctx, r)
	if err != nil {
		return err
	}
	if r.Progress.Drop { // an erasure was broken off here
		if err := s.drop(ctx, r); err != nil {
			return err
		}
	}
	d, err := s.cfg.Datasets.Definitions.One(ctx, r.Project, r.Dataset)
	if err != nil {
		return err
	}
	if src.Revision != r.Progress.Revision && !r.Progress.Begun {
		// The source was changed since: read as it says now.
		r.Progress = Progress{Revision: src.Revision}
		if !r.Anew && src.Spec.Mode != source.Full {
			r.Progress.After, r.Progress.Base = src.Position, src.Version
		}
	}
	if src.Revision != r.Progress.Revision {
		return fault.New(fault.Conflict, "source %s was changed during the run", src.Name).WithHint("Start another run: falaj dataset ingest %s.", src.Name)
	}
	if r.Progress.Base > 0 { // a person may have been erased from it
		base, err := s.cfg.Datasets.Lineage.Standing(ctx, r.Project, dataset.Ref{Name: r.Dataset, Number: r.Progress.Base})
		if err != nil {
			return err
		}
		r.Progress.Base = base.Number
	}
	if !r.Progress.Read {
		if err := s.read(ctx, r, src, d); err != nil {
			return err
		}
	}
	return s.write(ctx, r, src, d)
}

// claim makes the run this attempt's.
func (s *Service) claim(ctx context.Context, r *Run) (src Source, err error) {
	before := r.Attempts
	r.Attempts++
	r.State, r.Error, r.Hint = Reading, "", ""
	if r.Progress.Read {
		r.State = Writing
	}
	if r.StartedAt.IsZero() {
		r.StartedAt = s.now()
	}
	err = s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if src, err = s.cfg.Store.Source(ctx, tx, r.Project, r.Source); err != nil {
			return err
		}
		return s.cfg.Store.UpdateRun(ctx, tx, *r, before)
	})
	if fault.Is(err, fault.Conflict) {
		return Source{}, errFenced
	}
	return src, err
}

// keep records a run's progress.
func (s *Service) keep(ctx context.Context, r *Run) error {
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.UpdateRun(ctx, tx, *r, r.Attempts)
	})
	s.tell()
	if fault.Is(err, fault.Conflict) {
		return errFenced
	}
	return err
}

// read brings what the source has into chunks.
func (s *Service) read(ctx context.Context, r *Run, src Source, d dataset.Dataset) error {
	if len(r.Progress.Chunks) > 0 && len(r.Progress.At) == 0 { // it cannot be taken up in the middle
		s.restart(r)
	}
	var secret map[string]secrets.Text
	if src.Spec.Secret != "" {
		var err error
		if secret, err = s.cfg.Secrets.Open(ctx, string(r.Project), src.Spec.Secret); err != nil {
			return err
		}
	}
	driver, err := s.driver(src.Spec)
	if err != nil {
		return err
	}
	req, err := s.request(ctx, src, d, r.Progress)
	if err != nil {
		return err
	}
	req.Secret = secret
	if err := driver.Check(req); err != nil { // hosts may be allowed no longer
		return err
	}
	guard := newWatchdog(ctx, s.cfg.Stall)
	defer guard.stop()
	in, err := driver.Open(guard.ctx, req)
	if err != nil {
		return guard.explain(err)
	}
	defer func() { _ = in.Close() }()
	until, err := s.seal(ctx, r.Project, r.Dataset, in.Until())
	if err != nil {
		return err
	}
	if in.Schema() == nil {
		r.Progress.Begun, r.Progress.Read, r.Progress.Until, r.State = true, true, until, Writing
		return s.keep(ctx, r)
	}
	schema, err := table.FromArrow(in.Schema())
	if err != nil {
		return err
	}
	if err := src.Spec.named(schema); err != nil {
		return err
	}
	if r.Progress.Begun && !sameSchema(schema, r.Progress.Schema) {
		s.restart(r)
		if err := s.keep(ctx, r); err != nil {
			return err
		}
		return fault.New(fault.Unavailable, "the columns of %s changed during the read; the run restarts from the beginning", src.What)
	}
	if !r.Progress.Begun {
		if err := s.fits(ctx, *r, src, schema); err != nil {
			return err
		}
		r.Progress.Begun, r.Progress.Schema, r.Progress.Until, r.Progress.Since = true, schema, until, s.now()
		if err := s.keep(ctx, r); err != nil {
			return err
		}
	}
	out := &chunkWriter{s: s, r: r}
	defer out.abort()
	pace := newPace(src.Spec.Rate.RowsPerSecond)
	for {
		guard.reset()
		rec, at, err := in.Next(guard.ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return guard.explain(err)
		}
		err = out.write(ctx, rec, at)
		n := rec.NumRows()
		rec.Release()
		if err != nil {
			return err
		}
		guard.pause()
		if err := pace.wait(ctx, n); err != nil {
			return err
		}
	}
	if e, ok := in.(source.Emptied); ok {
		if r.Empty = e.Empty(); r.Empty > 0 {
			s.cfg.Log.WarnContext(ctx, "skipped messages without a value", slog.String("source", src.Name), slog.String("project", string(r.Project)), slog.Int64("messages", r.Empty))
		}
	}
	r.Progress.Read, r.State = true, Writing
	return out.flush(ctx)
}

// named refuses rows that do not say which row is meant, or what happened to it.
func (s Spec) named(schema table.Schema) error {
	for _, name := range s.Key {
		if _, ok := schema.Column(name); !ok {
			return unnamed(name, "is in spec.key", schema)
		}
	}
	switch f, ok := schema.Column(s.Op); {
	case s.Op == "":
	case !ok:
		return unnamed(s.Op, "is spec.op", schema)
	case f.Type != table.String:
		return fault.New(fault.Invalid, "column %q, named by spec.op, is %s and must be text", s.Op, f.Type)
	}
	return nil
}

func unnamed(name, does string, schema table.Schema) error {
	return fault.New(fault.Invalid, "the source has no column %q, which %s", name, does).
		WithHint("The columns are %s. For messages, declare each column in the Dataset's spec.columns.", strings.Join(schema.Names(), ", "))
}

// restart forgets what was read.
func (s *Service) restart(r *Run) {
	p := &r.Progress
	p.Chunks, p.At, p.Until, p.Schema, p.Begun, p.Read, p.Since = nil, nil, nil, nil, false, false, time.Time{}
	r.Rows, r.Chunks, r.Empty = 0, 0, 0
}

func sameSchema(a, b table.Schema) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Type != b[i].Type {
			return false
		}
	}
	return true
}

// fits refuses a source whose columns cannot continue the version before.
func (s *Service) fits(ctx context.Context, r Run, src Source, schema table.Schema) error {
	if r.Progress.Base == 0 {
		return nil
	}
	v, err := s.cfg.Datasets.Definitions.Version(ctx, r.Project, dataset.Ref{Name: r.Dataset, Number: r.Progress.Base})
	if err != nil {
		return err
	}
	anew := fmt.Sprintf("To read the source from the beginning, run falaj dataset ingest %s --anew.", src.Name)
	if v.State != dataset.Accepted {
		return fault.New(fault.Gone, "the run continues %s, which is %s", v.Ref(), v.State).WithHint("%s", anew)
	}
	if err := schema.Continues(v.Schema, "source", v.Ref().String()); err != nil {
		return err.WithHint("%s", anew)
	}
	return nil
}

// wider is the type that holds the values of two; none where there is no such.
func wider(a, b table.Type) table.Type {
	t, _ := table.Wider(a, b)
	return t
}

// chunkWriter cuts rows into chunks.
type chunkWriter struct {
	s *Service
	r *Run

	file  datafile.Writer
	pq    *table.FileWriter
	began time.Time
	at    source.Position
}

func (w *chunkWriter) write(ctx context.Context, rec arrow.RecordBatch, at source.Position) error {
	if rec.NumRows() == 0 {
		w.at = at
		return nil
	}
	if w.pq == nil {
		n := len(w.r.Progress.Chunks)
		// Of an attempt that was killed here.
		if err := w.s.cfg.Files.Remove(ctx, w.r.chunkPrefix(n)); err != nil {
			return err
		}
		var err error
		if w.file, err = w.s.cfg.Files.Create(ctx, w.r.chunk(n)); err != nil {
			return err
		}
		if w.pq, err = table.NewFileWriter(w.file, w.r.Progress.Schema, table.Seal{}); err != nil {
			return err
		}
		w.began = w.s.cfg.Now()
	}
	if err := w.pq.Write(rec); err != nil {
		return err
	}
	w.at = at
	if w.pq.Rows() >= w.s.cfg.ChunkRows || w.s.cfg.Now().Sub(w.began) >= w.s.cfg.ChunkTime {
		return w.flush(ctx)
	}
	return nil
}

// flush makes the rows so far a chunk: the file first, and then, when that is
// synced, the record that it counts and where the source stands after it.
func (w *chunkWriter) flush(ctx context.Context) error {
	if w.pq != nil {
		if err := w.pq.Close(); err != nil {
			return err
		}
		if err := w.file.Commit(); err != nil {
			return err
		}
		p := &w.r.Progress
		p.Chunks = append(p.Chunks, Chunk{Number: len(p.Chunks), Rows: w.pq.Rows()})
		w.r.Rows += w.pq.Rows()
		w.r.Chunks = len(p.Chunks)
		w.r.Failures = 0
		w.file, w.pq = nil, nil
	}
	if w.at != nil {
		var err error
		if w.r.Progress.At, err = w.s.seal(ctx, w.r.Project, w.r.Dataset, w.at); err != nil {
			return err
		}
	}
	return w.s.keep(ctx, w.r)
}

func (w *chunkWriter) abort() {
	if w.file != nil {
		w.file.Abort()
	}
}

// write makes the version of what was read.
func (s *Service) write(ctx context.Context, r *Run, src Source, d dataset.Dataset) error {
	if r.Progress.Schema == nil {
		return s.nothing(ctx, r)
	}
	rows, err := s.merge(ctx, *r, src)
	if err != nil {
		return err
	}
	defer rows.Release()
	digest := digestOf(src.Spec.digestable())
	told := s.now()
	_, err = s.cfg.Datasets.Writes.Ingest(ctx, dataset.IngestRequest{
		Project: r.Project, Name: d.Name, Rows: rows, Base: r.Progress.Base, SchemaChange: r.Anew,
		Beside:   []dataset.Labelled{{Name: "source " + src.Name, Residency: src.Spec.Residency, Classification: dataset.Public}}[:beside(src)],
		Producer: dataset.Producer{Kind: "ingestion", ID: string(r.ID), Digest: digest, Text: about(*r, src)},
		Progress: func(n int64) {
			if now := s.now(); now.Sub(told) >= time.Second {
				told, r.Kept = now, n
				_ = s.keep(ctx, r) // for people; a lost run is noticed when the version is recorded
			}
		},
		Then: func(ctx context.Context, tx *store.Tx, v dataset.Version) error {
			now, err := s.cfg.Store.Source(ctx, tx, r.Project, r.Source)
			if err != nil {
				return err
			}
			done := *r
			done.Version, done.Unchanged, done.Kept = v.Number, v.Unchanged, v.Rows
			if v.State == dataset.Rejected {
				why := fault.New(fault.Invalid, "%s is rejected: %s", v.Ref(), v.Reason).
					WithHint("Correct the rows in the source, or change the expectation, and ingest again; the rows are read again.")
				err = s.end(ctx, tx, &done, r.Attempts, Failed, why)
			} else {
				now.Position, now.Version = r.Progress.Until, v.Number
				if now.Revision != r.Progress.Revision { // changed at this moment: the position may be of another table
					now.Position, now.Version = nil, 0
				}
				if err := s.cfg.Store.PutSource(ctx, tx, now); err != nil {
					return err
				}
				err = s.end(ctx, tx, &done, r.Attempts, Succeeded, nil)
			}
			if fault.Is(err, fault.Conflict) {
				return errFenced
			}
			tx.OnCommit(func() { *r = done })
			return err
		},
	})
	return err
}

// nothing ends a run whose source has nothing new, and did not say what its
// columns are.
func (s *Service) nothing(ctx context.Context, r *Run) error {
	if r.Progress.Base == 0 {
		return fault.New(fault.NotFound, "the source has no rows").WithHint("Ingest again when the source has rows.")
	}
	done := *r
	done.Version, done.Unchanged = r.Progress.Base, true
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.cfg.Store.Source(ctx, tx, r.Project, r.Source)
		if err != nil {
			return err
		}
		if now.Revision == r.Progress.Revision {
			now.Position = r.Progress.Until
			if err := s.cfg.Store.PutSource(ctx, tx, now); err != nil {
				return err
			}
		}
		return s.end(ctx, tx, &done, r.Attempts, Succeeded, nil)
	})
	if fault.Is(err, fault.Conflict) {
		return errFenced
	}
	if err == nil {
		*r = done
	}
	return err
}

func beside(src Source) int {
	if len(src.Spec.Residency) == 0 {
		return 0
	}
	return 1
}

// about names what was read, for the lineage.
func about(r Run, src Source) string {
	text := fmt.Sprintf("source %s: %s, %s, %d rows", src.Name, src.What, src.Spec.Mode, r.Rows)
	if r.Progress.Base > 0 {
		text += fmt.Sprintf(" on top of %s@%d", r.Dataset, r.Progress.Base)
	}
	return text
}

// watchdog ends a reading whose source gives nothing.
type watchdog struct {
	ctx    context.Context //nolint:containedctx // of one reading
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration
}

func newWatchdog(ctx context.Context, after time.Duration) *watchdog {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{ctx: ctx, cancel: cancel, after: after}
	w.timer = time.AfterFunc(after, func() {
		cancel(fault.New(fault.Timeout, "the source sent no data for %s", after))
	})
	return w
}

func (w *watchdog) reset() { w.timer.Reset(w.after) }
func (w *watchdog) pause() { w.timer.Stop() }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// explain is why a reading ended.
func (w *watchdog) explain(err error) error {
	var said *fault.Error
	if cause := context.Cause(w.ctx); cause != nil && errors.As(cause, &said) {
		return said
	}
	return err
}

// pace limits the rows per second.
type pace struct {
	rate  int
	began time.Time
	rows  int64
}

func newPace(rate int) *pace { return &pace{rate: rate, began: time.Now()} }

func (p *pace) wait(ctx context.Context, n int64) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	p.rows += n
	due := p.began.Add(time.Duration(float64(p.rows) / float64(p.rate) * float64(time.Second)))
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
