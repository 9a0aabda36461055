package serving

import (
	"math/bits"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// key names a deployment.
type key struct{ project, name string }

// table is which loaded versions answer for a deployment. It never changes: a
// request takes the newest one and stays with it. The service holds one use of
// each target of the newest table; what is in no table any more is closed when
// the last request on it has finished.
type table struct {
	deployment Deployment
	owner      uint64  // of its records
	stable     *target // nil: not in memory
	canary     *target // nil: none, or not in memory; its share is stable's then
	shadow     *target // nil: none, or not in memory
	share      uint32  // the first buckets are the canary's; 0 without one
	rollout    RolloutID
	features   *columns  // nil: requests carry the model's own inputs
	sticky     string    // request column that decides the bucket
	wanted     []wanting // every version that should be in memory
}

// wanting is a version that a deployment should have in memory.
type wanting struct {
	id      ID // of the deployment
	role    Role
	version int64
	digest  string
	how     how
}

// how a version is loaded, by the manifest.
type how struct {
	threads int
	output  string // of the score
	index   int    // -1: the last
}

func (s Spec) how() how {
	h := how{threads: s.Threads, index: -1}
	if p := s.Prediction; p != nil {
		h.output = p.Output
		if p.Index != nil {
			h.index = *p.Index
		}
	}
	return h
}

// target is a loaded version. It is used by those who have entered and not left.
type target struct {
	model   Model // without its file
	how     how
	session runtime.Session
	meta    runtime.Metadata
	score   score
	names   map[string][]string // of the columns of its inputs
	tally   *tally
	uses    atomic.Int64
}

func newTarget(m Model, how how, session runtime.Session, tally *tally) *target {
	m.File = nil
	t := &target{model: m, how: how, session: session, meta: session.Metadata(), names: inputNames(session.Metadata()), tally: tally}
	t.uses.Store(1)
	return t
}

func (t *target) is(w wanting) bool {
	return t != nil && t.model.Version == w.version && t.model.Digest == w.digest && t.how == w.how
}

// enter begins a use; false when the target is being closed.
func (t *target) enter() bool {
	for {
		n := t.uses.Load()
		if n == 0 {
			return false
		}
		if t.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a use. The last one closes the session, beside the caller.
func (t *target) leave() {
	if t != nil && t.uses.Add(-1) == 0 {
		go func() { _ = t.session.Close() }()
	}
}

// targets are those in memory, each once.
func (t *table) targets() []*target {
	if t == nil {
		return nil
	}
	out := make([]*target, 0, 3)
	for _, x := range []*target{t.stable, t.canary, t.shadow} {
		if x != nil {
			out = append(out, x)
		}
	}
	return out
}

// buckets is in how many parts the requests of a deployment are divided.
const buckets = 10_000

// bucket is where a key of a deployment falls. It depends on both alone, so a
// candidate that takes the first buckets keeps all of its keys as its share
// grows, and gives back only what it must as it shrinks. FNV-1a, and a
// finaliser because its low bits alone are not even.
func bucket(deployment ID, routeKey string) uint32 {
	h := uint64(14695981039346656037)
	for _, s := range [2]string{string(deployment), routeKey} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211 // the end of a part
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return uint32((h ^ h>>33) % buckets)
}

// choose is the target for a request. random says that it was chosen by share,
// and no version was asked for. nil: none answers.
func (t *table) choose(version, routeKey string) (chosen *target, random bool) {
	if version != "" {
		for _, x := range t.targets() {
			if strconv.FormatInt(x.model.Version, 10) == version {
				return x, false
			}
		}
		return nil, false
	}
	if t.canary == nil {
		return t.stable, true
	}
	b := rand.Uint32N(buckets) //nolint:gosec // it protects nothing
	if routeKey != "" {
		b = bucket(t.deployment.ID, routeKey)
	}
	if b < t.share {
		return t.canary, true
	}
	return t.stable, true
}

// pick finds the target for a request and enters it.
func (s *Service) pick(r *Request) (*table, *target, bool, error) {
	k := key{r.Project, r.Name}
	for {
		t := (*s.tables.Load())[k]
		if t == nil {
			if !s.read.Load() {
				return nil, nil, false, starting(r.Name)
			}
			return nil, nil, false, unknown(r.Name, r.Version)
		}
		chosen, random := t.choose(r.Version, t.routeKey(r))
		if chosen == nil {
			return nil, nil, false, s.notReady(k, t, r.Version)
		}
		if chosen.enter() { // otherwise there is a newer table
			return t, chosen, random, nil
		}
	}
}

func starting(name string) error {
	return fault.New(fault.Unavailable, "model %q is not ready: the server has started and is loading its models", name).WithHint("Try again in a moment.")
}

func unknown(name, version string) error {
	what := name
	if version != "" {
		what += " version " + version
	}
	return fault.New(fault.NotFound, "unknown model: %q is not deployed in this project", what).
		WithHint("`falaj get deployments` lists what is.")
}

// notReady says why a version does not answer.
func (s *Service) notReady(k key, t *table, version string) error {
	for _, w := range t.wanted {
		if version != "" && versionText(w.version) != version || version == "" && w.role != Stable {
			continue
		}
		if f, ok := s.failure(k, w); ok {
			return fault.New(fault.Unavailable, "model %q is not ready: %s", k.name, f.reason)
		}
		return starting(k.name)
	}
	return unknown(k.name, version)
}

// tally counts what a version answered since the server started.
type tally struct {
	requests, failures atomic.Int64
	slots              [64 * slotsPerOctave]atomic.Int64 // of latency
}

// slotsPerOctave makes a quantile at most an eighth too high.
const slotsPerOctave = 8

func (t *tally) add(latency time.Duration, failed bool) {
	t.requests.Add(1)
	if failed {
		t.failures.Add(1)
	}
	t.slots[slotOf(latency)].Add(1)
}

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
