package config

import (
	"syscall"

	"github.com/falaj-ml/falaj/internal/diskspace"
	"github.com/falaj-ml/falaj/internal/fault"
)

// CheckFree refuses to continue when the data directory's disk has less left than the
// reserve: what is acknowledged must be kept, and refusals must be recorded.
func (c Config) CheckFree() error { return diskspace.Check("the data directory", c.Data, c.Reserve()) }

// Reserve is what is left free on the disk of the data directory.
func (c Config) Reserve() diskspace.Space {
	return diskspace.Space{Bytes: Bytes(c.Limits.Free), Files: c.Limits.FreeFiles}
}

// SpaceFor refuses to store what a job leaves where that would take the disk of the data
// directory below half of its reserve: the reserve is for what was begun, and not for one
// job alone. Nil where objects are kept elsewhere.
func (c Config) SpaceFor(bytes, files int64) error {
	free, err := diskspace.Free(c.Data)
	if err != nil {
		return fault.New(fault.Unavailable, "disk of the data directory: %w", err)
	}
	least := c.Reserve()
	least.Bytes, least.Files = least.Bytes/2, least.Files/2
	if free.Bytes-least.Bytes < bytes || free.Files-least.Files < files {
		return fault.New(fault.Exhausted, "it has %d MiB in %d files, but the server's disk has only %d MiB and %d inodes above half of its reserve: %w",
			(bytes+1<<20-1)>>20, files, max(free.Bytes-least.Bytes, 0)>>20, max(free.Files-least.Files, 0), syscall.ENOSPC).
			WithHint("Leave less, or have space freed on the server's disk. Holes of a sparse file count: they are stored as zeros.")
	}
	return nil
}
