package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// Authorizer is asked before accounts and tokens are shown or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Limits that no configuration lifts.
const (
	maxTTL        = 366 * 24 * time.Hour
	maxAttemptTTL = 90 * 24 * time.Hour
	maxCacheTTL   = 5 * time.Second
	maxScopes     = 256 // an attempt has two for each of its inputs
	maxPage       = 1000
	maxLabel      = 200
)

// firstAdmin is the account that only Bootstrap and Recover create.
const firstAdmin = "admin"

// Config says what the service works with; the zero of a setting is its default.
type Config struct {
	DB         *store.DB
	Store      Store
	Grants     Grants
	Authorizer Authorizer
	// OnMembers is told, after the commit, that the principal's grants changed.
	OnMembers func(principal string)

	TTL        time.Duration // of tokens that name none; default 90 days, at most 366
	AttemptTTL time.Duration // of attempt tokens that name none; default 7 days, at most 90
	CacheTTL   time.Duration // how late another process sees a revocation; default 4 s, at most 5
	CacheSize  int           // tokens remembered; default 4096
	MaxTokens  int           // live tokens of one account; default 100
	// KeepEnded is how long tokens are listed after they were revoked or expired; 0 is
	// for ever. Those of attempts go after a week in any case.
	KeepEnded time.Duration
	// Journal records failed authentications; nil records none.
	Journal audit.Journal
	// MaxAccounts is how many users there may be, and how many service accounts of one
	// project; default 10,000.
	MaxAccounts int
	Now         func() time.Time
}

// Service keeps accounts and tokens. Safe for concurrent use.
type Service struct {
	cfg     Config
	clock   clock
	known   *lru.Cache[digest, *entry]
	unknown *lru.Cache[digest, unknown] // well-formed secrets that do not work
	// revocations counts forget calls, so that a lookup that overlaps one does
	// not fill the cache with what it read before.
	cacheMu     sync.Mutex
	revocations uint64

	mu   sync.Mutex
	used map[string]time.Time // last uses not yet written
	// pruned is when tokens that ended were removed last.
	pruned time.Time

	failures *share.Limiter // by address
}

// New makes the service. Error: fault.Invalid for a setting over its limit.
func New(cfg Config) (*Service, error) {
	fill := func(name string, setting *time.Duration, standard, most time.Duration) error {
		if *setting == 0 {
			*setting = standard
		}
		if *setting < 0 || *setting > most {
			return fault.New(fault.Invalid, "%s is %s, over the limit of %s", name, *setting, most)
		}
		return nil
	}
	for _, err := range []error{
		fill("token_ttl", &cfg.TTL, 90*24*time.Hour, maxTTL),
		fill("attempt_token_ttl", &cfg.AttemptTTL, 7*24*time.Hour, maxAttemptTTL),
		fill("token_cache_ttl", &cfg.CacheTTL, 4*time.Second, maxCacheTTL),
	} {
		if err != nil {
			return nil, err
		}
	}
	if cfg.CacheSize <= 0 {
		cfg.CacheSize = 4096
	}
	if cfg.MaxTokens <= 0 {
		cfg.MaxTokens = 100
	}
	if cfg.MaxAccounts <= 0 {
		cfg.MaxAccounts = 10_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnMembers == nil {
		cfg.OnMembers = func(string) {}
	}
	known, err := lru.New[digest, *entry](cfg.CacheSize)
	if err != nil {
		return nil, err
	}
	refused, err := lru.New[digest, unknown](1024)
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, known: known, unknown: refused, used: map[string]time.Time{}, failures: newFailures()}
	s.clock.wall = cfg.Now
	return s, nil
}

// Bootstrap makes the first administrator, once in the installation's life, and
// returns the secret of its token; the caller shows it once and stores it for
// the local CLI. created is false when that was done before.
func (s *Service) Bootstrap(ctx context.Context) (secret string, created bool, err error) {
	ctx = identity.With(ctx, identity.Loop("bootstrap"))
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		now := s.clock.now()
		secret, created = "", false
		if err := s.cfg.Store.RaiseClock(ctx, tx, now); err != nil {
			return err
		}
		first, err := s.cfg.Store.Claim(ctx, tx, "bootstrap", now)
		if err != nil || !first {
			return err
		}
		a, err := s.insertAccount(ctx, tx, Account{Kind: identity.User, Name: firstAdmin})
		if err != nil {
			return err
		}
		secret, err = s.firstRunToken(ctx, tx, a)
		created = err == nil
		return err
	})
	return secret, created, err
}

