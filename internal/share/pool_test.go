package share

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// taken is a request of a test: pending until it has a slot or an error.
type taken struct {
	owner   Owner
	cancel  context.CancelFunc
	release func()
	err     error
	done    atomic.Bool
}

func take(p *Pool, o Owner) *taken {
	ctx, cancel := context.WithCancel(context.Background())
	t := &taken{owner: o, cancel: cancel}
	go func() {
		t.release, t.err = p.Take(ctx, o)
		t.done.Store(true)
	}()
	synctest.Wait()
	return t
}

// TestSharesOfProjectsAndPrincipals: what is granted at once, in order.
func TestSharesOfProjectsAndPrincipals(t *testing.T) {
	for _, c := range []struct {
		name  string
		slots int
		asks  string // project/principal, in order
		want  string // g: granted, w: waits
	}{
		{"a principal has half", 4, "a/x a/x a/x", "ggw"},
		{"a project has three quarters", 4, "a/x a/x a/y a/z b/q", "gggwg"},
		{"the last is for a project without any", 4, "a/x a/x b/y b/y c/z", "gggwg"},
		{"a principal has half over all projects", 8, "a/x b/x c/x d/x e/x", "ggggw"},
		{"the server's own work counts for its project", 4, "a/ a/ a/ a/ b/", "gggwg"},
		{"one slot is anybody's", 1, "a/x b/y", "gw"},
		{"two slots are for two projects", 2, "a/x a/x b/y", "gwg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Limits{Name: "test", What: "tests", Slots: c.slots})
				var all []*taken
				var got []byte
				for ask := range strings.FieldsSeq(c.asks) {
					project, principal, _ := strings.Cut(ask, "/")
					all = append(all, take(p, Owner{project, principal}))
				}
				for _, a := range all {
					if a.done.Load() {
						got = append(got, 'g')
					} else {
						got = append(got, 'w')
					}
				}
				if string(got) != c.want {
					t.Errorf("%s gives %s, want %s", c.asks, got, c.want)
				}
				end(t, p, all)
			})
		})
	}
}

// end gives everything back and looks for leaks.
func end(t *testing.T, p *Pool, all []*taken) {
	t.Helper()
	for _, a := range all {
		a.cancel()
	}
	synctest.Wait()
	for _, a := range all {
		if a.release != nil {
			a.release()
			a.release() // is harmless
		}
	}
	synctest.Wait()
	if p.free != p.l.Slots || p.waiting != 0 || len(p.projects)+len(p.principals)+len(p.lanes)+p.ring.Len() != 0 {
		t.Errorf("after all: %d of %d free, %d wait, holders %v %v, lanes %d", p.free, p.l.Slots, p.waiting, p.projects, p.principals, len(p.lanes))
	}
}

// TestPoolIsFair walks through random histories and holds the invariants of Pool
// after each step: caps, no free slot beside a request that holds none, and no
// project without a slot overtaken by one that has some.
func TestPoolIsFair(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 26))
			p := New(Limits{Name: "test", What: "tests", Slots: 1 + r.IntN(9), Queue: 1 + r.IntN(12)})
			var all []*taken
			for range 250 {
				waited := map[*taken]bool{}
				for _, a := range all {
					waited[a] = !a.done.Load()
				}
				switch n := r.IntN(10); {
				case n < 5:
					all = append(all, take(p, Owner{fmt.Sprint("p", r.IntN(6)), fmt.Sprint("u", r.IntN(8))}))
				case n < 6 && len(all) > 0:
					all[r.IntN(len(all))].cancel()
				case len(all) > 0:
					if a := all[r.IntN(len(all))]; a.release != nil {
						a.release()
					}
				}
				synctest.Wait()
				check(t, seed, p, all, waited)
			}
			end(t, p, all)
		})
		if t.Failed() {
			return
		}
	}
}

func check(t *testing.T, seed uint64, p *Pool, all []*taken, waited map[*taken]bool) {
	t.Helper()
	held := 0
	for project, n := range p.projects {
		held += n
		if n > p.l.PerProject {
			t.Errorf("seed %d: project %s holds %d, its share is %d", seed, project, n, p.l.PerProject)
		}
	}
	for principal, n := range p.principals {
		if n > p.l.PerPrincipal {
			t.Errorf("seed %d: principal %s holds %d, its share is %d", seed, principal, n, p.l.PerPrincipal)
		}
	}
	if held+p.free != p.l.Slots {
		t.Errorf("seed %d: %d held and %d free of %d", seed, held, p.free, p.l.Slots)
	}
	fresh, overtook := false, false
	for _, a := range all {
		if !a.done.Load() && p.projects[a.owner.Project] == 0 && p.principals[a.owner.Principal] == 0 {
			fresh = true
		}
		if waited[a] && a.done.Load() && a.err == nil && p.projects[a.owner.Project]+p.principals[a.owner.Principal] > 2 {
			overtook = true // it has more than the slot that it waited for
		}
	}
	if fresh && p.free > 0 {
		t.Errorf("seed %d: %d slots are free, and a project without any waits", seed, p.free)
	}
	if fresh && overtook {
		t.Errorf("seed %d: a project that held slots was served before one that held none", seed)
	}
}

