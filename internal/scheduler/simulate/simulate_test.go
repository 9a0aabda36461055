package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

const data = "../../../examples/pollux"

// published are the eight workloads of Pollux and the profiles.
func published(tb testing.TB, numbers ...int) []Workload {
	tb.Helper()
	profiles, err := ReadProfiles(os.DirFS(filepath.Join(data, "traces")))
	if err != nil {
		tb.Fatal(err)
	}
	var out []Workload
	for _, n := range numbers {
		name := fmt.Sprintf("workload-%d", n)
		in, err := os.Open(filepath.Join(data, "workloads", name+".csv"))
		if err != nil {
			tb.Fatal(err)
		}
		defer in.Close()
		w, err := ReadWorkload(name, in, Measured{"": profiles})
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, w)
	}
	return out
}

func simulate(tb testing.TB, policy string, c Cluster, workloads ...Workload) []Trace {
	tb.Helper()
	var out []Trace
	for _, w := range workloads {
		p, err := NewPolicy(policy)
		if err != nil {
			tb.Fatal(err)
		}
		trace, err := Run(tb.Context(), w, c, p, Options{Interval: 60})
		if err != nil {
			tb.Fatalf("%s: %v", w.Name, err)
		}
		out = append(out, trace)
	}
	return out
}

// TestTiresias: the published averages, to the last digit.
func TestTiresias(t *testing.T) {
	s := Summarise("tiresias", simulate(t, "tiresias", Uniform(16, 4), published(t, 1, 2, 3, 4, 5, 6, 7, 8)...))
	for i, want := range []float64{2473.65, 5144.96, 3876.26, 3280.26, 3501.01, 3469.69, 5479.91, 5079.71} {
		if got := s.Workloads[i].AvgJCT; math.Abs(got-want) > 0.005 {
			t.Errorf("workload %d: average %.4f s, published %.2f", i+1, got, want)
		}
	}
	if s.Pooled.Guessed != 0 {
		t.Errorf("%v GPU-hours of what was not measured", s.Pooled.Guessed)
	}
	for _, of := range []struct {
		name      string
		got, want float64
	}{{"average", s.Pooled.AvgJCT, 1.122}, {"p99", s.Pooled.P99JCT, 15.68}, {"makespan", s.Pooled.Makespan, 24.2}} {
		if got := of.got / 3600; math.Abs(got-of.want) > 0.05 || of.name != "makespan" && math.Abs(got-of.want) > 0.005 {
			t.Errorf("pooled %s %.4f h, published %v", of.name, got, of.want)
		}
	}
}

// TestDelaunay holds interpolation against scipy's, where the triangulation is
// unique; testdata says where it is from.
func TestDelaunay(t *testing.T) {
	b, err := os.ReadFile("testdata/delaunay.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Points, Queries []struct {
			At    [3]float64
			Value []float64
		}
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	var points []point
	for _, p := range f.Points {
		points = append(points, point{p.At, p.Value[0], p.Value[1]})
	}
	for _, q := range f.Queries {
		step, sync, ok := interpolate(points, q.At)
		if ok != (q.Value != nil) {
			t.Errorf("%v: inside is %v", q.At, ok)
			continue
		}
		if ok && (math.Abs(step-q.Value[0]) > 1e-9 || math.Abs(sync-q.Value[1]) > 1e-9) {
			t.Errorf("%v: %v %v, want %v", q.At, step, sync, q.Value)
		}
	}
}

// TestInterpolateLinear: on any grid, a linear function comes out as it is.
func TestInterpolateLinear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := func(at [3]float64) float64 { return 1 + 2*at[0] + 3*at[1] - at[2]/7 }
		var points []point
		for n := 1.0; n <= 16; n *= 2 {
			for r := n; r <= 4*n; r += max(1, n/2) {
				for b := 32.0; b <= 4096; b = math.Round(b * 1.41) {
					at := [3]float64{n, r, b}
					points = append(points, point{at, f(at), -f(at)})
				}
			}
		}
		n := float64(rapid.IntRange(1, 16).Draw(t, "nodes"))
		q := [3]float64{n, math.Round(n * rapid.Float64Range(1, 4).Draw(t, "density")), float64(rapid.IntRange(32, 3000).Draw(t, "local"))}
		step, sync, ok := interpolate(points, q)
		if !ok || math.Abs(step-f(q)) > 1e-6*max(1, math.Abs(f(q))) || math.Abs(step+sync) > 1e-6*max(1, math.Abs(step)) {
			t.Fatalf("%v: %v %v %v, want %v", q, step, sync, ok, f(q))
		}
	})
}

