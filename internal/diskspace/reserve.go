package diskspace

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Reserve occupies space and inodes on the disk of the data directory, and releases them when
// the disk is full. A job can fill that disk faster than it can be stopped. Without a reserve
// there would be no space or inode to record its end and to remove its files.
type Reserve struct {
	path  string // a file, and with ".files" a directory
	size  Space
	least Space // free room that is to stay beside it
	log   *slog.Logger
}

const (
	reserveSize  = 16 << 20
	reserveFiles = 256
)

// Full is the room below which a disk counts as full: the ballast is given back, and the
// server is not ready. Without a reserve there is none.
func Full(reserve Space) Space {
	return Space{Bytes: min(reserve.Bytes, 4<<20), Files: min(reserve.Files, 64)}
}

// Hold keeps least, and more beside it, on the disk of a data directory: a file of the name
// ballast, and a directory. Call its Look again and again.
func Hold(dir string, least Space, log *slog.Logger) *Reserve {
	r := &Reserve{path: filepath.Join(dir, "ballast"), least: least, log: log}
	if least.Bytes > 0 {
		r.size.Bytes = reserveSize
	}
	if least.Files > 0 {
		r.size.Files = reserveFiles
	}
	return r
}

// Look gives the ballast back when the disk is full, and takes it again when there
// is room.
func (r *Reserve) Look(ctx context.Context) error {
	free, err := Free(filepath.Dir(r.path))
	if err != nil {
		return fault.Wrap(err, "disk of the data directory")
	}
	low := Full(r.least)
	enough := r.least.Plus(r.size).Plus(low)
	var failed []error
	if held := exists(r.path); held && free.Bytes < low.Bytes {
		r.log.WarnContext(ctx, "the disk of the data directory is full: the space kept for this is given back", slog.String("size", resource.Bytes(r.size.Bytes).String()))
		failed = append(failed, fault.Wrap(os.Remove(r.path), "giving space back"))
	} else if !held && r.size.Bytes > 0 && free.Bytes > enough.Bytes {
		failed = append(failed, fault.Wrap(r.take(), "keeping space"))
	}
	if held := exists(r.dir()); held && free.Files < low.Files {
		r.log.WarnContext(ctx, "the disk of the data directory has no inodes left: the files kept for this are removed", slog.Int64("files", r.size.Files))
		failed = append(failed, fault.Wrap(os.RemoveAll(r.dir()), "giving inodes back"))
	} else if !held && r.size.Files > 0 && free.Files > enough.Files {
		failed = append(failed, fault.Wrap(r.takeFiles(), "keeping inodes"))
	}
	return errors.Join(failed...)
}

func (r *Reserve) dir() string { return r.path + ".files" }

func (r *Reserve) take() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, r.size.Bytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system that takes no space in advance: the empty file stays, and none is kept
	}
	if err != nil {
		_ = os.Remove(r.path)
	}
	return err
}

// takeFiles makes empty files: each takes an inode.
func (r *Reserve) takeFiles() error {
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return err
	}
	for n := range r.size.Files {
		if err := os.WriteFile(filepath.Join(r.dir(), strconv.FormatInt(n, 10)), nil, 0o600); err != nil {
			return errors.Join(err, os.RemoveAll(r.dir()))
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
