package app

import (
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// noteUpgrade notes an upgrade of the database for the audit log, which is part of what is
// upgraded: before it begins, so that one that is cut short is on record, too.
func (a *App) noteUpgrade(u store.Upgrade) error {
	return backup.AddNote(a.cfg.Data, backup.Note{Act: "store.upgrade", Object: "installation", At: time.Now().UTC(), Detail: map[string]any{
		"version": a.world.Version, "schemas": u.String(), "steps": u.Steps, "bytes": u.Size,
	}})
}

// beginUpgrade records the upgrade, and reports at /readyz that it began.
func (a *App) beginUpgrade(u store.Upgrade) error {
	if err := a.noteUpgrade(u); err != nil {
		return err
	}
	a.upgraded(0, u)
	return nil
}

// upgraded reports the progress of the upgrade at /readyz.
func (a *App) upgraded(done int, u store.Upgrade) {
	a.api.At(fmt.Sprintf("upgrading the database, %d of %d steps done", done, u.Steps))
}

// noUpgrade keeps a command that is not the server from upgrading the database on the way.
func noUpgrade(u store.Upgrade) error {
	return fault.New(fault.Conflict, "the database is of an older version of Falaj and waits for an upgrade (%s)", u).
		WithHint("Start the server of this version once, which upgrades it: falaj up. Or use the command of the version that wrote it.")
}
