package quota

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Reached is a quota at which something was refused.
type Reached struct {
	Project string
	Kind    string // the quota is of one kind; empty is that of all that the project stores
	Limit   Amount
	Stored  Amount // without what was refused
}

// crossed is a quota whose refusal was told of.
type crossed struct{ limit, stored Amount }

// reachedQuotas wait to be told of.
type reachedQuotas struct {
	mu   sync.Mutex
	wake func()
	due  []Reached
}

// OnReached sets what is called when a quota is reached; it must not block. Tell has them.
// Call it before the accounts are used.
func (a *Accounts) OnReached(wake func()) { a.reached.wake = wake }

// Tell hands over each quota that was reached: once when something is refused, and again
// when something is refused after a tenth of the quota was stored or deleted, or the quota was changed.
// In between, each refusal is part of the same event. What fails is told with the next call,
// like everything that came meanwhile.
func (a *Accounts) Tell(ctx context.Context, each func(ctx context.Context, r Reached) error) error {
	a.reached.mu.Lock()
	due := a.reached.due
	a.reached.due = nil
	a.reached.mu.Unlock()
	var failed []Reached // of one project: others are told all the same
	var errs []error
	for _, r := range due {
		if err := each(ctx, r); err != nil {
			failed, errs = append(failed, r), append(errs, err)
		}
	}
	a.reached.mu.Lock()
	a.reached.due = slices.Concat(failed, a.reached.due)
	a.reached.mu.Unlock()
	return errors.Join(errs...)
}

// refused has a refusal told, unless it was.
func (acc *account) refused(o *over) {
	acc.mu.Lock()
	now := crossed{o.most, acc.atRest(o.kind)}
	if told, is := acc.told[o.kind]; is && told.limit == now.limit {
		acc.mu.Unlock()
		return
	}
	acc.told[o.kind] = now
	acc.mu.Unlock()
	q := &acc.of.reached
	q.mu.Lock()
	q.due = append(q.due, Reached{Project: acc.project, Kind: o.kind, Limit: now.limit, Stored: now.stored})
	q.mu.Unlock()
	if q.wake != nil {
		q.wake()
	}
}

// moved has the next refusal told when enough has changed since the last one that was. Less
// is one event: a program that stores and deletes one small file at the quota makes no other. Under mu.
func (acc *account) moved(kind string) {
	told, is := acc.told[kind]
	if !is {
		return
	}
	now := acc.atRest(kind)
	far := func(limit, was, is int64) bool { return limit > 0 && max(was-is, is-was) >= max(1, limit/10) }
	if far(told.limit.Bytes, told.stored.Bytes, now.Bytes) || far(told.limit.Objects, told.stored.Objects, now.Objects) {
		delete(acc.told, kind)
	}
}

// atRest is what is stored, without what is being written; kind "" is the sum. Under mu.
func (acc *account) atRest(kind string) Amount {
	stored, moving := acc.sum, acc.unsettled.sum()
	if kind != "" {
		stored, moving = acc.kinds.of(kind), acc.unsettled.of(kind)
	}
	return Amount{stored.Bytes - moving.Bytes, stored.Objects - moving.Objects}
}
