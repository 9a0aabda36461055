package event

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// Bounds of a subscription.
const (
	page         = 100                   // events read at a time
	pace         = 20 * time.Millisecond // between two reads, where events come all the time
	keepEvery    = 1000                  // events between two writes of the cursor, and
	keepPause    = time.Second           // its least age by then, or once nothing comes
	leaseTime    = 15 * time.Second      // until another process takes over from one that died
	handleTime   = 10 * time.Minute      // of one handler call
	cursorPrefix = "event/"
)

// Config says who subscribes to what. Exactly one of Handle and HandleTx is set.
type Config struct {
	// Name is the subscription's own for ever: its place is kept under it.
	Name string
	// Names are the events wanted: whole names, or "job.*" for all of a domain.
	// None means every event.
	Names []string
	// FromNow makes a subscription that never ran begin with what comes now
	// instead of the oldest event kept.
	FromNow bool
	// Handle acts on an event and may do I/O. Within ten minutes it returns; an
	// error or a panic brings the same event again after a pause.
	Handle func(ctx context.Context, e Event) error
	// HandleTx acts in the transaction that moves the subscription on, so that its
	// effect takes place exactly once. It does no other I/O and may run again.
	HandleTx func(ctx context.Context, tx *store.Tx, e Event) error
	// Logger hears of failures; nil means slog.Default().
	Logger *slog.Logger
}

// Subscription calls its handler for each event from where it stopped last.
// Where processes share the database, one of them at a time does; another takes
// over when it ends. Safe for concurrent use.
type Subscription struct {
	db    *store.DB
	cfg   Config
	lease time.Duration

	mu     sync.Mutex
	status Status
	cancel context.CancelFunc
	done   chan struct{}

	// Of the goroutine that runs:
	loaded bool
	at     store.Position // up to here it is done
	kept   store.Position // up to here it is done durably
	since  int            // events between kept and at
	wanted bool           // one of them was handled
	wrote  time.Time      // when kept was written
}

// Status is how a subscription goes.
type Status struct {
	Position store.Position // up to here it is done
	Failures int            // in a row, up to now
	Err      error          // of the last attempt; nil when all is well
}

// Subscribe makes a subscription, which Start begins.
func Subscribe(db *store.DB, cfg Config) *Subscription {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Subscription{db: db, cfg: cfg, lease: leaseTime}
}

// Unsubscribe forgets a subscription that will not run again.
func Unsubscribe(ctx context.Context, db *store.DB, name string) error {
	return db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return tx.DropCursor(ctx, cursorPrefix+name) })
}

// Start begins to call the handler; ctx's values reach it, its end does not.
func (s *Subscription) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil || (s.cfg.Handle == nil) == (s.cfg.HandleTx == nil) || s.cfg.Name == "" {
		return fault.New(fault.Internal, "event: subscription %q starts once, with a name and one handler", s.cfg.Name)
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.done = make(chan struct{})
	go s.run(ctx)
	return nil
}

// Stop cancels the handler and returns when it has ended. It may be called
// twice, and without Start.
func (s *Subscription) Stop(ctx context.Context) error {
	s.mu.Lock()
	cancel, done := s.cancel, s.done
	s.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "subscription %s", s.cfg.Name)
	}
}

// Service is the subscription as a part of a lifecycle.Group.
func (s *Subscription) Service() lifecycle.Service {
	return lifecycle.Service{Name: "subscription " + s.cfg.Name, Start: s.Start, Stop: s.Stop}
}

