package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// memory is an object store. put and get, if set, come before the act.
type memory struct {
	mu       sync.Mutex
	held     map[string][]byte
	put, get func(key string) error
	before   func(key string) error // as put, while others use the store
	reads    int
}

func (m *memory) Put(_ context.Context, key string, b []byte) error {
	if m.before != nil {
		if err := m.before(key); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.put != nil {
		if err := m.put(key); err != nil {
			return err
		}
	}
	if m.held == nil {
		m.held = map[string][]byte{}
	}
	m.held[key] = bytes.Clone(b)
	return nil
}

func (m *memory) Get(_ context.Context, key string, limit int64) ([]byte, error) {
	if m.get != nil {
		if err := m.get(key); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	b, ok := m.held[key]
	if !ok {
		return nil, fault.New(fault.NotFound, "object %s does not exist", key)
	}
	if int64(len(b)) > limit {
		return nil, fault.New(fault.TooLarge, "object %s", key)
	}
	return bytes.Clone(b), nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, key)
	return nil
}

func (m *memory) keys() (keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.held {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// varied appends n entries of several projects, actors, actions and outcomes.
func (p *place) varied(t *testing.T, from, n int) {
	t.Helper()
	for at := from; at < from+n; at += 250 {
		for who := range 2 {
			ctx := identity.With(context.Background(), identity.Principal{Kind: identity.User, ID: fmt.Sprint("usr_", who), Name: []string{"alice", "bob"}[who]})
			if err := p.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
				for i := at; i < min(at+250, from+n); i++ {
					if i%2 != who {
						continue
					}
					e := audit.Entry{Project: []string{"wind", "sun", ""}[i%3], Action: []string{"dataset.query", "dataset.import", "model.get", "feature.online"}[i%4], Object: fmt.Sprintf("thing %d", i%50)}
					if i%7 == 0 {
						e.Outcome, e.Reason = audit.Refused, fmt.Sprintf("no role for 100%% of \"Ähren_%d\"", i)
					}
					if err := audit.Append(ctx, tx, e); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pages lists all that matches, in pages of a size.
func listPages(t *testing.T, svc *audit.Service, f audit.Filter, size int) (all []audit.Record) {
	t.Helper()
	for token, n := "", 0; ; n++ {
		page, next, err := svc.List(t.Context(), f, size, token)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
		if token = next; token == "" {
			return all
		}
		if n > 10_000 {
			t.Fatal("the list does not end")
		}
	}
}

func aPass() lifecycle.Pass { return lifecycle.NewPass(time.Now) }

func far() time.Time { return time.Now().Add(time.Hour) }

// archiveAll archives all whole tiles.
func archiveAll(t *testing.T, log *audit.Sequencer) int64 {
	t.Helper()
	n, err := log.Archive(t.Context(), far(), aPass())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (p *place) count(t *testing.T, query string) (n int64) {
	t.Helper()
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.NewRaw(query).Scan(ctx, &n) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestArchivedEntriesReadAsBefore: every list, one entry, both exports and the verification
// give the same before and after entries were archived.
func TestArchivedEntriesReadAsBefore(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, p *place) {
		t.Helper()
		objects := &memory{}
		p.objects = objects
		log := p.log(t)
		svc := p.service(log)
		p.varied(t, 0, 500)
		runOnce(t, log)
		middle := time.Now()
		p.varied(t, 500, 1900)
		runOnce(t, log)

		filters := []audit.Filter{
			{},
			{Project: "wind"},
			{Project: "none"},
			{Actor: "alice"},
			{Actor: "usr_1"},
			{Actor: "mallory"},
			{Action: "dataset.query"},
			{Action: "dataset.*"},
			{Action: "data.*"},
			{Action: "model.*", Project: "sun"},
			{Outcome: audit.Refused},
			{Object: "thing 7"},
			{Since: middle},
			{Until: middle},
			{Since: middle, Until: middle},
			{Text: "ROLE FOR"},
			{Text: "100%"},
			{Text: `"Ähren_7`},
			{Text: "100_"},
		}
		before := make([][]audit.Record, len(filters))
		for i, f := range filters {
			before[i] = listPages(t, svc, f, 300)
		}
		size := log.Status().Size
		if n := archiveAll(t, log); n != size/256*256 || n < 2304 {
			t.Fatalf("archived %d of %d", n, size)
		}
		if n := p.count(t, "SELECT COUNT(*) FROM audit_leaf"); n != size%256 || len(objects.keys()) != 2 {
			t.Fatalf("%d leaves in the database, objects %v", n, objects.keys())
		}
		runOnce(t, log) // the entries of the archiving itself
		for i, f := range filters {
			for _, fresh := range []bool{false, true} {
				svc := svc
				if fresh { // nothing in memory
					svc = p.service(p.log(t))
				}
				for _, pages := range []int{300, 1000} {
					after := slices.DeleteFunc(listPages(t, svc, f, pages), func(r audit.Record) bool { return r.Index >= size })
					if !reflect.DeepEqual(after, before[i]) && len(after)+len(before[i]) > 0 {
						t.Errorf("%+v, fresh %v: %d records before, %d after", f, fresh, len(before[i]), len(after))
					}
				}
			}
		}
		if err := sweepAll(t, p.log(t), 1000); err != nil {
			t.Error(err)
		}
		whole := export(t, svc)
		if r, err := audit.Verify(bytes.NewReader(whole), audit.VerifyOptions{PublicKey: log.PublicKey()}); err != nil || r.Size < size {
			t.Errorf("%+v, %v", r, err)
		}
		var of bytes.Buffer
		if err := svc.ExportProject(alice(t.Context()), "wind", &of); err != nil {
			t.Fatal(err)
		}
		if r, err := audit.Verify(&of, audit.VerifyOptions{PublicKey: log.PublicKey()}); err != nil || r.Entries != int64(len(before[1]))+1 {
			t.Errorf("%+v, %v", r, err)
		}
		// It starts again, goes on, and archives what has come since.
		log = p.log(t)
		if err := log.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		log.Stop()
		p.varied(t, 0, 600)
		runOnce(t, log)
		if n := archiveAll(t, log); n != 512 {
			t.Errorf("archived %d more", n)
		}
	})
}

// TestOnlyOldEntriesAreArchived: an entry goes when all of its tile is older.
func TestOnlyOldEntriesAreArchived(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.objects = &memory{}
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	at := listPages(t, p.service(log), audit.Filter{}, 1000)
	slices.Reverse(at)
	for _, tt := range []struct {
		before time.Time
		want   int64
	}{{at[255].Time, 0}, {at[255].Time.Add(time.Microsecond), 256}, {far(), 256}} {
		if n, err := log.Archive(t.Context(), tt.before, aPass()); err != nil || n != tt.want {
			t.Errorf("before %v: archived %d, %v; want %d", tt.before, n, err, tt.want)
		}
	}
}

// TestArchivedEntriesAreErased: what an entry said is in no object any more, the segment is
// archived anew with the blank, and everything verifies.
func TestArchivedEntriesAreErased(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, p *place) {
		t.Helper()
		objects := &memory{}
		p.objects = objects
		log := p.log(t)
		svc := p.service(log)
		p.varied(t, 0, 2400)
		runOnce(t, log)
		archiveAll(t, log)
		runOnce(t, log)
		old := objects.keys()
		eraseBoth(t, svc, []int64{7, 2047, 2100}, "request 2026-17")
		for _, k := range old {
			if slices.Contains(objects.keys(), k) {
				t.Errorf("the object %s, which has what was erased, is still there", k)
			}
		}
		check := func() {
			t.Helper()
			log := p.log(t)
			if err := sweepAll(t, log, 1000); err != nil {
				t.Error(err)
			}
			r, err := audit.Verify(bytes.NewReader(export(t, p.service(log))), audit.VerifyOptions{PublicKey: log.PublicKey()})
			if err != nil || r.Erased != 3 {
				t.Errorf("%+v, %v", r, err)
			}
			erased := 0
			for _, r := range listPages(t, p.service(log), audit.Filter{}, 1000) {
				if r.Damaged != "" {
					t.Errorf("%+v", r)
				}
				if r.Erased {
					erased++
				}
			}
			if erased != 3 {
				t.Errorf("%d erased entries in the list", erased)
			}
		}
		check()
		if n := archiveAll(t, p.log(t)); n < 2304 {
			t.Errorf("archived %d", n)
		}
		if n := p.count(t, "SELECT COUNT(*) FROM audit_segment"); n != int64(len(objects.keys())) {
			t.Errorf("%d segments, %d objects", n, len(objects.keys()))
		}
		check()
		_, err := svc.RequestErasure(alice(t.Context()), []int64{7}, "again")
		wantFault(t, err, fault.NotFound, "already erased")
	})
}

// TestAnErasureDuringALongRead: the object goes also when a read keeps the old bytes in the
// database's files for a while.
func TestAnErasureDuringALongRead(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	svc := p.service(log)
	p.varied(t, 0, 600)
	runOnce(t, log)
	archiveAll(t, log)
	runOnce(t, log)
	e, err := svc.RequestErasure(alice(t.Context()), []int64{9}, "request 2026-19")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		var n int64
		if err := tx.NewRaw("SELECT COUNT(*) FROM audit_leaf").Scan(ctx, &n); err != nil {
			return err
		}
		done, err := svc.ApproveErasure(carol(t.Context()), e.ID)
		wantFault(t, err, fault.Unavailable, "the deletion is done")
		if done.State != audit.ErasureDone || len(m.keys()) != 0 {
			t.Errorf("%+v, objects %v", done, m.keys())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestErasuresReachObjectsBeingWritten: the object of a segment that is being written, or was
// when the server was killed, goes with an erasure, too.
func TestErasuresReachObjectsBeingWritten(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*place, *memory, *audit.Sequencer) {
		t.Helper()
		p, m := newPlace(t), &memory{}
		p.objects = m
		log := p.log(t)
		p.varied(t, 0, 600)
		runOnce(t, log)
		return p, m, log
	}
	nothing := func(t *testing.T, p *place, m *memory) {
		t.Helper()
		if n := p.count(t, "SELECT COUNT(*) FROM audit_segment"); n != 0 || len(m.keys()) != 0 {
			t.Errorf("%d segments, objects %v", n, m.keys())
		}
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		p, m, log := begin(t)
		m.get = func(string) error { runtime.Goexit(); return nil }
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = log.Archive(context.Background(), far(), aPass())
		}()
		<-done
		m.get = nil
		if len(m.keys()) != 1 {
			t.Fatalf("objects %v", m.keys())
		}
		eraseBoth(t, p.service(p.log(t)), []int64{9}, "request 2026-20")
		nothing(t, p, m)
	})
	for _, tt := range []struct {
		name string
		hook func(m *memory, do func(string) error)
	}{
		{"before the object is read", func(m *memory, do func(string) error) { m.get = do }},
		{"before it is written", func(m *memory, do func(string) error) { m.before = do }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, m, log := begin(t)
			tt.hook(m, func(string) error {
				m.get, m.before = nil, nil
				eraseBoth(t, p.service(log), []int64{9}, "request 2026-21")
				return nil
			})
			if n, err := log.Archive(t.Context(), far(), aPass()); n != 0 || err == nil {
				t.Errorf("archived %d, %v", n, err)
			}
			nothing(t, p, m)
			runOnce(t, log)
			if n := archiveAll(t, log); n != 512 || len(m.keys()) != 1 {
				t.Errorf("archived %d, objects %v", n, m.keys())
			}
		})
	}
}

// TestCollectsWhereNothingIsArchived: the zero time archives nothing and deletes objects of
// no use.
func TestCollectsWhereNothingIsArchived(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 300)
	runOnce(t, log)
	p.sql(t, "INSERT INTO audit_segment (object, state, made, first, upto, digest, bytes, since, until, summary) VALUES ('audit/old', 'dropped', 0, 0, 256, '', 0, 0, 0, '{}')")
	if err := m.Put(t.Context(), "audit/old", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if n, err := log.Archive(t.Context(), time.Time{}, aPass()); n != 0 || err != nil || len(m.keys()) != 0 {
		t.Errorf("archived %d, %v, objects %v", n, err, m.keys())
	}
	if n := p.count(t, "SELECT COUNT(*) FROM audit_segment"); n != 0 {
		t.Errorf("%d segments", n)
	}
}

// TestArchivingMayEndAnywhere: whatever fails, and wherever the server is killed, all entries
// are there once, and the next time they are archived; objects that nobody names any more are
// deleted after a while.
func TestArchivingMayEndAnywhere(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for _, tt := range []struct {
		name string
		fail func(p *place, m *memory, cancel func())
		mend func(p *place, m *memory)
	}{
		{"before the object is there", func(_ *place, m *memory, _ func()) { m.put = func(string) error { return killed } }, nil},
		{"the object is there, and reading it fails", func(_ *place, m *memory, _ func()) { m.get = func(string) error { return killed } }, nil},
		{"other bytes are there", func(_ *place, m *memory, _ func()) {
			m.get = func(key string) error {
				for k := range m.held {
					if k != key {
						m.held[key] = m.held[k] // of another segment
					}
				}
				m.held[key][len(m.held[key])/2] ^= 1
				return nil
			}
		}, nil},
		{"before the transaction", func(_ *place, m *memory, cancel func()) { m.get = func(string) error { cancel(); return nil } }, nil},
		{
			"in the transaction",
			func(p *place, _ *memory, _ func()) {
				p.must("CREATE TRIGGER stop BEFORE DELETE ON audit_leaf WHEN old.idx = 300 BEGIN SELECT RAISE(ABORT, 'killed'); END")
			},
			func(p *place, _ *memory) { p.must("DROP TRIGGER stop") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, m := newPlace(t), &memory{}
			now := time.Now()
			p.now, p.objects = func() time.Time { return now }, m
			log := p.log(t)
			p.varied(t, 0, 600)
			runOnce(t, log)
			before := listPages(t, p.service(log), audit.Filter{}, 1000)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tt.fail(p, m, cancel)
			if n, err := log.Archive(ctx, far(), aPass()); n != 0 || err == nil {
				t.Fatalf("archived %d, %v", n, err)
			}
			m.put, m.get = nil, nil
			if tt.mend != nil {
				tt.mend(p, m)
			}
			log = p.log(t) // another process
			same := func() {
				t.Helper()
				all := listPages(t, p.service(log), audit.Filter{}, 1000)
				if !reflect.DeepEqual(all[len(all)-len(before):], before) {
					t.Errorf("%d entries before, %d after", len(before), len(all))
				}
				if err := sweepAll(t, p.log(t), 100); err != nil {
					t.Error(err)
				}
			}
			same()
			if n, err := log.Archive(t.Context(), far(), aPass()); n != 512 || err != nil {
				t.Fatalf("archived %d, %v", n, err)
			}
			same()
			now = now.Add(2 * time.Hour)
			if _, err := log.Archive(t.Context(), time.Time{}, aPass()); err != nil {
				t.Fatal(err)
			}
			if len(m.keys()) != 1 || p.count(t, "SELECT COUNT(*) FROM audit_segment") != 1 {
				t.Errorf("objects %v", m.keys())
			}
			same()
		})
	}
}

// must changes the database of a test.
func (p *place) must(query string) {
	if err := p.db.Update(context.Background(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(query).Exec(ctx)
		return err
	}); err != nil {
		panic(err)
	}
}

// TestAChangedArchiveIsFound: a change of an object, or of what is on record of it, is a
// finding for the verification, and for who reads it.
func TestAChangedArchiveIsFound(t *testing.T) {
	t.Parallel()
	sql := func(query string) func(t *testing.T, p *place, m *memory) {
		return func(t *testing.T, p *place, _ *memory) {
			t.Helper()
			p.sql(t, query)
		}
	}
	for _, tt := range []struct {
		name    string
		do      func(t *testing.T, p *place, m *memory)
		finding string
	}{
		{"a missing object", func(_ *testing.T, _ *place, m *memory) { clear(m.held) }, "is missing"},
		{"a changed object", func(_ *testing.T, _ *place, m *memory) {
			for k := range m.held {
				m.held[k][100] ^= 1
			}
		}, "differs from the one"},
		{"a cut object", func(_ *testing.T, _ *place, m *memory) {
			for k := range m.held {
				m.held[k] = m.held[k][:1000]
			}
		}, "differs from the one"},
		{"a missing record", sql("DELETE FROM audit_segment"), "is missing"},
		{"a hidden project", sql(`UPDATE audit_segment SET summary = REPLACE(summary, '"wind"', '"wend"')`), "does not match them"},
		{"a hidden time", sql(`UPDATE audit_segment SET until = since`), "does not match them"},
		{"fewer entries", sql(`UPDATE audit_segment SET upto = upto - 1`), "does not match them"},
		{"another digest", sql(`UPDATE audit_segment SET digest = 'ab' WHERE first = 0`), "differs from the one"},
		{"an entry that is back", sql(`INSERT INTO audit_leaf (idx, at, source, commitment, project, actor_id, actor_name, action, object, outcome) VALUES (5, 0, 'x', x'00', '', '', '', '', '', '')`), "entry"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, m := newPlace(t), &memory{}
			p.objects = m
			log := p.log(t)
			p.varied(t, 0, 600)
			runOnce(t, log)
			archiveAll(t, log)
			runOnce(t, log)
			tt.do(t, p, m)
			log = p.log(t)
			if err := sweepAll(t, log, 100); !audit.Contradicted(err) || !strings.Contains(err.Error(), tt.finding) {
				t.Errorf("%v", err)
			}
			p.refuses(t)
		})
	}
}

// TestEachVerificationReadsTheObjects: an object that goes while the server runs is found by
// the next verification, also when the segment is in memory.
func TestEachVerificationReadsTheObjects(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	archiveAll(t, log)
	runOnce(t, log)
	if err := sweepAll(t, log, 100); err != nil {
		t.Fatal(err)
	}
	clear(m.held)
	if err := sweepAll(t, log, 100); !audit.Contradicted(err) || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("%v", err)
	}
}

// TestAnArchiveThatIsAway: a store that does not answer is no finding.
func TestAnArchiveThatIsAway(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	archiveAll(t, log)
	log = p.log(t)
	m.get = func(string) error { return fault.New(fault.Unavailable, "the bucket does not answer") }
	_, _, err := p.service(log).List(t.Context(), audit.Filter{Project: "wind"}, 1000, "")
	wantFault(t, err, fault.Unavailable, "does not answer")
	if page, next, err := p.service(log).List(t.Context(), audit.Filter{}, 50, ""); err != nil || len(page) != 50 || next == "" {
		t.Errorf("the newest entries, which are in the database: %d, %v", len(page), err)
	}
	if err := sweepAll(t, log, 100); err == nil || audit.Contradicted(err) {
		t.Error(err)
	}
	m.get = nil
	if err := sweepAll(t, log, 100); err != nil {
		t.Error(err)
	}
	p.change(t, audit.Entry{Action: "dataset.query"})
	runOnce(t, log)
}

// TestAChangedEntryIsNotArchived: it stays where it is, as evidence.
func TestAChangedEntryIsNotArchived(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	p.sql(t, "UPDATE audit_leaf SET record = REPLACE(record, 'usr_', 'usx_') WHERE idx = 301")
	if n, err := log.Archive(t.Context(), far(), aPass()); n != 0 || !audit.Contradicted(err) || len(m.keys()) != 0 {
		t.Errorf("archived %d, %v", n, err)
	}
}

// TestSearchesReadFewSegments: a search ends after some segments and goes on with the next
// page, and reads none that cannot have what it looks for.
func TestSearchesReadFewSegments(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	var at []time.Time
	for i := range 12 {
		p.varied(t, i*256, 254)
		p.change(t, audit.Entry{Project: fmt.Sprint("only", i), Action: "run.create", Object: "needle"})
		runOnce(t, log)
		at = append(at, time.Now())
		archiveAll(t, log)
		runOnce(t, log)
	}
	if len(m.keys()) != 12 {
		t.Fatalf("%d segments", len(m.keys()))
	}
	reads := func(f audit.Filter) (found, pages, read int) {
		svc := p.service(p.log(t))
		m.reads = 0
		for token := ""; ; pages++ {
			page, next, err := svc.List(t.Context(), f, 100, token)
			if err != nil {
				t.Fatal(err)
			}
			found += len(page)
			if token = next; token == "" {
				return found, pages + 1, m.reads
			}
		}
	}
	for _, tt := range []struct {
		f                  audit.Filter
		found, pages, most int
	}{
		{audit.Filter{Project: "only3"}, 1, 1, 1},
		{audit.Filter{Actor: "mallory"}, 0, 1, 0},
		{audit.Filter{Action: "run.*"}, 12, 2, 12},
		{audit.Filter{Object: "needle"}, 12, 2, 12},
		{audit.Filter{Text: "is in no entry"}, 0, 2, 12},
		{audit.Filter{Object: "needle", Since: at[9]}, 2, 1, 3},
	} {
		if found, pages, read := reads(tt.f); found != tt.found || pages != tt.pages || read > tt.most {
			t.Errorf("%+v: found %d on %d pages by %d reads", tt.f, found, pages, read)
		}
	}
	// The newest page reads what it shows.
	m.reads = 0
	if _, _, err := p.service(p.log(t)).List(t.Context(), audit.Filter{}, 100, ""); err != nil || m.reads > 1 {
		t.Errorf("%d reads, %v", m.reads, err)
	}
}

// TestSearchesLookAtFewRecords: a search ends after so many records of segments, also when it
// reads none of them, and goes on with the next page.
func TestSearchesLookAtFewRecords(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.objects = &memory{}
	log := p.log(t)
	svc := p.service(log)
	p.varied(t, 0, 1600)
	runOnce(t, log)
	want := listPages(t, svc, audit.Filter{Project: "wind"}, 1000)
	p.sql(t, `INSERT INTO audit_segment (object, state, made, first, upto, digest, bytes, since, until, summary)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)
		SELECT 'audit/' || i, 'archived', 0, i, i + 1, '', 0, 0, 0, '{}' FROM n`)
	first, next, err := svc.List(t.Context(), audit.Filter{Project: "wind"}, 1000, "")
	if err != nil || next == "" || len(first) == 0 || len(first) == len(want) {
		t.Fatalf("%d of %d entries, next %q, %v", len(first), len(want), next, err)
	}
	rest, next, err := svc.List(t.Context(), audit.Filter{Project: "wind"}, 1000, next)
	if err != nil || next != "" || !reflect.DeepEqual(append(first, rest...), want) {
		t.Errorf("%d and %d of %d entries, next %q, %v", len(first), len(rest), len(want), next, err)
	}
}

// TestReadersDuringAnErasure: who is about to read a segment whose entries come back to the
// database, and whose object goes, reads those.
func TestReadersDuringAnErasure(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	archiveAll(t, log)
	runOnce(t, log)
	reader := p.service(p.log(t))
	var once sync.Once
	m.get = func(string) error {
		once.Do(func() {
			m.get = nil
			eraseBoth(t, p.service(log), []int64{9}, "request 2026-18")
		})
		return nil
	}
	found := 0
	for _, r := range listPages(t, reader, audit.Filter{}, 1000) {
		if r.Damaged != "" {
			t.Errorf("%+v", r)
		}
		found++
	}
	if found < 600 {
		t.Errorf("%d entries", found)
	}
}

// TestAcceptReadsTheArchive: an operator may accept a finding of a log of which most is
// archived; an entry whose content is not what was signed is named as lost.
func TestAcceptReadsTheArchive(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 600)
	runOnce(t, log)
	archiveAll(t, log)
	runOnce(t, log)
	p.sql(t, "UPDATE audit_leaf SET record = REPLACE(record, 'usr_', 'usx_') WHERE idx = 590")
	p.sql(t, "UPDATE audit_hash SET hash = (SELECT hash FROM audit_hash WHERE idx = 1) WHERE idx = 9")
	log = p.log(t)
	if ok, err := log.Accept(t.Context(), "disk error"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := sweepAll(t, p.log(t), 100); err != nil {
		t.Fatal(err)
	}
	r, err := audit.Verify(bytes.NewReader(export(t, p.service(log))), audit.VerifyOptions{})
	if err != nil || r.Erased != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	// Without the object nothing can be accepted, and the finding says what helps.
	clear(m.held)
	log = p.log(t)
	if ok, err := log.Accept(t.Context(), "disk error"); ok || !audit.Contradicted(err) || !strings.Contains(fault.HintOf(err), "backup of the object store") {
		t.Errorf("%v, %v: %s", ok, err, fault.HintOf(err))
	}
}

// TestArchiveSizes is how many bytes an archived entry takes.
func TestArchiveSizes(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), &memory{}
	p.objects = m
	log := p.log(t)
	p.varied(t, 0, 2048)
	runOnce(t, log)
	n := archiveAll(t, log)
	total := int64(0)
	for _, b := range m.held {
		total += int64(len(b))
	}
	if total/n > 150 {
		t.Errorf("%d bytes an entry", total/n)
	}
}