// Recover gives the first administrator a new token and ends the former ones of
// its kind: for an operator of the machine who lost it. Only local administration
// with access to the data directory may lead here.
func (s *Service) Recover(ctx context.Context) (secret string, err error) {
	ctx = identity.With(ctx, identity.Loop("recover"))
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		a, err := s.cfg.Store.AccountByName(ctx, tx, identity.User, "", firstAdmin)
		if fault.Is(err, fault.NotFound) {
			a, err = s.insertAccount(ctx, tx, Account{Kind: identity.User, Name: firstAdmin})
		}
		if err != nil {
			return err
		}
		if err := s.ableIn(ctx, tx, &a, "", time.Time{}); err != nil {
			return err
		}
		if err := s.revoke(ctx, tx, Selection{Kind: FirstRun}, "replaced by the operator"); err != nil {
			return err
		}
		secret, err = s.firstRunToken(ctx, tx, a)
		return err
	})
	if err != nil {
		return "", err
	}
	return secret, nil
}

func (s *Service) firstRunToken(ctx context.Context, tx *store.Tx, a Account) (string, error) {
	g := project.Grant{Name: "first-admin", Principal: a.ID, Role: project.Admin, CreatedAt: s.clock.now(), CreatedBy: a.CreatedBy}
	if err := s.cfg.Grants.Put(ctx, tx, g); err != nil {
		return "", err
	}
	if err := s.recordGrant(ctx, tx, "member.grant", project.MemberGranted, "", g); err != nil {
		return "", err
	}
	_, secret, err := s.issue(ctx, tx, Token{Kind: FirstRun, Principal: a.ID, Name: a.Name, Label: "first run"}, s.cfg.TTL)
	return secret, err
}

// CreateUser makes a person's account, without any role. Needs member.grant in
// the installation. Errors: fault.Invalid, fault.Conflict for a name in use.
func (s *Service) CreateUser(ctx context.Context, name string) (Account, error) {
	a, err := s.newUser(ctx, name)
	if err != nil {
		return Account{}, err
	}
	return s.create(ctx, a)
}

// CreateService makes a service account of a project (or, for the empty one, of
// the installation), without any role. Needs token.create there. Errors:
// fault.Invalid, fault.Conflict for a name in use.
func (s *Service) CreateService(ctx context.Context, in project.Name, name string) (Account, error) {
	a, err := s.serviceFor(ctx, in, name)
	if err != nil {
		return Account{}, err
	}
	return s.create(ctx, a)
}

func (s *Service) create(ctx context.Context, a Account) (Account, error) {
	err := s.cfg.DB.Update(ctx, string(a.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		if a.Project != "" {
			if _, err := s.cfg.Grants.One(ctx, tx, a.Project); err != nil {
				return err
			}
		}
		a, err = s.insertAccount(ctx, tx, a)
		return err
	})
	return a, err
}

// insertAccount gives the account its ID.
func (s *Service) insertAccount(ctx context.Context, tx *store.Tx, a Account) (Account, error) {
	a.ID = id.New("usr")
	if a.Kind == identity.Service {
		a.ID = id.New("svc")
	}
	a.CreatedAt, a.CreatedBy = s.clock.now(), identity.From(ctx).ID
	_, err := s.cfg.Store.AccountByName(ctx, tx, a.Kind, a.Project, a.Name)
	if err == nil {
		return a, fault.New(fault.Conflict, "%s %s exists", a.Kind, a.Name).WithHint("Choose another name.")
	}
	if !fault.Is(err, fault.NotFound) {
		return a, err
	}
	n, err := s.cfg.Store.CountAccounts(ctx, tx, a.Kind, a.Project)
	if err != nil {
		return a, err
	}
	if n >= s.cfg.MaxAccounts {
		return a, share.Refused("accounts", fmt.Sprintf("%d accounts of kind %s already exist there, at most %d are allowed", n, a.Kind, s.cfg.MaxAccounts),
			"Delete unused accounts, or ask the operator to raise limits.accounts.", 0)
	}
	if err := s.cfg.Store.InsertAccount(ctx, tx, a); err != nil {
		return a, err
	}
	if err := audit.Append(ctx, tx, audit.Entry{Project: string(a.Project), Action: "account.create", Object: string(a.Kind) + " " + a.Name, Detail: map[string]any{"id": a.ID}}); err != nil {
		return a, err
	}
	return a, event.Publish(ctx, tx, string(a.Project), AccountCreated, a)
}

