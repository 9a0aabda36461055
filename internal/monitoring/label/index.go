package label

import (
	"context"
	"hash/maphash"
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

	mu       sync.Mutex
	seed     maphash.Seed
	after    prediction.Cursor
	entries  map[uint64]entry
	newest   int64 // At of the newest record, in microseconds
	repeated int64 // records whose ID was there
}

// entry is where a prediction is, in 40 bytes.
type entry struct {
	segment             uint64
	offset, frame, item uint32
	rows                uint32
	at                  int64
}

// index is that of a deployment, brought up to now. The first time it reads the
// whole log.
func (s *Service) index(ctx context.Context, p Place) (*index, error) {
	s.mu.Lock()
	x := s.indexes[p]
	if x == nil {
		x = &index{place: p, max: s.cfg.MaxIndex, seed: maphash.MakeSeed(), entries: map[uint64]entry{}}
		s.indexes[p] = x
	}
	s.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x, s.cfg.Predictions.Read(ctx, p.Project, p.Deployment, x.after, func(c prediction.Cursor, r *prediction.Record) error {
		x.add(c, r)
		x.after = c
		return nil
	})
}

// add notes a record. The first with an ID counts. A shadow's answer is about the
// same request as another record, which labels join.
func (x *index) add(c prediction.Cursor, r *prediction.Record) {
	if r.Shadow {
		return
	}
	key := maphash.String(x.seed, r.ID)
	if _, there := x.entries[key]; there {
		x.repeated++
		return
	}
	at := r.At.UnixMicro()
	x.newest = max(x.newest, at)
	if len(x.entries) >= x.max {
		x.evict()
	}
	x.entries[key] = entry{
		segment: c.Segment, offset: uint32(c.Offset), frame: uint32(c.Frame), item: uint32(c.Index), //nolint:gosec // G115: segments are smaller than 4 GiB
		rows: uint32(r.Rows), at: at, //nolint:gosec // G115: not negative
	}
}

// evict forgets the oldest tenth, roughly: all that is older than a time between
// the oldest and the newest, a step further each time until enough are gone.
func (x *index) evict() {
	low, high := x.newest, x.newest
	for _, e := range x.entries {
		low = min(low, e.at)
	}
	want := len(x.entries) - x.max + max(1, x.max/10)
	for step := int64(1); step <= 10 && want > 0; step++ {
		until := low + (high-low)/10*step
		for k, e := range x.entries {
			if e.at <= until {
				delete(x.entries, k)
				want--
			}
		}
	}
}

// find is what becomes of a label with n values, and where its prediction is.
func (x *index) find(id string, n int, horizon time.Duration) (Status, string) {
	x.mu.Lock()
	e, there := x.entries[maphash.String(x.seed, id)]
	newest := x.newest
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
