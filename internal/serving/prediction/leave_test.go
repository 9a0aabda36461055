package prediction_test

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestDroppedDeploymentsLeaveNothing: the log keeps no entry for a deployment that was
// deleted, also when it is read or written to meanwhile, and counts all the same.
func TestDroppedDeploymentsLeaveNothing(t *testing.T) {
	c := newClock()
	l := open(t, t.TempDir(), c)
	defer l.Close()
	const n = 50
	for i := range n {
		name := fmt.Sprint("d-", i)
		if err := l.Append(t.Context(), flightsOf(name, 1)); err != nil {
			t.Fatal(err)
		}
		if err := l.Drop("nyc", name); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Stats(t.Context(), "nyc", name); err != nil { // such as by a monitor that comes late
			t.Fatal(err)
		}
	}
	c.add(time.Hour)
	if err := l.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := l.Journals(); left != 0 {
		t.Errorf("%d journals are left of deleted deployments", left)
	}
	if got := l.Appended(); got != n {
		t.Errorf("%d records were counted, want %d", got, n)
	}
	// Of what is dropped while it is written to, each record that was acknowledged after is there.
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 100 {
				if err := l.Append(t.Context(), flightsOf("busy", w*100+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		if err := l.Drop("nyc", "busy"); err != nil {
			t.Error(err)
		}
	}
	writers.Wait()
	before, err := l.Stats(t.Context(), "nyc", "busy")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), flightsOf("busy", 1000)); err != nil {
		t.Fatal(err)
	}
	if after, err := l.Stats(t.Context(), "nyc", "busy"); err != nil || after.Records != before.Records+1 {
		t.Errorf("%d records, then %d, %v", before.Records, after.Records, err)
	}
	if l.Lost() != 0 {
		t.Errorf("%d were lost", l.Lost())
	}
}

// TestDropBesideOthers: deployments of one project come and go side by side, and each
// record is written: none meets a directory that another's end removes.
func TestDropBesideOthers(t *testing.T) {
	l := open(t, t.TempDir(), newClock())
	defer l.Close()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			name := fmt.Sprint("d-", w)
			for i := range 50 {
				if err := l.Append(t.Context(), flightsOf(name, i)); err != nil {
					t.Error(err)
				}
				if s, err := l.Stats(t.Context(), "nyc", name); err != nil || s.Records != 1 {
					t.Errorf("%d records, %v", s.Records, err)
				}
				if err := l.Drop("nyc", name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if l.Lost() != 0 {
		t.Errorf("%d were lost", l.Lost())
	}
}
