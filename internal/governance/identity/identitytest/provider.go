// Package identitytest has identity providers for tests, on loopback.
package identitytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
)

// Person is somebody at the provider.
type Person struct {
	Subject  string
	Username string
	Name     string
	Mail     string
	Groups   []string // nil: the claim is absent
	ACR      string
	Disabled bool
}

// Provider is an OpenID provider that logs in whoever asks, as the person that is set. Its
// fields may be changed between requests, under Change; the zero of a knob is a good provider.
type Provider struct {
	URL      string // the issuer
	ClientID string
	Secret   string

	mu      sync.Mutex
	person  Person
	knobs   Knobs
	keys    []key
	codes   map[string]*grant
	refresh map[string]*grant
	now     func() time.Time
	asked   map[string]int // requests, by path
}

// Knobs make the provider do what a bad or unusual one does.
type Knobs struct {
	Claims       map[string]any                              // set in ID tokens, over what is right; nil values are left out
	Token        func(raw string) string                     // changes each ID token
	Answer       func(q url.Values)                          // changes the query of the answer to the browser
	Sign         func(claims map[string]any) string          // makes the ID token
	Down         bool                                        // answers 503
	NoIssuer     bool                                        // does not name itself in answers
	UserInfoDown bool                                        // the UserInfo endpoint answers 500
	NoIDRefresh  bool                                        // gives no ID token when refreshed
	UserInfo     map[string]any                              // what the UserInfo endpoint says; nil is what is right
	Keys         func(set *jose.JSONWebKeySet)               // changes the published keys
	Discovery    func(metadata map[string]any)               // changes the metadata
	TokenError   func(w http.ResponseWriter) (answered bool) // of the token endpoint
}

type key struct {
	id      string
	private *ecdsa.PrivateKey
	hidden  bool
}

type grant struct {
	person    Person
	nonce     string
	challenge string
	redirect  string
	session   string
	spent     bool
	authTime  time.Time
}

// NewProvider starts a provider for a confidential client.
func NewProvider(tb testing.TB, now func() time.Time) *Provider {
	tb.Helper()
	p := &Provider{ClientID: "falaj", Secret: "sëcret & more", //nolint:gosec // of a test
		codes: map[string]*grant{}, refresh: map[string]*grant{}, now: now, asked: map[string]int{}}
	if p.now == nil {
		p.now = time.Now
	}
	p.Rotate(tb, false)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.jwks)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userinfo)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked[r.URL.Path]++
		down := p.knobs.Down
		p.mu.Unlock()
		if down {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	tb.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Be sets who logs in.
func (p *Provider) Be(person Person) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.person = person
	for _, g := range p.refresh { // what changed of somebody who is logged in
		if g.person.Subject == person.Subject {
			g.person = person
		}
	}
}

// Turn sets the knobs.
func (p *Provider) Turn(k Knobs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.knobs = k
}

// Asked is how often a path was asked for.
func (p *Provider) Asked(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[path]
}

// Rotate makes a new signing key; keep publishes the former ones, too.
func (p *Provider) Rotate(tb testing.TB, keep bool) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.keys {
		p.keys[i].hidden = p.keys[i].hidden || !keep
	}
	p.keys = append(p.keys, key{id: text(8), private: private})
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "userinfo_endpoint": p.URL + "/userinfo",
		"jwks_uri": p.URL + "/keys", "end_session_endpoint": p.URL + "/logout",
		"id_token_signing_alg_values_supported": []string{"ES256", "RS256", "HS256", "none"}, "token_endpoint_auth_methods_supported": []string{"client_secret_basic", "client_secret_post"},
		"authorization_response_iss_parameter_supported": !p.knobs.NoIssuer,
	}
	if p.knobs.Discovery != nil {
		p.knobs.Discovery(m)
	}
	answer(w, http.StatusOK, m)
}

func (p *Provider) jwks(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var set jose.JSONWebKeySet
	for _, k := range p.keys {
		if !k.hidden {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: &k.private.PublicKey, KeyID: k.id, Algorithm: "ES256", Use: "sig"})
		}
	}
	if p.knobs.Keys != nil {
		p.knobs.Keys(&set)
	}
	answer(w, http.StatusOK, set)
}

