package diskspace

import (
	"math"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Space is space on a disk: for bytes, and for files, which take an inode each.
type Space struct{ Bytes, Files int64 }

// Plus is the sum of both.
func (r Space) Plus(s Space) Space {
	return Space{r.Bytes + s.Bytes, r.Files + s.Files}
}

// Free is what the file system of a directory has left.
func Free(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, err
	}
	r := Space{Bytes: int64(s.Bavail) * s.Bsize, Files: int64(s.Ffree)} //nolint:gosec // a disk's blocks fit
	if s.Files == 0 {                                                   // it makes inodes as they are needed
		r.Files = math.MaxInt64
	}
	return r, nil
}

// Check refuses to continue when the disk of a directory has less left than the least; what
// is the directory in words. Error: fault.Exhausted, caused by fault.ErrFull.
func Check(what, dir string, least Space) error {
	free, err := Free(dir)
	if err != nil {
		return fault.New(fault.Unavailable, "disk of %s: %w", filepath.Base(dir), err)
	}
	if free.Bytes < least.Bytes {
		return fault.New(fault.Exhausted, "the disk of %s has %s left, %s are needed", what, resource.Bytes(free.Bytes).Words(), resource.Bytes(least.Bytes).Words()).
			WithHint("Free some space, or lower limits.free.").WithCause(fault.ErrFull)
	}
	if free.Files < least.Files {
		return fault.New(fault.Exhausted, "the disk of %s has %d inodes left, %d are needed", what, free.Files, least.Files).
			WithHint("Remove files, or lower limits.free_files.").WithCause(fault.ErrFull)
	}
	return nil
}
