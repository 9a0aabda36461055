package online

import (
	"bytes"
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
