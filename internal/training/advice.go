package training

import (
	"context"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

// Advice is what a job used, what would have done, and what it would take elsewhere.
type Advice struct {
	Job      JobID     `json:"job"`
	Name     string    `json:"name"`
	State    State     `json:"state"`
	Attempt  AttemptID `json:"attempt,omitempty" doc:"Attempt that the advice is based on: the last one that ran"`
	Number   int       `json:"number,omitempty"`
	Family   string    `json:"family" doc:"Group of jobs that do the same work"`
	Currency string    `json:"currency" doc:"Currency of all prices"`
	// Sentence is the answer in words, or why there will be none; empty while nothing
	// is known.
	Sentence string        `json:"sentence,omitempty"`
	Now      *sizing.Place `json:"now,omitempty" doc:"Device and pool of that attempt"`
	Used     *sizing.Use   `json:"used,omitempty"`
	Ask      sizing.Ask    `json:"ask,omitzero" doc:"Right-sizing recommendation: what each worker needed in all attempts of the family on that device; absent when the request already fits"`
	Unit     sizing.Unit   `json:"unit,omitempty" doc:"Unit of the rate: examples, steps or runs"`
	Setting  string        `json:"setting,omitempty" doc:"Settings besides the batch that determine the work of a step"`
	Rate     float64       `json:"rate,omitempty" doc:"Units per second"`
	Seconds  float64       `json:"seconds,omitempty" doc:"Run time of the attempt in seconds"`
	Samples  int           `json:"samples,omitempty" doc:"Samples of usage"`
	// Communication is what profilers saw, in so many looks.
	Communication float64 `json:"communication,omitempty"`
	Looks         int     `json:"looks,omitempty"`
	sizing.Answer
}

const (
	familyRuns = 500    // that an answer goes by, the newest
	likeRuns   = 20_000 // of all families
	recently   = 30 * 24 * time.Hour
)

// Advice says what a job used, what would have done, and what it would take
// elsewhere, in each pool that may take it. Nothing is started by it. Of a job with
// roles it says that there is none. Needs job.read. Error: fault.NotFound.
func (s *Usage) Advice(ctx context.Context, p project.Name, jid JobID) (Advice, error) {
	j, err := s.one(ctx, p, jid, ActionRead)
	if err != nil {
		return Advice{}, err
	}
	out := Advice{Job: j.ID, Name: j.Name, State: j.State, Family: j.family(), Answer: sizing.Answer{Options: []sizing.Option{}}}
	pools, currency, err := s.cfg.Compute.PricedPools(ctx)
	if err != nil {
		return out, err
	}
	out.Currency = currency
	if len(j.Spec.Roles) > 0 {
		out.Sentence = "There is no advice for jobs with roles: their workers differ, and usage is not measured per role."
		return out, nil
	}
	m, ok, err := s.newest(ctx, j)
	if err != nil || !ok {
		return out, err
	}
	var family []Measurement
	var like []sizing.Profile
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if family, err = s.measurementStore.Measured(ctx, tx, p, m.Family, familyRuns); err != nil {
			return err
		}
		like, err = s.measurementStore.Rates(ctx, tx, likeRuns)
		return err
	})
	if err != nil {
		return out, fault.Wrap(err, "reading measurements")
	}
	if !slices.ContainsFunc(family, func(f Measurement) bool { return f.Attempt == m.Attempt }) { // it runs, or is older
		family = append(family, m)
	}
	now := s.now()
	q := sizing.Question{
		Kind: m.kind(), Precision: string(m.Precision), Processes: m.Processes, Batch: m.Batch,
		Seconds: m.runs(j, family), Next: m.coming(j, family, now), Profiles: together(family, like),
	}
	if a := m.Accelerators; a != nil {
		q.Busy, q.Memory = a.Busy, float64(a.Memory)
	}
	asked := m.elsewhere(family)
	for _, pool := range pools {
		if pool.Name == m.Pool {
			ran := nodeOf(pool, m.Nodes)
			q.Now = priced(pool, ran, m.Asked, m.Workers, now)
			q.Now.Device = m.Device
			if a := m.Accelerators; a != nil {
				a.Has = resource.Bytes(q.Now.Memory)
			}
		}
		if s.mayTake(ctx, j, pool) {
			q.Places = append(q.Places, m.places(pool, asked, now)...)
		}
	}
	if q.Now.Device == "" { // its pool is gone
		q.Now = sizing.Place{Pool: string(m.Pool), Device: m.Device, Workers: m.Workers}
	}
	if err := m.Check(); err != nil {
		return out, fault.Wrap(err, "attempt %s", m.Attempt)
	}
	answer, err := sizing.Advise(q)
	if err != nil {
		return out, fault.Wrap(err, "measurements of family %s", m.Family)
	}
	out.Answer, out.Attempt, out.Number, out.Now, out.Used = answer, m.Attempt, m.Number, &q.Now, &m.Use
	out.Unit, out.Setting, out.Rate, out.Seconds, out.Samples = m.Unit, m.Setting, m.Rate, m.Seconds, m.Samples
	out.Communication, out.Looks = m.Communication, m.Looks
	out.Ask = sizing.Less(m.uses(family))
	out.Sentence = sizing.Sentence(m.Use, out.Ask, answer)
	return out, nil
}