// Accounts lists a project's service accounts or, for the empty project, every
// account, by id, 100 in a page unless told, at most 1000; next is the page token of the following page.
// Needs member.read.
func (s *Service) Accounts(ctx context.Context, in project.Name, pageSize int, pageToken string) (accounts []Account, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, "member.read", policy.Object{Project: string(in), Kind: "account"}); err != nil {
		return nil, "", err
	}
	if pageSize <= 0 {
		pageSize = 100
	}
	pageSize = min(pageSize, maxPage)
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		accounts, err = s.cfg.Store.Accounts(ctx, tx, in, pageToken, pageSize+1)
		return err
	})
	if len(accounts) > pageSize {
		accounts = accounts[:pageSize]
		next = accounts[pageSize-1].ID
	}
	return accounts, next, err
}

// Names are the names of accounts by id, of those that exist. The caller may see who has a
// role where the ids are from.
func (s *Service) Names(ctx context.Context, ids ...string) (names map[string]string, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		names, err = s.cfg.Store.Names(ctx, tx, ids)
		return err
	})
	return names, err
}

// Account is one account, named as for Resolve. Needs member.read where it is.
// Error: fault.NotFound.
func (s *Service) Account(ctx context.Context, in project.Name, ref string) (Account, error) {
	a, err := s.resolve(ctx, in, ref)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Account{}, err
	}
	object := policy.Object{Project: string(home(a, in, ref)), Kind: "account", Name: ref}
	if denied := s.cfg.Authorizer.Allow(ctx, "member.read", object); denied != nil {
		// Only those who may look hear whether it is there, and in which project.
		return Account{}, s.asUnknown(ctx, "member.read", policy.Object{Project: string(home(Account{}, in, ref)), Kind: "account", Name: ref}, object, denied)
	}
	return a, err
}

// asUnknown is the refusal that the caller hears of an account that does not exist, when
// it may not know of the project that the account is in. What it asked is on record
// already as it was.
func (s *Service) asUnknown(ctx context.Context, action policy.Action, unknown, known policy.Object, denied error) error {
	if unknown.Project == known.Project || !fault.Is(denied, fault.NotFound) {
		return denied
	}
	if err := s.cfg.Authorizer.Allow(ctx, action, unknown); err != nil {
		return err
	}
	return fault.New(fault.NotFound, "account %.80q does not exist", unknown.Name).WithHint("Write user/NAME, service/NAME or an account id.")
}

// home is the project whose administrators an account is the business of; for
// one that does not exist, of what its name says.
func home(a Account, in project.Name, ref string) project.Name {
	if a.ID == "" && strings.HasPrefix(ref, string(identity.Service)+"/") {
		return in
	}
	return a.Project
}

// DeleteAccount removes an account, named as for Resolve, with its grants and ends
// its tokens. Needs member.revoke in the installation, or token.revoke in the project of a service
// account. Errors: fault.NotFound; fault.Conflict for the last administrator.
func (s *Service) DeleteAccount(ctx context.Context, in project.Name, ref string) error {
	a, missing := s.resolve(ctx, in, ref)
	if missing != nil && !fault.Is(missing, fault.NotFound) {
		return missing
	}
	action, object := policy.Action("member.revoke"), policy.Object{Kind: "user", Name: ref}
	if of := home(a, in, ref); of != "" {
		action, object = "token.revoke", policy.Object{Project: string(of), Kind: "service", Name: ref}
	}
	if err := s.cfg.Authorizer.Allow(ctx, action, object); err != nil {
		return s.asUnknown(ctx, "member.revoke", policy.Object{Kind: "user", Name: ref}, object, err)
	}
	if missing != nil { // only those who may look hear that
		return missing
	}
	return s.cfg.DB.Update(ctx, string(a.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.removeIn(ctx, tx, a, "account deleted")
	})
}

