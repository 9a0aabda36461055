package alert_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// world is what surrounds a Sender: a database, a clock that the test moves, a
// key, and a permission that may be denied.
type world struct {
	db   *store.DB
	aead tink.AEAD

	mu     sync.Mutex
	now    time.Time
	denied policy.Action
}

func (w *world) Allow(_ context.Context, a policy.Action, _ policy.Object) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a == w.denied {
		return fault.New(fault.PermissionDenied, "no %s for you", a)
	}
	return nil
}

func (w *world) Pass(_ context.Context, p residency.Transfer) error {
	return residency.Check(p.What, p.Label, p.Where, p.Zone)
}

func (w *world) AEAD(context.Context, string, string) (tink.AEAD, error) { return w.aead, nil }

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) forward(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// schema lists the migrations of the database.
var schema = []store.Migrations{alertsql.Migrations}

func newWorld(t *testing.T, url string) *world {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{URL: url, Migrations: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		t.Fatal(err)
	}
	primitive, err := aead.New(handle)
	if err != nil {
		t.Fatal(err)
	}
	return &world{db: db, aead: primitive, now: time.Date(2013, 7, 1, 12, 0, 0, 0, time.UTC)}
}

func onSQLite(t *testing.T) *world {
	t.Helper()
	return newWorld(t, storetest.SQLiteURL(t, t.TempDir(), schema...))
}

// sender is a Sender that may reach the hosts.
func (w *world) sender(c alert.Config, hosts ...string) *alert.Sender {
	c.DB, c.Store, c.Authz, c.Sealer, c.Guard, c.Now = w.db, alertsql.Store{}, w, w, w, w.clock
	c.Allow = append(c.Allow, hosts...)
	if c.Connect == 0 {
		c.Connect = 20 * time.Millisecond // a failure is told after it
	}
	return alert.New(c)
}

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

func (w *world) enqueue(t *testing.T, s *alert.Sender, key string, targets ...alert.Target) {
	t.Helper()
	w.mustEnqueue(t, s, alert.Alert{
		Project: "nyc", Key: key, Type: "monitor.drifted", Source: "/projects/nyc/monitors/delay", Subject: "delay",
		Time: time.Date(2013, 6, 30, 0, 0, 0, 0, time.UTC), Data: json.RawMessage(`{"share":0.4}`), Targets: targets,
	})
}

func (w *world) mustEnqueue(t *testing.T, s *alert.Sender, a alert.Alert) {
	t.Helper()
	if err := w.db.Update(ctxOf(t), a.Project, func(ctx context.Context, tx *store.Tx) error { return s.Enqueue(ctx, tx, a) }); err != nil {
		t.Fatal(err)
	}
}

func mustRun(t *testing.T, s *alert.Sender) {
	t.Helper()
	if err := s.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// newest is the newest delivery.
func newest(t *testing.T, s *alert.Sender) alert.Delivery {
	t.Helper()
	ds, err := s.Deliveries(ctxOf(t), "nyc", "", "", 1)
	if err != nil || len(ds) == 0 {
		t.Fatalf("deliveries: %v, %v", ds, err)
	}
	return ds[0]
}

// receiver is a webhook that remembers what it got.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []*http.Request
	bodies [][]byte
	answer func(http.ResponseWriter, *http.Request)
}

func newReceiver(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.got, r.bodies = append(r.got, req), append(r.bodies, body)
		r.mu.Unlock()
		if r.answer != nil {
			r.answer(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

func (r *receiver) host() string { return strings.TrimPrefix(r.URL, "http://") }

func status(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestDeliverySignedCloudEvent(t *testing.T) {
	for _, database := range []string{"SQLite", "PostgreSQL"} {
		t.Run(database, func(t *testing.T) {
			var w *world
			if database == "SQLite" {
				w = onSQLite(t)
			} else {
				w = newWorld(t, storetest.Postgres(t, schema...))
			}
			r := newReceiver(t, nil)
			s := w.sender(alert.Config{}, r.host())
			secret, err := s.SetSecret(ctxOf(t), "nyc", "pager", "")
			if err != nil || !strings.HasPrefix(secret, "whsec_") {
				t.Fatalf("%q %v", secret, err)
			}
			w.enqueue(t, s, "streak-1", alert.Target{Webhook: r.URL + "/hook?token=abc", Secret: "pager"})
			w.enqueue(t, s, "streak-1", alert.Target{Webhook: r.URL + "/hook?token=abc", Secret: "pager"})
			mustRun(t, s)
			if r.count() != 1 {
				t.Fatalf("%d requests for an alert that was queued twice", r.count())
			}
			req, body := r.got[0], r.bodies[0]
			var e map[string]any
			if err := json.Unmarshal(body, &e); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"specversion": "1.0", "type": "dev.falaj.monitor.drifted", "source": "/projects/nyc/monitors/delay", "subject": "delay",
				"time": "2013-06-30T00:00:00Z", "datacontenttype": "application/json", "id": req.Header.Get("Webhook-Id"),
			}
			for k, v := range want {
				if e[k] != v {
					t.Errorf("%s is %v, want %v", k, e[k], v)
				}
			}
			if data, _ := e["data"].(map[string]any); data["share"] != 0.4 {
				t.Errorf("data %v", e["data"])
			}
			if req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" || req.Header.Get("Webhook-Id") == "" {
				t.Errorf("%s %v", req.Method, req.Header)
			}
			key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
			if got, want := req.Header.Get("Webhook-Signature"), alert.Sign(key, req.Header.Get("Webhook-Id"), w.clock(), body); got != want {
				t.Errorf("signature %q, want %q", got, want)
			}
			if req.Header.Get("Webhook-Timestamp") != strconv.FormatInt(w.clock().Unix(), 10) {
				t.Errorf("timestamp %q", req.Header.Get("Webhook-Timestamp"))
			}
			d := newest(t, s)
			if d.State != alert.Delivered || d.Attempts != 1 || d.Reason != "" || strings.Contains(d.Target, "token") {
				t.Errorf("%+v", d)
			}
			mustRun(t, s)
			if r.count() != 1 {
				t.Error("delivered again")
			}
		})
	}
}

// The example of the Standard Webhooks specification's libraries.
func TestSignatureIsTheStandards(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := alert.Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("%s", got)
	}
}

func TestSecretsAreNeverAnswered(t *testing.T) {
	w := onSQLite(t)
	s := w.sender(alert.Config{})
	ctx := ctxOf(t)
	for _, bad := range []string{"short", "whsec_", "whsec_AAAA", "whsec_" + strings.Repeat("A", 200), "whsec_!!!"} {
		if _, err := s.SetSecret(ctx, "nyc", "pager", bad); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" || strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	value := "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of 32 bytes, exactly so"))
	if made, err := s.SetSecret(ctx, "nyc", "pager", value); err != nil || made != "" {
		t.Fatalf("%q, %v", made, err)
	}
	all, err := s.Secrets(ctx, "nyc")
	if err != nil || len(all) != 1 || all[0].Name != "pager" {
		t.Fatalf("%v %v", all, err)
	}
	if err := s.DeleteSecret(ctx, "sun", "pager"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project's: %v", err)
	}
	if err := s.DeleteSecret(ctx, "nyc", "pager"); err != nil {
		t.Fatal(err)
	}
	w.denied = "monitor.apply"
	if _, err := s.SetSecret(ctx, "nyc", "pager", ""); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("without the permission: %v", err)
	}
	if err := s.DeleteSecret(ctx, "nyc", "pager"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("without the permission: %v", err)
	}
}

// A webhook whose secret is not there yet waits for it.
func TestMissingSecretIsWaitedFor(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, nil)
	s := w.sender(alert.Config{}, r.host())
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL, Secret: "pager"})
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Queued || !strings.Contains(d.Reason, `"pager"`) {
		t.Fatalf("%+v", d)
	}
	if _, err := s.SetSecret(ctxOf(t), "nyc", "pager", ""); err != nil {
		t.Fatal(err)
	}
	w.forward(time.Minute)
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Delivered || r.count() != 1 {
		t.Errorf("%+v", d)
	}
}

