package audit

import (
	"context"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/store"
)

// Leaf is an entry in the log's table.
type Leaf struct {
	Index      int64
	At         store.Time
	Source     string // where the entry came from; no two leaves have the same
	Commitment []byte
	Salt       []byte // nil when erased
	Record     []byte // JSON; nil when erased

	// For filters; what an erasure leaves of an entry otherwise.
	Project, ActorID, ActorName, Action, Object string
	Outcome                                     Outcome
}

// SignedCheckpoint is a checkpoint as the database keeps it.
type SignedCheckpoint struct {
	Size int64
	Note []byte
}

// StoredHash is a hash of the tree with its index in the numbering of tlog.
type StoredHash struct {
	Index int64
	Hash  tlog.Hash
}

// LogKey is the log's identity.
type LogKey struct {
	Origin   string
	Verifier string // public, "name+hash+key"
	Sealed   []byte // the signing key, sealed
}

// Store is what the log needs from a database. All methods run in the caller's
// transaction.
type Store interface {
	LeafStore
	SegmentStore
	HashStore
	CheckpointStore
	JournalStore
	ErasureStore
	KeyStore
}

// LeafStore keeps entries.
type LeafStore interface {
	// Size is the number of leaves, archived ones included.
	Size(ctx context.Context, tx *store.Tx) (int64, error)
	AddLeaves(ctx context.Context, tx *store.Tx, leaves []Leaf) error
	// Leaves gives those with from ≤ index < to.
	Leaves(ctx context.Context, tx *store.Tx, from, to int64) ([]Leaf, error)
	// Find gives leaves that match, the newest first, with index < before. The search
	// resumes with those before next, also when fewer than limit were found; 0 is the end.
	Find(ctx context.Context, tx *store.Tx, f Filter, before int64, limit int) (found []Leaf, next int64, err error)
	// LeavesAt gives those of these indexes that are there, in the order of their index.
	LeavesAt(ctx context.Context, tx *store.Tx, indexes []int64) ([]Leaf, error)
	// PutContent replaces salt, record and filter columns of the leaf with that index.
	// The transaction is scrubbed (Tx.Scrub).
	PutContent(ctx context.Context, tx *store.Tx, l Leaf) error
	// First is the lowest index of a leaf that is in the database, and 0 without one.
	First(ctx context.Context, tx *store.Tx) (int64, error)
	// RemoveLeaves removes those with from ≤ index < to, and gives their number.
	RemoveLeaves(ctx context.Context, tx *store.Tx, from, to int64) (int64, error)
}

// SegmentStore keeps the segments of archived entries.
type SegmentStore interface {
	// AddSegment inserts a segment.
	AddSegment(ctx context.Context, tx *store.Tx, s ArchiveSegment) error
	// SetSegment replaces all of a segment but object and time, if its state is this one.
	// Error: fault.Conflict otherwise.
	SetSegment(ctx context.Context, tx *store.Tx, s ArchiveSegment, was SegmentState) error
	// Segments gives those with archived entries in from ≤ index < to, the newest first.
	Segments(ctx context.Context, tx *store.Tx, from, to int64, limit int) ([]ArchiveSegment, error)
	// StaleSegments gives those that were dropped, and those that have been written since
	// before a time.
	StaleSegments(ctx context.Context, tx *store.Tx, before store.Time, limit int) ([]ArchiveSegment, error)
	// DropWriting drops those being written that have the entry of an index.
	DropWriting(ctx context.Context, tx *store.Tx, index int64) error
	// RemoveSegment removes the segment of an object.
	RemoveSegment(ctx context.Context, tx *store.Tx, object string) error
}

// HashStore keeps the tree's hashes.
type HashStore interface {
	// Hashes are the tree's stored hashes in the numbering of tlog.
	AddHashes(ctx context.Context, tx *store.Tx, first int64, hashes []tlog.Hash) error
	Hashes(ctx context.Context, tx *store.Tx, indexes []int64) (map[int64]tlog.Hash, error)
	// HashRange gives those with from ≤ index < to, in that order.
	HashRange(ctx context.Context, tx *store.Tx, from, to int64) ([]StoredHash, error)
	// DropHashes removes them all.
	DropHashes(ctx context.Context, tx *store.Tx) error
}

// CheckpointStore keeps the signed checkpoints.
type CheckpointStore interface {
	AddCheckpoint(ctx context.Context, tx *store.Tx, c SignedCheckpoint) error
	// Checkpoints gives those with after < size ≤ upto, in that order.
	Checkpoints(ctx context.Context, tx *store.Tx, after, upto int64) ([]SignedCheckpoint, error)
	// DropCheckpoints removes those of these sizes.
	DropCheckpoints(ctx context.Context, tx *store.Tx, sizes []int64) error
	// LastCheckpoint is fault.NotFound before the first.
	LastCheckpoint(ctx context.Context, tx *store.Tx) (SignedCheckpoint, error)
}

// JournalStore keeps how far each journal file is in the log.
type JournalStore interface {
	// JournalCursor is how far a journal file is in the log, 0 at first.
	JournalCursor(ctx context.Context, tx *store.Tx, file string) (int64, error)
	SetJournalCursor(ctx context.Context, tx *store.Tx, file string, offset int64) error
	DropJournalCursor(ctx context.Context, tx *store.Tx, file string) error
}

// ErasureStore keeps requests to erase entries.
type ErasureStore interface {
	// PutErasure inserts a request to erase entries, or replaces the one with its id.
	PutErasure(ctx context.Context, tx *store.Tx, e EntryErasure) error
	// Erasure is fault.NotFound for an unknown id.
	Erasure(ctx context.Context, tx *store.Tx, id string) (EntryErasure, error)
	// Erasures gives those with id < before (empty: all), the newest first.
	Erasures(ctx context.Context, tx *store.Tx, before string, limit int) ([]EntryErasure, error)
}

// KeyStore keeps the log's identity.
type KeyStore interface {
	// Key is fault.NotFound before SetKey.
	Key(ctx context.Context, tx *store.Tx) (LogKey, error)
	SetKey(ctx context.Context, tx *store.Tx, k LogKey) error
}
