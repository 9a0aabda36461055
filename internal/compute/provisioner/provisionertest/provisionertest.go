// Package provisionertest is what every provisioner.Provisioner must do.
package provisionertest

import (
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Options of a run.
type Options struct {
	// Open opens a provider; with the same directory again it is the same provider,
	// after a crash of ours.
	Open func(t *testing.T, dir string) provisioner.Provisioner
	// Pool has at least three places.
	Pool provisioner.Pool
	// Tick is called between looks; nil waits a moment.
	Tick func()
}

// wait is the longest that a change is waited for.
const wait = 2 * time.Minute

type suite struct {
	*testing.T
	Options
	p provisioner.Provisioner
}

// Run runs the suite.
func Run(t *testing.T, o Options) {
	t.Helper()
	if o.Tick == nil {
		tick := time.NewTicker(50 * time.Millisecond)
		t.Cleanup(tick.Stop)
		o.Tick = func() { <-tick.C }
	}
	dir := t.TempDir()
	s := &suite{T: t, Options: o, p: o.Open(t, dir)}

	// 1. Places have names, and are all free.
	first := s.nodes()
	if len(first) < 3 {
		t.Fatalf("%d places: %+v", len(first), first)
	}
	for _, n := range first {
		if n.State != provisioner.Off || n.Busy {
			t.Errorf("%+v at first", n)
		}
	}
	a, b, c := first[0].Name, first[1].Name, first[2].Name

	// 2. A node that is asked for comes, once, and no other does.
	s.rent(a)
	s.rent(a)
	if n := s.node(a); n.State != provisioner.Coming && n.State != provisioner.Ready {
		t.Errorf("asked for: %+v", n)
	}
	s.until(a, provisioner.Ready)
	s.rent(a)
	if n := s.node(a); n.State != provisioner.Ready || n.Busy {
		t.Errorf("asked for again: %+v", n)
	}
	if n := s.node(b); n.State != provisioner.Off {
		t.Errorf("not asked for: %+v", n)
	}

	// 3. After a crash the provider has it still.
	s.p = o.Open(t, dir)
	if n := s.node(a); n.State != provisioner.Ready {
		t.Errorf("after a crash: %+v", n)
	}

	// 4. One that starts up may be given back, too.
	s.rent(b)
	s.gone(b)
	if n := s.node(a); n.State != provisioner.Ready {
		t.Errorf("another was given back: %+v", n)
	}

	// 5. Given back it is gone, and giving back twice, or what is not there, is no change.
	s.release(a)
	s.gone(a)
	s.release(a)
	s.release(c)

	// 6. The place may be used again.
	s.rent(a)
	s.until(a, provisioner.Ready)
	s.gone(a)
	if now := s.nodes(); !slices.EqualFunc(now, first, func(a, b provisioner.Node) bool { return a.Name == b.Name }) {
		t.Errorf("the places were %+v and are %+v", first, now)
	}

	// 7. What is no place is refused.
	if err := s.p.Rent(t.Context(), o.Pool, "no-such-place"); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such place: %v", err)
	}
}

func (s *suite) nodes() []provisioner.Node {
	s.Helper()
	all, err := s.p.Nodes(s.Context(), s.Pool)
	if err != nil {
		s.Fatal(err)
	}
	return all
}

func (s *suite) node(name string) provisioner.Node {
	s.Helper()
	all := s.nodes()
	i := slices.IndexFunc(all, func(n provisioner.Node) bool { return n.Name == name })
	if i < 0 {
		s.Fatalf("there is no place %s: %+v", name, all)
	}
	return all[i]
}

func (s *suite) rent(name string) {
	s.Helper()
	if err := s.p.Rent(s.Context(), s.Pool, name); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) release(name string) {
	s.Helper()
	if err := s.p.Release(s.Context(), s.Pool, name); err != nil {
		s.Fatal(err)
	}
}

// gone gives a node back, again and again as compute does, until it is.
func (s *suite) gone(name string) {
	s.Helper()
	s.become(name, provisioner.Off, func() { s.release(name) })
}

func (s *suite) until(name string, wanted provisioner.State) {
	s.Helper()
	s.become(name, wanted, func() {})
}

func (s *suite) become(name string, wanted provisioner.State, each func()) {
	s.Helper()
	for end := time.Now().Add(wait); ; s.Tick() {
		each()
		n := s.node(name)
		if n.State == wanted {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("%s does not become %s: %+v", name, wanted, n)
		}
	}
}
