package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
)

const proj = "flights"

// world has a service that reaches the hosts of 127.0.0.1, and no others at home.
type world struct {
	*webhook.Service
	db     *store.DB
	alerts *alert.Sender
	now    time.Time
}

func (w *world) Allow(_ context.Context, action policy.Action, o policy.Object) error {
	if o.Project != proj {
		return fault.New(fault.PermissionDenied, "no %s in %s", action, o.Project)
	}
	return nil
}

// Pass holds as the server's guard does: the zone must be in the label.
func (w *world) Pass(_ context.Context, p residency.Transfer) error {
	return residency.Check(p.What, p.Label, p.Where, p.Zone)
}

func open(t *testing.T, database storetest.Open) *world {
	t.Helper()
	w := &world{db: database(t, alertsql.Migrations, webhooksql.Migrations), now: time.Date(2013, 7, 1, 12, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	sealer := blobtest.NewSealer()
	w.alerts = alert.New(alert.Config{DB: w.db, Store: alertsql.Store{}, Authz: w, Sealer: sealer, Guard: w, Allow: []string{"127.0.0.1"}, Now: clock})
	w.Service = webhook.New(webhook.Config{DB: w.db, Store: webhooksql.Store{}, Authz: w, Sealer: sealer, Alerts: w.alerts, Now: clock})
	return w
}

func alice(t *testing.T) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "alice"})
}

func (w *world) tell(t *testing.T, c registry.Change) {
	t.Helper()
	c.Project = proj
	if err := w.db.Update(alice(t), proj, func(ctx context.Context, tx *store.Tx) error { return w.Told(ctx, tx, c) }); err != nil {
		t.Fatal(err)
	}
	if err := w.alerts.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// received is one request to a receiver.
type received struct {
	header http.Header
	body   string
}

type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []received
	status int
}

func listen(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{status: http.StatusOK}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, received{req.Header, string(b)})
		if r.status == http.StatusFound {
			w.Header().Set("Location", r.URL+"/elsewhere")
		}
		w.WriteHeader(r.status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

var created = []webhook.Event{{Entity: "model_version", Action: "created"}}

func TestDelivery(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { delivery(t, open(t, storetest.SQLite)) })
	t.Run("PostgreSQL", func(t *testing.T) { delivery(t, open(t, storetest.PostgreSQL)) })
}

