package value

import "testing"

func TestParseKey(t *testing.T) {
	parts := []Value{OfString(""), OfInt(-1), OfString("ZÜRICH\x00"), OfBool(true), OfMicros(-5)}
	var b []byte
	for _, p := range parts {
		b = AppendKey(b, p)
	}
	got, err := ParseKey(b)
	if err != nil || len(got) != len(parts) {
		t.Fatalf("%v %v", got, err)
	}
	for i := range parts {
		if !got[i].Equal(parts[i]) {
			t.Errorf("part %d: %v, want %v", i, got[i], parts[i])
		}
	}
	for i := range b { // what is cut off is no key, or fewer parts
		if got, err := ParseKey(b[:i]); err == nil && len(got) >= len(parts) {
			t.Errorf("%d bytes: %v", i, got)
		}
	}
	if _, err := ParseKey([]byte{99, 0, 0, 0, 0, 0, 0, 0, 0}); err == nil {
		t.Error("a type that is none")
	}
}
