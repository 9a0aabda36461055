package serving

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// QuotaSpec is how much may be asked in a day or a month of the calendar. It is
// counted in the database, over all servers.
type QuotaSpec struct {
	Requests int64  `json:"requests,omitempty" doc:"Requests per period; default unlimited"`
	Rows     int64  `json:"rows,omitempty" doc:"Rows per period; default unlimited"`
	Every    string `json:"every,omitempty" doc:"Period: day or month, of the calendar in UTC" enum:"day,month"`
}

// maxQuota bounds an amount: counters do not overflow, and JSON has it exactly.
const maxQuota = 1 << 50

func (q QuotaSpec) validate() error {
	switch {
	case q == QuotaSpec{}:
		return nil
	case q.Every != "day" && q.Every != "month":
		return fault.New(fault.Invalid, "spec.limits.quota.every: %.40q is neither day nor month", q.Every)
	case q.Requests < 0 || q.Requests > maxQuota || q.Rows < 0 || q.Rows > maxQuota || q.Requests+q.Rows == 0:
		return fault.New(fault.Invalid, "spec.limits.quota: %d requests and %d rows; set at least one from 1 to %d", q.Requests, q.Rows, int64(maxQuota))
	}
	return nil
}

// period is the day or month of the calendar that a time is in.
func (q QuotaSpec) period(at time.Time) (starts, ends time.Time) {
	y, m, d := at.UTC().Date()
	if q.Every == "month" {
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC), time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
}

// Usage is what a caller used of a quota in a period.
type Usage struct {
	Caller   string `json:"-"` // by whom it is counted
	User     string `json:"user,omitempty" doc:"User or service account; absent when all are counted together"`
	Name     string `json:"name,omitempty" doc:"Display name"`
	Token    string `json:"token,omitempty" doc:"ID of the token; absent when the tokens of a user are counted together"`
	Requests int64  `json:"requests"`
	Rows     int64  `json:"rows"`
}

// quota counts for one deployment. What is asked is counted in memory; Quotas.Record
// writes down what came since, and hears what other servers counted.
type quota struct {
	of     ID
	every  string
	per    string
	beyond func(ctx context.Context, of ID, starts, ends time.Time, caller string) (Usage, error) // what was written; nil: nothing

	begin sync.Mutex // of a period
	now   atomic.Pointer[period]
}

// period is what was asked in one. It is replaced by the next.
type period struct {
	starts, ends time.Time
	callers      sync.Map // string → *spending
	count        atomic.Int64
}

// spending is what one caller asked.
type spending struct {
	who            Usage // without the counts
	hear           sync.Once
	known          chan struct{} // closed when heard
	heard          atomic.Bool   // what was written before is in the counts; until then nothing is
	requests, rows atomic.Int64  // in the period, as far as this server knows
	// How many of them are in the database; guarded by Quotas.recording.
	storedRequests, storedRows int64
}

// maxSpenders bounds the callers that are counted of a deployment in a period: to
// forget one would give its quota back.
const maxSpenders = 100_000

// readUsage bounds how long a caller's first request of a period at this server waits
// to hear what the caller used of it before, or at another.
const readUsage = 2 * time.Second

// at is the period of a time. A clock that goes back stays in the newest period.
func (q *quota) at(spec QuotaSpec, now time.Time) *period {
	if p := q.now.Load(); p != nil && now.Before(p.ends) {
		return p
	}
	q.begin.Lock()
	defer q.begin.Unlock()
	if p := q.now.Load(); p != nil && now.Before(p.ends) {
		return p
	}
	p := &period{}
	p.starts, p.ends = spec.period(now)
	q.now.Store(p)
	return p
}

// known waits until a caller's spending has what was written of it. It is read once, and
// only requests of the same caller wait for that, each as long as it may. Error:
// fault.Timeout.
func (q *quota) known(ctx context.Context, p *period, s *spending) error {
	if s.heard.Load() {
		return nil
	}
	s.hear.Do(func() {
		// The request that reads may be cancelled; those that wait for it are not.
		go q.read(context.WithoutCancel(ctx), p, s)
	})
	select {
	case <-s.known:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Timeout, "the request timed out while its quota was checked").WithHint("Try again.")
	}
}

