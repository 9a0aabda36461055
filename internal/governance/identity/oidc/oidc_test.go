package oidc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitytest"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
)

const redirect = "http://127.0.0.1:1/auth/oidc/op/callback"

var alice = identitytest.Person{Subject: "s-1", Username: "Alice.Smith@bank.example", Name: "Alice Smith", Mail: "alice@bank.example", Groups: []string{"/ml/engineers", "/staff"}}

func start(tb testing.TB) (*identitytest.Provider, *oidc.Provider, *identitytest.Clock) {
	tb.Helper()
	c := new(identitytest.Clock)
	op := identitytest.NewProvider(tb, nil)
	op.Be(alice)
	return op, oidc.New(config(op, c)), c
}

func config(op *identitytest.Provider, c *identitytest.Clock) oidc.Config {
	return oidc.Config{
		Name: "op", Issuer: op.URL, ClientID: op.ClientID, Secret: func() string { return op.Secret }, Scopes: []string{"profile", "email"},
		GroupsClaim: "groups", UsernameClaim: "preferred_username", Client: oidc.NewClient(nil, nil), Now: c.Now,
	}
}

func attempt() oidc.Attempt {
	return oidc.Attempt{State: identitytest.Verifier(), Nonce: identitytest.Verifier(), Verifier: identitytest.Verifier(), Redirect: redirect}
}

// login logs in and gives what that proves.
func login(tb testing.TB, op *identitytest.Provider, p *oidc.Provider, a oidc.Attempt) (oidc.Proof, error) {
	tb.Helper()
	to, err := p.AuthorizationURL(tb.Context(), a)
	if err != nil {
		return oidc.Proof{}, err
	}
	answer, err := oidc.AnswerOf(op.Browse(tb, to))
	if err != nil {
		return oidc.Proof{}, err
	}
	return p.Redeem(tb.Context(), a, answer)
}

func TestLogin(t *testing.T) {
	op, p, _ := start(t)
	proof, err := login(t, op, p, attempt())
	if err != nil {
		t.Fatal(err)
	}
	if proof.Refresh == "" || proof.Session == "" || proof.AuthTime.IsZero() {
		t.Errorf("the proof has no refresh token, session or time of the login: %+v", proof)
	}
	got := oidc.Proof{Issuer: proof.Issuer, Subject: proof.Subject, Username: proof.Username, Name: proof.Name, Mail: proof.Mail, Groups: proof.Groups}
	want := oidc.Proof{Issuer: op.URL, Subject: "s-1", Username: alice.Username, Name: alice.Name, Mail: alice.Mail, Groups: alice.Groups}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	changed := alice
	changed.Groups, changed.Name = []string{"/staff"}, "Alice Brown"
	op.Be(changed)
	for _, id := range []bool{true, false} {
		op.Turn(identitytest.Knobs{NoIDRefresh: !id})
		next, err := p.Refresh(t.Context(), proof.Refresh, proof.Subject)
		if err != nil {
			t.Fatalf("refresh, with an ID token %v: %v", id, err)
		}
		if !slices.Equal(next.Groups, changed.Groups) || next.Name != changed.Name || next.Refresh == proof.Refresh {
			t.Errorf("refresh, with an ID token %v: %+v", id, next)
		}
		proof = next
	}
	changed.Disabled = true
	op.Be(changed)
	if _, err := p.Refresh(t.Context(), proof.Refresh, proof.Subject); !fault.Is(err, fault.Unauthenticated) || !strings.Contains(err.Error(), "User disabled") {
		t.Errorf("a disabled person is refreshed: %v", err)
	}
}

// sign makes a token with another key or algorithm.
func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, headers map[jose.HeaderKey]any, claims map[string]any) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: headers}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, options.WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	return identitytest.Signed(signer, claims)
}

func unsigned(claims map[string]any) string {
	payload, _ := json.Marshal(claims)
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload) + "."
}

