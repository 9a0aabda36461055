package replay

import (
	"encoding/json"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func cores(n int64) resource.Amount {
	return resource.Amount{CPU: resource.Cores(n), Memory: resource.Bytes(n) * resource.GiB}
}

func pool(name string, nodes int, each int64) scheduler.Pool {
	p := scheduler.Pool{Name: name, Zone: "home", Isolation: scheduler.Sandbox}
	for i := range nodes {
		p.Nodes = append(p.Nodes, scheduler.Node{Name: fmt.Sprintf("%s-%d", name, i), Amount: cores(each)})
	}
	return p
}

func asks(id string, n int64, edit ...func(*scheduler.Workload)) scheduler.Workload {
	w := scheduler.Workload{
		ID: scheduler.ID(id), Label: "job_" + id, Project: "p", Request: cores(n), Residency: []string{"home"}, Isolation: scheduler.Sandbox,
		Submitted: noon, Preemptible: true, Grace: 30 * time.Second,
	}
	for _, e := range edit {
		e(&w)
	}
	return w
}

func play(t *testing.T, w World) Played {
	t.Helper()
	p, err := Play(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tell is fates as text: "b 10m0s-20m0s on a-0".
func tell(p Played) string {
	var out []string
	for _, f := range p.Fates {
		words := []string{string(f.ID)}
		for _, s := range f.Spans {
			words = append(words, fmt.Sprintf("%s-%s on %s", s.From.Sub(noon), s.To.Sub(noon), strings.Join(s.Nodes, "+")))
		}
		if f.Never != nil {
			words = append(words, "never: "+f.Never.String())
		}
		out = append(out, strings.Join(words, " "))
	}
	return strings.Join(out, "\n")
}

// TestPlay follows a line of workloads: one that runs, two that wait, one that comes
// later and one that is too large.
func TestPlay(t *testing.T) {
	w := World{
		Start: scheduler.Delta{
			Now: noon, Pools: []scheduler.Pool{pool("a", 1, 2)},
			Started:   []scheduler.Running{{Workload: asks("a", 2), Pool: "a", Placed: 1, Nodes: []string{"a-0"}, Started: noon.Add(-time.Minute)}},
			Submitted: []scheduler.Workload{asks("b", 1), asks("c", 1, func(w *scheduler.Workload) { w.Timeout = time.Minute }), asks("e", 9)},
		},
		Later: []scheduler.Workload{asks("d", 2, func(w *scheduler.Workload) { w.Submitted = noon.Add(11 * time.Minute) })},
		Takes: map[scheduler.ID]time.Duration{"a": 10 * time.Minute, "b": 5 * time.Minute, "c": time.Hour, "d": time.Minute},
	}
	got := tell(play(t, w))
	want := `a -1m0s-10m0s on a-0
b 10m0s-15m0s on a-0
c 10m0s-11m0s on a-0
e never: pool a has no node large enough: 9 cpu wanted, 2 on its largest, 9GiB memory wanted, 2GiB on its largest
d 15m0s-16m0s on a-0`
	if got != want {
		t.Errorf("%s\n\nwant\n%s", got, want)
	}
}

// TestPlayPreempts: who must leave saves, leaves and comes back for the rest.
func TestPlayPreempts(t *testing.T) {
	in := func(w *scheduler.Workload) { w.Queue = "q" }
	w := World{
		Start: scheduler.Delta{
			Now: noon, Pools: []scheduler.Pool{pool("a", 1, 1)}, Queues: []scheduler.Queue{{Name: "q"}},
			Started:   []scheduler.Running{{Workload: asks("low", 1, in), Pool: "a", Placed: 1, Nodes: []string{"a-0"}, Started: noon.Add(-time.Hour)}},
			Submitted: []scheduler.Workload{asks("high", 1, in, func(w *scheduler.Workload) { w.Priority = 5 })},
		},
		Takes: map[scheduler.ID]time.Duration{"low": 10 * time.Minute, "high": 5 * time.Minute}, Leave: 10 * time.Second,
	}
	p := play(t, w)
	got := tell(p)
	want := `low -1h0m0s-10s on a-0 5m10s-15m0s on a-0
high 10s-5m10s on a-0`
	if got != want || p.Fates[0].Preempted != 1 {
		t.Errorf("%s\n\nwant\n%s", got, want)
	}
	// One that was cancelled leaves, and does not come back.
	w.Start.Started[0].Leaving, w.Gone = true, map[scheduler.ID]bool{"low": true}
	if got, want := tell(play(t, w)), "low -1h0m0s-10s on a-0\nhigh 10s-5m10s on a-0"; got != want {
		t.Errorf("%s\n\nwant\n%s", got, want)
	}
}

// TestPlayEvictions: a service goes on with fewer replicas, in place, as soon as those have
// stopped; its least stays.
func TestPlayEvictions(t *testing.T) {
	in := func(w *scheduler.Workload) { w.Queue = "q" }
	service := asks("svc", 1, in, func(w *scheduler.Workload) {
		w.Preemptible, w.EvictableWorkers, w.Workers, w.MaxWorkers = false, true, 1, 3
	})
	above := func(w *scheduler.Workload) { w.Queue, w.Priority = "q", 5 }
	w := World{
		Start: scheduler.Delta{
			Now: noon, Pools: []scheduler.Pool{pool("a", 3, 1)}, Queues: []scheduler.Queue{{Name: "q"}},
			Started:   []scheduler.Running{{Workload: service, Pool: "a", Placed: 3, Nodes: []string{"a-0", "a-1", "a-2"}, Started: noon.Add(-time.Hour)}},
			Submitted: []scheduler.Workload{asks("x", 1, above)},
		},
		Later: []scheduler.Workload{
			asks("y", 1, above, func(w *scheduler.Workload) { w.Submitted = noon.Add(5 * time.Second) }),
			asks("z", 1, above, func(w *scheduler.Workload) { w.Submitted = noon.Add(20 * time.Second) }),
		},
		Takes: map[scheduler.ID]time.Duration{"svc": time.Hour, "x": time.Minute, "y": time.Hour, "z": time.Minute}, Leave: 10 * time.Second,
	}
	got, want := tell(play(t, w)), `svc -1h0m0s-10s on a-0+a-1+a-2 10s-15s on a-1+a-2 15s-1h0m0s on a-2
x 10s-1m10s on a-0
y 15s-1h0m15s on a-1
z 1m10s-2m10s on a-0`
	if got != want {
		t.Errorf("%s\n\nwant\n%s", got, want)
	}
}

func TestPlayRefuses(t *testing.T) {
	w := World{Start: scheduler.Delta{Now: noon, Submitted: []scheduler.Workload{asks("a", 1), asks("a", 1)}}}
	if _, err := Play(t.Context(), w); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// drawn is a world of some pools, queues and workloads.
func drawn(t *rapid.T) World {
	w := World{Start: scheduler.Delta{Now: noon, Policy: rapid.SampledFrom(scheduler.Policies).Draw(t, "policy")}, Takes: map[scheduler.ID]time.Duration{}, Leave: 20 * time.Second}
	for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
		p := pool(fmt.Sprintf("p%d", i), rapid.IntRange(1, 4).Draw(t, "nodes"), rapid.Int64Range(1, 8).Draw(t, "each"))
		p.Delegated = rapid.Bool().Draw(t, "delegated")
		w.Start.Pools = append(w.Start.Pools, p)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "queues") {
		q := scheduler.Queue{Name: fmt.Sprintf("q%d", i)}
		if rapid.Bool().Draw(t, "quota") {
			q.Quota = resource.LimitOf(resource.Amount{CPU: resource.Cores(rapid.Int64Range(1, 12).Draw(t, "cores"))})
		}
		w.Start.Queues = append(w.Start.Queues, q)
	}
	n := rapid.IntRange(0, 40).Draw(t, "works")
	at := noon
	for i := range n {
		work := asks(fmt.Sprintf("w%02d", i), rapid.Int64Range(1, 6).Draw(t, "asks"), func(w *scheduler.Workload) {
			w.Queue = rapid.SampledFrom([]string{"", "q0", "q1", "q2"}).Draw(t, "queue")
			w.Priority = rapid.IntRange(0, 3).Draw(t, "priority")
			w.Workers = rapid.IntRange(1, 3).Draw(t, "workers")
			w.MaxWorkers = w.Workers + rapid.IntRange(0, 2).Draw(t, "more")
			w.Preemptible = rapid.Bool().Draw(t, "preemptible")
			if rapid.Bool().Draw(t, "times out") {
				w.Timeout = time.Duration(rapid.IntRange(1, 7200).Draw(t, "timeout")) * time.Second
			}
		})
		w.Takes[work.ID] = time.Duration(rapid.IntRange(0, 7200).Draw(t, "takes")) * time.Second
		if i < n/2 {
			w.Start.Submitted = append(w.Start.Submitted, work)
			continue
		}
		at = at.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "after")) * time.Second)
		work.Submitted = at
		w.Later = append(w.Later, work)
	}
	return w
}

