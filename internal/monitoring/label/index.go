package label

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// index finds predictions of a deployment by their ID. It follows the log, keeps
// 64 bits of a hash of each ID (Pairs checks the whole ID), and holds a bounded
// number of them. Safe for concurrent use.
type index struct {
	place Place
	max   int
	owner uint64 // of the deployment's records

	mu       sync.Mutex
	seed     maphash.Seed
	after    prediction.Cursor
	entries  map[uint64]entry
	newest   [2]int64 // At of the newest record, in microseconds: of live ones, and of those of replays
	repeated int64    // records whose ID was there
}

// entry is where a prediction is, in 40 bytes.
type entry struct {
	segment             uint64
	offset, frame, item uint32
	rows                uint32
	at                  int64
	clock               uint8 // 1 for a record of a replay, which has a clock of its own
}

// index is that of a deployment, brought up to now. The first time it reads the
// whole log.
func (s *Service) index(ctx context.Context, p Place, owner uint64) (*index, error) {
	s.mu.Lock()
	x := s.indexes[p]
	if x == nil {
		x = &index{place: p, seed: maphash.MakeSeed(), entries: map[uint64]entry{}}
		s.indexes[p] = x
	}
	share := s.cfg.MaxIndex / len(s.indexes)
	s.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shrink(share)
	if x.owner != owner {
		clear(x.entries)
		x.owner, x.after, x.newest = owner, prediction.Cursor{}, [2]int64{}
	}
	return x, s.cfg.Predictions.Read(ctx, p.Project, p.Deployment, x.after, func(c prediction.Cursor, r *prediction.Record) error {
		x.add(c, r)
		x.after = c
		return nil
	})
}

// add notes a record. The first with an ID counts. A shadow's answer is about the
// same request as another record, which labels join.
func (x *index) add(c prediction.Cursor, r *prediction.Record) {
	if r.Shadow || !r.By(x.owner) {
		return
	}
	key := maphash.String(x.seed, r.ID)
	if _, there := x.entries[key]; there {
		x.repeated++
		return
	}
	at := r.At.UnixMicro()
	clock := uint8(0)
	if r.Replay {
		clock = 1
	}
	x.newest[clock] = max(x.newest[clock], at)
	x.shrink(x.max)
	x.entries[key] = entry{
		segment: c.Segment, offset: uint32(c.Offset), frame: uint32(c.Frame), item: uint32(c.Index), //nolint:gosec // G115: segments are smaller than 4 GiB
		rows: uint32(r.Rows), at: at, clock: clock, //nolint:gosec // G115: not negative
	}
}

// shrink makes room for one more among at most so many.
func (x *index) shrink(to int) {
	x.max = max(to, 1)
	for len(x.entries) >= x.max {
		x.evict()
	}
}

// share gives each index its part of the bound, also those that nobody asks.
func (s *Service) share() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.indexes))
	s.mu.Unlock()
	for _, x := range all {
		x.mu.Lock()
		x.shrink(s.cfg.MaxIndex / len(all))
		x.mu.Unlock()
	}
}

// evict forgets the oldest tenth, roughly, by their place in the log: all that is
// before a segment, and in the same segment before a place, a step further each
// time until enough are gone.
func (x *index) evict() {
	type place struct {
		segment uint64
		offset  uint32
	}
	// A sample of places says where the oldest tenth ends.
	sample := make([]place, 0, 1000)
	for _, e := range x.entries { // in no order
		if sample = append(sample, place{e.segment, e.offset}); len(sample) == cap(sample) {
			break
		}
	}
	before := func(a, b place) int {
		return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.offset, b.offset))
	}
	slices.SortFunc(sample, before)
	end := sample[len(sample)/10]
	for k, e := range x.entries {
		if before(place{e.segment, e.offset}, end) <= 0 {
			delete(x.entries, k)
		}
	}
}

// find is what becomes of a label with n values, and where its prediction is.
func (x *index) find(id string, n int, horizon time.Duration) (Status, string) {
	x.mu.Lock()
	e, there := x.entries[maphash.String(x.seed, id)]
	newest := x.newest[e.clock]
	x.mu.Unlock()
	switch {
	case !there:
		return Unknown, ""
	case int(e.rows) != n:
		return WrongRows, ""
	case e.at < newest-horizon.Microseconds():
		return TooLate, ""
	}
	return Accepted, prediction.Cursor{Segment: e.segment, Offset: int64(e.offset), Frame: uint64(e.frame), Index: int(e.item)}.String()
}

func (x *index) repeats() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.repeated
}

// newestPlace is up to where the log is known.
func (x *index) newestPlace() prediction.Cursor {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.after
}
