package serving

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/autoscale"
)

// ScaleSpec is how many replicas of its model a deployment has.
type ScaleSpec struct {
	Min         *int     `json:"min,omitempty" doc:"Minimum replicas; 0 scales to zero after idle, and the next request waits for a cold start" default:"1"`
	Max         int      `json:"max,omitempty" doc:"Maximum replicas, up to 64. Each is a process; above 1, isolation auto is child. Default: min, or 1"`
	Concurrency float64  `json:"concurrency,omitempty" doc:"Target of requests in flight or queued per replica. Default: 8, without queue_time"`
	QueueTime   string   `json:"queue_time,omitempty" doc:"Target of the mean queueing time, such as 50ms"`
	Pools       []string `json:"pools,omitempty" doc:"Pools for remote replicas beyond the first, which stays on the server; for ONNX models without steps. Default: all replicas on the server"`
	Idle        string   `json:"idle,omitempty" doc:"Time without requests before a model with min 0 is scaled to zero, 1s to 30d" default:"10m"`
}

// Limits of a ScaleSpec, and what it says when it does not.
const (
	maxReplicas        = 64
	maxPools           = 16
	maxConcurrency     = 1e6
	maxQueueTime       = time.Minute
	maxIdle            = 30 * 24 * time.Hour
	defaultConcurrency = 8
	defaultIdle        = 10 * time.Minute
)

// limits are the spec's, with its defaults; of no spec one replica that is always
// there.
func (p *ScaleSpec) limits() autoscale.Limits {
	if p == nil {
		return autoscale.Limits{Min: 1, Max: 1}
	}
	l := autoscale.Limits{Min: 1, Concurrency: p.Concurrency, Idle: defaultIdle}
	if p.Min != nil {
		l.Min = *p.Min
	}
	if l.Max = p.Max; l.Max == 0 {
		l.Max = max(1, l.Min)
	}
	l.QueueTime, _ = resource.ParseDuration(p.QueueTime) // validated
	if l.Concurrency == 0 && l.QueueTime == 0 {
		l.Concurrency = defaultConcurrency
	}
	if p.Idle != "" {
		l.Idle, _ = resource.ParseDuration(p.Idle)
	}
	return l
}

// scalesToZero reports whether the deployment may have no model in memory.
func (s Spec) scalesToZero() bool { return s.Scale != nil && s.Scale.Min != nil && *s.Scale.Min == 0 }

// replicated reports whether versions have replicas, each a process.
func (s Spec) replicated() bool { return s.Scale != nil && s.Scale.limits().Max > 1 }

// pools are those on which replicas beyond the first are; none: they are here.
func (s Spec) pools() []string {
	if s.Scale == nil {
		return nil
	}
	return s.Scale.Pools
}

func (p *ScaleSpec) validate(s Spec) error {
	if p == nil {
		return nil
	}
	l := p.limits()
	wait, errWait := resource.ParseDuration(p.QueueTime)
	idle, errIdle := resource.ParseDuration(p.Idle)
	var says, hint string
	switch {
	case s.remote().Name != "":
		says, hint = fmt.Sprintf(": the model runs on remote %s, which scales it", s.remote().Name), "Remove spec.scale, and scale the model there."
	case l.Min < 0 || l.Min > maxReplicas:
		says = fmt.Sprintf(".min: %d is outside the range 0 to %d", l.Min, maxReplicas)
	case p.Max < 0 || p.Max > maxReplicas:
		says = fmt.Sprintf(".max: %d is outside the range 1 to %d", p.Max, maxReplicas)
	case l.Max < l.Min:
		says = fmt.Sprintf(".max: %d is less than min %d", l.Max, l.Min)
	case !(p.Concurrency >= 0 && p.Concurrency <= maxConcurrency):
		says = fmt.Sprintf(".concurrency: %g is not greater than 0 and at most %g", p.Concurrency, float64(maxConcurrency))
	case errWait != nil || p.QueueTime != "" && (wait < time.Millisecond || wait > maxQueueTime):
		says = fmt.Sprintf(".queue_time: %.40q is not a duration from 1ms to %s", p.QueueTime, maxQueueTime)
	case errIdle != nil || p.Idle != "" && (idle < time.Second || idle > maxIdle):
		says = fmt.Sprintf(".idle: %.40q is not a duration from 1s to 30d", p.Idle)
	case p.Idle != "" && l.Min > 0:
		says, hint = fmt.Sprintf(".idle: requires min 0, not %d", l.Min), "Set spec.scale.min to 0, or remove idle."
	case (p.Concurrency != 0 || p.QueueTime != "") && l.Max <= max(1, l.Min):
		says, hint = fmt.Sprintf(": concurrency and queue_time need more than %d replicas", l.Max), "Set spec.scale.max, or remove them."
	case l.Max > 1 && s.Runtime != nil && s.Runtime.Isolation == InProcess:
		says = fmt.Sprintf(".max: %d replicas are not supported in-process, where a model already uses all cores", l.Max)
		hint = "Remove max, or set spec.runtime.isolation to child."
	case len(p.Pools) > 0 && l.Max == 1:
		says, hint = ".pools: remote replicas need more than one replica", "Set spec.scale.max or min, or remove pools."
	case len(p.Pools) > maxPools:
		says = fmt.Sprintf(".pools: %d pools exceed the limit of %d", len(p.Pools), maxPools)
	case len(p.Pools) > 0 && s.Chained():
		says, hint = ".pools: models with steps do not support remote replicas", "Remove pools, or the steps."
	case len(p.Pools) > 0 && s.Runtime != nil && s.Runtime.Python != (PythonSpec{}):
		says, hint = ".pools: Python models do not support remote replicas", "Remove pools."
	default:
		return checkPools(p.Pools)
	}
	err := fault.New(fault.Invalid, "spec.scale%s", says)
	if hint != "" {
		err = err.WithHint("%s", hint)
	}
	return err
}