func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("client_id") != p.ClientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" {
		http.Error(w, "invalid request", http.StatusBadRequest)
		return
	}
	code := text(24)
	p.codes[code] = &grant{person: p.person, nonce: q.Get("nonce"), challenge: q.Get("code_challenge"), redirect: q.Get("redirect_uri"), session: text(12), authTime: p.now()}
	out := url.Values{"code": {code}, "state": {q.Get("state")}}
	if !p.knobs.NoIssuer {
		out.Set("iss", p.URL)
	}
	if p.knobs.Answer != nil {
		p.knobs.Answer(out)
	}
	back.RawQuery = out.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound) //nolint:gosec // of a test
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.knobs.TokenError != nil && p.knobs.TokenError(w) {
		return
	}
	id, secret, basic := r.BasicAuth()
	if id, _ = url.QueryUnescape(id); basic {
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	if id != p.ClientID || secret != p.Secret {
		answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	no := func(why string) {
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": why})
	}
	var g *grant
	refreshed := false
	switch r.FormValue("grant_type") {
	case "authorization_code":
		g = p.codes[r.FormValue("code")]
		switch sum := sha256.Sum256([]byte(r.FormValue("code_verifier"))); {
		case g == nil:
			no("Code not valid")
			return
		case g.spent: // the code was stolen: everything that it gave ends
			for token, other := range p.refresh {
				if other.session == g.session {
					delete(p.refresh, token)
				}
			}
			no("Code not valid")
			return
		case base64.RawURLEncoding.EncodeToString(sum[:]) != g.challenge:
			g.spent = true
			no("PKCE verification failed")
			return
		case r.FormValue("redirect_uri") != g.redirect:
			no("Incorrect redirect_uri")
			return
		}
		g.spent = true
	case "refresh_token":
		refreshed = true
		g = p.refresh[r.FormValue("refresh_token")]
		if g == nil {
			no("Token is not active")
			return
		}
		delete(p.refresh, r.FormValue("refresh_token")) // it rotates
	default:
		answer(w, http.StatusBadRequest, map[string]any{"error": "unsupported_grant_type"})
		return
	}
	if g.person.Disabled {
		no("User disabled")
		return
	}
	next, access := text(24), "access."+g.person.Subject
	kept := *g
	p.refresh[next] = &kept
	out := map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 300, "refresh_token": next}
	if !refreshed || !p.knobs.NoIDRefresh {
		out["id_token"] = p.idToken(g, access, refreshed)
	}
	answer(w, http.StatusOK, out)
}

func (p *Provider) idToken(g *grant, access string, refreshed bool) string {
	now := p.now()
	hash := sha256.Sum256([]byte(access))
	claims := map[string]any{
		"iss": p.URL, "sub": g.person.Subject, "aud": p.ClientID, "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "auth_time": g.authTime.Unix(),
		"sid": g.session, "preferred_username": g.person.Username, "name": g.person.Name, "email": g.person.Mail,
		"at_hash": base64.RawURLEncoding.EncodeToString(hash[:16]),
	}
	if !refreshed {
		claims["nonce"] = g.nonce
	}
	if g.person.Groups != nil {
		claims["groups"] = g.person.Groups
	}
	if g.person.ACR != "" {
		claims["acr"] = g.person.ACR
	}
	for name, v := range p.knobs.Claims {
		if v == nil {
			delete(claims, name)
		} else {
			claims[name] = v
		}
	}
	if p.knobs.Sign != nil {
		return p.knobs.Sign(claims)
	}
	raw := p.sign(claims, "JWT")
	if p.knobs.Token != nil {
		raw = p.knobs.Token(raw)
	}
	return raw
}

// LogoutToken makes the token of a back-channel logout; more is set over what is right.
func (p *Provider) LogoutToken(more map[string]any) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	claims := map[string]any{
		"iss": p.URL, "aud": p.ClientID, "iat": p.now().Unix(), "exp": p.now().Add(2 * time.Minute).Unix(), "jti": text(12),
		"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}},
	}
	for name, v := range more {
		if v == nil {
			delete(claims, name)
		} else {
			claims[name] = v
		}
	}
	return p.sign(claims, "logout+jwt")
}

// SignIDToken signs claims with the newest key. It must be called from a knob.
func (p *Provider) SignIDToken(claims map[string]any) string { return p.sign(claims, "JWT") }

func (p *Provider) sign(claims map[string]any, kind jose.ContentType) string {
	k := p.keys[len(p.keys)-1]
	options := (&jose.SignerOptions{}).WithType(kind).WithHeader("kid", k.id)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: k.private}, options)
	if err != nil {
		panic(err)
	}
	return Signed(signer, claims)
}

// Signed is the token of a signer.
func Signed(signer jose.Signer, claims map[string]any) string {
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		panic(err)
	}
	raw, err := jws.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return raw
}

func (p *Provider) userinfo(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.knobs.UserInfoDown {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	if p.knobs.UserInfo != nil {
		answer(w, http.StatusOK, p.knobs.UserInfo)
		return
	}
	var person Person
	for _, g := range p.refresh {
		if r.Header.Get("Authorization") == "Bearer access."+g.person.Subject {
			person = g.person
		}
	}
	if person.Subject == "" || person.Disabled {
		http.Error(w, "", http.StatusUnauthorized)
		return
	}
	out := map[string]any{"sub": person.Subject, "preferred_username": person.Username, "name": person.Name, "email": person.Mail}
	if person.Groups != nil {
		out["groups"] = person.Groups
	}
	answer(w, http.StatusOK, out)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// text is random text.
func text(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Browse follows the URL of an attempt as a browser does, and gives the query that the
// browser comes back with.
func (p *Provider) Browse(tb testing.TB, to string) url.Values {
	tb.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, to, nil)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	back, err := res.Location()
	if err != nil {
		tb.Fatalf("the provider answers %s and sends the browser nowhere: %v", res.Status, err)
	}
	return back.Query()
}

// Verifier is a PKCE verifier.
func Verifier() string { return oauth2.GenerateVerifier() }

// Sorted is a copy in order, to compare groups.
func Sorted(groups []string) []string { return slices.Sorted(slices.Values(groups)) }