// removeIn removes an account with its grants and ends its tokens, each on
// record.
func (s *Service) removeIn(ctx context.Context, tx *store.Tx, a Account, reason string) error {
	if err := s.cfg.Store.DeleteAccount(ctx, tx, a.ID); err != nil {
		return err
	}
	grants, err := s.cfg.Grants.Drop(ctx, tx, a.ID)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if g.Project == "" && g.Role == project.Admin {
			if err := s.KeepAdmin(ctx, tx); err != nil {
				return err
			}
		}
		if err := s.recordGrant(ctx, tx, "member.revoke", project.MemberRevoked, reason, g); err != nil {
			return err
		}
	}
	if err := s.revoke(ctx, tx, Selection{Principal: a.ID}, reason); err != nil {
		return err
	}
	if err := audit.Append(ctx, tx, audit.Entry{Project: string(a.Project), Action: "account.delete", Object: string(a.Kind) + " " + a.Name, Reason: reason, Detail: map[string]any{"id": a.ID}}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(a.Project), AccountDeleted, a)
}

// recordGrant puts a grant that came or went with its account on record.
func (s *Service) recordGrant(ctx context.Context, tx *store.Tx, action, name, reason string, g project.Grant) error {
	tx.OnCommit(func() { s.cfg.OnMembers(g.Principal) })
	detail := map[string]any{"principal": g.Principal, "role": g.Role}
	if g.Object != "" {
		detail["object"] = g.Object
	}
	if err := audit.Append(ctx, tx, audit.Entry{Project: string(g.Project), Action: action, Object: "grant " + g.Name, Reason: reason, Detail: detail}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(g.Project), name, g)
}

// maxMakers bounds how many services made one another.
const maxMakers = 10

// Maker is the person, or Falaj, behind a principal: for a service its creator.
func Maker(ctx context.Context, tx *store.Tx, accounts interface {
	Account(ctx context.Context, tx *store.Tx, id string) (Account, error)
}, principal string,
) (string, error) {
	for range maxMakers {
		if !strings.HasPrefix(principal, "svc_") {
			break
		}
		a, err := accounts.Account(ctx, tx, principal)
		if fault.Is(err, fault.NotFound) {
			break
		}
		if err != nil {
			return "", err
		}
		principal = a.CreatedBy
	}
	return principal, nil
}

// Maker is who is behind a principal.
func (s *Service) Maker(ctx context.Context, tx *store.Tx, principal string) (string, error) {
	return Maker(ctx, tx, s.cfg.Store, principal)
}

// Resolve finds the account that a manifest names: an id, "user/alice", or
// "service/ci" of the project or else of the installation. The caller has
// authorised itself. Errors: fault.NotFound, fault.Invalid.
func (s *Service) Resolve(ctx context.Context, tx *store.Tx, in project.Name, ref string) (Account, error) {
	kind, name, named := strings.Cut(ref, "/")
	var a Account
	var err error
	switch {
	case !named:
		a, err = s.cfg.Store.Account(ctx, tx, ref)
	case kind == string(identity.User):
		a, err = s.cfg.Store.AccountByName(ctx, tx, identity.User, "", name)
	case kind == string(identity.Service):
		a, err = s.cfg.Store.AccountByName(ctx, tx, identity.Service, in, name)
		if in != "" && fault.Is(err, fault.NotFound) {
			a, err = s.cfg.Store.AccountByName(ctx, tx, identity.Service, "", name)
		}
	default:
		return Account{}, fault.New(fault.Invalid, "%.80q names no account", ref).WithHint("Write user/NAME, service/NAME or an account id.")
	}
	if fault.Is(err, fault.NotFound) {
		return Account{}, fault.New(fault.NotFound, "account %.80q does not exist", ref).WithHint("Write user/NAME, service/NAME or an account id.")
	}
	return a, err
}

func (s *Service) resolve(ctx context.Context, in project.Name, ref string) (a Account, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.Resolve(ctx, tx, in, ref)
		return err
	})
	return a, err
}

// CreateToken makes a token and returns its secret, which cannot be had again.
// Everybody may make tokens of their own; those of a service account need
// token.create in its project, those of another person in the installation. A
// token that is bound or scoped makes only tokens at least as bound and scoped,
// and of its own account only tokens that end no later than it does.
// Errors: fault.Invalid, fault.NotFound, fault.PermissionDenied;
// fault.Exhausted when the account has too many live tokens.
func (s *Service) CreateToken(ctx context.Context, spec TokenSpec) (t Token, secret string, err error) {
	d, err := s.Draft(ctx, spec)
	if err != nil {
		return Token{}, "", err
	}
	err = s.cfg.DB.Update(ctx, string(d.spec.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		t, secret, err = s.IssueIn(ctx, tx, d)
		return err
	})
	if err != nil {
		return Token{}, "", err
	}
	return t, secret, nil
}

