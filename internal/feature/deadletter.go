package feature

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/store"
)

// SealedDeadLetter is a dead letter as it is stored.
type SealedDeadLetter struct {
	ID     string // "fdl_01J…"
	At     time.Time
	Sealed []byte
}

// DeadLetter is a message that is not a valid event.
type DeadLetter struct {
	ID     string    `json:"id"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`         // why it is none
	From   string    `json:"from,omitempty"` // where it came from
	Body   string    `json:"body"`
	// Raw is the body where it is not UTF-8, of which Body shows what can be shown.
	Raw []byte `json:"raw,omitempty"`
}

// bytes are the message as it came.
func (l DeadLetter) bytes() []byte {
	if l.Raw != nil {
		return l.Raw
	}
	return []byte(l.Body)
}

const (
	maxDeadLetters     = 10_000    // letters of a stream
	maxDeadLetterBytes = 256 << 10 // bytes of a letter
	// replayPage is how many are in memory when all are replayed.
	replayPage = 64
)

// keepDeadLetters keeps messages that are no events, or their new reasons.
func (s *Streams) keepDeadLetters(ctx context.Context, tx *store.Tx, l *eventLog, in entry, reasons map[int]string, now time.Time) (int, error) {
	if len(reasons) == 0 {
		return 0, nil
	}
	have, err := s.streamStore.CountDeadLetters(ctx, tx, l.project, l.dataset)
	if err != nil {
		return 0, err
	}
	if len(in.replayed) == 0 && have+len(reasons) > maxDeadLetters {
		return 0, fault.New(fault.Exhausted, "there are %d dead letters of dataset %s, and %d more exceed the limit of %d", have, l.dataset, len(reasons), maxDeadLetters).
			WithHint("Inspect the dead letters, then replay or drop them: falaj feature dead-letters %s.", l.view.Name)
	}
	for _, i := range slices.Sorted(maps.Keys(reasons)) {
		d := DeadLetter{Reason: reasons[i], Body: string(in.raw(i))}
		if len(d.Body) > maxDeadLetterBytes {
			d.Body, d.Reason = d.Body[:maxDeadLetterBytes], d.Reason+"; the stored message is truncated"
		}
		if !utf8.ValidString(d.Body) {
			d.Raw = []byte(d.Body)
		}
		if in.from != nil {
			d.From = in.from(i)
		}
		name := id.New("fdl")
		if len(in.replayed) > 0 {
			name = in.replayed[i]
		}
		if err := s.putDeadLetter(ctx, tx, l, name, now, d); err != nil {
			return 0, err
		}
	}
	return len(reasons), nil
}

func (s *Streams) putDeadLetter(ctx context.Context, tx *store.Tx, l *eventLog, id string, at time.Time, d DeadLetter) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	sealed, err := l.seal("letter "+id, b)
	if err != nil {
		return err
	}
	return s.streamStore.PutDeadLetter(ctx, tx, l.project, l.dataset, SealedDeadLetter{ID: id, At: at, Sealed: sealed})
}

func (l *eventLog) openDeadLetter(d SealedDeadLetter) (DeadLetter, error) {
	b, err := l.open("letter "+d.ID, d.Sealed)
	if err != nil {
		return DeadLetter{}, err
	}
	var out DeadLetter
	err = json.Unmarshal(b, &out)
	out.ID, out.At = d.ID, d.At
	return out, err
}

// DeadLetters lists the dead letters of a view's stream, oldest first, after an id. They have
// the data that was sent: it needs feature.history and, of a view with protected features,
// feature.clear, it is for a purpose, and it is journaled as every read of such data.
func (s *Streams) DeadLetters(ctx context.Context, p project.Name, ref, after string, limit int) ([]DeadLetter, error) {
	v, l, err := s.authorizeDeadLetters(ctx, ActionHistory, p, ref)
	if err != nil {
		return nil, err
	}
	pl := &plan{views: []picked{{view: v}}}
	purpose, err := s.forPurpose(ctx, ActionHistory, p, pl, "")
	if err != nil {
		return nil, err
	}
	var unmasked []string
	for _, f := range v.Features { // a letter is shown as it came
		if f.Protect == "" {
			continue
		}
		unmasked = append(unmasked, v.Ref()+":"+f.Name)
		if err := s.cfg.Authorizer.Allow(ctx, ActionClear, policy.Object{
			Project: string(p), Kind: objectKind, Name: v.Ref() + ":" + f.Name, Classification: string(l.newest.Classification), Residency: l.newest.Residency,
		}); err != nil {
			return nil, err
		}
	}
	out, err := s.deadLetters(ctx, l, after, pageSize(limit))
	if err != nil {
		return nil, err
	}
	if !l.newest.Classification.Journalled() && !pl.purposed() && len(unmasked) == 0 {
		return out, nil
	}
	return out, fault.Wrap(s.cfg.Journal.Record(ctx, audit.Entry{
		Project: string(p), Action: string(ActionHistory), Object: "dataset " + l.dataset,
		Detail: map[string]any{"dead_letters": len(out), "classification": l.newest.Classification, "purpose": purpose, "clear": unmasked},
	}), "record the read of the dead letters of %s", v.Ref())
}

