package httpapi

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestFileFrom: a file goes on from where a gateway has it, and is given as a whole to who
// asks in another way.
func TestFileFrom(t *testing.T) {
	for header, want := range map[string]int64{
		"": 0, "bytes=0-": 0, "bytes=7-": 7, "bytes=9-": 9, "bytes=2-5": 0, "bytes=-5": 0, "bytes=1-,4-": 0, "rows=3-": 0, "bytes=x-": 0, "bytes=-1-": 0,
		"bytes=99999999999999999999-": 0,
	} {
		if from, err := fileFrom(header, 10); err != nil || from != want {
			t.Errorf("%q: from %d, %v; want %d", header, from, err, want)
		}
	}
	for _, header := range []string{"bytes=10-", "bytes=11-"} {
		if _, err := fileFrom(header, 10); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", header, err)
		}
	}
	if from, err := fileFrom("bytes=7-", 0); err != nil || from != 0 {
		t.Errorf("of a file whose size is not known: from %d, %v", from, err)
	}
}
