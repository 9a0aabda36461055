package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Erasing an entry's content takes two people:
//
//	requested ──another person approves──▶ done
//	    ├──another person rejects──▶ rejected
//	    ├──the same person──▶ withdrawn
//	    └──7 days──▶ expired
//
// Each step is an entry of the log. That of the erasure itself restates, of each erased
// entry, index, leaf, time, actor, action and outcome: these stay.

// Limits of an erasure.
const (
	maxErase    = 1000 // entries of a request
	eraseChunk  = 100  // entries that one entry of the log names
	maxLost     = 10_000
	eraseAnswer = 7 * 24 * time.Hour
)

// ErasureState is how far a request to erase entries is.
type ErasureState string

// The states.
const (
	ErasureRequested ErasureState = "requested"
	ErasureDone      ErasureState = "done"
	ErasureRejected  ErasureState = "rejected"
	ErasureWithdrawn ErasureState = "withdrawn"
	ErasureExpired   ErasureState = "expired"
)

// EntryErasure is a request to erase what entries say.
type EntryErasure struct {
	ID              string       `json:"id"`
	Indexes         []int64      `json:"indexes" doc:"Numbers of the entries, as falaj audit list shows them"`
	Reason          string       `json:"reason" doc:"Reason; recorded in the audit log, so without the person's name"`
	State           ErasureState `json:"state" enum:"requested,done,rejected,withdrawn,expired"`
	RequestedBy     string       `json:"requested_by"`
	RequestedByName string       `json:"requested_by_name,omitempty"`
	RequestedAt     time.Time    `json:"requested_at"`
	ExpiresAt       time.Time    `json:"expires_at" doc:"After this time it has to be requested again"`
	DecidedBy       string       `json:"decided_by,omitempty"`
	DecidedByName   string       `json:"decided_by_name,omitempty"`
	DecidedAt       time.Time    `json:"decided_at,omitzero"`
	Erased          int          `json:"erased,omitempty" doc:"Entries that were erased by this call"`
}

// SecondPerson decides whether the caller may approve what another person requested: nil
// means yes. It is asked in the transaction of the approval.
type SecondPerson func(ctx context.Context, tx *store.Tx, requestedBy string, requestedAt time.Time) error

// anotherPerson is the SecondPerson where the installation sets none.
func anotherPerson(ctx context.Context, _ *store.Tx, requestedBy string, _ time.Time) error {
	if p := identity.From(ctx); p.ID == requestedBy {
		return fault.New(fault.PermissionDenied, "erasing audit entries takes two people, and %s made this request", p).
			WithHint("Ask another administrator of the installation to approve it.")
	}
	return nil
}

// protected are the nouns of the actions whose entries are never erased, and actions of
// other nouns: entries about permissions, and entries that are evidence.
var (
	protectedNouns   = []string{"audit", "policy", "project", "member", "request", "token", "account", "key", "keys", "zone", "erasure", "secret", "backup", "system", "pool"}
	protectedActions = []string{
		"dataset.relabel", "dataset.classify", "model.approve", "model.govern", "model.promote", "model.verify", "deployment.rollout", "feature.clear", "workload.place",
	}
)

// Protected reports whether entries of the action cannot be erased.
func Protected(action string) bool {
	noun, _, _ := strings.Cut(action, ".")
	return slices.Contains(protectedNouns, noun) || slices.Contains(protectedActions, action)
}

