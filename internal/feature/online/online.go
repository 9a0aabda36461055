// Package online keeps the features of entities for serving: one packed row per
// (view version, entity key) and time, the newest of which is read by default
// and any of which can be replayed.
//
// # Map
//
//   - Store (this file) holds the behaviour: the rule that decides which version
//     answers, the TTL, the limit on future events, the sealing of keys and
//     values. Its Reader gives all versions of a time instead of one, to those who
//     make something of them.
//   - Driver (driver.go) is what differs between databases: versions of opaque
//     rows in order of their stamps. onlinetest is its suite; pebble is the
//     embedded driver, redis another server.
//
// # The rule
//
// Asked at time T, an entity answers with the version that has the latest event
// ≤ T among those with created ≤ T (no created time counts as known from the
// event on); equal events are decided by the latest created. If T − event > TTL
// the answer is OutsideMaxAge. This is the rule of package offline, so a replay
// at a training row's time gives the training row's features.
//
// # Guarantees
//
// Write returns when the versions are synced. The order of writes does not
// matter: a late row never hides a newer event. A version with the event and
// created time of another replaces it, so that writing again is harmless. What
// the database holds says nothing about entities or values: keys are HMAC-SHA-256
// and values AES-256-GCM under keys derived from the view's key, and a value
// moved to another entity, time or view does not open. Destroying the view's key
// erases its rows.
package online

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Status says what a feature's value in an answer means. The values are Feast's
// names.
type Status string

// The statuses.
const (
	Present       Status = "PRESENT"
	NullValue     Status = "NULL_VALUE"      // the row is there and this feature is NULL
	NotFound      Status = "NOT_FOUND"       // no row at that time, or a NULL key
	OutsideMaxAge Status = "OUTSIDE_MAX_AGE" // the row is older than the view's TTL
	Invalid       Status = "INVALID"         // it is computed, and cannot be from these values
	Masked        Status = "MASKED"          // there may be a value, which this reader may not see
)

// Table is the rows of one version of a view. Those of two generations have
// nothing to do with each other.
type Table struct {
	Project    string
	View       string
	Version    int
	Generation string // may be empty
}

// owner is the key scope of the table's rows.
func (t Table) owner() string { return "feature/" + t.View }

// Row is a version of an entity's features.
type Row struct {
	Key     []byte // value.AppendKey of each part
	Event   int64  // microseconds since 1970
	Created int64  // microseconds since 1970; NoCreated when the view has none
	Packed  []byte // value.AppendRow
}

// NoCreated is the created time of a row that has none.
const NoCreated = math.MinInt64

// Query asks for entities at a time.
type Query struct {
	Keys [][]byte // value.AppendKey of each part; nil for a NULL key
	At   time.Time
	TTL  time.Duration // 0: for ever
}

// Answer is an entity's row. Status is Present, NotFound or OutsideMaxAge; Event
// and Created are set for the first and last, Packed for the first.
type Answer struct {
	Status  Status
	Event   time.Time
	Created int64 // of the row; see Row
	Packed  []byte
}

// After reports whether an answer is of a later row than another, of another table,
// or one as late: the rule, where a row that is written again replaces.
func (a Answer) After(b Answer) bool {
	switch {
	case a.Status == NotFound || b.Status == NotFound:
		return a.Status != NotFound
	case !a.Event.Equal(b.Event):
		return a.Event.After(b.Event)
	}
	return a.Created >= b.Created
}

// Keys gives derived keys; the ring of governance/keys does.
type Keys interface {
	DataKey(ctx context.Context, project, owner, use string) ([]byte, error)
}

// Options of a Store. The zero Options are usable.
type Options struct {
	// Skew is how far an event may be in the future: 5 minutes when 0.
	Skew time.Duration
	// Now is the clock; time.Now when nil.
	Now func() time.Time
}

// Store is the online store over a driver. Safe for concurrent use.
type Store struct {
	driver Driver
	keys   Keys
	skew   time.Duration
	now    func() time.Time
}