// checkPools refuses what names no pools.
func checkPools(pools []string) error {
	for i, name := range pools {
		if err := id.CheckName("pool name", name); err != nil {
			return fault.Wrap(err, "spec.scale.pools")
		}
		if slices.Contains(pools[:i], name) {
			return fault.New(fault.Invalid, "spec.scale.pools: duplicate pool %s", name)
		}
	}
	return nil
}

// scaler is what the service knows of the deployments that say how they scale.
type scaler struct {
	mu     sync.Mutex
	all    map[key]*scaled
	closed bool // no cold start begins any more

	life    context.Context // of loads for who asks
	end     context.CancelFunc
	loading sync.WaitGroup // those loads; added to under mu while not closed
}

// scaled is one of them. Under scaler.mu.
type scaled struct {
	id         ID
	asked      time.Time // last, as far as was seen; or when it was loaded
	versions   map[int64]*scaledVersion
	coldStart  *coldStart // those who wait while it is loaded; nil when nobody does
	coldStarts Spent      // loads that requests waited for
}

// scaledVersion is what was seen of a version, and decided.
type scaledVersion struct {
	requests, answered int64 // of its tally, when it was seen last
	queued             time.Duration
	samples            []autoscale.Sample
	past               []autoscale.Past
	decision           autoscale.Decision
}

// begin makes it ready.
func (z *scaler) begin() {
	z.all = map[key]*scaled{}
	life, end := context.WithCancel(context.Background())
	z.life, z.end = life, end
}

// of is a deployment's; made when there is none, or of another of the name.
func (z *scaler) of(k key, id ID) *scaled {
	c := z.all[k]
	if c == nil || c.id != id {
		var waiting *coldStart
		if c != nil {
			waiting = c.coldStart // they ask for the name
		}
		c = &scaled{id: id, versions: map[int64]*scaledVersion{}, coldStart: waiting}
		z.all[k] = c
	}
	return c
}

// ScaleOnce looks at each deployment that says how it scales, and makes more or
// fewer replicas, or scales it to zero. It is to be called once a second.
func (s *Loader) ScaleOnce(ctx context.Context) error { return s.scale(ctx, time.Now()) }

func (s *Loader) scale(ctx context.Context, now time.Time) error {
	for k, t := range *s.tables.Load() {
		if t.deployment.Spec.Scale == nil {
			continue
		}
		if s.sample(k, t, now) {
			s.scaleToZero(ctx, k, t)
			continue
		}
		for _, x := range t.targets() {
			if p := x.replicas; p != nil {
				p.resize(s.wanted(k, x.model.Version))
			}
		}
	}
	return ctx.Err()
}

