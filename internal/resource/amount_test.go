package resource_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

func drawAmount(t *rapid.T, label string, most int64) resource.Amount {
	a := resource.Amount{
		CPU:    resource.CPU(rapid.Int64Range(0, most).Draw(t, label+" cpu")),
		Memory: resource.Bytes(rapid.Int64Range(0, most).Draw(t, label+" memory")),
	}
	if rapid.Bool().Draw(t, label+" counts bandwidth") {
		a.MemoryBandwidth = resource.Bandwidth(rapid.Int64Range(0, most).Draw(t, label+" bandwidth"))
	}
	if n := rapid.Int64Range(-1, most).Draw(t, label+" gpus"); n >= 0 {
		a.Accelerators = map[string]int64{"gpu": n}
	}
	return a
}

// TestCount: as many as Count says have room, and one more has not; Fits and
// Lacks agree.
func TestCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each, free := drawAmount(t, "each", 4), drawAmount(t, "free", 20)
		if rapid.Bool().Draw(t, "overdrawn") {
			free = free.Minus(drawAmount(t, "used", 25))
		}
		most := rapid.IntRange(1, 30).Draw(t, "most")
		n := each.Count(free, most)
		if n < 0 || n > most || n > 0 && !each.Times(n).Fits(free) || n < most && each.Times(n+1).Fits(free) {
			t.Fatalf("%s fits %d times into %s, at most %d", each, n, free, most)
		}
		if each.Fits(free) != (len(each.Lacks(free)) == 0) || each.Fits(free) != (n > 0) {
			t.Fatalf("%s fits into %s: %t; lacks %q; counted %d", each, free, each.Fits(free), each.Lacks(free), n)
		}
		if (resource.Amount{}).Count(free, most) != most {
			t.Fatalf("nothing does not fit into %s", free)
		}
	})
}

func TestAmountInWords(t *testing.T) {
	for want, a := range map[string]resource.Amount{
		"nothing": {}, "2 cpu": {CPU: 2000}, "500m cpu, 1GiB memory, 20.5GB/s memory bandwidth, 2 gpu": {CPU: 500, Memory: resource.GiB, MemoryBandwidth: 20.5e9, Accelerators: map[string]int64{"gpu": 2, "tpu": 0}},
	} {
		if got := a.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
