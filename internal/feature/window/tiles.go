package window

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// In a store an entity's events are records on levels. Level 0 has points: the
// state of all events with the same event and created time. Level n > 0 has tiles,
// the state of all events with start ≤ event < start + width, where width is
// plan.levels[n−1] and start a multiple of it; no record means no event.
//
// A window is answered by points at both of its ends and, between them, by tiles
// that are as wide as fit: Chronon's sawtooth with more than one size of tooth. A
// tile that holds an event which was not known yet at the time asked for is passed
// over for what is below it.

// Record is a point or a tile.
type Record struct {
	Level   int
	Event   int64 // of a tile its start
	Created int64 // of a tile NoCreated
	State   []byte
}

// LevelKey is the key of an entity's records on a level, from the entity's key.
func LevelKey(key []byte, level int) []byte {
	// Another choice of levels and widths has to be another layout.
	const layout = 1
	return append(slices.Clip(key), layout, byte(level)) //nolint:gosec // a few levels
}

// Keys are the keys of all of an entity's records, on every level.
func (p *Plan) Keys(key []byte) [][]byte {
	keys := make([][]byte, len(p.levels)+1)
	for level := range keys {
		keys[level] = LevelKey(key, level)
	}
	return keys
}

const (
	fanout   = 32  // tiles of a level in one of the next
	perTooth = 256 // tiles of the first level in the shortest window, about
)

// levels are the widths of tiles for windows from the shortest to the longest.
func levels(shortest, longest int64) []int64 {
	width := int64(2)
	if n := shortest / perTooth; n > 2 {
		width = 1 << (bits.Len64(uint64(n)) - 1)
	}
	out := []int64{width}
	for width <= longest/2/fanout {
		width *= fanout
		out = append(out, width)
	}
	return out
}

// Floor is the start of the widest tile that a time is in: whoever writes records
// for events from some time on has to know those from its Floor on.
func (p *Plan) Floor(t int64) int64 { return start(t, p.levels[len(p.levels)-1]) }

// start is the start of the tile; widths are powers of two, so that this holds
// before 1970, too.
func start(t, width int64) int64 { return t &^ (width - 1) }

// Tiler makes the records of entities from their events in order of time. Not
// safe for concurrent use.
type Tiler struct {
	plan   *Plan
	emit   func(Record) error
	open   []openTile // by level
	values []value.Value
	buf    []byte
}

type openTile struct {
	event, created int64
	state          *State
}

// NewTiler makes a tiler; emit gets each record once, and must not keep its
// state.
func (p *Plan) NewTiler(emit func(Record) error) *Tiler {
	t := &Tiler{plan: p, emit: emit, values: make([]value.Value, len(p.inputs)), open: make([]openTile, len(p.levels)+1)}
	for i := range t.open {
		t.open[i].state = p.NewState()
	}
	return t
}

// Add takes the next event of the entity, by event and created time; packed is
// value.AppendRow of its values.
func (t *Tiler) Add(event, created int64, packed []byte) error {
	if err := value.DecodeRow(packed, t.plan.types, t.values); err != nil {
		return err
	}
	for level := range t.open {
		o := &t.open[level]
		e, c := t.plan.place(level, event, created)
		if o.event != e || o.created != c {
			if err := t.close(level); err != nil {
				return err
			}
		}
		o.event, o.created = e, c
		o.state.Add(Row{Event: event, Created: created, Values: t.values})
	}
	return nil
}

// place is the record of a level that an event is in.
func (p *Plan) place(level int, event, created int64) (e, c int64) {
	if level == 0 {
		return event, created
	}
	return start(event, p.levels[level-1]), NoCreated
}

func (t *Tiler) close(level int) error {
	o := &t.open[level]
	if o.state.Rows() == 0 {
		return nil
	}
	t.buf = o.state.Append(t.buf[:0])
	o.state.Reset()
	return t.emit(Record{Level: level, Event: o.event, Created: o.created, State: t.buf})
}

// End gives what is left of an entity; the next event is another one's.
func (t *Tiler) End() error {
	for level := range t.open {
		if err := t.close(level); err != nil {
			return err
		}
	}
	return nil
}

// Records gives access to the records of one entity.
type Records interface {
	// Span visits the records of a level with from ≤ event ≤ to, the latest event
	// first and of equal ones the latest created, until visit returns false. state
	// is valid during the call only.
	Span(ctx context.Context, level int, from, to int64, visit func(event, created int64, state []byte) (more bool, err error)) error
}

// Aggregate adds events, in any order, to the records of an entity and returns those
// that have changed, ordered by level and time. The caller writes them, all or
// none, before anybody else folds or tiles into the same entity; an event that is
// aggregated twice counts twice.
func (p *Plan) Aggregate(ctx context.Context, have Records, rows []Row) ([]Record, error) {
	type key struct {
		level          int
		event, created int64
	}
	changed := map[key]*State{}
	for _, r := range rows {
		for level := range len(p.levels) + 1 {
			e, c := p.place(level, r.Event, r.Created)
			k := key{level, e, c}
			s, known := changed[k]
			if !known {
				s = p.NewState()
				changed[k] = s
				if err := have.Span(ctx, level, e, e, func(_, created int64, state []byte) (bool, error) {
					if created != c {
						return created > c, nil
					}
					return false, s.Decode(state)
				}); err != nil {
					return nil, err
				}
			}
			s.Add(r)
		}
	}
	out := make([]Record, 0, len(changed))
	for k, s := range changed {
		out = append(out, Record{Level: k.level, Event: k.event, Created: k.created, State: s.Append(nil)})
	}
	slices.SortFunc(out, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Event, b.Event), cmp.Compare(a.Created, b.Created))
	})
	return out, nil
}