// sample looks at a deployment's versions and decides. It reports whether nobody
// asks for the deployment any more.
func (s *Loader) sample(k key, t *table, now time.Time) (idle bool) {
	s.scaler.mu.Lock()
	defer s.scaler.mu.Unlock()
	c := s.scaler.of(k, t.deployment.ID)
	targets := t.targets()
	busy := c.coldStart != nil
	kept := map[int64]bool{}
	for _, x := range targets {
		v := c.versions[x.model.Version]
		if v == nil {
			v = &scaledVersion{}
			v.requests, v.answered, v.queued = x.tally.seen()
			c.versions[x.model.Version] = v
		}
		kept[x.model.Version] = true
		sample := autoscale.Sample{At: now, InFlight: int(x.uses.Load()) - 1}
		requests, answered, queued := x.tally.seen()
		sample.Answered, sample.Queued = answered-v.answered, queued-v.queued
		if sample.InFlight > 0 || requests != v.requests {
			c.asked = now
		}
		busy = busy || sample.InFlight > 0
		if x.since.After(c.asked) {
			c.asked = x.since
		}
		v.requests, v.answered, v.queued = requests, answered, queued
		v.samples = append(drop(v.samples, func(o autoscale.Sample) bool { return now.Sub(o.At) >= autoscale.Stable }), sample)
	}
	for version := range c.versions {
		if !kept[version] {
			delete(c.versions, version)
		}
	}
	idle = len(targets) > 0
	for _, x := range targets {
		v := c.versions[x.model.Version]
		shot := autoscale.Snapshot{
			Limits: t.deployment.Spec.Scale.limits(), Now: now, Running: 1, Samples: v.samples, Past: v.past, Asked: c.asked, Busy: busy,
			Useful: s.coresOf(x.how).All() / (max(1, x.how.threads) * processesOf(t.deployment.Spec)),
		}
		if p := x.replicas; p != nil {
			shot.Running, shot.Loading, shot.Grown = p.size()
		}
		if len(t.deployment.Spec.pools()) > 0 { // they have cores of their own
			shot.Useful = maxReplicas
		}
		if x == t.shadow { // it may be slow: nobody waits for it
			shot.Min, shot.Max = min(1, shot.Min), 1
		}
		before := v.decision.Wanted
		v.decision = autoscale.Decide(shot)
		v.past = append(drop(v.past, func(o autoscale.Past) bool { return now.Sub(o.At) >= autoscale.Down }), autoscale.Past{At: now, Need: v.decision.Need})
		idle = idle && v.decision.Wanted == 0
		if before != v.decision.Wanted {
			s.log.Info("replicas wanted", slog.String("deployment", k.name), slog.Int64("version", x.model.Version), slog.Int("replicas", v.decision.Wanted), slog.String("reason", v.decision.Reason))
		}
	}
	return idle
}

// drop leaves out the oldest, for which old is true.
func drop[T any](all []T, old func(T) bool) []T {
	i := 0
	for i < len(all) && old(all[i]) {
		i++
	}
	return append(all[:0:0], all[i:]...)
}

// wanted is how many replicas a version should have; 1 when nothing was decided.
func (s *Loader) wanted(k key, version int64) int {
	s.scaler.mu.Lock()
	defer s.scaler.mu.Unlock()
	if c := s.scaler.all[k]; c != nil && c.versions[version] != nil {
		return max(1, c.versions[version].decision.Wanted)
	}
	return 1
}

// scaleToZero takes a deployment's models out of memory, if nobody has asked meanwhile.
// Whoever has entered finishes on them.
func (s *Loader) scaleToZero(ctx context.Context, k key, t *table) {
	s.settling.Lock()
	defer s.settling.Unlock()
	all := *s.tables.Load()
	if all[k] != t {
		return // it was changed
	}
	for _, x := range t.targets() {
		if x.uses.Load() != 1 {
			return
		}
	}
	asleep := *t
	asleep.stable, asleep.canary, asleep.shadow, asleep.share, asleep.unloaded = nil, nil, nil, 0, t.targets()
	s.replace(k, &asleep)
	leave(t.targets())
	s.log.InfoContext(ctx, "idle models were scaled to zero", slog.String("deployment", k.name))
}

// scaledToZero reports whether nothing of a deployment is in memory because nobody asked
// for it.
func (t *table) scaledToZero() bool {
	return t != nil && t.deployment.Spec.scalesToZero() && t.stable == nil && t.canary == nil && t.shadow == nil
}

// resting reports whether the loader leaves a deployment alone: nobody asked for
// it, or all that was asked was loaded and has left again. One that could not be
// loaded for who asked is tried again.
func (s *core) resting(k key, t *table, d Deployment) bool {
	if !d.Spec.scalesToZero() || t == nil || t.deployment.ID != d.ID || len(t.targets()) > 0 {
		return false
	}
	for _, w := range d.wants() {
		if _, failed := s.failure(k, w); failed {
			return false
		}
	}
	return true
}

// seen is what the scaler counts.
func (t *tally) seen() (requests, answered int64, queued time.Duration) {
	q := t.queue.read()
	return t.requests.Load(), q.Count, q.Time
}

// scaleState adds how many replicas a version has to its state, and why. It reports
// whether the version is loaded when it is asked for.
func (s *core) scaleState(k key, t *table, w wanting, loaded *target, x *Target) (asleep bool) {
	if loaded == nil {
		if t != nil && t.deployment.Spec.scalesToZero() && x.State == Loading && (w.role == Stable || t.scaledToZero()) {
			x.State = Ready // it answers whoever asks
			x.Scaling = "scaled to zero; the next request loads it"
			return true
		}
		return false
	}
	p := loaded.replicas
	switch {
	case p != nil:
		x.Replicas, x.Pools = p.ready(), p.pools()
	case x.State == Ready:
		x.Replicas = 1
	}
	if t.deployment.Spec.Scale == nil {
		return false
	}
	x.Wanted = 1
	s.scaler.mu.Lock()
	if c := s.scaler.all[k]; c != nil && c.versions[w.version] != nil {
		d := c.versions[w.version].decision
		x.Wanted, x.Scaling = max(x.Wanted, d.Wanted), d.Reason
	}
	s.scaler.mu.Unlock()
	if p != nil {
		if why := p.trouble(); why != "" {
			x.Scaling = why
		}
	}
	return false
}
