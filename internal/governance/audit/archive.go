package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// Old entries leave the database for the object store. The hashes of the tree and the
// checkpoints stay, so archived entries are proven as all others are. An archived segment:
//
//	writing ──the entries leave the database──▶ archived ──an entry changes──▶ dropped
//	    └──it fails, or an entry changes──▶ dropped
//
// A segment is written, read back and compared before its entries leave the database, in
// the transaction that makes it archived. An entry that is to change, as by an erasure,
// puts the entries of its segment back into the database, in the transaction of the change;
// later they are archived anew. Objects of dropped segments, and of those that stayed in
// writing because a server was killed, are deleted.

// MaxSegmentLeaves is the most entries of a segment; it has fewer if they have many bytes.
const MaxSegmentLeaves = 8 * tileLeaves

// Limits of the archive.
const (
	archiveBytes   = 4 << 20 // records of a segment, after which it takes no further tile
	archiveTime    = 10 * time.Minute
	archiveStale   = time.Hour // after which nobody writes a segment any more; longer than archiveTime
	giveUpTime     = 10 * time.Second
	searchRecords  = 1000 // of segments, that one search looks at; the next page resumes
	searchSegments = 8    // that one search reads; the next page resumes
	cachedSegments = 8
	staleSegments  = 100
	actionArchive  = "audit.archive"
	actionRecall   = "audit.recall"
)

const hintSegment = "Restore the object from a backup of the object store. `falaj audit accept-rollback` does not help: the entries exist nowhere else."

