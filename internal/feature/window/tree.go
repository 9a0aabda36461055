package window

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Tree is the events of one entity in memory, in order of their time: a B-tree
// with a state in each node. A late event is put at its place. Not safe for
// concurrent use.
type Tree struct {
	plan   *Plan
	root   *node
	bytes  int64
	sum    *State
	asked  int64   // calls of At
	whole  []*node // of the window at hand: those that lie in it and have not changed since the last call
	memos  []memo  // by window
	values []value.Value
}

// memo is the sum of the nodes in the middle of a window, most of which are there
// in the next call, too.
type memo struct {
	nodes []*node
	asked int64
	sum   *State
}

const (
	leafPoints = 32
	nodeKids   = 16
)

// node has either points or kids.
type node struct {
	first, last int64 // event times
	known       int64 // of the latest of its points
	changed     int64 // Tree.asked at its last change
	state       *State
	points      []point
	kids        []*node
}

type point struct {
	event, created int64
	packed         []byte // value.AppendRow of the plan's inputs
}

func (p *point) known() int64 { return max(p.event, p.created) }

// bytes is about what a point takes, with its part of the states above it.
func (p *point) bytes() int64 { return 2 * (int64(len(p.packed)) + 64) }

// NewTree makes an empty tree.
func (p *Plan) NewTree() *Tree {
	t := &Tree{plan: p, sum: p.NewState(), values: make([]value.Value, len(p.inputs)), memos: make([]memo, len(p.windows))}
	for i := range t.memos {
		t.memos[i].sum = p.NewState()
	}
	return t
}

// Reset empties the tree.
func (t *Tree) Reset() {
	t.root, t.bytes = nil, 0
	for i := range t.memos {
		t.memos[i].nodes = nil
		t.memos[i].sum.Reset()
	}
}

// Bytes is about what the tree holds.
func (t *Tree) Bytes() int64 { return t.bytes }

// Insert adds an event; packed is value.AppendRow of its values, and is copied.
func (t *Tree) Insert(event, created int64, packed []byte) error {
	if err := value.DecodeRow(packed, t.plan.types, t.values); err != nil {
		return err
	}
	p := point{event, created, slices.Clone(packed)}
	t.bytes += p.bytes()
	if t.root == nil {
		t.root = newNode([]point{p}, nil, t.asked)
		return nil
	}
	row := Row{Event: event, Created: created, Values: t.values}
	if right := t.root.insert(p, row, t.asked); right != nil {
		t.root = newNode(nil, []*node{t.root, right}, t.asked)
	}
	return nil
}

// newNode makes a node of points or kids, whose state is made when it is asked
// for.
func newNode(points []point, kids []*node, asked int64) *node {
	n := &node{points: points, kids: kids, changed: asked}
	n.bound()
	return n
}

// bound sets the times of a node.
func (n *node) bound() {
	n.known = minTime
	if n.kids != nil {
		n.first, n.last = n.kids[0].first, n.kids[len(n.kids)-1].last
		for _, k := range n.kids {
			n.known = max(n.known, k.known)
		}
		return
	}
	n.first, n.last = n.points[0].event, n.points[len(n.points)-1].event
	for i := range n.points {
		n.known = max(n.known, n.points[i].known())
	}
}

// insert adds a point below n, and returns its right half if it had to be split.
func (n *node) insert(p point, row Row, asked int64) (right *node) {
	n.changed = asked
	n.first, n.last, n.known = min(n.first, p.event), max(n.last, p.event), max(n.known, p.known())
	if n.state != nil {
		n.state.Add(row)
	}
	if n.kids == nil {
		at := len(n.points)
		for at > 0 && n.points[at-1].event > p.event {
			at--
		}
		n.points = slices.Insert(n.points, at, p)
		if len(n.points) <= leafPoints {
			return nil
		}
		half := len(n.points) / 2
		right = newNode(slices.Clone(n.points[half:]), nil, asked)
		clear(n.points[half:])
		n.points = n.points[:half]
	} else {
		at := len(n.kids) - 1
		for at > 0 && n.kids[at].first > p.event {
			at--
		}
		split := n.kids[at].insert(p, row, asked)
		if split == nil {
			return nil
		}
		n.kids = slices.Insert(n.kids, at+1, split)
		if len(n.kids) <= nodeKids {
			return nil
		}
		half := len(n.kids) / 2
		right = newNode(nil, slices.Clone(n.kids[half:]), asked)
		clear(n.kids[half:])
		n.kids = n.kids[:half]
	}
	n.state = nil
	n.bound()
	return right
}