// A webhook that answers 500 for an hour gets each alert in the end, in order and
// with the same identifiers, and is not asked more often than the pauses say.
func TestFailingWebhookIsAskedAgain(t *testing.T) {
	w := onSQLite(t)
	broken := true
	var mu sync.Mutex
	r := newReceiver(t, func(rw http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if broken {
			rw.WriteHeader(http.StatusInternalServerError)
		}
	})
	other := newReceiver(t, nil)
	s := w.sender(alert.Config{}, r.host(), other.host())
	for i := range 5 {
		w.enqueue(t, s, strconv.Itoa(i), alert.Target{Webhook: r.URL})
	}
	for range 60 { // an hour
		w.enqueue(t, s, "", alert.Target{Webhook: other.URL})
		mustRun(t, s)
		w.forward(time.Minute)
	}
	if other.count() != 60 {
		t.Errorf("another target got %d of 60 alerts", other.count())
	}
	if n := r.count(); n < 6 || n > 12 {
		t.Errorf("asked %d times in an hour", n)
	}
	for _, q := range r.got[1:] {
		if q.Header.Get("Webhook-Id") != r.got[0].Header.Get("Webhook-Id") {
			t.Error("another alert overtook the first, or its identifier changed")
		}
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	w.forward(20 * time.Minute)
	asked := r.count()
	mustRun(t, s)
	if r.count() != asked+5 {
		t.Errorf("%d of 5 alerts came after the hour", r.count()-asked)
	}
	ds, err := s.Deliveries(ctxOf(t), "nyc", alert.Queued, "", 10)
	if err != nil || len(ds) != 0 {
		t.Errorf("still queued: %v, %v", ds, err)
	}
}

// After a day an alert is dead, with the reason, an event, and a way back.
func TestDeadAfterADay(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, status(http.StatusBadGateway))
	s := w.sender(alert.Config{}, r.host())
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL})
	for range 48 {
		mustRun(t, s)
		w.forward(30 * time.Minute)
	}
	mustRun(t, s)
	d := newest(t, s)
	if d.State != alert.Dead || !strings.Contains(d.Reason, "502") || d.Ended.IsZero() {
		t.Fatalf("%+v", d)
	}
	var dead alert.Delivery
	watcher := event.Watch(w.db, "nyc", store.Position{})
	e, err := watcher.Next(t.Context())
	if err != nil || e.Name != alert.EventDead || e.Decode(&dead) != nil || dead.ID != d.ID {
		t.Errorf("event %+v, %v", e, err)
	}
	asked := r.count()
	w.forward(time.Hour)
	mustRun(t, s)
	if r.count() != asked {
		t.Error("a dead alert was tried again")
	}
	if err := s.Redeliver(ctxOf(t), "sun", d.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("by another project: %v", err)
	}
	r.answer = nil
	if err := s.Redeliver(ctxOf(t), "nyc", d.ID); err != nil {
		t.Fatal(err)
	}
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Delivered {
		t.Errorf("%+v", d)
	}
	if err := s.Redeliver(ctxOf(t), "nyc", d.ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("delivered, and again: %v", err)
	}
}