// Status is how it goes.
func (s *Subscription) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Subscription) run(ctx context.Context) {
	defer close(s.done)
	var backoff lifecycle.Backoff
	for {
		before := s.at
		owner, err := s.owned(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.at != before {
			backoff.Reset()
		}
		pause := backoff.Next()
		if !owner && fault.Is(err, fault.Conflict) {
			// Another process does it; look again soon after it may have ended.
			backoff.Reset()
			pause = s.lease / 3
		} else {
			s.note(err)
			s.cfg.Logger.WarnContext(ctx, "event subscription failed", slog.String("subscription", s.cfg.Name),
				slog.String("after", s.at.String()), slog.Any("error", err), slog.Duration("pause", pause))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// owned follows the stream until an error, as the only process that does; owner
// is false when another one has the lease.
func (s *Subscription) owned(ctx context.Context) (owner bool, err error) {
	s.loaded = false
	if !s.db.Shared() {
		return true, s.follow(ctx, nil)
	}
	lease, err := s.db.Lease(ctx, cursorPrefix+s.cfg.Name, rand.Text()[:8], s.lease)
	if err != nil {
		return false, err
	}
	return true, lease.Keep(ctx, func(ctx context.Context) error { return s.follow(ctx, lease) })
}

func (s *Subscription) follow(ctx context.Context, lease *store.Lease) (err error) {
	defer func() {
		// What was done is kept, also when it ends in the middle of a page.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if keepErr := s.keep(end, lease); err == nil {
			err = keepErr
		}
	}()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		changed := s.db.Changed(stream)
		n, err := s.step(ctx, lease)
		if err != nil {
			return err
		}
		s.note(nil)
		if n > 0 {
			continue
		}
		var late <-chan time.Time // what was handled last is recorded, too, when nothing follows
		if s.wanted {
			late = time.After(keepPause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			if err := s.keep(ctx, lease); err != nil {
				return err
			}
			continue
		case <-changed:
		}
		// After a pause it reads at once; in a burst what came meanwhile, not each
		// event by itself.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-rest.C:
			rest.Reset(pace)
		}
	}
}

// RunOnce handles the events that are there and returns; a test may call it
// instead of Start.
func (s *Subscription) RunOnce(ctx context.Context) error {
	for {
		n, err := s.step(ctx, nil)
		if err != nil || n == 0 {
			s.note(err)
			if keepErr := s.keep(ctx, nil); err == nil {
				err = keepErr
			}
			return err
		}
	}
}

// step handles one page of events and returns how many there were.
func (s *Subscription) step(ctx context.Context, lease *store.Lease) (int, error) {
	if err := s.load(ctx); err != nil {
		return 0, err
	}
	records, _, err := s.db.ReadStream(ctx, stream, s.at, page)
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		if s.wants(r.Kind) {
			s.wanted = s.wanted || s.cfg.Handle != nil // HandleTx moves on by itself
			if err := s.handle(ctx, lease, of(r)); err != nil {
				return 0, fault.Wrap(err, "event %s at %s", r.Kind, r.Position)
			}
		}
		s.at = r.Position
		s.since++
	}
	// A write of the cursor is a sync of the disk. Between two of them are many events, of
	// which a crash brings some again: a handler expects that.
	if s.since >= keepEvery || s.wanted && time.Since(s.wrote) >= keepPause {
		if err := s.keep(ctx, lease); err != nil {
			return 0, err
		}
	}
	return len(records), nil
}

// load finds the place to go on from.
func (s *Subscription) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	now, err := s.db.Watermark(ctx)
	if err != nil {
		return err
	}
	fresh := false
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		s.at, err = tx.Cursor(ctx, cursorPrefix+s.cfg.Name)
		fresh = s.at == store.Position{}
		return err
	})
	if err != nil {
		return err
	}
	s.kept, s.since, s.loaded = s.at, 0, true
	if fresh {
		if s.cfg.FromNow {
			s.at = now
		}
		// From its first moment it keeps Trim from what it has not seen.
		return s.write(ctx, nil, s.at)
	}
	return nil
}

func (s *Subscription) handle(ctx context.Context, lease *store.Lease, e Event) error {
	ctx, cancel := context.WithTimeout(ctx, handleTime)
	defer cancel()
	if s.cfg.Handle != nil {
		return lifecycle.Recover(func() error { return s.cfg.Handle(ctx, e) })
	}
	err := lifecycle.Recover(func() error {
		return s.db.Update(ctx, e.Project, func(ctx context.Context, tx *store.Tx) error {
			if err := s.move(ctx, tx, lease, e.Position); err != nil {
				return err
			}
			return s.cfg.HandleTx(ctx, tx, e)
		})
	})
	if err == nil {
		s.kept, s.since = e.Position, 0
	}
	return err
}

// keep makes the place durable.
func (s *Subscription) keep(ctx context.Context, lease *store.Lease) error {
	if !s.loaded || s.kept == s.at {
		return nil
	}
	return s.write(ctx, lease, s.at)
}

func (s *Subscription) write(ctx context.Context, lease *store.Lease, at store.Position) error {
	err := s.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.move(ctx, tx, lease, at) })
	if err == nil {
		s.kept, s.since, s.wanted, s.wrote = at, 0, false, time.Now()
	}
	return err
}

func (s *Subscription) move(ctx context.Context, tx *store.Tx, lease *store.Lease, at store.Position) error {
	if lease != nil {
		if err := lease.Fence(ctx, tx); err != nil {
			return err
		}
	}
	return tx.SetCursor(ctx, cursorPrefix+s.cfg.Name, at)
}

func (s *Subscription) wants(name string) bool {
	return len(s.cfg.Names) == 0 || slices.ContainsFunc(s.cfg.Names, func(want string) bool {
		if prefix, ok := strings.CutSuffix(want, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == want
	})
}

func (s *Subscription) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Position, s.status.Err = s.at, err
	if err == nil {
		s.status.Failures = 0
	} else {
		s.status.Failures++
	}
}
