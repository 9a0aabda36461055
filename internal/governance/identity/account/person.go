package account

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Person is what an identity provider says of somebody who signed in there.
type Person struct {
	Provider string // its name in the configuration
	// Issuer and Subject are who it is. Names and addresses change hands; these do not.
	Issuer, Subject string
	Username        string // what the account is called, as far as a name of ours may be
	DisplayName     string
	Email           string
	Groups          []string // as the provider names them
	// ProvedUntil is how long the account's tokens work unless the provider confirms the
	// person again.
	ProvedUntil time.Time
}

// Limits of what a provider says.
const (
	maxSubject  = 255
	maxDisplay  = 200
	maxSessions = 20 // of one account; the oldest ends for another
)

// Check refuses what no provider may say of a person. Error: fault.Invalid.
func (p Person) Check() error {
	switch {
	case p.Issuer == "" || p.Subject == "":
		return fault.New(fault.Invalid, "the provider does not identify the person")
	case len(p.Subject) > maxSubject:
		return fault.New(fault.Invalid, "the subject has %d bytes, at most %d are allowed", len(p.Subject), maxSubject)
	case len(p.Groups) > project.MaxGroups:
		return fault.New(fault.Invalid, "the person is in %d groups, at most %d are allowed", len(p.Groups), project.MaxGroups).
			WithHint("Let the provider send only the groups that Falaj's grants name.")
	}
	for _, g := range p.Groups {
		if err := project.CheckGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// Logins makes the accounts and tokens of people who have proved who they are. Only the
// service of sign-ins has it.
type Logins struct{ s *Service }

// Logins is for the service of sign-ins.
func (s *Service) Logins() Logins { return Logins{s} }

// SignIn finds or makes the account of a person, and makes its groups what the provider
// says they are. Roles come from grants to groups, so that what the provider no longer says
// ends, and what an administrator granted to the account stays. Errors: fault.Invalid;
// fault.PermissionDenied for a disabled account.
func (l Logins) SignIn(ctx context.Context, tx *store.Tx, p Person) (Account, error) {
	s := l.s
	if who := identity.From(ctx); who.Kind != identity.System {
		return Account{}, fault.New(fault.PermissionDenied, "%s cannot sign other people in", who)
	}
	if err := p.Check(); err != nil {
		return Account{}, err
	}
	a, err := s.cfg.Store.AccountBySubject(ctx, tx, p.Issuer, p.Subject)
	switch {
	case fault.Is(err, fault.NotFound):
		name, err := s.freeName(ctx, tx, p.Username)
		if err != nil {
			return Account{}, err
		}
		a = Account{Kind: identity.User, Name: name, External: p.external()}
		if a, err = s.insertAccount(ctx, tx, a); err != nil {
			return Account{}, err
		}
	case err != nil:
		return Account{}, err
	case !a.DisabledAt.IsZero():
		return Account{}, fault.New(fault.PermissionDenied, "account %s is disabled", a.Name).WithHint("Ask an administrator of Falaj.")
	default:
		return a, l.update(ctx, tx, &a, p)
	}
	return a, s.setGroups(ctx, tx, a, p.Groups)
}

// update makes the account what the provider says of its person.
func (l Logins) update(ctx context.Context, tx *store.Tx, a *Account, p Person) error {
	a.External = p.external()
	if err := l.s.cfg.Store.SetExternal(ctx, tx, a.ID, a.External); err != nil {
		return err
	}
	return l.s.setGroups(ctx, tx, *a, p.Groups)
}

// Confirm makes an account, which must be there and be the person's, what the provider says.
// Errors: as SignIn; fault.NotFound.
func (l Logins) Confirm(ctx context.Context, tx *store.Tx, accountID string, p Person) error {
	if err := p.Check(); err != nil {
		return err
	}
	a, err := l.s.cfg.Store.Account(ctx, tx, accountID)
	switch {
	case err != nil:
		return err
	case a.Issuer != p.Issuer || a.Subject != p.Subject:
		return fault.New(fault.NotFound, "account %s is of another person", a.Name)
	case !a.DisabledAt.IsZero():
		return fault.New(fault.PermissionDenied, "account %s is disabled", a.Name)
	}
	return l.update(ctx, tx, &a, p)
}

// Withdraw takes the groups that the provider no longer names, and stops the tokens, of a
// person who may not log in any more. Without an account there is nothing to do.
func (l Logins) Withdraw(ctx context.Context, tx *store.Tx, p Person) error {
	if err := p.Check(); err != nil {
		return err
	}
	a, err := l.s.cfg.Store.AccountBySubject(ctx, tx, p.Issuer, p.Subject)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p.ProvedUntil = l.s.clock.now()
	tx.OnCommit(func() { l.s.forgetHolder(a.ID) })
	return l.update(ctx, tx, &a, p)
}

func (p Person) external() External {
	return External{
		Provider: p.Provider, Issuer: p.Issuer, Subject: p.Subject, ProvedUntil: p.ProvedUntil,
		DisplayName: clean(p.DisplayName), Email: clean(p.Email),
	}
}

// clean is a provider's text as it is shown: one line, cut to a length.
func clean(text string) string {
	return fault.Clip(strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " "), maxDisplay)
}

// setGroups reconciles the account's groups, on record.
func (s *Service) setGroups(ctx context.Context, tx *store.Tx, a Account, groups []string) error {
	joined, left, err := s.cfg.Grants.SetGroups(ctx, tx, a.ID, a.Provider, groups, s.clock.now())
	if err != nil || len(joined)+len(left) == 0 {
		return err
	}
	tx.OnCommit(func() { s.cfg.OnMembers(a.ID) })
	const listed = 50 // the entry has the counts in any case
	return audit.Append(ctx, tx, audit.Entry{
		Action: "account.groups", Object: "user " + a.Name, Reason: "as the identity provider says",
		Detail: map[string]any{"id": a.ID, "joined": joined[:min(len(joined), listed)], "left": left[:min(len(left), listed)], "joined_count": len(joined), "left_count": len(left)},
	})
}

// freeName is a name for a new account: the wish as far as it may be a name, with a number
// behind it where another account has it. It never takes over an account.
func (s *Service) freeName(ctx context.Context, tx *store.Tx, wish string) (string, error) {
	base := nameOf(wish)
	for n := 1; n <= 100; n++ {
		name := base
		if n > 1 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		if name == firstAdmin {
			continue
		}
		if _, err := s.cfg.Store.AccountByName(ctx, tx, identity.User, "", name); err != nil {
			if fault.Is(err, fault.NotFound) {
				err = nil
			}
			return name, err
		}
	}
	return strings.ToLower(id.New("person")), nil
}

// nameOf turns a provider's user name into a name of ours: "Alice.Smith@bank.example" is
// alice-smith.
func nameOf(wish string) string {
	const longest = 50 // leaves room for a number
	wish, _, _ = strings.Cut(wish, "@")
	name := id.Name(strings.ReplaceAll(wish, ".", "-"))
	name = strings.TrimRight(name[:min(len(name), longest)], "-_")
	if id.CheckName("account name", name) != nil {
		return "person"
	}
	return name
}

// Session makes the token of a sign-in. Where the account has too many, the oldest ends.
func (l Logins) Session(ctx context.Context, tx *store.Tx, a Account, label string, ttl time.Duration) (Token, string, error) {
	s := l.s
	if who := identity.From(ctx); who.Kind != identity.System {
		return Token{}, "", fault.New(fault.PermissionDenied, "%s cannot sign other people in", who)
	}
	live, err := s.cfg.Store.Tokens(ctx, tx, Selection{Principal: a.ID, Kind: SessionToken, Live: s.clock.now()})
	if err != nil {
		return Token{}, "", err
	}
	slices.SortFunc(live, func(x, y Token) int { return x.CreatedAt.Compare(y.CreatedAt) })
	for len(live) >= maxSessions {
		if err := s.revoke(ctx, tx, Selection{ID: live[0].ID}, "the account has too many sessions"); err != nil {
			return Token{}, "", err
		}
		live = live[1:]
	}
	return s.issue(ctx, tx, Token{Kind: SessionToken, Principal: a.ID, Name: a.Name, Label: fault.Clip(clean(label), maxLabel-3)}, ttl)
}

// CommandToken makes a token for a command that a person has allowed to log in, by a token of
// theirs. It may do no more than one that the person makes by that token: it ends with it,
// unless that is a session. Errors: fault.Unauthenticated where that token has ended;
// fault.PermissionDenied for a disabled account; fault.Exhausted.
func (l Logins) CommandToken(ctx context.Context, tx *store.Tx, by, label string) (Token, string, error) {
	s := l.s
	parent, err := s.cfg.Store.Token(ctx, tx, by)
	if fault.Is(err, fault.NotFound) || err == nil && !parent.Live(s.clock.now()) {
		return Token{}, "", fault.New(fault.Unauthenticated, "the login that allowed the command has ended").WithHint("Run falaj login again.")
	}
	if err != nil {
		return Token{}, "", err
	}
	a, err := s.cfg.Store.Account(ctx, tx, parent.Principal)
	if err != nil {
		return Token{}, "", err
	}
	if !a.DisabledAt.IsZero() {
		return Token{}, "", fault.New(fault.PermissionDenied, "account %s is disabled", a.Name).WithHint("Ask an administrator of Falaj.")
	}
	if err := s.room(ctx, tx, a); err != nil {
		return Token{}, "", err
	}
	t := Token{Kind: UserToken, Principal: a.ID, Name: a.Name, Label: fault.Clip(clean(label), maxLabel-3)}
	if parent.Kind != SessionToken {
		t.Parent, t.ExpiresAt = parent.ID, parent.ExpiresAt
	}
	return s.issue(identity.With(ctx, identity.Principal{Kind: identity.User, ID: a.ID, Name: a.Name}), tx, t, s.cfg.TTL)
}

// EndSessions ends the tokens of sign-ins. The caller has authorised itself.
func (l Logins) EndSessions(ctx context.Context, tx *store.Tx, reason string, tokens ...string) error {
	s := l.s
	for _, t := range tokens {
		if err := s.revoke(ctx, tx, Selection{ID: t, Kind: SessionToken}, reason); err != nil {
			return err
		}
	}
	return nil
}

// Disable stops an account, named as for Resolve: its tokens do not work until Enable, and
// nobody signs in to it. Its sessions end. Needs what DeleteAccount needs. Errors:
// fault.NotFound; fault.Conflict for the last administrator and one's own account.
func (s *Service) Disable(ctx context.Context, in project.Name, ref, reason string) (Account, error) {
	return s.able(ctx, in, ref, reason, s.clock.now())
}

// Enable lets a disabled account work again; its sessions stay ended.
func (s *Service) Enable(ctx context.Context, in project.Name, ref string) (Account, error) {
	return s.able(ctx, in, ref, "", time.Time{})
}

func (s *Service) able(ctx context.Context, in project.Name, ref, reason string, disabled time.Time) (Account, error) {
	if len(reason) > maxDisplay {
		return Account{}, fault.New(fault.Invalid, "the reason has %d bytes, at most %d are allowed", len(reason), maxDisplay)
	}
	a, missing := s.resolve(ctx, in, ref)
	if missing != nil && !fault.Is(missing, fault.NotFound) {
		return Account{}, missing
	}
	action, object := policy.Action("member.revoke"), policy.Object{Kind: "user", Name: ref}
	if of := home(a, in, ref); of != "" {
		action, object = "token.revoke", policy.Object{Project: string(of), Kind: "service", Name: ref}
	}
	if err := s.cfg.Authorizer.Allow(ctx, action, object); err != nil {
		return Account{}, s.asUnknown(ctx, "member.revoke", policy.Object{Kind: "user", Name: ref}, object, err)
	}
	if missing != nil { // only those who may look hear that
		return Account{}, missing
	}
	if a.ID == identity.From(ctx).ID && !disabled.IsZero() {
		return Account{}, fault.New(fault.Conflict, "you cannot disable your own account").WithHint("Ask another administrator.")
	}
	err := s.cfg.DB.Update(ctx, string(a.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		if a, err = s.cfg.Store.Account(ctx, tx, a.ID); err != nil {
			return err
		}
		return s.ableIn(ctx, tx, &a, reason, disabled)
	})
	return a, err
}

// ableIn disables or, for the zero time, enables an account in the caller's transaction. The
// caller has authorised itself. Error: fault.Conflict for the last administrator.
func (s *Service) ableIn(ctx context.Context, tx *store.Tx, a *Account, reason string, disabled time.Time) error {
	if a.DisabledAt.IsZero() == disabled.IsZero() {
		return nil
	}
	a.DisabledAt, a.DisabledReason = disabled, reason
	if err := s.cfg.Store.SetDisabled(ctx, tx, a.ID, disabled, reason); err != nil {
		return err
	}
	action, what := "account.enable", AccountEnabled
	if !disabled.IsZero() {
		action, what = "account.disable", AccountDisabled
		if err := s.KeepAdmin(ctx, tx); err != nil {
			return err
		}
		if err := s.revoke(ctx, tx, Selection{Principal: a.ID, Kind: SessionToken}, "account disabled"); err != nil {
			return err
		}
	}
	tx.OnCommit(func() { s.forgetHolder(a.ID) })
	if err := audit.Append(ctx, tx, audit.Entry{Project: string(a.Project), Action: action, Object: string(a.Kind) + " " + a.Name, Reason: reason, Detail: map[string]any{"id": a.ID}}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(a.Project), what, *a)
}

// KeepAdmin refuses a transaction that leaves the installation without an administrator who
// can log in: a person with a grant of their own. Error: fault.Conflict.
func (s *Service) KeepAdmin(ctx context.Context, tx *store.Tx) error {
	admins, err := s.cfg.Grants.Admins(ctx, tx)
	if err != nil {
		return err
	}
	now := s.clock.now()
	for _, admin := range admins {
		a, err := s.cfg.Store.Account(ctx, tx, admin)
		if err == nil && a.Kind == identity.User && a.DisabledAt.IsZero() && (a.ProvedUntil.IsZero() || now.Before(a.ProvedUntil)) {
			return nil
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	return fault.New(fault.Conflict, "this would leave the installation without an administrator").
		WithHint("Make another user an admin of the installation first.")
}
