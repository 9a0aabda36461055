// Package auditsql keeps the audit log in SQLite or PostgreSQL.
package auditsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("audit", migrations)

// insertRows bounds the rows of one statement; PostgreSQL and SQLite bound its
// parameters.
const insertRows = 500

type leafRow struct {
	bun.BaseModel `bun:"table:audit_leaf"`

	Idx        int64          `bun:"idx,pk"`
	At         store.Time     `bun:"at"`
	Source     string         `bun:"source"`
	Commitment []byte         `bun:"commitment"`
	Salt       []byte         `bun:"salt"`
	Record     sql.NullString `bun:"record"`
	Project    string         `bun:"project"`
	ActorID    string         `bun:"actor_id"`
	ActorName  string         `bun:"actor_name"`
	Action     string         `bun:"action"`
	Object     string         `bun:"object"`
	Outcome    string         `bun:"outcome"`
}

func (r leafRow) leaf() audit.Leaf {
	l := audit.Leaf{
		Index: r.Idx, At: r.At, Source: r.Source, Commitment: r.Commitment,
		Project: r.Project, ActorID: r.ActorID, ActorName: r.ActorName,
		Action: r.Action, Object: r.Object, Outcome: audit.Outcome(r.Outcome),
	}
	l.Salt = r.Salt
	if r.Record.Valid {
		l.Record = []byte(r.Record.String)
	}
	return l
}

func rowOf(l audit.Leaf) leafRow {
	return leafRow{
		Idx: l.Index, At: l.At, Source: l.Source, Commitment: l.Commitment, Salt: l.Salt,
		Record: sql.NullString{String: string(l.Record), Valid: l.Record != nil}, Project: l.Project,
		ActorID: l.ActorID, ActorName: l.ActorName, Action: l.Action, Object: l.Object, Outcome: string(l.Outcome),
	}
}

type hashRow struct {
	bun.BaseModel `bun:"table:audit_hash"`

	Idx  int64  `bun:"idx,pk"`
	Hash []byte `bun:"hash"`
}

type checkpointRow struct {
	bun.BaseModel `bun:"table:audit_checkpoint"`

	Size int64  `bun:"size,pk"`
	Note string `bun:"note"`
}

func (r checkpointRow) signed() audit.SignedCheckpoint {
	return audit.SignedCheckpoint{Size: r.Size, Note: []byte(r.Note)}
}

type keyRow struct {
	bun.BaseModel `bun:"table:audit_key"`

	ID       int64  `bun:"id,pk"`
	Origin   string `bun:"origin"`
	Verifier string `bun:"verifier"`
	Sealed   []byte `bun:"sealed"`
}

// Store implements audit.Store.
type Store struct {
	LeafStore
	SegmentStore
	HashStore
	CheckpointStore
	JournalStore
	ErasureStore
	KeyStore
}

type (
	// LeafStore implements audit.LeafStore.
	LeafStore struct{}
	// SegmentStore implements audit.SegmentStore.
	SegmentStore struct{}
	// HashStore implements audit.HashStore.
	HashStore struct{}
	// CheckpointStore implements audit.CheckpointStore.
	CheckpointStore struct{}
	// JournalStore implements audit.JournalStore.
	JournalStore struct{}
	// ErasureStore implements audit.ErasureStore.
	ErasureStore struct{}
	// KeyStore implements audit.KeyStore.
	KeyStore struct{}
)

var _ audit.Store = Store{}

// Size is the number of leaves.
func (LeafStore) Size(ctx context.Context, tx *store.Tx) (int64, error) {
	var n int64
	// Archived segments do not overlap, so the last one ends last: the index gives it.
	err := tx.NewRaw(`SELECT COALESCE(MAX(n), 0) FROM (SELECT MAX(idx) + 1 AS n FROM audit_leaf UNION ALL
		SELECT upto FROM (SELECT upto FROM audit_segment WHERE state = ? ORDER BY first DESC LIMIT 1) AS newest) AS sizes`,
		string(audit.SegmentArchived)).Scan(ctx, &n)
	return n, err
}

// First is the lowest index of a leaf.
func (LeafStore) First(ctx context.Context, tx *store.Tx) (int64, error) {
	var n int64
	err := tx.NewRaw("SELECT COALESCE(MIN(idx), 0) FROM audit_leaf").Scan(ctx, &n)
	return n, err
}

