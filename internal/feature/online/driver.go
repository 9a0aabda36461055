package online

import (
	"context"
	"encoding/binary"
)

// TableKey is the opaque name of a table.
type TableKey [8]byte

// RowKey is the opaque name of an entity in a table; it begins with the
// TableKey.
type RowKey [24]byte

// Stamp orders the versions of a row: by Event, then Created, newest first.
type Stamp struct {
	Event   int64
	Created int64
}

// StampSize is the length of an encoded Stamp.
const StampSize = 16

// Append appends the stamp's bytes, which sort newest first.
func (s Stamp) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(s.Event)^1<<63)    //nolint:gosec // the bits are meant
	return binary.BigEndian.AppendUint64(dst, ^uint64(s.Created)^1<<63) //nolint:gosec // the bits are meant
}

// StampOf is the inverse of Append; b has StampSize bytes.
func StampOf(b []byte) Stamp {
	return Stamp{
		Event:   int64(^(binary.BigEndian.Uint64(b) ^ 1<<63)),     //nolint:gosec // the bits are meant
		Created: int64(^(binary.BigEndian.Uint64(b[8:]) ^ 1<<63)), //nolint:gosec // the bits are meant
	}
}

// Compare is negative when s is newer than t.
func (s Stamp) Compare(t Stamp) int {
	switch {
	case s == t:
		return 0
	case s.Event > t.Event, s.Event == t.Event && s.Created > t.Created:
		return -1
	}
	return 1
}

// Version is one version of a row.
type Version struct {
	Row    RowKey
	Stamp  Stamp
	Sealed []byte
}

// Driver keeps versions of rows. Safe for concurrent use: reads go on during
// writes, and see each version wholly or not at all.
type Driver interface {
	// Write stores versions and returns when they survive a loss of power. A
	// version with the row and stamp of another replaces it.
	Write(ctx context.Context, versions []Version) error
	// Scan visits the versions of rows that are not newer than from, newest
	// first, until visit returns false for the row. rows ascend and do not
	// repeat; they are visited in their order, rows without such versions are
	// passed over. sealed is valid during the call only.
	Scan(ctx context.Context, rows []RowKey, from Stamp, visit func(row int, stamp Stamp, sealed []byte) bool) error
	// Drop removes the rows of a table, durably.
	Drop(ctx context.Context, table TableKey) error
	// Remove removes rows with all their versions, durably. A database in the data
	// directory does not hold their bytes any more when it returns. rows ascend and do not repeat;
	// one that is not there is no error.
	Remove(ctx context.Context, rows []RowKey) error
	// Close waits for running calls.
	Close() error
}

// Walked is the power of a driver whose rows can be gone through without knowing their
// names. In other databases rows stay under the subkey that they were written under,
// and nothing is swept.
type Walked interface {
	// Tables lists the tables that there are rows of, ascending, after one.
	Tables(ctx context.Context, after TableKey, limit int) ([]TableKey, error)
	// Walk visits the versions of a table's rows, in the order of rows and newest first,
	// of rows after one, until visit returns false. sealed is valid during the call only.
	Walk(ctx context.Context, table TableKey, after RowKey, visit func(row RowKey, stamp Stamp, sealed []byte) bool) error
	// Replace removes versions that still have their bytes and puts others in their
	// places, unless something is there already; all of it in one step, durably. It says
	// how many were removed.
	Replace(ctx context.Context, changes []Change) (int, error)
}

// Change takes a version away. By is what takes its place; nothing when nil.
type Change struct {
	Was Version
	By  *Version
}
