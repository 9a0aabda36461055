package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// cgroupsFile is in the data directory, and in no backup: a restored copy is another
// installation.
const cgroupsFile = "cgroups.json"

// groupsMade says in which directories an installation has made control groups.
type groupsMade struct {
	ID    string   `json:"id"` // random
	Bases []string `json:"bases"`
}

// sweepCgroups removes the control groups of models, SQL and parsers that a killed server
// of this installation left, and what runs in them. Those of jobs stay: jobs outlive the
// server. It is called before the first child is started, by the owner of the directory.
func (a *App) sweepCgroups(ctx context.Context) error {
	made, err := shim.Read[groupsMade](a.cfg.Data, cgroupsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// It may be torn by a crash of an older file system: nothing else depends on it.
		a.log.WarnContext(ctx, "the list of control groups cannot be read; groups of earlier servers may stay", slog.Any("error", err))
		made = groupsMade{}
	}
	if made.ID == "" {
		made.ID = rand.Text()
	}
	// A copy of the directory, which may run beside it, has another path.
	sum := sha256.Sum256([]byte(made.ID + "\x00" + a.cfg.Data))
	a.groupsOwner = hex.EncodeToString(sum[:8])
	if n := sandbox.SweepCgroups(made.Bases, a.groupsOwner); n > 0 {
		a.log.InfoContext(ctx, "removed the control groups that an earlier server left", slog.Int("groups", n))
	}
	bases := sandbox.CgroupBases()
	if err == nil && slices.Equal(bases, made.Bases) {
		return nil
	}
	made.Bases = bases
	return fault.Wrap(shim.Write(a.cfg.Data, cgroupsFile, made), "record the cgroup path")
}