// read takes over what was written of a caller.
func (q *quota) read(ctx context.Context, p *period, s *spending) {
	defer close(s.known)
	defer s.heard.Store(true)
	if q.beyond == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readUsage)
	defer cancel()
	u, err := q.beyond(ctx, q.of, p.starts, p.ends, s.who.Caller)
	if err != nil {
		return // the count begins at nothing; recording it makes it right
	}
	s.storedRequests, s.storedRows = u.Requests, u.Rows
	s.requests.Store(u.Requests)
	s.rows.Store(u.Rows)
}

// take counts a request, or refuses it. Errors: as limits.take.
func (q *quota) take(ctx context.Context, spec QuotaSpec, caller string, rows int, now time.Time) error {
	if spec.Rows > 0 && int64(rows) > spec.Rows {
		return fault.New(fault.TooLarge, "the request has %d rows; the quota of %s is %d per %s", rows, whose(q.per), spec.Rows, spec.Every).
			WithHint("Send fewer rows per request, or ask for a higher spec.limits.quota.")
	}
	p := q.at(spec, now)
	v, there := p.callers.Load(caller)
	if !there {
		if p.count.Load() >= maxSpenders {
			return fault.New(fault.Exhausted, "more than %d callers use this deployment per %s", maxSpenders, spec.Every).
				WithHint("Count them together with spec.limits.per.").WithRetry(p.ends.Sub(now))
		}
		if v, there = p.callers.LoadOrStore(caller, &spending{who: whoAsks(ctx, caller, q.per), known: make(chan struct{})}); !there {
			p.count.Add(1)
		}
	}
	s := v.(*spending)
	if err := q.known(ctx, p, s); err != nil {
		return err
	}
	if !spend(&s.requests, 1, spec.Requests) {
		return p.over(q.per, "requests", spec.Requests, spec.Every, now)
	}
	if !spend(&s.rows, int64(rows), spec.Rows) {
		s.requests.Add(-1)
		return p.over(q.per, "rows", spec.Rows, spec.Every, now)
	}
	return nil
}

// spend adds to a counter what a limit leaves room for; 0 is no limit.
func spend(counter *atomic.Int64, n, limit int64) bool {
	if limit == 0 {
		counter.Add(n)
		return true
	}
	for {
		was := counter.Load()
		if was+n > limit {
			return false
		}
		if counter.CompareAndSwap(was, was+n) {
			return true
		}
	}
}

func (p *period) over(per, what string, limit int64, every string, now time.Time) error {
	return fault.New(fault.Exhausted, "%s has used its quota of %d %s per %s", whose(per), limit, what, every).
		WithHint("Try again from %s on, or ask for a higher spec.limits.quota of the deployment.", p.ends.Format(time.RFC3339)).WithRetry(p.ends.Sub(now))
}

// whoAsks is the caller for people. A token's ID is no secret.
func whoAsks(ctx context.Context, caller, per string) Usage {
	u := Usage{Caller: caller}
	if per == "deployment" {
		return u
	}
	p := identity.From(ctx)
	u.User, u.Name, u.Token = p.ID, p.Name, p.Token
	if per == "user" {
		u.Token = ""
	}
	return u
}

// Quotas records what callers used of the quotas of deployments, and reports it.
type Quotas struct {
	*core
	usageStore UsageStore

	recording sync.Mutex // one after the other
	forgot    time.Time  // periods that have ended, last; under recording
}

// recordBatch is how many callers are written in a transaction.
const recordBatch = 200

// Record writes down what was used of quotas since it was called last, and takes
// over what other servers wrote. It forgets periods that have ended. What a server let
// through and did not write before it was killed is used by nobody.
func (s *Quotas) Record(ctx context.Context) error {
	s.recording.Lock()
	defer s.recording.Unlock()
	var failed error
	s.limits.all.Range(func(k, v any) bool {
		if err := s.record(ctx, k.(key), v.(*limiter)); err != nil {
			failed = cmp.Or(failed, err)
		}
		return ctx.Err() == nil
	})
	if now := time.Now(); failed == nil && now.Sub(s.forgot) > time.Hour {
		s.forgot = now
		failed = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.usageStore.ForgetUsage(ctx, tx, now) })
	}
	return fault.Wrap(failed, "record the usage of quotas")
}

