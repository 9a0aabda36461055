package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// pages is a journal in memory.
type pages struct {
	mu      sync.Mutex
	entries []audit.Entry
	fail    error
}

func (p *pages) Record(_ context.Context, e audit.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail == nil {
		p.entries = append(p.entries, e)
	}
	return p.fail
}

// refusals is how many refusals the entries tell of.
func (p *pages) refusals() (sum int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if n, ok := e.Detail["count"].(int); ok {
			sum += n
		} else if e.Outcome == audit.Refused {
			sum++
		}
	}
	return sum
}

func as(ctx context.Context, id, address string) context.Context {
	return identity.WithCall(identity.With(ctx, identity.Principal{Kind: identity.User, ID: id}), identity.Call{Address: address})
}

func TestSummary(t *testing.T) {
	journal := &pages{}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := audit.NewSummary(journal, func() time.Time { return now })
	ctx := as(t.Context(), "usr_1", "192.0.2.7")
	refuse := func(ctx context.Context, object string) {
		t.Helper()
		if err := s.Record(ctx, audit.Entry{Project: "north", Action: "model.read", Object: object, Outcome: audit.Refused, Reason: "no role"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 12 {
		refuse(ctx, "model a")
		if err := s.Record(ctx, audit.Entry{Project: "north", Action: "audit.read"}); err != nil {
			t.Fatal(err)
		}
	}
	refuse(ctx, "model b")
	refuse(as(t.Context(), "usr_2", "192.0.2.7"), "model a")
	if n := len(journal.entries); n != 12+5+1+1 {
		t.Errorf("%d entries at once: %+v", n, journal.entries)
	}
	now = now.Add(time.Minute)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := journal.entries[len(journal.entries)-1]
	if len(journal.entries) != 20 || last.Detail["count"] != 7 || last.Actor.ID != "usr_1" || last.Address != "192.0.2.7" || last.Object != "model a" ||
		last.Project != "north" || last.Outcome != audit.Refused || last.Detail["since"] != "2026-01-01T12:00:00Z" || last.Detail["until"] != "2026-01-01T12:01:00Z" {
		t.Errorf("%d entries, the last %+v", len(journal.entries), last)
	}
	if err := s.Flush(t.Context()); err != nil || len(journal.entries) != 20 {
		t.Errorf("an empty minute: %v, %d entries", err, len(journal.entries))
	}
	refuse(ctx, "model a")
	if len(journal.entries) != 21 {
		t.Error("a new minute does not begin with an entry")
	}
}

// TestSummaryAddsUp: many callers are refused many things at once, while it is flushed and
// the journal fails now and then. What Record took is in the entries, once.
func TestSummaryAddsUp(t *testing.T) {
	journal := &pages{}
	s := audit.NewSummary(journal, time.Now)
	const callers, each = 20, 2000
	var group sync.WaitGroup
	var taken sync.Map
	for i := range callers {
		group.Go(func() {
			ctx, n := as(t.Context(), fmt.Sprintf("usr_%d", i%7), fmt.Sprintf("192.0.2.%d", i)), 0
			for k := range each {
				err := s.Record(ctx, audit.Entry{Action: "model.read", Object: fmt.Sprintf("model %d of %d", k, i), Outcome: audit.Refused})
				if err == nil {
					n++
				}
			}
			taken.Store(i, n)
		})
	}
	stop := make(chan struct{})
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for {
			select {
			case <-stop:
				return
			default:
				_ = s.Flush(t.Context()) // what it could not record, the last one does
				journal.mu.Lock()
				if journal.fail = nil; len(journal.entries)%2 == 1 {
					journal.fail = errors.New("the disk is full")
				}
				journal.mu.Unlock()
			}
		}
	}()
	group.Wait()
	close(stop)
	<-flushed
	journal.fail = nil
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := 0
	for i := range callers {
		n, _ := taken.Load(i)
		want += n.(int)
	}
	if got := journal.refusals(); got != want {
		t.Errorf("%d refusals are on record, and %d were", got, want)
	}
}

// TestSummaryIsBounded: a storm from more callers than are told apart.
func TestSummaryIsBounded(t *testing.T) {
	journal := &pages{}
	s := audit.NewSummary(journal, time.Now)
	const callers = 30_000
	for i := range callers {
		for range 2 {
			if err := s.Record(as(t.Context(), fmt.Sprintf("usr_%d", i), ""), audit.Entry{Action: "model.read", Object: "model a", Outcome: audit.Refused}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(journal.entries); n > 20_010 || journal.refusals() != 2*callers {
		t.Errorf("%d entries for %d refusals", n, journal.refusals())
	}
}

func TestRecordRefusal(t *testing.T) {
	denied := fault.New(fault.PermissionDenied, "no").WithHint("Ask.")
	conflict := fault.New(fault.Conflict, "not approved")
	act := audit.Entry{Project: "north", Action: "model.promote", Object: "model a@1"}
	for _, c := range []struct {
		name string
		err  error
		want string // "" is no entry
	}{
		{"nothing", nil, ""},
		{"a conflict", conflict, ""},
		{"a permission", fault.Wrap(denied, "reading"), "south request POST /x: reading: no"},
		{"a permission of a known act", audit.Describe(denied, act), "north model.promote model a@1: no"},
		{"a marked conflict", fault.Wrap(audit.Refuse(conflict, act), "promoting"), "north model.promote model a@1: promoting: not approved"},
		{"a mark alone", audit.Refuse(conflict, audit.Entry{}), "south request POST /x: not approved"},
		{"a mark that is described", audit.Describe(fault.Wrap(audit.Refuse(conflict, audit.Entry{}), "here"), act), "north model.promote model a@1: here: not approved"},
		{"a mark that says it already", audit.Describe(audit.Refuse(conflict, act), audit.Entry{Action: "x"}), "north model.promote model a@1: not approved"},
		{"a conflict that is described", audit.Describe(conflict, act), ""},
		{"on record", fault.Wrap(audit.OnRecord(denied), "reading"), ""},
		{"on record, described", audit.Describe(audit.OnRecord(denied), act), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			journal := &pages{}
			ctx := identity.WithCall(identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Project: "south"}), identity.Call{Method: "POST", Path: "/x"})
			err := audit.RecordRefusal(ctx, journal, c.err)
			if fault.KindOf(err) != fault.KindOf(c.err) || (err == nil) != (c.err == nil) || err != nil && (err.Error() != c.err.Error() || fault.HintOf(err) != fault.HintOf(c.err)) {
				t.Errorf("%v became %v", c.err, err)
			}
			var got []string
			for _, e := range journal.entries {
				got = append(got, e.Project+" "+e.Action+" "+e.Object+": "+e.Reason)
			}
			if want := slices.DeleteFunc([]string{c.want}, func(s string) bool { return s == "" }); !slices.Equal(got, want) {
				t.Errorf("recorded %q, want %q", got, want)
			}
			_ = audit.RecordRefusal(ctx, journal, err)
			if len(journal.entries) != len(got) {
				t.Error("recorded twice")
			}
			if c.want != "" {
				journal.fail = errors.New("the disk is full")
				if err := audit.RecordRefusal(ctx, journal, c.err); !fault.Is(err, fault.Unavailable) {
					t.Errorf("not on record, and told: %v", err)
				}
			}
		})
	}
}
