package tenancy

import (
	"context"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// rosterTTL is how late another process sees a change of grants.
const rosterTTL = 4 * time.Second

// rosterSize bounds the principals remembered.
const rosterSize = 8192

// Roster answers who has which roles and which projects there are, from a cache
// that is right at once for changes of this process and within 5 s for those of
// others; while the database is away it is what was read before, see store.Grace. It stands apart from Service because policy needs it before there can be
// one. Safe for concurrent use.
type Roster struct {
	db    *store.DB
	store Store

	mu         sync.RWMutex
	generation uint64 // grows with Forget
	held       map[string]held
	there      map[project.Name]time.Time // projects, and when that was read
}

type held struct {
	grants []project.Grant
	read   time.Time
}

// NewRoster makes the roster.
func NewRoster(db *store.DB, s Store) *Roster {
	return &Roster{db: db, store: s, held: map[string]held{}, there: map[project.Name]time.Time{}}
}

// GrantsOf lists the principal's grants in all projects and the installation.
// The caller must not change the slice.
func (r *Roster) GrantsOf(ctx context.Context, principal string) ([]project.Grant, error) {
	r.mu.RLock()
	h, ok := r.held[principal]
	generation := r.generation
	r.mu.RUnlock()
	if ok && (time.Since(h.read) < rosterTTL || r.db.Bridges(h.read)) {
		return h.grants, nil
	}
	grants, err := r.readGrants(ctx, principal, generation)
	if err != nil && ok && r.db.Bridges(h.read) {
		return h.grants, nil
	}
	return grants, err
}

// readGrants asks the database, and remembers unless there was a change since generation.
func (r *Roster) readGrants(ctx context.Context, principal string, generation uint64) ([]project.Grant, error) {
	h := held{read: time.Now()}
	mayGo := false
	err := r.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		mayGo = tx.Writes()
		h.grants, err = r.store.GrantsOf(ctx, tx, principal)
		return err
	})
	if err != nil {
		return nil, err
	}
	if mayGo {
		return h.grants, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.generation != generation { // a change came between; what was read may be from before it
		return h.grants, nil
	}
	if len(r.held) >= rosterSize {
		for name := range r.held { // any one: the order of a map is as good as random
			delete(r.held, name)
			break
		}
	}
	r.held[principal] = h
	return h.grants, nil
}

// Exists is nil for a project that there is in the transaction, else fault.NotFound.
func (r *Roster) Exists(ctx context.Context, tx *store.Tx, name project.Name) error {
	_, err := r.store.One(ctx, tx, name)
	return err
}

// Known is Exists from the cache. That there is none is never from there.
func (r *Roster) Known(ctx context.Context, name project.Name) error {
	r.mu.RLock()
	read, ok := r.there[name]
	generation := r.generation
	r.mu.RUnlock()
	if ok && (time.Since(read) < rosterTTL || r.db.Bridges(read)) {
		return nil
	}
	former := read
	read = time.Now()
	mayGo := false
	err := r.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		mayGo = tx.Writes()
		return r.Exists(ctx, tx, name)
	})
	if fault.Is(err, fault.NotFound) { // an outage must not bring it back
		r.mu.Lock()
		delete(r.there, name)
		r.mu.Unlock()
	} else if err != nil && ok && r.db.Bridges(former) {
		return nil
	}
	if err != nil || mayGo {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.generation == generation {
		if len(r.there) >= rosterSize {
			clear(r.there)
		}
		r.there[name] = read
	}
	return nil
}

// Forget makes the next question about the principal ask the database; an empty
// principal means everybody, and the projects.
func (r *Roster) Forget(principal string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	if principal == "" {
		clear(r.held)
		clear(r.there)
		return
	}
	delete(r.held, principal)
}
