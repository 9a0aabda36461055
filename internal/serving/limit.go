package serving

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/resource"
)

// limits holds deployments to the rates and quotas that their manifests allow. Rates
// are of this process, and begin anew when they are changed; quotas are counted in the
// database.
type limits struct {
	all     sync.Map // key → *limiter
	written func(ctx context.Context, of ID, starts, ends time.Time, caller string) (Usage, error)
}

// limiter is the limits of one deployment.
type limiter struct {
	spec  LimitsSpec
	burst float64 // seconds
	of    ID
	quota *quota // nil without one

	mu      sync.Mutex
	newest  time.Time // of all requests: one that overtook another sets no clock back
	callers map[string]*allowance
}

// allowance is what a caller has left; nil without a limit.
type allowance struct{ requests, rows *rate.Limiter }

// maxCallers bounds the callers that are remembered of a deployment.
const maxCallers = 10_000

// take takes a request's share, or refuses it. Errors: fault.Exhausted,
// fault.TooLarge (more rows than ever may come at once).
func (l *limits) take(ctx context.Context, d *Deployment, rows int, now time.Time) error {
	spec := d.Spec.Limits
	if spec == nil || spec.Requests == 0 && spec.Rows == 0 && spec.Quota == (QuotaSpec{}) {
		return nil
	}
	k := key{d.Project, d.Name}
	v, _ := l.all.Load(k)
	m, _ := v.(*limiter)
	if m == nil || m.spec != *spec || m.of != d.ID {
		fresh := limiterOf(*spec)
		fresh.of, fresh.quota = d.ID, l.quotaOf(d, m)
		m = fresh
		if v == nil || !l.all.CompareAndSwap(k, v, fresh) { // else somebody may be before us
			v, _ = l.all.LoadOrStore(k, fresh)
			m = v.(*limiter)
		}
	}
	caller := ""
	switch p := identity.From(ctx); spec.Per {
	case "deployment":
	case "user":
		caller = p.ID
	default:
		caller = p.ID + " " + p.Token
	}
	if spec.Requests > 0 || spec.Rows > 0 {
		if err := m.take(caller, rows, now); err != nil {
			return err
		}
	}
	if m.quota == nil {
		return nil
	}
	return m.quota.take(ctx, spec.Quota, caller, rows, now)
}

// quotaOf is where a deployment's quota is counted. Another amount goes on with what
// was counted, another period or other callers do not.
func (l *limits) quotaOf(d *Deployment, before *limiter) *quota {
	spec := d.Spec.Limits
	if spec.Quota == (QuotaSpec{}) {
		return nil
	}
	per := cmp.Or(spec.Per, "token")
	if before != nil && before.quota != nil && before.of == d.ID && before.quota.every == spec.Quota.Every && before.quota.per == per {
		return before.quota
	}
	return &quota{of: d.ID, every: spec.Quota.Every, per: per, beyond: l.written}
}

func limiterOf(spec LimitsSpec) *limiter {
	burst, _ := resource.ParseDuration(spec.Burst) // validated
	return &limiter{spec: spec, burst: max(1, burst.Seconds()), callers: map[string]*allowance{}}
}

func (m *limiter) take(caller string, rows int, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(m.newest) {
		now = m.newest // a bucket whose clock goes back is filled twice for the same time
	}
	m.newest = now
	a := m.callers[caller]
	if a == nil {
		m.makeRoom(now)
		a = &allowance{m.bucket(m.spec.Requests), m.bucket(m.spec.Rows)}
		m.callers[caller] = a
	}
	if a.rows != nil && rows > a.rows.Burst() {
		return fault.New(fault.TooLarge, "the request has %d rows; the limit of this deployment is %d", rows, a.rows.Burst()).
			WithHint("Send fewer rows per request, or ask for higher spec.limits.")
	}
	forRequests, forRows := missing(a.requests, 1, now), missing(a.rows, rows, now)
	switch {
	case forRequests > 0 && forRequests >= forRows:
		return m.over("requests", m.spec.Requests, forRequests)
	case forRows > 0:
		return m.over("rows", m.spec.Rows, forRows)
	}
	if a.requests != nil {
		a.requests.AllowN(now, 1)
	}
	if a.rows != nil {
		a.rows.AllowN(now, rows)
	}
	return nil
}

// missing is how long it takes until n are there, and a microsecond for what is
// lost in fractions.
func missing(l *rate.Limiter, n int, now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	lacking := float64(n) - l.TokensAt(now)
	if lacking <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(lacking/float64(l.Limit())*1e9)) + time.Microsecond
}

func (m *limiter) over(what string, perSecond float64, wait time.Duration) error {
	return fault.New(fault.Exhausted, "%s has exceeded %g %s per second", whose(m.spec.Per), perSecond, what).
		WithHint("Try again in %s, or ask for higher spec.limits of the deployment.", max(time.Millisecond, wait.Round(time.Millisecond))).WithRetry(wait)
}

// whose is who is limited, for people.
func whose(per string) string {
	switch per {
	case "deployment":
		return "this deployment"
	case "user":
		return "this user"
	}
	return "this token"
}

func (m *limiter) bucket(perSecond float64) *rate.Limiter {
	if perSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(min(max(1, math.Ceil(perSecond*m.burst)), math.MaxInt32)))
}

// makeRoom forgets callers who have their whole allowance again, or else anybody.
func (m *limiter) makeRoom(now time.Time) {
	if len(m.callers) < maxCallers {
		return
	}
	full := func(l *rate.Limiter) bool { return l == nil || l.TokensAt(now) >= float64(l.Burst()) }
	for c, a := range m.callers {
		if full(a.requests) && full(a.rows) {
			delete(m.callers, c)
		}
	}
	for c := range m.callers {
		if len(m.callers) < maxCallers {
			return
		}
		delete(m.callers, c)
	}
}
