package feature

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// RunID names a materialisation: "fmr_01J…".
type RunID string

// State of a materialisation.
//
//	queued → running → succeeded | failed | cancelled
//	  ▲         │
//	  └─────────┘ a passing error, or the end of the server: it goes on from
//	              where it was
type State string

// The states.
const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Run is one materialisation of a view version: every row of its source with an
// event in [From, Until], in the order of key and time. Over the inputs that the
// rows online were made from it adds to them; over others it makes a new
// generation, which takes the place of those rows when it is complete, so that a
// row which a source no longer has does not stay. Of a view with aggregations the
// rows written are points and tiles, made of all rows from the beginning of the
// widest tile that From is in.
type Run struct {
	ID      RunID        `json:"id"`
	Project project.Name `json:"project"`
	View    string       `json:"view"`
	Version int          `json:"version"`
	State   State        `json:"state"`
	From    time.Time    `json:"from,omitzero"` // zero: from the beginning
	Until   time.Time    `json:"until"`
	// Inputs are the exact versions that are read, fixed when it was asked for.
	Inputs         []InputRef             `json:"inputs"`
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	Rows           int64                  `json:"rows"` // written so far
	Newest         time.Time              `json:"newest_event,omitzero"`
	Stats          offline.Stats          `json:"stats"`
	Error          string                 `json:"error,omitempty"` // reason of the failure or of the next attempt
	Failures       int                    `json:"failures,omitempty"`
	CreatedAt      time.Time              `json:"created_at"`
	CreatedBy      string                 `json:"created_by"`
	StartedAt      time.Time              `json:"started_at,omitzero"`
	EndedAt        time.Time              `json:"ended_at,omitzero"`

	// Attempt counts those who took the run up; it keeps a former one out.
	Attempt int `json:"-"`
	// Chain is a digest of the rows written so far, to go on only from the same.
	Chain     string    `json:"-"`
	NotBefore time.Time `json:"-"` // of a next attempt
	// Generation is where it writes; empty until it is taken up.
	Generation Generation `json:"-"`
	// Position is, of a view that follows a stream, the record up to which its inputs
	// have the events. From there the stream goes on.
	Position int64 `json:"-"`

	// subkey and former are those of the view, which do not change while a run is open.
	subkey, former int
}

func (r Run) ref() string { return Header{Name: r.View, Version: r.Version}.Ref() }

func (r Run) table() online.Table {
	return online.Table{
		Project: string(r.Project), View: r.View, Version: r.Version, Generation: string(r.Generation), Subkey: r.subkey, Former: r.former,
	}
}

const (
	retryPause  = 10 * time.Second // between looks for work
	maxFailures = 12               // attempts that end in a passing error: seven minutes
	maxPause    = time.Minute      // between them
	chunkBytes  = 8 << 20
	openRuns    = 1000 // looked at in one go
)

// MaterialiseRequest requests the materialisation of a view.
type MaterialiseRequest struct {
	Project project.Name
	View    string    // a ref
	From    time.Time // zero: from the beginning
	Until   time.Time // zero: now
}

// Materialisation fills and clears the online rows of views.
type Materialisation struct {
	*core
	rows    *OnlineRows
	streams *Streams
	checks  *lastChecks
	loop    *lifecycle.Loop // runs materialisations

	mu      sync.Mutex
	ended   chan struct{}                // closed and replaced when a run ends
	cancels map[RunID]context.CancelFunc // of attempts under way
}

