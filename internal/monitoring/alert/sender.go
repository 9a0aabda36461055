package alert

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// Times of deliveries.
const (
	firstPause = 5 * time.Second
	maxPause   = 15 * time.Minute
	giveUp     = 24 * time.Hour      // after which an alert is no news
	keepEnded  = 30 * 24 * time.Hour // how long what ended is listed
	claimed    = 2 * time.Minute     // an attempt that did not end by then died with its process
	runFor     = 4 * time.Minute     // of one RunOnce; it begins nothing after
	parallel   = 8
)

// Authorizer is asked before anything is read or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Sealer seals the secrets; keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config is what a Sender is made of.
type Config struct {
	DB       *store.DB
	Store    Store
	Authz    Authorizer
	Sealer   Sealer
	Guard    residency.Guard
	Commands Commands
	// Allow names hosts, or host:port, that are reached wherever they are and also
	// by plain HTTP: the operator's own systems.
	Allow   []string
	Timeout time.Duration  // of one HTTP attempt; 0 is 10 s, 1 min at most
	Connect time.Duration  // of connecting to a host that Allow does not name, and how late a failure is told; 0 is 5 s
	Roots   *x509.CertPool // nil: the system's
	Log     *slog.Logger

	// Resolve and Now are for tests; nil is the system's.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	Now     func() time.Time
}

// Sender queues and delivers alerts. Safe for concurrent use, also by several
// processes on one database.
type Sender struct {
	cfg  Config
	web  *webhooks
	loop *lifecycle.Loop
	wake chan struct{} // something was queued while RunOnce runs

	slots *share.Pool // of deliveries under way

	mu      sync.Mutex
	trimmed time.Time
	forms   map[string]Form
}

// Form is a way to deliver that is not ours: it gives the headers of an attempt.
// That something is not found, or in conflict, ends the delivery. Redirects are
// not followed.
type Form func(ctx context.Context, d Delivery, at time.Time, body []byte) (http.Header, error)

// Form adds a form, before the loop starts.
func (s *Sender) Form(name string, f Form) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forms == nil {
		s.forms = map[string]Form{}
	}
	s.forms[name] = f
}

// headers are those of an attempt's request.
func (s *Sender) headers(ctx context.Context, r Row, at time.Time) (http.Header, error) {
	if r.Form != "" {
		s.mu.Lock()
		form := s.forms[r.Form]
		s.mu.Unlock()
		if form == nil {
			return nil, refusal{fault.New(fault.Unsupported, "the delivery format %s is not supported", r.Form)}
		}
		h, err := form(ctx, r.Delivery, at, r.Body)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) {
			err = refusal{err}
		}
		return h, err
	}
	var secret []byte
	if r.To.Secret != "" {
		var err error
		if secret, err = s.secret(ctx, r.Project, r.To.Secret); err != nil {
			return nil, err
		}
	}
	return ownHeaders(r, secret, at), nil
}

// Try delivers an alert to its one webhook, once and now, without queueing it. It
// gives the status that was answered, 0 if none was.
func (s *Sender) Try(ctx context.Context, a Alert) (status int, err error) {
	if err := a.validate(); err != nil {
		return 0, err
	}
	if len(a.Targets) != 1 || a.Targets[0].Webhook == "" {
		return 0, fault.New(fault.Invalid, "a test delivery requires exactly one webhook")
	}
	eventID := id.New("evt")
	body, err := a.encode(eventID)
	if err != nil {
		return 0, err
	}
	return s.deliver(ctx, Row{
		Delivery: Delivery{Project: a.Project, Event: eventID, Type: a.Type, Source: a.Source}, To: a.Targets[0], Label: a.Label, Form: a.Form, Body: body,
	})
}