// Objects keeps archived segments. Safe for concurrent use.
type Objects interface {
	// Put stores an object durably under a new key.
	Put(ctx context.Context, key string, b []byte) error
	// Get reads an object. Errors: fault.NotFound when it is not there; ErrObjectDamaged
	// when it is not what was put.
	Get(ctx context.Context, key string, limit int64) ([]byte, error)
	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// ErrObjectDamaged is in the error of Objects.Get when the object is not what was put.
var ErrObjectDamaged = errors.New("the object is damaged")

// SegmentState is how far an archived segment is.
type SegmentState string

// The states.
const (
	SegmentWriting  SegmentState = "writing"  // the entries are in the database
	SegmentArchived SegmentState = "archived" // the entries are in the object
	SegmentDropped  SegmentState = "dropped"  // the entries are in the database again
)

// ArchiveSegment is an object with the entries first ≤ index < upto.
type ArchiveSegment struct {
	Object      string
	State       SegmentState
	Made        store.Time
	First, Upto int64
	Digest      string // SHA-256 of the object, in hexadecimal
	Bytes       int64  // of the object
	Since       store.Time
	Until       store.Time // time of the newest entry
	Names       SegmentNames
}

// SegmentNames are what entries of a segment name, sorted, so that a search reads only
// segments that may have what it looks for.
type SegmentNames struct {
	Projects []string `json:"projects,omitempty"`
	Actors   []string `json:"actors,omitempty"` // ids and names
	Actions  []string `json:"actions,omitempty"`
}

// describe is the segment of leaves.
func describe(leaves []Leaf) ArchiveSegment {
	s := ArchiveSegment{First: leaves[0].Index, Upto: leaves[0].Index + int64(len(leaves)), Since: leaves[0].At, Until: leaves[0].At}
	projects, actors, actions := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, l := range leaves {
		s.Since, s.Until = min(s.Since, l.At), max(s.Until, l.At)
		projects[l.Project], actors[l.ActorID], actors[l.ActorName], actions[l.Action] = true, true, true, true
	}
	s.Names = SegmentNames{slices.Sorted(maps.Keys(projects)), slices.Sorted(maps.Keys(actors)), slices.Sorted(maps.Keys(actions))}
	return s
}

// may reports whether the segment may have entries that match.
func (s ArchiveSegment) may(f Filter) bool {
	has := func(names []string, name string) bool {
		_, found := slices.BinarySearch(names, name)
		return name == "" || found
	}
	if !f.Since.IsZero() && s.Until < store.At(f.Since) || !f.Until.IsZero() && s.Since >= store.At(f.Until) {
		return false
	}
	if prefix, ok := strings.CutSuffix(f.Action, ".*"); ok {
		if !slices.ContainsFunc(s.Names.Actions, func(a string) bool { return hasPrefixFold(a, prefix+".") }) {
			return false
		}
	} else if !has(s.Names.Actions, f.Action) {
		return false
	}
	return has(s.Names.Projects, f.Project) && has(s.Names.Actors, f.Actor)
}

// matches reports whether the filter has the leaf, as Store.Find decides it.
func (f Filter) matches(l Leaf) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	if prefix, ok := strings.CutSuffix(f.Action, ".*"); ok {
		if !hasPrefixFold(l.Action, prefix+".") {
			return false
		}
	} else if !is(f.Action, l.Action) {
		return false
	}
	switch {
	case !is(f.Project, l.Project), f.Actor != "" && f.Actor != l.ActorID && f.Actor != l.ActorName,
		!is(f.Object, l.Object), !is(string(f.Outcome), string(l.Outcome)),
		!f.Since.IsZero() && l.At < store.At(f.Since), !f.Until.IsZero() && l.At >= store.At(f.Until):
		return false
	case f.Text == "":
		return true
	}
	return bytes.Contains(bytes.ToLower(l.Record), bytes.ToLower([]byte(f.JSONText())))
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// archive is a Store whose old leaves are in the object store. No transaction waits for
// that one: what a closure needs and is not at hand is its error, absentError, for which
// Sequencer.view and Sequencer.update fetch it and run the closure again.
type archive struct {
	Store
	objects Objects

	mu      sync.Mutex
	cached  []heldSegment   // the last used comes last
	writing map[string]bool // objects that this process may still put
}

// heldSegment is the content of a segment; it is never changed.
type heldSegment struct {
	is     ArchiveSegment // as its leaves describe it, with object, digest and bytes
	leaves []Leaf
}

// absentError says that a segment has to be fetched.
type absentError struct{ segment ArchiveSegment }

func (e *absentError) Error() string {
	return fmt.Sprintf("entries %d to %d of the audit log are archived", e.segment.First, e.segment.Upto-1)
}

type atHandKey struct{}

// atHand are the segments that were fetched for a closure.
type atHand struct {
	inside bool // fetch inside the transaction: nobody else uses the database
	held   map[string]heldSegment
}

// read gives the leaves of a segment.
func (a *archive) read(ctx context.Context, s ArchiveSegment) ([]Leaf, error) {
	hand, _ := ctx.Value(atHandKey{}).(*atHand)
	h, ok := heldSegment{}, false
	if hand != nil {
		h, ok = hand.held[s.Object]
	}
	if !ok {
		h, ok = a.lookUp(s.Object)
	}
	if !ok {
		if hand == nil || !hand.inside {
			return nil, &absentError{s}
		}
		var err error
		if h, err = a.fetch(ctx, s); err != nil {
			return nil, err
		}
	}
	// Somebody may have changed the row, to hide the segment from searches.
	want := h.is
	want.State, want.Made = s.State, s.Made
	if !equalSegments(want, s) {
		return nil, changedArchive("the record of the archived entries %d to %d does not match them", s.First, s.Upto-1)
	}
	return h.leaves, nil
}

func equalSegments(a, b ArchiveSegment) bool {
	return a.Object == b.Object && a.State == b.State && a.Made == b.Made && a.First == b.First && a.Upto == b.Upto && a.Digest == b.Digest && a.Bytes == b.Bytes &&
		a.Since == b.Since && a.Until == b.Until &&
		slices.Equal(a.Names.Projects, b.Names.Projects) && slices.Equal(a.Names.Actors, b.Names.Actors) && slices.Equal(a.Names.Actions, b.Names.Actions)
}

func changedArchive(format string, args ...any) error {
	return contradicted(hintSegment, "the audit log was changed in the object store or in the database: "+format, args...)
}

func (a *archive) lookUp(object string) (heldSegment, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.cached, func(h heldSegment) bool { return h.is.Object == object })
	if i < 0 {
		return heldSegment{}, false
	}
	h := a.cached[i]
	a.cached = append(slices.Delete(a.cached, i, i+1), h)
	return h, true
}

// forget takes a segment out of memory.
func (a *archive) forget(object string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cached = slices.DeleteFunc(a.cached, func(h heldSegment) bool { return h.is.Object == object })
}

// forgetAll takes all segments out of memory.
func (a *archive) forgetAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cached = nil
}

