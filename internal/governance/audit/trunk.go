package audit

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	tileHeight = 8
	tileLeaves = 1 << tileHeight // leaves of a tile
)

// trunk is the tree as this process has verified it against a signed checkpoint: the
// root of each complete tile of 256 leaves, and the hashes of the leaves behind the last
// one. A leaf that is read is proven with the 8 stored hashes beside its path through
// its tile. 10⁶ entries take 125 KB.
type trunk struct {
	mu    sync.Mutex
	tiles []tlog.Hash
	above tree        // right edge of the tree over the tiles
	tail  []tlog.Hash // fewer than tileLeaves
}

func (t *trunk) size() int64 { return int64(len(t.tiles))*tileLeaves + int64(len(t.tail)) }

func (t *trunk) reset() { t.tiles, t.above, t.tail = nil, tree{}, nil }

func (t *trunk) add(h tlog.Hash) {
	t.tail = append(t.tail, h)
	if len(t.tail) == tileLeaves {
		root := rootOf(t.tail)
		t.tail = t.tail[:0]
		t.addTile(root)
	}
}

func (t *trunk) addTile(root tlog.Hash) {
	t.tiles = append(t.tiles, root)
	t.above.addHash(root)
}

func (t *trunk) root() tlog.Hash {
	var tail tree
	for _, h := range t.tail {
		tail.addHash(h)
	}
	return foldEdge(slices.Concat(t.above.edge, tail.edge))
}

func rootOf(leaves []tlog.Hash) tlog.Hash {
	var t tree
	for _, h := range leaves {
		t.addHash(h)
	}
	return t.root()
}

// grew adds leaves that this process has just signed.
func (t *trunk) grew(before int64, leaves []Leaf, signed tlog.Tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size() != before {
		return // another process extended it meanwhile, or nothing was verified yet
	}
	for _, l := range leaves {
		t.add(tlog.RecordHash(l.Commitment))
	}
	if t.root() != signed.Hash {
		t.reset() // the next reader compares it with the checkpoint
	}
}

// verifiedTo makes the trunk cover the newest signed checkpoint. Under trunk.mu. Error:
// Contradicted when the stored hashes are not those that were signed.
func (s *Sequencer) verifiedTo(ctx context.Context, tx *store.Tx) error {
	last, err := s.cfg.Store.LastCheckpoint(ctx, tx)
	if fault.Is(err, fault.NotFound) {
		if s.trunk.size() > 0 {
			return changedLog("it has no checkpoint")
		}
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "read the last checkpoint")
	}
	c, err := openCheckpoint(last.Note, s.verifier)
	if err != nil || c.Origin != s.origin || c.Size != last.Size {
		return changedLog("its last checkpoint does not verify")
	}
	t := &s.trunk
	if c.Size < t.size() {
		return changedLog(fmt.Sprintf("its last checkpoint covers %d entries, but %d were signed", c.Size, t.size()))
	}
	var want []int64
	from := t.size()
	for n := from; n < c.Size; {
		if n%tileLeaves == 0 && n+tileLeaves <= c.Size {
			want = append(want, tlog.StoredHashIndex(tileHeight, n/tileLeaves))
			n += tileLeaves
			continue
		}
		want = append(want, tlog.StoredHashIndex(0, n))
		n++
	}
	for part := range slices.Chunk(want, 10*tileLeaves) {
		got, err := s.cfg.Store.Hashes(ctx, tx, part)
		if err != nil {
			return err
		}
		for _, i := range part {
			h, ok := got[i]
			if !ok {
				t.reset()
				return changedLog(fmt.Sprintf("its hash %d is missing", i))
			}
			if level, _ := tlog.SplitStoredHashIndex(i); level == 0 {
				t.add(h)
			} else {
				t.addTile(h)
			}
		}
	}
	if t.root() != c.Root {
		t.reset()
		return changedLog("its root differs from the signed one")
	}
	return nil
}

// view is the trunk as it was at a moment.
type view struct {
	tiles, tail []tlog.Hash
}

func (v view) size() int64 { return int64(len(v.tiles))*tileLeaves + int64(len(v.tail)) }

// node is the hash at a level of the tree that covers whole tiles.
func (v view) node(level int, n int64) tlog.Hash {
	if level == tileHeight {
		return v.tiles[n]
	}
	return tlog.NodeHash(v.node(level-1, 2*n), v.node(level-1, 2*n+1))
}

// verified gives the verified tree, with at least size leaves if so many were signed.
func (s *Sequencer) verified(ctx context.Context, tx *store.Tx, size int64) (view, error) {
	t := &s.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	if size > t.size() {
		if err := s.verifiedTo(ctx, tx); err != nil {
			return view{}, err
		}
	}
	return view{tiles: t.tiles, tail: slices.Clone(t.tail)}, nil // tiles are only appended to
}

func changedLog(what string) error {
	return contradicted(hintChanged, "the audit log was changed in the database: %s", what)
}

// proveLeaves proves that the commitments of leaves are in the signed tree. It gives the
// indexes of those that are not. Error: Contradicted when the tree itself is not the one
// that was signed.
func (s *Sequencer) proveLeaves(ctx context.Context, tx *store.Tx, leaves []Leaf) (forged map[int64]bool, err error) {
	if len(leaves) == 0 {
		return nil, nil
	}
	end := int64(0)
	for _, l := range leaves {
		end = max(end, l.Index+1)
	}
	t, err := s.verified(ctx, tx, end)
	if err != nil {
		return nil, err
	}
	whole := int64(len(t.tiles)) * tileLeaves
	var beside []int64
	for _, l := range leaves {
		if l.Index < 0 || l.Index >= whole {
			continue
		}
		for level := range tileHeight {
			beside = append(beside, tlog.StoredHashIndex(level, l.Index>>level^1))
		}
	}
	slices.Sort(beside)
	beside = slices.Compact(beside)
	var stored map[int64]tlog.Hash
	if len(beside) > 0 {
		if stored, err = s.cfg.Store.Hashes(ctx, tx, beside); err != nil {
			return nil, err
		}
	}
	forged = map[int64]bool{}
	for _, l := range leaves {
		if !t.holds(l, whole, stored) {
			forged[l.Index] = true
		}
	}
	return forged, nil
}

// holds reports whether the tree has the leaf's commitment at its index.
func (v view) holds(l Leaf, whole int64, stored map[int64]tlog.Hash) bool {
	h := tlog.RecordHash(l.Commitment)
	if l.Index < 0 || l.Index >= v.size() {
		return false
	}
	if l.Index >= whole {
		return v.tail[l.Index-whole] == h
	}
	for level := range tileHeight {
		n := l.Index >> level
		sibling, ok := stored[tlog.StoredHashIndex(level, n^1)]
		if !ok {
			return false
		}
		if n&1 == 0 {
			h = tlog.NodeHash(h, sibling)
		} else {
			h = tlog.NodeHash(sibling, h)
		}
	}
	return v.tiles[l.Index>>tileHeight] == h
}
