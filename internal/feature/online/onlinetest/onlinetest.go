// Package onlinetest is the suite that every driver of the online feature store
// passes, and a driver in memory for the tests of others.
package onlinetest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// Keys is a ring that derives each key from its scope, and can destroy scopes.
type Keys struct {
	mu        sync.Mutex
	destroyed map[string]bool
}

// DataKey implements online.Keys.
func (k *Keys) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.destroyed[project+"/"+owner] {
		return nil, fault.New(fault.Gone, "the key of %s was destroyed", owner)
	}
	sum := sha256.Sum256([]byte(project + "\x00" + owner + "\x00" + use))
	return sum[:], nil
}

// Destroy makes a scope's keys unavailable.
func (k *Keys) Destroy(project, owner string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.destroyed == nil {
		k.destroyed = map[string]bool{}
	}
	k.destroyed[project+"/"+owner] = true
}

// Memory is a driver in memory. The zero Memory is ready.
type Memory struct {
	mu   sync.RWMutex
	rows map[online.RowKey][]online.Version // newest first
}

var (
	_ online.Driver = (*Memory)(nil)
	_ online.Walked = (*Memory)(nil)
)

// Write implements online.Driver.
func (m *Memory) Write(_ context.Context, versions []online.Version) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows == nil {
		m.rows = map[online.RowKey][]online.Version{}
	}
	for _, v := range versions {
		v.Sealed = bytes.Clone(v.Sealed)
		row := m.rows[v.Row]
		at, found := slices.BinarySearchFunc(row, v.Stamp, func(have online.Version, want online.Stamp) int { return have.Stamp.Compare(want) })
		if found {
			row[at] = v
			continue
		}
		m.rows[v.Row] = slices.Insert(row, at, v)
	}
	return nil
}

// Scan implements online.Driver.
func (m *Memory) Scan(ctx context.Context, rows []online.RowKey, from online.Stamp, visit func(int, online.Stamp, []byte) bool) error {
	for i, key := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, v := range m.versions(key) {
			if v.Stamp.Compare(from) >= 0 && !visit(i, v.Stamp, v.Sealed) {
				break
			}
		}
	}
	return nil
}

func (m *Memory) versions(key online.RowKey) []online.Version {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.rows[key])
}

// Tables implements online.Walked.
func (m *Memory) Tables(_ context.Context, after online.TableKey, limit int) (tables []online.TableKey, err error) {
	for _, key := range m.after(nil, online.RowKey{}) {
		t := online.TableKey(key[:len(after)])
		if bytes.Compare(t[:], after[:]) > 0 && !slices.Contains(tables, t) && len(tables) < limit {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// after are the rows of a table after one, in order.
func (m *Memory) after(table []byte, row online.RowKey) (keys []online.RowKey) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for key := range m.rows {
		if bytes.HasPrefix(key[:], table) && bytes.Compare(key[:], row[:]) > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b online.RowKey) int { return bytes.Compare(a[:], b[:]) })
	return keys
}

// Walk implements online.Walked.
func (m *Memory) Walk(ctx context.Context, table online.TableKey, after online.RowKey, visit func(online.RowKey, online.Stamp, []byte) bool) error {
	for _, key := range m.after(table[:], after) {
		for _, v := range m.versions(key) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if !visit(key, v.Stamp, v.Sealed) {
				return nil
			}
		}
	}
	return nil
}

// Replace implements online.Walked.
func (m *Memory) Replace(_ context.Context, changes []online.Change) (removed int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	find := func(v online.Version) (int, bool) {
		return slices.BinarySearchFunc(m.rows[v.Row], v.Stamp, func(have online.Version, want online.Stamp) int { return have.Stamp.Compare(want) })
	}
	for _, c := range changes {
		at, there := find(c.Was)
		if !there || !bytes.Equal(m.rows[c.Was.Row][at].Sealed, c.Was.Sealed) {
			continue
		}
		removed++
		if m.rows[c.Was.Row] = slices.Delete(slices.Clone(m.rows[c.Was.Row]), at, at+1); len(m.rows[c.Was.Row]) == 0 {
			delete(m.rows, c.Was.Row)
		}
		if c.By == nil {
			continue
		}
		if at, there := find(*c.By); !there {
			m.rows[c.By.Row] = slices.Insert(slices.Clone(m.rows[c.By.Row]), at, *c.By)
		}
	}
	return removed, nil
}

