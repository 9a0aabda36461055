package ingestion

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Secrets is what ingestion needs of secrets. secrets.Service is one.
type Secrets interface {
	Use(ctx context.Context, project, name string, keys ...string) error
	Open(ctx context.Context, project, name string) (map[string]secrets.Text, error)
}

// Config is what a Service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Datasets   dataset.Services
	Files      datafile.Store // of chunks
	Secrets    Secrets
	Ring       Ring                     // for positions
	Drivers    map[string]source.Driver // by kind
	Access     source.Access
	Parser     source.Parser
	// Zones knows which zones there are; nil takes every zone.
	Zones interface {
		Known(ctx context.Context, tx *store.Tx, l residency.Label) error
	}
	Log *slog.Logger     // nil discards
	Now func() time.Time // nil is time.Now

	Parallel  int           // runs at a time; 4
	ChunkRows int64         // rows of a chunk; 250,000
	ChunkTime time.Duration // at most, from a row to its being synced; 30 s
	Keys      int           // of new rows that a run remembers; 20,000,000
	Batch     int           // rows of a batch; 4,096
	Stall     time.Duration // that a source may give nothing; source.StallTime
	Elect     bool          // take the lease also if no other server shares the database
}

// Service is the only way to sources. Safe for concurrent use.
type Service struct {
	cfg  Config
	loop *lifecycle.Loop

	slots *share.Pool // of runs

	mu      sync.Mutex
	active  map[RunID]context.CancelFunc
	changed chan struct{} // closed and made anew when a run changes
}

// New makes a service; its Background carries runs on.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		v    *int
		want int
	}{{&cfg.Parallel, 4}, {&cfg.Keys, 20_000_000}, {&cfg.Batch, 4096}} {
		if *d.v <= 0 {
			*d.v = d.want
		}
	}
	if cfg.ChunkRows <= 0 {
		cfg.ChunkRows = 250_000
	}
	if cfg.ChunkTime <= 0 {
		cfg.ChunkTime = 30 * time.Second
	}
	if cfg.Stall <= 0 {
		cfg.Stall = source.StallTime
	}
	s := &Service{cfg: cfg, slots: share.New(share.Limits{Name: "ingestions", What: "ingestion runs", Slots: cfg.Parallel}), active: map[RunID]context.CancelFunc{}, changed: make(chan struct{})}
	s.loop = &lifecycle.Loop{Name: "ingestion", Every: lookEvery, Timeout: roundTime, Run: s.RunOnce, Logger: cfg.Log}
	return s
}

// Background is the loop that carries runs on.
func (s *Service) Background() lifecycle.Service { return s.loop.Service() }

func (s *Service) now() time.Time { return s.cfg.Now().UTC().Truncate(time.Microsecond) }

func object(p project.Name, name string) policy.Object {
	return policy.Object{Project: string(p), Kind: objectKind, Name: name}
}

// ApplyRequest declares a source.
type ApplyRequest struct {
	Project project.Name
	Name    string
	Spec    Spec
	DryRun  bool
}