// New makes a sender; Loop delivers.
func New(c Config) *Sender {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	c.Timeout = min(c.Timeout, time.Minute)
	s := &Sender{cfg: c, web: newWebhooks(c), wake: make(chan struct{}, 1), slots: share.New(share.Limits{Name: "deliveries", What: "deliveries", Slots: parallel})}
	s.loop = &lifecycle.Loop{Name: "alerts", Every: 5 * time.Second, Run: s.RunOnce, Logger: c.Log}
	return s
}

// Loop is the background work, to be started once.
func (s *Sender) Loop() *lifecycle.Loop { return s.loop }

func (s *Sender) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	s.loop.Wake()
}

// Check says whether alerts could go to a target under this configuration: for
// whoever accepts a manifest. Errors: fault.Invalid, fault.Unsupported.
func (s *Sender) Check(t Target) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if t.Webhook == "" {
		return s.cfg.Commands.permitted()
	}
	if err := s.web.permitted(t.Webhook); err != nil {
		return err
	}
	_, err := s.zoneOf(t)
	return err
}

// zoneOf is where a target's receiver stands. Home is this server, and the hosts
// that the operator's configuration names; of any other the manifest has to say.
// Error: fault.Invalid.
func (s *Sender) zoneOf(t Target) (residency.Zone, error) {
	switch {
	case t.Zone != "":
		return t.Zone, nil
	case t.Webhook == "" || s.web.named(t.Webhook):
		return residency.Home, nil
	}
	return "", fault.New(fault.Invalid, "the zone of the receiver of %s is unknown", t).
		WithHint("Set zone: beside the webhook. Alerts about data whose residency excludes that zone are not sent. An operator can list hosts in the home zone in alerts.hosts of the configuration.")
}

// Enqueue queues an alert for each of its targets in the transaction of what it
// tells of. Errors: fault.Invalid and fault.TooLarge for targets that cannot be.
func (s *Sender) Enqueue(ctx context.Context, tx *store.Tx, a Alert) error {
	if err := a.validate(); err != nil {
		return err
	}
	eventID := id.New("evt")
	body, err := a.encode(eventID)
	if err != nil {
		return err
	}
	waiting, err := s.cfg.Store.CountQueued(ctx, tx, a.Project)
	if err != nil {
		return err
	}
	now := s.cfg.Now().UTC()
	for _, t := range a.Targets {
		r := Row{
			Delivery: Delivery{
				ID: ID(id.New("dlv")), Project: a.Project, Event: eventID, Type: a.Type, Source: a.Source, State: Queued, Created: now, Next: now,
			},
			TargetKey: t.key(a.Project), To: t, Label: a.Label, Form: a.Form, Body: body,
		}
		if r.Dedup = r.TargetKey + "/" + a.Key; a.Key == "" {
			r.Dedup = string(r.ID)
		}
		if waiting >= MaxQueued {
			r.State, r.Ended, r.Body = Dead, now, nil
			r.Reason = "the project has too many undelivered alerts"
		}
		added, err := s.cfg.Store.Insert(ctx, tx, r)
		if err != nil {
			return err
		}
		if added && r.State == Queued {
			waiting++
		}
	}
	tx.OnCommit(s.notify)
	return nil
}

// Retarget has what a source still has queued go to another target, at once, in the
// transaction in which it moved. An attempt that is under way ends where it began.
func (s *Sender) Retarget(ctx context.Context, tx *store.Tx, project, source string, to Target) error {
	if err := to.Validate(); err != nil {
		return err
	}
	tx.OnCommit(s.notify)
	return s.cfg.Store.Retarget(ctx, tx, project, source, to, to.key(project), s.cfg.Now().UTC())
}

