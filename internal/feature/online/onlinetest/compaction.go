package onlinetest

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
)

// small is a store whose steps are small.
func small(d online.Driver, step int) *online.Store {
	return online.New(d, &Keys{}, online.Options{Now: func() time.Time { return Clock }, Step: step})
}

func walked(t *testing.T, d online.Driver) online.Walked {
	t.Helper()
	w, ok := d.(online.Walked)
	if !ok {
		t.Skip("the driver's rows cannot be gone through")
	}
	return w
}

// under is a table whose rows are written under a subkey, and were under another.
func under(table online.Table, subkey, former int) online.Table {
	table.Subkey, table.Former = subkey, former
	return table
}

// firstFormat reads a row as the first releases wrote it, byte by byte.
func firstFormat(t *testing.T, d online.Driver) {
	t.Helper()
	derive := func(use string) []byte {
		k, err := (&Keys{}).DataKey(t.Context(), "nyc", "feature/weather", "online/"+use+"/v1/fog_1")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sum := func(parts ...[]byte) []byte {
		h := hmac.New(sha256.New, derive("key"))
		for _, p := range parts {
			h.Write(p)
		}
		return h.Sum(nil)
	}
	r := row("EWR", 10, 5, "old")
	v := online.Version{Stamp: online.Stamp{Event: r.Event, Created: r.Created}}
	copy(v.Row[:8], sum([]byte("table")))
	copy(v.Row[8:], sum([]byte("row"), r.Key))
	block, err := aes.NewCipher(derive("value"))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	bound := binary.BigEndian.AppendUint64(bytes.Clone(v.Row[:]), uint64(r.Event))    //nolint:gosec // the bits are meant
	bound = append(binary.BigEndian.AppendUint64(bound, uint64(r.Created)), r.Key...) //nolint:gosec // the bits are meant
	nonce := []byte("twelve bytes")
	v.Sealed = aead.Seal(bytes.Clone(nonce), nonce, r.Packed, bound) //nolint:gosec // of one value in a test
	if err := d.Write(t.Context(), []online.Version{v}); err != nil {
		t.Fatal(err)
	}
	s := newStore(d)
	old := weather
	old.Generation = "fog_1"
	expect(t, ask(t, s, old, 0, 0, "EWR"), "PRESENT old")
	expect(t, ask(t, s, under(old, 1, 0), 0, 0, "EWR"), "PRESENT old")
	expect(t, ask(t, s, under(old, 1, 1), 0, 0, "EWR"), "NOT_FOUND")
	write(t, s, under(old, 1, 0), row("EWR", 5, 5, "new"), row("JFK", 5, -1, "new"))
	expect(t, ask(t, s, under(old, 1, 0), 0, 0, "EWR", "JFK"), "PRESENT new", "PRESENT new")
	expect(t, ask(t, s, under(old, 1, 0), 0, 6, "EWR", "JFK"), "NOT_FOUND", "NOT_FOUND") // not known then
	if _, ok := d.(online.Walked); !ok {
		return
	}
	// It does not say whose it is, so that it stays where it is.
	step, stays, err := s.Move(t.Context(), under(old, 1, 0), online.Mark{})
	if err != nil || !stays || !step.Done || step.Changed != 0 {
		t.Errorf("%+v, stays %t, error %v", step, stays, err)
	}
	expect(t, ask(t, s, under(old, 1, 0), 0, 0, "EWR"), "PRESENT new")
	rows, err := s.Rows(t.Context(), under(old, 1, 0), [][]byte{r.Key})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	expect(t, ask(t, s, under(old, 1, 0), 0, 0, "EWR"), "NOT_FOUND")
	if _, stays, err := s.Move(t.Context(), under(old, 1, 0), online.Mark{}); err != nil || stays {
		t.Errorf("when it is gone: stays %t, error %v", stays, err)
	}
}

// span lists the versions of an entity.
func spanOf(tb testing.TB, s *online.Store, table online.Table, entity string) (out []string) {
	tb.Helper()
	r, err := s.Reader(context.Background(), table)
	if err != nil {
		tb.Fatal(err)
	}
	err = r.Span(context.Background(), key(entity), math.MinInt64, math.MaxInt64, func(event, created int64, packed []byte) (bool, error) {
		out = append(out, fmt.Sprint(event, created, string(packed)))
		return true, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// subkeys compares a table whose rows are moved from subkey to subkey, step by step and
// while others are written, with one whose rows stay.
func subkeys(t *testing.T, d online.Driver) {
	t.Helper()
	walked(t, d)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		s := small(d, rapid.IntRange(1, 7).Draw(rt, "step"))
		stays := online.Table{Project: "nyc", View: "stays", Version: round, Subkey: 1, Former: 1}
		moves := online.Table{Project: "nyc", View: "moves", Version: round, Subkey: 1, Former: 1}
		entities := []string{"a", "b", "c", "none"}
		written := 0
		var at online.Mark
		for range rapid.IntRange(1, 25).Draw(rt, "acts") {
			switch rapid.SampledFrom([]string{"write", "write", "many", "rotate", "move", "move", "forget"}).Draw(rt, "act") {
			case "many": // more than a page of Span
				for n := range int64(70) {
					r := row("a", n, -1, fmt.Sprint("m", n))
					write(t, s, stays, r)
					write(t, s, moves, r)
				}
			case "write":
				written++
				r := row(rapid.SampledFrom(entities[:3]).Draw(rt, "entity"), int64(rapid.IntRange(0, 6).Draw(rt, "event")), int64(rapid.IntRange(-1, 3).Draw(rt, "created")), fmt.Sprint("r", written))
				write(t, s, stays, r)
				write(t, s, moves, r)
			case "rotate":
				if moves.Former == moves.Subkey {
					moves.Subkey++
					at = online.Mark{}
				}
			case "move":
				if moves.Former == moves.Subkey {
					continue
				}
				step, _, err := s.Move(t.Context(), moves, at)
				if err != nil {
					rt.Fatal(err)
				}
				if at = step.Next; step.Done && at.IsZero() { // it began at the beginning
					rt.Fatal("a step that is done has no end")
				}
				if step.Done {
					if step, _, err = s.Move(t.Context(), moves, online.Mark{}); err != nil {
						rt.Fatal(err)
					}
					if at = (online.Mark{}); step.Done && step.Looked == 0 {
						moves.Former = moves.Subkey
					}
				}
			case "forget":
				for _, table := range []online.Table{stays, moves} {
					rows, err := s.Rows(t.Context(), table, [][]byte{key("b")})
					if err == nil {
						err = s.Forget(t.Context(), rows)
					}
					if err != nil {
						rt.Fatal(err)
					}
				}
			}
			before := int64(rapid.IntRange(-1, 7).Draw(rt, "at"))
			if diff := gocmp.Diff(ask(t, s, stays, 0, before, entities...), ask(t, s, moves, 0, before, entities...)); diff != "" {
				rt.Fatalf("answers (-stays +moves):\n%s", diff)
			}
			for _, e := range entities {
				if diff := gocmp.Diff(spanOf(t, s, stays, e), spanOf(t, s, moves, e)); diff != "" {
					rt.Fatalf("versions of %s (-stays +moves):\n%s", e, diff)
				}
			}
		}
		// What is moved is nowhere else.
		if moves.Former == moves.Subkey {
			for subkey := 1; subkey < moves.Subkey; subkey++ {
				for _, e := range entities {
					if left := spanOf(t, s, under(moves, subkey, subkey), e); len(left) > 0 {
						rt.Fatalf("%s has %v under subkey %d of %d", e, left, subkey, moves.Subkey)
					}
				}
			}
		}
	})
}

// subkeyReads reads while rows are moved: none is missed at any moment.
func subkeyReads(t *testing.T, d online.Driver) {
	t.Helper()
	walked(t, d)
	s := small(d, 3)
	first, both := under(weather, 1, 1), under(weather, 2, 1)
	var entities []string
	for n := range 40 {
		entities = append(entities, fmt.Sprint("e", n))
		write(t, s, first, row(entities[n], 10, -1, "x"), row(entities[n], 20, -1, "y"))
	}
	ended := make(chan struct{})
	var all sync.WaitGroup
	for _, look := range []func() bool{
		func() bool {
			for _, a := range ask(t, s, both, 0, 0, entities...) {
				if a != "PRESENT x" {
					t.Errorf("answer %q while rows are moved", a)
					return false
				}
			}
			return true
		},
		func() bool {
			for _, e := range entities {
				if got := spanOf(t, s, both, e); len(got) != 2 {
					t.Errorf("%d versions while rows are moved", len(got))
					return false
				}
			}
			return true
		},
	} {
		all.Go(func() {
			for look() {
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	for at := (online.Mark{}); ; {
		step, _, err := s.Move(t.Context(), both, at)
		if err != nil {
			t.Error(err)
			break
		}
		if at = step.Next; step.Done {
			break
		}
	}
	close(ended)
	all.Wait()
	for _, a := range ask(t, s, under(weather, 2, 2), 0, 0, entities...) {
		if a != "PRESENT x" {
			t.Errorf("answer %q when rows are moved", a)
		}
	}
	for _, a := range ask(t, s, first, 0, 0, entities...) {
		if a != "NOT_FOUND" {
			t.Errorf("answer %q under the former subkey", a)
		}
	}
}

// subkeyPosition: how far a table has come is known under the new subkey from its first
// moment, and who does not know of it is kept out.
func subkeyPosition(t *testing.T, d online.Driver) {
	t.Helper()
	walked(t, d)
	s := newStore(d)
	first, both, second := under(weather, 1, 1), under(weather, 2, 1), under(weather, 2, 2)
	at := func(table online.Table, want int64) {
		t.Helper()
		if got, found, err := s.Position(t.Context(), table); err != nil || found != (want != online.Nowhere) || found && got != want {
			t.Errorf("at %d %t, want %d: %v", got, found, want, err)
		}
	}
	up := func(table online.Table, from, to int64) error {
		return s.WriteUpTo(t.Context(), table, []online.Row{row("EWR", 100-to, -1, strconv.FormatInt(to, 10))}, from, to)
	}
	for _, err := range []error{up(first, online.Nowhere, 3), up(both, 3, 4)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	at(both, 4)
	if err := up(both, 3, 5); !fault.Is(err, fault.Conflict) {
		t.Errorf("from an old position: %v", err)
	}
	if _, _, err := s.Move(t.Context(), both, online.Mark{}); err != nil {
		t.Fatal(err)
	}
	at(both, 4)
	at(second, 4)
	at(first, online.Nowhere)
	if err := up(first, 3, 5); !fault.Is(err, fault.Conflict) {
		t.Errorf("by who does not know the subkey: %v", err)
	}
	if err := up(second, 4, 5); err != nil {
		t.Fatal(err)
	}
	if n := len(spanOf(t, s, second, "EWR")); n != 3 {
		t.Errorf("%d versions of 3", n)
	}
}

// sweep removes exactly what answers nobody, whatever is in the rows.
func sweep(t *testing.T, d online.Driver) {
	t.Helper()
	walked(t, d)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		s := small(d, rapid.IntRange(1, 7).Draw(rt, "step"))
		table := online.Table{Project: "nyc", View: "swept", Version: round, Subkey: 2, Former: rapid.IntRange(1, 2).Draw(rt, "former")}
		entities := []string{"a", "b"}
		for n := range rapid.IntRange(0, 30).Draw(rt, "rows") {
			into := table
			if table.Former == 1 && rapid.Bool().Draw(rt, "old") {
				into = under(table, 1, 1)
			}
			write(t, s, into, row(rapid.SampledFrom(entities).Draw(rt, "entity"), int64(rapid.IntRange(0, 20).Draw(rt, "event")), int64(rapid.IntRange(-1, 20).Draw(rt, "created")), strconv.Itoa(n)))
		}
		ago := int64(rapid.IntRange(0, 12).Draw(rt, "since"))
		ttl := time.Duration(rapid.IntRange(0, 8).Draw(rt, "ttl")) * time.Microsecond
		rule := online.Rule{Since: Clock.UnixMicro() - ago, Keep: ttl.Microseconds(), Expires: ttl > 0}
		var want [][]string
		for before := range ago + 1 {
			want = append(want, values(ask(t, s, table, ttl, before, entities...)))
		}
		for at := (online.Mark{}); ; {
			step, err := s.Sweep(t.Context(), table, rule, at)
			if err != nil {
				rt.Fatal(err)
			}
			if at = step.Next; step.Done {
				break
			}
		}
		for before := range ago + 1 {
			if diff := gocmp.Diff(want[before], values(ask(t, s, table, ttl, before, entities...))); diff != "" {
				rt.Fatalf("answers %d ago (-before +after):\n%s", before, diff)
			}
		}
		// Of each subkey, one version is left that all later times see, if not too old, and
		// what became known or happened after.
		for _, subkey := range []int{1, 2} {
			for _, e := range entities {
				known := 0
				r, err := s.Reader(t.Context(), under(table, subkey, subkey))
				if err != nil {
					rt.Fatal(err)
				}
				if subkey < table.Former {
					continue
				}
				err = r.Span(t.Context(), key(e), math.MinInt64, math.MaxInt64, func(event, created int64, _ []byte) (bool, error) {
					if known > 0 || rule.Expires && event < rule.Since-rule.Keep {
						rt.Errorf("%s has a version of %d ago under %d that answers nobody", e, Clock.UnixMicro()-event, subkey)
					}
					if event <= rule.Since && created <= rule.Since {
						known++
					}
					return true, nil
				})
				if err != nil {
					rt.Fatal(err)
				}
			}
		}
	})
}

// values are answers without the difference between a row that is too old and none.
func values(answers []string) []string {
	for i, a := range answers {
		if a == string(online.OutsideMaxAge) {
			answers[i] = string(online.NotFound)
		}
	}
	return answers
}

// sweepKeeps what is no row of an entity, what windows count, and what is written
// meanwhile.
func sweepKeeps(t *testing.T, d online.Driver) {
	t.Helper()
	w := walked(t, d)
	s := newStore(d)
	table := under(weather, 1, 1)
	if err := s.WriteUpTo(t.Context(), table, []online.Row{row("EWR", 50, -1, "a"), row("EWR", 40, -1, "b"), row("EWR", 30, -1, "c"), row("EWR", 5, -1, "d")}, online.Nowhere, 7); err != nil {
		t.Fatal(err)
	}
	rule := online.Rule{Since: Clock.UnixMicro() - 10, Keep: 30, Windows: true}
	step, err := s.Sweep(t.Context(), table, rule, online.Mark{})
	if err != nil || !step.Done || step.Changed != 1 || len(spanOf(t, s, table, "EWR")) != 3 {
		t.Errorf("with windows: %+v, %v, left %v", step, err, spanOf(t, s, table, "EWR"))
	}
	rule.Expires, rule.Keep = true, 29
	if step, err = s.Sweep(t.Context(), table, rule, online.Mark{}); err != nil || step.Changed != 1 {
		t.Errorf("with windows that expire: %+v, %v", step, err)
	}
	if at, found, err := s.Position(t.Context(), table); err != nil || !found || at != 7 {
		t.Errorf("the position is %d %t: %v", at, found, err)
	}
	// A version that is written again is another one.
	var was online.Version
	rows, err := s.Rows(t.Context(), table, [][]byte{key("EWR")})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Walk(t.Context(), online.TableKey(rows[1][:8]), online.RowKey{}, func(row online.RowKey, stamp online.Stamp, sealed []byte) bool {
		was = online.Version{Row: row, Stamp: stamp, Sealed: bytes.Clone(sealed)}
		return row != rows[1]
	}); err != nil || was.Row != rows[1] {
		t.Fatal(was.Row, err)
	}
	write(t, s, table, row("EWR", 5, -1, "d"))
	if n, err := w.Replace(t.Context(), []online.Change{{Was: was}}); err != nil || n != 0 {
		t.Errorf("%d versions are removed that are others by now: %v", n, err)
	}
	expect(t, ask(t, s, table, 0, 0, "EWR"), "PRESENT d")
}

// orphans are the tables that nobody names; what begins meanwhile is none.
func orphans(t *testing.T, d online.Driver) {
	t.Helper()
	walked(t, d)
	s := newStore(d)
	known, lost, late := under(weather, 1, 1), under(weather, 2, 2), under(weather, 3, 3)
	lost.View, late.View = "lost", "late"
	write(t, s, known, row("EWR", 1, -1, "x"))
	write(t, s, lost, row("EWR", 1, -1, "x"), row("JFK", 1, -1, "x"))
	found, err := s.Orphans(t.Context(), func() ([]online.TableKey, error) {
		write(t, s, late, row("EWR", 1, -1, "x"))
		return s.TableKeys(t.Context(), known)
	})
	if err != nil || len(found) != 1 {
		t.Fatalf("%d orphans, error %v", len(found), err)
	}
	if err := s.DropOrphan(t.Context(), found[0]); err != nil {
		t.Fatal(err)
	}
	expect(t, ask(t, s, lost, 0, 0, "EWR", "JFK"), "NOT_FOUND", "NOT_FOUND")
	expect(t, ask(t, s, known, 0, 0, "EWR"), "PRESENT x")
	expect(t, ask(t, s, late, 0, 0, "EWR"), "PRESENT x")
}