// newest is what is known of the last attempt of a job that ran, until now where it
// still does.
func (s *Usage) newest(ctx context.Context, j Job) (m Measurement, ok bool, err error) {
	var tries []Attempt
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if tries, err = s.attemptStore.Attempts(ctx, tx, j.ID); err != nil {
			return err
		}
		for _, a := range slices.Backward(tries) {
			if m, ok, err = s.measurementStore.Measurement(ctx, tx, a.ID); err != nil || ok {
				return err
			}
		}
		return nil
	})
	if err != nil || len(tries) == 0 {
		return m, false, err
	}
	last := tries[len(tries)-1]
	if last.State == AttemptEnded || last.Started.IsZero() {
		return m, ok && !m.Ended.IsZero(), nil
	}
	j.Attempt = last.ID
	if mt := s.meters.of(last.ID); mt != nil {
		m = mt.Measurement
		if mt.Accelerators != nil {
			use := *mt.Accelerators
			m.Accelerators = &use
		}
	} else if _, m, err = s.measurement(ctx, j); err != nil {
		return m, false, err
	}
	m.Seconds = max(s.now().Sub(last.Started).Seconds(), 0)
	if members, err := s.cfg.Compute.Members(ctx, compute.WorkloadID(last.ID)); err == nil {
		for _, w := range members {
			m.take(w, s.now())
		}
	}
	s.complete(ctx, j, last, &m) // asks for the pace as the caller
	return m, true, nil
}

// together are the profiles of a family with all that is known, and of the others
// how fast they were.
func together(family []Measurement, like []sizing.Profile) (all []sizing.Profile) {
	own := ""
	for i := range family {
		if family[i].Rate > 0 {
			all = append(all, family[i].profile())
			own = all[0].Family
		}
	}
	for _, l := range like {
		if l.Family != own {
			all = append(all, l)
		}
	}
	return all
}

// runs is how long a run takes: the mean of those of the same work in the same
// place that succeeded, else by its steps; 0 is unknown.
func (m *Measurement) runs(j Job, family []Measurement) float64 {
	sum, n := 0.0, 0.0
	for i := range family {
		f := &family[i]
		if f.Class == Done && f.Number == 1 && f.Device == m.Device && f.Workers == m.Workers && f.kind() == m.kind() {
			sum, n = sum+f.Seconds, n+1
		}
	}
	switch {
	case n > 0:
		return sum / n
	case m.PerStep > 0 && j.Spec.Steps > 0:
		return float64(j.Spec.Steps) / m.PerStep
	case m.Class == Done:
		return m.Seconds
	}
	return 0
}

// coming is how many runs are expected in the next 30 days: as many as succeeded in
// the last, and what is left of this one.
func (m *Measurement) coming(j Job, family []Measurement, now time.Time) (n float64) {
	for _, f := range family {
		if f.Class == Done && now.Sub(f.Ended) <= recently {
			n++
		}
	}
	if m.Ended.IsZero() && m.PerStep > 0 && j.Spec.Steps > 0 {
		n += max(1-m.Seconds*m.PerStep/float64(j.Spec.Steps), 0)
	}
	return n
}