func TestNormal(t *testing.T) {
	for _, c := range []struct {
		gpus []int
		want string
	}{{[]int{4, 4, 2}, "244"}, {[]int{2, 4, 4}, "244"}, {[]int{1}, "1"}, {[]int{3, 1, 2}, "123"}, {[]int{16, 8}, "8(16)"}} {
		if got := normal(c.gpus); got != c.want {
			t.Errorf("%v is %s, want %s", c.gpus, got, c.want)
		}
	}
}

// a profile that is as small as one can be, and what is changed in it.
func small(changes ...string) fstest.MapFS {
	m := fstest.MapFS{
		"tiny/placements.csv":    {Data: []byte("placement,local_bsz,step_time,sync_time\n1,8,1,0.1\n1,16,2,0.1\n2,8,1,0.2\n2,16,2,0.2\n11,8,1.5,0.5\n11,16,2.5,0.5\n")},
		"tiny/scalability.csv":   {Data: []byte("num_nodes,num_replicas,local_bsz,step_time,sync_time\n3,3,8,1.5,0.5\n3,3,16,2.5,0.5\n3,6,8,1.6,0.6\n3,6,16,2.6,0.6\n")},
		"tiny/validation-8.csv":  {Data: []byte("progress,iteration,metric,grad_sqr,grad_var\n100,100,0,1,1\n200,200,0,1,1\n")},
		"tiny/validation-64.csv": {Data: []byte("progress,iteration,metric,grad_sqr,grad_var\n110,20,0,1,4\n220,40,0,1,4\n")},
	}
	for i := 0; i < len(changes); i += 3 {
		name := "tiny/" + changes[i]
		m[name] = &fstest.MapFile{Data: []byte(strings.Replace(string(m[name].Data), changes[i+1], changes[i+2], 1))}
	}
	return m
}

