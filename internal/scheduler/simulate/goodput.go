package simulate

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// adaptive is the policy goodput: it learns the speed of each family from its jobs in this
// simulation, and plans with it.
//
// For a type of GPU on which a family has not run, it uses the ratio that other families
// showed between that type and the type that the family knows best. Without such families
// it takes the types to be equal. (Sia, SOSP 2023, section 3.3, runs each job on each type first.)
type adaptive struct {
	families map[string]*family
	news     bool // there are new observations since the models were made
}

// family is what was observed of the jobs of one application.
type family struct {
	on    map[string]*seen // by type of GPU
	first goodput.Gradient // first observation of the first job: assumed for a new one
	most  int              // largest number of replicas observed
}

// seen is what was observed of a family on one type.
type seen struct {
	all   []goodput.Observation // each configuration once
	known map[[3]int]bool       // its nodes, replicas and local batch
	own   *goodput.Model        // of these alone
	model *goodput.Model        // also from this family on other types, and other families on this type
}

func newAdaptive() *adaptive { return &adaptive{families: map[string]*family{}} }

// learn adds what a job has observed to its family.
func (a *adaptive) learn(j Job) *family {
	f := a.families[j.Family]
	if f == nil {
		f = &family{on: map[string]*seen{}}
		for t := range j.On {
			f.on[t] = &seen{own: goodput.Fit(nil), model: goodput.Fit(nil), known: map[[3]int]bool{}}
		}
		a.families[j.Family], a.news = f, true
	}
	if f.first == (goodput.Gradient{}) {
		f.first = j.Gradient
	}
	stale := map[*seen]bool{}
	for _, o := range j.Observed {
		s, key := f.on[o.Type], [3]int{o.Nodes, o.Replicas, o.Local}
		if s.known[key] {
			continue
		}
		s.known[key] = true
		s.all = append(s.all, o.Observation)
		stale[s] = stale[s] || !s.own.Explains(o.Observation)
	}
	for s, is := range stale {
		if is {
			s.own, a.news = goodput.Fit(s.all), true
			s.model = s.own
			f.most = max(f.most, s.own.Most())
		}
	}
	return f
}

// compare makes the models of types from the observations of other types.
func (a *adaptive) compare() {
	if !a.news {
		return
	}
	a.news = false
	for _, name := range slices.Sorted(maps.Keys(a.families)) {
		f := a.families[name]
		best := ""
		for _, t := range slices.Sorted(maps.Keys(f.on)) {
			if best == "" || cmp.Compare(f.on[t].own.Most(), f.on[best].own.Most()) > 0 {
				best = t
			}
		}
		for t, s := range f.on {
			switch like := f.on[best].own; {
			case t == best || !like.Known():
				s.model = s.own
			case s.own.Known():
				s.model = goodput.FitLike(s.all, like)
			default:
				s.model = like.Scaled(a.ratio(t, best))
			}
		}
	}
}

// ratio is the computing time on one type relative to another: the geometric mean over the
// families observed on both; 1 if there are none.
func (a *adaptive) ratio(on, as string) float64 {
	sum, n := 0.0, 0.0
	for _, name := range slices.Sorted(maps.Keys(a.families)) {
		f := a.families[name]
		x, y := f.on[on], f.on[as]
		if x == nil || y == nil {
			continue
		}
		if by, ok := x.own.Ratio(y.own); ok {
			sum, n = sum+math.Log(by), n+1
		}
	}
	return math.Exp(sum / max(n, 1))
}

// gradient is the gradient that is assumed for a job.
func (f *family) gradient(j Job) goodput.Gradient {
	if j.Gradient == (goodput.Gradient{}) {
		return f.first
	}
	return j.Gradient
}

func (a *adaptive) Plan(now int, nodes []Node, jobs []Job) map[int]Placement {
	for _, j := range jobs {
		a.learn(j)
	}
	a.compare()
	wish := make([]goodput.Job, len(jobs))
	for i, j := range jobs {
		f := a.families[j.Family]
		on := make(map[string]goodput.Device, len(j.On))
		for t, l := range j.On {
			on[t] = goodput.Device{Model: f.on[t].model, Limits: l}
		}
		wish[i] = goodput.Job{
			ID: j.ID, On: on, Gradient: f.gradient(j), Min: 1, Max: max(2*f.most, 1), // twice what was observed, as in Pollux
			Placement: j.Placement, Device: j.Type,
			Age: j.Age(now), Service: float64(j.Service), Started: j.Started, Restarts: j.Restarts,
		}
		if j.Rigid {
			wish[i].Min, wish[i].Max, wish[i].Batch = j.Replicas, j.Replicas, j.Batch
		}
	}
	return goodput.Default.Plan(nodes, wish)
}

// Batch is the best batch size for the placement. A job without observations starts with
// the initial batch size.
func (a *adaptive) Batch(j Job) int {
	f, l := a.learn(j), j.On[j.Type]
	m := f.on[j.Type].model
	replicas := j.Placement.Replicas()
	if !m.Known() {
		return max(l.MinBatch, replicas*l.MinLocal)
	}
	batch, _ := m.Best(l, f.gradient(j), len(j.Placement), replicas)
	return batch
}
