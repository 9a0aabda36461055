package app

import (
	"context"
	"os"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// RecoverAdmin makes a new token for the installation's first administrator,
// who is made an administrator again if need be, and ends the former ones of its
// kind: for an operator of the machine, who has the data directory. The server
// must not be running. Errors: fault.Conflict while one is; fault.NotFound for a
// directory without an installation.
func RecoverAdmin(ctx context.Context, cfg config.Config, w World) (secret string, err error) {
	if _, err := os.Stat(filepath.Join(cfg.Data, "master.key")); err != nil {
		return "", fault.New(fault.NotFound, "no installation found in %s: %w", cfg.Data, err).
			WithHint("Name the server's data directory with --data, or its configuration with --config.")
	}
	a := newApp(cfg, w)
	a.upgrading = noUpgrade
	defer func() { _ = a.Stop(ctx) }()
	if a.lock, err = lifecycle.LockDir(cfg.Data); err != nil {
		return "", err
	}
	if err := backup.Unfinished(cfg.Data); err != nil {
		return "", err
	}
	ctx = identity.With(ctx, identity.Loop("operator"))
	if err := a.openGovernance(ctx); err != nil {
		return "", err
	}
	return a.accounts.Recover(ctx)
}