// Drop implements online.Driver.
func (m *Memory) Drop(_ context.Context, table online.TableKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.rows {
		if bytes.HasPrefix(key[:], table[:]) {
			delete(m.rows, key)
		}
	}
	return nil
}

// Remove implements online.Driver.
func (m *Memory) Remove(_ context.Context, rows []online.RowKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range rows {
		delete(m.rows, row)
	}
	return nil
}

// Close implements online.Driver.
func (m *Memory) Close() error { return nil }

// Clock is the time at which the suite's stores are.
var Clock = time.Date(2013, 5, 1, 0, 0, 0, 0, time.UTC)

// Run checks a driver; open gives a fresh one, which Run closes.
func Run(t *testing.T, open func(tb testing.TB) online.Driver) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, online.Driver){
		"NewestWins":     newestWins,
		"TTL":            ttl,
		"Future":         future,
		"Replace":        replace,
		"Drop":           drop,
		"Isolation":      isolation,
		"Destroyed":      destroyed,
		"Moved":          moved,
		"Model":          model,
		"ReadsAndWrites": readsAndWrites,
		"Ended":          ended,
		"Span":           span,
		"DropLast":       dropLast,
		"Forget":         forget,
		"Positions":      positions,
		"Fence":          fence,
		"FirstFormat":    firstFormat,
		"Subkeys":        subkeys,
		"SubkeyReads":    subkeyReads,
		"SubkeyPosition": subkeyPosition,
		"Sweep":          sweep,
		"SweepKeeps":     sweepKeeps,
		"Orphans":        orphans,
		"Types":          types,
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			check(t, d)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

var weather = online.Table{Project: "nyc", View: "weather", Version: 1}

func newStore(d online.Driver) *online.Store {
	return online.New(d, &Keys{}, online.Options{Now: func() time.Time { return Clock }})
}

func key(s string) []byte { return value.AppendKey(nil, value.OfString(s)) }

// row is a version whose content is its text. Times are microseconds before
// Clock.
func row(entity string, event, created int64, text string) online.Row {
	r := online.Row{Key: key(entity), Event: Clock.UnixMicro() - event, Created: online.NoCreated, Packed: []byte(text)}
	if created >= 0 {
		r.Created = Clock.UnixMicro() - created
	}
	return r
}

func write(tb testing.TB, s *online.Store, table online.Table, rows ...online.Row) {
	tb.Helper()
	if err := s.Write(context.Background(), table, rows); err != nil {
		tb.Fatal(err)
	}
}

// ask reads entities at a number of microseconds before Clock: each answer is
// "status text".
func ask(tb testing.TB, s *online.Store, table online.Table, ttl time.Duration, before int64, entities ...string) []string {
	tb.Helper()
	q := online.Query{At: Clock.Add(-time.Duration(before) * time.Microsecond), TTL: ttl}
	for _, e := range entities {
		q.Keys = append(q.Keys, key(e))
	}
	answers, err := s.Read(context.Background(), table, q)
	if err != nil {
		tb.Fatal(err)
	}
	out := make([]string, len(answers))
	for i, a := range answers {
		out[i] = string(a.Status)
		if len(a.Packed) > 0 {
			out[i] += " " + string(a.Packed)
		}
	}
	return out
}

func expect(tb testing.TB, got []string, want ...string) {
	tb.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		tb.Errorf("answers (-want +got):\n%s", diff)
	}
}