// fetch reads a segment of the object store. Error: Contradicted when it is not there, or
// not what was archived.
func (a *archive) fetch(ctx context.Context, s ArchiveSegment) (heldSegment, error) {
	h, err := a.load(ctx, s.Object)
	switch {
	case fault.Is(err, fault.NotFound):
		return h, changedArchive("the object %s with the archived entries %d to %d is missing", s.Object, s.First, s.Upto-1)
	case errors.Is(err, ErrObjectDamaged), err == nil && h.is.Digest != s.Digest:
		return h, changedArchive("the object %s differs from the one written with the archived entries %d to %d", s.Object, s.First, s.Upto-1)
	case err != nil:
		return h, fault.Wrap(err, "read the archived audit entries %d to %d", s.First, s.Upto-1)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cached = append(slices.DeleteFunc(a.cached, func(o heldSegment) bool { return o.is.Object == s.Object }), h)
	if len(a.cached) > cachedSegments {
		a.cached = slices.Delete(a.cached, 0, 1)
	}
	return h, nil
}

// load reads and decodes an object.
func (a *archive) load(ctx context.Context, object string) (h heldSegment, err error) {
	b, err := a.objects.Get(ctx, object, maxSegmentObject)
	if err != nil {
		return h, err
	}
	if h.leaves, err = decodeLeaves(b); err != nil {
		return h, fmt.Errorf("%w: %w", ErrObjectDamaged, err)
	}
	h.is = describe(h.leaves)
	h.is.Object, h.is.Digest, h.is.Bytes = object, digestOf(b), int64(len(b))
	return h, nil
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Leaves implements Store.
func (a *archive) Leaves(ctx context.Context, tx *store.Tx, from, to int64) ([]Leaf, error) {
	leaves, err := a.Store.Leaves(ctx, tx, from, to)
	if err != nil || int64(len(leaves)) == to-from {
		return leaves, err
	}
	return a.withArchived(ctx, tx, leaves, from, to, func(l Leaf) bool { return l.Index >= from && l.Index < to })
}

// LeavesAt implements Store.
func (a *archive) LeavesAt(ctx context.Context, tx *store.Tx, indexes []int64) ([]Leaf, error) {
	leaves, err := a.Store.LeavesAt(ctx, tx, indexes)
	if err != nil || len(leaves) == len(indexes) || len(indexes) == 0 {
		return leaves, err
	}
	indexes = slices.Sorted(slices.Values(indexes))
	for i := 0; i < len(indexes); { // a segment at a time: those between are not read
		from, to := indexes[i], indexes[i]+1
		s, err := a.Segments(ctx, tx, from, to, 1)
		if err != nil {
			return nil, err
		}
		if len(s) > 0 {
			to = s[0].Upto
		}
		n, _ := slices.BinarySearch(indexes, to)
		if len(s) > 0 {
			wanted := indexes[i:n]
			if leaves, err = a.withArchived(ctx, tx, leaves, from, to, func(l Leaf) bool {
				_, found := slices.BinarySearch(wanted, l.Index)
				return found
			}); err != nil {
				return nil, err
			}
		}
		i = n
	}
	return leaves, nil
}

// withArchived adds those archived leaves of a range that are wanted.
func (a *archive) withArchived(ctx context.Context, tx *store.Tx, leaves []Leaf, from, to int64, wanted func(Leaf) bool) ([]Leaf, error) {
	for to > from {
		segments, err := a.Segments(ctx, tx, from, to, searchSegments)
		if err != nil {
			return nil, err
		}
		for _, s := range segments {
			old, err := a.read(ctx, s)
			if err != nil {
				return nil, err
			}
			for _, l := range old {
				if wanted(l) {
					leaves = append(leaves, l)
				}
			}
			to = min(to, s.First)
		}
		if len(segments) < searchSegments {
			break
		}
	}
	slices.SortFunc(leaves, func(a, b Leaf) int { return cmp.Compare(a.Index, b.Index) })
	return leaves, nil
}

// Find implements Store. It reads a few segments at most.
func (a *archive) Find(ctx context.Context, tx *store.Tx, f Filter, before int64, limit int) (found []Leaf, next int64, err error) {
	found, next, err = a.Store.Find(ctx, tx, f, before, limit)
	if err != nil {
		return nil, 0, err
	}
	low, reads, seen := next, 0, 0 // of the entries before low nothing is known yet
	for to, more := before, true; more && to > low; {
		segments, err := a.Segments(ctx, tx, low, to, 100)
		if err != nil {
			return nil, 0, err
		}
		more = len(segments) == 100
		seen += len(segments)
		for _, s := range segments {
			to = s.First
			if !s.may(f) {
				continue
			}
			if beyond(found, s.Upto) > limit {
				more = false
				break
			}
			if reads++; reads > searchSegments {
				low, more = max(low, s.Upto), false
				break
			}
			leaves, err := a.read(ctx, s)
			if err != nil {
				return nil, 0, err
			}
			for _, l := range leaves {
				if l.Index < before && l.Index >= low && f.matches(l) {
					found = append(found, l)
				}
			}
		}
		if more && seen >= searchRecords {
			low, more = max(low, to), false
		}
	}
	found = slices.DeleteFunc(found, func(l Leaf) bool { return l.Index < low })
	slices.SortFunc(found, func(a, b Leaf) int { return cmp.Compare(b.Index, a.Index) })
	if len(found) > limit {
		return found[:limit], found[limit-1].Index, nil
	}
	return found, low, nil
}

// beyond is the number of leaves from an index on.
func beyond(leaves []Leaf, from int64) (n int) {
	for _, l := range leaves {
		if l.Index >= from {
			n++
		}
	}
	return n
}

// PutContent implements Store: the entries of an archived one come back to the database, and
// an object that is being written is of no use.
func (a *archive) PutContent(ctx context.Context, tx *store.Tx, l Leaf) error {
	if err := a.DropWriting(ctx, tx, l.Index); err != nil {
		return err
	}
	s, err := a.Segments(ctx, tx, l.Index, l.Index+1, 1)
	if err != nil {
		return err
	}
	if len(s) > 0 {
		if err := a.recall(ctx, tx, s[0]); err != nil {
			return err
		}
	}
	return a.Store.PutContent(ctx, tx, l)
}

// recall puts the entries of a segment back into the database.
func (a *archive) recall(ctx context.Context, tx *store.Tx, s ArchiveSegment) error {
	leaves, err := a.read(ctx, s)
	if err != nil {
		return err
	}
	if err := a.AddLeaves(ctx, tx, leaves); err != nil {
		return err
	}
	s.State = SegmentDropped
	if err := a.SetSegment(ctx, tx, s, SegmentArchived); err != nil {
		return err
	}
	return Append(ctx, tx, Entry{
		Actor: identity.Loop(loopPrincipal), Action: actionRecall, Object: s.entries(), Detail: map[string]any{"object": s.Object, "digest": s.Digest},
	})
}

func (s ArchiveSegment) entries() string {
	return fmt.Sprintf("audit entries %d-%d", s.First, s.Upto-1)
}

// view is DB.View, with the archived segments that fn needs. A segment that is not what was
// archived is a finding.
func (s *Sequencer) view(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	return s.withSegments(ctx, func(ctx context.Context) error { return s.cfg.DB.View(ctx, fn) })
}

// update is DB.Update, with the archived segments that fn needs.
func (s *Sequencer) update(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	return s.withSegments(ctx, func(ctx context.Context) error { return s.cfg.DB.Update(ctx, "", fn) })
}

func (s *Sequencer) withSegments(ctx context.Context, run func(ctx context.Context) error) error {
	hand, gone := &atHand{held: map[string]heldSegment{}}, map[string]bool{}
	ctx = context.WithValue(ctx, atHandKey{}, hand)
	for {
		err := run(ctx)
		absent, ok := errors.AsType[*absentError](err)
		if !ok {
			return err
		}
		h, err := s.archive.fetch(ctx, absent.segment)
		if Contradicted(err) && !gone[absent.segment.Object] {
			// Its entries may have come back meanwhile: then the closure does not ask again.
			gone[absent.segment.Object] = true
			continue
		}
		if err != nil {
			s.found(err)
			return err
		}
		hand.held[absent.segment.Object] = h
	}
}

// insideTransactions lets closures fetch segments themselves.
func insideTransactions(ctx context.Context) context.Context {
	return context.WithValue(ctx, atHandKey{}, &atHand{inside: true})
}

// Archive moves entries that are older than a time out of the database into the object
// store, the oldest first, until none is left or the pass is over, and deletes objects of no
// use. With the zero time it only deletes. Errors: Contradicted for an entry that is not what was signed, which
// stays; those of the object store.
func (s *Sequencer) Archive(ctx context.Context, before time.Time, pass lifecycle.Pass) (archived int64, err error) {
	if s.archive == nil {
		return 0, nil
	}
	if err := s.collect(ctx); err != nil || before.IsZero() {
		return 0, err
	}
	err = pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		n, err := s.archiveNext(ctx, store.At(before))
		archived += n
		return n > 0, err
	})
	return archived, fault.Wrap(err, "archive audit entries")
}

