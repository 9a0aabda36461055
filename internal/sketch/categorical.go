package sketch

import (
	"cmp"
	"encoding/hex"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/axiomhq/hyperloglog"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	// MaxCategories is how many categories are known by name.
	MaxCategories = 1000
	// MaxText is the longest category in bytes; of a longer one its beginning
	// and a digest stand for it.
	MaxText = 256
)

// categorical is a Column of categories: exact counts up to MaxCategories of
// them, then space-saving (Metwally, Agrawal, El Abbadi, 2005). A category that
// makes up more than 1/MaxCategories of the rows is then always known by name,
// and its count is low by at most as much.
type categorical struct {
	count   uint64
	entries []entry // a heap by weight once full
	index   map[string]int
	full    bool // more than MaxCategories were seen
	clock   uint64
	seen    *hyperloglog.Sketch // once full
}

type entry struct {
	text   string
	weight uint64 // never less than the truth
	excess uint64 // by how much it may be more
	at     uint64 // when it got its place; breaks ties in the same way each time
}

func newCategorical() *categorical { return &categorical{index: map[string]int{}} }

func (c *categorical) add(text string) { c.addCount(Clip(text), 1) }

func (c *categorical) addCount(text string, n uint64) {
	c.count += n
	if c.full {
		c.seen.Insert([]byte(text))
	}
	if at, ok := c.index[text]; ok {
		c.entries[at].weight += n
		if c.full {
			c.down(at)
		}
		return
	}
	c.clock++
	if len(c.entries) < MaxCategories {
		c.index[text] = len(c.entries)
		c.entries = append(c.entries, entry{text: text, weight: n, at: c.clock})
		return
	}
	if !c.full {
		c.fill()
		c.seen.Insert([]byte(text))
	}
	least := c.entries[0]
	delete(c.index, least.text)
	c.index[text] = 0
	c.entries[0] = entry{text: text, weight: least.weight + n, excess: least.weight, at: c.clock}
	c.down(0)
}

// fill turns to approximation: from here on the entries are a heap.
func (c *categorical) fill() {
	c.full = true
	c.seen = hyperloglog.New14()
	for _, e := range c.entries {
		c.seen.Insert([]byte(e.text))
	}
	c.heapify()
}

func (c *categorical) heapify() {
	slices.SortFunc(c.entries, byWeight)
	for i, e := range c.entries {
		c.index[e.text] = i
	}
}

func byWeight(a, b entry) int {
	return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(a.at, b.at))
}

func (c *categorical) down(at int) {
	for {
		child := 2*at + 1
		if child >= len(c.entries) {
			return
		}
		if child+1 < len(c.entries) && byWeight(c.entries[child+1], c.entries[child]) < 0 {
			child++
		}
		if byWeight(c.entries[at], c.entries[child]) <= 0 {
			return
		}
		c.entries[at], c.entries[child] = c.entries[child], c.entries[at]
		c.index[c.entries[at].text], c.index[c.entries[child].text] = at, child
		at = child
	}
}

// floor is what a category that has no entry may weigh at most.
func (c *categorical) floor() uint64 {
	if !c.full {
		return 0
	}
	least := c.entries[0].weight
	for _, e := range c.entries {
		least = min(least, e.weight)
	}
	return least
}

// merge keeps the heaviest of both (Agarwal and others: Mergeable Summaries,
// 2012): the excesses add up.
func (c *categorical) merge(other *categorical) {
	if other.count == 0 {
		return
	}
	mine, theirs := c.floor(), other.floor()
	all := make([]entry, 0, len(c.entries)+len(other.entries))
	for _, e := range c.entries {
		if at, ok := other.index[e.text]; ok {
			e.weight += other.entries[at].weight
			e.excess += other.entries[at].excess
		} else {
			e.weight += theirs
			e.excess += theirs
		}
		all = append(all, e)
	}
	for _, e := range slices.SortedFunc(slices.Values(other.entries), func(a, b entry) int { return cmp.Compare(a.at, b.at) }) {
		if _, ok := c.index[e.text]; !ok {
			c.clock++
			all = append(all, entry{text: e.text, weight: e.weight + mine, excess: e.excess + mine, at: c.clock})
		}
	}
	c.count += other.count
	full := c.full || other.full || len(all) > MaxCategories
	if full {
		if c.seen == nil {
			c.seen = hyperloglog.New14()
		}
		for _, e := range all {
			c.seen.Insert([]byte(e.text))
		}
		if other.seen != nil {
			// Both have the same precision, the only thing it could refuse.
			_ = c.seen.Merge(other.seen)
		}
		slices.SortFunc(all, byWeight)
		all = all[max(0, len(all)-MaxCategories):]
	}
	c.full, c.entries = full, all
	clear(c.index)
	for i, e := range c.entries {
		c.index[e.text] = i
	}
}

