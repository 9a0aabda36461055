package simulate

import (
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// gpu is the one device type of these workloads.
const gpu = ""

// adaptive is the policy goodput: it learns how fast the jobs of each family step
// from those that ran in this simulation, and plans by it.
type adaptive struct{ families map[string]*family }

// family is what is known of the jobs of one application.
type family struct {
	seen  []goodput.Observation // each configuration once
	known map[[3]int]bool       // its nodes, replicas and local batch
	model *goodput.Model
	first goodput.Gradient // that the first job saw first: what a new one expects
}

func newAdaptive() *adaptive { return &adaptive{families: map[string]*family{}} }

// learn adds what a job has observed to its family.
func (a *adaptive) learn(j Job) *family {
	f := a.families[j.Family]
	if f == nil {
		f = &family{model: goodput.Fit(nil), known: map[[3]int]bool{}}
		a.families[j.Family] = f
	}
	if f.first == (goodput.Gradient{}) {
		f.first = j.Gradient
	}
	stale := false
	for _, o := range j.Observed {
		key := [3]int{o.Nodes, o.Replicas, o.Local}
		if f.known[key] {
			continue
		}
		f.known[key] = true
		f.seen = append(f.seen, o)
		stale = stale || !f.model.Explains(o)
	}
	if stale {
		f.model = goodput.Fit(f.seen)
	}
	return f
}

// gradient is what a job expects to see.
func (f *family) gradient(j Job) goodput.Gradient {
	if j.Gradient == (goodput.Gradient{}) {
		return f.first
	}
	return j.Gradient
}

func (a *adaptive) Plan(now int, c Cluster, jobs []Job) map[int]Placement {
	for _, j := range jobs {
		a.learn(j)
	}
	nodes := make([]goodput.Node, c.Nodes)
	for i := range nodes {
		nodes[i] = goodput.Node{GPUs: c.GPUs, Device: gpu}
	}
	wish := make([]goodput.Job, len(jobs))
	for i, j := range jobs {
		f := a.families[j.Family]
		wish[i] = goodput.Job{
			ID: j.ID, Models: map[string]*goodput.Model{gpu: f.model}, Limits: j.Limits, Gradient: f.gradient(j),
			Min: 1, Max: min(max(2*f.model.Most(), 1), j.Limits.MaxReplicas), // twice what is known, as Pollux
			Placement: j.Placement, Device: gpu,
			Age: j.Age(now), Service: float64(j.Service), Started: j.Started, Restarts: j.Restarts,
		}
		if j.Rigid {
			wish[i].Min, wish[i].Max, wish[i].Batch = j.Replicas, j.Replicas, j.Batch
		}
	}
	return goodput.Default.Plan(nodes, wish)
}

// Batch is the best for the placement. A job of which nothing is known begins with
// the initial batch size.
func (a *adaptive) Batch(j Job) int {
	f := a.learn(j)
	replicas := j.Placement.Replicas()
	if !f.model.Known() {
		return max(j.Limits.MinBatch, replicas*j.Limits.MinLocal)
	}
	batch, _ := f.model.Best(j.Limits, f.gradient(j), len(j.Placement), replicas)
	return batch
}