func delivery(t *testing.T, w *world) {
	t.Helper()
	ctx, r := alice(t), listen(t)
	hook, err := w.Create(ctx, proj, webhook.Webhook{Name: "ci", URL: r.URL + "/hook", Events: created}, "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	c := registry.Change{
		Kind: registry.VersionCreated, Model: "delay", Version: 3, Source: "runs:/run_x/model", Run: "run_x", Description: "d", Tags: []tracking.Pair{{Key: "k", Value: "ü"}},
	}
	w.tell(t, registry.Change{Kind: registry.AliasSet, Model: "delay", Alias: "champion", Version: 3}) // not what it wants to hear
	w.tell(t, c)
	got := r.take()
	if len(got) != 1 {
		t.Fatalf("%d deliveries", len(got))
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(got[0].body), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"entity": "model_version", "action": "created", "timestamp": "2013-07-01T12:00:00.000000+00:00",
		"data": map[string]any{"name": "delay", "version": "3", "source": "runs:/run_x/model", "run_id": "run_x", "description": "d", "tags": map[string]any{"k": "ü"}},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	// As MLflow's documentation has a receiver verify it.
	h := got[0].header
	mac := hmac.New(sha256.New, []byte("s3cret"))
	mac.Write([]byte(h.Get("X-MLflow-Delivery-Id") + "." + h.Get("X-MLflow-Timestamp") + "." + got[0].body))
	if signature := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); h.Get("X-MLflow-Signature") != signature || h.Get("Content-Type") != "application/json" || h.Get("X-MLflow-Delivery-Id") == "" {
		t.Errorf("headers %v, want signature %s", h, signature)
	}

	// What fails is tried again with the same id; a redirect is not followed.
	r.status = http.StatusServiceUnavailable
	w.tell(t, c)
	first := r.take()
	r.status = http.StatusFound
	w.now = w.now.Add(time.Minute)
	if err := w.alerts.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := r.take()
	if len(first) != 1 || len(again) != 1 || first[0].header.Get("X-MLflow-Delivery-Id") != again[0].header.Get("X-MLflow-Delivery-Id") {
		t.Fatalf("tried %d and %d times", len(first), len(again))
	}
	ds, err := w.alerts.Deliveries(ctx, proj, "", "", 1)
	if err != nil || ds[0].State != alert.Dead || !strings.Contains(ds[0].Reason, "not followed") {
		t.Errorf("after a redirect: %+v %v", ds, err)
	}

	// Neither a disabled nor a deleted webhook is told.
	r.status = http.StatusOK
	off := true
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{Disabled: &off}); err != nil {
		t.Fatal(err)
	}
	w.tell(t, c)
	off = false
	none := ""
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{Disabled: &off, Secret: &none}); err != nil {
		t.Fatal(err)
	}
	w.tell(t, c)
	if got := r.take(); len(got) != 1 || got[0].header.Get("X-MLflow-Signature") != "" {
		t.Errorf("without a secret: %v", got)
	}
	if status, failure, err := w.Test(ctx, proj, hook.ID, webhook.Event{Entity: "model_version_alias", Action: "created"}); status != 200 || failure != nil || err != nil {
		t.Error(status, failure, err)
	}
	if got := r.take(); len(got) != 1 || !strings.Contains(got[0].body, `"alias":"example_alias"`) {
		t.Errorf("test: %v", got)
	}
	// What waits when the webhook is disabled is not sent, and a test still is; what waits
	// when it moves goes to the new address, signed by the new secret, and not to the old one.
	r.status = http.StatusServiceUnavailable
	w.tell(t, c)
	r.take()
	off = true
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{Disabled: &off}); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Minute)
	if err := w.alerts.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.take(); len(got) != 0 {
		t.Errorf("a disabled webhook got %v", got)
	}
	if ds, err := w.alerts.Deliveries(ctx, proj, "", "", 1); err != nil || ds[0].State != alert.Dead || !strings.Contains(ds[0].Reason, "is disabled") {
		t.Errorf("after it was disabled: %+v %v", ds, err)
	}
	if status, _, err := w.Test(ctx, proj, hook.ID, webhook.Event{}); status != http.StatusServiceUnavailable || err != nil {
		t.Error(status, err)
	}
	off = false
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{Disabled: &off}); err != nil {
		t.Fatal(err)
	}
	w.tell(t, c)
	first = r.take()
	r.status = http.StatusOK
	there, url, secret := listen(t), "", "another"
	url = there.URL + "/moved"
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{URL: &url, Secret: &secret}); err != nil {
		t.Fatal(err)
	}
	if err := w.alerts.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	moved := there.take()
	if len(r.take()) != 0 || len(first) != 2 || len(moved) != 1 || moved[0].body != first[1].body || moved[0].header.Get("X-MLflow-Signature") == "" {
		t.Errorf("after it moved %v, before %v", moved, first)
	}
	url = r.URL + "/hook"
	if _, err := w.Update(ctx, proj, hook.ID, webhook.Update{URL: &url}); err != nil {
		t.Fatal(err)
	}
	// What may not leave its zone does not.
	c.Label = residency.Label{"DE"}
	w.tell(t, c)
	if got := r.take(); len(got) != 0 {
		t.Errorf("told of a model that is allowed only in DE: %v", got)
	}
	if err := w.Delete(ctx, proj, hook.ID); err != nil {
		t.Fatal(err)
	}
	w.tell(t, c)
	if got := r.take(); len(got) != 0 {
		t.Errorf("told after it was deleted: %v", got)
	}
	if _, err := w.Webhook(ctx, proj, hook.ID); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	w := open(t, storetest.SQLite)
	ctx := alice(t)
	for _, tt := range []struct {
		hook webhook.Webhook
		kind fault.Kind
		text string
	}{
		{webhook.Webhook{Name: "", URL: "http://127.0.0.1/x", Events: created}, fault.Invalid, "Webhook name '' is invalid"},
		{webhook.Webhook{Name: "x", URL: " ", Events: created}, fault.Invalid, "cannot be empty"},
		{webhook.Webhook{Name: "x", URL: "ftp://127.0.0.1/x", Events: created}, fault.Invalid, "scheme: 'ftp'"},
		{webhook.Webhook{Name: "x", URL: "https:///x", Events: created}, fault.Invalid, "hostname"},
		{webhook.Webhook{Name: "x", URL: "https://u:p@example.org/x", Events: created}, fault.Invalid, "credentials"},
		{webhook.Webhook{Name: "x", URL: "http://127.0.0.1/x"}, fault.Invalid, "non-empty list"},
		{webhook.Webhook{Name: "x", URL: "http://127.0.0.1/x", Events: []webhook.Event{{Entity: "model_version", Action: "set"}}}, fault.Invalid, "Invalid action 'set' for entity 'model_version'"},
		{webhook.Webhook{Name: "x", URL: "https://169.254.169.254/x#zone=DE", Events: created}, fault.PermissionDenied, "not a public address"},
		{webhook.Webhook{Name: "x", URL: "https://10.0.0.1/x#zone=DE", Events: created}, fault.PermissionDenied, "not a public address"},
		{webhook.Webhook{Name: "x", URL: "https://[::1]/x#zone=DE", Events: created}, fault.PermissionDenied, "not a public address"},
		{webhook.Webhook{Name: "x", URL: "http://example.org/x#zone=DE", Events: created}, fault.Invalid, "require https"},
		{webhook.Webhook{Name: "x", URL: "https://example.org/x", Events: created}, fault.Invalid, "the zone of the receiver"},
	} {
		if _, err := w.Create(ctx, proj, tt.hook, ""); !fault.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v (%v), want %q", tt.hook.URL, err, fault.KindOf(err), tt.text)
		}
	}
	if _, err := w.Create(ctx, proj, webhook.Webhook{Name: "x", URL: "https://example.org/x#zone=DE", Events: created}, ""); err != nil {
		t.Error(err)
	}
	if _, err := w.Create(ctx, "other", webhook.Webhook{Name: "x", URL: "https://example.org/x#zone=DE", Events: created}, ""); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	for range webhook.MaxWebhooks - 1 {
		if _, err := w.Create(ctx, proj, webhook.Webhook{Name: "x", URL: "http://127.0.0.1/x", Events: created}, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Create(ctx, proj, webhook.Webhook{Name: "x", URL: "http://127.0.0.1/x", Events: created}, ""); !fault.Is(err, fault.Exhausted) {
		t.Error(err)
	}
	page, next, err := w.List(ctx, proj, 60, "")
	if err != nil || len(page) != 60 || next == "" {
		t.Fatal(len(page), next, err)
	}
	if rest, last, err := w.List(ctx, proj, 60, next); err != nil || len(rest) != 40 || last != "" {
		t.Error(len(rest), last, err)
	}
}
