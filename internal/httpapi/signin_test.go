package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitytest"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// loginWorld is a server, behind https as browsers see it, with an identity provider.
type loginWorld struct {
	*policytest.World

	op  *identitytest.Provider
	url string
}

func openLogin(t *testing.T) *loginWorld {
	t.Helper()
	db := storetest.SQLite(t, append(policytest.Migrations(), keyssql.Migrations)...)
	w := &loginWorld{World: policytest.OpenOn(t, db), op: identitytest.NewProvider(t, nil)}
	w.op.Be(identitytest.Person{Subject: "s-1", Username: "alice"})
	ring, err := keys.Open(t.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: w.Authority, MasterFile: t.TempDir() + "/master.key"})
	if err != nil {
		t.Fatal(err)
	}
	provider := oidc.New(oidc.Config{
		Name: policytest.Provider, Issuer: w.op.URL, ClientID: w.op.ClientID, Secret: func() string { return w.op.Secret },
		GroupsClaim: "groups", UsernameClaim: "preferred_username", Client: oidc.NewClient(nil, nil),
	})
	logins, err := signin.New(signin.Config{
		DB: db, Store: identitysql.Sessions{}, Accounts: w.Accounts, Authorizer: w.Authority, Sealer: ring, Journal: w.Journal, URL: "https://falaj.example",
		Providers: []signin.Provider{{Provider: provider, Title: "Bank", Session: time.Hour, Recheck: time.Minute, Unproved: time.Hour}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{
		Config: Config{Secure: true, Hosts: []string{"falaj.example"}}, Auth: w.Accounts, Authz: w.Authority, Journal: w.Journal, DB: db,
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, Domains{Projects: w.Tenancy, Accounts: w.Accounts, Zones: w.Border, Keys: ring, SignIn: logins})
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	w.url = listener.URL
	return w
}

// reply is an answer without its body.
type reply struct {
	Status     string
	StatusCode int
	Header     http.Header
	cookies    []*http.Cookie
}

func (r reply) Cookies() []*http.Cookie { return r.cookies }

// send sends a request without following redirects; headers are names and values in turn.
func (w *loginWorld) send(t *testing.T, method, path, form string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, w.url+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return reply{Status: res.Status, StatusCode: res.StatusCode, Header: res.Header, cookies: res.Cookies()}
}

func TestLoginCookies(t *testing.T) {
	w := openLogin(t)
	begun := w.send(t, http.MethodGet, "/auth/oidc/op/login?next=/console/p/x", "")
	attempt := begun.Cookies()
	if begun.StatusCode != http.StatusFound || len(attempt) != 1 || !strings.HasPrefix(attempt[0].Name, "__Host-falaj-login-") ||
		!attempt[0].HttpOnly || !attempt[0].Secure || attempt[0].SameSite != http.SameSiteLaxMode || attempt[0].Path != "/" || attempt[0].Domain != "" || attempt[0].MaxAge != 600 {
		t.Fatalf("login: %s, %v", begun.Status, attempt)
	}
	q := w.op.Browse(t, begun.Header.Get("Location")).Encode()
	ended := w.send(t, http.MethodGet, "/auth/oidc/op/callback?"+q, "", "Cookie", attempt[0].Name+"="+attempt[0].Value)
	var session *http.Cookie
	gone := false
	for _, c := range ended.Cookies() {
		switch c.Name {
		case "__Host-falaj-session":
			session = c
		case attempt[0].Name:
			gone = c.MaxAge < 0
		}
	}
	if ended.StatusCode != http.StatusSeeOther || ended.Header.Get("Location") != "/console/p/x" || !gone {
		t.Errorf("callback: %s to %q, %v", ended.Status, ended.Header.Get("Location"), ended.Cookies())
	}
	if session == nil || !session.HttpOnly || !session.Secure || session.SameSite != http.SameSiteStrictMode || session.Path != "/" || session.Domain != "" {
		t.Fatalf("session cookie %v", session)
	}
	cookie := session.Name + "=" + session.Value
	for name, c := range map[string]struct {
		method  string
		path    string
		headers []string
		want    int
	}{
		"the session":           {http.MethodGet, "/api/v1/whoami", []string{"Cookie", cookie}, 200},
		"no __Host-":            {http.MethodGet, "/api/v1/whoami", []string{"Cookie", "falaj-session=" + session.Value}, 401},
		"two sessions":          {http.MethodGet, "/api/v1/whoami", []string{"Cookie", cookie + "; " + cookie}, 401},
		"a header goes first":   {http.MethodGet, "/api/v1/whoami", []string{"Cookie", cookie, "Authorization", "Bearer flj_usr_x"}, 401},
		"another site writes":   {http.MethodPost, "/api/v1/logout", []string{"Cookie", cookie, "Sec-Fetch-Site", "cross-site"}, 403},
		"another origin writes": {http.MethodPost, "/api/v1/logout", []string{"Cookie", cookie, "Origin", "https://evil.example"}, 403},
	} {
		if got := w.send(t, c.method, c.path, "", c.headers...); got.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, got.Status, c.want)
		}
	}
	out := w.send(t, http.MethodPost, "/api/v1/logout", "", "Cookie", cookie)
	if out.StatusCode != http.StatusOK || len(out.Cookies()) != 1 || out.Cookies()[0].MaxAge >= 0 || out.Cookies()[0].Name != session.Name {
		t.Errorf("logout: %s, %v", out.Status, out.Cookies())
	}
	if got := w.send(t, http.MethodGet, "/api/v1/whoami", "", "Cookie", cookie); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the logout: %s", got.Status)
	}
}

