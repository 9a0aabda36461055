package app

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/diskspace"
)

// holdDiskReserve keeps room for a full disk, unless no reserve is configured.
func (a *App) holdDiskReserve(ctx context.Context) error {
	least := a.cfg.Reserve()
	if least == (diskspace.Space{}) {
		return nil
	}
	r := diskspace.Hold(a.cfg.Data, least, a.log)
	a.every(time.Second, "ballast", r.Look)
	return r.Look(ctx)
}