// TestPlayHolds: each workload runs as long as it takes or has a reason, nothing begins
// before it came, no node holds more than it has, and a world plays the same twice. A
// thousand worlds, where nobody asked for another number.
func TestPlayHolds(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue && !testing.Short() {
		if err := flag.Set("rapid.checks", "1000"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set("rapid.checks", f.DefValue) })
	}
	rapid.Check(t, func(t *rapid.T) {
		w := drawn(t)
		p, err := Play(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Play(t.Context(), w)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("two plays differ: %v", err)
		}
		works := map[scheduler.ID]scheduler.Workload{}
		for _, work := range slices.Concat(w.Start.Submitted, w.Later) {
			works[work.ID] = work
		}
		if len(p.Fates) != len(works) {
			t.Fatalf("%d fates of %d works", len(p.Fates), len(works))
		}
		type edge struct {
			at   time.Time
			more int64
		}
		edges := map[string][]edge{}
		for _, f := range p.Fates {
			work := works[f.ID]
			ran := time.Duration(0)
			for i, s := range f.Spans {
				if s.From.Before(work.Submitted) || s.To.Before(s.From) {
					t.Fatalf("%s: %+v", f.ID, s)
				}
				if s.Workers < work.Workers || s.Workers > work.MaxWorkers {
					t.Fatalf("%s has %d workers", f.ID, s.Workers)
				}
				if i > 0 && s.From.Before(f.Spans[i-1].To) {
					t.Fatalf("%s is at two places", f.ID)
				}
				ran += s.To.Sub(s.From)
				for _, n := range s.Nodes {
					edges[n] = append(edges[n], edge{s.From, int64(work.Request.CPU)}, edge{s.To, -int64(work.Request.CPU)})
				}
			}
			takes := w.Takes[f.ID]
			if f.Never != nil {
				if len(f.Never.Reasons) == 0 {
					t.Fatalf("%s waits without a reason", f.ID)
				}
				continue
			}
			if f.Preempted == 0 && work.Timeout > 0 {
				takes = min(takes, work.Timeout)
			}
			cut := work.Timeout > 0 && f.Preempted > 0 && ran < takes // by the time-out of a later turn
			if ran != takes && !cut {
				t.Fatalf("%s ran %s, takes %s: %+v", f.ID, ran, takes, f)
			}
		}
		for _, pl := range w.Start.Pools {
			for _, n := range pl.Nodes {
				all := edges[n.Name]
				slices.SortFunc(all, func(a, b edge) int {
					if c := a.at.Compare(b.at); c != 0 {
						return c
					}
					return int(a.more - b.more)
				})
				used := int64(0)
				for _, e := range all {
					if used += e.more; used > int64(n.Amount.CPU) {
						t.Fatalf("node %s holds %d of %d", n.Name, used, n.Amount.CPU)
					}
				}
			}
		}
	})
}

