package training

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/anomaly"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

// Measurement is what an attempt used and how fast it was, from its start to its
// end, or, while it runs, until now. It is what right-sizing goes by.
type Measurement struct {
	Attempt AttemptID        `json:"attempt"`
	Job     JobID            `json:"job"`
	Project project.Name     `json:"project"`
	Number  int              `json:"number"` // of the attempt
	Family  string           `json:"family"` // jobs that do the same work
	Pool    compute.PoolName `json:"pool"`
	Nodes   []string         `json:"nodes,omitempty"` // of each worker
	Device  string           `json:"device"`          // accelerator model, or processor

	Workers   int             `json:"workers"`
	Processes int             `json:"processes"` // of each
	Asked     resource.Amount `json:"asked"`     // by each worker
	Batch     int             `json:"batch,omitempty"`
	Precision Precision       `json:"precision,omitempty"`

	// Rate is units of work a second of all workers, 0 where it is unknown; Setting
	// is what else makes the work of a step.
	Unit    sizing.Unit `json:"unit,omitempty"`
	Setting string      `json:"setting,omitempty"`
	Rate    float64     `json:"rate,omitempty"`
	PerStep float64     `json:"steps_per_second,omitempty"`

	Seconds float64 `json:"seconds"` // that it ran
	sizing.Use
	Samples int `json:"samples"` // while it ran
	Devices int `json:"device_samples,omitempty"`
	// Communication is the share of the time that profilers saw in it, in so many
	// looks.
	Communication float64 `json:"communication,omitempty"`
	Looks         int     `json:"looks,omitempty"`

	Class   Class        `json:"class,omitempty"`
	Idle    anomaly.Idle `json:"idle,omitzero"`
	Started time.Time    `json:"started_at"`
	Ended   time.Time    `json:"ended_at,omitzero"`
}

// trailing is what tells jobs of one family apart: "-7", "-seed-3", "-trial12".
var trailing = regexp.MustCompile(`(?:[-_.](?:(?:trial|run|seed|sweep|try|fold|part)[-_.]?)?\d+)+$`)

// family is the jobs that do the same work as this one, in its project.
func (j Job) family() string {
	if j.Spec.Family != "" {
		return j.Spec.Family
	}
	if short := trailing.ReplaceAllString(j.Name, ""); short != "" {
		return short
	}
	return j.Name
}

