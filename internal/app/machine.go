package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/machine/nvml"
)

// machine is what this machine is, and its accelerators. The memory's bandwidth
// is what `falaj pool doctor` has measured.
func (a *App) machine(ctx context.Context) (machine.Facts, machine.Inventory) {
	facts := machine.Read("/")
	inventory, closer, why := nvml.Open()
	a.onClose(closer)
	if why != "" {
		a.log.DebugContext(ctx, "no accelerators of NVIDIA", slog.String("why", why))
	}
	if err := facts.WithAccelerators(inventory); err != nil {
		a.log.WarnContext(ctx, "the accelerators of this machine cannot be listed", slog.Any("error", err))
	}
	if err := facts.Measured(ctx, a.machineFile(), false); err != nil {
		a.log.WarnContext(ctx, "the measurement of this machine cannot be read", slog.Any("error", err))
	}
	return facts, inventory
}

func (a *App) machineFile() string { return filepath.Join(a.cfg.Data, "machine.json") }

// measure measures what takes time, once; the label is there from the next
// start on.
func (a *App) measure(ctx context.Context) error {
	facts := machine.Read("/")
	return facts.Measured(ctx, a.machineFile(), true)
}
