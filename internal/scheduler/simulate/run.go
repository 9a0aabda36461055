package simulate

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

const (
	restart = 30               // seconds that a job loses when it gets a new placement
	longest = 10 * 365 * 86400 // seconds after the last submission; a longer simulation is aborted
)

// Options are the options of a simulation.
type Options struct {
	Interval int                  // seconds from plan to plan
	Clock    func() time.Duration // clock that measures the time of plans; nil measures nothing
	Step     func(done float64)   // called at each interval with the share of jobs that are done; may be nil
	// GiveUp ends the simulation when more jobs than that are late; 0 is never.
	// Give one more than what may be late.
	GiveUp int
}

// Trace is the record of a simulation.
type Trace struct {
	Workload string
	Cluster  Cluster
	Jobs     []Outcome
	Plans    []time.Duration // how long each took
	Load     []Level         // at each interval
	GaveUp   bool            // too many were late; Jobs is empty
}

// Outcome is the result of a job.
type Outcome struct {
	Name, Family string
	Submitted    float64
	Completed    float64
	Deadline     float64 // seconds from Submitted; 0 is none
	Service      int     // GPU-seconds
	Guessed      int     // of them, in configurations without a measurement
	Restarts     int
	Spans        []Span
}

// JCT is the job completion time in seconds.
func (o Outcome) JCT() float64 { return o.Completed - o.Submitted }

// Late says whether the job was done after its deadline.
func (o Outcome) Late() bool { return o.Deadline > 0 && o.JCT() > o.Deadline }

// Span is a time with one placement.
type Span struct {
	From, To  int
	Type      string // of GPU
	Placement Placement
}

// Level is the load of the cluster at a time.
type Level struct {
	Time, Used, Waiting int
	By                  []int // GPUs in use of each group
}

// job is a job with its true behaviour, which policies do not see.
type job struct {
	Job      // what policies see
	name     string
	deadline float64
	profiles map[string]*Profile
	profile  *Profile // for its present type of GPU; before it runs, for any

	batch    goodput.Batch
	left     int     // seconds of restart
	guessed  int     // GPU-seconds in configurations without a measurement
	epoch    int     // current
	progress float64 // iterations of the initial batch size
	done     bool
	doneAt   int
	spans    []Span

	now struct { // true behaviour in its present configuration and epoch
		valid bool
		estimate
		goodput.Gradient
		goodput float64
	}
}

// Run simulates a workload: in each step all jobs advance by an interval, then the
// policy plans, then its plan is applied.
func Run(ctx context.Context, w Workload, c Cluster, p Policy, o Options) (Trace, error) {
	if err := c.Validate(); err != nil {
		return Trace{}, err
	}
	if o.Interval < 1 || o.Interval > 86400 {
		return Trace{}, fault.New(fault.Invalid, "an interval of %d s is not from 1 to 86400", o.Interval)
	}
	nodes := c.nodes(0)
	jobs := make([]*job, len(w.Jobs))
	for i, submitted := range w.Jobs {
		var err error
		if jobs[i], err = newJob(i, submitted, c); err != nil {
			return Trace{}, err
		}
	}
	turns := c.turns()
	t := Trace{Workload: w.Name, Cluster: c}
	finished, idle := 0, 0
	active := []*job{} // submitted, not finished
	next := 0          // the first job that is not submitted yet
	for now := 0; finished < len(jobs); {
		if err := ctx.Err(); err != nil {
			return Trace{}, fault.New(fault.Unavailable, "the simulation was interrupted: %w", err)
		}
		// 1. Advance.
		for _, j := range active {
			j.advance(p, now, o.Interval)
		}
		now += o.Interval
		before := len(active)
		active = slices.DeleteFunc(active, func(j *job) bool { return j.done })
		finished += before - len(active)
		for next < len(jobs) && jobs[next].Submitted <= float64(now) {
			active = append(active, jobs[next])
			next++
		}
		if len(active) == 0 {
			if next < len(jobs) { // nothing happens until the next submission
				if gap := int(math.Ceil(jobs[next].Submitted)) - now; gap > o.Interval {
					now += (gap/o.Interval - 1) * o.Interval
				}
			}
			continue
		}
		if o.GiveUp > 0 && late(jobs[:next], now) >= o.GiveUp {
			t.GaveUp = true
			return t, nil
		}
		// 2. Plan.
		for len(turns) > 0 && turns[0] <= now {
			turns = turns[1:]
			nodes = c.nodes(now)
		}
		known := make([]Job, len(active))
		for i, j := range active {
			known[i] = j.Job
		}
		began := o.clock()
		plan := p.Plan(now, nodes, known)
		t.Plans = append(t.Plans, o.clock()-began)
		if err := check(plan, nodes, known); err != nil {
			return Trace{}, err
		}
		// 3. Apply.
		level := Level{Time: now, By: make([]int, len(c.Groups))}
		for _, j := range active {
			place := plan[j.ID]
			if len(place) == 0 {
				level.Waiting++
			}
			level.Used += place.Replicas()
			j.move(p, now, place, nodes)
			if len(place) > 0 {
				level.By[slices.IndexFunc(c.Groups, func(g Group) bool { return g.Type == j.Type })] += place.Replicas()
			}
		}
		t.Load = append(t.Load, level)
		if idle++; level.Used > 0 || next < len(jobs) || len(turns) > 0 {
			idle = 0
		}
		if idle*o.Interval > 86400 || float64(now) > jobs[len(jobs)-1].Submitted+longest {
			return Trace{}, fault.New(fault.Internal, "%d jobs never run under this policy", len(active))
		}
		if o.Step != nil {
			o.Step(float64(finished) / float64(len(jobs)))
		}
	}
	for _, j := range jobs {
		t.Jobs = append(t.Jobs, Outcome{
			Name: j.name, Family: j.Family, Submitted: j.Submitted, Completed: float64(j.doneAt), Deadline: j.deadline,
			Service: j.Service, Guessed: j.guessed, Restarts: j.Restarts, Spans: j.spans,
		})
	}
	return t, nil
}