// Draft is a token that was asked for, checked and permitted, and that IssueIn
// makes; with its account, where that is wanted and not there.
type Draft struct {
	holder Account // without ID: to be made
	spec   TokenSpec
}

// Draft checks and permits what CreateToken would make, and makes nothing.
func (s *Service) Draft(ctx context.Context, spec TokenSpec) (Draft, error) {
	p := identity.From(ctx)
	if p.Project != "" && spec.Project == "" {
		spec.Project = p.Project
	}
	a, err := s.holder(ctx, p, spec)
	if err != nil {
		return Draft{}, err
	}
	if spec, err = s.complete(p, a, spec); err != nil {
		return Draft{}, err
	}
	if spec.Project != "" && a.ID == p.ID {
		// Only who may know of the project hears whether it exists.
		if err := s.cfg.Authorizer.Allow(ctx, "project.read", policy.Object{Project: string(spec.Project), Kind: "project", Name: string(spec.Project)}); err != nil {
			return Draft{}, err
		}
	}
	return Draft{holder: a, spec: spec}, nil
}

// IssueIn makes what was drafted by the same caller, in a transaction that may
// do more. The secret counts when the transaction has committed.
func (s *Service) IssueIn(ctx context.Context, tx *store.Tx, d Draft) (Token, string, error) {
	p, a, spec := identity.From(ctx), d.holder, d.spec
	if spec.Project != "" {
		if _, err := s.cfg.Grants.One(ctx, tx, spec.Project); err != nil {
			return Token{}, "", err
		}
	}
	a, err := s.present(ctx, tx, a)
	if err != nil {
		return Token{}, "", err
	}
	if err := s.room(ctx, tx, a); err != nil {
		return Token{}, "", err
	}
	t := Token{Kind: UserToken, Principal: a.ID, Name: a.Name, Label: spec.Label, Project: spec.Project, Scopes: spec.Scopes, Parent: p.Token}
	if a.Kind == identity.Service {
		t.Kind = ServiceToken
	}
	caller, err := s.cfg.Store.Account(ctx, tx, p.ID)
	if err != nil || !caller.DisabledAt.IsZero() || !caller.ProvedUntil.IsZero() && !s.clock.now().Before(caller.ProvedUntil) {
		return Token{}, "", errors.Join(err, errBearer())
	}
	session := false
	if t.Parent != "" {
		// Revoked in the meantime is revoked: the cache of this process may lag.
		parent, err := s.cfg.Store.Token(ctx, tx, t.Parent)
		if err != nil || !parent.Live(s.clock.now()) {
			return Token{}, "", errors.Join(err, errBearer())
		}
		session = parent.Kind == SessionToken
	}
	if session { // it ends with the day; the account's tokens end with the account
		t.Parent = ""
	} else if a.ID == p.ID {
		t.ExpiresAt = p.Expires
	}
	return s.issue(ctx, tx, t, spec.TTL)
}

// room refuses one more token to an account that has too many.
func (s *Service) room(ctx context.Context, tx *store.Tx, a Account) error {
	live, err := s.cfg.Store.CountLive(ctx, tx, a.ID, s.clock.now())
	if err != nil || live < s.cfg.MaxTokens {
		return err
	}
	return share.Refused("tokens", fmt.Sprintf("%s %s has %d live tokens, at most %d are allowed", a.Kind, a.Name, live, s.cfg.MaxTokens),
		"Revoke one with \"falaj token revoke ID\", or ask the operator to raise limits.tokens.", 0)
}

// present is the holder of a token, made now when it is not there and was to be.
func (s *Service) present(ctx context.Context, tx *store.Tx, a Account) (Account, error) {
	if a.ID != "" {
		// Deleted in the meantime is deleted.
		return s.cfg.Store.Account(ctx, tx, a.ID)
	}
	was, err := s.cfg.Store.AccountByName(ctx, tx, a.Kind, a.Project, a.Name)
	if !fault.Is(err, fault.NotFound) {
		return was, err // somebody was faster
	}
	return s.insertAccount(ctx, tx, a)
}

