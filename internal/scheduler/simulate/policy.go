package simulate

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// Policy decides at each interval which GPUs each job gets. Each workload has a policy of its own,
// which may keep state, and is called by one goroutine.
type Policy interface {
	// Plan returns the placements of the jobs that run from now on, by their ID, each
	// on nodes of one type. A running job that is not in the plan is stopped. Nodes are as they
	// are now: one that is down has no GPUs. Jobs are in the order of submission.
	Plan(now int, nodes []Node, jobs []Job) map[int]Placement
	// Batch is the global batch size of a placed job. It is called when the job starts,
	// after each epoch and after each interval, as an agent within a job would decide.
	Batch(job Job) int
}

// Job is all that a policy may know of a job. It does not include the remaining run time.
type Job struct {
	ID        int
	Family    string                    // the application
	On        map[string]goodput.Limits // of its batch sizes and replicas, by the types of GPU on which it can run; not to be changed
	Submitted float64                   // seconds
	Replicas  int                       // requested by the user, at most all of one type
	Batch     int                       // requested by the user
	Rigid     bool                      // it runs with the requested replicas and batch only
	Placement Placement                 // now; not to be changed
	Type      string                    // of GPU, of its placement
	Started   bool                      // it has run
	Restarts  int
	Service   int              // attained, GPU-seconds
	Observed  []Observation    // of the configurations that it ran in, each once; not to be changed
	Gradient  goodput.Gradient // of its last step; zero before the first
}

// Observation is a step that was measured on a type of GPU.
type Observation struct {
	Type string
	goodput.Observation
}

func (o Observation) same(p Observation) bool { return o.Type == p.Type && o.Same(p.Observation) }

// Age is the number of seconds since the job was submitted.
func (j Job) Age(now int) float64 { return float64(now) - j.Submitted }

// Node has some GPUs of one type, its device; the index of a node is its name.
type Node = goodput.Node

// Placement is where the replicas of a job are, in the order of their ranks.
type Placement = goodput.Placement

// Share are replicas on a node.
type Share = goodput.Share

func gpus(p Placement) []int {
	out := make([]int, len(p))
	for i, s := range p {
		out[i] = s.GPUs
	}
	return out
}

// check says what is wrong with a plan.
func check(plan map[int]Placement, nodes []Node, jobs []Job) error {
	free := make([]int, len(nodes))
	for i := range free {
		free[i] = nodes[i].GPUs
	}
	known := 0
	for _, j := range jobs {
		p, ok := plan[j.ID]
		if !ok {
			continue
		}
		known++
		var on []int
		for _, s := range p {
			if s.Node < 0 || s.Node >= len(nodes) || s.GPUs < 1 || slices.Contains(on, s.Node) {
				return fault.New(fault.Internal, "the policy gives job %d %d GPUs of node %d", j.ID, s.GPUs, s.Node)
			}
			if a, b := nodes[p[0].Node].Device, nodes[s.Node].Device; a != b {
				return fault.New(fault.Internal, "the policy gives job %d GPUs of type %s and of type %s", j.ID, a, b)
			}
			on = append(on, s.Node)
			if free[s.Node] -= s.GPUs; free[s.Node] < 0 {
				return fault.New(fault.Internal, "the policy gives more than the %d GPUs of node %d", nodes[s.Node].GPUs, s.Node)
			}
		}
		n := p.Replicas()
		if n == 0 {
			return fault.New(fault.Internal, "the policy gives job %d an empty placement", j.ID)
		}
		limits, can := j.On[nodes[p[0].Node].Device]
		switch {
		case !can:
			return fault.New(fault.Internal, "the policy runs job %d on type %s, where it cannot run", j.ID, nodes[p[0].Node].Device)
		case n > limits.MaxReplicas:
			return fault.New(fault.Internal, "the policy gives job %d %d replicas; it can have 1 to %d", j.ID, n, limits.MaxReplicas)
		case j.Rigid && n != j.Replicas:
			return fault.New(fault.Internal, "the policy gives the rigid job %d %d replicas and not %d", j.ID, n, j.Replicas)
		}
	}
	if known != len(plan) {
		return fault.New(fault.Internal, "the policy places a job that is neither pending nor running")
	}
	return nil
}