func newMaterialisation(c *core, rows *OnlineRows, streams *Streams, checks *lastChecks) *Materialisation {
	s := &Materialisation{core: c, rows: rows, streams: streams, checks: checks, ended: make(chan struct{}), cancels: map[RunID]context.CancelFunc{}}
	s.loop = &lifecycle.Loop{
		Name: "feature materialisation", Every: retryPause, Logger: s.log,
		Timeout: openRuns * s.cfg.AttemptTime, // each attempt has its own limit
		Run:     func(ctx context.Context) error { return s.RunOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	return s
}

// Background runs materialisations, also those that an earlier process left
// unfinished.
func (s *Materialisation) Background() lifecycle.Service { return s.loop.Service() }

// Materialise queues a materialisation and returns it; the background loop runs
// it. Asking again for what is under way returns that. Needs
// feature.materialise, and to see the sources. Errors: fault.Invalid for a range
// that is empty or ends in the future; fault.Conflict when another range of the
// view is under way, when the range is a part of what is online and the sources
// have changed since, or when a source was rejected; fault.PermissionDenied when
// the online store's zone may not hold the view.
func (s *Materialisation) Materialise(ctx context.Context, r MaterialiseRequest) (Run, error) {
	if err := s.allow(ctx, ActionMaterialise, r.Project, r.View); err != nil {
		return Run{}, err
	}
	if err := noEmptyProject(r.Project); err != nil {
		return Run{}, err
	}
	if r.Until.IsZero() {
		r.Until = s.now()
	}
	if horizon := s.cfg.Online.Horizon(); r.Until.After(horizon) {
		return Run{}, fault.New(fault.Invalid, "until %s is in the future", r.Until.UTC().Format(time.RFC3339)).
			WithHint("Materialise up to now.")
	}
	if !r.From.IsZero() && r.From.After(r.Until) {
		return Run{}, fault.New(fault.Invalid, "from %s is after until %s", r.From.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339))
	}
	var v View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, r.Project, ViewKind, r.View)
		if err != nil {
			return err
		}
		v, err = d.view()
		return err
	})
	if err != nil {
		return Run{}, err
	}
	if v.Source.Stream != nil && !r.From.IsZero() {
		return Run{}, fault.New(fault.Invalid, "feature view %s has a stream source and supports no partial materialisation", v.Ref()).WithHint("Omit from.")
	}
	inputs, err := s.streams.pin(ctx, r.Project, v.Source)
	if err != nil {
		return Run{}, fault.Wrap(err, "source of feature view %s", v.Ref())
	}
	if v.Source.Stream != nil {
		r.Until = s.cfg.Online.Horizon() // what was accepted is not later
	}
	run := Run{
		ID: RunID(id.New("fmr")), Project: r.Project, View: v.Name, Version: v.Version, State: Queued,
		From: store.At(r.From).Time(), Until: store.At(r.Until).Time(), Inputs: refsOf(inputs),
		CreatedAt: store.At(s.now()).Time(), CreatedBy: identity.From(ctx).ID,
	}
	if run.Residency, run.Classification, err = origin(inputs); err != nil {
		return Run{}, err
	}
	if err := s.pass(ctx, ActionMaterialise, r.Project, v.Ref(), run.Residency); err != nil {
		return Run{}, err
	}
	err = s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if v.Source.Stream != nil {
			var err error
			if run.Position, err = s.streams.position(ctx, tx, r.Project, v.Source.Dataset, run.Inputs[0].Dataset); err != nil {
				return err
			}
		}
		return s.queue(ctx, tx, &run, v.Source.Stream != nil)
	})
	return run, fault.Wrap(err, "materialising %s", v.Ref())
}

// queue keeps a new run, or replaces it by the one that does the same: whole runs of
// a view that follows a stream all do.
func (s *Materialisation) queue(ctx context.Context, tx *store.Tx, run *Run, whole bool) error {
	last, err := s.runStore.Runs(ctx, tx, run.Project, run.View, run.Version, "", 1)
	if err != nil {
		return err
	}
	if len(last) > 0 && !last[0].State.Ended() {
		if whole || last[0].From.Equal(run.From) && last[0].Until.Equal(run.Until) {
			*run = last[0]
			return nil
		}
		return fault.New(fault.Conflict, "materialisation %s of %s is in progress", last[0].ID, run.ref()).
			WithHint("Wait until it ends, or cancel it: falaj feature cancel %s.", last[0].ID)
	}
	if err := s.replaces(ctx, tx, *run); err != nil {
		return err
	}
	if err := s.runStore.InsertRun(ctx, tx, *run); err != nil {
		return err
	}
	tx.OnCommit(s.loop.Wake)
	return audit.Append(ctx, tx, audit.Entry{
		Project: string(run.Project), Action: string(ActionMaterialise), Object: objectKind + " view " + run.ref(),
		Detail: map[string]any{"run": run.ID, "until": run.Until, "inputs": run.Inputs},
	})
}