// What cannot be delivered is given up one by one, not all at once.
func TestGivingUpHasAPace(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, status(http.StatusGone))
	s := w.sender(alert.Config{}, r.host())
	for i := range 3 {
		w.enqueue(t, s, strconv.Itoa(i), alert.Target{Webhook: r.URL})
	}
	for i := range 3 {
		mustRun(t, s)
		mustRun(t, s)
		if r.count() != i+1 {
			t.Fatalf("%d requests after %d rounds", r.count(), i+1)
		}
		w.forward(6 * time.Second)
	}
}

// A webhook that hangs holds up nobody else, not even alerts that come while it
// hangs, and ends with its time.
func TestHangingWebhook(t *testing.T) {
	w := onSQLite(t)
	hanging := make(chan struct{}, 1)
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) {
		hanging <- struct{}{}
		<-req.Context().Done()
	})
	got := make(chan struct{}, 10)
	other := newReceiver(t, func(http.ResponseWriter, *http.Request) { got <- struct{}{} })
	s := w.sender(alert.Config{Timeout: 5 * time.Second}, r.host(), other.host())
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL}, alert.Target{Webhook: other.URL})
	done := make(chan error)
	go func() { done <- s.RunOnce(t.Context()) }()
	<-hanging
	<-got
	w.enqueue(t, s, "", alert.Target{Webhook: other.URL})
	select {
	case <-got:
	case err := <-done:
		t.Fatalf("it was not delivered while another hung: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ds, err := s.Deliveries(ctxOf(t), "nyc", alert.Queued, "", 10)
	if err != nil || len(ds) != 1 || !strings.Contains(ds[0].Reason, "no response within 5s") {
		t.Errorf("%+v %v", ds, err)
	}
}

func TestAnswersThatEndIt(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, status(http.StatusGone))
	s := w.sender(alert.Config{}, r.host())
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL})
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Dead || !strings.Contains(d.Reason, "410") {
		t.Errorf("%+v", d)
	}
	r.answer = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Retry-After", "1800")
		rw.WriteHeader(http.StatusTooManyRequests)
	}
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL})
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Queued || d.Next.Sub(w.clock()) < 30*time.Minute || d.Next.Sub(w.clock()) > 38*time.Minute {
		t.Errorf("%+v", d)
	}
	// An endless answer is not read to its end.
	r.answer = func(rw http.ResponseWriter, _ *http.Request) {
		for range 1 << 16 {
			if _, err := rw.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
	w.forward(time.Hour)
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Delivered {
		t.Errorf("%+v", d)
	}
}

// What reaches inside is refused, however the address is written or found.
func TestAddressesThatAreNotReached(t *testing.T) {
	secret := newReceiver(t, nil)
	port := secret.host()[strings.LastIndexByte(secret.host(), ':'):]
	for _, url := range []string{
		"http://127.0.0.1" + port, "https://127.0.0.1" + port, "https://[::1]" + port, "https://[::ffff:127.0.0.1]" + port,
		"https://10.1.2.3", "https://192.168.1.1", "https://169.254.169.254/latest/meta-data", "https://[fe80::1]", "https://[fd00:ec2::254]",
		"https://0.0.0.0" + port, "https://224.0.0.1", "https://100.100.100.200", "https://168.63.129.16", "https://[64:ff9b::7f00:1]",
		"https://[2002:7f00:1::]", "https://inside.example" + port, "https://2130706433" + port,
	} {
		t.Run(url, func(t *testing.T) {
			w := onSQLite(t)
			s := w.sender(alert.Config{Resolve: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}})
			w.enqueue(t, s, "", alert.Target{Webhook: url, Zone: residency.Home})
			mustRun(t, s)
			d := newest(t, s)
			if named := strings.Contains(url, "inside.example") || strings.Contains(url, "2130706433"); named {
				if d.State != alert.Queued || !strings.HasSuffix(d.Reason, " cannot be connected to") {
					t.Errorf("%+v", d)
				}
				return
			}
			if d.State != alert.Dead || !strings.Contains(d.Reason, "public address") && !strings.Contains(d.Reason, "require https") {
				t.Errorf("%+v", d)
			}
		})
	}
	if secret.count() != 0 {
		t.Errorf("%d requests came through", secret.count())
	}
}

