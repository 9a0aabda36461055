package simulate

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// Policy decides at each interval which GPUs each job has. It is made anew for
// each workload, may remember what it has seen, and is called by one goroutine.
type Policy interface {
	// Plan gives the placements of the jobs that run from now on, by their ID. A
	// job that is not in it runs no more. Jobs are in the order of submission.
	Plan(now int, cluster Cluster, jobs []Job) map[int]Placement
	// Batch is the global batch size of a job that has a placement. It is asked
	// when the job starts, after each epoch and each interval, as the agent within
	// a job would decide.
	Batch(job Job) int
}

// Job is all that a policy may know of a job: nothing in it tells how long the
// job still runs.
type Job struct {
	ID        int
	Family    string         // the application
	Limits    goodput.Limits // of its batch sizes and replicas
	Submitted float64        // seconds
	Replicas  int            // that its user asks for, at most the cluster
	Batch     int            // that its user asks for
	Rigid     bool           // it runs as its user asks for, or not at all
	Placement Placement      // now; not to be changed
	Started   bool           // it has run
	Restarts  int
	Service   int                   // attained, GPU-seconds
	Observed  []goodput.Observation // of the configurations that it ran in, each once; not to be changed
	Gradient  goodput.Gradient      // of its last step; zero before the first
}

// Age is how many seconds ago the job was submitted.
func (j Job) Age(now int) float64 { return float64(now) - j.Submitted }

// Cluster is a number of like nodes.
type Cluster struct{ Nodes, GPUs int }

// Validate says whether the cluster can be simulated.
func (c Cluster) Validate() error {
	if c.Nodes < 1 || c.Nodes > 10_000 || c.GPUs < 1 || c.GPUs > 64 {
		return fault.New(fault.Invalid, "a cluster of %d nodes with %d GPUs each", c.Nodes, c.GPUs).WithHint("Give 1 to 10000 nodes with 1 to 64 GPUs each.")
	}
	return nil
}

// Total is the number of GPUs.
func (c Cluster) Total() int { return c.Nodes * c.GPUs }

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
func check(plan map[int]Placement, c Cluster, jobs []Job) error {
	free := make([]int, c.Nodes)
	for i := range free {
		free[i] = c.GPUs
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
			if s.Node < 0 || s.Node >= c.Nodes || s.GPUs < 1 || slices.Contains(on, s.Node) {
				return fault.New(fault.Internal, "the policy gives job %d %d GPUs of node %d", j.ID, s.GPUs, s.Node)
			}
			on = append(on, s.Node)
			if free[s.Node] -= s.GPUs; free[s.Node] < 0 {
				return fault.New(fault.Internal, "the policy gives more than the %d GPUs of node %d", c.GPUs, s.Node)
			}
		}
		switch n := p.Replicas(); {
		case n == 0 || n > j.Limits.MaxReplicas:
			return fault.New(fault.Internal, "the policy gives job %d %d replicas; it can have 1 to %d", j.ID, n, j.Limits.MaxReplicas)
		case j.Rigid && n != j.Replicas:
			return fault.New(fault.Internal, "the policy gives the rigid job %d %d replicas and not %d", j.ID, n, j.Replicas)
		}
	}
	if known != len(plan) {
		return fault.New(fault.Internal, "the policy places a job that does not wait or run")
	}
	return nil
}
