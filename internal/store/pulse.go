package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of waiting for a PostgreSQL that is away.
const (
	beatEvery = time.Second     // between questions whether the server is there
	beatTime  = 3 * time.Second // that it may take to answer one; longer, and it hangs
	// maxOutage is how long after the beginning of an outage transactions wait for its end:
	// long enough for a server that is restarted. Later ones fail at once.
	maxOutage = 5 * time.Second
)

// So a transaction that begins before an outage ends within beatEvery + maxOutage.

// errAway is the error of everything that an outage stopped. It names no address, because callers
// see it.
var errAway = fault.New(fault.Unavailable, "the database is unavailable").
	WithHint("Try again when PostgreSQL is running; the server's log has details.").WithRetry(2 * time.Second)

// away is errAway with its cause, for the log.
func away(cause error) error {
	e := *errAway
	e.Err = errors.Join(errAway, cause)
	return &e
}

// Grace is how long data that was read from the database may be served from memory while the
// database is unavailable.
const Grace = 15 * time.Minute

// Bridges reports whether data that was read at a time may be served from memory now: the database
// is unavailable, and the read is less than Grace ago. So requests are still answered, with the
// tokens, roles and keys of that time.
func (db *DB) Bridges(read time.Time) bool {
	return db.Outage() != nil && time.Since(read) < Grace
}

// pulse pings the server regularly on a connection of its own, so that a slow transaction is not
// taken for a server that hangs. An outage ends everything in progress, because a connection to a
// stopped process stays silent for ever.
type pulse struct {
	ping func(ctx context.Context) error
	log  *slog.Logger
	now  func() time.Time
	soon chan struct{} // asks for a beat now

	mu    sync.Mutex
	since time.Time          // the beginning of the outage; zero without one
	alive context.Context    //nolint:containedctx // ends with the next outage; replaced by one that is alive
	lost  context.CancelFunc // of alive
	back  chan struct{}      // closed at the end of the outage
}

func newPulse(ping func(context.Context) error, log *slog.Logger) *pulse {
	p := &pulse{ping: ping, log: log, now: time.Now, soon: make(chan struct{}, 1)}
	p.alive, p.lost = context.WithCancel(context.Background())
	return p
}

// run beats until ctx ends.
func (p *pulse) run(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.soon:
		}
		p.beat(ctx)
	}
}

// beat asks once.
func (p *pulse) beat(ctx context.Context) {
	began := p.now()
	bounded, cancel := context.WithTimeout(ctx, beatTime)
	err := p.ping(bounded)
	cancel()
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil && p.since.IsZero():
		p.since, p.back = began, make(chan struct{})
		p.lost()
		p.log.WarnContext(ctx, "the database is unavailable", slog.Any("error", err))
	case err == nil && !p.since.IsZero():
		p.log.InfoContext(ctx, "the database is available again", slog.Duration("away", p.now().Sub(p.since)))
		p.since = time.Time{}
		p.alive, p.lost = context.WithCancel(context.Background())
		close(p.back)
	}
}

// outage is errAway during one.
func (p *pulse) outage() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return nil
	}
	return errAway
}

// during gives a context that ends with the next outage. In one that has just begun it
// waits for the end. Error: errAway.
func (p *pulse) during(ctx context.Context) (context.Context, error) {
	p.mu.Lock()
	alive, since, back := p.alive, p.since, p.back
	p.mu.Unlock()
	if since.IsZero() {
		return alive, nil
	}
	left := maxOutage - p.now().Sub(since)
	if left <= 0 {
		return nil, errAway
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-back:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.alive, nil
	case <-timer.C:
		return nil, errAway
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// through runs f under a context that ends with an outage. It runs f again if the connection was
// lost before anything could have been committed, because the server may be
// restarting. Error: errAway, if the server is not available again in time.
func (p *pulse) through(ctx context.Context, f func(ctx context.Context) error) error {
	began := p.now()
	for {
		alive, err := p.during(ctx)
		if err != nil {
			return err
		}
		err = bound(ctx, alive, f)
		if err == nil || ctx.Err() != nil || !lostConnection(err) {
			return err
		}
		select {
		case p.soon <- struct{}{}: // it is known sooner
		default:
		}
		if p.now().Sub(began) > maxOutage {
			return away(err)
		}
		timer := time.NewTimer(maxPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// bound runs f in a context that also ends with alive, and says then that it was so.
func bound(ctx, alive context.Context, f func(context.Context) error) error {
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(alive, func() { cancel(errAway) })
	defer func() { stop(); cancel(nil) }()
	err := f(within)
	if err != nil && errors.Is(context.Cause(within), errAway) && fault.KindOf(err) == fault.Internal {
		return errAway
	}
	return err
}
