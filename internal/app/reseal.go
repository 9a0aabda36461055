package app

import (
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// Reseal seals the master key by the passphrase in a file, or by none when the
// file's name is empty. The configured passphrase is the one that opens it now.
// The server must not be running. Errors: fault.Conflict while one is;
// fault.Invalid for a wrong passphrase.
func Reseal(cfg config.Config, passphraseFile string) (err error) {
	lock, err := lifecycle.LockDir(cfg.Data)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	if err := backup.Unfinished(cfg.Data); err != nil {
		return err
	}
	var now, then []byte
	if f := cfg.Keys.PassphraseFile; f != "" {
		if now, err = keys.ReadPassphrase(f); err != nil {
			return err
		}
	}
	if passphraseFile != "" {
		if then, err = keys.ReadPassphrase(passphraseFile); err != nil {
			return err
		}
	}
	return keys.Reseal(filepath.Join(cfg.Data, "master.key"), now, then)
}