// RunOnce carries on every materialisation that has not ended; the background
// loop calls it, and tests do. While another process does it, nothing happens.
func (s *Materialisation) RunOnce(ctx context.Context) error {
	err := s.alone(ctx, s.runAll)
	if errors.Is(err, errElsewhere) {
		return nil
	}
	return err
}

// leaseTime is how long others wait for a process that vanished.
const leaseTime = 15 * time.Second

var errElsewhere = errors.New("another process writes to the online store")

// alone runs fn as the only process that changes online rows.
func (s *Materialisation) alone(ctx context.Context, fn func(ctx context.Context) error) error {
	if !s.cfg.DB.Shared() {
		return fn(ctx)
	}
	lease, err := s.cfg.DB.Lease(ctx, "feature.materialise", rand.Text()[:8], leaseTime)
	if fault.Is(err, fault.Conflict) {
		return errElsewhere
	}
	if err != nil {
		return err
	}
	return lease.Keep(ctx, fn)
}

// occupy reserves a view version's online rows within this process; release is
// nil when somebody has them.
func (s *core) occupy(p project.Name, ref string) (release func()) {
	key := string(p) + "/" + ref
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[key] {
		return nil
	}
	s.busy[key] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, key)
	}
}

// runAll sweeps and then makes an attempt at every open run that is due.
func (s *Materialisation) runAll(ctx context.Context) error {
	var open []Run
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		open, err = s.runStore.OpenRuns(ctx, tx, openRuns)
		return err
	})
	if err != nil {
		return err
	}
	swept := s.rows.sweep(ctx) // what is left there is in nobody's way
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, r := range open {
		if s.now().Before(r.NotBefore) {
			continue
		}
		if err := s.take(ctx, r); err != nil {
			return errors.Join(swept, err)
		}
	}
	return swept
}

// take makes one attempt at a run and records how it ended. Its error is one of
// the database, or of the end of ctx, after which the run goes on another time.
func (s *Materialisation) take(ctx context.Context, r Run) error {
	release := s.occupy(r.Project, r.ref())
	if release == nil {
		return nil // being cleared; it comes again
	}
	defer release()
	err := s.bounded(ctx, &r)
	if err == nil || errors.Is(err, errFenced) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.log.WarnContext(ctx, "a materialisation failed", slog.String("run", string(r.ID)), slog.String("view", r.ref()), slog.Any("error", err))
	passing := fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout) || fault.Is(err, fault.Exhausted)
	r.Failures++
	r.Error = err.Error()
	if passing && r.Failures < maxFailures {
		r.State = Queued
		r.NotBefore = s.now().Add(min(time.Second<<r.Failures, maxPause))
		err = s.keep(ctx, &r, nil)
	} else {
		err = s.end(ctx, &r, Failed)
	}
	if errors.Is(err, errFenced) {
		return nil
	}
	return err
}

// bounded is an attempt with a limit of its own, so that a long one does not take
// the time of those after it, and which CancelRun ends at once.
func (s *Materialisation) bounded(ctx context.Context, r *Run) error {
	own, cancel := context.WithTimeout(ctx, s.cfg.AttemptTime)
	defer cancel()
	s.mu.Lock()
	s.cancels[r.ID] = cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.cancels, r.ID)
	}()
	err := s.attempt(own, r)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(own.Err(), context.Canceled):
		return errFenced
	case own.Err() != nil:
		return fault.New(fault.Timeout, "it exceeded the time limit of %s", s.cfg.AttemptTime)
	}
	return err
}