// holder finds whose token is wanted and asks whether the caller may make it,
// and the account with it.
func (s *Service) holder(ctx context.Context, p identity.Principal, spec TokenSpec) (Account, error) {
	own := policy.Object{Project: string(spec.Project), Kind: "token", Owner: p.ID}
	if spec.For == "" {
		if p.Kind != identity.User && p.Kind != identity.Service {
			return Account{}, fault.New(fault.PermissionDenied, "%s cannot create tokens", p)
		}
		if err := s.cfg.Authorizer.Allow(ctx, "token.create", own); err != nil {
			return Account{}, err
		}
		return s.resolve(ctx, "", p.ID)
	}
	if spec.Create {
		if kind, name, ok := strings.Cut(spec.For, "/"); ok && kind == string(identity.Service) {
			return s.serviceFor(ctx, spec.Project, name)
		}
	}
	a, err := s.resolve(ctx, spec.Project, spec.For)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return Account{}, err
	}
	object := policy.Object{Kind: "token"} // another person's, or nobody's: the installation's business
	switch {
	case err == nil && a.ID == p.ID:
		object = own
	case err == nil && a.Kind == identity.Service:
		object.Project = string(a.Project)
	}
	if denied := s.cfg.Authorizer.Allow(ctx, "token.create", object); denied != nil {
		return Account{}, denied
	}
	if name, ok := strings.CutPrefix(spec.For, string(identity.User)+"/"); ok && spec.Create && err != nil {
		return s.newUser(ctx, name)
	}
	return a, err
}

// serviceFor is a project's service account; without ID where it is to be made.
func (s *Service) serviceFor(ctx context.Context, in project.Name, name string) (Account, error) {
	if err := s.cfg.Authorizer.Allow(ctx, "token.create", policy.Object{Project: string(in), Kind: "service", Name: name}); err != nil {
		return Account{}, err
	}
	a := Account{Kind: identity.Service, Name: name, Project: in}
	if err := id.CheckName("account name", name); err != nil {
		return a, err
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		was, err := s.cfg.Store.AccountByName(ctx, tx, a.Kind, in, name)
		if err == nil {
			a = was
		}
		return err
	})
	if fault.Is(err, fault.NotFound) {
		err = nil
	}
	return a, err
}

// newUser is an account for a person, to be made; without ID.
func (s *Service) newUser(ctx context.Context, name string) (Account, error) {
	if err := s.cfg.Authorizer.Allow(ctx, "member.grant", policy.Object{Kind: "user", Name: name}); err != nil {
		return Account{}, err
	}
	if name == firstAdmin {
		return Account{}, fault.New(fault.Invalid, "user %s is reserved for the installation", name).WithHint("Choose another name.")
	}
	return Account{Kind: identity.User, Name: name}, id.CheckName("account name", name)
}

// complete checks a spec and fills in its defaults.
func (s *Service) complete(p identity.Principal, a Account, spec TokenSpec) (TokenSpec, error) {
	if spec.TTL == 0 {
		spec.TTL = s.cfg.TTL
	}
	switch {
	case spec.TTL < time.Second || spec.TTL > maxTTL:
		return spec, fault.New(fault.Invalid, "a token can last from 1 second to %d days, not %s", maxTTL/(24*time.Hour), spec.TTL)
	case len(spec.Label) > maxLabel:
		return spec, fault.New(fault.Invalid, "the label has %d bytes, at most %d are allowed", len(spec.Label), maxLabel)
	case a.Project != "" && spec.Project != "" && spec.Project != a.Project:
		return spec, fault.New(fault.Invalid, "service %s belongs to project %s", a.Name, a.Project).
			WithHint("Bind the token to that project, or leave the project out.")
	}
	if a.Project != "" {
		spec.Project = a.Project
	}
	if err := checkScopes(spec.Scopes, false); err != nil {
		return spec, err
	}
	if p.Project != "" && spec.Project != p.Project {
		return spec, fault.New(fault.PermissionDenied, "a token bound to project %s can create only tokens bound to it", p.Project)
	}
	if !p.Narrowed() {
		return spec, nil
	}
	if len(spec.Scopes) == 0 {
		return spec, fault.New(fault.PermissionDenied, "a token with scopes can create only tokens with scopes").
			WithHint("Name scopes of your own token.")
	}
	for _, scope := range spec.Scopes {
		action, object, _ := strings.Cut(scope, ":")
		if ok, _ := p.Admits(action, object); !ok {
			return spec, fault.New(fault.PermissionDenied, "scope %s is not among those of your own token", scope)
		}
	}
	return spec, nil
}