// TestSnapshotRoundTrip: what a server tells comes back as it was.
func TestSnapshotRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawn(t)
		b, err := json.Marshal(Snapshot{At: noon, Works: []About{}, Scheduler: w.Start})
		if err != nil {
			t.Fatal(err)
		}
		s, start, err := Read(b)
		if err != nil || !s.At.Equal(noon) {
			t.Fatal(err)
		}
		c, _ := json.Marshal(Snapshot{At: noon, Works: []About{}, Scheduler: start})
		if string(b) != string(c) {
			t.Fatalf("%s\n%s", b, c)
		}
		w.Start = start
		if _, err := Play(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	})
	for _, bad := range []string{"", "{}", "[]", `{"scheduler":{"Now":7}}`} {
		if _, _, err := Read([]byte(bad)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestAssumptions: what is known wins; then what its owner says, its time-out, and
// at last what is assumed.
func TestAssumptions(t *testing.T) {
	hour := func(w *scheduler.Workload) { w.Timeout = time.Hour }
	started := noon.Add(-10 * time.Minute)
	start := scheduler.Delta{
		Now: noon, Pools: []scheduler.Pool{pool("a", 1, 1)},
		Started: []scheduler.Running{
			{Workload: asks("pace", 1), Started: started},
			{Workload: asks("pace-timeout", 1, hour), Started: started, Deadline: started.Add(time.Hour)},
			{Workload: asks("timeout", 1, hour), Started: started, Deadline: started.Add(time.Hour)},
			{Workload: asks("nothing", 1), Started: started},
			{Workload: asks("long ago", 1), Started: noon.Add(-100 * time.Hour)},
		},
		Submitted: []scheduler.Workload{asks("expected", 1, hour, func(w *scheduler.Workload) { w.Expected = 20 * time.Minute }), asks("waits", 1, hour), asks("waits, nothing", 1)},
	}
	s := Snapshot{Works: []About{{ID: "pace", Left: new(90.0), Basis: Pace}, {ID: "pace-timeout", Left: new(9e9), Basis: History}}}
	for _, c := range []struct {
		over bool
		want string
	}{
		{false, "pace 1m30s pace, pace-timeout 50m0s history, timeout 50m0s timeout, nothing 5m0s assumed, long ago 15m0s assumed, expected 20m0s expected, waits 1h0m0s timeout, waits, nothing 15m0s assumed"},
		{true, "pace 1m30s pace, pace-timeout 50m0s history, timeout 5m0s assumed, nothing 5m0s assumed, long ago 15m0s assumed, expected 20m0s expected, waits 15m0s assumed, waits, nothing 15m0s assumed"},
	} {
		w, about := s.World(start, Assumptions{Takes: 15 * time.Minute, Over: c.over})
		var got []string
		for _, x := range about {
			got = append(got, fmt.Sprintf("%s %s %s", x.ID, w.Takes[x.ID], x.Basis))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s\nwant %s", strings.Join(got, ", "), c.want)
		}
	}
}

func TestResize(t *testing.T) {
	w := World{Start: scheduler.Delta{
		Now: noon, Pools: []scheduler.Pool{pool("a", 3, 2), {Name: "empty"}},
		Started: []scheduler.Running{{Workload: asks("r", 2), Pool: "a", Placed: 1, Nodes: []string{"a-2"}, Started: noon}},
	}}
	open := func(w World) string {
		var out []string
		for _, n := range w.Start.Pools[0].Nodes {
			if n.Closed == "" {
				out = append(out, n.Name)
			}
		}
		return strings.Join(out, " ")
	}
	for n, want := range map[int]string{2: "a-0 a-1 a-2 what-if-1 what-if-2", -1: "a-0 a-2", -2: "a-2", -3: ""} {
		got, err := w.Resize("a", n)
		if err != nil || open(got) != want || open(w) != "a-0 a-1 a-2" {
			t.Errorf("%d: %s, %v", n, open(got), err)
		}
	}
	for _, bad := range []struct {
		pool string
		n    int
	}{{"b", 1}, {"a", -4}, {"a", 1 << 40}, {"empty", 1}} {
		if _, err := w.Resize(bad.pool, bad.n); err == nil {
			t.Errorf("%+v", bad)
		}
	}
	// What runs on a node that is taken away ends there.
	gone, err := w.Resize("a", -3)
	if err != nil {
		t.Fatal(err)
	}
	gone.Takes = map[scheduler.ID]time.Duration{"r": time.Minute, "new": time.Minute}
	_, gone = gone.Propose(About{}, asks("new", 1), Assumptions{Takes: time.Minute})
	if got := tell(play(t, gone)); !strings.Contains(got, "r 0s-1m0s on a-2") || !strings.Contains(got, "new never: ") || !strings.Contains(got, "removed in this what-if") {
		t.Error(got)
	}
}

// TestAnswers: two plays beside each other, in figures and as a page that needs
// nothing else.
func TestAnswers(t *testing.T) {
	start := scheduler.Delta{
		Now: noon, Pools: []scheduler.Pool{pool("a", 1, 1)},
		Submitted: []scheduler.Workload{asks("x", 1), asks("y", 1, func(w *scheduler.Workload) { w.Label = "<script>" }), asks("z", 7)},
	}
	w, about := Snapshot{}.World(start, Assumptions{Takes: time.Hour})
	more, err := w.Resize("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	now, then := play(t, w), play(t, more)
	a := Answers(w, now, more, &then, about)
	a.Changes = []string{"a node more"}
	if a.Now.MeanWait != 1800 || a.WhatIf.MeanWait != 0 || a.Now.Never != 1 || a.Now.Ended != 2 || *a.Jobs[1].Later != -3600 || a.Jobs[2].Later != nil {
		t.Errorf("%+v %+v %+v", a.Now, a.WhatIf, a.Jobs)
	}
	if u, v := a.Now.Pools[0].Utilisation, a.WhatIf.Pools[0].Utilisation; u != 1 || v != 0.5 {
		t.Error(u, v)
	}
	var b strings.Builder
	if err := WritePage(&b, a); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "http", "src=", "NaN", "ZgotmplZ"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, good := range []string{"&lt;script&gt;", "What if: a node more", "<rect", "does not end"} {
		if !strings.Contains(b.String(), good) {
			t.Errorf("the page has no %q", good)
		}
	}
	if err := WritePage(&b, Answers(w, Played{}, w, nil, nil)); err != nil {
		t.Error(err)
	}
}

func FuzzSnapshot(f *testing.F) {
	b, _ := json.Marshal(Snapshot{At: noon, Scheduler: scheduler.Delta{Now: noon, Pools: []scheduler.Pool{pool("a", 1, 1)}, Submitted: []scheduler.Workload{asks("x", 1)}}})
	f.Add(string(b))
	f.Fuzz(func(t *testing.T, text string) {
		s, start, err := Read([]byte(text))
		if err != nil {
			return
		}
		w, _ := s.World(start, Assumptions{Takes: time.Hour, Leave: time.Minute})
		for id, left := range w.Takes {
			if left < 0 {
				t.Fatalf("%s takes %s", id, left)
			}
		}
	})
}

// TestMaintenance: what saves leaves its node when a window begins, and goes on when it
// is over; what would not end before begins after it.
func TestMaintenance(t *testing.T) {
	rigid := func(w *scheduler.Workload) { w.Preemptible, w.Timeout = false, 15*time.Minute }
	w := World{
		Start: scheduler.Delta{
			Now: noon, Pools: []scheduler.Pool{pool("a", 2, 2)},
			Started:   []scheduler.Running{{Workload: asks("a", 2), Pool: "a", Placed: 1, Nodes: []string{"a-0"}, Started: noon}},
			Submitted: []scheduler.Workload{asks("b", 2, rigid), asks("c", 2, rigid)},
		},
		Takes: map[scheduler.ID]time.Duration{"a": 20 * time.Minute, "b": 5 * time.Minute, "c": 5 * time.Minute},
		Leave: time.Minute,
		Maintenance: map[string]scheduler.Windows{"a": {
			{From: noon.Add(10 * time.Minute), Until: noon.Add(30 * time.Minute), Nodes: []string{"a-0"}},
			{From: noon.Add(6 * time.Minute), Until: noon.Add(time.Hour), Nodes: []string{"a-1"}},
		}},
	}
	want := "a 0s-10m30s on a-0 40m0s-49m30s on a-0\nb 30m0s-35m0s on a-0\nc 35m0s-40m0s on a-0"
	if got := tell(play(t, w)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
