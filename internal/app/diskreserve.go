package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
)

// diskReserve is space, and are files, on the disk of the data directory that are taken so that
// they can be given back. A job in place can fill that disk faster than it is
// ended; then its end could not be recorded, and what it wrote not be removed,
// because there is no space, or no inode, to record it in.
type diskReserve struct {
	path  string // a file, and with ".files" a directory
	size  diskSpace
	least diskSpace // free room that is to stay beside it
	log   *slog.Logger
}

const (
	diskReserveSize  = 16 << 20
	diskReserveFiles = 256
)

// fullDisk is the room below which a disk counts as full: the ballast is given back, and the
// server is not ready. Without a reserve there is none.
func fullDisk(reserve diskSpace) diskSpace {
	return diskSpace{bytes: min(reserve.bytes, 4<<20), files: min(reserve.files, 64)}
}

// holdDiskReserve keeps room for a full disk, unless no reserve is wanted.
func (a *App) holdDiskReserve(ctx context.Context) error {
	least := a.cfg.reserve()
	if least == (diskSpace{}) {
		return nil
	}
	b := &diskReserve{path: filepath.Join(a.cfg.Data, "ballast"), least: least, log: a.log}
	if least.bytes > 0 {
		b.size.bytes = diskReserveSize
	}
	if least.files > 0 {
		b.size.files = diskReserveFiles
	}
	loop := &lifecycle.Loop{Name: "ballast", Every: time.Second, Run: b.look, Logger: a.log}
	a.group.Add(loop.Service())
	return b.look(ctx)
}

// look gives the ballast back when the disk is full, and takes it again when there
// is room.
func (b *diskReserve) look(ctx context.Context) error {
	free, err := freeSpace(filepath.Dir(b.path))
	if err != nil {
		return fault.Wrap(err, "disk of the data directory")
	}
	low := fullDisk(b.least)
	enough := b.least.plus(b.size).plus(low)
	var failed []error
	if held := exists(b.path); held && free.bytes < low.bytes {
		b.log.WarnContext(ctx, "the disk of the data directory is full: the space kept for this is given back", slog.String("size", resource.Bytes(b.size.bytes).String()))
		failed = append(failed, fault.Wrap(os.Remove(b.path), "giving space back"))
	} else if !held && b.size.bytes > 0 && free.bytes > enough.bytes {
		failed = append(failed, fault.Wrap(b.take(), "keeping space"))
	}
	if held := exists(b.dir()); held && free.files < low.files {
		b.log.WarnContext(ctx, "the disk of the data directory has no inodes left: the files kept for this are removed", slog.Int64("files", b.size.files))
		failed = append(failed, fault.Wrap(os.RemoveAll(b.dir()), "giving inodes back"))
	} else if !held && b.size.files > 0 && free.files > enough.files {
		failed = append(failed, fault.Wrap(b.takeFiles(), "keeping inodes"))
	}
	return errors.Join(failed...)
}

func (b *diskReserve) dir() string { return b.path + ".files" }

func (b *diskReserve) take() error {
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, b.size.bytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system that takes no space in advance: the empty file stays, and none is kept
	}
	if err != nil {
		_ = os.Remove(b.path)
	}
	return err
}

// takeFiles makes empty files: each takes an inode.
func (b *diskReserve) takeFiles() error {
	if err := os.MkdirAll(b.dir(), 0o700); err != nil {
		return err
	}
	for n := range b.size.files {
		if err := os.WriteFile(filepath.Join(b.dir(), strconv.FormatInt(n, 10)), nil, 0o600); err != nil {
			return errors.Join(err, os.RemoveAll(b.dir()))
		}
	}
	return nil
}