func checkScopes(scopes []string, attempt bool) error {
	if len(scopes) > maxScopes {
		return fault.New(fault.Invalid, "%d scopes are given, at most %d are allowed", len(scopes), maxScopes)
	}
	for _, scope := range scopes {
		if err := policy.CheckScope(scope, attempt); err != nil {
			return err
		}
	}
	return nil
}

// issue writes a token that expires after ttl; earlier, where ExpiresAt is set
// to an earlier time.
func (s *Service) issue(ctx context.Context, tx *store.Tx, t Token, ttl time.Duration) (Token, string, error) {
	secret, d := mint(t.Kind)
	t.ID = id.New("tok")
	t.CreatedAt, t.CreatedBy = s.clock.now(), identity.From(ctx).ID
	if end := t.CreatedAt.Add(ttl); t.ExpiresAt.IsZero() || end.Before(t.ExpiresAt) {
		t.ExpiresAt = end
	}
	t.Scopes = slices.Clone(t.Scopes)
	if err := s.cfg.Store.InsertToken(ctx, tx, t, d[:]); err != nil {
		return Token{}, "", err
	}
	detail := map[string]any{"kind": t.Kind, "principal": t.Principal, "scopes": t.Scopes, "expires_at": t.ExpiresAt}
	if t.Parent != "" {
		detail["parent"] = t.Parent
	}
	err := audit.Append(ctx, tx, audit.Entry{Project: string(t.Project), Action: "token.create", Object: "token " + t.ID, Detail: detail})
	if err != nil {
		return Token{}, "", err
	}
	return t, secret, event.Publish(ctx, tx, string(t.Project), TokenCreated, t.event())
}

// Tokens lists tokens by id, those that work unless told; next is the page token of the
// following page. One's own need no role, others need token.read: in the project that they
// are bound to, or in the installation. Error: fault.NotFound for an account.
func (s *Service) Tokens(ctx context.Context, f Filter) (tokens []Token, next string, err error) {
	p := identity.From(ctx)
	object := policy.Object{Project: string(f.Project), Kind: "token"}
	sel := Selection{Project: f.Project, After: f.PageToken}
	if f.Own {
		// A bound token shows only what is bound as it is.
		object = policy.Object{Project: string(p.Project), Kind: "token", Owner: p.ID}
		sel.Project, sel.Principal = p.Project, p.ID
	}
	if err := s.cfg.Authorizer.Allow(ctx, "token.read", object); err != nil {
		return nil, "", err
	}
	if f.Account != "" {
		a, err := s.resolve(ctx, f.Project, f.Account)
		if err != nil {
			return nil, "", err
		}
		if f.Own && a.ID != p.ID {
			return nil, "", fault.New(fault.Invalid, "%s is not your account", f.Account)
		}
		sel.Principal = a.ID
	}
	size := f.PageSize
	if size <= 0 {
		size = 100
	}
	size = min(size, maxPage)
	sel.Limit = size + 1
	now := s.clock.now()
	if !f.Ended {
		sel.Live = now
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		tokens, err = s.cfg.Store.Tokens(ctx, tx, sel)
		return err
	})
	for i := range tokens {
		tokens[i].State = tokens[i].StateAt(now)
	}
	if len(tokens) > size {
		tokens = tokens[:size]
		next = tokens[size-1].ID
	}
	return tokens, next, err
}

// NextExpiry is when the next token of a service account expires; zero where there is none.
// It asks no permission: it is for the metrics.
func (s *Service) NextExpiry(ctx context.Context) (at time.Time, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		at, err = s.cfg.Store.NextExpiry(ctx, tx, ServiceToken, s.clock.now())
		return err
	})
	return at, err
}

// RevokeToken ends a token; ending one that has ended changes nothing. Everybody
// may end their own, others need token.revoke. Error: fault.NotFound, for tokens
// one may not know of, too.
func (s *Service) RevokeToken(ctx context.Context, tokenID string) error {
	if err := id.Check("tok", tokenID); err != nil {
		return err
	}
	var t Token
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		t, err = s.cfg.Store.Token(ctx, tx, tokenID)
		return err
	})
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	// A token that is not there is asked for like one of the installation, and
	// both refusals read the same.
	denied := s.cfg.Authorizer.Allow(ctx, "token.revoke", policy.Object{Project: string(t.Project), Kind: "token", Name: tokenID, Owner: t.Principal})
	if denied != nil || err != nil {
		if denied != nil && !fault.Is(denied, fault.PermissionDenied) && !fault.Is(denied, fault.NotFound) {
			return denied
		}
		return fault.New(fault.NotFound, "token %s does not exist, or you may not revoke it", tokenID).
			WithHint("\"falaj get tokens\" shows your tokens.")
	}
	return s.cfg.DB.Update(ctx, string(t.Project), func(ctx context.Context, tx *store.Tx) error {
		return s.revoke(ctx, tx, Selection{ID: tokenID}, "")
	})
}