// Apply creates or updates the source from its manifest. When what is read changes (from, mode,
// cursor, key), the next run reads from the beginning. Needs source.apply, dataset.import on the
// dataset, dataset.query on what its expectations read, and secret.use on the secret. Errors:
// fault.Invalid; fault.PermissionDenied for a host outside sources.hosts; fault.Conflict when
// the dataset has another source.
func (s *Service) Apply(ctx context.Context, r ApplyRequest) (Source, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionApply, object(r.Project, r.Name)); err != nil {
		return Source{}, "", err
	}
	if err := id.CheckName("source name", r.Name); err != nil {
		return Source{}, "", err
	}
	r.Spec = r.Spec.withDefaults()
	if err := r.Spec.Validate(); err != nil {
		return Source{}, "", err
	}
	d, err := s.cfg.Datasets.Definitions.One(ctx, r.Project, r.Spec.Dataset)
	if err != nil {
		return Source{}, "", err
	}
	if err := s.cfg.Authorizer.Allow(ctx, dataset.ActionImport, policy.Object{Project: string(r.Project), Kind: "dataset", Name: d.Name, Owner: d.Owner}); err != nil {
		return Source{}, "", err
	}
	if err := s.cfg.Datasets.Definitions.MayRunExpectations(ctx, r.Project, d.Name); err != nil {
		return Source{}, "", err
	}
	if r.Spec.Secret != "" {
		if err := s.cfg.Secrets.Use(ctx, string(r.Project), r.Spec.Secret); err != nil {
			return Source{}, "", err
		}
	}
	driver, err := s.driver(r.Spec)
	if err != nil {
		return Source{}, "", err
	}
	req, err := s.request(ctx, Source{Spec: r.Spec}, d, Progress{})
	if err != nil {
		return Source{}, "", err
	}
	if err := driver.Check(req); err != nil {
		return Source{}, "", err
	}
	var out Source
	var change project.Change
	do := func(ctx context.Context, tx *store.Tx) error {
		if s.cfg.Zones != nil {
			if err := s.cfg.Zones.Known(ctx, tx, r.Spec.Residency); err != nil {
				return err
			}
		}
		out, change, err = s.plan(ctx, tx, r)
		if err != nil || change == project.Unchanged || r.DryRun {
			return err
		}
		if err := s.cfg.Store.PutSource(ctx, tx, out); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionApply), Object: "source " + r.Name,
			Detail: map[string]any{"change": change, "revision": out.Revision, "what": out.What, "dataset": out.Spec.Dataset, "secret": out.Spec.Secret, "mode": out.Spec.Mode},
		}); err != nil {
			return err
		}
		tx.OnCommit(s.loop.Wake)
		return event.Publish(ctx, tx, string(r.Project), EventApplied, Event{Source: r.Name, Dataset: out.Spec.Dataset})
	}
	if r.DryRun {
		err = s.cfg.DB.View(ctx, do)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Project), do)
	}
	if err != nil {
		return Source{}, "", err
	}
	return out, change, nil
}

// plan is what the source becomes.
func (s *Service) plan(ctx context.Context, tx *store.Tx, r ApplyRequest) (Source, project.Change, error) {
	other, err := s.cfg.Store.SourceOf(ctx, tx, r.Project, r.Spec.Dataset)
	switch {
	case err == nil && other.Name != r.Name:
		return Source{}, "", fault.New(fault.Conflict, "dataset %s already has the source %s", r.Spec.Dataset, other.Name).
			WithHint("Change that source, or declare another dataset and join the two in a query.")
	case err != nil && !fault.Is(err, fault.NotFound):
		return Source{}, "", err
	}
	now := s.now()
	was, err := s.cfg.Store.Source(ctx, tx, r.Project, r.Name)
	if fault.Is(err, fault.NotFound) {
		all, err := s.cfg.Store.Sources(ctx, tx, r.Project, "", maxSources)
		if err != nil {
			return Source{}, "", err
		}
		if len(all) >= maxSources {
			return Source{}, "", share.Refused("sources", fmt.Sprintf("project %s has %d sources, the limit", r.Project, len(all)), "Delete unused sources.", 0)
		}
		who := identity.From(ctx).ID
		return Source{
			ID: ID(id.New("src")), Project: r.Project, Name: r.Name, Spec: r.Spec, What: r.Spec.From.What(), Revision: 1, Owner: who,
			Created: now, Updated: now, Scheduled: now,
		}, project.Created, nil
	}
	if err != nil {
		return Source{}, "", err
	}
	if sameSpec(was.Spec, r.Spec) {
		return was, project.Unchanged, nil
	}
	if !sameReading(was.Spec, r.Spec) {
		was.Position, was.Version = nil, 0
	}
	if was.Spec.Schedule != r.Spec.Schedule {
		was.Scheduled = now
	}
	was.Spec, was.What, was.Updated = r.Spec, r.Spec.From.What(), now
	was.Revision++
	return was, project.Updated, nil
}

