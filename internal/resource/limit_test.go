package resource_test

import (
	"encoding/json"
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestLimitKeepsZero: a part that is named and 0, in whatever spelling, is a limit, also after
// it was written and read again; what is not named is none.
func TestLimitKeepsZero(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "no limit", `{"cpu":0}`: "0 cpu", `{"cpu":"0"}`: "0 cpu", `{"cpu":"0m"}`: "0 cpu", `{"cpu":"0.0"}`: "0 cpu",
		`{"memory":0}`: "0 memory", `{"memory":"0GiB"}`: "0 memory", `{"memory":"0B"}`: "0 memory",
		`{"memory_bandwidth":"0GB/s"}`: "0 memory bandwidth", `{"accelerators":{"gpu":0}}`: "0 gpu",
		`{"cpu":2,"memory":"0","accelerators":{"gpu":1}}`: "2 cpu, 0 memory, 1 gpu",
	} {
		var l, again resource.Limit
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		b, err := json.Marshal(l)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil || l.String() != want || again.String() != want || !l.Equal(again) || l.IsZero() != (text == `{}`) {
			t.Errorf("%s is %s, and %s once written as %s; want %s (%v)", text, l, again, b, want, err)
		}
		if of := resource.LimitOf(l.Amount()); of.CPU != nil && *of.CPU == 0 || of.Memory != nil && *of.Memory == 0 {
			t.Errorf("what an amount does not name is limited: %s", of)
		}
	}
}
