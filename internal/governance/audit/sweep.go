package audit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	sweepEvery  = 15 * time.Second // between parts of a verification of all entries
	sweepLeast  = 4 * tileLeaves   // entries of a part
	sweepAtOnce = 16 * tileLeaves  // newest entries that Start verifies before it returns
)

// sweep verifies all entries, the newest first, in parts. Where it is, is kept in this
// process only: an attacker with write access to the database could move a mark there.
type sweep struct {
	mu      sync.Mutex
	at      int64 // entries before this one are still to be verified; 0: begin again
	end     int64 // of this verification
	took    time.Duration
	stop    context.CancelFunc
	done    chan struct{}
	through bool // all entries were verified since the start
}

// Sweep verifies the next part of all entries, at least so many unless it comes to the
// end: content, columns for filters, places in the signed tree, stored hashes, the
// checkpoints that sign them, and, at the end, the witness. ended says that all
// entries are verified; the next call begins with the newest. Error: Contradicted for a
// finding, after which nothing may be changed.
func (s *Sequencer) Sweep(ctx context.Context, entries int64) (ended bool, err error) {
	w := &s.sweep
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	ended, err = s.sweepPart(ctx, entries)
	w.took += time.Since(began)
	if err != nil {
		w.at, w.took = 0, 0
		s.found(err)
		return false, err
	}
	s.mu.Lock()
	s.status.Verified = w.end - w.at
	if ended {
		s.status.Swept, s.status.SweepTook = s.cfg.Now(), w.took
		w.took = 0
		w.through = true
	}
	s.mu.Unlock()
	return ended, nil
}

func (s *Sequencer) sweepPart(ctx context.Context, entries int64) (ended bool, err error) {
	w := &s.sweep
	if w.at == 0 {
		if w.end, err = s.signedSize(ctx); err != nil {
			return false, err
		}
		w.at = w.end
		if s.archive != nil {
			s.archive.forgetAll() // what is verified is what the object store has now
		}
	}
	for n := int64(0); w.at > 0 && n < entries; {
		from := (w.at - 1) / tileLeaves * tileLeaves
		if err := s.verifyTile(ctx, from, w.at); err != nil {
			return false, err
		}
		n += w.at - from
		w.at = from
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
	if w.at > 0 {
		return false, nil
	}
	return true, s.verifyWitness(ctx)
}

// signedSize is how many entries the newest checkpoint signs, whose tree was verified.
func (s *Sequencer) signedSize(ctx context.Context) (size int64, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		v, err := s.verified(ctx, tx, math.MaxInt64)
		size = v.size()
		return err
	})
	return size, err
}

