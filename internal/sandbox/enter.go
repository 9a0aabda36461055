package sandbox

import (
	"context"
	"encoding/json"
	"os/exec"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// NotStarted is how the words of a look begin that came before the program.
const NotStarted = wire.NotStarted

// Box is a running sandbox, of level Sandbox or Container.
type Box struct {
	Init    int      // its first process
	Start   uint64   // of that, in clock ticks since boot: numbers are used again
	Cgroups []string // as Cmd.Cgroups
}

// Enter prepares falaj-worker in a mode that args name to run inside a running
// sandbox, as the program's own user and with no right that the program has not,
// but that it may read the memory of processes there. It ends with the sandbox.
// What it writes is of the sandbox: not to be trusted. Errors: fault.Conflict;
// fault.Unsupported without nsenter.
func (b Box) Enter(ctx context.Context, workerPath string, args ...string) (*exec.Cmd, error) {
	if b.Init <= 1 || b.Start == 0 {
		return nil, fault.New(fault.Conflict, "the program is not running")
	}
	if wire.Nsenter() == "" {
		return nil, fault.New(fault.Unsupported, "the server's machine has no nsenter, which enters a sandbox").WithHint("Install util-linux there.")
	}
	entry, err := json.Marshal(wire.Entry{Init: b.Init, Start: b.Start, Cgroups: b.Cgroups, Args: args})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, workerPath, wire.ModeEnter, string(entry))
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, "/", killDelay
	return cmd, nil
}
