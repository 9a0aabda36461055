package app

import (
	"io/fs"
	"log/slog"
	"os"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
)

// private makes the data directory, or closes one that is there to other users:
// not every file below it is sealed. A directory that others may write to by
// intent (/tmp), or that holds what is not ours (/srv), is refused: closing it
// would take it from those whose it is.
func private(dir string, log *slog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.New(fault.Invalid, "data directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fault.New(fault.Invalid, "data directory: %w", err)
	}
	if !config.OpenToOthers(info) {
		return nil
	}
	if info.Mode()&fs.ModeSticky != 0 {
		return fault.New(fault.Invalid, "%s is a directory for everybody", dir).
			WithHint("Choose one for Falaj alone with --data.")
	}
	if foreign, err := foreign(dir); err != nil || foreign != "" {
		if err != nil {
			return fault.New(fault.Invalid, "data directory: %w", err)
		}
		return fault.New(fault.Invalid, "%s is accessible to other users and contains %q, but no Falaj installation", dir, foreign).
			WithHint("Choose a directory for Falaj alone with --data; if this is the one: chmod 700 %s", fault.ShellWord(dir))
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		return fault.New(fault.Invalid, "the data directory is open to other users: %w", err).
			WithHint("chmod 700 %s", fault.ShellWord(dir))
	}
	log.Warn("the data directory was accessible to other users; the permissions were corrected", slog.String("dir", dir), slog.String("mode", info.Mode().Perm().String()))
	return nil
}

// foreign names something in a directory in which Falaj never was; empty when it
// was there, or nothing is.
func foreign(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	found := ""
	for _, e := range entries {
		switch e.Name() {
		case "master.key":
			return "", nil
		case "lost+found", "falaj.lock": // of a file system of its own; of a command that found nothing here
		default:
			found = e.Name()
		}
	}
	return found, nil
}
