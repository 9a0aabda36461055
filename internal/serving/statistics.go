package serving

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
)

// Statistics is what a version of a deployment did since the server started, as
// Triton's statistics extension counts it. Counters are read one after the other
// while requests go on, so that they may be a request apart.
type Statistics struct {
	Version    int64
	Last       time.Time // the last inference ended; zero: none yet
	Inferences int64     // rows that were answered
	Executions int64     // runs of the model; Inferences/Executions is the mean batch

	Success, Fail Spent // whole requests
	Queue         Spent // waiting for a batch and a core
	Input         Spent // gathering a batch
	Infer         Spent // in the model
	Output        Spent // taking the batch apart
	Batches       []BatchStatistics
}

// BatchStatistics counts the runs of one batch size. Sizes over 128 rows are
// counted together up to the next power of two, which is their Size.
type BatchStatistics struct {
	Size                 int64
	Input, Infer, Output Spent
}

// Spent is how often something happened, and how long it took in all.
type Spent struct {
	Count int64
	Time  time.Duration
}

// Metrics reports what this process has counted.
type Metrics struct{ *core }

// Statistics are those of a deployment's versions in memory, the lowest first;
// of one version when it is named. Errors: fault.NotFound, fault.Unavailable
// (wanted, and not in memory), fault.PermissionDenied.
func (s *Metrics) Statistics(ctx context.Context, project, name, version string) ([]Statistics, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return nil, err
	}
	k := key{project, name}
	t := s.table(k)
	if t == nil {
		if !s.read.Load() {
			return nil, starting(name)
		}
		return nil, unknown(name, version)
	}
	var out []Statistics
	for _, x := range t.targets() {
		if version == "" || versionText(x.model.Version) == version {
			out = append(out, x.tally.statistics(x.model.Version))
		}
	}
	if t.scaledToZero() {
		for _, w := range t.wanted {
			if version == "" || versionText(w.version) == version {
				out = append(out, s.tallyOf(k, w.version).statistics(w.version))
			}
		}
	}
	if len(out) == 0 {
		return nil, s.notReady(k, t, version)
	}
	slices.SortFunc(out, func(a, b Statistics) int { return cmp.Compare(a.Version, b.Version) })
	return out, nil
}

// Measured is Statistics for a monitor.
type Measured struct {
	Project, Deployment string
	Statistics
	Failures       map[fault.Kind]int64
	Latency, Waits map[float64]uint64 // requests that took so many seconds or less, and that waited so long
	Sizes          map[float64]uint64 // runs of so many rows or less
	Waiting        int                // rows, now
}

// The bounds of Latency and Waits are powers of two of a nanosecond, from 1 µs and
// 33 µs to 17 s.
const firstWait, firstLatency, lastBound = 10, 15, 34

// Measured are the statistics of every version in memory.
func (s *Metrics) Measured() []Measured {
	var out []Measured
	for k, t := range *s.tables.Load() {
		for _, x := range t.targets() {
			m := Measured{
				Project: k.project, Deployment: k.name, Statistics: x.tally.statistics(x.model.Version),
				Failures: map[fault.Kind]int64{}, Latency: map[float64]uint64{}, Waits: map[float64]uint64{}, Sizes: map[float64]uint64{},
				Waiting: x.queue.Waiting(),
			}
			x.tally.measure(&m)
			out = append(out, m)
		}
		if t.scaledToZero() { // counters do not go away
			for _, w := range t.wanted {
				n := s.tallyOf(k, w.version)
				m := Measured{
					Project: k.project, Deployment: k.name, Statistics: n.statistics(w.version),
					Failures: map[fault.Kind]int64{}, Latency: map[float64]uint64{}, Waits: map[float64]uint64{}, Sizes: map[float64]uint64{},
				}
				n.measure(&m)
				out = append(out, m)
			}
		}
	}
	return out
}

// Scaling is how a version scales, for a monitor.
type Scaling struct {
	Project, Deployment string
	Version             int64
	Wanted, Running     int // replicas
}

// ColdStarts are the requests that wait for a deployment to load, and how often and how long
// it loaded for some.
type ColdStarts struct {
	Project, Deployment string
	Waiting             int // requests, now
	Loads               Spent
}

// Scaled is how the deployments scale that say how.
func (s *Metrics) Scaled() (versions []Scaling, holds []ColdStarts) {
	for k, t := range *s.tables.Load() {
		if t.deployment.Spec.Scale == nil {
			continue
		}
		for _, w := range t.wanted {
			var x Target
			if loaded := t.holding(w); loaded != nil {
				if loaded.unavailable() == nil {
					x.State = Ready
				}
				s.scaleState(k, t, w, loaded, &x)
			}
			versions = append(versions, Scaling{k.project, k.name, w.version, x.Wanted, x.Replicas})
		}
		h := ColdStarts{Project: k.project, Deployment: k.name}
		s.scaler.mu.Lock()
		if c := s.scaler.all[k]; c != nil {
			h.Loads = c.coldStarts
			if c.coldStart != nil {
				h.Waiting = c.coldStart.requests
			}
		}
		s.scaler.mu.Unlock()
		holds = append(holds, h)
	}
	return versions, holds
}

