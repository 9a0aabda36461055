package feature

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Forgotten counts what ForgetEvents removes.
type Forgotten struct {
	Events  int // of the log
	Letters int // dead ones
}

// Streamed lists the datasets of a project that have a log of events. It asks for no
// permission, as Use.
func (s *Erasure) Streamed(ctx context.Context, p project.Name) (datasets []string, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		datasets = nil
		all, err := s.streams.streamStore.Streams(ctx, tx)
		for _, st := range all {
			if st.Project == p {
				datasets = append(datasets, st.Dataset)
			}
		}
		return err
	})
	slices.Sort(datasets)
	return datasets, err
}

// forgetPage bounds the dead letters that are read at a time.
const forgetPage = 16

// ForgetEvents removes a person's events of the log of a dataset, by the columns that
// have the join keys, in their order, and the dead letters that name the person; where
// only Is knows who that is, also those that cannot be read. What was applied or is in a version
// before is online and in the dataset, and has to be removed there, after this. A log
// whose key was destroyed is dropped: nobody reads it. With dry it only counts.
func (s *Erasure) ForgetEvents(ctx context.Context, action policy.Action, p Person, dataset string, columns []string, dry bool) (Forgotten, error) {
	var out Forgotten
	if len(columns) == 0 {
		return out, fault.New(fault.Invalid, "no columns identify the person")
	}
	l := &eventLog{project: p.Project, dataset: dataset}
	err := s.streams.unlock(ctx, l)
	switch {
	case fault.Is(err, fault.Gone) && dry:
		return out, nil
	case fault.Is(err, fault.Gone):
		return out, s.cfg.DB.Update(ctx, string(p.Project), func(ctx context.Context, tx *store.Tx) error {
			tx.Scrub(logTables...)
			return s.streams.DropEvents(ctx, tx, action, p.Project, dataset)
		})
	case err != nil:
		return out, err
	}
	// A page in a transaction: others write meanwhile, and what comes behind is looked
	// at, too.
	f := forgetter{s: s, l: l, p: p, columns: columns, dry: dry}
	for _, page := range []func(ctx context.Context, tx *store.Tx, st *Stream) (more bool, err error){f.records, f.letters} {
		for more := true; more; {
			run := s.cfg.DB.View
			if !dry {
				run = func(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
					return s.cfg.DB.Update(ctx, string(p.Project), fn)
				}
			}
			err := run(ctx, func(ctx context.Context, tx *store.Tx) error {
				f.gone, more = Forgotten{}, false
				st, err := s.streams.streamStore.Stream(ctx, tx, p.Project, dataset)
				if fault.Is(err, fault.NotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				if more, err = page(ctx, tx, &st); err != nil || dry || f.gone == (Forgotten{}) {
					return err
				}
				if err := s.streams.streamStore.PutStream(ctx, tx, st); err != nil {
					return err
				}
				return audit.Append(ctx, tx, audit.Entry{
					Project: string(p.Project), Action: string(action), Object: "dataset " + dataset, Reason: p.Purpose,
					Detail: map[string]any{"events": f.gone.Events, "dead_letters": f.gone.Letters},
				})
			})
			if err != nil {
				return out, err
			}
			f.at, f.letter = f.next, f.nextLetter
			out.Events, out.Letters = out.Events+f.gone.Events, out.Letters+f.gone.Letters
		}
	}
	if dry || out == (Forgotten{}) {
		return out, nil
	}
	return out, s.cfg.DB.Update(ctx, string(p.Project), func(_ context.Context, tx *store.Tx) error {
		tx.Scrub(logTables...)
		return nil
	})
}

// DropEvents removes all that the log of a dataset has, because nobody can read it
// any more: its key was destroyed, or, in the transaction of that, the dataset
// deleted. The numbers of records go on, so that no view takes later ones for those it
// has.
func (s *Streams) DropEvents(ctx context.Context, tx *store.Tx, action policy.Action, p project.Name, dataset string) error {
	st, err := s.streamStore.Stream(ctx, tx, p, dataset)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := s.streamStore.TrimRecords(ctx, tx, p, dataset, st.Head); err != nil {
		return err
	}
	letters, err := s.streamStore.DropDeadLetters(ctx, tx, p, dataset)
	if err != nil {
		return err
	}
	if err := s.streamStore.ForgetSeen(ctx, tx, p, dataset, s.now().Add(seenAge)); err != nil {
		return err
	}
	records := st.Head - st.First + 1
	if records == 0 && letters == 0 && st.Version == "" {
		return nil // it had none
	}
	st.First, st.SnapshotSeq, st.Bytes, st.Version = st.Head+1, st.Head, 0, ""
	if err := s.streamStore.PutStream(ctx, tx, st); err != nil {
		return err
	}
	return audit.Append(ctx, tx, audit.Entry{
		Project: string(p), Action: string(action), Object: "dataset " + dataset,
		Detail: map[string]any{"phase": "the log of its events was dropped", "records": records, "dead_letters": letters},
	})
}

// logTables have what is sealed of a log.
var logTables = []string{"feature_stream_record", "feature_stream_dead"}

// forgetter goes through a log page by page.
type forgetter struct {
	s       *Erasure
	l       *eventLog
	p       Person
	columns []string
	dry     bool

	at, next           int64  // the record behind which a page begins, and the page after it
	letter, nextLetter string // the dead letter
	gone               Forgotten
}

func (f *forgetter) records(ctx context.Context, tx *store.Tx, st *Stream) (more bool, err error) {
	page, err := f.s.streams.streamStore.Records(ctx, tx, f.l.project, f.l.dataset, f.at, st.Head, pageRecords)
	if err != nil {
		return false, err
	}
	for _, r := range page {
		f.next = r.Seq
		gone, freed, err := f.s.forgetIn(ctx, tx, f.l, r, f.p, f.columns, f.dry)
		if err != nil {
			return false, err
		}
		f.gone.Events += gone
		st.Bytes -= freed
	}
	return len(page) > 0, nil
}

func (f *forgetter) letters(ctx context.Context, tx *store.Tx, _ *Stream) (more bool, err error) {
	page, err := f.s.streams.streamStore.DeadLetters(ctx, tx, f.l.project, f.l.dataset, f.letter, forgetPage)
	if err != nil {
		return false, err
	}
	for _, d := range page {
		f.nextLetter = d.ID
		letter, err := f.l.openDeadLetter(d)
		if err != nil {
			return false, err
		}
		if !f.p.named(string(letter.bytes()), f.columns) {
			continue
		}
		f.gone.Letters++
		if f.dry {
			continue
		}
		if _, err := f.s.streams.streamStore.DeleteDeadLetter(ctx, tx, f.l.project, f.l.dataset, d.ID); err != nil {
			return false, err
		}
	}
	return len(page) > 0, nil
}

// forgetIn writes a record anew without the rows of a person; it stays, so that
// positions mean what they did.
func (s *Erasure) forgetIn(ctx context.Context, tx *store.Tx, l *eventLog, r Record, p Person, keys []string, dry bool) (gone int, freed int64, err error) {
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
	return gone, before - int64(len(r.Sealed)), s.streams.streamStore.PutRecord(ctx, tx, l.project, l.dataset, r)
}

// cellOf is a cell that may be a part of a key; NULL where it cannot be.
func cellOf(a arrow.Array, i int) value.Value {
	if a.IsNull(i) {
		return value.Value{}
	}
	switch a := a.(type) {
	case *array.String:
		return value.OfString(a.Value(i))
	case *array.Int32:
		return value.OfInt32(a.Value(i))
	case *array.Int64:
		return value.OfInt(a.Value(i))
	case *array.Boolean:
		return value.OfBool(a.Value(i))
	case *array.Timestamp:
		return value.OfMicros(int64(a.Value(i)))
	}
	return value.Value{}
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