func TestBadProfiles(t *testing.T) {
	for _, c := range []struct{ file, old, new, want string }{
		{"placements.csv", "1,8,1,0.1", "1,8,NaN,0.1", "tiny/placements.csv line 2, column step_time: NaN is not a finite number"},
		{"placements.csv", "1,8,1,0.1", "1,8,1,-0.1", "tiny/placements.csv line 2, column sync_time: -0.1 is less than 0"},
		{"placements.csv", "1,8,1,0.1", "1,8,1,x", `tiny/placements.csv line 2, column sync_time: "x" is not a number`},
		{"placements.csv", "1,8,1,0.1", "1,8,0.05,0.1", "column step_time: 0.05 s is not longer than sync_time"},
		{"placements.csv", "1,8,1,0.1", "1,8.5,1,0.1", `column local_bsz: "8.5" is not a whole number`},
		{"placements.csv", "1,16,", "1,8,", "line 3, column local_bsz: duplicate placement 1 with 8"},
		{"placements.csv", "\n1,8", "\n1x,8", `column placement: "1x" is not one digit`},
		{"placements.csv", "\n1,8,1,0.1", "\n1,8,1", "tiny/placements.csv line 2: wrong number of fields"},
		{"placements.csv", "sync_time", "sync", `tiny/placements.csv has no column "sync_time"`},
		{"placements.csv", "sync_time", "step_time", `tiny/placements.csv has the column "step_time" twice`},
		{"scalability.csv", "3,3,16", "3,3,8", "duplicate rows for 3 replicas on 3 nodes with local batch 8"},
		{"scalability.csv", "3,3,8", "3,2,8", "column num_replicas: 2 is not from 3 to"},
		{"validation-8.csv", "200,200", "90,200", "tiny/validation-8.csv line 3, column progress: 90 is not more than the epoch before"},
		{"validation-8.csv", "0,1,1\n200", "0,0,0\n200", "a gradient without square and variance"},
		{"validation-8.csv", "0,1,1\n200", "0,1e308,1\n200", "tiny/validation-8.csv line 2, column grad_sqr: 1e+308 is more than 1e+100"},
		{"validation-8.csv", "0,1,1\n200", "0,1,1e308\n200", "tiny/validation-8.csv line 2, column grad_var: 1e+308 is more than 1e+100"},
		{"placements.csv", "1,8,1,0.1", "1,8,1e90,0.1", "tiny/placements.csv line 2, column step_time: 1e+90 s is not from"},
		{"placements.csv", "1,8,1,0.1", "1,8,1e-300,0", "tiny/placements.csv line 2, column step_time: 1e-300 s is not from"},
	} {
		_, err := ReadProfiles(small(c.file, c.old, c.new))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v, want %q", c.file, c.new, err, c.want)
		}
	}
	for name, want := range map[string]string{
		"placements.csv": "the profile of tiny", "validation-8.csv": "", "validation-64.csv": "",
	} {
		m := small()
		delete(m, "tiny/"+name)
		_, err := ReadProfiles(m)
		if want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for limits, want := range map[string]string{
		"max_local_bsz\n8\n": "", "max_local_bsz\n100\n": "",
		"max_local_bsz\n4\n":    "max_local_bsz 4 in limits.csv is less than the smallest measured local batch 8",
		"max_local_bsz\n0\n":    "tiny/limits.csv line 2, column max_local_bsz: 0 is not from 1",
		"max_local_bsz\n8\n9\n": "tiny/limits.csv line 3, column max_local_bsz: there is more than one row",
		"batch\n8\n":            `tiny/limits.csv has no column "max_local_bsz"`,
	} {
		m := small()
		m["tiny/limits.csv"] = &fstest.MapFile{Data: []byte(limits)}
		if _, err := ReadProfiles(m); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", limits, err, want)
		}
	}
	// What the job model states of an application holds without a file, and a file wins.
	m := fstest.MapFS{}
	for name, f := range small() {
		m[strings.Replace(name, "tiny", "yolov3", 1)] = f
	}
	all, err := ReadProfiles(m)
	if err != nil || all["yolov3"].Limits.MaxLocal != 8 {
		t.Errorf("%+v, %v", all["yolov3"], err)
	}
	m["yolov3/limits.csv"] = &fstest.MapFile{Data: []byte("max_local_bsz\n16\n")}
	if all, err = ReadProfiles(m); err != nil || all["yolov3"].Limits.MaxLocal != 16 {
		t.Errorf("%+v, %v", all["yolov3"], err)
	}
	delete(m, "yolov3/limits.csv")
	for _, file := range []string{"placements.csv", "scalability.csv"} {
		m["yolov3/"+file] = &fstest.MapFile{Data: bytes.ReplaceAll(m["yolov3/"+file].Data, []byte(",8,"), []byte(",12,"))}
	}
	if all, err = ReadProfiles(m); err != nil || all["yolov3"].Limits.MaxLocal != 16 {
		t.Errorf("of another yolov3, whose least is 12: %+v, %v", all["yolov3"], err)
	}
	if _, err := ReadProfiles(fstest.MapFS{}); err == nil {
		t.Error("an empty directory has profiles")
	}
}