// newJob is a job that has not been submitted yet. A request larger than every type of GPU on
// which it can run is reduced to all GPUs of the largest type.
func newJob(id int, s Submission, c Cluster) (*job, error) {
	j := &job{name: s.Name, deadline: s.Deadline, profiles: s.On, Job: Job{
		ID: id, Family: s.Family, On: map[string]goodput.Limits{}, Submitted: s.At, Batch: s.Batch, Rigid: s.Rigid,
	}}
	for _, g := range c.Groups {
		p := s.On[g.Type]
		if p == nil {
			continue
		}
		l := p.Limits
		l.MaxReplicas = min(l.MaxReplicas, l.MaxBatch/l.MinLocal)
		j.On[g.Type] = l
		j.profile = p
		j.Replicas = max(j.Replicas, min(s.Replicas, g.Nodes*g.GPUs))
	}
	if len(j.On) == 0 {
		return nil, fault.New(fault.Invalid, "job %s: %s was measured on no type of GPU that the cluster has", s.Name, s.Family)
	}
	return j, nil
}

// late says whether the job was not done in time, or is not by now.
func (j *job) late(now int) bool {
	if j.done {
		now = j.doneAt
	}
	return j.deadline > 0 && float64(now)-j.Submitted > j.deadline
}

func late(jobs []*job, now int) (n int) {
	for _, j := range jobs {
		if j.late(now) {
			n++
		}
	}
	return n
}

func (o Options) clock() time.Duration {
	if o.Clock == nil {
		return 0
	}
	return o.Clock()
}

// advance runs the job for some seconds.
func (j *job) advance(p Policy, now, seconds int) {
	if len(j.Placement) == 0 {
		return
	}
	replicas := j.Placement.Replicas()
	delay := min(j.left, seconds)
	j.left -= delay
	j.Service += delay * replicas
	now += delay
	seconds -= delay
	for seconds > 0 && !j.done {
		j.look(replicas)
		end := j.profile.progress[j.epoch]
		took := seconds
		ends := j.progress+j.now.goodput*float64(seconds) >= end
		if ends {
			took = int(math.RoundToEven((end - j.progress) / j.now.goodput))
		}
		j.Service += took * replicas
		if j.now.guess {
			j.guessed += took * replicas
		}
		now += took
		seconds -= took
		if ends {
			j.progress = end
			j.epoch++
			j.now.valid = false
			if j.epoch == j.profile.epochs {
				j.done, j.doneAt = true, now
				j.spans[len(j.spans)-1].To = now
				return
			}
		} else {
			j.progress += j.now.goodput * float64(took)
		}
		j.tune(p)
	}
}

// look computes the job's true behaviour in its configuration, and records what a job would
// observe of it for the policy.
func (j *job) look(replicas int) {
	if j.now.valid {
		return
	}
	j.now.estimate = j.profile.times(gpus(j.Placement), j.batch.Local)
	global := j.batch.Global(replicas)
	j.now.Gradient = j.profile.gradient(global, j.epoch)
	whole := j.now.step + float64(j.batch.Accumulated)*(j.now.step-j.now.sync)
	j.now.goodput = j.now.Gain(float64(global)/float64(j.On[j.Type].MinBatch)) / whole
	j.now.valid = true
	j.Gradient = j.now.Gradient
	o := Observation{j.Type, goodput.Observation{Nodes: len(j.Placement), Replicas: replicas, Local: j.batch.Local, Step: j.now.step, Sync: j.now.sync}}
	if !slices.ContainsFunc(j.Observed, o.same) {
		j.Observed = append(slices.Clip(j.Observed), o)
	}
}

// tune sets the batch size that the policy wants.
func (j *job) tune(p Policy) {
	want := j.Batch
	if !j.Rigid {
		want = p.Batch(j.Job)
	}
	replicas := j.Placement.Replicas()
	l := j.On[j.Type]
	want = min(max(want, l.MinBatch, replicas*l.MinLocal), l.MaxBatch)
	if b := l.Split(want, replicas); b != j.batch {
		j.batch, j.now.valid = b, false
	}
}

// move gives the job a placement; an empty one stops it.
func (j *job) move(p Policy, now int, to Placement, nodes []Node) {
	if slices.Equal(j.Placement, to) {
		return
	}
	if len(j.Placement) > 0 {
		j.spans[len(j.spans)-1].To = now
	}
	j.Placement = slices.Clone(to)
	j.now.valid = false
	if len(to) == 0 {
		return
	}
	j.Type = nodes[to[0].Node].Device
	j.profile = j.profiles[j.Type]
	if j.Started {
		j.Restarts++
	}
	j.Started = true
	j.left = restart
	j.spans = append(j.spans, Span{From: now, Type: j.Type, Placement: j.Placement})
	j.tune(p)
}