// TestRefusals: a refusal names the limit and the share, and says when to ask again.
func TestRefusals(t *testing.T) {
	a, b := Owner{"a", "x"}, Owner{"b", "y"}
	for _, c := range []struct {
		name  string
		l     Limits
		holds []Owner
		ask   Owner
		want  string
	}{
		{"principal", Limits{Slots: 4}, []Owner{a, a}, a, "principal x has 2 tests under way"},
		{"project", Limits{Slots: 4}, []Owner{{"a", "p"}, {"a", "q"}, {"a", "r"}}, a, "project a has 3 tests under way"},
		{"kept", Limits{Slots: 4}, []Owner{a, b, {"c", "z"}}, a, "kept for other projects"},
		{"all", Limits{Slots: 2}, []Owner{a, b}, Owner{"c", "z"}, "all 2 tests are under way, for 2 projects"},
		{"all, no wait", Limits{Slots: 2, NoWait: true}, []Owner{a, b}, Owner{"c", "z"}, "all 2 tests are under way, for 2 projects"},
		{"queue", Limits{Slots: 1, Queue: 2}, []Owner{b, {"a", "q"}, {"a", "r"}}, a, "project a has 2 requests waiting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.l.Name, c.l.What, c.l.Wait = "tests_at_a_time", "tests", time.Minute
				p := New(c.l)
				var all []*taken
				for _, o := range c.holds {
					all = append(all, take(p, o))
				}
				last := take(p, c.ask)
				if !last.done.Load() {
					<-time.After(time.Minute)
					synctest.Wait()
				}
				if !fault.Is(last.err, fault.Exhausted) || !strings.Contains(last.err.Error(), c.want) || !strings.Contains(last.err.Error(), "tests_at_a_time") {
					t.Errorf("refused with %v, want %q", last.err, c.want)
				}
				if fault.RetryOf(last.err) <= 0 || fault.HintOf(last.err) == "" {
					t.Errorf("%v says not when to ask again", last.err)
				}
				end(t, p, append(all, last))
			})
		})
	}
}

// TestTenThousandPrincipals ask at once beside one that has all it may have; half of
// them go away again. Whoever stays has a turn, and nothing leaks.
func TestTenThousandPrincipals(t *testing.T) {
	const n = 10_000
	p := New(Limits{Name: "test", What: "tests", Slots: 8, Queue: n})
	var group sync.WaitGroup
	var served, gone atomic.Int64
	gate := make(chan struct{})
	for i := range n {
		group.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			<-gate
			if i%2 == 0 {
				go cancel()
			}
			release, err := p.Take(ctx, Owner{fmt.Sprint("p", i%100), fmt.Sprint("u", i)})
			switch {
			case err == nil:
				served.Add(1)
				release()
			case errors.Is(err, context.Canceled):
				gone.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	close(gate)
	group.Wait()
	if served.Load() < n/2 || served.Load()+gone.Load() != n {
		t.Errorf("%d served, %d gone of %d", served.Load(), gone.Load(), n)
	}
	if p.free != 8 || len(p.projects)+len(p.principals)+len(p.lanes)+p.ring.Len()+p.waiting != 0 {
		t.Errorf("%d of 8 free, holders %v %v, %d wait", p.free, p.projects, p.principals, p.waiting)
	}
}

// TestSmallDemandIsNotBehindABacklog: a project with a thousand requests waiting,
// and one that has one at a time: it waits for one slot to be freed, never for the
// backlog.
func TestSmallDemandIsNotBehindABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Name: "test", What: "tests", Slots: 1, Queue: 2000})
		all := []*taken{}
		for range 1000 {
			all = append(all, take(p, Owner{"busy", fmt.Sprint("u", len(all)%3)}))
		}
		for range 20 {
			quiet := take(p, Owner{"quiet", "q"})
			all = append(all, quiet)
			freed := 0
			for !quiet.done.Load() {
				for _, a := range all {
					if a.done.Load() && a.release != nil && a != quiet {
						a.release()
						a.release = nil
						freed++
						break
					}
				}
				synctest.Wait()
			}
			if freed > 2 {
				t.Fatalf("it waited for %d slots", freed)
			}
			quiet.release()
		}
		end(t, p, all)
	})
}