// measure reads the distributions.
func (t *tally) measure(m *Measured) {
	for i := range t.kinds {
		if n := t.kinds[i].Load(); n > 0 {
			m.Failures[fault.Kind(i)] = n
		}
	}
	var latencies, waits uint64
	for octave := range lastBound {
		for part := range slotsPerOctave {
			latencies += uint64(t.slots[octave*slotsPerOctave+part].Load()) //nolint:gosec // a count
		}
		waits += uint64(t.waits[octave+1].Load()) //nolint:gosec // a count
		if octave == 0 {
			waits += uint64(t.waits[0].Load()) //nolint:gosec // a count
		}
		bound := float64(int64(2)<<octave) / 1e9
		if octave+1 >= firstLatency {
			m.Latency[bound] = latencies
		}
		if octave+1 >= firstWait {
			m.Waits[bound] = waits
		}
	}
	for size := int64(1); size <= maxSize; size *= 2 {
		for _, b := range m.Batches {
			if b.Size <= size {
				m.Sizes[float64(size)] += uint64(b.Infer.Count) //nolint:gosec // a count
			}
		}
	}
}

// tally counts what a version answered since the server started, without locks.
type tally struct {
	requests, failures atomic.Int64
	kinds              [16]atomic.Int64                  // of failures, by fault.Kind
	slots              [64 * slotsPerOctave]atomic.Int64 // of latency
	success, fail      spent

	last, rows, runs            atomic.Int64 // last: in nanoseconds since 1970
	queue, input, infer, output spent
	waits                       [64]atomic.Int64 // of queue, by octave
	batches                     [1 + maxSize + 24]atomic.Pointer[batchTally]
}

// spent is Spent that is still counted.
type spent struct{ count, nanos atomic.Int64 }

func (s *spent) add(d time.Duration) {
	s.count.Add(1)
	s.nanos.Add(int64(d))
}

func (s *spent) read() Spent {
	return Spent{Count: s.count.Load(), Time: time.Duration(s.nanos.Load())}
}

// batchTally counts the runs of one size.
type batchTally struct{ input, infer, output spent }

// maxSize is the largest batch that is counted by itself.
const maxSize = 128

// sizeSlot numbers batch sizes: one by one, then by powers of two.
func sizeSlot(rows int) int {
	if rows <= maxSize {
		return max(0, rows)
	}
	return min(maxSize+bits.Len(uint(rows-1))-7, maxSize+24)
}

// sizeOf is the largest size of a slot.
func sizeOf(slot int) int64 {
	if slot <= maxSize {
		return int64(slot)
	}
	return 1 << (slot - maxSize + 7)
}

// add counts a whole request.
func (t *tally) add(latency time.Duration, err error) {
	t.requests.Add(1)
	t.slots[slotOf(latency)].Add(1)
	if err == nil {
		t.success.add(latency)
		return
	}
	t.failures.Add(1)
	t.kinds[fault.KindOf(err)&15].Add(1)
	t.fail.add(latency)
}

// refused counts a request that was refused before it was looked at.
func (t *tally) refused(err error) { t.kinds[fault.KindOf(err)&15].Add(1) }

// ran counts a run of the model that gave answers.
func (t *tally) ran(r batching.Run) {
	t.runs.Add(1)
	t.rows.Add(int64(r.Rows))
	t.last.Store(r.Ended.UnixNano())
	at := &t.batches[sizeSlot(r.Rows)]
	b := at.Load()
	if b == nil {
		at.CompareAndSwap(nil, &batchTally{})
		b = at.Load()
	}
	b.input.add(r.Input)
	b.infer.add(r.Infer)
	b.output.add(r.Output)
}

// answered counts how long a request's parts took: in a batch, those of the batch.
func (t *tally) answered(a batching.Answer) {
	t.queue.add(a.Queue)
	t.waits[bits.Len64(uint64(max(0, a.Queue)))].Add(1)
	t.input.add(a.Input)
	t.infer.add(a.Infer)
	t.output.add(a.Output)
}

func (t *tally) statistics(version int64) Statistics {
	s := Statistics{
		Version: version, Inferences: t.rows.Load(), Executions: t.runs.Load(), Success: t.success.read(), Fail: t.fail.read(),
		Queue: t.queue.read(), Input: t.input.read(), Infer: t.infer.read(), Output: t.output.read(),
	}
	if last := t.last.Load(); last != 0 {
		s.Last = time.Unix(0, last).UTC()
	}
	for i := range t.batches {
		if b := t.batches[i].Load(); b != nil {
			s.Batches = append(s.Batches, BatchStatistics{Size: sizeOf(i), Input: b.input.read(), Infer: b.infer.read(), Output: b.output.read()})
		}
	}
	return s
}

// slotsPerOctave makes a quantile at most an eighth too high.
const slotsPerOctave = 8

// slotOf numbers latencies: by the position of the highest bit and the three
// bits below.
func slotOf(d time.Duration) int {
	n := int64(max(d, slotsPerOctave))
	octave := bits.Len64(uint64(n)) - 1 //nolint:gosec // positive
	return octave*slotsPerOctave + int(n>>(octave-3))&(slotsPerOctave-1)
}

// slotEnd is the highest latency of a slot.
func slotEnd(slot int) time.Duration {
	octave, part := slot/slotsPerOctave, slot%slotsPerOctave
	return time.Duration(slotsPerOctave+part+1)<<(octave-3) - 1
}

// quantile is the latency that a share of the requests did not exceed; zero when
// there were none.
func (t *tally) quantile(q float64) time.Duration {
	var counts [64 * slotsPerOctave]int64
	var total int64
	for i := range t.slots {
		counts[i] = t.slots[i].Load()
		total += counts[i]
	}
	left := int64(q * float64(total))
	for i, n := range counts {
		if left -= n; n > 0 && left < 0 {
			return slotEnd(i)
		}
	}
	return 0
}
