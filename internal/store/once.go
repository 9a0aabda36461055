package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of idempotency keys.
const (
	keepAnswers = 24 * time.Hour
	maxKey      = 255     // bytes
	maxAnswer   = 1 << 20 // bytes
)

// Once makes a request with an idempotency key take effect at most once within
// 24 hours. The first Update under its context claims the key in the same
// transaction, so the claim is there exactly if the effect is; Keep then stores
// the answer for repetitions of the request.
type Once struct {
	db         *DB
	scope, key string
	request    [sha256.Size]byte
	owner      string // tells this request's claim from that of a concurrent repetition
	answer     []byte
	replayed   bool
	claimed    atomic.Bool
}

type onceKey struct{}

func onceFrom(ctx context.Context, db *DB) *Once {
	o, _ := ctx.Value(onceKey{}).(*Once)
	if o == nil || o.db != db || o.replayed || o.claimed.Load() {
		return nil
	}
	return o
}

// Once begins a request. scope holds the keys of one caller apart from those of
// another (principal and project). request is what two equal requests have in common. Only its
// digest is stored; guessable data in it must be digested under a key by the caller. When Replayed is set, the caller answers with what it
// returns; otherwise it acts under the returned context and calls Keep.
//
// Errors: fault.Invalid for a key that is empty or over 255 bytes;
// fault.Conflict when the key came with another request before, or the first
// request with it is not answered yet.
func (db *DB) Once(ctx context.Context, scope, key string, request []byte) (context.Context, *Once, error) {
	if key == "" || len(key) > maxKey {
		return nil, nil, fault.New(fault.Invalid, "an idempotency key has 1 to %d bytes, not %d", maxKey, len(key)).
			WithHint("Use a fresh random key, such as a UUID, for each new request.")
	}
	o := &Once{db: db, scope: scope, key: key, request: sha256.Sum256(request), owner: rand.Text()}
	err := db.View(ctx, func(ctx context.Context, tx *Tx) error {
		c, err := o.find(ctx, tx)
		if c == nil || err != nil {
			return err
		}
		if err := o.same(c); err != nil {
			return err
		}
		if c.Answer == nil {
			return o.unanswered()
		}
		o.answer, o.replayed = c.Answer, true
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return context.WithValue(ctx, onceKey{}, o), o, nil
}

// Replayed returns the first answer when the request was made before.
func (o *Once) Replayed() (answer []byte, ok bool) { return o.answer, o.replayed }

// Keep stores the answer, also when ctx has ended meanwhile. It does nothing when
// the request changed nothing: then the caller may try it again with the same
// key. Error: fault.TooLarge over 1 MiB; the effect then stays guarded, and a
// repetition gets fault.Conflict instead of the answer.
func (o *Once) Keep(ctx context.Context, answer []byte) error {
	if !o.claimed.Load() {
		return nil
	}
	if len(answer) > maxAnswer {
		return fault.New(fault.TooLarge, "a response of %d bytes is not stored for idempotent retries", len(answer))
	}
	if answer == nil {
		answer = []byte{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxTurnWait)
	defer cancel()
	return o.db.Update(ctx, "", func(ctx context.Context, tx *Tx) error {
		_, err := tx.NewRaw(`UPDATE store_idempotency SET answer = ? WHERE scope = ? AND key = ? AND owner = ?`,
			answer, o.scope, o.key, o.owner).Exec(ctx)
		return err
	})
}

type claim struct {
	Request []byte
	Owner   string
	Answer  []byte
	At      Time
}

// find is the claim that stands for the key, nil if there is none.
func (o *Once) find(ctx context.Context, tx *Tx) (*claim, error) {
	var c claim
	err := tx.NewRaw(`SELECT request, owner, answer, at FROM store_idempotency WHERE scope = ? AND key = ?`,
		o.scope, o.key).Scan(ctx, &c.Request, &c.Owner, &c.Answer, &c.At)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case c.At.Time().Before(time.Now().Add(-keepAnswers)):
		return nil, nil
	}
	return &c, nil
}

// claim takes the key in the transaction of the effect, and forgets a few old ones.
func (o *Once) claim(ctx context.Context, tx *Tx) error {
	c, err := o.find(ctx, tx)
	if err != nil {
		return err
	}
	if c != nil {
		if c.Owner == o.owner { // another Update of the same request was faster
			return nil
		}
		if err := o.same(c); err != nil {
			return err
		}
		return o.unanswered()
	}
	now := time.Now()
	_, err = tx.NewRaw(`DELETE FROM store_idempotency WHERE (scope, key) IN
		(SELECT scope, key FROM store_idempotency WHERE at < ? ORDER BY at LIMIT 100)`, At(now.Add(-keepAnswers))).Exec(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NewRaw(`INSERT INTO store_idempotency (scope, key, request, owner, at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (scope, key) DO UPDATE SET request = excluded.request, owner = excluded.owner, answer = NULL, at = excluded.at`,
		o.scope, o.key, o.request[:], o.owner, At(now)).Exec(ctx)
	return err
}

func (o *Once) same(c *claim) error {
	if subtle.ConstantTimeCompare(c.Request, o.request[:]) == 1 {
		return nil
	}
	return fault.New(fault.Conflict, "the idempotency key %q was already used with another request", o.key).
		WithHint("Use a fresh key for each new request.")
}

func (o *Once) unanswered() error {
	return fault.New(fault.Conflict, "the request with the idempotency key %q is in progress", o.key).
		WithHint("Try again in a few seconds; if this persists, check whether the object exists.")
}