// uses are those of the family in the same place that asked for as much, this one
// last.
func (m *Measurement) uses(family []Measurement) (all []sizing.Use) {
	for i := range family {
		f := &family[i]
		if f.Attempt != m.Attempt && f.Device == m.Device && f.Workers == m.Workers && f.Asked.Equal(m.Asked) && f.Setting == m.Setting {
			all = append(all, f.Use)
		}
	}
	return append(all, m.Use)
}

// spot is a kind of device in a pool.
type spot struct {
	pool   compute.PoolName
	device string
}

// elsewhere is what the family asked for last, in each place.
func (m *Measurement) elsewhere(family []Measurement) map[spot]resource.Amount {
	asked := map[spot]resource.Amount{}
	for i := range slices.Backward(family) { // the newest are first, and win
		f := &family[i]
		asked[spot{f.Pool, f.Device}] = f.Asked
	}
	return asked
}

// mayTake reports that a pool may run the job now: zone, isolation, and its
// environment.
func (s *Usage) mayTake(ctx context.Context, j Job, p compute.Pool) bool {
	if p.NotOpen() != "" || !p.Allows(j.Residency) || !p.Isolation.AtLeast(j.Spec.Isolation) {
		return false
	}
	return j.Spec.Environment == "" || s.cfg.Environments.Admit(ctx, j.Project, j.Spec.Environment, []string{string(p.Name)}) == nil
}

// places are those of a pool: each of its devices, with the number of workers of
// now, half and twice as many where the batch can be shared out.
func (m *Measurement) places(p compute.Pool, asked map[spot]resource.Amount, now time.Time) (out []sizing.Place) {
	counts := []int{m.Workers}
	if m.Batch > 0 && (m.Workers > 1 || m.Looks > 0) {
		counts = append(counts, 2*m.Workers)
		if m.Workers%2 == 0 {
			counts = append(counts, m.Workers/2)
		}
	}
	seen := map[string]bool{}
	for _, n := range p.Nodes {
		var asks []resource.Amount
		for at, ask := range asked { // one for each device
			if at.pool == p.Name && sizing.DeviceOf(string(p.Name), n.Labels, ask) == at.device {
				asks = append(asks, ask)
			}
		}
		if ask, ok := adapted(m.Asked, n.Node); ok {
			asks = append(asks, ask)
		}
		for _, ask := range asks {
			d := sizing.DeviceOf(string(p.Name), n.Labels, ask)
			if seen[d] || !ask.Fits(n.Room()) {
				continue
			}
			seen[d] = true
			for _, c := range counts {
				if holds(p, ask, c) {
					out = append(out, priced(p, n.Node, ask, c, now))
				}
			}
		}
	}
	return out
}

// holds reports that a pool's nodes have so many workers when they are empty.
func holds(p compute.Pool, ask resource.Amount, workers int) bool {
	n := 0
	for _, node := range p.Nodes {
		n += ask.Count(node.Room(), workers)
	}
	return n >= workers
}

// adapted is a request in the words of a node: as many of its accelerators, whatever
// they are called.
func adapted(ask resource.Amount, n compute.Node) (resource.Amount, bool) {
	if len(ask.Accelerators) == 0 {
		return ask, true
	}
	var have []string
	for name, count := range n.Accelerators {
		if _, same := ask.Accelerators[name]; same {
			return ask, true
		}
		if count > 0 && sizing.Whole(resource.Amount{Accelerators: map[string]int64{name: count}}) > 0 {
			have = append(have, name)
		}
	}
	if len(have) != 1 || len(ask.Accelerators) != 1 || sizing.Whole(ask) == 0 {
		return ask, false
	}
	for _, count := range ask.Accelerators {
		ask.Accelerators = map[string]int64{have[0]: count}
	}
	return ask, true
}

// priced is a node of a pool with its price, for so many workers.
func priced(p compute.Pool, n compute.Node, ask resource.Amount, workers int, now time.Time) sizing.Place {
	d := sizing.DeviceOf(string(p.Name), n.Labels, ask)
	out := sizing.Place{Pool: string(p.Name), Device: d, Workers: workers, Hourly: finite(float64(workers) * p.HourlyCost(ask, n, now))}
	if sizing.Whole(ask) > 0 {
		out.Memory = sizing.MemoryOf(d, n.Labels)
	}
	return out
}