// TestNearest: what nobody measured takes as long as the nearest that was, and
// longer for a larger local batch.
func TestNearest(t *testing.T) {
	profiles, err := ReadProfiles(small())
	if err != nil {
		t.Fatal(err)
	}
	p := profiles["tiny"]
	for _, c := range []struct {
		name  string
		gpus  []int
		local int
		want  estimate
	}{
		{"measured", []int{1, 1}, 8, estimate{times{1.5, 0.5}, false}},
		{"between", []int{1, 1}, 12, estimate{times{2, 0.5}, false}},
		{"a measured placement with more", []int{1, 1}, 32, estimate{times{4.5, 0.5}, true}},
		{"and with less", []int{1, 1}, 4, estimate{times{1.5, 0.5}, true}},
		{"another with more", []int{2, 2, 2}, 32, estimate{times{4.6, 0.6}, true}},
		{"not the near one with fewer replicas", []int{2, 2}, 32, estimate{times{4.6, 0.6}, true}},
		{"more than all", []int{4, 4, 4}, 8, estimate{times{1.6, 0.6}, true}},
	} {
		if got := p.times(c.gpus, c.local); got.guess != c.want.guess || math.Abs(got.step-c.want.step)+math.Abs(got.sync-c.want.sync) > 1e-9 {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	for batch, want := range map[int]float64{1: 1, 8: 1, 36: 2.5, 64: 4, 100: 4} {
		if got := p.gradient(batch, 0); got.Var != want {
			t.Errorf("batch %d: %+v, want a variance of %v", batch, got, want)
		}
	}
}

// TestHoles: however little was measured, and whatever a policy makes of it, every
// job comes to its end; hours of which nothing was measured are counted.
func TestHoles(t *testing.T) {
	guessed := 0.0
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, least, most int) int { return rapid.IntRange(least, most).Draw(t, name) }
		row := func(b *strings.Builder, first string, local int) {
			sync := float64(number("sync", 0, 9)) / 10
			fmt.Fprintf(b, "%s,%d,%v,%v\n", first, local, sync+float64(number("compute", 1, 40))/10, sync)
		}
		var placements, scalability strings.Builder
		placements.WriteString("placement,local_bsz,step_time,sync_time\n")
		scalability.WriteString("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
		for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"1", "2", "4", "11", "13", "44", "224"}), 1, 4, rapid.ID).Draw(t, "placements") {
			for _, local := range rapid.SliceOfNDistinct(rapid.IntRange(1, 20), 1, 3, rapid.ID).Draw(t, "locals") {
				row(&placements, id, local)
			}
		}
		for _, nodes := range rapid.SliceOfNDistinct(rapid.IntRange(5, 12), 1, 3, rapid.ID).Draw(t, "nodes") {
			row(&scalability, fmt.Sprintf("%d,%d", nodes, number("replicas", nodes, 4*nodes)), number("local", 1, 20))
		}
		m := fstest.MapFS{"a/placements.csv": {Data: []byte(placements.String())}, "a/scalability.csv": {Data: []byte(scalability.String())}}
		least := number("least", 20, 80)
		for _, batch := range []int{least, least + number("more", 1, 400)} {
			m[fmt.Sprintf("a/validation-%d.csv", batch)] = &fstest.MapFile{Data: []byte("progress,grad_sqr,grad_var\n300,1,5\n600,1,9\n")}
		}
		profiles, err := ReadProfiles(m)
		if err != nil {
			t.Fatal(err)
		}
		p := profiles["a"]
		w := Workload{Name: "w"}
		for i := range 6 {
			replicas := number("asked", 1, max(1, min(p.Limits.MaxReplicas, p.Limits.MaxBatch/p.Limits.MinLocal)))
			w.Jobs = append(w.Jobs, Submission{
				Name: strconv.Itoa(i), At: float64(200 * i), Family: "a", On: map[string]*Profile{"": p}, Replicas: replicas,
				Batch: number("batch", p.Limits.MinBatch, p.Limits.MaxBatch), Rigid: rapid.Bool().Draw(t, "rigid"),
			})
		}
		policy, err := NewPolicy(rapid.SampledFrom([]string{"fifo", "tiresias", "goodput"}).Draw(t, "policy"))
		if err != nil {
			t.Fatal(err)
		}
		trace, err := Run(context.Background(), w, Uniform(number("size", 1, 14), number("gpus", 1, 6)), policy, Options{Interval: 60})
		if err != nil {
			t.Fatal(err)
		}
		r := Summarise("", []Trace{trace}).Pooled
		if guessed += r.Guessed; r.Guessed > r.GPUHours {
			t.Fatalf("%+v", r)
		}
	})
	if guessed == 0 {
		t.Error("nothing was guessed")
	}
}

const goodWorkload = "name,time,application,num_replicas,batch_size\na,0,tiny,1,8\nb,100.5,tiny,2,64\n"