// setting is what of a specification changes the work of a unit.
func (s Spec) setting(unit sizing.Unit) string {
	var parts []string
	add := func(there bool, format string, v any) {
		if there {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add(s.Batch > 0, "batch %d", s.Batch)
	add(s.Accumulate > 1, "accumulate %d", s.Accumulate)
	add(s.Precision != "", "%s", s.Precision)
	add(s.Processes > 1, "%d processes", s.Processes)
	add(s.Parallel.Data > 1, "data %d", s.Parallel.Data)
	add(s.Parallel.Tensor > 1, "tensor %d", s.Parallel.Tensor)
	add(s.Parallel.Pipeline > 1, "pipeline %d", s.Parallel.Pipeline)
	add(unit == sizing.Runs && s.Steps > 0, "%d steps", s.Steps)
	for _, r := range s.Roles {
		parts = append(parts, fmt.Sprintf("%d %s", r.Workers, r.Name))
	}
	return strings.Join(parts, ", ")
}

// kind is what makes attempts comparable.
func (m *Measurement) kind() sizing.Kind {
	return sizing.Kind{Family: string(m.Project) + "/" + m.Family, Unit: m.Unit, Setting: m.Setting}
}

// profile is a measurement as sizing sees it.
func (m *Measurement) profile() sizing.Profile {
	nodes := slices.Clone(m.Nodes)
	slices.Sort(nodes)
	return sizing.Profile{
		Kind: m.kind(), Pool: string(m.Pool), Device: m.Device, Workers: m.Workers, Nodes: len(slices.Compact(nodes)),
		Processes: m.Processes, Batch: m.Batch, Rate: m.Rate, Communication: m.Communication, Seen: m.Looks > 0, At: m.Ended,
	}
}

// sample takes in what the workers use now.
func (m *Measurement) sample(at time.Time, members []engine.Member) anomaly.Change {
	seen, running := []engine.Accelerator{}, false
	own := sizing.Whole(m.Asked)
	for _, w := range members {
		m.take(w, at)
		if w.State != engine.Running {
			continue
		}
		running = true
		if len(w.Usage.Accelerators) <= own { // else those of others are among them
			for _, d := range w.Usage.Accelerators {
				if d.Utilisation != nil { // else it would look idle
					seen = append(seen, d)
				}
			}
		}
	}
	if !running {
		return anomaly.None
	}
	m.Samples++
	if len(seen) == 0 {
		return anomaly.None
	}
	busy, watts := 0.0, 0.0
	if m.Accelerators == nil {
		m.Accelerators = &sizing.Accelerators{Device: m.Device}
	}
	a := m.Accelerators
	for _, d := range seen {
		busy = min(busy+min(finite(*d.Utilisation), 1)/float64(len(seen)), 1)
		watts += finite(d.Watts)
		a.Memory = max(a.Memory, sane(d.Memory))
	}
	m.Devices++
	a.Count = max(a.Count, len(seen))
	a.Busy = min(a.Busy+(busy-a.Busy)/float64(m.Devices), 1)
	a.Watts += (watts - a.Watts) / float64(m.Devices)
	a.Peak = max(a.Peak, busy)
	return m.Idle.Sample(at, busy)
}

// take is what the engine counted of a worker so far: these need no samples.
func (m *Measurement) take(w engine.Member, now time.Time) {
	until := now
	if !w.Ended.IsZero() {
		until = w.Ended
	}
	m.Memory = max(m.Memory, sane(w.PeakRSS), sane(w.Usage.Memory))
	if ran := until.Sub(w.Started).Seconds(); !w.Started.IsZero() && ran > 0 {
		m.Cores = max(m.Cores, finite(w.CPU.Seconds()/ran))
	}
}

// finite is a number that a worker gave, or 0 where it is none.
func finite(v float64) float64 {
	if v > 0 && v <= sizing.MaxRate {
		return v
	}
	return 0
}

// sane is an amount that a worker gave.
func sane(b resource.Bytes) resource.Bytes { return resource.Bytes(finite(float64(b))) }

// nodeOf is the node of a pool on which a worker ran; of a pool whose engine picks
// it, the first stands for all.
func nodeOf(p compute.Pool, names []string) compute.Node {
	for _, n := range p.Nodes {
		if len(names) == 0 || n.Name == names[0] {
			return n.Node
		}
	}
	if len(p.Nodes) > 0 {
		return p.Nodes[0].Node
	}
	return compute.Node{}
}

// newMeasurement begins one.
func newMeasurement(j Job, a Attempt, p compute.Pool) Measurement {
	ask := j.Spec.largest()
	return Measurement{
		Attempt: a.ID, Job: j.ID, Project: j.Project, Number: a.Number, Family: j.family(),
		Pool: a.Pool, Nodes: a.Nodes, Device: sizing.DeviceOf(string(p.Name), nodeOf(p, a.Nodes).Labels, ask),
		Workers: max(a.Workers, 1), Processes: max(j.Spec.Processes, 1), Asked: ask, Batch: j.Spec.Batch, Precision: j.Spec.Precision,
		Use: sizing.Use{AskedCores: ask.CPU.Cores(), Asked: ask.Memory}, Started: a.Started,
	}
}

// meters are the measurements of attempts under way.
type meters struct {
	mu  sync.Mutex
	all map[AttemptID]*meter
}

type meter struct {
	Measurement
	kept   time.Time // in the database
	paced  time.Time // when compute was told its pace
	at     time.Time // of the last sample
	before []engine.Member
}

// leastWhile is the shortest time over which cores are counted: clocks of the
// kernel tick a hundred times a second.
const leastWhile = time.Second

// peak finds the most cores that a worker used between two samples, by what the
// engine counted.
func (mt *meter) peak(at time.Time, members []engine.Member) {
	for i, w := range members {
		from, used := w.Started, w.CPU
		if i < len(mt.before) && !mt.at.Before(w.Started) {
			from, used = mt.at, w.CPU-mt.before[i].CPU
		}
		until := at
		if !w.Ended.IsZero() && w.Ended.Before(at) {
			until = w.Ended
		}
		if passed := until.Sub(from); !w.Started.IsZero() && passed >= leastWhile {
			mt.PeakCores = max(mt.PeakCores, finite(used.Seconds()/passed.Seconds()))
		}
	}
	mt.at, mt.before = at, members
}

func (m *meters) of(id AttemptID) *meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[id]
}

func (m *meters) set(id AttemptID, mt *meter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[AttemptID]*meter{}
	}
	m.all[id] = mt
}

