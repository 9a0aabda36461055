package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// gone is a database that is away, for who asks it whether a token works.
type gone struct{ err error }

func (g gone) Authenticate(context.Context, string) (identity.Principal, error) {
	return identity.Principal{Kind: identity.User, ID: "user/alice", Name: "alice", Project: "flights"}, g.err
}

func (g gone) Allow(context.Context, policy.Action, policy.Object) error { return g.err }

func (g gone) Permits(context.Context, policy.Action, policy.Object) (bool, error) {
	return g.err == nil, g.err
}

// TestRetryAfterEverywhere: whatever the route and its protocol, an answer that asks to
// wait says for how long.
func TestRetryAfterEverywhere(t *testing.T) {
	away := fault.New(fault.Unavailable, "the database does not answer")
	for name, tt := range map[string]struct {
		auth, authz error
		status      int
		want        string
	}{
		"who asks is not known":     {away, nil, http.StatusServiceUnavailable, "1"},
		"and for how long it is":    {away.WithRetry(7 * time.Second), nil, http.StatusServiceUnavailable, "7"},
		"the permission is unknown": {nil, away.WithRetry(7 * time.Second), http.StatusServiceUnavailable, "7"},
		"too much":                  {nil, fault.New(fault.Exhausted, "the quota is used up"), http.StatusTooManyRequests, "1"},
		"no room":                   {nil, fault.New(fault.Exhausted, "the disk is full").WithCause(fault.ErrFull), http.StatusInsufficientStorage, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{
				Auth: gone{tt.auth}, Authz: gone{tt.authz}, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
				Ready: func() error { return nil }, Console: http.NotFoundHandler(),
			}, Domains{})
			asked := 0
			for _, route := range s.Routes() {
				if route.Open || route.Action == "" && tt.auth == nil {
					continue // it asks no permission before it knows the object
				}
				path := route.Path
				for _, wildcard := range []string{"{project}", "{path...}", "{rest...}", "{name}", "{ref}", "{id}", "{model_id}", "{job}"} {
					path = strings.ReplaceAll(path, wildcard, "flights")
				}
				method := route.Method
				if method == "" {
					method = http.MethodPost
				}
				r := httptest.NewRequest(method, path, strings.NewReader("{}"))
				r.Host = "127.0.0.1"
				r.Header.Set("Authorization", "Bearer secret")
				r.Header.Set("Content-Type", "application/json")
				got := httptest.NewRecorder()
				s.ServeHTTP(got, r)
				if got.Code != tt.status {
					continue // as gRPC, whose status is elsewhere, and what is refused before
				}
				asked++
				if after := got.Header().Get("Retry-After"); after != tt.want {
					t.Errorf("%s %s: Retry-After is %q, want %q: %.200s", method, path, after, tt.want, got.Body)
				}
			}
			if asked < 50 {
				t.Errorf("only %d routes answer %d", asked, tt.status)
			}
		})
	}
}

// TestReadyNamesWhatIsAway: /readyz says which part is away, and when to ask again.
func TestReadyNamesWhatIsAway(t *testing.T) {
	s := New(Options{
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Console: http.NotFoundHandler(),
		Ready: func() error { return fault.New(fault.Unavailable, "away: database") },
	}, Domains{})
	r := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	r.Host = "127.0.0.1"
	got := httptest.NewRecorder()
	s.ServeHTTP(got, r)
	if got.Code != http.StatusServiceUnavailable || got.Body.String() != "away: database\n" || got.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v %q", got.Code, got.Header(), got.Body)
	}
}
