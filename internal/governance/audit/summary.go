package audit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
)

// The first refusals of a minute have entries of their own: so many that are the same, and
// so many of one caller. Those beyond are counted, and when the minute is over one entry
// says how many there were of each kind. The numbers of all entries add up to the refusals.
const (
	same      = 5      // of the same caller, act and reason
	ofCaller  = 1000   // of the same caller, and kinds of these that are told apart
	maxCounts = 10_000 // kinds and callers that are told apart in a minute
	several   = "several objects"
)

// caller is who is refused, from where.
type caller struct{ actor, address string }

// kind is what refusals are summed up by.
type kind struct {
	actor                            identity.Principal
	address, project, action, object string
	reason                           string
}

// Summary is a Journal that sums up refusals that come in a storm. Everything else, and the
// first refusals of a caller in a minute, it passes on. Safe for concurrent use.
type Summary struct {
	journal Journal
	now     func() time.Time

	mu     sync.Mutex
	since  time.Time
	single map[caller]int
	kinds  map[caller]int
	counts map[string]*count // by the text of the kind
}

// count is how often a kind of refusal came up.
type count struct {
	kind
	single int // with an entry of its own
	more   int
}

var _ Journal = (*Summary)(nil)

// NewSummary makes a Summary of a journal; call its Flush each minute, and at the end.
func NewSummary(j Journal, now func() time.Time) *Summary {
	return &Summary{journal: j, now: now, since: now(), single: map[caller]int{}, kinds: map[caller]int{}, counts: map[string]*count{}}
}

// Record implements Journal. A refusal that is only counted is on record after the next
// Flush.
func (s *Summary) Record(ctx context.Context, e Entry) error {
	if e.Outcome != Refused {
		return s.journal.Record(ctx, e)
	}
	if e.Actor.Kind == "" {
		e.Actor = identity.From(ctx)
	}
	if e.Address == "" {
		e.Address = identity.CallOf(ctx).Address
	}
	if s.counted(e) {
		return nil
	}
	return s.journal.Record(ctx, e)
}

// counted counts a refusal, unless it is to have an entry of its own.
func (s *Summary) counted(e Entry) bool {
	k := kind{e.Actor, e.Address, e.Project, e.Action, e.Object, e.Reason}
	s.mu.Lock()
	defer s.mu.Unlock()
	who := k.caller()
	n, known := s.single[who]
	c := s.of(k)
	if c.single >= same || n >= ofCaller || !known && len(s.single) >= maxCounts {
		c.more++
		return true
	}
	s.single[who]++
	c.single++
	return false
}

// of is the count of a kind of refusal: where too many are told apart, that of a wider
// kind. Under mu.
func (s *Summary) of(k kind) *count {
	last := kind{actor: identity.Loop("audit"), action: "several actions", object: several}
	who := k.caller()
	for i, k := range []kind{
		k,
		{actor: k.actor, address: k.address, project: k.project, action: k.action, object: several},
		{actor: identity.Loop("audit"), action: k.action, object: several},
		last,
	} {
		key := k.text()
		c := s.counts[key]
		if c == nil && (i > 0 || s.kinds[who] < ofCaller) && (len(s.counts) < maxCounts || k.action == last.action) {
			c = &count{kind: k}
			s.counts[key] = c
			s.kinds[who]++
		}
		if c != nil {
			return c
		}
	}
	panic("audit: no count") // the last kind always has one
}

// caller is who is refused; of IPv6 the network, which one machine has for itself.
func (k kind) caller() caller {
	return caller{string(k.actor.Kind) + " " + k.actor.ID, share.AddressKey(k.address)}
}

func (k kind) text() string {
	return strings.Join([]string{string(k.actor.Kind), k.actor.ID, k.actor.Token, k.address, k.project, k.action, k.object, k.reason}, "\x00")
}

// Flush records what was counted since the last Flush, and lets each caller have entries of
// their own again. What could not be recorded is counted on.
func (s *Summary) Flush(ctx context.Context) error {
	s.mu.Lock()
	counts, since, until := s.counts, s.since, s.now()
	s.counts, s.single, s.kinds, s.since = map[string]*count{}, map[caller]int{}, map[caller]int{}, until
	s.mu.Unlock()
	var failed error
	for _, c := range counts {
		if c.more == 0 {
			continue
		}
		err := s.journal.Record(ctx, Entry{
			Actor: c.actor, Address: c.address, Project: c.project, Action: c.action, Object: c.object, Outcome: Refused, Reason: c.reason,
			Detail: map[string]any{"count": c.more, "since": since.UTC().Format(time.RFC3339), "until": until.UTC().Format(time.RFC3339)},
		})
		if err != nil {
			failed = errors.Join(failed, err)
			s.mu.Lock()
			s.of(c.kind).more += c.more
			s.mu.Unlock()
		}
	}
	return failed
}