// A name is looked up for each connection anew, and it is the connection that is
// checked: what the name meant when the target was accepted, or at an earlier
// attempt, opens nothing (DNS rebinding).
func TestRebindingName(t *testing.T) {
	secret := newReceiver(t, nil)
	port := secret.host()[strings.LastIndexByte(secret.host(), ':'):]
	w := onSQLite(t)
	var asked []string
	s := w.sender(alert.Config{Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		if asked = append(asked, host); len(asked) == 1 {
			return nil, &net.DNSError{Err: "server misbehaving", Name: host, Server: "10.9.9.9:53", IsTemporary: true}
		}
		return []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}, nil
	}})
	target := alert.Target{Webhook: "https://rebind.example" + port, Zone: residency.Home}
	if err := s.Check(target); err != nil || len(asked) != 0 {
		t.Fatalf("before it is resolved: %v", err)
	}
	w.enqueue(t, s, "", target)
	mustRun(t, s)
	// It is told as a name that does not resolve is, and as a server that refuses.
	told := "rebind.example" + port + " cannot be connected to"
	if d := newest(t, s); d.State != alert.Queued || d.Reason != told {
		t.Errorf("%+v", d)
	}
	w.forward(time.Minute)
	mustRun(t, s)
	if d := newest(t, s); len(asked) != 2 || d.State != alert.Queued || d.Reason != told {
		t.Errorf("asked %q: %+v", asked, d)
	}
	if secret.count() != 0 {
		t.Errorf("%d requests came through", secret.count())
	}
}

