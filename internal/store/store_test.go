package store

import (
	"database/sql/driver"
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

type sqlValue = driver.Value

func stat(tb testing.TB, path string) os.FileMode {
	tb.Helper()
	info, err := os.Stat(path)
	if err != nil {
		tb.Fatal(err)
	}
	return info.Mode().Perm()
}

// TestQueue compares the queue with a plain list of lanes.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		q := newQueue[int]()
		var ring []string // model
		lanes := map[string][]int{}
		next := 0
		name := rapid.SampledFrom([]string{"", "a", "b"})
		drop := func(lane string) {
			if len(lanes[lane]) == 0 {
				ring = slices.DeleteFunc(ring, func(l string) bool { return l == lane })
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"push": func(r *rapid.T) {
				lane := name.Draw(r, "lane")
				next++
				if err := q.push(lane, next); err != nil {
					r.Fatal(err)
				}
				if len(lanes[lane]) == 0 {
					ring = append(ring, lane)
				}
				lanes[lane] = append(lanes[lane], next)
			},
			"pop": func(r *rapid.T) {
				got, ok := q.pop()
				if ok != (len(ring) > 0) {
					r.Fatalf("pop: %v, %d lanes wait", ok, len(ring))
				}
				if !ok {
					return
				}
				lane := ring[0]
				if got != lanes[lane][0] {
					r.Fatalf("popped %d, want %d", got, lanes[lane][0])
				}
				lanes[lane] = lanes[lane][1:]
				ring = append(ring[1:], lane)
				drop(lane)
			},
			"remove": func(r *rapid.T) {
				lane, item := name.Draw(r, "lane"), rapid.IntRange(0, next).Draw(r, "item")
				i := slices.Index(lanes[lane], item)
				if got := q.remove(lane, item); got != (i >= 0) {
					r.Fatalf("remove: %v", got)
				}
				if i >= 0 {
					lanes[lane] = slices.Delete(lanes[lane], i, i+1)
					drop(lane)
				}
			},
			"": func(r *rapid.T) {
				n := 0
				for _, items := range lanes {
					n += len(items)
				}
				if q.length() != n {
					r.Fatalf("length %d, want %d", q.length(), n)
				}
			},
		})
	})
}

func TestQueueBounds(t *testing.T) {
	q := newQueue[int]()
	for i := range maxLaneWaiting {
		if err := q.push("flood", i); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.push("flood", -1); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a full lane: %v", err)
	}
	for i := maxLaneWaiting; i < maxWaiting; i++ {
		if err := q.push(string(rune('a'+i%20)), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.push("other", -1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a full queue: %v", err)
	}
	q.stop()
	if err := q.push("other", -1); !errors.Is(err, errClosed) || q.stopped() {
		t.Errorf("a closed queue: %v, stopped %v", err, q.stopped())
	}
	for range maxWaiting {
		if _, ok := q.pop(); !ok {
			t.Fatal("one that waited lost its turn")
		}
	}
	if !q.stopped() {
		t.Error("closed and empty, but not stopped")
	}
}

func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"0-0", "17-42", "", "-", "1-", "01-2", "+1-2", "9223372036854775808-1", "1-2-3", "1-9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePosition(s)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || p != (Position{}) {
				t.Errorf("%q: %v, %v", s, p, err)
			}
			return
		}
		if p.String() != s || p.Tx > math.MaxInt64 || p.Seq > math.MaxInt64 {
			t.Errorf("%q became %v", s, p)
		}
		var q Position
		if b, err := p.MarshalText(); err != nil || q.UnmarshalText(b) != nil || q != p {
			t.Errorf("%q as text: %v, %v", s, q, err)
		}
	})
}
