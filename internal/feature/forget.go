package feature

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
)

// Forgotten counts what ForgetEvents removes.
type Forgotten struct {
	Events  int // of the log
	Letters int // dead ones
}

// ForgetEvents removes a person's events of the log of a dataset, by the columns that
// are called like the join keys, and the dead letters that name the person; where
// only Is knows who that is, also those that cannot be read. What was folded or cut
// before is online and in the dataset, and has to be removed there, after this. With
// dry it only counts.
func (s *Service) ForgetEvents(ctx context.Context, action policy.Action, p Person, dataset string, keys []string, dry bool) (Forgotten, error) {
	var out Forgotten
	if len(keys) == 0 {
		return out, fault.New(fault.Invalid, "nobody is named whose events are to be removed")
	}
	followed := false
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := s.cfg.Store.Stream(ctx, tx, p.Project, dataset)
		followed = err == nil
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	}); err != nil || !followed {
		return out, err
	}
	l, err := s.openLog(ctx, View{Header: Header{Project: p.Project}, ViewSpec: ViewSpec{Source: Source{Dataset: dataset}}})
	if err != nil {
		return out, err
	}
	run := s.cfg.DB.View
	if !dry {
		run = func(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
			return s.cfg.DB.Update(ctx, string(p.Project), fn)
		}
	}
	err = run(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = Forgotten{}
		st, err := s.cfg.Store.Stream(ctx, tx, p.Project, dataset)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for at := st.First - 1; at < st.Head; {
			records, err := s.cfg.Store.Records(ctx, tx, p.Project, dataset, at, st.Head, pageRecords)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				break
			}
			for _, r := range records {
				at = r.Seq
				gone, freed, err := s.forgetIn(ctx, tx, l, r, p, keys, dry)
				if err != nil {
					return err
				}
				out.Events += gone
				st.Bytes -= freed
			}
		}
		letters, err := s.cfg.Store.Dead(ctx, tx, p.Project, dataset, "", maxDead)
		if err != nil {
			return err
		}
		for _, d := range letters {
			letter, err := l.letter(d)
			if err != nil {
				return err
			}
			if !p.named(letter.Body, keys) {
				continue
			}
			out.Letters++
			if dry {
				continue
			}
			if _, err := s.cfg.Store.DeleteDead(ctx, tx, p.Project, dataset, d.ID); err != nil {
				return err
			}
		}
		if dry || out == (Forgotten{}) {
			return nil
		}
		if err := s.cfg.Store.PutStream(ctx, tx, st); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p.Project), Action: string(action), Object: "dataset " + dataset, Reason: p.Purpose,
			Detail: map[string]any{"events": out.Events, "dead_letters": out.Letters},
		})
	})
	return out, err
}

// forgetIn writes a record anew without the rows of a person; it stays, so that
// positions mean what they did.
func (s *Service) forgetIn(ctx context.Context, tx *store.Tx, l *eventLog, r Record, p Person, keys []string, dry bool) (gone int, freed int64, err error) {
	b, err := l.decode(r)
	if err != nil {
		return 0, 0, err
	}
	defer b.Release()
	at := make([]int, len(keys))
	for k, name := range keys {
		found := b.Schema().FieldIndices(name)
		if len(found) == 0 {
			return 0, 0, nil
		}
		at[k] = found[0]
	}
	values := make([]string, len(keys))
	theirs := func(i int) bool {
		for k, c := range at {
			x := cellOf(b.Column(c), i)
			if x.IsNull() {
				return false
			}
			values[k] = x.String()
		}
		return p.Is(values)
	}
	var keep []arrow.RecordBatch
	defer func() {
		for _, k := range keep {
			k.Release()
		}
	}()
	from := int64(0)
	for i := range b.NumRows() {
		if !theirs(int(i)) {
			continue
		}
		gone++
		if from < i {
			keep = append(keep, b.NewSlice(from, i))
		}
		from = i + 1
	}
	if gone == 0 || dry {
		return gone, 0, nil
	}
	if from < b.NumRows() {
		keep = append(keep, b.NewSlice(from, b.NumRows()))
	}
	raw, err := packBatches(b.Schema(), keep)
	if err != nil {
		return 0, 0, err
	}
	before := int64(len(r.Sealed))
	if r.Sealed, err = l.seal(recordPlace(r.Seq), raw); err != nil {
		return 0, 0, err
	}
	r.Events -= gone
	return gone, before - int64(len(r.Sealed)), s.cfg.Store.PutRecord(ctx, tx, l.project, l.dataset, r)
}

// named reports whether a message that is no event names the person.
func (p Person) named(body string, keys []string) bool {
	if len(p.Values) > 0 && !slices.ContainsFunc(p.Values, func(v string) bool { return !strings.Contains(body, v) }) {
		return true
	}
	var event map[string]any
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if d.Decode(&event) != nil {
		return len(p.Values) == 0 // nobody can tell whose it is
	}
	values := make([]string, len(keys))
	for k, name := range keys {
		values[k] = fmt.Sprint(event[name])
	}
	return p.Is(values)
}
