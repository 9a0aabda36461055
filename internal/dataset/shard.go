package dataset

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Shard names rows of a version by their positions, so that a reader that stopped
// resumes where it was. The zero Shard is all rows.
//
// The shards of a version are its rows in order, cut into Count runs that differ
// by at most one row: shard i of n has the rows from ⌊rows·i/n⌋ to ⌊rows·(i+1)/n⌋.
// Clients may count on this rule.
type Shard struct {
	Index, Count int64 // shard Index (from 0) of Count; Count 0 is one shard of all rows
	Skip         int64 // rows of the shard to leave out, from its beginning
	Take         int64 // rows to give after them; 0 gives the rest
}

// MaxShards is the limit of shards of a version.
const MaxShards = 1 << 16

// Validate refuses what names no rows of any version. Error: fault.Invalid.
func (p Shard) Validate() error {
	switch {
	case p.Count < 0 || p.Count > MaxShards:
		return fault.New(fault.Invalid, "the number of shards is %d, and must be between 1 and %d", p.Count, MaxShards)
	case p.Index < 0 || p.Index >= max(p.Count, 1):
		return fault.New(fault.Invalid, "there is no shard %d of %d", p.Index, max(p.Count, 1)).WithHint("Shards are numbered from 0.")
	case p.Skip < 0 || p.Take < 0:
		return fault.New(fault.Invalid, "rows to skip and to take cannot be negative")
	}
	return nil
}

// Rows is the first row of the shard and the one after its last, of so many rows.
func (p Shard) Rows(rows int64) (from, to int64) {
	n := max(p.Count, 1)
	from, to = shardStart(rows, p.Index, n), shardStart(rows, p.Index+1, n)
	from += min(p.Skip, to-from)
	if p.Take > 0 {
		to = from + min(p.Take, to-from)
	}
	return from, to
}

// shardStart is ⌊rows·i/n⌋, without going over the range of the product.
func shardStart(rows, i, n int64) int64 { return rows/n*i + rows%n*i/n }

// Plan is what Open would read.
type Plan struct {
	Version Version
	Schema  *arrow.Schema // of the columns asked for, in their order
	From    int64         // the first row of the version
	To      int64         // the row after the last
}

// GroupStarts are the rows of the version at which its row groups begin, ascending: a reader
// that begins in one reads it from its start. nil where they are not known, or more than most.
func (v Version) GroupStarts(most int) []int64 {
	var starts []int64
	row := int64(0)
	for _, f := range v.Files {
		for _, rows := range f.Groups {
			if rows == 0 {
				continue
			}
			if starts = append(starts, row); len(starts) > most {
				return nil
			}
			row += rows
		}
	}
	if row != v.Rows {
		return nil
	}
	return starts
}

// Plan describes what Open would read. It returns no rows, so it needs only dataset.read and
// passes no residency door; other errors as Open.
func (s *Reads) Plan(ctx context.Context, r OpenRequest) (Plan, error) {
	v, err := s.find(ctx, ActionRead, r.Project, r.Ref)
	if err != nil {
		return Plan{}, err
	}
	if err := r.fits(v, false); err != nil {
		return Plan{}, err
	}
	part, err := v.Schema.Select(r.Columns)
	if err != nil {
		return Plan{}, err
	}
	from, to := r.Shard.Rows(v.Rows)
	return Plan{Version: v, Schema: part.Arrow(), From: from, To: to}, nil
}

// Reauthorize checks again that a read in progress is permitted: who reads may have
// lost the permission, and the data may no longer be where it is going. It
// journals nothing. Errors as Open.
func (s *Reads) Reauthorize(ctx context.Context, r OpenRequest) error {
	v, err := s.find(ctx, ActionQuery, r.Project, r.Ref)
	if err != nil {
		return err
	}
	return s.fits(ctx, v, r, false)
}
