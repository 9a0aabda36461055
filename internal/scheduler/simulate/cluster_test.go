package simulate

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

const goodCluster = `groups:
  - type: a
    nodes: 2
    gpus_per_node: 2
    profiles: traces
    price_per_hour: 3.5
    down:
      - {from: 10m, to: 1h, nodes: 1}
  - type: b
    nodes: 1
    gpus_per_node: 8
    profiles: traces
    speed: 2
`

func readCluster(text string, dirs map[string]fs.FS) (Cluster, Measured, error) {
	return ReadCluster("c.yaml", strings.NewReader(text), "", func(dir string) fs.FS {
		if d := dirs[dir]; d != nil {
			return d
		}
		return fstest.MapFS{}
	})
}

func TestReadCluster(t *testing.T) {
	c, m, err := readCluster(goodCluster, map[string]fs.FS{"traces": small()})
	if err != nil {
		t.Fatal(err)
	}
	want := []Group{
		{Type: "a", Nodes: 2, GPUs: 2, Price: 3.5, Down: []Outage{{600, 3600, 1}}},
		{Type: "b", Nodes: 1, GPUs: 8, Synthetic: true},
	}
	if !reflect.DeepEqual(c.Groups, want) || c.Total() != 12 || c.String() != "2 × 2 a and 1 × 8 b (synthetic)" {
		t.Errorf("%+v %s", c, c)
	}
	a := m["a"]["tiny"].times([]int{2}, 8)
	b := m["b"]["tiny"].times([]int{2}, 8)
	if a.times != (times{1, 0.2}) || math.Abs(b.step-0.6) > 1e-12 || b.sync != 0.2 {
		t.Errorf("%+v, twice as fast %+v", a, b)
	}
}

// TestTypesShareWhatIsLearnt: another type's folder needs no validation files.
func TestTypesShareWhatIsLearnt(t *testing.T) {
	bare := small()
	delete(bare, "tiny/validation-8.csv")
	delete(bare, "tiny/validation-64.csv")
	text := strings.Replace(strings.Replace(goodCluster, "profiles: traces\n    speed: 2", "profiles: bare", 1), "    speed: 2\n", "", 1)
	_, m, err := readCluster(text, map[string]fs.FS{"traces": small(), "bare": bare})
	if err != nil || m["b"]["tiny"].epochs != 2 || m["b"]["tiny"].Limits.MaxBatch != 64 {
		t.Error(m, err)
	}
	if _, _, err = readCluster(strings.ReplaceAll(text, "profiles: traces", "profiles: bare"), map[string]fs.FS{"bare": bare}); err == nil || !strings.Contains(err.Error(), "no validation-BATCH.csv") {
		t.Error(err)
	}
}