func newestWins(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("EWR", 10, -1, "new"))
	write(t, s, weather, row("EWR", 20, -1, "late"), row("JFK", 5, 5, "first"), row("JFK", 5, 2, "corrected"))
	expect(t, ask(t, s, weather, 0, 0, "JFK", "EWR", "LGA", "EWR"), "PRESENT corrected", "PRESENT new", "NOT_FOUND", "PRESENT new")
	expect(t, ask(t, s, weather, 0, 15, "EWR", "JFK"), "PRESENT late", "NOT_FOUND")
	// The correction was made after that time.
	expect(t, ask(t, s, weather, 0, 3, "JFK"), "PRESENT first")
	expect(t, ask(t, s, weather, 0, 2, "JFK"), "PRESENT corrected")
	if none := ask(t, s, weather, 0, 0); len(none) != 0 {
		t.Errorf("asked for nothing: %v", none)
	}
	answers, err := s.Read(t.Context(), weather, online.Query{Keys: [][]byte{nil, key("EWR")}, At: Clock})
	if err != nil || answers[0].Status != online.NotFound || !answers[1].Event.Equal(Clock.Add(-10*time.Microsecond)) {
		t.Errorf("answers %v, error %v", answers, err)
	}
}

// types keeps rows of every type, and those of the first format as they were.
func types(t *testing.T, d online.Driver) {
	t.Helper()
	vector, err := value.OfFloats(value.VectorOf(384), make([]float32, 384))
	if err != nil {
		t.Fatal(err)
	}
	words, err := value.OfList(value.ListOf(value.String, 4), []value.Value{value.OfString("a"), value.OfString("")})
	if err != nil {
		t.Fatal(err)
	}
	first := []value.Value{value.OfInt(-1), value.OfFloat(1.5), value.OfString("EWR"), value.OfBool(true), value.OfMicros(1), value.Null(value.String)}
	rows := map[string][]value.Value{
		"first": first,
		"later": append(slices.Clone(first), value.OfInt32(-1<<31), value.OfFloat32(0.1), vector, words, value.Null(value.VectorOf(3))),
	}
	s := newStore(d)
	for entity, values := range rows {
		packed, err := value.AppendRow(nil, values)
		if err != nil {
			t.Fatal(err)
		}
		write(t, s, weather, row(entity, 10, -1, string(packed)))
	}
	for entity, want := range rows {
		answers, err := s.Read(t.Context(), weather, online.Query{Keys: [][]byte{key(entity)}, At: Clock})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]value.Value, len(want))
		if err := value.DecodeRow(answers[0].Packed, value.Types(want), got); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, got, gocmp.Comparer(value.Value.Equal)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", entity, diff)
		}
	}
	answers, err := s.Read(t.Context(), weather, online.Query{Keys: [][]byte{key("first")}, At: Clock})
	const was = "010620" + "ffffffffffffffff" + "000000000000f83f" + "03455752" + "01" + "0100000000000000"
	if err != nil || hex.EncodeToString(answers[0].Packed) != was {
		t.Errorf("a row of the first format is %x, %v", answers[0].Packed, err)
	}
}

func ttl(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("EWR", 10, -1, "x"))
	expect(t, ask(t, s, weather, 10*time.Microsecond, 0, "EWR"), "PRESENT x")
	expect(t, ask(t, s, weather, 9*time.Microsecond, 0, "EWR"), "OUTSIDE_MAX_AGE")
	expect(t, ask(t, s, weather, time.Microsecond, 10, "EWR"), "PRESENT x")
	expect(t, ask(t, s, weather, time.Microsecond, 11, "EWR"), "NOT_FOUND")
	expect(t, ask(t, s, weather, 1<<62, 0, "EWR"), "PRESENT x")
}

func future(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	ahead := func(by time.Duration) online.Row { return row("EWR", -by.Microseconds(), -1, "ahead") }
	err := s.Write(t.Context(), weather, []online.Row{row("JFK", 1, -1, "x"), ahead(5*time.Minute + time.Microsecond)})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("far future: %v, want invalid", err)
	}
	expect(t, ask(t, s, weather, 0, 0, "EWR", "JFK"), "NOT_FOUND", "NOT_FOUND")
	write(t, s, weather, ahead(5*time.Minute), row("EWR", 1, -1, "now"))
	expect(t, ask(t, s, weather, 0, 0, "EWR"), "PRESENT now")
}

