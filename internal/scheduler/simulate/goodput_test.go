package simulate

import (
	"reflect"
	"testing"
)

// TestGoodput: on one workload, goodput has less of everything than tiresias; with
// half the jobs rigid it is still better on average.
// All eight are measured by bench/scheduler.
func TestGoodput(t *testing.T) {
	w := published(t, 3)[0]
	c := Uniform(16, 4)
	theirs := Summarise("tiresias", simulate(t, "tiresias", c, w)).Pooled
	ours := Summarise("goodput", simulate(t, "goodput", c, w)).Pooled
	if ours.AvgJCT > 0.6*theirs.AvgJCT || ours.P99JCT > theirs.P99JCT || ours.Makespan > theirs.Makespan {
		t.Errorf("%+v against %+v", ours, theirs)
	}
	half, err := w.Rigid(0.5, 1)
	if err != nil {
		t.Fatal(err)
	}
	if mixed := Summarise("goodput", simulate(t, "goodput", c, half)).Pooled; mixed.AvgJCT > theirs.AvgJCT {
		t.Errorf("with half rigid %+v against %+v", mixed, theirs)
	}
}

// TestGoodputElsewhere: other loads and clusters, on the first jobs of a workload;
// two runs are the same.
func TestGoodputElsewhere(t *testing.T) {
	w := published(t, 6)[0]
	w.Jobs = w.Jobs[:32]
	for _, e := range []struct {
		name  string
		load  float64
		share float64
		c     Cluster
	}{
		{"twice the load", 2, 0, Uniform(16, 4)},
		{"half the load, some rigid", 0.5, 0.3, Uniform(16, 4)},
		{"small", 1, 0, Uniform(4, 4)},
		{"large nodes", 1, 0, Uniform(4, 8)},
		{"nodes of one GPU", 1, 0, Uniform(24, 1)},
		{"odd nodes, some rigid", 1, 0.3, Uniform(9, 3)},
	} {
		t.Run(e.name, func(t *testing.T) {
			w, err := w.Load(e.load)
			if err != nil {
				t.Fatal(err)
			}
			if w, err = w.Rigid(e.share, 1); err != nil {
				t.Fatal(err)
			}
			traces := simulate(t, "goodput", e.c, w)
			if again := simulate(t, "goodput", e.c, w); !reflect.DeepEqual(traces, again) {
				t.Error("two runs differ")
			}
			ours := Summarise("goodput", traces).Pooled
			theirs := Summarise("tiresias", simulate(t, "tiresias", e.c, w)).Pooled
			if ours.AvgJCT > theirs.AvgJCT {
				t.Errorf("%+v against %+v", ours, theirs)
			}
		})
	}
}

// blind sees jobs as policies do, and what may be known never shrinks.
type blind struct {
	*adaptive
	t    *testing.T
	seen map[int]int
}

func (b blind) Plan(now int, nodes []Node, jobs []Job) map[int]Placement {
	for _, j := range jobs {
		if j.Submitted > float64(now) {
			b.t.Errorf("job %d is known before it is submitted", j.ID)
		}
		if len(j.Observed) < b.seen[j.ID] || !j.Started && (len(j.Observed) > 0 || j.Gradient.Var != 0) {
			b.t.Errorf("job %d has observed what it did not run", j.ID)
		}
		b.seen[j.ID] = len(j.Observed)
	}
	return b.adaptive.Plan(now, nodes, jobs)
}

func TestPoliciesSeeTheirTime(t *testing.T) {
	w := published(t, 3)[0]
	w.Jobs = w.Jobs[:40]
	if _, err := Run(t.Context(), w, Uniform(4, 4), blind{newAdaptive(), t, map[int]int{}}, Options{Interval: 60}); err != nil {
		t.Fatal(err)
	}
}