// Redirects are checked as the first address is.
func TestRedirects(t *testing.T) {
	secret := newReceiver(t, nil)
	for name, test := range map[string]struct {
		to     func(r *receiver) string
		code   int
		reason string
	}{
		"to loopback":          {func(*receiver) string { return secret.URL }, 307, "require https"},
		"to loopback by https": {func(*receiver) string { return strings.Replace(secret.URL, "http:", "https:", 1) }, 307, "not a public address"},
		"to metadata":          {func(*receiver) string { return "https://169.254.169.254/" }, 308, "not a public address"},
		"from home":            {func(*receiver) string { return "https://example.com/" }, 307, "from the home zone"},
		"by another scheme":    {func(*receiver) string { return "file:///etc/passwd" }, 307, "https"},
		"without the event":    {func(r *receiver) string { return r.URL }, 302, "drop the request body"},
		"in a circle":          {func(r *receiver) string { return r.URL }, 307, "more than 3 times"},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSQLite(t)
			var r *receiver
			r = newReceiver(t, func(rw http.ResponseWriter, req *http.Request) { http.Redirect(rw, req, test.to(r), test.code) })
			s := w.sender(alert.Config{}, r.host())
			w.enqueue(t, s, "", alert.Target{Webhook: r.URL})
			mustRun(t, s)
			if d := newest(t, s); d.State != alert.Dead || !strings.Contains(d.Reason, test.reason) {
				t.Errorf("%+v", d)
			}
		})
	}
	if secret.count() != 0 {
		t.Errorf("%d requests came through", secret.count())
	}
	// Within what is allowed, the event arrives.
	w := onSQLite(t)
	r := newReceiver(t, func(rw http.ResponseWriter, req *http.Request) {
		http.Redirect(rw, req, secret.URL+"/moved", http.StatusTemporaryRedirect)
	})
	s := w.sender(alert.Config{}, "127.0.0.1")
	w.enqueue(t, s, "", alert.Target{Webhook: r.URL})
	mustRun(t, s)
	if secret.count() != 1 || len(secret.bodies[0]) == 0 || newest(t, s).State != alert.Delivered {
		t.Errorf("%d requests, %+v", secret.count(), newest(t, s))
	}
}