// authorizeDeadLetters passes the doors of a view's dead letters.
func (s *Streams) authorizeDeadLetters(ctx context.Context, action policy.Action, p project.Name, ref string) (View, *eventLog, error) {
	if err := s.allow(ctx, action, p, ref); err != nil {
		return View{}, nil, err
	}
	v, err := s.streamed(ctx, p, ref)
	if err != nil {
		return v, nil, err
	}
	l, err := s.openLog(ctx, v)
	if err != nil {
		return v, nil, err
	}
	return v, l, s.cfg.Authorizer.Allow(ctx, action, policy.Object{
		Project: string(p), Kind: objectKind, Name: v.Ref(), Classification: string(l.newest.Classification), Residency: l.newest.Residency,
	})
}

func (s *Streams) deadLetters(ctx context.Context, l *eventLog, after string, limit int) ([]DeadLetter, error) {
	var sealed []SealedDeadLetter
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		sealed, err = s.streamStore.DeadLetters(ctx, tx, l.project, l.dataset, after, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]DeadLetter, len(sealed))
	for i, d := range sealed {
		if out[i], err = l.openDeadLetter(d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Replayed is the result of replaying dead letters.
type Replayed struct {
	Accepted  int `json:"accepted"` // events now
	StillDead int `json:"dead"`     // still none, for the reason of now
}

// ReplayDeadLetters tries dead letters again, all when none is named: after their dataset
// was declared anew, or the time that was in the future has come. Those that are
// events now are accepted; the others stay. Needs feature.push. Error: fault.NotFound
// for a letter that is not there.
func (s *Streams) ReplayDeadLetters(ctx context.Context, p project.Name, ref string, ids []string) (Replayed, error) {
	var out Replayed
	_, l, err := s.authorizeDeadLetters(ctx, ActionPush, p, ref)
	if err != nil {
		return out, err
	}
	if err := s.mayPush(ctx, l); err != nil {
		return out, err
	}
	found := 0
	for after, more := "", true; more; {
		page, err := s.deadLetters(ctx, l, after, replayPage)
		if err != nil {
			return out, err
		}
		if more = len(page) == replayPage; len(page) > 0 {
			after = page[len(page)-1].ID
		}
		page = slices.DeleteFunc(page, func(d DeadLetter) bool { return len(ids) > 0 && !slices.Contains(ids, d.ID) })
		if found += len(page); len(page) == 0 {
			continue
		}
		in := entry{
			action: ActionPush, keep: true,
			raw:  func(i int) []byte { return page[i].bytes() },
			from: func(i int) string { return page[i].From },
		}
		in.parse(len(page))
		for _, d := range page {
			in.replayed = append(in.replayed, d.ID)
		}
		accepted, _, dead, _, err := s.accept(ctx, l, in)
		if err != nil {
			return out, err
		}
		out.Accepted, out.StillDead = out.Accepted+accepted, out.StillDead+dead
	}
	if found < len(ids) {
		return out, fault.New(fault.NotFound, "%d of the %d dead letters do not exist", len(ids)-found, len(ids))
	}
	return out, nil
}

// DropDeadLetters removes dead letters, all when none is named, and returns their number. Needs
// feature.push.
func (s *Streams) DropDeadLetters(ctx context.Context, p project.Name, ref string, ids []string) (int, error) {
	v, l, err := s.authorizeDeadLetters(ctx, ActionPush, p, ref)
	if err != nil {
		return 0, err
	}
	dropped := 0
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		dropped = 0
		if len(ids) == 0 {
			var err error
			if dropped, err = s.streamStore.DropDeadLetters(ctx, tx, p, l.dataset); err != nil {
				return err
			}
		}
		for _, id := range ids {
			there, err := s.streamStore.DeleteDeadLetter(ctx, tx, p, l.dataset, id)
			if err != nil {
				return err
			}
			if there {
				dropped++
			}
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionPush), Object: "dataset " + l.dataset,
			Detail: map[string]any{"dead_letters_dropped": dropped, "view": v.Ref()},
		})
	})
	return dropped, err
}

// parseEvent reads a message. Error: fault.Invalid for what is no JSON object.
func parseEvent(b []byte) (Event, error) {
	var e Event
	if err := jsondoc.Decode(b, &e); err != nil {
		return nil, fault.New(fault.Invalid, "it is not a JSON object: %v", err)
	}
	if e == nil {
		return nil, fault.New(fault.Invalid, "it is not a JSON object")
	}
	return e, nil
}
