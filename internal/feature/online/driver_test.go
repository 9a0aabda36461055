package online

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Encoded stamps sort as Compare says and come back as they were.
func TestStampBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) Stamp {
			return Stamp{rapid.Int64().Draw(t, "event"), rapid.Int64().Draw(t, "created")}
		})
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if StampOf(a.Append(nil)) != a {
			t.Fatalf("%v comes back as %v", a, StampOf(a.Append(nil)))
		}
		if got := bytes.Compare(a.Append(nil), b.Append(nil)); got != a.Compare(b) {
			t.Fatalf("bytes of %v and %v compare %d, Compare says %d", a, b, got, a.Compare(b))
		}
	})
}

// ring gives one key for everything.
type ring struct{ key []byte }

func (r *ring) DataKey(context.Context, string, string, string) ([]byte, error) {
	return slices.Clone(r.key), nil
}

// TestSealersFollowTheRing: a sealer that was used before is not used under another key
// of the ring, and not by two at once.
func TestSealersFollowTheRing(t *testing.T) {
	keys := &ring{bytes.Repeat([]byte{1}, 32)}
	s := New(nil, keys, Options{})
	take := func() *sealer {
		t.Helper()
		sl, err := s.sealer(t.Context(), Table{Project: "nyc", View: "weather", Version: 1}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return sl
	}
	first, second := take(), take()
	if first == second {
		t.Fatal("one sealer is given out twice")
	}
	row := first.row([]byte("EWR"))
	if second.row([]byte("EWR")) != row {
		t.Error("the same keys give other names")
	}
	s.leave(first)
	if take() != first {
		t.Error("an idle sealer is not used")
	}
	s.leave(first)
	keys.key = bytes.Repeat([]byte{2}, 32)
	other := take()
	if other == first || other.row([]byte("EWR")) == row {
		t.Error("a sealer is used under another key")
	}
	s.leave(second) // of the former key
	for range 3 {
		if sl := take(); sl == second || sl.row([]byte("EWR")) == row {
			t.Error("a sealer of the former key comes back")
		}
	}
}