// RequestErasure asks to erase what entries say; another person approves it. Needs
// audit.erase on the installation, and a person. Errors: fault.Invalid without a reason
// or with more than 1,000 entries; fault.NotFound when one is not there or erased
// already; fault.PermissionDenied for an entry that cannot be erased (see Protected);
// fault.Conflict for one that is not what was signed.
func (s *Service) RequestErasure(ctx context.Context, indexes []int64, reason string) (EntryErasure, error) {
	if err := s.cfg.Authorize(ctx, ActionErase, ""); err != nil {
		return EntryErasure{}, err
	}
	indexes = slices.Compact(slices.Sorted(slices.Values(indexes)))
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason || len(indexes) == 0 || len(indexes) > maxErase {
		return EntryErasure{}, fault.New(fault.Invalid, "erasing audit entries needs a reason of at most %d bytes and 1 to %d entries", maxReason, maxErase).
			WithHint("Give a reason, and name the entries by their index.")
	}
	p := identity.From(ctx)
	if err := onlyPeople(p); err != nil {
		return EntryErasure{}, err
	}
	if err := s.fold(); err != nil {
		return EntryErasure{}, fault.Wrap(err, "update the audit log")
	}
	if _, err := s.erasable(ctx, indexes); err != nil {
		return EntryErasure{}, err
	}
	now := s.now()
	e := EntryErasure{
		ID: id.New("aer"), Indexes: indexes, Reason: reason, State: ErasureRequested,
		RequestedBy: p.ID, RequestedByName: p.Name, RequestedAt: now, ExpiresAt: now.Add(eraseAnswer),
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.putErasure(ctx, tx, e) })
	if err != nil {
		return EntryErasure{}, err
	}
	return e, nil
}

func onlyPeople(p identity.Principal) error {
	if p.Kind == identity.User {
		return nil
	}
	return fault.New(fault.PermissionDenied, "erasing audit entries takes two people, and %s is not a user", p).WithHint("Use the token of a user.")
}

func (s *Service) now() time.Time { return s.cfg.Log.cfg.Now().UTC().Truncate(time.Microsecond) }

// erasable gives the proven leaves of these indexes, and refuses those that are not
// there, are erased already, cannot be erased, or are not what was signed.
func (s *Service) erasable(ctx context.Context, indexes []int64) ([]Leaf, error) {
	leaves, err := s.cfg.Log.leavesAt(ctx, indexes)
	if err != nil {
		return nil, fault.Wrap(err, "read the audit entries")
	}
	for i, index := range indexes {
		if i >= len(leaves) || leaves[i].Index != index {
			return nil, fault.New(fault.NotFound, "audit entry %d does not exist", index)
		}
	}
	bad, err := s.cfg.Log.prove(ctx, leaves)
	if err != nil {
		return nil, err
	}
	for _, l := range leaves {
		switch what := bad[l.Index]; {
		case what != "":
			return nil, fault.New(fault.Conflict, "audit entry %d: %s", l.Index, what)
		case l.Record == nil:
			return nil, fault.New(fault.NotFound, "audit entry %d is already erased", l.Index)
		}
		r, err := l.record()
		if err != nil {
			return nil, fault.Wrap(err, "read entry %d of the audit log", l.Index)
		}
		if Protected(r.Entry.Action) {
			return nil, fault.New(fault.PermissionDenied, "audit entry %d is about %s and cannot be erased", l.Index, r.Entry.Action).
				WithHint("Entries about policies, approvals, roles, tokens, keys, zones, erasures and the log itself cannot be erased.")
		}
	}
	return leaves, nil
}

// ApproveErasure erases what a request names. The caller is a person, another one than
// who requested it, and needs audit.erase on the installation. The commitments stay, so
// that the log verifies, and so do time, actor, action and outcome, in the entry of the
// erasure. Errors: fault.NotFound; fault.PermissionDenied for the same person;
// fault.Conflict when it is decided or has expired; fault.Unavailable when the entries
// are erased but their old bytes could not be removed from the database's files yet.
func (s *Service) ApproveErasure(ctx context.Context, erasure string) (EntryErasure, error) {
	return s.decideErasure(ctx, erasure, true)
}

// RejectErasure ends a request without effect; for who requested it, it is a withdrawal.
// Needs what ApproveErasure needs, save that it may be the same person.
func (s *Service) RejectErasure(ctx context.Context, erasure string) (EntryErasure, error) {
	return s.decideErasure(ctx, erasure, false)
}