// archiveNext archives the next segment, and gives the number of its entries.
func (s *Sequencer) archiveNext(ctx context.Context, before store.Time) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, archiveTime)
	defer cancel()
	leaves, err := s.oldLeaves(ctx, before)
	if err != nil || len(leaves) == 0 {
		return 0, err
	}
	b, err := encodeLeaves(leaves)
	if err != nil {
		return 0, err
	}
	g := describe(leaves)
	g.Object, g.State, g.Made = fmt.Sprintf("audit/%012d-%s", g.First, id.New("seg")), SegmentWriting, store.At(s.cfg.Now())
	g.Digest, g.Bytes = digestOf(b), int64(len(b))
	s.archive.setWriting(g.Object, true)
	defer s.archive.setWriting(g.Object, false)
	// Recorded before it is written, so that no unknown object is left.
	if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.archive.AddSegment(ctx, tx, g) }); err != nil {
		return 0, err
	}
	if err := s.putSegment(ctx, g, leaves, b); err != nil {
		return 0, errors.Join(err, s.giveUp(ctx, g))
	}
	return int64(len(leaves)), nil
}

// putSegment writes the object of a segment, and takes its leaves out of the database.
func (s *Sequencer) putSegment(ctx context.Context, g ArchiveSegment, leaves []Leaf, b []byte) error {
	if err := s.archive.objects.Put(ctx, g.Object, b); err != nil {
		return err
	}
	h, err := s.archive.load(ctx, g.Object)
	if err != nil {
		return fault.Wrap(err, "read the archived entries")
	}
	if h.is.Digest != g.Digest || !slices.EqualFunc(h.leaves, leaves, equalLeaves) {
		return fault.New(fault.Internal, "the object store returned other bytes than were written to %s", g.Object).WithHint("Check the object store. The entries stay in the database.")
	}
	g.State = SegmentArchived
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		now, err := s.archive.Store.Leaves(ctx, tx, g.First, g.Upto)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(now, leaves, equalLeaves) {
			return fault.New(fault.Conflict, "%s changed while they were archived", g.entries()).WithHint("They are archived in the next run.")
		}
		if err := s.archive.SetSegment(ctx, tx, g, SegmentWriting); err != nil {
			return err
		}
		if n, err := s.archive.RemoveLeaves(ctx, tx, g.First, g.Upto); err != nil || n != int64(len(leaves)) {
			return errors.Join(err, fault.New(fault.Internal, "%d of %d entries were found for removal", n, len(leaves)))
		}
		return Append(ctx, tx, Entry{
			Actor: identity.Loop(loopPrincipal), Action: actionArchive, Object: g.entries(), Detail: map[string]any{"object": g.Object, "digest": g.Digest, "bytes": g.Bytes},
		})
	})
}