// From https to http is refused even between hosts that are allowed.
func TestRedirectFromTLS(t *testing.T) {
	plain := newReceiver(t, nil)
	w := onSQLite(t)
	safe := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		http.Redirect(rw, req, plain.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(safe.Close)
	roots := safe.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	s := w.sender(alert.Config{Roots: roots}, "127.0.0.1")
	w.enqueue(t, s, "", alert.Target{Webhook: safe.URL})
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Dead || !strings.Contains(d.Reason, "from https to http") || plain.count() != 0 {
		t.Errorf("%+v", d)
	}
	// Without the certificate's authority nothing is sent.
	s = w.sender(alert.Config{}, "127.0.0.1")
	w.enqueue(t, s, "", alert.Target{Webhook: safe.URL + "/2"})
	mustRun(t, s)
	if d := newest(t, s); d.State != alert.Queued || !strings.Contains(d.Reason, "certificate") {
		t.Errorf("%+v", d)
	}
}

// What is told does not leave the zones of its data.
func TestResidency(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, nil)
	s := w.sender(alert.Config{}, r.host())
	send := func(label residency.Label, zone residency.Zone) alert.Delivery {
		w.mustEnqueue(t, s, alert.Alert{
			Project: "nyc", Type: "monitor.drifted", Source: "/x", Time: w.clock(), Label: label,
			Targets: []alert.Target{{Webhook: r.URL, Zone: zone}},
		})
		mustRun(t, s)
		return newest(t, s)
	}
	if d := send(residency.Of("AE"), "DE"); d.State != alert.Dead || r.count() != 0 {
		t.Errorf("%+v", d)
	}
	if d := send(residency.Of("AE", "DE"), "DE"); d.State != alert.Delivered || r.count() != 1 {
		t.Errorf("%+v", d)
	}
}