// only forgets all others.
func (m *meters) only(alive map[AttemptID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(id AttemptID, _ *meter) bool { return !alive[id] })
}

const (
	// measureEvery is how often the use of running attempts is sampled.
	measureEvery = 10 * time.Second
	// keepEvery is how often their measurements are kept: what is lost with a
	// crash is so much of the samples.
	keepEvery = 5 * time.Minute
	// atOnce is how many are asked at a time: an engine may watch a worker for a
	// moment before it answers.
	atOnce = 8
)

// measuring samples what running attempts use, until ctx is done.
func (s *Usage) measuring(ctx context.Context) {
	tick := time.NewTicker(s.cfg.MeasureEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.MeasureOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "measuring running attempts failed", slog.Any("error", err))
		}
	}
}

// MeasureOnce takes a sample of every running attempt. An attempt that does not answer is
// left out.
func (s *Usage) MeasureOnce(ctx context.Context) error {
	var running []Job
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		running, err = s.jobStore.Underway(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	alive := map[AttemptID]bool{}
	var asking errgroup.Group
	asking.SetLimit(atOnce)
	for _, j := range running {
		if j.Attempt == "" {
			continue
		}
		alive[j.Attempt] = true
		asking.Go(func() error {
			members, err := s.cfg.Compute.Members(ctx, compute.WorkloadID(j.Attempt))
			if err != nil || len(members) == 0 {
				s.cfg.Compute.Idle(compute.WorkloadID(j.Attempt), time.Time{})
				return nil //nolint:nilerr // who does not answer is left out
			}
			return fault.Wrap(s.measure(ctx, j, members), "job %s", j.ID)
		})
	}
	err = asking.Wait()
	s.meters.only(alive)
	return err
}

// measure takes one sample, and keeps the measurement when it is time to, or when
// the job began or ended to be idle.
func (s *Usage) measure(ctx context.Context, j Job, members []engine.Member) error {
	mt := s.meters.of(j.Attempt)
	now := s.now().UTC()
	if mt == nil {
		a, m, err := s.measurement(ctx, j)
		if err != nil || a.State == AttemptEnded || a.Started.IsZero() {
			return err
		}
		mt = &meter{Measurement: m, kept: now}
	}
	next := *mt
	if mt.Accelerators != nil {
		use := *mt.Accelerators
		next.Accelerators = &use
	}
	next.peak(now, members)
	change := next.sample(now, members)
	if change != anomaly.None || next.Samples > 0 && now.Sub(next.kept) >= keepEvery {
		next.kept = now
		if err := s.keep(ctx, j, next.Measurement, change); err != nil {
			return err
		}
	}
	var err error
	if s.cfg.Sizes && j.elastic() && now.Sub(next.paced) >= pacedEvery {
		next.paced = now
		err = s.pace(ctx, j, next.Measurement)
	}
	s.meters.set(j.Attempt, &next)
	s.cfg.Compute.Idle(compute.WorkloadID(j.Attempt), next.Idle.Warned(now))
	return err
}

// measurement is what is kept of a job's attempt under way, or a new one.
func (s *core) measurement(ctx context.Context, j Job) (a Attempt, m Measurement, err error) {
	found := false
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if a, err = s.attemptStore.Attempt(ctx, tx, j.Attempt); err != nil {
			return err
		}
		m, found, err = s.measurementStore.Measurement(ctx, tx, j.Attempt)
		return err
	})
	if err != nil || found || a.Pool == "" {
		return a, m, err
	}
	pools, _, err := s.cfg.Compute.PricedPools(ctx)
	i := slices.IndexFunc(pools, func(p compute.Pool) bool { return p.Name == a.Pool })
	if err != nil || i < 0 {
		return a, newMeasurement(j, a, compute.Pool{Name: a.Pool}), err
	}
	return a, newMeasurement(j, a, pools[i]), nil
}