// AddLeaves adds leaves.
func (LeafStore) AddLeaves(ctx context.Context, tx *store.Tx, leaves []audit.Leaf) error {
	for part := range slices.Chunk(leaves, insertRows) {
		rows := make([]leafRow, len(part))
		for i, l := range part {
			rows[i] = rowOf(l)
		}
		if _, err := tx.NewInsert().Model(&rows).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Leaves gives those with from ≤ index < to.
func (LeafStore) Leaves(ctx context.Context, tx *store.Tx, from, to int64) ([]audit.Leaf, error) {
	var rows []leafRow
	err := tx.NewSelect().Model(&rows).Where("idx >= ? AND idx < ?", from, to).Order("idx").Scan(ctx)
	return leavesOf(rows), err
}

// Find gives leaves that match, the newest first.
func (LeafStore) Find(ctx context.Context, tx *store.Tx, f audit.Filter, before int64, limit int) (found []audit.Leaf, next int64, err error) {
	var rows []leafRow
	q := tx.NewSelect().Model(&rows).Where("idx < ?", before).OrderExpr("idx DESC").Limit(limit + 1)
	if f.Project != "" {
		q = q.Where("project = ?", f.Project)
	}
	if f.Actor != "" {
		q = q.Where("(actor_id = ? OR actor_name = ?)", f.Actor, f.Actor)
	}
	if prefix, ok := strings.CutSuffix(f.Action, ".*"); ok {
		q = q.Where(`action LIKE ? ESCAPE '!'`, likeLiteral(prefix)+".%")
	} else if f.Action != "" {
		q = q.Where("action = ?", f.Action)
	}
	if f.Object != "" {
		q = q.Where("object = ?", f.Object)
	}
	if f.Outcome != "" {
		q = q.Where("outcome = ?", f.Outcome)
	}
	if !f.Since.IsZero() {
		q = q.Where("at >= ?", store.At(f.Since))
	}
	if !f.Until.IsZero() {
		q = q.Where("at < ?", store.At(f.Until))
	}
	if f.Text != "" {
		q = q.Where(`LOWER(record) LIKE LOWER(?) ESCAPE '!'`, "%"+likeLiteral(f.JSONText())+"%")
	}
	if err := q.Scan(ctx); err != nil {
		return nil, 0, err
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].Idx
	}
	return leavesOf(rows), next, nil
}

var likeEscapes = strings.NewReplacer("!", "!!", "%", "!%", "_", "!_")

func likeLiteral(s string) string { return likeEscapes.Replace(s) }

func leavesOf(rows []leafRow) []audit.Leaf {
	leaves := make([]audit.Leaf, len(rows))
	for i, r := range rows {
		leaves[i] = r.leaf()
	}
	return leaves
}

// LeavesAt gives those of these indexes that are there.
func (LeafStore) LeavesAt(ctx context.Context, tx *store.Tx, indexes []int64) ([]audit.Leaf, error) {
	var all []audit.Leaf
	for part := range slices.Chunk(slices.Sorted(slices.Values(indexes)), insertRows) {
		var rows []leafRow
		if err := tx.NewSelect().Model(&rows).Where("idx IN (?)", bun.List(part)).Order("idx").Scan(ctx); err != nil {
			return nil, err
		}
		all = append(all, leavesOf(rows)...)
	}
	return all, nil
}

// PutContent replaces the content of a leaf. PostgreSQL keeps the old row until its
// next vacuum of the table, which is too large to be written anew for each.
func (LeafStore) PutContent(ctx context.Context, tx *store.Tx, l audit.Leaf) error {
	tx.Scrub()
	r := rowOf(l)
	_, err := tx.NewUpdate().Model(&r).Column("salt", "record", "project", "actor_id", "actor_name", "action", "object", "outcome", "at", "source").WherePK().Exec(ctx)
	return err
}

// RemoveLeaves removes a range of leaves.
func (LeafStore) RemoveLeaves(ctx context.Context, tx *store.Tx, from, to int64) (int64, error) {
	res, err := tx.NewRaw("DELETE FROM audit_leaf WHERE idx >= ? AND idx < ?", from, to).Exec(ctx)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

type segmentRow struct {
	bun.BaseModel `bun:"table:audit_segment"`

	Object  string     `bun:"object,pk"`
	State   string     `bun:"state"`
	Made    store.Time `bun:"made"`
	First   int64      `bun:"first"`
	Upto    int64      `bun:"upto"`
	Digest  string     `bun:"digest"`
	Bytes   int64      `bun:"bytes"`
	Since   store.Time `bun:"since"`
	Until   store.Time `bun:"until"`
	Summary string     `bun:"summary"` // JSON
}

func segmentRowOf(s audit.ArchiveSegment) (*segmentRow, error) {
	b, err := json.Marshal(s.Names)
	return &segmentRow{
		Object: s.Object, State: string(s.State), Made: s.Made, First: s.First, Upto: s.Upto, Digest: s.Digest, Bytes: s.Bytes,
		Since: s.Since, Until: s.Until, Summary: string(b),
	}, err
}

func segmentsOf(rows []segmentRow) ([]audit.ArchiveSegment, error) {
	list := make([]audit.ArchiveSegment, len(rows))
	for i, r := range rows {
		list[i] = audit.ArchiveSegment{
			Object: r.Object, State: audit.SegmentState(r.State), Made: r.Made, First: r.First, Upto: r.Upto, Digest: r.Digest, Bytes: r.Bytes,
			Since: r.Since, Until: r.Until,
		}
		if err := json.Unmarshal([]byte(r.Summary), &list[i].Names); err != nil {
			return nil, fault.New(fault.Internal, "segment %s of the audit log: %w", r.Object, err)
		}
	}
	return list, nil
}

// AddSegment inserts a segment.
func (SegmentStore) AddSegment(ctx context.Context, tx *store.Tx, s audit.ArchiveSegment) error {
	r, err := segmentRowOf(s)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(r).Exec(ctx)
	return err
}

// SetSegment replaces a segment that is in a state.
func (SegmentStore) SetSegment(ctx context.Context, tx *store.Tx, s audit.ArchiveSegment, was audit.SegmentState) error {
	r, err := segmentRowOf(s)
	if err != nil {
		return err
	}
	res, err := tx.NewUpdate().Model(r).ExcludeColumn("object", "made").WherePK().Where("state = ?", string(was)).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fault.New(fault.Conflict, "segment %s of the audit log is no longer %s", s.Object, was))
	}
	return nil
}