// errFenced ends an attempt whose run was cancelled or taken over.
var errFenced = errors.New("the materialisation was cancelled or taken over")

// keep records a run's progress, with more in the same transaction.
func (s *Materialisation) keep(ctx context.Context, r *Run, more func(ctx context.Context, tx *store.Tx) error) error {
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		err := s.runStore.UpdateRun(ctx, tx, *r, r.Attempt)
		if fault.Is(err, fault.Conflict) {
			return errFenced
		}
		if err != nil || more == nil {
			return err
		}
		return more(ctx, tx)
	})
	if errors.Is(err, errFenced) {
		return errFenced
	}
	return err
}

// attempt writes the rows that are not written yet, and ends the run.
func (s *Materialisation) attempt(ctx context.Context, r *Run) error {
	v, err := s.claim(ctx, r)
	if err != nil {
		return err
	}
	if err := s.pass(ctx, ActionMaterialise, r.Project, r.ref(), r.Residency); err != nil {
		return err
	}
	within := offline.Range{From: math.MinInt64, To: r.Until.UnixMicro()}
	windows := v.windows()
	if !r.From.IsZero() {
		within.From = r.From.UnixMicro()
		if windows != nil {
			within.From = windows.Floor(within.From)
		}
	}
	rows, err := offline.Sort(ctx, s.offline(v, r.Inputs, nil), within, s.cfg.Join)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // nameless temporary files
	w := &writer{s: s, run: r, done: r.Rows, chain: r.Chain}
	if windows != nil {
		err = tile(windows, rows, func(row offline.Row) error { return w.add(ctx, row) })
	} else {
		for err == nil && rows.Next() {
			err = w.add(ctx, rows.Row())
		}
	}
	if err != nil {
		return err
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	if w.seen < w.done { // the source has shrunk: it is not the same
		return w.restart(ctx)
	}
	r.Stats = rows.Stats
	if v.Source.Stream != nil {
		if err := s.catchUp(ctx, v, r); err != nil {
			return err
		}
	}
	return s.end(ctx, r, Succeeded)
}

// catchUp gives the rows that a run has written their place in the stream, and
// brings them to where those are that they replace: until the run has ended, nobody
// else applies events to them.
func (s *Materialisation) catchUp(ctx context.Context, v View, r *Run) error {
	_, found, err := s.cfg.Online.Look(ctx, r.table())
	if err != nil {
		return err
	}
	if !found { // else an earlier attempt has come further
		if err := s.cfg.Online.WriteUpTo(ctx, r.table(), nil, online.Nowhere, r.Position); err != nil {
			return err
		}
	}
	var o Online
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		o, err = s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
		return err
	}); err != nil {
		return err
	}
	if o.Generation == r.Generation {
		return nil // the first rows of the view: it is followed from now on
	}
	_, _, err = s.streams.applyEvents(ctx, v, r.table(), math.MaxInt)
	return err
}

