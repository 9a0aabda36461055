// Package signin logs people in: at the organisation's identity providers, and, from the
// browser, the command line.
//
// # Map
//
//   - signin.go: Config and Service; Begin and Finish, a login at a provider.
//   - session.go: sessions, their end, and Refresh, the loop that asks the providers whether
//     a person is still welcome.
//   - command.go: Allow and Redeem, the login of a command by the browser.
//   - store.go: what it needs of a database; identitysql has it.
//
// # Guarantees
//
// A person is the issuer and subject of a provider: neither a name nor an e-mail address
// leads to an account that exists. Roles come from grants to the groups that the provider
// names, and end with them; see account.SignIn. A session, and every token of the account,
// works while the provider confirms the person: it is asked every Provider.Recheck, by one
// server, and a provider that is silent ends them after Provider.Unproved. A logout that a
// provider sends takes effect at once here, and within 5 s on other servers. What a browser
// brings back is taken only for the attempt that its cookie names, for ten minutes, and the provider's code works once.
package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/oauth2"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionLogin is the action of audit entries about logins; ActionLogout about their ends.
const (
	ActionLogin  = "login"
	ActionLogout = "logout"
)

const (
	attemptTime = 10 * time.Minute // for the way through the provider
	codeTime    = time.Minute      // for the command to redeem its code
	keyOwner    = "signin"         // of the installation's key that seals attempts and refresh tokens
	recordTime  = 5 * time.Second

	loginEvery = time.Second // an address may begin and end a login so often,
	loginBurst = 300         // and so often at once: an office has one
)

// Provider is an identity provider that people log in at.
type Provider struct {
	*oidc.Provider

	Title    string        // for people, such as "Bank account"
	Session  time.Duration // how long a login lasts
	Recheck  time.Duration // how often the provider is asked whether the person is still welcome
	Unproved time.Duration // how long tokens work while it does not say so
	Require  []string      // groups of which one is needed to log in; none means that all may
	ACR      []string      // classes of authentication of which one is needed
}

// Sealer gives the primitive that seals. keys.Service is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config is what a Service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Accounts   *account.Service
	Authorizer Authorizer
	Sealer     Sealer
	Journal    audit.Journal // of refused logins
	Providers  []Provider
	URL        string // of this server, as browsers reach it
	Log        *slog.Logger
	Now        func() time.Time // nil is time.Now
}

// Service is the only way to log in. Safe for concurrent use.
type Service struct {
	cfg   Config
	rates *share.Limiter
	// logouts are ids of logout tokens that were taken, with their ends.
	logouts *lru.Cache[string, time.Time]
	warned  sync.Map // by provider
}

// New makes the service.
func New(cfg Config) (*Service, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	logouts, err := lru.New[string, time.Time](4096)
	return &Service{cfg: cfg, logouts: logouts, rates: share.NewLimiter(share.Rate{Name: "logins", Every: loginEvery, Burst: loginBurst})}, err
}

// Choice is a provider as a login page offers it.
type Choice struct {
	Name  string `json:"name"`
	Title string `json:"title" doc:"Name for people"`
}

// Providers lists the providers. Everybody may know them.
func (s *Service) Providers() []Choice {
	list := make([]Choice, len(s.cfg.Providers))
	for i, p := range s.cfg.Providers {
		list[i] = Choice{p.Name(), p.Title}
	}
	return list
}

// Has reports whether there is a provider of the name.
func (s *Service) Has(name string) bool {
	_, err := s.provider(name)
	return err == nil
}

func (s *Service) provider(name string) (Provider, error) {
	for _, p := range s.cfg.Providers {
		if p.Name() == name {
			return p, nil
		}
	}
	return Provider{}, fault.New(fault.NotFound, "identity provider %.80q is not configured", name)
}

// attempt is what the browser keeps of a login under way, sealed.
type attempt struct {
	oidc.Attempt

	Provider string    `json:"provider"`
	Next     string    `json:"next"`
	Expires  time.Time `json:"expires"`
}

// Cookie is what the browser keeps of an attempt.
type Cookie struct {
	Name, Value string
	MaxAge      time.Duration
}

// CookieOf is the name of the cookie of the attempt with a state.
func CookieOf(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "falaj-login-" + hex.EncodeToString(sum[:8])
}

