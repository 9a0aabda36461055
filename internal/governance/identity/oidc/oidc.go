// Package oidc speaks OpenID Connect with one identity provider: where to send a person,
// what a code or a refresh token proves, and what a logout token says.
//
// # Map
//
//   - oidc.go: Config and Provider; AuthorizationURL, Redeem, Refresh.
//   - token.go: what an ID token must have, and the Proof that is read from it.
//   - groups.go: groups from claims, and from Microsoft Graph where there are too many.
//   - logout.go: back-channel logout tokens.
//   - keyset.go: the provider's signing keys.
//   - discover.go: the provider's metadata, and the HTTP client that asks for all of it.
//
// # Guarantees
//
// A Proof is made only of an ID token that this provider signed with an asymmetric key of
// its published set, for this client, now, and, at a first sign-in, for this attempt (nonce
// and PKCE). Who it is, is issuer and subject; nothing else of a token is. A logout token is
// no ID token. Answers of a provider are bounded in size and time. Signatures, JOSE and
// OAuth 2.0 are the work of go-oidc, go-jose and x/oauth2; what these leave to the caller
// (nonce, azp, at_hash, iat, events, the issuer of a response, unknown and old keys) is
// checked here.
package oidc

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Config is one provider.
type Config struct {
	Name     string // in the configuration, in errors and in groups
	Issuer   string // exactly as the provider writes it
	ClientID string
	Secret   func() string // of the client; nil for a public client
	Scopes   []string      // asked for beside openid
	// Parameters are added to the authorization request, such as access_type=offline, by
	// which Google gives refresh tokens.
	Parameters map[string]string
	// GroupsClaim and UsernameClaim name claims: a key of the token, or a path with dots
	// such as realm_access.roles.
	GroupsClaim   string
	UsernameClaim string
	// Graph is the URL of Microsoft Graph, which is asked for the groups of people who are
	// in too many for a token; empty refuses these.
	Graph  string
	Client *http.Client     // see NewClient
	Now    func() time.Time // nil is time.Now
}

// Provider is an OpenID provider. It asks the provider when it is first used, so that one
// that is away keeps no server from starting. Safe for concurrent use.
type Provider struct {
	cfg Config

	lock  chan struct{} // held by who reads or changes what follows
	meta  *metadata
	asked time.Time // when the metadata were asked for last
	err   error     // of that; nil when it worked
}

// New makes a provider.
func New(cfg Config) *Provider {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Provider{cfg: cfg, lock: make(chan struct{}, 1)}
}

// Name is the provider's name.
func (p *Provider) Name() string { return p.cfg.Name }

// Issuer is the provider's issuer.
func (p *Provider) Issuer() string { return p.cfg.Issuer }

// Attempt is one attempt to sign in: what the answer must fit.
type Attempt struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // of PKCE
	Redirect string `json:"redirect"` // the URL that the provider sends the browser back to
	// Fresh asks the provider to authenticate the person again, and is when the attempt began.
	Fresh time.Time `json:"fresh,omitzero"`
	ACR   []string  `json:"acr,omitempty"` // wanted classes of authentication
}

// AuthorizationURL is where a browser goes for the attempt. Error: fault.Unavailable.
func (p *Provider) AuthorizationURL(ctx context.Context, a Attempt) (string, error) {
	m, err := p.metadata(ctx)
	if err != nil {
		return "", err
	}
	options := []oauth2.AuthCodeOption{oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)}
	if !a.Fresh.IsZero() {
		options = append(options, oauth2.SetAuthURLParam("prompt", "login"), oauth2.SetAuthURLParam("max_age", "0"))
	}
	if len(a.ACR) > 0 {
		options = append(options, oauth2.SetAuthURLParam("acr_values", joined(a.ACR)))
	}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Parameters)) {
		options = append(options, oauth2.SetAuthURLParam(name, p.cfg.Parameters[name]))
	}
	return p.client(m, a.Redirect).AuthCodeURL(a.State, options...), nil
}

// Answer is what the provider sent the browser back with.
type Answer struct {
	Code, State, Issuer     string
	Error, ErrorExplanation string
}

// AnswerOf reads the query of a redirect. Error: fault.Invalid for a parameter that is
// given twice.
func AnswerOf(q url.Values) (Answer, error) {
	for name, values := range q {
		if len(values) > 1 {
			return Answer{}, fault.New(fault.Invalid, "the provider's answer has %.40q more than once", name)
		}
	}
	return Answer{Code: q.Get("code"), State: q.Get("state"), Issuer: q.Get("iss"), Error: q.Get("error"), ErrorExplanation: q.Get("error_description")}, nil
}