// claim makes the run this attempt's, and notes what the online store will hold
// before the first row is there.
func (s *Materialisation) claim(ctx context.Context, r *Run) (View, error) {
	before := r.Attempt
	r.Attempt++
	r.State, r.Error = Running, ""
	if r.StartedAt.IsZero() {
		r.StartedAt = store.At(s.now()).Time()
	}
	var v View
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		err := s.runStore.UpdateRun(ctx, tx, *r, before)
		if fault.Is(err, fault.Conflict) {
			return errFenced
		}
		if err != nil {
			return err
		}
		d, err := s.definitionStore.Definition(ctx, tx, r.Project, ViewKind, r.View, r.Version)
		if err != nil {
			return err
		}
		if v, err = d.view(); err != nil {
			return err
		}
		o, err := s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		missing := err != nil
		if r.Generation == "" {
			if err := s.replaces(ctx, tx, *r); err != nil {
				return err
			}
			// What an earlier attempt without a generation wrote does not count.
			r.Rows, r.Chain, r.Newest = 0, "", time.Time{}
			// Rows to which a stream has applied events are not written over.
			if r.Generation = o.Generation; missing || !sameInputs(o.Inputs, r.Inputs) || v.Source.Stream != nil {
				r.Generation = newGeneration()
			}
			if err := s.runStore.UpdateRun(ctx, tx, *r, r.Attempt); err != nil {
				return err
			}
		}
		switch {
		case missing:
			o = Online{
				Project: r.Project, View: r.View, Version: r.Version, Residency: r.Residency, Classification: r.Classification,
				Generation: r.Generation, Inputs: r.Inputs, Subkey: firstSubkey, Former: firstSubkey, RotatedAt: store.At(s.now()).Time(),
			}
		case r.Generation != o.Generation:
			r.subkey, r.former = o.Subkey, o.Former
			return nil // nobody reads there yet
		default:
			if o.Residency, err = residency.Derive(
				residency.Parent{Name: "the online rows of " + r.ref(), Label: o.Residency},
				residency.Parent{Name: "its source now", Label: r.Residency}); err != nil {
				return err
			}
			o.Classification = project.Strictest(o.Classification, r.Classification)
		}
		r.subkey, r.former = o.Subkey, o.Former
		o.UpdatedAt = store.At(s.now()).Time()
		tx.OnCommit(s.plans.forget)
		return s.onlineStore.PutOnline(ctx, tx, o)
	})
	if errors.Is(err, errFenced) {
		return v, errFenced
	}
	if err != nil {
		r.Attempt = before
	}
	return v, err
}

// end records the end of a run.
func (s *Materialisation) end(ctx context.Context, r *Run, state State) error {
	r.State, r.EndedAt = state, store.At(s.now()).Time()
	name := EventMaterialised
	if state != Succeeded {
		name = EventFailed
	}
	return s.keep(ctx, r, func(ctx context.Context, tx *store.Tx) error {
		settle := s.abandon
		if state == Succeeded {
			settle = s.advance
		}
		if err := settle(ctx, tx, r); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionMaterialise), Object: objectKind + " view " + r.ref(), Reason: r.Error,
			Detail: map[string]any{"run": r.ID, "state": state, "rows": r.Rows},
		}); err != nil {
			return err
		}
		tx.OnCommit(s.announce)
		return event.Publish(ctx, tx, string(r.Project), name, RunEnded{ID: r.ID, View: r.ref(), State: state, Rows: r.Rows, Error: r.Error})
	})
}

// advance moves the view's watermark to what a run has brought, and makes the
// run's generation the one that is read.
func (s *Materialisation) advance(ctx context.Context, tx *store.Tx, r *Run) error {
	o, err := s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
	if err != nil {
		return err
	}
	if o.Generation != r.Generation {
		if err := s.onlineStore.PutStale(ctx, tx, s.stale(o, o.Generation)); err != nil {
			return err
		}
		o.Generation, o.Residency, o.Classification = r.Generation, r.Residency, r.Classification
		o.Watermark, o.Newest = time.Time{}, time.Time{}
	}
	o.Inputs = r.Inputs // the same content, perhaps under a newer number
	whole := r.From.IsZero() || !o.Watermark.IsZero() && !r.From.After(o.Watermark)
	if whole && r.Until.After(o.Watermark) {
		o.Watermark = r.Until
	}
	if r.Newest.After(o.Newest) {
		o.Newest = r.Newest
	}
	o.UpdatedAt = r.EndedAt
	tx.OnCommit(s.plans.forget)
	return s.onlineStore.PutOnline(ctx, tx, o)
}

// announce tells those who wait that a run has ended.
func (s *Materialisation) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	s.ended = make(chan struct{})
}

// writer writes rows in chunks and records each. What an earlier attempt wrote
// is passed over, if it is the same.
type writer struct {
	s     *Materialisation
	run   *Run
	done  int64  // rows written by earlier attempts
	chain string // their digest
	seen  int64
	now   string // digest of the rows seen
	rows  []online.Row
	arena []byte
	bytes int
}

