package feature

import (
	"context"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Forgotten counts what ForgetEvents has removed.
type Forgotten struct {
	Events  int // of the log
	Letters int // dead ones
}

// ForgetEvents removes the events of the log of a dataset whose column has a value,
// as text, and the dead letters in which the text stands. What was folded or cut
// before is online and in the dataset, and has to be removed there, after this.
func (s *Service) ForgetEvents(ctx context.Context, action policy.Action, p project.Name, dataset, column, text string) (Forgotten, error) {
	var out Forgotten
	if text == "" {
		return out, fault.New(fault.Invalid, "nobody is named whose events are to be removed")
	}
	l, err := s.openLog(ctx, View{Header: Header{Project: p}, ViewSpec: ViewSpec{Source: Source{Dataset: dataset}}})
	if err != nil {
		return out, err
	}
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		out = Forgotten{}
		st, err := s.cfg.Store.Stream(ctx, tx, p, dataset)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for at := st.First - 1; at < st.Head; {
			records, err := s.cfg.Store.Records(ctx, tx, p, dataset, at, st.Head, pageRecords)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				break
			}
			for _, r := range records {
				at = r.Seq
				gone, freed, err := s.forgetIn(ctx, tx, l, r, column, text)
				if err != nil {
					return err
				}
				out.Events += gone
				st.Bytes -= freed
			}
		}
		letters, err := s.cfg.Store.Dead(ctx, tx, p, dataset, "", maxDead)
		if err != nil {
			return err
		}
		for _, d := range letters {
			letter, err := l.letter(d)
			if err != nil {
				return err
			}
			if !strings.Contains(letter.Body, text) {
				continue
			}
			if _, err := s.cfg.Store.DeleteDead(ctx, tx, p, dataset, d.ID); err != nil {
				return err
			}
			out.Letters++
		}
		if err := s.cfg.Store.PutStream(ctx, tx, st); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(action), Object: "dataset " + dataset,
			Detail: map[string]any{"events": out.Events, "dead_letters": out.Letters},
		})
	})
	return out, err
}

// forgetIn writes a record anew without the rows of a person; it stays, so that
// positions mean what they did.
func (s *Service) forgetIn(ctx context.Context, tx *store.Tx, l *eventLog, r Record, column, text string) (gone int, freed int64, err error) {
	b, err := l.decode(r)
	if err != nil {
		return 0, 0, err
	}
	defer b.Release()
	at := b.Schema().FieldIndices(column)
	if len(at) == 0 {
		return 0, 0, nil
	}
	var keep []arrow.RecordBatch
	defer func() {
		for _, k := range keep {
			k.Release()
		}
	}()
	from := int64(0)
	for i := range b.NumRows() {
		if c := b.Column(at[0]); c.IsNull(int(i)) || c.ValueStr(int(i)) != text {
			continue
		}
		gone++
		if from < i {
			keep = append(keep, b.NewSlice(from, i))
		}
		from = i + 1
	}
	if gone == 0 {
		return 0, 0, nil
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