// giveUp deletes the object of a segment that could not be archived. A segment that is
// archived all the same, since a commit was in doubt, stays.
func (s *Sequencer) giveUp(ctx context.Context, g ArchiveSegment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTime)
	defer cancel()
	g.State = SegmentDropped
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.archive.SetSegment(ctx, tx, g, SegmentWriting); !fault.Is(err, fault.Conflict) {
			return err
		}
		return s.archive.SetSegment(ctx, tx, g, SegmentDropped) // by an erasure
	})
	if fault.Is(err, fault.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.archive.objects.Delete(ctx, g.Object); err != nil {
		return fault.Wrap(err, "delete the object of %s", g.entries())
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.archive.RemoveSegment(ctx, tx, g.Object) })
}

func (a *archive) setWriting(object string, writing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !writing {
		delete(a.writing, object)
		return
	}
	if a.writing == nil {
		a.writing = map[string]bool{}
	}
	a.writing[object] = true
}

func (a *archive) isWriting(object string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writing[object]
}

// oldLeaves gives the leaves of the next segment, which are verified: whole tiles from the
// oldest leaf in the database on, all older than a time.
func (s *Sequencer) oldLeaves(ctx context.Context, before store.Time) (leaves []Leaf, err error) {
	size, err := s.signedSize(ctx)
	if err != nil {
		return nil, err
	}
	var from int64
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		from, err = s.archive.First(ctx, tx)
		return err
	})
	if err != nil || from%tileLeaves != 0 {
		return nil, err // a whole tile is archived, or none of it
	}
	total := 0
	for ; from+tileLeaves <= size && len(leaves) < MaxSegmentLeaves && total < archiveBytes; from += tileLeaves {
		var tile []Leaf
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			tile, err = s.archive.Store.Leaves(ctx, tx, from, from+tileLeaves)
			return err
		}); err != nil {
			return nil, err
		}
		if len(tile) < tileLeaves || slices.ContainsFunc(tile, func(l Leaf) bool { return l.At >= before }) {
			break
		}
		if err := s.verifyTile(ctx, from, from+tileLeaves); err != nil {
			s.found(err)
			return nil, err
		}
		for _, l := range tile {
			total += len(l.Record)
		}
		leaves = append(leaves, tile...)
	}
	return leaves, nil
}