func TestBadClusters(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"nodes: 2", "nodes: -2", "c.yaml line 2, group 1: type a: -2 nodes with 2 GPUs each"},
		{"nodes: 1\n", "nodes: 99999999\n", "c.yaml line 9, group 2: type b: 99999999 nodes"},
		{"gpus_per_node: 8", "gpus_per_node: 0", "line 9, group 2: type b: 1 nodes with 0 GPUs each"},
		{"gpus_per_node: 8", "gpus: 8", `c.yaml line 11: unknown field "gpus"`},
		{"nodes: 2", "nodes: many", "c.yaml line 3: "},
		{"type: b", "type: a", `line 9, group 2: duplicate type "a"`},
		{"type: a", "type: ''", `line 2, group 1: "" is not a type`},
		{"type: a", `type: "\e[31m"`, "group 1: "},
		{"profiles: traces\n    speed", "profiles: elsewhere\n    speed", "group 2: elsewhere: the profile directory has no application folder"},
		{"    profiles: traces\n    speed", "    speed", "group 2: type b has no profiles"},
		{"speed: 2", "speed: 0", "group 2: a speed of 0 is not from 0.01 to 100"},
		{"speed: 2", "speed: .nan", "group 2: a speed of NaN is not"},
		{"speed: 2", "speeds: {gpt: 2}", `group 2: speeds: "gpt" has no profile; profiles exist for ["tiny"]`},
		{"3.5", "-1", "group 1: type a: -1 is not a price"},
		{"3.5", ".nan", "group 1: type a: NaN is not a price"},
		{"10m", "2h", "group 1: type a: 1 of 2 nodes are down from 7200 s to 3600 s"},
		{"10m", "soon", `group 1: down: from is "soon", not a time`},
		{"10m", "-10m", `group 1: down: from is "-10m", not a time`},
		{"to: 1h, nodes: 1", "to: 1h, nodes: 3", "3 of 2 nodes are down"},
		{"to: 1h, nodes: 1", "to: 999999h", "not a time"},
		{goodCluster, "", "c.yaml has no groups"},
		{goodCluster, "groups: [", "c.yaml line 1: "},
		{goodCluster, "\x00", "NUL byte"},
		{goodCluster, "groups: " + strings.Repeat("[", 50_000), "c.yaml line 1: exceeded max depth"},
		{goodCluster, "groups: " + strings.Repeat("[", 3000), "c.yaml line 1: "},
		{goodCluster, strings.Repeat("#", 2<<20), "more than 64 KiB"},
	} {
		_, _, err := readCluster(strings.Replace(goodCluster, c.old, c.new, 1), map[string]fs.FS{"traces": small()})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.new, err, c.want)
		}
	}
}

