package share

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Rate{Name: "test_rate", Every: time.Minute, Burst: 3})
		for range 3 {
			if err := l.Take("a"); err != nil {
				t.Fatal(err)
			}
		}
		err := l.Take("a")
		if !fault.Is(err, fault.Exhausted) || fault.RetryOf(err) != time.Minute {
			t.Fatalf("the fourth: %v, again after %s", err, fault.RetryOf(err))
		}
		if l.Check("a") == nil || l.Check("b") != nil || l.Take("b") != nil {
			t.Error("one key's rate is not another's")
		}
		<-time.After(time.Minute)
		if err := l.Take("a"); err != nil {
			t.Errorf("after a minute: %v", err)
		}
		if l.Take("a") == nil {
			t.Error("a minute gave two tokens")
		}
		<-time.After(time.Hour)
		for n := range 4 {
			if err := l.Take("a"); (err == nil) != (n < 3) {
				t.Errorf("after an hour, number %d: %v", n, err)
			}
		}
	})
}

// TestLimiterIsBounded: more keys than it remembers share one bucket, and one that
// was used up is not forgotten for them.
func TestLimiterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Rate{Name: "test_rate", Every: time.Minute, Burst: 1, Keys: 10})
		granted := 0
		for n := range 10_000 {
			if l.Take(strconv.Itoa(n)) == nil {
				granted++
			}
		}
		if l.Len() != 10 || granted != 11 {
			t.Errorf("%d keys are remembered, %d tokens were given", l.Len(), granted)
		}
		if l.Take("0") == nil {
			t.Error("a used-up key was forgotten for others")
		}
		<-time.After(2 * time.Minute)
		if err := l.Take("new"); err != nil || l.Len() != 10 {
			t.Errorf("a full bucket keeps a new key out: %v, %d keys", err, l.Len())
		}
	})
}

func TestAddressKey(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.2.3:55": "10.1.2.3", "[2001:db8:1:2:3::4]:55": "2001:db8:1:2::/64", "[::ffff:10.1.2.3]:5": "10.1.2.3",
		"[fe80::1%eth0]:5": "fe80::/64", "@": "@", "": "",
	} {
		if got := AddressKey(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