// Redeem trades the code of an answer to the attempt for a proof. Errors:
// fault.Unauthenticated where the provider or this package refuses; fault.Unavailable.
func (p *Provider) Redeem(ctx context.Context, a Attempt, answer Answer) (Proof, error) {
	m, err := p.metadata(ctx)
	if err != nil {
		return Proof{}, err
	}
	switch {
	case answer.State == "" || !same(answer.State, a.State):
		return Proof{}, p.refused("the answer belongs to another attempt to log in")
	case answer.Issuer != "" && answer.Issuer != p.cfg.Issuer:
		return Proof{}, p.refused("the answer is from %.200q, another provider", answer.Issuer)
	case answer.Issuer == "" && m.NamesItself:
		return Proof{}, p.refused("the answer does not name its provider")
	case answer.Error != "":
		return Proof{}, p.declined(answer.Error, answer.ErrorExplanation)
	case answer.Code == "":
		return Proof{}, p.refused("the answer has no code")
	}
	tokens, err := p.client(m, a.Redirect).Exchange(p.context(ctx), answer.Code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return Proof{}, p.answered(err)
	}
	return p.prove(ctx, m, tokens, expected{nonce: a.Nonce, fresh: a.Fresh, acr: a.ACR})
}

// Refresh asks whether the person of a former proof is still active, and what of them has
// changed. The proof has the refresh token to use from now on, also with an error: the
// provider may have replaced the former one before something else failed. Errors:
// fault.Unauthenticated where the provider says no; fault.Unavailable where it did not
// answer.
func (p *Provider) Refresh(ctx context.Context, refresh, subject string) (Proof, error) {
	m, err := p.metadata(ctx)
	if err != nil {
		return Proof{}, err
	}
	tokens, err := p.client(m, "").TokenSource(p.context(ctx), &oauth2.Token{RefreshToken: refresh}).Token()
	if err != nil {
		return Proof{}, p.answered(err)
	}
	proof, err := p.prove(ctx, m, tokens, expected{subject: subject, refreshed: true})
	proof.Refresh = tokens.RefreshToken
	return proof, err
}

// client is the OAuth 2.0 client. How it authenticates is set: x/oauth2 would find it by
// trying twice, and a code works once.
func (p *Provider) client(m *metadata, redirect string) *oauth2.Config {
	c := &oauth2.Config{ClientID: p.cfg.ClientID, Endpoint: m.provider.Endpoint(), RedirectURL: redirect, Scopes: p.scopes()}
	c.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	if p.cfg.Secret != nil {
		c.ClientSecret = p.cfg.Secret()
		// The default where the provider says nothing.
		if len(m.AuthMethods) == 0 || slices.Contains(m.AuthMethods, "client_secret_basic") {
			c.Endpoint.AuthStyle = oauth2.AuthStyleInHeader
		}
	}
	return c
}

func (p *Provider) scopes() []string {
	return append([]string{oidc.ScopeOpenID}, slices.DeleteFunc(slices.Clone(p.cfg.Scopes), func(s string) bool { return s == oidc.ScopeOpenID })...)
}

// context carries the HTTP client to go-oidc and x/oauth2.
func (p *Provider) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.cfg.Client)
}

// refused is the error of what does not prove who the person is.
func (p *Provider) refused(format string, args ...any) *fault.Error {
	return fault.New(fault.Unauthenticated, "identity provider "+p.cfg.Name+": "+format, args...).
		WithHint("Log in again. If that does not help, show the message to an administrator.")
}

// declined is the error of an answer in which the provider says no.
func (p *Provider) declined(code, explanation string) *fault.Error {
	switch code {
	case "access_denied":
		return p.refused("the login was cancelled or denied")
	case "temporarily_unavailable", "server_error":
		return p.away(errors.New(code))
	}
	return p.refused("the login failed: %s", told(code, explanation))
}

// answered is the error of a request to the token endpoint.
func (p *Provider) answered(err error) error {
	var refusal *oauth2.RetrieveError
	if !errors.As(err, &refusal) || refusal.Response == nil {
		return p.away(err)
	}
	switch status := refusal.Response.StatusCode; {
	case slices.Contains([]string{"invalid_grant", "interaction_required", "login_required", "consent_required"}, refusal.ErrorCode):
		return p.refused("%s", told(refusal.ErrorCode, refusal.ErrorDescription))
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout:
		// Wrong credentials of ours, or a client that may not: the person can do nothing.
		return fault.New(fault.Unavailable, "identity provider %s refuses this server: %s", p.cfg.Name, told(refusal.ErrorCode, refusal.ErrorDescription)).
			WithHint("An administrator of Falaj should check client_id, client_secret_file and the redirect URL registered for this client.").WithCause(err)
	}
	return p.away(err)
}

// away is the error of a provider that does not answer, or not sensibly.
func (p *Provider) away(err error) *fault.Error {
	return fault.New(fault.Unavailable, "identity provider %s does not answer", p.cfg.Name).
		WithHint("Try again in a minute. An administrator of Falaj finds the reason in the server log.").WithCause(err)
}

// told is what the provider says, as it may be shown.
func told(code, explanation string) string {
	if code == "" {
		code = "no reason given"
	}
	if explanation == "" {
		return strconv.Quote(fault.Clip(code, 80))
	}
	return strconv.Quote(fault.Clip(code, 80)) + ", " + strconv.Quote(fault.Clip(explanation, 200))
}
