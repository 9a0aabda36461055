package alert

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Row is a delivery with what is needed to deliver it.
type Row struct {
	Delivery
	TargetKey string
	Dedup     string // unique within the project
	To        Target
	Label     residency.Label
	Form      string // of the delivery; empty is a CloudEvent
	Body      []byte // the CloudEvent, or what the form sends
}

// Secret is a webhook secret without its value.
type Secret struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
}

// Store is what the package needs of a database. All methods run in the caller's
// transaction.
type Store interface {
	// Insert adds a delivery, unless the project has one of that Dedup; it says
	// whether it did.
	Insert(ctx context.Context, tx *store.Tx, r Row) (bool, error)
	// CountQueued counts a project's deliveries that wait.
	CountQueued(ctx context.Context, tx *store.Tx, project string) (int, error)
	// Due is the oldest queued delivery of each target that is due at a time; at
	// most limit. Projects take turns, and of each the longest due comes first.
	Due(ctx context.Context, tx *store.Tx, at time.Time, limit int) ([]ID, error)
	// One finds a delivery. Error: fault.NotFound.
	One(ctx context.Context, tx *store.Tx, delivery ID) (Row, error)
	// Change writes state, attempts, next, ended and reason of a delivery if it
	// still has so many attempts and is in that state; it says whether it did.
	Change(ctx context.Context, tx *store.Tx, d Delivery, was State, attempts int64) (bool, error)
	// Postpone lets a target's queued deliveries wait until a time, at least.
	Postpone(ctx context.Context, tx *store.Tx, targetKey string, until time.Time) error
	// Retarget has what is queued of a source go to another target from now on, due at
	// a time.
	Retarget(ctx context.Context, tx *store.Tx, project, source string, to Target, key string, due time.Time) error
	// List is a page of a project's deliveries, the newest first, before an ID. An
	// empty state is any.
	List(ctx context.Context, tx *store.Tx, project string, state State, before ID, limit int) ([]Delivery, error)
	// Trim deletes what ended before a time.
	Trim(ctx context.Context, tx *store.Tx, before time.Time) error

	// Forget deletes all that a project has.
	Forget(ctx context.Context, tx *store.Tx, project string) error

	// PutSecret keeps a sealed secret, in place of one of that name.
	PutSecret(ctx context.Context, tx *store.Tx, project string, s Secret, sealed []byte) error
	// SealedSecret finds one. Error: fault.NotFound.
	SealedSecret(ctx context.Context, tx *store.Tx, project, name string) ([]byte, error)
	// Secrets lists a project's by name.
	Secrets(ctx context.Context, tx *store.Tx, project string) ([]Secret, error)
	// DeleteSecret removes one. Error: fault.NotFound.
	DeleteSecret(ctx context.Context, tx *store.Tx, project, name string) error
}
