package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Lease makes one process the owner of something, usually a background loop,
// until it expires. Each new owner has a larger epoch; Fence keeps the writes of
// a former owner out, however late they come. Safe for concurrent use.
type Lease struct {
	db           *DB
	name, holder string
	epoch        int64
	ttl          time.Duration
}

// Lease takes the lease for ttl. holder names the process for people to read.
// Error: fault.Conflict while another holder has it.
func (db *DB) Lease(ctx context.Context, name, holder string, ttl time.Duration) (*Lease, error) {
	return db.take(ctx, name, holder, ttl, `store_lease.expires <= `+db.engine.now())
}

// Retake is Lease for a holder of which only one process runs at a time, such as the owner
// of a data directory: it also takes the lease that its killed predecessor left.
func (db *DB) Retake(ctx context.Context, name, holder string, ttl time.Duration) (*Lease, error) {
	return db.take(ctx, name, holder, ttl, `store_lease.expires <= `+db.engine.now()+` OR store_lease.holder = excluded.holder`)
}

func (db *DB) take(ctx context.Context, name, holder string, ttl time.Duration, free string) (*Lease, error) {
	if ttl < time.Millisecond {
		return nil, fault.New(fault.Internal, "store: lease %q for %s", name, ttl)
	}
	l := &Lease{db: db, name: name, holder: holder, ttl: ttl}
	err := db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
		now := db.engine.now()
		err := tx.NewRaw(`INSERT INTO store_lease (name, holder, epoch, expires) VALUES (?, ?, 1, `+now+` + ?)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = store_lease.epoch + 1, expires = excluded.expires
			WHERE `+free+` RETURNING epoch`, name, holder, ttl.Microseconds()).Scan(ctx, &l.epoch)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var other string
		var left int64
		err = tx.NewRaw(`SELECT holder, expires - `+now+` FROM store_lease WHERE name = ?`, name).Scan(ctx, &other, &left)
		if err != nil {
			return err
		}
		return fault.New(fault.Conflict, "%s holds the lease %q for another %s", other, name, (time.Duration(left) * time.Microsecond).Round(time.Millisecond)).
			WithHint("The lease is released when that process ends or stops renewing it.")
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Holders are the holders of the leases whose names begin with prefix and that have not
// expired, by the names' remainders.
func (db *DB) Holders(ctx context.Context, prefix string) (map[string]string, error) {
	var rows []struct{ Name, Holder string }
	err := db.View(ctx, func(ctx context.Context, tx *Tx) error {
		rows = nil
		return tx.NewRaw(`SELECT name, holder FROM store_lease WHERE substr(name, 1, ?) = ? AND expires > `+db.engine.now(),
			utf8.RuneCountInString(prefix), prefix).Scan(ctx, &rows)
	})
	holders := make(map[string]string, len(rows))
	for _, r := range rows {
		holders[strings.TrimPrefix(r.Name, prefix)] = r.Holder
	}
	return holders, err
}

// Epoch counts the owners; it is larger for each.
func (l *Lease) Epoch() uint64 { return uint64(l.epoch) } //nolint:gosec // G115: epochs begin at 1 and rise

// Renew extends the lease to its full duration from now, also when it has
// expired but was not taken. Error: fault.Conflict when another holder took it.
func (l *Lease) Renew(ctx context.Context) error { return l.set(ctx, l.db.engine.now()+` + ?`) }

// Release gives the lease back, so that the next owner need not wait.
func (l *Lease) Release(ctx context.Context) error {
	err := l.set(ctx, `0 * ?`)
	if fault.Is(err, fault.Conflict) {
		return nil // another owner has it already
	}
	return err
}

func (l *Lease) set(ctx context.Context, expires string) error {
	return l.db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
		res, err := tx.NewRaw(`UPDATE store_lease SET expires = `+expires+` WHERE name = ? AND epoch = ?`,
			l.ttl.Microseconds(), l.name, l.epoch).Exec(ctx)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return l.lost()
	})
}

// Fence makes tx the owner's: it fails with fault.Conflict once a newer epoch
// exists, and a takeover that commits at the same time makes one of them fail.
func (l *Lease) Fence(ctx context.Context, tx *Tx) error {
	var epoch int64
	err := tx.NewRaw(`SELECT epoch FROM store_lease WHERE name = ?`, l.name).Scan(ctx, &epoch)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if epoch != l.epoch {
		return l.lost()
	}
	return nil
}

// Keep runs fn while it renews the lease three times in each of its durations,
// and releases it afterwards. When the lease is lost, or could not be renewed
// for its whole duration, fn's context is cancelled and Keep returns the reason.
func (l *Lease) Keep(ctx context.Context, fn func(ctx context.Context) error) error {
	run, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.renewing(run, cancel)
	}()
	defer func() {
		cancel(context.Canceled)
		<-done
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), l.ttl)
		defer stop()
		_ = l.Release(end) // at worst it expires by itself
	}()
	err := fn(run)
	if cause := context.Cause(run); ctx.Err() == nil && cause != nil {
		return cause
	}
	return err
}

func (l *Lease) renewing(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(max(l.ttl/3, time.Millisecond))
	defer tick.Stop()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		try, stop := context.WithTimeout(ctx, l.ttl/3)
		began := time.Now()
		err := l.Renew(try)
		stop()
		switch {
		case err == nil:
			renewed = began
		case fault.Is(err, fault.Conflict):
			cancel(err)
			return
		case time.Since(renewed) >= l.ttl:
			cancel(fault.New(fault.Unavailable, "the lease %q could not be renewed within %s: %w", l.name, l.ttl, err).
				WithHint("Another process may take over; check the database's health."))
			return
		}
	}
}

func (l *Lease) lost() error {
	return fault.New(fault.Conflict, "the lease %q is no longer held by %s (epoch %d)", l.name, l.holder, l.epoch).
		WithHint("Another process has taken over; this one must stop.")
}