func (s *Service) driver(spec Spec) (source.Driver, error) {
	d := s.cfg.Drivers[spec.From.Kind()]
	if d == nil {
		return nil, fault.New(fault.Unsupported, "this server does not support %s sources", spec.From.Kind())
	}
	return d, nil
}

// request is what a driver is asked to read.
func (s *Service) request(ctx context.Context, src Source, d dataset.Dataset, p Progress) (source.Request, error) {
	for _, at := range []*source.Position{&p.After, &p.At, &p.Until} {
		var err error
		if *at, err = s.open(ctx, d.Project, d.Name, *at); err != nil {
			return source.Request{}, err
		}
	}
	r := source.Request{
		From: src.Spec.From, Mode: src.Spec.Mode, Cursor: src.Spec.Cursor, Key: src.Spec.Key, Op: src.Spec.Op, Overlap: src.Spec.Overlap,
		Parsing: d.Spec.Reading(),
		After:   p.After, Resume: p.At, Until: p.Until, Begun: p.Begun, BatchRows: s.cfg.Batch, Access: s.cfg.Access, Parser: s.cfg.Parser,
	}
	if rate := src.Spec.Rate.RowsPerSecond; rate > 0 {
		r.BatchRows = min(r.BatchRows, max(1, rate/4))
	}
	for _, c := range d.Spec.Columns {
		r.Declared = append(r.Declared, source.Column{Name: c.Name, Type: c.Type})
	}
	return r, nil
}

// find gives a source by its name, or by that of its dataset.
func (s *Service) find(ctx context.Context, tx *store.Tx, p project.Name, name string) (Source, error) {
	src, err := s.cfg.Store.Source(ctx, tx, p, name)
	if fault.Is(err, fault.NotFound) {
		src, err = s.cfg.Store.SourceOf(ctx, tx, p, name)
	}
	if fault.Is(err, fault.NotFound) {
		return Source{}, fault.New(fault.NotFound, "there is no source %q in project %s, and no dataset of that name has one", name, p).
			WithHint("Apply a manifest of kind Source first, or list sources with `falaj dataset sources`.")
	}
	return src, err
}

// dress adds what is not stored with a source.
func (s *Service) dress(ctx context.Context, tx *store.Tx, src *Source) error {
	runs, err := s.cfg.Store.Runs(ctx, tx, src.Project, src.Name, "", 1)
	if err != nil {
		return err
	}
	if len(runs) > 0 {
		src.Last = &runs[0]
	}
	schedule, err := ParseSchedule(src.Spec.Schedule)
	src.NextAt = schedule.Next(src.Scheduled)
	return err
}

// One gives a source by its name or that of its dataset. Needs source.read.
func (s *Service) One(ctx context.Context, p project.Name, name string) (src Source, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return Source{}, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if src, err = s.find(ctx, tx, p, name); err != nil {
			return err
		}
		return s.dress(ctx, tx, &src)
	})
	return src, err
}

// List gives a project's sources by name; next is the token of the following
// page. Needs source.read.
func (s *Service) List(ctx context.Context, p project.Name, page dataset.Page) (list []Source, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return nil, "", err
	}
	after, err := base64.RawURLEncoding.DecodeString(page.Token)
	if err != nil {
		return nil, "", fault.New(fault.Invalid, "the page token is invalid")
	}
	size := pageSize(page)
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if list, err = s.cfg.Store.Sources(ctx, tx, p, string(after), size+1); err != nil {
			return err
		}
		if len(list) > size {
			list = list[:size]
			next = base64.RawURLEncoding.EncodeToString([]byte(list[size-1].Name))
		}
		for i := range list {
			if err := s.dress(ctx, tx, &list[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return list, next, err
}

// SearchFields are what a search finds a source by, besides its name, description and owner.
func (s Source) SearchFields() []store.Field {
	return store.FieldsOf("from", s.Spec.From.What(), s.Spec.Dataset)
}

// Find reads those sources, by name after a name, of which may says that they may be what is
// looked for: limit of them at most, without their runs. Needs source.read.
func (s *Service) Find(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (store.Found[Source], error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, "")); err != nil {
		return store.Found[Source]{}, err
	}
	return store.Find(ctx, s.cfg.DB, store.Lookup[Source]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.cfg.Store.Lines(ctx, tx, p, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Source, error) {
			return s.cfg.Store.SourcesOf(ctx, tx, p, names)
		},
		Key: func(src Source) string { return src.Name },
	}, after, limit, may)
}