// types is the example's cluster on the published profiles.
func types(tb testing.TB) (Cluster, Measured) {
	tb.Helper()
	in, err := os.Open(filepath.Join(data, "cluster.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	defer in.Close()
	c, m, err := ReadCluster("cluster.yaml", in, "", func(dir string) fs.FS { return os.DirFS(filepath.Join(data, dir)) })
	if err != nil {
		tb.Fatal(err)
	}
	return c, m
}

// on is a workload whose jobs run on other types.
func (w Workload) on(m Measured) Workload {
	out := Workload{Name: w.Name, Jobs: slices.Clone(w.Jobs)}
	for i := range out.Jobs {
		out.Jobs[i].On = m.of(out.Jobs[i].Family)
	}
	return out
}

// TestOneType: a cluster file of one type gives the same figures as none, down to
// the digit.
func TestOneType(t *testing.T) {
	w := published(t, 3)[0]
	w.Jobs = w.Jobs[:60]
	_, m := types(t)
	for _, policy := range []string{"fifo", "tiresias", "goodput"} {
		one := simulate(t, policy, Uniform(8, 4), w)[0]
		same := simulate(t, policy, Cluster{Groups: []Group{{Type: "measured", Nodes: 8, GPUs: 4}}}, w.on(m))[0]
		for i, o := range one.Jobs {
			if p := same.Jobs[i]; o.Completed != p.Completed || o.Service != p.Service || o.Restarts != p.Restarts {
				t.Fatalf("%s: %+v and %+v", policy, o, p)
			}
		}
	}
}

// TestTypes: under each policy every job is on one type at a time and none is on
// nodes that are down; goodput, which learns types, is better than who does not.
func TestTypes(t *testing.T) {
	c, m := types(t)
	w := published(t, 3)[0].on(m)
	w.Jobs = w.Jobs[:100]
	half, err := w.Rigid(0.5, 1)
	if err != nil {
		t.Fatal(err)
	}
	jct := map[string]float64{}
	for _, policy := range []string{"fifo", "tiresias", "goodput"} {
		for name, w := range map[string]Workload{"": w, ", half rigid": half} {
			trace := simulate(t, policy, c, w)[0]
			for _, o := range trace.Jobs {
				for _, s := range o.Spans {
					for _, on := range s.Placement {
						if (on.Node < 4) != (s.Type == "faster") {
							t.Fatalf("%s: %+v is not on its type", o.Name, s)
						}
						if on.Node >= 13 && s.From < 5*3600 && s.To > 2*3600+60 { // until the plan after it
							t.Fatalf("%s: %+v is on a node that is down", o.Name, s)
						}
					}
				}
			}
			r := Summarise(policy, []Trace{trace}).Pooled
			jct[policy+name] = r.AvgJCT
			if len(r.Types) != 2 || r.Cost <= 0 || math.Abs(r.Types[0].GPUHours+r.Types[1].GPUHours-r.GPUHours) > 1e-6 {
				t.Errorf("%s: %+v", policy, r)
			}
		}
	}
	if jct["goodput"] > 0.6*jct["tiresias"] || jct["goodput, half rigid"] > jct["tiresias"] {
		t.Errorf("%v", jct)
	}
}

// TestAnyCluster: whatever types, sizes, outages and rigid jobs there are, every
// policy brings every job to its end, and its plans pass the engine's checks.
func TestAnyCluster(t *testing.T) {
	base := published(t, 3, 5)
	profiles := Profiles{}
	for _, w := range base {
		for _, j := range w.Jobs {
			profiles[j.Family] = j.On[""]
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var c Cluster
		m := Measured{}
		for i := range rapid.IntRange(1, 3).Draw(t, "types") {
			g := Group{Type: fmt.Sprintf("t%d", i), Nodes: rapid.IntRange(1, 6).Draw(t, "nodes"), GPUs: rapid.IntRange(1, 10).Draw(t, "gpus")}
			for range rapid.IntRange(0, 2).Draw(t, "outages") {
				from := rapid.IntRange(0, 40_000).Draw(t, "from")
				g.Down = append(g.Down, Outage{from, from + rapid.IntRange(1, 40_000).Draw(t, "for"), rapid.IntRange(1, g.Nodes).Draw(t, "down")})
			}
			c.Groups = append(c.Groups, g)
			m[g.Type] = Profiles{}
			speed := rapid.Float64Range(0.2, 5).Draw(t, "speed")
			for name, p := range profiles {
				if i == 0 || rapid.IntRange(0, 3).Draw(t, "missing") > 0 {
					m[g.Type][name] = p.faster(speed)
				}
			}
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		w := base[rapid.IntRange(0, len(base)-1).Draw(t, "workload")]
		first := rapid.IntRange(0, 130).Draw(t, "first")
		w.Jobs = w.Jobs[first : first+10]
		w, err := w.on(m).Rigid(rapid.Float64Range(0, 1).Draw(t, "rigid"), 1)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPolicy(rapid.SampledFrom([]string{"fifo", "tiresias", "goodput"}).Draw(t, "policy"))
		if err != nil {
			t.Fatal(err)
		}
		trace, err := Run(context.Background(), w, c, p, Options{Interval: 600})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range trace.Jobs {
			if o.Completed <= o.Submitted {
				t.Fatalf("%+v", o)
			}
		}
		if r := Summarise("", []Trace{trace}).Pooled; !(r.Utilisation > 0 && r.Utilisation <= 1+1e-9) {
			t.Fatalf("%+v", r)
		}
	})
}

// TestUnknownOnAType: an application that was not measured on a type does not run
// there, and on no type it is said.
func TestUnknownOnAType(t *testing.T) {
	c, m := types(t)
	delete(m["faster"], "cifar10")
	w := published(t, 3)[0].on(m)
	w.Jobs = w.Jobs[:40]
	for _, policy := range []string{"fifo", "tiresias", "goodput"} {
		for _, o := range simulate(t, policy, c, w)[0].Jobs {
			if o.Family == "cifar10" && slices.ContainsFunc(o.Spans, func(s Span) bool { return s.Type == "faster" }) {
				t.Errorf("%s: %+v", policy, o)
			}
		}
	}
	if _, err := Run(t.Context(), w, Cluster{Groups: []Group{{Type: "faster", Nodes: 4, GPUs: 4}}}, fifo{}, Options{Interval: 60}); err == nil || !strings.Contains(err.Error(), "cifar10 was measured on no type of GPU that the cluster has") {
		t.Error(err)
	}
}

// TestLearnsTypes: of a family that did not run on a type, the prior is what the
// others showed.
func TestLearnsTypes(t *testing.T) {
	_, m := types(t)
	a := newAdaptive()
	see := func(id int, name, on string) Job {
		p := m[on][name]
		l := p.Limits.MaxLocal
		at := p.times([]int{1}, l)
		j := Job{ID: id, Family: name, On: limits(m, name)}
		j.Observed = []Observation{{on, obs(1, 1, l, at.times)}}
		return j
	}
	a.learn(see(1, "bert", "measured"))
	a.compare()
	if by, known := a.families["bert"].on["faster"].model.Ratio(a.families["bert"].on["measured"].model); !known || by != 1 {
		t.Errorf("of what nobody saw: %v", by)
	}
	a.learn(see(2, "imagenet", "measured"))
	a.learn(see(3, "imagenet", "faster"))
	a.compare()
	if by, _ := a.families["bert"].on["faster"].model.Ratio(a.families["bert"].on["measured"].model); math.Abs(by-1/2.2) > 0.01 {
		t.Errorf("bert takes %v of the time by what imagenet showed", by)
	}
	a.learn(see(4, "bert", "faster"))
	a.compare()
	if by, _ := a.families["bert"].on["faster"].model.Ratio(a.families["bert"].on["measured"].model); math.Abs(by-1/3.0) > 0.01 {
		t.Errorf("bert takes %v of the time by what it showed itself", by)
	}
}

// TestUp adds up outages that overlap.
func TestUp(t *testing.T) {
	g := Group{Nodes: 4, GPUs: 2, Down: []Outage{{10, 30, 1}, {20, 40, 3}, {90, 200, 4}}}
	if got := g.up(100); got != 8*100-10*2-20*6-10*8 {
		t.Error(got)
	}
}

// TestAllDown: nothing runs while everything is down, and all of it afterwards.
func TestAllDown(t *testing.T) {
	w := published(t, 3)[0]
	w.Jobs = w.Jobs[:10]
	c := Cluster{Groups: []Group{{Nodes: 4, GPUs: 4, Down: []Outage{{3600, 3600 * 60, 4}}}}}
	for _, policy := range []string{"fifo", "tiresias", "goodput"} {
		for _, o := range simulate(t, policy, c, w)[0].Jobs {
			for _, s := range o.Spans {
				if s.To > 3660 && s.From < 3600*60 {
					t.Errorf("%s: %+v", policy, s)
				}
			}
		}
	}
}

// TestSearch finds the least size wherever it is, tries the one below it, and
// finds anomalies when all are tried.
func TestSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most, enough := rapid.IntRange(1, 300).Draw(t, "most"), rapid.IntRange(1, 320).Draw(t, "enough")
		s := Sizing{Most: most, Every: rapid.Bool().Draw(t, "every")}
		odd := rapid.IntRange(1, 300).Draw(t, "odd")
		err := s.Search(rapid.IntRange(1, 8).Draw(t, "at once"), func(nodes []int) (out []Size, err error) {
			for _, n := range nodes {
				out = append(out, Size{Nodes: n, Meets: n >= enough || s.Every && n == odd})
			}
			return out, nil
		})
		want := enough
		if s.Every && odd < enough {
			want = odd
		}
		if want > most {
			want = 0
		}
		has := func(n int) bool { return slices.ContainsFunc(s.Tried, func(t Size) bool { return t.Nodes == n }) }
		if err != nil || s.Nodes != want || want > 1 && !has(want-1) || want > 0 && !has(want) {
			t.Fatalf("%+v, want %d", s, want)
		}
		if anomalous := s.Every && odd < min(enough-1, most); anomalous != slices.Contains(s.Anomalies, odd) {
			t.Fatalf("%+v", s)
		}
		if !s.Every && len(s.Tried) > 40 {
			t.Fatalf("%d sizes tried", len(s.Tried))
		}
	})
}