// span reads all versions of a time, newest first, and no other entity's.
func span(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("EWR", 10, -1, "a"), row("EWR", 10, 5, "b"), row("EWR", 20, -1, "c"), row("EWR", 30, 1, "d"), row("EWS", 20, -1, "x"))
	read := func(from, to int64, most int) (out []string) {
		r, err := s.Reader(t.Context(), weather)
		if err != nil {
			t.Fatal(err)
		}
		now := Clock.UnixMicro()
		err = r.Span(t.Context(), key("EWR"), now-from, now-to, func(event, created int64, packed []byte) (bool, error) {
			out = append(out, fmt.Sprintf("%d %t %s", now-event, created == online.NoCreated, packed))
			return len(out) < most, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	expect(t, read(30, 0, 9), "10 false b", "10 true a", "20 true c", "30 false d")
	expect(t, read(29, 11, 9), "20 true c")
	expect(t, read(20, 10, 2), "10 false b", "10 true a")
	expect(t, read(9, 0, 9))
	r, err := s.Reader(t.Context(), weather)
	if err != nil {
		t.Fatal(err)
	}
	stop := fault.New(fault.Conflict, "stop")
	err = r.Span(t.Context(), key("EWR"), online.NoCreated, Clock.UnixMicro(), func(int64, int64, []byte) (bool, error) { return true, stop })
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("error of visit: %v", err)
	}
}

func replace(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	for _, text := range []string{"a", "b", "b"} {
		write(t, s, weather, row("EWR", 1, 1, text))
	}
	expect(t, ask(t, s, weather, 0, 0, "EWR"), "PRESENT b")
}

func drop(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	second, third := weather, weather
	second.Version, third.Generation = 2, "fog_2"
	write(t, s, weather, row("EWR", 1, -1, "one"), row("JFK", 1, -1, "one"))
	write(t, s, second, row("EWR", 1, -1, "two"))
	write(t, s, third, row("EWR", 1, -1, "three"))
	if err := s.Drop(t.Context(), weather); err != nil {
		t.Fatal(err)
	}
	expect(t, ask(t, s, weather, 0, 0, "EWR", "JFK"), "NOT_FOUND", "NOT_FOUND")
	expect(t, ask(t, s, second, 0, 0, "EWR"), "PRESENT two")
	expect(t, ask(t, s, third, 0, 0, "EWR", "JFK"), "PRESENT three", "NOT_FOUND")
}

func dropLast(t *testing.T, d online.Driver) {
	t.Helper()
	// The table behind which there is none.
	last := online.TableKey{255, 255, 255, 255, 255, 255, 255, 255}
	var r online.RowKey
	for i := range r {
		r[i] = 255
	}
	other := r
	other[0] = 7
	oldest := online.Stamp{Event: online.NoCreated, Created: online.NoCreated}
	versions := []online.Version{{Row: r, Stamp: oldest, Sealed: []byte("x")}, {Row: other, Sealed: []byte("y")}}
	if err := d.Write(t.Context(), versions); err != nil {
		t.Fatal(err)
	}
	if err := d.Drop(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	var seen []int
	err := d.Scan(t.Context(), []online.RowKey{other, r}, online.Stamp{Event: 1}, func(i int, _ online.Stamp, _ []byte) bool {
		seen = append(seen, i)
		return true
	})
	if err != nil || !slices.Equal(seen, []int{0}) {
		t.Errorf("rows left %v, error %v, want only the other table's", seen, err)
	}
}

// forget: an entity goes with all its versions, from that table alone, and may come
// again later.
func forget(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	second := weather
	second.Version = 2
	for event := range int64(3) {
		write(t, s, weather, row("EWR", event, -1, "old"), row("JFK", event, -1, "stays"), row("LGA", event, -1, "old"))
	}
	write(t, s, second, row("EWR", 1, -1, "other"))
	rows, err := s.Rows(t.Context(), weather, [][]byte{key("LGA"), key("EWR"), key("LGA"), key("ORD")})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Count(t.Context(), rows); err != nil || n != 6 {
		t.Errorf("%d versions are counted of 6, error %v", n, err)
	}
	for range 2 { // the second time there is nothing
		if err := s.Forget(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Count(t.Context(), rows); err != nil || n != 0 {
		t.Errorf("%d versions are left, error %v", n, err)
	}
	expect(t, ask(t, s, weather, 0, 0, "EWR", "JFK", "LGA"), "NOT_FOUND", "PRESENT stays", "NOT_FOUND")
	expect(t, ask(t, s, second, 0, 0, "EWR"), "PRESENT other")
	write(t, s, weather, row("EWR", 1, -1, "again"))
	expect(t, ask(t, s, weather, 0, 0, "EWR"), "PRESENT again")
	if err := s.Drop(t.Context(), weather); err != nil { // whatever lists the rows of a table is whole
		t.Fatal(err)
	}
	expect(t, ask(t, s, weather, 0, 0, "EWR", "JFK"), "NOT_FOUND", "NOT_FOUND")
	if err := s.Forget(t.Context(), nil); err != nil {
		t.Errorf("of nobody: %v", err)
	}
}

// positions are written with their rows, each from the one before.
func positions(t *testing.T, d online.Driver) {
	t.Helper()
	s, other := newStore(d), newStore(d)
	at := func(want int64) {
		t.Helper()
		for _, s := range []*online.Store{s, other} {
			if got, found, err := s.Position(t.Context(), weather); err != nil || found != (want != online.Nowhere) || found && got != want {
				t.Errorf("at %d %t, want %d: %v", got, found, want, err)
			}
		}
	}
	up := func(s *online.Store, from, to int64, rows ...online.Row) error {
		return s.WriteUpTo(t.Context(), weather, rows, from, to)
	}
	stale := func(err error) {
		t.Helper()
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("from an old position: %v, want conflict", err)
		}
	}
	at(online.Nowhere)
	stale(up(s, 3, 4))
	if err := up(s, online.Nowhere, 3); err != nil {
		t.Fatal(err)
	}
	at(3)
	stale(up(other, online.Nowhere, 0))
	if err := up(other, 3, 5, row("EWR", 10, -1, "five"), row("JFK", 10, -1, "five")); err != nil {
		t.Fatal(err)
	}
	at(5)
	stale(up(s, 3, 4, row("EWR", 10, -1, "four"), row("LGA", 10, -1, "four")))
	at(5)
	expect(t, ask(t, s, weather, 0, 0, "EWR", "JFK", "LGA"), "PRESENT five", "PRESENT five", "NOT_FOUND")
	if err := up(s, 5, 6); err != nil {
		t.Fatal(err)
	}
	at(6)
	// What a driver without a fence was about to write is finished once, by whichever.
	cut := newStore(&onlyFirst{Driver: d})
	if err := cut.WriteUpTo(t.Context(), weather, []online.Row{row("EWR", 5, -1, "eight")}, 6, 8); err == nil {
		t.Fatal("the write was not cut short")
	}
	at(8)
	if err := up(s, 8, 9, row("EWR", 5, -1, "nine")); err != nil {
		t.Fatal(err)
	}
	at(9)
	expect(t, ask(t, s, weather, 0, 0, "EWR"), "PRESENT nine")
}

// onlyFirst is a driver without a fence that is killed after its first write.
type onlyFirst struct {
	online.Driver
	written bool
}

func (d *onlyFirst) Write(ctx context.Context, versions []online.Version) error {
	if d.written {
		return errors.New("killed")
	}
	d.written = true
	return d.Driver.Write(ctx, versions)
}

// fence lets many bring a table forward at the same moment: of those who begin at the
// same position one comes through, and of the others no row is there.
func fence(t *testing.T, d online.Driver) {
	t.Helper()
	if f, ok := d.(online.Fenced); !ok {
		t.Skip("the driver has no fence")
	} else if _, err := f.WriteIf(t.Context(), online.Version{Stamp: online.Stamp{Event: 9}}, nil); fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	const writers, rounds = 4, 25
	var all sync.WaitGroup
	won := make([]int, writers)
	begin := newStore(d)
	if err := begin.WriteUpTo(t.Context(), weather, nil, online.Nowhere, 0); err != nil {
		t.Fatal(err)
	}
	for i := range writers {
		all.Go(func() {
			s := newStore(d)
			for {
				from, _, err := s.Position(t.Context(), weather)
				if err != nil {
					t.Error(err)
					return
				}
				if from >= rounds {
					return
				}
				// A row that tells who came from where, and one that all replace.
				text := strconv.Itoa(i)
				err = s.WriteUpTo(t.Context(), weather, []online.Row{row(fmt.Sprint("by", i), 1000-from, -1, text), row("last", 1000-from, -1, text)}, from, from+1)
				switch {
				case err == nil:
					won[i]++
				case !fault.Is(err, fault.Conflict):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	total := 0
	for i := range writers {
		rows, err := begin.Rows(t.Context(), weather, [][]byte{key(fmt.Sprint("by", i))})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := begin.Count(t.Context(), rows); err != nil || n != int64(won[i]) {
			t.Errorf("writer %d came through %d times and has %d rows: %v", i, won[i], n, err)
		}
		total += won[i]
	}
	if total != rounds {
		t.Errorf("%d came through, for %d positions", total, rounds)
	}
}

func isolation(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("EWR", 1, -1, "x"))
	for _, other := range []online.Table{
		{Project: "la", View: "weather", Version: 1},
		{Project: "nyc", View: "planes", Version: 1},
		{Project: "nyc", View: "weather", Version: 2},
		{Project: "nyc", View: "weather", Version: 1, Generation: "fog_1"},
	} {
		expect(t, ask(t, s, other, 0, 0, "EWR"), "NOT_FOUND")
	}
}

func destroyed(t *testing.T, d online.Driver) {
	t.Helper()
	keys := &Keys{}
	s := online.New(d, keys, online.Options{Now: func() time.Time { return Clock }})
	write(t, s, weather, row("EWR", 1, -1, "x"))
	expect(t, ask(t, s, weather, 0, 0, "EWR"), "PRESENT x")
	keys.Destroy("nyc", "feature/weather")
	if _, err := s.Read(t.Context(), weather, online.Query{Keys: [][]byte{key("EWR")}, At: Clock}); !fault.Is(err, fault.Gone) {
		t.Errorf("read: %v, want gone", err)
	}
	if err := s.Write(t.Context(), weather, []online.Row{row("EWR", 1, -1, "x")}); !fault.Is(err, fault.Gone) {
		t.Errorf("write: %v, want gone", err)
	}
}

// spy remembers what was written.
type spy struct {
	online.Driver
	versions []online.Version
}

func (s *spy) Write(ctx context.Context, versions []online.Version) error {
	s.versions = append(s.versions, versions...)
	return s.Driver.Write(ctx, versions)
}

// A value copied to another entity or time, by somebody who can write to the
// database, does not open.
func moved(t *testing.T, d online.Driver) {
	t.Helper()
	seen := &spy{Driver: d}
	s := newStore(seen)
	write(t, s, weather, row("EWR", 2, -1, "rich"), row("JFK", 2, -1, "poor"))
	if bytes.Contains(seen.versions[0].Sealed, []byte("rich")) {
		t.Error("a value is stored as it is")
	}
	rich, poor := seen.versions[0], seen.versions[1]
	for name, forged := range map[string]online.Version{
		"entity": {Row: poor.Row, Stamp: poor.Stamp, Sealed: rich.Sealed},
		"time":   {Row: poor.Row, Stamp: online.Stamp{Event: poor.Stamp.Event + 1, Created: poor.Stamp.Created}, Sealed: poor.Sealed},
		"cut":    {Row: poor.Row, Stamp: poor.Stamp, Sealed: poor.Sealed[:5]},
	} {
		if err := d.Write(t.Context(), []online.Version{forged}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(t.Context(), weather, online.Query{Keys: [][]byte{key("EWR"), key("JFK")}, At: Clock}); !fault.Is(err, fault.Internal) {
			t.Errorf("%s: %v, want internal", name, err)
		}
	}
}

// model compares with a list of rows under random writes and reads.
func model(t *testing.T, d online.Driver) {
	t.Helper()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		table := online.Table{Project: "nyc", View: "model", Version: round}
		s := newStore(d)
		var rows []online.Row
		var texts []string
		for n := range rapid.IntRange(0, 20).Draw(rt, "rows") {
			r := row(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "entity"), int64(rapid.IntRange(0, 6).Draw(rt, "event")), int64(rapid.IntRange(-1, 6).Draw(rt, "created")), fmt.Sprint("r", n))
			rows = append(rows, r)
			texts = append(texts, string(r.Key))
		}
		for from := 0; from < len(rows); {
			to := from + rapid.IntRange(1, 5).Draw(rt, "batch")
			write(t, s, table, rows[from:min(to, len(rows))]...)
			from = to
		}
		before := int64(rapid.IntRange(-1, 7).Draw(rt, "at"))
		limit := time.Duration(rapid.IntRange(0, 4).Draw(rt, "ttl")) * time.Microsecond
		var want []string
		entities := []string{"c", "a", "b", "a", "none"}
		for _, e := range entities {
			at := Clock.UnixMicro() - before
			best := -1
			for i, r := range rows {
				if !bytes.Equal(r.Key, key(e)) || r.Event > at || r.Created > at {
					continue
				}
				if best < 0 || cmp.Or(cmp.Compare(r.Event, rows[best].Event), cmp.Compare(r.Created, rows[best].Created)) >= 0 {
					best = i
				}
			}
			switch {
			case best < 0:
				want = append(want, "NOT_FOUND")
			case limit > 0 && at-rows[best].Event > limit.Microseconds():
				want = append(want, "OUTSIDE_MAX_AGE")
			default:
				want = append(want, "PRESENT "+string(rows[best].Packed))
			}
		}
		if diff := gocmp.Diff(want, ask(t, s, table, limit, before, entities...)); diff != "" {
			rt.Fatalf("answers for %q (-want +got):\n%s", texts, diff)
		}
	})
}

// readsAndWrites reads while rows are written: each read sees whole rows.
func readsAndWrites(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("a", 1000, -1, "v1000"), row("b", 1000, -1, "v1000"))
	var both sync.WaitGroup
	both.Go(func() {
		for n := int64(999); n > 900; n-- {
			text := fmt.Sprint("v", n)
			if err := s.Write(context.Background(), weather, []online.Row{row("a", n, -1, text), row("b", n, -1, text)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	last := "v1000"
	for range 200 {
		got := ask(t, s, weather, 0, 0, "a")[0]
		text, ok := bytes.CutPrefix([]byte(got), []byte("PRESENT "))
		if !ok || len(last) == len(text) && string(text) > last {
			t.Fatalf("read %q after %q", got, last)
		}
		last = string(text)
	}
	both.Wait()
	expect(t, ask(t, s, weather, 0, 0, "a", "b"), "PRESENT v901", "PRESENT v901")
}

func ended(t *testing.T, d online.Driver) {
	t.Helper()
	s := newStore(d)
	write(t, s, weather, row("EWR", 1, -1, "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Read(ctx, weather, online.Query{Keys: [][]byte{key("EWR")}, At: Clock}); err == nil {
		t.Error("a read with an ended context succeeds")
	}
}
