package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// The actions that webhooks ask for: they tell others, as alerts do.
const (
	ActionRead  policy.Action = "monitor.read"
	ActionApply policy.Action = "monitor.apply"
)

// form names MLflow's messages among those that alert delivers.
const form = "mlflow"

// sealedUnder is the key scope of the secrets.
const sealedUnder = "webhook-secrets"

// Authorizer is asked before anything is read or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Sealer seals the secrets; keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config is what a Service is made of.
type Config struct {
	DB     *store.DB
	Store  Store
	Authz  Authorizer
	Sealer Sealer
	Alerts *alert.Sender    // delivers
	Now    func() time.Time // nil is time.Now
}

// Service keeps webhooks and queues what they are told. Safe for concurrent use.
//
// Every method may fail with fault.PermissionDenied; those that name a webhook
// with fault.NotFound; those that take data with fault.Invalid.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{cfg}
	cfg.Alerts.Form(form, s.header)
	return s
}

// Update says what of a webhook changes; nil stays.
type Update struct {
	Name, Description, URL *string
	Events                 []Event // empty stays
	Secret                 *string // "" is none
	Disabled               *bool
}

// Create makes a webhook. secret "" is unsigned.
func (s *Service) Create(ctx context.Context, project string, w Webhook, secret string) (Webhook, error) {
	if err := s.allow(ctx, ActionApply, project); err != nil {
		return Webhook{}, err
	}
	w.Project, w.ID, w.Created = project, ID(id.New("wh")), s.cfg.Now()
	w.Updated = w.Created
	if err := s.check(w); err != nil {
		return Webhook{}, err
	}
	var err error
	if w.Sealed, err = s.seal(ctx, w, secret); err != nil {
		return Webhook{}, err
	}
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.cfg.Store.List(ctx, tx, project, 0, MaxWebhooks)
		if err != nil {
			return err
		}
		if len(all) >= MaxWebhooks {
			return share.Refused("webhooks", fmt.Sprintf("project %s has %d webhooks, the limit", project, len(all)), "Delete one.", 0)
		}
		if err := s.cfg.Store.Put(ctx, tx, w); err != nil {
			return err
		}
		return s.audit(ctx, tx, w, "create")
	})
	return w, err
}

// check refuses a webhook that could not be delivered to.
func (s *Service) check(w Webhook) error {
	if err := w.validate(); err != nil {
		return err
	}
	to, err := w.target()
	if err != nil {
		return err
	}
	err = s.cfg.Alerts.Check(to)
	if fault.Is(err, fault.Invalid) && to.Zone == "" {
		err = fault.New(fault.Invalid, "%s", err).WithHint("Append the receiver's zone to the URL, such as #zone=AE, or ask an operator to add the host to alerts.hosts in the configuration.")
	}
	return err
}

// Webhook gives one.
func (s *Service) Webhook(ctx context.Context, project string, hook ID) (w Webhook, err error) {
	if err := s.allow(ctx, ActionRead, project); err != nil {
		return w, err
	}
	return s.one(ctx, project, hook)
}

func (s *Service) one(ctx context.Context, project string, hook ID) (w Webhook, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		w, err = s.cfg.Store.One(ctx, tx, project, hook)
		return err
	})
	return w, err
}

// List gives a page, the newest first, and the token of the next one. most 0 is
// 100.
func (s *Service) List(ctx context.Context, project string, most int, page string) (found []Webhook, next string, err error) {
	if err := s.allow(ctx, ActionRead, project); err != nil {
		return nil, "", err
	}
	if most == 0 {
		most = 100
	}
	if most < 1 || most > MaxPage {
		return nil, "", fault.New(fault.Invalid, "max_results must be between 1 and %d.", MaxPage)
	}
	offset, err := search.Offset(page)
	if err != nil {
		return nil, "", err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		found, err = s.cfg.Store.List(ctx, tx, project, offset, most+1)
		return err
	})
	if len(found) > most {
		found, next = found[:most], search.Token(offset+most)
	}
	return found, next, err
}

// Update changes a webhook. What is queued for it goes to where it is now, unless it is
// disabled when its turn comes.
func (s *Service) Update(ctx context.Context, project string, hook ID, u Update) (w Webhook, err error) {
	if err := s.allow(ctx, ActionApply, project); err != nil {
		return w, err
	}
	if w, err = s.one(ctx, project, hook); err != nil {
		return w, err
	}
	var sealed []byte
	if u.Secret != nil {
		if sealed, err = s.seal(ctx, w, *u.Secret); err != nil {
			return w, err
		}
	}
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) (err error) {
		if w, err = s.cfg.Store.One(ctx, tx, project, hook); err != nil {
			return err
		}
		if u.Name != nil {
			w.Name = *u.Name
		}
		if u.Description != nil {
			w.Description = *u.Description
		}
		moved := u.URL != nil && *u.URL != w.URL
		if moved {
			w.URL = *u.URL
		}
		if len(u.Events) > 0 {
			w.Events = u.Events
		}
		if u.Secret != nil {
			w.Sealed = sealed
		}
		if u.Disabled != nil {
			w.Disabled = *u.Disabled
		}
		w.Updated = s.cfg.Now()
		if err := s.check(w); err != nil {
			return err
		}
		if err := s.cfg.Store.Put(ctx, tx, w); err != nil {
			return err
		}
		if moved {
			to, err := w.target()
			if err != nil {
				return err
			}
			if err := s.cfg.Alerts.Retarget(ctx, tx, project, source+string(hook), to); err != nil {
				return err
			}
		}
		return s.audit(ctx, tx, w, "update")
	})
	return w, err
}

