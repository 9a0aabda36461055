package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
)

// What a browser keeps. Over TLS the names begin with __Host-, so that no other host can
// set them.
const (
	sessionCookie = "falaj-session"
	problemCookie = "falaj-login-problem" // why a login failed, for the login page
	problemTime   = time.Minute
	maxLogin      = 64 << 10 // bytes of the form of an open route
)

// signIn adds the routes of logging in. Those that a person without credentials comes to
// are open.
func (s *Server) signIn() {
	s.open("/auth/providers", s.listProviders)
	s.open("/auth/oidc/{provider}/login", s.beginLogin)
	s.open("/auth/oidc/{provider}/callback", s.finishLogin)
	s.openPost("/auth/oidc/{provider}/logout", s.backChannel).keepsNothing()
	s.openPost("/auth/token", s.redeemCode)

	route(s, "POST", "/api/v1/logins", "", "Allow a command to log in as you; returns the code that it redeems", s.allowCommand)
	route(s, "POST", "/api/v1/logout", "", "End your session of an identity provider", s.logout).keepsNothing()
	route(s, "GET", "/api/v1/sessions", "", "List your sessions of identity providers, or those of an account or of all", s.listSessions)
}

// listProviders also says whether the browser is logged in already: its page cannot read the
// cookie.
func (s *Server) listProviders(w http.ResponseWriter, r *http.Request) {
	loggedIn := false
	if secret := s.cookieOf(r, sessionCookie); secret != "" {
		_, err := s.auth.Authenticate(r.Context(), secret)
		loggedIn = err == nil
	}
	answer(w, http.StatusOK, map[string]any{"providers": s.choices(), "logged_in": loggedIn})
}

func (s *Server) choices() []signin.Choice {
	if s.SignIn == nil {
		return []signin.Choice{}
	}
	return s.SignIn.Providers()
}

// cookie is a cookie of the server as it is set.
func (s *Server) cookie(name, value string, age time.Duration, site http.SameSite) *http.Cookie {
	//nolint:gosec // Secure where browsers come by https
	c := &http.Cookie{Name: s.cookieName(name), Value: value, Path: "/", MaxAge: int(age / time.Second), HttpOnly: true, Secure: s.cfg.Secure, SameSite: site}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

func (s *Server) cookieName(name string) string {
	if s.cfg.Secure {
		return "__Host-" + name
	}
	return name
}

// cookieOf is the value of a cookie of ours; empty where there is none, or more than one.
func (s *Server) cookieOf(r *http.Request, name string) string {
	found := r.CookiesNamed(s.cookieName(name))
	if len(found) != 1 {
		return ""
	}
	return found[0].Value
}

func (s *Server) beginLogin(w http.ResponseWriter, r *http.Request) {
	if s.SignIn == nil {
		s.fail(w, r, fault.New(fault.NotFound, "identity provider %.80q is not configured", r.PathValue("provider")))
		return
	}
	q := r.URL.Query()
	to, c, err := s.SignIn.Begin(r.Context(), r.PathValue("provider"), q.Get("next"), q.Get("fresh") == "true")
	if err != nil {
		s.loginFailed(w, r, err)
		return
	}
	// Lax: the provider sends the browser back from another site.
	http.SetCookie(w, s.cookie(c.Name, c.Value, c.MaxAge, http.SameSiteLaxMode))
	http.Redirect(w, r, to, http.StatusFound) //nolint:gosec // the provider's address, by its own metadata
}

func (s *Server) finishLogin(w http.ResponseWriter, r *http.Request) {
	if s.SignIn == nil {
		s.fail(w, r, fault.New(fault.NotFound, "identity provider %.80q is not configured", r.PathValue("provider")))
		return
	}
	q := r.URL.Query()
	name := signin.CookieOf(q.Get("state"))
	login, err := s.SignIn.Finish(r.Context(), r.PathValue("provider"), q, func(name string) string { return s.cookieOf(r, name) },
		signin.Client{Address: identity.CallOf(r.Context()).Address, Agent: r.UserAgent()})
	http.SetCookie(w, s.cookie(name, "", 0, http.SameSiteLaxMode)) // the attempt is over
	if err != nil {
		s.loginFailed(w, r, err)
		return
	}
	// Strict: requests of the console come from the console's own pages.
	http.SetCookie(w, s.cookie(sessionCookie, login.Secret, time.Until(login.Token.ExpiresAt), http.SameSiteStrictMode))
	http.Redirect(w, r, login.Next, http.StatusSeeOther)
}

// loginFailed brings the browser back to the login page, which reads why from a cookie.
func (s *Server) loginFailed(w http.ResponseWriter, r *http.Request, err error) {
	told, hint := fault.Brief(s.ended(r, err))
	//nolint:gosec // the page reads it
	c := s.cookie(problemCookie, url.PathEscape(strings.TrimSpace(told+". "+hint)), problemTime, http.SameSiteStrictMode)
	c.HttpOnly = false
	http.SetCookie(w, c)
	http.Redirect(w, r, "/console/", http.StatusSeeOther)
}

// backChannel is where providers send logout tokens (OpenID Connect Back-Channel Logout 1.0).
func (s *Server) backChannel(w http.ResponseWriter, r *http.Request) {
	refused := func(status int, text string) {
		answer(w, status, map[string]string{"error": "invalid_request", "error_description": text})
	}
	if s.SignIn == nil || !s.readForm(w, r) {
		refused(http.StatusBadRequest, "the body is no form of at most 64 KiB with a logout_token of a provider that is configured")
		return
	}
	switch err := s.SignIn.BackChannel(r.Context(), r.PathValue("provider"), r.PostForm.Get("logout_token")); fault.KindOf(err) {
	case fault.Invalid, fault.NotFound:
		refused(http.StatusBadRequest, fault.Told(err))
	default:
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusOK)
	}
}