// IssueAttemptIn makes the token of an attempt in the caller's transaction. Only
// Falaj's own loops may ask.
func (s *Service) IssueAttemptIn(ctx context.Context, tx *store.Tx, spec AttemptSpec) (Token, string, error) {
	if p := identity.From(ctx); p.Kind != identity.System {
		return Token{}, "", fault.New(fault.PermissionDenied, "%s cannot create attempt tokens", p)
	}
	if spec.TTL == 0 {
		spec.TTL = s.cfg.AttemptTTL
	}
	switch {
	case spec.Attempt == "" || spec.Project == "":
		return Token{}, "", fault.New(fault.Invalid, "an attempt token needs an attempt and a project")
	case len(spec.Scopes) == 0:
		return Token{}, "", fault.New(fault.Invalid, "an attempt token needs at least one scope")
	case spec.TTL < time.Second || spec.TTL > maxAttemptTTL:
		return Token{}, "", fault.New(fault.Invalid, "an attempt token can last from 1 second to %d days, not %s", maxAttemptTTL/(24*time.Hour), spec.TTL)
	}
	if err := checkScopes(spec.Scopes, true); err != nil {
		return Token{}, "", err
	}
	return s.issue(ctx, tx, Token{Kind: AttemptToken, Principal: spec.Attempt, Name: spec.Name, Behalf: spec.Behalf, Bound: spec.Bound, Project: spec.Project, Scopes: spec.Scopes}, spec.TTL)
}

// RevokeAttemptIn ends the tokens of an attempt in the transaction that ends the
// attempt. Only Falaj's own loops may ask.
func (s *Service) RevokeAttemptIn(ctx context.Context, tx *store.Tx, attempt string) error {
	if p := identity.From(ctx); p.Kind != identity.System {
		return fault.New(fault.PermissionDenied, "%s cannot revoke attempt tokens", p)
	}
	if attempt == "" {
		return fault.New(fault.Invalid, "the attempt is missing")
	}
	return s.revoke(ctx, tx, Selection{Kind: AttemptToken, Principal: attempt}, "attempt ended")
}

// RevokeBoundIn ends the tokens that are bound to a project and removes its
// service accounts, in the transaction that deletes it. The caller has
// authorised itself.
func (s *Service) RevokeBoundIn(ctx context.Context, tx *store.Tx, in project.Name) error {
	if in == "" {
		return fault.New(fault.Invalid, "the project is missing")
	}
	for {
		accounts, err := s.cfg.Store.Accounts(ctx, tx, in, "", 100)
		if err != nil {
			return err
		}
		for _, a := range accounts {
			if err := s.removeIn(ctx, tx, a, "project deleted"); err != nil {
				return err
			}
		}
		if len(accounts) < 100 {
			break
		}
	}
	return s.revoke(ctx, tx, Selection{Project: in}, "project deleted")
}

// revoke ends the selected live tokens and those that they made for the same
// account, on record, and empties the cache of them once that is durable.
func (s *Service) revoke(ctx context.Context, tx *store.Tx, sel Selection, reason string) error {
	for {
		ended, err := s.cfg.Store.Revoke(ctx, tx, sel, identity.From(ctx).ID, s.clock.now())
		if err != nil || len(ended) == 0 {
			return err
		}
		sel = Selection{}
		for _, t := range ended {
			if err := audit.Append(ctx, tx, audit.Entry{Project: string(t.Project), Action: "token.revoke", Object: "token " + t.ID, Reason: reason, Detail: map[string]any{"kind": t.Kind, "principal": t.Principal}}); err != nil {
				return err
			}
			if err := event.Publish(ctx, tx, string(t.Project), TokenRevoked, t.event()); err != nil {
				return err
			}
			if t.Kind != AttemptToken { // which make none
				sel.Children = append(sel.Children, t.ID)
			}
		}
		tx.OnCommit(func() { s.forget(ended) })
		if len(sel.Children) == 0 {
			return nil
		}
		reason = "the token that created it was revoked"
	}
}
