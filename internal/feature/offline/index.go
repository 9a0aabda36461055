package offline

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// index is a view in memory: for each key a timeline, ascending by visible. The
// entry at a place is the answer for every time from its visible to the next
// entry's; rows that are never the answer are not in it. Only the selected
// features are kept, in timeline order, so that a walk through time is a walk
// through memory. Immutable once built; safe for concurrent use.
type index struct {
	view    *View
	ids     keyIDs
	start   []int32 // timeline of key id k: entries start[k] to start[k+1]
	visible []int64
	event   []int64
	columns []vector // the selected features
}

// bytes is about what the index holds.
func (ix *index) bytes() int64 {
	n := int64(len(ix.visible))*16 + int64(ix.ids.count())*64
	for i := range ix.columns {
		c := &ix.columns[i]
		n += int64(len(c.valid) + 8*len(c.words) + len(c.bools) + 8*len(c.offsets) + len(c.text))
	}
	return n
}

// keyIDs numbers the keys of a view. One string or one integer, the usual keys,
// are looked up as they are; all others by their key bytes.
type keyIDs struct {
	kind  keyKind
	texts map[string]int32
	ints  map[int64]int32
}

type keyKind uint8

const (
	keyBytes keyKind = iota
	keyText
	keyInt
)

func newKeyIDs(keys []Column) keyIDs {
	ids := keyIDs{texts: map[string]int32{}}
	if len(keys) == 1 && keys[0].Type == value.String {
		ids.kind = keyText
	}
	if len(keys) == 1 && keys[0].Type == value.Int64 {
		ids.kind, ids.ints = keyInt, map[int64]int32{}
	}
	return ids
}

func (k *keyIDs) count() int { return len(k.texts) + len(k.ints) }

// add numbers the key of a row, which holds no NULL. It returns the bytes that
// remembering it took.
func (k *keyIDs) add(keys []column, row int, scratch *[]byte) (id int32, grown int64) {
	next := int32(k.count()) //nolint:gosec // bounded by the rows of an index, below maxIndexRows
	if k.kind == keyInt {
		if id, ok := k.ints[keys[0].ints[row]]; ok {
			return id, 0
		}
		k.ints[keys[0].ints[row]] = next
		return next, 32
	}
	text := k.text(keys, row, scratch)
	if id, ok := k.texts[text]; ok {
		return id, 0
	}
	k.texts[strings.Clone(text)] = next
	return next, int64(len(text)) + 48
}

// text is the key of a row as the map has it, valid until the next call.
func (k *keyIDs) text(keys []column, row int, scratch *[]byte) string {
	if k.kind == keyText {
		return keys[0].texts.Value(row)
	}
	*scratch = appendKey((*scratch)[:0], keys, row)
	return view(*scratch)
}

// maxIndexRows keeps positions in 31 bits; a larger view is spilled.
const maxIndexRows = 1<<31 - 1

// entry is a row of a view while the index is built.
type entry struct {
	visible, event, created int64
	id                      int32
	part                    int32
	row                     int32
}

// builder collects a view's rows for an index.
type builder struct {
	view    *View
	ids     keyIDs
	parts   []part
	entries [][]entry // by part
	count   int       // of all entries
	stats   *Stats
	bytes   int64 // held by all of it
	scratch []byte
}

func newBuilder(v *View, stats *Stats) *builder {
	return &builder{view: v, ids: newKeyIDs(v.Keys), stats: stats}
}

// entryBytes is an entry, twice: once in the input's order, once grouped.
const entryBytes = 80

// add takes a batch, which the builder retains.
func (b *builder) add(p part, size int64) {
	p.batch.Retain()
	at := int32(len(b.parts)) //nolint:gosec // batches are fewer than rows
	b.parts = append(b.parts, p)
	b.bytes += size
	entries := make([]entry, 0, p.rows())
	for row := range p.rows() {
		b.stats.Rows++
		if p.nullKey(row) {
			b.stats.NullKeys++
			continue
		}
		if p.event.null(row) {
			b.stats.NoTime++
			continue
		}
		id, grown := b.ids.add(p.keys, row, &b.scratch)
		b.bytes += grown + entryBytes
		e := entry{id: id, part: at, row: int32(row)}
		e.event, e.created, e.visible = p.times(row)
		entries = append(entries, e)
	}
	b.entries = append(b.entries, entries)
	b.count += len(entries)
}

func (b *builder) release() {
	for i := range b.parts {
		b.parts[i].batch.Release()
	}
	b.parts, b.entries = nil, nil
}