func TestBadWorkloads(t *testing.T) {
	profiles, err := ReadProfiles(small())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"b,100.5", "a,100.5", `w.csv line 3, column name: "a" is already the name of the job in line 2`},
		{"b,100.5", "b,-1", "w.csv line 3, column time: -1 is less than 0"},
		{"b,100.5", "b,Inf", "column time: +Inf is not a finite number"},
		{"b,100.5", "b,1700000000", "column time: 1.7e+09 s is more than ten years after the beginning"},
		{"a,0", "a,200", "w.csv line 3, column time: 100.5 s is before the previous job"},
		{"tiny,2", "huge,2", `w.csv line 3, column application: "huge" has no profile; profiles exist for ["tiny"]`},
		{"tiny,2,64", "tiny,0,64", "column num_replicas: 0 is not from 1"},
		{"tiny,2,64", "tiny,7,64", "column num_replicas: 7 are more than the 6"},
		{"tiny,2,64", "tiny,2,65", "column batch_size: 65 is not from 8 to 64"},
		{"tiny,2,64", "tiny,2,8", "column batch_size: 8 on 2 replicas is 4 each, less than the 8"},
		{"name,time", "name,when", `w.csv has no column "time"`},
		{goodWorkload, "", "w.csv is empty"},
		{goodWorkload, "name,time,application,num_replicas,batch_size\n", "w.csv has no rows"},
		{"\nb,", "\n\"b,", "w.csv line 3"},
		{"b,100.5", "\x1b[31m,100.5", "column name"},
	} {
		_, err := ReadWorkload("w.csv", strings.NewReader(strings.Replace(goodWorkload, c.old, c.new, 1)), Measured{"": profiles})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.new, err, c.want)
		}
	}
	w, err := ReadWorkload("w.csv", strings.NewReader(goodWorkload), Measured{"": profiles})
	if err != nil || len(w.Jobs) != 2 || w.Jobs[1].At != 100.5 || w.Jobs[1].Batch != 64 {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestOneJob follows one job second by second.
func TestOneJob(t *testing.T) {
	profiles, err := ReadProfiles(small())
	if err != nil {
		t.Fatal(err)
	}
	w, err := ReadWorkload("w", strings.NewReader("name,time,application,num_replicas,batch_size\na,10,tiny,1,8\n"), Measured{"": profiles})
	if err != nil {
		t.Fatal(err)
	}
	o := simulate(t, "fifo", Uniform(1, 2), w)[0].Jobs[0]
	// Placed at 60, runs from 90 on; two epochs of 100 iterations of one second.
	if o.Completed != 290 || o.Service != 230 || o.Restarts != 0 || len(o.Spans) != 1 || o.Spans[0].From != 60 || o.Spans[0].To != 290 {
		t.Errorf("%+v", o)
	}
}

// TestLargeRequests: a request larger than the cluster, or nodes larger than the
// measured ones, still run.
func TestLargeRequests(t *testing.T) {
	w := published(t, 7)[0]
	for _, c := range []Cluster{Uniform(4, 2), Uniform(2, 16), Uniform(64, 1)} {
		for _, o := range simulate(t, "tiresias", c, w)[0].Jobs {
			if o.Completed <= o.Submitted {
				t.Errorf("%+v on %v", o, c)
			}
		}
	}
}

type greedy struct{ fifo }

func (greedy) Plan(_ int, _ []Node, jobs []Job) map[int]Placement {
	plan := map[int]Placement{}
	for _, j := range jobs {
		plan[j.ID] = Placement{{Node: 0, GPUs: 1}}
	}
	return plan
}

type idle struct{ fifo }

func (idle) Plan(int, []Node, []Job) map[int]Placement { return nil }

// TestBadPolicies: a policy that gives what is not there, or nothing, is found.
func TestBadPolicies(t *testing.T) {
	w := published(t, 1)[0]
	if _, err := Run(t.Context(), w, Uniform(1, 4), greedy{}, Options{Interval: 60}); err == nil || !strings.Contains(err.Error(), "more than the 4 GPUs of node 0") {
		t.Error(err)
	}
	if _, err := Run(t.Context(), w, Uniform(1, 4), idle{}, Options{Interval: 60}); err == nil || !strings.Contains(err.Error(), "never run") {
		t.Error(err)
	}
	for _, c := range []Cluster{Uniform(0, 4), Uniform(-1, 1), Uniform(1<<40, 1), {}} {
		if _, err := Run(t.Context(), w, c, idle{}, Options{Interval: 60}); err == nil {
			t.Errorf("%v is a cluster", c)
		}
	}
	if _, err := NewPolicy("fair"); err == nil || !strings.Contains(fault.HintOf(err), "--from-live") {
		t.Error(err)
	}
	if _, err := NewPolicy("best"); err == nil || !strings.Contains(err.Error(), `unknown policy "best"`) {
		t.Error(err)
	}
}

func TestLoadAndRigid(t *testing.T) {
	w := published(t, 1)[0]
	fast, err := w.Load(2)
	if err != nil || fast.Jobs[5].At != w.Jobs[5].At/2 {
		t.Errorf("%v %v", fast.Jobs[5], err)
	}
	half, err := w.Rigid(0.5, 1)
	again, _ := w.Rigid(0.5, 1)
	other, _ := w.Rigid(0.5, 2)
	rigid, same := 0, 0
	for i, j := range half.Jobs {
		if j.Rigid != again.Jobs[i].Rigid {
			t.Fatal("one seed, two draws")
		}
		if j.Rigid {
			rigid++
		}
		if j.Rigid == other.Jobs[i].Rigid {
			same++
		}
	}
	if err != nil || rigid != 80 || same == 160 {
		t.Error(rigid, same, err)
	}
	for _, bad := range []float64{-1, 1.5, math.NaN()} {
		if _, err := w.Rigid(bad, 1); err == nil {
			t.Error(bad)
		}
		if _, err := w.Load(bad - 1e9); err == nil {
			t.Error(bad)
		}
	}
}

// TestCompare: a policy against itself is the same; against a slower one the
// interval leaves out 1, and one seed gives one interval.
func TestCompare(t *testing.T) {
	w := published(t, 1, 2)
	fast, slow := simulate(t, "tiresias", Uniform(16, 4), w...), simulate(t, "tiresias", Uniform(8, 4), w...)
	if c := Compare("tiresias", fast, fast, 1); c.AvgJCT != (Interval{1, 1, 1}) || c.Makespan != (Interval{1, 1, 1}) {
		t.Errorf("%+v", c)
	}
	c := Compare("tiresias", fast, slow, 1)
	if a := c.AvgJCT; a.High >= 1 || a.Low > a.Ratio || a.Ratio > a.High {
		t.Errorf("%+v", c)
	}
	if Compare("tiresias", fast, slow, 1) != c {
		t.Error("one seed, two intervals")
	}
}

func FuzzWorkload(f *testing.F) {
	profiles, err := ReadProfiles(small())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(goodWorkload)
	f.Add("name,time,application,num_replicas,batch_size\na,1e9999,tiny,1,8\n")
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ReadWorkload("w", strings.NewReader(text), Measured{"": profiles})
		if err != nil {
			return
		}
		for _, j := range w.Jobs {
			l := j.On[""].Limits
			if j.Replicas < 1 || !(j.At >= 0) || l.Split(j.Batch, j.Replicas).Local < l.MinLocal || !(j.Deadline >= 0) {
				t.Fatalf("%+v", j)
			}
		}
	})
}