// Scheduled lists the sources of all projects that have a schedule, with their last run. It
// asks no permission: it is for the metrics.
func (s *Service) Scheduled(ctx context.Context, limit int) (list []Source, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if list, err = s.cfg.Store.Scheduled(ctx, tx, limit); err != nil {
			return err
		}
		for i := range list {
			if err := s.dress(ctx, tx, &list[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return list, err
}

func pageSize(p dataset.Page) int {
	if p.Size <= 0 {
		return 100
	}
	return min(p.Size, 1000)
}

// Delete removes a source; the dataset and its versions stay. Needs
// source.delete. Error: fault.Conflict while a run is under way.
func (s *Service) Delete(ctx context.Context, p project.Name, name string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionDelete, object(p, name)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		src, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if err := s.dress(ctx, tx, &src); err != nil {
			return err
		}
		if src.Last != nil && !src.Last.State.Ended() {
			return fault.New(fault.Conflict, "run %s of source %s is in progress", src.Last.ID, src.Name).
				WithHint("Wait until it ends, or cancel it: falaj dataset cancel %s.", src.Last.ID)
		}
		if err := s.cfg.Store.DeleteSource(ctx, tx, src.ID); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionDelete), Object: "source " + src.Name}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(p), EventDeleted, Event{Source: src.Name, Dataset: src.Spec.Dataset})
	})
}

// SecretUsers lists the sources that use a secret. secrets.Service calls it before it deletes
// one.
func (s *Service) SecretUsers(ctx context.Context, tx *store.Tx, p, secret string) ([]string, error) {
	names, err := s.cfg.Store.WithSecret(ctx, tx, project.Name(p), secret)
	for i := range names {
		names[i] = "source " + names[i]
	}
	return names, err
}

// Start queues a run and returns it; the background loop carries it on. While a
// run of the source is under way, it returns that. anew reads from the beginning.
// Needs source.run, and dataset.query on what the dataset's expectations read.
func (s *Service) Start(ctx context.Context, p project.Name, name string, anew bool) (Run, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRun, object(p, name)); err != nil {
		return Run{}, err
	}
	var src Source
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		src, err = s.find(ctx, tx, p, name)
		return err
	})
	if err != nil {
		return Run{}, err
	}
	if err := s.cfg.Datasets.Definitions.MayRunExpectations(ctx, p, src.Spec.Dataset); err != nil {
		return Run{}, err
	}
	var run Run
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		src, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		var queued bool
		if run, queued, err = s.queue(ctx, tx, src, anew); err == nil && !queued && anew && !run.Anew {
			err = fault.New(fault.Conflict, "run %s of source %s is in progress, and did not start from the beginning", run.ID, src.Name).
				WithHint("Wait until it ends, or cancel it: falaj dataset cancel %s.", run.ID)
		}
		return err
	})
	return run, err
}

// queue makes a run unless one is under way.
func (s *Service) queue(ctx context.Context, tx *store.Tx, src Source, anew bool) (Run, bool, error) {
	last, err := s.cfg.Store.Runs(ctx, tx, src.Project, src.Name, "", 1)
	if err != nil {
		return Run{}, false, err
	}
	if len(last) > 0 && !last[0].State.Ended() {
		return last[0], false, nil
	}
	who := identity.From(ctx)
	run := Run{
		ID: RunID(id.New("ing")), Project: src.Project, Source: src.Name, Dataset: src.Spec.Dataset, State: Queued, Anew: anew,
		CreatedAt: s.now(), CreatedBy: who.ID, Progress: Progress{Revision: src.Revision},
	}
	if run.CreatedBy == "" {
		run.CreatedBy = string(who.Kind)
	}
	if !anew && src.Spec.Mode != source.Full {
		run.Progress.After, run.Progress.Base = src.Position, src.Version
	}
	if err := s.cfg.Store.InsertRun(ctx, tx, run); err != nil {
		return Run{}, false, err
	}
	tx.OnCommit(s.loop.Wake)
	return run, true, audit.Append(ctx, tx, audit.Entry{
		Project: string(src.Project), Action: string(ActionRun), Object: "source " + src.Name,
		Detail: map[string]any{"run": run.ID, "anew": anew, "dataset": src.Spec.Dataset},
	})
}

