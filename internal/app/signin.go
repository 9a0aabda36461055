package app

import (
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
)

// openSignIn makes the service of logins, with the identity providers of the configuration.
func (a *App) openSignIn() error {
	var providers []signin.Provider
	for _, name := range slices.Sorted(maps.Keys(a.cfg.Identity.Providers)) {
		p, at := a.cfg.Identity.Providers[name], "identity.providers."+name
		secret, err := a.secret(at+".client_secret_file", p.SecretFile)
		if err != nil {
			return err
		}
		roots, err := a.authorities(at+".ca", p.CA)
		if err != nil {
			return err
		}
		providers = append(providers, a.cfg.Identity.Login(name, secret, roots, a.log))
	}
	var err error
	if a.signIn, err = signin.New(signin.Config{
		DB: a.db, Store: identitysql.Sessions{}, Accounts: a.accounts, Authorizer: a.authorizer, Sealer: a.keys, Journal: a.journal, Providers: providers,
		URL: a.cfg.Identity.Base(), Log: a.log,
	}); err != nil {
		return err
	}
	a.every(time.Hour, "ended sessions", a.signIn.Tidy)
	if len(providers) > 0 {
		a.every(5*time.Second, "sessions", a.signIn.Refresh)
	}
	return nil
}
