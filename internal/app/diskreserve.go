package app

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/diskspace"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// holdDiskReserve keeps room for a full disk, unless no reserve is configured.
func (a *App) holdDiskReserve(ctx context.Context) error {
	least := a.cfg.Reserve()
	if least == (diskspace.Space{}) {
		return nil
	}
	r := diskspace.Hold(a.cfg.Data, least, a.log)
	loop := &lifecycle.Loop{Name: "ballast", Every: time.Second, Run: r.Look, Logger: a.log}
	a.group.Add(loop.Service())
	return r.Look(ctx)
}
