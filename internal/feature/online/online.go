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
//   - seal.go makes the opaque form of rows, compaction.go moves rows from one subkey to
//     the next and removes those that answer nobody any more.
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
// and values AES-256-GCM under subkeys derived from the view's key, and a value
// moved to another entity, time or view does not open. Destroying the view's key
// erases its rows. Subkeys have numbers: while rows are moved to the next one, a
// table answers with those under both.
package online

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Status is the status of a feature value in a response. The values are Feast's names.
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
	// Subkey is the number of the subkey that rows are written under: 0 is of the first
	// format, in which rows do not say what they are under and cannot be moved. Former is
	// the same, or the one before, whose rows answer, too.
	Subkey, Former int
}

// subkeys are those whose rows answer. The former comes first: a row that is moved
// after it was looked for there is found under the other.
func (t Table) subkeys() []int {
	if t.Former == t.Subkey {
		return []int{t.Subkey}
	}
	return []int{t.Former, t.Subkey}
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
	// Step is the number of versions inspected by a step of Move or Sweep: 10,000 when 0.
	Step int
}

// Store is the online store over a driver. Safe for concurrent use.
type Store struct {
	driver Driver
	keys   Keys
	skew   time.Duration
	now    func() time.Time
	step   int

	mu      sync.Mutex
	derived map[tableSubkey]*derived
}

// New makes a store.
func New(driver Driver, keys Keys, opts Options) *Store {
	s := &Store{driver: driver, keys: keys, skew: opts.Skew, now: opts.Now, step: cmp.Or(opts.Step, 10_000)}
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
	seal, err := s.sealer(ctx, table, table.Subkey)
	if err != nil {
		return err
	}
	versions, err := s.versions(seal, table, rows)
	if err != nil {
		return err
	}
	return fault.Wrap(s.driver.Write(ctx, versions), "writing features of %s@%d", table.View, table.Version)
}