// Forget drops events at or before a time, as far as that is cheap.
func (t *Tree) Forget(until int64) {
	if t.root == nil {
		return
	}
	if t.root.last <= until {
		t.Reset()
		return
	}
	t.bytes -= t.root.forget(until, t.asked)
	for len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
}

// forget drops kids that are too old; not all of them are. It returns the bytes
// that they took.
func (n *node) forget(until, asked int64) (freed int64) {
	if n.kids == nil || n.first > until {
		return 0
	}
	old := 0
	for n.kids[old].last <= until {
		freed += n.kids[old].bytes()
		old++
	}
	n.kids = slices.Delete(n.kids, 0, old)
	if more := n.kids[0].forget(until, asked); more > 0 || old > 0 {
		freed += more
		n.state, n.changed = nil, asked
		n.bound()
	}
	return freed
}

func (n *node) bytes() (total int64) {
	for i := range n.points {
		total += n.points[i].bytes()
	}
	for _, k := range n.kids {
		total += k.bytes()
	}
	return total
}

// At computes the features at a time into out, which is as long as there are
// features. Events that were forgotten have to be older than every window.
func (t *Tree) At(at int64, out []value.Value) error {
	t.sum.Reset()
	to := at
	for w, width := range t.plan.windows {
		from := before(at, width)
		if t.root != nil && from < to {
			t.whole = t.whole[:0]
			if err := t.collect(t.root, from, to, at); err != nil {
				return err
			}
			t.middle(&t.memos[w])
		}
		t.plan.results(t.sum, w, out)
		to = from
	}
	t.asked++
	return nil
}

// middle adds to the sum the nodes that lie in the window.
func (t *Tree) middle(m *memo) {
	if !slices.Equal(m.nodes, t.whole) || slices.ContainsFunc(t.whole, func(n *node) bool { return n.changed >= m.asked }) {
		m.sum.Reset()
		for _, n := range t.whole {
			m.sum.Merge(n.state)
		}
		m.nodes, m.asked = append(m.nodes[:0], t.whole...), t.asked
	}
	t.sum.Merge(m.sum)
}

// collect adds to the sum the events of a node with from < event ≤ to that are
// known at a time.
func (t *Tree) collect(n *node, from, to, at int64) error {
	if n.last <= from || n.first > to {
		return nil
	}
	if from < n.first && n.last <= to && n.known <= at {
		if n.state == nil {
			if err := t.summarise(n); err != nil {
				return err
			}
		}
		if n.changed == t.asked {
			t.sum.Merge(n.state)
		} else {
			t.whole = append(t.whole, n)
		}
		return nil
	}
	for _, k := range n.kids {
		if err := t.collect(k, from, to, at); err != nil {
			return err
		}
	}
	for i := range n.points {
		if p := &n.points[i]; from < p.event && p.event <= to && p.known() <= at {
			if err := t.add(t.sum, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// summarise makes the state of a node.
func (t *Tree) summarise(n *node) error {
	s := t.plan.NewState()
	for _, k := range n.kids {
		if k.state == nil {
			if err := t.summarise(k); err != nil {
				return err
			}
		}
		s.Merge(k.state)
	}
	for i := range n.points {
		if err := t.add(s, &n.points[i]); err != nil {
			return err
		}
	}
	n.state = s
	return nil
}

func (t *Tree) add(s *State, p *point) error {
	if err := value.DecodeRow(p.packed, t.plan.types, t.values); err != nil {
		return err
	}
	s.Add(Row{Event: p.event, Created: p.created, Values: t.values})
	return nil
}