// Begin starts a login: the browser keeps the cookie, and goes to the URL. next is the path
// of ours that it comes to at the end; what is none of ours is ignored. fresh demands that
// the provider asks the person again. Errors: fault.NotFound; fault.Exhausted; fault.Unavailable.
func (s *Service) Begin(ctx context.Context, provider, next string, fresh bool) (to string, c Cookie, err error) {
	p, err := s.provider(provider)
	if err != nil {
		return "", c, err
	}
	if err := s.rates.Take(share.AddressKey(identity.CallOf(ctx).Address)); err != nil {
		return "", c, err
	}
	now := s.cfg.Now()
	a := attempt{
		Attempt:  oidc.Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Redirect: s.cfg.URL + callbackPath(provider), ACR: p.ACR},
		Provider: provider, Next: ours(next), Expires: now.Add(attemptTime),
	}
	if fresh {
		a.Fresh = now
	}
	if to, err = p.AuthorizationURL(ctx, a.Attempt); err != nil {
		s.logAway(ctx, provider, err)
		return "", c, err
	}
	body, err := json.Marshal(a)
	if err != nil {
		return "", c, err
	}
	name := CookieOf(a.State)
	sealed, err := s.seal(ctx, body, name)
	return to, Cookie{name, base64.RawURLEncoding.EncodeToString(sealed), attemptTime}, err
}

// callbackPath is where a provider sends the browser back to.
func callbackPath(provider string) string { return "/auth/oidc/" + provider + "/callback" }

// ours is a path of this server that a browser may be sent to: "//other.example" and
// "/\other.example" are none.
func ours(next string) string {
	const standard = "/console/"
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(next, standard) || strings.ContainsAny(next, "\\\r\n\t") || strings.Contains(u.Path, "//") || len(next) > 2048 {
		return standard
	}
	return next
}

// Client is who logs in, for lists of sessions.
type Client struct {
	Address string
	Agent   string // as the browser names itself
}

// Login is a login that succeeded.
type Login struct {
	Secret  string
	Token   account.Token
	Account account.Account
	Next    string // the path that the browser goes to
}

// Finish ends a login with what the browser brought back; cookie gives its cookies by name.
// Errors: fault.Invalid for what belongs to no attempt of this browser;
// fault.Unauthenticated where the provider does not prove who it is;
// fault.PermissionDenied for who may not log in; fault.Exhausted; fault.Unavailable. A
// refusal is on record.
func (s *Service) Finish(ctx context.Context, provider string, q url.Values, cookie func(name string) string, c Client) (Login, error) {
	p, err := s.provider(provider)
	if err != nil {
		return Login{}, err
	}
	login, who, err := s.finish(ctx, p, q, cookie, c)
	if err == nil {
		return login, nil
	}
	if limited := s.rates.Take(share.AddressKey(c.Address)); limited != nil { // strangers fail, people seldom
		return Login{}, limited
	}
	if fault.Is(err, fault.Unavailable) {
		s.logAway(ctx, provider, err)
		return Login{}, err
	}
	return Login{}, s.refuse(ctx, "provider "+provider, who, err)
}

// withdraw takes groups and tokens from a person who may not log in any more.
func (s *Service) withdraw(ctx context.Context, p Provider, proof oidc.Proof) error {
	return s.update(ctx, func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Accounts.Logins().Withdraw(ctx, tx, s.person(p, proof))
	})
}

// warn says once that a provider gives no refresh tokens.
func (s *Service) warn(ctx context.Context, p Provider) {
	if _, said := s.warned.LoadOrStore(p.Name(), true); !said {
		s.cfg.Log.WarnContext(ctx, "an identity provider gives no refresh token: whether a person is still active, and in which groups, is known at the next login only; ask for the scope offline_access",
			slog.String("provider", p.Name()))
	}
}

func (s *Service) finish(ctx context.Context, p Provider, q url.Values, cookie func(name string) string, c Client) (login Login, who string, err error) {
	answer, err := oidc.AnswerOf(q)
	if err != nil {
		return Login{}, "", err
	}
	a, err := s.opened(ctx, p.Name(), answer.State, cookie)
	if err != nil {
		return Login{}, "", err
	}
	proof, err := p.Redeem(ctx, a.Attempt, answer)
	if err != nil {
		return Login{}, "", err
	}
	who = proof.Subject
	if err := p.admits(proof); err != nil {
		return Login{}, who, errors.Join(err, s.withdraw(ctx, p, proof))
	}
	if proof.Refresh == "" {
		s.warn(ctx, p)
	}
	login = Login{Next: a.Next}
	err = s.update(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		login.Account, err = s.cfg.Accounts.Logins().SignIn(ctx, tx, s.person(p, proof))
		if err != nil {
			return err
		}
		label := "login at " + p.Name()
		login.Token, login.Secret, err = s.cfg.Accounts.Logins().Session(ctx, tx, login.Account, label, min(p.Session, p.Unproved))
		if err != nil {
			return err
		}
		if err := s.keep(ctx, tx, p, proof, login, c); err != nil {
			return err
		}
		as := identity.With(ctx, identity.Principal{Kind: identity.User, ID: login.Account.ID, Name: login.Account.Name, Token: login.Token.ID})
		detail := map[string]any{"provider": p.Name(), "address": c.Address, "expires_at": login.Token.ExpiresAt, "groups": len(proof.Groups)}
		if proof.ACR != "" {
			detail["acr"] = proof.ACR
		}
		return audit.Append(as, tx, audit.Entry{Action: ActionLogin, Object: "user " + login.Account.Name, Detail: detail})
	})
	return login, who, err
}