// readForm reads the form of an open route, within a time.
func (s *Server) readForm(w http.ResponseWriter, r *http.Request) bool {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedGrace))
	r.Body = http.MaxBytesReader(w, r.Body, maxLogin)
	return r.ParseForm() == nil
}

// redeemCode trades the code of a command's login for a token, as OAuth 2.0 has it.
func (s *Server) redeemCode(w http.ResponseWriter, r *http.Request) {
	refused := func(status int, code, text string) {
		answer(w, status, map[string]string{"error": code, "error_description": text})
	}
	if s.SignIn == nil || !s.readForm(w, r) || r.PostForm.Get("grant_type") != "authorization_code" {
		refused(http.StatusBadRequest, "unsupported_grant_type", "the body is no form of at most 64 KiB with grant_type=authorization_code, code and code_verifier")
		return
	}
	t, secret, err := s.SignIn.Redeem(r.Context(), r.PostForm.Get("code"), r.PostForm.Get("code_verifier"))
	switch fault.KindOf(err) {
	case fault.Unauthenticated, fault.PermissionDenied:
		told, hint := fault.Brief(err)
		refused(http.StatusBadRequest, "invalid_grant", told+". "+hint)
	default:
		if err != nil {
			s.fail(w, r, err)
			return
		}
		answer(w, http.StatusOK, map[string]any{"access_token": secret, "token_type": "Bearer", "expires_in": int64(time.Until(t.ExpiresAt) / time.Second)})
	}
}

// commandRequest is what a command's login asks for.
type commandRequest struct {
	Challenge string `json:"challenge" maxLength:"128" doc:"PKCE challenge of the command: the SHA-256 of its verifier in base64url"`
	Label     string `json:"label,omitempty" maxLength:"200" doc:"Name of the command, for the list of your tokens, such as laptop"`
}

type commandCode struct {
	Code string `json:"code" doc:"Code for the command; valid once, for one minute"`
}

func (s *Server) allowCommand(ctx context.Context, in *struct{ Body commandRequest }) (*body[commandCode], error) {
	if err := s.hasSignIn(); err != nil {
		return nil, err
	}
	code, err := s.SignIn.Allow(ctx, in.Body.Challenge, in.Body.Label)
	return one(commandCode{code}, err)
}

func (s *Server) hasSignIn() error {
	if s.SignIn == nil {
		return fault.New(fault.Unsupported, "this server is a gateway, which has no logins").WithHint("Log in to the gateway's upstream server.")
	}
	return nil
}

type loggedOut struct {
	ProviderURL string `json:"provider_url,omitempty" doc:"Page to log out at the identity provider, too"`
}

// endedSession is the answer of a logout, which also removes the browser's cookie.
type endedSession struct {
	Cookie string `header:"Set-Cookie" doc:"Removes the session cookie"`
	Body   loggedOut
}

func (s *Server) logout(ctx context.Context, _ *struct{}) (*endedSession, error) {
	if err := s.hasSignIn(); err != nil {
		return nil, err
	}
	to, err := s.SignIn.Logout(ctx)
	return &endedSession{Cookie: s.cookie(sessionCookie, "", 0, http.SameSiteStrictMode).String(), Body: loggedOut{to}}, err
}

func (s *Server) listSessions(ctx context.Context, in *struct {
	Token   string `query:"page_token" maxLength:"512" doc:"next_page_token of the previous page"`
	Account string `query:"account" maxLength:"128" doc:"Sessions of this account, user/NAME or an id; requires an administrator of the installation"`
	All     bool   `query:"all" doc:"Sessions of all accounts; requires an administrator of the installation"`
},
) (*body[items[signin.Session]], error) {
	if err := s.hasSignIn(); err != nil {
		return nil, err
	}
	return listed(s.SignIn.Sessions(ctx, in.Account == "" && !in.All, in.Account, in.Token))
}

// openPost adds a route that takes a form without credentials.
func (s *Server) openPost(at string, h http.HandlerFunc) *Route {
	declared := s.declare(http.MethodPost, at, "")
	declared.Open = true
	s.mux.HandleFunc("POST "+at, h)
	return declared
}

// opened reports whether a request needs no credentials. Only a plain path is open: one that
// the mux would read otherwise than we do is not.
func (s *Server) opened(r *http.Request) bool {
	p := r.URL.Path
	if r.URL.RawPath != "" || p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
		return false
	}
	route := s.mux.of(r)
	return route.Open && (!strings.HasSuffix(route.Path, "/") || strings.HasPrefix(p, route.Path))
}