// record writes one deployment's. What the counters have is in the database once this
// is done, and they have what the database has. Those of a deployment that was deleted are
// dropped: requests that were on their way then leave nothing under its ID.
func (s *Quotas) record(ctx context.Context, k key, m *limiter) error {
	q := m.quota
	if q == nil {
		return nil
	}
	p := q.now.Load()
	if p == nil {
		return nil
	}
	var since []*spending
	p.callers.Range(func(_, v any) bool {
		if x := v.(*spending); x.heard.Load() && (x.requests.Load() != x.storedRequests || x.rows.Load() != x.storedRows) {
			since = append(since, x)
		}
		return true
	})
	slices.SortFunc(since, func(a, b *spending) int { return cmp.Compare(a.who.Caller, b.who.Caller) }) // servers lock rows in one order
	for part := range slices.Chunk(since, recordBatch) {
		add := make([]Usage, len(part))
		for i, x := range part {
			add[i] = x.who
			add[i].Requests, add[i].Rows = x.requests.Load()-x.storedRequests, x.rows.Load()-x.storedRows
		}
		var all []Usage
		if err := s.cfg.DB.Update(ctx, k.project, func(ctx context.Context, tx *store.Tx) (err error) {
			all, err = s.usageStore.AddUsage(ctx, tx, q.of, p.starts, p.ends, add)
			return err
		}); fault.Is(err, fault.NotFound) {
			s.limits.all.CompareAndDelete(k, m)
			return nil
		} else if err != nil {
			return err
		}
		for i, x := range part {
			x.requests.Add(all[i].Requests - x.storedRequests - add[i].Requests)
			x.rows.Add(all[i].Rows - x.storedRows - add[i].Rows)
			x.storedRequests, x.storedRows = all[i].Requests, all[i].Rows
		}
	}
	return nil
}

// written is what the database has of a caller in a period.
func (s *Quotas) written(ctx context.Context, of ID, starts, ends time.Time, caller string) (u Usage, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		u, err = s.usageStore.UsageOf(ctx, tx, of, starts, ends, caller)
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "reading the usage of a quota failed", slog.String("deployment", string(of)), slog.String("error", err.Error()))
	}
	return u, err
}

// QuotaUsage is what was used of a deployment's quota in the current period.
type QuotaUsage struct {
	Deployment string    `json:"deployment"`
	Quota      QuotaSpec `json:"quota"`
	Per        string    `json:"per" doc:"Unit that is counted: token, user or deployment"`
	Starts     time.Time `json:"starts"`
	Resets     time.Time `json:"resets" doc:"Start of the next period"`
	Usage      []Usage   `json:"usage" doc:"Usage by caller, highest first, at most 1000"`
	More       int       `json:"more,omitempty" doc:"Number of callers that are not listed"`
}

// maxUsage bounds the callers that are listed.
const maxUsage = 1000

// Usage says what was used of a deployment's quota. What other servers let through in
// the last seconds may be missing. Errors: fault.NotFound, also for a deployment without
// a quota; fault.PermissionDenied.
func (s *Quotas) Usage(ctx context.Context, project, name string) (QuotaUsage, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return QuotaUsage{}, err
	}
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return QuotaUsage{}, err
	}
	l := d.Spec.Limits
	if l == nil || l.Quota == (QuotaSpec{}) {
		return QuotaUsage{}, fault.New(fault.NotFound, "deployment %s has no quota", name).WithHint("Set spec.limits.quota, with requests or rows, and every: day or month.")
	}
	out := QuotaUsage{Deployment: name, Quota: l.Quota, Per: cmp.Or(l.Per, "token")}
	out.Starts, out.Resets = l.Quota.period(time.Now())
	if v, ok := s.limits.all.Load(key{project, name}); ok {
		s.recording.Lock()
		err = s.record(ctx, key{project, name}, v.(*limiter))
		s.recording.Unlock()
		if err != nil {
			return out, fault.Wrap(err, "record the usage of quotas")
		}
	}
	var all []Usage
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.usageStore.Usage(ctx, tx, d.ID, out.Starts, out.Resets, maxSpenders)
		return err
	}); err != nil {
		return out, fault.Wrap(err, "read the usage of quotas")
	}
	slices.SortFunc(all, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Caller, b.Caller))
	})
	out.Usage, out.More = all[:min(len(all), maxUsage)], max(0, len(all)-maxUsage)
	if out.Usage == nil {
		out.Usage = []Usage{}
	}
	return out, nil
}