// add takes a row, whose slices it copies.
func (w *writer) add(ctx context.Context, r offline.Row) error {
	w.rows = append(w.rows, online.Row{Key: w.copy(r.Key), Event: r.Event, Created: r.Created, Packed: w.copy(r.Packed)})
	w.bytes += len(r.Key) + len(r.Packed)
	if len(w.rows) < w.s.cfg.ChunkRows && w.bytes < chunkBytes {
		return nil
	}
	return w.flush(ctx)
}

func (w *writer) copy(b []byte) []byte {
	at := len(w.arena)
	w.arena = append(w.arena, b...)
	return w.arena[at:len(w.arena):len(w.arena)]
}

func (w *writer) flush(ctx context.Context) error {
	if len(w.rows) == 0 {
		return nil
	}
	w.seen += int64(len(w.rows))
	w.now = chain(w.now, w.rows)
	if w.seen > w.done {
		if err := w.write(ctx); err != nil {
			return err
		}
	} else if w.seen == w.done && w.now != w.chain {
		return w.restart(ctx)
	}
	w.rows, w.arena, w.bytes = w.rows[:0], w.arena[:0], 0
	return nil
}

func (w *writer) write(ctx context.Context) error {
	r := w.run
	if r.Rows != w.seen-int64(len(w.rows)) {
		// The earlier attempts' rows end inside this chunk: it was cut elsewhere.
		return w.restart(ctx)
	}
	if err := w.s.cfg.Online.Write(ctx, r.table(), w.rows); err != nil {
		return err
	}
	if err := w.s.rows.copies(ctx, r.Project, r.View, r.Version, r.Classification, r.table(), w.rows); err != nil {
		return err
	}
	for i := range w.rows {
		if at := time.UnixMicro(w.rows[i].Event).UTC(); at.After(r.Newest) {
			r.Newest = at
		}
	}
	r.Rows, r.Chain = w.seen, w.now
	return w.s.keep(ctx, r, nil)
}

// restart forgets what was written: the source gives other rows than before. A
// run of everything goes on in a new generation, where no row of before is.
func (w *writer) restart(ctx context.Context) error {
	r, before := w.run, *w.run
	r.Rows, r.Chain, r.Newest = 0, "", time.Time{}
	if err := w.s.keep(ctx, r, func(ctx context.Context, tx *store.Tx) error {
		o, err := w.s.onlineStore.Online(ctx, tx, r.Project, r.View, r.Version)
		if err != nil || !r.From.IsZero() || r.Until.Before(o.Watermark) {
			return err
		}
		if err := w.s.abandon(ctx, tx, &before); err != nil {
			return err
		}
		r.Generation = newGeneration()
		return w.s.runStore.UpdateRun(ctx, tx, *r, r.Attempt)
	}); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "the source of %s returned different rows when read again", r.ref()).
		WithHint("Make the view's SQL deterministic: order ranked rows fully, and use no random or current values.")
}

// chain is the digest of rows after those with a digest.
func chain(before string, rows []online.Row) string {
	h := sha256.New()
	h.Write([]byte(before))
	var b []byte
	for i := range rows {
		b = binary.AppendUvarint(b[:0], uint64(len(rows[i].Key)))
		b = append(b, rows[i].Key...)
		b = binary.BigEndian.AppendUint64(b, uint64(rows[i].Event))   //nolint:gosec // the bits are meant
		b = binary.BigEndian.AppendUint64(b, uint64(rows[i].Created)) //nolint:gosec // the bits are meant
		b = binary.AppendUvarint(b, uint64(len(rows[i].Packed)))
		h.Write(append(b, rows[i].Packed...))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Run finds a materialisation. Needs feature.read.
func (s *Materialisation) Run(ctx context.Context, p project.Name, run RunID) (Run, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, policy.Object{Project: string(p), Kind: objectKind}); err != nil {
		return Run{}, err
	}
	if err := id.Check("fmr", string(run)); err != nil {
		return Run{}, err
	}
	var r Run
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		r, err = s.runStore.Run(ctx, tx, p, run)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return r, fault.New(fault.NotFound, "there is no materialisation %s in project %s", run, p)
	}
	return r, err
}