// TestDeadlines: who is late is counted, and who is hopeless is given up.
func TestDeadlines(t *testing.T) {
	w := published(t, 3)[0]
	w, err := w.Due(4 * 3600)
	if err != nil {
		t.Fatal(err)
	}
	trace := simulate(t, "tiresias", Uniform(8, 4), w)[0]
	late := 0
	for _, o := range trace.Jobs {
		if o.JCT() > 4*3600 {
			late++
		}
	}
	r := Summarise("tiresias", []Trace{trace}).Pooled
	if late == 0 || r.Late != late || r.Due != 160 {
		t.Errorf("%+v, %d late", r, late)
	}
	for _, giveUp := range []int{late, late + 1} {
		trace, err := Run(t.Context(), w, Uniform(8, 4), newTiresias(), Options{Interval: 60, GiveUp: giveUp})
		if err != nil || trace.GaveUp != (giveUp == late) {
			t.Errorf("%d: %v, %v", giveUp, trace.GaveUp, err)
		}
	}
	s := &Sizing{Meet: 0.95, Due: 160}
	if s.Allowed() != 8 {
		t.Error(s.Allowed())
	}
	if s = (&Sizing{Meet: 1, Due: 7}); s.Allowed() != 0 {
		t.Error(s.Allowed())
	}
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := w.Due(bad); err == nil {
			t.Errorf("%v is a deadline", bad)
		}
	}
}