// keep writes the measurement of an attempt under way, and tells of a change.
func (s *Usage) keep(ctx context.Context, j Job, m Measurement, change anomaly.Change) error {
	return s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, m.Attempt)
		if err != nil || a.State == AttemptEnded { // its end is kept
			return err
		}
		if err := s.measurementStore.SaveMeasurement(ctx, tx, m); err != nil {
			return err
		}
		return s.tellIdle(ctx, tx, j, m, change)
	})
}

// measured is the whole of an attempt that has ended; none when it never ran. What
// cannot be found out is left out: an end does not wait for it.
func (s *core) measured(ctx context.Context, j Job, a Attempt, w compute.Workload, members []engine.Member, class Class) (m Measurement, ok bool) {
	if a.Pool == "" || a.Started.IsZero() {
		return m, false
	}
	mt := s.meters.of(a.ID)
	if mt == nil || mt.Samples == 0 { // another process may have seen more
		j.Attempt = a.ID
		_, kept, err := s.measurement(ctx, j)
		if err != nil {
			s.log.WarnContext(ctx, "measuring an attempt failed", slog.String("attempt", string(a.ID)), slog.Any("error", err))
			return m, false
		}
		mt = &meter{Measurement: kept}
	}
	last := *mt
	last.peak(w.EndedAt, members)
	m = last.Measurement
	from, until := w.Status.Started, w.Status.Ended
	if from.IsZero() || until.IsZero() {
		from, until = a.Started, w.EndedAt
	}
	m.Started, m.Ended, m.Class, m.Seconds = from.UTC(), until.UTC(), class, max(until.Sub(from).Seconds(), 0)
	for _, w := range members {
		m.take(w, until)
	}
	if len(members) == 0 && m.Seconds > 0 {
		m.Cores = finite(w.Status.CPU.Seconds() / m.Seconds / float64(m.Workers))
		m.Memory = max(m.Memory, sane(w.Status.PeakRSS)/resource.Bytes(m.Workers))
	}
	s.complete(ctx, j, a, &m)
	return m, true
}

// complete adds the pace, and what profilers saw.
func (s *core) complete(ctx context.Context, j Job, a Attempt, m *Measurement) {
	if a.Run != "" {
		if p, err := s.cfg.Runs.Progress(ctx, j.Project, a.Run, a.since()); err == nil {
			m.PerStep = finite(p.pace())
		}
	}
	switch {
	case m.PerStep > 0 && finite(m.PerStep*float64(m.Batch)) > 0:
		m.Unit, m.Rate = sizing.Examples, m.PerStep*float64(m.Batch)
	case m.PerStep > 0:
		m.Unit, m.Rate = sizing.Steps, m.PerStep
	case m.Class == Done && a.Number == 1 && j.Spec.Resume == "" && m.Seconds > 0:
		m.Unit, m.Rate = sizing.Runs, 1/m.Seconds
	}
	m.Setting = j.Spec.setting(m.Unit)
	var looks []Profile
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		looks, err = s.profileStore.Profiles(ctx, tx, j.ID, maxProfiles)
		return err
	})
	m.Communication, m.Looks = 0, 0
	for _, l := range looks {
		if err == nil && l.Attempt == a.ID {
			m.Looks++
			m.Communication += (min(finite(l.Communication), 1) - m.Communication) / float64(m.Looks)
		}
	}
}