// versions seals rows, none of which may be beyond the Horizon, or before the year 1.
func (s *Store) versions(seal *sealer, table Table, rows []Row) ([]Version, error) {
	horizon := s.Horizon()
	for i := range rows {
		if rows[i].Event < value.MinInstant {
			return nil, fault.New(fault.Invalid, "an event time of view %s@%d is before the year 1", table.View, table.Version).
				WithHint("Correct the view's timestamp column.")
		}
		if rows[i].Event > horizon.UnixMicro() {
			return nil, fault.New(fault.Invalid, "an event time of view %s@%d is in the future", table.View, table.Version).
				WithData("%s", time.UnixMicro(rows[i].Event).UTC().Format(time.RFC3339Nano)).
				WithHint("Event times may be at most %s ahead of the server's clock. Correct the view's timestamp column.", s.skew)
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

// Read answers for each key of the query, in their order. Errors: fault.Gone when the view's key
// was destroyed; fault.Internal when a stored row cannot be decrypted.
func (s *Store) Read(ctx context.Context, table Table, q Query) ([]Answer, error) {
	var answers []Answer
	for _, subkey := range table.subkeys() {
		under, err := s.readUnder(ctx, table, subkey, q)
		if err != nil {
			return nil, err
		}
		if answers == nil {
			answers = under
			continue
		}
		for i, a := range under {
			if a.After(answers[i]) {
				answers[i] = a
			}
		}
	}
	return answers, nil
}

func (s *Store) readUnder(ctx context.Context, table Table, subkey int, q Query) ([]Answer, error) {
	seal, err := s.sealer(ctx, table, subkey)
	if err != nil {
		return nil, err
	}
	defer s.leave(seal)
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
	var room []byte // for what is opened
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
		if cap(room)-len(room) < len(sealed) { // rows are about as long as each other
			room = make([]byte, 0, min((len(rows)-i)*(len(sealed)+len(sealed)/8), max(len(sealed), maxRoom)))
		}
		packed, err := seal.open(room[len(room):], q.Keys[asks[next].at], rows[i], v, sealed)
		if err != nil {
			failed = err
		}
		room = room[:len(room)+len(packed)]
		found[i].Status, found[i].Packed = Present, slices.Clip(packed)
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

// maxRoom is how many bytes of rows are opened into one piece of memory.
const maxRoom = 64 << 10

// Reader reads versions of a table as they are. It lives for one operation, so that
// a destroyed key stops working at once. Not safe for concurrent use.
type Reader struct {
	store *Store
	table Table
	seal  *sealer
	older *sealer // of the former subkey; nil when there is none
	buf   []byte
}

// Reader opens a table. Error: fault.Gone when the view's key was destroyed.
func (s *Store) Reader(ctx context.Context, table Table) (*Reader, error) {
	r := &Reader{store: s, table: table}
	var err error
	if r.seal, err = s.sealer(ctx, table, table.Subkey); err != nil {
		return nil, err
	}
	if table.Former != table.Subkey {
		r.older, err = s.sealer(ctx, table, table.Former)
	}
	return r, err
}

// Span visits the versions of a key with from ≤ event ≤ to, newest first, until visit returns
// false. packed is valid during the call only. Errors: those of visit; fault.Internal when a
// stored row cannot be decrypted.
func (r *Reader) Span(ctx context.Context, key []byte, from, to int64, visit func(event, created int64, packed []byte) (more bool, err error)) error {
	start := Stamp{Event: to, Created: math.MaxInt64}
	var err error
	if r.older == nil {
		_, err = r.span(ctx, key, start, from, nil, visit)
	} else {
		err = r.merged(ctx, key, start, from, visit)
	}
	return fault.Wrap(err, "reading features of %s@%d", r.table.View, r.table.Version)
}

// spanPage is how many versions under the former subkey are held at a time.
const spanPage = 64

// merged is Span over both subkeys. A page of the former is read before the other's
// versions of the same time, so that none is missed that is moved meanwhile.
func (r *Reader) merged(ctx context.Context, key []byte, start Stamp, from int64, visit func(event, created int64, packed []byte) (bool, error)) error {
	row := r.older.row(key)
	for {
		var page []Version
		err := r.store.driver.Scan(ctx, []RowKey{row}, start, func(_ int, v Stamp, sealed []byte) bool {
			if v.Event < from {
				return false
			}
			page = append(page, Version{Row: row, Stamp: v, Sealed: bytes.Clone(sealed)})
			return len(page) < spanPage
		})
		if err != nil {
			return err
		}
		last := len(page) < spanPage
		until := &Stamp{Event: from, Created: math.MinInt64}
		if !last {
			until = &page[len(page)-1].Stamp
		}
		emit := func(v Version) (bool, error) {
			var err error
			if r.buf, err = r.older.open(r.buf[:0], key, row, v.Stamp, v.Sealed); err != nil {
				return false, err
			}
			return visit(v.Stamp.Event, v.Stamp.Created, r.buf)
		}
		more, err := r.span(ctx, key, start, from, until, func(event, created int64, packed []byte) (bool, error) {
			now := Stamp{Event: event, Created: created}
			for len(page) > 0 && page[0].Stamp.Compare(now) < 0 {
				// packed is r.buf, which emit writes over.
				packed = bytes.Clone(packed)
				if more, err := emit(page[0]); err != nil || !more {
					return false, err
				}
				page = page[1:]
			}
			if len(page) > 0 && page[0].Stamp == now {
				page = page[1:] // it was moved or replaced
			}
			return visit(event, created, packed)
		})
		for ; err == nil && more && len(page) > 0; page = page[1:] {
			more, err = emit(page[0])
		}
		if err != nil || !more || last {
			return err
		}
		if start = *until; start.Created == math.MinInt64 {
			start = Stamp{Event: start.Event - 1, Created: math.MaxInt64}
		} else {
			start.Created--
		}
	}
}

// span visits versions under the newest subkey, down to until where it is given. more
// says that visit did not end it.
func (r *Reader) span(ctx context.Context, key []byte, start Stamp, from int64, until *Stamp, visit func(event, created int64, packed []byte) (bool, error)) (more bool, err error) {
	row := r.seal.row(key)
	more = true
	var failed error
	err = r.store.driver.Scan(ctx, []RowKey{row}, start, func(_ int, v Stamp, sealed []byte) bool {
		if v.Event < from || until != nil && v.Compare(*until) > 0 {
			return false
		}
		if r.buf, failed = r.seal.open(r.buf[:0], key, row, v, sealed); failed == nil {
			more, failed = visit(v.Event, v.Created, r.buf)
		}
		return more && failed == nil
	})
	if err == nil {
		err = failed
	}
	return more, err
}

// Drop removes every row of the table.
func (s *Store) Drop(ctx context.Context, table Table) error {
	keys, err := s.TableKeys(ctx, table)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := s.driver.Drop(ctx, key); err != nil {
			return fault.Wrap(err, "dropping features of %s@%d", table.View, table.Version)
		}
	}
	return nil
}

// ask is a key of a query and its place there.
type ask struct {
	row RowKey
	at  int
}

// Rows are the opaque names of entities in a table, under each subkey that it has had:
// also those that an older backup has. They tell nothing of the entities, and stay
// valid as long as the view's key does.
func (s *Store) Rows(ctx context.Context, table Table, keys [][]byte) ([]RowKey, error) {
	var rows []RowKey
	for subkey := range table.Subkey + 1 {
		seal, err := s.sealer(ctx, table, subkey)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			rows = append(rows, seal.row(key))
		}
	}
	return rows, nil
}

// TableKeys are what the opaque names of a table's rows begin with, under each subkey
// that it has had.
func (s *Store) TableKeys(ctx context.Context, table Table) ([]TableKey, error) {
	keys := make([]TableKey, table.Subkey+1)
	for subkey := range keys {
		seal, err := s.sealer(ctx, table, subkey)
		if err != nil {
			return nil, err
		}
		keys[subkey] = seal.table
	}
	return keys, nil
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