func TestDeadlineColumn(t *testing.T) {
	profiles, err := ReadProfiles(small())
	if err != nil {
		t.Fatal(err)
	}
	const head = "name,time,application,num_replicas,batch_size,deadline\na,0,tiny,1,8,"
	w, err := ReadWorkload("w.csv", strings.NewReader(head+"90\nb,0,tiny,1,8,\n"), Measured{"": profiles})
	if err != nil {
		t.Fatal(err)
	}
	if w, err = w.Due(50); err != nil || w.Jobs[0].Deadline != 90 || w.Jobs[1].Deadline != 50 {
		t.Errorf("%+v %v", w, err)
	}
	for bad, want := range map[string]string{"0": "0 s is not more than 0", "-1": "-1 is less than 0", "x": `"x" is not a number`, "NaN": "NaN is not a finite number"} {
		if _, err := ReadWorkload("w.csv", strings.NewReader(head+bad+"\n"), Measured{"": profiles}); err == nil || !strings.Contains(err.Error(), "w.csv line 2, column deadline: "+want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzCluster(f *testing.F) {
	f.Add(goodCluster)
	f.Add("groups: [{type: a, nodes: 1, gpus_per_node: 1, profiles: traces, down: [{from: 0s, to: 1s}]}]")
	f.Add("groups: [&a {type: x, <<: *a}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, m, err := readCluster(text, map[string]fs.FS{"traces": small()})
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, g := range c.Groups {
			for _, p := range m[g.Type] {
				if got := p.times([]int{1}, p.Limits.MinLocal); !(got.step > 0) {
					t.Fatalf("%+v", got)
				}
			}
		}
		if len(c.nodes(0)) > maxNodes || !(c.Groups[0].up(1e6) >= 0) {
			t.Fatal(c)
		}
	})
}

func ExampleCluster_String() {
	fmt.Println(Uniform(16, 4))
	// Output: 16 nodes with 4 GPUs each
}

func limits(m Measured, name string) map[string]goodput.Limits {
	out := map[string]goodput.Limits{}
	for t, p := range m.of(name) {
		out[t] = p.Limits
	}
	return out
}

func obs(nodes, replicas, local int, at times) goodput.Observation {
	return goodput.Observation{Nodes: nodes, Replicas: replicas, Local: local, Step: at.step, Sync: at.sync}
}