// TestRefusedTokens has what an attacker or a wrong provider puts into an ID token.
func TestRefusedTokens(t *testing.T) {
	op, p, _ := start(t)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&other.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	with := func(claims map[string]any) identitytest.Knobs { return identitytest.Knobs{Claims: claims} }
	signed := func(f func(claims map[string]any) string) identitytest.Knobs { return identitytest.Knobs{Sign: f} }
	many := make([]string, 10_001)
	for i := range many {
		many[i] = fmt.Sprint("g", i)
	}
	for name, c := range map[string]struct {
		knobs identitytest.Knobs
		want  string // in the error
	}{
		"none":                      {signed(unsigned), "not valid"},
		"signed with a strange key": {signed(func(c map[string]any) string { return sign(t, jose.ES256, other, nil, c) }), "not valid"},
		"HS256 with the client's secret": {signed(func(c map[string]any) string {
			return sign(t, jose.HS256, []byte(strings.Repeat(op.Secret, 3)), nil, c)
		}), "not valid"},
		"HS256 with a public key": {signed(func(c map[string]any) string {
			return sign(t, jose.HS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), nil, c)
		}), "not valid"},
		"key in the header": {signed(func(c map[string]any) string {
			return sign(t, jose.ES256, other, map[jose.HeaderKey]any{"jwk": jose.JSONWebKey{Key: &other.PublicKey, Algorithm: "ES256"}}, c)
		}), "not valid"},
		"key elsewhere": {signed(func(c map[string]any) string {
			return sign(t, jose.ES256, other, map[jose.HeaderKey]any{"jku": "http://127.0.0.1:1/keys"}, c)
		}), "not valid"},
		"changed":            {identitytest.Knobs{Token: func(raw string) string { return strings.Replace(raw, ".", ".e", 1) }}, "not valid"},
		"no token":           {identitytest.Knobs{Token: func(string) string { return "" }}, "gave no ID token"},
		"5 MiB":              {with(map[string]any{"padding": strings.Repeat("x", 5<<20)}), "does not answer"},
		"600 KiB":            {with(map[string]any{"padding": strings.Repeat("x", 600<<10)}), "at most 524288"},
		"other issuer":       {with(map[string]any{"iss": "https://other.example"}), "not valid"},
		"issuer with a /":    {with(map[string]any{"iss": op.URL + "/"}), "not valid"},
		"other audience":     {with(map[string]any{"aud": "another"}), "not valid"},
		"two audiences":      {with(map[string]any{"aud": []string{"falaj", "another"}}), "another client"},
		"other party":        {with(map[string]any{"azp": "another"}), "another client"},
		"other nonce":        {with(map[string]any{"nonce": "another"}), "not made for this attempt"},
		"no nonce":           {with(map[string]any{"nonce": nil}), "not made for this attempt"},
		"no subject":         {with(map[string]any{"sub": nil}), "no subject"},
		"expired":            {with(map[string]any{"exp": now.Add(-time.Second).Unix()}), "expired"},
		"from the future":    {with(map[string]any{"iat": now.Add(90 * time.Second).Unix()}), "ahead of this server"},
		"from the past":      {with(map[string]any{"iat": now.Add(-7 * time.Minute).Unix()}), "behind this server"},
		"logout token":       {with(map[string]any{"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}}), "not an ID token"},
		"other access token": {with(map[string]any{"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}), "access token does not belong"},
		"groups as a number": {with(map[string]any{"groups": 7}), "no list"},
		"group as a number":  {with(map[string]any{"groups": []any{"a", 7}}), "element 1"},
		"empty group":        {with(map[string]any{"groups": []any{""}}), "element 0"},
		"long group":         {with(map[string]any{"groups": []any{strings.Repeat("g", 513)}}), "513 bytes"},
		"group with a line":  {with(map[string]any{"groups": []any{"a\nb"}}), "control characters"},
		"10,001 groups":      {with(map[string]any{"groups": many}), "10001 groups"},
		"too many groups":    {with(map[string]any{"groups": nil, "_claim_names": map[string]any{"groups": "src1"}, "_claim_sources": map[string]any{"src1": map[string]any{"endpoint": op.URL + "/gone"}}}), "too many groups"},
		"userinfo of another": {identitytest.Knobs{
			Claims: map[string]any{"groups": nil}, UserInfo: map[string]any{"sub": "s-2", "groups": []string{"admins"}},
		}, "another person"},
	} {
		t.Run(name, func(t *testing.T) {
			op.Turn(c.knobs)
			proof, err := login(t, op, p, attempt())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %+v, error %v, want one with %q", proof, err, c.want)
			}
			if kind := fault.KindOf(err); kind != fault.Unauthenticated && kind != fault.Unavailable {
				t.Errorf("the error is %s", kind)
			}
		})
	}
	op.Turn(identitytest.Knobs{})
	if _, err := login(t, op, p, attempt()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestRefusedAnswers has what comes back by the browser.
func TestRefusedAnswers(t *testing.T) {
	op, p, _ := start(t)
	for name, c := range map[string]struct {
		answer func(q url.Values)
		want   string
	}{
		"other state":       {func(q url.Values) { q.Set("state", "another") }, "another attempt"},
		"no state":          {func(q url.Values) { q.Del("state") }, "another attempt"},
		"other provider":    {func(q url.Values) { q.Set("iss", "https://other.example") }, "another provider"},
		"no provider":       {func(q url.Values) { q.Del("iss") }, "does not name its provider"},
		"no code":           {func(q url.Values) { q.Del("code") }, "no code"},
		"two codes":         {func(q url.Values) { q.Add("code", "another") }, "more than once"},
		"unknown code":      {func(q url.Values) { q.Set("code", "another") }, "Code not valid"},
		"denied":            {func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }, "cancelled or denied"},
		"denied, elsewhere": {func(q url.Values) { q.Set("error", "access_denied"); q.Set("iss", "https://other.example") }, "another provider"},
	} {
		t.Run(name, func(t *testing.T) {
			op.Turn(identitytest.Knobs{Answer: c.answer})
			if _, err := login(t, op, p, attempt()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	op.Turn(identitytest.Knobs{})

	// A code works once, and with the verifier of its attempt only.
	a := attempt()
	to, err := p.AuthorizationURL(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := oidc.AnswerOf(op.Browse(t, to))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Redeem(t.Context(), a, answer); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Redeem(t.Context(), a, answer); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a code works twice: %v", err)
	}
	if to, err = p.AuthorizationURL(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if answer, err = oidc.AnswerOf(op.Browse(t, to)); err != nil {
		t.Fatal(err)
	}
	a.Verifier = identitytest.Verifier()
	if _, err := p.Redeem(t.Context(), a, answer); !fault.Is(err, fault.Unauthenticated) || !strings.Contains(err.Error(), "PKCE verification failed") {
		t.Errorf("a code works with another verifier: %v", err)
	}
}

// TestGroupsOfAClaim reads groups wherever providers put them.
func TestGroupsOfAClaim(t *testing.T) {
	op, _, c := start(t)
	for name, c2 := range map[string]struct {
		claim string
		knobs identitytest.Knobs
		want  []string
	}{
		"absent":        {"groups", identitytest.Knobs{Claims: map[string]any{"groups": nil}, UserInfo: map[string]any{"sub": "s-1"}}, nil},
		"null":          {"groups", identitytest.Knobs{Sign: func(c map[string]any) string { c["groups"] = nil; return op.SignIDToken(c) }}, nil},
		"empty":         {"groups", identitytest.Knobs{Claims: map[string]any{"groups": []string{}}}, []string{}},
		"one":           {"groups", identitytest.Knobs{Claims: map[string]any{"groups": "staff"}}, []string{"staff"}},
		"a path":        {"realm_access.roles", identitytest.Knobs{Claims: map[string]any{"realm_access": map[string]any{"roles": []string{"ml"}}}}, []string{"ml"}},
		"a URL":         {"https://falaj.example/groups", identitytest.Knobs{Claims: map[string]any{"https://falaj.example/groups": []string{"ml"}}}, []string{"ml"}},
		"userinfo only": {"groups", identitytest.Knobs{Claims: map[string]any{"groups": nil}, UserInfo: map[string]any{"sub": "s-1", "groups": []string{"ml"}}}, []string{"ml"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(op, c)
			cfg.GroupsClaim = c2.claim
			op.Turn(c2.knobs)
			proof, err := login(t, op, oidc.New(cfg), attempt())
			if err != nil || !slices.Equal(proof.Groups, c2.want) {
				t.Errorf("got %q, error %v, want %q", proof.Groups, err, c2.want)
			}
		})
	}
}

// TestGraph asks Microsoft Graph for groups that are too many for a token.
func TestGraph(t *testing.T) {
	op, _, c := start(t)
	var wrong bool
	var graph *httptest.Server
	graph = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next := ""
		if r.Header.Get("Authorization") != "Bearer access.s-1" || r.Header.Get("ConsistencyLevel") != "eventual" {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		ids := []string{"b"}
		if r.URL.Query().Get("$skiptoken") == "" {
			ids, next = []string{"a"}, graph.URL+r.URL.Path+"?$skiptoken=1"
			if wrong {
				next = "http://127.0.0.1:1/elsewhere"
			}
		}
		var values []map[string]string
		for _, id := range ids {
			values = append(values, map[string]string{"id": id})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"value": values, "@odata.nextLink": next})
	}))
	t.Cleanup(graph.Close)
	cfg := config(op, c)
	cfg.Graph = graph.URL + "/v1.0"
	p := oidc.New(cfg)
	for _, overage := range []map[string]any{
		{"groups": nil, "_claim_names": map[string]any{"groups": "src1"}, "_claim_sources": map[string]any{"src1": map[string]any{"endpoint": "http://127.0.0.1:1/gone"}}},
		{"groups": nil, "hasgroups": true},
	} {
		op.Turn(identitytest.Knobs{Claims: overage})
		proof, err := login(t, op, p, attempt())
		if err != nil || !slices.Equal(proof.Groups, []string{"a", "b"}) {
			t.Errorf("got %q, error %v", proof.Groups, err)
		}
	}
	wrong = true
	if _, err := login(t, op, p, attempt()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the access token follows a link to another host: %v", err)
	}
}

// TestKeys follows a rotation, and does not ask for keys at every forged token.
func TestKeys(t *testing.T) {
	op, p, c := start(t)
	if _, err := login(t, op, p, attempt()); err != nil {
		t.Fatal(err)
	}
	op.Rotate(t, true)
	c.Move(11 * time.Second)
	if _, err := login(t, op, p, attempt()); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	before := op.Asked("/keys")
	op.Turn(identitytest.Knobs{Sign: func(claims map[string]any) string {
		return sign(t, jose.ES256, other, map[jose.HeaderKey]any{"kid": "unknown"}, claims)
	}})
	for range 20 {
		if _, err := login(t, op, p, attempt()); err == nil {
			t.Fatal("a forged token is taken")
		}
	}
	if asked := op.Asked("/keys") - before; asked > 1 {
		t.Errorf("20 forged tokens make us ask for keys %d times", asked)
	}

	// A key that is no longer published stops working, though it is known.
	op.Turn(identitytest.Knobs{})
	if _, err := login(t, op, p, attempt()); err != nil {
		t.Fatal(err)
	}
	op.Turn(identitytest.Knobs{Keys: func(set *jose.JSONWebKeySet) { set.Keys = set.Keys[:0] }})
	c.Move(4 * time.Minute)
	if _, err := login(t, op, p, attempt()); err != nil {
		t.Errorf("a known key does not work for ten minutes: %v", err)
	}
	// The provider's clock stands 4 min behind ours now; its tokens are 15 min old at the
	// next move, so that signatures are looked at without them.
	logout := op.LogoutToken(map[string]any{"sub": "s-1", "iat": c.Now().Add(11 * time.Minute).Unix(), "exp": c.Now().Add(20 * time.Minute).Unix()})
	c.Move(11 * time.Minute)
	if _, err := p.Logout(t.Context(), logout); !fault.Is(err, fault.Invalid) {
		t.Errorf("a revoked key works after ten minutes: %v", err)
	}
}

// TestAway keeps what it knows of a provider that is down.
func TestAway(t *testing.T) {
	op, p, c := start(t)
	op.Turn(identitytest.Knobs{Down: true})
	if _, err := p.AuthorizationURL(t.Context(), attempt()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a provider that was never reached: %v", err)
	}
	op.Turn(identitytest.Knobs{})
	before := op.Asked("/.well-known/openid-configuration")
	for range 10 {
		if _, err := p.AuthorizationURL(t.Context(), attempt()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a moment later: %v", err)
		}
	}
	if asked := op.Asked("/.well-known/openid-configuration"); asked != before {
		t.Errorf("10 logins ask a provider that was down %d times", asked-before)
	}
	c.Move(11 * time.Second)
	proof, err := login(t, op, p, attempt())
	if err != nil {
		t.Fatal(err)
	}
	op.Turn(identitytest.Knobs{Down: true})
	if _, err := p.Refresh(t.Context(), proof.Refresh, proof.Subject); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a refresh while it is down: %v", err)
	}
	c.Move(2 * time.Hour)
	if _, err := p.AuthorizationURL(t.Context(), attempt()); err != nil {
		t.Errorf("metadata are forgotten while it is down: %v", err)
	}
	for status, want := range map[int]string{http.StatusUnauthorized: "refuses this server", http.StatusInternalServerError: "does not answer"} {
		op.Turn(identitytest.Knobs{TokenError: func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, `{"error":"invalid_client"}`)
			return true
		}})
		if _, err := p.Refresh(t.Context(), proof.Refresh, proof.Subject); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("status %d: %v, want one with %q", status, err, want)
		}
	}
}

// TestDiscovery refuses providers that are not what is configured.
func TestDiscovery(t *testing.T) {
	op, _, c := start(t)
	for name, change := range map[string]func(m map[string]any){
		"other issuer":            func(m map[string]any) { m["issuer"] = "https://other.example" },
		"plain HTTP elsewhere":    func(m map[string]any) { m["token_endpoint"] = "http://192.0.2.1/token" },
		"keys at plain HTTP":      func(m map[string]any) { m["jwks_uri"] = "http://192.0.2.1/keys" },
		"a file":                  func(m map[string]any) { m["jwks_uri"] = "file:///etc/passwd" },
		"symmetric only":          func(m map[string]any) { m["id_token_signing_alg_values_supported"] = []string{"HS256", "none"} },
		"no authorization at all": func(m map[string]any) { delete(m, "authorization_endpoint") },
	} {
		t.Run(name, func(t *testing.T) {
			op.Turn(identitytest.Knobs{Discovery: change})
			if _, err := oidc.New(config(op, c)).AuthorizationURL(t.Context(), attempt()); !fault.Is(err, fault.Unavailable) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestFresh asks for a new login, and refuses one that is none.
func TestFresh(t *testing.T) {
	op, p, _ := start(t)
	a := attempt()
	a.Fresh = time.Now()
	if _, err := login(t, op, p, a); err != nil {
		t.Error(err)
	}
	op.Turn(identitytest.Knobs{Claims: map[string]any{"auth_time": time.Now().Add(-time.Hour).Unix()}})
	if _, err := login(t, op, p, a); err == nil || !strings.Contains(err.Error(), "did not ask") {
		t.Errorf("an old login is fresh: %v", err)
	}
	op.Turn(identitytest.Knobs{Claims: map[string]any{"auth_time": nil}})
	if _, err := login(t, op, p, a); err == nil {
		t.Error("a login without its time is fresh")
	}
	op.Turn(identitytest.Knobs{})
	a.ACR = []string{"gold"}
	if _, err := login(t, op, p, a); err == nil || !strings.Contains(err.Error(), "not one of gold") {
		t.Errorf("a login of another class is taken: %v", err)
	}
	gold := alice
	gold.ACR = "gold"
	op.Be(gold)
	if _, err := login(t, op, p, a); err != nil {
		t.Error(err)
	}
}

func TestLogout(t *testing.T) {
	op, p, _ := start(t)
	got, err := p.Logout(t.Context(), op.LogoutToken(map[string]any{"sub": "s-1", "sid": "session"}))
	if err != nil || got.Subject != "s-1" || got.Session != "session" || got.ID == "" || got.Expires.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	for name, more := range map[string]map[string]any{
		"neither sub nor sid": {},
		"a nonce":             {"sub": "s-1", "nonce": "n"},
		"no events":           {"sub": "s-1", "events": nil},
		"other audience":      {"sub": "s-1", "aud": "another"},
		"other issuer":        {"sub": "s-1", "iss": "https://other.example"},
		"expired":             {"sub": "s-1", "exp": time.Now().Add(-time.Second).Unix()},
		"old":                 {"sub": "s-1", "iat": time.Now().Add(-10 * time.Minute).Unix()},
		"no id":               {"sub": "s-1", "jti": nil},
	} {
		if got, err := p.Logout(t.Context(), op.LogoutToken(more)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, raw := range []string{"", "a.b.c", strings.Repeat("x", 17<<10)} {
		if _, err := p.Logout(t.Context(), raw); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.20q: %v", raw, err)
		}
	}
}

// TestClient reaches no address at which clouds keep credentials.
func TestClient(t *testing.T) {
	client := oidc.NewClient(nil, nil)
	client.Timeout = 30 * time.Second
	for _, to := range []string{"http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/latest", "http://[fe80::1]/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := client.Do(req); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s answers", to)
		} else if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", to, err)
		}
	}
}

func FuzzClaims(f *testing.F) {
	f.Add([]byte(`{"groups":["a"],"realm_access":{"roles":["b"]}}`))
	f.Add([]byte(`{"groups":{"a":1},"_claim_names":{"groups":"x"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var all map[string]any
		if json.Unmarshal(body, &all) != nil {
			return
		}
		for _, name := range []string{"groups", "realm_access.roles", ".", "a..b"} {
			groups, err := oidc.GroupsOf(all, name)
			if err == nil {
				for _, g := range groups {
					if g == "" || len(g) > 512 {
						t.Errorf("group %q is taken", g)
					}
				}
			}
		}
	})
}
