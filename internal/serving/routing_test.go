package serving

import (
	"math"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestBucketsMoveOnlyWhatTheyMust: between two shares, a key changes its version
// only if its bucket lies between them, and the shares are what was asked for.
func TestBucketsMoveOnlyWhatTheyMust(t *testing.T) {
	stable, canary := &target{}, &target{}
	rapid.Check(t, func(t *rapid.T) {
		d := Deployment{ID: ID("dep_" + rapid.String().Draw(t, "id"))}
		before, after := rapid.Uint32Range(1, 99).Draw(t, "before")*100, rapid.Uint32Range(1, 99).Draw(t, "after")*100
		one := &table{deployment: d, stable: stable, canary: canary, share: before}
		two := &table{deployment: d, stable: stable, canary: canary, share: after}
		k := rapid.StringN(1, 20, 40).Draw(t, "key")
		was, random := one.choose("", k)
		is, _ := two.choose("", k)
		if !random {
			t.Fatal("a share decides, and it says that none did")
		}
		if again, _ := one.choose("", k); again != was {
			t.Fatal("the same key met another version")
		}
		b := bucket(d.ID, k)
		if (was == canary) != (b < before) || (is == canary) != (b < after) {
			t.Fatalf("bucket %d: canary %v at %d, %v at %d", b, was == canary, before, is == canary, after)
		}
		if after >= before && was == canary && is != canary {
			t.Fatal("a growing share gave a key back")
		}
	})
}

// TestBucketsAreEven: keys as people have them fall evenly, whatever the share.
// 5 standard deviations of 100,000 keys; the hash has no seed.
func TestBucketsAreEven(t *testing.T) {
	const n = 100_000
	for _, form := range []func(i int) string{
		strconv.Itoa, func(i int) string { return "user-" + strconv.Itoa(i) }, func(i int) string { return strconv.Itoa(i*1000) + "@example.com" },
	} {
		counts := make([]float64, buckets)
		for i := range n {
			counts[bucket("dep_01J8ZQ", form(i))]++
		}
		for _, percent := range []int{1, 5, 20, 50, 99} {
			share, got := float64(percent)/100, 0.0
			for _, c := range counts[:percent*buckets/100] {
				got += c
			}
			if limit := 5 * math.Sqrt(n*share*(1-share)); math.Abs(got-n*share) > limit {
				t.Errorf("%s…: %v of %d keys fell into %d %%, off by more than %.0f", form(7), got, n, percent, limit)
			}
		}
	}
	if bucket("a", "bc") == bucket("ab", "c") {
		t.Error("the end of the deployment is the beginning of the key")
	}
}

func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "latency"))
		var x tally
		x.add(d, nil)
		got := x.quantile(0.5)
		if got < d || float64(got) > math.Max(float64(d)*1.125, 16) {
			t.Fatalf("the quantile of %d is %d", d, got)
		}
	})
	var x tally
	if x.quantile(0.99) != 0 {
		t.Error("nothing was counted")
	}
	for i := range 1000 {
		var err error
		if i%10 == 0 {
			err = fault.New(fault.Invalid, "no")
		}
		x.add(time.Duration(i+1)*time.Millisecond, err)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := x.quantile(q); got < want || got > want*9/8+time.Millisecond {
			t.Errorf("quantile %v is %s, want %s and at most an eighth more", q, got, want)
		}
	}
	if x.requests.Load() != 1000 || x.failures.Load() != 100 {
		t.Errorf("%d requests, %d failures", x.requests.Load(), x.failures.Load())
	}
}

func TestPushed(t *testing.T) {
	for _, c := range []struct {
		before   []int64
		was, now int64
		want     []int64
	}{
		{nil, 1, 2, []int64{1}},
		{[]int64{1}, 2, 3, []int64{1, 2}},
		{[]int64{1, 2}, 3, 1, []int64{2, 3}},
		{[]int64{1}, 1, 2, []int64{1}},
	} {
		got := pushed(c.before, c.was, c.now)
		if len(got) != len(c.want) {
			t.Errorf("%v, %d → %d: %v", c.before, c.was, c.now, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v, %d → %d: %v, want %v", c.before, c.was, c.now, got, c.want)
			}
		}
	}
	var long []int64
	for i := range int64(2 * maxBefore) {
		long = pushed(long, i, i+1)
	}
	if len(long) != maxBefore || long[maxBefore-1] != 2*maxBefore-1 {
		t.Errorf("%d versions are remembered: %v", len(long), long)
	}
}