// headPoints is how many points are read before tiles are tried: entities with
// few events need one look.
const headPoints = 64

// Reader answers from records. Not safe for concurrent use.
type Reader struct {
	plan        *Plan
	sum, record *State
}

// NewReader makes a reader.
func (p *Plan) NewReader() *Reader {
	return &Reader{plan: p, sum: p.NewState(), record: p.NewState()}
}

// At computes the features of an entity at a time into out, which is as long as
// there are features. newest is the latest event that was known; found is false
// when there was none. Then, and when newest is before floor, out is meaningless.
func (r *Reader) At(ctx context.Context, have Records, at, floor int64, out []value.Value) (newest int64, found bool, err error) {
	q := query{Reader: r, have: have, at: at, out: out}
	q.sum.Reset()

	// 1. Points, from the newest on.
	if err := q.head(ctx, floor); err != nil {
		return 0, false, err
	}
	if q.more && !q.found {
		if err := q.search(ctx); err != nil {
			return 0, false, err
		}
	}
	if !q.found || q.newest < floor {
		return q.newest, q.found, nil
	}

	// 2. What is left, window by window.
	for to := q.last - 1; q.more && q.window < len(q.plan.windows); {
		from := before(at, q.plan.windows[q.window])
		if err := q.cover(ctx, len(q.plan.levels), from+1, to); err != nil {
			return 0, false, err
		}
		to = min(to, from)
		q.finish(from)
	}
	q.finish(minTime)
	return q.newest, true, nil
}

// query is one answer on its way into the past: the sum holds the events that it
// has passed.
type query struct {
	*Reader
	have   Records
	at     int64
	out    []value.Value
	window int   // the first that is not finished
	last   int64 // time of the last point of the head
	more   bool  // there are points before it
	newest int64
	found  bool
}

// finish writes the results of the windows that begin at or after a time.
func (q *query) finish(event int64) {
	for ; q.window < len(q.plan.windows) && event <= before(q.at, q.plan.windows[q.window]); q.window++ {
		q.plan.results(q.sum, q.window, q.out)
	}
}

func (q *query) head(ctx context.Context, floor int64) error {
	seen := 0
	return q.have.Span(ctx, 0, minTime, q.at, func(event, created int64, state []byte) (bool, error) {
		if seen >= headPoints && event < q.last {
			q.more = true
			return false, nil
		}
		seen, q.last = seen+1, event
		if created <= q.at && !q.found {
			q.newest, q.found = event, true
		}
		q.finish(event)
		switch {
		case q.found && (q.newest < floor || q.window == len(q.plan.windows)):
			return false, nil
		case created > q.at || q.window == len(q.plan.windows):
			return true, nil
		}
		return true, q.take(state)
	})
}

// search finds the newest event that was known, where many newer ones were not.
func (q *query) search(ctx context.Context) error {
	return q.have.Span(ctx, 0, minTime, q.last-1, func(event, created int64, _ []byte) (bool, error) {
		if created <= q.at {
			q.newest, q.found = event, true
		}
		return !q.found, nil
	})
}

func (q *query) take(state []byte) error {
	if err := q.record.Decode(state); err != nil {
		return err
	}
	q.sum.Merge(q.record)
	return nil
}

// cover adds to the sum the events with from ≤ event ≤ to, by records of a level
// and below.
func (q *query) cover(ctx context.Context, level int, from, to int64) error {
	if from > to {
		return nil
	}
	if level == 0 {
		return q.have.Span(ctx, 0, from, to, func(_, created int64, state []byte) (bool, error) {
			if created > q.at {
				return true, nil
			}
			return true, q.take(state)
		})
	}
	// The tiles that lie between from and to begin at first … end−width.
	width := q.plan.levels[level-1]
	first, end := start(from, width), start(to, width)
	if first < from {
		first += width
	}
	if to-end == width-1 {
		end += width
	}
	if first >= end || first < from || end < first {
		return q.cover(ctx, level-1, from, to)
	}
	var late []int64 // tiles with events that were not known yet
	err := q.have.Span(ctx, level, first, end-width, func(event, _ int64, state []byte) (bool, error) {
		if err := q.record.Decode(state); err != nil {
			return false, err
		}
		if q.record.Known() > q.at {
			late = append(late, event)
			return true, nil
		}
		q.sum.Merge(q.record)
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, at := range late {
		if err := q.cover(ctx, level-1, at, at+width-1); err != nil {
			return err
		}
	}
	if err := q.cover(ctx, level-1, from, first-1); err != nil {
		return err
	}
	return q.cover(ctx, level-1, end, to)
}
