package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// patience is the longest that a test waits for something.
const patience = time.Minute

// world is the edge over real governance, datasets and keys, listening.
type world struct {
	*policytest.World
	server *Server
	url    string
}

func open(tb testing.TB) *world {
	tb.Helper()
	db := storetest.SQLite(tb, append(policytest.Migrations(), datasetsql.Migrations, keyssql.Migrations)...)
	w := &world{World: policytest.OpenOn(tb, db)}
	ring, err := keys.Open(tb.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: w.Authority, MasterFile: tb.TempDir() + "/master.key"})
	if err != nil {
		tb.Fatal(err)
	}
	w.server = New(Options{
		Config: Config{Heartbeat: 20 * time.Millisecond},
		Auth:   w.Accounts, Authz: w.Authority, Journal: w.Journal, DB: db, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, Domains{
		Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border, Keys: ring,
		Datasets: dataset.New(dataset.Config{DB: db, Store: datasetsql.Store{}, Authorizer: w.Authority, Guard: w.Guard, Journal: w.Journal, Keys: ring}),
	})
	listener := httptest.NewServer(w.server)
	tb.Cleanup(listener.Close)
	w.url = listener.URL
	w.Project(tb, "flights")
	w.Project(tb, "other")
	return w
}

type answered struct {
	status int
	header http.Header
	body   string
}

// do sends a request as the bearer of a token; headers are names and values in turn.
func (w *world) do(t *testing.T, token, method, path, body string, headers ...string) answered {
	t.Helper()
	got, err := w.try(t.Context(), token, method, path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (w *world) try(ctx context.Context, token, method, path, body string, headers ...string) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answered{}, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Timeout: patience}).Do(req)
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(b)}, err
}

// member is a token of a service of the project with a role, and the id of that
// token.
func (w *world) member(t *testing.T, in, name string, role project.Role) (secret, id string) {
	t.Helper()
	body, _ := json.Marshal(map[string]string{"project": in, "name": name, "role": string(role)})
	got := w.do(t, w.Secret, "POST", "/api/v1/tokens", string(body))
	var a tokenAnswer
	if err := json.Unmarshal([]byte(got.body), &a); err != nil || got.status != http.StatusCreated {
		t.Fatal(got, err)
	}
	return a.Secret, a.ID
}

// publish records events of a project.
func (w *world) publish(t *testing.T, in string, names ...string) {
	t.Helper()
	for _, name := range names {
		err := w.DB.Update(t.Context(), in, func(ctx context.Context, tx *store.Tx) error {
			return event.Publish(ctx, tx, in, name, map[string]string{"of": name})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in vain: %s", what)
		}
	}
}