// Delete removes a webhook; what was queued for it is not delivered any more.
func (s *Service) Delete(ctx context.Context, project string, hook ID) error {
	if err := s.allow(ctx, ActionApply, project); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.Delete(ctx, tx, project, hook); err != nil {
			return err
		}
		return s.audit(ctx, tx, Webhook{Project: project, ID: hook}, "delete")
	})
}

// Test sends an example of an event, the webhook's first if it is the zero Event,
// once and now, and gives the status that the receiver answered, 0 if none.
func (s *Service) Test(ctx context.Context, project string, hook ID, e Event) (status int, failure, err error) {
	if err := s.allow(ctx, ActionApply, project); err != nil {
		return 0, nil, err
	}
	w, err := s.one(ctx, project, hook)
	if err != nil {
		return 0, nil, err
	}
	if e == (Event{}) {
		e = w.Events[0]
	}
	if w.Events = []Event{e}; w.validate() != nil {
		return 0, nil, w.validate()
	}
	a, err := s.told(w, e, data(example(e)))
	if err != nil {
		return 0, nil, err
	}
	if err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error { return s.audit(ctx, tx, w, "test") }); err != nil {
		return 0, nil, err
	}
	status, failure = s.cfg.Alerts.Try(ctx, a)
	return status, failure, nil
}

// Told queues what the project's webhooks are told of a change, in its
// transaction.
func (s *Service) Told(ctx context.Context, tx *store.Tx, c registry.Change) error {
	all, err := s.cfg.Store.List(ctx, tx, string(c.Project), 0, MaxWebhooks)
	if err != nil {
		return err
	}
	e := events[c.Kind]
	for _, w := range all {
		if w.Disabled || !slices.Contains(w.Events, e) {
			continue
		}
		a, err := s.told(w, e, data(c))
		if err != nil {
			return err
		}
		a.Label = c.Label
		if err := s.cfg.Alerts.Enqueue(ctx, tx, a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) told(w Webhook, e Event, data map[string]any) (alert.Alert, error) {
	to, err := w.target()
	if err != nil {
		return alert.Alert{}, err
	}
	now := s.cfg.Now()
	body, err := message(e, now, data)
	return alert.Alert{
		Project: w.Project, Type: e.String(), Source: source + string(w.ID), Time: now, Form: form, Body: body, Targets: []alert.Target{to},
	}, err
}

// source begins what an alert says of the webhook that it is of.
const source = "/webhooks/"

// header is MLflow's of a delivery. The webhook is asked anew for each attempt: it
// may be gone, off, or have another secret.
func (s *Service) header(ctx context.Context, d alert.Delivery, at time.Time, body []byte) (http.Header, error) {
	w, err := s.one(ctx, d.Project, ID(strings.TrimPrefix(d.Source, source)))
	if err != nil {
		return nil, err
	}
	if w.Disabled && d.ID != "" { // a test is no delivery
		return nil, fault.New(fault.Conflict, "webhook %s is disabled", w.ID)
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "falaj-webhooks/1")
	seconds := strconv.FormatInt(at.Unix(), 10)
	h.Set("X-MLflow-Delivery-Id", d.Event)
	h.Set("X-MLflow-Timestamp", seconds)
	if w.Sealed == nil {
		return h, nil
	}
	aead, err := s.cfg.Sealer.AEAD(ctx, w.Project, sealedUnder)
	if err != nil {
		return nil, err
	}
	secret, err := aead.Decrypt(w.Sealed, sealedFor(w))
	if err != nil {
		return nil, fault.New(fault.Conflict, "the secret of webhook %s cannot be decrypted: it was modified, or belongs to another installation", w.ID)
	}
	h.Set("X-MLflow-Signature", sign(secret, d.Event, seconds, body))
	return h, nil
}

// sign is MLflow's signature: HMAC-SHA256 over id, time in seconds and body,
// joined by dots.
func sign(secret []byte, delivery, seconds string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(delivery + "." + seconds + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func sealedFor(w Webhook) []byte {
	return []byte("falaj secret of webhook " + string(w.ID) + " of project " + w.Project)
}

func (s *Service) seal(ctx context.Context, w Webhook, secret string) ([]byte, error) {
	if secret == "" {
		return nil, nil
	}
	if len(secret) > maxSecret {
		return nil, fault.New(fault.Invalid, "'secret' exceeds the maximum length of %d characters", maxSecret)
	}
	aead, err := s.cfg.Sealer.AEAD(ctx, w.Project, sealedUnder)
	if err != nil {
		return nil, err
	}
	return aead.Encrypt([]byte(secret), sealedFor(w))
}

// Forget deletes a project's webhooks in the transaction that deletes the project.
func (s *Service) Forget(ctx context.Context, tx *store.Tx, project string) error {
	return s.cfg.Store.Forget(ctx, tx, project)
}

func (s *Service) allow(ctx context.Context, action policy.Action, project string) error {
	return s.cfg.Authz.Allow(ctx, action, policy.Object{Project: project, Kind: "monitor"})
}

func (s *Service) audit(ctx context.Context, tx *store.Tx, w Webhook, act string) error {
	return audit.Append(ctx, tx, audit.Entry{
		Project: w.Project, Action: string(ActionApply), Object: "webhook " + string(w.ID), Detail: map[string]any{"act": act, "name": w.Name},
	})
}

func itoa(n int) string { return strconv.Itoa(n) }