// WaitRun waits until a materialisation has ended. Needs feature.read.
func (s *Materialisation) WaitRun(ctx context.Context, p project.Name, run RunID) (Run, error) {
	for {
		s.mu.Lock()
		ended := s.ended
		s.mu.Unlock()
		r, err := s.Run(ctx, p, run)
		if err != nil || r.State.Ended() {
			return r, err
		}
		timer := time.NewTimer(time.Second) // another process may end it
		select {
		case <-ctx.Done():
			timer.Stop()
			return r, ctx.Err()
		case <-ended:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// CancelRun ends a materialisation; what it has added to the rows online stays,
// and rows that were to take their place are removed. Cancelling one that has
// ended changes nothing. Needs feature.materialise.
func (s *Materialisation) CancelRun(ctx context.Context, p project.Name, run RunID) (Run, error) {
	if err := s.allow(ctx, ActionMaterialise, p, ""); err != nil {
		return Run{}, err
	}
	if err := id.Check("fmr", string(run)); err != nil {
		return Run{}, err
	}
	var r Run
	err := s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if r, err = s.runStore.Run(ctx, tx, p, run); err != nil || r.State.Ended() {
			return err
		}
		r.State, r.EndedAt = Cancelled, store.At(s.now()).Time()
		if err := s.runStore.UpdateRun(ctx, tx, r, r.Attempt); err != nil {
			return err
		}
		if err := s.abandon(ctx, tx, &r); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionMaterialise), Object: objectKind + " view " + r.ref(),
			Detail: map[string]any{"run": r.ID, "state": r.State, "rows": r.Rows},
		}); err != nil {
			return err
		}
		tx.OnCommit(func() {
			s.announce()
			s.stop(r.ID)
		})
		return event.Publish(ctx, tx, string(p), EventFailed, RunEnded{ID: r.ID, View: r.ref(), State: r.State, Rows: r.Rows})
	})
	if fault.Is(err, fault.NotFound) {
		return r, fault.New(fault.NotFound, "there is no materialisation %s in project %s", run, p)
	}
	return r, err
}

// stop ends an attempt at a run, if this process makes one.
func (s *Materialisation) stop(run RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[run]; cancel != nil {
		cancel()
	}
}

// Freshness is the state of a view version in the online store.
type Freshness struct {
	Online
	Materialised bool `json:"materialised"` // false: the rest is empty
	// Lag is how long ago the watermark was; zero without a watermark.
	Lag time.Duration `json:"lag_ns,omitempty"`
	// Last is the newest materialisation, which may be under way.
	Last *Run `json:"last_run,omitempty"`
	// Check is the last comparison with the source since the server began.
	Check *Check `json:"check,omitempty"`
}

// Freshness returns the lag of a view version. Needs feature.read.
func (s *Materialisation) Freshness(ctx context.Context, p project.Name, view string) (Freshness, error) {
	if err := s.allow(ctx, ActionRead, p, view); err != nil {
		return Freshness{}, err
	}
	var f Freshness
	var v View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		f = Freshness{}
		d, err := s.find(ctx, tx, p, ViewKind, view)
		if err != nil {
			return err
		}
		if v, err = d.view(); err != nil {
			return err
		}
		o, err := s.onlineStore.Online(ctx, tx, p, d.Name, d.Version)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		f.Materialised, f.Online = err == nil, o
		f.Project, f.View, f.Version = p, d.Name, d.Version
		runs, err := s.runStore.Runs(ctx, tx, p, d.Name, d.Version, "", 1)
		if len(runs) > 0 {
			f.Last = &runs[0]
		}
		return err
	})
	if err == nil && v.Source.Stream != nil {
		f.Watermark, err = s.streams.watermark(ctx, v)
	}
	if !f.Watermark.IsZero() {
		f.Lag = max(0, s.now().Sub(f.Watermark))
	}
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	if c, ok := s.checks.all[f.watch()]; ok {
		f.Check = &c
	}
	return f, err
}