// TestLoginRoutes has what strangers send to the open routes.
func TestLoginRoutes(t *testing.T) {
	w := openLogin(t)
	message := w.op.LogoutToken(map[string]any{"sub": "s-1"})
	for name, c := range map[string]struct {
		method, path, form string
		want               int
	}{
		"providers":                      {http.MethodGet, "/auth/providers", "", 200},
		"another provider":               {http.MethodGet, "/auth/oidc/other/login", "", 303},
		"callback without an attempt":    {http.MethodGet, "/auth/oidc/op/callback?code=x&state=y", "", 303},
		"callback with two states":       {http.MethodGet, "/auth/oidc/op/callback?code=x&state=y&state=z", "", 303},
		"a logout":                       {http.MethodPost, "/auth/oidc/op/logout", "logout_token=" + message, 200},
		"a logout of another provider":   {http.MethodPost, "/auth/oidc/other/logout", "logout_token=" + message, 400},
		"a logout without a token":       {http.MethodPost, "/auth/oidc/op/logout", "x=y", 400},
		"a logout of 100 KiB":            {http.MethodPost, "/auth/oidc/op/logout", "logout_token=" + strings.Repeat("x", 100<<10), 400},
		"a wrong code":                   {http.MethodPost, "/auth/token", url.Values{"grant_type": {"authorization_code"}, "code": {"x"}, "code_verifier": {"y"}}.Encode(), 400},
		"another grant":                  {http.MethodPost, "/auth/token", "grant_type=password&username=admin&password=x", 400},
		"allowing without a login":       {http.MethodPost, "/api/v1/logins", "", 401},
		"a path that is no path of ours": {http.MethodGet, "/auth/oidc/op/../../../api/v1/whoami", "", 401},
		"an unknown path":                {http.MethodGet, "/auth/nothing", "", 401},
	} {
		if got := w.send(t, c.method, c.path, c.form); got.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, got.Status, c.want)
		} else if c.want == http.StatusSeeOther && (got.Header.Get("Location") != "/console/" || len(got.Cookies()) == 0) {
			t.Errorf("%s: to %q, with %v", name, got.Header.Get("Location"), got.Cookies())
		}
	}
}