func FuzzProfile(f *testing.F) {
	read := func(name string) string {
		b, _ := fs.ReadFile(small(), "tiny/"+name)
		return string(b)
	}
	f.Add(read("placements.csv"), read("scalability.csv"), read("validation-8.csv"))
	f.Fuzz(func(t *testing.T, placements, scalability, validation string) {
		profiles, err := ReadProfiles(fstest.MapFS{
			"tiny/placements.csv": {Data: []byte(placements)}, "tiny/scalability.csv": {Data: []byte(scalability)},
			"tiny/validation-8.csv": {Data: []byte(validation)},
		})
		if err != nil {
			return
		}
		p := profiles["tiny"]
		if got := p.times([]int{1}, p.Limits.MinLocal); !(got.step > 0) {
			t.Fatalf("%+v", got)
		}
	})
}

// TestPage: the page needs nothing else, and a name in it is only a name.
func TestPage(t *testing.T) {
	w := published(t, 3)[0]
	w.Jobs[0].Name = `</title><script>alert(1)</script>`
	traces := simulate(t, "tiresias", Uniform(16, 4), w)
	s := Summarise("tiresias", traces)
	c := Compare("tiresias", traces, traces, 1)
	s.Compared = &c
	var b strings.Builder
	if err := WritePage(&b, s, traces); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "http", "src=", "NaN", "ZgotmplZ"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, good := range []string{"&lt;script&gt;", "160 jobs in the order", "<rect", "hsl("} {
		if !strings.Contains(text, good) {
			t.Errorf("the page has no %q", good)
		}
	}
}