// Freshnesses tells it of every view version that is online, for metrics; last
// runs are left out. Needs feature.read.
func (s *Materialisation) Freshnesses(ctx context.Context, p project.Name) ([]Freshness, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, policy.Object{Project: string(p), Kind: objectKind}); err != nil {
		return nil, err
	}
	var out []Freshness
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = nil
		all, err := s.onlineStore.Onlines(ctx, tx, p)
		for _, o := range all {
			f := Freshness{Online: o, Materialised: true}
			if !o.Watermark.IsZero() {
				f.Lag = s.now().Sub(o.Watermark)
			}
			out = append(out, f)
		}
		return err
	})
	return out, err
}

// Runs lists the materialisations of a view version, newest first, before an id.
// Needs feature.read.
func (s *Materialisation) Runs(ctx context.Context, p project.Name, view string, before RunID, limit int) ([]Run, error) {
	if err := s.allow(ctx, ActionRead, p, view); err != nil {
		return nil, err
	}
	var runs []Run
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, view)
		if err != nil {
			return err
		}
		runs, err = s.runStore.Runs(ctx, tx, p, d.Name, d.Version, before, pageSize(limit))
		return err
	})
	return runs, err
}

// Clear removes the online rows of a view version. Reads refuse it at once.
// Needs feature.materialise. Error: fault.Conflict while it is materialised.
func (s *Materialisation) Clear(ctx context.Context, p project.Name, view string) error {
	if err := s.allow(ctx, ActionMaterialise, p, view); err != nil {
		return err
	}
	err := s.alone(ctx, func(ctx context.Context) error { return s.clear(ctx, p, view) })
	if errors.Is(err, errElsewhere) {
		return fault.New(fault.Conflict, "another process is materialising").WithHint("Try again when it ends.")
	}
	return err
}

func (s *Materialisation) clear(ctx context.Context, p project.Name, view string) error {
	var h Header
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, view)
		h = d.Header
		return err
	})
	if err != nil {
		return err
	}
	release := s.occupy(p, h.Ref())
	if release == nil {
		return fault.New(fault.Conflict, "%s is being materialised", h.Ref()).
			WithHint("Wait until it ends, or cancel it: falaj feature cancel RUN; `falaj feature runs %s` lists the runs.", h.Ref())
	}
	defer release()
	var gone []Stale
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		runs, err := s.runStore.Runs(ctx, tx, p, h.Name, h.Version, "", 1)
		if err != nil {
			return err
		}
		if len(runs) > 0 && !runs[0].State.Ended() {
			return fault.New(fault.Conflict, "materialisation %s of %s is in progress", runs[0].ID, h.Ref()).
				WithHint("Cancel it first: falaj feature cancel %s.", runs[0].ID)
		}
		o, err := s.onlineStore.Online(ctx, tx, p, h.Name, h.Version)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		o.Project, o.View, o.Version = p, h.Name, h.Version
		gone = []Stale{s.stale(o, o.Generation)}
		if o.Pushed != "" {
			gone = append(gone, s.stale(o, o.Pushed))
		}
		for _, g := range gone {
			if err := s.onlineStore.PutStale(ctx, tx, g); err != nil {
				return err
			}
		}
		if err := s.onlineStore.DeleteOnline(ctx, tx, p, h.Name, h.Version); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionMaterialise), Object: objectKind + " view " + h.Ref(), Detail: map[string]any{"cleared": true},
		}); err != nil {
			return err
		}
		tx.OnCommit(s.plans.forget)
		return event.Publish(ctx, tx, string(p), EventCleared, Applied{Kind: ViewKind, Ref: h.Ref(), Digest: h.Digest})
	})
	if err != nil {
		return err
	}
	for _, g := range gone {
		if err := s.rows.remove(ctx, g); err != nil {
			return err
		}
	}
	return nil
}