// New makes a store.
func New(driver Driver, keys Keys, opts Options) *Store {
	s := &Store{driver: driver, keys: keys, skew: opts.Skew, now: opts.Now}
	if s.skew == 0 {
		s.skew = 5 * time.Minute
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// Horizon is the latest event time that may be written now.
func (s *Store) Horizon() time.Time { return s.now().Add(s.skew).UTC() }

// Write stores rows and returns when they are synced. Errors: fault.Invalid for
// an event beyond the Horizon, in which case nothing is written; fault.Gone when
// the view's key was destroyed.
func (s *Store) Write(ctx context.Context, table Table, rows []Row) error {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return err
	}
	versions, err := s.versions(seal, table, rows)
	if err != nil {
		return err
	}
	return fault.Wrap(s.driver.Write(ctx, versions), "writing features of %s@%d", table.View, table.Version)
}

// versions seals rows, none of which may be beyond the Horizon.
func (s *Store) versions(seal *sealer, table Table, rows []Row) ([]Version, error) {
	horizon := s.Horizon()
	for i := range rows {
		if rows[i].Event > horizon.UnixMicro() {
			return nil, fault.New(fault.Invalid, "an event time of view %s@%d is in the future", table.View, table.Version).
				WithData("%s", time.UnixMicro(rows[i].Event).UTC().Format(time.RFC3339Nano)).
				WithHint("Events may be at most %s ahead of the server's clock. Correct the view's timestamp column.", s.skew)
		}
	}
	versions := make([]Version, len(rows))
	for i := range rows {
		var err error
		if versions[i], err = seal.version(&rows[i]); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// Read answers for each key of the query, in their order. Errors: fault.Gone
// when the view's key was destroyed; fault.Internal when a stored row does not
// open.
func (s *Store) Read(ctx context.Context, table Table, q Query) ([]Answer, error) {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return nil, err
	}
	asks := make([]ask, 0, len(q.Keys))
	for i, key := range q.Keys {
		if key != nil {
			asks = append(asks, ask{seal.row(key), i})
		}
	}
	// One walk forwards through the database.
	slices.SortFunc(asks, func(a, b ask) int { return bytes.Compare(a.row[:], b.row[:]) })
	rows := make([]RowKey, 0, len(asks))
	for i := range asks {
		if i == 0 || asks[i].row != asks[i-1].row {
			rows = append(rows, asks[i].row)
		}
	}

	when := q.At.UnixMicro()
	floor := int64(math.MinInt64)
	if ttl := q.TTL.Microseconds(); ttl > 0 && when-ttl < when {
		floor = when - ttl
	}
	found := make([]Answer, len(rows))
	next := 0 // into asks
	var failed error
	err = s.driver.Scan(ctx, rows, Stamp{Event: when, Created: math.MaxInt64}, func(i int, v Stamp, sealed []byte) bool {
		if v.Created > when {
			return true // not known yet at that time
		}
		found[i] = Answer{Status: OutsideMaxAge, Event: time.UnixMicro(v.Event).UTC(), Created: v.Created}
		if v.Event < floor {
			return false
		}
		for asks[next].row != rows[i] {
			next++
		}
		packed, err := seal.open(q.Keys[asks[next].at], rows[i], v, sealed)
		if err != nil {
			failed = err
		}
		found[i].Status, found[i].Packed = Present, packed
		return false
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, fault.Wrap(err, "reading features of %s@%d", table.View, table.Version)
	}

	answers := make([]Answer, len(q.Keys))
	for i := range answers {
		answers[i].Status = NotFound
	}
	at := -1 // into rows
	for i := range asks {
		if i == 0 || asks[i].row != asks[i-1].row {
			at++
		}
		if found[at].Status != "" {
			answers[asks[i].at] = found[at]
		}
	}
	return answers, nil
}

// Reader reads versions of a table as they are. It lives for one operation, so that
// a destroyed key stops working at once. Not safe for concurrent use.
type Reader struct {
	store *Store
	table Table
	seal  *sealer
	buf   []byte
}

// Reader opens a table. Error: fault.Gone when the view's key was destroyed.
func (s *Store) Reader(ctx context.Context, table Table) (*Reader, error) {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return nil, err
	}
	return &Reader{store: s, table: table, seal: seal}, nil
}

// Span visits the versions of a key with from ≤ event ≤ to, newest first, until
// visit returns false. packed is valid during the call only. Errors: those of visit;
// fault.Internal when a stored row does not open.
func (r *Reader) Span(ctx context.Context, key []byte, from, to int64, visit func(event, created int64, packed []byte) (more bool, err error)) error {
	row := r.seal.row(key)
	var failed error
	err := r.store.driver.Scan(ctx, []RowKey{row}, Stamp{Event: to, Created: math.MaxInt64}, func(_ int, v Stamp, sealed []byte) bool {
		if v.Event < from {
			return false
		}
		var more bool
		if r.buf, failed = r.seal.openInto(r.buf[:0], key, row, v, sealed); failed == nil {
			more, failed = visit(v.Event, v.Created, r.buf)
		}
		return more && failed == nil
	})
	if err == nil {
		err = failed
	}
	return fault.Wrap(err, "reading features of %s@%d", r.table.View, r.table.Version)
}

// Drop removes every row of the table.
func (s *Store) Drop(ctx context.Context, table Table) error {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return err
	}
	return fault.Wrap(s.driver.Drop(ctx, seal.table), "dropping features of %s@%d", table.View, table.Version)
}

// ask is a key of a query and its place there.
type ask struct {
	row RowKey
	at  int
}

// sealer makes the opaque form of a table's rows. It lives for one operation, so
// that a destroyed key stops working at once. Not safe for concurrent use.
type sealer struct {
	table   TableKey
	mac     hash.Hash
	aead    cipher.AEAD
	sum     []byte
	aad     []byte
	nonce   [12]byte
	stamped [16]byte
}

func (s *Store) sealer(ctx context.Context, table Table) (*sealer, error) {
	derive := func(use string) ([]byte, error) {
		scope := fmt.Sprintf("online/%s/v%d", use, table.Version)
		if table.Generation != "" {
			scope += "/" + table.Generation
		}
		key, err := s.keys.DataKey(ctx, table.Project, table.owner(), scope)
		return key, fault.Wrap(err, "opening the key of view %s", table.View)
	}
	macKey, err := derive("key")
	if err != nil {
		return nil, err
	}
	aeadKey, err := derive("value")
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(aeadKey)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	sl := &sealer{mac: hmac.New(sha256.New, macKey), aead: aead}
	sl.mac.Write([]byte("table"))
	copy(sl.table[:], sl.mac.Sum(nil))
	return sl, nil
}

// row is the opaque key of an entity.
func (s *sealer) row(key []byte) RowKey {
	var row RowKey
	copy(row[:], s.table[:])
	s.mac.Reset()
	s.mac.Write([]byte("row"))
	s.mac.Write(key)
	s.sum = s.mac.Sum(s.sum[:0])
	copy(row[len(s.table):], s.sum)
	return row
}

// bind is what a value is sealed to: its place, its time and its entity.
func (s *sealer) bind(key []byte, row RowKey, stamp Stamp) []byte {
	binary.BigEndian.PutUint64(s.stamped[:], uint64(stamp.Event))    //nolint:gosec // the bits are meant
	binary.BigEndian.PutUint64(s.stamped[8:], uint64(stamp.Created)) //nolint:gosec // the bits are meant
	s.aad = append(append(append(s.aad[:0], row[:]...), s.stamped[:]...), key...)
	return s.aad
}

func (s *sealer) version(r *Row) (Version, error) {
	v := Version{Row: s.row(r.Key), Stamp: Stamp{Event: r.Event, Created: r.Created}}
	if _, err := rand.Read(s.nonce[:]); err != nil {
		return v, err
	}
	sealed := make([]byte, 0, len(s.nonce)+len(r.Packed)+s.aead.Overhead())
	v.Sealed = s.aead.Seal(append(sealed, s.nonce[:]...), s.nonce[:], r.Packed, s.bind(r.Key, v.Row, v.Stamp))
	return v, nil
}

func (s *sealer) open(key []byte, row RowKey, stamp Stamp, sealed []byte) ([]byte, error) {
	return s.openInto(nil, key, row, stamp, sealed)
}

func (s *sealer) openInto(dst, key []byte, row RowKey, stamp Stamp, sealed []byte) ([]byte, error) {
	if len(sealed) < len(s.nonce)+s.aead.Overhead() {
		return nil, errDamaged()
	}
	packed, err := s.aead.Open(dst, sealed[:len(s.nonce)], sealed[len(s.nonce):], s.bind(key, row, stamp))
	if err != nil {
		return nil, errDamaged()
	}
	return packed, nil
}

func errDamaged() error {
	return fault.New(fault.Internal, "a stored feature row does not open: it is damaged or was moved").
		WithHint("Materialise the view again.")
}

// Rows are the opaque names of entities in a table. They tell nothing of the
// entities, and stay valid as long as the view's key does.
func (s *Store) Rows(ctx context.Context, table Table, keys [][]byte) ([]RowKey, error) {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return nil, err
	}
	rows := make([]RowKey, len(keys))
	for i, key := range keys {
		rows[i] = seal.row(key)
	}
	return rows, nil
}

// TableKey is what the opaque names of a table's rows begin with.
func (s *Store) TableKey(ctx context.Context, table Table) (TableKey, error) {
	seal, err := s.sealer(ctx, table)
	if err != nil {
		return TableKey{}, err
	}
	return seal.table, nil
}

// Count counts the versions that the rows have, whatever table they are of.
func (s *Store) Count(ctx context.Context, rows []RowKey) (n int64, err error) {
	err = s.driver.Scan(ctx, ascending(rows), Stamp{Event: math.MaxInt64, Created: math.MaxInt64}, func(int, Stamp, []byte) bool {
		n++
		return true
	})
	return n, fault.Wrap(err, "counting online rows")
}

// Forget removes rows with all their versions, durably; see Driver.Remove.
func (s *Store) Forget(ctx context.Context, rows []RowKey) error {
	return fault.Wrap(s.driver.Remove(ctx, ascending(rows)), "removing online rows")
}

// ascending are the rows in order, each once.
func ascending(rows []RowKey) []RowKey {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b RowKey) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(rows)
}