// Run gives a run. Needs source.read.
func (s *Service) Run(ctx context.Context, p project.Name, run RunID) (r Run, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, string(run))); err != nil {
		return Run{}, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err = s.cfg.Store.Run(ctx, tx, p, run)
		return err
	})
	return r, err
}

// Runs lists a source's runs, newest first. Needs source.read.
func (s *Service) Runs(ctx context.Context, p project.Name, name string, page dataset.Page) (list []Run, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRead, object(p, name)); err != nil {
		return nil, "", err
	}
	size := pageSize(page)
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		src, err := s.find(ctx, tx, p, name)
		if err != nil {
			return err
		}
		list, err = s.cfg.Store.Runs(ctx, tx, p, src.Name, RunID(page.Token), size+1)
		return err
	})
	if len(list) > size {
		list = list[:size]
		next = string(list[size-1].ID)
	}
	return list, next, err
}

// Wait gives a run when it has ended, or when ctx ends. Needs source.read.
func (s *Service) Wait(ctx context.Context, p project.Name, run RunID) (Run, error) {
	tick := time.NewTicker(2 * time.Second) // another process may carry it on
	defer tick.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		r, err := s.Run(ctx, p, run)
		if err != nil || r.State.Ended() {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// tell wakes those who wait for a run.
func (s *Service) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Cancel ends a run and removes the rows that it has read. The dataset does not change. Needs
// source.run. Error: fault.Conflict when it has ended.
func (s *Service) Cancel(ctx context.Context, p project.Name, run RunID) (r Run, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionRun, object(p, string(run))); err != nil {
		return Run{}, err
	}
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if r, err = s.cfg.Store.Run(ctx, tx, p, run); err != nil {
			return err
		}
		if r.State.Ended() {
			return fault.New(fault.Conflict, "run %s already has the state %s", run, r.State)
		}
		before := r.Attempts
		r.Attempts++ // whoever carries it on is kept out
		return s.end(ctx, tx, &r, before, Cancelled, nil)
	})
	if err != nil {
		return Run{}, err
	}
	s.mu.Lock()
	if cancel := s.active[run]; cancel != nil {
		cancel()
	}
	s.mu.Unlock()
	s.tell()
	s.loop.Wake()
	return r, nil
}

// end makes a run's state final.
func (s *Service) end(ctx context.Context, tx *store.Tx, r *Run, attempt int, to State, why error) error {
	r.State, r.EndedAt, r.Error, r.Hint = to, s.now(), "", ""
	if why != nil {
		r.Error, r.Hint = why.Error(), fault.HintOf(why)
	}
	if err := s.cfg.Store.UpdateRun(ctx, tx, *r, attempt); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: string(r.Project), Action: string(ActionRun), Object: "source " + r.Source, Reason: r.Error,
		Detail: map[string]any{"run": r.ID, "state": to, "rows": r.Rows, "dataset": r.Dataset, "version": r.Version, "unchanged": r.Unchanged},
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(r.Project), EventEnded, Event{Source: r.Source, Run: r.ID, State: to, Dataset: r.Dataset, Version: r.Version})
}

func sameSpec(a, b Spec) bool {
	return slices.Equal(a.digestable(), b.digestable()) && sameUndigested(a, b)
}

func sameUndigested(a, b Spec) bool {
	return a.Description == b.Description && a.Schedule == b.Schedule && a.Rate == b.Rate && a.Secret == b.Secret
}