// Segments gives segments with archived entries of a range, the newest first.
// No segment has more than MaxSegmentLeaves entries, so the index gives few rows.
func (SegmentStore) Segments(ctx context.Context, tx *store.Tx, from, to int64, limit int) ([]audit.ArchiveSegment, error) {
	var rows []segmentRow
	if err := tx.NewSelect().Model(&rows).
		Where("state = ? AND first < ? AND first > ? AND upto > ?", string(audit.SegmentArchived), to, from-audit.MaxSegmentLeaves, from).
		OrderExpr("first DESC").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	return segmentsOf(rows)
}

// StaleSegments gives segments whose objects are of no use.
func (SegmentStore) StaleSegments(ctx context.Context, tx *store.Tx, before store.Time, limit int) ([]audit.ArchiveSegment, error) {
	var rows []segmentRow
	if err := tx.NewSelect().Model(&rows).Where("state = ? OR state = ? AND made < ?", string(audit.SegmentDropped), string(audit.SegmentWriting), before).
		OrderExpr("object").Limit(limit).Scan(ctx); err != nil {
		return nil, err
	}
	return segmentsOf(rows)
}

// DropWriting drops segments that are being written and have the entry of an index.
func (SegmentStore) DropWriting(ctx context.Context, tx *store.Tx, index int64) error {
	_, err := tx.NewRaw("UPDATE audit_segment SET state = ? WHERE state = ? AND first <= ? AND upto > ?",
		string(audit.SegmentDropped), string(audit.SegmentWriting), index, index).Exec(ctx)
	return err
}

// RemoveSegment removes the segment of an object.
func (SegmentStore) RemoveSegment(ctx context.Context, tx *store.Tx, object string) error {
	_, err := tx.NewRaw("DELETE FROM audit_segment WHERE object = ?", object).Exec(ctx)
	return err
}