func equalLeaves(a, b Leaf) bool {
	return a.Index == b.Index && a.At == b.At && a.Source == b.Source && a.sameColumns(b) &&
		bytes.Equal(a.Commitment, b.Commitment) && bytes.Equal(a.Salt, b.Salt) && bytes.Equal(a.Record, b.Record) && (a.Record == nil) == (b.Record == nil)
}

// leavesAt gives the leaves of these indexes, which are in order. Each of its views reads few
// segments, and only what is asked for stays in memory.
func (s *Sequencer) leavesAt(ctx context.Context, indexes []int64) (all []Leaf, err error) {
	for part := range fewTiles(indexes) {
		var leaves []Leaf
		err := s.view(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			leaves, err = s.cfg.Store.LeavesAt(ctx, tx, part)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, l := range leaves { // those of a segment share its bytes
			l.Commitment, l.Salt, l.Record = bytes.Clone(l.Commitment), bytes.Clone(l.Salt), bytes.Clone(l.Record)
			all = append(all, l)
		}
	}
	return all, nil
}

// fewTiles cuts indexes, which are in order, into parts of at most searchSegments tiles: no
// tile is in two segments.
func fewTiles(indexes []int64) iter.Seq[[]int64] {
	return func(yield func([]int64) bool) {
		from, tiles := 0, 0
		for i, index := range indexes {
			if i > 0 && index/tileLeaves == indexes[i-1]/tileLeaves {
				continue
			}
			if tiles++; tiles > searchSegments {
				if !yield(indexes[from:i]) {
					return
				}
				from, tiles = i, 1
			}
		}
		if from < len(indexes) {
			yield(indexes[from:])
		}
	}
}

// recallAll puts the segments of these entries back into the database, each in a
// transaction of its own.
func (s *Sequencer) recallAll(ctx context.Context, indexes []int64) error {
	if s.archive == nil {
		return nil
	}
	for _, index := range indexes {
		if err := s.update(ctx, func(ctx context.Context, tx *store.Tx) error {
			g, err := s.archive.Segments(ctx, tx, index, index+1, 1)
			if err != nil || len(g) == 0 {
				return err
			}
			return s.archive.recall(ctx, tx, g[0])
		}); err != nil {
			return fault.Wrap(err, "restore archived audit entries")
		}
	}
	return nil
}

// collect deletes the objects of segments that are of no use any more.
func (s *Sequencer) collect(ctx context.Context) error {
	if s.archive == nil {
		return nil
	}
	for {
		var stale []ArchiveSegment
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			stale, err = s.archive.StaleSegments(ctx, tx, store.At(s.cfg.Now().Add(-archiveStale)), staleSegments)
			return err
		}); err != nil {
			return err
		}
		removed := 0
		for _, g := range stale {
			if g.State == SegmentWriting { // whoever still writes it finds it dropped
				was := g.State
				g.State = SegmentDropped
				if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.archive.SetSegment(ctx, tx, g, was) }); err != nil {
					return err
				}
			}
			s.archive.forget(g.Object)
			writing := s.archive.isWriting(g.Object)
			if err := s.archive.objects.Delete(ctx, g.Object); err != nil {
				return fault.Wrap(err, "delete the object of %s", g.entries())
			}
			if writing {
				continue // it may come yet: who writes it deletes it, or, after a kill, the next call
			}
			if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.archive.RemoveSegment(ctx, tx, g.Object) }); err != nil {
				return err
			}
			removed++
		}
		if len(stale) < staleSegments || removed == 0 {
			return nil
		}
	}
}