// The queue of a project is bounded; what is too much is dead, not forgotten.
func TestQueueIsBounded(t *testing.T) {
	w := onSQLite(t)
	s := w.sender(alert.Config{})
	if err := w.db.Update(ctxOf(t), "nyc", func(ctx context.Context, tx *store.Tx) error {
		for range alert.MaxQueued + 5 {
			if err := s.Enqueue(ctx, tx, alert.Alert{
				Project: "nyc", Type: "monitor.drifted", Source: "/x", Time: w.clock(), Targets: []alert.Target{{Webhook: "https://example.com"}},
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	dead, err := s.Deliveries(ctxOf(t), "nyc", alert.Dead, "", 100)
	if err != nil || len(dead) != 5 || !strings.Contains(dead[0].Reason, "too many") {
		t.Errorf("%d dead, %v", len(dead), err)
	}
	if err := s.Redeliver(ctxOf(t), "nyc", dead[0].ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("what was not kept: %v", err)
	}
}

// Data that is too large is left out, and the event says so: a finding is never
// lost for its size.
func TestLargeData(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, nil)
	s := w.sender(alert.Config{}, r.host())
	w.mustEnqueue(t, s, alert.Alert{
		Project: "nyc", Type: "monitor.drifted", Source: "/x", Time: w.clock(), Targets: []alert.Target{{Webhook: r.URL}},
		Data: json.RawMessage(`"` + strings.Repeat("x", alert.MaxData) + `"`),
	})
	mustRun(t, s)
	if r.count() != 1 || len(r.bodies[0]) > 1000 || !strings.Contains(string(r.bodies[0]), `"falajtruncated":true`) {
		t.Errorf("%d: %.200s", r.count(), r.bodies)
	}
}

// An alert is queued with the transaction of what it tells, or not at all.
func TestEnqueueIsPartOfTheTransaction(t *testing.T) {
	w := onSQLite(t)
	s := w.sender(alert.Config{})
	failure := fault.New(fault.Conflict, "the finding was not written")
	err := w.db.Update(ctxOf(t), "nyc", func(ctx context.Context, tx *store.Tx) error {
		if err := s.Enqueue(ctx, tx, alert.Alert{
			Project: "nyc", Type: "x", Source: "/x", Time: w.clock(), Targets: []alert.Target{{Webhook: "https://example.com"}},
		}); err != nil {
			return err
		}
		return failure
	})
	if !fault.Is(err, fault.Conflict) {
		t.Fatal(err)
	}
	if ds, err := s.Deliveries(ctxOf(t), "nyc", "", "", 10); err != nil || len(ds) != 0 {
		t.Errorf("%v %v", ds, err)
	}
}

// Two processes, one of which dies in the middle: delivered once by both that
// live, and again after the dead one's time.
func TestTwoSenders(t *testing.T) {
	w := onSQLite(t)
	r := newReceiver(t, nil)
	a, b := w.sender(alert.Config{}, r.host()), w.sender(alert.Config{}, r.host())
	for i := range 20 {
		w.enqueue(t, a, strconv.Itoa(i), alert.Target{Webhook: r.URL})
	}
	ran := make(chan error, 2)
	for _, s := range []*alert.Sender{a, b} {
		go func() { ran <- s.RunOnce(t.Context()) }()
	}
	for range 2 {
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, a)
	ids := map[string]int{}
	for _, q := range r.got {
		ids[q.Header.Get("Webhook-Id")]++
	}
	if len(ids) != 20 || r.count() != 20 {
		t.Errorf("%d requests of %d alerts", r.count(), len(ids))
	}

	// Stopped in the middle: it is queued, and comes again without waiting.
	ctx, stop := context.WithCancel(t.Context())
	r.answer = func(_ http.ResponseWriter, q *http.Request) { stop(); <-q.Context().Done() }
	w.enqueue(t, a, "stopped", alert.Target{Webhook: r.URL})
	if err := a.RunOnce(ctx); err == nil {
		t.Error("a stopped run said that all was done")
	}
	if d := newest(t, a); d.State != alert.Queued || !strings.Contains(d.Reason, "stopped") {
		t.Fatalf("%+v", d)
	}
	r.answer = nil
	mustRun(t, b)
	if d := newest(t, b); d.State != alert.Delivered {
		t.Errorf("%+v", d)
	}
}

func TestForget(t *testing.T) {
	w := onSQLite(t)
	s := w.sender(alert.Config{})
	if _, err := s.SetSecret(ctxOf(t), "nyc", "pager", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetSecret(ctxOf(t), "sun", "pager", ""); err != nil {
		t.Fatal(err)
	}
	w.enqueue(t, s, "", alert.Target{Webhook: "https://example.com"})
	if err := w.db.Update(ctxOf(t), "nyc", func(ctx context.Context, tx *store.Tx) error { return s.Forget(ctx, tx, "nyc") }); err != nil {
		t.Fatal(err)
	}
	ds, err := s.Deliveries(ctxOf(t), "nyc", "", "", 10)
	secrets, err2 := s.Secrets(ctxOf(t), "nyc")
	if err != nil || err2 != nil || len(ds)+len(secrets) != 0 {
		t.Errorf("%v %v %v %v", ds, secrets, err, err2)
	}
	if others, err := s.Secrets(ctxOf(t), "sun"); err != nil || len(others) != 1 {
		t.Errorf("another project's: %v %v", others, err)
	}
}

func TestTargetsThatAreRefused(t *testing.T) {
	for name, target := range map[string]alert.Target{
		"nothing":            {},
		"both":               {Webhook: "https://example.com", Command: []string{"page"}},
		"not a URL":          {Webhook: "example.com"},
		"another scheme":     {Webhook: "ftp://example.com"},
		"a user":             {Webhook: "https://user:password@example.com"},
		"an endless URL":     {Webhook: "https://example.com/" + strings.Repeat("x", 2000)},
		"a path":             {Command: []string{"/bin/sh", "-c", "true"}},
		"a way up":           {Command: []string{".."}},
		"an empty name":      {Command: []string{""}},
		"a zero byte":        {Command: []string{"page", "a\x00b"}},
		"a secret's name":    {Webhook: "https://example.com", Secret: "No Name"},
		"a command's secret": {Command: []string{"page"}, Secret: "pager"},
		"too many words":     {Command: make([]string, 33)},
	} {
		if err := target.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	w := onSQLite(t)
	s := w.sender(alert.Config{}, "intern:8080")
	for url, ok := range map[string]bool{
		"https://example.com/hook": true, "http://example.com": false, "http://intern:8080": true, "http://intern:8081": false, "https://10.0.0.1": false,
	} {
		if err := s.Check(alert.Target{Webhook: url, Zone: "DE"}); (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
	}
	// Nobody guesses that a host anywhere in the world stands at home.
	if err := s.Check(alert.Target{Webhook: "https://example.com/hook"}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the zone of the receiver") {
		t.Errorf("a receiver without a zone: %v", err)
	}
	if err := s.Check(alert.Target{Webhook: "http://intern:8080"}); err != nil {
		t.Errorf("a host that the operator names stands at home: %v", err)
	}
	if err := s.Check(alert.Target{Command: []string{"page"}}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a command without a directory of commands: %v", err)
	}
}

// A command gets the event, and neither our environment nor our files nor a
// network.
func TestCommands(t *testing.T) {
	worker := sandboxtest.Worker(t)
	dir := t.TempDir()
	spool, outside := filepath.Join(dir, "spool"), filepath.Join(dir, "outside")
	commands := filepath.Join(dir, "commands")
	for _, d := range []string{spool, outside, commands} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(commands, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("page", `cat > `+spool+`/"$1"; env > `+spool+`/env; ls `+outside+` > `+spool+`/outside 2>&1; cat /proc/net/dev > `+spool+"/net\n")
	write("fail", "echo the pager is empty >&2; exit 3\n")
	write("hang", "while :; do sleep 1000; done\n")
	if err := os.WriteFile(filepath.Join(commands, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FALAJ_TEST_SECRET", "hidden")
	w := onSQLite(t)
	c := alert.Commands{Dir: commands, Worker: worker, Level: sandbox.Sandbox, Mounts: []sandbox.Mount{{Path: spool, Writable: true}}, Timeout: 30 * time.Second}
	patient := w.sender(alert.Config{Commands: c})
	c.Timeout = 2 * time.Second
	impatient := w.sender(alert.Config{Commands: c})
	run := func(words ...string) alert.Delivery {
		t.Helper()
		s := patient
		if words[0] == "hang" {
			s = impatient
		}
		w.enqueue(t, s, "", alert.Target{Command: words})
		mustRun(t, s)
		return newest(t, s)
	}
	if d := run("page", "event.json"); d.State != alert.Delivered {
		t.Fatalf("%+v", d)
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(spool, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var e map[string]any
	if err := json.Unmarshal([]byte(read("event.json")), &e); err != nil || e["type"] != "dev.falaj.monitor.drifted" {
		t.Errorf("%v %v", e, err)
	}
	if env := read("env"); strings.Contains(env, "hidden") || !strings.Contains(env, "FALAJ_EVENT_TYPE=monitor.drifted") {
		t.Errorf("environment: %s", env)
	}
	if !strings.Contains(read("outside"), "No such file") {
		t.Errorf("it sees files outside: %q", read("outside"))
	}
	if devices := read("net"); strings.Count(devices, ":") != 1 || !strings.Contains(devices, "lo:") {
		t.Errorf("it has a network: %q", devices)
	}
	if d := run("fail"); d.State != alert.Queued || !strings.Contains(d.Reason, "exit status 3: the pager is empty") {
		t.Errorf("%+v", d)
	}
	if d := run("hang"); d.State != alert.Queued || !strings.Contains(d.Reason, "did not finish in 2s") {
		t.Errorf("%+v", d)
	}
	for _, name := range []string{"notes.txt", "missing"} {
		if d := run(name); d.State != alert.Dead || !strings.Contains(d.Reason, "not a program") {
			t.Errorf("%+v", d)
		}
	}
}