// RunOnce delivers what is due, several targets at a time and of each target one
// alert at a time, and returns when nothing is due or runs. A target that hangs
// occupies one of few places for the time of one attempt.
func (s *Sender) RunOnce(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("alerts"))
	if err := s.trim(ctx); err != nil {
		return err
	}
	ended := make(chan error)
	running := 0
	var failed error
	until := time.NewTimer(runFor)
	defer until.Stop()
	for over := false; ; {
		if !over && ctx.Err() == nil && failed == nil && running < parallel {
			var due []ID
			if failed = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
				due, err = s.cfg.Store.Due(ctx, tx, s.cfg.Now(), 2*parallel)
				return err
			}); failed != nil {
				continue
			}
			for _, delivery := range due {
				r, release, err := s.claim(ctx, delivery)
				if err != nil {
					failed = err
					break
				}
				if release != nil {
					running++
					go func() {
						err := lifecycle.Recover(func() error { return s.finish(ctx, r, s.attempt(ctx, r)) })
						release()
						ended <- err
					}()
				}
			}
		}
		if running == 0 {
			return errors.Join(failed, ctx.Err())
		}
		select {
		case err := <-ended:
			running--
			failed = errors.Join(failed, err)
		case <-s.wake:
		case <-until.C:
			over = true
		}
	}
}

// claim makes a due delivery this process's for a while, with a slot of its project;
// release is nil when there is none, or another process has it.
func (s *Sender) claim(ctx context.Context, delivery ID) (r Row, release func(), err error) {
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		r, err = s.cfg.Store.One(ctx, tx, delivery)
		return err
	}); err != nil {
		return r, nil, err
	}
	now := s.cfg.Now().UTC()
	if r.State != Queued || r.Next.After(now) {
		return r, nil, nil
	}
	release, ok := s.slots.Try(share.Owner{Project: r.Project})
	if !ok {
		return r, nil, nil
	}
	mine := false
	defer func() {
		if !mine {
			release()
			release = nil
		}
	}()
	r.Attempts++
	r.Next = now.Add(claimed)
	err = s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) (err error) {
		mine, err = s.cfg.Store.Change(ctx, tx, r.Delivery, Queued, r.Attempts-1)
		return err
	})
	mine = mine && err == nil
	return r, release, err
}

// refusal is a failure that another attempt would not mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// later is a failure whose receiver said when to come back.
type later struct {
	error
	after time.Duration
}

func (s *Sender) attempt(ctx context.Context, r Row) error {
	_, err := s.deliver(ctx, r)
	return err
}

func (s *Sender) deliver(ctx context.Context, r Row) (status int, err error) {
	where := r.To.String()
	zone, err := s.zoneOf(r.To)
	if err != nil {
		return 0, refusal{err}
	}
	if err := s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: r.Project, What: "alert " + r.Type + " of " + r.Source, Label: r.Label, Where: where, Zone: zone, Action: "monitor.apply",
	}); err != nil {
		if fault.Is(err, fault.PermissionDenied) {
			return 0, refusal{err}
		}
		return 0, err
	}
	if len(r.To.Command) > 0 {
		return 0, s.cfg.Commands.run(ctx, r)
	}
	header, err := s.headers(ctx, r, s.cfg.Now())
	if err != nil {
		return 0, err
	}
	return s.web.post(ctx, r, header)
}

// finish writes down how an attempt ended, also when the server stops now.
func (s *Sender) finish(ctx context.Context, r Row, failure error) error {
	stopped := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	now := s.cfg.Now().UTC()
	d := r.Delivery
	switch {
	case failure == nil:
		d.State, d.Ended, d.Reason = Delivered, now, ""
	case stopped: // not the target's fault: again, at once, by whoever comes next
		d.Next, d.Reason = now, "the server stopped during the attempt"
	default:
		d.Reason = words(failure)
		d.Next = now.Add(pause(d.Attempts, failure))
		_, final := errors.AsType[refusal](failure)
		if old := d.Next.Sub(d.Created) > giveUp; final || old {
			d.State, d.Ended = Dead, now
		}
	}
	return s.cfg.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		done, err := s.cfg.Store.Change(ctx, tx, d, Queued, r.Attempts)
		if err != nil || !done {
			return err // somebody else has it by now
		}
		if d.State == Queued {
			if stopped {
				return nil
			}
			return s.cfg.Store.Postpone(ctx, tx, r.TargetKey, d.Next)
		}
		entry := audit.Entry{
			Project: d.Project, Action: "alert.deliver", Object: "alert " + d.Type + " of " + d.Source,
			Detail: map[string]any{"delivery": d.ID, "event": d.Event, "target": d.Target, "attempts": d.Attempts},
		}
		if d.State == Dead {
			entry.Action, entry.Reason = "alert.dead", d.Reason
			// The next one does not come at once: a queue that has grown old while its
			// target was away is given up at a pace.
			if err := s.cfg.Store.Postpone(ctx, tx, r.TargetKey, now.Add(firstPause)); err != nil {
				return err
			}
			if err := event.Publish(ctx, tx, d.Project, EventDead, d); err != nil {
				return err
			}
		}
		return audit.Append(ctx, tx, entry)
	})
}