// verifyTile verifies the entries with from ≤ index < to of one tile, where from is its
// beginning.
func (s *Sequencer) verifyTile(ctx context.Context, from, to int64) error {
	var problems []Problem
	var blank []Leaf
	err := s.view(ctx, func(ctx context.Context, tx *store.Tx) error {
		problems, blank = nil, nil
		v, err := s.verified(ctx, tx, to)
		if err != nil {
			return err
		}
		to = min(from+tileLeaves, v.size()) // the tile may have grown since
		leaves, err := s.cfg.Store.Leaves(ctx, tx, from, to)
		if err != nil {
			return err
		}
		hashes := make([]tlog.Hash, 0, tileLeaves)
		for i, l := range leaves {
			if l.Index != from+int64(i) {
				break
			}
			hashes = append(hashes, tlog.RecordHash(l.Commitment))
		}
		if int64(len(hashes)) != to-from {
			return changedLog(fmt.Sprintf("entry %d is missing", from+int64(len(hashes))))
		}
		if err := v.agrees(from, leaves, hashes); err != nil {
			return err
		}
		if err := s.verifyHashes(ctx, tx, v, from, hashes); err != nil {
			return err
		}
		if err := s.verifyCheckpoints(ctx, tx, from, to); err != nil {
			return err
		}
		erased := s.erased.of(leaves)
		for _, l := range leaves {
			if _, ok := erased[l.Index]; l.Record == nil && !ok {
				blank = append(blank, l)
			} else if d := l.check(erased); d != nil {
				problems = append(problems, Problem{Index: l.Index, What: d.what, columns: d.columns})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	more, err := s.resolve(ctx, blank)
	if err != nil {
		return err
	}
	if problems = append(problems, more...); len(problems) > 0 {
		return finding(problems)
	}
	return nil
}

// agrees compares the leaves from the beginning of a tile on with the verified tree.
func (v view) agrees(from int64, leaves []Leaf, hashes []tlog.Hash) error {
	if tile := from / tileLeaves; tile < int64(len(v.tiles)) {
		if rootOf(hashes) != v.tiles[tile] {
			return changedLog(fmt.Sprintf("entries %d to %d differ from the signed ones", from, from+tileLeaves-1))
		}
		return nil
	}
	for i, h := range hashes {
		if i >= len(v.tail) || v.tail[i] != h {
			return changedLog(fmt.Sprintf("the leaf of entry %d is not in the signed tree", leaves[i].Index))
		}
	}
	return nil
}

// verifyHashes compares the stored hashes that leaves from the beginning of a tile on
// complete with what the leaves and the verified tree give.
func (s *Sequencer) verifyHashes(ctx context.Context, tx *store.Tx, v view, from int64, leaves []tlog.Hash) error {
	to := from + int64(len(leaves))
	stored, err := s.cfg.Store.HashRange(ctx, tx, tlog.StoredHashCount(from), tlog.StoredHashCount(to))
	if err != nil {
		return err
	}
	levels := [][]tlog.Hash{leaves}
	for level := 1; level <= tileHeight; level++ {
		below := levels[level-1]
		nodes := make([]tlog.Hash, len(below)/2)
		for i := range nodes {
			nodes[i] = tlog.NodeHash(below[2*i], below[2*i+1])
		}
		levels = append(levels, nodes)
	}
	want := tlog.StoredHashCount(from)
	for _, h := range stored {
		level, n := tlog.SplitStoredHashIndex(h.Index)
		var right tlog.Hash
		if level <= tileHeight {
			right = levels[level][n-from>>level]
		} else {
			right = v.node(level, n)
		}
		if h.Index != want || h.Hash != right {
			return changedLog(fmt.Sprintf("its hash %d does not match its entries", want))
		}
		want++
	}
	if want != tlog.StoredHashCount(to) {
		return changedLog(fmt.Sprintf("its hash %d is missing", want))
	}
	return nil
}

// verifyCheckpoints verifies the checkpoints of sizes from < size ≤ to.
func (s *Sequencer) verifyCheckpoints(ctx context.Context, tx *store.Tx, from, to int64) error {
	signed, err := s.cfg.Store.Checkpoints(ctx, tx, from, to)
	if err != nil {
		return err
	}
	r := s.reader(ctx, tx, nil)
	for _, one := range signed {
		c, err := openCheckpoint(one.Note, s.verifier)
		if err != nil || c.Origin != s.origin || c.Size != one.Size {
			return changedLog(fmt.Sprintf("its checkpoint of %d entries does not verify", one.Size))
		}
		root, err := tlog.TreeHash(c.Size, r)
		if err != nil {
			return err
		}
		if root != c.Root {
			return changedLog(fmt.Sprintf("its first %d entries differ from those that a checkpoint signed", c.Size))
		}
	}
	return nil
}

// keeper is a Witness that gives all that it has, in the order in which it got it.
type keeper interface {
	All(ctx context.Context) ([][]byte, error)
}

// verifyWitness compares the log with all checkpoints of the witness, save those
// that a person gave up.
func (s *Sequencer) verifyWitness(ctx context.Context) error {
	all, ok := s.cfg.Witness.(keeper)
	if !ok {
		return nil
	}
	notes, err := all.All(ctx)
	if err != nil {
		return fault.Wrap(err, "read the checkpoints of the witness")
	}
	given := make([]Checkpoint, 0, len(notes))
	var accepted []Checkpoint
	for i, b := range notes {
		c, err := openCheckpoint(b, s.verifier)
		if err != nil || c.Origin != s.origin {
			return contradicted(hintOtherLog, "checkpoint %d of the witness does not belong to the audit log %s", i+1, s.origin)
		}
		if c.Supersedes != nil {
			accepted = append(accepted, c)
		}
		given = append(given, c)
	}
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err != nil {
			return err
		}
		r := s.reader(ctx, tx, nil)
		for _, c := range given {
			if superseded(accepted, c) {
				continue
			}
			if err := agree(c, size, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// agree says how a log of a size differs from a checkpoint that was signed before.
func agree(c Checkpoint, size int64, r tlog.HashReader) error {
	if c.Size > size {
		return contradicted(hintOlder, "the audit log was rolled back: it has %d entries, and a checkpoint of %s signed %d",
			size, formatTime(c.Time), c.Size)
	}
	root, err := tlog.TreeHash(c.Size, r)
	if err != nil {
		return err
	}
	if root != c.Root {
		return contradicted(hintOlder, "the audit log was forked: its first %d entries differ from those that a checkpoint of %s signed",
			c.Size, formatTime(c.Time))
	}
	return nil
}

// superseded reports whether a person gave the checkpoint's tree up: all of the
// abandoned branch, not only its last checkpoint.
func superseded(accepted []Checkpoint, c Checkpoint) bool {
	return slices.ContainsFunc(accepted, func(a Checkpoint) bool {
		return c.Size <= a.Supersedes.N && !c.Time.After(a.Time)
	})
}

// startSweeping verifies all entries in the background until the context ends: first at
// half of a processor, later so that all are verified once in Config.Sweep.
func (s *Sequencer) startSweeping(ctx context.Context) {
	s.sweep.done = make(chan struct{})
	ctx, s.sweep.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.sweeping(ctx)
}

func (s *Sequencer) sweeping(ctx context.Context) {
	defer close(s.sweep.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.sweep.mu.Lock()
		first, size := !s.sweep.through, s.sweep.end
		s.sweep.mu.Unlock()
		pause, part := sweepEvery, max(sweepLeast, size/int64(max(1, s.cfg.Sweep/sweepEvery)))
		if first {
			part = sweepLeast
		}
		began := time.Now()
		_, err := s.Sweep(ctx, part)
		if first && err == nil {
			pause = time.Since(began)
		}
		if ctx.Err() == nil && !Contradicted(err) { // a finding is told by the rounds
			s.tell(ctx, &told, "the verification of its entries", err)
		}
		timer.Reset(pause)
	}
}

func (s *Sequencer) stopSweeping() {
	if s.sweep.stop != nil {
		s.sweep.stop()
		<-s.sweep.done
		s.sweep.stop = nil
	}
}
