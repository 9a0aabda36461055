package compute_test

import (
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// TestHardware: on what is out of support nothing new starts, unless the pool says
// so; people are told before, once.
func TestHardware(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	apply := func(h compute.Hardware) error {
		_, err := w.change(t, compute.PoolSpec{Hardware: &h})
		return err
	}
	for _, bad := range []compute.Hardware{{EndOfSupport: "2027"}, {EndOfSupport: "2027-02-30"}, {UseAfter: true}, {Generation: strings.Repeat("x", 101)}} {
		if err := apply(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	told := func() (words []string) {
		t.Helper()
		if err := w.WarnOfSupport(t.Context()); err != nil {
			t.Fatal(err)
		}
		events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == compute.EventSupportEnds {
				words = append(words, string(e.Body))
			}
		}
		return words
	}
	for i, step := range []struct {
		h     compute.Hardware
		says  string
		times int // that people were told by then
	}{
		{compute.Hardware{Generation: "hopper"}, "hopper", 0},
		{compute.Hardware{Generation: "hopper", EndOfSupport: day(120)}, "hopper, supported until " + day(120), 0},
		{compute.Hardware{EndOfSupport: day(30)}, "supported until " + day(30) + ", 30 days from now: afterwards nothing new starts here", 1},
		{compute.Hardware{EndOfSupport: day(30), UseAfter: true}, "supported until " + day(30) + ", 30 days from now: afterwards work starts here all the same", 1},
		{compute.Hardware{EndOfSupport: day(0)}, ", today: afterwards", 2},
		{compute.Hardware{EndOfSupport: day(-1)}, "out of support since " + day(-1) + ": nothing new starts here", 3},
	} {
		if err := apply(step.h); err != nil {
			t.Fatal(err)
		}
		p, err := w.Pool(t.Context(), "hpc")
		if err != nil || !strings.Contains(p.Support, step.says) {
			t.Errorf("step %d: %q, %v", i, p.Support, err)
		}
		told()
		if words := told(); len(words) != step.times {
			t.Errorf("step %d: told %q", i, words)
		}
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Isolation: scheduler.Process, Pools: []string{"hpc"}})
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || len(why) != 1 || !strings.Contains(why[0], "pool hpc is closed: its hardware is out of support since "+day(-1)) {
		t.Errorf("why %q, %v", why, err)
	}
	if err := apply(compute.Hardware{EndOfSupport: day(-1), UseAfter: true}); err != nil {
		t.Fatal(err)
	}
	c.awaitStart(t)
}