func (s *Service) decideErasure(ctx context.Context, erasure string, approve bool) (EntryErasure, error) {
	if err := s.cfg.Authorize(ctx, ActionErase, ""); err != nil {
		return EntryErasure{}, err
	}
	if err := id.Check("aer", erasure); err != nil {
		return EntryErasure{}, err
	}
	p := identity.From(ctx)
	if err := onlyPeople(p); err != nil {
		return EntryErasure{}, err
	}
	var e EntryErasure
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if e, err = s.erasures.Erasure(ctx, tx, erasure); err != nil || !approve || e.State != ErasureRequested {
			return err
		}
		return s.second(ctx, tx, e)
	})
	if err != nil {
		return EntryErasure{}, err
	}
	var leaves []Leaf
	if approve && e.State == ErasureRequested {
		// What was folded is out of the stream and out of journal files that nobody
		// writes to any more, so nothing else holds it.
		if s.cfg.Journal != nil {
			if err := s.cfg.Journal.Turn(ctx); err != nil {
				return EntryErasure{}, fault.Wrap(err, "start a new journal file")
			}
		}
		if err := s.fold(); err != nil {
			return EntryErasure{}, fault.Wrap(err, "update the audit log")
		}
		if leaves, err = s.erasable(ctx, e.Indexes); err != nil {
			return EntryErasure{}, err
		}
		if err := s.cfg.Log.recallAll(ctx, e.Indexes); err != nil {
			return EntryErasure{}, err
		}
	}
	expired := false
	err = s.cfg.Log.update(ctx, func(ctx context.Context, tx *store.Tx) error {
		if e, err = s.erasures.Erasure(ctx, tx, erasure); err != nil {
			return err
		}
		now := s.now()
		expired = e.State == ErasureRequested && !now.Before(e.ExpiresAt)
		switch {
		case e.State != ErasureRequested:
			return fault.New(fault.Conflict, "erasure %s of audit entries is already %s", e.ID, e.State)
		case expired:
			e.State, e.DecidedAt = ErasureExpired, now
			return s.putErasure(ctx, tx, e) // the refusal follows once this is durable
		}
		e.DecidedBy, e.DecidedByName, e.DecidedAt = p.ID, p.Name, now
		switch {
		case approve:
			if err := s.second(ctx, tx, e); err != nil {
				return err
			}
			e.State = ErasureDone
			return s.erase(ctx, tx, &e, leaves)
		case p.ID == e.RequestedBy:
			e.State = ErasureWithdrawn
		default:
			e.State = ErasureRejected
		}
		return s.putErasure(ctx, tx, e)
	})
	if err == nil && expired {
		err = fault.New(fault.Conflict, "erasure %s of audit entries expired at %s", e.ID, e.ExpiresAt.Format("2006-01-02 15:04 MST")).WithHint("Request it again.")
	}
	if approve && (err == nil || fault.Is(err, fault.Unavailable)) {
		// Also when the old bytes are still in the database's files. The server goes on
		// trying each day.
		if gone := s.cfg.Log.collect(ctx); gone != nil {
			said := "old bytes are still in the object store: %w"
			if err == nil {
				said = "it is done, but the " + said
			}
			err = errors.Join(err, fault.New(fault.Unavailable, said, gone).WithHint("The server retries every day. Check the object store."))
		}
	}
	// fault.Unavailable: erased, and its old bytes are still in the database's files or in
	// the object store.
	if err != nil && !fault.Is(err, fault.Unavailable) {
		return EntryErasure{}, err
	}
	return e, err
}

func (s *Service) second(ctx context.Context, tx *store.Tx, e EntryErasure) error {
	if err := anotherPerson(ctx, tx, e.RequestedBy, e.RequestedAt); err != nil || s.cfg.SecondPerson == nil {
		return err
	}
	return Describe(s.cfg.SecondPerson(ctx, tx, e.RequestedBy, e.RequestedAt), Entry{Action: ActionErase, Object: "audit log"})
}