// pause before the next attempt: 5 s, doubling to 15 min, with a quarter of
// jitter, or what the receiver asked for.
func pause(attempts int64, failure error) time.Duration {
	p := min(firstPause<<min(attempts-1, 20), maxPause)
	if l, ok := errors.AsType[later](failure); ok {
		p = min(max(p, l.after), time.Hour)
	}
	return p + rand.N(p/4) //nolint:gosec // G404: jitter, not a secret
}

// words is a failure as it is kept: bounded, one line, valid text.
func words(err error) string {
	text := strings.ToValidUTF8(strings.Join(strings.Fields(err.Error()), " "), "�")
	if len(text) > 500 {
		text = text[:500]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	return text
}

func (s *Sender) trim(ctx context.Context) error {
	s.mu.Lock()
	now := s.cfg.Now()
	due := now.Sub(s.trimmed) > time.Hour
	if due {
		s.trimmed = now
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.Trim(ctx, tx, now.Add(-keepEnded))
	})
}

func object(project string) policy.Object { return policy.Object{Project: project, Kind: "monitor"} }

// Deliveries is a page of a project's, the newest first, before an ID; an empty
// state is any.
func (s *Sender) Deliveries(ctx context.Context, project string, state State, before ID, limit int) (ds []Delivery, err error) {
	if err := s.cfg.Authz.Allow(ctx, "monitor.read", object(project)); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		ds, err = s.cfg.Store.List(ctx, tx, project, state, before, limit)
		return err
	})
	return ds, err
}

// Redeliver queues a dead alert again. Errors: fault.NotFound, fault.Conflict
// when it is not dead, or was too much to be kept.
func (s *Sender) Redeliver(ctx context.Context, project string, delivery ID) error {
	if err := s.cfg.Authz.Allow(ctx, "monitor.apply", object(project)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		r, err := s.cfg.Store.One(ctx, tx, delivery)
		if err != nil {
			return err
		}
		if r.Project != project {
			return fault.New(fault.NotFound, "there is no delivery %s", delivery)
		}
		if r.State != Dead || len(r.Body) == 0 {
			return fault.New(fault.Conflict, "delivery %s cannot be queued again", delivery)
		}
		attempts := r.Attempts
		now := s.cfg.Now().UTC()
		r.State, r.Next, r.Ended, r.Attempts = Queued, now, time.Time{}, 0
		done, err := s.cfg.Store.Change(ctx, tx, r.Delivery, Dead, attempts)
		if err != nil || !done {
			return err
		}
		tx.OnCommit(s.notify)
		return audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: "monitor.apply", Object: "alert " + r.Type + " of " + r.Source,
			Detail: map[string]any{"delivery": r.ID, "queued": "again"},
		})
	})
}

// Forget deletes a project's deliveries and secrets in the transaction that
// deletes the project.
func (s *Sender) Forget(ctx context.Context, tx *store.Tx, project string) error {
	return s.cfg.Store.Forget(ctx, tx, project)
}