func (c *categorical) categories() (known []Category, other uint64) {
	known = make([]Category, 0, len(c.entries))
	other = c.count
	for _, e := range c.entries {
		// What is certain of this category; the rest is of others, perhaps of it.
		sure := e.weight - e.excess
		sure = min(sure, other)
		if sure > 0 {
			known = append(known, Category{Text: e.text, Count: sure})
			other -= sure
		}
	}
	slices.SortFunc(known, func(a, b Category) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Text, b.Text))
	})
	return known, other
}

func (c *categorical) distinct() (n uint64, exact bool) {
	if !c.full {
		return uint64(len(c.entries)), true
	}
	return max(c.seen.Estimate(), MaxCategories), false
}

func (c *categorical) append(w *writer) error {
	w.uint(c.count)
	w.uint(c.clock)
	w.uint(uint64(len(c.entries)))
	entries := c.entries
	if c.full { // by weight, so that the layout of the heap does not show
		entries = slices.SortedFunc(slices.Values(c.entries), byWeight)
	}
	for _, e := range entries {
		w.raw([]byte(e.text))
		w.uint(e.weight)
		w.uint(e.excess)
		w.uint(e.at)
	}
	if !c.full {
		w.uint(0)
		return nil
	}
	b, err := c.seen.MarshalBinary()
	if err != nil {
		return fault.Wrap(err, "writing a distinct count")
	}
	w.uint(1)
	w.raw(b)
	return nil
}

func readCategorical(r *reader) *categorical {
	c := newCategorical()
	c.count, c.clock = r.uint(), r.uint()
	if c.count > maxCount || c.clock > maxCount {
		r.fail("a column has an impossible number of rows")
	}
	var sure uint64
	for range r.uintMax(MaxCategories) {
		e := entry{text: string(r.raw(MaxText)), weight: r.uint(), excess: r.uint(), at: r.uint()}
		if _, twice := c.index[e.text]; twice || e.text == "" || e.excess >= e.weight || e.weight > 2*maxCount || e.at > c.clock {
			r.fail("a column has an invalid category")
		}
		if r.err != nil {
			return c
		}
		sure += e.weight - e.excess
		c.index[e.text] = len(c.entries)
		c.entries = append(c.entries, e)
	}
	if sure > c.count {
		r.fail("a column's categories add up to %d rows of %d", sure, c.count)
	}
	if r.uintMax(1) == 0 {
		if sure != c.count {
			r.fail("a column's categories add up to %d rows of %d", sure, c.count)
		}
		return c
	}
	c.full = true
	c.seen = new(hyperloglog.Sketch)
	b := r.raw(MaxEncoded)
	if r.err != nil {
		return c
	}
	if len(b) < 2 || b[1] != 14 {
		r.fail("a distinct count of another precision")
		return c
	}
	if err := c.seen.UnmarshalBinary(b); err != nil {
		r.fail("a distinct count is invalid: %v", err)
		return c
	}
	if len(c.entries) < MaxCategories {
		r.fail("a column that is full with %d categories", len(c.entries))
		return c
	}
	c.heapify()
	return c
}

// Clip makes a category that fits: valid UTF-8 of at most MaxText bytes. Different
// texts give different ones.
func Clip(text string) string {
	if len(text) > MaxText {
		h := fnv.New128a()
		_, _ = h.Write([]byte(text))
		digest := hex.EncodeToString(h.Sum(nil))
		cut := MaxText - len(digest) - len("…#") - 3
		text = strings.ToValidUTF8(text[:cut], "") + "…#" + digest
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