// erase blanks leaves that were proven, and appends the entries that name them: one for
// each project and 100 entries.
func (s *Service) erase(ctx context.Context, tx *store.Tx, e *EntryErasure, leaves []Leaf) error {
	now, err := s.leaves.LeavesAt(ctx, tx, e.Indexes)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(now, leaves, func(a, b Leaf) bool { return a.Index == b.Index && string(a.Record) == string(b.Record) }) {
		return fault.New(fault.Conflict, "the audit entries changed while they were erased").WithHint("Try again.")
	}
	byProject := map[string][]Erased{}
	var projects []string
	for _, l := range leaves {
		r, err := l.record()
		if err != nil {
			return err
		}
		one := Erased{
			Index: l.Index, Leaf: l.Commitment, Time: formatTime(l.At.Time()), Action: r.Entry.Action, Outcome: r.Entry.Outcome, Project: r.Entry.Project,
			Actor: identity.Principal{Kind: r.Entry.Actor.Kind, ID: r.Entry.Actor.ID, Name: r.Entry.Actor.Name},
		}
		if err := s.leaves.PutContent(ctx, tx, l.blank(one)); err != nil {
			return fault.Wrap(err, "erase audit entry %d", l.Index)
		}
		if _, ok := byProject[one.Project]; !ok {
			projects = append(projects, one.Project)
		}
		byProject[one.Project] = append(byProject[one.Project], one)
	}
	for _, project := range projects {
		for part := range slices.Chunk(byProject[project], eraseChunk) {
			if err := Append(ctx, tx, Entry{
				Project: project, Action: ActionErase, Object: "audit log", Reason: e.Reason,
				Detail: map[string]any{"erasure": e.ID, "state": ErasureDone, "entries": part, "requested_by": e.RequestedBy, "decided_by": e.DecidedBy},
			}); err != nil {
				return err
			}
		}
	}
	e.Erased = len(leaves)
	return s.erasures.PutErasure(ctx, tx, *e)
}

// putErasure writes a request's state, to the log too.
func (s *Service) putErasure(ctx context.Context, tx *store.Tx, e EntryErasure) error {
	if err := s.erasures.PutErasure(ctx, tx, e); err != nil {
		return err
	}
	return Append(ctx, tx, Entry{
		Action: ActionErase, Object: "audit log", Reason: e.Reason,
		Detail: map[string]any{
			"erasure": e.ID, "state": e.State, "requested": len(e.Indexes), "indexes": ranges(e.Indexes), "requested_by": e.RequestedBy, "decided_by": e.DecidedBy,
		},
	})
}

// ranges writes indexes in order as "3, 5-9".
func ranges(indexes []int64) string {
	var b strings.Builder
	for i := 0; i < len(indexes); {
		j := i
		for j+1 < len(indexes) && indexes[j+1] == indexes[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if fmt.Fprintf(&b, "%d", indexes[i]); j > i {
			fmt.Fprintf(&b, "-%d", indexes[j])
		}
		i = j + 1
	}
	return b.String()
}

// Erasures lists requests to erase entries, the newest first, 100 by 100; next is the
// page token of the following page. Needs audit.read on the installation.
func (s *Service) Erasures(ctx context.Context, pageToken string) (list []EntryErasure, next string, err error) {
	if err := s.cfg.Authorize(ctx, ActionRead, ""); err != nil {
		return nil, "", err
	}
	if pageToken != "" {
		if err := id.Check("aer", pageToken); err != nil {
			return nil, "", err
		}
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = s.erasures.Erasures(ctx, tx, pageToken, defaultPage+1)
		return err
	})
	if len(list) > defaultPage {
		list = list[:defaultPage]
		next = list[defaultPage-1].ID
	}
	return list, next, err
}