// AddHashes adds stored hashes from an index on.
func (HashStore) AddHashes(ctx context.Context, tx *store.Tx, first int64, hashes []tlog.Hash) error {
	for part := range slices.Chunk(hashes, insertRows) {
		rows := make([]hashRow, len(part))
		for i, h := range part {
			rows[i] = hashRow{Idx: first + int64(i), Hash: h[:]}
		}
		first += int64(len(part))
		if _, err := tx.NewInsert().Model(&rows).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Hashes gives those stored hashes that are there.
func (HashStore) Hashes(ctx context.Context, tx *store.Tx, indexes []int64) (map[int64]tlog.Hash, error) {
	got := make(map[int64]tlog.Hash, len(indexes))
	for part := range slices.Chunk(indexes, insertRows) {
		var rows []hashRow
		if err := tx.NewSelect().Model(&rows).Where("idx IN (?)", bun.List(part)).Scan(ctx); err != nil {
			return nil, err
		}
		for _, r := range rows {
			if len(r.Hash) != tlog.HashSize {
				return nil, fault.New(fault.Internal, "hash %d of the audit log has %d bytes", r.Idx, len(r.Hash))
			}
			got[r.Idx] = tlog.Hash(r.Hash)
		}
	}
	return got, nil
}

// HashRange gives the stored hashes of a range of indexes.
func (HashStore) HashRange(ctx context.Context, tx *store.Tx, from, to int64) ([]audit.StoredHash, error) {
	var rows []hashRow
	if err := tx.NewSelect().Model(&rows).Where("idx >= ? AND idx < ?", from, to).Order("idx").Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]audit.StoredHash, len(rows))
	for i, r := range rows {
		list[i].Index = r.Idx
		copy(list[i].Hash[:], r.Hash) // another length is another hash
	}
	return list, nil
}

// DropHashes removes all stored hashes.
func (HashStore) DropHashes(ctx context.Context, tx *store.Tx) error {
	_, err := tx.NewRaw("DELETE FROM audit_hash").Exec(ctx)
	return err
}

// AddCheckpoint adds a checkpoint.
func (CheckpointStore) AddCheckpoint(ctx context.Context, tx *store.Tx, c audit.SignedCheckpoint) error {
	_, err := tx.NewInsert().Model(&checkpointRow{Size: c.Size, Note: string(c.Note)}).Exec(ctx)
	return err
}

// Checkpoints gives those with after < size ≤ upto.
func (CheckpointStore) Checkpoints(ctx context.Context, tx *store.Tx, after, upto int64) ([]audit.SignedCheckpoint, error) {
	var rows []checkpointRow
	if err := tx.NewSelect().Model(&rows).Where("size > ? AND size <= ?", after, upto).Order("size").Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]audit.SignedCheckpoint, len(rows))
	for i, r := range rows {
		list[i] = r.signed()
	}
	return list, nil
}