// update runs a transaction as the service, twice where two logins of a new person meet.
func (s *Service) update(ctx context.Context, do func(ctx context.Context, tx *store.Tx) error) error {
	ctx = identity.With(ctx, identity.Loop("login"))
	err := s.cfg.DB.Update(ctx, "", do)
	if err != nil && fault.KindOf(err) == fault.Internal {
		err = s.cfg.DB.Update(ctx, "", do)
	}
	return err
}

// opened is the attempt that a state belongs to.
func (s *Service) opened(ctx context.Context, provider, state string, cookie func(name string) string) (attempt, error) {
	wrong := fault.New(fault.Invalid, "this login does not belong to this browser, or took more than %d minutes", attemptTime/time.Minute).
		WithHint("Log in again, in one browser window.")
	if state == "" || len(state) > 256 {
		return attempt{}, wrong
	}
	name := CookieOf(state)
	sealed, err := base64.RawURLEncoding.DecodeString(cookie(name))
	if err != nil || len(sealed) == 0 {
		return attempt{}, wrong
	}
	body, err := s.open(ctx, sealed, name)
	if fault.Is(err, fault.Unavailable) {
		return attempt{}, err
	}
	var a attempt
	if err != nil || json.Unmarshal(body, &a) != nil || a.Provider != provider || !s.cfg.Now().Before(a.Expires) {
		return attempt{}, wrong
	}
	return a, nil
}

// admits refuses who may not log in, whoever they are.
func (p Provider) admits(proof oidc.Proof) error {
	if len(p.Require) == 0 || slices.ContainsFunc(p.Require, func(g string) bool { return slices.Contains(proof.Groups, g) }) {
		return nil
	}
	return fault.New(fault.PermissionDenied, "none of your groups at %s may use this server", p.Title).
		WithHint("Ask an administrator of Falaj which group you need.")
}

// person is what a proof says of the person.
func (s *Service) person(p Provider, proof oidc.Proof) account.Person {
	return account.Person{
		Provider: p.Name(), Issuer: proof.Issuer, Subject: proof.Subject, Username: proof.Username, DisplayName: proof.Name, Email: proof.Mail,
		Groups: proof.Groups, ProvedUntil: s.cfg.Now().Add(p.Unproved),
	}
}

// refuse puts a refused login on record, and is the error.
func (s *Service) refuse(ctx context.Context, object, who string, err error) error {
	e := audit.Entry{Actor: identity.Loop("login"), Action: ActionLogin, Object: object, Outcome: audit.Refused, Reason: fault.Told(err)}
	if who != "" {
		e.Detail = map[string]any{"subject": who}
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if failed := s.cfg.Journal.Record(record, e); failed != nil {
		return fault.Wrap(failed, "recording a refused login")
	}
	s.cfg.Log.InfoContext(ctx, "a login was refused", slog.String("object", object), slog.Any("error", err))
	return err
}

func (s *Service) logAway(ctx context.Context, provider string, err error) {
	s.cfg.Log.WarnContext(ctx, "an identity provider does not answer", slog.String("provider", provider), slog.Any("error", err))
}

// seal and open seal what others keep for us, bound to what it is.
func (s *Service) seal(ctx context.Context, text []byte, bound string) ([]byte, error) {
	a, err := s.cfg.Sealer.AEAD(ctx, "", keyOwner)
	if err != nil {
		return nil, err
	}
	return a.Encrypt(text, []byte(bound))
}

func (s *Service) open(ctx context.Context, sealed []byte, bound string) ([]byte, error) {
	a, err := s.cfg.Sealer.AEAD(ctx, "", keyOwner)
	if err != nil {
		return nil, err
	}
	return a.Decrypt(sealed, []byte(bound))
}