// build makes the index and releases the batches.
func (b *builder) build() (*index, error) {
	defer b.release()
	keys := b.ids.count()
	ix := &index{view: b.view, ids: b.ids, start: make([]int32, keys+1)}

	// Group by key with a counting sort, which keeps the input's order: input
	// that is clustered by time stays sorted and costs one pass.
	counts := make([]int32, keys+1)
	for _, entries := range b.entries {
		for i := range entries {
			counts[entries[i].id+1]++
		}
	}
	for k := 1; k <= keys; k++ {
		counts[k] += counts[k-1]
	}
	place := slices.Clone(counts)
	grouped := make([]entry, b.count)
	for _, entries := range b.entries {
		for i := range entries {
			e := &entries[i]
			grouped[place[e.id]] = *e
			place[e.id]++
		}
	}
	b.entries = nil

	kept := grouped[:0]
	tie := &tieBreak{builder: b}
	var byTime timeSort
	for k := range keys {
		group := grouped[counts[k]:counts[k+1]]
		byTime.sort(group)
		from := len(kept)
		kept = sweep(kept, from, group, tie)
		ix.start[k+1] = int32(len(kept)) //nolint:gosec // at most maxIndexRows
	}
	if tie.err != nil {
		return nil, tie.err
	}

	ix.visible, ix.event = make([]int64, len(kept)), make([]int64, len(kept))
	for i := range kept {
		ix.visible[i], ix.event[i] = kept[i].visible, kept[i].event
	}
	for f := range b.view.Features {
		if b.view.Features[f].Select != "" {
			ix.columns = append(ix.columns, collect(b.parts, f, b.view.Features[f].Type, kept))
		}
	}
	return ix, nil
}

func byTime(a, b entry) int {
	return cmp.Or(cmp.Compare(a.visible, b.visible), cmp.Compare(a.event, b.event), cmp.Compare(a.created, b.created))
}

// sweep appends to kept, whose part from "from" on is this key's, the rows of a
// sorted group that become the answer when they become visible. kept may share
// memory with group: it never overtakes it.
func sweep(kept []entry, from int, group []entry, tie *tieBreak) []entry {
	for _, e := range group {
		if len(kept) == from {
			kept = append(kept, e)
			continue
		}
		best := &kept[len(kept)-1]
		if !tie.beats(e, *best) {
			continue
		}
		if best.visible == e.visible {
			*best = e
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

// tieBreak decides between rows; full ties by their packed bytes.
type tieBreak struct {
	builder *builder
	a, b    []byte
	values  []value.Value
	err     error
}

func (t *tieBreak) beats(e, best entry) bool {
	if c := cmp.Or(cmp.Compare(e.event, best.event), cmp.Compare(e.created, best.created)); c != 0 {
		return c > 0
	}
	t.builder.stats.Ties++
	if t.err != nil {
		return false
	}
	t.values = slices.Grow(t.values[:0], len(t.builder.view.Features))[:len(t.builder.view.Features)]
	if t.a, t.err = t.builder.parts[e.part].pack(t.a[:0], int(e.row), t.values); t.err != nil {
		return false
	}
	if t.b, t.err = t.builder.parts[best.part].pack(t.b[:0], int(best.row), t.values); t.err != nil {
		return false
	}
	return bytes.Compare(t.a, t.b) > 0
}

// none is the position of a spine row without a match.
const none = -1

// prober looks up the rows of one spine batch after another. The hints make a
// spine in order of time cost a step per row instead of a search. Not safe for
// concurrent use.
type prober struct {
	ix      *index
	hints   []int32
	scratch []byte
}

func newProber(ix *index) *prober {
	p := &prober{ix: ix, hints: make([]int32, len(ix.start)-1)}
	copy(p.hints, ix.start)
	return p
}

// probe writes the position of each row's answer to out.
func (p *prober) probe(keys []column, times []int64, ttl int64, out []int32) {
	ix := p.ix
	nullable := slices.ContainsFunc(keys, func(c column) bool { return c.valid != nil })
	for row := range out {
		out[row] = none
		if nullable && anyNull(keys, row) {
			continue
		}
		id, ok := p.find(keys, row)
		if !ok {
			continue
		}
		at := p.seek(id, times[row])
		if at >= 0 && (ttl == 0 || ix.event[at] >= saturatingSub(times[row], ttl)) {
			out[row] = at
		}
	}
}

func anyNull(keys []column, row int) bool {
	for i := range keys {
		if keys[i].null(row) {
			return true
		}
	}
	return false
}

func (p *prober) find(keys []column, row int) (int32, bool) {
	if p.ix.ids.kind == keyInt {
		id, ok := p.ix.ids.ints[keys[0].ints[row]]
		return id, ok
	}
	id, ok := p.ix.ids.texts[p.ix.ids.text(keys, row, &p.scratch)]
	return id, ok
}

// seek is the last entry of a key's timeline that is visible at t, or none.
func (p *prober) seek(id int32, t int64) int32 {
	visible := p.ix.visible
	lo, hi := p.ix.start[id], p.ix.start[id+1] // the answer is in [lo−1, hi)
	at := p.hints[id]
	if visible[at] <= t {
		// Forwards in doubling steps from the hint.
		lo = at + 1
		for step := int32(1); ; step *= 2 {
			next := at + step
			if next >= hi || next < at {
				break
			}
			if visible[next] > t {
				hi = next
				break
			}
			lo = next + 1
		}
	} else {
		hi = at
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		if visible[mid] <= t {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == p.ix.start[id] {
		return none
	}
	p.hints[id] = lo - 1
	return lo - 1
}