// DropCheckpoints removes those of these sizes.
func (CheckpointStore) DropCheckpoints(ctx context.Context, tx *store.Tx, sizes []int64) error {
	for part := range slices.Chunk(sizes, insertRows) {
		if _, err := tx.NewDelete().Model((*checkpointRow)(nil)).Where("size IN (?)", bun.List(part)).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// LastCheckpoint gives the newest checkpoint.
func (CheckpointStore) LastCheckpoint(ctx context.Context, tx *store.Tx) (audit.SignedCheckpoint, error) {
	var r checkpointRow
	err := tx.NewSelect().Model(&r).OrderExpr("size DESC").Limit(1).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return audit.SignedCheckpoint{}, fault.New(fault.NotFound, "the audit log has no checkpoint yet")
	}
	return r.signed(), err
}

// JournalCursor is how far a journal file is in the log.
func (JournalStore) JournalCursor(ctx context.Context, tx *store.Tx, file string) (int64, error) {
	var n int64
	err := tx.NewRaw("SELECT position FROM audit_journal WHERE file = ?", file).Scan(ctx, &n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// SetJournalCursor moves a journal file's cursor.
func (JournalStore) SetJournalCursor(ctx context.Context, tx *store.Tx, file string, offset int64) error {
	_, err := tx.NewRaw("INSERT INTO audit_journal (file, position) VALUES (?, ?) ON CONFLICT (file) DO UPDATE SET position = excluded.position",
		file, offset).Exec(ctx)
	return err
}

// DropJournalCursor forgets a journal file.
func (JournalStore) DropJournalCursor(ctx context.Context, tx *store.Tx, file string) error {
	_, err := tx.NewRaw("DELETE FROM audit_journal WHERE file = ?", file).Exec(ctx)
	return err
}

type erasureRow struct {
	bun.BaseModel `bun:"table:audit_erasure"`

	ID              string `bun:",pk"`
	Indexes         string // JSON
	Reason          string
	State           string
	RequestedBy     string
	RequestedByName string
	RequestedAt     store.Time
	ExpiresAt       store.Time
	DecidedBy       string
	DecidedByName   string
	DecidedAt       store.Time
}

func (r erasureRow) erasure() (audit.EntryErasure, error) {
	e := audit.EntryErasure{
		ID: r.ID, Reason: r.Reason, State: audit.ErasureState(r.State), RequestedBy: r.RequestedBy, RequestedByName: r.RequestedByName,
		RequestedAt: r.RequestedAt.Time(), ExpiresAt: r.ExpiresAt.Time(), DecidedBy: r.DecidedBy, DecidedByName: r.DecidedByName, DecidedAt: r.DecidedAt.Time(),
	}
	return e, json.Unmarshal([]byte(r.Indexes), &e.Indexes)
}

// PutErasure inserts or replaces a request to erase entries.
func (ErasureStore) PutErasure(ctx context.Context, tx *store.Tx, e audit.EntryErasure) error {
	indexes, err := json.Marshal(e.Indexes)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&erasureRow{
		ID: e.ID, Indexes: string(indexes), Reason: e.Reason, State: string(e.State), RequestedBy: e.RequestedBy, RequestedByName: e.RequestedByName,
		RequestedAt: store.At(e.RequestedAt), ExpiresAt: store.At(e.ExpiresAt), DecidedBy: e.DecidedBy, DecidedByName: e.DecidedByName, DecidedAt: store.At(e.DecidedAt),
	}).On("CONFLICT (id) DO UPDATE").
		Set("state = EXCLUDED.state, decided_by = EXCLUDED.decided_by, decided_by_name = EXCLUDED.decided_by_name, decided_at = EXCLUDED.decided_at").Exec(ctx)
	return err
}

// Erasure gives a request to erase entries.
func (ErasureStore) Erasure(ctx context.Context, tx *store.Tx, id string) (audit.EntryErasure, error) {
	var r erasureRow
	err := tx.NewSelect().Model(&r).Where("id = ?", id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return audit.EntryErasure{}, fault.New(fault.NotFound, "erasure %.40q of audit entries does not exist", id)
	}
	if err != nil {
		return audit.EntryErasure{}, err
	}
	return r.erasure()
}

// Erasures gives requests to erase entries, the newest first.
func (ErasureStore) Erasures(ctx context.Context, tx *store.Tx, before string, limit int) ([]audit.EntryErasure, error) {
	var rows []erasureRow
	q := tx.NewSelect().Model(&rows).Order("id DESC").Limit(limit)
	if before != "" {
		q = q.Where("id < ?", before)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]audit.EntryErasure, len(rows))
	for i, r := range rows {
		var err error
		if list[i], err = r.erasure(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Key gives the log's identity.
func (KeyStore) Key(ctx context.Context, tx *store.Tx) (audit.LogKey, error) {
	var r keyRow
	err := tx.NewSelect().Model(&r).Where("id = 1").Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return audit.LogKey{}, fault.New(fault.NotFound, "the audit log has no key yet")
	}
	return audit.LogKey{Origin: r.Origin, Verifier: r.Verifier, Sealed: r.Sealed}, err
}

// SetKey records the log's identity, once.
func (KeyStore) SetKey(ctx context.Context, tx *store.Tx, k audit.LogKey) error {
	_, err := tx.NewInsert().Model(&keyRow{ID: 1, Origin: k.Origin, Verifier: k.Verifier, Sealed: k.Sealed}).Exec(ctx)
	return err
}
